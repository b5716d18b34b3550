//! What resources share to take over what another provider keeps: a `moved` block hands over a state of that provider's schema, and what
//! comes out is the state that an import of the same object begins with.

use serde_json::Value as Json;
use tfplugin::{Diagnostic, Diagnostics, Moved, Value};

use super::custom_object::CustomKind;
use crate::aws::tags::{CLUSTER_KEY, Tags};

/// The provider whose AWS resources can be taken over.
const AWS: &str = "hashicorp/aws";
/// The providers whose manifests can be taken over, with the manifest's type.
const MANIFESTS: [(&str, &str); 3] = [
    ("gavinbunney/kubectl", "kubectl_manifest"),
    ("alekc/kubectl", "kubectl_manifest"),
    ("hashicorp/kubernetes", "kubernetes_manifest"),
];

/// A resource of hashicorp/aws as its state tells it.
pub struct Old<'a>(&'a Moved);

/// Takes over a resource of hashicorp/aws of this type, by the state that `bare` makes of it.
pub fn from_aws(
    source: &Moved,
    type_name: &str,
    bare: impl FnOnce(&Old<'_>) -> Result<Value, Diagnostics>,
) -> Result<Option<Value>, Diagnostics> {
    if source.is(AWS, type_name) { bare(&Old(source)).map(Some) } else { Ok(None) }
}

impl Old<'_> {
    /// Gives the text of an attribute without which nothing can be found.
    pub fn text(&self, attribute: &str) -> Result<&str, Diagnostics> {
        let found = self.0.text(attribute).filter(|text| !text.is_empty());
        found.ok_or_else(|| incomplete(&self.0.type_name, attribute).into())
    }

    /// Gives the region of the object, which hashicorp/aws keeps since its version 6.
    pub fn region(&self) -> Option<&str> {
        self.0.text("region").filter(|text| !text.is_empty())
    }

    /// Carries over which tags the configuration wrote. An import takes all tags of an object for its own; here those of others are known
    /// apart, and no plan takes them away. What `default_tags` of the other provider added counts as theirs too.
    pub fn tagged(&self, state: Value) -> Value {
        let Some(tags) = self.0.state.get("tags") else { return state };
        let text = |(key, value): (&String, &Json)| Some((key.clone(), value.as_str()?.to_owned()));
        let owned: Tags = tags.as_object().into_iter().flatten().filter_map(text).collect();
        let mut own = owned.clone();
        own.remove(CLUSTER_KEY);
        let state = if own.is_empty() { state } else { state.with("tags", own) };
        state.with("tags_all", owned)
    }
}

/// What a manifest says that it is.
#[derive(Debug, Default, PartialEq, Eq)]
struct Manifest {
    api_version: String,
    kind: String,
    name: String,
}

impl Manifest {
    fn of(source: &Moved) -> Option<Self> {
        let (_, type_name) = MANIFESTS.into_iter().find(|(provider, type_name)| source.is(provider, type_name))?;
        Some(if type_name == "kubectl_manifest" {
            Self::of_kubectl(source)
        } else {
            Self::of_kubernetes(&source.state)
        })
    }

    /// kubectl tells it in attributes of its own; one that was never applied by a newer version has the text alone.
    fn of_kubectl(source: &Moved) -> Self {
        let text = |name: &str| source.text(name).unwrap_or_default().to_owned();
        let told = Self { api_version: text("api_version"), kind: text("kind"), name: text("name") };
        if told.whole() {
            return told;
        }
        let yaml = source.text("yaml_body_parsed").or(source.text("yaml_body")).unwrap_or_default();
        serde_saphyr::from_str(yaml).map_or(told, |object| Self::of_object(&object))
    }

    /// Both are dynamic attributes, which state keeps as `{"value": …, "type": …}`; `object` is what the cluster answered.
    fn of_kubernetes(state: &Json) -> Self {
        let told = ["object", "manifest"].into_iter().filter_map(|name| state.get(name));
        let told = told.map(|dynamic| Self::of_object(dynamic.get("value").unwrap_or(dynamic)));
        told.into_iter().find(Self::whole).unwrap_or_default()
    }

    fn of_object(object: &Json) -> Self {
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        Self {
            api_version: text(&object["apiVersion"]),
            kind: text(&object["kind"]),
            name: text(&object["metadata"]["name"]),
        }
    }

    fn whole(&self) -> bool {
        [&self.api_version, &self.kind, &self.name].into_iter().all(|text| !text.is_empty())
    }

    fn group(&self) -> &str {
        group_of(&self.api_version)
    }
}

/// Gives the name of the object that a manifest keeps; `None` where it is no manifest, and an error where it keeps another kind.
/// The version may be any: the API server converts between those that it serves.
pub fn object_name(source: &Moved, kind: &CustomKind, resource: &str) -> Result<Option<String>, Diagnostics> {
    let Some(manifest) = Manifest::of(source) else { return Ok(None) };
    if !manifest.whole() {
        return Err(incomplete(&source.type_name, "apiVersion, kind and metadata.name").into());
    }
    if (manifest.group(), manifest.kind.as_str()) == (group_of(kind.api_version), kind.kind) {
        return Ok(Some(manifest.name));
    }
    let detail = format!(
        "This {} keeps the {} {:?} of {}, and a {resource} is a {} of {}. {}",
        source.type_name,
        manifest.kind,
        manifest.name,
        manifest.api_version,
        kind.kind,
        kind.api_version,
        advice(&manifest)
    );
    Err(Diagnostic::error(format!("A {} cannot become a {resource}", manifest.kind), detail).into())
}

/// Says what to do with an object that cannot be taken over here.
fn advice(manifest: &Manifest) -> String {
    let function = match (manifest.group(), manifest.kind.as_str()) {
        ("karpenter.sh", "NodePool") => return moves_to("karp_node_pool"),
        ("karpenter.sh", "NodeOverlay") => return moves_to("karp_node_overlay"),
        ("karpenter.k8s.aws", "EC2NodeClass") => return moves_to("karp_node_class"),
        ("karpenter.sh", "Provisioner") => {
            "karp_node_pool with the arguments that provider::karp::node_pool_from_provisioner"
        }
        ("karpenter.k8s.aws", "AWSNodeTemplate") => {
            "karp_node_class with the arguments that provider::karp::node_class_from_template"
        }
        _ => {
            return "karp has no resource for it: take the moved block away, and leave the object to the provider that has it.".to_owned();
        }
    };
    format!(
        "Its API is gone from v1, so that the object must be replaced and cannot be moved: take the moved block away, write a {function} \
         gives, apply that beside the old object, and delete the old object then."
    )
}

fn moves_to(resource: &str) -> String {
    format!("Let the moved block lead to a {resource}.")
}

fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn incomplete(type_name: &str, what: &str) -> Diagnostic {
    Diagnostic::error(
        "The state to take over is incomplete",
        format!(
            "The state of this {type_name} does not tell {what}, by which the object is found. Take it out of the state with \
             `removed {{ … lifecycle {{ destroy = false }} }}`, and import the object instead."
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn moved(provider: &str, type_name: &str, state: Json) -> Moved {
        Moved {
            provider_address: format!("registry.example.org/{provider}"),
            type_name: type_name.to_owned(),
            schema_version: 1,
            state,
        }
    }

    fn pool() -> Manifest {
        Manifest { api_version: "karpenter.sh/v1".into(), kind: "NodePool".into(), name: "default".into() }
    }

    #[test]
    fn manifests_are_read_in_each_providers_way() {
        let yaml = "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata:\n  name: default\n";
        let object = json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" } });
        for (provider, type_name, state) in [
            (
                "gavinbunney/kubectl",
                "kubectl_manifest",
                json!({ "api_version": "karpenter.sh/v1", "kind": "NodePool", "name": "default", "namespace": null, "yaml_body": "" }),
            ),
            ("alekc/kubectl", "kubectl_manifest", json!({ "api_version": null, "yaml_body": yaml })),
            (
                "hashicorp/kubernetes",
                "kubernetes_manifest",
                json!({ "object": { "value": object, "type": ["object", {}] } }),
            ),
            (
                "hashicorp/kubernetes",
                "kubernetes_manifest",
                json!({ "object": null, "manifest": { "value": object, "type": ["object", {}] } }),
            ),
        ] {
            assert_eq!(Manifest::of(&moved(provider, type_name, state)), Some(pool()), "{provider}");
        }
        assert_eq!(Manifest::of(&moved("evil/kubectl", "kubectl_manifest", json!({ "yaml_body": yaml }))), None);
    }

    #[test]
    fn only_tags_that_the_configuration_wrote_are_carried() {
        let bare = Value::object([("id", "r")]);
        let tagged = |state: Json| Old(&moved("hashicorp/aws", "aws_iam_role", state)).tagged(bare.clone());
        assert_eq!(tagged(json!({})), bare, "a type without tags is imported");
        assert_eq!(tagged(json!({ "tags": null })), bare.clone().with("tags_all", Tags::new()));
        let carried =
            tagged(json!({ "tags": { "a": "1", "karp.sh/cluster": "c" }, "tags_all": { "a": "1", "team": "x" } }));
        assert_eq!(carried.get("tags"), &Value::object([("a", "1")]));
        assert_eq!(carried.get("tags_all"), &Value::object([("a", "1"), ("karp.sh/cluster", "c")]));
    }
}

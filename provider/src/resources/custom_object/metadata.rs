//! The labels and annotations of an object itself.

use std::collections::BTreeMap;

use karp_domain::api::label_syntax::{key_problem, value_problem};
use karp_domain::api::labels::DRAINING;
use karp_domain::api::metadata::is_users;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Value as Json, json};
use tfplugin::{Attribute, AttributePath, Diagnostic, Diagnostics, Schema, Type, Value};

use crate::manifests::spec::Scope;

const ANNOTATIONS: &str = "annotations";
const LABELS: &str = "labels";
/// The attributes, which are called as the fields are.
pub(super) const ALL: [&str; 2] = [ANNOTATIONS, LABELS];

/// Declares the labels and annotations of an object.
pub fn metadata(schema: Schema, annotations: &str) -> Schema {
    let map = |what: String| {
        Attribute::map(Type::String).optional().describe(format!(
            "{what} Those that others put there are left alone. An import takes over what is there, but not what tools note for themselves: \
             kubectl, Kustomize, Helm and its charts, Argo CD, Flux, Rancher, kapp, Pulumi and Karpenter."
        ))
    };
    schema
        .attribute(ANNOTATIONS, map(format!("Annotations of the object, such as {annotations}.")))
        .attribute(LABELS, map("Labels of the object itself, to select it by; its nodes have none of them.".to_owned()))
}

/// Finds what the API server would refuse.
pub(super) fn check(config: &Value) -> Diagnostics {
    let mut found = Diagnostics::new();
    for field in ALL {
        for (key, value) in config.get(field).as_map().into_iter().flatten() {
            let value = value.as_str().filter(|_| field == LABELS);
            let problems = key_problem(key).into_iter().chain(value.and_then(value_problem));
            let at = || AttributePath::root().attribute(field).key(key);
            found.extend(
                problems.map(|problem| Diagnostic::error("The API server would refuse this", problem).at(at())),
            );
        }
    }
    found
}

/// Writes an object's metadata; the paths of unknown attributes are noted.
pub(super) fn written(value: &Value, unknown: &mut Vec<AttributePath>) -> Json {
    let mut metadata = json!({ "name": value.get("name").as_str().unwrap_or_default() });
    for field in ALL.into_iter().filter(|field| !value.get(field).is_null()) {
        metadata[field] = match tfplugin::from_value::<BTreeMap<String, String>>(value.get(field)) {
            Ok(texts) => json!(texts),
            Err(_) => {
                unknown.push(AttributePath::root().attribute(field));
                json!({})
            }
        };
    }
    metadata
}

/// Reads an object's metadata: what the state has, or all that people wrote. A pool that drains is always seen to.
pub(super) fn read(prior: &Value, live: &DynamicObject, scope: Scope) -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    for (field, theirs) in [(ANNOTATIONS, live.annotations()), (LABELS, live.labels())] {
        let own = prior.get(field).as_map();
        let is_own = |key: &str| match scope {
            _ if field == ANNOTATIONS && key == DRAINING => true,
            Scope::Known => own.is_some_and(|own| own.contains_key(key)),
            Scope::All => is_users(key),
        };
        let kept: BTreeMap<_, _> =
            theirs.iter().filter(|(key, _)| is_own(key)).map(|(key, text)| (key.clone(), text.clone())).collect();
        if own.is_some() || !kept.is_empty() {
            all.push((field, Value::object(kept)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_server_would_refuse_is_shown_at_its_key() {
        let labels = Value::object([("team", "a b"), ("owner", "platform"), ("-x", "1")]);
        let annotations = Value::object([("kubernetes.io/description", "what it is for"), ("a/b/c", "1")]);
        let found = check(&Value::object([("name", "a")]).with(LABELS, labels).with(ANNOTATIONS, annotations));
        let paths: Vec<String> = found.iter().map(|one| one.path.to_string()).collect();
        assert_eq!(paths, [r#"annotations["a/b/c"]"#, r#"labels["-x"]"#, r#"labels["team"]"#]);
    }

    #[test]
    fn labels_and_annotations_reach_the_api_and_those_of_others_stay_out_of_state() {
        let own = Value::object([("name", "a")])
            .with(LABELS, Value::object([("team", "x")]))
            .with(ANNOTATIONS, Value::object([("karp.sh/consolidation-floor", "30%")]));
        let mut metadata = written(&own, &mut Vec::new());
        assert_eq!(
            metadata,
            json!({
                "name": "a", "labels": { "team": "x" }, "annotations": { "karp.sh/consolidation-floor": "30%" },
            })
        );
        metadata["labels"]["theirs"] = json!("x");
        metadata["labels"]["helm.sh/chart"] = json!("x");
        metadata["annotations"]["theirs"] = json!("x");
        let object = json!({ "apiVersion": "v1", "kind": "A", "metadata": metadata });
        let live: DynamicObject = serde_json::from_value(object).expect("an object");
        let known = |field| own.get(field).clone();
        assert_eq!(read(&own, &live, Scope::Known), [(ANNOTATIONS, known(ANNOTATIONS)), (LABELS, known(LABELS))]);
        let bare = Value::object([("name", "a")]);
        assert!(read(&bare, &live, Scope::Known).is_empty());
        let labels = Value::object([("team", "x"), ("theirs", "x")]);
        assert_eq!(read(&bare, &live, Scope::All)[1], (LABELS, labels), "an import leaves out what tools note");
    }
}

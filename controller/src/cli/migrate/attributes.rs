//! The spec of an object as attributes of karp's resources.
//!
//! The API's own schema drives it: names of fields are respelled, keys of maps are not, and a field that the API gains is written too.
//! The provider spells them the same (`provider/src/manifests/spec.rs`); its pages under `docs/resources` are what the tests hold this to.

use std::sync::LazyLock;

use karp_domain::api::lint::Finding;
use karp_domain::api::validate::{self, Violation};
use karp_domain::api::{crds, labels, lint};
use serde_json::{Map, Value as Json, json};

use super::hcl::Value;

/// Attributes by name, in the order in which they are written.
pub type Attributes = Vec<(String, Value)>;

/// What becomes a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Class,
    Pool,
    Overlay,
}

/// The order in which people read; what is not named comes after, by name.
const ORDER: [&str; 38] = [
    "name",
    "role",
    "instance_profile",
    "ami_family",
    "ami_selector_terms",
    "subnet_selector_terms",
    "security_group_selector_terms",
    "capacity_reservation_selector_terms",
    "placement_group_selector",
    "block_device_mappings",
    "instance_store_policy",
    "kubelet",
    "metadata_options",
    "tags",
    "template",
    "node_class_ref",
    "group",
    "kind",
    "labels",
    "annotations",
    "taints",
    "startup_taints",
    "requirements",
    "expire_after",
    "termination_grace_period",
    "disruption",
    "limits",
    "weight",
    "replicas",
    "key",
    "operator",
    "value",
    "values",
    "effect",
    "nodes",
    "reasons",
    "device_name",
    "root_volume",
];
/// Lists that say something when they are empty: that there is no budget, and that any type will do.
const TOLD_EMPTY: [&str; 2] = ["budgets", "requirements"];
/// Comes last: it is the longest.
const LAST: &str = "user_data";

static SCHEMAS: LazyLock<Vec<(String, Json)>> = LazyLock::new(|| {
    let spec = |crd| {
        let crd = serde_json::to_value(crd).unwrap_or_default();
        let kind = crd["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
        (kind, crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone())
    };
    crds().into_iter().map(spec).collect()
});

impl Kind {
    /// The kind's name in the API.
    pub const fn api(self) -> &'static str {
        match self {
            Kind::Class => "EC2NodeClass",
            Kind::Pool => "NodePool",
            Kind::Overlay => "NodeOverlay",
        }
    }

    /// The type of the resource.
    pub const fn resource(self) -> &'static str {
        match self {
            Kind::Class => "karp_node_class",
            Kind::Pool => "karp_node_pool",
            Kind::Overlay => "karp_node_overlay",
        }
    }

    /// What the API server would refuse of an object.
    pub fn violations(self, object: &Json) -> Vec<Violation> {
        match self {
            Kind::Class => validate::node_class(object),
            Kind::Pool => validate::node_pool(object),
            Kind::Overlay => validate::node_overlay(object),
        }
    }

    /// What the API server takes of an object and nobody can have meant.
    pub fn findings(self, object: &Json) -> Vec<Finding> {
        match self {
            Kind::Class => lint::node_class(object),
            Kind::Pool => lint::node_pool(object),
            Kind::Overlay => lint::node_overlay(object),
        }
    }

    fn schema(self) -> &'static Json {
        SCHEMAS.iter().find(|(kind, _)| kind == self.api()).map_or(&Json::Null, |(_, schema)| schema)
    }

    /// What the API server fills in where a spec says nothing, and an import leaves out.
    fn defaults(self) -> Json {
        match self {
            Kind::Class => json!({ "metadataOptions": {
                "httpEndpoint": "enabled", "httpProtocolIPv6": "disabled", "httpPutResponseHopLimit": 1, "httpTokens": "required",
            } }),
            Kind::Pool => json!({
                "disruption": {
                    "budgets": [{ "nodes": "10%" }],
                    "consolidateAfter": "0s",
                    "consolidationPolicy": "WhenEmptyOrUnderutilized",
                },
                "template": { "spec": { "expireAfter": "720h" } },
            }),
            Kind::Overlay => json!({}),
        }
    }

    /// Fills in what the API server would: a spec out of a file is then as one out of a cluster.
    pub fn filled(self, spec: &Json) -> Json {
        let mut spec = spec.clone();
        fill(&mut spec, &self.defaults());
        for budget in spec.pointer_mut("/disruption/budgets").and_then(Json::as_array_mut).into_iter().flatten() {
            fill(budget, &json!({ "nodes": "10%" }));
        }
        spec
    }

    /// Writes the spec of an object as attributes, without what the API says anyway. `class` gives the expression for the name of a node
    /// class that is written too.
    pub fn attributes(self, name: &str, spec: &Json, class: impl Fn(&str) -> Option<String>) -> Attributes {
        let spec = without(spec, &self.defaults());
        let schema = self.schema();
        let mut all = vec![("name".to_owned(), Value::text(name))];
        for (field, value) in fields(&spec) {
            let schema = &schema["properties"][field];
            all.extend(match (self, field.as_str()) {
                (Kind::Pool, "template") => Some(("template".to_owned(), template(schema, value, &class))),
                (Kind::Class, "kubelet") => Some(("kubelet".to_owned(), kubelet(schema, value))),
                _ => attribute(field, schema, value),
            });
        }
        ordered(all)
    }
}

/// Gives the fields of an object that say something.
fn fields(object: &Json) -> impl Iterator<Item = (&String, &Json)> {
    object.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null())
}

fn fill(value: &mut Json, defaults: &Json) {
    let (Json::Object(value), Json::Object(defaults)) = (value, defaults) else { return };
    value.retain(|_, value| !value.is_null());
    for (name, default) in defaults {
        fill(value.entry(name).or_insert_with(|| default.clone()), default);
    }
}

/// Takes out what is the default: the provider's import does the same, so that nothing differs in the plan.
fn without(value: &Json, defaults: &Json) -> Json {
    let (Json::Object(value), Json::Object(defaults)) = (value, defaults) else { return value.clone() };
    let kept = value.iter().filter_map(|(name, value)| match defaults.get(name) {
        Some(default) if default == value => None,
        Some(default) => Some((name.clone(), without(value, default))),
        None => Some((name.clone(), value.clone())),
    });
    Json::Object(kept.collect())
}

fn ordered(mut all: Attributes) -> Attributes {
    let rank = |name: &str| match ORDER.iter().position(|known| *known == name) {
        Some(rank) => rank,
        None => ORDER.len() + usize::from(name == LAST),
    };
    all.sort_by(|a, b| rank(&a.0).cmp(&rank(&b.0)).then_with(|| a.0.cmp(&b.0)));
    all
}

fn is_amount(schema: &Json) -> bool {
    schema["x-kubernetes-int-or-string"] == true
}

/// Writes a field as an attribute; nothing for one that the API does not have, or that says nothing: an import leaves it out, too.
fn attribute(field: &str, schema: &Json, value: &Json) -> Option<(String, Value)> {
    let is_empty = value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
    if is_empty && !TOLD_EMPTY.contains(&field) {
        return None;
    }
    Some((spelled(field), written(schema, value)?))
}

fn written(schema: &Json, value: &Json) -> Option<Value> {
    let kind = schema["type"].as_str();
    Some(match value {
        Json::Null => return None,
        Json::Array(items) => Value::List(items.iter().filter_map(|item| written(&schema["items"], item)).collect()),
        Json::Object(_) if schema["additionalProperties"].is_object() => texts(value),
        Json::Object(_) => {
            let inner = fields(value);
            let properties = &schema["properties"];
            Value::Object(ordered(
                inner.filter_map(|(name, value)| attribute(name, &properties[name], value)).collect(),
            ))
        }
        _ if kind.is_none() && !is_amount(schema) => return None,
        Json::String(text) => Value::text(text),
        bare if kind == Some("string") || is_amount(schema) => Value::text(bare.to_string()),
        bare => Value::Bare(bare.to_string()),
    })
}

/// Writes a map of texts; amounts may stand as numbers.
fn texts(map: &Json) -> Value {
    let text = |value: &Json| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut entries: Vec<_> = fields(map).map(|(key, value)| (key.clone(), Value::Text(text(value)))).collect();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    Value::Object(entries)
}

/// The resource has one `template` where the API has its metadata and its spec.
fn template(schema: &Json, template: &Json, class: &impl Fn(&str) -> Option<String>) -> Value {
    let mut all = Attributes::new();
    for part in ["metadata", "spec"] {
        let properties = &schema["properties"][part]["properties"];
        for (field, value) in fields(&template[part]) {
            if field == "nodeClassRef" {
                all.push(("node_class_ref".to_owned(), reference(value, class)));
            } else {
                all.extend(attribute(field, &properties[field], value));
            }
        }
    }
    Value::Object(ordered(all))
}

/// Writes the reference to a class: the provider knows group and kind of karp's.
fn reference(value: &Json, class: &impl Fn(&str) -> Option<String>) -> Value {
    let known = [("group", labels::AWS_GROUP), ("kind", Kind::Class.api())];
    let all = fields(value).filter_map(|(field, value)| {
        let text = value.as_str()?;
        if known.contains(&(field.as_str(), text)) {
            return None;
        }
        let written = if field == "name" { class(text).map(Value::Bare) } else { None };
        Some((field.clone(), written.unwrap_or_else(|| Value::text(text))))
    });
    Value::Object(ordered(all.collect()))
}

/// Settings with rules are attributes, all others come as one JSON object: also those whose attribute cannot hold the value.
fn kubelet(schema: &Json, kubelet: &Json) -> Value {
    let fits = |schema: &Json, value: &Json| match schema["type"].as_str() {
        Some("integer") => value.is_number(),
        None if is_amount(schema) => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    };
    let (mut all, mut more) = (Attributes::new(), Map::new());
    for (field, value) in fields(kubelet) {
        let schema = &schema["properties"][field];
        match value {
            value if !fits(schema, value) => {
                more.insert(field.clone(), value.clone());
            }
            number @ Json::Number(_) => all.push((spelled(field), Value::Bare(number.to_string()))),
            value => all.extend(attribute(field, schema, value)),
        }
    }
    let mut all = ordered(all);
    if !more.is_empty() {
        all.push(("more_json".to_owned(), Value::Call("jsonencode", Box::new(Value::of_json(&Json::Object(more))))));
    }
    Value::Object(all)
}

/// Gives Terraform's spelling of a field: `kmsKeyID` is `kms_key_id`.
fn spelled(field: &str) -> String {
    // the one word of which a small letter follows capitals without beginning the next
    let field = field.replace("IPv6", "Ipv6");
    let letters: Vec<char> = field.chars().collect();
    let mut out = String::with_capacity(field.len() + 4);
    for (at, letter) in letters.iter().enumerate() {
        let after_small = at > 0 && !letters[at - 1].is_ascii_uppercase();
        let before_small = letters.get(at + 1).is_some_and(char::is_ascii_lowercase);
        if letter.is_ascii_uppercase() && at > 0 && (after_small || before_small) {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Makes a value in which every field of a schema is set.
    fn sample(schema: &Json) -> Json {
        if schema["additionalProperties"].is_object() {
            return json!({ "key": "1" });
        }
        match schema["type"].as_str() {
            Some("object") => {
                let fields = schema["properties"].as_object().into_iter().flatten();
                Json::Object(fields.map(|(name, schema)| (name.clone(), sample(schema))).collect())
            }
            Some("array") => json!([sample(&schema["items"])]),
            Some("boolean") => json!(true),
            Some("string") => json!("one"),
            _ => json!(7),
        }
    }

    fn paths(at: &str, value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::List(items) => items.iter().for_each(|item| paths(at, item, found)),
            Value::Object(entries) => {
                for (name, value) in entries {
                    let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                    paths(&path, value, found);
                    found.insert(path);
                }
            }
            _ => {}
        }
    }

    /// Reads the paths of attributes in a page that the provider writes from its schema.
    fn documented(kind: Kind) -> BTreeSet<String> {
        let page = kind.resource().trim_start_matches("karp_");
        let page = format!("{}/../docs/resources/{page}.md", env!("CARGO_MANIFEST_DIR"));
        let mut at = String::new();
        let mut found = BTreeSet::new();
        let page = std::fs::read_to_string(page).expect("a page");
        for line in page.lines().take_while(|line| *line != "## Import") {
            if let Some(nested) = line.strip_prefix("### Nested Schema for `") {
                at = nested.trim_end_matches('`').to_owned() + ".";
            } else if let Some((name, rest)) = line.strip_prefix("- `").and_then(|line| line.split_once("` (")) {
                found.insert(format!("{at}{name}"));
                if rest.starts_with("Map") {
                    found.insert(format!("{at}{name}.key"));
                }
            }
        }
        found
    }

    #[test]
    fn every_field_of_the_api_becomes_a_documented_attribute_and_every_attribute_is_reached() {
        // the resource's own
        let own = [
            "adopt",
            "annotations",
            "annotations.key",
            "drain_on_destroy",
            "force_conflicts",
            "hash",
            "id",
            "labels",
            "labels.key",
            "node_count",
            "resources_in_use",
            "resources_in_use.key",
            "teardown",
            "wait_for_ready",
        ];
        // and what the controller has found
        let told = |path: &str| path.split('.').next() == Some("status") || path.starts_with("timeouts");
        for kind in [Kind::Class, Kind::Pool, Kind::Overlay] {
            let mut full = sample(kind.schema());
            if kind == Kind::Class {
                full["kubelet"]["registryBurst"] = json!(20);
            }
            let mut found = BTreeSet::new();
            paths("", &Value::Object(kind.attributes("full", &full, |_| None)), &mut found);
            found.retain(|path| !path.starts_with("kubelet.more_json."));
            let mut documented = documented(kind);
            documented.retain(|path| !own.contains(&path.as_str()) && !told(path));
            assert_eq!(found, documented, "{kind:?}");
        }
    }

    #[test]
    fn what_the_api_says_anyway_is_left_out() {
        let spec = json!({
            "template": { "spec": {
                "expireAfter": "720h", "requirements": [],
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            } },
            "disruption": { "consolidateAfter": "1m", "budgets": [{ "reasons": ["Drifted"] }] },
            "weight": null,
        });
        let spec = Kind::Pool.filled(&spec);
        let written = Kind::Pool.attributes("a", &spec, |class| Some(format!("karp_node_class.{class}.name")));
        let bare = |text: &str| Value::Bare(text.to_owned());
        let object = |entries: Vec<(&str, Value)>| {
            Value::Object(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
        };
        let budget =
            object(vec![("nodes", Value::text("10%")), ("reasons", Value::List(vec![Value::text("Drifted")]))]);
        let expected = object(vec![
            ("name", Value::text("a")),
            (
                "template",
                object(vec![
                    ("node_class_ref", object(vec![("name", bare("karp_node_class.default.name"))])),
                    ("requirements", Value::List(vec![])),
                ]),
            ),
            (
                "disruption",
                object(vec![("budgets", Value::List(vec![budget])), ("consolidate_after", Value::text("1m"))]),
            ),
        ]);
        assert_eq!(Value::Object(written), expected);
        let class =
            json!({ "metadataOptions": { "httpPutResponseHopLimit": 2 }, "kubelet": { "maxPods": "self.enis * 10" } });
        let class = Kind::Class.attributes("a", &Kind::Class.filled(&class), |_| None);
        let more = Value::Call("jsonencode", Box::new(object(vec![("maxPods", Value::text("self.enis * 10"))])));
        let expected = object(vec![
            ("name", Value::text("a")),
            ("kubelet", object(vec![("more_json", more)])),
            ("metadata_options", object(vec![("http_put_response_hop_limit", bare("2"))])),
        ]);
        assert_eq!(Value::Object(class), expected);
    }

    #[test]
    fn what_is_empty_and_says_nothing_is_left_out() {
        let spec = json!({ "tags": {}, "subnetSelectorTerms": [] });
        assert_eq!(Kind::Class.attributes("a", &spec, |_| None).len(), 1, "the name alone");
        let pool = Kind::Pool.attributes("a", &json!({ "disruption": { "budgets": [] } }), |_| None);
        let none = Value::Object(vec![("budgets".to_owned(), Value::List(vec![]))]);
        assert!(pool.contains(&("disruption".to_owned(), none)), "{pool:?}");
    }
}

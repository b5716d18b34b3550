//! The kubelet's settings: an open map in the API. Settings that have rules are attributes; all others come as one JSON object.

use std::sync::OnceLock;

use serde_json::{Map, Value as Json};
use tfplugin::schema::{Kind, validate};
use tfplugin::{Attribute, Diagnostics, Type, Value};

use super::node_pool_schema::same_amounts;
use crate::manifests::spec::{Attributes, attribute_of};

/// The attribute of all settings that have none of their own, and its spelling among the fields.
const MORE: &str = "more_json";
const MORE_FIELD: &str = "moreJson";

fn flag(description: &str) -> Attribute {
    Attribute::bool().optional().describe(description)
}

fn number(description: &str) -> Attribute {
    Attribute::number().optional().describe(description)
}

fn map(description: &str) -> Attribute {
    Attribute::map(Type::String).optional().describe(description)
}

/// Declares the settings of the kubelet.
pub fn attribute() -> Attribute {
    Attribute::nested_single([
        ("cluster_dns", Attribute::list(Type::String).optional().describe("Addresses of cluster DNS.")),
        ("max_pods", number("The most pods of a node.")),
        ("pods_per_core", number("The most pods for each vCPU.")),
        ("system_reserved", map("What is kept for the operating system.").semantic_eq(same_amounts)),
        ("kube_reserved", map("What is kept for Kubernetes' own processes.").semantic_eq(same_amounts)),
        ("eviction_hard", map("Signals that evict pods at once.")),
        ("eviction_soft", map("Signals that evict pods after a while.")),
        ("eviction_soft_grace_period", map("How long a soft signal may stand.")),
        ("eviction_max_pod_grace_period", number("The longest grace, in seconds, of pods evicted by a soft signal.")),
        ("image_gc_high_threshold_percent", number("Disk use in percent at which images are collected.")),
        ("image_gc_low_threshold_percent", number("Disk use in percent at which collection ends.")),
        ("cpu_cfs_quota", flag("Whether CPU limits are enforced by quota.")),
        (
            MORE,
            Attribute::string().optional().validate(json_object()).semantic_eq(same_json).describe(
                "All other settings, with the kubelet's own names, as JSON: `jsonencode({ topologyManagerPolicy = \"restricted\" })`. A CEL \
                 expression, which Karpenter's main branch can read behind a gate, is refused by the controller.",
            ),
        ),
    ])
    .optional()
    .describe("Settings of the kubelet.")
}

/// Puts the settings that came as JSON beside the others.
pub fn fold(mut fields: Json) -> Json {
    let Some(kubelet) = fields.get_mut("kubelet").and_then(Json::as_object_mut) else { return fields };
    let more = kubelet.remove(MORE_FIELD);
    for (name, value) in more.as_ref().and_then(Json::as_str).and_then(parse).unwrap_or_default() {
        kubelet.entry(name).or_insert(value);
    }
    fields
}

/// Takes the settings apart again. To the JSON go those that state has there, or all that fit no attribute where it has none.
pub fn unfold(spec: &Json, prior: &Value) -> Json {
    let mut spec = spec.clone();
    let Some(kubelet) = spec.get_mut("kubelet").and_then(Json::as_object_mut) else { return spec };
    let known = prior.get("kubelet").get(MORE).as_str().and_then(parse);
    let goes = |name: &str, value: &Json| match &known {
        Some(known) => known.contains_key(name),
        None => !fits(name, value),
    };
    let (more, rest): (Map<_, _>, Map<_, _>) = std::mem::take(kubelet).into_iter().partition(|(n, v)| goes(n, v));
    // A number's attribute cannot hold an expression.
    *kubelet = rest.into_iter().filter(|(name, value)| fits(name, value)).collect();
    if !more.is_empty() {
        kubelet.insert(MORE_FIELD.to_owned(), Json::Object(more).to_string().into());
    }
    spec
}

/// Refuses a setting that is given twice.
pub fn check(config: &Value) -> Diagnostics {
    let kubelet = config.get("kubelet");
    let mut found = Diagnostics::new();
    for name in kubelet.get(MORE).as_str().and_then(parse).unwrap_or_default().keys() {
        let attribute = attribute_of(name);
        if !kubelet.get(&attribute).is_null() {
            let detail = format!("`{attribute}` sets it already: take {name:?} out of the JSON.");
            found.error("kubelet.more_json", format!("The kubelet's {name} is given twice"), detail);
        }
    }
    found
}

fn parse(text: &str) -> Option<Map<String, Json>> {
    serde_json::from_str(text).ok()
}

fn json_object() -> validate::Validator {
    validate::document("must be a JSON object, as `jsonencode` gives it", |text| parse(text).is_some())
}

fn same_json(prior: &Value, planned: &Value) -> bool {
    let object = |value: &Value| value.as_str().and_then(parse);
    object(prior).is_some() && object(prior) == object(planned)
}

/// Says whether a setting has an attribute that can hold its value.
fn fits(name: &str, value: &Json) -> bool {
    static SETTINGS: OnceLock<Attributes> = OnceLock::new();
    let settings = SETTINGS.get_or_init(|| match attribute().kind {
        Kind::Nested(_, settings) => settings,
        Kind::Value(_) => Attributes::new(),
    });
    match settings.get(&attribute_of(name)).map(Attribute::value_type) {
        Some(Type::Number) => value.is_number(),
        Some(Type::Bool) => value.is_boolean(),
        Some(Type::List(_)) => value.is_array(),
        Some(Type::Map(_)) => value.is_object(),
        Some(Type::String) => value.is_string() && name != MORE_FIELD,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn prior(more: &str) -> Value {
        Value::object([("kubelet", Value::object([(MORE, more)]))])
    }

    #[test]
    fn other_settings_keep_their_types_on_the_way_to_the_api_and_back() {
        let more = r#"{"maxPods":"self.enis * 10","registryBurst":20,"reservedSystemCPUs":"0","tracing":{"samplingRatePerMillion":1}}"#;
        let spec = fold(json!({ "kubelet": { "podsPerCore": 4, MORE_FIELD: more } }));
        assert_eq!(spec["kubelet"]["registryBurst"], 20);
        assert_eq!(spec["kubelet"]["reservedSystemCPUs"], "0");
        assert_eq!(spec["kubelet"]["tracing"]["samplingRatePerMillion"], 1);
        let back = unfold(&spec, &Value::Null);
        assert_eq!(back, json!({ "kubelet": { "podsPerCore": 4, MORE_FIELD: more } }));
        assert_eq!(unfold(&spec, &prior(more)), back);
    }

    #[test]
    fn a_setting_that_others_added_stays_theirs() {
        let spec = json!({ "kubelet": { "registryBurst": 20, "seccompDefault": true } });
        let back = unfold(&spec, &prior(r#"{"registryBurst":10}"#));
        assert_eq!(back["kubelet"][MORE_FIELD], r#"{"registryBurst":20}"#);
    }

    #[test]
    fn the_same_json_in_another_spelling_is_no_change() {
        assert!(same_json(&r#"{"a":1,"b":2}"#.into(), &r#"{ "b": 2, "a": 1 }"#.into()));
        assert!(!same_json(&r#"{"a":1}"#.into(), &r#"{"a":2}"#.into()));
    }
}

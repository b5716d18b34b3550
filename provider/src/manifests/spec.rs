//! Attributes in Terraform's spelling to fields in Kubernetes' spelling, and back.
//!
//! The schema drives it: names of nested attributes are respelled, keys of maps are not.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};
use tfplugin::schema::{Kind, Nesting};
use tfplugin::{Attribute, AttributePath, Number, Step, Value};

/// Attributes by name.
pub type Attributes = BTreeMap<String, Attribute>;

/// Fields whose acronyms are written in capitals.
const ACRONYMS: &[(&str, &str)] = &[
    ("associate_public_ip_address", "associatePublicIPAddress"),
    ("kms_key_id", "kmsKeyID"),
    ("snapshot_id", "snapshotID"),
    ("owner_id", "ownerID"),
    ("http_protocol_ipv6", "httpProtocolIPv6"),
    ("cluster_dns", "clusterDNS"),
    ("cpu_cfs_quota", "cpuCFSQuota"),
    ("image_gc_high_threshold_percent", "imageGCHighThresholdPercent"),
    ("image_gc_low_threshold_percent", "imageGCLowThresholdPercent"),
];

/// Gives the API's spelling of an attribute.
pub fn field_of(attribute: &str) -> String {
    if let Some((_, field)) = ACRONYMS.iter().find(|(name, _)| *name == attribute) {
        return (*field).to_owned();
    }
    let mut field = String::with_capacity(attribute.len());
    let mut upper = false;
    for letter in attribute.chars() {
        if letter == '_' {
            upper = true;
        } else {
            field.push(if upper { letter.to_ascii_uppercase() } else { letter });
            upper = false;
        }
    }
    field
}

/// Gives Terraform's spelling of a field.
pub fn attribute_of(field: &str) -> String {
    if let Some((name, _)) = ACRONYMS.iter().find(|(_, spelled)| *spelled == field) {
        return (*name).to_owned();
    }
    let mut attribute = String::with_capacity(field.len() + 4);
    for letter in field.chars() {
        if letter.is_ascii_uppercase() {
            attribute.push('_');
        }
        attribute.push(letter.to_ascii_lowercase());
    }
    attribute
}

/// Writes attributes as an object of fields. What is null is left out; what is unknown is left out and its path noted.
pub fn fields(attributes: &Attributes, value: &Value, at: &AttributePath, unknown: &mut Vec<AttributePath>) -> Json {
    let mut fields = Map::new();
    for (name, attribute) in attributes {
        let path = at.clone().attribute(name);
        if let Some(field) = field(attribute, value.get(name), &path, unknown) {
            fields.insert(field_of(name), field);
        }
    }
    Json::Object(fields)
}

fn field(attribute: &Attribute, value: &Value, path: &AttributePath, unknown: &mut Vec<AttributePath>) -> Option<Json> {
    match (&attribute.kind, value) {
        (_, Value::Null) => None,
        (_, Value::Unknown) => {
            unknown.push(path.clone());
            None
        }
        (Kind::Nested(Nesting::Single, inner), value) => Some(fields(inner, value, path, unknown)),
        (Kind::Nested(_, inner), Value::List(list)) => {
            let each = |(index, item): (usize, &Value)| fields(inner, item, &path.clone().index(index), unknown);
            Some(Json::Array(list.iter().enumerate().map(each).collect()))
        }
        (_, value) => plain(value, path, unknown),
    }
}

fn plain(value: &Value, path: &AttributePath, unknown: &mut Vec<AttributePath>) -> Option<Json> {
    Some(match value {
        Value::Null => return None,
        Value::Unknown => {
            unknown.push(path.clone());
            return None;
        }
        Value::Bool(yes) => Json::Bool(*yes),
        Value::Number(Number::Int(int)) => Json::from(*int),
        Value::Number(number) => Json::from(number.as_f64()),
        Value::String(text) => Json::from(text.as_str()),
        Value::List(list) => {
            let each = |(index, item): (usize, &Value)| plain(item, &path.clone().index(index), unknown);
            Json::Array(list.iter().enumerate().filter_map(each).collect())
        }
        Value::Map(map) => {
            let each = |(key, item): (&String, &Value)| {
                plain(item, &path.clone().key(key), unknown).map(|item| (key.clone(), item))
            };
            Json::Object(map.iter().filter_map(each).collect())
        }
    })
}

/// Which fields of a live object go into state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those that state has: others may belong to other managers.
    Known,
    /// All, for an import.
    All,
}

/// Reads fields back as attributes.
pub fn attributes(schema: &Attributes, prior: &Value, live: &Json, scope: Scope) -> Value {
    let read = |(name, attribute): (&String, &Attribute)| {
        let before = prior.get(name);
        let value = match live.get(field_of(name)) {
            Some(live) if scope == Scope::All || !before.is_null() => read_back(attribute, before, live, scope),
            _ => Value::Null,
        };
        (name.clone(), value)
    };
    Value::Map(schema.iter().map(read).collect())
}

fn read_back(attribute: &Attribute, prior: &Value, live: &Json, scope: Scope) -> Value {
    match (&attribute.kind, live) {
        (_, Json::Null) => Value::Null,
        (Kind::Nested(Nesting::Single, inner), live) => attributes(inner, prior, live, scope),
        (Kind::Nested(_, inner), Json::Array(list)) => {
            // An item that state has not is another's: it is shown whole.
            let each = |(index, live): (usize, &Json)| match prior.as_list().get(index) {
                Some(prior) => attributes(inner, prior, live, scope),
                None => attributes(inner, &Value::Null, live, Scope::All),
            };
            Value::List(list.iter().enumerate().map(each).collect())
        }
        // A map is the configuration's as a whole: keys of others are a difference, which the apply takes away (decision 0020). Amounts may
        // be stored as numbers where the attribute is text.
        (Kind::Value(tfplugin::Type::Map(element)), Json::Object(map)) if **element == tfplugin::Type::String => {
            let text = |item: &Json| item.as_str().map_or_else(|| item.to_string(), str::to_owned);
            Value::object(map.iter().map(|(key, item)| (key.clone(), text(item))))
        }
        (_, live) => Value::from(live.clone()),
    }
}

/// Takes out of a live object what is the API's default anyway, so that an import plans no difference.
pub fn without_defaults(live: &Json, defaults: &Json) -> Json {
    match (live, defaults) {
        (Json::Object(live), Json::Object(defaults)) => {
            let kept = live.iter().filter_map(|(name, live)| match defaults.get(name) {
                Some(default) if default == live => None,
                Some(default) => Some((name.clone(), without_defaults(live, default))),
                None => Some((name.clone(), live.clone())),
            });
            Json::Object(kept.collect())
        }
        (live, _) => live.clone(),
    }
}

/// Gives the attribute path of a field path such as `requirements[0].key` or `limits[cpu]`.
pub fn path_of(field: &str) -> AttributePath {
    let mut path = AttributePath::root();
    let mut rest = field;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (key, after) = inner.split_once(']').unwrap_or((inner, ""));
            path = match key.parse::<usize>() {
                Ok(index) => path.index(index),
                Err(_) => path.key(key),
            };
            rest = after;
        } else {
            let name = rest.trim_start_matches('.');
            let end = name.find(['.', '[']).unwrap_or(name.len());
            path = path.attribute(attribute_of(&name[..end]));
            rest = &name[end..];
        }
    }
    path
}

/// Tells whether one path leads to a place within the other.
pub fn within(inner: &AttributePath, outer: &AttributePath) -> bool {
    let same = |(a, b): (&Step, &Step)| a == b;
    inner.steps().len() >= outer.steps().len() && inner.steps().iter().zip(outer.steps()).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_return() {
        for field in ["amiSelectorTerms", "kmsKeyID", "httpProtocolIPv6", "expireAfter", "role", "clusterDNS"] {
            assert_eq!(field_of(&attribute_of(field)), field);
        }
        assert_eq!(attribute_of("imageGCHighThresholdPercent"), "image_gc_high_threshold_percent");
    }

    #[test]
    fn paths_point_at_attributes() {
        assert_eq!(path_of("disruption.budgets[1].nodes").to_string(), "disruption.budgets[1].nodes");
        assert_eq!(path_of("limits[cpu]").to_string(), "limits[\"cpu\"]");
        assert_eq!(path_of("amiSelectorTerms[0].alias"), AttributePath::parse("ami_selector_terms.0.alias"));
    }

    #[test]
    fn only_known_fields_come_back_unless_all_are_wanted() {
        let schema: Attributes =
            [("expire_after".to_owned(), Attribute::string()), ("node_class".to_owned(), Attribute::string())].into();
        let live = serde_json::json!({ "expireAfter": "720h", "nodeClass": "a" });
        let prior = Value::object([("node_class", "b")]);
        let read = attributes(&schema, &prior, &live, Scope::Known);
        assert_eq!((read.get("expire_after"), read.get("node_class")), (&Value::Null, &Value::from("a")));
        let all = attributes(&schema, &Value::Null, &live, Scope::All);
        assert_eq!(all.get("expire_after"), &Value::from("720h"));
    }

    #[test]
    fn a_key_that_others_add_to_a_known_map_is_shown() {
        let map = Attribute::map(tfplugin::Type::String);
        let schema: Attributes = [("limits".to_owned(), map.clone()), ("labels".to_owned(), map)].into();
        let live = serde_json::json!({ "limits": { "cpu": "1", "memory": 2 }, "labels": { "theirs": "a" } });
        let prior = Value::object([("limits", Value::object([("cpu", "1")]))]);
        let read = attributes(&schema, &prior, &live, Scope::Known);
        assert_eq!(read.get("limits"), &Value::object([("cpu", "1"), ("memory", "2")]));
        assert_eq!(read.get("labels"), &Value::Null, "a map that is not set is another's business");
    }

    #[test]
    fn defaults_are_left_out_of_an_import() {
        let live = serde_json::json!({ "a": 1, "b": { "c": 2, "d": 3 } });
        let defaults = serde_json::json!({ "a": 1, "b": { "c": 2 } });
        assert_eq!(without_defaults(&live, &defaults), serde_json::json!({ "b": { "d": 3 } }));
    }
}

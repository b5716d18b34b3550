//! Offline validation: what the API server would refuse, found without one.
//!
//! Two passes over the definitions of `crds`: the structural schema (types, enums, patterns, bounds, required and unknown fields) and, where
//! the structure is sound, the CEL rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::LazyLock;

use kube_cel::apply_defaults;
use regex::Regex;
use serde::Serialize;
use serde_json::{Map, Value};

use super::cel::Rules;
use super::{crds, fields, words};

/// One thing that the API server would refuse.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Where, as `spec.template.spec.requirements[0].key`; keys of maps are in brackets, as `spec.limits[cpu]`.
    pub path: String,
    pub kind: ViolationKind,
    pub message: String,
}

/// What is wrong, so that a caller with values not known yet can tell what may still become right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ViolationKind {
    /// A field is missing.
    Missing,
    /// The API does not have the field.
    Unknown,
    /// A value has the wrong type, form or size.
    Invalid,
    /// A rule over several values does not hold.
    Rule,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.path, self.message)
    }
}

/// Returns what the API server would refuse of a NodePool, given whole or as JSON with `spec`.
#[must_use]
pub fn node_pool(pool: &impl Serialize) -> Vec<Violation> {
    check("nodepools.karpenter.sh", pool, None::<&Value>)
}

/// Returns what the API server would refuse of a change to a NodePool.
#[must_use]
pub fn node_pool_change(old: &impl Serialize, new: &impl Serialize) -> Vec<Violation> {
    check("nodepools.karpenter.sh", new, Some(old))
}

/// Returns what the API server would refuse of an EC2NodeClass, given whole or as JSON with `spec`.
#[must_use]
pub fn node_class(class: &impl Serialize) -> Vec<Violation> {
    check("ec2nodeclasses.karpenter.k8s.aws", class, None::<&Value>)
}

/// Returns what the API server would refuse of a NodeClaim, given whole or as JSON with `spec`.
#[must_use]
pub fn node_claim(claim: &impl Serialize) -> Vec<Violation> {
    check("nodeclaims.karpenter.sh", claim, None::<&Value>)
}

/// Returns what the API server would refuse of a NodeOverlay, given whole or as JSON with `spec`.
#[must_use]
pub fn node_overlay(overlay: &impl Serialize) -> Vec<Violation> {
    check("nodeoverlays.karpenter.sh", overlay, None::<&Value>)
}

/// Returns what the API server would refuse of a CapacityBuffer, given whole or as JSON with `spec`.
#[must_use]
pub fn capacity_buffer(buffer: &impl Serialize) -> Vec<Violation> {
    check("capacitybuffers.autoscaling.x-k8s.io", buffer, None::<&Value>)
}

/// Returns what the API server would refuse of an object of any kind that karp defines, by the name of its definition such as
/// `nodepools.karpenter.sh`; nothing for another definition.
#[must_use]
pub fn object(definition: &str, object: &impl Serialize, old: Option<&Value>) -> Option<Vec<Violation>> {
    DEFINITIONS.contains_key(definition).then(|| check(definition, object, old))
}

/// A definition's schema, compiled once.
struct Definition {
    schema: Value,
    rules: Rules,
}

static DEFINITIONS: LazyLock<BTreeMap<String, Definition>> = LazyLock::new(|| {
    crds()
        .into_iter()
        .filter_map(|crd| {
            let schema = crd.spec.versions.first()?.schema.as_ref()?.open_api_v3_schema.as_ref()?;
            let schema = serde_json::to_value(schema).ok()?;
            let rules = Rules::of(&schema);
            Some((crd.metadata.name?, Definition { schema, rules }))
        })
        .collect()
});

fn check(definition: &str, object: &impl Serialize, old: Option<&impl Serialize>) -> Vec<Violation> {
    let definition = DEFINITIONS.get(definition).expect("the definition is one of our own");
    let (object, old) = match (serde_json::to_value(object), old.map(serde_json::to_value).transpose()) {
        (Ok(object), Ok(old)) => (without_nulls(object), old.map(without_nulls)),
        (Err(error), _) | (_, Err(error)) => {
            return vec![Violation {
                path: String::new(),
                kind: ViolationKind::Invalid,
                message: format!("cannot be written as JSON: {error}"),
            }];
        }
    };
    let mut found = Vec::new();
    structure(&definition.schema, &object, &mut Path::root(), &mut found);
    // the API server prunes what it does not know, and asks the rules of the rest
    if found.iter().all(|violation| violation.kind == ViolationKind::Unknown) {
        let defaulted = |object: &Value| apply_defaults(&definition.schema, object);
        found.extend(definition.rules.ask(&defaulted(&object), old.as_ref().map(defaulted).as_ref()));
    }
    for unknown in found.iter_mut().filter(|violation| violation.kind == ViolationKind::Unknown) {
        let meant = fields::meant(&definition.schema, &unknown.path).map(|known| format!("; did you mean {known}?"));
        unknown.message.push_str(&meant.unwrap_or_default());
    }
    found.sort();
    found.dedup();
    found
}

/// An absent optional field and a null one are the same to the API server.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            Value::Object(map.into_iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k, without_nulls(v))).collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

/// The place of a value, extended and cut while walking.
pub(super) struct Path(String);

impl Path {
    pub(super) const fn root() -> Self {
        Self(String::new())
    }

    pub(super) fn within<R>(&mut self, step: &str, walk: impl FnOnce(&mut Self) -> R) -> R {
        let before = self.0.len();
        if !self.0.is_empty() && !step.starts_with('[') {
            self.0.push('.');
        }
        self.0.push_str(step);
        let result = walk(self);
        self.0.truncate(before);
        result
    }

    pub(super) fn report(&self, found: &mut Vec<Violation>, kind: ViolationKind, message: String) {
        found.push(Violation { path: self.0.clone(), kind, message });
    }
}

fn structure(schema: &Value, value: &Value, path: &mut Path, found: &mut Vec<Violation>) {
    if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        match value {
            Value::String(text) => pattern(schema, text, path, found),
            Value::Number(number) if number.is_i64() => {
                bounds(schema, number.as_f64().unwrap_or_default(), path, found);
            }
            _ => path.report(found, ViolationKind::Invalid, "must be a whole number or a string".to_owned()),
        }
        return;
    }
    match (schema.get("type").and_then(Value::as_str), value) {
        (Some("object"), Value::Object(map)) => members(schema, map, path, found),
        (Some("array"), Value::Array(list)) => array(schema, list, path, found),
        (Some("string"), Value::String(text)) => string(schema, text, path, found),
        (Some("integer"), Value::Number(number)) if number.is_i64() || number.is_u64() => {
            bounds(schema, number.as_f64().unwrap_or_default(), path, found);
        }
        (Some("number"), Value::Number(number)) => bounds(schema, number.as_f64().unwrap_or_default(), path, found),
        (Some("boolean"), Value::Bool(_)) | (None, _) => {}
        (Some(wanted), _) => path.report(found, ViolationKind::Invalid, format!("must be of type {wanted}")),
    }
}

fn members(schema: &Value, map: &Map<String, Value>, path: &mut Path, found: &mut Vec<Violation>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    let additional = schema.get("additionalProperties");
    let open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) || properties.is_none();
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if !map.contains_key(name) {
            path.within(name, |path| path.report(found, ViolationKind::Missing, "must be set".to_owned()));
        }
    }
    size(schema, "maxProperties", map.len(), "entries", path, found);
    let at_root = path.0.is_empty();
    for (name, value) in map {
        match (properties.and_then(|properties| properties.get(name)), additional) {
            (Some(property), _) => path.within(name, |path| structure(property, value, path, found)),
            (None, Some(entry)) => path.within(&format!("[{name}]"), |path| structure(entry, value, path, found)),
            // The root's type and metadata are the API server's own.
            (None, None) if open || at_root && ["apiVersion", "kind", "metadata"].contains(&name.as_str()) => {}
            (None, None) => path.within(name, |path| {
                path.report(found, ViolationKind::Unknown, "is not a field of this API".to_owned());
            }),
        }
    }
}

fn array(schema: &Value, list: &[Value], path: &mut Path, found: &mut Vec<Violation>) {
    size(schema, "maxItems", list.len(), "items", path, found);
    size(schema, "minItems", list.len(), "items", path, found);
    if schema.get("x-kubernetes-list-type").and_then(Value::as_str) == Some("set") {
        let distinct: BTreeSet<String> = list.iter().map(ToString::to_string).collect();
        if distinct.len() < list.len() {
            path.report(found, ViolationKind::Invalid, "must not repeat an item".to_owned());
        }
    }
    let Some(items) = schema.get("items") else { return };
    for (index, value) in list.iter().enumerate() {
        path.within(&format!("[{index}]"), |path| structure(items, value, path, found));
    }
}

fn string(schema: &Value, text: &str, path: &Path, found: &mut Vec<Violation>) {
    size(schema, "maxLength", text.chars().count(), "characters", path, found);
    size(schema, "minLength", text.chars().count(), "characters", path, found);
    if let Some(choices) = schema.get("enum").and_then(Value::as_array)
        && !choices.iter().any(|choice| choice == text)
    {
        let choices = choices.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
        path.report(found, ViolationKind::Invalid, format!("{text:?} is not one of {choices}{}", alternatives(text)));
    }
    if schema.get("format").and_then(Value::as_str) == Some("date-time") && !is_date_time(text) {
        path.report(found, ViolationKind::Invalid, format!("{text:?} is no time such as 2026-01-31T12:00:00Z"));
    }
    pattern(schema, text, path, found);
}

/// As the API server has it: seconds and an offset must be there.
fn is_date_time(text: &str) -> bool {
    static FORM: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^\d{4}-\d{2}-\d{2}[tT]\d{2}:\d{2}:\d{2}(\.\d+)?([zZ]|[+-]\d{2}:\d{2})$").expect("our own pattern")
    });
    FORM.is_match(text) && text.parse::<jiff::Timestamp>().is_ok()
}

fn pattern(schema: &Value, text: &str, path: &Path, found: &mut Vec<Violation>) {
    let Some(pattern) = schema.get("pattern").and_then(Value::as_str) else { return };
    if let Err(refusal) = words::check(pattern, text) {
        path.report(found, ViolationKind::Invalid, format!("{refusal}{}", alternatives(text)));
    }
}

/// Adds what helps where a manifest was copied out of documentation.
fn alternatives(text: &str) -> &'static str {
    if text.contains(" | ") { " (` | ` stands between alternatives: write one of them)" } else { "" }
}

fn bounds(schema: &Value, number: f64, path: &Path, found: &mut Vec<Violation>) {
    if let Some(least) = schema.get("minimum").and_then(Value::as_f64).filter(|least| number < *least) {
        path.report(found, ViolationKind::Invalid, format!("must be at least {least}, is {number}"));
    }
    if let Some(most) = schema.get("maximum").and_then(Value::as_f64).filter(|most| number > *most) {
        path.report(found, ViolationKind::Invalid, format!("must be at most {most}, is {number}"));
    }
}

fn size(schema: &Value, keyword: &str, size: usize, of: &str, path: &Path, found: &mut Vec<Violation>) {
    let Some(limit) = schema.get(keyword).and_then(Value::as_u64).and_then(|limit| usize::try_from(limit).ok()) else {
        return;
    };
    if keyword.starts_with("max") && size > limit {
        path.report(found, ViolationKind::Invalid, format!("must have at most {limit} {of}, has {size}"));
    }
    if keyword.starts_with("min") && size < limit {
        path.report(found, ViolationKind::Invalid, format!("must have at least {limit} {of}, has {size}"));
    }
}

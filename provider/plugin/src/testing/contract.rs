//! Core's rules for plans and results, as sentences about what breaks them.

use std::collections::{BTreeMap, BTreeSet};

use crate::schema::{Attribute, Kind, Mode, Nesting, Schema};
use crate::{AttributePath, Value};

/// What core would refuse in a plan: planned values equal the configuration, or the prior value where both mean the same; only
/// computed attributes may be filled in.
pub(super) fn plan_violations(schema: &Schema, prior: &Value, config: &Value, planned: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    match (config.is_null(), planned.is_null()) {
        (true, true) => {}
        (false, false) => {
            let root = AttributePath::root();
            planned_object(&schema.attributes, [prior, config, planned], &root, &mut wrong);
        }
        (true, false) => wrong.push("planned for existence but the configuration wants absence".into()),
        (false, true) => wrong.push("planned for absence but the configuration wants existence".into()),
    }
    wrong
}

fn planned_object(
    attributes: &BTreeMap<String, Attribute>,
    [prior, config, planned]: [&Value; 3],
    path: &AttributePath,
    wrong: &mut Vec<String>,
) {
    for (name, attribute) in attributes {
        let values = [prior, config, planned].map(|object| object.get(name));
        planned_value(attribute, values, &path.clone().attribute(name), wrong);
    }
}

fn planned_value(
    attribute: &Attribute,
    [prior, config, planned]: [&Value; 3],
    path: &AttributePath,
    wrong: &mut Vec<String>,
) {
    if attribute.write_only {
        if !planned.is_null() {
            wrong.push(format!("{path}: a write-only value is planned"));
        }
        return;
    }
    let kept = planned == prior && !prior.is_null() && !config.is_null();
    let filled = attribute.mode == Mode::Computed || (config.is_null() && attribute.is_computed());
    if planned == config || kept || filled {
        return;
    }
    if config.is_null() {
        return wrong.push(format!("{path}: {planned:?} is planned for an attribute that is not computed"));
    }
    let Kind::Nested(nesting, inner) = &attribute.kind else {
        return wrong.push(format!("{path}: planned {planned:?} is neither config {config:?} nor prior {prior:?}"));
    };
    if planned.is_null() || !planned.is_known() {
        return wrong.push(format!("{path}: planned {planned:?} for a configured value"));
    }
    let pairs: Vec<([&Value; 3], AttributePath)> = match nesting {
        Nesting::Single => vec![([prior, config, planned], path.clone())],
        Nesting::List if planned.as_list().len() == config.as_list().len() => {
            let both = config.as_list().iter().zip(planned.as_list()).enumerate();
            let element = |at: usize| prior.as_list().get(at).unwrap_or(&Value::Null);
            both.map(|(at, (config, planned))| ([element(at), config, planned], path.clone().index(at))).collect()
        }
        Nesting::Map if keys(planned) == keys(config) => {
            let planned = planned.as_map().into_iter().flatten();
            planned.map(|(key, planned)| ([prior.get(key), config.get(key), planned], path.clone().key(key))).collect()
        }
        // elements of sets cannot be told apart, so core trusts the provider
        Nesting::Set => Vec::new(),
        Nesting::List | Nesting::Map => {
            return wrong.push(format!("{path}: planned and configured elements are not the same ones"));
        }
    };
    for (values, path) in pairs {
        planned_object(inner, values, &path, wrong);
    }
}

/// What core would call inconsistent after an apply: known planned values stay, nothing is unknown.
pub(super) fn apply_violations(schema: &Schema, planned: &Value, actual: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    match (planned.is_null(), actual.is_null()) {
        (true, true) => {}
        (false, false) => {
            for name in schema.attributes.keys() {
                let path = AttributePath::root().attribute(name);
                compatible(planned.get(name), actual.get(name), &path, &mut wrong);
            }
        }
        _ => wrong.push(format!("planned {planned:?}, came to {actual:?}")),
    }
    wrong
}

fn compatible(planned: &Value, actual: &Value, path: &AttributePath, wrong: &mut Vec<String>) {
    match (planned, actual) {
        (_, Value::Unknown) => wrong.push(format!("{path}: unknown after apply")),
        (Value::Unknown, _) => {}
        (Value::List(planned), Value::List(actual)) if planned.len() == actual.len() => {
            // a set with unknown elements may change its order
            let ordered = planned.iter().all(Value::whole_known);
            for (at, (planned, actual)) in planned.iter().zip(actual).enumerate().filter(|_| ordered) {
                compatible(planned, actual, &path.clone().index(at), wrong);
            }
        }
        (Value::Map(planned), Value::Map(actual)) if planned.keys().eq(actual.keys()) => {
            for ((name, planned), actual) in planned.iter().zip(actual.values()) {
                compatible(planned, actual, &path.clone().attribute(name), wrong);
            }
        }
        _ if planned == actual => {}
        _ => wrong.push(format!("{path}: was {planned:?}, but now {actual:?}")),
    }
}

/// Tells where two values differ.
pub(super) fn differences(before: &Value, after: &Value) -> Vec<String> {
    let names: BTreeSet<&String> = keys(before).into_iter().chain(keys(after)).collect();
    let differs = |name: &&&String| before.get(name) != after.get(name);
    let tell = |name: &String| format!("{name}: {:?} -> {:?}", before.get(name), after.get(name));
    match (before, after) {
        (Value::Map(_), Value::Map(_)) => names.iter().filter(differs).map(|name| tell(name)).collect(),
        _ if before == after => Vec::new(),
        _ => vec![format!("{before:?} -> {after:?}")],
    }
}

fn keys(value: &Value) -> BTreeSet<&String> {
    value.as_map().into_iter().flat_map(|map| map.keys()).collect()
}

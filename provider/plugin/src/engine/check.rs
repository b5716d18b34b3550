//! Runs the schema's validators and rules on a configuration. Unknown parts are skipped: Terraform asks again when they are known.

use std::collections::BTreeMap;

use crate::schema::{Attribute, Kind, Mode, Nesting, Rule, Schema};
use crate::{AttributePath, Diagnostic, Diagnostics, Type, Value};

/// Checks a configuration against the validators and rules of its schema.
pub(crate) fn check(schema: &Schema, config: &Value) -> Diagnostics {
    let mut found = Diagnostics::new();
    check_attributes(&schema.attributes, config, &AttributePath::root(), Telling::Values, &mut found);
    for rule in &schema.rules {
        found.extend(check_rule(rule, config));
    }
    found
}

/// What a diagnostic may tell of a value that is refused.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Telling {
    /// What it is, and what it must be.
    Values,
    /// What it must be: the attribute, or one around it, is sensitive.
    Forms,
}

fn check_attributes(
    attributes: &BTreeMap<String, Attribute>,
    object: &Value,
    path: &AttributePath,
    telling: Telling,
    found: &mut Diagnostics,
) {
    for (name, attribute) in attributes {
        let value = object.get(name);
        let path = path.clone().attribute(name);
        // no core refuses this, and one that is unknown is set, too
        if attribute.mode == Mode::Computed && !value.is_null() {
            found.error(
                path,
                "Attribute that cannot be set",
                format!("{name}: the provider decides it; leave it out."),
            );
            continue;
        }
        // cores see to it that it is written, and take a null that is
        if attribute.mode == Mode::Required && value.is_null() {
            found.error(path, "Required attribute", format!("{name}: it is required, and null here."));
            continue;
        }
        if value.is_null() || !value.is_known() {
            continue;
        }
        if let Some(at) = null_element(&attribute.kind, value) {
            found.error(path, "Null among elements", format!("{name}: {at} is null; leave it out."));
            continue;
        }
        let telling = if attribute.sensitive { Telling::Forms } else { telling };
        if let Some(instead) = &attribute.deprecated {
            found.warning(path.clone(), "Deprecated attribute", format!("{name}: {instead}"));
        }
        if value.whole_known() {
            for validator in &attribute.validators {
                if let Err(fault) = validator.check(value) {
                    let told = if telling == Telling::Forms { fault.must().to_owned() } else { fault.to_string() };
                    found.error(path.clone(), "Invalid value", format!("{name}: {told}."));
                }
            }
        }
        if let Kind::Nested(nesting, inner) = &attribute.kind {
            for (element, path) in objects(*nesting, value, &path) {
                check_attributes(inner, element, &path, telling, found);
            }
        }
    }
}

/// The write-only attributes that a configuration sets.
pub(crate) fn write_only_values(schema: &Schema, config: &Value) -> Vec<AttributePath> {
    fn collect(
        attributes: &BTreeMap<String, Attribute>,
        object: &Value,
        path: &AttributePath,
        set: &mut Vec<AttributePath>,
    ) {
        for (name, attribute) in attributes {
            let (value, path) = (object.get(name), path.clone().attribute(name));
            match &attribute.kind {
                _ if value.is_null() => {}
                _ if attribute.write_only => set.push(path),
                Kind::Nested(nesting, inner) if value.is_known() => {
                    for (element, path) in objects(*nesting, value, &path) {
                        collect(inner, element, &path, set);
                    }
                }
                Kind::Nested(..) | Kind::Value(_) => {}
            }
        }
    }
    let mut set = Vec::new();
    collect(&schema.attributes, config, &AttributePath::root(), &mut set);
    set
}

/// The objects inside a nested attribute's value that are there and known, each with its path.
fn objects<'a>(
    nesting: Nesting,
    value: &'a Value,
    path: &AttributePath,
) -> impl Iterator<Item = (&'a Value, AttributePath)> {
    elements(nesting, value, path).into_iter().filter(|(element, _)| element.as_map().is_some())
}

/// Where a value has a null that no resource could make anything of: in a list, a set, or among objects. A null in a map of plain values stands for
/// a key that is left out.
fn null_element(kind: &Kind, value: &Value) -> Option<String> {
    match (kind, value) {
        (Kind::Value(Type::Set(_)) | Kind::Nested(Nesting::Set, _), Value::List(set)) => {
            set.iter().any(Value::is_null).then(|| "an element".to_owned())
        }
        (Kind::Value(Type::List(_)) | Kind::Nested(Nesting::List, _), Value::List(list)) => {
            list.iter().position(Value::is_null).map(|at| format!("element {at}"))
        }
        (Kind::Nested(Nesting::Map, _), Value::Map(map)) => {
            map.iter().find(|(_, element)| element.is_null()).map(|(key, _)| format!("element {key:?}"))
        }
        _ => None,
    }
}

/// The objects inside a nested attribute's value, each with its path.
pub(super) fn elements<'a>(
    nesting: Nesting,
    value: &'a Value,
    path: &AttributePath,
) -> Vec<(&'a Value, AttributePath)> {
    match nesting {
        Nesting::Single => vec![(value, path.clone())],
        Nesting::List => {
            value.as_list().iter().enumerate().map(|(index, element)| (element, path.clone().index(index))).collect()
        }
        Nesting::Set => {
            value.as_list().iter().map(|element| (element, path.clone().element(element.clone()))).collect()
        }
        Nesting::Map => {
            value.as_map().into_iter().flatten().map(|(key, element)| (element, path.clone().key(key))).collect()
        }
    }
}

fn check_rule(rule: &Rule, config: &Value) -> Option<Diagnostic> {
    let (Rule::Conflicts(names) | Rule::ExactlyOne(names) | Rule::AtLeastOne(names) | Rule::Together(names)) = rule;
    let set: Vec<&String> = names.iter().filter(|name| !config.get(name).is_null()).collect();
    let unknown = names.iter().any(|name| !config.get(name).is_known());
    let all = names.join(", ");
    let (broken, detail) = match rule {
        Rule::Conflicts(_) => (set.len() > 1, format!("At most one of these may be set: {all}.")),
        Rule::ExactlyOne(_) => (set.len() != 1, format!("Exactly one of these must be set: {all}.")),
        Rule::AtLeastOne(_) => (set.is_empty(), format!("At least one of these must be set: {all}.")),
        Rule::Together(_) => {
            (!set.is_empty() && set.len() < names.len(), format!("These must be set together: {all}."))
        }
    };
    // an unknown value may turn out to be null
    let at = set.last().map_or_else(AttributePath::root, |name| AttributePath::root().attribute(name.as_str()));
    (broken && !unknown).then(|| Diagnostic::error("Invalid combination of attributes", detail).at(at))
}

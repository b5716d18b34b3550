//! Our types to the protocol's messages and back.

use std::collections::BTreeMap;

use crate::codec::{decode, encode, encode_refined, from_json, type_to_json};
use crate::proto::terraform as tf;
use crate::schema::{Attribute, Identity, Kind, Mode, Nesting, Promise, Schema};
use crate::{AttributePath, Diagnostic, Diagnostics, Parameter, Severity, Signature, Step, Type, Value};

pub(crate) fn diagnostics(diagnostics: Diagnostics) -> Vec<tf::Diagnostic> {
    diagnostics.into_iter().map(diagnostic).collect()
}

fn diagnostic(diagnostic: Diagnostic) -> tf::Diagnostic {
    let severity = match diagnostic.severity {
        Severity::Error => tf::diagnostic::Severity::Error,
        Severity::Warning => tf::diagnostic::Severity::Warning,
    };
    let shown = shown(&diagnostic.path);
    let whole = diagnostic.path.to_string();
    let detail = if shown == diagnostic.path || diagnostic.detail.contains(&whole) {
        diagnostic.detail
    } else {
        format!("{whole}: {}", diagnostic.detail)
    };
    let attribute = (!shown.is_root()).then(|| path(&shown));
    tf::Diagnostic { severity: severity.into(), summary: diagnostic.summary, detail, attribute }
}

/// Cuts a path to what core can point at: an attribute, and one element of it. What lies deeper it would show at the head of the block, or
/// at a namesake there.
fn shown(path: &AttributePath) -> AttributePath {
    let mut shown = AttributePath::root();
    for (depth, step) in path.steps().iter().take(2).enumerate() {
        shown = match (depth, step) {
            (0, Step::Attribute(name)) => shown.attribute(name),
            (1, Step::Key(key)) => shown.key(key),
            (1, Step::Index(index)) => shown.index(*index),
            _ => return shown,
        };
    }
    shown
}

/// The protocol cannot name an element of a set: a path ends before it.
pub(crate) fn path(path: &AttributePath) -> tf::AttributePath {
    use tf::attribute_path::{Step as WireStep, step::Selector};
    let selector = |step: &Step| match step {
        Step::Attribute(name) => Some(Selector::AttributeName(name.clone())),
        Step::Key(key) => Some(Selector::ElementKeyString(key.clone())),
        Step::Index(index) => i64::try_from(*index).ok().map(Selector::ElementKeyInt),
        Step::Element(_) => None,
    };
    let steps = path.steps().iter().map_while(selector).map(|selector| WireStep { selector: Some(selector) });
    tf::AttributePath { steps: steps.collect() }
}

/// Reads diagnostics as core does, for the in-process test client.
pub(crate) fn read_diagnostics(messages: Vec<tf::Diagnostic>) -> Diagnostics {
    let read = |message: tf::Diagnostic| {
        let path = message.attribute.as_ref().map(read_path).unwrap_or_default();
        match message.severity() {
            tf::diagnostic::Severity::Warning => Diagnostic::warning(message.summary, message.detail).at(path),
            _ => Diagnostic::error(message.summary, message.detail).at(path),
        }
    };
    messages.into_iter().map(read).collect()
}

/// Reads a path as core does, for the in-process test client.
pub(crate) fn read_path(path: &tf::AttributePath) -> AttributePath {
    use tf::attribute_path::step::Selector;
    let selectors = path.steps.iter().filter_map(|step| step.selector.as_ref());
    selectors.fold(AttributePath::root(), |path, selector| match selector {
        Selector::AttributeName(name) => path.attribute(name),
        Selector::ElementKeyString(key) => path.key(key),
        Selector::ElementKeyInt(index) => path.index(usize::try_from(*index).unwrap_or_default()),
    })
}

/// Reads a value; a missing message is null.
pub(crate) fn value(message: Option<&tf::DynamicValue>, kind: &Type) -> Result<Value, Diagnostics> {
    let Some(message) = message else { return Ok(Value::Null) };
    if !message.msgpack.is_empty() {
        return Ok(decode(&message.msgpack, kind)?);
    }
    if message.json.is_empty() {
        return Ok(Value::Null);
    }
    let json = serde_json::from_slice(&message.json)
        .map_err(|error| Diagnostic::error("Broken JSON value", error.to_string()))?;
    Ok(from_json(&json, kind)?)
}

pub(crate) fn dynamic(value: &Value, kind: &Type) -> Result<tf::DynamicValue, Diagnostics> {
    Ok(tf::DynamicValue { msgpack: encode(value, kind)?, json: Vec::new() })
}

/// Writes a planned state: what is unknown carries the schema's promises.
pub(crate) fn planned(value: &Value, schema: &Schema, kind: &Type) -> Result<tf::DynamicValue, Diagnostics> {
    let msgpack = encode_refined(value, kind, &|path| promise(&schema.attributes, path.steps()))?;
    Ok(tf::DynamicValue { msgpack, json: Vec::new() })
}

/// Finds what the schema promises of the attribute at a path, whichever element of a list, set or map it belongs to.
fn promise<'a>(attributes: &'a BTreeMap<String, Attribute>, steps: &[Step]) -> Option<&'a Promise> {
    let (first, rest) = steps.split_first()?;
    let Step::Attribute(name) = first else { return promise(attributes, rest) };
    let attribute = attributes.get(name)?;
    match &attribute.kind {
        _ if rest.is_empty() => attribute.promised(),
        Kind::Nested(_, inner) => promise(inner, rest),
        Kind::Value(_) => None,
    }
}

pub(crate) fn identity_schema(identity: &Identity) -> tf::ResourceIdentitySchema {
    let attribute = |(name, attribute): (&String, &crate::schema::IdentityAttribute)| {
        tf::resource_identity_schema::IdentityAttribute {
            name: name.clone(),
            r#type: type_to_json(&Type::String).to_string().into_bytes(),
            required_for_import: attribute.required,
            optional_for_import: !attribute.required,
            description: attribute.description.clone(),
        }
    };
    tf::ResourceIdentitySchema {
        version: identity.version,
        identity_attributes: identity.attributes.iter().map(attribute).collect(),
    }
}

/// Writes the identity that a state tells; none for a kind without identity, or where there is no object.
pub(crate) fn identity(schema: &Schema, state: &Value) -> Result<Option<tf::ResourceIdentityData>, Diagnostics> {
    match &schema.identity {
        Some(identity) if !state.is_null() => identity_value(identity, &identity.of(state)).map(Some),
        _ => Ok(None),
    }
}

pub(crate) fn identity_value(identity: &Identity, value: &Value) -> Result<tf::ResourceIdentityData, Diagnostics> {
    Ok(tf::ResourceIdentityData { identity_data: Some(dynamic(value, &identity.value_type())?) })
}

/// Reads an identity; null when there is none.
pub(crate) fn read_identity(
    identity: &Identity,
    message: Option<&tf::ResourceIdentityData>,
) -> Result<Value, Diagnostics> {
    value(message.and_then(|message| message.identity_data.as_ref()), &identity.value_type())
}

pub(crate) fn signature(signature: &Signature) -> tf::Function {
    let parameter = |parameter: &Parameter| tf::function::Parameter {
        name: parameter.name.clone(),
        r#type: type_to_json(&parameter.kind).to_string().into_bytes(),
        allow_null_value: parameter.nullable,
        allow_unknown_values: false,
        description: parameter.description.clone(),
        description_kind: tf::StringKind::Markdown.into(),
    };
    tf::Function {
        parameters: signature.parameters.iter().map(parameter).collect(),
        variadic_parameter: signature.variadic.as_ref().map(parameter),
        r#return: Some(tf::function::Return { r#type: type_to_json(&signature.returns).to_string().into_bytes() }),
        summary: signature.summary.clone(),
        description: signature.description.clone(),
        description_kind: tf::StringKind::Markdown.into(),
        deprecation_message: String::new(),
    }
}

pub(crate) fn timestamp(at: jiff::Timestamp) -> tf::Timestamp {
    tf::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}

pub(crate) fn schema(schema: &Schema) -> tf::Schema {
    let block = tf::schema::Block {
        version: schema.version,
        attributes: attributes(&schema.attributes),
        description: schema.description.clone(),
        description_kind: tf::StringKind::Markdown.into(),
        deprecated: false,
        deprecation_message: String::new(),
    };
    tf::Schema { version: schema.version, block: Some(block) }
}

fn attributes(attributes: &BTreeMap<String, Attribute>) -> Vec<tf::schema::Attribute> {
    attributes.iter().map(|(name, attribute)| one_attribute(name, attribute)).collect()
}

fn one_attribute(name: &str, attribute: &Attribute) -> tf::schema::Attribute {
    let (kind, nested_type) = match &attribute.kind {
        Kind::Value(kind) => (type_to_json(kind).to_string().into_bytes(), None),
        Kind::Nested(nesting, inner) => {
            let nesting = match nesting {
                Nesting::Single => tf::schema::object::NestingMode::Single,
                Nesting::List => tf::schema::object::NestingMode::List,
                Nesting::Set => tf::schema::object::NestingMode::Set,
                Nesting::Map => tf::schema::object::NestingMode::Map,
            };
            (Vec::new(), Some(tf::schema::Object { attributes: attributes(inner), nesting: nesting.into() }))
        }
    };
    tf::schema::Attribute {
        name: name.to_string(),
        r#type: kind,
        nested_type,
        description: attribute.description.clone(),
        description_kind: tf::StringKind::Markdown.into(),
        required: attribute.mode == Mode::Required,
        optional: matches!(attribute.mode, Mode::Optional | Mode::OptionalComputed),
        computed: attribute.is_computed(),
        sensitive: attribute.sensitive,
        deprecated: attribute.deprecated.is_some(),
        deprecation_message: attribute.deprecated.clone().unwrap_or_default(),
        write_only: attribute.write_only,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_is_pointed_to_what_it_finds_and_told_the_rest() {
        let told = |path: AttributePath| {
            let sent = diagnostic(Diagnostic::error("No", "It is bad.").at(path));
            (sent.attribute.as_ref().map(read_path).unwrap_or_default().to_string(), sent.detail)
        };
        let root = AttributePath::root;
        let limits = root().attribute("limits");
        assert_eq!(told(limits.clone()), ("limits".to_owned(), "It is bad.".to_owned()));
        assert_eq!(told(limits.key("cpu")).1, "It is bad.");
        let budget = root().attribute("disruption").attribute("budgets").index(0);
        assert_eq!(told(budget), ("disruption".to_owned(), "disruption.budgets[0]: It is bad.".to_owned()));
        let tag = root().attribute("terms").index(1).attribute("tags");
        assert_eq!(told(tag), ("terms[1]".to_owned(), "terms[1].tags: It is bad.".to_owned()));
    }
}

//! Our types to the protocol's messages and back.

use std::collections::BTreeMap;

use crate::codec::{decode, encode, from_json, type_to_json};
use crate::proto::terraform as tf;
use crate::schema::{Attribute, Kind, Mode, Nesting, Schema};
use crate::{AttributePath, Diagnostic, Diagnostics, Severity, Step, Type, Value};

pub(crate) fn diagnostics(diagnostics: Diagnostics) -> Vec<tf::Diagnostic> {
    diagnostics.into_iter().map(diagnostic).collect()
}

fn diagnostic(diagnostic: Diagnostic) -> tf::Diagnostic {
    let severity = match diagnostic.severity {
        Severity::Error => tf::diagnostic::Severity::Error,
        Severity::Warning => tf::diagnostic::Severity::Warning,
    };
    tf::Diagnostic {
        severity: severity.into(),
        summary: diagnostic.summary,
        detail: diagnostic.detail,
        attribute: (!diagnostic.path.is_root()).then(|| path(&diagnostic.path)),
    }
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
        write_only: false,
    }
}

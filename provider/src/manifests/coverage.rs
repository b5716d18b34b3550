//! Holds attributes against the API's own schema, for tests: a field without an attribute is a field that no user can set.

use serde_json::Value as Json;
use tfplugin::schema::{Kind, Nesting};
use tfplugin::{Attribute, Type, Value};

use super::spec::{Attributes, attribute_of, field_of};

/// Gives the schema of the spec in a CRD.
pub fn spec_schema(crd: &str) -> Json {
    let found = karp_domain::api::crds().into_iter().find(|one| one.metadata.name.as_deref() == Some(crd));
    let found = serde_json::to_value(found.expect("the CRD")).expect("plain data");
    found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// Names the fields that have no attribute of their type, and the attributes that are no field.
pub fn differences(schema: &Json, attributes: &Attributes) -> Vec<String> {
    let mut found = Vec::new();
    compare(schema, attributes, "", &mut found);
    found
}

fn compare(schema: &Json, attributes: &Attributes, at: &str, found: &mut Vec<String>) {
    let fields = schema["properties"].as_object().expect("an object's fields");
    for (field, schema) in fields {
        match attributes.get(&attribute_of(field)) {
            Some(attribute) => compare_one(schema, attribute, &format!("{at}{field}"), found),
            None => found.push(format!("{at}{field} has no attribute")),
        }
    }
    let strange = attributes.keys().filter(|name| !fields.contains_key(&field_of(name)));
    found.extend(strange.map(|name| format!("{at}{name} is no field")));
}

fn compare_one(schema: &Json, attribute: &Attribute, at: &str, found: &mut Vec<String>) {
    let kind = schema["type"].as_str().unwrap_or_default();
    let amount = schema["x-kubernetes-int-or-string"] == true;
    let fits = match &attribute.kind {
        Kind::Nested(Nesting::Single, inner) if kind == "object" => {
            compare(schema, inner, &format!("{at}."), found);
            true
        }
        Kind::Nested(Nesting::List, inner) if kind == "array" => {
            compare(&schema["items"], inner, &format!("{at}[]."), found);
            true
        }
        Kind::Value(Type::String) => kind == "string" || amount,
        Kind::Value(Type::Number) => kind == "integer" || amount,
        Kind::Value(Type::Bool) => kind == "boolean",
        Kind::Value(Type::List(_) | Type::Set(_)) => kind == "array" && schema["items"]["type"] == "string",
        Kind::Value(Type::Map(_)) => kind == "object" && schema["additionalProperties"].is_object(),
        _ => false,
    };
    if !fits {
        found.push(format!("{at} is {kind:?}, and its attribute is not"));
    }
    let choices = |schema: &Json| schema["enum"].as_array().cloned().unwrap_or_default();
    let alone = choices(schema).into_iter().map(Value::from);
    let listed = choices(&schema["items"]).into_iter().map(|choice| Value::List(vec![Value::from(choice)]));
    for choice in alone.chain(listed) {
        if attribute.validators.iter().any(|validator| validator.check(&choice).is_err()) {
            found.push(format!("{at} may be {choice:?}, and its attribute refuses that"));
        }
    }
}

/// Makes a value in which every attribute is set.
pub fn sample(attributes: &Attributes) -> Value {
    Value::object(attributes.iter().map(|(name, attribute)| (name.clone(), sample_of(attribute))))
}

fn sample_of(attribute: &Attribute) -> Value {
    match &attribute.kind {
        Kind::Nested(Nesting::Single, inner) => sample(inner),
        Kind::Nested(_, inner) => Value::List(vec![sample(inner)]),
        Kind::Value(Type::Number) => Value::from(7),
        Kind::Value(Type::Bool) => Value::from(true),
        Kind::Value(Type::List(_) | Type::Set(_)) => Value::List(vec!["one".into()]),
        Kind::Value(Type::Map(_)) => Value::object([("key", "one")]),
        Kind::Value(_) => Value::from("one"),
    }
}

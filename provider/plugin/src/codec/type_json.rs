//! Types as JSON, the way the protocol writes them: `"string"`, `["list", "string"]`, `["object", {...}]`.

use serde_json::{Value as Json, json};

use crate::Type;

/// Writes a type as JSON.
pub(crate) fn type_to_json(kind: &Type) -> Json {
    match kind {
        Type::String => json!("string"),
        Type::Number => json!("number"),
        Type::Bool => json!("bool"),
        Type::Dynamic => json!("dynamic"),
        Type::List(element) => json!(["list", type_to_json(element)]),
        Type::Set(element) => json!(["set", type_to_json(element)]),
        Type::Map(element) => json!(["map", type_to_json(element)]),
        Type::Tuple(elements) => json!(["tuple", elements.iter().map(type_to_json).collect::<Vec<_>>()]),
        Type::Object(attributes) => {
            let attributes: serde_json::Map<String, Json> =
                attributes.iter().map(|(name, kind)| (name.clone(), type_to_json(kind))).collect();
            json!(["object", attributes])
        }
    }
}

/// Reads a type from JSON; a third element of an object type (optional attributes) is passed over.
pub(crate) fn type_from_json(json: &Json) -> Option<Type> {
    if let Some(name) = json.as_str() {
        return match name {
            "string" => Some(Type::String),
            "number" => Some(Type::Number),
            "bool" => Some(Type::Bool),
            "dynamic" => Some(Type::Dynamic),
            _ => None,
        };
    }
    let parts = json.as_array()?;
    let inner = parts.get(1)?;
    match parts.first()?.as_str()? {
        "list" => Some(Type::list(type_from_json(inner)?)),
        "set" => Some(Type::set(type_from_json(inner)?)),
        "map" => Some(Type::map(type_from_json(inner)?)),
        "tuple" => Some(Type::Tuple(inner.as_array()?.iter().map(type_from_json).collect::<Option<_>>()?)),
        "object" => {
            let attributes = inner.as_object()?.iter();
            let attributes = attributes.map(|(name, kind)| Some((name.clone(), type_from_json(kind)?)));
            Some(Type::Object(attributes.collect::<Option<_>>()?))
        }
        _ => None,
    }
}

//! State and configuration in JSON.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::codec::{CodecError, name_of, number_of_text, type_from_json};
use crate::{AttributePath, Type, Value};

/// Reads JSON as a value of that type. Attributes that the type does not have are dropped and missing ones are null, so
/// that a state written by a slightly older or newer schema of the same version still reads.
pub(crate) fn from_json(json: &Json, kind: &Type) -> Result<Value, CodecError> {
    read(json, kind, &AttributePath::root())
}

fn read(json: &Json, kind: &Type, path: &AttributePath) -> Result<Value, CodecError> {
    match (kind, json) {
        (_, Json::Null) => Ok(Value::Null),
        (Type::Bool, Json::Bool(bool)) => Ok(Value::Bool(*bool)),
        (Type::Bool, Json::String(text)) if text == "true" || text == "false" => Ok(Value::Bool(text == "true")),
        (Type::Number, Json::Number(number)) => number_of_text(path, &number.to_string()),
        (Type::Number, Json::String(text)) => number_of_text(path, text),
        (Type::String, Json::String(text)) => Ok(Value::String(text.clone())),
        (Type::String, Json::Bool(bool)) => Ok(Value::String(bool.to_string())),
        (Type::String, Json::Number(number)) => Ok(Value::String(number.to_string())),
        (Type::List(element), Json::Array(list)) => Ok(Value::List(elements(list, element, path)?)),
        (Type::Set(element), Json::Array(list)) => Ok(Value::canonical_set(elements(list, element, path)?)),
        (Type::Tuple(kinds), Json::Array(list)) if kinds.len() == list.len() => {
            let pairs = kinds.iter().zip(list).enumerate();
            pairs
                .map(|(index, (kind, json))| read(json, kind, &path.clone().index(index)))
                .collect::<Result<_, _>>()
                .map(Value::List)
        }
        (Type::Map(element), Json::Object(map)) => {
            let entries = map.iter().map(|(key, json)| Ok((key.clone(), read(json, element, &path.clone().key(key))?)));
            Ok(Value::Map(entries.collect::<Result<BTreeMap<_, _>, CodecError>>()?))
        }
        (Type::Object(attributes), Json::Object(map)) => {
            let entries = attributes.iter().map(|(name, kind)| {
                let value =
                    map.get(name).map_or(Ok(Value::Null), |json| read(json, kind, &path.clone().attribute(name)));
                Ok((name.clone(), value?))
            });
            Ok(Value::Map(entries.collect::<Result<BTreeMap<_, _>, CodecError>>()?))
        }
        (Type::Dynamic, Json::Object(map)) => {
            let (Some(kind), Some(value)) = (map.get("type").and_then(type_from_json), map.get("value")) else {
                return Err(CodecError::new(path, "a dynamic value must be an object of \"type\" and \"value\""));
            };
            read(value, &kind, path)
        }
        _ => Err(CodecError::new(path, format!("expected {}", name_of(kind)))),
    }
}

fn elements(list: &[Json], element: &Type, path: &AttributePath) -> Result<Vec<Value>, CodecError> {
    list.iter().enumerate().map(|(index, json)| read(json, element, &path.clone().index(index))).collect()
}

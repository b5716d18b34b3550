//! Values on the wire and in state: msgpack and JSON, both driven by the type that the schema gives.

mod json;
mod msgpack;
mod type_json;

pub(crate) use json::from_json;
pub(crate) use msgpack::{decode, encode, encode_refined};
pub(crate) use type_json::{type_from_json, type_to_json};

use crate::{AttributePath, Diagnostic, Diagnostics, Number, Type, Value};

/// Bytes or JSON do not hold a value of the expected type.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("at {path:?}: {message}")]
pub(crate) struct CodecError {
    pub(crate) path: AttributePath,
    pub(crate) message: String,
}

impl CodecError {
    pub(crate) fn new(path: &AttributePath, message: impl Into<String>) -> Self {
        Self { path: path.clone(), message: message.into() }
    }
}

impl From<CodecError> for Diagnostics {
    fn from(error: CodecError) -> Self {
        Diagnostic::error("Value does not match the schema", error.message).at(error.path).into()
    }
}

/// Says in words what a type is.
pub(crate) fn name_of(kind: &Type) -> &'static str {
    match kind {
        Type::String => "a string",
        Type::Number => "a number",
        Type::Bool => "a boolean",
        Type::Dynamic => "any value",
        Type::List(_) | Type::Tuple(_) => "a list",
        Type::Set(_) => "a set",
        Type::Map(_) => "a map",
        Type::Object(_) => "an object",
    }
}

/// The type that a dynamic value has by itself.
pub(crate) fn infer(value: &Value) -> Type {
    match value {
        Value::Null | Value::Unknown => Type::Dynamic,
        Value::Bool(_) => Type::Bool,
        Value::Number(_) => Type::Number,
        Value::String(_) => Type::String,
        Value::List(list) => Type::Tuple(list.iter().map(infer).collect()),
        Value::Map(map) => Type::Object(map.iter().map(|(name, value)| (name.clone(), infer(value))).collect()),
    }
}

/// Reads a number from text, which both encodings allow.
fn number_of_text(path: &AttributePath, text: &str) -> Result<Value, CodecError> {
    let number = Number::parse(text).ok_or_else(|| CodecError::new(path, format!("{text:?} is not a number")))?;
    Ok(Value::Number(number))
}

#[cfg(test)]
mod tests;

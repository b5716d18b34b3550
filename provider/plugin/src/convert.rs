//! Values to plain structs and back, by serde, with the attribute's path in every error.

use std::collections::BTreeMap;

use serde::de::value::StringDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, EnumAccess, IntoDeserializer, VariantAccess, Visitor};
use serde::{Deserializer, Serialize, forward_to_deserialize_any};

use crate::{AttributePath, Diagnostic, Diagnostics, Number, Value};

/// A value does not have the shape that the struct wants: a bug of the provider, or a state of another shape.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct ConvertError {
    /// Where.
    pub path: AttributePath,
    /// What was found and what was wanted.
    pub message: String,
}

impl ConvertError {
    fn under(mut self, step: crate::Step) -> Self {
        let inner = std::mem::take(&mut self.path);
        self.path = inner.steps().iter().cloned().fold(AttributePath::root().step(step), AttributePath::step);
        self
    }
}

impl de::Error for ConvertError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self { path: AttributePath::root(), message: message.to_string() }
    }
}

impl From<ConvertError> for Diagnostics {
    fn from(error: ConvertError) -> Self {
        Diagnostic::error("Unexpected value", error.message).at(error.path).into()
    }
}

/// Reads a value as a struct. Null and unknown values read as `None`, null lists and maps also as empty ones;
/// an unknown value where the struct wants a value is an error that names the attribute.
///
/// # Errors
/// The first attribute that does not fit.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, ConvertError> {
    T::deserialize(Reader(value))
}

/// Writes a struct as a value: `None` is null.
///
/// # Errors
/// When the struct cannot be written as JSON (a map with keys that are not text).
pub fn to_value<T: Serialize>(data: &T) -> Result<Value, ConvertError> {
    serde_json::to_value(data).map(Value::from).map_err(de::Error::custom)
}

impl From<serde_json::Value> for Value {
    fn from(json: serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(bool) => Self::Bool(bool),
            serde_json::Value::Number(number) => {
                let text = number.to_string();
                Self::Number(Number::parse(&text).unwrap_or(Number::Text(text)))
            }
            serde_json::Value::String(text) => Self::String(text),
            serde_json::Value::Array(list) => Self::List(list.into_iter().map(Self::from).collect()),
            serde_json::Value::Object(map) => {
                Self::Map(map.into_iter().map(|(name, value)| (name, Self::from(value))).collect())
            }
        }
    }
}

struct Reader<'a>(&'a Value);

impl Reader<'_> {
    fn mismatch(&self) -> ConvertError {
        let found = self.0.kind();
        de::Error::custom(format!("found {found} where the provider expects another type"))
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = ConvertError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConvertError> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Unknown => Err(de::Error::custom("the value is not known yet")),
            Value::Bool(bool) => visitor.visit_bool(*bool),
            Value::Number(Number::Int(int)) => visitor.visit_i64(*int),
            Value::Number(number) => visitor.visit_f64(number.as_f64()),
            Value::String(text) => visitor.visit_str(text),
            Value::List(list) => visitor.visit_seq(Elements { next: list.iter().enumerate() }),
            Value::Map(map) => visitor.visit_map(Entries { next: map.iter(), value: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConvertError> {
        match self.0 {
            Value::Null | Value::Unknown => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConvertError> {
        match self.0 {
            Value::Null => visitor.visit_seq(Elements { next: [].iter().enumerate() }),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConvertError> {
        match self.0 {
            Value::Null => visitor.visit_map(Entries { next: BTreeMap::new().iter(), value: None }),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConvertError> {
        match self.0 {
            Value::String(text) => {
                let text: StringDeserializer<ConvertError> = text.clone().into_deserializer();
                visitor.visit_enum(text)
            }
            Value::Map(map) if map.len() == 1 => match map.iter().next() {
                Some((name, value)) => visitor.visit_enum(Variant { name, value }),
                None => Err(self.mismatch()),
            },
            _ => Err(self.mismatch()),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ConvertError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConvertError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple
        tuple_struct struct identifier
    }
}

struct Elements<'a> {
    next: std::iter::Enumerate<std::slice::Iter<'a, Value>>,
}

impl<'de> de::SeqAccess<'de> for Elements<'_> {
    type Error = ConvertError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, ConvertError> {
        let Some((index, value)) = self.next.next() else { return Ok(None) };
        seed.deserialize(Reader(value)).map(Some).map_err(|error| error.under(crate::Step::Index(index)))
    }
}

struct Entries<'a> {
    next: std::collections::btree_map::Iter<'a, String, Value>,
    value: Option<(&'a String, &'a Value)>,
}

impl<'de> de::MapAccess<'de> for Entries<'_> {
    type Error = ConvertError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ConvertError> {
        let Some((key, value)) = self.next.next() else { return Ok(None) };
        self.value = Some((key, value));
        seed.deserialize(StringDeserializer::new(key.clone())).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, ConvertError> {
        let (key, value) = self.value.take().ok_or_else(|| <ConvertError as de::Error>::custom("value before key"))?;
        seed.deserialize(Reader(value)).map_err(|error| error.under(crate::Step::Attribute(key.clone())))
    }
}

struct Variant<'a> {
    name: &'a String,
    value: &'a Value,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = ConvertError;
    type Variant = Reader<'a>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Reader<'a>), ConvertError> {
        Ok((seed.deserialize(StringDeserializer::new(self.name.clone()))?, Reader(self.value)))
    }
}

impl<'de> VariantAccess<'de> for Reader<'_> {
    type Error = ConvertError;

    fn unit_variant(self) -> Result<(), ConvertError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ConvertError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, ConvertError> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConvertError> {
        self.deserialize_any(visitor)
    }
}

//! The msgpack encoding: unknown is extension 0 (12 when refined), sets are arrays, a dynamic value is `[type, value]`.

use std::collections::BTreeMap;

use rmp::Marker;
use rmp::decode::{self as rd, Bytes, RmpRead};
use rmp::encode::{self as wr};

use crate::codec::{CodecError, infer, name_of, number_of_text, type_from_json, type_to_json};
use crate::schema::Promise;
use crate::{AttributePath, Number, Type, Value};

/// The extension of an unknown value that carries promises: a map of refinements.
const REFINED: i8 = 12;
/// The refinement "may it be null"; false says that it will not be.
const NULLNESS: u8 = 1;
/// The refinement "begins with".
const PREFIX: u8 = 2;

/// Values nest no deeper than this: bytes that do are broken or hostile.
const MAX_DEPTH: usize = 128;
/// The exact decimal of a float has at most so many digits behind the point.
const FRACTION_DIGITS: usize = 1074;

/// Tells what is promised of the unknown value at a path.
type Promises<'a> = dyn Fn(&AttributePath) -> Option<&'a Promise> + 'a;

/// Writes a value of that type.
pub(crate) fn encode(value: &Value, kind: &Type) -> Result<Vec<u8>, CodecError> {
    encode_refined(value, kind, &|_| None)
}

/// Writes a value of that type; unknown parts carry what is promised of them.
pub(crate) fn encode_refined<'a>(value: &Value, kind: &Type, promises: &Promises<'a>) -> Result<Vec<u8>, CodecError> {
    let mut output = Output { bytes: Vec::with_capacity(256), promises };
    output.write(value, kind, &AttributePath::root())?;
    Ok(output.bytes)
}
struct Output<'p, 'a> {
    bytes: Vec<u8>,
    promises: &'p Promises<'a>,
}

impl Output<'_, '_> {
    fn write(&mut self, value: &Value, kind: &Type, path: &AttributePath) -> Result<(), CodecError> {
        let out = &mut self.bytes;
        match (kind, value) {
            (_, Value::Null) => out.push(0xc0),
            (_, Value::Unknown) => match (self.promises)(path) {
                Some(promise) => write_refined(out, promise).map_err(|()| too_long(path))?,
                None => out.extend([0xd4, 0, 0]),
            },
            (Type::Bool, Value::Bool(bool)) => out.push(if *bool { 0xc3 } else { 0xc2 }),
            (Type::Number, Value::Number(number)) => write_number(out, number).map_err(|()| too_long(path))?,
            (Type::String, Value::String(text)) => wr::write_str(out, text).map_err(|_| too_long(path))?,
            (Type::List(element) | Type::Set(element), Value::List(list)) => {
                array(out, list.len(), path)?;
                for (index, value) in list.iter().enumerate() {
                    self.write(value, element, &path.clone().index(index))?;
                }
            }
            (Type::Tuple(kinds), Value::List(list)) if kinds.len() == list.len() => {
                array(out, list.len(), path)?;
                for (index, (value, kind)) in list.iter().zip(kinds).enumerate() {
                    self.write(value, kind, &path.clone().index(index))?;
                }
            }
            (Type::Map(element), Value::Map(map)) => {
                map_head(out, map.len(), path)?;
                for (key, value) in map {
                    wr::write_str(&mut self.bytes, key).map_err(|_| too_long(path))?;
                    self.write(value, element, &path.clone().key(key))?;
                }
            }
            (Type::Object(attributes), Value::Map(map)) => {
                if let Some(name) = map.keys().find(|name| !attributes.contains_key(*name)) {
                    return Err(CodecError::new(path, format!("the schema has no attribute {name:?}")));
                }
                map_head(out, attributes.len(), path)?;
                for (name, kind) in attributes {
                    wr::write_str(&mut self.bytes, name).map_err(|_| too_long(path))?;
                    self.write(map.get(name).unwrap_or(&Value::Null), kind, &path.clone().attribute(name))?;
                }
            }
            (Type::Dynamic, value) => {
                let kind = infer(value);
                array(out, 2, path)?;
                wr::write_bin(out, type_to_json(&kind).to_string().as_bytes()).map_err(|_| too_long(path))?;
                self.write(value, &kind, path)?;
            }
            _ => return Err(CodecError::new(path, format!("expected {}, not {}", name_of(kind), value.kind()))),
        }
        Ok(())
    }
}

fn write_refined(out: &mut Vec<u8>, promise: &Promise) -> Result<(), ()> {
    let mut refinements = Vec::new();
    let count = if matches!(promise, Promise::Prefix(_)) { 2 } else { 1 };
    wr::write_map_len(&mut refinements, count).map_err(drop)?;
    wr::write_pfix(&mut refinements, NULLNESS).map_err(drop)?;
    wr::write_bool(&mut refinements, false).map_err(drop)?;
    if let Promise::Prefix(prefix) = promise {
        wr::write_pfix(&mut refinements, PREFIX).map_err(drop)?;
        wr::write_str(&mut refinements, prefix).map_err(drop)?;
    }
    let length = u32::try_from(refinements.len()).map_err(drop)?;
    wr::write_ext_meta(out, length, REFINED).map_err(drop)?;
    out.extend(refinements);
    Ok(())
}

fn write_number(out: &mut Vec<u8>, number: &Number) -> Result<(), ()> {
    match number {
        Number::Int(int) => wr::write_sint(out, *int).map(drop).map_err(drop),
        // Of text core reads this very decimal; of a float it would read a large whole number as the nearest that a float holds.
        Number::Float(float) => wr::write_str(out, &float.to_string()).map_err(drop),
        Number::Text(text) => wr::write_str(out, text).map_err(drop),
    }
}

fn array(out: &mut Vec<u8>, len: usize, path: &AttributePath) -> Result<(), CodecError> {
    let len = u32::try_from(len).map_err(|_| too_long(path))?;
    wr::write_array_len(out, len).map(drop).map_err(|_| too_long(path))
}

fn map_head(out: &mut Vec<u8>, len: usize, path: &AttributePath) -> Result<(), CodecError> {
    let len = u32::try_from(len).map_err(|_| too_long(path))?;
    wr::write_map_len(out, len).map(drop).map_err(|_| too_long(path))
}

fn too_long(path: &AttributePath) -> CodecError {
    CodecError::new(path, "the value is too long to be sent")
}

/// Reads a value of that type.
pub(crate) fn decode(bytes: &[u8], kind: &Type) -> Result<Value, CodecError> {
    let mut input = Input { bytes: Bytes::new(bytes), depth: 0 };
    let value = input.read(kind, &AttributePath::root())?;
    match input.bytes.remaining_slice() {
        [] => Ok(value),
        rest => Err(CodecError::new(&AttributePath::root(), format!("{} bytes too many", rest.len()))),
    }
}

struct Input<'a> {
    bytes: Bytes<'a>,
    depth: usize,
}

impl Input<'_> {
    fn read(&mut self, kind: &Type, path: &AttributePath) -> Result<Value, CodecError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(CodecError::new(path, "values are nested too deeply"));
        }
        let value = self.read_inner(kind, path);
        self.depth -= 1;
        value
    }

    fn read_inner(&mut self, kind: &Type, path: &AttributePath) -> Result<Value, CodecError> {
        if let Some(value) = self.null_or_unknown(path)? {
            return Ok(value);
        }
        match kind {
            Type::Bool => rd::read_bool(&mut self.bytes).map(Value::Bool).map_err(|_| mismatch(path, kind)),
            Type::String => self.text(path).map(Value::String),
            Type::Number => self.number(path),
            Type::List(element) => self.elements(element, path).map(Value::List),
            Type::Set(element) => self.elements(element, path).map(Value::canonical_set),
            Type::Tuple(kinds) => {
                let len = self.array_len(path)?;
                if len != kinds.len() {
                    return Err(CodecError::new(path, format!("expected {} elements, not {len}", kinds.len())));
                }
                let elements =
                    kinds.iter().enumerate().map(|(index, kind)| self.read(kind, &path.clone().index(index)));
                elements.collect::<Result<_, _>>().map(Value::List)
            }
            Type::Map(element) => {
                let mut map = BTreeMap::new();
                for _ in 0..self.map_len(path)? {
                    let key = self.text(path)?;
                    let value = self.read(element, &path.clone().key(&key))?;
                    map.insert(key, value);
                }
                Ok(Value::Map(map))
            }
            Type::Object(attributes) => {
                let mut map: BTreeMap<String, Value> =
                    attributes.keys().map(|name| (name.clone(), Value::Null)).collect();
                for _ in 0..self.map_len(path)? {
                    let name = self.text(path)?;
                    let kind = attributes
                        .get(&name)
                        .ok_or_else(|| CodecError::new(path, format!("the schema has no attribute {name:?}")))?;
                    let value = self.read(kind, &path.clone().attribute(&name))?;
                    map.insert(name, value);
                }
                Ok(Value::Map(map))
            }
            Type::Dynamic => self.dynamic(path),
        }
    }

    fn null_or_unknown(&mut self, path: &AttributePath) -> Result<Option<Value>, CodecError> {
        let Some(first) = self.bytes.remaining_slice().first() else {
            return Err(CodecError::new(path, "the value is cut short"));
        };
        match Marker::from_u8(*first) {
            Marker::Null => {
                self.skip(1, path)?;
                Ok(Some(Value::Null))
            }
            Marker::FixExt1
            | Marker::FixExt2
            | Marker::FixExt4
            | Marker::FixExt8
            | Marker::FixExt16
            | Marker::Ext8
            | Marker::Ext16
            | Marker::Ext32 => {
                // 0 is unknown, 12 unknown with refinements; whatever an extension says, the value is not known here
                let meta = rd::read_ext_meta(&mut self.bytes).map_err(|_| CodecError::new(path, "broken extension"))?;
                self.skip(meta.size as usize, path)?;
                Ok(Some(Value::Unknown))
            }
            _ => Ok(None),
        }
    }

    fn number(&mut self, path: &AttributePath) -> Result<Value, CodecError> {
        let first = self.bytes.remaining_slice().first().copied().unwrap_or_default();
        match Marker::from_u8(first) {
            Marker::F32 => {
                let float = rd::read_f32(&mut self.bytes).map_err(|_| mismatch(path, &Type::Number))?;
                finite(f64::from(float), path)
            }
            Marker::F64 => {
                let float = rd::read_f64(&mut self.bytes).map_err(|_| mismatch(path, &Type::Number))?;
                finite(float, path)
            }
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                let text = self.text(path)?;
                number_of_text(path, &text)
            }
            Marker::U64 => {
                let int = rd::read_u64(&mut self.bytes).map_err(|_| mismatch(path, &Type::Number))?;
                Ok(Value::Number(i64::try_from(int).map_or_else(|_| Number::Text(int.to_string()), Number::Int)))
            }
            _ => rd::read_int::<i64, _>(&mut self.bytes)
                .map(Value::from)
                .map_err(|_| CodecError::new(path, "expected a number")),
        }
    }

    fn text(&mut self, path: &AttributePath) -> Result<String, CodecError> {
        let len = rd::read_str_len(&mut self.bytes).map_err(|_| mismatch(path, &Type::String))?;
        let bytes = self.take(len as usize, path)?;
        String::from_utf8(bytes).map_err(|_| CodecError::new(path, "the text is not UTF-8"))
    }

    fn dynamic(&mut self, path: &AttributePath) -> Result<Value, CodecError> {
        let broken = || CodecError::new(path, "a dynamic value must be a type and a value");
        if self.array_len(path)? != 2 {
            return Err(broken());
        }
        let len = rd::read_bin_len(&mut self.bytes).map_err(|_| broken())?;
        let kind = self.take(len as usize, path)?;
        let kind = serde_json::from_slice(&kind).ok().as_ref().and_then(type_from_json).ok_or_else(broken)?;
        self.read(&kind, path)
    }

    fn elements(&mut self, element: &Type, path: &AttributePath) -> Result<Vec<Value>, CodecError> {
        let len = self.array_len(path)?;
        (0..len).map(|index| self.read(element, &path.clone().index(index))).collect()
    }

    fn array_len(&mut self, path: &AttributePath) -> Result<usize, CodecError> {
        let len = rd::read_array_len(&mut self.bytes).map_err(|_| CodecError::new(path, "expected a list"))?;
        self.plausible(len as usize, path)
    }

    fn map_len(&mut self, path: &AttributePath) -> Result<usize, CodecError> {
        let len = rd::read_map_len(&mut self.bytes).map_err(|_| CodecError::new(path, "expected a map"))?;
        self.plausible(len as usize, path)
    }

    /// Refuses a count that the remaining bytes cannot hold, before anything is allocated for it.
    fn plausible(&self, len: usize, path: &AttributePath) -> Result<usize, CodecError> {
        if len <= self.bytes.remaining_slice().len() {
            Ok(len)
        } else {
            Err(CodecError::new(path, "the value is cut short"))
        }
    }

    fn take(&mut self, len: usize, path: &AttributePath) -> Result<Vec<u8>, CodecError> {
        let len = self.plausible(len, path)?;
        let mut bytes = vec![0; len];
        self.bytes.read_exact_buf(&mut bytes).map_err(|_| CodecError::new(path, "the value is cut short"))?;
        Ok(bytes)
    }

    fn skip(&mut self, len: usize, path: &AttributePath) -> Result<(), CodecError> {
        self.take(len, path).map(drop)
    }
}

/// Reads a float as the decimal that it is exactly: the shortest one that names it is not always that number, and would return as another.
fn finite(float: f64, path: &AttributePath) -> Result<Value, CodecError> {
    if !float.is_finite() {
        return Err(CodecError::new(path, "infinite numbers are not supported"));
    }
    let decimal = format!("{float:.FRACTION_DIGITS$}");
    number_of_text(path, decimal.trim_end_matches('0').trim_end_matches('.'))
}

fn mismatch(path: &AttributePath, kind: &Type) -> CodecError {
    CodecError::new(path, format!("expected {}", name_of(kind)))
}

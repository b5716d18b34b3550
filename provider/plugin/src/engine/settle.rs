//! Settles what a resource answered against what was planned (or held in state): attributes that it left out keep their value,
//! equal meanings keep the user's spelling, sets get their canonical order.

use std::collections::BTreeMap;

use crate::codec::CodecError;
use crate::engine::plan::means_the_same;
use crate::schema::{Attribute, Kind, Mode, Nesting, Promise, Schema};
use crate::{AttributePath, Type, Value};

/// Settles an answer. `reference` is the plan after an apply, the state before a read, null for an import.
///
/// # Errors
/// When the answer does not have the schema's shape, which is a bug of the resource.
pub(crate) fn settle(schema: &Schema, reference: &Value, answer: Value) -> Result<Value, CodecError> {
    object(&schema.attributes, reference, answer, &AttributePath::root())
}

/// Settles what a resource saved on the way. Whatever in it does not fit the schema is left out: a bug there must not lose the rest.
pub(crate) fn salvage(schema: &Schema, reference: &Value, saved: Value) -> Value {
    let fits = |name: &str, value: &Value| settle(schema, reference, Value::object([(name, value.clone())])).is_ok();
    let sound = match saved {
        Value::Map(map) => Value::Map(map.into_iter().filter(|(name, value)| fits(name, value)).collect()),
        _ => Value::Map(BTreeMap::new()),
    };
    settle(schema, reference, sound).unwrap_or_else(|_| reference.clone())
}

/// Fills an object of the schema up: missing attributes are null, sets in canonical order. For what a test writes by hand.
pub(crate) fn conform_object(schema: &Schema, value: Value) -> Result<Value, CodecError> {
    conform(&schema.value_type(), value, &AttributePath::root())
}

fn object(
    attributes: &BTreeMap<String, Attribute>,
    reference: &Value,
    answer: Value,
    path: &AttributePath,
) -> Result<Value, CodecError> {
    let mut map = match answer {
        Value::Map(map) => map,
        Value::Null | Value::Unknown if !path.is_root() => return Ok(answer),
        _ => {
            return Err(CodecError::new(path, format!("the provider answered {} instead of an object", answer.kind())));
        }
    };
    let mut settled = BTreeMap::new();
    for (name, attribute) in attributes {
        let reference = reference.get(name);
        let value = match map.remove(name) {
            // whatever a resource echoes, it must not reach state
            _ if attribute.write_only => Value::Null,
            Some(value) => settle_attribute(attribute, reference, value, &path.clone().attribute(name))?,
            None => null_unknowns(reference.clone()),
        };
        settled.insert(name.clone(), value);
    }
    match map.into_keys().next() {
        Some(stray) => {
            Err(CodecError::new(path, format!("the provider answered {stray:?}, which its schema does not have")))
        }
        None => Ok(Value::Map(settled)),
    }
}

fn settle_attribute(
    attribute: &Attribute,
    reference: &Value,
    value: Value,
    path: &AttributePath,
) -> Result<Value, CodecError> {
    if let Value::Null | Value::Unknown = value {
        // "none" and "empty" are the same to most APIs, but not to Terraform
        return Ok(if value.is_null() && (is_empty(reference) || says_nothing(reference)) {
            reference.clone()
        } else {
            value
        });
    }
    if reference.is_null() && is_empty(&value) && attribute.mode == Mode::Optional {
        return Ok(Value::Null);
    }
    let value = match &attribute.kind {
        Kind::Value(kind) => with_nulls(kind, reference, conform(kind, value, path)?),
        Kind::Nested(nesting, inner) => nested(*nesting, inner, reference, value, path)?,
    };
    match attribute.semantic_eq {
        Some(same) if means_the_same(same, reference, &value) => Ok(reference.clone()),
        _ => Ok(value),
    }
}

/// Says whether it is a map in which each key is left out.
fn says_nothing(value: &Value) -> bool {
    value.as_map().is_some_and(|map| map.values().all(Value::is_null))
}

/// Adds to a map the keys that are null in the reference: an API has no place for them, and each plan would tell them as a difference.
fn with_nulls(kind: &Type, reference: &Value, value: Value) -> Value {
    match (kind, value, reference.as_map()) {
        (Type::Map(_), Value::Map(mut map), Some(reference)) => {
            let nulls = reference.iter().filter(|(_, value)| value.is_null());
            for (key, null) in nulls {
                map.entry(key.clone()).or_insert_with(|| null.clone());
            }
            Value::Map(map)
        }
        (_, value, _) => value,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        _ => false,
    }
}

fn nested(
    nesting: Nesting,
    attributes: &BTreeMap<String, Attribute>,
    reference: &Value,
    value: Value,
    path: &AttributePath,
) -> Result<Value, CodecError> {
    match (nesting, value) {
        (Nesting::Single, value) => object(attributes, reference, value, path),
        (Nesting::List, Value::List(list)) => {
            let settled = list.into_iter().enumerate().map(|(at, element)| {
                let reference = reference.as_list().get(at).unwrap_or(&Value::Null);
                object(attributes, reference, element, &path.clone().index(at))
            });
            settled.collect::<Result<_, _>>().map(Value::List)
        }
        (Nesting::Set, Value::List(list)) => {
            let settled = list.into_iter().map(|element| {
                let like = |reference: &&Value| {
                    object(attributes, reference, element.clone(), path).is_ok_and(|settled| settled == **reference)
                };
                let counterpart = reference.as_list().iter().find(like).unwrap_or(&Value::Null);
                object(attributes, counterpart, element.clone(), path)
            });
            Ok(Value::canonical_set(settled.collect::<Result<Vec<_>, _>>()?))
        }
        (Nesting::Map, Value::Map(map)) => {
            let settled = map.into_iter().map(|(key, element)| {
                let settled = object(attributes, reference.get(&key), element, &path.clone().key(&key))?;
                Ok((key, settled))
            });
            Ok(Value::Map(settled.collect::<Result<_, CodecError>>()?))
        }
        (_, other) => Err(CodecError::new(path, format!("the provider answered {} here", other.kind()))),
    }
}

/// Brings a value to its type's canonical form: sets in order, missing attributes of objects null.
fn conform(kind: &Type, value: Value, path: &AttributePath) -> Result<Value, CodecError> {
    match (kind, value) {
        (_, value @ (Value::Null | Value::Unknown))
        | (Type::Dynamic, value)
        | (Type::String, value @ Value::String(_))
        | (Type::Number, value @ Value::Number(_))
        | (Type::Bool, value @ Value::Bool(_)) => Ok(value),
        (Type::List(element), Value::List(list)) => {
            let elements =
                list.into_iter().enumerate().map(|(at, value)| conform(element, value, &path.clone().index(at)));
            elements.collect::<Result<_, _>>().map(Value::List)
        }
        (Type::Set(element), Value::List(list)) => {
            let elements = list.into_iter().map(|value| conform(element, value, path));
            Ok(Value::canonical_set(elements.collect::<Result<Vec<_>, _>>()?))
        }
        (Type::Tuple(kinds), Value::List(list)) if kinds.len() == list.len() => {
            let elements = kinds.iter().zip(list).map(|(kind, value)| conform(kind, value, path));
            elements.collect::<Result<_, _>>().map(Value::List)
        }
        (Type::Map(element), Value::Map(map)) => {
            let entries = map.into_iter().map(|(key, value)| {
                let value = conform(element, value, &path.clone().key(&key))?;
                Ok((key, value))
            });
            Ok(Value::Map(entries.collect::<Result<_, CodecError>>()?))
        }
        (Type::Object(attributes), Value::Map(mut map)) => {
            let entries = attributes.iter().map(|(name, kind)| {
                let value = map.remove(name).unwrap_or_default();
                Ok((name.clone(), conform(kind, value, &path.clone().attribute(name))?))
            });
            let settled = entries.collect::<Result<BTreeMap<_, _>, CodecError>>()?;
            match map.into_keys().next() {
                Some(stray) => Err(CodecError::new(
                    path,
                    format!("the provider answered {stray:?}, which its schema does not have"),
                )),
                None => Ok(Value::Map(settled)),
            }
        }
        (kind, value) => {
            let expected = crate::codec::name_of(kind);
            Err(CodecError::new(path, format!("the provider answered {} instead of {expected}", value.kind())))
        }
    }
}

/// The attributes whose promise the outcome of an apply does not keep.
pub(crate) fn broken_promises(schema: &Schema, planned: &Value, actual: &Value) -> Vec<AttributePath> {
    let kept = |promise: &Promise, value: &Value| match promise {
        Promise::NotNull => !value.is_null(),
        Promise::Prefix(prefix) => value.as_str().is_some_and(|text| text.starts_with(prefix.as_str())),
    };
    let attributes = schema.attributes.iter().filter(|(name, _)| !planned.get(name).is_known());
    let broken = attributes
        .filter(|(name, attribute)| attribute.promised().is_some_and(|promise| !kept(promise, actual.get(name))));
    broken.map(|(name, _)| AttributePath::root().attribute(name)).collect()
}

/// Turns unknown parts into null.
pub(crate) fn null_unknowns(value: Value) -> Value {
    match value {
        Value::Unknown => Value::Null,
        Value::List(list) => Value::List(list.into_iter().map(null_unknowns).collect()),
        Value::Map(map) => Value::Map(map.into_iter().map(|(name, value)| (name, null_unknowns(value))).collect()),
        known => known,
    }
}

/// The path of the first part that is unknown.
pub(crate) fn first_unknown(value: &Value) -> Option<AttributePath> {
    fn find(value: &Value, path: &AttributePath) -> Option<AttributePath> {
        match value {
            Value::Unknown => Some(path.clone()),
            Value::List(list) => list.iter().enumerate().find_map(|(at, value)| find(value, &path.clone().index(at))),
            Value::Map(map) => map.iter().find_map(|(name, value)| find(value, &path.clone().attribute(name))),
            _ => None,
        }
    }
    find(value, &AttributePath::root())
}

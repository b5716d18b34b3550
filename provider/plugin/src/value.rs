//! Terraform's values: what a configuration, a plan or a state holds, with null and unknown as values of their own.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::{AttributePath, Step};

/// A number. Construction through `From` is canonical: whole numbers are `Int` wherever they fit.
#[derive(Debug, Clone, PartialEq, PartialOrd)]
pub enum Number {
    /// A whole number.
    Int(i64),
    /// A finite fraction.
    Float(f64),
    /// Decimal text of a number that neither of the others holds exactly.
    Text(String),
}

impl Number {
    /// The number as a float, possibly rounded.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn as_f64(&self) -> f64 {
        match self {
            Self::Int(int) => *int as f64,
            Self::Float(float) => *float,
            Self::Text(text) => text.parse().unwrap_or(f64::NAN),
        }
    }

    /// The number as an integer, if it is one.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Int(int) => Some(*int),
            Self::Float(_) | Self::Text(_) => None,
        }
    }

    /// Reads decimal text, keeping the text where a machine number would round it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(int) = text.parse::<i64>() {
            return Some(Self::Int(int));
        }
        let float = text.parse::<f64>().ok().filter(|float| float.is_finite())?;
        let exact = float.to_string() == text.trim_end_matches('0').trim_end_matches('.')
            || float.to_string() == text
            || format!("{float:e}") == text.replacen("e+", "e", 1);
        Some(if exact { Self::from(float) } else { Self::Text(text.to_string()) })
    }
}

impl From<i64> for Number {
    fn from(int: i64) -> Self {
        Self::Int(int)
    }
}

impl From<f64> for Number {
    #[allow(clippy::cast_possible_truncation)]
    fn from(float: f64) -> Self {
        const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53: beyond it a float no longer tells neighbouring integers apart
        if float.fract() == 0.0 && float.abs() <= EXACT { Self::Int(float as i64) } else { Self::Float(float) }
    }
}

/// A value of any type. Sets are lists in canonical order; objects are maps. Which of them is meant, the schema says.
#[derive(Debug, Clone, Default, PartialEq, PartialOrd)]
pub enum Value {
    /// No value was given.
    #[default]
    Null,
    /// A value that only apply will tell.
    Unknown,
    /// A boolean.
    Bool(bool),
    /// A number.
    Number(Number),
    /// Text.
    String(String),
    /// A list, a tuple, or a set.
    List(Vec<Value>),
    /// A map or an object.
    Map(BTreeMap<String, Value>),
}

impl Value {
    /// Makes an object of attributes.
    pub fn object<K: Into<String>, V: Into<Value>>(attributes: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::Map(attributes.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }

    /// The attribute or element of that name; null when there is none.
    #[must_use]
    pub fn get(&self, name: &str) -> &Value {
        match self {
            Self::Map(map) => map.get(name).unwrap_or(&Self::Null),
            Self::Unknown => &Self::Unknown,
            _ => &Self::Null,
        }
    }

    /// The value at a path; null when the path leads nowhere, unknown below an unknown value.
    #[must_use]
    pub fn at(&self, path: &AttributePath) -> &Value {
        path.steps().iter().fold(self, |value, step| match (step, value) {
            (_, Self::Unknown) => &Self::Unknown,
            (Step::Attribute(name) | Step::Key(name), value) => value.get(name),
            (Step::Index(index), Self::List(list)) => list.get(*index).unwrap_or(&Self::Null),
            (Step::Element(element), Self::List(list)) => {
                list.iter().find(|candidate| *candidate == element.as_ref()).unwrap_or(&Self::Null)
            }
            _ => &Self::Null,
        })
    }

    /// Sets an attribute; a null value becomes an object first.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        if !matches!(self, Self::Map(_)) {
            *self = Self::Map(BTreeMap::new());
        }
        if let Self::Map(map) = self {
            map.insert(name.into(), value.into());
        }
    }

    /// Sets an attribute and gives the value back.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Says whether this is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Says whether this value itself is known (its elements may not be).
    #[must_use]
    pub fn is_known(&self) -> bool {
        !matches!(self, Self::Unknown)
    }

    /// Says whether nothing inside is unknown.
    #[must_use]
    pub fn whole_known(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::List(list) => list.iter().all(Self::whole_known),
            Self::Map(map) => map.values().all(Self::whole_known),
            _ => true,
        }
    }

    /// The text, if it is known text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// The boolean, if it is a known one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(bool) = self { Some(*bool) } else { None }
    }

    /// The whole number, if it is a known one.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        if let Self::Number(number) = self { number.as_i64() } else { None }
    }

    /// The number as a float, if it is a known one.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        if let Self::Number(number) = self { Some(number.as_f64()) } else { None }
    }

    /// The elements of a list or set; none for anything else.
    #[must_use]
    pub fn as_list(&self) -> &[Value] {
        if let Self::List(list) = self { list } else { &[] }
    }

    /// The elements of a map or object, if it is one.
    #[must_use]
    pub fn as_map(&self) -> Option<&BTreeMap<String, Value>> {
        if let Self::Map(map) = self { Some(map) } else { None }
    }

    /// Puts a set's elements into canonical order and drops known doubles, so that equal sets are equal values.
    #[must_use]
    pub fn canonical_set(elements: impl IntoIterator<Item = Value>) -> Self {
        let mut elements: Vec<Value> = elements.into_iter().collect();
        elements.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
        elements.dedup_by(|a, b| a == b && a.whole_known());
        Self::List(elements)
    }

    /// Names the kind of value in words for a message.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Unknown => "an unknown value",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }
}

impl From<bool> for Value {
    fn from(bool: bool) -> Self {
        Self::Bool(bool)
    }
}

impl From<i64> for Value {
    fn from(int: i64) -> Self {
        Self::Number(Number::Int(int))
    }
}

impl From<i32> for Value {
    fn from(int: i32) -> Self {
        Self::from(i64::from(int))
    }
}

impl From<f64> for Value {
    fn from(float: f64) -> Self {
        Self::Number(Number::from(float))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_string())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Self::String(text.clone())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(option: Option<T>) -> Self {
        option.map_or(Self::Null, Into::into)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(list: Vec<T>) -> Self {
        Self::List(list.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Value>> From<BTreeMap<String, T>> for Value {
    fn from(map: BTreeMap<String, T>) -> Self {
        Self::object(map)
    }
}

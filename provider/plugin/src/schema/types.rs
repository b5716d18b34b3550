//! The types of Terraform's language.

use std::collections::BTreeMap;

/// A type of Terraform's language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// Text.
    String,
    /// A number.
    Number,
    /// A boolean.
    Bool,
    /// Any type, told beside the value.
    Dynamic,
    /// An ordered list of one type.
    List(Box<Type>),
    /// An unordered collection of distinct values of one type.
    Set(Box<Type>),
    /// Values of one type by name.
    Map(Box<Type>),
    /// Named values, each of its own type.
    Object(BTreeMap<String, Type>),
    /// Positioned values, each of its own type.
    Tuple(Vec<Type>),
}

impl Type {
    /// A list of that type.
    #[must_use]
    pub fn list(element: Type) -> Self {
        Self::List(Box::new(element))
    }

    /// A set of that type.
    #[must_use]
    pub fn set(element: Type) -> Self {
        Self::Set(Box::new(element))
    }

    /// A map of that type.
    #[must_use]
    pub fn map(element: Type) -> Self {
        Self::Map(Box::new(element))
    }

    /// An object with these attributes.
    #[must_use]
    pub fn object<K: Into<String>>(attributes: impl IntoIterator<Item = (K, Type)>) -> Self {
        Self::Object(attributes.into_iter().map(|(name, kind)| (name.into(), kind)).collect())
    }
}

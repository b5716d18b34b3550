//! One attribute of a schema and the rules that the plan engine applies to it.

use std::collections::BTreeMap;
use std::fmt;

use crate::Value;
use crate::schema::{Type, Validator};

/// Who may set the attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The user must.
    Required,
    /// The user may.
    Optional,
    /// The user may; otherwise the provider does.
    OptionalComputed,
    /// Only the provider does.
    Computed,
}

/// How nested attributes repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nesting {
    /// One object.
    Single,
    /// A list of objects.
    List,
    /// A set of objects.
    Set,
    /// Objects by name.
    Map,
}

/// The shape of an attribute's value.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A value of one type.
    Value(Type),
    /// Objects whose attributes have rules of their own.
    Nested(Nesting, BTreeMap<String, Attribute>),
}

/// What a change of the attribute means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnChange {
    /// Update in place.
    Update,
    /// Destroy and create again.
    Replace,
}

/// What is promised of a computed value while it is unknown, so that expressions over it can be decided at plan already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Promise {
    /// It will not be null.
    NotNull,
    /// It will be text that begins so; this implies that it is not null.
    Prefix(String),
}

/// Tells whether two known values mean the same; given (prior, planned).
pub type SemanticEq = fn(&Value, &Value) -> bool;

/// One attribute: its type, who sets it, and its rules. Optional unless said otherwise.
#[derive(Clone)]
pub struct Attribute {
    /// The shape of the value.
    pub kind: Kind,
    /// Who may set it.
    pub mode: Mode,
    /// Markdown text for documentation.
    pub description: String,
    /// Hidden in output.
    pub sensitive: bool,
    /// Shown with a warning when set: what to use instead.
    pub deprecated: Option<String>,
    /// The value when the user gives none.
    pub default: Option<Value>,
    /// What a change means.
    pub on_change: OnChange,
    /// A computed value keeps its prior value in an update instead of becoming unknown.
    pub keeps_state: bool,
    /// Spellings that mean the same.
    pub semantic_eq: Option<SemanticEq>,
    /// Checks of a known value.
    pub validators: Vec<Validator>,
    /// The value reaches create and update but neither plan nor state.
    pub write_only: bool,
    /// What is promised of the value while it is unknown.
    pub promise: Option<Promise>,
    says_optional: bool,
}

impl Attribute {
    /// Text.
    #[must_use]
    pub fn string() -> Self {
        Self::of(Type::String)
    }

    /// A number.
    #[must_use]
    pub fn number() -> Self {
        Self::of(Type::Number)
    }

    /// A boolean.
    #[must_use]
    pub fn bool() -> Self {
        Self::of(Type::Bool)
    }

    /// A list of a type.
    #[must_use]
    pub fn list(element: Type) -> Self {
        Self::of(Type::list(element))
    }

    /// A set of a type.
    #[must_use]
    pub fn set(element: Type) -> Self {
        Self::of(Type::set(element))
    }

    /// A map of a type.
    #[must_use]
    pub fn map(element: Type) -> Self {
        Self::of(Type::map(element))
    }

    /// An object whose attributes must all be written; prefer `nested_single`.
    #[must_use]
    pub fn object<K: Into<String>>(attributes: impl IntoIterator<Item = (K, Type)>) -> Self {
        Self::of(Type::object(attributes))
    }

    /// One object with rules for each attribute.
    #[must_use]
    pub fn nested_single<K: Into<String>>(attributes: impl IntoIterator<Item = (K, Attribute)>) -> Self {
        Self::nested(Nesting::Single, attributes)
    }

    /// A list of objects with rules for each attribute.
    #[must_use]
    pub fn nested_list<K: Into<String>>(attributes: impl IntoIterator<Item = (K, Attribute)>) -> Self {
        Self::nested(Nesting::List, attributes)
    }

    /// A set of objects with rules for each attribute. Computed attributes do not work well in sets: prefer lists or maps.
    #[must_use]
    pub fn nested_set<K: Into<String>>(attributes: impl IntoIterator<Item = (K, Attribute)>) -> Self {
        Self::nested(Nesting::Set, attributes)
    }

    /// Objects by name with rules for each attribute.
    #[must_use]
    pub fn nested_map<K: Into<String>>(attributes: impl IntoIterator<Item = (K, Attribute)>) -> Self {
        Self::nested(Nesting::Map, attributes)
    }

    /// A value of any type.
    #[must_use]
    pub fn of(kind: Type) -> Self {
        Self::from_kind(Kind::Value(kind))
    }

    fn nested<K: Into<String>>(nesting: Nesting, attributes: impl IntoIterator<Item = (K, Attribute)>) -> Self {
        let attributes = attributes.into_iter().map(|(name, attribute)| (name.into(), attribute)).collect();
        Self::from_kind(Kind::Nested(nesting, attributes))
    }

    fn from_kind(kind: Kind) -> Self {
        Self {
            kind,
            mode: Mode::Optional,
            description: String::new(),
            sensitive: false,
            deprecated: None,
            default: None,
            on_change: OnChange::Update,
            keeps_state: false,
            semantic_eq: None,
            validators: Vec::new(),
            write_only: false,
            promise: None,
            says_optional: false,
        }
    }

    /// The user must set it.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.mode = Mode::Required;
        self.says_optional = false;
        self
    }

    /// The user may set it; with `computed`, the provider fills it otherwise.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.mode = if self.mode == Mode::Computed { Mode::OptionalComputed } else { Mode::Optional };
        self.says_optional = true;
        self
    }

    /// The provider sets it; with `optional`, only when the user does not.
    #[must_use]
    pub fn computed(mut self) -> Self {
        self.mode = if self.says_optional { Mode::OptionalComputed } else { Mode::Computed };
        self
    }

    /// Hides the value in output.
    #[must_use]
    pub fn sensitive(mut self) -> Self {
        self.sensitive = true;
        self
    }

    /// Marks it as deprecated; the text says what to use instead.
    #[must_use]
    pub fn deprecated(mut self, instead: impl Into<String>) -> Self {
        self.deprecated = Some(instead.into());
        self
    }

    /// Gives the value that holds when the user sets none; core must see the attribute as computed, so it becomes so.
    #[must_use]
    pub fn default(mut self, value: impl Into<Value>) -> Self {
        self.default = Some(value.into());
        self.mode = Mode::OptionalComputed;
        self
    }

    /// A change destroys the resource and creates it again.
    #[must_use]
    pub fn requires_replace(mut self) -> Self {
        self.on_change = OnChange::Replace;
        self
    }

    /// A computed value keeps its prior value in an update; right for identifiers and ARNs.
    #[must_use]
    pub fn use_state_for_unknown(mut self) -> Self {
        self.keeps_state = true;
        self
    }

    /// Tells spellings that mean the same: the prior one then stays, and no difference shows.
    #[must_use]
    pub fn semantic_eq(mut self, same: SemanticEq) -> Self {
        self.semantic_eq = Some(same);
        self
    }

    /// Keeps the value out of plan and state: `Context::config` gives it to create and update. It is never computed, and a change of it
    /// alone shows no difference, so a resource declares a version beside it (`password` and `password_version`).
    #[must_use]
    pub fn write_only(mut self) -> Self {
        self.write_only = true;
        self
    }

    /// Promises that the computed value will not be null.
    #[must_use]
    pub fn never_null(mut self) -> Self {
        self.promise.get_or_insert(Promise::NotNull);
        self
    }

    /// Promises that the computed text will begin so.
    #[must_use]
    pub fn begins_with(mut self, prefix: impl Into<String>) -> Self {
        self.promise = Some(Promise::Prefix(prefix.into()));
        self
    }

    /// Adds a check of the value; it runs only when the value is set and wholly known.
    #[must_use]
    pub fn validate(mut self, validator: Validator) -> Self {
        self.validators.push(validator);
        self
    }

    /// Sets the documentation.
    #[must_use]
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// The type of the value, nested attributes included.
    #[must_use]
    pub fn value_type(&self) -> Type {
        match &self.kind {
            Kind::Value(kind) => kind.clone(),
            Kind::Nested(nesting, attributes) => {
                let object = object_type(attributes);
                match nesting {
                    Nesting::Single => object,
                    Nesting::List => Type::list(object),
                    Nesting::Set => Type::set(object),
                    Nesting::Map => Type::map(object),
                }
            }
        }
    }

    /// What is promised of it while it is unknown; nothing where the user may set it, who promises nothing.
    #[must_use]
    pub fn promised(&self) -> Option<&Promise> {
        self.promise.as_ref().filter(|_| self.mode == Mode::Computed)
    }

    /// Says whether the provider may fill it.
    #[must_use]
    pub fn is_computed(&self) -> bool {
        matches!(self.mode, Mode::Computed | Mode::OptionalComputed)
    }
}

/// The object type of these attributes.
#[must_use]
pub fn object_type(attributes: &BTreeMap<String, Attribute>) -> Type {
    Type::Object(attributes.iter().map(|(name, attribute)| (name.clone(), attribute.value_type())).collect())
}

impl fmt::Debug for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attribute").field("kind", &self.kind).field("mode", &self.mode).finish_non_exhaustive()
    }
}

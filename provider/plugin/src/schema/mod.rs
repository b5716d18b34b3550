//! A resource's schema as data: types, and per attribute the defaults, validators and plan rules that the plan engine applies.

mod attribute;
mod identity;
mod types;
pub mod validate;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::context::humane;

pub use attribute::{Attribute, Kind, Mode, Nesting, OnChange, Promise, SemanticEq, object_type};
pub use identity::{Identity, IdentityAttribute};
pub use types::Type;
pub use validate::Validator;

/// A rule over several top-level attributes, checked when all of them are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// At most one of them may be set.
    Conflicts(Vec<String>),
    /// Exactly one of them must be set.
    ExactlyOne(Vec<String>),
    /// At least one of them must be set.
    AtLeastOne(Vec<String>),
    /// All of them are set, or none.
    Together(Vec<String>),
}

/// How long each operation may take unless the user says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Limit of create.
    pub create: Duration,
    /// Limit of read.
    pub read: Duration,
    /// Limit of update.
    pub update: Duration,
    /// Limit of delete.
    pub delete: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        Self { create: minutes(5), read: minutes(2), update: minutes(5), delete: minutes(5) }
    }
}

/// The schema of a provider, resource or data source.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    /// The version of the state's shape; raise it together with an upgrade.
    pub version: i64,
    /// Markdown text for documentation.
    pub description: String,
    /// The attributes by name.
    pub attributes: BTreeMap<String, Attribute>,
    /// Rules over several attributes.
    pub rules: Vec<Rule>,
    /// The default limits of operations.
    pub timeouts: Timeouts,
    /// What names one object for ever; resources only.
    pub identity: Option<Identity>,
}

impl Schema {
    /// Makes an empty schema with its documentation.
    pub fn new(description: impl Into<String>) -> Self {
        Self { description: description.into(), ..Self::default() }
    }

    /// Sets the version of the state's shape.
    #[must_use]
    pub fn version(mut self, version: i64) -> Self {
        self.version = version;
        self
    }

    /// Adds an attribute.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, attribute: Attribute) -> Self {
        self.attributes.insert(name.into(), attribute);
        self
    }

    /// Declares what names one object for ever.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Allows at most one of these attributes.
    #[must_use]
    pub fn conflicts<const N: usize>(self, names: [&str; N]) -> Self {
        self.rule(Rule::Conflicts(names.map(String::from).to_vec()))
    }

    /// Demands exactly one of these attributes.
    #[must_use]
    pub fn exactly_one_of<const N: usize>(self, names: [&str; N]) -> Self {
        self.rule(Rule::ExactlyOne(names.map(String::from).to_vec()))
    }

    /// Demands at least one of these attributes.
    #[must_use]
    pub fn at_least_one_of<const N: usize>(self, names: [&str; N]) -> Self {
        self.rule(Rule::AtLeastOne(names.map(String::from).to_vec()))
    }

    /// Demands all of these attributes or none.
    #[must_use]
    pub fn required_together<const N: usize>(self, names: [&str; N]) -> Self {
        self.rule(Rule::Together(names.map(String::from).to_vec()))
    }

    /// Adds the attribute `timeouts = { create, read, update, delete }` with these defaults; `Context::limit` answers from it.
    #[must_use]
    pub fn timeouts(mut self, defaults: Timeouts) -> Self {
        self.timeouts = defaults;
        let limit = |(operation, default): (&'static str, Duration)| {
            let default = humane(default);
            let attribute = Attribute::string().optional().validate(validate::limit());
            let text = format!("How long {operation} may take, such as `90s` or `20m`; `{default}` when left out.");
            (operation, attribute.describe(text))
        };
        let Timeouts { create, read, update, delete } = defaults;
        let limits = [("create", create), ("read", read), ("update", update), ("delete", delete)];
        let attributes = limits.map(limit);
        let timeouts = Attribute::nested_single(attributes).optional().describe("Limits of the operations.");
        self.attribute("timeouts", timeouts)
    }

    /// The object type of a value of this schema.
    #[must_use]
    pub fn value_type(&self) -> Type {
        object_type(&self.attributes)
    }

    fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }
}

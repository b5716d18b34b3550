//! Where a value stands inside a configuration: the steps that Terraform shows with a diagnostic.

use std::fmt;

use crate::Value;

/// One step from a value to a value inside it.
#[derive(Debug, Clone, PartialEq, PartialOrd)]
pub enum Step {
    /// An attribute of an object, or of the resource itself.
    Attribute(String),
    /// An element of a map.
    Key(String),
    /// An element of a list, counted from zero.
    Index(usize),
    /// An element of a set, named by its value.
    Element(Box<Value>),
}

/// The way from the resource's root to an attribute; the empty path is the resource itself.
#[derive(Debug, Clone, Default, PartialEq, PartialOrd)]
pub struct AttributePath(Vec<Step>);

impl AttributePath {
    /// The path of the resource itself.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// Makes a path from dotted text: names are attributes, numbers are list indices (`template.requirements.0.key`).
    #[must_use]
    pub fn parse(dotted: &str) -> Self {
        let step = |part: &str| part.parse::<usize>().map_or_else(|_| Step::Attribute(part.to_string()), Step::Index);
        Self(dotted.split('.').filter(|part| !part.is_empty()).map(step).collect())
    }

    /// Appends an attribute's name.
    #[must_use]
    pub fn attribute(self, name: impl Into<String>) -> Self {
        self.step(Step::Attribute(name.into()))
    }

    /// Appends a map's key.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        self.step(Step::Key(key.into()))
    }

    /// Appends a list's index.
    #[must_use]
    pub fn index(self, index: usize) -> Self {
        self.step(Step::Index(index))
    }

    /// Appends a set's element.
    #[must_use]
    pub fn element(self, element: Value) -> Self {
        self.step(Step::Element(Box::new(element)))
    }

    /// Appends one step.
    #[must_use]
    pub fn step(mut self, step: Step) -> Self {
        self.0.push(step);
        self
    }

    /// The steps from the root on.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Says whether this is the path of the resource itself.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for AttributePath {
    fn from(dotted: &str) -> Self {
        Self::parse(dotted)
    }
}

impl fmt::Display for AttributePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Attribute(name) if position == 0 => write!(f, "{name}")?,
                Step::Attribute(name) => write!(f, ".{name}")?,
                Step::Key(key) => write!(f, "[{key:?}]")?,
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Element(_) => write!(f, "[*]")?,
            }
        }
        Ok(())
    }
}

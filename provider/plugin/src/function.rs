//! Functions that expressions may call: `provider::karp::quantity("1500m")`. Pure and offline.

use std::fmt;

use crate::{AttributePath, Diagnostics, Type, Value};

/// What a function takes and gives, with its documentation.
#[derive(Debug, Clone)]
pub struct Signature {
    /// One short line.
    pub summary: String,
    /// Markdown text.
    pub description: String,
    /// The arguments in order.
    pub parameters: Vec<Parameter>,
    /// Any number of further arguments.
    pub variadic: Option<Parameter>,
    /// The type of the answer.
    pub returns: Type,
}

/// One argument of a function.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// Its name in documentation and errors.
    pub name: String,
    /// Its type; [`Type::Dynamic`] takes objects whose attributes may be left out.
    pub kind: Type,
    /// Markdown text.
    pub description: String,
    /// Null may be given.
    pub nullable: bool,
}

impl Signature {
    /// Starts a signature with its answer's type and one line on what it does.
    pub fn new(returns: Type, summary: impl Into<String>) -> Self {
        let summary = summary.into();
        Self { description: summary.clone(), summary, parameters: Vec::new(), variadic: None, returns }
    }

    /// Sets the documentation beyond the summary.
    #[must_use]
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Adds an argument that may not be null.
    #[must_use]
    pub fn parameter(mut self, name: impl Into<String>, kind: Type, description: impl Into<String>) -> Self {
        self.parameters.push(Parameter::new(name, kind, description));
        self
    }

    /// Adds an argument that may be null.
    #[must_use]
    pub fn nullable(mut self, name: impl Into<String>, kind: Type, description: impl Into<String>) -> Self {
        self.parameters.push(Parameter { nullable: true, ..Parameter::new(name, kind, description) });
        self
    }

    /// Allows any number of further arguments.
    #[must_use]
    pub fn variadic(mut self, name: impl Into<String>, kind: Type, description: impl Into<String>) -> Self {
        self.variadic = Some(Parameter { nullable: true, ..Parameter::new(name, kind, description) });
        self
    }
}

impl Parameter {
    fn new(name: impl Into<String>, kind: Type, description: impl Into<String>) -> Self {
        Self { name: name.into(), kind, description: description.into(), nullable: false }
    }
}

/// Why a call failed; core shows it at the argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionError {
    /// What is wrong and how to mend it.
    pub text: String,
    /// The argument at fault, counted from zero.
    pub argument: Option<usize>,
}

impl FunctionError {
    /// Makes an error of the call as a whole.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), argument: None }
    }

    /// Points at an argument, counted from zero.
    #[must_use]
    pub fn argument(mut self, argument: usize) -> Self {
        self.argument = Some(argument);
        self
    }

    /// Says where inside an argument the fault lies.
    #[must_use]
    pub fn inside(mut self, path: &AttributePath) -> Self {
        if !path.is_root() {
            self.text = format!("{path}: {}", self.text);
        }
        self
    }
}

impl From<Diagnostics> for FunctionError {
    fn from(diagnostics: Diagnostics) -> Self {
        let lines = diagnostics.iter().map(|one| match (one.path.is_root(), one.detail.is_empty()) {
            (true, true) => one.summary.clone(),
            (true, false) => format!("{}: {}", one.summary, one.detail),
            (false, true) => format!("{}: {}", one.path, one.summary),
            (false, false) => format!("{}: {}: {}", one.path, one.summary, one.detail),
        });
        Self::new(lines.collect::<Vec<_>>().join("\n"))
    }
}

impl fmt::Display for FunctionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.argument {
            Some(argument) => write!(f, "argument {}: {}", argument + 1, self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl std::error::Error for FunctionError {}

/// A function of the provider.
pub trait Function: Send + Sync {
    /// The name after `provider::NAME::`.
    fn name(&self) -> &'static str;

    /// What it takes and gives.
    fn signature(&self) -> Signature;

    /// Computes the answer. Pure: no I/O. Every argument is wholly known; those of the variadic parameter follow the others.
    ///
    /// # Errors
    /// What is wrong with which argument.
    fn call(&self, arguments: &[Value]) -> Result<Value, FunctionError>;
}

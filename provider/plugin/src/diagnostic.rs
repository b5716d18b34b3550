//! What Terraform shows to the user: errors and warnings, each at an attribute.

use std::fmt;

use crate::AttributePath;

/// How much a diagnostic weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The operation failed.
    Error,
    /// The operation goes on; the user should know.
    Warning,
}

/// One message to the user. The summary is short; the detail says what, why and what to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// One short line.
    pub summary: String,
    /// What happened, why, and what to do next.
    pub detail: String,
    /// The attribute that it concerns; the root for the whole resource.
    pub path: AttributePath,
}

impl Diagnostic {
    /// Makes an error that concerns the whole resource.
    pub fn error(summary: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { severity: Severity::Error, summary: summary.into(), detail: detail.into(), path: AttributePath::root() }
    }

    /// Makes a warning that concerns the whole resource.
    pub fn warning(summary: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(summary, detail) }
    }

    /// Points the diagnostic at an attribute.
    #[must_use]
    pub fn at(mut self, path: impl Into<AttributePath>) -> Self {
        self.path = path.into();
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{kind}: {}", self.summary)?;
        if !self.path.is_root() {
            write!(f, " (at {})", self.path)?;
        }
        if self.detail.is_empty() { Ok(()) } else { write!(f, ": {}", self.detail) }
    }
}

/// An ordered list of diagnostics; also the error type of every operation of a resource, so `?` works on anything
/// that converts into it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// Makes an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a diagnostic.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.0.push(diagnostic);
    }

    /// Appends an error at an attribute; an empty path is the whole resource.
    pub fn error(&mut self, path: impl Into<AttributePath>, summary: impl Into<String>, detail: impl Into<String>) {
        self.push(Diagnostic::error(summary, detail).at(path));
    }

    /// Appends a warning at an attribute; an empty path is the whole resource.
    pub fn warning(&mut self, path: impl Into<AttributePath>, summary: impl Into<String>, detail: impl Into<String>) {
        self.push(Diagnostic::warning(summary, detail).at(path));
    }

    /// Appends all of another list.
    pub fn extend(&mut self, other: impl IntoIterator<Item = Diagnostic>) {
        self.0.extend(other);
    }

    /// Says whether an error is among them.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// Says whether there are none at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Goes through them in order.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.0.iter()
    }
}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl FromIterator<Diagnostic> for Diagnostics {
    fn from_iter<I: IntoIterator<Item = Diagnostic>>(diagnostics: I) -> Self {
        Self(diagnostics.into_iter().collect())
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Self {
        Self(vec![diagnostic])
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, diagnostic) in self.0.iter().enumerate() {
            if position > 0 {
                writeln!(f)?;
            }
            write!(f, "{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

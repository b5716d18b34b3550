//! One label's requirement.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value_set::{Bounds, Value, ValueSet};
use crate::api::labels;

/// The operators of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
    Gte,
    Lte,
}

/// What one label must be: a set of values, and whether the label may be missing. In canonical form: a finite set carries no bounds,
/// exclusions lie within the bounds, impossible bounds are the empty set, and what may be missing is a set of exclusions or empty; so
/// equal requirements compare equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    key: Arc<str>,
    values: ValueSet,
    bounds: Bounds,
    presence: Presence,
    min_values: Option<u32>,
}

/// Whether a node without the label will do. `NotIn` and `DoesNotExist` alone leave it open; together with any other operator on the same
/// key the label must be there, as for kube-scheduler, which asks each expression by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Presence {
    Open,
    Required,
}

/// Says why an API requirement cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRequirementError {
    #[error("requirement {key}: unknown operator {operator:?}")]
    Operator { key: String, operator: String },
    #[error("requirement {key}: operator {operator} needs one whole number, got {values:?}")]
    Number { key: String, operator: Operator, values: Vec<String> },
    #[error("requirement {key}: operator {operator} needs at least one value")]
    NoValues { key: String, operator: Operator },
}

impl Requirement {
    /// Reads a requirement in the API's words; the key is normalised. `NotIn` without values reads as `Exists`, as in Karpenter.
    pub fn new(key: &str, operator: Operator, values: &[impl AsRef<str>]) -> Result<Self, ParseRequirementError> {
        let texts = || values.iter().map(AsRef::as_ref);
        let number = || match values {
            [one] => one.as_ref().parse::<i64>().ok(),
            _ => None,
        };
        let bounded = |bounds: fn(i64) -> Option<Bounds>| match number() {
            // beyond the largest number there is none
            Some(number) => Ok(bounds(number).map_or_else(
                || Self::canonical(key, ValueSet::none(), Bounds::NONE, Presence::Required),
                |bounds| Self::canonical(key, ValueSet::any(), bounds, Presence::Required),
            )),
            None => {
                let values = texts().map(str::to_owned).collect();
                Err(ParseRequirementError::Number { key: key.to_owned(), operator, values })
            }
        };
        match operator {
            Operator::In if values.is_empty() => Err(ParseRequirementError::NoValues { key: key.to_owned(), operator }),
            Operator::In => Ok(Self::only(key, texts())),
            Operator::NotIn => Ok(Self::except(key, texts())),
            Operator::Exists => Ok(Self::exists(key)),
            Operator::DoesNotExist => Ok(Self::absent(key)),
            Operator::Gt => bounded(|n| Some(Bounds { gte: Some(n.checked_add(1)?), lte: None })),
            Operator::Gte => bounded(|n| Some(Bounds { gte: Some(n), lte: None })),
            Operator::Lt => bounded(|n| Some(Bounds { gte: None, lte: Some(n.checked_sub(1)?) })),
            Operator::Lte => bounded(|n| Some(Bounds { gte: None, lte: Some(n) })),
        }
    }

    /// Returns `key In values`; no value means that the label must not exist.
    pub fn only<V: Into<Value>>(key: &str, values: impl IntoIterator<Item = V>) -> Self {
        let values = ValueSet::only(values);
        let presence = if values.is_empty() { Presence::Open } else { Presence::Required };
        Self::canonical(key, values, Bounds::NONE, presence)
    }

    /// Returns `key NotIn values`; no value means that the label must exist.
    pub fn except<V: Into<Value>>(key: &str, values: impl IntoIterator<Item = V>) -> Self {
        let values = ValueSet::except(values);
        let presence = if values == ValueSet::any() { Presence::Required } else { Presence::Open };
        Self::canonical(key, values, Bounds::NONE, presence)
    }

    /// Returns `key Exists`.
    #[must_use]
    pub fn exists(key: &str) -> Self {
        Self::canonical(key, ValueSet::any(), Bounds::NONE, Presence::Required)
    }

    /// Returns `key DoesNotExist`.
    #[must_use]
    pub fn absent(key: &str) -> Self {
        Self::canonical(key, ValueSet::none(), Bounds::NONE, Presence::Open)
    }

    /// Returns the same requirement with a least number of values that must stay possible.
    #[must_use]
    pub fn with_min_values(mut self, min_values: Option<u32>) -> Self {
        self.min_values = min_values;
        self
    }

    fn canonical(key: &str, values: ValueSet, bounds: Bounds, presence: Presence) -> Self {
        let key: Arc<str> = match labels::normalise(key) {
            Cow::Borrowed(key) => key.into(),
            Cow::Owned(key) => key.into(),
        };
        Self::assemble(key, values, bounds, presence, None)
    }

    fn assemble(key: Arc<str>, values: ValueSet, bounds: Bounds, presence: Presence, min_values: Option<u32>) -> Self {
        let (values, bounds) = match values {
            _ if bounds.is_empty() => (ValueSet::none(), Bounds::NONE),
            ValueSet::Only(mut only) => {
                if !bounds.is_none() {
                    only.retain(|value| bounds.admit(value));
                }
                (ValueSet::Only(only), Bounds::NONE)
            }
            ValueSet::Except(mut except) => {
                if !bounds.is_none() {
                    except.retain(|value| bounds.admit(value));
                }
                (ValueSet::Except(except), bounds)
            }
        };
        Self { key, values, bounds, presence, min_values }
    }

    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the key without copying it.
    #[must_use]
    pub fn shared_key(&self) -> Arc<str> {
        Arc::clone(&self.key)
    }

    #[must_use]
    pub const fn values(&self) -> &ValueSet {
        &self.values
    }

    #[must_use]
    pub const fn bounds(&self) -> Bounds {
        self.bounds
    }

    #[must_use]
    pub const fn min_values(&self) -> Option<u32> {
        self.min_values
    }

    /// Returns whether a label with this value satisfies the requirement.
    #[must_use]
    pub fn admits(&self, value: &str) -> bool {
        self.values.contains(value) && self.bounds.admit(value)
    }

    /// Returns whether no value is possible: the label must not exist, or nothing will do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns whether nothing satisfies the requirement, neither a value nor absence: its parts contradict each other.
    #[must_use]
    pub fn is_impossible(&self) -> bool {
        self.values.is_empty() && self.presence == Presence::Required
    }

    /// Returns whether a node without the label satisfies the requirement, by the rule of node affinity.
    #[must_use]
    pub fn admits_absence(&self) -> bool {
        self.presence == Presence::Open
    }

    /// Returns the operator in whose words the values read best; bounds read as `Exists`, as in Karpenter.
    #[must_use]
    pub fn operator(&self) -> Operator {
        match &self.values {
            ValueSet::Only(values) if values.is_empty() => Operator::DoesNotExist,
            ValueSet::Only(_) => Operator::In,
            ValueSet::Except(values) if values.is_empty() => Operator::Exists,
            ValueSet::Except(_) => Operator::NotIn,
        }
    }

    /// Returns what satisfies both; both must be of one key.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        debug_assert_eq!(self.key, other.key, "requirements of two keys have no intersection");
        Self::assemble(
            Arc::clone(&self.key),
            self.values.intersection(&other.values),
            self.bounds.intersection(&other.bounds),
            self.presence.max(other.presence),
            self.min_values.max(other.min_values),
        )
    }

    /// Returns whether both can hold at once, by a value or by absence, without building the intersection.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        self.admits_absence() && other.admits_absence() || self.intersects(other)
    }

    /// Returns whether whatever satisfies this satisfies the other too; both must be of one key. How many values must stay possible is not asked.
    #[must_use]
    pub fn is_within(&self, wider: &Self) -> bool {
        if self.is_impossible() {
            return true;
        }
        if self.admits_absence() && !wider.admits_absence() {
            return false;
        }
        match (&self.values, &wider.values) {
            (ValueSet::Only(own), _) => own.iter().all(|value| wider.admits(value)),
            // of each number there are any spellings
            (ValueSet::Except(_), ValueSet::Only(_)) => false,
            (ValueSet::Except(_), ValueSet::Except(theirs)) => {
                self.bounds.is_within(&wider.bounds) && !theirs.iter().any(|value| self.admits(value))
            }
        }
    }

    /// Returns whether a value satisfies both, without building the intersection.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        let bounds = self.bounds.intersection(&other.bounds);
        if bounds.is_none() {
            return self.values.intersects(&other.values);
        }
        if bounds.is_empty() {
            return false;
        }
        match (&self.values, &other.values) {
            (ValueSet::Except(_), ValueSet::Except(_)) => true,
            (ValueSet::Only(only), rest) | (rest, ValueSet::Only(only)) => {
                only.iter().any(|value| bounds.admit(value) && rest.contains(value))
            }
        }
    }

    /// Returns the single value that is possible, if there is just one.
    #[must_use]
    pub fn single(&self) -> Option<&Value> {
        match &self.values {
            ValueSet::Only(values) if values.len() == 1 => values.first(),
            _ => None,
        }
    }

    /// Returns the requirement in the API's words: one entry for the values, one for each bound, and `Exists` where these alone would let
    /// the label be missing.
    #[must_use]
    pub fn to_api(&self) -> Vec<(Operator, Vec<String>)> {
        let texts = |values: &BTreeSet<Value>| values.iter().map(ToString::to_string).collect::<Vec<_>>();
        let must_exist = self.presence == Presence::Required && self.bounds.is_none();
        let mut entries = Vec::new();
        match &self.values {
            ValueSet::Only(values) if !values.is_empty() => return vec![(Operator::In, texts(values))],
            ValueSet::Only(_) => entries.push((Operator::DoesNotExist, Vec::new())),
            ValueSet::Except(values) if !values.is_empty() => entries.push((Operator::NotIn, texts(values))),
            ValueSet::Except(_) => {}
        }
        entries.extend(must_exist.then(|| (Operator::Exists, Vec::new())));
        entries.extend(self.bounds.gte.map(|low| (Operator::Gte, vec![low.to_string()])));
        entries.extend(self.bounds.lte.map(|high| (Operator::Lte, vec![high.to_string()])));
        entries
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self:?}")
    }
}

impl std::str::FromStr for Operator {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            "Gt" => Self::Gt,
            "Lt" => Self::Lt,
            "Gte" => Self::Gte,
            "Lte" => Self::Lte,
            other => return Err(other.to_owned()),
        })
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (operator, values)) in self.to_api().into_iter().enumerate() {
            if index > 0 {
                formatter.write_str(" and ")?;
            }
            write!(formatter, "{} {operator}", self.key)?;
            if !values.is_empty() {
                write!(formatter, " [{}]", values.join(" "))?;
            }
        }
        Ok(())
    }
}

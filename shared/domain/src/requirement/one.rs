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

/// What one label must be. In canonical form: a finite set carries no bounds, exclusions lie within the bounds, and impossible bounds are
/// the empty set; so equal requirements compare equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    key: Arc<str>,
    values: ValueSet,
    bounds: Bounds,
    min_values: Option<u32>,
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
    /// Reads a requirement in the API's words; the key is normalised.
    pub fn new(key: &str, operator: Operator, values: &[impl AsRef<str>]) -> Result<Self, ParseRequirementError> {
        let set = || values.iter().map(|value| Value::from(value.as_ref())).collect::<BTreeSet<_>>();
        let number = || match values {
            [one] => one.as_ref().parse::<i64>().ok(),
            _ => None,
        };
        let bounded = |gte: Option<i64>, lte: Option<i64>| {
            if gte.is_none() && lte.is_none() {
                let values = values.iter().map(|value| value.as_ref().to_owned()).collect();
                return Err(ParseRequirementError::Number { key: key.to_owned(), operator, values });
            }
            Ok(Self::canonical(key, ValueSet::any(), Bounds { gte, lte }, None))
        };
        match operator {
            Operator::In if values.is_empty() => Err(ParseRequirementError::NoValues { key: key.to_owned(), operator }),
            Operator::In => Ok(Self::canonical(key, ValueSet::Only(set()), Bounds::NONE, None)),
            Operator::NotIn => Ok(Self::canonical(key, ValueSet::Except(set()), Bounds::NONE, None)),
            Operator::Exists => Ok(Self::exists(key)),
            Operator::DoesNotExist => Ok(Self::canonical(key, ValueSet::none(), Bounds::NONE, None)),
            Operator::Gt => bounded(number().map(|n| n.saturating_add(1)), None),
            Operator::Gte => bounded(number(), None),
            Operator::Lt => bounded(None, number().map(|n| n.saturating_sub(1))),
            Operator::Lte => bounded(None, number()),
        }
    }

    /// Returns `key In values`; no value means that the label must not exist.
    pub fn only<V: Into<Value>>(key: &str, values: impl IntoIterator<Item = V>) -> Self {
        Self::canonical(key, ValueSet::only(values), Bounds::NONE, None)
    }

    /// Returns `key NotIn values`.
    pub fn except<V: Into<Value>>(key: &str, values: impl IntoIterator<Item = V>) -> Self {
        Self::canonical(key, ValueSet::except(values), Bounds::NONE, None)
    }

    /// Returns `key Exists`.
    #[must_use]
    pub fn exists(key: &str) -> Self {
        Self::canonical(key, ValueSet::any(), Bounds::NONE, None)
    }

    /// Returns the same requirement with a least number of values that must stay possible.
    #[must_use]
    pub fn with_min_values(mut self, min_values: Option<u32>) -> Self {
        self.min_values = min_values;
        self
    }

    fn canonical(key: &str, values: ValueSet, bounds: Bounds, min_values: Option<u32>) -> Self {
        let key: Arc<str> = match labels::normalise(key) {
            Cow::Borrowed(key) => key.into(),
            Cow::Owned(key) => key.into(),
        };
        Self::assemble(key, values, bounds, min_values)
    }

    fn assemble(key: Arc<str>, values: ValueSet, bounds: Bounds, min_values: Option<u32>) -> Self {
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
        Self { key, values, bounds, min_values }
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

    /// Returns whether the label must not exist.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns whether a node without the label satisfies the requirement, by the rule of node affinity.
    #[must_use]
    pub fn admits_absence(&self) -> bool {
        matches!(self.operator(), Operator::NotIn | Operator::DoesNotExist)
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
            self.min_values.max(other.min_values),
        )
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

    /// Returns the requirement in the API's words: one entry for the values and one for each bound.
    #[must_use]
    pub fn to_api(&self) -> Vec<(Operator, Vec<String>)> {
        let texts = |values: &BTreeSet<Value>| values.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut entries = Vec::new();
        match &self.values {
            ValueSet::Only(values) if values.is_empty() => entries.push((Operator::DoesNotExist, Vec::new())),
            ValueSet::Only(values) => entries.push((Operator::In, texts(values))),
            ValueSet::Except(values) if !values.is_empty() => entries.push((Operator::NotIn, texts(values))),
            ValueSet::Except(_) if self.bounds.is_none() => entries.push((Operator::Exists, Vec::new())),
            ValueSet::Except(_) => {}
        }
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

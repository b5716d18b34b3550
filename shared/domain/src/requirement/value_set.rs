//! The values that one label may take.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

/// A label's value; shared, since catalogues repeat a few hundred values in many thousand sets.
pub type Value = Arc<str>;

static NO_VALUES: BTreeSet<Value> = BTreeSet::new();

/// Values in order; copies share them, since the nodes of a plan repeat a few lists of types, and pods a few selectors, by the thousand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Values(Option<Arc<BTreeSet<Value>>>);

impl Values {
    /// Returns the set of no value.
    #[must_use]
    pub const fn new() -> Self {
        Self(None)
    }

    /// Keeps the values that `keep` says.
    pub fn retain(&mut self, keep: impl Fn(&Value) -> bool) {
        if !self.iter().all(&keep) {
            *self = self.iter().filter(|value| keep(value)).cloned().collect();
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl FromIterator<Value> for Values {
    fn from_iter<I: IntoIterator<Item = Value>>(values: I) -> Self {
        let values: BTreeSet<Value> = values.into_iter().collect();
        // one form of the empty set, so that equal sets compare equal
        Self((!values.is_empty()).then(|| Arc::new(values)))
    }
}

impl Deref for Values {
    type Target = BTreeSet<Value>;

    fn deref(&self) -> &BTreeSet<Value> {
        self.0.as_deref().unwrap_or(&NO_VALUES)
    }
}

/// The values a label may take: `In` is `Only`; `NotIn` and `Exists` are `Except`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ValueSet {
    Only(Values),
    Except(Values),
}

/// Inclusive bounds on values that are read as whole numbers. A bounded set admits numbers only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bounds {
    pub gte: Option<i64>,
    pub lte: Option<i64>,
}

impl ValueSet {
    /// Returns the set of no value.
    #[must_use]
    pub const fn none() -> Self {
        Self::Only(Values::new())
    }

    /// Returns the set of every value.
    #[must_use]
    pub const fn any() -> Self {
        Self::Except(Values::new())
    }

    pub fn only<V: Into<Value>>(values: impl IntoIterator<Item = V>) -> Self {
        Self::Only(values.into_iter().map(Into::into).collect())
    }

    pub fn except<V: Into<Value>>(values: impl IntoIterator<Item = V>) -> Self {
        Self::Except(values.into_iter().map(Into::into).collect())
    }

    #[must_use]
    pub fn contains(&self, value: &str) -> bool {
        match self {
            Self::Only(values) => values.contains(value),
            Self::Except(values) => !values.contains(value),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Only(values) if values.is_empty())
    }

    /// Returns the values that are in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Only(a), Self::Only(b)) | (Self::Except(a), Self::Except(b)) if a.is_same(b) => self.clone(),
            (Self::Only(only), Self::Except(all)) | (Self::Except(all), Self::Only(only)) if all.is_empty() => {
                Self::Only(only.clone())
            }
            (Self::Only(a), Self::Only(b)) => Self::Only(a.intersection(b).cloned().collect()),
            (Self::Only(only), Self::Except(except)) | (Self::Except(except), Self::Only(only)) => {
                Self::Only(only.difference(except).cloned().collect())
            }
            (Self::Except(a), Self::Except(b)) => Self::Except(a.union(b).cloned().collect()),
        }
    }

    /// Returns whether the intersection holds a value, without building it. Unbounded sets of exclusions always meet.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Only(a), Self::Only(b)) => {
                let (small, large) = if a.len() <= b.len() { (a, b) } else { (b, a) };
                small.iter().any(|value| large.contains(value))
            }
            (Self::Only(only), Self::Except(except)) | (Self::Except(except), Self::Only(only)) => {
                only.iter().any(|value| !except.contains(value))
            }
            (Self::Except(_), Self::Except(_)) => true,
        }
    }
}

impl Bounds {
    pub const NONE: Self = Self { gte: None, lte: None };

    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.gte.is_none() && self.lte.is_none()
    }

    /// Returns whether no number lies within.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!((self.gte, self.lte), (Some(low), Some(high)) if low > high)
    }

    /// Returns whether a value lies within; where there is a bound, what is not a whole number does not.
    #[must_use]
    pub fn admit(&self, value: &str) -> bool {
        if self.is_none() {
            return true;
        }
        let Ok(number) = value.parse::<i64>() else { return false };
        self.gte.is_none_or(|low| number >= low) && self.lte.is_none_or(|high| number <= high)
    }

    /// Returns whether all that lies within lies within the other, too.
    #[must_use]
    pub fn is_within(&self, wider: &Self) -> bool {
        let (low, high) =
            (|bounds: &Self| bounds.gte.unwrap_or(i64::MIN), |bounds: &Self| bounds.lte.unwrap_or(i64::MAX));
        wider.is_none() || !self.is_none() && low(self) >= low(wider) && high(self) <= high(wider)
    }

    /// Returns the tighter of both ends.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let tighter = |a: Option<i64>, b: Option<i64>, pick: fn(i64, i64) -> i64| match (a, b) {
            (Some(a), Some(b)) => Some(pick(a, b)),
            (one, None) | (None, one) => one,
        };
        Self { gte: tighter(self.gte, other.gte, i64::max), lte: tighter(self.lte, other.lte, i64::min) }
    }
}

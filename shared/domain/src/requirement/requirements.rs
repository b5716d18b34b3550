//! All requirements of a pod, a pool, an instance type or a node: a conjunction, one entry a key.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::hint;
use super::one::Requirement;
use super::value_set::Value;
use crate::api::labels;

/// A conjunction of requirements, one a key; a key that is absent is unconstrained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirements(BTreeMap<Arc<str>, Requirement>);

/// By label, what contradicts what, in words; only labels of which no value and no absence is possible.
pub type Torn = BTreeMap<Arc<str>, String>;

/// Which keys may be wanted although the other side does not define them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undefined {
    /// A node that exists: every wanted label must be there.
    Denied,
    /// A node to be made: labels that the cloud provider will set may still be open.
    WellKnownAllowed,
}

/// Names the first key on which two requirements cannot both hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Incompatible {
    /// Nothing defines the label; `meant` is the key that was probably meant.
    #[error("label {key:?} is wanted but nothing defines it{}", did_you_mean(.meant.as_deref()))]
    Undefined { key: String, meant: Option<String> },
    /// No value will do for both; `meant` is the value that was probably meant.
    #[error("{wanted} conflicts with {offered}{}", did_you_mean(.meant.as_deref()))]
    Disjoint { key: String, wanted: String, offered: String, meant: Option<String> },
    /// What is wanted contradicts itself, so that no node at all satisfies it.
    #[error("what is wanted of label {key:?} contradicts itself: {wanted}")]
    Contradiction { key: String, wanted: String },
}

fn did_you_mean(meant: Option<&str>) -> String {
    meant.map(|known| format!(" (did you mean {known:?}?)")).unwrap_or_default()
}

impl Requirements {
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Returns the requirements that a node with these labels stands for.
    pub fn from_labels<K: AsRef<str>, V: AsRef<str>>(node_labels: impl IntoIterator<Item = (K, V)>) -> Self {
        node_labels.into_iter().map(|(key, value)| Requirement::only(key.as_ref(), [value.as_ref()])).collect()
    }

    /// Narrows by one more requirement.
    pub fn add(&mut self, requirement: Requirement) {
        match self.0.get_mut(requirement.key()) {
            Some(existing) => *existing = existing.intersection(&requirement),
            None => {
                self.0.insert(requirement.shared_key(), requirement);
            }
        }
    }

    /// Narrows by one more requirement, and notes what contradicts what: a requirement that nothing meets has lost its values.
    pub fn add_noting(&mut self, requirement: Requirement, torn: &mut Torn) {
        let before = self.get(requirement.key()).filter(|before| !before.is_impossible()).cloned();
        let Some(before) = before else { return self.add(requirement) };
        let words = format!("{before} and {requirement}");
        let key = requirement.shared_key();
        self.add(requirement);
        if self.get(&key).is_some_and(Requirement::is_impossible) {
            torn.entry(key).or_insert(words);
        }
    }

    /// Narrows by all of `other`.
    pub fn merge(&mut self, other: &Self) {
        for requirement in other.0.values() {
            self.add(requirement.clone());
        }
    }

    /// Returns the conjunction of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.merge(other);
        both
    }

    pub fn remove(&mut self, key: &str) -> Option<Requirement> {
        self.0.remove(labels::normalise(key).as_ref())
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Requirement> {
        self.0.get(key).or_else(|| self.0.get(labels::normalise(key).as_ref()))
    }

    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns whether a value of a key is possible; a key that is absent admits every value.
    #[must_use]
    pub fn admits(&self, key: &str, value: &str) -> bool {
        self.get(key).is_none_or(|requirement| requirement.admits(value))
    }

    /// Returns the single value that is possible for a key, if there is just one.
    #[must_use]
    pub fn single(&self, key: &str) -> Option<&Value> {
        self.get(key)?.single()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Requirement> {
        self.0.values()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a node that stands for `self` can be one that satisfies `wanted`. Custom keys that `wanted` needs and `self` does
    /// not define are denied (unless their absence satisfies it); well-known ones may be open, if `undefined` says so.
    pub fn compatible(&self, wanted: &Self, undefined: Undefined) -> Result<(), Incompatible> {
        for requirement in wanted.0.values() {
            if self.0.contains_key(requirement.key()) {
                continue;
            }
            if requirement.is_impossible() {
                return Err(Incompatible::contradiction(requirement));
            }
            if !may_be_undefined(requirement, undefined) {
                let key = requirement.key().to_owned();
                let meant = hint::key(&key, self.0.keys().map(AsRef::as_ref)).map(str::to_owned);
                return Err(Incompatible::Undefined { key, meant });
            }
        }
        self.intersects(wanted)
    }

    /// Returns whether `compatible` holds; the probe for loops, which builds nothing.
    #[must_use]
    pub fn is_compatible(&self, wanted: &Self, undefined: Undefined) -> bool {
        wanted.0.iter().all(|(key, requirement)| match self.0.get(key) {
            Some(mine) => mine.meets(requirement),
            None => !requirement.is_impossible() && may_be_undefined(requirement, undefined),
        })
    }

    /// Returns whether both can hold at once on the keys that they share. Two requirements that absence satisfies always can.
    pub fn intersects(&self, other: &Self) -> Result<(), Incompatible> {
        match self.clash(other) {
            None => Ok(()),
            Some((_, wanted)) if wanted.is_impossible() => Err(Incompatible::contradiction(wanted)),
            Some((mine, wanted)) => Err(Incompatible::Disjoint {
                key: wanted.key().to_owned(),
                wanted: wanted.to_string(),
                offered: mine.to_string(),
                meant: hint::value(wanted, mine).map(|value| value.to_string()),
            }),
        }
    }

    /// Returns whether `intersects` holds; the probe for loops, which builds nothing.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.clash(other).is_none()
    }

    /// The first requirements of one key that cannot both hold.
    fn clash<'r>(&'r self, other: &'r Self) -> Option<(&'r Requirement, &'r Requirement)> {
        let swapped = self.0.len() > other.0.len();
        let (few, many) = if swapped { (&other.0, &self.0) } else { (&self.0, &other.0) };
        let (one, another) = few.iter().find_map(|(key, one)| {
            let another = many.get(key)?;
            (!one.meets(another)).then_some((one, another))
        })?;
        Some(if swapped { (another, one) } else { (one, another) })
    }

    /// Returns whether a node with exactly these labels satisfies all requirements, by the rule of node affinity.
    #[must_use]
    pub fn match_labels(&self, node_labels: &BTreeMap<String, String>) -> bool {
        self.0.values().all(|requirement| match node_labels.get(requirement.key()) {
            Some(value) => requirement.admits(value),
            None => requirement.admits_absence(),
        })
    }

    /// Returns the labels whose value is settled.
    #[must_use]
    pub fn settled_labels(&self) -> BTreeMap<String, String> {
        self.0
            .values()
            .filter_map(|requirement| Some((requirement.key().to_owned(), requirement.single()?.to_string())))
            .collect()
    }
}

/// Whether a requirement may stand although the other side does not name its key.
fn may_be_undefined(requirement: &Requirement, undefined: Undefined) -> bool {
    requirement.admits_absence() || undefined == Undefined::WellKnownAllowed && labels::is_well_known(requirement.key())
}

impl Incompatible {
    fn contradiction(wanted: &Requirement) -> Self {
        Self::Contradiction { key: wanted.key().to_owned(), wanted: wanted.to_string() }
    }
}

impl FromIterator<Requirement> for Requirements {
    fn from_iter<I: IntoIterator<Item = Requirement>>(iter: I) -> Self {
        let mut all = Self::new();
        iter.into_iter().for_each(|requirement| all.add(requirement));
        all
    }
}

impl Extend<Requirement> for Requirements {
    fn extend<I: IntoIterator<Item = Requirement>>(&mut self, iter: I) {
        iter.into_iter().for_each(|requirement| self.add(requirement));
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.0.values().enumerate() {
            if index > 0 {
                formatter.write_str(", ")?;
            }
            write!(formatter, "{requirement}")?;
        }
        Ok(())
    }
}

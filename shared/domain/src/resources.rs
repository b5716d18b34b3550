//! Amounts by resource name, as pods request them and nodes offer them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::quantity::{ParseQuantityError, Quantity};

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const PODS: &str = "pods";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// The pseudo-resource by which a pool limits its number of nodes.
pub const NODES: &str = "nodes";
pub const NVIDIA_GPU: &str = "nvidia.com/gpu";
pub const AMD_GPU: &str = "amd.com/gpu";
pub const AWS_NEURON: &str = "aws.amazon.com/neuron";
pub const AWS_NEURON_CORE: &str = "aws.amazon.com/neuroncore";
pub const HABANA_GAUDI: &str = "habana.ai/gaudi";
pub const AWS_POD_ENI: &str = "vpc.amazonaws.com/pod-eni";
pub const AWS_PRIVATE_IPV4: &str = "vpc.amazonaws.com/PrivateIPv4Address";
pub const AWS_EFA: &str = "vpc.amazonaws.com/efa";

/// An ordered map of resource name to amount. A name that is absent counts as zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Resources(BTreeMap<Cow<'static, str>, Quantity>);

/// Names a resource whose amount does not fit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("needs {wanted} {resource}, {available} left")]
pub struct Shortage {
    pub resource: String,
    pub wanted: Quantity,
    pub available: Quantity,
}

/// Says which resource of a list could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("resource {resource}: {source}")]
pub struct ParseResourcesError {
    pub resource: String,
    pub source: ParseQuantityError,
}

impl Resources {
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Returns the amount of a resource; zero when it is not named.
    #[must_use]
    pub fn get(&self, name: &str) -> Quantity {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Returns whether a resource is named, even with a zero.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub fn set(&mut self, name: impl Into<Cow<'static, str>>, amount: Quantity) {
        self.0.insert(name.into(), amount);
    }

    /// Returns the same resources with one set: for literals.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, amount: Quantity) -> Self {
        self.set(name, amount);
        self
    }

    pub fn remove(&mut self, name: &str) -> Option<Quantity> {
        self.0.remove(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, Quantity)> {
        self.0.iter().map(|(name, amount)| (name.as_ref(), *amount))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds each amount of `other`.
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in other.iter() {
            *self.slot(name) += amount;
        }
    }

    /// Takes each amount of `other` away; what is left may be negative.
    pub fn subtract(&mut self, other: &Self) {
        for (name, amount) in other.iter() {
            *self.slot(name) -= amount;
        }
    }

    /// Raises each amount to that of `other` where it is larger.
    pub fn raise(&mut self, other: &Self) {
        for (name, amount) in other.iter() {
            let slot = self.slot(name);
            *slot = (*slot).max(amount);
        }
    }

    /// Returns the sum.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.add(other);
        sum
    }

    /// Returns what is left after `other` is taken away; amounts may be negative.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let mut rest = self.clone();
        rest.subtract(other);
        rest
    }

    /// Returns the larger amount of each resource.
    #[must_use]
    pub fn maximum(&self, other: &Self) -> Self {
        let mut larger = self.clone();
        larger.raise(other);
        larger
    }

    /// Returns whether each amount is within `available`; a resource that is wanted and not offered does not fit.
    #[must_use]
    pub fn fits(&self, available: &Self) -> bool {
        self.0.iter().all(|(name, wanted)| !wanted.is_positive() || *wanted <= available.get(name))
            && available.0.values().all(|amount| !amount.is_negative())
    }

    /// Returns the first resource that does not fit; nothing exactly when `fits` holds.
    #[must_use]
    pub fn shortage(&self, available: &Self) -> Option<Shortage> {
        let short = |name: &str, wanted: Quantity| Shortage {
            resource: name.to_owned(),
            wanted,
            available: available.get(name),
        };
        self.0
            .iter()
            .find(|(name, wanted)| wanted.is_positive() && **wanted > available.get(name))
            .map(|(name, wanted)| short(name, *wanted))
            .or_else(|| {
                let (name, _) = available.0.iter().find(|(_, amount)| amount.is_negative())?;
                Some(short(name, self.get(name)))
            })
    }

    fn slot(&mut self, name: &str) -> &mut Quantity {
        self.0.entry(intern(name)).or_default()
    }

    /// Reads a resource list as the API server sends it.
    pub fn try_from_api(
        list: &BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    ) -> Result<Self, ParseResourcesError> {
        list.iter()
            .map(|(name, amount)| match Quantity::try_from(amount) {
                Ok(amount) => Ok((intern(name), amount)),
                Err(source) => Err(ParseResourcesError { resource: name.clone(), source }),
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Returns the resource list that the API server takes.
    #[must_use]
    pub fn to_api(&self) -> BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity> {
        self.0.iter().map(|(name, amount)| (name.to_string(), (*amount).into())).collect()
    }
}

/// Returns a name without an allocation of its own when it is one of the usual ones.
fn intern(name: &str) -> Cow<'static, str> {
    match name {
        CPU => Cow::Borrowed(CPU),
        MEMORY => Cow::Borrowed(MEMORY),
        PODS => Cow::Borrowed(PODS),
        EPHEMERAL_STORAGE => Cow::Borrowed(EPHEMERAL_STORAGE),
        NVIDIA_GPU => Cow::Borrowed(NVIDIA_GPU),
        other => Cow::Owned(other.to_owned()),
    }
}

impl<K: Into<Cow<'static, str>>> FromIterator<(K, Quantity)> for Resources {
    fn from_iter<I: IntoIterator<Item = (K, Quantity)>>(iter: I) -> Self {
        Self(iter.into_iter().map(|(name, amount)| (name.into(), amount)).collect())
    }
}

impl<'a> IntoIterator for &'a Resources {
    type Item = (&'a Cow<'static, str>, &'a Quantity);
    type IntoIter = btree_map::Iter<'a, Cow<'static, str>, Quantity>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl JsonSchema for Resources {
    fn schema_name() -> Cow<'static, str> {
        "Resources".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, Quantity>::json_schema(generator)
    }
}

//! Drift: a node that no longer is what its pool and class say.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::step::later;
use crate::api::{NodeClaim, labels};
use crate::catalogue::Catalogue;
use crate::cluster::Pool;

/// A type that is missing from the catalogue is no reason before the claim is this old: lists of types come late (Karpenter: 1 h).
const TYPE_AGE: SignedDuration = SignedDuration::from_hours(1);

/// Says why a node is drifted; displayed as the reason of the condition Drifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// The pool's template has changed since.
    NodePool,
    /// The node class has changed since.
    NodeClass,
    /// The node's labels are not what the pool's requirements ask for any more.
    Requirements,
    /// Its instance type can no longer be bought for the class.
    InstanceTypeNotFound,
    /// The cloud's own reason, such as an image that is no longer selected.
    Cloud(String),
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Drift::NodePool => "NodePoolDrifted",
            Drift::NodeClass => "NodeClassDrift",
            Drift::Requirements => "RequirementsDrifted",
            Drift::InstanceTypeNotFound => "InstanceTypeNotFound",
            Drift::Cloud(reason) => reason,
        })
    }
}

/// Answers why a claim is drifted. `pool_stamp` and `class_stamp` are the hash annotations that a claim made now would carry; a hash of
/// another version says nothing, so that a new karp drifts nothing. `catalogue` is none while it is not known. The cloud's own reasons
/// come last: the caller asks for them when there is none here.
pub fn drift(
    claim: &NodeClaim,
    pool: &Pool,
    pool_stamp: &BTreeMap<String, String>,
    class_stamp: &BTreeMap<String, String>,
    catalogue: Option<&Catalogue>,
    now: Timestamp,
) -> Option<Drift> {
    let none = BTreeMap::new();
    let own = claim.metadata.annotations.as_ref().unwrap_or(&none);
    let changed = |stamp: &BTreeMap<String, String>, hash: &str, version: &str| {
        // a claim without a stamp was made by hand or restored: what it was made from is not known
        own.contains_key(hash) && own.get(version) == stamp.get(version) && own.get(hash) != stamp.get(hash)
    };
    if changed(pool_stamp, labels::NODE_POOL_HASH, labels::NODE_POOL_HASH_VERSION) {
        return Some(Drift::NodePool);
    }
    if is_outside(claim, pool) {
        return Some(Drift::Requirements);
    }
    if changed(class_stamp, labels::EC2_NODE_CLASS_HASH, labels::EC2_NODE_CLASS_HASH_VERSION) {
        return Some(Drift::NodeClass);
    }
    let created = claim.metadata.creation_timestamp.as_ref()?.0;
    let catalogue = catalogue.filter(|catalogue| !catalogue.types().is_empty() && later(created, TYPE_AGE) <= now)?;
    let name = claim.metadata.labels.as_ref()?.get(labels::INSTANCE_TYPE)?;
    catalogue.get(name).is_none().then_some(Drift::InstanceTypeNotFound)
}

/// Says whether a claim's labels are outside of what its pool asks for now. A label that is absent counts only where a claim made now would
/// surely have it: a new claim is never drifted against the pool that it was made from.
fn is_outside(claim: &NodeClaim, pool: &Pool) -> bool {
    // a change of these is a change of the template, and seen by its hash
    let by_hash =
        |key: &str| key == labels::NODE_POOL || key == labels::EC2_NODE_CLASS || pool.labels.contains_key(key);
    let none = BTreeMap::new();
    let own = claim.metadata.labels.as_ref().unwrap_or(&none);
    pool.requirements.iter().filter(|wanted| !by_hash(wanted.key())).any(|wanted| match own.get(wanted.key()) {
        Some(value) => !wanted.admits(value),
        None => wanted.single().is_some() && !wanted.admits_absence(),
    })
}

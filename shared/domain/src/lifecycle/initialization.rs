//! Initialization: what stands between a node that has joined and its pods.

use std::fmt;

use crate::api::NodeClaim;
use crate::cluster::{Node, Readiness, is_ephemeral};

/// Says what keeps a node from running pods yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Kubelet does not say Ready.
    NotReady,
    /// A startup taint is still there; something else on the node takes it away.
    StartupTaint {
        /// Its key.
        key: String,
    },
    /// A taint that goes by itself is still there.
    EphemeralTaint {
        /// Its key.
        key: String,
    },
    /// A device plugin has not announced a resource that was asked for.
    Resource {
        /// The resource.
        name: String,
    },
}

impl Obstacle {
    /// Answers the reason of the condition Initialized.
    pub const fn reason(&self) -> &'static str {
        match self {
            Obstacle::NotReady => "NodeNotReady",
            Obstacle::StartupTaint { .. } => "StartupTaintsExist",
            Obstacle::EphemeralTaint { .. } => "KnownEphemeralTaintsExist",
            Obstacle::Resource { .. } => "ResourceNotRegistered",
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NotReady => f.write_str("Node status is NotReady"),
            Obstacle::StartupTaint { key } => write!(f, "StartupTaint {key:?} still exists"),
            Obstacle::EphemeralTaint { key } => write!(f, "KnownEphemeralTaint {key:?} still exists"),
            Obstacle::Resource { name } => write!(f, "Resource {name:?} was requested but not registered"),
        }
    }
}

/// Answers what keeps a node from running the pods of its claim.
pub(super) fn obstacle(claim: &NodeClaim, node: &Node) -> Option<Obstacle> {
    if node.ready != Readiness::Ready {
        return Some(Obstacle::NotReady);
    }
    let is_there = |key: &str, effect| node.taints.iter().any(|taint| taint.key == key && taint.effect == effect);
    if let Some(taint) = claim.spec.startup_taints.iter().find(|taint| is_there(&taint.key, taint.effect)) {
        return Some(Obstacle::StartupTaint { key: taint.key.clone() });
    }
    if let Some(taint) = node.taints.iter().find(|taint| is_ephemeral(taint)) {
        return Some(Obstacle::EphemeralTaint { key: taint.key.clone() });
    }
    // Extended resources have a domain in their names; what every node has is there with the node.
    let missing =
        claim.spec.resources.requests.iter().find(|(name, amount)| {
            amount.is_positive() && name.contains('/') && !node.allocatable.get(name).is_positive()
        });
    missing.map(|(name, _)| Obstacle::Resource { name: name.to_owned() })
}

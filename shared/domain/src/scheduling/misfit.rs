//! Why a pool cannot hold a pod, in data and in words.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::blocked::Blocked;
use super::sold::Places;
use crate::cluster::{HostPort, PodKey, Pool, Shape};
use crate::counted;
use crate::quantity::Quantity;
use crate::requirement::Requirements;
use crate::resources;
use crate::taint::Taint;

/// Says why a pool cannot hold a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Misfit {
    /// Its condition Ready is false.
    PoolNotReady,
    /// It is being deleted.
    PoolDeleting,
    /// Its node class is missing or not ready, so its instance types are not known.
    ClassNotReady {
        /// The class.
        class: Arc<str>,
    },
    /// The pool has a fixed number of replicas.
    StaticPool,
    /// The pod does not bear a taint of the pool.
    Taint {
        /// The taint.
        taint: Taint,
    },
    /// A label that the pod wants contradicts the pool, or nothing defines it.
    Requirement {
        /// The contradiction, in words.
        problem: String,
    },
    /// What the pod itself wants of a label contradicts itself.
    Contradiction {
        /// The label.
        key: String,
        /// What is wanted, all of it.
        wanted: String,
    },
    /// The pod would get further without a volume, which is where the pool has nothing for it.
    Volume {
        /// The PersistentVolumeClaim.
        claim: String,
        /// The volume, or what makes it: `volume pv-1`, `storage class fast`.
        source: String,
        /// Where it is.
        place: String,
        /// What the pool lacks there.
        lack: String,
    },
    /// The pod wants a node by its name (`matchFields`), which no new node has.
    NamedNode {
        /// The name, in words.
        wanted: String,
    },
    /// No instance type of the pool has the labels that the pod wants.
    NoInstanceType {
        /// What the pod wants; empty where the pool leaves no type to any pod.
        wanted: String,
        /// What the pool asks for; empty where no type of its class has what the pod wants.
        allowed: String,
    },
    /// Instance types with the right labels exist, but none has enough of a resource.
    TooBig {
        /// The resource.
        resource: String,
        /// What the pod asks for.
        wanted: Quantity,
        /// The most that a type has left for pods beside the daemons.
        largest: Quantity,
    },
    /// Instance types with the right labels exist, but none attaches as many volumes.
    TooManyVolumes {
        /// CSI driver.
        driver: Arc<str>,
        /// How many the pod has.
        wanted: u32,
        /// The most that a type attaches.
        most: u32,
    },
    /// Each resource is there on some type, but no single type has them all.
    NoTypeHasAll,
    /// Types would do, but none can be bought now in the zones and by the capacity types that remain.
    NoOffering {
        /// How many types would do.
        types: usize,
        /// Where and how they are sold, of what pod and pool allow.
        wanted: Places,
    },
    /// Types would do, but none is ever sold in the zones and by the capacity types that remain.
    NotOffered {
        /// How many types would do.
        types: usize,
        /// What pod and pool allow.
        wanted: Places,
        /// Where and how they are sold.
        offered: Places,
    },
    /// The pool's limit leaves no room for any type that would do.
    Limit {
        /// The limited resource.
        resource: String,
        /// The limit.
        limit: Quantity,
        /// What the pool uses already, planned nodes included.
        used: Quantity,
    },
    /// No domain is left that the pod may use.
    Topology {
        /// The constraint, in words.
        rule: String,
        /// What it lacks.
        blocked: Blocked,
    },
    /// A daemon set has pods on all nodes that would do, which the pod must not be near.
    Daemon {
        /// The daemon set.
        daemon: PodKey,
        /// The rule that keeps them apart, in words.
        rule: String,
    },
    /// A daemon takes a port of the node that the pod wants, on every type that would do.
    HostPort {
        /// The daemon's port.
        port: HostPort,
    },
    /// Fewer values remain possible than the pool's `minValues` asks for.
    MinValues {
        /// The label.
        key: String,
        /// `minValues`.
        wanted: u32,
        /// What remains.
        possible: u32,
        /// It would be enough but for the pool's limits.
        limited: bool,
    },
}

impl Misfit {
    /// Says what contradicts itself in what a pod wants of a node, or in what a pool asks for: nothing fits it, whatever the others want.
    pub(crate) fn torn(shape: &Shape, pool: &Pool, wanted: &Requirements) -> Option<Self> {
        let own = wanted.iter().filter(|one| one.is_impossible()).find_map(|one| {
            let both = shape.torn.get(one.key())?.clone();
            Some(Misfit::Contradiction { key: one.key().to_owned(), wanted: both })
        });
        let of_pool = || pool.torn.values().next().cloned();
        own.or_else(|| Some(Misfit::NoInstanceType { wanted: String::new(), allowed: of_pool()? }))
    }

    /// Answers how near to fitting a pod with this misfit was: how many of the checks before it were passed.
    pub(crate) fn nearness(&self) -> u8 {
        match self {
            Misfit::PoolNotReady | Misfit::PoolDeleting | Misfit::ClassNotReady { .. } | Misfit::StaticPool => 0,
            Misfit::Taint { .. } => 1,
            Misfit::Requirement { .. } | Misfit::Contradiction { .. } | Misfit::NamedNode { .. } => 2,
            Misfit::NoInstanceType { .. } | Misfit::Volume { .. } => 3,
            Misfit::TooBig { .. } | Misfit::TooManyVolumes { .. } | Misfit::NoTypeHasAll => 4,
            Misfit::HostPort { .. } => 5,
            Misfit::NoOffering { .. } | Misfit::NotOffered { .. } => 6,
            Misfit::Daemon { .. } => 7,
            Misfit::MinValues { .. } | Misfit::Limit { .. } => 8,
            Misfit::Topology { .. } => 9,
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::PoolNotReady => f.write_str("the pool is not ready"),
            Misfit::PoolDeleting => f.write_str("the pool is being deleted"),
            Misfit::ClassNotReady { class } => write!(f, "node class {class} is missing or not ready"),
            Misfit::StaticPool => f.write_str("the pool has a fixed number of replicas"),
            Misfit::Taint { taint } => write!(f, "the pod does not tolerate {taint}"),
            Misfit::Requirement { problem } => f.write_str(problem),
            Misfit::Contradiction { key, wanted } => {
                write!(f, "what is wanted of label {key:?} contradicts itself: {wanted}")
            }
            Misfit::Volume { claim, source, place, lack } => {
                write!(f, "{source} of persistent volume claim {claim} is in {place}, {lack}")
            }
            Misfit::NamedNode { wanted } => write!(f, "a node is wanted by its name ({wanted}), which no new node has"),
            Misfit::NoInstanceType { wanted, allowed } => match (wanted.is_empty(), allowed.is_empty()) {
                (_, true) => write!(f, "no instance type has {wanted}"),
                (true, false) => write!(f, "no instance type has {allowed}, which the pool asks for"),
                (false, false) => {
                    write!(f, "no instance type has {wanted}, which the pod wants, and {allowed}, which the pool wants")
                }
            },
            Misfit::TooBig { resource, wanted, largest } if resource == resources::PODS => {
                write!(
                    f,
                    "{resource}: {wanted} asked, daemons leave {largest} of what kubelet runs on one node (maxPods)"
                )
            }
            Misfit::TooBig { resource, wanted, largest } => {
                write!(f, "{resource}: {wanted} asked, the largest type has {largest} left for pods")
            }
            Misfit::TooManyVolumes { driver, wanted, most } => {
                let volumes = counted(*wanted as usize, "volume");
                write!(f, "{volumes} of {driver}, a new node attaches {most} at most")
            }
            Misfit::NoTypeHasAll => f.write_str("no instance type has enough of all resources at once"),
            Misfit::NoOffering { types, wanted } => {
                write!(f, "{} would do, but none can be had now {wanted}", counted(*types, "instance type"))
            }
            Misfit::NotOffered { types, wanted, offered } => {
                write!(f, "{} would do, but none is sold {wanted}, only {offered}", counted(*types, "instance type"))
            }
            Misfit::Limit { resource, limit, used } => write!(f, "limit {resource} {limit} reached ({used} in use)"),
            Misfit::Topology { rule, blocked } => write!(f, "unsatisfiable topology constraint: {rule}: {blocked}"),
            Misfit::Daemon { daemon, rule } => {
                write!(
                    f,
                    "daemon set {daemon} runs on all nodes that would do, and the pod must not be near it: {rule}"
                )
            }
            Misfit::HostPort { port } => {
                write!(f, "a daemon takes the host port {port} on every instance type that would do")
            }
            Misfit::MinValues { key, wanted, possible, limited } => {
                let remain = if *possible == 1 { "remains" } else { "remain" };
                let within =
                    if *limited { " within the pool's limits" } else { " on types that hold the pod and can be had" };
                write!(f, "minValues of {key} is {wanted}, only {possible} {remain}{within}")
            }
        }
    }
}

impl Misfit {
    pub(super) fn event(&self, pool: &str) -> String {
        match self {
            Misfit::Taint { taint } => format!("did not tolerate taint ({taint})"),
            Misfit::Requirement { .. }
            | Misfit::Contradiction { .. }
            | Misfit::Volume { .. }
            | Misfit::NamedNode { .. } => format!("incompatible requirements, {self}"),
            Misfit::NoInstanceType { wanted, allowed } if allowed.is_empty() => {
                format!("no instance type met all requirements, {wanted}")
            }
            Misfit::NoInstanceType { .. } => format!("no instance type met all requirements, {self}"),
            Misfit::TooBig { .. } | Misfit::TooManyVolumes { .. } | Misfit::NoTypeHasAll => {
                format!("no instance type has enough resources, {self}")
            }
            Misfit::NoOffering { .. } | Misfit::NotOffered { .. } => {
                format!("no instance type has the required offering, {self}")
            }
            Misfit::Limit { resource, limit, .. } => {
                format!(
                    "all available instance types exceed limits for nodepool: {pool:?}, limit {resource} {limit} reached"
                )
            }
            Misfit::Topology { rule, blocked } => {
                format!("unsatisfiable topology constraint: {rule}: {}", blocked.event())
            }
            Misfit::PoolNotReady
            | Misfit::PoolDeleting
            | Misfit::ClassNotReady { .. }
            | Misfit::StaticPool
            | Misfit::Daemon { .. }
            | Misfit::HostPort { .. }
            | Misfit::MinValues { .. } => self.to_string(),
        }
    }
}

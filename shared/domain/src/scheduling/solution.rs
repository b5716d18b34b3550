//! The answer of `solve`: where each pod goes, what to launch, and why a pod was refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rustc_hash::FxHashSet;
use serde::Serialize;

use super::Misfit;
use crate::api::{NodeClaim, NodeClaimSpec, NodeClassReference, ResourceRequests, labels, requirement_specs};
use crate::catalogue::{CapacityType, Price, RankedOffering};
use crate::cluster::{Claim, ClassRef, Feature, PodKey, Snapshot, VolumeProblem};
use crate::requirement::Requirements;
use crate::resources::Resources;
use crate::taint::Taint;

/// Answers every pod that waits for capacity exactly once: placed on a host, placed on a new node, or refused with reasons.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Solution {
    /// Pods that fit on nodes and claims that exist, ordered by pod.
    pub placements: Vec<Placement>,
    /// Nodes to launch, in the order in which they were planned.
    pub nodes: Vec<InFlightNode>,
    /// Pods that nothing can hold, ordered by pod.
    pub unschedulable: Vec<Unschedulable>,
    /// When the answer may change although nothing in the cluster does.
    pub next_look: Option<Timestamp>,
}

impl Solution {
    /// Answers the price per hour of all nodes to launch.
    pub fn price(&self) -> Price {
        self.nodes.iter().map(|node| node.price).sum()
    }
}

/// Says on which existing host a pod fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The pod.
    pub pod: PodKey,
    /// The host.
    pub target: Target,
}

/// Names an existing host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A node that has joined.
    Node(Arc<str>),
    /// A NodeClaim whose node has not joined yet.
    Claim(Arc<str>),
}

/// Describes a node to be launched: everything that its NodeClaim says, and the pods it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct InFlightNode {
    /// Pool that it belongs to.
    pub pool: Arc<str>,
    /// Node class.
    pub class: ClassRef,
    /// Labels of the template.
    pub labels: BTreeMap<String, String>,
    /// Annotations of its claim: those of the template, and by which template it was planned.
    pub annotations: BTreeMap<String, String>,
    /// What the pool and its pods ask of it; `node.kubernetes.io/instance-type` lists the types of `offerings`, and more only for
    /// `minValues` of a node that a capacity reservation holds.
    pub requirements: Requirements,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Startup taints.
    pub startup_taints: Vec<Taint>,
    /// `expireAfter`; none for Never.
    pub expire_after: Option<SignedDuration>,
    /// `terminationGracePeriod`.
    pub termination_grace: Option<SignedDuration>,
    /// What its pods and daemons ask for.
    pub requests: Resources,
    /// Pods that it is for, ordered.
    pub pods: Vec<PodKey>,
    /// Every offering that would do, cheapest first; never empty.
    pub offerings: Arc<Vec<RankedOffering>>,
    /// Price per hour of the offering that is expected to be launched.
    pub price: Price,
}

impl InFlightNode {
    /// Answers the hash of the template that it was planned by.
    pub fn template(&self) -> &str {
        self.annotations.get(labels::NODE_POOL_HASH).map(String::as_str).unwrap_or_default()
    }

    /// Writes the spec of the node's claim.
    pub fn claim_spec(&self) -> NodeClaimSpec {
        let seconds = |time: SignedDuration| format!("{}s", time.as_secs());
        NodeClaimSpec {
            taints: self.taints.iter().map(Into::into).collect(),
            startup_taints: self.startup_taints.iter().map(Into::into).collect(),
            requirements: requirement_specs(&self.requirements),
            resources: ResourceRequests { requests: self.requests.clone() },
            node_class_ref: NodeClassReference {
                group: self.class.group.to_string(),
                kind: self.class.kind.to_string(),
                name: self.class.name.to_string(),
            },
            termination_grace_period: self.termination_grace.map(seconds),
            expire_after: self.expire_after.map_or_else(|| "Never".to_owned(), seconds),
        }
    }

    /// Answers the labels of the node's claim: those of the template, its pool's and its class's.
    pub fn claim_labels(&self) -> BTreeMap<String, String> {
        let mut all = self.labels.clone();
        all.insert(labels::NODE_POOL.to_owned(), self.pool.to_string());
        all.insert(labels::EC2_NODE_CLASS.to_owned(), self.class.name.to_string());
        all
    }

    /// Makes the node's claim as the API server is asked for it: held until its instance is gone, and with the hash of the template that it was
    /// planned by, whichever the pool has by now.
    pub fn node_claim(&self, name: &str) -> NodeClaim {
        let mut claim = NodeClaim::new(name, self.claim_spec());
        claim.metadata.labels = Some(self.claim_labels());
        claim.metadata.annotations = Some(self.annotations.clone());
        claim.metadata.finalizers = Some(vec![labels::TERMINATION_FINALIZER.to_owned()]);
        claim
    }

    /// Answers the node's claim as it is while nothing has been launched for it.
    pub(crate) fn claim(&self, name: Arc<str>, created: Timestamp) -> Claim {
        Claim {
            uid: name.clone(),
            name,
            pool: Some(self.pool.clone()),
            class: self.class.clone(),
            labels: self.claim_labels(),
            annotations: self.annotations.clone(),
            requirements: self.requirements.clone(),
            requests: self.requests.clone(),
            taints: self.taints.clone(),
            startup_taints: self.startup_taints.clone(),
            expire_after: self.expire_after,
            termination_grace: self.termination_grace,
            provider_id: None,
            node_name: None,
            capacity: Resources::new(),
            allocatable: Resources::new(),
            conditions: Vec::new(),
            last_pod_event: None,
            created,
            deleting: None,
            finalizers: vec![labels::TERMINATION_FINALIZER.to_owned()],
        }
    }

    /// Answers the capacity type that will be launched: that of the cheapest offering.
    pub fn capacity_type(&self) -> Option<CapacityType> {
        self.offerings.first().map(|offering| offering.capacity_type)
    }

    /// Answers the instance types of the offerings, cheapest first, each once.
    pub fn instance_types(&self) -> Vec<Arc<str>> {
        let mut types: Vec<Arc<str>> = Vec::new();
        let mut seen: FxHashSet<&str> = FxHashSet::default();
        for offering in self.offerings.iter() {
            if seen.insert(&offering.instance_type) {
                types.push(offering.instance_type.clone());
            }
        }
        types
    }
}

/// Says why no node, present or possible, can hold a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unschedulable {
    /// The pod.
    pub pod: PodKey,
    /// Why: one reason for each pool, or one for the pod as a whole.
    pub reasons: Vec<Refusal>,
}

/// Holds one reason against a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Refusal {
    /// It asks for something that karp never places.
    NeverPlaced {
        /// What.
        feature: Feature,
    },
    /// A volume of it keeps it from running anywhere.
    Volume {
        /// The PersistentVolumeClaim.
        claim: String,
        /// What is wrong.
        problem: VolumeProblem,
    },
    /// There is no pool that karp may use.
    NoPools,
    /// There are pools, and all of them are another autoscaler's: their node classes are not karp's.
    ForeignPools {
        /// Their names.
        pools: Vec<Arc<str>>,
        /// The groups of their node classes.
        groups: Vec<Arc<str>>,
    },
    /// A pool cannot hold it.
    Pool {
        /// The pool.
        pool: Arc<str>,
        /// Why not.
        misfit: Misfit,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NeverPlaced { feature } => write!(f, "karp does not place pods with {feature}"),
            Refusal::Volume { claim, problem } => write!(f, "persistent volume claim {claim}: {problem}"),
            Refusal::NoPools => f.write_str("there is no NodePool"),
            Refusal::ForeignPools { pools, groups } => write!(
                f,
                "there is no NodePool with a node class of {}: {} {} one of {}",
                labels::AWS_GROUP,
                pools.join(", "),
                if pools.len() == 1 { "has" } else { "have" },
                groups.join(" or ")
            ),
            Refusal::Pool { pool, misfit } => write!(f, "pool {pool}: {misfit}"),
        }
    }
}

impl Unschedulable {
    /// Says why in one line for an event, in Karpenter's words where people search for them, each with what it is about.
    pub fn event(&self) -> String {
        let said: Vec<String> = self.reasons.iter().map(Refusal::event).collect();
        said.join("; ")
    }
}

impl Refusal {
    /// Answers why there is no pool that karp may use.
    pub(crate) fn no_pools(snapshot: &Snapshot) -> Self {
        let mut pools: Vec<Arc<str>> = snapshot.pools.iter().map(|pool| pool.name.clone()).collect();
        pools.sort();
        let groups: BTreeSet<Arc<str>> = snapshot.pools.iter().map(|pool| pool.class.group.clone()).collect();
        match pools.is_empty() {
            true => Refusal::NoPools,
            false => Refusal::ForeignPools { pools, groups: groups.into_iter().collect() },
        }
    }

    fn event(&self) -> String {
        match self {
            Refusal::NoPools => "no nodepools found".to_owned(),
            Refusal::ForeignPools { .. } => format!("no nodepools found: {self}"),
            Refusal::Pool { pool, misfit } => format!("incompatible with nodepool {pool:?}, {}", misfit.event(pool)),
            Refusal::NeverPlaced { .. } | Refusal::Volume { .. } => self.to_string(),
        }
    }
}

impl fmt::Display for Unschedulable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, reason) in self.reasons.iter().enumerate() {
            write!(f, "{}{reason}", if at > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

//! The whole input of a decision.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rustc_hash::FxHashMap;

use super::{
    Buffer, Catalogues, Claim, ConsolidationFloor, DaemonSet, Node, Pod, PodBudget, PodKey, PodShare, Pool,
    PriceTolerance, Volumes,
};
use crate::catalogue::{Overlay, OverlayConflict};

/// Holds the cluster at one moment. Everything sits behind `Arc`, so a snapshot is made and copied without copying the cluster.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The moment.
    pub now: Timestamp,
    /// All pods, pending and bound.
    pub pods: Vec<Arc<Pod>>,
    /// Nodes with a pod that cannot be read and is left out, by name.
    pub unread: BTreeMap<Arc<str>, PodKey>,
    /// All nodes, also those that are not karp's.
    pub nodes: Vec<Arc<Node>>,
    /// All NodeClaims.
    pub claims: Vec<Arc<Claim>>,
    /// All NodePools; foreign ones are left alone.
    pub pools: Vec<Arc<Pool>>,
    /// All DaemonSets.
    pub daemons: Vec<Arc<DaemonSet>>,
    /// All PodDisruptionBudgets.
    pub budgets: Vec<Arc<PodBudget>>,
    /// Labels of namespaces by name.
    pub namespaces: BTreeMap<Arc<str>, BTreeMap<String, String>>,
    /// Persistent volumes and what belongs to them.
    pub volumes: Volumes,
    /// What can be bought.
    pub catalogues: Catalogues,
    /// CapacityBuffers that are ready; `solve` does not look at them, see [`crate::scheduling::reserve`].
    pub buffers: Vec<Arc<Buffer>>,
    /// Options of the controller.
    pub settings: Settings,
}

/// Holds the options that decisions depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Feature gate `SpotToSpotConsolidation`.
    pub spot_to_spot: bool,
    /// Feature gate `NodeRepair`.
    pub repair: bool,
    /// Feature gate `StaticCapacity`.
    pub static_capacity: bool,
    /// A replacement must save at least this share of a node's price, in thousandths: a floor against flapping.
    pub saving_floor_permille: u64,
    /// What giving up a node must save for the pods that it evicts, where the pool says nothing.
    pub consolidation_floor: ConsolidationFloor,
    /// A node to which a pod was nominated is left alone for this long after its last pod event.
    pub settle: SignedDuration,
    /// What to do with preferences of pods.
    pub preferences: PreferencePolicy,
    /// What to do with `minValues` that cannot be met.
    pub min_values: MinValuesPolicy,
    /// The largest share of a pool's pods on one new node, where the pool says nothing.
    pub max_pod_share: PodShare,
    /// How much dearer the types may be that a new node may become, where the pool says nothing.
    pub price_tolerance: PriceTolerance,
}

/// Says what the solver does with preferred affinity, `ScheduleAnyway` spread and `PreferNoSchedule` taints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferencePolicy {
    /// Preferences hold as long as they can be met.
    #[default]
    Respect,
    /// Preferences are not looked at.
    Ignore,
}

/// Says what the solver does when fewer values than `minValues` asks for would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinValuesPolicy {
    /// No node is made.
    #[default]
    Strict,
    /// A node is made with as many values as there are, and says so by an annotation.
    BestEffort,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            spot_to_spot: false,
            repair: false,
            static_capacity: false,
            saving_floor_permille: 50,
            consolidation_floor: ConsolidationFloor::default(),
            settle: SignedDuration::from_secs(20),
            preferences: PreferencePolicy::Respect,
            min_values: MinValuesPolicy::Strict,
            max_pod_share: PodShare::default(),
            price_tolerance: PriceTolerance::default(),
        }
    }
}

impl Snapshot {
    /// Makes an empty snapshot.
    pub fn empty(now: Timestamp) -> Self {
        Snapshot {
            now,
            pods: Vec::new(),
            unread: BTreeMap::new(),
            nodes: Vec::new(),
            claims: Vec::new(),
            pools: Vec::new(),
            daemons: Vec::new(),
            budgets: Vec::new(),
            namespaces: BTreeMap::new(),
            volumes: Volumes::default(),
            catalogues: Catalogues::default(),
            buffers: Vec::new(),
            settings: Settings::default(),
        }
    }

    /// Answers a pool by name.
    pub fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        self.pools.iter().find(|pool| &*pool.name == name)
    }

    /// Says whether a pod is virtual: one of a buffer's, which exists in plans only.
    pub fn is_virtual(&self, pod: &PodKey) -> bool {
        self.buffers.iter().any(|buffer| buffer.owns(pod))
    }

    /// Lets overlays change what each pool can buy, instead of those that did before; answers those that are left out.
    pub fn overlay(&mut self, overlays: &[Overlay]) -> Vec<OverlayConflict> {
        self.catalogues.overlay(&self.pools, overlays)
    }

    /// Joins nodes and claims by provider id, in the order of their names. A claim without a node and a node without a claim are hosts too.
    pub fn hosts(&self) -> Vec<Host> {
        let mut nodes: FxHashMap<&str, &Arc<Node>> = FxHashMap::default();
        for node in &self.nodes {
            if let Some(id) = &node.provider_id {
                nodes.insert(id, node);
            }
        }
        let mut hosts: Vec<Host> = Vec::with_capacity(self.nodes.len() + self.claims.len());
        let mut joined: FxHashMap<&str, ()> = FxHashMap::default();
        for claim in &self.claims {
            let node = claim.provider_id.as_deref().and_then(|id| nodes.get(id)).copied();
            if let Some(node) = node {
                joined.insert(&node.name, ());
            }
            hosts.push(Host { claim: Some(claim.clone()), node: node.cloned() });
        }
        let lone = self.nodes.iter().filter(|node| !joined.contains_key(&*node.name));
        hosts.extend(lone.map(|node| Host { claim: None, node: Some(node.clone()) }));
        hosts.sort_by(|a, b| a.name().cmp(b.name()));
        hosts
    }

    /// Answers the pods that take room on each node, by node name, each list ordered by name.
    pub fn pods_by_node(&self) -> BTreeMap<Arc<str>, Vec<Arc<Pod>>> {
        let mut by_node: BTreeMap<Arc<str>, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| pod.holds_resources()) {
            if let Some(node) = &pod.node {
                by_node.entry(node.clone()).or_default().push(pod.clone());
            }
        }
        for pods in by_node.values_mut() {
            pods.sort_by(|a, b| a.key.cmp(&b.key));
        }
        by_node
    }
}

/// A node with its claim: what can hold pods now or soon.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Its NodeClaim, unless the node is not karp's.
    pub claim: Option<Arc<Claim>>,
    /// Its Node, once it has joined.
    pub node: Option<Arc<Node>>,
}

impl Host {
    /// Answers the node's name, or the claim's while there is no node.
    pub fn name(&self) -> &str {
        match (&self.node, &self.claim) {
            (Some(node), _) => &node.name,
            (None, Some(claim)) => &claim.name,
            (None, None) => "",
        }
    }

    /// Answers the pool that made it.
    pub fn pool(&self) -> Option<&str> {
        let claim = self.claim.as_ref().and_then(|claim| claim.pool.as_deref());
        claim.or_else(|| self.node.as_ref().and_then(|node| node.pool()))
    }

    /// Says whether it is on its way out: deletion was asked for, or it was tainted for disruption.
    pub fn is_leaving(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.deleting.is_some())
            || self.node.as_ref().is_some_and(|node| node.deleting.is_some() || node.is_disrupted())
    }

    /// Answers a label of the node, or of the claim while there is no node.
    pub fn label(&self, key: &str) -> Option<&str> {
        let node = self.node.as_ref().and_then(|node| node.labels.get(key));
        node.or_else(|| self.claim.as_ref().and_then(|claim| claim.labels.get(key))).map(String::as_str)
    }
}

//! What is kept whatever pods wait, as programs read it: room for buffers, and the replicas of static pools.

use std::collections::BTreeMap;
use std::sync::Arc;

use karp_domain::cluster::{Pool, Snapshot};
use karp_domain::scheduling::{KeptRoom, Outlook, Purpose, Room, Target};
use serde::Serialize;

use crate::files::Unready;

/// A CapacityBuffer.
#[derive(Debug, Serialize)]
pub struct KeptBuffer {
    pub buffer: String,
    /// Room can be kept for it: what it refers to is there.
    pub ready: bool,
    /// Of its condition `Provisioning`; of `ReadyForProvisioning` when it is not ready.
    pub reason: &'static str,
    /// Of the same condition.
    pub message: String,
    /// Virtual pods that it asks for: the sum of the next three.
    pub pods: u32,
    /// Those for which nodes have room.
    pub there: u32,
    /// Those that wait for nodes, launched here or on their way.
    pub launching: u32,
    /// Those that nothing can hold.
    pub refused: u32,
    /// Where room is on nodes and claims that exist.
    pub placements: Vec<VirtualPods>,
    /// Why some are refused, each reason once.
    pub reasons: Vec<String>,
}

/// How many virtual pods a node has room for.
#[derive(Debug, Serialize)]
pub struct VirtualPods {
    pub node: Arc<str>,
    pub pods: usize,
}

/// A static pool.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptPool {
    pub node_pool: Arc<str>,
    pub replicas: u64,
    /// Nodes launched for those that are missing.
    pub launched: usize,
    /// Claims that are too many, by name.
    pub removed: Vec<Arc<str>>,
    /// What keeps it from its replicas; left out when nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short: Option<String>,
}

impl KeptBuffer {
    /// Says what becomes of a buffer.
    pub fn new(kept: &KeptRoom) -> Self {
        let (pods, launching, refused) = match kept.room {
            Room::Empty => (0, 0, 0),
            Room::Fits { pods } => (pods, 0, 0),
            Room::Lacking { launching, refused, pods } => (pods, launching, refused),
        };
        let mut nodes: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for placement in &kept.placements {
            let (Target::Node(node) | Target::Claim(node)) = &placement.target;
            *nodes.entry(node).or_default() += 1;
        }
        let mut reasons: Vec<String> =
            kept.unschedulable.iter().flat_map(|refused| &refused.reasons).map(ToString::to_string).collect();
        reasons.sort();
        reasons.dedup();
        KeptBuffer {
            buffer: kept.buffer.to_string(),
            ready: true,
            reason: kept.room.reason(),
            message: kept.room.to_string(),
            pods,
            there: pods.saturating_sub(launching.saturating_add(refused)),
            launching,
            refused,
            placements: nodes.into_iter().map(|(node, pods)| VirtualPods { node: node.clone(), pods }).collect(),
            reasons,
        }
    }

    /// Says why no room can be kept for a buffer.
    pub fn unready(unready: &Unready<'_>) -> Self {
        KeptBuffer {
            buffer: unready.buffer.to_string(),
            ready: false,
            reason: unready.why.reason(),
            message: unready.why.to_string(),
            pods: 0,
            there: 0,
            launching: 0,
            refused: 0,
            placements: Vec::new(),
            reasons: Vec::new(),
        }
    }
}

impl KeptPool {
    /// Says what becomes of each static pool, by name.
    pub fn all(snapshot: &Snapshot, outlook: &Outlook) -> Vec<Self> {
        let one = |(pool, replicas): (&Arc<Pool>, u64)| {
            let of_pool = |claim: &&Arc<str>| {
                let claim = snapshot.claims.iter().find(|known| known.name == **claim);
                claim.is_some_and(|claim| claim.pool.as_ref() == Some(&pool.name))
            };
            let launched = outlook.launches.iter().filter(|launch| launch.purpose == Purpose::Replicas);
            let short = outlook.short.iter().find(|(name, _)| *name == pool.name);
            KeptPool {
                node_pool: pool.name.clone(),
                replicas,
                launched: launched.filter(|launch| launch.node.pool == pool.name).count(),
                removed: outlook.surplus.iter().filter(of_pool).cloned().collect(),
                short: short.map(|(_, misfit)| misfit.to_string()),
            }
        };
        let ours = snapshot.pools.iter().filter(|pool| pool.is_ours() && pool.deleting.is_none());
        let mut all: Vec<Self> = ours.filter_map(|pool| Some((pool, pool.replicas?))).map(one).collect();
        all.sort_by(|a, b| a.node_pool.cmp(&b.node_pool));
        all
    }
}

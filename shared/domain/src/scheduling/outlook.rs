//! All that nodes are launched for, in one answer: what static pools lack, then pods that wait, then room for buffers.
//!
//! The controller does the three one after the other, each on top of the claims that those before it made; this is the cluster that they
//! lead to, for whoever asks before anything is launched.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    InFlightNode, Misfit, Placement, ReplicaPlan, Reserve, Room, Solution, Target, Unschedulable, replicas, reserve,
    solve,
};
use crate::catalogue::Price;
use crate::cluster::{Buffer, Claim, PodKey, Snapshot};

/// Prefix of the names of claims that static pools lack, which no object can have.
const REPLICA: &str = "//replica/";

/// Holds what becomes of a cluster when each thing that launches nodes has had its turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Nodes to launch: for replicas, then for pods, then for buffers.
    pub launches: Vec<Launch>,
    /// Claims that static pools give back; their pods go elsewhere.
    pub surplus: Vec<Arc<str>>,
    /// Static pools that stay short, with what keeps them so.
    pub short: Vec<(Arc<str>, Misfit)>,
    /// Pods that fit on nodes and claims that exist.
    pub placements: Vec<Placement>,
    /// Pods that nothing can hold.
    pub unschedulable: Vec<Unschedulable>,
    /// What becomes of each buffer that is ready, in the order of the snapshot.
    pub rooms: Vec<KeptRoom>,
}

/// Holds a node to launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// What it is launched for.
    pub purpose: Purpose,
    /// The node; its pods are those that exist and go there.
    pub node: InFlightNode,
    /// Virtual pods for which it has room.
    pub room: Vec<PodKey>,
}

/// Says what a node is launched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// The replicas of a static pool.
    Replicas,
    /// Pods that wait.
    Pods,
    /// Room for buffers alone.
    Buffers,
}

/// Holds what becomes of a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptRoom {
    /// The buffer.
    pub buffer: PodKey,
    /// How far its room is there.
    pub room: Room,
    /// Its virtual pods for which nodes and claims that exist have room.
    pub placements: Vec<Placement>,
    /// Its virtual pods that nothing can hold.
    pub unschedulable: Vec<Unschedulable>,
}

/// Answers all that is launched for a cluster as it stands, by one pass of each: static pools, waiting pods, buffers.
pub fn outlook(snapshot: &Snapshot) -> Outlook {
    let plan = lacked(snapshot);
    let ahead = filled(snapshot, &plan);
    let solution = solve(&ahead);
    let reserve = reserve(&ahead, &solution);
    let rooms = snapshot.buffers.iter().map(|buffer| kept(buffer, &reserve)).collect();
    let mut outlook = Outlook { surplus: plan.delete, short: plan.short, rooms, ..Outlook::default() };
    outlook.launch(plan.create, solution, reserve);
    outlook
}

/// Answers the snapshot in which static pools have claims for what they lack, and those that they give back leave: what pods that wait
/// find when their turn comes.
pub fn with_replicas(snapshot: &Snapshot) -> Cow<'_, Snapshot> {
    filled(snapshot, &lacked(snapshot))
}

/// Answers the static pool that lacks the node on which a pod was placed; nothing for hosts that exist.
pub fn lacking<'s>(ahead: &'s Snapshot, target: &Target) -> Option<&'s Arc<str>> {
    let Target::Claim(name) = target else { return None };
    replica(target)?;
    ahead.claims.iter().find(|claim| claim.name == *name)?.pool.as_ref()
}

fn lacked(snapshot: &Snapshot) -> ReplicaPlan {
    match snapshot.pools.iter().any(|pool| pool.is_static()) {
        true => replicas(snapshot, &BTreeSet::new()),
        false => ReplicaPlan::default(),
    }
}

fn filled<'s>(snapshot: &'s Snapshot, plan: &ReplicaPlan) -> Cow<'s, Snapshot> {
    if plan.create.is_empty() && plan.delete.is_empty() {
        return Cow::Borrowed(snapshot);
    }
    let mut ahead = snapshot.clone();
    for claim in &mut ahead.claims {
        if plan.delete.contains(&claim.name) {
            *claim = Arc::new(Claim { deleting: Some(snapshot.now), ..Claim::clone(claim) });
        }
    }
    let named = plan.create.iter().enumerate();
    ahead.claims.extend(named.map(|(at, node)| Arc::new(node.claim(format!("{REPLICA}{at}").into(), snapshot.now))));
    Cow::Owned(ahead)
}

/// The place, among the nodes that static pools lack, of the one that a pod was placed on; nothing for hosts that exist.
fn replica(target: &Target) -> Option<usize> {
    match target {
        Target::Claim(name) => name.strip_prefix(REPLICA).and_then(|at| at.parse().ok()),
        Target::Node(_) => None,
    }
}

fn kept(buffer: &Buffer, reserve: &Reserve) -> KeptRoom {
    let there = reserve.placements.iter().filter(|placement| replica(&placement.target).is_none());
    KeptRoom {
        buffer: buffer.key.clone(),
        room: reserve.room(buffer),
        placements: there.filter(|placement| buffer.owns(&placement.pod)).cloned().collect(),
        unschedulable: reserve.unschedulable.iter().filter(|refused| buffer.owns(&refused.pod)).cloned().collect(),
    }
}

impl Outlook {
    /// Answers the price per hour of all nodes to launch.
    pub fn price(&self) -> Price {
        self.launches.iter().map(|launch| launch.node.price).sum()
    }

    /// Lists the nodes to launch, each with the pods that exist and those that are virtual.
    fn launch(&mut self, create: Vec<InFlightNode>, solution: Solution, reserve: Reserve) {
        let launch = |purpose| move |node| Launch { purpose, node, room: Vec::new() };
        let replicas = create.len();
        self.launches.extend(create.into_iter().map(launch(Purpose::Replicas)));
        self.launches.extend(solution.nodes.into_iter().map(launch(Purpose::Pods)));
        for mut node in reserve.nodes {
            let room = std::mem::take(&mut node.pods);
            self.launches.push(Launch { purpose: Purpose::Buffers, node, room });
        }
        for placement in solution.placements {
            match replica(&placement.target) {
                Some(at) => self.launches[at].node.pods.push(placement.pod),
                None => self.placements.push(placement),
            }
        }
        for placement in reserve.placements {
            if let Some(at) = replica(&placement.target) {
                self.launches[at].room.push(placement.pod);
            }
        }
        for (pod, at) in reserve.joining {
            self.launches[replicas + at].room.push(pod);
        }
        self.unschedulable = solution.unschedulable;
    }
}

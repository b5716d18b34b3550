//! Room kept free: the virtual pods of CapacityBuffers, placed after everything real.
//!
//! Real pods are planned as though there were no buffers, so that no buffer ever displaces one. Virtual pods then take what is left on hosts,
//! what is left on the nodes just planned, and nodes of their own.

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::ahead::{Ahead, planned};
use super::solve::{Hosts, place};
use super::{InFlightNode, Placement, Solution, Target, Unschedulable, reservations, solve};
use crate::cluster::{Buffer, Phase, Pod, PodKey, Snapshot};
use crate::counted;

/// Answers where room is kept free; the pods in it are virtual, and exist nowhere else.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reserve {
    /// Virtual pods for which hosts have room, ordered by pod.
    pub placements: Vec<Placement>,
    /// Virtual pods for which nodes have room that the solution launches for real pods; by place in [`Solution::nodes`].
    pub joining: Vec<(PodKey, usize)>,
    /// Nodes to launch for virtual pods alone.
    pub nodes: Vec<InFlightNode>,
    /// Virtual pods that nothing can hold.
    pub unschedulable: Vec<Unschedulable>,
}

/// Says how far a buffer's room is there: its condition Provisioning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It asks for none.
    Empty,
    /// All of it is on nodes that exist.
    Fits {
        /// Virtual pods.
        pods: u32,
    },
    /// Some of it waits for nodes.
    Lacking {
        /// Virtual pods on nodes to come.
        launching: u32,
        /// Virtual pods without any.
        refused: u32,
        /// All of them.
        pods: u32,
    },
}

impl Room {
    /// Answers Karpenter's reason.
    pub const fn reason(self) -> &'static str {
        match self {
            Room::Empty => "BufferEmpty",
            Room::Fits { .. } => "FitsExistingCapacity",
            Room::Lacking { .. } => "RequiresNewCapacity",
        }
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Room::Empty => f.write_str("no pods are asked for"),
            Room::Fits { pods } => write!(f, "there is room for {}", counted(*pods as usize, "pod")),
            Room::Lacking { launching, refused, pods } => {
                let all = counted(*pods as usize, "pod");
                write!(f, "{launching} of {all} {} for nodes", if *pods == 1 { "waits" } else { "wait" })?;
                match refused {
                    0 => Ok(()),
                    1 => f.write_str(", 1 fits nowhere"),
                    more => write!(f, ", {more} fit nowhere"),
                }
            }
        }
    }
}

/// Answers where the virtual pods of the snapshot's buffers go, beside what a solution of the same snapshot placed.
pub fn reserve(snapshot: &Snapshot, solution: &Solution) -> Reserve {
    let pods: Vec<Arc<Pod>> = snapshot.buffers.iter().flat_map(|buffer| buffer.pods()).collect();
    if pods.is_empty() {
        return Reserve::default();
    }
    let ahead = Ahead::of(snapshot, solution, &pods);
    let problem = ahead.problem();
    let answer = place(&problem, pods, &Hosts::All);
    let mut reserve = Reserve { nodes: answer.nodes, unschedulable: answer.unschedulable, ..Reserve::default() };
    reserve.unschedulable.extend(reservations::hold_or_forgo(&problem, &mut reserve.nodes));
    for placement in answer.placements {
        match planned(&placement.target) {
            Some(at) => reserve.joining.push((placement.pod, at)),
            None => reserve.placements.push(placement),
        }
    }
    reserve
}

/// Answers a snapshot in which room that is kept for buffers is taken, so that disruption neither deletes nor gives it away.
pub fn with_room_taken(snapshot: Snapshot) -> Snapshot {
    if snapshot.buffers.is_empty() {
        return snapshot;
    }
    reserve(&snapshot, &solve(&snapshot)).occupied(&snapshot)
}

impl Reserve {
    /// Answers how far a buffer's room is there.
    pub fn room(&self, buffer: &Buffer) -> Room {
        let (there, coming): (Vec<&Placement>, Vec<&Placement>) =
            self.placements.iter().partition(|placement| matches!(placement.target, Target::Node(_)));
        let there = count(buffer, there.into_iter().map(|placement| &placement.pod));
        let launching = count(buffer, coming.into_iter().map(|placement| &placement.pod))
            + count(buffer, self.joining.iter().map(|(pod, _)| pod))
            + count(buffer, self.nodes.iter().flat_map(|node| &node.pods));
        let pods = buffer.replicas;
        match pods {
            0 => Room::Empty,
            _ if there == pods => Room::Fits { pods },
            _ => Room::Lacking { launching, refused: pods.saturating_sub(there + launching), pods },
        }
    }

    /// Answers the snapshot with the virtual pods on the nodes that have room for them, as though they ran there: the form in which
    /// disruption must see it, so that room kept free is neither empty nor given away.
    pub fn occupied(&self, snapshot: &Snapshot) -> Snapshot {
        let mut occupied = snapshot.clone();
        let targets: FxHashMap<&PodKey, &Arc<str>> = self
            .placements
            .iter()
            .filter_map(|placement| match &placement.target {
                Target::Node(name) => Some((&placement.pod, name)),
                Target::Claim(_) => None,
            })
            .collect();
        for pod in snapshot.buffers.iter().flat_map(|buffer| buffer.pods()) {
            if let Some(node) = targets.get(&pod.key) {
                let runs = Pod {
                    node: Some(Arc::clone(node)),
                    phase: Phase::Running,
                    unschedulable: false,
                    ready: true,
                    ..(*pod).clone()
                };
                occupied.pods.push(Arc::new(runs));
            }
        }
        occupied
    }
}

fn count<'p>(buffer: &Buffer, pods: impl Iterator<Item = &'p PodKey>) -> u32 {
    u32::try_from(pods.filter(|pod| buffer.owns(pod)).count()).unwrap_or(u32::MAX)
}

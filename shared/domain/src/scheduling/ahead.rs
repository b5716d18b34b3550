//! The snapshot in which planned nodes are there as claims, so that further pods are planned on top of them.

use std::sync::Arc;

use super::problem::Problem;
use super::{InFlightNode, Placement, Solution, Target};
use crate::cluster::{Pod, Snapshot};

/// Prefix of the names of nodes just planned, which no object can have.
const PLANNED: &str = "//planned/";

/// A snapshot with planned nodes as claims, and what is placed in it.
pub(super) struct Ahead {
    snapshot: Snapshot,
    placed: Solution,
}

impl Ahead {
    /// Goes ahead of a snapshot by what a solution of it does, for pods that the snapshot has and some more.
    pub(super) fn of(snapshot: &Snapshot, solution: &Solution, more: &[Arc<Pod>]) -> Self {
        let mut ahead = snapshot.clone();
        ahead.pods.extend(more.iter().cloned());
        let mut placed = Solution { placements: solution.placements.clone(), ..Solution::default() };
        for (at, node) in solution.nodes.iter().enumerate() {
            let claim = node.claim(format!("{PLANNED}{at}").into(), snapshot.now);
            let target = Target::Claim(claim.name.clone());
            placed
                .placements
                .extend(node.pods.iter().map(|pod| Placement { pod: pod.clone(), target: target.clone() }));
            ahead.claims.push(Arc::new(claim));
        }
        Ahead { snapshot: ahead, placed }
    }

    /// Goes ahead of a snapshot by nodes that are for no pod.
    pub(super) fn with(snapshot: &Snapshot, nodes: &[InFlightNode]) -> Snapshot {
        let solution = Solution { nodes: nodes.to_vec(), ..Solution::default() };
        Ahead::of(snapshot, &solution, &[]).snapshot
    }

    /// Answers the problem in which all that is placed takes its room.
    pub(super) fn problem(&self) -> Problem<'_> {
        let mut problem = Problem::new(&self.snapshot);
        problem.book(&self.placed);
        problem
    }
}

/// Answers the place, among the planned nodes, of the one that a pod was placed on; nothing for hosts that exist.
pub(super) fn planned(target: &Target) -> Option<usize> {
    match target {
        Target::Claim(name) => name.strip_prefix(PLANNED).and_then(|at| at.parse().ok()),
        Target::Node(_) => None,
    }
}

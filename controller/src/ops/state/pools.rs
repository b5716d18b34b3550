//! What pools have, may have and may lose, and why their nodes stay.

use std::collections::BTreeSet;
use std::sync::Arc;

use karp_domain::cluster::{Reason, Snapshot};
use karp_domain::disruption::allowed_disruptions;

use super::{Gauges, Observed, gauge, label};
use crate::ops::kept::KeptNode;

/// Tells of pools.
pub fn of_pools(observed: &Observed) -> Vec<Gauges> {
    let snapshot = &observed.snapshot;
    let mut used = gauge("karpenter_nodepools_usage", "Capacity that a pool's nodes have");
    let mut limits = gauge("karpenter_nodepools_limit", "Limits of a pool");
    for pool in snapshot.pools.iter().filter(|pool| pool.is_ours()) {
        let of = Arc::new(vec![label("nodepool", &*pool.name)]);
        if let Some(usage) = observed.usage.get(&*pool.name) {
            used.amounts(&of, usage);
        }
        limits.amounts(&of, &pool.limits);
    }
    let [may_go, consuming] = of_budgets(snapshot);
    vec![used, limits, may_go, consuming, of_kept(observed)]
}

/// What budgets let go, and what uses them up: for each reason the same nodes.
fn of_budgets(snapshot: &Snapshot) -> [Gauges; 2] {
    let mut may_go = gauge("karpenter_nodepools_allowed_disruptions", "Nodes of a pool that budgets let go now");
    let mut consuming =
        gauge("karpenter_nodepools_nodes_consuming_budgets", "Nodes of a pool that leave or are not ready");
    for of in allowed_disruptions(snapshot) {
        let labels = Arc::new(vec![label("nodepool", &*of.pool), label("reason", word(of.reason))]);
        may_go.push(&labels, Vec::new(), of.left.into());
        consuming.push(&labels, Vec::new(), of.consuming.into());
    }
    [may_go, consuming]
}

fn word(reason: Reason) -> String {
    format!("{reason:?}")
}

/// How many nodes that are still there the last plan left alone, and why.
fn of_kept(observed: &Observed) -> Gauges {
    let mut kept = gauge("karp_nodes_kept", "Nodes that the last plan of disruption left alone, by why");
    let snapshot = &observed.snapshot;
    let nodes: BTreeSet<&str> = snapshot.nodes.iter().map(|node| &*node.name).collect();
    let is_there =
        |kept: &KeptNode| nodes.contains(&*kept.node) && (kept.pool.is_empty() || snapshot.pool(&kept.pool).is_some());
    for ((pool, reason), count) in observed.kept.counts(is_there) {
        let of = Arc::new(vec![label("nodepool", &*pool), label("reason", reason)]);
        kept.push(&of, Vec::new(), count.into());
    }
    kept
}

//! What pools have, may have and may lose, and why their nodes stay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karp_domain::api::conditions;
use karp_domain::cluster::{Host, Readiness, Reason, Snapshot};
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
    let hosts = snapshot.hosts();
    let mut spent: BTreeMap<&str, u32> = BTreeMap::new();
    for pool in hosts.iter().filter(|host| consumes(host)).filter_map(Host::pool) {
        *spent.entry(pool).or_default() += 1;
    }
    for (pool, reason, left) in allowed_disruptions(snapshot) {
        let of = Arc::new(vec![label("nodepool", &*pool), label("reason", word(reason))]);
        may_go.push(&of, Vec::new(), left.into());
        consuming.push(&of, Vec::new(), spent.get(&*pool).copied().unwrap_or_default().into());
    }
    [may_go, consuming]
}

/// Says whether a node uses up its pool's budgets: it counted as one of the pool's, and pods cannot rely on it.
fn consumes(host: &Host) -> bool {
    let ended = host.claim.as_ref().is_some_and(|claim| claim.since(conditions::INSTANCE_TERMINATING).is_some());
    let counts = host.node.as_ref().filter(|node| node.is_initialized() && !ended);
    counts.is_some_and(|node| host.is_leaving() || node.ready != Readiness::Ready)
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

//! S-2 and S-3 as the world itself counts: what evictions leave of a workload, and how many nodes go at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::BudgetReason;
use crate::cluster::{PodKey, Pool, Share};
use crate::disruption::{Candidate, Command, begun};
use crate::sim::World;
use crate::sim::world::{Workload, is_tainted};

/// What goes of karp's own will, by node: of which pool, and for which reason.
pub(in crate::sim) type Disrupting = BTreeMap<String, (Arc<str>, BudgetReason)>;

/// S-2: what an eviction leaves is enough for the workload's budget, and its node is to go: no pod is evicted for another of its name.
pub(in crate::sim) fn is_evicted_rightly(world: &mut World, key: &PodKey) {
    let Some(pod) = world.pods.get(key) else { return };
    let mut broken = Vec::new();
    let own = |workload: &&Workload| workload.pod.labels == pod.labels;
    for (least, _) in world.workloads.iter().filter(own).filter_map(|workload| workload.budget.as_ref()) {
        let left = world.pods.values().filter(|one| one.ready && one.labels == pod.labels).count();
        if left < *least {
            broken.push(format!("{key} was evicted, and {left} pods are ready where {least} must be"));
        }
    }
    let node = pod.node.as_deref().and_then(|node| world.nodes.get(node));
    if node.is_some_and(|node| node.metadata.deletion_timestamp.is_none()) {
        broken.push(format!("{key} was evicted from a node that is not to go"));
    }
    broken.into_iter().for_each(|what| world.violate("S-2", what));
}

/// Notes what a command is about to take, which budgets were found to allow, and what its pools were seen to be then. Commands that wait meanwhile
/// for somebody to go on with them are counted no more: no budget was asked whether they may come on top.
pub(in crate::sim) fn begins(world: &mut World, pools: &[Arc<Pool>], command: &Command) {
    if command.cause.budget().is_none() {
        return;
    }
    forget_those_that_stay(world);
    let goes = |one: &Candidate| one.node.as_deref().is_some_and(|node| world.disrupting.contains_key(node));
    let waiting = begun(&world.snapshot()).into_iter().filter(|begun| !begun.command.candidates.iter().all(goes));
    let waiting: Vec<String> = waiting.flat_map(|begun| begun.replacements).map(|claim| claim.to_string()).collect();
    world.overtaken.extend(waiting);
    for Candidate { node, pool, .. } in &command.candidates {
        let seen = pools.iter().find(|seen| seen.name == *pool);
        world.promised.extend(node.as_ref().zip(seen).map(|(node, seen)| (node.to_string(), seen.clone())));
    }
    note(world, command);
}

/// Notes what a command takes that an earlier process began.
pub(in crate::sim) fn goes_on(world: &mut World, command: &Command, replacements: &[String]) {
    if !replacements.iter().any(|claim| world.overtaken.contains(claim)) {
        note(world, command);
    }
}

fn note(world: &mut World, command: &Command) {
    let Some(reason) = command.cause.budget() else { return };
    for candidate in &command.candidates {
        if let Some(node) = &candidate.node {
            world.disrupting.insert(node.to_string(), (candidate.pool.clone(), reason));
        }
    }
}

fn forget_those_that_stay(world: &mut World) {
    let nodes = &world.nodes;
    world.disrupting.retain(|node, _| nodes.get(node).is_some_and(is_tainted));
}

/// S-3: at every instant, no more nodes go of karp's own will than a budget lets go. A window asks what begins in it, and a share is of nodes that
/// may go by themselves: those are counted when a command begins. What a user changes is for the commands that begin when it is seen: as many nodes
/// go as were let go when the last of them was begun, and since then they have not become more.
pub(in crate::sim) fn hold_at_every_instant(world: &mut World) {
    forget_those_that_stay(world);
    if world.disrupting.is_empty() {
        return;
    }
    let mut broken = Vec::new();
    for pool in &world.pools {
        let own = || world.disrupting.iter().filter(|(_, (of, _))| *of == pool.name);
        let seen = own().map(|(node, _)| world.promised.get(node).unwrap_or(pool));
        let reasons: Vec<BudgetReason> = own().map(|(_, (_, reason))| *reason).collect();
        let told: Vec<String> = seen.map_while(|seen| too_many(seen, &reasons)).collect();
        if !reasons.is_empty() && told.len() == reasons.len() {
            broken.extend(told.into_iter().next());
        }
    }
    broken.into_iter().for_each(|what| world.violate("S-3", what));
}

/// Says what is wrong if nodes of a pool that go for these reasons are more than its budgets let go.
fn too_many(pool: &Pool, going: &[BudgetReason]) -> Option<String> {
    pool.budgets.iter().filter(|budget| budget.window.is_none()).find_map(|budget| {
        let Share::Count(most) = budget.nodes else { return None };
        let applies = |reason: &&BudgetReason| budget.reasons.as_ref().is_none_or(|all| all.contains(reason));
        let going = going.iter().filter(applies).count();
        (going > most as usize).then(|| format!("{going} nodes of pool {} go at a time, {most} may", pool.name))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalogue::Catalogue;

    fn pool(nodes: &str) -> Arc<Pool> {
        let pool = json!({"kind": "NodePool", "apiVersion": "karpenter.sh/v1", "metadata": {"name": "default", "uid": "p"},
            "spec": {"disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": nodes}]},
                "template": {"spec": {"requirements": [], "expireAfter": "Never",
                    "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}}}}});
        Arc::new(Pool::from_kube(&serde_json::from_value(pool).unwrap()).unwrap())
    }

    /// What is told of two nodes that go, each begun when the pool let so many go, while it lets so many go now.
    fn told(begun: [&str; 2], now: &str) -> usize {
        let pools = vec![Pool::clone(&pool(now))];
        let mut world = World::new(jiff::Timestamp::UNIX_EPOCH, Catalogue::default(), pools, Vec::new());
        for (node, nodes) in ["a", "b"].into_iter().zip(begun) {
            let going = json!({"metadata": {"name": node}, "spec": {"taints": [
                {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}});
            world.nodes.insert(node.to_owned(), serde_json::from_value(going).unwrap());
            world.disrupting.insert(node.to_owned(), ("default".into(), BudgetReason::Drifted));
            world.promised.insert(node.to_owned(), pool(nodes));
        }
        hold_at_every_instant(&mut world);
        world.violations.len()
    }

    #[test]
    fn what_a_user_changes_is_for_the_next_commands() {
        assert_eq!(told(["2", "2"], "2"), 0);
        assert_eq!(told(["2", "2"], "0"), 0, "lowered since");
        assert_eq!(told(["1", "2"], "1"), 0, "raised for a while");
        assert_eq!(told(["1", "1"], "1"), 1);
        assert_eq!(told(["1", "1"], "2"), 1, "raised since");
    }
}

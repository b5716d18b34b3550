//! What keeps a node that drifts: the rules by which the controller chooses candidates (`karp_domain::disruption`), told before they apply.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use karp_domain::api::{NodeClaim, conditions, labels};
use karp_domain::cluster::{Node, Owner, Pod, PodBudget, Pool, blocking};
use karp_domain::quantity::Quantity;
use kube::ResourceExt;

use super::pace::room;
use super::{Drifting, Impact};

/// What is around the drifting nodes and may forbid to disrupt them.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// The Nodes; of each, what its metadata say.
    pub nodes: Vec<Node>,
    /// The pods on them, and others.
    pub pods: Vec<Pod>,
    /// All PodDisruptionBudgets.
    pub budgets: Vec<Arc<PodBudget>>,
}

/// Notes what a claim alone tells against disrupting its node.
pub fn look_at_claim(claim: &NodeClaim, pool: Option<&Pool>, node: &mut Drifting) {
    let status = claim.status.as_ref();
    let initialized = status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::INITIALIZED));
    let why = pool.is_none().then(|| "it belongs to no NodePool".to_owned());
    node.stays = why.is_some();
    node.forced = claim.spec.grace().is_some();
    node.blocked_by = why.or_else(|| match status.and_then(|status| status.node_name.as_ref()) {
        None => Some("it has no Node yet".to_owned()),
        Some(_) if !initialized => Some("its Node is not initialized yet".to_owned()),
        Some(_) if asks_for_peace(claim.annotations()) => Some(told_of("NodeClaim", &claim.name_any())),
        Some(_) => pool
            .and_then(shut)
            .map(|limit| format!("`limits.nodes` is {limit}, and it is there beside the one in its place for a while")),
    });
}

/// Answers the limit that leaves a static pool with all its replicas no room for one more: a node of it goes when another is there.
fn shut(pool: &Pool) -> Option<Quantity> {
    room(pool).filter(|(_, room)| *room == 0).map(|(limit, _)| limit)
}

/// Finds what keeps pods on the nodes: pods that say so, and budgets without allowance.
pub fn obstacles(around: &Surroundings, now: Timestamp) -> BTreeSet<String> {
    let nodes: BTreeSet<&str> = around.nodes.iter().map(|node| &*node.name).collect();
    let budgets = around.by_namespace();
    let here = |pod: &&Pod| pod.node.as_deref().is_some_and(|node| nodes.contains(node));
    around.staying().filter(here).filter_map(|pod| obstacle_of(pod, &budgets, now)).collect()
}

/// Finds what else forbids to disrupt the drifting nodes now: Nodes and pods that say so, and budgets without allowance.
pub fn block(impact: &mut Impact, around: &Surroundings, now: Timestamp) {
    let peaceful: BTreeSet<&str> =
        around.nodes.iter().filter(|node| node.is_protected()).map(|node| &*node.name).collect();
    let mut on: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in around.staying() {
        if let Some(node) = &pod.node {
            on.entry(node).or_default().push(pod);
        }
    }
    let budgets = around.by_namespace();
    for node in impact.drifting.iter_mut().filter(|node| node.blocked_by.is_none()) {
        if peaceful.contains(node.name.as_str()) {
            node.blocked_by = Some(told_of("Node", &node.name));
        } else if !node.forced {
            let mut pods = on.get(node.name.as_str()).into_iter().flatten();
            node.blocked_by = pods.find_map(|pod| obstacle_of(pod, &budgets, now));
        }
    }
}

impl Surroundings {
    /// The pods that do not go by themselves.
    fn staying(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(|pod| pod.holds_resources() && pod.deletes_at.is_none())
    }

    fn by_namespace(&self) -> BTreeMap<&str, Vec<Arc<PodBudget>>> {
        let mut budgets: BTreeMap<&str, Vec<Arc<PodBudget>>> = BTreeMap::new();
        for budget in &self.budgets {
            budgets.entry(&budget.key.namespace).or_default().push(Arc::clone(budget));
        }
        budgets
    }
}

fn obstacle_of(pod: &Pod, budgets: &BTreeMap<&str, Vec<Arc<PodBudget>>>, now: Timestamp) -> Option<String> {
    let budgets = budgets.get(&*pod.key.namespace).map(Vec::as_slice).unwrap_or_default();
    if pod.is_protected(now) {
        return Some(told_of("pod", &pod.key.to_string()));
    }
    // These are never evicted.
    if pod.owner == Owner::Node || labels::disrupted_taint().tolerated_by(&pod.shape.tolerations) {
        return None;
    }
    blocking(budgets, pod).map(|budget| format!("PodDisruptionBudget {} (pod {})", budget.key, pod.key))
}

fn asks_for_peace(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(labels::DO_NOT_DISRUPT).is_some_and(|value| value == "true")
}

fn told_of(kind: &str, name: &str) -> String {
    format!("{kind} {name} ({})", labels::DO_NOT_DISRUPT)
}

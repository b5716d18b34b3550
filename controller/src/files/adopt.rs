//! Nodes of a file whose NodeClaims are not in it.

use std::collections::BTreeSet;
use std::sync::Arc;

use karp_domain::api::conditions::{Condition, INITIALIZED, LAUNCHED, REGISTERED};
use karp_domain::api::labels;
use karp_domain::cluster::{Claim, Node, Pool, Readiness, Snapshot};
use karp_domain::requirement::Requirements;

/// Gives each node with the label of one of these pools a claim when it has none, so that plain objects (`kubectl get nodes,pods,nodepools`)
/// can be asked what karp would do with such nodes. Answers how many claims were made.
pub fn adopt(snapshot: &mut Snapshot, of: impl Fn(&Pool) -> bool) -> usize {
    let ids: BTreeSet<Arc<str>> = snapshot.claims.iter().filter_map(|claim| claim.provider_id.clone()).collect();
    let names: BTreeSet<Arc<str>> = snapshot.claims.iter().filter_map(|claim| claim.node_name.clone()).collect();
    let has_claim =
        |node: &Node| node.provider_id.as_ref().is_some_and(|id| ids.contains(id)) || names.contains(&node.name);
    let mut claims = Vec::new();
    for node in &mut snapshot.nodes {
        let pool = node.pool().and_then(|name| snapshot.pools.iter().find(|pool| &*pool.name == name));
        let Some(pool) = pool.filter(|pool| pool.is_ours() && of(pool) && !has_claim(node)) else { continue };
        let mut known = Node::clone(node);
        known.provider_id.get_or_insert_with(|| format!("file:///{}", node.name).into());
        for label in [labels::REGISTERED, labels::INITIALIZED] {
            known.labels.entry(label.to_owned()).or_insert_with(|| "true".to_owned());
        }
        if known.ready == Readiness::NotReady(None) {
            known.ready = Readiness::Ready;
        }
        claims.push(Arc::new(claim(&known, pool)));
        *node = Arc::new(known);
    }
    let made = claims.len();
    snapshot.claims.extend(claims);
    made
}

/// The claim that a node would have.
fn claim(node: &Node, pool: &Pool) -> Claim {
    let since = node.created.unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    Claim {
        name: node.name.clone(),
        uid: node.uid.clone(),
        pool: Some(pool.name.clone()),
        class: pool.class.clone(),
        labels: node.labels.clone(),
        annotations: node.annotations.clone(),
        requirements: Requirements::from_labels(&node.labels),
        requests: node.allocatable.clone(),
        taints: node.taints.clone(),
        startup_taints: Vec::new(),
        // when it would expire is not known
        expire_after: None,
        termination_grace: pool.termination_grace,
        provider_id: node.provider_id.clone(),
        node_name: Some(node.name.clone()),
        capacity: node.capacity.clone(),
        allocatable: node.allocatable.clone(),
        conditions: [LAUNCHED, REGISTERED, INITIALIZED].map(|kind| Condition::met(kind, since)).to_vec(),
        last_pod_event: None,
        created: since,
        deleting: None,
        finalizers: Vec::new(),
    }
}

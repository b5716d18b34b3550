//! A node joins: it is matched to its claim by provider id, gets its labels and taints, opens to the pods it was planned for,
//! and is initialized once it can run them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use karp_domain::api::conditions::{self, ConditionStatus};
use karp_domain::api::{NodeClaim, labels};
use karp_domain::cluster::{MOST_NOMINATED, Node as ReadNode, Pod, PodKey, compete, nominated};
use karp_domain::lifecycle::{self, Outcome, Step};
use kube::ResourceExt;
use kube::runtime::controller::Action;
use serde_json::json;

use super::{Context, Error, node_claim};
use crate::effect::{self, Effect};
use crate::ops::events::Reason;
use crate::ops::metrics::PoolZoneLabels;

/// Planned pods are nominated again for this long after their node opened: kube-scheduler clears the field on every failed try.
const NOMINATE_FOR: Duration = Duration::from_secs(30);

/// Gives the node of a launched claim what the claim says, and opens it.
pub async fn register(claim: &NodeClaim, node: &Node, context: &Context) -> Result<Action, Error> {
    let claim = &located(claim, context).await?;
    let registered = node.labels().get(labels::REGISTERED).is_some_and(|value| value == "true");
    if !registered {
        let nominations = nominations(claim, context, &node.name_any());
        if nominations.is_empty() {
            effect::edit_node(&context.client, node, |node| Some(lifecycle::admit(claim, node))).await?;
        } else {
            // pods that are nominated before the node opens are the first on it
            effect::edit_node(&context.client, node, |node| Some(lifecycle::adopt(claim, node))).await?;
            nominate(context, &nominations).await;
            effect::edit_node(&context.client, node, |node| Some(lifecycle::open(node))).await?;
        }
    }
    let opened = ReadNode::from_kube(node).map(|mut read| {
        read.taints.retain(|taint| taint.key != labels::UNREGISTERED);
        read
    });
    node_claim::write(context, claim, |status, now| {
        status.node_name = Some(node.name_any());
        conditions::set(&mut status.conditions, conditions::REGISTERED, ConditionStatus::True, "", "", now);
        // what it waits for from now on is told by the same write
        let joined = NodeClaim { status: Some(status.clone()), ..claim.clone() };
        let next = opened.ok().map(|read| lifecycle::next(&joined, Some(&read), None, now).step);
        if let Some(Step::AwaitReady(obstacle)) = next {
            let (unknown, message) = (ConditionStatus::Unknown, obstacle.to_string());
            let all = &mut status.conditions;
            conditions::set(all, conditions::INITIALIZED, unknown, obstacle.reason(), &message, now);
        }
    })
    .await?;
    context.health.note(claim, Outcome::Joined, Timestamp::now());
    let zone = node.labels().get(labels::ZONE).cloned().unwrap_or_default();
    let labels = PoolZoneLabels::new(node_claim::pool_of(claim), zone);
    context.metrics.nodes_created.get_or_create(&labels).inc();
    tracing::info!(
        NodeClaim.name = claim.name_any(),
        Node.name = node.name_any(),
        "provider-id" = node_claim::provider_id(claim).unwrap_or_default(),
        "registered nodeclaim"
    );
    Ok(Action::requeue(Duration::ZERO))
}

/// Labels a claim with the partition of its placement group, where EC2 chose it: answers to launches do not tell, instances that run do.
async fn located(claim: &NodeClaim, context: &Context) -> Result<NodeClaim, Error> {
    let has = |key: &str| claim.labels().contains_key(key);
    let asked = has(labels::PLACEMENT_GROUP_ID) && !has(labels::PLACEMENT_GROUP_PARTITION);
    let Some(id) = node_claim::provider_id(claim).filter(|_| asked) else { return Ok(claim.clone()) };
    let Some(partition) = context.cloud.get(id).await?.instance().and_then(|instance| instance.partition) else {
        return Ok(claim.clone());
    };
    let label = json!({ "labels": { (labels::PLACEMENT_GROUP_PARTITION): partition.to_string() } });
    Ok(node_claim::stamp(context, claim, label).await?)
}

/// Tells that a node has joined without the taint that keeps pods off until it is registered.
pub async fn refuse(claim: &NodeClaim, node: Option<&Node>, context: &Context, message: &str) -> Result<(), Error> {
    if let Some(node) = node {
        context.events.publish(&effect::reference(node), Reason::UnregisteredTaintMissing, message);
    }
    tell(claim, context, conditions::REGISTERED, "UnregisteredTaintMissing", message).await
}

/// Tells in a condition what a claim waits for.
pub async fn tell(
    claim: &NodeClaim,
    context: &Context,
    condition: &str,
    reason: &str,
    message: &str,
) -> Result<(), Error> {
    let unknown = ConditionStatus::Unknown;
    node_claim::write(context, claim, |status, now| {
        conditions::set(&mut status.conditions, condition, unknown, reason, message, now);
    })
    .await?;
    Ok(())
}

/// Returns what tells kube-scheduler which pods the node was made for, where others could take their places.
fn nominations(claim: &NodeClaim, context: &Context, node: &str) -> Vec<Effect> {
    let waits = |key: &PodKey| context.stores.pods.get(key).filter(|pod| pod.is_waiting());
    let (own, planned) = {
        let plan = context.plans.last();
        let own: Vec<Arc<Pod>> = plan.of_claim(&claim.name_any()).filter_map(waits).collect();
        let planned: Vec<Arc<Pod>> = match own.iter().any(|pod| pod.shape.most_nominated().is_some()) {
            true => plan.planned().filter_map(waits).collect(),
            false => own.clone(),
        };
        (own, planned)
    };
    if own.is_empty() {
        return Vec::new();
    }
    let waiting = context.stores.pods.waiting();
    // kube-scheduler may well read what this process cannot
    let is_sure = !context.stores.pods.is_any_unread_unbound();
    if waiting.len() > MOST_NOMINATED && is_sure && !compete(waiting.iter().map(|pod| &**pod)) {
        return Vec::new();
    }
    let may_be = nominated(planned.iter().map(|pod| &**pod));
    let room = MOST_NOMINATED.saturating_sub(waiting.iter().filter(|pod| pod.nominated.is_some()).count());
    let own = own.iter().filter(|pod| may_be.contains(&pod.key) && pod.nominated.as_deref() != Some(node)).take(room);
    own.map(|pod| Effect::Nominate { pod: pod.key.clone(), uid: pod.uid.clone(), node: node.into() }).collect()
}

async fn nominate(context: &Context, nominations: &[Effect]) {
    for result in join_all(nominations.iter().map(|effect| effect::apply(&context.client, effect))).await {
        if let Err(error) = result {
            // A plan that is not helped along still is a plan.
            tracing::debug!(%error, "could not nominate a pod");
        }
    }
}

/// Nominates again what kube-scheduler cleared, while the node is young.
pub async fn renominate(claim: &NodeClaim, context: &Context) {
    let name = claim.status.as_ref().and_then(|status| status.node_name.clone());
    let opened = node_claim::since(claim, conditions::REGISTERED);
    if let (Some(name), Some(opened)) = (name, opened)
        && Timestamp::now().duration_since(opened).unsigned_abs() < NOMINATE_FOR
    {
        nominate(context, &nominations(claim, context, &name)).await;
    }
}

/// Marks a node and its claim initialized: nothing stands between it and its pods.
pub async fn initialize(
    claim: &NodeClaim,
    node: &Node,
    read: &ReadNode,
    quiet: Option<SignedDuration>,
    context: &Context,
) -> Result<Action, Error> {
    if node.labels().get(labels::INITIALIZED).is_none_or(|value| value != "true") {
        effect::label_node(&context.client, node, (labels::INITIALIZED, "true")).await?;
    }
    let written = node_claim::write(context, claim, |status, now| {
        // what was promised stays in sight, so that a node that lacks some of it is found
        status.capacity.get_or_insert_with(|| read.capacity.clone());
        status.allocatable = Some(read.allocatable.clone());
        conditions::set(&mut status.conditions, conditions::INITIALIZED, ConditionStatus::True, "", "", now);
        // what is known of it from then on is told by the same write
        let runs = NodeClaim { status: Some(status.clone()), ..claim.clone() };
        if let Step::Live(found) = lifecycle::next(&runs, Some(read), quiet, now).step {
            node_claim::set_live(&mut status.conditions, &found, now);
        }
    })
    .await?;
    if lifecycle::is_true(&written, conditions::CONSOLIDATABLE) {
        context.disrupt.notify_one();
    }
    tracing::info!(
        NodeClaim.name = claim.name_any(),
        Node.name = node.name_any(),
        "provider-id" = node_claim::provider_id(claim).unwrap_or_default(),
        allocatable = serde_json::to_string(&read.allocatable).unwrap_or_default(),
        "initialized nodeclaim"
    );
    Ok(Action::requeue(Duration::ZERO))
}

/// Returns a claim's node, by instance.
pub fn node(claim: &NodeClaim, context: &Context) -> Option<Arc<Node>> {
    node_claim::provider_id(claim).and_then(|id| context.stores.node_of(id))
}

#[cfg(test)]
mod tests {
    use super::super::testing::Server;
    use super::*;

    #[tokio::test]
    async fn a_node_that_pods_were_not_kept_off_is_told_of() {
        let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
        let server = Server::of([
            json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": "c", "uid": "c" },
                "spec": { "requirements": [], "nodeClassRef": class },
            }),
            json!({ "kind": "Node", "metadata": { "name": "n", "uid": "n" } }),
        ]);
        let context = server.context().await;
        let (claim, node) = (context.stores.claim("c").expect("a claim"), context.stores.node("n").expect("a node"));
        refuse(&claim, Some(&node), &context, "it lacks a taint").await.expect("answers");
        assert_eq!(server.told("UnregisteredTaintMissing", "n").await, "it lacks a taint");
        let claim = server.get("nodeclaims/c");
        let told = claim["status"]["conditions"].as_array().expect("conditions");
        let registered = told.iter().find(|one| one["type"] == "Registered").expect("the condition");
        assert_eq!(registered["status"], "Unknown");
        assert_eq!(registered["reason"], "UnregisteredTaintMissing");
    }
}

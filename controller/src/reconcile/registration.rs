//! A node joins: it is matched to its claim by provider id, gets its labels and taints, opens to the pods it was planned for,
//! and is initialized once it can run them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use karp_domain::api::conditions::{self, ConditionStatus};
use karp_domain::api::{NodeClaim, TaintSpec, labels};
use karp_domain::cluster::{Node as ReadNode, Readiness, is_ephemeral};
use karp_domain::resources::Resources;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use serde_json::{Value, json};

use super::{Context, Error, node_claim};
use crate::effect::{self, Effect};
use crate::ops::events::Reason;
use crate::ops::metrics::PoolZoneLabels;

/// A node that is not initialized yet is looked at this often, besides at each change.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Planned pods are nominated again for this long after their node opened: kube-scheduler clears the field on every failed try.
const NOMINATE_FOR: Duration = Duration::from_secs(30);

/// Says how far registration went.
pub enum Step {
    /// The claim is registered.
    Done,
    /// The node has not joined, or not as it should.
    Waiting,
}

/// Takes a launched claim towards its node.
pub async fn register(claim: &NodeClaim, context: &Context) -> Result<Step, Error> {
    let Some(node) = node_claim::provider_id(claim).and_then(|id| context.stores.node_of(id)) else {
        return Ok(Step::Waiting);
    };
    let registered = node.labels().get(labels::REGISTERED).is_some_and(|value| value == "true");
    if !registered {
        if taints(&node).iter().all(|taint| taint.key != labels::UNREGISTERED) {
            let message = format!("Node {} is missing taint {}", node.name_any(), labels::UNREGISTERED);
            context.events.publish(&effect::reference(&*node), Reason::UnregisteredTaintMissing, &message);
            node_claim::write(context, claim, |status, now| {
                let all = &mut status.conditions;
                let reason = "UnregisteredTaintMissing";
                conditions::set(all, conditions::REGISTERED, ConditionStatus::Unknown, reason, &message, now);
            })
            .await?;
            return Ok(Step::Waiting);
        }
        effect::edit_node(&context.client, &node.name_any(), |node| Some(sync(claim, node))).await?;
        nominate(claim, context, &node.name_any()).await;
        effect::edit_node(&context.client, &node.name_any(), |node| Some(open(node))).await?;
    }
    node_claim::write(context, claim, |status, now| {
        status.node_name = Some(node.name_any());
        conditions::set(&mut status.conditions, conditions::REGISTERED, ConditionStatus::True, "", "", now);
    })
    .await?;
    let zone = node.labels().get(labels::ZONE).cloned().unwrap_or_default();
    let labels = PoolZoneLabels::new(node_claim::pool_of(claim), zone);
    context.metrics.nodes_created.get_or_create(&labels).inc();
    tracing::info!(
        NodeClaim.name = claim.name_any(),
        Node.name = node.name_any(),
        "provider-id" = node_claim::provider_id(claim).unwrap_or_default(),
        "registered nodeclaim"
    );
    Ok(Step::Done)
}

fn taints(node: &Node) -> Vec<Taint> {
    node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default()
}

/// Makes the patch that gives a node what its claim says: labels, annotations, taints, owner and finalizer.
fn sync(claim: &NodeClaim, node: &Node) -> Value {
    let mut all = taints(node);
    if node.labels().get(labels::DO_NOT_SYNC_TAINTS).is_none_or(|value| value != "true") {
        for spec in claim.spec.taints.iter().chain(&claim.spec.startup_taints) {
            if all.iter().all(|taint| !same(taint, spec)) {
                all.push(Taint {
                    key: spec.key.clone(),
                    value: spec.value.clone(),
                    effect: spec.effect.as_str().to_owned(),
                    time_added: None,
                });
            }
        }
    }
    let mut finalizers = node.finalizers().to_vec();
    if finalizers.iter().all(|known| known != labels::TERMINATION_FINALIZER) {
        finalizers.push(labels::TERMINATION_FINALIZER.to_owned());
    }
    let mut owners = node.owner_references().to_vec();
    if owners.iter().all(|owner| Some(&owner.uid) != claim.metadata.uid.as_ref()) {
        owners.push(k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
            api_version: "karpenter.sh/v1".to_owned(),
            kind: "NodeClaim".to_owned(),
            name: claim.name_any(),
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            block_owner_deletion: Some(true),
            controller: None,
        });
    }
    let mut annotations: BTreeMap<&String, &String> = claim.annotations().iter().collect();
    annotations.retain(|key, _| !key.starts_with("karp.sh/"));
    json!({
        "metadata": {
            "labels": claim.labels(),
            "annotations": annotations,
            "finalizers": finalizers,
            "ownerReferences": owners,
        },
        "spec": { "taints": all },
    })
}

fn same(taint: &Taint, spec: &TaintSpec) -> bool {
    taint.key == spec.key && taint.effect == spec.effect.as_str()
}

/// Makes the patch that opens a node: the unregistered taint goes.
fn open(node: &Node) -> Value {
    let mut left = taints(node);
    left.retain(|taint| taint.key != labels::UNREGISTERED);
    json!({ "metadata": { "labels": { (labels::REGISTERED): "true" } }, "spec": { "taints": left } })
}

/// Tells kube-scheduler which pods the node was made for.
async fn nominate(claim: &NodeClaim, context: &Context, node: &str) {
    let waiting = context
        .plans
        .pods(&claim.name_any())
        .into_iter()
        .filter_map(|key| context.stores.pods.get(&key))
        .filter(|pod| pod.node.is_none() && pod.deletes_at.is_none() && pod.nominated.as_deref() != Some(node));
    let effects: Vec<Effect> =
        waiting.map(|pod| Effect::Nominate { pod: pod.key.clone(), uid: pod.uid.clone(), node: node.into() }).collect();
    for result in join_all(effects.iter().map(|effect| effect::apply(&context.client, effect))).await {
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
        nominate(claim, context, &name).await;
    }
}

/// Takes a registered claim towards a node that pods run on.
pub async fn initialize(claim: &NodeClaim, context: &Context) -> Result<Action, Error> {
    renominate(claim, context).await;
    let node = node_claim::provider_id(claim).and_then(|id| context.stores.node_of(id));
    let obstacle = match &node {
        None => Some(("NodeNotFound", "Node not registered with cluster".to_owned())),
        Some(node) => obstacle(claim, &ReadNode::from_kube(node)?),
    };
    let (Some(node), None) = (&node, &obstacle) else {
        let (reason, message) = obstacle.unwrap_or_default();
        node_claim::write(context, claim, |status, now| {
            let all = &mut status.conditions;
            conditions::set(all, conditions::INITIALIZED, ConditionStatus::Unknown, reason, &message, now);
        })
        .await?;
        return Ok(Action::requeue(LOOK_AGAIN));
    };
    effect::edit_node(&context.client, &node.name_any(), |node| {
        let missing = node.labels().get(labels::INITIALIZED).is_none_or(|value| value != "true");
        missing.then(|| json!({ "metadata": { "labels": { (labels::INITIALIZED): "true" } } }))
    })
    .await?;
    let read = ReadNode::from_kube(node)?;
    node_claim::write(context, claim, |status, now| {
        status.capacity = Some(read.capacity.clone());
        status.allocatable = Some(read.allocatable.clone());
        conditions::set(&mut status.conditions, conditions::INITIALIZED, ConditionStatus::True, "", "", now);
    })
    .await?;
    tracing::info!(
        NodeClaim.name = claim.name_any(),
        Node.name = node.name_any(),
        "provider-id" = node_claim::provider_id(claim).unwrap_or_default(),
        allocatable = serde_json::to_string(&read.allocatable).unwrap_or_default(),
        "initialized nodeclaim"
    );
    Ok(Action::requeue(Duration::ZERO))
}

/// Says what keeps a node from running pods yet.
fn obstacle(claim: &NodeClaim, node: &ReadNode) -> Option<(&'static str, String)> {
    if node.ready != Readiness::Ready {
        return Some(("NodeNotReady", "Node status is NotReady".to_owned()));
    }
    let startup = claim
        .spec
        .startup_taints
        .iter()
        .find(|spec| node.taints.iter().any(|taint| taint.key == spec.key && taint.effect == spec.effect));
    if let Some(taint) = startup {
        return Some(("StartupTaintsExist", format!("StartupTaint {:?} still exists", taint.key)));
    }
    if let Some(taint) = node.taints.iter().find(|taint| is_ephemeral(taint)) {
        return Some(("KnownEphemeralTaintsExist", format!("KnownEphemeralTaint {:?} still exists", taint.key)));
    }
    let requests: &Resources = &claim.spec.resources.requests;
    let unregistered = requests
        .iter()
        .find(|(name, amount)| amount.is_positive() && name.contains('/') && !node.allocatable.get(name).is_positive());
    unregistered
        .map(|(name, _)| ("ResourceNotRegistered", format!("Resource {name:?} was requested but not registered")))
}

/// Returns a claim's node, by instance.
pub fn node(claim: &NodeClaim, context: &Context) -> Option<Arc<Node>> {
    node_claim::provider_id(claim).and_then(|id| context.stores.node_of(id))
}

#[cfg(test)]
mod tests {
    use karp_domain::api::NodeClaimSpec;
    use karp_domain::quantity::Quantity;
    use karp_domain::taint::TaintEffect;

    use super::*;

    fn claim() -> NodeClaim {
        let startup =
            TaintSpec { key: "cni/agent".to_owned(), value: None, effect: TaintEffect::NoSchedule, time_added: None };
        let spec = NodeClaimSpec { startup_taints: vec![startup], ..NodeClaimSpec::default() };
        let mut claim = NodeClaim::new("default-abc", spec);
        claim.metadata.uid = Some("uid".to_owned());
        claim.metadata.labels = Some(BTreeMap::from([("team".to_owned(), "a".to_owned())]));
        claim.metadata.annotations = Some(BTreeMap::from([
            ("karp.sh/launch-attempt".to_owned(), "1".to_owned()),
            ("note".to_owned(), "n".to_owned()),
        ]));
        claim
    }

    fn joined() -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": "n", "labels": { "kubernetes.io/os": "linux" } },
            "spec": { "taints": [{ "key": labels::UNREGISTERED, "effect": "NoExecute" }] },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }))
        .expect("a node")
    }

    #[test]
    fn a_node_gets_what_its_claim_says_before_it_opens() {
        let patch = sync(&claim(), &joined());
        assert_eq!(patch["metadata"]["labels"], json!({ "team": "a" }));
        assert_eq!(patch["metadata"]["annotations"], json!({ "note": "n" }));
        assert_eq!(patch["metadata"]["finalizers"], json!([labels::TERMINATION_FINALIZER]));
        assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], "uid");
        let keys: Vec<&str> =
            patch["spec"]["taints"].as_array().expect("taints").iter().filter_map(|t| t["key"].as_str()).collect();
        assert_eq!(keys, [labels::UNREGISTERED, "cni/agent"]);
        let opened = open(&joined());
        assert_eq!(opened["spec"]["taints"], json!([]));
        assert_eq!(opened["metadata"]["labels"][labels::REGISTERED], "true");
    }

    #[test]
    fn a_label_keeps_taints_as_they_are() {
        let mut node = joined();
        node.labels_mut().insert(labels::DO_NOT_SYNC_TAINTS.to_owned(), "true".to_owned());
        assert_eq!(sync(&claim(), &node)["spec"]["taints"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn a_node_is_initialized_when_nothing_stands_in_the_way() {
        let mut claim = claim();
        let mut node = ReadNode::from_kube(&joined()).expect("readable");
        assert_eq!(obstacle(&claim, &node).map(|o| o.0), Some("KnownEphemeralTaintsExist"));
        node.taints.clear();
        assert_eq!(obstacle(&claim, &node), None);
        claim.spec.resources.requests = Resources::new().with("nvidia.com/gpu", Quantity::from_units(1));
        assert_eq!(obstacle(&claim, &node).map(|o| o.0), Some("ResourceNotRegistered"));
        node.ready = Readiness::NotReady(None);
        assert_eq!(obstacle(&claim, &node).map(|o| o.0), Some("NodeNotReady"));
    }
}

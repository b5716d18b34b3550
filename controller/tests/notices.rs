//! What AWS announces of instances, on a real control plane and the emulated AWS: plans, advice and failed checks, each by the way that it
//! comes.
//!
//! Runs when `KARP_TEST_KUBECONFIG`, `KARP_TEST_AWS_ENDPOINT` and `KARP_TEST_CLUSTER` name a sandbox; `cargo verify` starts one.

mod support;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karp_domain::api::{NodeClaim, NodePool, conditions, labels};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use support::stand::{Stand, instance_of, since};
use support::{create, until};

/// How long something that must not happen is watched for.
const WATCH: Duration = Duration::from_secs(5);

/// An event as EventBridge puts it into the queue.
fn event(source: &str, kind: &str, detail: &Value) -> String {
    let now = format!("{:.0}", Timestamp::now());
    json!({
        "version": "0", "id": "7a2b0c1e-5d3f-4a86-9c1d-2f6b8e0a4c5d", "detail-type": kind, "source": source,
        "account": "123456789012", "time": now, "region": "us-east-1", "resources": [], "detail": detail,
    })
    .to_string()
}

fn retirement(instance: &str, status: &str) -> String {
    let detail = json!({
        "service": "EC2", "eventTypeCategory": "scheduledChange", "statusCode": status,
        "eventTypeCode": "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED",
        "affectedEntities": [{ "entityValue": instance, "status": "PENDING" }],
    });
    event("aws.health", "AWS Health Event", &detail)
}

/// Makes a stand with one pod that runs on an initialized node; returns the node's claim, too.
async fn one_node(purpose: &str, capacity_type: &str) -> Option<(Stand, NodeClaim)> {
    let mut stand = Stand::open(purpose).await?;
    stand.pool(&[capacity_type]).await;
    stand.start();
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let claim = the_claim(&stand).await;
    Some((stand, claim))
}

/// Waits until the pool has one claim, and its node is initialized.
async fn the_claim(stand: &Stand) -> NodeClaim {
    let mut found = None;
    until("one node is initialized", async || {
        let mut claims = stand.mine::<NodeClaim>().await;
        found = claims.pop().filter(|claim| claims.is_empty() && since(claim, conditions::INITIALIZED).is_some());
        found.is_some()
    })
    .await;
    found.expect("a claim")
}

/// Waits until a claim is gone and its pods run elsewhere; returns when its end was asked for.
async fn until_replaced(stand: &Stand, old: &NodeClaim) -> Timestamp {
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    let mut asked = None;
    until("the old claim is gone", async || match claims.get_opt(&old.name_any()).await {
        Ok(Some(claim)) => {
            asked = claim.metadata.deletion_timestamp.map(|time| time.0).or(asked);
            false
        }
        Ok(None) => true,
        Err(_) => false,
    })
    .await;
    stand.until_running(1).await;
    asked.expect("its end was seen")
}

/// Asserts that the replacement was ready before the end of the old node was asked for, which the API server tells by the second.
async fn replaced_first(stand: &Stand, asked: Timestamp) -> NodeClaim {
    let new = the_claim(stand).await;
    let ready = since(&new, conditions::INITIALIZED).expect("it is ready");
    assert!(ready.as_second() <= asked.as_second(), "ready at {ready}, the drain began at {asked}");
    new
}

/// Returns the value of a counter in the metrics, by what its line contains.
fn counted(metrics: &str, parts: &[&str]) -> Option<u64> {
    let line = metrics.lines().find(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test]
async fn a_node_leaves_before_its_instance_is_retired() {
    let Some((stand, old)) = one_node("retired", "on-demand").await else { return };
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    stand.aws.send(&retirement(&instance_of(&old), "closed")).await;
    stand.aws.send(&retirement("i-00000000000000bad", "upcoming")).await;
    until("the queue is empty", async || stand.aws.queued().await == 0).await;
    tokio::time::sleep(WATCH).await;
    assert_eq!(claims.get(&old.name_any()).await.expect("it stays").annotations(), old.annotations());

    stand.aws.send(&retirement(&instance_of(&old), "upcoming")).await;
    let asked = until_replaced(&stand, &old).await;
    let second = replaced_first(&stand, asked).await;
    assert!(!stand.events("InstanceUnhealthy", &old.name_any()).await.is_empty(), "it is told");

    // The same, asked of EC2; what was cancelled is no reason.
    let planned = |claim: &NodeClaim, description: &str| {
        let event = json!({ "code": "instance-retirement", "description": description });
        stand.aws.door("statuses", &json!([{ "instance_id": instance_of(claim), "events": [event] }]));
    };
    planned(&second, "[Canceled] The instance is running on degraded hardware");
    tokio::time::sleep(WATCH).await;
    assert_eq!(claims.get(&second.name_any()).await.expect("it stays").annotations(), second.annotations());
    planned(&second, "The instance is running on degraded hardware");
    let asked = until_replaced(&stand, &second).await;
    replaced_first(&stand, asked).await;
    let metrics = stand.metrics();
    let disrupted = counted(&metrics, &["karpenter_nodeclaims_disrupted_total", "scheduled_change"]);
    assert_eq!(disrupted, Some(2), "{metrics}");
    assert_eq!(counted(&metrics, &["instance_status_unhealthy_total", "scheduled_event"]), Some(1), "{metrics}");
    assert_eq!(counted(&metrics, &["received_messages_total", "no_op"]), Some(1), "{metrics}");
    stand.leave().await;
}

/// Nobody knows whether pods on it still run: budgets, which hold any other drain, do not hold this one.
#[tokio::test]
async fn an_impaired_instance_is_ended_past_budgets() {
    let Some((stand, old)) = one_node("impaired", "on-demand").await else { return };
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(stand.client.clone(), &stand.name);
    let budget = json!({
        "metadata": { "name": "all" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "inflate" } } },
    });
    create::<PodDisruptionBudget>(&budgets, budget).await;
    let fails_since = |since: Timestamp| {
        let status = json!({ "instance_id": instance_of(&old), "system": format!("{since:.0}") });
        stand.aws.door("statuses", &json!([status]));
    };
    fails_since(Timestamp::now());
    tokio::time::sleep(WATCH).await;
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    assert!(claims.get(&old.name_any()).await.expect("it stays").metadata.deletion_timestamp.is_none());

    fails_since(Timestamp::now() - SignedDuration::from_secs(120));
    until_replaced(&stand, &old).await;
    let metrics = stand.metrics();
    assert_eq!(counted(&metrics, &["instance_status_unhealthy_total", "system_status"]), Some(1), "{metrics}");
    assert_eq!(counted(&metrics, &["karpenter_nodeclaims_disrupted_total", "system_status"]), Some(1), "{metrics}");
    stand.leave().await;
}

#[tokio::test]
async fn advice_is_followed_where_the_pool_says_so() {
    let Some((stand, old)) = one_node("advice", "spot").await else { return };
    let advise = async || {
        let detail = json!({ "instance-id": instance_of(&old) });
        stand.aws.send(&event("aws.ec2", "EC2 Instance Rebalance Recommendation", &detail)).await;
    };
    advise().await;
    until("the advice is told", async || {
        !stand.events("SpotRebalanceRecommendation", &old.name_any()).await.is_empty()
    })
    .await;
    tokio::time::sleep(WATCH).await;
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    assert_eq!(claims.get(&old.name_any()).await.expect("it stays").annotations(), old.annotations());

    let follows = json!({ "metadata": { "annotations": { (labels::REPLACE_ON_REBALANCE): "true" } } });
    let pools: Api<NodePool> = Api::all(stand.client.clone());
    pools.patch(&stand.name, &PatchParams::default(), &Patch::Merge(&follows)).await.expect("patched");
    // The controller may not have seen the pool's change yet: EC2 says it again, too.
    until("it is called back", async || {
        advise().await;
        let claim = claims.get_opt(&old.name_any()).await.expect("an answer");
        claim.is_none_or(|claim| claim.annotations().contains_key(labels::INTERRUPTED_AT))
    })
    .await;
    let asked = until_replaced(&stand, &old).await;
    let new = replaced_first(&stand, asked).await;
    let offering =
        |claim: &NodeClaim| [labels::INSTANCE_TYPE, labels::ZONE].map(|key| claim.labels().get(key).cloned());
    assert_ne!(offering(&new), offering(&old), "what EC2 advises to leave is not asked for again");
    let metrics = stand.metrics();
    let disrupted = counted(&metrics, &["karpenter_nodeclaims_disrupted_total", "rebalance_recommendation"]);
    assert_eq!(disrupted, Some(1), "{metrics}");
    stand.leave().await;
}

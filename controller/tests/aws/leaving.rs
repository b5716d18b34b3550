//! Nodes that leave: because EC2 takes them back, or somebody asks.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karp_domain::api::{NodeClaim, conditions, labels};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::WATCH;
use crate::support::aws::is_ending;
use crate::support::refusal::{Refusal, annotated};
use crate::support::stand::{Stand, instance_of, node_of, since};
use crate::support::{create, until};

/// `terminationGracePeriod` of a pool.
const GRACE: Duration = Duration::from_secs(60);
/// How long after that a node and its claim may still be there.
const AFTERWARDS: Duration = Duration::from_secs(30);

/// An interrupted node is replaced before it is drained.
pub async fn interrupted(stand: Stand) {
    stand.pool(&["spot"]).await;
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let old = initialized(&stand).await;

    stand.aws.send("{ this is no message").await;
    stand.aws.send(&json!({ "source": "aws.ec2", "detail-type": 7 }).to_string()).await;
    stand.aws.door("interrupt", &json!({ "instance_id": instance_of(&old), "after_seconds": 120 }));
    let asked = stand.until_gone(&old).await;
    stand.until_running(1).await;
    let now = stand.mine::<NodeClaim>().await;
    let replaced = now.iter().filter_map(|claim| since(claim, conditions::INITIALIZED)).min().expect("a replacement");
    // The API server tells the end by the second.
    assert!(
        replaced.as_second() <= asked.as_second(),
        "the replacement was ready at {replaced}, the drain began at {asked}"
    );
    let old_type = old.labels().get(labels::INSTANCE_TYPE).zip(old.labels().get(labels::ZONE));
    let same =
        |claim: &NodeClaim| claim.labels().get(labels::INSTANCE_TYPE).zip(claim.labels().get(labels::ZONE)) == old_type;
    assert!(!now.iter().any(same), "what EC2 takes back is not asked for again");

    until("the queue is empty", async || stand.aws.queued().await == 0).await;
    let metrics = stand.metrics();
    // other scenes have messages of their own
    assert_eq!(received(&metrics, "spot_interrupted"), 1, "{metrics}");
    assert_eq!(received(&metrics, "unreadable"), 2, "the garbage is counted: {metrics}");
    stand.leave().await;
}

/// Returns how many messages of a kind were received.
fn received(metrics: &str, kind: &str) -> u32 {
    let all = metrics.lines().filter(|line| line.starts_with("karpenter_interruption_received_messages_total{"));
    all.filter(|line| line.contains(kind)).filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok()).sum()
}

/// An event as EventBridge puts it into the queue.
fn event(kind: &str, detail: &Value) -> String {
    let now = format!("{:.0}", Timestamp::now());
    json!({ "source": "aws.ec2", "detail-type": kind, "time": now, "detail": detail }).to_string()
}

/// Waits until the pool's one node is initialized; returns its claim.
async fn initialized(stand: &Stand) -> NodeClaim {
    let mut found = None;
    until("its node is initialized", async || {
        found = stand.mine::<NodeClaim>().await.pop();
        found.as_ref().is_some_and(|claim| since(claim, conditions::INITIALIZED).is_some())
    })
    .await;
    found.expect("a claim")
}

/// The node of an instance that stops goes at once, once, also when somebody starts it again; word that it runs changes nothing.
pub async fn stopped(stand: Stand) {
    stand.pool(&["on-demand"]).await;
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let old = initialized(&stand).await;
    let changed = |state: &str| {
        event("EC2 Instance State-change Notification", &json!({ "instance-id": instance_of(&old), "state": state }))
    };
    stand.aws.send(&changed("running")).await;
    until("it is read", async || received(&stand.metrics(), "no_op") >= 1).await;
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    let kept = claims.get(&old.name_any()).await.expect("it stays");
    assert!(kept.metadata.deletion_timestamp.is_none() && kept.annotations() == old.annotations(), "{kept:?}");

    // it holds the node until the instance runs again
    let budgets = no_room(&stand).await;
    let ask = |action: &str| stand.aws.ec2(&format!("Action={action}&InstanceId.1={}", instance_of(&old)));
    ask("StopInstances");
    for state in ["stopping", "stopped", "stopping"] {
        stand.aws.send(&changed(state)).await;
    }
    until("it is to leave", async || {
        claims
            .get_opt(&old.name_any())
            .await
            .expect("an answer")
            .is_none_or(|old| old.metadata.deletion_timestamp.is_some())
    })
    .await;
    ask("StartInstances");
    for state in ["pending", "running"] {
        stand.aws.send(&changed(state)).await;
    }
    until("all is read", async || stand.aws.queued().await == 0).await;
    budgets.delete("none", &DeleteParams::default()).await.expect("the budget is deleted");
    stand.until_gone(&old).await;
    stand.until_running(1).await;
    for reason in ["InstanceStopping", "TerminatingOnInterruption"] {
        until(reason, async || !stand.events(reason, &old.name_any()).await.is_empty()).await;
    }
    assert_ne!(instance_of(&initialized(&stand).await), instance_of(&old), "another instance");
    let all = stand.aws.instances(&stand.name);
    let (ending, running): (Vec<&Value>, Vec<&Value>) = all.iter().partition(|one| is_ending(one));
    assert_eq!((ending.len(), running.len()), (1, 1), "it was replaced once: {all:?}");
    assert_eq!(ending[0]["id"], json!(instance_of(&old)));
    // messages that are handled at the same time may each ask for the end of the same claim
    let (log, pool) = (stand.log(), format!("\"NodePool\":{{\"name\":\"{}\"}}", stand.name));
    let made = log.lines().filter(|line| line.contains("\"created nodeclaim\"") && line.contains(&pool));
    assert_eq!(made.count(), 2, "one claim and the one in its place");
    stand.leave().await;
}

/// A message stays in the queue as long as what it says is not on the claim, and then has its effect once.
pub async fn recorded_late(stand: Stand) {
    stand.pool(&["on-demand"]).await;
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let old = initialized(&stand).await;
    let refusal = Refusal::of(&stand.client, &stand.name, &annotated(labels::INTERRUPTED_AT)).await;
    let warning = event(
        "EC2 Capacity Reservation Instance Interruption Warning",
        &json!({ "instance-id": instance_of(&old), "instance-action": "terminate" }),
    );
    stand.aws.send(&warning).await;
    let kind = "capacity_reservation";
    until("it is read", async || received(&stand.metrics(), kind) >= 1).await;
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    until("its effect cannot be written", async || {
        let log = stand.log();
        log.lines().any(|line| line.contains("it will come again") && line.contains(&old.name_any()))
    })
    .await;
    let kept = claims.get(&old.name_any()).await.expect("it stays");
    assert!(!kept.annotations().contains_key(labels::INTERRUPTED_AT), "{kept:?}");
    assert!(stand.aws.queued().await > 0, "a message was deleted whose effect is nowhere");

    refusal.lift().await;
    let asked = stand.until_gone(&old).await;
    stand.until_running(1).await;
    let new = initialized(&stand).await;
    let ready = since(&new, conditions::INITIALIZED).expect("it is ready");
    assert!(ready.as_second() <= asked.as_second(), "ready at {ready}, the drain began at {asked}");
    assert!(received(&stand.metrics(), kind) >= 2, "it came again");
    let log = stand.log();
    let recalls = log.lines().filter(|line| line.contains("initiating delete") && line.contains(&old.name_any()));
    assert_eq!(recalls.count(), 1, "it was recalled once");
    assert!(!stand.events("CapacityReservationInstanceInterrupted", &old.name_any()).await.is_empty(), "it is told");
    assert_eq!(stand.aws.instances(&stand.name).len(), 2, "one was replaced, by one");
    until("the queue is empty", async || stand.aws.queued().await == 0).await;
    stand.leave().await;
}

/// Makes a budget that lets no pod of the scene's go, once it runs; returns the API that deletes it.
async fn no_room(stand: &Stand) -> Api<PodDisruptionBudget> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(stand.client.clone(), &stand.name);
    let spec = json!({ "maxUnavailable": 0, "selector": { "matchLabels": { "app": "inflate" } } });
    create::<PodDisruptionBudget>(&budgets, json!({ "metadata": { "name": "none" }, "spec": spec })).await;
    until("the budget is counted", async || {
        budgets.get("none").await.is_ok_and(|budget| budget.status.is_some_and(|status| status.current_healthy == 1))
    })
    .await;
    budgets
}

/// A budget without room holds a node until it is gone.
pub async fn budget(stand: Stand) {
    stand.pool(&["spot"]).await;
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let budgets = no_room(&stand).await;
    let (pod, claim) = (stand.running().await.remove(0), stand.mine::<NodeClaim>().await.remove(0));
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    claims.delete(&claim.name_any(), &DeleteParams::default()).await.expect("the claim is asked to end");
    until("the drain is told to be stuck", async || !stand.events("FailedDraining", &node_of(&pod)).await.is_empty())
        .await;
    tokio::time::sleep(WATCH).await;
    let pods: Api<Pod> = Api::namespaced(stand.client.clone(), &stand.name);
    let kept = pods.get(&pod.name_any()).await.expect("the pod is there");
    assert!(kept.uid() == pod.uid() && kept.metadata.deletion_timestamp.is_none(), "the pod was evicted");
    let alive =
        |id: &str| stand.aws.instances(&stand.name).iter().any(|one| one["id"] == id && one["state"] == "running");
    assert!(alive(&instance_of(&claim)), "the instance ended under its pod");
    let nodes: Api<Node> = Api::all(stand.client.clone());
    let node = nodes.get(&node_of(&pod)).await.expect("the node is there");
    assert!(node.labels().contains_key(labels::EXCLUDE_FROM_BALANCERS), "load balancers send it more: {node:?}");

    budgets.delete("none", &DeleteParams::default()).await.expect("the budget is deleted");
    until("the claim goes", async || claims.get_opt(&claim.name_any()).await.is_ok_and(|claim| claim.is_none())).await;
    assert!(!alive(&instance_of(&claim)), "its instance runs on");
    stand.until_running(1).await;
    assert_ne!(node_of(&stand.running().await[0]), node_of(&pod));
    stand.leave().await;
}

/// A budget without room holds a node until the deadline that its pool sets: then its pods go, and it with them.
pub async fn bounded(stand: Stand) {
    stand.bounded_pool(GRACE).await;
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let budgets = no_room(&stand).await;
    let (pod, old) = (stand.running().await.remove(0), initialized(&stand).await);
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    claims.delete(&old.name_any(), &DeleteParams::default()).await.expect("it is asked to end");
    let since = Instant::now();
    until("its end is told", async || !stand.events("TerminationGracePeriodExpiring", &node_of(&pod)).await.is_empty())
        .await;
    let pods: Api<Pod> = Api::namespaced(stand.client.clone(), &stand.name);
    let kept = pods.get(&pod.name_any()).await.expect("the pod is there");
    assert!(
        kept.uid() == pod.uid() && kept.metadata.deletion_timestamp.is_none(),
        "before the deadline nothing passes a budget"
    );
    stand.until_gone(&old).await;
    let took = since.elapsed();
    assert!((GRACE / 2..=GRACE + AFTERWARDS).contains(&took), "it went after {took:?}");
    let left = pods.get_opt(&pod.name_any()).await.expect("an answer");
    assert!(left.is_none_or(|left| left.uid() != pod.uid()), "its pod outlived it");
    budgets.delete("none", &DeleteParams::default()).await.expect("the budget is deleted");
    stand.until_running(1).await;
    stand.leave().await;
}

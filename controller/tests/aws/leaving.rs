//! Nodes that leave: because EC2 takes them back, or somebody asks.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karp_domain::api::{NodeClaim, conditions, labels};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::WATCH;
use crate::support::stand::{Stand, instance_of, node_of, since};
use crate::support::{create, until};

/// An interrupted node is replaced before it is drained.
pub async fn interrupted(stand: Stand) {
    stand.pool(&["spot"]).await;
    stand.deployment(2, "500m").await;
    stand.until_running(2).await;
    let old = stand.mine::<NodeClaim>().await.remove(0);
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    until("its node is initialized", async || {
        claims.get(&old.name_any()).await.is_ok_and(|claim| since(&claim, conditions::INITIALIZED).is_some())
    })
    .await;

    stand.aws.send("{ this is no message").await;
    stand.aws.send(&json!({ "source": "aws.ec2", "detail-type": 7 }).to_string()).await;
    stand.aws.door("interrupt", &json!({ "instance_id": instance_of(&old), "after_seconds": 120 }));
    let asked = stand.until_gone(&old).await;
    stand.until_running(2).await;
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
    let received = |kind: &str| {
        let counts =
            |line: &&str| line.starts_with("karpenter_interruption_received_messages_total") && line.contains(kind);
        metrics.lines().find(counts).and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
    };
    assert_eq!(received("spot_interrupted"), Some(1), "{metrics}");
    let all: u32 = metrics
        .lines()
        .filter(|line| line.starts_with("karpenter_interruption_received_messages_total"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
        .sum();
    assert_eq!(all, 3, "the garbage is counted: {metrics}");
    assert!(metrics.lines().any(|line| line == "karpenter_interruption_deleted_messages_total 3"), "{metrics}");
    stand.leave().await;
}

/// A budget without room holds a node until it is gone.
pub async fn budget(stand: Stand) {
    stand.pool(&["spot"]).await;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(stand.client.clone(), &stand.name);
    let spec = json!({ "maxUnavailable": 0, "selector": { "matchLabels": { "app": "inflate" } } });
    create::<PodDisruptionBudget>(&budgets, json!({ "metadata": { "name": "none" }, "spec": spec })).await;
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let (pod, claim) = (stand.running().await.remove(0), stand.mine::<NodeClaim>().await.remove(0));
    until("the budget is counted", async || {
        budgets.get("none").await.is_ok_and(|budget| budget.status.is_some_and(|status| status.current_healthy == 1))
    })
    .await;

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
    assert!(nodes.get(&node_of(&pod)).await.is_ok(), "the node is there");

    budgets.delete("none", &DeleteParams::default()).await.expect("the budget is deleted");
    until("the claim goes", async || claims.get_opt(&claim.name_any()).await.is_ok_and(|claim| claim.is_none())).await;
    assert!(!alive(&instance_of(&claim)), "its instance runs on");
    stand.until_running(1).await;
    assert_ne!(node_of(&stand.running().await[0]), node_of(&pod));
    stand.leave().await;
}

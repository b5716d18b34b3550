//! What a drain asks of the API server, and what it tells.

use super::super::testing::{Server, claim, status};
use super::*;

/// What a drain asks of pods.
const LISTING: &str = "GET pods?spec.nodeName=n";

/// A node that was asked to go long ago.
fn leaving() -> serde_json::Value {
    let since = "2026-01-01T00:00:00Z";
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": "n", "uid": "u", "creationTimestamp": since, "deletionTimestamp": since,
            "finalizers": [labels::TERMINATION_FINALIZER], "annotations": { "karpenter.sh/nodeclaim": "n" },
        },
        "spec": { "providerID": "simulated:///us-east-1a/n" },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

fn pod() -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web", "namespace": "shop", "uid": "p", "labels": { "app": "web" } },
        "spec": { "nodeName": "n", "containers": [{ "name": "c" }] },
        "status": { "phase": "Running" },
    })
}

/// Looks once after the node; returns when to look again.
async fn look(context: &Arc<Context>) -> Action {
    let node = context.stores.node("n").expect("a node");
    reconcile(node, context.clone()).await.expect("answers")
}

#[tokio::test]
async fn pods_are_listed_before_the_steps_to_the_end_and_not_while_volumes_are_waited_for() {
    let attached = json!({
        "kind": "VolumeAttachment", "metadata": { "name": "a" },
        "spec": { "attacher": "test", "nodeName": "n", "source": { "persistentVolumeName": "v" } },
    });
    let server = Server::of([leaving(), attached]);
    let context = server.context().await;
    for time in 1..=4 {
        assert_eq!(look(&context).await, Action::requeue(DRAIN_PAUSE));
        let asked = [LISTING, "GET volumeattachments"].map(|what| server.asked(what));
        assert_eq!(asked, [1, time], "at first, then only for the volume");
    }
    // a pod that the watch does not show comes in the same moment
    server.remove("volumeattachments/a");
    server.put(pod());
    for time in 2..=3 {
        assert_eq!(look(&context).await, Action::requeue(LEAST_PAUSE), "it drains again");
        assert_eq!(server.asked(LISTING), time);
    }
    assert_eq!(server.asked("DELETE nodes/n"), 0, "its instance lives");
    server.remove("pods/web");
    assert_eq!(look(&context).await, Action::await_change());
    assert_eq!((server.asked(LISTING), server.asked("DELETE nodes/n")), (4, 1));
    assert_eq!(server.get("nodes/n")["metadata"]["finalizers"], json!([]));
    let remembered = (context.drained.lock().expect("free").len(), context.evictions.lock().expect("free").len());
    assert_eq!(remembered, (0, 0));
}

#[tokio::test]
async fn each_step_to_the_end_is_told_in_the_claims_conditions() {
    let attached = json!({
        "kind": "VolumeAttachment", "metadata": { "name": "a" },
        "spec": { "attacher": "test", "nodeName": "n", "source": { "persistentVolumeName": "v" } },
    });
    let mut claim = claim("n");
    claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    claim["status"] = json!({ "providerID": leaving()["spec"]["providerID"], "nodeName": "n" });
    let server = Server::of([leaving(), claim, pod(), attached]);
    let said = |kind: &str| {
        let all = server.get("nodeclaims/n")["status"]["conditions"].clone();
        let found = all.as_array().into_iter().flatten().find(|one| one["type"] == kind);
        found.map_or_else(String::new, |one| format!("{} {}", one["status"], one["reason"]).replace('"', ""))
    };
    let all = || [conditions::DRAINED, conditions::VOLUMES_DETACHED, conditions::INSTANCE_TERMINATING].map(said);
    look(&server.context().await).await;
    assert_eq!(all(), ["Unknown Draining", "", ""]);
    server.remove("pods/web");
    // its caches are those of now
    let context = server.context().await;
    look(&context).await;
    assert_eq!(all(), ["True Drained", "Unknown AwaitingVolumeDetachment", ""]);
    server.remove("volumeattachments/a");
    look(&context).await;
    assert_eq!(all(), ["True Drained", "True VolumesDetached", "True InstanceTerminating"]);
    assert_eq!(server.asked("DELETE nodes/n"), 1);
    assert_eq!(server.asked("PATCH nodeclaims/n/status"), 3, "what comes true in one look is one write");
}

/// Whatever wakes the controller meanwhile.
#[tokio::test]
async fn a_node_that_was_let_go_is_left_alone_until_the_watch_shows_it() {
    let mut node = leaving();
    node["metadata"]["resourceVersion"] = json!("7");
    let server = Server::of([node.clone()]);
    node["metadata"]["resourceVersion"] = json!("9");
    server.answer("PATCH nodes/n", Some(200), node.clone());
    node["metadata"]["finalizers"] = json!([]);
    server.answer("PATCH nodes/n", Some(200), node);
    let context = server.context().await;
    assert_eq!(look(&context).await, Action::await_change());
    let asked = || ["GET nodes/n", "DELETE nodes/n", "PATCH nodes/n"].map(|what| server.asked(what));
    let before = asked();
    assert_eq!(before[2], 2, "it is retired, and let go");
    assert_eq!(look(&context).await, Action::requeue(LEAST_PAUSE));
    assert_eq!(asked(), before);
}

#[tokio::test]
async fn a_node_is_read_before_it_is_tainted_only_where_it_seems_to_be() {
    let node = |name: &str, taints: serde_json::Value| {
        let metadata = json!({ "name": name, "uid": name });
        json!({ "kind": "Node", "metadata": metadata, "spec": { "taints": taints } })
    };
    let server = Server::of([node("open", json!([])), node("was", json!([effect::disrupted_taint()]))]);
    let context = server.context().await;
    // which the watch has yet to show
    server.put(node("was", json!([])));
    for (name, read) in [("open", 0), ("was", 1)] {
        let taint = effect::Effect::Taint(context.which(&name.into()));
        assert_eq!(effect::apply(&context.client, &taint).await.expect("answers"), effect::Outcome::Done);
        assert_eq!(server.get(&format!("nodes/{name}"))["spec"]["taints"], json!([effect::disrupted_taint()]));
        assert_eq!(server.asked(&format!("GET nodes/{name}")), read, "{name}");
    }
}

#[tokio::test]
async fn a_node_that_is_kept_off_is_not_asked_for_at_each_look() {
    let mut node = leaving();
    node["spec"]["taints"] = json!([effect::disrupted_taint()]);
    node["metadata"]["labels"] = json!({ (labels::EXCLUDE_FROM_BALANCERS): "karpenter" });
    let server = Server::of([node, pod()]);
    let context = server.context().await;
    look(&context).await;
    look(&context).await;
    assert_eq!(["GET nodes/n", "PATCH nodes/n"].map(|what| server.asked(what)), [0, 0]);
    assert_eq!(server.asked("POST pods/web/eviction"), 2, "it drains");
}

#[tokio::test]
async fn a_drain_that_a_budget_holds_up_names_it() {
    let budget = json!({
        "kind": "PodDisruptionBudget", "metadata": { "name": "held", "namespace": "shop" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } },
        "status": { "currentHealthy": 1, "desiredHealthy": 1, "disruptionsAllowed": 0, "expectedPods": 1 },
    });
    let server = Server::of([leaving(), pod(), budget]);
    let mut refusal = status(429, "TooManyRequests");
    refusal["details"] = json!({ "causes": [{ "reason": "DisruptionBudget", "message": "it is needed" }] });
    server.answer("POST pods/web/eviction", Some(429), refusal);
    let context = server.context().await;
    look(&context).await;
    look(&context).await;
    assert_eq!(server.asked("POST pods/web/eviction"), 1, "not again at once");
    let note = server.told("FailedDraining", "n").await;
    let why = "PodDisruptionBudget shop/held allows no eviction: 1 of its pods are healthy, 1 have to be";
    assert_eq!(note, format!("Failed to drain node, waiting for shop/web ({why})"));
}

#[tokio::test]
async fn a_node_tells_that_it_waits_for_its_volumes_and_that_its_instance_cannot_be_ended() {
    let attached = json!({
        "kind": "VolumeAttachment", "metadata": { "name": "a" },
        "spec": { "attacher": "test", "nodeName": "n", "source": { "persistentVolumeName": "v" } },
    });
    let server = Server::of([leaving(), attached]);
    let context = server.context().await;
    look(&context).await;
    assert_eq!(server.told("AwaitingVolumeDetachment", "n").await, "Awaiting volume detachment");
    server.remove("volumeattachments/a");
    server.answer("DELETE nodes/n", Some(403), status(403, "Forbidden"));
    let node = context.stores.node("n").expect("a node");
    assert!(reconcile(node, context.clone()).await.is_err(), "it is tried again");
    let note = server.told("FailedTermination", "n").await;
    assert!(note.starts_with("Failed to terminate instance: ") && note.contains("Forbidden"), "{note}");
    let text = context.metrics.encode();
    let line = "karpenter_cloudprovider_instance_termination_failures_total{";
    assert!(text.lines().any(|told| told.starts_with(line) && told.ends_with(" 1")), "{text}");
}

//! What goes on for long is told again, in the same event.

use std::time::Duration;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karp_domain::api::NodeClaim;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::scene::Scene;
use crate::support::stand::Stand;
use crate::support::{create, until, until_within};

/// Two minutes until it is said again, beside scenes that share two processors.
const SAID_AGAIN: Duration = Duration::from_secs(200);

/// A node that a budget keeps from draining says so every two minutes, and counts how often.
pub async fn blocked(stand: &Stand) {
    let scene = Scene::on_demand(stand, "blocked", &["m5.large"]).await;
    scene.pods(1).await;
    scene.until_running(1).await;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(stand.client.clone(), &stand.name);
    let spec = json!({ "maxUnavailable": 0, "selector": { "matchLabels": { "app": scene.name } } });
    create::<PodDisruptionBudget>(&budgets, json!({ "metadata": { "name": scene.name }, "spec": spec })).await;
    until("the budget is counted", async || {
        let budget = budgets.get(&scene.name).await;
        budget.is_ok_and(|budget| budget.status.is_some_and(|status| status.current_healthy == 1))
    })
    .await;
    let claim = scene.claims().await.remove(0);
    let node = claim.status.as_ref().and_then(|status| status.node_name.clone()).expect("a node");
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    claims.delete(&claim.name_any(), &DeleteParams::default()).await.expect("it is asked to go");
    until_within(SAID_AGAIN, "the drain's event is counted up", async || {
        let told = stand.events("FailedDraining", &node).await;
        let counts: Vec<_> = told.iter().map(|event| event.series.as_ref().and_then(|series| series.count)).collect();
        let notes: Vec<_> = told.iter().map(|event| &event.message).collect();
        assert!(counts.len() < 2 || notes[0] != notes[1], "one event for the same: {told:?}");
        counts.contains(&Some(2))
    })
    .await;
    assert_eq!(scene.running().await.len(), 1, "its pod runs all the time");
    budgets.delete(&scene.name, &DeleteParams::default()).await.expect("the budget goes");
    until("the node is replaced", async || {
        let claims = scene.claims().await;
        claims.len() == 1 && claims[0].uid() != claim.uid() && scene.running().await.len() == 1
    })
    .await;
}

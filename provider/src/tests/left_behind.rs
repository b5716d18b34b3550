//! What others left in a pool: a drain that was broken off, and lists that are empty.

use std::sync::{Arc, Mutex};

use karp_domain::api;
use serde_json::{Value as Json, json};
use tfplugin::Value;
use tfplugin::testing::Core;

use super::moved::{configured, serve};

const DRAINING: &str = "karp.sh/draining";
const SINCE: &str = "2026-01-01T00:00:00Z";

/// A provider at an API server with one pool, changed so; and all objects that were applied.
async fn provider(change: impl Fn(&mut Json) + Send + 'static) -> (Core, Arc<Mutex<Vec<Json>>>) {
    let applied: Arc<Mutex<Vec<Json>>> = Arc::default();
    let seen = Arc::clone(&applied);
    let host = serve(move |request| {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        if head.contains("/customresourcedefinitions/") {
            let mut all = api::crds().into_iter().map(|crd| serde_json::to_value(crd).unwrap());
            let mut definition = all.find(|crd| crd["metadata"]["name"] == "nodepools.karpenter.sh").unwrap();
            definition["status"] = json!({ "conditions": [{ "type": "Established", "status": "True" }] });
            return definition.to_string();
        }
        if !head.contains("/nodepools") {
            return json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": [] }).to_string();
        }
        if head.starts_with("PATCH") {
            seen.lock().unwrap().push(serde_json::from_str(body).unwrap());
        }
        let mut pool = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default", "resourceVersion": "7" },
            "spec": { "template": { "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }],
            } } },
        });
        change(&mut pool);
        pool.to_string()
    });
    (configured(json!({ "kubernetes": { "host": host } })).await, applied)
}

fn config(more: &Json) -> Value {
    let mut config = json!({ "name": "default", "wait_for_ready": false, "template": {
        "node_class_ref": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
        "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }],
    } });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Value::from(config)
}

/// With `ignore_changes = [annotations]` core gives the annotation back as though it were written there.
#[tokio::test]
async fn a_drain_that_was_broken_off_shows_though_its_annotation_is_ignored() {
    let (core, applied) = provider(|pool| {
        pool["metadata"]["annotations"] = json!({ DRAINING: SINCE });
        pool["spec"]["limits"] = json!({ "nodes": "0" });
    })
    .await;
    let imported = core.import("karp_node_pool", "default").await.expect_state();
    let before = imported.with("limits", Value::Null).with("annotations", Value::Null);
    let state = core.read("karp_node_pool", &before).await.expect_state();
    assert_eq!(state.get("limits"), &Value::object([("nodes", "0")]));
    let ignoring = config(&json!({ "annotations": { DRAINING: SINCE } }));
    let undone = core.apply("karp_node_pool", &state, &ignoring).await.expect_state();
    assert_eq!(undone.get("limits"), &Value::Null);
    let applied = applied.lock().unwrap();
    let last = applied.iter().rfind(|object| object["kind"] == "NodePool").expect("an apply");
    assert_eq!((&last["spec"]["limits"], &last["metadata"]["annotations"][DRAINING]), (&Json::Null, &Json::Null));
}

/// An import sees the hash of what is there, and a change of something else keeps it, as its plan says.
#[tokio::test]
async fn a_change_after_an_import_keeps_the_hash_of_a_list_that_is_empty() {
    let (core, _) = provider(|pool| pool["spec"]["template"]["spec"]["taints"] = json!([])).await;
    let state = core.import("karp_node_pool", "default").await.expect_state();
    assert!(state.get("template").get("taints").is_null(), "{state:?}");
    let changed = core.apply("karp_node_pool", &state, &config(&json!({ "weight": 7 }))).await.expect_state();
    assert_eq!(changed.get("hash"), state.get("hash"));
    assert_eq!(changed.get("weight").as_i64(), Some(7));
}

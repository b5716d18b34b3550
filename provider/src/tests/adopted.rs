//! A pool or a class that a creation takes over: what its plan says of live nodes, on an API server with one of them.

use serde_json::{Value as Json, json};
use tfplugin::Value;

use super::moved::{configured, serve};
use crate::manifests::FIELD_MANAGER;

type Config = fn(Option<bool>, &str) -> Json;

/// What the API server has, by the end of a path; a list has it in its items.
fn items(live: &Json) -> [(&'static str, Json); 3] {
    let class = json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" });
    let claim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": { "name": "default-0", "labels": { "karpenter.sh/nodepool": "default", "karpenter.sh/capacity-type": "spot" },
            "annotations": { "karpenter.sh/nodepool-hash": "1234", "karpenter.sh/nodepool-hash-version": "v3",
                "karpenter.k8s.aws/ec2nodeclass-hash": "1234", "karpenter.k8s.aws/ec2nodeclass-hash-version": "v6" } },
        "spec": { "nodeClassRef": class, "requirements": [] },
    });
    [("nodepools", live["pool"].clone()), ("ec2nodeclasses", live["class"].clone()), ("nodeclaims", claim)]
}

fn live() -> Json {
    json!({
        "pool": { "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" }, "spec": {
            "template": { "metadata": { "labels": { "team": "a" } }, "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }],
                "taints": [{ "key": "theirs", "effect": "NoSchedule" }], "expireAfter": "720h",
            } },
            "weight": 7,
        } },
        "class": { "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "default" }, "spec": {
            "instanceProfile": "p", "amiSelectorTerms": [{ "alias": "al2023@latest" }], "subnetSelectorTerms": [{ "id": "subnet-1" }],
            "securityGroupSelectorTerms": [{ "id": "sg-1" }], "tags": { "team": "a" }, "userData": "theirs",
        } },
    })
}

fn api_server(live: Json) -> impl Fn(&str) -> String + Send + 'static {
    let missing = |name: &str| {
        json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "message": "not found",
            "details": { "name": name }, "code": 404 })
    };
    move |request| {
        let path = request.split_whitespace().nth(1).unwrap().split('?').next().unwrap();
        let (of, name) = path.rsplit_once('/').unwrap();
        let items = items(&live);
        let found = |plural: &str| items.iter().find(|(kind, _)| plural.ends_with(kind)).map(|(_, one)| one.clone());
        let answer = match (found(of), found(path)) {
            (Some(Json::Null), _) => missing(name),
            (Some(one), _) => one,
            (None, one) => {
                let items: Vec<Json> = one.into_iter().filter(|one| !one.is_null()).collect();
                json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items })
            }
        };
        answer.to_string()
    }
}

/// What the plan of a new resource says of its nodes.
async fn told(live: &Json, block: Json, kind: &str, config: Json) -> String {
    let mut all = json!({ "kubernetes": { "host": serve(api_server(live.clone())) } });
    all.as_object_mut().unwrap().extend(block.as_object().unwrap().clone());
    let plan = configured(all).await.plan(kind, &Value::Null, &Value::from(config)).await;
    assert!(!plan.diagnostics.has_errors(), "{}", plan.diagnostics);
    assert!(plan.diagnostics.iter().count() < 2, "{}", plan.diagnostics);
    plan.diagnostics.to_string()
}

fn pool(adopt: Option<bool>, team: &str) -> Json {
    json!({ "name": "default", "adopt": adopt, "template": {
        "node_class_ref": { "name": "default", "group": "karpenter.k8s.aws", "kind": "EC2NodeClass" }, "labels": { "team": team },
        "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }],
    } })
}

fn class(adopt: Option<bool>, team: &str) -> Json {
    json!({ "name": "default", "adopt": adopt, "instance_profile": "p", "ami_selector_terms": [{ "alias": "al2023@latest" }],
        "subnet_selector_terms": [{ "id": "subnet-1" }], "security_group_selector_terms": [{ "id": "sg-1" }], "tags": { "team": team } })
}

#[tokio::test]
async fn live_nodes_of_what_is_taken_over_are_counted() {
    for (kind, config, because) in [
        ("karp_node_pool", pool as Config, "NodePoolDrifted (template.labels)"),
        ("karp_node_class", class as Config, "NodeClassDrift (tags)"),
    ] {
        let block = || json!({ "adopt_existing": true });
        for (block, adopt) in [(json!({}), Some(true)), (block(), None)] {
            let told = told(&live(), block, kind, config(adopt, "b")).await;
            assert!(told.contains("1 of 1 nodes will be replaced") && told.contains(because), "{kind}: {told}");
        }
        // What is there besides stays: it is no difference, and no node drifts.
        assert_eq!(told(&live(), block(), kind, config(None, "a")).await, "", "{kind}");
        // One that is not taken over, and one that is not there, is new.
        let new = told(&live(), json!({}), kind, config(None, "b")).await;
        assert!(!new.contains("nodes"), "{kind}: {new}");
        assert_eq!(told(&json!({}), block(), kind, config(None, "b")).await, new, "{kind}");
        assert_eq!(told(&live(), block(), kind, config(Some(false), "b")).await, new, "{kind}");
        let offline = json!({ "adopt_existing": true, "offline_plan": true });
        assert_eq!(told(&live(), offline, kind, config(None, "b")).await, "", "{kind}");
        // Who may not look is told so.
        let refused = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403 });
        let denied = told(&json!({ "pool": refused, "class": refused }), block(), kind, config(None, "b")).await;
        assert!(denied.contains("could not be looked at"), "{kind}: {denied}");
    }
}

/// An apply takes away what karp applied before and is planned no more: a state that was lost, say.
#[tokio::test]
async fn what_karp_applied_before_goes_with_what_is_taken_over() {
    let mut live = live();
    live["pool"]["metadata"]["managedFields"] = json!([{ "manager": FIELD_MANAGER, "operation": "Apply",
        "apiVersion": "karpenter.sh/v1", "fieldsType": "FieldsV1",
        "fieldsV1": { "f:spec": { "f:template": { "f:spec": { "f:taints": {} } } } } }]);
    let told = told(&live, json!({}), "karp_node_pool", pool(Some(true), "a")).await;
    assert!(told.contains("1 of 1 nodes will be replaced") && told.contains("(template.taints)"), "{told}");
}

/// What is not known of a class that is there is told of; a class that is made says nothing.
#[tokio::test]
async fn a_class_that_is_taken_over_and_not_known_yet_is_told_of() {
    for (live, words) in [(live(), "not known yet"), (json!({}), "")] {
        let block = json!({ "kubernetes": { "host": serve(api_server(live)) } });
        let config = Value::from(class(Some(true), "a")).with("tags", Value::Unknown);
        let plan = configured(block).await.plan("karp_node_class", &Value::Null, &config).await;
        let told = plan.diagnostics.to_string();
        assert!(told.contains(words) && told.is_empty() == words.is_empty(), "{told}");
    }
}

/// The same as data, of what no plan would take over.
#[tokio::test]
async fn nodes_that_would_drift_are_told_as_data() {
    let core = configured(json!({ "kubernetes": { "host": serve(api_server(live())) } })).await;
    let mut config = pool(None, "b");
    config.as_object_mut().unwrap().remove("adopt");
    let told = core.data("karp_disruption_preview", &Value::from(config)).await.unwrap();
    let counts = ["nodes", "at_once", "waves"].map(|name| told.get(name).as_i64());
    assert_eq!(counts, [Some(1); 3], "{told:?}");
    let types = ["types_before", "types_after"].map(|name| told.get(name).as_i64());
    assert!(types[0] == types[1] && types[0] > Some(1), "{told:?}");
    let [cheapest, typical] = ["cheapest_price", "typical_price"].map(|name| told.get(name).as_f64().unwrap());
    assert!(0.0 < cheapest && cheapest < typical, "{told:?}");
    let [node] = told.get("drifting").as_list() else { panic!("{told:?}") };
    let node = ["name", "reason", "blocked_by"].map(|name| node.get(name).as_str().unwrap());
    assert_eq!(node, ["default-0", "NodePoolDrifted", "it has no Node yet"]);
    assert_eq!(told.get("timeline"), &Value::List(vec![]));
}

//! Previews of named edits on forty nodes.

use serde_json::{Value as Json, json};

use super::*;

fn pool(change: impl Fn(&mut Json)) -> NodePool {
    let mut pool = json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" }, "spec": {
        "template": { "metadata": { "labels": { "team": "a" } }, "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            "requirements": [{ "key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["m7i", "c7i"] }],
        } },
        "disruption": { "budgets": [{ "nodes": "10%" }] },
    } });
    change(&mut pool);
    serde_json::from_value(pool).expect("a pool")
}

/// Forty nodes as `before` made them, every fourth of family c7i.
fn claims(before: &NodePool) -> Vec<NodeClaim> {
    (0..40)
        .map(|at| {
            let family = if at % 4 == 0 { "c7i" } else { "m7i" };
            serde_json::from_value(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
                "metadata": { "name": format!("default-{at}"), "labels": {
                    "karpenter.sh/nodepool": "default", "karpenter.k8s.aws/instance-family": family, "team": "a",
                }, "annotations": {
                    "karpenter.sh/nodepool-hash": hash::node_pool(&before.spec),
                    "karpenter.sh/nodepool-hash-version": hash::NODE_POOL_VERSION,
                } },
                "spec": { "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }, "requirements": [] },
                "status": { "nodeName": format!("node-{at}") },
            }))
            .expect("a NodeClaim")
        })
        .collect()
}

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().expect("a time")
}

fn preview(change: impl Fn(&mut Json)) -> Preview {
    let (before, after) = (pool(|_| {}), pool(change));
    let read = |pool: &NodePool| Pool::from_kube(pool).expect("readable");
    Preview {
        before: Some(offer(&read(&before).requirements)),
        after: offer(&read(&after).requirements),
        impact: Some(impact(&before, &after, &read(&after), &claims(&before), now())),
        unseen: None,
    }
}

#[test]
fn a_label_replaces_all_nodes_in_waves() {
    let seen = preview(|pool| pool["spec"]["template"]["metadata"]["labels"]["team"] = json!("b"));
    let impact = seen.impact.as_ref().expect("nodes");
    assert_eq!((impact.drifting.len(), impact.at_once, impact.waves), (40, 4, Some(10)));
    let warning = seen.warning("default");
    assert!(warning.summary.ends_with("types, 40 of 40 nodes will be replaced"), "{}", warning.summary);
    assert!(
        warning.detail.contains("node-0 (NodePoolDrifted)") && warning.detail.contains("10 waves"),
        "{}",
        warning.detail
    );
}

#[test]
fn a_narrower_requirement_replaces_those_outside_of_it() {
    let requirements = "/spec/template/spec/requirements/0/values";
    let seen = preview(|pool| *pool.pointer_mut(requirements).expect("values") = json!(["m7i"]));
    let impact = seen.impact.clone().expect("nodes");
    assert_eq!((impact.drifting.len(), impact.waves), (10, Some(3)));
    assert!(impact.drifting.iter().all(|node| node.reason == "RequirementsDrifted"));
    assert!(seen.after.types < seen.before.as_ref().expect("types").types && seen.after.typical > seen.after.cheapest);
}

#[test]
fn more_room_or_another_budget_replaces_nothing() {
    let wider = preview(|pool| {
        pool["spec"]["template"]["spec"]["requirements"][0]["values"] = json!(["m7i", "c7i", "r7i"]);
    });
    assert!(wider.tells() && wider.impact.expect("nodes").drifting.is_empty());
    let same = preview(|pool| pool["spec"]["disruption"]["budgets"][0]["nodes"] = json!("1"));
    assert!(!same.tells(), "{same:?}");
}

#[test]
fn a_class_replaces_the_nodes_that_were_stamped_by_another_hash() {
    let class = |more: Json| -> Ec2NodeClass {
        let mut spec = json!({ "amiSelectorTerms": [{ "alias": "al2023@latest" }], "subnetSelectorTerms": [{ "id": "subnet-1" }],
            "securityGroupSelectorTerms": [{ "id": "sg-1" }], "role": "nodes" });
        spec.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        serde_json::from_value(json!({ "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass",
            "metadata": { "name": "default" }, "spec": spec }))
        .expect("a class")
    };
    let one = pool(|_| {});
    let pools = [Pool::from_kube(&one).expect("readable")];
    let mut claims = claims(&one);
    for (at, claim) in claims.iter_mut().enumerate() {
        let version = if at < 10 { "v4" } else { "v6" };
        claim.annotations_mut().insert(labels::EC2_NODE_CLASS_HASH_VERSION.to_owned(), version.to_owned());
    }
    let of = |after: Json| class_impact(&class(json!({})), &class(after), &pools, &claims, now());
    let data = of(json!({ "userData": "x" }));
    // A stamp of a version that karp does not compute says nothing.
    assert_eq!((data.total, data.drifting.len(), data.at_once, data.waves), (40, 30, 4, Some(8)));
    let selectors = of(json!({ "subnetSelectorTerms": [{ "id": "subnet-2" }] }));
    assert_eq!(class_warning("default", Ok(selectors)), None);
    let warning = class_warning("default", Ok(data)).expect("a warning");
    assert_eq!(warning.summary, "EC2NodeClass \"default\": 30 of 40 nodes will be replaced");
    assert!(warning.detail.contains("NodeClassDrift") && warning.detail.contains("8 waves"), "{}", warning.detail);
}

#[test]
fn no_type_and_no_budget_are_told() {
    let none = preview(|pool| {
        pool["spec"]["template"]["spec"]["requirements"][0]["values"] = json!(["m99"]);
        pool["spec"]["disruption"]["budgets"][0]["nodes"] = json!("0");
    });
    let warning = none.warning("default");
    assert!(warning.summary.contains("-> 0 types"), "{}", warning.summary);
    assert!(warning.detail.contains("loosen") && warning.detail.contains("allow none"), "{}", warning.detail);
}

#[test]
fn what_blocks_a_node_is_named() {
    let mut seen = preview(|pool| pool["spec"]["template"]["metadata"]["labels"]["team"] = json!("b"));
    let pod = |node: &str, name: &str, annotations: Json, app: &str| {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": "web", "name": name,
            "annotations": annotations, "labels": { "app": app } }, "spec": { "nodeName": node, "containers": [] },
            "status": { "phase": "Running" } });
        Pod::from_kube(&serde_json::from_value(pod).expect("a pod")).expect("readable")
    };
    let pods = [
        pod("node-1", "keep", json!({ "karpenter.sh/do-not-disrupt": "true" }), "a"),
        pod("node-2", "db-0", json!({}), "db"),
        pod("node-3", "free", json!({}), "a"),
    ];
    let budget = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "namespace": "web", "name": "db" },
        "spec": { "selector": { "matchLabels": { "app": "db" } } }, "status": { "disruptionsAllowed": 0, "currentHealthy": 1,
        "desiredHealthy": 1, "expectedPods": 1 } });
    let budget = PodBudget::from_kube(&serde_json::from_value(budget).expect("a budget")).expect("readable");
    let impact = seen.impact.as_mut().expect("nodes");
    block(impact, &pods, &[Arc::new(budget)], now());
    let blocked: Vec<&str> = impact.drifting.iter().filter_map(|node| node.blocked_by.as_deref()).collect();
    assert_eq!(blocked, ["pod web/keep (karpenter.sh/do-not-disrupt)", "PodDisruptionBudget web/db (pod web/db-0)"]);
    assert!(seen.warning("default").detail.contains("2 cannot be disrupted now: node-1 by pod web/keep"));
}

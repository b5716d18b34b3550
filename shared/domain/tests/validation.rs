//! What the API server would refuse, found offline: one case a rule.

use karp_domain::api::validate;
use serde_json::{Value, json};

fn pool() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" },
        "spec": { "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }]
        } } }
    })
}

fn class() -> Value {
    json!({ "spec": {
        "role": "node",
        "amiSelectorTerms": [{ "alias": "al2023@latest" }],
        "subnetSelectorTerms": [{ "tags": { "karpenter.sh/discovery": "demo" } }],
        "securityGroupSelectorTerms": [{ "id": "sg-1" }]
    } })
}

/// Sets a value at a JSON pointer, making objects on the way; null takes a key away.
fn with(mut object: Value, changes: &[(&str, Value)]) -> Value {
    for (pointer, value) in changes {
        let mut target = &mut object;
        for step in pointer.trim_start_matches('/').split('/') {
            let step = step.replace("~1", "/");
            target = match (target.is_array(), step.parse::<usize>()) {
                (true, Ok(index)) => &mut target[index],
                _ => &mut target[step.as_str()],
            };
        }
        *target = value.clone();
    }
    object
}

fn paths(violations: &[validate::Violation]) -> Vec<&str> {
    violations.iter().map(|violation| violation.path.as_str()).collect()
}

#[track_caller]
fn pool_refused(changes: &[(&str, Value)], at: &str) {
    let violations = validate::node_pool(&with(pool(), changes));
    assert_eq!(paths(&violations), [at], "{violations:#?}");
}

#[track_caller]
fn class_refused(changes: &[(&str, Value)], at: &str) {
    let violations = validate::node_class(&with(class(), changes));
    assert_eq!(paths(&violations), [at], "{violations:#?}");
}

#[test]
fn good_objects_pass() {
    assert_eq!(validate::node_pool(&pool()), []);
    assert_eq!(validate::node_class(&class()), []);
    let rich = with(
        pool(),
        &[
            ("/spec/limits", json!({ "cpu": "100", "memory": "1Ti", "nodes": 4 })),
            ("/spec/weight", json!(10)),
            (
                "/spec/disruption",
                json!({ "consolidateAfter": "Never", "budgets": [{ "nodes": "100%" }, { "nodes": "0", "schedule": "@daily", "duration": "8h" }] }),
            ),
            ("/spec/template/metadata", json!({ "labels": { "team": "a", "karpenter.sh/capacity-type": "spot" } })),
            (
                "/spec/template/spec/requirements/0",
                json!({ "key": "karpenter.k8s.aws/instance-cpu", "operator": "Gt", "values": ["4"] }),
            ),
        ],
    );
    assert_eq!(validate::node_pool(&rich), []);
    // As in Karpenter, a mixed list with one clean term passes.
    let mixed = json!([{ "id": "subnet-1", "tags": { "a": "b" } }, { "id": "subnet-2" }]);
    assert_eq!(validate::node_class(&with(class(), &[("/spec/subnetSelectorTerms", mixed)])), []);
}

#[test]
fn requirements_are_checked_at_their_fields() {
    const ONE: &str = "/spec/template/spec/requirements/0";
    let one = |requirement: Value| [(ONE, requirement)];
    let here = "spec.template.spec.requirements[0]";
    pool_refused(&one(json!({ "key": "team", "operator": "In", "values": [] })), here);
    pool_refused(&one(json!({ "key": "team", "operator": "In" })), here);
    pool_refused(&one(json!({ "key": "team", "operator": "Gt", "values": ["1", "2"] })), here);
    pool_refused(&one(json!({ "key": "team", "operator": "Lte", "values": ["-1"] })), here);
    pool_refused(&one(json!({ "key": "team", "operator": "Lt", "values": ["many"] })), here);
    pool_refused(&one(json!({ "key": "team", "operator": "In", "values": ["a"], "minValues": 2 })), here);
    pool_refused(&one(json!({ "key": "team", "operator": "Inside", "values": ["a"] })), &format!("{here}.operator"));
    pool_refused(
        &one(json!({ "key": "team", "operator": "In", "values": ["a"], "minValues": 51 })),
        &format!("{here}.minValues"),
    );
    for key in [
        "karpenter.sh/nodepool",
        "karpenter.sh/other",
        "kubernetes.io/hostname",
        "karpenter.k8s.aws/other",
        "not a key",
    ] {
        pool_refused(&one(json!({ "key": key, "operator": "Exists" })), &format!("{here}.key"));
    }
}

#[test]
fn pools_are_checked_at_their_fields() {
    pool_refused(&[("/spec/template/spec/nodeClassRef/name", json!(""))], "spec.template.spec.nodeClassRef.name");
    pool_refused(&[("/spec/template/spec/nodeClassRef/group", Value::Null)], "spec.template.spec.nodeClassRef.group");
    pool_refused(&[("/spec/template/spec/expireAfter", json!("30d"))], "spec.template.spec.expireAfter");
    pool_refused(
        &[("/spec/template/spec/taints", json!([{ "key": "a", "effect": "Never" }]))],
        "spec.template.spec.taints[0].effect",
    );
    pool_refused(
        &[("/spec/template/metadata/labels", json!({ "kubernetes.io/hostname": "a" }))],
        "spec.template.metadata.labels",
    );
    pool_refused(
        &[("/spec/template/metadata/labels", json!({ "team": "a b" }))],
        "spec.template.metadata.labels[team]",
    );
    pool_refused(&[("/spec/weight", json!(0))], "spec.weight");
    pool_refused(&[("/spec/weight", json!("10"))], "spec.weight");
    pool_refused(&[("/spec/limits", json!({ "cpu": "many" }))], "spec.limits[cpu]");
    pool_refused(&[("/spec/limit", json!({}))], "spec.limit");
    pool_refused(&[("/spec/disruption/budgets", json!([{ "nodes": "101%" }]))], "spec.disruption.budgets[0].nodes");
    pool_refused(
        &[("/spec/disruption/budgets", json!([{ "nodes": "1", "schedule": "@daily" }]))],
        "spec.disruption.budgets[0]",
    );
    pool_refused(
        &[("/spec/disruption/budgets", json!([{ "nodes": "1", "reasons": ["Empty", "Empty"] }]))],
        "spec.disruption.budgets[0].reasons",
    );
    pool_refused(
        &[("/spec/disruption/consolidationPolicy", json!("Sometimes"))],
        "spec.disruption.consolidationPolicy",
    );
    pool_refused(&[("/spec/replicas", json!(2)), ("/spec/weight", json!(1))], "spec");
    pool_refused(&[("/spec/replicas", json!(2)), ("/spec/limits", json!({ "cpu": 1 }))], "spec");
}

#[test]
fn changes_are_checked_against_the_old_object() {
    let renamed = with(pool(), &[("/spec/template/spec/nodeClassRef/kind", json!("Other"))]);
    assert_eq!(paths(&validate::node_pool_change(&pool(), &renamed)), ["spec.template.spec.nodeClassRef"]);
    let fixed = with(pool(), &[("/spec/replicas", json!(1))]);
    assert_eq!(paths(&validate::node_pool_change(&pool(), &fixed)), ["spec"]);
    assert_eq!(validate::node_pool_change(&fixed, &with(fixed.clone(), &[("/spec/replicas", json!(3))])), []);
}

#[test]
fn classes_are_checked_at_their_fields() {
    class_refused(&[("/spec/role", Value::Null)], "spec");
    class_refused(&[("/spec/instanceProfile", json!("profile"))], "spec");
    class_refused(&[("/spec/role", json!(""))], "spec.role");
    class_refused(&[("/spec/amiFamily", json!("Bottlerocket"))], "spec");
    class_refused(&[("/spec/amiSelectorTerms", json!([{ "id": "ami-1" }]))], "spec");
    class_refused(&[("/spec/amiSelectorTerms", json!([]))], "spec.amiSelectorTerms");
    class_refused(
        &[("/spec/amiSelectorTerms", json!([{ "alias": "al2023@latest", "name": "x" }]))],
        "spec.amiSelectorTerms",
    );
    class_refused(&[("/spec/amiSelectorTerms/0/alias", json!("windows2022@1"))], "spec.amiSelectorTerms[0].alias");
    class_refused(&[("/spec/amiSelectorTerms/0/alias", json!("gentoo@latest"))], "spec.amiSelectorTerms[0].alias");
    class_refused(&[("/spec/subnetSelectorTerms", json!([]))], "spec.subnetSelectorTerms");
    class_refused(&[("/spec/subnetSelectorTerms", json!([{}]))], "spec.subnetSelectorTerms[0]");
    class_refused(
        &[("/spec/subnetSelectorTerms", json!([{ "tags": { "a": "" } }]))],
        "spec.subnetSelectorTerms[0].tags",
    );
    class_refused(&[("/spec/subnetSelectorTerms", json!([{ "id": "net-1" }]))], "spec.subnetSelectorTerms[0].id");
    class_refused(&[("/spec/tags", json!({ "karpenter.sh/nodepool": "x" }))], "spec.tags");
    class_refused(&[("/spec/tags", json!({ "kubernetes.io/cluster/demo": "owned" }))], "spec.tags");
    class_refused(
        &[("/spec/metadataOptions", json!({ "httpPutResponseHopLimit": 65 }))],
        "spec.metadataOptions.httpPutResponseHopLimit",
    );
    class_refused(
        &[("/spec/blockDeviceMappings", json!([{ "deviceName": "/dev/xvda", "ebs": {} }]))],
        "spec.blockDeviceMappings[0].ebs",
    );
    class_refused(
        &[("/spec/blockDeviceMappings", json!([{ "rootVolume": true }, { "rootVolume": true }]))],
        "spec.blockDeviceMappings",
    );
    class_refused(
        &[("/spec/blockDeviceMappings", json!([{ "ebs": { "volumeSize": "20" } }]))],
        "spec.blockDeviceMappings[0].ebs.volumeSize",
    );
    class_refused(&[("/spec/kubelet", json!({ "evictionSoft": { "memory.available": "5%" } }))], "spec.kubelet");
    class_refused(&[("/spec/kubelet", json!({ "kubeReserved": { "gpu": "1" } }))], "spec.kubelet.kubeReserved");
    class_refused(&[("/spec/connectionTracking", json!({}))], "spec.connectionTracking");
    class_refused(
        &[(
            "/spec/networkInterfaces",
            json!([{ "networkCardIndex": 0, "deviceIndex": 1, "interfaceType": "interface" }]),
        )],
        "spec.networkInterfaces",
    );
}

//! What the tool is told besides files: standard input, policies, prices, and what it says of objects that break their rules.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name)
}

/// Runs the tool with objects on its standard input.
fn karp(args: &[&str], objects: &[Value]) -> Output {
    let mut karp = Command::new(env!("CARGO_BIN_EXE_karp"));
    let piped = karp.args(args).env("RUST_BACKTRACE", "0").stdin(Stdio::piped());
    let mut child = piped.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let text: String = objects.iter().map(|object| format!("{object}\n")).collect();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Simulates on the fixture's types; answers the exit code and the answer.
fn simulate(objects: &[Value], more: &[&str]) -> (Option<i32>, Value) {
    let types = fixture("types.json");
    let args = ["simulate", "-f", "-", "-o", "json", "--instance-types", types.to_str().unwrap()];
    let output = karp(&[&args, more].concat(), objects);
    let answer = serde_json::from_slice(&output.stdout);
    (output.status.code(), answer.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr))))
}

fn pool(requirements: &Value) -> Value {
    json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "general"},
        "spec": {"template": {"spec": {"requirements": requirements,
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}}}}})
}

fn pod(affinity: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"}, "spec": {
        "affinity": affinity, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}})
}

fn prefers(instance_type: &str) -> Value {
    json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference":
        {"matchExpressions": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [instance_type]}]}}]}})
}

#[test]
fn all_pods_placed_is_success_and_preferences_are_kept_or_not() {
    let objects = [pool(&json!([])), pod(&prefers("m7i.2xlarge"))];
    for (policy, types) in [("Respect", json!(["m7i.2xlarge"])), ("Ignore", json!(["m7i.xlarge", "m7i.2xlarge"]))] {
        let (code, answer) = simulate(&objects, &["--preference-policy", policy]);
        assert_eq!((code, &answer["nodeClaims"][0]["instanceTypes"]), (Some(0), &types), "{policy}");
    }
}

#[test]
fn min_values_that_cannot_be_met_are_kept_or_lowered() {
    let three = json!([{"key": "node.kubernetes.io/instance-type", "operator": "Exists", "minValues": 3}]);
    let objects = [pool(&three), pod(&json!({}))];
    let (code, answer) = simulate(&objects, &[]);
    assert_eq!(code, Some(2));
    let reason = answer["unschedulable"][0]["reasons"][0].as_str().unwrap();
    assert!(reason.contains("minValues of node.kubernetes.io/instance-type is 3, only 2 remain"), "{reason}");
    let (code, answer) = simulate(&objects, &["--min-values-policy", "BestEffort"]);
    assert_eq!((code, answer["nodeClaims"].as_array().unwrap().len()), (Some(0), 1));
}

#[test]
fn a_price_file_says_what_the_account_pays() {
    let file = std::env::temp_dir().join(format!("karp-prices-{}.yaml", std::process::id()));
    std::fs::write(&file, "rules:\n  - types: [m7i.large]\n    pricePerHour: 0.01\n").unwrap();
    let only = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}]);
    let objects = [pool(&only), pod(&json!({}))];
    let price = |more: &[&str]| {
        let output = karp(&[&["simulate", "-f", "-", "-o", "json"], more].concat(), &objects);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let node = &answer["nodeClaims"][0];
        (node["price"].as_f64().unwrap(), node["estimated"].clone())
    };
    let (guessed, mark) = price(&[]);
    assert!(guessed > 0.01 && mark == json!(true), "{guessed} {mark}");
    assert_eq!(price(&["--price-file", file.to_str().unwrap()]), (0.01, Value::Null));
    std::fs::write(&file, "rules: 7").unwrap();
    let output = karp(&["simulate", "-f", "-", "--price-file", file.to_str().unwrap()], &objects);
    std::fs::remove_file(&file).unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && told.contains(file.to_str().unwrap()), "{told}");
}

/// Nodes at estimated prices are told to be so, to programs too.
#[test]
fn estimates_are_marked_where_nodes_are_explained() {
    let labels = json!({"karpenter.sh/nodepool": "general", "karpenter.sh/capacity-type": "on-demand",
        "node.kubernetes.io/instance-type": "m7i.large", "topology.kubernetes.io/zone": "us-east-1a",
        "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"});
    let room = json!({"cpu": "1930m", "memory": "6Gi", "pods": "29"});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}});
    let objects = [pool(&json!([])), node];
    let told = |args: &[&str]| -> Value { serde_json::from_slice(&karp(args, &objects).stdout).unwrap() };
    assert_eq!(told(&["explain", "node", "n1", "-f", "-", "-o", "json"])["estimated"], true);
    assert_eq!(told(&["simulate", "--disrupt", "-f", "-", "-o", "json"])["estimated"], true);
    let types = fixture("types.json");
    let listed = ["--instance-types", types.to_str().unwrap()];
    let args = [&["explain", "node", "n1", "-f", "-", "-o", "json"][..], &listed].concat();
    assert_eq!(told(&args)["estimated"], Value::Null);
}

/// What the API server would refuse is refused here, at its field.
#[test]
fn objects_are_held_to_their_rules() {
    let class = json!({"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "bare"},
        "spec": {"subnetSelectorTerms": [{"id": "subnet-1"}], "securityGroupSelectorTerms": [{"id": "sg-1"}], "amiSelectorTerms": [],
            "role": "nodes"}});
    let overlay = json!({"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": "both"},
        "spec": {"requirements": [], "price": "0.1", "priceAdjustment": "-10%"}});
    let claim = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "odd"},
        "spec": {"requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": []}],
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}}});
    for (object, whose, field) in [
        (class, "EC2NodeClass bare", "spec.amiSelectorTerms"),
        (overlay, "NodeOverlay both", "price"),
        (claim, "NodeClaim odd", "spec.requirements"),
    ] {
        let output = karp(&["simulate", "-f", "-"], &[pod(&json!({})), object]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && told.contains(whose) && told.contains(field), "{told}");
    }
}

/// A class or pool that its controller found wanting gives no node; one that nobody has looked at may.
#[test]
fn what_is_known_not_to_be_ready_is_not_bought_from() {
    let class = |ready: &str| {
        json!({"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "default"},
            "spec": {"subnetSelectorTerms": [{"id": "subnet-1"}], "securityGroupSelectorTerms": [{"id": "sg-1"}],
                "amiSelectorTerms": [{"alias": "al2023@latest"}], "role": "nodes"},
            "status": {"conditions": [{"type": "Ready", "status": ready, "reason": "SubnetsNotFound", "message": "",
                "lastTransitionTime": "2026-11-21T12:00:00Z"}]}})
    };
    let outcome = |class: Value| {
        let (code, answer) = simulate(&[pool(&json!([])), class, pod(&json!({}))], &[]);
        (code, answer["unschedulable"][0]["reasons"][0].clone())
    };
    assert_eq!(outcome(class("True")).0, Some(0));
    assert_eq!(outcome(class("Unknown")).0, Some(0));
    let why = json!("pool general: node class default is missing or not ready");
    assert_eq!(outcome(class("False")), (Some(2), why));
}

//! What the tool is told besides files: standard input, policies, prices, and what it says of objects that break their rules.

use std::io::{ErrorKind, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use karp_domain::api;
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
    // One that refuses its arguments reads nothing, and may be gone by now.
    match child.stdin.take().unwrap().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => panic!("{error}"),
        _ => {}
    }
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

/// `kubectl apply` gets from it what `karp_crds` applies: `api::crds`, each as one document.
#[test]
fn definitions_are_printed_as_the_provider_applies_them() {
    let output = karp(&["crds"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let printed: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let kinds: Vec<&Value> = printed.iter().map(|one| &one["spec"]["names"]["kind"]).collect();
    assert_eq!(kinds, ["NodePool", "NodeClaim", "NodeOverlay", "EC2NodeClass", "CapacityBuffer"]);
    let applied: Vec<Value> = api::crds().iter().map(|one| serde_json::to_value(one).unwrap()).collect();
    assert_eq!(printed, applied);
    let read: Vec<CustomResourceDefinition> = serde_json::from_value(printed.into()).unwrap();
    assert_eq!(read, api::crds());
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

fn in_zones(zones: &[&str]) -> Value {
    let term = json!({"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": zones}]});
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}})
}

/// A node has the zone that it can only be in; where its pods leave several, those are told, and where they leave all, none.
#[test]
fn zones_are_told_once_they_are_settled() {
    let (a, b) = ("us-east-1a", "us-east-1b");
    let told = |objects: &[Value]| -> Vec<(Value, Value)> {
        let (code, answer) = simulate(objects, &[]);
        assert_eq!(code, Some(0), "{answer}");
        answer["nodeClaims"].as_array().unwrap().iter().map(|of| (of["zone"].clone(), of["zones"].clone())).collect()
    };
    let none = Value::Null;
    assert_eq!(told(&[pool(&json!([])), pod(&json!({}))]), [(none.clone(), none.clone())]);
    assert_eq!(told(&[pool(&json!([])), pod(&in_zones(&[b]))]), [(json!(b), none.clone())]);
    let open = [pool(&json!([])), pod(&in_zones(&[b, a]))];
    assert_eq!(told(&open), [(none.clone(), json!([a, b]))]);
    // the larger type is sold in one zone only
    assert_eq!(told(&[pool(&json!([])), sized(0, "5")]), [(json!(a), none.clone())]);

    let spread = |name: &str| {
        let mut pod = pod(&json!({}));
        pod["metadata"] = json!({"name": name, "namespace": "default", "labels": {"app": "web"}});
        pod["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}}]);
        pod
    };
    let mut pinned = told(&[pool(&json!([])), spread("web-0"), spread("web-1")]);
    pinned.sort_by_key(|(zone, _)| zone.to_string());
    assert_eq!(pinned, [(json!(a), none.clone()), (json!(b), none)], "a spread settles the zones of its pods' nodes");

    let types = fixture("types.json");
    let table = karp(&["simulate", "-f", "-", "--instance-types", types.to_str().unwrap()], &open);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("  any of us-east-1a, us-east-1b  "), "{table}");
}

#[test]
fn built_in_types_are_sold_in_the_zones_that_are_named() {
    let objects = [pool(&json!([])), pod(&in_zones(&["us-west-2b"]))];
    let zone = |more: &[&str]| {
        let output = karp(&[&["simulate", "-f", "-", "-o", "json"], more].concat(), &objects);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code(), answer["nodeClaims"][0]["zone"].clone())
    };
    assert_eq!(zone(&["--zones", "us-west-2a,us-west-2b"]), (Some(0), json!("us-west-2b")));
    assert_eq!(zone(&["--zones", "us-west-2a", "--zones", "us-west-2b"]), (Some(0), json!("us-west-2b")));
    assert_eq!(zone(&["--zones", "us-west-2a"]), (Some(2), Value::Null));
    let types = fixture("types.json");
    let listed = ["--zones", "us-west-2b", "--instance-types", types.to_str().unwrap()];
    assert_eq!(zone(&listed), (Some(1), Value::Null), "a list has its own zones");
}

/// A pool with an annotation of karp's.
fn annotated(key: &str, value: &str) -> Value {
    let mut pool = pool(&json!([]));
    pool["metadata"]["annotations"] = json!({key: value});
    pool
}

#[test]
fn a_share_of_the_pods_is_the_most_that_a_node_gets() {
    let pods = |share: &[&str], pool: Value| {
        let objects: Vec<Value> = [pool].into_iter().chain((0..4).map(|at| sized(at, "100m"))).collect();
        let (code, answer) = simulate(&objects, share);
        assert_eq!(code, Some(0), "{answer}");
        let on = |claim: &Value| claim["pods"].as_array().unwrap().len();
        answer["nodeClaims"].as_array().unwrap().iter().map(on).collect::<Vec<_>>()
    };
    let key = "karp.sh/max-pod-share";
    assert_eq!(pods(&[], pool(&json!([]))), [4]);
    assert_eq!(pods(&["--max-pod-share", "50%"], pool(&json!([]))), [2, 2]);
    assert_eq!(pods(&["--max-pod-share", "25%"], pool(&json!([]))), [1, 1, 1, 1]);
    assert_eq!(pods(&["--max-pod-share", "25%"], annotated(key, "100%")), [4], "the pool's own share holds");
    for wrong in ["0%", "101%", "50"] {
        assert_eq!(karp(&["simulate", "-f", "-", "--max-pod-share", wrong], &[]).status.code(), Some(1), "{wrong}");
    }
}

#[test]
fn types_within_the_tolerance_are_listed() {
    let types = |tolerance: &[&str], pool: Value| {
        let (code, answer) = simulate(&[pool, pod(&json!({}))], tolerance);
        assert_eq!(code, Some(0), "{answer}");
        answer["nodeClaims"][0]["instanceTypes"].clone()
    };
    let (one, two) = (json!(["m7i.xlarge"]), json!(["m7i.xlarge", "m7i.2xlarge"]));
    let key = "karp.sh/price-tolerance";
    assert_eq!(types(&[], pool(&json!([]))), two, "twice the price is within the default");
    for (tolerance, listed) in [("0%", &one), ("99%", &one), ("100%", &two)] {
        assert_eq!(&types(&["--price-tolerance", tolerance], pool(&json!([]))), listed, "{tolerance}");
    }
    assert_eq!(types(&["--price-tolerance", "100%"], annotated(key, "20%")), one, "the pool's own tolerance holds");
    assert_eq!(karp(&["simulate", "-f", "-", "--price-tolerance", "1.5"], &[]).status.code(), Some(1));
}

/// Requirements on what offerings have leave the offerings that meet them, and the types that have any.
#[test]
fn instance_types_are_chosen_by_what_offerings_have() {
    let types = fixture("types.json");
    let offered = |more: &[&str]| -> Vec<(String, Vec<String>)> {
        let output = karp(&[&["instance-types", "-o", "json"], more].concat(), &[]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let sold = |of: &Value| format!("{} {}", text(&of["zone"]), text(&of["capacityType"]));
        let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let offerings = |of: &Value| of["offerings"].as_array().unwrap().iter().map(sold).collect();
        all.iter().map(|of| (text(&of["name"]), offerings(of))).collect()
    };
    let listed = |wanted: &str| {
        let of = offered(&["--instance-types", types.to_str().unwrap(), "-r", wanted]);
        of.into_iter().map(|(name, sold)| format!("{name}: {}", sold.join(", "))).collect::<Vec<_>>()
    };
    let large = "m7i.2xlarge: us-east-1a on-demand";
    let (in_a, in_b) = ("m7i.xlarge: us-east-1a on-demand", "m7i.xlarge: us-east-1b on-demand");
    assert_eq!(listed("topology.kubernetes.io/zone In us-east-1a"), [large, in_a]);
    assert_eq!(listed("topology.kubernetes.io/zone NotIn us-east-1a"), [in_b]);
    let both = format!("{in_a}, us-east-1b on-demand");
    assert_eq!(listed("karpenter.sh/capacity-type In on-demand,spot"), [large.to_owned(), both]);
    assert!(listed("karpenter.sh/capacity-type In spot").is_empty());

    let one = ["-r", "node.kubernetes.io/instance-type In m7i.large", "--zones", "us-west-2a,us-west-2b"];
    let spot = ["-r", "karpenter.sh/capacity-type In spot", "-r", "topology.kubernetes.io/zone In us-west-2b"];
    let everywhere = ["us-west-2a on-demand", "us-west-2a spot", "us-west-2b on-demand", "us-west-2b spot"];
    let mut all = offered(&one);
    all[0].1.sort();
    assert_eq!(all, [("m7i.large".to_owned(), everywhere.map(str::to_owned).to_vec())]);
    assert_eq!(offered(&[one, spot].concat()), [("m7i.large".to_owned(), vec!["us-west-2b spot".to_owned()])]);
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
    let buffer = buffer(
        "both",
        &json!({"podTemplateRef": {"name": "t"}, "scalableRef": {"kind": "Deployment", "name": "web"}, "replicas": 1}),
    );
    for (object, whose, field) in [
        (buffer, "CapacityBuffer default/both", "exclude each other"),
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

fn buffer(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

/// A buffer for pods of one CPU, with their template.
fn room(replicas: u32) -> [Value; 2] {
    let template = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "t", "namespace": "default"},
        "template": {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}}});
    [template, buffer("room", &json!({"podTemplateRef": {"name": "t"}, "replicas": replicas}))]
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Whoever reads `pods` finds pods that exist, and nothing else; what buffers ask for stands beside them.
#[test]
fn virtual_pods_are_planned_and_never_taken_for_pods() {
    let mut objects = vec![pool(&json!([])), pod(&json!({}))];
    let (_, without) = simulate(&objects, &[]);
    objects.extend(room(5));
    let (code, answer) = simulate(&objects, &[]);
    assert_eq!((code, &answer["unschedulable"]), (Some(0), &json!([])));
    let [first, second] = answer["nodeClaims"].as_array().unwrap().as_slice() else { panic!("{answer}") };
    // the node for the pod is as it was, and the room that is left on it is used
    let mut alone = first.clone();
    alone.as_object_mut().unwrap().remove("virtualPods");
    assert_eq!(alone, without["nodeClaims"][0]);
    assert_eq!(first["virtualPods"], json!([{"buffer": "default/room", "pods": 2}]));
    assert_eq!(
        (&second["pods"], &second["for"], &second["virtualPods"]),
        (&json!([]), &json!("buffers"), &json!([{"buffer": "default/room", "pods": 3}]))
    );
    let kept = json!([{"buffer": "default/room", "ready": true, "reason": "RequiresNewCapacity",
        "message": "5 of 5 pods wait for nodes", "pods": 5, "there": 0, "launching": 5, "refused": 0, "placements": [], "reasons": []}]);
    assert_eq!(answer["buffers"], kept);
    assert_eq!(answer["pricePerHour"], json!(0.4032));
    let plain = ["nodeClaims", "placements", "pricePerHour", "solveSeconds", "unschedulable"];
    assert_eq!(keys(&without), plain, "who has no buffer sees nothing of them");
    assert_eq!(keys(&answer), [&["buffers"][..], &plain].concat());
}

#[test]
fn room_that_is_there_or_nowhere_is_told() {
    let mut objects = vec![pool(&json!([])), node("n1", "general")];
    objects.extend(room(3));
    let (_, answer) = simulate(&objects, &[]);
    let kept = &answer["buffers"][0];
    assert_eq!((&answer["nodeClaims"], &answer["placements"]), (&json!([]), &json!([])));
    assert_eq!((&kept["reason"], &kept["there"]), (&json!("FitsExistingCapacity"), &json!(3)));
    assert_eq!(kept["placements"], json!([{"node": "n1", "pods": 3}]));
    objects[0]["spec"]["limits"] = json!({"nodes": 1});
    objects.truncate(2);
    objects.extend(room(5));
    let (code, answer) = simulate(&objects, &[]);
    let kept = &answer["buffers"][0];
    assert_eq!((code, &answer["nodeClaims"]), (Some(0), &json!([])), "the exit code is for pods");
    assert_eq!((&kept["there"], &kept["launching"], &kept["refused"]), (&json!(3), &json!(0), &json!(2)));
    assert_eq!(kept["reasons"], json!(["pool general: limit nodes 1 reached (1 in use)"]));
}

#[test]
fn a_buffer_without_its_template_is_told_and_stops_nothing() {
    let lost = buffer("lost", &json!({"podTemplateRef": {"name": "gone"}, "replicas": 2}));
    let elsewhere = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "gone", "namespace": "other"},
        "template": {"spec": {"containers": [{"name": "c"}]}}});
    let objects = [pool(&json!([])), pod(&json!({})), elsewhere, lost];
    let (code, answer) = simulate(&objects, &[]);
    assert_eq!((code, answer["nodeClaims"].as_array().unwrap().len()), (Some(0), 1));
    let kept = &answer["buffers"][0];
    let why = "PodTemplate gone does not exist in the buffer's namespace";
    assert_eq!((&kept["ready"], &kept["reason"]), (&json!(false), &json!("PodTemplateNotFound")));
    assert_eq!((&kept["message"], &kept["pods"]), (&json!(why), &json!(0)));
    let told = String::from_utf8(karp(&["simulate", "-f", "-"], &objects).stderr).unwrap();
    assert!(told.contains(&format!("warning: -:4: no room is kept for CapacityBuffer default/lost: {why}")), "{told}");
}

/// A node of the larger fixture type, as `kubectl get nodes` shows it.
fn node(name: &str, of: &str) -> Value {
    let labels = json!({"karpenter.sh/nodepool": of, "karpenter.sh/capacity-type": "on-demand",
        "node.kubernetes.io/instance-type": "m7i.xlarge", "topology.kubernetes.io/zone": "us-east-1a",
        "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"});
    let room = json!({"cpu": "3920m", "memory": "14Gi", "pods": "58"});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn fixed(replicas: u32, limits: &Value) -> Value {
    let mut fixed = pool(&json!([]));
    fixed["metadata"]["name"] = json!("fixed");
    fixed["spec"]["replicas"] = json!(replicas);
    fixed["spec"]["limits"] = limits.clone();
    fixed
}

#[test]
fn static_pools_get_the_nodes_that_they_lack() {
    let objects = [pool(&json!([])), fixed(3, &Value::Null), node("n1", "fixed")];
    let (code, answer) = simulate(&objects, &[]);
    let claims = answer["nodeClaims"].as_array().unwrap();
    assert_eq!((code, claims.len()), (Some(0), 2), "{answer}");
    for claim in claims {
        let said = (&claim["nodePool"], &claim["for"], &claim["pods"]);
        assert_eq!(said, (&json!("fixed"), &json!("replicas"), &json!([])));
    }
    assert_eq!(answer["pricePerHour"], json!(0.4032));
    let kept = json!([{"nodePool": "fixed", "replicas": 3, "launched": 2, "removed": []}]);
    assert_eq!(answer["staticPools"], kept);
    // pods use those nodes, and are planned on nodes of other pools only where they end
    let six: Vec<Value> = (0..4).map(|at| sized(at, "3")).collect();
    let (_, answer) = simulate(&[&objects[..], &six].concat(), &[]);
    let claims = answer["nodeClaims"].as_array().unwrap();
    let said =
        claims.iter().map(|claim| (claim["nodePool"].as_str().unwrap(), claim["pods"].as_array().unwrap().len()));
    assert_eq!(said.collect::<Vec<_>>(), [("fixed", 1), ("fixed", 1), ("general", 1)]);
    assert_eq!((answer["placements"].as_array().unwrap().len(), &answer["placements"][0]["node"]), (1, &json!("n1")));
}

fn sized(at: usize, cpu: &str) -> Value {
    let mut pod = pod(&json!({}));
    pod["metadata"]["name"] = json!(format!("web-{at}"));
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
    pod
}

#[test]
fn static_pools_stay_within_their_limit_and_give_back_what_is_too_much() {
    let nodes = || (1..=2).map(|at| node(&format!("n{at}"), "fixed"));
    let of = |replicas, limits: &Value| {
        let objects: Vec<Value> = [fixed(replicas, limits), sized(0, "7")].into_iter().chain(nodes()).collect();
        let (code, answer) = simulate(&objects, &[]);
        assert_eq!(code, Some(2), "no pod makes a static pool grow: {answer}");
        (answer["nodeClaims"].as_array().unwrap().len(), answer["staticPools"][0].clone())
    };
    let limit = "limit nodes 3 reached (3 in use)";
    let kept = json!({"nodePool": "fixed", "replicas": 5, "launched": 1, "removed": [], "short": limit});
    assert_eq!(of(5, &json!({"nodes": 3})), (1, kept));
    let kept = json!({"nodePool": "fixed", "replicas": 1, "launched": 0, "removed": ["n1"]});
    assert_eq!(of(1, &Value::Null), (0, kept));
}

/// Nodes whose room is kept for a buffer are not empty, and nobody is evicted who does not run.
#[test]
fn disruption_leaves_room_alone() {
    let mut objects = vec![pool(&json!([])), node("n1", "general")];
    objects[0]["spec"]["disruption"] = json!({"consolidateAfter": "0s"});
    let told = |objects: &[Value]| simulate(objects, &["--disrupt"]).1["commands"].clone();
    let gone = told(&objects);
    assert_eq!((&gone[0]["method"], &gone[0]["candidates"]), (&json!("emptiness"), &json!(["n1"])));
    objects.extend(room(3));
    assert_eq!(told(&objects), json!([]));
    let types = fixture("types.json");
    let args = ["explain", "node", "n1", "-f", "-", "-o", "json", "--instance-types", types.to_str().unwrap()];
    let node: Value = serde_json::from_slice(&karp(&args, &objects).stdout).unwrap();
    assert_eq!((&node["outcome"]["kind"], &node["pods"]), (&json!("kept"), &json!(0)));
}

/// What is on this machine is called straight, whatever proxy the environment names.
#[test]
fn a_controller_does_not_look_for_this_machine_behind_a_proxy() {
    let [server, proxy] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let at = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    let cluster = json!({"server": format!("https://{}", at(&server)), "insecure-skip-tls-verify": true});
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "c", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]});
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("straight-{}.json", std::process::id()));
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let mut karp = Command::new(env!("CARGO_BIN_EXE_karp"));
    karp.args(["controller", "--cloud=simulated", "--metrics-port=0", "--health-probe-port=0"]);
    karp.env("KUBECONFIG", &file).env("KARP_LISTEN_ADDRESS", "127.0.0.1");
    karp.env("HTTPS_PROXY", format!("http://{}", at(&proxy)));
    for variable in ["https_proxy", "NO_PROXY", "no_proxy"] {
        karp.env_remove(variable);
    }
    for listener in [&server, &proxy] {
        listener.set_nonblocking(true).unwrap();
    }
    let mut child = karp.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    let mut called = [false; 2];
    while called == [false; 2] && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
        called = [&server, &proxy].map(|listener| listener.accept().is_ok());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(called, [true, false], "the server, the proxy");
}

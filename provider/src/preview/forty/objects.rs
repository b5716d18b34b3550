//! The objects of a cluster of forty nodes as the API server sends them: one pool and its class, NodeClaims, Nodes, pods and
//! PodDisruptionBudgets. The edge test of the preview writes the same to a real API server.

use karp_domain::api::hash::{self, NodeClassVersion};
use karp_domain::api::{Ec2NodeClass, NodePool, labels};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

/// How many nodes there are.
pub const NODES: usize = 40;
/// Types of the nodes, one after the other.
const TYPES: [(&str, &str, i64); 5] =
    [("m7i", "xlarge", 4), ("c7i", "xlarge", 4), ("m7i", "2xlarge", 8), ("r7i", "large", 2), ("c7i", "large", 2)];
const ZONES: [&str; 3] = ["us-east-1a", "us-east-1b", "us-east-1c"];
/// Pods of the database, whose budget has no allowance, are on these.
const OF_DATABASE: [usize; 2] = [3, 17];
/// A pod that asks to be left alone is here.
const OF_TRAINING: usize = 23;
/// This one is launched, and has no Node yet.
const LAUNCHED: usize = 39;

/// Reads an object as a type of the API.
pub fn read<T: DeserializeOwned>(object: Json) -> T {
    serde_json::from_value(object).expect("an object of the API")
}

/// The pool that made the nodes.
pub fn pool() -> Json {
    let among = |key: &str, values: &[&str]| json!({ "key": key, "operator": "In", "values": values });
    json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" }, "spec": {
        "template": { "metadata": { "labels": { "team": "a" } }, "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            "requirements": [
                among("karpenter.k8s.aws/instance-category", &["c", "m", "r"]),
                among("karpenter.k8s.aws/instance-generation", &["7"]),
                among("kubernetes.io/arch", &["amd64"]),
                among("karpenter.sh/capacity-type", &["spot", "on-demand"]),
                among("topology.kubernetes.io/zone", &ZONES),
            ],
            "expireAfter": "720h",
        } },
        "disruption": { "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "1m", "budgets": [
            { "nodes": "10%" },
            { "nodes": "0", "reasons": ["Drifted"], "schedule": "0 9 * * 1-5", "duration": "8h" },
        ] },
        "limits": { "cpu": "400" },
        "weight": 10,
    } })
}

/// The class that made the nodes.
pub fn class() -> Json {
    json!({ "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "default" }, "spec": {
        "amiSelectorTerms": [{ "alias": "al2023@v20261101" }],
        "subnetSelectorTerms": [{ "tags": { "karpenter.sh/discovery": "demo" } }],
        "securityGroupSelectorTerms": [{ "tags": { "karpenter.sh/discovery": "demo" } }],
        "role": "demo-nodes",
        "kubelet": { "maxPods": 58 },
    } })
}

/// The budgets of the shop, one of which lets no pod go.
pub fn budgets() -> [Json; 2] {
    let budget = |app: &str, healthy: usize, least: usize| {
        json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "namespace": "shop", "name": app },
            "spec": { "selector": { "matchLabels": { "app": app } }, "minAvailable": least },
            "status": { "disruptionsAllowed": healthy - least, "currentHealthy": healthy, "desiredHealthy": least, "expectedPods": healthy } })
    };
    [budget("database", OF_DATABASE.len(), OF_DATABASE.len()), budget("web", NODES - 1, NODES - 5)]
}

/// Whether a node has joined.
pub const fn joined(at: usize) -> bool {
    at != LAUNCHED
}

/// Two of three nodes are spot, one of three in each zone.
fn labels_of(at: usize) -> Json {
    let (family, size, cpu) = TYPES[at % TYPES.len()];
    json!({
        "karpenter.sh/nodepool": "default", "karpenter.k8s.aws/ec2nodeclass": "default", "team": "a",
        "node.kubernetes.io/instance-type": format!("{family}.{size}"),
        "karpenter.k8s.aws/instance-family": family, "karpenter.k8s.aws/instance-size": size,
        "karpenter.k8s.aws/instance-category": &family[..1], "karpenter.k8s.aws/instance-generation": "7",
        "karpenter.k8s.aws/instance-cpu": cpu.to_string(),
        "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
        "karpenter.sh/capacity-type": if at.is_multiple_of(3) { "on-demand" } else { "spot" },
        "topology.kubernetes.io/zone": ZONES[at / 3 % ZONES.len()],
    })
}

/// The annotations by which the controller knows what a claim was made of.
pub fn stamps() -> Json {
    let (pool, class) = (read::<NodePool>(pool()), read::<Ec2NodeClass>(class()));
    json!({
        labels::NODE_POOL_HASH: hash::node_pool(&pool.spec), labels::NODE_POOL_HASH_VERSION: hash::NODE_POOL_VERSION,
        labels::EC2_NODE_CLASS_HASH: hash::node_class(&class.spec, NodeClassVersion::V6, "Q0E="),
        labels::EC2_NODE_CLASS_HASH_VERSION: hash::NODE_CLASS_VERSION,
    })
}

/// A NodeClaim with the annotations of [`stamps`].
pub fn claim(at: usize, stamps: &Json) -> Json {
    let since = "2026-11-20T08:00:00Z";
    let met = |kind: &str| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": since });
    let mut status = json!({
        "providerID": format!("aws:///us-east-1a/i-{at:017x}"), "imageID": "ami-0a",
        "capacity": { "cpu": TYPES[at % TYPES.len()].2.to_string() }, "conditions": [met("Launched")],
    });
    if joined(at) {
        status["nodeName"] = json!(format!("node-{at:02}"));
        status["conditions"] = json!([met("Launched"), met("Registered"), met("Initialized"), met("Ready")]);
    }
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": { "name": format!("default-{at:02}"), "uid": format!("uid-{at}"), "creationTimestamp": since,
            "labels": labels_of(at), "annotations": stamps },
        "spec": { "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }, "requirements": [],
            "expireAfter": "720h" },
        "status": status,
    })
}

/// A Node that has joined.
pub fn node(at: usize) -> Json {
    let mut labels = labels_of(at);
    labels["karpenter.sh/registered"] = json!("true");
    labels["karpenter.sh/initialized"] = json!("true");
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": format!("node-{at:02}"), "labels": labels },
        "spec": { "providerID": format!("aws:///us-east-1a/i-{at:017x}") },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] } })
}

/// Gives each node its daemon and some pods of the shop, and to some nodes what may not be moved.
pub fn pods_of(at: usize, count: usize) -> Vec<Json> {
    let mut pods = vec![pod(at, "kube-system", &format!("logs-{at}"), "logs", "DaemonSet", &json!({}))];
    pods.extend((0..count).map(|n| pod(at, "shop", &format!("web-{at}-{n}"), "web", "ReplicaSet", &json!({}))));
    if let Some(n) = OF_DATABASE.iter().position(|on| *on == at) {
        pods.push(pod(at, "shop", &format!("database-{n}"), "database", "StatefulSet", &json!({})));
    }
    if at == OF_TRAINING {
        let peace = json!({ "karpenter.sh/do-not-disrupt": "true" });
        pods.push(pod(at, "science", "training-7", "training", "Job", &peace));
    }
    pods
}

/// A pod on a node.
pub fn pod(at: usize, namespace: &str, name: &str, app: &str, owner: &str, annotations: &Json) -> Json {
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": namespace, "name": name, "uid": name, "labels": { "app": app }, "annotations": annotations,
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": owner, "name": app, "uid": app, "controller": true }] },
        "spec": { "nodeName": format!("node-{at:02}"),
            "containers": [{ "name": app, "image": app, "resources": { "requests": { "cpu": "250m", "memory": "256Mi" } } }] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } })
}

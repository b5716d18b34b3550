//! A cluster of forty nodes to preview changes on: one pool and its class, NodeClaims, Nodes, pods and PodDisruptionBudgets, all written as
//! the API server sends them and read by the types that production reads them by.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use karp_domain::api::hash::{self, NodeClassVersion};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool, labels};
use karp_domain::cluster::{Node, Pod, PodBudget, Pool};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use super::*;

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

/// Answers a Saturday, outside of the window in which nothing may drift.
pub fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().expect("a time")
}

pub fn read<T: DeserializeOwned>(object: Json) -> T {
    serde_json::from_value(object).expect("an object of the API")
}

/// Answers the pool that made the nodes, with a change.
pub fn pool(change: impl Fn(&mut Json)) -> NodePool {
    let among = |key: &str, values: &[&str]| json!({ "key": key, "operator": "In", "values": values });
    let mut pool = json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" }, "spec": {
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
    } });
    change(&mut pool);
    read(pool)
}

/// Answers the class that made the nodes, with a change.
pub fn class(change: impl Fn(&mut Json)) -> Ec2NodeClass {
    let mut class = json!({ "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "default" }, "spec": {
        "amiSelectorTerms": [{ "alias": "al2023@v20261101" }],
        "subnetSelectorTerms": [{ "tags": { "karpenter.sh/discovery": "demo" } }],
        "securityGroupSelectorTerms": [{ "tags": { "karpenter.sh/discovery": "demo" } }],
        "role": "demo-nodes",
        "kubelet": { "maxPods": 58 },
    } });
    change(&mut class);
    read(class)
}

/// The cluster as the API server tells of it.
pub struct Cluster {
    pub claims: Vec<NodeClaim>,
    pub around: Surroundings,
}

impl Cluster {
    /// Makes a cluster of so many nodes with so many pods each; forty are the sandbox.
    pub fn of(nodes: usize, pods: usize) -> Self {
        let hashes =
            (hash::node_pool(&pool(|_| {}).spec), hash::node_class(&class(|_| {}).spec, NodeClassVersion::V6, "Q0E="));
        let database = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "namespace": "shop", "name": "database" }, "spec": { "selector": { "matchLabels": { "app": "database" } } },
            "status": { "disruptionsAllowed": 0, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 2 } });
        let web = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "namespace": "shop", "name": "web" }, "spec": { "selector": { "matchLabels": { "app": "web" } } },
            "status": { "disruptionsAllowed": 4, "currentHealthy": 40, "desiredHealthy": 36, "expectedPods": 40 } });
        let budget =
            |object| Arc::new(PodBudget::from_kube(&read::<policy::PodDisruptionBudget>(object)).expect("readable"));
        let joined = || (0..nodes).filter(|at| *at != LAUNCHED);
        let around = Surroundings {
            nodes: joined().map(|at| Node::from_kube(&read::<core::Node>(node(at))).expect("readable")).collect(),
            pods: joined().flat_map(|at| pods_of(at, pods)).collect(),
            budgets: vec![budget(database), budget(web)],
        };
        Self { claims: (0..nodes).map(|at| read(claim(at, &hashes))).collect(), around }
    }

    /// Previews a change of the pool.
    pub fn preview(&self, after: &NodePool) -> Preview {
        let before = pool(|_| {});
        let read = |pool: &NodePool| Pool::from_kube(pool).expect("readable");
        let mut impact = impact(&before, after, &read(after), &self.claims, now());
        block(&mut impact, &self.around, now());
        let offer_of = |pool: &NodePool| offer(&read(pool).requirements);
        Preview { before: Some(offer_of(&before)), after: offer_of(after), impact: Some(impact), unseen: None }
    }

    /// Previews a change of the class.
    pub fn preview_class(&self, after: &Ec2NodeClass) -> ClassPreview {
        let pools = [Pool::from_kube(&pool(|_| {})).expect("readable")];
        let mut seen = ClassPreview::of(&class(|_| {}), after, &pools, &self.claims, now());
        block(&mut seen.impact, &self.around, now());
        seen
    }
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

fn claim(at: usize, (pool, class): &(String, String)) -> Json {
    let since = "2026-11-20T08:00:00Z";
    let met = |kind: &str| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": since });
    let mut status = json!({
        "providerID": format!("aws:///us-east-1a/i-{at:017x}"), "imageID": "ami-0a",
        "capacity": { "cpu": TYPES[at % TYPES.len()].2.to_string() }, "conditions": [met("Launched")],
    });
    if at != LAUNCHED {
        status["nodeName"] = json!(format!("node-{at:02}"));
        status["conditions"] = json!([met("Launched"), met("Registered"), met("Initialized"), met("Ready")]);
    }
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": { "name": format!("default-{at:02}"), "uid": format!("uid-{at}"), "creationTimestamp": since,
            "labels": labels_of(at), "annotations": {
                labels::NODE_POOL_HASH: pool, labels::NODE_POOL_HASH_VERSION: hash::NODE_POOL_VERSION,
                labels::EC2_NODE_CLASS_HASH: class, labels::EC2_NODE_CLASS_HASH_VERSION: hash::NODE_CLASS_VERSION,
            } },
        "spec": { "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }, "requirements": [],
            "expireAfter": "720h" },
        "status": status,
    })
}

fn node(at: usize) -> Json {
    let mut labels = labels_of(at);
    labels["karpenter.sh/registered"] = json!("true");
    labels["karpenter.sh/initialized"] = json!("true");
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": format!("node-{at:02}"), "labels": labels },
        "spec": { "providerID": format!("aws:///us-east-1a/i-{at:017x}") },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] } })
}

/// Gives each node its daemon and some pods of the shop, and to some nodes what may not be moved.
fn pods_of(at: usize, count: usize) -> Vec<Pod> {
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

pub fn pod(at: usize, namespace: &str, name: &str, app: &str, owner: &str, annotations: &Json) -> Pod {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": namespace, "name": name, "uid": name, "labels": { "app": app }, "annotations": annotations,
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": owner, "name": app, "uid": app, "controller": true }] },
        "spec": { "nodeName": format!("node-{at:02}"),
            "containers": [{ "name": app, "resources": { "requests": { "cpu": "250m", "memory": "256Mi" } } }] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
    Pod::from_kube(&read::<core::Pod>(pod)).expect("readable")
}

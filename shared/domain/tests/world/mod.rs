//! Worlds for tests: snapshots made of Kubernetes objects, and a judge that knows nothing of the solver.

#![allow(dead_code, reason = "each test uses its own part")]

pub mod judge;
pub mod topology;
pub mod universe;

use std::sync::Arc;

use jiff::Timestamp;
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool};
use karp_domain::catalogue::{CapacityType, Catalogue, NodeSettings, Zone, builtin_type};
use karp_domain::cluster::{Claim, DaemonSet, Node, Pod, PodBudget, Pool, Snapshot, StorageClass, Volume, VolumeClaim};
use karp_domain::scheduling::InFlightNode;
use serde_json::{Value, json};

pub const NOW: &str = "2026-11-21T12:00:00Z";

/// Types that tests buy from: small and large, both architectures, one with a GPU, one of bare metal.
pub const TYPES: &[&str] = &[
    "c6g.large",
    "c6g.2xlarge",
    "c7i.large",
    "c7i.xlarge",
    "c7i.4xlarge",
    "g5.xlarge",
    "m5.metal",
    "m6g.xlarge",
    "m7i.large",
    "m7i.xlarge",
    "m7i.2xlarge",
    "m7i.8xlarge",
    "r7i.large",
    "r7i.2xlarge",
    "t3.medium",
    "t3.nano",
];

pub fn zones() -> Vec<Zone> {
    ["a", "b", "c"]
        .iter()
        .enumerate()
        .map(|(at, z)| Zone::new(&format!("us-east-1{z}"), &format!("use1-az{}", at + 1)))
        .collect()
}

/// A catalogue of some types in three zones at estimated prices.
pub fn catalogue(types: &[&str]) -> Catalogue {
    let facts = types.iter().map(|name| builtin_type(name).unwrap_or_else(|| panic!("no type {name}")));
    Catalogue::estimated(facts, &zones(), &NodeSettings::default())
}

/// Reads Kubernetes objects into a snapshot; each kind as the API server sends it.
pub fn snapshot(objects: &[Value], catalogue: Catalogue) -> Snapshot {
    let mut snapshot = Snapshot::empty(NOW.parse().unwrap());
    let catalogue = Arc::new(catalogue);
    for object in objects {
        let object = object.clone();
        match object["kind"].as_str().unwrap() {
            "Pod" => snapshot.pods.push(Arc::new(Pod::from_kube(&read(object)).unwrap())),
            "Node" => snapshot.nodes.push(Arc::new(Node::from_kube(&read(object)).unwrap())),
            "DaemonSet" => snapshot.daemons.push(Arc::new(DaemonSet::from_kube(&read(object)).unwrap())),
            "PodDisruptionBudget" => snapshot.budgets.push(Arc::new(PodBudget::from_kube(&read(object)).unwrap())),
            "NodeClaim" => {
                let claim: NodeClaim = serde_json::from_value(object).unwrap();
                snapshot.claims.push(Arc::new(Claim::from_kube(&claim).unwrap()));
            }
            "NodePool" => {
                let pool: NodePool = serde_json::from_value(object).unwrap();
                snapshot.pools.push(Arc::new(Pool::from_kube(&pool).unwrap()));
            }
            "EC2NodeClass" => {
                let class: Ec2NodeClass = serde_json::from_value(object).unwrap();
                let name = class.metadata.name.unwrap_or_default();
                snapshot.catalogues.insert(name.as_str().into(), catalogue.clone());
            }
            "Namespace" => {
                let meta = &object["metadata"];
                let labels = serde_json::from_value(meta["labels"].clone()).unwrap_or_default();
                snapshot.namespaces.insert(meta["name"].as_str().unwrap().into(), labels);
            }
            "PersistentVolumeClaim" => snapshot.volumes.claims.extend([VolumeClaim::from_kube(&read(object))]),
            "PersistentVolume" => snapshot.volumes.volumes.extend([Volume::from_kube(&read(object)).unwrap()]),
            "StorageClass" => snapshot.volumes.classes.extend([StorageClass::from_kube(&read(object)).unwrap()]),
            "CSINode" => snapshot.volumes.add_csi_node(&read(object)),
            kind => panic!("no such kind: {kind}"),
        }
    }
    snapshot
}

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// Sets values at dotted paths of an object.
pub fn with(mut object: Value, more: &[(&str, Value)]) -> Value {
    for (path, value) in more {
        let mut at = &mut object;
        for part in path.split('.') {
            if at.is_null() {
                *at = json!({});
            }
            at = &mut at[part];
        }
        *at = value.clone();
    }
    object
}

/// A pod that kube-scheduler could not place.
pub fn pending(name: &str, cpu: &str, memory: &str) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": name, "creationTimestamp": NOW,
            "labels": {"app": "test"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs"}]},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    })
}

/// A pod that runs on a node.
pub fn running(name: &str, node: &str, cpu: &str, memory: &str) -> Value {
    with(
        pending(name, cpu, memory),
        &[
            ("spec.nodeName", json!(node)),
            (
                "status",
                json!({"phase": "Running", "startTime": "2026-11-21T10:00:00Z", "conditions": [{"type": "Ready", "status": "True"}]}),
            ),
        ],
    )
}

pub fn class() -> Value {
    json!({"kind": "EC2NodeClass", "apiVersion": "karpenter.k8s.aws/v1", "metadata": {"name": "default"}, "spec": {
        "subnetSelectorTerms": [], "securityGroupSelectorTerms": [], "amiSelectorTerms": []}})
}

#[allow(clippy::needless_pass_by_value, reason = "callers write the value in place")]
pub fn pool(name: &str, requirements: Value) -> Value {
    json!({
        "kind": "NodePool", "apiVersion": "karpenter.sh/v1", "metadata": {"name": name, "uid": name},
        "spec": {
            "disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]},
            "template": {"spec": {
                "requirements": requirements,
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
                "expireAfter": "Never",
            }},
        },
    })
}

/// A node and its claim, initialized an hour ago, of a type as the catalogue describes it.
pub fn node(name: &str, pool: &str, instance_type: &str, zone: &str, capacity_type: CapacityType) -> [Value; 2] {
    let catalogue = catalogue(&[instance_type]);
    let t = catalogue.get(instance_type).unwrap();
    let mut labels = json!({
        "karpenter.sh/nodepool": pool, "karpenter.sh/capacity-type": capacity_type.as_str(),
        "topology.kubernetes.io/zone": zone, "karpenter.k8s.aws/ec2nodeclass": "default",
    });
    for (key, values) in &t.labels {
        if let [value] = values.as_slice() {
            labels[&**key] = json!(**value);
        }
    }
    let capacity = serde_json::to_value(t.capacity.to_api()).unwrap();
    let allocatable = serde_json::to_value(t.allocatable().to_api()).unwrap();
    let id = format!("aws:///{zone}/i-{name}");
    let since = "2026-11-21T11:00:00Z";
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": since, "reason": kind, "message": ""});
    let conditions = ["Launched", "Registered", "Initialized"].map(condition);
    let claim = json!({
        "kind": "NodeClaim", "apiVersion": "karpenter.sh/v1",
        "metadata": {"name": format!("{pool}-{name}"), "uid": format!("uid-{name}"), "labels": labels, "creationTimestamp": since},
        "spec": {
            "requirements": [],
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
            "expireAfter": "Never",
        },
        "status": {"nodeName": name, "providerID": id, "capacity": capacity, "allocatable": allocatable,
            "conditions": conditions},
    });
    labels["karpenter.sh/registered"] = json!("true");
    labels["karpenter.sh/initialized"] = json!("true");
    labels["kubernetes.io/hostname"] = json!(name);
    let node = json!({
        "kind": "Node",
        "metadata": {"name": name, "uid": format!("node-{name}"), "labels": labels, "creationTimestamp": since},
        "spec": {"providerID": id},
        "status": {"capacity": capacity, "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}]},
    });
    [node, claim]
}

/// What a driver of volumes says that a node attaches.
pub fn csi_node(node: &str, driver: &str, count: i32) -> Value {
    json!({"kind": "CSINode", "metadata": {"name": node},
        "spec": {"drivers": [{"name": driver, "nodeID": node, "allocatable": {"count": count}}]}})
}

pub fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The claim of a planned node, as the API server would have it.
pub fn created(node: &InFlightNode, name: &str) -> Arc<Claim> {
    let mut claim = NodeClaim::new(name, node.claim_spec());
    claim.metadata.labels = Some(node.claim_labels());
    Arc::new(Claim::from_kube(&claim).unwrap())
}

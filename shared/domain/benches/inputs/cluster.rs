//! A cluster for load: pending pods in some shapes, and half-full nodes with their NodeClaims and a running pod each.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use karp_domain::api::NodeClaim;
use karp_domain::catalogue::Catalogue;
use karp_domain::cluster::{Claim, Node, Pod, Shapes, Snapshot, Unreadable};
use serde::Deserialize;
use serde_json::{Value, json};

use super::generate::Draw;
use super::{ZONES, folder, pool, types};

const NOW: &str = "2026-11-20T00:00:00Z";

/// Names the size of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// Pods that wait.
    pub pods: usize,
    /// How many shapes they have.
    pub shapes: usize,
    /// Nodes that run.
    pub nodes: usize,
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster-{}-{}-{}", self.pods, self.shapes, self.nodes)
    }
}

impl Cluster {
    /// Writes its objects as one JSON array: by `gen_cluster.py` of the folder with inputs, or of the same kind.
    pub fn write(self, file: &Path) -> io::Result<()> {
        let mut out = io::BufWriter::new(std::fs::File::create(file)?);
        let Some(folder) = folder() else { return self.generate(&mut out) };
        let sizes = [1, self.pods, self.shapes, self.nodes].map(|size| size.to_string());
        let script = folder.join("gen_cluster.py");
        let made = Command::new("python3").arg(script).args(sizes).stderr(Stdio::inherit()).output()?;
        if !made.status.success() {
            return Err(io::Error::other("gen_cluster.py failed"));
        }
        out.write_all(&made.stdout)
    }

    fn generate(self, out: &mut impl Write) -> io::Result<()> {
        let mut draw = Draw(1);
        write!(out, "[")?;
        for at in 0..self.nodes {
            for object in half_full(&mut draw, at) {
                write!(out, "{object},")?;
            }
        }
        let shapes: Vec<_> = (0..self.shapes).map(|at| shape(&mut draw, at)).collect();
        for at in 0..self.pods {
            let (labels, spec) = &shapes[at % shapes.len()];
            let meta =
                json!({"name": format!("p{at}"), "namespace": "default", "uid": format!("u{at}"), "labels": labels});
            let waits = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
            let status = json!({"phase": "Pending", "conditions": [waits]});
            let comma = if at == 0 { "" } else { "," };
            write!(out, "{comma}{}", json!({"kind": "Pod", "metadata": meta, "spec": spec, "status": status}))?;
        }
        write!(out, "]")?;
        out.flush()
    }
}

/// A node of 16 cores, its claim and the pod that runs on it.
fn half_full(draw: &mut Draw, at: usize) -> [Value; 3] {
    let (name, zone) = (format!("n{at}"), ZONES[at % ZONES.len()]);
    let provider_id = format!("aws:///{zone}/i-{at:017x}");
    let labels = json!({
        "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": zone, "node.kubernetes.io/instance-type": "m7i.4xlarge",
        "karpenter.sh/nodepool": "default", "karpenter.sh/capacity-type": "on-demand",
    });
    let mut node_labels = labels.clone();
    node_labels["karpenter.sh/registered"] = "true".into();
    node_labels["karpenter.sh/initialized"] = "true".into();
    let capacity = json!({"cpu": "16", "memory": "64Gi", "pods": "234"});
    let allocatable = json!({"cpu": "15890m", "memory": "57Gi", "pods": "234"});
    let since = "2026-11-01T00:10:00Z";
    let met = ["Launched", "Registered", "Initialized", "Ready", "Consolidatable"];
    let met = met.map(
        |kind| json!({"type": kind, "status": "True", "reason": kind, "lastTransitionTime": since, "message": ""}),
    );
    let node = json!({
        "kind": "Node", "metadata": {"name": name, "labels": node_labels}, "spec": {"providerID": provider_id},
        "status": {"capacity": capacity, "allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
    let claim = json!({
        "kind": "NodeClaim",
        "metadata": {"name": format!("default-{at}"), "uid": format!("nc{at}"), "creationTimestamp": "2026-11-01T00:00:00Z", "labels": labels},
        "spec": {"nodeClassRef": class, "requirements": [], "expireAfter": "Never"},
        "status": {"nodeName": name, "providerID": provider_id, "capacity": capacity, "allocatable": allocatable, "conditions": met},
    });
    let requests = json!({"cpu": format!("{}m", draw.of(&[6000, 8000, 10_000])), "memory": "24Gi"});
    let owner =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "running", "uid": "rs", "controller": true});
    let pod = json!({
        "kind": "Pod",
        "metadata": {"name": format!("run-{at}"), "namespace": "default", "uid": format!("r{at}"), "labels": {"app": "running"}, "ownerReferences": [owner]},
        "spec": {"nodeName": name, "containers": [{"name": "c", "resources": {"requests": requests}}]},
        "status": {"phase": "Running"},
    });
    [node, claim, pod]
}

/// Labels and spec of the pods of one shape: a third is spread over zones, a tenth is bound to one.
fn shape(draw: &mut Draw, at: usize) -> (Value, Value) {
    let labels = json!({"app": format!("a{at}")});
    let cpu = draw.of(&[100, 250, 500, 1000, 2000]);
    let memory = draw.of(&[128, 512, 1024, 2048, 8192]);
    let requests = json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
    let mut spec = json!({"containers": [{"name": "c", "resources": {"requests": requests}}]});
    if at % 3 == 1 {
        spec["topologySpreadConstraints"] = json!([{
            "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": labels},
        }]);
    }
    if at % 10 == 2 {
        spec["nodeSelector"] = json!({"topology.kubernetes.io/zone": draw.of(&ZONES)});
    }
    (labels, spec)
}

/// Reads the objects of such a cluster, each straight into what the engine sees, and puts EC2's types beside them.
pub fn read(file: &Path) -> Snapshot {
    let text = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let objects: Vec<Object> = serde_json::from_slice(&text).expect("a cluster");
    drop(text);
    let mut snapshot = Snapshot::empty(NOW.parse::<Timestamp>().expect("a time"));
    for object in objects {
        match object {
            Object::Pod(pod) => snapshot.pods.push(pod),
            Object::Node(node) => snapshot.nodes.push(node),
            Object::Claim(claim) => snapshot.claims.push(claim),
        }
    }
    snapshot.pools = vec![Arc::new(pool(&[]))];
    snapshot.catalogues.insert("default".into(), Arc::new(Catalogue::new(types(true))));
    snapshot
}

#[derive(Deserialize)]
#[serde(tag = "kind")]
#[allow(clippy::large_enum_variant, reason = "one at a time, on its way to something small")]
enum Raw {
    Pod(core::Pod),
    Node(core::Node),
    NodeClaim(NodeClaim),
}

#[derive(Deserialize)]
#[serde(try_from = "Raw")]
enum Object {
    Pod(Arc<Pod>),
    Node(Arc<Node>),
    Claim(Arc<Claim>),
}

thread_local! {
    /// Pods are read one by one, as a watch brings them.
    static SHAPES: Shapes = Shapes::default();
}

impl TryFrom<Raw> for Object {
    type Error = Unreadable;

    fn try_from(raw: Raw) -> Result<Self, Unreadable> {
        Ok(match raw {
            Raw::Pod(pod) => Object::Pod(Arc::new(SHAPES.with(|shapes| Pod::sharing(shapes, &pod))?)),
            Raw::Node(node) => Object::Node(Arc::new(Node::from_kube(&node)?)),
            Raw::NodeClaim(claim) => Object::Claim(Arc::new(Claim::from_kube(&claim)?)),
        })
    }
}

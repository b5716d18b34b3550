//! Pods as the engine sees them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use serde::{Deserialize, Serialize};

use super::shape::requests_in_use;
use super::shapes::{ReadLabels, ReadShape, Source};
use super::{ClaimRef, DoNotDisrupt, Shape, Shapes, Unreadable, UnreadableField, Whose, is_resized, volume};
use crate::api::labels;

/// Priority from which a pod counts as critical (system-cluster-critical); such pods are drained last.
pub const CRITICAL_PRIORITY: i32 = 2_000_000_000;
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const MIRROR: &str = "kubernetes.io/config.mirror";
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// Names a namespaced object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodKey {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl PodKey {
    /// Makes a key.
    pub fn new(namespace: &str, name: &str) -> Self {
        PodKey { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Says who made a pod, as far as it matters for moving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Owner {
    /// Nobody: once evicted it is gone.
    None,
    /// A controller that makes another in its place.
    Controller,
    /// A DaemonSet: it belongs to its node.
    DaemonSet,
    /// Kubelet (static pod): it belongs to its node and cannot be evicted.
    Node,
}

/// Says where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Not all containers have started.
    Pending,
    /// Running.
    Running,
    /// Succeeded or failed: it holds nothing.
    Terminal,
}

/// Describes a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// UID; evictions are preconditioned on it.
    pub uid: Arc<str>,
    /// Labels, for selectors.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Everything that decides where it may run.
    pub shape: Arc<Shape>,
    /// PersistentVolumeClaims that it uses.
    pub claims: Vec<ClaimRef>,
    /// Phase.
    pub phase: Phase,
    /// Creation.
    pub created: Option<Timestamp>,
    /// Start on its node.
    pub started: Option<Timestamp>,
    /// Node that it is bound to.
    pub node: Option<Arc<str>>,
    /// `status.nominatedNodeName`.
    pub nominated: Option<Arc<str>>,
    /// kube-scheduler said `PodScheduled=False, Unschedulable`.
    pub unschedulable: bool,
    /// It has scheduling gates: nobody may place it yet.
    pub gated: bool,
    /// Deletion was asked for; this is when its grace ends.
    pub deletes_at: Option<Timestamp>,
    /// Grace in seconds when it is deleted.
    pub grace_seconds: i64,
    /// Who made it.
    pub owner: Owner,
    /// The DaemonSet that made it, by name.
    pub daemon_set: Option<Arc<str>>,
    /// Wish to be left alone.
    pub do_not_disrupt: DoNotDisrupt,
    /// Priority.
    pub priority: i32,
    /// `controller.kubernetes.io/pod-deletion-cost`.
    pub deletion_cost: i32,
    /// Condition Ready is true.
    pub ready: bool,
    /// Hashes by which pods are found that are alike.
    pub digest: Digest,
}

/// Hashes of parts of a pod, made once when it is read: a cluster's pods are sorted by them again and again. One that is not up to date
/// costs time and nothing else, since what has equal hashes is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest {
    /// Of [`Pod::shape`].
    pub shape: u64,
    /// Of [`Pod::labels`].
    pub labels: u64,
}

impl Pod {
    /// Reads a pod; one that cannot be understood is reported with the field to blame, so that the others go on.
    pub fn from_kube(pod: &core::Pod) -> Result<Self, Unreadable> {
        Self::with(pod, |labels| labels.clone().into(), |source| source.read())
    }

    /// Reads a pod that shares its shape and its labels with those of its template that were read before.
    pub fn sharing(shapes: &Shapes, pod: &core::Pod) -> Result<Self, Unreadable> {
        Self::with(pod, |labels| shapes.labels(labels), |source| shapes.of(source))
    }

    /// Reads of a pod what its eviction needs, and nothing of where it may run: the pod asks for nothing. Whatever else of it cannot be
    /// understood holds no node. An error where not even that can be read: whether a pod bears a node's end is in its tolerations.
    pub fn to_evict(pod: &core::Pod) -> Result<Self, Unreadable> {
        // one that has ended is waited for by nobody, whatever it bears
        let ended = phase(pod.status.as_ref()) == Phase::Terminal;
        let spec = pod.spec.as_ref().map(|spec| core::PodSpec {
            node_name: spec.node_name.clone(),
            priority: spec.priority,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            tolerations: spec.tolerations.clone().filter(|_| !ended),
            volumes: spec.volumes.clone(),
            ..core::PodSpec::default()
        });
        let status = pod.status.as_ref().map(|status| core::PodStatus {
            conditions: status.conditions.clone(),
            phase: status.phase.clone(),
            start_time: status.start_time.clone(),
            ..core::PodStatus::default()
        });
        Self::from_kube(&core::Pod { metadata: pod.metadata.clone(), spec, status })
    }

    fn with(
        pod: &core::Pod,
        labels_of: impl FnOnce(&BTreeMap<String, String>) -> ReadLabels,
        shape_of: impl FnOnce(Source<'_>) -> Result<ReadShape, UnreadableField>,
    ) -> Result<Self, Unreadable> {
        let meta = &pod.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let namespace = meta.namespace.as_deref().unwrap_or("default");
        let key = PodKey::new(namespace, name);
        let spec = pod.spec.as_ref().ok_or_else(|| Unreadable::new("Pod", &key, "spec", "it is missing"))?;
        let own = meta.labels.as_ref().unwrap_or(const { &BTreeMap::new() });
        let whose = Whose { namespace, labels: own };
        let daemon_set = daemon_set(meta);
        let source = Source { spec, whose, of_daemon: daemon_set.is_some() };
        let mut read = shape_of(source).map_err(|e| e.of("Pod", &key))?;
        let status = pod.status.as_ref();
        if let (Some(status), Some(_)) = (status, &spec.node_name)
            && is_resized(spec, status)
        {
            let requests = requests_in_use(spec, status).map_err(|e| e.of("Pod", &key))?;
            read = Shape { requests, ..Shape::clone(&read.shape) }.into();
        }
        let condition = |kind: &str| {
            status.and_then(|s| s.conditions.as_ref()).and_then(|all| all.iter().find(|c| c.type_ == kind))
        };
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
        let unschedulable = condition("PodScheduled")
            .is_some_and(|c| c.status == "False" && c.reason.as_deref() == Some("Unschedulable"));
        let ReadLabels { labels, digest } = labels_of(own);
        let digest = Digest { shape: read.digest, labels: digest };
        Ok(Pod {
            key,
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            labels,
            shape: read.shape,
            claims: volume::claims(spec),
            phase: phase(status),
            created: meta.creation_timestamp.as_ref().map(|t| t.0),
            started: status.and_then(|s| s.start_time.as_ref()).map(|t| t.0),
            node: spec.node_name.as_deref().filter(|n| !n.is_empty()).map(Arc::from),
            nominated: status.and_then(|s| s.nominated_node_name.as_deref()).filter(|n| !n.is_empty()).map(Arc::from),
            unschedulable,
            gated: spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()),
            deletes_at: meta.deletion_timestamp.as_ref().map(|t| t.0),
            grace_seconds: spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS),
            owner: owner(meta),
            daemon_set,
            do_not_disrupt: DoNotDisrupt::read(annotation(labels::DO_NOT_DISRUPT)),
            priority: spec.priority.unwrap_or(0),
            deletion_cost: annotation(DELETION_COST).and_then(|cost| cost.parse().ok()).unwrap_or(0),
            ready: condition("Ready").is_some_and(|c| c.status == "True"),
            digest,
        })
    }

    /// Says whether the pod waits for capacity: kube-scheduler found no node for it, and a new node may help.
    pub fn is_provisionable(&self) -> bool {
        self.unschedulable && self.is_waiting()
    }

    /// Says whether kube-scheduler is about to bind the pod to the node that it is nominated to: while it waits for the pod's volumes,
    /// say, it calls the pod no longer unschedulable.
    pub fn is_coming(&self) -> bool {
        self.phase == Phase::Pending
            && self.node.is_none()
            && self.nominated.is_some()
            && !self.gated
            && self.deletes_at.is_none()
            && !self.is_provisionable()
            // room for daemons is kept anyway
            && self.owner != Owner::DaemonSet
    }

    /// Says whether the pod takes room on its node.
    pub fn holds_resources(&self) -> bool {
        self.node.is_some() && self.phase != Phase::Terminal
    }

    /// Says whether the pod would have to run elsewhere if its node went away.
    pub fn is_reschedulable(&self) -> bool {
        self.holds_resources() && self.deletes_at.is_none() && matches!(self.owner, Owner::None | Owner::Controller)
    }

    /// Says whether the pod is one of those that are drained last.
    pub fn is_critical(&self) -> bool {
        self.priority >= CRITICAL_PRIORITY
    }

    /// Answers what moving the pod costs, in thousandths: 1000 for a plain pod, more for higher deletion cost or priority,
    /// never outside ±10 000 (the scale of Karpenter's eviction cost).
    pub fn eviction_cost_milli(&self) -> i64 {
        let deletion = (i64::from(self.deletion_cost) * 1000) >> 27;
        let priority = (i64::from(self.priority) * 1000) >> 25;
        (1000 + deletion + priority).clamp(-10_000, 10_000)
    }
}

fn phase(status: Option<&core::PodStatus>) -> Phase {
    match status.and_then(|s| s.phase.as_deref()) {
        Some("Running") => Phase::Running,
        Some("Succeeded" | "Failed") => Phase::Terminal,
        _ => Phase::Pending,
    }
}

fn owner(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Owner {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    let mirror = meta.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR));
    if mirror || owners.iter().any(|o| o.kind == "Node") {
        Owner::Node
    } else if owners.iter().any(|o| o.kind == "DaemonSet") {
        Owner::DaemonSet
    } else if owners.is_empty() {
        Owner::None
    } else {
        Owner::Controller
    }
}

fn daemon_set(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Option<Arc<str>> {
    let set = meta.owner_references.iter().flatten().find(|owner| owner.kind == "DaemonSet")?;
    Some(set.name.as_str().into())
}

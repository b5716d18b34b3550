//! Nodes as the engine sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;

use super::{Unreadable, UnreadableField};
use crate::api::labels;
use crate::lifecycle::Ailment;
use crate::resources::Resources;
use crate::taint::{Taint, TaintEffect};

/// Describes a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// `aws:///ZONE/INSTANCE`; never empty.
    pub provider_id: Option<Arc<str>>,
    /// `status.capacity`.
    pub capacity: Resources,
    /// `status.allocatable`.
    pub allocatable: Resources,
    /// Condition Ready.
    pub ready: Readiness,
    /// What is wrong with it by its conditions, for however short.
    pub ailment: Option<Ailment>,
    /// Cordoned.
    pub unschedulable: bool,
    /// Creation.
    pub created: Option<Timestamp>,
    /// Deletion was asked for at this time.
    pub deleting: Option<Timestamp>,
}

/// Says what kubelet said last about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Condition Ready is true.
    Ready,
    /// False, unknown or not yet set; with the time of the last change.
    NotReady(Option<Timestamp>),
}

impl Node {
    /// Reads a node.
    pub fn from_kube(node: &core::Node) -> Result<Self, Unreadable> {
        let meta = &node.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let blame = |field: UnreadableField| field.of("Node", &name);
        let spec = node.spec.clone().unwrap_or_default();
        let status = node.status.clone().unwrap_or_default();
        let amounts = |path: &str, list: Option<&BTreeMap<String, _>>| match list {
            Some(list) => {
                Resources::try_from_api(list).map_err(|e| blame(UnreadableField::new(path.to_owned(), e.to_string())))
            }
            None => Ok(Resources::new()),
        };
        let taints = spec.taints.iter().flatten().map(Taint::try_from).collect::<Result<Vec<_>, _>>();
        let conditions = status.conditions.unwrap_or_default();
        let ready = conditions.iter().find(|c| c.type_ == "Ready");
        let ready = match ready {
            Some(condition) if condition.status == "True" => Readiness::Ready,
            other => Readiness::NotReady(other.and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0)),
        };
        Ok(Node {
            name: name.into(),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            labels: meta.labels.clone().unwrap_or_default(),
            annotations: meta.annotations.clone().unwrap_or_default(),
            taints: taints.map_err(|e| blame(UnreadableField::new("spec.taints".to_owned(), e.to_string())))?,
            provider_id: spec.provider_id.as_deref().filter(|id| !id.is_empty()).map(Arc::from),
            capacity: amounts("status.capacity", status.capacity.as_ref())?,
            allocatable: amounts("status.allocatable", status.allocatable.as_ref())?,
            ready,
            ailment: Ailment::of(&conditions),
            unschedulable: spec.unschedulable.unwrap_or(false),
            created: meta.creation_timestamp.as_ref().map(|t| t.0),
            deleting: meta.deletion_timestamp.as_ref().map(|t| t.0),
        })
    }

    /// Answers the pool that made the node.
    pub fn pool(&self) -> Option<&str> {
        self.labels.get(labels::NODE_POOL).map(String::as_str)
    }

    /// Says whether its NodeClaim has been matched and its labels and taints synchronised.
    pub fn is_registered(&self) -> bool {
        self.labels.get(labels::REGISTERED).is_some_and(|v| v == "true")
    }

    /// Says whether it has been ready for pods once.
    pub fn is_initialized(&self) -> bool {
        self.labels.get(labels::INITIALIZED).is_some_and(|v| v == "true")
    }

    /// Says whether it has been chosen for disruption and tainted.
    pub fn is_disrupted(&self) -> bool {
        self.taints.iter().any(|taint| taint.key == labels::DISRUPTED)
    }

    /// Says whether its owner asked that it is left alone.
    pub fn is_protected(&self) -> bool {
        self.annotations.get(labels::DO_NOT_DISRUPT).is_some_and(|v| v == "true")
    }
}

/// Says whether a taint goes by itself while a node starts, so that it is no reason to plan around the node.
pub fn is_ephemeral(taint: &Taint) -> bool {
    match taint.key.as_str() {
        labels::NOT_READY => taint.effect != TaintEffect::PreferNoSchedule,
        labels::UNREACHABLE => taint.effect == TaintEffect::NoSchedule,
        "node.cloudprovider.kubernetes.io/uninitialized" | labels::UNREGISTERED => true,
        key => key.starts_with("readiness.k8s.io/"),
    }
}

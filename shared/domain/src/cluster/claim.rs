//! NodeClaims as the engine sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{Unreadable, UnreadableField};
use crate::api::conditions::{self, Condition, ConditionStatus};
use crate::api::{self, NodeClaim, NodeClassReference, labels};
use crate::requirement::Requirements;
use crate::resources::Resources;
use crate::taint::Taint;

/// Names a node class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassRef {
    /// API group.
    pub group: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ClassRef {
    /// Says whether karp acts on what has this class; another provider does otherwise.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        labels::is_ours(&self.group)
    }
}

/// Describes a NodeClaim.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// Pool that made it; none for one made by hand.
    pub pool: Option<Arc<str>>,
    /// Node class.
    pub class: ClassRef,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// `spec.requirements`.
    pub requirements: Requirements,
    /// `spec.resources.requests`: what the pods that it was made for ask, daemons included.
    pub requests: Resources,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `spec.startupTaints`.
    pub startup_taints: Vec<Taint>,
    /// `spec.expireAfter`; none for Never.
    pub expire_after: Option<SignedDuration>,
    /// `spec.terminationGracePeriod`.
    pub termination_grace: Option<SignedDuration>,
    /// `status.providerID`; never empty.
    pub provider_id: Option<Arc<str>>,
    /// `status.nodeName`.
    pub node_name: Option<Arc<str>>,
    /// `status.capacity`.
    pub capacity: Resources,
    /// `status.allocatable`.
    pub allocatable: Resources,
    /// `status.conditions`.
    pub conditions: Vec<Condition>,
    /// `status.lastPodEventTime`.
    pub last_pod_event: Option<Timestamp>,
    /// Creation.
    pub created: Timestamp,
    /// Deletion was asked for at this time.
    pub deleting: Option<Timestamp>,
    /// Finalizers.
    pub finalizers: Vec<String>,
}

impl From<&NodeClassReference> for ClassRef {
    fn from(reference: &NodeClassReference) -> Self {
        ClassRef {
            group: reference.group.as_str().into(),
            kind: reference.kind.as_str().into(),
            name: reference.name.as_str().into(),
        }
    }
}

impl Claim {
    /// Reads a NodeClaim. One that has no creation time yet counts as made at the beginning of time, so that it is never young for ever.
    pub fn from_kube(claim: &NodeClaim) -> Result<Self, Unreadable> {
        let meta = &claim.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let spec = &claim.spec;
        let requirements = api::requirements(&spec.requirements)
            .map_err(|e| UnreadableField::new("spec.requirements".to_owned(), e.to_string()).of("NodeClaim", &name))?;
        let status = claim.status.clone().unwrap_or_default();
        let labels = meta.labels.clone().unwrap_or_default();
        let text = |text: Option<String>| text.filter(|t| !t.is_empty()).map(Arc::from);
        Ok(Claim {
            name: name.into(),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            pool: labels.get(labels::NODE_POOL).map(|pool| pool.as_str().into()),
            class: ClassRef::from(&spec.node_class_ref),
            labels,
            annotations: meta.annotations.clone().unwrap_or_default(),
            requirements,
            requests: spec.resources.requests.clone(),
            taints: spec.taints.iter().map(Taint::from).collect(),
            startup_taints: spec.startup_taints.iter().map(Taint::from).collect(),
            expire_after: spec.lifetime(),
            termination_grace: spec.grace(),
            provider_id: text(status.provider_id),
            node_name: text(status.node_name),
            capacity: status.capacity.unwrap_or_default(),
            allocatable: status.allocatable.unwrap_or_default(),
            conditions: status.conditions,
            last_pod_event: status.last_pod_event_time,
            created: meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0),
            deleting: meta.deletion_timestamp.as_ref().map(|t| t.0),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
        })
    }

    /// Answers since when a condition has been true.
    pub fn since(&self, condition: &str) -> Option<Timestamp> {
        conditions::get(&self.conditions, condition)
            .filter(|c| c.status == ConditionStatus::True)
            .map(|c| c.last_transition_time)
    }

    /// Says whether an instance has been launched for it.
    pub fn is_launched(&self) -> bool {
        self.since(conditions::LAUNCHED).is_some()
    }

    /// Says whether its node has joined.
    pub fn is_registered(&self) -> bool {
        self.since(conditions::REGISTERED).is_some()
    }

    /// Says whether its node joined once and was seen to be gone: it may come back, or be given up.
    pub fn is_lost(&self) -> bool {
        self.node_name.is_some() && !self.is_registered()
    }

    /// Says whether its node has been ready for pods once.
    pub fn is_initialized(&self) -> bool {
        self.since(conditions::INITIALIZED).is_some()
    }

    /// Says whether its owner asked that it is left alone.
    pub fn is_protected(&self) -> bool {
        self.annotations.get(labels::DO_NOT_DISRUPT).is_some_and(|v| v == "true")
    }

    /// Answers the time at which it expires.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.expire_after.and_then(|after| self.created.checked_add(after).ok())
    }
}

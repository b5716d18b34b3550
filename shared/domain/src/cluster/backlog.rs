//! Pods that kube-scheduler has yet to look at: a burst of thousands keeps it busy for half a minute.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Owner, Phase, Pod};

impl Pod {
    /// Says whether the pod waits for a node, whatever kube-scheduler said of it. Pods of daemon sets are not meant: their nodes are given.
    pub fn is_waiting(&self) -> bool {
        self.phase == Phase::Pending
            && self.node.is_none()
            && !self.gated
            && self.deletes_at.is_none()
            && matches!(self.owner, Owner::None | Owner::Controller)
    }

    /// Says whether kube-scheduler tells the pod and another one apart by nothing but their names.
    pub fn is_like(&self, other: &Pod) -> bool {
        let same_shape = Arc::ptr_eq(&self.shape, &other.shape) || self.shape == other.shape;
        let same_labels = Arc::ptr_eq(&self.labels, &other.labels) || self.labels == other.labels;
        let claims = !self.claims.is_empty() || !other.claims.is_empty();
        self.key.namespace == other.key.namespace
            && self.priority == other.priority
            && same_shape
            && same_labels
            && !claims
    }
}

/// Calls pods unschedulable at which kube-scheduler has not looked, where it said so of one like them: it would say the same of them when their
/// turn comes. What finds room all the same is planned for that room, as any pod is.
pub fn foresee(pods: &mut [Arc<Pod>]) {
    let kind = |pod: &Pod| (pod.key.namespace.clone(), pod.priority, pod.digest);
    let mut refused: FxHashMap<_, Vec<Arc<Pod>>> = FxHashMap::default();
    for pod in pods.iter().filter(|pod| pod.is_provisionable()) {
        let known = refused.entry(kind(pod)).or_default();
        if !known.iter().any(|other| other.is_like(pod)) {
            known.push(pod.clone());
        }
    }
    let unseen = |pod: &&mut Arc<Pod>| pod.is_waiting() && !pod.unschedulable && pod.nominated.is_none();
    for pod in pods.iter_mut().filter(|_| !refused.is_empty()).filter(unseen) {
        if refused.get(&kind(pod)).is_some_and(|known| known.iter().any(|other| other.is_like(pod))) {
            Arc::make_mut(pod).unschedulable = true;
        }
    }
}

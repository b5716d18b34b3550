//! DaemonSets: the pods that every new node will have to hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;

use super::limit_range::{LimitRange, admitted};
use super::{Pod, PodKey, Shape, Unreadable, Whose};
use crate::api::labels;
use crate::requirement::{Requirement, Requirements};
use crate::taint::{Taint, TaintEffect, Toleration, TolerationOperator};

/// The DaemonSet's own count of its templates, and the pods' label that says of which template they are.
const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";
const GENERATION_LABEL: &str = "pod-template-generation";
/// Labels that karp gives a node when it has joined and when it is ready: daemons that wait for them run on every node in the end.
const OWN_LABELS: [&str; 2] = [labels::REGISTERED, labels::INITIALIZED];

/// Describes a DaemonSet.
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonSet {
    /// Namespace and name.
    pub key: PodKey,
    /// Labels of its pods.
    pub labels: BTreeMap<String, String>,
    /// Shape of its pods, with the tolerations that the DaemonSet controller adds.
    pub shape: Arc<Shape>,
}

impl DaemonSet {
    /// Reads a DaemonSet by its template alone.
    pub fn from_kube(set: &apps::DaemonSet) -> Result<Self, Unreadable> {
        Self::admitted(set, &[], &[])
    }

    /// Reads a DaemonSet as its next pod will be: the template with the defaults of the namespace's LimitRanges; or, when a pod of the
    /// newest template is among `pods`, that pod's own requests and tolerations, which also hold what webhooks added.
    pub fn admitted(set: &apps::DaemonSet, ranges: &[Arc<LimitRange>], pods: &[Arc<Pod>]) -> Result<Self, Unreadable> {
        let meta = &set.metadata;
        let key = PodKey::new(meta.namespace.as_deref().unwrap_or("default"), meta.name.as_deref().unwrap_or_default());
        let spec = set
            .spec
            .as_ref()
            .and_then(|spec| spec.template.spec.as_ref())
            .ok_or_else(|| Unreadable::new("DaemonSet", &key, "spec.template.spec", "it is missing"))?;
        let template = set.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref());
        let empty = BTreeMap::new();
        let own = template.and_then(|meta| meta.labels.as_ref()).unwrap_or(&empty);
        let whose = Whose { namespace: &key.namespace, labels: own };
        let read = |spec: &core::PodSpec| Shape::from_pod_spec(spec, whose).map_err(|e| e.of("DaemonSet", &key));
        let mut shape = read(&admitted(spec, &key.namespace, ranges))?;
        // a pod's own affinity names its node: only what it asks for is taken
        if let Some(pod) = newest_pod(set, &key, pods) {
            shape.requests = pod.shape.requests.clone();
            shape.tolerations.extend(pod.shape.tolerations.iter().cloned());
        }
        shape.alternatives = shape.alternatives.iter().map(beside_own_labels).collect();
        shape.tolerations.extend(controller_tolerations());
        shape.tolerations.sort();
        shape.tolerations.dedup();
        Ok(DaemonSet { key, labels: own.clone(), shape: Arc::new(shape) })
    }

    /// Says whether its pods would run on nodes with these taints. Taints that go by themselves do not count.
    pub fn bears(&self, taints: &[Taint]) -> bool {
        taints.iter().all(|taint| super::is_ephemeral(taint) || taint.admits(&self.shape.tolerations))
    }
}

/// The youngest pod that the DaemonSet owns and that is of its present template; of equally young ones the first by name.
fn newest_pod<'p>(set: &apps::DaemonSet, key: &PodKey, pods: &'p [Arc<Pod>]) -> Option<&'p Pod> {
    let generation = set.metadata.annotations.as_ref().and_then(|all| all.get(GENERATION_ANNOTATION));
    let current = |pod: &&Arc<Pod>| generation.is_none() || generation == pod.labels.get(GENERATION_LABEL);
    let owned = |pod: &&Arc<Pod>| pod.daemon_set.as_ref() == Some(&key.name) && pod.key.namespace == key.namespace;
    let age = |pod: &&Arc<Pod>| (pod.created, std::cmp::Reverse(pod.key.clone()));
    pods.iter().filter(owned).filter(current).max_by_key(age).map(|pod| &**pod)
}

/// What nodes must be like beside the labels that each gets when it joins: no node is made without them.
fn beside_own_labels(alternative: &Requirements) -> Requirements {
    let comes = |wanted: &&Requirement| OWN_LABELS.contains(&wanted.key()) && wanted.admits("true");
    alternative.iter().filter(|wanted| !comes(wanted)).cloned().collect()
}

/// The tolerations that the DaemonSet controller gives every daemon pod.
fn controller_tolerations() -> impl Iterator<Item = Toleration> {
    let keys = [
        ("node.kubernetes.io/not-ready", TaintEffect::NoExecute),
        ("node.kubernetes.io/unreachable", TaintEffect::NoExecute),
        ("node.kubernetes.io/disk-pressure", TaintEffect::NoSchedule),
        ("node.kubernetes.io/memory-pressure", TaintEffect::NoSchedule),
        ("node.kubernetes.io/pid-pressure", TaintEffect::NoSchedule),
        (labels::UNSCHEDULABLE, TaintEffect::NoSchedule),
    ];
    keys.into_iter().map(|(key, effect)| Toleration {
        key: key.to_owned(),
        operator: TolerationOperator::Exists,
        effect: Some(effect),
        seconds: None,
    })
}

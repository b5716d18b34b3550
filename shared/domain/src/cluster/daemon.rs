//! DaemonSets: the pods that every new node will have to hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1 as apps;

use super::{PodKey, Shape, Unreadable, Whose};
use crate::taint::{Taint, TaintEffect, Toleration, TolerationOperator};

/// Describes a DaemonSet.
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonSet {
    /// Namespace and name.
    pub key: PodKey,
    /// Shape of its pods, with the tolerations that the DaemonSet controller adds.
    pub shape: Arc<Shape>,
}

impl DaemonSet {
    /// Reads a DaemonSet.
    pub fn from_kube(set: &apps::DaemonSet) -> Result<Self, Unreadable> {
        let meta = &set.metadata;
        let key = PodKey::new(meta.namespace.as_deref().unwrap_or("default"), meta.name.as_deref().unwrap_or_default());
        let spec = set
            .spec
            .as_ref()
            .and_then(|spec| spec.template.spec.as_ref())
            .ok_or_else(|| Unreadable::new("DaemonSet", &key, "spec.template.spec", "it is missing"))?;
        let template = set.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref());
        let empty = BTreeMap::new();
        let labels = template.and_then(|meta| meta.labels.as_ref()).unwrap_or(&empty);
        let whose = Whose { namespace: &key.namespace, labels };
        let mut shape = Shape::from_pod_spec(spec, whose).map_err(|e| e.of("DaemonSet", &key))?;
        shape.tolerations.extend(controller_tolerations());
        Ok(DaemonSet { key, shape: Arc::new(shape) })
    }

    /// Says whether its pods would run on nodes with these taints. Taints that go by themselves do not count.
    pub fn bears(&self, taints: &[Taint]) -> bool {
        taints.iter().all(|taint| super::is_ephemeral(taint) || taint.admits(&self.shape.tolerations))
    }
}

/// The tolerations that the DaemonSet controller gives every daemon pod.
fn controller_tolerations() -> impl Iterator<Item = Toleration> {
    let keys = [
        ("node.kubernetes.io/not-ready", TaintEffect::NoExecute),
        ("node.kubernetes.io/unreachable", TaintEffect::NoExecute),
        ("node.kubernetes.io/disk-pressure", TaintEffect::NoSchedule),
        ("node.kubernetes.io/memory-pressure", TaintEffect::NoSchedule),
        ("node.kubernetes.io/pid-pressure", TaintEffect::NoSchedule),
        ("node.kubernetes.io/unschedulable", TaintEffect::NoSchedule),
    ];
    keys.into_iter().map(|(key, effect)| Toleration {
        key: key.to_owned(),
        operator: TolerationOperator::Exists,
        effect: Some(effect),
        seconds: None,
    })
}

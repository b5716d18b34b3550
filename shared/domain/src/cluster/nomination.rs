//! Which of the pods that are planned for nodes are nominated to them.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::{Pod, PodKey, Shape};

/// Answers those of some planned pods that may be nominated to their nodes, all at the same time: the first ones by key where kube-scheduler
/// bears only so many of a kind.
pub fn nominated<'p>(planned: impl IntoIterator<Item = &'p Pod>) -> BTreeSet<&'p PodKey> {
    let sorted: BTreeMap<&PodKey, &Pod> = planned.into_iter().map(|pod| (&pod.key, pod)).collect();
    let mut counts: FxHashMap<(&str, &Shape), u32> = FxHashMap::default();
    let mut may_be = |pod: &'p Pod| {
        let Some(most) = pod.shape.most_nominated() else { return true };
        let count = counts.entry((&pod.key.namespace, &pod.shape)).or_default();
        *count += 1;
        *count <= most
    };
    sorted.into_iter().filter(|(_, pod)| may_be(pod)).map(|(key, _)| key).collect()
}

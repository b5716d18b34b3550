//! Which of the pods that are planned for nodes are nominated to them.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::{Pod, PodKey, Shape};

/// So many pods are nominated at a time. For each pod that kube-scheduler tries it puts all that are nominated to a node on it again: with two
/// thousand of them it tried 20 pods a second, with none 50 and more (4,500 pods and 265 nodes on two cores).
pub const MOST_NOMINATED: usize = 200;

/// Says whether one of the pods that wait could take the place of another that needs it: nobody has to be nominated where all are alike.
pub fn compete<'p>(waiting: impl IntoIterator<Item = &'p Pod>) -> bool {
    let mut waiting = waiting.into_iter();
    waiting.next().is_some_and(|first| waiting.any(|pod| !pod.is_like(first)))
}

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

//! Claims that one pod at a time may use (`ReadWriteOncePod`): of the pods that name one, all but one are refused, as kube-scheduler does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::problem::Problem;
use super::queue::{Kind, Ways, may_be_placed};
use super::solution::Refusal;
use crate::cluster::{Pod, PodKey, VolumeProblem};

/// Takes pods whose claim is another pod's out of their kinds, and answers why. A claim is kept for the pod that runs with it and stays;
/// else for the one that is to move with it, then for the first by priority and name, of those that anything could hold.
pub(crate) fn take_away(
    problem: &Problem<'_>,
    pods: &[Arc<Pod>],
    kinds: &mut Vec<Kind>,
    ways: &mut Ways,
) -> Vec<(PodKey, Refusal)> {
    let mut refused = Vec::new();
    let volumes = &problem.snapshot.volumes;
    if volumes.claims.values().all(|claim| !claim.exclusive) {
        return refused;
    }
    let waiting: FxHashMap<&PodKey, &Arc<Pod>> = pods.iter().map(|pod| (&pod.key, pod)).collect();
    let mut rivals: BTreeMap<PodKey, Vec<&Arc<Pod>>> = BTreeMap::new();
    for pod in waiting.values() {
        for claim in volumes.exclusive(&pod.key, &pod.claims) {
            rivals.entry(claim).or_default().push(pod);
        }
    }
    if rivals.is_empty() {
        return refused;
    }
    let kind_of: FxHashMap<PodKey, usize> =
        kinds.iter().enumerate().flat_map(|(at, kind)| kind.pods.iter().map(move |pod| (pod.clone(), at))).collect();
    let holders = holders(problem, &waiting);
    let mut out: BTreeSet<PodKey> = BTreeSet::new();
    for (claim, mut rivals) in rivals {
        rivals.retain(|pod| !out.contains(&pod.key) && kind_of.contains_key(&pod.key));
        rivals.sort_by_key(|pod| (pod.node.is_none(), Reverse(pod.priority), &pod.key));
        let mut placeable = |pod: &&&Arc<Pod>| may_be_placed(problem, &kinds[kind_of[&pod.key]], ways);
        let first = || rivals.first().copied();
        let Some(by) = holders.get(&claim).copied().or_else(|| {
            Some(match rivals.len() {
                0 | 1 => &first()?.key,
                _ => &rivals.iter().find(&mut placeable).copied().or_else(first)?.key,
            })
        }) else {
            continue;
        };
        for pod in rivals.iter().filter(|pod| pod.key != *by) {
            let in_use = VolumeProblem::InUse { by: by.clone() };
            refused.push((pod.key.clone(), Refusal::Volume { claim: claim.name.to_string(), problem: in_use }));
            out.insert(pod.key.clone());
        }
    }
    kinds.iter_mut().for_each(|kind| kind.pods.retain(|pod| !out.contains(pod)));
    kinds.retain(|kind| !kind.pods.is_empty());
    refused
}

/// The pods that have a place and keep it, by the claims that they use alone.
fn holders<'p>(problem: &Problem<'p>, waiting: &FxHashMap<&PodKey, &Arc<Pod>>) -> BTreeMap<PodKey, &'p PodKey> {
    let snapshot = problem.snapshot;
    let mut holders: BTreeMap<PodKey, &PodKey> = BTreeMap::new();
    let has_place = |pod: &&Arc<Pod>| {
        let placed = pod.holds_resources() || pod.node.is_none() && pod.nominated.is_some();
        placed && pod.deletes_at.is_none() && !waiting.contains_key(&pod.key)
    };
    for pod in snapshot.pods.iter().filter(has_place) {
        for claim in snapshot.volumes.exclusive(&pod.key, &pod.claims) {
            let holder = holders.entry(claim).or_insert(&pod.key);
            *holder = (*holder).min(&pod.key);
        }
    }
    holders
}

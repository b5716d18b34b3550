//! Claims that one pod at a time may use (`ReadWriteOncePod`): of the pods that name one, all but one are refused, as kube-scheduler does.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::problem::Problem;
use super::queue::{Kind, Ways, may_be_placed};
use super::solution::Refusal;
use crate::cluster::{Pod, PodKey, VolumeProblem};

/// Takes pods whose claim is another pod's out of their kinds, and answers why. A claim is kept for the pod that runs with it and stays;
/// else, of those that anything could hold, for the one that is to move with it, then for the first by priority and name. A pod that lacks
/// one of its claims keeps none of them.
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
    let claims_of = |pod: &'_ Arc<Pod>| volumes.exclusive(&pod.key, &pod.claims).collect::<Vec<_>>();
    let asking: Vec<(&Arc<Pod>, Vec<PodKey>)> =
        pods.iter().map(|pod| (pod, claims_of(pod))).filter(|(_, claims)| !claims.is_empty()).collect();
    if asking.is_empty() {
        return refused;
    }
    let kind_of: FxHashMap<&PodKey, usize> =
        kinds.iter().enumerate().flat_map(|(at, kind)| kind.pods.iter().map(move |pod| (pod, at))).collect();
    let mut placeable: FxHashMap<usize, bool> = FxHashMap::default();
    let mut rivals = Vec::new();
    for (pod, claims) in asking {
        let Some(kind) = kind_of.get(&pod.key) else { continue };
        let fits = *placeable.entry(*kind).or_insert_with(|| may_be_placed(problem, &kinds[*kind], ways));
        rivals.push(((!fits, pod.node.is_none(), Reverse(pod.priority), &pod.key), claims));
    }
    rivals.sort_unstable();
    let waiting: FxHashSet<&PodKey> = pods.iter().map(|pod| &pod.key).collect();
    let mut taken = holders(problem, &waiting);
    let mut out: FxHashSet<&PodKey> = FxHashSet::default();
    for ((_, _, _, pod), claims) in rivals {
        match claims.iter().find_map(|claim| Some((claim, taken.get(claim)?.clone()))) {
            Some((claim, by)) => {
                let problem = VolumeProblem::InUse { by };
                refused.push((pod.clone(), Refusal::Volume { claim: claim.name.to_string(), problem }));
                out.insert(pod);
            }
            None => taken.extend(claims.into_iter().map(|claim| (claim, pod.clone()))),
        }
    }
    kinds.iter_mut().for_each(|kind| kind.pods.retain(|pod| !out.contains(pod)));
    kinds.retain(|kind| !kind.pods.is_empty());
    refused
}

/// The pods that have a place and keep it, by the claims that they use alone.
fn holders(problem: &Problem<'_>, waiting: &FxHashSet<&PodKey>) -> BTreeMap<PodKey, PodKey> {
    let snapshot = problem.snapshot;
    let mut holders: BTreeMap<PodKey, PodKey> = BTreeMap::new();
    let has_place = |pod: &&Arc<Pod>| {
        let placed = pod.holds_resources() || pod.node.is_none() && pod.nominated.is_some();
        placed && pod.deletes_at.is_none() && !waiting.contains(&pod.key)
    };
    for pod in snapshot.pods.iter().filter(has_place) {
        for claim in snapshot.volumes.exclusive(&pod.key, &pod.claims) {
            let holder = holders.entry(claim).or_insert_with(|| pod.key.clone());
            if pod.key < *holder {
                *holder = pod.key.clone();
            }
        }
    }
    holders
}

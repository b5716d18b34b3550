//! The pods to place, grouped by what matters for placing them.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Misfit;
use super::amounts::{Amounts, copies};
use super::problem::{PoolState, Problem, Way, bears, way};
use crate::catalogue::{Market, TypeSet};
use crate::cluster::{Pod, PodKey, Shape, Snapshot, blocking};
use crate::resources;

/// Pods of one shape and priority, with the ways in which they fit each pool.
pub(crate) struct Group {
    pub(crate) shape: Arc<Shape>,
    pub(crate) priority: i32,
    pub(crate) request: Amounts,
    /// Pods that are not placed yet, ordered by key from the last to the first.
    pub(crate) waiting: Vec<PodKey>,
    /// By pool, in the order of [`Problem::pools`].
    pub(crate) ways: Vec<Result<Vec<Way>, Misfit>>,
}

/// Answers the pods that need room: those that kube-scheduler could not place, and those on hosts that are leaving. Pods on a
/// leaving host that nothing can move now (protected, or held by a budget) stay where they are.
pub(crate) fn waiting_pods(problem: &Problem<'_>) -> Vec<Arc<Pod>> {
    let snapshot = problem.snapshot;
    let mut pods: Vec<Arc<Pod>> = snapshot.pods.iter().filter(|pod| pod.is_provisionable()).cloned().collect();
    for host in problem.hosts.iter().filter(|state| state.host.is_leaving()) {
        let Some(node) = &host.host.node else { continue };
        pods.extend(displaced(snapshot, problem.pods_by_node.get(&node.name).map(Vec::as_slice).unwrap_or_default()));
    }
    pods
}

/// Answers which pods of a node will want another one when it goes.
pub(crate) fn displaced(snapshot: &Snapshot, pods: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let moves = |pod: &&Arc<Pod>| {
        pod.is_reschedulable() && !pod.is_protected(snapshot.now) && blocking(&snapshot.budgets, pod).is_none()
    };
    pods.iter().filter(moves).cloned().collect()
}

/// Groups pods by shape and priority: highest priority first, then the largest by CPU and memory, then by name.
pub(crate) fn groups(problem: &Problem<'_>, pods: &[Arc<Pod>]) -> Vec<Group> {
    let mut by_shape: FxHashMap<(&Shape, i32), usize> = FxHashMap::default();
    let mut gathered: Vec<(Arc<Shape>, i32, Vec<PodKey>)> = Vec::new();
    for pod in pods {
        let slot = *by_shape.entry((&*pod.shape, pod.priority)).or_insert_with(|| {
            gathered.push((pod.shape.clone(), pod.priority, Vec::new()));
            gathered.len() - 1
        });
        gathered[slot].2.push(pod.key.clone());
    }
    let mut groups: Vec<Group> = gathered
        .into_iter()
        .map(|(shape, priority, mut waiting)| {
            waiting.sort_by(|a, b| b.cmp(a));
            waiting.dedup();
            let request = problem.dims.demand(&shape.requests);
            let ways = problem.pools.iter().map(|pool| ways(problem, pool, &shape, &request)).collect();
            Group { shape, priority, request, waiting, ways }
        })
        .collect();
    groups.sort_by(|a, b| order(a).cmp(&order(b)));
    groups
}

fn order(group: &Group) -> impl Ord {
    let size = |name: &str| std::cmp::Reverse(group.shape.requests.get(name));
    let first = group.waiting.last().cloned();
    (std::cmp::Reverse(group.priority), size(resources::CPU), size(resources::MEMORY), first)
}

/// Answers how a shape fits a pool that has room, or the first thing that keeps it out.
fn ways(problem: &Problem<'_>, state: &PoolState, shape: &Shape, request: &Amounts) -> Result<Vec<Way>, Misfit> {
    bears(shape, &state.pool.taints).map_err(|taint| Misfit::Taint { taint })?;
    let mut found = Vec::new();
    let mut misfit = None;
    for (at, wanted) in shape.alternatives.iter().enumerate() {
        let way = way(&state.pool, &state.catalogue, &state.types, state.market, wanted, at)
            .and_then(|way| with_room(problem, state, shape, request, way));
        match way {
            Ok(way) => found.push(way),
            Err(problem) => misfit = misfit.or(Some(problem)),
        }
    }
    match (found.is_empty(), misfit) {
        (false, _) => Ok(found),
        (true, Some(misfit)) => Err(misfit),
        (true, None) => Err(Misfit::NoInstanceType { wanted: "a label: its node affinity has no term".to_owned() }),
    }
}

/// Narrows a way to types that can hold one pod and can be bought; types that are dear for what plain pods do not use go unless
/// nothing else is left.
fn with_room(
    problem: &Problem<'_>,
    state: &PoolState,
    shape: &Shape,
    request: &Amounts,
    mut way: Way,
) -> Result<Way, Misfit> {
    let mut roomy = TypeSet::with_capacity(state.catalogue.types().len());
    roomy.extend(way.types.ones().filter(|at| copies(&state.room[*at], request) > 0));
    if roomy.is_clear() {
        return Err(too_big(problem, state, shape, request, &way.types));
    }
    let count = roomy.count_ones(..);
    roomy.intersect_with(&state.catalogue.offered(way.market));
    if roomy.is_clear() {
        return Err(Misfit::NoOffering { types: count });
    }
    if state.pool.min_values.is_empty() {
        let mut plain = roomy.clone();
        plain.difference_with(state.catalogue.exotic());
        if !plain.is_clear() {
            roomy = plain;
        }
    }
    way.types = roomy;
    Ok(way)
}

fn too_big(problem: &Problem<'_>, state: &PoolState, shape: &Shape, request: &Amounts, types: &TypeSet) -> Misfit {
    for (at, name) in problem.dims.names().iter().enumerate().filter(|(at, _)| request[*at] > 0) {
        let most = types.ones().max_by_key(|t| state.room[*t][at]);
        let Some(most) = most.filter(|t| state.room[*t][at] < request[at]) else { continue };
        let allocatable = state.catalogue.types()[most].allocatable().get(name);
        let largest = (allocatable - state.daemons[most].get(name)).max(allocatable.times(0));
        return Misfit::TooBig { resource: name.clone(), wanted: shape.requests.get(name), largest };
    }
    Misfit::NoTypeHasAll
}

/// Answers the market that all ways leave.
pub(crate) fn common_market(state: &PoolState, ways: impl Iterator<Item = Market>) -> Market {
    ways.fold(state.market, Market::and)
}

/// Gives names in order to counts of pods.
pub(crate) fn draw(groups: &mut [Group], group: usize, count: u32) -> Vec<PodKey> {
    let waiting = &mut groups[group].waiting;
    let rest = waiting.len().saturating_sub(count as usize);
    let mut drawn = waiting.split_off(rest);
    drawn.reverse();
    drawn
}

/// Counts values of a label that types in a set can have; for `minValues`.
pub(crate) fn distinct_values(state: &PoolState, types: &TypeSet, key: &str) -> u32 {
    let mut seen: BTreeMap<&str, ()> = BTreeMap::new();
    for at in types.ones() {
        for value in state.catalogue.types()[at].labels.get(key).into_iter().flatten() {
            if state.pool.requirements.admits(key, value) {
                seen.insert(value, ());
            }
        }
    }
    u32::try_from(seen.len()).unwrap_or(u32::MAX)
}

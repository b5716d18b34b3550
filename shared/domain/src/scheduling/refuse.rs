//! Why pods that no round could place are refused, pool by pool.

use std::sync::Arc;

use jiff::SignedDuration;
use rustc_hash::FxHashMap;

use super::assign::Assignment;
use super::growth::distinct_values;
use super::packing::{limits_left, node_size};
use super::problem::{PoolState, Problem, Way};
use super::queue::Group;
use super::wants::Asks;
use super::{Blocked, InFlightNode, Misfit, Refusal, Solution, Unschedulable};
use crate::catalogue::TypeSet;
use crate::cluster::{MinValuesPolicy, Pod, PodKey};
use crate::resources::Resources;

/// How long after a refusal for want of offerings a new look is worth while: recent capacity errors are forgotten by then.
const OFFERINGS_RETURN: SignedDuration = SignedDuration::from_mins(3);

/// Pods that have claims.
type WithVolumes<'p> = FxHashMap<&'p PodKey, &'p Arc<Pod>>;

/// Gives every pod that is left its reasons, one for each pool. `earlier` holds why pods of a kind did not fit in rounds before.
pub(super) fn refuse(
    problem: &Problem<'_>,
    assignment: &mut Assignment<'_>,
    misfits: &[Vec<Option<Misfit>>],
    earlier: &FxHashMap<usize, Vec<Misfit>>,
    solution: &mut Solution,
) {
    let mut kinds = 0..assignment.kinds();
    if assignment.waiting_groups().next().is_none() && kinds.all(|kind| assignment.rest(kind).is_empty()) {
        return;
    }
    let planned = planned(problem, &solution.nodes);
    // what consolidation tries is refused often, and seldom for volumes
    let with_volumes: WithVolumes<'_> = match (0..assignment.kinds()).any(|kind| assignment.is_bound(kind)) {
        true => problem.snapshot.pods.iter().filter(|pod| !pod.claims.is_empty()).map(|pod| (&pod.key, pod)).collect(),
        false => WithVolumes::default(),
    };
    for at in assignment.waiting_groups().collect::<Vec<_>>() {
        let why = turned_away(problem, assignment, at, misfits, &planned);
        let pods: Vec<PodKey> = assignment.groups[at].waiting.iter().rev().cloned().collect();
        let kind = assignment.groups[at].kind;
        tell((problem, &with_volumes), assignment, (kind, &pods), &why, solution);
    }
    for kind in 0..assignment.kinds() {
        if !assignment.rest(kind).is_empty() {
            let closed = |pool: usize, ways: &[Way]| {
                closed(problem, ways, pool, &planned).or_else(|| Some(earlier.get(&kind)?[pool].clone()))
            };
            let why = assignment.why(kind, closed);
            let pods = assignment.rest(kind);
            tell((problem, &with_volumes), assignment, (kind, pods), &why, solution);
        }
    }
}

/// Refuses pods of a kind for what keeps them out of each pool. Those with volumes are told of theirs each by itself.
fn tell(
    (problem, with_volumes): (&Problem<'_>, &WithVolumes<'_>),
    assignment: &mut Assignment<'_>,
    (kind, pods): (usize, &[PodKey]),
    why: &[Misfit],
    solution: &mut Solution,
) {
    let common = reasons(problem, solution, why);
    let bound = assignment.is_bound(kind);
    for pod in pods {
        let mut own = common.clone();
        if let Some(pod) = with_volumes.get(pod).filter(|_| bound) {
            let mut why = why.to_vec();
            assignment.blame_volumes(kind, pod, &mut why);
            own = reasons(problem, solution, &why);
        }
        solution.unschedulable.push(Unschedulable { pod: pod.clone(), reasons: own });
    }
}

/// What kept the pods of a group that waits out of each pool.
pub(super) fn turned_away(
    problem: &Problem<'_>,
    assignment: &mut Assignment<'_>,
    group: usize,
    misfits: &[Vec<Option<Misfit>>],
    planned: &[Resources],
) -> Vec<Misfit> {
    let mut why = assignment.why(assignment.groups[group].kind, |pool, ways| closed(problem, ways, pool, planned));
    let (group, misfits) = (&assignment.groups[group], &misfits[group]);
    for (pool, why) in why.iter_mut().enumerate() {
        // a domain that is wrong for the pool is no reason where another would do
        let Ok(ways) = &group.ways[pool] else { continue };
        *why = match (group.joins, &misfits[pool]) {
            (true, _) => Misfit::Topology { rule: near_rule(problem, group), blocked: Blocked::Full },
            (false, Some(misfit)) => misfit.clone(),
            (false, None) => closed(problem, ways, pool, planned).unwrap_or(Misfit::NoTypeHasAll),
        };
    }
    why
}

/// What keeps a pool from growing for pods that fit it in these ways.
fn closed(problem: &Problem<'_>, ways: &[Way], pool: usize, planned: &[Resources]) -> Option<Misfit> {
    limit_reached(problem, ways, pool, &planned[pool]).or_else(|| too_few_values(problem, ways, pool, &planned[pool]))
}

fn near_rule(problem: &Problem<'_>, group: &Group) -> String {
    let near = group.rules.iter().find(|rule| rule.asks == Asks::Near);
    near.map(|rule| problem.terms.describe(rule)).unwrap_or_default()
}

fn reasons(problem: &Problem<'_>, solution: &mut Solution, why: &[Misfit]) -> Vec<Refusal> {
    let pools = problem.pools.iter().zip(why);
    let mut reasons: Vec<Refusal> =
        pools.map(|(state, why)| Refusal::Pool { pool: state.pool.name.clone(), misfit: why.clone() }).collect();
    let closed = problem.closed.iter().cloned();
    reasons.extend(closed.map(|(pool, misfit)| Refusal::Pool { pool, misfit }));
    if reasons.is_empty() {
        reasons.push(Refusal::no_pools(problem.snapshot));
    }
    let waits =
        |r: &Refusal| matches!(r, Refusal::Pool { misfit: Misfit::NoOffering { .. } | Misfit::NotOffered { .. }, .. });
    if reasons.iter().any(waits) {
        solution.next_look = problem.snapshot.now.checked_add(OFFERINGS_RETURN).ok();
    }
    reasons
}

/// What the planned nodes of each pool take of its limits.
pub(super) fn planned(problem: &Problem<'_>, nodes: &[InFlightNode]) -> Vec<Resources> {
    let of = |state: &PoolState| {
        let mut total = Resources::new();
        for node in nodes.iter().filter(|node| node.pool == state.pool.name) {
            let mut most = Resources::new();
            for name in node.instance_types() {
                if let Some(at) = state.catalogue.position(&name) {
                    most.raise(&node_size(state, at));
                }
            }
            total.add(&most);
        }
        total
    };
    problem.pools.iter().map(of).collect()
}

/// The limit that keeps pods out of a pool which could hold them otherwise.
fn limit_reached(problem: &Problem<'_>, ways: &[Way], pool: usize, planned: &Resources) -> Option<Misfit> {
    let state = &problem.pools[pool];
    let left = limits_left(state).minus(planned);
    let sizes = ways.iter().flat_map(|way| way.types.ones()).map(|at| node_size(state, at));
    let short: Option<Vec<String>> = sizes
        .map(|size| size.iter().find(|(name, amount)| *amount > left.get(name)).map(|(name, _)| name.to_owned()))
        .collect();
    let resource = short?.into_iter().next()?;
    Some(Misfit::Limit {
        limit: state.pool.limits.get(&resource),
        used: state.used.get(&resource) + planned.get(&resource),
        resource,
    })
}

/// The `minValues` that keeps a pool, within what limits leave, from making any node for pods that fit it in these ways.
fn too_few_values(problem: &Problem<'_>, ways: &[Way], pool: usize, planned: &Resources) -> Option<Misfit> {
    let state = &problem.pools[pool];
    if problem.snapshot.settings.min_values == MinValuesPolicy::BestEffort {
        return None;
    }
    let mut types = TypeSet::with_capacity(state.catalogue.types().len());
    ways.iter().for_each(|way| types.union_with(&way.types));
    let left = limits_left(state).minus(planned);
    let all = types.clone();
    let beyond: Vec<usize> = types.ones().filter(|at| !node_size(state, *at).fits(&left)).collect();
    beyond.into_iter().for_each(|at| types.set(at, false));
    state.pool.min_values.iter().find_map(|(key, wanted)| {
        let possible = distinct_values(state, &types, key);
        let limited = || distinct_values(state, &all, key) >= *wanted;
        let misfit = |limited| Misfit::MinValues { key: key.to_string(), wanted: *wanted, possible, limited };
        (possible < *wanted).then(|| misfit(limited()))
    })
}

//! Static pools: as many nodes as `spec.replicas` says, whatever pods there are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ahead::Ahead;
use super::packing::{Draft, limits_left, node_size};
use super::problem::{PoolState, Problem};
use super::reservations::{Hold, hold};
use super::room::Room;
use super::sold::{no_type, none_offered};
use super::{InFlightNode, Misfit, finish};
use crate::api::conditions::DRIFTED;
use crate::cluster::{Claim, Pod, Pool, Snapshot};
use crate::requirement::Requirements;
use crate::resources::Resources;

/// Claims that one pass makes for one pool at most; the next pass goes on.
const MOST_AT_ONCE: u64 = 1000;
/// Annotation of a claim: claims with a higher number go first when replicas are taken back (Karpenter's).
const DEPROVISIONING_PRIORITY: &str = "karpenter.sh/deprovisioning-priority";

/// Answers what static pools lack, and what they have too much.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaPlan {
    /// Nodes to launch; they are for no pod.
    pub create: Vec<InFlightNode>,
    /// Claims to delete, by name, in the order in which they are the least loss.
    pub delete: Vec<Arc<str>>,
    /// Pools that stay short, with what keeps them so.
    pub short: Vec<(Arc<str>, Misfit)>,
}

/// Answers what to do so that static pools have their replicas. `replaced` names claims that something else is replacing: they do not count,
/// as their successors do.
pub fn replicas(snapshot: &Snapshot, replaced: &BTreeSet<Arc<str>>) -> ReplicaPlan {
    let mut plan = ReplicaPlan::default();
    let mut growing: Vec<(&Arc<Pool>, u64)> = Vec::new();
    let hosts = snapshot.hosts();
    let mut pools: Vec<&Arc<Pool>> = snapshot.pools.iter().filter(|pool| pool.is_ours()).collect();
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    for (pool, replicas) in pools.into_iter().filter_map(|pool| Some((pool, pool.replicas?))) {
        if pool.deleting.is_some() {
            continue;
        }
        let own = hosts.iter().filter(|host| host.pool() == Some(&pool.name) && !host.is_leaving());
        let claims = own.filter_map(|host| host.claim.clone()).filter(|claim| !replaced.contains(&claim.name));
        let claims: Vec<Arc<Claim>> = claims.collect();
        let there = claims.len() as u64;
        if there > replicas {
            let surplus = usize::try_from(there - replicas).unwrap_or(usize::MAX);
            plan.delete.extend(least_loss(snapshot, &claims).into_iter().take(surplus));
        } else if let Some(misfit) = closed(snapshot, pool).filter(|_| there < replicas) {
            plan.short.push((pool.name.clone(), misfit));
        } else if there < replicas {
            growing.push((pool, (replicas - there).min(MOST_AT_ONCE)));
        }
    }
    fill(snapshot, &growing, &mut plan);
    plan
}

/// Answers the node that takes the place of one of a static pool: one as the pool launches them now, within its limits while both are there.
pub(crate) fn successor(snapshot: &Snapshot, pool: &Arc<Pool>) -> Result<InFlightNode, Misfit> {
    if let Some(misfit) = closed(snapshot, pool) {
        return Err(misfit);
    }
    let mut plan = ReplicaPlan::default();
    fill(snapshot, &[(pool, 1)], &mut plan);
    let ReplicaPlan { create, short, .. } = plan;
    let misfit = || short.into_iter().next().map_or(Misfit::StaticPool, |(_, misfit)| misfit);
    create.into_iter().next().ok_or_else(misfit)
}

/// Answers why a pool launches nothing now.
fn closed(snapshot: &Snapshot, pool: &Pool) -> Option<Misfit> {
    if pool.deleting.is_some() {
        return Some(Misfit::PoolDeleting);
    }
    if !pool.ready {
        return Some(Misfit::PoolNotReady);
    }
    let class = &pool.class.name;
    snapshot.catalogues.get(class).is_none().then(|| Misfit::ClassNotReady { class: class.clone() })
}

/// Plans so many empty nodes of each pool.
fn fill(snapshot: &Snapshot, pools: &[(&Arc<Pool>, u64)], plan: &mut ReplicaPlan) {
    if pools.is_empty() {
        return;
    }
    let mut growing = snapshot.clone();
    growing.pools = pools.iter().map(|(pool, _)| Arc::new(Pool { replicas: None, ..(***pool).clone() })).collect();
    growing.pods.retain(|pod| pod.holds_resources());
    let mut wanted: Vec<(Arc<str>, u64)> = pools.iter().map(|(pool, count)| (pool.name.clone(), *count)).collect();
    while !wanted.is_empty() {
        let ahead = Ahead::with(&growing, &plan.create);
        wanted = grow(&ahead, &wanted, plan);
    }
}

/// Plans empty nodes: of each pool the cheapest type that holds its daemons, with all that may stand in for it. Answers how many are
/// still wanted, since reservations had no instances for them.
fn grow(snapshot: &Snapshot, wanted: &[(Arc<str>, u64)], plan: &mut ReplicaPlan) -> Vec<(Arc<str>, u64)> {
    let mut problem = Problem::new(snapshot);
    let mut left: Vec<Resources> = problem.pools.iter().map(limits_left).collect();
    let mut drafts = Vec::new();
    let nothing = problem.dims.demand(&Resources::new());
    for (at, state) in problem.pools.iter_mut().enumerate() {
        let count = wanted.iter().find(|(name, _)| *name == state.pool.name).map_or(0, |(_, count)| *count);
        let overfull = |room: &&Room| room.free.iter().any(|amount| *amount < 0);
        let rooms = |t: usize| state.rooms.each(t, state.market);
        let too_small: Vec<usize> = state.types.ones().filter(|t| rooms(*t).iter().all(overfull)).collect();
        too_small.into_iter().for_each(|t| state.types.set(t, false));
        let priced = state.types.ones().filter_map(|t| Some((state.price_of(t, state.market, &nothing)?, t)));
        let mut priced: Vec<_> = priced.collect();
        priced.sort_unstable();
        let mut misfit = match state.types.count_ones(..) {
            0 => no_type(&state.pool.requirements, &state.catalogue, &state.types, &Requirements::new()),
            _ => none_offered(state, &Requirements::new(), &state.types, state.market),
        };
        let mut made = 0;
        while made < count {
            let chosen = priced.iter().map(|(_, t)| *t).find(|t| node_size(state, *t).fits(&left[at]));
            let Some(chosen) = chosen else {
                misfit = priced.first().and_then(|(_, t)| limit_of(state, *t, &left[at])).unwrap_or(misfit);
                break;
            };
            left[at].subtract(&node_size(state, chosen));
            drafts.push(Draft { pool: at, chosen, fill: Vec::new() });
            made += 1;
        }
        if made < count && plan.short.iter().all(|(short, _)| *short != state.pool.name) {
            plan.short.push((state.pool.name.clone(), misfit));
        }
    }
    let mut listed = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let pool = &problem.pools[draft.pool].pool.name;
        match finish::min_values(&problem, &[], &draft) {
            Ok(()) => listed.push(draft),
            Err(misfit) if plan.short.iter().all(|(short, _)| short != pool) => plan.short.push((pool.clone(), misfit)),
            Err(_) => {}
        }
    }
    for (draft, misfit) in finish::leave_short(&problem, &[], &mut listed, &mut left) {
        let pool = &problem.pools[draft.pool].pool.name;
        if plan.short.iter().all(|(short, _)| short != pool) {
            plan.short.push((pool.clone(), misfit));
        }
    }
    let mut nodes = finish::nodes(&problem, &mut [], &listed, &mut left, &mut []);
    let holds = hold(&problem, &mut nodes);
    let mut again: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    for (node, hold) in nodes.into_iter().zip(holds) {
        match hold {
            Hold::Over => *again.entry(node.pool).or_default() += 1,
            Hold::None | Hold::Held => plan.create.push(node),
        }
    }
    again.into_iter().collect()
}

/// The limit that keeps a pool from another node of a type.
fn limit_of(state: &PoolState, at: usize, left: &Resources) -> Option<Misfit> {
    let size = node_size(state, at);
    let (resource, _) = size.iter().find(|(name, amount)| *amount > left.get(name))?;
    let limit = state.pool.limits.get(resource);
    Some(Misfit::Limit { resource: resource.to_owned(), limit, used: limit - left.get(resource) })
}

/// Claims in the order in which they are the least loss: those not launched, then empty nodes, of which those first that are not ready for pods
/// yet, then nodes without pods that ask to be left alone, then by the operator's priority, outdated ones first, and by what moving their
/// pods costs.
fn least_loss(snapshot: &Snapshot, claims: &[Arc<Claim>]) -> Vec<Arc<str>> {
    let by_node = snapshot.pods_by_node();
    let none: &[Arc<Pod>] = &[];
    let node_of = |claim: &Claim| {
        let node =
            snapshot.nodes.iter().find(|node| node.provider_id.is_some() && node.provider_id == claim.provider_id);
        node.and_then(|node| by_node.get(&node.name)).map_or(none, Vec::as_slice)
    };
    let rank = |claim: &Arc<Claim>| {
        let pods = node_of(claim);
        let protected = pods.iter().any(|pod| pod.is_protected(snapshot.now));
        let priority: i64 = claim.annotations.get(DEPROVISIONING_PRIORITY).and_then(|p| p.parse().ok()).unwrap_or(0);
        let moving: Vec<&Arc<Pod>> = pods.iter().filter(|pod| pod.is_reschedulable()).collect();
        let cost: i64 = moving.iter().map(|pod| pod.eviction_cost_milli()).sum();
        let (unlaunched, ready) = (claim.provider_id.is_none(), claim.is_initialized());
        let current = claim.since(DRIFTED).is_none();
        let kind = (!unlaunched, protected, !moving.is_empty(), ready);
        (kind, Reverse(priority), current, cost, claim.name.clone())
    };
    let mut ranked: Vec<_> = claims.iter().map(rank).collect();
    ranked.sort();
    ranked.into_iter().map(|(.., name)| name).collect()
}

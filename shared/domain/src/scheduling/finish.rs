//! From packed drafts to nodes that can be asked for: every type that would do, within limits and `minValues`.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::amounts::{Amounts, copies, take};
use super::packing::{Draft, draft_market, node_size};
use super::problem::{PoolState, Problem};
use super::queue::{Group, distinct_values, draw};
use super::{InFlightNode, Misfit};
use crate::api::labels;
use crate::catalogue::{Market, RankedOffering, TypeSet};
use crate::cluster::MinValuesPolicy;
use crate::requirement::{Requirement, Requirements, ValueSet};
use crate::resources::Resources;

/// EC2 Fleet takes no more launch specifications than this many types fill with their zones (Karpenter's figure).
pub const MAX_TYPES: usize = 60;

/// Turns drafts into nodes and draws their pods. `left` is what limits leave after every draft was charged as its chosen type: it is shared
/// out so that drafts may also become larger types, and is never passed whatever EC2 chooses.
pub(crate) fn nodes(
    problem: &Problem<'_>,
    groups: &mut [Group],
    drafts: &[Draft],
    left: &mut [Resources],
) -> Vec<InFlightNode> {
    let mut to_come: Vec<usize> = vec![0; problem.pools.len()];
    drafts.iter().for_each(|draft| to_come[draft.pool] += 1);
    let mut lists = Lists::default();
    let mut nodes = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let state = &problem.pools[draft.pool];
        let market = draft_market(problem, groups, draft);
        let types = match state.pool.limits.is_empty() && state.pool.min_values.is_empty() {
            true => lists.cheapest(problem, groups, draft, market),
            false => {
                let types = listed(problem, groups, draft, &share(&left[draft.pool], to_come[draft.pool]));
                left[draft.pool].subtract(&most_extra(state, draft.chosen, &types));
                types
            }
        };
        to_come[draft.pool] -= 1;
        nodes.push(node(problem, groups, draft, market, &types, &mut lists));
    }
    nodes
}

/// Lists that many nodes share.
#[derive(Default)]
struct Lists {
    /// Types by their least price, by pool and market.
    by_price: FxHashMap<(usize, Market), Vec<usize>>,
    ranked: FxHashMap<(usize, Market, TypeSet), Ranked>,
}

/// What many nodes have in common: their offerings, the requirement that lists their types, and the least that daemons take there.
#[derive(Clone)]
struct Ranked {
    offerings: Arc<Vec<RankedOffering>>,
    types: Requirement,
    daemons: Arc<Resources>,
}

impl Lists {
    /// The cheapest types that hold a draft's pods.
    fn cheapest(&mut self, problem: &Problem<'_>, groups: &[Group], draft: &Draft, market: Market) -> TypeSet {
        let state = &problem.pools[draft.pool];
        let by_price = self.by_price.entry((draft.pool, market)).or_insert_with(|| {
            let priced = state.types.ones().filter_map(|at| Some((state.catalogue.cheapest(at, market)?, at)));
            let mut priced: Vec<_> = priced.collect();
            priced.sort_unstable();
            priced.into_iter().map(|(_, at)| at).collect()
        });
        let request = request(problem, groups, draft);
        let allowed = |at: usize| {
            draft.fill.iter().all(|portion| {
                let ways = groups[portion.group].ways[draft.pool].as_ref();
                ways.is_ok_and(|ways| ways[portion.way].types.contains(at))
            })
        };
        let holding = by_price.iter().filter(|at| copies(&state.room[**at], &request) > 0 && allowed(**at));
        let mut listed = TypeSet::with_capacity(state.catalogue.types().len());
        listed.extend(holding.copied().take(MAX_TYPES));
        listed.insert(draft.chosen);
        listed
    }

    fn ranked(&mut self, problem: &Problem<'_>, pool: usize, market: Market, types: &TypeSet) -> Ranked {
        let state = &problem.pools[pool];
        let rank = || {
            let names = types.ones().map(|at| state.catalogue.types()[at].name.clone());
            Ranked {
                offerings: Arc::new(state.catalogue.ranked(types, market)),
                types: Requirement::only(labels::INSTANCE_TYPE, names),
                daemons: Arc::new(least_daemons(state, types).unwrap_or_default()),
            }
        };
        self.ranked.entry((pool, market, types.clone())).or_insert_with(rank).clone()
    }
}

/// What the pods of a draft ask for together.
fn request(problem: &Problem<'_>, groups: &[Group], draft: &Draft) -> Amounts {
    let mut request: Amounts = problem.dims.names().iter().map(|_| 0).collect();
    for portion in &draft.fill {
        take(&mut request, &groups[portion.group].request, -i64::from(portion.count));
    }
    request
}

/// Checks `minValues` of a draft with all types that would do.
pub(crate) fn min_values(problem: &Problem<'_>, groups: &[Group], draft: &Draft) -> Result<(), Misfit> {
    let state = &problem.pools[draft.pool];
    if state.pool.min_values.is_empty() || problem.snapshot.settings.min_values == MinValuesPolicy::BestEffort {
        return Ok(());
    }
    let types = suitable(problem, groups, draft);
    for (key, wanted) in &state.pool.min_values {
        let possible = distinct_values(state, &types, key);
        if possible < *wanted {
            return Err(Misfit::MinValues { key: key.to_string(), wanted: *wanted, possible });
        }
    }
    Ok(())
}

/// An equal part of what limits leave for each draft that is still to come.
fn share(left: &Resources, to_come: usize) -> Resources {
    let parts = i128::try_from(to_come.max(1)).unwrap_or(1);
    let mut share = Resources::new();
    for (name, amount) in left.iter() {
        let nanos = (amount.nanos() / parts).max(0);
        share.set(
            name.to_owned(),
            crate::quantity::Quantity::from_millis(i64::try_from(nanos / 1_000_000).unwrap_or(i64::MAX)),
        );
    }
    share
}

/// How much larger than the chosen type the largest of some types is, by limited resource.
fn most_extra(state: &PoolState, chosen: usize, types: &TypeSet) -> Resources {
    let base = node_size(state, chosen);
    let mut most = base.clone();
    types.ones().for_each(|at| most.raise(&node_size(state, at)));
    most.minus(&base)
}

/// Every type that can hold the draft's pods beside the daemons and can be bought.
pub(crate) fn suitable(problem: &Problem<'_>, groups: &[Group], draft: &Draft) -> TypeSet {
    let state = &problem.pools[draft.pool];
    let request = request(problem, groups, draft);
    let mut types = state.types.clone();
    for portion in &draft.fill {
        if let Ok(ways) = &groups[portion.group].ways[draft.pool] {
            types.intersect_with(&ways[portion.way].types);
        }
    }
    types.intersect_with(&state.catalogue.offered(draft_market(problem, groups, draft)));
    let mut suitable = TypeSet::with_capacity(state.catalogue.types().len());
    suitable.extend(types.ones().filter(|at| copies(&state.room[*at], &request) > 0));
    suitable
}

/// The types to list on the claim: suitable, no larger than limits allow, the cheapest ones, enough for `minValues`.
fn listed(problem: &Problem<'_>, groups: &[Group], draft: &Draft, spare: &Resources) -> TypeSet {
    let state = &problem.pools[draft.pool];
    let suitable = suitable(problem, groups, draft);
    let market = draft_market(problem, groups, draft);
    let base = node_size(state, draft.chosen);
    let mut by_price: Vec<usize> =
        suitable.ones().filter(|at| *at == draft.chosen || node_size(state, *at).minus(&base).fits(spare)).collect();
    by_price.sort_by_key(|at| (state.catalogue.cheapest(*at, market), *at != draft.chosen, *at));
    let mut listed = TypeSet::with_capacity(state.catalogue.types().len());
    listed.extend(by_price.iter().copied().take(MAX_TYPES));
    listed.insert(draft.chosen);
    for (key, wanted) in &state.pool.min_values {
        // a cheaper list that lacks values gives its place to the next type that brings one
        for at in &by_price {
            let have = distinct_values(state, &listed, key);
            if have >= *wanted {
                break;
            }
            if listed.contains(*at) {
                continue;
            }
            listed.insert(*at);
            if distinct_values(state, &listed, key) == have {
                listed.remove(*at);
            }
        }
    }
    listed
}

fn node(
    problem: &Problem<'_>,
    groups: &mut [Group],
    draft: &Draft,
    market: Market,
    types: &TypeSet,
    lists: &mut Lists,
) -> InFlightNode {
    let state = &problem.pools[draft.pool];
    let pool = &state.pool;
    let listed = types;
    let Ranked { offerings, types, daemons } = lists.ranked(problem, draft.pool, market, listed);
    let mut requirements: Requirements = pool.requirements.clone();
    let mut requests = Resources::new();
    let mut pods = Vec::new();
    // `Exists` and `NotIn` make `NotIn`, which absence satisfies: whose label must be there is noted apart
    let must_exist = |r: &Requirement| (!r.admits_absence()).then(|| r.shared_key());
    let mut wanted: BTreeSet<Arc<str>> = requirements.iter().filter_map(must_exist).collect();
    for portion in &draft.fill {
        let group = &groups[portion.group];
        if let Ok(ways) = &group.ways[draft.pool] {
            let alternative = &group.alternatives[ways[portion.way].alternative];
            wanted.extend(alternative.iter().filter_map(must_exist));
            requirements.merge(alternative);
        }
        for (name, amount) in group.shape.requests.iter() {
            let more = amount.times(i64::from(portion.count) * i64::from(group.unit));
            requests.set(name.to_owned(), requests.get(name) + more);
        }
        pods.extend(draw(groups, portion.group, portion.count));
    }
    pods.sort();
    requests.add(&daemons);
    let min_values = requirements.get(labels::INSTANCE_TYPE).and_then(Requirement::min_values);
    requirements.add(types.with_min_values(min_values));
    settle(&mut requirements, state, &wanted);
    let mut annotations = pool.annotations.clone();
    if problem.snapshot.settings.min_values == MinValuesPolicy::BestEffort && relax(&mut requirements, state, listed) {
        annotations.insert(labels::MIN_VALUES_RELAXED.to_owned(), "true".to_owned());
    }
    let price = offerings.first().map(|offering| offering.price).unwrap_or_default();
    InFlightNode {
        pool: Arc::clone(&pool.name),
        class: pool.class.clone(),
        labels: pool.labels.clone(),
        annotations,
        requirements,
        taints: pool.taints.clone(),
        startup_taints: pool.startup_taints.clone(),
        expire_after: pool.expire_after,
        termination_grace: pool.termination_grace,
        requests,
        pods,
        offerings,
        price,
    }
}

/// Lowers each `minValues` to what the listed types bring; answers whether any was lowered.
fn relax(requirements: &mut Requirements, state: &PoolState, listed: &TypeSet) -> bool {
    let mut relaxed = false;
    for (key, wanted) in &state.pool.min_values {
        let have = distinct_values(state, listed, key);
        if have < *wanted
            && let Some(requirement) = requirements.remove(key)
        {
            requirements.add(requirement.with_min_values(Some(have)));
            relaxed = true;
        }
    }
    relaxed
}

/// Gives labels that no instance type settles one value, the first in order, so that the node will carry them. A label that may be absent
/// for all stays so.
fn settle(requirements: &mut Requirements, state: &PoolState, wanted: &BTreeSet<Arc<str>>) {
    let open = |r: &&Requirement| {
        let free = !state.catalogue.defines(r.key()) && !labels::is_well_known(r.key()) && r.single().is_none();
        free && wanted.contains(r.key()) && !r.is_empty()
    };
    let chosen: Vec<Requirement> = requirements
        .iter()
        .filter(open)
        .filter_map(|r| {
            let first = match r.values() {
                ValueSet::Only(values) => values.first().cloned(),
                ValueSet::Except(_) => None,
            };
            let bound = r.bounds().gte.or(r.bounds().lte).map(|number| number.to_string());
            let fallback = bound.unwrap_or_else(|| "true".to_owned());
            let value = first.unwrap_or_else(|| fallback.as_str().into());
            r.admits(&value).then(|| Requirement::only(r.key(), [value]))
        })
        .collect();
    requirements.extend(chosen);
}

/// What daemons ask for on every one of these types at least.
fn least_daemons(state: &PoolState, types: &TypeSet) -> Option<Resources> {
    let mut all = types.ones().map(|at| &state.daemons[at]);
    let mut least = all.next()?.clone();
    for daemons in all {
        let lower: Vec<_> = least.iter().map(|(name, a)| (name.to_owned(), a.min(daemons.get(name)))).collect();
        for (name, amount) in lower {
            least.set(name, amount);
        }
    }
    Some(least)
}

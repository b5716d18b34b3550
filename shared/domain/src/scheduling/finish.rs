//! From packed drafts to nodes that can be asked for: every type that would do, within limits and `minValues`.

use std::collections::BTreeSet;
use std::sync::Arc;

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};
use rustc_hash::FxHashMap;

use super::amounts::fits;
use super::growth::distinct_values;
use super::packing::{Draft, allowed_types, draft_market, draft_request, node_size};
use super::problem::{PoolState, Problem};
use super::queue::{Group, draw};
use super::{InFlightNode, Misfit};
use crate::api::{hash, labels};
use crate::catalogue::{CapacityType, Market, Price, PriceSource, RankedOffering, TypeSet, asks_for_reservations};
use crate::cluster::{MinValuesPolicy, NAMES, PodKey};
use crate::requirement::{Requirement, Requirements, ValueSet};
use crate::resources::Resources;

/// EC2 Fleet takes no more launch specifications than this many types fill with their zones (Karpenter's figure).
pub const MAX_TYPES: usize = 60;

/// Says which types a draft's claim lists.
pub(crate) enum Listed {
    /// The cheapest that hold its pods: nothing bounds the pool.
    Cheapest,
    /// These.
    These(TypeSet),
    /// None: within limits there are too few for the pool's `minValues`.
    TooFew(Misfit),
}

/// Says what each draft lists at least, the fewest types that give it what strict `minValues` asks for; nothing is settled for the others.
/// What one draft needs must not go to another that only wishes. `left` is what limits leave.
pub(crate) fn needs(problem: &Problem<'_>, groups: &[Group], drafts: &[Draft], left: &mut [Resources]) -> Vec<Listed> {
    let strict = problem.snapshot.settings.min_values == MinValuesPolicy::Strict;
    let of = |draft: &Draft| {
        let state = &problem.pools[draft.pool];
        if !strict || state.pool.min_values.is_empty() {
            return Listed::Cheapest;
        }
        match fewest(problem, groups, draft, &left[draft.pool]) {
            Ok(types) => {
                left[draft.pool].subtract(&most_extra(state, draft.chosen, &types));
                Listed::These(types)
            }
            Err(misfit) => Listed::TooFew(misfit),
        }
    };
    drafts.iter().map(of).collect()
}

/// Takes out drafts for which limits leave too few types for `minValues`, the last ones first, until the others have enough. What they were
/// charged goes back to `left`.
pub(crate) fn leave_short(
    problem: &Problem<'_>,
    groups: &[Group],
    drafts: &mut Vec<Draft>,
    left: &mut [Resources],
) -> Vec<(Draft, Misfit)> {
    let mut gone = Vec::new();
    // one more may be enough for all others; twice as many each time, so that few questions are asked
    let mut most = 1;
    loop {
        let listings = needs(problem, groups, drafts, &mut left.to_vec()).into_iter().enumerate().rev();
        let short = listings.filter_map(|(at, listed)| match listed {
            Listed::TooFew(misfit) => Some((at, misfit)),
            Listed::Cheapest | Listed::These(_) => None,
        });
        let before = gone.len();
        for (at, misfit) in short.take(most) {
            let draft = drafts.remove(at);
            left[draft.pool].add(&node_size(&problem.pools[draft.pool], draft.chosen));
            gone.push((draft, misfit));
        }
        if gone.len() == before {
            return gone;
        }
        most *= 2;
    }
}

/// Says what each draft lists. `left` is what limits leave after every draft was charged as its chosen type: it is shared out so that drafts
/// may also become larger types, and is never passed whatever EC2 chooses. What `minValues` needs comes before what is merely wished for.
fn listings(problem: &Problem<'_>, groups: &[Group], drafts: &[Draft], left: &mut [Resources]) -> Vec<Listed> {
    let bounded = |draft: &Draft| {
        let pool = &problem.pools[draft.pool].pool;
        !(pool.limits.is_empty() && pool.min_values.is_empty())
    };
    let mut to_come: Vec<usize> = vec![0; problem.pools.len()];
    drafts.iter().for_each(|draft| to_come[draft.pool] += 1);
    let mut all = needs(problem, groups, drafts, left);
    for (listed, draft) in all.iter_mut().zip(drafts).filter(|(_, draft)| bounded(draft)) {
        let state = &problem.pools[draft.pool];
        let spare = share(&left[draft.pool], to_come[draft.pool]);
        to_come[draft.pool] -= 1;
        let (base, needed) = match listed {
            Listed::TooFew(_) => continue,
            Listed::These(types) => (most_extra(state, draft.chosen, types), Some(&*types)),
            Listed::Cheapest => (Resources::new(), None),
        };
        let types = widened(problem, groups, draft, &spare.plus(&base), needed);
        left[draft.pool].subtract(&most_extra(state, draft.chosen, &types).minus(&base));
        *listed = Listed::These(types);
    }
    all
}

/// Turns drafts into nodes and draws their pods. What limits leave is in `left`; why drafts come to nothing is noted by group and pool.
pub(crate) fn nodes(
    problem: &Problem<'_>,
    groups: &mut [Group],
    drafts: &[Draft],
    left: &mut [Resources],
    misfits: &mut [Vec<Option<Misfit>>],
) -> Vec<InFlightNode> {
    let listings = listings(problem, groups, drafts, left);
    let markets: Vec<Market> = drafts.iter().map(|draft| draft_market(problem, groups, draft)).collect();
    let mut lists = Lists::default();
    for ((draft, market), listed) in drafts.iter().zip(&markets).zip(&listings) {
        if matches!(listed, Listed::Cheapest) {
            lists.price(problem, draft.pool, *market);
        }
    }
    let waiting = &*groups;
    let list = |((draft, market), listed): ((&Draft, &Market), Listed)| match listed {
        Listed::Cheapest => Ok(lists.cheapest(problem, waiting, draft, *market)),
        Listed::These(types) => Ok(types),
        Listed::TooFew(misfit) => Err(misfit),
    };
    let each = drafts.par_iter().zip(&markets).zip(listings).with_min_len(FEWEST_AT_ONCE);
    let listed: Vec<Result<TypeSet, Misfit>> = each.map(list).collect();
    let mut seats = Vec::with_capacity(drafts.len());
    for ((draft, market), listed) in drafts.iter().zip(&markets).zip(listed) {
        match listed {
            Ok(types) => {
                let ranked = lists.ranked(problem, draft.pool, *market, &types);
                let drawn = draft.fill.iter().flat_map(|portion| draw(groups, portion.group, portion.count));
                seats.push(Seats { draft, market: *market, types, ranked, pods: drawn.collect() });
            }
            Err(misfit) => {
                for portion in &draft.fill {
                    misfits[portion.group][draft.pool] = Some(misfit.clone());
                }
            }
        }
    }
    let drawn = &*groups;
    seats.into_par_iter().with_min_len(FEWEST_AT_ONCE).map(|seats| node(problem, drawn, seats)).collect()
}

/// So many drafts at least are finished by one thread.
const FEWEST_AT_ONCE: usize = 32;

/// A draft with all that its node is made of.
struct Seats<'d> {
    draft: &'d Draft,
    market: Market,
    types: TypeSet,
    ranked: Ranked,
    pods: Vec<PodKey>,
}

/// A type with its least price, if that is not of a reservation.
type Priced = (Option<Price>, usize);

/// Lists that many nodes share.
#[derive(Default)]
struct Lists {
    /// Types in the order of their least prices, by pool and market.
    by_price: FxHashMap<(usize, Market), Vec<Priced>>,
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
    /// Puts the types of a pool in the order of their least prices in a market.
    fn price(&mut self, problem: &Problem<'_>, pool: usize, market: Market) {
        let state = &problem.pools[pool];
        self.by_price.entry((pool, market)).or_insert_with(|| {
            let priced = state.types.ones().filter_map(|at| Some((state.catalogue.cheapest(at, market)?, at)));
            let mut priced: Vec<_> = priced.collect();
            priced.sort_unstable();
            priced.into_iter().map(|(_, at)| (plain_price(state, at, market), at)).collect()
        });
    }

    /// The cheapest types that hold a draft's pods, once those of its market are in order.
    fn cheapest(&self, problem: &Problem<'_>, groups: &[Group], draft: &Draft, market: Market) -> TypeSet {
        let state = &problem.pools[draft.pool];
        let by_price = self.by_price.get(&(draft.pool, market)).map_or(&[][..], Vec::as_slice);
        let request = draft_request(problem, groups, draft);
        let allowed = allowed_types(problem, groups, draft);
        let holds = |at: usize| fits(&state.rooms.free(at, market), &request);
        let holding = by_price.iter().filter(|(_, at)| allowed.contains(*at) && holds(*at));
        let first: Vec<Priced> = holding.copied().take(MAX_TYPES).collect();
        let mut listed = TypeSet::with_capacity(state.catalogue.types().len());
        listed.extend(tolerable(problem, state, &first));
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
                daemons: Arc::new(least_daemons(state, types, market).unwrap_or_default()),
            }
        };
        self.ranked.entry((pool, market, types.clone())).or_insert_with(rank).clone()
    }
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
            return Err(Misfit::MinValues { key: key.to_string(), wanted: *wanted, possible, limited: false });
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

/// Every type that can hold the draft's pods beside the daemons wherever it may be bought.
fn suitable(problem: &Problem<'_>, groups: &[Group], draft: &Draft) -> TypeSet {
    let state = &problem.pools[draft.pool];
    let (request, market) = (draft_request(problem, groups, draft), draft_market(problem, groups, draft));
    let mut types = allowed_types(problem, groups, draft);
    types.intersect_with(&state.catalogue.offered(market));
    let mut suitable = TypeSet::with_capacity(state.catalogue.types().len());
    suitable.extend(types.ones().filter(|at| fits(&state.rooms.free(*at, market), &request)));
    suitable
}

/// The least price of a type; none where a reservation has room, since that costs next to nothing and is no measure for the others.
fn plain_price(state: &PoolState, at: usize, market: Market) -> Option<Price> {
    let bought = market.capacity_types & !(1 << CapacityType::Reserved as u8);
    let plain = state.catalogue.cheapest(at, Market { capacity_types: bought, ..market })?;
    (state.catalogue.cheapest(at, market) == Some(plain)).then_some(plain)
}

/// The types, out of some with their prices, that are not much dearer than the cheapest of them.
fn tolerable<'t>(
    problem: &Problem<'_>,
    state: &PoolState,
    types: &'t [Priced],
) -> impl Iterator<Item = usize> + use<'t> {
    let tolerance = state.pool.price_tolerance.unwrap_or(problem.snapshot.settings.price_tolerance);
    let least = types.iter().filter_map(|(price, _)| *price).min().unwrap_or_default();
    let most = least.scaled(tolerance.factor_percent(), 100);
    types.iter().filter(move |(price, _)| price.is_none_or(|price| price <= most)).map(|(_, at)| *at)
}

/// The types that hold a draft's pods and are larger than the chosen one by no more than `spare`, the cheapest first.
fn by_price(problem: &Problem<'_>, groups: &[Group], draft: &Draft, spare: &Resources) -> Vec<usize> {
    let state = &problem.pools[draft.pool];
    let market = draft_market(problem, groups, draft);
    let base = node_size(state, draft.chosen);
    let within = |at: &usize| *at == draft.chosen || node_size(state, *at).minus(&base).fits(spare);
    let mut by_price: Vec<usize> = suitable(problem, groups, draft).ones().filter(within).collect();
    by_price.sort_by_key(|at| (state.catalogue.cheapest(*at, market), *at != draft.chosen, *at));
    by_price
}

/// The fewest and cheapest types beside the chosen one that give a draft all values that `minValues` asks for.
fn fewest(problem: &Problem<'_>, groups: &[Group], draft: &Draft, spare: &Resources) -> Result<TypeSet, Misfit> {
    let state = &problem.pools[draft.pool];
    let mut types = TypeSet::with_capacity(state.catalogue.types().len());
    types.insert(draft.chosen);
    let by_price = by_price(problem, groups, draft, spare);
    add_values(state, &mut types, &by_price);
    match state.pool.min_values.iter().find(|(key, wanted)| distinct_values(state, &types, key) < **wanted) {
        None => Ok(types),
        Some((key, wanted)) => {
            let possible = distinct_values(state, &types, key);
            let limited = distinct_values(state, &suitable(problem, groups, draft), key) >= *wanted;
            Err(Misfit::MinValues { key: key.to_string(), wanted: *wanted, possible, limited })
        }
    }
}

/// Adds, while values are wanted, the next type that brings one.
fn add_values(state: &PoolState, types: &mut TypeSet, by_price: &[usize]) {
    for (key, wanted) in &state.pool.min_values {
        for at in by_price {
            let have = distinct_values(state, types, key);
            if have >= *wanted {
                break;
            }
            if types.contains(*at) {
                continue;
            }
            types.insert(*at);
            if distinct_values(state, types, key) == have {
                types.remove(*at);
            }
        }
    }
}

/// The types to list on the claim: suitable, no larger than limits allow, the cheapest ones, and what `minValues` needs.
fn widened(
    problem: &Problem<'_>,
    groups: &[Group],
    draft: &Draft,
    spare: &Resources,
    needed: Option<&TypeSet>,
) -> TypeSet {
    let state = &problem.pools[draft.pool];
    let market = draft_market(problem, groups, draft);
    let by_price = by_price(problem, groups, draft, spare);
    let first: Vec<_> = by_price.iter().take(MAX_TYPES).map(|at| (plain_price(state, *at, market), *at)).collect();
    let mut listed = needed.cloned().unwrap_or_else(|| TypeSet::with_capacity(state.catalogue.types().len()));
    listed.insert(draft.chosen);
    let room = MAX_TYPES.saturating_sub(listed.count_ones(..));
    let more: Vec<usize> = tolerable(problem, state, &first).filter(|at| !listed.contains(*at)).take(room).collect();
    listed.extend(more);
    add_values(state, &mut listed, &by_price);
    listed
}

fn node(problem: &Problem<'_>, groups: &[Group], seats: Seats<'_>) -> InFlightNode {
    let Seats { draft, market, types: listed, ranked, mut pods } = seats;
    let Ranked { offerings, types, daemons } = ranked;
    let state = &problem.pools[draft.pool];
    let pool = &state.pool;
    let mut requirements: Requirements = pool.requirements.clone();
    let mut requests = Resources::new();
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
    }
    restrict(&mut requirements, state, market);
    pods.sort();
    requests.add(&daemons);
    let min_values = requirements.get(labels::INSTANCE_TYPE).and_then(Requirement::min_values);
    requirements.add(types.with_min_values(min_values));
    // whatever its name will be, it is none of those that pods keep away from
    NAMES.iter().for_each(|key| drop(requirements.remove(key)));
    settle(&mut requirements, state, &wanted);
    let mut annotations = pool.annotations.clone();
    annotations.insert(labels::NODE_POOL_HASH.to_owned(), pool.hash.to_string());
    annotations.insert(labels::NODE_POOL_HASH_VERSION.to_owned(), hash::NODE_POOL_VERSION.to_owned());
    if problem.snapshot.settings.min_values == MinValuesPolicy::BestEffort && relax(&mut requirements, state, &listed) {
        annotations.insert(labels::MIN_VALUES_RELAXED.to_owned(), "true".to_owned());
    }
    let offerings = if asks_for_reservations(&requirements) {
        let admitted = offerings.iter().filter(|offering| state.catalogue.admits(offering, &requirements));
        Arc::new(admitted.cloned().collect())
    } else {
        offerings
    };
    if offerings.iter().any(|offering| offering.source == PriceSource::Overlaid) {
        annotations.insert(labels::PRICE_OVERLAY_APPLIED.to_owned(), "true".to_owned());
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

/// Adds the zones and capacity types in which a node may be bought, if pods would be elsewhere than beside the daemons that they were planned
/// with: EC2 is asked for all that the requirements leave.
fn restrict(requirements: &mut Requirements, state: &PoolState, market: Market) {
    if !state.rooms.differ() && state.daemon_ports.is_empty() && state.daemon_counters.is_empty() {
        return;
    }
    let open = state.catalogue.market(requirements).and(state.market);
    if market.zones & open.zones != open.zones {
        let zones = state.catalogue.zones().iter().enumerate().filter(|(at, _)| market.zones >> at & 1 == 1);
        requirements.add(Requirement::only(labels::ZONE, zones.map(|(_, zone)| zone.name.clone())));
    }
    if market.capacity_types & open.capacity_types != open.capacity_types {
        let allowed = |capacity_type: &CapacityType| market.capacity_types >> *capacity_type as u8 & 1 == 1;
        let names = CapacityType::ALL.into_iter().filter(allowed).map(|one| Arc::from(one.as_str()));
        requirements.add(Requirement::only(labels::CAPACITY_TYPE, names));
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
            let value = first.or_else(|| any_but_those(r))?;
            r.admits(&value).then(|| Requirement::only(r.key(), [value]))
        })
        .collect();
    requirements.extend(chosen);
}

/// A value for a requirement that names none: a number within its bounds, else `true`, else a number that it does not exclude. No label has
/// a sign.
fn any_but_those(requirement: &Requirement) -> Option<Arc<str>> {
    let ValueSet::Except(excluded) = requirement.values() else { return None };
    let tries = i64::try_from(excluded.len()).ok()?;
    let bounds = requirement.bounds();
    let number = |at: i64| match (bounds.gte, bounds.lte) {
        (Some(least), _) => least.max(0).saturating_add(at),
        (None, Some(most)) => most.saturating_sub(at),
        (None, None) => at,
    };
    let word = bounds.is_none().then(|| "true".to_owned());
    let numbers = (0..=tries).map(number).filter(|number| *number >= 0).map(|number| number.to_string());
    word.into_iter().chain(numbers).map(Arc::from).find(|value| requirement.admits(value))
}

/// What daemons ask for at least on every one of these types, wherever in a market it is bought.
fn least_daemons(state: &PoolState, types: &TypeSet, market: Market) -> Option<Resources> {
    let mut all = types.ones().flat_map(|at| state.rooms.each(at, market)).map(|room| &room.daemons);
    let mut least = all.next()?.clone();
    for daemons in all {
        let lower: Vec<_> = least.iter().map(|(name, a)| (name.to_owned(), a.min(daemons.get(name)))).collect();
        for (name, amount) in lower {
            least.set(name, amount);
        }
    }
    Some(least)
}

//! New nodes: which types to buy and what to put on each, so that the whole costs little.
//!
//! Greedy by value: resources are priced by the duals of the fluid problem, a candidate node is filled with the pods that wait, and
//! the one whose pods are worth most for its price is taken, as often as the same filling is possible. For full nodes that follows
//! the cheapest mix of types; at the tail it takes the node that wastes least.

use fixedbitset::FixedBitSet;
use smallvec::SmallVec;

use super::amounts::{Amounts, copies, fits, take};
use super::offers::{Offer, Offers};
use super::problem::{PoolState, Problem};
use super::queue::Group;
use super::scarcity::Scarcity;
use super::wants::{Asks, Rule};
use super::worth::{Value, Waiting};
use crate::catalogue::{Market, Price, TypeSet};
use crate::quantity::Quantity;
use crate::requirement::Requirements;
use crate::resources::{NODES, Resources};

/// A new node under construction.
#[derive(Clone)]
pub(crate) struct Draft {
    /// Pool, by place in [`Problem::pools`].
    pub(crate) pool: usize,
    /// The type that it was planned as.
    pub(crate) chosen: usize,
    pub(crate) fill: Vec<Portion>,
}

/// Some units of a group, on a node by one of the group's ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    pub(crate) group: usize,
    /// Place in the group's list of ways for the node's pool.
    pub(crate) way: usize,
    pub(crate) count: u32,
}

struct Candidate {
    pool: usize,
    chosen: usize,
    fill: SmallVec<[Portion; 8]>,
    value: f64,
    price: Price,
    /// The price, and what the node takes of limits.
    cost: f64,
}

/// A node while it is filled.
struct Filling<'f> {
    offer: &'f Offer,
    room: Amounts,
    market: Market,
    open: Option<Requirements>,
    fill: SmallVec<[Portion; 8]>,
    worth: f64,
}

impl Candidate {
    fn ratio(&self) -> f64 {
        self.value / self.cost
    }
}

pub(super) fn dollars(price: Price) -> f64 {
    price.dollars().max(1e-9)
}

/// Ratios closer than this are equal, and the candidate that holds more is taken: fewer nodes are worth half a percent.
const TIE: f64 = 0.005;
/// Plans of many nodes are filled with fewer trials a node: what one node wastes matters less. From this many nodes on, offers are fewer.
const MANY_NODES: usize = 64;
const FEW_OFFERS: usize = 24;
const MOST_OFFERS: usize = 300;
/// Trials of the n-th node are this many over n, but never fewer than the other.
const TRIALS: usize = 16_000;
const FEWEST_TRIALS: usize = 12;
/// Values are reckoned anew when so much of what waited is placed, in thousandths.
const STALE_PERMILLE: f64 = 0.75;

/// Packs groups into new nodes of pools that share a weight. Counts of units that could not be placed stay in `remaining`.
pub(crate) struct Packer<'p> {
    pub(crate) problem: &'p Problem<'p>,
    pub(crate) groups: &'p [Group],
    pub(crate) remaining: Vec<u32>,
    /// What each pool's limits leave; by pool.
    pub(crate) left: Vec<Resources>,
    /// Types that must not be planned as, by pool.
    pub(crate) banned: Vec<FixedBitSet>,
    pub(crate) drafts: Vec<Draft>,
    scarcity: &'p Scarcity,
    tally: Tally,
    /// Units that wait, by class of the values at hand.
    class_left: Vec<u32>,
    /// Classes of which some wait, by rank.
    open: Vec<u32>,
}

/// In which order a node is filled.
enum Order<'o> {
    /// Class by class.
    Fixed(&'o [u32]),
    /// The class that keeps what is left in proportion comes next.
    Aligned,
}

/// Counts pods on one node while it is filled.
#[derive(Default)]
struct Tally {
    counts: Vec<u32>,
    touched: Vec<usize>,
}

impl Tally {
    fn clear(&mut self) {
        for id in self.touched.drain(..) {
            self.counts[id] = 0;
        }
    }

    fn add(&mut self, id: usize, count: u32) {
        if self.counts[id] == 0 {
            self.touched.push(id);
        }
        self.counts[id] += count;
    }

    fn room(&self, group: &Group) -> u32 {
        let each = group.rules.iter().map(|rule| rule.room(self.counts[rule.counter]));
        each.min().map_or(u32::MAX, |room| room / group.unit.max(1))
    }
}

impl<'p> Packer<'p> {
    pub(crate) fn new(problem: &'p Problem<'p>, groups: &'p [Group], scarcity: &'p Scarcity) -> Self {
        let left = problem.pools.iter().map(limits_left).collect();
        let banned = problem.pools.iter().map(|s| FixedBitSet::with_capacity(s.catalogue.types().len())).collect();
        let remaining = groups.iter().map(|group| if group.joins { 0 } else { group.units() }).collect();
        let tally = Tally { counts: vec![0; problem.terms.counters.len()], touched: Vec::new() };
        Packer {
            problem,
            groups,
            remaining,
            left,
            banned,
            drafts: Vec::new(),
            scarcity,
            tally,
            class_left: Vec::new(),
            open: Vec::new(),
        }
    }

    /// Goes on from a plan that has been packed before.
    pub(crate) fn resume(&mut self, drafts: Vec<Draft>, left: Vec<Resources>, remaining: Vec<u32>) {
        self.drafts = drafts;
        self.left = left;
        self.remaining = remaining;
    }

    /// Packs what the pools of `tier` can take.
    pub(crate) fn pack(&mut self, tier: &[usize]) {
        while let Some(mut value) =
            Value::of(self.problem, self.groups, &self.remaining, tier, &self.banned, self.scarcity)
        {
            let mut offers = Offers::of(self.problem, self.groups, &value, tier, &self.banned, self.scarcity);
            self.class_left = value.class_counts(&self.remaining);
            self.open = (0..value.classes.len() as u32).collect();
            self.open.sort_by_key(|class| value.classes[*class as usize].rank);
            let mut last = vec![f64::INFINITY; offers.len() * (value.orders.len() + 1)];
            let mut waiting = value.waiting(&self.remaining);
            let start = waiting.worth;
            let mut placed = false;
            while waiting.worth > start * STALE_PERMILLE || !placed {
                offers.refresh(&self.left, self.problem, &waiting, self.promising());
                let Some(best) = self.best(&offers, &value, &mut last) else { break };
                self.buy(&best, &mut value, &mut waiting);
                placed = true;
            }
            if !placed {
                return;
            }
        }
    }

    /// How many offers are looked at for the next node.
    fn promising(&self) -> usize {
        if self.drafts.len() > MANY_NODES { FEW_OFFERS } else { MOST_OFFERS }
    }

    fn buy(&mut self, best: &Candidate, value: &mut Value, waiting: &mut Waiting) {
        let times = self.times(best);
        for _ in 0..times {
            self.drafts.push(Draft { pool: best.pool, chosen: best.chosen, fill: best.fill.to_vec() });
        }
        for portion in &best.fill {
            self.remaining[portion.group] -= portion.count * times;
            waiting.count(value, portion.group, -f64::from(portion.count * times));
            if let Some(class) = value.class_of(portion.group) {
                self.class_left[class] -= portion.count * times;
                if self.remaining[portion.group] == 0 {
                    value.classes[class].groups.retain(|group| *group as usize != portion.group);
                }
            }
        }
        self.open.retain(|class| self.class_left[*class as usize] > 0);
        let node = node_size(&self.problem.pools[best.pool], best.chosen);
        for _ in 0..times {
            self.left[best.pool].subtract(&node);
        }
    }

    /// The filled node that is worth most for its price. What a filling was worth the last time bounds what it is worth now, since pods
    /// only become fewer: those that cannot win any more are not filled again.
    fn best(&mut self, offers: &Offers, value: &Value, last: &mut [f64]) -> Option<Candidate> {
        let promising = self.promising();
        let trials = (TRIALS / (self.drafts.len() + 1)).max(FEWEST_TRIALS);
        let orders = value.orders.len() + 1;
        let mut trial: Vec<(f64, u32, usize)> = Vec::new();
        for half in offers.halves() {
            trial.clear();
            for at in half.iter().take(promising) {
                let bound = offers.get(*at).bound;
                trial.extend((0..orders).map(|order| (bound.min(last[*at as usize * orders + order]), *at, order)));
            }
            // what promises most comes first, otherwise in the order of the offers
            trial.sort_by(|a, b| b.0.total_cmp(&a.0));
            let mut most = 0.0_f64;
            let mut best: Option<Candidate> = None;
            for (promised, at, order) in trial.iter().take(trials) {
                if *promised < most * (1.0 - TIE) {
                    break;
                }
                let offer = offers.get(*at);
                let filled = match order.checked_sub(1) {
                    None => self.fill(offer, &Order::Aligned, value),
                    Some(fixed) => self.fill(offer, &Order::Fixed(&value.orders[fixed]), value),
                };
                let ratio = filled.as_ref().map_or(0.0, Candidate::ratio);
                last[*at as usize * orders + order] = ratio;
                let Some(candidate) = filled else { continue };
                most = most.max(ratio);
                let close = |ratio: f64| ratio >= most * (1.0 - TIE);
                let better = best.as_ref().is_none_or(|other| {
                    !close(other.ratio()) || (close(ratio) && candidate.value > other.value * (1.0 + 1e-9))
                });
                if better {
                    best = Some(candidate);
                }
            }
            if best.is_some() {
                return best.map(|candidate| self.right_sized(offers, candidate));
            }
        }
        None
    }

    /// Fills a node of a type with what waits.
    fn fill(&mut self, offer: &Offer, order: &Order<'_>, value: &Value) -> Option<Candidate> {
        let state = &self.problem.pools[offer.pool];
        let whole = state.rooms.free(offer.at, offer.market);
        let room: Amounts = Amounts::clone(&whole);
        self.tally.clear();
        let mut node = Filling { offer, room, market: offer.market, open: None, fill: SmallVec::new(), worth: 0.0 };
        match order {
            Order::Fixed(order) => {
                for class in *order {
                    let request = value.request(*class);
                    if self.class_left[*class as usize] > 0 && fits(&node.room, request) {
                        let most = copies(&node.room, request);
                        self.add(&mut node, value, *class, most);
                        if value.is_full(&node.room) {
                            break;
                        }
                    }
                }
            }
            Order::Aligned => self.fill_aligned(&mut node, value, &whole),
        }
        let price = state.catalogue.cheapest(offer.at, node.market)?;
        let cost = self.scarcity.cost(offer.pool, offer.at, price);
        let candidate =
            Candidate { pool: offer.pool, chosen: offer.at, fill: node.fill, value: node.worth, price, cost };
        (!candidate.fill.is_empty()).then_some(candidate)
    }

    /// Adds the class that is worth most where room is left in plenty, a part of what fits, again and again.
    fn fill_aligned(&mut self, node: &mut Filling<'_>, value: &Value, whole: &Amounts) {
        let mut open: SmallVec<[u32; 64]> = SmallVec::from_slice(&self.open);
        let mut taken: SmallVec<[(u32, u32); 16]> = SmallVec::new();
        while !open.is_empty() && !value.is_full(&node.room) {
            let weights = value.weights(&node.room, whole);
            let Some((at, class)) = value.worthiest(&mut open, &node.room, &weights) else { return };
            let known = taken.iter().position(|(other, _)| *other == class);
            let used = known.map_or(0, |known| taken[known].1);
            let most = copies(&node.room, value.request(class));
            let wanted = most.div_ceil(4).min(self.class_left[class as usize].saturating_sub(used));
            let added = if wanted == 0 { 0 } else { self.add(node, value, class, wanted) };
            match known {
                Some(known) => taken[known].1 += added,
                None => taken.push((class, added)),
            }
            if added == 0 {
                open.remove(at);
            }
        }
    }

    /// Adds units of a class to a node, at most so many; answers how many.
    fn add(&mut self, node: &mut Filling<'_>, value: &Value, class: u32, most: u32) -> u32 {
        let request = value.request(class);
        let state = &self.problem.pools[node.offer.pool];
        let mut left = most;
        for group in value.classes[class as usize].groups.iter().map(|group| *group as usize) {
            let Ok(ways) = &self.groups[group].ways[node.offer.pool] else { continue };
            let known = node.fill.iter().position(|portion| portion.group == group);
            let used = known.map_or(0, |at| node.fill[at].count);
            let count = left.min(self.remaining[group] - used).min(self.tally.room(&self.groups[group]));
            if count == 0 {
                continue;
            }
            match known {
                Some(at) => node.fill[at].count += count,
                None => {
                    let way = self.way(state, ways, node.offer.at, &mut node.market, &mut node.open);
                    let Some(way) = way else { continue };
                    node.fill.push(Portion { group, way, count });
                }
            }
            for id in &self.groups[group].counting {
                self.tally.add(*id, count * self.groups[group].unit);
            }
            take(&mut node.room, request, i64::from(count));
            node.worth += value.of_group(group) * f64::from(count);
            left -= count;
            if left == 0 {
                break;
            }
        }
        most - left
    }

    /// Finds a way by which a group goes on a node as it is so far, and narrows the node by it.
    fn way(
        &self,
        state: &PoolState,
        ways: &[super::problem::Way],
        at: usize,
        market: &mut Market,
        open: &mut Option<Requirements>,
    ) -> Option<usize> {
        for (index, way) in ways.iter().enumerate() {
            let both = market.and(way.market);
            if !way.types.contains(at) || (both != *market && state.catalogue.cheapest(at, both).is_none()) {
                continue;
            }
            if !way.open.is_empty() {
                let so_far = open.get_or_insert_with(|| state.pool.requirements.clone());
                if !so_far.overlaps(&way.open) {
                    continue;
                }
                so_far.merge(&way.open);
            }
            *market = both;
            return Some(index);
        }
        None
    }

    /// Gives a filled node the cheapest type that holds what is on it.
    fn right_sized(&self, offers: &Offers, mut candidate: Candidate) -> Candidate {
        let state = &self.problem.pools[candidate.pool];
        let draft = Draft { pool: candidate.pool, chosen: candidate.chosen, fill: candidate.fill.to_vec() };
        let market = open_market(self.problem, self.groups, &draft);
        let request = draft_request(self.problem, self.groups, &draft);
        let mut allowed = allowed_types(self.problem, self.groups, &draft);
        allowed.difference_with(&self.banned[candidate.pool]);
        for (least, at) in offers.by_price(candidate.pool) {
            if *least >= candidate.price {
                break;
            }
            if !allowed.contains(*at) {
                continue;
            }
            let Some(price) = state.price_of(*at, market, &request) else { continue };
            let cost = self.scarcity.cost(candidate.pool, *at, price);
            let cheaper = price < candidate.price && cost < candidate.cost;
            if cheaper && node_size(state, *at).fits(&self.left[candidate.pool]) {
                (candidate.chosen, candidate.price, candidate.cost) = (*at, price, cost);
            }
        }
        candidate
    }

    /// How often a candidate can be repeated: while the pods last and the limits allow.
    fn times(&self, candidate: &Candidate) -> u32 {
        let by_pods = candidate.fill.iter().map(|p| self.remaining[p.group] / p.count).min().unwrap_or(1);
        let node = node_size(&self.problem.pools[candidate.pool], candidate.chosen);
        let left = &self.left[candidate.pool];
        let by_limits = node
            .iter()
            .filter(|(name, size)| left.contains(name) && size.is_positive())
            .map(|(name, size)| u32::try_from(left.get(name).nanos().max(0) / size.nanos()).unwrap_or(u32::MAX));
        by_pods.min(by_limits.min().unwrap_or(u32::MAX)).max(1)
    }
}

/// Says whether the rules of all pods of a draft hold together.
pub(crate) fn rules_hold(groups: &[Group], fill: &[Portion]) -> bool {
    if fill.iter().all(|portion| groups[portion.group].rules.is_empty() && groups[portion.group].counting.is_empty()) {
        return true;
    }
    let count = |rule: &Rule| -> u32 {
        let counted = fill.iter().filter(|portion| groups[portion.group].counting.contains(&rule.counter));
        counted.map(|portion| portion.count * groups[portion.group].unit).sum()
    };
    fill.iter().all(|portion| {
        groups[portion.group].rules.iter().all(|rule| match rule.asks {
            Asks::Spread { skew, .. } => count(rule) <= skew,
            Asks::Apart => count(rule) <= u32::from(rule.own),
            // pods that join must find others there; the first of a series may be by itself
            Asks::Near if groups[portion.group].joins => {
                let mut others = fill.iter().filter(|other| other.group != portion.group);
                others.any(|other| groups[other.group].counting.contains(&rule.counter))
            }
            Asks::Near => count(rule) > 0,
        })
    })
}

/// The types that a draft may become, each with the least price for which it holds the pods; in the order of types.
pub(crate) fn priced<'d>(
    problem: &'d Problem<'_>,
    groups: &[Group],
    draft: &Draft,
) -> impl Iterator<Item = (Price, usize)> + use<'d> {
    let state = &problem.pools[draft.pool];
    let market = open_market(problem, groups, draft);
    let request = draft_request(problem, groups, draft);
    let types = allowed_types(problem, groups, draft);
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < types.len() {
            at += 1;
            if types.contains(at - 1)
                && let Some(price) = state.price_of(at - 1, market, &request)
            {
                return Some((price, at - 1));
            }
        }
        None
    })
}

/// The types that every pod of a draft may be on by itself.
pub(crate) fn allowed_types(problem: &Problem<'_>, groups: &[Group], draft: &Draft) -> TypeSet {
    let mut types = problem.pools[draft.pool].types.clone();
    for portion in &draft.fill {
        if let Ok(ways) = &groups[portion.group].ways[draft.pool] {
            types.intersect_with(&ways[portion.way].types);
        }
    }
    types
}

/// What a node of a type counts against the limits that its pool has.
pub(crate) fn node_size(state: &PoolState, at: usize) -> Resources {
    let mut size = Resources::new();
    for (name, _) in state.pool.limits.iter() {
        let amount = match name {
            NODES => Quantity::from_units(1),
            _ => state.catalogue.types()[at].capacity.get(name),
        };
        size.set(name.to_owned(), amount);
    }
    size
}

/// What a pool's limits leave beside what it uses.
pub(crate) fn limits_left(state: &PoolState) -> Resources {
    let mut left = Resources::new();
    for (name, limit) in state.pool.limits.iter() {
        left.set(name.to_owned(), (limit - state.used.get(name)).max(Quantity::ZERO));
    }
    left
}

/// What a draft costs as the type that it is planned as.
pub(crate) fn draft_price(problem: &Problem<'_>, groups: &[Group], draft: &Draft) -> Option<Price> {
    problem.pools[draft.pool].catalogue.cheapest(draft.chosen, draft_market(problem, groups, draft))
}

/// Where a draft may be bought: the market that its pods leave, without what has too little room for them beside the daemons there.
pub(crate) fn draft_market(problem: &Problem<'_>, groups: &[Group], draft: &Draft) -> Market {
    let open = open_market(problem, groups, draft);
    let state = &problem.pools[draft.pool];
    match state.rooms.differ() {
        true => state.market_of(draft.chosen, open, &draft_request(problem, groups, draft)),
        false => open,
    }
}

/// What the pods of a draft ask for together.
pub(crate) fn draft_request(problem: &Problem<'_>, groups: &[Group], draft: &Draft) -> Amounts {
    let mut request: Amounts = problem.dims.names().iter().map(|_| 0).collect();
    for portion in &draft.fill {
        take(&mut request, &groups[portion.group].request, -i64::from(portion.count));
    }
    request
}

/// The market that the pods of a draft leave, whatever room there is.
fn open_market(problem: &Problem<'_>, groups: &[Group], draft: &Draft) -> Market {
    let state = &problem.pools[draft.pool];
    let ways = draft.fill.iter().filter_map(|portion| {
        groups[portion.group].ways[draft.pool].as_ref().ok().map(|ways| ways[portion.way].market)
    });
    super::queue::common_market(state, ways)
}

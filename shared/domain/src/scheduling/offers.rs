//! What can be bought for waiting pods: types and markets, ordered by the most that a node of them can be worth for its price.

use fixedbitset::FixedBitSet;

use super::packing::node_size;
use super::problem::Problem;
use super::queue::Group;
use super::scarcity::Scarcity;
use super::worth::{Value, Waiting, useful};
use crate::catalogue::{CapacityType, Market, Price};
use crate::resources::Resources;

/// A type in a market.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    /// The most that its pods can be worth for its cost.
    pub(super) bound: f64,
    pub(super) pool: usize,
    pub(super) at: usize,
    pub(super) market: Market,
    cost: f64,
    /// The most that pods on it can be worth by their resources.
    room: f64,
}

/// Offers for what waits, the most promising first.
pub(super) struct Offers {
    all: Vec<Offer>,
    /// Places in `all` of those that are worth a trial now, in order.
    now: Vec<u32>,
    /// Those from here on are larger than a node should be: only for pods that fit on nothing smaller.
    large: usize,
    /// What all that waited was worth when `now` was made, and how large nodes might be.
    made_for: Option<(f64, f64)>,
    /// Types by their least price, by pool.
    by_price: Vec<Vec<(Price, usize)>>,
    slots: f64,
    limited: bool,
    /// The most that pods on any of them can be worth by their resources.
    largest: f64,
}

/// Where rules make many nodes necessary, one node should not hold more than this much of an equal share of what waits: else nodes
/// at the end stay all but empty.
const FAIR_SHARE: f64 = 1.15;

impl Offers {
    pub(super) fn of(
        problem: &Problem<'_>,
        groups: &[Group],
        value: &Value,
        tier: &[usize],
        banned: &[FixedBitSet],
        scarcity: &Scarcity,
    ) -> Self {
        let mine: Vec<usize> = value.classes.iter().flat_map(|c| c.groups.iter().map(|g| *g as usize)).collect();
        let ones = vec![1; groups.len()];
        let slots = value.of_slots();
        let mut all = Vec::new();
        let mut by_price = vec![Vec::new(); problem.pools.len()];
        for pool in tier {
            let state = &problem.pools[*pool];
            let variants = variants(problem, groups, *pool, &mine);
            for at in useful(problem, groups, &ones, &mine, *pool, &banned[*pool]).ones() {
                if let Some(price) = state.catalogue.cheapest(at, state.market) {
                    by_price[*pool].push((price, at));
                }
                let mut of_whole = None;
                for (market, whole) in &variants {
                    let Some(price) = state.catalogue.cheapest(at, *market) else { continue };
                    let free = state.rooms.free(at, *market);
                    if market == whole {
                        of_whole = Some((price, free.clone()));
                    } else if of_whole.as_ref().is_some_and(|of_whole| (price, &free) == (of_whole.0, &of_whole.1)) {
                        // a zone that costs no more than the cheapest one, and has no more room, needs no offer of its own
                        continue;
                    }
                    let room = value.of_room(&free);
                    let cost = scarcity.cost(*pool, at, price);
                    let bound = (room + slots) / cost;
                    all.push(Offer { bound, pool: *pool, at, market: *market, cost, room });
                }
            }
            by_price[*pool].sort_unstable();
        }
        let limited = tier.iter().any(|pool| !problem.pools[*pool].pool.limits.is_empty());
        let largest = all.iter().map(|offer| offer.room).fold(0.0, f64::max);
        Offers { all, now: Vec::new(), large: 0, made_for: None, by_price, slots, limited, largest }
    }

    /// Brings the offers up to date with what waits and what limits leave; so many of each half are in order.
    pub(super) fn refresh(&mut self, left: &[Resources], problem: &Problem<'_>, waiting: &Waiting, most: usize) {
        let share = match waiting.needed() {
            0 => f64::INFINITY,
            needed => FAIR_SHARE * waiting.resources / f64::from(needed),
        };
        let (largest, waiting) = (self.largest.min(share), waiting.worth);
        // as long as much more waits than any node holds, what waits does not bound a node
        let same = self.made_for.is_some_and(|(was, shared)| {
            was > 2.0 * largest && waiting > 2.0 * largest && (shared == share || (share / shared - 1.0).abs() < 0.05)
        });
        if same && !self.limited {
            return;
        }
        self.made_for = Some((waiting, share));
        for offer in &mut self.all {
            offer.bound = (offer.room + self.slots).min(waiting) / offer.cost;
        }
        let fits = |offer: &Offer| {
            let state = &problem.pools[offer.pool];
            state.pool.limits.is_empty() || node_size(state, offer.at).fits(&left[offer.pool])
        };
        let mut now: Vec<u32> = (0..u32::try_from(self.all.len()).unwrap_or(u32::MAX))
            .filter(|at| !self.limited || fits(&self.all[*at as usize]))
            .collect();
        now.sort_by_key(|at| self.all[*at as usize].room > share);
        self.large = now.iter().position(|at| self.all[*at as usize].room > share).unwrap_or(now.len());
        let (small, large) = now.split_at_mut(self.large);
        self.sort(small, most);
        self.sort(large, most);
        self.now = now;
    }

    /// Brings the most promising ones to the front, in order.
    fn sort(&self, mut some: &mut [u32], most: usize) {
        let by_promise = |a: &u32, b: &u32| {
            let (one, other) = (&self.all[*a as usize], &self.all[*b as usize]);
            other.bound.total_cmp(&one.bound).then((one.pool, one.at).cmp(&(other.pool, other.at))).then(a.cmp(b))
        };
        if most < some.len() {
            some = some.select_nth_unstable_by(most, by_promise).0;
        }
        some.sort_unstable_by(by_promise);
    }

    /// Answers the offers to try, in order; then those that are larger than a node should be.
    pub(super) fn halves(&self) -> [&[u32]; 2] {
        let (small, large) = self.now.split_at(self.large);
        [small, large]
    }

    /// Answers the offer at a place.
    pub(super) fn get(&self, at: u32) -> &Offer {
        &self.all[at as usize]
    }

    /// Answers how many offers there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Types of a pool by their least price.
    pub(super) fn by_price(&self, pool: usize) -> &[(Price, usize)] {
        &self.by_price[pool]
    }
}

/// The ways of buying that are filled separately, so that a pod which needs dear capacity does not draw others onto it: each
/// capacity type, each zone of it when some pod is bound to zones, and the zones of it in which nodes have the same daemons.
/// Each comes with the market of all zones that it is a part of.
fn variants(problem: &Problem<'_>, groups: &[Group], pool: usize, mine: &[usize]) -> Vec<(Market, Market)> {
    let state = &problem.pools[pool];
    let zones = (1_u64 << state.catalogue.zones().len().min(63)) - 1;
    let all = state.market.zones & zones;
    let mut bound = 0_u64;
    for group in mine {
        for way in groups[*group].ways[pool].iter().flatten() {
            if way.market.zones & zones & all != all {
                bound |= way.market.zones & all;
            }
        }
    }
    let mut variants = Vec::new();
    for capacity_type in CapacityType::ALL {
        let whole = Market { zones: all, capacity_types: 1 << capacity_type as u8 }.and(state.market);
        if whole.is_empty() || state.catalogue.offered(whole).is_clear() {
            continue;
        }
        variants.push((whole, whole));
        let each = (0..state.catalogue.zones().len()).filter(|zone| bound >> zone & 1 == 1);
        variants.extend(each.map(|zone| (Market { zones: 1 << zone, ..whole }, whole)));
        let alike = state.rooms.alike().iter().filter(|alike| alike.capacity_types == whole.capacity_types);
        for alike in alike.map(|alike| (alike.and(whole), whole)) {
            if !alike.0.is_empty() && !variants.contains(&alike) {
                variants.push(alike);
            }
        }
    }
    variants
}

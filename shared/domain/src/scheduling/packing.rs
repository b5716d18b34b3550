//! New nodes: which types to buy and what to put on each, so that the whole costs little.
//!
//! Greedy by value: resources are priced by the duals of the fluid problem, a candidate node is filled with the pods that wait
//! (largest first), and the one whose pods are worth most for its price is taken, as often as the same filling is possible.
//! For full nodes that follows the cheapest mix of types; at the tail it takes the node that wastes least.

use fixedbitset::FixedBitSet;
use smallvec::SmallVec;

use super::amounts::{Amounts, copies, take};
use super::duals::worth;
use super::problem::{PoolState, Problem};
use super::queue::Group;
use crate::catalogue::{CapacityType, Market, Price};
use crate::quantity::Quantity;
use crate::requirement::Requirements;
use crate::resources::{MEMORY, NODES, Resources};

/// A new node under construction.
#[derive(Clone)]
pub(crate) struct Draft {
    /// Pool, by place in [`Problem::pools`].
    pub(crate) pool: usize,
    /// The type that it was planned as.
    pub(crate) chosen: usize,
    pub(crate) fill: Vec<Portion>,
}

/// Some pods of a group, on a node by one of the group's ways.
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
}

/// What resources are worth, in dollars.
struct Worth {
    /// A thousandth of a unit of each resource.
    unit: Vec<f64>,
    /// A pod, whatever it asks for.
    each: f64,
}

impl Worth {
    fn of(&self, request: &Amounts) -> f64 {
        self.each + request.iter().zip(&self.unit).map(|(r, unit)| *r as f64 * unit).sum::<f64>()
    }

    /// The most that pods in this room can be worth.
    fn of_room(&self, room: &Amounts) -> f64 {
        let whole = room.iter().zip(&self.unit).map(|(r, unit)| (*r).max(0) as f64 * unit).sum::<f64>();
        whole + self.each * MOST_PODS
    }
}

/// The order in which a node is filled, within a priority. None is best for every input, so that several are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// By CPU, then memory: as the groups come.
    Cpu,
    /// By memory.
    Memory,
    /// By what a pod is worth.
    Worth,
}

impl Order {
    pub(crate) const ALL: [Order; 3] = [Order::Cpu, Order::Memory, Order::Worth];

    fn arrange(self, mine: &mut [usize], problem: &Problem<'_>, groups: &[Group], worth: &Worth) {
        let memory = problem.dims.names().iter().position(|name| name == MEMORY);
        mine.sort_by(|a, b| {
            let (one, other) = (&groups[*a], &groups[*b]);
            let by_kind = match self {
                Order::Cpu => std::cmp::Ordering::Equal,
                Order::Memory => memory.map_or(std::cmp::Ordering::Equal, |m| other.request[m].cmp(&one.request[m])),
                Order::Worth => worth.of(&other.request).total_cmp(&worth.of(&one.request)),
            };
            other.priority.cmp(&one.priority).then(by_kind).then(a.cmp(b))
        });
    }
}

/// More pods than any node holds.
const MOST_PODS: f64 = 1000.0;

fn dollars(price: Price) -> f64 {
    price.dollars().max(1e-9)
}

/// Packs groups into new nodes of pools that share a weight. Counts of pods that could not be placed stay in `remaining`.
pub(crate) struct Packer<'p> {
    pub(crate) problem: &'p Problem<'p>,
    pub(crate) groups: &'p [Group],
    order: Order,
    pub(crate) remaining: Vec<u32>,
    /// What each pool's limits leave; by pool.
    pub(crate) left: Vec<Resources>,
    /// Types that must not be planned as, by pool.
    pub(crate) banned: Vec<FixedBitSet>,
    pub(crate) drafts: Vec<Draft>,
}

impl<'p> Packer<'p> {
    pub(crate) fn new(problem: &'p Problem<'p>, groups: &'p [Group], order: Order) -> Self {
        let left = problem.pools.iter().map(limits_left).collect();
        let banned = problem.pools.iter().map(|s| FixedBitSet::with_capacity(s.catalogue.types().len())).collect();
        let remaining = groups.iter().map(|group| u32::try_from(group.waiting.len()).unwrap_or(u32::MAX)).collect();
        Packer { problem, groups, order, remaining, left, banned, drafts: Vec::new() }
    }

    /// Goes on from a plan that has been packed before.
    pub(crate) fn resume(&mut self, drafts: Vec<Draft>, left: Vec<Resources>, remaining: Vec<u32>) {
        self.drafts = drafts;
        self.left = left;
        self.remaining = remaining;
    }

    /// Packs what the pools of `tier` can take.
    pub(crate) fn pack(&mut self, tier: &[usize]) {
        let fits = |group: &Group| tier.iter().any(|pool| group.ways[*pool].is_ok());
        let mut mine: Vec<usize> =
            (0..self.groups.len()).filter(|g| self.remaining[*g] > 0 && fits(&self.groups[*g])).collect();
        if mine.is_empty() {
            return;
        }
        let worth = self.worth(tier, &mine);
        self.order.arrange(&mut mine, self.problem, self.groups, &worth);
        let variants: Vec<Vec<Market>> = (0..self.problem.pools.len()).map(|pool| self.variants(pool, &mine)).collect();
        while let Some(best) = self.best(tier, &mine, &worth, &variants) {
            let times = self.times(&best);
            for _ in 0..times {
                let fill = best.fill.to_vec();
                self.drafts.push(Draft { pool: best.pool, chosen: best.chosen, fill });
            }
            for portion in &best.fill {
                self.remaining[portion.group] -= portion.count * times;
            }
            let node = node_size(&self.problem.pools[best.pool], best.chosen);
            for _ in 0..times {
                charge(&mut self.left[best.pool], &node);
            }
        }
    }

    /// Prices resources for these groups.
    fn worth(&self, tier: &[usize], mine: &[usize]) -> Worth {
        let dims = self.problem.dims.names().len();
        let mut demand = vec![0.0; dims];
        for group in mine {
            for (total, want) in demand.iter_mut().zip(&self.groups[*group].request) {
                *total += *want as f64 * f64::from(self.remaining[*group]);
            }
        }
        let mut offers = Vec::new();
        for pool in tier {
            let state = &self.problem.pools[*pool];
            for at in self.useful(*pool, mine).ones() {
                let Some(price) = state.catalogue.cheapest(at, state.market) else { continue };
                let share = |d: usize| if demand[d] > 0.0 { state.room[at][d].max(0) as f64 / demand[d] } else { 0.0 };
                offers.push(((0..dims).map(share).collect::<Vec<_>>(), dollars(price)));
            }
        }
        let wanted: Vec<f64> = demand.iter().map(|d| if *d > 0.0 { 1.0 } else { 0.0 }).collect();
        let duals = worth(&wanted, &offers);
        let unit = duals.iter().zip(&demand).map(|(w, d)| if *d > 0.0 { w / d } else { 0.0 }).collect();
        let cheapest = offers.iter().map(|(_, price)| *price).fold(f64::INFINITY, f64::min);
        // every pod is worth something, else pods that only ask for what is abundant would never be placed
        let each = if cheapest.is_finite() { cheapest * 1e-6 } else { 1e-9 };
        Worth { unit, each }
    }

    /// The ways of buying that are filled separately, so that a pod which needs dear capacity does not draw others onto it: each
    /// capacity type, and each zone of it when some pod is bound to zones.
    fn variants(&self, pool: usize, mine: &[usize]) -> Vec<Market> {
        let state = &self.problem.pools[pool];
        let zones = (1_u64 << state.catalogue.zones().len().min(63)) - 1;
        let all = state.market.zones & zones;
        let bound = mine
            .iter()
            .any(|group| self.groups[*group].ways[pool].iter().flatten().any(|way| way.market.zones & zones != all));
        let mut variants = Vec::new();
        for capacity_type in CapacityType::ALL {
            let whole = Market { zones: all, capacity_types: 1 << capacity_type as u8 }.and(state.market);
            if whole.is_empty() || state.catalogue.offered(whole).is_clear() {
                continue;
            }
            variants.push(whole);
            if bound {
                let each = (0..state.catalogue.zones().len()).filter(|zone| all >> zone & 1 == 1);
                variants.extend(each.map(|zone| Market { zones: 1 << zone, ..whole }));
            }
        }
        variants
    }

    /// The types of a pool that can hold a pod of some waiting group.
    fn useful(&self, pool: usize, mine: &[usize]) -> FixedBitSet {
        let mut useful = FixedBitSet::with_capacity(self.problem.pools[pool].catalogue.types().len());
        for group in mine.iter().filter(|g| self.remaining[**g] > 0) {
            for way in self.groups[*group].ways[pool].iter().flatten() {
                useful.union_with(&way.types);
            }
        }
        useful.difference_with(&self.banned[pool]);
        useful
    }

    fn best(&self, tier: &[usize], mine: &[usize], worth: &Worth, variants: &[Vec<Market>]) -> Option<Candidate> {
        let waiting: f64 =
            mine.iter().map(|g| worth.of(&self.groups[*g].request) * f64::from(self.remaining[*g])).sum();
        let mut bounds: Vec<(f64, usize, usize, Market)> = Vec::new();
        for pool in tier {
            let state = &self.problem.pools[*pool];
            for at in self.useful(*pool, mine).ones() {
                if !node_size(state, at).fits(&self.left[*pool]) {
                    continue;
                }
                let full = worth.of_room(&state.room[at]).min(waiting);
                for market in &variants[*pool] {
                    if let Some(price) = state.catalogue.cheapest(at, *market) {
                        bounds.push((full / dollars(price), *pool, at, *market));
                    }
                }
            }
        }
        bounds.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let mut most = 0.0_f64;
        let mut best: Option<(f64, Candidate)> = None;
        for (bound, pool, at, market) in bounds {
            if bound < most * (1.0 - TIE) {
                break;
            }
            let Some(candidate) = self.fill(pool, at, market, mine, worth) else { continue };
            let ratio = candidate.value / dollars(candidate.price);
            most = most.max(ratio);
            let close = |ratio: f64| ratio >= most * (1.0 - TIE);
            let better = best.as_ref().is_none_or(|(old, other)| {
                !close(*old) || (close(ratio) && candidate.value > other.value * (1.0 + 1e-9))
            });
            if better {
                best = Some((ratio, candidate));
            }
        }
        best.map(|(_, candidate)| candidate)
    }

    /// Fills a node of a type with what waits, largest first.
    fn fill(&self, pool: usize, at: usize, bought: Market, mine: &[usize], worth: &Worth) -> Option<Candidate> {
        let state = &self.problem.pools[pool];
        let mut room: Amounts = state.room[at].clone();
        let mut market = bought;
        let mut open: Option<Requirements> = None;
        let mut fill: SmallVec<[Portion; 8]> = SmallVec::new();
        let mut value = 0.0;
        for group in mine.iter().copied().filter(|g| self.remaining[*g] > 0) {
            let Ok(ways) = &self.groups[group].ways[pool] else { continue };
            let count = copies(&room, &self.groups[group].request).min(self.remaining[group]);
            if count == 0 {
                continue;
            }
            for (index, way) in ways.iter().enumerate() {
                let both = market.and(way.market);
                if !way.types.contains(at) || state.catalogue.cheapest(at, both).is_none() {
                    continue;
                }
                if !way.open.is_empty() {
                    let so_far = open.get_or_insert_with(|| state.pool.requirements.clone());
                    if so_far.intersects(&way.open).is_err() {
                        continue;
                    }
                    so_far.merge(&way.open);
                }
                market = both;
                take(&mut room, &self.groups[group].request, i64::from(count));
                value += worth.of(&self.groups[group].request) * f64::from(count);
                fill.push(Portion { group, way: index, count });
                break;
            }
        }
        let price = state.catalogue.cheapest(at, market)?;
        (!fill.is_empty()).then_some(Candidate { pool, chosen: at, fill, value, price })
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

/// Ratios closer than this are equal, and the candidate that holds more is taken: fewer nodes are worth half a percent.
const TIE: f64 = 0.005;

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

pub(crate) fn charge(left: &mut Resources, node: &Resources) {
    left.subtract(node);
}

/// The market that the pods of a draft leave.
pub(crate) fn draft_market(problem: &Problem<'_>, groups: &[Group], draft: &Draft) -> Market {
    let state = &problem.pools[draft.pool];
    let ways = draft.fill.iter().filter_map(|portion| {
        groups[portion.group].ways[draft.pool].as_ref().ok().map(|ways| ways[portion.way].market)
    });
    super::queue::common_market(state, ways)
}

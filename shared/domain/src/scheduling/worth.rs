//! What waiting pods are worth, and the orders in which a node is filled with them.

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::amounts::{Amounts, fits};
use super::duals::{Supplies, worth};
use super::problem::Problem;
use super::queue::Group;
use super::scarcity::Scarcity;
use super::terms::CounterId;
use super::wants::Asks;
use crate::resources::MEMORY;

/// Groups that ask for the same and are filled alike.
pub(super) struct Class {
    /// Those of which some wait.
    pub(super) groups: Vec<u32>,
    /// What one unit is worth by its resources.
    worth: f64,
    /// Classes of a lower rank are filled first: those of higher priority, and among them those that need nodes.
    pub(super) rank: u32,
}

/// What pods are worth, in dollars an hour, as things stand.
pub(super) struct Value {
    pub(super) classes: Vec<Class>,
    /// What a unit of each class asks for, one class after the other.
    requests: Vec<i64>,
    /// The same as floating-point numbers.
    factors: Vec<f64>,
    /// The least that any class asks for, by resource.
    least: Amounts,
    /// Class of each group; those that do not wait have none.
    class_of: Vec<Option<usize>>,
    /// Orders of the classes, by place: none is best for every input, so that several are tried.
    pub(super) orders: Vec<Vec<u32>>,
    /// By resource, for a thousandth of a unit.
    unit: Vec<f64>,
    /// A pod, whatever it asks for.
    each: f64,
    /// A pod that needs a node for itself among its like, by group; beside its resources.
    slot: Vec<f64>,
    by_group: Vec<f64>,
    /// Which share of a node a unit takes of the rule on single nodes that makes most nodes necessary, by group; none when that costs
    /// nothing.
    shares: Option<Vec<f64>>,
}

/// Sums over all that waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    /// What it is worth.
    pub(super) worth: f64,
    /// What it is worth by its resources.
    pub(super) resources: f64,
    /// How many nodes rules on single nodes make necessary for it.
    nodes: f64,
}

impl Waiting {
    /// Counts so many more units of a group, or fewer.
    pub(super) fn count(&mut self, value: &Value, group: usize, units: f64) {
        self.worth += value.by_group[group] * units;
        self.resources += value.class_of[group].map_or(0.0, |class| value.classes[class].worth) * units;
        self.nodes += value.shares.as_ref().map_or(0.0, |shares| shares[group]) * units;
    }

    /// Answers how many nodes rules on single nodes still make necessary.
    pub(super) fn needed(&self) -> u32 {
        // what rounding leaves of a sum that came down to nothing is no node
        (self.nodes - 1e-6).ceil().max(0.0) as u32
    }
}

/// A node that holds so many times all that waits is as good as one that holds more: room without a bound must not drown the other figures.
const MOST_SHARE: f64 = 1e3;
/// More pods than any node holds.
const MOST_PODS: f64 = 1000.0;

impl Value {
    /// Prices what waits for the pools of a tier; none when nothing does.
    pub(super) fn of(
        problem: &Problem<'_>,
        groups: &[Group],
        remaining: &[u32],
        tier: &[usize],
        banned: &[FixedBitSet],
        scarcity: &Scarcity,
    ) -> Option<Self> {
        let fits = |group: &Group| tier.iter().any(|pool| group.ways[*pool].is_ok());
        let mine: Vec<usize> = (0..groups.len()).filter(|g| remaining[*g] > 0 && fits(&groups[*g])).collect();
        if mine.is_empty() {
            return None;
        }
        let (needed, slots) = slots(groups, remaining, &mine);
        let dims = problem.dims.names().len();
        let mut demand = vec![0.0; dims];
        for group in &mine {
            for (total, want) in demand.iter_mut().zip(&groups[*group].request) {
                *total += *want as f64 * f64::from(remaining[*group]);
            }
        }
        let mut offers = Supplies::of(dims + 1);
        for pool in tier {
            let state = &problem.pools[*pool];
            for at in useful(problem, groups, remaining, &mine, *pool, &banned[*pool]).ones() {
                for (price, room) in state.priced_rooms(at) {
                    let share = |d: usize| match demand[d] > 0.0 {
                        true => (room[d].max(0) as f64 / demand[d]).min(MOST_SHARE),
                        false => 0.0,
                    };
                    let node = if needed > 0 { 1.0 / f64::from(needed) } else { 0.0 };
                    offers.add((0..dims).map(share).chain([node]), scarcity.cost(*pool, at, price));
                }
            }
        }
        let mut wanted: Vec<f64> = demand.iter().map(|d| if *d > 0.0 { 1.0 } else { 0.0 }).collect();
        wanted.push(if needed > 0 { 1.0 } else { 0.0 });
        let duals = steady(&wanted, &offers, dims);
        let unit: Vec<f64> = duals.iter().zip(&demand).map(|(w, d)| if *d > 0.0 { w / d } else { 0.0 }).collect();
        let node = if needed > 0 { duals[dims] / f64::from(needed) } else { 0.0 };
        let cheapest = offers.cheapest();
        // every pod is worth something, else pods that only ask for what is abundant would never be placed
        let each = if cheapest.is_finite() { cheapest * 1e-6 } else { 1e-9 };
        let mut value = Value {
            classes: Vec::new(),
            requests: Vec::new(),
            factors: Vec::new(),
            least: Amounts::new(),
            class_of: vec![None; groups.len()],
            orders: Vec::new(),
            unit,
            each,
            slot: slots.iter().map(|share| share * node).collect(),
            by_group: vec![0.0; groups.len()],
            shares: (node > 0.0).then_some(slots),
        };
        for group in &mine {
            value.by_group[*group] = value.of_request(&groups[*group].request) + value.slot[*group];
        }
        value.classify(groups, &mine);
        value.arrange(problem, groups);
        Some(value)
    }

    /// Answers what a unit of a class asks for.
    #[inline]
    pub(super) fn request(&self, class: u32) -> &[i64] {
        let dims = self.unit.len();
        &self.requests[class as usize * dims..][..dims]
    }

    /// Answers which class of those in `open` that fit is worth most where resources have these weights, with its place there: of the lowest rank,
    /// whatever the others are worth. Classes that do not fit are taken out.
    pub(super) fn worthiest(
        &self,
        open: &mut SmallVec<[u32; 64]>,
        room: &Amounts,
        weights: &[f64],
    ) -> Option<(usize, u32)> {
        // nearly all problems are about few resources; loops of a known length are several times as fast
        match self.unit.len() {
            2 => self.worthiest_of::<2>(open, room, weights),
            3 => self.worthiest_of::<3>(open, room, weights),
            4 => self.worthiest_of::<4>(open, room, weights),
            5 => self.worthiest_of::<5>(open, room, weights),
            _ => self.worthiest_of::<0>(open, room, weights),
        }
    }

    /// The same for `D` resources; 0 stands for any number.
    #[inline]
    fn worthiest_of<const D: usize>(
        &self,
        open: &mut SmallVec<[u32; 64]>,
        room: &Amounts,
        weights: &[f64],
    ) -> Option<(usize, u32)> {
        let dims = if D == 0 { self.unit.len() } else { D };
        let (room, weights) = (&room[..dims], &weights[..dims]);
        let mut best: Option<(u32, f64, usize, u32)> = None;
        let (mut kept, mut looked) = (0, 0);
        while looked < open.len() {
            let class = open[looked];
            let rank = self.classes[class as usize].rank;
            if best.as_ref().is_some_and(|(least, ..)| rank > *least) {
                break;
            }
            looked += 1;
            let from = class as usize * dims;
            if !fits(room, &self.requests[from..from + dims]) {
                continue;
            }
            let worth: f64 =
                self.factors[from..from + dims].iter().zip(weights).map(|(want, weight)| want * weight).sum();
            let better = best.as_ref().is_none_or(|(_, most, _, other)| (-worth, class) < (-*most, *other));
            if better {
                best = Some((rank, worth, kept, class));
            }
            open[kept] = class;
            kept += 1;
        }
        open.drain(kept..looked);
        best.map(|(_, _, at, class)| (at, class))
    }

    /// Says whether no class at all fits this room.
    pub(super) fn is_full(&self, room: &[i64]) -> bool {
        room.iter().zip(&self.least).any(|(have, least)| *least > 0 && have < least)
    }

    /// Answers how many units of each class wait.
    pub(super) fn class_counts(&self, remaining: &[u32]) -> Vec<u32> {
        let count = |class: &Class| class.groups.iter().map(|group| remaining[*group as usize]).sum();
        self.classes.iter().map(count).collect()
    }

    pub(super) fn class_of(&self, group: usize) -> Option<usize> {
        self.class_of[group]
    }

    /// Answers what a thousandth of each resource is worth on a node with this much room left of what it had, where what is left in
    /// plenty counts more: filling by it keeps what is left in proportion.
    pub(super) fn weights(&self, room: &Amounts, whole: &Amounts) -> SmallVec<[f64; 6]> {
        let part = |d: usize| if whole[d] > 0 { room[d] as f64 / whole[d] as f64 } else { 0.0 };
        self.unit.iter().enumerate().map(|(d, unit)| unit * part(d)).collect()
    }

    pub(super) fn of_group(&self, group: usize) -> f64 {
        self.by_group[group]
    }

    fn of_request(&self, request: &Amounts) -> f64 {
        self.each + request.iter().zip(&self.unit).map(|(r, unit)| *r as f64 * unit).sum::<f64>()
    }

    /// The most that pods in this room can be worth by their resources.
    pub(super) fn of_room(&self, room: &Amounts) -> f64 {
        let whole = room.iter().zip(&self.unit).map(|(r, unit)| (*r).max(0) as f64 * unit).sum::<f64>();
        whole + self.each * MOST_PODS
    }

    /// The most that the pods on one node can be worth because they need a node.
    pub(super) fn of_slots(&self) -> f64 {
        self.slot
            .iter()
            .zip(self.shares.iter().flatten())
            .map(|(slot, share)| slot / share.max(1e-9))
            .fold(0.0, f64::max)
    }

    /// Sums up what waits.
    pub(super) fn waiting(&self, remaining: &[u32]) -> Waiting {
        let mut waiting = Waiting::default();
        for (group, count) in remaining.iter().enumerate().filter(|(_, count)| **count > 0) {
            waiting.count(self, group, f64::from(*count));
        }
        waiting
    }

    fn classify(&mut self, groups: &[Group], mine: &[usize]) {
        let mut at: FxHashMap<(i32, bool, &Amounts), usize> = FxHashMap::default();
        for group in mine {
            let own = &groups[*group];
            let key = (own.priority, self.slot[*group] > 0.0, &own.request);
            let slot = *at.entry(key).or_insert_with(|| {
                let worth = self.of_request(&own.request);
                self.classes.push(Class { groups: Vec::new(), worth, rank: 0 });
                self.requests.extend_from_slice(&own.request);
                self.factors.extend(own.request.iter().map(|want| *want as f64));
                self.classes.len() - 1
            });
            self.classes[slot].groups.push(u32::try_from(*group).unwrap_or(u32::MAX));
            self.class_of[*group] = Some(slot);
        }
        let dims = self.unit.len();
        let least = |d: usize| self.requests.iter().skip(d).step_by(dims).copied().min().unwrap_or(0);
        self.least = (0..dims).map(least).collect();
    }

    /// Within a priority, pods that need nodes come first, then by CPU (as the groups come), by memory, or by worth.
    fn arrange(&mut self, problem: &Problem<'_>, groups: &[Group]) {
        let memory = problem.dims.names().iter().position(|name| name == MEMORY);
        let mut ranks: Vec<_> = self
            .classes
            .iter()
            .map(|class| class.groups[0] as usize)
            .map(|group| (std::cmp::Reverse(groups[group].priority), self.slot[group] <= 0.0))
            .collect();
        let own = ranks.clone();
        ranks.sort_unstable();
        ranks.dedup();
        for (class, own) in self.classes.iter_mut().zip(own) {
            class.rank = ranks.iter().position(|rank| *rank == own).and_then(|at| u32::try_from(at).ok()).unwrap_or(0);
        }
        let all: Vec<u32> = (0..u32::try_from(self.classes.len()).unwrap_or(u32::MAX)).collect();
        let first = |class: u32| self.classes[class as usize].groups[0] as usize;
        let rank = |class: u32| self.classes[class as usize].rank;
        let request = |class: u32| self.request(class);
        let mut orders: Vec<Vec<u32>> = Vec::new();
        let mut by = |key: &dyn Fn(u32, u32) -> std::cmp::Ordering| {
            let mut order = all.clone();
            order.sort_by(|a, b| rank(*a).cmp(&rank(*b)).then(key(*a, *b)).then(a.cmp(b)));
            if !orders.contains(&order) {
                orders.push(order);
            }
        };
        let worth = |class: u32| self.classes[class as usize].worth;
        by(&|a, b| worth(b).total_cmp(&worth(a)));
        by(&|a, b| first(a).cmp(&first(b)));
        if let Some(memory) = memory {
            by(&|a, b| request(b)[memory].cmp(&request(a)[memory]));
        }
        self.orders = orders;
    }
}

/// The mean of the duals when a little more of one resource or another is wanted. Where all offers have their resources in one proportion,
/// and demand has it too, the plain dual gives all worth to one resource, and a fill that wastes the other looks perfect.
fn steady(wanted: &[f64], offers: &Supplies, dims: usize) -> Vec<f64> {
    let asked: Vec<usize> = (0..dims).filter(|d| wanted[*d] > 0.0).collect();
    let mut mean = vec![0.0; wanted.len()];
    for more in &asked {
        let mut wanted = wanted.to_vec();
        wanted[*more] *= MORE;
        let duals = worth(&wanted, offers);
        mean.iter_mut().zip(duals).for_each(|(mean, dual)| *mean += dual / asked.len() as f64);
    }
    mean
}

/// How much more of a resource is tried, as a factor: as far as a plan of whole nodes is off the fluid one anyway.
const MORE: f64 = 1.06;

/// How many nodes rules on single nodes make necessary, and by group which share of one node a unit takes of the rule that needs most.
fn slots(groups: &[Group], remaining: &[u32], mine: &[usize]) -> (u32, Vec<f64>) {
    let mut nodes: FxHashMap<CounterId, f64> = FxHashMap::default();
    let cap = |group: &Group| {
        let caps = group.rules.iter().filter(|rule| rule.own).filter_map(|rule| match rule.asks {
            Asks::Spread { skew, .. } => Some((rule.counter, skew)),
            Asks::Apart => Some((rule.counter, 1)),
            Asks::Near => None,
        });
        caps.collect::<Vec<_>>()
    };
    for group in mine {
        for (counter, cap) in cap(&groups[*group]) {
            *nodes.entry(counter).or_default() += f64::from(remaining[*group]) / f64::from(cap.max(1));
        }
    }
    let most = nodes.iter().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)));
    let mut shares = vec![0.0; groups.len()];
    let Some((counter, needed)) = most else { return (0, shares) };
    for group in mine {
        let own = cap(&groups[*group]).into_iter().find(|(id, _)| id == counter);
        shares[*group] = own.map_or(0.0, |(_, cap)| 1.0 / f64::from(cap.max(1)));
    }
    (needed.ceil() as u32, shares)
}

/// The types of a pool that can hold a unit of some waiting group.
pub(super) fn useful(
    problem: &Problem<'_>,
    groups: &[Group],
    remaining: &[u32],
    mine: &[usize],
    pool: usize,
    banned: &FixedBitSet,
) -> FixedBitSet {
    let mut useful = FixedBitSet::with_capacity(problem.pools[pool].catalogue.types().len());
    for group in mine.iter().filter(|g| remaining[**g] > 0) {
        for way in groups[*group].ways[pool].iter().flatten() {
            useful.union_with(&way.types);
        }
    }
    useful.difference_with(banned);
    useful
}

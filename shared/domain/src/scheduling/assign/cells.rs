//! The combinations of domains in which pods of a kind may go.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::super::board::{KeyId, ValueId};
use super::super::problem::Way;
use super::super::queue::{ByPool, Pins, bears_all};
use super::super::terms::Filter;
use super::super::wants::{Asks, Wants};
use super::super::{Blocked, Misfit};
use super::Assignment;
use crate::catalogue::Price;
use crate::requirement::Requirements;

/// More combinations of domains than one kind of pods is looked at in; what lies beyond is left out.
const MAX_CELLS: usize = 1024;

/// A combination of domains in which pods of a kind may go.
#[derive(Clone)]
pub(super) struct Cell {
    pub(super) pins: Pins,
    pub(super) alternatives: Arc<[Requirements]>,
    /// Pools that may make its new nodes; all of them where none is named.
    pub(super) side: Option<Side>,
    /// By pool; looked up when first asked for.
    pub(super) ways: Option<ByPool>,
    pub(super) price: Option<Price>,
    /// Hosts with the right labels, taints and, at first, room; not listed where one cell is all there is.
    pub(super) hosts: Vec<usize>,
    /// Hosts before this one, of the list or of all, are full or unsuitable.
    pub(super) next: usize,
}

/// Pools that are alike to every spread that counts the pods of a kind. One with `nodeTaintsPolicy: Honor` does not count pods on nodes
/// whose taints its own pods do not tolerate, so which side of it a pod is on has to be settled before packing.
#[derive(Clone)]
pub(super) struct Side {
    /// By pool.
    pub(super) pools: Arc<[bool]>,
    /// One of them.
    pub(super) first: usize,
}

/// One step of a kind, made ready.
pub(super) struct Step {
    pub(super) cells: Vec<Cell>,
    /// The domains over which each rule on domains spreads; none for other rules.
    pub(super) universes: Vec<Arc<[ValueId]>>,
}

impl Cell {
    /// Keeps the ways of pools that may make its nodes.
    pub(super) fn on_its_side(&self, ways: ByPool) -> ByPool {
        let Some(side) = &self.side else { return ways };
        if side.pools.iter().zip(&*ways).all(|(on, ways)| *on || ways.is_err()) {
            return ways;
        }
        let other = || {
            let rule = "nodes that a spread does not count".to_owned();
            Misfit::Topology { rule, blocked: Blocked::Together }
        };
        let keep = |(on, ways): (&bool, &Result<Vec<Way>, Misfit>)| if *on { ways.clone() } else { Err(other()) };
        side.pools.iter().zip(&*ways).map(keep).collect()
    }
}

impl Assignment<'_> {
    /// Finds the cells of a step with their hosts.
    pub(super) fn ready(&mut self, kind: usize, step: usize) -> Step {
        let wants = self.wants(kind, step);
        let domains = &self.problem.domains;
        let mut keys: Vec<KeyId> = wants.domains.iter().filter_map(|rule| domains.key(rule.counter)).collect();
        let counted = self.kinds[kind].counting.iter().filter_map(|id| domains.key(*id));
        keys.extend(counted.filter(|key| self.targets.contains(key)));
        keys.sort_unstable();
        keys.dedup();
        let loose = self.loose_keys(kind, &keys);
        keys.extend(&loose);
        let near = wants.hosts.iter().any(|rule| rule.asks == Asks::Near);
        let sides = self.sides(kind, wants);
        let listed = near || !keys.is_empty() || sides.len() > 1;
        let of_key = |key: &KeyId| match loose.contains(key) {
            true => (*key, self.values(kind, wants, *key)),
            false => (*key, self.reachable(kind, wants, *key)),
        };
        let values: Vec<(KeyId, Arc<[ValueId]>)> = keys.iter().map(of_key).collect();
        let mut pins: Vec<Pins> = vec![Pins::new()];
        for (key, values) in &values {
            let longer = pins.iter().flat_map(|pins| {
                values.iter().map(|value| {
                    let mut pins = pins.clone();
                    pins.push((*key, *value));
                    pins
                })
            });
            pins = longer.take(MAX_CELLS).collect();
        }
        let cells = pins.into_iter().filter_map(|pins| self.cell(wants, pins));
        let mut cells: Vec<Cell> = match sides.as_slice() {
            [] => cells.collect(),
            sides => cells
                .flat_map(|cell| sides.iter().map(move |side| Cell { side: Some(side.clone()), ..cell.clone() }))
                .collect(),
        };
        let order = if listed { self.problem.host_order.as_slice() } else { &[] };
        // hosts are known for what they are: of cells that differ by their side, the first one lists them
        let known = cells.iter().enumerate().rev().filter(|_| !order.is_empty());
        let at: FxHashMap<Pins, usize> = known.map(|(at, cell)| (cell.pins.clone(), at)).collect();
        for host in order.iter().copied().filter(|host| self.suits(kind, step, *host)) {
            let value = |(key, values): &(KeyId, Arc<[ValueId]>)| {
                let value = match loose.contains(key) {
                    // a host without a label that is only counted by is as good as any
                    true => domains.host(*key, host).or_else(|| values.first().copied()),
                    false => self.problem.domain_or_none(*key, host),
                };
                Some((*key, value?))
            };
            let pins: Option<Pins> = values.iter().map(value).collect();
            if let Some(at) = pins.and_then(|pins| at.get(&pins)) {
                cells[*at].hosts.push(host);
            }
        }
        let universes = wants.domains.iter().map(|rule| self.universe(kind, wants, rule)).collect();
        Step { cells, universes }
    }

    /// The labels, but for `known` ones, by which a kind is counted by spreads that it does not go by itself, where every node that may be made
    /// for it has them.
    fn loose_keys(&self, kind: usize, known: &[KeyId]) -> SmallVec<[KeyId; 2]> {
        let problem = self.problem;
        let everywhere = |key: &KeyId| {
            let mut growing = (0..problem.pools.len()).filter(|pool| problem.grows(*pool));
            growing.all(|pool| !problem.pool_values[pool][*key].is_empty())
        };
        let counted = self.kinds[kind].counting.iter().filter(|id| self.careless.contains(id));
        let keys = counted.filter_map(|id| problem.domains.key(*id));
        let mut keys: SmallVec<[KeyId; 2]> = keys.filter(|key| !known.contains(key) && everywhere(key)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn cell(&mut self, wants: &Wants, pins: Pins) -> Option<Cell> {
        let alternatives = self.ways.pinned(&self.problem.domains, &wants.alternatives, &pins);
        let possible = !alternatives.is_empty();
        possible.then_some(Cell { pins, alternatives, side: None, ways: None, price: None, hosts: Vec::new(), next: 0 })
    }

    /// Parts the pools that a kind tolerates, and that can grow, by the spreads that would count it there; nothing where no spread looks
    /// at taints.
    fn sides(&self, kind: usize, wants: &Wants) -> Vec<Side> {
        let problem = self.problem;
        let filters = self.kinds[kind].counting.iter().filter_map(|id| problem.terms.filter(*id));
        let looking: Vec<&Filter> = filters.filter(|filter| filter.tolerations.is_some()).collect();
        if looking.is_empty() || problem.is_untainted() {
            return Vec::new();
        }
        let mut sides: BTreeMap<Vec<bool>, Vec<usize>> = BTreeMap::new();
        for (at, state) in problem.pools.iter().enumerate() {
            let taints = &state.pool.taints;
            if bears_all(&self.kinds[kind].shape, taints, wants.shy).is_ok() && problem.grows(at) {
                sides.entry(looking.iter().map(|filter| filter.admits_taints(taints)).collect()).or_default().push(at);
            }
        }
        let side = |members: Vec<usize>| Side {
            pools: (0..problem.pools.len()).map(|pool| members.contains(&pool)).collect(),
            first: members[0],
        };
        sides.into_values().map(side).collect()
    }

    /// Says whether a new node in a cell can hold a pod, by any pool.
    pub(super) fn can_be_made(&mut self, kind: usize, step: usize, cell: &mut Cell) -> bool {
        let problem = self.problem;
        if cell.ways.is_none() {
            let (shape, request) = (&self.kinds[kind].shape, &self.kinds[kind].request);
            let wants = self.wants(kind, step);
            let ways = self.ways.by_pool(problem, shape, request, wants, (&cell.pins, &cell.alternatives));
            let ways = cell.on_its_side(ways);
            // what cannot grow must not draw pods anywhere
            let growing = ways.iter().enumerate().filter(|(pool, _)| problem.grows(*pool));
            cell.price = growing.flat_map(|(_, ways)| ways.iter().flatten()).filter_map(|way| way.price).min();
            cell.ways = Some(ways);
        }
        cell.price.is_some()
    }

    /// How many of the pods by which a kind spreads are in a cell: the emptiest is best. Who does not spread goes where it is cheapest, so
    /// that domains are left for those that must keep away.
    pub(super) fn crowd(&self, wants: &Wants, cell: &Cell) -> u32 {
        let spreads = wants.domains.iter().filter(|rule| matches!(rule.asks, Asks::Spread { .. }));
        let values = spreads.filter_map(|rule| Some((rule.counter, self.pinned(rule.counter, &cell.pins)?.1)));
        values.map(|(counter, value)| self.board.in_domain(counter, value)).sum()
    }

    /// The greatest weight of the pools that may make nodes of a cell, where they are parted.
    pub(super) fn weight(&self, cell: &Cell) -> u32 {
        let Some(side) = &cell.side else { return 0 };
        let ways = cell.ways.as_deref().unwrap_or_default();
        let able = |ways: &Result<Vec<Way>, Misfit>| ways.iter().flatten().any(|way| way.price.is_some());
        let able = side.pools.iter().zip(ways).zip(&self.problem.pools).filter(|((on, ways), _)| **on && able(ways));
        able.map(|(_, state)| state.pool.weight).max().unwrap_or(0)
    }
}

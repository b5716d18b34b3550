//! What nodes that are planned for other pods bring into domains: the domains themselves, and pods of daemon sets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::InFlightNode;
use super::super::board::ValueId;
use super::super::growth::pool_values;
use super::super::problem::{HostLabels, PoolState, Problem, Way};
use super::super::queue::bears_all;
use super::super::terms::CounterId;
use super::super::wants::Asks;
use super::{Assignment, Elsewhere};
use crate::api::labels;
use crate::catalogue::{Market, RankedOffering, TypeSet};
use crate::requirement::Requirements;

/// The domains that pods of some kind reckon with, and whether volumes keep them in those.
type Reckoned<'s> = (bool, &'s Arc<[ValueId]>);

impl Assignment<'_> {
    /// Answers the domains of planned nodes that spreads reckon with by kube-scheduler's rules and did not in this round: those of nodes on
    /// which their own pods cannot be, for their taints or for where volumes are. A node that is open between domains, all of which would be
    /// new, stands for the first of them; to pods that volumes keep in some, it stands for each that would be new.
    pub(crate) fn seen_elsewhere(&self, nodes: &[InFlightNode]) -> Elsewhere {
        let problem = self.problem;
        let mut seen = Elsewhere::new();
        if problem.is_untainted() && !self.kinds.iter().any(|kind| kind.bound) {
            return seen;
        }
        for (pool, state) in problem.pools.iter().enumerate() {
            let mut shut_out: BTreeMap<CounterId, Vec<Reckoned<'_>>> = BTreeMap::new();
            for ((kind, step), ready) in &self.steps {
                let kind_of = &self.kinds[*kind];
                if !kind_of.bound && bears_all(&kind_of.shape, &state.pool.taints, false).is_ok() {
                    continue;
                }
                for (rule, universe) in self.wants(*kind, *step).domains.iter().zip(&ready.universes) {
                    let filter = problem.terms.filter(rule.counter);
                    let looks = filter.is_none_or(|filter| filter.admits_taints(&state.pool.taints));
                    if looks && matches!(rule.asks, Asks::Spread { .. }) {
                        let known = shut_out.entry(rule.counter).or_default();
                        if !known.contains(&(kind_of.bound, universe)) {
                            known.push((kind_of.bound, universe));
                        }
                    }
                }
            }
            for node in nodes.iter().filter(|node| !shut_out.is_empty() && node.pool == state.pool.name) {
                let labels = labels_of(state, node);
                for (counter, universes) in &shut_out {
                    let Some(key) = problem.domains.key(*counter) else { continue };
                    let names = possible_values(node, &problem.domains.keys[key]);
                    let ids = problem.pool_values[pool][key].iter();
                    let values: Vec<ValueId> =
                        ids.filter(|id| names.contains(problem.domains.name(**id))).copied().collect();
                    let filter = problem.terms.filter(*counter).and_then(|filter| filter.alternatives.as_ref());
                    let counts = || filter.is_none_or(|all| all.iter().any(|wanted| labels.may_satisfy(wanted)));
                    for (bound, universe) in universes.iter().filter(|_| counts()) {
                        let mut new = values.iter().filter(|value| !universe.contains(*value)).copied().peekable();
                        if *bound && new.peek().is_some() {
                            seen.entry(*counter).or_default().extend(new);
                        } else if let Some(first) = values.first().filter(|_| new.count() == values.len()) {
                            seen.entry(*counter).or_default().insert(*first);
                        }
                    }
                }
            }
        }
        seen
    }

    /// Answers where planned pods would meet a daemon that they must not be near, which a node planned for others brings into their domain:
    /// it runs there before they do. A node is looked at as it will most likely be launched.
    pub(crate) fn daemons_met(&self, nodes: &[InFlightNode]) -> BTreeSet<(CounterId, ValueId)> {
        let problem = self.problem;
        let mut shunned = BTreeSet::new();
        if problem.daemon_counters.is_empty() {
            return shunned;
        }
        for (group, (kind, step, cell)) in self.groups.iter().zip(&self.batches) {
            let wants = self.wants(*kind, *step);
            let apart = wants.domains.iter().filter(|rule| rule.asks == Asks::Apart);
            let from_daemons = apart.filter(|rule| problem.daemon_counters.contains(&rule.counter));
            let Some(ready) = self.steps.get(&(*kind, *step)).filter(|_| group.drawn > 0) else { continue };
            let pins = &ready.cells[*cell].pins;
            shunned.extend(from_daemons.filter_map(|rule| Some((rule.counter, self.pinned(rule.counter, pins)?.1))));
        }
        if shunned.is_empty() {
            return shunned;
        }
        let met: BTreeSet<_> = nodes.iter().flat_map(|node| daemons_of(problem, node)).collect();
        shunned.retain(|(counter, value)| met.contains(&(*counter, problem.domains.name(*value).clone())));
        shunned
    }
}

/// The daemons of a planned node as it will most likely be launched: the counters that count them, and the node's domains.
fn daemons_of(problem: &Problem<'_>, node: &InFlightNode) -> Vec<(CounterId, Arc<str>)> {
    let state = problem.pools.iter().find(|state| state.pool.name == node.pool);
    let (Some(state), Some(offering)) = (state, node.offerings.first()) else { return Vec::new() };
    let zone = state.catalogue.zones().iter().position(|zone| zone.name == offering.zone.name);
    let (Some(zone), Some(kind)) = (zone, state.catalogue.position(&offering.instance_type)) else { return Vec::new() };
    let market = Market { zones: 1 << zone, capacity_types: 1 << offering.capacity_type as u8 };
    let mut types = TypeSet::with_capacity(state.catalogue.types().len());
    types.insert(kind);
    let runs = |way: &Way| {
        way.types.contains(kind) && !way.market.and(market).is_empty() && way.open.overlaps(&node.requirements)
    };
    let domain = |counter: CounterId| {
        let key = &problem.domains.keys[problem.domains.key(counter)?];
        let only = node.requirements.single(key).cloned();
        only.or_else(|| pool_values(state, &types, market, key).into_iter().next())
    };
    let daemons = state.daemon_counters.iter().filter(|(.., way)| runs(way));
    daemons.filter_map(|(counter, ..)| Some((*counter, domain(*counter)?))).collect()
}

/// What is known of the labels of a planned node.
fn labels_of(state: &PoolState, node: &InFlightNode) -> HostLabels {
    let mut types = TypeSet::with_capacity(state.catalogue.types().len());
    types.extend(node.offerings.iter().filter_map(|offering| state.catalogue.position(&offering.instance_type)));
    let requirements = node.requirements.and(&Requirements::from_labels(&node.labels));
    HostLabels::Asked { requirements, catalogue: state.catalogue.clone(), types, market: state.market }
}

/// The values of a label that a planned node may have, by what EC2 launches.
fn possible_values(node: &InFlightNode, key: &str) -> BTreeSet<Arc<str>> {
    let of = |offering: &RankedOffering| match key {
        labels::ZONE => Some(offering.zone.name.clone()),
        labels::ZONE_ID => Some(offering.zone.id.clone()),
        labels::CAPACITY_TYPE => Some(offering.capacity_type.as_str().into()),
        _ => node.requirements.single(key).cloned(),
    };
    node.offerings.iter().filter_map(of).collect()
}

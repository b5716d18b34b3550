//! Where pods are counted: by host, and by the domains of labels that hosts share.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::amounts::{Amounts, copies, take};
use super::problem::{HostLabels, HostState, PoolState};
use super::queue::Kind;
use super::terms::{Counter, CounterId, Filter, Terms};
use super::wants::Rule;
use crate::api::labels;
use crate::requirement::{Requirement, Requirements};
use crate::taint::Taint;

/// Place of a label in [`Domains`].
pub(crate) type KeyId = usize;

/// Names a value of a label; small numbers, given in the order in which values are met.
pub(crate) type ValueId = u32;

/// Stands for the value of a label on nodes that do not have it: such nodes are in no domain, so that nobody is counted there.
pub(crate) const NO_VALUE: ValueId = 0;
/// Names that in words; no label has such a value.
const NO_VALUE_NAME: &str = "(no label)";

/// The labels whose values are domains (the host name apart), and the value that each host has.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    pub(crate) keys: Vec<Arc<str>>,
    /// Label of each counter; none where it counts by host.
    of_counter: Vec<Option<KeyId>>,
    values: Vec<Arc<str>>,
    ids: FxHashMap<Arc<str>, ValueId>,
    /// By label and host.
    of_host: Vec<Vec<Option<ValueId>>>,
    /// By label: some nodes may be without it.
    gaps: Vec<bool>,
    /// By label: new nodes of some pool may have it.
    made: Vec<bool>,
}

impl Domains {
    pub(crate) fn of(terms: &Terms<'_>, hosts: &[HostState]) -> Self {
        let mut domains = Domains { values: vec![NO_VALUE_NAME.into()], ..Domains::default() };
        let shared = terms.counters.iter().enumerate().filter(|(id, _)| !terms.is_by_host(*id));
        domains.keys = shared.map(|(_, counter)| counter.key.clone()).collect();
        domains.keys.sort_unstable();
        domains.keys.dedup();
        let place = |counter: &Counter| domains.keys.binary_search(&counter.key).ok();
        domains.of_counter = terms.counters.iter().map(place).collect();
        for key in 0..domains.keys.len() {
            let name = domains.keys[key].clone();
            let values = hosts.iter().map(|host| value_of(host, &name).map(|value| domains.id(&value))).collect();
            domains.of_host.push(values);
        }
        domains
    }

    /// Notes which labels nodes may be without, and which of them new nodes may have.
    pub(crate) fn find_gaps(&mut self, hosts: &[HostState], pools: &[PoolState]) {
        let keys = self.keys.iter().zip(&self.of_host);
        let gap = |(key, of_host): (&Arc<str>, &Vec<Option<ValueId>>)| {
            let mut nowhere = hosts.iter().zip(of_host).filter(|(_, value)| value.is_none());
            pools.iter().any(|state| state.may_lack(key)) || nowhere.any(|(host, _)| host.lacks(key))
        };
        self.gaps = keys.map(gap).collect();
        self.made = self.keys.iter().map(|key| !pools.iter().all(|state| state.is_silent_on(key))).collect();
    }

    /// Says whether nodes may be without a label.
    pub(crate) fn has_gaps(&self, key: KeyId) -> bool {
        self.gaps[key]
    }

    /// Answers what is asked of a node that is to be in a domain, or in none; nothing where no new node has the label anyway.
    pub(crate) fn pin(&self, key: KeyId, value: ValueId) -> Option<Requirement> {
        match value {
            NO_VALUE => self.made[key].then(|| Requirement::absent(&self.keys[key])),
            value => Some(Requirement::only(&self.keys[key], [self.name(value).clone()])),
        }
    }

    pub(crate) fn id(&mut self, value: &str) -> ValueId {
        if let Some(id) = self.ids.get(value) {
            return *id;
        }
        let value: Arc<str> = value.into();
        let id = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.values.push(value.clone());
        self.ids.insert(value, id);
        id
    }

    pub(crate) fn name(&self, value: ValueId) -> &Arc<str> {
        &self.values[value as usize]
    }

    /// Answers the label of a counter; none where it counts by host.
    pub(crate) fn key(&self, counter: CounterId) -> Option<KeyId> {
        self.of_counter[counter]
    }

    pub(crate) fn host(&self, key: KeyId, host: usize) -> Option<ValueId> {
        self.of_host[key][host]
    }
}

/// The value that a host has, or will surely have.
fn value_of(host: &HostState, key: &str) -> Option<Arc<str>> {
    match &host.labels {
        HostLabels::Known(labels) => labels.get(key).map(|value| value.as_str().into()),
        HostLabels::Asked { requirements, catalogue, market, .. } => match key {
            labels::ZONE => {
                let mut zones = catalogue.zones().iter().enumerate().filter(|(at, _)| market.zones >> at & 1 == 1);
                let first = zones.next()?;
                zones.next().is_none().then(|| first.1.name.clone())
            }
            _ => requirements.single(key).cloned(),
        },
    }
}

/// What is known of nodes that will be made for some pods.
pub(crate) struct NewNodes<'a> {
    pub(crate) pins: &'a [(KeyId, ValueId)],
    pub(crate) alternatives: &'a [Requirements],
    /// As far as a spread looks at them.
    pub(crate) taints: &'a [Taint],
    /// Counters that look at such a node or not, by what comes of it.
    pub(crate) doubtful: &'a [CounterId],
}

/// How many pods are counted in a domain.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// At most, whatever comes of nodes that are to be made.
    most: u32,
    /// At least.
    surely: u32,
}

/// Counts of pods and room on hosts while pods are placed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board {
    pub(crate) free: Vec<Amounts>,
    by_host: Vec<SmallVec<[(CounterId, u32); 4]>>,
    by_value: Vec<FxHashMap<ValueId, Count>>,
    total: Vec<u32>,
}

impl Board {
    pub(crate) fn new(terms: &Terms<'_>, hosts: &[HostState]) -> Self {
        Board {
            free: hosts.iter().map(|state| state.free.clone()).collect(),
            by_host: vec![SmallVec::new(); hosts.len()],
            by_value: vec![FxHashMap::default(); terms.counters.len()],
            total: vec![0; terms.counters.len()],
        }
    }

    /// Answers how many pods are counted on a host.
    pub(crate) fn on_host(&self, counter: CounterId, host: usize) -> u32 {
        self.by_host[host].iter().find(|(id, _)| *id == counter).map_or(0, |(_, count)| *count)
    }

    /// Answers how many pods are counted in a domain at most, whatever comes of nodes that are to be made.
    pub(crate) fn in_domain(&self, counter: CounterId, value: ValueId) -> u32 {
        self.by_value[counter].get(&value).map_or(0, |count| count.most)
    }

    /// Answers how many pods are counted in a domain at least.
    pub(crate) fn surely_in_domain(&self, counter: CounterId, value: ValueId) -> u32 {
        self.by_value[counter].get(&value).map_or(0, |count| count.surely)
    }

    /// Answers how many pods are counted anywhere.
    pub(crate) fn anywhere(&self, counter: CounterId) -> u32 {
        self.total[counter]
    }

    /// Counts pods on a host; fewer when `count` is negative.
    pub(crate) fn count_on(
        &mut self,
        terms: &Terms<'_>,
        domains: &Domains,
        at: (usize, &HostState),
        counting: &[CounterId],
        count: i64,
    ) {
        let (host, state) = at;
        for id in counting {
            match domains.key(*id) {
                None => {
                    match self.by_host[host].iter_mut().find(|(other, _)| other == id) {
                        Some((_, known)) => *known = add(*known, count),
                        None => self.by_host[host].push((*id, add(0, count))),
                    }
                    self.total[*id] = add(self.total[*id], count);
                }
                Some(key) => {
                    let Some(value) = domains.host(key, host) else { continue };
                    let filter = terms.filter(*id);
                    if filter.is_none_or(|filter| filter_admits_host(filter, state)) {
                        let known = matches!(state.labels, HostLabels::Known(_));
                        let surely = known || filter.is_none_or(|filter| filter.is_sure_of(&state.labels));
                        self.count_in(*id, value, count, surely);
                    }
                }
            }
        }
    }

    /// Counts pods that will be on new nodes.
    pub(crate) fn count_new(
        &mut self,
        terms: &Terms<'_>,
        domains: &Domains,
        new: &NewNodes<'_>,
        counting: &[CounterId],
        count: i64,
    ) {
        for id in counting {
            match domains.key(*id) {
                None => self.total[*id] = add(self.total[*id], count),
                Some(key) => {
                    let pin = new.pins.iter().find(|(pinned, value)| *pinned == key && *value != NO_VALUE);
                    let Some((_, value)) = pin else { continue };
                    if terms.filter(*id).is_none_or(|filter| filter_admits_new(filter, new)) {
                        self.count_in(*id, *value, count, !new.doubtful.contains(id));
                    }
                }
            }
        }
    }

    /// Counts a pod of a daemon set that a planned node will bring into a domain.
    pub(crate) fn expect_in(&mut self, counter: CounterId, value: ValueId) {
        self.count_in(counter, value, 1, true);
    }

    fn count_in(&mut self, id: CounterId, value: ValueId, count: i64, surely: bool) {
        let known = self.by_value[id].entry(value).or_default();
        known.most = add(known.most, count);
        if surely {
            known.surely = add(known.surely, count);
        }
        self.total[id] = add(self.total[id], count);
    }

    /// Answers how many pods of a kind a host can take, by resources and by rules on the node.
    pub(crate) fn room(&self, host: usize, kind: &Kind, rules: &[Rule]) -> u32 {
        let mut room = copies(&self.free[host], &kind.request);
        for rule in rules {
            if room == 0 {
                return 0;
            }
            room = room.min(rule.room(self.on_host(rule.counter, host)));
        }
        room
    }

    /// Puts pods of a kind on a host.
    pub(crate) fn put(
        &mut self,
        terms: &Terms<'_>,
        domains: &Domains,
        at: (usize, &HostState),
        kind: &Kind,
        count: u32,
    ) {
        take(&mut self.free[at.0], &kind.request, i64::from(count));
        self.count_on(terms, domains, at, &kind.counting, i64::from(count));
    }
}

fn add(count: u32, more: i64) -> u32 {
    u32::try_from(i64::from(count).saturating_add(more).max(0)).unwrap_or(u32::MAX)
}

impl Filter {
    /// Says whether a node with these labels counts for sure, as far as labels matter.
    pub(crate) fn is_sure_of(&self, labels: &HostLabels) -> bool {
        self.alternatives.as_ref().is_none_or(|all| all.iter().any(|wanted| labels.satisfies(wanted)))
    }
}

/// Says whether a spread may look at a host.
pub(crate) fn filter_admits_host(filter: &Filter, host: &HostState) -> bool {
    let labels =
        filter.alternatives.as_ref().is_none_or(|all| all.iter().any(|wanted| host.labels.may_satisfy(wanted)));
    labels && filter.admits_taints(&host.taints)
}

fn filter_admits_new(filter: &Filter, new: &NewNodes<'_>) -> bool {
    let meets = |a: &Requirements| new.alternatives.iter().any(|b| a.overlaps(b));
    filter.alternatives.as_ref().is_none_or(|all| all.iter().any(meets)) && filter.admits_taints(new.taints)
}

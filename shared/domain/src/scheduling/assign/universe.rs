//! The domains of a label: those that a kind may use, and those over which its spreads are reckoned.

use std::sync::Arc;

use super::super::board::{KeyId, NO_VALUE, ValueId, filter_admits_host};
use super::super::growth::pool_values;
use super::super::problem::{HostState, Problem};
use super::super::queue::{Kind, bears_all, is_plain};
use super::super::wants::{Asks, Rule, Wants};
use super::Assignment;
use crate::catalogue::TypeSet;
use crate::requirement::{Requirement, Requirements};

impl Assignment<'_> {
    /// The domains of a label that a kind may use: those of pools that it tolerates, and those of hosts.
    pub(super) fn values(&mut self, kind: usize, wants: &Wants, key: KeyId) -> Arc<[ValueId]> {
        if is_plain(&wants.alternatives) && self.problem.is_untainted() {
            return self.all_values(kind, key);
        }
        let may_use = |host: &HostState| wants.alternatives.iter().any(|wanted| host.labels.may_satisfy(wanted));
        let asked = Some(&*wants.alternatives);
        self.domains((kind, wants.shy), key, (asked, asked), may_use).into()
    }

    /// The domains of a label that a kind may use, with [`NO_VALUE`] where nodes may be without the label and the kind does not need it: who
    /// spreads or must be near others needs a domain, who keeps apart or is only counted does not.
    pub(super) fn reachable(&mut self, kind: usize, wants: &Wants, key: KeyId) -> Arc<[ValueId]> {
        let values = self.values(kind, wants, key);
        let domains = &self.problem.domains;
        let needs = |rule: &Rule| rule.asks != Asks::Apart && domains.key(rule.counter) == Some(key);
        let name = &*domains.keys[key];
        let may_lack = |wanted: &Requirements| wanted.get(name).is_none_or(Requirement::admits_absence);
        if !domains.has_gaps(key) || wants.domains.iter().any(needs) || !wants.alternatives.iter().any(may_lack) {
            return values;
        }
        values.iter().copied().chain([NO_VALUE]).collect()
    }

    /// The domains of a label where neither labels nor taints keep any pod out of one.
    fn all_values(&mut self, kind: usize, key: KeyId) -> Arc<[ValueId]> {
        if let Some(known) = self.all_values.get(&key) {
            return known.clone();
        }
        let values: Arc<[ValueId]> = self.domains((kind, false), key, (None, None), |_| true).into();
        self.all_values.insert(key, values.clone());
        values
    }

    /// The domains over which a rule spreads, as kube-scheduler sees them: the pod's own selectors narrow them; its volumes, and taints that
    /// only discourage, do not.
    pub(super) fn universe(&mut self, kind: usize, wants: &Wants, rule: &Rule) -> Arc<[ValueId]> {
        let (Asks::Spread { .. }, Some(key)) = (rule.asks, self.problem.domains.key(rule.counter)) else {
            return Arc::from([]);
        };
        let filter = self.problem.terms.filter(rule.counter);
        if filter.is_none() && self.problem.is_untainted() && !self.kinds[kind].bound {
            return self.all_values(kind, key);
        }
        let alternatives = filter.and_then(|filter| filter.alternatives.as_deref());
        // nodes come up where its volumes are, and where those of others do
        let made = if self.kinds[kind].bound { Some(&*wants.alternatives) } else { alternatives };
        let mut values = self.domains((kind, false), key, (made, alternatives), |host| {
            filter.is_none_or(|filter| filter_admits_host(filter, host))
        });
        let more = self.elsewhere.get(&rule.counter).into_iter().flatten().copied();
        values.extend(more.filter(|value| !values.contains(value)).collect::<Vec<_>>());
        values.into()
    }

    fn admits(&self, key: KeyId, alternatives: Option<&[Requirements]>, value: ValueId) -> bool {
        let (name, value) = (&self.problem.domains.keys[key], self.problem.domains.name(value));
        alternatives.is_none_or(|all| all.iter().any(|wanted| wanted.admits(name, value)))
    }

    /// The values of a label that new nodes of a pool can have if they are such as is wanted.
    fn values_if(&mut self, pool: usize, key: KeyId, wanted: &Requirements) -> Arc<[ValueId]> {
        if let Some(known) = self.values_if.get(&(pool, key)).and_then(|known| known.get(wanted)) {
            return known.clone();
        }
        let problem = self.problem;
        let state = &problem.pools[pool];
        let names = match self.ways.labelled(problem, pool, wanted) {
            Ok(way) => {
                let mut types = TypeSet::clone(&way.types);
                types.intersect_with(&problem.addable[pool]);
                pool_values(state, &types, way.market, &problem.domains.keys[key])
            }
            Err(_) => Vec::new(),
        };
        let all = problem.pool_values[pool][key].iter().copied();
        let values: Arc<[ValueId]> = all.filter(|id| names.contains(problem.domains.name(*id))).collect();
        self.values_if.entry((pool, key)).or_default().insert(wanted.clone(), values.clone());
        values
    }

    /// The values of a label on new nodes, such as is wanted, of pools that a kind tolerates, and on some hosts.
    fn domains(
        &mut self,
        (kind, shy): (usize, bool),
        key: KeyId,
        (made, alternatives): (Option<&[Requirements]>, Option<&[Requirements]>),
        counts: impl Fn(&HostState) -> bool,
    ) -> Vec<ValueId> {
        let problem = self.problem;
        let mut values = Vec::new();
        for (pool, state) in problem.pools.iter().enumerate() {
            if bears_all(&self.kinds[kind].shape, &state.pool.taints, shy).is_err() {
                continue;
            }
            match made.filter(|all| !is_plain(all)) {
                None => values.extend_from_slice(&problem.pool_values[pool][key]),
                Some(all) => all.iter().for_each(|wanted| values.extend_from_slice(&self.values_if(pool, key, wanted))),
            }
        }
        values.retain(|value| self.admits(key, made, *value));
        for (at, host) in problem.hosts.iter().enumerate() {
            let Some(value) = problem.domains.host(key, at) else { continue };
            if !values.contains(&value) && counts(host) {
                values.push(value);
            }
        }
        values.retain(|value| self.admits(key, alternatives, *value));
        values.sort_unstable_by_key(|value| problem.domains.name(*value));
        values.dedup();
        values
    }
}

/// Labels whose domain must be known for every pod that is counted, since others must be near such pods or apart from them.
pub(super) fn targets(problem: &Problem<'_>, kinds: &[Kind]) -> Vec<KeyId> {
    let rules = kinds.iter().flat_map(|kind| kind.steps.first()).flat_map(|wants| &wants.domains);
    let firm = rules.filter(|rule| matches!(rule.asks, Asks::Near | Asks::Apart));
    let mut keys: Vec<KeyId> = firm.filter_map(|rule| problem.domains.key(rule.counter)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

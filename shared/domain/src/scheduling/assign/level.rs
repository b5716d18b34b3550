//! Pods that spread over hosts where no host is to be made that the spread looks at.

use super::super::board::KeyId;
use super::super::problem::HostState;
use super::super::queue::{Pins, bears_all};
use super::super::terms::{Terms, labels_looked_at};
use super::super::wants::{Asks, Rule};
use super::{Assignment, least};
use crate::api::labels;
use crate::cluster::Shape;
use crate::requirement::Requirements;

impl Assignment<'_> {
    /// Pods that spread over hosts, where none is to be made that they look at: every host may hold as many more as the emptiest one has.
    /// Elsewhere an empty host can always be made, so that the least is zero.
    pub(super) fn level(&mut self, kind: usize) {
        let spreads = |rule: &Rule| matches!(rule.asks, Asks::Spread { .. });
        for step in 0..self.kinds[kind].steps.len() {
            let wants = self.wants(kind, step);
            if wants.alternatives.is_empty() || !wants.hosts.iter().any(spreads) {
                continue;
            }
            let ready = self.steps.remove(&(kind, step)).unwrap_or_else(|| self.ready(kind, step));
            let domains = self.hosts_that_count(kind);
            while self.left(kind) > 0 {
                let raised = |rule: &Rule| match rule.asks {
                    Asks::Spread { skew, min_domains } => {
                        let counts = domains.iter().map(|host| self.board.on_host(rule.counter, *host));
                        let least = least(counts, min_domains);
                        Rule { asks: Asks::Spread { skew: skew.saturating_add(least), min_domains }, ..*rule }
                    }
                    _ => *rule,
                };
                let rules: Vec<Rule> = wants.hosts.iter().map(raised).collect();
                let room = |host: usize| self.board.room(host, &self.kinds[kind], &rules);
                let valid = |host: usize| {
                    let keys = wants.domains.iter().filter_map(|rule| self.problem.domains.key(rule.counter));
                    let value = |key: KeyId| self.problem.domain_or_none(key, host).map(|value| (key, value));
                    self.valid(wants, &ready.universes, &keys.filter_map(value).collect::<Pins>())
                };
                let near = || wants.hosts.iter().filter(|rule| rule.asks == Asks::Near);
                let first = near().all(|rule| rule.own && self.board.anywhere(rule.counter) == 0);
                let meets = |host: usize| first || near().all(|rule| self.board.on_host(rule.counter, host) > 0);
                let takes = |host: usize| self.suits(kind, step, host) && room(host) > 0 && meets(host) && valid(host);
                match self.problem.host_order.iter().copied().find(|host| takes(*host)) {
                    Some(host) => self.put(kind, host, 1),
                    None => break,
                }
            }
            self.steps.insert((kind, step), ready);
        }
    }

    /// Says whether spreads over hosts of a kind may look at new nodes of these pools.
    pub(super) fn counts_new_hosts(&mut self, kind: usize, pools: &[usize]) -> bool {
        let (problem, shape) = (self.problem, &self.kinds[kind].shape);
        let (labelled, taints) = host_filters(&problem.terms, shape);
        pools.iter().any(|pool| {
            let mut may_satisfy = |wanted: &Requirements| self.ways.labelled(problem, *pool, wanted).is_ok();
            labelled.as_ref().is_none_or(|all| all.iter().any(&mut may_satisfy))
                && (!taints || bears_all(shape, &problem.pools[*pool].pool.taints, false).is_ok())
        })
    }

    /// The hosts that spreads over hosts of a kind look at, whatever it prefers and wherever its volumes are; rather too many than too few.
    fn hosts_that_count(&self, kind: usize) -> Vec<usize> {
        let shape = &self.kinds[kind].shape;
        let (labelled, taints) = host_filters(&self.problem.terms, shape);
        let counts = |state: &HostState| {
            labelled.as_ref().is_none_or(|all| all.iter().any(|wanted| state.labels.may_satisfy(wanted)))
                && (!taints || bears_all(shape, &state.taints, false).is_ok())
        };
        (0..self.problem.hosts.len()).filter(|host| counts(&self.problem.hosts[*host])).collect()
    }
}

/// What all spreads over hosts of a shape ask of the labels of hosts at which they look, if anything, and whether they look only at hosts whose
/// taints it bears.
fn host_filters(terms: &Terms<'_>, shape: &Shape) -> (Option<Vec<Requirements>>, bool) {
    let over_hosts = || shape.spread.iter().filter(|spread| &*spread.key == labels::HOSTNAME);
    // what must hold looks at fewer hosts than what is wished for
    let firm = over_hosts().next().filter(|_| over_hosts().all(|spread| spread.required));
    let beside = firm.map(|spread| terms.labels_beside(shape, spread)).unwrap_or_default();
    let honors_affinity = over_hosts().all(|spread| spread.honors_affinity);
    (labels_looked_at(shape, honors_affinity, &beside), over_hosts().all(|spread| spread.honors_taints))
}

//! Which rule of the topology keeps pods out of every domain, told of the counts as they are in the end.

use std::sync::Arc;

use super::super::blocked::{Blocked, Domain};
use super::super::board::ValueId;
use super::super::sold::any_of;
use super::super::wants::{Asks, Rule};
use super::super::{Misfit, Problem};
use super::{Assignment, least};

impl Assignment<'_> {
    /// Answers the rule that keeps a kind out on its last step of relaxation, and what it lacks.
    pub(super) fn obstacle(&mut self, kind: usize) -> Misfit {
        let problem = self.problem;
        let wants = self.wants(kind, self.kinds[kind].steps.len() - 1);
        let told = |rule: &Rule, blocked| Misfit::Topology { rule: problem.terms.describe(rule), blocked };
        let mut open: Vec<(&Rule, Vec<Arc<str>>)> = Vec::new();
        for rule in &wants.domains {
            match self.domains_left(kind, rule) {
                Ok(domains) => open.push((rule, domains)),
                Err(blocked) => return told(rule, blocked),
            }
        }
        let near = wants.hosts.iter().find(|rule| rule.asks == Asks::Near);
        if let Some(rule) = near {
            let alone = !rule.own && self.board.anywhere(rule.counter) == 0;
            return told(rule, if alone { none_there(problem, rule) } else { Blocked::Full });
        }
        let [(first, domains), others @ ..] = open.as_slice() else {
            let rule = "pods that must not meet it in the same domain".to_owned();
            return Misfit::Topology { rule, blocked: Blocked::Together };
        };
        if others.is_empty() {
            return told(first, Blocked::NoNode { domains: domains.clone() });
        }
        let of_one_label =
            others.iter().all(|(rule, _)| problem.domains.key(rule.counter) == problem.domains.key(first.counter));
        let common: Vec<Arc<str>> =
            domains.iter().filter(|name| others.iter().all(|(_, left)| left.contains(*name))).cloned().collect();
        let leaves = |(rule, left): &(&Rule, Vec<Arc<str>>)| {
            format!("{} (leaves {})", problem.terms.describe(rule), any_of(left))
        };
        let rule = open.iter().map(leaves).collect::<Vec<_>>().join(" and ");
        let blocked = match of_one_label && !common.is_empty() {
            true => Blocked::NoNode { domains: common },
            false => Blocked::Together,
        };
        Misfit::Topology { rule, blocked }
    }

    /// The domains that a rule leaves a kind; else what it lacks.
    fn domains_left(&mut self, kind: usize, rule: &Rule) -> Result<Vec<Arc<str>>, Blocked> {
        let problem = self.problem;
        let Some(key) = problem.domains.key(rule.counter) else { return Ok(Vec::new()) };
        let wants = self.wants(kind, self.kinds[kind].steps.len() - 1);
        let possible = self.reachable(kind, wants, key);
        let universe = self.universe(kind, wants, rule);
        if possible.is_empty() {
            return Err(Blocked::NoDomain { key: problem.domains.keys[key].clone() });
        }
        if rule.asks == Asks::Near && !rule.own && self.board.anywhere(rule.counter) == 0 {
            return Err(none_there(problem, rule));
        }
        let valid = |value: &&ValueId| self.holds(rule, &universe, **value);
        let left: Vec<Arc<str>> = possible.iter().filter(valid).map(|id| problem.domains.name(*id).clone()).collect();
        if !left.is_empty() {
            return Ok(left);
        }
        Err(match rule.asks {
            Asks::Near => {
                let there = problem.pool_values.iter().flat_map(|values| values[key].iter().copied());
                let hosts = (0..problem.hosts.len()).filter_map(|host| problem.domains.host(key, host));
                let known: Vec<ValueId> = there.chain(hosts).collect();
                let domains = self.told(rule, known, &possible);
                Blocked::Elsewhere { domains: domains.into_iter().filter(|domain| domain.pods > 0).collect() }
            }
            Asks::Apart => Blocked::Everywhere { domains: self.told(rule, possible.to_vec(), &possible) },
            Asks::Spread { skew, min_domains } => {
                let counts = universe.iter().map(|value| self.board.surely_in_domain(rule.counter, *value));
                let least = least(counts, min_domains);
                let min_domains = (universe.len() < min_domains as usize).then_some(min_domains);
                let domains = self.told(rule, universe.iter().chain(possible.iter()).copied().collect(), &possible);
                Blocked::Uneven { domains, most: least.saturating_add(skew), least, min_domains }
            }
        })
    }

    /// Domains with their counts, by name.
    fn told(&self, rule: &Rule, mut values: Vec<ValueId>, possible: &[ValueId]) -> Vec<Domain> {
        let name = |value: &ValueId| self.problem.domains.name(*value).clone();
        values.sort_by_key(name);
        values.dedup();
        let domain = |value: ValueId| Domain {
            name: name(&value),
            pods: self.board.in_domain(rule.counter, value),
            possible: possible.contains(&value),
        };
        values.into_iter().map(domain).collect()
    }
}

/// Why pods that another must be near are nowhere.
fn none_there(problem: &Problem<'_>, rule: &Rule) -> Blocked {
    let pods = problem.terms.pods_of(rule);
    let exist = problem
        .snapshot
        .pods
        .iter()
        .any(|pod| problem.terms.selecting(problem.terms.class_of(pod)).contains(&rule.counter));
    if exist { Blocked::NoneRuns { pods } } else { Blocked::NoPod { pods } }
}

//! What a kind of pods wants, from all its wishes down to what it must have, one wish less a step.

use std::sync::Arc;

use smallvec::SmallVec;

use super::terms::{ClassId, Counted, CounterId, Terms, port_counter};
use crate::cluster::{PodTerm, Preference, PreferencePolicy, Shape, Spread};
use crate::requirement::Requirements;

/// What pods want at one step of relaxation.
#[derive(Clone, Debug)]
pub(crate) struct Wants {
    /// Labels of the node: any of these.
    pub(crate) alternatives: Arc<[Requirements]>,
    /// Rules on domains of a label that many nodes share.
    pub(crate) domains: Vec<Rule>,
    /// Rules on single nodes.
    pub(crate) hosts: Arc<[Rule]>,
    /// `PreferNoSchedule` taints keep it away.
    pub(crate) shy: bool,
}

impl Wants {
    /// Answers the rules that keep pods apart.
    pub(crate) fn apart(&self) -> impl Iterator<Item = &Rule> {
        self.domains.iter().chain(self.hosts.iter()).filter(|rule| rule.asks == Asks::Apart)
    }
}

/// Something asked of a count of pods in the domain where a pod is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) counter: CounterId,
    /// Pods of the kind are counted by the counter too.
    pub(crate) own: bool,
    pub(crate) asks: Asks,
}

/// What is asked of the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    /// With the pod, no more than so many above the least.
    Spread { skew: u32, min_domains: u32 },
    /// Some, unless the pod is the first of its own.
    Near,
    /// None.
    Apart,
}

impl Rule {
    /// Answers how many more pods of the kind a node can take where so many are counted; for rules on nodes.
    pub(crate) fn room(&self, count: u32) -> u32 {
        match (self.asks, self.own) {
            // an empty node can always be made, so that the least is zero
            (Asks::Spread { skew, .. }, true) => skew.saturating_sub(count),
            (Asks::Spread { skew, .. }, false) if count <= skew => u32::MAX,
            (Asks::Apart, true) => 1_u32.saturating_sub(count),
            (Asks::Apart, false) if count == 0 => u32::MAX,
            (Asks::Near, _) => u32::MAX,
            _ => 0,
        }
    }
}

/// Reads the steps of relaxation in Karpenter's order: preferred affinity, preferred anti-affinity, preferred node affinity, each the
/// heaviest first, then `ScheduleAnyway` spreads, then `PreferNoSchedule` taints.
pub(crate) fn steps(
    terms: &Terms<'_>,
    shape: &Shape,
    namespace: &str,
    class: ClassId,
    policy: PreferencePolicy,
    shyness_matters: bool,
) -> Vec<Wants> {
    let reader = Reader { terms, shape, namespace, selecting: terms.selecting(class) };
    let anyway: Vec<&Spread> = shape.spread.iter().filter(|spread| !spread.required).collect();
    let mut wish = Wishes {
        near: &shape.preferred_affinity,
        apart: &shape.preferred_anti_affinity,
        nodes: &shape.preferred,
        spreads: &anyway,
        shy: shyness_matters,
    };
    if policy == PreferencePolicy::Ignore {
        // Karpenter's policy is about affinity and spreads: taints that discourage are looked at under either
        wish = Wishes { near: &[], apart: &[], nodes: &[], spreads: &[], ..wish };
    }
    let mut steps = vec![reader.wants(&wish)];
    while wish.relax() {
        steps.push(reader.wants(&wish));
    }
    steps
}

struct Wishes<'s> {
    near: &'s [Preference<PodTerm>],
    apart: &'s [Preference<PodTerm>],
    nodes: &'s [Preference<Requirements>],
    spreads: &'s [&'s Spread],
    shy: bool,
}

impl Wishes<'_> {
    fn relax(&mut self) -> bool {
        if !self.near.is_empty() {
            self.near = &self.near[1..];
        } else if !self.apart.is_empty() {
            self.apart = &self.apart[1..];
        } else if !self.nodes.is_empty() {
            self.nodes = &self.nodes[1..];
        } else if !self.spreads.is_empty() {
            self.spreads = &self.spreads[1..];
        } else if self.shy {
            self.shy = false;
        } else {
            return false;
        }
        true
    }
}

struct Reader<'s> {
    terms: &'s Terms<'s>,
    shape: &'s Shape,
    namespace: &'s str,
    selecting: &'s [CounterId],
}

impl Reader<'_> {
    fn wants(&self, wish: &Wishes<'_>) -> Wants {
        let shape = self.shape;
        let mut rules: SmallVec<[Rule; 8]> = SmallVec::new();
        for spread in shape.spread.iter().filter(|s| s.required).chain(wish.spreads.iter().copied()) {
            let asks = Asks::Spread { skew: spread.max_skew, min_domains: spread.min_domains.unwrap_or(0) };
            rules.extend(self.rule(self.terms.spread(shape, spread, self.namespace), asks));
        }
        for term in &shape.affinity {
            rules.extend(self.rule(self.terms.meant_by_all(shape, term), Asks::Near));
        }
        for preference in wish.near {
            rules.extend(self.rule(self.terms.meant(&preference.term), Asks::Near));
        }
        for term in shape.anti_affinity.iter().chain(wish.apart.iter().map(|p| &p.term)) {
            rules.extend(self.rule(self.terms.meant(term), Asks::Apart));
        }
        rules.extend(self.inverse());
        rules.extend(self.ports());
        rules.dedup();
        let (hosts, domains): (Vec<Rule>, _) = rules.into_iter().partition(|rule| self.terms.is_by_host(rule.counter));
        let alternatives = match wish.nodes.first() {
            None => shape.alternatives.as_slice().into(),
            Some(preference) => {
                let both = shape.alternatives.iter().filter(|a| a.overlaps(&preference.term));
                both.map(|a| a.and(&preference.term)).collect()
            }
        };
        Wants { alternatives, domains, hosts: hosts.into(), shy: wish.shy }
    }

    fn rule(&self, counter: Option<CounterId>, asks: Asks) -> Option<Rule> {
        let counter = counter?;
        let own = self.selecting.binary_search(&counter).is_ok();
        Some(Rule { counter, own, asks })
    }

    /// Pods that must not be near pods of this kind keep it away as well.
    fn inverse(&self) -> SmallVec<[Rule; 4]> {
        // those of the same kind are kept apart by the term itself
        let own: SmallVec<[CounterId; 4]> =
            self.shape.anti_affinity.iter().filter_map(|term| self.terms.owning(term)).collect();
        let shunning = self.selecting.iter().filter_map(|id| self.terms.shunning(*id));
        shunning.map(|counter| Rule { counter, own: own.contains(&counter), asks: Asks::Apart }).collect()
    }

    /// A port can be taken once; ports that overlap keep each other away.
    fn ports(&self) -> SmallVec<[Rule; 4]> {
        let mut found = SmallVec::new();
        for port in &self.shape.ports {
            let mine = self.terms.find(&port_counter(port));
            for (id, counter) in self.terms.counters.iter().enumerate() {
                if matches!(&counter.of, Counted::Port(other) if other.conflicts(port)) {
                    found.push(Rule { counter: id, own: mine == Some(id), asks: Asks::Apart });
                }
            }
        }
        found
    }
}

//! The search for a set of nodes that it is worth while to do without: it grows from what saves most per eviction.

use super::candidate::{Entry, Field};
use super::consolidation::{Move, cheaper, vacate};
use super::purse::Purse;
use super::{Cause, KeepReason, Method};
use crate::catalogue::Price;

/// Nodes in one command: all their pods find new places at about the same time (Karpenter: 100).
const MOST_NODES: usize = 100;
/// Hosts and pods that one plan looks at in all its trials. A bound on work and not on time, so that the answer does not depend on the machine.
const WORK: usize = 600_000;
/// Members of a set that are checked once more after it has grown.
const CHECKED_AGAIN: usize = 8;

/// A set of candidates, by place in [`Field::entries`], and what it takes to do without them.
pub(super) struct Found {
    pub(super) members: Vec<usize>,
    pub(super) change: Move,
}

/// What the search has learnt.
pub(super) struct Search<'f, 'a> {
    field: &'f Field<'a>,
    /// Why candidates stay, of those that were looked at alone.
    pub(super) refused: Vec<(usize, KeepReason)>,
    pub(super) found: Option<Found>,
    left: usize,
}

impl<'f, 'a> Search<'f, 'a> {
    /// Searches through candidates in this order: what saves most per eviction first.
    pub(super) fn run(field: &'f Field<'a>, order: &[usize], method: Method) -> Self {
        let mut search = Search { field, refused: Vec::new(), found: None, left: WORK };
        match method {
            Method::Sets => search.sets(order),
            Method::OneByOne => search.one_by_one(order),
        }
        search
    }

    fn sets(&mut self, order: &[usize]) {
        self.retreat(order);
        if self.found.is_none() {
            self.grow(order);
        }
    }

    /// Looks for nodes that can go because the rest has room for all their pods. As many are looked for as that room may last for, though
    /// one command takes only the first of them that budgets let go: no pod moves to a node that the next command takes.
    fn retreat(&mut self, order: &[usize]) {
        let mut count = self.room_lasts(order);
        while count > 1 {
            let members = self.allowed(&order[..count]);
            let (set, going) = (self.entries(&members), self.entries(&order[..count]));
            if members.is_empty() || self.pay(&set).is_none() {
                return;
            }
            match vacate(self.field, &set, &going) {
                Some(change) => {
                    self.found = Some(Found { members, change });
                    return;
                }
                None => count /= 2,
            }
        }
    }

    /// The first of some candidates that budgets let go together. A pool whose budget is used up keeps those of no other.
    fn allowed(&self, order: &[usize]) -> Vec<usize> {
        let mut purse = Purse::new(self.field, Cause::Underutilized);
        let allowed = order.iter().copied().filter(|at| purse.spend(&self.field.entries[*at]).is_ok());
        allowed.take(MOST_NODES).collect()
    }

    /// Answers how many of the first candidates the free room of all others may hold by its sums alone: of what pods ask for, since other room
    /// may have no bound.
    fn room_lasts(&self, order: &[usize]) -> usize {
        let problem = &self.field.problem;
        let ready = problem.hosts.iter().filter(|state| state.open && state.initialized);
        let mut free: Vec<i64> = Vec::new();
        for state in ready {
            free.resize(problem.dims.resources(), 0);
            free.iter_mut().zip(&state.free).for_each(|(all, one)| *all = all.saturating_add((*one).max(0)));
        }
        let mut lasts = |at: &&usize| {
            let entry = &self.field.entries[**at];
            let own = &problem.hosts[entry.host].free;
            free.iter_mut().zip(own).for_each(|(all, one)| *all = all.saturating_sub((*one).max(0)));
            for pod in &entry.pods {
                let asked = problem.dims.demand(&pod.shape.requests);
                free.iter_mut().zip(&asked).for_each(|(all, one)| *all = all.saturating_sub(*one));
            }
            free.iter().all(|left| *left >= 0)
        };
        order.iter().take_while(|at| lasts(at)).count()
    }

    /// Lets a set grow. Halves are tried together before they are tried alone, so that large sets are found in few trials, and sets that
    /// only pay together are found at all. A part joins the set when it adds at least the floor of its own price to the saving.
    fn grow(&mut self, order: &[usize]) {
        for part in order.chunks(MOST_NODES) {
            self.widen(part);
            if self.found.is_some() || self.left == 0 {
                break;
            }
        }
        self.narrow();
    }

    fn one_by_one(&mut self, order: &[usize]) {
        for at in order {
            match self.ask(&[*at]) {
                Some(Ok(change)) => {
                    self.found = Some(Found { members: vec![*at], change });
                    return;
                }
                Some(Err(reason)) => self.refused.push((*at, reason)),
                None => return,
            }
        }
    }

    fn entries(&self, members: &[usize]) -> Vec<&'f Entry> {
        members.iter().map(|at| &self.field.entries[*at]).collect()
    }

    /// Takes what a look at a set costs from what is left; nothing when that is too little.
    fn pay(&mut self, set: &[&Entry]) -> Option<()> {
        let pods: usize = set.iter().map(|entry| entry.pods.len()).sum();
        let left = self.left.checked_sub(self.field.problem.hosts.len() + pods);
        self.left = left.unwrap_or(0);
        left.map(|_| ())
    }

    /// Asks for one set, while there is work left.
    fn ask(&mut self, members: &[usize]) -> Option<Result<Move, KeepReason>> {
        let set = self.entries(members);
        self.pay(&set)?;
        Some(Purse::allows(self.field, Cause::Underutilized, &set).and_then(|()| cheaper(self.field, &set)))
    }

    /// The least that a part must add to the saving.
    fn floor(&self, part: &[usize]) -> Price {
        let least: Price = part.iter().map(|at| self.field.least_saving(&self.field.entries[*at])).sum();
        least.max(Price::from_micro_dollars(1))
    }

    fn widen(&mut self, part: &[usize]) {
        let mut members = self.found.as_ref().map(|found| found.members.clone()).unwrap_or_default();
        if part.is_empty() || members.len() >= MOST_NODES {
            return;
        }
        let alone = members.is_empty() && part.len() == 1;
        let before = self.found.as_ref().map(|found| found.change.saving).unwrap_or_default();
        members.extend(part);
        let answer = if members.len() <= MOST_NODES { self.ask(&members) } else { None };
        let Some(answer) = answer else { return self.split(part) };
        match answer {
            Ok(change) if change.saving.saturating_sub(before) >= self.floor(part) => {
                self.found = Some(Found { members, change });
            }
            Err(reason) if alone => self.refused.push((part[0], reason)),
            Ok(_) | Err(_) => self.split(part),
        }
    }

    fn split(&mut self, part: &[usize]) {
        if part.len() > 1 && self.left > 0 {
            let (first, second) = part.split_at(part.len() / 2);
            self.widen(first);
            self.widen(second);
        }
    }

    /// Lets members go that add nothing to the set that has grown after them.
    fn narrow(&mut self) {
        for _ in 0..CHECKED_AGAIN {
            let Some(found) = &self.found else { return };
            // the dearest evictions first: letting one of them stay helps most
            let mut order: Vec<usize> = found.members.clone();
            order.sort_by_key(|at| (std::cmp::Reverse(self.field.entries[*at].disruption_cost_milli()), *at));
            let (members, saving) = (found.members.clone(), found.change.saving);
            if members.len() < 2 {
                return;
            }
            let mut better: Option<Found> = None;
            for out in order.into_iter().take(CHECKED_AGAIN) {
                let rest: Vec<usize> = members.iter().copied().filter(|at| *at != out).collect();
                let Some(Ok(change)) = self.ask(&rest) else { continue };
                let enough = saving.saturating_sub(change.saving) < self.floor(&[out]);
                if enough && better.as_ref().is_none_or(|known| known.change.saving < change.saving) {
                    better = Some(Found { members: rest, change });
                }
            }
            match better {
                Some(better) => self.found = Some(better),
                None => return,
            }
        }
    }

    /// Says whether the search ended before every candidate was looked at.
    pub(super) fn is_cut_short(&self) -> bool {
        self.left == 0
    }
}

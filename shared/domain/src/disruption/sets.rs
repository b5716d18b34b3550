//! The search for a set of nodes that it is worth while to do without: it grows from what saves most per eviction.

use super::candidate::{Entry, Field};
use super::consolidation::{Move, cheaper};
use super::purse::Purse;
use super::{Cause, KeepReason};
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
    /// Searches through candidates in this order. Halves are tried together before they are tried alone, so that large sets are found in few
    /// trials, and sets that only pay together are found at all. A part joins the set when it adds at least the floor of its own price to
    /// the saving.
    pub(super) fn run(field: &'f Field<'a>, order: &[usize]) -> Self {
        let mut search = Search { field, refused: Vec::new(), found: None, left: WORK };
        for part in order.chunks(MOST_NODES) {
            search.widen(part);
            if search.found.is_some() || search.left == 0 {
                break;
            }
        }
        search.narrow();
        search
    }

    fn entries(&self, members: &[usize]) -> Vec<&'f Entry> {
        members.iter().map(|at| &self.field.entries[*at]).collect()
    }

    fn price(&self, members: &[usize]) -> Price {
        members.iter().filter_map(|at| self.field.entries[*at].candidate.price).sum()
    }

    /// Asks for one set, while there is work left.
    fn ask(&mut self, members: &[usize]) -> Option<Result<Move, KeepReason>> {
        let set = self.entries(members);
        let pods: usize = set.iter().map(|entry| entry.pods.len()).sum();
        self.left = self.left.checked_sub(self.field.problem.hosts.len() + pods).or_else(|| {
            self.left = 0;
            None
        })?;
        Some(Purse::allows(self.field, Cause::Underutilized, &set).and_then(|()| cheaper(self.field, &set)))
    }

    /// The least that a part must add to the saving.
    fn floor(&self, part: &[usize]) -> Price {
        let permille = self.field.problem.snapshot.settings.saving_floor_permille.min(1000);
        self.price(part).scaled(permille, 1000).max(Price::from_micro_dollars(1))
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

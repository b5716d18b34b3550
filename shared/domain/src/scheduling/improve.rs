//! Improvement of a plan by small steps: two nodes become one, or a pod moves, when that is cheaper. Greedy packing leaves such
//! steps at its tail.

use super::finish::{min_values, suitable};
use super::packing::{Draft, Portion, draft_market, node_size, rules_hold};
use super::problem::Problem;
use super::queue::Group;
use crate::catalogue::Price;
use crate::resources::Resources;

/// Questions of what a draft costs that one plan may ask; larger plans are near their bound anyway.
const MOST_QUESTIONS: usize = 4000;
/// Plans of more nodes are left as they are.
const MOST_NODES: usize = 40;

/// A node less is worth so much of the price, in thousandths.
const TRIFLE_PERMILLE: u64 = 5;

/// The cheapest type for a draft.
pub(crate) struct Best {
    pub(crate) at: usize,
    pub(crate) price: Price,
}

/// Answers the cheapest type that holds a draft's pods.
pub(crate) fn best_type(problem: &Problem<'_>, groups: &[Group], draft: &Draft) -> Option<Best> {
    let state = &problem.pools[draft.pool];
    let market = draft_market(problem, groups, draft);
    let types = suitable(problem, groups, draft);
    let priced = types.ones().filter_map(|at| Some(Best { at, price: state.catalogue.cheapest(at, market)? }));
    priced.min_by_key(|best| (best.price, best.at != draft.chosen, best.at))
}

/// Improves drafts until no step helps or the questions are used up.
pub(crate) fn improve(problem: &Problem<'_>, groups: &[Group], drafts: &mut Vec<Draft>, left: &mut [Resources]) {
    if drafts.len() > MOST_NODES {
        return;
    }
    let mut search = Search { problem, groups, left, questions: 0 };
    for draft in drafts.iter_mut() {
        search.right_size(draft);
    }
    while search.merge_once(drafts) || search.move_once(drafts) {}
}

struct Search<'s> {
    problem: &'s Problem<'s>,
    groups: &'s [Group],
    left: &'s mut [Resources],
    questions: usize,
}

impl Search<'_> {
    fn price(&mut self, draft: &Draft) -> Option<Price> {
        self.questions += 1;
        let state = &self.problem.pools[draft.pool];
        state.catalogue.cheapest(draft.chosen, draft_market(self.problem, self.groups, draft))
    }

    /// The cheapest form of a draft in the room that limits leave when the nodes that it stands for are gone.
    fn best(&mut self, mut draft: Draft, instead_of: &[&Draft]) -> Option<(Draft, Price)> {
        self.questions += 1;
        if self.questions > MOST_QUESTIONS || !coherent(self.problem, self.groups, &draft) {
            return None;
        }
        let state = &self.problem.pools[draft.pool];
        let mut room = self.left[draft.pool].clone();
        instead_of.iter().for_each(|old| room.add(&node_size(state, old.chosen)));
        let market = draft_market(self.problem, self.groups, &draft);
        let types = suitable(self.problem, self.groups, &draft);
        let allowed = types.ones().filter(|at| state.pool.limits.is_empty() || node_size(state, *at).fits(&room));
        let (price, at) = allowed.filter_map(|at| Some((state.catalogue.cheapest(at, market)?, at))).min()?;
        draft.chosen = at;
        min_values(self.problem, self.groups, &draft).is_ok().then_some((draft, price))
    }

    fn charge(&mut self, gone: &[&Draft], come: &[&Draft]) {
        for draft in gone {
            self.left[draft.pool].add(&node_size(&self.problem.pools[draft.pool], draft.chosen));
        }
        for draft in come {
            self.left[draft.pool].subtract(&node_size(&self.problem.pools[draft.pool], draft.chosen));
        }
    }

    fn right_size(&mut self, draft: &mut Draft) {
        let Some(before) = self.price(draft) else { return };
        if let Some((sized, price)) = self.best(draft.clone(), &[draft]).filter(|(_, price)| *price < before) {
            debug_assert!(price < before);
            self.charge(&[draft], &[&sized]);
            *draft = sized;
        }
    }

    /// Makes one node of two, if that costs no more but a trifle.
    fn merge_once(&mut self, drafts: &mut Vec<Draft>) -> bool {
        for a in 0..drafts.len() {
            for b in a + 1..drafts.len() {
                if drafts[a].pool != drafts[b].pool {
                    continue;
                }
                let (Some(one), Some(other)) = (self.price(&drafts[a]), self.price(&drafts[b])) else { continue };
                let Some(both) = joined(&drafts[a], &drafts[b]) else { continue };
                let Some((both, price)) = self.best(both, &[&drafts[a], &drafts[b]]) else { continue };
                if price <= (one + other).scaled(1000 + TRIFLE_PERMILLE, 1000) {
                    self.charge(&[&drafts[a], &drafts[b]], &[&both]);
                    drafts[a] = both;
                    drafts.remove(b);
                    return true;
                }
            }
        }
        false
    }

    /// Moves one pod, if that makes the two nodes cheaper.
    fn move_once(&mut self, drafts: &mut [Draft]) -> bool {
        for from in 0..drafts.len() {
            for to in (0..drafts.len()).filter(|to| *to != from) {
                if drafts[from].pool != drafts[to].pool {
                    continue;
                }
                for at in 0..drafts[from].fill.len() {
                    if self.questions > MOST_QUESTIONS {
                        return false;
                    }
                    if self.try_move(drafts, from, to, at) {
                        return true;
                    }
                }
            }
        }
        false
    }

    fn try_move(&mut self, drafts: &mut [Draft], from: usize, to: usize, at: usize) -> bool {
        if bound_together(self.groups, &drafts[from]) {
            return false;
        }
        let (Some(one), Some(other)) = (self.price(&drafts[from]), self.price(&drafts[to])) else { return false };
        let one_pod = Portion { count: 1, ..drafts[from].fill[at] };
        let mut less = drafts[from].clone();
        less.fill[at].count -= 1;
        less.fill.retain(|portion| portion.count > 0);
        let moved = Draft { fill: vec![one_pod], ..less.clone() };
        let Some(more) = joined(&drafts[to], &moved) else { return false };
        if less.fill.is_empty() {
            return false;
        }
        // limits are looked at one by one: each node must find room where it was
        let Some((less, cheap)) = self.best(less, &[&drafts[from]]) else { return false };
        let Some((more, dear)) = self.best(more, &[&drafts[to]]) else { return false };
        let fits = {
            let mut room = self.left[less.pool].clone();
            let state = &self.problem.pools[less.pool];
            [&drafts[from], &drafts[to]].iter().for_each(|old| room.add(&node_size(state, old.chosen)));
            node_size(state, less.chosen).plus(&node_size(state, more.chosen)).fits(&room)
        };
        if !fits || cheap + dear >= one + other {
            return false;
        }
        self.charge(&[&drafts[from], &drafts[to]], &[&less, &more]);
        drafts[from] = less;
        drafts[to] = more;
        true
    }
}

/// The pods of both on one node; none when a group is there by two ways.
fn joined(a: &Draft, b: &Draft) -> Option<Draft> {
    let mut fill = a.fill.clone();
    for portion in &b.fill {
        match fill.iter_mut().find(|mine| mine.group == portion.group) {
            Some(mine) if mine.way == portion.way => mine.count += portion.count,
            Some(_) => return None,
            None => fill.push(*portion),
        }
    }
    Some(Draft { pool: a.pool, chosen: a.chosen, fill })
}

/// Whether some pod of a draft is there because of another one.
fn bound_together(groups: &[Group], draft: &Draft) -> bool {
    draft.fill.iter().any(|portion| groups[portion.group].joins || groups[portion.group].unit > 1)
}

/// Whether no two pods of a draft contradict each other, by their rules or on a label that types leave open.
pub(crate) fn coherent(problem: &Problem<'_>, groups: &[Group], draft: &Draft) -> bool {
    if !rules_hold(groups, &draft.fill) {
        return false;
    }
    let open = draft.fill.iter().filter_map(|portion| {
        let way = &groups[portion.group].ways[draft.pool].as_ref().ok()?[portion.way];
        (!way.open.is_empty()).then_some(&way.open)
    });
    let mut open = open.peekable();
    if open.peek().is_none() {
        return true;
    }
    let mut all = problem.pools[draft.pool].pool.requirements.clone();
    for requirements in open {
        if !all.overlaps(requirements) {
            return false;
        }
        all.merge(requirements);
    }
    true
}

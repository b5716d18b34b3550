//! Improvement of a plan by small steps: two nodes become one, one becomes two, a pod moves, or two change places, when that is cheaper. Greedy packing leaves
//! such steps at its tail.

use super::finish::min_values;
use super::packing::{Draft, Portion, draft_price, node_size, priced, rules_hold};
use super::problem::Problem;
use super::queue::Group;
use crate::catalogue::Price;
use crate::resources::Resources;

/// Questions of what a draft costs that one plan may ask; larger plans are near their bound anyway.
pub(crate) const MOST_QUESTIONS: usize = 4000;
/// So few pods of a pool are put together in every way that there is.
const FEW_PODS: usize = 6;
/// Plans of more nodes are left as they are.
const MOST_NODES: usize = 40;

/// A node less is worth so much of the price, in thousandths.
const TRIFLE_PERMILLE: u64 = 5;

/// Improves drafts until no step helps or the questions are used up.
pub(crate) fn improve(problem: &Problem<'_>, groups: &[Group], drafts: &mut Vec<Draft>, left: &mut [Resources]) {
    if drafts.len() > MOST_NODES {
        return;
    }
    let mut search = Search { problem, groups, left, questions: 0 };
    for pool in 0..problem.pools.len() {
        search.best_of_few(drafts, pool);
    }
    for draft in drafts.iter_mut() {
        search.right_size(draft);
    }
    while search.merge_once(drafts) || search.move_once(drafts) || search.split_once(drafts) || search.swap_once(drafts)
    {
    }
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
        draft_price(self.problem, self.groups, draft)
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
        let types = priced(self.problem, self.groups, &draft);
        let allowed = |(_, at): &(Price, usize)| state.pool.limits.is_empty() || node_size(state, *at).fits(&room);
        let (price, at) = types.filter(allowed).min()?;
        draft.chosen = at;
        min_values(self.problem, self.groups, &draft).is_ok().then_some((draft, price))
    }

    /// Finds the cheapest way of all to put the few pods of a pool without limits on nodes; of ways that cost all but the same, one with
    /// fewest nodes.
    fn best_of_few(&mut self, drafts: &mut Vec<Draft>, pool: usize) {
        let mine: Vec<&Draft> = drafts.iter().filter(|draft| draft.pool == pool).collect();
        let count: usize = mine.iter().flat_map(|draft| &draft.fill).map(|portion| portion.count as usize).sum();
        let limited = !self.problem.pools[pool].pool.limits.is_empty();
        if limited || !(2..=FEW_PODS).contains(&count) || mine.iter().any(|draft| bound_together(self.groups, draft)) {
            return;
        }
        let portions = mine.iter().flat_map(|draft| &draft.fill);
        let pods: Vec<Portion> =
            portions.flat_map(|portion| (0..portion.count).map(|_| Portion { count: 1, ..*portion })).collect();
        let like = mine[0].clone();
        let nodes: Vec<Option<(Draft, Price)>> = (0..1_usize << count)
            .map(|set| {
                let one = |at: usize| Draft { fill: vec![pods[at]], ..like.clone() };
                let mut each = (0..count).filter(|at| set >> at & 1 == 1).map(one);
                let first = each.next()?;
                self.best(each.try_fold(first, |all, pod| joined(&all, &pod))?, &[])
            })
            .collect();
        let prices: Vec<Option<Price>> = nodes.iter().map(|node| node.as_ref().map(|(_, price)| *price)).collect();
        let Some(sets) = cheapest_cover(&prices, count) else { return };
        drafts.retain(|draft| draft.pool != pool);
        drafts.extend(sets.into_iter().filter_map(|set| Some(nodes[set].as_ref()?.0.clone())));
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
        let (less, moved) = without(&drafts[from], at);
        let Some(more) = joined(&drafts[to], &moved) else { return false };
        if less.fill.is_empty() {
            return false;
        }
        self.try_instead(drafts, (from, to), (less, more), one + other)
    }

    /// Puts two drafts in the place of two others of one pool, if that costs less than they did.
    fn try_instead(
        &mut self,
        drafts: &mut [Draft],
        (from, to): (usize, usize),
        (less, more): (Draft, Draft),
        before: Price,
    ) -> bool {
        // limits are looked at one by one: each node must find room where it was
        let Some((less, cheap)) = self.best(less, &[&drafts[from]]) else { return false };
        let Some((more, dear)) = self.best(more, &[&drafts[to]]) else { return false };
        let fits = {
            let mut room = self.left[less.pool].clone();
            let state = &self.problem.pools[less.pool];
            [&drafts[from], &drafts[to]].iter().for_each(|old| room.add(&node_size(state, old.chosen)));
            node_size(state, less.chosen).plus(&node_size(state, more.chosen)).fits(&room)
        };
        if !fits || cheap + dear >= before {
            return false;
        }
        self.charge(&[&drafts[from], &drafts[to]], &[&less, &more]);
        drafts[from] = less;
        drafts[to] = more;
        true
    }

    /// Lets a pod of one node and a pod of another change places, if that makes the two nodes cheaper.
    fn swap_once(&mut self, drafts: &mut [Draft]) -> bool {
        for from in 0..drafts.len() {
            for to in from + 1..drafts.len() {
                if drafts[from].pool != drafts[to].pool {
                    continue;
                }
                for (one, other) in pairs(&drafts[from], &drafts[to]) {
                    if self.questions > MOST_QUESTIONS {
                        return false;
                    }
                    if self.try_swap(drafts, (from, to), (one, other)) {
                        return true;
                    }
                }
            }
        }
        false
    }

    fn try_swap(&mut self, drafts: &mut [Draft], (from, to): (usize, usize), (one, other): (usize, usize)) -> bool {
        let (mine, theirs) = (&drafts[from], &drafts[to]);
        if bound_together(self.groups, mine) || bound_together(self.groups, theirs) {
            return false;
        }
        let (Some(price), Some(others)) = (self.price(mine), self.price(theirs)) else { return false };
        let (rest, pod) = without(mine, one);
        let (others_rest, others_pod) = without(theirs, other);
        let (Some(mine), Some(theirs)) = (joined(&rest, &others_pod), joined(&others_rest, &pod)) else { return false };
        self.try_instead(drafts, (from, to), (mine, theirs), price + others)
    }
}

/// Answers into which sets, given as bits, so many things are best cut, by the price of each set; of cuts that cost all but the same, one with
/// fewest sets. None when they cannot be cut.
fn cheapest_cover(prices: &[Option<Price>], count: usize) -> Option<Vec<usize>> {
    let all = (1_usize << count) - 1;
    // by the number of sets and what is covered: the price, and the set that was taken last
    let mut known: Vec<Vec<Option<(Price, usize)>>> = vec![vec![None; all + 1]; count + 1];
    known[0][0] = Some((Price::default(), 0));
    for sets in 1..=count {
        for covered in 1..=all {
            // the set of the first thing is as good as any to begin with
            let first = 1_usize << covered.trailing_zeros();
            let with_first = (1..=covered).filter(|set| set & covered == *set && set & first != 0);
            let totals = with_first.filter_map(|set| Some((known[sets - 1][covered ^ set]?.0 + prices[set]?, set)));
            known[sets][covered] = totals.min();
        }
    }
    let least = known.iter().filter_map(|by_cover| by_cover[all]).map(|(price, _)| price).min()?;
    let enough = least.scaled(1000 + TRIFLE_PERMILLE, 1000);
    let mut sets = (1..=count).find(|sets| known[*sets][all].is_some_and(|(price, _)| price <= enough))?;
    let (mut left, mut cut) = (all, Vec::new());
    while left != 0 {
        let (_, set) = known[sets][left]?;
        cut.push(set);
        (left, sets) = (left ^ set, sets - 1);
    }
    Some(cut)
}

/// Every place in the one with every place in the other that holds pods of another group.
fn pairs(one: &Draft, other: &Draft) -> Vec<(usize, usize)> {
    let each = (0..one.fill.len()).flat_map(|a| (0..other.fill.len()).map(move |b| (a, b)));
    each.filter(|(a, b)| one.fill[*a].group != other.fill[*b].group).collect()
}

/// A draft without one pod of a portion, and that pod.
fn without(draft: &Draft, at: usize) -> (Draft, Draft) {
    let pod = Draft { fill: vec![Portion { count: 1, ..draft.fill[at] }], ..draft.clone() };
    let mut rest = draft.clone();
    rest.fill[at].count -= 1;
    rest.fill.retain(|portion| portion.count > 0);
    (rest, pod)
}

impl Search<'_> {
    /// Makes two nodes of one, if that is cheaper by more than a trifle: else they would become one again.
    fn split_once(&mut self, drafts: &mut Vec<Draft>) -> bool {
        for from in 0..drafts.len() {
            for at in 0..drafts[from].fill.len() {
                let all = drafts[from].fill[at].count;
                for count in [all, 1] {
                    if self.questions > MOST_QUESTIONS {
                        return false;
                    }
                    if let Some((less, apart)) = self.try_split(&drafts[from], at, count) {
                        self.charge(&[&drafts[from]], &[&less, &apart]);
                        drafts[from] = less;
                        drafts.push(apart);
                        return true;
                    }
                    if all == 1 {
                        break;
                    }
                }
            }
        }
        false
    }

    /// The two nodes that a draft becomes when some pods of one portion get a node of their own.
    fn try_split(&mut self, whole: &Draft, at: usize, count: u32) -> Option<(Draft, Draft)> {
        if bound_together(self.groups, whole) {
            return None;
        }
        let price = self.price(whole)?;
        let apart = Draft { fill: vec![Portion { count, ..whole.fill[at] }], ..whole.clone() };
        let mut less = whole.clone();
        less.fill[at].count -= count;
        less.fill.retain(|portion| portion.count > 0);
        if less.fill.is_empty() {
            return None;
        }
        let (less, cheap) = self.best(less, &[whole])?;
        let (apart, dear) = self.best(apart, &[whole])?;
        let state = &self.problem.pools[whole.pool];
        let room = self.left[whole.pool].plus(&node_size(state, whole.chosen));
        let fits = node_size(state, less.chosen).plus(&node_size(state, apart.chosen)).fits(&room);
        (fits && (cheap + dear).scaled(1000 + TRIFLE_PERMILLE, 1000) < price).then_some((less, apart))
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

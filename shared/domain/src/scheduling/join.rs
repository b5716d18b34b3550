//! Pods that join new nodes planned for others, which grow as far as they must: those that must share a node with others, and those that wait
//! because limits allow no more nodes.

use std::cmp::Reverse;

use super::finish::{self, Listed};
use super::improve::{MOST_QUESTIONS, coherent};
use super::packing::{Draft, Portion, node_size, priced};
use super::problem::Problem;
use super::queue::Group;
use crate::resources::Resources;

/// Adds the groups that join to drafts that hold what they must be near, as many of their pods as go there.
pub(crate) fn join(problem: &Problem<'_>, groups: &[Group], drafts: &mut [Draft], left: &mut [Resources]) {
    let mut questions = usize::MAX;
    for (at, group) in groups.iter().enumerate().filter(|(_, group)| group.joins) {
        add(problem, groups, (at, group.units()), drafts, left, &mut questions);
    }
}

/// Adds what waits, by group, to drafts that have room or may grow, as far as the questions go that one plan may ask.
pub(crate) fn top_up(
    problem: &Problem<'_>,
    groups: &[Group],
    drafts: &mut [Draft],
    left: &mut [Resources],
    remaining: &mut [u32],
) {
    let mut waiting: Vec<usize> = (0..groups.len()).filter(|at| remaining[*at] > 0).collect();
    waiting.sort_by_key(|at| Reverse(groups[*at].priority));
    let mut questions = MOST_QUESTIONS;
    for at in waiting {
        remaining[at] = add(problem, groups, (at, remaining[at]), drafts, left, &mut questions);
    }
}

/// Adds units of a group to drafts; answers how many are left.
fn add(
    problem: &Problem<'_>,
    groups: &[Group],
    (group, units): (usize, u32),
    drafts: &mut [Draft],
    left: &mut [Resources],
    questions: &mut usize,
) -> u32 {
    let mut rest = units;
    for draft in drafts.iter_mut() {
        let ways = groups[group].ways[draft.pool].as_ref().map_or(0, Vec::len);
        for way in 0..ways {
            // by halves: what fits is found in few steps, however many there are
            let mut step = rest;
            while step > 0 && *questions > 0 {
                *questions -= 1;
                let more = Portion { group, way, count: step };
                if let Some(larger) = joined(problem, groups, draft, more, left) {
                    let state = &problem.pools[draft.pool];
                    left[draft.pool].add(&node_size(state, draft.chosen));
                    left[draft.pool].subtract(&node_size(state, larger.chosen));
                    *draft = larger;
                    rest -= step;
                    step = step.min(rest);
                } else {
                    step /= 2;
                }
            }
        }
        if rest == 0 {
            break;
        }
    }
    rest
}

/// The draft with more pods, as the cheapest type that holds them within limits.
fn joined(problem: &Problem<'_>, groups: &[Group], draft: &Draft, more: Portion, left: &[Resources]) -> Option<Draft> {
    let mut larger = draft.clone();
    match larger.fill.iter_mut().find(|portion| portion.group == more.group) {
        Some(portion) if portion.way == more.way => portion.count += more.count,
        Some(_) => return None,
        None => larger.fill.push(more),
    }
    if !coherent(problem, groups, &larger) {
        return None;
    }
    let state = &problem.pools[draft.pool];
    let room = left[draft.pool].plus(&node_size(state, draft.chosen));
    let allowed = |at: usize| state.pool.limits.is_empty() || node_size(state, at).fits(&room);
    let types = priced(problem, groups, &larger).filter(|(_, at)| allowed(*at));
    (_, larger.chosen) = types.min_by_key(|(price, at)| (*price, *at != draft.chosen, *at))?;
    // who joins may leave too few types for `minValues`, and would take its hosts along
    let mut after = left.to_vec();
    after[draft.pool] = room.minus(&node_size(state, larger.chosen));
    let listed = finish::needs(problem, groups, std::slice::from_ref(&larger), &mut after);
    listed.iter().all(|listed| !matches!(listed, Listed::TooFew(_))).then_some(larger)
}

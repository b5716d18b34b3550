//! Pods that must share a node with others: they join new nodes on which those are, and the node grows as far as it must.

use super::finish;
use super::improve::{best_type, coherent};
use super::packing::{Draft, Portion, node_size};
use super::problem::Problem;
use super::queue::Group;
use crate::resources::Resources;

/// Adds the groups that join to drafts that hold what they must be near, as many of their pods as go there.
pub(crate) fn join(problem: &Problem<'_>, groups: &[Group], drafts: &mut [Draft], left: &mut [Resources]) {
    for (at, group) in groups.iter().enumerate().filter(|(_, group)| group.joins) {
        let mut rest = group.units();
        for draft in drafts.iter_mut() {
            let ways = group.ways[draft.pool].as_ref().map_or(0, Vec::len);
            for way in 0..ways {
                // by halves: what fits is found in few steps, however many there are
                let mut step = rest;
                while step > 0 {
                    if let Some(larger) = joined(problem, groups, draft, Portion { group: at, way, count: step }, left)
                    {
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
    }
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
    let best = best_type(problem, groups, &larger)?;
    let state = &problem.pools[draft.pool];
    let room = left[draft.pool].plus(&node_size(state, draft.chosen));
    if !state.pool.limits.is_empty() && !node_size(state, best.at).fits(&room) {
        return None;
    }
    larger.chosen = best.at;
    // who joins may leave too few types for `minValues`, and would take its hosts along
    finish::min_values(problem, groups, &larger).is_ok().then_some(larger)
}

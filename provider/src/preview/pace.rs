//! How many nodes may be replaced at a time: now, and when budgets open and close.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use karp_domain::api::BudgetReason;
use karp_domain::cluster::{Pool, Window, allowed};
use karp_domain::cron::Cron;
use karp_domain::quantity::Quantity;
use karp_domain::resources::NODES;
use serde::{Serialize, Serializer};

/// So far ahead is looked: the schedules of budgets mostly come again by the week.
const AHEAD: SignedDuration = SignedDuration::from_hours(7 * 24);
/// So many windows of one schedule are followed: the hours of the seven days. What opens more often is told for less than seven days.
const MOST_OPENINGS: usize = 7 * 24;
/// No schedule of five fields comes twice within it.
const MINUTE: SignedDuration = SignedDuration::from_mins(1);

/// A moment from which on so many nodes may be replaced at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Turn {
    /// From when on.
    #[serde(serialize_with = "as_text")]
    pub at: Timestamp,
    /// How many then.
    pub at_once: u32,
}

fn as_text<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(at)
}

/// Answers how many of a pool's nodes may be replaced at the same time at a moment: as its budgets let go, and in a static pool no more than its
/// limits have room for.
pub fn at_once(pool: &Pool, total: u32, at: Timestamp) -> u32 {
    by_budgets(pool, total, at).min(room(pool).map_or(u32::MAX, |(_, room)| room))
}

/// Says whether the limits of a static pool allow fewer at the same time than its budgets do.
pub fn is_narrow(pool: &Pool, total: u32, at: Timestamp) -> bool {
    at_once(pool, total, at) < by_budgets(pool, total, at)
}

fn by_budgets(pool: &Pool, total: u32, at: Timestamp) -> u32 {
    allowed(&pool.budgets, BudgetReason::Drifted, total, at).min(total)
}

/// Answers `limits.nodes` of a static pool, and how many nodes that has room for beside its replicas: one of them goes when another is there.
pub fn room(pool: &Pool) -> Option<(Quantity, u32)> {
    let replicas = i128::from(pool.replicas?);
    let (_, limit) = pool.limits.iter().find(|(name, _)| *name == NODES)?;
    let room = limit.nanos().div_euclid(Quantity::from_units(1).nanos()) - replicas;
    Some((limit, u32::try_from(room.max(0)).unwrap_or(u32::MAX)))
}

/// Answers in how many rounds nodes are replaced; nothing where none may go now.
pub fn waves(drifting: u32, at_once: u32) -> Option<u32> {
    (at_once > 0).then(|| drifting.div_ceil(at_once))
}

/// Tells how many nodes of these pools together may be replaced at a time, at each change that the next seven days bring. Each pool comes
/// with the number of its nodes.
pub fn timeline(pools: &[(&Pool, u32)], now: Timestamp) -> Vec<Turn> {
    let mut end = now.saturating_add(AHEAD).unwrap_or(Timestamp::MAX);
    let mut moments = BTreeSet::new();
    for window in pools.iter().flat_map(|(pool, _)| &pool.budgets).filter_map(|budget| budget.window.as_ref()) {
        end = edges(window, now, end, &mut moments);
    }
    let together = |at: Timestamp| pools.iter().map(|(pool, total)| at_once(pool, *total, at)).sum();
    let mut last = together(now);
    let changes = moments.into_iter().filter(|at| *at <= end).filter_map(|at| {
        let at_once = together(at);
        (at_once != std::mem::replace(&mut last, at_once)).then_some(Turn { at, at_once })
    });
    changes.collect()
}

/// Notes when a window opens and closes after now, and answers until when that is known. Windows that overlap are one, which closes with the
/// last of them.
fn edges(window: &Window, now: Timestamp, end: Timestamp, moments: &mut BTreeSet<Timestamp>) -> Timestamp {
    let schedule = match window.schedule.parse::<Cron>() {
        // What comes by a fixed length of time is open always or never.
        Ok(Cron::Every { .. }) | Err(_) => return end,
        Ok(schedule @ Cron::Fields { .. }) => schedule,
    };
    let closing = |opened: Timestamp| opened.checked_add(window.duration).unwrap_or(Timestamp::MAX);
    let since = now.checked_sub(window.duration).unwrap_or(Timestamp::MIN);
    let mut closes = last(&schedule, since, now).map(closing);
    let (mut opened, mut openings) = (now, 0);
    while let Some(next) = schedule.next(opened).filter(|next| *next <= end) {
        if closes.is_none_or(|closes| closes < next) {
            moments.extend(closes);
            if openings == MOST_OPENINGS {
                return opened;
            }
            moments.insert(next);
            openings += 1;
        }
        (opened, closes) = (next, Some(closing(next)));
    }
    moments.extend(closes);
    end
}

/// Finds the last time of a schedule after one moment and not after another, by halving: a schedule can be followed forwards only.
fn last(schedule: &Cron, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
    let next = |after: Timestamp| schedule.next(after).filter(|time| *time <= until);
    let (mut found, mut none_after) = (next(after)?, until);
    while none_after.duration_since(found) >= MINUTE {
        let middle = found.checked_add(none_after.duration_since(found) / 2).ok()?;
        match next(middle) {
            Some(later) => found = later,
            None => none_after = middle,
        }
    }
    Some(found)
}

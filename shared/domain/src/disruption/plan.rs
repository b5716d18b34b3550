//! The plan: expired nodes and those that are ill for too long go at once; then empty ones, then those that are not as their pool wants them,
//! then those that could be cheaper, as budgets allow.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::begun::Purpose;
use super::candidate::{Entry, Field};
use super::consolidation::{Move, renew};
use super::memory::{Origin, Rank, Resume, Turn};
use super::purse::Purse;
use super::sets::{Found, Search};
use super::{Candidate, Cause, Command, DisruptionPlan, KeepReason, Memory, Verdict};
use crate::cluster::{ConsolidationPolicy, Snapshot};

/// A plan is made anew this often at least while there are candidates (Karpenter's polling period).
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(10);
/// Drifted nodes that one plan looks at before it leaves the rest to the next: each look is a whole packing.
const DRIFTED_AT_ONCE: usize = 50;

/// Answers which nodes to take away or replace now, and why the others stay, without memory of earlier plans.
pub fn plan_disruption(snapshot: &Snapshot) -> DisruptionPlan {
    plan_with(snapshot, &Memory::default())
}

/// Answers which nodes to take away or replace now, and why the others stay.
///
/// A function of its input alone. At most one command of karp's own will comes out of a plan, since the next one depends on it;
/// nodes that go by force come on top.
pub fn plan_with(snapshot: &Snapshot, memory: &Memory) -> DisruptionPlan {
    plan_by(snapshot, memory, Method::Sets)
}

/// Says how nodes are found that could be cheaper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Sets of nodes, by what they save per eviction.
    #[default]
    Sets,
    /// The first node that can go alone, from the dearest per disruption in each plan, as Karpenter's single-node consolidation does; a measure for
    /// the other.
    OneByOne,
}

/// Answers what [`plan_with`] does, with cheaper nodes found in another way.
pub fn plan_by(snapshot: &Snapshot, memory: &Memory, method: Method) -> DisruptionPlan {
    let field = Field::new(snapshot);
    let verdicts = field.entries.iter().map(|entry| first_verdict(&field, entry)).collect();
    let (held, resume) = (BTreeMap::new(), memory.resume.clone());
    let mut planner = Planner { field: &field, memory, method, verdicts, held, resume };
    let mut commands = planner.by_force();
    let command = planner.emptiness().or_else(|| planner.drift()).or_else(|| planner.consolidate());
    commands.extend(command);
    planner.tell_held();
    let settles = planner.settles();
    let next_look = planner.next_look().into_iter().chain(settles).min();
    let Planner { verdicts, resume, .. } = planner;
    let settled = field.entries.iter().zip(verdicts).map(|(entry, verdict)| {
        let verdict = match (verdict.unwrap_or(Verdict::Keep(KeepReason::AfterAnother)), field.repair(entry)) {
            // of a node that stays, that it is ill matters most
            (Verdict::Keep(reason), Some(held @ Verdict::Keep(_))) if reason != KeepReason::Leaving => held,
            (verdict, _) => verdict,
        };
        (entry.candidate.clone(), verdict)
    });
    let verdicts = settled.collect();
    DisruptionPlan { verdicts, commands, hurried: hurried(&field), next_look, settles, resume }
}

/// Expiry and repair come before everything, then what forbids a disruption.
fn first_verdict(field: &Field<'_>, entry: &Entry) -> Option<Verdict> {
    let obstacle = || entry.obstacle(field).map(Verdict::Keep);
    field.by_force(entry).map(Verdict::Delete).or_else(obstacle)
}

/// What falls ill on its way out waits for nobody any more, as what is repaired.
fn hurried(field: &Field<'_>) -> Vec<Candidate> {
    let is_due = |entry: &&Entry| matches!(field.repair(entry), Some(Verdict::Delete(_)));
    let leaving = field.entries.iter().filter(|entry| entry.claim.deleting.is_some());
    leaving.filter(is_due).map(|entry| entry.candidate.clone()).collect()
}

struct Planner<'p, 'a> {
    field: &'p Field<'a>,
    memory: &'p Memory,
    method: Method,
    verdicts: Vec<Option<Verdict>>,
    /// What keeps nodes from being renewed, of those that may be given up all the same where that saves something.
    held: BTreeMap<usize, KeepReason>,
    resume: Resume,
}

impl Planner<'_, '_> {
    fn now(&self) -> Timestamp {
        self.field.problem.snapshot.now
    }

    fn command(&self, cause: Cause, members: &[usize], change: Move) -> Command {
        let entries = || members.iter().map(|at| &self.field.entries[*at]);
        let candidates = entries().map(|entry| entry.candidate.clone()).collect();
        let origin = (cause == Cause::Underutilized).then(|| Origin::of(self.field, entries()));
        let uid = |entry: &Entry| (entry.candidate.claim.to_string(), entry.candidate.uid.to_string());
        let purpose = Purpose {
            cause,
            candidates: entries().map(uid).collect(),
            replacements: change.nodes.len(),
            planned: self.now(),
        };
        let mut replacements = change.nodes;
        replacements.iter_mut().for_each(|node| node.annotations.extend([purpose.annotation()]));
        Command { cause, candidates, placements: change.placements, replacements, origin }
    }

    /// The candidates without a verdict yet, in order.
    fn open(&self) -> Vec<usize> {
        (0..self.field.entries.len()).filter(|at| self.verdicts[*at].is_none()).collect()
    }

    fn paused(&self, entry: &Entry, cause: Cause) -> Option<KeepReason> {
        let pool = &entry.candidate.pool;
        let until = self.memory.pause(pool, cause, self.now())?;
        Some(KeepReason::PoolPaused { pool: pool.clone(), until })
    }

    /// What goes whatever budgets and pods say.
    fn by_force(&self) -> Vec<Command> {
        let gone = self.verdicts.iter().enumerate().filter_map(|(at, verdict)| match verdict {
            Some(Verdict::Delete(cause @ (Cause::Expired | Cause::Unhealthy))) => Some((at, *cause)),
            _ => None,
        });
        gone.map(|(at, cause)| self.command(cause, &[at], Move::default())).collect()
    }

    /// All empty nodes that budgets allow, in one command.
    fn emptiness(&mut self) -> Option<Command> {
        let mut purse = Purse::new(self.field, Cause::Empty);
        let mut members = Vec::new();
        for at in self.open() {
            let entry = &self.field.entries[at];
            if !entry.pods.is_empty() || entry.static_pool().is_some() {
                continue;
            }
            let is_outdated = entry.outdated(self.now()).is_some();
            let held = entry.unsettled(self.now()).or_else(|| entry.pod_obstacle(self.field));
            let verdict = match held {
                Some(_) if is_outdated => continue,
                Some(reason) => Verdict::Keep(reason),
                None => match purse.spend(entry) {
                    // the budget for what is outdated may still let it go
                    Err(_) if is_outdated => continue,
                    Err(reason) => Verdict::Keep(reason),
                    Ok(()) => {
                        members.push(at);
                        Verdict::Delete(Cause::Empty)
                    }
                },
            };
            self.verdicts[at] = Some(verdict);
        }
        (!members.is_empty()).then(|| self.command(Cause::Empty, &members, Move::default()))
    }

    /// The first node that is not as its pool wants it any more whose pods fit elsewhere or on new nodes, or that another of its static pool can
    /// take the place of: empty ones first, then those of which that has been so for longest.
    ///
    /// A plan goes on after the node that the last one looked at last, whatever became of that, and one that has come to the end leaves what is
    /// left of the pass to consolidation: no node that stays, or whose command comes to nothing, keeps others waiting.
    fn drift(&mut self) -> Option<Command> {
        let now = self.now();
        let turn = |entry: &Entry, cause| Turn {
            is_used: !entry.pods.is_empty(),
            since: match cause {
                Cause::Drifted => entry.claim.since(crate::api::conditions::DRIFTED),
                _ => entry.ages_at(),
            },
            claim: entry.candidate.claim.clone(),
        };
        let outdated = self.open().into_iter().filter_map(|at| {
            let entry = &self.field.entries[at];
            let cause = entry.outdated(now)?;
            Some((turn(entry, cause), at, cause))
        });
        let mut outdated: Vec<(Turn, usize, Cause)> = outdated.collect();
        outdated.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        let last = self.resume.outdated.take();
        let mut looked = 0;
        for (turn, at, cause) in outdated {
            let entry = &self.field.entries[at];
            let held = self.paused(entry, cause);
            let held = held.or_else(|| Purse::allows(self.field, cause, &[entry]).err());
            let had_its_turn = last.as_ref().is_some_and(|last| turn <= *last);
            let answer = match held {
                // a freeze of drift is none of consolidation, wherever the last plan ended
                Some(reason) if !entry.pods.is_empty() && entry.static_pool().is_none() => {
                    self.held.insert(at, reason);
                    continue;
                }
                _ if had_its_turn => continue,
                Some(reason) => Err(reason),
                None if looked == DRIFTED_AT_ONCE => continue,
                None => {
                    looked += 1;
                    // the last one looked at is where the next plan goes on, unless this one comes to the end
                    self.resume.outdated = (looked == DRIFTED_AT_ONCE).then(|| turn.clone());
                    renew(self.field, &[entry])
                }
            };
            self.verdicts[at] = Some(outcome(cause, &answer));
            if let Ok(change) = answer {
                self.resume.outdated = Some(turn);
                return Some(self.command(cause, &[at], change));
            }
        }
        None
    }

    /// The set of nodes found that saves most per eviction, deleted or replaced by fewer or cheaper nodes.
    ///
    /// A plan goes on behind what the last one found or looked at: no set whose command comes to nothing each time keeps others waiting.
    fn consolidate(&mut self) -> Option<Command> {
        // their places would have to be found anew for each look at what could be given up
        if let Some(pods) = self.field.burst {
            for at in self.open() {
                self.verdicts[at] = Some(Verdict::Keep(KeepReason::PodsArriving { pods }));
            }
            return None;
        }
        let resting = self.memory.resting(self.field);
        for at in self.open() {
            let entry = &self.field.entries[at];
            // one that is outdated has been looked at as such, and goes for that, unless it is held
            let outdated = || match self.held.contains_key(&at) {
                true => entry.pod_obstacle(self.field),
                false => entry.outdated(self.now()).map(|_| KeepReason::AfterAnother),
            };
            let reason = underutilized(self.field, entry).or_else(|| self.paused(entry, Cause::Underutilized));
            let reason = reason.or_else(outdated).or_else(|| resting.reason(entry));
            self.verdicts[at] = reason.map(Verdict::Keep);
        }
        let rank = |at: &usize| Rank::of(&self.field.entries[*at]);
        let mut order = self.open();
        order.sort_by_cached_key(rank);
        let start = self.resume.cheaper.as_ref().map_or(0, |last| order.partition_point(|at| rank(at) <= *last));
        order.rotate_left(start);
        let search = Search::run(self.field, &order, self.method);
        for (at, reason) in &search.refused {
            self.verdicts[*at] = Some(Verdict::Keep(reason.clone()));
        }
        let looked = search.refused.len();
        let behind = match &search.found {
            // as Karpenter does
            Some(_) if self.method == Method::OneByOne => None,
            // whatever becomes of what was found
            Some(found) => order.iter().rposition(|at| found.members.contains(at)),
            None if search.is_cut_short() => Some(looked.saturating_sub(1)),
            // the next begins one further, so that other neighbours are tried together
            None => Some(0),
        };
        // while none may go, as where one that rests takes the whole budget, the place is kept
        if !order.is_empty() {
            self.resume.cheaper = behind.map(|at| rank(&order[at]));
        }
        let Found { members, change } = search.found?;
        let answer = Ok(change);
        for at in &members {
            self.verdicts[*at] = Some(outcome(Cause::Underutilized, &answer));
        }
        answer.ok().map(|change| self.command(Cause::Underutilized, &members, change))
    }

    /// Of a node that is outdated and stays, what keeps it from being renewed matters most.
    fn tell_held(&mut self) {
        for (at, reason) in std::mem::take(&mut self.held) {
            if !matches!(self.verdicts[at], Some(Verdict::Delete(_) | Verdict::Replace(..))) {
                self.verdicts[at] = Some(Verdict::Keep(reason));
            }
        }
    }

    /// When the first node has settled. Of one that is outdated, what keeps it from being renewed is told meanwhile, and it may go for less then.
    fn settles(&self) -> Option<Timestamp> {
        let entries = self.field.entries.iter().zip(&self.verdicts);
        let waiting = entries.filter(|(entry, verdict)| {
            let waits = matches!(
                verdict,
                Some(Verdict::Keep(
                    KeepReason::Settling { .. } | KeepReason::BudgetExhausted { .. } | KeepReason::PoolPaused { .. }
                ))
            );
            waits && entry.static_pool().is_none()
        });
        let until = waiting.filter_map(|(entry, _)| match entry.unsettled(self.now())? {
            KeepReason::Settling { until } => Some(until),
            _ => None,
        });
        until.min()
    }

    fn next_look(&self) -> Option<Timestamp> {
        let now = self.now();
        let passing = self.verdicts.iter().filter_map(|verdict| match verdict {
            Some(Verdict::Keep(KeepReason::PoolPaused { until, .. } | KeepReason::CameBack { until })) => Some(*until),
            _ => None,
        });
        let repair = self.field.problem.snapshot.settings.repair;
        let of_entry = |entry: &Entry| {
            let due = entry.node.as_ref().filter(|_| repair).and_then(|node| Some(node.ailment?.due));
            [entry.expires_at(), entry.ages_at(), due]
        };
        let expiring = self.field.entries.iter().flat_map(of_entry).flatten().filter(|at| *at > now);
        let poll = (!self.field.entries.is_empty()).then(|| now.saturating_add(LOOK_AGAIN).unwrap_or(Timestamp::MAX));
        passing.chain(expiring).chain(poll).min()
    }
}

/// Answers why a node is not even looked at for consolidation.
pub(super) fn underutilized(field: &Field<'_>, entry: &Entry) -> Option<KeepReason> {
    if let Some(reason) = entry.unsettled(field.problem.snapshot.now) {
        return Some(reason);
    }
    if entry.pool.as_ref().map(|pool| pool.policy) == Some(ConsolidationPolicy::WhenEmpty) {
        return Some(KeepReason::NotEmpty);
    }
    if let Some(reason) = entry.keeps_data(&field.problem.snapshot.volumes) {
        return Some(reason);
    }
    Purse::allows(field, Cause::Underutilized, &[entry]).err()
}

fn outcome(cause: Cause, answer: &Result<Move, KeepReason>) -> Verdict {
    match answer {
        Err(reason) => Verdict::Keep(reason.clone()),
        Ok(change) if change.nodes.is_empty() => Verdict::Delete(cause),
        Ok(change) => Verdict::Replace(cause, change.nodes.clone()),
    }
}

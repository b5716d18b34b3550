//! The plan: expired nodes go at once; then empty ones, then drifted ones, then those that could be cheaper, as budgets allow.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::candidate::{Entry, Field};
use super::consolidation::{self, Move};
use super::{Candidate, Cause, Command, DisruptionPlan, KeepReason, Verdict};
use crate::cluster::{ConsolidationPolicy, Snapshot};

/// A plan is made anew this often at least while there are candidates (Karpenter's polling period).
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// Answers which nodes to take away or replace now, and why the others stay.
///
/// A function of the snapshot alone. At most one command of karp's own will comes out of a plan, since the next one depends on it;
/// expired nodes come on top.
pub fn plan_disruption(snapshot: &Snapshot) -> DisruptionPlan {
    let field = Field::new(snapshot);
    let mut verdicts: Vec<Option<Verdict>> = field.entries.iter().map(|entry| first_verdict(snapshot, entry)).collect();
    let mut commands = expired(&field, &verdicts);
    let methods = [emptiness, drift, consolidate];
    if let Some(command) = methods.iter().find_map(|method| method(&field, &mut verdicts)) {
        commands.push(command);
    }
    let next_look = next_look(snapshot, &field, &verdicts);
    let settled =
        field.entries.iter().zip(verdicts).map(|(entry, verdict)| {
            (entry.candidate.clone(), verdict.unwrap_or(Verdict::Keep(KeepReason::AfterAnother)))
        });
    DisruptionPlan { verdicts: settled.collect(), commands, next_look }
}

/// Expiry comes before everything, then what forbids a disruption.
fn first_verdict(snapshot: &Snapshot, entry: &Entry) -> Option<Verdict> {
    let obstacle = entry.obstacle(snapshot);
    if obstacle != Some(KeepReason::Leaving) && entry.claim.expires_at().is_some_and(|at| at <= snapshot.now) {
        return Some(Verdict::Delete(Cause::Expired));
    }
    obstacle.map(Verdict::Keep)
}

fn expired(field: &Field<'_>, verdicts: &[Option<Verdict>]) -> Vec<Command> {
    let gone = field.entries.iter().zip(verdicts).filter(|(_, v)| **v == Some(Verdict::Delete(Cause::Expired)));
    gone.map(|(entry, _)| Command {
        cause: Cause::Expired,
        candidates: vec![entry.candidate.clone()],
        replacements: Vec::new(),
    })
    .collect()
}

/// Budgets as they are used up within a plan.
struct Purse<'f, 'a> {
    field: &'f Field<'a>,
    spent: BTreeMap<Arc<str>, u32>,
}

impl<'f, 'a> Purse<'f, 'a> {
    fn new(field: &'f Field<'a>) -> Self {
        Purse { field, spent: BTreeMap::new() }
    }

    /// Takes one node's worth; answers why not otherwise.
    fn spend(&mut self, entry: &Entry, cause: Cause) -> Result<(), KeepReason> {
        let Some(pool) = &entry.pool else { return Err(KeepReason::NoPool) };
        let spent = self.spent.entry(pool.name.clone()).or_default();
        match (*spent < self.field.budget(pool, cause), cause.budget()) {
            (false, Some(reason)) => Err(KeepReason::BudgetExhausted { pool: pool.name.clone(), reason }),
            _ => {
                *spent += 1;
                Ok(())
            }
        }
    }
}

/// All empty nodes that budgets allow, in one command.
fn emptiness(field: &Field<'_>, verdicts: &mut [Option<Verdict>]) -> Option<Command> {
    let mut purse = Purse::new(field);
    let mut candidates = Vec::new();
    for (at, entry) in field.entries.iter().enumerate().filter(|(_, entry)| entry.pods.is_empty()) {
        if verdicts[at].is_some() {
            continue;
        }
        let verdict = match entry.unsettled(field.problem.snapshot.now) {
            Some(_) if entry.is_drifted() => continue,
            Some(reason) => Verdict::Keep(reason),
            None => match purse.spend(entry, Cause::Empty) {
                Err(reason) => Verdict::Keep(reason),
                Ok(()) => {
                    candidates.push(entry.candidate.clone());
                    Verdict::Delete(Cause::Empty)
                }
            },
        };
        verdicts[at] = Some(verdict);
    }
    (!candidates.is_empty()).then_some(Command { cause: Cause::Empty, candidates, replacements: Vec::new() })
}

/// The first drifted node, longest drifted first, whose pods fit elsewhere or on new nodes.
fn drift(field: &Field<'_>, verdicts: &mut [Option<Verdict>]) -> Option<Command> {
    let mut drifted: Vec<usize> =
        (0..field.entries.len()).filter(|at| verdicts[*at].is_none() && field.entries[*at].is_drifted()).collect();
    let since = |at: &usize| field.entries[*at].claim.since(crate::api::conditions::DRIFTED);
    drifted.sort_by_key(|at| (!field.entries[*at].pods.is_empty(), since(at), *at));
    let mut purse = Purse::new(field);
    for at in drifted {
        let entry = &field.entries[at];
        let verdict = match Purse::new(field).spend(entry, Cause::Drifted) {
            Err(reason) => Verdict::Keep(reason),
            Ok(()) => match consolidation::move_away(field, entry) {
                Err(reason) => Verdict::Keep(reason),
                Ok(Move { nodes }) if nodes.is_empty() => Verdict::Delete(Cause::Drifted),
                Ok(Move { nodes }) => Verdict::Replace(Cause::Drifted, nodes),
            },
        };
        verdicts[at] = Some(verdict.clone());
        if let Some(command) = command(entry, verdict) {
            purse.spend(entry, Cause::Drifted).ok();
            return Some(command);
        }
    }
    None
}

/// The first node, best saving for its disruption first, that can be deleted or replaced by a cheaper one.
fn consolidate(field: &Field<'_>, verdicts: &mut [Option<Verdict>]) -> Option<Command> {
    let mut order: Vec<usize> = (0..field.entries.len()).filter(|at| verdicts[*at].is_none()).collect();
    let ratio = |at: usize| {
        let entry = &field.entries[at];
        let price = entry.candidate.price.unwrap_or_default().micro_dollars();
        u128::from(price) * 1_000_000 / u128::from(entry.disruption_cost_milli())
    };
    order.sort_by_key(|at| (std::cmp::Reverse(ratio(*at)), *at));
    for at in order {
        let entry = &field.entries[at];
        let verdict = underutilized(field, entry);
        verdicts[at] = Some(verdict.clone());
        if let Some(command) = command(entry, verdict) {
            return Some(command);
        }
    }
    None
}

fn underutilized(field: &Field<'_>, entry: &Entry) -> Verdict {
    if let Some(reason) = entry.unsettled(field.problem.snapshot.now) {
        return Verdict::Keep(reason);
    }
    let policy = entry.pool.as_ref().map(|pool| pool.policy);
    if policy == Some(ConsolidationPolicy::WhenEmpty) {
        return Verdict::Keep(KeepReason::NotEmpty);
    }
    if let Err(reason) = Purse::new(field).spend(entry, Cause::Underutilized) {
        return Verdict::Keep(reason);
    }
    match consolidation::cheaper(field, entry) {
        Err(reason) => Verdict::Keep(reason),
        Ok(Move { nodes }) if nodes.is_empty() => Verdict::Delete(Cause::Underutilized),
        Ok(Move { nodes }) => Verdict::Replace(Cause::Underutilized, nodes),
    }
}

fn command(entry: &Entry, verdict: Verdict) -> Option<Command> {
    let (cause, replacements) = match verdict {
        Verdict::Keep(_) => return None,
        Verdict::Delete(cause) => (cause, Vec::new()),
        Verdict::Replace(cause, nodes) => (cause, nodes),
    };
    Some(Command { cause, candidates: vec![entry.candidate.clone()], replacements })
}

fn next_look(snapshot: &Snapshot, field: &Field<'_>, verdicts: &[Option<Verdict>]) -> Option<Timestamp> {
    let settling = verdicts.iter().filter_map(|verdict| match verdict {
        Some(Verdict::Keep(KeepReason::Settling { until })) => Some(*until),
        _ => None,
    });
    let expiring = field.entries.iter().filter_map(|entry| entry.claim.expires_at()).filter(|at| *at > snapshot.now);
    let poll = (!field.entries.is_empty()).then(|| snapshot.now.saturating_add(LOOK_AGAIN).unwrap_or(Timestamp::MAX));
    settling.chain(expiring).chain(poll).min()
}

/// Says why a command no longer holds on a fresh snapshot.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Invalid {
    /// A candidate is gone.
    #[error("{claim} is gone")]
    Gone {
        /// Its claim.
        claim: Arc<str>,
    },
    /// Something speaks against disrupting a candidate now.
    #[error("{claim}: {reason}")]
    Kept {
        /// Its claim.
        claim: Arc<str>,
        /// What.
        reason: KeepReason,
    },
    /// A replacement would be needed that was not planned.
    #[error("{claim}: another replacement would be needed now")]
    OtherReplacement {
        /// The candidate's claim.
        claim: Arc<str>,
    },
}

/// Checks a command against a fresh snapshot before it is carried out: the candidates are still there and may still be disrupted for the
/// same cause, within budgets, and any replacement is within what was planned.
pub fn validate(command: &Command, snapshot: &Snapshot) -> Result<(), Invalid> {
    let field = Field::new(snapshot);
    let mut purse = Purse::new(&field);
    for candidate in &command.candidates {
        let entry = find(&field, candidate)?;
        let kept = |reason: KeepReason| Invalid::Kept { claim: candidate.claim.clone(), reason };
        if command.cause == Cause::Expired {
            continue;
        }
        if let Some(reason) = entry.obstacle(snapshot) {
            return Err(kept(reason));
        }
        purse.spend(entry, command.cause).map_err(kept)?;
        let now_needed = match command.cause {
            Cause::Expired => Vec::new(),
            Cause::Empty => match entry.unsettled(snapshot.now) {
                Some(reason) => return Err(kept(reason)),
                None if !entry.pods.is_empty() => return Err(kept(KeepReason::NotEmpty)),
                None => Vec::new(),
            },
            Cause::Drifted if !entry.is_drifted() => return Err(kept(KeepReason::Fine)),
            Cause::Drifted => consolidation::move_away(&field, entry).map_err(kept)?.nodes,
            Cause::Underutilized => match underutilized(&field, entry) {
                Verdict::Keep(reason) => return Err(kept(reason)),
                Verdict::Delete(_) => Vec::new(),
                Verdict::Replace(_, nodes) => nodes,
            },
        };
        let within = now_needed.len() <= command.replacements.len()
            && now_needed.iter().zip(&command.replacements).all(|(new, planned)| {
                let planned = planned.instance_types();
                planned.iter().any(|name| new.instance_types().contains(name))
            });
        if !within {
            return Err(Invalid::OtherReplacement { claim: candidate.claim.clone() });
        }
    }
    Ok(())
}

fn find<'f>(field: &'f Field<'_>, candidate: &Candidate) -> Result<&'f Entry, Invalid> {
    let same = |entry: &&Entry| entry.candidate.claim == candidate.claim && entry.candidate.uid == candidate.uid;
    field.entries.iter().find(same).ok_or_else(|| Invalid::Gone { claim: candidate.claim.clone() })
}

//! Whether a command still holds on a fresh snapshot, and what of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::candidate::{Entry, Field};
use super::consolidation::{Move, cheaper, renew};
use super::matching::all_find_one;
use super::memory::Origin;
use super::plan::underutilized;
use super::purse::Purse;
use super::{Approval, Candidate, Cause, Command, KeepReason, Verdict};
use crate::api::labels;
use crate::cluster::Snapshot;
use crate::requirement::Requirements;
use crate::scheduling::InFlightNode;

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
    /// Other replacements would be needed than were planned.
    #[error("other replacements would be needed for {claim} now")]
    OtherReplacement {
        /// The first candidate's claim.
        claim: Arc<str>,
    },
}

/// Checks a command against a fresh snapshot before it is carried out: the candidates are still there and may still be disrupted for the
/// same cause, within budgets, and each type that was planned for a replacement would do now.
pub fn validate(command: &Command, snapshot: &Snapshot) -> Result<(), Invalid> {
    approve(command, snapshot).map(drop)
}

/// Checks a command as [`validate`] does, and answers what the pools with policy Balanced say of it.
pub fn approve(command: &Command, snapshot: &Snapshot) -> Result<Vec<Approval>, Invalid> {
    judge(&Field::new(snapshot), command)
}

/// Checks many commands as [`validate`] does, each by itself, with one look at the cluster: those that go by force ask for no places, and none
/// of them depends on another.
pub fn validate_each<'c>(commands: &'c [Command], snapshot: &Snapshot) -> Vec<(&'c Command, Result<(), Invalid>)> {
    let field = Field::new(snapshot);
    commands.iter().map(|command| (command, judge(&field, command).map(drop))).collect()
}

/// Holds what a fresh look leaves of a command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Upheld {
    /// What still holds, with what it begins from now.
    pub command: Option<Command>,
    /// What the pools with policy Balanced say of that.
    pub approvals: Vec<Approval>,
    /// What does not hold any more, and why.
    pub void: Vec<(Command, Invalid)>,
}

/// Checks a command as [`approve`] does, and keeps what holds of it: none of several empty nodes waits for another, so that those which may not go
/// any more, or for which budgets have no room any more, leave the others to go (as in Karpenter). All other commands hold as a whole or not at all.
/// What holds begins from where the cluster is by now: what was decided beside it may have come to nothing.
pub fn uphold(command: Command, snapshot: &Snapshot) -> Upheld {
    let field = Field::new(snapshot);
    let mut upheld = Upheld::default();
    let command = match command.cause {
        Cause::Empty => sift(&field, command, &mut upheld.void),
        _ => command,
    };
    if command.candidates.is_empty() {
        return upheld;
    }
    match judge(&field, &command) {
        Ok(approvals) => {
            let origin = origin(&field, &command);
            (upheld.command, upheld.approvals) = (Some(Command { origin, ..command }), approvals);
        }
        Err(invalid) => upheld.void.push((command, invalid)),
    }
    upheld
}

/// Takes the nodes out of a command that may not go any more, each as a command of its own.
fn sift(field: &Field<'_>, mut command: Command, void: &mut Vec<(Command, Invalid)>) -> Command {
    let mut purse = Purse::new(field, command.cause);
    let mut holds = |candidate: &Candidate| {
        let entry = still(field, candidate, command.cause)?;
        purse.spend(entry).map_err(|reason| Invalid::Kept { claim: candidate.claim.clone(), reason })
    };
    let mut candidates = Vec::new();
    for candidate in &command.candidates {
        match holds(candidate) {
            Ok(()) => candidates.push(candidate.clone()),
            Err(invalid) => void.push((command.of(candidate), invalid)),
        }
    }
    command.candidates = candidates;
    command
}

/// Finds a candidate that is still there, if nothing speaks against disrupting it.
fn still<'f>(field: &'f Field<'_>, candidate: &Candidate, cause: Cause) -> Result<&'f Entry, Invalid> {
    let claim = || candidate.claim.clone();
    let same = |entry: &&Entry| entry.candidate.claim == candidate.claim && entry.candidate.uid == candidate.uid;
    let entry = field.entries.iter().find(same).ok_or_else(|| Invalid::Gone { claim: claim() })?;
    match speaks_against(field, entry, cause) {
        Some(reason) => Err(Invalid::Kept { claim: claim(), reason }),
        None => Ok(entry),
    }
}

fn judge(field: &Field<'_>, command: &Command) -> Result<Vec<Approval>, Invalid> {
    let set = command.candidates.iter().map(|candidate| still(field, candidate, command.cause));
    let set = set.collect::<Result<Vec<&Entry>, Invalid>>()?;
    let Some(first) = command.candidates.first().map(|candidate| candidate.claim.clone()) else {
        return Ok(Vec::new());
    };
    let kept = |reason| Invalid::Kept { claim: first.clone(), reason };
    if let (Cause::Underutilized, Some(pods)) = (command.cause, field.burst) {
        return Err(kept(KeepReason::PodsArriving { pods }));
    }
    Purse::allows(field, command.cause, &set).map_err(kept)?;
    let needed = match command.cause {
        Cause::Expired | Cause::Unhealthy | Cause::Empty => Move::default(),
        Cause::Drifted | Cause::Expiring => renew(field, &set).map_err(kept)?,
        Cause::Underutilized => cheaper(field, &set).map_err(kept)?,
    };
    if covers(&needed.nodes, &command.replacements) {
        Ok(needed.approvals)
    } else {
        Err(Invalid::OtherReplacement { claim: first })
    }
}

/// Answers what a command begins from now, if that is to be remembered of it.
fn origin(field: &Field<'_>, command: &Command) -> Option<Origin> {
    command.origin.as_ref()?;
    let is_member =
        |entry: &&Entry| command.candidates.iter().any(|candidate| candidate.claim == entry.candidate.claim);
    Some(Origin::of(field, field.entries.iter().filter(is_member)))
}

fn speaks_against(field: &Field<'_>, entry: &Entry, cause: Cause) -> Option<KeepReason> {
    let now = field.problem.snapshot.now;
    match cause {
        Cause::Expired => return entry.expires_at().is_none_or(|at| at > now).then_some(KeepReason::Fine),
        Cause::Unhealthy => match field.repair(entry) {
            Some(Verdict::Keep(reason)) => return Some(reason),
            found => return found.is_none().then_some(KeepReason::Fine),
        },
        Cause::Expiring | Cause::Empty | Cause::Drifted | Cause::Underutilized => {}
    }
    entry.obstacle(field).or_else(|| match cause {
        Cause::Expired | Cause::Unhealthy => None,
        Cause::Empty if !entry.pods.is_empty() => Some(KeepReason::NotEmpty),
        Cause::Empty => entry.unsettled(now).or_else(|| entry.pod_obstacle(field)),
        Cause::Drifted | Cause::Expiring => (entry.outdated(now) != Some(cause)).then_some(KeepReason::Fine),
        Cause::Underutilized => underutilized(field, entry).or_else(|| entry.pod_obstacle(field)),
    })
}

/// Says whether each planned node is one of those needed now, whatever is launched of what it may: the type, the zone, the way it is bought, and
/// what else pods have come to ask for meanwhile. One of a template that its pool no longer has is none of them: it would drift as soon as it is
/// there.
fn covers(needed: &[InFlightNode], planned: &[InFlightNode]) -> bool {
    if needed.len() != planned.len() {
        return false;
    }
    let types = |nodes: &[InFlightNode]| -> Vec<BTreeSet<Arc<str>>> {
        nodes.iter().map(|node| node.instance_types().into_iter().collect()).collect()
    };
    let (before, now) = (types(planned), types(needed));
    all_find_one(planned.len(), |one, other| {
        let (node, wanted) = (&planned[one], &needed[other]);
        wanted.pool == node.pool
            && wanted.template() == node.template()
            && before[one].is_subset(&now[other])
            && is_within(&node.requirements, &wanted.requirements)
    })
}

/// Says whether all that meets `narrow` meets `wide`, types aside, which are compared by what can be bought.
fn is_within(narrow: &Requirements, wide: &Requirements) -> bool {
    let mut asked = wide.iter().filter(|wanted| wanted.key() != labels::INSTANCE_TYPE);
    asked.all(|wanted| narrow.get(wanted.key()).is_some_and(|own| own.is_within(wanted)))
}

//! Commands that a process began which is gone. What a replacement is made for is written on its claim, so that the next process goes on with
//! the command instead of replacing the same nodes once more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::execution::REPLACEMENT_LIMIT;
use super::{Candidate, Cause, Command};
use crate::api::{conditions, labels};
use crate::cluster::{Claim, Node, Snapshot};

/// Says what replacements are made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Purpose {
    pub(super) cause: Cause,
    /// UIDs of the candidates, by their claim.
    pub(super) candidates: BTreeMap<String, String>,
    /// How many replacements there are to be.
    pub(super) replacements: usize,
    /// When it was planned: tells this command from an earlier one for the same nodes.
    pub(super) planned: Timestamp,
}

impl Purpose {
    /// Returns the annotation that says it.
    pub(super) fn annotation(&self) -> (String, String) {
        // a plain struct of strings, a number and a time always serialises
        (labels::REPLACES.to_owned(), serde_json::to_string(self).unwrap_or_default())
    }

    /// Reads what a claim says; nothing where somebody else wrote it.
    fn of(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Says whether replacements have been waited for for too long.
    fn is_late(&self, now: Timestamp) -> bool {
        now.duration_since(self.planned) >= REPLACEMENT_LIMIT
    }
}

/// A command whose replacements are all there, and that nobody has carried out yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Begun {
    /// The command, with the candidates that are left; what it was to launch is launched.
    pub command: Command,
    /// The replacements' claims.
    pub replacements: Vec<Arc<str>>,
    /// When it was planned.
    pub planned: Timestamp,
}

/// Finds the commands that an earlier process began and that may still be carried out, the latest first. One that lacks a replacement, or has
/// waited for them for too long, is not among them, nor one that was to save something and has a node without its taint, to which pods may have
/// come that nobody reckoned with: these nodes are looked at anew. Who takes a command back takes the annotation from its replacements.
pub fn begun(snapshot: &Snapshot) -> Vec<Begun> {
    let mut replacements: BTreeMap<&str, Vec<Arc<str>>> = BTreeMap::new();
    for claim in live(snapshot) {
        if let Some(purpose) = claim.annotations.get(labels::REPLACES) {
            replacements.entry(purpose).or_default().push(claim.name.clone());
        }
    }
    let mut found: Vec<Begun> =
        replacements.into_iter().filter_map(|(purpose, claims)| one(snapshot, purpose, claims)).collect();
    found.sort_by_key(|one| std::cmp::Reverse(one.planned));
    found
}

/// Names the replacements that an earlier process waited for for too long, and that never started: they take no pods and never count as empty, so that
/// they would stay.
pub fn overdue(snapshot: &Snapshot) -> Vec<Arc<str>> {
    let is_late = |claim: &&Arc<Claim>| {
        let purpose = claim.annotations.get(labels::REPLACES).and_then(|text| Purpose::of(text));
        !claim.is_initialized() && purpose.is_some_and(|purpose| purpose.is_late(snapshot.now))
    };
    live(snapshot).filter(is_late).map(|claim| claim.name.clone()).collect()
}

/// Names the claims that are about to go for replacements that are there: together with those they count once.
pub fn replaced(snapshot: &Snapshot) -> BTreeSet<Arc<str>> {
    let candidates = begun(snapshot).into_iter().flat_map(|begun| begun.command.candidates);
    candidates.map(|candidate| candidate.claim).collect()
}

fn one(snapshot: &Snapshot, purpose: &str, mut replacements: Vec<Arc<str>>) -> Option<Begun> {
    let purpose = Purpose::of(purpose)?;
    if replacements.len() != purpose.replacements || purpose.is_late(snapshot.now) {
        return None;
    }
    let Purpose { cause, candidates, planned, .. } = purpose;
    let is_meant = |claim: &&Arc<Claim>| {
        let named = candidates.get(&*claim.name).is_some_and(|uid| **uid == *claim.uid);
        // a pool may have been changed back
        named && (cause != Cause::Drifted || claim.since(conditions::DRIFTED).is_some())
    };
    let mut candidates: Vec<Candidate> =
        live(snapshot).filter(is_meant).map(|claim| candidate(snapshot, claim)).collect();
    if candidates.is_empty() || !(cause.lasts() || candidates.iter().all(|one| is_tainted(snapshot, one))) {
        return None;
    }
    candidates.sort();
    replacements.sort();
    let command = Command { cause, candidates, placements: Vec::new(), replacements: Vec::new(), origin: None };
    Some(Begun { command, replacements, planned })
}

/// The claims of karp's nodes that are not on their way out.
fn live(snapshot: &Snapshot) -> impl Iterator<Item = &Arc<Claim>> {
    snapshot.claims.iter().filter(|claim| claim.deleting.is_none() && claim.class.is_ours())
}

/// Says whether new pods are kept off a candidate.
fn is_tainted(snapshot: &Snapshot, candidate: &Candidate) -> bool {
    let mut nodes = snapshot.nodes.iter().filter(|node| Some(&node.name) == candidate.node.as_ref());
    nodes.any(|node| node.is_disrupted())
}

fn candidate(snapshot: &Snapshot, claim: &Claim) -> Candidate {
    let on = |node: &&Arc<Node>| node.provider_id.is_some() && node.provider_id == claim.provider_id;
    Candidate {
        claim: claim.name.clone(),
        uid: claim.uid.clone(),
        node: snapshot.nodes.iter().find(on).map(|node| node.name.clone()),
        pool: claim.pool.clone().unwrap_or_else(|| "".into()),
        price: None,
    }
}

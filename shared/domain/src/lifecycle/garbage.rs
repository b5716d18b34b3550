//! Collection: instances that no claim stands for, and claims whose instance or node is gone. Never on one witness, never young things,
//! never much at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;

use super::launch::batch;
use super::presence::is_gone_if_unknown;
use super::step::{REGISTRATION_TIMEOUT, later, provider_id, was_registered};
use crate::api::conditions::{self, ConditionStatus};
use crate::api::{NodeClaim, labels};

/// An instance is left alone for this long after it was first seen here, by our own clock: its claim may be on the way (Karpenter: 30 s).
const INSTANCE_AGE: SignedDuration = SignedDuration::from_secs(30);
/// Whatever the size of the fleet, this many may be collected in one pass.
const ALWAYS: usize = 5;
/// Beyond that, one in this many.
const SHARE: usize = 10;
/// So many passes come quickly, as after a crash much may be left over (Karpenter: 20 passes, 10 s apart).
const QUICK_PASSES: u32 = 20;
const QUICK_PAUSE: Duration = Duration::from_secs(10);
/// Other passes (Karpenter: 2 min). What is left over is found by the first of them and is gone 30 s later, also where a listing or a watch is
/// behind: nothing is to run for 3 min without a claim.
const PAUSE: Duration = Duration::from_secs(60);

/// Describes an instance of this cluster as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// `aws:///ZONE/ID`
    pub provider_id: String,
    /// Name of the claim that it was launched for, from its tag.
    pub claim: Option<String>,
    /// The batch that it was launched with, from its tag.
    pub batch: Option<String>,
    /// It ends already.
    pub ending: bool,
}

/// What tells whether an instance or a claim is left over.
#[derive(Clone, Copy)]
pub struct Witnesses<'a> {
    /// A whole listing of the cluster's instances, made before `claims` was looked at: the claim of an instance that is launched between
    /// the two looks is then seen.
    pub listed: &'a [Listed],
    /// The cluster's claims.
    pub claims: &'a [Arc<NodeClaim>],
    /// Says whether the node of an instance, by its provider id, is there and ready.
    pub is_ready: &'a dyn Fn(&str) -> bool,
}

/// Remembers what earlier passes saw.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    /// This cluster's claims were seen at least once: an empty list before that says nothing.
    claims_seen: bool,
    /// Unclaimed instances, since when, and in how many listings.
    unclaimed: BTreeMap<String, Sighting>,
    /// UIDs of claims whose instance was missing in the last listing.
    missing: BTreeSet<String>,
    /// Passes since the start, or since something last looked left over that had not before.
    calm: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sighting {
    since: Timestamp,
    listings: u32,
}

/// Says what to collect.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collection {
    /// Provider ids of instances to end.
    pub instances: Vec<String>,
    /// Claims to delete.
    pub claims: Vec<Arc<NodeClaim>>,
    /// Set when nothing is collected because it would be too much at once.
    pub blocked: Option<Blocked>,
}

/// Says what comes next of a claim that a pass found left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion<'c> {
    /// Ask the API server for this node.
    AskFor(&'c str),
    /// Leave the claim: its node runs, whatever the lists say.
    Refuted,
    /// Delete the claim.
    Confirmed,
}

/// Answers what comes next of a claim that a pass found left over, by what the API server has of it: the watch may be late. `node` is what it
/// answered of the claim's node; none before it was asked.
pub fn confirm<'c>(claim: Option<&'c NodeClaim>, node: Option<Option<&Node>>) -> Suspicion<'c> {
    let name = claim.and_then(|claim| claim.status.as_ref()?.node_name.as_deref()).filter(|name| !name.is_empty());
    let Some((claim, name)) = claim.zip(name) else { return Suspicion::Confirmed };
    let of_claim = |node: &&Node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == provider_id(claim);
    match node {
        None => Suspicion::AskFor(name),
        Some(found) if found.filter(of_claim).is_some_and(is_up) => Suspicion::Refuted,
        Some(_) => Suspicion::Confirmed,
    }
}

/// Says whether a node's kubelet says that it is ready.
pub fn is_up(node: &Node) -> bool {
    let all = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    all.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Says how much would have been collected at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocked {
    /// Instances without a claim.
    pub instances: usize,
    /// Claims without an instance or a node.
    pub claims: usize,
    /// So many may go in one pass.
    pub bound: usize,
    /// One of the claims, to tell it on.
    pub example: Option<Arc<NodeClaim>>,
}

impl Listed {
    /// Says whether a claim stands for the instance, or will: one that goes by it, one that it was launched for and that goes by no other, or, as long
    /// as nobody is named for it, one of its batch that has none.
    #[must_use]
    pub fn is_expected_by(&self, claim: &NodeClaim) -> bool {
        match (&self.claim, &self.batch) {
            (Some(name), _) if claim.metadata.name.as_ref() == Some(name) => may_stand_for(claim, &self.provider_id),
            (None, Some(id)) if batch(claim) == Some(id) && provider_id(claim).is_none() => true,
            _ => provider_id(claim).is_some_and(|known| instance_id(known) == instance_id(&self.provider_id)),
        }
    }
}

/// Says whether a claim stands for an instance that was launched for it, or will: it goes by no other. Only the ids are compared, since
/// EC2's answers may leave the zone out.
fn may_stand_for(claim: &NodeClaim, instance: &str) -> bool {
    provider_id(claim).is_none_or(|known| instance_id(known) == instance_id(instance))
}

/// Returns the part of a provider id that names the instance: EC2's answers may leave the zone out.
pub(super) fn instance_id(provider_id: &str) -> &str {
    provider_id.rsplit('/').next().unwrap_or_default()
}

impl Collector {
    /// Answers how long the next pass is waited for, once for each: it comes soon after a start, and where something newly looks left over.
    pub fn next_pause(&mut self) -> Duration {
        if self.calm >= QUICK_PASSES {
            return PAUSE;
        }
        self.calm += 1;
        QUICK_PAUSE
    }

    /// Answers what to collect.
    pub fn pass(&mut self, seen: &Witnesses<'_>, now: Timestamp) -> Collection {
        let Witnesses { listed, claims, .. } = *seen;
        self.claims_seen |= !claims.is_empty();
        let (unclaimed, missing) = (self.unclaimed.clone(), self.missing.clone());
        let instances = self.orphans(listed, claims, now);
        let ghosts = self.ghosts(seen, now);
        let is_news = self.unclaimed.keys().any(|id| !unclaimed.contains_key(id));
        if is_news || !self.missing.is_subset(&missing) {
            self.calm = 0;
        }
        let fleet = listed.iter().filter(|instance| !instance.ending).count().max(claims.len());
        let bound = ALWAYS.max(fleet / SHARE);
        if instances.len() > bound || ghosts.len() > bound {
            let (instances, claims) = (instances.len(), ghosts.len());
            let blocked = Some(Blocked { instances, claims, bound, example: ghosts.into_iter().next() });
            return Collection { blocked, ..Collection::default() };
        }
        Collection { instances, claims: ghosts, blocked: None }
    }

    /// The instances that no claim stands for, in two listings and for long enough.
    fn orphans(&mut self, listed: &[Listed], claims: &[Arc<NodeClaim>], now: Timestamp) -> Vec<String> {
        let ids: BTreeSet<&str> = claims.iter().filter_map(|claim| provider_id(claim)).map(instance_id).collect();
        let by_name: BTreeMap<&str, &NodeClaim> =
            claims.iter().filter_map(|claim| Some((claim.metadata.name.as_deref()?, &**claim))).collect();
        let seeking: BTreeMap<&str, &NodeClaim> = claims
            .iter()
            .filter(|claim| provider_id(claim).is_none())
            .filter_map(|claim| Some((batch(claim)?, &**claim)))
            .collect();
        let mut sightings = BTreeMap::new();
        for instance in listed.iter().filter(|instance| !instance.ending) {
            // Launched for a claim that still lives: its lifecycle adopts or ends it, unless it goes by another instance already.
            let named = instance.claim.as_deref().and_then(|claim| by_name.get(claim));
            let sought = instance.batch.as_deref().and_then(|batch| seeking.get(batch));
            let expected = named.into_iter().chain(sought).any(|claim| instance.is_expected_by(claim));
            if expected || ids.contains(instance_id(&instance.provider_id)) {
                continue;
            }
            let before = self.unclaimed.get(&instance.provider_id).copied();
            let before = before.unwrap_or(Sighting { since: now, listings: 0 });
            let sighting = Sighting { listings: before.listings + 1, ..before };
            sightings.insert(instance.provider_id.clone(), sighting);
        }
        self.unclaimed = sightings;
        if !self.claims_seen {
            return Vec::new();
        }
        let ripe = |sighting: &Sighting| sighting.listings >= 2 && now >= later(sighting.since, INSTANCE_AGE);
        self.unclaimed.iter().filter(|(_, sighting)| ripe(sighting)).map(|(id, _)| id.clone()).collect()
    }

    /// The claims whose instance was missing in two listings, though not young, while their node is gone or not ready, and those whose node has been gone
    /// for as long as a node has to join.
    fn ghosts(&mut self, seen: &Witnesses<'_>, now: Timestamp) -> Vec<Arc<NodeClaim>> {
        let present: BTreeSet<&str> = seen.listed.iter().map(|one| instance_id(&one.provider_id)).collect();
        let ours = |claim: &&Arc<NodeClaim>| {
            let metadata = &claim.metadata;
            let pooled = metadata.labels.as_ref().is_some_and(|all| all.contains_key(labels::NODE_POOL));
            metadata.deletion_timestamp.is_none()
                && claim.spec.node_class_ref.is_ours()
                && (pooled || metadata.owner_references.is_none())
        };
        let without_instance = |claim: &Arc<NodeClaim>| {
            let missed = |id: &str| !present.contains(instance_id(id)) && !(seen.is_ready)(id);
            provider_id(claim).is_some_and(missed) && !may_be_unlisted(claim, now)
        };
        let mut missing = BTreeSet::new();
        let mut ghosts = Vec::new();
        for claim in seen.claims.iter().filter(ours) {
            let uid = claim.metadata.uid.clone().unwrap_or_default();
            if without_instance(claim) {
                if self.missing.contains(&uid) {
                    ghosts.push(claim.clone());
                }
                missing.insert(uid);
            } else if lost_for(claim, now) >= REGISTRATION_TIMEOUT {
                ghosts.push(claim.clone());
            }
        }
        self.missing = missing;
        ghosts
    }
}

/// Whether EC2 may not list the instance of a claim yet: its launch is young, and no node has told of it.
fn may_be_unlisted(claim: &NodeClaim, now: Timestamp) -> bool {
    let status = claim.status.as_ref().filter(|_| !was_registered(claim));
    let launched = status.and_then(|status| conditions::get(&status.conditions, conditions::LAUNCHED));
    !is_gone_if_unknown(launched.map(|launched| launched.last_transition_time), now)
}

/// For how long the node of a claim that had one has been gone, by the condition that tells it.
fn lost_for(claim: &NodeClaim, now: Timestamp) -> SignedDuration {
    let status = claim.status.as_ref().filter(|_| was_registered(claim));
    let registered = status.and_then(|status| conditions::get(&status.conditions, conditions::REGISTERED));
    let lost = registered.filter(|condition| condition.status != ConditionStatus::True);
    lost.map_or(SignedDuration::ZERO, |condition| now.duration_since(condition.last_transition_time))
}

//! S-18, which the list of the reliability goals lacks: whatever fails, a warning reaches the claim of its instance, and only that.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;

use super::{SEEN_LIMIT, Watch};
use crate::api::{NodeClaim, conditions};
use crate::interruption::Recall;
use crate::lifecycle::{is_true, provider_id};
use crate::sim::World;
use crate::sim::cloud::Instance;
use crate::sim::queue::{About, VISIBILITY};
use crate::sim::world::is_tainted;

/// A claim is told within this time of the message's delivery, while somebody handles messages: it may be hidden once, after a crash or while
/// the claim does not say which instance is its own.
const TOLD_LIMIT: SignedDuration = SignedDuration::from_secs(VISIBILITY.as_secs() + 5);
/// A recalled claim is on its way out so long after its time, while somebody looks after it.
const LEFT_LIMIT: SignedDuration = SignedDuration::from_secs(5);
/// The node of a recalled claim takes no new pods so long after the claim says so, while somebody looks after it.
const TAINTED_WITHIN: SignedDuration = SignedDuration::from_secs(2);

/// What is known of warnings and those who handle them.
#[derive(Default)]
pub(super) struct Warned {
    /// Since when claims could have been told: they know their instance, and the message is there.
    since: BTreeMap<String, Timestamp>,
    /// Claims that are called back, by what, since when they say so, and how far off the controller's clock was then.
    recalled: BTreeMap<String, (Recall, Timestamp, i64)>,
    /// Recalled claims whose node stays and takes new pods, and since when.
    open: BTreeMap<String, Timestamp>,
    /// Watches are late in this run.
    late: bool,
}

/// The claim of an instance that is not on its way out, whether or not it says so yet.
fn claim_of<'w>(world: &'w World, instance: &Instance) -> Option<&'w NodeClaim> {
    let own = |claim: &&NodeClaim| {
        claim.metadata.uid.as_deref() == Some(&*instance.claim_uid) || provider_id(claim) == Some(&instance.id)
    };
    world.claims.values().find(own).filter(|claim| claim.metadata.deletion_timestamp.is_none())
}

/// Says whether a claim says that its instance is called back.
fn is_told(claim: &NodeClaim) -> bool {
    Recall::of(claim.metadata.annotations.as_ref()).is_some()
}

/// S-18: a message is deleted only when its effect is recorded. That of an instance which ends already has none.
pub(in crate::sim) fn is_recorded(world: &mut World, about: &About) {
    let About::Warning(id) = about else { return };
    let instance = world.instances.get(id).filter(|instance| instance.ends.is_none());
    let untold = instance.and_then(|instance| claim_of(world, instance)).filter(|claim| !is_told(claim));
    if let Some(claim) = untold.and_then(|claim| claim.metadata.name.clone()) {
        world.violate("S-18", format!("the warning of {id} was deleted before {claim} was told"));
    }
}

/// S-18: a message about nobody changes nothing.
pub(in crate::sim) fn nobody_is_harmed(world: &mut World) {
    if world.queue.in_hand == Some(About::Nobody) {
        world.violate("S-18", "a message about nobody changed something".to_owned());
    }
}

/// S-18: the node of a recalled claim goes only when its time is up or what its pods go to is ready: by what the watch shows of it, which S-15
/// holds to the world, since nobody knows yet what has become of it since.
pub(in crate::sim) fn has_room_elsewhere<'n>(
    world: &mut World,
    claim: &str,
    planned: impl Iterator<Item = &'n str>,
    shown: &BTreeMap<String, NodeClaim>,
) {
    let is_ready = |claim: &NodeClaim| {
        let holds = [conditions::REGISTERED, conditions::INITIALIZED].iter().all(|kind| is_true(claim, kind));
        holds && claim.metadata.deletion_timestamp.is_none()
    };
    let mut missing = planned.filter(|name| !shown.get(*name).is_some_and(is_ready));
    if let Some(missing) = missing.next() {
        world.violate("S-18", format!("{claim} goes before {missing} is ready, and there was time"));
    }
}

impl Watch {
    /// S-18: a claim is told of its instance's warning in time, as long as there is somebody to do it.
    pub(super) fn claims_are_told(&mut self, world: &World) {
        self.warned.late |= world.faults.watch_lag_seconds > 0 || world.faults.cut_permille > 0;
        let untold = |one: &&Instance| {
            let delivered = one.warned.is_some_and(|warning| warning.delivered <= world.now);
            let claim = claim_of(world, one).filter(|claim| provider_id(claim).is_some());
            delivered && one.ends.is_none() && claim.is_some_and(|claim| !is_told(claim))
        };
        let untold: Vec<String> = world.instances.values().filter(untold).map(|one| one.id.clone()).collect();
        self.warned.since.retain(|id, _| untold.contains(id));
        let limit = if self.warned.late { TOLD_LIMIT + SEEN_LIMIT } else { TOLD_LIMIT };
        for id in untold {
            let since = *self.warned.since.entry(id.clone()).or_insert(world.now);
            if world.now.duration_since(since.max(world.unserved)) > limit {
                self.warned.since.insert(id.clone(), world.now);
                self.fail(world, "S-18", format!("the claim of {id} was not told of its warning in {limit:#}"));
            }
        }
    }

    /// S-18: a claim whose instance is called back is on its way out, or free of the recall, as soon as its time is up.
    pub(super) fn recalls_end(&mut self, world: &World) {
        let limit = if self.warned.late { LEFT_LIMIT + SEEN_LIMIT } else { LEFT_LIMIT };
        let called = |(name, claim): (&String, &NodeClaim)| {
            let stays = claim.metadata.deletion_timestamp.is_none();
            Recall::of(claim.metadata.annotations.as_ref()).filter(|_| stays).map(|recall| (name.clone(), recall))
        };
        let known = std::mem::take(&mut self.warned.recalled);
        for (name, recall) in world.claims.iter().filter_map(called) {
            let same = known.get(&name).copied().filter(|(before, ..)| *before == recall);
            let (_, mut told, skew) = same.unwrap_or((recall, world.now, world.skew));
            // by the clock of the world; a controller whose clock is slow waits no longer for that than from when it was told
            let mut due = recall.due() - SignedDuration::from_secs(world.skew);
            if skew == world.skew && told != Timestamp::MAX {
                due = due.min(told + recall.due().duration_since(recall.at));
            }
            if world.now.duration_since(due.max(told).max(world.unserved)) > limit {
                told = Timestamp::MAX;
                self.fail(world, "S-18", format!("{name} is called back, and still there {limit:#} after its time"));
            }
            self.warned.recalled.insert(name, (recall, told, skew));
        }
    }

    /// S-18: the node of a recalled claim takes no new pods.
    pub(super) fn recalled_nodes_are_closed(&mut self, world: &World) {
        let limit = if self.warned.late { TAINTED_WITHIN + SEEN_LIMIT } else { TAINTED_WITHIN };
        let takes_pods = |claim: &NodeClaim| {
            let id = provider_id(claim);
            let is_its = |node: &&core::Node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == id;
            let node = world.nodes.values().find(is_its).filter(|_| id.is_some());
            node.is_some_and(|node| node.metadata.deletion_timestamp.is_none() && !is_tainted(node))
        };
        let open =
            |claim: &NodeClaim| claim.metadata.deletion_timestamp.is_none() && is_told(claim) && takes_pods(claim);
        let known = std::mem::take(&mut self.warned.open);
        for name in world.claims.iter().filter(|(_, claim)| open(claim)).map(|(name, _)| name) {
            let mut since = known.get(name).copied().unwrap_or(world.now);
            if world.now.duration_since(since.max(world.unserved)) > limit {
                since = world.now;
                self.fail(world, "S-18", format!("{name} is called back, and its node takes pods after {limit:#}"));
            }
            self.warned.open.insert(name.clone(), since);
        }
    }

    /// S-7: at the end no message about a live claim is left.
    pub(super) fn messages_are_handled(&mut self, world: &World) {
        let concerns = |about: &&About| match about {
            About::Warning(id) | About::Advice(id) | About::End(id) => {
                world.instances.get(id).is_some_and(|one| claim_of(world, one).is_some())
                    || world.claims.values().any(|claim| provider_id(claim) == Some(&**id))
            }
            About::Nobody => false,
        };
        let left: Vec<String> = world.queue.left().filter(concerns).map(|about| format!("{about:?}")).collect();
        left.into_iter().for_each(|what| self.fail(world, "S-7", format!("a message is left: {what}")));
    }
}

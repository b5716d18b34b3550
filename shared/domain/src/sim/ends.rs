//! How claims, nodes and instances end, as `controller/src/reconcile/termination.rs` does it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::account::{Action, Throttled};
use super::batch::{Seat, listed, seek};
use super::check;
use super::cloud::Instance;
use super::controller::Controller;
use super::world::{World, is_ready};
use super::writes::{Stop, ask, call, taint, wrote};
use crate::api::{NodeClaim, conditions};
use crate::cluster::Pod;
use crate::eviction::{self, Answer, Drain, Wait};
use crate::lifecycle::launch::{Doubt, batch, was_tried};
use crate::lifecycle::{self, provider_id};
use crate::pace::THROTTLED_WAIT;

/// Pause between questions whether an instance is gone.
const INSTANCE_PAUSE: Duration = Duration::from_secs(2);

/// A node that is to go.
#[derive(Clone, Copy)]
pub(super) struct Leaving<'n> {
    pub(super) name: &'n str,
    /// Its instance.
    pub(super) id: &'n str,
    pub(super) claim: Option<&'n NodeClaim>,
    /// When it was asked to go.
    since: Timestamp,
    /// When it has to be gone.
    pub(super) deadline: Option<Timestamp>,
}

/// By when the node of a claim has to be gone that was asked to go at `since`: counted from the deletion of the claim, as it is written there.
fn deadline(claim: &NodeClaim, since: Timestamp) -> Option<Timestamp> {
    let asked = claim.metadata.deletion_timestamp.as_ref().map_or(since, |time| time.0);
    let granted = claim.spec.grace().map(|grace| asked.saturating_add(grace).unwrap_or(Timestamp::MAX));
    granted.into_iter().chain(lifecycle::drained_by(claim)).min()
}

impl Controller<'_> {
    pub(super) fn end_claim(
        &mut self,
        world: &mut World,
        claim: &NodeClaim,
        node: Option<&core::Node>,
    ) -> Result<(), Stop> {
        let name = claim.metadata.name.clone().unwrap_or_default();
        if let Some(node) = node {
            let (now, node) = (world.now, node.metadata.name.clone().unwrap_or_default());
            ask(world)?;
            if let Some(node) = world.nodes.get_mut(&node).filter(|node| node.metadata.deletion_timestamp.is_none()) {
                node.metadata.deletion_timestamp = Some(Time(now));
                return wrote(world);
            }
            return Ok(());
        }
        let id = match provider_id(claim) {
            Some(id) => Some(id.to_owned()),
            // killed between the launch and its record: the tag knows
            None if batch(claim).is_some() => match self.seat(world, claim, batch(claim).unwrap_or_default())? {
                Seat::Given(instance) => Some(instance.id),
                Seat::Empty => None,
                Seat::Unknown => return Ok(()),
            },
            None if was_tried(claim) => match self.find(world, claim) {
                Ok(found) => found.map(|instance| instance.id),
                Err(Throttled) => return Ok(()),
            },
            None => None,
        };
        if id.is_none() && self.awaits_the_listing(world, claim)? {
            return Ok(());
        }
        if id.is_some() {
            // that is all that came of its launch
            self.settled.extend(claim.metadata.uid.clone());
        }
        let launched = lifecycle::since(claim, conditions::LAUNCHED);
        let gone = match &id {
            Some(id) => self.end_instance(world, id, launched)?,
            None => true,
        };
        if gone && world.is_current(claim) {
            ask(world)?;
            check::ends_before_its_claim(world, &name, id.as_deref());
            world.claims.remove(&name);
            return wrote(world);
        }
        Ok(())
    }

    /// Says whether a claim waits for what may have been launched for it and is not listed yet, as `controller/src/reconcile/doubt.rs` does it.
    fn awaits_the_listing(&mut self, world: &mut World, claim: &NodeClaim) -> Result<bool, Stop> {
        let settled = claim.metadata.uid.as_ref().is_some_and(|uid| self.settled.contains(uid));
        match self.decisions.doubt(claim, settled, listed(), world.clock()) {
            Doubt::Settled => Ok(false),
            Doubt::New if world.is_current(claim) => {
                seek(world, claim.metadata.name.as_deref().unwrap_or_default()).map(|()| true)
            }
            Doubt::New | Doubt::Listing(_) => Ok(true),
        }
    }

    /// Looks for the instance of a claim by its tag; as long as that must wait it counts as throttled.
    pub(super) fn find(&mut self, world: &mut World, claim: &NodeClaim) -> Result<Option<Instance>, Throttled> {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let now = world.uptime();
        if self.turns.rests(name, now) || !self.turns.comes(self.decisions, Action::Describe, name, now) {
            return Err(Throttled);
        }
        let found = world.find(claim.metadata.uid.as_deref().unwrap_or_default());
        found.inspect_err(|Throttled| self.turns.rest(name, now + THROTTLED_WAIT))
    }

    /// Asks that an instance ends, unless it does already; says whether it is known to be gone. The controller may be killed just after EC2 has
    /// been asked.
    pub(super) fn end_instance(
        &mut self,
        world: &mut World,
        id: &str,
        launched: Option<Timestamp>,
    ) -> Result<bool, Stop> {
        let now = world.uptime();
        if self.turns.rests(id, now) {
            return Ok(false);
        }
        if !self.turns.waits(Action::TerminateInstances, id) {
            if !self.turns.comes(self.decisions, Action::Describe, id, now) {
                return Ok(false);
            }
            match world.is_ending(id) {
                Ok(false) => {}
                Ok(true) => return Ok(self.ask_again(id, now + INSTANCE_PAUSE)),
                Err(Throttled) => return Ok(self.ask_again(id, now + THROTTLED_WAIT)),
            }
        }
        if !self.turns.comes(self.decisions, Action::TerminateInstances, id, now) {
            return Ok(false);
        }
        let asked = world.terminate(id);
        call(world)?;
        Ok(match asked {
            Ok(false) if self.decisions.is_gone_if_unknown(launched, world.clock()) => true,
            Ok(_) => self.ask_again(id, now + INSTANCE_PAUSE),
            Err(Throttled) => self.ask_again(id, now + THROTTLED_WAIT),
        })
    }

    /// The instance is not known to be gone, and not asked for until then.
    fn ask_again(&mut self, id: &str, then: Duration) -> bool {
        self.turns.rest(id, then);
        false
    }

    pub(super) fn end_node(&mut self, world: &mut World, name: &str) -> Result<(), Stop> {
        let Some(node) = self.view.nodes().get(name).filter(|node| node.metadata.deletion_timestamp.is_some()).cloned()
        else {
            return Ok(());
        };
        let since = node.metadata.deletion_timestamp.as_ref().map_or(world.now, |time| time.0);
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
        let claim = self.view.claims().values().find(|claim| provider_id(claim) == Some(&id)).cloned();
        taint(world, name, true)?;
        let there = world.instances.contains_key(&id);
        let deadline = claim.as_ref().and_then(|claim| deadline(claim, since));
        let mut drained = None;
        if there || is_ready(&node) {
            let leaving = Leaving { name, id: &id, claim: claim.as_ref(), since, deadline };
            drained = self.drain(world, &leaving)?;
            if drained.is_none() {
                return Ok(());
            }
        }
        let alive = world.is_alive(&id);
        // what has joined was known
        let joined = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let launched = claim.as_ref().and_then(|claim| lifecycle::since(claim, conditions::LAUNCHED)).or(joined);
        let gone = self.end_instance(world, &id, launched);
        if alive && !world.is_alive(&id) {
            world.ended_drained(&id, name, deadline);
            if let Some(drained) = drained {
                check::volumes::ended_detached(world, name, drained, deadline);
            }
        }
        if gone? {
            ask(world)?;
            world.nodes.remove(name);
            self.drained.remove(&id);
            wrote(world)?;
        }
        Ok(())
    }

    /// Takes a drain one step further; answers since when the node has been drained, once its instance may end.
    fn drain(&mut self, world: &mut World, leaving: &Leaving<'_>) -> Result<Option<Timestamp>, Stop> {
        let Leaving { name, id, since, deadline, .. } = *leaving;
        let on_it = |pod: &&Pod| pod.node.as_deref() == Some(name);
        let pods: Vec<Arc<Pod>> = self.view.pods().values().filter(on_it).cloned().map(Arc::new).collect();
        let answers = self.answers.entry(id.to_owned()).or_default();
        let step = self.decisions.drain(&Drain { pods: &pods, since, deadline, answers }, world.clock());
        let known = self.is_drained(leaving);
        if let eviction::Step::Wait(wait) = step {
            self.empty(world, leaving, &wait)?;
            if known {
                self.drains_again(world, leaving)?;
            }
            return Ok(None);
        }
        if !known && self.has_unseen(world, leaving)? {
            return Ok(None);
        }
        // without volumes nothing is asked of them, nor written
        if !world.volumes.are_used() {
            return Ok(Some(world.clock()));
        }
        let drained = self.drained_at(world, leaving);
        let all_detached = self.detached(world, leaving, drained)?;
        if all_detached && known && self.has_unseen(world, leaving)? {
            return self.drains_again(world, leaving).map(|()| None);
        }
        self.tell_drained(world, leaving)?;
        Ok(all_detached.then_some(drained))
    }

    /// Evicts and deletes the pods of a node whose turn it is.
    fn empty(&mut self, world: &mut World, leaving: &Leaving<'_>, wait: &Wait) -> Result<(), Stop> {
        let answers = self.answers.entry(leaving.id.to_owned()).or_default();
        for target in &wait.evict {
            ask(world)?;
            let answer = world.evict(&self.decisions.eviction(target));
            let done = answer == Answer::Done;
            answers.note(&target.uid, answer, world.clock());
            if done { wrote(world)? } else { call(world)? }
        }
        for forced in &wait.delete {
            ask(world)?;
            world.force(&forced.pod, &forced.uid, forced.grace_seconds, leaving.deadline);
            wrote(world)?;
        }
        Ok(())
    }

    /// Asks the API server whether there is a pod that has to go first and that the watch does not show.
    fn has_unseen(&mut self, world: &mut World, leaving: &Leaving<'_>) -> Result<bool, Stop> {
        let Leaving { name, id, since, deadline, .. } = *leaving;
        if !self.decisions.asks_for_pods(deadline, world.clock()) {
            return Ok(false);
        }
        ask(world)?;
        let on_it = |pod: &&Pod| pod.node.as_deref() == Some(name);
        let pods: Vec<Arc<Pod>> = world.pods.values().filter(on_it).cloned().map(Arc::new).collect();
        let answers = self.answers.entry(id.to_owned()).or_default();
        let drain = Drain { pods: &pods, since, deadline, answers };
        Ok(self.decisions.drain(&drain, world.clock()) != eviction::Step::Drained)
    }
}

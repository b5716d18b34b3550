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
use crate::eviction::{self, Answer, Drain};
use crate::lifecycle::launch::{Doubt, batch, was_tried};
use crate::lifecycle::{self, provider_id};
use crate::pace::THROTTLED_WAIT;

/// Pause between questions whether an instance is gone.
const INSTANCE_PAUSE: Duration = Duration::from_secs(2);

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
        let mut until = None;
        if there || is_ready(&node) {
            let on_it = |pod: &&Pod| pod.node.as_deref() == Some(name);
            let pods: Vec<Arc<Pod>> = self.view.pods().values().filter(on_it).cloned().map(Arc::new).collect();
            let grace = claim.as_ref().and_then(|claim| claim.spec.grace());
            // counted from the deletion of the claim, as it is written there
            let asked = claim.as_ref().and_then(|claim| claim.metadata.deletion_timestamp.as_ref());
            let asked = asked.map_or(since, |time| time.0);
            let granted = grace.map(|grace| asked.saturating_add(grace).unwrap_or(Timestamp::MAX));
            let deadline = granted.into_iter().chain(claim.as_ref().and_then(lifecycle::drained_by)).min();
            until = deadline;
            let answers = self.answers.entry(id.clone()).or_default();
            let step = self.decisions.drain(&Drain { pods: &pods, since, deadline, answers }, world.clock());
            if step == eviction::Step::Drained && self.decisions.asks_for_pods(deadline, world.clock()) {
                ask(world)?;
                let pods: Vec<Arc<Pod>> = world.pods.values().filter(on_it).cloned().map(Arc::new).collect();
                let drain = Drain { pods: &pods, since, deadline, answers };
                if self.decisions.drain(&drain, world.clock()) != eviction::Step::Drained {
                    return Ok(());
                }
            }
            if let eviction::Step::Wait(wait) = step {
                for target in &wait.evict {
                    ask(world)?;
                    let answer = world.evict(&self.decisions.eviction(target));
                    let done = answer == Answer::Done;
                    answers.note(&target.uid, answer, world.clock());
                    if done { wrote(world)? } else { call(world)? }
                }
                for forced in &wait.delete {
                    ask(world)?;
                    world.force(&forced.pod, &forced.uid, forced.grace_seconds, deadline);
                    wrote(world)?;
                }
                return Ok(());
            }
        }
        let alive = world.is_alive(&id);
        // what has joined was known
        let joined = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let launched = claim.as_ref().and_then(|claim| lifecycle::since(claim, conditions::LAUNCHED)).or(joined);
        let gone = self.end_instance(world, &id, launched);
        if alive && !world.is_alive(&id) {
            world.ended_drained(&id, name, until);
        }
        if gone? {
            ask(world)?;
            world.nodes.remove(name);
            wrote(world)?;
        }
        Ok(())
    }
}

//! Interruption, as `controller/src/reconcile/interruption/` does it: messages become recalls on claims, and are deleted only after that.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use super::check::warnings;
use super::controller::Controller;
use super::queue::Received;
use super::world::{World, is_tainted};
use super::writes::{Stop, ask, call, delete_claim, taint, wrote};
use crate::api::{NodeClaim, conditions, labels};
use crate::catalogue::CapacityType;
use crate::disruption::Progress;
use crate::fleet::UnavailableOffering;
use crate::interruption::{Action, Cause, Message, Next, Notice, Recall, Unrecorded, Vacating};
use crate::lifecycle::{is_true, provider_id};

impl Controller<'_> {
    /// Handles what the queue gives, one after the other, and deletes then what was handled.
    pub(super) fn interruptions(&mut self, world: &mut World) -> Result<(), Stop> {
        let mut receipts = Vec::new();
        for received in world.receive() {
            world.take_in_hand(received.receipt);
            let handled = self.handle(world, &received);
            world.queue.in_hand = None;
            if handled? {
                receipts.push(received.receipt);
            }
        }
        if !receipts.is_empty() {
            call(world)?;
        }
        receipts.into_iter().for_each(|receipt| world.delete_message(receipt));
        Ok(())
    }

    /// Says whether a message is done with.
    fn handle(&mut self, world: &mut World, received: &Received) -> Result<bool, Stop> {
        let message = self.decisions.message(&received.body);
        let mut unrecorded = Unrecorded::of(&message);
        for notice in message.notices() {
            if self.decisions.deletes(unrecorded) {
                world.delete_message(received.receipt);
                call(world)?;
            }
            match self.claim_of(&notice.instance_id) {
                Some(claim) => self.heed(world, &message, notice, &claim)?,
                None if self.decisions.keeps(&message, notice, self.launches(), world.clock()) => continue,
                None => {}
            }
            unrecorded.recorded();
        }
        Ok(self.decisions.deletes(unrecorded))
    }

    fn claim_of(&self, instance: &str) -> Option<NodeClaim> {
        let own = |claim: &&NodeClaim| provider_id(claim).is_some_and(|id| id.rsplit('/').next() == Some(instance));
        self.view.claims().values().find(own).cloned()
    }

    /// Says whether a claim does not say yet which instance is its own.
    fn launches(&self) -> bool {
        let waits = |claim: &NodeClaim| provider_id(claim).is_none() && claim.metadata.deletion_timestamp.is_none();
        self.view.claims().values().any(waits)
    }

    fn heed(&mut self, world: &mut World, message: &Message, notice: &Notice, claim: &NodeClaim) -> Result<(), Stop> {
        if claim.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let at = |cause, world: &World| Recall::announced(cause, notice.at, world.clock());
        match message.action() {
            Action::Ignore => Ok(()),
            Action::Advise if !world.follows_advice || !is_true(claim, conditions::INITIALIZED) => Ok(()),
            Action::Advise => self.recall(world, claim, at(Cause::RebalanceRecommendation, world)),
            Action::Delete => self.delete(world, claim),
            Action::Recall(cause) => self.recall(world, claim, at(cause, world)),
        }
    }

    fn delete(&mut self, world: &mut World, claim: &NodeClaim) -> Result<(), Stop> {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        if world.claims.get(name).is_some_and(|known| known.metadata.uid == claim.metadata.uid) {
            delete_claim(world, name)?;
            self.assumed.deleted(name);
        }
        Ok(())
    }

    /// Records on a claim that its instance is called back: a patch of what was seen, or else of what is there.
    fn recall(&mut self, world: &mut World, claim: &NodeClaim, recall: Recall) -> Result<(), Stop> {
        if recall.cause.speaks_against_offering() {
            self.avoid(world, claim, recall.cause);
        }
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let leaves =
            |known: &NodeClaim| known.metadata.deletion_timestamp.is_some() || known.metadata.uid != claim.metadata.uid;
        let new = |known: &NodeClaim| !leaves(known) && recall.hastens(known.metadata.annotations.as_ref());
        if !new(claim) {
            return Ok(());
        }
        ask(world)?;
        if let Some(known) = world.claims.get_mut(name).filter(|known| new(known)) {
            let annotations = recall.annotations().map(|(key, value)| (key.to_owned(), value));
            known.metadata.annotations.get_or_insert_default().extend(annotations);
            world.recalls += 1;
            return wrote(world);
        }
        Ok(())
    }

    /// EC2 takes this offering back: the replacement is to be another.
    fn avoid(&mut self, world: &World, claim: &NodeClaim, cause: Cause) {
        let label = |key: &str| claim.metadata.labels.as_ref().and_then(|all| all.get(key)).cloned();
        if let (Some(instance_type), Some(zone)) = (label(labels::INSTANCE_TYPE), label(labels::ZONE)) {
            let (capacity_type, code) = (CapacityType::Spot, cause.as_str().to_owned());
            let offering = UnavailableOffering { instance_type, zone, capacity_type, reservation: None, code };
            self.unavailable.mark(&offering, world.uptime());
        }
    }

    /// Takes a claim whose instance is called back one step further: taint, plan, wait for the new home of its pods, delete.
    pub(super) fn replace(
        &mut self,
        world: &mut World,
        claim: &NodeClaim,
        node: Option<&core::Node>,
        recall: Recall,
    ) -> Result<(), Stop> {
        let name = node.and_then(|node| node.metadata.name.as_deref()).unwrap_or_default();
        let home = self.home(name);
        let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
        let vacating = |node: &core::Node| Vacating { tainted: is_tainted(node), rehoused: home.is_some() };
        let mut seen = node.map(vacating);
        loop {
            match self.decisions.recalled(recall, seen, world.clock()) {
                Next::Wait => return Ok(()),
                Next::Stay => return self.stay(world, claim),
                Next::Delete => {
                    let early = world.clock() < recall.due();
                    let planned = home.iter().flatten().map(|claim| &**claim).filter(|_| early);
                    warnings::has_room_elsewhere(world, claim_name, planned, self.view.claims());
                    return self.delete(world, claim);
                }
                Next::Taint => {
                    taint(world, name, true)?;
                    self.assumed.tainted(claim_name);
                    self.batcher.add(world.clock());
                    seen = seen.map(|node| Vacating { tainted: true, ..node });
                }
            }
        }
    }

    /// Takes a recall back.
    fn stay(&mut self, world: &mut World, claim: &NodeClaim) -> Result<(), Stop> {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        ask(world)?;
        if let Some(annotations) = world.claims.get_mut(name).and_then(|known| known.metadata.annotations.as_mut()) {
            annotations.remove(labels::INTERRUPTED_AT);
            annotations.remove(labels::INTERRUPTED_BY);
            world.stays += 1;
        }
        wrote(world)?;
        self.assumed.untainted(name);
        Ok(())
    }

    /// The claims that the last plan has for the pods of a node, if it was made without the node and they are ready.
    fn home(&self, node: &str) -> Option<Vec<Arc<str>>> {
        let pods = self.view.pods().values().filter(|pod| pod.node.as_deref() == Some(node)).map(|pod| &pod.key);
        let progress = |claim: &str| self.decisions.progress(self.view.claims().get(claim), false);
        self.plan.home(node, pods, |claim| progress(claim) == Progress::Initialized)
    }
}

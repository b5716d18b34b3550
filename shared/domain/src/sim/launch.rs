//! The launch, as `controller/src/reconcile/launch.rs` does it: the attempt is written first, what an earlier try left is adopted, and
//! a refusal teaches what production's reading of EC2's codes says.

use super::account::Action;
use super::batch::annotate;
use super::check;
use super::cloud::{Instance, Refusal, zone_of};
use super::controller::Controller;
use super::world::World;
use super::writes::{Stop, ask, delete_claim, effect, set, wrote, yes};
use crate::api::conditions::{self, ConditionStatus};
use crate::api::{NodeClaim, labels};
use crate::catalogue::RankedOffering;
use crate::fleet::{Lesson, REFUSED_WAIT, UnavailableOffering};
use crate::lifecycle::launch::{ATTEMPT, BATCH, DIGEST, SOUGHT_SINCE, batch, is_in_doubt, was_tried};
use crate::pace::THROTTLED_WAIT;

impl Controller<'_> {
    /// Takes a claim one step towards its instance.
    pub(super) fn launch(&mut self, world: &mut World, claim: &NodeClaim) -> Result<(), Stop> {
        let name = claim.metadata.name.clone().unwrap_or_default();
        if self.turns.rests(&name, world.uptime()) {
            return Ok(());
        }
        if let Some(id) = batch(claim) {
            return self.launched_together(world, claim, id);
        }
        let tried = was_tried(claim);
        if tried && !self.turns.waits(Action::CreateFleet, &name) {
            match self.find(world, claim) {
                Ok(None) => {}
                Ok(Some(instance)) if world.is_current(claim) => return adopt(world, &name, instance),
                _ => return Ok(()),
            }
        }
        if !world.is_current(claim) {
            // the digest of the request cannot be written: nothing is asked of EC2
            return Ok(());
        }
        self.ask(world, claim)
    }

    /// Asks EC2 for the cheapest that is not known to be missing, when it is this call's turn.
    fn ask(&mut self, world: &mut World, claim: &NodeClaim) -> Result<(), Stop> {
        let (name, now) = (claim.metadata.name.clone().unwrap_or_default(), world.uptime());
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let Ok(wanted) = crate::api::requirements(&claim.spec.requirements) else { return Ok(()) };
        let catalogue = self.unavailable.apply(&world.catalogue, now);
        let (types, market) = catalogue.select(&wanted);
        let Some(offering) = catalogue.ranked(&types, market).into_iter().next() else {
            return delete_claim(world, &name);
        };
        if !self.turns.comes(self.decisions, Action::CreateFleet, &name, now) {
            return Ok(());
        }
        let mates = if self.decisions.may_join(claim) { self.mates(world, claim) } else { Vec::new() };
        if !mates.is_empty() {
            let all = std::iter::once(claim.clone()).chain(mates).collect();
            return self.launch_together(world, all, &offering);
        }
        // whether something may come of what was asked before
        let known = self.settled.remove(&uid);
        let open = is_in_doubt(claim) && !known;
        if !is_in_doubt(claim) {
            begin(world, &name, attempt(claim))?;
        }
        let token = self.decisions.token(&uid, attempt(claim), world.clock());
        let answer = world.launch(&name, &uid, &token, offering.clone());
        effect(world)?;
        match answer {
            Ok(instance) => adopt(world, &name, instance),
            Err(Refusal::LostReply) => failed(world, &name, conditions::LAUNCH_FAILED),
            Err(Refusal::Code(code)) => {
                if !open {
                    self.settled.insert(uid);
                }
                self.refused(world, claim, &offering, code)
            }
        }
    }

    /// Draws the consequence of a refusal: another offering for the pods, the same call later, or another attempt much later.
    pub(super) fn refused(
        &mut self,
        world: &mut World,
        claim: &NodeClaim,
        asked: &RankedOffering,
        code: &str,
    ) -> Result<(), Stop> {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let (known, now) = (self.unavailable.clone(), world.uptime());
        let asked = UnavailableOffering {
            instance_type: asked.instance_type.to_string(),
            zone: asked.zone.name.to_string(),
            capacity_type: asked.capacity_type,
            reservation: None,
            code: code.to_owned(),
        };
        let lesson = self.decisions.lesson(code);
        if let Some(missing) = asked.learnt(lesson) {
            self.unavailable.mark(&missing, now);
        }
        check::a_throttle_teaches_nothing(world, code, &known, &self.unavailable);
        match lesson {
            Lesson::Missing(_) => delete_claim(world, name),
            Lesson::Wait => {
                self.turns.rest(name, now + THROTTLED_WAIT);
                failed(world, name, conditions::LAUNCH_FAILED)
            }
            Lesson::Nothing => {
                self.turns.rest(name, now + REFUSED_WAIT);
                advance(world, name)?;
                failed(world, name, code)
            }
        }
    }
}

/// The attempt that is written on a claim; the first if none is.
fn attempt(claim: &NodeClaim) -> u32 {
    crate::lifecycle::launch::attempt(claim).unwrap_or(1)
}

/// Writes on a claim that a call is made for it.
fn begin(world: &mut World, name: &str, attempt: u32) -> Result<(), Stop> {
    annotate(world, name, |all| {
        all.extend([(ATTEMPT.to_owned(), attempt.to_string()), (DIGEST.to_owned(), "d".to_owned())]);
    })
}

/// Gives a claim's next launch a token of its own.
pub(super) fn advance(world: &mut World, name: &str) -> Result<(), Stop> {
    let next = world.claims.get(name).map_or(1, |claim| attempt(claim) + 1);
    annotate(world, name, |all| {
        all.insert(ATTEMPT.to_owned(), next.to_string());
        for key in [DIGEST, BATCH, SOUGHT_SINCE] {
            all.remove(key);
        }
    })
}

/// Notes that a launch came to nothing so far, and why.
pub(super) fn failed(world: &mut World, name: &str, reason: &str) -> Result<(), Stop> {
    let Some(claim) = world.claims.get(name).cloned() else { return Ok(()) };
    set(world, &claim, |status, now| {
        let unknown = ConditionStatus::Unknown;
        conditions::set(&mut status.conditions, conditions::LAUNCHED, unknown, reason, "", now);
    })
}

/// Writes what the instance is to the claim.
pub(super) fn adopt(world: &mut World, name: &str, instance: Instance) -> Result<(), Stop> {
    let kind = world.catalogue.get(&instance.offering.instance_type).cloned();
    ask(world)?;
    if let (Some(claim), Some(kind)) = (world.claims.get_mut(name), &kind) {
        let all = claim.metadata.labels.get_or_insert_default();
        for (key, values) in &kind.labels {
            if let [value] = values.as_slice() {
                all.insert(key.to_string(), value.to_string());
            }
        }
        all.insert(labels::ZONE.to_owned(), zone_of(&instance).to_string());
        all.insert(labels::CAPACITY_TYPE.to_owned(), instance.offering.capacity_type.to_string());
    }
    wrote(world)?;
    let Some(claim) = world.claims.get(name).cloned() else { return Ok(()) };
    set(world, &claim, |status, now| {
        status.provider_id = Some(instance.id);
        status.capacity = kind.as_ref().map(|kind| kind.capacity.clone());
        status.allocatable = kind.map(|kind| kind.allocatable());
        yes(status, conditions::LAUNCHED, now);
    })
}

//! Launches for several claims at once, as `controller/src/reconcile/batch.rs` does them: the batch is written on each claim before EC2 is asked,
//! what came of it is given out by one process, and what nobody has an answer of is looked for.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::account::{Action, Throttled};
use super::cloud::{Instance, NO_CAPACITY, Refusal};
use super::controller::Controller;
use super::launch::{adopt, advance, failed};
use super::world::World;
use super::writes::{Stop, ask, effect, survived, wrote};
use crate::api::{NodeClaim, conditions};
use crate::catalogue::RankedOffering;
use crate::lifecycle::launch::{self, BATCH, DIGEST, SOUGHT_SINCE, batch};
use crate::lifecycle::{APPEARS_WITHIN, Seats, Step, provider_id};
use crate::pace::THROTTLED_WAIT;

/// Pause between looks for what a batch gave.
const LISTING_PAUSE: Duration = Duration::from_secs(5);

/// What a controller knows of a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    seats: Seats,
    instances: BTreeMap<String, Instance>,
}

impl Known {
    fn of(&self, claim: &NodeClaim) -> Option<Instance> {
        self.instances.get(self.seats.of(claim)?).cloned()
    }
}

/// What a claim of a batch has of it.
pub(super) enum Seat {
    Given(Box<Instance>),
    /// Nothing is there for it, as far as EC2 lists what it launched.
    Empty,
    /// It cannot be said now.
    Unknown,
}

impl Controller<'_> {
    /// The claims that ask for the same as one whose turn it is, now and then. Which of them are asked for together makes no difference to
    /// what must hold.
    pub(super) fn mates(&mut self, world: &mut World, claim: &NodeClaim) -> Vec<NodeClaim> {
        let (now, permille) = (world.uptime(), world.faults.batches_permille);
        let mut alike: Vec<NodeClaim> = self.view.claims().values().cloned().collect();
        alike.retain(|one| {
            let launches = matches!(self.decisions.step(one, None, None, world.clock()).step, Step::Launch);
            let name = one.metadata.name.as_deref().unwrap_or_default();
            let other = one.metadata.uid != claim.metadata.uid && world.is_current(one);
            launches && other && one.spec == claim.spec && self.decisions.may_join(one) && !self.turns.rests(name, now)
        });
        if alike.is_empty() || !world.random.happens(permille) {
            return Vec::new();
        }
        alike
    }

    /// Asks EC2 for all of them at once.
    pub(super) fn launch_together(
        &mut self,
        world: &mut World,
        claims: Vec<NodeClaim>,
        offering: &RankedOffering,
    ) -> Result<(), Stop> {
        world.count += 1;
        let id = format!("batch-{}", world.count);
        let mut members = Vec::new();
        for claim in claims {
            // of one whose write was not answered nobody knows whether it says so: it is none of them
            match join(world, &claim, &id) {
                Ok(()) => members.push(claim),
                Err(Stop::Unanswered) => {}
                Err(Stop::Killed) => return Err(Stop::Killed),
            }
        }
        if members.is_empty() {
            return Ok(());
        }
        let uid = |claim: &NodeClaim| claim.metadata.uid.clone().unwrap_or_default();
        self.settled.retain(|settled| members.iter().all(|claim| uid(claim) != *settled));
        let answer = world.launch_batch(&id, &members, offering);
        effect(world)?;
        if !matches!(answer, Err(Refusal::LostReply)) {
            // whoever gets nothing of it is given up: nothing of theirs can turn up
            self.settled.extend(members.iter().map(uid));
        }
        let name = |claim: &NodeClaim| claim.metadata.name.clone().unwrap_or_default();
        match answer {
            Ok(launched) => {
                let ids: Vec<String> = launched.iter().map(|one| one.id.clone()).collect();
                let instances = launched.into_iter().map(|one| (one.id.clone(), one)).collect();
                let known = Known { seats: Seats::answered(&members, &ids), instances };
                self.batches.insert(id, known.clone());
                members.iter().try_for_each(|claim| {
                    survived(match known.of(claim) {
                        Some(instance) => adopt(world, &name(claim), instance),
                        None => self.refused(world, claim, offering, NO_CAPACITY),
                    })
                })
            }
            Err(Refusal::LostReply) => {
                members.iter().try_for_each(|claim| survived(failed(world, &name(claim), conditions::LAUNCH_FAILED)))
            }
            Err(Refusal::Code(code)) => members.iter().try_for_each(|claim| {
                // a definite answer: the next attempt is another request
                survived(advance(world, &name(claim)))?;
                survived(self.refused(world, claim, offering, code))
            }),
        }
    }

    /// Goes on with the launch of a claim whose batch was begun, perhaps by an earlier process.
    pub(super) fn launched_together(&mut self, world: &mut World, claim: &NodeClaim, id: &str) -> Result<(), Stop> {
        let (seat, name) = (self.seat(world, claim, id)?, claim.metadata.name.as_deref().unwrap_or_default());
        if !world.is_current(claim) {
            return Ok(());
        }
        match seat {
            Seat::Given(instance) => adopt(world, name, *instance),
            Seat::Unknown => Ok(()),
            Seat::Empty => match launch::sought_since(claim) {
                None => seek(world, name),
                Some(since) if may_turn_up(world, since) => Ok(()),
                Some(_) => advance(world, name),
            },
        }
    }

    /// Answers what a claim has of its batch: as this process gave it out, or as EC2 lists it.
    pub(super) fn seat(&mut self, world: &mut World, claim: &NodeClaim, id: &str) -> Result<Seat, Stop> {
        if let Some(instance) = self.batches.get(id).and_then(|known| known.of(claim)) {
            return Ok(Seat::Given(Box::new(instance)));
        }
        let now = world.uptime();
        if self.turns.rests(id, now) {
            return Ok(if self.batches.contains_key(id) { Seat::Empty } else { Seat::Unknown });
        }
        if !self.turns.comes(self.decisions, Action::Describe, id, now) {
            return Ok(Seat::Unknown);
        }
        let found = match world.find_batch(id) {
            Ok(found) => found,
            Err(Throttled) => {
                self.turns.rest(id, now + THROTTLED_WAIT);
                return Ok(Seat::Unknown);
            }
        };
        ask(world)?;
        if !self.batches.contains_key(id) {
            // what an earlier process is about to write to them is out of date from here on
            let seeks = |claim: &&NodeClaim| batch(claim) == Some(id) && provider_id(claim).is_none();
            let names = world.claims.values().filter(seeks).filter_map(|claim| claim.metadata.name.clone());
            names.collect::<Vec<_>>().iter().try_for_each(|name| seek(world, name))?;
        }
        let claims: Vec<NodeClaim> = world.claims.values().cloned().collect();
        let known = self.batches.entry(id.to_owned()).or_default();
        let ids: Vec<String> = found.iter().map(|one| one.id.clone()).collect();
        self.decisions.seek(&mut known.seats, id, &ids, &claims);
        known.instances.extend(found.into_iter().map(|one| (one.id.clone(), one)));
        self.turns.rest(id, now + LISTING_PAUSE);
        Ok(known.of(claim).map_or(Seat::Empty, |instance| Seat::Given(Box::new(instance))))
    }
}

/// Writes the batch on a claim, if it still is as it was seen.
fn join(world: &mut World, claim: &NodeClaim, id: &str) -> Result<(), Stop> {
    annotate(world, claim.metadata.name.as_deref().unwrap_or_default(), |all| {
        all.entry(launch::ATTEMPT.to_owned()).or_insert_with(|| "1".to_owned());
        all.extend([(DIGEST.to_owned(), "d".to_owned()), (BATCH.to_owned(), id.to_owned())]);
    })
}

/// EC2 lists within this time what it launched.
pub(super) const fn listed() -> Duration {
    Duration::from_secs(APPEARS_WITHIN.as_secs().unsigned_abs())
}

/// Says whether what is looked for since then may still be listed.
fn may_turn_up(world: &World, since: Option<Timestamp>) -> bool {
    since.and_then(|since| launch::listing_left(since, world.clock(), listed())).is_some()
}

/// Notes that a claim's instance is looked for from now on.
pub(super) fn seek(world: &mut World, name: &str) -> Result<(), Stop> {
    let now = world.clock();
    annotate(world, name, |all| {
        all.insert(SOUGHT_SINCE.to_owned(), now.to_string());
    })
}

/// Changes the annotations of a claim.
pub(super) fn annotate(
    world: &mut World,
    name: &str,
    change: impl FnOnce(&mut BTreeMap<String, String>),
) -> Result<(), Stop> {
    ask(world)?;
    if let Some(claim) = world.claims.get_mut(name) {
        change(claim.metadata.annotations.get_or_insert_default());
    }
    wrote(world)
}

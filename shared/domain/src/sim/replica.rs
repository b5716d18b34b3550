//! A process of the controller: it is killed and starts anew, is paused and goes on, and acts only while it leads.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::controller::Controller;
use super::{Decisions, World};
use crate::lease::{Elector, Move, RETRY_PERIOD};

/// A process is paused for so many seconds at least, and for as many more at most.
const PAUSE: usize = 30;

/// A process.
pub(super) struct Replica<'d> {
    decisions: &'d dyn Decisions,
    /// What it is called, and how many processes of this name there were.
    name: &'static str,
    lives: u32,
    controller: Controller<'d>,
    /// None where there is no election.
    elector: Option<Elector>,
    /// It has begun to act.
    works: bool,
    paused: Option<Timestamp>,
    renews: Duration,
}

impl<'d> Replica<'d> {
    /// Starts the first process of a name; one that is `elected` acts only while it leads.
    pub(super) fn start(decisions: &'d dyn Decisions, name: &'static str, elected: bool, world: &World) -> Self {
        Replica::begin(decisions, name, 0, elected, world)
    }

    fn begin(decisions: &'d dyn Decisions, name: &'static str, lives: u32, elected: bool, world: &World) -> Self {
        Replica {
            decisions,
            name,
            lives,
            controller: Controller::new(decisions, world),
            elector: elected.then(|| Elector::new(identity(name, lives))),
            works: !elected,
            paused: None,
            renews: Duration::ZERO,
        }
    }

    /// What it knew is gone, what it wrote is not: the process after it lists all that is there, whatever the second is.
    fn restart(&mut self, world: &mut World) {
        world.note();
        *self = Replica::begin(self.decisions, self.name, self.lives + 1, self.elector.is_some(), world);
        // nothing can be listed before
        self.paused = world.returns();
    }

    /// Lets a second pass; says whether the process was killed.
    pub(super) fn tick(&mut self, world: &mut World) -> bool {
        if self.paused.is_some_and(|until| world.now < until) {
            return false;
        }
        let pauses = world.faults.pause_permille;
        if self.paused.take().is_none() && self.elector.is_some() && world.random.happens(pauses) {
            let seconds = PAUSE + world.random.below(PAUSE + 1);
            self.paused = Some(world.now + SignedDuration::from_secs(seconds as i64));
            return false;
        }
        self.controller.watch(world);
        let now = world.uptime();
        // whoever was paused acts before it hears that another leads
        let leads = self.elector.as_ref().is_none_or(|elector| self.decisions.leads(elector, now));
        if self.works && leads {
            world.process = identity(self.name, self.lives);
            world.acting = self.elector.is_some().then(|| world.process.clone());
            if self.controller.tick(world).is_err() {
                self.restart(world);
                return true;
            }
            world.served = !world.is_away();
        }
        self.elect(world, now);
        false
    }

    /// Keeps or takes the lease; a process that has lost it ends, and another starts.
    fn elect(&mut self, world: &mut World, now: Duration) {
        let Some(elector) = &mut self.elector else { return };
        if now < self.renews {
            return;
        }
        self.renews = now + RETRY_PERIOD;
        if !world.is_away() {
            elector.observe(world.lease.as_ref(), now);
            if !matches!(elector.next(now), Move::Wait(_)) {
                let spec = elector.claim(world.clock());
                elector.accepted(&spec, now, now);
                world.lease = Some(spec);
            }
        }
        let leads = elector.leads(now);
        if self.works && !leads {
            self.restart(world);
        } else if leads && !self.works {
            self.works = true;
            world.takeovers += 1;
            self.controller.take_over(world);
        }
    }
}

fn identity(name: &str, lives: u32) -> String {
    format!("{name}-{lives}")
}

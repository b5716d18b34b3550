//! Registration health: do the nodes of a pool join? A pool whose nodes never do launches ever more slowly, one node at a time,
//! instead of buying instances for ever that nobody can use.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

use super::launch::{IN_DOUBT, TOKEN_REUSED};
use super::step::{Timeout, begun, later};
use crate::api::NodeClaim;
use crate::api::conditions::{self, LAUNCHED};

/// So many outcomes are remembered (Karpenter: 4).
const REMEMBERED: usize = 4;
/// A pool is unhealthy when so many of the remembered outcomes are failures: half (Karpenter: 50 %).
const FAILURES: usize = 2;
/// Nodes that are launched within this time of each other are of one crowd: what one of them meets, the others do.
const TOGETHER: SignedDuration = SignedDuration::from_mins(1);
/// Pause after the first failure that trips the breaker; each further one doubles it.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_mins(1);
/// Whatever happened, one node is tried this often: what was wrong outside the cluster may have been put right.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(4);

/// Says how the launch of a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The node joined.
    Joined,
    /// It did not, within its time, or EC2 refuses to launch it for a reason that stays.
    Missing,
}

impl Outcome {
    /// Answers how a claim that is out of time counts. Not at all where EC2 throttled or was away: nothing was bought that nobody can use,
    /// calls are paced, and claims are given up together, so that minutes of that would stop the pool for hours.
    pub fn of(timeout: Timeout, claim: &NodeClaim) -> Option<Self> {
        let all = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let told = conditions::get(all, LAUNCHED).map(|condition| condition.reason.as_str());
        let may_pass = matches!(told, None | Some("" | IN_DOUBT | TOKEN_REUSED | conditions::LAUNCH_FAILED));
        (timeout == Timeout::Registration || !may_pass).then_some(Outcome::Missing)
    }

    /// Answers since when the node of a claim that ended so has been tried, for [`Registrations::note`].
    pub fn tried(claim: &NodeClaim, now: Timestamp) -> Timestamp {
        begun(claim).unwrap_or(now)
    }
}

/// Says whether the nodes of a pool join: the condition `NodeRegistrationHealthy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Nothing is known yet.
    Unknown,
    /// They do.
    Healthy,
    /// At least half of the last ones did not.
    Unhealthy {
        /// How many of the last ones did not join.
        missing: usize,
        /// Of how many.
        of: usize,
    },
}

/// Says how many nodes a pool may launch now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// As many as its pods need.
    All,
    /// One, to see whether it joins.
    Trial,
    /// None before this time, or before the node on trial has joined or not.
    None {
        /// When to look again; none while a trial runs.
        until: Option<Timestamp>,
    },
}

/// Remembers how launches of one pool ended. Takes the time, gives the deadline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registrations {
    recent: VecDeque<Outcome>,
    /// Failures since a node last joined, and when the last of them was.
    in_a_row: u32,
    last_missing: Option<Timestamp>,
    /// How many of them came of tries that were made after the one before was known, and when the last of these was.
    tries: u32,
    last_try: Option<Timestamp>,
    /// When the latest of the nodes that joined was launched.
    joined: Option<Timestamp>,
    /// Generations of pool and class that the outcomes belong to.
    generation: Option<(i64, i64)>,
}

impl Registrations {
    /// Starts from what an earlier process wrote into the pool's condition: unhealthy since then.
    pub fn unhealthy_since(at: Timestamp) -> Self {
        let recent = std::iter::repeat_n(Outcome::Missing, FAILURES).collect();
        let count = FAILURES as u32;
        Registrations {
            recent,
            in_a_row: count,
            last_missing: Some(at),
            tries: count,
            last_try: Some(at),
            ..Registrations::default()
        }
    }

    /// Forgets everything when the pool or its class was changed: the next nodes are made differently.
    pub fn made_from(&mut self, pool_generation: i64, class_generation: i64) {
        let generation = Some((pool_generation, class_generation));
        if self.generation.is_some() && self.generation != generation {
            *self = Registrations::default();
        }
        self.generation = generation;
    }

    /// Notes how the launch of a node ended that was begun at `tried`.
    ///
    /// Nodes that were launched before the last failure was known are no new try: of a crowd that is given up together, all but the first
    /// failure lengthen no pause. A failure says nothing of the pool where a node has joined that was launched as late.
    pub fn note(&mut self, outcome: Outcome, tried: Timestamp, now: Timestamp) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(outcome);
        match outcome {
            Outcome::Joined => {
                self.joined = self.joined.max(Some(tried));
                (self.in_a_row, self.tries, self.last_try) = (0, 0, None);
            }
            Outcome::Missing if self.joined.is_some_and(|joined| tried <= later(joined, TOGETHER)) => {}
            Outcome::Missing => {
                self.in_a_row = self.in_a_row.saturating_add(1);
                self.last_missing = Some(now);
                if self.last_try.is_none_or(|last| tried >= last) {
                    self.tries = self.tries.saturating_add(1);
                    self.last_try = Some(now);
                }
            }
        }
    }

    /// Answers whether nodes join.
    pub fn health(&self) -> Health {
        let missing = self.recent.iter().filter(|outcome| **outcome == Outcome::Missing).count();
        match missing {
            _ if missing >= FAILURES => Health::Unhealthy { missing, of: self.recent.len() },
            _ if self.recent.is_empty() => Health::Unknown,
            _ => Health::Healthy,
        }
    }

    /// Answers how many nodes may be launched, while `joining` nodes of the pool are launched and have not joined yet.
    ///
    /// The breaker trips when the pool is unhealthy and no node joined since its last failures; the first that joins closes it.
    pub fn allowance(&self, joining: usize, now: Timestamp) -> Allowance {
        let tripped = matches!(self.health(), Health::Unhealthy { .. }) && self.in_a_row >= FAILURES as u32;
        let Some(last) = self.last_missing.filter(|_| tripped) else { return Allowance::All };
        let doublings = self.tries.saturating_sub(FAILURES as u32).min(16);
        let pause = FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE);
        // a clock that went back must not lengthen the pause
        let until = later(last, pause).min(later(now, pause));
        if joining > 0 {
            Allowance::None { until: None }
        } else if now < until {
            Allowance::None { until: Some(until) }
        } else {
            Allowance::Trial
        }
    }
}

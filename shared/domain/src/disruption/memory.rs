//! What is remembered between plans: pools whose commands failed, and how far the search for cheaper sets came.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{Cause, Command};

/// Pause of a pool after its first failed command; each further one doubles it.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_mins(1);
/// However often commands of a pool failed, it is tried again after this long.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(30);

/// Remembers failures by pool and cause, so that a pool whose replacements never come up does not keep the others waiting. Takes the time,
/// gives the deadline; an empty memory is always a sound one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    failures: BTreeMap<(Arc<str>, Cause), Failed>,
    /// Where the search for cheaper sets goes on.
    pub(super) cursor: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failed {
    times: u32,
    at: Timestamp,
}

impl Memory {
    /// Notes that a command was taken back after it had begun.
    pub fn failed(&mut self, command: &Command, now: Timestamp) {
        for candidate in &command.candidates {
            let key = (candidate.pool.clone(), command.cause);
            let failed = self.failures.entry(key).or_insert(Failed { times: 0, at: now });
            // one command counts once for each pool in it
            if failed.times == 0 || failed.at != now {
                *failed = Failed { times: failed.times.saturating_add(1), at: now };
            }
        }
    }

    /// Notes that a command was carried out.
    pub fn succeeded(&mut self, command: &Command) {
        for candidate in &command.candidates {
            self.failures.remove(&(candidate.pool.clone(), command.cause));
        }
    }

    /// Notes where a plan ended its search.
    pub fn examined(&mut self, resume: usize) {
        self.cursor = resume;
    }

    /// Answers until when a pool is left alone for a cause.
    pub fn pause(&self, pool: &Arc<str>, cause: Cause, now: Timestamp) -> Option<Timestamp> {
        let failed = self.failures.get(&(pool.clone(), cause))?;
        let pause = FIRST_PAUSE.saturating_mul(1 << failed.times.saturating_sub(1).min(16)).min(LONGEST_PAUSE);
        let after = |start: Timestamp| start.saturating_add(pause).unwrap_or(Timestamp::MAX);
        // a clock that went back must not lengthen the pause
        let until = after(failed.at).min(after(now));
        (now < until).then_some(until)
    }
}

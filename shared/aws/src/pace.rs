//! Gates that keep the EC2 calls of this process inside the account's rates.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use karp_domain::pace::{Bucket, Rate};

/// Gates for the groups of EC2 calls. Each attempt of a call that changes something passes one (`change`); reading calls pass one as they
/// begin, and the SDK's few retries of these are extra.
#[derive(Debug)]
pub struct Pace {
    /// `CreateFleet`, dry runs of it too.
    pub create_fleet: Gate,
    /// `TerminateInstances`
    pub terminate: Gate,
    /// Dry runs of `RunInstances`.
    pub run: Gate,
    /// `CreateTags`
    pub tag: Gate,
    /// Other changes (launch templates).
    pub mutate: Gate,
    /// `Describe*`
    pub describe: Gate,
}

impl Pace {
    /// Builds the gates with EC2's published rates.
    #[must_use]
    pub fn ec2() -> Self {
        Self {
            create_fleet: Gate::new(Rate::CREATE_FLEET),
            terminate: Gate::new(Rate::TERMINATE_INSTANCES),
            run: Gate::new(Rate::RUN_INSTANCES),
            tag: Gate::new(Rate::CREATE_TAGS),
            mutate: Gate::new(Rate::MUTATE),
            describe: Gate::new(Rate::DESCRIBE),
        }
    }
}

/// A token bucket that callers wait at.
#[derive(Debug)]
pub struct Gate {
    start: Instant,
    bucket: Mutex<Bucket>,
}

impl Gate {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { start: Instant::now(), bucket: Mutex::new(Bucket::new(rate)) }
    }

    /// Takes one token, waiting for it when the bucket is empty. Waiters are served in order.
    pub async fn take(&self) -> Token {
        let wait = {
            // A panic cannot happen while the lock is held, so a poisoned bucket is still a sound one.
            let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.reserve(self.start.elapsed())
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Token(())
    }

    /// Takes one token, if there is one and nobody waits for it.
    pub fn try_take(&self) -> Option<Token> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(self.start.elapsed()).then_some(Token(()))
    }
}

/// The right to one call, taken at a gate. Not used it is lost.
#[derive(Debug)]
pub struct Token(());

impl Token {
    /// Makes a token for calls that nobody counts.
    pub const fn free() -> Self {
        Self(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_call_waits_at_a_gate_of_its_rate() {
        let pace = Pace::ec2();
        for (gate, burst) in [
            (&pace.create_fleet, 50),
            (&pace.mutate, 50),
            (&pace.terminate, 100),
            (&pace.run, 5),
            (&pace.tag, 100),
            (&pace.describe, 100),
        ] {
            let mut bucket = gate.bucket.lock().expect("nobody else has it");
            let now = Duration::from_secs(3600);
            assert_eq!((0..200).filter(|_| bucket.take(now)).count(), burst, "{bucket:?}");
        }
    }

    #[tokio::test]
    async fn the_burst_passes_and_the_next_waits() {
        let gate = Gate::new(Rate { every: Duration::from_millis(40), burst: 3 });
        let begin = Instant::now();
        for _ in 0..4 {
            gate.take().await;
        }
        assert!(begin.elapsed() >= Duration::from_millis(39), "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn who_does_not_wait_gets_what_nobody_waits_for() {
        let gate = Gate::new(Rate { every: Duration::from_secs(60), burst: 1 });
        assert!(gate.try_take().is_some());
        assert!(gate.try_take().is_none(), "the bucket is empty");
    }
}

//! Token buckets as EC2 counts calls by them, so that karp stays inside the rates of an account and the simulator's EC2 holds it to them.

use std::time::Duration;

/// How long to wait after a call that was throttled although it was paced: somebody else in the account uses the rate up.
pub const THROTTLED_WAIT: Duration = Duration::from_secs(5);

/// How many calls EC2 takes: so many at once, and then one every so often.
///
/// EC2 counts each action by itself, for an account in a region. The figures are its published defaults (Amazon EC2 Developer Guide,
/// "Request throttling for the Amazon EC2 API"; Karpenter's fake of EC2, `kwok/ec2/ratelimiting.go`, has the same).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// One token comes back in this time.
    pub every: Duration,
    /// This many tokens are there at most.
    pub burst: u32,
}

impl Rate {
    /// `CreateFleet`, which is like any other action that changes something.
    pub const CREATE_FLEET: Rate = Rate::per_second(5, 50);
    /// `TerminateInstances`
    pub const TERMINATE_INSTANCES: Rate = Rate::per_second(5, 100);
    /// `RunInstances`, which karp only tries out: a dry run counts like any call.
    pub const RUN_INSTANCES: Rate = Rate::per_second(2, 5);
    /// `CreateTags`
    pub const CREATE_TAGS: Rate = Rate::per_second(10, 100);
    /// Other actions that change something.
    pub const MUTATE: Rate = Rate::per_second(5, 50);
    /// Actions that only read, with filters or page by page.
    pub const DESCRIBE: Rate = Rate::per_second(20, 100);

    /// Makes a rate of so many calls a second.
    const fn per_second(calls: u32, burst: u32) -> Self {
        Rate { every: Duration::from_nanos(1_000_000_000 / calls as u64), burst }
    }

    /// Says whether so many calls in a window of this length are within the rate.
    pub fn allows(self, calls: u32, window: Duration) -> bool {
        self.every * calls.saturating_sub(self.burst) <= window
    }

    /// How long an empty bucket takes to be full.
    fn fills_in(self) -> Duration {
        self.every * self.burst
    }
}

/// Counts the tokens of one rate; full at first. Time is monotonic and given by the caller, who also does the waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    rate: Rate,
    /// It is full again then. Tokens that are promised to callers who still wait put this off further than it takes to fill.
    full_at: Duration,
}

impl Bucket {
    /// Makes a full bucket.
    pub const fn new(rate: Rate) -> Self {
        Bucket { rate, full_at: Duration::ZERO }
    }

    /// Takes a token and says how long its taker must wait for it; those who wait are served in order.
    pub fn reserve(&mut self, now: Duration) -> Duration {
        self.full_at = self.full_at.max(now) + self.rate.every;
        self.full_at.saturating_sub(now + self.rate.fills_in())
    }

    /// Takes a token if there is one.
    pub fn take(&mut self, now: Duration) -> bool {
        let mut after = *self;
        let there = after.reserve(now).is_zero();
        if there {
            *self = after;
        }
        there
    }

    /// Takes all tokens that there are.
    pub fn empty(&mut self, now: Duration) {
        self.full_at = self.full_at.max(now + self.rate.fills_in());
    }
}

//! The account's rates: EC2 answers no more calls than its buckets hold, whoever in the account makes them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::World;
use crate::pace::{Bucket, Rate};

/// EC2's code for a call that was one too many.
pub(super) const THROTTLED: &str = "RequestLimitExceeded";
/// Somebody else in the account uses all that there is for so many seconds at most.
const BUSY: usize = 60;

/// What is asked of EC2; each has a rate of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    CreateFleet,
    TerminateInstances,
    Describe,
}

impl Action {
    const ALL: [Action; 3] = [Action::CreateFleet, Action::TerminateInstances, Action::Describe];

    pub(super) const fn rate(self) -> Rate {
        match self {
            Action::CreateFleet => Rate::CREATE_FLEET,
            Action::TerminateInstances => Rate::TERMINATE_INSTANCES,
            Action::Describe => Rate::DESCRIBE,
        }
    }
}

/// The call was one too many: EC2 did nothing.
pub(super) struct Throttled;

/// EC2's own count of the account's calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    buckets: BTreeMap<Action, Bucket>,
    /// Somebody else uses all of it until then.
    busy: Duration,
    /// The calls of this second: which process sent them, and what they were.
    pub(super) sent: Vec<(String, Action)>,
    /// How many calls were throttled, and when the last was.
    pub(super) throttled: u32,
    pub(super) last_throttled: Option<Timestamp>,
}

impl Account {
    fn bucket(&mut self, action: Action) -> &mut Bucket {
        self.buckets.entry(action).or_insert_with(|| Bucket::new(action.rate()))
    }
}

impl World {
    /// Lets a second pass for the others in the account.
    pub(super) fn share_account(&mut self) {
        let now = self.uptime();
        self.account.sent.clear();
        if self.random.happens(self.faults.others_permille) {
            self.account.busy = now + Duration::from_secs(1 + self.random.below(BUSY) as u64);
        }
        if now < self.account.busy {
            Action::ALL.into_iter().for_each(|action| self.account.bucket(action).empty(now));
        }
    }

    /// A call of the process whose turn it is.
    pub(super) fn ask_ec2(&mut self, action: Action) -> Result<(), Throttled> {
        let now = self.uptime();
        self.account.sent.push((self.process.clone(), action));
        if self.account.bucket(action).take(now) {
            return Ok(());
        }
        self.account.throttled += 1;
        self.account.last_throttled = Some(self.now);
        Err(Throttled)
    }
}

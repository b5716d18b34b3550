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
        if action != Action::Describe {
            super::check::only_the_leader_writes(self);
        }
        if action == Action::TerminateInstances {
            super::check::nothing_ends_unseen(self);
        }
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

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;
    use crate::catalogue::Catalogue;

    /// What is told of a call by `acting` while `holder` has the lease and nobody has been answered for so many seconds.
    fn told(action: Action, acting: Option<&str>, holder: Option<&str>, unanswered: Option<i64>) -> Vec<&'static str> {
        let mut world = World::new(Timestamp::UNIX_EPOCH, Catalogue::default(), Vec::new(), Vec::new());
        world.acting = acting.map(str::to_owned);
        world.lease = holder.map(|name| LeaseSpec { holder_identity: Some(name.to_owned()), ..LeaseSpec::default() });
        world.left = unanswered.map(|seconds| world.now - SignedDuration::from_secs(seconds));
        assert!(world.ask_ec2(action).is_ok());
        world.violations.iter().map(|found| found.invariant).collect()
    }

    #[test]
    fn only_the_leader_changes_anything_in_the_account() {
        for action in [Action::CreateFleet, Action::TerminateInstances] {
            assert!(told(action, Some("a"), Some("a"), None).is_empty());
            assert!(told(action, None, None, None).is_empty(), "there is no election");
            assert_eq!(told(action, Some("a"), Some("b"), None), ["S-14"]);
        }
        assert!(told(Action::Describe, Some("a"), Some("b"), None).is_empty(), "whoever looks harms nobody");
    }

    #[test]
    fn a_leader_that_is_not_answered_ends_nothing() {
        let ends = |acting, seconds| told(Action::TerminateInstances, acting, acting, Some(seconds));
        assert!(ends(Some("a"), 9).is_empty(), "it still leads");
        assert_eq!(ends(Some("a"), 10), ["S-14"]);
        assert!(ends(None, 10).is_empty(), "there is no election");
        assert!(told(Action::CreateFleet, Some("a"), Some("a"), Some(10)).is_empty());
    }
}

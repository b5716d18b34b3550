//! When a controller's calls to EC2 are sent: as its own buckets allow, and after a throttle only when it has waited.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Decisions;
use super::account::Action;
use crate::pace::Bucket;

/// What calls wait for. Production's tasks sleep until then; here they are asked again each second.
#[derive(Default)]
pub(super) struct Turns {
    buckets: BTreeMap<Action, Bucket>,
    /// When the token is there that a call has reserved, by what the call is about.
    due: BTreeMap<(Action, String), Duration>,
    /// What is left alone until then.
    rests: BTreeMap<String, Duration>,
}

impl Turns {
    /// Says whether a call about something is sent now; if not, it has its place in the row.
    pub(super) fn comes(&mut self, decisions: &dyn Decisions, action: Action, about: &str, now: Duration) -> bool {
        let bucket = self.buckets.entry(action).or_insert_with(|| Bucket::new(action.rate()));
        let key = (action, about.to_owned());
        let comes = *self.due.entry(key.clone()).or_insert_with(|| now + decisions.pace(bucket, now)) <= now;
        if comes {
            self.due.remove(&key);
        }
        comes
    }

    /// Says whether a call about something has a place in the row.
    pub(super) fn waits(&self, action: Action, about: &str) -> bool {
        self.due.contains_key(&(action, about.to_owned()))
    }

    /// Leaves something alone for a while.
    pub(super) fn rest(&mut self, about: &str, until: Duration) {
        self.rests.insert(about.to_owned(), until);
    }

    /// Says whether something is left alone now.
    pub(super) fn rests(&mut self, about: &str, now: Duration) -> bool {
        let rests = self.rests.get(about).is_some_and(|until| now < *until);
        if !rests {
            self.rests.remove(about);
        }
        rests
    }
}

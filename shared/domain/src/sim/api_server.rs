//! The API server: it may be away, for everybody at once, while EC2 and AWS's queue go on.

use jiff::{SignedDuration, Timestamp};

use super::World;
use super::writes::Stop;

/// It is away for so many seconds at most.
const MOST: usize = 240;

impl World {
    /// Lets a second pass: it goes away now and then, and comes back.
    pub(super) fn come_and_go(&mut self) {
        if self.is_away() {
            self.back = self.now;
        } else if self.random.happens(self.faults.away_permille) {
            self.away = Some(self.now + SignedDuration::from_secs(1 + self.random.below(MOST) as i64));
            // where it had just been about to come back, nobody noticed
            self.left.get_or_insert(self.now);
        } else {
            self.left = None;
        }
    }

    /// Notes when all pods run for the first time since faults are over.
    pub(super) fn heal(&mut self) {
        let Some(calm) = self.calm.filter(|_| self.healed.is_none() && !self.is_away()) else { return };
        if !self.pods.is_empty() && self.pods.values().all(|pod| pod.ready) {
            self.healed = Some(self.now.duration_since(self.back.max(calm)));
        }
    }

    /// Says whether nobody is answered now.
    pub(super) fn is_away(&self) -> bool {
        self.away.is_some_and(|until| self.now < until)
    }

    /// When it is there again, if it is away.
    pub(super) fn returns(&self) -> Option<Timestamp> {
        self.away.filter(|_| self.is_away())
    }

    /// A request was not answered.
    pub(super) fn unanswered(&mut self) -> Stop {
        self.unanswered += 1;
        self.unserved = self.now;
        Stop::Unanswered
    }
}

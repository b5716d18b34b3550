//! Batching: waits until changes stop coming for a moment, but not for ever, so that pods made together are planned together.

use std::time::Duration;

use jiff::Timestamp;
use rustc_hash::FxHashSet;

use crate::cluster::PodKey;

/// A batch of so many pods is ripe, whatever still comes: more pods together are hardly packed better, and nodes take their time to start.
const MOST: usize = 500;

/// Says whether a batch is open and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Nothing waits.
    Empty,
    /// Something waits; look again then.
    OpenUntil(Timestamp),
    /// The batch is ready to be taken.
    Ripe,
}

/// Gathers triggers into batches. Takes the time, gives the deadline; the caller sleeps.
#[derive(Clone, Debug)]
pub struct Batcher {
    idle: Duration,
    longest: Duration,
    open: Option<Open>,
}

#[derive(Clone, Debug)]
struct Open {
    since: Timestamp,
    latest: Timestamp,
    /// It is ripe then, whatever still comes.
    due: Timestamp,
    pods: FxHashSet<PodKey>,
}

impl Batcher {
    /// Makes a batcher: a batch is ripe when nothing was added for `idle`, `longest` after its first trigger, or when it holds as many as a
    /// plan is well made for.
    pub const fn new(idle: Duration, longest: Duration) -> Self {
        Batcher { idle, longest, open: None }
    }

    /// Notes a trigger. A clock that went back counts as standing still.
    pub fn add(&mut self, now: Timestamp) {
        let due = Timestamp::MAX;
        let open = self.open.get_or_insert(Open { since: now, latest: now, due, pods: FxHashSet::default() });
        open.latest = open.latest.max(now);
    }

    /// Notes a trigger that waited already: the batch is ripe within `soon`.
    pub fn hasten(&mut self, now: Timestamp, soon: Duration) {
        self.add(now);
        if let Some(open) = &mut self.open {
            open.due = open.due.min(after(now, soon));
        }
    }

    /// Counts a pod that the open batch will hold: it makes the batch no longer, and may make it large enough.
    pub fn count(&mut self, pod: PodKey) {
        if let Some(open) = &mut self.open {
            open.pods.insert(pod);
        }
    }

    /// Answers the state of the batch at `now`.
    pub fn window(&self, now: Timestamp) -> Window {
        let Some(open) = &self.open else { return Window::Empty };
        let ripe = after(open.latest, self.idle).min(after(open.since, self.longest)).min(open.due);
        // a clock that stepped back by more than a whole window must not keep the batch open
        let stepped_back = after(now, self.longest) < open.since;
        if now >= ripe || stepped_back || open.pods.len() >= MOST { Window::Ripe } else { Window::OpenUntil(ripe) }
    }

    /// Takes the batch: what is added from now on opens a new one.
    pub fn clear(&mut self) {
        self.open = None;
    }
}

fn after(start: Timestamp, wait: Duration) -> Timestamp {
    start.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::UNIX_EPOCH;

    fn at(millis: i64) -> Timestamp {
        START + jiff::SignedDuration::from_millis(millis)
    }

    #[test]
    fn a_batch_ripens_when_triggers_stop() {
        let mut batcher = Batcher::new(Duration::from_secs(1), Duration::from_secs(10));
        assert_eq!(batcher.window(at(0)), Window::Empty);
        batcher.add(at(0));
        batcher.add(at(700));
        assert_eq!(batcher.window(at(1000)), Window::OpenUntil(at(1700)));
        assert_eq!(batcher.window(at(1700)), Window::Ripe);
        batcher.clear();
        assert_eq!(batcher.window(at(1800)), Window::Empty);
    }

    #[test]
    fn a_trigger_that_waited_already_hastens_the_batch_and_the_next_one_is_as_slow_as_ever() {
        let (mut batcher, soon) =
            (Batcher::new(Duration::from_secs(1), Duration::from_secs(10)), Duration::from_millis(100));
        batcher.add(at(0));
        batcher.hasten(at(500), soon);
        batcher.hasten(at(550), soon);
        batcher.add(at(590));
        assert_eq!(batcher.window(at(599)), Window::OpenUntil(at(600)));
        assert_eq!(batcher.window(at(600)), Window::Ripe);
        batcher.clear();
        batcher.hasten(at(700), Duration::from_secs(5));
        assert_eq!(batcher.window(at(700)), Window::OpenUntil(at(1700)), "it is never slowed down");
    }

    #[test]
    fn a_batch_never_stays_open_longer_than_the_longest() {
        let mut batcher = Batcher::new(Duration::from_secs(1), Duration::from_secs(10));
        for tick in 0..40 {
            batcher.add(at(tick * 500));
        }
        assert_eq!(batcher.window(at(9_999)), Window::OpenUntil(at(10_000)));
        assert_eq!(batcher.window(at(10_000)), Window::Ripe);
    }

    #[test]
    fn a_batch_of_very_many_does_not_wait_for_more() {
        let mut batcher = Batcher::new(Duration::from_secs(1), Duration::from_secs(10));
        let pod = |n: usize| PodKey::new("default", &format!("p{n}"));
        (0..MOST).for_each(|n| batcher.count(pod(n)));
        assert_eq!(batcher.window(at(0)), Window::Empty);
        batcher.add(at(0));
        (1..MOST).for_each(|n| batcher.count(pod(n)));
        (1..MOST).for_each(|n| batcher.count(pod(n)));
        assert_eq!(batcher.window(at(10)), Window::OpenUntil(at(1000)), "each pod counts once");
        batcher.count(pod(MOST));
        assert_eq!(batcher.window(at(10)), Window::Ripe);
        batcher.clear();
        assert_eq!(batcher.window(at(10)), Window::Empty);
    }
}

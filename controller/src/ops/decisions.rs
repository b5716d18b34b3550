//! What provisioning decided of pods that wait, and when. Known to this process alone: after a restart it counts from the first look.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use karp_domain::cluster::{Phase, Pod, PodKey};

/// Remembers pods that wait until they run and are ready, or are gone. Clones remember the same.
#[derive(Clone, Debug, Default)]
pub struct Decisions(Arc<Mutex<HashMap<PodKey, Times>>>);

/// When what happened to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// It was seen to wait for the first time.
    pub seen: Timestamp,
    /// Something was decided for the first time.
    pub decided: Option<Timestamp>,
    /// A place was planned for it first, since when it has had one in each plan.
    pub placed: Option<Timestamp>,
}

/// What a plan has for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A place.
    Placed,
    /// None.
    Refused,
}

impl Decisions {
    fn all(&self) -> MutexGuard<'_, HashMap<PodKey, Times>> {
        // The lock is held over plain map operations only; what a panic there left is still a map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a pod waits.
    pub fn see(&self, pod: &PodKey, now: Timestamp) {
        self.all().entry(pod.clone()).or_insert(Times { seen: now, decided: None, placed: None });
    }

    /// Notes what was decided of a pod that was seen; returns after how many seconds, when it is the first decision.
    pub fn decide(&self, pod: &PodKey, decision: Decision, now: Timestamp) -> Option<f64> {
        let mut all = self.all();
        let times = all.get_mut(pod)?;
        times.placed = match decision {
            Decision::Placed => times.placed.or(Some(now)),
            Decision::Refused => None,
        };
        let first = times.decided.is_none();
        times.decided = times.decided.or(Some(now));
        first.then(|| seconds(times.seen, now))
    }

    /// Returns what is known of a pod.
    pub fn of(&self, pod: &PodKey) -> Option<Times> {
        self.all().get(pod).copied()
    }

    /// Forgets a pod that is over.
    pub fn note(&self, key: &PodKey, pod: Option<&Pod>) {
        if is_over(pod) {
            self.all().remove(key);
        }
    }

    /// Forgets the pods that are over, as `pod` finds them.
    pub fn review(&self, pod: impl Fn(&PodKey) -> Option<Arc<Pod>>) {
        self.all().retain(|key, _| !is_over(pod(key).as_deref()));
    }
}

impl Times {
    /// Returns for how many seconds a place has been planned.
    pub fn placed_for(&self, now: Timestamp) -> Option<f64> {
        self.placed.map(|at| seconds(at, now))
    }
}

/// Says whether nothing of a pod is waited for any more.
fn is_over(pod: Option<&Pod>) -> bool {
    pod.is_none_or(|pod| match pod.phase {
        Phase::Pending => false,
        Phase::Running => pod.ready,
        Phase::Terminal => true,
    })
}

fn seconds(since: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn pod(phase: &str, ready: &str) -> Pod {
        let object = json!({
            "metadata": { "name": "p", "namespace": "default" },
            "spec": { "containers": [{ "name": "c" }] },
            "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": ready }] },
        });
        Pod::from_kube(&serde_json::from_value(object).expect("a pod")).expect("a readable pod")
    }

    #[test]
    fn the_first_decision_counts_and_a_place_until_it_is_lost() {
        let (decisions, key) = (Decisions::default(), PodKey::new("default", "p"));
        assert_eq!(decisions.decide(&key, Decision::Placed, at(1)), None, "nobody saw it wait");
        decisions.see(&key, at(2));
        decisions.see(&key, at(3));
        assert_eq!(decisions.decide(&key, Decision::Refused, at(5)), Some(3.0));
        assert_eq!(decisions.of(&key).and_then(|times| times.placed_for(at(6))), None);
        assert_eq!(decisions.decide(&key, Decision::Placed, at(10)), None, "not the first");
        assert_eq!(decisions.decide(&key, Decision::Placed, at(12)), None);
        assert_eq!(decisions.of(&key).and_then(|times| times.placed_for(at(14))), Some(4.0));
        decisions.decide(&key, Decision::Refused, at(15));
        assert_eq!(decisions.of(&key).and_then(|times| times.placed), None);
        assert_eq!(decisions.of(&key).and_then(|times| times.decided), Some(at(5)));
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let (decisions, key) = (Decisions::default(), PodKey::new("default", "p"));
        for (over, phase, ready) in [
            (false, "Pending", "False"),
            (false, "Running", "False"),
            (true, "Running", "True"),
            (true, "Succeeded", "False"),
        ] {
            decisions.see(&key, at(1));
            decisions.note(&key, Some(&pod(phase, ready)));
            assert_eq!(decisions.of(&key).is_none(), over, "{phase} {ready}");
        }
        decisions.see(&key, at(1));
        decisions.note(&key, None);
        assert_eq!(decisions.of(&key), None);
        decisions.see(&key, at(1));
        decisions.review(|_| Some(Arc::new(pod("Pending", "False"))));
        assert!(decisions.of(&key).is_some());
        decisions.review(|_| None);
        assert_eq!(decisions.of(&key), None);
    }
}

//! What goes on while it is looked: how long it has gone on is known at a scrape only, and nothing is told of what has ended.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::telemetry::reconcile_id;

/// Knows whether the caches are being filled, and which solutions are being sought. Clones know the same.
#[derive(Clone, Debug)]
pub struct Ongoing(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    started: Instant,
    synced: AtomicBool,
    /// Since when a controller seeks a solution, by an identity of its own.
    solving: Mutex<BTreeMap<String, (&'static str, Instant)>>,
}

impl Default for Ongoing {
    fn default() -> Self {
        let (synced, solving) = (AtomicBool::new(false), Mutex::default());
        Self(Arc::new(Inner { started: Instant::now(), synced, solving }))
    }
}

/// Stands for a solution that is sought as long as it lives.
#[derive(Debug)]
pub struct Solving {
    ongoing: Ongoing,
    id: String,
}

impl Drop for Solving {
    fn drop(&mut self) {
        self.ongoing.solving().remove(&self.id);
    }
}

impl Ongoing {
    /// Notes that the caches are filled.
    pub fn synced(&self) {
        self.0.synced.store(true, Ordering::Relaxed);
    }

    /// Notes that a controller seeks a solution, until what is returned is dropped.
    pub fn solve(&self, controller: &'static str) -> Solving {
        self.solving_since(controller, reconcile_id(), Instant::now())
    }

    pub(super) fn solving_since(&self, controller: &'static str, id: String, since: Instant) -> Solving {
        self.solving().insert(id.clone(), (controller, since));
        Solving { ongoing: self.clone(), id }
    }

    fn solving(&self) -> MutexGuard<'_, BTreeMap<String, (&'static str, Instant)>> {
        self.0.solving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns for how many seconds the caches have not been filled.
    fn unsynced(&self, now: Instant) -> f64 {
        if self.0.synced.load(Ordering::Relaxed) {
            return 0.0;
        }
        now.saturating_duration_since(self.0.started).as_secs_f64()
    }

    /// Returns the labels of solutions that are sought, and for how many seconds.
    fn unfinished(&self, now: Instant) -> Vec<([(&'static str, String); 2], f64)> {
        let told = |(id, (controller, since)): (&String, &(&'static str, Instant))| {
            let of = [("controller", (*controller).to_owned()), ("scheduling_id", id.clone())];
            (of, now.saturating_duration_since(*since).as_secs_f64())
        };
        self.solving().iter().map(told).collect()
    }
}

impl Collector for Ongoing {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = Instant::now();
        let help = "Time for which the caches have not been filled.";
        let name = "karpenter_cluster_state_unsynced_time_seconds";
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(self.unsynced(now)).encode(metric)?;
        let unfinished = self.unfinished(now);
        if unfinished.is_empty() {
            return Ok(());
        }
        let help = "Time for which a solution has been sought that is not found yet.";
        let name = "karpenter_scheduler_unfinished_work_seconds";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (of, seconds) in &unfinished {
            ConstGauge::new(*seconds).encode(family.encode_family(of)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_goes_on_is_told_until_it_ends() {
        let ongoing = Ongoing::default();
        let later = |seconds| ongoing.0.started + Duration::from_secs(seconds);
        assert!((ongoing.unsynced(later(5)) - 5.0).abs() < 1e-9);
        ongoing.synced();
        assert!(ongoing.unsynced(later(5)).abs() < 1e-9);

        let first = ongoing.solving_since("provisioner", "a".to_owned(), later(10));
        let second = ongoing.solving_since("provisioner", "b".to_owned(), later(12));
        let told = |seconds| -> Vec<(String, f64)> {
            ongoing.unfinished(later(seconds)).into_iter().map(|([_, (_, id)], took)| (id, took)).collect()
        };
        assert_eq!(told(15), [("a".to_owned(), 5.0), ("b".to_owned(), 3.0)]);
        drop(first);
        assert_eq!(told(16), [("b".to_owned(), 4.0)]);
        drop(second);
        assert!(told(17).is_empty());
    }
}

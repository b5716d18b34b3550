//! Token buckets that keep the EC2 calls inside the published account rates.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Buckets for the groups of EC2 calls. The figures are EC2's published default request rates (Amazon EC2 Developer Guide, "Request
/// throttling"); the account's other callers share them, so the SDK's retries stay on behind these.
#[derive(Debug)]
pub struct Pace {
    /// `CreateFleet`: 5 a second, burst 50.
    pub create_fleet: Bucket,
    /// `TerminateInstances`: 5 a second, burst 100.
    pub terminate: Bucket,
    /// Other changes (tags, launch templates): 5 a second, burst 100.
    pub mutate: Bucket,
    /// `Describe*`: 20 a second, burst 100.
    pub describe: Bucket,
}

impl Pace {
    /// Builds the buckets with EC2's published rates.
    #[must_use]
    pub fn ec2() -> Self {
        Self {
            create_fleet: Bucket::new(5.0, 50.0),
            terminate: Bucket::new(5.0, 100.0),
            mutate: Bucket::new(5.0, 100.0),
            describe: Bucket::new(20.0, 100.0),
        }
    }
}

/// A token bucket: holds up to `burst` tokens, refilled at `rate` a second.
#[derive(Debug)]
pub struct Bucket {
    rate: f64,
    burst: f64,
    level: Mutex<Level>,
}

#[derive(Debug)]
struct Level {
    /// Negative while callers wait for tokens that they have already taken.
    tokens: f64,
    at: Option<Instant>,
}

impl Bucket {
    /// Builds a full bucket.
    #[must_use]
    pub fn new(rate_per_second: f64, burst: f64) -> Self {
        Self { rate: rate_per_second, burst, level: Mutex::new(Level { tokens: burst, at: None }) }
    }

    /// Takes one token, waiting for it when the bucket is empty. Waiters are served in order.
    pub async fn take(&self) {
        let wait = self.reserve(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Says how many calls wait for a token at this moment; the launch path batches when this is high.
    pub fn waiting(&self) -> f64 {
        let mut level = self.locked();
        self.refill(&mut level, Instant::now());
        (-level.tokens).max(0.0)
    }

    /// Takes one token at `now` and says how long its taker must wait for it.
    fn reserve(&self, now: Instant) -> Duration {
        let mut level = self.locked();
        self.refill(&mut level, now);
        level.tokens -= 1.0;
        if level.tokens >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-level.tokens / self.rate) }
    }

    fn refill(&self, level: &mut Level, now: Instant) {
        if let Some(before) = level.at {
            let elapsed = now.saturating_duration_since(before).as_secs_f64();
            level.tokens = (level.tokens + elapsed * self.rate).min(self.burst);
        }
        level.at = Some(now);
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Level> {
        // A panic cannot happen while the lock is held, so a poisoned level is still a sound one.
        self.level.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_burst_is_free_and_the_rest_keeps_the_rate() {
        let bucket = Bucket::new(5.0, 50.0);
        let now = Instant::now();
        assert!((0..50).all(|_| bucket.reserve(now).is_zero()));
        let waits: Vec<f64> = (0..10).map(|_| bucket.reserve(now).as_secs_f64()).collect();
        assert!((waits[0] - 0.2).abs() < 1e-6 && (waits[9] - 2.0).abs() < 1e-6, "{waits:?}");
        assert!(bucket.reserve(now + Duration::from_secs(3)).is_zero(), "3 s refill 15 tokens, 10 were owed");
    }

    #[test]
    fn an_idle_bucket_never_holds_more_than_its_burst() {
        let bucket = Bucket::new(5.0, 2.0);
        let now = Instant::now();
        assert!(bucket.reserve(now).is_zero());
        let later = now + Duration::from_secs(3600);
        assert!(bucket.reserve(later).is_zero() && bucket.reserve(later).is_zero());
        assert!(bucket.reserve(later) >= Duration::from_millis(199));
    }
}

//! A value that is loaded when it is first needed and renewed in the background: callers always get the last good one.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After a failed renewal the next one waits this long.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(60);

/// Holds the last good value.
pub struct Fresh<T> {
    lifetime: Duration,
    state: Mutex<State<T>>,
    /// Held by whoever loads the first value.
    first: tokio::sync::Mutex<()>,
}

struct State<T> {
    value: Option<Arc<T>>,
    /// When the value is due for renewal; none while one is under way.
    due: Option<Instant>,
    generation: u64,
}

impl<T: Send + Sync + 'static> Fresh<T> {
    /// Makes an empty holder whose values are good for `lifetime`.
    pub fn new(lifetime: Duration) -> Arc<Self> {
        let state = State { value: None, due: None, generation: 0 };
        Arc::new(Self { lifetime, state: Mutex::new(state), first: tokio::sync::Mutex::default() })
    }

    /// Returns the value and its number, which grows with each renewal. Waits only for the first one; one that is past its lifetime is
    /// returned while `load` renews it in the background.
    ///
    /// # Errors
    /// What `load` answers, as long as there is no value at all.
    pub async fn get<E, F>(self: &Arc<Self>, load: impl FnOnce() -> F) -> Result<(Arc<T>, u64), E>
    where
        E: std::fmt::Display + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let mut known = self.look(Instant::now());
        let _first = if known.is_none() { Some(self.first.lock().await) } else { None };
        if known.is_none() {
            // somebody else may have loaded it meanwhile
            known = self.look(Instant::now());
        }
        let Some((value, generation, due)) = known else {
            let value = Arc::new(load().await?);
            return Ok((value.clone(), self.store(value)));
        };
        // whoever is told so must renew it: nobody else will
        if due {
            self.renew(load());
        }
        Ok((value, generation))
    }

    /// Makes the next renewal due after `wait`, if it is not due before; answers whether that holds: while one is under way, its end decides.
    pub fn renew_after(&self, wait: Duration) -> bool {
        let mut state = self.locked();
        state.due = state.due.map(|due| due.min(Instant::now() + wait));
        state.due.is_some()
    }

    /// Returns the value, and whether the caller is the one who must renew it.
    fn look(&self, now: Instant) -> Option<(Arc<T>, u64, bool)> {
        let mut state = self.locked();
        let value = state.value.clone()?;
        let due = state.due.is_some_and(|due| due <= now);
        if due {
            state.due = None;
        }
        Some((value, state.generation, due))
    }

    fn renew<E: std::fmt::Display + Send + 'static>(
        self: &Arc<Self>,
        load: impl Future<Output = Result<T, E>> + Send + 'static,
    ) {
        let this = self.clone();
        tokio::spawn(async move {
            match load.await {
                Ok(value) => drop(this.store(Arc::new(value))),
                Err(error) => {
                    tracing::warn!(%error, "keeping what was known: a renewal failed");
                    this.locked().due = Some(Instant::now() + PAUSE_AFTER_FAILURE);
                }
            }
        });
    }

    fn store(&self, value: Arc<T>) -> u64 {
        let mut state = self.locked();
        state.value = Some(value);
        state.due = Some(Instant::now() + self.lifetime);
        state.generation += 1;
        state.generation
    }

    fn locked(&self) -> MutexGuard<'_, State<T>> {
        // Nothing can panic while the lock is held, so a poisoned state is still a sound one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_good_value_stands_while_a_renewal_fails() {
        let fresh: Arc<Fresh<u32>> = Fresh::new(Duration::ZERO);
        let failing = || async { Err::<u32, _>("down") };
        assert_eq!(fresh.get(failing).await.map(|(value, _)| *value), Err("down"));
        assert_eq!(fresh.get(|| async { Ok::<_, &str>(1) }).await.map(|(value, at)| (*value, at)), Ok((1, 1)));
        assert_eq!(fresh.get(failing).await.map(|(value, at)| (*value, at)), Ok((1, 1)), "stale, but all there is");
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(
            fresh.get(|| async { Ok::<_, &str>(2) }).await.map(|(value, _)| *value),
            Ok(1),
            "after a failure: a pause"
        );
    }

    #[tokio::test]
    async fn a_renewal_can_be_brought_forward() {
        let fresh: Arc<Fresh<u32>> = Fresh::new(Duration::from_secs(3600));
        let load = |value| move || async move { Ok::<_, &str>(value) };
        assert_eq!(fresh.get(load(1)).await.map(|(value, _)| *value), Ok(1));
        assert_eq!(fresh.get(load(2)).await.map(|(value, _)| *value), Ok(1));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(fresh.get(load(3)).await.map(|(value, _)| *value), Ok(1), "good for an hour");
        assert!(fresh.renew_after(Duration::ZERO));
        assert_eq!(fresh.get(load(4)).await.map(|(value, _)| *value), Ok(1), "renewed in the background");
        assert!(!fresh.renew_after(Duration::ZERO), "what is under way ends first");
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(fresh.get(load(5)).await.map(|(value, _)| *value), Ok(4));
    }

    #[tokio::test]
    async fn who_waited_for_the_first_value_renews_it_when_it_is_due() {
        let fresh: Arc<Fresh<u32>> = Fresh::new(Duration::ZERO);
        let slow = || async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok::<_, &str>(1)
        };
        let (one, other) = futures::join!(fresh.get(slow), fresh.get(|| async { Ok::<_, &str>(2) }));
        assert_eq!((one.map(|(value, _)| *value), other.map(|(value, _)| *value)), (Ok(1), Ok(1)));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(fresh.get(|| async { Ok::<_, &str>(3) }).await.map(|(value, _)| *value), Ok(2));
    }

    #[tokio::test]
    async fn a_renewed_value_has_a_new_number() {
        let fresh: Arc<Fresh<u32>> = Fresh::new(Duration::ZERO);
        let load = |value| move || async move { Ok::<_, &str>(value) };
        assert_eq!(fresh.get(load(1)).await.map(|(value, at)| (*value, at)), Ok((1, 1)));
        assert_eq!(fresh.get(load(2)).await.map(|(value, _)| *value), Ok(1), "renewed in the background");
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (value, at) = fresh.get(load(3)).await.expect("a value");
        assert_eq!((*value, at), (2, 2));
    }
}

//! Questions about single instances, asked together: EC2 takes hundreds of ids in a call, and few calls a second.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, Shared};

/// How long the first who asks waits for others (Karpenter: 100 ms idle): ten calls a second at most, half of what EC2 takes for reads.
pub const WINDOW: Duration = Duration::from_millis(100);

/// Gathers those who ask at about the same time; all of them get the answer to the one call.
pub struct Together<T> {
    window: Duration,
    /// Ids in one call.
    most: usize,
    open: Arc<Mutex<Option<Round<T>>>>,
}

/// Those who wait for one call. Whoever of them is polled drives it, so that no task of its own outlives them.
struct Round<T> {
    ids: Arc<Mutex<BTreeSet<String>>>,
    answer: Shared<BoxFuture<'static, Arc<T>>>,
}

impl<T: Send + Sync + 'static> Together<T> {
    /// Makes an empty gathering for calls that take `most` ids.
    pub fn new(window: Duration, most: usize) -> Self {
        Self { window, most, open: Arc::default() }
    }

    /// Asks for one id, together with all who ask within the window; `call` gets each id once, in order, and answers for all of them.
    pub async fn ask<F>(&self, id: &str, call: impl FnOnce(Vec<String>) -> F + Send + 'static) -> Arc<T>
    where
        F: Future<Output = T> + Send,
    {
        let answer = self.join(id, call);
        answer.await
    }

    fn join<F>(
        &self,
        id: &str,
        call: impl FnOnce(Vec<String>) -> F + Send + 'static,
    ) -> Shared<BoxFuture<'static, Arc<T>>>
    where
        F: Future<Output = T> + Send,
    {
        let mut open = locked(&self.open);
        if let Some(round) = &*open {
            let mut ids = locked(&round.ids);
            if ids.len() < self.most || ids.contains(id) {
                ids.insert(id.to_owned());
                return round.answer.clone();
            }
        }
        let ids = Arc::new(Mutex::new(BTreeSet::from([id.to_owned()])));
        let (rounds, mine) = (self.open.clone(), ids.clone());
        let end = tokio::time::sleep(self.window);
        let answer = async move {
            end.await;
            // whoever comes now begins another round
            locked(&rounds).take_if(|round| Arc::ptr_eq(&round.ids, &mine));
            let ids = std::mem::take(&mut *locked(&mine));
            Arc::new(call(ids.into_iter().collect()).await)
        };
        let answer = answer.boxed().shared();
        *open = Some(Round { ids, answer: answer.clone() });
        answer
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing can panic while the lock is held, so what a poisoned one holds is still sound.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    /// Asks for each id at once; answers the calls that were made.
    async fn calls(together: &Together<Vec<String>>, ids: &[&str]) -> Vec<Vec<String>> {
        let made = Arc::new(Mutex::new(Vec::new()));
        let mut all = Vec::new();
        for id in ids {
            let made = made.clone();
            all.push(together.ask(id, move |ids: Vec<String>| async move {
                locked(&made).push(ids.clone());
                ids
            }));
        }
        for (id, answer) in ids.iter().zip(futures::future::join_all(all).await) {
            assert!(answer.iter().any(|one| one == id), "{id} is not in its answer {answer:?}");
        }
        locked(&made).clone()
    }

    #[tokio::test]
    async fn all_who_ask_within_the_window_share_a_call() {
        let together = Together::new(SHORT, 100);
        assert_eq!(calls(&together, &["b", "a", "b", "c"]).await, [["a", "b", "c"]]);
        assert_eq!(calls(&together, &["a"]).await, [["a"]], "a later one is asked anew");
    }

    #[tokio::test]
    async fn a_call_takes_no_more_than_its_bound() {
        let together = Together::new(SHORT, 2);
        let made = calls(&together, &["a", "b", "c", "d", "e"]).await;
        let sizes: Vec<usize> = made.iter().map(Vec::len).collect();
        assert_eq!((sizes, made.concat()), (vec![2, 2, 1], ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec()));
    }

    #[tokio::test]
    async fn who_gives_up_takes_nobody_along() {
        let together = Arc::new(Together::new(SHORT, 100));
        let call = |ids: Vec<String>| async move { ids };
        let first = together.ask("a", call);
        drop(tokio::time::timeout(Duration::ZERO, first).await);
        let second = tokio::time::timeout(Duration::from_secs(5), together.ask("b", call)).await;
        assert_eq!(*second.expect("answered although the first has gone"), ["a", "b"]);
        drop(tokio::time::timeout(Duration::ZERO, together.ask("c", call)).await);
        tokio::time::sleep(SHORT * 2).await;
        assert_eq!(*together.ask("d", call).await, ["c", "d"], "a round that all have left is driven by the next");
    }
}

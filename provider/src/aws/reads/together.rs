//! Questions that come one by one and are put together: those of a moment become one round, and what a round told serves who asks later.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use tokio::time::Instant;

use crate::report::Failure;

/// How long a round waits for others to join. Core hands over its reads (ten at a time, unless told otherwise) within some milliseconds, and
/// the call that is saved takes tens.
const WINDOW: Duration = Duration::from_millis(10);
/// How long what a round told is believed. A refresh of some hundred objects takes seconds; whoever asks a minute later belongs to another
/// phase of the run, and others may have changed things since.
const BELIEVED: Duration = Duration::from_secs(60);

type Answer<K, V> = Result<Arc<Told<K, V>>, Failure>;
type Ask<K, V> = dyn Fn(Keys<K>) -> BoxFuture<'static, Result<BTreeMap<K, V>, Failure>> + Send + Sync;

/// What a round asks for.
pub struct Keys<K> {
    /// The keys of the round.
    pub wanted: BTreeSet<K>,
    /// The keys of earlier rounds that are still remembered: who asks may see by them what others will want.
    pub before: BTreeSet<K>,
}

impl<K: Ord> Keys<K> {
    /// Gives both.
    pub fn all(&self) -> impl Iterator<Item = &K> {
        self.wanted.iter().chain(&self.before)
    }
}

/// A question about many things of a kind that is asked for all of them at once. What a round told beyond its questions is kept too. A
/// failure is told to all who joined the round, and not kept.
pub struct Together<K, V>(Arc<Inner<K, V>>);

struct Inner<K, V> {
    ask: Box<Ask<K, V>>,
    board: Mutex<Board<K, V>>,
}

/// Who asked for what, in which round.
struct Board<K, V> {
    /// The round that still takes questions.
    open: Option<(BTreeSet<K>, Round<K, V>)>,
    asked: BTreeMap<K, Round<K, V>>,
    rounds: u64,
    /// How often all was forgotten.
    forgotten: u64,
}

struct Round<K, V> {
    number: u64,
    opened: Instant,
    answer: Shared<BoxFuture<'static, Answer<K, V>>>,
}

/// What a round told, and how often all had been forgotten when it went out.
struct Told<K, V> {
    forgotten: u64,
    found: BTreeMap<K, V>,
}

impl<K, V> Clone for Round<K, V> {
    fn clone(&self) -> Self {
        Self { number: self.number, opened: self.opened, answer: self.answer.clone() }
    }
}

impl<K, V> Together<K, V>
where
    K: Ord + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Makes the question; `ask` puts it for a round's keys, and answers those that exist, and what it learned beside.
    pub fn new<F, Fut>(ask: F) -> Self
    where
        F: Fn(Keys<K>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<BTreeMap<K, V>, Failure>> + Send + 'static,
    {
        let board = Board { open: None, asked: BTreeMap::new(), rounds: 0, forgotten: 0 };
        Self(Arc::new(Inner { ask: Box::new(move |keys| ask(keys).boxed()), board: Mutex::new(board) }))
    }

    /// Gives what there is of these keys: as a round told it that went out after the last [`Self::forget`], or in a new round.
    pub async fn get(&self, keys: impl IntoIterator<Item = K>) -> Result<BTreeMap<K, V>, Failure> {
        let mut joined: BTreeMap<u64, (Round<K, V>, Vec<K>)> = BTreeMap::new();
        {
            let mut board = self.0.board();
            for key in keys {
                let round = self.join(&mut board, &key);
                joined.entry(round.number).or_insert_with(|| (round, Vec::new())).1.push(key);
            }
        }
        let inner = &self.0;
        let waits = joined.into_values().map(|(round, keys)| async move {
            let told = round.answer.clone().await;
            inner.board().note(&round, &keys, &told);
            let told = told?;
            Ok::<_, Failure>(keys.into_iter().filter_map(|key| told.found.get_key_value(&key).map(own)).collect())
        });
        let found: Vec<Vec<(K, V)>> = futures::future::try_join_all(waits).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Says whether asking for a key costs nothing.
    pub fn knows(&self, key: &K) -> bool {
        self.0.board().asked.get(key).is_some_and(Round::is_believed)
    }

    /// Forgets all that was told, and all that is being asked: whoever asks from now on gets a younger answer.
    pub fn forget(&self) {
        let mut board = self.0.board();
        board.asked.clear();
        board.forgotten += 1;
    }

    fn join(&self, board: &mut Board<K, V>, key: &K) -> Round<K, V> {
        if let Some(round) = board.asked.get(key).filter(|round| round.is_believed()) {
            return round.clone();
        }
        if board.open.is_none() {
            board.rounds += 1;
            let answer = Self::put(Arc::clone(&self.0)).boxed().shared();
            board.open = Some((BTreeSet::new(), Round { number: board.rounds, opened: Instant::now(), answer }));
        }
        let (keys, round) = board.open.as_mut().expect("a round was opened");
        keys.insert(key.clone());
        let round = round.clone();
        board.asked.insert(key.clone(), round.clone());
        round
    }

    /// Puts the question for all who joined the open round in time.
    async fn put(inner: Arc<Inner<K, V>>) -> Answer<K, V> {
        tokio::time::sleep(WINDOW).await;
        let (keys, forgotten) = {
            let mut board = inner.board();
            let wanted = board.open.take().map(|(keys, _)| keys).unwrap_or_default();
            let before = board.asked.keys().filter(|key| !wanted.contains(*key)).cloned().collect();
            (Keys { wanted, before }, board.forgotten)
        };
        let found = (inner.ask)(keys).await?;
        Ok(Arc::new(Told { forgotten, found }))
    }
}

impl<K, V> Inner<K, V> {
    fn board(&self) -> MutexGuard<'_, Board<K, V>> {
        // Nothing panics while holding it; a poisoned board is as good as before.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Clone, V> Board<K, V> {
    /// Notes how a round ended: what else it told is known from now on, unless something was written since it went out; a failure is not
    /// kept.
    fn note(&mut self, round: &Round<K, V>, keys: &[K], told: &Answer<K, V>) {
        match told {
            Ok(told) if told.forgotten == self.forgotten => {
                for key in told.found.keys() {
                    if !self.asked.contains_key(key) {
                        self.asked.insert(key.clone(), round.clone());
                    }
                }
            }
            Ok(_) => {}
            Err(_) => {
                for key in keys {
                    if self.asked.get(key).is_some_and(|asked| asked.number == round.number) {
                        self.asked.remove(key);
                    }
                }
            }
        }
    }
}

impl<K, V> Round<K, V> {
    fn is_believed(&self) -> bool {
        self.opened.elapsed() < BELIEVED
    }
}

fn own<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::report::Kind;

    /// A world of numbers that may change, a count of the questions put to it, and how long it takes to answer.
    #[derive(Default)]
    struct World {
        value: AtomicU32,
        rounds: AtomicU32,
        fails: AtomicU32,
        takes: Duration,
    }

    /// Answers each key with the world's value at the moment that the question went out, and with key 99 something unasked.
    fn question(world: &Arc<World>) -> Together<u32, u32> {
        let world = Arc::clone(world);
        Together::new(move |keys: Keys<u32>| {
            let world = Arc::clone(&world);
            async move {
                world.rounds.fetch_add(1, Ordering::Relaxed);
                let value = world.value.load(Ordering::Relaxed);
                tokio::time::sleep(world.takes).await;
                if world.fails.load(Ordering::Relaxed) > 0 {
                    world.fails.fetch_sub(1, Ordering::Relaxed);
                    return Err(Failure::new(Kind::Throttled, "ask", "slow down"));
                }
                let known = keys.wanted.into_iter().filter(|key| *key != 404).chain([99]);
                Ok(known.map(|key| (key, value)).collect())
            }
        })
    }

    #[tokio::test]
    async fn questions_of_a_moment_are_one_round_and_serve_later_ones() {
        for at_once in [1, 10, 50] {
            let world = Arc::new(World::default());
            let together = question(&world);
            let answers =
                futures::future::try_join_all((0..at_once).map(|key| together.get([key, 404]))).await.unwrap();
            assert!((0..at_once).zip(&answers).all(|(key, found)| *found == BTreeMap::from([(key, 0)])), "{answers:?}");
            assert_eq!(together.get([0, 99, 404]).await.unwrap(), BTreeMap::from([(0, 0), (99, 0)]));
            assert_eq!(world.rounds.load(Ordering::Relaxed), 1, "{at_once} at once");
        }
    }

    #[tokio::test]
    async fn nothing_older_than_a_write_is_told_after_it() {
        let world = Arc::new(World { takes: Duration::from_millis(60), ..World::default() });
        let together = Arc::new(question(&world));
        let early = tokio::spawn({
            let together = Arc::clone(&together);
            async move { together.get([1]).await.unwrap() }
        });
        // The first question is under way when the write comes, however busy the machine is.
        while world.rounds.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        world.value.store(7, Ordering::Relaxed);
        together.forget();
        assert_eq!(together.get([1]).await.unwrap()[&1], 7);
        assert_eq!(early.await.unwrap()[&1], 0, "it was asked before the write");
        // Nor does the older round's answer come back by what it told beside its question.
        assert_eq!(together.get([99]).await.unwrap()[&99], 7);
    }

    #[tokio::test]
    async fn a_failure_is_told_to_all_and_not_kept() {
        let world = Arc::new(World::default());
        world.fails.store(1, Ordering::Relaxed);
        let together = question(&world);
        let both = futures::future::join(together.get([1]), together.get([2])).await;
        assert!(both.0.is_err() && both.1.is_err());
        assert!(!together.knows(&1));
        assert_eq!(together.get([1]).await.unwrap()[&1], 0);
        assert!(together.knows(&1) && !together.knows(&2));
    }

    #[tokio::test]
    async fn an_answer_is_believed_for_a_minute() {
        let world = Arc::new(World::default());
        let together = question(&world);
        for (passed, rounds) in [(0, 1), (50, 1), (20, 2)] {
            if let Some(round) = together.0.board().asked.get_mut(&1) {
                round.opened -= Duration::from_secs(passed);
            }
            together.get([1]).await.unwrap();
            assert_eq!(world.rounds.load(Ordering::Relaxed), rounds);
        }
    }

    #[tokio::test]
    async fn who_gives_up_leaves_the_round_to_the_others() {
        let world = Arc::new(World::default());
        let together = question(&world);
        let asked = tokio::time::timeout(Duration::from_millis(1), together.get([1])).await;
        assert!(asked.is_err(), "it was given up in the window");
        assert_eq!(together.get([1, 2]).await.unwrap().len(), 2);
        assert_eq!(world.rounds.load(Ordering::Relaxed), 1);
    }
}

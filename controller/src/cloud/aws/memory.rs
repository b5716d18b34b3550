//! The memory that nodes of each type and image were seen to have, kept for the next start.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use karp_domain::catalogue::{InstanceFacts, News, SeenMemory};

use super::super::Store;

/// What a former process kept is asked for again so long after that failed.
const RETRY: Duration = Duration::from_secs(60);

/// What was seen.
pub struct Memory {
    store: Option<Store<SeenMemory>>,
    seen: Mutex<Seen>,
    recall: tokio::sync::Mutex<Recall>,
    /// Held while it is written down.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Clone, Default)]
struct Seen {
    memory: Arc<SeenMemory>,
    /// Counts what nodes are planned otherwise by.
    generation: u64,
    /// Counts what is worth writing down, and how much of it is.
    news: u64,
    kept: u64,
}

/// Whether it is known what a former process kept.
enum Recall {
    Due(Option<Instant>),
    Done,
}

impl Memory {
    /// Makes a memory that knows nothing yet.
    pub fn new(store: Option<Store<SeenMemory>>) -> Self {
        let recall = tokio::sync::Mutex::new(Recall::Due(None));
        Self { store, seen: Mutex::default(), recall, writing: tokio::sync::Mutex::default() }
    }

    /// Returns what is known, and which state of it that is; with what a former process kept, as soon as that could be read.
    pub async fn get(&self) -> (Arc<SeenMemory>, u64) {
        self.recalled().await;
        let seen = self.locked();
        (seen.memory.clone(), seen.generation)
    }

    /// Reads what a former process kept, once; says whether that is done.
    async fn recalled(&self) -> bool {
        let Some(store) = &self.store else { return true };
        let mut recall = self.recall.lock().await;
        match *recall {
            Recall::Done => return true,
            Recall::Due(Some(failed)) if failed.elapsed() < RETRY => return false,
            Recall::Due(_) => {}
        }
        let Ok(kept) = store.read().await else {
            *recall = Recall::Due(Some(Instant::now()));
            return false;
        };
        *recall = Recall::Done;
        if let Some(mut kept) = kept {
            kept.forget(Timestamp::now());
            tracing::info!("instance-types" = kept.len(), "took kept memory of nodes");
            let mut seen = self.locked();
            let mut both = (*seen.memory).clone();
            both.merge(kept);
            if both != *seen.memory {
                seen.memory = Arc::new(both);
                seen.generation += 1;
            }
        }
        true
    }

    /// Notes what a node has, in bytes, and sees to it that what is news is written down.
    pub async fn note(&self, facts: &InstanceFacts, image: &str, bytes: u64) {
        let now = Timestamp::now();
        {
            let mut seen = self.locked();
            let Seen { memory, generation, news, .. } = &mut *seen;
            match Arc::make_mut(memory).note(facts, image, bytes, now) {
                News::None => {}
                News::Confirmed => *news += 1,
                News::Changed => {
                    Arc::make_mut(memory).forget(now);
                    *generation += 1;
                    *news += 1;
                }
            }
        }
        self.keep().await;
    }

    /// Writes down what is not yet. One writes at a time, and writes what came meanwhile, too; after a failure the next node's turn tries again.
    async fn keep(&self) {
        let Some(store) = &self.store else { return };
        let Ok(_writing) = self.writing.try_lock() else { return };
        let is_kept = || {
            let seen = self.locked();
            seen.kept == seen.news
        };
        // what a former process kept must not be written over before it was read
        while !is_kept() && self.recalled().await {
            let Seen { memory, news, .. } = self.locked().clone();
            if !store.write(&memory).await {
                return;
            }
            self.locked().kept = news;
        }
    }

    fn locked(&self) -> MutexGuard<'_, Seen> {
        // The lock is held over plain map operations only; what a panic there left is still a map.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use karp_domain::catalogue::builtin_type;

    use super::super::super::fake;
    use super::*;

    #[tokio::test]
    async fn the_next_process_knows_what_this_one_saw() {
        let (client, kept) = fake::server::<SeenMemory>();
        let memory = || Memory::new(Some(Store::new(client.clone(), "karp")));
        let facts = builtin_type("m7i.large").expect("a type");
        let first = memory();
        assert!(first.get().await.0.is_empty());
        first.note(facts, "ami-1", 7_900 << 20).await;
        first.note(facts, "ami-1", 7_900 << 20).await;
        assert_eq!(kept.lock().expect("a state").writes, 1, "no news is not written");
        // it sees a node before it has read what is kept, and loses nothing of it
        let second = memory();
        second.note(builtin_type("m7i.xlarge").expect("a type"), "ami-1", 15_900 << 20).await;
        let third = memory().get().await.0;
        assert_eq!(third.of(facts, "ami-1"), Some(7_900 << 20));
        assert_eq!(third.len(), 2);
    }

    /// What could not be read is not written over, and what could not be written is written later.
    #[tokio::test]
    async fn what_is_kept_outlives_an_api_server_that_does_not_answer() {
        let (client, kept) = fake::server::<SeenMemory>();
        let memory = || Memory::new(Some(Store::new(client.clone(), "karp")));
        let (large, xlarge) = (builtin_type("m7i.large").expect("a type"), builtin_type("m7i.xlarge").expect("a type"));
        let first = memory();
        first.note(large, "ami-1", 7_900 << 20).await;
        kept.lock().expect("a state").down = true;
        first.note(large, "ami-2", 7_900 << 20).await;
        let second = memory();
        second.note(xlarge, "ami-1", 15_900 << 20).await;
        kept.lock().expect("a state").down = false;
        second.note(xlarge, "ami-1", 15_800 << 20).await;
        assert_eq!(kept.lock().expect("a state").writes, 1, "not before it was read");
        first.note(large, "ami-2", 7_900 << 20).await;
        let seen = memory().get().await.0;
        assert_eq!((seen.of(large, "ami-1"), seen.of(large, "ami-2")), (Some(7_900 << 20), Some(7_900 << 20)));
    }

    #[tokio::test]
    async fn only_news_makes_another_state_of_it() {
        let memory = Memory::new(None);
        let facts = builtin_type("m7i.large").expect("a type");
        assert_eq!(memory.get().await, (Arc::default(), 0));
        memory.note(facts, "ami-1", 7_900 << 20).await;
        memory.note(facts, "ami-1", 7_950 << 20).await;
        let (seen, generation) = memory.get().await;
        assert_eq!(generation, 1);
        assert_eq!(seen.of(facts, "ami-1"), Some(7_900 << 20));
        memory.note(facts, "ami-1", 7_800 << 20).await;
        assert_eq!(memory.get().await.1, 2);
    }
}

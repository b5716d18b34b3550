//! The memory that nodes of each type and image were seen to have, kept for the next start.

use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use karp_domain::catalogue::SeenMemory;
use tokio::sync::OnceCell;

use super::store::Store;

/// What was seen.
pub struct Memory {
    store: Option<Store<SeenMemory>>,
    seen: Mutex<Seen>,
    /// What a former process kept has been read.
    read: OnceCell<()>,
    /// Held while it is written down.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Clone, Default)]
struct Seen {
    memory: SeenMemory,
    generation: u64,
    /// The generation that is written down.
    kept: u64,
}

impl Memory {
    /// Makes a memory that knows nothing yet.
    pub fn new(store: Option<Store<SeenMemory>>) -> Self {
        Self { store, seen: Mutex::default(), read: OnceCell::new(), writing: tokio::sync::Mutex::default() }
    }

    /// Returns what is known, and which state of it that is; the first time with what a former process kept.
    pub async fn get(&self) -> (SeenMemory, u64) {
        self.read.get_or_init(|| self.recall()).await;
        let seen = self.locked();
        (seen.memory.clone(), seen.generation)
    }

    async fn recall(&self) {
        let Some(store) = &self.store else { return };
        let Some(mut kept) = store.read().await else { return };
        kept.forget(Timestamp::now());
        tracing::info!("instance-types" = kept.len(), "took kept memory of nodes");
        let mut seen = self.locked();
        seen.memory.merge(kept);
        seen.generation += 1;
    }

    /// Notes what a node has, in bytes, and writes it down if it is news. One writes at a time, and writes what came meanwhile, too.
    pub async fn note(&self, instance_type: &str, image: &str, bytes: u64) {
        let now = Timestamp::now();
        {
            let mut seen = self.locked();
            if !seen.memory.note(instance_type, image, bytes, now) {
                return;
            }
            seen.memory.forget(now);
            seen.generation += 1;
        }
        let Some(store) = &self.store else { return };
        // what a former process kept must not be written over before it was read
        self.read.get_or_init(|| self.recall()).await;
        let _writing = self.writing.lock().await;
        let Seen { memory, generation, kept } = self.locked().clone();
        if kept < generation {
            store.write(&memory).await;
            self.locked().kept = generation;
        }
    }

    fn locked(&self) -> MutexGuard<'_, Seen> {
        // The lock is held over plain map operations only; what a panic there left is still a map.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use http::{Method, Request, Response};
    use karp_domain::catalogue::builtin_type;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// What the API server was given.
    #[derive(Default)]
    struct Given {
        map: Option<Value>,
        writes: usize,
    }

    /// An API server that has one ConfigMap, once it was written.
    fn server() -> (Client, Arc<Mutex<Given>>) {
        let kept = Arc::<Mutex<Given>>::default();
        let state = kept.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let state = state.clone();
            async move {
                assert!(request.uri().path().ends_with("/namespaces/karp/configmaps/karp-memory"), "{}", request.uri());
                if request.method() == Method::PATCH {
                    let body = request.into_body().collect_bytes().await.expect("a body");
                    let mut state = state.lock().expect("a state");
                    state.map = Some(serde_json::from_slice(&body).expect("JSON"));
                    state.writes += 1;
                }
                let found = state.lock().expect("a state").map.clone();
                let code = if found.is_some() { 200 } else { 404 };
                let missing =
                    || json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": ""});
                let body = found.unwrap_or_else(missing).to_string();
                Ok::<_, Infallible>(
                    Response::builder().status(code).body(Body::from(body.into_bytes())).expect("a response"),
                )
            }
        });
        (Client::new(service, "default"), kept)
    }

    #[tokio::test]
    async fn the_next_process_knows_what_this_one_saw() {
        let (client, kept) = server();
        let memory = || Memory::new(Some(Store::new(client.clone(), "karp")));
        let facts = builtin_type("m7i.large").expect("a type");
        let first = memory();
        assert!(first.get().await.0.is_empty());
        first.note("m7i.large", "ami-1", 7_900 << 20).await;
        first.note("m7i.large", "ami-1", 7_900 << 20).await;
        assert_eq!(kept.lock().expect("a state").writes, 1, "no news is not written");
        // it sees a node before it has read what is kept, and loses nothing of it
        let second = memory();
        second.note("m7i.xlarge", "ami-1", 15_900 << 20).await;
        let third = memory().get().await.0;
        assert_eq!(third.of(facts, ["ami-1"]), Some(7_900 << 20));
        assert_eq!(third.len(), 2);
    }

    #[tokio::test]
    async fn only_news_makes_another_state_of_it() {
        let memory = Memory::new(None);
        assert_eq!(memory.get().await, (SeenMemory::default(), 0));
        memory.note("m7i.large", "ami-1", 7_900 << 20).await;
        memory.note("m7i.large", "ami-1", 7_950 << 20).await;
        let (seen, generation) = memory.get().await;
        assert_eq!(generation, 1);
        assert_eq!(seen.of(builtin_type("m7i.large").expect("a type"), ["ami-1"]), Some(7_900 << 20));
        memory.note("m7i.large", "ami-1", 7_800 << 20).await;
        assert_eq!(memory.get().await.1, 2);
    }
}

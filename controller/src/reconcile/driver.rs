//! Runs a reconciler over the objects of a kind: one at a time per object, again when it asks, later when it fails.

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use kube::runtime::controller::{self, Action, applier};
use kube::runtime::reflector::{Lookup, ObjectRef, Store};
use kube::{Resource, ResourceExt};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Context, Error};
use crate::observe::Change;
use crate::ops::telemetry::reconcile_id;

/// First pause after a failure; doubled with each further one.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// Longest pause after failures.
const BACKOFF_LAST: Duration = Duration::from_secs(60);
/// First pause after a lost race with another writer. What won it is seen soon, and then the object is looked at anyway.
const RACE_PAUSE: Duration = Duration::from_millis(100);
/// Objects of a kind reconciled at once, unless it says otherwise; each mostly waits for the API server or the cloud.
pub const AT_ONCE: u16 = 64;

/// Describes a controller over objects of a kind.
pub struct Driver<K: Lookup<DynamicType = ()> + 'static, Pick> {
    /// Name in log lines, as Karpenter calls it.
    pub name: &'static str,
    /// The objects.
    pub store: Store<K>,
    /// Which objects a change concerns.
    pub pick: Pick,
    /// How many are reconciled at once.
    pub at_once: u16,
}

impl<K, Pick> Driver<K, Pick>
where
    K: Resource<DynamicType = ()> + Lookup<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
    Pick: Fn(&Context, &Change) -> Vec<ObjectRef<K>> + Send + Sync + 'static,
{
    /// Runs until `stop` is cancelled and what had begun is done.
    pub async fn run<R, F>(self, context: Arc<Context>, stop: CancellationToken, reconcile: R)
    where
        R: Fn(Arc<K>, Arc<Context>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Action, Error>> + Send + 'static,
    {
        let Self { name, store, pick, at_once } = self;
        let failures = Arc::new(Failures::default());
        let queue = triggers(context.clone(), store.clone(), pick).take_until(stop.cancelled_owned());
        let (counted, known) = (failures.clone(), failures.clone());
        let one = move |object: Arc<K>, context: Arc<Context>| {
            let span = tracing::info_span!(
                "reconcile",
                controller = name,
                namespace = Lookup::namespace(&*object).as_deref().unwrap_or_default(),
                name = object.name_any(),
                reconcileID = reconcile_id(),
            );
            let (key, counted) = (ObjectRef::from(&*object).to_string(), counted.clone());
            let work = reconcile(object, context);
            let work = async move {
                let result = work.await;
                match &result {
                    Ok(_) => counted.forget(&key),
                    Err(error) if error.is_race() => tracing::debug!(%error, "lost a race, looking again"),
                    Err(error) => tracing::error!(error = %error, "Reconciler error"),
                }
                result
            };
            Box::pin(work.instrument(span))
        };
        let policy = move |object: Arc<K>, error: &Error, _: Arc<Context>| {
            let first = if error.is_race() { RACE_PAUSE } else { BACKOFF_FIRST };
            Action::requeue(failures.pause(&ObjectRef::from(&*object).to_string(), first))
        };
        let config = controller::Config::default().concurrency(at_once);
        let forget = |outcome| {
            // it failed, and is gone before it is tried again
            if let Err(controller::Error::ObjectNotFound(gone)) = outcome {
                known.forget(&gone.to_string());
            }
            futures::future::ready(())
        };
        applier(one, policy, context, store, queue, config).for_each(forget).await;
    }
}

/// Makes the queue: every object once, then those that changes concern; all again when changes were missed.
fn triggers<K>(
    context: Arc<Context>,
    store: Store<K>,
    pick: impl Fn(&Context, &Change) -> Vec<ObjectRef<K>> + Send + Sync + 'static,
) -> impl Stream<Item = Result<ObjectRef<K>, std::convert::Infallible>> + Send
where
    K: Lookup<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    let everything =
        move |store: &Store<K>| store.state().iter().map(|object| object.to_object_ref(())).collect::<Vec<_>>();
    let changes = context.stores.changes();
    let first = stream::iter(everything(&store));
    let later =
        stream::unfold((changes, context, store, pick), move |(mut changes, context, store, pick)| async move {
            let picked = match changes.recv().await {
                Ok(change) => pick(&context, &change),
                Err(RecvError::Lagged(_)) => everything(&store),
                Err(RecvError::Closed) => return None,
            };
            Some((stream::iter(picked), (changes, context, store, pick)))
        });
    first.chain(later.flatten()).map(Ok)
}

#[derive(Default)]
struct Failures(Mutex<HashMap<String, u32>>);

impl Failures {
    fn forget(&self, key: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    fn pause(&self, key: &str, first: Duration) -> Duration {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(key.to_owned()).or_default();
        let pause = first.saturating_mul(1 << (*count).min(16)).min(BACKOFF_LAST);
        *count += 1;
        pause
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;

    #[test]
    fn nothing_is_remembered_of_what_is_gone() {
        let failures = Failures::default();
        let gone = ObjectRef::<Node>::new("n");
        failures.pause(&gone.to_string(), RACE_PAUSE);
        // as it comes from the queue
        failures.forget(&gone.erase().to_string());
        assert!(failures.0.lock().expect("free").is_empty());
    }

    #[test]
    fn pauses_double_up_to_a_minute_and_start_anew_after_success() {
        let failures = Failures::default();
        let seconds: Vec<u64> = (0..8).map(|_| failures.pause("a", BACKOFF_FIRST).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        failures.forget("a");
        assert_eq!(failures.pause("a", BACKOFF_FIRST), BACKOFF_FIRST);
        // lost races grow as well: a watch that is late would have them lost again and again
        let races: Vec<u128> = (0..4).map(|_| failures.pause("b", RACE_PAUSE).as_millis()).collect();
        assert_eq!(races, [100, 200, 400, 800]);
    }
}

//! The memory of offerings that could not be had, shared by all reconcilers of this process, kept for the next one and for people who ask.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use karp_domain::catalogue::{self, Absent, Catalogue};
use karp_domain::fleet::UnavailableOffering;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::store::{Kept, Store};

/// What is known of capacity that no list of types says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Offerings that could not be had.
    pub absent: Vec<Absent>,
    /// How many instances each capacity reservation has left.
    pub reservations: BTreeMap<String, u32>,
}

impl Kept for Capacity {
    const NAME: &'static str = "karp-capacity";
    const KEY: &'static str = "capacity.v1.json.gz";
}

/// The memory's time at the start: longer than anything that was over before is remembered.
const PAST: Duration = Duration::from_secs(2 * 60 * 60);

/// Lends the memory its clock, a lock, and a place where it is kept.
pub struct Unavailable {
    start: Instant,
    known: Mutex<Known>,
    changed: Notify,
    store: Option<Store<Capacity>>,
}

#[derive(Default)]
struct Known {
    offerings: catalogue::Unavailable,
    /// Counts the changes.
    generation: u64,
    /// What was written last: the count of changes, and what reservations had left.
    kept: (u64, BTreeMap<String, u32>),
    /// What reservations had left when a former process was last asked; good until EC2 has counted them.
    recalled: BTreeMap<String, u32>,
}

impl Unavailable {
    /// Makes an empty memory.
    pub fn new(store: Option<Store<Capacity>>) -> Self {
        Self { start: Instant::now(), known: Mutex::default(), changed: Notify::new(), store }
    }

    /// Remembers that an offering could not be had.
    pub fn mark(&self, offering: &UnavailableOffering) {
        let mut known = self.locked();
        known.offerings.mark(offering, self.now());
        known.generation += 1;
        self.changed.notify_one();
    }

    /// Returns the catalogue without what is to be avoided.
    pub fn apply(&self, catalogue: &Arc<Catalogue>) -> Arc<Catalogue> {
        self.locked().offerings.apply(catalogue, self.now())
    }

    /// Waits until something was marked.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes over what a former process kept. When that cannot be read, what is missing is found out again.
    pub async fn recall(&self) {
        let Some(store) = &self.store else { return };
        let Ok(Some(kept)) = store.read().await else { return };
        let mut known = self.locked();
        known.offerings.recall(&kept.absent, self.now(), Timestamp::now());
        known.recalled = kept.reservations;
        tracing::info!(offerings = kept.absent.len(), "took kept memory of missing capacity");
    }

    /// Writes down what is not yet; after a failure the next call tries again. No reservations means that EC2 has not counted them yet.
    pub async fn keep(&self, mut reservations: BTreeMap<String, u32>) {
        let Some(store) = &self.store else { return };
        let (absent, generation) = {
            let known = self.locked();
            if reservations.is_empty() {
                reservations.clone_from(&known.recalled);
            }
            if known.kept.0 == known.generation && known.kept.1 == reservations {
                return;
            }
            (known.offerings.told(self.now(), Timestamp::now()), known.generation)
        };
        let capacity = Capacity { absent, reservations };
        if store.write(&capacity).await {
            self.locked().kept = (generation, capacity.reservations);
        }
    }

    fn now(&self) -> Duration {
        PAST + self.start.elapsed()
    }

    fn locked(&self) -> MutexGuard<'_, Known> {
        // Nothing can panic while the lock is held, so a poisoned memory is still a sound one.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use karp_domain::catalogue::{CapacityType, InstanceType, builtin_type, offerings};

    use super::super::fake;
    use super::*;

    #[tokio::test]
    async fn the_next_process_avoids_what_this_one_could_not_have() {
        let (client, kept) = fake::server::<Capacity>();
        let memory = || Unavailable::new(Some(Store::new(client.clone(), "karp")));
        let zones = [karp_domain::catalogue::Zone::new("us-east-1a", "use1-az1")];
        let facts = builtin_type("m7i.large").expect("a type");
        let sold = offerings(facts, &zones, |_, _| None);
        let catalogue = Arc::new(Catalogue::new(vec![InstanceType::from_facts(facts, &Default::default(), sold)]));
        let had = |memory: &Unavailable| {
            let known = memory.apply(&catalogue);
            known.types()[0].offerings.iter().filter(|offering| offering.available).count()
        };
        let first = memory();
        first.recall().await;
        first.keep(BTreeMap::new()).await;
        assert_eq!((had(&first), kept.lock().expect("a state").writes), (2, 0), "no news is not written");
        first.mark(&UnavailableOffering {
            instance_type: "m7i.large".to_owned(),
            zone: "us-east-1a".to_owned(),
            capacity_type: CapacityType::Spot,
            reservation: None,
            code: "InsufficientInstanceCapacity".to_owned(),
        });
        first.changed().await;
        first.keep(BTreeMap::new()).await;
        first.keep(BTreeMap::new()).await;
        assert_eq!((had(&first), kept.lock().expect("a state").writes), (1, 1));
        first.keep(BTreeMap::from([("cr-1".to_owned(), 1)])).await;
        assert_eq!(kept.lock().expect("a state").writes, 2, "reservations are news, too");
        let second = memory();
        assert_eq!(had(&second), 2);
        second.recall().await;
        assert_eq!(had(&second), 1);
    }
}

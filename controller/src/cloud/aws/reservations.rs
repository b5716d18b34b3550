//! Capacity reservations that node classes select, and how many instances each has left.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use karp_aws::capacity_reservations::{self, Found};
use karp_aws::{Clients, Error};
use karp_domain::api::{CapacityReservation, CapacityReservationSelectorTerm};
use karp_domain::catalogue::{self, Reservation};

use super::lookups::Lookups;

/// Remembers the reservations of each class.
pub struct Reservations {
    /// How long an answer is good: what a reservation has left changes with every launch.
    lifetime: Duration,
    found: Lookups<Vec<CapacityReservationSelectorTerm>, Vec<Found>>,
    known: Mutex<Known>,
}

/// What is known of reservations' free instances.
#[derive(Default)]
struct Known {
    /// By reservation, as last described, less what was launched since then.
    free: HashMap<String, u32>,
    /// Instances that EC2 may not count yet, with their reservation and when they were launched.
    launched: HashMap<String, (String, Instant)>,
}

impl Reservations {
    /// Makes an empty memory; reservations are looked up again after `lifetime`.
    pub fn new(lifetime: Duration) -> Self {
        Self { lifetime, found: Lookups::new(lifetime), known: Mutex::default() }
    }

    /// Returns after how long reservations are looked up again.
    pub const fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// Returns the reservations that a class's terms select.
    ///
    /// # Errors
    /// Any failure of a call.
    pub async fn of(
        &self,
        clients: &Clients,
        class: &str,
        terms: &[CapacityReservationSelectorTerm],
    ) -> Result<Vec<Found>, Error> {
        let ask = || async {
            let began = Instant::now();
            let found = capacity_reservations::find(clients, terms, Timestamp::now()).await?;
            self.count(&found, began);
            Ok(found)
        };
        self.found.get(class, &terms.to_vec(), |_| true, ask).await
    }

    /// Takes over what EC2 counts, less what was launched since it was asked.
    fn count(&self, found: &[Found], began: Instant) {
        let mut known = self.locked();
        let Known { free, launched } = &mut *known;
        for one in found {
            let id = &one.reservation.id;
            launched.retain(|_, (of, at)| of != id || *at >= began);
            let since = launched.values().filter(|(of, _)| of == id).count();
            free.insert(id.clone(), one.available.saturating_sub(u32::try_from(since).unwrap_or(u32::MAX)));
        }
    }

    /// An instance was launched: EC2 is asked again only in a while. A repeated launch is the same instance.
    pub fn took(&self, id: &str, instance: &str) {
        let mut known = self.locked();
        let Known { free, launched } = &mut *known;
        if launched.insert(instance.to_owned(), (id.to_owned(), Instant::now())).is_none()
            && let Some(count) = free.get_mut(id)
        {
            *count = count.saturating_sub(1);
        }
    }

    /// EC2 has no instance left, whatever it said before.
    pub fn full(&self, id: &str) {
        self.locked().free.insert(id.to_owned(), 0);
    }

    /// Says whether all of these were counted since the start.
    pub fn counted(&self, selected: &[CapacityReservation]) -> bool {
        let known = self.locked();
        selected.iter().all(|one| known.free.contains_key(&one.id))
    }

    /// Returns what of a class's reservations can be offered, ordered by id. One that was not counted since the start has nothing left.
    pub fn offered(&self, selected: &[CapacityReservation]) -> Vec<catalogue::CapacityReservation> {
        let known = self.locked();
        offered(selected, |id| known.free.get(id).copied(), Timestamp::now())
    }

    /// Returns how many instances each has left, by id.
    pub fn free(&self) -> BTreeMap<String, u32> {
        self.locked().free.iter().map(|(id, count)| (id.clone(), *count)).collect()
    }

    /// Forgets a class that is gone.
    pub fn forget(&self, class: &str) {
        self.found.forget(class);
    }

    fn locked(&self) -> MutexGuard<'_, Known> {
        // Nothing can panic while the lock is held, so a poisoned memory is still a sound one.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what of a class's reservations can be offered at `now`, ordered by id, as `left` counts the instances. One that was not counted has none.
pub fn offered(
    selected: &[CapacityReservation],
    left: impl Fn(&str) -> Option<u32>,
    now: Timestamp,
) -> Vec<catalogue::CapacityReservation> {
    let offer = |one: &CapacityReservation| catalogue::CapacityReservation {
        instance_type: one.instance_type.as_str().into(),
        zone: one.availability_zone.as_str().into(),
        reservation: Reservation {
            id: one.id.as_str().into(),
            kind: one.reservation_type,
            interruptible: one.interruptible.unwrap_or(false),
            tenancy: one.tenancy,
            remaining: left(&one.id).unwrap_or(0),
        },
        expiring: one.is_expiring(now),
    };
    let mut offered: Vec<_> = selected.iter().map(offer).collect();
    offered.sort_by(|a, b| a.reservation.id.cmp(&b.reservation.id));
    offered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_launched_is_taken_off_until_ec2_counts_again() {
        let reservation: CapacityReservation = serde_json::from_value(serde_json::json!({"id": "cr-1",
            "availabilityZone": "us-east-1a", "instanceType": "m7i.large", "ownerID": "123456789012",
            "instanceMatchCriteria": "targeted", "state": "expiring"}))
        .expect("a reservation");
        let memory = Reservations::new(Duration::from_secs(60));
        let left = || memory.offered(std::slice::from_ref(&reservation))[0].reservation.remaining;
        assert!(left() == 0 && !memory.counted(std::slice::from_ref(&reservation)), "nobody counted yet");
        let start = Instant::now();
        let count = |available, began| memory.count(&[Found { reservation: reservation.clone(), available }], began);
        count(2, start);
        memory.took("cr-1", "i-1");
        memory.took("cr-1", "i-1");
        assert_eq!(left(), 1, "a repeated launch is the same instance");
        count(2, start);
        assert_eq!(left(), 1, "it was asked before the launch");
        count(5, Instant::now());
        assert_eq!(left(), 5);
        memory.full("cr-1");
        assert_eq!(left(), 0);
        assert!(memory.offered(&[reservation])[0].expiring);
    }

    #[test]
    fn a_block_that_was_long_not_listed_is_not_launched_into_near_its_end() {
        let block: CapacityReservation = serde_json::from_value(serde_json::json!({"id": "cr-1",
            "availabilityZone": "us-east-1a", "instanceType": "p5.48xlarge", "ownerID": "123456789012",
            "instanceMatchCriteria": "targeted", "reservationType": "capacity-block", "endTime": "2026-06-01T11:30:00Z",
            "state": "active"}))
        .expect("a reservation");
        let ends = |block: &CapacityReservation, now: &str| {
            offered(std::slice::from_ref(block), |_| Some(1), now.parse().expect("a time"))[0].expiring
        };
        assert!(!ends(&block, "2026-06-01T10:49:59Z") && ends(&block, "2026-06-01T10:50:00Z"));
        let plain = CapacityReservation { reservation_type: Default::default(), ..block };
        assert!(!ends(&plain, "2026-06-01T11:29:00Z"), "what runs there runs on, on demand");
    }
}

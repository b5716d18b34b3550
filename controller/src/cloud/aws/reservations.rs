//! Capacity reservations that node classes select, and how many instances each has left.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use karp_aws::capacity_reservations::{self, Found};
use karp_aws::{Clients, Error};
use karp_domain::api::{CapacityReservation, CapacityReservationSelectorTerm, ReservationState, ReservationType};
use karp_domain::catalogue::{self, Reservation, ReservationKind};

use super::lookups::Lookups;

/// Remembers the reservations of each class.
pub struct Reservations {
    found: Lookups<Vec<CapacityReservationSelectorTerm>, Vec<Found>>,
    /// Free instances by reservation, as last described, less what was launched since.
    free: Mutex<HashMap<String, u32>>,
}

impl Reservations {
    /// Makes an empty memory; reservations are looked up again after `lifetime`.
    pub fn new(lifetime: Duration) -> Self {
        Self { found: Lookups::new(lifetime), free: Mutex::default() }
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
            let found = capacity_reservations::find(clients, terms, Timestamp::now()).await?;
            self.counted(&found);
            Ok(found)
        };
        self.found.get(class, &terms.to_vec(), |_| true, ask).await
    }

    /// Takes over what EC2 counts.
    fn counted(&self, found: &[Found]) {
        let mut free = self.locked();
        free.extend(found.iter().map(|one| (one.reservation.id.clone(), one.available)));
    }

    /// An instance was launched: EC2 is asked again only in a while.
    pub fn took(&self, id: &str) {
        if let Some(count) = self.locked().get_mut(id) {
            *count = count.saturating_sub(1);
        }
    }

    /// Returns what of a class's reservations can be offered, ordered by id. One that was not counted since the start has nothing left.
    pub fn offered(&self, selected: &[CapacityReservation]) -> Vec<catalogue::CapacityReservation> {
        let free = self.locked();
        let mut offered: Vec<_> = selected
            .iter()
            .map(|one| catalogue::CapacityReservation {
                instance_type: one.instance_type.as_str().into(),
                zone: one.availability_zone.as_str().into(),
                reservation: Reservation {
                    id: one.id.as_str().into(),
                    kind: match one.reservation_type {
                        ReservationType::Default => ReservationKind::Default,
                        ReservationType::CapacityBlock => ReservationKind::CapacityBlock,
                    },
                    interruptible: one.interruptible.unwrap_or(false),
                    remaining: free.get(&one.id).copied().unwrap_or(0),
                },
                expiring: one.state == ReservationState::Expiring,
            })
            .collect();
        offered.sort_by(|a, b| a.reservation.id.cmp(&b.reservation.id));
        offered
    }

    /// Forgets a class that is gone.
    pub fn forget(&self, class: &str) {
        self.found.forget(class);
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        // Nothing can panic while the lock is held, so a poisoned memory is still a sound one.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        assert_eq!(left(), 0, "nobody counted yet");
        let counted = |available| memory.counted(&[Found { reservation: reservation.clone(), available }]);
        counted(2);
        memory.took("cr-1");
        assert_eq!(left(), 1);
        memory.took("cr-1");
        memory.took("cr-1");
        assert_eq!(left(), 0);
        counted(5);
        assert_eq!(left(), 5);
        assert!(memory.offered(&[reservation])[0].expiring);
    }
}

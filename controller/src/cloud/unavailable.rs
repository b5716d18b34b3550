//! Offerings that could not be had a short while ago, so that the next plan avoids them: 3 min at first, longer while they keep failing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use karp_domain::catalogue::{CapacityType, Catalogue, Offering};

use super::UnavailableOffering;

/// How long a missing offering is avoided at first (Karpenter: always 3 min).
const FIRST: Duration = Duration::from_secs(180);
/// Doubled at most so often: 3 min, 6, 12, 24, 48. Capacity that is gone for a day is asked for some thirty times instead of 480.
const DOUBLINGS: u32 = 4;
/// More than every type in every zone bought every way (1,000 × 6 × 2); beyond it the oldest are tried again.
const CAPACITY: usize = 20_000;

/// Type, zone and how it is bought; a capacity reservation stands for itself, whatever its type and zone.
type Key = (String, String, CapacityType, Option<String>);

/// Remembers offerings that could not be had; cheap to clone.
#[derive(Clone)]
pub struct Unavailable {
    first: Duration,
    offerings: Arc<Mutex<HashMap<Key, Absence>>>,
}

/// An offering that could not be had.
#[derive(Clone, Copy)]
struct Absence {
    /// It is avoided until then.
    until: Instant,
    /// How long it is avoided at a time.
    lasts: Duration,
}

impl Absence {
    /// The failures are forgotten when the offering was not refused for as long again as it was avoided.
    fn is_forgotten(&self, now: Instant) -> bool {
        now >= self.until + self.lasts
    }
}

impl Default for Unavailable {
    fn default() -> Self {
        Self::remembering(FIRST)
    }
}

impl Unavailable {
    fn remembering(first: Duration) -> Self {
        Self { first, offerings: Arc::default() }
    }

    /// Remembers that an offering could not be had; empty type or zone stand for all. The next refusal after a failed new try doubles the
    /// time; refusals of calls that were under way together count once.
    pub fn mark(&self, offering: &UnavailableOffering) {
        self.mark_at(offering, Instant::now());
    }

    fn mark_at(&self, offering: &UnavailableOffering, now: Instant) {
        let key = match &offering.reservation {
            Some(id) => (String::new(), String::new(), offering.capacity_type, Some(id.clone())),
            None => (offering.instance_type.clone(), offering.zone.clone(), offering.capacity_type, None),
        };
        let mut offerings = self.locked();
        if offerings.len() >= CAPACITY {
            offerings.retain(|_, absence| !absence.is_forgotten(now));
        }
        if offerings.len() >= CAPACITY
            && let Some(oldest) = offerings.iter().min_by_key(|(_, absence)| absence.until).map(|(key, _)| key.clone())
        {
            offerings.remove(&oldest);
        }
        let lasts = match offerings.get(&key) {
            Some(before) if now < before.until => before.lasts,
            Some(before) if !before.is_forgotten(now) => (before.lasts * 2).min(self.first * 2_u32.pow(DOUBLINGS)),
            _ => self.first,
        };
        offerings.insert(key, Absence { until: now + lasts, lasts });
    }

    /// Returns the catalogue without what is to be avoided.
    pub fn apply(&self, catalogue: &Arc<Catalogue>) -> Arc<Catalogue> {
        let now = Instant::now();
        let offerings = self.locked();
        if offerings.values().all(|absence| absence.until <= now) {
            return catalogue.clone();
        }
        Arc::new(catalogue.without(|kind, offering| covers(&offerings, kind, offering, now)))
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Key, Absence>> {
        // Nothing can panic while the lock is held, so a poisoned memory is still a sound one.
        self.offerings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn covers(offerings: &HashMap<Key, Absence>, instance_type: &str, offering: &Offering, now: Instant) -> bool {
    let (zone, capacity_type) = (&*offering.zone.name, offering.capacity_type);
    let missing = |kind: &str, zone: &str, reservation: Option<&str>| {
        let key = (kind.to_owned(), zone.to_owned(), capacity_type, reservation.map(str::to_owned));
        offerings.get(&key).is_some_and(|absence| now < absence.until)
    };
    let places = [(instance_type, zone), (instance_type, ""), ("", zone), ("", "")];
    let own = offering.reservation.as_ref().is_some_and(|held| missing("", "", Some(&held.id)));
    own || places.into_iter().any(|(kind, zone)| missing(kind, zone, None))
}

#[cfg(test)]
mod tests {
    use karp_domain::catalogue::{Price, PriceSource, Reservation, ReservationKind, Zone};

    use super::*;

    fn offering(kind: &str, zone: &str) -> UnavailableOffering {
        UnavailableOffering {
            instance_type: kind.to_owned(),
            zone: zone.to_owned(),
            capacity_type: CapacityType::Spot,
            reservation: None,
            code: "InsufficientInstanceCapacity".to_owned(),
        }
    }

    fn sold(zone: &str, capacity_type: CapacityType, reservation: Option<&str>) -> Offering {
        let reservation = reservation.map(|id| Reservation {
            id: id.into(),
            kind: ReservationKind::Default,
            interruptible: false,
            remaining: 1,
        });
        Offering {
            capacity_type,
            zone: Zone::new(zone, ""),
            price: Price::from_micro_dollars(1),
            source: PriceSource::Published,
            available: true,
            reservation,
        }
    }

    fn avoids(unavailable: &Unavailable, kind: &str, zone: &str, capacity_type: CapacityType) -> bool {
        covers(&unavailable.locked(), kind, &sold(zone, capacity_type, None), Instant::now())
    }

    #[test]
    fn a_reservation_that_is_full_says_nothing_of_others() {
        let unavailable = Unavailable::default();
        let full = UnavailableOffering {
            capacity_type: CapacityType::Reserved,
            reservation: Some("cr-1".to_owned()),
            ..offering("m7i.large", "a")
        };
        unavailable.mark(&full);
        let avoids = |id| {
            let sold = sold("a", CapacityType::Reserved, Some(id));
            covers(&unavailable.locked(), "m7i.large", &sold, Instant::now())
        };
        assert!(avoids("cr-1") && !avoids("cr-2"));
    }

    /// Says for how many minutes from `now` the offering is avoided.
    fn minutes(unavailable: &Unavailable, now: Instant) -> u64 {
        let sold = sold("us-east-1a", CapacityType::Spot, None);
        let avoided =
            |after: u64| covers(&unavailable.locked(), "m7i.large", &sold, now + Duration::from_secs(60 * after));
        (0..200).take_while(|after| avoided(*after)).count() as u64
    }

    #[test]
    fn an_offering_is_avoided_for_a_while() {
        let unavailable = Unavailable::remembering(Duration::from_millis(50));
        unavailable.mark(&offering("m7i.large", "us-east-1a"));
        assert!(avoids(&unavailable, "m7i.large", "us-east-1a", CapacityType::Spot));
        assert!(!avoids(&unavailable, "m7i.large", "us-east-1a", CapacityType::OnDemand), "bought another way");
        assert!(!avoids(&unavailable, "m7i.large", "us-east-1b", CapacityType::Spot));
        std::thread::sleep(Duration::from_millis(80));
        assert!(!avoids(&unavailable, "m7i.large", "us-east-1a", CapacityType::Spot));
    }

    #[test]
    fn what_keeps_failing_is_avoided_longer_and_forgiven_when_it_stops() {
        let unavailable = Unavailable::default();
        let spot = offering("m7i.large", "us-east-1a");
        let mut now = Instant::now();
        for expected in [3, 6, 12, 24, 48, 48] {
            unavailable.mark_at(&spot, now);
            assert_eq!(minutes(&unavailable, now), expected);
            unavailable.mark_at(&spot, now + Duration::from_secs(1));
            assert_eq!(minutes(&unavailable, now + Duration::from_secs(1)), expected, "refused together: once");
            now += Duration::from_secs(60 * expected + 30);
            assert_eq!(minutes(&unavailable, now), 0, "tried again after {expected} min");
        }
        now += Duration::from_secs(60 * 97);
        unavailable.mark_at(&spot, now);
        assert_eq!(minutes(&unavailable, now), 3, "it was to be had in between");
    }

    #[test]
    fn empty_names_stand_for_all() {
        let unavailable = Unavailable::default();
        unavailable.mark(&offering("", "us-east-1a"));
        assert!(avoids(&unavailable, "c7g.large", "us-east-1a", CapacityType::Spot));
        assert!(!avoids(&unavailable, "c7g.large", "us-east-1c", CapacityType::Spot));
    }

    #[test]
    fn the_memory_is_bounded() {
        let unavailable = Unavailable::default();
        let start = Instant::now();
        for number in 0..=CAPACITY as u64 {
            unavailable.mark_at(&offering(&number.to_string(), "a"), start + Duration::from_millis(number));
        }
        assert_eq!(unavailable.locked().len(), CAPACITY);
        assert!(!avoids(&unavailable, "0", "a", CapacityType::Spot), "the oldest made room");
    }
}

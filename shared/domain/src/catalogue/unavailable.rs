//! Offerings that could not be had a short while ago, so that the next plan avoids them: 3 min at first, longer while they keep failing.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::{CapacityType, Catalogue, Offering};
use crate::fleet::UnavailableOffering;

/// How long a missing offering is avoided at first (Karpenter: always 3 min).
const FIRST: Duration = Duration::from_secs(180);
/// Doubled at most so often: 3 min, 6, 12. Capacity that is gone for a day is asked for 120 times instead of 480, and pods for which there is
/// no other wait no longer than 12 min after it is back.
const DOUBLINGS: u32 = 2;
const LONGEST: Duration = FIRST.saturating_mul(2_u32.pow(DOUBLINGS));
/// More than every type in every zone bought every way (1,000 × 6 × 2); beyond it the oldest are tried again.
const CAPACITY: usize = 20_000;

/// Type, zone and how it is bought; a capacity reservation stands for itself, whatever its type and zone.
type Key = (String, String, CapacityType, Option<String>);

/// Remembers offerings that could not be had. Time is monotonic and given by the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unavailable {
    offerings: FxHashMap<Key, Absence>,
}

/// Tells others of an offering that could not be had, on the clock that all share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Absent {
    /// Type; empty for all types.
    pub instance_type: String,
    /// Zone; empty for all zones.
    pub zone: String,
    /// How it was to be bought.
    pub capacity_type: CapacityType,
    /// The capacity reservation, which stands for itself, whatever its type and zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// It is avoided until then.
    pub until: Timestamp,
    /// How long it is avoided at a time, in seconds.
    pub seconds: u64,
}

/// What is kept of an offering that could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Absence {
    /// It is avoided until then.
    until: Duration,
    /// How long it is avoided at a time.
    lasts: Duration,
}

impl Absence {
    /// The failures are forgotten when the offering was not refused for as long again as it was avoided.
    fn is_forgotten(&self, now: Duration) -> bool {
        now >= self.until + self.lasts
    }
}

impl Unavailable {
    /// Remembers that an offering could not be had; empty type or zone stand for all. The next refusal after a failed new try doubles the
    /// time; refusals of calls that were under way together count once.
    pub fn mark(&mut self, offering: &UnavailableOffering, now: Duration) {
        let key = match &offering.reservation {
            Some(id) => (String::new(), String::new(), offering.capacity_type, Some(id.clone())),
            None => (offering.instance_type.clone(), offering.zone.clone(), offering.capacity_type, None),
        };
        if self.offerings.len() >= CAPACITY {
            self.offerings.retain(|_, absence| !absence.is_forgotten(now));
        }
        if self.offerings.len() >= CAPACITY && !self.offerings.contains_key(&key) {
            let oldest = self.offerings.iter().min_by_key(|(key, absence)| (absence.until, *key));
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.offerings.remove(&oldest);
            }
        }
        let lasts = match self.offerings.get(&key) {
            Some(before) if now < before.until => before.lasts,
            Some(before) if !before.is_forgotten(now) => (before.lasts * 2).min(LONGEST),
            _ => FIRST,
        };
        self.offerings.insert(key, Absence { until: now + lasts, lasts });
    }

    /// Answers what is not forgotten, ordered; `clock` is the time of day at `now`.
    #[must_use]
    pub fn told(&self, now: Duration, clock: Timestamp) -> Vec<Absent> {
        let known = self.offerings.iter().filter(|(_, absence)| !absence.is_forgotten(now));
        let tell = |(key, absence): (&Key, &Absence)| {
            let (instance_type, zone, capacity_type, reservation) = key.clone();
            let ahead = SignedDuration::try_from(absence.until).ok()? - SignedDuration::try_from(now).ok()?;
            let until = clock.checked_add(ahead).ok()?;
            Some(Absent { instance_type, zone, capacity_type, reservation, until, seconds: absence.lasts.as_secs() })
        };
        let mut told: Vec<Absent> = known.filter_map(tell).collect();
        told.sort_unstable();
        told
    }

    /// Takes over what another was told of, where nothing is known yet: what it says of its own time is held to what this memory does.
    pub fn recall(&mut self, told: &[Absent], now: Duration, clock: Timestamp) {
        for absent in told.iter().take(CAPACITY.saturating_sub(self.offerings.len())) {
            let lasts = Duration::from_secs(absent.seconds).clamp(FIRST, LONGEST);
            let ahead = absent.until.duration_since(clock);
            if SignedDuration::try_from(lasts).is_ok_and(|lasts| ahead + lasts <= SignedDuration::ZERO) {
                continue;
            }
            // one that is over is remembered for as long as it would have been
            let until = match Duration::try_from(ahead) {
                Ok(ahead) => now + ahead.min(lasts),
                Err(_) => now.saturating_sub(ahead.unsigned_abs()),
            };
            let key =
                (absent.instance_type.clone(), absent.zone.clone(), absent.capacity_type, absent.reservation.clone());
            self.offerings.entry(key).or_insert(Absence { until, lasts });
        }
    }

    /// Answers the catalogue without what is to be avoided.
    #[must_use]
    pub fn apply(&self, catalogue: &Arc<Catalogue>, now: Duration) -> Arc<Catalogue> {
        if self.offerings.values().all(|absence| absence.until <= now) {
            return catalogue.clone();
        }
        Arc::new(catalogue.without(|kind, offering| self.covers(kind, offering, now)))
    }

    /// Says whether an offering of a type is to be avoided.
    fn covers(&self, instance_type: &str, offering: &Offering, now: Duration) -> bool {
        let (zone, capacity_type) = (&*offering.zone.name, offering.capacity_type);
        let missing = |kind: &str, zone: &str, reservation: Option<&str>| {
            let key = (kind.to_owned(), zone.to_owned(), capacity_type, reservation.map(str::to_owned));
            self.offerings.get(&key).is_some_and(|absence| now < absence.until)
        };
        let places = [(instance_type, zone), (instance_type, ""), ("", zone), ("", "")];
        let own = offering.reservation.as_ref().is_some_and(|held| missing("", "", Some(&held.id)));
        own || places.into_iter().any(|(kind, zone)| missing(kind, zone, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Price, PriceSource, Reservation, ReservationKind, Zone};

    const START: Duration = Duration::from_secs(1_000);

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
            tenancy: Default::default(),
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
        unavailable.covers(kind, &sold(zone, capacity_type, None), START)
    }

    #[test]
    fn a_reservation_that_is_full_says_nothing_of_others() {
        let mut unavailable = Unavailable::default();
        let full = UnavailableOffering {
            capacity_type: CapacityType::Reserved,
            reservation: Some("cr-1".to_owned()),
            ..offering("m7i.large", "a")
        };
        unavailable.mark(&full, START);
        let avoids = |id| unavailable.covers("m7i.large", &sold("a", CapacityType::Reserved, Some(id)), START);
        assert!(avoids("cr-1") && !avoids("cr-2"));
    }

    #[test]
    fn only_what_was_asked_for_is_avoided() {
        let mut unavailable = Unavailable::default();
        unavailable.mark(&offering("m7i.large", "us-east-1a"), START);
        assert!(avoids(&unavailable, "m7i.large", "us-east-1a", CapacityType::Spot));
        assert!(!avoids(&unavailable, "m7i.large", "us-east-1a", CapacityType::OnDemand), "bought another way");
        assert!(!avoids(&unavailable, "m7i.large", "us-east-1b", CapacityType::Spot));
        assert!(!avoids(&unavailable, "m7i.xlarge", "us-east-1a", CapacityType::Spot));
    }

    /// Says for how many minutes from `now` the offering is avoided.
    fn minutes(unavailable: &Unavailable, now: Duration) -> u64 {
        let sold = sold("us-east-1a", CapacityType::Spot, None);
        let avoided = |after: u64| unavailable.covers("m7i.large", &sold, now + Duration::from_secs(60 * after));
        (0..200).take_while(|after| avoided(*after)).count() as u64
    }

    #[test]
    fn what_keeps_failing_is_avoided_longer_and_forgiven_when_it_stops() {
        let mut unavailable = Unavailable::default();
        let spot = offering("m7i.large", "us-east-1a");
        let mut now = START;
        for expected in [3, 6, 12, 12] {
            unavailable.mark(&spot, now);
            assert_eq!(minutes(&unavailable, now), expected);
            unavailable.mark(&spot, now + Duration::from_secs(1));
            assert_eq!(minutes(&unavailable, now + Duration::from_secs(1)), expected, "refused together: once");
            now += Duration::from_secs(60 * expected + 30);
            assert_eq!(minutes(&unavailable, now), 0, "tried again after {expected} min");
        }
        now += Duration::from_secs(60 * 25);
        unavailable.mark(&spot, now);
        assert_eq!(minutes(&unavailable, now), 3, "it was to be had in between");
    }

    #[test]
    fn another_process_avoids_what_this_one_could_not_have() {
        let (mut first, mut now) = (Unavailable::default(), START);
        for minutes in [3, 6] {
            first.mark(&offering("m7i.large", "us-east-1a"), now);
            now += Duration::from_secs(60 * minutes + 1);
        }
        first.mark(&offering("m7i.large", "us-east-1a"), now);
        first.mark(&offering("c7i.large", ""), now);
        let clock: Timestamp = "2026-11-22T12:00:00Z".parse().expect("a time");
        let told = first.told(now, clock);
        let text = serde_json::to_string(&told[1]).expect("JSON");
        let expected = r#"{"instanceType":"m7i.large","zone":"us-east-1a","capacityType":"spot","until":"2026-11-22T12:12:00Z","seconds":720}"#;
        assert_eq!((told.len(), text.as_str()), (2, expected));
        // a minute later, on another machine
        let mut second = Unavailable::default();
        second.recall(&told, Duration::ZERO, clock + SignedDuration::from_mins(1));
        assert_eq!(minutes(&second, Duration::ZERO), 11);
        assert_eq!(second.told(Duration::ZERO, clock + SignedDuration::from_mins(1)), told);
        // when it fails again after that, it is avoided as long as anything is; what nobody asked for meanwhile is forgotten
        let mut third = Unavailable::default();
        third.recall(&told, START, clock + SignedDuration::from_mins(13));
        assert_eq!((minutes(&third, START), third.told(START, clock).len()), (0, 1));
        third.mark(&offering("m7i.large", "us-east-1a"), START);
        assert_eq!(minutes(&third, START), 12);
        // a clock that is wrong makes nothing last longer than it may
        let mut fourth = Unavailable::default();
        fourth.recall(&told, START, clock - SignedDuration::from_hours(24));
        assert_eq!(minutes(&fourth, START), 12);
        // what is known here counts more
        fourth.recall(&told, START, clock);
        assert_eq!(minutes(&fourth, START), 12);
    }

    #[test]
    fn empty_names_stand_for_all() {
        let mut unavailable = Unavailable::default();
        unavailable.mark(&offering("", "us-east-1a"), START);
        assert!(avoids(&unavailable, "c7g.large", "us-east-1a", CapacityType::Spot));
        assert!(!avoids(&unavailable, "c7g.large", "us-east-1c", CapacityType::Spot));
    }

    #[test]
    fn a_catalogue_is_shared_until_something_is_missing() {
        let (mut unavailable, catalogue) = (Unavailable::default(), Arc::new(Catalogue::default()));
        assert!(Arc::ptr_eq(&unavailable.apply(&catalogue, START), &catalogue));
        unavailable.mark(&offering("m7i.large", "a"), START);
        assert!(!Arc::ptr_eq(&unavailable.apply(&catalogue, START), &catalogue));
        assert!(Arc::ptr_eq(&unavailable.apply(&catalogue, START + FIRST), &catalogue));
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut unavailable = Unavailable::default();
        let at = |number: u64| START + Duration::from_millis(number);
        for number in 0..=CAPACITY as u64 {
            unavailable.mark(&offering(&number.to_string(), "a"), at(number));
        }
        assert_eq!(unavailable.offerings.len(), CAPACITY);
        assert!(!avoids(&unavailable, "0", "a", CapacityType::Spot), "the oldest made room");
        unavailable.mark(&offering("7", "a"), at(CAPACITY as u64));
        assert_eq!(unavailable.offerings.len(), CAPACITY, "what is known takes no further room");
    }
}

//! Offerings that could not be had a short while ago, so that the next plan avoids them.

use std::sync::Arc;
use std::time::Duration;

use karp_domain::catalogue::{CapacityType, Catalogue};
use moka::sync::Cache;

use super::UnavailableOffering;

/// How long a missing offering is avoided (Karpenter: 3 min).
const MEMORY: Duration = Duration::from_secs(180);
/// More than every type in every zone bought every way (1,000 × 6 × 2); beyond it the oldest may be tried again.
const CAPACITY: u64 = 20_000;

type Key = (String, String, CapacityType);

/// Remembers offerings that could not be had; cheap to clone.
#[derive(Clone)]
pub struct Unavailable {
    offerings: Cache<Key, ()>,
}

impl Default for Unavailable {
    fn default() -> Self {
        Self::remembering(MEMORY)
    }
}

impl Unavailable {
    fn remembering(memory: Duration) -> Self {
        let offerings = Cache::builder().max_capacity(CAPACITY).time_to_live(memory).build();
        Self { offerings }
    }

    /// Remembers that an offering could not be had; empty type or zone stand for all.
    pub fn mark(&self, offering: &UnavailableOffering) {
        let key = (offering.instance_type.clone(), offering.zone.clone(), offering.capacity_type);
        self.offerings.insert(key, ());
    }

    /// Returns whether an offering is to be avoided.
    pub fn contains(&self, instance_type: &str, zone: &str, capacity_type: CapacityType) -> bool {
        let all = String::new;
        [
            (instance_type.to_owned(), zone.to_owned()),
            (instance_type.to_owned(), all()),
            (all(), zone.to_owned()),
            (all(), all()),
        ]
        .into_iter()
        .any(|(kind, zone)| self.offerings.contains_key(&(kind, zone, capacity_type)))
    }

    /// Returns the catalogue without what is to be avoided.
    pub fn apply(&self, catalogue: &Arc<Catalogue>) -> Arc<Catalogue> {
        self.offerings.run_pending_tasks();
        if self.offerings.entry_count() == 0 {
            return catalogue.clone();
        }
        Arc::new(catalogue.without(|kind, zone, capacity_type| self.contains(kind, &zone.name, capacity_type)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offering(kind: &str, zone: &str) -> UnavailableOffering {
        UnavailableOffering {
            instance_type: kind.to_owned(),
            zone: zone.to_owned(),
            capacity_type: CapacityType::Spot,
            code: "InsufficientInstanceCapacity".to_owned(),
        }
    }

    #[test]
    fn an_offering_is_avoided_for_a_while() {
        let unavailable = Unavailable::remembering(Duration::from_millis(50));
        unavailable.mark(&offering("m7i.large", "us-east-1a"));
        assert!(unavailable.contains("m7i.large", "us-east-1a", CapacityType::Spot));
        assert!(!unavailable.contains("m7i.large", "us-east-1a", CapacityType::OnDemand));
        assert!(!unavailable.contains("m7i.large", "us-east-1b", CapacityType::Spot));
        std::thread::sleep(Duration::from_millis(80));
        assert!(!unavailable.contains("m7i.large", "us-east-1a", CapacityType::Spot));
    }

    #[test]
    fn empty_names_stand_for_all() {
        let unavailable = Unavailable::default();
        unavailable.mark(&offering("", "us-east-1a"));
        assert!(unavailable.contains("c7g.large", "us-east-1a", CapacityType::Spot));
        assert!(!unavailable.contains("c7g.large", "us-east-1c", CapacityType::Spot));
    }
}

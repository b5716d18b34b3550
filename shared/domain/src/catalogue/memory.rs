//! Memory that nodes really had: what the hypervisor and the firmware keep of it no API tells before a node is there.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::InstanceFacts;

/// A sample that no other has confirmed or lowered is forgotten after this long (Karpenter: 60 days).
const LIFETIME: SignedDuration = SignedDuration::from_hours(60 * 24);
/// An equal sample confirms one that is older than this: not every look at a node is worth writing down.
const CONFIRMED_AFTER: SignedDuration = SignedDuration::from_hours(24);
const MIB: u64 = 1 << 20;

/// Says what a sample changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Nothing.
    None,
    /// What is known was seen again: worth writing down, and no more.
    Confirmed,
    /// Nodes are planned otherwise from now on.
    Changed,
}

/// Remembers the memory of nodes by instance type and image: the least that any of them had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SeenMemory(BTreeMap<String, BTreeMap<String, Sample>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sample {
    mib: u64,
    at: Timestamp,
}

impl SeenMemory {
    /// Notes `status.capacity.memory` of a node, in bytes. One with less than half of what EC2 publishes, or more than that, is no measure
    /// for others.
    pub fn note(&mut self, facts: &InstanceFacts, image: &str, bytes: u64, now: Timestamp) -> News {
        let sample = Sample { mib: bytes / MIB, at: now };
        if image.is_empty() || !is_plausible(facts, sample) {
            return News::None;
        }
        let of_type = self.0.entry(facts.name.clone()).or_default();
        let stale = |known: &Sample, after| now.duration_since(known.at) > after;
        match of_type.get_mut(image) {
            Some(known) if sample.mib == known.mib && stale(known, CONFIRMED_AFTER) => {
                *known = sample;
                News::Confirmed
            }
            Some(known) if stale(known, LIFETIME) || sample.mib < known.mib => {
                *known = sample;
                News::Changed
            }
            Some(_) => News::None,
            None => {
                of_type.insert(image.to_owned(), sample);
                News::Changed
            }
        }
    }

    /// Answers the least memory that nodes of a type had with an image, in bytes; nothing when none was seen.
    pub fn of(&self, facts: &InstanceFacts, image: &str) -> Option<u64> {
        let sample = self.0.get(&facts.name)?.get(image).filter(|sample| is_plausible(facts, **sample))?;
        Some(sample.mib * MIB)
    }

    /// Forgets what is too old.
    pub fn forget(&mut self, now: Timestamp) {
        for of_type in self.0.values_mut() {
            of_type.retain(|_, sample| now.duration_since(sample.at) <= LIFETIME);
        }
        self.0.retain(|_, of_type| !of_type.is_empty());
    }

    /// Takes over what a former process wrote down; what both know is the least of the two.
    pub fn merge(&mut self, other: Self) {
        for (instance_type, images) in other.0 {
            let of_type = self.0.entry(instance_type).or_default();
            for (image, sample) in images {
                let known = of_type.entry(image).or_insert(sample);
                if sample.mib < known.mib {
                    *known = sample;
                }
            }
        }
    }

    /// Says whether anything is known of a type.
    pub fn knows(&self, instance_type: &str) -> bool {
        self.0.contains_key(instance_type)
    }

    /// Answers how many types are known.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Says whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn is_plausible(facts: &InstanceFacts, sample: Sample) -> bool {
    (facts.memory_mib / 2..=facts.memory_mib).contains(&sample.mib)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{InstanceType, NodeSettings, builtin_type};
    use crate::quantity::Quantity;
    use crate::resources::MEMORY;

    fn at(day: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_hours(day * 24)
    }

    #[test]
    fn the_least_that_nodes_had_counts_until_it_is_old() {
        let facts = builtin_type("m7i.large").unwrap();
        let mut seen = SeenMemory::default();
        assert_eq!(seen.of(facts, "ami-1"), None);
        let mut note = |mib: u64, day: i64| seen.note(facts, "ami-1", mib * MIB + 5, at(day));
        assert_eq!(note(7_900, 0), News::Changed);
        assert_eq!(note(7_900, 0), News::None, "less than a MiB is no news");
        assert_eq!(note(7_950, 1), News::None, "another had less");
        assert_eq!(note(7_890, 2), News::Changed);
        assert_eq!(note(7_890, 4), News::Confirmed);
        assert_eq!(seen.of(facts, "ami-1"), Some(7_890 * MIB));
        assert_eq!(seen.of(facts, "ami-2"), None, "another image keeps another part");
        assert_eq!(seen.note(facts, "ami-1", 7_950 * MIB, at(65)), News::Changed, "the former is too old by now");
        assert_eq!(seen.of(facts, "ami-1"), Some(7_950 * MIB));
        seen.forget(at(126));
        assert!(seen.is_empty());
    }

    #[test]
    fn nodes_that_are_no_measure_are_passed_over() {
        let facts = builtin_type("m7i.large").unwrap();
        let mut seen = SeenMemory::default();
        seen.note(facts, "ami-1", 7_900 * MIB, at(0));
        for mib in [0, 100, facts.memory_mib / 2 - 1, facts.memory_mib + 1] {
            assert_eq!(seen.note(facts, "ami-1", mib * MIB, at(1)), News::None, "{mib}");
            assert_eq!(seen.of(facts, "ami-1"), Some(7_900 * MIB), "{mib}");
        }
        assert_eq!(seen.note(facts, "", 7_900 * MIB, at(0)), News::None);
    }

    #[test]
    fn what_two_processes_saw_is_the_least_of_it() {
        let seen = |mib: u64| {
            let mut seen = SeenMemory::default();
            seen.note(builtin_type("m7i.large").unwrap(), "ami-1", mib * MIB, at(0));
            seen
        };
        let mut both = seen(7_900);
        both.merge(seen(7_880));
        both.merge(seen(7_990));
        assert_eq!(both, seen(7_880));
        let text = serde_json::to_string(&both).unwrap();
        assert_eq!(serde_json::from_str::<SeenMemory>(&text).unwrap(), both);
    }

    #[test]
    fn a_type_has_the_memory_that_was_seen_and_what_is_kept_of_it_follows() {
        let facts = builtin_type("m7i.large").unwrap();
        let settings =
            NodeSettings { eviction_memory: crate::catalogue::Threshold::parse("10%"), ..NodeSettings::default() };
        let guessed = InstanceType::from_facts(facts, &settings, Vec::new());
        let measured = InstanceType::measured(facts, &settings, Some(7_800 * MIB), Vec::new());
        assert_eq!(measured.capacity.get(MEMORY), Quantity::from_bytes(7_800 * MIB as i64));
        let more = measured.capacity.get(MEMORY) - guessed.capacity.get(MEMORY);
        let kept = measured.overhead.get(MEMORY) - guessed.overhead.get(MEMORY);
        assert!(more.is_positive() && kept.is_positive() && kept < more);
        assert_eq!(InstanceType::measured(facts, &settings, None, Vec::new()), guessed);
    }
}

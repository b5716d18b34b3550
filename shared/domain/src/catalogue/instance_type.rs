//! An instance type as the engine sees it: labels, what a node of it holds, and how it can be bought.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::overhead::{self, NodeSettings};
use super::{CapacityType, InstanceFacts, Offering, Price, PriceSource, Zone};
use crate::api::labels;
use crate::resources::{self, Resources};

/// Describes an instance type under one node class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceType {
    /// Name, such as `m7i.large`.
    pub name: Arc<str>,
    /// The values that each label can take on a node of this type; zone and capacity type come from the offerings.
    pub labels: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// `status.capacity` of such a node.
    pub capacity: Resources,
    /// What kubelet, system and eviction thresholds keep of it.
    pub overhead: Resources,
    /// EBS volumes of pods that such a node can attach, if that is known.
    pub attachable: Option<u32>,
    /// Where its EFA interfaces go, by network card and place on it, if that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub efa_places: Vec<(u32, u32)>,
    /// Ways to buy it.
    pub offerings: Vec<Offering>,
}

impl InstanceType {
    /// Makes a type from EC2's facts under the settings of a node class.
    pub fn from_facts(facts: &InstanceFacts, settings: &NodeSettings, offerings: Vec<Offering>) -> Self {
        InstanceType::measured(facts, settings, None, offerings)
    }

    /// Makes a type of which nodes have shown how much memory they have, in bytes; without that it is guessed.
    pub fn measured(
        facts: &InstanceFacts,
        settings: &NodeSettings,
        memory: Option<u64>,
        offerings: Vec<Offering>,
    ) -> Self {
        let memory = memory.unwrap_or_else(|| overhead::guessed_memory(facts, settings));
        let own = facts.each_label().into_iter();
        let mut labels: BTreeMap<Arc<str>, Vec<Arc<str>>> =
            own.map(|(key, value)| (shared_key(key), vec![value.into()])).collect();
        labels.insert(shared_key(labels::INSTANCE_TENANCY), vec!["default".into(), "dedicated".into()]);
        if let Some(build) = settings.windows_build() {
            labels.insert(shared_key(labels::OS), vec!["windows".into()]);
            labels.insert(shared_key(labels::WINDOWS_BUILD), vec![build.into()]);
        }
        if let Some(region) = offerings.first().and_then(|offering| region_of(&offering.zone.name)) {
            labels.insert(shared_key(labels::REGION), vec![region.into()]);
        }
        InstanceType {
            name: facts.name.as_str().into(),
            labels,
            capacity: overhead::capacity(facts, settings, memory),
            overhead: overhead::overhead(facts, settings, memory),
            attachable: overhead::attachable(facts, settings),
            efa_places: facts.efa_places(),
            offerings,
        }
    }

    /// Answers what pods, daemons included, can ask of a node of this type. Huge pages come out of its memory.
    pub fn allocatable(&self) -> Resources {
        let mut rest = self.capacity.minus(&self.overhead);
        let huge = self.capacity.iter().filter(|(name, _)| name.starts_with("hugepages-"));
        for (_, amount) in huge {
            rest.subtract(&Resources::new().with(resources::MEMORY, amount));
        }
        for (name, amount) in self.capacity.iter() {
            if rest.get(name).is_negative() {
                rest.set(name.to_owned(), amount.times(0));
            }
        }
        rest
    }

    /// Answers the price of the cheapest available offering.
    pub fn cheapest(&self) -> Option<Price> {
        self.offerings.iter().filter(|offering| offering.available).map(|offering| offering.price).min()
    }
}

/// Makes the offerings of a type in some zones from known prices, or from the estimate where a price is not known.
pub fn offerings(
    facts: &InstanceFacts,
    zones: &[Zone],
    price: impl Fn(CapacityType, &Zone) -> Option<Price>,
) -> Vec<Offering> {
    let estimate = super::estimate_on_demand(facts);
    let mut all = Vec::with_capacity(2 * zones.len());
    for zone in zones {
        for capacity_type in [CapacityType::Spot, CapacityType::OnDemand] {
            let sold = if capacity_type == CapacityType::Spot { facts.spot } else { facts.on_demand };
            if !sold {
                continue;
            }
            let known = price(capacity_type, zone);
            let price = known.unwrap_or_else(|| match capacity_type {
                CapacityType::Spot => {
                    super::estimate_spot(price(CapacityType::OnDemand, zone).unwrap_or(estimate), &zone.name)
                }
                _ => estimate,
            });
            let zone = zone.clone();
            let source = if known.is_some() { PriceSource::Published } else { PriceSource::Estimated };
            all.push(Offering { capacity_type, zone, price, source, available: true, reservation: None });
        }
    }
    all
}

/// A label key that all types share; a catalogue has a thousand types with twenty labels each.
fn shared_key(key: &'static str) -> Arc<str> {
    static KEYS: OnceLock<BTreeMap<&'static str, Arc<str>>> = OnceLock::new();
    let keys = KEYS.get_or_init(|| labels::WELL_KNOWN.iter().map(|key| (*key, Arc::from(*key))).collect());
    keys.get(key).cloned().unwrap_or_else(|| key.into())
}

/// The region of an availability, local or wavelength zone: `us-west-2` of `us-west-2a` and of `us-west-2-lax-1a`.
pub fn region_of(zone: &str) -> Option<&str> {
    let (number, _) = zone.char_indices().find(|(at, c)| c.is_ascii_digit() && zone[..*at].ends_with('-'))?;
    let digits = zone[number..].find(|c: char| !c.is_ascii_digit())?;
    Some(&zone[..number + digits])
}

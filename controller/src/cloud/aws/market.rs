//! What the region offers at what price, and the catalogue that each node class makes of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use karp_aws::prices::Prices;
use karp_aws::user_data::Family;
use karp_aws::{Clients, Error, instance_types, prices};
use karp_domain::api::Ami;
use karp_domain::catalogue::{Catalogue, InstanceFacts, InstanceType, NodeSettings, Zone, builtin_type, offerings};

use super::class;
use super::fresh::Fresh;

/// How long offerings and prices are good (Karpenter: 12 h; spot prices move by the hour).
const LIFETIME: Duration = Duration::from_secs(3600);

/// Types, zones and prices of the region.
pub struct Market {
    clients: Clients,
    /// The VPC has no way to the price list.
    isolated: bool,
    offers: Arc<Fresh<Offers>>,
    /// The last catalogue of each class, by the class's name.
    catalogues: Mutex<HashMap<String, (Key, Arc<Catalogue>)>>,
}

struct Offers {
    zones: BTreeMap<String, BTreeSet<String>>,
    /// Facts of types that the built-in table does not know.
    unknown: Vec<InstanceFacts>,
    prices: Prices,
}

/// What a catalogue depends on.
#[derive(Clone, PartialEq)]
pub struct Key {
    /// The family of the class's images.
    pub family: Family,
    /// Settings of the class.
    pub settings: NodeSettings,
    /// Zones in which the class has a subnet.
    pub zones: Vec<Zone>,
    /// Images of the class.
    pub images: Vec<Ami>,
    /// Which renewal of the offers it was made from.
    pub generation: u64,
}

impl Market {
    /// Makes a market that is not looked at yet.
    pub fn new(clients: Clients, isolated: bool) -> Self {
        Self { clients, isolated, offers: Fresh::new(LIFETIME), catalogues: Mutex::default() }
    }

    /// Looks the market up now, so that the first node need not wait for it.
    pub async fn prefetch(&self) {
        if let Err(error) = self.offers().await {
            tracing::warn!(%error, "instance types and prices are not known yet");
        }
    }

    /// Returns the catalogue of a class; `key.generation` is filled in.
    ///
    /// # Errors
    /// Any failure of the calls, as long as the market was never seen.
    pub async fn catalogue(&self, class: &str, mut key: Key) -> Result<Arc<Catalogue>, Error> {
        let (offers, generation) = self.offers().await?;
        key.generation = generation;
        let mut catalogues = self.catalogues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made_of, catalogue)) = catalogues.get(class)
            && *made_of == key
        {
            return Ok(catalogue.clone());
        }
        let catalogue = Arc::new(build(&offers, &key));
        catalogues.insert(class.to_owned(), (key, catalogue.clone()));
        Ok(catalogue)
    }

    /// Forgets a class that is gone.
    pub fn forget(&self, class: &str) {
        self.catalogues.lock().unwrap_or_else(PoisonError::into_inner).remove(class);
    }

    async fn offers(&self) -> Result<(Arc<Offers>, u64), Error> {
        let (clients, isolated) = (self.clients.clone(), self.isolated);
        self.offers.get(move || load(clients, isolated)).await
    }
}

/// Reads the offers. Missing prices are estimated, so their failure is only reported; without offerings there is nothing to say.
async fn load(clients: Clients, isolated: bool) -> Result<Offers, Error> {
    let on_demand = async { if isolated { Ok(BTreeMap::new()) } else { prices::on_demand(&clients).await } };
    let (zones, on_demand, spot) =
        futures::join!(instance_types::offered_zones(&clients), on_demand, prices::spot(&clients));
    let zones = zones?;
    let unknown: Vec<String> = zones.keys().filter(|name| builtin_type(name).is_none()).cloned().collect();
    let unknown = instance_types::describe(&clients, &unknown).await?;
    let known = |kind: &str, error: Error| tracing::warn!(%error, "{kind} prices are not known and estimated instead");
    let prices = Prices {
        on_demand: on_demand.unwrap_or_else(|error| {
            known("on-demand", error);
            BTreeMap::new()
        }),
        spot: spot.unwrap_or_else(|error| {
            known("spot", error);
            BTreeMap::new()
        }),
    };
    tracing::info!(
        "instance-types" = zones.len(),
        "on-demand-prices" = prices.on_demand.len(),
        "spot-prices" = prices.spot.len(),
        "discovered instance types and prices"
    );
    Ok(Offers { zones, unknown, prices })
}

/// Makes a class's catalogue: types that one of its images boots, in the zones where it has a subnet.
fn build(offers: &Offers, key: &Key) -> Catalogue {
    let known = offers.zones.keys().filter_map(|name| builtin_type(name));
    let types = known.chain(&offers.unknown).filter_map(|facts| {
        let offered = offers.zones.get(&facts.name)?;
        let zones: Vec<Zone> = key.zones.iter().filter(|zone| offered.contains(&*zone.name)).cloned().collect();
        if zones.is_empty() || !class::boots(key.family, facts) {
            return None;
        }
        let labels = facts.labels();
        class::image_for(&key.images, |label| labels.get(label).cloned())?;
        let price = |capacity_type, zone: &Zone| offers.prices.of(&facts.name, &zone.name, capacity_type);
        Some(InstanceType::from_facts(facts, &key.settings, offerings(facts, &zones, price)))
    });
    Catalogue::new(types.collect())
}

#[cfg(test)]
mod tests {
    use karp_domain::api::{AmiRequirement, labels};
    use karp_domain::catalogue::{CapacityType, Price};
    use karp_domain::requirement::Operator;

    use super::*;

    #[test]
    fn a_catalogue_holds_what_the_class_can_boot_where_it_has_subnets() {
        let zone = |name: &str| name.to_owned();
        let everywhere = BTreeSet::from([zone("us-east-1a"), zone("us-east-1b")]);
        let offers = Offers {
            zones: BTreeMap::from([
                ("m7i.large".to_owned(), everywhere.clone()),
                ("m7g.large".to_owned(), everywhere.clone()),
                ("a1.large".to_owned(), everywhere),
                ("c7i.large".to_owned(), BTreeSet::from([zone("us-east-1f")])),
            ]),
            unknown: Vec::new(),
            prices: Prices {
                on_demand: BTreeMap::from([("m7i.large".to_owned(), Price::from_micro_dollars(100_800))]),
                spot: BTreeMap::new(),
            },
        };
        let amd64 = Ami {
            id: "ami-1".to_owned(),
            requirements: vec![AmiRequirement {
                key: labels::ARCH.to_owned(),
                operator: Operator::In,
                values: vec!["amd64".to_owned()],
            }],
            ..Ami::default()
        };
        let key = Key {
            family: Family::Al2023,
            settings: NodeSettings::default(),
            zones: vec![Zone::new("us-east-1a", "use1-az1")],
            images: vec![amd64],
            generation: 1,
        };
        let catalogue = build(&offers, &key);
        assert_eq!(catalogue.types().iter().map(|kind| &*kind.name).collect::<Vec<_>>(), ["m7i.large"]);
        let offered = &catalogue.types()[0].offerings;
        assert_eq!(offered.len(), 2, "spot and on demand in the one zone: {offered:?}");
        for offering in offered {
            let bought = offering.capacity_type == CapacityType::OnDemand;
            assert_eq!(offering.estimated, !bought, "only the on-demand price is known");
        }
    }
}

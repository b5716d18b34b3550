//! What the region offers at what price, and the catalogue that each node class makes of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use karp_aws::prices::Prices;
use karp_aws::{Clients, Error, instance_types};
use karp_domain::catalogue::{
    CapacityReservation, CapacityType, Catalogue, InstanceFacts, Offering, PriceSource, SeenMemory, Zone, builtin_type,
    estimate_on_demand, offerings, reserved_offerings,
};
use karp_domain::price_file::PriceFile;

use super::fresh::Fresh;
use super::hardware::Hardware;
use super::memory::Memory;
use super::price_list::PriceList;

/// How long types and zones are good (Karpenter: 12 h).
const LIFETIME: Duration = Duration::from_secs(12 * 3600);

/// Types, zones and prices of the region.
pub struct Market {
    clients: Clients,
    offers: Arc<Fresh<Offers>>,
    prices: PriceList,
    /// What the account pays instead.
    file: PriceFile,
    memory: Memory,
    /// The last catalogue of each class, by the class's name.
    catalogues: Mutex<HashMap<String, Made>>,
}

/// A catalogue, and what it was made of.
struct Made {
    of: Key,
    /// With its generation.
    memory: (Arc<SeenMemory>, u64),
    catalogue: Arc<Catalogue>,
}

struct Offers {
    zones: BTreeMap<String, BTreeSet<String>>,
    /// Facts of types that the built-in table does not know.
    unknown: Vec<InstanceFacts>,
}

impl Offers {
    /// Returns what is known of a type's hardware.
    fn facts(&self, instance_type: &str) -> Option<&InstanceFacts> {
        builtin_type(instance_type).or_else(|| self.unknown.iter().find(|facts| facts.name == instance_type))
    }
}

/// What a catalogue depends on.
#[derive(Clone, PartialEq)]
pub struct Key {
    /// What the class makes of instance types.
    pub hardware: Hardware,
    /// Zones in which it has a subnet.
    pub zones: Vec<Zone>,
    /// Capacity reservations of the class, with what they have left.
    pub reservations: Vec<CapacityReservation>,
    /// Which renewals of offers and prices it was made from.
    pub generation: (u64, u64),
}

impl Market {
    /// Makes a market that is not looked at yet.
    pub fn new(clients: Clients, prices: PriceList, file: PriceFile, memory: Memory) -> Self {
        Self { clients, offers: Fresh::new(LIFETIME), prices, file, memory, catalogues: Mutex::default() }
    }

    /// Notes the memory that a node of a type and image has, in bytes: catalogues made from now on reckon with it.
    pub async fn note_memory(&self, instance_type: &str, image: &str, bytes: u64) {
        let Ok((offers, _)) = self.offers().await else { return };
        if let Some(facts) = offers.facts(instance_type) {
            self.memory.note(facts, image, bytes).await;
        }
    }

    /// Looks the market up now, so that the first node need not wait for it.
    pub async fn prefetch(&self) {
        let (offers, prices) = futures::join!(self.offers(), self.prices.get());
        if let Some(error) = offers.err().or(prices.err()) {
            tracing::warn!(%error, "instance types and prices are not known yet");
        }
    }

    /// Returns the catalogue of a class; `key.generation` is filled in.
    ///
    /// # Errors
    /// Any failure of the calls, as long as the market was never seen.
    pub async fn catalogue(&self, class: &str, mut key: Key) -> Result<Arc<Catalogue>, Error> {
        let (offers, prices) = futures::try_join!(self.offers(), self.prices.get())?;
        let ((offers, renewal), (prices, repricing)) = (offers, prices);
        key.generation = (renewal, repricing);
        let memory = self.memory.get().await;
        let mut catalogues = self.catalogues.lock().unwrap_or_else(PoisonError::into_inner);
        let catalogue = Arc::new(match catalogues.get(class).filter(|made| made.of == key) {
            Some(made) if made.memory.1 == memory.1 => return Ok(made.catalogue.clone()),
            // few types are seen with other memory at a time, and catalogues are large
            Some(made) => remeasured(made, &offers, &memory.0),
            None => build(&offers, &prices, &self.file, &memory.0, &key),
        });
        catalogues.insert(class.to_owned(), Made { of: key, memory, catalogue: catalogue.clone() });
        Ok(catalogue)
    }

    /// Returns when the prices of each kind were read; nothing of a kind that never was.
    pub fn prices_read(&self) -> BTreeMap<CapacityType, Timestamp> {
        self.prices.read()
    }

    /// Returns what the nodes of a class's last catalogue were taken to be, if there is one.
    pub fn hardware(&self, class: &str) -> Option<Hardware> {
        let catalogues = self.catalogues.lock().unwrap_or_else(PoisonError::into_inner);
        catalogues.get(class).map(|made| made.of.hardware.clone())
    }

    /// Forgets a class that is gone.
    pub fn forget(&self, class: &str) {
        self.catalogues.lock().unwrap_or_else(PoisonError::into_inner).remove(class);
    }

    async fn offers(&self) -> Result<(Arc<Offers>, u64), Error> {
        let clients = self.clients.clone();
        self.offers.get(move || load(clients)).await
    }
}

/// Reads what the region offers; without that there is nothing to say.
async fn load(clients: Clients) -> Result<Offers, Error> {
    let zones = instance_types::offered_zones(&clients).await?;
    let unknown: Vec<String> = zones.keys().filter(|name| builtin_type(name).is_none()).cloned().collect();
    let unknown = instance_types::describe(&clients, &unknown).await?;
    tracing::info!("instance-types" = zones.len(), "discovered instance types");
    Ok(Offers { zones, unknown })
}

/// What ways to buy are made of.
#[derive(Clone, Copy)]
pub struct Selling<'a> {
    /// Known prices.
    pub prices: &'a Prices,
    /// What the account pays instead.
    pub file: &'a PriceFile,
    /// Capacity reservations of the class.
    pub reservations: &'a [CapacityReservation],
}

/// Ways to buy a type in some zones: at known prices, else at estimates, as the account's own file changes them; then what is reserved.
pub fn sold(facts: &InstanceFacts, zones: &[Zone], selling: Selling<'_>) -> Vec<Offering> {
    let Selling { prices, file, reservations } = selling;
    let mut sold = offerings(facts, zones, |capacity_type, zone| prices.of(&facts.name, &zone.name, capacity_type));
    for offering in &mut sold {
        let (price, given) = file.price(&facts.name, &offering.zone.name, offering.capacity_type, offering.price);
        (offering.price, offering.source) = (price, if given { PriceSource::Published } else { offering.source });
    }
    if reservations.iter().any(|held| *held.instance_type == *facts.name) {
        let bought = sold.iter().find(|offering| offering.capacity_type == CapacityType::OnDemand);
        let price = bought.map_or_else(|| estimate_on_demand(facts), |offering| offering.price);
        sold.extend(reserved_offerings(&facts.name, zones, reservations, price));
    }
    sold
}

/// Makes a catalogue of another in which only the memory of nodes is known better.
fn remeasured(made: &Made, offers: &Offers, memory: &SeenMemory) -> Catalogue {
    made.catalogue.remeasured(|known| {
        if !memory.knows(&known.name) && !made.memory.0.knows(&known.name) {
            return None;
        }
        made.of.hardware.of(offers.facts(&known.name)?, memory, Vec::new)
    })
}

/// Makes a class's catalogue: types that one of its images boots, in the zones where it has a subnet.
fn build(offers: &Offers, prices: &Prices, file: &PriceFile, memory: &SeenMemory, key: &Key) -> Catalogue {
    let known = offers.zones.keys().filter_map(|name| builtin_type(name));
    let types = known.chain(&offers.unknown).filter_map(|facts| {
        let offered = offers.zones.get(&facts.name)?;
        let zones: Vec<Zone> = key.zones.iter().filter(|zone| offered.contains(&*zone.name)).cloned().collect();
        let sold = || sold(facts, &zones, Selling { prices, file, reservations: &key.reservations });
        if zones.is_empty() { None } else { key.hardware.of(facts, memory, sold) }
    });
    Catalogue::new(types.collect())
}

#[cfg(test)]
mod tests {
    use karp_domain::api::{Ami, AmiFamily, AmiRequirement, labels};
    use karp_domain::catalogue::{Price, Reservation, ReservationKind};
    use karp_domain::requirement::Operator;

    use super::*;

    #[test]
    fn a_type_that_the_table_does_not_know_is_sold_as_ec2_describes_it() {
        let new = InstanceFacts { name: "m99i.large".to_owned(), ..builtin_type("m7i.large").expect("a type").clone() };
        assert!(builtin_type(&new.name).is_none());
        let zones = BTreeMap::from([(new.name.clone(), BTreeSet::from(["us-east-1a".to_owned()]))]);
        let offers = Offers { zones, unknown: vec![new] };
        let key = Key {
            hardware: Hardware { family: Some(AmiFamily::Al2023), ..Hardware::default() },
            zones: vec![Zone::new("us-east-1a", "use1-az1")],
            reservations: Vec::new(),
            generation: (1, 1),
        };
        let catalogue = build(&offers, &Prices::default(), &PriceFile::default(), &SeenMemory::default(), &key);
        let kind = catalogue.get("m99i.large").expect("it is there");
        assert_eq!(kind.capacity.get("cpu").to_string(), "2");
        assert_eq!(
            kind.offerings.iter().filter(|one| one.available && one.is_estimated()).count(),
            2,
            "spot, on demand"
        );
        let (types, market) = catalogue.select(&Default::default());
        assert!(catalogue.ranked(&types, market).iter().all(|one| &*one.instance_type == "m99i.large"));
        assert_eq!(catalogue.ranked(&types, market).len(), 2, "and can be launched");
    }

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
        };
        let prices = Prices {
            on_demand: BTreeMap::from([("m7i.large".to_owned(), Price::from_micro_dollars(100_800))]),
            ..Prices::default()
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
            hardware: Hardware { family: Some(AmiFamily::Al2023), images: Some(vec![amd64]), ..Hardware::default() },
            zones: vec![Zone::new("us-east-1a", "use1-az1")],
            reservations: Vec::new(),
            generation: (1, 1),
        };
        let catalogue = build(&offers, &prices, &PriceFile::default(), &SeenMemory::default(), &key);
        assert_eq!(catalogue.types().iter().map(|kind| &*kind.name).collect::<Vec<_>>(), ["m7i.large"]);
        let offered = &catalogue.types()[0].offerings;
        assert_eq!(offered.len(), 2, "spot and on demand in the one zone: {offered:?}");
        for offering in offered {
            let bought = offering.capacity_type == CapacityType::OnDemand;
            assert_eq!(offering.is_estimated(), !bought, "only the on-demand price is known");
        }
        let mut seen = SeenMemory::default();
        seen.note(builtin_type("m7i.large").expect("a type"), "ami-1", 7_777 << 20, jiff::Timestamp::UNIX_EPOCH);
        let measured = build(&offers, &prices, &PriceFile::default(), &seen, &key);
        assert_eq!(measured.types()[0].capacity.get("memory").to_string(), "7777Mi");
        let made =
            |memory, catalogue| Made { of: key.clone(), memory: (Arc::new(memory), 0), catalogue: Arc::new(catalogue) };
        let guessed = made(SeenMemory::default(), catalogue.clone());
        assert_eq!(remeasured(&guessed, &offers, &seen).types(), measured.types());
        let forgotten = remeasured(&made(seen, measured), &offers, &SeenMemory::default());
        assert_eq!(forgotten.types(), catalogue.types());
        let file = PriceFile::parse("rules: [{capacityTypes: [spot], pricePerHour: 0.01}, {discountPercent: 50}]");
        let own = build(&offers, &prices, &file.expect("a price file"), &SeenMemory::default(), &key);
        for offering in &own.types()[0].offerings {
            let expected = if offering.capacity_type == CapacityType::OnDemand { 50_400 } else { 10_000 };
            assert_eq!((offering.price.micro_dollars(), offering.is_estimated()), (expected, false));
        }
        let held = |zone: &str, remaining| CapacityReservation {
            instance_type: "m7i.large".into(),
            zone: zone.into(),
            reservation: Reservation {
                id: format!("cr-{remaining}").into(),
                kind: ReservationKind::Default,
                interruptible: false,
                tenancy: Default::default(),
                remaining,
            },
            expiring: false,
        };
        let reservations = vec![held("us-east-1a", 0), held("us-east-1a", 3), held("us-east-1b", 3)];
        let key = Key { reservations, ..key };
        let with = build(&offers, &prices, &PriceFile::default(), &SeenMemory::default(), &key);
        let reserved: Vec<_> = with.reservations().map(|(_, one)| (one.available, one.price.nano_dollars())).collect();
        assert_eq!(reserved, [(false, 10), (true, 10)], "in the one zone; nearly free, and used up or not");
    }
}

//! The catalogue: instance types of one node class, interned so that questions are answered by bit sets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use super::offering::RESERVATION_LABELS;
use super::{
    CapacityType, InstanceFacts, InstanceType, NodeSettings, Offering, Price, PriceSource, Tenancy, Zone, offerings,
};
use crate::api::labels;
use crate::requirement::{Requirement, Requirements};

/// Instances by the id of the capacity reservation that gives them.
pub type Instances = FxHashMap<Arc<str>, u32>;

/// A set of instance types, by their place in [`Catalogue::types`].
pub type TypeSet = FixedBitSet;

/// Holds the instance types of one node class, with indexes over labels, zones and capacity types.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    types: Vec<Arc<InstanceType>>,
    by_name: Arc<FxHashMap<Arc<str>, usize>>,
    labels: Arc<FxHashMap<Arc<str>, LabelIndex>>,
    zones: Arc<[Zone]>,
    offers: Vec<Vec<Offer>>,
    offered: Vec<TypeSet>,
    exotic: TypeSet,
    plural: Arc<BTreeSet<Arc<str>>>,
}

/// An available offering of a type, in the form in which packing reads it.
#[derive(Clone, Copy, Debug)]
struct Offer {
    price: Price,
    zone: u8,
    capacity_type: CapacityType,
    /// Its place among the type's offerings.
    place: u16,
}

#[derive(Clone, Debug, Default)]
struct LabelIndex {
    defined: TypeSet,
    values: BTreeMap<Arc<str>, TypeSet>,
}

/// Says in which zones and by which capacity types a node may be bought; bits over [`Catalogue::zones`] and [`CapacityType::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Market {
    /// A bit for each zone.
    pub zones: u64,
    /// A bit for each capacity type.
    pub capacity_types: u8,
}

impl Market {
    /// Allows everything.
    pub const ANY: Market = Market { zones: u64::MAX, capacity_types: u8::MAX };

    /// Allows what both allow.
    pub const fn and(self, other: Market) -> Market {
        Market { zones: self.zones & other.zones, capacity_types: self.capacity_types & other.capacity_types }
    }

    /// Allows what another does not: its zones left out, or else its ways to buy; nothing where it allows all of both.
    pub const fn beside(self, other: Market) -> Option<Market> {
        let zones = Market { zones: self.zones & !other.zones, ..self };
        let capacity_types = Market { capacity_types: self.capacity_types & !other.capacity_types, ..self };
        match (zones.is_empty(), capacity_types.is_empty()) {
            (false, _) => Some(zones),
            (true, false) => Some(capacity_types),
            (true, true) => None,
        }
    }

    /// Says whether nothing is allowed.
    pub const fn is_empty(self) -> bool {
        self.zones == 0 || self.capacity_types == 0
    }

    /// Says whether an offering of this zone (by index) and capacity type is allowed.
    pub const fn allows(self, zone: usize, capacity_type: CapacityType) -> bool {
        self.zones >> zone & 1 == 1 && self.capacity_types >> capacity_type as u8 & 1 == 1
    }
}

/// An available offering of a type, as ranked by price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankedOffering {
    /// Instance type.
    pub instance_type: Arc<str>,
    /// Zone.
    pub zone: Zone,
    /// How it is bought.
    pub capacity_type: CapacityType,
    /// Price per hour.
    pub price: Price,
    /// Where the price comes from.
    pub source: PriceSource,
    /// The id of the capacity reservation behind a `Reserved` offering.
    pub reservation: Option<Arc<str>>,
}

/// The zones that fit in a [`Market`]; no region has a quarter of it.
const MAX_ZONES: usize = 64;

impl Catalogue {
    /// Makes a catalogue; types are ordered by name, so the order of the input does not matter. Offerings in zones beyond
    /// the 64th are left out.
    pub fn new(mut types: Vec<InstanceType>) -> Self {
        types.sort_by(|a, b| a.name.cmp(&b.name));
        types.dedup_by(|a, b| a.name == b.name);
        let mut zones: Vec<Zone> = Vec::new();
        for offering in types.iter().flat_map(|t| &t.offerings) {
            // a region has few zones: looking through them is cheaper than sorting ten thousand names
            if !zones.contains(&offering.zone) {
                zones.push(offering.zone.clone());
            }
        }
        zones.sort();
        zones.truncate(MAX_ZONES);
        for t in &mut types {
            t.offerings.retain(|o| zones.binary_search(&o.zone).is_ok());
            sort_offerings(&mut t.offerings);
        }
        let by_name = types.iter().enumerate().map(|(at, t)| (t.name.clone(), at)).collect();
        let types: Vec<_> = types.into_iter().map(Arc::new).collect();
        let mut catalogue =
            Catalogue { by_name: Arc::new(by_name), zones: zones.into(), types, ..Catalogue::default() };
        catalogue.index_labels();
        catalogue.index_offerings();
        catalogue
    }

    /// Makes a catalogue of types offered in every given zone at estimated prices: for simulation, previews and tests.
    pub fn estimated<'a>(
        facts: impl IntoIterator<Item = &'a InstanceFacts>,
        zones: &[Zone],
        settings: &NodeSettings,
    ) -> Self {
        let types = facts.into_iter().map(|facts| {
            let offerings = offerings(facts, zones, |_, _| None);
            InstanceType::from_facts(facts, settings, offerings)
        });
        Catalogue::new(types.collect())
    }

    /// Makes a copy in which the offerings that `unavailable` names cannot be had now. It shares all that stays equal, since the
    /// controller makes one for each look at the cluster while an offering is remembered as unavailable.
    pub fn without(&self, unavailable: impl Fn(&str, &Offering) -> bool) -> Self {
        let mut copy = self.clone();
        for t in &mut copy.types {
            let gone = |o: &Offering| o.available && unavailable(&t.name, o);
            let gone: Vec<usize> = t.offerings.iter().enumerate().filter(|(_, o)| gone(o)).map(|(at, _)| at).collect();
            if !gone.is_empty() {
                let offerings = &mut Arc::make_mut(t).offerings;
                gone.into_iter().for_each(|at| offerings[at].available = false);
            }
        }
        copy.index_offerings();
        copy
    }

    /// Answers what nodes of a tenancy can be bought from: reservations of the other one give them nothing.
    pub fn of_tenancy(self: &Arc<Self>, tenancy: Tenancy) -> Arc<Self> {
        if self.reservations().all(|(_, offering)| offering.is_of(tenancy)) {
            return self.clone();
        }
        Arc::new(self.without(|_, offering| !offering.is_of(tenancy)))
    }

    /// Makes a copy in which reservations have so many instances less than this one says.
    pub fn with_taken(&self, taken: &Instances) -> Self {
        self.altered(|t| {
            let count = |o: &Offering| o.reservation.as_ref().and_then(|held| taken.get(&held.id)).copied();
            if !t.offerings.iter().any(|offering| count(offering).is_some()) {
                return false;
            }
            for offering in &mut Arc::make_mut(t).offerings {
                let Some(count) = count(offering) else { continue };
                let Some(held) = &mut offering.reservation else { continue };
                held.remaining = held.remaining.saturating_sub(count);
                offering.available &= held.remaining > 0;
            }
            true
        })
    }

    /// Makes a copy with other capacities of some types; the rest is shared. `measured` makes anew what may have another, its labels and
    /// offerings as they are.
    pub fn remeasured(&self, measured: impl Fn(&InstanceType) -> Option<InstanceType>) -> Self {
        self.altered(|t| {
            let Some(other) = measured(t).filter(|other| other.capacity != t.capacity) else { return false };
            let own = Arc::make_mut(t);
            (own.capacity, own.overhead) = (other.capacity, other.overhead);
            true
        })
    }

    /// Makes a copy in which `change` may alter a type's price and capacity, never its labels; it says whether it did.
    pub(super) fn altered(&self, mut change: impl FnMut(&mut Arc<InstanceType>) -> bool) -> Self {
        let mut copy = self.clone();
        for t in &mut copy.types {
            if change(t) {
                sort_offerings(&mut Arc::make_mut(t).offerings);
            }
        }
        copy.index_offerings();
        copy
    }

    fn index_labels(&mut self) {
        let size = self.types.len();
        let empty = || TypeSet::with_capacity(size);
        let (labels, plural) = (Arc::make_mut(&mut self.labels), Arc::make_mut(&mut self.plural));
        for (at, t) in self.types.iter().enumerate() {
            if is_exotic(t) {
                self.exotic.grow(size);
                self.exotic.insert(at);
            }
            for (key, values) in &t.labels {
                if values.len() > 1 {
                    plural.insert(key.clone());
                }
                let index = labels.entry(key.clone()).or_default();
                index.defined.grow(size);
                index.defined.insert(at);
                for value in values {
                    index.values.entry(value.clone()).or_insert_with(empty).insert(at);
                }
            }
        }
    }

    fn index_offerings(&mut self) {
        let slots = self.zones.len() * CapacityType::ALL.len();
        self.offered = vec![TypeSet::with_capacity(self.types.len()); slots];
        self.offers = vec![Vec::new(); self.types.len()];
        for (at, t) in self.types.iter().enumerate() {
            for (place, offering) in t.offerings.iter().enumerate().filter(|(_, o)| o.available) {
                if let Ok(zone) = self.zones.binary_search(&offering.zone) {
                    self.offered[zone * CapacityType::ALL.len() + offering.capacity_type as usize].insert(at);
                    let (price, capacity_type) = (offering.price, offering.capacity_type);
                    self.offers[at].push(Offer { price, zone: zone as u8, capacity_type, place: place as u16 });
                }
            }
        }
    }

    /// Answers the types, ordered by name.
    pub fn types(&self) -> &[Arc<InstanceType>] {
        &self.types
    }

    /// Answers the type of a name.
    pub fn get(&self, name: &str) -> Option<&InstanceType> {
        self.by_name.get(name).map(|at| &*self.types[*at])
    }

    /// Answers the place of a type in [`Catalogue::types`].
    pub fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Answers the zones of all offerings, ordered by name.
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    /// Answers the set of all types.
    pub fn all(&self) -> TypeSet {
        let mut all = TypeSet::with_capacity(self.types.len());
        all.insert_range(..);
        all
    }

    /// Says whether any type defines this label.
    pub fn defines(&self, key: &str) -> bool {
        matches!(key, labels::ZONE | labels::ZONE_ID | labels::CAPACITY_TYPE)
            || self.labels.contains_key(key)
            || RESERVATION_LABELS.contains(&key) && self.reservations().next().is_some()
    }

    /// Answers the types that may satisfy a requirement on a label of theirs, by a value or by lacking the label.
    pub fn matching(&self, requirement: &Requirement) -> TypeSet {
        let mut matching = TypeSet::with_capacity(self.types.len());
        let Some(index) = self.labels.get(requirement.key()) else {
            if requirement.admits_absence() {
                matching.insert_range(..);
            } else if RESERVATION_LABELS.contains(&requirement.key()) {
                let admitted = |o: &Offering| o.label(requirement.key()).is_some_and(|value| requirement.admits(value));
                matching.extend(self.reservations().filter(|(_, o)| admitted(o)).map(|(at, _)| at));
            }
            return matching;
        };
        for (value, types) in &index.values {
            if requirement.admits(value) {
                matching.union_with(types);
            }
        }
        if requirement.admits_absence() {
            let mut absent = self.all();
            absent.difference_with(&index.defined);
            matching.union_with(&absent);
        }
        matching
    }

    /// Answers the types and the market that requirements leave, looking only at labels that types and offerings define. Two reservations
    /// of one type in one zone are one to a [`Market`]: [`Offering::satisfies`] tells them apart.
    pub fn select(&self, requirements: &Requirements) -> (TypeSet, Market) {
        let mut types = self.all();
        for requirement in requirements.iter() {
            let key = requirement.key();
            if self.labels.contains_key(key) || RESERVATION_LABELS.contains(&key) || labels::is_of_types(key) {
                types.intersect_with(&self.matching(requirement));
            }
        }
        if of_reservations(requirements).any(|one| !one.admits_absence()) {
            let mut held = TypeSet::with_capacity(self.types.len());
            held.extend(self.held(requirements).map(|(at, _)| at));
            // where none has room it is the offerings that are missing, not the types
            if !held.is_clear() {
                types.intersect_with(&held);
            }
        }
        (types, self.market(requirements))
    }

    /// Answers the first of some requirements that no type meets, whatever the others say.
    pub fn unmet<'r>(&self, requirements: &'r Requirements) -> Option<&'r Requirement> {
        requirements.iter().find(|one| self.select(&Requirements::from_iter([(*one).clone()])).0.is_clear())
    }

    /// Answers the zones and capacity types that requirements leave.
    pub fn market(&self, requirements: &Requirements) -> Market {
        let bits = |key: &str, values: &[&str]| {
            let allowed = values.iter().enumerate().filter(|(_, value)| requirements.admits(key, value));
            allowed.fold(0_u64, |bits, (at, _)| bits | 1 << at)
        };
        let names: Vec<&str> = self.zones.iter().map(|zone| &*zone.name).collect();
        let ids: Vec<&str> = self.zones.iter().map(|zone| &*zone.id).collect();
        let zones = bits(labels::ZONE, &names);
        let ids = bits(labels::ZONE_ID, &ids);
        let capacity_types = bits(labels::CAPACITY_TYPE, &CapacityType::ALL.map(CapacityType::as_str));
        let market = Market { zones: zones & ids, capacity_types: capacity_types as u8 };
        self.reserved_market(market, requirements)
    }

    /// Narrows a market by requirements on the labels of capacity reservations: to no reserved offering if none that has room satisfies
    /// them, and to reserved ones in the zones of those that do if the labels must be there.
    fn reserved_market(&self, mut market: Market, requirements: &Requirements) -> Market {
        if !asks_for_reservations(requirements) {
            return market;
        }
        let reserved = 1 << CapacityType::Reserved as u8;
        let zones = self.held(requirements).filter_map(|(_, offering)| self.zones.binary_search(&offering.zone).ok());
        let zones = zones.fold(0_u64, |bits, zone| bits | 1 << zone);
        if zones == 0 {
            market.capacity_types &= !reserved;
        }
        if of_reservations(requirements).any(|requirement| !requirement.admits_absence()) {
            market.capacity_types &= reserved;
            market.zones &= zones;
        }
        market
    }

    /// Answers the reserved offerings, used up or not, each with the place of its type in [`Catalogue::types`].
    pub fn reservations(&self) -> impl Iterator<Item = (usize, &Offering)> {
        let all = self.types.iter().enumerate().flat_map(|(at, t)| t.offerings.iter().map(move |o| (at, o)));
        all.filter(|(_, offering)| offering.reservation.is_some())
    }

    /// Answers the reserved offerings with room that satisfy requirements, each with the place of its type.
    fn held(&self, requirements: &Requirements) -> impl Iterator<Item = (usize, &Offering)> {
        self.reservations().filter(|(_, offering)| offering.available && offering.suits(requirements))
    }

    /// Answers the offering of the capacity reservation with this id, used up or not.
    pub fn reservation(&self, id: &str) -> Option<&Offering> {
        let is = |offering: &Offering| offering.reservation.as_ref().is_some_and(|held| &*held.id == id);
        self.reservations().map(|(_, offering)| offering).find(|offering| is(offering))
    }

    /// Says whether a ranked offering satisfies requirements on the labels of capacity reservations, and is of the tenancy that they ask for:
    /// a market does not tell those of one zone apart.
    pub fn admits(&self, ranked: &RankedOffering, requirements: &Requirements) -> bool {
        match &ranked.reservation {
            None => of_reservations(requirements).all(Requirement::admits_absence),
            Some(id) => self.reservation(id).is_some_and(|whole| whole.suits(requirements)),
        }
    }

    /// Answers the types with at least one available offering in a market.
    pub fn offered(&self, market: Market) -> TypeSet {
        let mut offered = TypeSet::with_capacity(self.types.len());
        for zone in 0..self.zones.len() {
            for capacity_type in CapacityType::ALL {
                if market.allows(zone, capacity_type) {
                    offered.union_with(&self.offered[zone * CapacityType::ALL.len() + capacity_type as usize]);
                }
            }
        }
        offered
    }

    /// Answers the available offerings of a type in a market, cheapest first.
    pub fn offerings_in(&self, at: usize, market: Market) -> impl Iterator<Item = &Offering> {
        self.types[at].offerings.iter().filter(move |offering| {
            let zone = self.zones.binary_search(&offering.zone);
            offering.available && zone.is_ok_and(|zone| market.allows(zone, offering.capacity_type))
        })
    }

    /// Answers the price of the cheapest available offering of a type in a market.
    pub fn cheapest(&self, at: usize, market: Market) -> Option<Price> {
        let mut offers = self.offers[at].iter();
        offers.find(|o| market.allows(usize::from(o.zone), o.capacity_type)).map(|o| o.price)
    }

    /// Answers the available offerings of a type, cheapest first: zone (by index), capacity type and price.
    pub(crate) fn offers(&self, at: usize) -> impl Iterator<Item = (usize, CapacityType, Price)> {
        self.offers[at].iter().map(|o| (usize::from(o.zone), o.capacity_type, o.price))
    }

    /// Answers the types that cost more for what plain pods never use: bare metal, GPUs, accelerators.
    pub fn exotic(&self) -> &TypeSet {
        &self.exotic
    }

    /// Says whether pods on one node may contradict each other on this label although each finds the node's type suitable: types
    /// do not define it, or define several values.
    pub fn is_open(&self, key: &str) -> bool {
        let from_offering = matches!(key, labels::ZONE | labels::ZONE_ID | labels::CAPACITY_TYPE);
        !from_offering && (self.plural.contains(key) || !self.labels.contains_key(key))
    }

    /// Ranks the available offerings of some types in a market: cheapest first, then by type, zone and capacity type.
    pub fn ranked(&self, types: &TypeSet, market: Market) -> Vec<RankedOffering> {
        // types and zones are ordered by name, so that their places compare as their names do
        let mut ranked: Vec<(Price, usize, u8, CapacityType, u16)> = Vec::new();
        for at in types.ones() {
            let offers = self.offers[at].iter().filter(|o| market.allows(usize::from(o.zone), o.capacity_type));
            ranked.extend(offers.map(|o| (o.price, at, o.zone, o.capacity_type, o.place)));
        }
        ranked.sort_unstable();
        let offering = |(price, at, zone, capacity_type, place): (Price, usize, u8, CapacityType, u16)| {
            let t = &self.types[at];
            let whole = &t.offerings[usize::from(place)];
            RankedOffering {
                instance_type: t.name.clone(),
                zone: self.zones[usize::from(zone)].clone(),
                capacity_type,
                price,
                source: whole.source,
                reservation: whole.reservation.as_ref().map(|held| held.id.clone()),
            }
        };
        ranked.into_iter().map(offering).collect()
    }
}

/// The requirements on labels of capacity reservations.
fn of_reservations(requirements: &Requirements) -> impl Iterator<Item = &Requirement> {
    RESERVATION_LABELS.iter().filter_map(|key| requirements.get(key))
}

/// Says whether requirements tell capacity reservations apart.
pub(crate) fn asks_for_reservations(requirements: &Requirements) -> bool {
    of_reservations(requirements).next().is_some() || requirements.contains(labels::INSTANCE_TENANCY)
}

/// Orders offerings by price, then by how, where and from which reservation they are bought.
fn sort_offerings(offerings: &mut [Offering]) {
    fn names(o: &Offering) -> (&Zone, Option<&str>) {
        (&o.zone, o.reservation.as_ref().map(|held| &*held.id))
    }
    offerings.sort_by(|a, b| {
        (a.price, a.capacity_type).cmp(&(b.price, b.capacity_type)).then_with(|| names(a).cmp(&names(b)))
    });
}

fn is_exotic(t: &InstanceType) -> bool {
    let size = t.labels.get(labels::INSTANCE_SIZE).and_then(|values| values.first());
    t.labels.contains_key(labels::INSTANCE_GPU_COUNT)
        || t.labels.contains_key(labels::INSTANCE_ACCELERATOR_COUNT)
        || size.is_some_and(|size| size.starts_with("metal"))
}

//! What may be launched, by the built-in table of types and its estimated prices.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use karp_domain::api::{Ec2NodeClassSpec, labels};
use karp_domain::catalogue::{
    CapacityType, Catalogue, Demands, Market, NodeSettings, Price, RESERVATION_LABELS, Zone, builtin, builtin_type,
};
use karp_domain::cluster::Pool;
use karp_domain::requirement::{Requirement, Requirements, ValueSet};

use super::Offer;

/// The zone of a catalogue whose user named none.
const ANY_ZONE: &str = "any";

/// Tells what requirements leave.
pub fn offer(requirements: &Requirements) -> Offer {
    Offer::of(prices(requirements))
}

/// Tells what the pools of a class may launch together, as far as the class decides it by what it asks of the hardware.
pub fn class_offer<'a>(pools: impl IntoIterator<Item = &'a Pool>, class: &Ec2NodeClassSpec) -> Offer {
    let demands = Demands::from_class(class);
    let mut cheapest: BTreeMap<&str, Option<Price>> = BTreeMap::new();
    for (name, price) in pools.into_iter().flat_map(|pool| prices(&pool.requirements)) {
        let price_so_far = cheapest.entry(name).or_default();
        *price_so_far = price.into_iter().chain(*price_so_far).min();
    }
    Offer::of(cheapest.into_iter().filter(|(name, _)| builtin_type(name).is_none_or(|facts| demands.are_met_by(facts))))
}

/// Answers the types that requirements leave, each with the least that it costs, where that is known.
fn prices(requirements: &Requirements) -> impl Iterator<Item = (&str, Option<Price>)> {
    static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
    let zones = [Zone::new(ANY_ZONE, "")];
    let catalogue = CATALOGUE.get_or_init(|| Catalogue::estimated(builtin(), &zones, &NodeSettings::default()));
    let (types, market) = match are_reserved(requirements) {
        // Which reservations there are is not known here, so what is asked of them is left open, and of any type there may be one.
        true => (catalogue.select(&apart_from_reservations(requirements)).0, None),
        false => {
            let (mut types, mut market) = catalogue.select(requirements);
            // The same of zones.
            market.zones = Market::ANY.zones;
            types.intersect_with(&catalogue.offered(market));
            (types, Some(market))
        }
    };
    let types: Vec<usize> = types.ones().collect();
    let price = move |at: usize| catalogue.cheapest(at, market?);
    types.into_iter().map(move |at| (&*catalogue.types()[at].name, price(at))).chain(newer(requirements))
}

/// Says whether requirements leave capacity reservations alone to launch from.
fn are_reserved(requirements: &Requirements) -> bool {
    let admits = |how: CapacityType| requirements.admits(labels::CAPACITY_TYPE, how.as_str());
    let asked = RESERVATION_LABELS.iter().any(|key| requirements.get(key).is_some_and(|one| !one.admits_absence()));
    let bought = [CapacityType::Spot, CapacityType::OnDemand].into_iter().any(admits);
    admits(CapacityType::Reserved) && (asked || !bought)
}

/// Leaves out what is asked of capacity reservations, where it does not contradict itself.
fn apart_from_reservations(requirements: &Requirements) -> Requirements {
    let is_open = |one: &Requirement| RESERVATION_LABELS.contains(&one.key()) && !one.is_impossible();
    requirements.iter().filter(|one| !is_open(one)).cloned().collect()
}

/// Answers the types that requirements name and the table does not know. Of their labels it knows none, so that what else is asked is left
/// open.
fn newer(requirements: &Requirements) -> impl Iterator<Item = (&str, Option<Price>)> {
    let named = requirements.get(labels::INSTANCE_TYPE).and_then(|one| match one.values() {
        ValueSet::Only(names) if !requirements.iter().any(Requirement::is_impossible) => Some(names),
        _ => None,
    });
    let names = named.into_iter().flat_map(|names| names.iter()).map(|name| &**name);
    names.filter(|name| builtin_type(name).is_none()).map(|name| (name, None))
}

impl Offer {
    fn of<'a>(types: impl IntoIterator<Item = (&'a str, Option<Price>)>) -> Self {
        let (names, prices): (Vec<&str>, Vec<Option<Price>>) = types.into_iter().unzip();
        let mut prices: Vec<Price> = prices.into_iter().flatten().collect();
        prices.sort();
        Self {
            types: names.len(),
            newer: names.into_iter().filter(|name| builtin_type(name).is_none()).map(str::to_owned).collect(),
            cheapest: prices.first().copied(),
            typical: prices.get(prices.len() / 2).copied(),
        }
    }
}

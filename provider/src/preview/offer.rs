//! What may be launched, by the built-in table of types and its estimated prices.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use karp_domain::api::Ec2NodeClassSpec;
use karp_domain::catalogue::{Catalogue, Demands, Market, NodeSettings, Price, Zone, builtin, builtin_type};
use karp_domain::cluster::Pool;
use karp_domain::requirement::Requirements;

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
    let mut cheapest: BTreeMap<&str, Price> = BTreeMap::new();
    for (name, price) in pools.into_iter().flat_map(|pool| prices(&pool.requirements)) {
        let price_so_far = cheapest.entry(name).or_insert(price);
        *price_so_far = price.min(*price_so_far);
    }
    Offer::of(
        cheapest.into_iter().filter(|(name, _)| builtin_type(name).is_some_and(|facts| demands.are_met_by(facts))),
    )
}

/// Answers the types that requirements leave, each with the least that it costs.
fn prices(requirements: &Requirements) -> impl Iterator<Item = (&'static str, Price)> {
    static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
    let zones = [Zone::new(ANY_ZONE, "")];
    let catalogue = CATALOGUE.get_or_init(|| Catalogue::estimated(builtin(), &zones, &NodeSettings::default()));
    let (mut types, mut market) = catalogue.select(requirements);
    // Which zones there are is not known here, so what is asked of them is left open.
    market.zones = Market::ANY.zones;
    types.intersect_with(&catalogue.offered(market));
    let types: Vec<usize> = types.ones().collect();
    types.into_iter().filter_map(move |at| Some((&*catalogue.types()[at].name, catalogue.cheapest(at, market)?)))
}

impl Offer {
    fn of<'a>(types: impl IntoIterator<Item = (&'a str, Price)>) -> Self {
        let mut prices: Vec<Price> = types.into_iter().map(|(_, price)| price).collect();
        prices.sort();
        Self { types: prices.len(), cheapest: prices.first().copied(), typical: prices.get(prices.len() / 2).copied() }
    }
}

//! Prices per hour: on demand from the price list, spot from EC2's history, in the region of the clients.

use crate::config::Clients;
use crate::error::Error;
use aws_sdk_pricing::types::{Filter, FilterType};
use jiff::Timestamp;
use karp_domain::catalogue::{CapacityType, Price};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::SystemTime;

const PRODUCTS: &str = "pricing:GetProducts";
const HISTORY: &str = "ec2:DescribeSpotPriceHistory";
const PRODUCTS_PER_PAGE: i32 = 100;
const HISTORY_PER_PAGE: i32 = 1000;
/// Linux prices: EC2 writes them under the first name in VPCs of today and under the second in accounts that still know EC2-Classic.
const LINUX: [&str; 2] = ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"];

/// Known prices. A type that is in neither table has no known price; the catalogue then estimates and says so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prices {
    /// By type.
    pub on_demand: BTreeMap<String, Price>,
    /// By type, then zone.
    pub spot: BTreeMap<String, BTreeMap<String, Price>>,
    /// When those of each kind were read; none of a kind that never was.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub read: BTreeMap<CapacityType, Timestamp>,
}

impl Prices {
    /// Returns the known price of an offering.
    #[must_use]
    pub fn of(&self, instance_type: &str, zone: &str, capacity_type: CapacityType) -> Option<Price> {
        match capacity_type {
            CapacityType::OnDemand => self.on_demand.get(instance_type).copied(),
            CapacityType::Spot => self.spot.get(instance_type)?.get(zone).copied(),
            // Paid for already: the next hour costs nothing more.
            CapacityType::Reserved => Some(Price::ZERO),
        }
    }
}

/// Reads the on-demand prices of Linux instances by type.
///
/// # Errors
/// Any failure of a call. Products that cannot be read are left out.
pub async fn on_demand(clients: &Clients) -> Result<BTreeMap<String, Price>, Error> {
    let mut prices = BTreeMap::new();
    // Some bare-metal types are only listed as dedicated; shared prices come last and win.
    let dedicated = [("tenancy", "Dedicated"), ("productFamily", "Compute Instance (bare metal)")];
    products(clients, &dedicated, &mut prices).await?;
    products(clients, &[("tenancy", "Shared")], &mut prices).await?;
    Ok(prices)
}

async fn products(
    clients: &Clients,
    narrowing: &[(&str, &str)],
    prices: &mut BTreeMap<String, Price>,
) -> Result<(), Error> {
    let common = [
        ("regionCode", clients.region()),
        ("operatingSystem", "Linux"),
        ("preInstalledSw", "NA"),
        ("capacitystatus", "Used"),
        ("marketoption", "OnDemand"),
    ];
    let filters = common.iter().chain(narrowing).map(|(field, value)| {
        Filter::builder()
            .r#type(FilterType::TermMatch)
            .field(*field)
            .value(*value)
            .build()
            .map_err(|error| Error::malformed(PRODUCTS, error.to_string()))
    });
    let call = clients
        .pricing()
        .get_products()
        .service_code("AmazonEC2")
        .set_filters(Some(filters.collect::<Result<_, _>>()?))
        .max_results(PRODUCTS_PER_PAGE);
    let mut pages = call.into_paginator().send();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| Error::from_sdk(PRODUCTS, error))?;
        prices.extend(page.price_list.unwrap_or_default().iter().filter_map(|product| read(product)));
    }
    Ok(())
}

/// Reads the newest spot price of each type in each zone.
///
/// # Errors
/// Any failure of a call.
pub async fn spot(clients: &Clients) -> Result<BTreeMap<String, BTreeMap<String, Price>>, Error> {
    clients.pace().describe.take().await;
    let call = clients
        .ec2()
        .describe_spot_price_history()
        .start_time(SystemTime::now().into())
        .set_product_descriptions(Some(LINUX.map(str::to_owned).to_vec()))
        .max_results(HISTORY_PER_PAGE);
    let mut newest: BTreeMap<String, BTreeMap<String, (i64, Price)>> = BTreeMap::new();
    let mut pages = call.into_paginator().send();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| Error::from_sdk(HISTORY, error))?;
        for row in page.spot_price_history.unwrap_or_default() {
            let price = row.spot_price.as_deref().and_then(|text| text.parse().ok()).and_then(Price::from_dollars);
            let (Some(kind), Some(zone), Some(price)) = (row.instance_type, row.availability_zone, price) else {
                continue;
            };
            let at = row.timestamp.map_or(0, |time| time.secs());
            let zones = newest.entry(kind.as_str().to_owned()).or_default();
            let entry = zones.entry(zone).or_insert((at, price));
            if at > entry.0 {
                *entry = (at, price);
            }
        }
    }
    let last =
        |zones: BTreeMap<String, (i64, Price)>| zones.into_iter().map(|(zone, (_, price))| (zone, price)).collect();
    Ok(newest.into_iter().map(|(kind, zones)| (kind, last(zones))).collect())
}

#[derive(Deserialize)]
struct Product {
    product: Facts,
    terms: Terms,
}

#[derive(Deserialize)]
struct Facts {
    attributes: Attributes,
}

#[derive(Deserialize)]
struct Attributes {
    #[serde(rename = "instanceType")]
    instance_type: String,
}

#[derive(Deserialize)]
struct Terms {
    #[serde(rename = "OnDemand", default)]
    on_demand: BTreeMap<String, Term>,
}

#[derive(Deserialize)]
struct Term {
    #[serde(rename = "priceDimensions", default)]
    dimensions: BTreeMap<String, Dimension>,
}

#[derive(Deserialize)]
struct Dimension {
    unit: String,
    /// By currency: USD, or CNY in China (where karp's dollars are yuan).
    #[serde(rename = "pricePerUnit", default)]
    price_per_unit: BTreeMap<String, String>,
}

fn read(product: &str) -> Option<(String, Price)> {
    let product: Product = serde_json::from_str(product).ok()?;
    let hourly =
        product.terms.on_demand.values().flat_map(|term| term.dimensions.values()).filter(|one| one.unit == "Hrs");
    let prices = hourly.flat_map(|dimension| dimension.price_per_unit.values());
    let price =
        prices.filter_map(|text| Price::from_dollars(text.parse().ok()?)).filter(|price| *price > Price::ZERO).min()?;
    Some((product.product.attributes.instance_type, price))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(unit: &str, currency: &str, price: &str) -> String {
        serde_json::json!({
            "product": { "attributes": { "instanceType": "m7i.large" } },
            "terms": { "OnDemand": { "a": { "priceDimensions": { "b": { "unit": unit, "pricePerUnit": { currency: price } } } } } },
        })
        .to_string()
    }

    #[test]
    fn hourly_prices_are_read_in_the_partitions_currency() {
        let dollars = |text| Price::from_dollars(text);
        assert_eq!(read(&product("Hrs", "USD", "0.1008000000")).map(|(_, price)| price), dollars(0.1008));
        assert_eq!(read(&product("Hrs", "CNY", "0.7000000000")).map(|(_, price)| price), dollars(0.7));
        assert_eq!(read(&product("Quantity", "USD", "500")), None, "an upfront fee is no price per hour");
        assert_eq!(read(&product("Hrs", "USD", "0.0000000000")), None, "a free row stands for a reservation");
        assert_eq!(read("{"), None);
    }

    #[test]
    fn spot_prices_are_per_zone() {
        let cheap = Price::from_micro_dollars(1);
        let prices = Prices {
            on_demand: BTreeMap::from([("t".into(), Price::from_micro_dollars(9))]),
            spot: BTreeMap::from([("t".into(), BTreeMap::from([("a".into(), cheap)]))]),
            ..Prices::default()
        };
        assert_eq!(prices.of("t", "a", CapacityType::Spot), Some(cheap));
        assert_eq!(prices.of("t", "b", CapacityType::Spot), None);
        assert_eq!(prices.of("t", "b", CapacityType::OnDemand), Some(Price::from_micro_dollars(9)));
        assert_eq!(prices.of("u", "b", CapacityType::OnDemand), None);
    }
}

//! The last good prices, kept in a ConfigMap: a restart during an outage of the price list loses nothing.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use karp_aws::prices::Prices;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::core::ObjectMeta;

/// The ConfigMap's name; the controller's role names it too.
pub const NAME: &str = "karp-prices";
/// The key below `binaryData`. A change of the format takes another key, so that neither version misreads the other's.
const KEY: &str = "prices.v2.json.gz";
const FIELD_MANAGER: &str = "karp";
/// The API server takes objects of about 1 MiB, in base64; a region's prices are some 50 KiB.
const LIMIT_BYTES: usize = 700 * 1024;
/// What a table may unpack to; a damaged one must not fill the memory.
const LIMIT_UNPACKED: u64 = 32 << 20;

/// Keeps prices in the controller's namespace.
#[derive(Clone)]
pub struct PriceStore {
    maps: Api<ConfigMap>,
}

impl PriceStore {
    /// Makes a store in `namespace`; nothing is asked yet.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { maps: Api::namespaced(client, namespace) }
    }

    /// Reads what was kept; a failure is reported and counts as nothing.
    pub async fn read(&self) -> Option<Prices> {
        let map = match self.maps.get_opt(NAME).await {
            Ok(map) => map?,
            Err(error) => {
                tracing::warn!(%error, name = NAME, "kept prices could not be read");
                return None;
            }
        };
        map.binary_data.as_ref()?.get(KEY)?;
        let prices = kept(&map);
        if prices.is_none() {
            tracing::warn!(name = NAME, "kept prices are damaged and not used");
        }
        prices
    }

    /// Keeps prices; a failure is reported, the controller goes on with what it knows.
    pub async fn write(&self, prices: &Prices) {
        let packed = match pack(prices) {
            Ok(packed) if packed.len() <= LIMIT_BYTES => packed,
            Ok(packed) => return tracing::warn!(bytes = packed.len(), "prices are too many to be kept"),
            Err(error) => return tracing::warn!(%error, "prices could not be packed"),
        };
        let map = ConfigMap {
            metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
            binary_data: Some([(KEY.to_owned(), ByteString(packed))].into()),
            ..ConfigMap::default()
        };
        let answer = self.maps.patch(NAME, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&map)).await;
        if let Err(error) = answer {
            tracing::warn!(%error, name = NAME, "prices could not be kept for the next start");
        }
    }
}

/// Reads the prices that a ConfigMap keeps, if it is sound.
pub fn kept(map: &ConfigMap) -> Option<Prices> {
    unpack(&map.binary_data.as_ref()?.get(KEY)?.0)
}

fn pack(prices: &Prices) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&serde_json::to_vec(prices)?)?;
    encoder.finish()
}

fn unpack(packed: &[u8]) -> Option<Prices> {
    let mut text = Vec::new();
    GzDecoder::new(packed).take(LIMIT_UNPACKED).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use karp_domain::catalogue::Price;

    use super::*;

    #[test]
    fn a_regions_prices_come_back_and_fit() {
        // As many as us-east-1 has: 1,400 types in six zones.
        let price = |number: u64| Price::from_micro_dollars(10_000 + number * 7_919 % 9_000_000);
        let kinds = || (0..1_400).map(|number: u64| (format!("m{number}i.{}xlarge", number % 48), number));
        let prices = Prices {
            on_demand: kinds().map(|(kind, number)| (kind, price(number))).collect(),
            spot: kinds()
                .map(|(kind, number)| {
                    let zones = (0..6).map(|zone| (format!("us-east-1{zone}"), price(number * 6 + zone)));
                    (kind, zones.collect::<BTreeMap<_, _>>())
                })
                .collect(),
        };
        let packed = pack(&prices).expect("packed");
        assert!(packed.len() < LIMIT_BYTES / 4, "{} bytes", packed.len());
        assert_eq!(unpack(&packed), Some(prices));
        assert_eq!(unpack(&packed[..packed.len() / 2]), None, "cut off");
        assert_eq!(unpack(b"{}"), None);
    }
}

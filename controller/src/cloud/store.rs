//! What the controller keeps in ConfigMaps for its next start: the last good prices, so that an outage of the price list loses nothing, the
//! memory of nodes that were there, and which capacity is missing.

use std::io::{Read, Write};
use std::marker::PhantomData;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use karp_aws::prices::Prices;
use karp_domain::catalogue::SeenMemory;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::core::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::unavailable::Capacity;

const FIELD_MANAGER: &str = "karp";
/// The API server takes objects of about 1 MiB, in base64; a region's prices are some 50 KiB.
const LIMIT_BYTES: usize = 700 * 1024;
/// What a table may unpack to; a damaged one must not fill the memory.
const LIMIT_UNPACKED: u64 = 32 << 20;

/// What is kept in a ConfigMap of its own.
pub trait Kept: Serialize + DeserializeOwned {
    /// The ConfigMap's name; the controller's role names it too.
    const NAME: &'static str;
    /// The key below `binaryData`. A change of the format takes another key, so that neither version misreads the other's.
    const KEY: &'static str;

    /// Reads what a ConfigMap keeps, if it is sound.
    fn from_map(map: &ConfigMap) -> Option<Self> {
        let ours = map.metadata.name.as_deref() == Some(Self::NAME);
        unpack(&map.binary_data.as_ref().filter(|_| ours)?.get(Self::KEY)?.0)
    }
}

impl Kept for Prices {
    const NAME: &'static str = "karp-prices";
    const KEY: &'static str = "prices.v2.json.gz";
}

impl Kept for SeenMemory {
    const NAME: &'static str = "karp-memory";
    const KEY: &'static str = "memory.v1.json.gz";
}

/// Where something is kept: the names of the ConfigMaps, each with its key.
pub const KEPT: [(&str, &str); 3] =
    [(Prices::NAME, Prices::KEY), (SeenMemory::NAME, SeenMemory::KEY), (Capacity::NAME, Capacity::KEY)];

/// Keeps something in the controller's namespace.
#[derive(Clone)]
pub struct Store<T> {
    maps: Api<ConfigMap>,
    of: PhantomData<fn() -> T>,
}

impl<T: Kept> Store<T> {
    /// Makes a store in `namespace`; nothing is asked yet.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { maps: Api::namespaced(client, namespace), of: PhantomData }
    }

    /// Reads what was kept, if anything was; what is damaged is reported and counts as nothing. A failure is reported, too.
    pub async fn read(&self) -> kube::Result<Option<T>> {
        let found = self.maps.get_opt(T::NAME).await.inspect_err(|error| {
            tracing::warn!(%error, name = T::NAME, "what was kept could not be read");
        })?;
        let Some(map) = found.filter(|map| map.binary_data.as_ref().is_some_and(|data| data.contains_key(T::KEY)))
        else {
            return Ok(None);
        };
        let kept = T::from_map(&map);
        if kept.is_none() {
            tracing::warn!(name = T::NAME, "what was kept is damaged and not used");
        }
        Ok(kept)
    }

    /// Keeps something and says whether that was done; a failure is reported, the controller goes on with what it knows.
    pub async fn write(&self, what: &T) -> bool {
        let packed = match pack(what) {
            Ok(packed) if packed.len() <= LIMIT_BYTES => packed,
            Ok(packed) => {
                tracing::warn!(bytes = packed.len(), name = T::NAME, "this is too much to be kept");
                return false;
            }
            Err(error) => {
                tracing::warn!(%error, name = T::NAME, "this could not be packed");
                return false;
            }
        };
        let map = ConfigMap {
            metadata: ObjectMeta { name: Some(T::NAME.to_owned()), ..ObjectMeta::default() },
            binary_data: Some([(T::KEY.to_owned(), ByteString(packed))].into()),
            ..ConfigMap::default()
        };
        let answer = self.maps.patch(T::NAME, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&map)).await;
        answer
            .inspect_err(|error| tracing::warn!(%error, name = T::NAME, "this could not be kept for the next start"))
            .is_ok()
    }
}

fn pack(what: &impl Serialize) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&serde_json::to_vec(what)?)?;
    encoder.finish()
}

fn unpack<T: DeserializeOwned>(packed: &[u8]) -> Option<T> {
    let mut text = Vec::new();
    GzDecoder::new(packed).take(LIMIT_UNPACKED).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// An API server for tests of what is kept.
#[cfg(test)]
pub mod fake {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// What the API server was given.
    #[derive(Default)]
    pub struct Given {
        map: Option<Value>,
        pub writes: usize,
        /// It does not answer.
        pub down: bool,
    }

    /// Makes one that has the ConfigMap of a kind in namespace `karp`, once it was written.
    pub fn server<T: Kept>() -> (Client, Arc<Mutex<Given>>) {
        let kept = Arc::<Mutex<Given>>::default();
        let state = kept.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let state = state.clone();
            async move {
                let path = format!("/namespaces/karp/configmaps/{}", T::NAME);
                assert!(request.uri().path().ends_with(&path), "{}", request.uri());
                let answer = |code: u16, body: Value| {
                    let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                    Ok::<_, Infallible>(response.expect("a response"))
                };
                let status = |code: u16, reason: &str| json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": ""});
                if state.lock().expect("a state").down {
                    return answer(403, status(403, "Forbidden"));
                }
                if request.method() == Method::PATCH {
                    let body = request.into_body().collect_bytes().await.expect("a body");
                    let mut state = state.lock().expect("a state");
                    state.map = Some(serde_json::from_slice(&body).expect("JSON"));
                    state.writes += 1;
                }
                match state.lock().expect("a state").map.clone() {
                    Some(map) => answer(200, map),
                    None => answer(404, status(404, "NotFound")),
                }
            }
        });
        (Client::new(service, "default"), kept)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use karp_domain::catalogue::{CapacityType, Price};
    use serde_json::json;

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
            read: [(CapacityType::Spot, Timestamp::UNIX_EPOCH)].into(),
        };
        let packed = pack(&prices).expect("packed");
        assert!(packed.len() < LIMIT_BYTES / 4, "{} bytes", packed.len());
        assert_eq!(unpack(&packed).as_ref(), Some(&prices));
        assert_eq!(unpack::<Prices>(&packed[..packed.len() / 2]), None, "cut off");
        assert_eq!(unpack::<Prices>(b"{}"), None);
        let earlier = json!({ "on_demand": prices.on_demand, "spot": prices.spot });
        let unsaid = Prices { read: BTreeMap::new(), ..prices };
        assert_eq!(unpack(&pack(&earlier).expect("packed")), Some(unsaid), "as versions wrote it that said no time");
    }
}

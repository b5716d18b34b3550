//! What EC2 is sent when a node is launched: types, zones, and by what it is to choose among them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodeOverlay, NodePool, conditions, labels};
use karp_domain::lifecycle::launch::ATTEMPT;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::WATCH;
use crate::support::aws::Aws;
use crate::support::refusal::{Refusal, annotated};
use crate::support::stand::{Stand, since};
use crate::support::{create, until};

/// By which pods find the nodes of a pool.
const OF: &str = "karp-test-of";
/// Types that a request names at most (Karpenter: 60), and how many parts EC2 takes.
const MOST_TYPES: usize = 60;
const MOST_PARTS: usize = 300;
/// What an overlay makes the cheapest type of all; EC2 knows dozens that cost less.
const OWN: &str = "m5.4xlarge";

/// A type in a zone that EC2 may launch.
#[derive(Debug, PartialEq)]
struct Part {
    kind: String,
    zone: String,
    subnet: String,
    priority: Option<f64>,
}

/// A CreateFleet request, as the emulator logged it.
struct Sent(BTreeMap<String, String>);

impl Sent {
    /// Returns the one that launched a pool's node.
    fn of(aws: &Aws, pool: &str) -> Self {
        let calls = aws.calls("CreateFleet");
        let mut ours = calls.into_iter().map(|mut call| call["params"].take());
        let one = ours.find(|params| params.to_string().contains(pool) && params["DryRun"].is_null());
        Self(serde_json::from_value(one.unwrap_or_else(|| panic!("no request for {pool}"))).expect("texts"))
    }

    fn says(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn parts(&self) -> Vec<Part> {
        let keys = self.0.keys().filter(|key| key.contains(".Overrides.") && key.ends_with(".InstanceType"));
        let part = |key: &String| {
            let place = key.trim_end_matches(".InstanceType");
            let of = |field: &str| self.says(&format!("{place}.{field}"));
            let text = |field: &str| of(field).unwrap_or_else(|| panic!("{place} has no {field}")).to_owned();
            Part {
                kind: text("InstanceType"),
                zone: text("AvailabilityZone"),
                subnet: text("SubnetId"),
                priority: of("Priority").map(|number| number.parse().expect("a number")),
            }
        };
        keys.map(part).collect()
    }
}

/// Makes a pool that may buy whatever fits, and a pod for it.
async fn wanted(stand: &Stand, pool: &str, capacity_type: &str) {
    let mut manifest = stand.pool_manifest(pool, &stand.name, &[capacity_type]);
    manifest["metadata"]["annotations"] = json!({ (labels::PRICE_TOLERANCE): "10000%" });
    manifest["spec"]["template"]["metadata"]["labels"][OF] = json!(pool);
    create::<NodePool>(&Api::all(stand.client.clone()), manifest).await;
    let mut spec = stand.pod_spec("500m");
    spec["nodeSelector"][OF] = json!(pool);
    let pods: Api<Pod> = Api::namespaced(stand.client.clone(), &stand.name);
    create::<Pod>(&pods, json!({ "metadata": { "name": pool }, "spec": spec })).await;
}

/// EC2 is told by what to choose, and among what.
pub async fn told(stand: Stand) {
    let named = |what: &str| format!("{}-{what}", stand.name);
    let pools = ["spot", "bought", "own-spot", "own-bought"].map(named);
    let overlay = json!({
        "metadata": { "name": stand.name },
        "spec": {
            "price": "0.005",
            "requirements": [
                { "key": labels::NODE_POOL, "operator": "In", "values": pools[2..] },
                { "key": labels::INSTANCE_TYPE, "operator": "In", "values": [OWN] },
            ],
        },
    });
    let overlays: Api<NodeOverlay> = Api::all(stand.client.clone());
    create::<NodeOverlay>(&overlays, overlay).await;
    until("the overlay is heeded", async || {
        let status = overlays.get(&stand.name).await.expect("the overlay").status.unwrap_or_default();
        conditions::is_true(&status.conditions, conditions::READY)
    })
    .await;
    for (pool, capacity_type) in pools.iter().zip(["spot", "on-demand", "spot", "on-demand"]) {
        wanted(&stand, pool, capacity_type).await;
    }
    stand.until_running(4).await;

    let [spot, bought, own_spot, own_bought] = pools.each_ref().map(|pool| Sent::of(&stand.aws, pool));
    let strategies = |sent: &Sent| {
        let of = |market: &str| sent.says(&format!("{market}Options.AllocationStrategy")).map(str::to_owned);
        [of("Spot"), of("OnDemand")]
    };
    let only = |spot: Option<&str>, bought: Option<&str>| [spot, bought].map(|name| name.map(str::to_owned));
    assert_eq!(strategies(&spot), only(Some("price-capacity-optimized"), None));
    assert_eq!(strategies(&bought), only(None, Some("lowest-price")));
    assert_eq!(strategies(&own_spot), only(Some("capacity-optimized-prioritized"), None));
    assert_eq!(strategies(&own_bought), only(None, Some("prioritized")));
    for (pool, sent) in pools.iter().zip([&spot, &bought, &own_spot, &own_bought]) {
        println!("{pool}: {} parts", sent.parts().len());
        assert_eq!(
            (sent.says("Type"), sent.says("TargetCapacitySpecification.TotalTargetCapacity")),
            (Some("instant"), Some("1"))
        );
        among_the_cheapest(&stand, sent);
    }
    for sent in [&spot, &bought] {
        assert!(sent.parts().iter().all(|part| part.priority.is_none()), "EC2 knows these prices itself");
    }
    for (pool, sent) in pools[2..].iter().zip([&own_spot, &own_bought]) {
        ranked(&sent.parts());
        let launched = stand.aws.instances(pool);
        assert_eq!((launched.len(), &launched[0]["instance_type"]), (1, &json!(OWN)), "{launched:?}");
    }

    overlays.delete(&stand.name, &DeleteParams::default()).await.expect("the overlay is deleted");
    let all: Api<NodePool> = Api::all(stand.client.clone());
    for pool in &pools {
        all.delete(pool, &DeleteParams::default()).await.expect("a pool is deleted");
    }
    until("the pools are gone", async || {
        let mut left = Vec::new();
        for pool in &pools {
            left.extend(all.get_opt(pool).await.expect("an answer"));
        }
        left.is_empty()
    })
    .await;
    // what every test has, for `leave`
    stand.pool(&["on-demand"]).await;
    stand.leave().await;
}

/// No more types than may be named, though more would fit, each in every zone that sells it, by the zone's subnet; no part twice.
fn among_the_cheapest(stand: &Stand, sent: &Sent) {
    let parts = sent.parts();
    let kinds: BTreeSet<&str> = parts.iter().map(|part| &*part.kind).collect();
    assert_eq!(kinds.len(), MOST_TYPES, "hundreds would fit: {kinds:?}");
    assert!(parts.len() <= MOST_PARTS);
    let places: BTreeSet<(&str, &str)> = parts.iter().map(|part| (&*part.kind, &*part.zone)).collect();
    assert_eq!(places.len(), parts.len(), "a type is named once for a zone");
    let subnets: BTreeMap<&str, &str> = parts.iter().map(|part| (&*part.zone, &*part.subnet)).collect();
    assert!(parts.iter().all(|part| subnets[&*part.zone] == part.subnet), "one subnet for a zone: {parts:?}");
    let known: BTreeSet<&str> =
        stand.aws.seed["subnet_ids"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert_eq!(subnets.values().copied().collect::<BTreeSet<_>>(), known, "all zones that the class has");
    let everywhere = kinds.iter().filter(|kind| parts.iter().filter(|part| part.kind == **kind).count() == known.len());
    assert!(everywhere.count() * 2 > kinds.len(), "most types are sold in every zone: {parts:?}");
}

/// The own price comes first, and equal prices are alike: EC2 then takes what it has of them.
fn ranked(parts: &[Part]) {
    let rank = |part: &Part| part.priority.unwrap_or_else(|| panic!("{part:?} has no rank"));
    let (own, others): (Vec<&Part>, Vec<&Part>) = parts.iter().partition(|part| part.kind == OWN);
    assert!(!own.is_empty() && own.iter().all(|part| rank(part) == 0.0), "{own:?}");
    assert!(others.iter().all(|part| rank(part) >= 1.0), "{others:?}");
    let ranks: BTreeSet<u64> = others.iter().map(|part| rank(part) as u64).collect();
    assert_eq!(ranks.first(), Some(&1), "{ranks:?}");
    assert!(ranks.len() > 10, "what costs more ranks lower: {ranks:?}");
}

/// A claim may wait for its launch while its class is changed: it is launched by the class as it is then, which its hash says, and its node is
/// not replaced for a change that it has.
pub async fn by_the_class_of_now(stand: Stand) {
    let refusal = Refusal::of(&stand.client, &stand.name, &annotated(ATTEMPT)).await;
    stand.pool(&["on-demand"]).await;
    stand.deployment(1, "500m").await;
    until("a claim waits for its launch", async || stand.mine::<NodeClaim>().await.len() == 1).await;
    let hash = |of: &BTreeMap<String, String>| of.get(labels::EC2_NODE_CLASS_HASH).cloned();
    let waiting = stand.mine::<NodeClaim>().await.remove(0);
    let classes: Api<Ec2NodeClass> = Api::all(stand.client.clone());
    let patch = Patch::Merge(json!({ "spec": { "tags": { "karp-test": "later" } } }));
    classes.patch(&stand.name, &PatchParams::default(), &patch).await.expect("the class is changed");
    let mut now = None;
    until("the class has another hash", async || {
        now = classes.get(&stand.name).await.ok().and_then(|class| hash(class.annotations()));
        now.is_some() && now != hash(waiting.annotations())
    })
    .await;
    // an attempt that began before may still have the class as it was; attempts follow one another
    let refused = || {
        let log = stand.log();
        let of_claim = |line: &&str| line.contains(Refusal::WORDS) && line.contains(&waiting.name_any());
        log.lines().filter(of_claim).count()
    };
    let before = refused();
    until("an attempt with the new class is refused", async || refused() > before + 1).await;
    refusal.lift().await;
    stand.until_running(1).await;
    let claim = stand.mine::<NodeClaim>().await.remove(0);
    assert_eq!((claim.uid(), hash(claim.annotations())), (waiting.uid(), now), "it says what it was launched by");
    let launched = stand.aws.instances(&stand.name);
    assert_eq!((launched.len(), &launched[0]["tags"]["karp-test"]), (1, &json!("later")), "{launched:?}");
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    until("its node is initialized", async || {
        claims.get(&claim.name_any()).await.is_ok_and(|claim| since(&claim, conditions::INITIALIZED).is_some())
    })
    .await;
    tokio::time::sleep(WATCH).await;
    let left = stand.mine::<NodeClaim>().await;
    assert!(left.len() == 1 && since(&left[0], conditions::DRIFTED).is_none(), "{left:?}");
    stand.leave().await;
}

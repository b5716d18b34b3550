//! Neither the price list nor the spot history can be asked: at the first start, when no price is known, and after a restart, when some are kept.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use karp_domain::api::NodeClaim;
use karp_domain::catalogue::{builtin_type, estimate_on_demand, estimate_spot};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::scene::scale;
use crate::support::stand::Stand;
use crate::support::{until, until_within};

/// A type that no other test uses.
const TYPE: &str = "m5dn.4xlarge";
/// What it costs on demand and as spot: first, and after the restart. Neither is what is estimated.
const PRICES: [f64; 2] = [4.321, 1.234];
const LATER: [f64; 2] = [8.642, 2.468];
/// By what prices are read.
const BOTH: [&str; 2] = ["GetProducts", "DescribeSpotPriceHistory"];
/// A renewal that failed is repeated after a minute; one that nobody answers ends after 150 s.
const RENEWED: Duration = Duration::from_secs(240);

#[tokio::test]
async fn prices_outlive_an_outage_and_are_estimated_until_some_are_known() {
    let Some(mut stand) = Stand::open("prices").await else { return };
    cost(&stand, PRICES);
    outage(&stand);
    stand.pool(&["on-demand"]).await;
    stand.start();
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let estimate = estimate_on_demand(builtin_type(TYPE).expect("a type"));
    let estimates = [estimate, estimate_spot(estimate, &zone(&stand))].map(|price| price.dollars());
    until("estimates stand for prices", async || shown(&stand) == Some(estimates)).await;
    for kind in ["on-demand", "spot"] {
        let told = format!("{kind} prices could not be read: they are estimated");
        assert!(stand.log().contains(&told), "{told:?} is not in the log");
    }
    let maps: Api<ConfigMap> = Api::namespaced(stand.client.clone(), &stand.name);
    let kept = async || maps.get_opt("karp-prices").await.expect("an answer");
    assert!(kept().await.is_none(), "estimates are not kept");
    let first: Vec<_> = stand.mine::<NodeClaim>().await.iter().map(ResourceExt::uid).collect();
    let templates = made_templates(&stand);
    assert!(!templates.is_empty(), "it was launched by a template");

    over(&stand);
    until_within(RENEWED, "prices are known", async || shown(&stand) == Some(PRICES)).await;
    until("they are kept", async || kept().await.is_some()).await;
    let written = kept().await.expect("the prices").resource_version();
    assert_eq!(stand.mine::<NodeClaim>().await.iter().map(ResourceExt::uid).collect::<Vec<_>>(), first);

    stand.terminate();
    cost(&stand, LATER);
    outage(&stand);
    stand.start();
    until("kept prices are taken", async || stand.log().contains("took kept prices")).await;
    until("the controller leads", async || stand.log().contains("\"metrics\"")).await;
    until("they stand for prices", async || shown(&stand) == Some(PRICES)).await;
    until_within(RENEWED, "the outage is told", async || {
        stand.log().contains("spot prices could not be read: the last good ones stand")
    })
    .await;
    scale(&stand, "inflate", 20).await;
    stand.until_running(20).await;
    assert!(stand.mine::<NodeClaim>().await.len() > first.len(), "a node was launched by kept prices");
    assert_eq!(made_templates(&stand), templates, "the next controller takes the templates that are there");
    assert_eq!(shown(&stand), Some(PRICES));
    assert_eq!(kept().await.expect("the prices").resource_version(), written, "nothing new is known");

    over(&stand);
    if std::env::var_os("KARP_DEEP").is_some() {
        until_within(RENEWED, "newer prices are known", async || shown(&stand) == Some(LATER)).await;
    }
    stand.aws.door("prices", &json!({}));
    stand.leave().await;
}

/// The zone whose prices are looked at.
fn zone(stand: &Stand) -> String {
    format!("{}a", stand.aws.region)
}

/// Sets what the type costs on demand and as spot.
fn cost(stand: &Stand, [on_demand, spot]: [f64; 2]) {
    stand.aws.door("prices", &json!({ (format!("on-demand/{TYPE}")): on_demand, (format!("spot/{TYPE}")): spot }));
}

/// Both say that they are out of order; under `KARP_DEEP` the price list gives no answer at all, which takes minutes to notice.
fn outage(stand: &Stand) {
    let broken = |action: &&str| json!({ "action": action, "code": "InternalError", "times": 100_000 });
    let broken = match std::env::var_os("KARP_DEEP") {
        Some(_) => {
            stand.aws.door("hold", &json!({ "action": BOTH[0] }));
            json!([broken(&BOTH[1])])
        }
        None => json!(BOTH.iter().map(broken).collect::<Vec<_>>()),
    };
    stand.aws.door("fail", &broken);
}

fn over(stand: &Stand) {
    stand.aws.door("release", &json!({ "action": BOTH[0] }));
    let mended = BOTH.map(|action| json!({ "action": action, "times": 0 }));
    stand.aws.door("fail", &json!(mended));
}

/// The names of the launch templates that the controller made, in whatever process.
fn made_templates(stand: &Stand) -> Vec<Value> {
    let calls = stand.aws.calls("CreateLaunchTemplate");
    let made = |call: &&Value| call["caller"] == stand.key() && call["params"]["DryRun"].is_null();
    calls.iter().filter(made).map(|call| call["params"]["LaunchTemplateName"].clone()).collect()
}

/// What the controller takes the type to cost on demand and as spot, once it knows.
fn shown(stand: &Stand) -> Option<[f64; 2]> {
    let (metrics, zone) = (stand.metrics(), zone(stand));
    let price = |capacity_type: &str| -> Option<f64> {
        let parts = [TYPE, capacity_type, &*zone].map(|value| format!("=\"{value}\""));
        let mut lines = metrics.lines().filter(|line| line.contains("offering_price_estimate{"));
        lines.find(|line| parts.iter().all(|part| line.contains(part)))?.rsplit(' ').next()?.parse().ok()
    };
    Some([price("on-demand")?, price("spot")?])
}

//! EC2 has no room: for one offering, for a family, for anything, in a subnet; or sells no spot at all.

use std::time::Duration;

use karp_domain::api::labels;
use serde_json::{Value, json};

use crate::scene::{Scene, Subnets, always};
use crate::support::stand::Stand;
use crate::support::until;

/// How soon something else is asked for after a refusal: it need not wait for more pods to come.
const ELSEWHERE: f64 = 1.0;
/// How long something that must not happen is watched for.
const WATCH: Duration = Duration::from_secs(10);
/// When nothing was asked for in so long, more is not expected.
const SETTLED: Duration = Duration::from_secs(3);
/// EC2 names the service-linked role of spot, which somebody must make, when it is not there.
const NO_ROLE: &str = "AuthFailure.ServiceLinkedRoleCreationNotPermitted";

/// What is short, for all scenes at once: each has types of its own.
pub fn rules(stand: &Stand, subnets: &Subnets) -> Value {
    let zone = |letter: char| format!("{}{letter}", stand.aws.region);
    json!([
        { "instance_type": "m5.large", "zone": zone('a') },
        { "instance_type": "m5.large", "zone": zone('b') },
        { "instance_type": "c5.*" },
        { "instance_type": "c5ad.*" },
        { "instance_type": "c6i.*" },
        { "instance_type": "m5a.*", "capacity_type": "spot", "code": NO_ROLE },
        { "subnet": subnets.roomy, "code": "InsufficientFreeAddressesInSubnet" },
    ])
}

pub async fn one_offering(stand: &Stand) {
    let scene = Scene::on_demand(stand, "one", &["m5.large"]).await;
    scene.pods(1).await;
    scene.until_running(1).await;
    assert_eq!(scene.only_instance().await["zone"], format!("{}c", stand.aws.region), "the only zone that has room");
}

pub async fn family(stand: &Stand) {
    let scene = Scene::new(stand, "family");
    scene.pool(&format!("{}-short", scene.name), &stand.name, &["on-demand"], &["c5.large", "c5.xlarge"], 10).await;
    scene.pool(&scene.name, &stand.name, &["on-demand"], &["m5n.large"], 1).await;
    scene.pods(1).await;
    scene.until_running(1).await;
    assert_eq!(scene.only_instance().await["instance_type"], "m5n.large");
    told(&scene);
}

pub async fn spot_role(stand: &Stand) {
    let scene = Scene::new(stand, "spotless");
    scene.pool(&scene.name, &stand.name, &["spot", "on-demand"], &["m5a.large"], 1).await;
    scene.pods(1).await;
    scene.until_running(1).await;
    assert_eq!(scene.only_instance().await["lifecycle"], "on-demand");
    until("it is told what is missing", async || {
        let told = scene.events("InsufficientCapacityError").await;
        told.iter().any(|event| event.message.as_ref().is_some_and(|message| message.contains(NO_ROLE)))
    })
    .await;
    told(&scene);
}

/// Nothing else goes on, so that the time is the controller's own: the next request goes out at once.
pub async fn elsewhere(stand: &Stand) {
    let mut waits = Vec::new();
    for (what, short, other) in [("first", "c5ad.large", "c5n.large"), ("second", "c5ad.xlarge", "m5n.large")] {
        let scene = Scene::new(stand, what);
        scene.pool(&format!("{}-short", scene.name), &stand.name, &["on-demand"], &[short], 10).await;
        scene.pool(&scene.name, &stand.name, &["on-demand"], &[other], 1).await;
        scene.pods(1).await;
        scene.until_running(1).await;
        assert_eq!(scene.only_instance().await["instance_type"], other);
        waits.push(told(&scene));
    }
    // other programs may have the processors for a while, hardly twice
    let quickest = waits.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(quickest <= ELSEWHERE, "the next request came {waits:.2?} s after the refusal");
}

/// Tells how many seconds after the refusal the next request arrived.
fn told(scene: &Scene<'_>) -> f64 {
    let asked = scene.asked();
    let [(refused, _), (answered, call)] = &asked[..] else {
        panic!("{}: one refusal, one launch: {asked:?}", scene.name)
    };
    let took = answered - call["milliseconds"].as_f64().expect("a number") / 1000.0 - refused;
    println!("figure: {}: the next request came {took:.2} s after the refusal", scene.name);
    took
}

pub async fn everything(stand: &Stand) {
    let scene = Scene::on_demand(stand, "all", &["c6i.large", "c6i.xlarge"]).await;
    scene.pods(2).await;
    until("the claim's failure is told", async || !scene.events("InsufficientCapacityError").await.is_empty()).await;
    until("the pods are told", async || {
        let told = scene.events("FailedScheduling").await;
        told.iter().any(|event| event.reporting_component.as_deref() == Some("karpenter"))
    })
    .await;
    // a request names the types that are large enough for it: the smaller one may be tried after the larger
    let mut asked = scene.asked().len();
    until("nothing more is asked for", async || {
        tokio::time::sleep(SETTLED).await;
        let before = std::mem::replace(&mut asked, scene.asked().len());
        before == asked && scene.claims().await.is_empty()
    })
    .await;
    always(WATCH, "nothing is tried that cannot be had", async || {
        scene.claims().await.is_empty() && scene.asked().len() == asked
    })
    .await;
    assert!(scene.instances().is_empty() && asked <= 4, "two pods cost {asked} requests");
}

pub async fn subnet(stand: &Stand, subnets: &Subnets) {
    let terms = json!([{ "id": subnets.roomy }, { "id": subnets.small }]);
    let scene = Scene::with_class(stand, "subnet", &["m5d.xlarge"], json!({ "subnetSelectorTerms": terms })).await;
    scene.pods(1).await;
    scene.until_running(1).await;
    let one = scene.only_instance().await;
    let answer =
        stand.aws.ec2(&format!("Action=DescribeInstances&InstanceId.1={}", one["id"].as_str().expect("an id")));
    assert!(answer.contains(&subnets.small), "the other subnet of the zone has room: {answer}");
    assert_eq!(
        scene.claims().await[0].metadata.labels.as_ref().and_then(|all| all.get(labels::ZONE)).map(String::as_str),
        one["zone"].as_str()
    );
}

//! Capacity that is reserved: used first, given back when it ends.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use karp_domain::api::{Ec2NodeClass, NodeClaim, conditions, labels};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::WATCH;
use crate::support::stand::{Stand, node_of, since};
use crate::support::until;

/// Returns a label of an object.
pub fn labelled<'l, K: ResourceExt>(object: &'l K, key: &str) -> Option<&'l str> {
    object.labels().get(key).map(String::as_str)
}

/// Lets the class select reservations by their tags, and makes a pool that uses them and else buys on demand; returns where classes are.
pub async fn select(stand: &Stand, tags: &Value) -> Api<Ec2NodeClass> {
    let classes: Api<Ec2NodeClass> = Api::all(stand.client.clone());
    let terms = json!({ "spec": { "capacityReservationSelectorTerms": [{ "tags": tags }] } });
    classes.patch(&stand.name, &PatchParams::default(), &Patch::Merge(&terms)).await.expect("patched");
    stand.pool(&["reserved", "on-demand"]).await;
    classes
}

/// Reserved instances are used first, and stay when their reservation ends.
pub async fn used_first(stand: Stand) {
    let tags = json!({ "karp-test": stand.name });
    let reservation =
        json!({ "id": "cr-1", "instance_type": "m5.large", "zone": "us-east-1a", "count": 1, "tags": tags });
    stand.aws.reserve(&stand.name, vec![reservation]);
    let classes = select(&stand, &tags).await;
    stand.deployment(2, "1500m").await;
    stand.until_running(2).await;
    let claims = stand.mine::<NodeClaim>().await;
    let mut bought: Vec<_> = claims.iter().map(|one| labelled(one, labels::CAPACITY_TYPE)).collect();
    bought.sort_unstable();
    assert_eq!(bought, [Some("on-demand"), Some("reserved")], "one instance is reserved, and two are needed");
    let held = claims.iter().find(|one| labelled(*one, labels::CAPACITY_TYPE) == Some("reserved")).expect("one");
    let node = held.status.as_ref().and_then(|status| status.node_name.clone()).expect("its node");
    for labels in [held.labels(), Api::<Node>::all(stand.client.clone()).get(&node).await.expect("it").labels()] {
        let of = |key: &str| labels.get(key).map(String::as_str);
        assert_eq!(of(labels::CAPACITY_RESERVATION_ID), Some("cr-1"));
        assert_eq!(of(labels::CAPACITY_RESERVATION_TYPE), Some("default"));
        assert_eq!(of(labels::CAPACITY_RESERVATION_INTERRUPTIBLE), Some("false"));
        assert_eq!((of(labels::INSTANCE_TYPE), of(labels::ZONE)), (Some("m5.large"), Some("us-east-1a")));
    }
    let status = classes.get(&stand.name).await.expect("the class").status.expect("a status");
    assert_eq!(status.capacity_reservations.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["cr-1"]);
    assert!(conditions::is_true(&status.conditions, conditions::CAPACITY_RESERVATIONS_READY));

    let placed = async || -> BTreeMap<String, String> {
        let pods = stand.running().await;
        pods.iter().map(|pod| (pod.uid().unwrap_or_default(), node_of(pod))).collect()
    };
    let before = placed().await;
    stand.aws.reserve(&stand.name, Vec::new());
    let all: Api<NodeClaim> = Api::all(stand.client.clone());
    let name = held.name_any();
    until("it is known to be on demand", async || {
        let claim = all.get(&name).await.expect("the claim");
        let node = Api::<Node>::all(stand.client.clone()).get(&node).await.expect("the node");
        [claim.labels(), node.labels()].into_iter().all(|labels| {
            let of = |key: &str| labels.get(key).map(String::as_str);
            of(labels::CAPACITY_TYPE) == Some("on-demand") && of(labels::CAPACITY_RESERVATION_ID).is_none()
        })
    })
    .await;
    tokio::time::sleep(WATCH).await;
    assert_eq!(placed().await, before, "nothing had to move");
    let claim = all.get(&name).await.expect("the claim");
    assert!(since(&claim, conditions::DRIFTED).is_none(), "it ended, nobody took it away from the class");
    assert_eq!(stand.aws.instances(&stand.name).len(), 2);
    stand.leave().await;
}

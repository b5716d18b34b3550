//! `karp orphans` on a real control plane and the emulated AWS: what is left over of each kind is told, what the cluster accounts for is not,
//! and what cannot be known is an error, never an empty answer.
//!
//! Runs when `KARP_TEST_KUBECONFIG`, `KARP_TEST_AWS_ENDPOINT` and `KARP_TEST_CLUSTER` name a sandbox; `cargo verify` starts one.

mod support;

use std::collections::BTreeSet;

use karp_domain::api::{Ec2NodeClass, NodeClaim, labels};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use support::aws::Thing;
use support::stand::{Stand, instance_of};

/// The orphans that the tool tells of, in JSON.
fn orphans(stand: &Stand, more: &[&str]) -> Vec<Value> {
    let cluster = stand.aws.cluster.as_str();
    let output = stand.tool(&[&["orphans", "--cluster-name", cluster, "-o", "json"], more].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {told}"));
    let all = report["orphans"].as_array().expect("a list").clone();
    assert_eq!(output.status.code(), Some(if all.is_empty() { 0 } else { 2 }), "{told}");
    assert_eq!((&report["clusterName"], &report["region"]), (&json!(cluster), &json!(stand.aws.region)));
    all
}

fn ids(orphans: &[Value]) -> BTreeSet<&str> {
    orphans.iter().map(|one| one["id"].as_str().expect("an id")).collect()
}

/// Asserts that nothing is answered, and that the reason is told.
fn refused(stand: &Stand, arguments: &[&str], why: &str) {
    let output = stand.tool(&[&["orphans"], arguments].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{arguments:?}: {told}");
    assert!(told.contains(why), "{told}");
}

#[tokio::test]
async fn what_is_left_over_is_told_and_what_is_accounted_for_is_not() {
    let Some(mut stand) = Stand::open("orphans").await else { return };
    stand.pool(&["on-demand"]).await;
    stand.start();
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let claim = stand.mine::<NodeClaim>().await.remove(0);
    // a controller that runs collects instances itself
    stand.terminate();
    let class = Api::<Ec2NodeClass>::all(stand.client.clone()).get(&stand.name).await.expect("the class");
    let image = class.status.as_ref().and_then(|status| status.amis.first()).expect("an image").id.clone();
    let (aws, name, cluster) = (&stand.aws, stand.name.as_str(), stand.aws.cluster.as_str());

    let owned = format!("kubernetes.io/cluster/{cluster}");
    let of = |class: &'static str| [(owned.as_str(), "owned"), (labels::EC2_NODE_CLASS, class)];
    let lost = [&of("gone")[..], &[("karpenter.sh/nodeclaim", "gone-x7f2k")]].concat();
    let plugged =
        |instance| [("cluster.k8s.amazonaws.com/name", cluster), ("node.k8s.amazonaws.com/instance_id", instance)];
    let template = format!("karpenter.k8s.aws/{name}");
    let planted = [
        ("instance", aws.plant(&Thing::Instance { image: &image }, &lost), "gone-x7f2k"),
        ("network-interface", aws.plant(&Thing::NetworkInterface, &of("gone")), "nothing uses it"),
        ("network-interface", aws.plant(&Thing::NetworkInterface, &plugged("i-0gone")), "i-0gone"),
        ("volume", aws.plant(&Thing::Volume, &lost), "nothing uses it"),
        ("launch-template", aws.plant(&Thing::LaunchTemplate { name: &template, image: &image }, &of("gone")), "gone"),
        ("instance-profile", aws.plant_profile(cluster, &format!("{name}-gone"), "uid-gone").await, "uid-gone"),
    ];
    let instance = instance_of(&claim);
    let (claimed, uid) = (claim.name_any(), class.uid().expect("a uid"));
    let living = [
        &[(owned.as_str(), "owned"), (labels::EC2_NODE_CLASS, name)][..],
        &[("karpenter.sh/nodeclaim", claimed.as_str())],
    ]
    .concat();
    let accounted = [
        aws.plant(&Thing::NetworkInterface, &plugged(instance.as_str())),
        aws.plant(&Thing::Volume, &living),
        aws.plant_profile(cluster, &format!("{name}-own"), &uid).await,
    ];

    let all = orphans(&stand, &["--older-than", "0s"]);
    for (kind, id, why) in &planted {
        let one = all.iter().find(|one| one["id"] == *id).unwrap_or_else(|| panic!("{kind} {id}: {all:?}"));
        let text = |key: &str| one[key].as_str().unwrap_or_default();
        assert!(text("kind") == *kind && text("reason").contains(why), "{one}");
        assert!(text("command").starts_with("aws ") && text("command").contains(id.as_str()), "{one}");
        assert_eq!(one["ageSeconds"].is_null(), *kind == "network-interface", "{one}");
    }
    let told = ids(&all);
    assert!(!told.contains(instance.as_str()) && accounted.iter().all(|id| !told.contains(id.as_str())), "{told:?}");
    let of_class = |one: &Value| one["why"]["nodeClass"] == name;
    assert!(!all.iter().any(of_class), "the launch templates of a class that lives: {all:?}");

    // what is young may be on its way, and is only counted
    let aged = orphans(&stand, &[]);
    assert!(!ids(&aged).contains(planted[0].1.as_str()), "{aged:?}");
    let table = stand.tool(&["orphans", "--cluster-name", cluster]);
    let (text, note) = (String::from_utf8_lossy(&table.stdout), String::from_utf8_lossy(&table.stderr));
    assert!(text.contains("aws ec2 delete-network-interface") && note.contains("younger than 10m"), "{text}{note}");

    let nobody = format!("nobody-{name}");
    refused(&stand, &[], "say --cluster-name");
    refused(&stand, &["--cluster-name", &nobody], "there is no EKS cluster");
    refused(&stand, &["--cluster-name", cluster, "--cluster-gone"], "leave --cluster-gone out");
    let gone = stand.tool(&["orphans", "--cluster-name", &nobody, "--cluster-gone"]);
    assert_eq!(gone.status.code(), Some(0), "{}", String::from_utf8_lossy(&gone.stderr));
    for action in ["DescribeVolumes", "DescribeNetworkInterfaces"] {
        aws.door("fail", &json!([{ "action": action, "code": "UnauthorizedOperation", "status": 403 }]));
        refused(&stand, &["--cluster-name", cluster], &format!("ec2:{action}"));
    }

    for id in planted.iter().map(|(_, id, _)| id).chain(&accounted) {
        aws.uproot(id).await;
    }
    let left = orphans(&stand, &["--older-than", "0s"]);
    assert!(planted.iter().all(|(_, id, _)| !ids(&left).contains(id.as_str())), "{left:?}");
    stand.start();
    stand.leave().await;
}

//! What is done behind the controller's back, on a real control plane and the emulated AWS: nodes, instances and claims that somebody
//! deletes, ends or restores, and a replacement that never joins.
//!
//! Runs when `KARP_TEST_KUBECONFIG`, `KARP_TEST_AWS_ENDPOINT` and `KARP_TEST_CLUSTER` name a sandbox; `cargo verify` starts one.

#[path = "mishaps/alone.rs"]
mod alone;
mod support;

use std::time::{Duration, Instant};

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use karp_domain::api::{Ec2NodeClass, NodeClaim, conditions, labels};
use karp_domain::lifecycle::REGISTRATION_TIMEOUT;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use support::aws::is_ending;
use support::play::{Named, play};
use support::stand::{Stand, instance_of, node_of, since};
use support::{create, until, until_within};

/// How long something that must not happen is watched for: a pass of the collector and half of the next.
const WATCH: Duration = Duration::from_secs(15);
/// How long it may take until a node is replaced and gone. Kubernetes waits for a minute until it deletes the pods of one that is gone.
const ORPHANED: Duration = Duration::from_secs(180);
/// How long it may take until an instance that does not join is given up, and its claim gone.
const GIVEN_UP: Duration = Duration::from_secs(17 * 60);
/// Claims that a backup brings back: more than may be collected at once.
const RESTORED: usize = 7;

/// Makes a stand with one pod that runs on one node; returns both.
async fn one_pod(purpose: &str) -> Option<(Stand, Pod)> {
    let mut stand = Stand::open(purpose).await?;
    stand.pool(&["on-demand"]).await;
    stand.start();
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let pod = stand.running().await.remove(0);
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    let name = stand.mine::<NodeClaim>().await.remove(0).name_any();
    until("its node is initialized", async || {
        claims.get(&name).await.is_ok_and(|claim| since(&claim, conditions::INITIALIZED).is_some())
    })
    .await;
    Some((stand, pod))
}

/// Waits until the pod's work is done by another one on another node, and all that belonged to the old node is gone.
async fn until_replaced(stand: &Stand, old: &Pod) {
    let (node, begin) = (node_of(old), Instant::now());
    until_within(ORPHANED, "another pod runs on another node", async || {
        let pods = stand.running().await;
        pods.len() == 1 && pods.iter().all(|pod| pod.uid() != old.uid() && node_of(pod) != node)
    })
    .await;
    until_within(ORPHANED.saturating_sub(begin.elapsed()), "the old node is gone", async || {
        let left = Api::<Node>::all(stand.client.clone()).get_opt(&node).await;
        left.is_ok_and(|node| node.is_none()) && stand.mine::<NodeClaim>().await.len() == 1
    })
    .await;
    one_lives(stand).await;
}

/// Asserts that one instance of the pool lives, and that its one claim stands for it.
async fn one_lives(stand: &Stand) {
    let mut instances = stand.aws.instances(&stand.name);
    instances.retain(|one| !is_ending(one));
    let ids: Vec<Option<&str>> = instances.iter().map(|one| one["id"].as_str()).collect();
    let claimed: Vec<String> = stand.mine::<NodeClaim>().await.iter().map(instance_of).collect();
    assert!(ids.len() == 1 && claimed.iter().map(|id| Some(id.as_str())).eq(ids), "{claimed:?} of {instances:?}");
}

#[tokio::test]
async fn a_node_that_is_deleted_by_hand_is_drained_and_leaves_no_instance() {
    let Some((stand, pod)) = one_pod("by-hand").await else { return };
    let nodes: Api<Node> = Api::all(stand.client.clone());
    nodes.delete(&node_of(&pod), &DeleteParams::default()).await.expect("it is deleted");
    until_replaced(&stand, &pod).await;
    stand.leave().await;
}

#[tokio::test]
async fn an_instance_that_is_ended_elsewhere_is_replaced() {
    let Some((stand, pod)) = one_pod("ended").await else { return };
    let claim = stand.mine::<NodeClaim>().await.remove(0);
    stand.aws.end_instance(&instance_of(&claim));
    until_replaced(&stand, &pod).await;
    stand.leave().await;
}

/// The class is given a profile whose instances may not join: nobody loses a pod by it, and all is as before when it is taken back. Under
/// `KARP_DEEP` the replacement ends by its time limit, otherwise by hand.
#[tokio::test]
async fn a_replacement_that_never_joins_harms_nobody() {
    let Some((stand, pod)) = one_pod("stillborn").await else { return };
    let old = stand.mine::<NodeClaim>().await.remove(0);
    let stranger = stand.aws.stranger().await;
    let classes: Api<Ec2NodeClass> = Api::all(stand.client.clone());
    let with = async |profile: &str| {
        let patch = Patch::Merge(json!({ "spec": { "instanceProfile": profile } }));
        classes.patch(&stand.name, &PatchParams::default(), &patch).await.expect("the class is changed");
    };
    with(&stranger).await;
    let replacement = async || {
        let claims = stand.mine::<NodeClaim>().await;
        claims.into_iter().find(|claim| claim.uid() != old.uid() && !instance_of(claim).is_empty())
    };
    until("a replacement is launched", async || replacement().await.is_some()).await;
    tokio::time::sleep(WATCH).await;
    let stillborn = replacement().await.expect("it is waited for");
    assert!(since(&stillborn, conditions::REGISTERED).is_none(), "it may not join");
    let same = async || stand.running().await.iter().map(ResourceExt::uid).eq([pod.uid()]);
    assert!(same().await, "the pod stays where it is as long as nothing replaces its node");

    with(&stand.name).await;
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    if std::env::var_os("KARP_DEEP").is_some() {
        until_within(GIVEN_UP, "it has had its time to join", async || {
            claims.get_opt(&stillborn.name_any()).await.is_ok_and(|left| left.is_none())
        })
        .await;
        let launched = since(&stillborn, conditions::LAUNCHED).expect("it was launched");
        let lived = launched.duration_until(Timestamp::now());
        assert!(lived >= REGISTRATION_TIMEOUT, "it was given up after {lived:#}");
    } else {
        claims.delete(&stillborn.name_any(), &DeleteParams::default()).await.expect("it is deleted");
    }
    until("the old node takes pods again", async || {
        let node = Api::<Node>::all(stand.client.clone()).get(&node_of(&pod)).await.expect("the node");
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints.iter().all(|taint| taint.key != labels::DISRUPTED) && stand.mine::<NodeClaim>().await.len() == 1
    })
    .await;
    assert!(same().await, "the pod was not moved");
    one_lives(&stand).await;
    stand.leave().await;
}

/// Claims of instances that are long gone come back with a backup: so many are not believed until somebody has looked.
#[tokio::test]
async fn claims_from_an_old_backup_are_not_collected_at_once() {
    let Some((mut stand, pod)) = one_pod("backup").await else { return };
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    let real = stand.mine::<NodeClaim>().await.remove(0);
    stand.terminate();
    for at in 0..RESTORED {
        let name = format!("{}-restored{at}", stand.name);
        let mut object = serde_json::to_value(&real).expect("JSON");
        let kept = ["labels", "annotations", "finalizers", "ownerReferences"];
        let mut metadata: Value =
            kept.iter().map(|key| ((*key).to_owned(), object["metadata"][*key].clone())).collect();
        metadata["name"] = json!(name);
        object["metadata"] = metadata;
        let mut status = object["status"].take();
        status["providerID"] = json!(format!("aws:///us-east-1a/i-0123456789abcde{at:02}"));
        status["nodeName"] = json!(format!("gone-{at}"));
        create::<NodeClaim>(&claims, object).await;
        let patch = Patch::Merge(json!({ "status": status }));
        claims.patch_status(&name, &PatchParams::default(), &patch).await.expect("its status is restored");
    }
    stand.start();
    until("it says what it does not do", async || {
        !stand.events("GarbageCollectionBlocked", &stand.name).await.is_empty()
    })
    .await;
    tokio::time::sleep(WATCH).await;
    let left = stand.mine::<NodeClaim>().await;
    assert_eq!(left.len(), RESTORED + 1, "so many at once are not collected");
    assert!(left.iter().all(|claim| claim.metadata.deletion_timestamp.is_none()), "{left:?}");

    for at in 0..2 {
        let name = format!("{}-restored{at}", stand.name);
        claims.delete(&name, &DeleteParams::default()).await.expect("somebody has looked, and deletes two");
    }
    until("the others are few enough", async || stand.mine::<NodeClaim>().await.len() == 1).await;
    assert!(stand.running().await.iter().map(ResourceExt::uid).eq([pod.uid()]), "what runs was left alone");
    one_lives(&stand).await;
    stand.leave().await;
}

/// One controller serves them all.
#[tokio::test]
async fn volumes_and_pods_hold_nodes_and_claims_need_no_pool() {
    let Some(mut stand) = Stand::open("alone").await else { return };
    stand.pool(&["on-demand"]).await;
    stand.start();
    let scenes: Vec<Named<'_>> = vec![
        ("a volume holds a node", Box::pin(stand.guest("volume").then(alone::held_by_a_volume))),
        ("a pod is not let go", Box::pin(stand.guest("kept").then(alone::refused))),
        ("a pod is not let go to the end", Box::pin(stand.guest("end").then(alone::refused_to_the_end))),
        ("a claim is made by hand", Box::pin(stand.guest("own").then(alone::made_by_hand))),
    ];
    play(scenes).await;
    stand.leave().await;
}

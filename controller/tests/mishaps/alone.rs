//! Claims that no pool made, and nodes that volumes hold, or pods that the cluster does not let go.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use karp_domain::api::{Ec2NodeClass, NodeClaim, conditions, labels};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::aws::is_ending;
use crate::support::refusal::Refusal;
use crate::support::stand::{Stand, instance_of, node_of, since};
use crate::support::{create, until, until_within};

/// How long something that must not happen is watched for: less than the half of a minute for which volumes are waited for at least.
const WATCH: Duration = Duration::from_secs(10);

/// How long a taint may stay that nothing stands behind.
const TAKEN_BACK: Duration = Duration::from_secs(60);

/// `terminationGracePeriod` of a pool.
const DEADLINE: Duration = Duration::from_secs(30);

/// A node whose pods have gone stays until its volumes are detached, except those that several nodes can have at once.
pub async fn held_by_a_volume(stand: Stand) {
    stand.pool(&["on-demand"]).await;
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let (old, pod) = (stand.mine::<NodeClaim>().await.remove(0), stand.running().await.remove(0));
    let (claims, nodes) = (Api::<NodeClaim>::all(stand.client.clone()), Api::<Node>::all(stand.client.clone()));
    let attachments: Api<VolumeAttachment> = Api::all(stand.client.clone());
    let shared = format!("{}-shared", stand.name);
    let files = json!({ "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"],
        "csi": { "driver": "test.karp.sh", "volumeHandle": shared } });
    let volumes: Api<PersistentVolume> = Api::all(stand.client.clone());
    create::<PersistentVolume>(&volumes, json!({ "metadata": { "name": shared }, "spec": files })).await;
    for (name, volume) in [(&stand.name, "data"), (&shared, &*shared)] {
        let source = json!({ "persistentVolumeName": volume });
        let spec = json!({ "attacher": "test.karp.sh", "nodeName": node_of(&pod), "source": source });
        create::<VolumeAttachment>(&attachments, json!({ "metadata": { "name": name }, "spec": spec })).await;
    }
    claims.delete(&old.name_any(), &DeleteParams::default()).await.expect("it is asked to end");
    until("its pod runs elsewhere", async || {
        stand.running().await.iter().any(|one| one.uid() != pod.uid() && node_of(one) != node_of(&pod))
    })
    .await;
    tokio::time::sleep(WATCH).await;
    let instance = || stand.aws.look(&format!("instance?id={}", instance_of(&old)));
    assert_eq!(instance()["state"], "running", "a volume is attached to it");
    assert!(nodes.get_opt(&node_of(&pod)).await.expect("an answer").is_some(), "its node is there");
    attachments.delete(&stand.name, &DeleteParams::default()).await.expect("it is detached");
    until("the claim is gone", async || claims.get_opt(&old.name_any()).await.is_ok_and(|left| left.is_none())).await;
    assert!(is_ending(&instance()), "{}", instance());
    // the node did not wait for it
    attachments.delete(&shared, &DeleteParams::default()).await.expect("it was attached to the end");
    volumes.delete(&shared, &DeleteParams::default()).await.expect("the volume is deleted");
    stand.leave().await;
}

/// Makes a pod `held` beside another, with so many seconds of grace, which the cluster lets go in no way until the refusal is lifted.
async fn hold(stand: &Stand, beside: &Pod, grace_seconds: u64) -> (Api<Pod>, Refusal) {
    let pods: Api<Pod> = Api::namespaced(stand.client.clone(), &stand.name);
    let mut spec = stand.pod_spec("100m");
    spec["nodeName"] = json!(node_of(beside));
    spec["terminationGracePeriodSeconds"] = json!(grace_seconds);
    create::<Pod>(&pods, json!({ "metadata": { "name": "held" }, "spec": spec })).await;
    stand.until_running(2).await;
    (pods, Refusal::of_going(&stand.client, &stand.name, "held").await)
}

/// Waits until a node's event says that this pod holds it, and what the cluster has against its going.
async fn until_told(stand: &Stand, node: &str) {
    until("the node says what holds it", async || {
        let told = stand.events("FailedDraining", node).await;
        let says = |note: &String| note.contains("/held (") && note.contains(Refusal::WORDS);
        told.iter().any(|event| event.message.as_ref().is_some_and(says))
    })
    .await;
}

/// A pod whose eviction the cluster refuses holds its node, and says so; the node's other pods leave all the same.
pub async fn refused(stand: Stand) {
    stand.pool(&["on-demand"]).await;
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let (old, pod) = (stand.mine::<NodeClaim>().await.remove(0), stand.running().await.remove(0));
    let (pods, refusal) = hold(&stand, &pod, 1).await;
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    claims.delete(&old.name_any(), &DeleteParams::default()).await.expect("it is asked to end");
    until("the other pod runs elsewhere", async || {
        stand.running().await.iter().any(|one| one.name_any() != "held" && one.uid() != pod.uid())
    })
    .await;
    until_told(&stand, &node_of(&pod)).await;
    assert!(pods.get("held").await.expect("it is there").metadata.deletion_timestamp.is_none());
    // also while it is not asked for again
    tokio::time::sleep(WATCH).await;
    let told = stand.events("FailedDraining", &node_of(&pod)).await;
    let untold = |note: &String| note.contains("/held (") && !note.contains(Refusal::WORDS);
    assert!(!told.iter().any(|event| event.message.as_ref().is_some_and(untold)), "{told:?}");
    let counted = stand.metrics();
    assert!(counted.contains(r#"karpenter_pods_eviction_requests_total{code="422"}"#), "{counted}");
    let instance = || stand.aws.look(&format!("instance?id={}", instance_of(&old)));
    assert_eq!(instance()["state"], "running", "a pod is on it");
    refusal.lift().await;
    until("the claim is gone", async || claims.get_opt(&old.name_any()).await.is_ok_and(|left| left.is_none())).await;
    assert!(is_ending(&instance()), "{}", instance());
    stand.leave().await;
}

/// A pod that the cluster lets go neither by eviction nor at the deadline does not keep its node past that; the node says what held it.
pub async fn refused_to_the_end(stand: Stand) {
    stand.bounded_pool(DEADLINE).await;
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let (old, pod) = (stand.mine::<NodeClaim>().await.remove(0), stand.running().await.remove(0));
    let (pods, refusal) = hold(&stand, &pod, DEADLINE.as_secs() / 2).await;
    let (claims, since) = (Api::<NodeClaim>::all(stand.client.clone()), Instant::now());
    claims.delete(&old.name_any(), &DeleteParams::default()).await.expect("it is asked to end");
    until("its forced deletion was refused", async || {
        let refused = |line: &str| line.contains("pod cannot be deleted") && line.contains(&stand.name);
        stand.log().lines().any(|line| refused(line) && line.contains(Refusal::WORDS))
    })
    .await;
    let instance = || stand.aws.look(&format!("instance?id={}", instance_of(&old)));
    assert!(since.elapsed() < DEADLINE && instance()["state"] == "running", "{:?}: {}", since.elapsed(), instance());
    until_told(&stand, &node_of(&pod)).await;
    until("the claim is gone", async || claims.get_opt(&old.name_any()).await.is_ok_and(|left| left.is_none())).await;
    // the API server writes down the whole second in which the claim was asked to end
    assert!(since.elapsed() + Duration::from_secs(1) >= DEADLINE, "it went after {:?}", since.elapsed());
    assert!(is_ending(&instance()), "{}", instance());
    let held = pods.get("held").await.expect("it is there");
    assert!(held.metadata.deletion_timestamp.is_none(), "{held:?}");
    refusal.lift().await;
    // its node is gone: Kubernetes ends it, too
    until("it is let go", async || {
        let asked = pods.delete("held", &DeleteParams::default().grace_period(0)).await;
        asked.is_err_and(|error| matches!(error, kube::Error::Api(status) if status.code == 404))
    })
    .await;
    stand.until_running(1).await;
    stand.leave().await;
}

/// A claim that somebody made by hand gets its node, and leaves with it.
pub async fn made_by_hand(stand: Stand) {
    let (claims, nodes) = (Api::<NodeClaim>::all(stand.client.clone()), Api::<Node>::all(stand.client.clone()));
    let classes: Api<Ec2NodeClass> = Api::all(stand.client.clone());
    until("the class is ready", async || {
        let status = classes.get(&stand.name).await.expect("the class").status.unwrap_or_default();
        conditions::is_true(&status.conditions, conditions::READY)
    })
    .await;
    let name = format!("{}-own", stand.name);
    let spec = json!({
        "nodeClassRef": { "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": stand.name },
        "requirements": [
            { "key": labels::INSTANCE_TYPE, "operator": "In", "values": ["m5.large"] },
            { "key": labels::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"] },
        ],
        "resources": { "requests": { "cpu": "1" } },
    });
    create::<NodeClaim>(&claims, json!({ "metadata": { "name": name }, "spec": spec })).await;
    until("its node is initialized", async || {
        claims.get(&name).await.is_ok_and(|claim| since(&claim, conditions::INITIALIZED).is_some())
    })
    .await;
    let claim = claims.get(&name).await.expect("the claim");
    let node = claim.status.as_ref().and_then(|status| status.node_name.clone()).expect("its node's name");
    let labelled = nodes.get(&node).await.expect("the node");
    assert_eq!(labelled.labels().get(labels::INSTANCE_TYPE).map(String::as_str), Some("m5.large"));
    assert!(!labelled.labels().contains_key(labels::NODE_POOL), "{:?}", labelled.labels());
    // a process that was killed left the taint: nothing stands behind it
    let tainted = json!([{ "key": labels::DISRUPTED, "effect": "NoSchedule" }]);
    let disrupt = Patch::Merge(json!({ "spec": { "taints": tainted } }));
    nodes.patch(&node, &PatchParams::default(), &disrupt).await.expect("it is tainted");
    let theirs = foreign(&stand, &tainted).await;
    until_within(TAKEN_BACK, "the taint is taken back", async || {
        !is_disrupted(&nodes.get(&node).await.expect("the node"))
    })
    .await;
    tokio::time::sleep(WATCH).await;
    let left = claims.get(&name).await.expect("nobody ends it");
    assert!(left.metadata.deletion_timestamp.is_none(), "{left:?}");
    // another provider's node has the same taints and finalizer, and is none of karp's concern, also when it goes
    assert!(is_disrupted(&nodes.get(&theirs).await.expect("the node")), "it was touched");
    nodes.delete(&theirs, &DeleteParams::default()).await.expect("it is asked to go");
    tokio::time::sleep(WATCH).await;
    let (going, claim_left) =
        (nodes.get(&theirs).await.expect("the node"), claims.get(&theirs).await.expect("the claim"));
    assert!(!going.finalizers().is_empty() && claim_left.metadata.deletion_timestamp.is_none(), "{claim_left:?}");
    assert!(claim_left.finalizers().is_empty(), "{claim_left:?}");
    nodes
        .patch(&theirs, &PatchParams::default(), &Patch::Merge(json!({ "metadata": { "finalizers": null } })))
        .await
        .expect("its provider lets it go");
    claims.delete(&theirs, &DeleteParams::default()).await.expect("the claim is deleted");
    claims.delete(&name, &DeleteParams::default()).await.expect("it is asked to end");
    until("the claim is gone", async || claims.get_opt(&name).await.is_ok_and(|left| left.is_none())).await;
    assert!(nodes.get_opt(&node).await.expect("an answer").is_none(), "its node outlived it");
    let instance = stand.aws.look(&format!("instance?id={}", instance_of(&claim)));
    assert!(is_ending(&instance), "{instance}");
    // the pool that `leave` takes away
    stand.pool(&["spot"]).await;
    stand.leave().await;
}

fn is_disrupted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == labels::DISRUPTED)
}

/// Makes a node and its claim as EKS Auto Mode has them; returns the name of both.
async fn foreign(stand: &Stand, taints: &Value) -> String {
    let (name, id) = (format!("{}-theirs", stand.name), format!("aws:///us-east-1a/i-0{:016x}", std::process::id()));
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    let class = json!({ "group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default" });
    let spec = json!({ "nodeClassRef": class, "requirements": [] });
    create::<NodeClaim>(&claims, json!({ "metadata": { "name": name }, "spec": spec })).await;
    let status = Patch::Merge(json!({ "status": { "providerID": id, "nodeName": name } }));
    claims.patch_status(&name, &PatchParams::default(), &status).await.expect("its status is written");
    let node = json!({
        "metadata": { "name": name, "finalizers": [labels::TERMINATION_FINALIZER] },
        "spec": { "providerID": id, "taints": taints },
    });
    create::<Node>(&Api::all(stand.client.clone()), node).await;
    name
}

//! Claims that no pool made, and nodes that volumes hold.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use karp_domain::api::{Ec2NodeClass, NodeClaim, conditions, labels};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::aws::is_ending;
use crate::support::stand::{Stand, instance_of, node_of, since};
use crate::support::{create, until};

/// How long something that must not happen is watched for: less than the half of a minute for which volumes are waited for at least.
const WATCH: Duration = Duration::from_secs(10);

/// A node whose pods have gone stays until its volumes are detached.
pub async fn held_by_a_volume(stand: Stand) {
    stand.pool(&["on-demand"]).await;
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let (old, pod) = (stand.mine::<NodeClaim>().await.remove(0), stand.running().await.remove(0));
    let (claims, nodes) = (Api::<NodeClaim>::all(stand.client.clone()), Api::<Node>::all(stand.client.clone()));
    let attachments: Api<VolumeAttachment> = Api::all(stand.client.clone());
    let spec =
        json!({ "attacher": "test.karp.sh", "nodeName": node_of(&pod), "source": { "persistentVolumeName": "data" } });
    create::<VolumeAttachment>(&attachments, json!({ "metadata": { "name": stand.name }, "spec": spec })).await;
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
    tokio::time::sleep(WATCH).await;
    let left = claims.get(&name).await.expect("nobody ends it");
    assert!(left.metadata.deletion_timestamp.is_none(), "{left:?}");
    claims.delete(&name, &DeleteParams::default()).await.expect("it is asked to end");
    until("the claim is gone", async || claims.get_opt(&name).await.is_ok_and(|left| left.is_none())).await;
    assert!(nodes.get_opt(&node).await.expect("an answer").is_none(), "its node outlived it");
    let instance = stand.aws.look(&format!("instance?id={}", instance_of(&claim)));
    assert!(is_ending(&instance), "{instance}");
    // the pool that `leave` takes away
    stand.pool(&["spot"]).await;
    stand.leave().await;
}

//! Objects that cannot be used, or not even be read.

use k8s_openapi::api::core::v1::{Event, Pod};
use karp_domain::api::{NodeClaim, NodePool, conditions, labels};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::stand::{Stand, node_of};
use crate::support::{create, until};

/// Broken pools and pods stop nobody else.
pub async fn broken(stand: Stand) {
    let (classless, unreadable) = (format!("{}-classless", stand.name), format!("{}-unreadable", stand.name));
    let pools: Api<NodePool> = Api::all(stand.client.clone());
    let mut lost = stand.pool_manifest(&classless, "no-such-class", &["spot"]);
    lost["spec"]["weight"] = json!(100);
    create::<NodePool>(&pools, lost).await;
    // Accepted by the definition, as a quantity is any text of the right form; more than any number that is counted with.
    let mut odd = stand.pool_manifest(&unreadable, &stand.name, &["spot"]);
    odd["spec"]["limits"] = json!({ "cpu": "1e60" });
    let resource = ApiResource::erase::<NodePool>(&());
    let anything: Api<DynamicObject> = Api::all_with(stand.client.clone(), &resource);
    create::<DynamicObject>(&anything, odd).await;
    stand.pool(&["spot"]).await;
    let pods: Api<Pod> = Api::namespaced(stand.client.clone(), &stand.name);
    // For kube-scheduler so much memory is none at all; bound, the pod would hold its node for good.
    let mut huge = stand.pod_spec("1000");
    huge["containers"][0]["resources"]["requests"]["memory"] = json!("1e60");
    create::<Pod>(&pods, json!({ "metadata": { "name": "huge" }, "spec": huge })).await;
    let puzzling = puzzling(&stand, "1");
    create::<Pod>(&pods, json!({ "metadata": { "name": "puzzling" }, "spec": puzzling })).await;

    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    for name in ["huge", "puzzling"] {
        until(&format!("{name} is told about"), async || {
            !stand.events("FailedScheduling", name).await.iter().all(by_scheduler)
        })
        .await;
    }
    until("the pool says what it lacks", async || {
        let pool = pools.get(&classless).await.expect("the pool");
        let all = pool.status.map(|status| status.conditions).unwrap_or_default();
        let said = conditions::get(&all, conditions::NODE_CLASS_READY);
        conditions::is_false(&all, conditions::READY) && said.is_some_and(|said| said.reason == "NodeClassNotFound")
    })
    .await;
    assert!(stand.log().contains(&unreadable), "the log names the pool that cannot be read");
    assert_eq!(stand.aws.instances(&stand.name).len(), 1);
    for name in [&classless, &unreadable] {
        anything.delete(name, &DeleteParams::default()).await.expect("a broken pool is deleted");
        until("a broken pool goes", async || anything.get_opt(name).await.is_ok_and(|pool| pool.is_none())).await;
    }
    stand.leave().await;
}

/// Says whether an event is kube-scheduler's.
fn by_scheduler(event: &Event) -> bool {
    event.reporting_component.as_deref() != Some("karpenter")
}

/// A quantity that the definitions admit, as it is text of the right form; more than any number that is counted with.
const TOO_MUCH: &str = "1e60";

/// Handles objects of a kind as JSON, so that what cannot be read can be written.
fn untyped<K: kube::Resource<DynamicType = ()>>(stand: &Stand) -> Api<DynamicObject> {
    Api::all_with(stand.client.clone(), &ApiResource::erase::<K>(&()))
}

/// Returns status, reason and message of a condition.
async fn said(api: &Api<DynamicObject>, name: &str, kind: &str) -> Option<(String, String, String)> {
    let object = api.get(name).await.expect("the object");
    let all = object.data["status"]["conditions"].as_array()?.clone();
    let one = all.into_iter().find(|condition| condition["type"] == kind)?;
    let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

/// Waits until an object says that it cannot be read, and why, in its conditions and by an event.
async fn until_blamed(stand: &Stand, api: &Api<DynamicObject>, name: &str, reason: &str, field: &str) {
    until(&format!("{name} says what is wrong"), async || {
        said(api, name, conditions::VALIDATION_SUCCEEDED).await.is_some_and(|(status, told, message)| {
            status == "False" && told == reason && message.starts_with(&format!("{field}: "))
        })
    })
    .await;
    until(&format!("{name} is not ready"), async || {
        said(api, name, conditions::READY).await.is_some_and(|(status, ..)| status == "False")
    })
    .await;
    until(&format!("an event tells of {name}"), async || {
        let told = stand.events("ValidationFailed", name).await;
        told.iter().any(|event| event.message.as_ref().is_some_and(|message| message.contains(field)))
    })
    .await;
}

/// What cannot be read says so itself, and heals.
pub async fn unread(stand: Stand) {
    let name = format!("{}-odd", stand.name);
    let (pools, claims) = (untyped::<NodePool>(&stand), untyped::<NodeClaim>(&stand));
    let mut pool = stand.pool_manifest(&name, &stand.name, &["spot"]);
    pool["spec"]["limits"] = json!({ "cpu": TOO_MUCH });
    create::<DynamicObject>(&pools, pool).await;
    let class_ref = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": stand.name });
    let spec =
        json!({ "requirements": [], "nodeClassRef": class_ref, "resources": { "requests": { "cpu": TOO_MUCH } } });
    let claim =
        json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": name }, "spec": spec });
    create::<DynamicObject>(&claims, claim).await;
    stand.pool(&["spot"]).await;

    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    until_blamed(&stand, &pools, &name, "NodePoolValidationFailed", "spec.limits.cpu").await;
    until_blamed(&stand, &claims, &name, "NodeClaimValidationFailed", "spec.resources.requests.cpu").await;
    let counted = |stand: &Stand| {
        let metrics = stand.metrics();
        let lines = metrics.lines().filter(|line| line.starts_with("karp_unreadable_objects{"));
        lines.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let all = ["NodeClaim", "NodePool"].map(|kind| format!("karp_unreadable_objects{{kind=\"{kind}\"}} 1"));
    until("both are counted", async || counted(&stand) == all.iter().cloned().collect()).await;
    assert_eq!(stand.aws.instances(&stand.name).len(), 1, "nothing was launched for the odd claim");

    let corrected = json!({ "spec": { "limits": { "cpu": "10" } } });
    let correct = Patch::Merge(&corrected);
    pools.patch(&name, &PatchParams::default(), &correct).await.expect("the API server takes the correction");
    until("it heals", async || said(&pools, &name, conditions::READY).await.is_some_and(|(ready, ..)| ready == "True"))
        .await;
    // A claim's spec is for ever: it goes.
    claims.delete(&name, &DeleteParams::default()).await.expect("the claim is deleted");
    until("nothing is counted", async || counted(&stand).is_empty()).await;

    // What was good, has our finalizer and is spoiled can still be deleted, and a spoiled status ends no node.
    let spoil = json!({ "spec": { "limits": { "cpu": TOO_MUCH } } });
    pools.patch(&name, &PatchParams::default(), &Patch::Merge(&spoil)).await.expect("the API server takes it");
    let good = stand.mine::<NodeClaim>().await.remove(0).name_any();
    let status = json!({ "status": { "capacity": { "cpu": TOO_MUCH } } });
    claims.patch_status(&good, &PatchParams::default(), &Patch::Merge(&status)).await.expect("the API server takes it");
    until_blamed(&stand, &claims, &good, "NodeClaimValidationFailed", "status.capacity.cpu").await;
    pools.delete(&name, &DeleteParams::default()).await.expect("it is deleted");
    until("it goes", async || pools.get_opt(&name).await.is_ok_and(|object| object.is_none())).await;
    assert_eq!(stand.aws.instances(&stand.name).len(), 1);
    assert_eq!(stand.running().await.len(), 1, "its pod runs on");
    claims.delete(&good, &DeleteParams::default()).await.expect("the spoiled claim is asked to end");
    until("it ends with its instance", async || claims.get_opt(&good).await.is_ok_and(|claim| claim.is_none())).await;
    stand.until_running(1).await;
    stand.leave().await;
}

/// A pod that cannot be read holds its node no longer than another: it is evicted.
pub async fn leaves_its_node(stand: Stand) {
    stand.pool(&["on-demand"]).await;
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let (old, pod) = (stand.mine::<NodeClaim>().await.remove(0), stand.running().await.remove(0));
    let pods: Api<Pod> = Api::namespaced(stand.client.clone(), &stand.name);
    let mut puzzling = puzzling(&stand, "100m");
    puzzling["nodeName"] = json!(node_of(&pod));
    create::<Pod>(&pods, json!({ "metadata": { "name": "puzzling" }, "spec": puzzling })).await;
    stand.until_running(2).await;
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    claims.delete(&old.name_any(), &DeleteParams::default()).await.expect("it is asked to end");
    until("the claim is gone", async || claims.get_opt(&old.name_any()).await.is_ok_and(|left| left.is_none())).await;
    let told = stand.events("Evicted", "puzzling").await;
    let ours = |event: &Event| event.metadata.namespace.as_deref() == Some(&stand.name);
    assert!(told.iter().any(ours), "it was evicted, not run over");
    assert!(pods.get_opt("puzzling").await.expect("an answer").is_none());
    stand.leave().await;
}

/// Returns the spec of a pod with a term that the API server admits and nobody can mean.
fn puzzling(stand: &Stand, cpu: &str) -> Value {
    let mut spec = stand.pod_spec(cpu);
    let puzzle = json!({ "key": "age", "operator": "Gt", "values": ["old"] });
    spec["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{ "matchExpressions": [puzzle] }] } } });
    spec
}

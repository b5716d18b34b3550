//! The controller on a real control plane and the emulated AWS: what becomes of crashes, refused capacity, interruptions, broken
//! objects, a rival's lease and budgets. Each test says the outcome in the APIs.
//!
//! Runs when `KARP_TEST_KUBECONFIG`, `KARP_TEST_AWS_ENDPOINT` and `KARP_TEST_CLUSTER` name a sandbox; `cargo verify` starts one.

#[path = "aws/requests.rs"]
mod requests;
#[path = "aws/secrets.rs"]
mod secrets;
mod support;
#[path = "aws/tenancy.rs"]
mod tenancy;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool, conditions, labels};
use karp_kube::rbac::LEASE;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use support::stand::{Stand, instance_of, node_of, since};
use support::{create, until};

/// How long a call that is on its way when the controller crashes takes to arrive: longer than a lease lives.
const LATE: Duration = Duration::from_secs(25);
/// How soon something else is launched after a refusal, told by conditions in whole seconds; `faults` measures it.
const SOON: SignedDuration = SignedDuration::from_secs(3);
/// How long something that must not happen is watched for.
const WATCH: Duration = Duration::from_secs(8);
/// How long a controller may take to end.
const END: Duration = Duration::from_secs(25);

/// Asserts that the pool ever had one instance, and that its one claim stands for it.
async fn exactly_one(stand: &Stand) {
    let instances = stand.aws.instances(&stand.name);
    assert_eq!(instances.len(), 1, "{instances:?}");
    let claims = stand.mine::<NodeClaim>().await;
    let ids: Vec<String> = claims.iter().map(instance_of).collect();
    assert_eq!(ids, [instances[0]["id"].as_str().expect("an id")], "the claim adopted it");
    assert_eq!(instances[0]["tags"]["karpenter.sh/nodeclaim"], claims[0].name_any(), "it says whose it is");
}

#[tokio::test]
async fn a_crash_before_the_launch_is_recorded_leaves_one_instance() {
    let Some(mut stand) = Stand::open("lost-reply").await else { return };
    stand.pool(&["spot", "on-demand"]).await;
    stand.aws.door("hold", &json!({ "action": "CreateFleet" }));
    stand.start();
    stand.deployment(2, "500m").await;
    until("the reply is held", async || stand.aws.held("CreateFleet") == 1).await;
    assert_eq!(stand.aws.instances(&stand.name).len(), 1, "EC2 has launched it");
    stand.crash();
    stand.aws.door("release", &json!({ "action": "CreateFleet" }));
    assert!(stand.mine::<NodeClaim>().await.iter().all(|claim| instance_of(claim).is_empty()), "nobody wrote it down");

    stand.start();
    stand.until_running(2).await;
    exactly_one(&stand).await;
    stand.leave().await;
}

/// How often an idle controller may ask AWS for each thing: every so many seconds, by so many calls. These are Karpenter's intervals, for
/// one class and one node; failed checks, of instance and system, and what is planned are asked for apart. What is not named is not
/// asked at all.
const SELDOM: [(&str, u64, u64); 8] = [
    ("DescribeImages", 60, 1),
    ("DescribeSubnets", 60, 1),
    ("DescribeInstanceStatus", 60, 3),
    ("DescribeCapacityReservations", 60, 1),
    ("ReceiveMessage", 20, 1),
    ("DescribeSecurityGroups", 300, 1),
    ("DescribeCluster", 300, 1),
    ("DescribeLaunchTemplates", 300, 1),
];

#[tokio::test]
async fn an_idle_controller_asks_aws_as_seldom_as_karpenter() {
    let Some(mut stand) = Stand::open("idle").await else { return };
    // the first 200 s after a start instances are listed every 10 s, then every 2 min, and each is looked at every 5 min
    let (settled, watched, listed) = if std::env::var("KARP_DEEP").is_ok() { (220, 900, 60) } else { (25, 40, 10) };
    stand.pool(&["spot", "on-demand"]).await;
    stand.start_with(&[("KARP_RESERVATION_POLL", "1m"), ("KARP_INSTANCE_STATUS_POLL", "1m")]);
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    tokio::time::sleep(Duration::from_secs(settled)).await;
    let number = |call: &serde_json::Value| call["number"].as_u64().unwrap_or_default();
    let calls = || stand.aws.look("calls").as_array().cloned().expect("calls");
    let before = calls().last().map(number).unwrap_or_default();
    tokio::time::sleep(Duration::from_secs(watched)).await;
    let mut asked: BTreeMap<String, u64> = BTreeMap::new();
    for call in calls().iter().filter(|call| number(call) > before && call["caller"] == stand.key()) {
        *asked.entry(call["action"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
    }
    println!("asked in {watched} s without anything to do: {asked:?}");
    assert!(asked.contains_key("ReceiveMessage"), "its calls are told apart: {asked:?}");
    let all = SELDOM.into_iter().chain([("DescribeInstances", listed, 1)]);
    let bounds: BTreeMap<&str, u64> =
        all.map(|(action, every, calls)| (action, (watched / every + 1) * calls)).collect();
    let bound = |action: &str| bounds.get(action).copied().unwrap_or(0);
    let too_often: BTreeMap<_, _> = asked.iter().filter(|(action, count)| **count > bound(action)).collect();
    assert!(too_often.is_empty(), "more often than Karpenter's intervals imply: {too_often:?}");
    stand.leave().await;
}

#[tokio::test]
async fn a_launch_that_arrives_after_a_crash_and_its_repetition_are_one_instance() {
    let Some(mut stand) = Stand::open("late-call").await else { return };
    stand.pool(&["spot", "on-demand"]).await;
    stand.aws.door("delay", &json!({ "action": "CreateFleet", "seconds": LATE.as_secs() }));
    stand.start();
    stand.deployment(2, "500m").await;
    until("the attempt is recorded", async || {
        let claims = stand.mine::<NodeClaim>().await;
        claims.iter().any(|claim| claim.annotations().contains_key("karp.sh/launch-digest"))
    })
    .await;
    // The call follows its record at once; where it is lost altogether, the outcome is the same.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let sent = Instant::now();
    stand.crash();
    assert!(stand.aws.instances(&stand.name).is_empty(), "nothing is launched yet");
    stand.aws.door("reset-faults", &json!({}));

    stand.start();
    stand.until_running(2).await;
    tokio::time::sleep(LATE.saturating_sub(sent.elapsed()) + Duration::from_secs(2)).await;
    exactly_one(&stand).await;
    stand.leave().await;
}

#[tokio::test]
async fn refused_capacity_is_looked_for_elsewhere_at_once() {
    let Some(mut stand) = Stand::open("short").await else { return };
    stand.pool(&["spot", "on-demand"]).await;
    let short = json!([{ "capacity_type": "spot", "code": "InsufficientInstanceCapacity" }]);
    stand.aws.door("capacity", &short);
    stand.start();
    stand.deployment(2, "500m").await;
    stand.until_running(2).await;
    let instances = stand.aws.instances(&stand.name);
    assert!(instances.len() == 1 && instances[0]["lifecycle"] == "on-demand", "{instances:?}");
    until("the refusal is told", async || !stand.events("InsufficientCapacityError", &stand.name).await.is_empty())
        .await;
    let told = stand.events("InsufficientCapacityError", &stand.name).await;
    let refused = told.iter().filter_map(|event| event.event_time.as_ref()).map(|time| time.0).min().expect("a time");
    let claims = stand.mine::<NodeClaim>().await;
    let launched = claims.iter().find_map(|claim| since(claim, conditions::LAUNCHED)).expect("it is launched");
    let took = launched.duration_since(refused);
    assert!(took <= SOON, "the next attempt came after {took:?}");
    let kept: Api<ConfigMap> = Api::namespaced(stand.client.clone(), &stand.name);
    until("it is kept", async || kept.get_opt("karp-capacity").await.expect("an answer").is_some()).await;
    stand.terminate();
    stand.start();
    until("the next controller avoids it, too", async || {
        let log = stand.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines.any(|line| {
            line["message"] == "took kept memory of missing capacity" && line["offerings"].as_u64() > Some(0)
        })
    })
    .await;
    stand.leave().await;
}

fn labelled<'l, K: ResourceExt>(object: &'l K, key: &str) -> Option<&'l str> {
    object.labels().get(key).map(String::as_str)
}

#[tokio::test]
async fn reserved_instances_are_used_first_and_stay_when_their_reservation_ends() {
    let Some(mut stand) = Stand::open("reserved").await else { return };
    let tags = json!({ "karp-test": stand.name });
    let reservation =
        json!({ "id": "cr-1", "instance_type": "m5.large", "zone": "us-east-1a", "count": 1, "tags": tags });
    stand.aws.door("reservations", &json!([reservation]));
    let classes: Api<Ec2NodeClass> = Api::all(stand.client.clone());
    let terms = json!({ "spec": { "capacityReservationSelectorTerms": [{ "tags": tags }] } });
    classes.patch(&stand.name, &PatchParams::default(), &Patch::Merge(&terms)).await.expect("patched");
    stand.pool(&["reserved", "on-demand"]).await;
    stand.start();
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
    stand.aws.door("reservations", &json!([]));
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

#[tokio::test]
async fn an_interrupted_node_is_replaced_before_it_is_drained() {
    let Some(mut stand) = Stand::open("taken-back").await else { return };
    stand.pool(&["spot"]).await;
    stand.start();
    stand.deployment(2, "500m").await;
    stand.until_running(2).await;
    let old = stand.mine::<NodeClaim>().await.remove(0);
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    until("its node is initialized", async || {
        claims.get(&old.name_any()).await.is_ok_and(|claim| since(&claim, conditions::INITIALIZED).is_some())
    })
    .await;

    stand.aws.send("{ this is no message").await;
    stand.aws.send(&json!({ "source": "aws.ec2", "detail-type": 7 }).to_string()).await;
    stand.aws.door("interrupt", &json!({ "instance_id": instance_of(&old), "after_seconds": 120 }));
    let asked = stand.until_gone(&old).await;
    stand.until_running(2).await;
    let now = stand.mine::<NodeClaim>().await;
    let replaced = now.iter().filter_map(|claim| since(claim, conditions::INITIALIZED)).min().expect("a replacement");
    // The API server tells the end by the second.
    assert!(
        replaced.as_second() <= asked.as_second(),
        "the replacement was ready at {replaced}, the drain began at {asked}"
    );
    let old_type = old.labels().get(labels::INSTANCE_TYPE).zip(old.labels().get(labels::ZONE));
    let same =
        |claim: &NodeClaim| claim.labels().get(labels::INSTANCE_TYPE).zip(claim.labels().get(labels::ZONE)) == old_type;
    assert!(!now.iter().any(same), "what EC2 takes back is not asked for again");

    until("the queue is empty", async || stand.aws.queued().await == 0).await;
    let metrics = stand.metrics();
    let received = |kind: &str| {
        let counts =
            |line: &&str| line.starts_with("karpenter_interruption_received_messages_total") && line.contains(kind);
        metrics.lines().find(counts).and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
    };
    assert_eq!(received("spot_interrupted"), Some(1), "{metrics}");
    let all: u32 = metrics
        .lines()
        .filter(|line| line.starts_with("karpenter_interruption_received_messages_total"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
        .sum();
    assert_eq!(all, 3, "the garbage is counted: {metrics}");
    assert!(metrics.lines().any(|line| line == "karpenter_interruption_deleted_messages_total 3"), "{metrics}");
    stand.leave().await;
}

#[tokio::test]
async fn broken_pools_and_pods_stop_nobody_else() {
    let Some(mut stand) = Stand::open("broken").await else { return };
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
    let mut huge = stand.pod_spec("1");
    huge["containers"][0]["resources"]["requests"]["memory"] = json!("1e60");
    create::<Pod>(&pods, json!({ "metadata": { "name": "huge" }, "spec": huge })).await;
    let mut puzzling = stand.pod_spec("1");
    let puzzle = json!({ "key": "age", "operator": "Gt", "values": ["old"] });
    puzzling["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{ "matchExpressions": [puzzle] }] } } });
    create::<Pod>(&pods, json!({ "metadata": { "name": "puzzling" }, "spec": puzzling })).await;

    stand.start();
    stand.deployment(2, "500m").await;
    stand.until_running(2).await;
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

#[tokio::test]
async fn what_cannot_be_read_says_so_itself_and_heals() {
    let Some(mut stand) = Stand::open("unread").await else { return };
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

    stand.start();
    stand.deployment(2, "500m").await;
    stand.until_running(2).await;
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
    assert_eq!(stand.running().await.len(), 2, "its pods run on");
    claims.delete(&good, &DeleteParams::default()).await.expect("the spoiled claim is asked to end");
    until("it ends with its instance", async || claims.get_opt(&good).await.is_ok_and(|claim| claim.is_none())).await;
    stand.until_running(2).await;
    stand.leave().await;
}

#[tokio::test]
async fn a_token_that_stands_for_another_request_is_left_after_a_while() {
    let Some(mut stand) = Stand::open("token").await else { return };
    stand.pool(&["spot"]).await;
    let taken = json!([{ "action": "CreateFleet", "code": "IdempotentParameterMismatch", "status": 400, "times": 1000, "dry_runs": false }]);
    stand.aws.door("fail", &taken);
    stand.start_with(&[("KARP_LAUNCH_LISTING", "20s")]);
    stand.deployment(2, "500m").await;
    let attempt = async |stand: &Stand| {
        let claims = stand.mine::<NodeClaim>().await;
        claims.first().and_then(|claim| claim.annotations().get("karp.sh/launch-attempt").cloned())
    };
    until("the launch is refused", async || attempt(&stand).await.as_deref() == Some("1")).await;
    let begin = Instant::now();
    tokio::time::sleep(WATCH).await;
    assert_eq!(attempt(&stand).await.as_deref(), Some("1"), "what EC2 lists late is waited for");
    until("another attempt is made", async || attempt(&stand).await.as_deref() == Some("2")).await;
    assert!(begin.elapsed() < Duration::from_secs(45), "it came after {:?}", begin.elapsed());
    stand.aws.door("reset-faults", &json!({}));
    stand.until_running(2).await;
    exactly_one(&stand).await;
    stand.leave().await;
}

/// Says whether an event is kube-scheduler's.
fn by_scheduler(event: &k8s_openapi::api::core::v1::Event) -> bool {
    event.reporting_component.as_deref() != Some("karpenter")
}

#[tokio::test]
async fn a_running_karpenter_is_never_doubled_and_an_end_gives_the_lease_back() {
    let Some(mut stand) = Stand::open("rival").await else { return };
    let rival = format!("{}-elsewhere", stand.name);
    create::<Namespace>(&Api::all(stand.client.clone()), json!({ "metadata": { "name": rival } })).await;
    let held: Api<Lease> = Api::namespaced(stand.client.clone(), &rival);
    let spec = json!({ "holderIdentity": "karpenter-6f5d9", "leaseDurationSeconds": 3600,
        "renewTime": format!("{:.6}", Timestamp::now()), "acquireTime": format!("{:.6}", Timestamp::now()) });
    create::<Lease>(&held, json!({ "metadata": { "name": LEASE }, "spec": spec })).await;
    stand.pool(&["spot"]).await;
    stand.start();
    stand.deployment(1, "500m").await;
    until("it says whom it waits for", async || {
        let log = stand.log();
        log.contains("karpenter-6f5d9") && log.contains(&rival)
    })
    .await;
    tokio::time::sleep(WATCH).await;
    let pools: Api<NodePool> = Api::all(stand.client.clone());
    let pool = pools.get(&stand.name).await.expect("the pool");
    assert!(pool.status.is_none() && pool.finalizers().is_empty(), "the pool was touched: {pool:?}");
    assert!(stand.mine::<NodeClaim>().await.is_empty(), "it acted beside another");
    let begin = Instant::now();
    let code = stand.terminate();
    assert!(code.success() && begin.elapsed() < END, "while waiting: {code} after {:?}", begin.elapsed());

    stand.start();
    held.delete(LEASE, &DeleteParams::default()).await.expect("the rival leaves");
    stand.until_running(1).await;
    let leases: Api<Lease> = Api::namespaced(stand.client.clone(), &stand.name);
    let holder = async || {
        let lease = leases.get(LEASE).await.expect("the lease");
        lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty())
    };
    assert!(holder().await.is_some(), "it leads");
    let begin = Instant::now();
    let code = stand.terminate();
    assert!(code.success() && begin.elapsed() < END, "while leading: {code} after {:?}", begin.elapsed());
    assert_eq!(holder().await, None, "the lease is free");
    assert_eq!(stand.running().await.len(), 1, "nodes do not end with their controller");

    stand.start();
    Api::<Namespace>::all(stand.client.clone()).delete(&rival, &DeleteParams::default()).await.expect("deleted");
    stand.leave().await;
}

#[tokio::test]
async fn a_budget_without_room_holds_a_node_until_it_is_gone() {
    let Some(mut stand) = Stand::open("budget").await else { return };
    stand.pool(&["spot"]).await;
    stand.start();
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(stand.client.clone(), &stand.name);
    let spec = json!({ "maxUnavailable": 0, "selector": { "matchLabels": { "app": "inflate" } } });
    create::<PodDisruptionBudget>(&budgets, json!({ "metadata": { "name": "none" }, "spec": spec })).await;
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let (pod, claim) = (stand.running().await.remove(0), stand.mine::<NodeClaim>().await.remove(0));
    until("the budget is counted", async || {
        budgets.get("none").await.is_ok_and(|budget| budget.status.is_some_and(|status| status.current_healthy == 1))
    })
    .await;

    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    claims.delete(&claim.name_any(), &DeleteParams::default()).await.expect("the claim is asked to end");
    until("the drain is told to be stuck", async || !stand.events("FailedDraining", &node_of(&pod)).await.is_empty())
        .await;
    tokio::time::sleep(WATCH).await;
    let pods: Api<Pod> = Api::namespaced(stand.client.clone(), &stand.name);
    let kept = pods.get(&pod.name_any()).await.expect("the pod is there");
    assert!(kept.uid() == pod.uid() && kept.metadata.deletion_timestamp.is_none(), "the pod was evicted");
    let alive =
        |id: &str| stand.aws.instances(&stand.name).iter().any(|one| one["id"] == id && one["state"] == "running");
    assert!(alive(&instance_of(&claim)), "the instance ended under its pod");
    let nodes: Api<Node> = Api::all(stand.client.clone());
    assert!(nodes.get(&node_of(&pod)).await.is_ok(), "the node is there");

    budgets.delete("none", &DeleteParams::default()).await.expect("the budget is deleted");
    until("the claim goes", async || claims.get_opt(&claim.name_any()).await.is_ok_and(|claim| claim.is_none())).await;
    assert!(!alive(&instance_of(&claim)), "its instance runs on");
    stand.until_running(1).await;
    assert_ne!(node_of(&stand.running().await[0]), node_of(&pod));
    stand.leave().await;
}

#[tokio::test]
async fn a_class_with_a_role_gets_a_profile_that_goes_with_it() {
    let Some(mut stand) = Stand::open("role").await else { return };
    stand.pool(&["spot"]).await;
    stand.start();
    let classes: Api<Ec2NodeClass> = Api::all(stand.client.clone());
    let own = classes.get(&stand.name).await.expect("the stand's class");
    let (name, mut spec) = (format!("{}-made", stand.name), serde_json::to_value(own.spec).expect("plain data"));
    spec.as_object_mut().expect("fields").remove("instanceProfile");
    spec["role"] = json!(stand.aws.profile);
    create::<Ec2NodeClass>(&classes, json!({ "metadata": { "name": name }, "spec": spec })).await;
    let made = async || {
        let status = classes.get(&name).await.expect("the class").status?;
        status.instance_profile.filter(|_| conditions::is_true(&status.conditions, conditions::READY))
    };
    until("the class is ready", async || made().await.is_some()).await;
    let profile = made().await.expect("it has a profile");
    let exists = || {
        let profiles = stand.aws.look("inventory")["instance_profiles"].clone();
        profiles.as_array().expect("names").contains(&json!(profile))
    };
    assert!(exists(), "{profile} was made");

    classes.delete(&name, &DeleteParams::default()).await.expect("the class is asked to go");
    until("the class is gone", async || classes.get_opt(&name).await.is_ok_and(|class| class.is_none())).await;
    assert!(!exists(), "{profile} outlived its class");
    stand.leave().await;
}

//! The controller on a real control plane and the emulated AWS: what becomes of crashes, refused capacity, interruptions, broken
//! objects, a rival's lease and budgets. Each test says the outcome in the APIs.
//!
//! Runs when `KARP_TEST_KUBECONFIG`, `KARP_TEST_AWS_ENDPOINT` and `KARP_TEST_CLUSTER` name a sandbox; `cargo verify` starts one.

#[path = "aws/blocks.rs"]
mod blocks;
#[path = "aws/broken.rs"]
mod broken;
#[path = "aws/leaving.rs"]
mod leaving;
#[path = "aws/profile.rs"]
mod profile;
#[path = "aws/requests.rs"]
mod requests;
#[path = "aws/reserved.rs"]
mod reserved;
#[path = "aws/secrets.rs"]
mod secrets;
mod support;
#[path = "aws/tenancy.rs"]
mod tenancy;
#[path = "aws/token.rs"]
mod token;
#[path = "aws/unclaimed.rs"]
mod unclaimed;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool};
use karp_kube::rbac::LEASE;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::json;
use support::play::{Named, play};
use support::stand::{Stand, instance_of};
use support::{create, until};

/// How long a call that is on its way when the controller crashes takes to arrive: longer than a lease lives.
const LATE: Duration = Duration::from_secs(25);
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
    stand.two_waiting().await;
    stand.start();
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
const SELDOM: [(&str, u64, u64); 10] = [
    ("DescribeImages", 60, 1),
    ("DescribeSubnets", 60, 1),
    ("DescribeInstanceStatus", 60, 3),
    ("DescribeCapacityReservations", 60, 1),
    ("ReceiveMessage", 20, 1),
    ("DescribeSecurityGroups", 300, 1),
    ("DescribeCluster", 300, 1),
    ("DescribeLaunchTemplates", 300, 1),
    ("GetInstanceProfile", 900, 1),
    ("ListInstanceProfiles", 1800, 1),
];

#[tokio::test]
async fn an_idle_controller_asks_aws_as_seldom_as_karpenter() {
    let Some(mut stand) = Stand::open("idle").await else { return };
    // the first 200 s after a start instances are listed every 10 s, then every minute, and each is looked at every 5 min
    let (settled, watched, listed) = if std::env::var("KARP_DEEP").is_ok() { (220, 900, 45) } else { (25, 40, 10) };
    // a class by which much is asked for: a profile is made for its role, and it selects reservations
    let classes: Api<Ec2NodeClass> = Api::all(stand.client.clone());
    let mut spec = serde_json::to_value(classes.get(&stand.name).await.expect("the class").spec).expect("plain data");
    spec.as_object_mut().expect("fields").remove("instanceProfile");
    spec["role"] = json!(stand.aws.profile);
    spec["capacityReservationSelectorTerms"] = json!([{ "tags": { "karp-test": stand.name } }]);
    classes.delete(&stand.name, &DeleteParams::default()).await.expect("it is deleted");
    create::<Ec2NodeClass>(&classes, json!({ "metadata": { "name": stand.name }, "spec": spec })).await;
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
    stand.two_waiting().await;
    stand.start();
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

/// What a controller learnt is not lost with it: what EC2 lacks, and the memory that nodes were seen to have. How soon it looks elsewhere is
/// measured by `faults`.
#[tokio::test]
async fn refused_capacity_is_looked_for_elsewhere() {
    let Some(mut stand) = Stand::open("short").await else { return };
    stand.pool(&["spot", "on-demand"]).await;
    let short = json!([{ "capacity_type": "spot", "code": "InsufficientInstanceCapacity" }]);
    stand.aws.door("capacity", &short);
    stand.two_waiting().await;
    stand.start();
    stand.until_running(2).await;
    let instances = stand.aws.instances(&stand.name);
    assert!(instances.len() == 1 && instances[0]["lifecycle"] == "on-demand", "{instances:?}");
    until("the refusal is told", async || !stand.events("InsufficientCapacityError", &stand.name).await.is_empty())
        .await;
    let kept: Api<ConfigMap> = Api::namespaced(stand.client.clone(), &stand.name);
    for map in ["karp-capacity", "karp-memory"] {
        until(map, async || kept.get_opt(map).await.expect("an answer").is_some()).await;
    }
    stand.terminate();
    stand.start();
    for (message, count) in
        [("took kept memory of missing capacity", "offerings"), ("took kept memory of nodes", "instance-types")]
    {
        until(message, async || {
            let log = stand.log();
            let mut lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            lines.any(|line| line["message"] == message && line[count].as_u64() > Some(0))
        })
        .await;
    }
    stand.leave().await;
}

/// Many tests wait more than they work, and one controller serves them all, as it serves many pools.
#[tokio::test]
async fn guests_of_one_controller_are_all_served() {
    let Some(mut stand) = Stand::open("host").await else { return };
    stand.pool(&["on-demand"]).await;
    stand.start_with(&[("FEATURE_GATES", "NodeOverlay=true"), ("KARP_LAUNCH_LISTING", "20s")]);
    let scenes: Vec<Named<'_>> = vec![
        ("reserved instances are used first", Box::pin(stand.guest("reserved").then(reserved::used_first))),
        ("nodes take reservations of their tenancy", Box::pin(stand.guest("tenancy").then(tenancy::of_their_own))),
        ("nodes leave a block before it ends", Box::pin(stand.guest("block").then(blocks::until_the_end))),
        ("an interrupted node is replaced first", Box::pin(stand.guest("taken-back").then(leaving::interrupted))),
        ("a budget holds a node", Box::pin(stand.guest("budget").then(leaving::budget))),
        ("a deadline ends a drain", Box::pin(stand.guest("bounded").then(leaving::bounded))),
        ("a stopped instance's node goes", Box::pin(stand.guest("stopped").then(leaving::stopped))),
        ("a recall that is not recorded comes again", Box::pin(stand.guest("recalled").then(leaving::recorded_late))),
        ("what nobody claims is ended", Box::pin(stand.guest("unclaimed").then(unclaimed::ended))),
        ("a taken token is left", Box::pin(stand.guest("token").then(token::taken))),
        ("a role gets a profile", Box::pin(stand.guest("role").then(profile::made))),
        ("EC2 is told by what to choose", Box::pin(stand.guest("request").then(requests::told))),
        ("a launch is of the class of now", Box::pin(stand.guest("changed").then(requests::by_the_class_of_now))),
        ("what is broken leaves its node", Box::pin(stand.guest("puzzle").then(broken::leaves_its_node))),
        ("what is broken stops nobody", Box::pin(stand.guest("broken").then(broken::broken))),
    ];
    play(scenes).await;
    // counts all that cannot be read
    play(vec![("what cannot be read says so", Box::pin(stand.guest("unread").then(broken::unread)))]).await;
    stand.leave().await;
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
    let follows = format!("leader_election_master_status{{name=\"{LEASE}\"}} 0");
    assert!(stand.metrics().contains(&follows), "a replica that waits says so");
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

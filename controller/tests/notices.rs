//! What AWS announces of instances, on a real control plane and the emulated AWS: plans, advice and failed checks, each by the way that it
//! comes, and a thousand warnings at once.
//!
//! Runs when `KARP_TEST_KUBECONFIG`, `KARP_TEST_AWS_ENDPOINT` and `KARP_TEST_CLUSTER` name a sandbox; `cargo verify` starts one.

#[path = "support/queue.rs"]
mod queue;
mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karp_domain::api::{NodeClaim, NodePool, conditions, labels};
use karp_domain::interruption::IMPAIRED_FOR;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::{ObjectMeta, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use queue::Queue;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use support::stand::{Stand, instance_of, since};
use support::{create, told, until, until_within};

/// How long something that must not happen is watched for.
const WATCH: Duration = Duration::from_secs(5);
/// Warnings that come in a second.
const MANY: usize = 1000;
/// One of so many comes twice.
const REPEATED: usize = 50;
/// How long they are waited for.
const STORM: Duration = Duration::from_secs(120);
/// How soon nearly all of them must be recorded, and their nodes tainted.
const SOON: Duration = Duration::from_secs(10);
/// Writes of the test that are on their way at a time.
const WRITERS: usize = 32;
/// How long an impaired instance is waited for, which is ended after two minutes.
const IMPAIRED: Duration = Duration::from_secs(180);
/// On what the test makes by hand.
const PLANTED: &str = "karp-test-planted";

/// An event as EventBridge puts it into the queue.
fn event(source: &str, kind: &str, detail: &Value) -> String {
    let now = format!("{:.0}", Timestamp::now());
    json!({
        "version": "0", "id": "7a2b0c1e-5d3f-4a86-9c1d-2f6b8e0a4c5d", "detail-type": kind, "source": source,
        "account": "123456789012", "time": now, "region": "us-east-1", "resources": [], "detail": detail,
    })
    .to_string()
}

fn retirement(instance: &str, status: &str) -> String {
    let detail = json!({
        "service": "EC2", "eventTypeCategory": "scheduledChange", "statusCode": status,
        "eventTypeCode": "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED",
        "affectedEntities": [{ "entityValue": instance, "status": "PENDING" }],
    });
    event("aws.health", "AWS Health Event", &detail)
}

/// Makes a stand with one pod that runs on an initialized node; returns the node's claim, too.
async fn one_node(purpose: &str, capacity_type: &str) -> Option<(Stand, NodeClaim)> {
    let mut stand = Stand::open(purpose).await?;
    stand.pool(&[capacity_type]).await;
    stand.start();
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let claim = the_claim(&stand).await;
    Some((stand, claim))
}

/// Waits until the pool has one claim, and its node is initialized.
async fn the_claim(stand: &Stand) -> NodeClaim {
    let mut found = None;
    until("one node is initialized", async || {
        let mut claims = stand.mine::<NodeClaim>().await;
        found = claims.pop().filter(|claim| claims.is_empty() && since(claim, conditions::INITIALIZED).is_some());
        found.is_some()
    })
    .await;
    found.expect("a claim")
}

/// Waits until a claim is gone and its pods run elsewhere; returns when its end was asked for.
async fn until_replaced(stand: &Stand, old: &NodeClaim) -> Timestamp {
    let asked = stand.until_gone(old).await;
    stand.until_running(1).await;
    asked
}

/// Asserts that the replacement was ready before the end of the old node was asked for, which the API server tells by the second.
async fn replaced_first(stand: &Stand, asked: Timestamp) -> NodeClaim {
    let new = the_claim(stand).await;
    let ready = since(&new, conditions::INITIALIZED).expect("it is ready");
    assert!(ready.as_second() <= asked.as_second(), "ready at {ready}, the drain began at {asked}");
    new
}

/// Returns the value of a counter in the metrics, by what its line contains.
fn counted(metrics: &str, parts: &[&str]) -> Option<u64> {
    let line = metrics.lines().find(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test]
async fn a_node_leaves_before_its_instance_is_retired() {
    let Some((stand, old)) = one_node("retired", "on-demand").await else { return };
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    stand.aws.send(&retirement(&instance_of(&old), "closed")).await;
    stand.aws.send(&retirement("i-00000000000000bad", "upcoming")).await;
    until("the queue is empty", async || stand.aws.queued().await == 0).await;
    tokio::time::sleep(WATCH).await;
    assert_eq!(claims.get(&old.name_any()).await.expect("it stays").annotations(), old.annotations());

    stand.aws.send(&retirement(&instance_of(&old), "upcoming")).await;
    let asked = until_replaced(&stand, &old).await;
    let second = replaced_first(&stand, asked).await;
    assert!(!stand.events("InstanceUnhealthy", &old.name_any()).await.is_empty(), "it is told");

    // The same, asked of EC2; what was cancelled is no reason.
    let planned = |claim: &NodeClaim, description: &str| {
        let event = json!({ "code": "instance-retirement", "description": description });
        stand.aws.door("statuses", &json!([{ "instance_id": instance_of(claim), "events": [event] }]));
    };
    planned(&second, "[Canceled] The instance is running on degraded hardware");
    tokio::time::sleep(WATCH).await;
    assert_eq!(claims.get(&second.name_any()).await.expect("it stays").annotations(), second.annotations());
    planned(&second, "The instance is running on degraded hardware");
    let asked = until_replaced(&stand, &second).await;
    replaced_first(&stand, asked).await;
    let metrics = stand.metrics();
    let disrupted = counted(&metrics, &["karpenter_nodeclaims_disrupted_total", "scheduled_change"]);
    assert_eq!(disrupted, Some(2), "{metrics}");
    assert_eq!(counted(&metrics, &["instance_status_unhealthy_total", "scheduled_event"]), Some(1), "{metrics}");
    assert_eq!(counted(&metrics, &["received_messages_total", "no_op"]), Some(1), "{metrics}");
    stand.leave().await;
}

/// Nobody knows whether pods on it still run: budgets, which hold any other drain, do not hold this one.
#[tokio::test]
async fn an_impaired_instance_is_ended_past_budgets() {
    let Some((stand, old)) = one_node("impaired", "on-demand").await else { return };
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(stand.client.clone(), &stand.name);
    let budget = json!({
        "metadata": { "name": "all" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "inflate" } } },
    });
    create::<PodDisruptionBudget>(&budgets, budget).await;
    let fails_since = |since: Timestamp| {
        let status = json!({ "instance_id": instance_of(&old), "system": format!("{since:.0}") });
        stand.aws.door("statuses", &json!([status]));
    };
    // this machine's clock may be fast: what it has not seen for two minutes is not believed
    let begun = Timestamp::now();
    fails_since(begun - SignedDuration::from_mins(10));
    tokio::time::sleep(WATCH).await;
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    assert!(claims.get(&old.name_any()).await.expect("it stays").metadata.deletion_timestamp.is_none());

    until_within(IMPAIRED, "it is asked to end", async || {
        claims
            .get_opt(&old.name_any())
            .await
            .is_ok_and(|claim| claim.is_none_or(|it| it.metadata.deletion_timestamp.is_some()))
    })
    .await;
    let waited = Timestamp::now().duration_since(begun);
    assert!(waited >= IMPAIRED_FOR, "after {waited:#}");
    stand.until_running(1).await;
    until("the old claim is gone", async || claims.get_opt(&old.name_any()).await.is_ok_and(|left| left.is_none()))
        .await;
    let metrics = stand.metrics();
    assert_eq!(counted(&metrics, &["instance_status_unhealthy_total", "system_status"]), Some(1), "{metrics}");
    assert_eq!(counted(&metrics, &["karpenter_nodeclaims_disrupted_total", "system_status"]), Some(1), "{metrics}");
    // it would hold the drain of the new node
    budgets.delete("all", &DeleteParams::default()).await.expect("the budget is deleted");
    stand.leave().await;
}

#[tokio::test]
async fn advice_is_followed_where_the_pool_says_so() {
    let Some((stand, old)) = one_node("advice", "spot").await else { return };
    let advise = async || {
        let detail = json!({ "instance-id": instance_of(&old) });
        stand.aws.send(&event("aws.ec2", "EC2 Instance Rebalance Recommendation", &detail)).await;
    };
    advise().await;
    until("the advice is told", async || {
        !stand.events("SpotRebalanceRecommendation", &old.name_any()).await.is_empty()
    })
    .await;
    tokio::time::sleep(WATCH).await;
    let claims: Api<NodeClaim> = Api::all(stand.client.clone());
    assert_eq!(claims.get(&old.name_any()).await.expect("it stays").annotations(), old.annotations());

    let follows = json!({ "metadata": { "annotations": { (labels::REPLACE_ON_REBALANCE): "true" } } });
    let pools: Api<NodePool> = Api::all(stand.client.clone());
    pools.patch(&stand.name, &PatchParams::default(), &Patch::Merge(&follows)).await.expect("patched");
    // The controller may not have seen the pool's change yet: EC2 says it again, too.
    until("it is called back", async || {
        advise().await;
        let claim = claims.get_opt(&old.name_any()).await.expect("an answer");
        claim.is_none_or(|claim| claim.annotations().contains_key(labels::INTERRUPTED_AT))
    })
    .await;
    let asked = until_replaced(&stand, &old).await;
    let new = replaced_first(&stand, asked).await;
    let offering =
        |claim: &NodeClaim| [labels::INSTANCE_TYPE, labels::ZONE].map(|key| claim.labels().get(key).cloned());
    assert_ne!(offering(&new), offering(&old), "what EC2 advises to leave is not asked for again");
    let metrics = stand.metrics();
    let disrupted = counted(&metrics, &["karpenter_nodeclaims_disrupted_total", "rebalance_recommendation"]);
    assert_eq!(disrupted, Some(1), "{metrics}");
    stand.leave().await;
}

/// Claims and nodes that are made by hand, as if their instances ran.
struct Plants {
    claims: Api<NodeClaim>,
    nodes: Api<Node>,
    names: Vec<String>,
}

impl Plants {
    fn instance(name: &str) -> String {
        let number: usize = name.rsplit('-').next().and_then(|n| n.parse().ok()).expect("a number");
        format!("i-{number:017x}")
    }

    async fn make(stand: &Stand, count: usize) -> Self {
        let names = (0..count).map(|n| format!("{}-planted-{n}", stand.name)).collect();
        let (claims, nodes) = (Api::all(stand.client.clone()), Api::all(stand.client.clone()));
        let plants = Self { claims, nodes, names };
        stream::iter(&plants.names).for_each_concurrent(WRITERS, |name| plants.one(name, &stand.name)).await;
        plants
    }

    async fn one(&self, name: &str, class: &str) {
        let id = format!("aws:///us-east-1a/{}", Self::instance(name));
        let now = format!("{:.0}", Timestamp::now());
        let marked = json!({ (PLANTED): "true", (labels::CAPACITY_TYPE): "spot", (labels::INSTANCE_TYPE): "m5.large",
            (labels::ZONE): "us-east-1a", (labels::REGISTERED): "true", (labels::INITIALIZED): "true" });
        let node = json!({ "metadata": { "name": name, "labels": marked }, "spec": { "providerID": id } });
        create::<Node>(&self.nodes, node).await;
        let ready = json!({ "type": "Ready", "status": "True", "reason": "Planted", "message": "",
            "lastHeartbeatTime": now, "lastTransitionTime": now });
        let room = json!({ "cpu": "2", "memory": "8Gi", "pods": "29" });
        let status = json!({ "status": { "conditions": [ready], "capacity": room, "allocatable": room } });
        self.nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.expect("a status");
        let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": class });
        let claim = json!({
            "metadata": { "name": name, "labels": marked, "finalizers": [labels::TERMINATION_FINALIZER] },
            "spec": { "nodeClassRef": class, "requirements": [] },
        });
        create::<NodeClaim>(&self.claims, claim).await;
        let all = [conditions::LAUNCHED, conditions::REGISTERED, conditions::INITIALIZED];
        let all = all.map(
            |kind| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now }),
        );
        let status = json!({ "status": { "providerID": id, "nodeName": name, "conditions": all } });
        self.claims.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.expect("a status");
    }

    /// Takes them away, whatever holds them; no controller runs.
    async fn uproot(&self) {
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        let free = &free;
        stream::iter(&self.names)
            .for_each_concurrent(WRITERS, |name| async move {
                // One that is gone is not held.
                drop(self.claims.patch_metadata(name, &PatchParams::default(), free).await);
                drop(self.nodes.patch_metadata(name, &PatchParams::default(), free).await);
            })
            .await;
        let planted = ListParams::default().labels(PLANTED);
        self.claims.delete_collection(&DeleteParams::default(), &planted).await.expect("claims go");
        self.nodes.delete_collection(&DeleteParams::default(), &planted).await.expect("nodes go");
        until("they are gone", async || {
            let claims = self.claims.list_metadata(&planted).await.expect("claims").items.len();
            claims + self.nodes.list_metadata(&planted).await.expect("nodes").items.len() == 0
        })
        .await;
    }
}

/// Notes when each object first is as `holds` says, until all are.
async fn first_seen<K>(client: &Client, count: usize, holds: impl Fn(&ObjectMeta) -> bool) -> BTreeMap<String, Instant>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let mut seen = BTreeMap::new();
    let config = watcher::Config::default().labels(PLANTED);
    let all: Api<PartialObjectMeta<K>> = Api::all(client.clone());
    let mut changes = Box::pin(watcher(all, config).default_backoff().applied_objects());
    while seen.len() < count {
        let object = changes.try_next().await.expect("a watch that goes on").expect("no end");
        if holds(&object.metadata) {
            seen.entry(object.name_any()).or_insert_with(Instant::now);
        }
    }
    seen
}

/// Says whether an object leaves, or has this among its annotations or labels.
fn marked(known: &ObjectMeta, key: &str) -> bool {
    let has = |all: &Option<BTreeMap<String, String>>| all.as_ref().is_some_and(|all| all.contains_key(key));
    known.deletion_timestamp.is_some() || has(&known.annotations) || has(&known.labels)
}

/// Returns the times from a moment on, shortest first.
fn waits(begin: Instant, seen: &BTreeMap<String, Instant>) -> Vec<Duration> {
    let mut waits: Vec<Duration> = seen.values().map(|at| at.saturating_duration_since(begin)).collect();
    waits.sort_unstable();
    waits
}

/// A measurement, made with `KARP_STORM=1` on a machine that does nothing else, by hand or by `cargo verify --deep`.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_warnings_in_a_second_are_recorded_soon() {
    if std::env::var_os("KARP_STORM").is_none() {
        println!("skipped: KARP_STORM is not set");
        return;
    }
    let Some(mut stand) = Stand::open("storm").await else { return };
    let queue = Queue::open().await;
    stand.pool(&["spot"]).await;
    let plants = Plants::make(&stand, MANY).await;
    stand.start_with(&[("AWS_ENDPOINT_URL_SQS", &queue.endpoint)]);
    until("it leads", async || stand.log().contains("\"metrics\"")).await;
    // A first one that concerns nobody says that the queue is read.
    queue.send([retirement("i-00000000000000bad", "upcoming")]);
    until("the queue is read", async || queue.queued() == 0).await;

    let warning = |name: &String| {
        let detail = json!({ "instance-id": Plants::instance(name), "instance-action": "terminate" });
        event("aws.ec2", "EC2 Spot Instance Interruption Warning", &detail)
    };
    let begin = Instant::now();
    let watching = async {
        let recorded = first_seen::<NodeClaim>(&stand.client, MANY, |claim| marked(claim, labels::INTERRUPTED_AT));
        // The label comes with the taint, by the same write.
        let tainted = first_seen::<Node>(&stand.client, MANY, |node| marked(node, labels::EXCLUDE_FROM_BALANCERS));
        tokio::join!(recorded, tainted)
    };
    // SQS keeps no order, and delivers some of them twice
    let twice = plants.names.iter().step_by(REPEATED);
    let emptied = async {
        queue.send(plants.names.iter().rev().chain(twice).map(warning));
        until_within(STORM, "the queue is empty", async || queue.queued() == 0).await;
        begin.elapsed()
    };
    let within = tokio::time::timeout(STORM, async { tokio::join!(emptied, watching) }).await;
    let (emptied, (recorded, tainted)) = within.expect("all are recorded and their nodes tainted");
    let seen = ["taint", "record"].into_iter().zip([&tainted, &recorded]);
    let late = seen.map(|(what, at)| told(&format!("from warning to {what}"), &waits(begin, at))).max();
    println!("figure: {MANY} warnings, all deleted after {emptied:.1?}");
    assert!(late <= Some(SOON), "1 % were tainted or recorded later than {late:?} after they were sent");
    let handled = stand.log().matches("initiating delete from interruption message").count();
    assert!(handled <= MANY, "{handled} recalls of {MANY} claims");
    let metrics = stand.metrics();
    let received = counted(&metrics, &["received_messages_total", "spot_interrupted"]);
    assert!(received >= Some(MANY as u64), "{received:?}");

    stand.crash();
    plants.uproot().await;
    stand.start();
    until_within(Duration::from_secs(60), "it works", async || stand.log().contains("\"metrics\"")).await;
    stand.leave().await;
}

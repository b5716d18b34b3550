//! Pending pods → batch → solve → NodeClaims.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use karp_domain::api::{NodeClaim, labels};
use karp_domain::batch::{Batcher, Window};
use karp_domain::cluster::{Pod, PodKey, Reply, Snapshot};
use karp_domain::scheduling::{InFlightNode, LastPlan, Solution, Told, barren, solve};
use kube::Api;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::block_in_place;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Context;
use crate::effect::{self, Effect, Outcome};
use crate::observe::Change;
use crate::ops::decisions::Decision;
use crate::ops::events::Reason;
use crate::ops::metrics::{ControllerLabels, CreatedLabels};
use crate::ops::telemetry::pass_span;

/// Pods that still wait are looked at again after this long (Karpenter: 10 s).
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Pods for which nothing could be had are planned for again so soon: they waited for a batch already, and refusals of calls that were under
/// way together are answered by one plan.
const REPLAN: Duration = Duration::from_millis(100);
/// How long a new claim is waited for to come back by watch, by who goes on with it.
const ECHO: Duration = Duration::from_secs(5);
/// Pods that came so short a while ago may be some of a burst.
const NEW: Duration = Duration::from_secs(60);
/// Characters of a generated name, as the API server chooses them: no vowels, nothing to misread.
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Names and types that a log line lists before it counts the rest.
const LISTED: usize = 5;

/// Plans capacity for pending pods until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut changes = context.stores.changes();
    let mut batcher = Batcher::new(context.options.batch_idle_duration, context.options.batch_max_duration);
    let mut look_again = Some(Instant::now());
    loop {
        let now = Timestamp::now();
        let window = match batcher.window(now) {
            Window::Ripe => {
                batcher.clear();
                let span = pass_span!("provisioner");
                let waiting = pass(&context).instrument(span).await;
                look_again = waiting.then(|| Instant::now() + LOOK_AGAIN);
                continue;
            }
            Window::Empty => None,
            Window::OpenUntil(at) => Some(Duration::try_from(at.duration_since(now)).unwrap_or_default()),
        };
        let ripens = async {
            match (window, look_again) {
                (Some(wait), _) => tokio::time::sleep(wait).await,
                (None, Some(at)) => tokio::time::sleep_until(at.into()).await,
                (None, None) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = context.provision.notified() => batcher.add(Timestamp::now()),
            () = context.replan.notified() => batcher.hasten(Timestamp::now(), REPLAN),
            () = ripens => if window.is_none() {
                look_again = None;
                batcher.add(Timestamp::now());
            },
            change = changes.recv() => match change {
                Ok(change) => {
                    let now = Timestamp::now();
                    if concerns(&context, &change) {
                        batcher.add(now);
                    }
                    if let Change::Pod { key, pending: true, .. } = &change {
                        see(&context, key, now);
                    }
                    // one at which kube-scheduler has not looked may be like one that was refused
                    if let Change::Pod { key, pod: Some(pod), .. } = change && pod.is_waiting() && is_new(&pod, now) {
                        batcher.count(key);
                    }
                },
                Err(RecvError::Lagged(_)) => batcher.add(Timestamp::now()),
                Err(RecvError::Closed) => return,
            },
        }
    }
}

/// Says whether a pod came so short a while ago that it may be one of a burst.
fn is_new(pod: &Pod, now: Timestamp) -> bool {
    pod.created.is_some_and(|at| now.duration_since(at).unsigned_abs() < NEW)
}

/// Says whether a change may leave a pod without a place.
fn concerns(context: &Context, change: &Change) -> bool {
    match change {
        Change::Pod { pending, .. } => *pending,
        Change::Claim(name) => {
            context.stores.claim(name).is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
        }
        Change::Pool(_) | Change::Class(_) => false,
        // a pod that waits for its volume is looked at again with the others
        Change::Node(_) | Change::Daemon | Change::Budget | Change::Namespace | Change::Volume | Change::Unread => {
            false
        }
    }
}

/// Makes one plan and carries it out; returns whether pods still wait.
async fn pass(context: &Context) -> bool {
    let _planning = context.planning.lock().await;
    let started = Instant::now();
    let snapshot = context.snapshot().await;
    let pending: Vec<&Arc<Pod>> = snapshot.pods.iter().filter(|pod| pod.is_provisionable()).collect();
    for pod in pending.iter().filter(|pod| !snapshot.is_virtual(&pod.key)) {
        see(context, &pod.key, snapshot.now);
    }
    let labels = ControllerLabels::new("provisioner");
    context.metrics.queue_depth.get_or_create(&labels).set(pending.len() as i64);
    let unreadable = context.stores.pods.unreadable();
    context.metrics.ignored_pods.set(unreadable.len() as i64);
    for (key, pod) in &unreadable {
        let note = format!("Failed to schedule pod, {}", pod.why);
        context.events.publish(&effect::pod_reference(key, &pod.uid), Reason::FailedScheduling, note);
    }

    let solving = context.metrics.ongoing.solve("provisioner");
    let solution = block_in_place(|| solve(&snapshot));
    drop(solving);
    decided(context, &solution);
    if !pending.is_empty() {
        tell_barren(context, &snapshot);
    }
    context.metrics.scheduling_duration.get_or_create(&labels).observe(started.elapsed().as_secs_f64());
    context.metrics.unschedulable_pods.get_or_create(&labels).set(solution.unschedulable.len() as i64);
    if !solution.nodes.is_empty() {
        let pods: usize = solution.nodes.iter().map(|node| node.pods.len()).sum();
        let duration = format!("{:?}", started.elapsed());
        let listed = listing(solution.nodes.iter().flat_map(|node| &node.pods));
        tracing::info!(Pods = listed, duration, "found provisionable pod(s)");
        tracing::info!(nodeclaims = solution.nodes.len(), pods, "computed new nodeclaim(s) to fit pod(s)");
    }
    let mut plan = LastPlan::begin(&snapshot, &solution);
    for (node, claim) in create_admitted(context, &snapshot, &solution.nodes).await {
        plan.made(claim, node);
    }
    // what could not be made is planned anew, also for pods that still run on nodes which leave
    let homeless = plan.end(&solution);
    report(context, &snapshot, &solution, &plan);
    let waits = !pending.is_empty() || homeless || solution.next_look.is_some();
    context.plans.replace(plan);
    waits
}

/// Notes that a pod waits.
fn see(context: &Context, key: &PodKey, now: Timestamp) {
    let decisions = &context.metrics.decisions;
    decisions.see(key, now);
    // it may be gone by now, and nobody will tell so again
    decisions.note(key, context.stores.pods.get(key).as_deref());
}

/// Notes what was decided of pods that wait.
fn decided(context: &Context, solution: &Solution) {
    let now = Timestamp::now();
    let placed = solution.placements.iter().map(|placement| &placement.pod);
    let placed = placed.chain(solution.nodes.iter().flat_map(|node| &node.pods)).map(|pod| (pod, Decision::Placed));
    let refused = solution.unschedulable.iter().map(|refused| (&refused.pod, Decision::Refused));
    for (pod, decision) in placed.chain(refused) {
        if let Some(took) = context.metrics.decisions.decide(pod, decision, now) {
            context.metrics.pods_decided.observe(took);
        }
    }
}

/// Tells on pools that nothing of them can be bought: pods wait, and this may be why.
fn tell_barren(context: &Context, snapshot: &Snapshot) {
    for (pool, lack) in barren(snapshot) {
        if let Some(pool) = context.stores.pool(&pool) {
            context.events.publish(&effect::reference(&*pool), Reason::NoCompatibleInstanceTypes, lack.to_string());
        }
    }
}

/// Creates the claims of planned nodes, as many as the health of their pools admits; answers those that were made.
pub async fn create_admitted<'n>(
    context: &Context,
    snapshot: &Snapshot,
    nodes: &'n [InFlightNode],
) -> Vec<(&'n InFlightNode, Arc<str>)> {
    let admitted = context.health.admit(snapshot, nodes).into_iter();
    let create = |node: &'n InFlightNode| async move {
        match create(context, node, "provisioned").await {
            Creation::Done(name) => Some((node, name)),
            Creation::Doubtful(_) | Creation::Refused => None,
        }
    };
    futures::future::join_all(admitted.map(create)).await.into_iter().flatten().collect()
}

/// What became of a claim that was to be made.
pub enum Creation {
    /// It is there.
    Done(Arc<str>),
    /// The API server did not say; it may be there under this name.
    Doubtful(Arc<str>),
    /// It is not there.
    Refused,
}

/// Creates the claim of a planned node. Until the watch has seen it, snapshots reckon with it as assumed.
async fn create(context: &Context, node: &InFlightNode, reason: &str) -> Creation {
    let claim = match new_claim(context, node) {
        Ok(claim) => claim,
        Err(missing) => {
            tracing::warn!(NodePool.name = %node.pool, missing, "not creating a nodeclaim: what it belongs to has gone");
            return Creation::Refused;
        }
    };
    let name: Arc<str> = claim.metadata.name.clone().unwrap_or_default().into();
    let requests = serde_json::to_string(&claim.spec.resources.requests).unwrap_or_default();
    let now = Timestamp::now();
    let mut assumed = claim.clone();
    assumed.metadata.creation_timestamp = Some(Time(now));
    let taken = context.stores.claim(&name).is_some();
    let reply = match effect::apply(&context.client, &Effect::CreateNodeClaim(Box::new(claim))).await {
        Ok(Outcome::Done) => Reply::Made,
        Ok(Outcome::Nothing) if taken => Reply::Refused,
        Ok(Outcome::Nothing) => match is_made(context, &assumed.metadata).await {
            Ok(true) => Reply::Made,
            Ok(false) => Reply::Refused,
            Err(error) => {
                tracing::error!(NodeClaim.name = %name, %error, "asking for a nodeclaim that may have been created");
                Reply::Lost
            }
        },
        Err(error) => {
            tracing::error!(NodePool.name = %node.pool, %error, "creating nodeclaim");
            if effect::may_be_done(&error) {
                Reply::Lost
            } else {
                tell_refused(context, node, &error);
                Reply::Refused
            }
        }
    };
    context.assumed().asked(&assumed, reply, now);
    match reply {
        Reply::Made => {}
        Reply::Lost => return Creation::Doubtful(name),
        Reply::Refused => return Creation::Refused,
    }
    let relaxed = if node.annotations.contains_key(labels::MIN_VALUES_RELAXED) { "true" } else { "false" };
    context.metrics.nodeclaims_created.get_or_create(&CreatedLabels::new(reason, &*node.pool, relaxed)).inc();
    tracing::info!(
        NodePool.name = %node.pool,
        NodeClaim.name = %name,
        requests,
        "instance-types" = listing(node.instance_types()),
        "created nodeclaim"
    );
    Creation::Done(name)
}

/// Says whether a claim of a name that nobody had is the one that was to be made: a request whose answer was lost on its way is made again, and what
/// the first one made is in the way of the second.
async fn is_made(context: &Context, wanted: &ObjectMeta) -> kube::Result<bool> {
    let claims = Api::<NodeClaim>::all(context.client.clone());
    let found = claims.get_metadata_opt(wanted.name.as_deref().unwrap_or_default()).await?;
    Ok(found.is_some_and(|found| is_same(wanted, &found.metadata)))
}

/// Says whether an object is the one that was asked for, whatever was written on it since.
fn is_same(wanted: &ObjectMeta, found: &ObjectMeta) -> bool {
    let has = |found: &Option<BTreeMap<String, String>>, wanted: &Option<BTreeMap<String, String>>| {
        let own = |key: &String| found.as_ref().and_then(|found| found.get(key));
        wanted.iter().flatten().all(|(key, value)| own(key) == Some(value))
    };
    found.deletion_timestamp.is_none()
        && found.owner_references == wanted.owner_references
        && has(&found.labels, &wanted.labels)
        && has(&found.annotations, &wanted.annotations)
}

/// The same for who goes on with the claim: waits until the watch has seen it.
pub async fn create_seen(context: &Context, node: &InFlightNode, reason: &str) -> Creation {
    let created = create(context, node, reason).await;
    let Creation::Done(name) = &created else { return created };
    let seen = async {
        while context.stores.claim(name).is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // One that is seen later is reckoned with all the same: it is assumed.
    if tokio::time::timeout(ECHO, seen).await.is_ok() {
        context.assumed().forget(name);
    }
    created
}

/// Tells the pods of a node whose claim the API server, or an admission policy of the cluster, does not take: else nobody who looks at them
/// would know why they wait. What may pass by itself is only logged.
fn tell_refused(context: &Context, node: &InFlightNode, error: &kube::Error) {
    let Some(note) = refused(&node.pool, error) else { return };
    // room for buffers is planned for pods that do not exist
    for pod in node.pods.iter().filter_map(|key| context.stores.pods.get(key)) {
        context.events.publish(&effect::pod_reference(&pod.key, &pod.uid), Reason::FailedScheduling, note.clone());
    }
}

fn refused(pool: &str, error: &kube::Error) -> Option<String> {
    let kube::Error::Api(status) = error else { return None };
    let passes = matches!(status.code, 401 | 409 | 429);
    let told =
        || format!("Failed to schedule pod, the API server refuses NodeClaims of pool {pool}: {}", status.message);
    ((400..500).contains(&status.code) && !passes).then(told)
}

/// Makes the claim of a planned node, owned by its pool and stamped with the hashes that drift is judged by.
fn new_claim(context: &Context, node: &InFlightNode) -> Result<NodeClaim, &'static str> {
    let pool = context.stores.pool(&node.pool).ok_or("NodePool")?;
    let class = context.stores.class(&node.class.name).ok_or("EC2NodeClass")?;
    let mut claim = node.node_claim(&generated_name(&node.pool));
    let annotations = claim.metadata.annotations.get_or_insert_default();
    annotations.extend(super::node_class::hash_annotations(&class, &context.ca_bundle));
    let owner = OwnerReference {
        api_version: "karpenter.sh/v1".to_owned(),
        kind: "NodePool".to_owned(),
        name: node.pool.to_string(),
        uid: pool.metadata.uid.clone().unwrap_or_default(),
        block_owner_deletion: Some(true),
        controller: None,
    };
    claim.metadata.owner_references = Some(vec![owner]);
    Ok(claim)
}

/// Makes a name as `generateName` would; made here so that the plan knows it before the API server does.
fn generated_name(pool: &str) -> String {
    let suffix: String = (0..5).map(|_| char::from(NAME_LETTERS[rand::random_range(0..NAME_LETTERS.len())])).collect();
    format!("{pool}-{suffix}")
}

/// Tells each pod where it goes, or why nowhere.
fn report(context: &Context, snapshot: &Snapshot, solution: &Solution, plan: &LastPlan) {
    let pods: BTreeMap<&PodKey, &Arc<Pod>> = snapshot.pods.iter().map(|pod| (&pod.key, pod)).collect();
    let publish = |key: &PodKey, reason: Reason, note: String| {
        if let Some(pod) = pods.get(key).filter(|pod| pod.node.is_none()) {
            context.events.publish(&effect::pod_reference(key, &pod.uid), reason, note);
        }
    };
    for (key, told) in plan.told(solution) {
        match told {
            Told::Claim(claim) => publish(key, Reason::Nominated, format!("Pod should schedule on: nodeclaim/{claim}")),
            Told::Node(node) => publish(key, Reason::Nominated, format!("Pod should schedule on: node/{node}")),
            Told::Nowhere(refused) => {
                publish(key, Reason::FailedScheduling, format!("Failed to schedule pod, {}", refused.event()));
                tracing::debug!(
                    Pod.namespace = %key.namespace,
                    Pod.name = %key.name,
                    error = %refused,
                    "could not schedule pod"
                );
            }
        }
    }
}

/// Lists the first few items and counts the others, as Karpenter's log does.
pub fn listing<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    match items.len().checked_sub(LISTED) {
        None | Some(0) => items.join(", "),
        Some(more) => format!("{} and {more} other(s)", items[..LISTED].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::Server;
    use super::*;

    #[tokio::test]
    async fn a_claim_that_was_made_though_nobody_heard_so_is_known_again() {
        let claim = |change: &dyn Fn(&mut Value)| {
            let mut metadata = json!({
                "name": "c", "labels": { "a": "1" }, "annotations": { "b": "2" },
                "ownerReferences": [{ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "p", "uid": "u" }],
            });
            change(&mut metadata);
            let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
            let spec = json!({ "requirements": [], "nodeClassRef": class });
            json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": metadata, "spec": spec })
        };
        let wanted: NodeClaim = serde_json::from_value(claim(&|_| {})).expect("a claim");
        let server = Server::default();
        let context = server.context().await;
        let is_made = async || is_made(&context, &wanted.metadata).await.expect("an answer");
        assert!(!is_made().await, "there is none");
        server.put(claim(&|made| made["labels"]["zone"] = json!("us-east-1a")));
        assert!(is_made().await, "it has got a label since");
        let others: [&dyn Fn(&mut Value); 4] = [
            &|other| other["labels"]["a"] = json!("2"),
            &|other| other["annotations"] = json!({}),
            &|other| other["ownerReferences"][0]["uid"] = json!("another"),
            &|other| other["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
        ];
        for other in others {
            server.put(claim(other));
            assert!(!is_made().await, "{}", server.get("nodeclaims/c"));
        }
    }

    #[test]
    fn long_lists_are_counted() {
        assert_eq!(listing(["a", "b"]), "a, b");
        assert_eq!(listing(1..=5), "1, 2, 3, 4, 5");
        assert_eq!(listing(1..=60), "1, 2, 3, 4, 5 and 55 other(s)");
    }

    #[test]
    fn refusals_are_told_and_what_passes_is_not() {
        let answer = |code: u16| {
            let status = serde_json::from_value(json!({"code": code, "message": "denied by policy", "reason": ""}));
            kube::Error::Api(status.expect("a status"))
        };
        for code in [400, 403, 404, 422] {
            let told = refused("default", &answer(code)).expect("a refusal");
            assert!(
                told.starts_with("Failed to schedule pod, ") && told.ends_with("of pool default: denied by policy"),
                "{told}"
            );
        }
        for code in [401, 409, 429, 500, 503] {
            assert_eq!(refused("default", &answer(code)), None, "{code}");
        }
    }

    #[test]
    fn names_are_the_pools_with_five_letters() {
        let name = generated_name("default");
        let suffix = name.strip_prefix("default-").expect("the pool's name first");
        assert!(suffix.len() == 5 && suffix.bytes().all(|letter| NAME_LETTERS.contains(&letter)), "{name}");
    }
}

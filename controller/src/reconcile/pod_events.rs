//! What pods' changes tell: `status.lastPodEventTime` of claims, when a pod last came to the node or left it, on which consolidation waits;
//! and how long pods waited for a node and until they ran.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt};
use jiff::{SignedDuration, Timestamp};
use karp_domain::api::{NodeClaim, conditions};
use karp_domain::cluster::{Owner, Phase, Pod, PodKey};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::{Context, node_claim};
use crate::observe::Change;

/// Stamps of one claim are at least this far apart; the last event of a burst always is written.
const QUIET: Duration = Duration::from_secs(5);
/// The same where the pool's `consolidateAfter` waits for nothing, the first one included: only people read it then.
const UNHURRIED: Duration = Duration::from_secs(60);
/// Stamps that are written at a time.
const AT_ONCE: usize = 16;
/// How often waiting stamps are looked at.
const TICK: Duration = Duration::from_secs(1);
/// A pod starts on its node by so much later than it was bound, which its claim tells.
const STARTS: SignedDuration = SignedDuration::from_secs(5);

/// Stamps claims until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut changes = context.stores.changes();
    let mut stamps = Stamps::default();
    let mut tick = tokio::time::interval(TICK);
    // written beside: who waits for the API server falls behind the changes
    let permits = Semaphore::new(AT_ONCE);
    let mut written = FuturesUnordered::new();
    let note = |stamps: &mut Stamps, node: Arc<str>, at: Timestamp| {
        stamps.note(node, at, Instant::now(), |node| pause(&context, node));
    };
    missed(&context, Timestamp::now()).into_iter().for_each(|(node, at)| note(&mut stamps, node, at));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            change = changes.recv() => match change {
                Ok(Change::Pod { node: Some(node), moved: true, .. }) => note(&mut stamps, node, Timestamp::now()),
                Ok(_) => {}
                // nobody knows which nodes pods came to, or left: each may be one of them
                Err(RecvError::Lagged(_)) => {
                    let now = Timestamp::now();
                    let pods = context.stores.pods.all().into_iter().filter(|pod| pod.owner != Owner::DaemonSet);
                    let nodes: HashSet<Arc<str>> = pods.filter_map(|pod| pod.node.clone()).collect();
                    nodes.into_iter().for_each(|node| note(&mut stamps, node, now));
                }
                Err(RecvError::Closed) => return,
            },
            _ = tick.tick() => {
                written.extend(stamps.ripe(Instant::now()).into_iter().map(|(node, at)| stamp(&context, &permits, node, at)));
            }
            // consolidation would take the node for quiet: it is written again
            Some(Some((node, at))) = written.next(), if !written.is_empty() => note(&mut stamps, node, at),
        }
    }
}

/// Measures how long pods wait until `stop` is cancelled. It waits for nothing else, so that it sees each change when it happens.
pub async fn measure(context: Arc<Context>, stop: CancellationToken) {
    let mut changes = context.stores.changes();
    let mut waits = Waits::default();
    loop {
        let change = tokio::select! {
            () = stop.cancelled() => return,
            change = changes.recv() => change,
        };
        match change {
            Ok(Change::Pod { key, pod, .. }) => {
                let (now, metrics) = (Timestamp::now(), &context.metrics);
                let (bound, ready) = waits.note(&key, pod.as_deref(), now);
                let placed = metrics.decisions.of(&key).and_then(|times| times.placed_for(now));
                if let Some(seconds) = bound {
                    metrics.pods_bound.observe(seconds);
                    placed.iter().for_each(|seconds| metrics.pods_placed_bound.observe(*seconds));
                }
                if let Some(seconds) = ready {
                    metrics.pods_startup.observe(seconds);
                    placed.iter().for_each(|seconds| metrics.pods_placed_startup.observe(*seconds));
                }
                metrics.decisions.note(&key, pod.as_deref());
            }
            Ok(_) => {}
            // who was deleted meanwhile is not known
            Err(RecvError::Lagged(_)) => {
                waits = Waits::default();
                context.metrics.decisions.review(|key| context.stores.pods.get(key));
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Returns the nodes to which pods came while nobody stamped their claims, as between two leaders, and when. Nobody knows what left them.
fn missed(context: &Context, now: Timestamp) -> Vec<(Arc<str>, Timestamp)> {
    let mut came: HashMap<Arc<str>, Timestamp> = HashMap::new();
    let stays = |pod: &Pod| pod.owner != Owner::DaemonSet && pod.phase != Phase::Terminal;
    for pod in context.stores.pods.all().into_iter().filter(|pod| stays(pod)) {
        let Some(node) = pod.node.clone() else { continue };
        // one that has not started was bound a moment ago
        let at = pod.started.map_or(now, |started| started.min(now));
        let last = came.entry(node).or_insert(at);
        *last = at.max(*last);
    }
    let claims = context.stores.claims.state();
    let unstamped = claims.iter().filter(|claim| claim.spec.node_class_ref.is_ours()).filter_map(|claim| {
        let (node, at) = came.get_key_value(claim.status.as_ref()?.node_name.as_deref()?)?;
        (!tells(claim, *at) && pause(context, node) == QUIET).then(|| (node.clone(), *at))
    });
    unstamped.collect()
}

/// Says whether a claim tells of a pod that started on its node, or need not: a node that is not initialized is left alone anyway.
fn tells(claim: &NodeClaim, started: Timestamp) -> bool {
    let Some(initialized) = node_claim::since(claim, conditions::INITIALIZED) else { return true };
    let last = claim.status.as_ref().and_then(|status| status.last_pod_event_time);
    started.duration_since(last.map_or(initialized, |last| last.max(initialized))) <= STARTS
}

/// Returns the claim of a node.
fn claim_of(context: &Context, node: &str) -> Option<Arc<NodeClaim>> {
    context.stores.claim_of(context.stores.node(node)?.spec.as_ref()?.provider_id.as_deref()?)
}

/// Returns how far apart the stamps of a node's claim are at least.
fn pause(context: &Context, node: &str) -> Duration {
    let pool = claim_of(context, node).and_then(|claim| context.stores.pool(&node_claim::pool_of(&claim)));
    let quiet = pool.map(|pool| pool.spec.disruption.quiet_period());
    match quiet {
        Some(quiet) if quiet.is_none_or(|quiet| quiet.is_zero()) => UNHURRIED,
        _ => QUIET,
    }
}

/// Writes when a pod last came to a node or left it; returns what could not be written.
async fn stamp(context: &Context, permits: &Semaphore, node: Arc<str>, at: Timestamp) -> Option<(Arc<str>, Timestamp)> {
    let _permit = permits.acquire().await.ok()?;
    let claim = claim_of(context, &node)?;
    let claims: Api<NodeClaim> = Api::all(context.client.clone());
    let patch = json!({ "metadata": { "uid": claim.uid() }, "status": { "lastPodEventTime": format!("{at:.0}") } });
    match claims.patch_status(&claim.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => None,
        // it has gone, or is another of that name
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => None,
        Err(error) => {
            tracing::debug!(NodeClaim.name = claim.name_any(), %error, "could not stamp the last pod event, trying again");
            Some((node, at))
        }
    }
}

/// Knows the pods that were seen without a node, and those that were seen before they were ready. Others may have waited for long before this
/// process began to look.
#[derive(Default)]
struct Waits {
    unbound: HashSet<PodKey>,
    unready: HashSet<PodKey>,
}

impl Waits {
    /// Notes a pod as it is now; returns after how many seconds it was bound, and was ready, when it has just become so.
    fn note(&mut self, key: &PodKey, pod: Option<&Pod>, now: Timestamp) -> (Option<f64>, Option<f64>) {
        let Some(pod) = pod else {
            self.unbound.remove(key);
            self.unready.remove(key);
            return (None, None);
        };
        let waited = pod.created.map(|created| now.duration_since(created).as_secs_f64().max(0.0));
        if pod.node.is_none() {
            self.unbound.insert(key.clone());
        }
        if pod.phase == Phase::Pending {
            self.unready.insert(key.clone());
        }
        let bound = pod.node.is_some() && self.unbound.remove(key);
        let ready = pod.phase == Phase::Running && pod.ready && self.unready.remove(key);
        (waited.filter(|_| bound), waited.filter(|_| ready))
    }
}

/// Gathers events by node.
#[derive(Default)]
struct Stamps {
    waiting: HashMap<Arc<str>, Waiting>,
    written: HashMap<Arc<str>, Instant>,
}

struct Waiting {
    /// The last event.
    at: Timestamp,
    /// When the first event after the last stamp was noted.
    noted: Instant,
    /// How far apart stamps of the node's claim are at least.
    pause: Duration,
}

impl Stamps {
    fn note(&mut self, node: Arc<str>, at: Timestamp, now: Instant, pause: impl FnOnce(&str) -> Duration) {
        match self.waiting.entry(node) {
            Entry::Occupied(mut waiting) => {
                let last = &mut waiting.get_mut().at;
                *last = at.max(*last);
            }
            Entry::Vacant(place) => {
                let pause = pause(place.key());
                place.insert(Waiting { at, noted: now, pause });
            }
        }
    }

    /// Takes the stamps that may be written now.
    fn ripe(&mut self, now: Instant) -> Vec<(Arc<str>, Timestamp)> {
        self.written.retain(|_, at| now.duration_since(*at) < UNHURRIED);
        let written = &self.written;
        let may = |node: &str, waiting: &Waiting| {
            let first = (waiting.pause == UNHURRIED).then_some(waiting.noted);
            written.get(node).copied().or(first).is_none_or(|since| now.duration_since(since) >= waiting.pause)
        };
        let ripe =
            self.waiting.extract_if(|node, waiting| may(node, waiting)).map(|(node, waiting)| (node, waiting.at));
        let ripe: Vec<_> = ripe.collect();
        self.written.extend(ripe.iter().map(|(node, _)| (node.clone(), now)));
        ripe
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::testing::{Server, status};
    use super::*;

    const PATCH: &str = "PATCH nodeclaims/c/status";

    /// An API server with a node, and its claim.
    fn server() -> Server {
        let id = "aws:///us-east-1a/i-1";
        let class = json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" });
        Server::of([
            json!({ "kind": "Node", "metadata": { "name": "n", "uid": "n" }, "spec": { "providerID": id } }),
            json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": "c", "uid": "c" },
                "spec": { "requirements": [], "nodeClassRef": class }, "status": { "providerID": id },
            }),
        ])
    }

    #[tokio::test]
    async fn a_stamp_that_was_not_answered_is_to_be_written_again() {
        let (server, permits) = (server(), Semaphore::new(1));
        let context = server.context().await;
        let at = Timestamp::from_second(1_800_000_000).expect("a time");
        let stamp = || stamp(&context, &permits, "n".into(), at);
        let again = Some((Arc::from("n"), at));
        server.answer(PATCH, None, json!(null));
        assert_eq!(stamp().await, again, "nobody answered");
        server.answer(PATCH, Some(503), status(503, "ServiceUnavailable"));
        assert_eq!(stamp().await, again);
        for (code, reason) in [(404, "NotFound"), (409, "Conflict")] {
            server.answer(PATCH, Some(code), status(code, reason));
            assert_eq!(stamp().await, None, "{reason}: it is another claim, or none");
        }
        assert_eq!(server.get("nodeclaims/c")["status"]["lastPodEventTime"], json!(null));
        assert_eq!(stamp().await, None);
        assert_eq!(server.get("nodeclaims/c")["status"]["lastPodEventTime"], json!("2027-01-15T08:00:00Z"));
        assert_eq!(permits.available_permits(), 1);
    }

    #[tokio::test]
    async fn an_event_whose_stamp_was_not_answered_is_not_lost() {
        let server = server();
        let context = server.context().await;
        server.answer(PATCH, None, json!(null));
        let stop = CancellationToken::new();
        let began = Timestamp::now();
        let test = async {
            // it listens once it has been polled
            tokio::task::yield_now().await;
            let key = PodKey::new("default", "p");
            let node = Some(Arc::from("n"));
            context.stores.announce(Change::Pod { key, node, pending: false, moved: true, pod: None });
            let limit = Instant::now() + 3 * QUIET;
            while server.get("nodeclaims/c")["status"]["lastPodEventTime"].is_null() {
                assert!(Instant::now() < limit, "it is not written");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            stop.cancel();
        };
        tokio::join!(run(context.clone(), stop.clone()), test);
        assert_eq!(server.asked(PATCH), 2);
        let told = server.get("nodeclaims/c")["status"]["lastPodEventTime"].as_str().map(str::to_owned);
        let told: Timestamp = told.and_then(|told| told.parse().ok()).expect("a time");
        let late = told.duration_since(began).as_secs();
        assert!((-1..=2).contains(&late), "it tells when the pod came, not when it was written: {late} s");
    }

    /// An API server with the node and its claim, whose last event was at noon, and pods on it.
    fn with_pods(pods: impl IntoIterator<Item = Value>) -> Server {
        let server = server();
        let mut claim = server.get("nodeclaims/c");
        let initialized =
            json!({ "type": "Initialized", "status": "True", "lastTransitionTime": "2026-01-01T11:00:00Z" });
        claim["status"]["nodeName"] = json!("n");
        claim["status"]["conditions"] = json!([initialized]);
        claim["status"]["lastPodEventTime"] = json!("2026-01-01T12:00:00Z");
        server.put(claim);
        pods.into_iter().for_each(|pod| server.put(pod));
        server
    }

    fn started(name: &str, at: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default", "uid": name },
            "spec": { "nodeName": "n", "containers": [{ "name": "c" }] },
            "status": { "phase": "Running", "startTime": at },
        })
    }

    #[tokio::test]
    async fn pods_that_came_while_nobody_stamped_claims_are_told_of() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let now = at("2026-01-01T13:00:00Z");
        let of = async |pods: Vec<Value>| missed(with_pods(pods).context().await.as_ref(), now);
        let (before, later) = (started("before", "2026-01-01T12:00:03Z"), started("later", "2026-01-01T12:30:00Z"));
        assert!(of(vec![before.clone()]).await.is_empty(), "it was bound at noon");
        assert_eq!(of(vec![before, later.clone()]).await, [("n".into(), at("2026-01-01T12:30:00Z"))]);
        let mut bound = later.clone();
        bound["status"] = json!({ "phase": "Pending" });
        assert_eq!(of(vec![bound]).await, [("n".into(), now)], "it was bound a moment ago");
        let (mut daemons, mut ended) = (later.clone(), later);
        let owner =
            json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true });
        daemons["metadata"]["ownerReferences"] = json!([owner]);
        ended["status"]["phase"] = json!("Succeeded");
        assert!(of(vec![daemons]).await.is_empty() && of(vec![ended]).await.is_empty());
    }

    #[tokio::test]
    async fn a_claim_is_stamped_when_somebody_begins_to() {
        let server = with_pods([started("later", "2026-01-01T12:30:00Z")]);
        let context = server.context().await;
        let stop = CancellationToken::new();
        let test = async {
            let limit = Instant::now() + 3 * QUIET;
            while server.asked(PATCH) == 0 {
                assert!(Instant::now() < limit, "it is not written");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            stop.cancel();
        };
        tokio::join!(run(context.clone(), stop.clone()), test);
        assert_eq!(server.get("nodeclaims/c")["status"]["lastPodEventTime"], json!("2026-01-01T12:30:00Z"));
    }

    #[test]
    fn a_burst_is_written_at_once_and_its_end_after_the_quiet_time() {
        let (mut stamps, start) = (Stamps::default(), Instant::now());
        let at = |second| Timestamp::from_second(second).expect("a time");
        let pause = |node: &str| if node == "n" { QUIET } else { UNHURRIED };
        let later = |seconds: u64| start + Duration::from_secs(seconds);
        stamps.note("n".into(), at(1), start, pause);
        stamps.note("unhurried".into(), at(1), start, pause);
        assert_eq!(stamps.ripe(start), [("n".into(), at(1))]);
        stamps.note("n".into(), at(2), later(1), pause);
        stamps.note("n".into(), at(3), later(1), pause);
        stamps.note("unhurried".into(), at(3), later(1), pause);
        assert!(stamps.ripe(later(1)).is_empty());
        assert_eq!(stamps.ripe(start + QUIET), [("n".into(), at(3))]);
        assert!(stamps.ripe(start + 3 * QUIET).is_empty());
        assert_eq!(stamps.ripe(start + UNHURRIED), [("unhurried".into(), at(3))]);
        assert!(stamps.ripe(start + 2 * UNHURRIED).is_empty());
        // what could not be written is older than what has come since
        let end = start + 3 * UNHURRIED;
        stamps.note("n".into(), at(9), end, pause);
        stamps.note("n".into(), at(3), end, pause);
        assert_eq!(stamps.ripe(end), [("n".into(), at(9))]);
    }

    #[test]
    fn waits_are_told_once_and_of_pods_that_were_seen_waiting() {
        let pod = |node: Option<&str>, phase: &str, ready: &str| {
            let object = json!({
                "metadata": { "name": "p", "namespace": "default", "creationTimestamp": "1970-01-01T00:00:00Z" },
                "spec": { "nodeName": node, "containers": [{ "name": "c" }] },
                "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": ready }] },
            });
            Pod::from_kube(&serde_json::from_value(object).expect("a pod")).expect("a readable pod")
        };
        let at = |second| Timestamp::from_second(second).expect("a time");
        let (mut waits, key) = (Waits::default(), PodKey::new("default", "p"));
        let runs = pod(Some("n"), "Running", "True");
        assert_eq!(waits.note(&key, Some(&runs), at(5)), (None, None), "who knows for how long");
        assert_eq!(waits.note(&key, Some(&pod(None, "Pending", "False")), at(6)), (None, None));
        assert_eq!(waits.note(&key, Some(&pod(Some("n"), "Pending", "False")), at(7)), (Some(7.0), None));
        assert_eq!(waits.note(&key, Some(&pod(Some("n"), "Running", "False")), at(8)), (None, None));
        assert_eq!(waits.note(&key, Some(&runs), at(9)), (None, Some(9.0)));
        assert_eq!(waits.note(&key, Some(&runs), at(10)), (None, None));
        waits.note(&key, Some(&pod(None, "Pending", "False")), at(11));
        assert_eq!(waits.note(&key, None, at(12)), (None, None));
        assert!(waits.unbound.is_empty() && waits.unready.is_empty());
    }
}

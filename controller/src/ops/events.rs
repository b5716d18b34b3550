//! Events on pods, nodes and claims, under Karpenter's reasons, each said once in a while.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use karp_domain::pace::{Bucket, Rate};
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use moka::sync::Cache;
use tokio::sync::Semaphore;

/// Equal events on one object are said again after this long (Karpenter: 2 min).
const QUIET: Duration = Duration::from_secs(120);
/// A pod's scheduling failure is said again after this long (Karpenter: 5 min), and so is why its pools have nothing for it.
const QUIET_FAILED_SCHEDULING: Duration = Duration::from_secs(300);
/// Unconsolidatable is said again after this long (Karpenter: 15 min), and so is
/// what lasts: on a pod, on a node that must stay or is short of something, or on one that has hours to drain.
const QUIET_UNCONSOLIDATABLE: Duration = Duration::from_secs(900);
/// So many pods are told at once where they go, and then one every so often: of thousands that come at a time each is like the others, and what
/// they are told is a tenth of all that the API server is asked meanwhile (Karpenter: ten at once, and five a second).
const NOMINATIONS: Rate = Rate { every: Duration::from_secs(1), burst: 60 };
/// Why nodes stay is told of so many at once, and then so often: after a burst it is news of hundreds of nodes, and of their claims.
const STAYS: Rate = Rate { every: Duration::from_millis(200), burst: 60 };
/// A recorder takes what is said again within this for the same event (as kube has it), and counts it up.
const COUNTED: Duration = Duration::from_secs(360);
/// Most events remembered for repetition; beyond it the oldest may be said again.
const REMEMBERED: u64 = 20_000;
/// Events on their way to the API server at a time: a thousand interruptions tell three thousand, and what is recorded comes first.
const PUBLISHED_AT_ONCE: usize = 8;
/// Events that may wait for their turn; beyond it they are left out, as they only tell.
const WAITING: usize = 10_000;
/// The API server refuses longer notes.
const NOTE_BYTES: usize = 1024;

/// Names what happened, in Karpenter's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are Karpenter's reasons
pub enum Reason {
    Nominated,
    FailedScheduling,
    NoCompatibleInstanceTypes,
    DisruptionBlocked,
    DisruptionLaunching,
    DisruptionTerminating,
    DisruptionWaitingReadiness,
    Unconsolidatable,
    ConsolidationCandidate,
    ConsolidationApproved,
    ConsolidationRejected,
    InvalidDoNotDisruptAnnotation,
    DoNotDisruptUntil,
    DoNotDisruptGracePeriodElapsed,
    NodeRepairBlocked,
    Disrupted,
    Evicted,
    FailedDraining,
    TerminationGracePeriodExpiring,
    FailedTermination,
    FailedConsistencyCheck,
    AwaitingVolumeDetachment,
    InsufficientCapacityError,
    NodeClassNotReady,
    UnregisteredTaintMissing,
    SpotInterrupted,
    SpotRebalanceRecommendation,
    CapacityReservationInstanceInterrupted,
    InstanceStopping,
    InstanceTerminating,
    InstanceUnhealthy,
    TerminatingOnInterruption,
    WaitingOnNodeClaimTermination,
    LaunchFailed,
    GarbageCollectionBlocked,
    ValidationFailed,
}

impl Reason {
    fn quiet(self) -> Duration {
        match self {
            Self::FailedScheduling | Self::NoCompatibleInstanceTypes => QUIET_FAILED_SCHEDULING,
            Self::Unconsolidatable
            | Self::DisruptionBlocked
            | Self::NodeRepairBlocked
            | Self::TerminationGracePeriodExpiring
            | Self::FailedConsistencyCheck
            | Self::InvalidDoNotDisruptAnnotation
            | Self::DoNotDisruptUntil
            | Self::DoNotDisruptGracePeriodElapsed => QUIET_UNCONSOLIDATABLE,
            _ => QUIET,
        }
    }

    fn severity(self) -> EventType {
        match self {
            Self::FailedScheduling
            | Self::NoCompatibleInstanceTypes
            | Self::FailedDraining
            | Self::TerminationGracePeriodExpiring
            | Self::FailedTermination
            | Self::FailedConsistencyCheck
            | Self::InsufficientCapacityError
            | Self::NodeClassNotReady
            | Self::UnregisteredTaintMissing
            | Self::NodeRepairBlocked
            | Self::InvalidDoNotDisruptAnnotation
            | Self::SpotInterrupted
            | Self::InstanceStopping
            | Self::InstanceTerminating
            | Self::InstanceUnhealthy
            | Self::TerminatingOnInterruption
            | Self::LaunchFailed
            | Self::GarbageCollectionBlocked
            | Self::ValidationFailed => EventType::Warning,
            _ => EventType::Normal,
        }
    }
}

type Key = (Reason, String, String, String);

/// Publishes events, without making anybody wait.
#[derive(Clone)]
pub struct Events {
    client: Client,
    reporter: Reporter,
    /// When each was said last, and by which recorder: one that is used for all takes what has the same reason and object for the same, and repeats the
    /// first note. A recorder takes kilobytes, and is kept only where it can count up.
    said: Cache<Key, (std::time::Instant, Option<Recorder>)>,
    turns: Arc<Semaphore>,
    room: Arc<Semaphore>,
    nominations: Arc<Mutex<Bucket>>,
    stays: Arc<Mutex<Bucket>>,
    blocked: Arc<Mutex<Bucket>>,
    begun: std::time::Instant,
}

impl Events {
    /// Makes the publisher for this process.
    pub fn new(client: Client, instance: Option<String>) -> Self {
        let reporter = Reporter { controller: "karpenter".to_owned(), instance };
        let said = Cache::builder().max_capacity(REMEMBERED).time_to_live(QUIET_UNCONSOLIDATABLE).build();
        let [nominations, stays, blocked] =
            [NOMINATIONS, STAYS, STAYS].map(|rate| Arc::new(Mutex::new(Bucket::new(rate))));
        let begun = std::time::Instant::now();
        let [turns, room] = [PUBLISHED_AT_ONCE, WAITING].map(|at_once| Arc::new(Semaphore::new(at_once)));
        Self { client, reporter, said, turns, room, nominations, stays, blocked, begun }
    }

    /// Publishes an event about an object unless the same was said a short while ago.
    pub fn publish(&self, about: &ObjectReference, reason: Reason, note: impl Into<String>) {
        let note = shorten(note.into());
        let key = (reason, about.kind.clone().unwrap_or_default(), about.uid.clone().unwrap_or_default(), note.clone());
        let known = self.said.get(&key);
        if known.as_ref().is_some_and(|(at, _)| at.elapsed() < reason.quiet()) {
            return;
        }
        // what is left out now is told when it is found again
        if !self.may_tell(reason) {
            return;
        }
        let Ok(place) = self.room.clone().try_acquire_owned() else {
            tracing::warn!(reason = format!("{reason:?}"), "too many events wait to be told, leaving one out");
            return;
        };
        let new = || Recorder::new(self.client.clone(), self.reporter.clone());
        let recorder = known.and_then(|(_, recorder)| recorder).unwrap_or_else(new);
        let kept = (reason.quiet() < COUNTED).then(|| recorder.clone());
        self.said.insert(key, (std::time::Instant::now(), kept));
        let event = Event {
            type_: reason.severity(),
            reason: format!("{reason:?}"),
            note: Some(note),
            action: format!("{reason:?}"),
            secondary: None,
        };
        let (about, turns) = (about.clone(), self.turns.clone());
        tokio::spawn(async move {
            let turn = turns.acquire().await;
            if let Err(error) = recorder.publish(&event, &about).await {
                tracing::debug!(%error, reason = event.reason, "event was not accepted");
            }
            drop((turn, place));
        });
    }

    fn may_tell(&self, reason: Reason) -> bool {
        let bucket = match reason {
            Reason::Nominated => &self.nominations,
            Reason::Unconsolidatable => &self.stays,
            Reason::DisruptionBlocked => &self.blocked,
            _ => return true,
        };
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(self.begun.elapsed())
    }
}

/// Cuts a note at the API server's limit, at a character.
fn shorten(mut note: String) -> String {
    if note.len() > NOTE_BYTES {
        let mut end = NOTE_BYTES - "…".len();
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        note.truncate(end);
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn many_events_are_told_a_few_at_a_time() {
        let (now, most, all) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let counts = Arc::new([now, most, all]);
        let shared = counts.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let counts = shared.clone();
            async move {
                let [now, most, all] = &*counts;
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let body = request.into_body().collect_bytes().await.expect("a body");
                tokio::time::sleep(Duration::from_millis(5)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                all.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Infallible>(Response::new(Body::from(body)))
            }
        });
        let events = Events::new(Client::new(service, "default"), None);
        for n in 0..100 {
            let about = serde_json::from_value(json!({ "kind": "Node", "name": "n", "uid": n.to_string() }));
            events.publish(&about.expect("a reference"), Reason::SpotInterrupted, "it goes");
        }
        let [_, most, all] = &*counts;
        let told = async {
            while all.load(Ordering::SeqCst) < 100 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), told).await.expect("all are told");
        assert_eq!(most.load(Ordering::SeqCst), PUBLISHED_AT_ONCE);
    }

    /// A pod whose reason to wait changes is described with today's, not with the first one said again.
    #[tokio::test]
    async fn each_note_is_told_in_an_event_of_its_own() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let shared = told.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let told = shared.clone();
            async move {
                let method = request.method().clone();
                let body = request.into_body().collect_bytes().await.expect("a body");
                let event: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
                told.lock().expect("free").push((method, event["note"].as_str().map(str::to_owned)));
                Ok::<_, Infallible>(Response::new(Body::from(body)))
            }
        });
        let events = Events::new(Client::new(service, "default"), None);
        let about: ObjectReference =
            serde_json::from_value(json!({ "kind": "Pod", "name": "p", "uid": "u" })).expect("a reference");
        for (at, note) in ["no room", "no type", "no room"].into_iter().enumerate() {
            events.publish(&about, Reason::FailedScheduling, note);
            let all = async {
                while told.lock().expect("free").len() < (at + 1).min(2) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), all).await.expect("it is told");
        }
        let post = |note: &str| (http::Method::POST, Some(note.to_owned()));
        assert_eq!(*told.lock().expect("free"), [post("no room"), post("no type")], "the third was said a moment ago");
    }

    #[tokio::test]
    async fn why_nodes_stay_is_told_of_so_many_at_once() {
        let service =
            tower::service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::from(Vec::new()))) });
        let client = Client::new(service, "default");
        for reason in [Reason::Unconsolidatable, Reason::DisruptionBlocked] {
            let events = Events::new(client.clone(), None);
            let told = (0..1000).filter(|_| events.may_tell(reason)).count();
            assert!((60..100).contains(&told), "{reason:?}: {told}");
        }
    }

    #[test]
    fn long_notes_are_cut_at_a_character() {
        let cut = shorten("ä".repeat(2000));
        assert!(cut.len() <= NOTE_BYTES && cut.ends_with('…'));
        assert_eq!(shorten("short".to_owned()), "short");
    }
}

//! Events on pods, nodes and claims, under Karpenter's reasons, each said once in a while.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use moka::sync::Cache;

/// Equal events on one object are said again after this long (Karpenter: 2 min).
const QUIET: Duration = Duration::from_secs(120);
/// A pod's scheduling failure is said again after this long (Karpenter: 5 min).
const QUIET_FAILED_SCHEDULING: Duration = Duration::from_secs(300);
/// Unconsolidatable is said again after this long (Karpenter: 15 min).
const QUIET_UNCONSOLIDATABLE: Duration = Duration::from_secs(900);
/// Most events remembered for repetition; beyond it the oldest may be said again.
const REMEMBERED: u64 = 20_000;
/// The API server refuses longer notes.
const NOTE_BYTES: usize = 1024;

/// Names what happened, in Karpenter's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are Karpenter's reasons
pub enum Reason {
    Nominated,
    FailedScheduling,
    DisruptionBlocked,
    DisruptionLaunching,
    DisruptionTerminating,
    DisruptionWaitingReadiness,
    Unconsolidatable,
    NodeRepairBlocked,
    Disrupted,
    Evicted,
    FailedDraining,
    FailedTermination,
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
            Self::FailedScheduling => QUIET_FAILED_SCHEDULING,
            Self::Unconsolidatable | Self::NodeRepairBlocked => QUIET_UNCONSOLIDATABLE,
            _ => QUIET,
        }
    }

    fn severity(self) -> EventType {
        match self {
            Self::FailedScheduling
            | Self::FailedDraining
            | Self::FailedTermination
            | Self::InsufficientCapacityError
            | Self::NodeClassNotReady
            | Self::UnregisteredTaintMissing
            | Self::NodeRepairBlocked
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
    recorder: Recorder,
    said: Cache<Key, std::time::Instant>,
}

impl Events {
    /// Makes the publisher for this process.
    pub fn new(client: Client, instance: Option<String>) -> Self {
        let recorder = Recorder::new(client, Reporter { controller: "karpenter".to_owned(), instance });
        let said = Cache::builder().max_capacity(REMEMBERED).time_to_live(QUIET_UNCONSOLIDATABLE).build();
        Self { recorder, said }
    }

    /// Publishes an event about an object unless the same was said a short while ago.
    pub fn publish(&self, about: &ObjectReference, reason: Reason, note: impl Into<String>) {
        let note = shorten(note.into());
        let key = (reason, about.kind.clone().unwrap_or_default(), about.uid.clone().unwrap_or_default(), note.clone());
        if self.said.get(&key).is_some_and(|at| at.elapsed() < reason.quiet()) {
            return;
        }
        self.said.insert(key, std::time::Instant::now());
        let event = Event {
            type_: reason.severity(),
            reason: format!("{reason:?}"),
            note: Some(note),
            action: format!("{reason:?}"),
            secondary: None,
        };
        let (recorder, about) = (self.recorder.clone(), about.clone());
        tokio::spawn(async move {
            if let Err(error) = recorder.publish(&event, &about).await {
                tracing::debug!(%error, reason = event.reason, "event was not accepted");
            }
        });
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
    use super::*;

    #[test]
    fn long_notes_are_cut_at_a_character() {
        let cut = shorten("ä".repeat(2000));
        assert!(cut.len() <= NOTE_BYTES && cut.ends_with('…'));
        assert_eq!(shorten("short".to_owned()), "short");
    }
}

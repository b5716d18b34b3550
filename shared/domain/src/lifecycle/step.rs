//! The next step of a claim.

use jiff::{SignedDuration, Timestamp};

use super::initialization::{self, Obstacle};
use crate::api::conditions::{self, ConditionStatus};
use crate::api::{NodeClaim, labels};
use crate::cluster::Node;

/// An instance that was not launched this long after the first try never will be (Karpenter: 5 min from the claim's creation).
pub const LAUNCH_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);
/// The controller's clock and the API server's differ by this at most.
const WORST_SKEW: SignedDuration = SignedDuration::from_mins(10);
/// A node that has not joined after this long never will (Karpenter: 15 min).
pub const REGISTRATION_TIMEOUT: SignedDuration = SignedDuration::from_mins(15);
/// Drift is looked at this often (Karpenter: 5 min).
pub const DRIFT_INTERVAL: SignedDuration = SignedDuration::from_mins(5);
/// A node that is not initialized yet is looked at this often, besides at each change.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(10);
/// A node has what its claim was promised when it has so many of a hundred parts of it (Karpenter: 90 %).
const CONSISTENT_PERCENT: i128 = 90;

/// Says what to do with a claim now, and when to look at it again although nothing changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    /// What to do.
    pub step: Step,
    /// When to look again at the latest; none when only a change can matter.
    pub look: Option<Timestamp>,
}

/// Says what to do with a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing: it belongs to another controller's node class.
    Leave,
    /// Take it to its end: deletion was asked for.
    End,
    /// Add the finalizer, so that it cannot go before its instance.
    Guard,
    /// Ask the cloud for its instance.
    Launch,
    /// Wait for its node.
    AwaitNode,
    /// Wait: its node has joined without the taint that keeps pods off until the claim's labels and taints are on it.
    AwaitTaint {
        /// What is wrong, in words for a condition and an event.
        message: String,
    },
    /// Give the node what the claim says and open it.
    Register,
    /// Wait until nothing stands between the node and its pods.
    AwaitReady(Obstacle),
    /// Mark it initialized.
    Initialize,
    /// Keep its informational conditions true.
    Live(Live),
    /// Tell that its node is gone; collection ends the claim when it does not come back.
    Lose,
    /// Delete it: it came to nothing, its pods are planned for again.
    GiveUp(Timeout),
}

/// Holds what the informational conditions of a node that runs should say.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// `Consolidatable`: nothing came or went for as long as the pool wants.
    pub consolidatable: bool,
    /// `ConsistentStateFound`: what is wrong with the node's size, if anything.
    pub inconsistency: Option<String>,
}

/// Names the time limit that a claim did not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// [`LAUNCH_TIMEOUT`]
    Launch,
    /// [`REGISTRATION_TIMEOUT`]
    Registration,
}

impl Timeout {
    /// Answers the word for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Timeout::Launch => "launch_timeout",
            Timeout::Registration => "registration_timeout",
        }
    }
}

/// Answers the next step of a claim. `node` is the node of its instance; `quiet` is the pool's `consolidateAfter`, none for Never or
/// when there is no pool.
///
/// A claim that cannot be read otherwise still has a next step, so that it keeps its time limits and can always end.
pub fn next(claim: &NodeClaim, node: Option<&Node>, quiet: Option<SignedDuration>, now: Timestamp) -> Next {
    if !claim.spec.node_class_ref.is_ours() {
        return Next { step: Step::Leave, look: None };
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Next { step: Step::End, look: None };
    }
    let finalizers = claim.metadata.finalizers.as_deref().unwrap_or_default();
    if finalizers.iter().all(|known| known != labels::TERMINATION_FINALIZER) {
        return Next { step: Step::Guard, look: Some(now) };
    }
    if !is_true(claim, conditions::LAUNCHED) {
        return before(launch_begin(claim, now), LAUNCH_TIMEOUT, now, Timeout::Launch, Step::Launch);
    }
    if !is_true(claim, conditions::REGISTERED) {
        return joining(claim, node, now);
    }
    let Some(node) = node else { return Next { step: Step::Lose, look: None } };
    if !is_true(claim, conditions::INITIALIZED) {
        return match initialization::obstacle(claim, node) {
            Some(obstacle) => Next { step: Step::AwaitReady(obstacle), look: Some(later(now, LOOK_AGAIN)) },
            None => Next { step: Step::Initialize, look: Some(now) },
        };
    }
    live(claim, node, quiet, now)
}

/// Since when a launch is tried: since the first try was noted to have come to nothing, by this controller's own clock. The creation is by
/// the API server's: it counts only where nothing was noted, and only once no difference between clocks can explain it.
fn launch_begin(claim: &NodeClaim, now: Timestamp) -> Timestamp {
    let created = claim.metadata.creation_timestamp.as_ref().map_or(now, |time| later(time.0, WORST_SKEW));
    begun(claim).unwrap_or(created)
}

/// Answers when what became of the launch was noted last: that it came to nothing yet, or to an instance. By this controller's own clock.
pub(super) fn begun(claim: &NodeClaim) -> Option<Timestamp> {
    let noted = conditions::get(&claim.status.as_ref()?.conditions, conditions::LAUNCHED)?;
    Some(noted.last_transition_time)
}

/// The way from the launch to the registered node. A node that was lost has the whole time again to come back, and is not given up
/// here: many lost nodes at once are a matter for the collector, which never takes much at once.
fn joining(claim: &NodeClaim, node: Option<&Node>, now: Timestamp) -> Next {
    match node {
        Some(node) if node.is_registered() => Next { step: Step::Register, look: Some(now) },
        Some(node) if node.taints.iter().any(|taint| taint.key == labels::UNREGISTERED) => {
            Next { step: Step::Register, look: Some(now) }
        }
        _ if was_registered(claim) => Next { step: Step::AwaitNode, look: None },
        joined => {
            let step = match joined {
                None => Step::AwaitNode,
                Some(node) => {
                    let message = format!("Node {} is missing taint {}", node.name, labels::UNREGISTERED);
                    Step::AwaitTaint { message }
                }
            };
            let launched = since(claim, conditions::LAUNCHED).unwrap_or(now);
            before(launched, REGISTRATION_TIMEOUT, now, Timeout::Registration, step)
        }
    }
}

/// Answers whether a claim once had its node.
pub(super) fn was_registered(claim: &NodeClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.node_name.as_ref().is_some_and(|name| !name.is_empty()))
}

fn live(claim: &NodeClaim, node: &Node, quiet: Option<SignedDuration>, now: Timestamp) -> Next {
    let last_event = claim.status.as_ref().and_then(|status| status.last_pod_event_time);
    let settles = quiet.zip(since(claim, conditions::INITIALIZED).max(last_event)).map(|(q, last)| later(last, q));
    let live = Live { consolidatable: settles.is_some_and(|at| at <= now), inconsistency: inconsistency(claim, node) };
    let look =
        settles.filter(|at| *at > now).map_or(later(now, DRIFT_INTERVAL), |at| at.min(later(now, DRIFT_INTERVAL)));
    Next { step: Step::Live(live), look: Some(look) }
}

/// Answers what the node lacks of what its claim was promised, of the resources that its pods asked for.
fn inconsistency(claim: &NodeClaim, node: &Node) -> Option<String> {
    let promised = claim.status.as_ref()?.capacity.as_ref()?;
    claim.spec.resources.requests.iter().filter(|(_, wanted)| wanted.is_positive()).find_map(|(name, _)| {
        let (promised, found) = (promised.get(name), node.capacity.get(name));
        let short = found.nanos() * 100 < promised.nanos() * CONSISTENT_PERCENT;
        short.then(|| format!("expected {promised} of resource {name}, but found {found}"))
    })
}

/// Answers a step that is worth while until a time limit, or that the limit is over.
fn before(start: Timestamp, limit: SignedDuration, now: Timestamp, timeout: Timeout, step: Step) -> Next {
    let end = later(start, limit);
    if now >= end { Next { step: Step::GiveUp(timeout), look: None } } else { Next { step, look: Some(end) } }
}

pub(super) fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// Returns whether a condition of a claim is true.
pub fn is_true(claim: &NodeClaim, kind: &str) -> bool {
    claim.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, kind))
}

/// Says whether pods can go to a claim's node, as far as the claim tells. Initialized stays true once it was: a node that was lost since, or that
/// is to go, is ready no more.
pub fn is_ready(claim: &NodeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none()
        && is_true(claim, conditions::REGISTERED)
        && is_true(claim, conditions::INITIALIZED)
}

/// Returns since when a condition of a claim has been true.
pub fn since(claim: &NodeClaim, kind: &str) -> Option<Timestamp> {
    let condition = conditions::get(&claim.status.as_ref()?.conditions, kind)?;
    (condition.status == ConditionStatus::True).then_some(condition.last_transition_time)
}

/// Returns the instance of a claim; an empty id is none.
pub fn provider_id(claim: &NodeClaim) -> Option<&str> {
    claim.status.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
}

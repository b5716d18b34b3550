//! What holds a node that is on its way out: its pods, then its volumes, then its instance.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::Arc;

use jiff::Timestamp;
use karp_domain::api::conditions;
use karp_domain::cluster::{Pod, Snapshot};
use karp_domain::disruption::Candidate;
use karp_domain::eviction::{self, Answers, Drain, Held, Hold};
use serde::Serialize;

use super::node::GOES;
use crate::cli::text::DIM;
use crate::cli::world::Attached;

/// Holds how far a node's end is.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Draining {
    since: Timestamp,
    /// When it goes, whatever holds it.
    deadline: Option<Timestamp>,
    waits_for: WaitsFor,
    pods: Vec<Remaining>,
    /// Attached to it.
    volumes: Vec<Volume>,
    /// Until when they are waited for, known once the pods are gone, and whether that is yet to come.
    volumes_until: Option<Timestamp>,
    volumes_waited_for: bool,
}

/// What comes next in a node's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum WaitsFor {
    Pods,
    Volumes,
    Instance,
}

/// A volume that is still attached.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    #[serde(flatten)]
    attached: Attached,
    /// Why it is not waited for, if it never is.
    #[serde(skip_serializing_if = "Option::is_none")]
    exempt: Option<Exempt>,
}

/// Why a volume is never waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Exempt {
    /// Other nodes can have it at the same time.
    Shared,
    /// Its pod stays until the node's end.
    Stays,
}

/// A pod that is still there.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Remaining {
    pod: String,
    reason: String,
    /// The same as data.
    why: Hold,
    waited_for: bool,
    /// When it is deleted, whatever holds it.
    forced_at: Option<Timestamp>,
}

impl Draining {
    /// Says how far a node's end is by the controller's own rules; nothing when its deletion was not asked for.
    pub fn of(snapshot: &Snapshot, candidate: &Candidate, attached: impl Fn(&str) -> Vec<Attached>) -> Option<Self> {
        let claim = snapshot.claims.iter().find(|claim| claim.name == candidate.claim);
        let node = snapshot.nodes.iter().find(|node| Some(&node.name) == candidate.node.as_ref());
        let asked = claim.and_then(|claim| claim.deleting);
        let since = node.and_then(|node| node.deleting).or(asked)?;
        let none = Default::default();
        let annotations = node.map_or(&none, |node| &node.annotations);
        let deadline = eviction::deadline(claim.map(|claim| &claim.annotations), annotations);
        let name = node.map(|node| &*node.name);
        let here = |pod: &&Arc<Pod>| name.is_some() && pod.node.as_deref() == name && !snapshot.is_virtual(&pod.key);
        let pods: Vec<Arc<Pod>> = snapshot.pods.iter().filter(here).cloned().collect();
        let drain = Drain { pods: &pods, since, deadline, answers: &Answers::default() };
        let held = eviction::holds(&drain, &snapshot.budgets, snapshot.now);
        let kept: BTreeSet<String> =
            eviction::kept_claims(&pods, snapshot.now).map(|claim| claim.to_string()).collect();
        let pods: Vec<Remaining> = held.into_iter().map(Remaining::from).collect();
        let volumes = name.map(attached).unwrap_or_default().into_iter();
        let volumes: Vec<Volume> =
            volumes.map(|attached| Volume { exempt: exempt(&attached, &kept), attached }).collect();
        let drained = claim.and_then(|claim| claim.since(conditions::DRAINED));
        let volumes_until = drained.map(|drained| eviction::detached_by(drained, deadline));
        let volumes_waited_for = volumes_until.is_none_or(|until| snapshot.now < until);
        let waits_for = if pods.iter().any(|pod| pod.waited_for) {
            WaitsFor::Pods
        } else if volumes_waited_for && volumes.iter().any(|volume| volume.exempt.is_none()) {
            WaitsFor::Volumes
        } else {
            WaitsFor::Instance
        };
        Some(Draining { since, deadline, waits_for, pods, volumes, volumes_until, volumes_waited_for })
    }

    /// Writes what follows the node's name.
    pub fn write(&self, out: &mut String) -> fmt::Result {
        let waits = match self.waits_for {
            WaitsFor::Pods => "for its pods",
            WaitsFor::Volumes => "for its volumes to detach",
            WaitsFor::Instance => "for its instance to end",
        };
        write!(out, "{GOES}is draining{GOES:#} since {}, waits {waits}", self.since)?;
        match self.deadline {
            Some(deadline) => writeln!(out, "; goes at {deadline} at the latest")?,
            None => writeln!(out, "; has no deadline (terminationGracePeriod)")?,
        }
        for pod in &self.pods {
            write!(out, "  {}: {}", pod.pod, pod.reason)?;
            match pod.forced_at {
                Some(at) => writeln!(out, " {DIM}(deleted at {at} at the latest){DIM:#}")?,
                None => writeln!(out)?,
            }
        }
        for Volume { attached: Attached { volume, claim, .. }, exempt } in &self.volumes {
            let of = claim.as_ref().map_or_else(String::new, |claim| format!(" of claim {claim}"));
            write!(out, "  volume {volume}{of}: still attached, ")?;
            match (*exempt, self.volumes_until) {
                (Some(Exempt::Shared), _) => writeln!(out, "not waited for: other nodes can have it at the same time")?,
                (Some(Exempt::Stays), _) => writeln!(out, "not waited for: its pod stays until the end")?,
                (None, None) => writeln!(out, "waited for until {:#} after its pods are gone", eviction::DETACH_LIMIT)?,
                (None, Some(until)) if self.volumes_waited_for => writeln!(out, "waited for until {until}")?,
                (None, Some(until)) => writeln!(out, "not waited for since {until}")?,
            }
        }
        Ok(())
    }
}

/// Says why a volume is never waited for, by the claims of pods that stay.
fn exempt(volume: &Attached, kept: &BTreeSet<String>) -> Option<Exempt> {
    let stays = volume.claim.as_ref().is_some_and(|claim| kept.contains(claim));
    if volume.shared { Some(Exempt::Shared) } else { stays.then_some(Exempt::Stays) }
}

impl From<Held> for Remaining {
    fn from(held: Held) -> Self {
        Remaining {
            pod: held.pod.to_string(),
            reason: held.why.to_string(),
            waited_for: held.why.is_waited_for(),
            why: held.why,
            forced_at: held.forced_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_waited_for_that_pods_elsewhere_may_need() {
        let kept = BTreeSet::from(["default/stays".to_owned()]);
        let of = |claim: Option<&str>, shared: bool| {
            exempt(&Attached { volume: "pv".to_owned(), claim: claim.map(str::to_owned), shared }, &kept)
        };
        assert_eq!([of(None, false), of(Some("default/goes"), false)], [None, None]);
        assert_eq!([of(Some("default/stays"), false), of(None, true)], [Some(Exempt::Stays), Some(Exempt::Shared)]);
    }
}

//! Node repair: which conditions of a node, after how long, mean that it is replaced by force, and when so many are ill that the fault is
//! likely elsewhere. The conditions other than Ready are those of EKS's node monitoring agent; times and share are Karpenter's.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;

use crate::api::{NodeClaim, labels};

/// What a node that is ill is given to drain: its pods are deleted within it, so that their owners replace them at once.
const DRAIN: SignedDuration = SignedDuration::from_secs(10);

/// Of so many nodes in a hundred, rounded up, some may be ill at a time; where more are, none is repaired.
const MOST_PERCENT: usize = 20;

/// Conditions, with the status that means a node is ill and the minutes for which that is borne.
const POLICIES: [(&str, &str, i64); 7] = [
    ("Ready", "False", 30),
    ("Ready", "Unknown", 30),
    ("AcceleratedHardwareReady", "False", 10),
    ("StorageReady", "False", 30),
    ("NetworkingReady", "False", 30),
    ("KernelReady", "False", 30),
    ("ContainerRuntimeReady", "False", 30),
];

/// Says what is wrong with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ailment {
    /// The condition that tells.
    pub condition: &'static str,
    /// Its status, `False` or `Unknown`.
    pub status: &'static str,
    /// Since when it says so.
    pub since: Timestamp,
    /// When the node has been ill for too long.
    pub due: Timestamp,
}

impl Ailment {
    /// Reads what is wrong with a node: of several conditions the one that is due first. One that does not tell since when is not heeded.
    pub fn of(conditions: &[core::NodeCondition]) -> Option<Self> {
        let told = conditions.iter().flat_map(|told| {
            let same = |(kind, status, _): &&(&str, &str, i64)| told.type_ == *kind && told.status == *status;
            let since = told.last_transition_time.as_ref().map(|time| time.0);
            POLICIES.iter().filter(same).filter_map(move |(condition, status, minutes)| {
                let since = since?;
                let due = since.checked_add(SignedDuration::from_mins(*minutes)).ok()?;
                Some(Ailment { condition, status, since, due })
            })
        });
        told.min_by_key(|ailment| ailment.due)
    }
}

/// Reads by when a claim's node is drained, if that is written on the claim.
pub fn drained_by(claim: &NodeClaim) -> Option<Timestamp> {
    claim.metadata.annotations.as_ref()?.get(labels::TERMINATION_TIMESTAMP)?.parse().ok()
}

/// Gives the annotation that says by when a claim's node is drained.
pub fn drain_by(at: Timestamp) -> (String, String) {
    (labels::TERMINATION_TIMESTAMP.to_owned(), format!("{at:.0}"))
}

/// Answers by when the node of a claim is drained that is found ill now, unless it is drained sooner anyway.
pub fn cut_short(claim: &NodeClaim, now: Timestamp) -> Option<Timestamp> {
    let end = now + DRAIN;
    drained_by(claim).is_none_or(|at| at > end).then_some(end)
}

/// Counts the nodes that stand or fall together: those of a pool, or of the cluster for claims that no pool made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ward {
    /// How many there are.
    pub nodes: usize,
    /// How many of them are ill, for however short.
    pub ill: usize,
}

impl Ward {
    /// Says whether so many are ill that none is repaired.
    pub const fn is_full(self) -> bool {
        self.ill > (self.nodes * MOST_PERCENT).div_ceil(100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minute)
    }

    fn condition(kind: &str, status: &str, since: Option<i64>) -> core::NodeCondition {
        let since = since.map(|minute| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(minute)));
        core::NodeCondition {
            type_: kind.into(),
            status: status.into(),
            last_transition_time: since,
            ..core::NodeCondition::default()
        }
    }

    #[test]
    fn of_several_conditions_the_first_that_is_due_counts() {
        let healthy = [condition("Ready", "True", Some(0)), condition("MemoryPressure", "False", Some(0))];
        assert_eq!(Ailment::of(&healthy), None);
        let ill = [condition("Ready", "Unknown", Some(0)), condition("AcceleratedHardwareReady", "False", Some(15))];
        let found = Ailment::of(&ill).map(|ailment| (ailment.condition, ailment.status, ailment.since, ailment.due));
        assert_eq!(found, Some(("AcceleratedHardwareReady", "False", at(15), at(25))));
        assert_eq!(Ailment::of(&[condition("Ready", "False", None)]), None);
        assert_eq!(Ailment::of(&[condition("KernelReady", "Unknown", Some(0))]), None);
    }

    #[test]
    fn a_fifth_may_be_ill_and_one_of_a_few() {
        for (nodes, ill, full) in
            [(1, 1, false), (3, 1, false), (3, 2, true), (10, 2, false), (10, 3, true), (11, 3, false)]
        {
            assert_eq!(Ward { nodes, ill }.is_full(), full, "{ill} of {nodes}");
        }
    }
}

//! Why a node that is being emptied is not empty yet: what [`next`] does, told of each pod.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::{Block, Drain, STUCK, Step, Wait, last_moment, later, must_go, next, wave};
use crate::api::labels;
use crate::cluster::{Owner, Phase, Pod, PodBudget, PodKey, blocking};

/// A pod that is still on a node that is being emptied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The pod.
    pub pod: PodKey,
    /// Why it is there.
    pub why: Hold,
    /// When it is deleted, whatever holds it; none if its node has no deadline, or if it ends in time by itself.
    pub forced_at: Option<Timestamp>,
}

/// Says why a pod is still on a node that is being emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Hold {
    /// It asks to be left alone.
    Protected {
        /// Until then; for ever if there is none.
        until: Option<Timestamp>,
    },
    /// A PodDisruptionBudget allows no eviction now.
    Budget {
        /// The budget.
        budget: PodKey,
        /// `status.currentHealthy`.
        healthy: u32,
        /// `status.desiredHealthy`.
        desired: u32,
    },
    /// More than one PodDisruptionBudget selects it: the Eviction API refuses such pods.
    Budgets {
        /// The budgets.
        budgets: Vec<PodKey>,
    },
    /// It is on its way out.
    Terminating {
        /// When its grace ends.
        ends: Timestamp,
    },
    /// Its wave begins when the pods of the one before are gone.
    Wave,
    /// Nothing holds it.
    Next,
    /// The node's deadline is so near that its grace just fits.
    Forced,
    /// The node's deadline is past.
    Late,
    /// It tolerates the taint of disrupted nodes.
    Tolerates,
    /// It belongs to the node.
    OfNode,
    /// It is still there although its grace is long over.
    Stuck {
        /// When its grace ended.
        ended: Timestamp,
    },
}

impl Hold {
    /// Says whether the node's end waits for such a pod.
    pub const fn is_waited_for(&self) -> bool {
        match self {
            Self::Protected { .. }
            | Self::Budget { .. }
            | Self::Budgets { .. }
            | Self::Terminating { .. }
            | Self::Wave
            | Self::Next
            | Self::Forced => true,
            Self::Late | Self::Tolerates | Self::OfNode | Self::Stuck { .. } => false,
        }
    }
}

/// Answers why each pod is still there: first those that the node's end waits for, in the order in which they go.
pub fn holds(drain: &Drain<'_>, budgets: &[Arc<PodBudget>], now: Timestamp) -> Vec<Held> {
    let wait = match next(drain, now) {
        Step::Wait(wait) => wait,
        Step::Drained => Wait::default(),
    };
    let mut here: Vec<&Pod> = drain.pods.iter().map(AsRef::as_ref).filter(|pod| pod.phase != Phase::Terminal).collect();
    here.sort_by(|a, b| (!must_go(a, now), wave(a), &a.key).cmp(&(!must_go(b, now), wave(b), &b.key)));
    let current = here.first().map_or(0, |pod| wave(pod));
    let late = drain.deadline.is_some_and(|deadline| now >= deadline);
    let of = |pod: &Pod| {
        let why = match exempt(pod, now) {
            Some(exempt) => exempt,
            None if late => Hold::Late,
            None => hold(pod, &wait, current, budgets),
        };
        let deadline = drain.deadline.filter(|at| why.is_waited_for() && pod.deletes_at.is_none_or(|ends| ends > *at));
        Held { pod: pod.key.clone(), why, forced_at: deadline.map(|at| last_moment(pod, at)) }
    };
    here.into_iter().map(of).collect()
}

/// Answers why a node does not wait for a pod, if it does not.
pub(super) fn exempt(pod: &Pod, now: Timestamp) -> Option<Hold> {
    if pod.owner == Owner::Node {
        return Some(Hold::OfNode);
    }
    if let Some(ended) = pod.deletes_at.filter(|end| now >= later(*end, STUCK)) {
        return Some(Hold::Stuck { ended });
    }
    labels::disrupted_taint().tolerated_by(&pod.shape.tolerations).then_some(Hold::Tolerates)
}

fn hold(pod: &Pod, wait: &Wait, current: u8, budgets: &[Arc<PodBudget>]) -> Hold {
    if wait.delete.iter().any(|deletion| deletion.uid == pod.uid) {
        return Hold::Forced;
    }
    if let Some(ends) = pod.deletes_at {
        return Hold::Terminating { ends };
    }
    if wave(pod) != current {
        return Hold::Wave;
    }
    if wait.blocked.contains(&(pod.key.clone(), Block::Protected)) {
        return Hold::Protected { until: pod.protected_until() };
    }
    let Some(budget) = blocking(budgets, pod) else { return Hold::Next };
    let mine = budgets.iter().filter(|budget| budget.protects(pod));
    let mine: Vec<PodKey> = mine.map(|budget| budget.key.clone()).collect();
    match mine.len() {
        1 => Hold::Budget { budget: budget.key.clone(), healthy: budget.healthy, desired: budget.desired },
        _ => Hold::Budgets { budgets: mine },
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protected { until: None } => write!(f, "it has {}", labels::DO_NOT_DISRUPT),
            Self::Protected { until: Some(until) } => write!(f, "it has {} until {until}", labels::DO_NOT_DISRUPT),
            Self::Budget { budget, healthy, desired } => {
                let why = format!("{healthy} of its pods are healthy, {desired} have to be");
                write!(f, "PodDisruptionBudget {budget} allows no eviction: {why}")
            }
            Self::Budgets { budgets } => {
                let names: Vec<String> = budgets.iter().map(ToString::to_string).collect();
                let names = names.join(", ");
                write!(f, "PodDisruptionBudgets {names} select it together: the Eviction API refuses such pods")
            }
            Self::Terminating { ends } => write!(f, "it is ending: its grace period is over at {ends}"),
            Self::Wave => f.write_str("it goes when the pods before it are gone"),
            Self::Next => f.write_str("nothing holds it: it is evicted next"),
            Self::Forced => f.write_str("the deadline is near: it is deleted, whatever holds it"),
            Self::Late => f.write_str("the deadline is past: it is not waited for"),
            Self::Tolerates => write!(f, "it tolerates the taint {}: it is not waited for", labels::DISRUPTED),
            Self::OfNode => f.write_str("it belongs to the node: it is not waited for"),
            Self::Stuck { ended } => {
                write!(f, "its grace period was over at {ended}, and kubelet has not ended it: it is not waited for")
            }
        }
    }
}

//! Carrying a command out: its replacements are made, its nodes are tainted; now wait until the replacements are initialized and let the
//! nodes go, or take everything back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::Cause;
use crate::api::NodeClaim;
use crate::cluster::{Budget, Pod, PodKey, is_closed};
use crate::lifecycle;

/// Replacements that are not initialized after this long are given up. They have [`crate::lifecycle::REGISTRATION_TIMEOUT`] to join, and
/// then start (Karpenter: 10 min and more, by the number of commands).
pub(super) const REPLACEMENT_LIMIT: SignedDuration = SignedDuration::from_mins(20);
/// How long a taint may take to come back by watch, and pods that were on their way with it.
const SETTLE: SignedDuration = SignedDuration::from_secs(1);
/// Pause between looks.
const PAUSE: SignedDuration = SignedDuration::from_secs(1);

/// The budgets of pools, by name.
pub type Budgets = BTreeMap<Arc<str>, Vec<Budget>>;

/// A command whose replacements were created and whose nodes were tainted. Takes the time, gives the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    cause: Cause,
    tainted: Timestamp,
}

/// Says how far a replacement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is on its way.
    Starting,
    /// Pods can run on it.
    Initialized,
    /// It is going or gone.
    Gone,
}

impl Progress {
    /// Answers how far a replacement is, by its claim as it is seen. One that is not seen is waited for while it is `awaited`, since it was made and
    /// the watch has not shown it; else it came to nothing.
    pub fn of(claim: Option<&NodeClaim>, awaited: bool) -> Self {
        match claim {
            Some(claim) if claim.metadata.deletion_timestamp.is_some() => Self::Gone,
            Some(claim) if lifecycle::is_ready(claim) => Self::Initialized,
            Some(_) => Self::Starting,
            None if awaited => Self::Starting,
            None => Self::Gone,
        }
    }
}

/// Says what to do next with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Look again then.
    Wait {
        /// When.
        until: Timestamp,
    },
    /// Delete the candidates.
    Delete,
    /// Take every taint back. Replacements stay, but for those of [`Failure::ends`]: pods may have come to them, and empty ones go by themselves.
    RollBack(Failure),
}

/// Says why a command was taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A replacement could not be made, or has gone.
    ReplacementGone,
    /// Replacements were not initialized in time.
    TooLate,
    /// A pod came to an empty node before its taint.
    PodArrived {
        /// The pod.
        pod: PodKey,
    },
    /// A pod that must not be disturbed came before the taint.
    PodProtected {
        /// The pod.
        pod: PodKey,
    },
    /// By now a budget lets no node go: its window has opened, or somebody has closed it.
    BudgetClosed {
        /// The pool whose budget it is.
        pool: Arc<str>,
    },
    /// A candidate could not be tainted.
    NotTainted {
        /// Its claim.
        claim: Arc<str>,
    },
}

impl Failure {
    /// Says whether a replacement that is so far goes with its command: a node that does not start takes no pods and never counts as empty, so it
    /// would stay, and each try leave another.
    #[must_use]
    pub fn ends(&self, progress: Progress) -> bool {
        *self == Failure::TooLate && progress == Progress::Starting
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::ReplacementGone => f.write_str("a replacement is gone or could not be created"),
            Failure::TooLate => f.write_str("replacements were not ready in time"),
            Failure::PodArrived { pod } => write!(f, "pod {pod} came to an empty node"),
            Failure::PodProtected { pod } => write!(f, "pod {pod} came and has karpenter.sh/do-not-disrupt"),
            Failure::BudgetClosed { pool } => write!(f, "a budget of pool {pool} lets no node go by now"),
            Failure::NotTainted { claim } => write!(f, "the node of {claim} could not be tainted"),
        }
    }
}

impl Execution {
    /// Begins to wait, at the time at which the last candidate was tainted, by this process.
    pub fn new(cause: Cause, tainted: Timestamp) -> Self {
        Execution { cause, tainted }
    }

    /// Answers what to do, from the state of each replacement, the pods that are on the candidates now, and the candidates' pools.
    pub fn next(&self, replacements: &[Progress], pods: &[Arc<Pod>], pools: &Budgets, now: Timestamp) -> Act {
        if replacements.contains(&Progress::Gone) {
            return Act::RollBack(Failure::ReplacementGone);
        }
        if let Some(failure) = self.arrival(pods, now) {
            return Act::RollBack(failure);
        }
        let after = |wait: SignedDuration| self.tainted.saturating_add(wait).unwrap_or(Timestamp::MAX);
        let (settled, limit) = (after(SETTLE), after(REPLACEMENT_LIMIT));
        if self.lasts(now) < SETTLE {
            Act::Wait { until: settled }
        } else if replacements.iter().all(|progress| *progress == Progress::Initialized) {
            self.closed(pools, now).map_or(Act::Delete, |pool| Act::RollBack(Failure::BudgetClosed { pool }))
        } else if self.is_late(now) {
            Act::RollBack(Failure::TooLate)
        } else {
            Act::Wait { until: now.saturating_add(PAUSE).unwrap_or(Timestamp::MAX).min(limit) }
        }
    }

    /// Says whether it has taken longer than any command may: what the API server has not let go by now is looked at anew.
    pub fn is_late(&self, now: Timestamp) -> bool {
        self.lasts(now) >= REPLACEMENT_LIMIT
    }

    /// How long it has lasted: a clock that went back must not lengthen a wait.
    fn lasts(&self, now: Timestamp) -> SignedDuration {
        now.duration_since(self.tainted).abs()
    }

    /// The first pool whose budgets let no node go now for the command's cause. Nodes that are going already do not count: they were counted when the
    /// command began.
    fn closed(&self, pools: &Budgets, now: Timestamp) -> Option<Arc<str>> {
        let reason = self.cause.budget()?;
        pools.iter().find(|(_, budgets)| is_closed(budgets, reason, now)).map(|(pool, _)| pool.clone())
    }

    /// Between the choice and the taint, pods may come that nobody planned with.
    fn arrival(&self, pods: &[Arc<Pod>], now: Timestamp) -> Option<Failure> {
        let live = || pods.iter().filter(|pod| pod.holds_resources() && pod.deletes_at.is_none());
        match self.cause {
            Cause::Expired | Cause::Unhealthy => None,
            Cause::Empty => {
                live().find(|pod| pod.is_reschedulable()).map(|pod| Failure::PodArrived { pod: pod.key.clone() })
            }
            Cause::Underutilized => {
                live().find(|pod| pod.is_protected(now)).map(|pod| Failure::PodProtected { pod: pod.key.clone() })
            }
            // a drifted node with a grace period goes whatever its pods say; without one, the drain waits for them
            Cause::Drifted | Cause::Expiring => None,
        }
    }
}

//! The answer of `plan_disruption`: what to do with each candidate, and why nothing is done with the others.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use super::{Origin, Resume};
use crate::catalogue::Price;
use crate::cluster::{Pod, PodKey, Reason, Snapshot};
use crate::lifecycle::Ward;
use crate::scheduling::{InFlightNode, Misfit, Placement, Refusal};

/// Answers every node that karp made exactly once, and gathers what is to be done now into commands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DisruptionPlan {
    /// What to do now: each command can be carried out on its own.
    pub commands: Vec<Command>,
    /// The verdict on each candidate, ordered by claim.
    pub verdicts: Vec<(Candidate, Verdict)>,
    /// Those that leave already and have been ill for too long: what they have left to drain is cut short.
    pub hurried: Vec<Candidate>,
    /// When the plan may change although nothing in the cluster does.
    pub next_look: Option<Timestamp>,
    /// When `consolidateAfter` is over for the first node that waits for it, whatever else is told of that node.
    pub settles: Option<Timestamp>,
    /// Where the next plan goes on; for [`super::Memory::examined`].
    pub resume: Resume,
}

impl DisruptionPlan {
    /// Answers what the candidates cost per hour, those whose price is known.
    pub fn price(&self) -> Price {
        self.verdicts.iter().filter_map(|(candidate, _)| candidate.price).sum()
    }
}

/// Names a node that may be disrupted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Candidate {
    /// Its NodeClaim.
    pub claim: Arc<str>,
    /// UID of the claim.
    pub uid: Arc<str>,
    /// Its Node.
    pub node: Option<Arc<str>>,
    /// Its pool.
    pub pool: Arc<str>,
    /// What it costs, if that is known.
    pub price: Option<Price>,
}

/// Says why a node is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// It is older than `expireAfter`, and its grace is over where the pool gives one.
    Expired,
    /// It is older than `expireAfter`, and its pool gives it grace.
    Expiring,
    /// Its conditions have said for too long that it is ill.
    Unhealthy,
    /// It holds no pods that need it.
    Empty,
    /// It is not what its pool and class say.
    Drifted,
    /// It could be cheaper.
    Underutilized,
}

impl Cause {
    /// Answers the reason that budgets know it by; none for those that budgets do not hold back.
    pub const fn budget(self) -> Option<Reason> {
        match self {
            Cause::Expired | Cause::Unhealthy => None,
            Cause::Empty => Some(Reason::Empty),
            // budgets know no other reason for a node that is not as its pool wants it any more
            Cause::Drifted | Cause::Expiring => Some(Reason::Drifted),
            Cause::Underutilized => Some(Reason::Underutilized),
        }
    }

    /// Says whether a command rests before it is carried out, to see whether it still holds then. A drifted node stays drifted, an
    /// expired one expired, and one that is ill has been so for long.
    pub const fn rests(self) -> bool {
        matches!(self, Cause::Empty | Cause::Underutilized)
    }

    /// Says whether a command that was begun is gone on with after a restart whatever came since: its nodes go in the end. Whether nodes are worth
    /// moving has to be looked at anew unless they were kept free of new pods.
    pub(super) const fn lasts(self) -> bool {
        matches!(self, Cause::Drifted | Cause::Expiring)
    }

    /// Answers the name that conditions and events use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::Expired | Cause::Expiring => "Expired",
            Cause::Unhealthy => "Unhealthy",
            Cause::Empty => "Empty",
            Cause::Drifted => "Drifted",
            Cause::Underutilized => "Underutilized",
        }
    }

    /// Answers the word that metrics and logs use, which Karpenter writes in small letters there.
    pub const fn word(self) -> &'static str {
        match self {
            Cause::Expired | Cause::Expiring => "expired",
            Cause::Unhealthy => "unhealthy",
            Cause::Empty => "empty",
            Cause::Drifted => "drifted",
            Cause::Underutilized => "underutilized",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Holds nodes to take away together and what to launch before. The caller creates the replacements' claims first and taints the candidates
/// when those claims are visible to its snapshots: pods of a tainted node count as waiting, and would be launched for twice otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Why.
    pub cause: Cause,
    /// Nodes to taint and, once the replacements are initialized, to delete.
    pub candidates: Vec<Candidate>,
    /// Where the pods of the candidates go that fit on what is there; the others are on the replacements, or wait when the candidate is
    /// past its time.
    pub placements: Vec<Placement>,
    /// Nodes to launch first; their claims say what they are made for, for [`super::begun`].
    pub replacements: Vec<InFlightNode>,
    /// What it begins from, where it is made to save; for [`super::Memory::succeeded`].
    pub origin: Option<Origin>,
}

impl Command {
    /// Answers what its candidates cost per hour, those whose price is known.
    pub fn price(&self) -> Price {
        self.candidates.iter().filter_map(|candidate| candidate.price).sum()
    }

    /// Answers the price per hour that the command saves; nothing when it costs more or a price is not known.
    pub fn saving(&self) -> Price {
        self.price().saturating_sub(self.cost())
    }

    /// Answers what its replacements cost per hour.
    pub fn cost(&self) -> Price {
        self.replacements.iter().map(|node| node.price).sum()
    }

    /// Answers how many pods have to run elsewhere for it; virtual ones do not run.
    pub fn evictions(&self, snapshot: &Snapshot) -> usize {
        let nodes: FxHashSet<&str> = self.candidates.iter().filter_map(|candidate| candidate.node.as_deref()).collect();
        let on_it = |pod: &&Arc<Pod>| pod.node.as_deref().is_some_and(|node| nodes.contains(node));
        let moves = |pod: &&Arc<Pod>| pod.is_reschedulable() && !snapshot.is_virtual(&pod.key);
        snapshot.pods.iter().filter(on_it).filter(moves).count()
    }

    /// Answers what of it is carried out by itself: each of several empty nodes, so that a pod that comes to one of them keeps no other. All that
    /// asks for places or replacements is one.
    pub fn apart(self) -> Vec<Command> {
        match self.cause {
            Cause::Empty => self.candidates.iter().map(|candidate| self.of(candidate)).collect(),
            _ => vec![self],
        }
    }

    /// Answers the command for one of its candidates alone.
    pub(super) fn of(&self, candidate: &Candidate) -> Command {
        Command {
            cause: self.cause,
            candidates: vec![candidate.clone()],
            placements: self.placements.clone(),
            replacements: self.replacements.clone(),
            origin: self.origin.clone(),
        }
    }

    /// Answers Karpenter's word for the command in logs and metrics.
    pub fn decision(&self) -> &'static str {
        if self.replacements.is_empty() { "delete" } else { "replace" }
    }
}

/// Says that a pool with policy Balanced approves of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// The pool.
    pub pool: Arc<str>,
    /// Share of the pool's cost that is saved over share of its disruption, in thousandths; 500 is enough.
    pub score_permille: u64,
}

impl fmt::Display for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the saving is worth the disruption (score {} of 500)", self.score_permille)
    }
}

/// Says what happens to a candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Nothing, for this reason.
    Keep(KeepReason),
    /// It is deleted; its pods fit elsewhere, or it is past its time.
    Delete(Cause),
    /// These are launched, then it is deleted.
    Replace(Cause, Vec<InFlightNode>),
}

/// Says why a node is left alone.
#[derive(Clone, Debug, PartialEq)]
pub enum KeepReason {
    /// It is going already.
    Leaving,
    /// It has not been ready for pods yet.
    NotInitialized,
    /// Its pool is gone or foreign.
    NoPool,
    /// Its pool has a fixed number of replicas: its nodes are renewed when they are outdated, and given up for nothing else.
    Static,
    /// Its pool has a fixed number of replicas, and can launch no node that takes its place.
    NoSuccessor {
        /// The pool.
        pool: Arc<str>,
        /// Why not.
        misfit: Box<Misfit>,
    },
    /// Its conditions say that it is ill, and so do those of too many others: the fault is likely elsewhere.
    TooManyUnhealthy {
        /// The pool; none for claims that no pool made, which count with the whole cluster.
        pool: Option<Arc<str>>,
        /// How many are ill, of how many.
        ward: Ward,
    },
    /// Its owner asked that it is left alone.
    NodeProtected,
    /// A pod on it cannot be read, so that nobody knows what it needs.
    PodUnreadable {
        /// The pod.
        pod: PodKey,
    },
    /// A pod on it asked to be left alone.
    PodProtected {
        /// The pod.
        pod: PodKey,
    },
    /// A PodDisruptionBudget forbids evicting a pod on it.
    PodBudget {
        /// The pod.
        pod: PodKey,
        /// The budget.
        budget: PodKey,
    },
    /// A pod that waits has been planned on it.
    Nominated {
        /// The pod.
        pod: PodKey,
    },
    /// `consolidateAfter` is Never.
    ConsolidationOff,
    /// Pods came or went too recently.
    Settling {
        /// When `consolidateAfter` is over.
        until: Timestamp,
    },
    /// It has pods, and its pool only gives up empty nodes.
    NotEmpty,
    /// A pod on it keeps data on a disk of the node, and could run nowhere else.
    LocalVolume {
        /// The pod.
        pod: PodKey,
        /// Its claim.
        claim: PodKey,
    },
    /// The pool's budget is used up.
    BudgetExhausted {
        /// The pool.
        pool: Arc<str>,
        /// For which reason it would have been disrupted.
        reason: Reason,
    },
    /// What it costs is not known.
    UnknownPrice,
    /// A pod of it would find no other place.
    PodWouldNotFit {
        /// The pod.
        pod: PodKey,
        /// Why not, for each pool.
        reasons: Vec<Refusal>,
    },
    /// Its pods would need more than one new node.
    SeveralNodesNeeded {
        /// How many.
        nodes: usize,
    },
    /// No offering that could hold its pods is cheaper by the least saving.
    NoCheaperOffering {
        /// What it costs.
        price: Price,
        /// What the cheapest other node would cost.
        cheapest: Price,
    },
    /// What would be saved is not worth moving so many pods.
    TooLittleSaved {
        /// What would be saved per hour.
        saving: Price,
        /// More than this is worth it.
        least: Price,
    },
    /// Spot nodes are not replaced by cheaper spot nodes: the gate `SpotToSpotConsolidation` is off.
    SpotToSpotOff,
    /// Too few cheaper spot types, of those that the pool's price tolerance lists: the replacement would soon be taken back.
    TooFewSpotTypes {
        /// How many.
        found: usize,
        /// How many it takes.
        wanted: usize,
    },
    /// The saving is not worth the disruption (policy Balanced).
    NotWorthIt {
        /// Share of the pool's cost that is saved over share of its disruption, in thousandths; 500 is enough.
        score_permille: u64,
    },
    /// Commands for its pool failed; the pool is left alone for a while.
    PoolPaused {
        /// The pool.
        pool: Arc<str>,
        /// Until when.
        until: Timestamp,
    },
    /// A node like it was moved away from, and the same pods need nodes as dear as before.
    CameBack {
        /// Until when it is left alone.
        until: Timestamp,
    },
    /// So many pods are about to take their places that nothing is moved meanwhile.
    PodsArriving {
        /// How many.
        pods: usize,
    },
    /// Another command goes first; it is looked at again afterwards.
    AfterAnother,
    /// Nothing speaks against it, and nothing is gained.
    Fine,
}

impl fmt::Display for KeepReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeepReason::Leaving => f.write_str("it is going already"),
            KeepReason::NotInitialized => f.write_str("it is not initialized"),
            KeepReason::NoPool => f.write_str("its NodePool is gone or foreign"),
            KeepReason::Static => f.write_str("its NodePool is static: as many nodes as it has replicas stay"),
            KeepReason::NoSuccessor { pool, misfit } => {
                write!(f, "static pool {pool} can launch no node that takes its place: {misfit}")
            }
            KeepReason::TooManyUnhealthy { pool, ward } => {
                let of = if pool.is_some() { "nodepool" } else { "cluster" };
                write!(f, "more than 20% nodes are unhealthy in the {of} ({} of {})", ward.ill, ward.nodes)
            }
            KeepReason::NodeProtected => f.write_str("the node has karpenter.sh/do-not-disrupt"),
            KeepReason::PodUnreadable { pod } => {
                write!(f, "pod {pod} cannot be read, so that nothing can be planned for it")
            }
            KeepReason::PodProtected { pod } => write!(f, "pod {pod} has karpenter.sh/do-not-disrupt"),
            KeepReason::PodBudget { pod, budget } => write!(f, "PodDisruptionBudget {budget} protects pod {pod}"),
            KeepReason::Nominated { pod } => write!(f, "pod {pod} is about to use it"),
            KeepReason::ConsolidationOff => f.write_str("consolidateAfter is Never"),
            KeepReason::Settling { until } => write!(f, "consolidateAfter ends at {until}"),
            KeepReason::NotEmpty => f.write_str("it has pods and consolidationPolicy is WhenEmpty"),
            KeepReason::LocalVolume { pod, claim } => {
                write!(f, "the data of pod {pod} is on a disk of the node (claim {})", claim.name)
            }
            KeepReason::BudgetExhausted { pool, reason } => {
                write!(f, "the budget of pool {pool} for {reason:?} is used up")
            }
            KeepReason::UnknownPrice => f.write_str("its price is not known"),
            KeepReason::PodWouldNotFit { pod, reasons } => {
                write!(f, "pod {pod} would find no other place")?;
                reasons.iter().try_for_each(|reason| write!(f, "; {reason}"))
            }
            KeepReason::SeveralNodesNeeded { nodes } => write!(f, "its pods would need {nodes} new nodes"),
            KeepReason::NoCheaperOffering { price, cheapest } => {
                write!(f, "no cheaper node would do: it costs {price}, the cheapest other {cheapest}")
            }
            KeepReason::TooLittleSaved { saving, least } => {
                write!(f, "moving its pods would save {saving}, which is worth it above {least}")
            }
            KeepReason::SpotToSpotOff => f.write_str("SpotToSpotConsolidation is off"),
            KeepReason::TooFewSpotTypes { found, wanted } => {
                write!(f, "only {found} cheaper spot types within the price tolerance would do, {wanted} are wanted")
            }
            KeepReason::NotWorthIt { score_permille } => {
                write!(f, "the saving is not worth the disruption (score {score_permille} of 500)")
            }
            KeepReason::PoolPaused { pool, until } => {
                write!(f, "commands for pool {pool} failed, it is left alone until {until}")
            }
            KeepReason::CameBack { until } => {
                write!(f, "moving its pods did not last: they needed as much again; it is left alone until {until}")
            }
            KeepReason::PodsArriving { pods } => write!(f, "{pods} pods are about to take their places first"),
            KeepReason::AfterAnother => f.write_str("another command goes first"),
            KeepReason::Fine => f.write_str("nothing would be gained"),
        }
    }
}

//! Why nodes were left alone when it was last looked whether to disrupt them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use karp_domain::disruption::{Candidate, KeepReason, Verdict};

/// Remembers what the last plan said of nodes that stay. Clones remember the same.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Mutex<Vec<KeptNode>>>);

/// A node that was left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptNode {
    /// Its name.
    pub node: Arc<str>,
    /// Its pool; empty for one that no pool made.
    pub pool: Arc<str>,
    /// Why, as [`word`] says.
    pub reason: &'static str,
}

impl Kept {
    fn all(&self) -> MutexGuard<'_, Vec<KeptNode>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers the verdicts of a plan, and nothing of those before. Claims that have no node yet are none.
    pub fn tell(&self, verdicts: &[(Candidate, Verdict)]) {
        let kept = |(candidate, verdict): &(Candidate, Verdict)| match (verdict, &candidate.node) {
            (Verdict::Keep(reason), Some(node)) => {
                Some(KeptNode { node: node.clone(), pool: candidate.pool.clone(), reason: word(reason) })
            }
            (Verdict::Keep(_) | Verdict::Delete(_) | Verdict::Replace(..), _) => None,
        };
        let kept = verdicts.iter().filter_map(kept).collect();
        *self.all() = kept;
    }

    /// Counts by pool and reason the nodes that are still `there`.
    pub fn counts(&self, there: impl Fn(&KeptNode) -> bool) -> BTreeMap<(Arc<str>, &'static str), u32> {
        let mut counts = BTreeMap::new();
        for kept in self.all().iter().filter(|kept| there(kept)) {
            *counts.entry((kept.pool.clone(), kept.reason)).or_default() += 1;
        }
        counts
    }
}

/// Answers the word for a reason in metrics and in what `karp explain node` writes for programs: one for each kind of reason, whatever
/// it is about.
pub const fn word(reason: &KeepReason) -> &'static str {
    match reason {
        KeepReason::Leaving => "leaving",
        KeepReason::NotInitialized => "not_initialized",
        KeepReason::NoPool => "no_pool",
        KeepReason::Static => "static",
        KeepReason::NoSuccessor { .. } => "no_successor",
        KeepReason::TooManyUnhealthy { .. } => "too_many_unhealthy",
        KeepReason::NodeProtected => "node_protected",
        KeepReason::PodUnreadable { .. } => "pod_unreadable",
        KeepReason::PodProtected { .. } => "pod_protected",
        KeepReason::PodBudget { .. } => "pod_budget",
        KeepReason::Nominated { .. } => "nominated",
        KeepReason::ConsolidationOff => "consolidation_off",
        KeepReason::Settling { .. } => "settling",
        KeepReason::NotEmpty => "not_empty",
        KeepReason::LocalVolume { .. } => "local_volume",
        KeepReason::BudgetExhausted { .. } => "budget_exhausted",
        KeepReason::UnknownPrice => "unknown_price",
        KeepReason::PodWouldNotFit { .. } => "pod_would_not_fit",
        KeepReason::SeveralNodesNeeded { .. } => "several_nodes_needed",
        KeepReason::NoCheaperOffering { .. } => "no_cheaper_offering",
        KeepReason::TooLittleSaved { .. } => "too_little_saved",
        KeepReason::SpotToSpotOff => "spot_to_spot_off",
        KeepReason::TooFewSpotTypes { .. } => "too_few_spot_types",
        KeepReason::NotWorthIt { .. } => "not_worth_it",
        KeepReason::PoolPaused { .. } => "pool_paused",
        KeepReason::CameBack { .. } => "came_back",
        KeepReason::PodsArriving { .. } => "pods_arriving",
        KeepReason::AfterAnother => "after_another",
        KeepReason::Fine => "fine",
    }
}

#[cfg(test)]
mod tests {
    use karp_domain::cluster::PodKey;
    use karp_domain::disruption::Cause;

    use super::*;

    fn verdict(node: Option<&str>, pool: &str, verdict: Verdict) -> (Candidate, Verdict) {
        let node = node.map(Arc::from);
        (Candidate { claim: "c".into(), uid: "u".into(), node, pool: pool.into(), price: None }, verdict)
    }

    fn protected(pod: &str) -> Verdict {
        Verdict::Keep(KeepReason::PodProtected { pod: PodKey::new("default", pod) })
    }

    #[test]
    fn nodes_that_stay_are_counted_by_pool_and_kind_of_reason() {
        let kept = Kept::default();
        kept.tell(&[
            verdict(Some("n1"), "a", protected("web-1")),
            verdict(Some("n2"), "a", protected("web-2")),
            verdict(Some("n3"), "a", Verdict::Keep(KeepReason::Fine)),
            verdict(Some("n4"), "b", Verdict::Keep(KeepReason::Fine)),
            verdict(Some("n5"), "b", Verdict::Delete(Cause::Empty)),
            verdict(None, "b", Verdict::Keep(KeepReason::NotInitialized)),
        ]);
        let counts = |kept: &Kept, gone: &str| -> Vec<(String, &'static str, u32)> {
            let counts = kept.counts(|kept| &*kept.node != gone);
            counts.into_iter().map(|((pool, reason), count)| (pool.to_string(), reason, count)).collect()
        };
        let of = |pool: &str, reason, count| (pool.to_owned(), reason, count);
        assert_eq!(counts(&kept, ""), [of("a", "fine", 1), of("a", "pod_protected", 2), of("b", "fine", 1)]);
        assert_eq!(counts(&kept, "n4"), [of("a", "fine", 1), of("a", "pod_protected", 2)]);
        kept.tell(&[verdict(Some("n4"), "b", Verdict::Keep(KeepReason::NotEmpty))]);
        assert_eq!(counts(&kept, ""), [of("b", "not_empty", 1)], "the last plan alone");
    }
}

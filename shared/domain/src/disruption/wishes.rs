//! Which pods' wishes to be left alone a plan met: their owners hear how they stand.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;

use super::{DisruptionPlan, KeepReason, Verdict};
use crate::cluster::{DoNotDisrupt, Phase, Pod, Protection, Snapshot};

/// That a pod's time is over is news for so long; later it is told only when the pod is moved.
const NEWS: SignedDuration = SignedDuration::from_mins(15);

/// Answers, of the pods on a plan's candidates, each whose wish kept its node for a time, each whose time was over not long ago, and each that
/// asks in words which nobody can read. What holds for ever needs no telling.
pub fn wishes<'a>(snapshot: &'a Snapshot, plan: &DisruptionPlan) -> Vec<(&'a Pod, Protection<'a>)> {
    let candidates: BTreeSet<&Arc<str>> =
        plan.verdicts.iter().filter_map(|(candidate, _)| candidate.node.as_ref()).collect();
    let keeping: BTreeSet<_> = plan
        .verdicts
        .iter()
        .filter_map(|(_, verdict)| match verdict {
            Verdict::Keep(KeepReason::PodProtected { pod }) => Some(pod),
            _ => None,
        })
        .collect();
    let lives = |pod: &Pod| pod.phase != Phase::Terminal && pod.deletes_at.is_none();
    let there = |pod: &Pod| pod.node.as_ref().is_some_and(|node| candidates.contains(node));
    let asking = snapshot.pods.iter().filter(|pod| pod.do_not_disrupt != DoNotDisrupt::No && lives(pod) && there(pod));
    asking
        .map(|pod| (&**pod, pod.protection(snapshot.now)))
        .filter(|(pod, protection)| match protection {
            Protection::None | Protection::Always => false,
            Protection::Until(_) => keeping.contains(&pod.key),
            Protection::Over(end) => snapshot.now.duration_since(*end) < NEWS,
            Protection::Unclear(_) => true,
        })
        .collect()
}

//! What owners of pods hear of their wish that the pods are left alone, under Karpenter's reasons.

use std::sync::Arc;

use jiff::Timestamp;
use karp_domain::cluster::{Phase, Pod, Protection};

use super::Context;
use crate::effect;
use crate::ops::events::Reason;

/// Tells of a pod's wish on the pod.
pub fn tell(context: &Context, pod: &Pod, protection: &Protection<'_>) {
    if let Some(reason) = telling(protection) {
        context.events.publish(&effect::pod_reference(&pod.key, &pod.uid), reason, protection.to_string());
    }
}

/// Tells of the wishes of pods that have to leave their node.
pub fn tell_leaving(context: &Context, pods: &[Arc<Pod>], now: Timestamp) {
    for pod in pods.iter().filter(|pod| pod.phase != Phase::Terminal && pod.deletes_at.is_none()) {
        tell(context, pod, &pod.protection(now));
    }
}

/// Returns under which reason a wish is told; none for what its owner knows.
fn telling(protection: &Protection<'_>) -> Option<Reason> {
    match protection {
        Protection::Unclear(_) => Some(Reason::InvalidDoNotDisruptAnnotation),
        Protection::Until(_) => Some(Reason::DoNotDisruptUntil),
        Protection::Over(_) => Some(Reason::DoNotDisruptGracePeriodElapsed),
        Protection::None | Protection::Always => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_told_under_reasons_that_people_look_for() {
        let end = Timestamp::UNIX_EPOCH;
        let told = |protection: Protection<'_>| telling(&protection).map(|reason| format!("{reason:?}"));
        assert_eq!(told(Protection::Unclear("ture")).as_deref(), Some("InvalidDoNotDisruptAnnotation"));
        assert_eq!(told(Protection::Until(Some(end))).as_deref(), Some("DoNotDisruptUntil"));
        assert_eq!(told(Protection::Over(end)).as_deref(), Some("DoNotDisruptGracePeriodElapsed"));
        assert_eq!((told(Protection::None), told(Protection::Always)), (None, None));
    }
}

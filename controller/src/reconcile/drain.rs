//! What a drain does next: four waves, one after the other; budgets and wishes are honoured until the owner's deadline.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karp_domain::api::labels;
use karp_domain::cluster::{Owner, Phase, Pod};

/// A pod that still is there so long after its grace ended is stuck: it is waited for no more.
const STUCK: SignedDuration = SignedDuration::from_mins(1);

/// Says what to do with a node's pods now.
#[derive(Debug, Default, PartialEq)]
pub struct Step {
    /// Pods to evict.
    pub evict: Vec<Arc<Pod>>,
    /// Pods to delete with so many seconds of grace: the deadline leaves no more.
    pub force: Vec<(Arc<Pod>, u32)>,
    /// Pods that are waited for: protected, terminating, or of a later wave.
    pub waiting: Vec<Arc<Pod>>,
}

impl Step {
    /// Says whether nothing is left to drain.
    pub fn is_done(&self) -> bool {
        self.evict.is_empty() && self.force.is_empty() && self.waiting.is_empty()
    }
}

/// Answers the next step for the pods of a node.
pub fn next(pods: &[Arc<Pod>], deadline: Option<Timestamp>, now: Timestamp) -> Step {
    let taint = labels::disrupted_taint();
    let mut step = Step::default();
    let mut waves: [Vec<&Arc<Pod>>; 4] = Default::default();
    for pod in pods.iter().filter(|pod| counts(pod, now) && !taint.tolerated_by(&pod.shape.tolerations)) {
        let grace = SignedDuration::from_secs(pod.grace_seconds);
        // Whoever would not have its whole grace before the deadline starts now, whatever protects it.
        if let Some(deadline) = deadline
            && now.saturating_add(grace).is_ok_and(|end| end >= deadline)
            && pod.deletes_at.is_none_or(|at| at > deadline)
        {
            let left = deadline.duration_since(now).as_secs().clamp(1, pod.grace_seconds.max(1));
            step.force.push((pod.clone(), u32::try_from(left).unwrap_or(1)));
            continue;
        }
        let wave = usize::from(pod.is_critical()) * 2 + usize::from(pod.owner == Owner::DaemonSet);
        waves[wave].push(pod);
    }
    let mut later = false;
    for wave in waves.iter().filter(|wave| !wave.is_empty()) {
        for pod in wave {
            if later || pod.deletes_at.is_some() || pod.is_protected(now) {
                step.waiting.push((*pod).clone());
            } else {
                step.evict.push((*pod).clone());
            }
        }
        later = true;
    }
    step
}

/// Says whether a drain waits for a pod at all.
fn counts(pod: &Pod, now: Timestamp) -> bool {
    let stuck = pod.deletes_at.is_some_and(|at| at.saturating_add(STUCK).is_ok_and(|limit| now > limit));
    pod.phase != Phase::Terminal && pod.owner != Owner::Node && !stuck
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, more: Value) -> Arc<Pod> {
        let mut object = json!({
            "metadata": { "name": name, "namespace": "default", "uid": name },
            "spec": { "nodeName": "n", "containers": [{ "name": "c" }], "terminationGracePeriodSeconds": 30 },
            "status": { "phase": "Running" },
        });
        for (path, value) in more.as_object().expect("an object") {
            let slot = object.pointer_mut(path.rsplit_once('/').expect("a path").0).expect("a parent");
            slot[path.rsplit_once('/').expect("a path").1] = value.clone();
        }
        let pod = serde_json::from_value(object).expect("a pod");
        Arc::new(Pod::from_kube(&pod).expect("readable"))
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("a time")
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|pod| &*pod.key.name).collect()
    }

    #[test]
    fn waves_come_one_after_the_other() {
        let daemon = json!({ "/metadata/ownerReferences": [{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d" }] });
        let critical = json!({ "/spec/priority": 2_000_000_000 });
        let pods = [pod("critical", critical), pod("plain", json!({})), pod("daemon", daemon)];
        let step = next(&pods, None, at(0));
        assert_eq!((names(&step.evict), names(&step.waiting)), (vec!["plain"], vec!["daemon", "critical"]));
        let step = next(&[pods[0].clone(), pods[2].clone()], None, at(0));
        assert_eq!((names(&step.evict), names(&step.waiting)), (vec!["daemon"], vec!["critical"]));
        assert!(next(&[], None, at(0)).is_done());
    }

    #[test]
    fn protected_pods_are_waited_for_and_tolerant_and_finished_ones_are_not() {
        let protected = json!({ "/metadata/annotations": { "karpenter.sh/do-not-disrupt": "true" } });
        let step = next(&[pod("protected", protected)], None, at(0));
        assert_eq!(names(&step.waiting), ["protected"]);
        let tolerant = json!({ "/spec/tolerations": [{ "operator": "Exists" }] });
        let done = json!({ "/status/phase": "Succeeded" });
        let mirror = json!({ "/metadata/annotations": { "kubernetes.io/config.mirror": "x" } });
        assert!(next(&[pod("t", tolerant), pod("d", done), pod("m", mirror)], None, at(0)).is_done());
    }

    #[test]
    fn the_deadline_leaves_each_pod_its_grace_and_no_more() {
        let protected = json!({ "/metadata/annotations": { "karpenter.sh/do-not-disrupt": "true" } });
        let pods = [pod("protected", protected)];
        assert!(next(&pods, Some(at(100)), at(69)).force.is_empty());
        assert_eq!(next(&pods, Some(at(100)), at(70)).force, [(pods[0].clone(), 30)]);
        assert_eq!(next(&pods, Some(at(100)), at(500)).force, [(pods[0].clone(), 1)]);
    }

    #[test]
    fn a_pod_that_is_stuck_is_waited_for_a_minute_past_its_grace() {
        let going = json!({ "/metadata/deletionTimestamp": "1970-01-01T00:01:40Z" });
        let pods = [pod("going", going)];
        assert_eq!(names(&next(&pods, None, at(160)).waiting), ["going"]);
        assert!(next(&pods, None, at(161)).is_done());
    }
}

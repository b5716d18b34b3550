//! S-10: each round of planning has an answer for every pod that waits, and something is told of it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::{Watch, led_since};
use crate::cluster::{Pod, PodKey, Snapshot};
use crate::scheduling::Solution;
use crate::sim::World;

/// Within this time something is told of a pod that waits, and told again, while somebody acts.
const TOLD_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// The same where pods are seen late; and, whatever holds up who acts, a plan has an answer for it (60 s, and the 10 s of a batch).
const ANSWER_LIMIT: SignedDuration = SignedDuration::from_secs(70);

/// What has been said of pods.
#[derive(Clone, Debug, Default)]
pub(in crate::sim) struct Answers {
    /// When a plan last had an answer for a pod.
    found: BTreeMap<PodKey, Timestamp>,
    /// When something was last told of it.
    told: BTreeMap<PodKey, Timestamp>,
    /// Pods that the last plan had no answer for.
    passed_over: BTreeSet<PodKey>,
}

impl Answers {
    /// Something is told of pods.
    pub(in crate::sim) fn tell(&mut self, pods: impl Iterator<Item = PodKey>, now: Timestamp) {
        self.told.extend(pods.map(|pod| (pod, now)));
    }
}

/// S-10: a round of planning passes over no pod that it sees wait.
pub(in crate::sim) fn are_complete(world: &mut World, snapshot: &Snapshot, solution: &Solution) {
    let placed = solution.placements.iter().map(|placement| &placement.pod);
    let planned = solution.nodes.iter().flat_map(|node| &node.pods);
    let refused = solution.unschedulable.iter().map(|refused| &refused.pod);
    let answered: BTreeSet<&PodKey> = placed.chain(planned).chain(refused).collect();
    let waiting = snapshot.pods.iter().filter(|pod| pod.is_provisionable()).map(|pod| &pod.key);
    let passed_over: BTreeSet<PodKey> = waiting.filter(|key| !answered.contains(*key)).cloned().collect();
    // of each it is said once
    let new: Vec<PodKey> = passed_over.difference(&world.answers.passed_over).cloned().collect();
    world.answers.found.extend(answered.into_iter().map(|key| (key.clone(), world.now)));
    world.answers.passed_over = passed_over;
    new.into_iter().for_each(|key| world.violate("S-10", format!("a plan passes over {key}")));
}

impl Watch {
    /// S-10: whatever becomes of a pod that waits, a plan says so within a minute, and again each minute, and it is told.
    pub(super) fn pods_are_answered(&mut self, world: &World) {
        self.late |= world.faults.watch_lag_seconds > 0 || world.faults.cut_permille > 0;
        let limit = if self.late { ANSWER_LIMIT } else { TOLD_WITHIN };
        let waits = |pod: &&Pod| pod.is_provisionable();
        let keys: BTreeSet<&PodKey> = world.pods.values().filter(waits).map(|pod| &pod.key).collect();
        self.waiting.retain(|key, _| keys.contains(key));
        let mut forgotten = Vec::new();
        for key in keys {
            let since = *self.waiting.entry(key.clone()).or_insert(world.now);
            let since = since.max(world.back).max(led_since(world));
            let passed = |said: &BTreeMap<PodKey, Timestamp>, since: Timestamp| {
                world.now.duration_since(said.get(key).map_or(since, |said| since.max(*said)))
            };
            let unanswered = passed(&world.answers.found, since) > ANSWER_LIMIT;
            if unanswered || passed(&world.answers.told, since.max(world.unserved)) > limit {
                forgotten.push(key.clone());
            }
        }
        for key in forgotten {
            self.waiting.insert(key.clone(), world.now);
            self.fail(world, "S-10", format!("nothing is said of {key} for {limit:#}"));
        }
    }
}

//! Volumes: each pod of a StatefulSet has one, which is attached to the pod's node and detached some seconds after the pod has gone from there. All
//! zones reach them. A node that goes waits for them as in `controller/src/reconcile/termination.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::World;
use super::controller::Controller;
use super::ends::Leaving;
use super::random::Random;
use super::writes::{Stop, ask, set, yes};
use crate::api::conditions::{self, ConditionStatus};
use crate::cluster::{ClaimRef, Pod, PodKey};
use crate::eviction;
use crate::lifecycle::{self, is_true};

/// A volume is detached so many seconds at most after its pod has gone.
const DETACHES_WITHIN: usize = 20;
/// Whose pod took so much longer to go than its grace is not waited for: nobody knows whether it ever goes.
const STUCK: SignedDuration = SignedDuration::from_mins(1);
/// Chance of its own: worlds without volumes are what they would be without all this.
const STREAM: u64 = 0x564F_4C55_4D45_5321;

/// Volumes, each called after its pod, and where they are attached.
#[derive(Clone, Debug, Default)]
pub(super) struct Volumes {
    /// Labels of the workloads whose pods have them.
    of: Vec<Arc<BTreeMap<String, String>>>,
    /// By node and volume.
    attached: BTreeMap<(Arc<str>, PodKey), Attachment>,
    random: Random,
    /// Attachments that were left behind; seconds that pods waited for their volume to leave another node.
    pub(super) leaked: u32,
    pub(super) awaited: u32,
}

/// A volume's attachment to a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attachment {
    /// Since when its pod has not been on the node any more, and how long it takes to detach the volume then.
    gone: Option<Timestamp>,
    takes: SignedDuration,
    /// When the grace of its pod is over, which is to go.
    due: Option<Timestamp>,
    /// Nobody takes it away before its node has gone. The volume has left all the same: only the object hangs.
    pub(super) leaked: bool,
}

impl Attachment {
    /// Says whether a volume is being detached whose pod had gone by then, and in its time.
    pub(super) fn is_leaving(&self, by: Timestamp) -> bool {
        let in_time = |gone: Timestamp| gone <= by && self.due.is_none_or(|due| gone < due + STUCK);
        !self.leaked && self.gone.is_some_and(in_time)
    }
}

impl Volumes {
    pub(super) fn begin(&mut self, seed: u64) {
        self.random = Random::new(seed ^ STREAM);
    }

    /// Says whether any pods have volumes.
    pub(super) fn are_used(&self) -> bool {
        !self.of.is_empty()
    }

    /// Says whether a pod has a volume.
    pub(super) fn has(&self, pod: &Pod) -> bool {
        self.of.contains(&pod.labels)
    }

    /// The nodes to which any are attached.
    pub(super) fn nodes(&self) -> BTreeSet<&str> {
        self.attached.keys().map(|(node, _)| &**node).collect()
    }

    /// What is attached to a node.
    pub(super) fn attached_to(&self, node: &str) -> impl Iterator<Item = (&PodKey, &Attachment)> {
        let here = self.attached.iter().filter(move |((at, _), _)| **at == *node);
        here.map(|((_, volume), attachment)| (volume, attachment))
    }

    /// Says whether a pod can run on its node, where its volume is attached unless that is still elsewhere.
    pub(super) fn admit(&mut self, pod: &Pod) -> bool {
        let Some(node) = pod.node.as_ref().filter(|_| self.has(pod)) else { return true };
        let place = (node.clone(), pod.key.clone());
        if self.attached.contains_key(&place) {
            return true;
        }
        if pod.deletes_at.is_some() {
            return false;
        }
        if self.attached.iter().any(|((_, volume), one)| *volume == pod.key && !one.leaked) {
            self.awaited += 1;
            return false;
        }
        self.attached.insert(place, Attachment::default());
        true
    }
}

impl World {
    /// Gives each pod of a workload a volume; pods come again under the names of those that are gone.
    #[must_use]
    pub fn with_volumes(mut self, workload: &str) -> Self {
        let named = self.workloads.iter().filter(|one| *one.pod.key.name == *workload);
        self.volumes.of.extend(named.map(|one| one.pod.labels.clone()));
        self
    }

    /// Lets a second pass for the attach-detach controller.
    pub(super) fn detach(&mut self) {
        let (now, leaks) = (self.now, self.faults.leaks_permille);
        let (pods, nodes) = (&self.pods, &self.nodes);
        let Volumes { attached, random, leaked, .. } = &mut self.volumes;
        attached.retain(|(node, volume), one| {
            if let Some(pod) = pods.get(volume).filter(|pod| pod.node.as_ref() == Some(node)) {
                (one.gone, one.due) = (None, pod.deletes_at);
                return true;
            }
            let gone = *one.gone.get_or_insert_with(|| {
                one.takes = SignedDuration::from_secs(1 + random.below(DETACHES_WITHIN) as i64);
                if !one.leaked && random.happens(leaks) {
                    one.leaked = true;
                    *leaked += 1;
                }
                now
            });
            nodes.contains_key(&**node) && (one.leaked || now < gone + one.takes)
        });
    }

    /// Keeps the pods of a StatefulSet: those of the highest numbers go, and each comes again when the one of its name has gone.
    pub(super) fn keep_ordinals(&mut self, template: &Pod, wanted: usize, most: usize) {
        for ordinal in 0..most.max(wanted) {
            let key = PodKey::new(&template.key.namespace, &format!("{}-{ordinal}", template.key.name));
            if ordinal < wanted {
                if !self.pods.contains_key(&key) {
                    let uid = self.new_uid(&template.key);
                    self.add_pod(template, key, &uid);
                }
            } else if let Some(pod) = self.pods.get_mut(&key).filter(|pod| pod.deletes_at.is_none()) {
                pod.deletes_at = Some(self.now + SignedDuration::from_secs(2));
            }
        }
    }
}

impl Controller<'_> {
    /// Says whether a node is known to be drained, as its claim or this process remembers.
    pub(super) fn is_drained(&self, leaving: &Leaving<'_>) -> bool {
        self.drained.contains_key(leaving.id) || leaving.claim.is_some_and(|claim| is_true(claim, conditions::DRAINED))
    }

    /// Notes in this process that a node is drained; answers since when it has been.
    pub(super) fn drained_at(&mut self, world: &World, leaving: &Leaving<'_>) -> Timestamp {
        let found = *self.drained.entry(leaving.id.to_owned()).or_insert(world.clock());
        leaving.claim.and_then(|claim| lifecycle::since(claim, conditions::DRAINED)).unwrap_or(found)
    }

    /// Tells in its claim that a node is drained: once its volumes have been looked at, whatever that says.
    pub(super) fn tell_drained(&self, world: &mut World, leaving: &Leaving<'_>) -> Result<(), Stop> {
        let Some(claim) = leaving.claim.filter(|claim| !is_true(claim, conditions::DRAINED)) else { return Ok(()) };
        set(world, claim, |status, now| yes(status, conditions::DRAINED, now))
    }

    /// Notes that a node that was drained is not any more.
    pub(super) fn drains_again(&mut self, world: &mut World, leaving: &Leaving<'_>) -> Result<(), Stop> {
        self.drained.remove(leaving.id);
        let Some(claim) = leaving.claim.filter(|claim| is_true(claim, conditions::DRAINED)) else { return Ok(()) };
        set(world, claim, |status, now| {
            let unknown = ConditionStatus::Unknown;
            conditions::set(&mut status.conditions, conditions::DRAINED, unknown, "Draining", "Draining", now);
        })
    }

    /// Says whether no volume is attached to a drained node any more, but for those of pods that stay on it, or whether it has been waited for long
    /// enough.
    pub(super) fn detached(&self, world: &mut World, leaving: &Leaving<'_>, drained: Timestamp) -> Result<bool, Stop> {
        let now = world.clock();
        if now >= self.decisions.detached_by(drained, leaving.deadline) {
            return Ok(true);
        }
        ask(world)?;
        let on_it = |pod: &&Pod| pod.node.as_deref() == Some(leaving.name);
        let pods: Vec<Arc<Pod>> = self.view.pods().values().filter(on_it).map(with_claim).collect();
        let stay: BTreeSet<PodKey> = eviction::kept_claims(&pods, now).collect();
        Ok(world.volumes.attached_to(leaving.name).all(|(volume, _)| stay.contains(volume)))
    }
}

/// The pod with the claim of its volume, of which the planner knows nothing.
fn with_claim(pod: &Pod) -> Arc<Pod> {
    Arc::new(Pod { claims: vec![ClaimRef::Named(pod.key.name.clone())], ..pod.clone() })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1 as core;
    use serde_json::json;

    use super::*;
    use crate::catalogue::Catalogue;
    use crate::sim::{Faults, Workload};

    /// Two nodes, and a StatefulSet of one pod.
    fn world(leaks_permille: u32) -> World {
        let pod = json!({"metadata": {"name": "db", "namespace": "default", "labels": {"app": "db"}},
            "spec": {"containers": [{"name": "c"}]}});
        let pod = Pod::from_kube(&serde_json::from_value(pod).unwrap()).unwrap();
        let workloads = vec![Workload { pod: pod.clone(), replicas: 1, most: 1, budget: None }];
        let world = World::new(Timestamp::UNIX_EPOCH, Catalogue::default(), Vec::new(), workloads);
        let mut world = world.with_volumes("db");
        world.begin(1);
        world.faults = Faults { leaks_permille, ..Faults::default() };
        world.nodes.extend(["a", "b"].map(|name| (name.to_owned(), core::Node::default())));
        world.keep_ordinals(&pod, 1, 1);
        world
    }

    /// Lets a second pass with the pod on a node; says whether it can run there.
    fn runs_on(world: &mut World, node: &str) -> bool {
        let key = PodKey::new("default", "db-0");
        world.pods.get_mut(&key).unwrap().node = Some(node.into());
        world.now += SignedDuration::from_secs(1);
        world.detach();
        let pod = &world.pods[&key];
        world.volumes.admit(pod)
    }

    #[test]
    fn a_pod_runs_elsewhere_when_its_volume_has_left_the_node_before() {
        let mut world = world(0);
        assert!(runs_on(&mut world, "a"));
        let waits = (0..60).take_while(|_| !runs_on(&mut world, "b")).count();
        assert!((1..=DETACHES_WITHIN).contains(&waits), "{waits} s");
        assert_eq!(world.volumes.nodes().into_iter().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn a_volume_leaves_when_its_pod_has_gone_in_time() {
        for (late, leaves) in [(0, true), (59, true), (60, false)] {
            let mut world = world(0);
            assert!(runs_on(&mut world, "a"));
            let ends = world.now;
            world.pods.values_mut().for_each(|pod| pod.deletes_at = Some(ends));
            world.now += SignedDuration::from_secs(late);
            world.detach();
            world.pods.clear();
            world.detach();
            let (gone, mut attached) = (world.now, world.volumes.attached_to("a"));
            assert!(attached.all(|(_, one)| !one.is_leaving(gone - SignedDuration::from_secs(1))));
            let leaving = world.volumes.attached_to("a").filter(|(_, one)| one.is_leaving(gone)).count();
            assert_eq!(leaving == 1, leaves, "{late} s late");
        }
    }

    #[test]
    fn what_is_leaked_is_there_until_its_node_has_gone() {
        let mut world = world(1000);
        assert!(runs_on(&mut world, "a"));
        assert!(runs_on(&mut world, "b"), "nobody waits for it");
        assert!((0..3600).all(|_| runs_on(&mut world, "b")));
        assert_eq!((world.volumes.attached_to("a").count(), world.volumes.leaked), (1, 1));
        world.nodes.remove("a");
        assert!(runs_on(&mut world, "b"));
        assert_eq!(world.volumes.attached_to("a").count(), 0);
    }
}

//! The world: what the API server holds, and everybody but karp who changes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::account::Account;
use super::check::MOST_VIOLATIONS;
use super::check::answers::Answers;
use super::check::budgets::Disrupting;
use super::check::flapping::Successors;
use super::cloud::Instance;
use super::drift::stamp;
use super::queue::Queue;
use super::random::Random;
use super::refusal::Refused;
use super::volumes::Volumes;
use super::watch::Past;
use super::{Faults, Skew, Violation};
use crate::api::NodeClaim;
use crate::api::labels;
use crate::catalogue::Catalogue;
use crate::cluster::{Claim, DaemonSet, Node, Phase, Pod, PodBudget, PodKey, Pool, Settings, Snapshot};
use crate::eviction::Answer;

/// Nodes that may get so old do not in any run.
const LASTING: SignedDuration = SignedDuration::from_hours(24);

/// A deployment and its budget.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What its pods are like; names and UIDs are made from it.
    pub pod: Pod,
    /// How many there are to be.
    pub replicas: usize,
    /// The most that chance scales it to.
    pub most: usize,
    /// `minAvailable` of its budget, if it has one, and the budget.
    pub budget: Option<(usize, PodBudget)>,
}

/// Holds the cluster and the cloud at one moment of virtual time.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub(super) now: Timestamp,
    pub(super) random: Random,
    pub(super) faults: Faults,
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) pools: Vec<Arc<Pool>>,
    pub(super) workloads: Vec<Workload>,
    pub(super) claims: BTreeMap<String, NodeClaim>,
    pub(super) nodes: BTreeMap<String, core::Node>,
    pub(super) pods: BTreeMap<PodKey, Pod>,
    pub(super) instances: BTreeMap<String, Instance>,
    pub(super) settings: Settings,
    pub(super) count: u64,
    pub(super) launches: u32,
    pub(super) batches: u32,
    pub(super) evictions: u32,
    pub(super) commands: u32,
    pub(super) repairs: u32,
    pub(super) resumed: u32,
    /// How often a controller was killed.
    pub(super) killed: u32,
    /// Replacements whose command was taken back.
    pub(super) given_up: BTreeSet<String>,
    /// When karp last wrote anything.
    pub(super) written: Timestamp,
    pub(super) violations: Vec<Violation>,
    /// How far the controller's clock is off, in seconds.
    pub(super) skew: i64,
    /// Nodes that ever joined.
    pub(super) joined: u32,
    /// What plans say of pods, and claims that took the place of others.
    pub(super) answers: Answers,
    pub(super) successors: Successors,
    pub(super) reordered: u32,
    /// What watches go by.
    pub(super) past: Pasts,
    /// The election of who acts, and who does.
    pub(super) lease: Option<LeaseSpec>,
    pub(super) acting: Option<String>,
    /// The process whose turn it is, and what EC2 counts of the account's calls.
    pub(super) process: String,
    pub(super) account: Account,
    pub(super) refused: Refused,
    /// What AWS tells; instances that it warned of, and claims that were told.
    pub(super) queue: Queue,
    pub(super) warnings: u32,
    pub(super) recalls: u32,
    /// Pools ask to leave on mere advice.
    pub(super) follows_advice: bool,
    /// A controller acted to the end of this second; when none last did.
    pub(super) served: bool,
    pub(super) unserved: Timestamp,
    pub(super) conflicts: u32,
    pub(super) takeovers: u32,
    /// The API server is away until then, and has been since; when it last was; requests that it did not answer.
    pub(super) away: Option<Timestamp>,
    pub(super) left: Option<Timestamp>,
    pub(super) back: Timestamp,
    pub(super) unanswered: u32,
    /// When faults were over, and how long it took then until all pods ran.
    pub(super) calm: Option<Timestamp>,
    pub(super) healed: Option<SignedDuration>,
    /// Times that prices changed.
    pub(super) repriced: u32,
    /// EC2 has no capacity until then.
    pub(super) spent: Option<Timestamp>,
    /// Recalls that were taken back.
    pub(super) stays: u32,
    /// For how long nothing may be written at the end.
    pub(super) rest: Option<SignedDuration>,
    /// The hash of the template that each claim's node was planned by, whatever the claim says; times that a template was changed.
    pub(super) templates: BTreeMap<String, String>,
    pub(super) edits: u32,
    /// What goes of karp's own will, and replacements of commands that another one began beside.
    pub(super) disrupting: Disrupting,
    pub(super) overtaken: BTreeSet<String>,
    /// The pool of each node for which a command began, as it was seen then; times that a pool's budgets were changed.
    pub(super) promised: BTreeMap<String, Arc<Pool>>,
    pub(super) rebudgeted: u32,
    pub(super) volumes: Volumes,
    /// New pods take the names of those that are gone.
    lasting_names: bool,
    /// The run ends when this invariant breaks.
    pub(super) until: Option<String>,
    daemons: Vec<Arc<DaemonSet>>,
    /// When it began.
    start: Timestamp,
}

/// The past of each kind that is watched.
#[derive(Clone, Debug, Default)]
pub(super) struct Pasts {
    pub(super) claims: Past<String, NodeClaim>,
    pub(super) nodes: Past<String, core::Node>,
    pub(super) pods: Past<PodKey, Pod>,
    pub(super) budgets: Past<PodKey, Arc<PodBudget>>,
    pub(super) pools: Past<Arc<str>, Arc<Pool>>,
}

impl World {
    /// Makes a world at a moment, with pools that buy from one catalogue, and workloads to run.
    pub fn new(now: Timestamp, catalogue: Catalogue, pools: Vec<Pool>, workloads: Vec<Workload>) -> Self {
        let pools = pools.into_iter().map(Arc::new).collect();
        World { now, written: now, catalogue: Arc::new(catalogue), pools, workloads, ..World::default() }
    }

    /// Sets what the controller is told beside its objects.
    #[must_use]
    pub fn with_settings(self, settings: Settings) -> Self {
        World { settings, ..self }
    }

    /// Lets pools replace nodes that EC2 recommends to leave.
    #[must_use]
    pub fn following_advice(self) -> Self {
        World { follows_advice: true, ..self }
    }

    /// Lets new pods take the names of those that are gone, as a StatefulSet's do.
    #[must_use]
    pub fn with_lasting_names(self) -> Self {
        World { lasting_names: true, ..self }
    }

    /// Ends the run in the second in which an invariant breaks, such as `S-1`.
    #[must_use]
    pub fn until_broken(self, invariant: &str) -> Self {
        World { until: Some(invariant.to_owned()), ..self }
    }

    /// Adds daemons, which are planned with and never run.
    #[must_use]
    pub fn with_daemons(self, daemons: Vec<DaemonSet>) -> Self {
        World { daemons: daemons.into_iter().map(Arc::new).collect(), ..self }
    }

    /// Returns the pool of a name.
    pub(super) fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        self.pools.iter().find(|pool| &*pool.name == name)
    }

    /// Waits at the end until nothing has been written for so long, which is more than 5 min.
    #[must_use]
    pub fn resting(self, rest: SignedDuration) -> Self {
        World { rest: Some(rest), ..self }
    }

    /// Faults are over: what is launched from now on gets old, so that there is an end to what goes on by itself.
    pub(super) fn calm_down(&mut self) {
        self.calm = Some(self.now);
        for pool in self.pools.iter_mut().filter(|pool| pool.expire_after.is_some_and(|age| age < LASTING)) {
            let (before, hash) = (pool.hash.clone(), format!("{} that lasts", pool.hash));
            let pool = Arc::make_mut(pool);
            (pool.expire_after, pool.hash) = (None, hash.as_str().into());
            // those that are there come of age, and drift no more than before
            for (name, template) in self.templates.iter_mut().filter(|(_, template)| **template == *before) {
                template.clone_from(&hash);
                if let Some(claim) = self.claims.get_mut(name) {
                    stamp(claim, &hash);
                }
            }
        }
    }

    pub(super) fn begin(&mut self, seed: u64) {
        self.random = Random::new(seed);
        self.volumes.begin(seed);
        self.start = self.now;
        self.note();
    }

    /// How long it has lasted: a clock that nothing sets.
    pub(super) fn uptime(&self) -> Duration {
        Duration::try_from(self.now.duration_since(self.start)).unwrap_or_default()
    }

    /// Lets a second pass for everybody but karp.
    pub(super) fn tick(&mut self) {
        self.now += SignedDuration::from_secs(1);
        self.come_and_go();
        self.move_prices();
        self.run_out();
        let away = self.is_away();
        if !away {
            self.meddle();
        }
        self.share_account();
        self.change_rights();
        self.announce();
        self.pass_in_cloud();
        if !away {
            self.join();
            self.kubelets();
            self.detach();
            self.controllers();
            self.schedule();
        }
        self.note();
    }

    /// Notes how things are, for those who watch.
    pub(super) fn note(&mut self) {
        self.past.claims.note(self.now, &self.claims);
        self.past.nodes.note(self.now, &self.nodes);
        self.past.pods.note(self.now, &self.pods);
        let budgets = self.budgets().into_iter().map(|budget| (budget.key.clone(), budget)).collect();
        self.past.budgets.note(self.now, &budgets);
        let pools = self.pools.iter().map(|pool| (pool.name.clone(), pool.clone())).collect();
        self.past.pools.note(self.now, &pools);
    }

    /// Whether a claim is still as it was seen; a write to another version is a conflict.
    pub(super) fn is_current(&mut self, seen: &NodeClaim) -> bool {
        let same = self.claims.get(seen.metadata.name.as_deref().unwrap_or_default()) == Some(seen);
        let current = same && !self.random.happens(self.faults.conflicts_permille);
        self.conflicts += u32::from(!current);
        current
    }

    /// The time by the controller's clock.
    pub(super) fn clock(&self) -> Timestamp {
        self.now + SignedDuration::from_secs(self.skew)
    }

    pub(super) fn violate(&mut self, invariant: &'static str, what: String) {
        if self.violations.len() < MOST_VIOLATIONS {
            self.violations.push(Violation { invariant, what, at: self.now });
        }
    }

    /// Users and clocks.
    fn meddle(&mut self) {
        let names: Vec<String> = self.claims.keys().cloned().collect();
        let now = self.now;
        if !names.is_empty() && self.random.happens(self.faults.deletes_permille) {
            let unlucky = &names[self.random.below(names.len())];
            if let Some(claim) = self.claims.get_mut(unlucky) {
                claim.metadata.deletion_timestamp.get_or_insert(Time(now));
            }
        }
        if !names.is_empty() && self.random.happens(self.faults.drifts_permille) {
            let drifted = &names[self.random.below(names.len())];
            self.outdate(drifted);
        }
        self.change_budgets();
        if !names.is_empty() && self.random.happens(self.faults.forgets_permille) {
            let unlucky = &names[self.random.below(names.len())];
            self.claims.remove(unlucky);
        }
        if let Some(Skew { from, to, permille }) = self.faults.clock
            && (!(i64::from(from)..=i64::from(to)).contains(&self.skew) || self.random.happens(permille))
        {
            self.skew = i64::from(from) + self.random.below((to - from).unsigned_abs() as usize + 1) as i64;
        }
    }

    /// Pods end when their grace is over, at once when their node is gone; others on a ready node run, when their volumes are attached.
    fn kubelets(&mut self) {
        let now = self.now;
        let alive: BTreeMap<&str, bool> =
            self.nodes.iter().map(|(name, node)| (name.as_str(), is_ready(node))).collect();
        let (random, clings) = (&mut self.random, self.faults.clings_permille);
        let mut ends = |pod: &Pod| pod.deletes_at.is_some_and(|at| at <= now) && !random.happens(clings);
        self.pods.retain(|_, pod| match pod.node.as_deref().map(|node| alive.get(node)) {
            None => pod.deletes_at.is_none(),
            Some(None) => false,
            Some(Some(true)) => !ends(pod),
            Some(Some(false)) => true,
        });
        for pod in self.pods.values_mut() {
            let bound = pod.node.as_deref().is_some_and(|node| alive.get(node) == Some(&true));
            let runs = bound && self.volumes.admit(pod);
            pod.ready = runs && pod.deletes_at.is_none();
            if runs && pod.phase == Phase::Pending {
                (pod.phase, pod.started) = (Phase::Running, Some(now));
            }
        }
    }

    /// Workload controllers keep their replicas.
    fn controllers(&mut self) {
        for at in 0..self.workloads.len() {
            if self.random.happens(self.faults.scales_permille) {
                let most = self.workloads[at].most;
                self.workloads[at].replicas = self.random.below(most + 1);
            }
            let (wanted, template) = (self.workloads[at].replicas, self.workloads[at].pod.clone());
            if self.volumes.has(&template) {
                self.keep_ordinals(&template, wanted, self.workloads[at].most);
                continue;
            }
            let own = |pod: &Pod| pod.labels == template.labels && pod.deletes_at.is_none();
            let present: Vec<PodKey> = self.pods.values().filter(|pod| own(pod)).map(|pod| pod.key.clone()).collect();
            for key in present.iter().skip(wanted) {
                if let Some(pod) = self.pods.get_mut(key) {
                    pod.deletes_at = Some(self.now + SignedDuration::from_secs(2));
                }
            }
            for _ in present.len()..wanted {
                let uid = self.new_uid(&template.key);
                let key = self.new_key(&template.key, &uid);
                self.add_pod(&template, key, &uid);
            }
        }
    }

    pub(super) fn add_pod(&mut self, template: &Pod, key: PodKey, uid: &str) {
        let pod = Pod { key: key.clone(), uid: uid.into(), created: Some(self.now), ..template.clone() };
        self.pods.insert(key, pod);
    }

    pub(super) fn new_uid(&mut self, workload: &PodKey) -> String {
        self.count += 1;
        format!("{}-{}", workload.name, self.count)
    }

    /// The key of a workload's new pod: one that no pod ever had, or the first that is free.
    fn new_key(&self, workload: &PodKey, uid: &str) -> PodKey {
        if !self.lasting_names {
            return PodKey::new(&workload.namespace, uid);
        }
        let mut at = 0;
        loop {
            let key = PodKey::new(&workload.namespace, &format!("{}-{at}", workload.name));
            if !self.pods.contains_key(&key) {
                return key;
            }
            at += 1;
        }
    }

    /// The stamp that pods leave on the claim of their node.
    pub(super) fn pod_event(&mut self, node: &str) {
        let now = self.now;
        let on_it =
            |claim: &&mut NodeClaim| claim.status.as_ref().is_some_and(|s| s.node_name.as_deref() == Some(node));
        if let Some(status) = self.claims.values_mut().find(on_it).and_then(|claim| claim.status.as_mut()) {
            status.last_pod_event_time = Some(now);
        }
    }

    /// Budgets as the disruption controller states them now.
    pub(super) fn budgets(&self) -> Vec<Arc<PodBudget>> {
        let one = |workload: &Workload| {
            let (least, budget) = workload.budget.as_ref()?;
            let healthy = self.pods.values().filter(|pod| pod.labels == workload.pod.labels && pod.ready).count();
            let allowed = u32::try_from(healthy.saturating_sub(*least)).unwrap_or(u32::MAX);
            Some(Arc::new(PodBudget { disruptions_allowed: allowed, ..budget.clone() }))
        };
        self.workloads.iter().filter_map(one).collect()
    }

    /// The Eviction API: one that is bound to a UID takes no other pod of that name.
    pub(super) fn evict(&mut self, request: &Value) -> Answer {
        let budgets = self.budgets();
        let now = self.now;
        let said = |path: &str| request.pointer(path).and_then(Value::as_str);
        let [namespace, name] = ["/metadata/namespace", "/metadata/name"].map(|path| said(path).unwrap_or_default());
        let (key, uid) = (&PodKey::new(namespace, name), said("/deleteOptions/preconditions/uid"));
        let is_meant = |pod: &&mut Pod| uid.is_none_or(|uid| &*pod.uid == uid);
        let Some(pod) = self.pods.get_mut(key).filter(is_meant) else { return Answer::Done };
        if pod.is_protected(now) {
            self.violate("S-2", format!("{key} was evicted although it has do-not-disrupt"));
            return Answer::Done;
        }
        if crate::cluster::blocking(&budgets, pod).is_some() {
            return Answer::Budget;
        }
        if pod.deletes_at.is_none() {
            pod.deletes_at = Some(now + SignedDuration::from_secs(pod.grace_seconds.min(5)));
            pod.ready = false;
            self.evictions += 1;
            super::check::budgets::is_evicted_rightly(self, key);
        }
        Answer::Done
    }

    /// The deletion of a pod past budgets: only so late that its grace would not end before the deadline.
    pub(super) fn force(&mut self, key: &PodKey, uid: &str, grace: i64, deadline: Option<Timestamp>) {
        let now = self.now;
        let Some(pod) = self.pods.get_mut(key).filter(|pod| &*pod.uid == uid) else { return };
        pod.deletes_at = Some(now + SignedDuration::from_secs(grace.min(5)));
        let latest = SignedDuration::from_secs(pod.grace_seconds.max(1) + 1 + self.skew.abs());
        if deadline.is_none_or(|deadline| now + latest < deadline) {
            self.violate("S-2", format!("{key} was deleted by force long before its deadline"));
        }
    }

    /// What there is.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            pods: self.pods.values().cloned().map(Arc::new).collect(),
            nodes: self.nodes.values().filter_map(|node| Node::from_kube(node).ok()).map(Arc::new).collect(),
            claims: self.claims.values().filter_map(|claim| Claim::from_kube(claim).ok()).map(Arc::new).collect(),
            ..self.bare_snapshot(self.catalogue.clone())
        }
    }

    /// The same without nodes, claims and pods.
    pub(super) fn bare_snapshot(&self, catalogue: Arc<Catalogue>) -> Snapshot {
        let class = self.pools.first().map_or_else(|| "default".into(), |pool| pool.class.name.clone());
        Snapshot {
            pools: self.pools.clone(),
            daemons: self.daemons.clone(),
            budgets: self.budgets(),
            catalogues: [(class, catalogue)].into_iter().collect(),
            settings: self.settings.clone(),
            ..Snapshot::empty(self.clock())
        }
    }
}

pub(super) fn is_ready(node: &core::Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether a node is on its way out by its taint.
pub(super) fn is_tainted(node: &core::Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == labels::DISRUPTED)
}

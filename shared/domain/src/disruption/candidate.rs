//! Candidates: the nodes that karp made, with what speaks against disrupting each.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Candidate, Cause, KeepReason, Verdict};
use crate::api::{conditions, labels};
use crate::catalogue::{CapacityType, Price};
use crate::cluster::{
    Claim, ExpirationGrace, Host, Node, Owner, Pod, PodBudget, PodKey, Pool, Readiness, Reason, Snapshot, Volumes,
    allowed, blocking,
};
use crate::lifecycle::{Ailment, Ward};
use crate::scheduling::{InFlightNode, Problem, Solution, Target, solve_problem, successor};

/// Pods that come together are a burst when they are more than this, and than one in so many of those that run, for so long at most.
const LEAST_BURST: usize = 200;
const BURST_SHARE: usize = 4;
const LONGEST_BURST: SignedDuration = SignedDuration::from_mins(5);

/// A move that saves this share of a node's price, in thousandths, is worth any number of pods.
const WORTH_ANY_PERMILLE: u64 = 500;

/// The snapshot, solved once, with the candidates and what budgets leave.
pub(super) struct Field<'a> {
    pub(super) problem: Problem<'a>,
    pub(super) entries: Vec<Entry>,
    /// How many more nodes of each pool its budgets let go, by reason. Windows are read once and not for each node of each set that is tried.
    budgets: BTreeMap<(Arc<str>, Reason), u32>,
    weights: BTreeMap<Arc<str>, Weight>,
    /// PodDisruptionBudgets by their namespace: there may be one for every few pods, and every pod asks.
    guards: FxHashMap<Arc<str>, Vec<Arc<PodBudget>>>,
    /// Nodes by their pool, and all nodes under no pool.
    wards: BTreeMap<Option<Arc<str>>, Ward>,
    /// What takes the place of a node of each static pool that has outdated ones.
    successors: BTreeMap<Arc<str>, Result<InFlightNode, KeepReason>>,
    /// How many pods are about to take their places, where they are many.
    pub(super) burst: Option<usize>,
}

/// What the candidates of a pool cost, and what moving all their pods would.
#[derive(Clone, Copy, Default)]
pub(super) struct Weight {
    pub(super) price: Price,
    pub(super) disruption_milli: u64,
}

#[derive(Default)]
struct Counts {
    total: u32,
    disrupting: u32,
}

/// A candidate and what is known of it.
pub(super) struct Entry {
    pub(super) candidate: Candidate,
    /// Place in [`Problem::hosts`].
    pub(super) host: usize,
    pub(super) claim: Arc<Claim>,
    pub(super) node: Option<Arc<Node>>,
    pub(super) pool: Option<Arc<Pool>>,
    pub(super) capacity_type: Option<CapacityType>,
    /// Pods on it that would want another node.
    pub(super) pods: Vec<Arc<Pod>>,
    /// All pods on it that have not ended, daemons and static pods included: any of them may ask to be left alone.
    present: Vec<Arc<Pod>>,
    nominated: Option<PodKey>,
}

impl<'a> Field<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        let mut problem = Problem::new(snapshot);
        let solution = solve_problem(&problem);
        let mut planned: BTreeMap<Target, PodKey> = BTreeMap::new();
        for placement in &solution.placements {
            planned.entry(placement.target.clone()).or_insert_with(|| placement.pod.clone());
        }
        for pod in snapshot.pods.iter().filter(|pod| pod.is_coming()) {
            if let Some(node) = &pod.nominated {
                planned.entry(Target::Node(node.clone())).or_insert_with(|| pod.key.clone());
            }
        }
        let mut entries = Vec::new();
        let mut counts: BTreeMap<Arc<str>, Counts> = BTreeMap::new();
        for (at, state) in problem.hosts.iter().enumerate() {
            // A node whose claim is gone may still be on its way out: it takes of the budget, too.
            count(&mut counts, &state.host);
            let Some(claim) = state.host.claim.clone().filter(|claim| claim.class.is_ours()) else { continue };
            let pods = state.host.node.as_ref().and_then(|node| problem.pods_by_node.get(&node.name));
            let pods = pods.map(Vec::as_slice).unwrap_or_default();
            let target = match &state.host.node {
                Some(node) => Target::Node(node.name.clone()),
                None => Target::Claim(claim.name.clone()),
            };
            entries.push(entry(snapshot, at, &state.host, claim, pods, planned.get(&target).cloned()));
        }
        entries.sort_by(|a, b| a.candidate.cmp(&b.candidate));
        problem.book(&solution);
        let mut weights: BTreeMap<Arc<str>, Weight> = BTreeMap::new();
        for entry in &entries {
            let weight = weights.entry(entry.candidate.pool.clone()).or_default();
            weight.price = weight.price + entry.candidate.price.unwrap_or_default();
            weight.disruption_milli += entry.disruption_cost_milli();
        }
        let wards = wards(snapshot);
        let burst = burst(snapshot, &solution);
        let successors = successors(&problem, &entries);
        let budgets = budgets(snapshot, &counts);
        let mut guards: FxHashMap<Arc<str>, Vec<Arc<PodBudget>>> = FxHashMap::default();
        for guard in &snapshot.budgets {
            guards.entry(guard.key.namespace.clone()).or_default().push(guard.clone());
        }
        let mut field = Field { problem, entries, budgets, weights, guards, wards, successors, burst };
        field.close_what_goes();
        field
    }

    /// No pod moves to a node that goes by force.
    fn close_what_goes(&mut self) {
        let gone = self.entries.iter().filter(|entry| self.by_force(entry).is_some());
        let gone: Vec<usize> = gone.map(|entry| entry.host).collect();
        gone.into_iter().for_each(|at| self.problem.hosts[at].open = false);
    }

    /// Answers why a node goes now whatever budgets and pods say, if it does.
    pub(super) fn by_force(&self, entry: &Entry) -> Option<Cause> {
        // also one whose replacement is waited for: that may take long, and age waits for nobody
        let goes = entry.claim.deleting.is_some();
        if !goes && entry.expires_at().is_some_and(|at| at <= self.problem.snapshot.now) {
            return Some(Cause::Expired);
        }
        let is_due = !entry.is_leaving() && matches!(self.repair(entry), Some(Verdict::Delete(_)));
        is_due.then_some(Cause::Unhealthy)
    }

    /// Answers what takes the place of a node of a static pool.
    pub(super) fn successor(&self, pool: &str) -> Result<InFlightNode, KeepReason> {
        self.successors.get(pool).cloned().unwrap_or(Err(KeepReason::Static))
    }

    /// Answers what the candidates of a pool weigh together.
    pub(super) fn weight(&self, pool: &str) -> Weight {
        self.weights.get(pool).copied().unwrap_or_default()
    }

    /// Answers what is to be done with a node that is ill: nothing as long as that is borne, or while too many others are.
    pub(super) fn repair(&self, entry: &Entry) -> Option<Verdict> {
        let snapshot = self.problem.snapshot;
        let ailment = entry.node.as_ref().filter(|_| snapshot.settings.repair)?.ailment?;
        if ailment.due > snapshot.now {
            return None;
        }
        let pool = entry.claim.pool.clone();
        let ward = self.wards.get(&pool).copied().unwrap_or_default();
        Some(match ward.is_full() {
            true => Verdict::Keep(KeepReason::TooManyUnhealthy { pool, ward }),
            false => Verdict::Delete(Cause::Unhealthy),
        })
    }

    /// Answers the least that giving up a candidate must save per hour.
    pub(super) fn least_saving(&self, entry: &Entry) -> Price {
        let settings = &self.problem.snapshot.settings;
        let price = entry.candidate.price.unwrap_or_default();
        let weight = self.weight(&entry.candidate.pool);
        let own = entry.pool.as_ref().and_then(|pool| pool.consolidation_floor);
        let floor = own.unwrap_or(settings.consolidation_floor);
        let share = floor.permille().saturating_mul(entry.disruption_cost_milli());
        let pods = weight.price.scaled(share, weight.disruption_milli.saturating_mul(1000).max(1));
        let share = price.scaled(settings.saving_floor_permille.min(1000), 1000);
        share.max(pods.min(price.scaled(WORTH_ANY_PERMILLE, 1000)))
    }

    /// Answers the PodDisruptionBudget that forbids evicting a pod now.
    fn guard(&self, pod: &Pod) -> Option<&PodBudget> {
        blocking(self.guards.get(&pod.key.namespace)?, pod)
    }

    /// Answers how many more nodes of a pool may be disrupted for a cause now.
    pub(super) fn budget(&self, pool: &Pool, cause: Cause) -> u32 {
        let Some(reason) = cause.budget() else { return u32::MAX };
        self.budgets.get(&(pool.name.clone(), reason)).copied().unwrap_or(0)
    }
}

/// Answers what static pools launch for nodes that are not as they want them. A pool that has too many nodes gives one back first, which may be one
/// of those.
fn successors(problem: &Problem<'_>, entries: &[Entry]) -> BTreeMap<Arc<str>, Result<InFlightNode, KeepReason>> {
    let snapshot = problem.snapshot;
    let mut found = BTreeMap::new();
    let outdated =
        entries.iter().filter(|entry| snapshot.settings.static_capacity && entry.outdated(snapshot.now).is_some());
    for pool in outdated.filter_map(Entry::static_pool) {
        if found.contains_key(&pool.name) {
            continue;
        }
        let stays = |host: &Host| host.claim.is_some() && host.pool() == Some(&pool.name) && !host.is_leaving();
        let there = problem.hosts.iter().filter(|state| stays(&state.host)).count() as u64;
        let answer = match pool.replicas.is_some_and(|replicas| there > replicas) {
            true => Err(KeepReason::AfterAnother),
            false => successor(snapshot, pool)
                .map_err(|misfit| KeepReason::NoSuccessor { pool: pool.name.clone(), misfit: misfit.into() }),
        };
        found.insert(pool.name.clone(), answer);
    }
    found
}

/// Answers how many pods came a short while ago and are about to take their places, where that is a large part of the cluster.
fn burst(snapshot: &Snapshot, solution: &Solution) -> Option<usize> {
    let refused: FxHashSet<&PodKey> = solution.unschedulable.iter().map(|refused| &refused.pod).collect();
    let is_new = |pod: &Pod| pod.created.is_some_and(|at| snapshot.now.duration_since(at).abs() < LONGEST_BURST);
    let arrives = |pod: &&Arc<Pod>| pod.is_provisionable() && is_new(pod) && !refused.contains(&pod.key);
    let arriving = snapshot.pods.iter().filter(arrives).count();
    let there = snapshot.pods.iter().filter(|pod| pod.node.is_some() && pod.is_reschedulable()).count();
    (arriving > LEAST_BURST && arriving * BURST_SHARE > there).then_some(arriving)
}

/// What the budgets of a pool come to for a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedDisruptions {
    /// The pool.
    pub pool: Arc<str>,
    /// The reason.
    pub reason: Reason,
    /// How many more nodes may go now.
    pub left: u32,
    /// How many nodes use the budgets up, whatever the reason: those that are going or not ready.
    pub consuming: u32,
}

/// Answers what the budgets of each pool let go now, for each reason.
pub fn allowed_disruptions(snapshot: &Snapshot) -> Vec<AllowedDisruptions> {
    let mut counts = BTreeMap::new();
    snapshot.hosts().iter().for_each(|host| count(&mut counts, host));
    let of_pool = |pool: &Arc<Pool>| {
        let (total, consuming) = counts.get(&pool.name).map_or((0, 0), |of: &Counts| (of.total, of.disrupting));
        REASONS.map(|reason| AllowedDisruptions {
            pool: pool.name.clone(),
            reason,
            left: left(&counts, pool, reason, snapshot.now).min(total),
            consuming,
        })
    };
    snapshot.pools.iter().filter(|pool| pool.is_ours()).flat_map(of_pool).collect()
}

/// The reasons for which karp asks budgets.
const REASONS: [Reason; 3] = [Reason::Underutilized, Reason::Empty, Reason::Drifted];

/// Answers what the budgets of each of karp's pools leave, for each reason.
fn budgets(snapshot: &Snapshot, counts: &BTreeMap<Arc<str>, Counts>) -> BTreeMap<(Arc<str>, Reason), u32> {
    let of_pool = |pool: &Arc<Pool>| {
        REASONS.map(|reason| ((pool.name.clone(), reason), left(counts, pool, reason, snapshot.now)))
    };
    snapshot.pools.iter().filter(|pool| pool.is_ours()).flat_map(of_pool).collect()
}

fn left(counts: &BTreeMap<Arc<str>, Counts>, pool: &Pool, reason: Reason, now: Timestamp) -> u32 {
    let none = Counts::default();
    let counts = counts.get(&pool.name).unwrap_or(&none);
    allowed(&pool.budgets, reason, counts.total, now).saturating_sub(counts.disrupting)
}

/// The base of a budget: initialized nodes that have a claim, as in Karpenter. Those that are going or not ready use it up; so does one that is going
/// and was not seen to be initialized or has lost its claim, since it may have been one of them a moment ago.
fn count(counts: &mut BTreeMap<Arc<str>, Counts>, host: &Host) {
    let (Some(pool), Some(node)) = (host.pool(), &host.node) else { return };
    let ends = host.claim.as_ref().is_some_and(|claim| claim.since(conditions::INSTANCE_TERMINATING).is_some());
    let (stands, leaving) = (host.claim.is_some() && node.is_initialized(), host.is_leaving());
    if ends || !(stands || leaving) {
        return;
    }
    let counts = counts.entry(pool.into()).or_default();
    counts.total += u32::from(stands);
    counts.disrupting += u32::from(leaving || node.ready != Readiness::Ready);
}

fn entry(
    snapshot: &Snapshot,
    host_at: usize,
    host: &Host,
    claim: Arc<Claim>,
    pods: &[Arc<Pod>],
    nominated: Option<PodKey>,
) -> Entry {
    let pool = claim.pool.as_ref().and_then(|name| snapshot.pool(name)).filter(|pool| pool.is_ours()).cloned();
    let capacity_type = host.label(labels::CAPACITY_TYPE).and_then(|text| text.parse().ok());
    let candidate = Candidate {
        claim: claim.name.clone(),
        uid: claim.uid.clone(),
        node: host.node.as_ref().map(|node| node.name.clone()),
        pool: claim.pool.clone().unwrap_or_else(|| "".into()),
        price: price(snapshot, &claim, host),
    };
    let present: Vec<Arc<Pod>> = pods.iter().filter(|pod| pod.deletes_at.is_none()).cloned().collect();
    let pods = present.iter().filter(|pod| pod.is_reschedulable()).cloned().collect();
    Entry { candidate, host: host_at, node: host.node.clone(), claim, pool, capacity_type, pods, present, nominated }
}

/// Counts nodes and those that are ill. One that has not been ready yet counts as ill only when that is not borne any more: many start together.
fn wards(snapshot: &Snapshot) -> BTreeMap<Option<Arc<str>>, Ward> {
    let mut wards: BTreeMap<Option<Arc<str>>, Ward> = BTreeMap::new();
    for node in &snapshot.nodes {
        let counts = |ailment: Ailment| node.is_initialized() || ailment.due <= snapshot.now;
        let ill = usize::from(node.ailment.is_some_and(counts));
        let pool = node.pool().map(|pool| Some(pool.into()));
        for key in pool.into_iter().chain([None]) {
            let ward = wards.entry(key).or_default();
            ward.nodes += 1;
            ward.ill += ill;
        }
    }
    wards
}

/// What a node costs by the present prices, whether or not its offering can be had now.
fn price(snapshot: &Snapshot, claim: &Claim, host: &Host) -> Option<Price> {
    let catalogue = snapshot.catalogues.of(&claim.class.name, claim.pool.as_deref())?;
    let t = catalogue.get(host.label(labels::INSTANCE_TYPE)?)?;
    let zone = host.label(labels::ZONE)?;
    let capacity_type: CapacityType = host.label(labels::CAPACITY_TYPE)?.parse().ok()?;
    let same = |o: &&crate::catalogue::Offering| *o.zone.name == *zone && o.capacity_type == capacity_type;
    t.offerings.iter().find(same).map(|offering| offering.price)
}

/// Answers what karp's nodes cost per hour, those whose price is known.
pub(super) fn price_of(snapshot: &Snapshot) -> Price {
    let ours = |host: &Host| host.claim.clone().filter(|claim| claim.class.is_ours());
    let known = |host: &Host| ours(host).and_then(|claim| price(snapshot, &claim, host));
    snapshot.hosts().iter().filter_map(known).sum()
}

impl Entry {
    /// Answers what forbids disrupting the node by karp's own will, whatever the method.
    pub(super) fn obstacle(&self, field: &Field<'_>) -> Option<KeepReason> {
        let snapshot = field.problem.snapshot;
        if self.is_leaving() {
            return Some(KeepReason::Leaving);
        }
        let Some(pool) = &self.pool else { return Some(KeepReason::NoPool) };
        if pool.is_static() && !(snapshot.settings.static_capacity && self.outdated(snapshot.now).is_some()) {
            return Some(KeepReason::Static);
        }
        let Some(node) = self.node.as_ref().filter(|node| node.is_initialized()) else {
            return Some(KeepReason::NotInitialized);
        };
        if node.is_protected() || self.claim.is_protected() {
            return Some(KeepReason::NodeProtected);
        }
        if let Some(pod) = snapshot.unread.get(&node.name) {
            return Some(KeepReason::PodUnreadable { pod: pod.clone() });
        }
        // a drifted node with a grace period goes in the end whatever its pods say; what goes for less asks them by itself
        let heeds_pods = !(self.is_drifted() && self.claim.termination_grace.is_some());
        let pod_obstacle = || if heeds_pods { self.pod_obstacle(field) } else { None };
        self.nominated.clone().map(|pod| KeepReason::Nominated { pod }).or_else(pod_obstacle)
    }

    fn is_leaving(&self) -> bool {
        self.claim.deleting.is_some()
            || self.node.as_ref().is_some_and(|node| node.deleting.is_some() || node.is_disrupted())
    }

    /// Answers the pod that may not be moved now.
    pub(super) fn pod_obstacle(&self, field: &Field<'_>) -> Option<KeepReason> {
        let disrupted = labels::disrupted_taint();
        self.present.iter().find_map(|pod| {
            if pod.is_protected(field.problem.snapshot.now) {
                return Some(KeepReason::PodProtected { pod: pod.key.clone() });
            }
            // these are never evicted
            if pod.owner == Owner::Node || disrupted.tolerated_by(&pod.shape.tolerations) {
                return None;
            }
            let budget = field.guard(pod)?.key.clone();
            Some(KeepReason::PodBudget { pod: pod.key.clone(), budget })
        })
    }

    /// Answers the pod whose data would be lost with the node: its volume is a disk of it, and kube-scheduler binds the pod nowhere else.
    pub(super) fn keeps_data(&self, volumes: &Volumes) -> Option<KeepReason> {
        let node = self.node.as_ref()?;
        self.pods.iter().find_map(|pod| {
            let claim = volumes.on_disk_of(pod, &node.labels)?;
            Some(KeepReason::LocalVolume { pod: pod.key.clone(), claim })
        })
    }

    /// Says whether the node no longer is what its pool and class say.
    fn is_drifted(&self) -> bool {
        self.claim.since(conditions::DRIFTED).is_some()
    }

    /// Answers when the node goes by force because of its age.
    pub(super) fn expires_at(&self) -> Option<Timestamp> {
        // its pool may give grace, and cannot be read now
        if self.claim.pool.is_some() && self.pool.is_none() {
            return None;
        }
        let grace = self.grace().map_or(SignedDuration::ZERO, ExpirationGrace::length);
        self.claim.expires_at()?.checked_add(grace).ok()
    }

    /// Answers when the node begins to be replaced gently because of its age.
    pub(super) fn ages_at(&self) -> Option<Timestamp> {
        self.claim.expires_at()?.checked_add(self.grace()?.begin(&self.candidate.uid)).ok()
    }

    fn grace(&self) -> Option<ExpirationGrace> {
        self.pool.as_ref()?.expiration_grace
    }

    /// Answers why the node is not as its pool wants it any more.
    pub(super) fn outdated(&self, now: Timestamp) -> Option<Cause> {
        let aged = || self.ages_at().filter(|at| *at <= now).map(|_| Cause::Expiring);
        self.is_drifted().then_some(Cause::Drifted).or_else(aged)
    }

    /// Answers the pool whose number of nodes is fixed.
    pub(super) fn static_pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref().filter(|pool| pool.is_static())
    }

    /// Answers why the node may not be consolidated yet, empty or not.
    pub(super) fn unsettled(&self, now: Timestamp) -> Option<KeepReason> {
        let pool = self.pool.as_ref()?;
        let Some(quiet) = pool.consolidate_after else { return Some(KeepReason::ConsolidationOff) };
        let since = self.claim.since(conditions::INITIALIZED).max(self.claim.last_pod_event)?;
        let until = since.checked_add(quiet).unwrap_or(Timestamp::MAX);
        (now < until).then_some(KeepReason::Settling { until })
    }

    /// Answers what it costs per disruption, in millionths of a dollar an hour: the first to look at is the dearest that few pods are on.
    pub(super) fn saving_ratio(&self) -> u64 {
        let price = u128::from(self.candidate.price.unwrap_or_default().micro_dollars());
        u64::try_from(price * 1000 / u128::from(self.disruption_cost_milli())).unwrap_or(u64::MAX)
    }

    /// Answers what moving its pods costs, in thousandths: 1000 for the node itself and the eviction cost of each pod.
    pub(super) fn disruption_cost_milli(&self) -> u64 {
        1000 + self.pods.iter().map(|pod| u64::try_from(pod.eviction_cost_milli()).unwrap_or(0)).sum::<u64>()
    }
}

//! The controller: it observes the world, asks the production decisions, and acts; it may be killed at any effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::Decisions;
use super::cloud::{Refusal, zone_of};
use super::watch::View;
use super::world::{World, is_ready};
use crate::api::conditions::{self, ConditionStatus};
use crate::api::{NodeClaim, NodeClaimStatus, labels};
use crate::batch::{Batcher, Window};
use crate::cluster::{Assumed, Node, Pod, Snapshot};
use crate::disruption::{Act, Command, Execution, Memory, Progress};
use crate::eviction::{self, Answer, Answers, Drain};
use crate::lifecycle::{self, Allowance, Collector, Outcome, Registrations, Step, Witnesses, is_true, provider_id};
use crate::scheduling::InFlightNode;

/// The controller was killed.
pub(super) struct Killed;

const ATTEMPT: &str = "karp.sh/launch-attempt";
const REST: SignedDuration = SignedDuration::from_secs(15);
/// So many of a thousand decisions are asked again in another order.
const REORDERED_PERMILLE: u32 = 100;
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// What a controller knows that the world does not: all of it may be lost.
pub(super) struct Controller<'d> {
    decisions: &'d dyn Decisions,
    view: View,
    assumed: Assumed,
    batcher: Batcher,
    waiting: usize,
    health: BTreeMap<String, Registrations>,
    collector: Collector,
    collects: Timestamp,
    memory: Memory,
    plans: Timestamp,
    resting: Option<(Command, Timestamp)>,
    running: Vec<(Command, Vec<String>, Execution)>,
    answers: BTreeMap<String, Answers>,
}

impl<'d> Controller<'d> {
    /// Starts a controller: it lists everything.
    pub(super) fn new(decisions: &'d dyn Decisions, world: &World) -> Self {
        Controller {
            decisions,
            view: View::begin(world, decisions),
            assumed: Assumed::default(),
            batcher: Batcher::new(Duration::from_secs(1), Duration::from_secs(10)),
            waiting: 0,
            health: BTreeMap::new(),
            collector: Collector::default(),
            collects: Timestamp::MIN,
            memory: Memory::default(),
            plans: Timestamp::MIN,
            resting: None,
            running: Vec::new(),
            answers: BTreeMap::new(),
        }
    }
}

/// Something is written: the controller may be killed just after it.
fn effect(world: &mut World) -> Result<(), Killed> {
    world.written = world.now;
    super::check::only_the_leader_writes(world);
    call(world)
}

/// The API server answers, and may have changed nothing: the controller may be killed just after it.
fn call(world: &mut World) -> Result<(), Killed> {
    let crash = world.faults.crash_permille;
    if world.random.happens(crash) { Err(Killed) } else { Ok(()) }
}

fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

fn patch_node(world: &mut World, name: &str, patch: impl Fn(&core::Node) -> Value) {
    if let Some(node) = world.nodes.get_mut(name) {
        let mut value = serde_json::to_value(&*node).unwrap_or_default();
        merge(&mut value, &patch(node));
        *node = serde_json::from_value(value).unwrap_or_default();
    }
}

/// Writes a claim's status, unless it has changed since it was seen: that is a conflict, and the next look begins anew.
fn set(
    world: &mut World,
    seen: &NodeClaim,
    change: impl FnOnce(&mut NodeClaimStatus, Timestamp),
) -> Result<(), Killed> {
    let now = world.clock();
    if !world.is_current(seen) {
        return Ok(());
    }
    let Some(claim) = world.claims.get_mut(seen.metadata.name.as_deref().unwrap_or_default()) else { return Ok(()) };
    let mut status = claim.status.clone().unwrap_or_default();
    change(&mut status, now);
    if claim.status.as_ref() != Some(&status) {
        claim.status = Some(status);
        return effect(world);
    }
    Ok(())
}

fn yes(status: &mut NodeClaimStatus, kind: &str, now: Timestamp) {
    conditions::set(&mut status.conditions, kind, ConditionStatus::True, "", "", now);
}

fn delete_claim(world: &mut World, name: &str) -> Result<(), Killed> {
    let now = world.now;
    match world.claims.get_mut(name) {
        Some(claim) if claim.metadata.deletion_timestamp.is_none() => {
            claim.metadata.deletion_timestamp = Some(Time(now));
            effect(world)
        }
        _ => Ok(()),
    }
}

fn taint(world: &mut World, name: &str, on: bool) -> Result<(), Killed> {
    let Some(taints) =
        world.nodes.get_mut(name).and_then(|node| node.spec.as_mut()).map(|spec| spec.taints.get_or_insert_default())
    else {
        return Ok(());
    };
    if taints.iter().any(|taint| taint.key == labels::DISRUPTED) == on {
        return Ok(());
    }
    if on {
        taints.push((&labels::disrupted_taint()).into());
    } else {
        taints.retain(|taint| taint.key != labels::DISRUPTED);
    }
    effect(world)
}

impl Controller<'_> {
    /// Lets the watches go on.
    pub(super) fn watch(&mut self, world: &mut World) {
        self.view.advance(world, self.decisions);
    }

    /// Begins to act after another: its last writes may not be seen yet.
    pub(super) fn take_over(&mut self, world: &World) {
        self.assumed.inherit(world.claims.values(), world.clock());
    }

    /// Lets a second pass.
    pub(super) fn tick(&mut self, world: &mut World) -> Result<(), Killed> {
        for name in self.assumed.doubtful(world.clock()) {
            if !world.claims.contains_key(&*name) {
                self.assumed.forget(&name);
            }
        }
        for name in self.view.claims().keys().cloned().collect::<Vec<_>>() {
            self.claim(world, &name)?;
        }
        for name in self.view.nodes().keys().cloned().collect::<Vec<_>>() {
            self.end_node(world, &name)?;
        }
        self.provision(world)?;
        self.disrupt(world)?;
        self.collect(world)
    }

    fn claim(&mut self, world: &mut World, name: &str) -> Result<(), Killed> {
        let Some(claim) = self.view.claims().get(name).cloned() else { return Ok(()) };
        let on = |node: &&core::Node| {
            provider_id(&claim).is_some()
                && node.spec.as_ref().and_then(|s| s.provider_id.as_deref()) == provider_id(&claim)
        };
        let node = self.view.nodes().values().find(on).cloned();
        let read = node.as_ref().and_then(|node| Node::from_kube(node).ok());
        let pool =
            claim.metadata.labels.as_ref().and_then(|all| all.get(labels::NODE_POOL)).cloned().unwrap_or_default();
        let quiet = world.pools.iter().find(|p| *p.name == *pool).and_then(|pool| pool.consolidate_after);
        match self.decisions.step(&claim, read.as_ref(), quiet, world.clock()).step {
            Step::End => self.end_claim(world, &claim, node.as_ref()),
            Step::Launch => launch(self.decisions, world, &claim),
            Step::Register => {
                let Some(node) = node.and_then(|node| node.metadata.name) else { return Ok(()) };
                patch_node(world, &node, |node| lifecycle::adopt(&claim, node));
                effect(world)?;
                patch_node(world, &node, lifecycle::open);
                effect(world)?;
                if world.is_current(&claim) {
                    world.joined += 1;
                    self.health.entry(pool).or_default().note(Outcome::Joined, world.clock());
                }
                set(world, &claim, |status, now| {
                    status.node_name = Some(node);
                    yes(status, conditions::REGISTERED, now);
                })
            }
            Step::Initialize => {
                let Some(node) = node.and_then(|node| node.metadata.name) else { return Ok(()) };
                patch_node(
                    world,
                    &node,
                    |_| serde_json::json!({"metadata": {"labels": {(labels::INITIALIZED): "true"}}}),
                );
                effect(world)?;
                set(world, &claim, |status, now| yes(status, conditions::INITIALIZED, now))
            }
            Step::Lose => set(world, &claim, |status, now| {
                let unknown = ConditionStatus::Unknown;
                conditions::set(&mut status.conditions, conditions::REGISTERED, unknown, "NodeNotFound", "", now);
            }),
            Step::GiveUp(_) => {
                self.health.entry(pool).or_default().note(Outcome::Missing, world.clock());
                delete_claim(world, name)
            }
            Step::Leave
            | Step::Guard
            | Step::AwaitNode
            | Step::AwaitTaint { .. }
            | Step::AwaitReady(_)
            | Step::Live(_) => Ok(()),
        }
    }

    fn end_claim(&mut self, world: &mut World, claim: &NodeClaim, node: Option<&core::Node>) -> Result<(), Killed> {
        let name = claim.metadata.name.clone().unwrap_or_default();
        if let Some(node) = node {
            let (now, node) = (world.now, node.metadata.name.clone().unwrap_or_default());
            if let Some(node) = world.nodes.get_mut(&node).filter(|node| node.metadata.deletion_timestamp.is_none()) {
                node.metadata.deletion_timestamp = Some(Time(now));
                return effect(world);
            }
            return Ok(());
        }
        let found = world.find(claim.metadata.uid.as_deref().unwrap_or_default()).map(|instance| instance.id);
        let id = provider_id(claim).map(str::to_owned).or(found);
        if id.is_none_or(|id| world.terminate(&id)) && world.is_current(claim) {
            world.claims.remove(&name);
            return effect(world);
        }
        Ok(())
    }

    fn end_node(&mut self, world: &mut World, name: &str) -> Result<(), Killed> {
        let Some(node) = self.view.nodes().get(name).filter(|node| node.metadata.deletion_timestamp.is_some()).cloned()
        else {
            return Ok(());
        };
        let since = node.metadata.deletion_timestamp.as_ref().map_or(world.now, |time| time.0);
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
        let claim = self.view.claims().values().find(|claim| provider_id(claim) == Some(&id)).cloned();
        taint(world, name, true)?;
        let there = world.instances.contains_key(&id);
        let mut until = None;
        if there || is_ready(&node) {
            let on_it = |pod: &&Pod| pod.node.as_deref() == Some(name);
            let pods: Vec<Arc<Pod>> = self.view.pods().values().filter(on_it).cloned().map(Arc::new).collect();
            let grace = claim.as_ref().and_then(|claim| claim.spec.grace());
            let deadline = grace.map(|grace| since.saturating_add(grace).unwrap_or(Timestamp::MAX));
            until = deadline;
            let answers = self.answers.entry(id.clone()).or_default();
            let step = self.decisions.drain(&Drain { pods: &pods, deadline, answers }, world.clock());
            if step == eviction::Step::Drained && self.decisions.lists_before_the_end() {
                let pods: Vec<Arc<Pod>> = world.pods.values().filter(on_it).cloned().map(Arc::new).collect();
                let drain = Drain { pods: &pods, deadline, answers };
                if self.decisions.drain(&drain, world.clock()) != eviction::Step::Drained {
                    return Ok(());
                }
            }
            if let eviction::Step::Wait(wait) = step {
                for target in &wait.evict {
                    let answer = world.evict(&target.pod, &target.uid);
                    answers.note(&target.uid, answer, world.clock());
                    if answer == Answer::Done { effect(world)? } else { call(world)? }
                }
                for forced in &wait.delete {
                    world.force(&forced.pod, &forced.uid, forced.grace_seconds, deadline);
                    effect(world)?;
                }
                return Ok(());
            }
        }
        if world.terminate_drained(&id, name, until) {
            world.nodes.remove(name);
            effect(world)?;
        }
        Ok(())
    }

    fn allowance(&self, world: &World, pool: &str) -> Allowance {
        let joining = self.view.claims().values().filter(|claim| {
            let own = claim.metadata.labels.as_ref().and_then(|all| all.get(labels::NODE_POOL)).map(String::as_str);
            own == Some(pool) && !is_true(claim, conditions::REGISTERED) && claim.metadata.deletion_timestamp.is_none()
        });
        self.health
            .get(pool)
            .map_or(Allowance::All, |known| self.decisions.allowance(known, joining.count(), world.clock()))
    }

    fn snapshot(&mut self, world: &World) -> Snapshot {
        let mut snapshot = self.view.snapshot(world);
        self.decisions.assume(&mut self.assumed, &mut snapshot);
        for pool in &mut snapshot.pools {
            if matches!(self.allowance(world, &pool.name), Allowance::None { .. }) {
                Arc::make_mut(pool).ready = false;
            }
        }
        snapshot
    }

    fn provision(&mut self, world: &mut World) -> Result<(), Killed> {
        let leaving = self.view.nodes().values().filter(|node| node.metadata.deletion_timestamp.is_some()).count();
        let waiting = self.view.pods().values().filter(|pod| pod.is_provisionable()).count() + leaving;
        if waiting > 0 && (waiting != self.waiting || world.now.as_second() % LOOK_AGAIN.as_secs() == 0) {
            self.batcher.add(world.clock());
        }
        self.waiting = waiting;
        if self.batcher.window(world.clock()) != Window::Ripe {
            return Ok(());
        }
        self.batcher.clear();
        let mut tried = BTreeSet::new();
        let snapshot = self.snapshot(world);
        let solution = self.decisions.solve(&snapshot);
        if let Some(other) = reordered(world, &snapshot)
            && self.decisions.solve(&other) != solution
        {
            world.violate("S-16", "another order of the same lists gives another solution".to_owned());
        }
        let said = solution.placements.iter().map(|placement| &placement.pod);
        let said = said.chain(solution.nodes.iter().flat_map(|node| &node.pods));
        let said = said.chain(solution.unschedulable.iter().map(|refused| &refused.pod));
        world.told.extend(said.map(|pod| (pod.clone(), world.now)));
        for node in solution.nodes {
            let trial = self.allowance(world, &node.pool) != Allowance::All;
            if !trial || tried.insert(node.pool.clone()) {
                self.create(world, &node)?;
            }
        }
        Ok(())
    }

    fn disrupt(&mut self, world: &mut World) -> Result<(), Killed> {
        self.take_back_stale_taints(world)?;
        for at in (0..self.running.len()).rev() {
            self.execute(world, at)?;
        }
        if let Some((command, at)) = self.resting.clone() {
            if world.now >= at {
                self.resting = None;
                return self.begin(world, command);
            }
            return Ok(());
        }
        if world.now < self.plans {
            return Ok(());
        }
        let snapshot = self.snapshot(world);
        let plan = self.decisions.plan(&snapshot, &self.memory);
        if let Some(other) = reordered(world, &snapshot)
            && self.decisions.plan(&other, &self.memory).commands != plan.commands
        {
            world.violate("S-16", "another order of the same lists gives another command".to_owned());
        }
        self.memory.examined(plan.resume);
        let look = world.now + LOOK_AGAIN;
        self.plans = plan.next_look.map_or(look, |at| at - SignedDuration::from_secs(world.skew)).min(look);
        for command in plan.commands {
            if command.cause.rests() {
                self.resting = Some((command, world.now + REST));
            } else {
                self.begin(world, command)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, world: &mut World, command: Command) -> Result<(), Killed> {
        let busy =
            |claim: &str| self.running.iter().any(|(other, ..)| other.candidates.iter().any(|c| &*c.claim == claim));
        if command.candidates.iter().any(|candidate| busy(&candidate.claim)) {
            return Ok(());
        }
        if self.decisions.validate(&command, &self.snapshot(world)).is_err() {
            return Ok(());
        }
        super::check::budgets_allow(world, &command);
        super::check::is_cheaper(world, &command);
        world.commands += 1;
        let mut replacements = Vec::new();
        for node in &command.replacements {
            replacements.push(self.create(world, node)?);
        }
        for candidate in &command.candidates {
            if let Some(node) = candidate.node.as_deref() {
                self.assumed.tainted(&candidate.claim);
                taint(world, node, true)?;
            }
        }
        let execution = Execution::new(command.cause, world.clock());
        self.running.push((command, replacements, execution));
        Ok(())
    }

    /// Creates the claim of a planned node.
    fn create(&mut self, world: &mut World, node: &InFlightNode) -> Result<String, Killed> {
        let claim = create(world, node);
        self.assumed.created(&claim, world.clock());
        effect(world)?;
        Ok(claim.metadata.name.unwrap_or_default())
    }

    fn execute(&mut self, world: &mut World, at: usize) -> Result<(), Killed> {
        let (command, replacements, execution) = &self.running[at];
        let progress =
            |name: &String| match self.view.claims().get(name) {
                Some(claim) if claim.metadata.deletion_timestamp.is_none() => {
                    if is_true(claim, conditions::INITIALIZED) { Progress::Initialized } else { Progress::Starting }
                }
                None if self.assumed.awaits(name) => Progress::Starting,
                _ => Progress::Gone,
            };
        let progress: Vec<Progress> = replacements.iter().map(progress).collect();
        let on =
            |pod: &&Pod| pod.node.is_some() && command.candidates.iter().any(|candidate| candidate.node == pod.node);
        let pods: Vec<Arc<Pod>> = self.view.pods().values().filter(on).cloned().map(Arc::new).collect();
        let act = self.decisions.carry_out(execution, &progress, &pods, world.clock());
        if matches!(act, Act::Wait { .. }) {
            return Ok(());
        }
        let (command, ..) = self.running.swap_remove(at);
        for candidate in &command.candidates {
            if act == Act::Delete {
                self.assumed.deleted(&candidate.claim);
                delete_claim(world, &candidate.claim)?;
            } else if let Some(node) = &candidate.node {
                self.assumed.untainted(&candidate.claim);
                taint(world, node, false)?;
            }
        }
        match act {
            Act::Delete => self.memory.succeeded(&command, world.clock()),
            _ => self.memory.failed(&command, world.clock()),
        }
        Ok(())
    }

    /// Taints that no command stands behind: an earlier process left them.
    fn take_back_stale_taints(&mut self, world: &mut World) -> Result<(), Killed> {
        let ours: BTreeSet<&str> = self
            .running
            .iter()
            .flat_map(|(command, ..)| &command.candidates)
            .filter_map(|candidate| candidate.node.as_deref())
            .collect();
        let goes = |id: Option<&str>| {
            let claim = self.view.claims().iter().find(|(_, claim)| id.is_some() && provider_id(claim) == id);
            claim.is_none_or(|(name, claim)| claim.metadata.deletion_timestamp.is_some() || self.assumed.leaves(name))
        };
        let stale = self.view.nodes().iter().filter(|(name, node)| {
            let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
            node.metadata.deletion_timestamp.is_none() && !ours.contains(name.as_str()) && !goes(id)
        });
        let stale: Vec<String> = stale.map(|(name, _)| name.clone()).collect();
        stale.iter().try_for_each(|name| taint(world, name, false))
    }

    fn collect(&mut self, world: &mut World) -> Result<(), Killed> {
        if world.now < self.collects {
            return Ok(());
        }
        self.collects = world.now + LOOK_AGAIN;
        let claims: Vec<Arc<NodeClaim>> = self.view.claims().values().cloned().map(Arc::new).collect();
        let (listed, now) = (world.list(), world.clock());
        let nodes = self.view.nodes();
        let seen = Witnesses { listed: &listed, claims: &claims, is_ready: &|id| ready(nodes, id) };
        let collection = self.decisions.collect(&mut self.collector, &seen, now);
        for id in collection.instances {
            // the watch may be late: the claim is asked for
            let claim = world.instances.get(&id).and_then(|instance| world.claims.get(&instance.claim));
            if claim.is_none() {
                world.terminate(&id);
                effect(world)?;
            }
        }
        for claim in collection.claims {
            let id = provider_id(&claim).unwrap_or_default();
            let alive = world.instances.get(id).is_some_and(|one| one.ends.is_none());
            // the watch may be late: the node is asked for
            if self.decisions.asks_for_the_node() && ready(&world.nodes, id) {
                continue;
            }
            if alive && ready(&world.nodes, id) {
                world.violate("S-6", format!("the claim of {id} was collected while its node ran"));
            }
            delete_claim(world, claim.metadata.name.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }
}

/// The launch, as `controller/src/reconcile/launch.rs` does it: the attempt is written first, and what an earlier try left is adopted.
fn launch(decisions: &dyn Decisions, world: &mut World, claim: &NodeClaim) -> Result<(), Killed> {
    let (name, uid) = (claim.metadata.name.clone().unwrap_or_default(), claim.metadata.uid.clone().unwrap_or_default());
    let tried = claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(ATTEMPT));
    let found = if tried { world.find(&uid) } else { None };
    if !world.is_current(claim) {
        // the digest of the request cannot be written: nothing is asked of EC2
        return Ok(());
    }
    if !tried {
        if let Some(claim) = world.claims.get_mut(&name) {
            claim.metadata.annotations.get_or_insert_default().insert(ATTEMPT.to_owned(), "1".to_owned());
        }
        effect(world)?;
    }
    let instance = match found {
        Some(instance) => instance,
        None => {
            let Ok(wanted) = crate::api::requirements(&claim.spec.requirements) else { return Ok(()) };
            let (types, market) = world.catalogue.select(&wanted);
            let Some(offering) = world.catalogue.ranked(&types, market).into_iter().next() else {
                return delete_claim(world, &name);
            };
            let answer = world.launch(&name, &uid, &decisions.token(&uid, "1", world.clock()), offering);
            effect(world)?;
            match answer {
                Ok(instance) => instance,
                Err(Refusal::NoCapacity) => return delete_claim(world, &name),
                Err(Refusal::LostReply) => {
                    let Some(claim) = world.claims.get(&name).cloned() else { return Ok(()) };
                    return set(world, &claim, |status, now| {
                        let unknown = ConditionStatus::Unknown;
                        conditions::set(&mut status.conditions, conditions::LAUNCHED, unknown, "LaunchFailed", "", now);
                    });
                }
            }
        }
    };
    let kind = world.catalogue.get(&instance.offering.instance_type).cloned();
    if let (Some(claim), Some(kind)) = (world.claims.get_mut(&name), &kind) {
        let all = claim.metadata.labels.get_or_insert_default();
        for (key, values) in &kind.labels {
            if let [value] = values.as_slice() {
                all.insert(key.to_string(), value.to_string());
            }
        }
        all.insert(labels::ZONE.to_owned(), zone_of(&instance).to_string());
        all.insert(labels::CAPACITY_TYPE.to_owned(), instance.offering.capacity_type.to_string());
    }
    effect(world)?;
    let Some(claim) = world.claims.get(&name).cloned() else { return Ok(()) };
    set(world, &claim, |status, now| {
        status.provider_id = Some(instance.id);
        status.capacity = kind.as_ref().map(|kind| kind.capacity.clone());
        status.allocatable = kind.map(|kind| kind.allocatable());
        yes(status, conditions::LAUNCHED, now);
    })
}

/// Says whether the node of an instance is there and ready.
fn ready(nodes: &BTreeMap<String, core::Node>, id: &str) -> bool {
    let on = |node: &&core::Node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == Some(id);
    nodes.values().find(on).is_some_and(is_ready)
}

/// Now and then, the same snapshot with every list in another order: S-16.
fn reordered(world: &mut World, snapshot: &Snapshot) -> Option<Snapshot> {
    if !world.random.happens(REORDERED_PERMILLE) {
        return None;
    }
    world.reordered += 1;
    let mut other = snapshot.clone();
    let random = &mut world.random;
    random.shuffle(&mut other.pods);
    random.shuffle(&mut other.nodes);
    random.shuffle(&mut other.claims);
    random.shuffle(&mut other.pools);
    random.shuffle(&mut other.budgets);
    Some(other)
}

fn create(world: &mut World, node: &InFlightNode) -> NodeClaim {
    world.count += 1;
    let name = format!("{}-{}", node.pool, world.count);
    let mut claim = NodeClaim::new(&name, node.claim_spec());
    claim.metadata.uid = Some(format!("uid-{}", world.count));
    claim.metadata.creation_timestamp = Some(Time(world.now));
    claim.metadata.finalizers = Some(vec![labels::TERMINATION_FINALIZER.to_owned()]);
    claim.metadata.labels = Some(node.claim_labels());
    world.claims.insert(name, claim.clone());
    claim
}

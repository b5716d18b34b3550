//! The controller: it observes the world, asks the production decisions, and acts; it may be killed at any effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Decisions;
use super::account::Action;
use super::batch::Known;
use super::prices::Prices;
use super::turns::Turns;
use super::watch::View;
use super::world::{World, is_ready};
use super::writes::{
    Stop, ask, cut_short, delete_claim, effect, forget_purpose, patch_node, set, survived, taint, wrote, yes,
};
use crate::api::conditions::{self, ConditionStatus};
use crate::api::{NodeClaim, labels};
use crate::batch::{Batcher, Window};
use crate::catalogue::Unavailable;
use crate::cluster::{Assumed, Pod, PodKey, Reply, Snapshot};
use crate::disruption::{self, Act, Begun, Candidate, Cause, Command, Decided, Execution, Memory, Progress};
use crate::eviction::Answers;
use crate::interruption::Recall;
use crate::lifecycle::{
    self, Allowance, Collector, Outcome, Registrations, Step, Suspicion, Witnesses, is_true, provider_id,
};
use crate::scheduling::{InFlightNode, LastPlan};

const REST: SignedDuration = SignedDuration::from_secs(15);
/// So many of a thousand decisions are asked again in another order.
const REORDERED_PERMILLE: u32 = 100;
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// What a controller knows that the world does not: all of it may be lost.
pub(super) struct Controller<'d> {
    pub(super) decisions: &'d dyn Decisions,
    pub(super) turns: Turns,
    /// What EC2 said that it has nothing of.
    pub(super) unavailable: Unavailable,
    pub(super) view: View,
    prices: Prices,
    pub(super) assumed: Assumed,
    pub(super) batcher: Batcher,
    pub(super) plan: LastPlan,
    waiting: usize,
    health: BTreeMap<String, Registrations>,
    collector: Collector,
    collects: Timestamp,
    memory: Memory,
    plans: Timestamp,
    decided: Decided,
    running: Vec<(Command, Vec<String>, Execution)>,
    /// The replacements of commands that an earlier process began, as this one saw them when it looked; nothing before that.
    found: Option<BTreeSet<Arc<str>>>,
    pub(super) answers: BTreeMap<String, Answers>,
    /// Since when nodes have been drained, by instance; their claims say so too.
    pub(super) drained: BTreeMap<String, Timestamp>,
    pub(super) batches: BTreeMap<String, Known>,
    /// UIDs of claims for which nothing more can turn up: EC2 refused all that was asked for them, or what it launched was found.
    pub(super) settled: BTreeSet<String>,
}

impl<'d> Controller<'d> {
    /// Starts a controller: it lists everything.
    pub(super) fn new(decisions: &'d dyn Decisions, world: &World) -> Self {
        Controller {
            decisions,
            turns: Turns::default(),
            unavailable: Unavailable::default(),
            view: View::begin(world, decisions),
            prices: Prices::ask(world),
            assumed: Assumed::default(),
            plan: LastPlan::default(),
            batcher: Batcher::new(Duration::from_secs(1), Duration::from_secs(10)),
            waiting: 0,
            health: BTreeMap::new(),
            collector: Collector::default(),
            collects: Timestamp::MIN,
            memory: Memory::default(),
            plans: Timestamp::MIN,
            decided: Decided::default(),
            running: Vec::new(),
            found: None,
            answers: BTreeMap::new(),
            drained: BTreeMap::new(),
            batches: BTreeMap::new(),
            settled: BTreeSet::new(),
        }
    }
}

impl Controller<'_> {
    /// Lets the watches go on, and asks for what is not watched.
    pub(super) fn watch(&mut self, world: &mut World) {
        self.view.advance(world, self.decisions);
        self.prices.keep_up(world);
    }

    /// Begins to act after another: its last writes may not be seen yet.
    pub(super) fn take_over(&mut self, world: &World) {
        self.assumed.inherit(world.claims.values(), world.clock());
    }

    /// Lets a second pass.
    pub(super) fn tick(&mut self, world: &mut World) -> Result<(), Stop> {
        for name in self.assumed.doubtful(world.clock()) {
            if ask(world).is_ok() && !world.claims.contains_key(&*name) {
                self.assumed.forget(&name);
            }
        }
        survived(self.interruptions(world))?;
        for name in self.view.claims().keys().cloned().collect::<Vec<_>>() {
            survived(self.claim(world, &name))?;
        }
        for name in self.view.nodes().keys().cloned().collect::<Vec<_>>() {
            survived(self.end_node(world, &name))?;
        }
        self.provision(world)?;
        self.replicate(world)?;
        self.disrupt(world)?;
        survived(self.collect(world))
    }

    fn claim(&mut self, world: &mut World, name: &str) -> Result<(), Stop> {
        let Some(claim) = self.view.claims().get(name).cloned() else { return Ok(()) };
        let on = |node: &&core::Node| {
            provider_id(&claim).is_some()
                && node.spec.as_ref().and_then(|s| s.provider_id.as_deref()) == provider_id(&claim)
        };
        let node = self.view.nodes().values().find(on).cloned();
        let read = node.as_ref().and_then(|node| self.view.node(node.metadata.name.as_deref()?));
        let pool =
            claim.metadata.labels.as_ref().and_then(|all| all.get(labels::NODE_POOL)).cloned().unwrap_or_default();
        let quiet = world.pool(&pool).and_then(|pool| pool.consolidate_after);
        let step = self.decisions.step(&claim, read.as_deref(), quiet, world.clock()).step;
        let recall = Recall::of(claim.metadata.annotations.as_ref());
        if let Some(recall) = recall.filter(|_| !matches!(step, Step::Leave | Step::End)) {
            return self.replace(world, &claim, node.as_ref(), recall);
        }
        match step {
            Step::End => self.end_claim(world, &claim, node.as_ref()),
            Step::Launch => self.launch(world, &claim),
            Step::Register => {
                let Some(node) = node.and_then(|node| node.metadata.name) else { return Ok(()) };
                patch_node(world, &node, |node| lifecycle::adopt(&claim, node))?;
                patch_node(world, &node, lifecycle::open)?;
                let current = world.is_current(&claim);
                set(world, &claim, |status, now| {
                    status.node_name = Some(node);
                    yes(status, conditions::REGISTERED, now);
                })?;
                if current {
                    world.joined += 1;
                    self.health.entry(pool).or_default().note(
                        Outcome::Joined,
                        Outcome::tried(&claim, world.clock()),
                        world.clock(),
                    );
                }
                Ok(())
            }
            Step::Initialize => {
                let Some(node) = node.and_then(|node| node.metadata.name) else { return Ok(()) };
                patch_node(
                    world,
                    &node,
                    |_| serde_json::json!({"metadata": {"labels": {(labels::INITIALIZED): "true"}}}),
                )?;
                set(world, &claim, |status, now| yes(status, conditions::INITIALIZED, now))
            }
            Step::Lose => set(world, &claim, |status, now| {
                let unknown = ConditionStatus::Unknown;
                conditions::set(&mut status.conditions, conditions::REGISTERED, unknown, "NodeNotFound", "", now);
            }),
            Step::GiveUp(timeout) => {
                super::check::is_given_up_in_time(world, &claim, timeout);
                let ends = world.claims.get(name).is_some_and(|one| one.metadata.deletion_timestamp.is_none());
                delete_claim(world, name)?;
                if let Some(outcome) = Outcome::of(timeout, &claim).filter(|_| ends) {
                    self.health.entry(pool).or_default().note(
                        outcome,
                        Outcome::tried(&claim, world.clock()),
                        world.clock(),
                    );
                }
                Ok(())
            }
            Step::Leave | Step::Guard | Step::AwaitNode | Step::AwaitTaint { .. } | Step::AwaitReady(_) => Ok(()),
            Step::Live(_) => self.tell_drift(world, &claim, &pool),
        }
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
        let open = self.unavailable.apply(self.prices.known(), world.uptime());
        let mut snapshot = self.view.snapshot(world, open);
        self.decisions.assume(&mut self.assumed, &mut snapshot);
        for pool in &mut snapshot.pools {
            if matches!(self.allowance(world, &pool.name), Allowance::None { .. }) {
                Arc::make_mut(pool).ready = false;
            }
        }
        snapshot
    }

    fn provision(&mut self, world: &mut World) -> Result<(), Stop> {
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
        super::check::answers::are_complete(world, &snapshot, &solution);
        let mut plan = LastPlan::begin(&snapshot, &solution);
        // what comes of a trial is known within seconds, and then something is told of those that waited for it
        let mut held: Vec<PodKey> = Vec::new();
        for node in &solution.nodes {
            let trial = self.allowance(world, &node.pool) != Allowance::All;
            if trial && !tried.insert(node.pool.clone()) {
                held.extend_from_slice(&node.pods);
                continue;
            }
            match self.create(world, node) {
                Ok(claim) => plan.made(claim.into(), node),
                other => survived(other.map(drop))?,
            }
        }
        plan.end(&solution);
        let told = self.decisions.told(&plan, &solution).into_iter().chain(held);
        world.answers.tell(told, world.now);
        self.plan = plan;
        Ok(())
    }

    /// Keeps static pools at their size.
    fn replicate(&mut self, world: &mut World) -> Result<(), Stop> {
        let due = world.now.as_second() % LOOK_AGAIN.as_secs() == 0;
        if !due || !world.pools.iter().any(|pool| pool.is_static()) {
            return Ok(());
        }
        let snapshot = self.snapshot(world);
        let replaced = disruption::replaced(&snapshot);
        let plan = self.decisions.replicas(&snapshot, &replaced);
        if let Some(other) = reordered(world, &snapshot)
            && self.decisions.replicas(&other, &replaced) != plan
        {
            world.violate("S-16", "another order of the same lists gives other static nodes".to_owned());
        }
        let mut tried = BTreeSet::new();
        for node in &plan.create {
            let trial = self.allowance(world, &node.pool) != Allowance::All;
            if !trial || tried.insert(node.pool.clone()) {
                survived(self.create(world, node).map(drop))?;
            }
        }
        plan.delete.iter().try_for_each(|claim| survived(delete_claim(world, claim)))
    }

    fn disrupt(&mut self, world: &mut World) -> Result<(), Stop> {
        if self.found.is_none() {
            self.resume(world)?;
        }
        self.take_back_stale_taints(world)?;
        for at in (0..self.running.len()).rev() {
            self.execute(world, at)?;
        }
        for command in self.decided.rested(REST, world.clock()) {
            let snapshot = self.snapshot(world);
            self.begin(world, command, &snapshot)?;
        }
        if world.now < self.plans {
            return Ok(());
        }
        let mut snapshot = self.snapshot(world);
        self.decided.apply(&mut snapshot);
        let plan = self.decisions.plan(&snapshot, &self.memory);
        if let Some(other) = reordered(world, &snapshot)
            && self.decisions.plan(&other, &self.memory).commands != plan.commands
        {
            world.violate("S-16", "another order of the same lists gives another command".to_owned());
        }
        self.memory.examined(plan.resume.clone());
        super::check::ill_for_long(world, &plan.hurried);
        plan.hurried.iter().try_for_each(|candidate| survived(cut_short(world, &candidate.claim)))?;
        let look = world.now + LOOK_AGAIN;
        self.plans = plan.next_look.map_or(look, |at| at - SignedDuration::from_secs(world.skew)).min(look);
        let admitted: Vec<Command> = plan.commands.into_iter().filter(|one| self.decided.admits(one)).collect();
        if !admitted.is_empty() {
            self.plans = world.now;
        }
        for command in self.decided.take(admitted, world.clock()) {
            // as it was planned: beside those that rest
            let mut snapshot = self.snapshot(world);
            self.decided.apply(&mut snapshot);
            self.begin(world, command, &snapshot)?;
        }
        Ok(())
    }

    /// Says whether a command for one of the same nodes runs. A node that is too old does not wait for one that waits itself.
    fn is_busy(&self, command: &Command) -> bool {
        let yields = |other: &Command| command.cause == Cause::Expired && other.cause != Cause::Expired;
        let busy = |one: &Candidate| {
            let mut others = self.running.iter().map(|(other, ..)| other).filter(|other| !yields(other));
            others.any(|other| other.candidates.iter().any(|c| c.claim == one.claim))
        };
        command.candidates.iter().any(busy)
    }

    /// Goes on with what an earlier process began.
    fn resume(&mut self, world: &mut World) -> Result<(), Stop> {
        let snapshot = self.snapshot(world);
        self.found = Some(disruption::begun(&snapshot).into_iter().flat_map(|begun| begun.replacements).collect());
        for Begun { command, replacements, .. } in self.decisions.begun(&snapshot) {
            if self.is_busy(&command) {
                world.given_up.extend(replacements.iter().map(ToString::to_string));
                replacements.iter().try_for_each(|name| survived(forget_purpose(world, name)))?;
                continue;
            }
            world.resumed += 1;
            let replacements: Vec<String> = replacements.iter().map(ToString::to_string).collect();
            super::check::budgets::goes_on(world, &command, &replacements);
            match self.taint(world, &command) {
                Ok(()) => {
                    let execution = Execution::new(command.cause, world.clock());
                    self.running.push((command, replacements, execution));
                }
                Err(Stop::Unanswered) => self.take_back(world, &command, &replacements, forget_purpose)?,
                Err(Stop::Killed) => return Err(Stop::Killed),
            }
        }
        Ok(())
    }

    fn taint(&mut self, world: &mut World, command: &Command) -> Result<(), Stop> {
        for candidate in &command.candidates {
            if let Some(node) = candidate.node.as_deref() {
                taint(world, node, true)?;
                self.assumed.tainted(&candidate.claim);
            }
        }
        Ok(())
    }

    fn begin(&mut self, world: &mut World, command: Command, snapshot: &Snapshot) -> Result<(), Stop> {
        let Some(command) = self.decisions.uphold(command, snapshot) else { return Ok(()) };
        if self.is_busy(&command) {
            return Ok(());
        }
        super::check::budgets_allow(world, &snapshot.pools, &command);
        super::check::promises::is_renewed_one_for_one(world, &command);
        super::check::is_cheaper(world, self.prices.known(), &command);
        super::check::repairs_are_due(world, &command);
        super::check::flapping::is_replaced_once(world, &command, self.found.as_ref());
        super::check::budgets::begins(world, &snapshot.pools, &command);
        world.commands += 1;
        world.repairs += u32::from(command.cause == Cause::Unhealthy);
        let mut replacements = Vec::new();
        match self.make_way(world, &command, &mut replacements) {
            Ok(()) => {
                super::check::flapping::takes_the_place(world, &command, &replacements);
                let execution = Execution::new(command.cause, world.clock());
                let parts = command.apart().into_iter();
                self.running.extend(parts.map(|part| (part, replacements.clone(), execution)));
                Ok(())
            }
            Err(Stop::Unanswered) => self.take_back(world, &command, &replacements, delete_claim),
            Err(Stop::Killed) => Err(Stop::Killed),
        }
    }

    /// Creates the replacements of a command and taints its nodes; answers those that were made, whatever stops it.
    fn make_way(&mut self, world: &mut World, command: &Command, made: &mut Vec<String>) -> Result<(), Stop> {
        for node in &command.replacements {
            made.push(self.create(world, node)?);
        }
        self.taint(world, command)
    }

    /// Takes a command back, as far as the API server answers: the taints, and what was made for it.
    fn take_back(
        &mut self,
        world: &mut World,
        command: &Command,
        replacements: &[String],
        each: fn(&mut World, &str) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        world.given_up.extend(replacements.iter().cloned());
        self.memory.failed(command, world.clock());
        for candidate in &command.candidates {
            self.assumed.untainted(&candidate.claim);
            if let Some(node) = &candidate.node {
                survived(taint(world, node, false))?;
            }
        }
        replacements.iter().try_for_each(|name| survived(each(world, name)))
    }

    /// Creates the claim of a planned node. One of which nobody knows whether it is there is reckoned with until somebody has looked.
    fn create(&mut self, world: &mut World, node: &InFlightNode) -> Result<String, Stop> {
        world.edit_template(&node.pool);
        let claim = self.new_claim(world, node);
        let name = claim.metadata.name.clone().unwrap_or_default();
        world.templates.insert(name.clone(), node.template().to_owned());
        let made = ask(world).and_then(|()| {
            world.claims.insert(name.clone(), claim.clone());
            wrote(world)
        });
        let reply = if made.is_ok() { Reply::Made } else { Reply::Lost };
        self.decisions.reckon(&mut self.assumed, &claim, reply, world.clock());
        made.map(|()| name)
    }

    /// What the API server makes of the claim that it is asked for.
    fn new_claim(&self, world: &mut World, node: &InFlightNode) -> NodeClaim {
        world.count += 1;
        let name = format!("{}-{}", node.pool, world.count);
        let asked = world.pool(&node.pool).map(|pool| self.decisions.node_claim(node, pool, &name));
        let mut claim = asked.unwrap_or_else(|| node.node_claim(&name));
        claim.metadata.uid = Some(format!("uid-{}", world.count));
        claim.metadata.creation_timestamp = Some(Time(world.now));
        claim
    }

    fn execute(&mut self, world: &mut World, at: usize) -> Result<(), Stop> {
        let (command, replacements, execution) = &self.running[at];
        let progress = |name: &String| self.decisions.progress(self.view.claims().get(name), self.assumed.awaits(name));
        let progress: Vec<Progress> = replacements.iter().map(progress).collect();
        let on =
            |pod: &&Pod| pod.node.is_some() && command.candidates.iter().any(|candidate| candidate.node == pod.node);
        let pods: Vec<Arc<Pod>> = self.view.pods().values().filter(on).cloned().map(Arc::new).collect();
        let pools = command.candidates.iter().filter_map(|candidate| self.view.pool(world, &candidate.pool));
        let pools = pools.map(|pool| (pool.name.clone(), pool.budgets.clone())).collect();
        let act = self.decisions.carry_out(execution, &progress, &pods, &pools, world.clock());
        if matches!(act, Act::Wait { .. }) {
            return Ok(());
        }
        let (command, replacements, late) = (command.clone(), replacements.clone(), execution.is_late(world.clock()));
        if act != Act::Delete {
            let ends = |progress| matches!(&act, Act::RollBack(failure) if failure.ends(progress));
            let stuck = replacements.iter().zip(progress).filter(|(name, at)| ends(*at) && !self.has_pods(name));
            let stuck: Vec<String> = stuck.map(|(name, _)| name.clone()).collect();
            self.running.swap_remove(at);
            self.take_back(world, &command, &[], forget_purpose)?;
            world.given_up.extend(replacements.iter().cloned());
            stuck.iter().try_for_each(|name| survived(delete_claim(world, name)))?;
            let mut rest = replacements.iter().filter(|name| !stuck.contains(name));
            return rest.try_for_each(|name| survived(forget_purpose(world, name)));
        }
        super::check::budgets_are_open(world, &pools, &command);
        let mut left = false;
        for candidate in &command.candidates {
            let gone = self.let_go(world, &command, candidate);
            left |= gone.is_err();
            survived(gone)?;
        }
        // what was not answered is asked again
        if !left || late {
            self.running.swap_remove(at);
            match left {
                true => self.memory.failed(&command, world.clock()),
                false => self.memory.succeeded(&command, world.clock()),
            }
        }
        Ok(())
    }

    /// Says whether a claim's node has pods that would have to move.
    fn has_pods(&self, claim: &str) -> bool {
        let id = self.view.claims().get(claim).and_then(provider_id);
        let is_its =
            |node: &core::Node| id.is_some() && node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == id;
        let node = self.view.nodes().iter().find(|(_, node)| is_its(node)).map(|(name, _)| name.as_str());
        let on = |pod: &Pod| node.is_some() && pod.node.as_deref() == node && pod.is_reschedulable();
        self.view.pods().values().any(on)
    }

    fn let_go(&mut self, world: &mut World, command: &Command, candidate: &Candidate) -> Result<(), Stop> {
        if command.cause == Cause::Unhealthy {
            cut_short(world, &candidate.claim)?;
        }
        delete_claim(world, &candidate.claim)?;
        self.assumed.deleted(&candidate.claim);
        Ok(())
    }

    /// Taints that no command stands behind: an earlier process left them.
    fn take_back_stale_taints(&mut self, world: &mut World) -> Result<(), Stop> {
        let ours: BTreeSet<&str> = self
            .running
            .iter()
            .flat_map(|(command, ..)| &command.candidates)
            .filter_map(|candidate| candidate.node.as_deref())
            .collect();
        let goes = |id: Option<&str>| {
            let claim = self.view.claims().iter().find(|(_, claim)| id.is_some() && provider_id(claim) == id);
            claim.is_none_or(|(name, claim)| {
                let recalled = Recall::of(claim.metadata.annotations.as_ref()).is_some();
                claim.metadata.deletion_timestamp.is_some() || recalled || self.assumed.leaves(name)
            })
        };
        let stale = self.view.nodes().iter().filter(|(name, node)| {
            let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
            node.metadata.deletion_timestamp.is_none() && !ours.contains(name.as_str()) && !goes(id)
        });
        let stale: Vec<String> = stale.map(|(name, _)| name.clone()).collect();
        stale.iter().try_for_each(|name| survived(taint(world, name, false)))
    }

    fn collect(&mut self, world: &mut World) -> Result<(), Stop> {
        let all = "";
        if world.now < self.collects || !self.turns.comes(self.decisions, Action::Describe, all, world.uptime()) {
            return Ok(());
        }
        let Ok(listed) = world.list() else {
            self.collects = world.now + self.decisions.collects_after(&mut self.collector);
            return Ok(());
        };
        let claims: Vec<Arc<NodeClaim>> = self.view.claims().values().cloned().map(Arc::new).collect();
        let now = world.clock();
        let nodes = self.view.nodes();
        let seen = Witnesses { listed: &listed, claims: &claims, is_ready: &|id| ready(nodes, id) };
        let collection = self.decisions.collect(&mut self.collector, &seen, now);
        self.collects = world.now + self.decisions.collects_after(&mut self.collector);
        for id in collection.instances {
            // the watch may be late: the claim is asked for
            ask(world)?;
            let one = listed.iter().find(|one| one.provider_id == id);
            if !one.is_some_and(|one| world.claims.values().any(|claim| one.is_expected_by(claim))) {
                self.end_instance(world, &id, None)?;
                effect(world)?;
            }
        }
        for claim in collection.claims {
            ask(world)?;
            let id = provider_id(&claim).unwrap_or_default();
            let alive = world.instances.get(id).is_some_and(|one| one.ends.is_none());
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            if self.is_refuted(world, name) {
                continue;
            }
            if alive && ready(&world.nodes, id) {
                world.violate("S-6", format!("the claim of {id} was collected while its node ran"));
            }
            delete_claim(world, name)?;
        }
        Ok(())
    }

    /// Says whether the API server knows of a claim that was found left over that its node runs.
    fn is_refuted(&self, world: &World, claim: &str) -> bool {
        let mut node = None;
        loop {
            match self.decisions.confirm(world.claims.get(claim), node) {
                Suspicion::AskFor(name) => node = Some(world.nodes.get(name)),
                Suspicion::Refuted => return true,
                Suspicion::Confirmed => return false,
            }
        }
    }
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
    random.shuffle(&mut other.daemons);
    other.pools.iter_mut().for_each(|pool| random.shuffle(&mut Arc::make_mut(pool).budgets));
    other.nodes.iter_mut().for_each(|node| random.shuffle(&mut Arc::make_mut(node).taints));
    Some(other)
}

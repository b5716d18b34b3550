//! The seam between a controller and its decisions: production's by default, so that a test can put a broken one in the place of each and
//! see whether the checks notice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use serde_json::Value;

use crate::api::{NodeClaim, hash, labels};
use crate::catalogue::Catalogue;
use crate::cluster::{Assumed, Node, Pod, PodKey, Pool, Reply, Snapshot};
use crate::disruption::{self, Act, Begun, Budgets, Command, DisruptionPlan, Execution, Memory, Progress};
use crate::eviction::{self, Drain, Target};
use crate::fleet::{self, Lesson};
use crate::interruption::{self, Message, Notice, Recall, Unrecorded, Vacating};
use crate::lease::Elector;
use crate::lifecycle::launch::{self, Doubt};
use crate::lifecycle::{
    self, Allowance, Collection, Collector, Drift, Next, Registrations, Seats, Suspicion, Witnesses,
};
use crate::pace::Bucket;
use crate::scheduling::{self, InFlightNode, LastPlan, ReplicaPlan, Solution};

/// Makes the decisions of a simulated controller. Every method is production's own unless it is replaced.
pub trait Decisions {
    /// Answers the next step of a claim: [`lifecycle::next`].
    fn step(&self, claim: &NodeClaim, node: Option<&Node>, quiet: Option<SignedDuration>, now: Timestamp) -> Next {
        lifecycle::next(claim, node, quiet, now)
    }

    /// Says why a claim's node is not what its pool asks for: [`lifecycle::drift()`].
    fn drift(&self, claim: &NodeClaim, pool: &Pool, catalogue: &Catalogue, now: Timestamp) -> Option<Drift> {
        let stamp = BTreeMap::from([
            (labels::NODE_POOL_HASH.to_owned(), pool.hash.to_string()),
            (labels::NODE_POOL_HASH_VERSION.to_owned(), hash::NODE_POOL_VERSION.to_owned()),
        ]);
        lifecycle::drift(claim, pool, &stamp, &BTreeMap::new(), Some(catalogue), now)
    }

    /// Answers the next step of a drain: [`eviction::next`].
    fn drain(&self, drain: &Drain<'_>, now: Timestamp) -> eviction::Step {
        eviction::next(drain, now)
    }

    /// Answers where pods go and what to launch: [`scheduling::solve`].
    fn solve(&self, snapshot: &Snapshot) -> Solution {
        scheduling::solve(snapshot)
    }

    /// Answers what static pools lack and have too much: [`scheduling::replicas`].
    fn replicas(&self, snapshot: &Snapshot, replaced: &BTreeSet<Arc<str>>) -> ReplicaPlan {
        scheduling::replicas(snapshot, replaced)
    }

    /// Answers which nodes go: [`disruption::plan_with`].
    fn plan(&self, snapshot: &Snapshot, memory: &Memory) -> DisruptionPlan {
        disruption::plan_with(snapshot, memory)
    }

    /// Answers what of a command holds after its rest: [`disruption::uphold`].
    fn uphold(&self, command: Command, snapshot: &Snapshot) -> Option<Command> {
        disruption::uphold(command, snapshot).command
    }

    /// Finds the commands that an earlier process began: [`disruption::begun`].
    fn begun(&self, snapshot: &Snapshot) -> Vec<Begun> {
        disruption::begun(snapshot)
    }

    /// Answers what to do with a command that was begun: [`Execution::next`].
    fn carry_out(
        &self,
        begun: &Execution,
        replacements: &[Progress],
        pods: &[Arc<Pod>],
        pools: &Budgets,
        now: Timestamp,
    ) -> Act {
        begun.next(replacements, pods, pools, now)
    }

    /// Says whether a claim may be launched with others: not one of [`launch::is_in_doubt`].
    fn may_join(&self, claim: &NodeClaim) -> bool {
        !launch::is_in_doubt(claim)
    }

    /// Gives what was found of a batch to its claims: [`Seats::seek`].
    fn seek(&self, seats: &mut Seats, batch: &str, found: &[String], claims: &[NodeClaim]) {
        seats.seek(batch, found, claims);
    }

    /// Answers what to collect: [`Collector::pass`].
    fn collect(&self, collector: &mut Collector, seen: &Witnesses<'_>, now: Timestamp) -> Collection {
        collector.pass(seen, now)
    }

    /// Answers how long the next look at what to collect is waited for: [`Collector::next_pause`].
    fn collects_after(&self, collector: &mut Collector) -> Duration {
        collector.next_pause()
    }

    /// Says whether an instance that EC2 does not know is gone: [`lifecycle::is_gone_if_unknown`].
    fn is_gone_if_unknown(&self, launched: Option<Timestamp>, now: Timestamp) -> bool {
        lifecycle::is_gone_if_unknown(launched, now)
    }

    /// Answers how many nodes a pool may launch: [`Registrations::allowance`].
    fn allowance(&self, known: &Registrations, joining: usize, now: Timestamp) -> Allowance {
        known.allowance(joining, now)
    }

    /// Shows in a snapshot what the watches have not shown yet: [`Assumed::apply`].
    fn assume(&self, assumed: &mut Assumed, snapshot: &mut Snapshot) {
        assumed.apply(snapshot);
    }

    /// Says whether a controller may act: [`Elector::leads`].
    fn leads(&self, elector: &Elector, now: Duration) -> bool {
        elector.leads(now)
    }

    /// Answers how long a call to EC2 waits for its token: [`Bucket::reserve`].
    fn pace(&self, bucket: &mut Bucket, now: Duration) -> Duration {
        bucket.reserve(now)
    }

    /// Answers what EC2's code for a refused launch teaches: [`fleet::lesson`].
    fn lesson(&self, code: &str) -> Lesson {
        fleet::lesson(code)
    }

    /// Answers what a message of the queue says: [`interruption::parse`].
    fn message(&self, body: &str) -> Message {
        interruption::parse(body)
    }

    /// Says whether a message about an instance of no claim is left in the queue: [`Message::is_kept`].
    fn keeps(&self, message: &Message, notice: &Notice, launching: bool, now: Timestamp) -> bool {
        message.is_kept(notice, launching, now)
    }

    /// Answers what to do with a claim whose instance is called back: [`Recall::next`].
    fn recalled(&self, recall: Recall, node: Option<Vacating>, now: Timestamp) -> interruption::Next {
        recall.next(node, now)
    }

    /// Answers how far a replacement is: [`Progress::of`].
    fn progress(&self, replacement: Option<&NodeClaim>, awaited: bool) -> Progress {
        Progress::of(replacement, awaited)
    }

    /// Says whether a message may be deleted: [`Unrecorded::is_nothing`].
    fn deletes(&self, unrecorded: Unrecorded) -> bool {
        unrecorded.is_nothing()
    }

    /// Reckons with a claim that was asked for: [`Assumed::asked`].
    fn reckon(&self, assumed: &mut Assumed, claim: &NodeClaim, reply: Reply, now: Timestamp) {
        assumed.asked(claim, reply, now);
    }

    /// Says whether a listing takes the place of what a watch kept: [`Watched::done`](crate::cluster::Watched::done).
    fn forgets_on_listing(&self) -> bool {
        true
    }

    /// Says whether the API server is asked for pods before an instance is ended: [`eviction::asks_for_pods`]. Simulated claims do not say that their
    /// instance ends: it is asked each time.
    fn asks_for_pods(&self, deadline: Option<Timestamp>, now: Timestamp) -> bool {
        eviction::asks_for_pods(false, deadline, now)
    }

    /// Answers until when the volumes of a drained node are waited for: [`eviction::detached_by`].
    fn detached_by(&self, drained: Timestamp, deadline: Option<Timestamp>) -> Timestamp {
        eviction::detached_by(drained, deadline)
    }

    /// Answers what comes next of a claim that was found left over: [`lifecycle::confirm`].
    fn confirm<'c>(&self, claim: Option<&'c NodeClaim>, node: Option<Option<&core::Node>>) -> Suspicion<'c> {
        lifecycle::confirm(claim, node)
    }

    /// Answers what a claim that goes waits for: [`launch::doubt`].
    fn doubt(&self, claim: &NodeClaim, settled: bool, listed: Duration, now: Timestamp) -> Doubt {
        launch::doubt(claim, settled, listed, now)
    }

    /// Makes the claim of a planned node: [`InFlightNode::node_claim`].
    fn node_claim(&self, node: &InFlightNode, _pool: &Pool, name: &str) -> NodeClaim {
        node.node_claim(name)
    }

    /// Answers what the Eviction API is asked: [`eviction::request`].
    fn eviction(&self, target: &Target) -> Value {
        eviction::request(&target.pod, &target.uid)
    }

    /// Answers the client token of a launch: [`launch::token`].
    fn token(&self, uid: &str, attempt: u32, _now: Timestamp) -> String {
        launch::token(uid, attempt)
    }

    /// Answers the pods of which something is told when a plan has ended: [`LastPlan::told`].
    fn told(&self, plan: &LastPlan, solution: &Solution) -> Vec<PodKey> {
        plan.told(solution).into_iter().map(|(pod, _)| pod.clone()).collect()
    }
}

/// Decides as karp does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Production;

impl Decisions for Production {}

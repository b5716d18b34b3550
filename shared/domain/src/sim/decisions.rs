//! The seam between a controller and its decisions: production's by default, so that a test can put a broken one in the place of each and
//! see whether the checks notice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::api::{NodeClaim, hash, labels};
use crate::catalogue::Catalogue;
use crate::cluster::{Assumed, Node, Pod, Pool, Snapshot};
use crate::disruption::{self, Act, Begun, Budgets, Command, DisruptionPlan, Execution, Memory, Progress};
use crate::eviction::{self, Drain};
use crate::fleet::{self, Lesson};
use crate::interruption::{self, Message, Notice, Recall, Vacating};
use crate::lease::Elector;
use crate::lifecycle::{self, Allowance, Collection, Collector, Drift, Next, Registrations, Seats, Witnesses, launch};
use crate::pace::Bucket;
use crate::scheduling::{self, InFlightNode, ReplicaPlan, Solution};

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

    /// Says whether pods can go to the node of a replacement: [`lifecycle::is_ready`].
    fn is_ready(&self, replacement: &NodeClaim) -> bool {
        lifecycle::is_ready(replacement)
    }

    /// Says whether a message is deleted only when its effect is recorded. The controller's queue is not in this crate: this repeats its
    /// rule.
    fn records_before_deleting(&self) -> bool {
        true
    }

    /// Says whether a replacement that is not seen yet, or came to nothing, is waited for. The controller's interruption is not in this crate:
    /// this repeats its rule.
    fn awaits_what_is_not_there(&self) -> bool {
        true
    }

    /// Says whether a claim whose creation was not answered is reckoned with until somebody has looked whether it is there. The controller's
    /// provisioning is not in this crate: this repeats its rule.
    fn reckons_with_the_unanswered(&self) -> bool {
        true
    }

    /// Says whether a listing takes the place of what a watch kept: [`Watched::done`](crate::cluster::Watched::done).
    fn forgets_on_listing(&self) -> bool {
        true
    }

    /// Says whether pods are listed at the API server before an instance is ended. The controller's drain is not in this crate: this repeats
    /// its rule.
    fn lists_before_the_end(&self) -> bool {
        true
    }

    /// Says whether the node of a claim is asked for at the API server before the claim is collected. The controller's collection is not in
    /// this crate: this repeats its rule.
    fn asks_for_the_node(&self) -> bool {
        true
    }

    /// Says whether a claim that goes waits for what may have been launched for it and is not listed yet. The controller's end of claims is not in
    /// this crate: this repeats its rule.
    fn awaits_the_listing(&self) -> bool {
        true
    }

    /// Answers the annotations of a new claim, among them by which template its node was planned; the pool may have another by now. The
    /// controller's provisioning is not in this crate: this repeats its rule.
    fn annotations(&self, node: &InFlightNode, _pool: &Pool) -> BTreeMap<String, String> {
        node.annotations.clone()
    }

    /// Answers the UID that an eviction is bound to. The controller's drain is not in this crate: this repeats its rule.
    fn precondition<'u>(&self, uid: &'u str) -> Option<&'u str> {
        Some(uid)
    }

    /// Answers the client token of a launch, from the claim's UID and the attempt that is written on it. The controller's launch is not in
    /// this crate: this repeats its rule.
    fn token(&self, uid: &str, attempt: &str, _now: Timestamp) -> String {
        format!("{uid}-{attempt}")
    }
}

/// Decides as karp does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Production;

impl Decisions for Production {}

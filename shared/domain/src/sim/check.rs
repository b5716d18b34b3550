//! What must hold after every second, and at the end.

pub(super) mod answers;
pub(super) mod budgets;
mod drift;
pub(super) mod flapping;
pub(super) mod promises;
mod traces;
pub(super) mod volumes;
pub(super) mod warnings;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::account::{Action, THROTTLED};
use super::cloud::Instance;
use super::world::{is_ready, is_tainted};
use super::{Violation, World};
use crate::api::{NodeClaim, labels};
use crate::catalogue::{Catalogue, Offering, Price, RankedOffering, Unavailable};
use crate::cluster::{Budget, Node, Pod, PodKey, Pool, Readiness, Share, Window, blocking};
use crate::disruption::{Budgets, Candidate, Cause, Command};
use crate::fleet::REFUSED_WAIT;
use crate::lease::RENEW_DEADLINE;
use crate::lifecycle::launch::batch;
use crate::lifecycle::{LAUNCH_TIMEOUT, REGISTRATION_TIMEOUT, Timeout, provider_id};
use crate::scheduling::InFlightNode;
use flapping::Flapping;
use warnings::Warned;

/// More than this of one run tells nothing new.
pub(super) const MOST_VIOLATIONS: usize = 20;
/// An instance without a claim is ended within this time of its launch (with the two listings that it takes, and a crash between).
const ORPHAN_LIMIT: SignedDuration = SignedDuration::from_mins(3);
/// By so much longer for each further time that the controller is killed: it sees the instance for the first time again, and looks every 10 s.
const SEEN_ANEW: SignedDuration = SignedDuration::from_secs(40);

/// What is ill for less is not repaired; a second less, since a change shows in the next.
const ILL_FOR_LONG: SignedDuration = SignedDuration::from_secs(30 * 60 - 1);

/// A claim that nothing holds goes within this time of being asked to: a drain of an empty node takes 5 s, and EC2 as long as that.
const LEAVES_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// What must be done in time is done so much later where watches are late: one that is cut shows nothing for so long.
const SEEN_LIMIT: SignedDuration = SignedDuration::from_secs(50);

/// Watches a run.
#[derive(Default)]
pub(super) struct Watch {
    pub(super) violations: Vec<Violation>,
    /// Instances without a claim: since when, and how often the controller had been killed by then.
    orphans: BTreeMap<String, (Timestamp, u32)>,
    flapping: Flapping,
    /// Pods that wait, and since when.
    waiting: BTreeMap<PodKey, Timestamp>,
    /// Watches are late in this run.
    late: bool,
    /// How many calls each process sent, second by second.
    sent: BTreeMap<(String, Action), Vec<(Duration, u32)>>,
    start: Option<Timestamp>,
    /// Launches before the first node could be given up.
    first_launches: u32,
    /// S-12 was told of.
    vain: bool,
    warned: Warned,
    /// Claims of nodes that drifted and do not say so, and since when.
    untold: BTreeMap<String, Timestamp>,
    /// Nodes that stay, with a taint that nothing stands behind, and since when.
    tainted: BTreeMap<String, Timestamp>,
    /// Static pools that have too many nodes, and since when.
    surplus: BTreeMap<Arc<str>, Timestamp>,
    /// Nodes that only volumes hold, and since when; the longest time for which one was held so.
    detaching: BTreeMap<String, Timestamp>,
    pub(super) held: SignedDuration,
}

/// S-8: what replaces nodes that could be cheaper is cheaper by the prices that are known when it begins, whichever of its offerings is launched.
pub(super) fn is_cheaper(world: &mut World, known: &Catalogue, command: &Command) {
    if command.cause != Cause::Underutilized {
        return;
    }
    let price = |offering: &RankedOffering| {
        let t = known.get(&offering.instance_type)?;
        let same = |one: &&Offering| one.zone == offering.zone && one.capacity_type == offering.capacity_type;
        t.offerings.iter().find(same).map(|one| one.price)
    };
    let dearest = |node: &InFlightNode| node.offerings.iter().filter_map(price).max().unwrap_or_default();
    let after: Price = command.replacements.iter().map(dearest).sum();
    let on = |claim: &str| world.claims.get(claim).and_then(provider_id).and_then(|id| world.instances.get(id));
    // a node that went before the watch showed it cannot be judged: it costs nothing any more
    let now = |offering: &RankedOffering| price(offering).unwrap_or(offering.price);
    let Some(before) = command.candidates.iter().map(|one| Some(now(&on(&one.claim)?.offering))).sum::<Option<Price>>()
    else {
        return;
    };
    if after >= before && !command.candidates.is_empty() {
        world.violate("S-8", format!("nodes for {before} an hour are replaced by some for {after}"));
    }
}

/// S-3: counts by itself what a command takes of each pool's budgets, of those whose windows are open. Where the controller's clock is wrong it
/// may open them at other times. A pool is what its watch shows when the command begins: what a user changes after that is for the next ones.
pub(super) fn budgets_allow(world: &mut World, pools: &[Arc<Pool>], command: &Command) {
    let Some(reason) = command.cause.budget() else { return };
    let hosts = world.snapshot().hosts();
    let mut broken = Vec::new();
    for pool in pools {
        let taken = command.candidates.iter().filter(|candidate| candidate.pool == pool.name).count();
        // what happens to a node or claim by itself may be seen too late
        let late = world.faults.watch_lag_seconds > 0 || world.faults.cut_permille > 0;
        let own = hosts.iter().filter(|host| host.pool() == Some(&pool.name));
        let nodes = own.filter_map(|host| Some((host.node.as_ref()?, host.claim.is_some())));
        // as in Karpenter: a node that never was initialized is no part of a budget, nor is one without a claim
        let nodes: Vec<(&Arc<Node>, bool)> = nodes.filter(|(node, _)| node.is_initialized()).collect();
        let total = nodes.iter().filter(|(_, claimed)| late || *claimed).count();
        let lost = |node: &Node, claimed: bool| !late && claimed && node.ready != Readiness::Ready;
        let busy = nodes.iter().filter(|(node, claimed)| node.is_disrupted() || lost(node, *claimed)).count();
        let open = |window: &Window| world.skew == 0 && window.is_open(world.now) == Ok(true);
        for budget in pool.budgets.iter().filter(|budget| budget.window.as_ref().is_none_or(open)) {
            let applies = budget.reasons.as_ref().is_none_or(|all| all.contains(&reason));
            let most = match budget.nodes {
                Share::Count(count) => count as usize,
                Share::Percent(percent) => (total * percent as usize).div_ceil(100),
                Share::Unreadable => 0,
            };
            if taken > 0 && applies && busy + taken > most {
                broken.push(format!(
                    "{busy} and {taken} nodes of {total} in pool {} are disrupted, {most} may be",
                    pool.name
                ));
            }
        }
    }
    broken.into_iter().for_each(|what| world.violate("S-3", what));
}

/// S-3: looks by itself whether a budget keeps the nodes of a command that is to let them go, of those that its pools are seen to have.
pub(super) fn budgets_are_open(world: &mut World, pools: &Budgets, command: &Command) {
    let Some(reason) = command.cause.budget().filter(|_| world.skew == 0) else { return };
    let closed = |budget: &Budget| {
        let applies = budget.reasons.as_ref().is_none_or(|all| all.contains(&reason));
        let open = budget.window.as_ref().is_none_or(|window| window.is_open(world.now) == Ok(true));
        applies && open && matches!(budget.nodes, Share::Count(0) | Share::Percent(0) | Share::Unreadable)
    };
    let broken = pools.iter().find(|(_, budgets)| budgets.iter().any(closed)).map(|(pool, _)| pool);
    if let Some(pool) = broken {
        world.violate("S-3", format!("nodes of pool {pool} go while a budget is closed"));
    }
}

/// S-3: nodes are repaired after they were ill for half an hour, and while no more than a fifth of their pool, rounded up, is.
pub(super) fn repairs_are_due(world: &mut World, command: &Command) {
    if command.cause == Cause::Unhealthy {
        ill_for_long(world, &command.candidates);
    }
}

/// S-3: the same for nodes whose drain is cut short.
pub(super) fn ill_for_long(world: &mut World, candidates: &[Candidate]) {
    let mut broken = Vec::new();
    for candidate in candidates {
        let ours = |node: &&core::Node| {
            let labels = node.metadata.labels.as_ref();
            labels.and_then(|all| all.get(labels::NODE_POOL)).is_some_and(|pool| **pool == *candidate.pool)
        };
        let of_pool: Vec<&core::Node> = world.nodes.values().filter(ours).collect();
        let ill = of_pool.iter().filter(|node| !is_ready(node)).count();
        if ill > of_pool.len().div_ceil(5) {
            broken.push(format!("{} is repaired while {ill} of {} are ill", candidate.claim, of_pool.len()));
        }
        let instance = world.claims.get(&*candidate.claim).and_then(provider_id).and_then(|id| world.instances.get(id));
        // where the instance is gone already there is nothing left to harm
        let Some(instance) = instance else { continue };
        let since = instance.ill.map(|ill| ill.since).or(instance.ends);
        if since.is_none_or(|since| world.now.duration_since(since) < ILL_FOR_LONG) {
            broken.push(format!("{} is repaired, which has been ill since {since:?}", candidate.claim));
        }
    }
    broken.into_iter().for_each(|what| world.violate("S-3", what));
}

/// S-14: whoever writes holds the lease.
pub(super) fn only_the_leader_writes(world: &mut World) {
    let holder = world.lease.as_ref().and_then(|lease| lease.holder_identity.clone());
    if holder != world.acting {
        let who = |one: Option<&String>| one.cloned().unwrap_or_else(|| "nobody".to_owned());
        let what = format!("{} writes while {} leads", who(world.acting.as_ref()), who(holder.as_ref()));
        world.violate("S-14", what);
    }
}

/// S-14: a leader that nobody has answered for longer than it may lead unseen ends no instance: it cannot know what has become of it.
pub(super) fn nothing_ends_unseen(world: &mut World) {
    let unseen = world.left.map(|left| world.now.duration_since(left)).filter(|_| world.acting.is_some());
    let limit = SignedDuration::try_from(RENEW_DEADLINE).unwrap_or(SignedDuration::MAX);
    if let Some(unseen) = unseen.filter(|unseen| *unseen >= limit) {
        world.violate("S-14", format!("{} ends an instance, unanswered for {unseen:#}", world.process));
    }
}

/// S-13: a call that was throttled tells nothing of what EC2 has.
pub(super) fn a_throttle_teaches_nothing(world: &mut World, code: &str, before: &Unavailable, after: &Unavailable) {
    if code == THROTTLED && before != after {
        world.violate("S-13", "a throttled call changed what is known to be missing".to_owned());
    }
}

/// S-6: a claim is the last to know of its instance, and of one that was launched for it though nobody heard of it. Where clocks step, nobody can
/// tell how long that was waited for.
pub(super) fn ends_before_its_claim(world: &mut World, claim: &str, id: Option<&str>) {
    if let Some(id) = id.filter(|id| world.is_alive(id)) {
        world.violate("S-6", format!("{claim} went before its instance {id}"));
    }
    let uid = world.claims.get(claim).and_then(|claim| claim.metadata.uid.as_deref()).unwrap_or_default();
    let own = |one: &&Instance| one.ends.is_none() && one.claim_uid == uid && !uid.is_empty();
    let unheard = world.instances.values().find(own).map(|one| one.id.clone());
    if let Some(unheard) = unheard.filter(|unheard| world.faults.clock.is_none() && id != Some(unheard.as_str())) {
        world.violate("S-6", format!("{claim} went before {unheard}, which was launched for it"));
    }
}

/// S-12: what was refused for a reason that stays is left alone for a while; a second less, since calls are counted by the second.
pub(super) fn is_not_asked_at_once(world: &mut World, claim: &str, uid: &str) {
    let last = world.refused.told.get(&(world.process.clone(), uid.to_owned())).copied();
    let passed = last.map(|last| world.uptime().saturating_sub(last));
    if let Some(passed) = passed.filter(|passed| *passed + Duration::from_secs(1) < REFUSED_WAIT) {
        world.violate("S-12", format!("EC2 refused {claim} for good and is asked again after {passed:?}"));
    }
}

/// S-17: a claim is given up when its time is over, and sooner only by as much as the controller's clock may be wrong.
pub(super) fn is_given_up_in_time(world: &mut World, claim: &NodeClaim, timeout: Timeout) {
    let limit = match timeout {
        Timeout::Launch => LAUNCH_TIMEOUT,
        Timeout::Registration => REGISTRATION_TIMEOUT,
    };
    let wrong = world.faults.clock.map_or(0, |clock| clock.to.max(0) - clock.from.min(0));
    let created = claim.metadata.creation_timestamp.as_ref().map_or(world.now, |time| time.0);
    let age = world.now.duration_since(created);
    if age < limit - SignedDuration::from_secs(i64::from(wrong)) {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        world.violate("S-17", format!("{name} is given up {age:#} after it was made, for {}", timeout.as_str()));
    }
}

/// When somebody leads again of two replicas that were paused; what a new leader has not seen it cannot act on.
fn led_since(world: &World) -> Timestamp {
    if world.lease.is_some() { world.unserved } else { Timestamp::MIN }
}

/// How far a clock that is wrong may step: what is measured by it takes so much longer at most.
pub(super) fn clocks_differ(world: &World) -> SignedDuration {
    world.faults.clock.map_or(SignedDuration::ZERO, |clock| SignedDuration::from_secs(i64::from(clock.to - clock.from)))
}

impl Watch {
    fn fail(&mut self, world: &World, invariant: &'static str, what: String) {
        if self.violations.len() < MOST_VIOLATIONS {
            self.violations.push(Violation { invariant, what, at: world.now });
        }
    }

    pub(super) fn every_second(&mut self, world: &World) {
        self.nothing_is_lost(world);
        self.one_instance_a_claim(world);
        self.limits(world);
        self.replicas(world);
        self.deadlines(world);
        self.expires(world);
        self.settled(world);
        self.drift_is_told(world);
        self.pods_are_answered(world);
        self.launches_in_vain(world);
        self.calls_keep_the_rates(world);
        self.claims_are_told(world);
        self.recalls_end(world);
        self.recalled_nodes_are_closed(world);
        self.taints_have_a_reason(world);
        self.volumes_hold_no_node_for_long(world);
    }

    /// S-1: each live instance has a claim, or will not live long.
    fn nothing_is_lost(&mut self, world: &World) {
        let claimed = |instance: &Instance| {
            world.claims.values().any(|claim| {
                let seeks = || batch(claim).is_some_and(|id| instance.batch.as_deref() == Some(id));
                match provider_id(claim) {
                    Some(id) => id == instance.id,
                    None => claim.metadata.uid.as_deref() == Some(&*instance.claim_uid) || seeks(),
                }
            })
        };
        let lost = world.instances.values().filter(|one| one.ends.is_none() && !claimed(one));
        let lost: Vec<String> = lost.map(|one| one.id.clone()).collect();
        self.orphans.retain(|id, _| lost.contains(id));
        for id in lost {
            let (since, killed) = *self.orphans.entry(id.clone()).or_insert((world.now, world.killed));
            // as long as EC2 throttles, nobody can end anything
            let since = world.account.last_throttled.map_or(since, |last| since.max(last)).max(world.back);
            let again = i32::try_from(world.killed - killed).unwrap_or(i32::MAX);
            let limit = ORPHAN_LIMIT + clocks_differ(world) + SEEN_ANEW * again;
            if world.now.duration_since(since.max(led_since(world))) > limit {
                self.fail(world, "S-1", format!("{id} runs without a claim"));
            }
        }
    }

    /// S-5: a claim never has two instances. S-6: a node is there as long as its instance is.
    fn one_instance_a_claim(&mut self, world: &World) {
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        let mut twice = Vec::new();
        let named = |instance: &&Instance| instance.ends.is_none() && !instance.claim_uid.is_empty();
        for instance in world.instances.values().filter(named) {
            if let Some(other) = seen.insert(&instance.claim_uid, &instance.id) {
                twice.push(format!("{} has {other} and {}", instance.claim, instance.id));
            }
        }
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, claim) in &world.claims {
            let Some(id) = provider_id(claim) else { continue };
            if let Some(own) = seen.get(claim.metadata.uid.as_deref().unwrap_or_default())
                && *own != id
                && world.is_alive(id)
            {
                twice.push(format!("{own} was launched for {name}, which goes by {id}"));
            }
            if let Some(other) = owners.insert(id, name) {
                twice.push(format!("{other} and {name} both go by {id}"));
            }
        }
        twice.into_iter().for_each(|what| self.fail(world, "S-5", what));
        let gone = world.claims.values().filter(|claim| {
            let registered = claim.status.as_ref().and_then(|status| status.node_name.as_ref());
            let alive = provider_id(claim).and_then(|id| world.instances.get(id)).is_some_and(|one| one.ends.is_none());
            alive && registered.is_some_and(|node| !world.nodes.contains_key(node))
        });
        let gone: Vec<String> = gone.filter_map(|claim| claim.metadata.name.clone()).collect();
        gone.into_iter()
            .for_each(|claim| self.fail(world, "S-6", format!("the node of {claim} went before its instance")));
    }

    /// S-12: as long as no node ever joined, launches after the first ones grow with the logarithm of time.
    fn launches_in_vain(&mut self, world: &World) {
        let start = *self.start.get_or_insert(world.now);
        let passed = world.now.duration_since(start);
        if passed < REGISTRATION_TIMEOUT {
            self.first_launches = world.launches;
            return;
        }
        let minutes = passed.as_mins().unsigned_abs();
        let more = world.launches - self.first_launches;
        if world.joined == 0 && !self.vain && more > 8 + 4 * (minutes + 2).ilog2() {
            self.vain = true;
            self.fail(world, "S-12", format!("{more} more launches in {minutes} min, and no node joined"));
        }
    }

    /// S-13: what one process sends of each action in any window is within the action's rate, whatever EC2 answers.
    fn calls_keep_the_rates(&mut self, world: &World) {
        let now = world.uptime();
        let mut counts: BTreeMap<&(String, Action), u32> = BTreeMap::new();
        for call in &world.account.sent {
            *counts.entry(call).or_default() += 1;
        }
        for (call, count) in counts {
            let sent = self.sent.entry(call.clone()).or_default();
            sent.push((now, count));
            let mut calls = 0;
            let broken = sent.iter().rev().find_map(|(from, count)| {
                calls += count;
                (!call.1.rate().allows(calls, now.saturating_sub(*from))).then_some(now.saturating_sub(*from))
            });
            if let Some(window) = broken {
                let (process, action) = call;
                self.fail(world, "S-13", format!("{process} sent {calls} calls of {action:?} in {window:?}"));
            }
        }
    }

    /// S-7: when faults have stopped everything finds its place, and then nothing is written but for nodes that come of age. S-11: no taint is
    /// left behind. What waits for a pod that asks to be left alone, or that its budget never lets go, all pods being ready, or for a volume, waits
    /// rightly, and so does a pod while no pool may have another node.
    pub(super) fn at_the_end(&mut self, world: &World, quiet: bool) {
        let full = promises::no_pool_may_grow(world);
        for pod in world.pods.values().filter(|pod| !(pod.ready || full && pod.node.is_none())) {
            self.fail(world, "S-7", format!("pod {} still waits", pod.key));
        }
        let budgets = world.budgets();
        let held = |node: &str| {
            let mut pods = world.pods.values().filter(|pod| pod.node.as_deref() == Some(node));
            let stays = |pod: &Pod| {
                pod.deletes_at.is_none() && (pod.is_protected(world.now) || blocking(&budgets, pod).is_some())
            };
            // for how long a leaked one does is watched all the time
            pods.any(stays) || world.volumes.attached_to(node).any(|(_, attachment)| attachment.leaked)
        };
        let just_asked = |metadata: &ObjectMeta| {
            let asked = metadata.deletion_timestamp.as_ref().map(|time| time.0);
            asked.is_some_and(|asked| world.now.duration_since(asked) <= LEAVES_WITHIN)
        };
        let node_of = |claim: &NodeClaim| claim.status.as_ref().and_then(|status| status.node_name.clone());
        for (name, claim) in &world.claims {
            let leaves = claim.metadata.deletion_timestamp.is_some();
            let lives = provider_id(claim).is_some_and(|id| world.instances.contains_key(id));
            let goes = leaves && (just_asked(&claim.metadata) || node_of(claim).is_some_and(|node| held(&node)));
            if !(goes || lives && !leaves) {
                self.fail(world, "S-7", format!("claim {name} hangs"));
            }
        }
        for (name, node) in &world.nodes {
            let leaves = node.metadata.deletion_timestamp.is_some() && held(name);
            if !leaves && !just_asked(&node.metadata) && is_tainted(node) {
                self.fail(world, "S-11", format!("node {name} is still tainted"));
            }
        }
        self.conditions_at_the_end(world);
        self.messages_are_handled(world);
        self.replicas_at_the_end(world);
        if !quiet {
            self.fail(world, "S-7", format!("still writing at {}", world.written));
        }
    }
}

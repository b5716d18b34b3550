//! Disruption: plan, let the decision rest, check it on a fresh snapshot, launch what replaces the nodes, and let them go.

mod back;
mod forced;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::stream::{self, StreamExt};
use jiff::{SignedDuration, Timestamp};
use karp_domain::api::conditions::{self, ConditionStatus};
use karp_domain::api::{NodeClaim, labels};
use karp_domain::catalogue::Price;
use karp_domain::cluster::{self, Pod, Snapshot};
use karp_domain::disruption::{
    Act, Begun, Budgets, Candidate, Cause, Command, Decided, DisruptionPlan, Execution, Failure, Invalid, Memory,
    Progress, begun, overdue, plan_with, uphold, wishes,
};
use karp_domain::lifecycle::{self, Ailment};
use karp_domain::scheduling::with_room_taken;
use kube::ResourceExt;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::task::block_in_place;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::provisioning::Creation;
use super::{Context, Error, disruption_events, node_claim, protection, provisioning};
use crate::effect::{self, Effect};
use crate::ops::events::Reason;
use crate::ops::metrics::{
    ConsolidationLabels, DecisionLabels, EvaluationLabels, PoolDecisionLabels, PoolLabels, UnhealthyLabels,
};
use crate::ops::telemetry::pass_span;
use back::{Replacements, give_up, has_pods, remove_stale_reasons, remove_stale_taints, roll_back, take_back};

/// Plans are made no more often than this, whatever wakes.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// Nodes that the API server did not let go are asked for again after this.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Nodes of one command that are tainted or let go at the same time.
const AT_ONCE: usize = 16;

/// Remembers which claims are being disrupted by commands of this process, and which pools failed at it.
#[derive(Default)]
pub struct Running {
    claims: Mutex<BTreeMap<Arc<str>, Cause>>,
    memory: Mutex<Memory>,
}

impl Running {
    fn claims(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Cause>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, command: &Command) {
        self.claims().extend(command.candidates.iter().map(|candidate| (candidate.claim.clone(), command.cause)));
    }

    fn remove(&self, command: &Command) {
        let mut running = self.claims();
        for candidate in &command.candidates {
            running.remove(&candidate.claim);
        }
    }

    fn contains(&self, claim: &str) -> bool {
        self.claims().contains_key(claim)
    }

    /// Says whether one of a command's nodes goes already by the same force: what is too old or ill is found again until its claim goes.
    fn ends(&self, command: &Command) -> bool {
        let running = self.claims();
        let goes = |candidate: &Candidate| running.get(&candidate.claim) == Some(&command.cause);
        command.cause.budget().is_none() && command.candidates.iter().any(goes)
    }
}

/// Plans and carries out disruption until `stop` is cancelled; commands that run are then left to the next leader.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut commands = JoinSet::new();
    let mut decided = Decided::default();
    resume(&context, &mut commands).await;
    let mut pause = LEAST_PAUSE;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
            () = context.disrupt.notified() => tokio::time::sleep(LEAST_PAUSE).await,
            Some(_) = commands.join_next() => continue,
        }
        let span = pass_span!("disruption");
        let pass = pass(&context, &mut decided, &mut commands).instrument(span);
        let next = tokio::select! {
            () = stop.cancelled() => break,
            next = pass => next,
        };
        pause = next.clamp(LEAST_PAUSE, context.options.disruption_poll.max(LEAST_PAUSE));
    }
    // What is not done is gone on with or taken back by the next leader, from the claims and taints that it finds.
    commands.abort_all();
}

/// Goes on with the commands that the process before this one had begun, so that their nodes are not replaced once more.
async fn resume(context: &Arc<Context>, commands: &mut JoinSet<()>) {
    let planning = context.planning.lock().await;
    let snapshot = context.snapshot().await;
    for Begun { command, replacements, .. } in begun(&snapshot) {
        if command.candidates.iter().any(|candidate| context.running.contains(&candidate.claim)) {
            // a later command for the same node goes on
            take_back(context, Replacements::Keep(&replacements)).await;
            continue;
        }
        tracing::info!(
            reason = command.cause.word(),
            NodeClaims = provisioning::listing(command.candidates.iter().map(|candidate| &candidate.claim)),
            replacements = provisioning::listing(&replacements),
            "going on with the disruption of node(s) that was begun before"
        );
        context.running.add(&command);
        match taint(context, &command).await {
            Ok(()) => spawn_finish(context, command, replacements, commands),
            Err(failure) => {
                roll_back(context, &command, Replacements::Keep(&replacements), &failure).await;
                context.running.remove(&command);
            }
        }
    }
    let stuck: Vec<Arc<str>> = overdue(&snapshot).into_iter().filter(|name| !has_pods(context, name)).collect();
    if !stuck.is_empty() {
        // pods of nodes that are tainted still would be launched for once these go
        remove_stale_taints(context).await;
    }
    take_back(context, Replacements::Delete(&stuck)).await;
    drop(planning);
}

/// Begins what has rested, makes one plan, and begins what need not rest; returns when to look again.
async fn pass(context: &Arc<Context>, decided: &mut Decided, commands: &mut JoinSet<()>) -> Duration {
    remove_stale_taints(context).await;
    remove_stale_reasons(context).await;
    let rest = SignedDuration::try_from(context.options.consolidation_validation).unwrap_or(SignedDuration::MAX);
    for command in decided.rested(rest, Timestamp::now()) {
        begin(context, command, &Decided::default(), commands).await;
    }
    let started = Instant::now();
    let mut snapshot = context.snapshot().await;
    decided.apply(&mut snapshot);
    let snapshot = block_in_place(|| with_room_taken(snapshot));
    let memory = context.running.memory().clone();
    let plan = block_in_place(|| plan_with(&snapshot, &memory));
    context.running.memory().examined(plan.resume.clone());
    // one search finds all: there is no method by method
    let labels = EvaluationLabels::new("all", "");
    context.metrics.decision_evaluation.get_or_create(&labels).observe(started.elapsed().as_secs_f64());
    disruption_events::report(context, &plan);
    for (pod, wish) in wishes(&snapshot, &plan) {
        protection::tell(context, pod, &wish);
    }
    measure(context, &snapshot, &plan);
    for candidate in &plan.hurried {
        let same = |claim: &Arc<NodeClaim>| claim.metadata.uid.as_deref() == Some(&*candidate.uid);
        let Some(claim) = context.stores.claim(&candidate.claim).filter(same) else { continue };
        if is_unreadable(context, candidate) {
            continue;
        }
        // one that is written meanwhile is looked at again in the next pass
        if let Err(error) = cut_short(context, &claim).await {
            tracing::warn!(NodeClaim.name = %candidate.claim, %error, "could not cut the drain of an unhealthy node short");
        }
    }
    let readable = |command: &Command| !command.candidates.iter().any(|candidate| is_unreadable(context, candidate));
    let admitted = |command: &Command| readable(command) && decided.admits(command) && !context.running.ends(command);
    let new: Vec<Command> = plan.commands.into_iter().filter(admitted).collect();
    let acted = !new.is_empty();
    new.iter().filter(|command| command.cause.rests()).for_each(|command| disruption_events::found(context, command));
    let due = decided.take(new, Timestamp::now());
    let (forced, others): (Vec<Command>, Vec<Command>) =
        due.into_iter().partition(|command| command.cause.budget().is_none());
    forced::begin(context, forced, commands).await;
    for command in others {
        begin(context, command, decided, commands).await;
    }
    if acted {
        return LEAST_PAUSE;
    }
    let next = plan.next_look.into_iter().chain(decided.next(rest)).min();
    let next = next.map(|at| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default());
    next.unwrap_or(context.options.disruption_poll)
}

/// Says whether a node holds a pod that cannot be read: nothing can be planned for it, so its node stays.
fn is_unreadable(context: &Context, candidate: &Candidate) -> bool {
    candidate.node.as_ref().is_some_and(|node| !context.stores.pods.unreadable_on(node).is_empty())
}

/// Checks a command, after its rest where it has one, launches its replacements and taints its nodes; what is left to do runs by itself. `beside`
/// are those that rest and that it was planned beside.
async fn begin(context: &Arc<Context>, mut command: Command, beside: &Decided, commands: &mut JoinSet<()>) {
    let reason = command.cause.word();
    if command.cause == Cause::Empty {
        command.candidates.retain(|candidate| !is_unreadable(context, candidate));
    }
    if command.candidates.iter().any(|candidate| is_unreadable(context, candidate)) {
        return;
    }
    // No plan is made between the check and the new claims: displaced pods would be launched for twice.
    let planning = context.planning.lock().await;
    let mut snapshot = context.snapshot().await;
    beside.apply(&mut snapshot);
    let snapshot = block_in_place(|| with_room_taken(snapshot));
    let upheld = block_in_place(|| uphold(command, &snapshot));
    for (command, invalid) in &upheld.void {
        abandon(context, command, invalid);
    }
    let Some(command) = upheld.command else { return };
    disruption_events::approved(context, &command, &upheld.approvals);
    log(&command);
    count(context, &command);
    context.running.add(&command);
    let mut new = Vec::new();
    for node in &command.replacements {
        new.push(provisioning::create_seen(context, node, reason));
    }
    let created = join_all(new).await;
    let all = created.iter().all(|one| matches!(one, Creation::Done(_)));
    let name = |one| match one {
        Creation::Done(name) | Creation::Doubtful(name) => Some(name),
        Creation::Refused => None,
    };
    let replacements: Vec<Arc<str>> = created.into_iter().filter_map(name).collect();
    let prepared = if all { taint(context, &command).await } else { Err(Failure::ReplacementGone) };
    if let Err(failure) = prepared {
        drop(planning);
        roll_back(context, &command, Replacements::Delete(&replacements), &failure).await;
        return context.running.remove(&command);
    }
    drop(planning);
    tell_waiting(context, &command, &replacements);
    for part in command.apart() {
        spawn_finish(context, part, replacements.clone(), commands);
    }
}

/// Tells of a command that no longer holds.
fn abandon(context: &Context, command: &Command, invalid: &Invalid) {
    context.metrics.failed_validations.get_or_create(&ConsolidationLabels::new(kind(command))).inc();
    tracing::debug!(reason = command.cause.word(), why = %invalid, "abandoning disruption, it no longer holds");
    if command.cause.rests() {
        disruption_events::rejected(context, command, invalid);
    }
}

/// Lets the rest of a command run by itself.
fn spawn_finish(context: &Arc<Context>, command: Command, replacements: Vec<Arc<str>>, commands: &mut JoinSet<()>) {
    let run = Run(context.clone(), command);
    let span = tracing::Span::current();
    let finish = async move { finish(&run.0, &run.1, &replacements).await };
    commands.spawn(finish.instrument(span));
}

/// A command that runs by itself. However that ends, even by a panic, its nodes are looked at again: their taints would stay for ever otherwise.
struct Run(Arc<Context>, Command);

impl Drop for Run {
    fn drop(&mut self) {
        self.0.running.remove(&self.1);
        self.0.disrupt.notify_one();
    }
}

/// Tells on the replacements what they are for, and that the nodes that they replace wait for them.
fn tell_waiting(context: &Context, command: &Command, replacements: &[Arc<str>]) {
    for claim in replacements.iter().filter_map(|name| context.stores.claim(name)) {
        let note = format!("Launching NodeClaim: {}", command.cause);
        context.events.publish(&effect::reference(&*claim), Reason::DisruptionLaunching, note);
        let note = format!("Waiting on readiness to continue disruption: {}", command.cause);
        context.events.publish(&effect::reference(&*claim), Reason::DisruptionWaitingReadiness, note);
    }
}

fn kind(command: &Command) -> &'static str {
    match (command.cause, command.candidates.len()) {
        (Cause::Empty, _) => "empty",
        (Cause::Underutilized, 1) => "single",
        (Cause::Underutilized, _) => "multi",
        (Cause::Drifted | Cause::Expired | Cause::Expiring | Cause::Unhealthy, _) => "",
    }
}

/// Counts a decision, and for each pool that has nodes in it.
fn count(context: &Context, command: &Command) {
    let (decision, reason, kind) = (command.decision(), command.cause.word(), kind(command));
    context.metrics.disruptions.get_or_create(&DecisionLabels::new(decision, reason, kind)).inc();
    let pools: BTreeSet<&str> = command.candidates.iter().map(|candidate| &*candidate.pool).collect();
    for pool in pools {
        let labels = PoolDecisionLabels::new(pool, decision, reason, kind);
        context.metrics.pool_disruptions.get_or_create(&labels).inc();
    }
}

fn log(command: &Command) {
    let nodes = provisioning::listing(command.candidates.iter().filter_map(|candidate| candidate.node.as_deref()));
    let claims = provisioning::listing(command.candidates.iter().map(|candidate| &candidate.claim));
    let types = command.replacements.iter().flat_map(karp_domain::scheduling::InFlightNode::instance_types);
    tracing::info!(
        decision = command.decision(),
        reason = command.cause.word(),
        Nodes = nodes,
        NodeClaims = claims,
        "disrupted-node-count" = command.candidates.len(),
        "replacement-node-count" = command.replacements.len(),
        "replacement-types" = provisioning::listing(types),
        "savings-per-hour" = command.saving().dollars(),
        "disrupting node(s)"
    );
}

/// Keeps new pods off the candidates and says why on their claims; goes to the end whatever fails, so that nothing is still on its way when a
/// command is taken back.
async fn taint(context: &Context, command: &Command) -> Result<(), Failure> {
    let mut each = Vec::new();
    for candidate in &command.candidates {
        each.push(taint_one(context, command, candidate));
    }
    let done: Vec<Result<(), Failure>> = stream::iter(each).buffered(AT_ONCE).collect().await;
    done.into_iter().collect()
}

async fn taint_one(context: &Context, command: &Command, candidate: &Candidate) -> Result<(), Failure> {
    if let Some(node) = &candidate.node {
        if let Err(error) = effect::apply(&context.client, &Effect::Taint(context.which(node))).await {
            tracing::error!(NodeClaim.name = %candidate.claim, %error, "tainting node");
            return Err(Failure::NotTainted { claim: candidate.claim.clone() });
        }
        context.assumed().tainted(&candidate.claim);
        tracing::info!(Node.name = %node, "taint.Key" = labels::DISRUPTED, "taint.Effect" = "NoSchedule", "tainted node");
    }
    if let Err(error) = mark(context, candidate, command).await {
        // The taint counts; the condition only tells.
        tracing::warn!(NodeClaim.name = %candidate.claim, %error, "telling why a node is disrupted");
    }
    Ok(())
}

/// Says on a candidate's claim why it is disrupted.
async fn mark(context: &Context, candidate: &Candidate, command: &Command) -> Result<(), Error> {
    let Some(claim) = context.stores.claim(&candidate.claim) else { return Ok(()) };
    let note = format!("Disrupting NodeClaim: {}", command.cause);
    context.events.publish(&effect::reference(&*claim), Reason::Disrupted, note);
    let reason = command.cause.as_str();
    node_claim::write(context, &claim, |status, now| {
        let all = &mut status.conditions;
        conditions::set(all, conditions::DISRUPTION_REASON, ConditionStatus::True, reason, reason, now);
    })
    .await?;
    Ok(())
}

/// Waits for the replacements and lets the candidates go, or takes everything back.
async fn finish(context: &Context, command: &Command, replacements: &[Arc<str>]) {
    let execution = Execution::new(command.cause, Timestamp::now());
    loop {
        let now = Timestamp::now();
        let (progress, pods) = (progress(context, replacements), pods_on(context, command));
        match execution.next(&progress, &pods, &budgets(context, command), now) {
            Act::Wait { until } => {
                tokio::time::sleep(Duration::try_from(until.duration_since(now)).unwrap_or_default()).await;
            }
            Act::Delete => {
                if let_all_go(context, command).await {
                    return context.running.memory().succeeded(command, Timestamp::now());
                }
                if execution.is_late(now) {
                    // its taints are taken back by the next pass
                    return context.running.memory().failed(command, Timestamp::now());
                }
                tokio::time::sleep(ASK_AGAIN).await;
            }
            Act::RollBack(failure) => {
                let one = |(name, progress): (&Arc<str>, &Progress)| {
                    (failure.ends(*progress) && !has_pods(context, name)).then(|| name.clone())
                };
                let stuck: Vec<Arc<str>> = replacements.iter().zip(&progress).filter_map(one).collect();
                return give_up(context, command, (replacements, &stuck), &failure).await;
            }
        }
    }
}

/// Deletes the candidates' claims; says whether each is on its way.
async fn let_all_go(context: &Context, command: &Command) -> bool {
    let mut each = Vec::new();
    for candidate in &command.candidates {
        each.push(let_one_go(context, command, candidate));
    }
    let done: Vec<bool> = stream::iter(each).buffered(AT_ONCE).collect().await;
    done.into_iter().all(|gone| gone)
}

async fn let_one_go(context: &Context, command: &Command, candidate: &Candidate) -> bool {
    let Some(claim) = context.stores.claim(&candidate.claim) else { return true };
    let leaves = claim.metadata.deletion_timestamp.is_some() || context.assumed().leaves(&candidate.claim);
    if leaves || claim.metadata.uid.as_deref() != Some(&*candidate.uid) {
        return true;
    }
    let note = format!("Disrupting NodeClaim: {}", command.cause);
    disruption_events::tell(context, candidate, Reason::DisruptionTerminating, &note);
    let gone = let_go(context, command, candidate, &claim).await;
    if let Err(error) = &gone {
        tracing::error!(NodeClaim.name = %candidate.claim, %error, "deleting nodeclaim");
    }
    gone.is_ok()
}

/// Deletes a candidate's claim. One that is ill is given hardly any time to drain: nobody knows whether its pods still run.
async fn let_go(context: &Context, command: &Command, candidate: &Candidate, claim: &NodeClaim) -> Result<(), Error> {
    let ailment = candidate.node.as_ref().filter(|_| command.cause == Cause::Unhealthy).and_then(|name| {
        let status = context.stores.node(name)?.status.clone()?;
        Ailment::of(&status.conditions.unwrap_or_default())
    });
    if command.cause == Cause::Unhealthy {
        cut_short(context, claim).await?;
    }
    let done = node_claim::delete(claim, context, command.cause.word()).await?;
    if let Some(ailment) = ailment.filter(|_| done == effect::Outcome::Done) {
        let capacity = claim.labels().get(labels::CAPACITY_TYPE).cloned().unwrap_or_default();
        let image = claim.status.as_ref().and_then(|status| status.image_id.clone()).unwrap_or_default();
        let labels = UnhealthyLabels::new(node_claim::snake_case(ailment.condition), &*candidate.pool, capacity, image);
        context.metrics.nodeclaims_unhealthy_disrupted.get_or_create(&labels).inc();
        tracing::info!(
            NodeClaim.name = %candidate.claim,
            condition = ailment.condition,
            status = ailment.status,
            since = %ailment.since,
            "repairing an unhealthy node: its NodeClaim is deleted"
        );
    }
    Ok(())
}

/// Lets the drain of an ill node end soon.
async fn cut_short(context: &Context, claim: &NodeClaim) -> Result<(), Error> {
    let Some(end) = lifecycle::cut_short(claim, Timestamp::now()) else { return Ok(()) };
    let stamp = json!({ "annotations": BTreeMap::from([lifecycle::drain_by(end)]) });
    node_claim::stamp(context, claim, stamp).await?;
    Ok(())
}

/// Returns how far each replacement is.
fn progress(context: &Context, replacements: &[Arc<str>]) -> Vec<Progress> {
    let one = |name: &Arc<str>| {
        let claim = context.stores.claim(name);
        Progress::of(claim.as_deref(), claim.is_none() && context.assumed().awaits(name))
    };
    replacements.iter().map(one).collect()
}

fn pods_on(context: &Context, command: &Command) -> Vec<Arc<Pod>> {
    let nodes = command.candidates.iter().filter_map(|candidate| candidate.node.as_deref());
    nodes.flat_map(|node| context.stores.pods.on_node(node)).collect()
}

/// Returns the budgets of the pools that a command takes nodes of, as they are now; none for one that they do not hold back.
fn budgets(context: &Context, command: &Command) -> Budgets {
    if command.cause.budget().is_none() {
        return Budgets::new();
    }
    let pools: BTreeSet<&Arc<str>> = command.candidates.iter().map(|candidate| &candidate.pool).collect();
    let of = |name: &Arc<str>| Some((name.clone(), cluster::budgets(&*context.stores.pool(name)?)));
    pools.into_iter().filter_map(of).collect()
}

/// Measures what each pool costs.
fn measure(context: &Context, snapshot: &Snapshot, plan: &DisruptionPlan) {
    for pool in snapshot.pools.iter().filter(|pool| pool.is_ours()) {
        let of_pool = plan.verdicts.iter().map(|(candidate, _)| candidate).filter(|one| one.pool == pool.name);
        let cost: Price = of_pool.filter_map(|candidate| candidate.price).sum();
        let labels = PoolLabels::new(&*pool.name);
        context.metrics.nodepools_cost.get_or_create(&labels).set(cost.dollars());
    }
}

#[cfg(test)]
mod tests;

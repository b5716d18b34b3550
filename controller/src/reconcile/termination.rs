//! The end of nodes and claims: keep new pods off, drain, end the instance, and only then let the objects go. Each step is
//! derived from what is there, so that it goes on after a crash, and each finalizer can always leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::future::{join, join_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use karp_domain::api::conditions::{self, ConditionStatus};
use karp_domain::api::{NodeClaim, labels};
use karp_domain::cluster::{Node as ReadNode, Pod, PodKey, Readiness};
use karp_domain::eviction::{self, Answer, Answers, Block, Deletion, Drain, Hold, Step, Target, Wait};
use karp_domain::lifecycle;
use karp_domain::lifecycle::launch::{batch, was_tried};
use kube::api::ListParams;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::batch::{Seat, seat};
use super::driver::{AT_ONCE, Driver};
use super::{Context, Error, doubt, node_claim, protection, registration};
use crate::effect::{self, Eviction};
use crate::observe::{self, Change, Volumes};
use crate::ops::events::Reason;
use crate::ops::metrics::{CodeLabels, PoolLabels, PoolZoneLabels, ReasonLabels, TerminatedLabels, ZoneLabels};

/// Why pods are drained from a node that nobody disrupted with care, as Karpenter calls it.
const FORCEFUL: &str = "Forceful Termination";
/// Pause between looks at a drain; pods that go wake it earlier.
const DRAIN_PAUSE: Duration = Duration::from_secs(2);
/// Looks at a drain are at least this far apart.
const LEAST_PAUSE: Duration = Duration::from_millis(200);
/// Pause between questions whether an instance is gone.
const INSTANCE_PAUSE: Duration = Duration::from_secs(2);

/// Runs the controller of leaving nodes until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let pick = |context: &Context, change: &Change| match change {
        Change::Node(name) => vec![ObjectRef::new(name)],
        Change::Pod { node: Some(node), .. } => {
            let leaving = context.stores.node(node).filter(|node| node.metadata.deletion_timestamp.is_some());
            leaving.map(|node| ObjectRef::new(&node.name_any())).into_iter().collect()
        }
        _ => Vec::new(),
    };
    let driver = Driver { name: "node.termination", store: context.stores.nodes.clone(), pick, at_once: AT_ONCE };
    driver.run(context, stop, reconcile).await;
}

async fn reconcile(node: Arc<Node>, context: Arc<Context>) -> Result<Action, Error> {
    let held = node.finalizers().iter().any(|known| known == labels::TERMINATION_FINALIZER);
    let Some(since) = node.metadata.deletion_timestamp.as_ref().map(|time| time.0).filter(|_| held) else {
        return Ok(Action::await_change());
    };
    if context.written.is_behind(&*node) {
        // it was let go, which the watch has yet to show
        return Ok(Action::requeue(LEAST_PAUSE));
    }
    // asked last: all claims are looked through for it, and most nodes that change do not go
    if context.stores.is_foreign(&node) {
        return Ok(Action::await_change());
    }
    let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
    let claim = context.stores.claim_of(&id);
    if let Some(claim) = claim.as_ref().filter(|claim| claim.metadata.deletion_timestamp.is_none()) {
        node_claim::delete(claim, &context, "node_deleted").await?;
    }
    // A node that cannot be read can still leave: it counts as not ready, and its instance is asked for.
    let ready = ReadNode::from_kube(&node).map_or(Readiness::NotReady(None), |read| read.ready);
    // Nothing runs any more: there is nobody to drain, and no kubelet to tell that pods are gone.
    // what has joined was known, whenever it was launched
    let joined = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let launched = claim.as_ref().and_then(|claim| lifecycle::since(claim, conditions::LAUNCHED)).or(joined);
    if ready != Readiness::Ready && !exists(&id, launched, &context).await? {
        return leave(&node, &context, since).await;
    }
    if effect::retire(&context.client, &node).await? == effect::Outcome::Done {
        tracing::info!(
            Node.name = node.name_any(),
            "taint.Key" = labels::DISRUPTED,
            "taint.Effect" = "NoSchedule",
            "tainted node"
        );
    }
    let deadline = eviction::deadline(claim.as_ref().map(|claim| claim.annotations()), node.annotations());
    // then the API server has said that no pod is left, and is asked again only when nothing else is waited for
    let known = is_drained(&node, claim.as_deref(), &context);
    if let Drained::No(pause) = drained(&node, claim.as_deref(), &context, (since, deadline)).await? {
        return drains(&node, claim.as_deref(), &context, (deadline, pause)).await;
    }
    let drained = drained_at(&node, claim.as_deref(), &context);
    let all_detached = match detached(&node, &context, drained, deadline).await {
        Ok(all) => all,
        Err(error) => {
            // since when it has been drained bounds how long volumes are waited for, whoever goes on with it
            if let Err(also) = mark(claim.as_deref(), &context, &[(conditions::DRAINED, Mark::Done)]).await {
                tracing::warn!(Node.name = node.name_any(), error = %also, "cannot write since when a node is drained");
            }
            return Err(error);
        }
    };
    if !all_detached {
        context.events.publish(
            &effect::reference(&*node),
            Reason::AwaitingVolumeDetachment,
            "Awaiting volume detachment",
        );
        let doing = Mark::Doing("AwaitingVolumeDetachment", "AwaitingVolumeDetachment");
        let marks = [(conditions::DRAINED, Mark::Done), (conditions::VOLUMES_DETACHED, doing)];
        mark(claim.as_deref(), &context, &marks).await?;
        return Ok(Action::requeue(DRAIN_PAUSE));
    }
    if known && let Some(pause) = unseen(&node, claim.as_deref(), &context, (since, deadline)).await? {
        return drains(&node, claim.as_deref(), &context, (deadline, pause)).await;
    }
    // what has come true in one look is told by one write, before the instance ends
    let marks = [conditions::DRAINED, conditions::VOLUMES_DETACHED, conditions::INSTANCE_TERMINATING];
    let reached = if id.is_empty() { 2 } else { marks.len() };
    mark(claim.as_deref(), &context, &marks.map(|kind| (kind, Mark::Done))[..reached]).await?;
    if !id.is_empty() {
        let asked = context.cloud.terminate(&id).await.inspect_err(|error| {
            count_failure(&*node, &context);
            let note = format!("Failed to terminate instance: {error}");
            context.events.publish(&effect::reference(&*node), Reason::FailedTermination, note);
        });
        if !asked?.is_over(launched, Timestamp::now()) {
            return Ok(Action::requeue(INSTANCE_PAUSE));
        }
    }
    leave(&node, &context, since).await
}

/// Tells that a node still drains, or does again.
async fn drains(
    node: &Node,
    claim: Option<&NodeClaim>,
    context: &Context,
    (deadline, pause): (Option<Timestamp>, Duration),
) -> Result<Action, Error> {
    context.drained.lock().unwrap_or_else(PoisonError::into_inner).remove(&node.uid().unwrap_or_default());
    if let Some(deadline) = deadline {
        tell_deadline(node, context, deadline);
    }
    // told of one that is older than what was written of it, the same would be told again
    let claim = claim.filter(|claim| !context.written.is_behind(*claim));
    mark(claim, context, &[(conditions::DRAINED, Mark::Doing("Draining", "Draining"))]).await?;
    Ok(Action::requeue(pause))
}

/// Counts that an instance could not be ended, by where the labels of its node or claim say that it is.
fn count_failure<K: Resource<DynamicType = ()>>(object: &K, context: &Context) {
    let label = |key: &str| object.labels().get(key).cloned().unwrap_or_default();
    let labels = ZoneLabels::new(label(labels::ZONE), label(labels::ZONE_ID));
    context.metrics.termination_failures.get_or_create(&labels).inc();
}

/// Asks the cloud whether there is an instance, or may be one that it does not know yet.
async fn exists(id: &str, launched: Option<Timestamp>, context: &Context) -> Result<bool, Error> {
    if id.is_empty() {
        return Ok(false);
    }
    Ok(!context.cloud.get(id).await?.is_over(launched, Timestamp::now()))
}

/// Tells by when the pods are gone, on a node that is drained, or on its claim.
fn tell_deadline<K: Resource<DynamicType = ()>>(about: &K, context: &Context, deadline: Timestamp) {
    let note = format!("All pods that are left will be deleted by {deadline:.0}, whatever holds them");
    context.events.publish(&effect::reference(about), Reason::TerminationGracePeriodExpiring, note);
}

/// Lets a node go.
async fn leave(node: &Node, context: &Context, since: Timestamp) -> Result<Action, Error> {
    let pool = node.labels().get(labels::NODE_POOL).cloned().unwrap_or_default();
    let zone = node.labels().get(labels::ZONE).cloned().unwrap_or_default();
    let left = effect::remove_finalizer(&context.client, node, labels::TERMINATION_FINALIZER).await?;
    // also of one that somebody else let go
    let uid = node.uid().unwrap_or_default();
    context.drained.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
    context.evictions.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
    if let Some(left) = left {
        context.written.note(&left);
        let took = Timestamp::now().duration_since(since).as_secs_f64().max(0.0);
        context.metrics.nodes_terminated.get_or_create(&PoolZoneLabels::new(&pool, zone)).inc();
        context.metrics.nodes_termination_duration.get_or_create(&PoolLabels::new(&pool)).observe(took);
        if let Some(created) = node.creation_timestamp() {
            let lived = Timestamp::now().duration_since(created.0).as_secs_f64().max(0.0);
            context.metrics.nodes_lifetime.get_or_create(&PoolLabels::new(&pool)).observe(lived);
        }
        tracing::info!(Node.name = node.name_any(), "deleted node");
    }
    Ok(Action::await_change())
}

/// How a step of the end is told in a claim's conditions.
#[derive(Clone, Copy)]
enum Mark {
    Done,
    Doing(&'static str, &'static str),
}

/// Tells steps of the end in a claim's conditions, by one write.
async fn mark(
    claim: Option<&NodeClaim>,
    context: &Context,
    marks: &[(&str, Mark)],
) -> Result<Option<NodeClaim>, Error> {
    let Some(claim) = claim else { return Ok(None) };
    let written = node_claim::write(context, claim, |status, now| {
        let all = &mut status.conditions;
        for (kind, mark) in marks {
            let unknown = ConditionStatus::Unknown;
            match mark {
                Mark::Done => conditions::set(all, kind, ConditionStatus::True, "", "", now),
                Mark::Doing(reason, message) => conditions::set(all, kind, unknown, reason, message, now),
            };
        }
    });
    written.await.map(Some)
}

/// How far a drain is.
enum Drained {
    Yes,
    No(Duration),
}

/// Takes a drain one step further, by when the node was asked to go and by when it has to.
async fn drained(
    node: &Node,
    claim: Option<&NodeClaim>,
    context: &Context,
    (since, deadline): (Timestamp, Option<Timestamp>),
) -> Result<Drained, Error> {
    let (name, uid) = (node.name_any(), node.uid().unwrap_or_default());
    let now = Timestamp::now();
    let pods = context.stores.pods.to_drain(&name);
    let wait = match step(&pods, &uid, context, (since, deadline), now) {
        Step::Wait(wait) => wait,
        Step::Drained => {
            let obscure = context.stores.pods.obscure_on(&name);
            if !obscure.is_empty() && deadline.is_none_or(|at| now < at) {
                // Nobody knows whether they bear the node's end: they are waited for, never run over.
                let obscure = super::provisioning::listing(obscure.iter());
                let note = format!("Failed to drain node, pod(s) cannot be read: {obscure}");
                context.events.publish(&effect::reference(node), Reason::FailedDraining, note);
                return Ok(Drained::No(DRAIN_PAUSE));
            }
            let known = is_drained(node, claim, context);
            if !known && let Some(pause) = unseen(node, claim, context, (since, deadline)).await? {
                return Ok(Drained::No(pause));
            }
            context.evictions.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
            drained_at(node, claim, context);
            if !known {
                let pool = node.labels().get(labels::NODE_POOL).cloned().unwrap_or_default();
                context.metrics.nodes_drained.get_or_create(&PoolLabels::new(pool)).inc();
            }
            return Ok(Drained::Yes);
        }
    };
    protection::tell_leaving(context, &pods, now);
    let reason = drain_reason(claim);
    // each is asked for, whatever becomes of the others: one pod that the API server does not let go must not keep all
    let evicted = wait.evict.iter().map(|target| evict(target, &uid, &reason, context));
    let (deleted, evicted) =
        join(join_all(wait.delete.iter().map(|pod| delete(pod, context))), join_all(evicted)).await;
    let refused: Vec<String> =
        deleted.into_iter().chain(evicted).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    let drain = Drain { pods: &pods, since, deadline, answers: &Answers::default() };
    let waits: Vec<String> = blocked(&wait, &drain, context, now).into_iter().chain(refused).collect();
    if !waits.is_empty() {
        let note = format!("Failed to drain node, waiting for {}", super::provisioning::listing(waits.iter()));
        context.events.publish(&effect::reference(node), Reason::FailedDraining, note);
    }
    let next = wait.next_look.map(|at| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default());
    Ok(Drained::No(next.unwrap_or(DRAIN_PAUSE).clamp(LEAST_PAUSE, DRAIN_PAUSE)))
}

/// Answers what a drain does next, by pods that were seen on the node.
fn step(
    pods: &[Arc<Pod>],
    uid: &str,
    context: &Context,
    (since, deadline): (Timestamp, Option<Timestamp>),
    now: Timestamp,
) -> Step {
    with_answers(context, uid, |answers| {
        answers.keep_only(pods);
        eviction::next(&Drain { pods, since, deadline, answers }, now)
    })
}

/// Asks the API server for pods that the watch does not show on a node which is drained as far as that goes: the watch may be late, and a pod may
/// have been bound since the last look. Returns when to look again where there is one that has to go first. Asked before a step to the end, until the
/// instance ends.
async fn unseen(
    node: &Node,
    claim: Option<&NodeClaim>,
    context: &Context,
    (since, deadline): (Timestamp, Option<Timestamp>),
) -> Result<Option<Duration>, Error> {
    let now = Timestamp::now();
    let ends = claim.is_some_and(|claim| node_claim::is_true(claim, conditions::INSTANCE_TERMINATING));
    if !eviction::asks_for_pods(ends, deadline, now) {
        return Ok(None);
    }
    let uid = node.uid().unwrap_or_default();
    match effect::pods_on(&context.client, &node.name_any()).await? {
        Some(pods) if step(&pods, &uid, context, (since, deadline), now) == Step::Drained => Ok(None),
        Some(_) => Ok(Some(LEAST_PAUSE)),
        None => {
            let note = "Failed to drain node, a pod cannot be read".to_owned();
            context.events.publish(&effect::reference(node), Reason::FailedDraining, note);
            Ok(Some(DRAIN_PAUSE))
        }
    }
}

/// Returns the pods that hold a drain up, each with why: of a budget also which it is, and how far it is from letting one go.
fn blocked(wait: &Wait, drain: &Drain<'_>, context: &Context, now: Timestamp) -> Vec<String> {
    let by_budget = wait.blocked.iter().any(|(_, block)| *block == Block::Budget);
    let held = if by_budget { eviction::holds(drain, &context.stores.pod_budgets(), now) } else { Vec::new() };
    let of = |(pod, block): &(PodKey, Block)| {
        let mut budgets = held.iter().filter(|held| *block == Block::Budget && held.pod == *pod);
        let why = budgets.find(|held| matches!(held.why, Hold::Budget { .. } | Hold::Budgets { .. }));
        why.map_or_else(|| format!("{pod} ({block})"), |held| format!("{pod} ({})", held.why))
    };
    wait.blocked.iter().map(of).collect()
}

/// Says whether a node is known to be drained, as its claim or this process remembers.
fn is_drained(node: &Node, claim: Option<&NodeClaim>, context: &Context) -> bool {
    let uid = node.uid().unwrap_or_default();
    claim.is_some_and(|claim| node_claim::is_true(claim, conditions::DRAINED))
        || context.drained.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&uid)
}

/// Returns since when a node has been drained: what its claim says, or else since this process found it so.
fn drained_at(node: &Node, claim: Option<&NodeClaim>, context: &Context) -> Timestamp {
    let mut all = context.drained.lock().unwrap_or_else(PoisonError::into_inner);
    let found = *all.entry(node.uid().unwrap_or_default()).or_insert_with(Timestamp::now);
    claim.and_then(|claim| lifecycle::since(claim, conditions::DRAINED)).unwrap_or(found)
}

/// Lets `look` use what is remembered of evictions from a node.
fn with_answers<T>(context: &Context, node_uid: &str, look: impl FnOnce(&mut Answers) -> T) -> T {
    let mut all = context.evictions.lock().unwrap_or_else(PoisonError::into_inner);
    look(all.entry(node_uid.to_owned()).or_default())
}

/// Answers Karpenter's word for why a node is drained: what its claim says, if it was disrupted with care.
fn drain_reason(claim: Option<&NodeClaim>) -> String {
    let Some(claim) = claim else { return String::new() };
    let all = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let told = conditions::get(all, conditions::DISRUPTION_REASON);
    let told = told.filter(|condition| condition.status == ConditionStatus::True);
    told.map_or_else(|| FORCEFUL.to_owned(), |condition| condition.reason.clone())
}

/// Asks the API server to evict a pod; returns what it has against the eviction of this one, other than a budget.
async fn evict(target: &Target, node_uid: &str, reason: &str, context: &Context) -> Result<Option<String>, Error> {
    let Eviction { answer, code } = effect::evict(&context.evictor, &target.pod, &target.uid).await?;
    context.metrics.eviction_requests.get_or_create(&CodeLabels::new(code.to_string())).inc();
    // 404 and 409 say that the pod had gone by itself
    if code < 300 {
        context.metrics.pods_drained.get_or_create(&ReasonLabels::new(reason)).inc();
        let about = effect::pod_reference(&target.pod, &target.uid);
        context.events.publish(&about, Reason::Evicted, "Evicted pod: node is being disrupted");
    }
    with_answers(context, node_uid, |answers| answers.note(&target.uid, answer.clone(), Timestamp::now()));
    // what a budget says is told when the drain waits for it
    let Answer::Failed(why) = answer else { return Ok(None) };
    tracing::warn!(Pod.namespace = %target.pod.namespace, Pod.name = %target.pod.name, code, error = %why, "pod cannot be evicted");
    Ok(Some(format!("{} ({why})", target.pod)))
}

/// Deletes a pod past every budget; returns what the API server has against that.
async fn delete(pod: &Deletion, context: &Context) -> Result<Option<String>, Error> {
    tracing::warn!(Pod.namespace = %pod.pod.namespace, Pod.name = %pod.pod.name, "deleting pod: the drain's deadline is near");
    let grace = u32::try_from(pod.grace_seconds).unwrap_or(1);
    match effect::delete_pod(&context.client, &pod.pod, &pod.uid, grace).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => {
            let (namespace, name, why) = (&pod.pod.namespace, &pod.pod.name, &status.message);
            tracing::warn!(Pod.namespace = %namespace, Pod.name = %name, error = why, "pod cannot be deleted");
            Ok(Some(format!("{} ({why})", pod.pod)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Says whether no volume is attached to a node any more that pods elsewhere may need, or whether it has been waited for long enough.
async fn detached(
    node: &Node,
    context: &Context,
    drained: Timestamp,
    deadline: Option<Timestamp>,
) -> Result<bool, Error> {
    let now = Timestamp::now();
    if now >= eviction::detached_by(drained, deadline) {
        return Ok(true);
    }
    let attachments: Api<VolumeAttachment> = Api::all(context.client.clone());
    let listed = attachments.list(&ListParams::default()).await?;
    let name = node.name_any();
    let here = listed.items.iter().filter(|attachment| attachment.spec.node_name == name);
    let mut here = here.map(|attachment| attachment.spec.source.persistent_volume_name.as_deref()).peekable();
    if here.peek().is_none() {
        return Ok(true);
    }
    let stay = stay(&context.stores.pods.to_drain(&name), &context.stores.volumes, now);
    let is_shared = |volume: &str| {
        context.stores.volumes.volumes.get(&ObjectRef::new(volume)).is_some_and(|it| observe::is_shared(&it))
    };
    Ok(here.all(|volume| volume.is_some_and(|volume| stay.contains(volume) || is_shared(volume))))
}

/// Returns the volumes of pods that stay on a drained node until its end.
fn stay(pods: &[Arc<Pod>], volumes: &Volumes, now: Timestamp) -> BTreeSet<String> {
    let volume = |key: PodKey| {
        let claim = volumes.claims.get(&ObjectRef::new(&key.name).within(&key.namespace))?;
        claim.spec.as_ref()?.volume_name.clone()
    };
    eviction::kept_claims(pods, now).filter_map(volume).collect()
}

/// Takes a claim that was asked to end one step further.
pub async fn finalize_claim(claim: &NodeClaim, context: &Context) -> Result<Action, Error> {
    let asked = claim.metadata.deletion_timestamp.as_ref().map_or_else(Timestamp::now, |time| time.0);
    if claim.finalizers().iter().all(|known| known != labels::TERMINATION_FINALIZER) {
        return Ok(Action::await_change());
    }
    if let Some(grace) = claim.spec.grace()
        && !claim.annotations().contains_key(labels::TERMINATION_TIMESTAMP)
    {
        let at = asked.saturating_add(grace).unwrap_or(Timestamp::MAX);
        let stamp = json!({ "annotations": BTreeMap::from([lifecycle::drain_by(at)]) });
        node_claim::stamp(context, claim, stamp).await?;
        // a claim without a node has no pods to delete
        if registration::node(claim, context).is_some() {
            tell_deadline(claim, context, at);
        }
        return Ok(Action::requeue(Duration::ZERO));
    }
    if let Some(node) = registration::node(claim, context) {
        if node.metadata.deletion_timestamp.is_none() {
            let uid = node.uid().unwrap_or_default();
            effect::delete::<Node>(&context.client, &node.name_any(), &uid).await?;
        }
        return Ok(Action::requeue(DRAIN_PAUSE));
    }
    let instances = match node_claim::provider_id(claim) {
        Some(id) => vec![id.to_owned()],
        // Killed between the launch and its record: the tag knows.
        None if let Some(id) = batch(claim) => match seat(claim, id, context).await? {
            Seat::Given(instance) => vec![instance.provider_id],
            Seat::Empty => Vec::new(),
        },
        None if was_tried(claim) => {
            context.cloud.find(claim).await?.into_iter().map(|instance| instance.provider_id).collect()
        }
        None => Vec::new(),
    };
    if instances.is_empty()
        && let Some(pause) = doubt::look_again(claim, context).await?
    {
        return Ok(Action::requeue(pause));
    }
    let launched = lifecycle::since(claim, conditions::LAUNCHED);
    let mut gone = true;
    let mut told = None;
    if !instances.is_empty() {
        told = mark(Some(claim), context, &[(conditions::INSTANCE_TERMINATING, Mark::Done)]).await?;
    }
    let mut failed = Ok(());
    for id in &instances {
        // one that EC2 does not end must not keep the others
        match context.cloud.terminate(id).await {
            Ok(ending) => gone &= ending.is_over(launched, Timestamp::now()),
            Err(error) => {
                count_failure(claim, context);
                failed = Err(error);
            }
        }
    }
    failed?;
    if !gone {
        return Ok(Action::requeue(INSTANCE_PAUSE));
    }
    let latest = latest(claim, context);
    if let Some(left) = effect::remove_finalizer(&context.client, &latest, labels::TERMINATION_FINALIZER).await? {
        // until the watch shows that it has gone there is nothing more to be done
        context.written.note(&left);
        let label = |key: &str| claim.labels().get(key).cloned().unwrap_or_default();
        let labels =
            TerminatedLabels::new(node_claim::pool_of(claim), label(labels::CAPACITY_TYPE), label(labels::ZONE));
        context.metrics.nodeclaims_terminated.get_or_create(&labels).inc();
        // nothing of it is left that anybody would have to reckon with
        context.assumed().forget(&claim.name_any());
        let (pool, now) = (PoolLabels::new(node_claim::pool_of(claim)), Timestamp::now());
        let took = |since: Timestamp| now.duration_since(since).as_secs_f64().max(0.0);
        context.metrics.nodeclaims_termination_duration.get_or_create(&pool).observe(took(asked));
        let status = told.as_ref().unwrap_or(claim).status.as_ref();
        let all = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
        if let Some(ending) = conditions::get(all, conditions::INSTANCE_TERMINATING) {
            let took = took(ending.last_transition_time);
            context.metrics.instance_termination_duration.get_or_create(&pool).observe(took);
        }
        let id = instances.first().map(String::as_str).unwrap_or_default();
        tracing::info!(NodeClaim.name = claim.name_any(), "provider-id" = id, "deleted nodeclaim");
    }
    Ok(Action::await_change())
}

/// Returns the claim as the cache has it now: this reconcile may just have written its status.
fn latest(claim: &NodeClaim, context: &Context) -> NodeClaim {
    let cached = context.stores.claim(&claim.name_any()).filter(|cached| cached.metadata.uid == claim.metadata.uid);
    cached.map_or_else(|| claim.clone(), |cached| (*cached).clone())
}

#[cfg(test)]
mod tests;

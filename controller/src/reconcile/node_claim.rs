//! NodeClaim: from the wish to a node that pods run on, and the conditions that tell how far it is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use karp_domain::api::conditions::{self, Condition, ConditionStatus};
use karp_domain::api::hash::{self, NodeClassVersion};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodeClaimStatus, NodePool, labels};
use karp_domain::cluster::{Claim, Node as ReadNode, Pool};
use karp_domain::disruption::Cause;
use karp_domain::lifecycle::{self, Drift, Live, Next, Step};
pub use karp_domain::lifecycle::{is_true, provider_id, since};
use karp_domain::resources;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::driver::Driver;
use super::{Context, Error, interruption, launch, registration, termination, unreadable};
use crate::effect;
use crate::observe::Change;
use crate::ops::events::Reason;
use crate::ops::metrics::DisruptedLabels;

/// Reason of a claim that cannot be read.
pub const INVALID: &str = "NodeClaimValidationFailed";
/// A claim that the watch shows as it was before the last write is looked at when it shows that, or after this long.
const BEHIND: Duration = Duration::from_secs(1);
/// What a node waits for is told when it has waited for so long.
const STARTING: Duration = Duration::from_secs(10);
/// What makes up `Ready` of a claim that cannot be read.
const UNREADABLE: &[&str] =
    &[conditions::LAUNCHED, conditions::REGISTERED, conditions::INITIALIZED, conditions::VALIDATION_SUCCEEDED];

/// Claims reconciled at once. Those that are launched wait for EC2, for minutes where it is slow: the others must not wait for them, and those that
/// ask for the same come together only while they are reconciled.
const AT_ONCE: u16 = 512;

/// Runs the controller until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let specs = Specs::default();
    let pick = move |context: &Context, change: &Change| pick(&specs, context, change);
    let driver = Driver { name: "nodeclaim.lifecycle", store: context.stores.claims.clone(), pick, at_once: AT_ONCE };
    driver.run(context, stop, reconcile).await;
}

/// Knows which spec of each pool was seen last: its status changes with each of its nodes, and changes none of them.
#[derive(Default)]
struct Specs(Mutex<BTreeMap<String, Option<i64>>>);

impl Specs {
    /// Says whether a pool's spec is another than the one that was seen last.
    fn is_new(&self, pool: &NodePool) -> bool {
        let generation = pool.metadata.generation;
        self.seen().insert(pool.name_any(), generation) != Some(generation)
    }

    /// Forgets a pool that is gone: another of its name begins anew.
    fn forget(&self, pool: &str) {
        self.seen().remove(pool);
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<String, Option<i64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pick(specs: &Specs, context: &Context, change: &Change) -> Vec<ObjectRef<NodeClaim>> {
    let all = |wanted: &dyn Fn(&NodeClaim) -> bool| -> Vec<ObjectRef<NodeClaim>> {
        context.stores.claims.state_filter(wanted).iter().map(|claim| ObjectRef::new(&claim.name_any())).collect()
    };
    match change {
        Change::Claim(name) => vec![ObjectRef::new(name)],
        Change::Node(name) => match context.stores.node(name) {
            Some(node) => {
                let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
                context.stores.claim_of(&id).map(|claim| ObjectRef::new(&claim.name_any())).into_iter().collect()
            }
            None => {
                // one that goes may not have noted which node it has
                let on_it = |claim: &NodeClaim| match claim.status.as_ref().and_then(|it| it.node_name.as_deref()) {
                    Some(known) => known == &**name,
                    None => claim.metadata.deletion_timestamp.is_some(),
                };
                all(&on_it)
            }
        },
        // those that wait for it are launched, the others may have drifted
        Change::Class(name) => all(&|claim| claim.spec.node_class_ref.name == **name),
        Change::Pool(name) => match context.stores.pool(name) {
            Some(pool) if specs.is_new(&pool) => all(&|claim| pool_of(claim) == **name),
            Some(_) => Vec::new(),
            None => {
                specs.forget(name);
                Vec::new()
            }
        },
        _ => Vec::new(),
    }
}

/// Returns the pool of a claim, for metrics; empty for one made by hand.
pub fn pool_of(claim: &NodeClaim) -> String {
    claim.labels().get(labels::NODE_POOL).cloned().unwrap_or_default()
}

/// Writes the conditions that `change` sets on a copy of the status; nothing when nothing changed.
pub async fn write(
    context: &Context,
    claim: &NodeClaim,
    change: impl FnOnce(&mut NodeClaimStatus, Timestamp),
) -> Result<NodeClaim, Error> {
    let now = Timestamp::now();
    let mut status = claim.status.clone().unwrap_or_default();
    change(&mut status, now);
    set_ready(&mut status.conditions, now);
    if claim.status.as_ref() == Some(&status) {
        return Ok(claim.clone());
    }
    let patch = effect::replacing(claim.status.as_ref(), &status);
    let written = effect::write_status(&context.client, claim, &patch).await?;
    context.written.note(&written);
    Ok(written)
}

/// Writes labels, annotations or finalizers of a claim, if it still is at the version that was seen.
pub async fn stamp(context: &Context, claim: &NodeClaim, metadata: Value) -> kube::Result<NodeClaim> {
    let written = effect::write_metadata(&context.client, claim, metadata).await?;
    context.written.note(&written);
    Ok(written)
}

/// Sets `Ready`; a claim that cannot be read is not, however well its node does.
pub fn set_ready(all: &mut Vec<Condition>, now: Timestamp) {
    let readable = !conditions::is_false(all, conditions::VALIDATION_SUCCEEDED);
    let parts = if readable { conditions::NODE_CLAIM_READY } else { UNREADABLE };
    conditions::set_ready(all, parts, now);
}

/// Tells in the conditions whether what the claim says makes sense; nothing is told of one that always did.
async fn judge(claim: NodeClaim, context: &Context) -> Result<NodeClaim, Error> {
    if context.stores.aside.has("NodeClaim", &claim.name_any()) {
        // Only a stand-in is known; `unreadable` tells of it.
        return Ok(claim);
    }
    let told = |claim: &NodeClaim| {
        claim
            .status
            .as_ref()
            .is_some_and(|it| conditions::get(&it.conditions, conditions::VALIDATION_SUCCEEDED).is_some())
    };
    match Claim::from_kube(&claim) {
        Ok(_) if !told(&claim) => Ok(claim),
        Ok(_) => {
            let clear = |status: &mut NodeClaimStatus, _| {
                conditions::clear(&mut status.conditions, conditions::VALIDATION_SUCCEEDED);
            };
            write(context, &claim, clear).await
        }
        Err(why) => {
            write(context, &claim, |status, now| unreadable::set(&mut status.conditions, INVALID, &why, now)).await
        }
    }
}

async fn reconcile(claim: Arc<NodeClaim>, context: Arc<Context>) -> Result<Action, Error> {
    if context.written.is_behind(&*claim) {
        // what is seen is what it was before the last step, which would be taken again
        return Ok(Action::requeue(BEHIND));
    }
    let node = registration::node(&claim, &context);
    let read = match node.as_deref().map(ReadNode::from_kube).transpose() {
        Ok(read) => read,
        // A claim that has its node waits until the node can be read; others keep their time limits, and can always end.
        // So do those that are interrupted, and those of others are left alone.
        Err(why)
            if is_true(&claim, conditions::REGISTERED)
                && claim.metadata.deletion_timestamp.is_none()
                && claim.spec.node_class_ref.is_ours()
                && interruption::recalled(&claim).is_none() =>
        {
            return Err(why.into());
        }
        Err(_) => None,
    };
    let pool = context.stores.pool(&pool_of(&claim));
    let quiet = pool.and_then(|pool| pool.spec.disruption.quiet_period());
    let Next { step, look } = lifecycle::next(&claim, read.as_ref(), quiet, Timestamp::now());
    // guarded first: else it would be gone before its node is drained and its instance ended
    let recalled = interruption::recalled(&claim).filter(|_| !matches!(step, Step::Leave | Step::End | Step::Guard));
    if let Some(recall) = recalled {
        return interruption::replace(&claim, recall, &context).await;
    }
    let claim = match step {
        Step::Leave | Step::End | Step::Guard => claim,
        _ => Arc::new(judge((*claim).clone(), &context).await?),
    };
    let wait = look.map_or_else(Action::await_change, |at| Action::requeue(until(at)));
    match (step, node.as_deref().zip(read.as_ref())) {
        (Step::Leave, _) => Ok(wait),
        (Step::End, _) => termination::finalize_claim(&claim, &context).await,
        (Step::Guard, _) => {
            effect::add_finalizer(&context.client, &*claim, labels::TERMINATION_FINALIZER).await?;
            Ok(Action::await_change())
        }
        (Step::Launch, _) => launch::launch(&claim, &context).await.map(|action| earlier(action, wait)),
        (Step::AwaitNode, _) => Ok(wait),
        (Step::AwaitTaint { message }, _) => {
            registration::refuse(&claim, node.as_deref(), &context, &message).await.map(|()| wait)
        }
        (Step::Register, Some((node, _))) => registration::register(&claim, node, &context).await,
        (Step::AwaitReady(obstacle), _) => {
            registration::renominate(&claim, &context).await;
            if let Some(left) = starting(&claim) {
                return Ok(Action::requeue(left));
            }
            let (kind, message) = (conditions::INITIALIZED, obstacle.to_string());
            registration::tell(&claim, &context, kind, obstacle.reason(), &message).await.map(|()| wait)
        }
        (Step::Initialize, Some((node, read))) => {
            registration::renominate(&claim, &context).await;
            registration::initialize(&claim, node, read, quiet, &context).await
        }
        (Step::Live(found), there) => {
            registration::renominate(&claim, &context).await;
            if let Some((_, node)) = there {
                note_memory(&claim, node, &context).await;
            }
            live(&claim, &context, &found).await.map(|()| wait)
        }
        (Step::Lose, _) => {
            let (kind, message) = (conditions::REGISTERED, "Node not registered with cluster");
            registration::tell(&claim, &context, kind, "NodeNotFound", message).await.map(|()| wait)
        }
        (Step::GiveUp(timeout), _) => {
            tracing::warn!(
                NodeClaim.name = claim.name_any(),
                reason = timeout.as_str(),
                "deleting nodeclaim, out of time"
            );
            let ended = delete(&claim, &context, timeout.as_str()).await? == effect::Outcome::Done;
            if let Some(outcome) = lifecycle::Outcome::of(timeout, &claim).filter(|_| ended) {
                context.health.note(&claim, outcome, Timestamp::now());
            }
            Ok(wait)
        }
        // These steps are answered for a node only.
        (Step::Register | Step::Initialize, None) => Ok(wait),
    }
}

/// Returns how long a claim is still too young to tell what its node waits for: it changes by the second, and is over before anybody reads it.
fn starting(claim: &NodeClaim) -> Option<Duration> {
    let age = Timestamp::now().duration_since(since(claim, conditions::REGISTERED)?).unsigned_abs();
    STARTING.checked_sub(age).filter(|left| !left.is_zero())
}

fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default()
}

/// Returns the action that comes first: the deadline must not be slept over.
fn earlier(action: Action, deadline: Action) -> Action {
    if action == Action::await_change() { deadline } else { action }
}

/// Asks that a claim ends, and counts why; says whether it did not end already.
pub async fn delete(claim: &NodeClaim, context: &Context, reason: &str) -> Result<effect::Outcome, Error> {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let outcome = context.delete_claim(&claim.name_any(), uid).await?;
    if outcome == effect::Outcome::Done {
        let capacity = claim.labels().get(labels::CAPACITY_TYPE).cloned().unwrap_or_default();
        let (policy, mode) = (consolidation_policy(claim, reason, context), termination_mode(claim));
        let labels = DisruptedLabels::new(reason, pool_of(claim), capacity, policy, mode);
        context.metrics.nodeclaims_disrupted.get_or_create(&labels).inc();
        let node = registration::node(claim, context).map(|node| node.name_any());
        let pods = node.map(|node| context.stores.pods.on_node(&node)).unwrap_or_default();
        let moved = pods.iter().filter(|pod| pod.is_reschedulable()).count();
        context.metrics.pods_disrupted.get_or_create(&labels).inc_by(moved as u64);
    }
    Ok(outcome)
}

/// Answers which policy of its pool a claim goes by, in small letters; empty when it does not go to save something.
fn consolidation_policy(claim: &NodeClaim, reason: &str, context: &Context) -> String {
    let saves = [Cause::Empty, Cause::Underutilized].iter().any(|cause| cause.word() == reason);
    let pool = context.stores.pool(&pool_of(claim)).filter(|_| saves);
    pool.map(|pool| snake_case(&format!("{:?}", pool.spec.disruption.consolidation_policy))).unwrap_or_default()
}

/// Answers Karpenter's word for how long the drain of a claim's node may take: as long as it needs, as its owner said, or no time.
fn termination_mode(claim: &NodeClaim) -> &'static str {
    match claim.spec.grace() {
        None => "graceful",
        Some(grace) if grace.is_zero() => "forceful",
        Some(_) => "eventual",
    }
}

/// `KernelReady` as Karpenter's metric labels have it: `kernel_ready`.
pub fn snake_case(name: &str) -> String {
    let mut all = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !all.is_empty() {
            all.push('_');
        }
        all.push(letter.to_ascii_lowercase());
    }
    all
}

/// Tells the cloud how much memory a node really has, so that others like it are planned with that.
async fn note_memory(claim: &NodeClaim, node: &ReadNode, context: &Context) {
    let image = claim.status.as_ref().and_then(|status| status.image_id.as_deref());
    let memory = u64::try_from(node.capacity.get(resources::MEMORY).units()).unwrap_or_default();
    if let (Some(kind), Some(image)) = (claim.labels().get(labels::INSTANCE_TYPE), image) {
        context.cloud.note_memory(kind, image, memory).await;
    }
}

/// Sets what is known of a node that runs, without drift.
pub fn set_live(all: &mut Vec<Condition>, found: &Live, now: Timestamp) {
    if found.consolidatable {
        conditions::set(all, conditions::CONSOLIDATABLE, ConditionStatus::True, "", "", now);
    } else {
        conditions::clear(all, conditions::CONSOLIDATABLE);
    }
    let consistent = conditions::CONSISTENT_STATE_FOUND;
    match &found.inconsistency {
        None => conditions::set(all, consistent, ConditionStatus::True, "", "", now),
        Some(why) => conditions::set(all, consistent, ConditionStatus::False, "ConsistencyCheckFailed", why, now),
    };
}

/// Keeps the informational conditions of a node that runs: may it be consolidated, has it drifted, is it what was promised.
async fn live(claim: &NodeClaim, context: &Context, found: &Live) -> Result<(), Error> {
    let drifted = drift(claim, context).await;
    let written = write(context, claim, |status, now| {
        let all = &mut status.conditions;
        set_live(all, found, now);
        match &drifted {
            Some(Some(drift)) => {
                let reason = drift.to_string();
                conditions::set(all, conditions::DRIFTED, ConditionStatus::True, &reason, &reason, now);
            }
            Some(None) => {
                conditions::clear(all, conditions::DRIFTED);
            }
            // Not known now: what was known stands.
            None => {}
        }
    })
    .await?;
    if let Some(why) = &found.inconsistency {
        context.events.publish(&effect::reference(claim), Reason::FailedConsistencyCheck, why);
    }
    let newly = |kind: &str| !is_true(claim, kind) && is_true(&written, kind);
    if newly(conditions::CONSOLIDATABLE) || newly(conditions::DRIFTED) {
        context.disrupt.notify_one();
    }
    Ok(())
}

/// Says why a claim no longer is what its pool and class say; `None` when that cannot be told now.
async fn drift(claim: &NodeClaim, context: &Context) -> Option<Option<Drift>> {
    let pool = context.stores.pool(&pool_of(claim))?;
    let class = context.stores.class(&claim.spec.node_class_ref.name)?;
    let read = Pool::from_kube(&pool).ok()?;
    let catalogue = context.cloud.catalogue(&class).await.ok();
    let stamps = (super::node_pool::hash_annotations(&pool), class_stamp(claim, &class, &context.ca_bundle));
    let known = lifecycle::drift(claim, &read, &stamps.0, &stamps.1, catalogue.as_deref(), Timestamp::now());
    if known.is_some() {
        return Some(known);
    }
    match context.cloud.drift(claim, &class).await {
        Ok(reason) => Some(reason.map(Drift::Cloud)),
        Err(error) => {
            tracing::debug!(%error, "drift cannot be told now");
            None
        }
    }
}

/// Returns the hash of a claim's class in the version that is stamped on the claim: Karpenter 1.14 stamped an older one. Nothing for a
/// version that is not known.
fn class_stamp(claim: &NodeClaim, class: &Ec2NodeClass, ca_bundle: &str) -> BTreeMap<String, String> {
    let Some(text) = claim.annotations().get(labels::EC2_NODE_CLASS_HASH_VERSION) else { return BTreeMap::new() };
    let Some(version) = NodeClassVersion::parse(text) else { return BTreeMap::new() };
    BTreeMap::from([
        (labels::EC2_NODE_CLASS_HASH.to_owned(), hash::node_class(&class.spec, version, ca_bundle)),
        (labels::EC2_NODE_CLASS_HASH_VERSION.to_owned(), text.clone()),
    ])
}

#[cfg(test)]
mod tests {
    use karp_domain::api::NodeClaimSpec;
    use serde_json::json;

    use super::super::testing::{self, Server};
    use super::*;

    #[test]
    fn a_spec_is_new_once_and_with_each_pool() {
        let pool = |generation: i64| -> NodePool {
            let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
            let template = json!({ "spec": { "requirements": [], "nodeClassRef": class } });
            let metadata = json!({ "name": "p", "generation": generation });
            serde_json::from_value(json!({ "metadata": metadata, "spec": { "template": template } })).expect("a pool")
        };
        let specs = Specs::default();
        assert!(specs.is_new(&pool(1)) && !specs.is_new(&pool(1)) && specs.is_new(&pool(2)));
        specs.forget("p");
        assert!(specs.is_new(&pool(2)), "another of that name");
    }

    #[tokio::test]
    async fn a_claim_that_is_called_back_is_guarded_before_it_goes() {
        let mut recalled = testing::claim("c");
        recalled["metadata"]["annotations"] = json!({ (labels::INTERRUPTED_AT): "2026-01-01T00:00:00Z" });
        let server = Server::of([recalled]);
        let context = server.context().await;
        let claim = context.stores.claim("c").expect("a claim");
        reconcile(claim, context.clone()).await.expect("answers");
        assert_eq!(server.asked("DELETE nodeclaims/c"), 0, "nothing would hold it until its instance is gone");
        assert_eq!(server.get("nodeclaims/c")["metadata"]["finalizers"], json!([labels::TERMINATION_FINALIZER]));
    }

    #[tokio::test]
    async fn a_claim_that_is_deleted_twice_is_counted_once() {
        let server = Server::of([testing::claim("c")]);
        let context = server.context().await;
        let claim = context.stores.claim("c").expect("a claim");
        assert_eq!(delete(&claim, &context, "test").await.expect("answers"), effect::Outcome::Done);
        // the watch does not show it yet, and something else has it looked at
        assert_eq!(delete(&claim, &context, "test").await.expect("answers"), effect::Outcome::Nothing);
        let text = context.metrics.encode();
        let line = text.lines().find(|line| line.starts_with("karpenter_nodeclaims_disrupted_total{"));
        assert!(line.is_some_and(|line| line.ends_with(" 1")), "{line:?}");
    }

    #[test]
    fn words_are_those_of_karpenters_labels() {
        assert_eq!(snake_case("Ready"), "ready");
        assert_eq!(snake_case("AcceleratedHardwareReady"), "accelerated_hardware_ready");
        assert_eq!(snake_case("WhenEmptyOrUnderutilized"), "when_empty_or_underutilized");
        let mode = |grace: Option<&str>| {
            let spec = NodeClaimSpec { termination_grace_period: grace.map(str::to_owned), ..NodeClaimSpec::default() };
            termination_mode(&NodeClaim::new("a", spec))
        };
        assert_eq!([mode(None), mode(Some("0s")), mode(Some("1h"))], ["graceful", "forceful", "eventual"]);
    }

    /// A class is compared in the version that its claims were stamped with, so that an upgrade of karp drifts none of them.
    #[test]
    fn a_class_is_hashed_as_the_claim_was_stamped() {
        let mut class = Ec2NodeClass::new("default", Default::default());
        class.spec.kubelet = serde_json::from_value(json!({ "maxPods": 50 })).expect("settings");
        let used = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
        let template = json!({ "spec": { "requirements": [], "nodeClassRef": used } });
        let pool = json!({ "metadata": { "name": "p" }, "spec": { "template": template } });
        let pool: NodePool = serde_json::from_value(pool).expect("a pool");
        let pool = Pool::from_kube(&pool).expect("readable");
        let stamped = |class: &Ec2NodeClass, text: &str, version: NodeClassVersion| {
            BTreeMap::from([
                (labels::EC2_NODE_CLASS_HASH.to_owned(), hash::node_class(&class.spec, version, "")),
                (labels::EC2_NODE_CLASS_HASH_VERSION.to_owned(), text.to_owned()),
            ])
        };
        let claim = |annotations: BTreeMap<String, String>| {
            let mut claim = NodeClaim::new("c", NodeClaimSpec::default());
            claim.metadata.annotations = Some(annotations);
            claim
        };
        let drift = |claim: &NodeClaim, class: &Ec2NodeClass| {
            let (none, now) = (BTreeMap::new(), Timestamp::UNIX_EPOCH);
            lifecycle::drift(claim, &pool, &none, &class_stamp(claim, class, ""), None, now)
        };
        let mut other = class.clone();
        other.spec.user_data = Some("#!/bin/sh".to_owned());
        let mut hashes = Vec::new();
        for (text, version) in [("v5", NodeClassVersion::V5), ("v6", NodeClassVersion::V6)] {
            let made = claim(stamped(&class, text, version));
            assert_eq!(class_stamp(&made, &class, ""), stamped(&class, text, version));
            assert_eq!((drift(&made, &class), drift(&made, &other)), (None, Some(Drift::NodeClass)), "{text}");
            hashes.push(hash::node_class(&class.spec, version, ""));
        }
        assert_ne!(hashes[0], hashes[1]);
        let unknown = claim(stamped(&class, "v4", NodeClassVersion::V5));
        assert_eq!((class_stamp(&unknown, &class, ""), drift(&unknown, &other)), (BTreeMap::new(), None));
        assert_eq!(class_stamp(&claim(BTreeMap::new()), &class, ""), BTreeMap::new());
    }

    #[tokio::test]
    async fn a_node_that_is_not_what_was_promised_is_told_of() {
        let server = Server::of([testing::claim("c")]);
        let context = server.context().await;
        let claim = context.stores.claim("c").expect("a claim");
        let why = "expected 8 of resource cpu, but found 4";
        let found = Live { consolidatable: false, inconsistency: Some(why.to_owned()) };
        live(&claim, &context, &found).await.expect("answers");
        assert_eq!(server.told("FailedConsistencyCheck", "c").await, why);
    }
}

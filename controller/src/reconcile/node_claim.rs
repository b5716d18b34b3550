//! NodeClaim: from the wish to a node that pods run on, and the conditions that tell how far it is.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karp_domain::api::conditions::{self, Condition, ConditionStatus};
use karp_domain::api::hash::{self, NodeClassVersion};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodeClaimStatus, labels};
use karp_domain::cluster::Claim;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use tokio_util::sync::CancellationToken;

use super::driver::Driver;
use super::{Context, Error, interruption, launch, registration, termination, unreadable};
use crate::effect::{self, Effect};
use crate::observe::Change;
use crate::ops::metrics::DisruptedLabels;

/// An instance that was not launched after this long never will be (Karpenter: 5 min).
const LAUNCH_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);
/// A node that has not joined after this long never will (Karpenter: 15 min).
const REGISTRATION_TIMEOUT: SignedDuration = SignedDuration::from_mins(15);
/// Drift is looked at this often.
const DRIFT_INTERVAL: Duration = Duration::from_secs(300);
/// Reason of a claim that cannot be read.
pub const INVALID: &str = "NodeClaimValidationFailed";
/// What makes up `Ready` of a claim that cannot be read.
const UNREADABLE: &[&str] =
    &[conditions::LAUNCHED, conditions::REGISTERED, conditions::INITIALIZED, conditions::VALIDATION_SUCCEEDED];

/// Runs the controller until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let driver = Driver { name: "nodeclaim.lifecycle", store: context.stores.claims.clone(), pick };
    driver.run(context, stop, reconcile).await;
}

fn pick(context: &Context, change: &Change) -> Vec<ObjectRef<NodeClaim>> {
    match change {
        Change::Claim(name) => vec![ObjectRef::new(name)],
        Change::Node(name) => match context.stores.node(name) {
            Some(node) => {
                let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
                context.stores.claim_of(&id).map(|claim| ObjectRef::new(&claim.name_any())).into_iter().collect()
            }
            None => {
                let on_it = |claim: &NodeClaim| {
                    claim.status.as_ref().and_then(|status| status.node_name.as_deref()) == Some(&**name)
                        || claim.metadata.deletion_timestamp.is_some()
                };
                context
                    .stores
                    .claims
                    .state_filter(on_it)
                    .iter()
                    .map(|claim| ObjectRef::new(&claim.name_any()))
                    .collect()
            }
        },
        Change::Class(name) => {
            let waiting =
                |claim: &NodeClaim| claim.spec.node_class_ref.name == **name && !is_true(claim, conditions::LAUNCHED);
            context.stores.claims.state_filter(waiting).iter().map(|claim| ObjectRef::new(&claim.name_any())).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns whether a condition of a claim is true.
pub fn is_true(claim: &NodeClaim, kind: &str) -> bool {
    claim.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, kind))
}

/// Returns since when a condition of a claim has been true.
pub fn since(claim: &NodeClaim, kind: &str) -> Option<Timestamp> {
    let condition = conditions::get(&claim.status.as_ref()?.conditions, kind)?;
    (condition.status == ConditionStatus::True).then_some(condition.last_transition_time)
}

/// Returns the instance of a claim; an empty id is none.
pub fn provider_id(claim: &NodeClaim) -> Option<&str> {
    claim.status.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
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
    Ok(effect::write_status(&context.client, claim, &status).await?)
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
    if claim.spec.node_class_ref.group != labels::AWS_GROUP {
        return Ok(Action::await_change());
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return termination::finalize_claim(&claim, &context).await;
    }
    if interruption::is_interrupted(&claim) {
        return interruption::replace(&claim, &context).await;
    }
    let claim = effect::add_finalizer(&context.client, &*claim, labels::TERMINATION_FINALIZER).await?;
    let claim = judge(claim, &context).await?;
    let now = Timestamp::now();
    if !is_true(&claim, conditions::LAUNCHED) {
        return match overdue(claim.creation_timestamp().map(|time| time.0), LAUNCH_TIMEOUT, now) {
            Due::Past => give_up(&claim, &context, "launch_timeout", "instance was not launched in time").await,
            Due::In(left) => launch::launch(&claim, &context).await.map(|action| earlier(action, left)),
        };
    }
    if !is_true(&claim, conditions::REGISTERED) {
        return match overdue(since(&claim, conditions::LAUNCHED), REGISTRATION_TIMEOUT, now) {
            Due::Past => give_up(&claim, &context, "registration_timeout", "node did not join in time").await,
            Due::In(left) => registration::register(&claim, &context).await.map(|done| match done {
                registration::Step::Done => Action::requeue(Duration::ZERO),
                registration::Step::Waiting => Action::requeue(left),
            }),
        };
    }
    if !is_true(&claim, conditions::INITIALIZED) {
        return registration::initialize(&claim, &context).await;
    }
    registration::renominate(&claim, &context).await;
    live(&claim, &context, now).await
}

enum Due {
    Past,
    In(Duration),
}

/// Says whether a time limit that runs since `start` is over, and else how much is left.
fn overdue(start: Option<Timestamp>, limit: SignedDuration, now: Timestamp) -> Due {
    let left = start.map_or(limit, |start| limit.saturating_sub(now.duration_since(start)));
    match Duration::try_from(left) {
        Ok(left) if !left.is_zero() => Due::In(left),
        _ => Due::Past,
    }
}

/// Returns the action that comes first: the deadline must not be slept over.
fn earlier(action: Action, deadline: Duration) -> Action {
    if action == Action::await_change() { Action::requeue(deadline) } else { action }
}

/// Deletes a claim that came to nothing; its pods are planned for again.
async fn give_up(claim: &NodeClaim, context: &Context, reason: &str, message: &str) -> Result<Action, Error> {
    tracing::warn!(NodeClaim.name = claim.name_any(), reason, "deleting nodeclaim: {message}");
    delete(claim, context, reason).await?;
    Ok(Action::await_change())
}

/// Asks that a claim ends, and counts why.
pub async fn delete(claim: &NodeClaim, context: &Context, reason: &str) -> Result<(), Error> {
    let effect = Effect::DeleteNodeClaim {
        name: claim.name_any().into(),
        uid: claim.metadata.uid.clone().unwrap_or_default().into(),
    };
    if effect::apply(&context.client, &effect).await? == effect::Outcome::Done {
        let capacity = claim.labels().get(labels::CAPACITY_TYPE).cloned().unwrap_or_default();
        let labels = DisruptedLabels::new(reason, pool_of(claim), capacity);
        context.metrics.nodeclaims_disrupted.get_or_create(&labels).inc();
    }
    Ok(())
}

/// Keeps the informational conditions of a node that runs: may it be consolidated, has it drifted.
async fn live(claim: &NodeClaim, context: &Context, now: Timestamp) -> Result<Action, Error> {
    let pool = context.stores.pool(&pool_of(claim));
    let quiet = pool.as_ref().map(|pool| pool.spec.disruption.quiet_period());
    let last =
        [since(claim, conditions::INITIALIZED), claim.status.as_ref().and_then(|status| status.last_pod_event_time)]
            .into_iter()
            .flatten()
            .max();
    let consolidatable = match (quiet, last) {
        (Some(Some(quiet)), Some(last)) => Some(overdue(Some(last), quiet, now)),
        _ => None,
    };
    let drifted = drift(claim, context).await;
    let before = is_true(claim, conditions::CONSOLIDATABLE);
    let written = write(context, claim, |status, now| {
        let all = &mut status.conditions;
        if matches!(consolidatable, Some(Due::Past)) {
            conditions::set(all, conditions::CONSOLIDATABLE, ConditionStatus::True, "", "", now);
        } else {
            conditions::clear(all, conditions::CONSOLIDATABLE);
        }
        match drifted {
            Some(Some(reason)) => {
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
    if !before && is_true(&written, conditions::CONSOLIDATABLE) {
        context.disrupt.notify_one();
    }
    Ok(Action::requeue(match consolidatable {
        Some(Due::In(left)) => left.min(DRIFT_INTERVAL),
        _ => DRIFT_INTERVAL,
    }))
}

/// Says whether a claim no longer is what its pool and class say; `None` when that cannot be told now.
async fn drift(claim: &NodeClaim, context: &Context) -> Option<Option<String>> {
    let pool = context.stores.pool(&pool_of(claim))?;
    let class = context.stores.class(&claim.spec.node_class_ref.name)?;
    let stamped = |hash: &str, version: &str, now: &std::collections::BTreeMap<String, String>| {
        let own = claim.annotations();
        own.get(version) == now.get(version) && own.get(hash) != now.get(hash)
    };
    let pool_hashes = super::node_pool::hash_annotations(&pool);
    if stamped(labels::NODE_POOL_HASH, labels::NODE_POOL_HASH_VERSION, &pool_hashes) {
        return Some(Some("NodePoolDrifted".to_owned()));
    }
    if class_changed(claim, &class, &context.ca_bundle) {
        return Some(Some("NodeClassDrift".to_owned()));
    }
    match context.cloud.drift(claim, &class).await {
        Ok(reason) => Some(reason),
        Err(error) => {
            tracing::debug!(%error, "drift cannot be told now");
            None
        }
    }
}

/// Says whether a claim's class is no longer what it was made from, by the hash and in the version that is stamped on the claim: Karpenter
/// 1.14 stamped an older one.
fn class_changed(claim: &NodeClaim, class: &Ec2NodeClass, ca_bundle: &str) -> bool {
    let stamp = |key: &str| claim.annotations().get(key);
    let version = stamp(labels::EC2_NODE_CLASS_HASH_VERSION).and_then(|version| NodeClassVersion::parse(version));
    version.is_some_and(|version| {
        stamp(labels::EC2_NODE_CLASS_HASH) != Some(&hash::node_class(&class.spec, version, ca_bundle))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_run_from_their_start_and_never_go_negative() {
        let start = Timestamp::UNIX_EPOCH;
        let at = |seconds: i64| start + SignedDuration::from_secs(seconds);
        let left = |now| match overdue(Some(start), LAUNCH_TIMEOUT, now) {
            Due::Past => None,
            Due::In(left) => Some(left.as_secs()),
        };
        assert_eq!(left(at(0)), Some(300));
        assert_eq!(left(at(299)), Some(1));
        assert_eq!(left(at(300)), None);
        assert_eq!(left(at(9000)), None);
        assert_eq!(left(at(-10)), Some(310), "a clock that went back lengthens, it does not overflow");
    }
}

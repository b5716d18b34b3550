//! What a controller writes at the API server: it may be killed just after each, and the API server may not answer.

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::world::{World, is_tainted};
use crate::api::conditions::{self, ConditionStatus};
use crate::api::{NodeClaim, NodeClaimStatus, labels};
use crate::lifecycle;

/// Why a step of a controller ended before its time.
pub(super) enum Stop {
    /// The controller was killed.
    Killed,
    /// The API server did not answer: nobody knows what became of the request. The other steps go on.
    Unanswered,
}

/// What is left of an outcome when other steps go on whatever became of this one.
pub(super) fn survived(outcome: Result<(), Stop>) -> Result<(), Stop> {
    match outcome {
        Err(Stop::Unanswered) => Ok(()),
        other => other,
    }
}

/// Asks the API server: it may be away, or lose the request.
pub(super) fn ask(world: &mut World) -> Result<(), Stop> {
    let permille = world.faults.unanswered_permille.div_ceil(2);
    if world.is_away() || world.random.happens(permille) { Err(world.unanswered()) } else { Ok(()) }
}

/// The API server has written: the controller may be killed just after it, and the answer may be lost.
pub(super) fn wrote(world: &mut World) -> Result<(), Stop> {
    effect(world)?;
    let permille = world.faults.unanswered_permille / 2;
    if world.random.happens(permille) { Err(world.unanswered()) } else { Ok(()) }
}

/// Something is written: the controller may be killed just after it.
pub(super) fn effect(world: &mut World) -> Result<(), Stop> {
    world.written = world.now;
    super::check::only_the_leader_writes(world);
    super::check::warnings::nobody_is_harmed(world);
    call(world)
}

/// The API server answers, and may have changed nothing: the controller may be killed just after it.
pub(super) fn call(world: &mut World) -> Result<(), Stop> {
    let crash = world.faults.crash_permille;
    if world.random.happens(crash) { Err(Stop::Killed) } else { Ok(()) }
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

pub(super) fn patch_node(world: &mut World, name: &str, patch: impl Fn(&core::Node) -> Value) -> Result<(), Stop> {
    ask(world)?;
    if let Some(node) = world.nodes.get_mut(name) {
        let mut value = serde_json::to_value(&*node).unwrap_or_default();
        merge(&mut value, &patch(node));
        *node = serde_json::from_value(value).unwrap_or_default();
    }
    wrote(world)
}

/// Writes a claim's status, unless it has changed since it was seen: that is a conflict, and the next look begins anew.
pub(super) fn set(
    world: &mut World,
    seen: &NodeClaim,
    change: impl FnOnce(&mut NodeClaimStatus, Timestamp),
) -> Result<(), Stop> {
    let now = world.clock();
    if !world.is_current(seen) {
        return Ok(());
    }
    let name = seen.metadata.name.as_deref().unwrap_or_default();
    let Some(claim) = world.claims.get(name) else { return Ok(()) };
    let mut status = claim.status.clone().unwrap_or_default();
    change(&mut status, now);
    if claim.status.as_ref() == Some(&status) {
        return Ok(());
    }
    ask(world)?;
    if let Some(claim) = world.claims.get_mut(name) {
        claim.status = Some(status);
    }
    wrote(world)
}

pub(super) fn yes(status: &mut NodeClaimStatus, kind: &str, now: Timestamp) {
    conditions::set(&mut status.conditions, kind, ConditionStatus::True, "", "", now);
}

pub(super) fn delete_claim(world: &mut World, name: &str) -> Result<(), Stop> {
    ask(world)?;
    let now = world.now;
    match world.claims.get_mut(name) {
        Some(claim) if claim.metadata.deletion_timestamp.is_none() => {
            claim.metadata.deletion_timestamp = Some(Time(now));
            wrote(world)
        }
        _ => Ok(()),
    }
}

/// Lets the drain of an ill node end soon, as `controller/src/reconcile/disruption.rs` does.
pub(super) fn cut_short(world: &mut World, name: &str) -> Result<(), Stop> {
    let now = world.clock();
    let Some(end) = world.claims.get(name).and_then(|claim| lifecycle::cut_short(claim, now)) else { return Ok(()) };
    ask(world)?;
    if let Some(claim) = world.claims.get_mut(name) {
        claim.metadata.annotations.get_or_insert_default().extend([lifecycle::drain_by(end)]);
    }
    wrote(world)
}

/// Takes from a replacement what it was made for, as `controller/src/reconcile/disruption.rs` does.
pub(super) fn forget_purpose(world: &mut World, name: &str) -> Result<(), Stop> {
    ask(world)?;
    let annotations = world.claims.get_mut(name).and_then(|claim| claim.metadata.annotations.as_mut());
    match annotations.and_then(|all| all.remove(labels::REPLACES)) {
        Some(_) => wrote(world),
        None => Ok(()),
    }
}

pub(super) fn taint(world: &mut World, name: &str, on: bool) -> Result<(), Stop> {
    if world.nodes.get(name).is_none_or(|node| is_tainted(node) == on) {
        return Ok(());
    }
    ask(world)?;
    let spec = world.nodes.get_mut(name).and_then(|node| node.spec.as_mut());
    let Some(taints) = spec.map(|spec| spec.taints.get_or_insert_default()) else { return Ok(()) };
    if on {
        taints.push((&labels::disrupted_taint()).into());
    } else {
        taints.retain(|taint| taint.key != labels::DISRUPTED);
    }
    wrote(world)
}

//! Status conditions, with Karpenter's types and the rules by which they change.

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::rules;

pub const READY: &str = "Ready";

/// Condition types of a NodeClaim.
pub const LAUNCHED: &str = "Launched";
/// The reason of [`LAUNCHED`] while EC2 throttles, is away, or answers what nobody knows: the next try may do.
pub const LAUNCH_FAILED: &str = "LaunchFailed";
pub const REGISTERED: &str = "Registered";
pub const INITIALIZED: &str = "Initialized";
pub const CONSOLIDATABLE: &str = "Consolidatable";
pub const DRIFTED: &str = "Drifted";
pub const DRAINED: &str = "Drained";
pub const VOLUMES_DETACHED: &str = "VolumesDetached";
pub const INSTANCE_TERMINATING: &str = "InstanceTerminating";
pub const CONSISTENT_STATE_FOUND: &str = "ConsistentStateFound";
pub const DISRUPTION_REASON: &str = "DisruptionReason";

/// Condition types of a NodePool.
pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
pub const NODE_CLASS_READY: &str = "NodeClassReady";
pub const NODE_REGISTRATION_HEALTHY: &str = "NodeRegistrationHealthy";

/// Condition types of an EC2NodeClass.
pub const SUBNETS_READY: &str = "SubnetsReady";
pub const SECURITY_GROUPS_READY: &str = "SecurityGroupsReady";
pub const AMIS_READY: &str = "AMIsReady";
pub const INSTANCE_PROFILE_READY: &str = "InstanceProfileReady";
pub const PLACEMENT_GROUP_READY: &str = "PlacementGroupReady";
pub const CAPACITY_RESERVATIONS_READY: &str = "CapacityReservationsReady";
/// There, and False, as long as the interruption queue cannot be read. `Ready` does not follow from it: nodes come all the same.
pub const INTERRUPTION_QUEUE_READY: &str = "InterruptionQueueReady";

/// Condition types of a CapacityBuffer.
pub const READY_FOR_PROVISIONING: &str = "ReadyForProvisioning";
pub const PROVISIONING: &str = "Provisioning";

/// What makes up the root condition `Ready` of each kind.
pub const NODE_CLAIM_READY: &[&str] = &[LAUNCHED, REGISTERED, INITIALIZED];
pub const NODE_POOL_READY: &[&str] = &[VALIDATION_SUCCEEDED, NODE_CLASS_READY];
pub const NODE_CLASS_READY_PARTS: &[&str] =
    &[SUBNETS_READY, SECURITY_GROUPS_READY, AMIS_READY, INSTANCE_PROFILE_READY, VALIDATION_SUCCEEDED];

/// True, False or not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// One condition of a status.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: ConditionStatus,
    /// When the status last changed.
    pub last_transition_time: Timestamp,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl Condition {
    /// Makes one that has been met since a time.
    pub fn met(kind: &str, since: Timestamp) -> Self {
        Condition {
            kind: kind.to_owned(),
            status: ConditionStatus::True,
            last_transition_time: since,
            reason: kind.to_owned(),
            message: String::new(),
            observed_generation: None,
        }
    }
}

impl JsonSchema for Condition {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Condition".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "required": ["lastTransitionTime", "status", "type"],
            "properties": {
                "type": {
                    "type": "string",
                    "maxLength": 316,
                    "pattern": rules::CONDITION_TYPE
                },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "lastTransitionTime": { "type": "string", "format": "date-time" },
                "reason": {
                    "type": "string",
                    "maxLength": 1024,
                    "pattern": rules::CONDITION_REASON
                },
                "message": { "type": "string", "maxLength": 32768 },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 }
            }
        })
    }
}

/// Returns the condition of a type.
#[must_use]
pub fn get<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

/// Returns whether the condition of a type is `True`.
#[must_use]
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    get(conditions, kind).is_some_and(|condition| condition.status == ConditionStatus::True)
}

/// Returns whether the condition of a type is `False`.
#[must_use]
pub fn is_false(conditions: &[Condition], kind: &str) -> bool {
    get(conditions, kind).is_some_and(|condition| condition.status == ConditionStatus::False)
}

/// Sets a condition; the transition time moves only when the status does. Returns whether anything but the time changed.
pub fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    status: ConditionStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    // As Karpenter does, a condition without a reason of its own names itself.
    let reason = if reason.is_empty() { kind } else { reason };
    if let Some(existing) = conditions.iter_mut().find(|condition| condition.kind == kind) {
        let changed = existing.status != status || existing.reason != reason || existing.message != message;
        if existing.status != status {
            existing.last_transition_time = now;
            existing.status = status;
        }
        if changed {
            reason.clone_into(&mut existing.reason);
            message.clone_into(&mut existing.message);
        }
        return changed;
    }
    conditions.push(Condition {
        kind: kind.to_owned(),
        status,
        last_transition_time: now,
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: None,
    });
    conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
    true
}

/// Says of all conditions which generation of their object they tell of.
pub fn observe(conditions: &mut [Condition], generation: Option<i64>) {
    conditions.iter_mut().for_each(|condition| condition.observed_generation = generation);
}

/// Takes a condition away; returns whether it was there.
pub fn clear(conditions: &mut Vec<Condition>, kind: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.kind != kind);
    conditions.len() != before
}

/// Sets `Ready` from its parts: False if one is False, True if all are True, else Unknown. Returns whether it changed.
pub fn set_ready(conditions: &mut Vec<Condition>, parts: &[&str], now: Timestamp) -> bool {
    let failed = |status: ConditionStatus| {
        parts
            .iter()
            .filter(|part| get(conditions, part).map_or(ConditionStatus::Unknown, |c| c.status) == status)
            .map(|part| format!("{part}={status:?}"))
            .collect::<Vec<_>>()
    };
    let (wrong, open) = (failed(ConditionStatus::False), failed(ConditionStatus::Unknown));
    let (status, reason, message) = match (wrong.is_empty(), open.is_empty()) {
        (true, true) => (ConditionStatus::True, READY, String::new()),
        (false, _) => (ConditionStatus::False, "UnhealthyDependents", wrong.join(", ")),
        (true, false) => (ConditionStatus::Unknown, "ReconcilingDependents", open.join(", ")),
    };
    set(conditions, READY, status, reason, &message, now)
}

//! EventBridge's events, read by the shapes that AWS documents: of each only what matters, so that a field that is new stops nothing.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{InstanceState, Message, Notice};

/// More instances than one health event lists; the rest of a longer list comes in further events.
pub(super) const MAX_NOTICES: usize = 1000;

/// What every event has.
#[derive(Deserialize)]
struct Envelope {
    source: String,
    #[serde(rename = "detail-type")]
    detail_type: String,
    #[serde(default)]
    time: Option<String>,
    #[serde(default)]
    detail: Value,
}

/// `detail` of warnings about one instance.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct OneInstance {
    instance_id: InstanceId,
}

/// `detail` of a change of an instance's state.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct StateChange {
    instance_id: InstanceId,
    state: InstanceState,
}

/// `detail` of an event of AWS Health.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    service: String,
    event_type_category: String,
    /// `open`, `upcoming` or `closed`; events before 2023 have none.
    #[serde(default)]
    status_code: Option<String>,
    #[serde(default)]
    affected_entities: Option<Vec<Entity>>,
}

/// What a health event is about: an instance, a volume, an account.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entity {
    #[serde(default)]
    entity_value: Option<String>,
    /// `IMPAIRED`, `PENDING`, `RESOLVED`, `UNIMPAIRED` or `UNKNOWN`.
    #[serde(default)]
    status: Option<String>,
}

/// The id of an instance, also out of an ARN.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct InstanceId(Arc<str>);

impl TryFrom<String> for InstanceId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let id = text.rsplit('/').next().unwrap_or(&text);
        let letters = id.strip_prefix("i-").unwrap_or_default();
        let sound = (1..=32).contains(&letters.len()) && letters.bytes().all(|b| b.is_ascii_alphanumeric());
        if sound { Ok(Self(id.into())) } else { Err("no id of an instance".to_owned()) }
    }
}

/// Reads a message of the queue. Never fails: what cannot be used is `Foreign` or `Unreadable`.
pub fn parse(text: &str) -> Message {
    read(text).unwrap_or_else(|problem| Message::Unreadable { problem })
}

fn read(text: &str) -> Result<Message, String> {
    let envelope: Envelope = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let at = envelope.time.as_deref().and_then(|time| time.parse().ok());
    let kind = envelope.detail_type.as_str();
    let detail = envelope.detail;
    Ok(match (envelope.source.as_str(), kind) {
        ("aws.ec2", "EC2 Spot Instance Interruption Warning") => Message::SpotInterruption(one(kind, detail, at)?),
        ("aws.ec2", "EC2 Instance Rebalance Recommendation") => {
            Message::RebalanceRecommendation(one(kind, detail, at)?)
        }
        // AWS documents the warning under both names.
        (
            "aws.ec2",
            "EC2 Capacity Reservation Instance Interruption Warning"
            | "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
        ) => Message::CapacityReservationInterruption(one(kind, detail, at)?),
        ("aws.ec2", "EC2 Instance State-change Notification") => {
            let StateChange { instance_id, state } = typed(kind, detail)?;
            Message::StateChange { notice: Notice { instance_id: instance_id.0, at }, state }
        }
        ("aws.health", "AWS Health Event") => scheduled(typed(kind, detail)?, at),
        (source, kind) => Message::Foreign { kind: format!("{source} {kind}") },
    })
}

fn typed<T: DeserializeOwned>(kind: &str, detail: Value) -> Result<T, String> {
    serde_json::from_value(detail).map_err(|error| format!("{kind}: detail: {error}"))
}

fn one(kind: &str, detail: Value, at: Option<Timestamp>) -> Result<Notice, String> {
    let OneInstance { instance_id } = typed(kind, detail)?;
    Ok(Notice { instance_id: instance_id.0, at })
}

/// Only scheduled changes of EC2 are for us, and only as long as they are to come: Health tells of the end of a change in the same words.
fn scheduled(health: Health, at: Option<Timestamp>) -> Message {
    let Health { service, event_type_category: category, status_code, affected_entities } = health;
    let foreign = |why: &str| Message::Foreign { kind: format!("aws.health {service} {category}{why}") };
    if service != "EC2" || category != "scheduledChange" {
        return foreign("");
    }
    if status_code.as_deref() == Some("closed") {
        return foreign(" that is over");
    }
    let over = |entity: &Entity| matches!(entity.status.as_deref(), Some("RESOLVED" | "UNIMPAIRED"));
    let ids = affected_entities.into_iter().flatten().filter(|entity| !over(entity));
    let ids = ids.filter_map(|entity| InstanceId::try_from(entity.entity_value?).ok());
    let notices: Vec<Notice> = ids.take(MAX_NOTICES).map(|id| Notice { instance_id: id.0, at }).collect();
    if notices.is_empty() { foreign(" without instances") } else { Message::ScheduledChange { notices } }
}

//! Interruption: messages that EventBridge puts on the queue, as values. A message that cannot be used is a value too.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// Holds what a message says.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// EC2 takes a spot instance back in two minutes.
    SpotInterruption(Notice),
    /// EC2 expects to take a spot instance back; nothing must be done yet.
    RebalanceRecommendation(Notice),
    /// An instance changed its state.
    StateChange {
        /// The instance and the time.
        notice: Notice,
        /// Its new state.
        state: InstanceState,
    },
    /// AWS will do maintenance on instances, or retire them.
    ScheduledChange {
        /// One for each instance that is affected.
        notices: Vec<Notice>,
    },
    /// An instance in a capacity reservation is taken back.
    CapacityReservationInterruption(Notice),
    /// A message that concerns no instance of ours: another source or kind of event.
    Foreign {
        /// `source` and `detail-type`.
        kind: String,
    },
    /// A message that could not be read.
    Unreadable {
        /// Why not.
        problem: String,
    },
}

/// Names an instance and the time at which the event happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// `i-…`
    pub instance_id: Arc<str>,
    /// When it happened; none if the message does not say.
    pub at: Option<Timestamp>,
}

/// Holds the state of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// pending or running: no reason to act.
    Alive,
    /// stopping or stopped.
    Stopping,
    /// shutting-down or terminated.
    Terminating,
}

/// Says what a message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Drain and replace the node.
    Drain,
    /// Tell about it.
    Report,
    /// Nothing.
    Ignore,
}

impl Message {
    /// Answers the instances that it is about.
    pub fn notices(&self) -> &[Notice] {
        match self {
            Message::SpotInterruption(notice)
            | Message::RebalanceRecommendation(notice)
            | Message::StateChange { notice, .. }
            | Message::CapacityReservationInterruption(notice) => std::slice::from_ref(notice),
            Message::ScheduledChange { notices } => notices,
            Message::Foreign { .. } | Message::Unreadable { .. } => &[],
        }
    }

    /// Answers what it asks for.
    pub const fn action(&self) -> Action {
        match self {
            Message::SpotInterruption(_)
            | Message::ScheduledChange { .. }
            | Message::CapacityReservationInterruption(_)
            | Message::StateChange { state: InstanceState::Stopping | InstanceState::Terminating, .. } => Action::Drain,
            Message::RebalanceRecommendation(_) => Action::Report,
            Message::StateChange { state: InstanceState::Alive, .. }
            | Message::Foreign { .. }
            | Message::Unreadable { .. } => Action::Ignore,
        }
    }

    /// Answers the value of the metric label `message_type`, as Karpenter names it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Message::SpotInterruption(_) => "spot_interrupted",
            Message::RebalanceRecommendation(_) => "rebalance_recommendation",
            Message::StateChange { state: InstanceState::Stopping, .. } => "instance_stopped",
            Message::StateChange { state: InstanceState::Terminating, .. } => "instance_terminated",
            Message::ScheduledChange { .. } => "scheduled_change",
            Message::CapacityReservationInterruption(_) => "capacity_reservation_interrupted",
            Message::StateChange { state: InstanceState::Alive, .. } | Message::Foreign { .. } => "no_op",
            Message::Unreadable { .. } => "unreadable",
        }
    }
}

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

/// More instances than one health event lists; the rest of a longer list comes in further events.
const MAX_NOTICES: usize = 1000;

/// Reads a message of the queue. Never fails: what cannot be used is `Foreign` or `Unreadable`.
pub fn parse(text: &str) -> Message {
    let envelope: Envelope = match serde_json::from_str(text) {
        Ok(envelope) => envelope,
        Err(error) => return Message::Unreadable { problem: error.to_string() },
    };
    let at = envelope.time.as_deref().and_then(|time| time.parse().ok());
    let instance = || match envelope.detail.get("instance-id").and_then(Value::as_str).and_then(instance_id) {
        Some(instance_id) => Ok(Notice { instance_id, at }),
        None => {
            Err(Message::Unreadable { problem: format!("{}: detail.instance-id is missing", envelope.detail_type) })
        }
    };
    let read = match (envelope.source.as_str(), envelope.detail_type.as_str()) {
        ("aws.ec2", "EC2 Spot Instance Interruption Warning") => instance().map(Message::SpotInterruption),
        ("aws.ec2", "EC2 Instance Rebalance Recommendation") => instance().map(Message::RebalanceRecommendation),
        ("aws.ec2", "EC2 Instance State-change Notification") => instance().and_then(|notice| {
            let state = envelope.detail.get("state").and_then(Value::as_str).unwrap_or_default();
            Ok(Message::StateChange { notice, state: instance_state(state)? })
        }),
        ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning") => {
            instance().map(Message::CapacityReservationInterruption)
        }
        ("aws.health", "AWS Health Event") => Ok(health(&envelope, at)),
        (source, kind) => Ok(Message::Foreign { kind: format!("{source} {kind}") }),
    };
    read.unwrap_or_else(|unreadable| unreadable)
}

fn instance_state(state: &str) -> Result<InstanceState, Message> {
    match state {
        "pending" | "running" => Ok(InstanceState::Alive),
        "stopping" | "stopped" => Ok(InstanceState::Stopping),
        "shutting-down" | "terminated" => Ok(InstanceState::Terminating),
        other => Err(Message::Unreadable { problem: format!("unknown instance state {other:?}") }),
    }
}

/// Only scheduled changes of EC2 are for us.
fn health(envelope: &Envelope, at: Option<Timestamp>) -> Message {
    let text = |key: &str| envelope.detail.get(key).and_then(Value::as_str).unwrap_or_default();
    let (service, category) = (text("service"), text("eventTypeCategory"));
    if service != "EC2" || category != "scheduledChange" {
        return Message::Foreign { kind: format!("aws.health {service} {category}") };
    }
    let entities = envelope.detail.get("affectedEntities").and_then(Value::as_array);
    let ids = entities.into_iter().flatten().filter_map(|entity| entity.get("entityValue")?.as_str());
    let notices: Vec<Notice> =
        ids.filter_map(instance_id).take(MAX_NOTICES).map(|instance_id| Notice { instance_id, at }).collect();
    if notices.is_empty() {
        return Message::Foreign { kind: "aws.health EC2 scheduledChange without instances".to_owned() };
    }
    Message::ScheduledChange { notices }
}

/// Reads an instance id, also out of an ARN.
fn instance_id(text: &str) -> Option<Arc<str>> {
    let id = text.rsplit('/').next().unwrap_or(text);
    let hex = id.strip_prefix("i-")?;
    (!hex.is_empty() && hex.len() <= 32 && hex.bytes().all(|b| b.is_ascii_alphanumeric())).then(|| id.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(source: &str, kind: &str, detail: &str) -> Message {
        parse(&format!(
            r#"{{"version":"0","id":"x","source":"{source}","detail-type":"{kind}","account":"000000000000",
               "time":"2026-11-21T10:00:00Z","region":"us-east-1","resources":[],"detail":{detail}}}"#
        ))
    }

    fn notice(id: &str) -> Notice {
        Notice { instance_id: id.into(), at: Some("2026-11-21T10:00:00Z".parse().unwrap()) }
    }

    #[test]
    fn the_five_rules_are_read() {
        let ec2 = |kind: &str, detail: &str| event("aws.ec2", kind, detail);
        let id = r#"{"instance-id":"i-0abc","instance-action":"terminate"}"#;
        let spot = ec2("EC2 Spot Instance Interruption Warning", id);
        assert_eq!(spot, Message::SpotInterruption(notice("i-0abc")));
        assert_eq!(spot.action(), Action::Drain);
        let rebalance = ec2("EC2 Instance Rebalance Recommendation", id);
        assert_eq!((rebalance.kind(), rebalance.action()), ("rebalance_recommendation", Action::Report));
        let reservation = ec2("EC2 Capacity Reservation Instance Interruption Warning", id);
        assert_eq!(reservation, Message::CapacityReservationInterruption(notice("i-0abc")));
        let state = |s: &str| {
            ec2("EC2 Instance State-change Notification", &format!(r#"{{"instance-id":"i-0abc","state":"{s}"}}"#))
        };
        assert_eq!(state("stopping").kind(), "instance_stopped");
        assert_eq!(state("terminated").kind(), "instance_terminated");
        assert_eq!(state("running").action(), Action::Ignore);
        let health = event(
            "aws.health",
            "AWS Health Event",
            r#"{"service":"EC2","eventTypeCategory":"scheduledChange",
                "affectedEntities":[{"entityValue":"i-01"},{"entityValue":"arn:aws:ec2:us-east-1:0:instance/i-02"}]}"#,
        );
        assert_eq!(health, Message::ScheduledChange { notices: vec![notice("i-01"), notice("i-02")] });
    }

    #[test]
    fn foreign_and_bad_messages_are_values() {
        assert!(matches!(parse("nonsense"), Message::Unreadable { .. }));
        assert!(matches!(event("aws.s3", "Object Created", "{}"), Message::Foreign { .. }));
        assert!(matches!(event("aws.ec2", "EC2 Spot Instance Interruption Warning", "{}"), Message::Unreadable { .. }));
        let health = r#"{"service":"RDS","eventTypeCategory":"scheduledChange"}"#;
        assert!(matches!(event("aws.health", "AWS Health Event", health), Message::Foreign { .. }));
        let state = r#"{"instance-id":"i-0abc","state":"dreaming"}"#;
        let state = event("aws.ec2", "EC2 Instance State-change Notification", state);
        assert!(matches!(state, Message::Unreadable { .. }));
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in ".{0,400}") {
            let message = parse(&text);
            prop_assert!(message.notices().len() <= MAX_NOTICES);
        }

        #[test]
        fn no_detail_is_too_strange(id in ".{0,40}", state in ".{0,10}") {
            let detail = serde_json::json!({"instance-id": id, "state": state}).to_string();
            let message = event("aws.ec2", "EC2 Instance State-change Notification", &detail);
            let is_unreadable = matches!(message, Message::Unreadable { .. });
            prop_assert!(is_unreadable || message.notices()[0].instance_id.starts_with("i-"));
        }
    }
}

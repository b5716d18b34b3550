//! What AWS tells over the queue: EC2 warns of instances that it takes two minutes later, and others send what is not for us.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::World;
use super::cloud::Instance;
use super::queue::About;
use crate::catalogue::CapacityType;

/// EC2 ends an instance so long after its warning, whatever was done about it.
const NOTICE: SignedDuration = SignedDuration::from_secs(120);
/// Kinds of messages that are not for us.
const STRAYS: usize = 8;
const SPOT: &str = "EC2 Spot Instance Interruption Warning";
const REBALANCE: &str = "EC2 Instance Rebalance Recommendation";
const RESERVED: &str = "EC2 Capacity Reservation Instance Interruption Warning";

/// What EC2 has said of an instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Warning {
    /// It ends the instance then.
    ends: Timestamp,
    /// The message could be received from then on.
    pub(super) delivered: Timestamp,
}

impl World {
    /// Lets a second pass for those who send messages.
    pub(super) fn announce(&mut self) {
        self.take_what_was_warned();
        let permille = self.faults.warns_permille;
        if self.random.happens(permille) {
            self.warn();
        }
        if self.random.happens(permille) {
            self.stray();
        }
        if self.follows_advice && self.random.happens(permille) {
            self.advise();
        }
    }

    /// EC2 recommends to leave a spot instance, which it may never take back.
    fn advise(&mut self) {
        let spot = |one: &&Instance| one.ends.is_none() && one.offering.capacity_type == CapacityType::Spot;
        let live: Vec<String> = self.instances.values().filter(spot).map(|one| one.id.clone()).collect();
        if let Some(id) = live.get(self.random.below(live.len())) {
            let body = event(self.now, REBALANCE, &json!({"instance-id": short(id)}));
            self.send(&About::Advice(id.clone()), &body);
        }
    }

    /// EC2 ends what it has warned of, and says so.
    fn take_what_was_warned(&mut self) {
        let now = self.now;
        let over = |one: &&Instance| one.ends.is_none() && one.warned.is_some_and(|warning| warning.ends <= now);
        let over: Vec<String> = self.instances.values().filter(over).map(|one| one.id.clone()).collect();
        for id in over {
            self.end(&id);
            let detail = json!({"instance-id": short(&id), "state": "shutting-down"});
            let body = event(now, "EC2 Instance State-change Notification", &detail);
            self.send(&About::End(id), &body);
        }
    }

    /// EC2 warns of an instance that it means to take back: one that was bought on the spot market, or one in a capacity reservation.
    fn warn(&mut self) {
        let now = self.now;
        let live = |one: &&Instance| one.ends.is_none() && one.warned.is_none();
        let live: Vec<(String, CapacityType)> = self.instances.values().filter(live).map(Instance::bought).collect();
        if live.is_empty() {
            return;
        }
        let (id, bought) = live[self.random.below(live.len())].clone();
        let kind = if bought == CapacityType::Spot { SPOT } else { RESERVED };
        let detail = json!({"instance-id": short(&id), "instance-action": "terminate"});
        let delivered = self.send(&About::Warning(id.clone()), &event(now, kind, &detail));
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.warned = Some(Warning { ends: now + NOTICE, delivered });
            self.warnings += 1;
        }
    }

    /// Somebody sends what cannot be read, what is about others, or what asks for nothing.
    fn stray(&mut self) {
        let now = self.now;
        let ids: Vec<&str> = self.instances.keys().map(|id| short(id)).collect();
        let ours = ids.get(self.random.below(ids.len())).map_or("i-1", |id| *id).to_owned();
        let body = match self.random.below(STRAYS) {
            0 => "{\"source\": \"aws.ec2\", \"detail".to_owned(),
            1 => json!({"source": "aws.autoscaling", "detail-type": SPOT, "detail": {"instance-id": ours}}).to_string(),
            2 => event(now, SPOT, &json!({"instance-id": format!("i-0{}", now.as_second())})),
            // of an id that looks like one of ours
            3 => event(now, SPOT, &json!({"instance-id": ours[..ours.len() - 1]})),
            4 => event(now, SPOT, &json!({"instance-id": 7})),
            5 => event(
                now,
                "EC2 Instance State-change Notification",
                &json!({"instance-id": format!("{ours}0"), "state": "terminated"}),
            ),
            // of no instance of ours where pools leave on mere advice
            6 if !self.follows_advice => event(now, REBALANCE, &json!({"instance-id": ours})),
            6 => event(now, REBALANCE, &json!({"instance-id": format!("{ours}0")})),
            _ => json!({"source": "aws.health", "detail-type": "AWS Health Event", "time": format!("{now:.0}"),
                "detail": {"service": "EC2", "eventTypeCategory": "scheduledChange", "statusCode": "closed",
                    "affectedEntities": [{"entityValue": ours}]}})
            .to_string(),
        };
        self.send(&About::Nobody, &body);
    }
}

/// An event of EC2, as EventBridge sends it.
fn event(now: Timestamp, kind: &str, detail: &Value) -> String {
    let id = detail["instance-id"].as_str().unwrap_or_default();
    json!({
        "version": "0", "id": "7a2b0c1e-5d3f-4a86-9c1d-2f6b8e0a4c5d", "detail-type": kind, "source": "aws.ec2",
        "account": "123456789012", "time": format!("{now:.0}"), "region": "us-east-1",
        "resources": [format!("arn:aws:ec2:us-east-1:123456789012:instance/{id}")], "detail": detail,
    })
    .to_string()
}

/// EC2's own id, out of a provider id.
fn short(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

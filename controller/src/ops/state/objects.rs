//! The conditions of objects, and how long those have been going that go.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karp_domain::api::conditions::{Condition, ConditionStatus};

use super::{Gauges, Observed, gauge, label, seconds};
use crate::ops::metrics::Kind;

/// An object as its conditions and its deletion tell of it.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// When its deletion was asked for.
    pub deleting: Option<Timestamp>,
    /// Its conditions.
    pub conditions: Vec<Condition>,
}

/// Answers the word for a status in metrics.
pub const fn word(status: ConditionStatus) -> &'static str {
    match status {
        ConditionStatus::True => "True",
        ConditionStatus::False => "False",
        ConditionStatus::Unknown => "Unknown",
    }
}

/// Tells of objects, by their kind.
pub fn of_objects(now: Timestamp, objects: &[Object]) -> Vec<Gauges> {
    let mut by_kind: BTreeMap<Kind, [Gauges; 3]> = BTreeMap::new();
    for object in objects {
        let [count, current, going] = by_kind.entry(object.kind).or_insert_with(|| new_gauges(object.kind));
        let named = Arc::new(vec![label("namespace", ""), label("name", &object.name)]);
        for condition in &object.conditions {
            let more = vec![
                label("type", &condition.kind),
                label("status", word(condition.status)),
                label("reason", &condition.reason),
            ];
            count.push(&named, more.clone(), 1.0);
            current.push(&named, more, seconds(condition.last_transition_time, now));
        }
        if let Some(since) = object.deleting {
            going.push(&named, Vec::new(), seconds(since, now));
        }
    }
    by_kind.into_values().flatten().collect()
}

/// Tells how much user data the classes have that are still there.
pub fn of_user_data(observed: &Observed) -> Gauges {
    let mut bytes = gauge("karpenter_ec2nodeclasses_userdata_bytes", "Bytes of a class's user data, as rendered last");
    for class in observed.objects.iter().filter(|object| object.kind == Kind::Ec2NodeClass) {
        if let Some(size) = observed.user_data.get(&class.name) {
            bytes.push(&Arc::new(vec![label("nodeclass", &class.name)]), Vec::new(), *size as f64);
        }
    }
    bytes
}

fn new_gauges(kind: Kind) -> [Gauges; 3] {
    let name = |what: &str| format!("operator_{}_{what}", kind.as_str());
    [
        gauge(&name("status_condition_count"), "1 for each condition of an object"),
        gauge(&name("status_condition_current_status_seconds"), "Time for which a condition has had its status"),
        gauge(&name("termination_current_time_seconds"), "Time since an object's deletion was asked for"),
    ]
}

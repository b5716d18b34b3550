//! What conditions go through, and how long objects take to go: seen by comparing each object with what it was before.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use karp_domain::api::conditions::{self, Condition, ConditionStatus};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::observe::Change;
use crate::ops::metrics::{DwellLabels, Kind, Metrics, TransitionLabels};
use crate::ops::state::{Object, word};

/// Counts transitions until `stop` is cancelled. What happened before is not known, and not counted.
pub async fn measure(context: Arc<Context>, stop: CancellationToken) {
    let mut changes = context.stores.changes();
    let mut past = Past::default();
    past.review(context.stores.objects(), Timestamp::now());
    loop {
        let change = tokio::select! {
            () = stop.cancelled() => return,
            change = changes.recv() => change,
        };
        let (kind, name) = match change {
            Ok(Change::Class(name)) => (Kind::Ec2NodeClass, name),
            Ok(Change::Node(name)) => (Kind::Node, name),
            Ok(Change::Claim(name)) => (Kind::NodeClaim, name),
            Ok(Change::Pool(name)) => (Kind::NodePool, name),
            Ok(_) => continue,
            Err(RecvError::Lagged(_)) => {
                let told = past.review(context.stores.objects(), Timestamp::now());
                told.iter().for_each(|told| count(&context.metrics, told));
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        let object = context.stores.object(kind, &name);
        let told = past.note(kind, &name, object, Timestamp::now());
        told.iter().for_each(|told| count(&context.metrics, told));
    }
}

fn count(metrics: &Metrics, told: &Told) {
    match told {
        Told::Became { kind, condition, dwelt } => {
            let of = metrics.objects.of(*kind);
            let (what, status) = (&condition.kind, word(condition.status));
            of.transitions.get_or_create(&TransitionLabels::new(what, status, &condition.reason)).inc();
            if let Some((before, seconds)) = dwelt {
                of.dwelt.get_or_create(&DwellLabels::new(what, word(*before), status)).observe(*seconds);
            }
        }
        Told::Gone { kind, seconds } => metrics.objects.of(*kind).termination.observe(*seconds),
    }
}

/// What happened to an object.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    /// A condition got another status; with the one before, and for how many seconds it had that.
    Became { kind: Kind, condition: Condition, dwelt: Option<(ConditionStatus, f64)> },
    /// It is gone, so many seconds after its deletion was asked for.
    Gone { kind: Kind, seconds: f64 },
}

/// Knows what objects were when they were seen last.
#[derive(Default)]
struct Past(HashMap<(Kind, Arc<str>), Object>);

impl Past {
    /// Notes an object as it is now, or that it is gone; returns what happened since.
    fn note(&mut self, kind: Kind, name: &Arc<str>, object: Option<Object>, now: Timestamp) -> Vec<Told> {
        let key = (kind, name.clone());
        let Some(object) = object else {
            return self.0.remove(&key).and_then(|before| gone(&before, now)).into_iter().collect();
        };
        // another of the same name: the first went unseen
        let before = self.0.remove(&key);
        let (before, replaced) = match before {
            Some(before) if before.uid != object.uid => (None, gone(&before, now)),
            before => (before, None),
        };
        let known = before.as_ref().map(|before| before.conditions.as_slice()).unwrap_or_default();
        let became = object.conditions.iter().filter_map(|condition| became(kind, condition, known));
        let told = replaced.into_iter().chain(became).collect();
        self.0.insert(key, object);
        told
    }

    /// Notes all objects that there are; returns what happened since they were seen last.
    fn review(&mut self, objects: Vec<Object>, now: Timestamp) -> Vec<Told> {
        let mut told = Vec::new();
        let there: HashSet<(Kind, &str)> = objects.iter().map(|object| (object.kind, object.name.as_str())).collect();
        let lost = self.0.keys().filter(|(kind, name)| !there.contains(&(*kind, &**name))).cloned();
        let lost: Vec<(Kind, Arc<str>)> = lost.collect();
        for (kind, name) in lost {
            told.extend(self.note(kind, &name, None, now));
        }
        for object in objects {
            told.extend(self.note(object.kind, &object.name.as_str().into(), Some(object), now));
        }
        told
    }
}

fn became(kind: Kind, condition: &Condition, known: &[Condition]) -> Option<Told> {
    let before = conditions::get(known, &condition.kind);
    if before.is_some_and(|before| before.status == condition.status) {
        return None;
    }
    let dwelt = before.map(|before| {
        let took = condition.last_transition_time.duration_since(before.last_transition_time).as_secs_f64();
        (before.status, took.max(0.0))
    });
    Some(Told::Became { kind, condition: condition.clone(), dwelt })
}

fn gone(object: &Object, now: Timestamp) -> Option<Told> {
    let since = object.deleting?;
    Some(Told::Gone { kind: object.kind, seconds: now.duration_since(since).as_secs_f64().max(0.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn condition(status: ConditionStatus, since: i64) -> Condition {
        Condition { status, ..Condition::met("Ready", at(since)) }
    }

    fn object(uid: &str, deleting: Option<i64>, conditions: Vec<Condition>) -> Object {
        let (kind, name) = (Kind::NodeClaim, "a".to_owned());
        Object { kind, name, uid: uid.to_owned(), deleting: deleting.map(at), conditions }
    }

    #[test]
    fn a_condition_tells_its_new_status_and_how_long_it_had_the_old_one() {
        let (mut past, name) = (Past::default(), Arc::from("a"));
        let (waits, met) = (condition(ConditionStatus::Unknown, 10), condition(ConditionStatus::True, 25));
        let mut note = |object| past.note(Kind::NodeClaim, &name, Some(object), at(30));
        let new = Told::Became { kind: Kind::NodeClaim, condition: waits.clone(), dwelt: None };
        assert_eq!(note(object("u", None, vec![waits.clone()])), std::slice::from_ref(&new));
        assert_eq!(note(object("u", None, vec![waits.clone()])), [], "nothing new");
        let dwelt = Some((ConditionStatus::Unknown, 15.0));
        let became = Told::Became { kind: Kind::NodeClaim, condition: met.clone(), dwelt };
        assert_eq!(note(object("u", None, vec![met])), [became]);
        assert_eq!(note(object("u", None, Vec::new())), [], "what is no longer told became nothing");
        assert_eq!(note(object("v", None, vec![waits])), [new], "another object");
    }

    #[test]
    fn an_object_that_was_deleted_tells_how_long_it_took_to_go() {
        let (mut past, name) = (Past::default(), Arc::from("a"));
        let gone = |seconds| Told::Gone { kind: Kind::NodeClaim, seconds };
        past.note(Kind::NodeClaim, &name, Some(object("u", Some(10), Vec::new())), at(11));
        assert_eq!(past.note(Kind::NodeClaim, &name, None, at(40)), [gone(30.0)]);
        assert_eq!(past.note(Kind::NodeClaim, &name, None, at(41)), [], "once");
        past.note(Kind::NodeClaim, &name, Some(object("u", Some(10), Vec::new())), at(11));
        assert_eq!(past.note(Kind::NodeClaim, &name, Some(object("v", None, Vec::new())), at(12)), [gone(2.0)]);
        assert_eq!(past.review(Vec::new(), at(13)), [], "nobody asked that it goes");
        assert!(past.0.is_empty());
        past.review(vec![object("u", Some(10), Vec::new())], at(14));
        assert_eq!(past.review(Vec::new(), at(15)), [gone(5.0)]);
    }

    #[test]
    fn what_is_told_is_counted_under_its_kind() {
        let metrics = Metrics::new();
        let dwelt = Some((ConditionStatus::Unknown, 15.0));
        let condition = condition(ConditionStatus::True, 25);
        count(&metrics, &Told::Became { kind: Kind::NodePool, condition, dwelt });
        count(&metrics, &Told::Gone { kind: Kind::Node, seconds: 3.0 });
        let text = metrics.encode();
        for line in [
            r#"operator_nodepool_status_condition_transitions_total{type="Ready",status="True",reason="Ready"} 1"#,
            r#"operator_nodepool_status_condition_transition_seconds_sum{type="Ready",status="Unknown",to_status="True"} 15.0"#,
            "operator_node_termination_duration_seconds_sum 3.0",
            "operator_nodepool_termination_duration_seconds_count 0",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }
}

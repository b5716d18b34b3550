use proptest::prelude::*;
use serde_json::{Value, json};

use super::event::MAX_NOTICES;
use super::*;

const INSTANCE: &str = "i-0a1b2c3d4e5f60718";

/// A message as AWS sends it.
macro_rules! sent {
    ($name:literal) => {
        include_str!(concat!("../../tests/events/", $name, ".json"))
    };
}

const SENT: [&str; 7] = [
    sent!("spot-interruption"),
    sent!("rebalance-recommendation"),
    sent!("state-change"),
    sent!("capacity-reservation"),
    sent!("interruptible-reservation"),
    sent!("scheduled-change"),
    sent!("health-issue"),
];

/// The message with one field of its detail set to something else, or taken away.
fn altered(text: &str, field: &str, value: Option<Value>) -> Message {
    let mut message: Value = serde_json::from_str(text).unwrap();
    let detail = message["detail"].as_object_mut().unwrap();
    match value {
        Some(value) => detail.insert(field.to_owned(), value),
        None => detail.remove(field),
    };
    parse(&message.to_string())
}

fn notice(id: &str) -> Notice {
    Notice { instance_id: id.into(), at: Some("2026-11-21T10:00:00Z".parse().unwrap()) }
}

#[test]
fn every_kind_of_message_is_read() {
    let one = || notice(INSTANCE);
    let expected = [
        (Message::SpotInterruption(one()), "spot_interrupted", Action::Recall(Cause::SpotInterrupted)),
        (Message::RebalanceRecommendation(one()), "rebalance_recommendation", Action::Advise),
        (
            Message::StateChange { notice: one(), state: InstanceState::ShuttingDown },
            "instance_terminated",
            Action::Delete,
        ),
        (
            Message::CapacityReservationInterruption(one()),
            "capacity_reservation_interrupted",
            Action::Recall(Cause::CapacityReservationInterrupted),
        ),
        (
            Message::CapacityReservationInterruption(one()),
            "capacity_reservation_interrupted",
            Action::Recall(Cause::CapacityReservationInterrupted),
        ),
        (
            Message::ScheduledChange { notices: vec![one(), notice("i-0f1e2d3c4b5a69788")] },
            "scheduled_change",
            Action::Recall(Cause::ScheduledChange),
        ),
        (Message::Foreign { kind: "aws.health EC2 issue".to_owned() }, "no_op", Action::Ignore),
    ];
    for (text, (message, kind, action)) in SENT.into_iter().zip(expected) {
        let read = parse(text);
        assert_eq!(read, message, "{text}");
        assert_eq!((read.kind(), read.action()), (kind, action), "{text}");
    }
}

#[test]
fn every_state_of_an_instance_is_read() {
    let of = |state: &str| altered(sent!("state-change"), "state", Some(json!(state)));
    for (state, kind, action) in [
        ("pending", "no_op", Action::Ignore),
        ("running", "no_op", Action::Ignore),
        ("stopping", "instance_stopped", Action::Delete),
        ("stopped", "instance_stopped", Action::Delete),
        ("shutting-down", "instance_terminated", Action::Delete),
        ("terminated", "instance_terminated", Action::Delete),
    ] {
        assert_eq!((of(state).kind(), of(state).action()), (kind, action), "{state}");
    }
    assert!(matches!(of("dreaming"), Message::Unreadable { problem } if problem.contains("dreaming")));
}

#[test]
fn a_change_that_is_over_recalls_nothing() {
    let text = sent!("scheduled-change");
    let closed = altered(text, "statusCode", Some(json!("closed")));
    assert_eq!(closed, Message::Foreign { kind: "aws.health EC2 scheduledChange that is over".to_owned() });
    assert_eq!(altered(text, "statusCode", None).notices().len(), 2, "events of old do not tell");
    let resolved = json!([{ "entityValue": INSTANCE, "status": "RESOLVED" }]);
    assert!(matches!(altered(text, "affectedEntities", Some(resolved)), Message::Foreign { .. }));
}

#[test]
fn changes_of_others_are_foreign() {
    let text = sent!("scheduled-change");
    assert!(matches!(altered(text, "service", Some(json!("RDS"))), Message::Foreign { .. }));
    assert!(matches!(altered(text, "affectedEntities", None), Message::Foreign { .. }));
    assert!(matches!(altered(text, "affectedEntities", Some(Value::Null)), Message::Foreign { .. }));
    let elsewhere = sent!("state-change").replace("aws.ec2", "aws.s3");
    let kind = "aws.s3 EC2 Instance State-change Notification".to_owned();
    assert_eq!(parse(&elsewhere), Message::Foreign { kind });
}

#[test]
fn what_lacks_the_instance_is_unreadable_and_says_what_it_was() {
    assert!(matches!(parse("nonsense"), Message::Unreadable { .. }));
    for text in &SENT[..5] {
        for id in [None, Some(json!("vol-01")), Some(json!("i-")), Some(json!("i-0 1")), Some(json!(7))] {
            let Message::Unreadable { problem } = altered(text, "instance-id", id) else { panic!("{text}") };
            assert!(problem.starts_with("EC2 ") && problem.contains(": detail: "), "{problem}");
        }
    }
    assert!(matches!(altered(SENT[5], "service", None), Message::Unreadable { .. }));
}

#[test]
fn a_message_without_a_time_is_heeded() {
    let timeless = sent!("spot-interruption").replace("2026-11-21T10:00:00Z", "a while ago");
    assert_eq!(parse(&timeless).notices(), [Notice { at: None, ..notice(INSTANCE) }]);
}

#[test]
fn a_long_list_is_cut() {
    let entities: Vec<Value> = (0..2 * MAX_NOTICES).map(|n| json!({ "entityValue": format!("i-{n:017x}") })).collect();
    let message = altered(sent!("scheduled-change"), "affectedEntities", Some(json!(entities)));
    assert_eq!(message.notices().len(), MAX_NOTICES);
}

/// Fault 27: a message is as long as somebody likes, and as deep.
#[test]
fn a_huge_message_is_read_or_refused() {
    let huge = 1 << 20;
    let deep = "[".repeat(huge);
    let within = format!(r#"{{"source": "aws.ec2", "detail-type": "EC2 Health", "detail": {deep}"#);
    for text in [deep, within] {
        assert!(matches!(parse(&text), Message::Unreadable { .. }));
    }
    let text = sent!("spot-interruption");
    let padded = altered(text, "padding", Some(json!("x".repeat(huge))));
    assert_eq!(padded, parse(text), "a field that is new stops nothing");
    let long = altered(text, "instance-id", Some(json!(format!("i-{}", "0".repeat(huge)))));
    assert!(matches!(long, Message::Unreadable { problem } if problem.len() < 1000));
}

#[test]
fn a_pool_follows_recommendations_when_it_says_so() {
    let pool = |value: Option<&str>| {
        let mut pool = NodePool::default();
        let annotation = |value: &str| [(labels::REPLACE_ON_REBALANCE.to_owned(), value.to_owned())].into();
        pool.metadata.annotations = value.map(annotation);
        replaces_on_rebalance(&pool)
    };
    assert!(pool(Some("true")));
    assert!(!pool(Some("false")) && !pool(Some("yes")) && !pool(None));
}

proptest! {
    #[test]
    fn no_text_is_too_strange(text in ".{0,400}") {
        let message = parse(&text);
        prop_assert!(message.notices().len() <= MAX_NOTICES);
    }

    #[test]
    fn no_detail_is_too_strange(id in ".{0,40}", state in ".{0,10}") {
        let mut event: Value = serde_json::from_str(sent!("state-change")).unwrap();
        event["detail"] = json!({"instance-id": id, "state": state});
        let message = parse(&event.to_string());
        let is_unreadable = matches!(message, Message::Unreadable { .. });
        prop_assert!(is_unreadable || message.notices()[0].instance_id.starts_with("i-"));
    }

    #[test]
    fn a_damaged_message_is_a_value(which in 0..SENT.len(), cut in 0_usize..2000, put in "\\PC{0,3}") {
        let text = SENT[which];
        let at = (0..=cut.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let (head, tail) = text.split_at(at);
        let message = parse(&format!("{head}{put}{}", tail.chars().skip(1).collect::<String>()));
        prop_assert!(message.notices().iter().all(|notice| notice.instance_id.starts_with("i-")));
    }
}

#[test]
fn a_warning_of_nobody_waits_for_claims_that_are_being_launched() {
    let second = |text: &str| text.parse::<Timestamp>().unwrap();
    let (soon, late) = (second("2026-11-21T10:01:59Z"), second("2026-11-21T10:02:00Z"));
    let one = || notice(INSTANCE);
    let spot = Message::SpotInterruption(one());
    assert!(spot.is_kept(&one(), true, soon));
    assert!(!spot.is_kept(&one(), false, soon), "every instance of ours is known");
    assert!(!spot.is_kept(&one(), true, late), "the instance is gone");
    assert!(!spot.is_kept(&Notice { at: None, ..one() }, true, soon), "it would be kept for good");
    let ended = Message::StateChange { notice: one(), state: InstanceState::Terminated };
    let others = [ended, Message::RebalanceRecommendation(one()), parse("no event")];
    assert!(others.iter().all(|message| !message.is_kept(&one(), true, soon)));
}

#[test]
fn a_message_may_be_deleted_when_all_that_it_is_about_is_recorded() {
    let scheduled = Message::ScheduledChange { notices: vec![notice(INSTANCE), notice(INSTANCE)] };
    let mut unrecorded = Unrecorded::of(&scheduled);
    for _ in scheduled.notices() {
        assert!(!unrecorded.is_nothing());
        unrecorded.recorded();
    }
    assert!(unrecorded.is_nothing());
    assert!(Unrecorded::of(&parse("no event")).is_nothing(), "it is about nobody");
}

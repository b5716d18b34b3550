//! Flaws in what is done about the messages of the queue.

use jiff::Timestamp;
use karp_domain::api::{NodeClaim, conditions};
use karp_domain::disruption::Progress;
use karp_domain::interruption::{Message, Next, Notice, Recall, Unrecorded, Vacating, parse};
use karp_domain::lifecycle::is_true;
use karp_domain::sim::{Decisions, Faults};

use super::counted::catches;
use super::{calm, case, cluster};

fn often() -> Faults {
    Faults { warns_permille: 15, scales_permille: 5, ..calm() }
}

#[test]
fn s18_messages_deleted_before_their_effect_is_recorded() {
    struct Flaw;
    impl Decisions for Flaw {
        fn deletes(&self, _: Unrecorded) -> bool {
            true
        }
    }
    case("S-18", 40, Faults { crash_permille: 20, ..often() }).catches(&Flaw);
}

#[test]
fn s18_warnings_that_are_ignored() {
    struct Flaw;
    impl Decisions for Flaw {
        fn message(&self, body: &str) -> Message {
            match parse(body) {
                Message::CapacityReservationInterruption(_) => Message::Foreign { kind: "not spot".to_owned() },
                message => message,
            }
        }
    }
    case("S-18", 40, often()).catches(&Flaw);
}

/// Nodes of recalled claims that take new pods to the last.
#[test]
fn s18_recalled_nodes_that_stay_open() {
    struct Flaw;
    impl Decisions for Flaw {
        fn recalled(&self, recall: Recall, node: Option<Vacating>, now: Timestamp) -> Next {
            match recall.next(node, now) {
                Next::Taint if now < recall.due() => Next::Wait,
                next => next,
            }
        }
    }
    catches(&Flaw, often(), &cluster(&[]), "S-18", "its node takes pods");
}

#[test]
fn s18_warnings_that_are_left_in_the_queue() {
    struct Flaw;
    impl Decisions for Flaw {
        fn message(&self, body: &str) -> Message {
            match parse(body) {
                // of nobody that is known, so that it is kept
                Message::CapacityReservationInterruption(Notice { at, .. }) => {
                    Message::CapacityReservationInterruption(Notice { instance_id: "i-other".into(), at })
                }
                message => message,
            }
        }

        fn keeps(&self, _: &Message, _: &Notice, _: bool, _: Timestamp) -> bool {
            true
        }
    }
    case("S-18", 40, often()).catches(&Flaw);
}

#[test]
fn s18_warnings_of_instances_that_no_claim_names_yet() {
    struct Flaw;
    impl Decisions for Flaw {
        fn keeps(&self, _: &Message, _: &Notice, _: bool, _: Timestamp) -> bool {
            false
        }
    }
    let faults = Faults { warns_permille: 60, watch_lag_seconds: 8, cut_permille: 10, scales_permille: 20, ..calm() };
    case("S-18", 60, faults).catches(&Flaw);
}

#[test]
fn s18_advice_taken_for_a_warning() {
    struct Flaw;
    impl Decisions for Flaw {
        fn message(&self, body: &str) -> Message {
            match parse(body) {
                Message::RebalanceRecommendation(notice) => Message::SpotInterruption(notice),
                message => message,
            }
        }
    }
    case("S-18", 40, often()).catches(&Flaw);
}

#[test]
fn s18_replacements_that_are_not_seen_are_not_waited_for() {
    struct Flaw;
    impl Decisions for Flaw {
        fn progress(&self, replacement: Option<&NodeClaim>, awaited: bool) -> Progress {
            match replacement {
                None if !awaited => Progress::Initialized,
                seen => Progress::of(seen, awaited),
            }
        }
    }
    case("S-18", 60, Faults { watch_lag_seconds: 8, ..often() }).catches(&Flaw);
}

/// What was ready once is taken for ready when it is on its way out, or has lost its node.
#[test]
fn s18_replacements_that_go_themselves_are_taken_for_ready() {
    struct Flaw;
    impl Decisions for Flaw {
        fn progress(&self, replacement: Option<&NodeClaim>, awaited: bool) -> Progress {
            match replacement {
                Some(claim) if is_true(claim, conditions::INITIALIZED) => Progress::Initialized,
                other => Progress::of(other, awaited),
            }
        }
    }
    case("S-18", 60, Faults { ends_permille: 20, deletes_permille: 30, ..often() }).catches(&Flaw);
}

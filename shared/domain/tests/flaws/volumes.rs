//! Flaws in how long a node waits for the volumes of the pods that have left it (F36).

use jiff::{SignedDuration, Timestamp};
use karp_domain::eviction::detached_by;
use karp_domain::sim::{Decisions, Faults};
use serde_json::json;

use super::counted::catches;
use super::{calm, cluster};

/// Nodes that drift, and whose attachments are left behind so often.
fn drifting(leaks_permille: u32) -> Faults {
    Faults { drifts_permille: 10, leaks_permille, ..calm() }
}

#[test]
fn s19_volumes_that_are_not_waited_for() {
    struct Flaw;
    impl Decisions for Flaw {
        fn detached_by(&self, _: Timestamp, _: Option<Timestamp>) -> Timestamp {
            Timestamp::MIN
        }
    }
    catches(&Flaw, drifting(0), &cluster(&[]).with_volumes("web"), "S-19", "had left it");
}

/// As long as a drain takes at least.
#[test]
fn s19_volumes_that_are_waited_for_too_shortly() {
    struct Flaw;
    impl Decisions for Flaw {
        fn detached_by(&self, drained: Timestamp, _: Option<Timestamp>) -> Timestamp {
            drained + SignedDuration::from_secs(5)
        }
    }
    catches(&Flaw, drifting(0), &cluster(&[]).with_volumes("web"), "S-19", "had left it");
}

#[test]
fn s7_leaked_attachments_that_are_waited_for_for_ever() {
    struct Flaw;
    impl Decisions for Flaw {
        fn detached_by(&self, _: Timestamp, _: Option<Timestamp>) -> Timestamp {
            Timestamp::MAX
        }
    }
    catches(&Flaw, drifting(1000), &cluster(&[]).with_volumes("web"), "S-7", "is held by volumes");
}

/// Nodes have three minutes to go, and volumes have six to leave.
#[test]
fn s7_leaked_attachments_that_are_waited_for_past_the_deadline() {
    struct Flaw;
    impl Decisions for Flaw {
        fn detached_by(&self, drained: Timestamp, _: Option<Timestamp>) -> Timestamp {
            detached_by(drained, None)
        }
    }
    let world = cluster(&[("spec.template.spec.terminationGracePeriod", json!("3m"))]).with_volumes("web");
    catches(&Flaw, drifting(1000), &world, "S-7", "after its deadline");
}

//! Lives of pods that have a volume each: no instance ends under one, and one that never leaves holds a node for its time (F36, fault 32).

use jiff::SignedDuration;
use karp_domain::eviction::DETACH_LIMIT;
use karp_domain::sim::Faults;
use serde_json::json;

use super::{a_world, budget, play_in};

/// Nodes drift, and wait for the volumes of pods that have gone; pods wait until theirs have left.
#[test]
fn nodes_wait_until_volumes_have_left() {
    for seed in 0..4 {
        let faults = Faults {
            drifts_permille: 5,
            scales_permille: 3,
            crash_permille: if seed < 2 { 0 } else { 10 },
            watch_lag_seconds: if seed % 2 == 0 { 0 } else { 4 },
            ..Faults::default()
        };
        let report = play_in(a_world(&[budget()]).with_volumes("web"), seed, 60, faults);
        assert!(report.awaited > 0 && report.leaked == 0, "{report:?}");
        assert!(report.held > SignedDuration::ZERO && report.held < SignedDuration::from_mins(2), "{report:?}");
    }
}

/// Fault 32: each attachment is left behind. It holds its node for six minutes, or until the node's deadline, whoever is killed meanwhile.
#[test]
fn a_leaked_attachment_holds_a_node_for_its_bound_and_no_longer() {
    let grace = ("spec.template.spec.terminationGracePeriod", json!("3m"));
    for seed in 0..4 {
        let (more, least, most) = if seed % 2 == 0 {
            let some = SignedDuration::from_secs(30);
            (vec![budget()], DETACH_LIMIT - some, DETACH_LIMIT + some)
        } else {
            (vec![budget(), grace.clone()], SignedDuration::from_mins(1), SignedDuration::from_mins(3))
        };
        let faults = Faults {
            leaks_permille: 1000,
            drifts_permille: 5,
            crash_permille: if seed < 2 { 0 } else { 10 },
            ..Faults::default()
        };
        let report = play_in(a_world(&more).with_volumes("web"), seed, 90, faults);
        assert!(report.leaked > 4, "{report:?}");
        assert!((least..=most).contains(&report.held), "seed {seed}: {report:?}");
    }
}

/// Some are, while the API server goes away, writes are refused and instances end by themselves.
#[test]
fn a_leaked_attachment_holds_no_node_for_ever_whatever_else_fails() {
    for seed in 0..3 {
        let faults = Faults {
            leaks_permille: 300,
            drifts_permille: 4,
            away_permille: 2,
            conflicts_permille: 200,
            unanswered_permille: 20,
            ends_permille: 1,
            scales_permille: 3,
            ..Faults::default()
        };
        let report = play_in(a_world(&[budget()]).with_volumes("web"), seed, 90, faults);
        assert!(report.leaked > 0, "{report:?}");
    }
}

//! Lives under rules: what pods ask of each other, and what users change while it is seen late or known late.

use std::sync::Arc;

use karp_domain::cluster::Snapshot;
use karp_domain::scheduling::{Solution, solve};
use karp_domain::sim::{Decisions, Faults, Report, Scenario, World, run, run_with};

use super::world::{NOW, TYPES, at, catalogue};
use super::{Asks, BOTH, a_world_of, apart, bought, budget, play, play_in, pools, workload_that_asks};

/// A controller asks for prices only every ten minutes, while they halve and double: a move saves by those that it knows.
#[test]
fn prices_that_are_known_late_are_reckoned_with() {
    let mut commands = 0;
    for seed in 0..6 {
        let faults = Faults {
            prices_permille: 10,
            prices_age_seconds: 600,
            scales_permille: 3,
            crash_permille: 5,
            ..Faults::default()
        };
        let how = if seed % 2 == 0 { &BOTH[1..] } else { &BOTH };
        let report = play(seed, 60, faults, &[budget(), bought(how)]);
        assert!(report.repriced > 3, "{report:?}");
        commands += report.commands;
    }
    assert!(commands > 5, "{commands}");
}

/// Budgets of pods and pools are seen late, each by itself, while users change pools: evictions keep to what the API server has, commands to what is
/// seen of pools when they begin.
#[test]
fn rules_that_are_seen_late_are_kept_to() {
    let (mut changes, mut commands) = (0, 0);
    for seed in 0..6 {
        let faults = Faults {
            rules_lag_seconds: 20,
            cut_permille: 3,
            budgets_permille: 10,
            edits_permille: if seed % 2 == 0 { 0 } else { 40 },
            drifts_permille: 5,
            scales_permille: 5,
            crash_permille: if seed < 3 { 0 } else { 10 },
            ..Faults::default()
        };
        let report = play(seed, 60, faults, &[budget()]);
        changes += report.rebudgeted;
        commands += report.commands;
    }
    assert!(changes > 50 && commands > 10, "{changes} changes, {commands} commands");
}

/// Pods that are spread over zones, and pods that keep away from each other, all find a place, which kube-scheduler gives them by rules of its own.
#[test]
fn pods_that_ask_something_of_each_other_find_a_place() {
    for seed in 0..4 {
        let asks = Asks { spread: true, apart: seed % 2 == 1 };
        let report = play_in(a_world_of(&[budget()], asks), seed, 40, Faults::default());
        assert!(report.nodes > if asks.apart { 4 } else { 0 }, "{report:?}");
    }
}

/// The same while workloads are scaled and nodes drift and end.
#[test]
fn pods_that_ask_something_of_each_other_find_another_place() {
    for seed in 0..6 {
        let faults = Faults {
            scales_permille: 5,
            drifts_permille: 4,
            ends_permille: 1,
            crash_permille: if seed % 2 == 0 { 0 } else { 10 },
            fickle_permille: 300,
            watch_lag_seconds: if seed < 3 { 0 } else { 4 },
            ..Faults::default()
        };
        let world = a_world_of(&[budget()], Asks { spread: true, apart: seed % 3 == 0 });
        let report = play_in(world, seed, 60, faults);
        assert!(report.launches > 3, "{report:?}");
    }
}

/// A plan that puts pods together which kube-scheduler keeps apart leaves them waiting: S-7.
#[test]
fn a_plan_that_forgets_what_pods_ask_of_each_other_is_seen() {
    struct Flaw;
    impl Decisions for Flaw {
        fn solve(&self, snapshot: &Snapshot) -> Solution {
            let mut other = snapshot.clone();
            for pod in &mut other.pods {
                Arc::make_mut(&mut Arc::make_mut(pod).shape).anti_affinity.clear();
            }
            solve(&other)
        }
    }
    let wide = workload_that_asks("wide", ("100m", "128Mi"), 6, None, &[apart("wide")]);
    let world = || World::new(at(NOW), catalogue(TYPES), pools(&[budget()]), vec![wide.clone()]);
    let scenario = Scenario { seed: 1, seconds: 900, faults: Faults::default() };
    let waits = |report: &Report| report.violations.iter().any(|found| found.what.contains("still waits"));
    let own = run(&scenario, world());
    assert!(own.violations.is_empty() && own.nodes >= 6, "{own:#?}");
    let flawed = run_with(&Flaw, &scenario, world());
    assert!(waits(&flawed), "{flawed:#?}");
}

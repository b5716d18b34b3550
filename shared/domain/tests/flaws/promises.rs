//! Flaws in what pools and claims promise: the replicas of static pools, an age at which nodes go, and an end by the deadline.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karp_domain::cluster::{ConsolidationFloor, Pod, Pool, Settings, Snapshot};
use karp_domain::disruption::{Act, Budgets, Cause, Command, DisruptionPlan, Execution, Memory, Progress, plan_with};
use karp_domain::eviction::{self, Drain};
use karp_domain::scheduling::{ReplicaPlan, replicas};
use karp_domain::sim::{Decisions, Faults, Production, Scenario, World, run_with};
use serde_json::json;

use super::world::{NOW, TYPES, at, catalogue, pool, with};
use super::{Case, budget, calm, case, changing, guarded, with_pools, workload};

/// Three nodes of a static pool, some of which drift.
fn catches(flawed: &dyn Decisions, invariant: &str) {
    let broken = |decisions: &dyn Decisions, seed: u64| {
        let only = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}]);
        let fixed = with(pool("fixed", only), &[("spec.replicas", json!(3)), budget("1")]);
        let fixed = Pool::from_kube(&serde_json::from_value(fixed).unwrap()).unwrap();
        let settings =
            Settings { static_capacity: true, consolidation_floor: ConsolidationFloor::NONE, ..Settings::default() };
        let world = World::new(at(NOW), catalogue(TYPES), vec![fixed], vec![workload("web", "500m", "1Gi", 4, &[])]);
        let faults = Faults { drifts_permille: 5, ..calm() };
        let world = world.with_settings(settings).until_broken(invariant);
        run_with(decisions, &Scenario { seed, seconds: 3600, faults }, world).violations
    };
    for seed in 0..3 {
        let own = broken(&Production, seed);
        assert!(own.is_empty(), "karp itself, seed {seed}: {own:#?}");
    }
    let shows = |seed| broken(flawed, seed).iter().any(|found| found.invariant == invariant);
    assert!((0..3).any(shows), "no seed shows what breaks {invariant}");
}

#[test]
fn s4_static_pools_that_keep_too_many() {
    struct Flaw;
    impl Decisions for Flaw {
        fn replicas(&self, snapshot: &Snapshot, replaced: &BTreeSet<Arc<str>>) -> ReplicaPlan {
            let more = with_pools(snapshot, |pool| pool.replicas = pool.replicas.map(|replicas| replicas + 1));
            replicas(&more, replaced)
        }
    }
    catches(&Flaw, "S-4");
}

#[test]
fn s7_static_pools_whose_nodes_go_before_others_come() {
    struct Flaw;
    impl Decisions for Flaw {
        fn plan(&self, snapshot: &Snapshot, memory: &Memory) -> DisruptionPlan {
            let mut plan = plan_with(snapshot, memory);
            let drifted = plan.commands.iter_mut().filter(|command| command.cause == Cause::Drifted);
            drifted.for_each(|command| command.replacements.clear());
            plan
        }

        fn uphold(&self, command: Command, _: &Snapshot) -> Option<Command> {
            Some(command)
        }
    }
    catches(&Flaw, "S-7");
}

#[test]
fn s7_static_pools_that_are_not_filled_up() {
    struct Flaw;
    impl Decisions for Flaw {
        fn replicas(&self, snapshot: &Snapshot, replaced: &BTreeSet<Arc<str>>) -> ReplicaPlan {
            replicas(&with_pools(snapshot, |pool| pool.replicas = pool.replicas.map(|_| 2)), replaced)
        }
    }
    catches(&Flaw, "S-7");
}

/// A freeze of two minutes in each five: what began before it comes to its end in it.
#[test]
fn s3_budgets_that_close_under_way() {
    struct Flaw;
    impl Decisions for Flaw {
        fn carry_out(&self, begun: &Execution, to: &[Progress], pods: &[Arc<Pod>], _: &Budgets, now: Timestamp) -> Act {
            begun.next(to, pods, &Budgets::new(), now)
        }
    }
    let freeze = json!([{"nodes": "2"}, {"nodes": "0", "schedule": "*/5 * * * *", "duration": "2m"}]);
    let run = |decisions: &dyn Decisions, seed: u64| {
        let spec = with(pool("default", json!([])), &[("spec.disruption.budgets", freeze.clone())]);
        let pools = vec![Pool::from_kube(&serde_json::from_value(spec).unwrap()).unwrap()];
        let world = World::new(at(NOW), catalogue(TYPES), pools, vec![workload("web", "900m", "1Gi", 6, &[])]);
        let faults = Faults { drifts_permille: 10, ..calm() };
        let report = run_with(decisions, &Scenario { seed, seconds: 3600, faults }, world);
        report.violations.into_iter().filter(|found| found.what.contains("a budget is closed")).count()
    };
    assert_eq!((0..3).map(|seed| run(&Production, seed)).sum::<usize>(), 0);
    assert!((0..3).any(|seed| run(&Flaw, seed) > 0));
}

/// Budgets that let no pod go hold nodes for ever.
#[test]
fn s7_deadlines_that_are_not_looked_at() {
    struct Flaw;
    impl Decisions for Flaw {
        fn drain(&self, drain: &Drain<'_>, now: Timestamp) -> eviction::Step {
            eviction::next(&Drain { deadline: None, ..*drain }, now)
        }
    }
    assert_eq!((late(&Production), late(&Flaw) > 0), (0, true));
}

/// What is to be gone within half a minute of its deadline goes a little later.
#[test]
fn s7_deadlines_that_are_kept_a_minute_late() {
    struct Flaw;
    impl Decisions for Flaw {
        fn drain(&self, drain: &Drain<'_>, now: Timestamp) -> eviction::Step {
            let deadline = drain.deadline.map(|deadline| deadline + SignedDuration::from_mins(1));
            eviction::next(&Drain { deadline, ..*drain }, now)
        }
    }
    assert_eq!((late(&Production), late(&Flaw) > 0), (0, true));
}

/// How often a claim is there after its deadline, in an hour in which users delete some and a budget lets no pod go.
fn late(decisions: &dyn Decisions) -> usize {
    let spec = with(pool("default", json!([])), &[("spec.template.spec.terminationGracePeriod", json!("5m"))]);
    let pools = vec![Pool::from_kube(&serde_json::from_value(spec).unwrap()).unwrap()];
    let world = World::new(at(NOW), catalogue(TYPES), pools, vec![guarded(6, workload("web", "900m", "1Gi", 6, &[]))]);
    let faults = Faults { deletes_permille: 4, ..calm() };
    let report = run_with(decisions, &Scenario { seed: 1, seconds: 3600, faults }, world);
    report.violations.into_iter().filter(|found| found.what.contains("deadline")).count()
}

/// Nodes that live for twenty minutes; without grace they go at once, with it when their turn comes.
fn catches_age(flawed: &dyn Decisions, grace: &str) {
    let age = ("spec.template.spec.expireAfter", json!("20m"));
    let graced = json!({"karp.sh/expiration-grace": grace});
    let short = Case { pool: vec![age, ("metadata.annotations", graced)], ..case("S-7", 90, changing()) };
    short.catches(flawed);
}

#[test]
fn s7_nodes_that_get_too_old() {
    struct Flaw;
    impl Decisions for Flaw {
        fn plan(&self, snapshot: &Snapshot, memory: &Memory) -> DisruptionPlan {
            let mut plan = plan_with(snapshot, memory);
            plan.commands.retain(|command| command.cause != Cause::Expired);
            plan
        }
    }
    catches_age(&Flaw, "0s");
}

#[test]
fn s7_nodes_whose_grace_has_no_end() {
    struct Flaw;
    impl Decisions for Flaw {
        fn plan(&self, snapshot: &Snapshot, memory: &Memory) -> DisruptionPlan {
            let mut plan = plan_with(snapshot, memory);
            plan.commands.retain(|command| !matches!(command.cause, Cause::Expired | Cause::Expiring));
            plan
        }
    }
    catches_age(&Flaw, "10m");
}

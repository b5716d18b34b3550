//! What the simulator is worth: for each invariant, decisions with one flaw that its checks must notice; karp's own pass the same run.

#[path = "flaws/answers.rs"]
mod answers;
#[path = "flaws/counted.rs"]
mod counted;
#[path = "flaws/flapping.rs"]
mod flapping;
#[path = "flaws/promises.rs"]
mod promises;
#[path = "flaws/volumes.rs"]
mod volumes;
mod warned;
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use karp_domain::api::{NodeClaim, conditions};
use karp_domain::catalogue::{Catalogue, InstanceType, Price};
use karp_domain::cluster::{Assumed, ConsolidationFloor, Node, Pod, PodBudget, Pool, Reply, Settings, Snapshot};
use karp_domain::disruption::{
    Act, Budgets, Candidate, Cause, Command, DisruptionPlan, Execution, KeepReason, Memory, Progress, Verdict,
    plan_with, uphold,
};
use karp_domain::eviction::{self, Drain, Target};
use karp_domain::fleet::{self, Extent, Lesson};
use karp_domain::lease::Elector;
use karp_domain::lifecycle::launch::Doubt;
use karp_domain::lifecycle::{
    self, Allowance, Collection, Collector, Next, Registrations, Seats, Step, Suspicion, Witnesses,
};
use karp_domain::pace::Bucket;
use karp_domain::resources::Resources;
use karp_domain::scheduling::{Solution, solve};
use karp_domain::sim::{Decisions, Faults, Production, Report, Scenario, Skew, Workload, World, run_with};
use serde_json::{Value, json};
use world::{NOW, TYPES, at, catalogue, pending, pool, with};

fn workload(name: &str, cpu: &str, memory: &str, replicas: usize, more: &[(&str, Value)]) -> Workload {
    let all = [&[("metadata.labels", json!({"app": name})), ("status", json!({"phase": "Pending"}))], more].concat();
    let pod = Pod::from_kube(&serde_json::from_value(with(pending(name, cpu, memory), &all)).unwrap()).unwrap();
    Workload { pod, replicas, most: replicas * 2, budget: None }
}

fn guarded(least: usize, workload: Workload) -> Workload {
    let labels = &workload.pod.labels;
    let budget = json!({"kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}}});
    let budget = PodBudget::from_kube(&serde_json::from_value(budget).unwrap()).unwrap();
    Workload { budget: Some((least, budget)), ..workload }
}

/// A cluster of three workloads: one with a budget, one whose pods ask to be left alone, one without either.
fn cluster(more: &[(&str, Value)]) -> World {
    let shy = ("metadata.annotations", json!({"karpenter.sh/do-not-disrupt": "true"}));
    let workloads = vec![
        guarded(4, workload("web", "900m", "1Gi", 6, &[])),
        workload("shy", "1500m", "3Gi", 1, &[shy]),
        workload("zoo", "200m", "256Mi", 10, &[]),
    ];
    let only = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let base = [("spec.template.spec.terminationGracePeriod", json!("10m")), budget("2")];
    let pool = with(with(pool("default", only), &base), more);
    World::new(
        at(NOW),
        catalogue(TYPES),
        vec![Pool::from_kube(&serde_json::from_value(pool).unwrap()).unwrap()],
        workloads,
    )
}

/// As many nodes as the pods need at the beginning, of which twice as many come and go.
fn few_nodes() -> Vec<(&'static str, Value)> {
    vec![("spec.limits", json!({"nodes": "4"}))]
}

fn budget(nodes: &str) -> (&'static str, Value) {
    ("spec.disruption.budgets", json!([{"nodes": nodes}]))
}

struct Case<'a> {
    invariant: &'a str,
    faults: Faults,
    minutes: u32,
    pool: Vec<(&'static str, Value)>,
}

impl Case<'_> {
    fn play(&self, decisions: &dyn Decisions, seed: u64) -> Report {
        self.play_in(decisions, seed, cluster(&self.pool))
    }

    /// Says whether one of a few lives breaks the invariant.
    fn shows(&self, flawed: &dyn Decisions) -> bool {
        let breaks = |seed| {
            let report = self.play_in(flawed, seed, cluster(&self.pool).until_broken(self.invariant));
            report.violations.iter().any(|found| found.invariant == self.invariant)
        };
        (0..3).any(breaks)
    }

    fn play_in(&self, decisions: &dyn Decisions, seed: u64, world: World) -> Report {
        let scenario = Scenario { seed, seconds: self.minutes * 60, faults: self.faults };
        // flaws show where much moves
        let consolidation_floor = ConsolidationFloor::NONE;
        let repair = self.faults.ills_permille > 0;
        let settings = Settings { repair, consolidation_floor, ..Settings::default() };
        run_with(decisions, &scenario, world.with_settings(settings))
    }

    /// Some of a few seeds show the flaw, and none of them shows one in karp.
    fn catches(&self, flawed: &dyn Decisions) {
        for seed in 0..3 {
            let own = self.play(&Production, seed);
            let told: Vec<String> = own.violations.iter().map(ToString::to_string).collect();
            assert!(told.is_empty(), "karp itself, seed {seed}: {told:#?}");
        }
        assert!(self.shows(flawed), "no seed shows what breaks {}", self.invariant);
    }

    /// As `catches`, where karp's own pass may stay unfinished: only violations of this invariant count.
    fn catches_this(&self, flawed: &dyn Decisions) {
        let broken =
            |report: &Report| report.violations.iter().filter(|found| found.invariant == self.invariant).count();
        for seed in 0..3 {
            assert_eq!(broken(&self.play(&Production, seed)), 0, "karp itself, seed {seed}");
        }
        assert!(self.shows(flawed), "no seed shows what breaks {}", self.invariant);
    }
}

fn case(invariant: &str, minutes: u32, faults: Faults) -> Case<'_> {
    Case { invariant, faults, minutes, pool: Vec::new() }
}

fn calm() -> Faults {
    Faults::default()
}

fn changing() -> Faults {
    Faults { scales_permille: 10, fickle_permille: 300, ..calm() }
}

#[test]
fn s1_instances_that_nobody_collects() {
    struct Flaw;
    impl Decisions for Flaw {
        fn collect(&self, collector: &mut Collector, seen: &Witnesses<'_>, now: Timestamp) -> Collection {
            Collection { instances: Vec::new(), ..collector.pass(seen, now) }
        }
    }
    case("S-1", 60, Faults { forgets_permille: 2, ..calm() }).catches(&Flaw);
}

#[test]
fn s1_instances_that_are_looked_for_too_rarely() {
    /// Looks every 2 min.
    struct Flaw;
    impl Decisions for Flaw {
        fn collects_after(&self, _: &mut Collector) -> Duration {
            Duration::from_secs(120)
        }
    }
    case("S-1", 60, Faults { forgets_permille: 2, ..calm() }).catches(&Flaw);
}

#[test]
fn s2_pods_that_are_not_waited_for() {
    struct Flaw;
    impl Decisions for Flaw {
        fn drain(&self, _: &Drain<'_>, _: Timestamp) -> eviction::Step {
            eviction::Step::Drained
        }
    }
    case("S-2", 40, changing()).catches(&Flaw);
}

#[test]
fn s2_pods_that_are_evicted_though_they_asked_not_to_be() {
    struct Flaw;
    impl Decisions for Flaw {
        fn drain(&self, drain: &Drain<'_>, now: Timestamp) -> eviction::Step {
            let mut step = eviction::next(drain, now);
            if let eviction::Step::Wait(wait) = &mut step {
                let uid = |key| drain.pods.iter().find(|pod| pod.key == key).map(|pod| pod.uid.clone());
                let blocked = std::mem::take(&mut wait.blocked).into_iter();
                wait.evict.extend(blocked.filter_map(|(pod, _)| Some(Target { uid: uid(pod.clone())?, pod })));
            }
            step
        }
    }
    case("S-2", 40, Faults { deletes_permille: 3, ..calm() }).catches(&Flaw);
}

#[test]
fn s4_what_was_written_and_is_not_seen_yet() {
    struct Flaw;
    impl Decisions for Flaw {
        fn assume(&self, _: &mut Assumed, _: &mut Snapshot) {}
    }
    let late = Faults { watch_lag_seconds: 10, ..changing() };
    Case { pool: few_nodes(), ..case("S-4", 60, late) }.catches_this(&Flaw);
}

#[test]
fn s4_claims_whose_creation_was_not_answered() {
    struct Flaw;
    impl Decisions for Flaw {
        fn reckon(&self, assumed: &mut Assumed, claim: &NodeClaim, reply: Reply, now: Timestamp) {
            if reply == Reply::Made {
                assumed.created(claim, now);
            }
        }
    }
    let unanswered = Faults { unanswered_permille: 500, cut_permille: 60, ends_permille: 20, ..changing() };
    Case { pool: few_nodes(), ..case("S-4", 240, unanswered) }.catches_this(&Flaw);
}

#[test]
fn s2_pods_that_came_unseen() {
    struct Flaw;
    impl Decisions for Flaw {
        fn asks_for_pods(&self, _: Option<Timestamp>, _: Timestamp) -> bool {
            false
        }
    }
    case("S-2", 90, Faults { watch_lag_seconds: 20, cut_permille: 5, ..changing() }).catches(&Flaw);
}

#[test]
fn s6_claims_of_nodes_that_are_not_seen_yet() {
    /// Takes each launch for an old one, of which EC2 tells already.
    struct Flaw;
    impl Decisions for Flaw {
        fn collect(&self, collector: &mut Collector, seen: &Witnesses<'_>, now: Timestamp) -> Collection {
            let claims: Vec<Arc<NodeClaim>> =
                seen.claims.iter().map(|claim| Arc::new(launched_long_ago(claim))).collect();
            collector.pass(&Witnesses { claims: &claims, ..*seen }, now)
        }

        fn confirm<'c>(&self, _: Option<&'c NodeClaim>, _: Option<Option<&core::Node>>) -> Suspicion<'c> {
            Suspicion::Confirmed
        }
    }
    let late = Faults { watch_lag_seconds: 20, cut_permille: 10, unlisted_permille: 300, ..changing() };
    case("S-6", 60, late).catches(&Flaw);
}

fn launched_long_ago(claim: &NodeClaim) -> NodeClaim {
    let mut claim = claim.clone();
    let all = claim.status.iter_mut().flat_map(|status| &mut status.conditions);
    for launched in all.filter(|condition| condition.kind == conditions::LAUNCHED) {
        launched.last_transition_time -= SignedDuration::from_mins(10);
    }
    claim
}

/// A claim whose launch may have come to something is launched once more, with others.
#[test]
fn s5_launches_in_doubt_that_join_others() {
    struct Flaw;
    impl Decisions for Flaw {
        fn may_join(&self, _: &NodeClaim) -> bool {
            true
        }
    }
    let together = Faults {
        batches_permille: 500,
        crash_permille: 60,
        lost_reply_permille: 300,
        list_lag_seconds: 30,
        scales_permille: 40,
        ends_permille: 10,
        ..changing()
    };
    case("S-5", 240, together).catches(&Flaw);
}

/// What one call launched for several claims is given out with no look at who goes by what already.
#[test]
fn s5_an_instance_of_two_claims() {
    struct Flaw;
    impl Decisions for Flaw {
        fn seek(&self, seats: &mut Seats, batch: &str, found: &[String], claims: &[NodeClaim]) {
            let without: Vec<NodeClaim> =
                claims.iter().filter(|claim| lifecycle::provider_id(claim).is_none()).cloned().collect();
            seats.seek(batch, found, &without);
        }
    }
    let together =
        Faults { batches_permille: 1000, crash_permille: 60, scales_permille: 40, ends_permille: 10, ..changing() };
    case("S-5", 240, together).catches(&Flaw);
}

#[test]
fn s14_a_leader_that_was_paused() {
    struct Flaw;
    impl Decisions for Flaw {
        fn leads(&self, elector: &Elector, _: Duration) -> bool {
            elector.other().is_none()
        }
    }
    case("S-14", 90, Faults { pause_permille: 5, ..changing() }).catches(&Flaw);
}

#[test]
fn s15_a_cache_with_ghosts() {
    struct Flaw;
    impl Decisions for Flaw {
        fn forgets_on_listing(&self) -> bool {
            false
        }
    }
    case("S-15", 60, Faults { cut_permille: 10, ..changing() }).catches(&Flaw);
}

/// The same cluster, as somebody sees it who does not look at its pools' budgets or limits.
fn with_pools(snapshot: &Snapshot, change: impl Fn(&mut Pool)) -> Snapshot {
    let mut other = snapshot.clone();
    other.pools.iter_mut().for_each(|pool| change(Arc::make_mut(pool)));
    other
}

/// The same cluster, as somebody sees it who takes ill nodes for others.
fn with_nodes(snapshot: &Snapshot, change: impl Fn(&mut Node)) -> Snapshot {
    let mut other = snapshot.clone();
    other.nodes.iter_mut().for_each(|node| change(Arc::make_mut(node)));
    other
}

/// Plans, and upholds commands, as if the cluster were another.
struct Seeing(fn(&Snapshot) -> Snapshot);

impl Decisions for Seeing {
    fn plan(&self, snapshot: &Snapshot, memory: &Memory) -> DisruptionPlan {
        plan_with(&(self.0)(snapshot), memory)
    }

    fn uphold(&self, command: Command, snapshot: &Snapshot) -> Option<Command> {
        uphold(command, &(self.0)(snapshot)).command
    }
}

/// Never takes a command back.
struct NeverTakenBack;

impl Decisions for NeverTakenBack {
    fn carry_out(&self, begun: &Execution, to: &[Progress], pods: &[Arc<Pod>], pools: &Budgets, now: Timestamp) -> Act {
        match begun.next(to, pods, pools, now) {
            Act::RollBack(_) => Act::Wait { until: now },
            act => act,
        }
    }
}

fn ill() -> Faults {
    Faults { ills_permille: 4, ..calm() }
}

#[test]
fn s3_nodes_repaired_at_once() {
    fn hasty(snapshot: &Snapshot) -> Snapshot {
        let hurry = |node: &mut Node| node.ailment.iter_mut().for_each(|ailment| ailment.due = ailment.since);
        with_nodes(snapshot, hurry)
    }
    case("S-3", 120, ill()).catches(&Seeing(hasty));
}

#[test]
fn s3_nodes_repaired_however_many_are_ill() {
    struct Flaw;
    /// Each node, as though all others were well.
    fn one_by_one(snapshot: &Snapshot) -> impl Iterator<Item = Snapshot> {
        snapshot.nodes.iter().filter(|node| node.ailment.is_some()).map(|ill| {
            let of_others = |node: &mut Node| node.ailment = node.ailment.filter(|_| node.name == ill.name);
            with_nodes(snapshot, of_others)
        })
    }
    impl Decisions for Flaw {
        fn plan(&self, snapshot: &Snapshot, memory: &Memory) -> DisruptionPlan {
            let mut plan = plan_with(snapshot, memory);
            for alone in one_by_one(snapshot) {
                let more = plan_with(&alone, memory).commands;
                plan.commands.extend(more.into_iter().filter(|command| command.cause == Cause::Unhealthy));
            }
            plan
        }

        fn uphold(&self, command: Command, snapshot: &Snapshot) -> Option<Command> {
            if command.cause == Cause::Unhealthy { Some(command) } else { uphold(command, snapshot).command }
        }
    }
    let half = Faults { ills_permille: 20, ..calm() };
    case("S-3", 120, half).catches(&Flaw);
}

#[test]
fn s3_drains_cut_short_of_nodes_that_are_well() {
    struct Flaw;
    impl Decisions for Flaw {
        fn plan(&self, snapshot: &Snapshot, memory: &Memory) -> DisruptionPlan {
            let mut plan = plan_with(snapshot, memory);
            let leaving = |(candidate, verdict): &(Candidate, Verdict)| {
                (*verdict == Verdict::Keep(KeepReason::Leaving)).then(|| candidate.clone())
            };
            plan.hurried = plan.verdicts.iter().filter_map(leaving).collect();
            plan
        }
    }
    case("S-3", 60, Faults { ills_permille: 1, ..changing() }).catches(&Flaw);
}

#[test]
fn s7_nodes_that_stay_ill() {
    struct Flaw;
    impl Decisions for Flaw {
        fn plan(&self, snapshot: &Snapshot, memory: &Memory) -> DisruptionPlan {
            plan_with(&with_nodes(snapshot, |node| node.ailment = None), memory)
        }
    }
    case("S-7", 120, ill()).catches(&Flaw);
}

#[test]
fn s3_budgets_that_are_not_looked_at() {
    let flaw = Seeing(|snapshot| with_pools(snapshot, |pool| pool.budgets.clear()));
    Case { pool: vec![budget("1")], ..case("S-3", 40, changing()) }.catches(&flaw);
    Case { pool: vec![budget("20%")], ..case("S-3", 40, changing()) }.catches(&flaw);
    let window = json!([{"nodes": "0", "schedule": "*/10 * * * *", "duration": "6m"}]);
    Case { pool: vec![("spec.disruption.budgets", window)], ..case("S-3", 40, changing()) }.catches(&flaw);
}

#[test]
fn s4_limits_that_are_not_looked_at() {
    struct Flaw;
    impl Decisions for Flaw {
        fn solve(&self, snapshot: &Snapshot) -> Solution {
            solve(&with_pools(snapshot, |pool| pool.limits = Resources::default()))
        }
    }
    let crashing = Faults { crash_permille: 30, ..changing() };
    Case { pool: few_nodes(), ..case("S-4", 60, crashing) }.catches_this(&Flaw);
    let little = vec![("spec.limits", json!({"cpu": "10"}))];
    Case { pool: little, ..case("S-4", 60, crashing) }.catches_this(&Flaw);
}

#[test]
fn s5_launches_under_a_token_of_their_own() {
    struct Flaw;
    impl Decisions for Flaw {
        fn token(&self, uid: &str, _: u32, now: Timestamp) -> String {
            format!("{uid}-{now}")
        }
    }
    let faults = Faults { crash_permille: 50, lost_reply_permille: 200, list_lag_seconds: 5, ..changing() };
    case("S-5", 40, faults).catches(&Flaw);
}

#[test]
fn s6_claims_that_end_on_one_witness() {
    struct Flaw;
    impl Decisions for Flaw {
        fn collect(&self, collector: &mut Collector, seen: &Witnesses<'_>, now: Timestamp) -> Collection {
            collector.pass(&Witnesses { is_ready: &|_| false, ..*seen }, now)
        }

        fn confirm<'c>(&self, _: Option<&'c NodeClaim>, _: Option<Option<&core::Node>>) -> Suspicion<'c> {
            Suspicion::Confirmed
        }
    }
    case("S-6", 60, Faults { unlisted_permille: 100, ..calm() }).catches(&Flaw);
}

#[test]
fn s6_instances_that_are_gone_when_ec2_does_not_know_them_yet() {
    struct Flaw;
    impl Decisions for Flaw {
        fn is_gone_if_unknown(&self, _: Option<Timestamp>, _: Timestamp) -> bool {
            true
        }
    }
    case("S-6", 90, Faults { deletes_permille: 20, list_lag_seconds: 60, ..changing() }).catches(&Flaw);
}

/// A claim that is to go does not wait for what EC2 may have launched for it.
#[test]
fn s6_claims_that_go_while_their_launch_is_in_doubt() {
    struct Flaw;
    impl Decisions for Flaw {
        fn doubt(&self, _: &NodeClaim, _: bool, _: Duration, _: Timestamp) -> Doubt {
            Doubt::Settled
        }
    }
    let unheard = Faults { deletes_permille: 200, lost_reply_permille: 800, list_lag_seconds: 60, ..changing() };
    case("S-6", 60, unheard).catches_this(&Flaw);
}

#[test]
fn s7_launches_that_are_never_given_up() {
    struct Flaw;
    impl Decisions for Flaw {
        fn step(&self, claim: &NodeClaim, node: Option<&Node>, quiet: Option<SignedDuration>, now: Timestamp) -> Next {
            match lifecycle::next(claim, node, quiet, now) {
                Next { step: Step::GiveUp(_), look } => Next { step: Step::AwaitNode, look },
                next => next,
            }
        }
    }
    case("S-7", 75, Faults { never_joins_permille: 300, ..calm() }).catches(&Flaw);
}

/// The same cluster, as somebody sees it who takes other prices for true.
fn with_prices(snapshot: &Snapshot, price: impl Fn(&InstanceType, Price) -> f64) -> Snapshot {
    let mut other = snapshot.clone();
    let classes: BTreeSet<Arc<str>> = other.pools.iter().map(|pool| pool.class.name.clone()).collect();
    for class in classes {
        let Some(known) = other.catalogues.get(&class) else { continue };
        let mut types: Vec<InstanceType> = known.types().iter().map(|t| (**t).clone()).collect();
        for t in &mut types {
            let prices: Vec<f64> = t.offerings.iter().map(|offering| price(t, offering.price)).collect();
            for (offering, price) in t.offerings.iter_mut().zip(prices) {
                offering.price = Price::from_dollars(price).unwrap();
            }
        }
        other.catalogues.insert(class, Arc::new(Catalogue::new(types)));
    }
    other
}

#[test]
fn s8_dearer_nodes_taken_for_cheaper() {
    let upside_down = Seeing(|snapshot| with_prices(snapshot, |_, price| 1.0 / price.dollars()));
    case("S-8", 60, calm()).catches(&upside_down);
}

#[test]
fn s11_commands_that_are_never_taken_back() {
    case("S-11", 60, Faults { no_capacity_permille: 600, ..changing() }).catches(&NeverTakenBack);
}

#[test]
fn s12_launches_without_a_breaker() {
    struct Flaw;
    impl Decisions for Flaw {
        fn allowance(&self, _: &Registrations, _: usize, _: Timestamp) -> Allowance {
            Allowance::All
        }
    }
    let case = case("S-12", 360, Faults { never_joins_permille: 1000, ..calm() });
    let shown = |report: Report| report.violations.iter().any(|found| found.invariant == "S-12");
    assert!(!shown(case.play(&Production, 0)));
    assert!(shown(case.play(&Flaw, 0)));
}

#[test]
fn s12_refusals_that_stay_taken_for_a_throttle() {
    struct Flaw;
    impl Decisions for Flaw {
        fn lesson(&self, code: &str) -> Lesson {
            match fleet::lesson(code) {
                Lesson::Nothing => Lesson::Wait,
                other => other,
            }
        }
    }
    case("S-12", 40, Faults { refuses_permille: 5, ..changing() }).catches_this(&Flaw);
}

/// As many nodes as pods, more than EC2 launches at once.
fn crowd() -> World {
    let types = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}]);
    let pool = Pool::from_kube(&serde_json::from_value(with(pool("default", types), &[budget("2")])).unwrap()).unwrap();
    World::new(at(NOW), catalogue(TYPES), vec![pool], vec![workload("wide", "1500m", "1Gi", 90, &[])])
}

#[test]
fn s13_calls_that_are_not_paced() {
    struct Flaw;
    impl Decisions for Flaw {
        fn pace(&self, _: &mut Bucket, _: Duration) -> Duration {
            Duration::ZERO
        }
    }
    let scenario = Scenario { seed: 0, seconds: 300, faults: calm() };
    let own = run_with(&Production, &scenario, crowd());
    assert!(own.violations.is_empty() && own.throttled == 0 && own.launches >= 90, "{own:#?}");
    let flawed = run_with(&Flaw, &scenario, crowd());
    assert!(flawed.violations.iter().any(|found| found.invariant == "S-13"), "{flawed:#?}");
    assert!(flawed.throttled > 0, "{flawed:#?}");
}

#[test]
fn s13_throttles_taken_for_missing_capacity() {
    struct Flaw;
    impl Decisions for Flaw {
        fn lesson(&self, _: &str) -> Lesson {
            Lesson::Missing(Extent::Offering)
        }
    }
    case("S-13", 40, Faults { others_permille: 20, ..changing() }).catches(&Flaw);
}

#[test]
fn s16_answers_that_depend_on_the_order_of_lists() {
    struct Flaw;
    impl Decisions for Flaw {
        fn solve(&self, snapshot: &Snapshot) -> Solution {
            let mut other = snapshot.clone();
            other.pods.pop();
            solve(&other)
        }
    }
    case("S-16", 40, changing()).catches(&Flaw);
}

#[test]
fn s17_limits_shorter_than_clocks_are_wrong() {
    struct Flaw;
    impl Decisions for Flaw {
        fn step(&self, claim: &NodeClaim, node: Option<&Node>, quiet: Option<SignedDuration>, now: Timestamp) -> Next {
            let made = claim.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
            let next = lifecycle::next(claim, node, quiet, now);
            if next.step == Step::Launch && now.duration_since(made) > SignedDuration::from_secs(20) {
                return Next { step: Step::GiveUp(lifecycle::Timeout::Launch), look: None };
            }
            next
        }
    }
    // the clock is wrong to the end: what must converge does so all the same
    for (from, to) in [(-600, 45), (-600, -600), (0, 600)] {
        let clock = Some(Skew { from, to, permille: 5 });
        for seed in 0..2 {
            let own = case("S-17", 90, Faults { clock, ..changing() }).play(&Production, seed);
            assert!(own.violations.is_empty(), "{from} to {to} s, seed {seed}: {:#?}", own.violations);
        }
    }
    let clock = Some(Skew { from: 30, to: 45, permille: 5 });
    case("S-17", 90, Faults { clock, ..changing() }).catches(&Flaw);
}

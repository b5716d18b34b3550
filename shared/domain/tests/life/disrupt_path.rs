//! What the way to a stable cluster costs: its price against a fresh packing, its evictions against Karpenter's single-node method, and the
//! time of one plan. Small clusters always; KARP_BENCH_DISRUPT=2000 measures that many nodes and ten times
//! as many pods in a release build (KARP_BENCH_STEPS=1 lists the commands); name `two_thousand` then, since peak memory is the process's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use karp_domain::catalogue::{CapacityType, Price};
use karp_domain::cluster::{ConsolidationFloor, Phase, Pod, PodKey, Snapshot};
use karp_domain::disruption::{Cause, Change, Method, Path, plan_disruption, until_stable};
use karp_domain::quantity::Quantity;
use karp_domain::resources::{CPU, MEMORY};
use karp_domain::scheduling::solve;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{NOW, TYPES, catalogue, class, node, pending, pool, running, snapshot, with};

/// Types of three generations and three ratios of memory to CPU, up to 16 vCPU.
fn types() -> Vec<String> {
    let families = ["c5", "m5", "r5", "c6i", "m6i", "r6i", "c7i", "m7i", "r7i", "c6a", "m6a", "r6a"];
    let sizes = ["large", "xlarge", "2xlarge", "4xlarge"];
    families.iter().flat_map(|family| sizes.iter().map(move |size| format!("{family}.{size}"))).collect()
}

/// Chance under a seed (xorshift), so that every run measures the same clusters.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// What a pod asks for: 200m to 2 CPU, 1 to 8 GiB for each.
fn size(chance: &mut Chance) -> (u64, u64) {
    let cpu = [200, 300, 500, 700, 1000, 1000, 1500, 2000][chance.below(8)];
    (cpu, cpu * [1, 2, 4, 4, 8][chance.below(5)] * 1024 / 1000)
}

fn on_demand() -> Value {
    json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}])
}

fn read(objects: &[Value]) -> Snapshot {
    let types = types();
    snapshot(objects, catalogue(&types.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// A cluster that karp made for half as many pods again as are left: every other node lost two thirds of its own.
fn thinned(pods: usize) -> Snapshot {
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    let mut large = on_demand();
    large
        .as_array_mut()
        .unwrap()
        .push(json!({"key": "karpenter.k8s.aws/instance-cpu", "operator": "In", "values": ["8", "16"]}));
    let mut objects = vec![class(), pool("default", large)];
    for n in 0..pods * 3 / 2 {
        let (cpu, memory) = size(&mut chance);
        objects.push(pending(&format!("p{n}"), &format!("{cpu}m"), &format!("{memory}Mi")));
    }
    let mut snapshot = until_stable(&read(&objects), Method::Sets).end;
    let mut seen: BTreeMap<Arc<str>, (usize, usize)> = BTreeMap::new();
    snapshot.pods.retain(|pod| {
        let Some(node) = &pod.node else { return true };
        let nodes = seen.len();
        let (node, pods) = seen.entry(node.clone()).or_insert((nodes, 0));
        *pods += 1;
        *node % 2 == 0 || *pods % 3 == 0
    });
    snapshot
}

/// A cluster of nodes that nobody chose well: half of them are filled, the others hold a third of it.
fn mixed(nodes: usize) -> Snapshot {
    let mut chance = Chance(0x2545_f491_4f6c_dd1d);
    let large: Vec<String> = types().into_iter().filter(|name| name.ends_with("4xlarge")).collect();
    let mut objects = vec![class(), pool("default", on_demand())];
    let mut serial = 0;
    for n in 0..nodes {
        let name = format!("n{n:04}");
        let kind = &large[chance.below(large.len())];
        let zone = ["us-east-1a", "us-east-1b", "us-east-1c"][chance.below(3)];
        objects.extend(node(&name, "default", kind, zone, CapacityType::OnDemand));
        let gib = match kind.as_bytes()[0] {
            b'c' => 27,
            b'm' => 57,
            _ => 117,
        };
        let share = if n % 2 == 0 { 100 } else { 33 };
        let (mut cpu, mut memory, mut misses) = (15_800 * share / 100, gib * 1024 * share / 100, 0);
        while misses < 4 {
            let (c, m) = size(&mut chance);
            if c > cpu || m > memory {
                misses += 1;
                continue;
            }
            (cpu, memory) = (cpu - c, memory - m);
            objects.push(running(&format!("p{serial}"), &name, &format!("{c}m"), &format!("{m}Mi")));
            serial += 1;
        }
    }
    read(&objects)
}

/// What the same pods cost on new nodes alone.
fn fresh(snapshot: &Snapshot) -> Price {
    let mut empty = snapshot.clone();
    (empty.nodes, empty.claims) = (Vec::new(), Vec::new());
    for pod in &mut empty.pods {
        *pod = Arc::new(Pod { node: None, phase: Phase::Pending, unschedulable: true, ..Pod::clone(pod) });
    }
    let solution = solve(&empty);
    assert!(solution.unschedulable.is_empty());
    solution.price()
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn timed<T>(run: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let answer = run();
    (answer, start.elapsed().as_secs_f64())
}

/// Evictions for each dollar an hour that a path saves.
fn per_dollar(path: &Path) -> f64 {
    path.evictions() as f64 / path.before.saturating_sub(path.after).dollars().max(1e-9)
}

/// Holds what a path is judged by.
struct Figures {
    over_fresh: f64,
    evictions_ratio: f64,
}

fn measure(name: &str, snapshot: &Snapshot) -> Figures {
    let fresh = fresh(snapshot).dollars();
    let told = |what: &str, path: &Path, seconds: f64| {
        println!(
            "{name}, {what}: ${:.2} to ${:.2} ({:.3} of fresh), {} evictions ({:.2} per dollar), {} commands in {} passes, {} nodes, {seconds:.1} s",
            path.before.dollars(),
            path.after.dollars(),
            path.after.dollars() / fresh,
            path.evictions(),
            per_dollar(path),
            path.commands().count(),
            path.passes,
            path.end.nodes.len(),
        );
        assert!(path.is_stable, "{name}, {what}");
        if std::env::var_os("KARP_BENCH_STEPS").is_some() {
            for (command, evictions) in path.commands() {
                let (many, few) = (command.candidates.len(), command.replacements.len());
                let saving = command.saving().dollars();
                println!("  {:?} {many} -> {few}, {evictions} evictions, saves {saving:.3}", command.cause);
            }
        }
    };
    println!("{name}: {} nodes, {} pods", snapshot.nodes.len(), snapshot.pods.len());
    let (ours, seconds) = timed(|| until_stable(snapshot, Method::Sets));
    told("sets", &ours, seconds);
    let (_, last) = timed(|| plan_disruption(&ours.end));
    println!("{name}: a plan that finds nothing takes {last:.3} s");
    // Karpenter moves for any lower price
    let mut keen = snapshot.clone();
    (keen.settings.saving_floor_permille, keen.settings.consolidation_floor) = (0, ConsolidationFloor::NONE);
    let (theirs, seconds) = timed(|| until_stable(&keen, Method::OneByOne));
    told("one by one", &theirs, seconds);
    Figures { over_fresh: ours.after.dollars() / fresh, evictions_ratio: per_dollar(&ours) / per_dollar(&theirs) }
}

/// Most memory that the process ever used, in MiB.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1024)
}

/// What is asked for on each node of a snapshot is no more than it has.
fn assert_room(snapshot: &Snapshot) {
    let mut asked: BTreeMap<Arc<str>, (Quantity, Quantity)> = BTreeMap::new();
    for pod in snapshot.pods.iter().filter(|pod| pod.holds_resources()) {
        let sums = asked.entry(pod.node.clone().unwrap()).or_default();
        let requests = &pod.shape.requests;
        *sums = (sums.0 + requests.get(CPU), sums.1 + requests.get(MEMORY));
    }
    for (name, (cpu, memory)) in asked {
        let node = snapshot.nodes.iter().find(|node| node.name == name).expect("pods run on nodes that are there");
        assert!(cpu <= node.allocatable.get(CPU) && memory <= node.allocatable.get(MEMORY), "{name} holds too much");
    }
}

fn keys(snapshot: &Snapshot) -> BTreeSet<PodKey> {
    snapshot.pods.iter().map(|pod| pod.key.clone()).collect()
}

#[test]
fn a_way_is_cheap_and_disturbs_few() {
    // one small cluster says little: one move more or less is a tenth of all
    let all = [600, 900, 1200].map(|pods| measure("thinned", &thinned(pods)));
    for figures in &all {
        assert!(figures.over_fresh <= 1.10, "{:.3} of a fresh packing", figures.over_fresh);
    }
    let mean = all.iter().map(|figures| figures.evictions_ratio).sum::<f64>() / all.len() as f64;
    assert!(mean <= 0.75, "{mean:.3} of the evictions per dollar");
}

#[test]
fn time_passes_while_consolidate_after_is_waited_for() {
    let mut objects = vec![class(), pool("default", on_demand())];
    let quiet = json!({"consolidateAfter": "2h", "budgets": [{"nodes": "100%"}]});
    objects[1] = with(objects[1].clone(), &[("spec.disruption", quiet)]);
    for name in ["n1", "n2"] {
        objects.extend(node(name, "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand));
        objects.push(running(&format!("p-{name}"), name, "1500m", "4Gi"));
    }
    let start = read(&objects);
    let path = until_stable(&start, Method::Sets);
    assert!(path.is_stable && path.commands().count() > 0);
    assert!(path.end.now >= start.now + jiff::SignedDuration::from_hours(1), "{}", path.end.now);
    assert_room(&path.end);
}

#[test]
fn waiting_pods_get_nodes_and_expired_nodes_give_theirs_up() {
    let mut objects = vec![class(), pool("default", on_demand())];
    objects.extend(node("n1", "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    objects.push(running("old", "n1", "3", "10Gi"));
    objects.push(pending("new", "1", "2Gi"));
    let claim = objects.iter_mut().find(|object| object["kind"] == "NodeClaim").unwrap();
    *claim = with(claim.clone(), &[("spec.expireAfter", json!("30m"))]);
    let path = until_stable(&read(&objects), Method::Sets);
    assert!(path.is_stable);
    assert!(path.end.pods.iter().all(|pod| pod.node.is_some()) && path.end.pods.len() == 2);
    assert!(path.end.nodes.iter().all(|node| &*node.name != "n1"));
    let provisioned = path.steps.iter().filter(|step| matches!(step.change, Change::Provisioned { .. })).count();
    assert_eq!(provisioned, 2, "once for the pod that waited, once for the pod of the node that expired");
    assert_room(&path.end);
}

/// The node with room for the pod of another one goes by force in the same plan.
#[test]
fn no_pod_ends_on_a_node_that_has_expired() {
    let mut objects = vec![class(), pool("default", on_demand())];
    for name in ["old", "outdated"] {
        objects.extend(node(name, "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand));
        objects.push(running(&format!("p-{name}"), name, "1", "2Gi"));
    }
    for claim in objects.iter_mut().filter(|object| object["kind"] == "NodeClaim") {
        if claim["metadata"]["name"] == "default-old" {
            claim["spec"]["expireAfter"] = json!("30m");
        } else {
            let drift = json!({"type": "Drifted", "status": "True", "reason": "AMIDrift", "lastTransitionTime": "2026-11-21T11:30:00Z"});
            claim["status"]["conditions"].as_array_mut().unwrap().push(drift);
        }
    }
    let start = read(&objects);
    let both = plan_disruption(&start).commands;
    let [expired, drifted] = &both[..] else { panic!("both are planned at once: {both:?}") };
    assert_eq!((expired.cause, drifted.cause), (Cause::Expired, Cause::Drifted));
    assert!(
        drifted.placements.is_empty() && drifted.replacements.len() == 1,
        "no pod goes to the old one: {drifted:?}"
    );
    let path = until_stable(&start, Method::Sets);
    assert!(path.is_stable);
    assert_eq!(keys(&start), keys(&path.end));
    assert!(path.end.nodes.iter().all(|node| !["old", "outdated"].contains(&&*node.name)));
    assert!(path.end.pods.iter().all(|pod| pod.node.is_some()));
    assert_room(&path.end);
}

/// No pod waits, so that nothing is to be placed: the node is gone all the same, and takes of no budget any more.
#[test]
fn an_empty_node_that_leaves_holds_no_other_back() {
    let disruption = json!({"consolidateAfter": "0s", "budgets": [{"nodes": "1"}]});
    let mut objects = vec![class(), with(pool("default", on_demand()), &[("spec.disruption", disruption)])];
    for name in ["going", "idle"] {
        objects.extend(node(name, "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    }
    let claim = objects.iter_mut().find(|object| object["metadata"]["name"] == "default-going").unwrap();
    *claim = with(claim.clone(), &[("metadata.deletionTimestamp", json!(NOW))]);
    let path = until_stable(&read(&objects), Method::Sets);
    assert!(path.is_stable && path.end.nodes.is_empty() && path.end.claims.is_empty(), "{:?}", path.last.verdicts);
    assert_eq!((path.after, path.evictions()), (Price::ZERO, 0));
}

fn a_cluster() -> impl Strategy<Value = Vec<Value>> {
    let kinds = prop::sample::select(vec!["m7i.large", "m7i.2xlarge", "c6g.2xlarge", "m7i.8xlarge", "c6g.large"]);
    let zone = prop::sample::select(vec!["us-east-1a", "us-east-1b"]);
    // three of the largest fit on the smallest
    let cpus = prop::collection::vec(prop::sample::select(vec!["100m", "300m", "600m"]), 0..4);
    let budget = prop::sample::select(vec!["100%", "10%", "1", "0"]);
    (prop::collection::vec((kinds, zone, any::<bool>(), cpus), 0..7), budget, 0..3usize).prop_map(
        |(nodes, budget, waiting)| {
            let disruption = json!({"consolidateAfter": "0s", "budgets": [{"nodes": budget}]});
            let mut objects = vec![class(), with(pool("default", json!([])), &[("spec.disruption", disruption)])];
            objects.extend((0..waiting).map(|n| pending(&format!("w{n}"), "700m", "512Mi")));
            for (at, (kind, zone, spot, cpus)) in nodes.iter().enumerate() {
                let name = format!("n{at}");
                let bought = if *spot { CapacityType::Spot } else { CapacityType::OnDemand };
                objects.extend(node(&name, "default", kind, zone, bought));
                let pod = |(n, cpu): (usize, &&str)| running(&format!("p{at}-{n}"), &name, cpu, "256Mi");
                objects.extend(cpus.iter().enumerate().map(pod));
            }
            objects
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_way_ends_loses_nothing_and_every_command_saves(objects in a_cluster()) {
        let start = snapshot(&objects, catalogue(TYPES));
        let path = until_stable(&start, Method::Sets);
        prop_assert!(path.is_stable);
        prop_assert_eq!(keys(&start), keys(&path.end));
        prop_assert!(path.end.pods.iter().all(|pod| pod.node.is_some()));
        assert_room(&path.end);
        let mut price = path.before;
        for step in &path.steps {
            match &step.change {
                Change::Provisioned { nodes, .. } => price = price + nodes.iter().map(|node| node.price).sum(),
                Change::Disrupted(command) => {
                    prop_assert!(step.price < price, "a command that saves nothing");
                    price = price.saturating_sub(command.price()) + command.cost();
                }
            }
            prop_assert_eq!(step.price, price);
        }
        prop_assert_eq!(path.after, price);
        prop_assert!(plan_disruption(&path.end).commands.is_empty(), "the end is stable");
        prop_assert_eq!(path.last.verdicts.len(), path.end.claims.len());
        let evicted: usize = path.commands().map(|(_, evictions)| evictions).sum();
        prop_assert_eq!(path.evictions(), evicted, "no pod that waited was evicted");
    }
}

#[test]
fn two_thousand_nodes_within_the_limits() {
    let Some(nodes) = std::env::var("KARP_BENCH_DISRUPT").ok() else {
        eprintln!("skipped: KARP_BENCH_DISRUPT is not set to a number of nodes");
        return;
    };
    let nodes: usize = nodes.parse().unwrap();
    // a cluster of nodes that nobody chose well ends dearer, since its moves must be worth their evictions (decision 0007)
    for (name, over_fresh, snapshot) in [("thinned", 1.10, thinned(nodes * 10)), ("mixed", 1.20, mixed(nodes))] {
        let (plan, first) = timed(|| plan_disruption(&snapshot));
        let again: Vec<f64> = (0..4).map(|_| timed(|| plan_disruption(&snapshot)).1).collect();
        let best = again.into_iter().fold(first, f64::min);
        let taken: usize = plan.commands.iter().map(|command| command.candidates.len()).sum();
        let peak = peak_mib();
        println!(
            "figure: {name}: first plan {first:.3} s, best {best:.3} s, {taken} nodes in it, peak memory {peak:?} MiB"
        );
        let figures = measure(name, &snapshot);
        println!(
            "figure: {name}: {:.3} of fresh, {:.3} of the evictions per dollar",
            figures.over_fresh, figures.evictions_ratio
        );
        if nodes < 2000 {
            continue;
        }
        assert!(best <= 1.0 && peak.is_none_or(|peak| peak <= 500), "{name}: {best} s, {peak:?} MiB");
        assert!(figures.over_fresh <= over_fresh, "{name}: {}", figures.over_fresh);
        assert!(figures.evictions_ratio <= 0.7, "{name}: {}", figures.evictions_ratio);
    }
}

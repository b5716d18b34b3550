//! The figures of `docs/figures.md`: prices over two lower bounds, beside Karpenter's rule, and times as ratios within this run:
//! `cargo bench -p karp-domain --bench figures`. Where the measured inputs are found ([`inputs::folder`]), every packing is judged too.

#[allow(dead_code, reason = "each benchmark uses its part")]
mod baselines;
#[allow(dead_code, reason = "each benchmark uses its part")]
mod inputs;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use karp_domain::api::labels;
use karp_domain::catalogue::{Catalogue, NodeSettings, Zone, builtin};
use karp_domain::cluster::{PodKey, Snapshot};
use karp_domain::scheduling::solve;

use self::baselines::bound::{fluid_bound, shape_bound};
use self::baselines::first_fit::{FirstFit, first_fit};
use self::inputs::cluster::{self, Cluster};
use self::inputs::judge::{Answer, PlannedClaim, judge};
use self::inputs::{KINDS, Kind, least_seconds, seconds};

const LOAD: Cluster = Cluster { pods: 100_000, shapes: 200, nodes: 5_000 };
const ROUNDS: usize = 9;
/// Mebibytes that a catalogue of all types may take (issue 6).
const MOST_KEPT: u64 = 30;
/// With this argument the process measures itself: the peak of its memory must be that of one reading and solving.
const MEASURE: &str = "--measure-cluster";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == MEASURE) {
        return measure_cluster(Path::new(&arguments[at + 1]));
    }
    match inputs::folder() {
        Some(folder) => println!("inputs and judge of {}", folder.display()),
        None => println!(
            "inputs made here (neither KARP_BENCH nor shared/bench beside the repository has them), not judged"
        ),
    }
    kept();
    println!(
        "| input | nodes | $/h | over fluid bound | over shape bound | first fit: nodes | over fluid | over shape | seconds |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    KINDS.into_iter().for_each(prices);
    growth();
    KINDS.into_iter().for_each(reading);
    interning();
    load();
}

/// One row: what karp's packing and that of Karpenter's rule cost, over the bounds.
fn prices(kind: Kind) {
    let snapshot = kind.snapshot();
    let solution = solve(&snapshot);
    assert!(solution.unschedulable.is_empty(), "{kind}: {}", solution.unschedulable[0]);
    judged(kind, &Answer::from(&solution));
    let (fluid, shape) = (fluid_bound(&snapshot), shape_bound(&snapshot));
    let price = solution.price().dollars();
    assert!(fluid <= shape * 1.0001 && shape <= price * 1.0001, "{kind}: no bounds: {fluid} {shape} {price}");
    let (nodes, least) = (solution.nodes.len(), least_seconds(ROUNDS, || solve(&snapshot)));
    print!("| {kind} | {nodes} | {price:.2} | {:.3} | {:.3} |", price / fluid, price / shape);
    if snapshot.pods.iter().any(|pod| !pod.shape.preferred_anti_affinity.is_empty()) {
        println!(" | | | {least:.4} |"); // the rule as written here does not know preferences among pods
        return;
    }
    let rule = first_fit(&snapshot);
    assert!(rule.unplaced.is_empty(), "{kind}: {} pods have no place by Karpenter's rule", rule.unplaced.len());
    judged(kind, &planned(&snapshot, &rule));
    println!(" {} | {:.3} | {:.3} | {least:.4} |", rule.nodes.len(), rule.price / fluid, rule.price / shape);
}

fn judged(kind: Kind, answer: &Answer) {
    if let Some(folder) = inputs::folder() {
        judge(&folder, kind, answer).unwrap_or_else(|faults| panic!("{kind}: {faults}"));
    }
}

/// A packing by Karpenter's rule, as the judge reads it.
fn planned(snapshot: &Snapshot, rule: &FirstFit) -> Answer {
    let catalogue = snapshot.catalogues.values().next().expect("a catalogue");
    let claims = rule.nodes.iter().map(|node| {
        let mut zones = catalogue.zones().iter().enumerate().filter(|(at, _)| node.market.zones >> at & 1 == 1);
        let pinned = zones.next().filter(|_| zones.next().is_none());
        PlannedClaim {
            pods: node.pods.iter().map(|at| snapshot.pods[*at].key.to_string()).collect(),
            types: node.types.ones().map(|at| catalogue.types()[at].name.clone()).collect(),
            zone: pinned.map(|(_, zone)| zone.name.clone()),
            capacity_type: snapshot.pools[0].requirements.single(labels::CAPACITY_TYPE).map(ToString::to_string),
        }
    });
    Answer { claims: claims.collect(), refused: Vec::new(), price: rule.price }
}

/// Twice the pods may take at most 2.5 times as long. Both are timed in turn, so that a busy machine slows both.
fn growth() {
    let (small, large) = (Kind::Diverse(5000).snapshot(), Kind::Diverse(10_000).snapshot());
    let (mut least_small, mut least_large) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        least_small = least_small.min(seconds(|| solve(&small)).0);
        least_large = least_large.min(seconds(|| solve(&large)).0);
    }
    let ratio = least_large / least_small;
    println!("\ndiverse-10000 over diverse-5000: {least_large:.4} s / {least_small:.4} s = {ratio:.2} (at most 2.5)");
}

/// What a caller waits for who has objects of the API: their pods read and solved, and what was made of them dropped. Pods of one template
/// share a shape; each timed in turn with pods that are read alone.
fn reading(kind: Kind) {
    let (pods, world) = (kind.pods(), kind.snapshot());
    let (mut shared, mut alone, mut whole) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        shared = shared.min(seconds(|| drop(inputs::read(&pods))).0);
        alone = alone.min(seconds(|| drop(inputs::read_alone(&pods))).0);
        let (time, ()) = seconds(|| {
            let snapshot = Snapshot { pods: inputs::read(&pods), ..world.clone() };
            drop(std::hint::black_box(solve(&snapshot)));
        });
        whole = whole.min(time);
    }
    let share = shared / alone;
    println!(
        "{kind}: from objects to the answer {whole:.4} s; pods read in {shared:.4} s, {share:.2} of reading each alone ({alone:.4} s)"
    );
}

fn interning() {
    let types = inputs::types(true);
    let times = (0..ROUNDS).map(|_| {
        let types = types.clone();
        seconds(|| Catalogue::new(types)).0
    });
    let least = times.fold(f64::INFINITY, f64::min) * 1000.0;
    println!("{} EC2 types interned once: {least:.1} ms (at most 50)", types.len());
}

/// Has another process read and solve the cluster for load.
fn load() {
    let file = std::env::temp_dir().join(format!("karp-bench-{LOAD}-{}.json", std::process::id()));
    LOAD.write(&file).expect("a temporary file");
    let own = std::env::current_exe().expect("the path of this program");
    let measured = Command::new(own).arg(MEASURE).arg(&file).output().expect("this program");
    std::fs::remove_file(&file).expect("the temporary file");
    let said = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    assert!(measured.status.success(), "{}", said(&measured.stderr));
    print!("{}", said(&measured.stdout));
}

fn measure_cluster(file: &Path) {
    let (reading, snapshot) = seconds(|| cluster::read(file));
    let read_peak = peak_mebibytes();
    let (first, solution) = seconds(|| solve(&snapshot));
    let peak = peak_mebibytes();
    let least = least_seconds(3, || solve(&snapshot)).min(first);
    let (placed, nodes, refused) = (solution.placements.len(), solution.nodes.len(), solution.unschedulable.len());
    let new: usize = solution.nodes.iter().map(|node| node.pods.len()).sum();
    println!(
        "{LOAD}: solved in {first:.3} s, least of 4 {least:.3} s (at most 1 s); read in {reading:.2} s; peak {peak} MiB (at most 2048), of \
         which reading {read_peak} MiB; {placed} pods on the nodes that exist, {new} on {nodes} new nodes, {refused} refused"
    );
    assert_eq!(placed + new + refused, LOAD.pods);
    let (price, bound) = (solution.price().dollars(), shape_bound(&snapshot));
    println!("{LOAD}: {price:.2} $/h, over shape bound {:.3}", price / bound);
    // the rule as written here does not know nodes that exist: it packs what karp makes nodes for
    let placed: BTreeSet<&PodKey> = solution.placements.iter().map(|placement| &placement.pod).collect();
    let mut rest = snapshot;
    rest.pods.retain(|pod| !placed.contains(&pod.key));
    let rule = first_fit(&rest);
    let (nodes, unplaced) = (rule.nodes.len(), rule.unplaced.len());
    let over = rule.price / bound;
    println!(
        "{LOAD}: by Karpenter's rule {nodes} nodes, {:.2} $/h, over shape bound {over:.3}, {unplaced} unplaced",
        rule.price
    );
}

/// Asserts what a controller keeps of the types that a region offers: its share of eight catalogues in six zones, the most that a region has.
fn kept() {
    const MANY: usize = 8;
    let zones = ["a", "b", "c", "d", "e", "f"].map(|zone| Zone::new(&format!("us-east-1{zone}"), zone));
    let made = || Catalogue::estimated(builtin(), &zones, &NodeSettings::default());
    // whatever is made once for all is made before
    let first = made();
    let before = kibibytes("VmRSS:");
    let all: Vec<Catalogue> = (0..MANY).map(|_| made()).collect();
    let each = kibibytes("VmRSS:").saturating_sub(before) / MANY as u64;
    let types = all.iter().chain([&first]).map(|catalogue| catalogue.types().len()).max().unwrap_or_default();
    println!(
        "a catalogue of {types} types in {} zones: {:.1} MiB (at most {MOST_KEPT})",
        zones.len(),
        each as f64 / 1024.0
    );
    assert!(each <= MOST_KEPT * 1024, "a catalogue is {each} KiB");
}

/// The most memory that the process ever held, by the kernel's count.
fn peak_mebibytes() -> u64 {
    kibibytes("VmHWM:") / 1024
}

/// Reads a line of the kernel's account of this process.
fn kibibytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel says it");
    line.trim().trim_end_matches(" kB").parse().expect("kibibytes")
}

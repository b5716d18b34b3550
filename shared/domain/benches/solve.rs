//! How long packing takes: `cargo bench -p karp-domain --bench solve [-- FILTER]`. Inputs: see `inputs`.

#[allow(dead_code, reason = "each benchmark uses its part")]
mod inputs;

use divan::Bencher;
use karp_domain::catalogue::Catalogue;
use karp_domain::scheduling::solve;

use self::inputs::cluster::{self, Cluster};
use self::inputs::{KINDS, Kind};

fn main() {
    divan::main();
}

/// From a snapshot in memory to the solution.
#[divan::bench(name = "solve", args = KINDS.into_iter().chain([Kind::Diverse(10_000)]), sample_count = 9, sample_size = 1)]
fn solve_kind(bencher: Bencher<'_, '_>, kind: Kind) {
    let snapshot = kind.snapshot();
    bencher.bench_local(|| solve(&snapshot));
}

/// The same for a cluster with many pods and nodes.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn solve_cluster(bencher: Bencher<'_, '_>) {
    let cluster = Cluster { pods: 100_000, shapes: 200, nodes: 5_000 };
    let file = std::env::temp_dir().join(format!("karp-bench-{cluster}-{}.json", std::process::id()));
    cluster.write(&file).expect("a temporary file");
    let snapshot = cluster::read(&file);
    std::fs::remove_file(&file).expect("the temporary file");
    bencher.bench_local(|| solve(&snapshot));
}

/// Interning EC2's types: what the controller does once for each change of types or prices.
#[divan::bench(sample_count = 9, sample_size = 1)]
fn intern_ec2_catalogue(bencher: Bencher<'_, '_>) {
    let types = inputs::types(true);
    bencher.with_inputs(|| types.clone()).bench_local_values(Catalogue::new);
}

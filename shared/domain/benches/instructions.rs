//! How many instructions packing takes: figures that a busy machine does not disturb. `cargo bench -p karp-domain --bench instructions`
//! counts them where valgrind and `gungraun-runner` (`cargo install gungraun-runner --version` as in `Cargo.lock`) are there, and says so
//! where they are not.

#[allow(dead_code, reason = "each benchmark uses its part")]
mod inputs;

use std::process::{Command, Stdio};

use gungraun::{library_benchmark, library_benchmark_group};
use karp_domain::catalogue::{Catalogue, InstanceType};
use karp_domain::cluster::Snapshot;
use karp_domain::scheduling::{Solution, solve};

use self::inputs::Kind;

#[library_benchmark(setup = Kind::snapshot)]
#[bench::ec2_plain_3000(Kind::Ec2Plain(3000))]
#[bench::ec2_diverse_2000(Kind::Ec2Diverse(2000))]
#[bench::ec2_spreadheavy_1500(Kind::Ec2SpreadHeavy(1500))]
#[bench::diverse_2000(Kind::Diverse(2000))]
#[bench::diverse_5000(Kind::Diverse(5000))]
#[bench::preference_4000(Kind::Preference(4000))]
fn packing(snapshot: Snapshot) -> (Solution, Snapshot) {
    (solve(&snapshot), snapshot)
}

#[library_benchmark(setup = inputs::types)]
#[bench::ec2(true)]
fn interning(types: Vec<InstanceType>) -> Catalogue {
    Catalogue::new(types)
}

library_benchmark_group!(name = engine, benchmarks = [packing, interning]);

fn main() {
    // under the runner this program is called again with an argument of gungraun's
    let counted = std::env::args().any(|argument| argument == "--gungraun-run");
    for program in ["valgrind", option_env!("GUNGRAUN_RUNNER").unwrap_or("gungraun-runner")] {
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !counted && found.is_err() {
            println!("instructions: skipped, {program} is not installed");
            return;
        }
    }
    count();
}

/// Runs what `gungraun::main!` makes, which is a `main` of its own.
fn count() {
    gungraun::main!(library_benchmark_groups = engine);
    main();
}

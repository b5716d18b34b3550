//! `karp simulate`: what karp would do with the objects of some files.

mod answer;
pub mod disruption;
mod kept;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use karp_domain::scheduling::outlook;

pub use self::answer::is_estimated;
use self::answer::{Answer, SolveSeconds};
use self::disruption::Disruption;
use super::text;
use super::world::{Output, Question, World};

/// The exit code when some pods are not placed.
const NOT_ALL_PLACED: u8 = 2;

/// Holds the options of `karp simulate`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Files and directories with Kubernetes objects (YAML or JSON, also .gz); - is standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", num_args = 1.., required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    world: World,
    /// Ask what would be taken away or replaced, in place of what would be launched.
    #[arg(long)]
    disrupt: bool,
    /// With --disrupt: carry every command out and bind the pods anew until nothing is left to do.
    #[arg(long, requires = "disrupt")]
    until_stable: bool,
    /// Solve this often, for the times.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    repeat: u32,
    /// How the answer is written.
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    output: Output,
}

/// Solves and prints; exit code 0 when every pod has a place, 2 when some have none.
///
/// # Errors
/// When the input cannot be used.
pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let question = options.world.of_files(&options.files)?;
    if options.disrupt {
        return disrupt(options, &question);
    }
    let mut times = Vec::with_capacity(options.repeat as usize);
    let mut last = None;
    for _ in 0..options.repeat {
        let start = Instant::now();
        // what the last round made goes inside the measured time: a caller pays for it too
        drop(last.take());
        let snapshot = question.snapshot()?;
        let found = outlook(&snapshot);
        times.push(start.elapsed());
        last = Some((snapshot, found));
    }
    let Some((snapshot, found)) = last else { return Ok(ExitCode::SUCCESS) };
    let answer = Answer::new(&snapshot, &found, question.unready(), seconds(times));
    text::print(options.output, || &answer, || table::render(&answer))?;
    Ok(if answer.unschedulable.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(NOT_ALL_PLACED) })
}

fn disrupt(options: &Options, question: &Question) -> anyhow::Result<ExitCode> {
    let snapshot = question.cluster()?;
    let answer = if options.until_stable { Disruption::until_stable(&snapshot) } else { Disruption::now(&snapshot) };
    text::print(options.output, || &answer, || disruption::render(&answer))?;
    Ok(ExitCode::SUCCESS)
}

fn seconds(mut times: Vec<Duration>) -> SolveSeconds {
    times.sort();
    let (low, high) = (times[(times.len() - 1) / 2], times[times.len() / 2]);
    SolveSeconds { min: times[0].as_secs_f64(), median: f64::midpoint(low.as_secs_f64(), high.as_secs_f64()) }
}

//! `karp explain`: why karp does with an object what it does.

mod report;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use karp_domain::cluster::PodKey;
use karp_domain::scheduling::{explain, solve};

use self::report::Report;
use super::live::Cluster;
use super::world::{Output, World};

/// Holds the options of `karp explain`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Where a pod goes, or what each pool lacks for it: how many types each step takes away, and what would have to change.
    Pod(Box<PodOptions>),
}

#[derive(Args, Clone, Debug)]
struct PodOptions {
    /// The pod; without a namespace it is in "default".
    #[arg(value_name = "NAMESPACE/NAME")]
    pod: String,
    /// Files and directories with Kubernetes objects; without it the cluster is asked.
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", num_args = 1..)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    world: World,
    #[command(flatten)]
    cluster: Cluster,
    /// How the answer is written.
    #[arg(short = 'o', long, value_enum, default_value = "table")]
    output: Output,
}

/// Explains and prints; exit code 0 when the pod has a place, 2 when it has none.
///
/// # Errors
/// When the input cannot be used, the cluster does not answer, or the pod is not there.
pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let What::Pod(options) = &options.what;
    let question = match options.files.as_slice() {
        [] => options.world.question(options.cluster.objects()?)?,
        files => options.world.of_files(files)?,
    };
    let (namespace, name) = options.pod.split_once('/').unwrap_or(("default", &options.pod));
    let key = PodKey::new(namespace, name);
    let snapshot = question.snapshot()?;
    let pod = snapshot.pods.iter().find(|pod| pod.key == key).with_context(|| format!("there is no pod {key}"))?;
    let solution = solve(&snapshot);
    let report = Report::new(pod, (&snapshot, &solution), explain(&snapshot, pod, &solution));
    let mut out = std::io::BufWriter::new(anstream::stdout().lock());
    match options.output {
        Output::Json => {
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        }
        Output::Table => write!(out, "{}", report.render())?,
    }
    out.flush()?;
    Ok(if report.is_refused() { ExitCode::from(2) } else { ExitCode::SUCCESS })
}

//! `karp explain`: why karp does with an object what it does.

mod drain;
mod node;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use karp_domain::cluster::PodKey;
use karp_domain::disruption::plan_disruption;
use karp_domain::scheduling::{explain, solve, with_replicas};

use self::node::NodeReport;
use self::report::Report;
use super::live::{self, Cluster};
use super::text;
use super::world::{Output, Question, World};

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
    /// Why a node stays, what would be done with it (with which others it goes, what replaces them, what that saves), or what holds it while it
    /// drains.
    Node(Box<NodeOptions>),
}

/// Where the objects come from and how the answer is written.
#[derive(Args, Clone, Debug)]
struct Source {
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

impl Source {
    fn question(&self) -> anyhow::Result<Question> {
        Ok(match self.files.as_slice() {
            [] => {
                let mut objects = self.cluster.objects()?;
                live::heeded(&mut objects);
                self.world.of_cluster(objects)?
            }
            files => self.world.of_files(files)?,
        })
    }
}

#[derive(Args, Clone, Debug)]
struct PodOptions {
    /// The pod; without a namespace it is in "default".
    #[arg(value_name = "NAMESPACE/NAME")]
    pod: String,
    #[command(flatten)]
    source: Source,
}

#[derive(Args, Clone, Debug)]
struct NodeOptions {
    /// The Node or the NodeClaim.
    #[arg(value_name = "NAME")]
    node: String,
    #[command(flatten)]
    source: Source,
}

/// Explains and prints; exit code 2 when a pod has no place.
///
/// # Errors
/// When the input cannot be used, the cluster does not answer, or the pod or node is not there.
pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    match &options.what {
        What::Pod(options) => pod(options),
        What::Node(options) => node(options),
    }
}

fn pod(options: &PodOptions) -> anyhow::Result<ExitCode> {
    let (namespace, name) = options.pod.split_once('/').unwrap_or(("default", &options.pod));
    let key = PodKey::new(namespace, name);
    let snapshot = options.source.question()?.snapshot()?;
    let pod = snapshot.pods.iter().find(|pod| pod.key == key).with_context(|| format!("there is no pod {key}"))?;
    let ahead = with_replicas(&snapshot);
    let solution = solve(&ahead);
    let report = Report::new(pod, (&ahead, &solution), explain(&ahead, pod, &solution));
    text::print(options.source.output, || &report, || report.render())?;
    Ok(if report.is_refused() { ExitCode::from(2) } else { ExitCode::SUCCESS })
}

fn node(options: &NodeOptions) -> anyhow::Result<ExitCode> {
    let question = options.source.question()?;
    let snapshot = question.cluster()?;
    let name = &options.node;
    let report = NodeReport::new(&snapshot, &plan_disruption(&snapshot), name, |node| question.attached_to(node))
        .with_context(|| format!("there is no Node and no NodeClaim {name}"))?;
    text::print(options.source.output, || &report, || report.render())?;
    Ok(ExitCode::SUCCESS)
}

//! The command line: one file a subcommand.

mod crds;
mod estimates;
mod explain;
mod instance_types;
mod live;
mod migrate;
mod orphans;
mod simulate;
mod snapshot;
mod text;
mod world;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::options::Options;

/// Scales the nodes of a Kubernetes cluster on EC2.
#[derive(Parser)]
#[command(name = "karp", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the controller in or beside a cluster.
    Controller(Box<Options>),
    /// Show what karp would do with the objects of some files: nodes to launch, places of pods, refusals.
    ///
    /// Exits with 0 when every pod has a place, 2 when some have none, 1 when the input cannot be used.
    Simulate(Box<simulate::Options>),
    /// Tell why karp does what it does.
    Explain(Box<explain::Options>),
    /// Print instance types as the engine sees them: labels, room for pods, offerings and prices.
    InstanceTypes(Box<instance_types::Options>),
    /// Print the custom resource definitions as YAML.
    Crds,
    /// Write what a live cluster's decisions depend on, readable by every -f: no environment, secrets or foreign annotations.
    Snapshot(Box<snapshot::Options>),
    /// Write Terraform for a cluster that runs Karpenter, or for its manifests, and list the workloads that use its old keys.
    ///
    /// Exits with 0, with 2 when some of it could not be converted and the rest is written, with 1 when the input cannot be used.
    Migrate(Box<migrate::Options>),
    /// List what controllers made in AWS for the cluster's nodes and nothing in the cluster accounts for: what, how old, why, what ends it.
    ///
    /// Exits with 0 when there is nothing, 2 when there is something, 1 when that is not known.
    Orphans(Box<orphans::Options>),
    /// Print the version.
    Version,
}

impl Cli {
    /// Runs the chosen subcommand.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Controller(options) => crate::runtime::run(*options),
            Command::Simulate(options) => simulate::run(&options),
            Command::Explain(options) => explain::run(&options),
            Command::InstanceTypes(options) => instance_types::run(&options).map(|()| ExitCode::SUCCESS),
            Command::Snapshot(options) => snapshot::run(&options).map(|()| ExitCode::SUCCESS),
            Command::Migrate(options) => migrate::run(&options),
            Command::Orphans(options) => orphans::run(&options),
            Command::Crds => crds::print().map(|()| ExitCode::SUCCESS),
            Command::Version => {
                let version = format!("karp {} ({})\n", env!("CARGO_PKG_VERSION"), crate::ops::telemetry::COMMIT);
                text::to_stdout(|out| out.write_all(version.as_bytes())).map(|()| ExitCode::SUCCESS)
            }
        }
    }
}

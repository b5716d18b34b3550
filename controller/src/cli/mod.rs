//! The command line: one file a subcommand.

mod crds;

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
    /// Print the custom resource definitions as YAML.
    Crds,
    /// Print the version.
    Version,
}

impl Cli {
    /// Runs the chosen subcommand.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Controller(options) => crate::runtime::run(*options),
            Command::Crds => crds::print().map(|()| ExitCode::SUCCESS),
            Command::Version => {
                println!("karp {} ({})", env!("CARGO_PKG_VERSION"), crate::ops::telemetry::COMMIT);
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

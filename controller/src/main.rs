//! `karp`: the in-cluster controller and the operator's tool.

mod cli;
mod cloud;
mod effect;
mod observe;
mod ops;
mod options;
mod reconcile;
mod runtime;

use clap::Parser;

fn main() -> anyhow::Result<std::process::ExitCode> {
    cli::Cli::parse().run()
}

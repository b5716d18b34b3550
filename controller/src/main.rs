//! `karp`: the in-cluster controller and the operator's tool.

mod cli;
mod cloud;
mod effect;
mod files;
mod observe;
mod ops;
mod options;
mod reconcile;
mod runtime;

use std::process::ExitCode;

use clap::Parser;

fn main() -> anyhow::Result<ExitCode> {
    match cli::Cli::try_parse() {
        Ok(cli) => cli.run(),
        Err(told) => {
            told.print()?;
            // clap's own code for a bad command line, 2, says here that some pods are not placed
            Ok(if told.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

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
use tikv_jemallocator::Jemalloc;

/// The C library's allocator kept 70 MiB more at 1,000 nodes: pieces of what passed lie between those that stay. `.cargo/config.toml` says how
/// this one is set.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        // with its causes, and without the trace that RUST_BACKTRACE would add: it is told to an operator
        Ok(cli) => cli.run().unwrap_or_else(|error| {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }),
        Err(told) => {
            told.print().ok();
            // clap's own code for a bad command line, 2, says here that some pods are not placed
            if told.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
    }
}

//! The first thing that `cargo demo`, `cargo verify` and `cargo sandbox` run: names what the machine lacks before minutes are spent
//! on compiling, then becomes `cargo run -p sandbox`.

use std::{os::unix::process::CommandExt as _, process::ExitCode};

use launcher::prerequisites::{self, Work};

/// Commands that look at what is there: they build nothing new, so cargo need not say anything.
const QUIET: [&str; 3] = ["status", "down", "env"];

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let verify = arguments.first().is_some_and(|first| first == "verify");
    if let Err(lacks) = prerequisites::check(if verify { Work::Verify } else { Work::Sandbox }) {
        eprintln!("error: {lacks}");
        return ExitCode::FAILURE;
    }
    let mut cargo = launcher::cargo();
    cargo.arg("run");
    if arguments.first().is_some_and(|first| QUIET.iter().any(|quiet| first == quiet)) {
        cargo.arg("--quiet");
    }
    let error = cargo.args(["-p", "sandbox", "--bin", "sandbox", "--"]).args(arguments).exec();
    eprintln!("error: cargo could not be started: {error}");
    ExitCode::FAILURE
}

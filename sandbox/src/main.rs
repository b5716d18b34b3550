//! The binary behind `cargo demo`, `cargo verify` and `cargo sandbox`.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandbox::cli::main()
}

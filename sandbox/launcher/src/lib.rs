//! What comes before the sandbox: the check for prerequisites, and the call of cargo that builds and runs the rest.

use std::process::Command;

pub mod prerequisites;

/// Prepares a call of cargo from a program that cargo runs, without the variables that the outer cargo set for that program alone.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let foreign = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
        if foreign.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

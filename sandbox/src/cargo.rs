//! Cargo, called from a program that cargo runs.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::layout::Layout;

/// The packages whose binaries a sandbox uses.
const PRODUCTS: [&str; 4] = ["-p", "karp", "-p", "terraform-provider-karp"];

/// Prepares a call of cargo in the workspace, without the variables that the outer cargo set for this program alone.
pub fn command(layout: &Layout, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(&layout.root).args(arguments);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|prefix| name.starts_with(prefix))
        {
            command.env_remove(name);
        }
    }
    command
}

/// Builds the controller and the provider where `layout` expects them; cargo shows its own progress.
///
/// # Errors
/// When they do not compile.
pub fn build_products(layout: &Layout) -> Result<()> {
    let status = command(layout, &["build", "--quiet"]).args(PRODUCTS).status().context("starting cargo")?;
    if !status.success() {
        bail!("`cargo build {}` failed ({status})", PRODUCTS.join(" "));
    }
    Ok(())
}

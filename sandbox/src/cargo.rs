//! Cargo, called from a program that cargo runs.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{group::Group, layout::Layout};

/// The packages whose binaries a sandbox uses.
const PRODUCTS: [&str; 4] = ["-p", "karp", "-p", "terraform-provider-karp"];

/// Prepares a call of cargo in the workspace.
pub fn command(layout: &Layout, arguments: &[&str]) -> Command {
    let mut command = launcher::cargo();
    command.current_dir(&layout.root).args(arguments);
    command
}

/// Builds the controller and the provider where `layout` expects them; cargo shows its own progress.
///
/// # Errors
/// When they do not compile.
pub async fn build_products(layout: &Layout) -> Result<()> {
    let mut build = command(layout, &["build"]);
    build.args(PRODUCTS);
    let status = Group::start(build)?.wait().await?;
    if !status.success() {
        bail!("`cargo build {}` failed ({status})", PRODUCTS.join(" "));
    }
    Ok(())
}

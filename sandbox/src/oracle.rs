//! The vectors by which the domain's tests are graded: what Go's own libraries answer.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::layout::Layout;

/// Runs the Go program in `sandbox/tools/oracle`, which writes the vectors of the domain's tests anew.
///
/// # Errors
/// When Go is missing or the program fails.
pub fn run(layout: &Layout) -> Result<()> {
    let vectors = layout.root.join("shared").join("domain").join("tests").join("vectors");
    let status = Command::new("go")
        .current_dir(layout.tool_source("oracle"))
        .args(["run", "-mod=readonly", "-trimpath", "."])
        .arg(vectors)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .env("GOTOOLCHAIN", "auto")
        .status()
        .context("starting go")?;
    ensure!(status.success(), "the oracle failed ({status})");
    Ok(())
}

//! `cargo sim`: the simulator of `karp-domain` under many seeds, in a release build.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Result;

use crate::{cargo, group::Group, layout::Layout, record};

/// How many lives of a cluster the simulator plays under mixed faults.
const COUNT: &str = "KARP_SIM_SEEDS";
/// The seed of the first one; the others count up from it.
pub(crate) const FIRST: &str = "KARP_SIM_SEED";

/// The test that plays them, in the build that all tests share.
pub(crate) const TEST: [&str; 5] = ["test", "--workspace", "--test", "sim", "mixed_faults"];
/// The same in a release build, and it says how far it is.
pub(crate) const RELEASE: [&str; 9] =
    ["test", "--release", "-p", "karp-domain", "--test", "sim", "mixed_faults", "--", "--nocapture"];

/// Answers the seed that belongs to what is committed.
pub(crate) fn first(layout: &Layout) -> u64 {
    u64::from(record::seed(&layout.root) as u32)
}

/// What tells that test how many lives to play, and from which seed.
pub(crate) fn many(count: u64, first: u64) -> BTreeMap<String, String> {
    BTreeMap::from([(COUNT.to_owned(), count.to_string()), (FIRST.to_owned(), first.to_string())])
}

/// Plays so many lives from a seed, or from what is committed.
///
/// # Errors
/// When cargo cannot be run.
pub async fn run(layout: &Layout, seeds: u64, from: Option<u64>) -> Result<ExitCode> {
    let mut command = cargo::command(layout, &RELEASE);
    command.envs(many(seeds, from.unwrap_or_else(|| first(layout))));
    let status = Group::start(command)?.wait().await?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

//! Cargo, called from a program that cargo runs.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Result, bail};

use crate::{group::Group, layout::Layout};

/// The packages whose binaries a sandbox uses.
const PRODUCTS: [&str; 4] = ["-p", "karp", "-p", "terraform-provider-karp"];

/// Tests, and what they start, would look for the sandbox behind these proxies, though it is on this machine.
const PROXIES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];

/// Prepares a call of cargo in the workspace.
pub fn command(layout: &Layout, arguments: &[&str]) -> Command {
    let mut command = launcher::cargo();
    command.current_dir(&layout.root).args(arguments);
    command
}

/// Adds variables; where they name a sandbox, no proxy stands before it.
pub fn with_variables(mut command: Command, variables: &BTreeMap<String, String>) -> Command {
    if variables.keys().any(|name| name.starts_with("KARP_TEST_")) {
        for name in PROXIES {
            command.env_remove(name);
        }
    }
    command.envs(variables);
    command
}

/// The same command at the lowest priority: it takes only what others leave of the processors.
pub fn gently(command: &Command) -> Command {
    let mut gentle = Command::new("nice");
    gentle.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        gentle.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => gentle.env(name, value),
            None => gentle.env_remove(name),
        };
    }
    gentle
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tested_on_a_sandbox_does_not_look_for_it_behind_a_proxy() {
        let removed = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let command = with_variables(Command::new("cargo"), &variables);
            command.get_envs().filter(|(_, value)| value.is_none()).count()
        };
        assert_eq!(removed(&[("KARP_DEEP", "1")]), 0, "what is fetched may need it");
        assert_eq!(removed(&[("KARP_DEEP", "1"), ("KARP_TEST_KUBECONFIG", "/somewhere")]), PROXIES.len());
    }

    #[test]
    fn what_runs_gently_is_the_same_command() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $GREETING $PWD $(nice)"]).env("GREETING", "hi").current_dir("/");
        let output = gently(&command).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "hi / 19\n");
    }
}

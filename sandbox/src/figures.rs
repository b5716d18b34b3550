//! The figures that README and the issues promise, measured on this machine: how soon the provider answers, and how fast many unchanged
//! pools are planned. They are for the record of `cargo verify --deep`; tests hold the limits.

use std::{
    collections::BTreeMap,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P521_SHA512};
use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

use crate::{
    layout::Layout,
    sandbox::{Options, Sandbox},
    tools::Tools,
};

/// What OpenTofu says to a plugin, so that one that is run by hand knows it was not meant.
const MAGIC_COOKIE: (&str, &str) =
    ("TF_PLUGIN_MAGIC_COOKIE", "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2");
/// Handshakes and plans that are measured.
const HANDSHAKES: usize = 10;
const PLANS: usize = 3;
/// A provider that has not answered by then never will.
const ANSWER: Duration = Duration::from_secs(10);
/// Pools that the plan is of.
const POOLS: &str = "\
terraform {
  required_providers {
    karp = { source = \"karp/karp\" }
  }
}
variable \"cluster_name\" { type = string }
variable \"region\" { type = string }
provider \"karp\" {
  region       = var.region
  cluster_name = var.cluster_name
}
resource \"karp_crds\" \"this\" {}
resource \"karp_node_pool\" \"many\" {
  count          = 100
  name           = \"many-${count.index}\"
  template       = { node_class_ref = { name = \"default\" }, requirements = [{ key = \"kubernetes.io/arch\", operator = \"In\", values = [\"amd64\"] }] }
  wait_for_ready = false
  depends_on     = [karp_crds.this]
}
";

/// Several runs of one thing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// The shortest, in milliseconds.
    pub best_ms: f64,
    /// The middle one, in milliseconds.
    pub median_ms: f64,
    /// How many runs there were.
    pub runs: usize,
}

impl Spread {
    fn of(mut runs: Vec<Duration>) -> Option<Self> {
        runs.sort();
        let ms = |time: &Duration| (time.as_secs_f64() * 10_000.0).round() / 10.0;
        Some(Self { best_ms: ms(runs.first()?), median_ms: ms(&runs[runs.len() / 2]), runs: runs.len() })
    }
}

/// Measures everything, on a sandbox of its own.
///
/// # Errors
/// When something that is measured fails.
pub async fn measure(layout: &Layout, tools: &Tools) -> Result<BTreeMap<&'static str, Spread>> {
    let handshakes = handshakes(&layout.provider()).await?;
    let sandbox = Sandbox::start(layout, tools, Options::named(format!("figures-{}", std::process::id()))).await?;
    let plans = plans(&sandbox).await;
    sandbox.stop().await?;
    Ok(BTreeMap::from([("provider_handshake", handshakes), ("plan_of_100_unchanged_pools", plans?)]))
}

async fn handshakes(provider: &Path) -> Result<Spread> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P521_SHA512).context("making a key")?;
    let client = CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&key)?.pem();
    let mut runs = Vec::new();
    for _ in 0..HANDSHAKES {
        let begin = Instant::now();
        let mut plugin = Command::new(provider)
            .env(MAGIC_COOKIE.0, MAGIC_COOKIE.1)
            .env("PLUGIN_PROTOCOL_VERSIONS", "5,6")
            .env("PLUGIN_CLIENT_CERT", &client)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", provider.display()))?;
        let output = plugin.stdout.take().context("its output is piped")?;
        let line = tokio::time::timeout(ANSWER, BufReader::new(output).lines().next_line()).await;
        runs.push(begin.elapsed());
        let line = line.context("the provider did not answer")??.unwrap_or_default();
        ensure!(line.starts_with("1|6|"), "the provider answered {line:?}");
        plugin.kill().await?;
    }
    Spread::of(runs).context("nothing was measured")
}

async fn plans(sandbox: &Sandbox) -> Result<Spread> {
    let source = sandbox.run_dir.join("figures");
    std::fs::create_dir_all(&source)?;
    std::fs::write(source.join("main.tf"), POOLS)?;
    let tofu = sandbox.workspace_of(&source, "figures")?;
    for arguments in [&["init"][..], &["apply", "-auto-approve"]] {
        tofu.run(arguments).await?.success()?;
    }
    let mut runs = Vec::new();
    for _ in 0..PLANS {
        let begin = Instant::now();
        let plan = tofu.run(&["plan", "-detailed-exitcode"]).await?;
        runs.push(begin.elapsed());
        ensure!(plan.code == 0, "the second plan is not empty:\n{}", plan.output);
    }
    Spread::of(runs).context("nothing was measured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_and_median_are_of_the_sorted_runs() {
        let runs = [30, 10, 20].map(Duration::from_millis).to_vec();
        assert_eq!(Spread::of(runs), Some(Spread { best_ms: 10.0, median_ms: 20.0, runs: 3 }));
        assert_eq!(Spread::of(Vec::new()), None);
    }
}

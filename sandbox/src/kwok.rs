//! kwok plays the kubelet of every Node that is annotated `kwok.x-k8s.io/node=fake`.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{
    process::{Handle, Processes},
    tools::Tools,
};

/// What its nodes and pods go through.
const STAGES: &str = include_str!("../kwok/stages.yaml");
/// As long as a real kubelet's lease.
const LEASE_SECONDS: u32 = 40;

/// Addresses of its pods, apart from services (10.0.0.0/16) and the VPC (10.64.0.0/16).
const POD_CIDR: &str = "10.96.0.0/16";

/// Starts kwok on the Nodes of a cluster.
///
/// # Errors
/// When it cannot be started.
pub fn start(run_dir: &Path, tools: &Tools, processes: &Processes, kubeconfig: &Path) -> Result<Handle> {
    let stages = run_dir.join("kwok-stages.yaml");
    std::fs::write(&stages, STAGES).with_context(|| format!("writing {}", stages.display()))?;
    let mut command = tools.service("kwok");
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--config")
        .arg(&stages)
        .arg("--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake")
        .arg(format!("--cidr={POD_CIDR}"))
        .arg(format!("--node-lease-duration-seconds={LEASE_SECONDS}"))
        // Without it kwok reads ~/.kwok/kwok.yaml too.
        .env("KWOK_WORKDIR", run_dir.join("kwok"));
    processes.start("kwok", &mut command)
}

//! A destroy with many nodes, pods on them, and a controller that crashes again and again: one run ends all of it.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use sandbox::Sandbox;
use serde_json::json;

use crate::{Workload, apply, destroy, in_a_sandbox, init, inventory, small_nodes, traceless};

/// Each of the pods fills one node.
const NODES: usize = 20;
/// The same under `KARP_DEEP`.
const MANY: usize = 50;

#[tokio::test(flavor = "multi_thread")]
async fn one_destroy_ends_twenty_nodes_though_the_controller_crashes() -> Result<()> {
    in_a_sandbox("alone", async |_, sandbox| {
        let before = inventory(&sandbox.aws_endpoint).await?;
        traceless(sandbox, &before, play(sandbox)).await.map(drop)
    })
    .await
}

async fn play(sandbox: &Sandbox) -> Result<()> {
    let tofu = sandbox.workspace("quickstart")?;
    fs::write(tofu.folder().join("small_override.tf"), small_nodes("", ""))?;
    init(&tofu).await?;
    apply(&tofu).await?;
    let wanted = if std::env::var_os("KARP_DEEP").is_some() { MANY } else { NODES };
    let pods = Workload { replicas: wanted, cpu: "1500m", ..Workload::default() };
    pods.create(&sandbox.client, "fill").await?;
    pods.run(&sandbox.client, "fill").await?;
    let nodes: Api<Node> = Api::all(sandbox.client.clone());
    let made = nodes.list(&ListParams::default().labels("karpenter.sh/nodepool")).await?.items.len();
    ensure!(made == wanted, "{made} nodes");

    break_controller(sandbox).await?;
    let told = destroy(&tofu).await?;
    for text in ["No controller is at work to drain the nodes of NodePool", &format!("{wanted} instances")] {
        ensure!(told.contains(text), "the destroy does not tell `{text}`:\n{told}");
    }
    let left = nodes.list(&ListParams::default().labels("karpenter.sh/nodepool")).await?.items.len();
    ensure!(left == 0, "{left} Nodes are left");
    Ok(())
}

/// Gives the controller an argument that it does not know: it ends as soon as it starts.
async fn break_controller(sandbox: &Sandbox) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(sandbox.client.clone(), "karpenter");
    let patch = json!([{ "op": "replace", "path": "/spec/template/spec/containers/0/args", "value": ["controller", "--no-such-flag"] }]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
    let patched = deployments.patch("karpenter", &PatchParams::default(), &patch).await;
    patched.context("breaking the controller's Deployment")?;
    Ok(())
}

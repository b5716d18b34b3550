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

use crate::{Workload, in_a_sandbox, inventory};

/// Each of the pods fills one node.
const NODES: usize = 20;
/// The same under `KARP_DEEP`.
const MANY: usize = 50;
/// The quickstart's pool, with one small type.
const SMALL_NODES: &str = r#"
resource "karp_node_pool" "default" {
  limits = { cpu = "200" }
  template = {
    node_class_ref = { name = karp_node_class.default.name }
    requirements = [
      { key = "node.kubernetes.io/instance-type", operator = "In", values = ["c5.large"] },
      { key = "karpenter.sh/capacity-type", operator = "In", values = ["on-demand"] },
    ]
  }
}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn one_destroy_ends_twenty_nodes_though_the_controller_crashes() -> Result<()> {
    in_a_sandbox("alone", async |_, sandbox| play(sandbox).await).await
}

async fn play(sandbox: &Sandbox) -> Result<()> {
    let before = inventory(&sandbox.aws_endpoint).await?;
    let tofu = sandbox.workspace("quickstart")?;
    fs::write(tofu.folder().join("small_override.tf"), SMALL_NODES)?;
    tofu.run(&["init", "-input=false", "-no-color"]).await?.success()?;
    tofu.run(&["apply", "-input=false", "-no-color", "-auto-approve"]).await?.success()?;
    let wanted = if std::env::var_os("KARP_DEEP").is_some() { MANY } else { NODES };
    let pods = Workload { replicas: wanted, cpu: "1500m", ..Workload::default() };
    pods.create(&sandbox.client, "fill").await?;
    pods.run(&sandbox.client, "fill").await?;
    let nodes: Api<Node> = Api::all(sandbox.client.clone());
    let made = nodes.list(&ListParams::default().labels("karpenter.sh/nodepool")).await?.items.len();
    ensure!(made == wanted, "{made} nodes");

    break_controller(sandbox).await?;
    let told = tofu.run(&["destroy", "-input=false", "-no-color", "-auto-approve"]).await?.success()?;
    for text in ["No controller is at work to drain the nodes of NodePool", &format!("{wanted} instances")] {
        ensure!(told.contains(text), "the destroy does not tell `{text}`:\n{told}");
    }
    let after = inventory(&sandbox.aws_endpoint).await?;
    ensure!(after == before, "destroy left something behind, or took too much: {after:?} instead of {before:?}");
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

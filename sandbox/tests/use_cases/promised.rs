//! What a plan tells of a change to live nodes, held against what the controller then does to them; and a destroy whose nodes a controller drains.

use std::{collections::BTreeSet, fs, time::Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use sandbox::{Sandbox, tofu::Workspace};
use serde_json::{Value, json};

use crate::{PATIENCE, POLL, Workload, apply, destroy, in_a_sandbox, init, inventory, remove, small_nodes, traceless};

/// Each of the pods fills one node.
const NODES: usize = 5;
/// What the budget of [`pool`] lets go at a time.
const AT_ONCE: usize = 2;
/// Which taint a node bears that is about to be replaced.
const DISRUPTED: &str = "karpenter.sh/disrupted";
const KEPT: &str = "karpenter.sh/do-not-disrupt";

/// Small nodes of a team, some of which may go at a time.
fn pool(team: &str) -> String {
    let disruption =
        format!(r#"disruption = {{ consolidate_after = "Never", budgets = [{{ nodes = "{AT_ONCE}" }}] }}"#);
    small_nodes(&disruption, &format!("labels = {{ team = {team:?} }}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_does_what_the_plan_told_and_drains_at_the_pace_of_budgets() -> Result<()> {
    in_a_sandbox("promised", async |_, sandbox| {
        let before = inventory(&sandbox.aws_endpoint).await?;
        traceless(sandbox, &before, play(sandbox)).await.map(drop)
    })
    .await
}

async fn play(sandbox: &Sandbox) -> Result<()> {
    let tofu = sandbox.workspace("quickstart")?;
    let own = tofu.folder().join("small_override.tf");
    fs::write(&own, pool("a"))?;
    init(&tofu).await?;
    apply(&tofu).await?;
    let pods = Workload { replicas: NODES, cpu: "1500m", ..Workload::default() };
    pods.create(&sandbox.client, "fill").await?;
    pods.run(&sandbox.client, "fill").await?;
    let watch = Watch::of(sandbox);
    let old = watch.look().await?.nodes;
    ensure!(old.len() == NODES, "{old:?}");

    let (pod, kept) = keep_one(sandbox).await?;
    fs::write(&own, pool("b"))?;
    let told = tofu.run(&["plan", "-input=false", "-no-color"]).await?.success()?;
    let promises = [
        format!("{NODES} of {NODES} nodes will be replaced"),
        format!("At most {AT_ONCE} may be replaced at a time"),
        format!("1 cannot be disrupted now: {kept}"),
    ];
    for promise in promises {
        ensure!(told.contains(&promise), "the plan does not tell `{promise}`:\n{told}");
    }
    apply(&tofu).await?;
    watch.until_replaced(&old, &[&kept]).await?;
    pods.run(&sandbox.client, "fill").await?;

    // The last one goes once it may. Freed right before the destroy, it would be replaced until the drain begins.
    let free = Patch::Merge(json!({ "metadata": { "annotations": { KEPT: Value::Null } } }));
    watch.pods.patch(&pod, &PatchParams::default(), &free).await?;
    watch.until_replaced(&old, &[]).await?;
    pods.run(&sandbox.client, "fill").await?;
    watch.through_destroy(&tofu).await?;
    remove(&sandbox.client, "fill").await
}

/// Forbids that one of the pods is disrupted; answers which, and the node that it keeps.
async fn keep_one(sandbox: &Sandbox) -> Result<(String, String)> {
    let pods: Api<Pod> = Api::default_namespaced(sandbox.client.clone());
    let pod = pods.list(&ListParams::default().labels("app=fill")).await?.items.pop().context("no pod")?;
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).context("a pod without a node")?;
    let keep = Patch::Merge(json!({ "metadata": { "annotations": { KEPT: "true" } } }));
    pods.patch(&pod.name_any(), &PatchParams::default(), &keep).await?;
    Ok((pod.name_any(), node))
}

/// The nodes of pools, looked at again and again.
struct Watch {
    nodes: Api<Node>,
    claims: Api<DynamicObject>,
    pods: Api<Pod>,
}

/// What one look saw.
struct Seen {
    nodes: BTreeSet<String>,
    claims: BTreeSet<String>,
    /// Nodes that are told to go, and claims.
    leaving: BTreeSet<String>,
}

impl Watch {
    fn of(sandbox: &Sandbox) -> Self {
        let claim = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim"));
        Self {
            nodes: Api::all(sandbox.client.clone()),
            claims: Api::all_with(sandbox.client.clone(), &claim),
            pods: Api::default_namespaced(sandbox.client.clone()),
        }
    }

    async fn look(&self) -> Result<Seen> {
        let nodes = self.nodes.list(&ListParams::default().labels("karpenter.sh/nodepool")).await?.items;
        let claims = self.claims.list(&ListParams::default()).await?.items;
        let goes = |node: &&Node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
            node.metadata.deletion_timestamp.is_some() || taints.iter().any(|taint| taint.key == DISRUPTED)
        };
        // one that goes is one, by whichever of its two objects it is seen
        let node_of = |claim: &DynamicObject| {
            let name = claim.data["status"]["nodeName"].as_str().map(str::to_owned);
            name.unwrap_or_else(|| claim.name_any())
        };
        let deleted = claims.iter().filter(|claim| claim.metadata.deletion_timestamp.is_some());
        Ok(Seen {
            leaving: nodes.iter().filter(goes).map(Node::name_any).chain(deleted.map(node_of)).collect(),
            nodes: nodes.iter().map(Node::name_any).collect(),
            claims: claims.iter().map(DynamicObject::name_any).collect(),
        })
    }

    /// Waits until of these nodes those are left that are kept, never more leaving at a time than the budget allows.
    async fn until_replaced(&self, old: &BTreeSet<String>, kept: &[&str]) -> Result<()> {
        let begin = Instant::now();
        loop {
            let seen = self.look().await?;
            ensure!(seen.leaving.len() <= AT_ONCE, "{:?} leave at a time", seen.leaving);
            let gone = kept.iter().find(|node| !seen.nodes.contains(**node));
            ensure!(gone.is_none(), "{gone:?} went, whose pod must not be disrupted");
            let left: Vec<&String> = old.intersection(&seen.nodes).collect();
            if left == kept && seen.leaving.is_empty() {
                return Ok(());
            }
            ensure!(begin.elapsed() < PATIENCE * 2, "after {:?} of the old nodes are left: {left:?}", begin.elapsed());
            tokio::time::sleep(POLL).await;
        }
    }

    /// Destroys all: nodes leave at the pace of the budget, and none comes in their place.
    async fn through_destroy(&self, tofu: &Workspace) -> Result<()> {
        let known = self.look().await?.claims;
        let mut most = 0;
        let paced = async {
            loop {
                tokio::time::sleep(POLL).await;
                // the definitions go in the end
                let Ok(seen) = self.look().await else { continue };
                most = most.max(seen.leaving.len());
                ensure!(most <= AT_ONCE, "{:?} leave at a time", seen.leaving);
                ensure!(seen.claims.is_subset(&known), "a node came while the pool was drained: {:?}", seen.claims);
            }
        };
        tokio::select! {
            ended = destroy(tofu) => drop(ended?),
            faulty = paced => return faulty,
        }
        ensure!(most > 0, "no node was seen to leave");
        Ok(())
    }
}

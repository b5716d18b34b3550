//! The main job, step by step: apply, scale up, consolidate, interrupt, plan an edit, scale to zero, destroy.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use super::{
    cluster::{Cluster, KarpNode, until},
    inventory::Inventory,
    timeline::Timeline,
};
use crate::{audit::Rights, tofu::Workspace};

/// How long a node may take from pending pods to running pods.
const SCALE_UP: Duration = Duration::from_secs(60);
/// How long consolidation may take: consolidateAfter, 15 s of validation, the replacement, the drain.
const CONSOLIDATE: Duration = Duration::from_secs(120);
/// What EC2 gives between a spot interruption warning and the loss of the instance.
const INTERRUPTION_NOTICE: Duration = Duration::from_secs(120);
/// How long the last node may take to go when nothing needs it.
const SCALE_TO_ZERO: Duration = Duration::from_secs(90);

/// One play: where it happens and what has happened so far.
pub struct Play<'a> {
    /// The cluster it happens in.
    pub cluster: Cluster,
    /// The emulator's endpoint.
    pub aws: &'a str,
    /// The quickstart's working folder.
    pub tofu: Workspace,
    /// What existed before anything was applied.
    pub seed: Inventory,
    /// What happened.
    pub timeline: &'a mut Timeline,
}

impl Play<'_> {
    /// Plays all of it; returns what the controller was granted.
    ///
    /// # Errors
    /// Names the step that failed and what it saw.
    pub async fn run(&mut self) -> Result<Rights> {
        self.apply().await.context("step 1, tofu apply of the quickstart")?;
        self.cluster.create_workload().await?;
        let first = self.scale_up(5).await.context("step 2, inflate 0 -> 5")?;
        let second = self.consolidate(&first, 2).await.context("step 3, consolidation after inflate 5 -> 2")?;
        self.interrupt(&second).await.context("step 4, spot interruption")?;
        self.plan_an_edit().await.context("step 5, tofu plan after an edit")?;
        self.scale_to_zero().await.context("step 6, inflate 2 -> 0")?;
        self.scale_up(3).await.context("step 7, inflate 0 -> 3")?;
        let grants = self.cluster.controller_grants().await.context("reading the controller's roles")?;
        self.destroy().await.context("step 8, tofu destroy with nodes running")?;
        Ok(grants)
    }

    async fn apply(&mut self) -> Result<()> {
        self.timeline.record("tofu-init", "examples/quickstart");
        self.tofu.run(&["init", "-input=false", "-no-color"]).await?.success()?;
        let plan = self.tofu.run(&["plan", "-input=false", "-no-color", "-out=first.tfplan"]).await?.success()?;
        self.timeline.record("tofu-plan", summary(&plan, "Plan:"));
        let apply =
            self.tofu.run(&["apply", "-input=false", "-no-color", "-auto-approve", "first.tfplan"]).await?.success()?;
        self.timeline.record("tofu-apply", summary(&apply, "Apply complete!"));
        let again = self
            .tofu
            .run(&["plan", "-input=false", "-no-color", "-detailed-exitcode"])
            .await?
            .success()
            .context("the second plan must be empty (exit code 2 means that it shows changes)")?;
        self.timeline.record("second-plan-empty", summary(&again, "No changes."));
        Ok(())
    }

    /// Scales the workload and waits until each of its pods runs.
    async fn scale_up(&mut self, replicas: u32) -> Result<Vec<KarpNode>> {
        self.cluster.scale(replicas).await?;
        self.timeline.record("scale", format!("inflate -> {replicas}"));
        let cluster = self.cluster.clone();
        let claims = until("a NodeClaim", SCALE_UP, || async {
            let claims = cluster.claims().await?;
            Ok(if claims.is_empty() { Err("no NodeClaim".to_owned()) } else { Ok(claims) })
        })
        .await?;
        let names: Vec<_> = claims.iter().filter_map(|claim| claim.metadata.name.as_deref()).collect();
        self.timeline.record("nodeclaim", names.join(", "));
        let nodes = self.settled_running(replicas as usize, SCALE_UP).await?;
        for node in &nodes {
            let detail = self.priced(node).await?;
            self.timeline.record("node-ready", detail);
        }
        self.timeline.record("pods-running", format!("{replicas} of {replicas}"));
        Ok(nodes)
    }

    async fn consolidate(&mut self, before: &[KarpNode], replicas: u32) -> Result<Vec<KarpNode>> {
        let old_price = Inventory::read(self.aws).await?.price();
        self.cluster.scale(replicas).await?;
        self.timeline.record("scale", format!("inflate -> {replicas}"));
        let (cluster, aws) = (self.cluster.clone(), self.aws);
        until("a cheaper set of nodes", CONSOLIDATE, || async {
            let nodes = cluster.nodes().await?;
            let price = Inventory::read(aws).await?.price();
            let moved = nodes.iter().all(|node| node.settled && !before.iter().any(|old| old.name == node.name));
            Ok(if moved && !nodes.is_empty() && price < old_price {
                Ok(())
            } else {
                Err(format!("{} at ${price:.4}/h", tell(&nodes)))
            })
        })
        .await?;
        let nodes = self.settled_running(replicas as usize, SCALE_UP).await?;
        let new_price = Inventory::read(self.aws).await?.price();
        for node in &nodes {
            let detail = self.priced(node).await?;
            self.timeline.record("consolidated", detail);
        }
        self.timeline.record("price", format!("${old_price:.4}/h -> ${new_price:.4}/h"));
        Ok(nodes)
    }

    async fn interrupt(&mut self, nodes: &[KarpNode]) -> Result<()> {
        let lost = nodes.first().context("no node to interrupt")?;
        ensure!(lost.capacity_type == "spot", "{lost} is no spot node");
        self.send_interruption(&lost.instance).await?;
        self.timeline
            .record("spot-interruption", format!("{lost} will be lost in {} s", INTERRUPTION_NOTICE.as_secs()));
        let begin = self.timeline.seconds();
        let (cluster, name) = (self.cluster.clone(), lost.name.clone());
        until("the node to be replaced", INTERRUPTION_NOTICE, || async {
            let nodes = cluster.nodes().await?;
            let gone = !nodes.iter().any(|node| node.name == name);
            let fresh = nodes.iter().any(|node| node.settled);
            Ok(if gone && fresh { Ok(()) } else { Err(tell(&nodes)) })
        })
        .await?;
        let left = INTERRUPTION_NOTICE.as_secs_f64() - (self.timeline.seconds() - begin);
        for node in self.settled_running(2, SCALE_UP).await? {
            let detail = self.priced(&node).await?;
            self.timeline.record("replaced", format!("{detail}, {left:.0} s before the loss"));
        }
        Ok(())
    }

    /// Lets the emulator take the instance back as spot does: the warning on EventBridge now, which the rules that karp made bring
    /// to the queue, and the end of the instance when the notice has passed.
    async fn send_interruption(&self, instance: &str) -> Result<()> {
        let order = json!({ "instance_id": instance, "after_seconds": INTERRUPTION_NOTICE.as_secs() });
        crate::http::post(&format!("{}/_karp/interrupt", self.aws), &[], &order).await?;
        Ok(())
    }

    async fn plan_an_edit(&mut self) -> Result<()> {
        let run =
            self.tofu.run(&["plan", "-input=false", "-no-color", "-detailed-exitcode", "-var", "cpu_limit=50"]).await?;
        ensure!(run.code == 2, "exit code {} instead of 2 (changes):\n{}", run.code, run.output);
        let diff = diff_of(&run.output, "karp_node_pool.default")
            .with_context(|| format!("no diff of karp_node_pool.default in:\n{}", run.output))?;
        ensure!(diff.contains("updated in-place"), "the edit must not replace the pool:\n{diff}");
        self.timeline.record("plan-of-an-edit", "-var cpu_limit=50");
        anstream::println!("{diff}");
        Ok(())
    }

    async fn scale_to_zero(&mut self) -> Result<()> {
        self.cluster.scale(0).await?;
        self.timeline.record("scale", "inflate -> 0");
        let (cluster, aws) = (self.cluster.clone(), self.aws);
        until("no node and no instance", SCALE_TO_ZERO, || async {
            let nodes = cluster.nodes().await?;
            let instances = Inventory::read(aws).await?.instances;
            Ok(if nodes.is_empty() && instances.is_empty() {
                Ok(())
            } else {
                Err(format!("{}; {} instances", tell(&nodes), instances.len()))
            })
        })
        .await?;
        self.timeline.record("no-nodes", "no node, no instance, $0.0000/h");
        Ok(())
    }

    async fn destroy(&mut self) -> Result<()> {
        self.timeline.record("tofu-destroy", format!("with {} running", tell(&self.cluster.nodes().await?)));
        let run = self.tofu.run(&["destroy", "-input=false", "-no-color", "-auto-approve"]).await?.success()?;
        self.timeline.record("destroyed", summary(&run, "Destroy complete!"));
        let left = Inventory::read(self.aws).await?.beyond(&self.seed);
        if !left.is_empty() {
            bail!("destroy left behind: {}", left.join(", "));
        }
        let crds = self.cluster.karpenter_crds().await?;
        ensure!(crds.is_empty(), "destroy left behind: {}", crds.join(", "));
        let nodes = self.cluster.nodes().await?;
        ensure!(nodes.is_empty(), "destroy left behind: {}", tell(&nodes));
        self.timeline.record("nothing-left", "no instance, template, role, profile, queue, rule, tag or CRD");
        self.cluster.delete_workload().await
    }

    /// Waits until `replicas` pods run, all on settled nodes, and returns these nodes.
    async fn settled_running(&self, replicas: usize, limit: Duration) -> Result<Vec<KarpNode>> {
        let cluster = self.cluster.clone();
        until(&format!("{replicas} running pods on ready nodes"), limit, || async {
            let nodes = cluster.nodes().await?;
            let running = cluster.running().await?;
            let count: usize = nodes.iter().filter(|n| n.settled).filter_map(|n| running.get(&n.name)).sum();
            let settled = nodes.iter().all(|node| node.settled);
            Ok(if settled && count == replicas {
                Ok(nodes)
            } else {
                Err(format!("{count} of {replicas} pods run; {}", tell(&nodes)))
            })
        })
        .await
    }

    async fn priced(&self, node: &KarpNode) -> Result<String> {
        let price = Inventory::read(self.aws).await?.price_of(&node.instance);
        Ok(price.map_or_else(|| format!("{node} at an unknown price"), |price| format!("{node} at ${price:.4}/h")))
    }
}

fn tell(nodes: &[KarpNode]) -> String {
    if nodes.is_empty() {
        return "no nodes".to_owned();
    }
    let one = |node: &KarpNode| format!("{node}{}", if node.settled { "" } else { " [not settled]" });
    nodes.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Returns the first line that begins with `prefix`, or all that there is when none does.
fn summary(output: &str, prefix: &str) -> String {
    output.lines().find(|line| line.trim_start().starts_with(prefix)).unwrap_or(output).trim().to_owned()
}

/// Cuts one resource's diff out of a plan.
fn diff_of(plan: &str, address: &str) -> Option<String> {
    let heading = format!("# {address} ");
    let lines: Vec<&str> = plan.lines().collect();
    let first = lines.iter().position(|line| line.trim_start().starts_with(&heading))?;
    let length = lines[first..].iter().position(|line| *line == "    }")?;
    Some(lines[first..=first + length].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_diff_of_one_resource_ends_with_its_brace() {
        let plan = "x\n  # karp_node_pool.default will be updated in-place\n  ~ resource \"karp_node_pool\" \"default\" {\n      ~ limits = {\n          ~ cpu = \"100\" -> \"50\"\n        }\n    }\n\nPlan: 0 to add";
        let diff = diff_of(plan, "karp_node_pool.default").unwrap();
        assert!(diff.starts_with("  # karp_node_pool") && diff.ends_with("    }"), "{diff}");
        assert!(!diff.contains("Plan:"));
        assert_eq!(diff_of(plan, "karp_node_pool.other"), None);
        assert_eq!(summary(plan, "Plan:"), "Plan: 0 to add");
    }
}

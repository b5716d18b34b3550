//! Joins EC2 and Kubernetes: an instance that runs becomes a Node as its user data says, and the Node of an ended instance goes dark.
//!
//! kwok plays the kubelet of the Nodes that are made here. Their names are the instances' private DNS names.

mod node;
mod user_data;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub use node::Instance;
pub(crate) use node::amount_of;

use crate::{Context, http};

/// How often EC2 is asked for its instances.
const POLL: Duration = Duration::from_millis(400);
/// How long the cloud's node life-cycle controller leaves the Node of an ended instance to others.
const DELETED_AFTER: Duration = Duration::from_secs(15);

/// What the bridge did with an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    /// It runs since then; its Node is not due yet.
    Booting(Instant),
    /// It is a Node.
    Joined,
    /// It will never join: the reason was told.
    Refused,
    /// It has ended, and its Node was marked at that time.
    Ended(Instant),
    /// It has ended and nothing is left to do.
    Forgotten,
}

struct Bridge {
    ctx: Context,
    nodes: Api<Node>,
    authority: Vec<u8>,
    fates: BTreeMap<String, Fate>,
}

/// Runs the bridge until it is told to stop.
///
/// # Errors
/// When the CA file cannot be read or the Nodes cannot be listed at the start; later failures are told and tried again.
pub async fn run(ctx: Context, stop: CancellationToken) -> Result<()> {
    let authority = std::fs::read(&ctx.ca_file).with_context(|| format!("reading {}", ctx.ca_file.display()))?;
    let nodes: Api<Node> = Api::all(ctx.client.clone());
    let joined = nodes.list(&ListParams::default()).await.context("listing nodes")?;
    let fates = joined.iter().filter_map(instance_of).map(|id| (id, Fate::Joined)).collect();
    let mut bridge = Bridge { ctx, nodes, authority, fates };
    while stop.run_until_cancelled(tokio::time::sleep(POLL)).await.is_some() {
        if let Err(error) = bridge.look().await {
            tracing::warn!("node bridge: {error:#}");
        }
    }
    Ok(())
}

fn instance_of(node: &Node) -> Option<String> {
    node.metadata.annotations.as_ref()?.get(node::INSTANCE).cloned()
}

impl Bridge {
    /// Asks EC2 once and does what is due.
    async fn look(&mut self) -> Result<()> {
        let states: BTreeMap<String, String> = self.ask("instance-states").await?;
        let now = Instant::now();
        for (id, state) in &states {
            let before = self.fates.get(id).cloned();
            match self.step(id, state, before.clone(), now).await {
                Ok(Some(fate)) if before.as_ref() != Some(&fate) => _ = self.fates.insert(id.clone(), fate),
                Ok(_) => {}
                Err(error) => tracing::warn!(instance = id, "node bridge: {error:#}"),
            }
        }
        self.fates.retain(|id, _| states.contains_key(id));
        Ok(())
    }

    async fn ask<T: serde::de::DeserializeOwned>(&self, what: &str) -> Result<T> {
        let answer = http::get(&format!("{}/_karp/{what}", self.ctx.aws_endpoint)).await?;
        serde_json::from_str(&answer).with_context(|| format!("reading {what}"))
    }

    /// Decides and does the next thing for one instance; returns what has become of it.
    async fn step(&self, id: &str, state: &str, before: Option<Fate>, now: Instant) -> Result<Option<Fate>> {
        let ended = matches!(state, "shutting-down" | "terminated" | "stopping" | "stopped");
        Ok(match before {
            None if state == "running" => Some(Fate::Booting(now)),
            None if !ended => None,
            None | Some(Fate::Booting(_) | Fate::Refused) if ended => Some(Fate::Forgotten),
            Some(Fate::Booting(since)) if now.duration_since(since) >= self.ctx.node_delay => {
                Some(self.join(&self.ask(&format!("instance?id={id}")).await?).await?)
            }
            Some(Fate::Joined) if ended => {
                self.darken(&self.ask(&format!("instance?id={id}")).await?).await?;
                Some(Fate::Ended(now))
            }
            Some(Fate::Ended(since)) if now.duration_since(since) >= DELETED_AFTER => {
                self.delete(&self.ask(&format!("instance?id={id}")).await?).await?;
                Some(Fate::Forgotten)
            }
            other => other,
        })
    }

    /// Registers the Node, or tells why the instance never joins.
    async fn join(&self, instance: &Instance) -> Result<Fate> {
        let kubelet = match self.admit(instance) {
            Ok(kubelet) => kubelet,
            Err(reason) => {
                tracing::warn!(
                    instance = instance.id,
                    node = instance.private_dns_name,
                    "the instance never joins: {reason}"
                );
                return Ok(Fate::Refused);
            }
        };
        match self.nodes.create(&PostParams::default(), &node::node(instance, &kubelet)).await {
            Ok(_) => tracing::info!(instance = instance.id, node = instance.private_dns_name, "the instance joined"),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(kube::Error::Api(status)) if status.is_invalid() => {
                tracing::warn!(instance = instance.id, "the instance never joins: {}", status.message);
                return Ok(Fate::Refused);
            }
            Err(error) => return Err(error).context("registering the node"),
        }
        Ok(Fate::Joined)
    }

    /// Checks what a kubelet and EKS check before a node may register.
    fn admit(&self, instance: &Instance) -> Result<user_data::Kubelet, String> {
        let kubelet =
            user_data::read(&instance.user_data, instance.is_bottlerocket()).map_err(|error| error.to_string())?;
        if kubelet.cluster_name != self.ctx.cluster_name {
            return Err(format!(
                "its user data names cluster {}, this is {}",
                kubelet.cluster_name, self.ctx.cluster_name
            ));
        }
        if kubelet.api_server.trim_end_matches('/') != self.ctx.api_server.trim_end_matches('/') {
            return Err(format!(
                "its user data names the endpoint {}, this is {}",
                kubelet.api_server, self.ctx.api_server
            ));
        }
        let authority =
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, &kubelet.certificate_authority);
        if authority.ok().as_ref() != Some(&self.authority) {
            return Err("its user data holds another CA than the cluster's".to_owned());
        }
        if !instance.may_join {
            let role = instance.role_arn.as_deref().unwrap_or("none");
            return Err(format!("the cluster has no access entry of a node type for its role ({role})"));
        }
        Ok(kubelet)
    }

    /// The kubelet is gone: kwok lets go of the Node, and its state is unknown.
    async fn darken(&self, instance: &Instance) -> Result<()> {
        let name = &instance.private_dns_name;
        let marks = json!({ "metadata": { "annotations": { node::FAKE: null, node::ENDED: "true" } } });
        let unknown = |kind: &str| {
            let now = jiff::Timestamp::now();
            json!({ "type": kind, "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.",
                "lastHeartbeatTime": now, "lastTransitionTime": now })
        };
        let conditions = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].map(unknown);
        let status = json!({ "status": { "conditions": conditions } });
        let params = PatchParams::default();
        gone_is_fine(self.nodes.patch(name, &params, &Patch::Merge(&marks)).await)?;
        gone_is_fine(self.nodes.patch_status(name, &params, &Patch::Strategic(&status)).await)?;
        tracing::info!(instance = instance.id, node = name, "the instance ended");
        Ok(())
    }

    /// What the cloud's node life-cycle controller does with the Node of an instance that is gone. Finalizers are respected.
    async fn delete(&self, instance: &Instance) -> Result<()> {
        let name = &instance.private_dns_name;
        let Some(node) = self.nodes.get_opt(name).await? else { return Ok(()) };
        if node.metadata.deletion_timestamp.is_none() && instance_of(&node).as_ref() == Some(&instance.id) {
            match self.nodes.delete(name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error).context("deleting the node of an ended instance"),
                Ok(_) => tracing::info!(instance = instance.id, node = name, "deleted the node of an ended instance"),
            }
        }
        Ok(())
    }
}

fn gone_is_fine<T>(result: kube::Result<T>) -> Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error).context("marking the node of an ended instance"),
    }
}

//! What the demo reads from, and asks of, the sandbox's API server.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod},
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::audit::{CONTROLLER, Rights};

/// The namespace of the demo's workload.
const NAMESPACE: &str = "default";
/// The workload's name, known from Karpenter's getting-started guide.
const WORKLOAD: &str = "inflate";
/// How often the API server is asked while the demo waits.
const POLL: Duration = Duration::from_millis(250);

/// A node that karp made, as the demo tells of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KarpNode {
    /// Name of the Node object.
    pub name: String,
    /// EC2 instance id, from the provider id.
    pub instance: String,
    /// EC2 instance type.
    pub instance_type: String,
    /// `spot`, `on-demand` or `reserved`.
    pub capacity_type: String,
    /// Availability zone.
    pub zone: String,
    /// Whether the node is Ready, initialized and not about to go.
    pub settled: bool,
}

impl std::fmt::Display for KarpNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} {} in {}, {})", self.name, self.capacity_type, self.instance_type, self.zone, self.instance)
    }
}

/// The demo's view of one cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

impl Cluster {
    /// Looks at the cluster behind a client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Reads what the controller's roles grant.
    ///
    /// # Errors
    /// When the API server cannot be read, or the controller has no role.
    pub async fn controller_grants(&self) -> Result<Rights> {
        Rights::granted(&self.client, CONTROLLER).await
    }

    /// Creates the workload with no replicas.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn create_workload(&self) -> Result<()> {
        let deployment: Deployment = serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": WORKLOAD, "namespace": NAMESPACE },
            "spec": {
                "replicas": 0,
                "selector": { "matchLabels": { "app": WORKLOAD } },
                "template": {
                    "metadata": { "labels": { "app": WORKLOAD } },
                    "spec": {
                        "terminationGracePeriodSeconds": 0,
                        "containers": [{
                            "name": WORKLOAD,
                            "image": "pause",
                            "resources": { "requests": { "cpu": "1", "memory": "1536Mi" } },
                        }],
                    },
                },
            },
        }))?;
        self.deployments().create(&PostParams::default(), &deployment).await.context("creating Deployment inflate")?;
        Ok(())
    }

    /// Sets the workload's replicas.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn scale(&self, replicas: u32) -> Result<()> {
        let patch = json!({ "spec": { "replicas": replicas } });
        self.deployments()
            .patch(WORKLOAD, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .with_context(|| format!("scaling Deployment inflate to {replicas}"))?;
        Ok(())
    }

    /// Deletes the workload.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn delete_workload(&self) -> Result<()> {
        self.deployments()
            .delete(WORKLOAD, &DeleteParams::background())
            .await
            .context("deleting Deployment inflate")?;
        Ok(())
    }

    /// Lists karp's nodes, ordered by name.
    ///
    /// # Errors
    /// When the API server cannot be read.
    pub async fn nodes(&self) -> Result<Vec<KarpNode>> {
        let selector = ListParams::default().labels("karpenter.sh/nodepool");
        let mut nodes: Vec<KarpNode> =
            Api::<Node>::all(self.client.clone()).list(&selector).await?.iter().map(describe).collect();
        nodes.sort();
        Ok(nodes)
    }

    /// Counts the NodeClaims.
    ///
    /// # Errors
    /// When the API server cannot be read.
    pub async fn claims(&self) -> Result<Vec<DynamicObject>> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim"));
        let claims = Api::<DynamicObject>::all_with(self.client.clone(), &kind);
        match claims.list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(error).context("listing NodeClaims"),
        }
    }

    /// Lists the names of the custom resource definitions in Karpenter's groups.
    ///
    /// # Errors
    /// When the API server cannot be read.
    pub async fn karpenter_crds(&self) -> Result<Vec<String>> {
        let kind =
            ApiResource::from_gvk(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
        let crds = Api::<DynamicObject>::all_with(self.client.clone(), &kind).list(&ListParams::default()).await?;
        Ok(crds.into_iter().filter_map(|crd| crd.metadata.name).filter(|name| name.contains("karpenter")).collect())
    }

    /// Counts the workload's running pods by node.
    ///
    /// # Errors
    /// When the API server cannot be read.
    pub async fn running(&self) -> Result<BTreeMap<String, usize>> {
        let selector = ListParams::default().labels("app=inflate");
        let mut by_node = BTreeMap::new();
        for pod in Api::<Pod>::namespaced(self.client.clone(), NAMESPACE).list(&selector).await? {
            let running = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
            if let Some(node) = pod.spec.and_then(|spec| spec.node_name)
                && running
                && pod.metadata.deletion_timestamp.is_none()
            {
                *by_node.entry(node).or_default() += 1;
            }
        }
        Ok(by_node)
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}

fn describe(node: &Node) -> KarpNode {
    let label =
        |key: &str| node.metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned().unwrap_or_default();
    let spec = node.spec.as_ref();
    let ready = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|conditions| conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
    let leaving = node.metadata.deletion_timestamp.is_some()
        || spec
            .and_then(|spec| spec.taints.as_ref())
            .is_some_and(|t| t.iter().any(|t| t.key == "karpenter.sh/disrupted"));
    KarpNode {
        name: node.metadata.name.clone().unwrap_or_default(),
        instance: spec
            .and_then(|spec| spec.provider_id.as_deref())
            .and_then(|id| id.rsplit('/').next())
            .unwrap_or_default()
            .to_owned(),
        instance_type: label("node.kubernetes.io/instance-type"),
        capacity_type: label("karpenter.sh/capacity-type"),
        zone: label("topology.kubernetes.io/zone"),
        settled: ready && !leaving && label("karpenter.sh/initialized") == "true",
    }
}

/// Asks again and again until the answer is there; the error of a time-out carries what was seen last.
///
/// # Errors
/// When the time is up, or `look` fails for good.
pub async fn until<T, F, Fut>(what: &str, limit: Duration, mut look: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Result<T, String>>>,
{
    let begin = Instant::now();
    loop {
        let seen = match look().await? {
            Ok(answer) => return Ok(answer),
            Err(seen) => seen,
        };
        if begin.elapsed() > limit {
            bail!("waited {} s for {what}; last seen: {seen}", limit.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
}

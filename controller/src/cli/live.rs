//! The objects of a live cluster, with only what decisions depend on.

use clap::Args;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodeOverlay, NodePool, conditions};
use kube::api::ListParams;
use kube::config::KubeConfigOptions;
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;

use crate::files::{Found, Objects, Origin, Redact};

/// Objects asked for at once, as kubectl does.
const PAGE: u32 = 500;

/// Says which cluster is asked.
#[derive(Args, Clone, Debug, Default)]
pub struct Cluster {
    /// Context of the kubeconfig; the current one without it. In a pod without a kubeconfig its service account is used.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

impl Cluster {
    /// Reads every object that decisions depend on.
    ///
    /// # Errors
    /// When there is no cluster to ask, or it does not answer.
    pub fn objects(&self) -> anyhow::Result<Objects> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(async {
            let config = match &self.context {
                Some(context) => {
                    let options = KubeConfigOptions { context: Some(context.clone()), ..KubeConfigOptions::default() };
                    Config::from_kubeconfig(&options).await?
                }
                None => Config::infer().await?,
            };
            objects(&Client::try_from(config)?).await
        })
    }
}

async fn objects(client: &Client) -> anyhow::Result<Objects> {
    let mut objects = Objects {
        nodes: list::<Node>(client).await?,
        claims: list::<NodeClaim>(client).await?,
        pools: list::<NodePool>(client).await?,
        classes: list::<Ec2NodeClass>(client).await?,
        overlays: list::<NodeOverlay>(client).await?,
        daemons: list::<DaemonSet>(client).await?,
        limit_ranges: list::<LimitRange>(client).await?,
        budgets: list::<PodDisruptionBudget>(client).await?,
        namespaces: list::<Namespace>(client).await?,
        volumes: list::<PersistentVolume>(client).await?,
        volume_claims: list::<PersistentVolumeClaim>(client).await?,
        storage_classes: list::<StorageClass>(client).await?,
        csi_nodes: list::<CSINode>(client).await?,
        priority_classes: list::<PriorityClass>(client).await?,
        pods: list::<Pod>(client).await?,
        ..Objects::default()
    };
    // those that its controller does not heed, or has left out, are of no effect
    objects.overlays.retain(|overlay| {
        let status = overlay.object.status.as_ref();
        status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
    });
    // what has ended holds nothing
    objects.pods.retain(|pod| {
        let phase = pod.object.status.as_ref().and_then(|status| status.phase.as_deref());
        !matches!(phase, Some("Succeeded" | "Failed"))
    });
    Ok(objects)
}

/// Lists a kind page by page; nothing when the cluster does not know the kind.
async fn list<K>(client: &Client) -> anyhow::Result<Vec<Found<K>>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Redact,
{
    let api = Api::<K>::all(client.clone());
    let origin = Origin::new("the cluster".as_ref());
    let mut all = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let listed = match api.list(&page).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(all),
            listed => listed.map_err(|error| anyhow::anyhow!("{} cannot be listed: {error}", K::plural(&())))?,
        };
        all.extend(
            listed.items.into_iter().map(|item| Found { object: Box::new(item.redacted()), origin: origin.clone() }),
        );
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(all),
        }
    }
}

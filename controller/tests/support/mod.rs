//! What the edge tests share: the cluster that they run on, whose turn it is there, and patience.

// Each test file is a crate of its own and uses its part of this.
#![allow(dead_code)]

pub mod account;
pub mod aws;
pub mod stand;

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use karp_domain::api::NodePool;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// How long any single step may take on a busy machine of two cores.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// The right to run a controller on the shared cluster: a controller acts on the whole of it, so tests take turns, whichever process
/// they are in. The lock lies beside the kubeconfig and ends with the process at the latest.
pub struct Turn(#[allow(dead_code)] File);

impl Turn {
    /// Waits for the turn on a cluster.
    pub async fn take(kubeconfig: &str) -> Self {
        let path = Path::new(kubeconfig).with_extension("controller-tests.lock");
        let waiting = tokio::task::spawn_blocking(move || {
            let file = File::create(&path).expect("the lock can be made");
            file.lock().expect("the lock can be taken");
            file
        });
        Self(waiting.await.expect("the turn comes"))
    }
}

/// Connects to a cluster.
pub async fn client(kubeconfig: &str) -> Client {
    let read = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.expect("a cluster");
    Client::try_from(config).expect("a client")
}

/// Installs the definitions and waits until the API server serves them.
pub async fn install(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in karp_domain::api::crds() {
        let params = PatchParams::apply("karp-test").force();
        crds.patch(&crd.name_any(), &params, &Patch::Apply(&crd)).await.expect("a definition is accepted");
    }
    let pools: Api<NodePool> = Api::all(client.clone());
    until("the definitions are served", async || pools.list(&ListParams::default()).await.is_ok()).await;
}

/// Creates an object given as JSON.
pub async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).expect("a readable object");
    api.create(&PostParams::default(), &object).await.expect("the API server accepts it")
}

/// Waits until something holds; panics with its name when it does not in time.
pub async fn until(what: &str, holds: impl AsyncFnMut() -> bool) {
    until_within(PATIENCE, what, holds).await;
}

/// The same with another patience.
pub async fn until_within(patience: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < patience, "{what}: not within {patience:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

//! What the edge tests share: the cluster that they run on, whose turn it is there, and patience.

// Each test file is a crate of its own and uses its part of this.
#![allow(dead_code)]

pub mod account;
pub mod aws;
pub mod play;
pub mod refusal;
pub mod stand;
pub mod sweep;

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool, labels};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

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

/// Has an object end, however busy the API server is.
pub async fn end<K>(api: &Api<K>, name: &str)
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    until("it is asked to end", async || match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => true,
        Err(error) => matches!(error, kube::Error::Api(status) if status.code == 404),
    })
    .await;
}

/// Returns the objects of a kind that belong to a pool.
pub async fn of_pool<K>(client: &Client, pool: &str) -> Vec<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let params = ListParams::default().labels(&format!("{}={pool}", labels::NODE_POOL));
    Api::<K>::all(client.clone()).list(&params).await.expect("a list").items
}

/// Takes the pool and the class of a name away, with a controller that runs, and waits until nothing of them is left.
pub async fn dismantle(client: &Client, name: &str) {
    let (pools, classes) = (Api::<NodePool>::all(client.clone()), Api::<Ec2NodeClass>::all(client.clone()));
    pools.delete(name, &DeleteParams::default()).await.expect("the pool is deleted");
    classes.delete(name, &DeleteParams::default()).await.expect("the class is deleted");
    until("pool and class are gone", async || {
        pools.get_opt(name).await.is_ok_and(|pool| pool.is_none())
            && classes.get_opt(name).await.is_ok_and(|class| class.is_none())
    })
    .await;
    assert!(of_pool::<NodeClaim>(client, name).await.is_empty(), "claims outlived their pool");
    assert!(of_pool::<Node>(client, name).await.is_empty(), "nodes outlived their pool");
}

/// Returns the spec of a pod that only fits the pools of one test.
pub fn pod_spec(test: &str, resources: &Value) -> Value {
    json!({
        "nodeSelector": { "karp-test": test },
        "tolerations": [{ "key": "karp-test", "value": test, "effect": "NoSchedule" }],
        "terminationGracePeriodSeconds": 1,
        "containers": [{ "name": "c", "image": "pause", "resources": resources }],
    })
}

/// Returns an address that the log of a controller names: `metrics` or `probes`.
pub fn address(log: &str, of: &str) -> String {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| line[of].as_str().map(str::to_owned)).next().expect("the log names the port")
}

/// Prints how long something took each time, shortest first; returns the 99th percentile.
pub fn told(what: &str, waits: &[Duration]) -> Duration {
    let at = |percent: usize| waits[(waits.len() * percent).div_ceil(100) - 1];
    println!("figure: {what}: p50 {:?}, p90 {:?}, p99 {:?}, worst {:?}", at(50), at(90), at(99), at(100));
    at(99)
}

//! The controller on a real control plane with simulated instances: pods get nodes and run, and nodes go when pods are gone.
//!
//! Runs when `KARP_TEST_KUBECONFIG` names a cluster whose fake nodes kwok plays; `cargo verify` starts one.

mod scale;
mod starved;
#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, PodTemplate};
use karp_domain::api::{CapacityBuffer, Ec2NodeClass, NodeClaim, NodeOverlay, NodePool, conditions, labels};
use karp_domain::lifecycle::is_true;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use support::account::account;
use support::{Turn, client, create, dismantle, install, of_pool, pod_spec, until, until_within};

/// A controller process and the names that this test uses, ended when dropped.
struct Stand {
    client: Client,
    controller: Option<Child>,
    /// A second one, where there is one.
    beside: Option<Child>,
    kubeconfig: PathBuf,
    log: PathBuf,
    name: String,
    _turn: Turn,
}

impl Drop for Stand {
    fn drop(&mut self) {
        // A panic in the test must not leave it behind.
        for controller in self.controller.iter_mut().chain(&mut self.beside) {
            let _ = controller.kill();
            let _ = controller.wait();
        }
    }
}

async fn stand(purpose: &str) -> Option<Stand> {
    stand_with(purpose, "").await
}

/// Waits of tests that look at a few nodes.
const IMPATIENT: [(&str, &str); 2] = [("KARP_CONSOLIDATION_VALIDATION", "2s"), ("KARP_DISRUPTION_POLL", "2s")];

/// What the log says of things that a controller did.
const EFFECTS: [&str; 4] = ["created nodeclaim", "launched nodeclaim", "registered nodeclaim", "initialized nodeclaim"];

/// Each test has a lease of its own, so that none waits until a killed controller's has run out.
fn lease(name: &str) -> String {
    format!("karp-test-{name}")
}

/// Starts a controller with some feature gates against the cluster, or says why not.
async fn stand_with(purpose: &str, gates: &str) -> Option<Stand> {
    stand_as(purpose, &[IMPATIENT.as_slice(), &[("FEATURE_GATES", gates)]].concat()).await
}

/// Starts a controller with these settings against the cluster, or says why not.
async fn stand_as(purpose: &str, settings: &[(&str, &str)]) -> Option<Stand> {
    let mut stand = Stand::open(purpose).await?;
    stand.start(settings);
    Some(stand)
}

impl Stand {
    /// Makes room for a test, or says why not. No controller runs yet.
    async fn open(purpose: &str) -> Option<Self> {
        let Ok(kubeconfig) = std::env::var("KARP_TEST_KUBECONFIG") else {
            println!("skipped: KARP_TEST_KUBECONFIG names no cluster (cargo verify starts one)");
            return None;
        };
        let turn = Turn::take(&kubeconfig).await;
        let client = client(&kubeconfig).await;
        let name = format!("{purpose}-{}", std::process::id());
        install(&client).await;
        let namespace = json!({ "metadata": { "name": name } });
        create::<Namespace>(&Api::all(client.clone()), namespace).await;
        let kubeconfig = account(&client, &kubeconfig, &name, &lease(&name)).await;
        let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.log"));
        Some(Self { client, controller: None, beside: None, kubeconfig, log, name, _turn: turn })
    }

    fn start(&mut self, settings: &[(&str, &str)]) {
        self.controller = Some(self.run(&self.log, settings));
    }

    /// Starts a controller that logs to a file.
    fn run(&self, log: &Path, settings: &[(&str, &str)]) -> Child {
        // What is measured may be a build as it is published.
        let published = std::env::var_os("KARP_FIGURES_BIN").map(|folder| Path::new(&folder).join("karp"));
        Command::new(published.unwrap_or_else(|| env!("CARGO_BIN_EXE_karp").into()))
            .args(["controller", "--cloud=simulated", "--metrics-port=0", "--health-probe-port=0"])
            .args(["--leader-election-name", &lease(&self.name), "--leader-election-namespace", &self.name])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KARP_LISTEN_ADDRESS", "127.0.0.1")
            .envs(settings.iter().copied())
            .stdout(File::create(log).expect("a log"))
            .spawn()
            .expect("the controller starts")
    }

    /// What the controller has written so far.
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log")
    }

    fn process(&self) -> u32 {
        self.controller.as_ref().expect("it runs").id()
    }

    /// Makes a class and a pool for this test's pods alone: by a taint and a label.
    async fn pool(&self) {
        self.pool_of(json!({})).await;
    }

    /// The same with more in its spec.
    async fn pool_of(&self, more: Value) {
        let name = &self.name;
        let class = json!({
            "metadata": { "name": name },
            "spec": {
                "role": "node",
                "amiSelectorTerms": [{ "alias": "al2023@latest" }],
                "subnetSelectorTerms": [{ "tags": { "karpenter.sh/discovery": "test" } }],
                "securityGroupSelectorTerms": [{ "tags": { "karpenter.sh/discovery": "test" } }],
            },
        });
        create::<Ec2NodeClass>(&Api::all(self.client.clone()), class).await;
        let mut pool = json!({
            "metadata": { "name": name },
            "spec": {
                "template": self.template(labels::INSTANCE_CATEGORY, &["c", "m"]),
                "disruption": { "consolidateAfter": "1s", "budgets": [{ "nodes": "100%" }] },
            },
        });
        more.as_object().expect("fields").iter().for_each(|(field, value)| pool["spec"][field] = value.clone());
        create::<NodePool>(&Api::all(self.client.clone()), pool).await;
    }

    /// The template of this test's pool: nodes bought on demand that have one of some values of a label.
    fn template(&self, key: &str, values: &[&str]) -> Value {
        let name = &self.name;
        json!({
            "metadata": { "labels": { "karp-test": name } },
            "spec": {
                "nodeClassRef": { "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": name },
                "taints": [{ "key": "karp-test", "value": name, "effect": "NoSchedule" }],
                "requirements": [
                    { "key": labels::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"] },
                    { "key": key, "operator": "In", "values": values },
                ],
            },
        })
    }

    /// Makes a Deployment whose pods only fit this test's pool.
    async fn deployment(&self, replicas: u32, cpu: &str) {
        self.deployment_of(replicas, json!({ "requests": { "cpu": cpu } })).await;
    }

    /// The same with pods that ask for more than CPU.
    async fn deployment_of(&self, replicas: u32, resources: Value) {
        let name = &self.name;
        let deployment = json!({
            "metadata": { "name": "inflate", "namespace": name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": "inflate" } },
                "template": {
                    "metadata": { "labels": { "app": "inflate" } },
                    "spec": pod_spec(name, &resources),
                },
            },
        });
        create::<Deployment>(&Api::namespaced(self.client.clone(), name), deployment).await;
    }

    async fn scale(&self, replicas: u32) {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &self.name);
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        api.patch("inflate", &PatchParams::default(), &patch).await.expect("the deployment scales");
    }

    async fn running(&self) -> usize {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.name);
        let pods = api.list(&ListParams::default()).await.expect("pods").items;
        let runs = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        pods.iter().filter(|pod| runs(pod) && pod.metadata.deletion_timestamp.is_none()).count()
    }

    async fn mine<K>(&self) -> Vec<K>
    where
        K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        of_pool(&self.client, &self.name).await
    }

    /// Takes the pool and class away and waits until nothing is left.
    async fn leave(self) {
        dismantle(&self.client, &self.name).await;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.delete(&self.name, &DeleteParams::default()).await.expect("the namespace is deleted");
    }
}

#[tokio::test]
async fn pods_get_nodes_and_nodes_go_with_their_pods() {
    let Some(stand) = stand("life").await else { return };
    stand.pool().await;
    stand.deployment(5, "1").await;
    until("five pods run", async || stand.running().await == 5).await;

    let claims = stand.mine::<NodeClaim>().await;
    let nodes = stand.mine::<Node>().await;
    assert!(!nodes.is_empty() && nodes.len() == claims.len(), "{} nodes for {} claims", nodes.len(), claims.len());
    until("claims are ready", async || {
        let claims = stand.mine::<NodeClaim>().await;
        claims.iter().all(|claim| {
            claim.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
        })
    })
    .await;
    for claim in &claims {
        for label in [labels::INSTANCE_TYPE, labels::ZONE, labels::CAPACITY_TYPE] {
            assert!(claim.labels().contains_key(label), "{} has no {label}", claim.name_any());
        }
        assert!(claim.annotations().contains_key("karp.sh/launch-attempt"), "the attempt was not recorded");
        assert!(claim.finalizers().contains(&labels::TERMINATION_FINALIZER.to_owned()));
    }

    stand.scale(0).await;
    until("empty nodes go", async || {
        stand.mine::<Node>().await.is_empty() && stand.mine::<NodeClaim>().await.is_empty()
    })
    .await;
    stand.leave().await;
}

/// A large pod and small ones that could fill its node: each is nominated to the node that is made for it.
#[tokio::test]
async fn pods_that_compete_are_nominated() {
    let Some(stand) = stand("compete").await else { return };
    let pods: Api<Pod> = Api::namespaced(stand.client.clone(), &stand.name);
    let mut changes = Box::pin(watcher(pods.clone(), watcher::Config::default()).default_backoff().touched_objects());
    let seen = tokio::spawn(async move {
        loop {
            let pod = changes.try_next().await.expect("a watch that goes on").expect("no end");
            if pod.status.is_some_and(|status| status.nominated_node_name.is_some()) {
                return pod.metadata.name;
            }
        }
    });
    stand.deployment(5, "1").await;
    let large = pod_spec(&stand.name, &json!({ "requests": { "cpu": "6" } }));
    create::<Pod>(&pods, json!({ "metadata": { "name": "large" }, "spec": large })).await;
    // all of them wait when there is a pool
    stand.pool().await;
    until("all pods run", async || stand.running().await == 6).await;
    until("one was nominated", async || seen.is_finished()).await;
    stand.scale(0).await;
    pods.delete("large", &DeleteParams::default()).await.expect("the pod is deleted");
    stand.leave().await;
}

#[tokio::test]
async fn a_shrunk_workload_moves_to_cheaper_nodes() {
    let Some(stand) = stand("shrink").await else { return };
    stand.pool().await;
    stand.deployment(8, "1800m").await;
    until("eight pods run", async || stand.running().await == 8).await;
    let capacity = async || -> i64 {
        let cpu = |node: &Node| node.status.as_ref()?.capacity.as_ref()?.get("cpu")?.0.parse::<i64>().ok();
        stand.mine::<Node>().await.iter().filter_map(cpu).sum()
    };
    let before = capacity().await;
    stand.scale(1).await;
    until("the cluster shrinks", async || {
        stand.running().await == 1 && stand.mine::<Node>().await.len() == 1 && capacity().await < before
    })
    .await;
    assert!(capacity().await <= 4, "one pod of 1.8 CPU keeps {} CPU", capacity().await);
    stand.leave().await;
}

#[tokio::test]
async fn a_pool_is_deleted_with_its_nodes_running() {
    let Some(stand) = stand("end").await else { return };
    stand.pool().await;
    stand.deployment(2, "1").await;
    until("two pods run", async || stand.running().await == 2).await;
    let nodes: BTreeMap<String, String> =
        stand.mine::<Node>().await.iter().map(|node| (node.name_any(), node.uid().unwrap_or_default())).collect();
    assert!(!nodes.is_empty());
    stand.leave().await;
}

#[tokio::test]
async fn room_is_kept_for_a_buffer_as_long_as_it_is_there() {
    let Some(stand) = stand_with("buffer", "CapacityBuffer=true").await else { return };
    stand.pool().await;
    let name = &stand.name;
    let buffers: Api<CapacityBuffer> = Api::namespaced(stand.client.clone(), name);
    let buffer =
        json!({ "metadata": { "name": "room" }, "spec": { "podTemplateRef": { "name": "room" }, "replicas": 2 } });
    create::<CapacityBuffer>(&buffers, buffer).await;
    let told = async |buffer: &str, kind: &str| -> Option<String> {
        let status = buffers.get(buffer).await.ok()?.status?;
        conditions::get(&status.conditions, kind).map(|condition| condition.reason.clone())
    };
    let reason = async |kind: &str| told("room", kind).await;
    until("a missing template is told", async || {
        reason("ReadyForProvisioning").await.as_deref() == Some("PodTemplateNotFound")
    })
    .await;
    // workloads are looked for in the same way
    for kind in ["Deployment", "ReplicaSet", "StatefulSet"] {
        let name = kind.to_lowercase();
        let scalable = json!({ "apiGroup": "apps", "kind": kind, "name": "missing" });
        let spec = json!({ "scalableRef": scalable, "percentage": 50 });
        create::<CapacityBuffer>(&buffers, json!({ "metadata": { "name": name }, "spec": spec })).await;
        until("a missing workload is told", async || told(&name, "ReadyForProvisioning").await.is_some()).await;
        buffers.delete(&name, &DeleteParams::default()).await.expect("the buffer is deleted");
    }
    let template = json!({ "metadata": { "name": "room" }, "template": { "spec": {
        "nodeSelector": { "karp-test": name },
        "tolerations": [{ "key": "karp-test", "value": name, "effect": "NoSchedule" }],
        "containers": [{ "name": "c", "image": "pause", "resources": { "requests": { "cpu": "1" } } }],
    } } });
    create::<PodTemplate>(&Api::namespaced(stand.client.clone(), name), template).await;
    until("room is there", async || reason("Provisioning").await.as_deref() == Some("FitsExistingCapacity")).await;
    let nodes = async || -> Vec<String> { stand.mine::<Node>().await.iter().map(ResourceExt::name_any).collect() };
    let before = nodes().await;
    assert!(!before.is_empty());
    // an empty node would go in a few seconds
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(nodes().await, before, "room was taken away");
    // a pod that comes takes the room at once, and new room is made
    stand.deployment(2, "1").await;
    until("the pods run on it and there is room again", async || {
        let there = nodes().await;
        stand.running().await == 2 && there.len() > before.len() && before.iter().all(|node| there.contains(node))
    })
    .await;
    stand.scale(0).await;
    buffers.delete("room", &DeleteParams::default()).await.expect("the buffer is deleted");
    until("the room goes with the buffer", async || nodes().await.is_empty()).await;
    stand.leave().await;
}

#[tokio::test]
async fn overlays_decide_what_a_pool_buys() {
    const FUSE: &str = "example.com/fuse";
    let Some(stand) = stand_with("overlay", "NodeOverlay=true").await else { return };
    stand.pool().await;
    let overlays: Api<NodeOverlay> = Api::all(stand.client.clone());
    let name = |purpose: &str| format!("{}-{purpose}", stand.name);
    let overlay = async |purpose: &str, spec: Value| {
        let mut all = json!({ "metadata": { "name": name(purpose) }, "spec": spec });
        all["spec"]["requirements"] = json!([
            { "key": labels::NODE_POOL, "operator": "In", "values": [stand.name] },
            { "key": labels::INSTANCE_TYPE, "operator": "In", "values": ["m7i.4xlarge"] },
        ]);
        create::<NodeOverlay>(&overlays, all).await;
    };
    let ready = async |purpose: &str| {
        let status = overlays.get(&name(purpose)).await.ok()?.status?;
        let said = conditions::get(&status.conditions, conditions::VALIDATION_SUCCEEDED)?;
        Some((conditions::is_true(&status.conditions, conditions::READY), said.reason.clone()))
    };
    // of equal weight: the later name holds
    overlay("a", json!({ "price": "9" })).await;
    overlay("b", json!({ "priceAdjustment": "-99%", "capacity": { FUSE: "20" } })).await;
    until("one of two overlays holds", async || {
        let both = (ready("a").await, ready("b").await);
        both == (Some((false, "Conflict".to_owned())), Some((true, conditions::VALIDATION_SUCCEEDED.to_owned())))
    })
    .await;
    stand.deployment_of(1, json!({ "requests": { "cpu": "500m" }, "limits": { FUSE: "1" } })).await;
    until("the pod runs", async || stand.running().await == 1).await;
    let claims = stand.mine::<NodeClaim>().await;
    let [claim] = claims.as_slice() else { panic!("{} claims", claims.len()) };
    assert_eq!(claim.labels()[labels::INSTANCE_TYPE], "m7i.4xlarge");
    assert_eq!(claim.annotations()[labels::PRICE_OVERLAY_APPLIED], "true");
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref()).expect("a capacity");
    assert_eq!(capacity.get(FUSE).to_string(), "20");
    // at what the pool pays nothing is cheaper, whatever the list says
    tokio::time::sleep(Duration::from_secs(10)).await;
    let kept: Vec<String> = stand.mine::<NodeClaim>().await.iter().map(ResourceExt::name_any).collect();
    assert_eq!(kept, [claim.name_any()]);
    overlays.delete(&name("b"), &DeleteParams::default()).await.expect("deleted");
    until("the other one holds now", async || {
        ready("a").await == Some((true, conditions::VALIDATION_SUCCEEDED.to_owned()))
    })
    .await;
    overlays.delete(&name("a"), &DeleteParams::default()).await.expect("deleted");
    stand.scale(0).await;
    stand.leave().await;
}

#[tokio::test]
async fn the_tool_asks_a_live_cluster() {
    let Some(stand) = stand("tool").await else { return };
    stand.pool_of(json!({ "disruption": { "consolidateAfter": "Never", "budgets": [{ "nodes": "100%" }] } })).await;
    stand.deployment(2, "1").await;
    until("two pods run", async || stand.running().await == 2).await;
    let (name, pods) = (&stand.name, Api::<Pod>::namespaced(stand.client.clone(), &stand.name));
    let huge = json!({
        "metadata": { "name": "huge", "namespace": name },
        "spec": {
            "nodeSelector": { "karp-test": name },
            "tolerations": [{ "key": "karp-test", "value": name, "effect": "NoSchedule" }],
            "containers": [{ "name": "c", "image": "pause", "resources": { "requests": { "cpu": "10000" } },
                "env": [{ "name": "PASSWORD", "value": "hunter2" }] }],
        },
    });
    create::<Pod>(&pods, huge).await;
    until("kube-scheduler has looked at it", async || {
        let pod = pods.get("huge").await.expect("the pod");
        pod.status
            .and_then(|status| status.conditions)
            .is_some_and(|all| all.iter().any(|one| one.type_ == "PodScheduled"))
    })
    .await;

    let node = stand.mine::<Node>().await.remove(0).name_any();
    let (code, text) = karp(&["explain", "node", &node, "-o", "json"]);
    let report: Value = serde_json::from_str(&text).expect("a report");
    assert_eq!((code, &report["node"], &report["nodePool"]), (0, &json!(node), &json!(name)), "{text}");
    assert!(report["nodeClaim"].is_string() && report["outcome"]["kind"].is_string(), "{text}");
    let (code, text) = karp(&["explain", "node", &node]);
    assert!(code == 0 && text.starts_with(&node), "{text}");

    let key = format!("{name}/huge");
    let (code, text) = karp(&["explain", "pod", &key]);
    assert!(code == 2 && text.contains(&key) && text.contains(name.as_str()) && text.contains("cpu"), "{code}: {text}");

    let file = std::env::temp_dir().join(format!("karp-{name}.json.gz"));
    let path = file.to_str().expect("a path");
    assert_eq!(karp(&["snapshot", "-o", path]).0, 0);
    let (code, text) = karp(&["simulate", "-f", path, "-o", "json"]);
    let answer: Value = serde_json::from_str(&text).expect("an answer");
    let refused = answer["unschedulable"].as_array().expect("a list");
    assert!(code == 2 && refused.iter().any(|one| one["pod"] == json!(key)), "{code}: {text}");
    let (code, text) = karp(&["simulate", "--disrupt", "-f", path, "-o", "json"]);
    let answer: Value = serde_json::from_str(&text).expect("an answer");
    let mut kept = answer["kept"].as_array().expect("a list").iter();
    let stays =
        |kept: &Value| kept["node"] == json!(node) && kept["reason"].as_str().is_some_and(|why| !why.is_empty());
    assert!(code == 0 && kept.any(stays), "a pool that never consolidates keeps its node, {code}: {text}");
    let packed = std::fs::read(&file).expect("the snapshot");
    std::fs::remove_file(&file).expect("the snapshot goes");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed[..]), &mut text).expect("text");
    assert!(text.contains(name.as_str()) && !text.contains("hunter2"), "a snapshot keeps no environment");
    pods.delete("huge", &DeleteParams::default()).await.expect("the pod is deleted");
    stand.leave().await;
}

/// Runs the tool against the test's cluster; returns its exit code and what it wrote.
fn karp(arguments: &[&str]) -> (i32, String) {
    let kubeconfig = std::env::var("KARP_TEST_KUBECONFIG").expect("a cluster");
    let mut command = Command::new(env!("CARGO_BIN_EXE_karp"));
    let done = command.args(arguments).env("KUBECONFIG", kubeconfig).output().expect("the tool runs");
    assert!(done.status.code().is_some_and(|code| code != 1), "{}", String::from_utf8_lossy(&done.stderr));
    (done.status.code().unwrap_or(-1), String::from_utf8_lossy(&done.stdout).into_owned())
}

#[tokio::test]
async fn a_node_that_is_ill_is_replaced_whatever_pods_and_budgets_say() {
    let Some(stand) = stand_with("repair", "NodeRepair=true").await else { return };
    stand.pool_of(json!({ "disruption": { "consolidateAfter": "Never", "budgets": [{ "nodes": "0" }] } })).await;
    stand.deployment(1, "1").await;
    until("the pod runs", async || stand.running().await == 1).await;
    let pods: Api<Pod> = Api::namespaced(stand.client.clone(), &stand.name);
    let pod = pods.list(&ListParams::default()).await.expect("pods").items.remove(0).name_any();
    let mine = Patch::Merge(json!({ "metadata": { "annotations": { (labels::DO_NOT_DISRUPT): "true" } } }));
    pods.patch(&pod, &PatchParams::default(), &mine).await.expect("the pod is annotated");

    // what EKS's node monitoring agent would say, for long enough
    let nodes: Api<Node> = Api::all(stand.client.clone());
    let ill = stand.mine::<Node>().await.remove(0);
    let since = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(11);
    let told = json!([{ "type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXIDError", "message": "xid 79",
        "lastTransitionTime": format!("{since:.0}"), "lastHeartbeatTime": format!("{since:.0}") }]);
    let told = Patch::Strategic(json!({ "status": { "conditions": told } }));
    nodes.patch_status(&ill.name_any(), &PatchParams::default(), &told).await.expect("the condition is set");
    until("another node has its pod", async || {
        let all = pods.list(&ListParams::default()).await.expect("pods").items;
        all.iter().any(|pod| {
            let runs = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            runs && pod.metadata.deletion_timestamp.is_none() && node.is_some_and(|node| node != ill.name_any())
        })
    })
    .await;
    until("the node that was ill is gone", async || {
        stand.mine::<Node>().await.iter().all(|node| node.uid() != ill.uid())
    })
    .await;
    stand.leave().await;
}

#[tokio::test]
async fn a_static_pool_has_its_replicas_whatever_pods_there_are() {
    let Some(stand) = stand_with("static", "StaticCapacity=true").await else { return };
    stand.pool_of(json!({ "replicas": 3 })).await;
    let nodes = async || stand.mine::<Node>().await.len();
    until("three nodes are there", async || nodes().await == 3).await;
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!((nodes().await, stand.mine::<NodeClaim>().await.len()), (3, 3), "more or fewer than replicas");
    let pools: Api<NodePool> = Api::all(stand.client.clone());
    let one = Patch::Merge(json!({ "spec": { "replicas": 1 } }));
    pools.patch(&stand.name, &PatchParams::default(), &one).await.expect("the pool is scaled");
    until("two of them go", async || nodes().await == 1).await;
    until("the pool's conditions tell of its changed spec", async || {
        let pool = pools.get(&stand.name).await.expect("the pool");
        let all = pool.status.unwrap_or_default().conditions;
        !all.is_empty() && all.iter().all(|condition| condition.observed_generation == pool.metadata.generation)
    })
    .await;
    stand.leave().await;
}

#[tokio::test]
async fn a_static_pool_is_renewed_one_for_one() {
    let Some(stand) = stand_with("renewed", "StaticCapacity=true").await else { return };
    stand.pool_of(json!({ "replicas": 2 })).await;
    let names = async || -> BTreeSet<String> { stand.mine::<Node>().await.iter().map(ResourceExt::name_any).collect() };
    let ready = async || {
        let claims = stand.mine::<NodeClaim>().await;
        let is_ready = |claim: &NodeClaim| is_true(claim, conditions::INITIALIZED);
        claims.iter().filter(|claim| is_ready(claim) && claim.metadata.deletion_timestamp.is_none()).count()
    };
    until("two nodes are ready", async || ready().await == 2).await;
    let old = names().await;
    let pools: Api<NodePool> = Api::all(stand.client.clone());
    let edit = json!({ "spec": { "template": { "metadata": { "labels": { "generation": "two" } } } } });
    pools.patch(&stand.name, &PatchParams::default(), &Patch::Merge(edit)).await.expect("the template is changed");
    let (mut fewest, mut most) = (usize::MAX, 0);
    until_within(Duration::from_secs(240), "both nodes are others", async || {
        let now = names().await;
        (fewest, most) = (fewest.min(ready().await), most.max(now.len()));
        now.len() == 2 && now.is_disjoint(&old)
    })
    .await;
    assert!(fewest >= 2 && most <= 4, "{fewest} were ready at the least, {most} there at the most");
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!((ready().await, stand.mine::<NodeClaim>().await.len()), (2, 2), "more or fewer than replicas");
    let labelled = |node: &Node| node.labels().get("generation").is_some_and(|value| value == "two");
    assert!(stand.mine::<Node>().await.iter().all(labelled), "they are made by the new template");
    stand.leave().await;
}

#[tokio::test]
async fn a_second_controller_waits_for_the_lease_and_takes_it_when_it_is_released() {
    let Some(mut stand) = stand("lease").await else { return };
    let leases: Api<Lease> = Api::namespaced(stand.client.clone(), &stand.name);
    let lease = lease(&stand.name);
    let holder = async || -> Option<String> {
        leases.get_opt(&lease).await.ok()??.spec?.holder_identity.filter(|holder| !holder.is_empty())
    };
    until("the first leads", async || holder().await.is_some()).await;
    let first = holder().await;
    let kubeconfig = std::env::var("KARP_TEST_KUBECONFIG").expect("a cluster");
    let mut second = Command::new(env!("CARGO_BIN_EXE_karp"))
        .args(["controller", "--cloud=simulated", "--metrics-port=0", "--health-probe-port=0"])
        .args(["--leader-election-name", &lease, "--leader-election-namespace", "default"])
        .env("KUBECONFIG", account(&stand.client, &kubeconfig, "default", &lease).await)
        .env("KARP_LISTEN_ADDRESS", "127.0.0.1")
        .stdout(Stdio::null())
        .spawn()
        .expect("a second controller starts");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(holder().await, first, "the first still leads");
    let elsewhere: Api<Lease> = Api::namespaced(stand.client.clone(), "default");
    let taken = elsewhere.get_opt(&lease).await.expect("an answer");
    // Asserted after the second process is ended, so that it never stays behind.
    let pid = stand.process().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
    let released = Instant::now();
    let code = stand.controller.take().expect("it runs").wait().expect("the first ends");
    let took = released.elapsed();
    let mut led = false;
    for _ in 0..100 {
        led = elsewhere.get_opt(&lease).await.ok().flatten().is_some();
        if led {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let _ = second.kill();
    let _ = second.wait();
    let _ = elsewhere.delete(&lease, &DeleteParams::default()).await;
    assert!(taken.is_none(), "a controller was doubled in another namespace");
    assert!(code.success() && took < Duration::from_secs(25), "clean end: {code} after {took:?}");
    assert!(led, "the second did not take over after the release");
    let namespaces: Api<Namespace> = Api::all(stand.client.clone());
    namespaces.delete(&stand.name, &DeleteParams::default()).await.expect("the namespace is deleted");
}

/// A leader sleeps for longer than its lease lives, and another works meanwhile: awake again, it writes nothing and ends.
#[tokio::test]
async fn a_leader_that_slept_does_nothing_when_it_wakes() {
    let Some(mut stand) = stand("asleep").await else { return };
    let leases: Api<Lease> = Api::namespaced(stand.client.clone(), &stand.name);
    let name = lease(&stand.name);
    let holder = async || -> Option<String> {
        let lease = leases.get_opt(&name).await.ok()??;
        lease.spec?.holder_identity.filter(|holder| !holder.is_empty())
    };
    stand.pool().await;
    stand.deployment(1, "1").await;
    until("the pod runs", async || stand.running().await == 1).await;
    let first = holder().await.expect("the first leads");
    let log = stand.log.with_extension("second.log");
    stand.beside = Some(stand.run(&log, &IMPATIENT));
    let process = stand.process().to_string();
    let signal = |name: &str| {
        let done = Command::new("kill").args([name, &process]).status().expect("kill runs");
        assert!(done.success(), "{done}");
    };
    signal("-STOP");
    let asleep = stand.log().len();
    until("the second leads", async || holder().await.is_some_and(|now| now != first)).await;
    let leads = holder().await;
    // more pods than the node of the first has room for
    stand.scale(12).await;
    until("the second's nodes run them", async || stand.running().await == 12).await;
    let claims = async |stand: &Stand| -> BTreeSet<String> {
        stand.mine::<NodeClaim>().await.iter().filter_map(ResourceExt::uid).collect()
    };
    let before = claims(&stand).await;
    assert!(before.len() > 1, "the second launched nothing: {before:?}");
    signal("-CONT");
    let mut first = stand.controller.take().expect("it was there");
    std::mem::swap(&mut stand.controller, &mut stand.beside);
    let mut code = None;
    until("it ends", async || {
        code = first.try_wait().expect("it is a child");
        code.is_some()
    })
    .await;
    assert!(code.is_some_and(|code| !code.success()), "nobody asked it to end: {code:?}");
    let log = stand.log();
    let awake = &log[asleep..];
    assert!(awake.contains("leader election lost"), "{awake}");
    let did = |line: &&str| EFFECTS.iter().any(|effect| line.contains(effect));
    assert_eq!(awake.lines().filter(did).collect::<Vec<_>>(), [""; 0], "it acted after its sleep");
    assert_eq!((claims(&stand).await, holder().await), (before, leads), "the second leads on, undisturbed");
    stand.leave().await;
}

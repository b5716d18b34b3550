//! A controller on the emulated AWS with a pool, a class and a namespace of its own; or such a place beside others, with a controller that
//! works for all of them.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool, conditions, labels};
use karp_kube::rbac::LEASE;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::account::account;
use super::aws::{Aws, exchange, is_ending};
use super::sweep::sweep;
use super::{Turn, address, client, create, dismantle, install, of_pool, pod_spec, until};

/// The names and processes of one test; what runs is ended when dropped, and what was not taken away before is then.
pub struct Stand {
    pub client: Client,
    pub aws: Arc<Aws>,
    /// Names pool, class and namespace; of a host lease, queue and profile, too.
    pub name: String,
    /// Names the stand whose controller works for this one: itself, if it is nobody's guest.
    host: String,
    /// Of the account that the controller runs under.
    kubeconfig: PathBuf,
    /// Of the session at AWS that it runs in.
    keys: [(&'static str, String); 3],
    controller: Option<Child>,
    starts: u32,
    /// Nothing of it is left in the cluster.
    left: bool,
    /// Guests are there while it is their host's turn.
    _turn: Option<Turn>,
}

impl Drop for Stand {
    fn drop(&mut self) {
        // A panic in the test must not leave it behind, nor a fault or an object for the next one.
        if let Some(mut controller) = self.controller.take() {
            let _ = controller.kill();
            let _ = controller.wait();
        }
        if self.host == self.name {
            self.aws.forgive();
        }
        if !self.left {
            sweep(&self.aws, &self.name);
        }
    }
}

impl Stand {
    /// Makes room for a test, or says why not. No controller runs yet.
    pub async fn open(purpose: &str) -> Option<Self> {
        let value = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let found = (value("KARP_TEST_KUBECONFIG"), value("KARP_TEST_AWS_ENDPOINT"), value("KARP_TEST_CLUSTER"));
        let (Some(kubeconfig), Some(endpoint), Some(cluster)) = found else {
            println!(
                "skipped: KARP_TEST_KUBECONFIG, _AWS_ENDPOINT and _CLUSTER name no sandbox (cargo verify starts one)"
            );
            return None;
        };
        let turn = Turn::take(&kubeconfig).await;
        let client = client(&kubeconfig).await;
        install(&client).await;
        let name = format!("{purpose}-{}", std::process::id());
        let aws = Arc::new(Aws::prepare(endpoint, cluster, &name).await);
        create::<Namespace>(&Api::all(client.clone()), json!({ "metadata": { "name": name } })).await;
        let kubeconfig = account(&client, &kubeconfig, &name, LEASE).await;
        let keys = aws.controller().await;
        let stand = Self {
            client,
            aws,
            host: name.clone(),
            name,
            kubeconfig,
            keys,
            controller: None,
            starts: 0,
            left: false,
            _turn: Some(turn),
        };
        stand.class().await;
        Some(stand)
    }

    /// Makes room for a test beside others, for which the controller of this stand works, too. It must have been started, and goes on.
    pub async fn guest(&self, purpose: &str) -> Self {
        let name = format!("{purpose}-{}", std::process::id());
        create::<Namespace>(&Api::all(self.client.clone()), json!({ "metadata": { "name": name } })).await;
        let guest = Self {
            client: self.client.clone(),
            aws: self.aws.clone(),
            name,
            host: self.host.clone(),
            kubeconfig: self.kubeconfig.clone(),
            keys: self.keys.clone(),
            controller: None,
            starts: self.starts,
            left: false,
            _turn: None,
        };
        guest.class().await;
        guest
    }

    /// Starts the controller, under the lease's real name.
    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    /// The same with more in its environment.
    pub fn start_with(&mut self, more: &[(&str, &str)]) {
        assert!(self.controller.is_none() && self.host == self.name, "one at a time");
        self.starts += 1;
        let log = File::create(self.log_file()).expect("a log");
        let mut command = self.karp();
        command
            .args(["controller", "--metrics-port=0", "--health-probe-port=0"])
            .args(["--cluster-name", &self.aws.cluster, "--interruption-queue", &self.aws.queue])
            .args(["--leader-election-namespace", &self.name])
            .env("KUBECONFIG", &self.kubeconfig)
            .envs(self.keys.clone())
            .env("KARP_LISTEN_ADDRESS", "127.0.0.1")
            .env("KARP_RESERVATION_POLL", "5s")
            .env("KARP_INSTANCE_STATUS_POLL", "2s")
            .envs(more.iter().copied())
            .stdout(log.try_clone().expect("the log"))
            .stderr(log);
        self.controller = Some(command.spawn().expect("the controller starts"));
    }

    fn log_file(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{}.log", self.host, self.starts))
    }

    /// Returns the access key that the controller signs with: the caller in the emulator's log.
    pub fn key(&self) -> &str {
        &self.keys[0].1
    }

    /// Returns what must stay between the controller, AWS and the API server, each with its name.
    pub fn secrets(&self) -> Vec<(&'static str, String)> {
        let text = std::fs::read_to_string(&self.kubeconfig).expect("the kubeconfig");
        let config: Value = serde_json::from_str(&text).expect("it is written as JSON");
        let token = config["users"][0]["user"]["token"].as_str().expect("a token").to_owned();
        self.keys[1..].iter().cloned().chain([("token of the account", token)]).collect()
    }

    /// Returns what the controller that was started last has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).expect("the log")
    }

    /// Kills the controller as a crash would.
    pub fn crash(&mut self) {
        let mut controller = self.controller.take().expect("it runs");
        controller.kill().expect("it is killed");
        controller.wait().expect("it ends");
    }

    /// Ends the controller as the kubelet would.
    pub fn terminate(&mut self) -> ExitStatus {
        let mut controller = self.controller.take().expect("it runs");
        Command::new("kill").args(["-TERM", &controller.id().to_string()]).status().expect("kill runs");
        controller.wait().expect("it ends")
    }

    /// Runs the operator's tool as the cluster's administrator.
    pub fn tool(&self, arguments: &[&str]) -> Output {
        let mut command = self.karp();
        command.args(arguments);
        command.env("KUBECONFIG", std::env::var("KARP_TEST_KUBECONFIG").expect("the sandbox's kubeconfig"));
        command.output().expect("the tool runs")
    }

    /// The program, with the emulated AWS around it.
    fn karp(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_karp"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AWS_")) {
            command.env_remove(name);
        }
        command
            .env("AWS_ENDPOINT_URL", &self.aws.endpoint)
            .env("AWS_REGION", &self.aws.region)
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_CONFIG_FILE", "/dev/null")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            .stdin(Stdio::null());
        command
    }

    /// Returns the controller's metrics as text.
    pub fn metrics(&self) -> String {
        exchange(&address(&self.log(), "metrics"), "GET", "/metrics", &[], "")
    }

    async fn class(&self) {
        let by_id = |key: &str| -> Vec<Value> {
            let ids = self.aws.seed[key].as_array().expect("ids");
            ids.iter().map(|id| json!({ "id": id })).collect()
        };
        let class = json!({
            "metadata": { "name": self.name },
            "spec": {
                "instanceProfile": self.aws.profile,
                "amiSelectorTerms": [{ "alias": "al2023@latest" }],
                "subnetSelectorTerms": by_id("subnet_ids"),
                "securityGroupSelectorTerms": by_id("security_group_ids"),
            },
        });
        create::<Ec2NodeClass>(&Api::all(self.client.clone()), class).await;
    }

    /// Returns the manifest of a pool for this test's pods alone.
    pub fn pool_manifest(&self, name: &str, class: &str, capacity_types: &[&str]) -> Value {
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
            "metadata": { "name": name },
            "spec": {
                "template": {
                    "metadata": { "labels": { "karp-test": self.name } },
                    "spec": {
                        "nodeClassRef": { "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": class },
                        "taints": [{ "key": "karp-test", "value": self.name, "effect": "NoSchedule" }],
                        "requirements": [
                            { "key": labels::CAPACITY_TYPE, "operator": "In", "values": capacity_types },
                            { "key": labels::ARCH, "operator": "In", "values": ["amd64"] },
                            { "key": labels::INSTANCE_CATEGORY, "operator": "In", "values": ["c", "m"] },
                        ],
                    },
                },
                // These tests end nodes for other reasons.
                "disruption": { "consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never" },
            },
        })
    }

    /// Makes this test's pool.
    pub async fn pool(&self, capacity_types: &[&str]) {
        let pool = self.pool_manifest(&self.name, &self.name, capacity_types);
        create::<NodePool>(&Api::all(self.client.clone()), pool).await;
    }

    /// Makes this test's pool, whose nodes are on demand and drain for so long at most: `terminationGracePeriod`.
    pub async fn bounded_pool(&self, grace: Duration) {
        let mut pool = self.pool_manifest(&self.name, &self.name, &["on-demand"]);
        pool["spec"]["template"]["spec"]["terminationGracePeriod"] = json!(format!("{}s", grace.as_secs()));
        create::<NodePool>(&Api::all(self.client.clone()), pool).await;
    }

    /// Returns the spec of a pod that only fits this test's pools.
    pub fn pod_spec(&self, cpu: &str) -> Value {
        pod_spec(&self.name, &json!({ "requests": { "cpu": cpu } }))
    }

    /// Makes a Deployment of such pods.
    pub async fn deployment(&self, replicas: u32, cpu: &str) {
        let deployment = json!({
            "metadata": { "name": "inflate", "namespace": self.name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": "inflate" } },
                "template": { "metadata": { "labels": { "app": "inflate" } }, "spec": self.pod_spec(cpu) },
            },
        });
        create::<Deployment>(&Api::namespaced(self.client.clone(), &self.name), deployment).await;
    }

    /// Makes a Deployment of two such pods that share a node, and waits until both are there: a controller that is started then plans for both at
    /// once, however busy the machine is.
    pub async fn two_waiting(&self) {
        self.deployment(2, "500m").await;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.name);
        let waits = |pod: &Pod| {
            let told = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            told.filter(|one| one.type_ == "PodScheduled").any(|one| one.reason.as_deref() == Some("Unschedulable"))
        };
        until("two pods wait for a node", async || {
            let listed = pods.list(&ListParams::default()).await.expect("pods").items;
            listed.iter().filter(|pod| waits(pod)).count() == 2
        })
        .await;
    }

    /// Returns the pods that run and are not about to go.
    pub async fn running(&self) -> Vec<Pod> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.name);
        let mut pods = api.list(&ListParams::default()).await.expect("pods").items;
        let runs = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        pods.retain(|pod| runs(pod) && pod.metadata.deletion_timestamp.is_none());
        pods
    }

    /// Waits until this many pods run.
    pub async fn until_running(&self, count: usize) {
        until(&format!("{count} pods run"), async || self.running().await.len() == count).await;
    }

    /// Waits until a claim is gone; returns when its end was asked for, which its last state says.
    pub async fn until_gone(&self, claim: &NodeClaim) -> Timestamp {
        let claims: Api<NodeClaim> = Api::all(self.client.clone());
        let mut asked = None;
        until("the old claim is gone", async || match claims.get_opt(&claim.name_any()).await {
            Ok(Some(claim)) => {
                asked = claim.metadata.deletion_timestamp.map(|time| time.0).or(asked);
                false
            }
            Ok(None) => true,
            Err(_) => false,
        })
        .await;
        asked.expect("its end was seen")
    }

    /// Returns this pool's objects of a kind.
    pub async fn mine<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        of_pool(&self.client, &self.name).await
    }

    /// Returns the events of a reason about objects whose name begins so.
    pub async fn events(&self, reason: &str, about: &str) -> Vec<Event> {
        let params = ListParams::default().fields(&format!("reason={reason}"));
        let listed = Api::<Event>::all(self.client.clone()).list(&params).await.expect("events").items;
        let on = |event: &Event| event.involved_object.name.as_ref().is_some_and(|name| name.starts_with(about));
        listed.into_iter().filter(on).collect()
    }

    /// Takes everything away, with a controller that runs, and waits until nothing is left.
    pub async fn leave(mut self) {
        dismantle(&self.client, &self.name).await;
        let series = format!("nodepool=\"{}\"", self.name);
        until("metrics do not tell of the pool", async || !self.metrics().contains(&series)).await;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let left = self.aws.instances(&self.name);
        assert!(left.iter().all(is_ending), "instances outlived their pool: {left:?}");
        namespaces.delete(&self.name, &DeleteParams::default()).await.expect("the namespace is deleted");
        self.left = true;
    }
}

/// Returns the id of a claim's instance.
pub fn instance_of(claim: &NodeClaim) -> String {
    let id = claim.status.as_ref().and_then(|status| status.provider_id.clone()).unwrap_or_default();
    id.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Returns the name of the node that a pod is bound to.
pub fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_else(|| panic!("{} is unbound", pod.name_any()))
}

/// Returns since when a condition of a claim holds, if it does.
pub fn since(claim: &NodeClaim, kind: &str) -> Option<Timestamp> {
    let condition = conditions::get(&claim.status.as_ref()?.conditions, kind)?;
    (condition.status == conditions::ConditionStatus::True).then_some(condition.last_transition_time)
}

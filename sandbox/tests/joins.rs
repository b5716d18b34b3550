//! Instances become Nodes, and pods of Fargate profiles become processes: against a running sandbox.
//!
//! `cargo verify` names it in `KARP_TEST_*`; by hand: `cargo sandbox up`, then `eval "$(cargo sandbox env)"`.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Mutex,
    time::{Duration, Instant},
};

use base64::Engine as _;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, LogParams, PostParams},
};
use serde_json::{Value, json};

/// Bounds every wait: a node takes some 2 s, more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Stand {
    client: kube::Client,
    aws: String,
    cluster: String,
    region: String,
    /// Makes the names of this test its own.
    mark: String,
    /// Roles that were made, each with a profile of its name, and whether with an access entry.
    made: Mutex<Vec<(String, bool)>>,
}

async fn stand() -> Option<Stand> {
    let value = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(kubeconfig) = value("KARP_TEST_KUBECONFIG") else {
        eprintln!("skipped: no sandbox in KARP_TEST_KUBECONFIG");
        return None;
    };
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    Some(Stand {
        client: sandbox::control_plane::client(&PathBuf::from(kubeconfig)).await.unwrap(),
        aws: value("KARP_TEST_AWS_ENDPOINT").unwrap(),
        cluster: value("KARP_TEST_CLUSTER").unwrap(),
        region: value("KARP_TEST_REGION").unwrap(),
        mark: uuid::Uuid::new_v4().simple().to_string()[..8].to_owned(),
        made: Mutex::default(),
    })
}

impl Stand {
    /// Calls AWS with a signature that nobody checks.
    async fn call(&self, service: &str, method: &str, path: &str, headers: &[(&str, &str)], body: String) -> String {
        let scope = format!("test/20260101/{}/{service}/aws4_request", self.region);
        let mut request = http::Request::builder().method(method).uri(format!("{}{path}", self.aws));
        request = request
            .header("authorization", format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let client = Client::builder(TokioExecutor::new()).build_http();
        let answer = client.request(request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap();
        let status = answer.status();
        let text = String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
        assert!(status.is_success(), "{service} {path}: {status}: {text}");
        text
    }

    /// A call of a query service (EC2, IAM).
    async fn query(&self, service: &str, action: &str, params: &[(&str, &str)]) -> String {
        let versions = BTreeMap::from([("ec2", "2016-11-15"), ("iam", "2010-05-08")]);
        let first = [("Action", action), ("Version", versions[service])];
        let body: Vec<String> =
            first.iter().chain(params).map(|(key, value)| format!("{key}={}", escape(value))).collect();
        self.call(service, "POST", "/", &[("content-type", "application/x-www-form-urlencoded")], body.join("&")).await
    }

    async fn eks(&self, method: &str, path: &str, body: Value) -> Value {
        let path = format!("/clusters/{}{path}", self.cluster);
        serde_json::from_str(
            &self.call("eks", method, &path, &[("content-type", "application/json")], body.to_string()).await,
        )
        .unwrap()
    }

    /// Launches an instance with this NodeConfig, under a role that may join or may not; returns its id.
    async fn launch(&self, node_config: &str, joins: bool) -> String {
        let name = format!("{}-{}", self.mark, uuid::Uuid::new_v4().simple());
        self.query("iam", "CreateRole", &[("RoleName", &name), ("AssumeRolePolicyDocument", "{}")]).await;
        self.query("iam", "CreateInstanceProfile", &[("InstanceProfileName", &name)]).await;
        self.query("iam", "AddRoleToInstanceProfile", &[("InstanceProfileName", &name), ("RoleName", &name)]).await;
        if joins {
            self.eks("POST", "/access-entries", json!({ "principalArn": arn_of(&name), "type": "EC2_LINUX" })).await;
        }
        self.made.lock().unwrap().push((name.clone(), joins));
        let parameter = json!({ "Name": "/aws/service/eks/optimized-ami/1.36/amazon-linux-2023/x86_64/standard/recommended/image_id" });
        let headers = [("content-type", "application/x-amz-json-1.1"), ("x-amz-target", "AmazonSSM.GetParameter")];
        let image: Value =
            serde_json::from_str(&self.call("ssm", "POST", "/", &headers, parameter.to_string()).await).unwrap();
        let archive = format!(
            "MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=\"//\"\r\n\r\n--//\r\nContent-Type: application/node.eks.aws\r\n\r\n{node_config}\r\n--//--\r\n"
        );
        let user_data = base64::engine::general_purpose::STANDARD.encode(archive);
        let answer = self
            .query(
                "ec2",
                "RunInstances",
                &[
                    ("ImageId", image["Parameter"]["Value"].as_str().unwrap()),
                    ("InstanceType", "m5.large"),
                    ("MinCount", "1"),
                    ("MaxCount", "1"),
                    ("UserData", &user_data),
                    ("IamInstanceProfile.Name", &name),
                ],
            )
            .await;
        answer.split("<instanceId>").nth(1).and_then(|rest| rest.split('<').next()).unwrap().to_owned()
    }

    /// Takes away what was made in IAM and EKS, and holds that nothing is left of it.
    async fn leave(self) {
        let made = self.made.lock().unwrap().clone();
        for (name, joins) in &made {
            if *joins {
                let entry = escape(&arn_of(name));
                self.eks("DELETE", &format!("/access-entries/{entry}"), Value::Null).await;
            }
            let both = [("InstanceProfileName", name.as_str()), ("RoleName", name.as_str())];
            self.query("iam", "RemoveRoleFromInstanceProfile", &both).await;
            self.query("iam", "DeleteInstanceProfile", &both[..1]).await;
            self.query("iam", "DeleteRole", &both[1..]).await;
        }
        let inventory = self.call("iam", "GET", "/_karp/inventory", &[], String::new()).await;
        assert!(made.iter().all(|(name, _)| !inventory.contains(name)), "{inventory}");
    }

    async fn node_config(&self) -> String {
        let cluster = &self.eks("GET", "", Value::Null).await["cluster"];
        let config = json!({
            "apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig",
            "spec": {
                "cluster": {
                    "name": cluster["name"], "apiServerEndpoint": cluster["endpoint"],
                    "certificateAuthority": cluster["certificateAuthority"]["data"], "cidr": "10.0.0.0/16",
                },
                "kubelet": {
                    "config": { "maxPods": 29, "registerWithTaints": [{ "key": "karpenter.sh/unregistered", "effect": "NoExecute" }] },
                    "flags": [format!("--node-labels=sandbox.test/mark={}", self.mark)],
                },
            },
        });
        config.to_string()
    }

    async fn node_of(&self, instance: &str) -> Option<Node> {
        let nodes = Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await.unwrap();
        let ends = |node: &Node| {
            node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).is_some_and(|id| id.ends_with(instance))
        };
        nodes.items.into_iter().find(ends)
    }

    async fn namespace(&self) -> String {
        let name = format!("fargate-{}", self.mark);
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        Api::<Namespace>::all(self.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &name);
        eventually("the default service account", || async { accounts.get_opt("default").await.unwrap() }).await;
        name
    }
}

fn arn_of(role: &str) -> String {
    format!("arn:aws:iam::123456789012:role/{role}")
}

fn escape(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    text.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(begin.elapsed() < PATIENCE, "waited {} s for {what}", PATIENCE.as_secs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn ready(node: &Node) -> String {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter(|condition| condition.type_ == "Ready").map(|condition| condition.status.clone()).collect()
}

#[tokio::test]
async fn an_instance_becomes_a_node_and_its_end_darkens_it() {
    let Some(stand) = stand().await else { return };
    let instance = stand.launch(&stand.node_config().await, true).await;
    let node =
        eventually("a ready node", || async { stand.node_of(&instance).await.filter(|node| ready(node) == "True") })
            .await;
    assert_eq!(node.labels()["sandbox.test/mark"], stand.mark);
    assert_eq!(node.labels()["node.kubernetes.io/instance-type"], "m5.large");
    let taints = node.spec.unwrap().taints.unwrap_or_default();
    assert!(
        taints.iter().any(|taint| taint.key == "karpenter.sh/unregistered" && taint.effect == "NoExecute"),
        "{taints:?}"
    );
    stand.query("ec2", "TerminateInstances", &[("InstanceId.1", &instance)]).await;
    let dark = || async { stand.node_of(&instance).await.is_none_or(|node| ready(&node) == "Unknown").then_some(()) };
    eventually("the node to go dark", dark).await;
    eventually("the node to go", || async { stand.node_of(&instance).await.is_none().then_some(()) }).await;
    stand.leave().await;
}

#[tokio::test]
async fn an_instance_that_may_not_join_stays_out() {
    let Some(stand) = stand().await else { return };
    let config = stand.node_config().await;
    let refused = [
        stand.launch(&config.replace(&stand.cluster, "another"), true).await,
        stand.launch("not: [yaml", true).await,
        stand.launch(&config, false).await,
    ];
    let joined = stand.launch(&config, true).await;
    eventually("the good instance", || stand.node_of(&joined)).await;
    for instance in &refused {
        assert!(stand.node_of(instance).await.is_none(), "{instance} joined");
    }
    for instance in refused.iter().chain([&joined]) {
        stand.query("ec2", "TerminateInstances", &[("InstanceId.1", instance)]).await;
    }
    eventually("its node to go", || async { stand.node_of(&joined).await.is_none().then_some(()) }).await;
    stand.leave().await;
}

fn pod(name: &str, image: &str, args: &[&str]) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "app": "test" } },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": image, "args": args }] },
    }))
    .unwrap()
}

fn state(pod: &Pod) -> Value {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.clone()).unwrap_or_default();
    statuses.first().map_or(Value::Null, |status| serde_json::to_value(&status.state).unwrap())
}

#[tokio::test]
async fn pods_of_a_fargate_profile_run_as_processes() {
    let Some(stand) = stand().await else { return };
    let namespace = stand.namespace().await;
    let subnets: Vec<String> = Vec::new();
    let profile = json!({
        "fargateProfileName": stand.mark, "podExecutionRoleArn": "arn:aws:iam::123456789012:role/pods", "subnets": subnets,
        "selectors": [{ "namespace": namespace, "labels": { "app": "test" } }],
    });
    stand.eks("POST", "/fargate-profiles", profile).await;
    let path = format!("/fargate-profiles/{}", stand.mark);
    let active =
        || async { (stand.eks("GET", &path, Value::Null).await["fargateProfile"]["status"] == "ACTIVE").then_some(()) };
    eventually("the profile", active).await;
    let pods = Api::<Pod>::namespaced(stand.client.clone(), &namespace);
    for made in [pod("runs", "ghcr.io/karp/karp:9.9.9", &["--help"]), pod("unknown", "example.com/other:1", &[])] {
        pods.create(&PostParams::default(), &made).await.unwrap();
    }
    let ran = eventually("the process to end", || async {
        pods.get_opt("runs").await.unwrap().filter(|pod| state(pod)["terminated"]["exitCode"].is_i64())
    })
    .await;
    assert_eq!(state(&ran)["terminated"]["exitCode"], 0);
    assert_eq!(ran.labels()["eks.amazonaws.com/fargate-profile"], stand.mark);
    let node = ran.spec.unwrap().node_name.unwrap();
    assert!(node.starts_with("fargate-"), "{node}");
    let log = pods.logs("runs", &LogParams::default()).await.unwrap();
    assert!(log.to_lowercase().contains("usage"), "{log}");
    eventually("the image to be missed", || async {
        pods.get_opt("unknown").await.unwrap().filter(|pod| state(pod)["waiting"]["reason"] == "ImagePullBackOff")
    })
    .await;
    for name in ["runs", "unknown"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
        eventually("the pod to go", || async { pods.get_opt(name).await.unwrap().is_none().then_some(()) }).await;
    }
    let nodes = Api::<Node>::all(stand.client.clone());
    eventually("its node to go", || async { nodes.get_opt(&node).await.unwrap().is_none().then_some(()) }).await;
    stand.eks("DELETE", &path, Value::Null).await;
    Api::<Namespace>::all(stand.client.clone()).delete(&namespace, &DeleteParams::default()).await.unwrap();
}

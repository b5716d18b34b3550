//! The end of a cluster's nodes: refused while pools would make new ones; complete also when no controller runs any more.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use aws_sdk_ec2::types::{InstanceType, RequestLaunchTemplateData, ResourceType, Tag, TagSpecification};
use karp_aws::images::{Alias, by_alias};
use karp_aws::parameters::Parameters;
use serde_json::{Value, json};

use crate::stand::Sandbox;

/// kubectl on the sandbox's API server.
pub struct Kubectl {
    program: String,
    pub kubeconfig: String,
}

impl Kubectl {
    /// Finds the API server.
    pub fn find() -> Option<Self> {
        let tools = std::env::var("KARP_TEST_TOOLS").ok()?;
        Some(Self { program: format!("{tools}/kubectl"), kubeconfig: std::env::var("KARP_TEST_KUBECONFIG").ok()? })
    }

    /// Creates an object.
    pub fn create(&self, object: &Value) {
        let mut command = Command::new(&self.program);
        command.args(["--kubeconfig", &self.kubeconfig, "create", "-f", "-"]).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(object.to_string().as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// Writes an object's status, as a controller does.
    pub fn patch_status(&self, kind: &str, name: &str, status: &Value) {
        let mut command = Command::new(&self.program);
        command.args(["--kubeconfig", &self.kubeconfig, "patch", kind, name, "--subresource=status", "--type=merge"]);
        assert!(command.args(["-p", &status.to_string()]).status().unwrap().success());
    }

    /// Deletes an object.
    pub fn delete(&self, kind: &str, name: &str) {
        let mut command = Command::new(&self.program);
        command.args(["--kubeconfig", &self.kubeconfig, "delete", kind, name]);
        assert!(command.status().unwrap().success());
    }

    /// Reads an object; null when it is not there.
    pub fn get(&self, what: &[&str]) -> Value {
        let mut command = Command::new(&self.program);
        command.args(["--kubeconfig", &self.kubeconfig, "get", "--ignore-not-found", "-o", "json"]).args(what);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Names the objects of a kind.
    pub fn names(&self, kind: &str) -> String {
        let output = Command::new(&self.program)
            .args(["--kubeconfig", &self.kubeconfig, "get", kind, "-o", "name"])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// An `aws-auth` without entries, which goes with the test.
pub struct AwsAuth<'a>(&'a Kubectl);

impl<'a> AwsAuth<'a> {
    pub fn new(kubectl: &'a Kubectl) -> Self {
        kubectl.create(&json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "aws-auth", "namespace": "kube-system" }, "data": { "mapRoles": "[]\n" } }));
        Self(kubectl)
    }

    /// The entries as they are written.
    pub fn roles(&self) -> String {
        let live = self.0.get(&["-n", "kube-system", "configmap", "aws-auth"]);
        live["data"]["mapRoles"].as_str().unwrap().to_owned()
    }
}

impl Drop for AwsAuth<'_> {
    fn drop(&mut self) {
        let mut command = Command::new(&self.0.program);
        command.args(["--kubeconfig", &self.0.kubeconfig, "-n", "kube-system", "delete", "configmap", "aws-auth"]);
        let _ = command.output();
    }
}

fn tags(kind: ResourceType, cluster: &str) -> TagSpecification {
    let tag = |key: &str, value: &str| Tag::builder().key(key).value(value).build();
    TagSpecification::builder()
        .resource_type(kind)
        .tags(tag(&format!("kubernetes.io/cluster/{cluster}"), "owned"))
        .tags(tag("karpenter.sh/nodepool", "default"))
        .tags(tag("karpenter.k8s.aws/ec2nodeclass", "default"))
        .build()
}

impl Sandbox {
    /// Makes what a controller makes for a node and may leave: gives the instance, its zone, and its own network interface.
    pub async fn leave_behind(&self, cluster: &str) -> (String, String, String) {
        let clients = self.clients().await;
        let ec2 = clients.ec2();
        let alias = Alias::parse("al2023@latest").unwrap();
        let images = by_alias(&clients, &Parameters::default(), &alias, "1.33").await.unwrap();
        let call = ec2.run_instances().image_id(&images[0].id).instance_type(InstanceType::M5Large);
        let call = call.min_count(1).max_count(1).subnet_id(&self.subnet_ids[0]);
        let run = call.tag_specifications(tags(ResourceType::Instance, cluster)).send().await.unwrap();
        let instance = &run.instances()[0];
        let zone = instance.placement().and_then(|placement| placement.availability_zone()).unwrap().to_owned();
        let call = ec2.create_volume().availability_zone(&zone).size(1);
        call.tag_specifications(tags(ResourceType::Volume, cluster)).send().await.unwrap();
        let call = ec2.create_network_interface().subnet_id(&self.subnet_ids[0]);
        call.tag_specifications(tags(ResourceType::NetworkInterface, cluster)).send().await.unwrap();
        let data = RequestLaunchTemplateData::builder().image_id(&images[0].id).build();
        let call = ec2.create_launch_template().launch_template_name(cluster).launch_template_data(data);
        call.tag_specifications(tags(ResourceType::LaunchTemplate, cluster)).send().await.unwrap();
        let path = format!("/karpenter/{}/{cluster}/uid/", self.region);
        clients.iam().create_instance_profile().instance_profile_name(cluster).path(path).send().await.unwrap();
        let interface = instance.network_interfaces()[0].network_interface_id().unwrap().to_owned();
        (instance.instance_id().unwrap().to_owned(), zone, interface)
    }

    /// Lists what exists but for an interface of an instance that has ended: the emulator keeps it, EC2 deletes it.
    fn inventory_without(&self, interface: &str) -> Value {
        let mut all = self.door("GET", "/_karp/inventory", "");
        all["network_interfaces"].as_array_mut().unwrap().retain(|id| *id != interface);
        all
    }
}

#[tokio::test]
async fn nothing_is_left_although_no_controller_runs() {
    let Some(sandbox) = Sandbox::with_cluster("teardown") else { return };
    let Some(kubectl) = Kubectl::find() else {
        eprintln!("skipped: teardown: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    let cluster = format!("edge-teardown-{}", std::process::id());
    let before = sandbox.door("GET", "/_karp/inventory", "");
    let block = format!("  cluster_name = {cluster:?}\n  kubernetes = {{ config_path = {:?} }}", kubectl.kubeconfig);
    let config = |more: &str| {
        let crds = "resource \"karp_crds\" \"this\" {}\n";
        let teardown =
            "resource \"karp_teardown\" \"this\" {\n  drain_timeout = \"3s\"\n  depends_on = [karp_crds.this]\n";
        format!("{}{crds}{teardown}{more}\n}}\n", sandbox.provider(&block))
    };
    let stand = sandbox.stand(&config(""));
    stand.apply();
    stand.assert_empty_plan();
    let (instance, zone, interface) = sandbox.leave_behind(&cluster).await;
    let class = json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "none" });
    kubectl.create(&json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": cluster },
        "spec": { "template": { "spec": { "nodeClassRef": class, "requirements": [] } } } }));
    kubectl.create(&json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": { "name": cluster, "finalizers": ["karpenter.sh/termination"] },
        "spec": { "nodeClassRef": class, "requirements": [] } }));
    kubectl.create(&json!({ "apiVersion": "v1", "kind": "Node", "spec": { "providerID": format!("aws:///{zone}/{instance}") },
        "metadata": { "name": cluster, "labels": { "karpenter.sh/nodepool": cluster, "karpenter.k8s.aws/ec2nodeclass": cluster }, "finalizers": ["karpenter.sh/termination"] } }));

    let refused = stand.tofu(&["destroy", "-json", "-auto-approve"]);
    assert!(refused.one_error().contains(&format!("1 NodePool ({cluster})")), "{}", refused.text);
    assert!(kubectl.names("nodeclaims").contains(&cluster), "nothing was ended");

    stand.write(&config("  force = true"));
    stand.apply();
    let done = stand.tofu(&["destroy", "-json", "-auto-approve"]);
    assert_eq!(done.code, 0, "{}", done.text);
    let told = done.warnings().iter().map(ToString::to_string).collect::<String>();
    assert!(told.contains(&instance) && told.contains("1 NodeClaim"), "{told}");
    for kind in ["nodepools", "nodeclaims", "nodes"] {
        assert!(!kubectl.names(kind).contains(&cluster), "{kind}");
    }
    assert_eq!(sandbox.inventory_without(&interface), before, "something is left");
}

/// The provider dies while the sweep ends an instance: the teardown stays in state, and the next destroy ends what is left.
#[tokio::test]
async fn a_sweep_whose_provider_is_killed_is_ended_by_the_next_destroy() {
    let Some(sandbox) = Sandbox::with_cluster("teardown_killed") else { return };
    let Some(kubectl) = Kubectl::find() else {
        eprintln!("skipped: teardown_killed: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    let cluster = format!("edge-swept-{}", std::process::id());
    let before = sandbox.door("GET", "/_karp/inventory", "");
    let block = format!("  cluster_name = {cluster:?}\n  kubernetes = {{ config_path = {:?} }}", kubectl.kubeconfig);
    let teardown = "resource \"karp_teardown\" \"this\" {\n  force = true\n}\n";
    let stand = sandbox.stand(&format!("{}{teardown}", sandbox.provider(&block)));
    stand.apply();
    let (.., interface) = sandbox.leave_behind(&cluster).await;
    for action in ["TerminateInstances", "DeleteLaunchTemplate"] {
        let call = json!({ "action": action }).to_string();
        sandbox.door("POST", "/_karp/hold", &call);
        let mut running = stand.begin(&["destroy", "-json", "-auto-approve"]);
        while sandbox.door("GET", "/_karp/held", "")[action] != 1 {
            assert!(!running.is_over(), "{action} was never called: {}", running.end().text);
            std::thread::sleep(Duration::from_millis(20));
        }
        running.kill_provider();
        sandbox.door("POST", "/_karp/release", &call);
        let run = running.end();
        assert_eq!(run.code, 1, "{action}: {}", run.text);
        assert!(stand.attribute("karp_teardown.this", "id").is_string(), "{action}: {}", stand.state());
    }
    stand.destroy();
    assert_eq!(sandbox.inventory_without(&interface), before, "something is left");
}

#[tokio::test]
async fn a_dry_run_tells_what_would_be_ended_and_ends_nothing() {
    let Some(sandbox) = Sandbox::with_cluster("dry_run") else { return };
    let Some(kubectl) = Kubectl::find() else {
        eprintln!("skipped: dry_run: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    let cluster = format!("edge-dry-{}", std::process::id());
    let before = sandbox.what_exists();
    let block = format!("  cluster_name = {cluster:?}\n  kubernetes = {{ config_path = {:?} }}", kubectl.kubeconfig);
    let config = |dry: bool| {
        format!(
            "{}resource \"karp_crds\" \"this\" {{}}\nresource \"karp_teardown\" \"this\" {{\n  drain_timeout = \"5s\"\n  dry_run = {dry}\n  \
             depends_on = [karp_crds.this]\n}}\n",
            sandbox.provider(&block)
        )
    };
    let stand = sandbox.stand(&config(true));
    stand.apply();
    stand.assert_empty_plan();
    let (instance, _, interface) = sandbox.leave_behind(&cluster).await;

    // The next refresh tells, and so does the plan of a destroy.
    stand.apply();
    let would_end = stand.attribute("karp_teardown.this", "would_end");
    assert_eq!(would_end["instances"], json!([instance]), "{would_end}");
    for kind in ["network_interfaces", "volumes", "launch_templates", "instance_profiles"] {
        assert_eq!(would_end[kind].as_array().map(Vec::len), Some(1), "{kind}: {would_end}");
    }
    stand.assert_empty_plan();
    let planned = stand.tofu(&["plan", "-destroy", "-json"]);
    let told = planned.warnings().iter().map(ToString::to_string).collect::<String>();
    assert!(told.contains(&instance) && told.contains("dry_run = false"), "{}", planned.text);
    let refused = stand.tofu(&["destroy", "-json", "-auto-approve", "-target=karp_teardown.this"]);
    assert!(refused.one_error().contains("nothing was ended"), "{}", refused.text);
    let ec2 = sandbox.clients().await.ec2().clone();
    let lives = ec2.describe_instances().instance_ids(&instance).send().await.unwrap();
    let state = lives.reservations()[0].instances()[0].state().and_then(|state| state.name()).cloned();
    assert_eq!(state.map(|state| state.as_str().to_owned()), Some("running".to_owned()));

    stand.write(&config(false));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(stand.attribute("karp_teardown.this", "would_end"), Value::Null);
    stand.destroy();
    let mut after = sandbox.what_exists();
    // The emulator keeps the interface of an instance that has ended; EC2 deletes it.
    after["network_interfaces"].as_array_mut().unwrap().retain(|id| *id != interface);
    assert_eq!(after, before, "something is left");
}

//! What `karp migrate` writes of a live cluster is imported by real OpenTofu without a difference, and what it writes of manifests of older APIs is
//! planned as new, with workloads that its script moves along: against a running sandbox.
//!
//! `cargo verify` names it in `KARP_TEST_*`; by hand: `cargo sandbox up`, then `eval "$(cargo sandbox env)"`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sandbox::tofu::Workspace;
use serde_json::{Value, json};

/// CRDs stay: other tests may be using them.
const CRDS: &str = "terraform {\n  required_providers {\n    karp = {\n      source = \"karp/karp\"\n    }\n  }\n}\n\n\
                    provider \"karp\" {\n  cluster_name = \"CLUSTER\"\n}\n\nresource \"karp_crds\" \"this\" {}\n";

struct Stand {
    kubeconfig: String,
    tools: PathBuf,
    karp: PathBuf,
    cluster: String,
    /// What tofu and its provider are told of the sandbox's AWS.
    env: BTreeMap<String, String>,
}

/// Finds the sandbox; says what is missing and gives nothing when something is.
fn stand() -> Option<Stand> {
    let value = |name: &str| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty());
        if value.is_none() {
            eprintln!("skipped: {name} is not set");
        }
        value
    };
    let (endpoint, region) = (value("KARP_TEST_AWS_ENDPOINT")?, value("KARP_TEST_REGION")?);
    let karp = PathBuf::from(value("KARP_TEST_KARP")?);
    if !karp.is_file() {
        eprintln!("skipped: {} is not built", karp.display());
        return None;
    }
    let env = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_REGION", &region),
        ("AWS_ACCESS_KEY_ID", "sandbox"),
        ("AWS_SECRET_ACCESS_KEY", "sandbox"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_CONFIG_FILE", "/dev/null"),
        ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
        ("TF_CLI_CONFIG_FILE", &value("KARP_TEST_TFRC")?),
    ];
    Some(Stand {
        kubeconfig: value("KARP_TEST_KUBECONFIG")?,
        tools: value("KARP_TEST_TOOLS")?.into(),
        karp,
        cluster: value("KARP_TEST_CLUSTER")?,
        env: env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
    })
}

impl Stand {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.tools.join("kubectl"));
        command.args(["--kubeconfig", &self.kubeconfig]).args(arguments);
        command
    }

    fn kubectl(&self, arguments: &[&str], input: &str) {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "kubectl {arguments:?}");
    }

    /// The node selectors and the annotations that the Deployments of a namespace give their pods, by name.
    fn asked(&self, namespace: &str) -> BTreeMap<String, (Value, Value)> {
        let output = self.command(&["-n", namespace, "get", "deployments", "-o", "json"]).output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let of = |one: &Value| {
            let template = &one["spec"]["template"];
            let asked = (template["spec"]["nodeSelector"].clone(), template["metadata"]["annotations"].clone());
            (one["metadata"]["name"].as_str().unwrap().to_owned(), asked)
        };
        found["items"].as_array().unwrap().iter().map(of).collect()
    }

    /// Runs a script in a shell that finds the sandbox's kubectl and cluster.
    fn run(&self, script: &str) {
        let path = format!("{}:{}", self.tools.display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-ec", script]).env("PATH", path).env("KUBECONFIG", &self.kubeconfig);
        assert!(shell.status().unwrap().success(), "{script}");
    }

    /// Makes a working folder with one file of configuration, and installs the provider in it.
    async fn workspace(&self, folder: &Path, config: &str) -> Workspace {
        let source = folder.join("source");
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("main.tf"), config).unwrap();
        let tofu = self.tools.join("tofu");
        let workspace = Workspace::copy(tofu, &source, folder.join("work"), self.env.clone()).unwrap();
        workspace.run(&["init", "-no-color"]).await.unwrap().success().unwrap();
        workspace
    }

    /// Writes HCL of all that the cluster has, or what further arguments ask for.
    fn migrate(&self, more: &[&str]) -> String {
        let mut command = Command::new(&self.karp);
        command.args(["migrate", "--cluster-name", &self.cluster]).args(more).env("KUBECONFIG", &self.kubeconfig);
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Objects that say much, some of it in odd ways: what is empty, what is the default, amounts that are numbers, texts with templates.
fn objects(name: &str) -> [Value; 3] {
    let class = json!({ "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": name }, "spec": {
        "instanceProfile": "profile",
        "amiFamily": "AL2023",
        "amiSelectorTerms": [{ "tags": { "team": "${a} %{b}" } }, { "id": "ami-0123456789abcdef0" }],
        "subnetSelectorTerms": [{ "tags": { "karpenter.sh/discovery": "demo" } }],
        "securityGroupSelectorTerms": [{ "id": "sg-0123456789abcdef0" }],
        "associatePublicIPAddress": false,
        "blockDeviceMappings": [{ "deviceName": "/dev/xvda", "rootVolume": true, "ebs": { "volumeSize": "50Gi", "kmsKeyID": "k", "iops": 3000 } }],
        "kubelet": { "maxPods": 58, "clusterDNS": ["10.0.0.10"], "cpuCFSQuota": true, "imageGCHighThresholdPercent": 85,
            "imageGCLowThresholdPercent": 80, "systemReserved": { "cpu": "100m" }, "topologyManagerPolicy": "restricted" },
        "metadataOptions": { "httpPutResponseHopLimit": 2 },
        "tags": {},
        "userData": "#!/bin/bash\n  echo \"${HOME}\" 100%{x} \\n\n \n\tend",
    } });
    let pool = json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name }, "spec": {
        "template": {
            "metadata": { "labels": { "team": "a" }, "annotations": {} },
            "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": name },
                "requirements": [
                    { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"] },
                    { "key": "karpenter.k8s.aws/instance-family", "operator": "Exists", "values": [], "minValues": 2 },
                ],
                "startupTaints": [{ "key": "a.b/c", "effect": "NoExecute" }],
                "expireAfter": "720h",
            },
        },
        "disruption": { "consolidateAfter": "30s", "budgets": [{ "reasons": ["Drifted"], "schedule": "0 9 * * *", "duration": "8h" }] },
        "limits": { "cpu": 1000, "memory": "1000Gi", "nodes": "10" },
        "weight": 3,
    } });
    let overlay = json!({ "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": name }, "spec": {
        "requirements": [{ "key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["m7i"] }],
        "capacity": { "smarter-devices/fuse": 1 },
    } });
    [class, pool, overlay]
}

/// Karpenter's controller as its chart makes it, without pods: nothing is there that would run them.
fn karpenter(namespace: &str) -> String {
    let labels = json!({ "app.kubernetes.io/name": "karpenter", "app.kubernetes.io/instance": "karpenter" });
    let metadata = |more: Value| {
        let mut metadata = json!({ "name": "karpenter", "namespace": namespace, "labels": labels });
        metadata["annotations"] = more;
        metadata
    };
    let role = json!({ "eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/Karpenter" });
    let env = [
        ("CLUSTER_NAME", "demo"),
        ("INTERRUPTION_QUEUE", "Karpenter"),
        ("BATCH_IDLE_DURATION", "2s"),
        ("LOG_LEVEL", "debug"),
        ("RESERVED_ENIS", "1"),
        ("FEATURE_GATES", "SpotToSpotConsolidation=true"),
    ];
    let env = env.map(|(name, value)| json!({ "name": name, "value": value }));
    let container = json!({ "name": "controller", "image": "karpenter", "env": env,
        "resources": { "requests": { "cpu": 1, "memory": "1Gi" }, "limits": { "memory": "1Gi" } } });
    let pod = json!({ "serviceAccountName": "karpenter", "containers": [container],
        "nodeSelector": { "kubernetes.io/os": "linux", "pool": "system" },
        "tolerations": [{ "key": "system", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60 }] });
    let deployment = json!({ "replicas": 0, "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels }, "spec": pod } });
    let items = json!([
        { "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } },
        { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(role) },
        { "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(json!({})), "spec": deployment },
    ]);
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}

/// The pools come first, while Karpenter runs; karp in its place is a file more, beside which pools and classes name its teardown. What comes of
/// both, and how it is destroyed, is played with a controller in `use_cases/migrated.rs`.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_of_a_cluster_is_imported_without_a_difference() {
    let Some(stand) = stand() else { return };
    let folder = tempfile::tempdir().unwrap();
    let crds = stand.workspace(&folder.path().join("crds"), &CRDS.replace("CLUSTER", &stand.cluster)).await;
    crds.run(&["apply", "-auto-approve", "-no-color"]).await.unwrap().success().unwrap();
    let plain = format!("migrate-{}", std::process::id());
    let objects = objects(&plain);
    let defaults = json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": format!("{plain}.b") },
        "spec": { "template": { "spec": { "requirements": [], "nodeClassRef":
            { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": plain } } } } });
    let all = json!({ "apiVersion": "v1", "kind": "List", "items": [objects[0], objects[1], objects[2], defaults] });
    let all = all.to_string();
    stand.kubectl(&["create", "-f", "-"], &all);
    let karpenters = format!("migrate-karpenter-{}", std::process::id());
    stand.kubectl(&["create", "-f", "-"], &karpenter(&karpenters));

    let controller = folder.path().join("controller.tf");
    let together = stand.migrate(&["--controller", controller.to_str().unwrap()]);
    let written = stand.migrate(&[]);
    let label = plain.replace('-', "_");
    assert!(written.contains(&format!("node_class_ref = {{ name = karp_node_class.{label}.name }}")), "{written}");
    let imports = written.matches("import {\n").count();
    assert!(imports >= 4 && imports == written.matches("resource \"").count(), "{written}");
    let workspace = stand.workspace(&folder.path().join("migrated"), &written).await;
    let laid_out = workspace.run(&["fmt", "-check", "-diff", "-no-color"]).await.unwrap();
    let plan = workspace.run(&["plan", "-no-color", "-out=plan"]).await.unwrap();
    let applied = workspace.run(&["apply", "-no-color", "plan"]).await.unwrap();
    let second = workspace.run(&["plan", "-no-color", "-detailed-exitcode"]).await.unwrap();
    let roles = r#"["arn:aws:iam::123456789012:role/nodes"]"#;
    let workspace = workspace.with_env("TF_VAR_instance_profile_role_arns", roles);
    std::fs::copy(&controller, workspace.folder().join("controller.tf")).unwrap();
    std::fs::write(workspace.folder().join("main.tf"), &together).unwrap();
    let controller = std::fs::read_to_string(&controller).unwrap();
    let controller_laid_out = workspace.run(&["fmt", "-check", "-diff", "-no-color"]).await.unwrap();
    let valid = workspace.run(&["validate", "-no-color"]).await.unwrap();
    let replaced = workspace.run(&["plan", "-no-color"]).await.unwrap();
    stand.kubectl(&["delete", "--wait=false", "-f", "-"], &all);
    stand.kubectl(&["delete", "namespace", &karpenters, "--wait=false"], "");

    let only_imports = format!("Plan: {imports} to import, 0 to add, 0 to change, 0 to destroy.");
    assert!(plan.output.contains(&only_imports), "{}\n{written}", plan.output);
    assert_eq!(laid_out.code, 0, "{}", laid_out.output);
    applied.success().unwrap();
    assert_eq!(second.code, 0, "{}\n{written}", second.output);
    assert_eq!((controller_laid_out.code, valid.code), (0, 0), "{}{}", controller_laid_out.output, valid.output);
    let named = together.matches("= karp_teardown.this.id\n").count();
    let only_new = format!("Plan: 4 to add, {named} to change, 0 to destroy.");
    assert!(named >= 3, "{together}");
    assert!(replaced.code == 0 && replaced.output.contains(&only_new), "{}\n{together}{controller}", replaced.output);
    let teardown = format!("+ teardown = \"{}\"", stand.cluster);
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = replaced.output.lines().filter(|line| squeezed(line) == teardown).count();
    assert_eq!(told, named, "{}", replaced.output);
    for kept in ["batch_idle_duration", "toleration_seconds", "SpotToSpotConsolidation", "role/nodes", "Karp-"] {
        assert!(replaced.output.contains(kept), "{kept}: {}\n{controller}", replaced.output);
    }
}

/// Articles with manifests of older APIs, and what the chart's settings have to say besides.
const OLDER: [(&str, &[&str]); 4] = [("000", &[]), ("002", &[]), ("003", &PROFILE), ("004", &PROFILE)];
const PROFILE: [&str; 2] = ["--instance-profile", "KarpenterNodeInstanceProfile-prod"];

fn article(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/domain/tests/articles").join(format!("{name}.yaml"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_of_older_manifests_is_planned_as_new() {
    let Some(stand) = stand() else { return };
    let folder = tempfile::tempdir().unwrap();
    let written = OLDER.map(|(name, more)| {
        let file = article(name);
        stand.migrate(&[&["-f", file.to_str().unwrap()], more].concat())
    });
    let workspace = stand.workspace(folder.path(), &written[0]).await;
    for ((name, _), written) in OLDER.iter().zip(&written) {
        std::fs::write(workspace.folder().join("main.tf"), written).unwrap();
        let new = written.matches("resource \"").count();
        assert!(new > 0 && !written.contains("import {"), "{name}: {written}");
        assert!(written.contains(&format!("0 to import, {new} to add,")), "{name}: {written}");
        let laid_out = workspace.run(&["fmt", "-check", "-diff", "-no-color"]).await.unwrap();
        assert_eq!(laid_out.code, 0, "{name}: {}", laid_out.output);
        // It is validated on the way.
        let plan = workspace.run(&["plan", "-no-color"]).await.unwrap();
        let only_new = format!("Plan: {new} to add, 0 to change, 0 to destroy.");
        assert!(plan.code == 0 && plan.output.contains(&only_new), "{name}: {}\n{written}", plan.output);
    }
}

#[test]
fn workloads_that_name_a_provisioner_name_its_pool_once_the_script_has_run() {
    let Some(stand) = stand() else { return };
    let folder = tempfile::tempdir().unwrap();
    let shop = format!("migrate-shop-{}", std::process::id());
    let text = std::fs::read_to_string(article("000")).unwrap();
    // Without pods: nobody here has nodes for them.
    let text = text.replace("namespace: shop", &format!("namespace: {shop}"));
    let text = text.replace("spec:\n  selector:", "spec:\n  replicas: 0\n  selector:");
    let labels = "metadata: { labels: { app: one-off }";
    let kept = format!("{labels}, annotations: {{ karpenter.sh/do-not-evict: \"true\" }}");
    let text = text.replace(labels, &kept);
    let file = folder.path().join("000.yaml");
    std::fs::write(&file, &text).unwrap();
    let workloads: Vec<&str> = text.split("\n---\n").filter(|object| object.contains("kind: Deployment")).collect();
    stand.kubectl(&["create", "namespace", &shop], "");
    stand.kubectl(&["create", "-f", "-"], &workloads.join("\n---\n"));
    let asking = |key: &str, annotation: &str| {
        let one_off = (json!({ key: "default" }), json!({ annotation: "true" }));
        BTreeMap::from([
            ("one-off".to_owned(), one_off),
            ("steady".to_owned(), (json!({ key: "on-demand" }), Value::Null)),
        ])
    };
    let before = stand.asked(&shop);
    let script = stand.migrate(&["-f", file.to_str().unwrap(), "--patch"]);
    stand.run(&script);
    let after = stand.asked(&shop);
    stand.kubectl(&["delete", "namespace", &shop, "--wait=false"], "");
    assert_eq!(before, asking("karpenter.sh/provisioner-name", "karpenter.sh/do-not-evict"));
    assert_eq!(after, asking("karpenter.sh/nodepool", "karpenter.sh/do-not-disrupt"), "{script}");
}

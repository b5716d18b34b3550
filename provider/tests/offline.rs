//! The documented examples of functions and offline data sources under real OpenTofu, without any cloud. Skipped, with a line that says
//! so, where the program is missing.

#[path = "support/rc.rs"]
mod rc;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Map, Value, json};

struct Stand {
    tofu: PathBuf,
    dir: tempfile::TempDir,
}

impl Stand {
    fn new() -> Option<Self> {
        let tofu = rc::program("offline")?;
        let dir = tempfile::tempdir().unwrap();
        rc::write(dir.path());
        Some(Self { tofu, dir })
    }

    fn write(&self, example: &Path) -> String {
        let text = std::fs::read_to_string(example).unwrap();
        let head = "terraform {\n  required_providers {\n    karp = {\n      source = \"karp/karp\"\n    }\n  }\n}\n\
                    provider \"karp\" {\n  cluster_name = \"prod\"\n}\n";
        std::fs::write(self.dir.path().join("main.tf"), format!("{head}{text}")).unwrap();
        let _ = std::fs::remove_file(self.dir.path().join("terraform.tfstate"));
        text
    }

    fn put(&self, text: &str) {
        let head = "terraform {\n  required_providers {\n    karp = {\n      source = \"karp/karp\"\n    }\n  }\n}\n";
        std::fs::write(self.dir.path().join("main.tf"), format!("{head}{text}")).unwrap();
        let _ = std::fs::remove_file(self.dir.path().join("terraform.tfstate"));
    }

    fn output(&self, args: &[&str]) -> Output {
        let mut command = Command::new(&self.tofu);
        command.args(args).arg("-no-color").current_dir(self.dir.path());
        command.env("TF_CLI_CONFIG_FILE", self.dir.path().join("tofu.rc")).env("TF_IN_AUTOMATION", "1");
        command.env_remove("TF_REATTACH_PROVIDERS").output().unwrap()
    }

    fn run(&self, args: &[&str], code: i32) -> String {
        let output = self.output(args);
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "tofu {args:?}: {told}");
        told
    }

    /// What is printed as JSON.
    fn json(&self, args: &[&str]) -> Value {
        let output = self.output(args);
        assert!(output.status.success(), "tofu {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn examples(folder: &str, file: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(folder);
    let mut all: Vec<PathBuf> = std::fs::read_dir(root).unwrap().map(|one| one.unwrap().path().join(file)).collect();
    all.sort();
    all
}

/// Outputs by name; one that is the text of a document as that document.
fn answers(outputs: &Value) -> Map<String, Value> {
    let opened = |value: &Value| {
        let document: Option<Value> = value.as_str().and_then(|text| serde_json::from_str(text).ok());
        document.filter(Value::is_object).unwrap_or_else(|| value.clone())
    };
    let named = outputs.as_object().unwrap().iter();
    named.map(|(name, output)| (name.clone(), opened(&output["value"]))).collect()
}

/// What a function's example gives, and where: its outputs by name, and the resource that takes them as `plan`. Null is what must not be there.
fn expected(function: &str) -> Vec<(&'static str, Value)> {
    let all = |answers: Value| vec![("", answers)];
    match function {
        "controller_policy" => of_controller_policy(),
        "discovery_tag" => all(json!({
            "discovery_tag": { "karpenter.sh/discovery": "prod" },
            "shared_discovery_tag": { "karpenter.sh/discovery/prod": "prod" }
        })),
        "max_pods" => all(json!({ "max_pods": 29, "max_pods_with_prefixes": 110 })),
        "node_class_from_template" => of_node_class(),
        "node_pool_from_provisioner" => of_node_pool(),
        // By the algorithm of Go's hashstructure, which `shared/domain/tests/vectors` holds.
        "node_pool_hash" => all(json!({ "node_pool_hash": "6821555240594823858" })),
        "node_trust_policy" => all(json!({ "node_trust_policy": {
            "Version": "2012-10-17",
            "Statement": [
                { "Effect": "Allow", "Principal": { "Service": "ec2.amazonaws.com" }, "Action": "sts:AssumeRole" }
            ]
        } })),
        "quantity" => all(json!({ "quantity": 1.5 })),
        "role_name" => all(json!({ "role_name": "KarpNodeRole-prod" })),
        other => panic!("nobody says what the example of {other} gives"),
    }
}

fn of_controller_policy() -> Vec<(&'static str, Value)> {
    vec![
        (
            "/controller_policy/Statement/2/Condition",
            json!({
                "StringEquals": {
                    "aws:RequestTag/kubernetes.io/cluster/prod": "owned",
                    "aws:RequestTag/eks:eks-cluster-name": "prod"
                },
                "StringLike": { "aws:RequestTag/karpenter.sh/nodepool": "*" }
            }),
        ),
        (
            "/controller_policy/Statement/9",
            json!({
                "Sid": "AllowInterruptionQueueActions",
                "Effect": "Allow",
                "Action": ["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"],
                "Resource": "arn:aws:sqs:eu-west-1:111122223333:prod"
            }),
        ),
        (
            "/controller_policy/Statement/10",
            json!({
                "Sid": "AllowPassingInstanceRole",
                "Effect": "Allow",
                "Action": "iam:PassRole",
                "Resource": ["arn:aws:iam::111122223333:role/KarpNodeRole-prod"],
                "Condition": {
                    "StringEquals": { "iam:PassedToService": ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"] }
                }
            }),
        ),
        (
            "/controller_policy/Statement/11/Resource",
            json!("arn:aws:iam::111122223333:instance-profile/karpenter/eu-west-1/prod/*"),
        ),
        (
            "/controller_policy/Statement/16",
            json!({
                "Sid": "AllowAPIServerEndpointDiscovery",
                "Effect": "Allow",
                "Action": "eks:DescribeCluster",
                "Resource": "arn:aws:eks:eu-west-1:111122223333:cluster/prod"
            }),
        ),
        ("/controller_policy/Statement/17", Value::Null),
    ]
}

fn requirement(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({ "key": key, "operator": operator, "values": values, "min_values": null })
}

fn of_node_pool() -> Vec<(&'static str, Value)> {
    vec![
        ("/plan/name", json!("default")),
        (
            "/plan/template/requirements",
            json!([
                requirement("karpenter.sh/capacity-type", "In", &["spot"]),
                requirement("kubernetes.io/arch", "In", &["amd64"]),
                requirement("kubernetes.io/os", "In", &["linux"]),
                requirement("karpenter.k8s.aws/instance-category", "In", &["c", "m", "r"]),
                requirement("karpenter.k8s.aws/instance-generation", "Gt", &["2"]),
            ]),
        ),
        (
            "/plan/template/node_class_ref",
            json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }),
        ),
        ("/plan/template/expire_after", json!("Never")),
        ("/plan/disruption/consolidation_policy", json!("WhenEmpty")),
        ("/plan/disruption/consolidate_after", json!("30s")),
        ("/plan/disruption/budgets/0/nodes", json!("10%")),
        ("/plan/limits", json!({ "cpu": "1k" })),
        ("/plan/weight", Value::Null),
        (
            "/notes",
            json!([
                "kubernetes.io/arch In amd64 was a Provisioner's default and is written out.",
                "kubernetes.io/os In linux was a Provisioner's default and is written out.",
                "karpenter.k8s.aws/instance-category In c, m, r was a Provisioner's default and is written out.",
                "karpenter.k8s.aws/instance-generation Gt 2 was a Provisioner's default and is written out.",
                "At most 10 % of the nodes are disrupted at once; a Provisioner had no such budget.",
            ]),
        ),
    ]
}

fn of_node_class() -> Vec<(&'static str, Value)> {
    let discovered = json!({ "karpenter.sh/discovery": "prod" });
    vec![
        ("/plan/name", json!("default")),
        ("/plan/ami_selector_terms/0/alias", json!("al2@latest")),
        ("/plan/ami_selector_terms/1", Value::Null),
        ("/plan/subnet_selector_terms/0/tags", discovered.clone()),
        ("/plan/security_group_selector_terms/0/tags", discovered),
        ("/plan/instance_profile", json!("KarpenterNodeInstanceProfile-prod")),
        (
            "/plan/metadata_options",
            json!({
                "http_endpoint": "enabled",
                "http_protocol_ipv6": "disabled",
                "http_put_response_hop_limit": 2,
                "http_tokens": "required"
            }),
        ),
    ]
}

#[test]
fn each_function_answers_in_a_plan() {
    let Some(stand) = Stand::new() else { return };
    let all = examples("functions", "function.tf");
    assert_eq!(all.len(), 9, "each function has an example");
    for example in all {
        let function = example.parent().unwrap().file_name().unwrap().to_string_lossy();
        let text = stand.write(&example);
        let given = if text.contains("resource \"") {
            // what is converted is taken by the resource, offline; making it would need a cluster
            let plan = stand.run(&["plan", "-out=plan"], 0);
            assert!(plan.contains("1 to add"), "{function}: {plan}");
            let planned = stand.json(&["show", "-json", "plan"])["planned_values"].take();
            let mut given = planned.get("outputs").map(answers).unwrap_or_default();
            given.insert("plan".to_owned(), planned["root_module"]["resources"][0]["values"].clone());
            given
        } else {
            stand.run(&["apply", "-auto-approve"], 0);
            stand.run(&["plan", "-detailed-exitcode"], 0);
            answers(&stand.json(&["output", "-json"]))
        };
        let given = Value::Object(given);
        for (at, value) in expected(&function) {
            assert_eq!(given.pointer(at).unwrap_or(&Value::Null), &value, "{function}, at {at:?}: {given:#}");
        }
    }
}

#[test]
fn instance_types_need_no_cloud() {
    let Some(stand) = Stand::new() else { return };
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data-sources/karp_instance_types/data-source.tf");
    stand.write(&example);
    stand.run(&["apply", "-auto-approve"], 0);
    let cheapest = stand.run(&["output", "-raw", "cheapest"], 0);
    assert!(cheapest.contains('.'), "a type's name: {cheapest}");
    stand.run(&["plan", "-detailed-exitcode"], 0);
}

#[test]
fn a_new_pool_is_previewed_without_any_cluster() {
    let Some(stand) = Stand::new() else { return };
    let pool = "resource \"karp_node_pool\" \"it\" {\n  name = \"arm\"\n  template = {\n    node_class_ref = { name = \"default\" }\n    \
                requirements = [{ key = \"kubernetes.io/arch\", operator = \"In\", values = [\"arm64\"] }]\n  }\n}\n";
    let later = "resource \"terraform_data\" \"host\" {\n  input = \"https://cluster.example\"\n}\n";
    for block in [
        "provider \"karp\" {}\n".to_owned(),
        format!("{later}provider \"karp\" {{\n  kubernetes = {{ host = terraform_data.host.output }}\n}}\n"),
        format!("{later}provider \"karp\" {{\n  cluster_name = terraform_data.host.output\n}}\n"),
    ] {
        stand.put(&format!("{block}{pool}"));
        let plan = stand.run(&["plan"], 0);
        // OpenTofu breaks lines.
        let flat = plan.split_whitespace().collect::<Vec<_>>().join(" ");
        let summary = plan.lines().find(|line| line.contains("NodePool \"arm\": ")).unwrap_or_else(|| panic!("{plan}"));
        let types = summary.split("NodePool \"arm\": ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        assert!(types > Some(50), "{block}: {summary}");
        assert!(flat.contains("the cheapest at $") && flat.contains("a typical one at $"), "{block}: {plan}");
    }
    stand.put(&format!("provider \"karp\" {{\n  offline_plan = true\n}}\n{pool}"));
    let plan = stand.run(&["plan"], 0);
    assert!(!plan.contains("NodePool \"arm\""), "silent: {plan}");
}

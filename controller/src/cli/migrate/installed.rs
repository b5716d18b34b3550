//! Karpenter's controller as it is installed: for which cluster, and what of AWS it uses.

use karp_domain::flag;
use karp_domain::gates::GATES;
use serde_json::{Value as Json, json};

use super::hcl::Value;
use crate::files::Manifest;
use crate::options::FeatureGates;

/// By which Karpenter's chart names what is its own.
const NAME_LABEL: &str = "app.kubernetes.io/name";
const KARPENTER: &str = "karpenter";
/// Who made a Deployment; karp's own has the same name.
const MADE_BY_LABEL: &str = "app.kubernetes.io/managed-by";
const KARP: &str = "karp";
/// Its settings as the chart writes them since 0.32.
const CLUSTER: &str = "CLUSTER_NAME";
const QUEUE: &str = "INTERRUPTION_QUEUE";
const FEATURE_GATES: &str = "FEATURE_GATES";
/// Others of them: what each is called in `karp_controller`, and what it is where nothing is said.
const SETTINGS: [(&str, &str, &str); 16] = [
    ("AMI_REFRESH_INTERVAL", "settings.ami_refresh_interval", "1m"),
    ("BATCH_IDLE_DURATION", "settings.batch_idle_duration", "1s"),
    ("BATCH_MAX_DURATION", "settings.batch_max_duration", "10s"),
    ("CLUSTER_CA_BUNDLE", "settings.cluster_ca_bundle", ""),
    ("CLUSTER_ENDPOINT", "cluster_endpoint", ""),
    ("DISABLE_CLUSTER_STATE_OBSERVABILITY", "settings.disable_cluster_state_observability", "false"),
    ("DISABLE_DRY_RUN", "settings.disable_dry_run", "false"),
    ("EKS_CONTROL_PLANE", "settings.eks_control_plane", "false"),
    ("IGNORE_DRA_REQUESTS", "settings.ignore_dra_requests", "true"),
    ("ISOLATED_VPC", "settings.isolated_vpc", "false"),
    ("LOG_LEVEL", "log_level", "info"),
    ("MIN_VALUES_POLICY", "settings.min_values_policy", "Strict"),
    ("PREFERENCE_POLICY", "settings.preference_policy", "Respect"),
    ("RESERVED_ENIS", "settings.reserved_enis", "0"),
    ("SUBNET_REFRESH_INTERVAL", "settings.subnet_refresh_interval", "1m"),
    ("VM_MEMORY_OVERHEAD_PERCENT", "settings.vm_memory_overhead_percent", "0.075"),
];
/// By which a service account gets its role.
const ROLE: &str = "eks.amazonaws.com/role-arn";
/// What EKS labels pods with that run on Fargate.
const FARGATE: &str = "eks.amazonaws.com/fargate-profile";
/// What the chart, and karp without being told, choose nodes by.
const USUAL_NODES: (&str, &str) = ("kubernetes.io/os", "linux");
/// How many replicas `karp_controller` has where nothing is said, and how many it takes.
const USUAL_REPLICAS: u64 = 2;
const MOST_REPLICAS: u64 = 10;
/// The fields of a toleration, and their attributes.
const TOLERATION: [(&str, &str); 5] = [
    ("key", "key"),
    ("operator", "operator"),
    ("value", "value"),
    ("effect", "effect"),
    ("tolerationSeconds", "toleration_seconds"),
];

/// Says how Karpenter is installed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// Its Deployment, as `namespace/name`.
    pub deployment: String,
    /// The EKS cluster that it is for.
    pub cluster: Option<String>,
    /// The queue that it reads.
    pub queue: Option<String>,
    /// The role of its service account; none with Pod Identity.
    pub role: Option<String>,
    /// The namespace of its service account.
    pub namespace: String,
    /// Its service account.
    pub account: String,
    /// Whether one of its pods was seen on Fargate.
    pub on_fargate: bool,
    /// What is set otherwise than by default, by attribute of `karp_controller`.
    pub settings: Vec<(&'static str, Value)>,
}

impl Installed {
    /// Says whether it gets its role by its service account: Fargate knows no other way.
    pub fn uses_irsa(&self) -> bool {
        self.role.is_some() || self.on_fargate
    }
}

/// Finds Karpenter's controller; nothing where there is none, or several.
pub fn find(manifests: &[Manifest]) -> Option<Installed> {
    let mut found = manifests.iter().filter(|one| one.kind == "Deployment" && is_karpenters(&one.object));
    let (deployment, None) = (found.next()?, found.next()) else { return None };
    let object = &deployment.object;
    let metadata = &object["metadata"];
    let (namespace, account) = account(object);
    let role = manifests.iter().filter(|one| one.kind == "ServiceAccount").find_map(|one| {
        let own = &one.object["metadata"];
        let same = own["name"].as_str() == Some(account) && own["namespace"].as_str().unwrap_or("default") == namespace;
        own["annotations"][ROLE].as_str().filter(|_| same).map(str::to_owned)
    });
    let on_fargate = manifests.iter().filter(|one| one.kind == "Pod").any(|one| {
        let own = &one.object["metadata"];
        own["namespace"] == namespace && own["labels"][NAME_LABEL] == KARPENTER && !own["labels"][FARGATE].is_null()
    });
    Some(Installed {
        deployment: format!("{namespace}/{}", metadata["name"].as_str().unwrap_or(KARPENTER)),
        cluster: setting(object, CLUSTER),
        queue: setting(object, QUEUE),
        role,
        namespace: namespace.to_owned(),
        account: account.to_owned(),
        on_fargate,
        settings: settings(object),
    })
}

/// Says whether a Deployment is Karpenter's controller.
pub fn is_karpenters(deployment: &Json) -> bool {
    let labels = &deployment["metadata"]["labels"];
    labels[NAME_LABEL] == KARPENTER && labels[MADE_BY_LABEL] != KARP
}

/// The service account of a Deployment, by namespace and name.
pub fn account(deployment: &Json) -> (&str, &str) {
    let namespace = deployment["metadata"]["namespace"].as_str().unwrap_or("default");
    (namespace, deployment["spec"]["template"]["spec"]["serviceAccountName"].as_str().unwrap_or("default"))
}

/// What is kept of a service account.
pub fn slim_account(account: &Json) -> Json {
    let metadata = &account["metadata"];
    json!({ "metadata": { "name": metadata["name"], "namespace": metadata["namespace"],
        "annotations": { ROLE: metadata["annotations"][ROLE] } } })
}

/// Puts into what is kept of Karpenter's Deployment and pods how it is installed; of its environment only what is looked at.
pub fn keep(deployment: &Json, kept: &mut Json) {
    if !is_karpenters(deployment) {
        return;
    }
    let value = |name: &str| setting(deployment, name).map(|value| json!({ "name": name, "value": value }));
    let names = [CLUSTER, QUEUE, FEATURE_GATES].into_iter().chain(SETTINGS.map(|(name, ..)| name));
    let env: Vec<Json> = names.filter_map(value).collect();
    kept["metadata"]["labels"] = json!({ NAME_LABEL: KARPENTER });
    let profile = &deployment["metadata"]["labels"][FARGATE];
    if !profile.is_null() {
        kept["metadata"]["labels"][FARGATE] = profile.clone();
    }
    kept["spec"]["replicas"] = deployment["spec"]["replicas"].clone();
    kept["spec"]["template"]["spec"]["serviceAccountName"] = json!(account(deployment).1);
    let resources = container(deployment).map(|container| &container["resources"]);
    kept["spec"]["template"]["spec"]["containers"] = json!([{ "env": env, "resources": resources }]);
}

fn containers(deployment: &Json) -> impl Iterator<Item = &Json> {
    deployment["spec"]["template"]["spec"]["containers"].as_array().into_iter().flatten()
}

/// The container that Karpenter runs in: the one of the chart's name, else the first.
fn container(deployment: &Json) -> Option<&Json> {
    containers(deployment).find(|one| one["name"] == "controller").or_else(|| containers(deployment).next())
}

/// Gives a setting, as Karpenter takes it: by its flag, or else by its variable. A flag that is an empty text says that there is none.
fn setting(deployment: &Json, name: &str) -> Option<String> {
    let flag = name.to_ascii_lowercase().replace('_', "-");
    let usual = SETTINGS.iter().find(|(known, ..)| *known == name).map_or("", |(_, _, usual)| *usual);
    if let Some(given) = containers(deployment).find_map(|container| argument(container, &flag, usual)) {
        return Some(given).filter(|given| !given.is_empty());
    }
    let env = containers(deployment).filter_map(|container| container["env"].as_array()).flatten();
    let mut values = env.filter(|one| one["name"] == name).filter_map(|one| one["value"].as_str());
    values.find(|value| !value.is_empty()).map(str::to_owned)
}

/// Gives what a container's arguments say for a flag, as Go reads them: one or two dashes, the value behind `=` or as the next word; the last
/// one counts, and a flag alone is true, as one of a truth value is whatever the next word. One that refers to a variable, as `$(CLUSTER_NAME)` does,
/// says nothing by itself. By what is `usual` it is known what the value is: only a text may be empty.
fn argument(container: &Json, flag: &str, usual: &str) -> Option<String> {
    let words = ["command", "args"].into_iter().filter_map(|field| container[field].as_array()).flatten();
    let words: Vec<&str> = words.filter_map(Json::as_str).collect();
    let last = words.iter().enumerate().rev().find_map(|(at, word)| {
        let value = match word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?.strip_prefix(flag)? {
            "" if matches!(usual, "true" | "false") => "true",
            "" => words.get(at + 1).copied().filter(|next| !next.starts_with('-')).unwrap_or("true"),
            rest => rest.strip_prefix('=')?,
        };
        (usual.is_empty() || !value.is_empty()).then_some(value)
    });
    last.filter(|value| !value.contains("$(")).map(str::to_owned)
}

/// Gives what a Deployment sets otherwise than by default.
fn settings(deployment: &Json) -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    for (name, attribute, usual) in SETTINGS {
        let value = setting(deployment, name).map(|text| typed(&text, usual));
        all.extend(value.filter(|value| *value != typed(usual, usual)).map(|value| (attribute, value)));
    }
    let gates: Option<FeatureGates> = setting(deployment, FEATURE_GATES).and_then(|text| text.parse().ok());
    let gates = gates.unwrap_or_default();
    let mut changed = Vec::new();
    for (name, usual) in GATES {
        if gates.enabled(name) != usual {
            changed.push((name.to_owned(), Value::Bare((!usual).to_string())));
        }
    }
    if !changed.is_empty() {
        all.push(("feature_gates", Value::Object(changed)));
    }
    all.extend(workload(deployment));
    all
}

/// Gives what a Deployment says of its pods, and how many there are. One that was scaled to 0 already says nothing of that.
fn workload(deployment: &Json) -> Vec<(&'static str, Value)> {
    let (spec, pod) = (&deployment["spec"], &deployment["spec"]["template"]["spec"]);
    let mut all = Vec::new();
    let replicas = spec["replicas"].as_u64().filter(|count| (1..=MOST_REPLICAS).contains(count));
    if let Some(count) = replicas.filter(|count| *count != USUAL_REPLICAS) {
        all.push(("replicas", Value::Bare(count.to_string())));
    }
    let mut nodes = texts(&pod["nodeSelector"]);
    nodes.retain(|(key, value)| (key.as_str(), value) != (USUAL_NODES.0, &Value::text(USUAL_NODES.1)));
    if !nodes.is_empty() {
        all.push(("node_selector", Value::Object(nodes)));
    }
    let amounts = |part: &str| container(deployment).map_or_else(Vec::new, |one| texts(&one["resources"][part]));
    let parts = ["limits", "requests"].map(|part| (part.to_owned(), amounts(part))).into_iter();
    let parts = parts.filter(|(_, amounts)| !amounts.is_empty()).map(|(part, amounts)| (part, Value::Object(amounts)));
    let parts: Vec<_> = parts.collect();
    if !parts.is_empty() {
        all.push(("resources", Value::Object(parts)));
    }
    let usual = json!([{ "key": "CriticalAddonsOnly", "operator": "Exists" }]);
    if let Some(tolerations) = pod["tolerations"].as_array().filter(|_| pod["tolerations"] != usual) {
        all.push(("tolerations", Value::List(tolerations.iter().map(toleration).collect())));
    }
    all
}

fn toleration(toleration: &Json) -> Value {
    let fields = TOLERATION.iter().filter(|(field, _)| !toleration[*field].is_null());
    Value::Object(fields.map(|(field, name)| ((*name).to_owned(), Value::of_json(&toleration[*field]))).collect())
}

/// Writes a map of texts in the order of its keys; amounts may be numbers.
fn texts(map: &Json) -> Vec<(String, Value)> {
    let text = |value: &Json| Value::text(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let all = map.as_object().into_iter().flatten();
    let mut all: Vec<_> = all.map(|(key, value)| (key.clone(), text(value))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Writes a setting as what its default is: a truth value, a number or a text.
fn typed(text: &str, usual: &str) -> Value {
    // as HCL reads it, which wants digits on both sides of the dot; a text does for it as well
    let is_number = |text: &str| {
        let ends = text.starts_with('.') || text.ends_with('.');
        !ends && text.parse::<f64>().is_ok() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    match flag::parse(text) {
        Some(on) if matches!(usual, "true" | "false") => Value::Bare(on.to_string()),
        _ if is_number(usual) && is_number(text) => Value::Bare(text.to_owned()),
        _ => Value::text(text),
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;
    use crate::cli::migrate::objects::of_cluster;
    use crate::options::Options;

    fn manifest(kind: &str, object: Json) -> Manifest {
        Manifest { origin: of_cluster(), version: "v1".to_owned(), kind: kind.to_owned(), object }
    }

    fn deployment(name: &str) -> Json {
        json!({ "metadata": { "name": name, "namespace": "kube-system", "labels": { NAME_LABEL: KARPENTER } },
            "spec": { "template": { "spec": { "serviceAccountName": "karpenter", "containers": [{ "name": "controller",
                "env": [{ "name": CLUSTER, "value": "prod" }, { "name": QUEUE, "value": "" },
                    { "name": "TOKEN", "value": "hunter2" },
                    { "name": "RESERVED_ENIS", "value": "1" }, { "name": "ISOLATED_VPC", "value": "True" },
                    { "name": "DISABLE_DRY_RUN", "value": "F" }, { "name": "BATCH_IDLE_DURATION", "value": "5s" },
                    { "name": "FEATURE_GATES", "value": "ReservedCapacity=false,NodeRepair=true,Later=true" },
                    { "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }] }] } } } })
    }

    #[test]
    fn what_is_kept_says_how_it_is_installed_and_nothing_more() {
        let mut kept = json!({ "metadata": { "name": "karpenter", "namespace": "kube-system" } });
        keep(&deployment("karpenter"), &mut kept);
        assert!(!kept.to_string().contains("hunter2"), "{kept}");
        let account = json!({ "metadata": { "name": "karpenter", "namespace": "kube-system", "annotations":
            { ROLE: "arn:aws:iam::111122223333:role/Karpenter-prod", "other": "x" } }, "secrets": [] });
        let all = [manifest("Deployment", kept), manifest("ServiceAccount", slim_account(&account))];
        let wanted = Installed {
            deployment: "kube-system/karpenter".to_owned(),
            cluster: Some("prod".to_owned()),
            queue: None,
            role: Some("arn:aws:iam::111122223333:role/Karpenter-prod".to_owned()),
            namespace: "kube-system".to_owned(),
            account: "karpenter".to_owned(),
            on_fargate: false,
            settings: vec![
                ("settings.batch_idle_duration", Value::text("5s")),
                ("settings.isolated_vpc", Value::Bare("true".to_owned())),
                ("settings.reserved_enis", Value::Bare("1".to_owned())),
                (
                    "feature_gates",
                    Value::Object(vec![
                        ("NodeRepair".to_owned(), Value::Bare("true".to_owned())),
                        ("ReservedCapacity".to_owned(), Value::Bare("false".to_owned())),
                    ]),
                ),
            ],
        };
        assert_eq!(find(&all), Some(wanted));
    }

    /// Finds a Deployment of this spec, as it is in files and as a live cluster's is kept: both must say the same.
    fn found(change: impl FnOnce(&mut Json)) -> Installed {
        let mut whole = deployment("karpenter");
        change(&mut whole["spec"]);
        let pod = &whole["spec"]["template"]["spec"];
        let mut kept = json!({ "metadata": { "name": "karpenter", "namespace": "kube-system" },
            "spec": { "template": { "spec": { "nodeSelector": pod["nodeSelector"], "tolerations": pod["tolerations"] } } } });
        keep(&whole, &mut kept);
        let [whole, kept] = [whole, kept].map(|one| find(&[manifest("Deployment", one)]).expect("Karpenter"));
        assert_eq!(whole, kept);
        whole
    }

    #[test]
    fn how_its_pods_run_is_told_where_karps_would_run_otherwise() {
        let usual = found(|spec| {
            spec["replicas"] = json!(2);
            spec["template"]["spec"]["nodeSelector"] = json!({ "kubernetes.io/os": "linux" });
            spec["template"]["spec"]["tolerations"] = json!([{ "key": "CriticalAddonsOnly", "operator": "Exists" }]);
            spec["template"]["spec"]["containers"][0]["resources"] = json!({});
        });
        assert_eq!(usual, found(|_| {}));
        assert_eq!(usual, found(|spec| spec["replicas"] = json!(0)), "it was stopped for the migration");
        let told = found(|spec| {
            spec["replicas"] = json!(3);
            spec["template"]["spec"]["nodeSelector"] = json!({ "kubernetes.io/os": "linux", "pool": "system" });
            spec["template"]["spec"]["tolerations"] =
                json!([{ "key": "system", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60 }]);
            spec["template"]["spec"]["containers"][0]["resources"] =
                json!({ "requests": { "memory": "1Gi", "cpu": 1 } });
        });
        let told: Vec<String> = told.settings[usual.settings.len()..]
            .iter()
            .map(|(name, value)| format!("{name} = {}", value.inline()))
            .collect();
        assert_eq!(
            told,
            [
                "replicas = 3",
                r#"node_selector = { pool = "system" }"#,
                r#"resources = { requests = { cpu = "1", memory = "1Gi" } }"#,
                r#"tolerations = [{ key = "system", operator = "Exists", effect = "NoExecute", toleration_seconds = 60 }]"#,
            ]
        );
    }

    #[test]
    fn a_flag_counts_before_its_variable() {
        let told = found(|spec| {
            spec["template"]["spec"]["containers"][0]["args"] = json!([
                "--cluster-name=old",
                "--cluster-name=other",
                "-interruption-queue",
                "queue",
                "--isolated-vpc=false",
                "--reserved-enis=",
                "--batch-idle-durations=7s",
                "--disable-dry-run"
            ]);
        });
        assert_eq!((told.cluster.as_deref(), told.queue.as_deref()), (Some("other"), Some("queue")));
        let of = |name: &str| told.settings.iter().find(|(one, _)| *one == name).map(|(_, value)| value.inline());
        assert_eq!(of("settings.isolated_vpc"), None);
        assert_eq!(of("settings.reserved_enis").as_deref(), Some("1"));
        assert_eq!(of("settings.batch_idle_duration").as_deref(), Some("\"5s\""));
        assert_eq!(of("settings.disable_dry_run").as_deref(), Some("true"));
    }

    #[test]
    fn flags_are_read_as_go_reads_them() {
        let told = found(|spec| {
            let container = &mut spec["template"]["spec"]["containers"][0];
            container["env"][1]["value"] = json!("queue");
            container["args"] =
                json!(["--interruption-queue=", "--cluster-name", "other", "--disable-dry-run", "false"]);
        });
        assert_eq!((told.cluster.as_deref(), told.queue), (Some("other"), None), "an empty one overrides its variable");
        let dry_run = told.settings.iter().find(|(one, _)| *one == "settings.disable_dry_run");
        assert_eq!(dry_run.map(|(_, value)| value.inline()).as_deref(), Some("true"), "the next word is none of it");
    }

    #[test]
    fn a_flag_that_refers_to_a_variable_is_what_the_variable_says() {
        let told = found(|spec| {
            spec["template"]["spec"]["containers"][0]["args"] = json!([
                "--cluster-name=old",
                "--cluster-name=$(CLUSTER_NAME)",
                "--interruption-queue",
                "$(QUEUE)-prod"
            ]);
        });
        assert_eq!((told.cluster.as_deref(), told.queue), (Some("prod"), None));
    }

    #[test]
    fn a_pod_on_fargate_says_where_it_runs() {
        let labels = json!({ NAME_LABEL: KARPENTER, FARGATE: "karpenter" });
        let pod = json!({ "metadata": { "name": "karpenter-1", "namespace": "kube-system", "labels": labels } });
        let mut kept = json!({ "metadata": { "name": "karpenter-1", "namespace": "kube-system" } });
        keep(&pod, &mut kept);
        let on_fargate = |pod: Json| {
            let all = [manifest("Deployment", deployment("karpenter")), manifest("Pod", pod)];
            find(&all).expect("Karpenter").on_fargate
        };
        assert!(on_fargate(kept.clone()) && on_fargate(pod));
        kept["metadata"]["namespace"] = json!("elsewhere");
        assert!(!on_fargate(kept));
    }

    #[test]
    fn settings_have_the_controllers_defaults_and_the_resources_names() {
        let page = std::fs::read_to_string(format!("{}/../docs/resources/controller.md", env!("CARGO_MANIFEST_DIR")));
        let page = page.expect("a page");
        let command = Options::augment_args(clap::Command::new("karp"));
        for (name, attribute, usual) in SETTINGS {
            let argument = command.get_arguments().find(|one| one.get_env().is_some_and(|env| env == name));
            let argument = argument.unwrap_or_else(|| panic!("{name} is no option"));
            let default: Vec<_> =
                argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
            assert_eq!(default, [usual], "{name}");
            let attribute = attribute.trim_start_matches("settings.");
            assert!(page.contains(&format!("- `{attribute}` (")), "{attribute} is no attribute");
        }
    }

    #[test]
    fn a_number_is_bare_where_hcl_can_read_it() {
        for number in ["0.05", "2"] {
            assert_eq!(typed(number, "0.075"), Value::Bare(number.to_owned()));
        }
        for other in [".05", "5.", "1.2.3", "1e-2", "all"] {
            assert_eq!(typed(other, "0.075"), Value::text(other));
        }
    }

    #[test]
    fn nobody_guesses_between_two() {
        let all = [manifest("Deployment", deployment("a")), manifest("Deployment", deployment("b"))];
        assert_eq!(find(&all), None);
        let other = json!({ "metadata": { "name": "karpenter", "namespace": "default" } });
        assert_eq!(find(&[manifest("Deployment", other)]), None, "a name alone says nothing");
        let mut own = deployment("karpenter");
        own["metadata"]["labels"][MADE_BY_LABEL] = json!(KARP);
        assert_eq!(find(&[manifest("Deployment", own)]), None, "that is karp's");
    }
}

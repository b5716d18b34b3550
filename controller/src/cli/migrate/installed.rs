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
    /// What is set otherwise than by default, by attribute of `karp_controller`.
    pub settings: Vec<(&'static str, Value)>,
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
    Some(Installed {
        deployment: format!("{namespace}/{}", metadata["name"].as_str().unwrap_or(KARPENTER)),
        cluster: setting(object, CLUSTER),
        queue: setting(object, QUEUE),
        role,
        namespace: namespace.to_owned(),
        account: account.to_owned(),
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

/// Puts into what is kept of Karpenter's Deployment how it is installed; of its environment only what is looked at.
pub fn keep(deployment: &Json, kept: &mut Json) {
    if !is_karpenters(deployment) {
        return;
    }
    let value = |name: &str| setting(deployment, name).map(|value| json!({ "name": name, "value": value }));
    let names = [CLUSTER, QUEUE, FEATURE_GATES].into_iter().chain(SETTINGS.map(|(name, ..)| name));
    let env: Vec<Json> = names.filter_map(value).collect();
    kept["metadata"]["labels"] = json!({ NAME_LABEL: KARPENTER });
    kept["spec"]["template"]["spec"]["serviceAccountName"] = json!(account(deployment).1);
    kept["spec"]["template"]["spec"]["containers"] = json!([{ "env": env }]);
}

fn setting(deployment: &Json, name: &str) -> Option<String> {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array()?;
    let env = containers.iter().filter_map(|container| container["env"].as_array()).flatten();
    let mut values = env.filter(|one| one["name"] == name).filter_map(|one| one["value"].as_str());
    values.find(|value| !value.is_empty()).map(str::to_owned)
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
    all
}

/// Writes a setting as what its default is: a truth value, a number or a text.
fn typed(text: &str, usual: &str) -> Value {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
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

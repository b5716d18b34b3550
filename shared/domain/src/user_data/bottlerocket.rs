//! Bottlerocket: settings in TOML; the node class's own settings are kept, karp's keys win.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use toml::{Table, Value};

use super::kubelet::CLUSTER_DNS;
use super::{Bootstrap, Error};

/// Kubelet settings by their name in KubeletConfiguration, with Bottlerocket's name and form (Bottlerocket's settings reference,
/// `settings.kubernetes`).
const KUBELET: [(&str, &str, Form); 32] = [
    ("allowedUnsafeSysctls", "allowed-unsafe-sysctls", Form::Plain),
    ("clusterDomain", "cluster-domain", Form::Plain),
    ("containerLogMaxFiles", "container-log-max-files", Form::Plain),
    ("containerLogMaxSize", "container-log-max-size", Form::Plain),
    ("containerLogMaxWorkers", "container-log-max-workers", Form::Plain),
    ("containerLogMonitorInterval", "container-log-monitor-interval", Form::Plain),
    ("cpuCFSQuota", "cpu-cfs-quota-enforced", Form::Plain),
    ("cpuManagerPolicy", "cpu-manager-policy", Form::Plain),
    ("cpuManagerReconcilePeriod", "cpu-manager-reconcile-period", Form::Plain),
    ("eventBurst", "event-burst", Form::Plain),
    ("eventRecordQPS", "event-qps", Form::Plain),
    ("evictionHard", "eviction-hard", Form::Plain),
    ("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", Form::Plain),
    ("evictionSoft", "eviction-soft", Form::Plain),
    ("evictionSoftGracePeriod", "eviction-soft-grace-period", Form::Plain),
    ("imageGCHighThresholdPercent", "image-gc-high-threshold-percent", Form::Text),
    ("imageGCLowThresholdPercent", "image-gc-low-threshold-percent", Form::Text),
    ("kubeAPIBurst", "kube-api-burst", Form::Plain),
    ("kubeAPIQPS", "kube-api-qps", Form::Plain),
    ("kubeReserved", "kube-reserved", Form::Plain),
    ("maxPods", "max-pods", Form::Plain),
    ("podPidsLimit", "pod-pids-limit", Form::Plain),
    ("registryBurst", "registry-burst", Form::Plain),
    ("registryPullQPS", "registry-qps", Form::Plain),
    ("seccompDefault", "seccomp-default", Form::Plain),
    ("serverTLSBootstrap", "server-tls-bootstrap", Form::Plain),
    ("shutdownGracePeriod", "shutdown-grace-period", Form::Plain),
    ("shutdownGracePeriodCriticalPods", "shutdown-grace-period-for-critical-pods", Form::Plain),
    ("singleProcessOOMKill", "single-process-oom-kill", Form::Plain),
    ("systemReserved", "system-reserved", Form::Plain),
    ("topologyManagerPolicy", "topology-manager-policy", Form::Plain),
    ("topologyManagerScope", "topology-manager-scope", Form::Plain),
];
/// Where the local disks are mounted when they are striped.
const INSTANCE_STORAGE_DIRS: [&str; 3] = ["/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"];
/// Where layers of images lie when the SOCI snapshotter unpacks them.
const SOCI_DIR: &str = "/var/lib/soci-snapshotter";

#[derive(Clone, Copy)]
enum Form {
    /// The value as it is.
    Plain,
    /// A number that Bottlerocket wants as text.
    Text,
}

/// Says whether a kubelet setting has a name in Bottlerocket.
pub(super) fn knows(key: &str) -> bool {
    KUBELET.iter().any(|(name, ..)| *name == key)
}

pub(super) fn render(bootstrap: &Bootstrap) -> Result<String, Error> {
    let mut root: Table = bootstrap.custom.as_deref().unwrap_or_default().parse().map_err(Error::NotToml)?;
    let settings = table(&mut root, "settings", "settings")?;
    let kubernetes = table(settings, "kubernetes", "settings.kubernetes")?;
    for (key, value) in [
        ("cluster-name", &bootstrap.cluster.name),
        ("api-server", &bootstrap.cluster.endpoint),
        ("cluster-certificate", &bootstrap.cluster.certificate_authority),
    ] {
        kubernetes.insert(key.to_owned(), Value::String(value.clone()));
    }
    for (key, name, form) in KUBELET {
        if let Some(value) = bootstrap.kubelet.get(key).and_then(|value| convert(value, form)) {
            kubernetes.insert(name.to_owned(), value);
        }
    }
    if let Some(dns) = resolvers(bootstrap) {
        kubernetes.insert("cluster-dns-ip".to_owned(), dns);
    }
    let labels = table(kubernetes, "node-labels", "settings.kubernetes.node-labels")?;
    labels.extend(bootstrap.labels.iter().map(|(key, value)| (key.clone(), Value::String(value.clone()))));
    // Taints of the class's own user data would be unknown to the plan: a node has those of its claim and no others.
    kubernetes.insert("node-taints".to_owned(), Value::Table(taints_by_key(bootstrap).into_iter().collect()));
    // Instances of a fleet never reach the state of an Auto Scaling group that this setting makes them wait for.
    if let Some(wait) =
        settings.get_mut("autoscaling").and_then(Value::as_table_mut).and_then(|s| s.get_mut("should-wait"))
    {
        *wait = Value::Boolean(false);
    }
    if bootstrap.raid0 {
        let snapshotter = settings.get("container-runtime").and_then(|runtime| runtime.get("snapshotter"));
        let soci = snapshotter.and_then(Value::as_str) == Some("soci");
        let commands = table(settings, "bootstrap-commands", "settings.bootstrap-commands")?;
        commands.insert("000-mount-instance-storage".to_owned(), Value::Table(mount_instance_storage(soci)));
    }
    toml::to_string(&root).map_err(|error| Error::Write(error.to_string()))
}

/// Returns the table under `key`, made when it is not there.
fn table<'a>(parent: &'a mut Table, key: &str, path: &str) -> Result<&'a mut Table, Error> {
    parent
        .entry(key)
        .or_insert_with(|| Value::Table(Table::new()))
        .as_table_mut()
        .ok_or_else(|| Error::Shape { path: path.to_owned(), expected: "a table" })
}

fn taints_by_key(bootstrap: &Bootstrap) -> BTreeMap<String, Value> {
    let mut taints: BTreeMap<String, Value> = BTreeMap::new();
    for taint in &bootstrap.taints {
        let text = Value::String(format!("{}:{}", taint.value, taint.effect.as_str()));
        let entry = taints.entry(taint.key.clone()).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(effects) = entry {
            effects.push(text);
        }
    }
    taints
}

fn convert(value: &Json, form: Form) -> Option<Value> {
    match (value, form) {
        (Json::Null, _) => None,
        (Json::Number(number), Form::Text) => Some(Value::String(number.to_string())),
        (Json::Number(number), Form::Plain) => {
            number.as_i64().map(Value::Integer).or_else(|| number.as_f64().map(Value::Float))
        }
        (Json::Bool(flag), _) => Some(Value::Boolean(*flag)),
        (Json::String(text), _) => Some(Value::String(text.clone())),
        (Json::Array(items), _) => Some(Value::Array(items.iter().filter_map(|item| convert(item, form)).collect())),
        (Json::Object(fields), _) => {
            let fields = fields.iter().filter_map(|(key, value)| Some((key.clone(), convert(value, form)?)));
            Some(Value::Table(fields.collect()))
        }
    }
}

/// Gives the address of the cluster's resolver, or all that the class lists.
fn resolvers(bootstrap: &Bootstrap) -> Option<Value> {
    let own = bootstrap.kubelet.get(CLUSTER_DNS);
    let several = own.filter(|all| all.as_array().is_some_and(|all| all.len() > 1));
    several.and_then(|all| convert(all, Form::Plain)).or_else(|| bootstrap.dns().map(Value::String))
}

fn mount_instance_storage(soci: bool) -> Table {
    let command = |words: &[&str]| Value::Array(words.iter().map(|word| Value::String((*word).to_owned())).collect());
    let mut bind = vec!["apiclient", "ephemeral-storage", "bind", "--dirs"];
    bind.extend(INSTANCE_STORAGE_DIRS);
    // Older images know no such folder, and have no such snapshotter either.
    bind.extend(soci.then_some(SOCI_DIR));
    let commands = vec![command(&["apiclient", "ephemeral-storage", "init"]), command(&bind)];
    Table::from_iter([
        ("commands".to_owned(), Value::Array(commands)),
        ("mode".to_owned(), Value::String("always".to_owned())),
        ("essential".to_owned(), Value::Boolean(true)),
    ])
}

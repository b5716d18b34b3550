//! Bottlerocket: settings in TOML; the node class's own settings are kept, karp's keys win.

use super::{Bootstrap, Error};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// Kubelet settings by their Kubernetes name, with Bottlerocket's name and form.
const KUBELET: [(&str, &str, Form); 13] = [
    ("clusterDNS", "cluster-dns-ip", Form::Plain),
    ("cpuCFSQuota", "cpu-cfs-quota-enforced", Form::Plain),
    ("cpuManagerPolicy", "cpu-manager-policy", Form::Plain),
    ("evictionHard", "eviction-hard", Form::Plain),
    ("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", Form::Plain),
    ("evictionSoft", "eviction-soft", Form::Plain),
    ("evictionSoftGracePeriod", "eviction-soft-grace-period", Form::Plain),
    ("imageGCHighThresholdPercent", "image-gc-high-threshold-percent", Form::Text),
    ("imageGCLowThresholdPercent", "image-gc-low-threshold-percent", Form::Text),
    ("kubeReserved", "kube-reserved", Form::Plain),
    ("maxPods", "max-pods", Form::Plain),
    ("systemReserved", "system-reserved", Form::Plain),
    ("topologyManagerPolicy", "topology-manager-policy", Form::Plain),
];
/// Where the local disks are mounted when they are striped.
const INSTANCE_STORAGE_DIRS: [&str; 3] = ["/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"];

#[derive(Clone, Copy)]
enum Form {
    /// The value as it is.
    Plain,
    /// A number that Bottlerocket wants as text.
    Text,
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
    let labels = table(kubernetes, "node-labels", "settings.kubernetes.node-labels")?;
    labels.extend(bootstrap.labels.iter().map(|(key, value)| (key.clone(), Value::String(value.clone()))));
    let taints = table(kubernetes, "node-taints", "settings.kubernetes.node-taints")?;
    taints.extend(taints_by_key(bootstrap));
    if bootstrap.raid0 {
        let commands = table(settings, "bootstrap-commands", "settings.bootstrap-commands")?;
        commands.insert("000-mount-instance-storage".to_owned(), Value::Table(mount_instance_storage()));
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

fn mount_instance_storage() -> Table {
    let command = |words: &[&str]| Value::Array(words.iter().map(|word| Value::String((*word).to_owned())).collect());
    let mut bind = vec!["apiclient", "ephemeral-storage", "bind", "--dirs"];
    bind.extend(INSTANCE_STORAGE_DIRS);
    let commands = vec![command(&["apiclient", "ephemeral-storage", "init"]), command(&bind)];
    Table::from_iter([
        ("commands".to_owned(), Value::Array(commands)),
        ("mode".to_owned(), Value::String("always".to_owned())),
        ("essential".to_owned(), Value::Boolean(true)),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::{Family, render};
    use super::*;

    #[test]
    fn own_settings_are_kept_and_ours_win() {
        let custom = "[settings.kubernetes]\ncluster-name = \"theirs\"\nallowed-unsafe-sysctls = [\"net.core.somaxconn\"]\n\
                      [settings.kubernetes.node-labels]\nmine = \"kept\"\n[settings.motd]\nx = 1\n";
        let bootstrap = Bootstrap { custom: Some(custom.into()), ..super::super::tests::bootstrap() };
        let root: Table = render(Family::Bottlerocket, &bootstrap).expect("renders").parse().expect("TOML");
        let kubernetes = root["settings"]["kubernetes"].as_table().expect("a table");
        assert_eq!(kubernetes["cluster-name"].as_str(), Some("alpha"));
        assert_eq!(kubernetes["api-server"].as_str(), Some("https://alpha.example"));
        assert_eq!(kubernetes["cluster-certificate"].as_str(), Some("Q0E="));
        assert_eq!(kubernetes["max-pods"].as_integer(), Some(42));
        assert_eq!(kubernetes["system-reserved"]["cpu"].as_str(), Some("100m"));
        assert_eq!(kubernetes["allowed-unsafe-sysctls"].as_array().map(Vec::len), Some(1));
        assert_eq!(kubernetes["node-labels"]["mine"].as_str(), Some("kept"));
        assert_eq!(kubernetes["node-labels"]["karpenter.sh/nodepool"].as_str(), Some("default"));
        assert_eq!(kubernetes["node-labels"].get("kubernetes.io/role"), None);
        assert_eq!(kubernetes["node-taints"]["team"][0].as_str(), Some("a:NoSchedule"));
        assert_eq!(kubernetes["node-taints"]["karpenter.sh/unregistered"][0].as_str(), Some(":NoExecute"));
        assert_eq!(root["settings"]["motd"]["x"].as_integer(), Some(1));
    }

    #[test]
    fn what_is_no_toml_or_no_table_is_named() {
        let with = |custom: &str| {
            let bootstrap = Bootstrap { custom: Some(custom.into()), ..super::super::tests::bootstrap() };
            render(Family::Bottlerocket, &bootstrap)
        };
        assert!(matches!(with("#!/bin/sh\necho"), Err(Error::NotToml(_))));
        assert!(matches!(with("settings = 3"), Err(Error::Shape { path, .. }) if path == "settings"));
    }

    #[test]
    fn local_disks_are_striped_on_request() {
        let bootstrap = Bootstrap { raid0: true, ..super::super::tests::bootstrap() };
        let root: Table = render(Family::Bottlerocket, &bootstrap).expect("renders").parse().expect("TOML");
        let step = &root["settings"]["bootstrap-commands"]["000-mount-instance-storage"];
        assert_eq!(step["essential"].as_bool(), Some(true));
        assert_eq!(step["commands"].as_array().map(Vec::len), Some(2));
    }
}

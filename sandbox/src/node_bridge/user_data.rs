//! What an instance's user data tells its kubelet: a NodeConfig for nodeadm (AL2023) or settings in TOML (Bottlerocket).
//!
//! Read here in a way of our own, so that a mistake in what karp writes shows as a node that does not join.

use std::collections::BTreeMap;

use base64::Engine as _;
use k8s_openapi::api::core::v1::Taint;
use serde_json::Value;

/// Largest user data that EC2 takes, before base64.
const LIMIT_BYTES: usize = 16 * 1024;

/// What the user data says; values that it leaves out are the image's defaults.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kubelet {
    /// Name of the cluster to join.
    pub cluster_name: String,
    /// URL of the API server.
    pub api_server: String,
    /// CA of the API server, PEM in base64.
    pub certificate_authority: String,
    /// Labels to register with.
    pub labels: BTreeMap<String, String>,
    /// Taints to register with.
    pub taints: Vec<Taint>,
    /// Pod limit, where the user data sets one.
    pub max_pods: Option<u32>,
    /// Resources kept for Kubernetes' own daemons, where set.
    pub kube_reserved: Option<BTreeMap<String, String>>,
    /// Resources kept for the system's daemons.
    pub system_reserved: BTreeMap<String, String>,
    /// Hard eviction thresholds, where set.
    pub eviction_hard: Option<BTreeMap<String, String>>,
}

/// Why no kubelet starts from this user data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The user data is not base64 of UTF-8 text within EC2's limit.
    #[error("the user data cannot be read: {0}")]
    Encoding(String),
    /// No part of it is a NodeConfig.
    #[error("the user data holds no NodeConfig (a part application/node.eks.aws)")]
    NoNodeConfig,
    /// It is not valid YAML or TOML.
    #[error("the user data does not parse: {0}")]
    Syntax(String),
    /// A required setting is missing.
    #[error("the user data lacks {0}")]
    Missing(&'static str),
    /// A label, taint or number cannot be understood.
    #[error("{field} is malformed: {value}")]
    Value {
        /// Where it stands.
        field: &'static str,
        /// What stands there.
        value: String,
    },
}

/// Reads the user data (base64) of an instance that was started from a Bottlerocket image, or else from an AL2023 one.
///
/// # Errors
/// When a kubelet would not start from it.
pub fn read(user_data: &str, bottlerocket: bool) -> Result<Kubelet, Malformed> {
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(user_data.trim())
        .map_err(|error| Malformed::Encoding(error.to_string()))?;
    if bytes.len() > LIMIT_BYTES {
        return Err(Malformed::Encoding(format!("{} bytes, the limit is {LIMIT_BYTES}", bytes.len())));
    }
    let text = String::from_utf8(bytes).map_err(|error| Malformed::Encoding(error.to_string()))?;
    if bottlerocket { from_toml(&text) } else { from_node_configs(&text) }
}

/// Merges all NodeConfigs, later ones over earlier ones, as nodeadm does.
fn from_node_configs(text: &str) -> Result<Kubelet, Malformed> {
    let mut kubelet = Kubelet::default();
    let configs = node_configs(text);
    if configs.is_empty() {
        return Err(Malformed::NoNodeConfig);
    }
    for config in configs {
        let value: Value = serde_saphyr::from_str(&config).map_err(|error| Malformed::Syntax(error.to_string()))?;
        add_node_config(&mut kubelet, &value["spec"])?;
    }
    check(kubelet)
}

/// Returns the YAML of each NodeConfig: the whole text, or the parts of a MIME archive with the right type.
fn node_configs(text: &str) -> Vec<String> {
    let text = text.replace("\r\n", "\n");
    if text.trim_start().starts_with("apiVersion: node.eks.aws/") {
        return vec![text];
    }
    let Some((head, body)) = text.split_once("\n\n") else { return Vec::new() };
    let Some(boundary) = parameter(head, "boundary") else { return Vec::new() };
    body.split(&format!("--{boundary}"))
        .skip(usize::from(!body.starts_with(&format!("--{boundary}"))))
        .filter_map(|part| part.trim_start_matches('\n').split_once("\n\n"))
        .filter(|(head, _)| {
            header(head, "content-type").is_some_and(|kind| kind.starts_with("application/node.eks.aws"))
        })
        .map(|(_, content)| content.to_owned())
        .collect()
}

fn header(head: &str, name: &str) -> Option<String> {
    let unfolded = head.replace("\n ", " ").replace("\n\t", " ");
    let line =
        unfolded.lines().find(|line| line.split(':').next().is_some_and(|key| key.eq_ignore_ascii_case(name)))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn parameter(head: &str, name: &str) -> Option<String> {
    let kind = header(head, "content-type")?;
    let value =
        kind.split(';').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('=').map(str::to_owned))?;
    Some(value.trim_matches('"').to_owned())
}

fn add_node_config(kubelet: &mut Kubelet, spec: &Value) -> Result<(), Malformed> {
    for (field, key) in [
        (&mut kubelet.cluster_name, "name"),
        (&mut kubelet.api_server, "apiServerEndpoint"),
        (&mut kubelet.certificate_authority, "certificateAuthority"),
    ] {
        if let Some(value) = spec["cluster"][key].as_str() {
            value.clone_into(field);
        }
    }
    for flag in spec["kubelet"]["flags"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if let Some(labels) = flag.strip_prefix("--node-labels=") {
            for label in labels.split(',').filter(|label| !label.is_empty()) {
                let (key, value) = label
                    .split_once('=')
                    .ok_or_else(|| Malformed::Value { field: "--node-labels", value: label.to_owned() })?;
                kubelet.labels.insert(key.to_owned(), value.to_owned());
            }
        } else if let Some(taints) = flag.strip_prefix("--register-with-taints=") {
            for taint in taints.split(',').filter(|taint| !taint.is_empty()) {
                kubelet.taints.push(taint_of_flag(taint)?);
            }
        }
    }
    let config = &spec["kubelet"]["config"];
    for taint in config["registerWithTaints"].as_array().into_iter().flatten() {
        let read = serde_json::from_value(taint.clone());
        kubelet
            .taints
            .push(read.map_err(|_| Malformed::Value { field: "registerWithTaints", value: taint.to_string() })?);
    }
    add_limits(kubelet, config, ["maxPods", "kubeReserved", "systemReserved", "evictionHard"])
}

/// Reads `key=value:Effect`, the form of kubelet's flag.
fn taint_of_flag(text: &str) -> Result<Taint, Malformed> {
    let malformed = || Malformed::Value { field: "--register-with-taints", value: text.to_owned() };
    let (key, effect) = text.rsplit_once(':').ok_or_else(malformed)?;
    let (key, value) = key.split_once('=').unwrap_or((key, ""));
    taint(key, value, effect).ok_or_else(malformed)
}

fn taint(key: &str, value: &str, effect: &str) -> Option<Taint> {
    let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect);
    let value = (!value.is_empty()).then(|| value.to_owned());
    (known && !key.is_empty()).then(|| Taint {
        key: key.to_owned(),
        value,
        effect: effect.to_owned(),
        time_added: None,
    })
}

fn add_limits(
    kubelet: &mut Kubelet,
    config: &Value,
    [max_pods, kube, system, eviction]: [&str; 4],
) -> Result<(), Malformed> {
    if let Some(value) = config.get(max_pods).filter(|value| !value.is_null()) {
        let pods = value.as_u64().and_then(|pods| u32::try_from(pods).ok());
        kubelet.max_pods = Some(pods.ok_or_else(|| Malformed::Value { field: "maxPods", value: value.to_string() })?);
    }
    if let Some(reserved) = texts(&config[kube]) {
        kubelet.kube_reserved = Some(reserved);
    }
    if let Some(reserved) = texts(&config[system]) {
        kubelet.system_reserved = reserved;
    }
    if let Some(thresholds) = texts(&config[eviction]) {
        kubelet.eviction_hard = Some(thresholds);
    }
    Ok(())
}

fn texts(value: &Value) -> Option<BTreeMap<String, String>> {
    let fields = value.as_object()?.iter();
    Some(fields.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect())
}

fn from_toml(text: &str) -> Result<Kubelet, Malformed> {
    let root: toml::Table = text.parse().map_err(|error: toml::de::Error| Malformed::Syntax(error.to_string()))?;
    let root = serde_json::to_value(root).map_err(|error| Malformed::Syntax(error.to_string()))?;
    let settings = &root["settings"]["kubernetes"];
    let named = |key: &str| settings[key].as_str().unwrap_or_default().to_owned();
    let mut kubelet = Kubelet {
        cluster_name: named("cluster-name"),
        api_server: named("api-server"),
        certificate_authority: named("cluster-certificate"),
        labels: texts(&settings["node-labels"]).unwrap_or_default(),
        ..Kubelet::default()
    };
    for (key, values) in settings["node-taints"].as_object().into_iter().flatten() {
        for value in values.as_array().map_or_else(|| vec![values], |list| list.iter().collect()) {
            let malformed = || Malformed::Value { field: "node-taints", value: format!("{key}: {value}") };
            let (value, effect) = value.as_str().and_then(|text| text.rsplit_once(':')).ok_or_else(malformed)?;
            kubelet.taints.push(taint(key, value, effect).ok_or_else(malformed)?);
        }
    }
    add_limits(&mut kubelet, settings, ["max-pods", "kube-reserved", "system-reserved", "eviction-hard"])?;
    check(kubelet)
}

fn check(kubelet: Kubelet) -> Result<Kubelet, Malformed> {
    for (value, name) in [
        (&kubelet.cluster_name, "the cluster's name"),
        (&kubelet.api_server, "the API server's endpoint"),
        (&kubelet.certificate_authority, "the cluster's certificate"),
    ] {
        if value.is_empty() {
            return Err(Malformed::Missing(name));
        }
    }
    Ok(kubelet)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(text: &str) -> String {
        base64::engine::general_purpose::STANDARD.encode(text)
    }

    const NODE_CONFIG: &str = "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  cluster:\n    name: alpha\n    apiServerEndpoint: https://127.0.0.1:1\n    certificateAuthority: Q0E=\n    cidr: 10.0.0.0/16\n  kubelet:\n    config:\n      maxPods: 17\n      kubeReserved: {cpu: 80m}\n      registerWithTaints:\n      - {key: karpenter.sh/unregistered, effect: NoExecute}\n    flags:\n    - --node-labels=karpenter.sh/nodepool=default,team=a\n";

    fn archive(parts: &[(&str, &str)]) -> String {
        let parts: String =
            parts.iter().map(|(kind, text)| format!("\r\n--//\r\nContent-Type: {kind}\r\n\r\n{text}")).collect();
        encode(&format!(
            "MIME-Version: 1.0\r\nContent-Type: multipart/mixed;\r\n boundary=\"//\"\r\n\r\n{parts}\r\n--//--\r\n"
        ))
    }

    #[test]
    fn a_node_config_is_found_in_an_archive_and_alone() {
        for data in [
            encode(NODE_CONFIG),
            archive(&[
                ("text/x-shellscript", "#!/bin/sh\necho"),
                ("application/node.eks.aws; charset=\"us-ascii\"", NODE_CONFIG),
            ]),
        ] {
            let kubelet = read(&data, false).unwrap();
            assert_eq!((kubelet.cluster_name.as_str(), kubelet.max_pods), ("alpha", Some(17)));
            assert_eq!(kubelet.labels["karpenter.sh/nodepool"], "default");
            assert_eq!(kubelet.labels["team"], "a");
            assert_eq!(kubelet.taints, vec![taint("karpenter.sh/unregistered", "", "NoExecute").unwrap()]);
            assert_eq!(kubelet.kube_reserved.unwrap()["cpu"], "80m");
        }
    }

    #[test]
    fn later_node_configs_go_over_earlier_ones() {
        let first = "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec: {kubelet: {config: {maxPods: 5}, flags: [--node-labels=own=1]}}\n";
        let kubelet =
            read(&archive(&[("application/node.eks.aws", first), ("application/node.eks.aws", NODE_CONFIG)]), false)
                .unwrap();
        assert_eq!((kubelet.max_pods, kubelet.labels["own"].as_str()), (Some(17), "1"));
    }

    #[test]
    fn bottlerocket_settings_are_read() {
        let data = encode(
            "[settings.kubernetes]\ncluster-name = \"alpha\"\napi-server = \"https://127.0.0.1:1\"\ncluster-certificate = \"Q0E=\"\nmax-pods = 9\n\
             [settings.kubernetes.node-labels]\n\"team\" = \"a\"\n[settings.kubernetes.node-taints]\n\"k\" = [\"v:NoSchedule\", \":NoExecute\"]\n",
        );
        let kubelet = read(&data, true).unwrap();
        assert_eq!((kubelet.max_pods, kubelet.labels["team"].as_str()), (Some(9), "a"));
        assert_eq!(kubelet.taints, vec![taint("k", "v", "NoSchedule").unwrap(), taint("k", "", "NoExecute").unwrap()]);
    }

    #[test]
    fn malformed_user_data_says_why() {
        assert!(matches!(read("%", false), Err(Malformed::Encoding(_))));
        assert!(matches!(read(&"A".repeat(24_000), false), Err(Malformed::Encoding(_))));
        assert_eq!(read(&encode("#!/bin/bash\necho hello\n"), false), Err(Malformed::NoNodeConfig));
        assert_eq!(read(&archive(&[("text/x-shellscript", "echo")]), false), Err(Malformed::NoNodeConfig));
        assert!(matches!(read(&encode(&NODE_CONFIG.replace("kind:", "kind: [")), false), Err(Malformed::Syntax(_))));
        assert_eq!(
            read(&encode(&NODE_CONFIG.replace("name: alpha", "other: 1")), false),
            Err(Malformed::Missing("the cluster's name"))
        );
        assert!(matches!(read(&encode(&NODE_CONFIG.replace("team=a", "team")), false), Err(Malformed::Value { .. })));
        assert!(matches!(read(&encode("[settings"), true), Err(Malformed::Syntax(_))));
    }
}

//! Kubelet settings as command-line flags, for the families whose bootstrap takes nothing else (AL2 and Windows).

use serde_json::{Map, Value};

use super::{Bootstrap, bottlerocket};
use crate::api::{AmiFamily, kubelet_settings};
use crate::quantity::Quantity;

/// The setting that each family passes on in its own way.
pub const CLUSTER_DNS: &str = "clusterDNS";
/// The taints are karp's to set.
const TAINTS: &str = "registerWithTaints";

/// How a setting is written as a flag.
#[derive(Clone, Copy)]
enum Form {
    /// A number or a word.
    Plain,
    /// A map; the text stands between key and value.
    Pairs(&'static str),
}

/// Settings by their name in KubeletConfiguration, with the flag that means the same.
const FLAGS: [(&str, &str, Form); 11] = [
    ("maxPods", "max-pods", Form::Plain),
    ("podsPerCore", "pods-per-core", Form::Plain),
    ("systemReserved", "system-reserved", Form::Pairs("=")),
    ("kubeReserved", "kube-reserved", Form::Pairs("=")),
    ("evictionHard", "eviction-hard", Form::Pairs("<")),
    ("evictionSoft", "eviction-soft", Form::Pairs("<")),
    ("evictionSoftGracePeriod", "eviction-soft-grace-period", Form::Pairs("=")),
    ("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", Form::Plain),
    ("imageGCHighThresholdPercent", "image-gc-high-threshold", Form::Plain),
    ("imageGCLowThresholdPercent", "image-gc-low-threshold", Form::Plain),
    ("cpuCFSQuota", "cpu-cfs-quota", Form::Plain),
];

/// Lists the settings that a family has no way to pass on; acting as though they were not there would surprise.
pub fn unsupported(family: AmiFamily, settings: &Map<String, Value>) -> Vec<String> {
    let known = |key: &str| match family {
        AmiFamily::Custom => true,
        AmiFamily::Al2023 => key != TAINTS,
        AmiFamily::Bottlerocket => key == CLUSTER_DNS || bottlerocket::knows(key),
        AmiFamily::Al2 | AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => {
            key == CLUSTER_DNS || FLAGS.iter().any(|(name, ..)| *name == key)
        }
    };
    let set = settings.iter().filter(|(_, value)| !value.is_null());
    let mut fields: Vec<String> = set.filter(|(key, _)| !known(key)).map(|(key, _)| key.clone()).collect();
    let resolvers = settings.get(CLUSTER_DNS).and_then(Value::as_array).map_or(0, Vec::len);
    if resolvers > 1 && !matches!(family, AmiFamily::Al2023 | AmiFamily::Bottlerocket | AmiFamily::Custom) {
        fields.push(format!("{CLUSTER_DNS} (more than one)"));
    }
    if family != AmiFamily::Custom {
        fields.extend(expressions(settings));
    }
    if family == AmiFamily::Al2023 {
        // its kubelet would pass over a slip; what is like no setting may be one of a later version
        let slips = settings
            .keys()
            .filter_map(|name| Some(format!("{name} (did you mean {}?)", kubelet_settings::meant(name)?)));
        fields.extend(slips);
    }
    fields
}

/// Lists the settings that hold a CEL expression, which no kubelet can read.
fn expressions(settings: &Map<String, Value>) -> Vec<String> {
    let mut found = Vec::new();
    if settings.get("maxPods").is_some_and(Value::is_string) {
        found.push("maxPods (an expression)".to_owned());
    }
    for field in ["systemReserved", "kubeReserved"] {
        for (key, value) in settings.get(field).and_then(Value::as_object).into_iter().flatten() {
            if word(value).parse::<Quantity>().is_err() {
                found.push(format!("{field}.{key} (an expression)"));
            }
        }
    }
    found
}

/// Writes labels, taints and settings as the kubelet's flags. Values are quoted for systemd, which splits them.
pub fn flags(bootstrap: &Bootstrap) -> Vec<String> {
    let labels: Vec<String> = bootstrap.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let taints =
        bootstrap.taints.iter().map(|taint| format!("{}={}:{}", taint.key, taint.value, taint.effect.as_str()));
    let mut flags = vec![
        format!("--node-labels={}", quoted(&labels.join(","))),
        format!("--register-with-taints={}", quoted(&taints.collect::<Vec<_>>().join(","))),
    ];
    let settings = FLAGS.iter().filter_map(|(key, flag, form)| Some((flag, form, bootstrap.kubelet.get(*key)?)));
    flags.extend(settings.map(|(flag, form, value)| match (form, value) {
        (Form::Pairs(between), Value::Object(pairs)) => {
            let pairs: Vec<String> =
                pairs.iter().map(|(key, value)| format!("{key}{between}{}", word(value))).collect();
            format!("--{flag}={}", quoted(&pairs.join(",")))
        }
        _ => format!("--{flag}={}", word(value)),
    }));
    flags
}

/// Returns a value as text, without the quotes of JSON.
pub fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

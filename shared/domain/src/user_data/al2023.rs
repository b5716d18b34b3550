//! AL2023: a MIME archive that holds the node class's own parts and, last, the NodeConfig for nodeadm.

use serde_json::{Map, Value, json};

use super::archive::{self, Part};
use super::{Bootstrap, Error};
use crate::taint::Taint;

const NODE_CONFIG: &str = "application/node.eks.aws";
const NODE_CONFIG_API: &str = "node.eks.aws/";

pub(super) fn render(bootstrap: &Bootstrap) -> Result<String, Error> {
    let kind = |custom: &str| is_node_config(custom).then_some(NODE_CONFIG);
    let mut parts = archive::parts(bootstrap.custom.as_deref().unwrap_or_default(), kind)?;
    let config = serde_saphyr::to_string(&node_config(bootstrap)?).map_err(|error| Error::Write(error.to_string()))?;
    parts.push(Part::text(NODE_CONFIG, &config));
    archive::write(parts)
}

fn node_config(bootstrap: &Bootstrap) -> Result<Value, Error> {
    let cidr = bootstrap.cluster.service_cidr.as_deref().ok_or(Error::MissingServiceCidr)?;
    let mut config = bootstrap.kubelet.clone();
    config.insert("registerWithTaints".to_owned(), bootstrap.taints.iter().map(taint).collect());
    let labels: Vec<String> = bootstrap.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut kubelet = Map::from_iter([("config".to_owned(), Value::Object(config))]);
    if !labels.is_empty() {
        kubelet.insert("flags".to_owned(), json!([format!("--node-labels={}", labels.join(","))]));
    }
    let mut spec = json!({
        "cluster": {
            "name": bootstrap.cluster.name,
            "apiServerEndpoint": bootstrap.cluster.endpoint,
            "certificateAuthority": bootstrap.cluster.certificate_authority,
            "cidr": cidr,
        },
        "kubelet": kubelet,
    });
    if bootstrap.raid0 {
        spec["instance"] = json!({ "localStorage": { "strategy": "RAID0" } });
    }
    Ok(json!({ "apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "metadata": {}, "spec": spec }))
}

fn taint(taint: &Taint) -> Value {
    let mut value = json!({ "key": taint.key, "effect": taint.effect.as_str() });
    if !taint.value.is_empty() {
        value["value"] = Value::String(taint.value.clone());
    }
    value
}

fn is_node_config(text: &str) -> bool {
    let document: Result<Value, _> = serde_saphyr::from_str(text);
    let version = document.ok().and_then(|value| value.get("apiVersion").and_then(Value::as_str).map(str::to_owned));
    version.is_some_and(|version| version.starts_with(NODE_CONFIG_API))
}

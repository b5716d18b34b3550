//! AL2023: a MIME archive that holds the node class's own parts and, last, the NodeConfig for nodeadm.

use super::{Bootstrap, Error};
use karp_domain::taint::Taint;
use mail_builder::headers::content_type::ContentType;
use mail_builder::mime::{BodyPart, MimePart};
use mail_parser::{MessageParser, MimeHeaders};
use serde_json::{Map, Value, json};

const NODE_CONFIG: &str = "application/node.eks.aws";
const SHELL: &str = "text/x-shellscript";
const NODE_CONFIG_API: &str = "node.eks.aws/";
/// The boundary that nodeadm's documentation and Karpenter use; lengthened when a part contains it.
const BOUNDARY: &str = "//";

/// One part of the archive.
struct Part {
    content_type: String,
    content: Vec<u8>,
}

pub(super) fn render(bootstrap: &Bootstrap) -> Result<String, Error> {
    let mut parts = bootstrap.custom.as_deref().map_or_else(|| Ok(Vec::new()), custom_parts)?;
    let config = serde_saphyr::to_string(&node_config(bootstrap)?).map_err(|error| Error::Write(error.to_string()))?;
    parts.push(Part { content_type: NODE_CONFIG.to_owned(), content: config.into_bytes() });
    archive(parts)
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

/// Reads the node class's user data: a MIME archive, a NodeConfig in YAML, or a script.
fn custom_parts(custom: &str) -> Result<Vec<Part>, Error> {
    if custom.trim().is_empty() {
        return Ok(Vec::new());
    }
    let start = custom.trim_start().get(..13).unwrap_or_default();
    if start.eq_ignore_ascii_case("MIME-Version:") || start.eq_ignore_ascii_case("Content-Type:") {
        return unpack(custom.trim_start());
    }
    let kind = if is_node_config(custom) { NODE_CONFIG } else { SHELL };
    Ok(vec![Part { content_type: kind.to_owned(), content: custom.as_bytes().to_vec() }])
}

fn is_node_config(text: &str) -> bool {
    let document: Result<Value, _> = serde_saphyr::from_str(text);
    let version = document.ok().and_then(|value| value.get("apiVersion").and_then(Value::as_str).map(str::to_owned));
    version.is_some_and(|version| version.starts_with(NODE_CONFIG_API))
}

fn unpack(custom: &str) -> Result<Vec<Part>, Error> {
    let message = MessageParser::default().parse(custom.as_bytes()).ok_or(Error::NotMime)?;
    let leaves = message.parts.iter().filter(|part| part.sub_parts().is_none());
    let parts: Vec<Part> = leaves
        .map(|part| {
            let content_type = part.content_type().map_or_else(
                || "text/plain".to_owned(),
                |kind| format!("{}/{}", kind.ctype(), kind.subtype().unwrap_or("plain")),
            );
            Part { content_type, content: part.contents().to_vec() }
        })
        .collect();
    if parts.is_empty() { Err(Error::NotMime) } else { Ok(parts) }
}

fn archive(parts: Vec<Part>) -> Result<String, Error> {
    let mut boundary = BOUNDARY.to_owned();
    let holds = |part: &Part, boundary: &str| {
        part.content.windows(boundary.len() + 2).any(|at| at.starts_with(b"--") && at.ends_with(boundary.as_bytes()))
    };
    while parts.iter().any(|part| holds(part, &boundary)) {
        boundary.push_str("karp");
    }
    let body: Vec<MimePart<'_>> = parts
        .into_iter()
        .map(|part| {
            // nodeadm and cloud-init read parts as they are: neither base64 nor soft line breaks.
            let encoding = if part.content.is_ascii() { "7bit" } else { "8bit" };
            let content = BodyPart::Binary(part.content.into());
            MimePart::new(ContentType::new(part.content_type), content).transfer_encoding(encoding)
        })
        .collect();
    let mixed = ContentType::new("multipart/mixed").attribute("boundary", boundary);
    let mut written = b"MIME-Version: 1.0\r\n".to_vec();
    MimePart::new(mixed, BodyPart::Multipart(body)).write_part(&mut written);
    String::from_utf8(written).map_err(|error| Error::Write(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::{Family, render};
    use super::*;

    /// Reads user data back the way an instance does: a MIME parser, then YAML.
    fn read_back(user_data: &str) -> Vec<(String, String)> {
        let message = MessageParser::default().parse(user_data.as_bytes()).expect("MIME");
        let leaves = message.parts.iter().filter(|part| part.sub_parts().is_none());
        leaves
            .map(|part| {
                let kind = part.content_type().expect("a type");
                let text = String::from_utf8(part.contents().to_vec()).expect("utf-8");
                (format!("{}/{}", kind.ctype(), kind.subtype().expect("a subtype")), text)
            })
            .collect()
    }

    fn config(parts: &[(String, String)]) -> Value {
        let (kind, text) = parts.last().expect("the generated part");
        assert_eq!(kind, NODE_CONFIG);
        serde_saphyr::from_str(text).expect("YAML")
    }

    #[test]
    fn the_node_config_says_where_to_join_and_as_what() {
        let rendered = render(Family::Al2023, &super::super::tests::bootstrap()).expect("renders");
        assert!(rendered.starts_with("MIME-Version: 1.0\r\n"), "cloud-init knows archives by their first line");
        let parts = read_back(&rendered);
        assert_eq!(parts.len(), 1);
        let config = config(&parts);
        assert_eq!(config["kind"], "NodeConfig");
        assert_eq!(
            config["spec"]["cluster"],
            json!({ "name": "alpha", "apiServerEndpoint": "https://alpha.example", "certificateAuthority": "Q0E=", "cidr": "10.100.0.0/16" })
        );
        assert_eq!(config["spec"]["kubelet"]["config"]["maxPods"], 42);
        assert_eq!(
            config["spec"]["kubelet"]["config"]["registerWithTaints"],
            json!([{ "key": "team", "value": "a", "effect": "NoSchedule" }, { "key": "karpenter.sh/unregistered", "effect": "NoExecute" }])
        );
        assert_eq!(
            config["spec"]["kubelet"]["flags"],
            json!(["--node-labels=karpenter.sh/do-not-sync-taints=true,karpenter.sh/nodepool=default"])
        );
        assert_eq!(config["spec"].get("instance"), None);
    }

    #[test]
    fn scripts_node_configs_and_archives_come_before_ours() {
        let archive = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"BOUNDARY\"\n\n--BOUNDARY\n\
                       Content-Type: text/x-shellscript; charset=\"us-ascii\"\n\n#!/bin/bash\necho one\n\n--BOUNDARY\n\
                       Content-Type: application/node.eks.aws\n\napiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\n\n--BOUNDARY--\n";
        for (custom, expected) in [
            ("#!/bin/bash\necho hello\n", vec![(SHELL, "echo hello")]),
            ("apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\n", vec![(NODE_CONFIG, "kind: NodeConfig")]),
            (archive, vec![(SHELL, "echo one"), (NODE_CONFIG, "kind: NodeConfig")]),
            ("  \n", vec![]),
            ("#!/bin/sh\ncat <<E\n--//\nE\necho kept\n", vec![(SHELL, "echo kept")]),
        ] {
            let bootstrap = Bootstrap { custom: Some(custom.into()), ..super::super::tests::bootstrap() };
            let parts = read_back(&render(Family::Al2023, &bootstrap).expect("renders"));
            assert_eq!(parts.len(), expected.len() + 1, "{custom:?}: {parts:?}");
            for ((kind, text), (expected_kind, expected_text)) in parts.iter().zip(&expected) {
                assert_eq!(kind, expected_kind, "{custom:?}");
                assert!(text.contains(expected_text), "{custom:?}: {text:?}");
            }
            assert_eq!(config(&parts)["spec"]["cluster"]["name"], "alpha");
        }
    }

    #[test]
    fn the_service_range_is_required() {
        let mut bootstrap = super::super::tests::bootstrap();
        bootstrap.cluster.service_cidr = None;
        assert!(matches!(render(Family::Al2023, &bootstrap), Err(Error::MissingServiceCidr)));
    }

    #[test]
    fn local_disks_are_striped_on_request() {
        let bootstrap = Bootstrap { raid0: true, ..super::super::tests::bootstrap() };
        let parts = read_back(&render(Family::Al2023, &bootstrap).expect("renders"));
        assert_eq!(config(&parts)["spec"]["instance"]["localStorage"]["strategy"], "RAID0");
    }
}

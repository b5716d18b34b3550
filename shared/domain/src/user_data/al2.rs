//! AL2: a MIME archive that holds the node class's own parts and, last, a script that calls the image's bootstrap.sh.

use super::archive::{self, Part, SHELL};
use super::{Bootstrap, Error, kubelet};

pub(super) fn render(bootstrap: &Bootstrap) -> Result<String, Error> {
    let mut parts = archive::parts(bootstrap.custom.as_deref().unwrap_or_default(), |_| None)?;
    parts.push(Part::text(SHELL, &script(bootstrap)?));
    archive::write(parts)
}

/// Writes the call of `/etc/eks/bootstrap.sh`, whose options take their values as the next word.
fn script(bootstrap: &Bootstrap) -> Result<String, Error> {
    let cluster = &bootstrap.cluster;
    let mut words = vec![
        format!("/etc/eks/bootstrap.sh {}", quoted("the cluster's name", &cluster.name)?),
        format!("--apiserver-endpoint {}", quoted("the cluster's endpoint", &cluster.endpoint)?),
        format!("--b64-cluster-ca {}", quoted("the cluster's CA", &cluster.certificate_authority)?),
    ];
    if bootstrap.is_ipv6() {
        words.push("--ip-family ipv6".to_owned());
    }
    if let Some(dns) = bootstrap.dns() {
        words.push(format!("--dns-cluster-ip {}", quoted("spec.kubelet.clusterDNS", &dns)?));
    }
    if bootstrap.kubelet.contains_key("maxPods") {
        words.push("--use-max-pods false".to_owned());
    }
    let flags = kubelet::flags(bootstrap).join(" ");
    words.push(format!("--kubelet-extra-args {}", quoted("a label, taint or kubelet setting", &flags)?));
    if bootstrap.raid0 {
        words.push("--local-disks raid0".to_owned());
    }
    Ok(format!("#!/bin/bash\nset -e\n{}\n", words.join(" \\\n  ")))
}

/// Writes text as one word of a shell.
fn quoted(field: &'static str, text: &str) -> Result<String, Error> {
    if text.contains(['\n', '\r', '\0']) {
        return Err(Error::Unquotable { field, value: text.to_owned() });
    }
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

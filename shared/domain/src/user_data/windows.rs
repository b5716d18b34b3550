//! Windows: a PowerShell script that holds the node class's own script and, last, the call of the image's bootstrap.

use super::{Bootstrap, Error, kubelet};

const OPEN: &str = "<powershell>";
const CLOSE: &str = "</powershell>";

pub(super) fn render(bootstrap: &Bootstrap) -> Result<String, Error> {
    let cluster = &bootstrap.cluster;
    let flags = kubelet::flags(bootstrap).join(" ");
    let mut call = String::from("& $EKSBootstrapScriptFile");
    let dns = bootstrap.dns();
    for (option, field, value) in [
        ("EKSClusterName", "the cluster's name", Some(&cluster.name)),
        ("APIServerEndpoint", "the cluster's endpoint", Some(&cluster.endpoint)),
        ("Base64ClusterCA", "the cluster's CA", Some(&cluster.certificate_authority)),
        ("KubeletExtraArgs", "a label, taint or kubelet setting", Some(&flags)),
        ("DNSClusterIP", "spec.kubelet.clusterDNS", dns.as_ref()),
    ] {
        if let Some(value) = value {
            call.push_str(&format!(" -{option} {}", quoted(field, value)?));
        }
    }
    let own = bootstrap.custom.as_deref().map(str::trim).filter(|own| !own.is_empty());
    let lines = [
        Some(OPEN),
        own,
        Some(r#"[string]$EKSBootstrapScriptFile = "$env:ProgramFiles\Amazon\EKS\Start-EKSBootstrap.ps1""#),
        Some(&call),
        Some(CLOSE),
    ];
    Ok(lines.into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

/// Writes text as one word of PowerShell.
fn quoted(field: &'static str, text: &str) -> Result<String, Error> {
    if text.contains(['\n', '\r', '\0']) {
        return Err(Error::Unquotable { field, value: text.to_owned() });
    }
    Ok(format!("'{}'", text.replace('\'', "''")))
}

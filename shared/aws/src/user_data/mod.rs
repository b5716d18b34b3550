//! User data: what a fresh instance is told, so that it joins the cluster with the labels and taints of its claim.

mod al2023;
mod bottlerocket;
mod labels;

use karp_domain::api::labels as names;
use karp_domain::taint::Taint;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

pub use labels::kubelet_may_set;

/// The operating system families that karp can bootstrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Amazon Linux 2023, bootstrapped by nodeadm.
    Al2023,
    /// Bottlerocket, bootstrapped by its settings.
    Bottlerocket,
    /// Whatever the image is: its user data is passed on verbatim.
    Custom,
}

/// What a node needs to know of its cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// The cluster's name.
    pub name: String,
    /// The API server's URL.
    pub endpoint: String,
    /// The API server's CA: base64 of PEM.
    pub certificate_authority: String,
    /// The range of service addresses.
    pub service_cidr: Option<String>,
}

/// All that goes into user data.
#[derive(Debug, Clone, Default)]
pub struct Bootstrap {
    /// The cluster to join.
    pub cluster: ClusterFacts,
    /// Labels of the node; those that a kubelet must not set are left out (the controller sets them at registration).
    pub labels: BTreeMap<String, String>,
    /// Taints of the node; `karpenter.sh/unregistered:NoExecute` is always added.
    pub taints: Vec<Taint>,
    /// The node class's kubelet settings, in the kubelet's own names.
    pub kubelet: Map<String, Value>,
    /// Whether the local disks become one RAID 0 volume for the kubelet.
    pub raid0: bool,
    /// The node class's own user data.
    pub custom: Option<String>,
}

/// Why user data cannot be rendered. All of these are cured by changing the node class or the cluster's description.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// AL2023 needs the range of service addresses.
    #[error("the cluster's service CIDR is not known, and AL2023 nodes need it")]
    MissingServiceCidr,
    /// The cluster's endpoint or CA is not known.
    #[error("the cluster's {0} is not known")]
    MissingClusterFact(&'static str),
    /// The node class's user data is no TOML, though the family needs it.
    #[error("userData is not valid TOML: {0}")]
    NotToml(#[source] toml::de::Error),
    /// The node class's user data looks like a MIME archive but cannot be read as one.
    #[error("userData starts as a MIME archive but cannot be read as one")]
    NotMime,
    /// A part of the user data that must be a table or a value is not.
    #[error("userData: `{path}` must be {expected}")]
    Shape { path: String, expected: &'static str },
    /// A rendering that failed by itself.
    #[error("user data cannot be written: {0}")]
    Write(String),
}

/// Renders the user data of `family` as text (EC2 wants it in base64; `launch_template` sees to that).
///
/// # Errors
/// See [`Error`].
pub fn render(family: Family, bootstrap: &Bootstrap) -> Result<String, Error> {
    match family {
        Family::Custom => Ok(bootstrap.custom.clone().unwrap_or_default()),
        Family::Al2023 => al2023::render(&checked(bootstrap)?),
        Family::Bottlerocket => bottlerocket::render(&checked(bootstrap)?),
    }
}

/// Completes labels and taints with what karp always sets and drops what a kubelet must not set.
fn checked(bootstrap: &Bootstrap) -> Result<Bootstrap, Error> {
    if bootstrap.cluster.endpoint.is_empty() {
        return Err(Error::MissingClusterFact("endpoint"));
    }
    if bootstrap.cluster.certificate_authority.is_empty() {
        return Err(Error::MissingClusterFact("certificate authority"));
    }
    let mut full = bootstrap.clone();
    full.labels.retain(|key, _| kubelet_may_set(key));
    // The kubelet registers with all taints itself, so the controller need not add them later.
    full.labels.insert(names::DO_NOT_SYNC_TAINTS.to_owned(), "true".to_owned());
    let unregistered = names::unregistered_taint();
    if !full.taints.contains(&unregistered) {
        full.taints.push(unregistered);
    }
    Ok(full)
}

#[cfg(test)]
mod tests {
    use super::*;
    use karp_domain::taint::TaintEffect;

    pub(super) fn bootstrap() -> Bootstrap {
        Bootstrap {
            cluster: ClusterFacts {
                name: "alpha".into(),
                endpoint: "https://alpha.example".into(),
                certificate_authority: "Q0E=".into(),
                service_cidr: Some("10.100.0.0/16".into()),
            },
            labels: BTreeMap::from([
                ("karpenter.sh/nodepool".into(), "default".into()),
                ("kubernetes.io/role".into(), "forbidden".into()),
            ]),
            taints: vec![Taint::new("team", "a", TaintEffect::NoSchedule)],
            kubelet: serde_json::from_str(r#"{"maxPods": 42, "systemReserved": {"cpu": "100m"}}"#).expect("json"),
            raid0: false,
            custom: None,
        }
    }

    #[test]
    fn custom_user_data_is_left_alone() {
        let custom = Bootstrap { custom: Some("#!/bin/sh\r\necho \"x\"\n".into()), ..Bootstrap::default() };
        assert_eq!(render(Family::Custom, &custom).expect("verbatim"), "#!/bin/sh\r\necho \"x\"\n");
        assert_eq!(render(Family::Custom, &Bootstrap::default()).expect("verbatim"), "");
    }

    #[test]
    fn a_cluster_without_a_ca_is_refused() {
        let mut bare = bootstrap();
        bare.cluster.certificate_authority.clear();
        for family in [Family::Al2023, Family::Bottlerocket] {
            assert!(matches!(render(family, &bare), Err(Error::MissingClusterFact("certificate authority"))));
        }
    }
}

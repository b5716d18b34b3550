//! User data: what a fresh instance is told, so that it joins the cluster with the labels and taints of its claim.

mod al2;
mod al2023;
mod archive;
mod bottlerocket;
mod kubelet;
mod labels;
mod windows;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value};

use crate::api::{AmiFamily, labels as names};
use crate::taint::Taint;

pub use labels::kubelet_may_set;

/// EC2 refuses user data above this size before base64.
pub const LIMIT_BYTES: usize = 16 * 1024;
/// EKS gives cluster DNS the tenth address of the service range; nodeadm and bootstrap.sh count on it too.
const DNS_OFFSET: u8 = 10;

/// What a node needs to know of its cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// The cluster's name.
    pub name: String,
    /// The API server's URL.
    pub endpoint: String,
    /// The API server's CA: base64 of PEM.
    pub certificate_authority: String,
    /// The range of service addresses; an IPv6 one tells an IPv6 cluster.
    pub service_cidr: Option<String>,
}

impl ClusterFacts {
    /// Says whether pods and services use IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.service_cidr.as_deref().is_some_and(|cidr| cidr.contains(':'))
    }

    /// Returns the address of cluster DNS, if the service range is known.
    #[must_use]
    pub fn dns(&self) -> Option<IpAddr> {
        let (base, _) = self.service_cidr.as_deref()?.split_once('/')?;
        match base.parse().ok()? {
            IpAddr::V4(base) => Some(IpAddr::V4(u32::from(base).checked_add(DNS_OFFSET.into())?.into())),
            IpAddr::V6(base) => Some(IpAddr::V6(u128::from(base).checked_add(DNS_OFFSET.into())?.into())),
        }
    }
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
    /// Kubelet settings that the family has no way to pass on.
    #[error("spec.kubelet: {family:?} nodes cannot be given {}", .fields.join(", "))]
    Kubelet { family: AmiFamily, fields: Vec<String> },
    /// A value holds what its place in the user data cannot carry.
    #[error("{field} must not hold a line break or NUL: {value:?}")]
    Unquotable { field: &'static str, value: String },
    /// The whole is longer than EC2 takes.
    #[error("user data is {bytes} bytes long, and EC2 takes {LIMIT_BYTES}: shorten spec.userData")]
    TooLong { bytes: usize },
    /// A rendering that failed by itself.
    #[error("user data cannot be written: {0}")]
    Write(String),
}

impl Error {
    /// Returns Karpenter's reason for the condition `ValidationSucceeded`.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::MissingServiceCidr => "ClusterCIDRResolutionFailed",
            Self::Kubelet { .. } => "UnsupportedKubeletConfiguration",
            Self::TooLong { .. } => "UserDataSizeLimitExceeded",
            Self::MissingClusterFact(_) => "DependenciesNotReady",
            Self::NotToml(_) | Self::NotMime | Self::Shape { .. } | Self::Unquotable { .. } | Self::Write(_) => {
                "UserDataInvalid"
            }
        }
    }
}

/// Renders the user data of `family` as text (EC2 wants it in base64).
///
/// # Errors
/// See [`Error`].
pub fn render(family: AmiFamily, bootstrap: &Bootstrap) -> Result<String, Error> {
    let text = match family {
        AmiFamily::Custom => bootstrap.custom.clone().unwrap_or_default(),
        AmiFamily::Al2 => al2::render(&checked(family, bootstrap)?)?,
        AmiFamily::Al2023 => al2023::render(&checked(family, bootstrap)?)?,
        AmiFamily::Bottlerocket => bottlerocket::render(&checked(family, bootstrap)?)?,
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => {
            windows::render(&checked(family, bootstrap)?)?
        }
    };
    if text.len() > LIMIT_BYTES { Err(Error::TooLong { bytes: text.len() }) } else { Ok(text) }
}

/// Completes labels and taints with what karp always sets, drops what a kubelet must not set, and refuses what the family cannot be told.
fn checked(family: AmiFamily, bootstrap: &Bootstrap) -> Result<Bootstrap, Error> {
    if bootstrap.cluster.endpoint.is_empty() {
        return Err(Error::MissingClusterFact("endpoint"));
    }
    if bootstrap.cluster.certificate_authority.is_empty() {
        return Err(Error::MissingClusterFact("certificate authority"));
    }
    let fields = kubelet::unsupported(family, &bootstrap.kubelet);
    if !fields.is_empty() {
        return Err(Error::Kubelet { family, fields });
    }
    let mut full = bootstrap.clone();
    full.kubelet.retain(|_, value| !value.is_null());
    full.labels.retain(|key, _| kubelet_may_set(key));
    // The kubelet registers with all taints itself, so the controller need not add them later.
    full.labels.insert(names::DO_NOT_SYNC_TAINTS.to_owned(), "true".to_owned());
    let unregistered = names::unregistered_taint();
    if !full.taints.contains(&unregistered) {
        full.taints.push(unregistered);
    }
    Ok(full)
}

impl Bootstrap {
    /// Says whether nodes use IPv6: as the cluster does, or, where its range is not known, as the address of cluster DNS does.
    fn is_ipv6(&self) -> bool {
        match &self.cluster.service_cidr {
            Some(_) => self.cluster.is_ipv6(),
            None => self.dns().is_some_and(|dns| dns.contains(':')),
        }
    }

    /// Returns the address of cluster DNS: the class's own first, else the cluster's.
    fn dns(&self) -> Option<String> {
        let own = self.kubelet.get(kubelet::CLUSTER_DNS).and_then(Value::as_array).and_then(|all| all.first());
        match own.and_then(Value::as_str) {
            Some(own) => Some(own.to_owned()),
            None => self.cluster.dns().map(|address| address.to_string()),
        }
    }
}

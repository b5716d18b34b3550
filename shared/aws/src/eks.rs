//! What EKS says about a cluster.

use crate::config::Clients;
use crate::error::Error;

const DESCRIBE: &str = "eks:DescribeCluster";

/// The facts about a cluster that provider, controller and node bootstrap need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The cluster's name.
    pub name: String,
    /// Its ARN.
    pub arn: String,
    /// Its state: `ACTIVE`, `CREATING`, …
    pub status: String,
    /// The Kubernetes minor version, as in `1.33`.
    pub version: String,
    /// The API server's URL.
    pub endpoint: String,
    /// The API server's CA certificates: base64 of PEM, as nodes want it.
    pub certificate_authority: String,
    /// The OIDC issuer of service account tokens.
    pub oidc_issuer: Option<String>,
    /// The IPv4 (or, in an IPv6 cluster, IPv6) range of service addresses.
    pub service_cidr: Option<String>,
    /// Whether pods and services use IPv6.
    pub ipv6: bool,
    /// The cluster's VPC.
    pub vpc_id: Option<String>,
    /// The security group that EKS made for control plane and nodes.
    pub cluster_security_group_id: Option<String>,
    /// The subnets that EKS puts the control plane's network interfaces in.
    pub subnet_ids: Vec<String>,
    /// More security groups of these interfaces.
    pub security_group_ids: Vec<String>,
    /// How callers are authenticated: `API`, `API_AND_CONFIG_MAP`, `CONFIG_MAP`.
    pub authentication_mode: Option<String>,
}

/// Describes the cluster called `name`.
///
/// # Errors
/// [`Error::NotFound`] when there is none, [`Error::Malformed`] when it has no endpoint yet, and any failure of the call.
pub async fn describe(clients: &Clients, name: &str) -> Result<Cluster, Error> {
    let answer =
        clients.eks().describe_cluster().name(name).send().await.map_err(|error| Error::from_sdk(DESCRIBE, error))?;
    let cluster = answer.cluster.ok_or_else(|| Error::malformed(DESCRIBE, "the answer holds no cluster"))?;
    read(cluster)
}

fn read(cluster: aws_sdk_eks::types::Cluster) -> Result<Cluster, Error> {
    let name = cluster.name.unwrap_or_default();
    let status = cluster.status.map_or_else(String::new, |status| status.as_str().to_owned());
    let endpoint = cluster
        .endpoint
        .filter(|endpoint| !endpoint.is_empty())
        .ok_or_else(|| Error::malformed(DESCRIBE, format!("cluster {name} has no endpoint yet (it is {status})")))?;
    let network = cluster.kubernetes_network_config;
    let ipv6 = network
        .as_ref()
        .and_then(|network| network.ip_family.as_ref())
        .is_some_and(|family| family.as_str().eq_ignore_ascii_case("ipv6"));
    let service_cidr =
        network.and_then(|network| if ipv6 { network.service_ipv6_cidr } else { network.service_ipv4_cidr });
    let vpc = cluster.resources_vpc_config;
    let set = |text: &String| !text.is_empty();
    Ok(Cluster {
        name,
        arn: cluster.arn.unwrap_or_default(),
        status,
        version: cluster.version.unwrap_or_default(),
        endpoint,
        certificate_authority: cluster.certificate_authority.and_then(|ca| ca.data).unwrap_or_default(),
        oidc_issuer: cluster.identity.and_then(|identity| identity.oidc).and_then(|oidc| oidc.issuer).filter(set),
        service_cidr: service_cidr.filter(set),
        ipv6,
        vpc_id: vpc.as_ref().and_then(|vpc| vpc.vpc_id.clone()).filter(set),
        subnet_ids: vpc.as_ref().and_then(|vpc| vpc.subnet_ids.clone()).unwrap_or_default(),
        security_group_ids: vpc.as_ref().and_then(|vpc| vpc.security_group_ids.clone()).unwrap_or_default(),
        cluster_security_group_id: vpc.and_then(|vpc| vpc.cluster_security_group_id).filter(set),
        authentication_mode: cluster
            .access_config
            .and_then(|access| access.authentication_mode)
            .map(|mode| mode.as_str().to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_eks::types::{Cluster as SdkCluster, IpFamily, KubernetesNetworkConfigResponse};

    #[test]
    fn a_cluster_without_an_endpoint_is_not_ready() {
        let error = read(SdkCluster::builder().name("c").build()).expect_err("no endpoint");
        assert!(matches!(&error, Error::Malformed { message, .. } if message.contains("no endpoint")), "{error}");
    }

    #[test]
    fn an_ipv6_cluster_gives_its_ipv6_range() {
        let network = KubernetesNetworkConfigResponse::builder()
            .ip_family(IpFamily::Ipv6)
            .service_ipv4_cidr("10.0.0.0/16")
            .service_ipv6_cidr("fd00::/108")
            .build();
        let cluster = SdkCluster::builder().endpoint("https://e").kubernetes_network_config(network).build();
        let read = read(cluster).expect("has an endpoint");
        assert_eq!((read.ipv6, read.service_cidr.as_deref()), (true, Some("fd00::/108")));
    }
}

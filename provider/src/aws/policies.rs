//! The documents of `karp_domain::iam` in canonical form, and what follows from a region.

use karp_domain::iam::{self, ControllerScope, InstanceProfiles};
use serde_json::Value;

use super::document::canonical_value;

/// Stands for any account where the account is not known at plan; the role's own account bounds it anyway.
const ANY_ACCOUNT: &str = "*";

/// Gives the partition of a region, by AWS's own prefixes.
pub fn partition(region: &str) -> &'static str {
    match region {
        r if r.starts_with("cn-") => "aws-cn",
        r if r.starts_with("us-gov-") => "aws-us-gov",
        r if r.starts_with("us-iso-") => "aws-iso",
        r if r.starts_with("us-isob-") => "aws-iso-b",
        r if r.starts_with("eu-isoe-") => "aws-iso-e",
        r if r.starts_with("us-isof-") => "aws-iso-f",
        r if r.starts_with("eusc-") => "aws-eusc",
        _ => "aws",
    }
}

/// Gives the ARN of a policy that AWS manages.
pub fn managed(partition: &str, name: &str) -> String {
    format!("arn:{partition}:iam::aws:policy/{name}")
}

/// Lets EC2 instances be the role.
pub fn node_trust(partition: &str) -> String {
    canonical_value(&iam::node_trust(partition))
}

/// Lets the VPC CNI give IPv6 addresses to pods.
pub fn cni_ipv6(partition: &str) -> String {
    canonical_value(&iam::cni_ipv6_policy(partition))
}

/// Lets Fargate run the pods of one cluster as the role.
pub fn fargate_trust(partition: &str, region: &str, cluster: &str) -> String {
    canonical_value(&iam::fargate_trust(partition, region, ANY_ACCOUNT, cluster))
}

/// Lets one service account be the role by IAM roles for service accounts.
pub fn irsa_trust(oidc_provider_arn: &str, namespace: &str, service_account: &str) -> String {
    canonical_value(&iam::irsa_trust(oidc_provider_arn, namespace, service_account))
}

/// Lets the pods of an EKS pod identity association be the role.
pub fn pod_identity_trust() -> String {
    canonical_value(&iam::pod_identity_trust())
}

/// What the controller's policy is made for, apart from the region.
#[derive(Debug, Clone, Default)]
pub struct Scope<'a> {
    /// The cluster's name.
    pub cluster: &'a str,
    /// Roles that the controller may give to instances.
    pub node_role_arns: Vec<String>,
    /// The interruption queue.
    pub queue_arn: Option<&'a str>,
    /// Who makes instance profiles.
    pub instance_profiles: InstanceProfiles,
    /// Parameters of the user's own that name images.
    pub ami_ssm_parameter_arns: Vec<String>,
    /// Statements of the user's own.
    pub extra_statements: Vec<Value>,
}

/// Gives the controller's policy. The account is that of the roles and queue that it may use.
pub fn controller(region: &str, scope: Scope<'_>) -> String {
    let mut arns = scope.node_role_arns.iter().map(String::as_str).chain(scope.queue_arn);
    let account = arns.find_map(|arn| arn.split(':').nth(4)).unwrap_or(ANY_ACCOUNT).to_owned();
    let policy = iam::controller_policy(&ControllerScope {
        partition: partition(region).to_owned(),
        region: region.to_owned(),
        account_id: account,
        cluster_name: scope.cluster.to_owned(),
        node_role_arns: scope.node_role_arns,
        interruption_queue_arn: scope.queue_arn.map(str::to_owned),
        instance_profiles: scope.instance_profiles,
        ami_ssm_parameter_arns: scope.ami_ssm_parameter_arns,
        extra_statements: scope.extra_statements,
    });
    canonical_value(&policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::document::{canonical, split};

    #[test]
    fn partitions_follow_regions() {
        assert_eq!(partition("eu-west-1"), "aws");
        assert_eq!(partition("cn-north-1"), "aws-cn");
        assert_eq!((partition("eu-isoe-west-1"), partition("us-isof-south-1")), ("aws-iso-e", "aws-iso-f"));
        assert!(node_trust("aws-cn").contains("ec2.amazonaws.com.cn"));
    }

    #[test]
    fn the_policy_fits_with_the_longest_cluster_name() {
        let cluster = "c".repeat(100);
        let of = |instance_profiles| {
            let scope = Scope {
                cluster: &cluster,
                node_role_arns: vec!["arn:aws:iam::111122223333:role/KarpNodeRole-prod".to_owned()],
                queue_arn: Some("arn:aws:sqs:eu-west-1:111122223333:karp-prod"),
                instance_profiles,
                ..Scope::default()
            };
            controller("eu-west-1", scope)
        };
        let policy = of(InstanceProfiles::Controller);
        assert!(policy.len() <= iam::INLINE_POLICY_LIMIT, "{} characters", policy.len());
        assert!(split(&policy, iam::MANAGED_POLICY_LIMIT).len() <= 2);
        assert_eq!(canonical(&policy), policy);
        assert!(policy.contains("arn:aws:iam::111122223333:instance-profile/*"), "{policy}");
        assert_eq!(split(&of(InstanceProfiles::Terraform), iam::MANAGED_POLICY_LIMIT).len(), 1);
    }
}

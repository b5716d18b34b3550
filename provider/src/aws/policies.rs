//! The documents that roles and the queue get, in canonical form, and the ARNs of AWS's own policies.

use serde_json::json;

use super::document::canonical_value;

/// Gives the partition of a region, by AWS's own prefixes.
pub fn partition(region: &str) -> &'static str {
    match region {
        r if r.starts_with("cn-") => "aws-cn",
        r if r.starts_with("us-gov-") => "aws-us-gov",
        r if r.starts_with("us-iso-") => "aws-iso",
        r if r.starts_with("us-isob-") => "aws-iso-b",
        r if r.starts_with("eusc-") => "aws-eusc",
        _ => "aws",
    }
}

/// Gives the DNS suffix of a partition's services.
pub fn dns_suffix(partition: &str) -> &'static str {
    match partition {
        "aws-cn" => "amazonaws.com.cn",
        "aws-eusc" => "amazonaws.eu",
        "aws-iso" => "c2s.ic.gov",
        "aws-iso-b" => "sc2s.sgov.gov",
        _ => "amazonaws.com",
    }
}

/// Gives the ARN of a policy that AWS manages.
pub fn managed(partition: &str, name: &str) -> String {
    format!("arn:{partition}:iam::aws:policy/{name}")
}

/// Lets EC2 instances be the role.
pub fn node_trust(partition: &str) -> String {
    trust(&json!({ "Service": format!("ec2.{}", dns_suffix(partition)) }), &json!("sts:AssumeRole"), None)
}

/// Lets Fargate run the pods of one cluster as the role: the condition keeps other accounts and clusters out.
pub fn fargate_trust(partition: &str, region: &str, cluster: &str) -> String {
    let condition =
        json!({ "ArnLike": { "aws:SourceArn": format!("arn:{partition}:eks:{region}:*:fargateprofile/{cluster}/*") } });
    trust(&json!({ "Service": "eks-fargate-pods.amazonaws.com" }), &json!("sts:AssumeRole"), Some(condition))
}

/// Lets one service account be the role by IAM roles for service accounts. `issuer` is the OIDC issuer without its scheme.
pub fn irsa_trust(oidc_provider_arn: &str, issuer: &str, namespace: &str, service_account: &str) -> String {
    let mut equals = serde_json::Map::new();
    equals.insert(format!("{issuer}:aud"), json!("sts.amazonaws.com"));
    equals.insert(format!("{issuer}:sub"), json!(format!("system:serviceaccount:{namespace}:{service_account}")));
    trust(
        &json!({ "Federated": oidc_provider_arn }),
        &json!("sts:AssumeRoleWithWebIdentity"),
        Some(json!({ "StringEquals": equals })),
    )
}

/// Lets the pods of an EKS pod identity association be the role.
pub fn pod_identity_trust() -> String {
    trust(&json!({ "Service": "pods.eks.amazonaws.com" }), &json!(["sts:AssumeRole", "sts:TagSession"]), None)
}

fn trust(principal: &serde_json::Value, action: &serde_json::Value, condition: Option<serde_json::Value>) -> String {
    let mut statement = json!({ "Effect": "Allow", "Principal": principal, "Action": action });
    if let Some(condition) = condition {
        statement["Condition"] = condition;
    }
    canonical_value(&json!({ "Version": "2012-10-17", "Statement": [statement] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_follow_regions() {
        assert_eq!(partition("eu-west-1"), "aws");
        assert_eq!(partition("cn-north-1"), "aws-cn");
        assert!(node_trust("aws-cn").contains("ec2.amazonaws.com.cn"));
    }

    #[test]
    fn an_irsa_trust_names_one_service_account() {
        let trust = irsa_trust("arn:aws:iam::1:oidc-provider/i/id/A", "i/id/A", "karpenter", "karpenter");
        assert!(trust.contains(r#""i/id/A:sub":"system:serviceaccount:karpenter:karpenter""#), "{trust}");
        assert!(trust.contains(r#""i/id/A:aud":"sts.amazonaws.com""#), "{trust}");
    }
}

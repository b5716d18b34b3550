//! What the controller may do: launch, tag and end what carries its cluster's tags, read the catalogue, hear the queue. The statements
//! are those that Karpenter's users know by these Sids, so that reviews of one serve for the other.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::document::canonical_value;
use super::policies::dns_suffix;

/// What a controller's policy follows from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope<'a> {
    pub partition: &'a str,
    pub region: &'a str,
    pub cluster: &'a str,
    /// The roles that its instances may get.
    pub node_role_arns: &'a BTreeSet<String>,
    pub queue_arn: Option<&'a str>,
}

/// Gives the controller's policy in canonical form.
pub fn document(scope: &Scope<'_>) -> String {
    let mut statements = launching(scope);
    statements.extend(tagging_and_deleting(scope));
    statements.extend(reading(scope));
    statements.extend(instance_profiles(scope));
    if let Some(queue) = scope.queue_arn {
        statements.push(json!({
            "Sid": "AllowInterruptionQueueActions",
            "Effect": "Allow",
            "Action": ["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"],
            "Resource": queue,
        }));
    }
    canonical_value(&json!({ "Version": "2012-10-17", "Statement": statements }))
}

impl Scope<'_> {
    fn ec2(&self, kinds: &[&str]) -> Vec<String> {
        kinds.iter().map(|kind| format!("arn:{}:ec2:{}:*:{kind}/*", self.partition, self.region)).collect()
    }

    fn cluster_key(&self) -> String {
        format!("kubernetes.io/cluster/{}", self.cluster)
    }

    /// Tags that the object must carry.
    fn owned(&self) -> Value {
        json!({
            "StringEquals": { format!("aws:ResourceTag/{}", self.cluster_key()): "owned" },
            "StringLike": { "aws:ResourceTag/karpenter.sh/nodepool": "*" },
        })
    }

    /// Tags that the request must give.
    fn requested(&self) -> Value {
        json!({
            "StringEquals": { format!("aws:RequestTag/{}", self.cluster_key()): "owned" },
            "StringLike": { "aws:RequestTag/karpenter.sh/nodepool": "*" },
        })
    }
}

const CREATED: [&str; 6] =
    ["fleet", "instance", "volume", "network-interface", "launch-template", "spot-instances-request"];

fn launching(scope: &Scope<'_>) -> Vec<Value> {
    let mut sources = scope.ec2(&["security-group", "subnet", "capacity-reservation", "placement-group"]);
    sources.extend(["image", "snapshot"].map(|kind| format!("arn:{}:ec2:{}::{kind}/*", scope.partition, scope.region)));
    vec![
        json!({
            "Sid": "AllowScopedEC2InstanceAccessActions",
            "Effect": "Allow",
            "Action": ["ec2:RunInstances", "ec2:CreateFleet"],
            "Resource": sources,
        }),
        json!({
            "Sid": "AllowScopedEC2LaunchTemplateAccessActions",
            "Effect": "Allow",
            "Action": ["ec2:RunInstances", "ec2:CreateFleet"],
            "Resource": scope.ec2(&["launch-template"]),
            "Condition": scope.owned(),
        }),
        json!({
            "Sid": "AllowScopedEC2InstanceActionsWithTags",
            "Effect": "Allow",
            "Action": ["ec2:RunInstances", "ec2:CreateFleet", "ec2:CreateLaunchTemplate"],
            "Resource": scope.ec2(&CREATED),
            "Condition": scope.requested(),
        }),
    ]
}

fn tagging_and_deleting(scope: &Scope<'_>) -> Vec<Value> {
    let mut at_creation = scope.requested();
    at_creation["StringEquals"]["ec2:CreateAction"] = json!(["RunInstances", "CreateFleet", "CreateLaunchTemplate"]);
    let mut later = scope.owned();
    later["ForAllValues:StringEquals"] =
        json!({ "aws:TagKeys": ["eks:eks-cluster-name", "karpenter.sh/nodeclaim", "Name"] });
    later["StringEqualsIfExists"] = json!({ "aws:RequestTag/eks:eks-cluster-name": scope.cluster });
    vec![
        json!({
            "Sid": "AllowScopedResourceCreationTagging",
            "Effect": "Allow",
            "Action": "ec2:CreateTags",
            "Resource": scope.ec2(&CREATED),
            "Condition": at_creation,
        }),
        json!({
            "Sid": "AllowScopedResourceTagging",
            "Effect": "Allow",
            "Action": "ec2:CreateTags",
            "Resource": scope.ec2(&["instance"]),
            "Condition": later,
        }),
        json!({
            "Sid": "AllowScopedDeletion",
            "Effect": "Allow",
            "Action": ["ec2:TerminateInstances", "ec2:DeleteLaunchTemplate"],
            "Resource": scope.ec2(&["instance", "launch-template"]),
            "Condition": scope.owned(),
        }),
    ]
}

fn reading(scope: &Scope<'_>) -> Vec<Value> {
    let Scope { partition, region, cluster, .. } = scope;
    let described = [
        "CapacityReservations",
        "Images",
        "Instances",
        "InstanceStatus",
        "InstanceTypeOfferings",
        "InstanceTypes",
        "LaunchTemplates",
        "PlacementGroups",
        "SecurityGroups",
        "SpotPriceHistory",
        "Subnets",
    ];
    vec![
        json!({
            "Sid": "AllowRegionalReadActions",
            "Effect": "Allow",
            "Action": described.map(|subject| format!("ec2:Describe{subject}")),
            "Resource": "*",
            "Condition": { "StringEquals": { "aws:RequestedRegion": region } },
        }),
        json!({
            "Sid": "AllowSSMReadActions",
            "Effect": "Allow",
            "Action": "ssm:GetParameter",
            "Resource": format!("arn:{partition}:ssm:{region}::parameter/aws/service/*"),
        }),
        json!({ "Sid": "AllowPricingReadActions", "Effect": "Allow", "Action": "pricing:GetProducts", "Resource": "*" }),
        json!({
            "Sid": "AllowAPIServerEndpointDiscovery",
            "Effect": "Allow",
            "Action": "eks:DescribeCluster",
            "Resource": format!("arn:{partition}:eks:{region}:*:cluster/{cluster}"),
        }),
    ]
}

fn instance_profiles(scope: &Scope<'_>) -> Vec<Value> {
    let Scope { partition, region, .. } = scope;
    let profiles = format!("arn:{partition}:iam::*:instance-profile/*");
    let tags = |side: &str| {
        json!({
            "StringEquals": {
                format!("aws:{side}/{}", scope.cluster_key()): "owned",
                format!("aws:{side}/topology.kubernetes.io/region"): region,
            },
            "StringLike": { format!("aws:{side}/karpenter.k8s.aws/ec2nodeclass"): "*" },
        })
    };
    let mut both = tags("ResourceTag");
    both["StringEquals"][format!("aws:RequestTag/{}", scope.cluster_key())] = json!("owned");
    both["StringEquals"]["aws:RequestTag/topology.kubernetes.io/region"] = json!(region);
    both["StringLike"]["aws:RequestTag/karpenter.k8s.aws/ec2nodeclass"] = json!("*");
    let mut statements = vec![
        json!({
            "Sid": "AllowScopedInstanceProfileCreationActions",
            "Effect": "Allow",
            "Action": "iam:CreateInstanceProfile",
            "Resource": profiles,
            "Condition": tags("RequestTag"),
        }),
        json!({
            "Sid": "AllowScopedInstanceProfileTagActions",
            "Effect": "Allow",
            "Action": "iam:TagInstanceProfile",
            "Resource": profiles,
            "Condition": both,
        }),
        json!({
            "Sid": "AllowScopedInstanceProfileActions",
            "Effect": "Allow",
            "Action": ["iam:AddRoleToInstanceProfile", "iam:RemoveRoleFromInstanceProfile", "iam:DeleteInstanceProfile"],
            "Resource": profiles,
            "Condition": tags("ResourceTag"),
        }),
        json!({ "Sid": "AllowInstanceProfileReadActions", "Effect": "Allow", "Action": "iam:GetInstanceProfile", "Resource": profiles }),
        json!({
            "Sid": "AllowUnscopedInstanceProfileListAction",
            "Effect": "Allow",
            "Action": "iam:ListInstanceProfiles",
            "Resource": "*",
        }),
    ];
    if !scope.node_role_arns.is_empty() {
        statements.push(json!({
            "Sid": "AllowPassingInstanceRole",
            "Effect": "Allow",
            "Action": "iam:PassRole",
            "Resource": scope.node_role_arns,
            "Condition": { "StringEquals": { "iam:PassedToService": format!("ec2.{}", dns_suffix(partition)) } },
        }));
    }
    statements
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::document::{LONGEST_INLINE, LONGEST_MANAGED, canonical, split};

    fn sample(cluster: &str) -> String {
        let roles = BTreeSet::from(["arn:aws:iam::111122223333:role/KarpNodeRole-prod".to_owned()]);
        document(&Scope {
            partition: "aws",
            region: "eu-west-1",
            cluster,
            node_role_arns: &roles,
            queue_arn: Some("arn:aws:sqs:eu-west-1:111122223333:karp-prod"),
        })
    }

    #[test]
    fn the_policy_fits_with_the_longest_cluster_name() {
        let policy = sample(&"c".repeat(100));
        assert!(policy.len() <= LONGEST_INLINE, "{} characters", policy.len());
        assert!(split(&policy, LONGEST_MANAGED).len() <= 2);
        assert_eq!(canonical(&policy), policy);
    }

    #[test]
    fn every_change_of_ec2_is_scoped_to_the_cluster() {
        let policy: Value = serde_json::from_str(&sample("prod")).unwrap();
        for statement in policy["Statement"].as_array().unwrap() {
            let sid = statement["Sid"].as_str().unwrap();
            let actions = statement["Action"].to_string();
            let changes =
                ["Terminate", "Delete", "CreateTags", "CreateLaunchTemplate"].iter().any(|verb| actions.contains(verb));
            if changes && !actions.contains("sqs:") {
                assert!(statement["Condition"].to_string().contains("kubernetes.io/cluster/prod"), "{sid}");
            }
        }
    }
}

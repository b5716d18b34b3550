//! `controller_policy` and `node_trust_policy`: IAM documents for those who make the roles elsewhere.

use karp_domain::iam::{self, ControllerScope, InstanceProfiles, MANAGED_POLICY_LIMIT};
use serde::Deserialize;
use serde_json::Value as Json;
use tfplugin::{Function, FunctionError, Signature, Type, Value};

use crate::aws::policies;

/// The policy of the controller's role.
pub struct ControllerPolicy;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scope {
    cluster_name: String,
    region: String,
    account_id: String,
    #[serde(default)]
    partition: Option<String>,
    #[serde(default)]
    node_role_arns: Vec<String>,
    #[serde(default)]
    interruption_queue_arn: Option<String>,
    #[serde(default)]
    instance_profiles: Option<String>,
    #[serde(default)]
    ami_ssm_parameter_arns: Vec<String>,
    #[serde(default)]
    extra_statements: Vec<Json>,
}

impl Function for ControllerPolicy {
    fn name(&self) -> &'static str {
        "controller_policy"
    }

    fn signature(&self) -> Signature {
        Signature::new(Type::String, "Gives the IAM policy of the controller's role as JSON.")
            .describe(format!(
                "The policy that `karp_controller_role` attaches, for a role that is made elsewhere. What the controller makes it tags with \
                 the cluster's name, and it may touch only what carries that tag. A managed policy may have {MANAGED_POLICY_LIMIT} \
                 characters; this one has some 5 600 of them when nothing is added."
            ))
            .parameter(
                "scope",
                Type::Dynamic,
                "An object: `cluster_name`, `region`, `account_id`; and, where wanted, `partition` (the region's), `node_role_arns` (the roles that \
                 may be handed to instances), `interruption_queue_arn`, `instance_profiles` (`controller`, or `terraform`: no rights to make \
                 them), `ami_ssm_parameter_arns`, `extra_statements`.",
            )
    }

    fn call(&self, arguments: &[Value]) -> Result<Value, FunctionError> {
        let scope: Scope = super::object(arguments, 0)?;
        let profiles = scope.instance_profiles.as_deref();
        let profiles =
            profiles.map_or(Some(InstanceProfiles::default()), InstanceProfiles::parse).ok_or_else(|| {
                let words = InstanceProfiles::WORDS.join(" or ");
                FunctionError::new(format!("instance_profiles is {words}.")).argument(0)
            })?;
        let given = scope.partition.filter(|partition| !partition.is_empty());
        let policy = iam::controller_policy(&ControllerScope {
            partition: given.unwrap_or_else(|| policies::partition(&scope.region).to_owned()),
            region: scope.region,
            account_id: scope.account_id,
            cluster_name: scope.cluster_name,
            node_role_arns: scope.node_role_arns,
            interruption_queue_arn: scope.interruption_queue_arn,
            instance_profiles: profiles,
            ami_ssm_parameter_arns: scope.ami_ssm_parameter_arns,
            extra_statements: scope.extra_statements,
        });
        Ok(Value::from(policy.to_string()))
    }
}

/// The trust policy of the nodes' role.
pub struct NodeTrustPolicy;

impl Function for NodeTrustPolicy {
    fn name(&self) -> &'static str {
        "node_trust_policy"
    }

    fn signature(&self) -> Signature {
        Signature::new(Type::String, "Gives the trust policy of the nodes' role as JSON.").nullable(
            "partition",
            Type::String,
            "The partition: `aws`, `aws-cn` or `aws-us-gov`; null is `aws`.",
        )
    }

    fn call(&self, arguments: &[Value]) -> Result<Value, FunctionError> {
        let given = super::text(arguments, 0);
        let partition = if given.is_empty() { "aws" } else { given };
        if partition != "aws" && !partition.starts_with("aws-") {
            let hint = format!("{partition:?} is no partition: aws, aws-cn, aws-us-gov.");
            return Err(FunctionError::new(hint).argument(0));
        }
        Ok(Value::from(iam::node_trust(partition).to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_follows_from_the_region_unless_it_is_given() {
        let policy = |region: &str, partition: Value| {
            let scope = [("cluster_name", "prod"), ("region", region), ("account_id", "111122223333")];
            let scope = Value::object(scope).with("partition", partition);
            let policy = ControllerPolicy.call(&[scope]).unwrap();
            policy.as_str().unwrap().to_owned()
        };
        for (region, given, partition) in [
            ("eu-west-1", Value::Null, "aws"),
            ("us-gov-west-1", Value::Null, "aws-us-gov"),
            ("cn-north-1", Value::from(""), "aws-cn"),
            ("elsewhere-1", Value::from("aws-new"), "aws-new"),
        ] {
            let policy = policy(region, given);
            let cluster = format!("arn:{partition}:eks:{region}:111122223333:cluster/prod");
            assert!(policy.contains(&cluster), "{region}: {policy}");
            assert_eq!(
                policy.matches("arn:").count(),
                policy.matches(&format!("arn:{partition}:")).count(),
                "{region}"
            );
        }
    }
}

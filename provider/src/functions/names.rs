//! `discovery_tag` and `role_name`: the names by which things find each other.

use karp_domain::api::labels::DISCOVERY_TAG;
use tfplugin::{Function, FunctionError, Signature, Type, Value};

use crate::aws::names::{LONGEST_ROLE, fit};

/// The tag by which node classes find subnets and security groups.
pub struct DiscoveryTag;

impl Function for DiscoveryTag {
    fn name(&self) -> &'static str {
        "discovery_tag"
    }

    fn signature(&self) -> Signature {
        Signature::new(
            Type::map(Type::String),
            "Gives the tag by which node classes find subnets and security groups, as a map.",
        )
        .describe(
            "For the tags of a VPC module's subnets and for a node class's selector terms alike. A subnet can carry one value under \
             `karpenter.sh/discovery`, so clusters that share subnets take a key of their own each.",
        )
        .parameter("cluster_name", Type::String, "The cluster.")
        .nullable("shared", Type::Bool, "Put the cluster's name into the key, for subnets that several clusters share; null is false.")
    }

    fn call(&self, arguments: &[Value]) -> Result<Value, FunctionError> {
        let cluster = super::text(arguments, 0);
        if cluster.is_empty() {
            return Err(FunctionError::new("The cluster's name is empty.").argument(0));
        }
        let shared = arguments.get(1).and_then(Value::as_bool).unwrap_or_default();
        let key = if shared { format!("{DISCOVERY_TAG}/{cluster}") } else { DISCOVERY_TAG.to_owned() };
        Ok(Value::object([(key, cluster)]))
    }
}

/// A role's name that is never too long.
pub struct RoleName;

impl Function for RoleName {
    fn name(&self) -> &'static str {
        "role_name"
    }

    fn signature(&self) -> Signature {
        Signature::new(Type::String, "Gives a role's name of a prefix and the cluster's name, never longer than IAM allows.")
            .describe(format!(
                "The name that karp's own roles get when they are given none: prefix and cluster, and where that exceeds {LONGEST_ROLE} \
                 characters, its beginning and a digest of the whole. The same in every plan."
            ))
            .parameter("prefix", Type::String, "The prefix, such as `KarpNodeRole-`.")
            .parameter("cluster_name", Type::String, "The cluster.")
    }

    fn call(&self, arguments: &[Value]) -> Result<Value, FunctionError> {
        let (prefix, cluster) = (super::text(arguments, 0), super::text(arguments, 1));
        if cluster.is_empty() {
            return Err(FunctionError::new("The cluster's name is empty.").argument(1));
        }
        Ok(Value::from(fit(prefix, cluster, LONGEST_ROLE)))
    }
}

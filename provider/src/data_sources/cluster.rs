//! `karp_cluster`: what EKS says about a cluster.

use std::sync::Arc;

use base64::Engine as _;
use tfplugin::schema::validate;
use tfplugin::{Attribute, Context, DataSource, Diagnostic, Diagnostics, Schema, Type, Value, async_trait};

use crate::aws::names;
use crate::provider::Handle;
use crate::session::Session;

/// An EKS cluster.
pub struct Cluster {
    handle: Arc<Handle>,
}

impl Cluster {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

/// Declares the cluster's name as data sources take it.
pub fn name_attribute() -> Attribute {
    Attribute::string()
        .optional()
        .computed()
        .describe("The EKS cluster; the provider block's `cluster_name` when left out.")
}

/// Declares the region that something is looked up in.
pub fn region_attribute() -> Attribute {
    let region = validate::text("must be an AWS region such as \"eu-west-1\"", names::is_region);
    Attribute::string()
        .optional()
        .validate(region)
        .describe("The AWS region to look in; the provider block's `region` when left out.")
}

/// Gives the cluster that a configuration means: its own name, else the provider block's.
pub fn name_of(session: &Session, config: &Value) -> Result<String, Diagnostics> {
    let own = config.get("name").as_str().filter(|name| !name.is_empty());
    if let Some(name) = own.or(session.cluster_name()) {
        return Ok(name.to_owned());
    }
    let (summary, detail) = if session.planned_cluster_name().is_null() {
        ("The cluster's name is missing", "Set `name` here, or `cluster_name` in the provider block.")
    } else {
        (
            "The cluster's name is not known yet",
            "`cluster_name` of the provider block will be known only after apply. Set `name` here to what it is set to there, or let this \
             depend (`depends_on`) on what it comes from: then it is looked up in the apply.",
        )
    };
    Err(Diagnostic::error(summary, detail).at("name").into())
}

/// Gives the CA certificates as PEM, as other providers want them.
pub fn certificates(cluster: &karp_aws::eks::Cluster) -> String {
    let decoded = base64::engine::general_purpose::STANDARD.decode(&cluster.certificate_authority);
    decoded.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

#[async_trait]
impl DataSource for Cluster {
    fn type_name(&self) -> &'static str {
        "karp_cluster"
    }

    fn schema(&self) -> Schema {
        let text = |what: &str| Attribute::string().computed().describe(what);
        Schema::new("An EKS cluster: its address, network and how it knows its callers.")
            .attribute("name", name_attribute())
            .attribute("region", region_attribute())
            .attribute("arn", text("The ARN."))
            .attribute("status", text("The state: `ACTIVE`, `CREATING`, `UPDATING`, …"))
            .attribute("version", text("The Kubernetes version, such as `1.33`."))
            .attribute("endpoint", text("The API server's URL."))
            .attribute("cluster_ca_certificate", text("The API server's CA certificates, PEM."))
            .attribute("oidc_issuer", text("The issuer of service account tokens."))
            .attribute(
                "oidc_provider_arn",
                text("The ARN that the IAM provider of that issuer has, whether it exists or not."),
            )
            .attribute("authentication_mode", text("`API`, `API_AND_CONFIG_MAP` or `CONFIG_MAP`."))
            .attribute("ip_family", text("`ipv4` or `ipv6`."))
            .attribute("service_cidr", text("The range of service addresses."))
            .attribute("vpc_id", text("The VPC."))
            .attribute(
                "cluster_security_group_id",
                text("The security group that EKS made for control plane and nodes."),
            )
            .attribute(
                "subnet_ids",
                Attribute::list(Type::String)
                    .computed()
                    .describe("The subnets of the control plane's network interfaces."),
            )
            .attribute(
                "security_group_ids",
                Attribute::list(Type::String)
                    .computed()
                    .describe("The security groups of these interfaces besides `cluster_security_group_id`."),
            )
    }

    async fn read(&self, ctx: &Context, config: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let name = name_of(&session, &config)?;
        let cluster = ctx.run(session.cluster_of(&config, &name)).await??;
        let family = if cluster.ipv6 { "ipv6" } else { "ipv4" };
        let text = |value: &Option<String>| value.as_deref().map_or(Value::Null, Value::from);
        let provider = provider_arn(&cluster).map_or(Value::Null, Value::from);
        Ok(config
            .with("name", name)
            .with("arn", cluster.arn.as_str())
            .with("status", cluster.status.as_str())
            .with("version", cluster.version.as_str())
            .with("endpoint", cluster.endpoint.as_str())
            .with("cluster_ca_certificate", certificates(&cluster))
            .with("oidc_issuer", text(&cluster.oidc_issuer))
            .with("oidc_provider_arn", provider)
            .with("authentication_mode", text(&cluster.authentication_mode))
            .with("ip_family", family)
            .with("service_cidr", text(&cluster.service_cidr))
            .with("vpc_id", text(&cluster.vpc_id))
            .with("cluster_security_group_id", text(&cluster.cluster_security_group_id))
            .with("subnet_ids", cluster.subnet_ids.clone())
            .with("security_group_ids", cluster.security_group_ids.clone()))
    }
}

/// The provider of an issuer is called as the issuer is, in the cluster's partition and account.
fn provider_arn(cluster: &karp_aws::eks::Cluster) -> Option<String> {
    let issuer = cluster.oidc_issuer.as_deref()?.trim_start_matches("https://");
    let parts: Vec<&str> = cluster.arn.split(':').collect();
    Some(format!("arn:{}:iam::{}:oidc-provider/{issuer}", parts.get(1)?, parts.get(4)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Model;

    #[test]
    fn a_name_is_the_configurations_else_the_providers() {
        let name = |provider: Value, own: Value| {
            let block = Value::object([("region", Value::from("eu-west-1")), ("cluster_name", provider)]);
            let session = Session::new(Model::read(&block).unwrap());
            name_of(&session, &Value::object([("name", own)])).map_err(|found| found.to_string())
        };
        let prod = || Value::from("prod");
        assert_eq!(name(prod(), Value::from("other")).as_deref(), Ok("other"));
        assert_eq!(name(prod(), Value::Null).as_deref(), Ok("prod"));
        assert_eq!(name(prod(), Value::from("")).as_deref(), Ok("prod"));
        assert_eq!(name(Value::Unknown, prod()).as_deref(), Ok("prod"));
        let told = name(Value::Unknown, Value::Null).unwrap_err();
        assert!(told.contains("not known yet") && told.contains("depends_on"), "{told}");
    }

    #[test]
    fn the_providers_arn_follows_from_issuer_and_account() {
        let cluster = karp_aws::eks::Cluster {
            arn: "arn:aws-cn:eks:cn-north-1:111122223333:cluster/prod".to_owned(),
            oidc_issuer: Some("https://oidc.eks.cn-north-1.amazonaws.com.cn/id/AB".to_owned()),
            ..karp_aws::eks::Cluster::default()
        };
        let expected = "arn:aws-cn:iam::111122223333:oidc-provider/oidc.eks.cn-north-1.amazonaws.com.cn/id/AB";
        assert_eq!(provider_arn(&cluster).as_deref(), Some(expected));
        assert_eq!(provider_arn(&karp_aws::eks::Cluster::default()), None);
    }
}

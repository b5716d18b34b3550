//! `karp_cluster_token`: how to reach a cluster's API server, for the providers kubernetes and helm; never in a state.

use std::sync::Arc;

use tfplugin::{Attribute, Context, Diagnostics, EphemeralResource, Opened, Schema, Value, async_trait};

use crate::data_sources::cluster::{certificates, name_attribute, name_of, region_attribute};
use crate::provider::Handle;
use crate::report::Failure;

/// A token of an EKS cluster.
pub struct ClusterToken {
    handle: Arc<Handle>,
}

impl ClusterToken {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

#[async_trait]
impl EphemeralResource for ClusterToken {
    fn type_name(&self) -> &'static str {
        "karp_cluster_token"
    }

    fn schema(&self) -> Schema {
        let text = |what: &str| Attribute::string().computed().describe(what);
        Schema::new(
            "Address, CA and a token of an EKS cluster, for the provider blocks of kubernetes and helm. The token is made of the AWS \
             credentials, without any other program, lives 15 minutes, and reaches neither plan nor state.",
        )
        .attribute("name", name_attribute())
        .attribute("region", region_attribute())
        .attribute("endpoint", text("The API server's URL."))
        .attribute("cluster_ca_certificate", text("The API server's CA certificates, PEM."))
        .attribute("token", text("The bearer token.").sensitive())
    }

    async fn open(&self, ctx: &Context, config: Value) -> Result<Opened, Diagnostics> {
        let session = self.handle.session();
        let name = name_of(&session, &config)?;
        let aws = session.aws_of(&config).await?;
        let cluster = ctx.run(session.cluster_of(&config, &name)).await??;
        let token = ctx.run(karp_aws::token::bearer(aws.clients(), &name)).await?;
        let token = token.map_err(|e| Failure::from_aws(format!("make a token for EKS cluster {name:?}"), e))?;
        let result = config
            .with("name", name)
            .with("endpoint", cluster.endpoint.as_str())
            .with("cluster_ca_certificate", certificates(&cluster))
            .with("token", token.value);
        Ok(Opened { result, ..Opened::default() })
    }
}

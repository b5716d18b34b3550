//! `karp_fargate_pod_execution_role`: the role by which Fargate starts the controller's pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value as Json;
use tfplugin::{Context, Diagnostics, Moved, PlannedChange, Resource, Schema, Value, async_trait};

use super::iam_role::{self, Purpose};
use crate::aws::policies;
use crate::provider::Handle;
use crate::session::Session;

const PREFIX: &str = "KarpFargateRole-";
/// The managed policy that every such role needs.
const STANDARD: &str = "AmazonEKSFargatePodExecutionRolePolicy";

/// The role of Fargate's kubelets.
pub struct FargatePodExecutionRole {
    handle: Arc<Handle>,
}

impl FargatePodExecutionRole {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

#[async_trait]
impl Resource for FargatePodExecutionRole {
    fn type_name(&self) -> &'static str {
        "karp_fargate_pod_execution_role"
    }

    fn schema(&self) -> Schema {
        let schema = iam_role::schema(
            "The IAM role by which Fargate pulls images for pods and writes their logs. It trusts Fargate for profiles of this cluster \
             only.",
            PREFIX,
            "Fargate pods of the cluster that karp scales",
        );
        iam_role::additional_policies(schema, "Further managed policies, as for logging")
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        let session = self.handle.session();
        let found = iam_role::plan(&session, change, PREFIX);
        if !change.is_destroy() {
            let purpose = purpose(&session, &change.planned).await;
            iam_role::plan_purpose(change, purpose.as_ref());
        }
        found
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let purpose = known(&session, &planned).await?;
        iam_role::create(&session, ctx, planned, &purpose).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let (imported, no_inline) = (state.get("policy_arns").is_null(), BTreeSet::new());
        let read = iam_role::read(&session, ctx, &state, &no_inline, |state, found| {
            let standard = format!(":aws:policy/{STANDARD}");
            let further = found.attached.iter().filter(|arn| !arn.ends_with(&standard)).cloned().collect();
            if imported { iam_role::with_additional(state, &further) } else { state }
        });
        read.await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let purpose = known(&session, &planned).await?;
        iam_role::update(&session, ctx, &prior, planned, &purpose, BTreeSet::new()).await
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        iam_role::delete(session.aws().await?, ctx, &prior).await
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        Ok(iam_role::import(id))
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        iam_role::take_over(source)
    }

    fn upgrade(&self, version: i64, state: Json) -> Result<Json, Diagnostics> {
        Ok(iam_role::upgrade(version, state))
    }
}

/// Says what the role is for; `None` while the region, the cluster's name or an attribute is unknown.
async fn purpose(session: &Session, planned: &Value) -> Option<Purpose> {
    let region = session.region().await?;
    let partition = policies::partition(&region);
    let additional = iam_role::additional(planned)?;
    let cluster = planned.get("cluster_name").as_str()?;
    let mut attached = BTreeSet::from([policies::managed(partition, STANDARD)]);
    attached.extend(additional);
    Some(Purpose { trust: policies::fargate_trust(partition, &region, cluster), attached, ..Purpose::default() })
}

async fn known(session: &Session, planned: &Value) -> Result<Purpose, Diagnostics> {
    session.aws().await?;
    purpose(session, planned).await.ok_or_else(iam_role::unknown_at_apply)
}

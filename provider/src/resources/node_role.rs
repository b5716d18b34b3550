//! `karp_node_role`: the role of the nodes that karp launches.

use std::collections::BTreeSet;
use std::sync::Arc;

use tfplugin::schema::validate;
use tfplugin::{Attribute, Context, Diagnostics, Moved, PlannedChange, Resource, Schema, Type, Value, async_trait};

use super::iam_role::{self, Purpose};
use crate::aws::policies;
use crate::aws::profile;
use crate::provider::Handle;
use crate::session::Session;

const PREFIX: &str = "KarpNodeRole-";
/// The managed policies that every node needs.
const STANDARD: [&str; 2] = ["AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"];
const CNI: &str = "AmazonEKS_CNI_Policy";
const SSM: &str = "AmazonSSMManagedInstanceCore";

/// The role of nodes.
pub struct NodeRole {
    handle: Arc<Handle>,
}

impl NodeRole {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }
}

#[async_trait]
impl Resource for NodeRole {
    fn type_name(&self) -> &'static str {
        "karp_node_role"
    }

    fn schema(&self) -> Schema {
        iam_role::schema(
            "The IAM role of the nodes that karp launches, with the managed policies that an EKS node needs. Deleting it takes it out \
             of the cluster's instance profiles first, also of those that a controller made.",
            PREFIX,
            "Nodes launched by karp",
        )
        .attribute(
            "attach_cni_policy",
            Attribute::bool().default(true).describe(
                "Attach `AmazonEKS_CNI_Policy`. Set it to false when the VPC CNI has a role of its own, or in an IPv6 cluster.",
            ),
        )
        .attribute(
            "attach_ssm_policy",
            Attribute::bool().default(true).describe("Attach `AmazonSSMManagedInstanceCore`, for sessions by Systems Manager."),
        )
        .attribute(
            "additional_policy_arns",
            Attribute::set(Type::String)
                .optional()
                .validate(validate::each(validate::arn()))
                .describe("Further managed policies for the nodes."),
        )
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
        iam_role::read(&session, ctx, &state, &BTreeSet::new(), |state, found| complete(state, &found.attached)).await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let purpose = known(&session, &planned).await?;
        iam_role::update(&session, ctx, &prior, planned, &purpose, BTreeSet::new()).await
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let aws = session.aws().await?;
        let name = prior.get("name").as_str().unwrap_or_default();
        profile::unlink_role(aws.iam(), ctx, name, prior.get("cluster_name").as_str()).await?;
        iam_role::delete(aws, ctx, &prior).await
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        Ok(iam_role::import(id))
    }

    fn take_over(&self, source: &Moved) -> Result<Option<Value>, Diagnostics> {
        iam_role::take_over(source)
    }
}

/// Says what the role is for; `None` while the region (hence the partition) or an attribute is unknown.
async fn purpose(session: &Session, planned: &Value) -> Option<Purpose> {
    let partition = policies::partition(&session.region().await?);
    let additional = planned.get("additional_policy_arns");
    if !additional.whole_known() {
        return None;
    }
    let mut names = STANDARD.to_vec();
    if planned.get("attach_cni_policy").as_bool()? {
        names.push(CNI);
    }
    if planned.get("attach_ssm_policy").as_bool()? {
        names.push(SSM);
    }
    let mut attached: BTreeSet<String> = names.into_iter().map(|name| policies::managed(partition, name)).collect();
    attached.extend(additional.as_list().iter().filter_map(Value::as_str).map(str::to_owned));
    Some(Purpose { trust: policies::node_trust(partition), attached, ..Purpose::default() })
}

async fn known(session: &Session, planned: &Value) -> Result<Purpose, Diagnostics> {
    session.aws().await?;
    purpose(session, planned).await.ok_or_else(iam_role::unknown_at_apply)
}

/// Completes the state of an import by the policies that are attached.
fn complete(state: Value, attached: &BTreeSet<String>) -> Value {
    if !state.get("attach_cni_policy").is_null() {
        return state;
    }
    let has = |name: &str| attached.iter().any(|arn| arn.ends_with(&format!(":aws:policy/{name}")));
    let known =
        |arn: &&String| STANDARD.iter().chain([&CNI, &SSM]).any(|name| arn.ends_with(&format!(":aws:policy/{name}")));
    let additional: BTreeSet<String> = attached.iter().filter(|arn| !known(arn)).cloned().collect();
    let state = state.with("attach_cni_policy", has(CNI)).with("attach_ssm_policy", has(SSM));
    if additional.is_empty() { state } else { state.with("additional_policy_arns", iam_role::text_set(&additional)) }
}

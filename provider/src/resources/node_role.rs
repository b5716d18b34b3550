//! `karp_node_role`: the role of the nodes that karp launches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value as Json;
use tfplugin::schema::validate;
use tfplugin::{
    Attribute, Context, Diagnostic, Diagnostics, Moved, PlannedChange, Resource, Schema, Value, async_trait,
};

use super::iam_role::{self, Purpose};
use crate::aws::policies;
use crate::aws::profile;
use crate::provider::Handle;
use crate::session::Session;

const PREFIX: &str = "KarpNodeRole-";
/// The managed policies that every node needs.
const STANDARD: [&str; 2] = ["AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"];
const CNI: &str = "AmazonEKS_CNI_Policy";
/// The inline policy that takes the place of [`CNI`] in an IPv6 cluster.
const CNI_IPV6: &str = "karp-cni-ipv6";
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
        let schema = iam_role::schema(
            "The IAM role of the nodes that karp launches, with the managed policies that an EKS node needs. Deleting it takes it out \
             of the cluster's instance profiles first, also of those that a controller made.",
            PREFIX,
            "Nodes launched by karp",
        );
        let schema = iam_role::additional_policies(schema, "Further managed policies for the nodes");
        schema
        .attribute(
            "attach_cni_policy",
            Attribute::bool().default(true).describe(
                "Let the VPC CNI on the nodes give addresses to pods: by `AmazonEKS_CNI_Policy`, or with `ip_family = \"ipv6\"` by an inline \
                 policy, since AWS manages none. Set it to false when the VPC CNI has a role of its own.",
            ),
        )
        .attribute(
            "ip_family",
            Attribute::string()
                .default("ipv4")
                .validate(validate::one_of(["ipv4", "ipv6"]))
                .describe("The addresses that pods of the cluster have: `ipv4` or `ipv6`."),
        )
        .attribute(
            "attach_ssm_policy",
            Attribute::bool().default(true).describe("Attach `AmazonSSMManagedInstanceCore`, for sessions by Systems Manager."),
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
        let state = iam_role::create(&session, ctx, planned, &purpose).await?;
        let name = state.get("name").as_str().unwrap_or_default();
        // where it takes the place of one of this name, a plan shows no change of the profiles that had that one
        let emptied = session.take_emptied(name);
        let told = emptied.iter().cloned().collect::<Vec<_>>().join(", ");
        // the role is made, and complete: an error would have it made anew
        if let Err(failure) = profile::link_again(session.aws().await?.iam(), ctx, name, emptied).await {
            ctx.warn(Diagnostic::warning(
                format!("Instance profiles of role {name:?} may be empty"),
                format!("{failure}\n\nNo node starts with these until the role is in them again: {told}."),
            ));
        }
        Ok(state)
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        // An import does not know yet; other roles have no inline policy, and are not asked for it.
        let may_have = matches!(state.get("ip_family").as_str(), None | Some("ipv6"));
        let inline: BTreeSet<String> = may_have.then(|| CNI_IPV6.to_owned()).into_iter().collect();
        let partition = session.region().await.map(|region| policies::partition(&region));
        let wanted = partition.map(policies::cni_ipv6);
        let read = iam_role::read(&session, ctx, &state, &inline, |state, found| {
            let inline = found.inline.get(CNI_IPV6);
            let state = complete(state, &found.attached, inline.is_some());
            let is_ipv6 = state.get("ip_family").as_str() == Some("ipv6");
            let differs =
                is_ipv6 && state.get("attach_cni_policy").as_bool() == Some(true) && inline != wanted.as_ref();
            // A policy that was changed or taken away shows, and is written again.
            if differs { state.with("ip_family", Value::Null) } else { state }
        });
        read.await
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        let purpose = known(&session, &planned).await?;
        let owned = prior.get("ip_family").as_str() != Some("ipv4");
        let owned = owned.then(|| CNI_IPV6.to_owned()).into_iter().collect();
        // should the change fail, the next refresh looks which of the two it is
        let changes = prior.get("ip_family") != planned.get("ip_family");
        let prior = if changes { prior.with("ip_family", Value::Null) } else { prior };
        iam_role::update(&session, ctx, &prior, planned, &purpose, owned).await
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let aws = session.aws().await?;
        let name = prior.get("name").as_str().unwrap_or_default();
        let emptied = profile::unlink_role(aws.iam(), ctx, name, prior.get("cluster_name").as_str()).await?;
        session.emptied(name, emptied);
        iam_role::delete(aws, ctx, &prior).await
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

/// Says what the role is for; `None` while the region (hence the partition) or an attribute is unknown.
async fn purpose(session: &Session, planned: &Value) -> Option<Purpose> {
    let partition = policies::partition(&session.region().await?);
    let additional = iam_role::additional(planned)?;
    let mut names = STANDARD.to_vec();
    let mut inline = BTreeMap::new();
    if planned.get("attach_cni_policy").as_bool()? {
        match planned.get("ip_family").as_str()? {
            "ipv6" => drop(inline.insert(CNI_IPV6.to_owned(), policies::cni_ipv6(partition))),
            _ => names.push(CNI),
        }
    }
    if planned.get("attach_ssm_policy").as_bool()? {
        names.push(SSM);
    }
    let mut attached: BTreeSet<String> = names.into_iter().map(|name| policies::managed(partition, name)).collect();
    attached.extend(additional);
    Some(Purpose { trust: policies::node_trust(partition), attached, inline })
}

async fn known(session: &Session, planned: &Value) -> Result<Purpose, Diagnostics> {
    session.aws().await?;
    purpose(session, planned).await.ok_or_else(iam_role::unknown_at_apply)
}

/// Completes the state of an import by the policies that are attached.
fn complete(state: Value, attached: &BTreeSet<String>, has_ipv6: bool) -> Value {
    if !state.get("attach_cni_policy").is_null() {
        return state;
    }
    let has = |name: &str| attached.iter().any(|arn| arn.ends_with(&format!(":aws:policy/{name}")));
    let known =
        |arn: &&String| STANDARD.iter().chain([&CNI, &SSM]).any(|name| arn.ends_with(&format!(":aws:policy/{name}")));
    let additional: BTreeSet<String> = attached.iter().filter(|arn| !known(arn)).cloned().collect();
    let family = if has_ipv6 { "ipv6" } else { "ipv4" };
    let state = state.with("attach_cni_policy", has(CNI) || has_ipv6).with("attach_ssm_policy", has(SSM));
    let state = state.with("ip_family", family);
    iam_role::with_additional(state, &additional)
}

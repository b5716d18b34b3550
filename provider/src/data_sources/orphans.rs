//! `karp_orphans`: what controllers made in AWS and nothing in the cluster knows any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karp_domain::api::{Ec2NodeClass, NodeClaim};
use karp_domain::orphans::{Known, What};
use kube::Client;
use kube::api::{DynamicObject, ListParams};
use tfplugin::{Attribute, Context, DataSource, Diagnostics, Schema, Type, Value, async_trait};

use super::cluster::name_of;
use crate::aws::leftovers::{self, Leftovers};
use crate::provider::Handle;
use crate::report::{Failure, Kind};
use crate::resources::{failure, listed, listed_raw};

/// The orphans of a cluster.
pub struct Orphans {
    handle: Arc<Handle>,
}

impl Orphans {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }

    async fn find(&self, name: &str) -> Result<Leftovers, Failure> {
        let session = self.handle.session();
        // By what another cluster knows, all that lives in this one would be an orphan.
        if let Some(other) = session.cluster_name().filter(|other| *other != name) {
            let what = format!("the provider block names another cluster: {other:?}");
            let failure = Failure::new(Kind::Elsewhere, format!("find the orphans of cluster {name:?}"), what);
            return Err(failure
                .at("name")
                .with_fix("Give that cluster a provider block of its own, with an `alias`, and choose it here."));
        }
        let client = session.kube().await?;
        // AWS first: a node that is made in between is known to the cluster by then.
        let mut there = leftovers::find(session.aws().await?, name, &BTreeSet::from(What::ALL)).await?;
        let known = known(&client).await?;
        there.0.values_mut().for_each(|left| left.retain(|one| one.orphaned(Some(&known)).is_some()));
        Ok(there)
    }
}

#[async_trait]
impl DataSource for Orphans {
    fn type_name(&self) -> &'static str {
        "karp_orphans"
    }

    fn schema(&self) -> Schema {
        let ids = |what: &str| Attribute::list(Type::String).computed().describe(what);
        Schema::new(
            "What controllers made in AWS for the cluster's nodes and nothing in the cluster knows any more. A controller that runs collects \
             most of it by itself within minutes; `karp_teardown` ends all of it.",
        )
        .attribute("name", Attribute::string().optional().computed().describe("The EKS cluster; the provider block's `cluster_name` when left out."))
        .attribute("total", Attribute::number().computed().describe("How many there are of all kinds."))
        .attribute("instances", ids("Instances without a NodeClaim."))
        .attribute("network_interfaces", ids("Network interfaces that nothing uses, of no node that is there."))
        .attribute("volumes", ids("Volumes that nothing uses, of no NodeClaim that is there."))
        .attribute("launch_templates", ids("Launch templates of node classes that are gone."))
        .attribute("instance_profiles", ids("Instance profiles of node classes that are gone."))
    }

    async fn read(&self, ctx: &Context, config: Value) -> Result<Value, Diagnostics> {
        let name = name_of(&self.handle.session(), &config)?;
        let found = ctx.run(self.find(&name)).await??;
        let total = found.0.values().map(Vec::len).sum::<usize>();
        let mut answer = config.with("name", name).with("total", i64::try_from(total).unwrap_or(i64::MAX));
        for what in What::ALL {
            let ids: Vec<&str> = found.0.get(&what).into_iter().flatten().map(|left| left.id.as_str()).collect();
            answer.set(what.name(), tfplugin::to_value(&ids)?);
        }
        Ok(answer)
    }
}

async fn known(client: &Client) -> Result<Known, Failure> {
    let told = |error| failure("list what the cluster knows of its nodes", error);
    let claims = listed_raw::<NodeClaim>(client, &ListParams::default()).await.map_err(told)?;
    let classes = listed_raw::<Ec2NodeClass>(client, &ListParams::default()).await.map_err(told)?;
    let nodes = listed::<Node>(client, &ListParams::default()).await.map_err(told)?;
    Ok(accounting(&claims, &classes, &nodes))
}

/// Gathers what accounts for things in AWS, and reads no more of it: an object that the API server admits and that cannot be read as a whole accounts
/// for what was made for it all the same.
fn accounting(claims: &[DynamicObject], classes: &[DynamicObject], nodes: &[Node]) -> Known {
    let mut known = Known::default();
    for claim in claims {
        known.note_claim(claim.metadata.name.as_deref(), claim.data["status"]["providerID"].as_str());
    }
    for class in classes {
        known.note_class(class.metadata.name.as_deref(), class.metadata.uid.as_deref());
    }
    nodes.iter().filter_map(|node| node.spec.as_ref()?.provider_id.as_deref()).for_each(|id| known.note_node(id));
    known
}

#[cfg(test)]
mod tests {
    use karp_domain::orphans::Left;
    use serde_json::json;
    use tfplugin::testing::Core;

    use super::*;
    use crate::provider::Karp;

    #[test]
    fn what_cannot_be_read_accounts_for_what_was_made_for_it() {
        let odd = |name: &str, status: serde_json::Value| -> DynamicObject {
            let metadata = json!({ "name": name, "uid": format!("{name}-uid") });
            serde_json::from_value(json!({ "metadata": metadata, "spec": 1, "status": status })).expect("an object")
        };
        let claims = [odd("new", json!({})), odd("old", json!({ "providerID": "aws:///eu-west-1a/i-1" }))];
        let known = accounting(&claims, &[odd("class", json!({}))], &[]);
        let orphaned = |left: Left| left.orphaned(Some(&known)).is_some();
        let of_claim = |id: &str, claim: &str| Left { claim: Some(claim.to_owned()), ..Left::new(What::Instances, id) };
        assert!(!orphaned(of_claim("i-9", "new")) && orphaned(of_claim("i-9", "other")));
        assert!(!orphaned(Left::new(What::Instances, "i-1")) && orphaned(Left::new(What::Instances, "i-2")));
        for (what, of) in [(What::LaunchTemplates, "class"), (What::InstanceProfiles, "class-uid")] {
            assert!(!orphaned(Left { node_class: Some(of.to_owned()), ..Left::new(what, "x") }));
        }
    }

    #[tokio::test]
    async fn one_cluster_does_not_tell_of_anothers_orphans() {
        let core = Core::new(Karp::default());
        let block = [("region", "eu-west-1"), ("access_key", "a"), ("secret_key", "s"), ("cluster_name", "prod")];
        assert!(core.configure(&Value::object(block)).await.is_empty());
        let told = core.data("karp_orphans", &Value::object([("name", "other")])).await.unwrap_err().to_string();
        assert!(told.contains("names another cluster: \"prod\"") && told.contains("`alias`"), "{told}");
    }
}

//! `karp_orphans`: what controllers made in AWS and nothing in the cluster knows any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use karp_domain::api::{Ec2NodeClass, NodeClaim};
use kube::api::ListParams;
use kube::{Client, ResourceExt};
use tfplugin::{Attribute, Context, DataSource, Diagnostics, Schema, Type, Value, async_trait};

use super::cluster::name_of;
use crate::aws::leftovers::{self, Left, Leftovers, What};
use crate::provider::Handle;
use crate::report::Failure;
use crate::resources::{failure, listed};

/// The orphans of a cluster.
pub struct Orphans {
    handle: Arc<Handle>,
}

/// What the cluster knows.
#[derive(Debug, Default)]
struct Known {
    instances: BTreeSet<String>,
    /// Names and uids of node classes.
    classes: BTreeSet<String>,
}

impl Orphans {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }

    async fn find(&self, name: &str) -> Result<Leftovers, Failure> {
        let session = self.handle.session();
        let client = session.kube().await?;
        // AWS first: a node that is made in between is known to the cluster by then.
        let there = leftovers::find(session.aws().await?, name, &BTreeSet::from(What::ALL)).await?;
        Ok(orphaned(there, &known(&client).await?))
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
        .attribute("network_interfaces", ids("Network interfaces that nothing uses."))
        .attribute("volumes", ids("Volumes that nothing uses."))
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
    let claims = listed::<NodeClaim>(client, &ListParams::default()).await.map_err(told)?;
    let ids = claims.iter().filter_map(|claim| claim.status.as_ref()?.provider_id.as_deref());
    let instances = ids.filter_map(karp_aws::instances::instance_id).map(str::to_owned).collect();
    let classes = listed::<Ec2NodeClass>(client, &ListParams::default()).await.map_err(told)?;
    let classes = classes.iter().flat_map(|class| [Some(class.name_any()), class.uid()]).flatten().collect();
    Ok(Known { instances, classes })
}

/// Leaves out what the cluster knows. Interfaces and volumes that nothing uses are nobody's.
fn orphaned(mut there: Leftovers, known: &Known) -> Leftovers {
    for (what, left) in &mut there.0 {
        left.retain(|one: &Left| match what {
            What::Instances => !known.instances.contains(&one.id),
            What::LaunchTemplates | What::InstanceProfiles => {
                one.node_class.as_ref().is_none_or(|class| !known.classes.contains(class))
            }
            What::NetworkInterfaces | What::Volumes => true,
        });
    }
    there
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_cluster_knows_is_no_orphan() {
        let left = |id: &str, class: Option<&str>| Left { id: id.to_owned(), node_class: class.map(str::to_owned) };
        let mut there = Leftovers::default();
        there.0.insert(What::Instances, vec![left("i-1", Some("a")), left("i-2", Some("a"))]);
        there.0.insert(What::LaunchTemplates, vec![left("lt-1", Some("a")), left("lt-2", Some("b"))]);
        there.0.insert(What::InstanceProfiles, vec![left("p-1", Some("uid-a")), left("p-2", Some("uid-b"))]);
        there.0.insert(What::Volumes, vec![left("vol-1", None)]);
        let known =
            Known { instances: ["i-1".to_owned()].into(), classes: ["a".to_owned(), "uid-a".to_owned()].into() };
        let told = orphaned(there, &known).to_string();
        assert_eq!(told, "1 instance (i-2), 1 volume (vol-1), 1 launch template (lt-2), 1 instance profile (p-2)");
    }
}

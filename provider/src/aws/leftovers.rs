//! What controllers made for a cluster's nodes and may have left behind, found by their tags: instances, network interfaces, volumes,
//! launch templates, instance profiles.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use aws_sdk_ec2::types::{Filter, NetworkInterfaceStatus};
use karp_aws::instances::{self, Instance};
use karp_aws::{instance_profiles, launch_template};
use karp_domain::api::labels;
use tfplugin::Context;

use super::wait::{settle_within, until};
use crate::report::{Failure, Kind};
use crate::session::Aws;

/// The network plugin's tags of the interfaces that it makes.
const CNI_CLUSTER_KEY: &str = "cluster.k8s.amazonaws.com/name";
const CNI_INSTANCE_KEY: &str = "node.k8s.amazonaws.com/instance_id";
/// So many names of one kind are shown.
const SHOWN: usize = 5;
/// An interface may stay attached for a while after its instance has ended.
const DETACH: Duration = Duration::from_secs(120);

/// A kind of what may be left, in the order in which it must go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// EC2 instances.
    Instances,
    /// Network interfaces that nothing uses.
    NetworkInterfaces,
    /// Volumes that nothing uses.
    Volumes,
    /// Launch templates.
    LaunchTemplates,
    /// Instance profiles on the controller's path.
    InstanceProfiles,
}

impl What {
    /// All kinds, in order.
    pub const ALL: [Self; 5] =
        [Self::Instances, Self::NetworkInterfaces, Self::Volumes, Self::LaunchTemplates, Self::InstanceProfiles];

    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Instances => "instances",
            Self::NetworkInterfaces => "network_interfaces",
            Self::Volumes => "volumes",
            Self::LaunchTemplates => "launch_templates",
            Self::InstanceProfiles => "instance_profiles",
        }
    }

    /// Reads the name in configurations.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|what| what.name() == name)
    }
}

/// One thing that is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its id; a profile's name.
    pub id: String,
    /// The node class that it was made for, where that is known: its name, or of a profile its uid.
    pub node_class: Option<String>,
}

/// What is left, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers(pub BTreeMap<What, Vec<Left>>);

impl Leftovers {
    /// Tells whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.values().all(Vec::is_empty)
    }

    fn ids(&self, what: What) -> Vec<String> {
        self.0.get(&what).into_iter().flatten().map(|left| left.id.clone()).collect()
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = self.0.iter().filter(|(_, left)| !left.is_empty()).map(|(what, left)| {
            let names: Vec<&str> = left.iter().take(SHOWN).map(|left| left.id.as_str()).collect();
            let more = if left.len() > SHOWN { ", …" } else { "" };
            let what = what.name().replace('_', " ");
            let what = if left.len() == 1 { what.trim_end_matches('s') } else { &what };
            format!("{} {what} ({}{more})", left.len(), names.join(", "))
        });
        let told: Vec<String> = told.collect();
        f.write_str(if told.is_empty() { "nothing" } else { "" })?;
        f.write_str(&told.join(", "))
    }
}

/// The tags of what controllers make for a cluster; `*` stands for any value.
fn owned(cluster: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (format!("kubernetes.io/cluster/{cluster}"), "owned".to_owned()),
        (labels::EC2_NODE_CLASS.to_owned(), "*".to_owned()),
    ])
}

/// Lists the instances that controllers launched for a cluster and that have not ended.
pub async fn nodes(aws: &Aws, cluster: &str) -> Result<Vec<Instance>, Failure> {
    let found = instances::list(aws.clients(), &owned(cluster)).await;
    let found = found.map_err(|e| Failure::from_aws(format!("list the instances of cluster {cluster:?}"), e))?;
    Ok(found.into_iter().filter(|instance| !instance.state.is_ending()).collect())
}

/// Finds what is there of these kinds.
pub async fn find(aws: &Aws, cluster: &str, kinds: &BTreeSet<What>) -> Result<Leftovers, Failure> {
    let mut found = Leftovers::default();
    for what in kinds {
        let left = match what {
            What::Instances => nodes(aws, cluster).await?.iter().map(of_instance).collect(),
            What::NetworkInterfaces => interfaces(aws, cluster).await?,
            What::Volumes => volumes(aws, cluster).await?,
            What::LaunchTemplates => templates(aws, cluster).await?,
            What::InstanceProfiles => profiles(aws, cluster).await?,
        };
        found.0.insert(*what, left);
    }
    Ok(found)
}

/// Ends what is there of these kinds, in order, and says what it was.
pub async fn sweep(aws: &Aws, ctx: &Context, cluster: &str, kinds: &BTreeSet<What>) -> Result<Leftovers, Failure> {
    let mut swept = Leftovers::default();
    for what in kinds {
        let found = find(aws, cluster, &BTreeSet::from([*what])).await?;
        if !found.is_empty() {
            tracing::info!(cluster, left = %found, "sweeping");
        }
        let ids = found.ids(*what);
        match what {
            What::Instances => end(aws, ctx, &ids).await?,
            What::NetworkInterfaces => each(&ids, |id| delete_interface(aws, ctx, id)).await?,
            What::Volumes => each(&ids, |id| delete_volume(aws, id)).await?,
            What::LaunchTemplates => {
                let gone = |id: String| async move {
                    let gone = launch_template::delete(aws.clients(), &id).await;
                    gone.map_err(|e| Failure::from_aws(format!("delete launch template {id}"), e))
                };
                each(&ids, gone).await?;
            }
            What::InstanceProfiles => {
                let gone = |name: String| async move {
                    let gone = instance_profiles::delete(aws.clients(), &name).await;
                    gone.map_err(|e| Failure::from_aws(format!("delete instance profile {name:?}"), e))
                };
                each(&ids, gone).await?;
            }
        }
        swept.0.extend(found.0);
    }
    Ok(swept)
}

async fn each<F>(ids: &[String], mut gone: impl FnMut(String) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    for id in ids {
        gone(id.clone()).await?;
    }
    Ok(())
}

fn of_instance(instance: &Instance) -> Left {
    Left { id: instance.id.clone(), node_class: instance.tags.get(labels::EC2_NODE_CLASS).cloned() }
}

/// Ends instances and waits until EC2 says that they are ended: their interfaces and groups are free only then.
async fn end(aws: &Aws, ctx: &Context, ids: &[String]) -> Result<(), Failure> {
    if ids.is_empty() {
        return Ok(());
    }
    let doing = format!("end {} instances", ids.len());
    for (id, answer) in instances::terminate(aws.clients(), ids).await {
        match answer.map_err(|e| Failure::from_aws(format!("end instance {id}"), e)) {
            Err(failure) if !failure.is_missing() => return Err(failure),
            _ => {}
        }
    }
    let limit = ctx.remaining();
    until(ctx.stop(), limit, &doing, || async {
        let left = instances::describe(aws.clients(), ids).await.map_err(|e| Failure::from_aws(&doing, e))?;
        Ok(left.iter().all(|one| one.state == instances::State::Terminated).then_some(()))
    })
    .await
}

fn filter(name: &str, value: &str) -> Filter {
    Filter::builder().name(name).values(value).build()
}

fn owned_filters(cluster: &str) -> Vec<Filter> {
    vec![filter(&format!("tag:kubernetes.io/cluster/{cluster}"), "owned"), filter("tag-key", labels::EC2_NODE_CLASS)]
}

async fn interfaces(aws: &Aws, cluster: &str) -> Result<Vec<Left>, Failure> {
    let doing = format!("list the network interfaces of cluster {cluster:?}");
    let cni = vec![filter(&format!("tag:{CNI_CLUSTER_KEY}"), cluster), filter("tag-key", CNI_INSTANCE_KEY)];
    let mut found = BTreeSet::new();
    for filters in [owned_filters(cluster), cni] {
        let mut pages =
            aws.ec2().describe_network_interfaces().set_filters(Some(filters)).into_paginator().items().send();
        while let Some(one) = pages.next().await {
            let one = one.map_err(|e| Failure::aws(&doing, e))?;
            // One that is attached goes with its instance.
            let free = one.status == Some(NetworkInterfaceStatus::Available);
            found.extend(one.network_interface_id.filter(|_| free));
        }
    }
    Ok(found.into_iter().map(|id| Left { id, node_class: None }).collect())
}

async fn delete_interface(aws: &Aws, ctx: &Context, id: String) -> Result<(), Failure> {
    let doing = format!("delete network interface {id}");
    let call = || async {
        match aws.ec2().delete_network_interface().network_interface_id(&id).send().await {
            Ok(_) => Ok(()),
            Err(e) => match Failure::aws(&doing, e) {
                failure if failure.is_missing() => Ok(()),
                failure => Err(failure.unsettled_if(|f| f.kind == Kind::InUse)),
            },
        }
    };
    settle_within(ctx.stop(), ctx.remaining().min(DETACH), call).await
}

async fn volumes(aws: &Aws, cluster: &str) -> Result<Vec<Left>, Failure> {
    let doing = format!("list the volumes of cluster {cluster:?}");
    let mut filters = owned_filters(cluster);
    filters.push(filter("status", "available"));
    let call = aws.ec2().describe_volumes().set_filters(Some(filters));
    let mut pages = call.into_paginator().items().send();
    let mut found = Vec::new();
    while let Some(one) = pages.next().await {
        let one = one.map_err(|e| Failure::aws(&doing, e))?;
        found.extend(one.volume_id.map(|id| Left { id, node_class: None }));
    }
    Ok(found)
}

async fn delete_volume(aws: &Aws, id: String) -> Result<(), Failure> {
    match aws.ec2().delete_volume().volume_id(&id).send().await {
        Ok(_) => Ok(()),
        Err(e) => match Failure::aws(format!("delete volume {id}"), e) {
            failure if failure.is_missing() => Ok(()),
            failure => Err(failure),
        },
    }
}

async fn templates(aws: &Aws, cluster: &str) -> Result<Vec<Left>, Failure> {
    let found = launch_template::list(aws.clients(), &owned(cluster)).await;
    let found = found.map_err(|e| Failure::from_aws(format!("list the launch templates of cluster {cluster:?}"), e))?;
    let of = |one: launch_template::Template| {
        let node_class = one.tags.get(labels::EC2_NODE_CLASS).cloned();
        Left { id: one.id, node_class }
    };
    Ok(found.into_iter().map(of).collect())
}

/// The path of the profiles that a controller makes; users' own lie elsewhere.
async fn profiles(aws: &Aws, cluster: &str) -> Result<Vec<Left>, Failure> {
    let path = format!("/karpenter/{}/{cluster}/", aws.region());
    let found = instance_profiles::list(aws.clients(), &path).await;
    let found = found.map_err(|e| Failure::from_aws(format!("list the instance profiles below {path}"), e))?;
    let uid = |path: &str| path.trim_end_matches('/').rsplit('/').next().map(str::to_owned);
    Ok(found.into_iter().map(|one| Left { node_class: uid(&one.path), id: one.name }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_by_count_and_some_names() {
        let left = |id: usize| Left { id: format!("i-{id}"), node_class: None };
        let mut all = Leftovers::default();
        assert_eq!((all.is_empty(), all.to_string()), (true, "nothing".to_owned()));
        all.0.insert(What::LaunchTemplates, Vec::new());
        all.0.insert(What::Instances, (0..6).map(left).collect());
        assert_eq!(all.to_string(), "6 instances (i-0, i-1, i-2, i-3, i-4, …)");
    }

    #[test]
    fn names_return_and_instances_go_first() {
        for what in What::ALL {
            assert_eq!(What::parse(what.name()), Some(what));
        }
        assert_eq!(BTreeSet::from(What::ALL).first(), Some(&What::Instances));
    }
}

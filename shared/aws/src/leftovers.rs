//! What controllers made for a cluster's nodes and may have left behind, found by their tags: instances, network interfaces, volumes,
//! launch templates, instance profiles. What of it is an orphan, [`karp_domain::orphans`] decides.

use crate::config::Clients;
use crate::error::Error;
use crate::instances::{self, CLAIM_TAG, Instance};
use crate::selector::{carries, filter, read_tags, tag_filters};
use crate::{instance_profiles, launch_template};
use aws_sdk_ec2::types as ec2;
use aws_smithy_types::DateTime;
use jiff::Timestamp;
use karp_domain::api::labels;
use karp_domain::orphans::{Left, What};
use std::collections::BTreeMap;

const INTERFACES: &str = "ec2:DescribeNetworkInterfaces";
const VOLUMES: &str = "ec2:DescribeVolumes";
/// The network plugin's tags of the interfaces that it makes (amazon-vpc-cni-k8s, `pkg/awsutils`).
const CNI_CLUSTER_KEY: &str = "cluster.k8s.amazonaws.com/name";
const CNI_INSTANCE_KEY: &str = "node.k8s.amazonaws.com/instance_id";
const CNI_MADE_KEY: &str = "node.k8s.amazonaws.com/createdAt";

/// Finds what is there of a kind, of instances those that neither have ended nor are shutting down.
///
/// # Errors
/// Any failure of a call. An answer is whole or an error: a lost page is never taken for an empty one.
pub async fn find(clients: &Clients, cluster: &str, what: What) -> Result<Vec<Left>, Error> {
    match what {
        What::Instances => nodes(clients, cluster).await,
        What::NetworkInterfaces => interfaces(clients, cluster).await,
        What::Volumes => volumes(clients, cluster).await,
        What::LaunchTemplates => templates(clients, cluster).await,
        What::InstanceProfiles => profiles(clients, cluster).await,
    }
}

/// Lists the instances that controllers made for a cluster, those among them that are shutting down.
///
/// # Errors
/// As [`find`].
pub async fn instances(clients: &Clients, cluster: &str) -> Result<Vec<Instance>, Error> {
    instances::list(clients, &owned(cluster)).await
}

/// The tags of what controllers make for a cluster; `*` stands for any value.
fn owned(cluster: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (format!("kubernetes.io/cluster/{cluster}"), "owned".to_owned()),
        (labels::EC2_NODE_CLASS.to_owned(), "*".to_owned()),
    ])
}

async fn nodes(clients: &Clients, cluster: &str) -> Result<Vec<Left>, Error> {
    let found = instances(clients, cluster).await?;
    let of = |one: Instance| tagged(What::Instances, one.id, &one.tags, one.launched_at);
    Ok(found.into_iter().filter(|instance| !instance.state.is_ending()).map(of).collect())
}

async fn interfaces(clients: &Clients, cluster: &str) -> Result<Vec<Left>, Error> {
    let cni = BTreeMap::from([
        (CNI_CLUSTER_KEY.to_owned(), cluster.to_owned()),
        (CNI_INSTANCE_KEY.to_owned(), "*".to_owned()),
    ]);
    let mut found = BTreeMap::new();
    for tags in [owned(cluster), cni] {
        let call = clients.ec2().describe_network_interfaces().set_filters(Some(tag_filters(&tags)));
        clients.pace().describe.take().await;
        let mut pages = call.into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| Error::from_sdk(INTERFACES, error))?;
            // One that is attached goes with its instance.
            let free = |one: &ec2::NetworkInterface| one.status == Some(ec2::NetworkInterfaceStatus::Available);
            let free = page.network_interfaces.unwrap_or_default().into_iter().filter(free);
            let ours = free.filter_map(|one| interface(one, &tags));
            found.extend(ours.map(|left| (left.id.clone(), left)));
            clients.pace().describe.take().await;
        }
    }
    Ok(found.into_values().collect())
}

fn interface(one: ec2::NetworkInterface, wanted: &BTreeMap<String, String>) -> Option<Left> {
    let tags = read_tags(one.tag_set);
    if !carries(&tags, wanted) {
        return None;
    }
    let made = tags.get(CNI_MADE_KEY).and_then(|at| at.parse().ok());
    let instance = tags.get(CNI_INSTANCE_KEY).cloned();
    Some(Left { instance, ..tagged(What::NetworkInterfaces, one.network_interface_id?, &tags, made) })
}

async fn volumes(clients: &Clients, cluster: &str) -> Result<Vec<Left>, Error> {
    let wanted = owned(cluster);
    let mut filters = tag_filters(&wanted);
    filters.push(filter("status", ["available".to_owned()]));
    clients.pace().describe.take().await;
    let mut pages = clients.ec2().describe_volumes().set_filters(Some(filters)).into_paginator().send();
    let mut found = Vec::new();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| Error::from_sdk(VOLUMES, error))?;
        found.extend(page.volumes.unwrap_or_default().into_iter().filter_map(|one| {
            let (tags, made) = (read_tags(one.tags), one.create_time.as_ref().and_then(time));
            carries(&tags, &wanted).then_some(tagged(What::Volumes, one.volume_id?, &tags, made))
        }));
        clients.pace().describe.take().await;
    }
    Ok(found)
}

async fn templates(clients: &Clients, cluster: &str) -> Result<Vec<Left>, Error> {
    let found = launch_template::list(clients, &owned(cluster)).await?;
    Ok(found.into_iter().map(|one| tagged(What::LaunchTemplates, one.id, &one.tags, one.created_at)).collect())
}

/// Profiles are told by the path of those that a controller makes; users' own lie elsewhere.
async fn profiles(clients: &Clients, cluster: &str) -> Result<Vec<Left>, Error> {
    let path = format!("/karpenter/{}/{cluster}/", clients.region());
    let found = instance_profiles::list(clients, &path).await?;
    let uid = |path: &str| path.trim_end_matches('/').rsplit('/').next().map(str::to_owned);
    let of = |one: instance_profiles::Profile| Left {
        node_class: uid(&one.path),
        made: one.created_at,
        ..Left::new(What::InstanceProfiles, one.name)
    };
    Ok(found.into_iter().map(of).collect())
}

fn tagged(what: What, id: String, tags: &BTreeMap<String, String>, made: Option<Timestamp>) -> Left {
    let of = |key: &str| tags.get(key).cloned();
    Left { node_class: of(labels::EC2_NODE_CLASS), claim: of(CLAIM_TAG), made, ..Left::new(what, id) }
}

fn time(at: &DateTime) -> Option<Timestamp> {
    Timestamp::from_second(at.secs()).ok()
}

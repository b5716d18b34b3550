//! Instance profiles: which role is in one, and taking a role out of those that the cluster owns.

use std::collections::BTreeSet;

use aws_sdk_iam::Client;
use aws_sdk_iam::types::InstanceProfile;
use tfplugin::Context;

use super::tags::{CLUSTER_KEY, Tags, from_iam_tags};
use super::wait::{detached, in_time, settle};
use crate::report::{Failure, Kind};

/// Controllers tag the instance profiles that they make with the node class; those end with the cluster's node role.
const NODE_CLASS_KEY: &str = "karpenter.k8s.aws/ec2nodeclass";

/// An instance profile as IAM describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub name: String,
    pub arn: String,
    pub unique_id: String,
    pub path: String,
    pub role: Option<String>,
    pub tags: Tags,
}

impl From<&InstanceProfile> for Found {
    fn from(profile: &InstanceProfile) -> Self {
        Self {
            name: profile.instance_profile_name().to_owned(),
            arn: profile.arn().to_owned(),
            unique_id: profile.instance_profile_id().to_owned(),
            path: profile.path().to_owned(),
            role: profile.roles().first().map(|role| role.role_name().to_owned()),
            tags: from_iam_tags(profile.tags()),
        }
    }
}

/// Reads an instance profile.
pub async fn find(iam: &Client, name: &str) -> Result<Option<Found>, Failure> {
    match iam.get_instance_profile().instance_profile_name(name).send().await {
        Ok(answer) => Ok(answer.instance_profile().map(Found::from)),
        Err(e) => match Failure::aws(format!("read instance profile {name:?}"), e) {
            failure if failure.is_missing() => Ok(None),
            failure => Err(failure),
        },
    }
}

/// Takes the role out of a profile; one that is out already is fine.
pub async fn remove_role(iam: &Client, profile: &str, role: &str) -> Result<(), Failure> {
    let call = iam.remove_role_from_instance_profile().instance_profile_name(profile).role_name(role);
    match call.send().await {
        Ok(_) => Ok(()),
        Err(e) => match Failure::aws(format!("take role {role:?} out of instance profile {profile:?}"), e) {
            failure if failure.is_missing() => Ok(()),
            failure => Err(failure),
        },
    }
}

/// Deletes a profile whose role was taken out; one that is gone already is fine.
pub async fn delete(iam: &Client, ctx: &Context, profile: &str) -> Result<(), Failure> {
    let doing = format!("delete instance profile {profile:?}");
    detached(ctx, &doing, || async {
        let answer = iam.delete_instance_profile().instance_profile_name(profile).send().await;
        answer.map(drop).map_err(|e| Failure::aws(&doing, e))
    })
    .await
}

/// Takes a role that is about to be deleted out of the cluster's instance profiles, and deletes those that a controller made. Returns the names of the
/// others. A profile of someone else is an error that names it.
pub async fn unlink_role(
    iam: &Client,
    ctx: &Context,
    role: &str,
    cluster: Option<&str>,
) -> Result<BTreeSet<String>, Failure> {
    let doing = format!("list the instance profiles of role {role:?}");
    let mut pages = iam.list_instance_profiles_for_role().role_name(role).into_paginator().items().send();
    let mut names = Vec::new();
    while let Some(profile) = pages.next().await {
        match profile {
            Ok(profile) => names.push(profile.instance_profile_name().to_owned()),
            Err(e) => match Failure::aws(&doing, e) {
                failure if failure.is_missing() => return Ok(BTreeSet::new()),
                failure => return Err(failure),
            },
        }
    }
    let mut emptied = BTreeSet::new();
    for name in names {
        in_time(ctx, &format!("take role {role:?} out of instance profile {name:?}"))?;
        // The list carries no tags.
        let Some(profile) = find(iam, &name).await? else { continue };
        if !is_owned(&profile.tags, cluster) {
            return Err(Failure::new(
                Kind::InUse,
                format!("delete role {role:?}"),
                format!("instance profile {name:?} holds it and does not belong to this cluster"),
            )
            .with_fix(format!("Take the role out of instance profile {name:?}, then run this again.")));
        }
        remove_role(iam, &name, role).await?;
        if profile.tags.contains_key(NODE_CLASS_KEY) {
            delete(iam, ctx, &name).await?;
        } else {
            emptied.insert(name);
        }
    }
    Ok(emptied)
}

/// Puts a role into profiles that it was taken out of when it was deleted to be made anew; those that are gone, or have another one by now, are left
/// alone.
pub async fn link_again(iam: &Client, ctx: &Context, role: &str, names: BTreeSet<String>) -> Result<(), Failure> {
    for name in names {
        if find(iam, &name).await?.is_none_or(|profile| profile.role.is_some()) {
            continue;
        }
        add_role(iam, ctx, &name, role).await?;
    }
    Ok(())
}

/// Puts a role into a profile, either of which may have been made a second ago and be unknown where this call lands.
pub async fn add_role(iam: &Client, ctx: &Context, name: &str, role: &str) -> Result<(), Failure> {
    settle(ctx, &format!("put role {role:?} into instance profile {name:?}"), || async {
        put_role(iam, name, role).await.map_err(|failure| failure.unsettled_if(Failure::is_missing))
    })
    .await
}

/// Puts a role into a profile both of which have been there for long: this waits for nothing, so that it also goes when an operation's time is over.
pub async fn put_role(iam: &Client, name: &str, role: &str) -> Result<(), Failure> {
    let call = iam.add_role_to_instance_profile().instance_profile_name(name).role_name(role);
    let doing = format!("put role {role:?} into instance profile {name:?}");
    call.send().await.map(drop).map_err(|e| Failure::aws(doing, e))
}

/// Tells whether tags say that an object belongs to the cluster: karp's own tag, or the one that controllers use.
fn is_owned(tags: &Tags, cluster: Option<&str>) -> bool {
    let Some(cluster) = cluster else { return false };
    tags.get(CLUSTER_KEY).is_some_and(|name| name == cluster)
        || tags.get(&format!("kubernetes.io/cluster/{cluster}")).is_some_and(|value| value == "owned")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ownership_follows_either_tag() {
        let tags = |key: &str, value: &str| Tags::from([(key.to_owned(), value.to_owned())]);
        assert!(is_owned(&tags(CLUSTER_KEY, "a"), Some("a")));
        assert!(is_owned(&tags("kubernetes.io/cluster/a", "owned"), Some("a")));
        assert!(!is_owned(&tags(CLUSTER_KEY, "b"), Some("a")));
        assert!(!is_owned(&Tags::new(), Some("a")));
        assert!(!is_owned(&tags(CLUSTER_KEY, "a"), None));
    }
}

//! Instance profiles that the controller makes for the roles of node classes.

use crate::config::Clients;
use crate::error::Error;
use aws_sdk_iam::types as iam;
use jiff::Timestamp;
use std::collections::BTreeMap;

const GET: &str = "iam:GetInstanceProfile";
const LIST: &str = "iam:ListInstanceProfiles";
const CREATE: &str = "iam:CreateInstanceProfile";
const ADD: &str = "iam:AddRoleToInstanceProfile";
const REMOVE: &str = "iam:RemoveRoleFromInstanceProfile";
const DELETE: &str = "iam:DeleteInstanceProfile";

/// An instance profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// Its path, which says whose it is.
    pub path: String,
    /// The role in it, if any.
    pub role: Option<String>,
    /// When it was made.
    pub created_at: Option<Timestamp>,
}

/// The profile that a node class needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// `/karpenter/REGION/CLUSTER/UID/`: the controller's policy is scoped by it.
    pub path: String,
    /// The role's name, or its path and name.
    pub role: String,
    /// Tags, by which the controller's policy is scoped too.
    pub tags: BTreeMap<String, String>,
}

impl Wanted {
    /// Returns the role's name: IAM takes it without its path.
    #[must_use]
    pub fn role_name(&self) -> &str {
        role_name(&self.role)
    }
}

/// Returns the name of a role that may be given by path and name.
#[must_use]
pub fn role_name(role: &str) -> &str {
    role.rsplit('/').next().unwrap_or(role)
}

/// Reads the profile called `name`.
///
/// # Errors
/// Any failure of the call; a missing profile is `None`.
pub async fn find(clients: &Clients, name: &str) -> Result<Option<Profile>, Error> {
    let answer = clients.iam().get_instance_profile().instance_profile_name(name).send().await;
    match answer.map_err(|error| Error::from_sdk(GET, error)) {
        Ok(answer) => Ok(answer.instance_profile.map(read)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lists the profiles below a path.
///
/// # Errors
/// Any failure of a call. An answer is whole or an error.
pub async fn list(clients: &Clients, path: &str) -> Result<Vec<Profile>, Error> {
    let mut found = Vec::new();
    let mut pages = clients.iam().list_instance_profiles().path_prefix(path).into_paginator().send();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| Error::from_sdk(LIST, error))?;
        // What is listed may be deleted: the service's word for the path is not enough.
        found.extend(page.instance_profiles.into_iter().map(read).filter(|profile| profile.path.starts_with(path)));
    }
    Ok(found)
}

/// Makes the profile, or puts the role into the one that is there. Safe to repeat after a failure at any step.
///
/// # Errors
/// [`Error::NotFound`] when there is no such role, and any failure of a call.
pub async fn ensure(clients: &Clients, wanted: &Wanted) -> Result<(), Error> {
    let found = match find(clients, &wanted.name).await? {
        Some(found) => found,
        None => create(clients, wanted).await?,
    };
    match found.role.as_deref() {
        Some(role) if role == wanted.role_name() => return Ok(()),
        Some(other) => remove_role(clients, &wanted.name, other).await?,
        None => {}
    }
    let call = clients.iam().add_role_to_instance_profile();
    let answer = call.instance_profile_name(&wanted.name).role_name(wanted.role_name()).send().await;
    answer.map(drop).map_err(|error| Error::from_sdk(ADD, error))
}

/// Deletes a profile; one that is gone already counts as deleted.
///
/// # Errors
/// Any other failure of a call.
pub async fn delete(clients: &Clients, name: &str) -> Result<(), Error> {
    // The list does not say which role is in a profile.
    let Some(found) = find(clients, name).await? else { return Ok(()) };
    if let Some(role) = &found.role {
        remove_role(clients, name, role).await?;
    }
    let answer = clients.iam().delete_instance_profile().instance_profile_name(name).send().await;
    gone(answer.map(drop).map_err(|error| Error::from_sdk(DELETE, error)))
}

async fn create(clients: &Clients, wanted: &Wanted) -> Result<Profile, Error> {
    let tags = wanted.tags.iter().map(|(key, value)| {
        let tag = iam::Tag::builder().key(key).value(value).build();
        tag.map_err(|error| Error::malformed(CREATE, error.to_string()))
    });
    let call = clients.iam().create_instance_profile().instance_profile_name(&wanted.name).path(&wanted.path);
    let answer = call.set_tags(Some(tags.collect::<Result<_, _>>()?)).send().await;
    let made = answer.map_err(|error| Error::from_sdk(CREATE, error))?.instance_profile;
    made.map(read).ok_or_else(|| Error::malformed(CREATE, "the answer holds no instance profile"))
}

async fn remove_role(clients: &Clients, profile: &str, role: &str) -> Result<(), Error> {
    let call = clients.iam().remove_role_from_instance_profile();
    let answer = call.instance_profile_name(profile).role_name(role).send().await;
    gone(answer.map(drop).map_err(|error| Error::from_sdk(REMOVE, error)))
}

fn gone(answer: Result<(), Error>) -> Result<(), Error> {
    match answer {
        Err(error) if error.is_not_found() => Ok(()),
        answer => answer,
    }
}

fn read(profile: iam::InstanceProfile) -> Profile {
    let time = profile.create_date();
    Profile {
        created_at: Timestamp::new(time.secs(), 0).ok(),
        role: profile.roles.first().map(|role| role.role_name.clone()),
        name: profile.instance_profile_name,
        path: profile.path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iam_takes_roles_without_their_path() {
        for (given, name) in [("nodes", "nodes"), ("team/nodes", "nodes"), ("/a/b/nodes", "nodes")] {
            assert_eq!(role_name(given), name);
        }
    }
}

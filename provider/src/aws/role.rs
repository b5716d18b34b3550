//! An IAM role with its trust, policies and tags: created or adopted, read, brought to what is wanted, deleted.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_iam::Client;
use aws_sdk_iam::types::Role;
use tfplugin::Context;

use super::tags::{CLUSTER_KEY, Change, IamObject, Tags, from_iam_tags, iam_tags};
use super::wait::{detached, in_time, settle};
use super::{Origin, document};
use crate::marks::Mark;
use crate::report::{Failure, Kind};
use crate::session::Aws;

/// A role as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub name: String,
    pub path: String,
    pub description: String,
    /// Trust policy, canonical.
    pub trust: String,
    pub permissions_boundary: Option<String>,
    pub tags: Tags,
    /// ARNs of managed policies that are attached.
    pub attached: BTreeSet<String>,
    /// Inline policies: name to canonical document.
    pub inline: BTreeMap<String, String>,
    /// Take over an existing role of that name.
    pub adopt: bool,
}

/// A role as IAM describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub name: String,
    pub arn: String,
    pub unique_id: String,
    pub path: String,
    pub description: String,
    pub trust: String,
    pub permissions_boundary: Option<String>,
    /// How many seconds a session may last, of which karp wants nothing: an update that leaves it out takes it back to an hour.
    pub max_session: Option<i32>,
    pub tags: Tags,
    pub attached: BTreeSet<String>,
    pub inline: BTreeMap<String, String>,
}

/// What earlier applies put on a role, so that it may be taken off again.
#[derive(Debug, Clone, Default)]
pub struct Owned {
    pub tags: Tags,
    pub attached: BTreeSet<String>,
    pub inline: BTreeSet<String>,
}

/// Refuses to adopt what carries another cluster's tag.
pub fn check_adoptable(doing: &str, actual: &Tags, wanted: &Tags) -> Result<(), Failure> {
    match (actual.get(CLUSTER_KEY), wanted.get(CLUSTER_KEY)) {
        (Some(theirs), ours) if ours != Some(theirs) => Err(Failure::new(
            Kind::Exists,
            doing,
            format!("it exists and serves another cluster: its tag {CLUSTER_KEY} is {theirs:?}"),
        )
        .with_fix("Choose another name.")),
        _ => Ok(()),
    }
}

/// Refuses to take over, or to go on with, what lies under another path than was planned: IAM moves nothing to another one.
pub fn check_path(doing: &str, actual: &str, wanted: &str) -> Result<(), Failure> {
    if actual == wanted {
        return Ok(());
    }
    Err(Failure::new(Kind::Exists, doing, format!("it exists under {actual}, not under {wanted}"))
        .with_fix(format!("Write `path = {actual:?}` to take it over, or choose another name."))
        .at("path"))
}

/// Creates the bare role, with a mark, or finds the one to adopt or to go on with. Policies follow with [`converge`], after the new role is [`shown`].
pub async fn create(iam: &Client, ctx: &Context, wanted: &Wanted) -> Result<(Found, Origin), Failure> {
    let (doing, mark) = (format!("create role {:?}", wanted.name), Mark::new());
    let tags = mark.on(&wanted.tags);
    let call = || async {
        iam.create_role()
            .role_name(&wanted.name)
            .path(&wanted.path)
            .set_description((!wanted.description.is_empty()).then(|| wanted.description.clone()))
            .assume_role_policy_document(&wanted.trust)
            .set_permissions_boundary(wanted.permissions_boundary.clone())
            .set_tags(Some(iam_tags(&tags)))
            .send()
            .await
            .map_err(|e| {
                // A trust policy may name a principal that was created a second ago, and the boundary may have been, too.
                let boundary = wanted.permissions_boundary.as_deref();
                Failure::aws(&doing, e)
                    .unsettled_if(|f| {
                        f.code.as_deref() == Some("MalformedPolicyDocument") && f.message.contains("Invalid principal")
                    })
                    .unsettled_if(|f| f.is_missing() && boundary.is_some_and(|arn| may_be_new(arn, &f.message)))
            })
    };
    match settle(ctx, &doing, call).await {
        Ok(answer) => {
            let role =
                answer.role().ok_or_else(|| Failure::new(Kind::Unexpected, &doing, "IAM answered without it"))?;
            Ok((bare(role, wanted), Origin::Made))
        }
        Err(failure) if failure.kind == Kind::Exists => {
            let Some(existing) = find(iam, &wanted.name, &BTreeSet::new()).await? else {
                return Err(failure.at("name"));
            };
            if let Some(tags) = mark.resumed(&existing.tags, &wanted.tags) {
                check_path(&doing, &existing.path, &wanted.path)?;
                return Ok((Found { tags, ..existing }, Origin::Made));
            }
            check_adoptable(&doing, &existing.tags, &wanted.tags).map_err(|f| f.at("name"))?;
            if !wanted.adopt {
                return Err(failure.at("name"));
            }
            check_path(&doing, &existing.path, &wanted.path)?;
            Ok((existing, Origin::Adopted))
        }
        Err(failure) => Err(failure),
    }
}

/// Describes a role that was just made: IAM's answer tells its identity, and the rest is as it was asked for.
fn bare(role: &Role, wanted: &Wanted) -> Found {
    Found {
        name: role.role_name().to_owned(),
        arn: role.arn().to_owned(),
        unique_id: role.role_id().to_owned(),
        path: role.path().to_owned(),
        description: wanted.description.clone(),
        trust: wanted.trust.clone(),
        permissions_boundary: wanted.permissions_boundary.clone(),
        max_session: role.max_session_duration(),
        tags: wanted.tags.clone(),
        attached: BTreeSet::new(),
        inline: BTreeMap::new(),
    }
}

/// Waits until IAM shows a new role.
pub async fn shown(iam: &Client, ctx: &Context, name: &str) -> Result<(), Failure> {
    let doing = format!("create role {name:?}");
    settle(ctx, &doing, || async {
        match find(iam, name, &BTreeSet::new()).await? {
            Some(_) => Ok(()),
            None => Err(Failure::new(Kind::Unsettled, &doing, "IAM does not show the new role yet")),
        }
    })
    .await
}

/// Says whether there is a role.
pub async fn is_there(iam: &Client, name: &str) -> Result<bool, Failure> {
    Ok(without_attachments(iam, name, &BTreeSet::new()).await?.is_some())
}

/// Reads a role with its attachments and the named inline policies.
pub async fn find(iam: &Client, name: &str, inline: &BTreeSet<String>) -> Result<Option<Found>, Failure> {
    let Some(found) = without_attachments(iam, name, inline).await? else { return Ok(None) };
    Ok(Some(Found { attached: attached(iam, name).await?, ..found }))
}

/// Reads a role as a refresh does: of its attachments those among the `owned` ones alone, asked together with other roles; all of them where
/// nothing says yet which are owned.
pub async fn look(
    aws: &Aws,
    name: &str,
    inline: &BTreeSet<String>,
    owned: Option<&BTreeSet<String>>,
) -> Result<Option<Found>, Failure> {
    let Some(owned) = owned else { return find(aws.iam(), name, inline).await };
    let Some(found) = without_attachments(aws.iam(), name, inline).await? else { return Ok(None) };
    Ok(Some(Found { attached: aws.reads().attached(name, owned).await?, ..found }))
}

async fn without_attachments(iam: &Client, name: &str, inline: &BTreeSet<String>) -> Result<Option<Found>, Failure> {
    let doing = format!("read role {name:?}");
    let answer = match iam.get_role().role_name(name).send().await {
        Ok(answer) => answer,
        Err(e) => {
            let failure = Failure::aws(&doing, e);
            return if failure.is_missing() { Ok(None) } else { Err(failure) };
        }
    };
    let Some(role) = answer.role() else { return Ok(None) };
    let mut documents = BTreeMap::new();
    for policy in inline {
        match iam.get_role_policy().role_name(name).policy_name(policy).send().await {
            Ok(answer) => {
                documents.insert(policy.clone(), document::from_iam(answer.policy_document()));
            }
            Err(e) => {
                let failure = Failure::aws(format!("read policy {policy:?} of role {name:?}"), e);
                if !failure.is_missing() {
                    return Err(failure);
                }
            }
        }
    }
    Ok(Some(Found {
        name: role.role_name().to_owned(),
        arn: role.arn().to_owned(),
        unique_id: role.role_id().to_owned(),
        path: role.path().to_owned(),
        description: role.description().unwrap_or_default().to_owned(),
        trust: role.assume_role_policy_document().map(document::from_iam).unwrap_or_default(),
        permissions_boundary: role.permissions_boundary().and_then(|b| b.permissions_boundary_arn()).map(str::to_owned),
        max_session: role.max_session_duration(),
        tags: from_iam_tags(role.tags()),
        attached: BTreeSet::new(),
        inline: documents,
    }))
}

/// Brings an existing role to what is wanted; takes off only what is `owned` and wanted no more.
pub async fn converge(
    iam: &Client,
    ctx: &Context,
    found: &Found,
    wanted: &Wanted,
    owned: &Owned,
) -> Result<(), Failure> {
    let name = &wanted.name;
    if found.trust != wanted.trust {
        let doing = format!("set the trust policy of role {name:?}");
        settle(ctx, &doing, || async {
            let call = iam.update_assume_role_policy().role_name(name).policy_document(&wanted.trust);
            call.send()
                .await
                .map_err(|e| Failure::aws(&doing, e).unsettled_if(|f| f.message.contains("Invalid principal")))
        })
        .await?;
    }
    if found.description != wanted.description {
        let call = iam.update_role().role_name(name).description(&wanted.description);
        let call = call.set_max_session_duration(found.max_session);
        call.send().await.map_err(|e| Failure::aws(format!("set the description of role {name:?}"), e))?;
    }
    converge_boundary(iam, ctx, found, wanted).await?;
    let change = Change::between(&wanted.tags, &found.tags, &owned.tags);
    IamObject::Role(name.clone()).retag(iam, &change).await?;
    for arn in wanted.attached.difference(&found.attached) {
        let doing = format!("attach policy {arn} to role {name:?}");
        settle(ctx, &doing, || async {
            iam.attach_role_policy().role_name(name).policy_arn(arn).send().await.map_err(|e| {
                Failure::aws(&doing, e)
                    .unsettled_if(|failure| failure.is_missing() && may_be_new(arn, &failure.message))
                    .with_fix("Check that the policy exists: its ARN is given in full, partition and path included.")
            })
        })
        .await?;
    }
    for arn in owned.attached.difference(&wanted.attached).filter(|arn| found.attached.contains(*arn)) {
        detach(iam, name, arn).await?;
    }
    for (policy, text) in wanted.inline.iter().filter(|(policy, text)| found.inline.get(*policy) != Some(text)) {
        let doing = format!("write policy {policy:?} of role {name:?}");
        settle(ctx, &doing, || async {
            let call = iam.put_role_policy().role_name(name).policy_name(policy).policy_document(text);
            call.send().await.map_err(|e| Failure::aws(&doing, e).unsettled_if(Failure::is_missing))
        })
        .await?;
    }
    let superfluous = |policy: &&String| !wanted.inline.contains_key(*policy) && found.inline.contains_key(*policy);
    for policy in owned.inline.iter().filter(superfluous) {
        delete_inline(iam, name, policy).await?;
    }
    Ok(())
}

/// Says whether what IAM does not know may have been made a moment ago: the role, or a policy of an account's own. AWS's own policies are there.
fn may_be_new(policy_arn: &str, message: &str) -> bool {
    !policy_arn.contains(":iam::aws:") || message.to_ascii_lowercase().contains("role with name")
}

/// Deletes a role with all that hangs on it except instance profiles. A role that is gone already is fine.
pub async fn delete(iam: &Client, ctx: &Context, name: &str) -> Result<(), Failure> {
    strip(iam, ctx, name).await?;
    remove(iam, ctx, name).await
}

/// Takes all policies off a role, also those that others attached: IAM deletes none that has some. A role that is gone already is fine.
pub async fn strip(iam: &Client, ctx: &Context, name: &str) -> Result<(), Failure> {
    let doing = format!("delete role {name:?}");
    let attachments = match attached(iam, name).await {
        Err(failure) if failure.is_missing() => return Ok(()),
        other => other?,
    };
    for arn in attachments {
        in_time(ctx, &doing)?;
        detach(iam, name, &arn).await?;
    }
    let mut pages = iam.list_role_policies().role_name(name).into_paginator().items().send();
    let mut policies = Vec::new();
    while let Some(policy) = pages.next().await {
        policies.push(policy.map_err(|e| Failure::aws(format!("list the policies of role {name:?}"), e))?);
    }
    for policy in policies {
        in_time(ctx, &doing)?;
        delete_inline(iam, name, &policy).await?;
    }
    Ok(())
}

/// Deletes a role that has no policies any more. One that is gone already is fine.
pub async fn remove(iam: &Client, ctx: &Context, name: &str) -> Result<(), Failure> {
    let doing = format!("delete role {name:?}");
    detached(ctx, &doing, || async {
        iam.delete_role().role_name(name).send().await.map(drop).map_err(|e| Failure::aws(&doing, e))
    })
    .await
}

async fn converge_boundary(iam: &Client, ctx: &Context, found: &Found, wanted: &Wanted) -> Result<(), Failure> {
    let name = &wanted.name;
    let doing = format!("set the permissions boundary of role {name:?}");
    match (&found.permissions_boundary, &wanted.permissions_boundary) {
        (old, Some(new)) if old.as_ref() != Some(new) => {
            settle(ctx, &doing, || async {
                let answer = iam.put_role_permissions_boundary().role_name(name).permissions_boundary(new).send().await;
                let new_one = |failure: &Failure| failure.is_missing() && may_be_new(new, &failure.message);
                answer.map(drop).map_err(|e| Failure::aws(&doing, e).unsettled_if(new_one).at("permissions_boundary"))
            })
            .await?;
        }
        (Some(_), None) => {
            let call = iam.delete_role_permissions_boundary().role_name(name);
            call.send().await.map_err(|e| Failure::aws(&doing, e).at("permissions_boundary"))?;
        }
        _ => {}
    }
    Ok(())
}

/// Lists the managed policies of a role.
pub async fn attached(iam: &Client, name: &str) -> Result<BTreeSet<String>, Failure> {
    let mut pages = iam.list_attached_role_policies().role_name(name).into_paginator().items().send();
    let mut arns = BTreeSet::new();
    while let Some(policy) = pages.next().await {
        let policy = policy.map_err(|e| Failure::aws(format!("list the policies attached to role {name:?}"), e))?;
        arns.extend(policy.policy_arn().map(str::to_owned));
    }
    Ok(arns)
}

/// Takes a policy off a role; one that is not on it, or no role at all, is fine.
pub async fn detach(iam: &Client, name: &str, arn: &str) -> Result<(), Failure> {
    match iam.detach_role_policy().role_name(name).policy_arn(arn).send().await {
        Ok(_) => Ok(()),
        Err(e) => match Failure::aws(format!("detach policy {arn} from role {name:?}"), e) {
            failure if failure.is_missing() => Ok(()),
            failure => Err(failure),
        },
    }
}

async fn delete_inline(iam: &Client, name: &str, policy: &str) -> Result<(), Failure> {
    match iam.delete_role_policy().role_name(name).policy_name(policy).send().await {
        Ok(_) => Ok(()),
        Err(e) => match Failure::aws(format!("delete policy {policy:?} of role {name:?}"), e) {
            failure if failure.is_missing() => Ok(()),
            failure => Err(failure),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_new_is_waited_for() {
        let (own, aws) = ("arn:aws:iam::111122223333:policy/a", "arn:aws-cn:iam::aws:policy/a");
        let (no_policy, no_role) =
            ("Policy … does not exist or is not attachable.", "The role with name r cannot be found.");
        for (arn, message, waits) in
            [(own, no_policy, true), (own, no_role, true), (aws, no_policy, false), (aws, no_role, true)]
        {
            assert_eq!(may_be_new(arn, message), waits, "{arn}: {message}");
        }
    }
}

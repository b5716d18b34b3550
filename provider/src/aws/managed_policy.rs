//! Managed policies that karp makes: written in parts that fit, versions rotated, deleted with all versions.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_iam::Client;
use karp_domain::iam::MANAGED_POLICY_LIMIT;
use tfplugin::Context;

use super::marked::is_left;
use super::role::{check_adoptable, check_path};
use super::tags::{Change, IamObject, ROLE_KEY, Tags, from_iam_tags, iam_tags, is_same_role};
use super::wait::{detached, in_time, settle};
use super::{Origin, document};
use crate::marks::Mark;
use crate::report::{Failure, Kind};
use crate::session::Aws;

/// IAM keeps at most five versions of a policy.
const MOST_VERSIONS: usize = 5;

/// Splits a policy into parts by name: `ROLE-1`, `ROLE-2`, …
pub fn parts(role: &str, policy: &str) -> BTreeMap<String, String> {
    let parts = document::split(policy, MANAGED_POLICY_LIMIT).into_iter().enumerate();
    parts.map(|(position, text)| (format!("{role}-{}", position + 1), text)).collect()
}

/// Says whether a policy is called as a part of the role's: others on it are not karp's to delete.
pub fn is_part(role: &str, arn: &str) -> bool {
    let name = arn.rsplit('/').next().unwrap_or_default();
    let number = name.strip_prefix(role).and_then(|rest| rest.strip_prefix('-'));
    arn.contains(":policy/") && number.is_some_and(|number| number.parse::<u8>().is_ok())
}

/// Gives the ARN of the part that follows all of these.
fn next_part(arns: &BTreeSet<String>) -> Option<String> {
    let numbered = arns.iter().filter_map(|arn| {
        let (whole, number) = arn.rsplit_once('-')?;
        Some((whole, number.parse::<u8>().ok()?))
    });
    let (whole, last) = numbered.max_by_key(|(_, number)| *number)?;
    Some(format!("{whole}-{}", u16::from(last) + 1))
}

/// One of the policies that a document is kept in.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub path: &'a str,
    pub name: &'a str,
    /// The document.
    pub text: &'a str,
    /// The tags that it should have.
    pub tags: &'a Tags,
    /// The tags that karp may take away.
    pub owned: &'a Tags,
}

/// A policy as IAM tells of it.
#[derive(Debug, Clone)]
pub struct Found {
    pub name: String,
    pub arn: String,
    pub path: String,
    /// The default version's document, canonical.
    pub text: String,
    pub tags: Tags,
}

/// A document as it lies in policies.
#[derive(Debug, Clone)]
pub struct Kept {
    /// ARN and document of each policy, by its name.
    pub parts: BTreeMap<String, (String, String)>,
    pub path: String,
    pub tags: Tags,
}

/// Brings one part to what is wanted, and gives its ARN, and whether it was made now. One that exists and is not `known` to be this resource's is gone on with where
/// a creation of an earlier run left it or it was made for the same role, or taken over where that is wanted, and not another cluster's.
pub async fn converge(
    iam: &Client,
    ctx: &Context,
    part: &Part<'_>,
    known: Option<&str>,
    adopt: bool,
) -> Result<(String, Origin), Failure> {
    let doing = format!("create policy {:?}", part.name);
    in_time(ctx, &doing)?;
    let existing = match known {
        Some(arn) => look(iam, arn).await?,
        None => None,
    };
    if let Some(existing) = existing {
        return Ok((bring(iam, ctx, part, existing).await?, Origin::Adopted));
    }
    let mark = Mark::new();
    let call = iam.create_policy().path(part.path).policy_name(part.name).policy_document(part.text);
    let failure = match call.set_tags(Some(iam_tags(&mark.on(part.tags)))).send().await {
        Ok(answer) => {
            let arn = made(&doing, answer.policy().and_then(|policy| policy.arn()))?;
            return Ok((arn, Origin::Made));
        }
        Err(e) => Failure::aws(&doing, e).at("name"),
    };
    if failure.kind != Kind::Exists {
        return Err(failure);
    }
    let existing = match find_named(iam, part.name).await {
        Ok(Some(existing)) => existing,
        Err(unseen) if adopt => return Err(unseen),
        _ => return Err(failure),
    };
    if let Some(tags) = mark.resumed(&existing.tags, part.tags) {
        check_path(&doing, &existing.path, part.path)?;
        return Ok((bring(iam, ctx, part, Found { tags, ..existing }).await?, Origin::Made));
    }
    let is_own = is_same_role(&existing.tags, part.tags);
    check_adoptable(&doing, &existing.tags, part.tags).map_err(|failure| failure.at("name"))?;
    if !adopt && !is_own {
        return Err(failure);
    }
    check_path(&doing, &existing.path, part.path)?;
    let mut tags = part.tags.clone();
    if !is_own {
        // It becomes the role's with the first change of a role that is complete: giving up one that failed must leave it.
        tags.remove(ROLE_KEY);
    }
    Ok((bring(iam, ctx, &Part { tags: &tags, ..*part }, existing).await?, Origin::Adopted))
}

/// Says whether a policy exists that was made for the same role as the tags tell.
pub async fn is_of_role(iam: &Client, arn: &str, tags: &Tags) -> Result<bool, Failure> {
    Ok(look(iam, arn).await?.is_some_and(|found| is_same_role(&found.tags, tags)))
}

async fn find_named(iam: &Client, name: &str) -> Result<Option<Found>, Failure> {
    match arn_of(iam, name).await? {
        Some(arn) => look(iam, &arn).await,
        None => Ok(None),
    }
}

/// Finds the policies that a document is kept in; nothing where none of them is left. Tags and path are the first one's: all were made with
/// the same, and IAM shows the tags of one policy at a time. Which version of each other one counts is asked together with other resources.
pub async fn find(aws: &Aws, arns: &BTreeSet<String>) -> Result<Option<Kept>, Failure> {
    let mut others = arns.clone();
    let first = loop {
        let Some(arn) = others.pop_first() else { return Ok(None) };
        if let Some(first) = look(aws.iam(), &arn).await? {
            break first;
        }
    };
    let versions = aws.reads().versions(&others).await?;
    let mut parts = BTreeMap::from([(first.name, (first.arn, first.text))]);
    for arn in others {
        let text = match versions.get(&arn) {
            Some(version) => read_version(aws.iam(), &arn, version).await?,
            // A list may not show yet what was made a moment ago.
            None => look(aws.iam(), &arn).await?.map(|found| found.text),
        };
        let name = arn.rsplit('/').next().unwrap_or_default().to_owned();
        parts.extend(text.map(|text| (name, (arn, text))));
    }
    Ok(Some(Kept { parts, path: first.path, tags: first.tags }))
}

/// Finds the policies that a document of this name is kept in, wherever they lie.
pub async fn parts_of(iam: &Client, name: &str) -> Result<BTreeSet<String>, Failure> {
    let mut all = BTreeSet::new();
    let scope = aws_sdk_iam::types::PolicyScopeType::Local;
    let mut pages = iam.list_policies().scope(scope).into_paginator().items().send();
    while let Some(policy) = pages.next().await {
        let policy = policy.map_err(|e| Failure::aws("list the account's policies", e))?;
        all.extend(policy.arn().filter(|arn| is_part(name, arn)).map(str::to_owned));
    }
    Ok(all)
}

/// Finds the parts behind those that state knows which a run that was killed made, by the tags of the known ones. Whether there is one more is asked
/// together with what [`find`] asks.
pub async fn left_parts(aws: &Aws, known: &BTreeSet<String>, tags: &Tags) -> Result<BTreeSet<String>, Failure> {
    let (mut all, mut left) = (known.clone(), BTreeSet::new());
    while let Some(next) = next_part(&all) {
        match is_left_part(aws, &all, &next, tags).await {
            Ok(true) => {}
            Ok(false) => break,
            // of what may not be seen nobody can say that it is a part
            Err(failure) if failure.kind == Kind::Denied => break,
            Err(failure) => return Err(failure),
        }
        all.insert(next.clone());
        left.insert(next);
    }
    Ok(left)
}

async fn is_left_part(aws: &Aws, known: &BTreeSet<String>, next: &str, tags: &Tags) -> Result<bool, Failure> {
    let mut asked: BTreeSet<String> = known.iter().skip(1).cloned().collect();
    asked.insert(next.to_owned());
    if !aws.reads().versions(&asked).await?.contains_key(next) {
        return Ok(false);
    }
    let found = look(aws.iam(), next).await?;
    Ok(found.is_some_and(|found| is_left(&found.tags, tags) && !found.tags.contains_key(ROLE_KEY)))
}

async fn look(iam: &Client, arn: &str) -> Result<Option<Found>, Failure> {
    let answer = match iam.get_policy().policy_arn(arn).send().await {
        Ok(answer) => answer,
        Err(e) => match Failure::aws(format!("read policy {arn}"), e) {
            failure if failure.is_missing() => return Ok(None),
            failure => return Err(failure),
        },
    };
    let Some(policy) = answer.policy() else { return Ok(None) };
    let Some(version) = policy.default_version_id() else { return Ok(None) };
    let text = read_version(iam, arn, version).await?;
    Ok(text.map(|text| Found {
        name: policy.policy_name().unwrap_or_default().to_owned(),
        arn: arn.to_owned(),
        path: policy.path().unwrap_or("/").to_owned(),
        text,
        tags: from_iam_tags(policy.tags()),
    }))
}

/// Brings text and tags of a policy that exists to what is wanted.
async fn bring(iam: &Client, ctx: &Context, part: &Part<'_>, existing: Found) -> Result<String, Failure> {
    let arn = existing.arn;
    if existing.text != part.text {
        write_version(iam, ctx, &arn, part.text).await?;
    }
    let change = Change::between(part.tags, &existing.tags, part.owned);
    IamObject::Policy(arn.clone()).retag(iam, &change).await?;
    Ok(arn)
}

async fn write_version(iam: &Client, ctx: &Context, arn: &str, text: &str) -> Result<(), Failure> {
    prune(iam, arn, MOST_VERSIONS - 1).await?;
    let doing = format!("write a version of {arn}");
    settle(ctx, &doing, || async {
        let call = iam.create_policy_version().policy_arn(arn).policy_document(text).set_as_default(true);
        call.send().await.map(drop).map_err(|e| Failure::aws(&doing, e))
    })
    .await
}

fn made(doing: &str, arn: Option<&str>) -> Result<String, Failure> {
    arn.map(str::to_owned).ok_or_else(|| Failure::new(Kind::Unexpected, doing, "IAM answered without an ARN"))
}

/// Reads policies and joins them in the order of their names; `None` when none is there.
pub async fn read_joined(aws: &Aws, arns: &BTreeSet<String>) -> Result<Option<String>, Failure> {
    let mut texts = Vec::new();
    for (arn, version) in aws.reads().versions(arns).await? {
        texts.extend(read_version(aws.iam(), &arn, &version).await?);
    }
    Ok(document::join(&texts))
}

/// Deletes policies with all versions; those that are gone already are fine.
pub async fn delete_all(iam: &Client, ctx: &Context, arns: &BTreeSet<String>) -> Result<(), Failure> {
    for arn in arns {
        in_time(ctx, &format!("delete policy {arn}"))?;
        if let Err(failure) = prune(iam, arn, 1).await {
            if failure.is_missing() {
                continue;
            }
            return Err(failure);
        }
        let doing = format!("delete policy {arn}");
        detached(ctx, &doing, || async {
            iam.delete_policy().policy_arn(arn).send().await.map(drop).map_err(|e| Failure::aws(&doing, e))
        })
        .await?;
    }
    Ok(())
}

/// Finds a policy under whatever path: an account has one of a name.
async fn arn_of(iam: &Client, name: &str) -> Result<Option<String>, Failure> {
    let scope = aws_sdk_iam::types::PolicyScopeType::Local;
    let mut pages = iam.list_policies().scope(scope).into_paginator().items().send();
    while let Some(policy) = pages.next().await {
        let policy = policy.map_err(|e| Failure::aws("list the account's policies", e))?;
        if policy.policy_name() == Some(name) {
            return Ok(policy.arn().map(str::to_owned));
        }
    }
    Ok(None)
}

async fn read_version(iam: &Client, arn: &str, version: &str) -> Result<Option<String>, Failure> {
    match iam.get_policy_version().policy_arn(arn).version_id(version).send().await {
        Ok(answer) => Ok(answer.policy_version().and_then(|version| version.document()).map(document::from_iam)),
        Err(e) => match Failure::aws(format!("read version {version} of policy {arn}"), e) {
            failure if failure.is_missing() => Ok(None),
            failure => Err(failure),
        },
    }
}

/// Deletes the oldest versions beside the default one, until at most `most` are left.
async fn prune(iam: &Client, arn: &str, most: usize) -> Result<(), Failure> {
    let answer = iam.list_policy_versions().policy_arn(arn).send().await;
    let answer = answer.map_err(|e| Failure::aws(format!("list the versions of {arn}"), e))?;
    let versions = answer.versions();
    let mut old: Vec<_> = versions.iter().filter(|version| !version.is_default_version()).collect();
    old.sort_by_key(|version| version.create_date().map(|date| date.secs()));
    for version in old.into_iter().take(versions.len().saturating_sub(most)) {
        let id = version.version_id().unwrap_or_default();
        let call = iam.delete_policy_version().policy_arn(arn).version_id(id);
        call.send().await.map_err(|e| Failure::aws(format!("delete version {id} of {arn}"), e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_follows_the_last_one() {
        let arns = |numbers: &[u8]| numbers.iter().map(|n| format!("arn:aws:iam::1:policy/p/a-b-{n}")).collect();
        for (numbers, next) in [(&[1][..], 2), (&[1, 2], 3), (&[1, 10, 2, 9], 11), (&[255], 256)] {
            assert_eq!(next_part(&arns(numbers)), Some(format!("arn:aws:iam::1:policy/p/a-b-{next}")));
        }
        assert_eq!(next_part(&arns(&[])), None);
        assert_eq!(next_part(&BTreeSet::from(["arn:aws:iam::1:policy/a".to_owned()])), None);
    }

    #[test]
    fn only_policies_called_after_the_role_are_its_parts() {
        let arn = |name: &str| format!("arn:aws:iam::111122223333:policy/{name}");
        assert!(is_part("R", &arn("R-1")) && is_part("R", &arn("path/R-12")));
        for other in
            [arn("R"), arn("R-x"), arn("RR-1"), arn("KarpenterController-prod"), "arn:aws:iam::aws:role/R-1".into()]
        {
            assert!(!is_part("R", &other), "{other}");
        }
    }
}

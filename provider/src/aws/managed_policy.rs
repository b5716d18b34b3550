//! Managed policies that karp makes: written in parts that fit, versions rotated, deleted with all versions.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_iam::Client;
use karp_domain::iam::MANAGED_POLICY_LIMIT;
use tfplugin::Context;

use super::document;
use super::wait::{in_time, settle};
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

/// Creates a policy, or gives an existing one a new default version when its text differs; gives its ARN.
pub async fn ensure(iam: &Client, ctx: &Context, path: &str, name: &str, text: &str) -> Result<String, Failure> {
    let doing = format!("create policy {name:?}");
    in_time(ctx, &doing)?;
    match iam.create_policy().path(path).policy_name(name).policy_document(text).send().await {
        Ok(answer) => {
            let arn = answer.policy().and_then(|policy| policy.arn());
            return arn
                .map(str::to_owned)
                .ok_or_else(|| Failure::new(Kind::Unexpected, doing, "IAM answered without an ARN"));
        }
        Err(e) => {
            let failure = Failure::aws(&doing, e);
            if failure.kind != Kind::Exists {
                return Err(failure);
            }
        }
    }
    let arn = arn_of(iam, path, name).await?.ok_or_else(|| {
        Failure::new(Kind::Exists, &doing, format!("a policy {name:?} exists under another path than {path}"))
    })?;
    if read(iam, &arn).await?.as_deref() != Some(text) {
        prune(iam, &arn, MOST_VERSIONS - 1).await?;
        let doing = format!("write a version of {arn}");
        settle(ctx, &doing, || async {
            let call = iam.create_policy_version().policy_arn(&arn).policy_document(text).set_as_default(true);
            call.send().await.map_err(|e| Failure::aws(&doing, e))
        })
        .await?;
    }
    Ok(arn)
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
        if let Err(e) = iam.delete_policy().policy_arn(arn).send().await {
            let failure = Failure::aws(format!("delete policy {arn}"), e);
            if !failure.is_missing() {
                return Err(failure);
            }
        }
    }
    Ok(())
}

async fn arn_of(iam: &Client, path: &str, name: &str) -> Result<Option<String>, Failure> {
    let scope = aws_sdk_iam::types::PolicyScopeType::Local;
    let mut pages = iam.list_policies().scope(scope).path_prefix(path).into_paginator().items().send();
    while let Some(policy) = pages.next().await {
        let policy = policy.map_err(|e| Failure::aws("list the account's policies", e))?;
        if policy.policy_name() == Some(name) {
            return Ok(policy.arn().map(str::to_owned));
        }
    }
    Ok(None)
}

async fn read(iam: &Client, arn: &str) -> Result<Option<String>, Failure> {
    let doing = format!("read policy {arn}");
    let answer = match iam.get_policy().policy_arn(arn).send().await {
        Ok(answer) => answer,
        Err(e) => {
            let failure = Failure::aws(&doing, e);
            return if failure.is_missing() { Ok(None) } else { Err(failure) };
        }
    };
    let Some(version) = answer.policy().and_then(|policy| policy.default_version_id()) else { return Ok(None) };
    read_version(iam, arn, version).await
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
    use super::is_part;

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

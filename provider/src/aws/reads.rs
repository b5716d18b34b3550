//! What many resources ask AWS in one run, asked once for all: tags of EC2's objects, EventBridge rules, who has a managed policy, and
//! which version of one counts. A refresh reads by these; what creates and changes looks for itself. No answer outlives a change: each call
//! of the same clients that is not a mere read forgets all of it, before it begins and after it ended ([`Forgetting`]).

mod attachments;
pub mod together;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use aws_sdk_ec2::types::Filter;
use aws_sdk_eventbridge::Client as EventBridge;
use aws_sdk_eventbridge::types::RuleState;
use aws_sdk_iam::Client as Iam;
use aws_sdk_iam::config::interceptors::{BeforeSerializationInterceptorContextRef, FinalizerInterceptorContextRef};
use aws_sdk_iam::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_iam::error::BoxError;
use aws_sdk_iam::types::PolicyScopeType;
use aws_smithy_runtime_api::client::orchestrator::Metadata;

use self::attachments::Attachments;
use self::together::{Keys, Together};
use super::document;
use super::tags::Tags;
use crate::report::{Failure, Kind};

/// EC2 takes at most 200 values in one filter.
const RESOURCES: usize = 100;
/// How many policies IAM tells in one answer at most.
const POLICIES: i32 = 1000;

/// A rule of EventBridge, as far as it tells whether it works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub enabled: bool,
    /// The event pattern, canonical.
    pub pattern: Option<String>,
}

/// The shared questions of one region.
pub struct Reads {
    tags: Together<String, Tags>,
    rules: Together<String, Rule>,
    versions: Together<String, String>,
    attachments: Attachments,
}

impl Reads {
    /// Makes the questions on clients of a region. Asks nothing yet.
    pub fn new(ec2: &aws_sdk_ec2::Client, events: &EventBridge, iam: &Iam) -> Self {
        let (ec2, events, policies) = (ec2.clone(), events.clone(), iam.clone());
        Self {
            tags: Together::new(move |ids| list_tags(ec2.clone(), ids)),
            rules: Together::new(move |names| list_rules(events.clone(), names)),
            versions: Together::new(move |arns| list_versions(policies.clone(), arns)),
            attachments: Attachments::new(iam),
        }
    }

    /// Gives the tags of EC2's objects, by their ids; an object without any is left out, as is one that does not exist.
    pub async fn tags(&self, ids: &BTreeSet<String>) -> Result<BTreeMap<String, Tags>, Failure> {
        self.tags.get(ids.iter().cloned()).await
    }

    /// Gives those of the rules of the default bus that exist, by name.
    pub async fn rules(&self, names: impl IntoIterator<Item = String>) -> Result<BTreeMap<String, Rule>, Failure> {
        self.rules.get(names).await
    }

    /// Gives the default version of those of the managed policies that exist, by ARN.
    pub async fn versions(&self, arns: &BTreeSet<String>) -> Result<BTreeMap<String, String>, Failure> {
        self.versions.get(arns.iter().cloned()).await
    }

    /// Gives those of the managed policies that are attached to a role.
    pub async fn attached(&self, role: &str, policies: &BTreeSet<String>) -> Result<BTreeSet<String>, Failure> {
        self.attachments.of(role, policies).await
    }

    fn forget(&self) {
        self.tags.forget();
        self.rules.forget();
        self.versions.forget();
        self.attachments.forget();
    }
}

/// Sits in the clients, and forgets what was read when one of them changes something.
pub struct Forgetting(pub Arc<Reads>);

impl Forgetting {
    fn look(&self, call: &ConfigBag) {
        if !call.load::<Metadata>().is_some_and(|call| is_mere_read(call.name())) {
            self.0.forget();
        }
    }
}

impl fmt::Debug for Forgetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Forgetting")
    }
}

impl Intercept for Forgetting {
    fn name(&self) -> &'static str {
        "Forgetting"
    }

    // The first hook that knows which operation it is.
    fn read_before_serialization(
        &self,
        _: &BeforeSerializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        call: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.look(call);
        Ok(())
    }

    fn read_after_execution(
        &self,
        _: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        call: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.look(call);
        Ok(())
    }
}

/// AWS names its operations by what they do.
fn is_mere_read(operation: &str) -> bool {
    ["Describe", "Get", "List"].iter().any(|verb| operation.starts_with(verb))
}

async fn list_tags(ec2: aws_sdk_ec2::Client, ids: Keys<String>) -> Result<BTreeMap<String, Tags>, Failure> {
    let ids: Vec<String> = ids.wanted.into_iter().collect();
    let mut found: BTreeMap<String, Tags> = BTreeMap::new();
    for ids in ids.chunks(RESOURCES) {
        let resources = Filter::builder().name("resource-id").set_values(Some(ids.to_vec())).build();
        let mut pages = ec2.describe_tags().filters(resources).into_paginator().items().send();
        while let Some(tag) = pages.next().await {
            let tag = tag.map_err(|e| Failure::aws("read the tags of subnets and security groups", e))?;
            if let (Some(id), Some(key), Some(value)) = (tag.resource_id, tag.key, tag.value) {
                found.entry(id).or_default().insert(key, value);
            }
        }
    }
    Ok(found)
}

/// Lists the rules by what their names and those asked for before have in common, so that a second queue finds the others' too; where listing is not allowed, reads one after the other.
async fn list_rules(events: EventBridge, names: Keys<String>) -> Result<BTreeMap<String, Rule>, Failure> {
    let rule = |state: Option<&RuleState>, pattern: Option<&str>| Rule {
        enabled: state == Some(&RuleState::Enabled),
        pattern: pattern.map(document::canonical),
    };
    let prefix = Some(common_prefix(names.all())).filter(|prefix| !prefix.is_empty());
    let mut found = BTreeMap::new();
    let mut page = None;
    loop {
        let call = events.list_rules().set_name_prefix(prefix.clone()).set_next_token(page);
        let answer = match call.send().await.map_err(|e| Failure::aws("list the EventBridge rules", e)) {
            Ok(answer) => answer,
            Err(failure) if failure.kind == Kind::Denied => break,
            Err(failure) => return Err(failure),
        };
        let named = answer.rules().iter().filter_map(|it| Some((it.name()?, rule(it.state(), it.event_pattern()))));
        found.extend(named.map(|(name, rule)| (name.to_owned(), rule)));
        page = answer.next_token;
        if page.is_none() {
            return Ok(found);
        }
    }
    for name in names.wanted {
        match events.describe_rule().name(&name).send().await {
            Ok(answer) => {
                found.insert(name, rule(answer.state(), answer.event_pattern()));
            }
            Err(e) => match Failure::aws(format!("read EventBridge rule {name:?}"), e) {
                failure if failure.is_missing() => {}
                failure => return Err(failure),
            },
        }
    }
    Ok(found)
}

/// Reads one policy, or lists the account's where another was asked for before or is asked for too; where listing is not allowed, reads one after the other.
async fn list_versions(iam: Iam, arns: Keys<String>) -> Result<BTreeMap<String, String>, Failure> {
    let mut found = BTreeMap::new();
    if arns.all().count() > 1 {
        let paths = arns.all().filter_map(|arn| Some(arn.split_once(":policy")?.1));
        let common = common_prefix(paths);
        let path = common.rfind('/').map_or("/", |end| &common[..=end]);
        let call = iam.list_policies().scope(PolicyScopeType::Local).path_prefix(path).max_items(POLICIES);
        let mut pages = call.into_paginator().items().send();
        let denied = loop {
            let Some(policy) = pages.next().await else { break false };
            match policy.map_err(|e| Failure::aws("list the account's policies", e)) {
                Ok(policy) => found.extend(policy.arn.zip(policy.default_version_id)),
                Err(failure) if failure.kind == Kind::Denied => break true,
                Err(failure) => return Err(failure),
            }
        };
        if !denied {
            return Ok(found);
        }
    }
    for arn in arns.wanted {
        match iam.get_policy().policy_arn(&arn).send().await {
            Ok(answer) => found.extend(answer.policy.and_then(|policy| policy.default_version_id).map(|id| (arn, id))),
            Err(e) => match Failure::aws(format!("read policy {arn}"), e) {
                failure if failure.is_missing() => {}
                failure => return Err(failure),
            },
        }
    }
    Ok(found)
}

/// Gives what all texts begin with.
fn common_prefix<'a, T: AsRef<str> + ?Sized + 'a>(texts: impl Iterator<Item = &'a T>) -> String {
    let mut texts = texts.map(AsRef::as_ref);
    let mut common = texts.next().unwrap_or_default();
    for text in texts {
        let apart = common.char_indices().zip(text.chars()).find(|((_, one), other)| one != other);
        let shorter = if common.len() < text.len() { common } else { text };
        common = apart.map_or(shorter, |((end, _), _)| &common[..end]);
    }
    common.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_begin_alike() {
        for (texts, common) in [
            (Vec::new(), ""),
            (vec!["karp-a"], "karp-a"),
            (vec!["karp-a-Health", "karp-a-Rebalance", "karp-b-Health"], "karp-"),
            (vec!["/", "/team/a"], "/"),
            (vec!["é", "è"], ""),
            (vec!["a", "b"], ""),
        ] {
            assert_eq!(common_prefix(texts.iter().copied()), common, "{texts:?}");
        }
    }

    #[test]
    fn what_only_reads_is_told_by_its_name() {
        for (operation, reads) in
            [("DescribeTags", true), ("ListRules", true), ("GetRole", true), ("CreateTags", false), ("PutRule", false)]
        {
            assert_eq!(is_mere_read(operation), reads, "{operation}");
        }
    }
}

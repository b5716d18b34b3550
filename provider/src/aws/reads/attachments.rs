//! Which roles have a managed policy: asked role by role, until asking policy by policy would have been cheaper.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_iam::Client;
use aws_sdk_iam::types::EntityType;

use super::together::{Keys, Together};
use crate::aws::role;
use crate::report::{Failure, Kind};

/// How many roles IAM tells in one answer at most.
const ROLES: i32 = 1000;

/// The managed policies of roles. One list of a policy's roles serves all roles that have it, and node roles have the same four or so.
pub struct Attachments {
    iam: Client,
    roles_of: Together<String, Arc<BTreeSet<String>>>,
    /// How many roles were asked, by each policy that was looked for.
    spent: Mutex<BTreeMap<String, usize>>,
    /// Whether the caller may not list a policy's roles.
    denied: AtomicBool,
}

impl Attachments {
    /// Makes the question. Asks nothing yet.
    pub fn new(iam: &Client) -> Self {
        let client = iam.clone();
        Self {
            iam: iam.clone(),
            roles_of: Together::new(move |policies| list(client.clone(), policies)),
            spent: Mutex::default(),
            denied: AtomicBool::new(false),
        }
    }

    /// Gives those of the policies that a role has.
    pub async fn of(&self, role: &str, policies: &BTreeSet<String>) -> Result<BTreeSet<String>, Failure> {
        if policies.is_empty() {
            return Ok(BTreeSet::new());
        }
        if self.lists_are_worth_it(policies) {
            match self.roles_of.get(policies.iter().cloned()).await {
                Ok(roles) => {
                    let held = roles.into_iter().filter(|(_, roles)| roles.contains(role));
                    return Ok(held.map(|(policy, _)| policy).collect());
                }
                Err(failure) if failure.kind == Kind::Denied => self.denied.store(true, Ordering::Relaxed),
                Err(failure) => return Err(failure),
            }
        }
        Ok(role::attached(&self.iam, role).await?.intersection(policies).cloned().collect())
    }

    /// Forgets what was read.
    pub fn forget(&self) {
        self.roles_of.forget();
    }

    /// Says whether to list each policy's roles: where that was done already, or as many roles were asked before as that takes calls. So
    /// a few roles cost what they always did, and many at most twice the cheapest way.
    fn lists_are_worth_it(&self, policies: &BTreeSet<String>) -> bool {
        if self.denied.load(Ordering::Relaxed) {
            return false;
        }
        let unlisted: Vec<&String> = policies.iter().filter(|policy| !self.roles_of.knows(policy)).collect();
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if unlisted.iter().all(|policy| spent.get(*policy).copied().unwrap_or_default() >= unlisted.len()) {
            return true;
        }
        for policy in unlisted {
            *spent.entry(policy.clone()).or_default() += 1;
        }
        false
    }
}

async fn list(iam: Client, policies: Keys<String>) -> Result<BTreeMap<String, Arc<BTreeSet<String>>>, Failure> {
    let lists = policies.wanted.into_iter().map(|policy| async {
        let call = iam.list_entities_for_policy().policy_arn(&policy).entity_filter(EntityType::Role).max_items(ROLES);
        let mut pages = call.into_paginator().send();
        let mut roles = BTreeSet::new();
        while let Some(page) = pages.next().await {
            match page.map_err(|e| Failure::aws(format!("list the roles that have policy {policy}"), e)) {
                Ok(page) => roles.extend(page.policy_roles.into_iter().flatten().filter_map(|role| role.role_name)),
                // A policy that is gone is on no role.
                Err(failure) if failure.is_missing() => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok((policy, Arc::new(roles)))
    });
    Ok(futures::future::try_join_all(lists).await?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use aws_sdk_iam::config::{BehaviorVersion, Config};

    use super::*;

    #[test]
    fn lists_pay_once_as_many_roles_were_asked() {
        let iam = Client::from_conf(Config::builder().behavior_version(BehaviorVersion::latest()).build());
        let attachments = Attachments::new(&iam);
        let policies = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let (node, fargate) = (policies(&["worker", "cni", "ecr", "ssm"]), policies(&["fargate"]));
        let asked: Vec<bool> = (0..6).map(|_| attachments.lists_are_worth_it(&node)).collect();
        assert_eq!(asked, [false, false, false, false, true, true]);
        // What one role has besides is paid for first.
        assert!(!attachments.lists_are_worth_it(&policies(&["worker", "own"])));
        assert_eq!([(); 2].map(|()| attachments.lists_are_worth_it(&fargate)), [false, true]);
        attachments.denied.store(true, Ordering::Relaxed);
        assert!(!attachments.lists_are_worth_it(&node));
    }
}

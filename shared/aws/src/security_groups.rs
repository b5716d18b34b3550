//! Security groups by selector.

use crate::config::Clients;
use crate::error::Error;
use crate::selector::{FilterNames, Term, filter_sets};
use std::collections::BTreeMap;

const DESCRIBE: &str = "ec2:DescribeSecurityGroups";
const NAMES: FilterNames = FilterNames { id: "group-id", name: "group-name" };

/// A security group of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecurityGroup {
    /// `sg-…`
    pub id: String,
    /// The group's name.
    pub name: String,
}

/// Finds the security groups that any of `terms` selects, ordered by id, each once.
///
/// # Errors
/// Any failure of the call; no match is an empty answer, not an error.
pub async fn find(clients: &Clients, terms: &[Term]) -> Result<Vec<SecurityGroup>, Error> {
    let mut found = BTreeMap::new();
    for filters in filter_sets(terms, &NAMES) {
        clients.pace().describe.take().await;
        let mut pages = clients.ec2().describe_security_groups().set_filters(Some(filters)).into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| Error::from_sdk(DESCRIBE, error))?;
            for group in page.security_groups.unwrap_or_default() {
                if let Some(id) = group.group_id {
                    found.insert(id, group.group_name.unwrap_or_default());
                }
            }
        }
    }
    Ok(found.into_iter().map(|(id, name)| SecurityGroup { id, name }).collect())
}

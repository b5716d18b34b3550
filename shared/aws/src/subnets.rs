//! Subnets by selector.

use crate::config::Clients;
use crate::error::Error;
use crate::selector::{FilterNames, Term, filter_sets, read_tags};
use std::collections::BTreeMap;

const DESCRIBE: &str = "ec2:DescribeSubnets";
const NAMES: FilterNames = FilterNames { id: "subnet-id", name: "tag:Name" };

/// A subnet that may hold nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subnet {
    /// `subnet-…`
    pub id: String,
    /// The availability zone's name in this account.
    pub zone: String,
    /// The availability zone's id, the same in every account; empty when EC2 does not say.
    pub zone_id: String,
    /// The VPC.
    pub vpc_id: String,
    /// Free IPv4 addresses when it was described.
    pub free_addresses: u32,
    /// Whether instances get a public address by default.
    pub public_on_launch: bool,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
}

/// Finds the subnets that any of `terms` selects, ordered by id, each once.
///
/// # Errors
/// Any failure of the call; no match is an empty answer, not an error.
pub async fn find(clients: &Clients, terms: &[Term]) -> Result<Vec<Subnet>, Error> {
    let mut found = BTreeMap::new();
    for filters in filter_sets(terms, &NAMES) {
        clients.pace().describe.take().await;
        let mut pages = clients.ec2().describe_subnets().set_filters(Some(filters)).into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| Error::from_sdk(DESCRIBE, error))?;
            for subnet in page.subnets.unwrap_or_default() {
                if let Some(subnet) = read(subnet) {
                    found.insert(subnet.id.clone(), subnet);
                }
            }
        }
    }
    Ok(found.into_values().collect())
}

fn read(subnet: aws_sdk_ec2::types::Subnet) -> Option<Subnet> {
    Some(Subnet {
        id: subnet.subnet_id?,
        zone: subnet.availability_zone?,
        zone_id: subnet.availability_zone_id.unwrap_or_default(),
        vpc_id: subnet.vpc_id.unwrap_or_default(),
        free_addresses: subnet.available_ip_address_count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
        public_on_launch: subnet.map_public_ip_on_launch.unwrap_or(false),
        tags: read_tags(subnet.tags),
    })
}

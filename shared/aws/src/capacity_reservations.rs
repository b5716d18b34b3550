//! Capacity reservations by selector: instances that are paid for whether they run or not.

use std::collections::BTreeMap;

use aws_sdk_ec2::types as ec2;
use jiff::Timestamp;
use karp_domain::api::{
    CapacityReservation, CapacityReservationSelectorTerm, InstanceMatchCriteria, ReservationState, block_is_over,
};
use karp_domain::catalogue::{ReservationKind, Tenancy};
use serde::Serialize;

use crate::config::Clients;
use crate::error::Error;
use crate::selector::{filter, tag_filters};

const DESCRIBE: &str = "ec2:DescribeCapacityReservations";

/// A reservation that a selector names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// As a node class shows it.
    pub reservation: CapacityReservation,
    /// Instances that it still has room for.
    pub available: u32,
}

/// The reservation that an instance takes its capacity from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Taken {
    /// `cr-…`
    pub id: String,
    /// How the reservation was made.
    pub kind: ReservationKind,
    /// Its owner may take the instance back.
    pub interruptible: bool,
}

impl Taken {
    /// The market that EC2 wants to be named for it; none for plain reservations.
    pub(crate) fn market(&self) -> Option<ec2::MarketType> {
        match (self.kind, self.interruptible) {
            (ReservationKind::CapacityBlock, _) => Some(ec2::MarketType::CapacityBlock),
            (ReservationKind::Default, true) => Some(ec2::MarketType::InterruptibleCapacityReservation),
            (ReservationKind::Default, false) => None,
        }
    }
}

/// Finds the active reservations that any of `terms` selects, ordered by id; those that end soon are `expiring` at `now`.
///
/// # Errors
/// Any failure of a call; an id that does not exist selects nothing.
pub async fn find(
    clients: &Clients,
    terms: &[CapacityReservationSelectorTerm],
    now: Timestamp,
) -> Result<Vec<Found>, Error> {
    let ids: Vec<String> = terms.iter().filter_map(|term| term.id.clone()).collect();
    let mut found = by_ids(clients, ids).await?;
    for term in terms.iter().filter(|term| term.id.is_none() && selects(term)) {
        found.extend(describe(clients, Vec::new(), filters(term)).await?);
    }
    let read = found.into_iter().filter_map(|one| read(one, now)).map(|one| (one.reservation.id.clone(), one));
    Ok(read.collect::<BTreeMap<_, _>>().into_values().collect())
}

/// A term without tags and criteria would select every reservation of the account; it selects none.
fn selects(term: &CapacityReservationSelectorTerm) -> bool {
    !term.tags.is_empty() || term.instance_match_criteria.is_some()
}

/// One call for all ids; where one of them does not exist, which fails the whole, a call for each.
async fn by_ids(clients: &Clients, ids: Vec<String>) -> Result<Vec<ec2::CapacityReservation>, Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    match describe(clients, ids.clone(), Vec::new()).await {
        Err(error) if error.is_not_found() && ids.len() == 1 => return Ok(Vec::new()),
        Err(error) if error.is_not_found() => {}
        answer => return answer,
    }
    let mut found = Vec::new();
    for id in ids {
        match describe(clients, vec![id], Vec::new()).await {
            Err(error) if error.is_not_found() => {}
            answer => found.extend(answer?),
        }
    }
    Ok(found)
}

fn filters(term: &CapacityReservationSelectorTerm) -> Vec<ec2::Filter> {
    let mut filters = tag_filters(&term.tags);
    filters.extend(term.owner_id.iter().map(|owner| filter("owner-id", [owner.clone()])));
    let criteria = term.instance_match_criteria.map(|criteria| match criteria {
        InstanceMatchCriteria::Open => "open",
        InstanceMatchCriteria::Targeted => "targeted",
    });
    filters.extend(criteria.map(|text| filter("instance-match-criteria", [text.to_owned()])));
    filters
}

async fn describe(
    clients: &Clients,
    ids: Vec<String>,
    mut filters: Vec<ec2::Filter>,
) -> Result<Vec<ec2::CapacityReservation>, Error> {
    clients.pace().describe.take().await;
    filters.push(filter("state", ["active".to_owned()]));
    let call = clients.ec2().describe_capacity_reservations().set_filters(Some(filters));
    let call = call.set_capacity_reservation_ids(Some(ids).filter(|ids| !ids.is_empty()));
    let mut found = Vec::new();
    let mut pages = call.into_paginator().send();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| Error::from_sdk(DESCRIBE, error))?;
        found.extend(page.capacity_reservations.unwrap_or_default());
    }
    Ok(found)
}

/// Reads a reservation; one that misses a name cannot be launched into.
fn read(found: ec2::CapacityReservation, now: Timestamp) -> Option<Found> {
    let block = matches!(found.reservation_type, Some(ec2::CapacityReservationType::CapacityBlock));
    let end_time = found.end_date.and_then(|date| Timestamp::from_second(date.secs()).ok());
    let expiring = block && end_time.is_some_and(|end| block_is_over(end, now));
    Some(Found {
        available: found.available_instance_count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
        reservation: CapacityReservation {
            id: found.capacity_reservation_id?,
            availability_zone: found.availability_zone?,
            instance_type: found.instance_type?,
            owner_id: found.owner_id?,
            instance_match_criteria: match found.instance_match_criteria {
                Some(ec2::InstanceMatchCriteria::Targeted) => InstanceMatchCriteria::Targeted,
                _ => InstanceMatchCriteria::Open,
            },
            end_time,
            reservation_type: if block { ReservationKind::CapacityBlock } else { ReservationKind::Default },
            interruptible: found.interruptible,
            tenancy: match found.tenancy {
                Some(ec2::CapacityReservationTenancy::Dedicated) => Tenancy::Dedicated,
                _ => Tenancy::Default,
            },
            state: if expiring { ReservationState::Expiring } else { ReservationState::Active },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_expire() {
        let now = Timestamp::from_second(1_000_000).expect("a time");
        let state = |kind: ec2::CapacityReservationType, minutes: i64| {
            let found = ec2::CapacityReservation::builder()
                .capacity_reservation_id("cr-1")
                .availability_zone("us-east-1a")
                .instance_type("p5.48xlarge")
                .owner_id("123456789012")
                .reservation_type(kind)
                .end_date(aws_sdk_ec2::primitives::DateTime::from_secs(now.as_second() + 60 * minutes))
                .build();
            read(found, now).expect("whole").reservation.state
        };
        use ec2::CapacityReservationType::{CapacityBlock, Default};
        assert_eq!(state(CapacityBlock, 41), ReservationState::Active);
        assert_eq!(state(CapacityBlock, 40), ReservationState::Expiring);
        assert_eq!(state(Default, 1), ReservationState::Active, "what runs goes on, on demand");
        assert_eq!(read(ec2::CapacityReservation::builder().build(), now), None);
    }

    #[test]
    fn a_reservation_is_of_the_tenancy_that_ec2_says() {
        let tenancy = |told: Option<ec2::CapacityReservationTenancy>| {
            let found = ec2::CapacityReservation::builder()
                .capacity_reservation_id("cr-1")
                .availability_zone("us-east-1a")
                .instance_type("m7i.large")
                .owner_id("123456789012")
                .set_tenancy(told)
                .build();
            read(found, Timestamp::UNIX_EPOCH).expect("whole").reservation.tenancy
        };
        use ec2::CapacityReservationTenancy::{Dedicated, Default};
        let told = [Some(Dedicated), Some(Default), None].map(tenancy);
        assert_eq!(told, [Tenancy::Dedicated, Tenancy::Default, Tenancy::Default]);
    }

    #[test]
    fn a_term_asks_for_all_that_it_says() {
        let term: CapacityReservationSelectorTerm = serde_json::from_value(serde_json::json!({
            "tags": {"team": "ml", "any": "*"}, "ownerID": "123456789012", "instanceMatchCriteria": "targeted"}))
        .expect("a term");
        let asked: Vec<(String, Vec<String>)> =
            filters(&term).into_iter().map(|f| (f.name.unwrap_or_default(), f.values.unwrap_or_default())).collect();
        let has = |name: &str, value: &str| asked.contains(&(name.to_owned(), vec![value.to_owned()]));
        assert!(has("tag-key", "any") && has("tag:team", "ml"), "{asked:?}");
        assert!(selects(&term));
        let owner: CapacityReservationSelectorTerm =
            serde_json::from_value(serde_json::json!({"tags": {}, "ownerID": "123456789012"})).expect("a term");
        assert!(!selects(&owner), "not everything of an account");
        assert!(has("owner-id", "123456789012") && has("instance-match-criteria", "targeted"), "{asked:?}");
    }
}

//! What a pool can still add: types, and the values of labels that its new nodes can have.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::packing::{limits_left, node_size};
use super::problem::PoolState;
use crate::api::labels;
use crate::catalogue::{CapacityType, Catalogue, Market, TypeSet, Zone};
use crate::cluster::MinValuesPolicy;
use crate::requirement::{Requirement, Requirements, ValueSet};

/// The types that a pool can still add: offered, within its limits, and enough for its `minValues`; else none.
pub(crate) fn addable(state: &PoolState, policy: MinValuesPolicy) -> TypeSet {
    let mut types = state.types.clone();
    types.intersect_with(&state.catalogue.offered(state.market));
    if !state.pool.limits.is_empty() {
        let left = limits_left(state);
        let within: Vec<usize> = types.ones().filter(|at| node_size(state, *at).fits(&left)).collect();
        types.clear();
        types.extend(within);
    }
    let too_few = |(key, wanted): (&Arc<str>, &u32)| distinct_values(state, &types, key) < *wanted;
    if policy == MinValuesPolicy::Strict && state.pool.min_values.iter().any(too_few) {
        types.clear();
    }
    types
}

/// Counts values of a label that nodes of these types can have; for `minValues`.
pub(crate) fn distinct_values(state: &PoolState, types: &TypeSet, key: &str) -> u32 {
    values_of(&state.catalogue, &state.pool.requirements, types, key)
}

/// Counts values of a label that nodes of these types can have, of those that requirements leave.
pub(super) fn values_of(catalogue: &Catalogue, requirements: &Requirements, types: &TypeSet, key: &str) -> u32 {
    let count = match sold(catalogue, types, catalogue.market(requirements), key) {
        Some(values) => values.len(),
        None => {
            let values = types.ones().filter_map(|at| catalogue.types()[at].labels.get(key)).flatten();
            values.filter(|value| requirements.admits(key, value)).collect::<BTreeSet<_>>().len()
        }
    };
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Answers where or how any of these types is sold in a market, for the labels that say so: those are no labels of the types.
fn sold(catalogue: &Catalogue, types: &TypeSet, within: Market, key: &str) -> Option<Vec<Arc<str>>> {
    let is_sold = |market: Market| {
        let market = market.and(within);
        !market.is_empty() && !catalogue.offered(market).is_disjoint(types)
    };
    let zones = |name: fn(&Zone) -> Arc<str>| {
        let zones = catalogue.zones().iter().enumerate();
        let in_use = zones.filter(|(at, _)| is_sold(Market { zones: 1 << at, capacity_types: u8::MAX }));
        in_use.map(|(_, zone)| name(zone)).collect()
    };
    match key {
        labels::ZONE => Some(zones(|zone| zone.name.clone())),
        labels::ZONE_ID => Some(zones(|zone| zone.id.clone())),
        labels::CAPACITY_TYPE => {
            let in_use = CapacityType::ALL
                .into_iter()
                .filter(|one| is_sold(Market { zones: u64::MAX, capacity_types: 1 << *one as u8 }));
            Some(in_use.map(|one| one.as_str().into()).collect())
        }
        _ => None,
    }
}

/// Answers the values of a label that new nodes of a pool can have, as one of these types in a market of the pool's.
pub(crate) fn pool_values(state: &PoolState, types: &TypeSet, within: Market, key: &str) -> Vec<Arc<str>> {
    let catalogue = &state.catalogue;
    if types.is_clear() {
        return Vec::new();
    }
    if let Some(sold) = sold(catalogue, types, within, key) {
        return sold;
    }
    if catalogue.defines(key) {
        let values = types.ones().filter_map(|at| catalogue.types()[at].labels.get(key)).flatten();
        let admitted = values.filter(|value| state.pool.requirements.admits(key, value));
        return admitted.cloned().collect::<BTreeSet<_>>().into_iter().collect();
    }
    match state.pool.requirements.get(key).map(Requirement::values) {
        Some(ValueSet::Only(values)) => values.iter().cloned().collect(),
        _ => Vec::new(),
    }
}

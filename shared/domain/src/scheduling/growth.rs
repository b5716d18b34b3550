//! What a pool can still add: types, and the values of labels that its new nodes can have.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::packing::{limits_left, node_size};
use super::problem::PoolState;
use crate::api::labels;
use crate::catalogue::{CapacityType, Market, TypeSet, Zone};
use crate::cluster::MinValuesPolicy;
use crate::requirement::{Requirement, ValueSet};

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
    let count = match key {
        // where and how a type is sold is no label of the type
        labels::ZONE | labels::ZONE_ID | labels::CAPACITY_TYPE => pool_values(state, types, state.market, key).len(),
        _ => {
            let values = types.ones().filter_map(|at| state.catalogue.types()[at].labels.get(key)).flatten();
            values.filter(|value| state.pool.requirements.admits(key, value)).collect::<BTreeSet<_>>().len()
        }
    };
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Answers the values of a label that new nodes of a pool can have, as one of these types in a market of the pool's.
pub(crate) fn pool_values(state: &PoolState, types: &TypeSet, within: Market, key: &str) -> Vec<Arc<str>> {
    if types.is_clear() {
        return Vec::new();
    }
    let catalogue = &state.catalogue;
    let zones = |name: fn(&Zone) -> Arc<str>| {
        let in_use = (0..catalogue.zones().len()).filter(|zone| {
            let market = Market { zones: 1 << zone, capacity_types: u8::MAX }.and(within);
            !market.is_empty() && !catalogue.offered(market).is_disjoint(types)
        });
        in_use.map(|zone| name(&catalogue.zones()[zone])).collect()
    };
    match key {
        labels::ZONE => zones(|zone| zone.name.clone()),
        labels::ZONE_ID => zones(|zone| zone.id.clone()),
        labels::CAPACITY_TYPE => CapacityType::ALL
            .into_iter()
            .filter(|t| {
                let market = Market { zones: u64::MAX, capacity_types: 1 << *t as u8 };
                let market = market.and(within);
                !market.is_empty() && !catalogue.offered(market).is_disjoint(types)
            })
            .map(|t| t.as_str().into())
            .collect(),
        _ if catalogue.defines(key) => {
            let values = types.ones().filter_map(|at| catalogue.types()[at].labels.get(key)).flatten();
            let admitted = values.filter(|value| state.pool.requirements.admits(key, value));
            admitted.cloned().collect::<BTreeSet<_>>().into_iter().collect()
        }
        _ => match state.pool.requirements.get(key).map(Requirement::values) {
            Some(ValueSet::Only(values)) => values.iter().cloned().collect(),
            _ => Vec::new(),
        },
    }
}

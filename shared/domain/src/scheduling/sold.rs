//! Where and how instance types are sold, in words: what pods and pools allow of it, and what there is.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::Misfit;
use super::problem::PoolState;
use crate::api::labels;
use crate::catalogue::{CapacityType, Catalogue, Market, Offering, RESERVATION_LABELS, TypeSet};
use crate::requirement::{Requirement, Requirements, ValueSet};

/// Names told in one list; a region has a handful of zones.
const NAMED: usize = 6;

/// Names capacity types and zones; none of a kind stand for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Places {
    /// Capacity types.
    pub capacity_types: Vec<Arc<str>>,
    /// Zones.
    pub zones: Vec<Arc<str>>,
}

impl Places {
    /// Says whether only capacity reservations will do.
    pub(crate) fn is_reserved(&self) -> bool {
        matches!(self.capacity_types.as_slice(), [only] if &**only == CapacityType::Reserved.as_str())
    }

    /// What requirements say, whether or not anything is sold so.
    fn asked(requirements: &Requirements) -> Self {
        let told = |key: &str| match requirements.get(key).map(|one| (one, one.values())) {
            None => Vec::new(),
            Some((_, ValueSet::Only(values))) if !values.is_empty() => values.iter().cloned().collect(),
            Some((other, _)) => vec![other.to_string().into()],
        };
        let zones = [labels::ZONE, labels::ZONE_ID].into_iter().flat_map(told).collect();
        Places { capacity_types: told(labels::CAPACITY_TYPE), zones }
    }

    fn of<'o>(offerings: impl Iterator<Item = &'o Offering>) -> Self {
        let (mut kinds, mut zones) = (BTreeSet::new(), BTreeSet::new());
        for offering in offerings {
            kinds.insert(offering.capacity_type);
            zones.insert(offering.zone.name.clone());
        }
        Places {
            capacity_types: kinds.into_iter().map(|kind| kind.as_str().into()).collect(),
            zones: zones.into_iter().collect(),
        }
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.capacity_types.is_empty(), self.zones.is_empty()) {
            (true, true) => f.write_str("in any zone by any capacity type"),
            (false, true) => write!(f, "as {}", any_of(&self.capacity_types)),
            (true, false) => write!(f, "in {}", any_of(&self.zones)),
            (false, false) => write!(f, "as {} in {}", any_of(&self.capacity_types), any_of(&self.zones)),
        }
    }
}

/// What requirements ask of offerings.
pub(crate) fn of_offerings(requirements: &Requirements) -> Requirements {
    let keys = [labels::ZONE, labels::ZONE_ID, labels::CAPACITY_TYPE, labels::INSTANCE_TENANCY];
    let keys = keys.into_iter().chain(RESERVATION_LABELS);
    keys.filter_map(|key| requirements.get(key)).cloned().collect()
}

/// Names some of which any will do.
pub(crate) fn any_of(names: &[Arc<str>]) -> String {
    first_of(names.iter().map(ToString::to_string), " or ")
}

/// Names the first of many, and says how many more there are: one line is read on a terminal.
pub(crate) fn first_of(all: impl ExactSizeIterator<Item = String>, joint: &str) -> String {
    let more = all.len().saturating_sub(NAMED);
    let mut told: Vec<String> = all.take(NAMED).collect();
    if more > 0 {
        told.push(format!("{more} more"));
    }
    told.join(joint)
}

/// Says why none of some types can be had where a pool and what is wanted of its nodes let them be bought: they are sold there and missing
/// now, or nobody sells them so.
pub(crate) fn none_offered(state: &PoolState, wanted: &Requirements, types: &TypeSet, market: Market) -> Misfit {
    let (count, both) = (types.count_ones(..), state.pool.requirements.and(wanted));
    match sold(&state.catalogue, &both, types, market) {
        Ok(wanted) => Misfit::NoOffering { types: count, wanted },
        Err((wanted, offered)) => Misfit::NotOffered { types: count, wanted, offered },
    }
}

/// Answers where and how some types are sold as requirements ask, whether or not any can be had now; else what is asked for, and what there is.
pub(crate) fn sold(
    catalogue: &Catalogue,
    requirements: &Requirements,
    types: &TypeSet,
    market: Market,
) -> Result<Places, (Places, Places)> {
    let asked = of_offerings(requirements);
    let all = || types.ones().flat_map(|at| &catalogue.types()[at].offerings);
    let there = |offering: &&Offering| {
        offering.suits(&asked) && (allows(catalogue, market, offering) || offering.reservation.is_some())
    };
    match all().any(|offering| there(&offering)) {
        true => Ok(Places::of(all().filter(there))),
        false => Err((Places::asked(&asked), Places::of(all()))),
    }
}

fn allows(catalogue: &Catalogue, market: Market, offering: &Offering) -> bool {
    let zone = catalogue.zones().binary_search(&offering.zone);
    zone.is_ok_and(|zone| market.allows(zone, offering.capacity_type))
}

/// Says why no type of a pool has the labels that are wanted: what is wanted, and which of the pool's own requirements is in its way.
pub(crate) fn no_type(
    requirements: &Requirements,
    catalogue: &Catalogue,
    types: &TypeSet,
    wanted: &Requirements,
) -> Misfit {
    let alone = |one: &Requirement| catalogue.select(&Requirements::from_iter([one.clone()])).0;
    let of_types = |one: &&Requirement| catalogue.defines(one.key()) || labels::is_of_types(one.key());
    let told = |all: &Requirements| all.iter().filter(of_types).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if types.is_clear() {
        let allowed = catalogue.unmet(requirements).map_or_else(|| told(requirements), ToString::to_string);
        return Misfit::NoInstanceType { wanted: String::new(), allowed };
    }
    let none = String::new;
    if let Some(one) = wanted.iter().find(|one| alone(one).is_clear()) {
        return Misfit::NoInstanceType { wanted: one.to_string(), allowed: none() };
    }
    let Some(one) = wanted.iter().find(|one| alone(one).is_disjoint(types)) else {
        return Misfit::NoInstanceType { wanted: told(wanted), allowed: told(requirements) };
    };
    let its = alone(one);
    let against = requirements.iter().filter(of_types).find(|other| alone(other).is_disjoint(&its));
    let allowed = against.map_or_else(|| told(requirements), ToString::to_string);
    Misfit::NoInstanceType { wanted: one.to_string(), allowed }
}

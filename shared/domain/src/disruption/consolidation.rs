//! Consolidation: would the pods of a node fit elsewhere, or on something cheaper?

use super::KeepReason;
use super::candidate::{Entry, Field};
use crate::api::labels;
use crate::catalogue::{CapacityType, Price};
use crate::cluster::ConsolidationPolicy;
use crate::requirement::Requirement;
use crate::scheduling::{Hosts, InFlightNode, place};

/// Spot nodes are only replaced by spot nodes when so many cheaper types would do, or the replacement would be the next to be taken back
/// (Karpenter's figure).
const SPOT_TYPES: usize = 15;
/// A Balanced pool gives up a node whose share of the saving is at least this share of the disruption, in thousandths (Karpenter's k = 2).
const BALANCED_PERMILLE: u64 = 500;

/// What it takes to do without a node.
pub(super) struct Move {
    /// Nodes to launch; none if the pods fit on what is there.
    pub(super) nodes: Vec<InFlightNode>,
}

/// Answers what it takes to move the pods of a node away, whatever that costs.
pub(super) fn move_away(field: &Field<'_>, entry: &Entry) -> Result<Move, KeepReason> {
    let solution = place(&field.problem, entry.pods.clone(), &Hosts::ReadyWithout(&[entry.host]));
    match solution.unschedulable.into_iter().next() {
        Some(refused) => Err(KeepReason::PodWouldNotFit { pod: refused.pod, reasons: refused.reasons }),
        None => Ok(Move { nodes: solution.nodes }),
    }
}

/// Answers how to do without a node at a lower price: on what is there, or on one cheaper node.
pub(super) fn cheaper(field: &Field<'_>, entry: &Entry) -> Result<Move, KeepReason> {
    let price = entry.candidate.price.ok_or(KeepReason::UnknownPrice)?;
    let Move { mut nodes } = move_away(field, entry)?;
    let (cost, nodes) = match nodes.pop() {
        None => (Price::ZERO, nodes),
        Some(_) if !nodes.is_empty() => return Err(KeepReason::SeveralNodesNeeded { nodes: nodes.len() + 1 }),
        Some(node) => {
            let node = below(field, entry, node, price)?;
            (node.price, vec![node])
        }
    };
    worth_it(field, entry, price.saturating_sub(cost))?;
    Ok(Move { nodes })
}

/// Narrows a replacement until whatever is launched for it is cheaper by the least saving.
fn below(field: &Field<'_>, entry: &Entry, mut node: InFlightNode, price: Price) -> Result<InFlightNode, KeepReason> {
    let settings = &field.problem.snapshot.settings;
    let cap = price.scaled(1000 - settings.saving_floor_permille.min(1000), 1000);
    let none = KeepReason::NoCheaperOffering { price, cheapest: node.price };
    let cheap =
        |capacity_type: CapacityType| node.offerings.iter().any(|o| o.capacity_type == capacity_type && o.price < cap);
    let Some(capacity_type) = CapacityType::ALL.into_iter().find(|t| cheap(*t)) else { return Err(none) };
    let spot_to_spot = capacity_type == CapacityType::Spot && entry.capacity_type == Some(CapacityType::Spot);
    if spot_to_spot && !settings.spot_to_spot {
        return Err(KeepReason::SpotToSpotOff);
    }
    let offered = |o: &&crate::catalogue::RankedOffering| o.capacity_type == capacity_type;
    // EC2 chooses the zone: a type stays only if it is cheaper in every zone that it may be launched in
    let dear: Vec<_> =
        node.offerings.iter().filter(offered).filter(|o| o.price >= cap).map(|o| o.instance_type.clone()).collect();
    let offerings: Vec<_> =
        node.offerings.iter().filter(offered).filter(|o| !dear.contains(&o.instance_type)).cloned().collect();
    node.offerings = offerings;
    let mut types = node.instance_types();
    if types.is_empty() {
        return Err(none);
    }
    if spot_to_spot {
        if types.len() < SPOT_TYPES {
            return Err(KeepReason::TooFewSpotTypes { found: types.len(), wanted: SPOT_TYPES });
        }
        // no more, so that the next look does not find yet cheaper ones and moves again
        types.truncate(SPOT_TYPES);
        node.offerings.retain(|o| types.contains(&o.instance_type));
    }
    for (key, wanted) in entry.pool.iter().flat_map(|pool| &pool.min_values) {
        if values(field, entry, &types, key) < *wanted {
            return Err(none);
        }
    }
    node.requirements.add(Requirement::only(labels::INSTANCE_TYPE, types));
    node.requirements.add(Requirement::only(labels::CAPACITY_TYPE, [capacity_type.as_str()]));
    node.price = node.offerings.first().map(|offering| offering.price).unwrap_or_default();
    Ok(node)
}

fn values(field: &Field<'_>, entry: &Entry, types: &[std::sync::Arc<str>], key: &str) -> u32 {
    let Some(catalogue) = field.problem.snapshot.catalogues.get(&entry.claim.class.name) else { return 0 };
    let labels = types.iter().filter_map(|name| catalogue.get(name)?.labels.get(key)).flatten();
    let distinct: std::collections::BTreeSet<_> = labels.collect();
    u32::try_from(distinct.len()).unwrap_or(u32::MAX)
}

/// A Balanced pool weighs the share of its cost that is saved against the share of its pods that are disturbed.
fn worth_it(field: &Field<'_>, entry: &Entry, saving: Price) -> Result<(), KeepReason> {
    let Some(pool) = entry.pool.as_ref().filter(|pool| pool.policy == ConsolidationPolicy::Balanced) else {
        return Ok(());
    };
    let mine = || field.entries.iter().filter(|other| other.candidate.pool == pool.name);
    let cost: u128 = mine().filter_map(|other| other.candidate.price).map(|p| u128::from(p.micro_dollars())).sum();
    let disruption: u128 = mine().map(|other| u128::from(other.disruption_cost_milli())).sum();
    let gain = u128::from(saving.micro_dollars()) * disruption * 1000;
    let pain = cost * u128::from(entry.disruption_cost_milli());
    let score_permille = u64::try_from(gain / pain.max(1)).unwrap_or(u64::MAX);
    if score_permille < BALANCED_PERMILLE { Err(KeepReason::NotWorthIt { score_permille }) } else { Ok(()) }
}

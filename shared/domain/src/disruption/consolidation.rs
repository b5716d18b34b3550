//! Consolidation: would the pods of some nodes fit elsewhere, or on fewer or cheaper nodes?

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::candidate::{Entry, Field};
use super::{Approval, KeepReason};
use crate::api::labels;
use crate::catalogue::{CapacityType, Price};
use crate::cluster::{ConsolidationPolicy, Pod};
use crate::requirement::Requirement;
use crate::scheduling::{Hosts, InFlightNode, Placement, Solution, hold_or_forgo, place};

/// A spot node is only replaced by another when so many cheaper types would do, or the replacement would be the next to be taken back
/// (Karpenter's figure; it asks this of single nodes only).
const SPOT_TYPES: usize = 15;
/// A Balanced pool gives up nodes whose share of the saving is at least this share of the disruption, in thousandths (Karpenter's k = 2).
const BALANCED_PERMILLE: u64 = 500;

/// What it takes to do without some nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Move {
    /// Where the pods go that fit on what is there.
    pub(super) placements: Vec<Placement>,
    /// Nodes to launch; none if the pods fit on what is there.
    pub(super) nodes: Vec<InFlightNode>,
    /// What is saved per hour, by the offerings that are expected to be launched.
    pub(super) saving: Price,
    /// What the pools with policy Balanced say of it.
    pub(super) approvals: Vec<Approval>,
}

/// Answers what it takes to move the pods of some nodes away, whatever that costs.
pub(super) fn move_away(field: &Field<'_>, set: &[&Entry]) -> Result<Move, KeepReason> {
    move_beside(field, set, set)
}

/// Answers what it takes to do without nodes that are not as their pool wants them: to move their pods away. In a static pool one like those that
/// it launches takes the place of each, whatever their pods need: kube-scheduler finds them others, as Karpenter has it.
pub(super) fn renew(field: &Field<'_>, set: &[&Entry]) -> Result<Move, KeepReason> {
    let Some(pool) = set.iter().find_map(|entry| entry.static_pool()) else { return move_away(field, set) };
    let nodes = vec![field.successor(&pool.name)?; set.len()];
    Ok(Move { nodes, ..Move::default() })
}

/// Answers how the pods of some nodes fit on others that are there, without those of `going`; nothing if they do not, or if it does not pay.
pub(super) fn vacate(field: &Field<'_>, set: &[&Entry], going: &[&Entry]) -> Option<Move> {
    let price = price(set)?;
    let change = move_beside(field, set, going).ok().filter(|change| change.nodes.is_empty())?;
    worth_it(field, set, price, change.saving).is_ok().then_some(change)
}

fn move_beside(field: &Field<'_>, set: &[&Entry], going: &[&Entry]) -> Result<Move, KeepReason> {
    let pods: Vec<Arc<Pod>> = set.iter().flat_map(|entry| &entry.pods).cloned().collect();
    let mut hosts: Vec<usize> = going.iter().map(|entry| entry.host).collect();
    hosts.sort_unstable();
    let Solution { mut nodes, placements, mut unschedulable, .. } =
        place(&field.problem, pods, &Hosts::ReadyWithout(&hosts));
    unschedulable.extend(hold_or_forgo(&field.problem, &mut nodes));
    match unschedulable.into_iter().next() {
        Some(refused) => Err(KeepReason::PodWouldNotFit { pod: refused.pod, reasons: refused.reasons }),
        None => {
            let before: Price = set.iter().filter_map(|entry| entry.candidate.price).sum();
            let saving = before.saturating_sub(nodes.iter().map(|node| node.price).sum());
            Ok(Move { placements, nodes, saving, approvals: Vec::new() })
        }
    }
}

/// Answers what some nodes cost; nothing when that is not known of each.
fn price(set: &[&Entry]) -> Option<Price> {
    set.iter().map(|entry| entry.candidate.price).collect::<Option<Vec<Price>>>().map(|all| all.into_iter().sum())
}

/// Answers how to do without some nodes at a lower price: on what is there, or on fewer nodes (one for one), each bought so that
/// whatever EC2 launches of what it may, the floor is saved.
pub(super) fn cheaper(field: &Field<'_>, set: &[&Entry]) -> Result<Move, KeepReason> {
    let price = price(set).ok_or(KeepReason::UnknownPrice)?;
    let Move { placements, nodes, .. } = move_away(field, set)?;
    if nodes.len() > set.len().saturating_sub(1).max(1) {
        return Err(KeepReason::SeveralNodesNeeded { nodes: nodes.len() });
    }
    let least = set.iter().map(|entry| field.least_saving(entry)).sum();
    let cap = price.saturating_sub(least);
    let cost: Price = nodes.iter().map(|node| node.price).sum();
    // a replacement costs less than that, as `below` has it
    if !nodes.is_empty() && cost < price && cost >= cap {
        return Err(KeepReason::TooLittleSaved { saving: price.saturating_sub(cost), least });
    }
    // what may be spent is shared out as the cheapest offerings are priced; what is free has a part, too, to be below
    let weight = |node: &InFlightNode| node.price.micro_dollars().max(1);
    let whole: u64 = nodes.iter().map(weight).sum();
    let shares = nodes.into_iter().map(|node| {
        let share = cap.scaled(weight(&node), whole);
        below(field, set, node, share, price)
    });
    let nodes = shares.collect::<Result<Vec<InFlightNode>, KeepReason>>()?;
    let saving = price.saturating_sub(nodes.iter().map(|node| node.price).sum());
    let approvals = worth_it(field, set, price, saving)?;
    Ok(Move { placements, nodes, saving, approvals })
}

/// Narrows a replacement until whatever is launched for it costs less than `cap`.
fn below(
    field: &Field<'_>,
    set: &[&Entry],
    mut node: InFlightNode,
    cap: Price,
    price: Price,
) -> Result<InFlightNode, KeepReason> {
    let settings = &field.problem.snapshot.settings;
    let none = KeepReason::NoCheaperOffering { price, cheapest: node.price };
    let cheap = |bought: CapacityType| node.offerings.iter().any(|o| o.capacity_type == bought && o.price < cap);
    let Some(bought) = CapacityType::ALL.into_iter().find(|bought| cheap(*bought)) else { return Err(none) };
    let spot_to_spot =
        bought == CapacityType::Spot && set.iter().all(|entry| entry.capacity_type == Some(CapacityType::Spot));
    if spot_to_spot && !settings.spot_to_spot {
        return Err(KeepReason::SpotToSpotOff);
    }
    // EC2 chooses the zone: a type stays only if it is cheaper in every zone that it may be launched in
    let present = present(set, bought);
    let is_dear = |o: &crate::catalogue::RankedOffering| {
        o.price >= cap || present.get(&*o.instance_type).is_some_and(|there| o.price >= *there)
    };
    Arc::make_mut(&mut node.offerings).retain(|o| o.capacity_type == bought);
    let dear: BTreeSet<_> = node.offerings.iter().filter(|o| is_dear(o)).map(|o| o.instance_type.clone()).collect();
    Arc::make_mut(&mut node.offerings).retain(|o| !dear.contains(&o.instance_type));
    let mut types = node.instance_types();
    if types.is_empty() {
        return Err(none);
    }
    // a reservation settles type, zone and price, whatever else its claim lists for `minValues`
    if node.requirements.single(labels::CAPACITY_RESERVATION_ID).is_some() {
        return Ok(node);
    }
    let is_narrowed = spot_to_spot && set.len() == 1;
    if is_narrowed && types.len() < SPOT_TYPES {
        return Err(KeepReason::TooFewSpotTypes { found: types.len(), wanted: SPOT_TYPES });
    }
    if !has_min_values(field, &node, &types) {
        return Err(none);
    }
    if is_narrowed {
        // no more than that and `minValues` ask for, so that the next look does not find yet cheaper ones and moves again
        let fewest = (SPOT_TYPES..types.len()).find(|count| has_min_values(field, &node, &types[..*count]));
        types.truncate(fewest.unwrap_or(types.len()));
        Arc::make_mut(&mut node.offerings).retain(|o| types.contains(&o.instance_type));
    }
    node.requirements.add(Requirement::only(labels::INSTANCE_TYPE, types));
    node.requirements.add(Requirement::only(labels::CAPACITY_TYPE, [bought.as_str()]));
    node.price = node.offerings.first().map(|offering| offering.price).unwrap_or_default();
    Ok(node)
}

/// Answers the cheapest of several nodes of each type that is bought the same way: launching the like of a node that could stay is no gain.
fn present<'e>(set: &[&'e Entry], bought: CapacityType) -> BTreeMap<&'e str, Price> {
    let mut cheapest: BTreeMap<&str, Price> = BTreeMap::new();
    for entry in set.iter().filter(|entry| set.len() > 1 && entry.capacity_type == Some(bought)) {
        let name = entry.node.as_ref().and_then(|node| node.labels.get(labels::INSTANCE_TYPE));
        if let (Some(name), Some(price)) = (name, entry.candidate.price) {
            let known = cheapest.entry(name).or_insert(price);
            *known = (*known).min(price);
        }
    }
    cheapest
}

/// Says whether some of a node's types bring all values that `minValues` of its claim ask for.
fn has_min_values(field: &Field<'_>, node: &InFlightNode, types: &[Arc<str>]) -> bool {
    let enough =
        |asked: &Requirement| asked.min_values().is_none_or(|wanted| values(field, node, types, asked) >= wanted);
    node.requirements.iter().all(enough)
}

/// Counts the values of a label that a node can have as one of these types.
fn values(field: &Field<'_>, node: &InFlightNode, types: &[Arc<str>], asked: &Requirement) -> u32 {
    let sold = || node.offerings.iter().filter(|o| types.contains(&o.instance_type));
    let distinct: BTreeSet<&str> = match asked.key() {
        labels::ZONE => sold().map(|o| &*o.zone.name).collect(),
        labels::ZONE_ID => sold().map(|o| &*o.zone.id).collect(),
        labels::CAPACITY_TYPE => sold().map(|o| o.capacity_type.as_str()).collect(),
        key => {
            let Some(catalogue) = field.problem.snapshot.catalogues.get(&node.class.name) else { return 0 };
            let values = types.iter().filter_map(|name| catalogue.get(name)?.labels.get(key)).flatten();
            values.filter(|value| asked.admits(value)).map(|value| &**value).collect()
        }
    };
    u32::try_from(distinct.len()).unwrap_or(u32::MAX)
}

/// Each Balanced pool weighs the share of its cost that is saved against the share of its pods that are disturbed.
fn worth_it(field: &Field<'_>, set: &[&Entry], price: Price, saving: Price) -> Result<Vec<Approval>, KeepReason> {
    let balanced = |entry: &&&Entry| entry.pool.as_ref().is_some_and(|p| p.policy == ConsolidationPolicy::Balanced);
    let pools: BTreeSet<&Arc<str>> = set.iter().filter(balanced).map(|entry| &entry.candidate.pool).collect();
    let mut approvals = Vec::new();
    for pool in pools {
        let moved = || set.iter().filter(|entry| entry.candidate.pool == *pool);
        let weight = field.weight(pool);
        let (cost, disruption) = (u128::from(weight.price.micro_dollars()), u128::from(weight.disruption_milli));
        let micro = |entry: &Entry| u128::from(entry.candidate.price.unwrap_or_default().micro_dollars());
        let moved_price: u128 = moved().map(|entry| micro(entry)).sum();
        let moved_disruption: u128 = moved().map(|entry| u128::from(entry.disruption_cost_milli())).sum();
        // of what the move saves, the pool has the part that its nodes have in the price
        let own_saving = u128::from(saving.micro_dollars()) * moved_price / u128::from(price.micro_dollars()).max(1);
        let score = own_saving * disruption * 1000 / (cost * moved_disruption).max(1);
        let score_permille = u64::try_from(score).unwrap_or(u64::MAX);
        if score_permille < BALANCED_PERMILLE {
            return Err(KeepReason::NotWorthIt { score_permille });
        }
        approvals.push(Approval { pool: pool.clone(), score_permille });
    }
    Ok(approvals)
}

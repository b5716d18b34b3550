//! Capacity reservations: instances that are paid already, and so many of them.
//!
//! To packing a reservation is an offering that costs next to nothing and has no end. What comes out is counted here: the nodes for which
//! anything else would be dearest take the instances that are left, each of one reservation by its id, and all pods without a place on them or
//! on hosts are planned again without the reservations that are used up.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::ahead::{Ahead, planned};
use super::problem::Problem;
use super::queue::waiting_pods;
use super::solve::{Hosts, place};
use super::{InFlightNode, Misfit, Places, Refusal, Solution, Unschedulable, share};
use crate::api::labels;
use crate::catalogue::{CapacityType, Instances, Price, RankedOffering};
use crate::cluster::{Catalogues, Pod, PodKey, Shape, Snapshot};
use crate::requirement::Requirement;

/// Answers the catalogues of a snapshot without the instances of reservations that claims will take.
pub(super) fn open(snapshot: &Snapshot) -> Catalogues {
    let mut open = snapshot.catalogues.clone();
    open.take(&promised(snapshot));
    open
}

/// The instances that claims will take which are not launched yet: EC2 does not count them.
fn promised(snapshot: &Snapshot) -> Instances {
    let mut promised = Instances::default();
    for claim in snapshot.claims.iter().filter(|claim| !claim.is_launched()) {
        if let Some(id) = claim.requirements.single(labels::CAPACITY_RESERVATION_ID) {
            *promised.entry(id.clone()).or_default() += 1;
        }
    }
    promised
}

/// Says whether a reservation holds a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// It is bought otherwise.
    None,
    /// It takes an instance of one.
    Held,
    /// It would, but no instance is left.
    Over,
}

/// Lets nodes take instances of reservations, those first for which anything else would be dearest; answers how each fared.
pub(super) fn hold(problem: &Problem<'_>, nodes: &mut [InFlightNode]) -> Vec<Hold> {
    let mut holds = vec![Hold::None; nodes.len()];
    let mut wanting: Vec<usize> =
        (0..nodes.len()).filter(|at| nodes[*at].offerings.first().is_some_and(is_held)).collect();
    if wanting.is_empty() {
        return holds;
    }
    let mut left = left(problem);
    wanting.sort_by_key(|at| (Reverse(otherwise(&nodes[*at])), *at));
    for at in wanting {
        let room = |offering: &RankedOffering| left.get(offering.reservation.as_ref()?).filter(|count| **count > 0);
        holds[at] = match nodes[at].offerings.iter().find(|offering| room(offering).is_some()).cloned() {
            Some(offering) => {
                if let Some(count) = offering.reservation.as_ref().and_then(|id| left.get_mut(id)) {
                    *count -= 1;
                }
                name(problem, &mut nodes[at], offering);
                Hold::Held
            }
            None => Hold::Over,
        };
    }
    holds
}

/// Answers a solution in which no reservation gives more instances than it has.
pub(super) fn count(snapshot: &Snapshot, problem: &Problem<'_>, mut solution: Solution) -> Solution {
    let mut holds = hold(problem, &mut solution.nodes);
    // each round uses up one reservation more at least
    while holds.contains(&Hold::Over) {
        let mut of_nodes = holds.iter();
        let (kept, others): (Vec<InFlightNode>, Vec<InFlightNode>) =
            std::mem::take(&mut solution.nodes).into_iter().partition(|_| of_nodes.next() == Some(&Hold::Held));
        solution.nodes = kept;
        let ahead = Ahead::of(snapshot, &solution, &[]);
        let mut problem = ahead.problem();
        // what was refused may have had no room only beside nodes that are not made now
        let refused = std::mem::take(&mut solution.unschedulable);
        // what is wrong with a volume stays wrong, and claims for one pod stay with the pod that they were kept for
        let (hopeless, refused): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|one| one.reasons.iter().any(|why| matches!(why, Refusal::Volume { .. })));
        solution.unschedulable = hopeless;
        let again = others.iter().flat_map(|node| &node.pods).chain(refused.iter().map(|refused| &refused.pod));
        let again: FxHashSet<&PodKey> = again.collect();
        let mut pods = waiting_pods(&problem);
        pods.retain(|pod| again.contains(&pod.key));
        let mut more = share::settled(&mut problem, |problem| place(problem, pods.clone(), &Hosts::All));
        holds = vec![Hold::Held; solution.nodes.len()];
        holds.extend(hold(&problem, &mut more.nodes));
        join(&mut solution, more, &pods);
    }
    solution
}

/// Adds what was planned later to a solution whose nodes were there as planned claims.
fn join(solution: &mut Solution, more: Solution, pods: &[Arc<Pod>]) {
    let shapes: FxHashMap<&PodKey, &Shape> = pods.iter().map(|pod| (&pod.key, &*pod.shape)).collect();
    for placement in more.placements {
        match planned(&placement.target) {
            Some(at) => {
                let node = &mut solution.nodes[at];
                if let Some(shape) = shapes.get(&placement.pod) {
                    node.requests.add(&shape.requests);
                }
                let place = node.pods.partition_point(|pod| *pod < placement.pod);
                node.pods.insert(place, placement.pod);
            }
            None => solution.placements.push(placement),
        }
    }
    solution.nodes.extend(more.nodes);
    solution.unschedulable.extend(more.unschedulable);
    solution.placements.sort_by(|a, b| a.pod.cmp(&b.pod));
    solution.unschedulable.sort_by(|a, b| a.pod.cmp(&b.pod));
    solution.next_look = solution.next_look.into_iter().chain(more.next_look).min();
}

/// Lets nodes take instances of reservations, and buys the others otherwise. Those that cannot be are taken out; their pods are answered.
pub(crate) fn hold_or_forgo(problem: &Problem<'_>, nodes: &mut Vec<InFlightNode>) -> Vec<Unschedulable> {
    let holds = hold(problem, nodes);
    let mut refused = Vec::new();
    let mut bought = Vec::with_capacity(nodes.len());
    for (mut node, hold) in std::mem::take(nodes).into_iter().zip(holds) {
        if hold != Hold::Over {
            bought.push(node);
            continue;
        }
        let misfit = taken(&node);
        if forgo(&mut node) {
            bought.push(node);
            continue;
        }
        let reason = Refusal::Pool { pool: node.pool.clone(), misfit };
        refused.extend(node.pods.into_iter().map(|pod| Unschedulable { pod, reasons: vec![reason.clone()] }));
    }
    *nodes = bought;
    refused
}

/// What became of the offerings of a node: other nodes took them.
fn taken(node: &InFlightNode) -> Misfit {
    let zones: BTreeSet<Arc<str>> = node.offerings.iter().map(|offering| offering.zone.name.clone()).collect();
    let capacity_types = vec![CapacityType::Reserved.as_str().into()];
    let wanted = Places { capacity_types, zones: zones.into_iter().collect() };
    Misfit::NoOffering { types: node.instance_types().len(), wanted }
}

/// Leaves a node what is not reserved; answers whether anything is left.
fn forgo(node: &mut InFlightNode) -> bool {
    let offerings = Arc::make_mut(&mut node.offerings);
    offerings.retain(|offering| offering.capacity_type != CapacityType::Reserved);
    let Some(first) = offerings.first() else { return false };
    node.price = first.price;
    node.requirements.add(Requirement::except(labels::CAPACITY_TYPE, [CapacityType::Reserved.as_str()]));
    true
}

/// The instances that are left, by reservation: what claims have been promised is taken off in the pools' catalogues.
fn left(problem: &Problem<'_>) -> Instances {
    let mut left = Instances::default();
    for (_, offering) in problem.pools.iter().flat_map(|state| state.catalogue.reservations()) {
        if let Some(reservation) = offering.reservation.as_ref().filter(|_| offering.available) {
            left.insert(reservation.id.clone(), reservation.remaining);
        }
    }
    left
}

/// Whether a reservation is known to give an offering. A file of types may call offerings reserved without one: those have no end.
fn is_held(offering: &RankedOffering) -> bool {
    offering.reservation.is_some()
}

/// What a node costs that is bought otherwise; most of all where it cannot be.
fn otherwise(node: &InFlightNode) -> (bool, Option<Price>) {
    let price = node.offerings.iter().find(|offering| !is_held(offering)).map(|offering| offering.price);
    (price.is_none(), price)
}

/// Settles a node on an offering of a reservation. Types stay listed where `minValues` counts them: the reservation's id leaves one.
fn name(problem: &Problem<'_>, node: &mut InFlightNode, offering: RankedOffering) {
    let mut settle = |key: &str, value: &Arc<str>| node.requirements.add(Requirement::only(key, [value.clone()]));
    if problem.snapshot.pool(&node.pool).is_none_or(|pool| pool.min_values.is_empty()) {
        settle(labels::INSTANCE_TYPE, &offering.instance_type);
    }
    settle(labels::ZONE, &offering.zone.name);
    settle(labels::CAPACITY_TYPE, &CapacityType::Reserved.as_str().into());
    offering.reservation.iter().for_each(|id| settle(labels::CAPACITY_RESERVATION_ID, id));
    node.price = offering.price;
    node.offerings = Arc::new(vec![offering]);
}

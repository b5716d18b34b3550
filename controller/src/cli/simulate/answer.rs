//! The answer of a simulation, as programs read it.

use std::collections::BTreeMap;
use std::sync::Arc;

use karp_domain::api::labels;
use karp_domain::catalogue::PriceSource;
use karp_domain::cluster::{Phase, Pod, Snapshot};
use karp_domain::scheduling::{InFlightNode, Solution, Target};
use serde::Serialize;

/// Holds what would be launched, where pods go, and why some have no place. Prices are dollars per hour.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    pub node_claims: Vec<NewNode>,
    pub placements: Vec<Placed>,
    pub unschedulable: Vec<Refused>,
    pub price_per_hour: f64,
    pub solve_seconds: SolveSeconds,
    /// Pods that wait for no new node, by why.
    #[serde(skip)]
    pub aside: BTreeMap<&'static str, usize>,
}

/// A node to launch.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewNode {
    pub node_pool: Arc<str>,
    /// Cheapest first.
    pub instance_types: Vec<Arc<str>>,
    /// Of the cheapest offering, which is the one that is asked for.
    pub capacity_type: Option<String>,
    /// None while it may be any that the pool allows.
    pub zone: Option<Arc<str>>,
    pub price: f64,
    pub pods: Vec<String>,
    /// The price is an estimate; left out when it is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

/// A pod that fits on a node or claim that exists.
#[derive(Debug, Serialize)]
pub struct Placed {
    pub pod: String,
    pub node: Arc<str>,
}

/// A pod without a place.
#[derive(Debug, Serialize)]
pub struct Refused {
    pub pod: String,
    pub reasons: Vec<String>,
}

/// Seconds from API objects to the solution.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SolveSeconds {
    pub min: f64,
    pub median: f64,
}

impl Answer {
    /// Says a solution in words and figures.
    pub fn new(snapshot: &Snapshot, solution: &Solution, solve_seconds: SolveSeconds) -> Self {
        let mut answer = Answer {
            node_claims: solution.nodes.iter().map(|node| NewNode::new(snapshot, node)).collect(),
            placements: Vec::with_capacity(solution.placements.len()),
            unschedulable: Vec::with_capacity(solution.unschedulable.len()),
            price_per_hour: solution.price().dollars(),
            solve_seconds,
            aside: BTreeMap::new(),
        };
        for placement in &solution.placements {
            let (Target::Node(node) | Target::Claim(node)) = &placement.target;
            answer.placements.push(Placed { pod: placement.pod.to_string(), node: node.clone() });
        }
        for refused in &solution.unschedulable {
            let reasons = refused.reasons.iter().map(ToString::to_string).collect();
            answer.unschedulable.push(Refused { pod: refused.pod.to_string(), reasons });
        }
        let without_node = |pod: &&Arc<Pod>| pod.node.is_none() && pod.phase == Phase::Pending;
        for pod in snapshot.pods.iter().filter(without_node).filter(|pod| !pod.is_provisionable()) {
            answer.leave(pod);
        }
        answer
    }

    /// Accounts for a pod that the solver does not place.
    fn leave(&mut self, pod: &Pod) {
        if pod.gated && pod.deletes_at.is_none() {
            let reason = "spec.schedulingGates: nobody may place the pod before its gates are removed";
            self.unschedulable.push(Refused { pod: pod.key.to_string(), reasons: vec![reason.to_owned()] });
        } else {
            let why =
                if pod.deletes_at.is_some() { "being deleted" } else { "belonging to a node (daemons, static pods)" };
            *self.aside.entry(why).or_default() += 1;
        }
    }
}

impl NewNode {
    /// Says a node to launch in words and figures.
    pub fn new(snapshot: &Snapshot, node: &InFlightNode) -> Self {
        NewNode {
            node_pool: node.pool.clone(),
            instance_types: node.instance_types(),
            capacity_type: node.capacity_type().map(|kind| kind.to_string()),
            zone: zone(snapshot, node),
            price: node.price.dollars(),
            pods: node.pods.iter().map(ToString::to_string).collect(),
            estimated: is_estimated(node),
        }
    }
}

/// Says whether the price of a node is an estimate.
pub fn is_estimated(node: &InFlightNode) -> bool {
    node.offerings.first().is_some_and(|offering| offering.source == PriceSource::Estimated)
}

/// The zone of a node whose pods narrowed it: the only one, or of several the one of the cheapest offering, which is where it is
/// expected. None while it may be any that its pool allows.
fn zone(snapshot: &Snapshot, node: &InFlightNode) -> Option<Arc<str>> {
    let expected = node.offerings.first().map(|offering| offering.zone.name.clone());
    let asked = |key: &str| {
        let of_pool = snapshot.pool(&node.pool).and_then(|pool| pool.requirements.get(key));
        node.requirements.get(key).is_some_and(|of_node| of_pool != Some(of_node))
    };
    let narrowed = asked(labels::ZONE) || asked(labels::ZONE_ID);
    let single = node.offerings.iter().all(|offering| Some(&offering.zone.name) == expected.as_ref());
    expected.filter(|_| narrowed || single)
}

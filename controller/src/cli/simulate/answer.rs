//! The answer of a simulation, as programs read it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karp_domain::api::labels;
use karp_domain::catalogue::PriceSource;
use karp_domain::cluster::{Phase, Pod, Snapshot};
use karp_domain::scheduling::{InFlightNode, Launch, Outlook, Purpose, Target};
use serde::Serialize;

use super::kept::{KeptBuffer, KeptPool};
use crate::files::Unready;

/// Holds what would be launched, where pods go, and why some have no place. Prices are dollars per hour.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    pub node_claims: Vec<NewNode>,
    pub placements: Vec<Placed>,
    pub unschedulable: Vec<Refused>,
    pub price_per_hour: f64,
    /// CapacityBuffers; left out when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buffers: Vec<KeptBuffer>,
    /// Pools with `spec.replicas`; left out when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub static_pools: Vec<KeptPool>,
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
    /// None while EC2 may launch it in one of several.
    pub zone: Option<Arc<str>>,
    /// Those that it may be in, by name, when its pods allow several and not all of its pool's; left out otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<Arc<str>>,
    pub price: f64,
    /// Those that exist; virtual ones are counted beside them.
    pub pods: Vec<String>,
    /// What it is launched for when no pod asks for it: `replicas` or `buffers`; left out when pods do.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub purpose: Option<&'static str>,
    /// Virtual pods for which it has room; left out when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub virtual_pods: Vec<OfBuffer>,
    /// The price is an estimate; left out when it is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

/// How many virtual pods of a buffer a node has room for.
#[derive(Debug, Serialize)]
pub struct OfBuffer {
    pub buffer: String,
    pub pods: usize,
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
    /// Says what becomes of a cluster in words and figures, with the buffers that are not ready.
    pub fn new<'u>(
        snapshot: &Snapshot,
        outlook: &Outlook,
        unready: impl Iterator<Item = Unready<'u>>,
        solve_seconds: SolveSeconds,
    ) -> Self {
        let ready = outlook.rooms.iter().map(KeptBuffer::new);
        let mut answer = Answer {
            node_claims: outlook.launches.iter().map(|launch| NewNode::launched(snapshot, launch)).collect(),
            placements: Vec::with_capacity(outlook.placements.len()),
            unschedulable: Vec::with_capacity(outlook.unschedulable.len()),
            price_per_hour: outlook.price().dollars(),
            buffers: ready.chain(unready.map(|one| KeptBuffer::unready(&one))).collect(),
            static_pools: KeptPool::all(snapshot, outlook),
            solve_seconds,
            aside: BTreeMap::new(),
        };
        answer.buffers.sort_by(|a, b| a.buffer.cmp(&b.buffer));
        for placement in &outlook.placements {
            let (Target::Node(node) | Target::Claim(node)) = &placement.target;
            answer.placements.push(Placed { pod: placement.pod.to_string(), node: node.clone() });
        }
        for refused in &outlook.unschedulable {
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
            let why = match pod.deletes_at {
                Some(_) => "being deleted",
                None if pod.is_coming() => "about to be bound",
                None => "belonging to a node (daemons, static pods)",
            };
            *self.aside.entry(why).or_default() += 1;
        }
    }
}

impl NewNode {
    /// Says a node to launch in words and figures.
    pub fn new(snapshot: &Snapshot, node: &InFlightNode) -> Self {
        let (zone, zones) = zones(snapshot, node);
        NewNode {
            node_pool: node.pool.clone(),
            instance_types: node.instance_types(),
            capacity_type: node.capacity_type().map(|kind| kind.to_string()),
            zone,
            zones,
            price: node.price.dollars(),
            pods: node.pods.iter().map(ToString::to_string).collect(),
            purpose: None,
            virtual_pods: Vec::new(),
            estimated: is_estimated(node),
        }
    }

    /// Says a node to launch, and what for, in words and figures.
    fn launched(snapshot: &Snapshot, launch: &Launch) -> Self {
        let purpose = match launch.purpose {
            Purpose::Replicas => Some("replicas"),
            Purpose::Pods => None,
            Purpose::Buffers => Some("buffers"),
        };
        let of_buffers = snapshot.buffers.iter().map(|buffer| OfBuffer {
            buffer: buffer.key.to_string(),
            pods: launch.room.iter().filter(|pod| buffer.owns(pod)).count(),
        });
        let virtual_pods = of_buffers.filter(|of| of.pods > 0).collect();
        NewNode { purpose, virtual_pods, ..NewNode::new(snapshot, &launch.node) }
    }

    /// Answers for how many virtual pods it has room.
    pub fn room(&self) -> usize {
        self.virtual_pods.iter().map(|of| of.pods).sum()
    }
}

/// Says whether the price of a node is an estimate.
pub fn is_estimated(node: &InFlightNode) -> bool {
    node.offerings.first().is_some_and(|offering| offering.source == PriceSource::Estimated)
}

/// The zone of a node, when it can be in one only; else those that its pods leave to it, when they take some of its pool's away.
fn zones(snapshot: &Snapshot, node: &InFlightNode) -> (Option<Arc<str>>, Vec<Arc<str>>) {
    let open: BTreeSet<&Arc<str>> = node.offerings.iter().map(|offering| &offering.zone.name).collect();
    if open.len() == 1 {
        return (open.first().copied().cloned(), Vec::new());
    }
    let asked = |key: &str| {
        let of_pool = snapshot.pool(&node.pool).and_then(|pool| pool.requirements.get(key));
        node.requirements.get(key).is_some_and(|of_node| of_pool != Some(of_node))
    };
    let narrowed = asked(labels::ZONE) || asked(labels::ZONE_ID);
    (None, open.into_iter().filter(|_| narrowed).cloned().collect())
}

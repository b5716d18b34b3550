//! A cluster in which commands are carried out at once: nodes come and go, and pods are bound where the plan saw them.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Command;
use super::candidate::price_of;
use super::stable::Change;
use crate::api::conditions::{Condition, INITIALIZED, LAUNCHED, REGISTERED};
use crate::api::labels;
use crate::catalogue::{Instances, Price, RankedOffering};
use crate::cluster::{Claim, Node, Phase, Pod, PodKey, Readiness, Snapshot};
use crate::resources::Resources;
use crate::scheduling::{InFlightNode, Placement, Target, solve};

/// Pods and the nodes on which they will run.
type Places = FxHashMap<PodKey, Arc<str>>;

/// A cluster as it becomes.
pub(super) struct World {
    pub(super) snapshot: Snapshot,
    /// What karp's nodes cost per hour.
    pub(super) price: Price,
    launched: usize,
}

impl World {
    pub(super) fn new(snapshot: &Snapshot) -> Self {
        World { snapshot: snapshot.clone(), price: price_of(snapshot), launched: 0 }
    }

    /// Gives waiting pods and those of leaving nodes their places, and lets leaving nodes go that hold none; nothing when there is neither.
    /// Answers what was done, and how many pods had to leave a node.
    pub(super) fn provision(&mut self) -> Option<(Change, usize)> {
        let leaving: FxHashSet<Arc<str>> = self.leaving();
        if leaving.is_empty() && !self.snapshot.pods.iter().any(|pod| pod.is_provisionable()) {
            return None;
        }
        let solution = solve(&self.snapshot);
        let mut places = places(&solution.placements);
        self.launch(&solution.nodes, &mut places);
        let moved = |pod: &&Arc<Pod>| {
            pod.node.is_some() && places.contains_key(&pod.key) && !self.snapshot.is_virtual(&pod.key)
        };
        let evictions = self.snapshot.pods.iter().filter(moved).count();
        self.bind(&places);
        let drained = self.drained(&leaving);
        if places.is_empty() && drained.is_empty() {
            return None;
        }
        self.remove(&drained);
        let (pods, removed) = (places.len(), drained.len());
        Some((Change::Provisioned { nodes: solution.nodes, pods, removed }, evictions))
    }

    /// Carries a command out; answers how many pods had to leave their nodes. Pods without a place wait.
    pub(super) fn carry_out(&mut self, command: &Command) -> usize {
        let gone: FxHashSet<Arc<str>> = command.candidates.iter().filter_map(|c| c.node.clone()).collect();
        let mut places = places(&command.placements);
        self.launch(&command.replacements, &mut places);
        let evictions = command.evictions(&self.snapshot);
        for pod in &mut self.snapshot.pods {
            let leaves = pod.is_reschedulable() && pod.node.as_ref().is_some_and(|node| gone.contains(node));
            if leaves && !places.contains_key(&pod.key) {
                *pod = Arc::new(Pod { node: None, phase: Phase::Pending, unschedulable: true, ..Pod::clone(pod) });
            }
        }
        self.bind(&places);
        self.snapshot.claims.retain(|claim| command.candidates.iter().all(|candidate| candidate.claim != claim.name));
        self.remove(&gone);
        evictions
    }

    /// Nodes that are on their way out.
    fn leaving(&self) -> FxHashSet<Arc<str>> {
        let hosts = self.snapshot.hosts().into_iter().filter(|host| host.is_leaving());
        hosts.filter_map(|host| host.node.map(|node| node.name.clone())).collect()
    }

    /// Those of some nodes that hold no pod any more which would have to run elsewhere.
    fn drained(&self, nodes: &FxHashSet<Arc<str>>) -> FxHashSet<Arc<str>> {
        let held = self.snapshot.pods.iter().filter(|pod| pod.is_reschedulable());
        let held: FxHashSet<&Arc<str>> = held.filter_map(|pod| pod.node.as_ref()).collect();
        nodes.iter().filter(|node| !held.contains(node)).cloned().collect()
    }

    /// Takes nodes away with their claims and what is left on them: daemons, static pods and pods that end.
    fn remove(&mut self, gone: &FxHashSet<Arc<str>>) {
        let (old, rest) = self.snapshot.nodes.drain(..).partition(|node: &Arc<Node>| gone.contains(&node.name));
        self.snapshot.nodes = rest;
        let ids: FxHashSet<Arc<str>> =
            Vec::into_iter(old).filter_map(|node: Arc<Node>| node.provider_id.clone()).collect();
        self.snapshot.claims.retain(|claim| claim.provider_id.as_ref().is_none_or(|id| !ids.contains(id)));
        self.snapshot.pods.retain(|pod| pod.node.as_ref().is_none_or(|node| !gone.contains(node)));
        self.price = price_of(&self.snapshot);
    }

    /// Lets nodes join, each of the offering that is expected to be launched, and notes that their pods will be there.
    fn launch(&mut self, nodes: &[InFlightNode], places: &mut Places) {
        let mut taken = Instances::default();
        for node in nodes {
            let Some(offering) = node.offerings.first() else { continue };
            if let Some(id) = &offering.reservation {
                *taken.entry(id.clone()).or_default() += 1;
            }
            let name = self.free_name(&node.pool);
            let (node_object, claim) = joined(&self.snapshot, node, offering, &name);
            self.snapshot.nodes.push(Arc::new(node_object));
            self.snapshot.claims.push(Arc::new(claim));
            places.extend(node.pods.iter().map(|pod| (pod.clone(), name.clone())));
        }
        self.snapshot.catalogues.take(&taken);
    }

    /// A name that no node or claim has.
    fn free_name(&mut self, pool: &str) -> Arc<str> {
        loop {
            self.launched += 1;
            let name: Arc<str> = format!("{pool}-new-{}", self.launched).into();
            let taken = self.snapshot.nodes.iter().any(|node| node.name == name)
                || self.snapshot.claims.iter().any(|claim| claim.name == name);
            if !taken {
                return name;
            }
        }
    }

    fn bind(&mut self, places: &Places) {
        let now = self.snapshot.now;
        for pod in &mut self.snapshot.pods {
            if let Some(node) = places.get(&pod.key) {
                *pod = Arc::new(Pod {
                    node: Some(node.clone()),
                    nominated: None,
                    phase: Phase::Running,
                    started: Some(now),
                    unschedulable: false,
                    ready: true,
                    ..Pod::clone(pod)
                });
            }
        }
        let receiving: FxHashSet<&Arc<str>> = places.values().collect();
        let of_node = self.snapshot.nodes.iter().filter(|node| receiving.contains(&node.name));
        let ids: FxHashSet<&Arc<str>> = of_node.filter_map(|node| node.provider_id.as_ref()).collect();
        for claim in &mut self.snapshot.claims {
            if claim.provider_id.as_ref().is_some_and(|id| ids.contains(id)) {
                *claim = Arc::new(Claim { last_pod_event: Some(now), ..Claim::clone(claim) });
            }
        }
    }
}

/// Where pods go that fit on nodes that are there. Those planned on claims wait for them.
fn places(placements: &[Placement]) -> Places {
    let on_node = placements.iter().filter_map(|placement| match &placement.target {
        Target::Node(node) => Some((placement.pod.clone(), node.clone())),
        Target::Claim(_) => None,
    });
    on_node.collect()
}

/// The node and claim of a launch that went well.
fn joined(snapshot: &Snapshot, node: &InFlightNode, offering: &RankedOffering, name: &Arc<str>) -> (Node, Claim) {
    let now = snapshot.now;
    let mut all = node.claim_labels();
    all.extend(node.requirements.settled_labels());
    let (mut capacity, mut allocatable) = (Resources::new(), Resources::new());
    let catalogue = snapshot.catalogues.of(&node.class.name, Some(&node.pool));
    if let Some(t) = catalogue.and_then(|catalogue| catalogue.get(&offering.instance_type)) {
        let settled = t.labels.iter().filter(|(_, values)| values.len() == 1);
        all.extend(settled.map(|(key, values)| (key.to_string(), values[0].to_string())));
        (capacity, allocatable) = (t.capacity.clone(), t.allocatable());
    }
    let own = [
        (labels::INSTANCE_TYPE, &*offering.instance_type),
        (labels::ZONE, &*offering.zone.name),
        (labels::ZONE_ID, &*offering.zone.id),
        (labels::CAPACITY_TYPE, offering.capacity_type.as_str()),
    ];
    all.extend(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let reservation =
        offering.reservation.iter().map(|id| (labels::CAPACITY_RESERVATION_ID.to_owned(), id.to_string()));
    all.extend(reservation);
    let id: Option<Arc<str>> = Some(format!("aws:///{}/{name}", offering.zone.name).into());
    let claim = Claim {
        labels: all.clone(),
        provider_id: id.clone(),
        node_name: Some(name.clone()),
        capacity: capacity.clone(),
        allocatable: allocatable.clone(),
        conditions: [LAUNCHED, REGISTERED, INITIALIZED].map(|kind| Condition::met(kind, now)).to_vec(),
        ..node.claim(name.clone(), now)
    };
    let state = [(labels::REGISTERED, "true"), (labels::INITIALIZED, "true"), (labels::HOSTNAME, &**name)];
    all.extend(state.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let node = Node {
        name: name.clone(),
        uid: name.clone(),
        labels: all,
        annotations: node.annotations.clone(),
        taints: node.taints.clone(),
        provider_id: id,
        capacity,
        allocatable,
        ready: Readiness::Ready,
        ailment: None,
        unschedulable: false,
        created: Some(now),
        deleting: None,
    };
    (node, claim)
}

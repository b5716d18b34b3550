//! What the last solution said, as long as it is carried out: pods are nominated by it, and nodes that leave wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{InFlightNode, Placement, Solution, Target, Unschedulable};
use crate::cluster::{Claim, Node, PodKey, Snapshot};

/// Says which pods the last solution put on claims that open, until a later one knows better.
#[derive(Clone, Debug, Default)]
pub struct LastPlan {
    /// Pods by the claim that they are planned for.
    claims: BTreeMap<Arc<str>, BTreeSet<PodKey>>,
    /// Nodes that were leaving, so that their pods count as planned for.
    leaving: BTreeSet<Arc<str>>,
    /// Pods for which it found no place, or whose claim could not be made.
    refused: BTreeSet<PodKey>,
}

/// Says what is told of a pod that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told<'s> {
    /// It goes to this claim, whose node opens.
    Claim(&'s Arc<str>),
    /// It goes to this node.
    Node(&'s Arc<str>),
    /// Nothing can hold it.
    Nowhere(&'s Unschedulable),
}

impl LastPlan {
    /// Begins with what a solution puts on claims that are there: not on nodes that are open already, to which no pod is nominated.
    pub fn begin(snapshot: &Snapshot, solution: &Solution) -> Self {
        let leaving = snapshot.hosts().into_iter().filter(|host| host.is_leaving()).map(|host| host.name().into());
        let refused = solution.unschedulable.iter().map(|refused| refused.pod.clone()).collect();
        let mut plan = LastPlan { claims: BTreeMap::new(), leaving: leaving.collect(), refused };
        let by_id: FxHashMap<&str, &Claim> =
            snapshot.claims.iter().filter_map(|claim| Some((claim.provider_id.as_deref()?, &**claim))).collect();
        let of_node = |node: &Node| by_id.get(node.provider_id.as_deref()?).copied();
        let opening: FxHashMap<&str, &Claim> = snapshot
            .nodes
            .iter()
            .filter_map(|node| Some((&*node.name, of_node(node).filter(|claim| !claim.is_initialized())?)))
            .collect();
        for Placement { pod, target } in &solution.placements {
            let claim = match target {
                Target::Claim(name) => Some(name),
                Target::Node(name) => opening.get(&**name).map(|claim| &claim.name),
            };
            if let Some(claim) = claim {
                plan.claims.entry(claim.clone()).or_default().insert(pod.clone());
            }
        }
        plan
    }

    /// Notes the claim that was made for a planned node.
    pub fn made(&mut self, claim: Arc<str>, node: &InFlightNode) {
        self.claims.insert(claim, node.pods.iter().cloned().collect());
    }

    /// Ends with the planned nodes of a solution for which no claim was made: their pods have no place. Answers whether there are any.
    pub fn end(&mut self, solution: &Solution) -> bool {
        let planned: BTreeSet<&PodKey> = self.claims.values().flatten().collect();
        let homeless = solution.nodes.iter().flat_map(|node| &node.pods).filter(|pod| !planned.contains(*pod));
        let homeless: Vec<PodKey> = homeless.cloned().collect();
        let any = !homeless.is_empty();
        self.refused.extend(homeless);
        any
    }

    /// Answers what is told of each pod when the plan has ended: where it goes, or why nowhere. Nothing of one whose claim could not be made: the next
    /// plan knows.
    pub fn told<'s>(&'s self, solution: &'s Solution) -> Vec<(&'s PodKey, Told<'s>)> {
        let opening: BTreeSet<&PodKey> = self.planned().collect();
        let claims = self.claims().flat_map(|(claim, pods)| pods.iter().map(move |pod| (pod, Told::Claim(claim))));
        let nodes = solution.placements.iter().filter_map(|Placement { pod, target }| match target {
            Target::Node(node) if !opening.contains(pod) => Some((pod, Told::Node(node))),
            Target::Node(_) | Target::Claim(_) => None,
        });
        let nowhere = solution.unschedulable.iter().map(|refused| (&refused.pod, Told::Nowhere(refused)));
        claims.chain(nodes).chain(nowhere).collect()
    }

    /// Answers the pods of every claim, in the order of claims.
    pub fn claims(&self) -> impl Iterator<Item = (&Arc<str>, &BTreeSet<PodKey>)> {
        self.claims.iter()
    }

    /// Answers the pods that a claim is for.
    pub fn of_claim(&self, claim: &str) -> impl Iterator<Item = &PodKey> {
        self.claims.get(claim).into_iter().flatten()
    }

    /// Answers the pods of all claims.
    pub fn planned(&self) -> impl Iterator<Item = &PodKey> {
        self.claims.values().flatten()
    }

    /// Answers the claims that the pods of a node go to, if the plan was made without the node, has a place for each of them, and the claims are
    /// ready: one that is not there is not seen yet, or came to nothing, and the next plan has another.
    pub fn home<'p>(
        &self,
        node: &str,
        pods: impl IntoIterator<Item = &'p PodKey>,
        is_ready: impl Fn(&str) -> bool,
    ) -> Option<Vec<Arc<str>>> {
        let pods: BTreeSet<&PodKey> = pods.into_iter().collect();
        let has_places = self.leaving.contains(node) && !pods.iter().any(|pod| self.refused.contains(*pod));
        let of_them = |planned: &BTreeSet<PodKey>| planned.iter().any(|pod| pods.contains(pod));
        let home: Vec<Arc<str>> =
            self.claims.iter().filter(|(_, planned)| of_them(planned)).map(|(claim, _)| claim.clone()).collect();
        (has_places && home.iter().all(|claim| is_ready(claim))).then_some(home)
    }
}

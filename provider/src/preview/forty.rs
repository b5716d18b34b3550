//! A cluster of forty nodes to preview changes on, read by the types that production reads it by.

pub mod edits;
mod objects;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool};
use karp_domain::cluster::{Node, Pod, PodBudget, Pool};
use serde_json::Value as Json;

use super::selection::Selection;
use super::*;
pub use objects::{NODES, read};

/// Answers a Saturday, outside of the window in which nothing may drift.
pub fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().expect("a time")
}

/// Answers the pool that made the nodes, with a change.
pub fn pool(change: impl Fn(&mut Json)) -> NodePool {
    let mut pool = objects::pool();
    change(&mut pool);
    read(pool)
}

/// Answers the class that made the nodes, with a change.
pub fn class(change: impl Fn(&mut Json)) -> Ec2NodeClass {
    let mut class = objects::class();
    change(&mut class);
    read(class)
}

/// The cluster as the API server tells of it.
pub struct Cluster {
    pub claims: Vec<NodeClaim>,
    pub around: Surroundings,
}

impl Cluster {
    /// Makes a cluster of so many nodes with so many pods each; forty are the sandbox.
    pub fn of(nodes: usize, pods: usize) -> Self {
        let stamps = objects::stamps();
        let budget =
            |object| Arc::new(PodBudget::from_kube(&read::<policy::PodDisruptionBudget>(object)).expect("readable"));
        let joined = || (0..nodes).filter(|at| objects::joined(*at));
        let around = Surroundings {
            nodes: joined()
                .map(|at| Node::from_kube(&read::<core::Node>(objects::node(at))).expect("readable"))
                .collect(),
            pods: joined().flat_map(|at| objects::pods_of(at, pods)).map(read_pod).collect(),
            budgets: objects::budgets().map(budget).into(),
        };
        Self { claims: (0..nodes).map(|at| read(objects::claim(at, &stamps))).collect(), around }
    }

    /// Previews a change of the pool.
    pub fn preview(&self, after: &NodePool) -> Preview {
        let before = pool(|_| {});
        let read = |pool: &NodePool| Pool::from_kube(pool).expect("readable");
        let mut impact = impact(&before, after, &read(after), &self.claims, now());
        block(&mut impact, &self.around, now());
        let offer_of = |pool: &NodePool| offer(&read(pool).requirements);
        Preview {
            before: Some(offer_of(&before)),
            after: offer_of(after),
            impact: Some(impact),
            unseen: None,
            is_static: after.spec.replicas.is_some(),
        }
    }

    /// Previews a change of the class.
    pub fn preview_class(&self, after: &Ec2NodeClass) -> ClassPreview {
        self.preview_selection(after, &Selection::default())
    }

    /// Previews a change of the class, with what its selectors find.
    pub fn preview_selection(&self, after: &Ec2NodeClass, selection: &Selection) -> ClassPreview {
        let pools = [Pool::from_kube(&pool(|_| {})).expect("readable")];
        let mut seen = ClassPreview::of([&class(|_| {}), after], selection, &pools, &self.claims, now());
        block(&mut seen.impact, &self.around, now());
        seen
    }
}

/// Makes a pod on a node.
pub fn pod(at: usize, namespace: &str, name: &str, app: &str, owner: &str, annotations: &Json) -> Pod {
    read_pod(objects::pod(at, namespace, name, app, owner, annotations))
}

fn read_pod(pod: Json) -> Pod {
    Pod::from_kube(&read::<core::Pod>(pod)).expect("readable")
}

//! Shapes and labels that were read: pods made of one template share theirs, which are neither read nor kept again.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHasher};
use smallvec::SmallVec;

use super::shape::NAME_FIELD;
use super::{Shape, UnreadableField, Whose};

/// What is kept under one hash; pods of further templates do not share, so that no input makes each look a long one.
const MOST_UNDER_ONE_HASH: usize = 8;
/// What is kept before that is looked for which no pod has any more.
const FIRST_SWEEP: usize = 1_024;

/// Holds what a pod's shape is read from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) spec: &'a core::PodSpec,
    pub(super) whose: Whose<'a>,
    /// A DaemonSet made the pod.
    pub(super) of_daemon: bool,
}

/// Holds a shape with its hash.
#[derive(Clone, Debug)]
pub(super) struct ReadShape {
    pub(super) shape: Arc<Shape>,
    pub(super) digest: u64,
}

/// Holds the labels of pods, with their hash.
#[derive(Clone, Debug)]
pub(super) struct ReadLabels {
    pub(super) labels: Arc<BTreeMap<String, String>>,
    pub(super) digest: u64,
}

/// Remembers the shapes and labels of templates as long as pods have them. Pods that are read with it are equal to those read without.
#[derive(Debug, Default)]
pub struct Shapes {
    templates: RwLock<Known<Template>>,
    labels: RwLock<Known<Arc<BTreeMap<String, String>>>>,
}

/// What several pods may have in common.
trait Common {
    /// Says whether a pod still has it.
    fn has_pods(&self) -> bool;
}

/// What is known, by hash.
#[derive(Debug)]
struct Known<T> {
    by_hash: FxHashMap<u64, SmallVec<[T; 1]>>,
    count: usize,
    sweep_at: usize,
}

/// All that decided a shape, and the shape.
#[derive(Debug)]
struct Template {
    spec: core::PodSpec,
    /// Only where pods are selected, which may be by the pod's own.
    namespace: Option<Box<str>>,
    /// Those that selectors are completed with.
    labels: BTreeMap<String, String>,
    of_daemon: bool,
    known: ReadShape,
}

impl From<Shape> for ReadShape {
    fn from(shape: Shape) -> Self {
        let digest = FxBuildHasher.hash_one(&shape);
        ReadShape { shape: Arc::new(shape), digest }
    }
}

impl From<BTreeMap<String, String>> for ReadLabels {
    fn from(labels: BTreeMap<String, String>) -> Self {
        ReadLabels { digest: FxBuildHasher.hash_one(&labels), labels: Arc::new(labels) }
    }
}

impl Shapes {
    /// Answers the shape of a template, which is read if it is new.
    pub(super) fn of(&self, source: Source<'_>) -> Result<ReadShape, UnreadableField> {
        let hash = source.hash();
        let made = |template: &Template| template.made(source);
        let known = |all: &Known<Template>| all.find(hash, made).map(|template| template.known.clone());
        if let Some(known) = known(&self.templates.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(known);
        }
        let read = source.read()?;
        let mut all = self.templates.write().unwrap_or_else(PoisonError::into_inner);
        // another thread may have been faster
        if let Some(known) = known(&all) {
            return Ok(known);
        }
        all.keep(hash, || Template::new(source, read.clone()));
        Ok(read)
    }

    /// Answers labels, those of another pod if they are equal.
    pub(super) fn labels(&self, own: &BTreeMap<String, String>) -> ReadLabels {
        let digest = FxBuildHasher.hash_one(own);
        let known = |all: &Known<Arc<_>>| all.find(digest, |labels| **labels == *own).cloned();
        if let Some(labels) = known(&self.labels.read().unwrap_or_else(PoisonError::into_inner)) {
            return ReadLabels { labels, digest };
        }
        let mut all = self.labels.write().unwrap_or_else(PoisonError::into_inner);
        let labels = known(&all).unwrap_or_else(|| {
            let labels = Arc::new(own.clone());
            all.keep(digest, || labels.clone());
            labels
        });
        ReadLabels { labels, digest }
    }
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Known { by_hash: FxHashMap::default(), count: 0, sweep_at: FIRST_SWEEP }
    }
}

impl<T: Common> Known<T> {
    fn find(&self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<&T> {
        self.by_hash.get(&hash)?.iter().find(|one| is_it(one))
    }

    /// Keeps what is new, if there is room for it.
    fn keep(&mut self, hash: u64, new: impl FnOnce() -> T) {
        if self.count >= self.sweep_at {
            self.sweep();
        }
        let bucket = self.by_hash.entry(hash).or_default();
        if bucket.len() == MOST_UNDER_ONE_HASH {
            bucket.retain(|one| one.has_pods());
            self.count -= MOST_UNDER_ONE_HASH - bucket.len();
        }
        if bucket.len() < MOST_UNDER_ONE_HASH {
            bucket.push(new());
            self.count += 1;
        }
    }

    /// Forgets that whose pods are gone; the next time is when there is twice as much as is left.
    fn sweep(&mut self) {
        self.by_hash.retain(|_, bucket| {
            bucket.retain(|one| one.has_pods());
            !bucket.is_empty()
        });
        self.count = self.by_hash.values().map(SmallVec::len).sum();
        self.sweep_at = FIRST_SWEEP.max(self.count * 2);
    }
}

impl Common for Template {
    fn has_pods(&self) -> bool {
        Arc::strong_count(&self.known.shape) > 1
    }
}

impl Common for Arc<BTreeMap<String, String>> {
    fn has_pods(&self) -> bool {
        Arc::strong_count(self) > 1
    }
}

impl Template {
    fn new(source: Source<'_>, known: ReadShape) -> Self {
        let Source { spec, whose, of_daemon } = source;
        let bare = bare(spec);
        debug_assert_eq!(
            Ok(&known.shape),
            Source { spec: &bare, ..source }.read().as_ref().map(|read| &read.shape),
            "a field that decides a shape is missing from those that are compared"
        );
        let own = completing(spec).filter_map(|key| whose.labels.get_key_value(key));
        Template {
            spec: bare,
            namespace: selects_pods(spec).then(|| whose.namespace.into()),
            labels: own.map(|(key, value)| (key.clone(), value.clone())).collect(),
            of_daemon,
            known,
        }
    }

    /// Says whether the shape is what would be read.
    fn made(&self, source: Source<'_>) -> bool {
        let Source { spec, whose, of_daemon } = source;
        self.of_daemon == of_daemon
            && is_same(&self.spec, spec)
            && self.namespace.as_deref().is_none_or(|namespace| namespace == whose.namespace)
            && completing(spec).all(|key| self.labels.get(key) == whose.labels.get(key))
    }
}

impl Source<'_> {
    /// Reads the shape.
    pub(super) fn read(self) -> Result<ReadShape, UnreadableField> {
        let mut shape = Shape::from_pod_spec(self.spec, self.whose)?;
        if self.of_daemon {
            // its controller names its node; pods of one daemon set stay alike
            shape.alternatives.iter_mut().for_each(|wanted| drop(wanted.remove(NAME_FIELD)));
        }
        Ok(shape.into())
    }

    /// A hash of what mostly tells templates apart.
    fn hash(self) -> u64 {
        let Source { spec, whose, of_daemon } = self;
        let mut state = FxHasher::default();
        of_daemon.hash(&mut state);
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            hash_resources(container.resources.as_ref(), &mut state);
            container.restart_policy.hash(&mut state);
            container.ports.iter().flatten().for_each(|port| port.host_port.hash(&mut state));
        }
        hash_resources(spec.resources.as_ref(), &mut state);
        for (name, amount) in spec.overhead.iter().flatten() {
            (name, &amount.0).hash(&mut state);
        }
        spec.node_selector.hash(&mut state);
        for toleration in spec.tolerations.iter().flatten() {
            (&toleration.key, &toleration.value).hash(&mut state);
        }
        for spread in spec.topology_spread_constraints.iter().flatten() {
            (&spread.topology_key, spread.max_skew).hash(&mut state);
            hash_selector(spread.label_selector.as_ref(), &mut state);
        }
        for term in node_terms(spec) {
            for wanted in term.match_expressions.iter().flatten() {
                (&wanted.key, &wanted.operator, &wanted.values).hash(&mut state);
            }
        }
        for term in pod_terms(spec) {
            term.topology_key.hash(&mut state);
            hash_selector(term.label_selector.as_ref(), &mut state);
        }
        if selects_pods(spec) {
            whose.namespace.hash(&mut state);
        }
        completing(spec).for_each(|key| whose.labels.get(key).hash(&mut state));
        state.finish()
    }
}

fn hash_resources(resources: Option<&core::ResourceRequirements>, state: &mut FxHasher) {
    let lists = resources.into_iter().flat_map(|all| [&all.requests, &all.limits]);
    for (name, amount) in lists.flatten().flatten() {
        (name, &amount.0).hash(state);
    }
}

fn hash_selector(selector: Option<&LabelSelector>, state: &mut FxHasher) {
    selector.and_then(|selector| selector.match_labels.as_ref()).hash(state);
}

fn node_terms(spec: &core::PodSpec) -> impl Iterator<Item = &core::NodeSelectorTerm> {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|all| all.required_during_scheduling_ignored_during_execution.as_ref());
    let preferred = affinity.and_then(|all| all.preferred_during_scheduling_ignored_during_execution.as_ref());
    let required = required.into_iter().flat_map(|selector| &selector.node_selector_terms);
    required.chain(preferred.into_iter().flatten().map(|term| &term.preference))
}

fn pod_terms(spec: &core::PodSpec) -> impl Iterator<Item = &core::PodAffinityTerm> {
    let near = spec.affinity.as_ref().and_then(|affinity| affinity.pod_affinity.as_ref());
    let apart = spec.affinity.as_ref().and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let near = near.map(|all| {
        let must = &all.required_during_scheduling_ignored_during_execution;
        (must, &all.preferred_during_scheduling_ignored_during_execution)
    });
    let apart = apart.map(|all| {
        let must = &all.required_during_scheduling_ignored_during_execution;
        (must, &all.preferred_during_scheduling_ignored_during_execution)
    });
    near.into_iter().chain(apart).flat_map(|(must, wish)| {
        must.iter().flatten().chain(wish.iter().flatten().map(|weighted| &weighted.pod_affinity_term))
    })
}

/// Terms that name no namespace mean the pod's own.
fn selects_pods(spec: &core::PodSpec) -> bool {
    pod_terms(spec).next().is_some()
}

/// The keys of the pod's own labels with which selectors are completed.
fn completing(spec: &core::PodSpec) -> impl Iterator<Item = &String> {
    let spreads = spec.topology_spread_constraints.iter().flatten();
    let terms = pod_terms(spec).flat_map(|term| [&term.match_label_keys, &term.mismatch_label_keys]);
    spreads.map(|spread| &spread.match_label_keys).chain(terms).flatten().flatten()
}

/// The fields of a spec from which a shape is read.
fn bare(spec: &core::PodSpec) -> core::PodSpec {
    core::PodSpec {
        containers: spec.containers.iter().map(bare_container).collect(),
        init_containers: spec.init_containers.as_ref().map(|all| all.iter().map(bare_container).collect()),
        node_selector: spec.node_selector.clone(),
        affinity: spec.affinity.clone(),
        tolerations: spec.tolerations.clone(),
        topology_spread_constraints: spec.topology_spread_constraints.clone(),
        overhead: spec.overhead.clone(),
        resources: spec.resources.clone(),
        resource_claims: spec.resource_claims.clone(),
        host_network: spec.host_network,
        ..core::PodSpec::default()
    }
}

fn bare_container(container: &core::Container) -> core::Container {
    core::Container {
        resources: container.resources.clone(),
        ports: container.ports.clone(),
        restart_policy: container.restart_policy.clone(),
        ..core::Container::default()
    }
}

/// Says whether the fields of [`bare`] are equal.
fn is_same(one: &core::PodSpec, other: &core::PodSpec) -> bool {
    are_same(&one.containers, &other.containers)
        && match (&one.init_containers, &other.init_containers) {
            (Some(one), Some(other)) => are_same(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
        && one.node_selector == other.node_selector
        && one.affinity == other.affinity
        && one.tolerations == other.tolerations
        && one.topology_spread_constraints == other.topology_spread_constraints
        && one.overhead == other.overhead
        && one.resources == other.resources
        && one.resource_claims == other.resource_claims
        && one.host_network == other.host_network
}

fn are_same(some: &[core::Container], others: &[core::Container]) -> bool {
    let same = |one: &core::Container, other: &core::Container| {
        one.resources == other.resources && one.ports == other.ports && one.restart_policy == other.restart_policy
    };
    some.len() == others.len() && some.iter().zip(others).all(|(one, other)| same(one, other))
}

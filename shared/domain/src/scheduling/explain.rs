//! How the instance types of each pool dwindle for a pod, step by step. Says what `solve` decided in figures; decides nothing itself.

use std::sync::Arc;

use serde::Serialize;

use super::amounts::whole;
use super::problem::{PoolState, Problem, Way, bears, way};
use super::queue::{beside_daemon, repelling, taken_ports};
use super::wants::{Wants, steps};
use super::{Hosts, Misfit, Solution};
use crate::api::labels;
use crate::catalogue::{Market, TypeSet};
use crate::cluster::{HostPort, Pod, PodKey, Snapshot};
use crate::quantity::Quantity;
use crate::requirement::{Requirement, Requirements, Torn};

/// Says how far a pod gets in a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolExplanation {
    /// The pool.
    pub pool: Arc<str>,
    /// What keeps the pod away before any type is looked at.
    pub barred: Option<Misfit>,
    /// Types in the catalogue of the pool's node class.
    pub types: usize,
    /// What takes types away, in order; steps that take none are left out.
    pub steps: Vec<Step>,
    /// Types that remain.
    pub left: usize,
}

/// One reason for which types are taken away.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The reason.
    pub asked: Asked,
    /// The types that it takes away, in order.
    pub removed: Vec<Arc<str>>,
    /// How many remain.
    pub left: usize,
}

/// Says who asks what.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Asked {
    /// A requirement of the pool.
    ByPool {
        /// The requirement.
        requirement: String,
    },
    /// A requirement of the pod: its node selector or node affinity.
    ByPod {
        /// The requirement.
        requirement: String,
    },
    /// An offering that can be had in the zones and by the capacity types that the pool allows.
    OfferingInPool,
    /// The same, in the zones and by the capacity types that the pod allows too.
    OfferingForPod,
    /// The same, where the pod's volumes can be reached.
    OfferingForVolumes,
    /// Room for the pod beside the daemons.
    Room {
        /// The resource.
        resource: String,
        /// What the pod asks for.
        wanted: Quantity,
        /// The most that one of the types before this step has.
        largest: Quantity,
    },
    /// No daemon with the pod's host port.
    HostPort {
        /// The daemon's port.
        port: HostPort,
    },
    /// No pod of a daemon set that the pod must not be near, or that must not be near it.
    NoDaemon {
        /// The daemon set.
        daemon: PodKey,
        /// The rule, described.
        rule: String,
    },
    /// Volumes of the pod attached.
    Volumes {
        /// CSI driver.
        driver: Arc<str>,
        /// How many the pod has.
        wanted: u32,
        /// The most that one of the types before this step attaches.
        most: u32,
    },
    /// Room under a limit of the pool, beside its nodes that exist.
    Limit {
        /// The resource.
        resource: String,
        /// The limit.
        limit: Quantity,
        /// What the pool's nodes have.
        used: Quantity,
    },
}

/// Answers how each pool's types dwindle for a pod, pools in the order in which they are tried, then those that may not grow. Of
/// several terms of node affinity the one that leaves most types is shown. What `planned` launches counts towards limits when it leaves the pod out.
pub fn explain(snapshot: &Snapshot, pod: &Pod, planned: &Solution) -> Vec<PoolExplanation> {
    let mut problem = Problem::new(snapshot);
    if planned.unschedulable.iter().any(|refused| refused.pod == pod.key) {
        problem.book(planned);
    }
    let mut all: Vec<_> = problem.pools.iter().map(|state| of_pool(&problem, state, pod)).collect();
    let barred = |(pool, misfit): &(Arc<str>, Misfit)| PoolExplanation {
        pool: pool.clone(),
        barred: Some(misfit.clone()),
        types: 0,
        steps: Vec::new(),
        left: 0,
    };
    all.extend(problem.closed.iter().map(barred));
    all
}

fn of_pool(problem: &Problem<'_>, state: &PoolState, pod: &Pod) -> PoolExplanation {
    let places = problem.places(pod, &Hosts::All).unwrap_or_default();
    let barred = bears(&pod.shape, &state.pool.taints).err().map(|taint| Misfit::Taint { taint });
    let (class, policy) = (problem.terms.class_of(pod), problem.snapshot.settings.preferences);
    let wants = steps(&problem.terms, &pod.shape, &pod.key.namespace, class, policy, problem.discouraged).pop();
    let ways = pod.shape.alternatives.iter().map(|wanted| {
        let mut sieve = Sieve { state, steps: Vec::new(), types: state.catalogue.all(), market: state.market };
        sieve.pool();
        if barred.is_none() {
            sieve.labels(wanted, &pod.shape.torn);
            sieve.places(wanted, &places);
            sieve.room(pod);
            sieve.volumes(problem, pod);
            sieve.ports(pod, wanted);
            wants.iter().for_each(|wants| sieve.daemons(problem, wants, wanted));
            sieve.limits();
        }
        (sieve.types.count_ones(..), sieve.steps)
    });
    // the first of equals
    let best = ways.reduce(|best, way| if way.0 > best.0 { way } else { best });
    let (left, steps) = best.unwrap_or_default();
    PoolExplanation { pool: state.pool.name.clone(), barred, types: state.catalogue.types().len(), steps, left }
}

struct Sieve<'a> {
    state: &'a PoolState,
    steps: Vec<Step>,
    types: TypeSet,
    /// Where the pod's labels let it be.
    market: Market,
}

impl Sieve<'_> {
    fn keep(&mut self, asked: Asked, keep: &TypeSet) {
        let removed: Vec<Arc<str>> =
            self.types.difference(keep).map(|at| self.state.catalogue.types()[at].name.clone()).collect();
        if !removed.is_empty() {
            self.types.intersect_with(keep);
            self.steps.push(Step { asked, removed, left: self.types.count_ones(..) });
        }
    }

    fn keep_if(&mut self, asked: Asked, keep: impl Fn(usize) -> bool) {
        let mut kept = self.types.clone();
        self.types.ones().filter(|at| !keep(*at)).for_each(|at| kept.remove(at));
        self.keep(asked, &kept);
    }

    fn pool(&mut self) {
        let state = self.state;
        for requirement in state.pool.requirements.iter().filter(|r| is_of_types(state, r)) {
            let matching = state.catalogue.matching(requirement);
            self.keep(Asked::ByPool { requirement: words(requirement, &state.pool.torn) }, &matching);
        }
        let offered = state.catalogue.offered(state.market);
        self.keep(Asked::OfferingInPool, &offered);
    }

    fn labels(&mut self, wanted: &Requirements, torn: &Torn) {
        let state = self.state;
        for requirement in wanted.iter() {
            let key = requirement.key();
            let offered = state.pool.requirements.get(key);
            let conflict = offered.is_some_and(|offered| !offered.meets(requirement));
            let defined = state.catalogue.defines(key) && !requirement.is_impossible();
            let undefined = offered.is_none() && !defined && !requirement.admits_absence();
            let asked = || Asked::ByPod { requirement: words(requirement, torn) };
            if conflict || undefined {
                self.keep(asked(), &TypeSet::new());
            } else if is_of_types(state, requirement) {
                let matching = state.catalogue.matching(requirement);
                self.keep(asked(), &matching);
            }
        }
        self.market = state.market.and(state.catalogue.market(wanted));
        self.keep(Asked::OfferingForPod, &state.catalogue.offered(self.market));
    }

    /// Where the pod's volumes are; anywhere when none says.
    fn places(&mut self, wanted: &Requirements, places: &[Requirements]) {
        let state = self.state;
        let mut offered = TypeSet::with_capacity(state.catalogue.types().len());
        for place in places {
            let market = state.catalogue.market(&wanted.and(place));
            offered.union_with(&state.catalogue.offered(state.market.and(market)));
        }
        if !places.is_empty() {
            self.keep(Asked::OfferingForVolumes, &offered);
        }
    }

    fn room(&mut self, pod: &Pod) {
        let (state, market) = (self.state, self.market);
        let room = |at: usize, resource: &str| {
            let all = state.catalogue.types()[at].allocatable().get(resource);
            let beside = state.rooms.each(at, market).into_iter().map(|room| all - room.daemons.get(resource));
            beside.max().unwrap_or_default()
        };
        for (resource, wanted) in pod.shape.requests.iter() {
            let largest = self.types.ones().map(|at| room(at, resource)).max().unwrap_or_default();
            let asked = Asked::Room { resource: resource.to_owned(), wanted, largest };
            self.keep_if(asked, |at| wanted <= room(at, resource));
        }
    }

    fn volumes(&mut self, problem: &Problem<'_>, pod: &Pod) {
        let (state, market) = (self.state, self.market);
        for (at, driver, wanted) in problem.dims.volumes(&problem.demand(pod)) {
            let attaches = |t: usize| whole(state.rooms.free(t, market)[at]);
            let most = self.types.ones().filter_map(attaches).max().unwrap_or_default();
            let asked = Asked::Volumes { driver: driver.into(), wanted, most };
            self.keep_if(asked, |t| attaches(t).is_none_or(|most| wanted <= most));
        }
    }

    fn ports(&mut self, pod: &Pod, wanted: &Requirements) {
        let state = self.state;
        let Some(mut way) = self.way(wanted) else { return };
        for (port, on) in taken_ports(state, &pod.shape) {
            beside_daemon(state, &mut way, on);
            self.keep(Asked::HostPort { port: port.clone() }, &way.types);
        }
        self.market = way.market;
    }

    /// How what is left fits the pod's labels.
    fn way(&self, wanted: &Requirements) -> Option<Way> {
        let state = self.state;
        way(&state.pool.requirements, &state.catalogue, &self.types, self.market, wanted, 0).ok()
    }

    fn daemons(&mut self, problem: &Problem<'_>, wants: &Wants, wanted: &Requirements) {
        let state = self.state;
        let Some(mut way) = self.way(wanted) else { return };
        for (rule, daemon, on) in repelling(problem, state, wants) {
            beside_daemon(state, &mut way, on);
            self.keep(Asked::NoDaemon { daemon: daemon.clone(), rule: problem.terms.describe(rule) }, &way.types);
        }
    }

    fn limits(&mut self) {
        let state = self.state;
        for (resource, limit) in state.pool.limits.iter() {
            let used = state.used.get(resource);
            let asked = Asked::Limit { resource: resource.to_owned(), limit, used };
            let adds = |at: usize| match resource {
                "nodes" => Quantity::from_units(1),
                _ => state.catalogue.types()[at].capacity.get(resource),
            };
            self.keep_if(asked, |at| used + adds(at) <= limit);
        }
    }
}

/// A requirement, with all that contradicts itself in it.
fn words(requirement: &Requirement, torn: &Torn) -> String {
    let both = torn.get(requirement.key()).filter(|_| requirement.is_impossible());
    both.cloned().unwrap_or_else(|| requirement.to_string())
}

/// Whether a requirement is on a label of types, rather than of offerings or of the pool alone.
fn is_of_types(state: &PoolState, requirement: &Requirement) -> bool {
    let key = requirement.key();
    let of_offerings = matches!(key, labels::ZONE | labels::ZONE_ID | labels::CAPACITY_TYPE);
    !of_offerings && state.catalogue.defines(key)
}

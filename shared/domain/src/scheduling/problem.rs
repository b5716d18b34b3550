//! A snapshot made ready for solving: hosts with their free room, pools with what their types have left beside the daemons.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::amounts::{Amounts, Dims, take};
use super::attach::Attach;
use super::board::{Board, Domains, KeyId, NO_VALUE, ValueId};
use super::growth::{addable, pool_values};
use super::room::{self, Presence, Rooms, presences};
use super::sold::no_type;
use super::terms::{CounterId, Terms};
use super::wants::Wants;
use super::{Hosts, Misfit, Solution, Target, reservations, share};
use crate::api::labels;
use crate::catalogue::{Catalogue, InstanceType, Market, NodeSettings, Price, Tenancy, TypeSet, builtin_type};
use crate::cluster::{
    Catalogues, Claim, DaemonSet, Host, HostPort, NAME_FIELD, NAMES, NEW_NAME, Owner, Pod, PodKey, Pool, Shape,
    Snapshot, VolumeProblem, is_ephemeral,
};
use crate::quantity::Quantity;
use crate::requirement::{Incompatible, Requirement, Requirements, Undefined, ValueSet};
use crate::resources::{NODES, Resources};
use crate::taint::{Taint, TaintEffect};

/// A snapshot made ready for solving; can be solved many times with different hosts left out.
pub(crate) struct Problem<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) dims: Dims,
    pub(crate) attach: Attach<'a>,
    pub(crate) hosts: Vec<HostState>,
    /// Pools that may grow, by weight (highest first) and name.
    pub(crate) pools: Vec<PoolState>,
    /// Pools that may not, with the reason.
    pub(crate) closed: Vec<(Arc<str>, Misfit)>,
    pub(crate) pods_by_node: BTreeMap<Arc<str>, Vec<Arc<Pod>>>,
    /// What pods ask of each other.
    pub(crate) terms: Terms<'a>,
    /// The labels whose values are domains.
    pub(crate) domains: Domains,
    /// Values that nodes of a pool can have, by pool and label.
    pub(crate) pool_values: Vec<Vec<Vec<ValueId>>>,
    /// The types of which a pool can still add a node, by pool.
    pub(crate) addable: Vec<TypeSet>,
    /// Pods as they are counted on hosts, and the room there.
    pub(crate) board: Board,
    /// Hosts in the order in which they are filled: initialized ones first, then by name.
    pub(crate) host_order: Vec<usize>,
    /// Counters that count pods of daemon sets.
    pub(crate) daemon_counters: FxHashSet<CounterId>,
    /// Hosts by the name of their node.
    pub(crate) by_node: FxHashMap<Arc<str>, usize>,
    /// Some pool or host has a taint that only discourages.
    pub(crate) discouraged: bool,
}

/// A host and the room that it has left.
pub(crate) struct HostState {
    pub(crate) host: Host,
    pub(crate) free: Amounts,
    pub(crate) taints: Vec<Taint>,
    pub(crate) labels: HostLabels,
    /// New pods may be placed on it.
    pub(crate) open: bool,
    pub(crate) initialized: bool,
    pub(crate) capacity: Resources,
    /// Ports of the node that daemons take, running or not.
    pub(crate) daemon_ports: Vec<HostPort>,
    /// Daemon sets whose pods will run here and do not yet, while the host is not initialized.
    pub(crate) coming: Vec<Arc<DaemonSet>>,
}

/// What is known of a host's labels; its name is among them, as [`NAME_FIELD`].
pub(crate) enum HostLabels {
    /// All of them.
    Known(BTreeMap<String, String>),
    /// Only what its claim asks for: types in a catalogue, a market, and other labels.
    Asked { requirements: Requirements, catalogue: Arc<Catalogue>, types: TypeSet, market: Market },
}

/// A pool that may grow.
pub(crate) struct PoolState {
    pub(crate) pool: Arc<Pool>,
    pub(crate) catalogue: Arc<Catalogue>,
    /// Types with the labels that the pool asks for.
    pub(crate) types: TypeSet,
    pub(crate) market: Market,
    /// What its nodes have left beside the daemons.
    pub(crate) rooms: Rooms,
    /// Ports of the node that daemons take, with the ways in which those come to be on its nodes.
    pub(crate) daemon_ports: Vec<(HostPort, Way)>,
    /// Counters that count pods of a daemon set, with the ways in which those come to be on its nodes; by daemon set.
    pub(crate) daemon_counters: Vec<(CounterId, PodKey, Way)>,
    /// What the pool uses already.
    pub(crate) used: Resources,
}

/// One way in which a shape fits a pool.
#[derive(Clone)]
pub(crate) struct Way {
    /// Which of the shape's alternatives.
    pub(crate) alternative: usize,
    pub(crate) types: Arc<TypeSet>,
    pub(crate) market: Market,
    /// The requirements on labels that pods on one node may contradict each other on.
    pub(crate) open: Arc<Requirements>,
    /// What the cheapest of the types costs.
    pub(crate) price: Option<Price>,
}

impl<'a> Problem<'a> {
    pub(crate) fn new(snapshot: &'a Snapshot) -> Self {
        let daemon_requests = snapshot.daemons.iter().map(|daemon| &daemon.shape.requests);
        let attach = Attach::of(snapshot);
        let requests = snapshot.pods.iter().map(|pod| &pod.shape.requests).chain(daemon_requests);
        let mut dims = Dims::of(requests).with_volumes(attach.drivers());
        if share::is_bounded(snapshot) {
            dims = dims.with_places();
        }
        let pods_by_node = snapshot.pods_by_node();
        let hosts = snapshot.hosts().into_iter();
        let hosts: Vec<HostState> =
            hosts.map(|host| host_state(snapshot, (&dims, &attach), host, &pods_by_node)).collect();
        let catalogues = reservations::open(snapshot);
        let terms = Terms::of(snapshot, &hosts);
        let mut pools = Vec::new();
        let mut closed = Vec::new();
        for pool in snapshot.pools.iter().filter(|pool| pool.is_ours()) {
            match open_catalogue(pool, &catalogues) {
                Err(misfit) => closed.push((pool.name.clone(), misfit)),
                Ok(catalogue) => pools.push(pool_state(snapshot, (&dims, &attach, &terms), pool, &hosts, catalogue)),
            }
        }
        closed.sort_by(|a, b| a.0.cmp(&b.0));
        pools.sort_by(|a, b| (b.pool.weight, &a.pool.name).cmp(&(a.pool.weight, &b.pool.name)));
        let mut domains = Domains::of(&terms, &hosts);
        domains.find_gaps(&hosts, &pools);
        let addable: Vec<TypeSet> = pools.iter().map(|state| addable(state, snapshot.settings.min_values)).collect();
        let pool_values = pools.iter().zip(&addable).map(|(state, types)| values_of_pool(&mut domains, state, types));
        let pool_values = pool_values.collect();
        let mut host_order: Vec<usize> = (0..hosts.len()).collect();
        host_order.sort_by_key(|at| (!hosts[*at].initialized, *at));
        let board = Board::new(&terms, &hosts);
        let taints = hosts.iter().map(|state| &state.taints).chain(pools.iter().map(|state| &state.pool.taints));
        let discouraged = taints.flatten().any(|taint| taint.effect == TaintEffect::PreferNoSchedule);
        let named =
            hosts.iter().enumerate().filter_map(|(at, state)| Some((state.host.node.as_ref()?.name.clone(), at)));
        let by_node = named.collect();
        let daemon_counters =
            snapshot.daemons.iter().flat_map(|daemon| terms.counting_daemon(snapshot, daemon)).collect();
        let mut problem = Problem {
            snapshot,
            dims,
            attach,
            hosts,
            pools,
            closed,
            pods_by_node,
            terms,
            domains,
            pool_values,
            addable,
            board,
            host_order,
            daemon_counters,
            by_node,
            discouraged,
        };
        problem.count_running();
        share::give_places(&mut problem);
        problem
    }

    /// Counts the pods that run on hosts, and those that are about to: daemons of hosts that start are there before other pods are.
    fn count_running(&mut self) {
        let mut board = std::mem::take(&mut self.board);
        for (at, state) in self.hosts.iter().enumerate() {
            for daemon in state.coming.iter().filter(|_| !self.daemon_counters.is_empty()) {
                let counting = self.terms.counting_daemon(self.snapshot, daemon);
                board.count_on(&self.terms, &self.domains, (at, state), &counting, 1);
            }
            let Some(node) = &state.host.node else { continue };
            for pod in self.pods_by_node.get(&node.name).into_iter().flatten() {
                if !self.terms.counters.is_empty() && pod.deletes_at.is_none() {
                    let counting = self.terms.counting(pod);
                    board.count_on(&self.terms, &self.domains, (at, state), &counting, 1);
                }
            }
        }
        for pod in self.snapshot.pods.iter().filter(|pod| pod.is_coming()) {
            let Some(at) = pod.nominated.as_ref().and_then(|node| self.by_node.get(node)).copied() else { continue };
            take(&mut board.free[at], &self.demand(pod), 1);
            let counting = self.terms.counting(pod);
            board.count_on(&self.terms, &self.domains, (at, &self.hosts[at]), &counting, 1);
        }
        self.board = board;
    }

    /// Answers what a pod takes of a node.
    pub(crate) fn demand(&self, pod: &Pod) -> Amounts {
        let mut asked = self.dims.demand(&pod.shape.requests);
        if !pod.claims.is_empty() && !self.attach.drivers().is_empty() {
            let wanted = self.attach.wanted(pod);
            self.dims.set_volumes(&mut asked, |driver| wanted.get(driver).copied());
        }
        asked
    }

    /// Answers where the volumes of a pod can be reached, as [`crate::cluster::Volumes::places`] does.
    pub(crate) fn places(&self, pod: &Pod, hosts: &Hosts<'_>) -> Result<Vec<Requirements>, (String, VolumeProblem)> {
        let is_named = |state: &HostState, name: &Requirement| match &state.labels {
            HostLabels::Known(labels) => labels.get(name.key()).is_some_and(|value| name.admits(value)),
            HostLabels::Asked { .. } => false,
        };
        let there = |name: &Requirement| {
            let mut all = self.hosts.iter().enumerate();
            all.any(|(at, state)| is_named(state, name) && hosts.keeps(self, at))
        };
        self.snapshot.volumes.places(pod, there)
    }

    /// Answers the domain of a host, or that it is in none; nothing where that is open.
    pub(crate) fn domain_or_none(&self, key: KeyId, host: usize) -> Option<ValueId> {
        let none = || self.hosts[host].lacks(&self.domains.keys[key]).then_some(NO_VALUE);
        self.domains.host(key, host).or_else(none)
    }

    /// Says whether a pool can still add any node at all.
    pub(crate) fn grows(&self, pool: usize) -> bool {
        !self.addable[pool].is_clear()
    }

    /// Says whether pods keep away from those of some daemon set, or those from them.
    pub(crate) fn is_repelled(&self, wants: &Wants) -> bool {
        !self.daemon_counters.is_empty() && wants.apart().any(|rule| self.daemon_counters.contains(&rule.counter))
    }

    /// Says whether no pool has taints, so that they keep no pod off new nodes.
    pub(crate) fn is_untainted(&self) -> bool {
        self.pools.iter().all(|state| state.pool.taints.is_empty())
    }

    /// Answers the host of a name.
    pub(crate) fn target(&self, host: usize) -> Target {
        let host = &self.hosts[host].host;
        match (&host.node, &host.claim) {
            (Some(node), _) => Target::Node(node.name.clone()),
            (None, Some(claim)) => Target::Claim(claim.name.clone()),
            (None, None) => Target::Claim("".into()),
        }
    }

    /// Takes the room of the pods that a solution placed on hosts, and what its new nodes take of limits, so that further questions
    /// come on top of it.
    pub(crate) fn book(&mut self, solution: &Solution) {
        let requests: FxHashMap<&PodKey, &Pod> = self.snapshot.pods.iter().map(|pod| (&pod.key, &**pod)).collect();
        let mut at: FxHashMap<Target, usize> = FxHashMap::default();
        for (index, state) in self.hosts.iter().enumerate() {
            match (&state.host.node, &state.host.claim) {
                (Some(node), _) => at.insert(Target::Node(node.name.clone()), index),
                (None, Some(claim)) => at.insert(Target::Claim(claim.name.clone()), index),
                (None, None) => None,
            };
        }
        for placement in &solution.placements {
            if let (Some(pod), Some(host)) = (requests.get(&placement.pod), at.get(&placement.target)) {
                let request = self.demand(pod);
                take(&mut self.hosts[*host].free, &request, 1);
                take(&mut self.board.free[*host], &request, 1);
                let counting = self.terms.counting(pod);
                self.board.count_on(&self.terms, &self.domains, (*host, &self.hosts[*host]), &counting, 1);
                if let Some(from) = pod.node.as_ref().and_then(|name| self.by_node.get(name)) {
                    self.board.count_on(&self.terms, &self.domains, (*from, &self.hosts[*from]), &counting, -1);
                }
            }
        }
        for node in &solution.nodes {
            let Some(state) = self.pools.iter_mut().find(|state| state.pool.name == node.pool) else { continue };
            let mut most = Resources::new().with(NODES, Quantity::from_units(1));
            for name in node.instance_types() {
                if let Some(t) = state.catalogue.get(&name) {
                    most.raise(&t.capacity);
                }
            }
            state.used.add(&most);
        }
        let policy = self.snapshot.settings.min_values;
        self.addable = self.pools.iter().map(|state| addable(state, policy)).collect();
    }
}

fn values_of_pool(domains: &mut Domains, state: &PoolState, types: &TypeSet) -> Vec<Vec<ValueId>> {
    let keys = domains.keys.clone();
    let of_key =
        |key: &Arc<str>| pool_values(state, types, state.market, key).iter().map(|value| domains.id(value)).collect();
    keys.iter().map(of_key).collect()
}

/// Answers what a pool can buy, or why it may not grow.
pub(super) fn open_catalogue(pool: &Pool, catalogues: &Catalogues) -> Result<Arc<Catalogue>, Misfit> {
    if pool.deleting.is_some() {
        return Err(Misfit::PoolDeleting);
    }
    if !pool.ready {
        return Err(Misfit::PoolNotReady);
    }
    if pool.is_static() {
        return Err(Misfit::StaticPool);
    }
    let class = &pool.class.name;
    let catalogue =
        catalogues.of(class, Some(&pool.name)).ok_or_else(|| Misfit::ClassNotReady { class: class.clone() })?;
    // Packing does not tell the reservations of a zone apart: a pool has those of its own nodes' tenancy.
    Ok(catalogue.of_tenancy(Tenancy::of(&pool.requirements)))
}

fn pool_state(
    snapshot: &Snapshot,
    (dims, attach, terms): (&Dims, &Attach<'_>, &Terms<'_>),
    pool: &Arc<Pool>,
    hosts: &[HostState],
    catalogue: Arc<Catalogue>,
) -> PoolState {
    let (types, market) = catalogue.select(&pool.requirements);
    let presences = presences(snapshot, &pool.taints, &pool.requirements, (&catalogue, &types, market));
    let (mut daemon_ports, mut daemon_counters) = (Vec::new(), Vec::new());
    // who keeps apart by a label that no node of the pool has meets nobody there
    let met = |id: &CounterId| {
        let key = &terms.counters[*id].key;
        terms.is_by_host(*id) || pool.requirements.contains(key) || catalogue.defines(key)
    };
    for Presence { daemon, ways } in &presences {
        let mut counting = terms.counting_daemon(snapshot, daemon);
        counting.retain(|id| met(id));
        for way in ways {
            daemon_counters.extend(counting.iter().map(|id| (*id, daemon.key.clone(), way.clone())));
            daemon_ports.extend(daemon.shape.ports.iter().map(|port| (port.clone(), way.clone())));
        }
    }
    daemon_counters.sort_by(|(_, a, _): &(_, PodKey, _), (_, b, _)| a.cmp(b));
    let rooms = Rooms::of((dims, attach), &catalogue, market, &presences);
    let mut used = Resources::new().with(NODES, Quantity::ZERO);
    for host in hosts.iter().filter(|host| host.host.pool() == Some(&pool.name)) {
        used.add(&host.capacity);
        used.add(&Resources::new().with(NODES, Quantity::from_units(1)));
    }
    PoolState { pool: pool.clone(), catalogue, types, market, rooms, daemon_ports, daemon_counters, used }
}

/// Answers how one alternative of a shape fits the labels of nodes that are made as requirements say, those of a pool or a claim.
pub(crate) fn way(
    requirements: &Requirements,
    catalogue: &Catalogue,
    types: &TypeSet,
    market: Market,
    wanted: &Requirements,
    alternative: usize,
) -> Result<Way, Misfit> {
    let wanted = &*beside_its_name(wanted)?;
    requirements.compatible(wanted, Undefined::WellKnownAllowed).map_err(at_odds)?;
    let (mut selected, wanted_market) = catalogue.select(wanted);
    selected.intersect_with(types);
    let undefined =
        wanted.iter().find(|r| !r.admits_absence() && !requirements.contains(r.key()) && !catalogue.defines(r.key()));
    let market = market.and(wanted_market);
    if let Some(requirement) = undefined {
        return Err(Misfit::NoInstanceType { wanted: requirement.to_string(), allowed: String::new() });
    }
    if selected.is_clear() {
        return Err(no_type(requirements, catalogue, types, wanted));
    }
    let open: Requirements = wanted.iter().filter(|r| catalogue.is_open(r.key())).cloned().collect();
    Ok(Way { alternative, types: Arc::new(selected), market, open: Arc::new(open), price: None })
}

/// What a pod and a pool want of one label, where they cannot both have it.
fn at_odds(incompatible: Incompatible) -> Misfit {
    match incompatible {
        Incompatible::Disjoint { wanted, offered, meant, .. } => {
            let hint = meant.map(|meant| format!(" (did you mean {meant:?}?)")).unwrap_or_default();
            Misfit::Requirement { problem: format!("the pod's {wanted} conflicts with the pool's {offered}{hint}") }
        }
        Incompatible::Contradiction { key, wanted } => Misfit::Contradiction { key, wanted },
        Incompatible::Undefined { .. } => Misfit::Requirement { problem: incompatible.to_string() },
    }
}

/// Answers what is wanted of a node to be made beside its name: it will have one, and nobody can ask for it yet.
fn beside_its_name(wanted: &Requirements) -> Result<Cow<'_, Requirements>, Misfit> {
    let mut rest = Cow::Borrowed(wanted);
    for key in NAMES {
        // what contradicts itself is told as such
        let Some(named) = wanted.get(key).filter(|named| !named.is_impossible()) else { continue };
        if !named.admits(NEW_NAME) {
            return Err(match named.admits_absence() {
                true => Misfit::Requirement { problem: format!("{named}, and every node has that label") },
                false => Misfit::NamedNode { wanted: named.to_string() },
            });
        }
        rest.to_mut().remove(key);
    }
    Ok(rest)
}

fn host_state(
    snapshot: &Snapshot,
    (dims, attach): (&Dims, &Attach<'_>),
    host: Host,
    pods_by_node: &BTreeMap<Arc<str>, Vec<Arc<Pod>>>,
) -> HostState {
    let node = host.node.as_deref();
    let claim = host.claim.as_deref();
    let initialized = node.is_some_and(|n| claim.is_none() || n.is_initialized());
    let labels = host_labels(snapshot, &host);
    let mut taints = effective_taints(&host, initialized);
    taints.extend(node.filter(|node| node.unschedulable).map(|_| labels::cordoned_taint()));
    let (capacity, allocatable) = host_room(snapshot, &host, initialized, &labels);
    let mut free = dims.supply(&allocatable);
    let pods = node.and_then(|n| pods_by_node.get(&n.name)).map(Vec::as_slice).unwrap_or_default();
    for pod in pods {
        take(&mut free, &dims.demand(&pod.shape.requests), 1);
    }
    let (belonging, planned) = belonging_daemons(snapshot, (dims, attach), &taints, &labels);
    match planned.filter(|_| claim.is_some_and(|claim| claim.allocatable.is_empty())) {
        Some(planned) => free = planned,
        None => take(&mut free, &missing_daemons(dims, &belonging, pods), 1),
    }
    let daemon_ports = belonging.iter().flat_map(|daemon| daemon.shape.ports.clone()).collect();
    let comes = |daemon: &&&Arc<DaemonSet>| !initialized && !pods.iter().any(|pod| is_of_daemon(pod, daemon));
    let coming = belonging.iter().filter(comes).map(|daemon| Arc::clone(daemon)).collect();
    attach.set_host(dims, &mut free, (&host, &labels), pods);
    // a claim alone stands for a node to come, not for one that was lost
    let open = !host.is_leaving() && (node.is_some() || claim.is_some_and(|claim| !claim.is_lost()));
    HostState { free, taints, labels, open, initialized, capacity, daemon_ports, coming, host }
}

/// The taints that keep pods away for good: while a node starts, those that will go by themselves do not count.
fn effective_taints(host: &Host, initialized: bool) -> Vec<Taint> {
    let Some(node) = &host.node else { return host.claim.as_ref().map(|c| c.taints.clone()).unwrap_or_default() };
    if initialized {
        return node.taints.clone();
    }
    let startup = host.claim.as_ref().map(|c| c.startup_taints.as_slice()).unwrap_or_default();
    let own = host.claim.as_ref().map(|c| c.taints.as_slice()).unwrap_or_default();
    let lasting = node.taints.iter().filter(|t| !is_ephemeral(t) && !startup.iter().any(|s| s.same_mark(t)));
    let mut taints: Vec<Taint> = lasting.cloned().collect();
    for taint in own {
        if !taints.iter().any(|t| t.same_mark(taint)) {
            taints.push(taint.clone());
        }
    }
    taints
}

fn host_labels(snapshot: &Snapshot, host: &Host) -> HostLabels {
    let unnamed = || NAMES.map(|key| (key, NEW_NAME));
    let mut labels = BTreeMap::new();
    if let Some(claim) = &host.claim {
        let catalogue = snapshot.catalogues.of(&claim.class.name, claim.pool.as_deref());
        if let (None, false, Some(catalogue)) = (&host.node, claim.is_launched(), catalogue) {
            let (types, market) = catalogue.select(&claim.requirements);
            let own = Requirements::from_labels(&claim.labels).and(&Requirements::from_labels(unnamed()));
            let requirements = claim.requirements.and(&own);
            return HostLabels::Asked { requirements, catalogue: catalogue.clone(), types, market };
        }
        labels = claim.requirements.settled_labels();
        labels.extend(claim.labels.clone());
    }
    if let Some(node) = &host.node {
        labels.extend(node.labels.clone());
        labels.insert(NAME_FIELD.to_owned(), node.name.to_string());
    } else {
        labels.extend(unnamed().map(|(key, name)| (key.to_owned(), name.to_owned())));
    }
    HostLabels::Known(labels)
}

/// Capacity and allocatable of a host: what its node says, before that what its claim says, before that what every type that
/// it asks for has at least.
fn host_room(snapshot: &Snapshot, host: &Host, initialized: bool, labels: &HostLabels) -> (Resources, Resources) {
    if let Some(node) = host.node.as_ref().filter(|_| initialized || host.claim.is_none()) {
        return (node.capacity.clone(), node.allocatable.clone());
    }
    let Some(claim) = &host.claim else { return Default::default() };
    if !claim.allocatable.is_empty() {
        return (claim.capacity.clone(), claim.allocatable.clone());
    }
    if let Some(node) = &host.node {
        return (node.capacity.clone(), node.allocatable.clone());
    }
    let HostLabels::Asked { catalogue, types, .. } = labels else {
        return (most_it_may_be(snapshot, claim), claim.requests.clone());
    };
    let mut most = Resources::new();
    types.ones().for_each(|at| most.raise(&catalogue.types()[at].capacity));
    (most, claim.requests.clone())
}

/// The most capacity of a claim whose class has no catalogue: limits must hold whatever comes of it.
fn most_it_may_be(snapshot: &Snapshot, claim: &Claim) -> Resources {
    let mut most = claim.requests.clone();
    let Some(ValueSet::Only(names)) = claim.requirements.get(labels::INSTANCE_TYPE).map(Requirement::values) else {
        return most;
    };
    for name in names.iter() {
        let known = snapshot.catalogues.values().find_map(|catalogue| catalogue.get(name));
        let by_facts = || Some(InstanceType::from_facts(builtin_type(name)?, &NodeSettings::default(), Vec::new()));
        if let Some(capacity) = known.map(|t| t.capacity.clone()).or_else(|| Some(by_facts()?.capacity)) {
            most.raise(&capacity);
        }
    }
    most
}

/// The daemons that will run on a host; where it is open what the host will be, those that may, and what they leave whatever comes of it.
fn belonging_daemons<'a>(
    snapshot: &'a Snapshot,
    context: (&Dims, &Attach<'_>),
    taints: &[Taint],
    labels: &HostLabels,
) -> (Vec<&'a Arc<DaemonSet>>, Option<Amounts>) {
    if let HostLabels::Asked { requirements, catalogue, types, market } = labels {
        let bought = (&**catalogue, types, *market);
        let presences = presences(snapshot, taints, requirements, bought);
        if let Some(free) = room::least_free(context, bought, &presences) {
            let may_run = |presence: &&Presence<'_>| presence.ways.iter().any(|way| !way.market.is_empty());
            return (presences.iter().filter(may_run).map(|presence| presence.daemon).collect(), Some(free));
        }
    }
    let belongs = |daemon: &&Arc<DaemonSet>| {
        daemon.bears(taints) && daemon.shape.alternatives.iter().any(|wanted| labels.may_satisfy(wanted))
    };
    (snapshot.daemons.iter().filter(belongs).collect(), None)
}

fn is_of_daemon(pod: &Pod, daemon: &DaemonSet) -> bool {
    pod.owner == Owner::DaemonSet
        && pod.key.namespace == daemon.key.namespace
        && pod.daemon_set.as_ref() == Some(&daemon.key.name)
}

/// What daemons that belong on a host will still ask for: each for itself, so that the pod of one never stands for that of another.
fn missing_daemons(dims: &Dims, belonging: &[&Arc<DaemonSet>], pods: &[Arc<Pod>]) -> Amounts {
    let mut missing = dims.demand(&Resources::new());
    for daemon in belonging {
        let mut lacking = dims.demand(&daemon.shape.requests);
        let own = pods.iter().filter(|pod| is_of_daemon(pod, daemon));
        own.for_each(|pod| take(&mut lacking, &dims.demand(&pod.shape.requests), 1));
        lacking.iter_mut().for_each(|amount| *amount = (*amount).max(0));
        take(&mut missing, &lacking, -1);
    }
    missing
}

impl HostState {
    /// Says whether the host surely is without a label, whatever is launched for it.
    pub(crate) fn lacks(&self, key: &str) -> bool {
        let is_there = || self.host.node.is_some() || self.host.claim.as_ref().is_some_and(|claim| claim.is_launched());
        match &self.labels {
            HostLabels::Known(labels) => !labels.contains_key(key) && is_there(),
            HostLabels::Asked { requirements, catalogue, .. } => match requirements.get(key) {
                Some(asked) => asked.is_empty(),
                None => !catalogue.defines(key),
            },
        }
    }
}

impl HostLabels {
    /// Says whether the host surely satisfies requirements, whatever is launched for it.
    pub(crate) fn satisfies(&self, wanted: &Requirements) -> bool {
        match self {
            HostLabels::Known(labels) => wanted.match_labels(labels),
            HostLabels::Asked { requirements, catalogue, types, market } => {
                wanted.iter().all(|r| surely(requirements, catalogue, types, *market, r))
            }
        }
    }

    /// Says whether the host may satisfy requirements.
    pub(crate) fn may_satisfy(&self, wanted: &Requirements) -> bool {
        match self {
            HostLabels::Known(labels) => wanted.match_labels(labels),
            HostLabels::Asked { requirements, .. } => requirements.is_compatible(wanted, Undefined::WellKnownAllowed),
        }
    }
}

impl PoolState {
    /// Says whether neither the pool nor its types say anything of a label: no new node has it.
    pub(crate) fn is_silent_on(&self, key: &str) -> bool {
        !self.pool.requirements.contains(key) && !self.catalogue.defines(key)
    }

    /// Says whether new nodes may be without a label that no type has.
    pub(crate) fn may_lack(&self, key: &str) -> bool {
        self.pool.requirements.get(key).is_none_or(Requirement::admits_absence) && !self.catalogue.defines(key)
    }
}

/// Whether each type, zone and capacity type that may come of a claim satisfies one requirement.
fn surely(asked: &Requirements, catalogue: &Catalogue, types: &TypeSet, market: Market, wanted: &Requirement) -> bool {
    let key = wanted.key();
    let zones =
        || catalogue.zones().iter().enumerate().filter(|(at, _)| market.zones >> at & 1 == 1).map(|(_, zone)| zone);
    match key {
        labels::ZONE => zones().all(|zone| wanted.admits(&zone.name)),
        labels::ZONE_ID => zones().all(|zone| wanted.admits(&zone.id)),
        labels::CAPACITY_TYPE => crate::catalogue::CapacityType::ALL
            .into_iter()
            .filter(|t| market.capacity_types >> *t as u8 & 1 == 1)
            .all(|t| wanted.admits(t.as_str())),
        _ if asked.single(key).is_some() => asked.single(key).is_some_and(|value| wanted.admits(value)),
        _ if catalogue.defines(key) => types.ones().all(|at| match catalogue.types()[at].labels.get(key) {
            Some(values) => values.iter().all(|value| wanted.admits(value)),
            None => wanted.admits_absence(),
        }),
        _ => match asked.get(key) {
            Some(own) => own.intersection(wanted) == *own,
            None => wanted.admits_absence(),
        },
    }
}

/// Answers whether a shape bears all of these taints; the first that it does not, otherwise.
pub(crate) fn bears(shape: &Shape, taints: &[Taint]) -> Result<(), Taint> {
    match taints.iter().find(|taint| !taint.admits(&shape.tolerations)) {
        Some(taint) => Err(taint.clone()),
        None => Ok(()),
    }
}

//! The pods to place, gathered into kinds that are equal for placing, and into groups once it is decided where each may go.

use std::cmp::Reverse;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::amounts::{Amounts, fits, whole};
use super::board::{Domains, KeyId, ValueId};
use super::hashed::Hashed;
use super::problem::{HostState, PoolState, Problem, Way, bears, way};
use super::reach::out_of_reach;
use super::sold::{Places, none_offered, of_offerings};
use super::terms::{ClassId, CounterId};
use super::wants::{Asks, Rule, Wants, steps};
use super::{Hosts, Misfit, Refusal, share, sole};
use crate::api::labels;
use crate::catalogue::{Market, TypeSet};
use crate::cluster::{HostPort, Pod, PodKey, Shape, Snapshot, blocking};
use crate::requirement::Requirements;
use crate::resources;
use crate::taint::{Taint, TaintEffect, Toleration};

/// Pods that are equal for placing: one shape, one priority, counted alike, with like volumes.
pub(crate) struct Kind {
    pub(crate) shape: Arc<Shape>,
    pub(crate) priority: i32,
    /// Every counter that counts its pods.
    pub(crate) counting: SmallVec<[CounterId; 6]>,
    pub(crate) request: Amounts,
    /// What it wants, from all wishes to what it must have.
    pub(crate) steps: Vec<Wants>,
    /// Its volumes are in some places only.
    pub(crate) bound: bool,
    /// Its pods, ordered by key.
    pub(crate) pods: Vec<PodKey>,
}

/// Pods of a kind that are to go on new nodes, on one step of relaxation and in one cell of the topology.
pub(crate) struct Group {
    pub(crate) kind: usize,
    pub(crate) priority: i32,
    /// Labels of the node: any of these; wishes, volumes and domains are in them.
    pub(crate) alternatives: Arc<[Requirements]>,
    /// Rules on single nodes.
    pub(crate) rules: Arc<[Rule]>,
    pub(crate) counting: SmallVec<[CounterId; 6]>,
    /// It must join nodes on which pods are that it must be near.
    pub(crate) joins: bool,
    /// Pods that go together as one.
    pub(crate) unit: u32,
    /// What one unit asks for.
    pub(crate) request: Amounts,
    pub(crate) shape: Arc<Shape>,
    /// Pods that are not placed yet, ordered by key from the last to the first.
    pub(crate) waiting: Vec<PodKey>,
    /// How many pods have been drawn.
    pub(crate) drawn: usize,
    /// By pool, in the order of [`Problem::pools`].
    pub(crate) ways: ByPool,
}

impl Group {
    /// Answers how many units wait.
    pub(crate) fn units(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX) / self.unit.max(1)
    }
}

/// Answers the pods that need room: those that kube-scheduler could not place, and those on hosts that are leaving. Pods on a
/// leaving host that nothing can move now (protected, or held by a budget) stay where they are.
pub(crate) fn waiting_pods(problem: &Problem<'_>) -> Vec<Arc<Pod>> {
    let snapshot = problem.snapshot;
    let mut pods: Vec<Arc<Pod>> = snapshot.pods.iter().filter(|pod| pod.is_provisionable()).cloned().collect();
    for host in problem.hosts.iter().filter(|state| state.host.is_leaving()) {
        let Some(node) = &host.host.node else { continue };
        pods.extend(displaced(snapshot, problem.pods_by_node.get(&node.name).map(Vec::as_slice).unwrap_or_default()));
    }
    pods
}

/// Answers which pods of a node will want another one when it goes.
pub(crate) fn displaced(snapshot: &Snapshot, pods: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let moves = |pod: &&Arc<Pod>| {
        pod.is_reschedulable() && !pod.is_protected(snapshot.now) && blocking(&snapshot.budgets, pod).is_none()
    };
    pods.iter().filter(moves).cloned().collect()
}

/// What tells pods with claims apart: where their volumes can be reached, and what they take of a node, volumes included.
type Claimed = Option<(Vec<Requirements>, Amounts)>;

/// What pods of one kind have in common: their shape, their namespace where they spread, their priority, their class, their claims.
type Alike<'p> = (Hashed<'p, Shape>, Option<&'p str>, i32, ClassId, Claimed);

/// A first pod, its class, what its claims make of it, and all pods like it.
type Gathered<'p> = (&'p Arc<Pod>, ClassId, Claimed, Vec<PodKey>);

/// Gathers pods into kinds: highest priority first, then the largest by CPU and memory, then by name; kinds that mind a count of other
/// pods come after those. Pods that can never be placed are answered with the reason, and the counters of the others with what `careless` says.
pub(crate) fn kinds(
    problem: &Problem<'_>,
    pods: &[Arc<Pod>],
    hosts: &Hosts<'_>,
    ways: &mut Ways,
) -> (Vec<Kind>, Vec<(PodKey, Refusal)>, FxHashSet<CounterId>) {
    let mut refused = Vec::new();
    let mut at: FxHashMap<Alike<'_>, usize> = FxHashMap::default();
    let mut kinds: Vec<Gathered<'_>> = Vec::new();
    for pod in pods {
        if let Some(feature) = pod.shape.unsupported.first() {
            refused.push((pod.key.clone(), Refusal::NeverPlaced { feature: *feature }));
            continue;
        }
        let claimed = match pod.claims.is_empty() {
            true => None,
            false => match problem.places(pod, hosts) {
                Ok(places) => {
                    if let Some(refusal) = out_of_reach(problem, hosts, pod, &places) {
                        refused.push((pod.key.clone(), refusal));
                        continue;
                    }
                    Some((places, problem.demand(pod)))
                }
                Err((claim, problem)) => {
                    refused.push((pod.key.clone(), Refusal::Volume { claim, problem }));
                    continue;
                }
            },
        };
        let class = problem.terms.class_of(pod);
        // a spread counts pods of its own namespace; other terms name the namespaces that they mean
        let spreads_in = (!pod.shape.spread.is_empty()).then_some(&*pod.key.namespace);
        let slot = *at
            .entry((Hashed::new(pod.digest.shape, &*pod.shape), spreads_in, pod.priority, class, claimed.clone()))
            .or_insert_with(|| {
                kinds.push((pod, class, claimed, Vec::new()));
                kinds.len() - 1
            });
        kinds[slot].3.push(pod.key.clone());
    }
    let mut kinds: Vec<Kind> =
        kinds.into_iter().map(|(pod, class, claimed, keys)| kind(problem, pod, class, claimed, keys)).collect();
    refused.extend(sole::take_away(problem, pods, &mut kinds, ways));
    let careless = careless(problem, &kinds, ways);
    kinds.sort_by_cached_key(|kind| order(kind, &careless));
    (kinds, refused, careless)
}

/// The counters by which some pods spread, or want to be near their like, that also count waiting pods which do not. Whoever goes by them
/// must reckon with those, since kube-scheduler may bind them first: nothing keeps them from a domain that is full, and
/// where they are is where the others must be.
fn careless(problem: &Problem<'_>, kinds: &[Kind], ways: &mut Ways) -> FxHashSet<CounterId> {
    let minded: FxHashSet<CounterId> = kinds.iter().flat_map(minds).collect();
    let mut careless = FxHashSet::default();
    for kind in kinds.iter().filter(|_| !minded.is_empty()) {
        let own: SmallVec<[CounterId; 4]> = minds(kind).collect();
        let fresh = |id: &&CounterId| minded.contains(*id) && !own.contains(*id) && !careless.contains(*id);
        let fresh: SmallVec<[CounterId; 4]> = kind.counting.iter().filter(fresh).copied().collect();
        // pods that nothing can hold take nothing from the others
        if !fresh.is_empty() && may_be_placed(problem, kind, ways) {
            careless.extend(fresh);
        }
    }
    careless
}

/// Says whether a host, or a node that a pool can still add, could hold a pod of a kind if there were no others to place.
pub(crate) fn may_be_placed(problem: &Problem<'_>, kind: &Kind, ways: &mut Ways) -> bool {
    let Some(wants) = kind.steps.last() else { return false };
    let mut by_pool = |pool: usize| {
        let found = ways.of(problem, pool, &kind.shape, &kind.request, wants, &wants.alternatives);
        found.is_ok_and(|ways| ways.iter().any(|way| !way.types.is_disjoint(&problem.addable[pool])))
    };
    let by_host = |state: &HostState| {
        let takes = state.open && bears(&kind.shape, &state.taints).is_ok() && fits(&state.free, &kind.request);
        takes && wants.alternatives.iter().any(|wanted| state.labels.satisfies(wanted))
    };
    (0..problem.pools.len()).any(&mut by_pool) || problem.hosts.iter().any(by_host)
}

/// The counters that a kind must spread by, and those of pods like it that it must be near.
fn minds(kind: &Kind) -> impl Iterator<Item = CounterId> {
    let rules = kind.steps.last().into_iter().flat_map(|wants| wants.domains.iter().chain(wants.hosts.iter()));
    let minds = |rule: &&Rule| match rule.asks {
        Asks::Spread { .. } => true,
        Asks::Near => rule.own,
        Asks::Apart => false,
    };
    rules.filter(minds).map(|rule| rule.counter)
}

fn kind(problem: &Problem<'_>, pod: &Arc<Pod>, class: ClassId, claimed: Claimed, mut pods: Vec<PodKey>) -> Kind {
    pods.sort_unstable();
    pods.dedup();
    let policy = problem.snapshot.settings.preferences;
    let shape = &pod.shape;
    let mut steps = steps(&problem.terms, shape, &pod.key.namespace, class, policy, problem.discouraged);
    let (places, mut request) = claimed.unwrap_or_else(|| (Vec::new(), problem.dims.demand(&shape.requests)));
    let bound = !places.is_empty();
    if bound {
        for wants in &mut steps {
            wants.alternatives = crossed(&wants.alternatives, &places).into();
        }
    }
    if share::counts(shape) {
        problem.dims.set_places(&mut request, 1);
    }
    let counting = problem.terms.counting(pod);
    Kind { shape: shape.clone(), priority: pod.priority, counting, request, steps, bound, pods }
}

/// Every combination that can hold.
pub(crate) fn crossed(some: &[Requirements], others: &[Requirements]) -> Vec<Requirements> {
    let pairs = some.iter().flat_map(|a| others.iter().map(move |b| (a, b)));
    pairs.filter(|(a, b)| a.overlaps(b)).map(|(a, b)| a.and(b)).collect()
}

/// Those that others keep away from come after those others, which have fewer domains to choose from.
fn order(kind: &Kind, careless: &FxHashSet<CounterId>) -> impl Ord + use<> {
    let size = |name: &str| Reverse(kind.shape.requests.get(name));
    let waits = minds(kind).any(|id| careless.contains(&id));
    let keeps_away = kind.shape.anti_affinity.iter().any(|term| &*term.key != labels::HOSTNAME);
    let sizes = (size(resources::CPU), size(resources::MEMORY));
    (Reverse(kind.priority), waits, !keeps_away, sizes, kind.pods.first().cloned())
}

/// Says whether pods with these tolerations may be on a node with these taints; the first that keeps them away, otherwise. Shy pods
/// also keep away from `PreferNoSchedule`.
pub(crate) fn bears_all(shape: &Shape, taints: &[Taint], shy: bool) -> Result<(), Taint> {
    bears(shape, taints)?;
    match taints.iter().find(|taint| shy && discourages(taint, &shape.tolerations)) {
        Some(taint) => Err(taint.clone()),
        None => Ok(()),
    }
}

fn discourages(taint: &Taint, tolerations: &[Toleration]) -> bool {
    taint.effect == TaintEffect::PreferNoSchedule && !taint.tolerated_by(tolerations)
}

/// How pods fit each pool, or the first thing that keeps them out; by pool.
pub(crate) type ByPool = Arc<[Result<Vec<Way>, Misfit>]>;

/// Remembers answers about requirements and requests, of which there are far fewer than kinds.
#[derive(Default)]
pub(crate) struct Ways {
    /// By pool.
    pools: Vec<Known>,
    /// Of pods that ask nothing of labels but their domains, by those.
    pinned: FxHashMap<Pins, Arc<[Requirements]>>,
    /// How such pods fit, where taints keep nobody away: by their domains and their request.
    plain: FxHashMap<(Pins, Amounts), ByPool>,
    /// Why none of some types can be had, by pool, market, types, and what is wanted of offerings.
    missing: FxHashMap<(usize, Market, TypeSet, Requirements), Misfit>,
}

/// Domains in which pods are to go.
pub(crate) type Pins = SmallVec<[(KeyId, ValueId); 2]>;

/// Whether pods with these alternatives ask nothing of labels.
pub(crate) fn is_plain(alternatives: &[Requirements]) -> bool {
    matches!(alternatives, [only] if only.is_empty())
}

/// What is known of one pool.
#[derive(Default)]
struct Known {
    by_labels: FxHashMap<Requirements, Result<Way, Misfit>>,
    /// By market only where nodes differ by it.
    by_request: FxHashMap<(Amounts, Market), Arc<TypeSet>>,
    /// Of pods without ports of the node.
    settled: FxHashMap<Requirements, FxHashMap<Amounts, Result<Settled, Misfit>>>,
}

/// The types of a way that hold a pod and can be bought.
#[derive(Clone)]
struct Settled {
    all: Way,
    /// Without those that are dear for what plain pods do not use, unless nothing else is left.
    plain: Way,
}

impl Ways {
    /// Answers how pods that go to these domains fit every pool; `alternatives` are what they want with the domains in it.
    pub(crate) fn by_pool(
        &mut self,
        problem: &Problem<'_>,
        shape: &Shape,
        request: &Amounts,
        wants: &Wants,
        (pins, alternatives): (&Pins, &[Requirements]),
    ) -> ByPool {
        let all = |ways: &mut Self| -> ByPool {
            (0..problem.pools.len()).map(|pool| ways.of(problem, pool, shape, request, wants, alternatives)).collect()
        };
        let plain = is_plain(&wants.alternatives) && shape.ports.is_empty();
        if !plain || !problem.is_untainted() || problem.is_repelled(wants) {
            return all(self);
        }
        let key = (pins.clone(), request.clone());
        if let Some(known) = self.plain.get(&key) {
            return known.clone();
        }
        let ways = all(self);
        self.plain.insert(key, ways.clone());
        ways
    }

    /// Answers how what is asked of labels fits a pool, whatever room its nodes have.
    pub(crate) fn labelled(
        &mut self,
        problem: &Problem<'_>,
        pool: usize,
        wanted: &Requirements,
    ) -> Result<Way, Misfit> {
        if self.pools.len() <= pool {
            self.pools.resize_with(problem.pools.len(), Known::default);
        }
        self.pools[pool].labelled(&problem.pools[pool], wanted)
    }

    /// Answers what pods ask of labels that go to these domains.
    pub(crate) fn pinned(
        &mut self,
        domains: &Domains,
        alternatives: &Arc<[Requirements]>,
        pins: &Pins,
    ) -> Arc<[Requirements]> {
        if pins.is_empty() {
            return alternatives.clone();
        }
        let crossed = || -> Arc<[Requirements]> {
            let pin = |(key, value): &(KeyId, ValueId)| domains.pin(*key, *value);
            crossed(alternatives, &[pins.iter().filter_map(pin).collect()]).into()
        };
        match is_plain(alternatives) {
            true => self.pinned.entry(pins.clone()).or_insert_with(crossed).clone(),
            false => crossed(),
        }
    }

    /// Answers as `of` does, and says in full where and how nothing is offered.
    pub(crate) fn told(
        &mut self,
        problem: &Problem<'_>,
        pool: usize,
        (shape, request): (&Shape, &Amounts),
        wants: &Wants,
        alternatives: &[Requirements],
    ) -> Result<Vec<Way>, Misfit> {
        let answer = self.of(problem, pool, shape, request, wants, alternatives);
        if !matches!(answer, Err(Misfit::NoOffering { .. })) {
            return answer;
        }
        let state = &problem.pools[pool];
        for wanted in alternatives {
            let Ok(way) = self.labelled(problem, pool, wanted) else { continue };
            let mut types = TypeSet::clone(&way.types);
            types.intersect_with(&self.pools[pool].holding(state, request, way.market));
            if !types.is_clear() && types.is_disjoint(&state.catalogue.offered(way.market)) {
                let key = (pool, way.market, types.clone(), of_offerings(wanted));
                let missing = self.missing.entry(key);
                return Err(missing.or_insert_with(|| none_offered(state, wanted, &types, way.market)).clone());
            }
        }
        answer
    }

    /// Answers how pods fit a pool that has room, or what keeps them out: of several alternatives, what keeps the nearest one out.
    pub(crate) fn of(
        &mut self,
        problem: &Problem<'_>,
        pool: usize,
        shape: &Shape,
        request: &Amounts,
        wants: &Wants,
        alternatives: &[Requirements],
    ) -> Result<Vec<Way>, Misfit> {
        let state = &problem.pools[pool];
        bears_all(shape, &state.pool.taints, wants.shy).map_err(|taint| Misfit::Taint { taint })?;
        if self.pools.len() <= pool {
            self.pools.resize_with(problem.pools.len(), Known::default);
        }
        let known = &mut self.pools[pool];
        let repelled = problem.is_repelled(wants);
        let mut found = Vec::new();
        let mut misfit: Option<Misfit> = None;
        for (at, wanted) in alternatives.iter().enumerate() {
            let way = match known.way(problem, state, shape, request, wanted) {
                Ok(settled) if repelled => apart_from_daemons(problem, state, (request, wants), settled.all),
                Ok(settled) => Ok(settled.plain),
                Err(misfit) => Err(misfit),
            };
            match way {
                Ok(mut way) => {
                    way.alternative = at;
                    found.push(way);
                }
                Err(problem) => {
                    let problem = Misfit::torn(shape, &state.pool, wanted).unwrap_or(problem);
                    misfit = Some(match misfit {
                        Some(nearer) if nearer.nearness() >= problem.nearness() => nearer,
                        _ => problem,
                    });
                }
            }
        }
        match (found.is_empty(), misfit) {
            (false, _) => Ok(found),
            (true, Some(misfit)) => Err(misfit),
            (true, None) => Err(no_term()),
        }
    }
}

impl Known {
    fn way(
        &mut self,
        problem: &Problem<'_>,
        state: &PoolState,
        shape: &Shape,
        request: &Amounts,
        wanted: &Requirements,
    ) -> Result<Settled, Misfit> {
        let plain = shape.ports.is_empty();
        if let Some(settled) = self.settled.get(wanted).and_then(|known| known.get(request)).filter(|_| plain) {
            return settled.clone();
        }
        let labelled = self.labelled(state, wanted);
        let settled = labelled.and_then(|way| self.with_room(problem, state, shape, request, way));
        if plain {
            self.settled.entry(wanted.clone()).or_default().insert(request.clone(), settled.clone());
        }
        settled
    }

    fn labelled(&mut self, state: &PoolState, wanted: &Requirements) -> Result<Way, Misfit> {
        if let Some(known) = self.by_labels.get(wanted) {
            return known.clone();
        }
        let answer = way(&state.pool.requirements, &state.catalogue, &state.types, state.market, wanted, 0);
        self.by_labels.insert(wanted.clone(), answer.clone());
        answer
    }

    /// Narrows a way to types that can hold one unit and can be bought.
    fn with_room(
        &mut self,
        problem: &Problem<'_>,
        state: &PoolState,
        shape: &Shape,
        request: &Amounts,
        way: Way,
    ) -> Result<Settled, Misfit> {
        let mut roomy = TypeSet::clone(&way.types);
        roomy.intersect_with(&self.holding(state, request, way.market));
        if roomy.is_clear() {
            return Err(too_big(problem, state, shape, request, &way));
        }
        let mut way = Way { types: Arc::new(roomy), ..way };
        for (port, on) in taken_ports(state, shape) {
            beside_daemon(state, &mut way, on);
            Arc::make_mut(&mut way.types).intersect_with(&self.holding(state, request, way.market));
            if way.types.is_clear() {
                return Err(Misfit::HostPort { port: port.clone() });
            }
        }
        let offered = state.catalogue.offered(way.market);
        if way.types.is_disjoint(&offered) {
            // told in full where pods are refused for it
            return Err(Misfit::NoOffering { types: way.types.count_ones(..), wanted: Places::default() });
        }
        Arc::make_mut(&mut way.types).intersect_with(&offered);
        Ok(Settled { plain: without_exotic(state, request, way.clone()), all: way })
    }

    /// The types of which some node in a market holds a request.
    fn holding(&mut self, state: &PoolState, request: &Amounts, market: Market) -> Arc<TypeSet> {
        let market = if state.rooms.differ() { market } else { Market::ANY };
        let look = || {
            let holds = |at: &usize| state.rooms.each(*at, market).iter().any(|room| fits(&room.free, request));
            let mut holding = TypeSet::with_capacity(state.catalogue.types().len());
            holding.extend(state.types.ones().filter(holds));
            Arc::new(holding)
        };
        self.by_request.entry((request.clone(), market)).or_insert_with(look).clone()
    }
}

/// What keeps a pod out everywhere whose node affinity has terms and none that a node can meet: empty ones match no node.
fn no_term() -> Misfit {
    let problem = "the pod's required node affinity has no term that a node could match";
    Misfit::Requirement { problem: problem.to_owned() }
}

/// The ports that daemons take of those that a pod wants, with the nodes of a pool on which they do.
pub(crate) fn taken_ports<'p>(state: &'p PoolState, shape: &Shape) -> impl Iterator<Item = &'p (HostPort, Way)> {
    state.daemon_ports.iter().filter(|(port, _)| shape.ports.iter().any(|wanted| wanted.conflicts(port)))
}

/// Leaves out types that are dear for what plain pods do not use, unless nothing else is left, and says what the cheapest costs.
fn without_exotic(state: &PoolState, request: &Amounts, mut way: Way) -> Way {
    let exotic = state.catalogue.exotic();
    if state.pool.min_values.is_empty() && !way.types.is_disjoint(exotic) && !way.types.is_subset(exotic) {
        Arc::make_mut(&mut way.types).difference_with(exotic);
    }
    way.price = way.types.ones().filter_map(|at| state.price_of(at, way.market, request)).min();
    way
}

/// The daemon sets on nodes of a pool that pods must not be near, or that must not be near them: the rule, the set, and where it is.
pub(crate) fn repelling<'p>(
    problem: &'p Problem<'_>,
    state: &'p PoolState,
    wants: &'p Wants,
) -> impl Iterator<Item = (&'p Rule, &'p PodKey, &'p Way)> {
    wants.apart().filter(|rule| problem.daemon_counters.contains(&rule.counter)).flat_map(|rule| {
        let counted = state.daemon_counters.iter().filter(|(id, ..)| *id == rule.counter);
        counted.map(move |(_, daemon, on)| (rule, daemon, on))
    })
}

/// Takes away the nodes with a daemon that pods must not be with, since it is there before the pods are: zones or capacity types where
/// the daemon is in some only, else types.
pub(crate) fn beside_daemon(state: &PoolState, way: &mut Way, on: &Way) {
    let never_meet = on.market.and(way.market).is_empty() || on.types.is_disjoint(&way.types);
    if never_meet || !on.open.overlaps(&way.open) {
        return;
    }
    let types = Arc::make_mut(&mut way.types);
    let offered = way.market.beside(on.market).map(|market| (market, state.catalogue.offered(market)));
    match offered.filter(|(_, offered)| !offered.is_disjoint(types)) {
        Some((market, offered)) => {
            way.market = market;
            types.intersect_with(&offered);
        }
        None => types.difference_with(&on.types),
    }
}

/// Takes away the nodes with daemons that pods must not be near.
fn apart_from_daemons(
    problem: &Problem<'_>,
    state: &PoolState,
    (request, wants): (&Amounts, &Wants),
    mut way: Way,
) -> Result<Way, Misfit> {
    for (rule, daemon, on) in repelling(problem, state, wants) {
        beside_daemon(state, &mut way, on);
        if !way.types.ones().any(|at| state.price_of(at, way.market, request).is_some()) {
            return Err(Misfit::Daemon { daemon: daemon.clone(), rule: problem.terms.describe(rule) });
        }
    }
    Ok(without_exotic(state, request, way))
}

fn too_big(problem: &Problem<'_>, state: &PoolState, shape: &Shape, request: &Amounts, way: &Way) -> Misfit {
    let rooms =
        || way.types.ones().flat_map(|t| state.rooms.each(t, way.market).into_iter().map(move |room| (t, room)));
    for (at, driver, wanted) in problem.dims.volumes(request) {
        let most = rooms().map(|(_, room)| room.free[at]).max();
        if let Some(most) = most.filter(|most| *most < request[at]) {
            return Misfit::TooManyVolumes { driver: driver.into(), wanted, most: whole(most).unwrap_or_default() };
        }
    }
    for (at, name) in problem.dims.names().iter().enumerate().filter(|(at, _)| request[*at] > 0) {
        let most = rooms().max_by_key(|(_, room)| room.free[at]);
        let Some((most, room)) = most.filter(|(_, room)| room.free[at] < request[at]) else { continue };
        let allocatable = state.catalogue.types()[most].allocatable().get(name);
        let largest = (allocatable - room.daemons.get(name)).max(allocatable.times(0));
        return Misfit::TooBig { resource: name.clone(), wanted: shape.requests.get(name), largest };
    }
    Misfit::NoTypeHasAll
}

/// Answers the market that all ways leave.
pub(crate) fn common_market(state: &PoolState, ways: impl Iterator<Item = Market>) -> Market {
    ways.fold(state.market, Market::and)
}

/// Gives names in order to units of pods.
pub(crate) fn draw(groups: &mut [Group], group: usize, units: u32) -> Vec<PodKey> {
    let count = units as usize * groups[group].unit as usize;
    let waiting = &mut groups[group].waiting;
    let rest = waiting.len().saturating_sub(count);
    let mut drawn = waiting.split_off(rest);
    drawn.reverse();
    groups[group].drawn += drawn.len();
    drawn
}

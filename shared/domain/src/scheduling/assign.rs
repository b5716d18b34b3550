//! Decides for each pod in which domain it goes: onto a host there, or onto a new node that will be made there.
//!
//! Rules on domains (zones, mostly) are settled here, one pod after the other, so that packing has only rules on single nodes left.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::amounts::{Amounts, copies};
use super::board::{Board, KeyId, NewNodes, ValueId, filter_admits_host};
use super::packing::{limits_left, node_size};
use super::problem::{HostLabels, HostState, PoolState, Problem, Way, way};
use super::queue::{ByPool, Group, Kind, Pins, Ways, bears_all, distinct_values, is_plain};
use super::terms::{CounterId, Filter};
use super::wants::{Asks, Rule, Wants};
use super::{Hosts, InFlightNode, Misfit, Placement};
use crate::api::labels;
use crate::catalogue::{CapacityType, Price, RankedOffering, TypeSet};
use crate::cluster::{HostPort, MinValuesPolicy, PodKey, Shape, Spread};
use crate::requirement::{Requirement, Requirements, ValueSet};

/// More combinations of domains than one kind of pods is looked at in; what lies beyond is left out.
const MAX_CELLS: usize = 1024;
/// Rounds over all kinds: pods may wait for others to be placed that they must be near.
const MAX_PASSES: usize = 4;

/// Names the pods of one kind that go to new nodes of one cell on one step of relaxation.
pub(crate) type Batch = (usize, usize, usize);

/// By the counter of a spread, the domains of nodes that are planned in pools which its pods do not tolerate. A spread looks at those nodes
/// all the same, unless it honors taints: a domain comes into being in which the pods cannot be.
pub(crate) type Elsewhere = BTreeMap<CounterId, BTreeSet<ValueId>>;

/// A combination of domains in which pods of a kind may go.
#[derive(Clone)]
struct Cell {
    pins: Pins,
    alternatives: Arc<[Requirements]>,
    /// Pools that may make its new nodes; all of them where none is named.
    side: Option<Side>,
    /// By pool; looked up when first asked for.
    ways: Option<ByPool>,
    price: Option<Price>,
    /// Hosts with the right labels, taints and, at first, room; not listed where one cell is all there is.
    hosts: Vec<usize>,
    /// Hosts before this one, of the list or of all, are full or unsuitable.
    next: usize,
}

/// Pools that are alike to every spread that counts the pods of a kind. One with `nodeTaintsPolicy: Honor` does not count pods on nodes
/// whose taints its own pods do not tolerate, so which side of it a pod is on has to be settled before packing.
#[derive(Clone)]
struct Side {
    /// By pool.
    pools: Arc<[bool]>,
    /// One of them.
    first: usize,
}

/// One step of a kind, made ready.
struct Step {
    cells: Vec<Cell>,
    /// The domains over which each rule on domains spreads; none for other rules.
    universes: Vec<Arc<[ValueId]>>,
}

/// The pods of a solution while it is decided where they go.
pub(crate) struct Assignment<'r> {
    problem: &'r Problem<'r>,
    kinds: &'r [Kind],
    hosts: &'r Hosts<'r>,
    /// At most so many pods may go to new nodes of a batch: more did not fit in an earlier round.
    caps: &'r FxHashMap<Batch, u32>,
    /// Domains of nodes that an earlier round planned for other pods.
    elsewhere: &'r Elsewhere,
    ways: &'r mut Ways,
    board: Board,
    steps: FxHashMap<(usize, usize), Step>,
    /// How many pods of each kind have been dealt with.
    cursor: Vec<usize>,
    targets: Vec<KeyId>,
    /// The counters of spreads that also count pods which go by none of them: the domain of such a pod must be known, too.
    careless: &'r FxHashSet<CounterId>,
    pub(crate) placements: Vec<Placement>,
    pub(crate) groups: Vec<Group>,
    pub(crate) batches: Vec<Batch>,
    /// The counters of which it is not known yet whether they look at the nodes of a group.
    doubtful: Vec<SmallVec<[CounterId; 2]>>,
    open: FxHashMap<Batch, usize>,
    /// How many pods have been sent to new nodes.
    sent: FxHashMap<Batch, u32>,
    /// By label, its domains where nothing keeps a pod out of one.
    all_values: FxHashMap<KeyId, Arc<[ValueId]>>,
}

impl Cell {
    /// Keeps the ways of pools that may make its nodes.
    fn on_its_side(&self, ways: ByPool) -> ByPool {
        let Some(side) = &self.side else { return ways };
        if side.pools.iter().zip(&*ways).all(|(on, ways)| *on || ways.is_err()) {
            return ways;
        }
        let other = || Misfit::Topology { rule: "nodes that a spread does not count".to_owned() };
        let keep = |(on, ways): (&bool, &Result<Vec<Way>, Misfit>)| if *on { ways.clone() } else { Err(other()) };
        side.pools.iter().zip(&*ways).map(keep).collect()
    }
}

impl<'r> Assignment<'r> {
    pub(crate) fn new(
        problem: &'r Problem<'r>,
        kinds: &'r [Kind],
        hosts: &'r Hosts<'r>,
        (caps, elsewhere): (&'r FxHashMap<Batch, u32>, &'r Elsewhere),
        careless: &'r FxHashSet<CounterId>,
        ways: &'r mut Ways,
        board: Board,
    ) -> Self {
        Assignment {
            problem,
            kinds,
            hosts,
            caps,
            elsewhere,
            ways,
            board,
            steps: FxHashMap::default(),
            cursor: vec![0; kinds.len()],
            targets: targets(problem, kinds),
            careless,
            placements: Vec::new(),
            groups: Vec::new(),
            batches: Vec::new(),
            doubtful: Vec::new(),
            open: FxHashMap::default(),
            sent: FxHashMap::default(),
            all_values: FxHashMap::default(),
        }
    }

    /// Deals with every kind, those that wait for others again.
    pub(crate) fn run(&mut self) {
        for _ in 0..MAX_PASSES {
            let before: usize = self.cursor.iter().sum();
            for kind in 0..self.kinds.len() {
                for step in 0..self.kinds[kind].steps.len() {
                    if self.left(kind) == 0 {
                        break;
                    }
                    self.step(kind, step);
                }
            }
            let social = |at: usize| self.left(at) > 0 && self.kinds[at].shape.is_social();
            if self.cursor.iter().sum::<usize>() == before || !(0..self.kinds.len()).any(social) {
                break;
            }
        }
        if matches!(self.hosts, Hosts::All) {
            let grows = |pool: &usize| self.groups.iter().any(|group| group.ways[*pool].is_ok());
            let growing: Vec<usize> = (0..self.problem.pools.len()).filter(grows).collect();
            for kind in 0..self.kinds.len() {
                if self.left(kind) > 0 && !self.counts_new_hosts(kind, &growing) {
                    self.level(kind);
                }
            }
        }
        // pods are drawn from the end
        self.groups.iter_mut().for_each(|group| group.waiting.reverse());
    }

    /// Pods that spread over hosts, where none is to be made that they look at: every host may hold as many more as the emptiest one has.
    /// Elsewhere an empty host can always be made, so that the least is zero.
    fn level(&mut self, kind: usize) {
        let spreads = |rule: &Rule| matches!(rule.asks, Asks::Spread { .. });
        for step in 0..self.kinds[kind].steps.len() {
            let wants = self.wants(kind, step);
            if wants.alternatives.is_empty() || !wants.hosts.iter().any(spreads) {
                continue;
            }
            let ready = self.steps.remove(&(kind, step)).unwrap_or_else(|| self.ready(kind, step));
            let domains = self.hosts_that_count(kind);
            while self.left(kind) > 0 {
                let raised = |rule: &Rule| match rule.asks {
                    Asks::Spread { skew, min_domains } => {
                        let counts = domains.iter().map(|host| self.board.on_host(rule.counter, *host));
                        let least = least(counts, min_domains);
                        Rule { asks: Asks::Spread { skew: skew.saturating_add(least), min_domains }, ..*rule }
                    }
                    _ => *rule,
                };
                let rules: Vec<Rule> = wants.hosts.iter().map(raised).collect();
                let room = |host: usize| self.board.room(host, &self.kinds[kind], &rules);
                let valid = |host: usize| {
                    let keys = wants.domains.iter().filter_map(|rule| self.problem.domains.key(rule.counter));
                    let value = |key: KeyId| self.problem.domains.host(key, host).map(|value| (key, value));
                    self.valid(wants, &ready.universes, &keys.filter_map(value).collect::<Pins>())
                };
                let near = || wants.hosts.iter().filter(|rule| rule.asks == Asks::Near);
                let first = near().all(|rule| rule.own && self.board.anywhere(rule.counter) == 0);
                let meets = |host: usize| first || near().all(|rule| self.board.on_host(rule.counter, host) > 0);
                let takes = |host: usize| self.suits(kind, step, host) && room(host) > 0 && meets(host) && valid(host);
                match self.problem.host_order.iter().copied().find(|host| takes(*host)) {
                    Some(host) => self.put(kind, host, 1),
                    None => break,
                }
            }
            self.steps.insert((kind, step), ready);
        }
    }

    /// Says whether spreads over hosts of a kind may look at new nodes of these pools.
    fn counts_new_hosts(&self, kind: usize, pools: &[usize]) -> bool {
        let shape = &self.kinds[kind].shape;
        let (labelled, taints) = host_filters(shape);
        pools.iter().map(|pool| &self.problem.pools[*pool]).any(|state| {
            let may_satisfy = |wanted: &Requirements| {
                way(&state.pool.requirements, &state.catalogue, &state.types, state.market, wanted, 0).is_ok()
            };
            (!labelled || shape.alternatives.iter().any(may_satisfy))
                && (!taints || bears_all(shape, &state.pool.taints, false).is_ok())
        })
    }

    /// The hosts that spreads over hosts of a kind look at, whatever it prefers and wherever its volumes are; rather too many than too few.
    fn hosts_that_count(&self, kind: usize) -> Vec<usize> {
        let shape = &self.kinds[kind].shape;
        let (labelled, taints) = host_filters(shape);
        let counts = |state: &HostState| {
            (!labelled || shape.alternatives.iter().any(|wanted| state.labels.may_satisfy(wanted)))
                && (!taints || bears_all(shape, &state.taints, false).is_ok())
        };
        (0..self.problem.hosts.len()).filter(|host| counts(&self.problem.hosts[*host])).collect()
    }

    /// Answers the domains of planned nodes that spreads reckon with by kube-scheduler's rules and did not in this round: those of nodes on
    /// which their own pods cannot be. A node that is open between domains, all of which would be new, stands for the first of them.
    pub(crate) fn seen_elsewhere(&self, nodes: &[InFlightNode]) -> Elsewhere {
        let problem = self.problem;
        let mut seen = Elsewhere::new();
        if problem.is_untainted() {
            return seen;
        }
        for (pool, state) in problem.pools.iter().enumerate() {
            let mut shut_out: BTreeMap<CounterId, Vec<&Arc<[ValueId]>>> = BTreeMap::new();
            for ((kind, step), ready) in &self.steps {
                if bears_all(&self.kinds[*kind].shape, &state.pool.taints, false).is_ok() {
                    continue;
                }
                for (rule, universe) in self.wants(*kind, *step).domains.iter().zip(&ready.universes) {
                    let filter = problem.terms.filter(rule.counter);
                    let looks = filter.is_none_or(|filter| filter.tolerations.is_none());
                    if looks && matches!(rule.asks, Asks::Spread { .. }) {
                        let known = shut_out.entry(rule.counter).or_default();
                        if !known.contains(&universe) {
                            known.push(universe);
                        }
                    }
                }
            }
            for node in nodes.iter().filter(|node| !shut_out.is_empty() && node.pool == state.pool.name) {
                let labels = labels_of(state, node);
                for (counter, universes) in &shut_out {
                    let Some(key) = problem.domains.key(*counter) else { continue };
                    let names = possible_values(node, &problem.domains.keys[key]);
                    let ids = problem.pool_values[pool][key].iter();
                    let values: Vec<ValueId> =
                        ids.filter(|id| names.contains(problem.domains.name(**id))).copied().collect();
                    let filter = problem.terms.filter(*counter).and_then(|filter| filter.alternatives.as_ref());
                    let counts = || filter.is_none_or(|all| all.iter().any(|wanted| labels.may_satisfy(wanted)));
                    let lacks_all = |universe: &&&Arc<[ValueId]>| values.iter().all(|value| !universe.contains(value));
                    let first =
                        values.first().filter(|_| universes.iter().any(|universe| lacks_all(&universe)) && counts());
                    if let Some(value) = first {
                        seen.entry(*counter).or_default().insert(*value);
                    }
                }
            }
        }
        seen
    }

    /// Answers the pods of a kind that go nowhere.
    pub(crate) fn rest(&self, kind: usize) -> &'r [PodKey] {
        &self.kinds[kind].pods[self.cursor[kind]..]
    }

    /// Answers what kept pods of a kind out, by pool, on the last step of relaxation: what keeps them off in every domain, what keeps
    /// the pool from growing, or else the topology. `closed` answers the second for the ways in which the pods fit a pool.
    pub(crate) fn why(&mut self, kind: usize, closed: impl Fn(usize, &[Way]) -> Option<Misfit>) -> Vec<Misfit> {
        let problem = self.problem;
        let (shape, request) = (&self.kinds[kind].shape, &self.kinds[kind].request);
        let wants = self.wants(kind, self.kinds[kind].steps.len() - 1);
        let rule = wants.domains.first().or(wants.hosts.iter().find(|rule| rule.asks == Asks::Near));
        let topology = || match rule {
            Some(rule) => Misfit::Topology { rule: problem.terms.describe(rule) },
            None => Misfit::Topology { rule: "pods that must not meet it in the same domain".to_owned() },
        };
        let of_pool = |pool| match self.ways.of(problem, pool, shape, request, wants, &wants.alternatives) {
            Ok(ways) => closed(pool, &ways).unwrap_or_else(topology),
            Err(misfit) => misfit,
        };
        (0..problem.pools.len()).map(of_pool).collect()
    }

    /// Answers the groups with pods that did not fit on new nodes.
    pub(crate) fn waiting_groups(&self) -> impl Iterator<Item = usize> {
        (0..self.groups.len()).filter(|at| !self.groups[*at].waiting.is_empty())
    }

    pub(crate) fn kinds(&self) -> usize {
        self.kinds.len()
    }

    fn left(&self, kind: usize) -> u32 {
        u32::try_from(self.rest(kind).len()).unwrap_or(u32::MAX)
    }

    fn wants(&self, kind: usize, step: usize) -> &'r Wants {
        &self.kinds[kind].steps[step]
    }

    fn step(&mut self, kind: usize, step: usize) {
        let wants = self.wants(kind, step);
        if wants.alternatives.is_empty() {
            return;
        }
        let mut ready = self.steps.remove(&(kind, step)).unwrap_or_else(|| self.ready(kind, step));
        if wants.hosts.iter().any(|rule| rule.asks == Asks::Near) {
            self.near(kind, step, &mut ready);
        } else if wants.domains.is_empty() && ready.cells.len() == 1 {
            self.plain(kind, step, &mut ready);
        } else {
            self.one_by_one(kind, step, &mut ready);
        }
        self.steps.insert((kind, step), ready);
    }

    /// Pods without rules on domains: as many as fit on each host, the rest on new nodes.
    fn plain(&mut self, kind: usize, step: usize, ready: &mut Step) {
        let cell = &mut ready.cells[0];
        let order = &self.problem.host_order;
        while cell.next < order.len() {
            let left = self.left(kind);
            if left == 0 {
                return;
            }
            let host = order[cell.next];
            cell.next += 1;
            if self.suits(kind, step, host) {
                let room = self.room(kind, step, host).min(left);
                if room > 0 {
                    self.put(kind, host, room);
                }
            }
        }
        let batch = (kind, step, 0);
        let count = self.left(kind).min(self.cap(batch));
        if count > 0 && self.can_be_made(kind, step, &mut ready.cells[0]) {
            self.pend(batch, &ready.cells[0], count);
        }
    }

    /// Pods with rules on domains: each goes to the best domain that is valid then.
    fn one_by_one(&mut self, kind: usize, step: usize, ready: &mut Step) {
        let wants = self.wants(kind, step);
        while self.left(kind) > 0 {
            let mut best = None;
            for at in 0..ready.cells.len() {
                if !self.valid(wants, &ready.universes, &ready.cells[at].pins) {
                    continue;
                }
                let crowd = self.crowd((kind, step, at), &ready.cells);
                let cell = &mut ready.cells[at];
                while cell.next < cell.hosts.len() && self.room(kind, step, cell.hosts[cell.next]) == 0 {
                    cell.next += 1;
                }
                let host = cell.hosts.get(cell.next).copied();
                if host.is_none() && (self.cap((kind, step, at)) == 0 || !self.can_be_made(kind, step, cell)) {
                    continue;
                }
                let key = (host.is_none(), crowd, Reverse(self.weight(cell)), cell.price, at);
                if best.as_ref().is_none_or(|(least, _)| key < *least) {
                    best = Some((key, host));
                }
            }
            match best {
                Some((_, Some(host))) => self.put(kind, host, 1),
                Some(((.., at), None)) => self.pend((kind, step, at), &ready.cells[at], 1),
                None => return,
            }
        }
    }

    /// Pods that must share a node with others.
    fn near(&mut self, kind: usize, step: usize, ready: &mut Step) {
        let wants = self.wants(kind, step);
        let near: Vec<Rule> = wants.hosts.iter().filter(|rule| rule.asks == Asks::Near).copied().collect();
        while self.left(kind) > 0 {
            let first = near.iter().all(|rule| rule.own && self.board.anywhere(rule.counter) == 0);
            let valid = |run: &Self, cell: &Cell| run.valid(wants, &ready.universes, &cell.pins);
            let meets =
                |run: &Self, host: usize| first || near.iter().all(|rule| run.board.on_host(rule.counter, host) > 0);
            let hosts = ready.cells.iter().filter(|cell| valid(self, cell)).flat_map(|cell| cell.hosts.iter());
            let roomy =
                hosts.copied().filter(|host| meets(self, *host)).map(|host| (self.room(kind, step, host), host));
            // the first one chooses the host with most room, since its like must follow it there
            let best = roomy.filter(|(room, _)| *room > 0).max_by_key(|(room, host)| (*room, Reverse(*host)));
            if let Some((room, host)) = best {
                let count = if wants.domains.is_empty() { room.min(self.left(kind)) } else { 1 };
                self.put(kind, host, count);
                continue;
            }
            let cells: Vec<usize> = (0..ready.cells.len()).filter(|at| valid(self, &ready.cells[*at])).collect();
            let done = if first {
                cells.iter().any(|at| self.bundle((kind, step, *at), &ready.cells[*at]))
            } else {
                let waiting = near.iter().all(|rule| self.board.anywhere(rule.counter) > 0);
                waiting && cells.iter().any(|at| self.join((kind, step, *at), &mut ready.cells[*at]))
            };
            if !done {
                return;
            }
        }
    }

    /// Makes one unit of as many pods as one new node can hold.
    fn bundle(&mut self, batch: Batch, cell: &Cell) -> bool {
        let (kind, step, _) = batch;
        let wants = self.wants(kind, step);
        let others = wants.hosts.iter().filter(|rule| rule.asks != Asks::Near).map(|rule| rule.room(0)).min();
        let singly = if wants.domains.is_empty() { u32::MAX } else { 1 };
        let most = self.left(kind).min(others.unwrap_or(u32::MAX)).min(self.cap(batch)).min(singly);
        let fits = |run: &mut Self, unit: u32| {
            let request = times(&run.kinds[kind].request, unit);
            let shape = &run.kinds[kind].shape;
            let ways = run.ways.by_pool(run.problem, shape, &request, wants, (&cell.pins, &cell.alternatives));
            let ways = cell.on_its_side(ways);
            let grows = |(pool, ways): (usize, &Result<Vec<Way>, Misfit>)| {
                ways.iter().flatten().any(|way| !way.types.is_disjoint(&run.problem.addable[pool]))
            };
            ways.iter().enumerate().any(grows).then_some(ways)
        };
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match fits(self, middle) {
                Some(_) => low = middle,
                None => high = middle - 1,
            }
        }
        let Some(ways) = (low > 0).then(|| fits(self, low)).flatten() else { return false };
        self.group(batch, cell, low, false, ways);
        self.fill_group(self.groups.len() - 1, cell, low);
        true
    }

    /// Sends all that are left to new nodes on which the pods are that they must be near.
    fn join(&mut self, batch: Batch, cell: &mut Cell) -> bool {
        let (kind, step, _) = batch;
        // where each pod changes what is valid for the next, they go one by one
        let most = if self.wants(kind, step).domains.is_empty() { u32::MAX } else { 1 };
        let count = self.left(kind).min(self.cap(batch)).min(most);
        if count == 0 || !self.can_be_made(kind, step, cell) {
            return false;
        }
        let ways = cell.ways.clone().unwrap_or_else(|| Arc::from([]));
        self.group(batch, cell, 1, true, ways);
        self.fill_group(self.groups.len() - 1, cell, count);
        true
    }

    fn cap(&self, batch: Batch) -> u32 {
        let Some(cap) = self.caps.get(&batch) else { return u32::MAX };
        cap.saturating_sub(self.sent.get(&batch).copied().unwrap_or(0))
    }

    fn room(&self, kind: usize, step: usize, host: usize) -> u32 {
        let rules = &self.wants(kind, step).hosts;
        self.board.room(host, &self.kinds[kind], rules)
    }

    fn put(&mut self, kind: usize, host: usize, count: u32) {
        let problem = self.problem;
        let state = &problem.hosts[host];
        self.board.put(&problem.terms, &problem.domains, (host, state), &self.kinds[kind], count);
        let from = self.cursor[kind];
        self.cursor[kind] += count as usize;
        let target = problem.target(host);
        let pods = self.kinds[kind].pods[from..self.cursor[kind]].iter();
        self.placements.extend(pods.map(|pod| Placement { pod: pod.clone(), target: target.clone() }));
    }

    fn pend(&mut self, batch: Batch, cell: &Cell, count: u32) {
        let group = match self.open.get(&batch) {
            Some(group) => *group,
            None => {
                self.group(batch, cell, 1, false, cell.ways.clone().unwrap_or_else(|| Arc::from([])));
                self.open.insert(batch, self.groups.len() - 1);
                self.groups.len() - 1
            }
        };
        self.fill_group(group, cell, count);
    }

    fn group(&mut self, batch: Batch, cell: &Cell, unit: u32, joins: bool, ways: ByPool) {
        let kind = &self.kinds[batch.0];
        // larger units fit fewer types; other groups of a batch have the same nodes
        let known =
            (unit == 1).then(|| self.batches.iter().zip(&self.groups).position(|(b, g)| *b == batch && g.unit == 1));
        let doubtful = match known.flatten() {
            Some(group) => self.doubtful[group].clone(),
            None => self.doubtful(kind, &cell.alternatives, &ways),
        };
        self.doubtful.push(doubtful);
        self.batches.push(batch);
        self.groups.push(Group {
            kind: batch.0,
            priority: kind.priority,
            alternatives: cell.alternatives.clone(),
            rules: self.wants(batch.0, batch.1).hosts.clone(),
            counting: kind.counting.iter().copied().filter(|id| self.problem.terms.is_by_host(*id)).collect(),
            joins,
            unit,
            request: times(&kind.request, unit),
            shape: kind.shape.clone(),
            waiting: Vec::new(),
            drawn: 0,
            ways,
        });
    }

    /// The counters of a kind that look at labels which only some of the nodes have that may be made for it.
    fn doubtful(&self, kind: &Kind, alternatives: &[Requirements], ways: &ByPool) -> SmallVec<[CounterId; 2]> {
        let problem = self.problem;
        let is_sure = |filter: &Filter| {
            let pools = problem.pools.iter().zip(&**ways).zip(&problem.addable);
            let mut all =
                pools.flat_map(|((state, ways), addable)| ways.iter().flatten().map(move |way| (state, way, addable)));
            all.all(|(state, way, addable)| {
                let mut types = TypeSet::clone(&way.types);
                types.intersect_with(addable);
                let requirements = alternatives[way.alternative].and(&state.pool.requirements);
                let catalogue = state.catalogue.clone();
                types.is_clear()
                    || filter.is_sure_of(&HostLabels::Asked { requirements, catalogue, types, market: way.market })
            })
        };
        // what a kind asks for itself, its nodes have
        let other = |filter: &Filter| filter.alternatives.as_ref().is_some_and(|all| *all != kind.shape.alternatives);
        let looks = |id: &CounterId| problem.terms.filter(*id).is_some_and(|filter| other(filter) && !is_sure(filter));
        kind.counting.iter().copied().filter(looks).collect()
    }

    fn fill_group(&mut self, group: usize, cell: &Cell, count: u32) {
        let kind = self.groups[group].kind;
        *self.sent.entry(self.batches[group]).or_default() += count;
        let from = self.cursor[kind];
        self.cursor[kind] += count as usize;
        self.groups[group].waiting.extend_from_slice(&self.kinds[kind].pods[from..self.cursor[kind]]);
        let taints = cell.side.as_ref().map(|side| self.problem.pools[side.first].pool.taints.as_slice());
        let (pins, alternatives) = (&cell.pins, &*cell.alternatives);
        let doubtful = &self.doubtful[group];
        let new = NewNodes { pins, alternatives, taints: taints.unwrap_or_default(), doubtful };
        let (terms, domains) = (&self.problem.terms, &self.problem.domains);
        self.board.count_new(terms, domains, &new, &self.kinds[kind].counting, i64::from(count));
    }

    /// Says whether a new node in a cell can hold a pod, by any pool.
    fn can_be_made(&mut self, kind: usize, step: usize, cell: &mut Cell) -> bool {
        let problem = self.problem;
        if cell.ways.is_none() {
            let (shape, request) = (&self.kinds[kind].shape, &self.kinds[kind].request);
            let wants = self.wants(kind, step);
            let ways = self.ways.by_pool(problem, shape, request, wants, (&cell.pins, &cell.alternatives));
            let ways = cell.on_its_side(ways);
            // what cannot grow must not draw pods anywhere
            let growing = ways.iter().enumerate().filter(|(pool, _)| problem.grows(*pool));
            cell.price = growing.flat_map(|(_, ways)| ways.iter().flatten()).filter_map(|way| way.price).min();
            cell.ways = Some(ways);
        }
        cell.price.is_some()
    }

    /// Says whether a pod may go to a cell as counts stand.
    fn valid(&self, wants: &Wants, universes: &[Arc<[ValueId]>], pins: &[(KeyId, ValueId)]) -> bool {
        wants.domains.iter().zip(universes).all(|(rule, universe)| {
            let Some((_, value)) = self.pinned(rule.counter, pins) else { return false };
            let count = self.board.in_domain(rule.counter, value);
            match rule.asks {
                Asks::Spread { skew, min_domains } => {
                    let counts = universe.iter().map(|v| self.board.surely_in_domain(rule.counter, *v));
                    count + u32::from(rule.own) <= least(counts, min_domains).saturating_add(skew)
                }
                Asks::Near => count > 0 || (rule.own && self.board.anywhere(rule.counter) == 0),
                Asks::Apart => count == 0,
            }
        })
    }

    fn pinned(&self, counter: CounterId, pins: &[(KeyId, ValueId)]) -> Option<(KeyId, ValueId)> {
        let key = self.problem.domains.key(counter)?;
        pins.iter().find(|(pinned, _)| *pinned == key).copied()
    }

    /// How many like pods are in a cell: pods are spread over cells that are equally good, unless they want to be near each other.
    fn crowd(&self, (kind, step, at): Batch, cells: &[Cell]) -> u32 {
        let (wants, pins) = (self.wants(kind, step), &cells[at].pins);
        let mut spread = 0;
        let mut near = false;
        for rule in &wants.domains {
            match rule.asks {
                Asks::Spread { .. } => {
                    let value = self.pinned(rule.counter, pins).map(|(_, value)| value);
                    spread += value.map_or(0, |value| self.board.in_domain(rule.counter, value));
                }
                Asks::Near => near = true,
                Asks::Apart => {}
            }
        }
        if near || spread > 0 {
            return spread;
        }
        let waiting = |at: usize| self.open.get(&(kind, step, at)).map_or(0, |group| self.groups[*group].waiting.len());
        let crowd: usize = match cells[at].side {
            None => waiting(at),
            Some(_) => (0..cells.len()).filter(|other| cells[*other].pins == *pins).map(waiting).sum(),
        };
        u32::try_from(crowd).unwrap_or(u32::MAX)
    }

    /// The greatest weight of the pools that may make nodes of a cell, where they are parted.
    fn weight(&self, cell: &Cell) -> u32 {
        let Some(side) = &cell.side else { return 0 };
        let ways = cell.ways.as_deref().unwrap_or_default();
        let able = |ways: &Result<Vec<Way>, Misfit>| ways.iter().flatten().any(|way| way.price.is_some());
        let able = side.pools.iter().zip(ways).zip(&self.problem.pools).filter(|((on, ways), _)| **on && able(ways));
        able.map(|(_, state)| state.pool.weight).max().unwrap_or(0)
    }

    /// Finds the cells of a step with their hosts.
    fn ready(&mut self, kind: usize, step: usize) -> Step {
        let wants = self.wants(kind, step);
        let domains = &self.problem.domains;
        let mut keys: Vec<KeyId> = wants.domains.iter().filter_map(|rule| domains.key(rule.counter)).collect();
        let counted = self.kinds[kind].counting.iter().filter_map(|id| domains.key(*id));
        keys.extend(counted.filter(|key| self.targets.contains(key)));
        keys.sort_unstable();
        keys.dedup();
        let loose = self.loose_keys(kind, &keys);
        keys.extend(&loose);
        let near = wants.hosts.iter().any(|rule| rule.asks == Asks::Near);
        let sides = self.sides(kind, wants);
        let listed = near || !keys.is_empty() || sides.len() > 1;
        let values: Vec<(KeyId, Arc<[ValueId]>)> =
            keys.iter().map(|key| (*key, self.values(kind, wants, *key))).collect();
        let mut pins: Vec<Pins> = vec![Pins::new()];
        for (key, values) in &values {
            let longer = pins.iter().flat_map(|pins| {
                values.iter().map(|value| {
                    let mut pins = pins.clone();
                    pins.push((*key, *value));
                    pins
                })
            });
            pins = longer.take(MAX_CELLS).collect();
        }
        let cells = pins.into_iter().filter_map(|pins| self.cell(wants, pins));
        let mut cells: Vec<Cell> = match sides.as_slice() {
            [] => cells.collect(),
            sides => cells
                .flat_map(|cell| sides.iter().map(move |side| Cell { side: Some(side.clone()), ..cell.clone() }))
                .collect(),
        };
        let order = if listed { self.problem.host_order.as_slice() } else { &[] };
        // hosts are known for what they are: of cells that differ by their side, the first one lists them
        let known = cells.iter().enumerate().rev().filter(|_| !order.is_empty());
        let at: FxHashMap<Pins, usize> = known.map(|(at, cell)| (cell.pins.clone(), at)).collect();
        for host in order.iter().copied().filter(|host| self.suits(kind, step, *host)) {
            // a host without a label that is only counted by is as good as any
            let spare = |at: usize| values[at].1.first().filter(|_| loose.contains(&keys[at])).copied();
            let value = |at: usize| domains.host(keys[at], host).or_else(|| spare(at)).map(|value| (keys[at], value));
            let pins: Option<Pins> = (0..keys.len()).map(value).collect();
            if let Some(at) = pins.and_then(|pins| at.get(&pins)) {
                cells[*at].hosts.push(host);
            }
        }
        let universes = wants.domains.iter().map(|rule| self.universe(kind, rule)).collect();
        Step { cells, universes }
    }

    /// The labels, but for `known` ones, by which a kind is counted by spreads that it does not go by itself, where every node that may be made
    /// for it has them.
    fn loose_keys(&self, kind: usize, known: &[KeyId]) -> SmallVec<[KeyId; 2]> {
        let problem = self.problem;
        let everywhere = |key: &KeyId| {
            let mut growing = (0..problem.pools.len()).filter(|pool| problem.grows(*pool));
            growing.all(|pool| !problem.pool_values[pool][*key].is_empty())
        };
        let counted = self.kinds[kind].counting.iter().filter(|id| self.careless.contains(id));
        let keys = counted.filter_map(|id| problem.domains.key(*id));
        let mut keys: SmallVec<[KeyId; 2]> = keys.filter(|key| !known.contains(key) && everywhere(key)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn cell(&mut self, wants: &Wants, pins: Pins) -> Option<Cell> {
        let alternatives = self.ways.pinned(&self.problem.domains, &wants.alternatives, &pins);
        let possible = !alternatives.is_empty();
        possible.then_some(Cell { pins, alternatives, side: None, ways: None, price: None, hosts: Vec::new(), next: 0 })
    }

    /// Parts the pools that a kind tolerates, and that can grow, by the spreads that would count it there; nothing where no spread looks
    /// at taints.
    fn sides(&self, kind: usize, wants: &Wants) -> Vec<Side> {
        let problem = self.problem;
        let filters = self.kinds[kind].counting.iter().filter_map(|id| problem.terms.filter(*id));
        let looking: Vec<&Filter> = filters.filter(|filter| filter.tolerations.is_some()).collect();
        if looking.is_empty() || problem.is_untainted() {
            return Vec::new();
        }
        let mut sides: BTreeMap<Vec<bool>, Vec<usize>> = BTreeMap::new();
        for (at, state) in problem.pools.iter().enumerate() {
            let taints = &state.pool.taints;
            if bears_all(&self.kinds[kind].shape, taints, wants.shy).is_ok() && problem.grows(at) {
                sides.entry(looking.iter().map(|filter| filter.admits_taints(taints)).collect()).or_default().push(at);
            }
        }
        let side = |members: Vec<usize>| Side {
            pools: (0..problem.pools.len()).map(|pool| members.contains(&pool)).collect(),
            first: members[0],
        };
        sides.into_values().map(side).collect()
    }

    /// Says whether a kind may use a host that has room now.
    fn suits(&self, kind: usize, step: usize, host: usize) -> bool {
        let (problem, wants, kind) = (self.problem, self.wants(kind, step), &self.kinds[kind]);
        let state = &problem.hosts[host];
        let daemon_has = |wanted: &HostPort| state.daemon_ports.iter().any(|port| port.conflicts(wanted));
        self.hosts.allow(problem, host)
            && !kind.shape.ports.iter().any(daemon_has)
            && copies(&self.board.free[host], &kind.request) > 0
            && bears_all(&kind.shape, &state.taints, wants.shy).is_ok()
            && wants.alternatives.iter().any(|wanted| state.labels.satisfies(wanted))
    }

    /// The domains of a label that a kind may use: those of pools that it tolerates, and those of hosts.
    fn values(&mut self, kind: usize, wants: &Wants, key: KeyId) -> Arc<[ValueId]> {
        if is_plain(&wants.alternatives) && self.problem.is_untainted() {
            return self.all_values(kind, key);
        }
        let may_use = |host: &HostState| wants.alternatives.iter().any(|wanted| host.labels.may_satisfy(wanted));
        self.domains((kind, wants.shy), key, Some(&wants.alternatives), may_use).into()
    }

    /// The domains of a label where neither labels nor taints keep any pod out of one.
    fn all_values(&mut self, kind: usize, key: KeyId) -> Arc<[ValueId]> {
        if let Some(known) = self.all_values.get(&key) {
            return known.clone();
        }
        let values: Arc<[ValueId]> = self.domains((kind, false), key, None, |_| true).into();
        self.all_values.insert(key, values.clone());
        values
    }

    /// The domains over which a rule spreads, as kube-scheduler sees them: the pod's own selectors narrow them; its volumes, and taints that
    /// only discourage, do not.
    fn universe(&mut self, kind: usize, rule: &Rule) -> Arc<[ValueId]> {
        let (Asks::Spread { .. }, Some(key)) = (rule.asks, self.problem.domains.key(rule.counter)) else {
            return Arc::from([]);
        };
        let filter = self.problem.terms.filter(rule.counter);
        if filter.is_none() && self.problem.is_untainted() {
            return self.all_values(kind, key);
        }
        let alternatives = filter.and_then(|filter| filter.alternatives.as_deref());
        let mut values = self.domains((kind, false), key, alternatives, |host| {
            filter.is_none_or(|filter| filter_admits_host(filter, host))
        });
        let more = self.elsewhere.get(&rule.counter).into_iter().flatten().copied();
        values.extend(more.filter(|value| !values.contains(value)).collect::<Vec<_>>());
        values.into()
    }

    fn admits(&self, key: KeyId, alternatives: Option<&[Requirements]>, value: ValueId) -> bool {
        let (name, value) = (&self.problem.domains.keys[key], self.problem.domains.name(value));
        alternatives.is_none_or(|all| all.iter().any(|wanted| wanted.admits(name, value)))
    }

    /// The values of a label on new nodes of pools that a kind tolerates, and on some hosts, as far as requirements admit them.
    fn domains(
        &self,
        (kind, shy): (usize, bool),
        key: KeyId,
        alternatives: Option<&[Requirements]>,
        counts: impl Fn(&HostState) -> bool,
    ) -> Vec<ValueId> {
        let problem = self.problem;
        let mut values = Vec::new();
        for (pool, state) in problem.pools.iter().enumerate() {
            if bears_all(&self.kinds[kind].shape, &state.pool.taints, shy).is_ok() {
                values.extend_from_slice(&problem.pool_values[pool][key]);
            }
        }
        for (at, host) in problem.hosts.iter().enumerate() {
            let Some(value) = problem.domains.host(key, at) else { continue };
            if !values.contains(&value) && counts(host) {
                values.push(value);
            }
        }
        values.retain(|value| self.admits(key, alternatives, *value));
        values.sort_unstable_by_key(|value| problem.domains.name(*value));
        values.dedup();
        values
    }
}

/// What is known of the labels of a planned node.
fn labels_of(state: &PoolState, node: &InFlightNode) -> HostLabels {
    let mut types = TypeSet::with_capacity(state.catalogue.types().len());
    types.extend(node.offerings.iter().filter_map(|offering| state.catalogue.position(&offering.instance_type)));
    let requirements = node.requirements.and(&Requirements::from_labels(&node.labels));
    HostLabels::Asked { requirements, catalogue: state.catalogue.clone(), types, market: state.market }
}

/// The values of a label that a planned node may have, by what EC2 launches.
fn possible_values(node: &InFlightNode, key: &str) -> BTreeSet<Arc<str>> {
    let of = |offering: &RankedOffering| match key {
        labels::ZONE => Some(offering.zone.name.clone()),
        labels::ZONE_ID => Some(offering.zone.id.clone()),
        labels::CAPACITY_TYPE => Some(offering.capacity_type.as_str().into()),
        _ => node.requirements.single(key).cloned(),
    };
    node.offerings.iter().filter_map(of).collect()
}

/// Labels whose domain must be known for every pod that is counted, since others must be near such pods or apart from them.
fn targets(problem: &Problem<'_>, kinds: &[Kind]) -> Vec<KeyId> {
    let rules = kinds.iter().flat_map(|kind| kind.steps.first()).flat_map(|wants| &wants.domains);
    let firm = rules.filter(|rule| matches!(rule.asks, Asks::Near | Asks::Apart));
    let mut keys: Vec<KeyId> = firm.filter_map(|rule| problem.domains.key(rule.counter)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The least of the counts in domains: zero where there are fewer of them than `minDomains`.
fn least(counts: impl ExactSizeIterator<Item = u32>, min_domains: u32) -> u32 {
    if counts.len() < min_domains as usize { 0 } else { counts.min().unwrap_or(0) }
}

fn times(request: &Amounts, unit: u32) -> Amounts {
    request.iter().map(|amount| amount.saturating_mul(i64::from(unit))).collect()
}

/// The types that a pool can still add: offered, within its limits, and enough for its `minValues`; else none.
pub(crate) fn addable(state: &PoolState, policy: MinValuesPolicy) -> TypeSet {
    let mut types = state.types.clone();
    types.intersect_with(&state.catalogue.offered(state.market));
    if !state.pool.limits.is_empty() {
        let left = limits_left(state);
        let within: Vec<usize> = types.ones().filter(|at| node_size(state, *at).fits(&left)).collect();
        types.clear();
        types.extend(within);
    }
    let too_few = |(key, wanted): (&Arc<str>, &u32)| distinct_values(state, &types, key) < *wanted;
    if policy == MinValuesPolicy::Strict && state.pool.min_values.iter().any(too_few) {
        types.clear();
    }
    types
}

/// Answers the values of a label that new nodes of a pool can have, as one of these types.
pub(crate) fn pool_values(state: &PoolState, types: &TypeSet, key: &str) -> Vec<Arc<str>> {
    if types.is_clear() {
        return Vec::new();
    }
    let catalogue = &state.catalogue;
    let zones = |name: fn(&crate::catalogue::Zone) -> Arc<str>| {
        let in_use = (0..catalogue.zones().len()).filter(|zone| {
            let market = crate::catalogue::Market { zones: 1 << zone, capacity_types: u8::MAX }.and(state.market);
            !market.is_empty() && !catalogue.offered(market).is_disjoint(types)
        });
        in_use.map(|zone| name(&catalogue.zones()[zone])).collect()
    };
    match key {
        labels::ZONE => zones(|zone| zone.name.clone()),
        labels::ZONE_ID => zones(|zone| zone.id.clone()),
        labels::CAPACITY_TYPE => CapacityType::ALL
            .into_iter()
            .filter(|t| {
                let market = crate::catalogue::Market { zones: u64::MAX, capacity_types: 1 << *t as u8 };
                let market = market.and(state.market);
                !market.is_empty() && !catalogue.offered(market).is_disjoint(types)
            })
            .map(|t| t.as_str().into())
            .collect(),
        _ if catalogue.defines(key) => {
            let values = types.ones().filter_map(|at| catalogue.types()[at].labels.get(key)).flatten();
            let admitted = values.filter(|value| state.pool.requirements.admits(key, value));
            admitted.cloned().collect::<std::collections::BTreeSet<_>>().into_iter().collect()
        }
        _ => match state.pool.requirements.get(key).map(Requirement::values) {
            Some(ValueSet::Only(values)) => values.iter().cloned().collect(),
            _ => Vec::new(),
        },
    }
}

/// Whether all spreads over hosts of a shape look only at hosts whose labels it asks for, and only at those whose taints it bears.
fn host_filters(shape: &Shape) -> (bool, bool) {
    let all =
        |honors: fn(&Spread) -> bool| shape.spread.iter().filter(|spread| &*spread.key == labels::HOSTNAME).all(honors);
    (all(|spread| spread.honors_affinity), all(|spread| spread.honors_taints))
}

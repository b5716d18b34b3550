//! Decides for each pod in which domain it goes: onto a host there, or onto a new node that will be made there.
//!
//! Rules on domains (zones, mostly) are settled here, one pod after the other, so that packing has only rules on single nodes left.

mod cells;
mod elsewhere;
mod level;
mod obstacle;
mod universe;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use self::cells::{Cell, Step};
use self::universe::targets;
use super::amounts::{Amounts, copies};
use super::board::{Board, KeyId, NO_VALUE, NewNodes, ValueId};
use super::problem::{HostLabels, Problem, Way};
use super::queue::{ByPool, Group, Kind, Ways, bears_all, may_be_placed};
use super::reach::blame_volumes;
use super::terms::{CounterId, Filter};
use super::wants::{Asks, Rule, Wants};
use super::{Hosts, Misfit, Placement};
use crate::catalogue::TypeSet;
use crate::cluster::{HostPort, Pod, PodKey};
use crate::requirement::Requirements;

/// Rounds over all kinds: pods may wait for others to be placed that they must be near.
const MAX_PASSES: usize = 4;

/// Names the pods of one kind that go to new nodes of one cell on one step of relaxation.
pub(crate) type Batch = (usize, usize, usize);

/// By the counter of a spread, the domains of nodes that are planned in pools which its pods do not tolerate, or where their volumes are not.
/// A spread looks at those nodes all the same, unless it honors taints: a domain comes into being in which the pods cannot be.
pub(crate) type Elsewhere = BTreeMap<CounterId, BTreeSet<ValueId>>;

/// Domains by what is wanted of a node.
type ValuesIf = FxHashMap<Requirements, Arc<[ValueId]>>;

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
    /// The first group of single pods of each batch.
    first: FxHashMap<Batch, usize>,
    /// How many pods have been sent to new nodes.
    sent: FxHashMap<Batch, u32>,
    /// By label, its domains where nothing keeps a pod out of one.
    all_values: FxHashMap<KeyId, Arc<[ValueId]>>,
    /// By pool and label, its domains on new nodes such as is wanted.
    values_if: FxHashMap<(usize, KeyId), ValuesIf>,
    followers: Vec<Follower>,
}

/// Pods that must be near others in some domain.
#[derive(PartialEq, Eq)]
struct Follower {
    /// The pods that they must be near.
    counter: CounterId,
    /// The domains in which they can be.
    values: Arc<[ValueId]>,
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
            first: FxHashMap::default(),
            sent: FxHashMap::default(),
            all_values: FxHashMap::default(),
            values_if: FxHashMap::default(),
            followers: Vec::new(),
        }
    }

    /// Deals with every kind, those that wait for others again.
    pub(crate) fn run(&mut self) {
        self.followers = self.followers();
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
        let of_pool = |pool| match self.ways.told(problem, pool, (shape, request), wants, &wants.alternatives) {
            Ok(ways) => closed(pool, &ways),
            Err(misfit) => Some(misfit),
        };
        let found: Vec<Option<Misfit>> = (0..problem.pools.len()).map(of_pool).collect();
        let obstacle = found.contains(&None).then(|| self.obstacle(kind));
        found.into_iter().filter_map(|misfit| misfit.or_else(|| obstacle.clone())).collect()
    }

    /// Says whether volumes narrow where pods of a kind may be.
    pub(crate) fn is_bound(&self, kind: usize) -> bool {
        self.kinds[kind].bound
    }

    /// Puts the blame on volumes of a pod of a kind, where they are what keeps it out.
    pub(crate) fn blame_volumes(&mut self, kind: usize, pod: &Pod, why: &mut [Misfit]) {
        blame_volumes((self.problem, self.hosts), self.ways, (&self.kinds[kind], pod), why);
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
            let alone = self.alone(kind);
            for at in 0..ready.cells.len() {
                if !self.valid(wants, &ready.universes, &ready.cells[at].pins) {
                    continue;
                }
                let crowd = self.crowd(wants, &ready.cells[at]);
                let met = alone.iter().filter(|follower| self.can_follow(**follower, &ready.cells[at].pins)).count();
                let cell = &mut ready.cells[at];
                while cell.next < cell.hosts.len() && self.room(kind, step, cell.hosts[cell.next]) == 0 {
                    cell.next += 1;
                }
                let host = cell.hosts.get(cell.next).copied();
                if host.is_none() && (self.cap((kind, step, at)) == 0 || !self.can_be_made(kind, step, cell)) {
                    continue;
                }
                let key = (Reverse(met), host.is_none(), crowd, Reverse(self.weight(cell)), cell.price, at);
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

    /// The pods that must be near others, each way once.
    fn followers(&mut self) -> Vec<Follower> {
        let mut followers = Vec::new();
        for (kind, wants) in self.kinds.iter().enumerate().filter_map(|(at, kind)| Some((at, kind.steps.last()?))) {
            for rule in wants.domains.iter().filter(|rule| rule.asks == Asks::Near) {
                let Some(key) = self.problem.domains.key(rule.counter) else { continue };
                let follower = Follower { counter: rule.counter, values: self.values(kind, wants, key) };
                if !followers.contains(&follower) && may_be_placed(self.problem, &self.kinds[kind], self.ways) {
                    followers.push(follower);
                }
            }
        }
        followers
    }

    /// The followers of pods of a kind that have none of those yet where they can be.
    fn alone(&self, kind: usize) -> SmallVec<[usize; 4]> {
        let counting = &self.kinds[kind].counting;
        let is_alone = |follower: &Follower| {
            counting.contains(&follower.counter)
                && follower.values.iter().all(|value| self.board.in_domain(follower.counter, *value) == 0)
        };
        (0..self.followers.len()).filter(|at| is_alone(&self.followers[*at])).collect()
    }

    fn can_follow(&self, follower: usize, pins: &[(KeyId, ValueId)]) -> bool {
        let Follower { counter, values, .. } = &self.followers[follower];
        self.pinned(*counter, pins).is_some_and(|(_, value)| values.contains(&value))
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
        let known = (unit == 1).then(|| self.first.get(&batch)).flatten();
        let doubtful = match known {
            Some(group) => self.doubtful[*group].clone(),
            None => self.doubtful(kind, &cell.alternatives, &ways),
        };
        if unit == 1 {
            self.first.entry(batch).or_insert(self.groups.len());
        }
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

    /// Says whether a pod may go to a cell as counts stand.
    fn valid(&self, wants: &Wants, universes: &[Arc<[ValueId]>], pins: &[(KeyId, ValueId)]) -> bool {
        wants.domains.iter().zip(universes).all(|(rule, universe)| {
            self.pinned(rule.counter, pins).is_some_and(|(_, value)| self.holds(rule, universe, value))
        })
    }

    /// Says whether a rule lets one more pod into a domain as counts stand.
    fn holds(&self, rule: &Rule, universe: &[ValueId], value: ValueId) -> bool {
        if value == NO_VALUE {
            return rule.asks == Asks::Apart;
        }
        let count = self.board.in_domain(rule.counter, value);
        match rule.asks {
            Asks::Spread { skew, min_domains } => {
                let counts = universe.iter().map(|v| self.board.surely_in_domain(rule.counter, *v));
                count + u32::from(rule.own) <= least(counts, min_domains).saturating_add(skew)
            }
            Asks::Near => count > 0 || (rule.own && self.board.anywhere(rule.counter) == 0),
            Asks::Apart => count == 0,
        }
    }

    fn pinned(&self, counter: CounterId, pins: &[(KeyId, ValueId)]) -> Option<(KeyId, ValueId)> {
        let key = self.problem.domains.key(counter)?;
        pins.iter().find(|(pinned, _)| *pinned == key).copied()
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
}

/// The least of the counts in domains: zero where there are fewer of them than `minDomains`.
fn least(counts: impl ExactSizeIterator<Item = u32>, min_domains: u32) -> u32 {
    if counts.len() < min_domains as usize { 0 } else { counts.min().unwrap_or(0) }
}

fn times(request: &Amounts, unit: u32) -> Amounts {
    request.iter().map(|amount| amount.saturating_mul(i64::from(unit))).collect()
}

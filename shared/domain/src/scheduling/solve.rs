//! The solver: existing hosts first, then new nodes, pool by pool in the order of their weights.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::amounts::take;
use super::assign::{Assignment, Batch, Elsewhere};
use super::board::{Board, ValueId};
use super::finish::Listed;
use super::packing::{Draft, Packer, draft_price, node_size};
use super::problem::{Problem, bears};
use super::queue::{Group, Kind, Ways, kinds, waiting_pods};
use super::refuse::{planned, refuse, turned_away};
use super::scarcity::Scarcity;
use super::terms::CounterId;
use super::{InFlightNode, Misfit, Placement, Solution, Unschedulable, finish, improve, join, reservations, share};
use crate::catalogue::Price;
use crate::cluster::{Pod, Snapshot};
use crate::resources::Resources;

/// Answers where each waiting pod of the cluster goes, what to launch for the rest, and why a pod was refused.
///
/// A function of the snapshot alone: the order of its lists does not matter, no clock is read and nothing is random.
pub fn solve(snapshot: &Snapshot) -> Solution {
    let mut problem = Problem::new(snapshot);
    let solution = share::settled(&mut problem, solve_problem);
    reservations::count(snapshot, &problem, solution)
}

/// Solves a problem as it stands.
pub(crate) fn solve_problem(problem: &Problem<'_>) -> Solution {
    place(problem, waiting_pods(problem), &Hosts::All)
}

/// Says which hosts may take pods.
pub(crate) enum Hosts<'h> {
    /// All that are open.
    All,
    /// Those that are initialized, without some (by place in [`Problem::hosts`], in order: there may be thousands): the question that
    /// consolidation asks.
    ReadyWithout(&'h [usize]),
}

impl Hosts<'_> {
    pub(crate) fn allow(&self, problem: &Problem<'_>, at: usize) -> bool {
        match self {
            Hosts::All => problem.hosts[at].open,
            Hosts::ReadyWithout(gone) => {
                problem.hosts[at].open && problem.hosts[at].initialized && gone.binary_search(&at).is_err()
            }
        }
    }

    /// Says whether a host stays, whether or not it may take pods.
    pub(crate) fn keeps(&self, problem: &Problem<'_>, at: usize) -> bool {
        let gone = matches!(self, Hosts::ReadyWithout(gone) if gone.binary_search(&at).is_ok());
        !gone && !problem.hosts[at].host.is_leaving()
    }
}

/// Rounds of placing in which what did not fit on new nodes is placed otherwise in the next one. Batches that are short again after that
/// get no new nodes at all, so that the rounds end.
const PATIENT_ROUNDS: usize = 4;
/// After so many, batches that are short for the first time get none either.
const MOST_ROUNDS: usize = 12;

/// Places pods on the hosts allowed and on new nodes.
pub(crate) fn place(problem: &Problem<'_>, pods: Vec<Arc<Pod>>, hosts: &Hosts<'_>) -> Solution {
    let mut solution = Solution::default();
    let (mut board, pods) = keep_nominations(problem, pods, hosts, &mut solution);
    let mut ways = Ways::default();
    let (kinds, refused, careless) = kinds(problem, &pods, hosts, &mut ways);
    let mut caps: FxHashMap<Batch, u32> = FxHashMap::default();
    let mut elsewhere = Elsewhere::new();
    let mut expected: BTreeSet<(CounterId, ValueId)> = BTreeSet::new();
    let mut earlier: FxHashMap<usize, Vec<Misfit>> = FxHashMap::default();
    let mut round = 0;
    loop {
        let rounds = (&caps, &elsewhere);
        let mut assignment = Assignment::new(problem, &kinds, hosts, rounds, &careless, &mut ways, board.clone());
        assignment.run();
        let mut nodes = Vec::new();
        let misfits = launch(problem, &mut assignment.groups, &mut nodes);
        let seen = assignment.seen_elsewhere(&nodes);
        if !seen.is_empty() {
            seen.into_iter().for_each(|(counter, values)| elsewhere.entry(counter).or_default().extend(values));
            continue;
        }
        let met = assignment.daemons_met(&nodes);
        let unexpected: Vec<_> = met.into_iter().filter(|one| expected.insert(*one)).collect();
        if !unexpected.is_empty() {
            unexpected.into_iter().for_each(|(counter, value)| board.expect_in(counter, value));
            continue;
        }
        round += 1;
        let short = short(problem, &kinds, &assignment, &caps);
        if !short.is_empty() {
            let planned = planned(problem, &nodes);
            for at in assignment
                .waiting_groups()
                .filter(|at| short.iter().any(|(b, _)| *b == assignment.batches[*at]))
                .collect::<Vec<_>>()
            {
                let kind = assignment.groups[at].kind;
                earlier.insert(kind, turned_away(problem, &mut assignment, at, &misfits, &planned));
            }
            let patient = |batch: &Batch| round < PATIENT_ROUNDS || round < MOST_ROUNDS && !caps.contains_key(batch);
            let capped: Vec<(Batch, u32)> =
                short.into_iter().map(|(batch, fit)| (batch, if patient(&batch) { fit } else { 0 })).collect();
            caps.extend(capped);
            continue;
        }
        solution.nodes = nodes;
        refuse(problem, &mut assignment, &misfits, &earlier, &mut solution);
        solution.placements.append(&mut assignment.placements);
        break;
    }
    let refused = refused.into_iter().map(|(pod, reason)| Unschedulable { pod, reasons: vec![reason] });
    solution.unschedulable.extend(refused);
    solution.placements.sort_by(|a, b| a.pod.cmp(&b.pod));
    solution.unschedulable.sort_by(|a, b| a.pod.cmp(&b.pod));
    solution.unschedulable.dedup_by(|a, b| a.pod == b.pod);
    solution
}

/// The batches of which fewer pods fit on new nodes than was planned, with how many did, where another round may do better: the kind has
/// a wish less to insist on, or rules on domains, or is counted by such rules, which were reckoned with pods that are
/// nowhere now, or must join pods that may be on hosts by then.
fn short(
    problem: &Problem<'_>,
    kinds: &[Kind],
    assignment: &Assignment<'_>,
    caps: &FxHashMap<Batch, u32>,
) -> Vec<(Batch, u32)> {
    let mut fitted: FxHashMap<Batch, (usize, usize)> = FxHashMap::default();
    let joined: FxHashSet<Batch> = assignment
        .waiting_groups()
        .filter(|at| assignment.groups[*at].joins)
        .map(|at| assignment.batches[at])
        .collect();
    for (group, batch) in assignment.groups.iter().zip(&assignment.batches) {
        let count = fitted.entry(*batch).or_default();
        count.0 += group.waiting.len();
        count.1 += group.drawn;
    }
    let counted = |kind: &Kind| kind.counting.iter().any(|id| problem.domains.key(*id).is_some());
    let short = fitted.into_iter().filter(|(batch, (waiting, _))| {
        let (kind, step) = (&kinds[batch.0], batch.1);
        let matters = step + 1 < kind.steps.len()
            || !kind.steps[step].domains.is_empty()
            || counted(kind)
            || joined.contains(batch);
        *waiting > 0 && matters && caps.get(batch) != Some(&0)
    });
    short.map(|(batch, (_, drawn))| (batch, u32::try_from(drawn).unwrap_or(u32::MAX))).collect()
}

/// A pod that is nominated to an open host goes there: kube-scheduler keeps the room for it, and clears a nomination that does not come true
/// (kubernetes#135007). Answers the hosts with those pods, without the pods that are to move, and the pods that are left to place.
fn keep_nominations(
    problem: &Problem<'_>,
    pods: Vec<Arc<Pod>>,
    hosts: &Hosts<'_>,
    solution: &mut Solution,
) -> (Board, Vec<Arc<Pod>>) {
    let mut board = problem.board.clone();
    let mut rest = Vec::with_capacity(pods.len());
    for pod in pods {
        let named = |name: &Arc<str>| problem.by_node.get(name).copied();
        if let Some(at) = pod.node.as_ref().and_then(named) {
            let counting = problem.terms.counting(&pod);
            board.count_on(&problem.terms, &problem.domains, (at, &problem.hosts[at]), &counting, -1);
        }
        let nominated = pod.nominated.as_ref().filter(|_| pod.node.is_none()).and_then(named);
        let takes = |at: &usize| hosts.allow(problem, *at) && bears(&pod.shape, &problem.hosts[*at].taints).is_ok();
        match nominated.filter(takes) {
            Some(at) => {
                take(&mut board.free[at], &problem.demand(&pod), 1);
                let counting = problem.terms.counting(&pod);
                board.count_on(&problem.terms, &problem.domains, (at, &problem.hosts[at]), &counting, 1);
                solution.placements.push(Placement { pod: pod.key.clone(), target: problem.target(at) });
            }
            None => rest.push(pod),
        }
    }
    (board, rest)
}

/// Plans new nodes; answers a misfit by group and pool for pods that a full pool or `minValues` kept out.
fn launch(problem: &Problem<'_>, groups: &mut [Group], nodes: &mut Vec<InFlightNode>) -> Vec<Vec<Option<Misfit>>> {
    let prices = Scarcity::default();
    let mut order = vec![(0..groups.len()).collect()];
    let mut plan = Plan::of(problem, groups, &order, &prices);
    // nodes are chosen by what they hold for their price, which may leave those waiting that fit few types, or matter most
    let mut waiting = vec![false; groups.len()];
    for _ in 0..MOST_TURNS {
        waiting.iter_mut().zip(&plan.remaining).for_each(|(waits, left)| *waits |= *left > 0);
        let turns = turns(groups, &waiting);
        if plan.waiting() == 0 || turns.len() < 2 {
            break;
        }
        let other = Plan::of(problem, groups, &turns, &prices);
        if other.served(groups) <= plan.served(groups) {
            break;
        }
        (plan, order) = (other, turns);
    }
    // dearer types may take less of what limits leave
    for factor in SCARCITY {
        // who joins others later needs the room that nodes may still grow by
        if groups.iter().any(|group| group.joins) || !plan.is_limited(problem, groups) {
            break;
        }
        let worth: Price = plan.drafts.iter().filter_map(|draft| draft_price(problem, groups, draft)).sum();
        let other = Plan::of(problem, groups, &order, &Scarcity::of(problem, worth.scaled(factor, 1)));
        if other.served(groups) > plan.served(groups) {
            plan = other;
        }
    }
    join::join(problem, groups, &mut plan.drafts, &mut plan.left);
    plan.top_up(problem, groups);
    *nodes = finish::nodes(problem, groups, &plan.drafts, &mut plan.left, &mut plan.misfits);
    plan.misfits
}

/// Rounds of packing what waits into room that improvement made under limits.
const MOST_REFILLS: usize = 4;
/// All that the limits of a pool leave is worth so many times what the plan costs that left pods waiting: some, and then all but nothing else
/// counts.
const SCARCITY: [u64; 2] = [1, 100];
/// How often nodes are planned again for those first that were left waiting.
const MOST_TURNS: usize = 2;

/// Groups that have their turn together: by priority, and of one priority those first that would wait otherwise.
fn turns(groups: &[Group], waiting: &[bool]) -> Vec<Vec<usize>> {
    let mut turns: BTreeMap<(Reverse<i32>, bool), Vec<usize>> = BTreeMap::new();
    for (at, group) in groups.iter().enumerate() {
        turns.entry((Reverse(group.priority), !waiting[at])).or_default().push(at);
    }
    turns.into_values().collect()
}

#[derive(Default)]
struct Plan {
    drafts: Vec<Draft>,
    left: Vec<Resources>,
    remaining: Vec<u32>,
    misfits: Vec<Vec<Option<Misfit>>>,
}

impl Plan {
    /// Packs groups turn by turn.
    fn of(problem: &Problem<'_>, groups: &[Group], turns: &[Vec<usize>], scarcity: &Scarcity) -> Self {
        let mut plan = Plan::default();
        let mut packer = Packer::new(problem, groups, scarcity);
        let all = std::mem::replace(&mut packer.remaining, vec![0; groups.len()]);
        for turn in turns {
            turn.iter().for_each(|group| packer.remaining[*group] = all[*group]);
            pack(&mut packer, &mut plan.misfits);
        }
        plan.take(packer);
        improve::improve(problem, groups, &mut plan.drafts, &mut plan.left);
        if problem.pools.iter().any(|state| !state.pool.limits.is_empty()) {
            plan.refill(problem, groups, scarcity);
        }
        plan.leave_short_lists(problem, groups);
        plan
    }

    /// Makes nodes for what waits where improvement left room under limits.
    fn refill(&mut self, problem: &Problem<'_>, groups: &[Group], scarcity: &Scarcity) {
        for refill in 0..=MOST_REFILLS {
            let before = self.waiting();
            if before == 0 {
                return;
            }
            let mut packer = Packer::new(problem, groups, scarcity);
            packer.resume(std::mem::take(&mut self.drafts), self.left.clone(), self.remaining.clone());
            pack(&mut packer, &mut self.misfits);
            self.take(packer);
            // what waits after the last one must have no room left
            if self.waiting() == before || refill == MOST_REFILLS {
                return;
            }
            improve::improve(problem, groups, &mut self.drafts, &mut self.left);
        }
    }

    /// Puts what waits on nodes that may grow where limits allow no more of them; not where a list would become too short for `minValues`.
    fn top_up(&mut self, problem: &Problem<'_>, groups: &[Group]) {
        if !self.is_limited(problem, groups) {
            return;
        }
        let before = (self.drafts.clone(), self.left.clone(), self.remaining.clone());
        join::top_up(problem, groups, &mut self.drafts, &mut self.left, &mut self.remaining);
        let listings = finish::needs(problem, groups, &self.drafts, &mut self.left.clone());
        if listings.iter().any(|listed| matches!(listed, Listed::TooFew(_))) {
            (self.drafts, self.left, self.remaining) = before;
        }
    }

    /// How many pods wait, fewest last: of the highest priority first.
    fn served(&self, groups: &[Group]) -> Vec<Reverse<u64>> {
        let mut waiting: BTreeMap<Reverse<i32>, u64> = BTreeMap::new();
        for (group, left) in groups.iter().zip(&self.remaining) {
            *waiting.entry(Reverse(group.priority)).or_default() += u64::from(*left) * u64::from(group.unit);
        }
        waiting.into_values().map(Reverse).collect()
    }

    fn take(&mut self, packer: Packer<'_>) {
        self.drafts = packer.drafts;
        self.left = packer.left;
        self.remaining = packer.remaining;
    }

    /// Gives up drafts for which limits leave too few types for `minValues`; their pods go to smaller nodes or to other pools, where they can.
    fn leave_short_lists(&mut self, problem: &Problem<'_>, groups: &[Group]) {
        let mut full: FxHashMap<usize, Misfit> = FxHashMap::default();
        // types, by pool, of drafts that were given up: none so large is planned again, so that this ends
        let mut too_large: BTreeSet<(usize, usize)> = BTreeSet::new();
        loop {
            let gone = finish::leave_short(problem, groups, &mut self.drafts, &mut self.left);
            if gone.is_empty() {
                break;
            }
            for (draft, misfit) in gone {
                draft.fill.iter().for_each(|portion| self.remaining[portion.group] += portion.count);
                too_large.insert((draft.pool, draft.chosen));
                full.entry(draft.pool).or_insert(misfit);
            }
            let prices = Scarcity::default();
            let mut packer = Packer::new(problem, groups, &prices);
            for (pool, chosen) in &too_large {
                let state = &problem.pools[*pool];
                let size = node_size(state, *chosen);
                let as_large = (0..state.catalogue.types().len()).filter(|at| size.fits(&node_size(state, *at)));
                packer.banned[*pool].extend(as_large);
            }
            packer.resume(std::mem::take(&mut self.drafts), self.left.clone(), self.remaining.clone());
            pack(&mut packer, &mut self.misfits);
            self.take(packer);
        }
        let waiting = self.misfits.iter_mut().zip(&self.remaining).filter(|(_, count)| **count > 0);
        for (misfits, _) in waiting {
            for (pool, misfit) in &full {
                misfits[*pool].get_or_insert_with(|| misfit.clone());
            }
        }
    }

    /// Says whether pods wait that could be on nodes planned for pools with limits, were those larger.
    fn is_limited(&self, problem: &Problem<'_>, groups: &[Group]) -> bool {
        let limited = |pool: &usize| !problem.pools[*pool].pool.limits.is_empty();
        let pools: BTreeSet<usize> = self.drafts.iter().map(|draft| draft.pool).filter(limited).collect();
        let mut waiting = groups.iter().zip(&self.remaining).filter(|(_, left)| **left > 0);
        !pools.is_empty() && waiting.any(|(group, _)| pools.iter().any(|pool| group.ways[*pool].is_ok()))
    }

    fn waiting(&self) -> u64 {
        self.remaining.iter().map(|count| u64::from(*count)).sum()
    }
}

/// Packs pool by pool, in the order of their weights.
fn pack(packer: &mut Packer<'_>, misfits: &mut Vec<Vec<Option<Misfit>>>) {
    let pools = &packer.problem.pools;
    misfits.resize_with(packer.groups.len(), || vec![None; pools.len()]);
    let mut start = 0;
    while start < pools.len() {
        let weight = pools[start].pool.weight;
        let tier: Vec<usize> = (start..pools.len()).take_while(|pool| pools[*pool].pool.weight == weight).collect();
        start += tier.len();
        pack_tier(packer, &tier, misfits);
    }
}

/// Packs a tier; a draft that breaks `minValues` is undone, its type is banned, and packing goes on.
fn pack_tier(packer: &mut Packer<'_>, tier: &[usize], misfits: &mut [Vec<Option<Misfit>>]) {
    loop {
        let done = packer.drafts.len();
        packer.pack(tier);
        let mut broken = false;
        let fresh = packer.drafts.split_off(done);
        for draft in fresh {
            match finish::min_values(packer.problem, packer.groups, &draft) {
                Ok(()) => packer.drafts.push(draft),
                Err(misfit) => {
                    broken = true;
                    packer.banned[draft.pool].insert(draft.chosen);
                    let node = node_size(&packer.problem.pools[draft.pool], draft.chosen);
                    packer.left[draft.pool].add(&node);
                    for portion in &draft.fill {
                        packer.remaining[portion.group] += portion.count;
                        misfits[portion.group][draft.pool] = Some(misfit.clone());
                    }
                }
            }
        }
        if !broken {
            return;
        }
    }
}

//! The solver: existing hosts first, then new nodes, pool by pool in the order of their weights.

use std::sync::Arc;

use jiff::SignedDuration;

use rustc_hash::FxHashMap;

use super::amounts::take;
use super::assign::{Assignment, Batch};
use super::board::Board;
use super::packing::{Draft, Packer, limits_left, node_size};
use super::problem::Problem;
use super::queue::{Group, Kind, Ways, kinds, waiting_pods};
use super::wants::Asks;
use super::{InFlightNode, Misfit, Placement, Refusal, Solution, Unschedulable, finish, improve, join};
use crate::cluster::{Pod, Snapshot};
use crate::resources::Resources;

/// How long after a refusal for want of offerings a new look is worth while: recent capacity errors are forgotten by then.
const OFFERINGS_RETURN: SignedDuration = SignedDuration::from_mins(3);

/// Answers where each waiting pod of the cluster goes, what to launch for the rest, and why a pod was refused.
///
/// A function of the snapshot alone: the order of its lists does not matter, no clock is read and nothing is random.
pub fn solve(snapshot: &Snapshot) -> Solution {
    solve_problem(&Problem::new(snapshot))
}

/// Solves a problem as it stands.
pub(crate) fn solve_problem(problem: &Problem<'_>) -> Solution {
    place(problem, waiting_pods(problem), &Hosts::All)
}

/// Says which hosts may take pods.
pub(crate) enum Hosts<'h> {
    /// All that are open.
    All,
    /// Those that are initialized, without some (by place in [`Problem::hosts`]): the question that consolidation asks.
    ReadyWithout(&'h [usize]),
}

impl Hosts<'_> {
    pub(crate) fn allow(&self, problem: &Problem<'_>, at: usize) -> bool {
        match self {
            Hosts::All => problem.hosts[at].open,
            Hosts::ReadyWithout(gone) => problem.hosts[at].open && problem.hosts[at].initialized && !gone.contains(&at),
        }
    }
}

/// Rounds of placing: what did not fit on new nodes is placed otherwise in the next one.
const MAX_ROUNDS: usize = 5;

/// Places pods on the hosts allowed and on new nodes.
pub(crate) fn place(problem: &Problem<'_>, pods: Vec<Arc<Pod>>, hosts: &Hosts<'_>) -> Solution {
    let mut solution = Solution::default();
    let (board, pods) = keep_nominations(problem, pods, hosts, &mut solution);
    let (kinds, refused) = kinds(problem, &pods);
    let mut ways = Ways::default();
    let mut caps: FxHashMap<Batch, u32> = FxHashMap::default();
    for round in 1..=MAX_ROUNDS {
        let mut assignment = Assignment::new(problem, &kinds, hosts, &caps, &mut ways, board.clone());
        assignment.run();
        let mut nodes = Vec::new();
        let misfits = launch(problem, &mut assignment.groups, &mut nodes);
        let short = short(&kinds, &assignment);
        if round < MAX_ROUNDS && !short.is_empty() {
            caps.extend(short);
            continue;
        }
        solution.nodes = nodes;
        refuse(problem, &kinds, &assignment, &misfits, &mut solution);
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
/// a wish less to insist on, or rules on domains, which were reckoned with pods that are nowhere now.
fn short(kinds: &[Kind], assignment: &Assignment<'_>) -> Vec<(Batch, u32)> {
    let mut fitted: FxHashMap<Batch, (usize, usize)> = FxHashMap::default();
    for (group, batch) in assignment.groups.iter().zip(&assignment.batches) {
        let count = fitted.entry(*batch).or_default();
        count.0 += group.waiting.len();
        count.1 += group.drawn;
    }
    let short = fitted.into_iter().filter(|((kind, step, _), (waiting, _))| {
        let steps = &kinds[*kind].steps;
        *waiting > 0 && (step + 1 < steps.len() || !steps[*step].domains.is_empty())
    });
    short.map(|(batch, (_, drawn))| (batch, u32::try_from(drawn).unwrap_or(u32::MAX))).collect()
}

/// A pod that is nominated to an open host goes there: kube-scheduler keeps the room for it. Answers the hosts with those pods, without
/// the pods that are to move, and the pods that are left to place.
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
        match nominated.filter(|at| hosts.allow(problem, *at)) {
            Some(at) => {
                take(&mut board.free[at], &problem.dims.demand(&pod.shape.requests), 1);
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
    let mut plan = Plan::default();
    let mut packer = Packer::new(problem, groups);
    pack(&mut packer, &mut plan.misfits);
    plan.take(packer);
    improve::improve(problem, groups, &mut plan.drafts, &mut plan.left);
    // what was improved may have left room under a limit
    for _ in 0..MOST_REFILLS {
        let before = plan.drafts.len();
        if plan.waiting() == 0 || problem.pools.iter().all(|state| state.pool.limits.is_empty()) {
            break;
        }
        let mut packer = Packer::new(problem, groups);
        packer.resume(plan.drafts.clone(), plan.left.clone(), plan.remaining.clone());
        pack(&mut packer, &mut plan.misfits);
        plan.take(packer);
        if plan.drafts.len() == before {
            break;
        }
        improve::improve(problem, groups, &mut plan.drafts, &mut plan.left);
    }
    join::join(problem, groups, &mut plan.drafts, &mut plan.left);
    *nodes = finish::nodes(problem, groups, &plan.drafts, &mut plan.left);
    plan.misfits
}

/// Rounds of packing what waits into room that improvement made under limits.
const MOST_REFILLS: usize = 4;

#[derive(Default)]
struct Plan {
    drafts: Vec<Draft>,
    left: Vec<Resources>,
    remaining: Vec<u32>,
    misfits: Vec<Vec<Option<Misfit>>>,
}

impl Plan {
    fn take(&mut self, packer: Packer<'_>) {
        self.drafts = packer.drafts;
        self.left = packer.left;
        self.remaining = packer.remaining;
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

/// Gives every pod that is left its reasons, one for each pool.
fn refuse(
    problem: &Problem<'_>,
    kinds: &[Kind],
    assignment: &Assignment<'_>,
    misfits: &[Vec<Option<Misfit>>],
    solution: &mut Solution,
) {
    let waits = assignment.groups.iter().any(|group| !group.waiting.is_empty());
    let planned = if waits { planned(problem, solution) } else { Vec::new() };
    for (at, group) in assignment.groups.iter().enumerate().filter(|(_, group)| !group.waiting.is_empty()) {
        let reason = |pool: usize| match &group.ways[pool] {
            Err(misfit) => misfit.clone(),
            Ok(_) if group.joins => Misfit::Topology { rule: near_rule(problem, group) },
            Ok(_) => misfits[at][pool].clone().unwrap_or_else(|| limit_reached(problem, group, pool, &planned[pool])),
        };
        let reasons = reasons(problem, solution, reason);
        let pods = group.waiting.iter().rev().cloned();
        solution.unschedulable.extend(pods.map(|pod| Unschedulable { pod, reasons: reasons.clone() }));
    }
    for at in 0..kinds.len() {
        let rest = assignment.rest(at);
        if !rest.is_empty() {
            let why = assignment.why(at);
            let reasons = reasons(problem, solution, |pool| why[pool].clone());
            let pods = rest.iter().cloned();
            solution.unschedulable.extend(pods.map(|pod| Unschedulable { pod, reasons: reasons.clone() }));
        }
    }
}

fn near_rule(problem: &Problem<'_>, group: &Group) -> String {
    let near = group.rules.iter().find(|rule| rule.asks == Asks::Near);
    near.map(|rule| problem.terms.describe(rule)).unwrap_or_default()
}

fn reasons(problem: &Problem<'_>, solution: &mut Solution, of: impl Fn(usize) -> Misfit) -> Vec<Refusal> {
    let pools = problem.pools.iter().enumerate();
    let mut reasons: Vec<Refusal> =
        pools.map(|(at, state)| Refusal::Pool { pool: state.pool.name.clone(), misfit: of(at) }).collect();
    let closed = problem.closed.iter().cloned();
    reasons.extend(closed.map(|(pool, misfit)| Refusal::Pool { pool, misfit }));
    if reasons.is_empty() {
        reasons.push(Refusal::NoPools);
    }
    let waits = |r: &Refusal| matches!(r, Refusal::Pool { misfit: Misfit::NoOffering { .. }, .. });
    if reasons.iter().any(waits) {
        solution.next_look = problem.snapshot.now.checked_add(OFFERINGS_RETURN).ok();
    }
    reasons
}

/// What the planned nodes of each pool take of its limits.
fn planned(problem: &Problem<'_>, solution: &Solution) -> Vec<Resources> {
    let of = |state: &super::problem::PoolState| {
        let mut total = Resources::new();
        for node in solution.nodes.iter().filter(|node| node.pool == state.pool.name) {
            let mut most = Resources::new();
            for name in node.instance_types() {
                if let Some(at) = state.catalogue.position(&name) {
                    most.raise(&node_size(state, at));
                }
            }
            total.add(&most);
        }
        total
    };
    problem.pools.iter().map(of).collect()
}

/// The limit that keeps a group out of a pool which could hold it otherwise.
fn limit_reached(problem: &Problem<'_>, group: &Group, pool: usize, planned: &Resources) -> Misfit {
    let state = &problem.pools[pool];
    let left = limits_left(state).minus(planned);
    let types = group.ways[pool].iter().flatten().flat_map(|way| way.types.ones());
    let mut tightest = None;
    for at in types {
        let size = node_size(state, at);
        match size.iter().find(|(name, amount)| *amount > left.get(name)) {
            Some((name, amount)) => tightest = tightest.or(Some((name.to_owned(), amount))),
            None => continue,
        }
    }
    match tightest {
        Some((resource, _)) => Misfit::Limit {
            limit: state.pool.limits.get(&resource),
            used: state.used.get(&resource) + planned.get(&resource),
            resource,
        },
        None => Misfit::NoTypeHasAll,
    }
}

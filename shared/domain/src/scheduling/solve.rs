//! The solver: existing hosts first, then new nodes, pool by pool in the order of their weights.

use std::sync::Arc;

use jiff::SignedDuration;

use super::amounts::{copies, take};
use super::packing::{Draft, Order, Packer, limits_left, node_size};
use super::problem::{Problem, bears};
use super::queue::{Group, draw, groups, waiting_pods};
use super::{Misfit, Placement, Refusal, Solution, Target, Unschedulable, finish, improve};
use crate::catalogue::Price;
use crate::cluster::{Pod, PodKey, Snapshot};
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
    fn allow(&self, problem: &Problem<'_>, at: usize) -> bool {
        match self {
            Hosts::All => problem.hosts[at].open,
            Hosts::ReadyWithout(gone) => problem.hosts[at].open && problem.hosts[at].initialized && !gone.contains(&at),
        }
    }
}

/// Places pods on the hosts allowed and on new nodes.
pub(crate) fn place(problem: &Problem<'_>, pods: Vec<Arc<Pod>>, hosts: &Hosts<'_>) -> Solution {
    let mut solution = Solution::default();
    let (refused, pods): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| !pod.shape.unsupported.is_empty());
    for pod in refused {
        let reasons = pod.shape.unsupported.iter().map(|feature| Refusal::NotSupportedYet { feature: *feature });
        solution.unschedulable.push(Unschedulable { pod: pod.key.clone(), reasons: reasons.collect() });
    }
    let mut free: Vec<_> = problem.hosts.iter().map(|state| state.free.clone()).collect();
    let pods = keep_nominations(problem, pods, hosts, &mut free, &mut solution);
    let mut groups = groups(problem, &pods);
    place_on_hosts(problem, &mut groups, hosts, &mut free, &mut solution);
    let misfits = launch(problem, &mut groups, &mut solution);
    refuse(problem, &groups, &misfits, &mut solution);
    solution.placements.sort_by(|a, b| a.pod.cmp(&b.pod));
    solution.unschedulable.sort_by(|a, b| a.pod.cmp(&b.pod));
    solution.unschedulable.dedup_by(|a, b| a.pod == b.pod);
    solution
}

/// A pod that is nominated to an open host goes there: kube-scheduler keeps the room for it.
fn keep_nominations(
    problem: &Problem<'_>,
    pods: Vec<Arc<Pod>>,
    hosts: &Hosts<'_>,
    free: &mut [super::amounts::Amounts],
    solution: &mut Solution,
) -> Vec<Arc<Pod>> {
    let mut rest = Vec::with_capacity(pods.len());
    for pod in pods {
        let host = pod.nominated.as_ref().filter(|_| pod.node.is_none()).and_then(|name| {
            let named = |at: &usize| problem.hosts[*at].host.node.as_ref().is_some_and(|node| node.name == *name);
            (0..problem.hosts.len()).find(named).filter(|at| hosts.allow(problem, *at))
        });
        match host {
            Some(at) => {
                take(&mut free[at], &problem.dims.demand(&pod.shape.requests), 1);
                solution.placements.push(Placement { pod: pod.key.clone(), target: target(problem, at) });
            }
            None => rest.push(pod),
        }
    }
    rest
}

fn target(problem: &Problem<'_>, at: usize) -> Target {
    let host = &problem.hosts[at].host;
    match (&host.node, &host.claim) {
        (Some(node), _) => Target::Node(node.name.clone()),
        (None, Some(claim)) => Target::Claim(claim.name.clone()),
        (None, None) => Target::Claim("".into()),
    }
}

/// Fills open hosts, initialized ones first, then by name.
fn place_on_hosts(
    problem: &Problem<'_>,
    groups: &mut [Group],
    hosts: &Hosts<'_>,
    free: &mut [super::amounts::Amounts],
    solution: &mut Solution,
) {
    let mut order: Vec<usize> = (0..problem.hosts.len()).filter(|at| hosts.allow(problem, *at)).collect();
    order.sort_by_key(|at| (!problem.hosts[*at].initialized, *at));
    for group in 0..groups.len() {
        for at in &order {
            let waiting = u32::try_from(groups[group].waiting.len()).unwrap_or(u32::MAX);
            if waiting == 0 {
                break;
            }
            let count = copies(&free[*at], &groups[group].request).min(waiting);
            if count == 0 || !suits(problem, &groups[group], *at) {
                continue;
            }
            take(&mut free[*at], &groups[group].request, i64::from(count));
            for pod in draw(groups, group, count) {
                solution.placements.push(Placement { pod, target: target(problem, *at) });
            }
        }
    }
}

fn suits(problem: &Problem<'_>, group: &Group, host: usize) -> bool {
    let state = &problem.hosts[host];
    bears(&group.shape, &state.taints).is_ok()
        && group.shape.alternatives.iter().any(|wanted| state.labels.satisfies(wanted))
}

/// Plans new nodes; answers a misfit by group and pool for pods that a full pool or `minValues` kept out. Of several orders of filling the
/// one that leaves the fewest pods waiting and costs least is taken, and improved.
fn launch(problem: &Problem<'_>, groups: &mut [Group], solution: &mut Solution) -> Vec<Vec<Option<Misfit>>> {
    let mut best: Option<(u64, Price, Plan)> = None;
    for order in Order::ALL {
        let mut packer = Packer::new(problem, groups, order);
        let mut plan = Plan::default();
        pack(&mut packer, &mut plan.misfits);
        plan.take(packer);
        let types = plan.drafts.iter().filter_map(|draft| improve::best_type(problem, groups, draft));
        let (waiting, price) = (plan.waiting(), types.map(|t| t.price).sum());
        if best.as_ref().is_none_or(|(least, cost, _)| (waiting, price) < (*least, *cost)) {
            best = Some((waiting, price, plan));
        }
    }
    let Some((_, _, mut plan)) = best else { return Vec::new() };
    improve::improve(problem, groups, &mut plan.drafts, &mut plan.left);
    // what was improved may have left room under a limit
    for _ in 0..MOST_REFILLS {
        let before = plan.drafts.len();
        if plan.waiting() == 0 {
            break;
        }
        let mut packer = Packer::new(problem, groups, Order::Cpu);
        packer.resume(plan.drafts.clone(), plan.left.clone(), plan.remaining.clone());
        pack(&mut packer, &mut plan.misfits);
        plan.take(packer);
        if plan.drafts.len() == before {
            break;
        }
        improve::improve(problem, groups, &mut plan.drafts, &mut plan.left);
    }
    solution.nodes = finish::nodes(problem, groups, &plan.drafts, &mut plan.left);
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
fn refuse(problem: &Problem<'_>, groups: &[Group], misfits: &[Vec<Option<Misfit>>], solution: &mut Solution) {
    let planned = planned(problem, solution);
    for (at, group) in groups.iter().enumerate().filter(|(_, group)| !group.waiting.is_empty()) {
        let mut reasons: Vec<Refusal> = Vec::new();
        for (pool, state) in problem.pools.iter().enumerate() {
            let misfit = match &group.ways[pool] {
                Err(misfit) => misfit.clone(),
                Ok(_) => {
                    misfits[at][pool].clone().unwrap_or_else(|| limit_reached(problem, group, pool, &planned[pool]))
                }
            };
            reasons.push(Refusal::Pool { pool: state.pool.name.clone(), misfit });
        }
        let closed = problem.closed.iter().cloned();
        reasons.extend(closed.map(|(pool, misfit)| Refusal::Pool { pool, misfit }));
        if reasons.is_empty() {
            reasons.push(Refusal::NoPools);
        }
        let waits = |r: &Refusal| matches!(r, Refusal::Pool { misfit: Misfit::NoOffering { .. }, .. });
        if reasons.iter().any(waits) {
            solution.next_look = problem.snapshot.now.checked_add(OFFERINGS_RETURN).ok();
        }
        let pods: Vec<PodKey> = group.waiting.iter().rev().cloned().collect();
        solution.unschedulable.extend(pods.into_iter().map(|pod| Unschedulable { pod, reasons: reasons.clone() }));
    }
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

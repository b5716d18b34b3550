//! The largest share of a pool's pods on one new node: a cluster on few large nodes is cheap and fragile.
//!
//! Each counted pod takes a place, and nodes of a pool have as many places as its share gives. How many pods the pool will have is known
//! only when all is planned, so the plan is made with all that wait counted, and again with fewer places if that was too many.

use rustc_hash::{FxHashMap, FxHashSet};

use super::problem::{PoolState, Problem};
use super::{Solution, Target};
use crate::api::labels;
use crate::cluster::{PodKey, PodShare, Pool, Shape, Snapshot};

/// Plans made to find how many places nodes have: the count settles in the second one, unless pools of one weight share pods.
const MOST_PLANS: usize = 4;

/// Says whether any pool bounds the share.
pub(crate) fn is_bounded(snapshot: &Snapshot) -> bool {
    snapshot.pools.iter().any(|pool| share(snapshot, pool).bounds())
}

/// Says whether a pod is counted. One that must be on the node of others is not: it has no choice.
pub(crate) fn counts(shape: &Shape) -> bool {
    shape.affinity.iter().all(|term| &*term.key != labels::HOSTNAME)
}

/// Gives the nodes of each pool their places, as though the pool took all pods that wait.
pub(crate) fn give_places(problem: &mut Problem<'_>) {
    if !problem.dims.has_places() {
        return;
    }
    let waiting = problem.snapshot.pods.iter().filter(|pod| pod.is_provisionable()).count();
    let counts: Vec<usize> = problem.pools.iter().map(|state| running(problem, state).len() + waiting).collect();
    for (pool, count) in counts.into_iter().enumerate() {
        set_places(problem, pool, count);
    }
}

/// Plans until no node holds too large a share.
pub(crate) fn settled(problem: &mut Problem<'_>, plan: impl Fn(&Problem<'_>) -> Solution) -> Solution {
    let mut solution = plan(problem);
    for _ in 1..MOST_PLANS {
        if !take_places(problem, &solution) {
            break;
        }
        solution = plan(problem);
    }
    solution
}

/// Takes places from pools that got fewer pods than was thought, where some node holds too large a share of them now. Answers whether any
/// did, so that another plan must be made.
fn take_places(problem: &mut Problem<'_>, solution: &Solution) -> bool {
    if !problem.dims.has_places() || solution.nodes.is_empty() {
        return false;
    }
    let shapes: FxHashMap<&PodKey, &Shape> = problem.snapshot.pods.iter().map(|pod| (&pod.key, &*pod.shape)).collect();
    let counted = |pod: &&PodKey| shapes.get(pod).is_some_and(|shape| counts(shape));
    let replanned: FxHashSet<&PodKey> = solution.nodes.iter().flat_map(|node| &node.pods).collect();
    let pool_of: FxHashMap<&str, &str> =
        problem.hosts.iter().filter_map(|host| Some((host.host.name(), host.host.pool()?))).collect();
    let mut narrower = Vec::new();
    for (at, state) in
        problem.pools.iter().enumerate().filter(|(_, state)| share(problem.snapshot, &state.pool).bounds())
    {
        let mut pods = running(problem, state);
        pods.retain(|pod| !replanned.contains(pod));
        let of_pool = |target: &Target| {
            let (Target::Node(name) | Target::Claim(name)) = target;
            pool_of.get(&**name) == Some(&&*state.pool.name)
        };
        pods.extend(solution.placements.iter().filter(|p| of_pool(&p.target)).map(|p| &p.pod));
        let nodes = || solution.nodes.iter().filter(|node| node.pool == state.pool.name);
        pods.extend(nodes().flat_map(|node| &node.pods));
        let most = nodes().map(|node| node.pods.iter().filter(counted).count()).max().unwrap_or(0);
        if most > places(share(problem.snapshot, &state.pool), pods.len()) as usize {
            narrower.push((at, pods.len()));
        }
    }
    let any = !narrower.is_empty();
    narrower.into_iter().for_each(|(pool, count)| set_places(problem, pool, count));
    any
}

fn share(snapshot: &Snapshot, pool: &Pool) -> PodShare {
    pool.max_pod_share.unwrap_or(snapshot.settings.max_pod_share)
}

fn places(share: PodShare, pods: usize) -> u32 {
    share.of(u32::try_from(pods).unwrap_or(u32::MAX))
}

fn set_places(problem: &mut Problem<'_>, pool: usize, count: usize) {
    let share = share(problem.snapshot, &problem.pools[pool].pool);
    if share.bounds() {
        let places = places(share, count);
        let Problem { dims, pools, .. } = problem;
        pools[pool].rooms.alter(|free| dims.set_places(free, places));
    }
}

/// The pods that run on nodes of a pool and could run elsewhere.
fn running<'p>(problem: &'p Problem<'_>, state: &PoolState) -> FxHashSet<&'p PodKey> {
    let nodes = problem.hosts.iter().filter(|host| host.host.pool() == Some(&*state.pool.name));
    let named = nodes.filter_map(|host| host.host.node.as_ref());
    let pods = named.flat_map(|node| problem.pods_by_node.get(&node.name).into_iter().flatten());
    pods.filter(|pod| pod.is_reschedulable()).map(|pod| &pod.key).collect()
}

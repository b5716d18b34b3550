//! What pools and claims promise: limits, replicas of static pools, an age at which nodes go, and an end by the deadline.

use jiff::{SignedDuration, Timestamp};

use crate::api::{NodeClaim, labels};
use crate::cluster::{ExpirationGrace, Pool};
use crate::disruption::{Cause, Command};
use crate::lifecycle::provider_id;
use crate::quantity::Quantity;
use crate::resources::NODES;
use crate::sim::World;
use crate::sim::check::{SEEN_LIMIT, Watch, clocks_differ};
use crate::sim::world::is_tainted;

/// A node that a static pool has too many is given back within this time: a pass, and what the watches take.
const SURPLUS_LIMIT: SignedDuration = SignedDuration::from_mins(2);
/// An instance ends so long after the deadline of its claim at most: the pass that sees it, forced deletions of pods, and EC2's answers.
const ENDS_WITHIN: SignedDuration = SignedDuration::from_secs(30);
/// A node is on its way out so long after it got too old: the look that finds it, and the rest of a command.
const LATE: SignedDuration = SignedDuration::from_secs(60);

/// S-7: a node of a static pool goes of karp's own will only when as many are launched in its place.
pub(in crate::sim) fn is_renewed_one_for_one(world: &mut World, command: &Command) {
    if matches!(command.cause, Cause::Expired | Cause::Unhealthy) {
        return;
    }
    let mut broken = Vec::new();
    for pool in world.pools.iter().filter(|pool| pool.is_static()) {
        let gone = command.candidates.iter().filter(|candidate| candidate.pool == pool.name).count();
        let new = command.replacements.iter().filter(|node| node.pool == pool.name).count();
        if gone != new {
            broken.push(format!("{gone} nodes of static pool {} go for {new}", pool.name));
        }
    }
    broken.into_iter().for_each(|what| world.violate("S-7", what));
}

fn is_of(pool: &Pool, claim: &NodeClaim) -> bool {
    let own = claim.metadata.labels.as_ref().and_then(|all| all.get(labels::NODE_POOL));
    own.is_some_and(|name| **name == *pool.name)
}

/// The claims of a pool that neither go nor are about to.
fn standing(world: &World, pool: &Pool) -> u64 {
    let goes = |claim: &NodeClaim| {
        let name = claim.status.as_ref().and_then(|status| status.node_name.as_ref());
        claim.metadata.deletion_timestamp.is_some()
            || name.and_then(|name| world.nodes.get(name)).is_some_and(is_tainted)
    };
    world.claims.values().filter(|claim| is_of(pool, claim) && !goes(claim)).count() as u64
}

/// Says whether each pool has as many nodes as its limits allow, all of which take pods.
pub(super) fn no_pool_may_grow(world: &World) -> bool {
    let is_full = |pool: &Pool| {
        pool.limits
            .iter()
            .any(|(resource, limit)| resource == NODES && Quantity::from_units(standing(world, pool) as i64) >= limit)
    };
    world.pools.iter().all(|pool| is_full(pool))
}

impl Watch {
    /// S-4: a pool never has more than its limits: nodes, and what launched ones hold.
    pub(super) fn limits(&mut self, world: &World) {
        for pool in &world.pools {
            for (resource, limit) in pool.limits.iter() {
                let own = world.claims.values().filter(|claim| is_of(pool, claim));
                let used = match resource {
                    NODES => Quantity::from_units(own.count() as i64),
                    _ => own.filter_map(|claim| Some(claim.status.as_ref()?.capacity.as_ref()?.get(resource))).sum(),
                };
                if used > limit {
                    let what = format!("pool {} has {used} of {resource}, its limit is {limit}", pool.name);
                    self.fail(world, "S-4", what);
                }
            }
        }
    }

    /// S-4: a static pool gives back what it has too much.
    pub(super) fn replicas(&mut self, world: &World) {
        for pool in &world.pools {
            let Some(replicas) = pool.replicas else { continue };
            let there = standing(world, pool);
            if there <= replicas {
                self.surplus.remove(&pool.name);
                continue;
            }
            let since = *self.surplus.entry(pool.name.clone()).or_insert(world.now);
            let since = since.max(world.back).max(world.unserved);
            if world.now.duration_since(since) > SURPLUS_LIMIT {
                self.surplus.insert(pool.name.clone(), world.now);
                self.fail(world, "S-4", format!("static pool {} has {there} nodes for {replicas} replicas", pool.name));
            }
        }
    }

    /// S-7: in the end a static pool has its replicas.
    pub(super) fn replicas_at_the_end(&mut self, world: &World) {
        for pool in &world.pools {
            let (there, wanted) = (standing(world, pool), pool.replicas);
            if wanted.is_some_and(|replicas| replicas != there) {
                self.fail(world, "S-7", format!("static pool {} has {there} nodes for {wanted:?} replicas", pool.name));
            }
        }
    }

    /// S-7: whatever holds a node that is to go, its instance ends by the deadline of its claim.
    pub(super) fn deadlines(&mut self, world: &World) {
        let seen = if self.late { SEEN_LIMIT } else { SignedDuration::ZERO };
        let late = ENDS_WITHIN + seen + SignedDuration::from_secs(world.skew.abs());
        let over = |claim: &&NodeClaim| {
            let (Some(since), Some(grace)) = (&claim.metadata.deletion_timestamp, claim.spec.grace()) else {
                return false;
            };
            let due = since.0.saturating_add(grace).unwrap_or(jiff::Timestamp::MAX);
            // nobody can keep a deadline while nobody acts or is answered
            let due = due.max(world.back).max(world.unserved).max(world.account.last_throttled.unwrap_or(due));
            let lives = provider_id(claim).and_then(|id| world.instances.get(id)).is_some_and(|one| one.ends.is_none());
            lives && world.now.duration_since(due) > late
        };
        let over: Vec<String> =
            world.claims.values().filter(over).filter_map(|one| one.metadata.name.clone()).collect();
        over.into_iter().for_each(|claim| self.fail(world, "S-7", format!("{claim} is there after its deadline")));
    }

    /// S-7: a node that is older than it may be, grace included, is on its way out.
    pub(super) fn expires(&mut self, world: &World) {
        let late = LATE + SignedDuration::from_secs(world.skew.abs()) + clocks_differ(world);
        let old = |claim: &&NodeClaim| {
            let Some(due) = ages_at(world, claim).filter(|_| claim.metadata.deletion_timestamp.is_none()) else {
                return false;
            };
            let due = due.max(world.back).max(world.unserved);
            world.now.duration_since(due) > late
        };
        let old: Vec<String> = world.claims.values().filter(old).filter_map(|one| one.metadata.name.clone()).collect();
        old.into_iter().for_each(|claim| self.fail(world, "S-7", format!("{claim} is older than it may be")));
    }
}

/// When a claim's node has to go because of its age, whatever holds it.
fn ages_at(world: &World, claim: &NodeClaim) -> Option<Timestamp> {
    let pool = world.pools.iter().find(|pool| is_of(pool, claim))?;
    let grace = pool.expiration_grace.map_or(SignedDuration::ZERO, ExpirationGrace::length);
    let age = claim.spec.lifetime()?.checked_add(grace)?;
    claim.metadata.creation_timestamp.as_ref()?.0.checked_add(age).ok()
}

/// Says whether a claim's node goes or may go because of its age: in its grace it is replaced when its turn comes.
pub(super) fn is_due(world: &World, claim: &NodeClaim) -> bool {
    due_for(world, claim).is_some()
}

/// For how long a claim's node has been due to go because of its age, if it is.
pub(in crate::sim) fn due_for(world: &World, claim: &NodeClaim) -> Option<SignedDuration> {
    let age = claim.spec.lifetime().zip(claim.metadata.creation_timestamp.as_ref());
    let due = age.and_then(|(age, created)| created.0.checked_add(age).ok())?;
    (due <= world.now).then(|| world.now.duration_since(due))
}

//! Drift: users change what pools ask for, and claims say of which nodes that makes others, as `controller/src/reconcile/node_claim.rs` does it.

use std::sync::Arc;

use super::controller::Controller;
use super::world::World;
use super::writes::{Stop, set};
use crate::api::conditions::{self, ConditionStatus};
use crate::api::{NodeClaim, labels};
use crate::lifecycle::is_true;

/// A template that no pool has any more.
const EARLIER: &str = "earlier";

impl World {
    /// A node that runs is no longer what its pool asks for: it was made from an earlier template.
    pub(super) fn outdate(&mut self, name: &str) {
        let claim = self.claims.get_mut(name);
        if let Some(claim) = claim.filter(|claim| is_true(claim, conditions::INITIALIZED)) {
            stamp(claim, EARLIER);
            self.templates.insert(name.to_owned(), EARLIER.to_owned());
        }
    }

    /// A user changes a pool's template, or does not.
    pub(super) fn edit_template(&mut self, pool: &str) {
        if !self.random.happens(self.faults.edits_permille) {
            return;
        }
        if let Some(pool) = self.pools.iter_mut().find(|known| *known.name == *pool) {
            let hash = format!("{}+", pool.hash).into();
            Arc::make_mut(pool).hash = hash;
            self.edits += 1;
        }
    }
}

impl Controller<'_> {
    /// Says on a claim whether its node is what its pool asks for.
    pub(super) fn tell_drift(&self, world: &mut World, claim: &NodeClaim, pool: &str) -> Result<(), Stop> {
        let Some(pool) = self.view.pool(world, pool) else { return Ok(()) };
        let drift = self.decisions.drift(claim, &pool, &world.catalogue, world.clock());
        if drift.is_some() == is_true(claim, conditions::DRIFTED) {
            return Ok(());
        }
        set(world, claim, |status, now| match drift {
            Some(drift) => {
                let (yes, reason) = (ConditionStatus::True, drift.to_string());
                conditions::set(&mut status.conditions, conditions::DRIFTED, yes, &reason, "", now);
            }
            None => {
                conditions::clear(&mut status.conditions, conditions::DRIFTED);
            }
        })
    }
}

/// Writes on a claim by which template its node was planned.
pub(super) fn stamp(claim: &mut NodeClaim, template: &str) {
    let annotations = claim.metadata.annotations.get_or_insert_default();
    annotations.insert(labels::NODE_POOL_HASH.to_owned(), template.to_owned());
}

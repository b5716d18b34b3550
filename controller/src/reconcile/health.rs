//! Registration health of the pools: noted when claims join or are given up, told in a condition, and held against new launches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use karp_domain::api::conditions::{self, Condition, ConditionStatus};
use karp_domain::api::{NodeClaim, NodePool};
use karp_domain::cluster::Snapshot;
use karp_domain::lifecycle::{Allowance, Health as Verdict, Outcome, Registrations};
use karp_domain::scheduling::InFlightNode;
use kube::ResourceExt;

use super::node_claim;

/// Remembers by pool whether its nodes join.
#[derive(Default)]
pub struct Health(Mutex<BTreeMap<String, Registrations>>);

impl Health {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Registrations>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how the launch of a claim's node ended; claims made by hand have no pool.
    pub fn note(&self, claim: &NodeClaim, outcome: Outcome, now: Timestamp) {
        let pool = node_claim::pool_of(claim);
        if !pool.is_empty() {
            self.lock().entry(pool).or_default().note(outcome, Outcome::tried(claim, now), now);
        }
    }

    /// Forgets a pool that is gone.
    pub fn forget(&self, pool: &str) {
        self.lock().remove(pool);
    }

    /// Sets the condition that tells whether a pool's nodes join. What an earlier process told is believed at first.
    pub fn tell(&self, pool: &NodePool, class_generation: i64, all: &mut Vec<Condition>, now: Timestamp) {
        let kind = conditions::NODE_REGISTRATION_HEALTHY;
        let told = conditions::get(all, kind).filter(|condition| condition.status == ConditionStatus::False);
        let before = told.map(|condition| condition.last_transition_time);
        let mut pools = self.lock();
        let known = pools
            .entry(pool.name_any())
            .or_insert_with(|| before.map(Registrations::unhealthy_since).unwrap_or_default());
        known.made_from(pool.metadata.generation.unwrap_or_default(), class_generation);
        match known.health() {
            Verdict::Unknown => conditions::set(
                all,
                kind,
                ConditionStatus::Unknown,
                "AwaitingRegistration",
                "no node was launched lately",
                now,
            ),
            Verdict::Healthy => conditions::set(all, kind, ConditionStatus::True, "", "", now),
            Verdict::Unhealthy { missing, of } => {
                let message = format!("{missing} of the last {of} launches gave no node that joined");
                conditions::set(all, kind, ConditionStatus::False, "RegistrationFailed", &message, now)
            }
        };
    }

    fn allowance(&self, snapshot: &Snapshot, pool: &str) -> Allowance {
        let joining = snapshot
            .claims
            .iter()
            .filter(|claim| claim.pool.as_deref() == Some(pool) && !claim.is_registered() && claim.deleting.is_none());
        self.lock().get(pool).map_or(Allowance::All, |known| known.allowance(joining.count(), snapshot.now))
    }

    /// Closes the pools that may launch nothing now: their pods go to other pools, or wait.
    pub fn hold(&self, snapshot: &mut Snapshot) {
        let held: Vec<usize> = (0..snapshot.pools.len())
            .filter(|at| matches!(self.allowance(snapshot, &snapshot.pools[*at].name), Allowance::None { .. }))
            .collect();
        for at in held {
            Arc::make_mut(&mut snapshot.pools[at]).ready = false;
        }
    }

    /// Returns the planned nodes that may be launched: of a pool on trial only one.
    pub fn admit<'n>(&self, snapshot: &Snapshot, nodes: &'n [InFlightNode]) -> Vec<&'n InFlightNode> {
        let mut tried: Vec<&str> = Vec::new();
        let admitted = nodes.iter().filter(|node| match self.allowance(snapshot, &node.pool) {
            Allowance::All => true,
            Allowance::None { .. } => false,
            Allowance::Trial if tried.contains(&&*node.pool) => false,
            Allowance::Trial => {
                tried.push(&node.pool);
                true
            }
        });
        admitted.collect()
    }
}

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
pub struct Health(Mutex<BTreeMap<String, Known>>);

/// What is known of the pool of a name.
#[derive(Default)]
struct Known {
    /// Which pool that is, once it was looked at.
    uid: Option<String>,
    launches: Registrations,
}

impl Health {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how the launch of a claim's node ended; claims made by hand have no pool.
    pub fn note(&self, claim: &NodeClaim, outcome: Outcome, now: Timestamp) {
        let pool = node_claim::pool_of(claim);
        if !pool.is_empty() {
            self.lock().entry(pool).or_default().launches.note(outcome, Outcome::tried(claim, now), now);
        }
    }

    /// Forgets a pool that is gone.
    pub fn forget(&self, pool: &str) {
        self.lock().remove(pool);
    }

    /// Sets the condition that tells whether a pool's nodes join. What an earlier process told is believed at first; nothing is held against a pool that
    /// another of its name did.
    pub fn tell(&self, pool: &NodePool, class_generation: i64, all: &mut Vec<Condition>, now: Timestamp) {
        let kind = conditions::NODE_REGISTRATION_HEALTHY;
        let told = conditions::get(all, kind).filter(|condition| condition.status == ConditionStatus::False);
        let before = told.map(|condition| condition.last_transition_time);
        let (mut pools, name) = (self.lock(), pool.name_any());
        if pools.get(&name).is_some_and(|known| known.uid.is_some() && known.uid != pool.metadata.uid) {
            pools.remove(&name);
        }
        let known = pools.entry(name).or_insert_with(|| Known {
            uid: None,
            launches: before.map(Registrations::unhealthy_since).unwrap_or_default(),
        });
        known.uid.clone_from(&pool.metadata.uid);
        let known = &mut known.launches;
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
        self.lock().get(pool).map_or(Allowance::All, |known| known.launches.allowance(joining.count(), snapshot.now))
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

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use karp_domain::api::labels;
    use karp_domain::catalogue::Price;
    use karp_domain::cluster::{Claim, Pool};
    use serde_json::{Value, json};

    use super::*;

    fn class() -> Value {
        json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" })
    }

    fn pool(name: &str) -> NodePool {
        let template = json!({ "spec": { "requirements": [], "nodeClassRef": class() } });
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "template": template } }))
            .expect("a pool")
    }

    /// A claim of pool `p` that was just made.
    fn claim() -> NodeClaim {
        let metadata = json!({ "name": "c", "uid": "c", "labels": { (labels::NODE_POOL): "p" } });
        let spec = json!({ "requirements": [], "nodeClassRef": class() });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).expect("a claim")
    }

    /// A cluster with pools `p` and `q`, and these claims.
    fn cluster(claims: &[NodeClaim], now: Timestamp) -> Snapshot {
        let mut snapshot = Snapshot::empty(now);
        let read = |name| Arc::new(Pool::from_kube(&pool(name)).expect("readable"));
        snapshot.pools.extend(["p", "q"].map(read));
        snapshot.claims.extend(claims.iter().map(|claim| Arc::new(Claim::from_kube(claim).expect("readable"))));
        snapshot
    }

    /// The pools that pods may be planned for.
    fn open(health: &Health, claims: &[NodeClaim], now: Timestamp) -> Vec<String> {
        let mut snapshot = cluster(claims, now);
        health.hold(&mut snapshot);
        snapshot.pools.iter().filter(|pool| pool.ready).map(|pool| pool.name.to_string()).collect()
    }

    /// The pools of the nodes that may be launched of three planned for `p` and two for `q`.
    fn admitted(health: &Health, claims: &[NodeClaim], now: Timestamp) -> Vec<String> {
        let snapshot = cluster(claims, now);
        let nodes = ["p", "q", "p", "p", "q"].map(|pool| InFlightNode {
            pool: pool.into(),
            class: snapshot.pools[0].class.clone(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            requirements: Default::default(),
            taints: Vec::new(),
            startup_taints: Vec::new(),
            expire_after: None,
            termination_grace: None,
            requests: Default::default(),
            pods: Vec::new(),
            offerings: Arc::default(),
            price: Price::ZERO,
        });
        health.admit(&snapshot, &nodes).into_iter().map(|node| node.pool.to_string()).collect()
    }

    #[test]
    fn a_pool_whose_nodes_do_not_join_is_held_and_tried_by_one_node() {
        let (health, told_at) = (Health::default(), Timestamp::UNIX_EPOCH);
        let after = |seconds| told_at + SignedDuration::from_secs(seconds);
        health.note(&claim(), Outcome::Missing, told_at);
        assert_eq!(open(&health, &[], told_at), ["p", "q"], "one may be chance");
        health.note(&claim(), Outcome::Missing, told_at);
        assert_eq!(open(&health, &[], after(59)), ["q"]);
        assert_eq!(admitted(&health, &[], after(59)), ["q", "q"]);
        assert_eq!(open(&health, &[], after(60)), ["p", "q"]);
        assert_eq!(admitted(&health, &[], after(60)), ["p", "q", "q"], "one of three");
        let trial = [claim()];
        assert_eq!(open(&health, &trial, after(61)), ["q"], "until it is known what came of it");
        assert_eq!(admitted(&health, &trial, after(61)), ["q", "q"]);
        health.note(&claim(), Outcome::Joined, after(90));
        assert_eq!(admitted(&health, &[], after(90)), ["p", "q", "p", "p", "q"]);
    }

    /// Somebody took its finalizer away, deleted it and made another.
    #[test]
    fn a_pool_begins_anew_whatever_another_of_its_name_did() {
        let (health, now) = (Health::default(), Timestamp::UNIX_EPOCH);
        let of = |uid: &str| {
            let mut one = pool("p");
            one.metadata.uid = Some(uid.to_owned());
            one
        };
        health.tell(&of("old"), 1, &mut Vec::new(), now);
        (0..2).for_each(|_| health.note(&claim(), Outcome::Missing, now));
        health.tell(&of("old"), 1, &mut Vec::new(), now);
        assert_eq!(open(&health, &[], now), ["q"]);
        health.tell(&of("new"), 1, &mut Vec::new(), now);
        assert_eq!(open(&health, &[], now), ["p", "q"]);
    }

    #[test]
    fn what_a_pool_was_told_holds_it_in_the_next_process() {
        let (health, told_at) = (Health::default(), Timestamp::UNIX_EPOCH);
        let after = |seconds| told_at + SignedDuration::from_secs(seconds);
        let mut told = Vec::new();
        let said = |told: &[Condition]| {
            let one = conditions::get(told, conditions::NODE_REGISTRATION_HEALTHY).expect("told");
            (one.status, one.reason.clone(), one.message.clone(), one.last_transition_time)
        };
        health.tell(&pool("p"), 1, &mut told, told_at);
        assert_eq!(said(&told).0, ConditionStatus::Unknown);
        (0..2).for_each(|_| health.note(&claim(), Outcome::Missing, told_at));
        health.tell(&pool("p"), 1, &mut told, told_at);
        let (reason, message) = ("RegistrationFailed", "2 of the last 2 launches gave no node that joined");
        let failed = (ConditionStatus::False, reason.to_owned(), message.to_owned(), told_at);
        assert_eq!(said(&told), failed);
        let next = Health::default();
        next.tell(&pool("p"), 1, &mut told, after(30));
        assert_eq!(said(&told), failed, "and since then");
        assert_eq!(open(&next, &[], after(59)), ["q"]);
        assert_eq!(admitted(&next, &[], after(60)), ["p", "q", "q"]);
        // another class may have put it right
        next.tell(&pool("p"), 2, &mut told, after(61));
        assert_eq!(said(&told).0, ConditionStatus::Unknown);
        assert_eq!(open(&next, &[], after(61)), ["p", "q"]);
    }
}

//! Flaws in what the world counts by itself: what evictions leave, how many nodes go at a time, by which template nodes were planned, and
//! whether the order of daemons matters.

use jiff::{SignedDuration, Timestamp};
use karp_domain::api::{NodeClaim, hash, labels};
use karp_domain::catalogue::Catalogue;
use karp_domain::cluster::{DaemonSet, Host, Node, Pool, Snapshot};
use karp_domain::disruption::{Begun, Candidate, begun};
use karp_domain::eviction::{self, Deletion, Drain, Target};
use karp_domain::lifecycle::{self, Drift, Next, Step};
use karp_domain::scheduling::{InFlightNode, Solution, solve};
use karp_domain::sim::{Decisions, Faults, Production, Scenario, World, run_with};
use serde_json::{Value, json};

use super::{Case, NeverTakenBack, budget, calm, case, changing, cluster};

/// Lives that karp itself leads.
const LIVES: u64 = 3;
/// Most lives in which a flaw may come out.
const FLAWED_LIVES: u64 = 12;

/// Says whether a life of forty minutes breaks an invariant, in these words.
fn breaks(decisions: &dyn Decisions, scenario: &Scenario, world: &World, invariant: &str, what: &str) -> bool {
    let found = run_with(decisions, scenario, world.clone()).violations;
    found.iter().any(|found| found.invariant == invariant && found.what.contains(what))
}

/// A flaw is told of in these words, and karp is not.
pub(super) fn catches(flawed: &dyn Decisions, faults: Faults, world: &World, invariant: &str, what: &str) {
    let breaks = |decisions: &dyn Decisions, seed| {
        breaks(decisions, &Scenario { seed, seconds: 2400, faults }, world, invariant, what)
    };
    assert!(!(0..LIVES).any(|seed| breaks(&Production, seed)), "karp itself");
    assert!((0..FLAWED_LIVES).any(|seed| breaks(flawed, seed)), "no seed shows what breaks {invariant}");
}

#[test]
fn s2_pods_that_are_deleted_past_their_budget() {
    struct Flaw;
    impl Decisions for Flaw {
        fn drain(&self, drain: &Drain<'_>, now: Timestamp) -> eviction::Step {
            let mut step = eviction::next(drain, now);
            if let eviction::Step::Wait(wait) = &mut step {
                let all = std::mem::take(&mut wait.evict).into_iter();
                wait.delete.extend(all.map(|Target { pod, uid }| Deletion { pod, uid, grace_seconds: 1 }));
            }
            step
        }
    }
    case("S-2", 40, Faults { deletes_permille: 3, ..calm() }).catches(&Flaw);
}

/// Evictions that are bound to no UID: of pods that come again under the names of those that are gone, another one is meant.
#[test]
fn s2_pods_that_are_evicted_for_others_of_their_name() {
    struct Flaw;
    impl Decisions for Flaw {
        fn eviction(&self, target: &Target) -> Value {
            let mut request = eviction::request(&target.pod, &target.uid);
            request["deleteOptions"] = Value::Null;
            request
        }
    }
    let faults = Faults { deletes_permille: 40, cut_permille: 100, scales_permille: 100, ..changing() };
    catches(&Flaw, faults, &cluster(&[]).with_lasting_names(), "S-2", "not to go");
}

/// What an earlier process began is gone on with as if it had been all nodes.
#[test]
fn s3_commands_that_are_gone_on_with_as_more_than_they_were() {
    struct Flaw;
    impl Decisions for Flaw {
        fn begun(&self, snapshot: &Snapshot) -> Vec<Begun> {
            let all: Vec<Candidate> = snapshot.hosts().iter().filter_map(candidate).collect();
            let mut found = begun(snapshot);
            found.iter_mut().for_each(|begun| begun.command.candidates.clone_from(&all));
            found
        }
    }
    let faults = Faults { drifts_permille: 10, crash_permille: 50, ..calm() };
    Case { pool: vec![budget("1")], ..case("S-3", 60, faults) }.catches_this(&Flaw);
}

pub(super) fn candidate(host: &Host) -> Option<Candidate> {
    let (claim, node) = (host.claim.as_ref()?, host.node.as_ref()?);
    let (name, uid, pool) = (claim.name.clone(), claim.uid.clone(), claim.pool.clone()?);
    Some(Candidate { claim: name, uid, node: Some(node.name.clone()), pool, price: None })
}

/// A claim that says of another template that its node was planned by it.
fn stamped(node: &InFlightNode, name: &str, template: &str) -> NodeClaim {
    let mut claim = node.node_claim(name);
    let annotations = claim.metadata.annotations.get_or_insert_default();
    annotations.insert(labels::NODE_POOL_HASH.to_owned(), template.to_owned());
    claim
}

fn edited() -> Faults {
    Faults { edits_permille: 100, ..changing() }
}

/// Claims that are stamped with the template that their pool has by now, and not with the one that their node was planned by.
#[test]
fn s7_nodes_that_never_drift_from_a_template_they_were_not_made_of() {
    struct Flaw;
    impl Decisions for Flaw {
        fn node_claim(&self, node: &InFlightNode, pool: &Pool, name: &str) -> NodeClaim {
            stamped(node, name, &pool.hash)
        }
    }
    catches(&Flaw, edited(), &cluster(&[]), "S-7", "an earlier template");
}

/// Claims that are stamped with an older template than the one that their node was planned by.
#[test]
fn s9_nodes_that_drift_as_soon_as_they_are_there() {
    struct Flaw;
    impl Decisions for Flaw {
        fn node_claim(&self, node: &InFlightNode, _: &Pool, name: &str) -> NodeClaim {
            stamped(node, name, "of its last reading")
        }
    }
    catches(&Flaw, calm(), &cluster(&[]), "S-9", "said to have drifted");
}

/// Drift that is judged by another version of the hash than claims are stamped with.
#[test]
fn s7_drift_that_is_not_seen() {
    struct Flaw;
    impl Decisions for Flaw {
        fn drift(&self, claim: &NodeClaim, pool: &Pool, known: &Catalogue, now: Timestamp) -> Option<Drift> {
            let mut other = claim.clone();
            let annotations = other.metadata.annotations.get_or_insert_default();
            annotations.insert(labels::NODE_POOL_HASH_VERSION.to_owned(), format!("{}0", hash::NODE_POOL_VERSION));
            Production.drift(&other, pool, known, now)
        }
    }
    catches(&Flaw, Faults { drifts_permille: 10, ..calm() }, &cluster(&[]), "S-7", "an earlier template");
}

/// Nodes that nobody marks as initialized: their pods run all the same.
#[test]
fn s7_claims_that_lack_a_condition() {
    struct Flaw;
    impl Decisions for Flaw {
        fn step(&self, claim: &NodeClaim, node: Option<&Node>, quiet: Option<SignedDuration>, now: Timestamp) -> Next {
            match lifecycle::next(claim, node, quiet, now) {
                Next { step: Step::Initialize, look } => Next { step: Step::AwaitNode, look },
                next => next,
            }
        }
    }
    catches(&Flaw, calm(), &cluster(&[]), "S-7", "lacks Initialized");
}

/// Taints of nodes whose replacements came to nothing.
#[test]
fn s11_taints_that_nothing_stands_behind_any_more() {
    let faults = Faults { drifts_permille: 10, no_capacity_permille: 600, ..changing() };
    catches(&NeverTakenBack, faults, &cluster(&[]), "S-11", "nothing takes its place");
}

#[test]
fn s16_daemons_of_which_the_last_is_forgotten() {
    struct Flaw;
    impl Decisions for Flaw {
        fn solve(&self, snapshot: &Snapshot) -> Solution {
            let mut other = snapshot.clone();
            other.daemons.pop();
            solve(&other)
        }
    }
    let daemon = |name: &str, cpu: &str| {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}});
        let template = json!({"metadata": {"labels": {"daemon": name}}, "spec": {"containers": [container]}});
        let set = json!({"kind": "DaemonSet", "metadata": {"name": name, "namespace": "kube-system"},
            "spec": {"selector": {}, "template": template}});
        DaemonSet::from_kube(&serde_json::from_value(set).unwrap()).unwrap()
    };
    let world = cluster(&[]).with_daemons(vec![daemon("light", "10m"), daemon("heavy", "200m")]);
    catches(&Flaw, Faults { scales_permille: 50, ..calm() }, &world, "S-16", "solution");
}

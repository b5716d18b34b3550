//! Commands that an earlier process began.

use std::sync::Arc;

use karp_domain::api::conditions::{self, ConditionStatus};
use karp_domain::api::{NodeClaim, labels};
use karp_domain::cluster::Claim;
use karp_domain::disruption::{Begun, Cause, begun, overdue};
use karp_domain::scheduling::InFlightNode;

use crate::disrupt::{dear, drifted, on_demand, plan};
use crate::world::{class, pool};

/// The claim of a planned node, as the API server has it.
fn made(name: &str, node: &InFlightNode) -> Arc<Claim> {
    let mut claim = NodeClaim::new(name, node.claim_spec());
    claim.metadata.labels = Some(node.claim_labels());
    claim.metadata.annotations = Some(node.annotations.clone());
    Arc::new(Claim::from_kube(&claim).unwrap())
}

#[test]
fn a_replacement_that_was_begun_is_found_again() {
    let mut objects = vec![class(), pool("default", on_demand())];
    objects.extend(drifted("default", "n1", "2026-11-21T11:10:00Z"));
    let (snapshot, plan) = plan(&objects);
    let mut later = snapshot.clone();
    later.claims.push(made("r1", &plan.commands[0].replacements[0]));

    let found = begun(&later);
    let candidates = |found: &[Begun]| -> Vec<Arc<str>> {
        found.iter().flat_map(|one| &one.command.candidates).map(|candidate| candidate.claim.clone()).collect()
    };
    assert_eq!(candidates(&found), ["default-n1".into()]);
    assert_eq!((&found[0].replacements, found[0].planned), (&vec!["r1".into()], snapshot.now));
    assert_eq!(found[0].command.cause, Cause::Drifted);
    assert_eq!(found[0].command.candidates[0].node, Some("n1".into()));

    assert_eq!(begun(&snapshot), [], "the replacement is not there");
    assert!(overdue(&later).is_empty());
    later.now = snapshot.now + jiff::SignedDuration::from_mins(20);
    assert_eq!(begun(&later), [], "it was waited for long enough");
    assert_eq!(overdue(&later), ["r1".into()], "and never started");
    let mut started = later.clone();
    let all = &mut Arc::make_mut(started.claims.last_mut().unwrap()).conditions;
    conditions::set(all, conditions::INITIALIZED, ConditionStatus::True, "", "", snapshot.now);
    assert!(overdue(&started).is_empty(), "that one is a node like others");
    later.now = snapshot.now;
    let changed = |change: fn(&mut Claim), claim: &str| {
        let mut other = later.clone();
        other.claims.iter_mut().filter(|one| &*one.name == claim).for_each(|one| change(Arc::make_mut(one)));
        begun(&other)
    };
    assert_eq!(changed(|claim| claim.deleting = Some(claim.created), "r1"), [], "the replacement goes");
    assert_eq!(changed(|claim| claim.deleting = Some(claim.created), "default-n1"), [], "the node goes already");
    assert_eq!(changed(|claim| claim.uid = "another".into(), "default-n1"), [], "that was another node");
    let garbled = |claim: &mut Claim| drop(claim.annotations.insert("karp.sh/replaces".to_owned(), "{}".to_owned()));
    assert_eq!(changed(garbled, "r1"), [], "somebody wrote something else");
}

#[test]
fn a_cheaper_replacement_that_was_begun_is_found_again_while_its_node_takes_no_pods() {
    let (mut snapshot, plan) = plan(&dear());
    snapshot.claims.push(made("r1", &plan.commands[0].replacements[0]));
    assert_eq!(begun(&snapshot), [], "pods may have come that nobody reckoned with");
    for node in &mut snapshot.nodes {
        Arc::make_mut(node).taints.push(labels::disrupted_taint());
    }
    let found = begun(&snapshot);
    let [one] = &*found else { panic!("{found:?}") };
    assert_eq!((one.command.cause, &*one.replacements), (Cause::Underutilized, &["r1".into()][..]));
    assert_eq!(one.command.candidates[0].node, Some("n1".into()));
}

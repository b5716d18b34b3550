//! What the watch may not show yet: what is waited for, what is reckoned with, and what the API server is asked before it is believed.

use k8s_openapi::api::core::v1::Node;
use karp_domain::api::NodeClaim;
use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::{Assumed, Reply};
use karp_domain::disruption::Progress;
use karp_domain::lifecycle::{Suspicion, confirm};
use serde_json::{Value, json};

use crate::world::{NOW, at, node, with};

/// A node that runs, and its claim.
fn pair(more_node: &[(&str, Value)], more_claim: &[(&str, Value)]) -> (Node, NodeClaim) {
    let [node, claim] = node("n1", "default", "m7i.large", "us-east-1a", CapacityType::OnDemand);
    (serde_json::from_value(with(node, more_node)).unwrap(), serde_json::from_value(with(claim, more_claim)).unwrap())
}

#[test]
fn a_claim_is_collected_only_if_the_api_server_knows_of_no_node_that_runs() {
    let (up, claim) = pair(&[], &[]);
    assert_eq!(confirm(Some(&claim), None), Suspicion::AskFor("n1"));
    assert_eq!(confirm(Some(&claim), Some(Some(&up))), Suspicion::Refuted);
    assert_eq!(confirm(Some(&claim), Some(None)), Suspicion::Confirmed);
    let (down, _) = pair(&[("status.conditions", json!([{"type": "Ready", "status": "Unknown"}]))], &[]);
    let (other, _) = pair(&[("spec.providerID", json!("aws:///us-east-1a/i-2"))], &[]);
    for node in [down, other] {
        assert_eq!(confirm(Some(&claim), Some(Some(&node))), Suspicion::Confirmed, "{node:?}");
    }
    let (_, nodeless) = pair(&[], &[("status.nodeName", json!(""))]);
    assert_eq!(confirm(Some(&nodeless), None), Suspicion::Confirmed, "no node ever told of it");
    assert_eq!(confirm(None, None), Suspicion::Confirmed, "it is gone already");
}

#[test]
fn a_replacement_that_is_not_seen_is_waited_for_if_it_was_made() {
    let (_, ready) = pair(&[], &[]);
    let (_, starting) = pair(&[], &[("status.conditions", json!([]))]);
    let (_, going) = pair(&[], &[("metadata.deletionTimestamp", json!(NOW))]);
    for awaited in [false, true] {
        let seen = [&ready, &starting, &going].map(|claim| Progress::of(Some(claim), awaited));
        assert_eq!(seen, [Progress::Initialized, Progress::Starting, Progress::Gone]);
    }
    assert_eq!([true, false].map(|awaited| Progress::of(None, awaited)), [Progress::Starting, Progress::Gone]);
}

#[test]
fn a_claim_that_may_have_been_made_is_reckoned_with() {
    let (_, claim) = pair(&[], &[]);
    let reckoned = |reply| {
        let mut assumed = Assumed::default();
        assumed.asked(&claim, reply, at(NOW));
        assumed.awaits("default-n1")
    };
    assert_eq!([Reply::Made, Reply::Lost, Reply::Refused].map(reckoned), [true, true, false]);
}

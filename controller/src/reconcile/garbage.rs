//! Collection: instances that no claim stands for, and claims whose instance is gone. Never much at once, never in the dark.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karp_domain::api::NodeClaim;
use karp_domain::lifecycle::{Blocked, Collection, Collector, Listed, Suspicion, Witnesses, confirm, is_up};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Context, node_claim};
use crate::effect::{self, Outcome};
use crate::observe::unread::Guarded;
use crate::ops::events::Reason;
use crate::ops::metrics::KindLabels;
use crate::ops::telemetry::pass_span;

/// Why a claim is deleted whose instance or node is gone, in Karpenter's word.
const COLLECTED: &str = "garbage_collected";

/// Collects until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut collector = Collector::default();
    loop {
        let pause = collector.next_pause();
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let span = pass_span!("instance.garbagecollection");
        pass(&context, &mut collector).instrument(span).await;
    }
}

async fn pass(context: &Context, collector: &mut Collector) {
    // Instances first: the claim of one that is launched between the two looks is then seen.
    let listed = match context.cloud.list().await {
        Ok(listed) => listed,
        Err(error) => {
            // No list, no facts: what is missing in it is not missing.
            tracing::warn!(%error, "cannot list instances, collecting nothing");
            return;
        }
    };
    let listed: Vec<Listed> = listed
        .into_iter()
        .map(|one| Listed { provider_id: one.provider_id, claim: one.claim, batch: one.batch, ending: one.ending })
        .collect();
    let claims = context.stores.claims.state();
    tell_claims(&listed, context);
    // A second witness: the node must be gone or not ready, too (reliability.md F26).
    let ready = |provider_id: &str| context.stores.node_of(provider_id).is_some_and(|node| is_up(&node));
    let collection =
        collector.pass(&Witnesses { listed: &listed, claims: &claims, is_ready: &ready }, Timestamp::now());
    context.metrics.collection_blocked.clear();
    if let Some(blocked) = &collection.blocked {
        tell_blocked(blocked, &listed, context);
    }
    carry_out(collection, &listed, context).await;
}

/// Ends what is left over, unless the API server says otherwise of it, or nothing.
async fn carry_out(collection: Collection, listed: &[Listed], context: &Context) {
    for provider_id in collection.instances {
        let Some(instance) = listed.iter().find(|one| one.provider_id == provider_id) else { continue };
        match is_claimed(instance, context).await {
            Ok(false) => {}
            // the watch is late, and the claim's own life goes on
            Ok(true) => continue,
            Err(error) => {
                tracing::warn!("provider-id" = provider_id, %error, "cannot ask for the claim of an instance, leaving it");
                continue;
            }
        }
        match context.cloud.terminate(&provider_id).await {
            Ok(_) => tracing::info!("provider-id" = provider_id, "garbage collected cloudprovider instance"),
            Err(error) => tracing::error!("provider-id" = provider_id, %error, "ending an unclaimed instance"),
        }
    }
    for claim in collection.claims {
        match runs(&claim, context).await {
            Ok(false) => {}
            // the watch is late: the instance is there, whatever the lists say
            Ok(true) => continue,
            Err(error) => {
                tracing::warn!(NodeClaim.name = claim.name_any(), %error, "cannot ask for a node, leaving its claim");
                continue;
            }
        }
        match node_claim::delete(&claim, context, COLLECTED).await {
            Ok(Outcome::Nothing) => {}
            Ok(Outcome::Done) => {
                tracing::info!(
                    NodeClaim.name = claim.name_any(),
                    "garbage collecting nodeclaim with no cloudprovider representation"
                );
            }
            Err(error) => tracing::error!(NodeClaim.name = claim.name_any(), %error, "deleting nodeclaim"),
        }
    }
}

/// Tells that too much would have been collected at once: on one of the claims, or else on the node of an instance that has none.
fn tell_blocked(blocked: &Blocked, listed: &[Listed], context: &Context) {
    for (kind, count) in [("Instance", blocked.instances), ("NodeClaim", blocked.claims)] {
        let gauge = context.metrics.collection_blocked.get_or_create(&KindLabels::new(kind));
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    tracing::error!(
        instances = blocked.instances,
        nodeclaims = blocked.claims,
        bound = blocked.bound,
        "refusing to collect so much at once: check that this is the right cluster"
    );
    let note = format!(
        "{} claims lack their instance and {} instances their claim at once, more than {}: not collecting",
        blocked.claims, blocked.instances, blocked.bound
    );
    let mut unclaimed = listed.iter().filter(|one| context.stores.claim_of(&one.provider_id).is_none());
    let about = match &blocked.example {
        Some(claim) => Some(effect::reference(&**claim)),
        None => {
            unclaimed.find_map(|one| context.stores.node_of(&one.provider_id)).map(|node| effect::reference(&*node))
        }
    };
    if let Some(about) = about {
        context.events.publish(&about, Reason::GarbageCollectionBlocked, note);
    }
}

/// Has instances of batches tagged with the claims that go by them, where that is still to be done.
fn tell_claims(listed: &[Listed], context: &Context) {
    let untold = |one: &&Listed| one.claim.is_none() && one.batch.is_some() && !one.ending;
    for instance in listed.iter().filter(untold) {
        if let Some(claim) = context.stores.claim_of(&instance.provider_id) {
            context.batches.tell(&instance.provider_id, claim);
        }
    }
}

/// Asks the API server for a claim that an instance was launched for, and whether that may stand for it; one that goes ends its instance
/// itself. A claim that cannot be read stands for it.
async fn is_claimed(instance: &Listed, context: &Context) -> kube::Result<bool> {
    let claims = Api::<Guarded<NodeClaim>>::all(context.client.clone());
    match (instance.claim.as_deref().filter(|name| !name.is_empty()), &instance.batch) {
        (Some(name), _) => {
            let Some(found) = claims.get_opt(name).await? else { return Ok(false) };
            Ok(found.or_stand_in().is_none_or(|claim| instance.is_expected_by(&claim)))
        }
        // any claim of its batch may be the one
        (None, Some(_)) => {
            let found = claims.list(&ListParams::default()).await?.items.into_iter();
            Ok(found.map(Guarded::or_stand_in).any(|claim| claim.is_none_or(|claim| instance.is_expected_by(&claim))))
        }
        (None, None) => Ok(false),
    }
}

/// Asks the API server whether the node of a claim runs.
async fn runs(claim: &NodeClaim, context: &Context) -> kube::Result<bool> {
    let claims = Api::<Guarded<NodeClaim>>::all(context.client.clone());
    let there = claims.get_opt(&claim.name_any()).await?.and_then(Guarded::or_stand_in);
    let mut node: Option<Option<Node>> = None;
    loop {
        let name = match confirm(there.as_ref(), node.as_ref().map(Option::as_ref)) {
            Suspicion::AskFor(name) => name,
            Suspicion::Refuted => return Ok(true),
            Suspicion::Confirmed => return Ok(false),
        };
        node = Some(Api::<Node>::all(context.client.clone()).get_opt(name).await?);
    }
}

#[cfg(test)]
mod tests {
    use karp_domain::api::labels;
    use serde_json::json;

    use super::super::testing::{Server, claim, status};
    use super::*;

    fn listed(id: &str) -> Listed {
        Listed { provider_id: format!("aws:///us-east-1a/{id}"), claim: None, batch: None, ending: false }
    }

    #[tokio::test]
    async fn a_claim_that_is_collected_is_counted() {
        let long_ago = "2026-01-01T00:00:00Z";
        let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": long_ago });
        let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
        let of_pool = json!({ (labels::NODE_POOL): "p", (labels::CAPACITY_TYPE): "spot" });
        let server = Server::of([json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": { "name": "c", "uid": "c", "creationTimestamp": long_ago, "labels": of_pool },
            "spec": { "requirements": [], "nodeClassRef": class },
            "status": {
                "providerID": listed("i-1").provider_id, "nodeName": "n",
                "conditions": [condition("Launched"), condition("Registered")],
            },
        })]);
        let context = server.context().await;
        let mut collector = Collector::default();
        for deleted in [0, 1] {
            pass(&context, &mut collector).await;
            assert_eq!(server.asked("DELETE nodeclaims/c"), deleted, "when it is missing for the second time");
        }
        let text = context.metrics.encode();
        let line = text.lines().find(|line| line.starts_with("karpenter_nodeclaims_disrupted_total{"));
        let of = r#"reason="garbage_collected",nodepool="p",capacity_type="spot""#;
        assert!(line.is_some_and(|line| line.contains(of) && line.ends_with(" 1")), "{line:?}");
    }

    #[tokio::test]
    async fn nothing_is_ended_of_which_the_api_server_says_nothing() {
        let id = "simulated:///us-east-1a/x".to_owned();
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "spec": { "providerID": id },
            "metadata": { "name": "x", "uid": "x", "annotations": { "karpenter.sh/nodeclaim": "x" } },
        });
        let mut left = claim("c");
        left["status"] = json!({ "providerID": listed("i-1").provider_id, "nodeName": "gone" });
        let server = Server::of([node, left]);
        let context = server.context().await;
        let claims = context.stores.claims.state();
        let collection = Collection { instances: vec![id.clone()], claims, blocked: None };
        let all = [Listed { provider_id: id, claim: Some("x".to_owned()), batch: None, ending: false }];
        let ended = || ["DELETE nodes/x", "DELETE nodeclaims/c"].map(|what| server.asked(what));
        for asked in ["GET nodeclaims/x", "GET nodeclaims/c"] {
            server.answer(asked, Some(500), status(500, "InternalError"));
        }
        carry_out(collection.clone(), &all, &context).await;
        assert_eq!(ended(), [0, 0]);
        carry_out(collection, &all, &context).await;
        assert_eq!(ended(), [1, 1], "it says that there is no claim, and no node");
    }

    #[tokio::test]
    async fn what_is_too_much_is_told_on_a_claim_or_on_a_node_that_has_none() {
        let node = |name: &str, id: &str| json!({ "kind": "Node", "metadata": { "name": name, "uid": name }, "spec": { "providerID": listed(id).provider_id } });
        let claim = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": { "name": "c", "uid": "c" },
            "spec": { "requirements": [], "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" } },
            "status": { "providerID": listed("i-1").provider_id },
        });
        let server = Server::of([node("claimed", "i-1"), node("unclaimed", "i-2"), claim]);
        let context = server.context().await;
        let all = [listed("i-1"), listed("i-0"), listed("i-2")];
        let mut blocked = Blocked { instances: 7, claims: 0, bound: 5, example: None };
        tell_blocked(&blocked, &all, &context);
        let note = "0 claims lack their instance and 7 instances their claim at once, more than 5: not collecting";
        assert_eq!(server.told("GarbageCollectionBlocked", "unclaimed").await, note);
        blocked.claims = 6;
        blocked.example = context.stores.claim("c");
        tell_blocked(&blocked, &all, &context);
        assert!(server.told("GarbageCollectionBlocked", "c").await.starts_with("6 claims"));
        let text = context.metrics.encode();
        for (kind, count) in [("Instance", 7), ("NodeClaim", 6)] {
            let line = format!("karp_garbage_collection_blocked{{kind=\"{kind}\"}} {count}");
            assert!(text.contains(&line), "{line} not in\n{text}");
        }
    }
}

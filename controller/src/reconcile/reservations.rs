//! Capacity reservations that end: what ran on a plain one runs on, on demand, and is labelled so; nodes of a capacity block leave before
//! EC2 ends them.

use std::sync::Arc;

use karp_domain::api::{Ec2NodeClassStatus, NodeClaim, ReservationState, labels};
use karp_domain::catalogue::{CapacityType, ReservationKind};
use karp_domain::lifecycle::provider_id;
use kube::ResourceExt;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Context, Error, node_claim};
use crate::cloud::Instance;
use crate::effect;
use crate::ops::telemetry::pass_span;

/// Reason of a deletion, in metrics.
const BLOCK_ENDS: &str = "capacity_block_expired";

/// Says what becomes of a reserved node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It stays as it is.
    Stays,
    /// Its reservation is gone: it is paid by the hour from now on.
    OnDemand,
    /// Its capacity block is about to end.
    Leaves,
}

/// Looks until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(context.options.reservation_poll) => {}
        }
        let span = pass_span!("capacityreservation.capacitytype");
        pass(&context).instrument(span).await;
    }
}

async fn pass(context: &Context) {
    // A node may have been labelled by a registration that began before its claim was demoted.
    let reserved = context.stores.claims.state_filter(|claim| {
        let node = || provider_id(claim).and_then(|id| context.stores.node_of(id));
        claim.metadata.deletion_timestamp.is_none()
            && (is_reserved(claim) || node().is_some_and(|node| is_reserved(&*node)))
    });
    if reserved.is_empty() {
        return;
    }
    let listed = match context.cloud.list().await {
        Ok(listed) => listed,
        Err(error) => {
            tracing::warn!(%error, "cannot list instances, looking at reserved nodes later");
            return;
        }
    };
    for claim in reserved {
        let id = provider_id(&claim);
        let instance = listed.iter().find(|one| Some(one.provider_id.as_str()) == id);
        let class = context.stores.class(&claim.spec.node_class_ref.name);
        let done = match fate(&claim, class.as_ref().and_then(|class| class.status.as_ref()), instance) {
            Fate::Stays => Ok(()),
            Fate::OnDemand => demote(context, &claim, id.unwrap_or_default()).await,
            Fate::Leaves => leave(context, &claim).await,
        };
        if let Err(error) = done
            && !error.is_race()
        {
            tracing::error!(NodeClaim.name = claim.name_any(), %error, "following the capacity reservation of a node");
        }
    }
}

fn fate(claim: &NodeClaim, class: Option<&Ec2NodeClassStatus>, instance: Option<&Instance>) -> Fate {
    let label = |key: &str| claim.labels().get(key).map(String::as_str);
    let (id, kind) = (label(labels::CAPACITY_RESERVATION_ID), label(labels::CAPACITY_RESERVATION_TYPE));
    let mut held = class.into_iter().flat_map(|status| &status.capacity_reservations);
    let ends = held.any(|one| Some(one.id.as_str()) == id && one.state == ReservationState::Expiring);
    if ends && kind == Some(ReservationKind::CapacityBlock.as_str()) {
        return Fate::Leaves;
    }
    // an instance that is not listed tells nothing
    match instance.filter(|instance| !instance.ending).map(|instance| instance.capacity_type) {
        Some(CapacityType::OnDemand) => Fate::OnDemand,
        _ => Fate::Stays,
    }
}

fn is_reserved(object: &impl ResourceExt) -> bool {
    object.labels().get(labels::CAPACITY_TYPE).map(String::as_str) == Some(CapacityType::Reserved.as_str())
}

/// Labels a claim and its node as bought on demand.
async fn demote(context: &Context, claim: &NodeClaim, provider_id: &str) -> Result<(), Error> {
    let labels = json!({ "labels": {
        (labels::CAPACITY_TYPE): CapacityType::OnDemand.as_str(),
        (labels::CAPACITY_RESERVATION_ID): null,
        (labels::CAPACITY_RESERVATION_TYPE): null,
        (labels::CAPACITY_RESERVATION_INTERRUPTIBLE): null,
    } });
    if let Some(node) = context.stores.node_of(provider_id).filter(|node| is_reserved(&**node)) {
        effect::write_metadata(&context.client, &*node, labels.clone()).await?;
    }
    if is_reserved(claim) {
        node_claim::stamp(context, claim, labels).await?;
    }
    tracing::info!(NodeClaim.name = claim.name_any(), "updated capacity type for nodeclaim: its reservation ended");
    Ok(())
}

async fn leave(context: &Context, claim: &NodeClaim) -> Result<(), Error> {
    node_claim::delete(claim, context, BLOCK_ENDS).await?;
    tracing::info!(NodeClaim.name = claim.name_any(), "deleting nodeclaim: its capacity block is about to end");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use karp_domain::api::NodeClaimSpec;

    use super::*;

    fn claim(kind: &str) -> NodeClaim {
        let mut claim = NodeClaim::new("c", NodeClaimSpec::default());
        let all = [
            (labels::CAPACITY_TYPE, "reserved"),
            (labels::CAPACITY_RESERVATION_ID, "cr-1"),
            (labels::CAPACITY_RESERVATION_TYPE, kind),
        ];
        claim.metadata.labels = Some(all.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        claim
    }

    fn class(id: &str, state: &str) -> Ec2NodeClassStatus {
        serde_json::from_value(json!({"capacityReservations": [{"id": id, "availabilityZone": "a",
            "instanceType": "p5.48xlarge", "ownerID": "123456789012", "instanceMatchCriteria": "targeted",
            "state": state}]}))
        .expect("a status")
    }

    fn instance(capacity_type: CapacityType, ending: bool) -> Instance {
        Instance {
            provider_id: "aws:///a/i-1".to_owned(),
            instance_type: "p5.48xlarge".to_owned(),
            zone: "a".to_owned(),
            capacity_type,
            reservation: None,
            partition: None,
            image_id: String::new(),
            ending,
            launched_at: None,
            claim: None,
            batch: None,
        }
    }

    #[test]
    fn reserved_nodes_follow_their_reservation() {
        use CapacityType::{OnDemand, Reserved};
        let (plain, block) = (claim("default"), claim("capacity-block"));
        let (active, expiring, other) = (class("cr-1", "active"), class("cr-1", "expiring"), class("cr-2", "expiring"));
        let held = instance(Reserved, false);
        for (claim, class, instance, expected) in [
            (&plain, Some(&active), Some(&held), Fate::Stays),
            (&plain, None, Some(&instance(OnDemand, false)), Fate::OnDemand),
            (&plain, Some(&expiring), Some(&held), Fate::Stays),
            (&plain, None, Some(&instance(OnDemand, true)), Fate::Stays),
            (&plain, None, None, Fate::Stays),
            (&block, Some(&active), Some(&held), Fate::Stays),
            (&block, Some(&expiring), Some(&held), Fate::Leaves),
            (&block, Some(&expiring), None, Fate::Leaves),
            (&block, Some(&other), Some(&held), Fate::Stays),
        ] {
            assert_eq!(fate(claim, class, instance), expected, "{:?} {class:?} {instance:?}", claim.labels());
        }
        let unlabelled = NodeClaim { metadata: Default::default(), ..plain };
        assert_eq!(fate(&unlabelled, Some(&expiring), None), Fate::Stays);
        assert_eq!(unlabelled.labels(), &BTreeMap::new());
    }
}

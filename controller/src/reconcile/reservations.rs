//! Capacity reservations that end: what ran on a plain one runs on, on demand, and is labelled so; nodes of a capacity block leave before
//! EC2 ends them.

use std::sync::Arc;

use jiff::Timestamp;
use karp_domain::api::{Ec2NodeClassStatus, NodeClaim, block_is_over, labels};
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
    /// Its claim is to say when its capacity block ends, for when EC2 lists the block no more.
    Learns(Timestamp),
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
    // when blocks end is known without it
    let listed = context.cloud.list().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list instances, looking later for those whose reservation ended");
        Vec::new()
    });
    let now = Timestamp::now();
    for claim in reserved {
        let id = provider_id(&claim);
        let instance = listed.iter().find(|one| Some(one.provider_id.as_str()) == id);
        let class = context.stores.class(&claim.spec.node_class_ref.name);
        let done = match fate(&claim, class.as_ref().and_then(|class| class.status.as_ref()), instance, now) {
            Fate::Stays => Ok(()),
            Fate::Learns(end) => learn(context, &claim, end).await,
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

fn fate(claim: &NodeClaim, class: Option<&Ec2NodeClassStatus>, instance: Option<&Instance>, now: Timestamp) -> Fate {
    let label = |key: &str| claim.labels().get(key).map(String::as_str);
    let (id, kind) = (label(labels::CAPACITY_RESERVATION_ID), label(labels::CAPACITY_RESERVATION_TYPE));
    let mut selected = class.into_iter().flat_map(|status| &status.capacity_reservations);
    let held = selected.find(|one| Some(one.id.as_str()) == id);
    let noted = claim.annotations().get(labels::CAPACITY_BLOCK_ENDS_AT).and_then(|end| end.parse::<Timestamp>().ok());
    let block = kind == Some(ReservationKind::CapacityBlock.as_str());
    // a class may select it no more, or not know yet what it selects
    let over = held.map_or_else(|| noted.is_some_and(|end| block_is_over(end, now)), |one| one.is_expiring(now));
    if block && over {
        return Fate::Leaves;
    }
    // an instance that is not listed tells nothing
    if instance.is_some_and(|instance| !instance.ending && instance.capacity_type == CapacityType::OnDemand) {
        return Fate::OnDemand;
    }
    match held.and_then(|one| one.end_time) {
        Some(end) if block && noted != Some(end) => Fate::Learns(end),
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

async fn learn(context: &Context, claim: &NodeClaim, end: Timestamp) -> Result<(), Error> {
    let noted = json!({ "annotations": { (labels::CAPACITY_BLOCK_ENDS_AT): end.to_string() } });
    node_claim::stamp(context, claim, noted).await?;
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
            let told = fate(claim, class, instance, Timestamp::UNIX_EPOCH);
            assert_eq!(told, expected, "{:?} {class:?} {instance:?}", claim.labels());
        }
        let unlabelled = NodeClaim { metadata: Default::default(), ..plain };
        assert_eq!(fate(&unlabelled, Some(&expiring), None, Timestamp::UNIX_EPOCH), Fate::Stays);
        assert_eq!(unlabelled.labels(), &BTreeMap::new());
    }

    /// EC2 may not be asked, or answer nothing, for all of the block's last hours.
    #[test]
    fn nodes_leave_a_block_in_time_whatever_ec2_lists() {
        let at = |time: &str| format!("2026-06-01T{time}Z").parse::<Timestamp>().expect("a time");
        let end = at("11:30:00");
        let mut listed = class("cr-1", "active");
        listed.capacity_reservations[0].end_time = Some(end);
        listed.capacity_reservations[0].reservation_type = ReservationKind::CapacityBlock;
        let unknown = Ec2NodeClassStatus { capacity_reservations: Vec::new(), ..listed.clone() };
        let held = instance(CapacityType::Reserved, false);
        let fresh = claim("capacity-block");
        assert_eq!(fate(&fresh, Some(&listed), Some(&held), at("09:00:00")), Fate::Learns(end));
        let mut told = fresh.clone();
        let note = |end: Timestamp| [(labels::CAPACITY_BLOCK_ENDS_AT.to_owned(), end.to_string())].into();
        told.metadata.annotations = Some(note(end));
        for class in [Some(&listed), Some(&unknown), None] {
            assert_eq!(fate(&told, class, Some(&held), at("10:49:59")), Fate::Stays);
            assert_eq!(fate(&told, class, None, at("10:50:00")), Fate::Leaves, "{class:?}");
        }
        assert_eq!(fate(&fresh, Some(&listed), None, at("10:50:00")), Fate::Leaves, "the class knew it once");
        told.metadata.annotations = Some(note(at("10:00:00")));
        assert_eq!(fate(&told, Some(&listed), None, at("10:30:00")), Fate::Learns(end), "the block was extended");
    }
}

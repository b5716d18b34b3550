//! Launching: the attempt and the request's digest are on the claim before the cloud is asked, so that a launch can be
//! repeated after a crash without a second instance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karp_domain::api::conditions::{self, ConditionStatus};
use karp_domain::api::{Ec2NodeClass, NodeClaim, labels, requirements};
use karp_domain::catalogue::{CapacityType, Catalogue, RESERVATION_LABELS, RankedOffering};
use karp_domain::cluster::Unreadable;
use karp_domain::fleet::{REFUSED_WAIT, UnavailableOffering};
use karp_domain::lifecycle::launch::{
    ATTEMPT, BATCH, DIGEST, IN_DOUBT, SOUGHT_SINCE, TOKEN_REUSED, attempt, batch, listing_left, sought_since,
};
use kube::ResourceExt;
use kube::runtime::controller::Action;
use serde_json::json;

use super::batch::{self, Outcome, Seat, Turn, seat};
use super::overlays::overlaid;
use super::{Context, Error, node_claim};
use crate::cloud::{CloudError, Instance, LaunchError, LaunchOrder, RESERVATION_FULL, is_dedicated};
use crate::effect;
use crate::ops::events::Reason;
use crate::ops::metrics::{CloudErrorLabels, CloudLabels, LaunchFailureLabels};

/// Pause between looks for what was launched.
pub const LISTING_PAUSE: Duration = Duration::from_secs(5);
/// What the log says of a launch.
const LAUNCHED: &str = "launched nodeclaim";
const ADOPTED: &str = "adopted the instance of nodeclaim";
/// Types that one request names (Karpenter: 60).
const MAX_TYPES: usize = 60;

/// Takes a claim one step towards its instance.
pub async fn launch(claim: &NodeClaim, context: &Context) -> Result<Action, Error> {
    let Some(class) = context.stores.class(&claim.spec.node_class_ref.name).filter(is_ready) else {
        let message = format!("EC2NodeClass {} is missing or not ready", claim.spec.node_class_ref.name);
        return give_up(claim, context, Lack::Class, &message).await;
    };
    if let Some(left) = context.rests.left(claim, &class) {
        return Ok(Action::requeue(left));
    }
    let catalogue = overlaid(claim, context.cloud.catalogue(&class).await?, context)?;
    let before = attempt(claim);
    if before.is_some() {
        // Somebody was here before: what came of it is in the cloud.
        let found = match batch(claim) {
            Some(id) => match seat(claim, id, context).await? {
                Seat::Given(instance) => Some(*instance),
                Seat::Empty if sought_since(claim).is_none() => {
                    return seek(claim, context, "what came of its batch is not listed yet").await;
                }
                Seat::Empty => None,
            },
            None => find(claim, context).await?,
        };
        if let Some(instance) = found {
            return adopt(claim, context, &instance, &catalogue, ADOPTED, None).await;
        }
        if let Some(since) = sought_since(claim) {
            return listing(claim, context, since).await;
        }
    }
    let available = context.unavailable.apply(&catalogue);
    let offerings = offerings(claim, &available)?;
    let attempt = before.unwrap_or(1);
    let order = LaunchOrder { claim, class: &class, attempt, offerings: &offerings, catalogue: &catalogue };
    let prepared = match timed(context, "Prepare", context.cloud.prepare(&order)).await {
        Ok(prepared) => prepared,
        Err(error) => return fail(claim, context, &class, error).await,
    };
    // should this process not live to see the answer; of an attempt that was begun before, EC2 may have taken the earlier request
    let began = claim.annotations().contains_key(DIGEST);
    let launched_by = if began { BTreeMap::new() } else { launched_by(&class, context) };
    let open = began && !context.settled.knows(claim);
    let turn = match batch::take_turn(context, &prepared, claim, &launched_by).await {
        Turn::Own(turn) => turn,
        Turn::Shared(outcome) => return launched_together(outcome, context, &class, &catalogue).await,
    };
    let mut annotations = launched_by;
    annotations.extend([(ATTEMPT.to_owned(), attempt.to_string()), (DIGEST.to_owned(), prepared.digest.clone())]);
    let claim = &node_claim::stamp(context, claim, json!({ "annotations": annotations })).await?;
    // not before: where that is refused, as of a claim that goes by now, EC2 is not asked
    context.settled.reopen(claim);
    match timed(context, "Create", context.cloud.launch(&prepared, turn)).await {
        Ok(launched) => {
            remember(context, &launched.refused);
            adopt(claim, context, &launched.instance, &catalogue, LAUNCHED, Some(&class)).await
        }
        Err(LaunchError::TokenReused(message)) => match find(claim, context).await? {
            Some(instance) => adopt(claim, context, &instance, &catalogue, LAUNCHED, None).await,
            None => seek(claim, context, &message).await,
        },
        Err(error) => {
            if !open {
                context.settled.note(claim, &error);
            }
            fail(claim, context, &class, error).await
        }
    }
}

/// Goes on with a claim for which, and for others, a call was made.
async fn launched_together(
    outcome: Option<Outcome>,
    context: &Context,
    class: &Ec2NodeClass,
    catalogue: &Catalogue,
) -> Result<Action, Error> {
    match outcome {
        Some(Outcome::Launched(launched)) => {
            let (claim, instance) = *launched;
            adopt(&claim, context, &instance, catalogue, LAUNCHED, Some(class)).await
        }
        Some(Outcome::Failed { claim, error, taught }) => {
            // only claims that are in no doubt are launched together
            context.settled.note(&claim, &error);
            let action = fail(&claim, context, class, error).await;
            if taught {
                context.replan.notify_one();
            }
            action
        }
        Some(Outcome::Left(error)) => Err(error),
        None => Ok(Action::requeue(Duration::ZERO)),
    }
}

/// Notes that nobody has the answer to the launch, and that nothing of it is listed yet.
async fn seek(claim: &NodeClaim, context: &Context, message: &str) -> Result<Action, Error> {
    let stamp = json!({ "annotations": { (SOUGHT_SINCE): Timestamp::now().to_string() } });
    let claim = node_claim::stamp(context, claim, stamp).await?;
    node_claim::write(context, &claim, |status, now| {
        let (unknown, reason) =
            (ConditionStatus::Unknown, if batch(&claim).is_some() { IN_DOUBT } else { TOKEN_REUSED });
        conditions::set(&mut status.conditions, conditions::LAUNCHED, unknown, reason, message, now);
    })
    .await?;
    Ok(Action::requeue(LISTING_PAUSE))
}

/// Waits for what was launched under a token that stands for another request. Once it would be listed, the request came to nothing, and the
/// next attempt has a token of its own: earlier, it would be a second instance for the claim.
async fn listing(claim: &NodeClaim, context: &Context, since: Option<Timestamp>) -> Result<Action, Error> {
    let now = Timestamp::now();
    if let Some(left) = since.and_then(|since| listing_left(since, now, context.options.launch_listing)) {
        return Ok(Action::requeue(left.min(LISTING_PAUSE)));
    }
    tracing::warn!(NodeClaim.name = claim.name_any(), "nothing came of the last attempt, making another");
    advance(claim, context).await?;
    Ok(Action::requeue(Duration::ZERO))
}

/// Gives the claim's next launch a token of its own.
async fn advance(claim: &NodeClaim, context: &Context) -> Result<NodeClaim, Error> {
    let next = attempt(claim).map_or(1, |attempt| attempt.saturating_add(1));
    let stamp =
        json!({ "annotations": { (ATTEMPT): next.to_string(), (DIGEST): null, (SOUGHT_SINCE): null, (BATCH): null } });
    Ok(node_claim::stamp(context, claim, stamp).await?)
}

fn is_ready(class: &Arc<Ec2NodeClass>) -> bool {
    class.metadata.deletion_timestamp.is_none()
        && class.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
}

/// Measures a call to the cloud.
pub async fn timed<T>(
    context: &Context,
    method: &str,
    call: impl Future<Output = Result<T, LaunchError>>,
) -> Result<T, LaunchError> {
    let started = std::time::Instant::now();
    let result = call.await;
    let labels = CloudLabels::new("nodeclaim.lifecycle", method, context.cloud.name());
    context.metrics.cloud_duration.get_or_create(&labels).observe(started.elapsed().as_secs_f64());
    if let Err(error) = &result {
        let reason = match error {
            LaunchError::InsufficientCapacity { .. } => "InsufficientCapacityError",
            LaunchError::NodeClassNotReady(_) => "NodeClassNotReadyError",
            LaunchError::TokenReused(_) => "IdempotentParameterMismatch",
            LaunchError::Elsewhere(_) => "InsufficientFreeAddressesInSubnet",
            LaunchError::Denied { reason, .. } => reason,
            LaunchError::InDoubt(error) | LaunchError::Cloud(error) => error.reason(),
        };
        let labels = CloudErrorLabels::new("nodeclaim.lifecycle", method, context.cloud.name(), reason);
        context.metrics.cloud_errors.get_or_create(&labels).inc();
    }
    result
}

/// Finds the instance that was launched for a claim; further ones, which must not be, are ended.
async fn find(claim: &NodeClaim, context: &Context) -> Result<Option<Instance>, Error> {
    let mut found = context.cloud.find(claim).await?.into_iter().filter(|instance| !instance.ending);
    let first = found.next();
    for extra in found {
        tracing::error!(
            NodeClaim.name = claim.name_any(),
            "provider-id" = extra.provider_id,
            "ending a second instance"
        );
        context.cloud.terminate(&extra.provider_id).await?;
    }
    Ok(first)
}

/// Ranks what a claim may be launched as: one capacity type, the cheapest types that are big enough.
fn offerings(claim: &NodeClaim, catalogue: &Catalogue) -> Result<Vec<RankedOffering>, Error> {
    let wanted = requirements(&claim.spec.requirements)
        .map_err(|error| Unreadable::new("NodeClaim", &claim.name_any(), "spec.requirements", &error.to_string()))?;
    let (mut types, market) = catalogue.select(&wanted);
    for (at, kind) in catalogue.types().iter().enumerate() {
        if !claim.spec.resources.requests.fits(&kind.allocatable()) {
            types.set(at, false);
        }
    }
    let mut ranked = catalogue.ranked(&types, market);
    ranked.retain(|offering| catalogue.admits(offering, &wanted));
    Ok(narrow(ranked))
}

/// Keeps one capacity type, reserved before spot before on-demand, without spot that is dearer than on-demand.
fn narrow(ranked: Vec<RankedOffering>) -> Vec<RankedOffering> {
    let on_demand = ranked.iter().find(|offering| offering.capacity_type == CapacityType::OnDemand).map(|o| o.price);
    let sensible = |offering: &RankedOffering| {
        offering.capacity_type != CapacityType::Spot || on_demand.is_none_or(|price| offering.price <= price)
    };
    let Some(capacity_type) = ranked.iter().filter(|o| sensible(o)).map(|o| o.capacity_type).min() else {
        return Vec::new();
    };
    let mut types: Vec<Arc<str>> = Vec::new();
    let mut kept = ranked;
    kept.retain(|offering| {
        if offering.capacity_type != capacity_type || !sensible(offering) {
            return false;
        }
        if types.contains(&offering.instance_type) {
            return true;
        }
        let room = types.len() < MAX_TYPES;
        if room {
            types.push(offering.instance_type.clone());
        }
        room
    });
    kept
}

/// Returns the annotations by which drift is judged of what a class launches now. A claim may wait for its launch until its class is another than
/// when the claim was made, and its node would be replaced as soon as it is there.
fn launched_by(class: &Ec2NodeClass, context: &Context) -> BTreeMap<String, String> {
    super::node_class::hash_annotations(class, &context.ca_bundle)
}

/// Writes what the instance is to the claim: labels first, so that Launched never is without them. `class` is what it was launched by, where
/// that is known better than the claim says.
async fn adopt(
    claim: &NodeClaim,
    context: &Context,
    instance: &Instance,
    catalogue: &Catalogue,
    message: &str,
    class: Option<&Ec2NodeClass>,
) -> Result<Action, Error> {
    let kind = catalogue.get(&instance.instance_type);
    let settled = settled_labels(claim, instance, catalogue);
    let mut settled = json!(settled);
    if instance.reservation.is_none() {
        // it may have ended since: what the claim was made for is no longer so
        for key in RESERVATION_LABELS.iter().filter(|key| claim.labels().contains_key(**key)) {
            settled[*key] = serde_json::Value::Null;
        }
    }
    let annotations = class.map(|class| launched_by(class, context)).unwrap_or_default();
    let claim = node_claim::stamp(context, claim, json!({ "labels": settled, "annotations": annotations })).await?;
    node_claim::write(context, &claim, |status, now| {
        status.provider_id = Some(instance.provider_id.clone());
        status.image_id = Some(instance.image_id.clone()).filter(|id| !id.is_empty());
        status.capacity = kind.map(|kind| kind.capacity.clone());
        status.allocatable = kind.map(|kind| kind.allocatable());
        conditions::set(&mut status.conditions, conditions::LAUNCHED, ConditionStatus::True, "", "", now);
        let unknown = ConditionStatus::Unknown;
        let message = "Node not registered with cluster";
        conditions::set(&mut status.conditions, conditions::REGISTERED, unknown, "NodeNotFound", message, now);
        conditions::set(&mut status.conditions, conditions::INITIALIZED, unknown, "NodeNotFound", message, now);
    })
    .await?;
    if instance.claim.is_none() && instance.batch.is_some() {
        context.batches.tell(&instance.provider_id, Arc::new(claim.clone()));
    }
    let allocatable = kind.and_then(|kind| serde_json::to_string(&kind.allocatable()).ok()).unwrap_or_default();
    tracing::info!(
        NodeClaim.name = claim.name_any(),
        "provider-id" = instance.provider_id,
        "instance-type" = instance.instance_type,
        zone = instance.zone,
        "capacity-type" = %instance.capacity_type,
        allocatable,
        "{message}"
    );
    Ok(Action::await_change())
}

/// Returns every label that the instance settles: what its type has one value for, where it is, how it was bought.
fn settled_labels(claim: &NodeClaim, instance: &Instance, catalogue: &Catalogue) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> =
        requirements(&claim.spec.requirements).map(|wanted| wanted.settled_labels()).unwrap_or_default();
    if let Some(kind) = catalogue.get(&instance.instance_type) {
        for (key, values) in &kind.labels {
            if let [value] = values.as_slice() {
                all.insert(key.to_string(), value.to_string());
            }
        }
    }
    if let Some(zone) = catalogue.zones().iter().find(|zone| *zone.name == *instance.zone) {
        all.insert(labels::ZONE_ID.to_owned(), zone.id.to_string());
    }
    all.insert(labels::ZONE.to_owned(), instance.zone.clone());
    all.insert(labels::INSTANCE_TYPE.to_owned(), instance.instance_type.clone());
    let tenancy = if is_dedicated(claim) { "dedicated" } else { "default" };
    all.insert(labels::INSTANCE_TENANCY.to_owned(), tenancy.to_owned());
    all.insert(labels::CAPACITY_TYPE.to_owned(), instance.capacity_type.to_string());
    all.retain(|key, _| !RESERVATION_LABELS.contains(&key.as_str()));
    if let Some(taken) = &instance.reservation {
        all.insert(labels::CAPACITY_RESERVATION_ID.to_owned(), taken.id.clone());
        all.insert(labels::CAPACITY_RESERVATION_TYPE.to_owned(), taken.kind.as_str().to_owned());
        all.insert(labels::CAPACITY_RESERVATION_INTERRUPTIBLE.to_owned(), taken.interruptible.to_string());
    }
    all
}

/// Remembers offerings that could not be had.
pub fn remember(context: &Context, refused: &[UnavailableOffering]) {
    for offering in refused {
        // the count of a reservation's instances is asked of EC2 every minute: it knows better
        if offering.code != RESERVATION_FULL {
            context.unavailable.mark(offering);
        }
        let zone_id = context.zone_id(&offering.zone);
        let labels = LaunchFailureLabels::new(&offering.zone, zone_id, offering.capacity_type.as_str(), &offering.code);
        context.metrics.launch_failures.get_or_create(&labels).inc();
    }
}

/// What a launch lacks that another claim may have.
#[derive(Clone, Copy)]
enum Lack {
    Capacity,
    Class,
}

/// Gives a claim up, so that its pods are planned for again.
async fn give_up(claim: &NodeClaim, context: &Context, lack: Lack, message: &str) -> Result<Action, Error> {
    let (event, reason) = match lack {
        Lack::Capacity => (Reason::InsufficientCapacityError, "insufficient_capacity"),
        Lack::Class => (Reason::NodeClassNotReady, "nodeclass_not_ready"),
    };
    let note = format!("NodeClaim {} event: {message}", claim.name_any());
    context.events.publish(&effect::reference(claim), event, note);
    tracing::warn!(NodeClaim.name = claim.name_any(), error = message, "failed launching nodeclaim");
    node_claim::delete(claim, context, reason).await?;
    Ok(Action::await_change())
}

/// Remembers what a refused launch teaches: what cannot be had, and for how long its claim rests, which is answered.
fn learn(claim: &NodeClaim, context: &Context, class: &Ec2NodeClass, error: &LaunchError) -> Option<Duration> {
    let pause = match error {
        LaunchError::InsufficientCapacity { offerings, .. } => {
            remember(context, offerings);
            None
        }
        LaunchError::Denied { .. } => Some(REFUSED_WAIT),
        LaunchError::InDoubt(error) | LaunchError::Cloud(error) => match error {
            CloudError::Retry { after, .. } => *after,
            CloudError::Refused { .. } => Some(REFUSED_WAIT),
        },
        LaunchError::NodeClassNotReady(_) | LaunchError::Elsewhere(_) | LaunchError::TokenReused(_) => None,
    };
    if let Some(pause) = pause {
        context.rests.begin(claim, class, pause);
    }
    pause
}

/// Draws the consequence of a launch that gave nothing.
async fn fail(claim: &NodeClaim, context: &Context, class: &Ec2NodeClass, error: LaunchError) -> Result<Action, Error> {
    // A call that was refused as such says nothing of an earlier one under the token, whose answer may have been lost.
    // A batch is one call: what is refused of it is asked for by another.
    let answered = match &error {
        LaunchError::Denied { .. } | LaunchError::Elsewhere(_) => true,
        LaunchError::Cloud(_) => batch(claim).is_some(),
        _ => false,
    };
    // Before anything is written, which may fail: the same would be asked for again at once.
    let pause = learn(claim, context, class, &error);
    let advanced = if answered { Some(advance(claim, context).await?) } else { None };
    let claim = advanced.as_ref().unwrap_or(claim);
    let (reason, message) = match &error {
        LaunchError::InsufficientCapacity { offerings, message } => {
            let given_up = give_up(claim, context, Lack::Capacity, message).await?;
            // what taught nothing would be planned again as it was
            if !offerings.is_empty() {
                context.replan.notify_one();
            }
            return Ok(given_up);
        }
        LaunchError::NodeClassNotReady(message) => return give_up(claim, context, Lack::Class, message).await,
        LaunchError::Elsewhere(message) => {
            tracing::warn!(NodeClaim.name = claim.name_any(), error = message, "launching nodeclaim elsewhere");
            return Ok(Action::requeue(Duration::ZERO));
        }
        LaunchError::TokenReused(message) => (TOKEN_REUSED, message.clone()),
        LaunchError::InDoubt(CloudError::Retry { message, .. })
        | LaunchError::Cloud(CloudError::Retry { message, .. }) => (conditions::LAUNCH_FAILED, message.clone()),
        LaunchError::Denied { reason, message }
        | LaunchError::InDoubt(CloudError::Refused { reason, message })
        | LaunchError::Cloud(CloudError::Refused { reason, message }) => {
            context.events.publish(&effect::reference(claim), Reason::LaunchFailed, message.clone());
            (reason.as_str(), message.clone())
        }
    };
    tracing::error!(NodeClaim.name = claim.name_any(), reason, error = message, "launching nodeclaim");
    node_claim::write(context, claim, |status, now| {
        let unknown = ConditionStatus::Unknown;
        conditions::set(&mut status.conditions, conditions::LAUNCHED, unknown, reason, &message, now);
    })
    .await?;
    match pause {
        Some(pause) => Ok(Action::requeue(pause)),
        None => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use karp_domain::api::{NodeClaimSpec, RequirementSpec};
    use karp_domain::catalogue::{Price, PriceSource, Zone};
    use karp_domain::requirement::Operator;

    use super::*;

    fn offering(kind: &str, capacity_type: CapacityType, micro: u64) -> RankedOffering {
        RankedOffering {
            instance_type: kind.into(),
            zone: Zone::new("us-east-1a", "use1-az1"),
            capacity_type,
            price: Price::from_micro_dollars(micro),
            source: PriceSource::Published,
            reservation: None,
        }
    }

    fn names(ranked: Vec<RankedOffering>) -> Vec<String> {
        narrow(ranked).iter().map(|o| format!("{} {}", o.instance_type, o.capacity_type)).collect()
    }

    #[test]
    fn hardware_is_shared_unless_a_claim_may_not_share_it() {
        let label = |operator: Operator, values: &[&str]| {
            let mut claim = NodeClaim::new("c", NodeClaimSpec::default());
            let tenancy = RequirementSpec {
                key: labels::INSTANCE_TENANCY.to_owned(),
                operator,
                values: values.iter().map(|value| (*value).to_owned()).collect(),
                min_values: None,
            };
            claim.spec.requirements = (!values.is_empty()).then_some(tenancy).into_iter().collect();
            let instance = Instance {
                provider_id: "aws:///us-east-1a/i-1".to_owned(),
                instance_type: "m7i.large".to_owned(),
                zone: "us-east-1a".to_owned(),
                capacity_type: CapacityType::OnDemand,
                reservation: None,
                partition: None,
                image_id: "ami-1".to_owned(),
                ending: false,
                launched_at: None,
                claim: None,
                batch: None,
            };
            let settled = settled_labels(&claim, &instance, &Catalogue::default());
            assert_eq!(
                settled[labels::INSTANCE_TENANCY] == "dedicated",
                is_dedicated(&claim),
                "what is bought is told"
            );
            settled[labels::INSTANCE_TENANCY].clone()
        };
        assert_eq!(label(Operator::In, &["dedicated"]), "dedicated");
        assert_eq!(label(Operator::NotIn, &["default"]), "dedicated");
        assert_eq!(label(Operator::In, &["dedicated", "default"]), "default");
        assert_eq!(label(Operator::NotIn, &["dedicated"]), "default");
        assert_eq!(label(Operator::In, &[]), "default");
    }

    #[test]
    fn spot_comes_before_on_demand_unless_it_is_dearer() {
        use CapacityType::{OnDemand, Spot};
        let ranked = vec![offering("a", Spot, 3), offering("a", OnDemand, 9), offering("b", Spot, 12)];
        assert_eq!(names(ranked), ["a spot"]);
        let ranked = vec![offering("a", OnDemand, 9), offering("b", Spot, 12)];
        assert_eq!(names(ranked), ["a on-demand"]);
        assert_eq!(names(vec![offering("b", Spot, 12)]), ["b spot"]);
        assert!(names(Vec::new()).is_empty());
    }

    #[test]
    fn a_request_names_at_most_sixty_types() {
        let ranked = (0..100).map(|n| offering(&format!("t{n:03}"), CapacityType::Spot, n)).collect();
        let kept = names(ranked);
        assert_eq!((kept.len(), kept[0].as_str()), (MAX_TYPES, "t000 spot"));
    }
}

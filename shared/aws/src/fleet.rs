//! CreateFleet of type `instant`: one call, answered at once with instances and with the reasons why others did not come.

use crate::capacity_reservations::Taken;
use crate::change::Failed;
use crate::config::Clients;
use crate::error::Error;
use crate::pace::Token;
use crate::selector::write_tags;
use aws_sdk_ec2::types as ec2;
use karp_domain::catalogue::CapacityType;
use karp_domain::fleet::known_as;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

const CREATE: &str = "ec2:CreateFleet";
/// EC2 takes this many launch-template overrides in one instant request.
pub const MAX_OVERRIDES: usize = 300;
/// EC2 takes this many launch templates in one request.
pub const MAX_TEMPLATES: usize = 50;

/// A request for `count` equal instances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Makes the request repeatable: EC2 answers the same token and request with the same instances.
    pub client_token: String,
    /// How the instances are bought; one kind a request.
    pub capacity_type: CapacityType,
    /// How many.
    pub count: u32,
    /// One of the reservations that the launch templates name, where they name any: all of a request are of its kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Taken>,
    /// What may be launched: EC2 takes the cheapest, for spot weighed with the capacity left.
    pub choices: Vec<Choice>,
    /// Tags of instances, volumes and the fleet.
    pub tags: BTreeMap<String, String>,
    /// The node class's `context`, passed through.
    pub context: Option<String>,
}

/// A launch template with the types and subnets that it may be used for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The launch template's name.
    pub launch_template: String,
    /// Types and subnets.
    pub overrides: Vec<Override>,
}

/// One type in one subnet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Override {
    /// The instance type.
    pub instance_type: String,
    /// The subnet.
    pub subnet_id: String,
    /// The subnet's zone.
    pub zone: String,
    /// Its place by prices that EC2 does not know, 0 the best. Where any choice has one, EC2 takes the best that it has instead of what is
    /// cheapest to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

impl Request {
    /// Makes one request for many of it, under a token of its own: its tags are all that says for whom they are.
    #[must_use]
    pub fn together(&self, token: &str, count: u32, tags: BTreeMap<String, String>) -> Self {
        Self { client_token: token.to_owned(), count, tags, ..self.clone() }
    }

    /// Returns a digest of the whole request: EC2 compares all of it under one client token.
    #[must_use]
    pub fn digest(&self) -> String {
        // A plain struct of strings, numbers and ordered maps always serialises.
        let content = serde_json::to_vec(self).unwrap_or_default();
        hex::encode(&Sha256::digest(content)[..16])
    }
}

/// What came of a request. It may hold fewer instances than asked for, and none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The fleet's id.
    pub fleet_id: String,
    /// Instances that were launched, ordered by id.
    pub launched: Vec<Launched>,
    /// Offerings that EC2 tried in vain.
    pub refused: Vec<Refusal>,
}

/// An instance that was launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    /// `i-…`
    pub instance_id: String,
    /// Its type.
    pub instance_type: String,
    /// Its zone; empty when EC2 does not say.
    pub zone: String,
    /// Its subnet; empty when EC2 does not say.
    pub subnet_id: String,
    /// How it was bought.
    pub capacity_type: CapacityType,
}

/// An offering that EC2 refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The type; empty when the refusal concerns the whole request.
    pub instance_type: String,
    /// The zone.
    pub zone: String,
    /// The subnet.
    pub subnet_id: String,
    /// How it was to be bought.
    pub capacity_type: CapacityType,
    /// EC2's code, as `InsufficientInstanceCapacity`.
    pub code: String,
    /// EC2's words.
    pub message: String,
}

impl Refusal {
    /// Returns the refusal as an error, classified by what to do next.
    #[must_use]
    pub fn error(&self) -> Error {
        let place = format!("{} {} in {}: {}", self.capacity_type, self.instance_type, self.zone, self.message);
        Error::from_code(CREATE, &self.code, place)
    }
}

/// Asks EC2 for the instances.
///
/// # Errors
/// [`Error::TokenReused`] when the token was used with another request: list by tag and adopt. [`Failed::in_doubt`] says whether
/// instances may have been launched although the call failed. Refused offerings are part of an answer, not an error.
pub async fn create(clients: &Clients, request: &Request, turn: Token) -> Result<Answer, Failed> {
    let count = i32::try_from(request.count).unwrap_or(i32::MAX);
    let overrides: usize = request.choices.iter().map(|choice| choice.overrides.len()).sum();
    if overrides == 0 || overrides > MAX_OVERRIDES {
        let message = format!("{overrides} overrides: a request has 1 to {MAX_OVERRIDES}");
        let error = Error::InvalidRequest { action: CREATE, code: "Overrides".into(), message };
        return Err(Failed { error, in_doubt: false });
    }
    let capacity = ec2::TargetCapacitySpecificationRequest::builder()
        .total_target_capacity(count)
        .default_target_capacity_type(target(request))
        .build();
    let mut call = clients
        .ec2_once()
        .create_fleet()
        .r#type(ec2::FleetType::Instant)
        .client_token(&request.client_token)
        .target_capacity_specification(capacity)
        .set_launch_template_configs(Some(request.choices.iter().map(config).collect()))
        .set_tag_specifications(Some(tags(&request.tags)))
        .set_context(request.context.clone());
    let mut overrides = request.choices.iter().flat_map(|choice| &choice.overrides);
    let ranked = overrides.any(|one| one.priority.is_some());
    call = match target(request) {
        ec2::DefaultTargetCapacityType::Spot => {
            let strategy = match ranked {
                true => ec2::SpotAllocationStrategy::CapacityOptimizedPrioritized,
                false => ec2::SpotAllocationStrategy::PriceCapacityOptimized,
            };
            call.spot_options(ec2::SpotOptionsRequest::builder().allocation_strategy(strategy).build())
        }
        ec2::DefaultTargetCapacityType::OnDemand => {
            let strategy = match ranked {
                true => ec2::FleetOnDemandAllocationStrategy::Prioritized,
                false => ec2::FleetOnDemandAllocationStrategy::LowestPrice,
            };
            call.on_demand_options(ec2::OnDemandOptionsRequest::builder().allocation_strategy(strategy).build())
        }
        ec2::DefaultTargetCapacityType::ReservedCapacity => {
            let kind = ec2::FleetReservationType::InterruptibleCapacityReservation;
            call.reserved_capacity_options(
                ec2::ReservedCapacityOptionsRequest::builder().reservation_types(kind).build(),
            )
        }
        // a block is what its launch template names: there is nothing to choose
        _ => call,
    };
    let gate = &clients.pace().create_fleet;
    let answer = clients.change_on(CREATE, gate, Some(turn), || call.clone().send()).await?;
    Ok(read(answer, request.capacity_type))
}

/// What EC2 calls the way in which a request is bought. Plain reservations are on demand to it, in launch templates that name them.
fn target(request: &Request) -> ec2::DefaultTargetCapacityType {
    match request.reservation.as_ref().and_then(Taken::market) {
        Some(ec2::MarketType::CapacityBlock) => ec2::DefaultTargetCapacityType::CapacityBlock,
        Some(_) => ec2::DefaultTargetCapacityType::ReservedCapacity,
        None if request.capacity_type == CapacityType::Spot => ec2::DefaultTargetCapacityType::Spot,
        None => ec2::DefaultTargetCapacityType::OnDemand,
    }
}

fn config(choice: &Choice) -> ec2::FleetLaunchTemplateConfigRequest {
    let template = ec2::FleetLaunchTemplateSpecificationRequest::builder()
        .launch_template_name(&choice.launch_template)
        .version("$Latest")
        .build();
    let one = |item: &Override| {
        ec2::FleetLaunchTemplateOverridesRequest::builder()
            .instance_type(ec2::InstanceType::from(item.instance_type.as_str()))
            .subnet_id(&item.subnet_id)
            .availability_zone(&item.zone)
            .set_priority(item.priority.map(f64::from))
            .build()
    };
    ec2::FleetLaunchTemplateConfigRequest::builder()
        .launch_template_specification(template)
        .set_overrides(Some(choice.overrides.iter().map(one).collect()))
        .build()
}

fn tags(tags: &BTreeMap<String, String>) -> Vec<ec2::TagSpecification> {
    [ec2::ResourceType::Instance, ec2::ResourceType::Volume, ec2::ResourceType::Fleet]
        .into_iter()
        .map(|kind| ec2::TagSpecification::builder().resource_type(kind).set_tags(Some(write_tags(tags))).build())
        .collect()
}

fn read(answer: aws_sdk_ec2::operation::create_fleet::CreateFleetOutput, asked: CapacityType) -> Answer {
    let bought = |lifecycle: Option<ec2::InstanceLifecycle>| match lifecycle {
        // to EC2 a plain reservation is on demand
        _ if asked == CapacityType::Reserved => asked,
        Some(ec2::InstanceLifecycle::Spot) => CapacityType::Spot,
        Some(ec2::InstanceLifecycle::OnDemand) => CapacityType::OnDemand,
        _ => asked,
    };
    let mut launched = Vec::new();
    for group in answer.instances.unwrap_or_default() {
        let place = group.launch_template_and_overrides.and_then(|both| both.overrides);
        let (zone, subnet_id, override_type) = read_override(place);
        let instance_type = group.instance_type.map_or(override_type, |kind| kind.as_str().to_owned());
        let capacity_type = bought(group.lifecycle);
        launched.extend(group.instance_ids.unwrap_or_default().into_iter().map(|instance_id| Launched {
            instance_id,
            instance_type: instance_type.clone(),
            zone: zone.clone(),
            subnet_id: subnet_id.clone(),
            capacity_type,
        }));
    }
    launched.sort_by(|one, other| one.instance_id.cmp(&other.instance_id));
    let refusal = |error: ec2::CreateFleetError| {
        let place = error.launch_template_and_overrides.and_then(|both| both.overrides);
        let (zone, subnet_id, instance_type) = read_override(place);
        let message = error.error_message.unwrap_or_default();
        Refusal {
            instance_type,
            zone,
            subnet_id,
            capacity_type: bought(error.lifecycle),
            code: known_as(&error.error_code.unwrap_or_default(), &message).to_owned(),
            message,
        }
    };
    let refused = answer.errors.unwrap_or_default().into_iter().map(refusal).collect();
    Answer { fleet_id: answer.fleet_id.unwrap_or_default(), launched, refused }
}

fn read_override(place: Option<ec2::FleetLaunchTemplateOverrides>) -> (String, String, String) {
    let Some(place) = place else { return Default::default() };
    let instance_type = place.instance_type.map_or_else(String::new, |kind| kind.as_str().to_owned());
    (place.availability_zone.unwrap_or_default(), place.subnet_id.unwrap_or_default(), instance_type)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Retry;
    use karp_domain::catalogue::ReservationKind;

    #[test]
    fn a_refusal_says_what_was_refused_and_what_helps() {
        let refusal = |code: &str| Refusal {
            instance_type: "m7i.large".into(),
            zone: "us-east-1a".into(),
            subnet_id: "subnet-1".into(),
            capacity_type: CapacityType::Spot,
            code: code.into(),
            message: "m".into(),
        };
        assert_eq!(refusal("UnauthorizedOperation").error().retry(), Retry::OnSpecChange);
        let error = refusal("InsufficientInstanceCapacity").error();
        assert_eq!(error.retry(), Retry::Resolve);
        assert!(error.to_string().contains("m7i.large in us-east-1a"), "{error}");
    }

    #[test]
    fn a_subnet_is_full_however_ec2_says_it() {
        let few = "There aren't sufficient free Ipv4 addresses or prefixes";
        let refused =
            [("InsufficientCidrBlocks", "no block"), ("InvalidParameterValue", few), ("InvalidParameterValue", "m")];
        let errors = refused
            .map(|(code, message)| ec2::CreateFleetError::builder().error_code(code).error_message(message).build());
        let answer = aws_sdk_ec2::operation::create_fleet::CreateFleetOutput::builder().set_errors(Some(errors.into()));
        let read = read(answer.build(), CapacityType::Spot).refused;
        let codes: Vec<&str> = read.iter().map(|one| one.code.as_str()).collect();
        let full = karp_domain::fleet::NO_ADDRESSES;
        assert_eq!(codes, [full, full, "InvalidParameterValue"]);
        assert_eq!(read[1].message, few, "in EC2's own words");
        assert!(matches!(read[1].error(), Error::InsufficientCapacity { .. }));
    }

    #[test]
    fn each_way_of_buying_has_its_word_at_ec2() {
        use ReservationKind::{CapacityBlock, Default as Plain};
        let of = |capacity_type, held: Option<(ReservationKind, bool)>| {
            let taken = |(kind, interruptible)| Taken { id: "cr-1".into(), kind, interruptible };
            target(&Request {
                client_token: "t".into(),
                capacity_type,
                count: 1,
                reservation: held.map(taken),
                choices: Vec::new(),
                tags: BTreeMap::new(),
                context: None,
            })
        };
        let reserved = |kind, interruptible| of(CapacityType::Reserved, Some((kind, interruptible)));
        assert_eq!(of(CapacityType::Spot, None), ec2::DefaultTargetCapacityType::Spot);
        assert_eq!(of(CapacityType::OnDemand, None), ec2::DefaultTargetCapacityType::OnDemand);
        assert_eq!(reserved(Plain, false), ec2::DefaultTargetCapacityType::OnDemand);
        assert_eq!(reserved(Plain, true), ec2::DefaultTargetCapacityType::ReservedCapacity);
        assert_eq!(reserved(CapacityBlock, false), ec2::DefaultTargetCapacityType::CapacityBlock);
        let launched =
            ec2::CreateFleetInstance::builder().instance_ids("i-1").lifecycle(ec2::InstanceLifecycle::OnDemand);
        let answer =
            aws_sdk_ec2::operation::create_fleet::CreateFleetOutput::builder().instances(launched.build()).build();
        assert_eq!(read(answer, CapacityType::Reserved).launched[0].capacity_type, CapacityType::Reserved);
    }
}

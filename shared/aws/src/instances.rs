//! Instances that exist: listing, ending, tagging.

use crate::capacity_reservations::Taken;
use crate::config::Clients;
use crate::error::Error;
use crate::selector::{carries, filter, read_tags, tag_filters, write_tags};
use aws_sdk_ec2::types as ec2;
use jiff::Timestamp;
use karp_domain::catalogue::{CapacityType, ReservationKind};
use std::collections::BTreeMap;

const DESCRIBE: &str = "ec2:DescribeInstances";
const TERMINATE: &str = "ec2:TerminateInstances";
const TAG: &str = "ec2:CreateTags";
/// The tag of an instance, and of its volumes, that names the NodeClaim which it was launched for.
pub const CLAIM_TAG: &str = "karpenter.sh/nodeclaim";
/// The tag of an instance that names the batch which it was launched with, for one of its claims.
pub const BATCH_TAG: &str = karp_domain::lifecycle::launch::BATCH;
/// A page of DescribeInstances; EC2 allows up to 1,000 and answers big pages slowly.
const PAGE: i32 = 500;
/// Values that one filter takes (EC2's bound is 200).
pub const IDS_PER_FILTER: usize = 100;
/// Instances ended by one call: EC2 allows 1,000; a smaller batch loses less when one id makes the whole call fail.
pub const IDS_PER_TERMINATION: usize = 50;
/// The states of an instance that has not ended.
const LIVE: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];

/// The state of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It starts.
    Pending,
    /// It runs.
    Running,
    /// It is being stopped.
    Stopping,
    /// It is stopped and may be started again.
    Stopped,
    /// It is being ended.
    ShuttingDown,
    /// It has ended; EC2 lists it for about an hour more.
    Terminated,
}

impl State {
    /// Says whether the instance has ended or will end whatever happens.
    #[must_use]
    pub const fn is_ending(self) -> bool {
        matches!(self, Self::ShuttingDown | Self::Terminated)
    }
}

/// An instance as EC2 lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// `i-…`
    pub id: String,
    /// Its state.
    pub state: State,
    /// Its type.
    pub instance_type: String,
    /// Its zone.
    pub zone: String,
    /// Its subnet.
    pub subnet_id: String,
    /// Its machine image.
    pub image_id: String,
    /// How it was bought.
    pub capacity_type: CapacityType,
    /// The capacity reservation that it was launched for and still takes its capacity from.
    pub reservation: Option<Taken>,
    /// The placement group that it is in, if it is in one.
    pub group: Option<InGroup>,
    /// The partition of its placement group, where that has partitions.
    pub partition: Option<i32>,
    /// When it was launched, by EC2's clock.
    pub launched_at: Option<Timestamp>,
    /// Its private DNS name; empty until it has one.
    pub private_dns_name: String,
    /// Its security groups, ordered.
    pub security_group_ids: Vec<String>,
    /// The name of its instance profile, if it has one.
    pub instance_profile: Option<String>,
    /// The volumes that are attached to it.
    pub volumes: Vec<Attached>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// The client token that launched it; for a fleet that is not the fleet's token.
    pub client_token: String,
}

/// A volume that is attached to an instance: launched with it, or brought by a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// `vol-…`
    pub id: String,
    /// The device under which the instance sees it.
    pub device: String,
    /// It is deleted with the instance, which volumes of pods are not.
    pub ends_with_instance: bool,
}

/// What EC2 tells of the placement group that an instance is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InGroup {
    /// `pg-…`; empty where EC2 does not say.
    pub id: String,
    /// Its name; empty where EC2 does not say.
    pub name: String,
}

impl Instance {
    /// Returns the Kubernetes provider id, `aws:///ZONE/ID`.
    #[must_use]
    pub fn provider_id(&self) -> String {
        provider_id(&self.zone, &self.id)
    }
}

/// Builds the Kubernetes provider id of an instance.
#[must_use]
pub fn provider_id(zone: &str, instance_id: &str) -> String {
    format!("aws:///{zone}/{instance_id}")
}

/// Reads the instance id from a Kubernetes provider id.
#[must_use]
pub fn instance_id(provider_id: &str) -> Option<&str> {
    let rest = provider_id.strip_prefix("aws://")?;
    rest.rsplit('/').next().filter(|id| id.starts_with("i-"))
}

/// Lists the instances that carry all of `tags` (the value `*` stands for any) and have not ended, ordered by id.
///
/// # Errors
/// Any failure of a call. An answer is whole or an error: a lost page is never taken for an empty one.
pub async fn list(clients: &Clients, tags: &BTreeMap<String, String>) -> Result<Vec<Instance>, Error> {
    let mut filters = tag_filters(tags);
    filters.push(filter("instance-state-name", LIVE.map(str::to_owned)));
    let mut found = describe_filtered(clients, filters).await?;
    found.retain(|instance| carries(&instance.tags, tags));
    found.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(found)
}

/// Lists the instances that carry `tag` and any of these values of the tag `key` ([`CLAIM_TAG`], [`BATCH_TAG`]), as [`list`] does.
///
/// # Errors
/// As [`list`].
pub async fn list_of(
    clients: &Clients,
    tag: &(String, String),
    key: &str,
    values: &[String],
) -> Result<Vec<Instance>, Error> {
    let mut found = Vec::new();
    for chunk in values.chunks(IDS_PER_FILTER) {
        let mut filters = tag_filters(&BTreeMap::from([tag.clone()]));
        filters.push(filter(&format!("tag:{key}"), chunk.to_vec()));
        filters.push(filter("instance-state-name", LIVE.map(str::to_owned)));
        found.extend(describe_filtered(clients, filters).await?);
    }
    let is_of = |instance: &Instance| instance.tags.get(key).is_some_and(|value| values.contains(value));
    found.retain(|instance| instance.tags.get(&tag.0) == Some(&tag.1) && is_of(instance));
    found.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(found)
}

/// Describes the instances with these ids, ended ones included as long as EC2 lists them; unknown ids are absent from the answer.
///
/// # Errors
/// Any failure of a call.
pub async fn describe(clients: &Clients, ids: &[String]) -> Result<Vec<Instance>, Error> {
    let mut found = Vec::with_capacity(ids.len());
    for chunk in ids.chunks(IDS_PER_FILTER) {
        // By filter: an unknown id among InstanceIds makes the whole call fail.
        found.extend(describe_filtered(clients, vec![filter("instance-id", chunk.to_vec())]).await?);
    }
    found.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(found)
}

/// Ends the instances and answers for each; one that EC2 does not know is [`Error::NotFound`], one that has ended already is fine.
pub async fn terminate(clients: &Clients, ids: &[String]) -> Vec<(String, Result<(), Error>)> {
    let mut answers = Vec::with_capacity(ids.len());
    let mut left: Vec<Vec<String>> = ids.chunks(IDS_PER_TERMINATION).map(<[String]>::to_vec).collect();
    while let Some(batch) = left.pop() {
        match terminate_batch(clients, &batch).await {
            Ok(()) => answers.extend(batch.into_iter().map(|id| (id, Ok(())))),
            // One bad id fails the whole batch and ends none of it. What is left gets smaller each time.
            Err(error) => match blame(&batch, &error) {
                Blame::All => answers.extend(batch.into_iter().map(|id| (id, Err(error.clone())))),
                Blame::Some { bad, rest } => {
                    answers.extend(bad.into_iter().map(|id| (id, Err(error.clone()))));
                    left.push(rest);
                }
                Blame::Unsaid => left.extend(batch.into_iter().map(|id| vec![id])),
            },
        }
    }
    answers
}

/// Says for which ids of a batch a call failed.
#[derive(Debug, PartialEq, Eq)]
enum Blame {
    All,
    /// EC2 names the bad ones; neither part is empty.
    Some {
        bad: Vec<String>,
        rest: Vec<String>,
    },
    /// Any of them may be the bad one.
    Unsaid,
}

fn blame(batch: &[String], error: &Error) -> Blame {
    match error {
        _ if batch.len() == 1 => Blame::All,
        // no id is at fault, and more calls would fail like this one
        Error::Throttled { .. }
        | Error::Barred { .. }
        | Error::Credentials { .. }
        | Error::Unreachable { .. }
        | Error::NotImplemented { .. }
        | Error::Configuration { .. } => Blame::All,
        _ => {
            let message = error.to_string();
            let (bad, rest): (Vec<String>, Vec<String>) = batch.iter().cloned().partition(|id| message.contains(id));
            match (bad.is_empty(), rest.is_empty()) {
                (true, _) => Blame::Unsaid,
                (_, true) => Blame::All,
                _ => Blame::Some { bad, rest },
            }
        }
    }
}

/// Puts tags on instances (or on any EC2 resource with an id).
///
/// # Errors
/// [`Error::NotFound`] when a resource is not there (yet), and any failure of the call.
pub async fn tag(clients: &Clients, ids: &[String], tags: &BTreeMap<String, String>) -> Result<(), Error> {
    let call = clients.ec2_once().create_tags().set_resources(Some(ids.to_vec())).set_tags(Some(write_tags(tags)));
    clients.change(TAG, &clients.pace().tag, || call.clone().send()).await.map(drop)
}

async fn terminate_batch(clients: &Clients, ids: &[String]) -> Result<(), Error> {
    let call = clients.ec2_once().terminate_instances().set_instance_ids(Some(ids.to_vec()));
    clients.change(TERMINATE, &clients.pace().terminate, || call.clone().send()).await.map(drop)
}

async fn describe_filtered(clients: &Clients, filters: Vec<ec2::Filter>) -> Result<Vec<Instance>, Error> {
    let mut found = Vec::new();
    let call = clients.ec2().describe_instances().set_filters(Some(filters)).max_results(PAGE);
    let mut next: Option<String> = None;
    loop {
        clients.pace().describe.take().await;
        let page =
            call.clone().set_next_token(next.clone()).send().await.map_err(|error| Error::from_sdk(DESCRIBE, error))?;
        for reservation in page.reservations.unwrap_or_default() {
            for instance in reservation.instances.unwrap_or_default() {
                found.push(read(instance)?);
            }
        }
        match page.next_token.filter(|token| !token.is_empty()) {
            None => return Ok(found),
            same if same == next => return Err(Error::malformed(DESCRIBE, "a page names itself as the next one")),
            further => next = further,
        }
    }
}

fn read(instance: ec2::Instance) -> Result<Instance, Error> {
    let reservation = taken(&instance);
    let id = instance.instance_id.ok_or_else(|| Error::malformed(DESCRIBE, "an instance without an id"))?;
    let state = match instance.state.and_then(|state| state.name) {
        Some(ec2::InstanceStateName::Pending) => State::Pending,
        Some(ec2::InstanceStateName::Running) => State::Running,
        Some(ec2::InstanceStateName::Stopping) => State::Stopping,
        Some(ec2::InstanceStateName::Stopped) => State::Stopped,
        Some(ec2::InstanceStateName::ShuttingDown) => State::ShuttingDown,
        Some(ec2::InstanceStateName::Terminated) => State::Terminated,
        other => return Err(Error::malformed(DESCRIBE, format!("instance {id} is in the unknown state {other:?}"))),
    };
    let capacity_type = match instance.instance_lifecycle {
        _ if reservation.is_some() => CapacityType::Reserved,
        Some(ec2::InstanceLifecycleType::Spot) => CapacityType::Spot,
        _ => CapacityType::OnDemand,
    };
    let groups = instance.security_groups.unwrap_or_default();
    let profile = instance.iam_instance_profile.and_then(|profile| profile.arn);
    let (zone, group, partition) = match instance.placement {
        Some(placement) => {
            let group = in_group(placement.group_id, placement.group_name);
            (placement.availability_zone.unwrap_or_default(), group, placement.partition_number)
        }
        None => Default::default(),
    };
    let volumes = instance.block_device_mappings.unwrap_or_default().into_iter().filter_map(attached).collect();
    let mut security_group_ids: Vec<String> = groups.into_iter().filter_map(|group| group.group_id).collect();
    security_group_ids.sort();
    Ok(Instance {
        id,
        state,
        instance_type: instance.instance_type.map_or_else(String::new, |kind| kind.as_str().to_owned()),
        zone,
        subnet_id: instance.subnet_id.unwrap_or_default(),
        image_id: instance.image_id.unwrap_or_default(),
        capacity_type,
        reservation,
        group,
        partition: partition.filter(|number| *number > 0),
        launched_at: instance.launch_time.and_then(|time| Timestamp::from_second(time.secs()).ok()),
        private_dns_name: instance.private_dns_name.unwrap_or_default(),
        security_group_ids,
        volumes,
        tags: read_tags(instance.tags),
        instance_profile: profile.and_then(|arn| arn.rsplit('/').next().map(str::to_owned)),
        client_token: instance.client_token.unwrap_or_default(),
    })
}

fn attached(mapping: ec2::InstanceBlockDeviceMapping) -> Option<Attached> {
    let volume = mapping.ebs?;
    let ends_with_instance = volume.delete_on_termination.unwrap_or_default();
    Some(Attached { id: volume.volume_id?, device: mapping.device_name.unwrap_or_default(), ends_with_instance })
}

/// The group that an instance is in; EC2 may write an empty name of one that it is not in.
fn in_group(id: Option<String>, name: Option<String>) -> Option<InGroup> {
    let group = InGroup { id: id.unwrap_or_default(), name: name.unwrap_or_default() };
    (!group.id.is_empty() || !group.name.is_empty()).then_some(group)
}

/// The reservation that an instance was launched for. One that only fell into an open reservation is on demand: nobody counts on it.
fn taken(instance: &ec2::Instance) -> Option<Taken> {
    let id = instance.capacity_reservation_id.clone().filter(|id| !id.is_empty())?;
    let lifecycle = instance.instance_lifecycle.as_ref();
    let kind = match lifecycle {
        Some(ec2::InstanceLifecycleType::CapacityBlock) => ReservationKind::CapacityBlock,
        _ => ReservationKind::Default,
    };
    let interruptible = lifecycle == Some(&ec2::InstanceLifecycleType::InterruptibleCapacityReservation);
    let said = instance.capacity_reservation_specification.as_ref();
    let preference = said.and_then(|said| said.capacity_reservation_preference.as_ref());
    let target = said.and_then(|said| said.capacity_reservation_target.as_ref()?.capacity_reservation_id.as_ref());
    let asked =
        preference == Some(&ec2::CapacityReservationPreference::CapacityReservationsOnly) || target == Some(&id);
    (asked || interruptible || kind == ReservationKind::CapacityBlock).then_some(Taken { id, kind, interruptible })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_ids_round_trip() {
        let id = provider_id("eu-west-1a", "i-0123");
        assert_eq!(id, "aws:///eu-west-1a/i-0123");
        assert_eq!(instance_id(&id), Some("i-0123"));
        assert_eq!(instance_id("kwok://node-1"), None);
        assert_eq!(instance_id("aws:///eu-west-1a/"), None);
    }

    #[test]
    fn only_instances_that_asked_for_a_reservation_are_reserved() {
        use ec2::CapacityReservationPreference::{CapacityReservationsOnly, Open};
        let of = |id: Option<&str>, preference, lifecycle: Option<ec2::InstanceLifecycleType>| {
            let specification = ec2::CapacityReservationSpecificationResponse::builder();
            let instance = ec2::Instance::builder()
                .instance_id("i-1")
                .state(ec2::InstanceState::builder().name(ec2::InstanceStateName::Running).build())
                .set_capacity_reservation_id(id.map(str::to_owned))
                .capacity_reservation_specification(specification.capacity_reservation_preference(preference).build())
                .set_instance_lifecycle(lifecycle)
                .build();
            let read = read(instance).expect("an instance");
            (read.capacity_type, read.reservation.map(|taken| (taken.kind, taken.interruptible)))
        };
        let plain = (CapacityType::Reserved, Some((ReservationKind::Default, false)));
        assert_eq!(of(Some("cr-1"), CapacityReservationsOnly, None), plain);
        assert_eq!(of(Some("cr-1"), Open, None), (CapacityType::OnDemand, None), "it fell into an open one");
        assert_eq!(of(None, CapacityReservationsOnly, None), (CapacityType::OnDemand, None), "its reservation ended");
        let unsaid = ec2::Instance::builder()
            .instance_id("i-1")
            .capacity_reservation_id("cr-1")
            .instance_lifecycle(ec2::InstanceLifecycleType::InterruptibleCapacityReservation);
        let interruptible = taken(&unsaid.build()).map(|taken| (taken.kind, taken.interruptible));
        assert_eq!(interruptible, Some((ReservationKind::Default, true)), "its lifecycle says so");
        let named = |id: &str| {
            let target = ec2::CapacityReservationTargetResponse::builder().capacity_reservation_id(id).build();
            let said = ec2::CapacityReservationSpecificationResponse::builder().capacity_reservation_target(target);
            let instance = ec2::Instance::builder().instance_id("i-1").capacity_reservation_id("cr-1");
            taken(&instance.capacity_reservation_specification(said.build()).build()).is_some()
        };
        assert!(named("cr-1") && !named("cr-2"), "it asked for this one");
        let block = of(Some("cr-1"), Open, Some(ec2::InstanceLifecycleType::CapacityBlock));
        assert_eq!(block, (CapacityType::Reserved, Some((ReservationKind::CapacityBlock, false))));
    }

    #[test]
    fn an_instance_tells_its_partition_where_it_has_one() {
        let of = |number: Option<i32>| {
            let placement = ec2::Placement::builder().availability_zone("a").set_partition_number(number).build();
            let state = ec2::InstanceState::builder().name(ec2::InstanceStateName::Running).build();
            let instance = ec2::Instance::builder().instance_id("i-1").state(state).placement(placement).build();
            let read = read(instance).expect("an instance");
            (read.zone, read.partition)
        };
        assert_eq!(of(Some(3)), ("a".to_owned(), Some(3)));
        assert_eq!(of(Some(0)), ("a".to_owned(), None));
        assert_eq!(of(None), ("a".to_owned(), None));
    }

    #[test]
    fn an_instance_tells_its_placement_group_where_it_is_in_one() {
        let of = |id: Option<&str>, name: Option<&str>| {
            let placement = ec2::Placement::builder().set_group_id(id.map(str::to_owned));
            let placement = placement.set_group_name(name.map(str::to_owned)).build();
            let state = ec2::InstanceState::builder().name(ec2::InstanceStateName::Running).build();
            let instance = ec2::Instance::builder().instance_id("i-1").state(state).placement(placement).build();
            read(instance).expect("an instance").group.map(|group| (group.id, group.name))
        };
        assert_eq!(of(Some("pg-1"), Some("near")), Some(("pg-1".to_owned(), "near".to_owned())));
        assert_eq!(of(None, Some("near")), Some((String::new(), "near".to_owned())));
        assert_eq!((of(None, None), of(None, Some("")), of(Some(""), Some(""))), (None, None, None));
    }

    #[test]
    fn a_batch_fails_for_the_ids_that_ec2_names() {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let batch = ids(&["i-0a1", "i-0a2", "i-0a3"]);
        let of = |code: &str, message: &str| blame(&batch, &Error::from_code(TERMINATE, code, message.to_owned()));
        let unknown = "InvalidInstanceID.NotFound";
        let split = Blame::Some { bad: ids(&["i-0a1", "i-0a3"]), rest: ids(&["i-0a2"]) };
        assert_eq!(of(unknown, "The instance IDs 'i-0a1, i-0a3' do not exist"), split);
        assert_eq!(of(unknown, "The instance IDs 'i-0a1, i-0a2, i-0a3' do not exist"), Blame::All);
        assert_eq!(of(unknown, "no such instance"), Blame::Unsaid);
        let held = "The instance 'i-0a2' may not be terminated. Modify its 'disableApiTermination' instance attribute";
        let split = Blame::Some { bad: ids(&["i-0a2"]), rest: ids(&["i-0a1", "i-0a3"]) };
        assert_eq!(of("OperationNotPermitted", held), split);
        assert_eq!(of("RequestLimitExceeded", "Request limit exceeded."), Blame::All);
        assert_eq!(blame(&batch[..1], &Error::from_code(TERMINATE, unknown, "none".to_owned())), Blame::All);
    }

    #[test]
    fn an_unknown_state_is_an_error_not_a_guess() {
        let state = ec2::InstanceState::builder().name(ec2::InstanceStateName::from("melting")).build();
        let instance = ec2::Instance::builder().instance_id("i-1").state(state).build();
        assert!(matches!(read(instance), Err(Error::Malformed { .. })));
    }
}

//! Launch templates named by the hash of their content: equal settings share one template, and a template never changes.

use crate::capacity_reservations::Taken;
use crate::config::Clients;
use crate::error::{Error, both};
use crate::selector::{carries, filter, read_tags, tag_filters, write_tags};
use aws_sdk_ec2::operation::create_launch_template::builders::CreateLaunchTemplateFluentBuilder;
use aws_sdk_ec2::types as ec2;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use karp_domain::user_data::LIMIT_BYTES;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

const CREATE: &str = "ec2:CreateLaunchTemplate";
const DESCRIBE: &str = "ec2:DescribeLaunchTemplates";
const DELETE: &str = "ec2:DeleteLaunchTemplate";
/// The prefix that the controller's policy scopes by, as Karpenter's does.
const NAME_PREFIX: &str = "karpenter.k8s.aws/";

/// All that a launch template says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Spec {
    /// The machine image.
    pub image_id: String,
    /// The instance profile's name.
    pub instance_profile: String,
    /// The user data as text; it is encoded when the template is made.
    pub user_data: String,
    /// Security groups of the primary network interface, ordered.
    pub security_group_ids: Vec<String>,
    /// Volumes, by device.
    pub block_devices: Vec<BlockDevice>,
    /// The instance metadata service.
    pub metadata: MetadataOptions,
    /// One-minute CloudWatch metrics.
    pub detailed_monitoring: bool,
    /// Whether the primary interface gets a public address; the subnet decides when absent.
    pub associate_public_ip: Option<bool>,
    /// Where in a placement group the instances go, if they go into one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// The instances run on hardware that nobody else uses.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dedicated: bool,
    /// What the primary network interface has beyond its security groups.
    #[serde(skip_serializing_if = "Interface::is_plain")]
    pub interface: Interface,
    /// Whether instances may run virtual machines of their own, where it is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nested_vms: Option<bool>,
    /// Instances may run Nitro Enclaves.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enclaves: bool,
    /// Which capacity reservations the instances may take.
    #[serde(skip_serializing_if = "Reservations::is_any")]
    pub reservations: Reservations,
    /// The instances are spot instances, whose requests are tagged. EC2 launches no others from a template with tags of such requests.
    // It is part of the name where it does not hold: under the name without it, templates for the others had such tags, too.
    #[serde(skip_serializing_if = "holds")]
    pub spot: bool,
    /// Tags of the template, and of the network interfaces and spot requests that come of it. They must hold the cluster's ownership
    /// tag, since the controller's policy is scoped by it.
    pub tags: BTreeMap<String, String>,
}

fn holds(said: &bool) -> bool {
    *said
}

/// A place in a placement group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// The group's id.
    pub group: String,
    /// The partition, where EC2 is not to choose it.
    pub partition: Option<i32>,
}

/// Says which capacity reservations instances may take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub enum Reservations {
    /// Any open one that fits, as EC2 does by itself.
    #[default]
    Any,
    /// None, not even open ones: they are for those that ask for them.
    None,
    /// This one and nothing else.
    Only(Taken),
}

impl Reservations {
    fn is_any(&self) -> bool {
        *self == Self::Any
    }

    fn request(&self) -> Option<ec2::LaunchTemplateCapacityReservationSpecificationRequest> {
        use ec2::CapacityReservationPreference as Preference;
        let request = ec2::LaunchTemplateCapacityReservationSpecificationRequest::builder();
        match self {
            Self::Any => None,
            Self::None => Some(request.capacity_reservation_preference(Preference::None).build()),
            Self::Only(taken) => {
                let target = ec2::CapacityReservationTarget::builder().capacity_reservation_id(&taken.id).build();
                let only = request.capacity_reservation_preference(Preference::CapacityReservationsOnly);
                Some(only.capacity_reservation_target(target).build())
            }
        }
    }

    /// The market, where EC2 wants it to be named.
    fn market(&self) -> Option<ec2::LaunchTemplateInstanceMarketOptionsRequest> {
        let Self::Only(taken) = self else { return None };
        let named = |market| ec2::LaunchTemplateInstanceMarketOptionsRequest::builder().market_type(market).build();
        taken.market().map(named)
    }
}

/// What a network interface has beyond its security groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// It gets an IPv6 address, which is its first: the cluster's pods and services use IPv6.
    pub ipv6: bool,
    /// IPv4 prefixes (/28) that it gets at launch; none when absent.
    pub prefixes: Option<i32>,
    /// How long idle connections are tracked, where it is said.
    pub connection_tracking: Option<ConnectionTracking>,
    /// What the first interface is for.
    #[serde(skip_serializing_if = "InterfaceKind::is_plain")]
    pub kind: InterfaceKind,
    /// The other interfaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<MoreInterface>,
}

/// A network interface that is not an instance's first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MoreInterface {
    /// The network card that carries it.
    pub card: i32,
    /// Its place on the card.
    pub device: i32,
    /// What it is for.
    pub kind: InterfaceKind,
}

/// Says what a network interface is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub enum InterfaceKind {
    /// IP.
    #[default]
    Plain,
    /// IP and the Elastic Fabric Adapter.
    Efa,
    /// The Elastic Fabric Adapter alone.
    EfaOnly,
}

impl InterfaceKind {
    const fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// EC2's word; it need not be said of plain ones.
    const fn word(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Efa => Some("efa"),
            Self::EfaOnly => Some("efa-only"),
        }
    }
}

impl Interface {
    fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// How many IPv6 addresses it asks for.
    pub(crate) fn ipv6_addresses(&self) -> Option<i32> {
        self.ipv6.then_some(1)
    }

    pub(crate) fn tracking(&self) -> Option<ec2::ConnectionTrackingSpecificationRequest> {
        self.connection_tracking.as_ref().map(ConnectionTracking::request)
    }
}

/// Seconds after which the tracking of idle connections ends; EC2's defaults when absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionTracking {
    /// Of established TCP connections.
    pub tcp_established: Option<i32>,
    /// Of UDP flows with more than one exchange.
    pub udp_stream: Option<i32>,
    /// Of UDP flows with one exchange.
    pub udp: Option<i32>,
}

impl ConnectionTracking {
    fn request(&self) -> ec2::ConnectionTrackingSpecificationRequest {
        ec2::ConnectionTrackingSpecificationRequest::builder()
            .set_tcp_established_timeout(self.tcp_established)
            .set_udp_stream_timeout(self.udp_stream)
            .set_udp_timeout(self.udp)
            .build()
    }
}

/// A volume made at launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockDevice {
    /// The device's name, as in `/dev/xvda`.
    pub device_name: String,
    /// The size in GiB; the snapshot's when absent.
    pub size_gib: Option<i32>,
    /// `gp3`, `io2`, …
    pub volume_type: Option<String>,
    /// Provisioned operations a second.
    pub iops: Option<i32>,
    /// Provisioned MiB a second.
    pub throughput: Option<i32>,
    /// Whether the volume is encrypted; the account's default when absent.
    pub encrypted: Option<bool>,
    /// The key that encrypts it.
    pub kms_key_id: Option<String>,
    /// The snapshot to start from.
    pub snapshot_id: Option<String>,
    /// MiB a second at which the snapshot is read into the volume; as it is used when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initialization_rate: Option<i32>,
    /// Whether the volume ends with its instance.
    pub delete_on_termination: bool,
}

impl BlockDevice {
    /// Makes the volume that karp adds by itself: encrypted gp3, ended with its instance.
    #[must_use]
    pub fn gp3(device_name: &str, size_gib: i32) -> Self {
        Self {
            device_name: device_name.to_owned(),
            size_gib: Some(size_gib),
            volume_type: Some("gp3".to_owned()),
            iops: None,
            throughput: None,
            encrypted: Some(true),
            kms_key_id: None,
            snapshot_id: None,
            initialization_rate: None,
            delete_on_termination: true,
        }
    }
}

/// Settings of the instance metadata service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MetadataOptions {
    /// Whether the service answers at all.
    pub endpoint: bool,
    /// Whether it answers over IPv6; absent where EC2 does not let it be said.
    pub ipv6: Option<bool>,
    /// Network hops that an answer survives.
    pub hop_limit: i32,
    /// Whether a session token is required (IMDSv2).
    pub tokens_required: bool,
}

impl Default for MetadataOptions {
    fn default() -> Self {
        Self { endpoint: true, ipv6: Some(false), hop_limit: 1, tokens_required: true }
    }
}

/// A template that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// `lt-…`
    pub id: String,
    /// Its name, which is the hash of its content.
    pub name: String,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// When it was made.
    pub created_at: Option<Timestamp>,
}

impl Spec {
    /// Returns the template's name: the same for the same content, in every process and version of this program that serialises alike.
    #[must_use]
    pub fn name(&self) -> String {
        // A plain struct of strings, numbers and ordered maps always serialises.
        let content = serde_json::to_vec(self).unwrap_or_default();
        let digest = hex::encode(Sha256::digest(content));
        format!("{NAME_PREFIX}{}", &digest[..32])
    }
}

/// Finds the template of `spec`.
///
/// # Errors
/// [`Error::InvalidRequest`] when the user data is too long, [`Error::AlreadyExists`] when a template of that name belongs to somebody
/// else, and any failure of the call.
pub async fn look(clients: &Clients, spec: &Spec) -> Result<Option<Template>, Error> {
    if spec.user_data.len() > LIMIT_BYTES {
        let message = format!("user data is {} bytes long; EC2 takes {LIMIT_BYTES}", spec.user_data.len());
        return Err(Error::InvalidRequest { action: CREATE, code: "UserDataSizeLimitExceeded".into(), message });
    }
    find_named(clients, &spec.name()).await?.map(|found| adopt(found, spec)).transpose()
}

/// Makes the template of `spec`, or finds the one that is there by now. Safe to repeat and to race: the name holds the content.
///
/// # Errors
/// [`Error::AlreadyExists`] when it belongs to somebody else, and any failure of the calls.
pub async fn make(clients: &Clients, spec: &Spec) -> Result<Template, Error> {
    let name = spec.name();
    match create(clients, &name, spec).await {
        Err(Error::AlreadyExists { .. }) => match find_named(clients, &name).await? {
            Some(found) => adopt(found, spec),
            None => Err(Error::malformed(DESCRIBE, format!("{name} exists but is not listed yet"))),
        },
        made => made,
    }
}

/// Lists the templates that carry all of `tags`.
///
/// # Errors
/// Any failure of the call.
pub async fn list(clients: &Clients, tags: &BTreeMap<String, String>) -> Result<Vec<Template>, Error> {
    let mut found = find(clients, tag_filters(tags)).await?;
    found.retain(|template| carries(&template.tags, tags));
    Ok(found)
}

/// Deletes a template; one that is gone already counts as deleted.
///
/// # Errors
/// Any other failure of the call.
pub async fn delete(clients: &Clients, id: &str) -> Result<(), Error> {
    let call = clients.ec2_once().delete_launch_template().launch_template_id(id);
    match clients.change(DELETE, &clients.pace().mutate, || call.clone().send()).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Deletes every template that carries all of `tags` and returns how many there were; one that may not be deleted holds up no other.
///
/// # Errors
/// [`Error::InvalidRequest`] when `tags` is empty (that would be every template of the account), and any failure of the calls.
pub async fn delete_all(clients: &Clients, tags: &BTreeMap<String, String>) -> Result<usize, Error> {
    if tags.is_empty() {
        let message = "deleting launch templates needs tags to select them".to_owned();
        return Err(Error::InvalidRequest { action: DELETE, code: "NoTags".into(), message });
    }
    let found = list(clients, tags).await?;
    let mut deleted = Ok(());
    for template in &found {
        deleted = both(deleted, delete(clients, &template.id).await).map(drop);
    }
    deleted.map(|()| found.len())
}

async fn find_named(clients: &Clients, name: &str) -> Result<Option<Template>, Error> {
    let found = find(clients, vec![filter("launch-template-name", [name.to_owned()])]).await?;
    Ok(found.into_iter().find(|template| template.name == name))
}

async fn find(clients: &Clients, filters: Vec<ec2::Filter>) -> Result<Vec<Template>, Error> {
    clients.pace().describe.take().await;
    let mut found = Vec::new();
    let mut pages = clients.ec2().describe_launch_templates().set_filters(Some(filters)).into_paginator().send();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| Error::from_sdk(DESCRIBE, error))?;
        found.extend(page.launch_templates.unwrap_or_default().into_iter().filter_map(read));
    }
    Ok(found)
}

fn adopt(found: Template, spec: &Spec) -> Result<Template, Error> {
    match spec.tags.iter().find(|(key, value)| found.tags.get(*key) != Some(*value)) {
        None => Ok(found),
        Some((key, value)) => Err(Error::AlreadyExists {
            action: CREATE,
            code: "ForeignLaunchTemplate".into(),
            message: format!("launch template {} exists without the tag {key}={value}: it is not adopted", found.name),
        }),
    }
}

async fn create(clients: &Clients, name: &str, spec: &Spec) -> Result<Template, Error> {
    let call = call(clients, name, spec);
    let answer = clients.change(CREATE, &clients.pace().mutate, || call.clone().send()).await?;
    let made = answer.launch_template.and_then(read);
    made.ok_or_else(|| Error::malformed(CREATE, "the answer holds no launch template"))
}

/// Builds the call that makes the template.
pub(crate) fn call(clients: &Clients, name: &str, spec: &Spec) -> CreateLaunchTemplateFluentBuilder {
    let own_tags = ec2::TagSpecification::builder()
        .resource_type(ec2::ResourceType::LaunchTemplate)
        .set_tags(Some(write_tags(&spec.tags)))
        .build();
    let call = clients.ec2_once().create_launch_template().launch_template_name(name);
    call.launch_template_data(data(spec)).tag_specifications(own_tags)
}

fn read(template: ec2::LaunchTemplate) -> Option<Template> {
    Some(Template {
        id: template.launch_template_id?,
        name: template.launch_template_name?,
        tags: read_tags(template.tags),
        created_at: template.create_time.and_then(|time| Timestamp::from_second(time.secs()).ok()),
    })
}

fn data(spec: &Spec) -> ec2::RequestLaunchTemplateData {
    let prefixes = spec.interface.prefixes;
    let interface = ec2::LaunchTemplateInstanceNetworkInterfaceSpecificationRequest::builder()
        .device_index(0)
        .set_groups(Some(spec.security_group_ids.clone()))
        .set_associate_public_ip_address(spec.associate_public_ip)
        .set_primary_ipv6(spec.interface.ipv6.then_some(true))
        .set_ipv6_address_count(spec.interface.ipv6_addresses())
        .set_ipv4_prefix_count(prefixes)
        .set_connection_tracking_specification(spec.interface.tracking())
        .set_interface_type(spec.interface.kind.word().map(str::to_owned))
        .delete_on_termination(true)
        .build();
    let more = |one: &MoreInterface| {
        let carries_ip = one.kind != InterfaceKind::EfaOnly;
        ec2::LaunchTemplateInstanceNetworkInterfaceSpecificationRequest::builder()
            .network_card_index(one.card)
            .device_index(one.device)
            .set_interface_type(one.kind.word().map(str::to_owned))
            .set_groups(Some(spec.security_group_ids.clone()))
            .set_ipv4_prefix_count(prefixes.filter(|_| carries_ip))
            .set_connection_tracking_specification(spec.interface.tracking().filter(|_| carries_ip))
            .delete_on_termination(true)
            .build()
    };
    let interfaces = std::iter::once(interface).chain(spec.interface.more.iter().map(more));
    let profile =
        ec2::LaunchTemplateIamInstanceProfileSpecificationRequest::builder().name(&spec.instance_profile).build();
    let tags = |kind| {
        ec2::LaunchTemplateTagSpecificationRequest::builder()
            .resource_type(kind)
            .set_tags(Some(write_tags(&spec.tags)))
            .build()
    };
    let spot_request = spec.spot.then_some(ec2::ResourceType::SpotInstancesRequest);
    let tagged = std::iter::once(ec2::ResourceType::NetworkInterface).chain(spot_request);
    let placement = || {
        let place = spec.placement.as_ref();
        ec2::LaunchTemplatePlacementRequest::builder()
            .set_group_id(place.map(|place| place.group.clone()))
            .set_partition_number(place.and_then(|place| place.partition))
            .set_tenancy(spec.dedicated.then_some(ec2::Tenancy::Dedicated))
            .build()
    };
    ec2::RequestLaunchTemplateData::builder()
        .set_placement((spec.placement.is_some() || spec.dedicated).then(placement))
        .image_id(&spec.image_id)
        .iam_instance_profile(profile)
        .user_data(STANDARD.encode(&spec.user_data))
        .set_network_interfaces(Some(interfaces.collect()))
        .set_cpu_options(spec.nested_vms.map(cpu))
        .set_enclave_options(spec.enclaves.then(enclaves))
        .set_block_device_mappings(Some(spec.block_devices.iter().map(device).collect()))
        .metadata_options(metadata(&spec.metadata))
        .set_capacity_reservation_specification(spec.reservations.request())
        .set_instance_market_options(spec.reservations.market())
        .monitoring(ec2::LaunchTemplatesMonitoringRequest::builder().enabled(spec.detailed_monitoring).build())
        .set_tag_specifications(Some(tagged.map(tags).collect()))
        .build()
}

fn cpu(nested_vms: bool) -> ec2::LaunchTemplateCpuOptionsRequest {
    ec2::LaunchTemplateCpuOptionsRequest::builder().nested_virtualization(nested(nested_vms)).build()
}

/// Returns EC2's word for whether instances may run virtual machines.
pub(crate) fn nested(nested_vms: bool) -> ec2::NestedVirtualizationSpecification {
    use ec2::NestedVirtualizationSpecification::{Disabled, Enabled};
    if nested_vms { Enabled } else { Disabled }
}

fn enclaves() -> ec2::LaunchTemplateEnclaveOptionsRequest {
    ec2::LaunchTemplateEnclaveOptionsRequest::builder().enabled(true).build()
}

fn device(device: &BlockDevice) -> ec2::LaunchTemplateBlockDeviceMappingRequest {
    let volume = ec2::LaunchTemplateEbsBlockDeviceRequest::builder()
        .set_volume_size(device.size_gib)
        .set_volume_type(device.volume_type.as_deref().map(ec2::VolumeType::from))
        .set_iops(device.iops)
        .set_throughput(device.throughput)
        .set_encrypted(device.encrypted)
        .set_kms_key_id(device.kms_key_id.clone())
        .set_snapshot_id(device.snapshot_id.clone())
        .set_volume_initialization_rate(device.initialization_rate)
        .delete_on_termination(device.delete_on_termination)
        .build();
    ec2::LaunchTemplateBlockDeviceMappingRequest::builder().device_name(&device.device_name).ebs(volume).build()
}

fn metadata(options: &MetadataOptions) -> ec2::LaunchTemplateInstanceMetadataOptionsRequest {
    use ec2::{LaunchTemplateHttpTokensState as Tokens, LaunchTemplateInstanceMetadataTagsState as Tags};
    use ec2::{
        LaunchTemplateInstanceMetadataEndpointState as Endpoint, LaunchTemplateInstanceMetadataProtocolIpv6 as Ipv6,
    };
    ec2::LaunchTemplateInstanceMetadataOptionsRequest::builder()
        .http_endpoint(if options.endpoint { Endpoint::Enabled } else { Endpoint::Disabled })
        .set_http_protocol_ipv6(options.ipv6.map(|on| if on { Ipv6::Enabled } else { Ipv6::Disabled }))
        .http_put_response_hop_limit(options.hop_limit)
        .http_tokens(if options.tokens_required { Tokens::Required } else { Tokens::Optional })
        .instance_metadata_tags(Tags::Disabled)
        .build()
}

#[cfg(test)]
mod tests {
    use karp_domain::catalogue::ReservationKind;

    use super::*;

    fn spec() -> Spec {
        Spec {
            image_id: "ami-1".into(),
            instance_profile: "profile".into(),
            user_data: "hello".into(),
            security_group_ids: vec!["sg-1".into()],
            block_devices: vec![BlockDevice::gp3("/dev/xvda", 20)],
            metadata: MetadataOptions::default(),
            detailed_monitoring: false,
            associate_public_ip: None,
            placement: None,
            dedicated: false,
            interface: Interface::default(),
            nested_vms: None,
            enclaves: false,
            reservations: Reservations::default(),
            spot: true,
            tags: BTreeMap::from([("kubernetes.io/cluster/c".into(), "owned".into())]),
        }
    }

    #[test]
    fn the_name_is_stable_across_releases() {
        // A changed name makes every running cluster build new templates: change it knowingly.
        assert_eq!(spec().name(), "karpenter.k8s.aws/9b48a05780057126383027b339f044df");
    }

    #[test]
    fn spot_requests_are_tagged_where_there_are_any() {
        let tagged = |spot| -> Vec<String> {
            let sent = data(&Spec { spot, ..spec() });
            let kinds = sent.tag_specifications().iter().filter_map(|one| one.resource_type());
            kinds.map(|kind| kind.as_str().to_owned()).collect()
        };
        assert_eq!(tagged(true), ["network-interface", "spot-instances-request"]);
        assert_eq!(
            tagged(false),
            ["network-interface"],
            "EC2 refuses to launch other instances with tags of spot requests"
        );
    }

    #[test]
    fn placement_tells_group_partition_and_tenancy() {
        let told =
            |spec: &Spec| data(spec).placement.map(|place| (place.group_id, place.partition_number, place.tenancy));
        assert_eq!(told(&spec()), None);
        let group = Placement { group: "pg-1".to_owned(), partition: Some(2) };
        let dedicated = Some(ec2::Tenancy::Dedicated);
        assert_eq!(told(&Spec { dedicated: true, ..spec() }), Some((None, None, dedicated.clone())));
        let grouped = Spec { placement: Some(group), ..spec() };
        assert_eq!(told(&grouped), Some((Some("pg-1".to_owned()), Some(2), None)));
        assert_eq!(told(&Spec { dedicated: true, ..grouped }), Some((Some("pg-1".to_owned()), Some(2), dedicated)));
    }

    #[test]
    fn what_is_safe_is_what_is_sent() {
        let sent = data(&spec());
        let metadata = sent.metadata_options.expect("told");
        assert_eq!(metadata.http_tokens, Some(ec2::LaunchTemplateHttpTokensState::Required));
        assert_eq!(metadata.http_put_response_hop_limit, Some(1));
        assert_eq!(metadata.instance_metadata_tags, Some(ec2::LaunchTemplateInstanceMetadataTagsState::Disabled));
        let volumes = sent.block_device_mappings.expect("told");
        assert!(volumes.iter().all(|volume| volume.ebs.as_ref().is_some_and(|ebs| ebs.encrypted == Some(true))));
        let open = MetadataOptions { tokens_required: false, ..MetadataOptions::default() };
        let open = data(&Spec { metadata: open, ..spec() }).metadata_options.expect("told");
        assert_eq!(open.http_tokens, Some(ec2::LaunchTemplateHttpTokensState::Optional));
        let protocol = |ipv6| {
            let metadata = MetadataOptions { ipv6, ..MetadataOptions::default() };
            data(&Spec { metadata, ..spec() }).metadata_options.and_then(|told| told.http_protocol_ipv6)
        };
        let off = ec2::LaunchTemplateInstanceMetadataProtocolIpv6::Disabled;
        assert_eq!((protocol(Some(false)), protocol(None)), (Some(off), None));
    }

    #[test]
    fn every_part_of_the_content_changes_the_name() {
        let changes: [fn(&mut Spec); 24] = [
            |spec| spec.spot = false,
            |spec| spec.image_id.push('x'),
            |spec| spec.instance_profile.push('x'),
            |spec| spec.user_data.push('x'),
            |spec| spec.security_group_ids.push("sg-2".into()),
            |spec| spec.block_devices[0].size_gib = Some(21),
            |spec| spec.metadata.hop_limit = 2,
            |spec| spec.detailed_monitoring = true,
            |spec| spec.associate_public_ip = Some(false),
            |spec| spec.placement = Some(Placement { group: "pg-1".into(), partition: None }),
            |spec| spec.placement = Some(Placement { group: "pg-1".into(), partition: Some(2) }),
            |spec| spec.interface.ipv6 = true,
            |spec| spec.interface.prefixes = Some(1),
            |spec| spec.interface.connection_tracking = Some(ConnectionTracking::default()),
            |spec| spec.block_devices[0].initialization_rate = Some(100),
            |spec| spec.interface.kind = InterfaceKind::Efa,
            |spec| spec.interface.more = vec![MoreInterface { card: 1, device: 1, kind: InterfaceKind::Efa }],
            |spec| spec.nested_vms = Some(true),
            |spec| spec.nested_vms = Some(false),
            |spec| spec.enclaves = true,
            |spec| spec.dedicated = true,
            |spec| spec.reservations = Reservations::None,
            |spec| spec.reservations = Reservations::Only(reserved(ReservationKind::Default, false)),
            |spec| drop(spec.tags.insert("team".into(), "a".into())),
        ];
        let mut names = std::collections::BTreeSet::from([spec().name()]);
        for change in changes {
            let mut changed = spec();
            change(&mut changed);
            assert!(names.insert(changed.name()), "a change left the name as it was: {changed:?}");
        }
    }

    fn reserved(kind: ReservationKind, interruptible: bool) -> Taken {
        Taken { id: "cr-1".into(), kind, interruptible }
    }

    #[test]
    fn reserved_instances_name_their_reservation_and_market() {
        let of = |reservations: Reservations| {
            let made = data(&Spec { reservations, ..spec() });
            let asked = made.capacity_reservation_specification();
            let preference =
                asked.and_then(|all| all.capacity_reservation_preference()).map(|one| one.as_str().to_owned());
            let id = asked.and_then(|all| all.capacity_reservation_target()?.capacity_reservation_id());
            let market =
                made.instance_market_options().and_then(|all| all.market_type()).map(|one| one.as_str().to_owned());
            (preference, id.map(str::to_owned), market)
        };
        let (only, id) = (Some("capacity-reservations-only".to_owned()), Some("cr-1".to_owned()));
        assert_eq!(of(Reservations::Any), (None, None, None));
        assert_eq!(of(Reservations::None), (Some("none".to_owned()), None, None));
        for (kind, interruptible, market) in [
            (ReservationKind::Default, false, None),
            (ReservationKind::Default, true, Some("interruptible-capacity-reservation")),
            (ReservationKind::CapacityBlock, false, Some("capacity-block")),
        ] {
            let made = of(Reservations::Only(reserved(kind, interruptible)));
            assert_eq!(made, (only.clone(), id.clone(), market.map(str::to_owned)));
        }
    }

    #[test]
    fn an_interface_has_an_ipv6_address_and_never_ipv6_prefixes() {
        let of = |ipv6: bool, prefixes: Option<i32>| {
            let interface = Interface { ipv6, prefixes, ..Interface::default() };
            let made = data(&Spec { interface, ..spec() });
            let [one] = made.network_interfaces() else { panic!("one interface") };
            (one.ipv4_prefix_count(), one.ipv6_prefix_count(), one.ipv6_address_count(), one.primary_ipv6())
        };
        assert_eq!(of(false, Some(2)), (Some(2), None, None, None));
        assert_eq!(of(true, None), (None, None, Some(1), Some(true)));
    }

    #[test]
    fn more_interfaces_have_their_card_place_and_kind() {
        let more = |card, device, kind| MoreInterface { card, device, kind };
        let interface = Interface {
            prefixes: Some(1),
            kind: InterfaceKind::Efa,
            more: vec![more(1, 1, InterfaceKind::Efa), more(0, 1, InterfaceKind::EfaOnly)],
            ..Interface::default()
        };
        let made = data(&Spec { interface, nested_vms: Some(true), enclaves: true, ..spec() });
        let told: Vec<_> = made
            .network_interfaces()
            .iter()
            .map(|one| (one.network_card_index(), one.device_index(), one.interface_type(), one.ipv4_prefix_count()))
            .collect();
        let expected = [
            (None, Some(0), Some("efa"), Some(1)),
            (Some(1), Some(1), Some("efa"), Some(1)),
            (Some(0), Some(1), Some("efa-only"), None),
        ];
        assert_eq!(told, expected);
        assert!(made.network_interfaces().iter().all(|one| one.groups() == ["sg-1"]));
        let nested = made.cpu_options().and_then(|cpu| cpu.nested_virtualization());
        assert_eq!(nested, Some(&ec2::NestedVirtualizationSpecification::Enabled));
        assert_eq!(made.enclave_options().and_then(|options| options.enabled()), Some(true));
    }

    #[test]
    fn a_template_of_somebody_else_is_not_adopted() {
        let found = Template { id: "lt-1".into(), name: spec().name(), tags: BTreeMap::new(), created_at: None };
        assert!(matches!(adopt(found, &spec()), Err(Error::AlreadyExists { .. })));
        let ours = Template { id: "lt-1".into(), name: spec().name(), tags: spec().tags, created_at: None };
        assert!(adopt(ours, &spec()).is_ok());
    }
}

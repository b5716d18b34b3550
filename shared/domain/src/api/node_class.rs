//! EC2NodeClass: how instances are made.
// Each printer column names its own type, path and priority.
#![allow(clippy::duplicated_attributes)]

use jiff::{SignedDuration, Timestamp};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions::Condition;
use super::kubelet::KubeletConfiguration;
use super::shared::{OptionalList, OptionalMap, StringMap};
use super::{labels, rules};
use crate::requirement::{Operator, Requirements};

/// EC2NodeClass says how instances are made: images, networks, disks, identity and boot.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.k8s.aws",
    version = "v1",
    kind = "EC2NodeClass",
    root = "Ec2NodeClass",
    plural = "ec2nodeclasses",
    singular = "ec2nodeclass",
    status = "Ec2NodeClassStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "ec2nc",
    shortname = "ec2ncs",
    category = "karpenter",
    doc = "EC2NodeClass says how instances are made: images, networks, disks, identity and boot.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Role", type_ = "string", json_path = ".spec.role", priority = 1),
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::node_class()))]
pub struct Ec2NodeClassSpec {
    /// Which subnets instances may be placed in; terms are alternatives.
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = rules::subnet_terms()))]
    pub subnet_selector_terms: Vec<SubnetSelectorTerm>,
    /// Which security groups instances get; terms are alternatives.
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = rules::security_group_terms()))]
    pub security_group_selector_terms: Vec<SecurityGroupSelectorTerm>,
    /// Which images instances may run; terms are alternatives.
    #[schemars(length(min = 1, max = 30), extend("x-kubernetes-validations" = rules::ami_terms()))]
    pub ami_selector_terms: Vec<AmiSelectorTerm>,
    /// Which capacity reservations may be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = rules::capacity_reservation_terms()))]
    pub capacity_reservation_selector_terms: Vec<CapacityReservationSelectorTerm>,
    /// Which placement group instances are put in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_group_selector: Option<PlacementGroupSelector>,
    /// The family of images, where no alias tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ami_family: Option<AmiFamily>,
    /// The IAM role of the nodes; an instance profile is made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules::not_empty("role")))]
    pub role: Option<String>,
    /// The instance profile of the nodes, instead of a role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules::not_empty("instanceProfile")))]
    pub instance_profile: Option<String>,
    /// User data, merged with what the family needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Tags of instances, volumes and launch templates.
    #[serde(default, skip_serializing_if = "OptionalMap::is_absent")]
    #[schemars(extend("x-kubernetes-validations" = rules::instance_tags()))]
    pub tags: OptionalMap,
    /// Settings of the kubelet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletConfiguration>,
    /// Disks.
    #[serde(default, skip_serializing_if = "OptionalList::is_absent")]
    #[schemars(length(max = 50), extend("x-kubernetes-validations" = rules::block_device_mappings()))]
    pub block_device_mappings: OptionalList<BlockDeviceMapping>,
    /// What is done with local disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_store_policy: Option<InstanceStorePolicy>,
    /// Whether EC2 monitors instances in detail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detailed_monitoring: Option<bool>,
    /// Whether instances get a public address.
    #[serde(default, rename = "associatePublicIPAddress", skip_serializing_if = "Option::is_none")]
    pub associate_public_ip_address: Option<bool>,
    /// How many address prefixes the first network interface gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ip_prefix_count: Option<i32>,
    /// How instances reach the instance metadata service.
    #[serde(default)]
    pub metadata_options: MetadataOptions,
    /// Network interfaces, where they differ from one for each instance.
    #[serde(default, skip_serializing_if = "OptionalList::is_absent")]
    #[schemars(length(max = 150), extend("x-kubernetes-validations" = rules::network_interfaces()))]
    pub network_interfaces: OptionalList<NetworkInterface>,
    /// Idle timeouts of tracked connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_tracking: Option<ConnectionTracking>,
    /// Options of the processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_options: Option<CpuOptions>,
    /// Whether instances may run Nitro Enclaves (Karpenter 1.15).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enclave_options: Option<EnclaveOptions>,
    /// Reserved by EC2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// Selects subnets by tags or id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = rules::at_least_one(&["tags", "id"])))]
pub struct SubnetSelectorTerm {
    /// Tags that must all be there; `*` stands for any value.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(schema_with = "rules::selector_tags")]
    pub tags: StringMap,
    /// Id of the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::SUBNET_ID))]
    pub id: Option<String>,
}

/// Selects security groups by tags, id or name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = rules::at_least_one(&["tags", "id", "name"])))]
pub struct SecurityGroupSelectorTerm {
    /// Tags that must all be there; `*` stands for any value.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(schema_with = "rules::selector_tags")]
    pub tags: StringMap,
    /// Id of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::SECURITY_GROUP_ID))]
    pub id: Option<String>,
    /// Name of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Selects images by alias, tags, id, name or a parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::at_least_one(&["tags", "id", "name", "alias", "ssmParameter"])))]
pub struct AmiSelectorTerm {
    /// Family and version, such as `al2023@latest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 30), extend("x-kubernetes-validations" = rules::ami_alias()))]
    pub alias: Option<String>,
    /// Tags that must all be there; `*` stands for any value.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(schema_with = "rules::selector_tags")]
    pub tags: StringMap,
    /// Id of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::IMAGE_ID))]
    pub id: Option<String>,
    /// Name of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Owner of the image: an account id, `self` or `amazon`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Name or ARN of an SSM parameter that holds the image's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssm_parameter: Option<String>,
}

/// Selects capacity reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::at_least_one(&["tags", "id", "instanceMatchCriteria"])))]
pub struct CapacityReservationSelectorTerm {
    /// Tags that must all be there; `*` stands for any value.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(schema_with = "rules::selector_tags")]
    pub tags: StringMap,
    /// Id of the reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::RESERVATION_ID))]
    pub id: Option<String>,
    /// Account that owns the reservation.
    #[serde(default, rename = "ownerID", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::ACCOUNT_ID))]
    pub owner_id: Option<String>,
    /// Which instances the reservation takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_match_criteria: Option<InstanceMatchCriteria>,
}

/// Which instances a capacity reservation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InstanceMatchCriteria {
    Open,
    Targeted,
}

/// Selects a placement group by name or id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = rules::placement_group()))]
pub struct PlacementGroupSelector {
    /// Name of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub name: Option<String>,
    /// Id of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::PLACEMENT_GROUP_ID))]
    pub id: Option<String>,
}

/// The families of images that karp can boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum AmiFamily {
    #[serde(rename = "AL2")]
    Al2,
    #[serde(rename = "AL2023")]
    Al2023,
    Bottlerocket,
    Custom,
    Windows2019,
    Windows2022,
    Windows2025,
}

/// What is done with local disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum InstanceStorePolicy {
    #[serde(rename = "RAID0")]
    Raid0,
}

/// One disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockDeviceMapping {
    /// Device name, such as `/dev/xvda`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// Settings of the EBS volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ebs: Option<BlockDevice>,
    /// Whether the kubelet's data lies on this disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_volume: Option<bool>,
}

/// Settings of an EBS volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::block_device()))]
pub struct BlockDevice {
    /// Whether the volume goes with its instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_on_termination: Option<bool>,
    /// Whether the volume is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<bool>,
    /// Operations per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<i64>,
    /// Key that encrypts the volume.
    #[serde(default, rename = "kmsKeyID", skip_serializing_if = "Option::is_none")]
    pub kms_key_id: Option<String>,
    /// Snapshot that the volume is made from.
    #[serde(default, rename = "snapshotID", skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// MiB per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<i64>,
    /// MiB per second by which the volume is filled from its snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 300))]
    pub volume_initialization_rate: Option<i32>,
    /// Size, such as `20Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::VOLUME_SIZE))]
    pub volume_size: Option<String>,
    /// Type of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_type: Option<VolumeType>,
}

/// Types of EBS volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VolumeType {
    Standard,
    Io1,
    Io2,
    Gp2,
    Sc1,
    St1,
    Gp3,
}

/// How instances reach the instance metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MetadataOptions {
    /// Whether the service answers.
    pub http_endpoint: Toggle,
    /// Whether it answers over IPv6.
    #[serde(rename = "httpProtocolIPv6")]
    pub http_protocol_ipv6: Toggle,
    /// How many network hops an answer may travel.
    #[schemars(range(min = 1, max = 64))]
    pub http_put_response_hop_limit: i64,
    /// Whether a session token is needed.
    pub http_tokens: HttpTokens,
}

impl Default for MetadataOptions {
    fn default() -> Self {
        Self {
            http_endpoint: Toggle::Enabled,
            http_protocol_ipv6: Toggle::Disabled,
            http_put_response_hop_limit: 1,
            http_tokens: HttpTokens::Required,
        }
    }
}

/// On or off, in EC2's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Toggle {
    Enabled,
    Disabled,
}

/// Whether the metadata service wants a session token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HttpTokens {
    Required,
    Optional,
}

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkInterface {
    /// Network card that carries it.
    #[schemars(range(min = 0))]
    pub network_card_index: i32,
    /// Place on the card.
    #[schemars(range(min = 0))]
    pub device_index: i32,
    /// Kind of interface.
    pub interface_type: InterfaceType,
}

/// Kinds of network interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InterfaceType {
    Interface,
    EfaOnly,
}

/// Idle timeouts of tracked connections, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::connection_tracking()))]
pub struct ConnectionTracking {
    /// Of established TCP connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 432_000))]
    pub tcp_established_timeout: Option<i32>,
    /// Of UDP flows with more than one exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 180))]
    pub udp_stream_timeout: Option<i32>,
    /// Of UDP flows with one exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 60))]
    pub udp_timeout: Option<i32>,
}

/// Options of the processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CpuOptions {
    /// Whether instances may run virtual machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nested_virtualization: Option<Toggle>,
}

/// Nitro Enclaves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct EnclaveOptions {
    /// Whether instances may run them.
    pub enabled: bool,
}

/// What the controller found for a node class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ec2NodeClassStatus {
    /// Subnets that the selector terms name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<Subnet>,
    /// Security groups that the selector terms name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<SecurityGroup>,
    /// Capacity reservations that the selector terms name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capacity_reservations: Vec<CapacityReservation>,
    /// Images that the selector terms name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub amis: Vec<Ami>,
    /// Instance profile of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_profile: Option<String>,
    /// Conditions: SubnetsReady, SecurityGroupsReady, AMIsReady, InstanceProfileReady, ValidationSucceeded, Ready and, where they are
    /// used, CapacityReservationsReady and PlacementGroupReady.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "rules::conditions")]
    pub conditions: Vec<Condition>,
}

/// A subnet that instances may be placed in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Subnet {
    /// Id of the subnet.
    pub id: String,
    /// Its zone.
    pub zone: String,
    /// The zone's id, the same in every account.
    #[serde(default, rename = "zoneID", skip_serializing_if = "Option::is_none")]
    pub zone_id: Option<String>,
}

/// A security group of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct SecurityGroup {
    /// Id of the group.
    pub id: String,
    /// Name of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A capacity reservation that instances may be launched into.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityReservation {
    /// Id of the reservation.
    #[schemars(regex(pattern = rules::RESERVATION_ID))]
    pub id: String,
    /// Zone of the reserved capacity.
    pub availability_zone: String,
    /// Instance type of the reserved capacity.
    pub instance_type: String,
    /// Account that owns the reservation.
    #[serde(rename = "ownerID")]
    #[schemars(regex(pattern = rules::ACCOUNT_ID))]
    pub owner_id: String,
    /// Which instances the reservation takes.
    pub instance_match_criteria: InstanceMatchCriteria,
    /// When the reservation ends, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::date_time")]
    pub end_time: Option<Timestamp>,
    /// Kind of reservation.
    #[serde(default)]
    pub reservation_type: ReservationType,
    /// Whether EC2 may take the instances back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interruptible: Option<bool>,
    /// Whose hardware the capacity is on; left out when it is shared.
    #[serde(default, skip_serializing_if = "Tenancy::is_default")]
    pub tenancy: Tenancy,
    /// Whether the reservation is about to end.
    #[serde(default)]
    pub state: ReservationState,
}

impl CapacityReservation {
    /// Says whether nothing should be launched into the reservation any more and its nodes should leave: it was found so, or it is a block that
    /// has come to its last 40 min since.
    #[must_use]
    pub fn is_expiring(&self, now: Timestamp) -> bool {
        let block = self.reservation_type == ReservationType::CapacityBlock;
        self.state == ReservationState::Expiring || block && self.end_time.is_some_and(|end| block_is_over(end, now))
    }
}

/// EC2 ends the instances of a capacity block 30 min before the block ends; nodes are drained from ten minutes before that (Karpenter: 40 min).
const BLOCK_ENDS_BEFORE: SignedDuration = SignedDuration::from_mins(40);

/// Says whether the nodes of a capacity block that ends at `end` should leave: 40 min before, as with Karpenter.
#[must_use]
pub fn block_is_over(end: Timestamp, now: Timestamp) -> bool {
    end.duration_since(now) <= BLOCK_ENDS_BEFORE
}

/// Kinds of capacity reservations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReservationType {
    #[default]
    Default,
    CapacityBlock,
}

impl ReservationType {
    /// Returns the value of `karpenter.k8s.aws/capacity-reservation-type`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::CapacityBlock => "capacity-block",
        }
    }
}

/// Whose hardware instances run on. EC2 lets an instance into a capacity reservation of its own tenancy only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tenancy {
    #[default]
    Default,
    Dedicated,
}

impl Tenancy {
    /// Returns the value of `karpenter.k8s.aws/instance-tenancy`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Dedicated => "dedicated",
        }
    }

    /// Answers the tenancy of a node with these requirements: hardware of its own only where it may not share any, as in Karpenter.
    #[must_use]
    pub fn of(requirements: &Requirements) -> Self {
        let may_share = requirements.admits(labels::INSTANCE_TENANCY, Self::Default.as_str());
        if may_share { Self::Default } else { Self::Dedicated }
    }

    /// Says whether hardware is shared with others.
    #[must_use]
    #[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
    pub const fn is_default(&self) -> bool {
        matches!(self, Self::Default)
    }
}

/// States of capacity reservations that instances may be launched into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReservationState {
    #[default]
    Active,
    Expiring,
}

/// An image that nodes may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Ami {
    /// Id of the image.
    pub id: String,
    /// Name of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether its owner has deprecated the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<bool>,
    /// Which instances the image fits.
    pub requirements: Vec<AmiRequirement>,
}

/// A requirement of an image, without a least number of values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct AmiRequirement {
    /// Label key.
    pub key: String,
    /// How the label relates to the values.
    #[schemars(with = "String")]
    pub operator: Operator,
    /// Label values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

//! The Kubernetes API that karp speaks: Karpenter's kinds, labels, conditions and rules.

mod capacity_buffer;
mod cel;
pub mod conditions;
mod crds;
mod fields;
pub mod hash;
mod kubelet;
pub mod kubelet_settings;
pub mod label_syntax;
pub mod labels;
pub mod legacy;
pub mod lint;
pub mod metadata;
mod node_claim;
mod node_class;
mod node_overlay;
mod node_pool;
mod rules;
mod shared;
pub mod validate;
pub mod words;

pub use capacity_buffer::{
    ACTIVE_CAPACITY, CapacityBuffer, CapacityBufferSpec, CapacityBufferStatus, PodTemplateReference, ScalableReference,
};
pub use crds::crds;
pub use kubelet::KubeletConfiguration;
pub use node_claim::{NodeClaim, NodeClaimSpec, NodeClaimStatus, ResourceRequests};
pub use node_class::{
    Ami, AmiFamily, AmiRequirement, AmiSelectorTerm, BlockDevice, BlockDeviceMapping, CapacityReservation,
    CapacityReservationSelectorTerm, ConnectionTracking, CpuOptions, Ec2NodeClass, Ec2NodeClassSpec,
    Ec2NodeClassStatus, EnclaveOptions, HttpTokens, InstanceMatchCriteria, InstanceStorePolicy, InterfaceType,
    MetadataOptions, NetworkInterface, PlacementGroupSelector, ReservationState, ReservationType, SecurityGroup,
    SecurityGroupSelectorTerm, Subnet, SubnetSelectorTerm, Tenancy, Toggle, VolumeType, block_is_over,
};
pub use node_overlay::{NodeOverlay, NodeOverlaySpec, NodeOverlayStatus};
pub use node_pool::{
    Budget, BudgetReason, ConsolidationPolicy, Disruption, NodeClaimTemplate, NodeClaimTemplateSpec, NodePool,
    NodePoolSpec, NodePoolStatus, TemplateMetadata,
};
pub use shared::{
    DEFAULT_EXPIRE_AFTER, NEVER, NodeClassReference, OptionalList, OptionalMap, RequirementSpec, StringMap, TaintSpec,
    duration, go_duration, requirement_specs, requirements,
};

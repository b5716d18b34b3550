//! The Kubernetes API that karp speaks: Karpenter's kinds, labels, conditions and rules.

pub mod conditions;
mod crds;
pub mod hash;
mod kubelet;
pub mod labels;
pub mod legacy;
mod node_claim;
mod node_class;
mod node_pool;
mod rules;
mod shared;
pub mod validate;

pub use crds::crds;
pub use kubelet::KubeletConfiguration;
pub use node_claim::{NodeClaim, NodeClaimSpec, NodeClaimStatus, ResourceRequests};
pub use node_class::{
    Ami, AmiFamily, AmiRequirement, AmiSelectorTerm, BlockDevice, BlockDeviceMapping, CapacityReservationSelectorTerm,
    ConnectionTracking, CpuOptions, Ec2NodeClass, Ec2NodeClassSpec, Ec2NodeClassStatus, HttpTokens,
    InstanceMatchCriteria, InstanceStorePolicy, InterfaceType, MetadataOptions, NetworkInterface,
    PlacementGroupSelector, SecurityGroup, SecurityGroupSelectorTerm, Subnet, SubnetSelectorTerm, Toggle, VolumeType,
};
pub use node_pool::{
    Budget, BudgetReason, ConsolidationPolicy, Disruption, NodeClaimTemplate, NodeClaimTemplateSpec, NodePool,
    NodePoolSpec, NodePoolStatus, TemplateMetadata,
};
pub use shared::{
    DEFAULT_EXPIRE_AFTER, NEVER, NodeClassReference, RequirementSpec, StringMap, TaintSpec, duration,
    requirement_specs, requirements,
};

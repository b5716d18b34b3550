//! The kinds of resource, one file each.

pub mod access_entry;
pub mod aws_auth_entry;
pub mod controller;
mod controller_import;
pub mod controller_policy;
pub mod controller_role;
mod controller_schema;
mod controller_scope;
mod controller_wait;
pub mod crds;
pub mod custom_object;
mod departure;
pub mod discovery_tags;
pub mod fargate_pod_execution_role;
pub mod fargate_profile;
mod iam_role;
mod identity;
mod inherit;
pub mod instance_profile;
pub mod interruption_queue;
mod kubelet;
mod moved;
mod node_claims;
pub mod node_class;
mod node_class_schema;
pub mod node_overlay;
pub mod node_pool;
mod node_pool_drain;
mod node_pool_schema;
pub mod node_role;
pub mod oidc_provider;
pub mod pod_identity_association;
pub mod spot_service_linked_role;
mod statement;
pub mod teardown;
mod teardown_rehearsal;

use std::sync::Arc;

use tfplugin::Resource;

pub use custom_object::failure;
pub use node_claims::{listed, listed_raw};
pub use node_class_schema::{ami_selector_terms, attributes as node_class_attributes};
pub use node_pool_schema::{
    disruption as node_pool_disruption, requirements as node_pool_requirements, template as node_pool_template,
};

use crate::provider::Handle;

/// Makes every kind of resource, all on the session that `handle` gives.
pub fn all(handle: &Arc<Handle>) -> Vec<Box<dyn Resource>> {
    vec![
        Box::new(access_entry::AccessEntry::new(handle)),
        Box::new(aws_auth_entry::AwsAuthEntry::new(handle)),
        Box::new(controller::Controller::new(handle)),
        Box::new(controller_policy::ControllerPolicy::new(handle)),
        Box::new(controller_role::ControllerRole::new(handle)),
        Box::new(crds::Crds::new(handle)),
        Box::new(discovery_tags::DiscoveryTags::new(handle)),
        Box::new(fargate_pod_execution_role::FargatePodExecutionRole::new(handle)),
        Box::new(fargate_profile::FargateProfile::new(handle)),
        Box::new(instance_profile::InstanceProfile::new(handle)),
        Box::new(interruption_queue::InterruptionQueue::new(handle)),
        Box::new(node_class::NodeClass::new(handle)),
        Box::new(node_overlay::NodeOverlay::new(handle)),
        Box::new(node_pool::NodePool::new(handle)),
        Box::new(node_role::NodeRole::new(handle)),
        Box::new(oidc_provider::OidcProvider::new(handle)),
        Box::new(pod_identity_association::PodIdentityAssociation::new(handle)),
        Box::new(spot_service_linked_role::SpotServiceLinkedRole::new(handle)),
        Box::new(teardown::Teardown::new(handle)),
    ]
}

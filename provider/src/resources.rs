//! The kinds of resource, one file each.

pub mod access_entry;
pub mod controller;
pub mod controller_role;
pub mod crds;
pub mod custom_object;
pub mod discovery_tags;
pub mod fargate_pod_execution_role;
pub mod fargate_profile;
mod iam_role;
mod inherit;
pub mod instance_profile;
pub mod interruption_queue;
mod node_claims;
pub mod node_class;
mod node_class_schema;
pub mod node_pool;
mod node_pool_schema;
pub mod node_role;
pub mod oidc_provider;

use std::sync::Arc;

use tfplugin::Resource;

pub use node_pool_schema::requirements as node_pool_requirements;

use crate::provider::Handle;

/// Makes every kind of resource, all on the session that `handle` gives.
pub fn all(handle: &Arc<Handle>) -> Vec<Box<dyn Resource>> {
    vec![
        Box::new(access_entry::AccessEntry::new(handle)),
        Box::new(controller::Controller::new(handle)),
        Box::new(controller_role::ControllerRole::new(handle)),
        Box::new(crds::Crds::new(handle)),
        Box::new(discovery_tags::DiscoveryTags::new(handle)),
        Box::new(fargate_pod_execution_role::FargatePodExecutionRole::new(handle)),
        Box::new(fargate_profile::FargateProfile::new(handle)),
        Box::new(instance_profile::InstanceProfile::new(handle)),
        Box::new(interruption_queue::InterruptionQueue::new(handle)),
        Box::new(node_class::NodeClass::new(handle)),
        Box::new(node_pool::NodePool::new(handle)),
        Box::new(node_role::NodeRole::new(handle)),
        Box::new(oidc_provider::OidcProvider::new(handle)),
    ]
}

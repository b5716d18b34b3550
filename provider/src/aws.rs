//! What the AWS resources share: waiting, names, tags, policy documents, and the life of roles, policies, profiles and queues.

pub mod document;
pub mod managed_policy;
pub mod names;
pub mod pod_identity;
pub mod policies;
pub mod profile;
pub mod queue;
pub mod role;
pub mod tags;
pub mod wait;

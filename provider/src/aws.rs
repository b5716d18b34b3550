//! What the AWS resources share: waiting, names, tags, policy documents, and the life of roles, policies, profiles and queues.

pub mod clients;
pub mod document;
pub mod leftovers;
pub mod managed_policy;
pub mod marked;
pub mod names;
pub mod pod_identity;
pub mod policies;
pub mod profile;
pub mod queue;
pub mod reads;
pub mod role;
pub mod tags;
pub mod wait;

/// Where an object came from. One that was there before is put into state only when all is done: core takes what a failed creation leaves
/// in state for half-made, and its next apply would destroy it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// This creation made it.
    Made,
    /// It was there before, and is taken over.
    Adopted,
}

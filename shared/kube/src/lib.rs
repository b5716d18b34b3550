//! What provider and controller both do with the API server: connect, apply, wait; and what the controller may do there.
//!
//! Nothing here knows AWS; a token comes from the caller.

pub mod apply;
pub mod client;
mod credentials;
mod error;
pub mod events;
mod ownership;
pub mod pods;
pub mod proxy;
pub mod rbac;
pub mod retries;
pub mod wait;

pub use credentials::NoCredentials;
pub use error::{Error, FieldCause, FieldConflict};

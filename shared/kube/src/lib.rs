//! What provider and controller both do with the API server: connect, apply, wait.
//!
//! Nothing here knows AWS; a token comes from the caller.

pub mod apply;
pub mod client;
mod error;
pub mod wait;

pub use error::{Error, FieldCause, FieldConflict};

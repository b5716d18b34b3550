//! Terraform plugin protocol 6 for providers written in Rust.
//!
//! A provider implements [`Provider`] and one [`Resource`] per kind; values are dynamic ([`Value`]), schemas are data
//! ([`schema::Schema`]) that carries defaults, validators and plan rules, and a plan engine applies them.
//! [`from_value`] and [`to_value`] turn values into plain serde structs and back.

mod codec;
mod context;
mod convert;
mod diagnostic;
mod engine;
mod path;
mod proto;
mod provider;
pub mod schema;
mod server;
pub mod testing;
mod value;

pub use async_trait::async_trait;
pub use context::{Context, Interrupted};
pub use convert::{ConvertError, from_value, to_value};
pub use diagnostic::{Diagnostic, Diagnostics, Severity};
pub use path::{AttributePath, Step};
pub use provider::{DataSource, PlannedChange, Provider, Resource};
pub use schema::{Attribute, Schema, Timeouts, Type};
pub use server::serve;
pub use value::{Number, Value};

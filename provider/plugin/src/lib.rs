//! Terraform plugin protocol 6 for providers written in Rust.
//!
//! A provider implements [`Provider`] and one [`Resource`] per kind; values are dynamic ([`Value`]), schemas are data
//! ([`schema::Schema`]) that carries defaults, validators and plan rules, and a plan engine applies them.
//! [`from_value`] and [`to_value`] turn values into plain serde structs and back.
//!
//! # What is served, and where it is said
//!
//! | Terraform's feature | here |
//! |---|---|
//! | create, read, update, delete, plan (destroy too) | [`Resource`], [`PlannedChange`] |
//! | import by id and by identity | [`Resource::import`], [`schema::Identity`] |
//! | states of older schemas | [`Schema::version`], [`Resource::upgrade`] |
//! | `moved` from another type or provider | [`Resource::take_over`], [`Moved`] |
//! | write-only attributes | [`Attribute::write_only`], [`Context::config`] |
//! | unknown values with promises ("not null", "begins with") | [`Attribute::never_null`], [`Attribute::begins_with`] |
//! | private state, time limits | [`Context`] |
//! | Ctrl-C, and what a call makes that is under way then | [`Context::stop`], [`Context::carry_out`], [`Context::save`] |
//! | data sources, functions, ephemeral resources | [`DataSource`], [`Function`], [`EphemeralResource`] |
//!
//! # A provider
//!
//! ```no_run
#![doc = include_str!("../examples/minimal.rs")]
//! ```

#![deny(missing_docs)]

mod codec;
mod context;
mod convert;
mod diagnostic;
mod engine;
mod ephemeral;
mod function;
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
pub use ephemeral::{EphemeralResource, Opened, Renewed};
pub use function::{Function, FunctionError, Parameter, Signature};
pub use path::{AttributePath, Step};
pub use provider::{DataSource, Moved, PlannedChange, Provider, Resource};
pub use schema::{Attribute, Schema, Timeouts, Type};
pub use server::serve;
pub use value::{Number, Value};

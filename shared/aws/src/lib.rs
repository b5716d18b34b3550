//! The AWS edge that karp's Terraform provider and controller share.
//!
//! Each module is one subject of the AWS API and speaks plain values: SDK types stay inside. Nothing is contacted before a function of a
//! subject module is awaited; [`config::Clients::load`] only reads the environment and the shared configuration files.

pub mod capacity_reservations;
pub mod change;
pub mod config;
pub mod credentials;
pub mod dry_run;
pub mod eks;
pub mod error;
pub mod fleet;
pub mod images;
pub mod instance_profiles;
pub mod instance_status;
pub mod instance_types;
pub mod instances;
pub mod launch_template;
pub mod leftovers;
pub mod node_class;
pub mod pace;
pub mod parameters;
pub mod placement_groups;
pub mod prices;
pub mod queue;
pub mod security_groups;
pub mod selector;
pub mod subnets;
pub mod token;
pub mod transport;

pub use config::{Clients, Settings};
pub use error::{Error, Retry};

/// Re-exported so that the crates above build further clients (IAM, EventBridge) from [`Clients::config_for`].
pub use aws_types::SdkConfig;

//! The pure domain of karp: Kubernetes API types, quantities, requirements, the instance catalogue, scheduling and disruption.
//!
//! Values in, values out: no client, clock, log or randomness lives here, so every caller gets the same answer for the same input.

pub mod addresses;
pub mod api;
pub mod batch;
pub mod catalogue;
pub mod cluster;
mod counted;
pub mod cron;
pub mod disruption;
pub mod eviction;
pub mod flag;
pub mod fleet;
pub mod gates;
pub mod iam;
pub mod interruption;
pub mod lease;
pub mod lifecycle;
pub mod orphans;
pub mod pace;
pub mod price_file;
pub mod quantity;
pub mod requirement;
pub mod resources;
pub mod scheduling;
pub mod sim;
pub mod taint;
pub mod user_data;

pub use counted::counted;

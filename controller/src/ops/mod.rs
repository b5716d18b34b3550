//! What an operator sees and relies on: log, metrics, health, events and leadership.

pub mod events;
pub mod health;
pub mod leader;
pub mod metrics;
pub mod state;
pub mod telemetry;

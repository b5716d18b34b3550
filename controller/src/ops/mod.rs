//! What an operator sees and relies on: log, metrics, health, events and leadership.

pub mod by_pool;
pub mod calls;
pub mod decisions;
pub mod events;
pub mod health;
pub mod kept;
pub mod leader;
pub mod metrics;
pub mod ongoing;
pub mod state;
pub mod telemetry;

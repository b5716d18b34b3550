//! Disruption: which nodes to take away or replace, when, and why the others stay.

mod candidate;
mod consolidation;
mod plan;
mod verdict;

pub use plan::{Invalid, plan_disruption, validate};
pub use verdict::{Candidate, Cause, Command, DisruptionPlan, KeepReason, Verdict};

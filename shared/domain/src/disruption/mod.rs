//! Disruption: which nodes to take away or replace, when, and why the others stay.

mod candidate;
mod consolidation;
mod execution;
mod memory;
mod plan;
mod purse;
mod sets;
mod verdict;

pub use execution::{Act, Execution, Failure, Progress};
pub use memory::Memory;
pub use plan::{Invalid, plan_disruption, plan_with, validate};
pub use verdict::{Candidate, Cause, Command, DisruptionPlan, KeepReason, Verdict};

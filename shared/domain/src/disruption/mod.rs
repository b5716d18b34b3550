//! Disruption: which nodes to take away or replace, when, and why the others stay.

mod begun;
mod candidate;
mod consolidation;
mod decided;
mod enact;
mod execution;
mod matching;
mod memory;
mod plan;
mod purse;
mod sets;
mod stable;
mod validity;
mod verdict;
mod wishes;

pub use begun::{Begun, begun, overdue, replaced};
pub use candidate::{AllowedDisruptions, allowed_disruptions};
pub use decided::Decided;
pub use execution::{Act, Budgets, Execution, Failure, Progress};
pub use memory::{Memory, Origin, Resume};
pub use plan::{Method, plan_by, plan_disruption, plan_with};
pub use stable::{Change, Path, Step, until_stable};
pub use validity::{Invalid, Upheld, approve, uphold, validate, validate_each};
pub use verdict::{Approval, Candidate, Cause, Command, DisruptionPlan, KeepReason, Verdict};
pub use wishes::wishes;

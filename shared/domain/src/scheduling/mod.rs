//! Scheduling: which pods go where, and what to launch for the rest.

mod solution;

pub use solution::{InFlightNode, Misfit, Placement, Refusal, Solution, Target, Unschedulable};

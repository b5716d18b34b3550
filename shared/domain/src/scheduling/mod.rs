//! Scheduling: which pods go where, and what to launch for the rest.

mod ahead;
mod amounts;
mod assign;
mod attach;
mod board;
mod duals;
mod explain;
mod finish;
mod hashed;
mod improve;
mod join;
mod offers;
mod outlook;
mod packing;
mod problem;
mod queue;
mod replicas;
mod reservations;
mod reserve;
mod share;
mod sole;
mod solution;
mod solve;
mod terms;
mod wants;
mod worth;

pub use explain::{Asked, PoolExplanation, Step, explain};
pub use finish::MAX_TYPES;
pub use outlook::{KeptRoom, Launch, Outlook, Purpose, lacking, outlook, with_replicas};
pub(crate) use problem::Problem;
pub use replicas::{ReplicaPlan, replicas};
pub(crate) use reservations::hold_or_forgo;
pub use reserve::{Reserve, Room, reserve, with_room_taken};
pub use solution::{InFlightNode, Misfit, Placement, Refusal, Solution, Target, Unschedulable};
pub use solve::solve;
pub(crate) use solve::{Hosts, place, solve_problem};

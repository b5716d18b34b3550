//! The life of a NodeClaim between the wish for a node and the end of its instance: what to do next, and when to look again.
//!
//! The caller observes and acts; every decision, and every time limit, is here.

mod drift;
mod garbage;
mod health;
mod initialization;
pub mod launch;
mod presence;
mod registration;
mod repair;
mod seats;
mod step;

pub use drift::{Drift, drift};
pub use garbage::{Blocked, Collection, Collector, Listed, Suspicion, Witnesses, confirm, is_up};
pub use health::{Allowance, Health, Outcome, Registrations};
pub use initialization::Obstacle;
pub use presence::{APPEARS_WITHIN, is_gone_if_unknown};
pub use registration::{admit, adopt, open};
pub use repair::{Ailment, Ward, cut_short, drain_by, drained_by};
pub use seats::Seats;
pub use step::{
    DRIFT_INTERVAL, LAUNCH_TIMEOUT, Live, Next, REGISTRATION_TIMEOUT, Step, Timeout, is_ready, is_true, next,
    provider_id, since,
};

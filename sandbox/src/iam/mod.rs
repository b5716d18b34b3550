//! IAM's own rules, as far as karp's documents need them: whether a policy allows what a call asks for.
//!
//! The emulator lets every caller do everything. So it writes down what AWS would have asked of each call of the controller (which action
//! on which resource in which context), and `cargo verify` holds that against the policy that the caller had: [`Rights`]. The evaluator is
//! pure, and refuses what it does not know: an operator that is guessed at would prove nothing.

mod condition;
mod evaluate;
mod misuse;
mod pattern;
mod policy;
mod rights;

pub use evaluate::{Principal, Request, Verdict, evaluate};
pub use misuse::{Misuse, misuses};
pub use policy::{Document, Effect, Statement, Unreadable};
pub use rights::{Proof, Rights};

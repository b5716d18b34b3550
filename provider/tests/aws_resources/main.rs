//! The AWS resources under real OpenTofu, on the sandbox's AWS (`KARP_TEST_AWS_ENDPOINTS`, `KARP_TEST_TOOLS`).

mod account;
mod adopted;
mod agent;
mod bad_input;
mod block;
mod class_preview;
mod denied;
mod edited;
mod entered;
mod full;
mod halfway;
mod holes;
mod ignored;
mod interrupted;
mod killed;
mod late;
mod life;
mod look;
mod many;
mod modes;
mod moved;
#[path = "../support/older.rs"]
mod older;
#[path = "../support/others.rs"]
mod others;
mod policies;
mod queue;
#[path = "../support/rc.rs"]
mod rc;
mod region;
mod rights;
mod secrets;
mod shared;
mod stand;
mod stopped;
mod teardown;
#[allow(dead_code, reason = "each crate of tests uses its part")]
#[path = "../support/tofu.rs"]
mod tofu;
mod turn;
mod undone;
mod unsettled;
mod upgraded;
mod vanished;

//! What becomes of nodes: how they join, when they are given up, and how they are emptied.

#[path = "../deep/mod.rs"]
mod deep;
#[path = "../world/mod.rs"]
mod world;

mod approval;
mod begun;
mod cheaper;
mod clock;
mod decided;
mod disrupt;
mod disrupt_path;
mod drift;
mod evict;
mod lifecycle;
mod pace;
mod protection;
mod reasons;
mod renewal;
mod seen;
mod turns;
mod validity;

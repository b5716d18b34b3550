//! What `solve` promises: where pods go, which nodes are bought for them, and which are kept free.

#[path = "../deep/mod.rs"]
mod deep;
#[path = "../world/mod.rs"]
mod world;

mod barren;
mod bench;
mod daemon_zones;
mod daemons;
mod domains;
mod last;
mod outlook;
mod overlays;
mod places;
mod pods;
mod properties;
mod refusals;
mod reservations;
mod reserve;
mod scenarios;
mod solve;
mod topology;
mod tradeoffs;
mod volumes;

//! What is read, and what it comes to: the API's types and rules, manifests of older APIs, quantities, requirements, schedules, user data;
//! and that no input panics.

#[path = "../cases/mod.rs"]
mod cases;
#[path = "../deep/mod.rs"]
mod deep;
#[path = "../examples/mod.rs"]
mod examples;
#[path = "../world/mod.rs"]
mod world;

mod crds;
mod cron;
mod hashes;
mod legacy;
mod lint;
mod quantities;
mod readers;
mod requirements;
mod requirements_oracle;
mod resources;
mod robust;
mod rules;
mod shared_shapes;
mod user_data;
mod validation;

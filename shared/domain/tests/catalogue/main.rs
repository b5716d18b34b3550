//! The catalogue against what is documented: labels, capacity, overheads, prices, reservations, overlays.

mod documented;
mod node_settings;
mod offered;
mod prices;

use std::path::PathBuf;

use karp_domain::catalogue::{InstanceType, NodeSettings, builtin_type};

/// The folder of measured inputs: where KARP_SHARED says, or beside the checkout. Tests that want it say so and pass without it.
fn shared(file: &str) -> Option<serde_json::Value> {
    let beside = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared"));
    let path = std::env::var_os("KARP_SHARED").map_or_else(beside, PathBuf::from).join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(serde_json::from_str(&text).expect("JSON")),
        Err(error) => {
            println!("not compared: {}: {error}", path.display());
            None
        }
    }
}

fn instance_type(name: &str, settings: &NodeSettings) -> InstanceType {
    let facts = builtin_type(name).unwrap_or_else(|| panic!("{name} is not in the built-in table"));
    InstanceType::from_facts(facts, settings, Vec::new())
}

fn amount(kind: &InstanceType, resource: &str) -> String {
    kind.allocatable().get(resource).to_string()
}

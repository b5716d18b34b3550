//! What the provider writes to the API server: the controller's objects, and custom objects from attributes.

pub mod aws_auth;
pub mod controller;
pub mod controller_settings;
#[cfg(test)]
pub mod coverage;
pub mod definition;
pub mod election;
pub mod owned;
pub mod placement;
pub mod spec;
pub mod upkeep;

use karp_domain::quantity::Quantity;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The field manager of everything that the provider applies.
pub const FIELD_MANAGER: &str = "terraform-provider-karp";

/// Tells whether a live object has everything that is wanted of it; what others or the API server added does not count.
pub fn contains(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted
            .iter()
            .filter(|(_, wanted)| !is_nothing(wanted))
            .all(|(name, wanted)| live.get(name).is_some_and(|live| contains(live, wanted))),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| contains(live, wanted))
        }
        (Value::String(live), Value::String(wanted)) if live != wanted => {
            let quantity = |text: &str| text.parse::<Quantity>().ok();
            quantity(live).is_some_and(|live| Some(live) == quantity(wanted))
        }
        (live, wanted) => live == wanted,
    }
}

/// The API server leaves out what is empty.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_nothing),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// Gives a digest of objects, for one attribute that shows that any of them differs.
pub fn digest(objects: &[Value]) -> String {
    let mut hasher = Sha256::new();
    for object in objects {
        hasher.update(object.to_string());
    }
    hex::encode(&hasher.finalize()[..16])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn additions_of_others_do_not_count_and_changes_do() {
        let wanted = json!({ "a": { "b": "1000m", "none": {} }, "list": [{ "x": 1 }] });
        assert!(contains(&json!({ "a": { "b": "1", "c": 2 }, "list": [{ "x": 1, "y": 2 }], "z": 0 }), &wanted));
        assert!(!contains(&json!({ "a": { "b": "2" }, "list": [{ "x": 1 }] }), &wanted));
        assert!(!contains(&json!({ "a": { "b": "1" }, "list": [{ "x": 1 }, { "x": 1 }] }), &wanted));
        assert!(!contains(&json!({ "list": [{ "x": 1 }] }), &wanted));
    }
}

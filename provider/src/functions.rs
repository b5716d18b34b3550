//! The functions, `provider::karp::NAME(…)`: pure and offline, so that they work in every plan.

mod convert;
mod names;
mod policies;
mod sizes;

use serde_json::Value as Json;
use tfplugin::{Function, FunctionError, Value};

/// Makes every function.
pub fn all() -> Vec<Box<dyn Function>> {
    vec![
        Box::new(policies::ControllerPolicy),
        Box::new(policies::NodeTrustPolicy),
        Box::new(names::DiscoveryTag),
        Box::new(names::RoleName),
        Box::new(sizes::QuantityOf),
        Box::new(sizes::MaxPods),
        Box::new(convert::NodePoolHash),
        Box::new(convert::NodePoolFromProvisioner),
        Box::new(convert::NodeClassFromTemplate),
    ]
}

/// Gives an argument as text; empty when it is null.
fn text(arguments: &[Value], at: usize) -> &str {
    arguments.get(at).and_then(Value::as_str).unwrap_or_default()
}

/// Reads an argument that is an object with attributes that may be left out.
fn object<T: serde::de::DeserializeOwned>(arguments: &[Value], at: usize) -> Result<T, FunctionError> {
    let given = arguments.get(at).unwrap_or(&Value::Null);
    tfplugin::from_value(given)
        .map_err(|error| FunctionError::new(error.message.clone()).inside(&error.path).argument(at))
}

/// Reads an argument that is a Kubernetes manifest, as `yamldecode` gives it.
fn manifest(arguments: &[Value], at: usize) -> Result<Json, FunctionError> {
    let given = arguments.get(at).unwrap_or(&Value::Null);
    if given.as_map().is_none() {
        let hint = "It must be a manifest as an object: write yamldecode(file(\"provisioner.yaml\")).";
        return Err(FunctionError::new(hint).argument(at));
    }
    object(arguments, at)
}

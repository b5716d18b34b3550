//! The custom resource definitions, in the form that the API server takes.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use serde_json::Value;

use super::{CapacityBuffer, Ec2NodeClass, NodeClaim, NodeOverlay, NodePool};

/// Returns the definitions of NodePool, NodeClaim, NodeOverlay, EC2NodeClass and CapacityBuffer.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    [NodePool::crd(), NodeClaim::crd(), NodeOverlay::crd(), Ec2NodeClass::crd(), CapacityBuffer::crd()]
        .iter()
        .map(tidy)
        .collect()
}

/// Takes away what the schema derive adds and Karpenter's definitions do not have: `nullable` (an optional field is absent, never null) and
/// formats that OpenAPI does not know.
fn tidy(crd: &CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(crd).expect("a definition is plain data");
    strip(&mut value);
    serde_json::from_value(value).expect("stripping keeps a definition's shape")
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.get("nullable") == Some(&Value::Bool(true)) {
                map.remove("nullable");
            }
            if map.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
                map.remove("format");
            }
            if let Some(Value::Array(choices)) = map.get_mut("enum") {
                choices.retain(|choice| !choice.is_null());
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}

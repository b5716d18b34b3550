//! CapacityBuffer: room kept free for pods to come.
// Each printer column names its own type, path and priority.
#![allow(clippy::duplicated_attributes)]

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions::Condition;
use super::rules;
use crate::resources::Resources;

/// The only way of providing buffers: nodes that run.
pub const ACTIVE_CAPACITY: &str = "buffer.x-k8s.io/active-capacity";

/// CapacityBuffer keeps room for a number of pods of one shape.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "autoscaling.x-k8s.io",
    version = "v1beta1",
    kind = "CapacityBuffer",
    plural = "capacitybuffers",
    namespaced,
    status = "CapacityBufferStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "cb",
    category = "autoscaling",
    doc = "CapacityBuffer keeps room for a number of pods of one shape.",
    printcolumn(name = "Strategy", type_ = "string", json_path = ".spec.provisioningStrategy"),
    printcolumn(name = "PodTemplate", type_ = "string", json_path = ".status.podTemplateRef.name"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "ConditionsType", type_ = "string", json_path = ".status.conditions[*].type"),
    printcolumn(name = "ConditionsStatus", type_ = "string", json_path = ".status.conditions[*].status"),
    printcolumn(name = "ConditionsReason", type_ = "string", json_path = ".status.conditions[*].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::capacity_buffer()))]
pub struct CapacityBufferSpec {
    /// How the room is provided.
    #[serde(default = "active_capacity")]
    pub provisioning_strategy: String,
    /// The pod template that says what one pod of the buffer needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_ref: Option<PodTemplateReference>,
    /// The workload whose pods say it, instead of a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scalable_ref: Option<ScalableReference>,
    /// How many pods the buffer has room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// How many, as percent of the workload's replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub percentage: Option<i32>,
    /// The most resources that the buffer may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Resources>,
}

impl Default for CapacityBufferSpec {
    fn default() -> Self {
        Self {
            provisioning_strategy: active_capacity(),
            pod_template_ref: None,
            scalable_ref: None,
            replicas: None,
            percentage: None,
            limits: None,
        }
    }
}

fn active_capacity() -> String {
    ACTIVE_CAPACITY.to_owned()
}

/// Names a PodTemplate of the buffer's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct PodTemplateReference {
    /// Name of the template.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// Names a Deployment, StatefulSet or ReplicaSet of the buffer's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalableReference {
    /// API group of the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// Kind of the workload.
    #[schemars(length(min = 1))]
    pub kind: String,
    /// Name of the workload.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// What the controller made of a buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityBufferStatus {
    /// The template that the virtual pods are made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_ref: Option<PodTemplateReference>,
    /// How many virtual pods there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The generation of the template that was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_generation: Option<i64>,
    /// The strategy that was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning_strategy: Option<String>,
    /// Conditions: ReadyForProvisioning, Provisioning and LimitedByQuotas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "rules::conditions")]
    pub conditions: Vec<Condition>,
}

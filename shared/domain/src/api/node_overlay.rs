//! NodeOverlay: corrections of what is known of instance types.
// Each printer column names its own type, path and priority.
#![allow(clippy::duplicated_attributes)]

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions::Condition;
use super::rules;
use super::shared::RequirementSpec;
use crate::resources::Resources;

/// NodeOverlay changes the price or adds resources of the instance types that its requirements name.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.sh",
    version = "v1alpha1",
    kind = "NodeOverlay",
    plural = "nodeoverlays",
    status = "NodeOverlayStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "overlays",
    category = "karpenter",
    doc = "NodeOverlay changes the price or adds resources of the instance types that its requirements name.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Weight", type_ = "integer", json_path = ".spec.weight", priority = 1),
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::node_overlay()))]
pub struct NodeOverlaySpec {
    /// Which instance types and offerings are changed.
    #[schemars(schema_with = "rules::node_overlay_requirements")]
    pub requirements: Vec<RequirementSpec>,
    /// What is added to the price or taken off it: an amount such as `+0.1`, or a share such as `-5%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::PRICE_ADJUSTMENT))]
    pub price_adjustment: Option<String>,
    /// The price per hour, instead of the known one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::PRICE))]
    pub price: Option<String>,
    /// Extended resources that the instance types have besides what is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules::overlay_capacity()))]
    pub capacity: Option<Resources>,
    /// Where overlays meet, the one with the higher weight holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub weight: Option<i32>,
}

/// What the controller made of an overlay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeOverlayStatus {
    /// Conditions: ValidationSucceeded and Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "rules::conditions")]
    pub conditions: Vec<Condition>,
}

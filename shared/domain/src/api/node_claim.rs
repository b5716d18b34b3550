//! NodeClaim: one node, wanted, launched or going.
// Each printer column names its own type, path and priority.
#![allow(clippy::duplicated_attributes)]

use jiff::{SignedDuration, Timestamp};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions::Condition;
use super::rules;
use super::shared::{NodeClassReference, RequirementSpec, TaintSpec, default_expire_after, duration};
use crate::resources::Resources;

/// NodeClaim stands for one node from the wish for it to the end of its instance.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.sh",
    version = "v1",
    kind = "NodeClaim",
    plural = "nodeclaims",
    status = "NodeClaimStatus",
    derive = "Default",
    derive = "PartialEq",
    category = "karpenter",
    doc = "NodeClaim stands for one node from the wish for it to the end of its instance.",
    printcolumn(name = "Type", type_ = "string", json_path = ".metadata.labels.node\\.kubernetes\\.io/instance-type"),
    printcolumn(name = "Capacity", type_ = "string", json_path = ".metadata.labels.karpenter\\.sh/capacity-type"),
    printcolumn(name = "Zone", type_ = "string", json_path = ".metadata.labels.topology\\.kubernetes\\.io/zone"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeName"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "ImageID", type_ = "string", json_path = ".status.imageID", priority = 1),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.providerID", priority = 1),
    printcolumn(
        name = "NodePool",
        type_ = "string",
        json_path = ".metadata.labels.karpenter\\.sh/nodepool",
        priority = 1
    ),
    printcolumn(name = "NodeClass", type_ = "string", json_path = ".spec.nodeClassRef.name", priority = 1),
    printcolumn(
        name = "Drifted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Drifted\")].status",
        priority = 1
    ),
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::immutable_spec()))]
pub struct NodeClaimSpec {
    /// Taints of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub taints: Vec<TaintSpec>,
    /// Taints that something else on the node removes once it is ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub startup_taints: Vec<TaintSpec>,
    /// What the node's labels must be.
    #[schemars(schema_with = "rules::node_claim_requirements")]
    pub requirements: Vec<RequirementSpec>,
    /// What the pods that the node is made for need.
    #[serde(default, skip_serializing_if = "ResourceRequests::is_empty")]
    pub resources: ResourceRequests,
    /// The node class that says how the instance is made.
    pub node_class_ref: NodeClassReference,
    /// How long a drain may take before it is forced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::DURATION))]
    pub termination_grace_period: Option<String>,
    /// How long the node may live.
    #[serde(default = "default_expire_after")]
    #[schemars(regex(pattern = rules::DURATION_OR_NEVER))]
    pub expire_after: String,
}

impl Default for NodeClaimSpec {
    fn default() -> Self {
        Self {
            taints: Vec::new(),
            startup_taints: Vec::new(),
            requirements: Vec::new(),
            resources: ResourceRequests::default(),
            node_class_ref: NodeClassReference::default(),
            termination_grace_period: None,
            expire_after: default_expire_after(),
        }
    }
}

impl NodeClaimSpec {
    /// Returns how long the node lives; nothing means for ever.
    #[must_use]
    pub fn lifetime(&self) -> Option<SignedDuration> {
        duration(&self.expire_after)
    }

    /// Returns how long a drain may take; nothing means as long as it needs.
    #[must_use]
    pub fn grace(&self) -> Option<SignedDuration> {
        duration(self.termination_grace_period.as_deref()?)
    }
}

/// What a node must at least offer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceRequests {
    /// Amounts by resource name.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub requests: Resources,
}

impl ResourceRequests {
    /// Returns whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// What the controller knows of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimStatus {
    /// Name of the Node object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Provider id of the instance, `aws:///ZONE/INSTANCE`.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Image that the instance runs.
    #[serde(default, rename = "imageID", skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// Capacity of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Resources>,
    /// What pods may use of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<Resources>,
    /// When a pod last came to the node or left it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::date_time")]
    pub last_pod_event_time: Option<Timestamp>,
    /// Conditions: Launched, Registered, Initialized, Ready and others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "rules::conditions")]
    pub conditions: Vec<Condition>,
}

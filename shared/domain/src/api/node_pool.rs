//! NodePool: what nodes may be made, how many, and how they are disrupted.
// Each printer column names its own type, path and priority.
#![allow(clippy::duplicated_attributes)]

use jiff::SignedDuration;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions::Condition;
use super::rules;
use super::shared::{
    NodeClassReference, OptionalList, OptionalMap, RequirementSpec, TaintSpec, default_expire_after, duration,
};
use crate::resources::Resources;

/// NodePool describes nodes that may be launched and the policy by which they are taken away.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.sh",
    version = "v1",
    kind = "NodePool",
    plural = "nodepools",
    status = "NodePoolStatus",
    derive = "Default",
    derive = "PartialEq",
    category = "karpenter",
    doc = "NodePool describes nodes that may be launched and the policy by which they are taken away.",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.nodes"),
    printcolumn(name = "NodeClass", type_ = "string", json_path = ".spec.template.spec.nodeClassRef.name"),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.nodes"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Weight", type_ = "integer", json_path = ".spec.weight", priority = 1),
    printcolumn(name = "CPU", type_ = "string", json_path = ".status.resources.cpu", priority = 1),
    printcolumn(name = "Memory", type_ = "string", json_path = ".status.resources.memory", priority = 1),
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::node_pool()))]
pub struct NodePoolSpec {
    /// What the nodes of this pool look like.
    pub template: NodeClaimTemplate,
    /// When and how nodes of this pool may be disrupted.
    #[serde(default)]
    pub disruption: Disruption,
    /// The most resources that all nodes of this pool may have together; `nodes` counts nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Resources>,
    /// Pools with a higher weight are tried first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub weight: Option<i32>,
    /// A fixed number of nodes; makes the pool static.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i64>,
}

/// The template of a NodeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimTemplate {
    /// Labels and annotations of the nodes.
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_absent")]
    pub metadata: TemplateMetadata,
    /// Requirements, taints and lifetime of the nodes.
    pub spec: NodeClaimTemplateSpec,
}

/// Labels and annotations that each node of a pool gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    /// Labels of the nodes.
    #[serde(default, skip_serializing_if = "OptionalMap::is_absent")]
    #[schemars(schema_with = "rules::template_labels")]
    pub labels: OptionalMap,
    /// Annotations of the nodes.
    #[serde(default, skip_serializing_if = "OptionalMap::is_absent")]
    pub annotations: OptionalMap,
}

impl TemplateMetadata {
    /// Returns whether nothing is written.
    #[must_use]
    pub const fn is_absent(&self) -> bool {
        self.labels.is_absent() && self.annotations.is_absent()
    }
}

/// The spec that a pool gives to its NodeClaims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimTemplateSpec {
    /// Taints of the nodes.
    #[serde(default, skip_serializing_if = "OptionalList::is_absent")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub taints: OptionalList<TaintSpec>,
    /// Taints that something else on the node removes once it is ready; pods need not tolerate them.
    #[serde(default, skip_serializing_if = "OptionalList::is_absent")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub startup_taints: OptionalList<TaintSpec>,
    /// What the nodes' labels must be.
    #[schemars(schema_with = "rules::node_pool_requirements")]
    pub requirements: Vec<RequirementSpec>,
    /// The node class that says how instances are made.
    #[schemars(schema_with = "rules::node_pool_class_ref")]
    pub node_class_ref: NodeClassReference,
    /// How long a drain may take before it is forced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::DURATION))]
    pub termination_grace_period: Option<String>,
    /// How long a node may live.
    #[serde(default = "default_expire_after")]
    #[schemars(regex(pattern = rules::DURATION_OR_NEVER))]
    pub expire_after: String,
}

impl Default for NodeClaimTemplateSpec {
    fn default() -> Self {
        Self {
            taints: OptionalList::default(),
            startup_taints: OptionalList::default(),
            requirements: Vec::new(),
            node_class_ref: NodeClassReference::default(),
            termination_grace_period: None,
            expire_after: default_expire_after(),
        }
    }
}

impl NodeClaimTemplateSpec {
    /// Returns how long a node lives; nothing means for ever.
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

/// When and how nodes of a pool may be disrupted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    /// How long a node must be without pod changes before it may be consolidated.
    #[serde(default = "default_consolidate_after")]
    #[schemars(regex(pattern = rules::DURATION_OR_NEVER))]
    pub consolidate_after: String,
    /// Which nodes may be consolidated.
    #[serde(default)]
    pub consolidation_policy: ConsolidationPolicy,
    /// How many nodes may be disrupted at once, and when.
    #[serde(default = "default_budgets")]
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "atomic"))]
    pub budgets: Vec<Budget>,
}

impl Default for Disruption {
    fn default() -> Self {
        Self {
            consolidate_after: default_consolidate_after(),
            consolidation_policy: ConsolidationPolicy::default(),
            budgets: default_budgets(),
        }
    }
}

impl Disruption {
    /// Returns how long a node must have been quiet; nothing means never.
    #[must_use]
    pub fn quiet_period(&self) -> Option<SignedDuration> {
        duration(&self.consolidate_after)
    }
}

fn default_consolidate_after() -> String {
    "0s".to_owned()
}

fn default_budgets() -> Vec<Budget> {
    vec![Budget::default()]
}

/// Which nodes may be consolidated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ConsolidationPolicy {
    WhenEmpty,
    #[default]
    WhenEmptyOrUnderutilized,
    Balanced,
}

/// How many nodes may be disrupted at once, for which reasons, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = rules::budget()))]
pub struct Budget {
    /// Reasons that the budget holds for; none means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "set"))]
    pub reasons: Option<Vec<BudgetReason>>,
    /// A number of nodes or a percentage of the pool's nodes.
    #[serde(default = "default_budget_nodes")]
    #[schemars(regex(pattern = rules::BUDGET_NODES))]
    pub nodes: String,
    /// When the budget begins to hold, as a cron expression in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::BUDGET_SCHEDULE))]
    pub schedule: Option<String>,
    /// How long the budget holds from each start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::BUDGET_DURATION))]
    pub duration: Option<String>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { reasons: None, nodes: default_budget_nodes(), schedule: None, duration: None }
    }
}

fn default_budget_nodes() -> String {
    "10%".to_owned()
}

/// A reason for disruption that a budget can be made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum BudgetReason {
    Underutilized,
    Empty,
    Drifted,
    /// Node repair (Karpenter 1.15).
    Unhealthy,
}

/// What the controller knows of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolStatus {
    /// Resources of the pool's nodes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// How many nodes the pool has.
    #[serde(default)]
    pub nodes: i64,
    /// The generation of the node class that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class_observed_generation: Option<i64>,
    /// Conditions: ValidationSucceeded, NodeClassReady, Ready and NodeRegistrationHealthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "rules::conditions")]
    pub conditions: Vec<Condition>,
}

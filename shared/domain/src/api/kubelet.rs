//! Settings of the kubelet in an EC2NodeClass.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use super::shared::StringMap;
use crate::quantity::Quantity;

/// Settings of the kubelet. Fields that karp does not know are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend(
    "x-kubernetes-validations" = rules::kubelet(),
    "x-kubernetes-preserve-unknown-fields" = true
))]
pub struct KubeletConfiguration {
    /// Addresses of cluster DNS.
    #[serde(default, rename = "clusterDNS", skip_serializing_if = "Vec::is_empty")]
    pub cluster_dns: Vec<String>,
    /// The most pods of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_pods: Option<i32>,
    /// The most pods for each vCPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub pods_per_core: Option<i32>,
    /// What is kept for the operating system.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "rules::reserved")]
    pub system_reserved: BTreeMap<String, Quantity>,
    /// What is kept for Kubernetes' own processes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "rules::reserved")]
    pub kube_reserved: BTreeMap<String, Quantity>,
    /// Signals that evict pods at once.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(schema_with = "rules::eviction_thresholds")]
    pub eviction_hard: StringMap,
    /// Signals that evict pods after a while.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(schema_with = "rules::eviction_thresholds")]
    pub eviction_soft: StringMap,
    /// How long a soft signal may stand.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(schema_with = "rules::eviction_grace")]
    pub eviction_soft_grace_period: StringMap,
    /// The longest grace, in seconds, of pods evicted by a soft signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_max_pod_grace_period: Option<i32>,
    /// Disk use in percent at which images are collected.
    #[serde(default, rename = "imageGCHighThresholdPercent", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub image_gc_high_threshold_percent: Option<i32>,
    /// Disk use in percent at which collection ends.
    #[serde(default, rename = "imageGCLowThresholdPercent", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub image_gc_low_threshold_percent: Option<i32>,
    /// Whether CPU limits are enforced by quota.
    #[serde(default, rename = "cpuCFSQuota", skip_serializing_if = "Option::is_none")]
    pub cpu_cfs_quota: Option<bool>,
}

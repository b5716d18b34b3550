//! Settings of the kubelet in an EC2NodeClass.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::rules;
use super::shared::StringMap;
use crate::quantity::Quantity;

/// Settings of the kubelet: an open map with the kubelet's own names, as Karpenter has it since 1.15.
///
/// The fields that Karpenter 1.14 knew have types and rules; all others are kept as they are. `maxPods` and the reserved amounts may be CEL
/// expressions, which read as not set here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KubeletConfiguration(BTreeMap<String, Value>);

impl KubeletConfiguration {
    /// Returns all settings as written.
    #[must_use]
    pub const fn fields(&self) -> &BTreeMap<String, Value> {
        &self.0
    }

    /// Returns a setting that is a whole number.
    #[must_use]
    pub fn number(&self, field: &str) -> Option<i32> {
        self.0.get(field)?.as_i64().and_then(|number| i32::try_from(number).ok())
    }

    /// Returns a setting that is a map of texts; nothing when it is absent or something else.
    #[must_use]
    pub fn texts(&self, field: &str) -> Option<StringMap> {
        let map = self.0.get(field)?.as_object()?;
        map.iter().map(|(key, text)| Some((key.clone(), text.as_str()?.to_owned()))).collect()
    }

    /// Returns a setting that is a list of texts; nothing when it is absent or something else.
    #[must_use]
    pub fn list(&self, field: &str) -> Option<Vec<String>> {
        self.0.get(field)?.as_array()?.iter().map(|text| text.as_str().map(ToOwned::to_owned)).collect()
    }

    /// Returns the most pods of a node.
    #[must_use]
    pub fn max_pods(&self) -> Option<i32> {
        self.number("maxPods")
    }

    /// Returns the most pods for each vCPU.
    #[must_use]
    pub fn pods_per_core(&self) -> Option<i32> {
        self.number("podsPerCore")
    }

    /// Returns what is kept for the operating system, as far as it is written as quantities.
    #[must_use]
    pub fn system_reserved(&self) -> BTreeMap<String, Quantity> {
        self.quantities("systemReserved")
    }

    /// Returns what is kept for Kubernetes' own processes, as far as it is written as quantities.
    #[must_use]
    pub fn kube_reserved(&self) -> BTreeMap<String, Quantity> {
        self.quantities("kubeReserved")
    }

    /// Returns the signals that evict pods at once.
    #[must_use]
    pub fn eviction_hard(&self) -> StringMap {
        self.texts("evictionHard").unwrap_or_default()
    }

    fn quantities(&self, field: &str) -> BTreeMap<String, Quantity> {
        let texts = self.texts(field).unwrap_or_default();
        texts.into_iter().filter_map(|(name, amount)| Some((name, amount.parse().ok()?))).collect()
    }
}

impl JsonSchema for KubeletConfiguration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "KubeletConfiguration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        rules::kubelet()
    }
}

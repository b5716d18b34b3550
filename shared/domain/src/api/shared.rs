//! What NodePool, NodeClaim and EC2NodeClass have in common.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use crate::requirement::{Operator, ParseRequirementError, Requirement, Requirements};
use crate::taint::{Taint, TaintEffect};

/// How long a node lives when nothing is said.
pub const DEFAULT_EXPIRE_AFTER: &str = "720h";
/// The word for a duration that never ends.
pub const NEVER: &str = "Never";

/// Names the node class of a pool or claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct NodeClassReference {
    /// API group of the node class.
    #[schemars(regex(pattern = r"^[^/]*$"), extend("x-kubernetes-validations" = rules::not_empty("group")))]
    pub group: String,
    /// Kind of the node class.
    #[schemars(extend("x-kubernetes-validations" = rules::not_empty("kind")))]
    pub kind: String,
    /// Name of the node class.
    #[schemars(extend("x-kubernetes-validations" = rules::not_empty("name")))]
    pub name: String,
}

/// A taint as the API writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaintSpec {
    /// Key of the taint.
    #[schemars(length(min = 1), regex(pattern = rules::QUALIFIED_NAME))]
    pub key: String,
    /// Value of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = rules::QUALIFIED_NAME))]
    pub value: Option<String>,
    /// What happens to pods that do not tolerate the taint.
    pub effect: TaintEffect,
    /// When the taint was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::date_time")]
    pub time_added: Option<Timestamp>,
}

/// A label requirement as the API writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::requirement()))]
pub struct RequirementSpec {
    /// Label key.
    #[schemars(length(max = 316), regex(pattern = rules::QUALIFIED_NAME))]
    pub key: String,
    /// How the label relates to the values.
    pub operator: Operator,
    /// Label values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
    /// How many values must stay possible, so that a launch keeps room to choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 50))]
    pub min_values: Option<i64>,
}

impl TryFrom<&RequirementSpec> for Requirement {
    type Error = ParseRequirementError;

    fn try_from(spec: &RequirementSpec) -> Result<Self, ParseRequirementError> {
        let min_values = spec.min_values.and_then(|least| u32::try_from(least).ok());
        Ok(Self::new(&spec.key, spec.operator, &spec.values)?.with_min_values(min_values))
    }
}

/// Reads a list of API requirements as one conjunction.
pub fn requirements(specs: &[RequirementSpec]) -> Result<Requirements, ParseRequirementError> {
    specs.iter().map(Requirement::try_from).collect()
}

/// Returns requirements in the API's words.
#[must_use]
pub fn requirement_specs(requirements: &Requirements) -> Vec<RequirementSpec> {
    requirements
        .iter()
        .flat_map(|requirement| {
            let min_values = requirement.min_values().map(i64::from);
            requirement.to_api().into_iter().enumerate().map(move |(index, (operator, values))| RequirementSpec {
                key: requirement.key().to_owned(),
                operator,
                values,
                min_values: min_values.filter(|_| index == 0),
            })
        })
        .collect()
}

impl From<&TaintSpec> for Taint {
    fn from(spec: &TaintSpec) -> Self {
        Self::new(&spec.key, spec.value.clone().unwrap_or_default(), spec.effect)
    }
}

impl From<&Taint> for TaintSpec {
    fn from(taint: &Taint) -> Self {
        Self {
            key: taint.key.clone(),
            value: Some(taint.value.clone()).filter(|value| !value.is_empty()),
            effect: taint.effect,
            time_added: None,
        }
    }
}

/// Reads a duration such as `90s`, `1h30m` or `720h`; nothing for `Never` and for what is no duration.
#[must_use]
pub fn duration(text: &str) -> Option<SignedDuration> {
    let mut total = 0_i64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().position(|byte| !byte.is_ascii_digit()).filter(|at| *at > 0)?;
        let number: i64 = rest[..digits].parse().ok()?;
        let unit = match rest.as_bytes()[digits] {
            b's' => 1,
            b'm' => 60,
            b'h' => 3600,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(unit)?)?;
        rest = &rest[digits + 1..];
    }
    (!text.is_empty()).then(|| SignedDuration::from_secs(total))
}

/// String maps of labels, annotations and tags.
pub type StringMap = BTreeMap<String, String>;

pub(super) fn default_expire_after() -> String {
    DEFAULT_EXPIRE_AFTER.to_owned()
}

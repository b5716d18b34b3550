//! Taints of nodes and the tolerations of pods.

use std::fmt;

use k8s_openapi::api::core::v1 as core;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

/// A mark on a node that repels pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: TaintEffect,
}

/// A pod's permission to sit on nodes with matching taints.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Toleration {
    /// Empty: every key (only with `Exists`).
    pub key: String,
    pub operator: TolerationOperator,
    /// Absent: every effect.
    pub effect: Option<TaintEffect>,
    /// How long a NoExecute taint is borne; absent: for ever.
    pub seconds: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TolerationOperator {
    Exists,
    Equal(String),
    /// One that is not known here, such as the comparisons of Kubernetes 1.35 (alpha): matches nothing, as in a scheduler without them.
    Unknown,
}

/// Says which taint of the API cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("taint {key} has an unknown effect {effect:?}")]
pub struct UnknownEffect {
    pub key: String,
    pub effect: String,
}

impl TaintEffect {
    /// Reads an effect as the API writes it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "NoSchedule" => Some(Self::NoSchedule),
            "PreferNoSchedule" => Some(Self::PreferNoSchedule),
            "NoExecute" => Some(Self::NoExecute),
            _ => None,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

impl Taint {
    #[must_use]
    pub fn new(key: impl Into<String>, value: impl Into<String>, effect: TaintEffect) -> Self {
        Self { key: key.into(), value: value.into(), effect }
    }

    /// Returns whether a pod with these tolerations may be placed on a node with this taint. `PreferNoSchedule` only discourages.
    #[must_use]
    pub fn admits(&self, tolerations: &[Toleration]) -> bool {
        self.effect == TaintEffect::PreferNoSchedule || self.tolerated_by(tolerations)
    }

    /// Returns whether any of the tolerations matches.
    #[must_use]
    pub fn tolerated_by(&self, tolerations: &[Toleration]) -> bool {
        tolerations.iter().any(|toleration| toleration.tolerates(self))
    }

    /// Returns whether two taints are the same to Kubernetes, which knows them by key and effect.
    #[must_use]
    pub fn same_mark(&self, other: &Self) -> bool {
        self.key == other.key && self.effect == other.effect
    }
}

impl Toleration {
    /// Returns a toleration of everything.
    #[must_use]
    pub fn everything() -> Self {
        Self { key: String::new(), operator: TolerationOperator::Exists, effect: None, seconds: None }
    }

    /// Returns whether this toleration matches the taint, by the rule of the Kubernetes scheduler.
    #[must_use]
    pub fn tolerates(&self, taint: &Taint) -> bool {
        if self.effect.is_some_and(|effect| effect != taint.effect) {
            return false;
        }
        if !self.key.is_empty() && self.key != taint.key {
            return false;
        }
        match &self.operator {
            TolerationOperator::Exists => true,
            TolerationOperator::Equal(value) => !self.key.is_empty() && *value == taint.value,
            TolerationOperator::Unknown => false,
        }
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.key)?;
        if !self.value.is_empty() {
            write!(formatter, "={}", self.value)?;
        }
        write!(formatter, ":{}", self.effect.as_str())
    }
}

impl TryFrom<&core::Taint> for Taint {
    type Error = UnknownEffect;

    fn try_from(taint: &core::Taint) -> Result<Self, UnknownEffect> {
        let effect = TaintEffect::parse(&taint.effect)
            .ok_or_else(|| UnknownEffect { key: taint.key.clone(), effect: taint.effect.clone() })?;
        Ok(Self { key: taint.key.clone(), value: taint.value.clone().unwrap_or_default(), effect })
    }
}

impl From<&Taint> for core::Taint {
    fn from(taint: &Taint) -> Self {
        Self {
            key: taint.key.clone(),
            value: Some(taint.value.clone()).filter(|value| !value.is_empty()),
            effect: taint.effect.as_str().to_owned(),
            time_added: None,
        }
    }
}

impl TryFrom<&core::Toleration> for Toleration {
    type Error = UnknownEffect;

    fn try_from(toleration: &core::Toleration) -> Result<Self, UnknownEffect> {
        let key = toleration.key.clone().unwrap_or_default();
        let effect = match toleration.effect.as_deref() {
            None | Some("") => None,
            Some(text) => Some(
                TaintEffect::parse(text).ok_or_else(|| UnknownEffect { key: key.clone(), effect: text.to_owned() })?,
            ),
        };
        let operator = match toleration.operator.as_deref() {
            Some("Exists") => TolerationOperator::Exists,
            None | Some("" | "Equal") => TolerationOperator::Equal(toleration.value.clone().unwrap_or_default()),
            Some(_) => TolerationOperator::Unknown,
        };
        Ok(Self { key, operator, effect, seconds: toleration.toleration_seconds })
    }
}

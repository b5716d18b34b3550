//! What NodePool, NodeClaim and EC2NodeClass have in common.

use std::collections::BTreeMap;
use std::ops::Deref;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{labels, rules};
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
    #[schemars(regex(pattern = rules::GROUP), extend("x-kubernetes-validations" = rules::not_empty("group")))]
    pub group: String,
    /// Kind of the node class.
    #[schemars(extend("x-kubernetes-validations" = rules::not_empty("kind")))]
    pub kind: String,
    /// Name of the node class.
    #[schemars(extend("x-kubernetes-validations" = rules::not_empty("name")))]
    pub name: String,
}

impl NodeClassReference {
    /// Says whether karp acts on what has this class; another provider does otherwise.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        labels::is_ours(&self.group)
    }
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

/// Reads a duration as Go writes them: signed decimal numbers with the units `ns`, `us`, `ms`, `s`, `m` and `h`, or `0`.
#[must_use]
pub fn go_duration(text: &str) -> Option<SignedDuration> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0_i128;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (whole, fraction) = rest[..end].split_once('.').unwrap_or((&rest[..end], ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return None;
        }
        rest = &rest[end..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit: i128 = match &rest[..unit_end] {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        rest = &rest[unit_end..];
        // Digits past those that a nanosecond can show are cut, as in Go.
        let fraction = &fraction[..fraction.len().min(18)];
        let number = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<i128>().ok() };
        let part = number(fraction)? * unit / 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        total = total.checked_add(number(whole)?.checked_mul(unit)?)?.checked_add(part)?;
    }
    let nanoseconds = i64::try_from(if negative { -total } else { total }).ok()?;
    Some(SignedDuration::from_nanos(nanoseconds))
}

/// String maps of labels, annotations and tags.
pub type StringMap = BTreeMap<String, String>;

/// A list that may be absent. It reads as a list; that it is written as empty is kept, since Karpenter's hashes tell it from absent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct OptionalList<T>(Option<Vec<T>>);

impl<T> OptionalList<T> {
    /// Returns whether nothing is written.
    #[must_use]
    pub const fn is_absent(&self) -> bool {
        self.0.is_none()
    }
}

impl<T> Default for OptionalList<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Deref for OptionalList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<T> From<Vec<T>> for OptionalList<T> {
    fn from(list: Vec<T>) -> Self {
        Self(Some(list))
    }
}

impl<T> FromIterator<T> for OptionalList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self(Some(items.into_iter().collect()))
    }
}

impl<'a, T> IntoIterator for &'a OptionalList<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A map of strings that may be absent. It reads as a map; that it is written as empty is kept, since Karpenter's hashes tell it from
/// absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct OptionalMap(Option<StringMap>);

static NO_STRINGS: StringMap = StringMap::new();

impl OptionalMap {
    /// Returns whether nothing is written.
    #[must_use]
    pub const fn is_absent(&self) -> bool {
        self.0.is_none()
    }

    /// Returns a copy of the entries.
    #[must_use]
    pub fn to_map(&self) -> StringMap {
        self.0.clone().unwrap_or_default()
    }

    /// Sets an entry.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.0.get_or_insert_default().insert(key.into(), value.into());
    }
}

impl Deref for OptionalMap {
    type Target = StringMap;

    fn deref(&self) -> &StringMap {
        self.0.as_ref().unwrap_or(&NO_STRINGS)
    }
}

impl From<StringMap> for OptionalMap {
    fn from(map: StringMap) -> Self {
        Self(Some(map))
    }
}

impl<'a> IntoIterator for &'a OptionalMap {
    type Item = (&'a String, &'a String);
    type IntoIter = std::collections::btree_map::Iter<'a, String, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

pub(super) fn default_expire_after() -> String {
    DEFAULT_EXPIRE_AFTER.to_owned()
}

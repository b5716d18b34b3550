//! Label selectors of Kubernetes objects: which pods a budget, a spread or an affinity means.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// A label selector; empty selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector {
    equal: BTreeMap<String, String>,
    expressions: Vec<Expression>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Expression {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
}

/// Says which expression of a selector cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("label selector: key {key} has an unknown operator {operator:?}")]
pub struct ParseSelectorError {
    pub key: String,
    pub operator: String,
}

impl Selector {
    /// Returns a selector of everything.
    #[must_use]
    pub const fn everything() -> Self {
        Self { equal: BTreeMap::new(), expressions: Vec::new() }
    }

    /// Returns a selector of objects that carry all these labels.
    pub fn equal<K: Into<String>, V: Into<String>>(wanted: impl IntoIterator<Item = (K, V)>) -> Self {
        Self { equal: wanted.into_iter().map(|(k, v)| (k.into(), v.into())).collect(), expressions: Vec::new() }
    }

    /// Returns a label that every selected object has, with its value, if the selector names one.
    #[must_use]
    pub fn one_equal(&self) -> Option<(&str, &str)> {
        let listed = self.expressions.iter().find_map(|expression| match expression {
            Expression::In(key, values) if values.len() == 1 => Some((key.as_str(), values[0].as_str())),
            _ => None,
        });
        let equal = self.equal.iter().next().map(|(key, value)| (key.as_str(), value.as_str()));
        equal.or(listed)
    }

    /// Narrows to objects whose label has this value.
    pub fn require(&mut self, key: &str, value: &str) {
        self.narrow(Expression::In(key.to_owned(), vec![value.to_owned()]));
    }

    /// Narrows to objects whose label does not have this value.
    pub fn refuse(&mut self, key: &str, value: &str) {
        self.narrow(Expression::NotIn(key.to_owned(), vec![value.to_owned()]));
    }

    fn narrow(&mut self, expression: Expression) {
        if let Err(at) = self.expressions.binary_search(&expression) {
            self.expressions.insert(at, expression);
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.equal.is_empty() && self.expressions.is_empty()
    }

    /// Returns whether an object with these labels is selected.
    #[must_use]
    pub fn matches(&self, object_labels: &BTreeMap<String, String>) -> bool {
        self.equal.iter().all(|(key, value)| object_labels.get(key) == Some(value))
            && self.expressions.iter().all(|expression| match expression {
                Expression::In(key, values) => object_labels.get(key).is_some_and(|value| values.contains(value)),
                Expression::NotIn(key, values) => object_labels.get(key).is_none_or(|value| !values.contains(value)),
                Expression::Exists(key) => object_labels.contains_key(key),
                Expression::DoesNotExist(key) => !object_labels.contains_key(key),
            })
    }
}

impl fmt::Display for Selector {
    /// Writes the selector as kubectl's `-l` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equal = self.equal.iter().map(|(key, value)| format!("{key}={value}"));
        let expressions = self.expressions.iter().map(|expression| match expression {
            Expression::In(key, values) => format!("{key} in ({})", values.join(",")),
            Expression::NotIn(key, values) => format!("{key} notin ({})", values.join(",")),
            Expression::Exists(key) => key.clone(),
            Expression::DoesNotExist(key) => format!("!{key}"),
        });
        f.write_str(&equal.chain(expressions).collect::<Vec<_>>().join(","))
    }
}

impl TryFrom<&LabelSelector> for Selector {
    type Error = ParseSelectorError;

    fn try_from(selector: &LabelSelector) -> Result<Self, ParseSelectorError> {
        let mut expressions = selector
            .match_expressions
            .iter()
            .flatten()
            .map(|expression| {
                let key = expression.key.clone();
                let mut values = expression.values.clone().unwrap_or_default();
                values.sort();
                values.dedup();
                match expression.operator.as_str() {
                    "In" => Ok(Expression::In(key, values)),
                    "NotIn" => Ok(Expression::NotIn(key, values)),
                    "Exists" => Ok(Expression::Exists(key)),
                    "DoesNotExist" => Ok(Expression::DoesNotExist(key)),
                    operator => Err(ParseSelectorError { key, operator: operator.to_owned() }),
                }
            })
            .collect::<Result<Vec<_>, _>>()?;
        expressions.sort();
        expressions.dedup();
        Ok(Self { equal: selector.match_labels.clone().unwrap_or_default(), expressions })
    }
}

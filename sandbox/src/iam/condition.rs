//! Conditions of statements: operators, how they treat keys that are absent, and keys with several values.

use std::collections::BTreeMap;

use super::pattern::{matches, matches_arn};

/// What is known of a request, by condition key in lower case: IAM does not heed the case of keys.
pub type Context = BTreeMap<String, Vec<String>>;

/// One key under one operator of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The operator as it is written.
    pub operator: String,
    /// The key as it is written.
    pub key: String,
    /// What it is compared with; one suffices.
    pub values: Vec<String>,
    comparison: Comparison,
    negated: bool,
    if_exists: bool,
    quantifier: Quantifier,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    EqualInAnyCase,
    Like,
    Arn,
    Truth,
    Absent,
}

/// How keys with several values are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quantifier {
    One,
    All,
    Any,
}

/// The operators that are known, and whether they hold when the values differ. IAM compares both kinds of ARN operators alike.
const OPERATORS: [(&str, Comparison, bool); 12] = [
    ("StringEquals", Comparison::Equal, false),
    ("StringNotEquals", Comparison::Equal, true),
    ("StringEqualsIgnoreCase", Comparison::EqualInAnyCase, false),
    ("StringNotEqualsIgnoreCase", Comparison::EqualInAnyCase, true),
    ("StringLike", Comparison::Like, false),
    ("StringNotLike", Comparison::Like, true),
    ("ArnEquals", Comparison::Arn, false),
    ("ArnLike", Comparison::Arn, false),
    ("ArnNotEquals", Comparison::Arn, true),
    ("ArnNotLike", Comparison::Arn, true),
    ("Bool", Comparison::Truth, false),
    ("Null", Comparison::Absent, false),
];

impl Condition {
    /// Reads one key under one operator; nothing when the operator is not known.
    pub fn read(operator: &str, key: &str, values: Vec<String>) -> Option<Self> {
        let (quantifier, name) = match operator.split_once(':') {
            Some(("ForAllValues", name)) => (Quantifier::All, name),
            Some(("ForAnyValue", name)) => (Quantifier::Any, name),
            Some(_) => return None,
            None => (Quantifier::One, operator),
        };
        let (name, if_exists) = name.strip_suffix("IfExists").map_or((name, false), |name| (name, true));
        let (_, comparison, negated) = OPERATORS.into_iter().find(|(known, ..)| *known == name)?;
        if comparison == Comparison::Absent && (if_exists || quantifier != Quantifier::One) {
            return None;
        }
        let (operator, key) = (operator.to_owned(), key.to_owned());
        Some(Self { operator, key, values, comparison, negated, if_exists, quantifier })
    }

    /// Tells whether a request is as the condition says.
    pub fn holds(&self, context: &Context) -> bool {
        let found = context.get(&self.key.to_lowercase()).filter(|values| !values.is_empty());
        if self.comparison == Comparison::Absent {
            return self.values.iter().any(|value| value.eq_ignore_ascii_case("true") == found.is_none());
        }
        match (found, self.quantifier) {
            (None, Quantifier::One) => self.if_exists || self.negated,
            (None, Quantifier::All) => true,
            (None, Quantifier::Any) => self.if_exists,
            (Some(values), Quantifier::All) => values.iter().all(|value| self.admits(value)),
            (Some(values), Quantifier::Any) => values.iter().any(|value| self.admits(value)),
            // IAM asks for a quantifier where a key has several values: without one nothing is proved
            (Some(values), Quantifier::One) => values.len() == 1 && self.admits(&values[0]),
        }
    }

    /// Tells whether the key may have several values.
    pub fn is_of_many(&self) -> bool {
        self.quantifier != Quantifier::One
    }

    fn admits(&self, value: &str) -> bool {
        let like = |wanted: &String| match self.comparison {
            Comparison::Equal => wanted == value,
            Comparison::EqualInAnyCase | Comparison::Truth => wanted.to_lowercase() == value.to_lowercase(),
            Comparison::Like => matches(wanted, value),
            Comparison::Arn => matches_arn(wanted, value),
            Comparison::Absent => false,
        };
        self.values.iter().any(like) != self.negated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "aws:RequestTag/Team";

    /// Whether an operator holds for what a key has in the request.
    fn check(operator: &str, wanted: &[&str], found: &[&str]) -> bool {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let context = Context::from([(KEY.to_lowercase(), owned(found))]);
        Condition::read(operator, KEY, owned(wanted)).expect("it is known").holds(&context)
    }

    #[test]
    fn one_of_the_values_suffices_and_case_counts() {
        assert!(check("StringEquals", &["a", "b"], &["b"]));
        assert!(!check("StringEquals", &["a"], &["A"]));
        assert!(check("StringEqualsIgnoreCase", &["a"], &["A"]));
        assert!(!check("StringEquals", &["a*"], &["ab"]), "no pattern");
        assert!(check("StringLike", &["a*"], &["ab"]));
        assert!(check("StringLike", &["*"], &[""]));
        assert!(check("Bool", &["true"], &["True"]));
        assert!(check("ArnLike", &["arn:aws:eks:r:*:fargateprofile/c/*"], &["arn:aws:eks:r:1:fargateprofile/c/p/1"]));
        assert!(!check("ArnEquals", &["arn:aws:sqs:*:q"], &["arn:aws:sqs:r:1:q"]));
    }

    #[test]
    fn an_absent_key_fails_but_for_negations_and_if_exists() {
        for (operator, wanted) in [
            ("StringEquals", false),
            ("StringLike", false),
            ("ArnLike", false),
            ("Bool", false),
            ("StringNotEquals", true),
            ("ArnNotLike", true),
            ("StringEqualsIfExists", true),
            ("BoolIfExists", true),
            ("ForAllValues:StringEquals", true),
            ("ForAnyValue:StringEquals", false),
        ] {
            assert_eq!(check(operator, &["a"], &[]), wanted, "{operator}");
        }
        assert!(!check("StringEqualsIfExists", &["a"], &["b"]), "it exists");
    }

    #[test]
    fn a_negation_fails_on_any_of_its_values() {
        assert!(!check("StringNotEquals", &["a", "b"], &["b"]));
        assert!(check("StringNotEquals", &["a", "b"], &["c"]));
        assert!(!check("StringNotLike", &["a*"], &["ab"]));
    }

    #[test]
    fn quantifiers_speak_of_all_values_of_the_request() {
        assert!(check("ForAllValues:StringEquals", &["a", "b", "c"], &["a", "b"]));
        assert!(!check("ForAllValues:StringEquals", &["a", "b"], &["a", "z"]));
        assert!(check("ForAnyValue:StringEquals", &["a"], &["z", "a"]));
        assert!(!check("ForAnyValue:StringLike", &["a*"], &["z", "y"]));
        assert!(!check("StringEquals", &["a", "b"], &["a", "b"]), "several values want a quantifier");
    }

    #[test]
    fn null_tells_whether_a_key_is_absent() {
        assert!(check("Null", &["true"], &[]));
        assert!(!check("Null", &["true"], &["a"]));
        assert!(check("Null", &["false"], &["a"]));
        assert!(!check("Null", &["false"], &[]));
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        for operator in
            ["NumericLessThan", "DateGreaterThan", "IpAddress", "ForEach:StringEquals", "NullIfExists", "stringequals"]
        {
            assert_eq!(Condition::read(operator, KEY, vec!["1".to_owned()]), None, "{operator}");
        }
    }
}

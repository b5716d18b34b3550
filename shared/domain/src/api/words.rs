//! The patterns of the CRDs in words: what to write, with examples, for each pattern that a value can miss.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use super::rules;
use crate::quantity::{self, ParseQuantityError, Quantity};

/// So many spellings are offered for one that misses its pattern.
const OFFERED: usize = 2;

/// A pattern in words.
struct Words {
    form: Regex,
    /// What a value must be.
    what: &'static str,
    /// Values that are.
    examples: &'static [&'static str],
}

static TABLE: LazyLock<BTreeMap<String, Words>> = LazyLock::new(|| {
    let table: [(&str, &'static str, &'static [&'static str]); 21] = [
        (rules::DURATION, "a duration in hours (h), minutes (m) and seconds (s)", &["90s", "1h30m"]),
        (
            rules::DURATION_OR_NEVER,
            "a duration in hours (h), minutes (m) and seconds (s), or Never",
            &["90s", "720h", "Never"],
        ),
        (rules::BUDGET_DURATION, "a duration in hours (h) and whole minutes (m)", &["8h", "1h30m"]),
        (rules::BUDGET_NODES, "a number of nodes, or a share of them from 0% to 100%", &["5", "10%"]),
        (
            rules::BUDGET_SCHEDULE,
            "a schedule in UTC, which has five fields (minute, hour, day of month, month, day of week) or is one of @hourly, @daily, \
             @midnight, @weekly, @monthly, @yearly and @annually",
            &["0 9 * * mon-fri", "@daily"],
        ),
        (
            quantity::PATTERN,
            "a quantity, which is a number with one of n u m k M G T P E Ki Mi Gi Ti Pi Ei, or nothing, right after it",
            &["100m", "16", "1.5Gi"],
        ),
        (
            &rules::eviction_threshold(),
            "a quantity (a number with one of Ki Mi Gi Ti and the like, or nothing, right after it) or a share up to 100%",
            &["500Mi", "5%"],
        ),
        (
            rules::VOLUME_SIZE,
            "the size of a volume: a whole number of Gi, Ti, G or T, up to 59000Gi, 58Ti, 64000G or 64T",
            &["20Gi", "1Ti"],
        ),
        (rules::PRICE, "a price per hour: a decimal number without a sign", &["0.42", "3"]),
        (
            rules::PRICE_ADJUSTMENT,
            "an amount or a share with its sign, of which no more than 100% can be taken off",
            &["+0.1", "-0.05", "+20%", "-5%"],
        ),
        (
            rules::QUALIFIED_NAME,
            "letters and digits with any of - _ . between them, after a domain and a slash or without",
            &["team", "example.com/team"],
        ),
        (rules::LABEL_VALUE, "letters and digits with any of - _ . between them, or nothing", &["search", "v1.2"]),
        (rules::GROUP, "an API group, without a version and a slash", &["karpenter.k8s.aws"]),
        (rules::SUBNET_ID, "the id of a subnet", &["subnet-0123456789abcdef0"]),
        (rules::SECURITY_GROUP_ID, "the id of a security group", &["sg-0123456789abcdef0"]),
        (rules::IMAGE_ID, "the id of an image", &["ami-0123456789abcdef0"]),
        (rules::RESERVATION_ID, "the id of a capacity reservation", &["cr-0123456789abcdef0"]),
        (rules::PLACEMENT_GROUP_ID, "the id of a placement group", &["pg-0123456789abcdef0"]),
        (rules::ACCOUNT_ID, "the id of an account, which has twelve digits", &["111122223333"]),
        (
            rules::CONDITION_TYPE,
            "letters and digits with any of - _ . between them, after a domain and a slash or without",
            &["Ready", "example.com/Ready"],
        ),
        (rules::CONDITION_REASON, "letters and digits with any of _ , : between them, a letter first", &["NotFound"]),
    ];
    let compiled = |(pattern, what, examples): (&str, &'static str, &'static [&'static str])| {
        (pattern.to_owned(), Words { form: Regex::new(pattern).expect("the patterns are our own"), what, examples })
    };
    table.into_iter().map(compiled).collect()
});

/// Checks a text against a pattern of the CRDs; the error says what to write.
pub(super) fn check(pattern: &str, text: &str) -> Result<(), String> {
    let words = TABLE.get(pattern).expect("each pattern of the CRDs has words");
    if words.form.is_match(text) { Ok(()) } else { Err(words.refusal(text)) }
}

/// Reads a quantity; the error says what to write.
///
/// # Errors
/// What a quantity is, and which one was probably meant.
pub fn quantity(text: &str) -> Result<Quantity, String> {
    text.parse().map_err(|error| match error {
        ParseQuantityError::OutOfRange { .. } => error.to_string(),
        _ => TABLE[quantity::PATTERN].refusal(text),
    })
}

/// Puts words in the place of a pattern that the API server names in a refusal.
#[must_use]
pub fn without_pattern(message: &str) -> String {
    let named = |(pattern, words): (&String, &Words)| {
        let named = format!("should match '{pattern}'");
        message.contains(&named).then(|| message.replace(&named, &format!("should be {}", words.told())))
    };
    TABLE.iter().find_map(named).unwrap_or_else(|| message.to_owned())
}

impl Words {
    fn told(&self) -> String {
        let (last, others) = self.examples.split_last().expect("each pattern has examples");
        let others = if others.is_empty() { String::new() } else { format!("{} or ", others.join(", ")) };
        format!("{}, such as {others}{last}", self.what)
    }

    fn refusal(&self, text: &str) -> String {
        let fits = |one: &String| !one.is_empty() && self.form.is_match(one);
        let fitting: Vec<String> = respelled(text).into_iter().filter(fits).collect();
        let meant = match &*fitting {
            [] => String::new(),
            some => format!("; did you mean {}?", some[..some.len().min(OFFERED)].join(" or ")),
        };
        format!("{text:?} is not {}{meant}", self.told())
    }
}

/// Lists what a text may have been meant for: without spaces, with a unit that there is, or in the right case.
fn respelled(text: &str) -> Vec<String> {
    let bare: String = text.split_whitespace().collect();
    let mut all = Vec::new();
    if let Some(amount) = bare.strip_suffix(['B', 'b']) {
        // in lower case the units of Kubernetes are thousandths and smaller
        let amount = amount.to_uppercase();
        match amount.strip_suffix('I') {
            Some(amount) => all.push(format!("{amount}i")),
            None => all.extend([format!("{amount}i"), amount]),
        }
    } else if !bare.is_empty() && bare.bytes().all(|byte| byte.is_ascii_digit()) {
        all.extend(["Gi", "G", "s", "m", "h"].map(|unit| format!("{bare}{unit}")));
    }
    let days = bare.strip_suffix('d').and_then(|days| days.parse::<u64>().ok()).and_then(|days| days.checked_mul(24));
    all.extend(days.map(|hours| format!("{hours}h")));
    if bare.eq_ignore_ascii_case(super::NEVER) {
        all.push(super::NEVER.to_owned());
    }
    if bare != text {
        all.push(bare);
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    fn patterns(schema: &Value, found: &mut BTreeSet<String>) {
        match schema {
            Value::Object(map) => {
                found.extend(map.get("pattern").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|inner| patterns(inner, found));
            }
            Value::Array(list) => list.iter().for_each(|inner| patterns(inner, found)),
            _ => {}
        }
    }

    #[test]
    fn each_pattern_of_the_definitions_has_words_and_no_other_has() {
        let mut found = BTreeSet::new();
        patterns(&serde_json::to_value(crate::api::crds()).expect("plain data"), &mut found);
        assert_eq!(found, TABLE.keys().cloned().collect());
    }

    #[test]
    fn each_example_is_one() {
        for (pattern, words) in TABLE.iter() {
            assert!(!words.examples.is_empty(), "{pattern}");
            for example in words.examples {
                assert!(words.form.is_match(example), "{example}: {pattern}");
            }
        }
    }

    #[test]
    fn what_was_probably_meant_is_offered() {
        let cases = [
            (quantity::PATTERN, "100GB", Some("100Gi or 100G")),
            (quantity::PATTERN, "100GiB", Some("100Gi")),
            (quantity::PATTERN, "512mb", Some("512Mi or 512M")),
            (quantity::PATTERN, "100 Gi", Some("100Gi")),
            (quantity::PATTERN, "many", None),
            (rules::VOLUME_SIZE, "20", Some("20Gi or 20G")),
            (rules::DURATION_OR_NEVER, "30d", Some("720h")),
            (rules::DURATION_OR_NEVER, "never", Some("Never")),
            (rules::DURATION_OR_NEVER, "1h 30m", Some("1h30m")),
            (rules::DURATION_OR_NEVER, "30", Some("30s or 30m")),
            (rules::BUDGET_DURATION, "90s", None),
            (rules::BUDGET_NODES, "150%", None),
        ];
        for (pattern, text, meant) in cases {
            let said = check(pattern, text).expect_err(text);
            let offered = said.split_once("; did you mean ").and_then(|(_, rest)| rest.strip_suffix('?'));
            assert_eq!(offered, meant, "{said}");
        }
    }

    #[test]
    fn refusals_of_the_api_server_lose_their_pattern() {
        let said = format!("Invalid value: \"9\": spec.x in body should match '{}'", rules::ACCOUNT_ID);
        let told = without_pattern(&said);
        assert!(
            told.ends_with("should be the id of an account, which has twelve digits, such as 111122223333"),
            "{told}"
        );
        assert_eq!(without_pattern("spec.x is required"), "spec.x is required");
    }
}

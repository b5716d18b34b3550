//! Checks of known values, written into the schema: `Attribute::string().validate(length(1, 64))`.

use std::sync::Arc;
use std::time::Duration;

use crate::Value;

type Check = dyn Fn(&Value) -> Result<(), String> + Send + Sync;

/// A check of a known value; the error says what the value must be ("must be 1 to 64 characters long").
#[derive(Clone)]
pub struct Validator(Arc<Check>);

impl Validator {
    /// Makes a validator of any check.
    pub fn new(check: impl Fn(&Value) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(check))
    }

    /// Runs the check on a wholly known value.
    ///
    /// # Errors
    /// What the value must be.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        (self.0)(value)
    }
}

/// Checks text by a predicate; `must` completes the sentence "must ...".
pub fn text(must: impl Into<String>, holds: impl Fn(&str) -> bool + Send + Sync + 'static) -> Validator {
    let must = must.into();
    Validator::new(move |value| match value.as_str() {
        Some(text) if !holds(text) => Err(format!("{must}, not {text:?}")),
        _ => Ok(()),
    })
}

/// Text of that many characters.
#[must_use]
pub fn length(least: usize, most: usize) -> Validator {
    text(format!("must be {least} to {most} characters long"), move |text| {
        (least..=most).contains(&text.chars().count())
    })
}

/// One of these texts.
#[must_use]
pub fn one_of<const N: usize>(choices: [&'static str; N]) -> Validator {
    let list = choices.map(|choice| format!("{choice:?}")).join(", ");
    text(format!("must be one of {list}"), move |text| choices.contains(&text))
}

/// Text that begins so.
#[must_use]
pub fn starts_with(prefix: &'static str) -> Validator {
    text(format!("must begin with {prefix:?}"), move |text| text.starts_with(prefix))
}

/// An Amazon resource name.
#[must_use]
pub fn arn() -> Validator {
    text("must be an ARN such as \"arn:aws:iam::111122223333:role/name\"", |text| {
        let parts: Vec<&str> = text.splitn(6, ':').collect();
        parts.len() == 6
            && parts[0] == "arn"
            && parts[1].starts_with("aws")
            && !parts[2].is_empty()
            && !parts[5].is_empty()
    })
}

/// A DNS label: lower-case letters, digits and dashes, at most 63 characters.
#[must_use]
pub fn dns_label() -> Validator {
    text("must be a DNS label (lower-case letters, digits and dashes, at most 63)", |text| {
        text.len() <= 63 && is_label(text)
    })
}

/// A DNS subdomain, as the names of most Kubernetes objects are.
#[must_use]
pub fn dns_subdomain() -> Validator {
    text("must be a DNS subdomain (lower-case letters, digits, dashes and dots, at most 253)", |text| {
        text.len() <= 253 && text.split('.').all(is_label)
    })
}

fn is_label(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(plain) && text.ends_with(plain) && text.chars().all(|c| plain(c) || c == '-')
}

/// A duration such as `90s`, `1h30m` or `720h`.
#[must_use]
pub fn duration() -> Validator {
    text("must be a duration such as \"90s\", \"20m\" or \"1h30m\"", |text| parse_duration(text).is_some())
}

/// A duration that is longer than none, as the limit of an operation is.
#[must_use]
pub fn limit() -> Validator {
    text("must be a duration such as \"90s\", \"20m\" or \"1h30m\", longer than none", |text| {
        parse_duration(text).is_some_and(|limit| !limit.is_zero())
    })
}

/// A number from `least` to `most`.
#[must_use]
pub fn between(least: f64, most: f64) -> Validator {
    Validator::new(move |value| match value.as_f64() {
        Some(number) if !(least..=most).contains(&number) => Err(format!("must be {least} to {most}, not {number}")),
        _ => Ok(()),
    })
}

/// A list, set or map of that many elements.
#[must_use]
pub fn count(least: usize, most: usize) -> Validator {
    Validator::new(move |value| {
        let count = value.as_map().map_or(value.as_list().len(), std::collections::BTreeMap::len);
        if (least..=most).contains(&count) {
            return Ok(());
        }
        let limit = if most == usize::MAX { format!("at least {least}") } else { format!("{least} to {most}") };
        Err(format!("must have {limit} elements, not {count}"))
    })
}

/// Runs a check on each element of a list, set or map.
#[must_use]
pub fn each(element: Validator) -> Validator {
    Validator::new(move |value| {
        let elements = value.as_list().iter().chain(value.as_map().into_iter().flat_map(|map| map.values()));
        elements
            .filter(|element| !element.is_null())
            .try_for_each(|value| element.check(value).map_err(|must| format!("each element {must}")))
    })
}

/// Reads a Go duration of whole or fractional hours, minutes, seconds and milliseconds.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit_end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        total += number
            * match &rest[digits..unit_end] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 0.001,
                _ => return None,
            };
        rest = &rest[unit_end..];
    }
    if text.is_empty() { None } else { Duration::try_from_secs_f64(total).ok() }
}

//! Checks of known values, written into the schema: `Attribute::string().validate(length(1, 64))`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Value;

type Check = dyn Fn(&Value) -> Result<(), Fault> + Send + Sync;

/// What is wrong with a value: what it must be ("must be 1 to 64 characters long"), and apart from that what it is, so that a diagnostic
/// can do without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    must: String,
    is: Option<String>,
}

impl Fault {
    /// Says what the value must be. The text shows nothing of the value.
    pub fn new(must: impl Into<String>) -> Self {
        Self { must: must.into(), is: None }
    }

    /// Adds what the value is; that of a sensitive attribute is not told.
    #[must_use]
    pub fn not(mut self, is: impl fmt::Display) -> Self {
        self.is = Some(is.to_string());
        self
    }

    /// What the value must be, without what it is.
    #[must_use]
    pub fn must(&self) -> &str {
        &self.must
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.is {
            Some(is) => write!(formatter, "{}, not {is}", self.must),
            None => formatter.write_str(&self.must),
        }
    }
}

impl From<String> for Fault {
    /// Takes a sentence as a whole: for attributes that are not sensitive.
    fn from(must: String) -> Self {
        Self::new(must)
    }
}

/// A check of a known value.
#[derive(Clone)]
pub struct Validator(Arc<Check>);

impl Validator {
    /// Makes a validator of any check.
    pub fn new<E: Into<Fault> + 'static>(check: impl Fn(&Value) -> Result<(), E> + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |value: &Value| check(value).map_err(Into::into)))
    }

    /// Runs the check on a wholly known value.
    ///
    /// # Errors
    /// What the value must be, and what it is.
    pub fn check(&self, value: &Value) -> Result<(), Fault> {
        (self.0)(value)
    }
}

/// Checks text by a predicate; `must` completes the sentence "must ...". Credentials that seem to stand in the text are not told.
pub fn text(must: impl Into<String>, holds: impl Fn(&str) -> bool + Send + Sync + 'static) -> Validator {
    // ARNs have colons, and no passwords; names such as al2023@latest have neither.
    let is_address = |text: &str| text.contains(':') && !text.starts_with("arn:");
    told(must, holds, move |text| Some(if is_address(text) { without_credentials(text) } else { text.to_owned() }))
}

/// Checks text that is an address: `user:password@` in it is never told.
pub fn address(must: impl Into<String>, holds: impl Fn(&str) -> bool + Send + Sync + 'static) -> Validator {
    told(must, holds, |text| Some(without_credentials(text)))
}

/// Checks text of which nothing is told: a document that may have anything in it.
pub fn document(must: impl Into<String>, holds: impl Fn(&str) -> bool + Send + Sync + 'static) -> Validator {
    told(must, holds, |_| None)
}

fn told(
    must: impl Into<String>,
    holds: impl Fn(&str) -> bool + Send + Sync + 'static,
    tell: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
) -> Validator {
    let must = must.into();
    Validator::new(move |value| {
        let Some(text) = value.as_str().filter(|text| !holds(text)) else { return Ok(()) };
        let fault = Fault::new(&*must);
        Err(match tell(text) {
            Some(shown) => fault.not(format!("{shown:?}")),
            None => fault,
        })
    })
}

/// Writes an address without what stands between its scheme and its last `@`. The address may be malformed: a password that should have
/// been escaped can have any character.
#[must_use]
pub fn without_credentials(address: &str) -> String {
    let Some((before, host)) = address.rsplit_once('@') else { return address.to_owned() };
    let scheme = before.split_once("://").map(|(scheme, _)| scheme);
    let is_scheme = |scheme: &&str| scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let scheme = scheme.filter(is_scheme).map_or(String::new(), |scheme| format!("{scheme}://"));
    format!("{scheme}***@{host}")
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

/// The ARN of an IAM role, without a session's.
#[must_use]
pub fn role_arn() -> Validator {
    text("must be the ARN of a role such as \"arn:aws:iam::111122223333:role/name\"", |text| {
        let parts: Vec<&str> = text.splitn(6, ':').collect();
        let name = |resource: &str| resource.strip_prefix("role/").is_some_and(|name| !name.is_empty());
        matches!(parts[..], ["arn", partition, "iam", "", _, resource] if partition.starts_with("aws") && name(resource))
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
        Some(number) if !(least..=most).contains(&number) => {
            Err(Fault::new(format!("must be {least} to {most}")).not(number))
        }
        _ => Ok(()),
    })
}

/// A whole number from `least` to `most`.
#[must_use]
pub fn whole(least: u32, most: u32) -> Validator {
    Validator::new(move |value| match value.as_f64() {
        Some(number) if number.fract() != 0.0 => {
            Err(Fault::new(format!("must be {least} to {most}, and whole")).not(number))
        }
        Some(number) if !(f64::from(least)..=f64::from(most)).contains(&number) => {
            Err(Fault::new(format!("must be {least} to {most}")).not(number))
        }
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
        Err(Fault::new(format!("must have {limit} elements")).not(count))
    })
}

/// Runs a check on each element of a list, set or map.
#[must_use]
pub fn each(element: Validator) -> Validator {
    Validator::new(move |value| {
        let elements = value.as_list().iter().chain(value.as_map().into_iter().flat_map(|map| map.values()));
        let of_each = |fault: Fault| Fault { must: format!("each element {}", fault.must), ..fault };
        elements.filter(|element| !element.is_null()).try_for_each(|value| element.check(value).map_err(of_each))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn said(validator: &Validator, text: &str) -> String {
        validator.check(&Value::from(text)).expect_err("it is refused").to_string()
    }

    #[test]
    fn credentials_are_not_told() {
        for (address, shown) in [
            ("user:pw@proxy:3128", "***@proxy:3128"),
            ("http://user:p w@proxy:3128", "http://***@proxy:3128"),
            ("user:p@w/x://y@proxy", "***@proxy"),
            ("token@proxy", "***@proxy"),
            ("proxy:3128", "proxy:3128"),
        ] {
            assert_eq!(without_credentials(address), shown);
            assert_eq!(
                said(&super::address("must be a URL", |_| false), address),
                format!("must be a URL, not {shown:?}")
            );
        }
        assert_eq!(said(&length(1, 2), "ftp://user:pw@host"), "must be 1 to 2 characters long, not \"ftp://***@host\"");
        let list = Value::List(vec![Value::from("http://user:pw@a")]);
        let told = each(length(1, 2)).check(&list).expect_err("it is refused").to_string();
        assert_eq!(told, "each element must be 1 to 2 characters long, not \"http://***@a\"");
    }

    #[test]
    fn what_has_no_credentials_is_told_as_it_is() {
        for text in ["AL2023@latest", "me@example.com", "arn:aws:sts::111122223333:assumed-role/ci/me@example.com"] {
            assert_eq!(said(&length(1, 2), text), format!("must be 1 to 2 characters long, not {text:?}"));
        }
        assert_eq!(said(&document("must be JSON", |_| false), "{\"password\": pw}"), "must be JSON");
    }
}

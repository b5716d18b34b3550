//! What Kubernetes takes as key and value of a label. The API server holds objects to it when they are made, which for a pool's labels is
//! only when its first node is.

/// Longest name in a key, and longest value, in bytes.
const LONGEST_NAME: usize = 63;
/// Longest prefix of a key, in bytes.
const LONGEST_PREFIX: usize = 253;

/// Says why no label can have a key; nothing when one can.
#[must_use]
pub fn key_problem(key: &str) -> Option<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if !name.is_empty() && is_name(name) && prefix.is_none_or(is_domain) {
        return None;
    }
    Some(format!(
        "{key:?} is no key of a label: write a name of at most {LONGEST_NAME} letters, digits, '-', '_' and '.' that begins and ends with a \
         letter or digit, such as team, or one with a domain in small letters before it, such as example.com/team"
    ))
}

/// Says why no label can have a value; nothing when one can.
#[must_use]
pub fn value_problem(value: &str) -> Option<String> {
    if is_name(value) {
        return None;
    }
    Some(format!(
        "{value:?} is no value of a label: write at most {LONGEST_NAME} letters, digits, '-', '_' and '.', beginning and ending with a letter \
         or digit"
    ))
}

fn is_name(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.len() <= LONGEST_NAME && text.chars().all(inside) && !ends_with_sign(text)
}

fn is_domain(text: &str) -> bool {
    let label = |part: &str| {
        let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty() && part.chars().all(inside) && !ends_with_sign(part)
    };
    text.len() <= LONGEST_PREFIX && text.split('.').all(label)
}

fn ends_with_sign(text: &str) -> bool {
    let sign = |c: char| !c.is_ascii_alphanumeric();
    text.starts_with(sign) || text.ends_with(sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_those_that_the_api_server_takes() {
        let long = "a".repeat(63);
        let too_long = "a".repeat(64);
        for key in ["team", "a", "A.b-c_d", "example.com/team", "a/b", "x.y-z.1/9", &long] {
            assert_eq!(key_problem(key), None, "{key}");
        }
        for key in
            ["", "/", "a/", "/a", "not a key!", "-a", "a-", "Example.com/a", "a..b/c", "a_b/c", "a/b/c", "é", &too_long]
        {
            assert!(key_problem(key).is_some_and(|told| told.contains(&format!("{key:?}"))), "{key}");
        }
        assert_eq!(key_problem(&format!("{}/a", "a".repeat(253))), None);
        assert!(key_problem(&format!("{}/a", "a".repeat(254))).is_some());
        for value in ["", "a", "9", "A.b-c_d", &long] {
            assert_eq!(value_problem(value), None, "{value}");
        }
        for value in ["any value", "-a", "a.", "a/b", "é", &too_long] {
            assert!(value_problem(value).is_some_and(|told| told.contains(&format!("{value:?}"))), "{value}");
        }
    }
}

//! Policy documents in one canonical form, so that equal policies are equal text, whatever order or encoding IAM answers with.

use serde_json::Value;

/// Gives a document's canonical text: sorted keys, no white space, one-element lists of actions, resources and principals as a
/// plain value. Text that is no JSON comes back as it was.
pub fn canonical(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => canonical_value(&value),
        Err(_) => text.to_owned(),
    }
}

/// Gives the canonical text of a document that is a value already.
pub fn canonical_value(value: &Value) -> String {
    flatten(value.clone()).to_string()
}

/// Reads a document as IAM answers it: percent-encoded JSON.
pub fn from_iam(encoded: &str) -> String {
    canonical(&percent_decode(encoded))
}

/// Splits a policy into documents that each fit into `longest` characters, whole statements at a time.
pub fn split(policy: &str, longest: usize) -> Vec<String> {
    let Ok(Value::Object(whole)) = serde_json::from_str::<Value>(policy) else { return vec![policy.to_owned()] };
    let statements = whole.get("Statement").and_then(Value::as_array).cloned().unwrap_or_default();
    let document = |statements: Vec<Value>| {
        let mut part = whole.clone();
        part.insert("Statement".to_owned(), Value::Array(statements));
        canonical_value(&Value::Object(part))
    };
    let mut parts: Vec<Vec<Value>> = Vec::new();
    for statement in statements {
        match parts.last_mut() {
            Some(part) if document([part.clone(), vec![statement.clone()]].concat()).len() <= longest => {
                part.push(statement);
            }
            _ => parts.push(vec![statement]),
        }
    }
    parts.into_iter().map(document).collect()
}

/// Puts one policy together again from its parts, in their order.
pub fn join(parts: &[String]) -> Option<String> {
    let mut parsed = parts.iter().filter_map(|part| serde_json::from_str::<Value>(part).ok());
    let mut whole = parsed.next()?;
    for part in parsed {
        let more = part.get("Statement").and_then(Value::as_array).cloned().unwrap_or_default();
        whole.get_mut("Statement").and_then(Value::as_array_mut)?.extend(more);
    }
    Some(canonical_value(&whole))
}

fn flatten(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            // A sorted map whatever serde_json's map is built with.
            let mut pairs: Vec<(String, Value)> =
                map.into_iter().map(|(k, v)| (k.clone(), flatten_under(&k, v))).collect();
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(pairs.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(flatten).collect()),
        other => other,
    }
}

fn flatten_under(key: &str, value: Value) -> Value {
    match value {
        // The order of statements is kept; everything else that is a list in a policy is a set.
        Value::Array(mut items) if key != "Statement" => {
            if items.len() == 1 && items[0].is_string() {
                return items.remove(0);
            }
            items.sort_by_key(ToString::to_string);
            Value::Array(items)
        }
        other => flatten(other),
    }
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let pair = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        if let Some(byte) = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            out.push(byte);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_policies_are_equal_text() {
        let a = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["b","a"],"Resource":["*"]}]}"#;
        let b = r#"{ "Statement": [{ "Resource": "*", "Action": ["a", "b"], "Effect": "Allow" }], "Version": "2012-10-17" }"#;
        assert_eq!(canonical(a), canonical(b));
        assert_eq!(from_iam("%7B%22a%22%3A%5B%22x%22%5D%7D"), r#"{"a":"x"}"#);
    }

    #[test]
    fn a_split_policy_joins_to_itself() {
        let statement = |n: usize| serde_json::json!({"Sid": format!("S{n}"), "Effect": "Allow", "Action": "ec2:*", "Resource": "*"});
        let whole = canonical_value(
            &serde_json::json!({"Version": "2012-10-17", "Statement": (0..40).map(statement).collect::<Vec<_>>()}),
        );
        let parts = split(&whole, 1_000);
        assert!(parts.len() > 2 && parts.iter().all(|part| part.len() <= 1_000), "{parts:?}");
        assert_eq!(join(&parts).as_deref(), Some(whole.as_str()));
    }
}

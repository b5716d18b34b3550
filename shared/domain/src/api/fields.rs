//! Fields that the API does not have, and which were probably meant.

use serde_json::Value;

use crate::requirement::hint::nearest;

/// Answers the path of the field that an unknown one probably means: one beside it with a like name, else the field of that name elsewhere.
pub(super) fn meant(schema: &Value, path: &str) -> Option<String> {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut beside = schema;
    for step in parent.split(['.', '[']).filter(|step| !step.is_empty()) {
        beside = match step.strip_suffix(']') {
            Some(_) => beside.get("items").or_else(|| beside.get("additionalProperties"))?,
            None => beside.get("properties")?.get(step)?,
        };
    }
    let names = beside.get("properties")?.as_object()?.keys().map(String::as_str);
    if let Some(near) = nearest(name, names) {
        return Some(if parent.is_empty() { near.to_owned() } else { format!("{parent}.{near}") });
    }
    let mut found = Vec::new();
    search(schema, "", name, &mut found);
    // one that is there twice is as likely to mean either
    if let [only] = &found[..] { Some(only.clone()) } else { None }
}

/// Finds the fields of a name outside of status.
fn search(schema: &Value, path: &str, name: &str, found: &mut Vec<String>) {
    for (own, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = if path.is_empty() { own.clone() } else { format!("{path}.{own}") };
        if own == name {
            found.push(path.clone());
        }
        if path != "status" {
            search(property, &path, name, found);
        }
    }
    if let Some(items) = schema.get("items") {
        search(items, &format!("{path}[]"), name, found);
    }
}

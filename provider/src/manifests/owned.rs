//! The part of a live object that one field manager applied, as `metadata.managedFields` tells it: what it was told, without what the API
//! server and others added. The form of the fields is that of Kubernetes' structured-merge-diff, version `FieldsV1`.

use serde_json::{Map, Value as Json};

/// Gives what a field manager applied of an object; nothing where it applied nothing.
pub fn by(live: &Json, manager: &str) -> Option<Json> {
    let entries = live["metadata"]["managedFields"].as_array()?;
    let applied = entries.iter().find(|entry| entry["manager"] == manager && entry["operation"] == "Apply")?;
    Some(pick(live, &applied["fieldsV1"]))
}

fn pick(live: &Json, fields: &Json) -> Json {
    let none = Map::new();
    let fields = fields.as_object().unwrap_or(&none);
    if fields.is_empty() {
        return live.clone();
    }
    match live {
        Json::Array(items) => items.iter().filter_map(|item| pick_item(item, fields)).collect(),
        Json::Object(map) => {
            let own =
                |(name, value): (&String, &Json)| Some((name.clone(), pick(value, fields.get(&format!("f:{name}"))?)));
            Json::Object(map.iter().filter_map(own).collect())
        }
        plain => plain.clone(),
    }
}

/// Picks of a list's item, which its key (`k:{"name":"a"}`) or its value (`v:"a"`) names.
fn pick_item(item: &Json, fields: &Map<String, Json>) -> Option<Json> {
    fields.iter().find_map(|(name, inner)| {
        let (kind, text) = name.split_once(':')?;
        let named: Json = serde_json::from_str(text).ok()?;
        match kind {
            "k" if named.as_object()?.iter().all(|(key, value)| item.get(key) == Some(value)) => {
                Some(pick(item, inner))
            }
            "v" if named == *item => Some(item.clone()),
            _ => None,
        }
    })
}

/// Gives the JSON merge patch (RFC 7386) that makes one object of another; nothing where they are the same.
pub fn difference(from: &Json, to: &Json) -> Option<Json> {
    let (Some(before), Some(after)) = (from.as_object(), to.as_object()) else {
        return (from != to).then(|| to.clone());
    };
    let changed = after.iter().filter_map(|(name, to)| match before.get(name) {
        Some(from) => Some((name.clone(), difference(from, to)?)),
        None => Some((name.clone(), to.clone())),
    });
    let gone = before.keys().filter(|name| !after.contains_key(*name)).map(|name| (name.clone(), Json::Null));
    let patch: Map<String, Json> = changed.chain(gone).collect();
    if patch.is_empty() { None } else { Some(Json::Object(patch)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_part_of_a_manager_is_what_it_applied() {
        let live = json!({
            "metadata": { "name": "a", "labels": { "own": "1", "theirs": "2" }, "managedFields": [
                { "manager": "x", "operation": "Update", "fieldsV1": { "f:spec": { "f:theirs": {} } } },
                { "manager": "x", "operation": "Apply", "fieldsV1": {
                    "f:metadata": { "f:labels": { "f:own": {} } },
                    "f:spec": { "f:whole": {}, "f:list": {
                        "k:{\"name\":\"b\"}": { ".": {}, "f:name": {}, "f:image": {} } }, "f:set": { "v:\"q\"": {} } } } },
            ] },
            "spec": { "whole": [{ "k": 1 }], "theirs": true, "set": ["p", "q"],
                "list": [{ "name": "a", "image": "other" }, { "name": "b", "image": "i", "added": "by the server" }] },
        });
        assert_eq!(
            by(&live, "x"),
            Some(json!({ "metadata": { "labels": { "own": "1" } },
                "spec": { "whole": [{ "k": 1 }], "set": ["q"], "list": [{ "name": "b", "image": "i" }] } }))
        );
        assert_eq!(by(&live, "y"), None);
    }

    #[test]
    fn a_difference_is_the_patch_that_makes_it() {
        let from = json!({ "same": 1, "inner": { "a": 1, "b": [1] }, "gone": { "x": 1 } });
        let to = json!({ "same": 1, "inner": { "a": 1, "b": [2] }, "new": "n" });
        let patch = difference(&from, &to).expect("a difference");
        assert_eq!(patch, json!({ "inner": { "b": [2] }, "gone": null, "new": "n" }));
        let mut patched = from;
        json_patch::merge(&mut patched, &patch);
        assert_eq!(patched, to);
        assert_eq!(difference(&to, &to), None);
    }
}

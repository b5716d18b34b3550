//! The labels and annotations of an object itself.

use std::collections::BTreeMap;

use karp_domain::api::label_syntax::{key_problem, value_problem};
use karp_domain::api::labels::DRAINING;
use karp_domain::api::metadata::is_users;
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::{Value as Json, json};
use tfplugin::{Attribute, AttributePath, Diagnostic, Diagnostics, Schema, Type, Value};

use crate::manifests::spec::Scope;

const ANNOTATIONS: &str = "annotations";
const LABELS: &str = "labels";
/// The attributes, which are called as the fields are.
pub(super) const ALL: [&str; 2] = [ANNOTATIONS, LABELS];

/// Declares the labels and annotations of an object.
pub fn metadata(schema: Schema, annotations: &str) -> Schema {
    let map = |what: String| {
        Attribute::map(Type::String).optional().describe(format!(
            "{what} Those that others put there are left alone. An import takes over what is there, but not what tools note for themselves: \
             kubectl, Kustomize, Helm and its charts, Argo CD, Flux, Rancher, kapp, Pulumi and Karpenter."
        ))
    };
    schema
        .attribute(ANNOTATIONS, map(format!("Annotations of the object, such as {annotations}.")))
        .attribute(LABELS, map("Labels of the object itself, to select it by; its nodes have none of them.".to_owned()))
}

/// Finds what the API server would refuse.
pub(super) fn check(config: &Value) -> Diagnostics {
    let mut found = Diagnostics::new();
    for field in ALL {
        for (key, value) in config.get(field).as_map().into_iter().flatten() {
            let problems: Vec<String> = match field {
                LABELS => key_problem(key).into_iter().chain(value.as_str().and_then(value_problem)).collect(),
                _ => annotation_problem(key).into_iter().collect(),
            };
            let at = || AttributePath::root().attribute(field).key(key);
            let refused = |problem| Diagnostic::error("The API server would refuse this", problem).at(at());
            found.extend(problems.into_iter().map(refused));
        }
    }
    found
}

/// Says why no annotation can have a key. It is one of a label, where the domain may have capitals.
fn annotation_problem(key: &str) -> Option<String> {
    key_problem(&key.to_ascii_lowercase()).map(|_| {
        format!("{key:?} is no key of an annotation: write a name such as note, or one with a domain before it, such as example.com/note")
    })
}

/// Says whether an object is a pool whose drain is under way, or was broken off.
pub(super) fn drains(live: &DynamicObject) -> bool {
    live.annotations().contains_key(DRAINING)
}

/// Writes an object's metadata; the paths of unknown attributes are noted. A key without a value is not set, and a drain's note is only read:
/// state has it for as long as `ignore_changes` keeps it there.
pub(super) fn written(value: &Value, unknown: &mut Vec<AttributePath>) -> Json {
    let mut metadata = json!({ "name": value.get("name").as_str().unwrap_or_default() });
    for field in ALL.into_iter().filter(|field| !value.get(field).is_null()) {
        let at = AttributePath::root().attribute(field);
        let mut texts = BTreeMap::new();
        match value.get(field).as_map() {
            None => unknown.push(at),
            Some(map) => {
                let is_set = |(key, text): &(&String, &Value)| !text.is_null() && *key != DRAINING;
                for (key, text) in map.iter().filter(is_set) {
                    match text.as_str() {
                        Some(text) => drop(texts.insert(key, text)),
                        None => unknown.push(at.clone().key(key)),
                    }
                }
            }
        }
        metadata[field] = json!(texts);
    }
    metadata
}

/// Adds a drain's note to an object as a state knows it: an apply takes it away, whoever wrote it.
pub(super) fn with_note(mut object: Json, state: &Value) -> Json {
    if let Some(since) = state.get(ANNOTATIONS).get(DRAINING).as_str() {
        object["metadata"][ANNOTATIONS][DRAINING] = json!(since);
    }
    object
}

/// Reads an object's metadata: what the state has, or all that people wrote. A pool that drains is always seen to.
pub(super) fn read(prior: &Value, live: &DynamicObject, scope: Scope) -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    for (field, theirs) in [(ANNOTATIONS, live.annotations()), (LABELS, live.labels())] {
        let own = prior.get(field).as_map();
        let is_own = |key: &str| match scope {
            _ if field == ANNOTATIONS && key == DRAINING => true,
            Scope::Known => own.is_some_and(|own| own.get(key).is_some_and(|text| !text.is_null())),
            Scope::All => is_users(key),
        };
        // what is set to nothing is known to be nothing
        let unset = own.into_iter().flatten().filter(|(_, text)| text.is_null());
        let mut kept: BTreeMap<String, Value> = unset.map(|(key, _)| (key.clone(), Value::Null)).collect();
        let there = theirs.iter().filter(|(key, _)| is_own(key));
        kept.extend(there.map(|(key, text)| (key.clone(), Value::from(text.as_str()))));
        if own.is_some() || !kept.is_empty() {
            all.push((field, Value::object(kept)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_server_would_refuse_is_shown_at_its_key() {
        let labels = Value::object([("team", "a b"), ("owner", "platform"), ("-x", "1")]);
        let annotations =
            Value::object([("kubernetes.io/description", "what it is for"), ("a/b/c", "1"), ("Example.com/note", "1")]);
        let found = check(&Value::object([("name", "a")]).with(LABELS, labels).with(ANNOTATIONS, annotations));
        let paths: Vec<String> = found.iter().map(|one| one.path.to_string()).collect();
        assert_eq!(paths, [r#"annotations["a/b/c"]"#, r#"labels["-x"]"#, r#"labels["team"]"#]);
    }

    #[test]
    fn labels_and_annotations_reach_the_api_and_those_of_others_stay_out_of_state() {
        let own = Value::object([("name", "a")])
            .with(LABELS, Value::object([("team", "x")]))
            .with(ANNOTATIONS, Value::object([("karp.sh/consolidation-floor", "30%")]));
        let mut metadata = written(&own, &mut Vec::new());
        assert_eq!(
            metadata,
            json!({
                "name": "a", "labels": { "team": "x" }, "annotations": { "karp.sh/consolidation-floor": "30%" },
            })
        );
        metadata["labels"]["theirs"] = json!("x");
        metadata["labels"]["helm.sh/chart"] = json!("x");
        metadata["annotations"]["theirs"] = json!("x");
        let object = json!({ "apiVersion": "v1", "kind": "A", "metadata": metadata });
        let live: DynamicObject = serde_json::from_value(object).expect("an object");
        let known = |field| own.get(field).clone();
        assert_eq!(read(&own, &live, Scope::Known), [(ANNOTATIONS, known(ANNOTATIONS)), (LABELS, known(LABELS))]);
        let bare = Value::object([("name", "a")]);
        assert!(read(&bare, &live, Scope::Known).is_empty());
        // a value that a variable left out, and one that is not known yet
        let open = bare.clone().with(LABELS, Value::object([("team", Value::from("x")), ("owner", Value::Null)]));
        assert_eq!(written(&open, &mut Vec::new())["labels"], json!({ "team": "x" }));
        assert_eq!(read(&open, &live, Scope::Known), [(LABELS, open.get(LABELS).clone())]);
        let theirs = bare.clone().with(LABELS, Value::object([("team", Value::from("x")), ("theirs", Value::Null)]));
        assert_eq!(read(&theirs, &live, Scope::Known), [(LABELS, theirs.get(LABELS).clone())], "others may set it");
        let mut unknown = Vec::new();
        written(&bare.clone().with(LABELS, Value::object([("owner", Value::Unknown)])), &mut unknown);
        assert_eq!(unknown, [AttributePath::root().attribute(LABELS).key("owner")]);
        let labels = Value::object([("team", "x"), ("theirs", "x")]);
        assert_eq!(read(&bare, &live, Scope::All)[1], (LABELS, labels), "an import leaves out what tools note");
    }

    #[test]
    fn an_apply_takes_a_drains_note_away_and_never_writes_it() {
        let notes = Value::object([("team", "x"), (DRAINING, "2026-01-01T00:00:00Z")]);
        let state = Value::object([("name", "a")]).with(ANNOTATIONS, notes);
        let object = json!({ "metadata": written(&state, &mut Vec::new()) });
        assert_eq!(object["metadata"][ANNOTATIONS], json!({ "team": "x" }));
        let before = with_note(object.clone(), &state);
        assert_eq!(before["metadata"][ANNOTATIONS], json!({ "team": "x", DRAINING: "2026-01-01T00:00:00Z" }));
        assert_eq!(with_note(object.clone(), &Value::object([("name", "a")])), object);
    }
}

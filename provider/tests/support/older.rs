//! States as other versions of the provider wrote them.

use serde_json::{Value, json};

use crate::tofu::Run;

/// A state as an older version wrote it: attributes that came later are not there (those that say nothing today may be such), and one that
/// was taken away since is.
pub fn by_an_older_version(state: &str) -> String {
    changed(state, |instance| {
        let attributes = instance["attributes"].as_object_mut().unwrap();
        attributes.retain(|_, value| !value.is_null());
        attributes.insert("taken_away_since".to_owned(), json!("x"));
    })
}

/// Asserts that a plan refused a newer version's state, resource by resource.
pub fn assert_refused(told: &Run) {
    assert_eq!(told.code, 1, "{}", told.text);
    let errors = told.errors();
    assert!(!errors.is_empty());
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("newer") && text.contains("karp_"), "{text}");
    }
}

/// A state as a version of karp wrote it that is newer than this one.
pub fn by_a_newer_version(state: &str) -> String {
    changed(state, |instance| instance["schema_version"] = json!(99))
}

/// A state in which each instance of a karp resource is changed, newer than the state that it was made of.
pub fn changed(state: &str, change: impl Fn(&mut Value)) -> String {
    let mut state: Value = serde_json::from_str(state).unwrap();
    state["serial"] = json!(state["serial"].as_u64().unwrap() + 1);
    for resource in state["resources"].as_array_mut().unwrap() {
        let is_ours = resource["type"].as_str().unwrap().starts_with("karp_") && resource["mode"] == "managed";
        let instances = resource["instances"].as_array_mut().unwrap();
        instances.iter_mut().filter(|_| is_ours).for_each(&change);
    }
    state.to_string()
}

//! Who owns which fields of an object, as `metadata.managedFields` tells it, and how fields change hands.
//!
//! A server-side apply takes away what its manager applied before and does not send any more, but only what no other manager owns too. So
//! fields are made over first, in a write that changes nothing else, and the apply that follows takes them away together with all that it
//! changes: no rule of the API meets an object that is half changed. `kubectl apply --server-side` makes over what older versions of it
//! wrote in the same way.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::{Map, Value as Json};

use crate::FieldConflict;
use crate::apply::{Force, Manager};

/// Stands for an object itself beside its fields.
const ITSELF: &str = ".";

/// A set of fields in the form of `fieldsV1`: `f:` and a name for each, which holds the fields within. A list is one field, as it is where
/// the API calls lists atomic.
pub type Fields = Map<String, Json>;

/// What it takes to make fields a manager's own.
#[derive(Debug, PartialEq)]
pub enum Claim {
    /// Nothing: they are already.
    Settled,
    /// Others own fields that would be taken away, and the manager may not force it.
    Refused(Vec<FieldConflict>),
    /// The object gets these entries.
    Entries(Vec<ManagedFieldsEntry>),
}

/// Returns the fields that an object sets.
pub fn set(object: &Json) -> Fields {
    let Some(object) = object.as_object() else { return Fields::new() };
    let field = |(name, value): (&String, &Json)| (key(name), Json::Object(set(value)));
    object.iter().map(field).chain([itself()]).collect()
}

/// Returns the fields that an object had before and has no more, of those that are live.
pub fn dropped(before: &Json, after: Option<&Json>, live: &Json) -> Fields {
    let (Some(before), Some(live)) = (before.as_object(), live.as_object()) else { return Fields::new() };
    if after.is_some_and(|after| !after.is_object()) {
        return Fields::new();
    }
    let mut dropped: Fields = after.is_none().then(itself).into_iter().collect();
    for (name, before) in before {
        let Some(live) = live.get(name) else { continue };
        let after = after.and_then(|after| after.get(name));
        let within = self::dropped(before, after, live);
        if after.is_none() || !within.is_empty() {
            dropped.insert(key(name), Json::Object(within));
        }
    }
    dropped
}

/// Makes what is dropped the manager's own, for an apply in this version of the API to take away. Where the manager forces, nobody else keeps
/// what is sent either: a field with two owners would be in conflict again at its next change.
pub fn claim(
    entries: &[ManagedFieldsEntry],
    manager: Manager,
    version: &str,
    dropped: &Fields,
    sent: &Fields,
) -> Claim {
    let mut own = values(dropped);
    let mut conflicts = Vec::new();
    let mut claimed = entries.to_vec();
    for entry in claimed.iter_mut().filter(|entry| entry.subresource.is_none() && !is_applied(entry, manager)) {
        let Some(Json::Object(theirs)) = entry.fields_v1.as_mut().map(|fields| &mut fields.0) else { continue };
        let taken = take(theirs, dropped);
        let owner = entry.manager.clone().unwrap_or_default();
        if owner != manager.name {
            let conflict = |field| FieldConflict { manager: owner.clone(), field };
            conflicts.extend(names(&taken).into_iter().map(conflict));
        }
        join(&mut own, &taken);
        if manager.force == Force::Yes {
            take(theirs, sent);
        }
    }
    if manager.force == Force::No && !conflicts.is_empty() {
        return Claim::Refused(conflicts);
    }
    claimed.retain(|entry| entry.fields_v1.as_ref().is_none_or(|fields| fields.0 != Json::Object(Fields::new())));
    match claimed.iter_mut().find(|entry| is_applied(entry, manager)).and_then(|entry| entry.fields_v1.as_mut()) {
        _ if own.is_empty() => {}
        Some(FieldsV1(Json::Object(fields))) => join(fields, &own),
        _ => claimed.push(ManagedFieldsEntry {
            api_version: Some(version.to_owned()),
            fields_type: Some("FieldsV1".to_owned()),
            fields_v1: Some(FieldsV1(Json::Object(own))),
            manager: Some(manager.name.to_owned()),
            operation: Some("Apply".to_owned()),
            ..ManagedFieldsEntry::default()
        }),
    }
    if claimed == entries { Claim::Settled } else { Claim::Entries(claimed) }
}

fn key(name: &str) -> String {
    format!("f:{name}")
}

fn itself() -> (String, Json) {
    (ITSELF.to_owned(), Json::Object(Fields::new()))
}

fn is_applied(entry: &ManagedFieldsEntry, manager: Manager) -> bool {
    entry.manager.as_deref() == Some(manager.name) && entry.operation.as_deref() == Some("Apply")
}

/// Each field with those within it; none has any that is not an object.
fn inner(fields: &Fields) -> impl Iterator<Item = (&String, &Fields)> {
    let fields = fields.iter().filter(|(name, _)| *name != ITSELF);
    fields.filter_map(|(name, within)| Some((name, within.as_object()?)))
}

/// Leaves objects themselves out. An apply owns them by their fields.
fn values(fields: &Fields) -> Fields {
    let value = |(name, within): (&String, &Fields)| {
        let values = values(within);
        (within.is_empty() || !values.is_empty()).then(|| (name.clone(), Json::Object(values)))
    };
    inner(fields).filter_map(value).collect()
}

/// Takes fields out of a set and returns those that were in it. An object itself stays as long as something else in it does.
fn take(set: &mut Fields, wanted: &Fields) -> Fields {
    let mut taken = Fields::new();
    for (name, wanted) in inner(wanted) {
        let Some(theirs) = set.get_mut(name).and_then(Json::as_object_mut) else { continue };
        let within = match (theirs.is_empty(), wanted.contains_key(ITSELF)) {
            _ if wanted.is_empty() => Some(Fields::new()),
            // An object of theirs that has no fields.
            (true, true) => Some([itself()].into_iter().collect()),
            (true, false) => None,
            (false, _) => Some(take(theirs, wanted)).filter(|within| !within.is_empty()),
        };
        let Some(within) = within else { continue };
        if wanted.is_empty() || theirs.is_empty() {
            set.remove(name);
        }
        taken.insert(name.clone(), Json::Object(within));
    }
    if wanted.contains_key(ITSELF) && set.len() == 1 && set.remove(ITSELF).is_some() {
        taken.extend([itself()]);
    }
    taken
}

/// Adds fields to a set.
fn join(set: &mut Fields, more: &Fields) {
    for (name, more) in more {
        let Json::Object(within) = set.entry(name).or_insert_with(|| Json::Object(Fields::new())) else { continue };
        if let Some(more) = more.as_object() {
            join(within, more);
        }
    }
}

/// Names the fields of a set that hold values, as `spec.limits.cpu`.
fn names(fields: &Fields) -> Vec<String> {
    let mut names = Vec::new();
    for (key, within) in inner(fields) {
        let name = key.strip_prefix("f:").unwrap_or(key);
        if within.is_empty() {
            names.push(name.to_owned());
        }
        names.extend(self::names(within).into_iter().map(|field| format!("{name}.{field}")));
    }
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const VERSION: &str = "karpenter.sh/v1";

    fn entry(manager: &str, operation: &str, fields: Json) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            api_version: Some(VERSION.to_owned()),
            fields_type: Some("FieldsV1".to_owned()),
            fields_v1: Some(FieldsV1(fields)),
            manager: Some(manager.to_owned()),
            operation: Some(operation.to_owned()),
            ..ManagedFieldsEntry::default()
        }
    }

    fn claimed(entries: &[ManagedFieldsEntry], force: Force, before: &Json, after: &Json) -> Claim {
        // All that was there before is live, and something of others.
        let mut live = before.clone();
        live["spec"]["others"] = json!({ "a": 1 });
        claim(entries, Manager { name: "karp", force }, VERSION, &dropped(before, Some(after), &live), &set(after))
    }

    fn pool() -> Json {
        json!({ "metadata": { "name": "a" }, "spec": { "limits": { "cpu": "1" }, "weight": 1 } })
    }

    fn without(field: &str) -> Json {
        let mut pool = pool();
        pool["spec"].as_object_mut().expect("a spec").remove(field);
        pool
    }

    /// What kubectl writes of it.
    fn kubectl() -> ManagedFieldsEntry {
        let spec = json!({ ".": {}, "f:limits": { ".": {}, "f:cpu": {} }, "f:others": { ".": {}, "f:a": {} }, "f:weight": {} });
        entry("kubectl-create", "Update", json!({ "f:spec": spec }))
    }

    #[test]
    fn only_what_was_known_is_live_and_goes_is_dropped() {
        let before = json!({ "keeps": 1, "goes": [1], "gone": 1, "map": { "keeps": 1, "goes": { "a": 1 } }, "whole": { "a": 1 } });
        let after = json!({ "keeps": 2, "map": { "keeps": 1 }, "new": 1 });
        let live = json!({ "keeps": 1, "goes": [1], "map": { "keeps": 1, "goes": { "a": 1, "theirs": 2 } }, "theirs": 1,
            "whole": { "a": 1 } });
        assert_eq!(
            Json::Object(dropped(&before, Some(&after), &live)),
            json!({ "f:goes": {}, "f:map": { "f:goes": { ".": {}, "f:a": {} } }, "f:whole": { ".": {}, "f:a": {} } })
        );
        assert_eq!(dropped(&after, Some(&after), &live), Fields::new());
        // A list or text in the place of an object is sent, and needs no removal.
        assert_eq!(
            dropped(&json!({ "a": { "b": 1 } }), Some(&json!({ "a": [1] })), &json!({ "a": { "b": 1 } })),
            Fields::new()
        );
    }

    #[test]
    fn what_is_dropped_becomes_the_managers_own_by_force_and_the_rest_of_others_stays() {
        let gone = without("limits");
        let refused = claimed(&[kubectl()], Force::No, &pool(), &gone);
        let conflict = FieldConflict { manager: "kubectl-create".to_owned(), field: "spec.limits.cpu".to_owned() };
        assert_eq!(refused, Claim::Refused(vec![conflict]));
        // The weight is sent, so that nobody else keeps it.
        let left =
            entry("kubectl-create", "Update", json!({ "f:spec": { ".": {}, "f:others": { ".": {}, "f:a": {} } } }));
        let own = entry("karp", "Apply", json!({ "f:spec": { "f:limits": { ".": {}, "f:cpu": {} } } }));
        let entries = vec![left, own];
        assert_eq!(claimed(&[kubectl()], Force::Yes, &pool(), &gone), Claim::Entries(entries.clone()));
        assert_eq!(claimed(&entries, Force::Yes, &pool(), &gone), Claim::Settled);
        assert_eq!(claimed(&entries, Force::No, &pool(), &gone), Claim::Settled);
    }

    #[test]
    fn the_managers_entry_grows_and_one_that_is_empty_goes() {
        let applied = entry("karp", "Apply", json!({ "f:spec": { "f:weight": {} } }));
        let theirs = entry("helm", "Apply", json!({ "f:spec": { "f:limits": { "f:cpu": {} } } }));
        let grown = entry("karp", "Apply", json!({ "f:spec": { "f:limits": { "f:cpu": {} }, "f:weight": {} } }));
        assert_eq!(
            claimed(&[applied.clone(), theirs], Force::Yes, &pool(), &without("limits")),
            Claim::Entries(vec![grown.clone()])
        );
        // What nobody owns, as a webhook adds it, is claimed without force.
        assert_eq!(claimed(&[applied], Force::No, &pool(), &without("limits")), Claim::Entries(vec![grown]));
    }

    #[test]
    fn nothing_is_written_where_the_manager_is_the_only_owner() {
        let limits = json!({ "f:limits": { "f:cpu": {} }, "f:weight": {} });
        let own = [entry("karp", "Apply", json!({ "f:spec": limits }))];
        for force in [Force::No, Force::Yes] {
            assert_eq!(claimed(&own, force, &pool(), &without("limits")), Claim::Settled);
            assert_eq!(claimed(&own, force, &pool(), &pool()), Claim::Settled);
        }
    }

    #[test]
    fn updates_in_the_managers_own_name_are_no_conflict_and_the_status_is_left_alone() {
        let updated = [entry("karp", "Update", json!({ "f:spec": { "f:weight": {} } }))];
        let own = entry("karp", "Apply", json!({ "f:spec": { "f:weight": {} } }));
        let claims = |entries: &[ManagedFieldsEntry]| claimed(entries, Force::No, &pool(), &without("weight"));
        assert_eq!(claims(&updated), Claim::Entries(vec![own.clone()]));
        let status = updated.map(|entry| ManagedFieldsEntry { subresource: Some("status".to_owned()), ..entry });
        let [kept] = status.clone();
        assert_eq!(claims(&status), Claim::Entries(vec![kept, own]));
    }

    #[test]
    fn an_empty_map_of_others_goes_with_the_last_of_its_fields() {
        let theirs =
            entry("kubectl", "Update", json!({ "f:spec": { "f:limits": { ".": {} }, "f:others": { ".": {} } } }));
        let applied = entry("karp", "Apply", json!({ "f:spec": { "f:limits": { "f:cpu": {} } } }));
        let left = entry("kubectl", "Update", json!({ "f:spec": { "f:others": { ".": {} } } }));
        let own = entry("karp", "Apply", json!({ "f:spec": { "f:limits": { ".": {}, "f:cpu": {} } } }));
        assert_eq!(
            claimed(&[theirs, applied], Force::No, &pool(), &without("limits")),
            Claim::Entries(vec![left, own])
        );
    }
}

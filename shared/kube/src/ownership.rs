//! Who owns which fields of an object, as `metadata.managedFields` tells it, and how fields change hands.
//!
//! A server-side apply takes away what its manager applied before and does not send any more, but only what no other manager owns too. So
//! fields are made over first, in a write that changes nothing else, and the apply that follows takes them away together with all that it
//! changes: no rule of the API meets an object that is half changed. `kubectl apply --server-side` makes over what older versions of it
//! wrote in the same way.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::{Map, Value as Json};

use crate::FieldConflict;
use crate::apply::{Force, Manager};

/// Stands for an object itself beside its fields.
const ITSELF: &str = ".";

/// A set of fields in the form of `fieldsV1`: each step holds those within. A step is `f:` and a field's name; of a list whose items are owned
/// by themselves `k:` and the keys of an item, or `v:` and the item. Any other list is one field.
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

/// Returns what all managers own together: it tells which lists have items that are owned by themselves, and by which keys.
pub fn shape(entries: &[ManagedFieldsEntry]) -> Json {
    let mut shape = Fields::new();
    for entry in entries {
        if let Some(FieldsV1(Json::Object(fields))) = &entry.fields_v1 {
            join(&mut shape, fields);
        }
    }
    Json::Object(shape)
}

/// Returns the fields that an object sets.
pub fn set(object: &Json, shape: &Json) -> Fields {
    let Some(steps) = steps(object, shape) else { return Fields::new() };
    let field = |step: String| Some((step.clone(), Json::Object(set(part(object, &step)?, &shape[step.as_str()]))));
    steps.into_iter().filter_map(field).chain([itself()]).collect()
}

/// Returns what has to go of a live object: the fields that it had `before` and has no more, and the items of lists that it does not list.
pub fn gone(before: &Json, after: &Json, live: &Json, shape: &Json) -> Fields {
    let mut gone = dropped(before, Some(after), live, shape);
    join(&mut gone, &surplus(after, live, shape));
    gone
}

/// Returns the fields of a live object that it had `before` and has no more; all of what it had without `after`.
pub fn dropped(before: &Json, after: Option<&Json>, live: &Json, shape: &Json) -> Fields {
    let comparable = alike(before, live) && after.is_none_or(|after| alike(after, live));
    let Some(steps) = steps(live, shape).filter(|_| comparable) else { return Fields::new() };
    let mut dropped: Fields = after.is_none().then(itself).into_iter().collect();
    for step in steps {
        let (Some(before), Some(live)) = (part(before, &step), part(live, &step)) else { continue };
        let after = after.and_then(|after| part(after, &step));
        let within = self::dropped(before, after, live, &shape[step.as_str()]);
        if after.is_none() || !within.is_empty() {
            dropped.insert(step, Json::Object(within));
        }
    }
    dropped
}

/// A list is the object's as a whole, as a map of the configuration is; one that is empty says nothing.
fn surplus(after: &Json, live: &Json, shape: &Json) -> Fields {
    if !alike(after, live) || after.as_array().is_some_and(Vec::is_empty) {
        return Fields::new();
    }
    let mut surplus = Fields::new();
    for step in steps(live, shape).into_iter().flatten() {
        let Some(item) = part(live, &step) else { continue };
        let within = match part(after, &step) {
            Some(after) => Some(self::surplus(after, item, &shape[step.as_str()])).filter(|within| !within.is_empty()),
            None => live.is_array().then(|| set(item, &shape[step.as_str()])),
        };
        surplus.extend(within.map(|within| (step, Json::Object(within))));
    }
    surplus
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
            let conflict = |field: String| FieldConflict {
                manager: owner.clone(),
                field: field.trim_start_matches('.').to_owned(),
            };
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
    if claimed.is_empty() && !entries.is_empty() && own.is_empty() {
        // the API server takes an empty list for one of somebody who knows nothing of owners, and keeps its own
        own = values(sent);
        take(&mut own, &address());
    }
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

/// The fields by which an object is addressed, which nobody owns.
fn address() -> Fields {
    let fields =
        serde_json::json!({ "f:apiVersion": {}, "f:kind": {}, "f:metadata": { "f:name": {}, "f:namespace": {} } });
    fields.as_object().cloned().unwrap_or_default()
}

fn key(name: &str) -> String {
    format!("f:{name}")
}

fn is_item(step: &str) -> bool {
    step.starts_with("k:") || step.starts_with("v:")
}

fn alike(one: &Json, other: &Json) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// Names the parts of a value that are owned by themselves; nothing where it is owned as a whole.
fn steps(value: &Json, shape: &Json) -> Option<BTreeSet<String>> {
    match value {
        Json::Object(fields) => Some(fields.keys().map(|name| key(name)).collect()),
        Json::Array(items) => {
            let owned: Vec<&String> = shape.as_object()?.keys().filter(|step| is_item(step)).collect();
            let first = owned.first()?;
            let there = owned.iter().copied().filter(|step| part(value, step).is_some()).cloned();
            Some(there.chain(items.iter().filter_map(|item| step_like(first, item))).collect())
        }
        _ => None,
    }
}

/// Names an item of a list as another one is named.
fn step_like(other: &str, item: &Json) -> Option<String> {
    let Some(keys) = other.strip_prefix("k:") else { return Some(format!("v:{item}")) };
    let keys: Fields = serde_json::from_str(keys).ok()?;
    let named: Option<Fields> = keys.keys().map(|key| Some((key.clone(), item.get(key)?.clone()))).collect();
    Some(format!("k:{}", Json::Object(named?)))
}

/// Finds the part of a value that a step leads to. A key that an item leaves out has the API's default (a port's protocol).
fn part<'a>(value: &'a Json, step: &str) -> Option<&'a Json> {
    let (kind, name) = step.split_once(':')?;
    if kind == "f" {
        return value.as_object()?.get(name);
    }
    let named: Json = serde_json::from_str(name).ok()?;
    let has = |item: &Json| match named.as_object().filter(|_| kind == "k") {
        Some(keys) => {
            let told = || keys.iter().filter_map(|(key, value)| Some(item.get(key)? == value));
            told().all(|same| same) && told().next().is_some()
        }
        None => *item == named,
    };
    value.as_array()?.iter().find(|item| has(item))
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

/// Leaves objects themselves out, which an apply owns by their fields; items of lists it owns themselves.
fn values(fields: &Fields) -> Fields {
    let value = |(name, within): (&String, &Fields)| {
        let mut values = values(within);
        values.extend((is_item(name) && within.contains_key(ITSELF)).then(itself));
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

/// Names the fields of a set that hold values, as `.spec.limits.cpu`, and whole items of lists, as `.spec.ports[port=80]`.
fn names(fields: &Fields) -> Vec<String> {
    let mut names = Vec::new();
    for (step, within) in inner(fields) {
        let name = named(step);
        if within.is_empty() || (is_item(step) && within.contains_key(ITSELF)) {
            names.push(name);
        } else {
            names.extend(self::names(within).into_iter().map(|field| format!("{name}{field}")));
        }
    }
    names
}

fn named(step: &str) -> String {
    let (kind, name) = step.split_once(':').unwrap_or(("f", step));
    match (kind, serde_json::from_str::<Json>(name)) {
        ("k", Ok(Json::Object(keys))) => {
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        ("v", _) => format!("[={name}]"),
        _ => format!(".{name}"),
    }
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
        let (manager, shape) = (Manager { name: "karp", force }, shape(entries));
        claim(entries, manager, VERSION, &gone(before, after, &live, &shape), &set(after, &shape))
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
        let dropped = |before: &Json, after: &Json, live: &Json| gone(before, after, live, &Json::Null);
        assert_eq!(
            Json::Object(dropped(&before, &after, &live)),
            json!({ "f:goes": {}, "f:map": { "f:goes": { ".": {}, "f:a": {} } }, "f:whole": { ".": {}, "f:a": {} } })
        );
        assert_eq!(dropped(&after, &after, &live), Fields::new());
        // A list or text in the place of an object is sent, and needs no removal.
        assert_eq!(
            dropped(&json!({ "a": { "b": 1 } }), &json!({ "a": [1] }), &json!({ "a": { "b": 1 } })),
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
    fn what_only_another_owned_and_is_sent_becomes_the_managers_own() {
        let theirs = entry("kubectl-create", "Update", json!({ "f:spec": { "f:weight": {} } }));
        let own = entry("karp", "Apply", json!({ "f:spec": { "f:limits": { "f:cpu": {} }, "f:weight": {} } }));
        let Claim::Entries(entries) = claimed(&[theirs], Force::Yes, &pool(), &pool()) else { panic!("it is claimed") };
        assert_eq!(entries, [own], "an empty list would change nothing");
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

    /// A Deployment, cut short, with its environment.
    fn deployment(env: &Json, more: &Json) -> Json {
        let mut container = json!({ "name": "a", "env": env, "ports": [{ "containerPort": 80 }], "args": ["x"] });
        container.as_object_mut().expect("fields").extend(more.as_object().cloned().unwrap_or_default());
        json!({ "spec": { "containers": [container] } })
    }

    /// As kubectl owns it, with the environment's variables, and as the API server has it.
    fn of_kubectl(env: &[&str], live: &Json) -> (ManagedFieldsEntry, Json) {
        let named =
            |name: &str| (format!("k:{{\"name\":\"{name}\"}}"), json!({ ".": {}, "f:name": {}, "f:value": {} }));
        let env: Fields = env.iter().map(|name| named(name)).chain([itself()]).collect();
        let port = json!({ ".": {}, "f:containerPort": {}, "f:protocol": {} });
        let fields = json!({ ".": {}, "f:args": {}, "f:env": env, "f:name": {}, "f:workingDir": {}, "f:ports": {
            ".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": port } });
        let entry =
            entry("kubectl", "Update", json!({ "f:spec": { "f:containers": { "k:{\"name\":\"a\"}": fields } } }));
        let mut live = live.clone();
        live["spec"]["containers"][0]["ports"][0]["protocol"] = json!("TCP");
        (entry, live)
    }

    #[test]
    fn items_of_lists_go_by_their_keys_and_what_others_have_in_one_that_stays_is_left_alone() {
        let one = |name: &str| json!({ "name": name, "value": "1" });
        let before = deployment(&json!([one("stays"), one("goes")]), &Json::Null);
        let after = deployment(&json!([one("stays")]), &Json::Null);
        let live = deployment(&json!([one("stays"), one("goes"), one("theirs")]), &json!({ "workingDir": "/" }));
        let (entry, live) = of_kubectl(&["stays", "goes"], &live);
        let shape = shape(std::slice::from_ref(&entry));
        let item = json!({ ".": {}, "f:name": {}, "f:value": {} });
        let within = |env: Json| json!({ "f:spec": { "f:containers": { "k:{\"name\":\"a\"}": { "f:env": env } } } });
        let gone = gone(&before, &after, &live, &shape);
        // What nobody owns is named as the others are.
        let both = json!({ "k:{\"name\":\"goes\"}": item, "k:{\"name\":\"theirs\"}": item });
        assert_eq!(Json::Object(gone.clone()), within(both.clone()));

        let refused = claim(
            std::slice::from_ref(&entry),
            Manager { name: "karp", force: Force::No },
            "v1",
            &gone,
            &set(&after, &shape),
        );
        let field = "spec.containers[name=\"a\"].env[name=\"goes\"]".to_owned();
        assert_eq!(refused, Claim::Refused(vec![FieldConflict { manager: "kubectl".to_owned(), field }]));

        let forced = claim(&[entry], Manager { name: "karp", force: Force::Yes }, VERSION, &gone, &set(&after, &shape));
        let Claim::Entries(entries) = forced else { panic!("{forced:?}") };
        let fields = |at: usize| entries[at].fields_v1.as_ref().map(|fields| fields.0.clone());
        // The port's protocol is the API's default, which is not sent.
        let ports = json!({ ".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": { ".": {}, "f:protocol": {} } });
        let left = json!({ "k:{\"name\":\"a\"}": { ".": {}, "f:workingDir": {}, "f:ports": ports } });
        assert_eq!(fields(0), Some(json!({ "f:spec": { "f:containers": left } })));
        assert_eq!(fields(1), Some(within(both)));
    }

    #[test]
    fn a_list_that_is_one_field_or_empty_or_not_set_claims_no_items() {
        let live = json!({ "spec": { "atomic": [1, 2], "empty": ["a"], "theirs": ["b"], "own": ["c", "d"] } });
        let owned = json!({ "f:atomic": {}, "f:empty": { "v:\"a\"": {} }, "f:theirs": { "v:\"b\"": {} }, "f:own": { "v:\"c\"": {} } });
        let after = json!({ "spec": { "atomic": [1], "empty": [], "own": ["c"] } });
        let gone = gone(&after, &after, &live, &json!({ "f:spec": owned }));
        assert_eq!(Json::Object(gone.clone()), json!({ "f:spec": { "f:own": { "v:\"d\"": {} } } }));
        assert_eq!(names(&gone), [".spec.own[=\"d\"]"]);
    }
}

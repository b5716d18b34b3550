//! The plan engine's table: schema, prior state, configuration, and what is planned. `"?"` stands for unknown.

use serde_json::{Value as Json, json};

use super::{check, plan, replacements, settle};
use crate::schema::validate::{count, duration, each, length, one_of, whole};
use crate::schema::{Attribute, Schema, Timeouts, Type};
use crate::{Diagnostics, Value};

fn v(json: Json) -> Value {
    match Value::from(json) {
        Value::String(text) if text == "?" => Value::Unknown,
        Value::List(list) => Value::List(list.into_iter().map(unknowns).collect()),
        Value::Map(map) => Value::Map(map.into_iter().map(|(name, value)| (name, unknowns(value))).collect()),
        other => other,
    }
}

fn unknowns(value: Value) -> Value {
    match value {
        Value::String(text) if text == "?" => Value::Unknown,
        Value::List(list) => Value::List(list.into_iter().map(unknowns).collect()),
        Value::Map(map) => Value::Map(map.into_iter().map(|(name, value)| (name, unknowns(value))).collect()),
        other => other,
    }
}

fn same_ignoring_case(a: &Value, b: &Value) -> bool {
    a.as_str().zip(b.as_str()).is_some_and(|(a, b)| a.eq_ignore_ascii_case(b))
}

fn schema() -> Schema {
    let rule = || {
        [
            ("key", Attribute::string().required().semantic_eq(same_ignoring_case)),
            ("weight", Attribute::number().default(1)),
            ("token", Attribute::string().computed().use_state_for_unknown()),
            ("zone", Attribute::string().optional().requires_replace()),
        ]
    };
    Schema::new("A test.")
        .attribute("name", Attribute::string().required().requires_replace().validate(length(1, 8)))
        .attribute("arn", Attribute::string().computed().use_state_for_unknown())
        .attribute("etag", Attribute::string().computed())
        .attribute("size", Attribute::string().optional().semantic_eq(same_ignoring_case))
        .attribute("mode", Attribute::string().default("auto").validate(one_of(["auto", "off"])))
        .attribute("region", Attribute::string().optional().computed().requires_replace())
        .attribute("zones", Attribute::set(Type::String).optional().validate(count(1, 3)).validate(each(length(1, 4))))
        .attribute("rules", Attribute::nested_list(rule()).optional())
        .attribute("by_name", Attribute::nested_map(rule()).optional())
        .attribute("one", Attribute::nested_single(rule()).optional())
        .attribute("any_order", Attribute::nested_set(rule()).optional())
}

/// A full object: what is not written is null.
fn full(json: Json) -> Value {
    if json.is_null() { Value::Null } else { super::conform_object(&schema(), v(json)).unwrap() }
}

fn case(prior: Json, config: Json, expected: Json) -> Vec<String> {
    let (schema, prior, config) = (schema(), full(prior), full(config));
    let planned = plan(&schema, &prior, &config);
    let mut expected = v(expected);
    let names: Vec<String> = schema.attributes.keys().cloned().collect();
    for name in names {
        if expected.as_map().is_some_and(|map| !map.contains_key(&name)) {
            expected.set(name, Value::Null);
        }
    }
    assert_eq!(planned, expected);
    replacements(&schema, &prior, &config, &planned).iter().map(ToString::to_string).collect()
}

#[test]
fn create_fills_defaults_and_leaves_computed_unknown() {
    let replaced = case(
        Json::Null,
        json!({ "name": "a", "rules": [{ "key": "x" }] }),
        json!({ "name": "a", "arn": "?", "etag": "?", "mode": "auto", "region": "?",
                "rules": [{ "key": "x", "weight": 1, "token": "?", "zone": null }] }),
    );
    assert!(replaced.is_empty());
}

const PRIOR: &str = r#"{ "name": "a", "arn": "arn:1", "etag": "e1", "mode": "auto", "region": "r1", "size": "Big",
    "zones": ["z2", "z1"], "rules": [{ "key": "x", "weight": 1, "token": "t1", "zone": null }] }"#;

fn prior() -> Json {
    serde_json::from_str(PRIOR).unwrap()
}

fn canonical_prior_with(changes: &Json) -> Json {
    let mut prior = prior();
    prior["zones"] = json!(["z1", "z2"]);
    for (name, value) in changes.as_object().unwrap() {
        prior[name] = value.clone();
    }
    prior
}

#[test]
fn no_change_keeps_every_computed_value() {
    // other spelling, other order of the set, defaults not written
    let config = json!({ "name": "a", "size": "BIG", "zones": ["z1", "z2"], "rules": [{ "key": "X" }] });
    assert!(case(prior(), config, canonical_prior_with(&json!({}))).is_empty());
}

#[test]
fn an_update_makes_computed_values_unknown_unless_they_keep_state() {
    let config = json!({ "name": "a", "size": "small", "zones": ["z2", "z1"], "rules": [{ "key": "x" }] });
    let replaced = case(prior(), config, canonical_prior_with(&json!({ "size": "small", "etag": "?", "region": "?" })));
    assert!(replaced.is_empty(), "a computed attribute that became unknown must not replace: {replaced:?}");
}

#[test]
fn changing_a_name_replaces() {
    let config = json!({ "name": "b", "size": "Big", "zones": ["z2", "z1"], "rules": [{ "key": "x" }] });
    let replaced = case(prior(), config, canonical_prior_with(&json!({ "name": "b", "etag": "?", "region": "?" })));
    assert_eq!(replaced, ["name"]);
}

#[test]
fn an_unknown_name_replaces_too() {
    let config = json!({ "name": "?", "size": "Big", "zones": ["z2", "z1"], "rules": [{ "key": "x" }] });
    let replaced = case(prior(), config, canonical_prior_with(&json!({ "name": "?", "etag": "?", "region": "?" })));
    assert_eq!(replaced, ["name"]);
}

#[test]
fn nested_rules_work_on_elements() {
    let config = json!({ "name": "a", "size": "Big", "zones": ["z2", "z1"],
        "rules": [{ "key": "x", "zone": "z9" }, { "key": "new", "weight": 5 }] });
    let expected = canonical_prior_with(&json!({ "etag": "?", "region": "?", "rules": [
        { "key": "x", "weight": 1, "token": "t1", "zone": "z9" },
        { "key": "new", "weight": 5, "token": "?", "zone": null },
    ] }));
    assert_eq!(case(prior(), config, expected), ["rules[0].zone"]);
}

#[test]
fn removing_an_optional_value_plans_null() {
    let config = json!({ "name": "a", "zones": ["z2", "z1"], "rules": [{ "key": "x" }] });
    case(prior(), config, canonical_prior_with(&json!({ "size": null, "etag": "?", "region": "?" })));
}

#[test]
fn elements_of_sets_find_their_counterpart() {
    let element = |key: &str, token: &str| json!({ "key": key, "weight": 1, "token": token, "zone": null });
    let prior =
        json!({ "name": "a", "mode": "auto", "region": "r", "any_order": [element("b", "tb"), element("a", "ta")] });
    let config = json!({ "name": "a", "any_order": [{ "key": "c" }, { "key": "A" }] });
    let planned = plan(&schema(), &full(prior), &full(config));
    let expected = Value::canonical_set([v(element("a", "ta")), v(element("c", "?"))]);
    assert_eq!(planned.get("any_order"), &expected);
}

#[test]
fn unknown_collections_stay_unknown() {
    let config = json!({ "name": "a", "rules": "?", "by_name": { "k": "?" }, "one": "?", "zones": "?" });
    case(
        Json::Null,
        config,
        json!({ "name": "a", "arn": "?", "etag": "?", "mode": "auto", "region": "?",
                "rules": "?", "by_name": { "k": "?" }, "one": "?", "zones": "?" }),
    );
}

fn found(schema: &Schema, config: Json) -> Vec<String> {
    let found: Diagnostics = check(schema, &super::conform_object(schema, v(config)).unwrap());
    found.iter().map(|found| format!("{}: {}", found.path, found.detail)).collect()
}

#[test]
fn validators_name_the_attribute_and_pass_over_unknowns() {
    let schema = schema();
    assert!(found(&schema, json!({ "name": "?", "zones": ["?", "z1"], "mode": "?" })).is_empty());
    assert_eq!(
        found(&schema, json!({ "name": "much too long", "zones": [], "mode": "on" })),
        [
            "mode: mode: must be one of \"auto\", \"off\", not \"on\".",
            "name: name: must be 1 to 8 characters long, not \"much too long\".",
            "zones: zones: must have 1 to 3 elements, not 0.",
        ]
    );
    assert_eq!(found(&schema, json!({ "name": "a", "zones": ["long1"] })).len(), 1);
}

#[test]
fn what_only_the_provider_decides_is_not_set_not_even_to_an_unknown() {
    for arn in ["arn", "?"] {
        let told = found(&schema(), json!({ "name": "a", "arn": arn }));
        assert_eq!(told, ["arn: arn: the provider decides it; leave it out."]);
    }
}

#[test]
fn nulls_are_refused_where_nothing_can_be_made_of_them() {
    let rule = |key: Json| json!({ "key": key, "weight": 1 });
    let config = json!({ "name": null, "zones": ["z1", null], "rules": [rule(json!("a")), rule(Json::Null)], "by_name": { "k": null },
                         "one": rule(json!("?")), "any_order": [rule(json!("a")), null] });
    assert_eq!(
        found(&schema(), config),
        [
            "any_order: any_order: an element is null; leave it out.",
            "by_name: by_name: element \"k\" is null; leave it out.",
            "name: name: it is required, and null here.",
            "rules[1].key: key: it is required, and null here.",
            "zones: zones: an element is null; leave it out.",
        ]
    );
    // what is not known may have anything in it
    assert!(found(&schema(), json!({ "name": "a", "rules": ["?"], "by_name": { "k": "?" } })).is_empty());
}

#[test]
fn a_key_that_is_null_stays_in_a_map() {
    let schema = Schema::new("").attribute("labels", Attribute::map(Type::String).optional());
    for (known, answer, settled) in [
        (json!({ "a": "1", "b": null }), json!({ "a": "2" }), json!({ "a": "2", "b": null })),
        (json!({ "b": null }), json!({ "b": "1" }), json!({ "b": "1" })),
        (json!({ "b": null }), json!({}), json!({ "b": null })),
        (json!({ "b": null }), Json::Null, json!({ "b": null })),
        (json!({ "b": "1" }), json!({}), json!({})),
    ] {
        let labels = |labels: &Json| v(json!({ "labels": labels }));
        assert_eq!(settle(&schema, &labels(&known), labels(&answer)).unwrap(), labels(&settled), "{known} {answer}");
    }
}

#[test]
fn a_whole_number_has_no_fraction() {
    let schema = Schema::new("").attribute("weight", Attribute::number().optional().validate(whole(1, 100)));
    for (weight, told) in [
        (json!(1), None),
        (json!(100.0), None),
        (json!(1.5), Some("weight: weight: must be 1 to 100, and whole, not 1.5.")),
        (json!(0), Some("weight: weight: must be 1 to 100, not 0.")),
        (json!(101), Some("weight: weight: must be 1 to 100, not 101.")),
    ] {
        assert_eq!(found(&schema, json!({ "weight": weight })), Vec::from_iter(told), "{weight}");
    }
}

#[test]
fn a_sensitive_value_is_not_told() {
    let secret = || Attribute::string().optional().validate(length(1, 3)).validate(one_of(["a", "b"]));
    let schema = Schema::new("")
        .attribute("token", secret().sensitive())
        .attribute("tokens", Attribute::list(Type::String).optional().sensitive().validate(each(length(1, 3))))
        .attribute("user", Attribute::nested_single([("key", secret())]).optional().sensitive());
    let config = json!({ "token": "hunter2", "tokens": ["hunter2"], "user": { "key": "hunter2" } });
    assert_eq!(
        found(&schema, config),
        [
            "token: token: must be 1 to 3 characters long.",
            "token: token: must be one of \"a\", \"b\".",
            "tokens: tokens: each element must be 1 to 3 characters long.",
            "user.key: key: must be 1 to 3 characters long.",
            "user.key: key: must be one of \"a\", \"b\".",
        ]
    );
}

#[test]
fn rules_over_attributes_wait_for_unknowns() {
    let text = || Attribute::string().optional();
    let two = || Schema::new("").attribute("a", text()).attribute("b", text());
    let cases: [(Schema, Json, usize); 9] = [
        (two().conflicts(["a", "b"]), json!({ "a": "1", "b": "2" }), 1),
        (two().conflicts(["a", "b"]), json!({ "a": "1", "b": "?" }), 0),
        (two().conflicts(["a", "b"]), json!({}), 0),
        (two().exactly_one_of(["a", "b"]), json!({}), 1),
        (two().exactly_one_of(["a", "b"]), json!({ "b": "1" }), 0),
        (two().at_least_one_of(["a", "b"]), json!({}), 1),
        (two().at_least_one_of(["a", "b"]), json!({ "a": "?" }), 0),
        (two().required_together(["a", "b"]), json!({ "a": "1" }), 1),
        (two().required_together(["a", "b"]), json!({ "a": "1", "b": "2" }), 0),
    ];
    for (schema, config, expected) in cases {
        assert_eq!(found(&schema, config.clone()).len(), expected, "{:?} {config}", schema.rules);
    }
    let schema = Schema::new("").attribute("t", Attribute::string().validate(duration()));
    for (good, bad) in [("90s", "90"), ("1h30m", "1 h"), ("0s", ""), ("1.5h", "h")] {
        assert!(found(&schema, json!({ "t": good })).is_empty(), "{good}");
        assert_eq!(found(&schema, json!({ "t": bad })).len(), 1, "{bad:?}");
    }
}

#[test]
fn an_operation_that_may_take_no_time_is_refused() {
    let schema = Schema::new("").timeouts(Timeouts::default());
    let told = |limit: &str| found(&schema, json!({ "timeouts": { "create": limit } }));
    assert!(["1ms", "0.5s", "0h1m", "20m"].iter().all(|limit| told(limit).is_empty()));
    for limit in ["0s", "0m0s", "0.0h", "-5s", ""] {
        let words = ["timeouts.create: create: must be a duration", "longer than none"];
        let told = told(limit);
        assert!(told.len() == 1 && words.iter().all(|word| told[0].contains(word)), "{limit:?}: {told:?}");
    }
}

#[test]
fn answers_are_settled_against_the_plan() {
    let schema = schema();
    let planned =
        full(json!({ "name": "a", "arn": "?", "etag": "?", "mode": "auto", "size": "Big", "zones": ["z1", "z2"],
        "rules": [{ "key": "x", "weight": 1, "token": "?" }] }));
    let answer = v(json!({ "arn": "arn:1", "size": "BIG", "zones": ["z2", "z1"], "by_name": {},
        "rules": [{ "key": "X", "token": "t" }] }));
    let expected = full(json!({ "name": "a", "arn": "arn:1", "mode": "auto", "size": "Big", "zones": ["z1", "z2"],
        "rules": [{ "key": "x", "weight": 1, "token": "t" }] }));
    assert_eq!(settle(&schema, &planned, answer).unwrap(), expected);
}

#[test]
fn what_is_empty_is_null_only_where_the_user_may_leave_it_out() {
    let text = || Attribute::list(Type::String);
    let schema = Schema::new("").attribute("must", text().required()).attribute("may", text().optional());
    let answer = || v(json!({ "must": [], "may": [] }));
    assert_eq!(settle(&schema, &Value::Null, answer()).unwrap(), v(json!({ "must": [], "may": null })));
    let written = v(json!({ "must": ["a"], "may": [] }));
    assert_eq!(settle(&schema, &written, answer()).unwrap(), answer());
}

#[test]
fn answers_outside_the_schema_are_told() {
    let schema = schema();
    let told = |answer: Json| settle(&schema, &Value::Null, v(answer)).unwrap_err().to_string();
    assert!(told(json!({ "surprise": 1 })).contains("\"surprise\""));
    assert!(told(json!({ "rules": [{ "key": 7 }] })).contains("a number instead of a string"));
    assert!(told(json!([])).contains("a list instead of an object"));
}

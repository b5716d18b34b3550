//! The protocol's further features through the in-process stand-in for core, on the example provider `showcase`.

#[allow(dead_code)]
#[path = "../examples/showcase.rs"]
mod showcase;

use serde_json::json;
use showcase::Showcase;
use tfplugin::testing::Core;
use tfplugin::{Moved, Value};

const NOTE: &str = "showcase_note";

struct Desk {
    core: Core,
    dir: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        Self { core: Core::new(Showcase), dir: tempfile::tempdir().unwrap() }
    }

    fn folder(&self) -> String {
        self.dir.path().display().to_string()
    }

    fn config(&self, content: &str) -> Value {
        Value::object([("folder", self.folder().as_str()), ("title", "a"), ("content", content)])
    }

    fn kept(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("a")).unwrap()
    }
}

#[tokio::test]
async fn identity_stands_beside_the_state_and_imports() {
    let desk = Desk::new();
    let made = desk.core.apply(NOTE, &Value::Null, &desk.config("one")).await;
    let folder = desk.folder();
    let expected = Value::object([("folder", folder.as_str()), ("title", "a"), ("scheme", "file")]);
    assert_eq!(made.identity, expected);
    let state = made.expect_state();
    assert_eq!(desk.core.read(NOTE, &state).await.identity, expected);

    let given = |scheme: Value| expected.clone().with("scheme", scheme);
    let imported = desk.core.import_by_identity(NOTE, &given(Value::Null)).await;
    assert_eq!((imported.identity.clone(), imported.expect_state()), (expected.clone(), state.clone()));
    let exact = desk.core.import_by_identity(NOTE, &given(Value::from("file"))).await.expect_state();
    assert_eq!(exact, state);
    let by_id = desk.core.import(NOTE, &format!("{folder}/a")).await;
    assert_eq!((by_id.identity.clone(), by_id.expect_state()), (expected.clone(), state));

    // what was asked for beyond the id must be what is found
    let other = desk.core.import_by_identity(NOTE, &given(Value::from("https"))).await;
    assert!(other.diagnostics.to_string().contains("Another object was found"), "{}", other.diagnostics);
    let incomplete = desk.core.import_by_identity(NOTE, &expected.with("title", Value::Null)).await;
    assert!(incomplete.diagnostics.to_string().contains("The identity needs \"title\""), "{}", incomplete.diagnostics);
}

#[tokio::test]
async fn identities_of_other_versions_are_read_or_refused() {
    let core = Core::new(Showcase);
    let old = core.upgrade_identity(NOTE, 0, &json!({ "folder": "/f", "title": "t", "gone": "x" })).await;
    assert_eq!(old.identity.get("title").as_str(), Some("t"));
    assert_eq!(old.identity.get("scheme"), &Value::Null);
    let none = core.upgrade_identity(NOTE, 0, &serde_json::Value::Null).await;
    assert!(none.diagnostics.is_empty() && none.identity.is_null(), "{}", none.diagnostics);
    let newer = core.upgrade_identity(NOTE, 7, &json!({ "folder": "/f" })).await;
    assert!(newer.diagnostics.to_string().contains("newer provider"), "{}", newer.diagnostics);
}

#[tokio::test]
async fn a_write_only_value_is_used_and_never_kept() {
    let desk = Desk::new();
    let config = |secret: &str, version: i64| {
        desk.config("one").with("secret", secret).with("secret_version", Value::from(version))
    };
    let plan = desk.core.plan(NOTE, &Value::Null, &config("hunter2", 1)).await;
    assert_eq!(plan.planned.get("secret"), &Value::Null);
    let state = desk.core.apply(NOTE, &Value::Null, &config("hunter2", 1)).await.expect_state();
    assert_eq!((state.get("secret"), desk.kept().as_str()), (&Value::Null, "one secret:7"));
    desk.core.assert_settled(NOTE, &state, &config("hunter2", 1)).await;
    // another value alone shows no difference; its version does
    desk.core.assert_settled(NOTE, &state, &config("changed", 1)).await;
    let changed = desk.core.apply(NOTE, &state, &config("changed!", 2)).await.expect_state();
    assert_eq!(changed.get("secret"), &Value::Null);
    assert_eq!(desk.kept(), "one secret:8");

    let old = Core::new(Showcase).before_write_only();
    let found = old.validate(NOTE, &config("hunter2", 1)).await.to_string();
    assert!(found.contains("Write-only attributes are not supported here (at secret)"), "{found}");
    assert!(old.validate(NOTE, &desk.config("one")).await.is_empty());
}

#[tokio::test]
async fn a_deprecated_attribute_says_what_to_use_instead() {
    let desk = Desk::new();
    assert!(desk.core.validate(NOTE, &desk.config("one")).await.is_empty());
    let found = desk.core.validate(NOTE, &desk.config("one").with("author", "me")).await;
    assert!(!found.has_errors(), "{found}");
    let told: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["warning: Deprecated attribute (at author): author: Write it into `content`."]);
}

#[tokio::test]
async fn another_providers_state_is_taken_over() {
    let core = Core::new(Showcase);
    let mut source = Moved {
        provider_address: "registry.opentofu.org/tested/tested".into(),
        type_name: "tested_file".into(),
        schema_version: 0,
        state: json!({ "path": "/tmp/a", "content": "x", "id": "/tmp/a" }),
    };
    let moved = core.take_over(NOTE, &source).await;
    assert_eq!(moved.identity.get("title").as_str(), Some("a"));
    assert_eq!(moved.expect_state().get("id").as_str(), Some("/tmp/a"));
    source.type_name = "tested_folder".into();
    let refused = core.take_over(NOTE, &source).await.diagnostics.to_string();
    assert!(refused.contains("tested_folder of registry.opentofu.org/tested/tested cannot become"), "{refused}");
}

#[tokio::test]
async fn states_of_version_0_are_upgraded() {
    let core = Core::new(Showcase);
    let state = core.upgrade(NOTE, 0, &json!({ "folder": "/f", "name": "t", "content": "c" })).await.expect_state();
    assert_eq!(state.get("title").as_str(), Some("t"));
}

#[tokio::test]
async fn functions_answer_or_point_at_an_argument() {
    let core = Core::new(Showcase);
    let text = |text: &str| Value::from(text);
    let joined = core.call("join", &[text("-"), text("a"), Value::Null, text("b")]).await;
    assert_eq!(joined.unwrap(), text("a-b"));
    assert_eq!(core.call("join", &[text("-")]).await.unwrap(), text(""));
    assert_eq!(core.call("double", &[Value::from(4)]).await.unwrap(), Value::from(8));
    let many = core.call("double", &[Value::from(4), Value::from(5)]).await.unwrap_err();
    assert!(many.text.contains("takes 1 arguments, not 2"), "{many}");
    let empty = core.call("join", &[text("")]).await.unwrap_err();
    assert_eq!((empty.argument, empty.text.as_str()), (Some(0), "The separator is empty."));
    let null = core.call("join", &[Value::Null]).await.unwrap_err();
    assert_eq!((null.argument, null.text.as_str()), (Some(0), "separator must not be null."));
    let none = core.call("join", &[]).await.unwrap_err();
    assert!(none.text.contains("takes 1 arguments, not 0"), "{none}");
}

#[tokio::test]
async fn an_ephemeral_value_is_opened_and_closed() {
    let desk = Desk::new();
    let log = desk.dir.path().join("log").display().to_string();
    let mut open = desk.core.open("showcase_ticket", &Value::object([("log", log.as_str())])).await.unwrap();
    assert_eq!(open.result.get("value").as_str(), Some("s3cret-ticket"));
    let renew_at = open.renew_at.unwrap();
    assert!(desk.core.renew(&mut open).await.is_empty());
    assert!(open.renew_at.is_some_and(|at| at >= renew_at));
    assert!(desk.core.close(open).await.is_empty());
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "opened\nrenewed\nclosed+\n");
    let nowhere = desk.core.open("showcase_ticket", &Value::object([("log", "/nowhere/at/all")])).await.unwrap_err();
    assert!(nowhere.to_string().contains("Cannot write the log"), "{nowhere}");
}

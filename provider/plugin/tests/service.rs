//! The protocol service through the in-process stand-in for core: what state keeps when things go wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tfplugin::testing::Core;
use tfplugin::{
    Attribute, Context, Diagnostic, Diagnostics, PlannedChange, Provider, Resource, Schema, Timeouts, Value,
    async_trait,
};

#[derive(Default)]
struct Faulty {
    calls: Arc<AtomicUsize>,
}

impl Provider for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn version(&self) -> &'static str {
        "0.0.0"
    }

    fn schema(&self) -> Schema {
        Schema::new("").attribute("region", Attribute::string().optional())
    }

    fn configure(&self, config: Value) -> Diagnostics {
        let mut found = Diagnostics::new();
        if config.get("region").as_str() == Some("nowhere") {
            found.error("region", "No such region", "");
        }
        found
    }

    fn resources(&self) -> Vec<Box<dyn Resource>> {
        vec![Box::new(Thing { calls: self.calls.clone() })]
    }
}

/// Does what its attribute `fault` says.
struct Thing {
    calls: Arc<AtomicUsize>,
}

const THING: &str = "faulty_thing";

#[async_trait]
impl Resource for Thing {
    fn type_name(&self) -> &'static str {
        THING
    }

    fn schema(&self) -> Schema {
        Schema::new("")
            .version(2)
            .attribute("name", Attribute::string().required().requires_replace())
            .attribute("fault", Attribute::string().optional())
            .attribute("id", Attribute::string().computed().use_state_for_unknown())
            .attribute("extra", Attribute::string().computed().never_null())
            .timeouts(Timeouts { create: Duration::from_secs(50), ..Timeouts::default() })
    }

    async fn plan(&self, ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        if change.is_destroy() {
            let mut found = Diagnostics::new();
            if change.prior.get("fault").as_str() == Some("protected") {
                found.error("", "Protected", "Not while it is in use.");
            }
            return found;
        }
        match change.config.get("fault").as_str() {
            Some("plan panics") => panic!("the hook broke"),
            Some("warn") => ctx.warn(Diagnostic::warning("Careful", "This will roll nodes.").at("name")),
            Some("hook") => change.planned.set("extra", "from the hook"),
            _ => {}
        }
        ctx.set_private(b"planned".to_vec());
        Diagnostics::new()
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        assert_eq!(ctx.private(), b"planned");
        let made = planned.clone().with("id", "id-1");
        match planned.get("fault").as_str() {
            Some("fails at once") => return Err(Diagnostic::error("Refused", "No capacity.").into()),
            Some("fails without a reason") => return Err(Diagnostics::new()),
            Some("panics at once") => panic!("nothing made yet"),
            Some("forgets") => return Ok(made),
            Some("breaks its promise") => return Ok(made.with("extra", Value::Null)),
            _ => {}
        }
        let saved =
            if planned.get("fault").as_str() == Some("stray") { made.clone().with("oops", 1) } else { made.clone() };
        ctx.save(saved);
        match planned.get("fault").as_str() {
            Some("fails halfway") => Err(Diagnostic::error("Refused", "Second call failed.").into()),
            Some("panics halfway") => panic!("after the first call"),
            Some("hangs") => {
                ctx.run(std::future::pending::<()>()).await?;
                Ok(made)
            }
            Some("hook") => Ok(made),
            Some("stray") => Ok(made.with("extra", "e").with("surprise", 1)),
            _ => Ok(made.with("extra", "e")),
        }
    }

    async fn read(&self, _ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        match state.get("fault").as_str() {
            Some("gone") => Ok(None),
            Some("unreachable") => Err(Diagnostic::error("Unreachable", "").into()),
            Some("read panics") => panic!("cannot read"),
            _ => Ok(Some(state)),
        }
    }

    async fn update(&self, ctx: &Context, prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        match planned.get("fault").as_str() {
            Some("update fails") => Err(Diagnostic::error("Refused", "").into()),
            Some("update fails halfway") => {
                ctx.save(prior.with("extra", "half"));
                Err(Diagnostic::error("Refused", "").into())
            }
            _ => Ok(planned.with("extra", "updated")),
        }
    }

    async fn delete(&self, _ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        match prior.get("fault").as_str() {
            Some("delete fails without a reason") => Err(Diagnostics::new()),
            Some("delete panics") => panic!("cannot delete"),
            _ => Ok(()),
        }
    }

    fn upgrade(&self, version: i64, mut state: serde_json::Value) -> Result<serde_json::Value, Diagnostics> {
        assert_eq!(version, 1);
        state["name"] = state["title"].take();
        Ok(state)
    }
}

fn config(fault: &str) -> Value {
    Value::object([("name", "a"), ("fault", fault)])
}

async fn create(fault: &str) -> (Core, Value, String) {
    let core = Core::new(Faulty::default());
    let outcome = core.apply(THING, &Value::Null, &config(fault)).await;
    (core, outcome.state, outcome.diagnostics.to_string())
}

#[tokio::test]
async fn a_sound_resource_settles() {
    let core = Core::new(Faulty::default());
    let state = core.apply(THING, &Value::Null, &config("none")).await.expect_state();
    assert_eq!(state.get("extra").as_str(), Some("e"));
    core.assert_settled(THING, &state, &config("none")).await;
    let state = core.apply(THING, &state, &config("other")).await.expect_state();
    assert_eq!((state.get("id").as_str(), state.get("extra").as_str()), (Some("id-1"), Some("updated")));
    assert!(core.destroy(THING, &state).await.expect_state().is_null());
}

#[tokio::test]
async fn a_create_that_fails_keeps_what_exists() {
    for (fault, told, id) in [
        ("fails at once", "No capacity.", None),
        ("fails without a reason", "The operation failed", None),
        ("panics at once", "nothing made yet", None),
        ("fails halfway", "Second call failed.", Some("id-1")),
        ("panics halfway", "after the first call", Some("id-1")),
    ] {
        let (_, state, diagnostics) = create(fault).await;
        assert!(diagnostics.contains(told), "{fault}: {diagnostics}");
        assert_eq!(state.get("id").as_str(), id, "{fault}");
        assert!(state.whole_known(), "{fault}: unknown values must not reach state");
    }
}

#[tokio::test]
async fn a_broken_answer_is_told_at_its_attribute() {
    let (_, state, diagnostics) = create("forgets").await;
    assert!(diagnostics.contains("Unknown value after apply (at extra)"), "{diagnostics}");
    assert_eq!(state.get("id").as_str(), Some("id-1"), "the rest is kept");
    let (_, state, diagnostics) = create("breaks its promise").await;
    assert!(diagnostics.contains("Broken promise after apply (at extra)"), "{diagnostics}");
    assert_eq!(state.get("id").as_str(), Some("id-1"), "the object is kept all the same");
    let (_, state, diagnostics) = create("stray").await;
    assert!(diagnostics.contains("\"surprise\""), "{diagnostics}");
    assert_eq!(state.get("id").as_str(), Some("id-1"), "what was saved is kept");
}

#[tokio::test]
async fn stop_ends_a_wait_and_keeps_what_exists() {
    let core = Arc::new(Core::new(Faulty::default()));
    let running = tokio::spawn({
        let core = core.clone();
        async move { core.apply(THING, &Value::Null, &config("hangs")).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begin = Instant::now();
    core.stop().await;
    let outcome = running.await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(outcome.diagnostics.to_string().contains("interrupted"), "{}", outcome.diagnostics);
    assert_eq!(outcome.state.get("id").as_str(), Some("id-1"));
    // the next run of an attached process configures anew and is not stopped
    assert!(core.configure(&Value::object([("region", "r")])).await.is_empty());
    assert!(core.apply(THING, &Value::Null, &config("none")).await.diagnostics.is_empty());
}

#[tokio::test]
async fn the_users_timeout_ends_a_wait() {
    let core = Core::new(Faulty::default());
    let config = config("hangs").with("timeouts", Value::object([("create", "80ms")]));
    let outcome = core.apply(THING, &Value::Null, &config).await;
    assert!(outcome.diagnostics.to_string().contains("longer than 80ms"), "{}", outcome.diagnostics);
    assert_eq!(outcome.state.get("timeouts").get("create").as_str(), Some("80ms"));
}

#[tokio::test]
async fn updates_and_deletes_that_fail_keep_state() {
    let (core, state, _) = create("none").await;
    for (fault, extra) in [("update fails", "e"), ("update fails halfway", "half")] {
        let outcome = core.apply(THING, &state, &config(fault)).await;
        assert!(outcome.diagnostics.has_errors());
        assert_eq!(outcome.state.get("extra").as_str(), Some(extra), "{fault}");
    }
    for fault in ["delete fails without a reason", "delete panics"] {
        let (core, state, _) = create(fault).await;
        let outcome = core.destroy(THING, &state).await;
        assert!(outcome.diagnostics.has_errors(), "{fault}: silence is not success");
        assert_eq!(outcome.state, state, "{fault}");
    }
}

#[tokio::test]
async fn reads_that_fail_keep_state() {
    let (core, state, _) = create("none").await;
    assert!(core.read(THING, &state.clone().with("fault", "gone")).await.expect_state().is_null());
    for fault in ["unreachable", "read panics"] {
        let state = state.clone().with("fault", fault);
        let outcome = core.read(THING, &state).await;
        assert!(outcome.diagnostics.has_errors(), "{fault}");
        assert_eq!(outcome.state, state, "{fault}");
    }
}

#[tokio::test]
async fn hooks_warn_fill_refuse_and_may_break() {
    let core = Core::new(Faulty::default());
    let plan = core.plan(THING, &Value::Null, &config("warn")).await;
    assert!(
        !plan.diagnostics.has_errors() && plan.diagnostics.to_string().contains("(at name)"),
        "{}",
        plan.diagnostics
    );
    let state = core.apply(THING, &Value::Null, &config("hook")).await.expect_state();
    assert_eq!(state.get("extra").as_str(), Some("from the hook"));
    let plan = core.plan(THING, &Value::Null, &config("plan panics")).await;
    assert!(plan.diagnostics.to_string().contains("the hook broke"), "{}", plan.diagnostics);
    let protected = core.apply(THING, &Value::Null, &config("protected")).await.expect_state();
    assert!(core.destroy(THING, &protected).await.diagnostics.to_string().contains("Not while it is in use."));
}

#[tokio::test]
async fn older_states_are_upgraded_and_newer_refused() {
    let core = Core::new(Faulty::default());
    let old = json!({ "title": "a", "id": "i", "dropped": true });
    let state = core.upgrade(THING, 1, &old).await.expect_state();
    assert_eq!((state.get("name").as_str(), state.get("fault")), (Some("a"), &Value::Null));
    let same = core.upgrade(THING, 2, &json!({ "name": "b", "dropped": [1] })).await.expect_state();
    assert_eq!(same.get("name").as_str(), Some("b"));
    let outcome = core.upgrade(THING, 3, &json!({ "name": "b" })).await;
    assert!(outcome.diagnostics.to_string().contains("newer"), "{}", outcome.diagnostics);
}

#[tokio::test]
async fn what_is_not_offered_is_said_clearly() {
    let core = Core::new(Faulty::default());
    assert!(core.import(THING, "x").await.diagnostics.to_string().contains("Import is not supported"));
    let found = core.configure(&Value::object([("region", "nowhere")])).await;
    assert!(found.to_string().contains("(at region)"), "{found}");
}

//! The protocol's further features under real OpenTofu, on the example providers. Skipped, with a line that says so, where `tofu` is not
//! built.

mod stand;

use stand::{Stand, text};

const NOTE: &str = "resource \"showcase_note\" \"a\" {\n  folder = \"DIR\"\n  title = \"a\"\n  content = \"one\"\n}\n";

fn read(stand: &Stand, name: &str) -> String {
    std::fs::read_to_string(stand.path(name)).unwrap_or_default()
}

#[test]
fn a_function_is_called_in_a_plan() {
    let config = "output \"joined\" {\n  value = provider::showcase::join(\"-\", \"a\", \"b\")\n}\n";
    for stand in Stand::of_each(config) {
        stand.run(&["apply", "-auto-approve"]);
        assert_eq!(stand.run(&["output", "-raw", "joined"]).trim(), "a-b");
        stand.assert_plan_is_empty();
        stand.write(&config.replace("\"-\"", "\"\""));
        let output = stand.output(&["plan"]);
        assert!(text(&output).contains("The separator is empty."), "{}", text(&output));
    }
}

#[test]
fn a_promise_decides_an_expression_at_plan() {
    // the url is unknown, but never null: the second resource is planned all the same
    let config = format!(
        "{NOTE}resource \"showcase_note\" \"b\" {{\n  count = showcase_note.a.url == null ? 0 : 1\n  folder = \"DIR\"\n  title = \"b\"\n  \
         content = startswith(showcase_note.a.url, \"file:\") ? \"local\" : \"remote\"\n}}\n"
    );
    for stand in Stand::of_each(&config) {
        let plan = stand.run(&["plan"]);
        assert!(plan.contains("2 to add") && plan.contains("= \"local\""), "{plan}");
        stand.run(&["apply", "-auto-approve"]);
        stand.assert_plan_is_empty();
    }
}

/// Terraform imports by identity since 1.12.
#[test]
fn an_import_by_identity_ends_on_an_empty_plan() {
    let import = "import {\n  to = showcase_note.a\n  identity = {\n    folder = \"DIR\"\n    title = \"a\"\n  }\n}\n";
    for stand in Stand::of_each_from((1, 12), &format!("{NOTE}{import}")) {
        std::fs::write(stand.path("a"), "one secret:0").unwrap();
        let plan = stand.run(&["plan"]);
        assert!(plan.contains("1 to import, 0 to add, 0 to change"), "{plan}");
        stand.run(&["apply", "-auto-approve"]);
        stand.assert_plan_is_empty();
        let state = read(&stand, "terraform.tfstate");
        assert!(state.contains("\"scheme\": \"file\""), "the state holds the whole identity: {state}");
    }
}

#[test]
fn a_write_only_value_reaches_the_provider_but_not_the_state() {
    let secret = "  secret = \"hunter2-hunter2\"\n  secret_version = 1\n}\n";
    for stand in Stand::of_each(&NOTE.replace("}\n", secret)) {
        stand.run(&["apply", "-auto-approve"]);
        assert_eq!(read(&stand, "a"), "one secret:15");
        assert!(!read(&stand, "terraform.tfstate").contains("hunter2"));
        stand.assert_plan_is_empty();
        stand.write(&NOTE.replace("}\n", &secret.replace("hunter2-hunter2", "x").replace("= 1", "= 2")));
        stand.run(&["apply", "-auto-approve"]);
        assert_eq!(read(&stand, "a"), "one secret:1");
        stand.assert_plan_is_empty();
    }
}

#[test]
fn an_ephemeral_value_feeds_a_write_only_attribute() {
    let ticket = "ephemeral \"showcase_ticket\" \"t\" {\n  log = \"DIR/log\"\n}\n";
    let note = NOTE.replace("}\n", "  secret = ephemeral.showcase_ticket.t.value\n  secret_version = 1\n}\n");
    for stand in Stand::of_each(&format!("{ticket}{note}")) {
        stand.run(&["apply", "-auto-approve"]);
        assert_eq!(read(&stand, "a"), "one secret:13");
        let log = read(&stand, "log");
        assert!(log.contains("opened\n") && log.matches("opened").count() == log.matches("closed").count(), "{log}");
        assert!(!read(&stand, "terraform.tfstate").contains("s3cret"));
        stand.assert_plan_is_empty();
    }
}

#[test]
fn an_ephemeral_value_is_renewed_while_something_slow_is_made() {
    let ticket = "ephemeral \"showcase_ticket\" \"t\" {\n  log = \"DIR/log\"\n}\n";
    let slow =
        "resource \"tested_file\" \"slow\" {\n  path = \"DIR/slow\"\n  content = \"x\"\n  pause_seconds = 3\n}\n";
    let note = NOTE.replace(
        "}\n",
        "  secret = ephemeral.showcase_ticket.t.value\n  secret_version = 1\n  depends_on = [tested_file.slow]\n}\n",
    );
    for stand in Stand::of_each(&format!("{ticket}{slow}{note}")) {
        stand.run(&["apply", "-auto-approve"]);
        // It is opened again for the apply. What renewals hand on (`features.rs`) OpenTofu 1.12 does not give the call that closes it.
        let log = read(&stand, "log");
        let (_, of_apply) = log.rsplit_once("opened\n").unwrap();
        let renewed = of_apply.matches("renewed\n").count();
        assert!(renewed >= 2, "{log}");
        assert!(of_apply.starts_with(&format!("{}closed", "renewed\n".repeat(renewed))), "{log}");
    }
}

#[test]
fn core_asks_for_the_schemas_once_and_shows_what_the_provider_warns_of() {
    for stand in Stand::of_each(&NOTE.replace("}\n", "  author = \"me\"\n}\n")) {
        let planned = stand.command(&["plan"]).env("SHOWCASE_CALLS", stand.path("calls")).output().unwrap();
        assert!(planned.status.success() && text(&planned).contains("Write it into `content`."), "{}", text(&planned));
        let calls = read(&stand, "calls");
        let count = |what: &str| calls.lines().filter(|line| *line == what).count();
        assert!(count("started") > 1, "one process alone would be asked in any case: {calls}");
        assert_eq!(count("schemas"), 1, "{calls}");

        stand.run(&["apply", "-auto-approve"]);
        let plan = stand.run(&["plan", "-destroy"]);
        assert!(plan.contains("1 to destroy") && plan.contains("The note is thrown away"), "{plan}");
    }
}

#[test]
fn another_providers_resource_moves_in_without_being_destroyed() {
    let old = "resource \"tested_file\" \"f\" {\n  path = \"DIR/a\"\n  content = \"one\"\n}\n";
    for stand in Stand::of_each(old) {
        stand.run(&["apply", "-auto-approve"]);
        stand.write(&format!("{NOTE}moved {{\n  from = tested_file.f\n  to = showcase_note.a\n}}\n"));
        let plan = stand.run(&["plan"]);
        assert!(
            plan.contains("has moved to") && !plan.contains("to destroy") || plan.contains("0 to destroy"),
            "{plan}"
        );
        stand.run(&["apply", "-auto-approve"]);
        assert_eq!(stand.run(&["state", "list"]).trim(), "showcase_note.a");
        stand.assert_plan_is_empty();
        assert!(stand.dir.path().join("a").exists());
    }
}

#[test]
fn a_state_of_an_older_schema_is_upgraded() {
    for stand in Stand::of_each(NOTE) {
        stand.run(&["apply", "-auto-approve"]);
        let state = read(&stand, "terraform.tfstate");
        assert!(state.contains("\"schema_version\": 1") && state.contains("\"title\": \"a\""), "{state}");
        let mut old: serde_json::Value = serde_json::from_str(&state).unwrap();
        let instance = &mut old["resources"][0]["instances"][0];
        instance["schema_version"] = 0.into();
        renamed(&mut instance["attributes"]);
        // Terraform keeps identities since 1.12.
        let has_identity = instance["identity"].is_object();
        if has_identity {
            assert_eq!(instance["identity_schema_version"], 1);
            instance["identity_schema_version"] = 0.into();
            renamed(&mut instance["identity"]);
        }
        std::fs::write(stand.path("terraform.tfstate"), old.to_string()).unwrap();
        stand.assert_plan_is_empty();

        stand.write(&NOTE.replace("one", "two"));
        stand.run(&["apply", "-auto-approve"]);
        let new: serde_json::Value = serde_json::from_str(&read(&stand, "terraform.tfstate")).unwrap();
        let instance = &new["resources"][0]["instances"][0];
        assert_eq!(instance["schema_version"], 1);
        assert_eq!(instance["attributes"]["title"], "a");
        if has_identity {
            assert_eq!(instance["identity_schema_version"], 1);
            assert_eq!(instance["identity"]["title"], "a");
        }
    }
}

/// Calls the title as version 0 did.
fn renamed(object: &mut serde_json::Value) {
    let fields = object.as_object_mut().unwrap();
    let title = fields.remove("title").unwrap();
    fields.insert("name".into(), title);
}

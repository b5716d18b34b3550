//! What the identity that runs Terraform needs is written down (`docs/guides/permissions.md`), table and policy, for every call that the provider makes.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

const SERVICES: [&str; 5] = ["ec2", "eks", "events", "iam", "sqs"];
/// How operations begin.
const VERBS: [&str; 14] = [
    "add_",
    "attach_",
    "create_",
    "delete_",
    "describe_",
    "detach_",
    "get_",
    "list_",
    "put_",
    "remove_",
    "set_",
    "tag_",
    "untag_",
    "update_",
];

/// Finds the calls of a source: `service:operation`, in lower case and without underscores.
fn calls(source: &str) -> BTreeSet<String> {
    let text: String = source.split_whitespace().collect();
    let mut found = BTreeSet::new();
    for service in SERVICES {
        for client in [format!("{service}."), format!("{service}().")] {
            for (at, _) in text.match_indices(&client) {
                let rest = &text[at + client.len()..];
                let operation = rest.split(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap_or_default();
                let is_call = rest[operation.len()..].starts_with("().");
                if is_call && VERBS.iter().any(|verb| operation.starts_with(verb)) {
                    found.insert(format!("{service}:{}", operation.replace('_', "")));
                }
            }
        }
    }
    found
}

fn all_calls(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all_calls(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.extend(calls(&std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn every_call_is_among_the_permissions() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut made = BTreeSet::new();
    all_calls(&here.join("src"), &mut made);
    assert!(made.len() > 60 && made.contains("iam:createrole") && made.contains("events:deleterule"), "{made:?}");

    let page = std::fs::read_to_string(here.join("../docs/guides/permissions.md")).unwrap();
    let (table, rest) = page.split_once("```json\n").unwrap();
    let policy: Value = serde_json::from_str(rest.split("\n```").next().unwrap()).unwrap();
    let mut allowed = BTreeSet::new();
    for statement in policy["Statement"].as_array().unwrap() {
        let one = statement["Action"].as_str().map(str::to_ascii_lowercase);
        let many = statement["Action"].as_array().into_iter().flatten();
        allowed.extend(one.into_iter().chain(many.map(|action| action.as_str().unwrap().to_ascii_lowercase())));
    }
    let missing: Vec<&String> = made.difference(&allowed).collect();
    assert!(missing.is_empty(), "the policy does not allow {missing:?}");
    let named = table.to_ascii_lowercase();
    let missing: Vec<&String> = allowed.iter().filter(|action| !named.contains(&format!("`{action}`"))).collect();
    assert!(missing.is_empty(), "the table does not tell of {missing:?}");
}

#[test]
fn calls_are_found_in_a_source() {
    let source = "let x = aws.iam()\n    .get_role()\n    .role_name(n); events.iter().next(); aws.sqs().tag_queue().x; iam.config();";
    assert_eq!(calls(source), BTreeSet::from(["iam:getrole".to_owned(), "sqs:tagqueue".to_owned()]));
}

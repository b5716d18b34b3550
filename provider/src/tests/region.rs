//! An object's own region: when it replaces, where it is looked for, how an import names it.

use serde_json::json;
use tfplugin::Value;
use tfplugin::testing::Core;

use super::moved::{configured, imported};
use crate::provider::Karp;

const OWN: &str = "eu-west-1";
const OTHER: &str = "us-west-2";

/// A queue in a region, with what the user wrote of it.
fn queue(core: &Core, lives: &str, written: Option<&str>) -> Value {
    let url = format!("https://sqs.{lives}.amazonaws.com/111122223333/q");
    let state = Value::from(json!({
        "id": url, "url": url, "arn": format!("arn:aws:sqs:{lives}:111122223333:q"), "cluster_name": "prod", "name": "q",
        "message_retention_seconds": 300, "events": ["spot"], "rules": { "spot": "q-SpotInterruption" }, "policy": "{}",
        "tags_all": { "karp.sh/cluster": "prod" },
    }));
    core.config("karp_interruption_queue", &state.with("region", written))
}

/// What a plan replaces the queue for when the user writes this region, or none.
async fn replaced(core: &Core, state: &Value, wanted: Option<&str>) -> Vec<String> {
    let config = Value::from(json!({ "name": "q", "events": ["spot"] })).with("region", wanted);
    let plan = core.plan("karp_interruption_queue", state, &config).await;
    assert!(!plan.diagnostics.has_errors(), "{}", plan.diagnostics);
    let replaced = !plan.requires_replace.is_empty();
    assert_eq!(plan.planned.get("arn").is_known(), !replaced, "a new queue has another ARN");
    plan.requires_replace.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn only_another_region_than_the_objects_replaces_it() {
    let core = configured(json!({})).await;
    for (lives, written, wanted, replaces) in [
        (OWN, None, None, false),
        (OWN, None, Some(OWN), false),
        (OWN, Some(OWN), None, false),
        (OWN, None, Some(OTHER), true),
        (OTHER, Some(OTHER), Some(OTHER), false),
        (OTHER, Some(OTHER), None, true),
        (OTHER, Some(OTHER), Some(OWN), true),
    ] {
        let found = replaced(&core, &queue(&core, lives, written), wanted).await;
        let expected: &[&str] = if replaces { &["region"] } else { &[] };
        assert_eq!(found, expected, "lives in {lives}, had {written:?}, wants {wanted:?}");
    }
}

#[tokio::test]
async fn tags_without_an_arn_live_where_the_provider_looks() {
    let core = configured(json!({})).await;
    let state = imported("karp_discovery_tags", "k,prod,subnet-1").await;
    let state = core.config("karp_discovery_tags", &state);
    for (wanted, replaces) in [(OWN, false), (OTHER, true)] {
        let config =
            Value::from(json!({ "key": "k", "value": "prod", "resource_ids": ["subnet-1"], "region": wanted }));
        let plan = core.plan("karp_discovery_tags", &state, &config).await;
        assert_eq!(!plan.requires_replace.is_empty(), replaces, "{wanted}: {plan:?}");
    }
}

#[tokio::test]
async fn an_object_in_another_region_wants_it_written_down() {
    let core = configured(json!({})).await;
    let told = core.read("karp_interruption_queue", &queue(&core, OTHER, None)).await.diagnostics.to_string();
    assert!(told.contains("Wrong region") && told.contains("set `region = \"us-west-2\"` on the resource"), "{told}");
}

#[tokio::test]
async fn an_import_names_the_region_behind_the_id() {
    const ROLE: &str = "arn:aws:iam::111122223333:role/at@home";
    let entry = format!("prod:{ROLE}");
    let url = "https://sqs.us-west-2.amazonaws.com/111122223333/q";
    for (kind, id, region) in [
        ("karp_access_entry", entry.clone(), None),
        ("karp_access_entry", format!("{entry}@{OTHER}"), Some(OTHER)),
        ("karp_fargate_profile", format!("prod:controller@{OTHER}"), Some(OTHER)),
        ("karp_pod_identity_association", format!("prod,a-0123@{OTHER}"), Some(OTHER)),
        ("karp_discovery_tags", format!("k,a@b,subnet-1@{OTHER}"), Some(OTHER)),
        ("karp_interruption_queue", url.to_owned(), Some(OTHER)),
        ("karp_interruption_queue", format!("http://127.0.0.1:4566/q@{OTHER}"), Some(OTHER)),
        ("karp_interruption_queue", "http://127.0.0.1:4566/q".to_owned(), None),
    ] {
        let state = imported(kind, &id).await;
        assert_eq!(state.get("region").as_str(), region, "{kind} {id}");
        assert!(!state.get("id").as_str().unwrap().ends_with(OTHER), "the region is no part of the id: {state:?}");
    }
    assert_eq!(imported("karp_access_entry", &entry).await.get("principal_arn").as_str(), Some(ROLE));

    let schema = Core::new(Karp::default());
    let identity = schema.schema("karp_access_entry").identity.clone().unwrap();
    let given = |region: Option<&str>| {
        Value::object([("cluster_name", "prod"), ("principal_arn", ROLE)]).with("region", region)
    };
    assert_eq!(identity.import_id(&given(Some(OTHER))).unwrap(), format!("{entry}@{OTHER}"));
    assert_eq!(identity.import_id(&given(None)).unwrap(), entry);
}

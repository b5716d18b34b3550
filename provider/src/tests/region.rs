//! An object's own region: when it replaces, where it is looked for, how an import names it.

use serde_json::{Value as Json, json};
use tfplugin::Value;
use tfplugin::testing::{Core, Outcome};

use super::moved::{configured, imported, serve};
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

/// IAM has no regions: where the state does not say it, the issuer tells that of the cluster.
#[tokio::test]
async fn an_identity_provider_goes_by_the_region_of_its_cluster() {
    let core = configured(json!({})).await;
    for (lives, written, wanted, replaces) in [
        (OWN, None, Some(OWN), false),
        (OTHER, None, Some(OTHER), false),
        (OTHER, None, None, false),
        (OWN, Some(OWN), None, false),
        (OWN, None, Some(OTHER), true),
        (OTHER, None, Some(OWN), true),
        (OTHER, Some(OTHER), None, true),
    ] {
        let (arn, issuer) = issuer(lives);
        let state = Value::from(json!({
            "id": arn, "arn": arn, "cluster_name": "prod", "url": issuer, "adopt": true, "adopted": false,
            "audiences": ["sts.amazonaws.com"], "tags_all": { "karp.sh/cluster": "prod" },
        }));
        let state = core.config("karp_oidc_provider", &state.with("region", written));
        let config = Value::object([("cluster_name", "prod")]).with("region", wanted);
        let plan = core.plan("karp_oidc_provider", &state, &config).await;
        let what = format!("lives in {lives}, had {written:?}, wants {wanted:?}: {plan:?}");
        assert!(!plan.diagnostics.has_errors() && plan.requires_replace.is_empty() != replaces, "{what}");
        assert_eq!(plan.planned.get("url").is_known(), !replaces, "{what}");
    }
}

/// The ARN and the issuer of a cluster's identity provider.
fn issuer(region: &str) -> (String, String) {
    let issuer = format!("oidc.eks.{region}.amazonaws.com/id/EXAMPLE");
    (format!("arn:aws:iam::{ACCOUNT}:oidc-provider/{issuer}"), format!("https://{issuer}"))
}

#[tokio::test]
async fn tags_of_which_nothing_is_known_live_where_the_provider_looks() {
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

const TAGS: &str = "karp_discovery_tags";
const ACCOUNT: &str = "111122223333";

/// A provider block for a region of an account in which a subnet has the tag, or has not. A call that tags is answered by what is no answer.
async fn account(id: &'static str, region: &str, tagged: bool) -> Core {
    let host = serve(move |request| {
        if request.contains("Action=GetCallerIdentity") {
            return format!(
                "<GetCallerIdentityResponse><GetCallerIdentityResult><Arn>arn:aws:iam::{id}:user/a</Arn><Account>{id}</Account>\
                 </GetCallerIdentityResult></GetCallerIdentityResponse>"
            );
        }
        if request.contains("Action=CreateTags") {
            return "<ErrorResponse/>".to_owned();
        }
        assert!(request.contains("Action=DescribeTags"), "{request}");
        let tag = "<item><resourceId>subnet-1</resourceId><resourceType>subnet</resourceType><key>k</key><value>prod</value></item>";
        let tags = if tagged { tag } else { "" };
        format!("<DescribeTagsResponse><tagSet>{tags}</tagSet></DescribeTagsResponse>")
    });
    configured(json!({ "region": region, "endpoints": { "ec2": host.clone(), "sts": host } })).await
}

fn place(outcome: &Outcome) -> Json {
    serde_json::from_slice(&outcome.private).unwrap()
}

/// They have no ARN: where they are is kept beside the state.
#[tokio::test]
async fn tags_of_another_region_or_account_are_not_forgotten() {
    let core = account(ACCOUNT, OWN, true).await;
    let state = core.config(TAGS, &imported(TAGS, "k,prod,subnet-1").await);
    let learnt = core.read(TAGS, &state).await;
    assert_eq!(place(&learnt), json!({ "region": OWN, "account_id": ACCOUNT }), "also a state of an earlier version");
    let private = learnt.private.clone();
    assert_eq!(learnt.expect_state(), state);

    let core = account("444455556666", OWN, false).await;
    core.keep(private.clone());
    for outcome in [core.read(TAGS, &state).await, core.destroy(TAGS, &state).await] {
        let told = outcome.diagnostics.to_string();
        assert!(outcome.diagnostics.has_errors() && outcome.state == state, "{told}");
        assert!(told.contains("Wrong region or account"), "{told}");
        assert!(told.contains(ACCOUNT) && told.contains("444455556666"), "{told}");
    }

    let core = account(ACCOUNT, OTHER, false).await;
    core.keep(private.clone());
    let refused = core.read(TAGS, &state).await;
    let told = refused.diagnostics.to_string();
    assert!(refused.diagnostics.has_errors() && refused.state == state, "{told}");
    assert!(told.contains("Wrong region") && told.contains("set `region = \"eu-west-1\"` on the resource"), "{told}");
    // a plan without a refresh goes by where they are, too
    for (wanted, replaces) in [(OWN, false), (OTHER, true)] {
        let config =
            Value::from(json!({ "key": "k", "value": "prod", "resource_ids": ["subnet-1"], "region": wanted }));
        let plan = core.plan(TAGS, &state, &config).await;
        assert_eq!(!plan.requires_replace.is_empty(), replaces, "{wanted}: {plan:?}");
    }

    let core = account(ACCOUNT, OWN, false).await;
    core.keep(private);
    let gone = core.read(TAGS, &state).await;
    assert!(gone.diagnostics.is_empty() && gone.state.is_null(), "{}", gone.diagnostics);
}

#[tokio::test]
async fn tags_that_may_have_been_made_are_in_the_state() {
    let core = account(ACCOUNT, OWN, false).await;
    let config = Value::from(json!({ "key": "k", "value": "prod", "resource_ids": ["subnet-1"] }));
    let failed = core.apply(TAGS, &Value::Null, &config).await;
    assert!(failed.diagnostics.has_errors(), "{}", failed.diagnostics);
    assert_eq!(failed.state.get("resource_ids"), &Value::from(vec!["subnet-1"]), "nobody said that it was not done");
    assert_eq!(place(&failed), json!({ "region": OWN, "account_id": ACCOUNT }));
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
    let (provider, _) = issuer(OTHER);
    for (kind, id, region) in [
        ("karp_access_entry", entry.clone(), None),
        ("karp_access_entry", format!("{entry}@{OTHER}"), Some(OTHER)),
        ("karp_fargate_profile", format!("prod:controller@{OTHER}"), Some(OTHER)),
        ("karp_pod_identity_association", format!("prod,a-0123@{OTHER}"), Some(OTHER)),
        ("karp_oidc_provider", provider.clone(), None),
        ("karp_oidc_provider", format!("{provider}@{OTHER}"), Some(OTHER)),
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

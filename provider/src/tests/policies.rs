//! What a refresh of the controller's policies asks of IAM.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tfplugin::Value;
use tfplugin::testing::Core;

use super::moved::{configured, serve};

const HOME: &str = "arn:aws:iam::111122223333:policy/karp/";
const KIND: &str = "karp_controller_policy";
/// How many policies each resource is kept in.
const PARTS: usize = 3;

/// How often each action was called.
type Calls = Arc<Mutex<BTreeMap<String, usize>>>;

/// IAM with policies `a-1` to `d-3`, version 2 of each; two of them are not as they should be: the list does not show `b-3` yet, and `c-2` is
/// gone.
fn iam(request: &str, calls: &Calls) -> String {
    let body = request.split("\r\n\r\n").nth(1).unwrap_or_default();
    let field = |name: &str| {
        let value = body.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default();
        value.replace("%3A", ":").replace("%2F", "/")
    };
    let action = field("Action");
    *calls.lock().unwrap().entry(action.clone()).or_default() += 1;
    let arn = field("PolicyArn");
    let policy = |name: &str, tags: &str| {
        format!(
            "<PolicyName>{name}</PolicyName><Arn>{HOME}{name}</Arn><Path>/karp/</Path><DefaultVersionId>v2</DefaultVersionId>{tags}"
        )
    };
    let name = arn.rsplit('/').next().unwrap_or_default();
    let inner = match action.as_str() {
        _ if name == "c-2" => {
            return "<ErrorResponse><Error><Code>NoSuchEntity</Code><Message>gone</Message></Error></ErrorResponse>"
                .into();
        }
        "GetPolicy" => {
            let tags = "<Tags><member><Key>own</Key><Value>1</Value></member></Tags>";
            format!("<Policy>{}</Policy>", policy(name, tags))
        }
        "GetPolicyVersion" => {
            assert_eq!(field("VersionId"), "v2");
            let document = json!({ "Version": "2012-10-17", "Statement": [{ "Sid": name }] }).to_string();
            let document = document.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
            format!("<PolicyVersion><VersionId>v2</VersionId><Document>{document}</Document></PolicyVersion>")
        }
        "ListPolicies" => {
            let names = "abcd".chars().flat_map(|of| (1..=PARTS).map(move |part| format!("{of}-{part}")));
            let shown = names.filter(|name| !["b-3", "c-2"].contains(&name.as_str()));
            let all: String = shown.map(|name| format!("<member>{}</member>", policy(&name, ""))).collect();
            format!("<IsTruncated>false</IsTruncated><Policies>{all}</Policies>")
        }
        other => panic!("{other}"),
    };
    format!("<{action}Response><{action}Result>{inner}</{action}Result></{action}Response>")
}

fn state(core: &Core, name: char) -> Value {
    let arns = (1..=PARTS).map(|part| (format!("{name}-{part}"), format!("{HOME}{name}-{part}")));
    let arns: BTreeMap<String, String> = arns.collect();
    let state = Value::from(json!({
        "id": name.to_string(), "name": name.to_string(), "arn": arns.values().next(), "arns": arns, "path": "/karp/",
        "cluster_name": "prod", "instance_profiles": "controller", "policy_json": "{}", "policy_size": 2, "tags_all": { "own": "1" },
    }));
    core.config(KIND, &state)
}

#[tokio::test]
async fn the_parts_of_policies_are_listed_together_and_their_tags_read_once() {
    let calls = Calls::default();
    let counted = Arc::clone(&calls);
    let core = configured(json!({ "endpoints": { "iam": serve(move |request| iam(request, &counted)) } })).await;
    let refresh = async || {
        let reads = "abcd".chars().map(|name| {
            let (core, state) = (&core, state(&core, name));
            async move { (name, core.read(KIND, &state).await.expect_state()) }
        });
        let found = futures::future::join_all(reads).await;
        (found, std::mem::take(&mut *calls.lock().unwrap()))
    };
    let (found, first) = refresh().await;
    for (name, state) in found {
        let expected: Vec<String> = (1..=PARTS).map(|part| format!("{name}-{part}")).collect();
        let expected: Vec<&String> = expected.iter().filter(|name| *name != "c-2").collect();
        let arns = state.get("arns").as_map().unwrap();
        assert_eq!(arns.keys().collect::<Vec<_>>(), expected);
        assert!(arns.iter().all(|(name, arn)| arn.as_str() == Some(&format!("{HOME}{name}"))), "{arns:?}");
        let policy = state.get("policy_json").as_str().unwrap();
        let sids = policy.split("\"Sid\":\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned());
        assert_eq!(sids.collect::<Vec<_>>().iter().collect::<Vec<_>>(), expected, "{policy}");
        assert_eq!(state.get("tags_all"), &Value::object([("own", "1")]));
    }
    // The first of each, and the two that the list does not show.
    assert_eq!((first["GetPolicy"], first["GetPolicyVersion"]), (4 + 2, 4 * PARTS - 1), "{first:?}");
    // How many lists it takes depends on how far apart the questions came; no later one needs another.
    assert!((1..=4).contains(&first["ListPolicies"]), "{first:?}");
    let (_, second) = refresh().await;
    let expected = [("GetPolicy", 4 + 2), ("GetPolicyVersion", 4 * PARTS - 1)];
    assert_eq!(second, expected.map(|(action, count)| (action.to_owned(), count)).into());
}

//! What is written of nodes, claims and pods, and what is not when others write, too.

use std::convert::Infallible;
use std::sync::Mutex;

use http::{Method, Request, Response};
use karp_domain::api::NodeClaimSpec;
use kube::Config;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};

use super::*;

/// An API server with one claim, which others write as often as `rivals` says just before a patch of ours comes.
fn server(rivals: u32) -> (Client, Arc<Mutex<(u32, u32)>>) {
    let state = Arc::new(Mutex::new((rivals, 1_u32)));
    let shared = state.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let shared = shared.clone();
        async move {
            let method = request.method().clone();
            let body = request.into_body().collect_bytes().await.expect("a body");
            let mut state = shared.lock().expect("a state");
            let (rivals, version) = &mut *state;
            let mut code = 200;
            if method == Method::PATCH {
                let patch: Value = serde_json::from_slice(&body).expect("JSON");
                if *rivals > 0 {
                    *rivals -= 1;
                    *version += 1;
                }
                let seen: Option<u32> = patch["metadata"]["resourceVersion"].as_str().and_then(|at| at.parse().ok());
                code = if seen == Some(*version) { 200 } else { 409 };
            }
            let answer = match code {
                200 => json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": { "name": "c", "uid": "u", "resourceVersion": version.to_string() } }),
                _ => {
                    json!({ "kind": "Status", "status": "Failure", "code": code, "reason": "Conflict", "message": "" })
                }
            };
            let response = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, Infallible>(response.expect("a response"))
        }
    });
    (Client::new(service, "default"), state)
}

fn seen() -> NodeClaim {
    let mut claim = NodeClaim::new("c", NodeClaimSpec::default());
    claim.metadata.uid = Some("u".to_owned());
    claim.metadata.resource_version = Some("1".to_owned());
    claim
}

#[tokio::test]
async fn metadata_is_written_against_others_who_write() {
    for rivals in [0, 1, 3] {
        let (client, state) = server(rivals);
        let shown = Mutex::new(Vec::new());
        let change = |known: &ObjectMeta| {
            shown.lock().expect("free").push(known.resource_version.clone().unwrap_or_default());
            Some(json!({ "annotations": { "a": "b" } }))
        };
        assert_eq!(edit_metadata(&client, &seen(), change).await.expect("written"), Outcome::Done);
        let expected: Vec<String> = (1..=rivals + 1).map(|version| version.to_string()).collect();
        assert_eq!(*shown.lock().expect("free"), expected, "each decision is made on what is there");
        assert_eq!(state.lock().expect("free").0, 0);
    }
}

#[test]
fn a_status_takes_away_what_it_says_no_more() {
    let before = json!({ "resources": { "cpu": "8", "gpu": "1" }, "observed": 3, "conditions": [1, 2] });
    let status = json!({ "resources": { "cpu": "4" }, "conditions": [2] });
    let patch = json!({ "resources": { "cpu": "4", "gpu": null }, "observed": null, "conditions": [2] });
    assert_eq!(replacing(Some(&before), &status), patch);
    assert_eq!(replacing(None, &status), status);
}

#[test]
fn load_balancers_leave_a_node_that_goes_and_come_back_to_one_that_stays() {
    let node = |labels: Value, taints: Value| -> Node {
        serde_json::from_value(json!({ "metadata": { "labels": labels }, "spec": { "taints": taints } }))
            .expect("a node")
    };
    let (other, ours) = (json!({ "key": "other", "effect": "NoSchedule" }), json!(disrupted_taint()));
    let label = |value: Value| json!({ (labels::EXCLUDE_FROM_BALANCERS): value });
    let (tainted, retired, over) = (Disruption::Tainted, Disruption::Retired, Disruption::Over);
    let cases = [
        // the label, the taints, what is wanted; the label and the taints that are written
        (json!({}), json!([other]), tainted, None, Some(json!([other, ours]))),
        (json!({}), json!([other]), retired, Some(json!("karpenter")), Some(json!([other, ours]))),
        (json!({}), json!([other, ours]), retired, Some(json!("karpenter")), None),
        (label(json!("karpenter")), json!([ours]), retired, None, None),
        (label(json!("karpenter")), json!([other, ours]), over, Some(Value::Null), Some(json!([other]))),
        (label(json!("karpenter")), json!([other]), over, Some(Value::Null), None),
        // somebody else's, whatever comes and goes
        (label(json!("")), json!([]), retired, None, Some(json!([ours]))),
        (label(json!("")), json!([ours]), over, None, Some(json!([]))),
        (json!({}), json!([other]), over, None, None),
    ];
    for (before, taints, wanted, written, tainted) in cases {
        let patch = disruption(&node(before.clone(), taints.clone()), wanted).unwrap_or_default();
        let part = |path: &str| patch.pointer(path).cloned();
        let label = format!("/metadata/labels/{}", labels::EXCLUDE_FROM_BALANCERS.replace('/', "~1"));
        assert_eq!((part(&label), part("/spec/taints")), (written, tainted), "{before} {taints}");
    }
}

#[tokio::test]
async fn metadata_that_others_always_write_is_an_error() {
    let (client, _) = server(u32::MAX);
    let change = |_: &ObjectMeta| Some(json!({}));
    assert!(
        matches!(edit_metadata(&client, &seen(), change).await, Err(kube::Error::Api(status)) if status.is_conflict())
    );
}

#[tokio::test]
async fn a_decision_may_change_while_it_is_tried() {
    let (client, _) = server(1);
    let change = |known: &ObjectMeta| (known.resource_version.as_deref() == Some("1")).then(|| json!({}));
    assert_eq!(edit_metadata(&client, &seen(), change).await.expect("an answer"), Outcome::Nothing);
}

/// Between a look and what follows from it a StatefulSet may have made another pod of the same name. A real API server must tell them apart: a
/// precondition that is spelled wrong is passed over without a word.
#[tokio::test]
async fn another_pod_of_the_same_name_is_left_alone() {
    let Ok(path) = std::env::var("KARP_TEST_KUBECONFIG") else {
        println!("skipped: KARP_TEST_KUBECONFIG names no cluster (cargo verify starts one)");
        return;
    };
    let read = Kubeconfig::read_from(path).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.expect("a cluster");
    let client = Client::try_from(config).expect("a client");
    let name = format!("twin-{}", std::process::id());
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": name },
        // nobody binds it, so that nothing else ends it
        "spec": { "schedulerName": "nobody", "containers": [{ "name": "c", "image": "pause" }] },
    }))
    .expect("a pod");
    let made = pods.create(&PostParams::default(), &pod).await.expect("it is created");
    let (uid, key) = (made.uid().expect("a UID"), PodKey { namespace: "default".into(), name: name.as_str().into() });
    let other = "00000000-0000-4000-8000-000000000000";

    assert_eq!(
        evict(&client, &key, other).await.expect("an answer").answer,
        Answer::Done,
        "the one that was meant is gone"
    );
    assert_eq!(delete_pod(&client, &key, other, 0).await.expect("an answer"), Outcome::Nothing);
    assert_eq!(nominate(&client, &key, other, "node").await.expect("an answer"), Outcome::Nothing);
    let left = pods.get(&name).await.expect("it is there");
    assert!(left.uid().as_deref() == Some(&*uid) && left.metadata.deletion_timestamp.is_none(), "{left:?}");
    assert_eq!(left.status.and_then(|status| status.nominated_node_name), None);

    assert_eq!(nominate(&client, &key, &uid, "node").await.expect("an answer"), Outcome::Done);
    let left = pods.get(&name).await.expect("it is there");
    assert_eq!(left.status.and_then(|status| status.nominated_node_name).as_deref(), Some("node"));
    assert_eq!(evict(&client, &key, &uid).await.expect("an answer").answer, Answer::Done);
    assert!(pods.get_opt(&name).await.expect("an answer").is_none(), "a pod that no node has goes at once");
}

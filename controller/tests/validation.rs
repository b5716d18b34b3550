//! The real API server against the table that the domain's offline validation is held to: the same verdict on every case.
//!
//! Runs when `KARP_TEST_KUBECONFIG` names a cluster; `cargo verify` starts one.

#[path = "../../shared/domain/tests/cases/mod.rs"]
mod cases;
mod support;

use axum::http::Uri;
use cases::{Case, Table};
use kube::api::{DeleteParams, PostParams};
use kube::core::Request;
use kube::{Client, Error};
use serde_json::{Value, json};
use support::{Turn, client, install, until};

/// Returns where objects of a case's kind live.
fn collection(case: &Case, object: &Value) -> String {
    let plural = case.definition().split('.').next().expect("a definition is called after its plural");
    let version = object["apiVersion"].as_str().expect("an API version");
    let namespace = object["metadata"]["namespace"].as_str();
    let namespace = namespace.map_or_else(String::new, |namespace| format!("namespaces/{namespace}/"));
    format!("/apis/{version}/{namespace}{plural}")
}

/// Sends an object as kubectl does, unknown fields refused; answers the refusal.
async fn send(client: &Client, path: &str, object: &Value, update: bool, dry_run: bool) -> Result<Value, String> {
    let body = serde_json::to_vec(object).expect("plain data");
    let params = PostParams { dry_run, field_manager: None };
    let request = Request::new(path);
    let name = object["metadata"]["name"].as_str().expect("a name");
    let request = if update { request.replace(name, &params, body) } else { request.create(&params, body) };
    let mut request = request.expect("a request");
    let joint = if request.uri().query().is_some() { '&' } else { '?' };
    *request.uri_mut() = format!("{}{joint}fieldValidation=Strict", request.uri()).parse::<Uri>().expect("a path");
    match client.request::<Value>(request).await {
        Ok(written) => Ok(written),
        Err(Error::Api(status)) if matches!(status.code, 400 | 422) => Err(status.message),
        Err(error) => panic!("{path}: {error}"),
    }
}

async fn verdict(client: &Client, table: &Table, case: &Case) -> Result<Value, String> {
    let mut object = table.object(case);
    let path = collection(case, &object);
    let Some(old) = table.before(case) else {
        return send(client, &path, &object, false, true).await;
    };
    let stored = send(client, &path, &old, false, false).await.expect("the object before is accepted");
    object["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
    let verdict = send(client, &path, &object, true, true).await;
    let name = object["metadata"]["name"].as_str().expect("a name");
    let delete = Request::new(&path).delete(name, &DeleteParams::default()).expect("a request");
    client.request::<Value>(delete).await.expect("the object goes");
    until("the object is gone", async || {
        let get = Request::new(&path).get(name, &kube::api::GetParams::default()).expect("a request");
        client.request::<Value>(get).await.is_err()
    })
    .await;
    verdict
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_agrees_with_the_offline_verdict_on_every_case() {
    let Ok(kubeconfig) = std::env::var("KARP_TEST_KUBECONFIG") else {
        println!("skipped: KARP_TEST_KUBECONFIG names no cluster (cargo verify starts one)");
        return;
    };
    // No controller may act on the objects while they are there.
    let _turn = Turn::take(&kubeconfig).await;
    let client = client(&kubeconfig).await;
    install(&client).await;
    let table = Table::read();
    for kind in ["NodePool", "NodeClaim", "NodeOverlay", "EC2NodeClass", "CapacityBuffer"] {
        let case = table.cases.iter().find(|case| case.kind == kind).expect("each kind has cases");
        let path = collection(case, &table.object(case));
        until("the definition is served", async || {
            let list = Request::new(&path).list(&kube::api::ListParams::default()).expect("a request");
            client.request::<Value>(list).await.is_ok()
        })
        .await;
    }
    let mut wrong = Vec::new();
    for case in &table.cases {
        let verdict = verdict(&client, &table, case).await;
        if verdict.is_err() != case.refused.is_some() {
            let said = verdict.map_or_else(|refusal| json!(refusal), |_| json!("accepted"));
            wrong.push(format!("{case:?}\n  the API server says {said}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), table.cases.len(), wrong.join("\n"));
    println!("{} cases agree", table.cases.len());
}

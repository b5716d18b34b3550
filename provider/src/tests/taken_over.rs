//! A controller that is applied over what a chart left: which fields change hands, on an API server that only records.

use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};
use tfplugin::Value;

use super::moved::{configured, serve};
use crate::manifests::FIELD_MANAGER;

/// Patches, in their order: the path with its query, and what is patched.
static PATCHES: Mutex<Vec<(String, Json)>> = Mutex::new(Vec::new());

fn variable(name: &str) -> String {
    format!("k:{{\"name\":\"{name}\"}}")
}

/// What the chart owns of the Deployment: two variables of its container.
fn of_chart(names: &[&str]) -> Json {
    let owned = json!({ ".": {}, "f:name": {}, "f:value": {} });
    let env: serde_json::Map<_, _> = names.iter().map(|name| (variable(name), owned.clone())).collect();
    json!({ "f:spec": { "f:template": { "f:spec": { "f:containers": { variable("controller"): { "f:env": env } } } } } })
}

fn api_server(request: &str) -> String {
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let mut words = head.split_whitespace();
    let (verb, path) = (words.next().unwrap(), words.next().unwrap());
    if verb == "PATCH" {
        PATCHES.lock().unwrap().push((path.to_owned(), serde_json::from_str(body).unwrap()));
    }
    let mut live =
        json!({ "apiVersion": "v1", "kind": "Any", "metadata": { "name": "karpenter", "resourceVersion": "7" } });
    if path.contains("/deployments/") {
        let env = json!([{ "name": "LOG_LEVEL", "value": "info" }, { "name": "THEIRS", "value": "1" }]);
        live["spec"]["template"]["spec"]["containers"] = json!([{ "name": "controller", "env": env }]);
        live["metadata"]["managedFields"] = json!([{ "manager": "helm", "operation": "Update", "apiVersion": "apps/v1",
            "fieldsType": "FieldsV1", "fieldsV1": of_chart(&["LOG_LEVEL", "THEIRS"]) }]);
    }
    live.to_string()
}

#[tokio::test]
async fn what_a_chart_left_in_a_list_is_claimed_before_the_apply_and_by_force_alone() {
    let core = configured(json!({ "kubernetes": { "host": serve(api_server) } })).await;
    let config = |force: bool| {
        Value::from(json!({ "image": "karp:1", "create_namespace": false, "wait": false, "force_conflicts": force }))
    };
    let refused = core.apply("karp_controller", &Value::Null, &config(false)).await.diagnostics.to_string();
    let field = r#"spec.template.spec.containers[name="controller"].env[name="THEIRS"] (helm)"#;
    assert!(refused.contains(field) && !refused.contains("LOG_LEVEL"), "{refused}");

    PATCHES.lock().unwrap().clear();
    let state = core.apply("karp_controller", &Value::Null, &config(true)).await.expect_state();
    assert_eq!(state.get("version").as_str(), Some("1"));
    let patches = PATCHES.lock().unwrap();
    let of_deployment: Vec<_> = patches.iter().filter(|(path, _)| path.contains("/deployments/")).collect();
    let [(_, claim), (path, applied)] = &of_deployment[..] else { panic!("{of_deployment:?}") };
    assert!(path.contains("force=true") && applied["kind"] == "Deployment", "{path}");
    assert_eq!(claim["metadata"]["resourceVersion"], "7");
    // The variable that karp sets as well is its own alone, and the other one is there to be taken away.
    let [own] = claim["metadata"]["managedFields"].as_array().unwrap().as_slice() else { panic!("{claim}") };
    assert_eq!((&own["manager"], &own["operation"]), (&json!(FIELD_MANAGER), &json!("Apply")));
    assert_eq!(own["fieldsV1"], of_chart(&["THEIRS"]));
}

/// A pod annotation that somebody else owns, too, leaves the configuration.
#[tokio::test]
async fn what_is_refused_to_go_is_not_forgotten_and_goes_by_force() {
    let asked: Arc<Mutex<Vec<(String, Json)>>> = Arc::default();
    let seen = Arc::clone(&asked);
    let host = serve(move |request| {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let line = head.lines().next().unwrap();
        if line.starts_with("PATCH") {
            seen.lock().unwrap().push((line.to_owned(), serde_json::from_str(body).unwrap()));
        }
        let metadata = json!({ "name": "karpenter", "resourceVersion": "7" });
        let mut live = json!({ "apiVersion": "v1", "kind": "Any", "metadata": metadata });
        if line.contains("/deployments/") {
            live["spec"]["template"]["metadata"]["annotations"] = json!({ "own": "1" });
            let owned =
                json!({ "f:spec": { "f:template": { "f:metadata": { "f:annotations": { ".": {}, "f:own": {} } } } } });
            let entry = |manager: &str, operation: &str| {
                json!({ "manager": manager, "operation": operation, "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
                    "fieldsV1": owned })
            };
            live["metadata"]["managedFields"] = json!([entry(FIELD_MANAGER, "Apply"), entry("somebody", "Update")]);
        }
        live.to_string()
    });
    let core = configured(json!({ "kubernetes": { "host": host } })).await;
    let config = |more: Json| {
        let mut config = json!({ "image": "karp:1", "create_namespace": false, "wait": false });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Value::from(config)
    };
    let with = config(json!({ "pod_annotations": { "own": "1" } }));
    let state = core.apply("karp_controller", &Value::Null, &with).await.expect_state();

    asked.lock().unwrap().clear();
    let refused = core.apply("karp_controller", &state, &config(json!({}))).await;
    let told = refused.diagnostics.to_string();
    assert!(told.contains("spec.template.metadata.annotations.own (somebody)"), "{told}");
    assert_eq!(refused.state.get("pod_annotations"), state.get("pod_annotations"), "the next plan shows it again");
    assert_eq!(asked.lock().unwrap().len(), 0, "nothing is written before all is known to be granted");

    let forced = core.apply("karp_controller", &refused.state, &config(json!({ "force_conflicts": true }))).await;
    assert!(forced.expect_state().get("pod_annotations").is_null());
    let asked = asked.lock().unwrap();
    let (_, claim) = asked.iter().find(|(line, _)| line.contains("/deployments/")).unwrap();
    let [own] = claim["metadata"]["managedFields"].as_array().unwrap().as_slice() else { panic!("{claim}") };
    assert_eq!(own["manager"], FIELD_MANAGER, "the annotation is karp's alone, and not in what is applied");
}

/// The Deployment is refused when all before it is applied: the objects of others must not go with what core destroys of a failed creation.
#[tokio::test]
async fn a_creation_that_fails_is_kept_only_where_nothing_of_others_was_there() {
    const OWN: (&str, &str) = (FIELD_MANAGER, "Apply");
    const THEIRS: (&str, &str) = ("helm", "Update");
    // The last is one that was taken over by a creation that failed before.
    let cases =
        [(vec![OWN, ("kube-controller-manager", "Update")], true), (vec![THEIRS], false), (vec![OWN, THEIRS], false)];
    for (managers, is_kept) in cases {
        let told_of = format!("{managers:?}");
        let host = serve(move |request| {
            let line = request.lines().next().unwrap();
            if line.starts_with("PATCH") && line.contains("/deployments/") {
                return json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden",
                    "message": "no", "code": 403 })
                .to_string();
            }
            let entry = |(manager, operation): &(&str, &str)| {
                json!({ "manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1",
                    "fieldsV1": { "f:metadata": { "f:labels": {} } } })
            };
            let entries: Vec<Json> = managers.iter().map(entry).collect();
            json!({ "apiVersion": "v1", "kind": "Any",
                "metadata": { "name": "karpenter", "resourceVersion": "7", "managedFields": entries } })
            .to_string()
        });
        let core = configured(json!({ "kubernetes": { "host": host } })).await;
        let config = Value::from(json!({ "image": "karp:1", "create_namespace": false, "wait": false }));
        let failed = core.apply("karp_controller", &Value::Null, &config).await;
        let told = failed.diagnostics.to_string();
        assert!(told.contains("apply Deployment karpenter/karpenter"), "{told}");
        assert_eq!(!failed.state.is_null(), is_kept, "{told_of}: {told}");
    }
}

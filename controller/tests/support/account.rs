//! The service account that the provider installs, with its roles: controllers under test may do no more than in a customer's cluster.

use std::path::{Path, PathBuf};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::ServiceAccount;
use karp_kube::apply::{self, Force, Manager};
use karp_kube::rbac;
use kube::api::PostParams;
use kube::config::Kubeconfig;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{create, until};

/// The account's name in every namespace; the audit log is searched for it.
const NAME: &str = "karpenter";
/// Longer than any test.
const TOKEN_SECONDS: i64 = 7200;

/// Installs the account and its roles in a namespace, all feature gates on, and returns a kubeconfig by which it is used.
pub async fn account(client: &Client, admin: &str, namespace: &str, lease: &str) -> PathBuf {
    let named = |rules: Value| -> Value {
        serde_json::from_str(&rules.to_string().replace(rbac::LEASE, lease)).expect("rules stay rules")
    };
    let everywhere = format!("{NAME}-{namespace}");
    let mut rules = named(rbac::cluster_rules(|_| true));
    // `--cloud=simulated` launches Node objects.
    let nodes = json!({ "apiGroups": [""], "resources": ["nodes"], "verbs": ["create"] });
    rules.as_array_mut().expect("a list of rules").push(nodes);
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let here = json!({ "name": NAME, "namespace": namespace });
    let cluster = json!({ "name": everywhere });
    let objects = [
        ("serviceaccounts", json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": here })),
        ("clusterroles", rbac::role(&cluster, &rules)),
        ("clusterrolebindings", rbac::binding(&cluster, (namespace, NAME))),
        ("roles", rbac::role(&here, &named(rbac::lease_rules()))),
        ("rolebindings", rbac::binding(&here, (namespace, NAME))),
    ];
    let manager = Manager { name: "karp-test", force: Force::Yes };
    for (plural, object) in objects {
        apply::json(client, manager, plural, &object).await.expect("the API server accepts it");
    }
    // the authorizer learns of roles by a watch
    let user = format!("system:serviceaccount:{namespace}:{NAME}");
    for (resource, of, name) in [("nodes", None, None), ("configmaps", Some(namespace), Some("karp-prices"))] {
        let asked = json!({ "spec": {
            "user": user,
            "resourceAttributes": { "resource": resource, "namespace": of, "name": name, "verb": "create" },
        } });
        until("the roles hold", async || {
            let review = create::<SubjectAccessReview>(&Api::all(client.clone()), asked.clone()).await;
            review.status.is_some_and(|status| status.allowed)
        })
        .await;
    }
    let wanted = TokenRequest {
        spec: TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() },
        ..TokenRequest::default()
    };
    let request = accounts.create_token_request(NAME, &PostParams::default(), &wanted).await.expect("a token");
    let token = request.status.expect("an answer").token;
    let config = Kubeconfig::read_from(admin).expect("a kubeconfig");
    let path = Path::new(admin).with_file_name(format!("{everywhere}.kubeconfig"));
    let mut written = serde_json::to_value(&config).expect("a kubeconfig is JSON");
    for user in written["users"].as_array_mut().expect("users") {
        user["user"] = json!({ "token": token });
    }
    std::fs::write(&path, written.to_string()).expect("the kubeconfig can be written");
    path
}

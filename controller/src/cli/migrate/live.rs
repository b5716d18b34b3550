//! What a live cluster has of Karpenter's objects, of every version that it serves, and of workloads.

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client};
use serde_json::{Value as Json, json};

use super::super::live::{self, Cluster, runtime};
use super::installed;
use super::objects::of_cluster;
use crate::files::Manifest;

/// Objects asked for at once, as kubectl does.
const PAGE: u32 = 500;
/// Karpenter's kinds, each in the versions that may be served: an older one is asked for where the newer is not known.
const KARPENTER: [&[(&str, &str, &str, &str)]; 5] = [
    &[("karpenter.sh", "v1", "NodePool", "nodepools"), ("karpenter.sh", "v1beta1", "NodePool", "nodepools")],
    &[
        ("karpenter.k8s.aws", "v1", "EC2NodeClass", "ec2nodeclasses"),
        ("karpenter.k8s.aws", "v1beta1", "EC2NodeClass", "ec2nodeclasses"),
    ],
    &[("karpenter.sh", "v1alpha1", "NodeOverlay", "nodeoverlays")],
    &[("karpenter.sh", "v1alpha5", "Provisioner", "provisioners")],
    &[("karpenter.k8s.aws", "v1alpha1", "AWSNodeTemplate", "awsnodetemplates")],
];
const WORKLOADS: [(&str, &str, &str, &str); 9] = [
    ("apps", "v1", "Deployment", "deployments"),
    ("apps", "v1", "StatefulSet", "statefulsets"),
    ("apps", "v1", "DaemonSet", "daemonsets"),
    ("apps", "v1", "ReplicaSet", "replicasets"),
    ("", "v1", "ReplicationController", "replicationcontrollers"),
    ("batch", "v1", "CronJob", "cronjobs"),
    ("batch", "v1", "Job", "jobs"),
    ("", "v1", "Pod", "pods"),
    ("", "v1", "Node", "nodes"),
];
/// What is kept of a workload, once at each place where a pod or its template may stand: nothing else is looked at, least of all its
/// environment.
const KEPT: [&str; 5] = [
    "metadata/annotations",
    "spec/nodeSelector",
    "spec/affinity",
    "spec/tolerations",
    "spec/topologySpreadConstraints",
];
const PODS: [&str; 3] = ["", "spec/template/", "spec/jobTemplate/spec/template/"];

/// Reads what is to be migrated.
///
/// # Errors
/// When there is no cluster to ask, or it does not answer.
pub fn manifests(cluster: &Cluster) -> anyhow::Result<Vec<Manifest>> {
    runtime()?.block_on(async { read(&live::client(cluster.config().await?)?).await })
}

async fn read(client: &Client) -> anyhow::Result<Vec<Manifest>> {
    let mut all = Vec::new();
    for versions in KARPENTER {
        for kind in versions {
            let listed = list(client, kind, Json::clone).await;
            let listed = listed.map_err(|error| anyhow::anyhow!("{} cannot be listed: {error}", kind.3))?;
            if let Some(listed) = listed {
                all.extend(listed);
                break;
            }
        }
    }
    for kind in &WORKLOADS {
        match list(client, kind, slim).await {
            Ok(listed) => all.extend(listed.into_iter().flatten()),
            Err(error) => anstream::eprintln!("note: {} are not looked through for old keys: {error}", kind.3),
        }
    }
    let own = all.iter().filter(|one| one.kind == "Deployment" && installed::is_karpenters(&one.object));
    let accounts: Vec<(String, String)> = own
        .map(|one| installed::account(&one.object))
        .map(|(space, name)| (space.to_owned(), name.to_owned()))
        .collect();
    for (namespace, name) in accounts {
        // it only tells which role there is: whoever may not read it goes without
        let found = Api::<ServiceAccount>::namespaced(client.clone(), &namespace).get_opt(&name).await;
        if let Ok(Some(account)) = found {
            let object = installed::slim_account(&serde_json::to_value(&account).unwrap_or_default());
            let (version, kind) = ("v1".to_owned(), "ServiceAccount".to_owned());
            all.push(Manifest { origin: of_cluster(), version, kind, object });
        }
    }
    Ok(all)
}

/// Lists a kind page by page; nothing when the cluster does not know it.
async fn list(
    client: &Client,
    (group, version, kind, plural): &(&str, &str, &str, &str),
    keep: fn(&Json) -> Json,
) -> kube::Result<Option<Vec<Manifest>>> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let mut all = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let listed = match api.list(&page).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            listed => listed?,
        };
        for item in listed.items {
            // what is on its way out will not be there to be imported
            if item.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let mut object = serde_json::to_value(&item).map_err(kube::Error::SerdeError)?;
            object["apiVersion"] = json!(resource.api_version);
            object["kind"] = json!(kind);
            let (version, kind) = (resource.api_version.clone(), (*kind).to_owned());
            all.push(Manifest { origin: of_cluster(), version, kind, object: keep(&object) });
        }
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(Some(all)),
        }
    }
}

/// Keeps of a workload what is looked at.
fn slim(object: &Json) -> Json {
    let metadata = &object["metadata"];
    let mut kept = json!({ "metadata": {
        "name": metadata["name"], "namespace": metadata["namespace"], "ownerReferences": metadata["ownerReferences"],
    } });
    for pod in PODS {
        for field in KEPT {
            let path = format!("/{pod}{field}");
            if let Some(value) = object.pointer(&path) {
                put(&mut kept, &path, value.clone());
            }
        }
        if object.pointer(&format!("/{pod}spec/containers")).is_some() {
            put(&mut kept, &format!("/{pod}spec/containers"), json!([]));
        }
    }
    installed::keep(object, &mut kept);
    kept
}

fn put(object: &mut Json, path: &str, value: Json) {
    let mut at = object;
    for step in path.split('/').skip(1) {
        at = &mut at[step];
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// An API server that has these lists; it knows no other kinds.
    fn server(known: Vec<(&'static str, Json)>) -> Client {
        let answer = move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let found = known.iter().find(|(known, _)| *known == path).map(|(_, items)| items.clone());
            async move {
                let (code, body) = match found {
                    Some(items) => (200, json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items })),
                    None => (
                        404,
                        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "reason": "NotFound", "message": "not found", "code": 404 }),
                    ),
                };
                let response = Response::builder().status(code).header("content-type", "application/json");
                Ok::<_, Infallible>(response.body(Body::from(body.to_string().into_bytes())).expect("a response"))
            }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test]
    async fn the_newest_version_that_is_served_is_read_and_workloads_lose_their_environment() {
        let named = |name: &str| json!({ "metadata": { "name": name }, "spec": { "weight": 1 } });
        let pod = json!({ "nodeSelector": { "karpenter.sh/provisioner-name": "a" },
            "containers": [{ "name": "c", "env": [{ "name": "TOKEN", "value": "hunter2" }] }] });
        let deployment =
            json!({ "metadata": { "name": "web", "namespace": "shop" }, "spec": { "template": { "spec": pod } } });
        let client = server(vec![
            ("/apis/karpenter.sh/v1/nodepools", json!([named("new")])),
            ("/apis/karpenter.sh/v1beta1/nodepools", json!([named("new")])),
            ("/apis/karpenter.k8s.aws/v1beta1/ec2nodeclasses", json!([named("old")])),
            ("/apis/apps/v1/deployments", json!([deployment])),
        ]);
        let all = read(&client).await.expect("manifests");
        let told: Vec<String> =
            all.iter().map(|one| format!("{} {} {}", one.version, one.kind, one.object["metadata"]["name"])).collect();
        assert_eq!(
            told,
            [
                "karpenter.sh/v1 NodePool \"new\"",
                "karpenter.k8s.aws/v1beta1 EC2NodeClass \"old\"",
                "apps/v1 Deployment \"web\""
            ]
        );
        assert!(!all[2].object.to_string().contains("hunter2"));
        assert_eq!(super::super::workloads::find(&all).len(), 1);
    }
}

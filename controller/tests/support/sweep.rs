//! What a test that failed leaves behind: taken away by force, so that no other test on the same sandbox meets it.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodeOverlay, NodePool, labels};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::ObjectMeta;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::aws::{Aws, is_ending};
use super::client;

/// What is not gone after so long stays: the process of a failed test must end, too.
const BOUND: Duration = Duration::from_secs(20);

/// Which objects are a test's: all are called after it, or after one of its pools.
#[derive(Clone)]
struct Ours(String);

impl Ours {
    fn has(&self, name: &str) -> bool {
        name.strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// Says so of an object, by its name or its pool's.
    fn owns(&self, object: &ObjectMeta) -> bool {
        let pool = object.labels.as_ref().and_then(|all| all.get(labels::NODE_POOL));
        object.name.iter().chain(pool).any(|name| self.has(name))
    }
}

/// Takes away all that is called `name`, or begins with it and a dash: pods, pools, claims, nodes, classes, whatever holds them, instances, and
/// namespaces in the end. May be called while the test panics.
pub fn sweep(aws: &Arc<Aws>, name: &str) {
    let (aws, ours) = (aws.clone(), Ours(name.to_owned()));
    // the runtime of the test is busy with its end, and a second panic on its thread would end all tests
    let swept = std::thread::spawn(move || {
        attempt("instances", || end_instances(&aws, &ours));
        attempt("objects", || uproot_all(&ours));
    });
    drop(swept.join());
}

fn attempt(what: &str, step: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(step)).is_err() {
        println!("not all {what} of a failed test could be taken away");
    }
}

fn end_instances(aws: &Aws, ours: &Ours) {
    let all: Vec<Value> = serde_json::from_value(aws.look("instances")).expect("instances");
    for one in all.iter().filter(|one| !is_ending(one)) {
        let pool = one["tags"][labels::NODE_POOL].as_str().unwrap_or_default();
        if ours.has(pool) {
            aws.end_instance(one["id"].as_str().expect("an id"));
        }
    }
}

fn uproot_all(ours: &Ours) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let kubeconfig = std::env::var("KARP_TEST_KUBECONFIG").expect("the sandbox's kubeconfig");
    let work = async {
        // connections belong to the runtime that made them
        let client = client(&kubeconfig).await;
        uproot::<ValidatingAdmissionPolicyBinding>(&client, ours).await?;
        uproot::<ValidatingAdmissionPolicy>(&client, ours).await?;
        empty(&client, &ours.0).await?;
        uproot::<NodePool>(&client, ours).await?;
        uproot::<NodeClaim>(&client, ours).await?;
        uproot::<Node>(&client, ours).await?;
        uproot::<Ec2NodeClass>(&client, ours).await?;
        uproot::<NodeOverlay>(&client, ours).await?;
        uproot::<Namespace>(&client, ours).await
    };
    runtime
        .block_on(async { tokio::time::timeout(BOUND, work).await })
        .expect("in time")
        .expect("the API server answers");
}

/// Ends the pods of a namespace and what makes new ones.
async fn empty(client: &Client, namespace: &str) -> kube::Result<()> {
    let (all, at_once) = (ListParams::default(), DeleteParams::default().grace_period(0));
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    deployments.delete_collection(&DeleteParams::default(), &all).await?;
    Api::<Pod>::namespaced(client.clone(), namespace).delete_collection(&at_once, &all).await.map(drop)
}

/// Deletes our objects of a kind, and takes from them what holds them. None is read: some cannot be.
async fn uproot<K>(client: &Client, ours: &Ours) -> kube::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let found = api.list_metadata(&ListParams::default()).await?.items;
    for name in found.iter().filter(|one| ours.owns(&one.metadata)).map(ResourceExt::name_any) {
        // one that goes meanwhile is gone, too; what is deleted takes no new finalizer from a controller
        drop(api.delete(&name, &DeleteParams::default()).await);
        drop(api.patch_metadata(&name, &PatchParams::default(), &free).await);
    }
    Ok(())
}

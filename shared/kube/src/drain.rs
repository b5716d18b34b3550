//! Taking pods off a node by the Eviction API, so that PodDisruptionBudgets hold.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::Error;
use crate::wait::{Look, Until, WaitError, until};

/// What the API server said to one eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The pod goes.
    Accepted,
    /// The pod, or this pod of the name, is gone already.
    Gone,
    /// A budget does not allow it now: try again.
    Blocked { message: String },
}

/// Asks to evict one pod; a pod of the same name but another uid is left alone.
pub async fn evict(client: &Client, namespace: &str, name: &str, uid: &str) -> Result<Eviction, Error> {
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    // Written out, because kube 5.0's `Api::evict` spells the options so that the API server overlooks them, uid included.
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": name, "namespace": namespace },
        "deleteOptions": { "preconditions": { "uid": uid } },
    });
    match api.create_subresource::<Value, Value>("eviction", name, &PostParams::default(), &eviction).await {
        Ok(_) => Ok(Eviction::Accepted),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Eviction::Gone),
        // 500 is how the API server says that several budgets select the pod.
        Err(kube::Error::Api(status)) if matches!(status.code, 429 | 500) => {
            Ok(Eviction::Blocked { message: status.message })
        }
        Err(error) => Err(error.into()),
    }
}

/// Evicts all pods of a node but those of DaemonSets and static ones, and waits until they are gone.
pub async fn node(client: &Client, node: &str, limit: &Until) -> Result<(), WaitError> {
    let pods = Api::<Pod>::all(client.clone());
    let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    until(limit, || async {
        let mut left = Vec::new();
        for pod in pods.list(&params).await?.items.iter().filter(|pod| is_drained(pod)) {
            let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
            let mut note = format!("{namespace}/{name}");
            if pod.metadata.deletion_timestamp.is_none()
                && let Eviction::Blocked { message } =
                    evict(client, &namespace, &name, &pod.uid().unwrap_or_default()).await?
            {
                note = format!("{note} ({message})");
            }
            left.push(note);
        }
        Ok(if left.is_empty() {
            Look::Done(())
        } else {
            Look::NotYet(format!("pods left on {node}: {}", left.join(", ")))
        })
    })
    .await
}

/// Returns whether a drain takes a pod away.
#[must_use]
pub fn is_drained(pod: &Pod) -> bool {
    let daemon = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet" || owner.kind == "Node");
    let mirror = pod.annotations().contains_key("kubernetes.io/config.mirror");
    let ended = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !daemon && !mirror && !matches!(ended, Some("Succeeded" | "Failed"))
}

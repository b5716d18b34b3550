//! The Node that Fargate makes for each pod.

use anyhow::{Context as _, Result};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Binding, Node, ObjectReference, Pod},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::Shared;

/// The pod that a Node was made for.
const POD: &str = "sandbox.karp.dev/pod-uid";
/// A kubelet's lease is valid for so long.
const LEASE_SECONDS: i32 = 40;
/// Names to try before giving up: other pods' Nodes may have the first ones.
const TRIES: u8 = 20;

/// The Node and the address that a pod was given.
#[derive(Debug, Clone)]
pub struct Place {
    /// Name of the Node.
    pub node: String,
    /// Address of the pod; nothing answers there.
    pub ip: String,
}

/// Makes the pod's Node and binds the pod to it, unless both was done before.
///
/// # Errors
/// When the API server refuses.
pub async fn place(shared: &Shared, pod: &Pod) -> Result<Place> {
    let nodes: Api<Node> = Api::all(shared.ctx.client.clone());
    let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    for attempt in 0..TRIES {
        let place = named(pod, attempt);
        if bound.as_ref().is_some_and(|node| *node != place.node) {
            continue;
        }
        match nodes.create(&PostParams::default(), &node(shared, pod, &place)?).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let other = nodes.get_opt(&place.node).await?;
                if other.and_then(|node| node.annotations().get(POD).cloned()) != pod.metadata.uid {
                    continue;
                }
            }
            Err(error) => return Err(error).context("making the pod's node"),
        }
        if bound.is_none() {
            bind(shared, pod, &place.node).await?;
        }
        return Ok(place);
    }
    anyhow::bail!("no free name for a node after {TRIES} tries")
}

/// Derives name and address from the pod's uid, in a range that no subnet of the sandbox has.
fn named(pod: &Pod, attempt: u8) -> Place {
    let digest = Sha256::digest(format!("{}/{attempt}", pod.metadata.uid.as_deref().unwrap_or_default()));
    let ip = format!("10.64.{}.{}", 128 + digest[0] / 2, digest[1]);
    Place { node: format!("fargate-ip-{}.ec2.internal", ip.replace('.', "-")), ip }
}

fn node(shared: &Shared, pod: &Pod, place: &Place) -> Result<Node> {
    let ctx = &shared.ctx;
    let now = jiff::Timestamp::now();
    let ready = json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the process kubelet runs",
        "lastHeartbeatTime": now, "lastTransitionTime": now });
    let zone = format!("{}a", ctx.region);
    let capacity = json!({ "cpu": "2", "memory": "4Gi", "ephemeral-storage": "20Gi", "pods": "1" });
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": place.node,
            "annotations": { POD: pod.metadata.uid },
            "labels": {
                "eks.amazonaws.com/compute-type": "fargate",
                "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": place.node,
                "topology.kubernetes.io/region": ctx.region, "topology.kubernetes.io/zone": zone,
            },
        },
        "spec": {
            "providerID": format!("aws:///{zone}/{}/{}", pod.metadata.uid.as_deref().unwrap_or_default(), place.node),
            "taints": [{ "key": "eks.amazonaws.com/compute-type", "value": "fargate", "effect": "NoSchedule" }],
        },
        "status": {
            "capacity": capacity, "allocatable": capacity, "conditions": [ready],
            "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }, { "type": "Hostname", "address": place.node }],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": shared.port } },
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "osImage": "karp sandbox", "kubeletVersion": "v1.36.3-eks-sandbox",
                "kubeProxyVersion": "", "containerRuntimeVersion": "process://1", "kernelVersion": "", "machineID": "", "systemUUID": "", "bootID": "",
            },
        },
    }))
    .context("a node of the right form")
}

async fn bind(shared: &Shared, pod: &Pod, node: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(shared.ctx.client.clone(), &pod.namespace().unwrap_or_default());
    let name = pod.name_any();
    let binding = Binding {
        metadata: ObjectMeta { name: Some(name.clone()), uid: pod.metadata.uid.clone(), ..ObjectMeta::default() },
        target: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    };
    let _: serde_json::Value = pods
        .create_subresource("binding", &name, &PostParams::default(), &binding)
        .await
        .context("binding the pod to its node")?;
    Ok(())
}

/// Renews the Node's lease: without it the node would be called unreachable.
///
/// # Errors
/// When the API server refuses.
pub async fn heartbeat(shared: &Shared, place: &Place) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(shared.ctx.client.clone(), "kube-node-lease");
    let now = format!("{:.6}", jiff::Timestamp::now());
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": place.node },
        "spec": { "holderIdentity": place.node, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now },
    });
    let params = PatchParams::apply("process-kubelet").force();
    leases.patch(&place.node, &params, &Patch::Apply(&lease)).await.context("renewing the node's lease")?;
    Ok(())
}

/// Takes the pod's Node away.
///
/// # Errors
/// When the API server refuses.
pub async fn remove(shared: &Shared, place: &Place) -> Result<()> {
    let nodes: Api<Node> = Api::all(shared.ctx.client.clone());
    let leases: Api<Lease> = Api::namespaced(shared.ctx.client.clone(), "kube-node-lease");
    let params = DeleteParams::default();
    for result in
        [nodes.delete(&place.node, &params).await.map(drop), leases.delete(&place.node, &params).await.map(drop)]
    {
        match result {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            other => other.context("deleting the pod's node")?,
        }
    }
    Ok(())
}

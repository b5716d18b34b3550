//! Registration: what a node gets from its claim before it opens, as merge patches.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

use crate::api::{NodeClaim, labels};

/// Annotations of karp's own book-keeping, which say nothing about the node.
const OWN_ANNOTATIONS: &str = "karp.sh/";

fn taints(node: &core::Node) -> Vec<core::Taint> {
    node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default()
}

/// Makes the patch that gives a node what its claim says: labels, annotations, taints, owner and finalizer. The node stays closed.
pub fn adopt(claim: &NodeClaim, node: &core::Node) -> Value {
    let mut finalizers = node.metadata.finalizers.clone().unwrap_or_default();
    if finalizers.iter().all(|known| known != labels::TERMINATION_FINALIZER) {
        finalizers.push(labels::TERMINATION_FINALIZER.to_owned());
    }
    let mut owners = node.metadata.owner_references.clone().unwrap_or_default();
    if owners.iter().all(|owner| Some(&owner.uid) != claim.metadata.uid.as_ref()) {
        owners.push(OwnerReference {
            api_version: "karpenter.sh/v1".to_owned(),
            kind: "NodeClaim".to_owned(),
            name: claim.metadata.name.clone().unwrap_or_default(),
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            block_owner_deletion: Some(true),
            controller: None,
        });
    }
    let mut annotations: BTreeMap<&String, &String> = claim.metadata.annotations.iter().flatten().collect();
    annotations.retain(|key, _| !key.starts_with(OWN_ANNOTATIONS));
    json!({
        "metadata": {
            "labels": claim.metadata.labels.clone().unwrap_or_default(),
            "annotations": annotations,
            "finalizers": finalizers,
            "ownerReferences": owners,
        },
        "spec": { "taints": wanted_taints(claim, node) },
    })
}

/// The taints of a node and those that its claim asks for.
fn wanted_taints(claim: &NodeClaim, node: &core::Node) -> Vec<core::Taint> {
    let known = node.metadata.labels.as_ref();
    let keeps_taints = known.and_then(|all| all.get(labels::DO_NOT_SYNC_TAINTS)).is_some_and(|value| value == "true");
    let mut all = taints(node);
    let wanted = claim.spec.taints.iter().chain(&claim.spec.startup_taints).filter(|_| !keeps_taints);
    for spec in wanted {
        let effect = spec.effect.as_str();
        if all.iter().all(|taint| taint.key != spec.key || taint.effect != effect) {
            all.push(core::Taint {
                key: spec.key.clone(),
                value: spec.value.clone(),
                effect: effect.to_owned(),
                time_added: None,
            });
        }
    }
    all
}

/// Makes the patch that opens a node: the unregistered taint goes.
pub fn open(node: &core::Node) -> Value {
    json!({ "metadata": { "labels": { (labels::REGISTERED): "true" } }, "spec": { "taints": opened(taints(node)) } })
}

/// Makes the patch that does what [`adopt`] and [`open`] do one after the other.
pub fn admit(claim: &NodeClaim, node: &core::Node) -> Value {
    let mut patch = adopt(claim, node);
    patch["metadata"]["labels"][labels::REGISTERED] = json!("true");
    patch["spec"]["taints"] = json!(opened(wanted_taints(claim, node)));
    patch
}

fn opened(mut taints: Vec<core::Taint>) -> Vec<core::Taint> {
    taints.retain(|taint| taint.key != labels::UNREGISTERED);
    taints
}

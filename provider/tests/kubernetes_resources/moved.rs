//! Manifests that other providers kept move in. The test ends on an empty plan.

use serde_json::{Value, json};

use crate::others::Left;
use crate::stand::Cluster;
use crate::{CRDS, PROVIDER, class, pool};

/// What is kept, by the names that manifests have in a state.
const KEPT: [&str; 3] = ["nodepool", "ec2nodeclass", "nodeoverlay"];
const KEPT_BY_KUBECTL: [&str; 3] =
    ["kubectl_manifest.nodepool", "kubectl_manifest.ec2nodeclass", "kubectl_manifest.nodeoverlay"];
const KEPT_BY_KUBERNETES: [&str; 3] =
    ["kubernetes_manifest.nodepool", "kubernetes_manifest.ec2nodeclass", "kubernetes_manifest.nodeoverlay"];

fn manifests(name: &str) -> [Value; 3] {
    let pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name },
        "spec": {
            "disruption": { "consolidateAfter": "5s", "budgets": [{ "nodes": "100%" }] },
            "limits": { "cpu": "100" },
            "template": {
                "metadata": { "labels": { "team": "a" } },
                "spec": {
                    "expireAfter": "480h",
                    "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": name },
                    "requirements": [
                        { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"] },
                        { "key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["4"] },
                    ],
                },
            },
        },
    });
    let class = json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": name },
        "spec": {
            "instanceProfile": "p",
            "amiSelectorTerms": [{ "alias": "al2023@latest" }],
            "subnetSelectorTerms": [{ "id": "subnet-1" }],
            "securityGroupSelectorTerms": [{ "id": "sg-1" }],
        },
    });
    let overlay = json!({
        "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": name },
        "spec": {
            "priceAdjustment": "-30%",
            "requirements": [{ "key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["m7i"] }],
        },
    });
    [pool, class, overlay]
}

fn config(name: &str, manifest: &str) -> String {
    let overlay = format!(
        "resource \"karp_node_overlay\" \"it\" {{\n  name = {name:?}\n  price_adjustment = \"-30%\"\n  requirements = [{{ key = \
         \"karpenter.k8s.aws/instance-family\", operator = \"In\", values = [\"m7i\"] }}]\n  depends_on = [karp_crds.this]\n}}\n"
    );
    let pool = pool(name, r#"{ cpu = "100" }"#).replace("  wait_for_ready = false\n", "");
    let moved =
        [("nodepool", "karp_node_pool"), ("ec2nodeclass", "karp_node_class"), ("nodeoverlay", "karp_node_overlay")]
            .map(|(kept, kind)| format!("moved {{\n  from = {manifest}.{kept}\n  to = {kind}.it\n}}\n"));
    format!("{PROVIDER}{CRDS}{pool}{}{overlay}{}", class(name, ""), moved.concat())
}

#[test]
fn objects_that_other_providers_kept_move_in_without_a_difference() {
    let Some(cluster) = Cluster::find("objects_that_other_providers_kept_move_in_without_a_difference") else { return };
    let crds = cluster.stand(&format!("{PROVIDER}{CRDS}"));
    crds.apply();
    // The registry that kept them does not matter.
    for (provider, addresses) in
        [("gavinbunney/kubectl", KEPT_BY_KUBECTL), ("registry.terraform.io/hashicorp/kubernetes", KEPT_BY_KUBERNETES)]
    {
        let name = cluster.unique(&provider.replace(['/', '.'], "-"));
        let is_kubectl = addresses == KEPT_BY_KUBECTL;
        let mut left = Vec::new();
        for (object, address) in manifests(&name).into_iter().zip(addresses) {
            cluster.create(&object);
            let (version, kind) = (&object["apiVersion"], &object["kind"]);
            let attributes = if is_kubectl {
                json!({ "api_version": version, "kind": kind, "name": name, "yaml_body": object.to_string() })
            } else {
                json!({ "object": { "value": object, "type": "dynamic" }, "manifest": null })
            };
            let identity = json!({ "api_version": version, "kind": kind, "name": name, "namespace": null });
            let identity = (!is_kubectl).then_some((1, identity));
            left.push(Left { provider, address, version: 1, attributes, identity });
        }
        let uids = || KEPT.map(|kind| cluster.get(&[kind, &name])["metadata"]["uid"].clone());
        let before = uids();
        let manifest = addresses[0].split('.').next().unwrap();
        let stand = cluster.stand(&config(&name, manifest));
        stand.hand_over(&left);
        let plan = stand.apply();
        let mut changes = plan.changes();
        changes.retain(|(_, address)| address != "karp_crds.this");
        assert!(changes.iter().all(|(action, _)| action == "move" || action == "noop"), "{}", plan.text);
        assert_eq!(changes.len(), 3, "{}", plan.text);
        stand.assert_empty_plan();
        assert_eq!(uids(), before, "they are the same objects");
        stand.destroy();
    }
}

//! Manifests that other providers kept move in. The test ends on an empty plan.

use serde_json::json;

use crate::others::Left;
use crate::stand::Cluster;
use crate::{CRDS, PROVIDER, pool};

#[test]
fn pools_that_other_providers_kept_move_in_without_a_difference() {
    let Some(cluster) = Cluster::find("pools_that_other_providers_kept_move_in_without_a_difference") else { return };
    let crds = cluster.stand(&format!("{PROVIDER}{CRDS}"));
    crds.apply();
    for (provider, address) in
        [("gavinbunney/kubectl", "kubectl_manifest.it"), ("hashicorp/kubernetes", "kubernetes_manifest.it")]
    {
        let name = cluster.unique(&provider.replace('/', "-"));
        let object = json!({
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
        cluster.create(&object);
        let uid = cluster.get(&["nodepool", &name])["metadata"]["uid"].clone();
        let of_kubectl = json!({ "api_version": "karpenter.sh/v1", "kind": "NodePool", "name": name, "yaml_body": object.to_string() });
        let of_kubernetes = json!({ "object": { "value": object, "type": "dynamic" }, "manifest": null });
        let identity = json!({ "api_version": "karpenter.sh/v1", "kind": "NodePool", "name": name, "namespace": null });
        let kubectl = address.starts_with("kubectl");
        let moved = format!("moved {{\n  from = {address}\n  to = karp_node_pool.it\n}}\n");
        let config = pool(&name, r#"{ cpu = "100" }"#).replace("  wait_for_ready = false\n", "");
        let stand = cluster.stand(&format!("{PROVIDER}{CRDS}{config}{moved}"));
        stand.hand_over(&[Left {
            provider,
            address,
            version: 1,
            attributes: if kubectl { of_kubectl } else { of_kubernetes },
            identity: (!kubectl).then_some((1, identity)),
        }]);
        let plan = stand.plan();
        let mut changes = plan.changes();
        changes.retain(|(_, address)| address == "karp_node_pool.it");
        assert!(changes.iter().all(|(action, _)| action == "move" || action == "noop"), "{}", plan.text);
        stand.apply();
        stand.assert_empty_plan();
        assert_eq!(cluster.get(&["nodepool", &name])["metadata"]["uid"], uid, "it is the same object");
        stand.destroy();
    }
}

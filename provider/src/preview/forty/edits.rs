//! The named edits of the forty nodes' pool and class. What is told of each was reviewed (`../snapshots`); the edge test of the preview
//! makes the same edits on a real API server.

use serde_json::{Value as Json, json};

/// An edit of the pool or the class.
pub struct Edit {
    /// Also of the file with what is told.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Makes it.
    pub change: fn(&mut Json),
}

/// Edits of the pool.
pub const OF_POOL: [Edit; 12] = [
    Edit {
        name: "narrower_families",
        about: "a requirement on the family leaves out c7i",
        change: |pool| require(pool, "karpenter.k8s.aws/instance-family", &["m7i", "r7i"]),
    },
    Edit {
        name: "other_architecture",
        about: "amd64 becomes arm64",
        change: |pool| require(pool, "kubernetes.io/arch", &["arm64"]),
    },
    Edit {
        name: "label_added",
        about: "the template gets one label more",
        change: |pool| pool["spec"]["template"]["metadata"]["labels"]["tier"] = json!("gold"),
    },
    Edit {
        name: "taint_added",
        about: "the template gets a taint",
        change: |pool| {
            pool["spec"]["template"]["spec"]["taints"] =
                json!([{ "key": "team", "value": "a", "effect": "NoSchedule" }]);
        },
    },
    Edit {
        name: "other_lifetime",
        about: "only expireAfter is changed, which is hashed",
        change: |pool| pool["spec"]["template"]["spec"]["expireAfter"] = json!("168h"),
    },
    Edit {
        name: "other_weight_and_limits",
        about: "weight and limits are changed; the nodes have more cpu than the new limit",
        change: |pool| {
            pool["spec"]["weight"] = json!(50);
            pool["spec"]["limits"] = json!({ "cpu": "100", "nodes": "60" });
        },
    },
    Edit {
        name: "other_budgets",
        about: "only the budgets are changed",
        change: |pool| pool["spec"]["disruption"]["budgets"] = json!([{ "nodes": "25%" }]),
    },
    Edit {
        name: "other_consolidation",
        about: "only the consolidation policy is changed",
        change: |pool| pool["spec"]["disruption"]["consolidationPolicy"] = json!("WhenEmpty"),
    },
    Edit {
        name: "spot_removed",
        about: "spot is not allowed any more",
        change: |pool| require(pool, "karpenter.sh/capacity-type", &["on-demand"]),
    },
    Edit {
        name: "zone_removed",
        about: "one of three zones is not allowed any more",
        change: |pool| require(pool, "topology.kubernetes.io/zone", &["us-east-1a", "us-east-1b"]),
    },
    Edit {
        name: "no_type_left",
        about: "a requirement that no type matches",
        change: |pool| require(pool, "karpenter.k8s.aws/instance-family", &["m99"]),
    },
    Edit {
        name: "nothing_may_go",
        about: "a label is changed, and the budget is 0",
        change: |pool| {
            pool["spec"]["template"]["metadata"]["labels"]["team"] = json!("b");
            pool["spec"]["disruption"]["budgets"] = json!([{ "nodes": "0" }]);
        },
    },
];

/// Edits of the class.
pub const OF_CLASS: [Edit; 4] = [
    Edit {
        name: "class_kubelet",
        about: "nodes get more pods by the class's kubelet",
        change: |class| class["spec"]["kubelet"]["maxPods"] = json!(110),
    },
    Edit {
        name: "class_image",
        about: "the class selects a newer image",
        change: |class| class["spec"]["amiSelectorTerms"] = json!([{ "alias": "al2023@v20261115" }]),
    },
    Edit {
        name: "class_security_groups",
        about: "the class selects security groups by one tag more",
        change: |class| {
            class["spec"]["securityGroupSelectorTerms"] =
                json!([{ "tags": { "karpenter.sh/discovery": "demo", "tier": "nodes" } }]);
        },
    },
    Edit {
        name: "class_enclaves",
        about: "nodes may run enclaves, which not every type can",
        change: |class| class["spec"]["enclaveOptions"] = json!({ "enabled": true }),
    },
];

fn require(pool: &mut Json, key: &str, values: &[&str]) {
    let requirements = pool["spec"]["template"]["spec"]["requirements"].as_array_mut().expect("a list");
    requirements.retain(|one| one["key"] != key);
    requirements.push(json!({ "key": key, "operator": "In", "values": values }));
}

//! What the controller may do in the cluster: each rule beside the reason for it.

use serde_json::{Value, json};

use super::controller::NAME;

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": groups, "resources": resources, "verbs": verbs })
}

const READ: &[&str] = &["get", "list", "watch"];
const EDIT: &[&str] = &["patch", "update"];

/// Gives the rules that hold in the whole cluster, those for kinds with a feature gate where `gate` says that it is on.
pub fn cluster_rules(gate: impl Fn(&str) -> bool) -> Value {
    let mut rules = everyday_rules();
    if gate("CapacityBuffer") {
        rules.push(rule(&["autoscaling.x-k8s.io"], &["capacitybuffers"], &["list"]));
        rules.push(rule(&["autoscaling.x-k8s.io"], &["capacitybuffers/status"], &["patch"]));
        rules.push(rule(&[""], &["podtemplates"], &["get"]));
    }
    if gate("NodeOverlay") {
        rules.push(rule(&["karpenter.sh"], &["nodeoverlays"], &["list"]));
        rules.push(rule(&["karpenter.sh"], &["nodeoverlays/status"], &["patch"]));
    }
    Value::Array(rules)
}

fn everyday_rules() -> Vec<Value> {
    vec![
        // Its own kinds: claims are made and ended, the others only marked (hash annotations, finalizers, status).
        rule(&["karpenter.sh"], &["nodepools", "nodepools/status", "nodeclaims", "nodeclaims/status"], READ),
        rule(&["karpenter.sh"], &["nodeclaims", "nodeclaims/status"], &["create", "delete", "patch", "update"]),
        rule(
            &["karpenter.sh"],
            &["nodepools", "nodepools/status", "nodepools/finalizers", "nodeclaims/finalizers"],
            EDIT,
        ),
        rule(&["karpenter.k8s.aws"], &["ec2nodeclasses", "ec2nodeclasses/status"], READ),
        rule(&["karpenter.k8s.aws"], &["ec2nodeclasses", "ec2nodeclasses/status", "ec2nodeclasses/finalizers"], EDIT),
        // What scheduling depends on.
        rule(
            &[""],
            &[
                "pods",
                "nodes",
                "persistentvolumes",
                "persistentvolumeclaims",
                "replicationcontrollers",
                "namespaces",
                "limitranges",
            ],
            READ,
        ),
        rule(&["storage.k8s.io"], &["storageclasses", "csinodes", "volumeattachments"], READ),
        rule(&["apps"], &["daemonsets", "deployments", "replicasets", "statefulsets"], READ),
        rule(&["policy"], &["poddisruptionbudgets"], READ),
        // Nodes are labelled, tainted and, when their instance is gone, deleted.
        rule(&[""], &["nodes"], &["delete", "patch", "update"]),
        // Drains go by evictions; a pod is deleted only past the deadline that the pool's owner set.
        rule(&[""], &["pods/eviction"], &["create"]),
        rule(&[""], &["pods"], &["delete"]),
        // The planned node is written to the pods' status, so that the scheduler puts them there.
        rule(&[""], &["pods/status"], &["patch"]),
        rule(&["", "events.k8s.io"], &["events"], &["create", "patch"]),
        // A controller that leads in another namespace must be seen, so that two never act at once.
        rule(&["coordination.k8s.io"], &["leases"], READ),
    ]
}

/// Gives the rules that hold in the controller's namespace: its lease, and what it keeps for its next start: prices, the
/// memory of nodes, and which capacity is missing.
pub fn lease_rules() -> Value {
    json!([
        rule(&["coordination.k8s.io"], &["leases"], &["create"]),
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["karpenter-leader-election"],
            "verbs": ["get", "patch", "update", "delete"],
        },
        rule(&[""], &["configmaps"], &["create"]),
        { "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["karp-prices", "karp-memory", "karp-capacity"], "verbs": ["get", "patch"] },
    ])
}

/// Gives the rules that hold in kube-system: the address of cluster DNS.
pub fn dns_rules() -> Value {
    json!([{ "apiGroups": [""], "resources": ["services"], "resourceNames": ["kube-dns"], "verbs": ["get"] }])
}

/// Gives all that whoever administers a namespace may do with karp's kinds.
pub fn admin_rules() -> Value {
    let all = &["get", "list", "watch", "create", "delete", "patch", "update"];
    json!([
        rule(&["karpenter.sh"], &["nodepools", "nodepools/status", "nodeclaims", "nodeclaims/status"], all),
        rule(&["karpenter.k8s.aws"], &["ec2nodeclasses"], all),
    ])
}

/// Gives the name of the controller's roles and bindings.
pub const fn role_name() -> &'static str {
    NAME
}

//! What the controller may do in the cluster: each rule beside the reason for it.

use serde_json::{Value, json};

/// The lease that one controller holds at a time, in its namespace.
pub const LEASE: &str = "karpenter-leader-election";

/// Names the API group of roles.
const GROUP: &str = "rbac.authorization.k8s.io";

/// Gives a role of these rules: a Role where its metadata name a namespace, else a ClusterRole.
pub fn role(metadata: &Value, rules: &Value) -> Value {
    json!({ "apiVersion": format!("{GROUP}/v1"), "kind": kind_of_role(metadata), "metadata": metadata, "rules": rules })
}

/// Binds an account (its namespace and name) to the role that has the name of the binding: a Role where the metadata name a namespace, else
/// a ClusterRole.
pub fn binding(metadata: &Value, (namespace, account): (&str, &str)) -> Value {
    let kind = kind_of_role(metadata);
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": format!("{kind}Binding"),
        "metadata": metadata,
        "roleRef": { "apiGroup": GROUP, "kind": kind, "name": metadata["name"] },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": namespace }],
    })
}

fn kind_of_role(metadata: &Value) -> &'static str {
    if metadata["namespace"].is_null() { "ClusterRole" } else { "Role" }
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": groups, "resources": resources, "verbs": verbs })
}

/// A rule for objects of these names alone.
fn named(groups: &[&str], resources: &[&str], names: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": groups, "resources": resources, "resourceNames": names, "verbs": verbs })
}

const SEE: &[&str] = &["list", "watch"];
const MARK: &[&str] = &["patch"];

/// Gives the rules that hold in the whole cluster, those for kinds with a feature gate where `gate` says that it is on.
pub fn cluster_rules(gate: impl Fn(&str) -> bool) -> Value {
    let mut rules = everyday_rules();
    if gate("CapacityBuffer") {
        rules.push(rule(&["autoscaling.x-k8s.io"], &["capacitybuffers"], &["list"]));
        rules.push(rule(&["autoscaling.x-k8s.io"], &["capacitybuffers/status"], MARK));
        // What a buffer may name as the form of its pods.
        rules.push(rule(&[""], &["podtemplates"], &["get"]));
        rules.push(rule(&["apps"], &["deployments", "replicasets", "statefulsets"], &["get"]));
    }
    if gate("NodeOverlay") {
        rules.push(rule(&["karpenter.sh"], &["nodeoverlays"], &["list"]));
        rules.push(rule(&["karpenter.sh"], &["nodeoverlays/status"], MARK));
    }
    Value::Array(rules)
}

fn everyday_rules() -> Vec<Value> {
    vec![
        // Its own kinds: claims are made and ended, the others only marked (hash annotations, finalizers, status).
        rule(&["karpenter.sh"], &["nodeclaims"], &["get", "list", "watch", "create", "delete", "patch"]),
        rule(&["karpenter.sh"], &["nodepools"], SEE),
        rule(&["karpenter.sh"], &["nodepools", "nodepools/status", "nodeclaims/status"], MARK),
        rule(&["karpenter.k8s.aws"], &["ec2nodeclasses"], SEE),
        rule(&["karpenter.k8s.aws"], &["ec2nodeclasses", "ec2nodeclasses/status"], MARK),
        // A claim holds up the end of its pool, and a node that of its claim: where the API server has the plugin
        // OwnerReferencesPermissionEnforcement, only who may do this may say so.
        rule(&["karpenter.sh"], &["nodepools/finalizers", "nodeclaims/finalizers"], &["update"]),
        // What scheduling depends on.
        rule(&[""], &["pods", "persistentvolumes", "persistentvolumeclaims", "namespaces", "limitranges"], SEE),
        rule(&["storage.k8s.io"], &["storageclasses", "csinodes"], SEE),
        rule(&["apps"], &["daemonsets"], SEE),
        rule(&["policy"], &["poddisruptionbudgets"], SEE),
        // A drained node is kept until its volumes are detached.
        rule(&["storage.k8s.io"], &["volumeattachments"], &["list"]),
        // Nodes are labelled, tainted and, when their instance is gone, deleted.
        rule(&[""], &["nodes"], &["get", "list", "watch", "delete", "patch"]),
        // Drains go by evictions; a pod is deleted only past the deadline that the pool's owner set.
        rule(&[""], &["pods/eviction"], &["create"]),
        rule(&[""], &["pods"], &["delete"]),
        // The planned node is written to the pods' status, so that the scheduler puts them there.
        rule(&[""], &["pods/status"], MARK),
        rule(&["events.k8s.io"], &["events"], &["create", "patch"]),
        // A controller that leads in another namespace must be seen, so that two never act at once.
        named(&["coordination.k8s.io"], &["leases"], &[LEASE], &["list"]),
    ]
}

/// Gives the rules that hold in the controller's namespace: its lease, and what it keeps for its next start: prices, the
/// memory of nodes, and which capacity is missing.
pub fn lease_rules() -> Value {
    json!([
        rule(&["coordination.k8s.io"], &["leases"], &["create"]),
        named(&["coordination.k8s.io"], &["leases"], &[LEASE], &["get", "update"]),
        // A server-side apply to what is not there yet needs the right to create it, though it is told as a patch. Other ways to create than
        // this have no name that a role could bound.
        named(&[""], &["configmaps"], &["karp-prices", "karp-memory", "karp-capacity"], &["create", "get", "patch"]),
    ])
}

/// Gives all that whoever administers a namespace may do with karp's kinds.
pub fn admin_rules() -> Value {
    let all = &["get", "list", "watch", "create", "delete", "patch", "update"];
    json!([
        rule(&["karpenter.sh"], &["nodepools", "nodepools/status", "nodeclaims", "nodeclaims/status"], all),
        rule(&["karpenter.k8s.aws"], &["ec2nodeclasses"], all),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_may_write_no_configmaps_but_its_own() {
        let rules = lease_rules();
        let mut of_maps =
            rules.as_array().into_iter().flatten().filter(|rule| rule["resources"] == json!(["configmaps"]));
        let own = json!(["karp-prices", "karp-memory", "karp-capacity"]);
        assert!(of_maps.next().is_some_and(|rule| rule["resourceNames"] == own) && of_maps.next().is_none());
    }

    #[test]
    fn the_controller_may_not_read_secrets_or_give_rights() {
        let all = cluster_rules(|_| true).to_string();
        for word in ["secrets", "\"*\"", "escalate", "bind", "impersonate"] {
            assert!(!all.contains(word), "{word}");
        }
    }
}

//! Labels that a kubelet may give its own node.

/// Labels in Kubernetes' own namespaces that a kubelet may set (the kubelet refuses to start with others; see "NodeRestriction" in the
/// Kubernetes reference).
const ALLOWED: [&str; 12] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// Namespaces of the kubelet's own, with everything below them.
const OWN_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// Namespaces that are Kubernetes', with everything below them.
const RESERVED_NAMESPACES: [&str; 2] = ["kubernetes.io", "k8s.io"];

/// Says whether a kubelet may set the label `key` on its node.
#[must_use]
pub fn kubelet_may_set(key: &str) -> bool {
    let Some((namespace, _)) = key.split_once('/') else { return true };
    let below =
        |root: &&str| namespace == *root || namespace.strip_suffix(*root).is_some_and(|rest| rest.ends_with('.'));
    !RESERVED_NAMESPACES.iter().any(below) || OWN_NAMESPACES.iter().any(below) || ALLOWED.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kubelets_own_kubernetes_labels_pass() {
        for (key, allowed) in [
            ("team", true),
            ("karpenter.sh/nodepool", true),
            ("topology.k8s.aws/zone-id", true),
            ("notkubernetes.io/x", true),
            ("kubernetes.io/arch", true),
            ("node.kubernetes.io/anything", true),
            ("sub.node.kubernetes.io/anything", true),
            ("topology.kubernetes.io/zone", true),
            ("kubernetes.io/role", false),
            ("node-role.kubernetes.io/worker", false),
            ("node-restriction.kubernetes.io/x", false),
            ("app.k8s.io/x", false),
        ] {
            assert_eq!(kubelet_may_set(key), allowed, "{key}");
        }
    }
}

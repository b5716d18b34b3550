//! Labels and annotations of objects themselves: which of them people write.

use super::labels::{DRAINING, FORMER_INSTANCE_PROFILE, UNFINISHED};

/// Domains whose labels and annotations tools and controllers write on objects that they look after.
const TOOLS: [&str; 12] = [
    "app.kubernetes.io",
    "argoproj.io",
    "cattle.io",
    "config.k8s.io",
    "config.kubernetes.io",
    "fluxcd.io",
    "helm.sh",
    "k14s.io",
    "karpenter.k8s.aws",
    "karpenter.sh",
    "kubectl.kubernetes.io",
    "pulumi.com",
];

/// Tells whether a label or annotation of an object is what people write: no tool's note on its own work, and no mark of the provider or the
/// controller. Those are what an import takes over, and `karp migrate` writes.
pub fn is_users(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |tool: &&str| domain.strip_suffix(*tool).is_some_and(|sub| sub.is_empty() || sub.ends_with('.'));
    !TOOLS.iter().any(within) && ![UNFINISHED, DRAINING, FORMER_INSTANCE_PROFILE].contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_tools_are_told_from_what_people_write() {
        for noted in [
            "kubectl.kubernetes.io/last-applied-configuration",
            "meta.helm.sh/release-name",
            "helm.sh/hook",
            "app.kubernetes.io/managed-by",
            "argocd.argoproj.io/tracking-id",
            "kustomize.toolkit.fluxcd.io/checksum",
            "karpenter.sh/nodepool-hash",
            "karpenter.k8s.aws/ec2nodeclass-hash-version",
            "compatibility.karpenter.sh/v1beta1-kubelet-conversion",
            DRAINING,
            FORMER_INSTANCE_PROFILE,
            UNFINISHED,
        ] {
            assert!(!is_users(noted), "{noted}");
        }
        for written in ["team", "kubernetes.io/description", "karp.sh/consolidation-floor", "not-helm.sh/a", "helm.sh"]
        {
            assert!(is_users(written), "{written}");
        }
    }
}

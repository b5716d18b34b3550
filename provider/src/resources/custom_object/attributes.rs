//! The attributes that resources of custom objects have beside their spec.

use karp_domain::api::labels::{DRAINING, UNFINISHED};
use tfplugin::schema::validate;
use tfplugin::{Attribute, Schema, Type, Value};

use crate::manifests::spec::Attributes;
use crate::resources::identity;

/// Attributes that are the resource's own and not of the object's spec.
const OWN: [&str; 13] = [
    "hash",
    "id",
    "name",
    "node_count",
    "resources_in_use",
    "status",
    "annotations",
    "adopt",
    "force_conflicts",
    "wait_for_ready",
    "drain_on_destroy",
    "teardown",
    "timeouts",
];

/// Domains whose annotations tools and controllers write on objects that they look after.
const TOOLS: [&str; 11] = [
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

/// Tells whether an annotation of an object is what people write: no tool's note on its own work, and no mark of this provider.
pub(super) fn is_users(annotation: &str) -> bool {
    let domain = annotation.split_once('/').map_or("", |(domain, _)| domain);
    let within = |tool: &&str| domain.strip_suffix(*tool).is_some_and(|sub| sub.is_empty() || sub.ends_with('.'));
    !TOOLS.iter().any(within) && annotation != UNFINISHED && annotation != DRAINING
}

/// Gives the attributes that belong to the spec.
pub(super) fn spec_attributes(schema: &Schema) -> Attributes {
    let is_spec = |name: &str| !OWN.contains(&name);
    schema.attributes.iter().filter(|(name, _)| is_spec(name)).map(|(n, a)| (n.clone(), a.clone())).collect()
}

/// Declares the identity of an object, which is its name.
pub fn named(schema: Schema, what: &str) -> Schema {
    let name = Attribute::string().required().requires_replace().validate(validate::dns_subdomain());
    schema
        .identity(identity::of_object())
        .attribute("id", Attribute::string().computed().use_state_for_unknown().describe(format!("The {what}'s name.")))
        .attribute("name", name.describe(format!("The {what}'s name.")))
}

/// Gives the state with which an import begins.
pub fn bare(name: &str, wait_for_ready: bool) -> Value {
    Value::object([("id", name), ("name", name)]).with("wait_for_ready", wait_for_ready)
}

/// Declares whether an apply waits for the controller's word.
pub fn wait_for_ready() -> Attribute {
    Attribute::bool().default(true).describe(
        "Wait, for at most two minutes and within `timeouts`, until the controller says that the object is ready. One that does not \
         become so is a warning: it is applied, and the controller goes on with it.",
    )
}

/// Declares the object's annotations.
pub fn annotations(examples: &str) -> Attribute {
    Attribute::map(Type::String).optional().describe(format!(
        "Annotations of the object, such as {examples}. Those that others put there are left alone. An import takes over what is there, but not \
         what tools note for themselves: kubectl, Helm, Argo CD, Flux, Rancher, kapp, Pulumi and Karpenter."
    ))
}

/// Declares who ends what is left where no controller runs.
pub fn teardown() -> Attribute {
    Attribute::string().optional().describe(
        "The `id` of the cluster's `karp_teardown`. Where no controller is at work at destroy, what only a controller can end is left to \
         it with a warning, instead of an error; it also puts the two in order.",
    )
}

/// Declares whether an existing object is taken over.
pub fn adopt(kind: &str) -> Attribute {
    Attribute::bool().optional().describe(format!(
        "Take over a {kind} of this name that exists already instead of failing; the provider block's `adopt_existing` when left out."
    ))
}

/// Declares whether fields of other managers are taken over.
pub fn force_conflicts() -> Attribute {
    Attribute::bool().optional().describe(
        "Take over fields that another field manager (kubectl, Helm) owns, instead of an error that names it.",
    )
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
            "argocd.argoproj.io/tracking-id",
            "kustomize.toolkit.fluxcd.io/checksum",
            "karpenter.sh/nodepool-hash",
            "karpenter.k8s.aws/ec2nodeclass-hash-version",
            "compatibility.karpenter.sh/v1beta1-kubelet-conversion",
            DRAINING,
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

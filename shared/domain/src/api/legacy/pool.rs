//! Provisioner v1alpha5 and NodePool v1beta1 as NodePool.

use serde_json::Value;

use super::fields::Fields;
use crate::api::{
    Budget, ConsolidationPolicy, DEFAULT_EXPIRE_AFTER, Disruption, NEVER, NodeClaimTemplate, NodeClaimTemplateSpec,
    NodeClassReference, NodePool, NodePoolSpec, OptionalList, OptionalMap, RequirementSpec, StringMap, TaintSpec,
    TemplateMetadata, labels,
};
use crate::requirement::Operator;
use crate::resources::Resources;

/// The labels that older manifests call otherwise.
const RENAMED: [(&str, &str); 7] = [
    ("karpenter.sh/provisioner-name", labels::NODE_POOL),
    ("beta.kubernetes.io/arch", labels::ARCH),
    ("beta.kubernetes.io/os", labels::OS),
    ("beta.kubernetes.io/instance-type", labels::INSTANCE_TYPE),
    ("failure-domain.beta.kubernetes.io/zone", labels::ZONE),
    ("failure-domain.beta.kubernetes.io/region", labels::REGION),
    ("karpenter.k8s.aws/instance-accelerator-manufactuer", labels::INSTANCE_ACCELERATOR_MANUFACTURER),
];

/// The labels of which any says which types a Provisioner means, so that its defaults do not hold.
const TYPE_LABELS: [&str; 4] =
    [labels::INSTANCE_TYPE, labels::INSTANCE_FAMILY, labels::INSTANCE_CATEGORY, labels::INSTANCE_GENERATION];

fn renamed(key: String) -> String {
    RENAMED.iter().find(|(old, _)| *old == key).map_or(key, |(_, new)| (*new).to_owned())
}

fn with_new_keys(map: &OptionalMap) -> OptionalMap {
    if map.is_absent() {
        return OptionalMap::default();
    }
    let renamed: StringMap = map.iter().map(|(key, value)| (renamed(key.clone()), value.clone())).collect();
    renamed.into()
}

fn requirements(fields: &mut Fields) -> Vec<RequirementSpec> {
    let listed: Vec<RequirementSpec> = fields.get("requirements").unwrap_or_default();
    listed.into_iter().map(|one| RequirementSpec { key: renamed(one.key), ..one }).collect()
}

fn taints(fields: &mut Fields) -> (OptionalList<TaintSpec>, OptionalList<TaintSpec>) {
    (fields.get("taints").unwrap_or_default(), fields.get("startupTaints").unwrap_or_default())
}

/// Quantities may stand as numbers in YAML.
fn limits(found: Option<Value>, fields: &mut Fields, name: &str) -> Option<Resources> {
    let found = found?;
    match serde_json::from_value(found) {
        Ok(limits) => Some(limits),
        Err(error) => {
            fields.refuse(name, error.to_string());
            None
        }
    }
}

/// Reads a Provisioner.
pub fn provisioner(fields: &mut Fields) -> NodePool {
    let name = fields.name().unwrap_or_default();
    let spec = fields.inside("spec", |spec| provisioner_spec(spec, &name));
    NodePool::new(&name, spec)
}

fn provisioner_spec(fields: &mut Fields, name: &str) -> NodePoolSpec {
    // converted into the class, by `node_class` and `kubelet`
    fields.ignore(&["kubeletConfiguration"]);
    let class = class_of(fields, name);
    let mut requirements = requirements(fields);
    let labels = with_new_keys(&fields.get("labels").unwrap_or_default());
    write_defaults(fields, &labels, &mut requirements);
    let (taints, startup_taints) = taints(fields);
    let metadata = TemplateMetadata { labels, annotations: fields.get("annotations").unwrap_or_default() };
    let found = fields.inside("limits", |limits| limits.get::<Value>("resources"));
    let limits = limits(found, fields, "limits.resources");
    let expire_after = match fields.get::<u64>("ttlSecondsUntilExpired") {
        Some(seconds) => format!("{seconds}s"),
        None => NEVER.to_owned(),
    };
    NodePoolSpec {
        disruption: provisioner_disruption(fields),
        limits,
        weight: fields.get("weight"),
        replicas: None,
        template: NodeClaimTemplate {
            metadata,
            spec: NodeClaimTemplateSpec {
                taints,
                startup_taints,
                requirements,
                node_class_ref: class,
                termination_grace_period: None,
                expire_after,
            },
        },
    }
}

fn class_of(fields: &mut Fields, pool: &str) -> NodeClassReference {
    let inline = fields.has("provider");
    fields.ignore(&["provider"]);
    let name = fields.inside("providerRef", |reference| {
        reference.ignore(&["apiVersion", "kind"]);
        reference.get::<String>("name")
    });
    let name = match (name, inline) {
        (Some(_), true) => {
            fields.refuse("provider", "`provider` and `providerRef` exclude each other: keep one.");
            pool.to_owned()
        }
        (Some(name), false) => name,
        (None, true) => {
            fields.note(format!(
                "The inline `provider` becomes a node class of its own; it is called {pool:?}, as the pool is."
            ));
            pool.to_owned()
        }
        (None, false) => {
            fields.refuse("providerRef", "set `providerRef.name` to the AWSNodeTemplate, or `provider` inline.");
            pool.to_owned()
        }
    };
    NodeClassReference { group: labels::AWS_GROUP.to_owned(), kind: "EC2NodeClass".to_owned(), name }
}

/// Writes out what a Provisioner meant where it said nothing: a NodePool would take any type, architecture and capacity.
fn write_defaults(fields: &mut Fields, labels: &StringMap, requirements: &mut Vec<RequirementSpec>) {
    let said: Vec<String> = requirements.iter().map(|one| one.key.clone()).chain(labels.keys().cloned()).collect();
    let says = |key: &str| said.iter().any(|said| said == key);
    let mut add = |key: &str, operator: Operator, values: &[&str]| {
        fields.note(format!("{key} {operator} {} was a Provisioner's default and is written out.", values.join(", ")));
        requirements.push(RequirementSpec {
            key: key.to_owned(),
            operator,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
            min_values: None,
        });
    };
    for (key, value) in [(labels::CAPACITY_TYPE, "on-demand"), (labels::ARCH, "amd64"), (labels::OS, "linux")] {
        if !says(key) {
            add(key, Operator::In, &[value]);
        }
    }
    if !TYPE_LABELS.iter().any(|key| says(key)) {
        add(labels::INSTANCE_CATEGORY, Operator::In, &["c", "m", "r"]);
        add(labels::INSTANCE_GENERATION, Operator::Gt, &["2"]);
    }
}

fn provisioner_disruption(fields: &mut Fields) -> Disruption {
    let consolidates = fields.inside("consolidation", |inner| inner.get::<bool>("enabled")).unwrap_or_default();
    let empty: Option<u64> = fields.get("ttlSecondsAfterEmpty");
    let (consolidation_policy, consolidate_after) = match (consolidates, empty) {
        (true, Some(_)) => {
            fields.refuse(
                "ttlSecondsAfterEmpty",
                "`ttlSecondsAfterEmpty` and `consolidation.enabled` exclude each other: keep one.",
            );
            (ConsolidationPolicy::WhenEmptyOrUnderutilized, "0s".to_owned())
        }
        (true, None) => (ConsolidationPolicy::WhenEmptyOrUnderutilized, "0s".to_owned()),
        (false, Some(seconds)) => (ConsolidationPolicy::WhenEmpty, format!("{seconds}s")),
        (false, None) => {
            fields.note("Nothing was consolidated before, so `consolidateAfter` is Never; remove it to save money.");
            (ConsolidationPolicy::WhenEmpty, NEVER.to_owned())
        }
    };
    fields.note("At most 10 % of the nodes are disrupted at once; a Provisioner had no such budget.");
    Disruption { consolidate_after, consolidation_policy, budgets: vec![Budget::default()] }
}

/// Reads a NodePool v1beta1.
pub fn beta(fields: &mut Fields) -> NodePool {
    let name = fields.name().unwrap_or_default();
    let spec = fields.inside("spec", |spec| {
        let (disruption, expire_after) = spec.inside("disruption", beta_disruption);
        let found = spec.get::<Value>("limits");
        let limits = limits(found, spec, "limits");
        let weight = spec.get("weight");
        let template = spec.inside("template", |template| beta_template(template, expire_after));
        NodePoolSpec { template, disruption, limits, weight, replicas: None }
    });
    NodePool::new(&name, spec)
}

fn beta_template(fields: &mut Fields, expire_after: String) -> NodeClaimTemplate {
    let metadata = fields.inside("metadata", |metadata| TemplateMetadata {
        labels: with_new_keys(&metadata.get("labels").unwrap_or_default()),
        annotations: metadata.get("annotations").unwrap_or_default(),
    });
    let spec = fields.inside("spec", |spec| {
        // `resources` was let stand, and never used
        spec.ignore(&["kubelet", "resources"]);
        let node_class_ref = spec.inside("nodeClassRef", |reference| {
            let group = reference.get::<String>("apiVersion").unwrap_or_default();
            let group =
                group.split('/').next().filter(|group| !group.is_empty()).unwrap_or(labels::AWS_GROUP).to_owned();
            NodeClassReference {
                group: reference.get("group").unwrap_or(group),
                kind: reference.get("kind").unwrap_or_else(|| "EC2NodeClass".to_owned()),
                name: reference.get("name").unwrap_or_default(),
            }
        });
        let requirements = requirements(spec);
        let (taints, startup_taints) = taints(spec);
        NodeClaimTemplateSpec {
            taints,
            startup_taints,
            requirements,
            node_class_ref,
            termination_grace_period: spec.get("terminationGracePeriod"),
            expire_after,
        }
    });
    NodeClaimTemplate { metadata, spec }
}

fn beta_disruption(fields: &mut Fields) -> (Disruption, String) {
    let policy: Option<String> = fields.get("consolidationPolicy");
    let after: Option<String> = fields.get("consolidateAfter");
    let consolidation_policy = match policy.as_deref() {
        None | Some("WhenUnderutilized" | "WhenEmptyOrUnderutilized") => ConsolidationPolicy::WhenEmptyOrUnderutilized,
        Some("WhenEmpty") => ConsolidationPolicy::WhenEmpty,
        Some(other) => {
            fields.refuse("consolidationPolicy", format!("{other:?} is neither WhenEmpty nor WhenUnderutilized."));
            ConsolidationPolicy::WhenEmpty
        }
    };
    let disruption = Disruption {
        consolidate_after: after.unwrap_or_else(|| "0s".to_owned()),
        consolidation_policy,
        budgets: fields.get("budgets").unwrap_or_else(|| vec![Budget::default()]),
    };
    let expire_after = fields.get("expireAfter").unwrap_or_else(|| DEFAULT_EXPIRE_AFTER.to_owned());
    (disruption, expire_after)
}

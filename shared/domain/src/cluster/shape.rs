//! The part of a pod that decides where it may run. Pods with equal shapes are solved together.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as KubeQuantity;
use serde::{Deserialize, Serialize};

use super::UnreadableField;
use super::affinity::{self, HostPort, PodTerm, Preference, Spread, Whose};
use crate::api::labels;
use crate::quantity::Quantity;
use crate::requirement::{Operator, Requirement, Requirements, Torn};
use crate::resources::{PODS, Resources};
use crate::taint::Toleration;

/// Stands among labels for a node's name, which node affinity may ask for by `matchFields`; no label has a space. New nodes have none yet.
pub(crate) const NAME_FIELD: &str = "field metadata.name";
/// What names a node.
pub(crate) const NAMES: [&str; 2] = [NAME_FIELD, labels::HOSTNAME];
/// Stands for the name of a node that has none yet; no label has such a value.
pub(crate) const NEW_NAME: &str = "(new)";

/// Names something that a pod asks for and that karp does not place; such a pod is refused, never misplaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Feature {
    /// `resourceClaims`
    ResourceClaims,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Feature::ResourceClaims => "resource claims",
        })
    }
}

/// Holds everything about a pod that decides where it may run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// What it asks of a node, `pods: 1` included.
    pub requests: Resources,
    /// What it asks of a node's labels and name: any one of these will do (node selector and one term of the required node affinity).
    pub alternatives: Vec<Requirements>,
    /// Where what it asks of a label contradicts itself: what against what.
    pub torn: Torn,
    /// What it prefers of a node's labels, the heaviest first.
    pub preferred: Vec<Preference<Requirements>>,
    /// Taints that it bears.
    pub tolerations: Vec<Toleration>,
    /// How its like are to be spread.
    pub spread: Vec<Spread>,
    /// Pods that it must be near.
    pub affinity: Vec<PodTerm>,
    /// Pods that it must not be near.
    pub anti_affinity: Vec<PodTerm>,
    /// Pods that it would be near, the heaviest wish first.
    pub preferred_affinity: Vec<Preference<PodTerm>>,
    /// Pods that it would not be near, the heaviest wish first.
    pub preferred_anti_affinity: Vec<Preference<PodTerm>>,
    /// Ports of the node that it takes.
    pub ports: Vec<HostPort>,
    /// What it asks for that is never placed.
    pub unsupported: Vec<Feature>,
}

impl Shape {
    /// Reads the scheduling part of a pod's spec.
    pub fn from_pod_spec(spec: &core::PodSpec, whose: Whose<'_>) -> Result<Self, UnreadableField> {
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        let (affinity, preferred_affinity) = affinity::affinity(spec, whose)?;
        let (anti_affinity, preferred_anti_affinity) = affinity::anti_affinity(spec, whose)?;
        let (alternatives, torn) = alternatives(spec)?;
        Ok(Shape {
            requests: requests(spec)?,
            alternatives,
            torn,
            preferred: preferred(spec)?,
            tolerations: read_tolerations(tolerations)?,
            spread: affinity::spreads(spec, whose)?,
            affinity,
            anti_affinity,
            preferred_affinity,
            preferred_anti_affinity,
            ports: affinity::ports(spec),
            unsupported: unsupported(spec),
        })
    }

    /// Answers how many such pods of a namespace may be nominated to nodes at a time; any number if none. By a spread whose selector is empty
    /// kube-scheduler counts no pod that is bound, but each that is nominated (`updateWithPod`, 1.36): more would keep each other out for ever.
    pub fn most_nominated(&self) -> Option<u32> {
        let blind = self.spread.iter().filter(|spread| spread.required && spread.selector.is_none());
        blind.map(|spread| spread.max_skew).min()
    }

    /// Says whether it asks anything of other pods.
    pub fn is_social(&self) -> bool {
        !(self.spread.is_empty()
            && self.affinity.is_empty()
            && self.anti_affinity.is_empty()
            && self.preferred_affinity.is_empty()
            && self.preferred_anti_affinity.is_empty())
    }
}

fn read_tolerations(list: &[core::Toleration]) -> Result<Vec<Toleration>, UnreadableField> {
    let read = |(at, toleration): (usize, &core::Toleration)| {
        Toleration::try_from(toleration)
            .map_err(|e| UnreadableField::new(format!("spec.tolerations[{at}]"), e.to_string()))
    };
    list.iter().enumerate().map(read).collect()
}

/// What kube-scheduler counts of a pod that it has not bound.
fn requests(spec: &core::PodSpec) -> Result<Resources, UnreadableField> {
    sum(spec, |container, _, path| container_requests(container, path))
}

/// What a container on a node has, and what the kubelet granted it.
type InUse<'s> = (Option<&'s BTreeMap<String, KubeQuantity>>, Option<&'s BTreeMap<String, KubeQuantity>>);

fn in_use<'s>(status: &'s core::PodStatus, container: &core::Container, sidecar: bool) -> Option<InUse<'s>> {
    let statuses = if sidecar { &status.init_container_statuses } else { &status.container_statuses };
    let own = statuses.iter().flatten().find(|own| own.name == container.name)?;
    Some((own.resources.as_ref()?.requests.as_ref(), own.allocated_resources.as_ref()))
}

/// Says whether containers of a pod on a node do not have what they ask for: since a resize in place, which takes its time or fails.
pub fn is_resized(spec: &core::PodSpec, status: &core::PodStatus) -> bool {
    let containers = spec.containers.iter().map(|container| (container, false));
    let mut all = containers.chain(spec.init_containers.iter().flatten().map(|container| (container, true)));
    all.any(|(container, sidecar)| {
        let asked = container.resources.as_ref().and_then(|own| own.requests.as_ref());
        let (has, granted) = in_use(status, container, sidecar).unwrap_or_default();
        [has, granted].into_iter().any(|other| other.is_some() && other != asked)
    })
}

/// What kube-scheduler counts of a pod that is resized in place: of what a container asks for, has, and was granted, the most; what it asks
/// for does not count when its node can never give it.
pub(super) fn requests_in_use(spec: &core::PodSpec, status: &core::PodStatus) -> Result<Resources, UnreadableField> {
    let mut conditions = status.conditions.iter().flatten();
    let refused = conditions.any(|c| c.type_ == "PodResizePending" && c.reason.as_deref() == Some("Infeasible"));
    sum(spec, |container, sidecar, path| {
        let asked = container_requests(container, path)?;
        let Some((has, granted)) = in_use(status, container, sidecar) else { return Ok(asked) };
        let mut most = if refused { Resources::default() } else { asked };
        most.raise(&merged(has, None, &format!("status of {path}.resources"))?);
        most.raise(&merged(granted, None, &format!("status of {path}.allocatedResources"))?);
        Ok(most)
    })
}

/// The sum of containers and restartable init containers, or the largest init container with the sidecars before it; pod-level requests
/// replace it key by key; the runtime's overhead comes on top. `of` answers what one container counts for; its second argument tells
/// sidecars.
fn sum(
    spec: &core::PodSpec,
    of: impl Fn(&core::Container, bool, &str) -> Result<Resources, UnreadableField>,
) -> Result<Resources, UnreadableField> {
    let mut running = Resources::default();
    for (at, container) in spec.containers.iter().enumerate() {
        running.add(&of(container, false, &format!("spec.containers[{at}]"))?);
    }
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for (at, container) in spec.init_containers.iter().flatten().enumerate() {
        let path = format!("spec.initContainers[{at}]");
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&of(container, true, &path)?);
            starting.raise(&sidecars);
        } else {
            starting.raise(&sidecars.plus(&container_requests(container, &path)?));
        }
    }
    let mut total = running.plus(&sidecars);
    total.raise(&starting);
    if let Some(resources) = &spec.resources {
        let (requests, limits) = (resources.requests.as_ref(), resources.limits.as_ref());
        for (name, amount) in merged(requests, limits, "spec.resources")?.iter() {
            // as the API server defaults it: a pod's limit is its request only where no container asks for the resource
            if requests.is_some_and(|own| own.contains_key(name)) || !total.contains(name) {
                total.set(name.to_owned(), amount);
            }
        }
    }
    if let Some(overhead) = &spec.overhead {
        total.add(&merged(Some(overhead), None, "spec.overhead")?);
    }
    total.set(PODS, Quantity::from_units(1));
    Ok(total)
}

fn container_requests(container: &core::Container, path: &str) -> Result<Resources, UnreadableField> {
    match &container.resources {
        Some(r) => merged(r.requests.as_ref(), r.limits.as_ref(), &format!("{path}.resources")),
        None => Ok(Resources::default()),
    }
}

/// A limit without a request counts as the request, as the API server defaults it.
fn merged(
    requests: Option<&BTreeMap<String, KubeQuantity>>,
    limits: Option<&BTreeMap<String, KubeQuantity>>,
    path: &str,
) -> Result<Resources, UnreadableField> {
    let mut all = Resources::default();
    for (part, list) in [("limits", limits), ("requests", requests)] {
        for (name, amount) in list.into_iter().flatten() {
            let unreadable = |problem: &dyn std::fmt::Display| {
                UnreadableField::new(format!("{path}.{part}[{name}]"), format!("{:?}: {problem}", amount.0))
            };
            let amount: Quantity = amount.0.parse().map_err(|error| unreadable(&error))?;
            if amount < Quantity::ZERO {
                // the API server admits none; it would make room for others
                return Err(unreadable(&"it is negative"));
            }
            all.set(name.clone(), amount);
        }
    }
    Ok(all)
}

fn alternatives(spec: &core::PodSpec) -> Result<(Vec<Requirements>, Torn), UnreadableField> {
    let mut torn = Torn::new();
    let mut selected = Requirements::default();
    for (key, value) in spec.node_selector.iter().flatten() {
        selected.add_noting(Requirement::only(key, [value.as_str()]), &mut torn);
    }
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let Some(required) = required else { return Ok((vec![selected], torn)) };
    let terms = read_terms(&required.node_selector_terms, "spec.affinity.nodeAffinity.required…")?;
    let all = terms.into_iter().map(|term| {
        let mut all = selected.clone();
        term.into_iter().for_each(|requirement| all.add_noting(requirement, &mut torn));
        all
    });
    Ok((all.collect(), torn))
}

/// Reads the terms of a node selector; an empty one matches no node and is left out.
pub(super) fn node_selector_terms(
    terms: &[core::NodeSelectorTerm],
    path: &str,
) -> Result<Vec<Requirements>, UnreadableField> {
    Ok(read_terms(terms, path)?.into_iter().map(Requirements::from_iter).collect())
}

fn read_terms(terms: &[core::NodeSelectorTerm], path: &str) -> Result<Vec<Vec<Requirement>>, UnreadableField> {
    let mut all = Vec::with_capacity(terms.len());
    for (at, term) in terms.iter().enumerate() {
        let fields = term.match_fields.as_deref().unwrap_or_default();
        if term.match_expressions.as_deref().unwrap_or_default().is_empty() && fields.is_empty() {
            continue;
        }
        all.push(expressions(term, &format!("{path}.nodeSelectorTerms[{at}]"))?);
    }
    Ok(all)
}

fn expressions(term: &core::NodeSelectorTerm, path: &str) -> Result<Vec<Requirement>, UnreadableField> {
    let mut requirements = Vec::new();
    for (at, e) in term.match_expressions.iter().flatten().enumerate() {
        let path = || format!("{path}.matchExpressions[{at}]");
        let values = e.values.as_deref().unwrap_or_default();
        let operator: Operator = e
            .operator
            .parse()
            .map_err(|unknown| UnreadableField::new(path(), format!("unknown operator {unknown:?}")))?;
        if matches!(operator, Operator::Gte | Operator::Lte) {
            let problem = format!("operator {} is for NodePools only, a pod may ask with Gt or Lt", e.operator);
            return Err(UnreadableField::new(path(), problem));
        }
        let requirement = Requirement::new(&e.key, operator, values)
            .map_err(|error| UnreadableField::new(path(), error.to_string()))?;
        requirements.push(requirement);
    }
    for (at, field) in term.match_fields.iter().flatten().enumerate() {
        // the API server admits nothing else
        let requirement = match (&*field.key, &*field.operator, field.values.as_deref().unwrap_or_default()) {
            ("metadata.name", "In", [name]) => Requirement::only(NAME_FIELD, [name.as_str()]),
            ("metadata.name", "NotIn", [name]) => Requirement::except(NAME_FIELD, [name.as_str()]),
            _ => {
                let problem = "only metadata.name with In or NotIn and one value may be asked for".to_owned();
                return Err(UnreadableField::new(format!("{path}.matchFields[{at}]"), problem));
            }
        };
        requirements.push(requirement);
    }
    Ok(requirements)
}

/// The preferred node affinity, the heaviest first. A term that asks for nothing is met everywhere.
fn preferred(spec: &core::PodSpec) -> Result<Vec<Preference<Requirements>>, UnreadableField> {
    let terms = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or_default();
    let mut read = Vec::with_capacity(terms.len());
    for (at, preference) in terms.iter().enumerate() {
        let term = expressions(&preference.preference, &format!("spec.affinity.nodeAffinity.preferred…[{at}]"))?;
        let term = Requirements::from_iter(term);
        if !term.is_empty() {
            read.push(Preference { weight: preference.weight, term });
        }
    }
    read.sort_by_key(|preference| -preference.weight);
    Ok(read)
}

fn unsupported(spec: &core::PodSpec) -> Vec<Feature> {
    let mut found = Vec::new();
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        found.push(Feature::ResourceClaims);
    }
    found
}

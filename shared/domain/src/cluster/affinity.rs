//! What pods ask of each other and of the topology: spread, affinity, anti-affinity, host ports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Serialize;

use super::UnreadableField;
use crate::api::labels;
use crate::requirement::Selector;

/// Holds a topology spread constraint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spread {
    /// `topologyKey`.
    pub key: Arc<str>,
    /// `maxSkew`.
    pub max_skew: u32,
    /// `minDomains`.
    pub min_domains: Option<u32>,
    /// `whenUnsatisfiable` is `DoNotSchedule`.
    pub required: bool,
    /// Pods that are counted, of the pod's namespace; none for no pod. `matchLabelKeys` are merged in.
    pub selector: Option<Selector>,
    /// Domains are those of nodes that the pod's node selector and required affinity admit (`nodeAffinityPolicy: Honor`).
    pub honors_affinity: bool,
    /// Domains are those of nodes whose taints the pod tolerates (`nodeTaintsPolicy: Honor`).
    pub honors_taints: bool,
}

/// Holds a term of pod affinity or anti-affinity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodTerm {
    /// `topologyKey`.
    pub key: Arc<str>,
    /// Pods that are meant; none for no pod. `matchLabelKeys` and `mismatchLabelKeys` are merged in.
    pub selector: Option<Selector>,
    /// Which namespaces the pods are of.
    pub namespaces: Namespaces,
}

/// Names namespaces: those of a list, and those with certain labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespaces {
    /// By name.
    pub names: BTreeSet<Arc<str>>,
    /// By label.
    pub selector: Option<Selector>,
}

impl fmt::Display for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names.iter().map(|name| format!("namespace {name}"));
        let selected = self.selector.iter().map(|selector| match selector.is_empty() {
            true => "any namespace".to_owned(),
            false => format!("namespaces with {selector}"),
        });
        f.write_str(&names.chain(selected).collect::<Vec<_>>().join(" or "))
    }
}

/// Holds a preferred term with its weight, 1 to 100.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Preference<T> {
    /// Weight.
    pub weight: i32,
    /// What is preferred.
    pub term: T,
}

/// Holds a port of the node that a pod takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct HostPort {
    /// Address; empty for all addresses.
    pub address: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Port.
    pub port: i32,
}

/// Says whose constraints are read: selectors are completed from the pod's own labels and namespace.
#[derive(Clone, Copy, Debug)]
pub struct Whose<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Labels of the pod.
    pub labels: &'a BTreeMap<String, String>,
}

impl Namespaces {
    /// Answers just one namespace.
    pub fn only(name: &str) -> Self {
        Namespaces { names: [Arc::from(name)].into(), selector: None }
    }

    /// Says whether a namespace is meant; `known` holds the labels of namespaces.
    pub fn contain(&self, name: &str, known: &BTreeMap<Arc<str>, BTreeMap<String, String>>) -> bool {
        let labelled = |selector: &Selector| {
            selector.is_empty()
                || known.get(name).map_or_else(
                    // the label that every namespace has is known without looking
                    || selector.matches(&[("kubernetes.io/metadata.name".to_owned(), name.to_owned())].into()),
                    |labels| selector.matches(labels),
                )
        };
        self.names.contains(name) || self.selector.as_ref().is_some_and(labelled)
    }
}

impl HostPort {
    /// Says whether two pods cannot have both on one node.
    pub fn conflicts(&self, other: &Self) -> bool {
        let addresses = self.address.is_empty() || other.address.is_empty() || self.address == other.address;
        self.port == other.port && self.protocol == other.protocol && addresses
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = if self.address.is_empty() { "*" } else { &self.address };
        write!(f, "{address}:{}/{}", self.port, self.protocol)
    }
}

/// Reads `topologySpreadConstraints`.
pub(super) fn spreads(spec: &core::PodSpec, whose: Whose<'_>) -> Result<Vec<Spread>, UnreadableField> {
    let read = |(at, c): (usize, &core::TopologySpreadConstraint)| {
        let path = format!("spec.topologySpreadConstraints[{at}]");
        let max_skew = u32::try_from(c.max_skew).ok().filter(|skew| *skew > 0);
        let max_skew = max_skew.ok_or_else(|| {
            UnreadableField::new(format!("{path}.maxSkew"), format!("{} is not positive", c.max_skew))
        })?;
        let mut selector = selector(c.label_selector.as_ref(), &format!("{path}.labelSelector"))?;
        for key in c.match_label_keys.iter().flatten() {
            if let (Some(selector), Some(value)) = (&mut selector, whose.labels.get(key)) {
                selector.require(key, value);
            }
        }
        // to kube-scheduler an empty selector counts no pod (`countPodsMatchSelector`, 1.36), though it selects the pod itself: both come to
        // a skew that is never too large
        let selector = selector.filter(|selector| !selector.is_empty());
        Ok(Spread {
            key: key(&c.topology_key),
            max_skew,
            min_domains: c.min_domains.and_then(|n| u32::try_from(n).ok()),
            required: c.when_unsatisfiable != "ScheduleAnyway",
            selector,
            honors_affinity: c.node_affinity_policy.as_deref() != Some("Ignore"),
            honors_taints: c.node_taints_policy.as_deref() == Some("Honor"),
        })
    };
    spec.topology_spread_constraints.iter().flatten().enumerate().map(read).collect()
}

/// Holds required and preferred terms, the heaviest preference first.
pub(super) type Terms = (Vec<PodTerm>, Vec<Preference<PodTerm>>);

/// Reads `affinity.podAffinity`.
pub(super) fn affinity(spec: &core::PodSpec, whose: Whose<'_>) -> Result<Terms, UnreadableField> {
    let Some(affinity) = spec.affinity.as_ref().and_then(|a| a.pod_affinity.as_ref()) else {
        return Ok(Default::default());
    };
    let required = affinity.required_during_scheduling_ignored_during_execution.as_deref();
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.as_deref();
    both(required, preferred, "spec.affinity.podAffinity", whose)
}

/// Reads `affinity.podAntiAffinity`.
pub(super) fn anti_affinity(spec: &core::PodSpec, whose: Whose<'_>) -> Result<Terms, UnreadableField> {
    let Some(affinity) = spec.affinity.as_ref().and_then(|a| a.pod_anti_affinity.as_ref()) else {
        return Ok(Default::default());
    };
    let required = affinity.required_during_scheduling_ignored_during_execution.as_deref();
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.as_deref();
    both(required, preferred, "spec.affinity.podAntiAffinity", whose)
}

fn both(
    required: Option<&[core::PodAffinityTerm]>,
    preferred: Option<&[core::WeightedPodAffinityTerm]>,
    path: &str,
    whose: Whose<'_>,
) -> Result<Terms, UnreadableField> {
    let required = required.unwrap_or_default().iter().enumerate();
    let required = required.map(|(at, t)| term(t, &format!("{path}.required…[{at}]"), whose));
    let preferred = preferred.unwrap_or_default().iter().enumerate().map(|(at, t)| {
        let term = term(&t.pod_affinity_term, &format!("{path}.preferred…[{at}]"), whose)?;
        Ok(Preference { weight: t.weight, term })
    });
    let required = required.collect::<Result<_, _>>()?;
    let mut preferred: Vec<_> = preferred.collect::<Result<_, _>>()?;
    preferred.sort_by_key(|preference| -preference.weight);
    Ok((required, preferred))
}

fn term(term: &core::PodAffinityTerm, path: &str, whose: Whose<'_>) -> Result<PodTerm, UnreadableField> {
    let mut pods = selector(term.label_selector.as_ref(), &format!("{path}.labelSelector"))?;
    if let Some(pods) = &mut pods {
        for key in term.match_label_keys.iter().flatten() {
            if let Some(value) = whose.labels.get(key) {
                pods.require(key, value);
            }
        }
        for key in term.mismatch_label_keys.iter().flatten() {
            if let Some(value) = whose.labels.get(key) {
                pods.refuse(key, value);
            }
        }
    }
    let mut names: BTreeSet<Arc<str>> = term.namespaces.iter().flatten().map(|n| Arc::from(n.as_str())).collect();
    let by_label = selector(term.namespace_selector.as_ref(), &format!("{path}.namespaceSelector"))?;
    if names.is_empty() && by_label.is_none() {
        names.insert(whose.namespace.into());
    }
    Ok(PodTerm { key: key(&term.topology_key), selector: pods, namespaces: Namespaces { names, selector: by_label } })
}

fn selector(selector: Option<&LabelSelector>, path: &str) -> Result<Option<Selector>, UnreadableField> {
    let read =
        |s: &LabelSelector| Selector::try_from(s).map_err(|e| UnreadableField::new(path.to_owned(), e.to_string()));
    selector.map(read).transpose()
}

fn key(key: &str) -> Arc<str> {
    labels::normalise(key).as_ref().into()
}

/// Reads the ports of the node that containers take, and sidecars; other init containers are gone when the pod runs, and kube-scheduler does
/// not look at theirs. With `hostNetwork` every container port is one.
pub(super) fn ports(spec: &core::PodSpec) -> Vec<HostPort> {
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let containers = spec.containers.iter().chain(sidecars);
    let host_network = spec.host_network == Some(true);
    let taken = containers.flat_map(|c| c.ports.iter().flatten()).filter_map(|port| {
        let own = if host_network { Some(port.container_port) } else { None };
        let number = port.host_port.or(own).filter(|number| *number > 0)?;
        let address = port.host_ip.as_deref().filter(|ip| *ip != "0.0.0.0" && *ip != "::").unwrap_or_default();
        Some(HostPort {
            address: address.to_owned(),
            protocol: port.protocol.as_deref().unwrap_or("TCP").to_owned(),
            port: number,
        })
    });
    let taken: BTreeSet<HostPort> = taken.collect();
    taken.into_iter().collect()
}

//! LimitRanges: what the API server adds to pods of a namespace that ask for nothing themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as KubeQuantity;

use super::{PodKey, Unreadable, UnreadableField};
use crate::quantity::Quantity;
use crate::resources::Resources;

/// Describes the defaults that a LimitRange gives to containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRange {
    /// Namespace and name.
    pub key: PodKey,
    /// Requests of a container that names neither a request nor a limit for a resource.
    pub requests: Resources,
    /// Limits of a container that names none for a resource.
    pub limits: Resources,
}

impl LimitRange {
    /// Reads a LimitRange, with what the API server would fill in: a maximum is the default limit, a default limit the default request,
    /// and where there is neither, a minimum is the default request.
    pub fn from_kube(range: &core::LimitRange) -> Result<Self, Unreadable> {
        let meta = &range.metadata;
        let key = PodKey::new(meta.namespace.as_deref().unwrap_or("default"), meta.name.as_deref().unwrap_or_default());
        let mut requests = Resources::new();
        let mut limits = Resources::new();
        let items = range.spec.iter().flat_map(|spec| &spec.limits).enumerate();
        for (at, item) in items.filter(|(_, item)| item.type_ == "Container") {
            let read = |field: &str, list: &Option<BTreeMap<String, KubeQuantity>>| {
                Resources::try_from_api(list.as_ref().unwrap_or(&BTreeMap::new())).map_err(|e| {
                    UnreadableField::new(format!("spec.limits[{at}].{field}"), e.to_string()).of("LimitRange", &key)
                })
            };
            let given = read("default", &item.default)?;
            let most = fill(&given, &read("max", &item.max)?);
            let least = fill(&fill(&read("defaultRequest", &item.default_request)?, &most), &read("min", &item.min)?);
            limits.raise(&most);
            requests.raise(&least);
        }
        Ok(LimitRange { key, requests, limits })
    }
}

/// The first list, with what it lacks from the second.
fn fill(first: &Resources, second: &Resources) -> Resources {
    let mut all = second.clone();
    first.iter().for_each(|(name, amount)| all.set(name.to_owned(), amount));
    all
}

/// Returns a pod's spec as the API server would admit it in a namespace: limits stand for requests that are missing, and the ranges'
/// defaults for what no container names. Where several ranges give a default (the API server takes them in no given order), the largest
/// counts, so that a plan is never too small.
#[must_use]
pub fn admitted(spec: &core::PodSpec, namespace: &str, ranges: &[Arc<LimitRange>]) -> core::PodSpec {
    let (mut requests, mut limits) = (Resources::new(), Resources::new());
    for range in ranges.iter().filter(|range| &*range.key.namespace == namespace) {
        requests.raise(&range.requests);
        limits.raise(&range.limits);
    }
    let mut spec = spec.clone();
    if requests.is_empty() && limits.is_empty() {
        return spec;
    }
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let resources = container.resources.get_or_insert_default();
        let own_limits = resources.limits.get_or_insert_default();
        let own = resources.requests.get_or_insert_default();
        // pods are defaulted before they are admitted: a container's own limit is its request before a range is asked
        for (name, amount) in own_limits.iter() {
            own.entry(name.clone()).or_insert_with(|| amount.clone());
        }
        add_missing(own_limits, &limits);
        add_missing(own, &requests);
    }
    spec
}

fn add_missing(list: &mut BTreeMap<String, KubeQuantity>, defaults: &Resources) {
    for (name, amount) in defaults.iter() {
        list.entry(name.to_owned()).or_insert_with(|| <KubeQuantity as From<Quantity>>::from(amount));
    }
}

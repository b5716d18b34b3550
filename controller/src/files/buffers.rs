//! CapacityBuffers with what they refer to among the objects.

use std::sync::Arc;

use karp_domain::api::CapacityBuffer;
use karp_domain::cluster::{Buffer, NotReady, PodKey, Reference, Referred, Workload};
use kube::{Resource, ResourceExt};

use super::world::limit_ranges;
use super::{Found, Objects, Origin};

/// A buffer for which no room can be kept.
pub struct Unready<'o> {
    /// Namespace and name.
    pub buffer: PodKey,
    /// Where it is.
    pub origin: &'o Origin,
    /// What to change.
    pub why: NotReady,
}

/// Answers the buffers that are ready, as a controller would find them.
pub fn ready(objects: &Objects) -> Vec<Arc<Buffer>> {
    resolved(objects).filter_map(|(_, buffer)| buffer.ok().map(Arc::new)).collect()
}

/// Answers the others, with the reason.
pub fn unready(objects: &Objects) -> impl Iterator<Item = Unready<'_>> {
    resolved(objects).filter_map(|(found, buffer)| {
        let key = PodKey::new(&namespace(&*found.object), &found.object.name_any());
        buffer.err().map(|why| Unready { buffer: key, origin: &found.origin, why })
    })
}

type Resolved<'o> = (&'o Found<CapacityBuffer>, Result<Buffer, NotReady>);

fn resolved(objects: &Objects) -> impl Iterator<Item = Resolved<'_>> {
    let there = objects.buffers.iter().filter(|found| found.object.metadata.deletion_timestamp.is_none());
    let ranges = limit_ranges(objects);
    there.map(move |found| (found, Buffer::from_kube(&found.object, referred(objects, &found.object), &ranges)))
}

fn referred<'o>(objects: &'o Objects, buffer: &CapacityBuffer) -> Referred<'o> {
    let namespace = namespace(buffer);
    match Reference::of(buffer) {
        Some(Reference::Template(name)) => {
            let found = named(&objects.pod_templates, &namespace, name);
            Referred { template: found.and_then(|found| found.template.as_ref()), scale: None }
        }
        Some(Reference::Workload(workload, name)) => scalable(objects, workload, &namespace, name).unwrap_or_default(),
        None => Referred::default(),
    }
}

fn scalable<'o>(objects: &'o Objects, workload: Workload, namespace: &str, name: &str) -> Option<Referred<'o>> {
    let (template, replicas) = match workload {
        Workload::Deployment => {
            let spec = named(&objects.deployments, namespace, name)?.spec.as_ref()?;
            (Some(&spec.template), spec.replicas)
        }
        Workload::StatefulSet => {
            let spec = named(&objects.stateful_sets, namespace, name)?.spec.as_ref()?;
            (Some(&spec.template), spec.replicas)
        }
        Workload::ReplicaSet => {
            let spec = named(&objects.replica_sets, namespace, name)?.spec.as_ref()?;
            (spec.template.as_ref(), spec.replicas)
        }
    };
    Some(Referred::workload(template, replicas))
}

fn named<'o, K: Resource>(all: &'o [Found<K>], of: &str, name: &str) -> Option<&'o K> {
    let found =
        all.iter().find(|found| found.object.meta().name.as_deref() == Some(name) && namespace(&*found.object) == of);
    found.map(|found| &*found.object)
}

/// The namespace of an object; what says none is in "default".
fn namespace(object: &impl Resource) -> String {
    object.namespace().unwrap_or_else(|| "default".to_owned())
}

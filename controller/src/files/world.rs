//! The snapshot that the engine is asked about, made of objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use karp_domain::api::{NodeOverlay, conditions};
use karp_domain::catalogue::Overlay;
use karp_domain::cluster::{
    Catalogues, Claim, DaemonSet, LimitRange, Node, Phase, Pod, PodBudget, PodKey, Pool, Settings, Shapes, Snapshot,
    StorageClass, Unreadable, Volume, VolumeClaim, Volumes,
};
use kube::ResourceExt;
use rayon::prelude::*;

use super::{BadInput, Found, Objects, Problem, buffers};

/// Makes a snapshot in which every pod that has no node waits for one. A pool that no controller has looked at yet is ready.
///
/// # Errors
/// [`BadInput`] with every object that cannot be understood, and the field to blame.
pub fn snapshot(
    objects: &Objects,
    catalogues: Catalogues,
    settings: Settings,
    now: Timestamp,
) -> Result<Snapshot, BadInput> {
    let (snapshot, problems) = readable(objects, catalogues, settings, now);
    if problems.is_empty() { Ok(snapshot) } else { Err(BadInput(problems)) }
}

/// Makes the same of a cluster, in which one object that cannot be understood stops nobody else: with the field to blame of each that is
/// left out. Nodes with such a pod are known, as they are to the controller.
pub fn readable(
    objects: &Objects,
    catalogues: Catalogues,
    settings: Settings,
    now: Timestamp,
) -> (Snapshot, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut snapshot = Snapshot::empty(now);
    let shapes = Shapes::default();
    snapshot.pods = read(&objects.pods, |pod| Pod::sharing(&shapes, pod).map(waiting), &mut problems);
    if !problems.is_empty() {
        let unread = objects.pods.iter().filter(|found| Pod::sharing(&shapes, &found.object).is_err());
        snapshot.unread = unread.filter_map(|found| bound(&found.object)).collect();
    }
    snapshot.nodes = read(&objects.nodes, Node::from_kube, &mut problems);
    snapshot.claims = read(&objects.claims, Claim::from_kube, &mut problems);
    snapshot.pools = read(&objects.pools, Pool::from_kube, &mut problems);
    let ranges = read(&objects.limit_ranges, LimitRange::from_kube, &mut problems);
    let daemons: Vec<Arc<Pod>> = snapshot.pods.iter().filter(|pod| pod.daemon_set.is_some()).cloned().collect();
    snapshot.daemons = read(&objects.daemons, |set| DaemonSet::admitted(set, &ranges, &daemons), &mut problems);
    snapshot.budgets = read(&objects.budgets, PodBudget::from_kube, &mut problems);
    for found in &objects.namespaces {
        let meta = &found.object.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        snapshot.namespaces.insert(name.into(), meta.labels.clone().unwrap_or_default());
    }
    snapshot.volumes = volumes(objects, &mut problems);
    snapshot.buffers = buffers::ready(objects);
    snapshot.catalogues = catalogues;
    snapshot.settings = settings;
    apply_overlays(objects, &mut snapshot, &mut problems);
    (snapshot, problems)
}

/// The node that a pod is on, and the pod.
fn bound(pod: &core::Pod) -> Option<(Arc<str>, PodKey)> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    Some((node.into(), PodKey::new(&pod.namespace().unwrap_or_default(), &pod.name_any())))
}

/// Answers the limit ranges that can be read; the others are told when the snapshot is made.
pub(super) fn limit_ranges(objects: &Objects) -> Vec<Arc<LimitRange>> {
    let ranges = objects.limit_ranges.iter().filter_map(|range| LimitRange::from_kube(&range.object).ok());
    ranges.map(Arc::new).collect()
}

/// Applies overlays; two that are at odds are a mistake in the files.
fn apply_overlays(objects: &Objects, snapshot: &mut Snapshot, problems: &mut Vec<Problem>) {
    let mut overlays = Vec::new();
    for found in objects.overlays.iter().filter(|found| !is_left_out(&found.object)) {
        match Overlay::from_kube(&found.object) {
            Ok(overlay) => overlays.push(overlay),
            Err(why) => problems.push(found.origin.problem(why.to_string())),
        }
    }
    for conflict in snapshot.overlay(&overlays) {
        let found = objects.overlays.iter().find(|found| found.object.name_any() == *conflict.overlay);
        let message = format!(
            "NodeOverlay {}: has the weight of {}, and both speak of {}; set spec.weight of one of them",
            conflict.overlay, conflict.with, conflict.instance_type
        );
        problems.extend(found.map(|found| found.origin.problem(message)));
    }
}

/// Says whether the cluster that an overlay was read from has left it out.
fn is_left_out(overlay: &NodeOverlay) -> bool {
    overlay.status.as_ref().is_some_and(|status| conditions::is_false(&status.conditions, conditions::READY))
}

fn volumes(objects: &Objects, problems: &mut Vec<Problem>) -> Volumes {
    let mut volumes = Volumes {
        claims: objects.volume_claims.iter().map(|found| VolumeClaim::from_kube(&found.object)).collect(),
        volumes: named(&objects.volumes, Volume::from_kube, problems),
        classes: named(&objects.storage_classes, StorageClass::from_kube, problems),
        ..Volumes::default()
    };
    objects.csi_nodes.iter().for_each(|found| volumes.add_csi_node(&found.object));
    volumes
}

fn named<K, T>(
    objects: &[Found<K>],
    one: impl Fn(&K) -> Result<(Arc<str>, T), Unreadable>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<Arc<str>, T> {
    let mut all = BTreeMap::new();
    for found in objects {
        match one(&found.object) {
            Ok((name, read)) => drop(all.insert(name, read)),
            Err(why) => problems.push(found.origin.problem(why.to_string())),
        }
    }
    all
}

/// A pod in a file has met no scheduler, or one that found no node for it: it waits.
fn waiting(mut pod: Pod) -> Pod {
    pod.unschedulable |= pod.phase == Phase::Pending && pod.node.is_none();
    pod
}

fn read<K: Sync, T: Send + Sync>(
    objects: &[Found<K>],
    one: impl Fn(&K) -> Result<T, Unreadable> + Sync,
    problems: &mut Vec<Problem>,
) -> Vec<Arc<T>> {
    let results: Vec<Result<Arc<T>, Unreadable>> =
        objects.par_iter().map(|found| one(&found.object).map(Arc::new)).collect();
    let mut all = Vec::with_capacity(results.len());
    for (found, result) in objects.iter().zip(results) {
        match result {
            Ok(read) => all.push(read),
            Err(why) => problems.push(found.origin.problem(why.to_string())),
        }
    }
    all
}

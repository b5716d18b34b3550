//! What the API server and its controllers would make of objects: priorities by class, and pods of workloads.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::StatefulSetSpec;
use k8s_openapi::api::batch::v1::{JobSpec, JobStatus};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use karp_domain::api::{NodeClassReference, NodePool, NodePoolSpec, labels};
use karp_domain::cluster::admitted;
use kube::{Resource, ResourceExt};

use super::world::limit_ranges;
use super::{Found, Objects, Origin};

/// Classes that every cluster has.
const SYSTEM_PRIORITIES: [(&str, i32); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];
/// Marks the storage class of claims that name none.
pub(super) const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// Pods made of one object at most: a replica count with a slip of the finger must not take all memory.
const MAX_REPLICAS: usize = 1_000_000;

/// Fills in what admission does: the priority of pods by their class, the storage class of claims.
pub fn admit(objects: &mut Objects) {
    admit_claims(objects);
    let mut values: BTreeMap<&str, i32> = SYSTEM_PRIORITIES.into();
    let mut usual = 0;
    for class in &objects.priority_classes {
        values.insert(class.object.metadata.name.as_deref().unwrap_or_default(), class.object.value);
        if class.object.global_default == Some(true) {
            usual = class.object.value;
        }
    }
    for pod in &mut objects.pods {
        let Some(spec) = pod.object.spec.as_mut().filter(|spec| spec.priority.is_none()) else { continue };
        let class = spec.priority_class_name.as_deref().filter(|name| !name.is_empty());
        spec.priority = Some(class.map_or(usual, |name| values.get(name).copied().unwrap_or(0)));
    }
}

/// Gives claims that name no storage class the default one, as admission does; those that pods bring along, too.
fn admit_claims(objects: &mut Objects) {
    let default = |class: &&Found<StorageClass>| {
        class.object.annotations().get(DEFAULT_CLASS).is_some_and(|value| value == "true")
    };
    let Some(class) = objects.storage_classes.iter().find(default).map(|class| class.object.name_any()) else { return };
    for claim in &mut objects.volume_claims {
        if let Some(spec) = claim.object.spec.as_mut().filter(|spec| spec.storage_class_name.is_none()) {
            spec.storage_class_name = Some(class.clone());
        }
    }
    for pod in &mut objects.pods {
        let volumes = pod.object.spec.as_mut().and_then(|spec| spec.volumes.as_mut());
        for volume in volumes.into_iter().flatten() {
            let template = volume.ephemeral.as_mut().and_then(|own| own.volume_claim_template.as_mut());
            if let Some(template) = template {
                template.spec.storage_class_name.get_or_insert_with(|| class.clone());
            }
        }
    }
}

/// Adds a pool that allows everything when there is none.
pub fn ensure_pool(objects: &mut Objects) {
    if objects.pools.is_empty() {
        let mut spec = NodePoolSpec::default();
        spec.template.spec.node_class_ref = NodeClassReference {
            group: labels::AWS_GROUP.to_owned(),
            kind: "EC2NodeClass".into(),
            name: "default".into(),
        };
        let pool = NodePool::new("default", spec);
        objects.pools.push(Found { object: Box::new(pool), origin: Origin::new("(no NodePool)".as_ref()) });
    }
}

/// Counts the workloads of which pods could be made.
pub fn workloads(objects: &Objects) -> usize {
    objects.deployments.len()
        + objects.replica_sets.len()
        + objects.stateful_sets.len()
        + objects.replication_controllers.len()
        + objects.jobs.len()
        + objects.cron_jobs.len()
}

/// Adds the pods of workloads, less those that are there already, each with the defaults of its namespace's LimitRanges. (Pods in files were
/// admitted when they were made.)
pub fn expand(objects: &mut Objects) {
    let (mut made, mut claims) = (Vec::new(), Vec::new());
    let taken: BTreeSet<_> = objects.pods.iter().map(|pod| place(&pod.object.metadata)).collect();
    let mut there: BTreeMap<(String, String, String), usize> = BTreeMap::new();
    // those that have ended are replaced, or were all that was wanted
    for pod in objects.pods.iter().filter(|pod| !has_ended(&pod.object)) {
        let namespace = pod.object.namespace().unwrap_or_else(|| "default".to_owned());
        for owner in pod.object.owner_references() {
            *there.entry((namespace.clone(), owner.kind.clone(), owner.name.clone())).or_default() += 1;
            // a Deployment's ReplicaSet has its name and a hash
            if let ("ReplicaSet", Some((deployment, _))) = (owner.kind.as_str(), owner.name.rsplit_once('-')) {
                *there.entry((namespace.clone(), "Deployment".to_owned(), deployment.to_owned())).or_default() += 1;
            }
        }
    }
    let mut add = |workload: Workload<'_>, origin: &Origin| {
        let key = (workload.namespace(), workload.kind.to_owned(), workload.name());
        let pods = workload.pods(there.get(&key).copied().unwrap_or(0), &taken);
        made.extend(pods.into_iter().map(|pod| Found { object: Box::new(pod), origin: origin.clone() }));
    };
    for found in &objects.deployments {
        let Some(spec) = &found.object.spec else { continue };
        let workload = Workload::new(&*found.object, Some(&spec.template));
        add(workload.times(spec.replicas), &found.origin);
    }
    for found in &objects.replica_sets {
        let Some(spec) = &found.object.spec else { continue };
        let owned = found.object.owner_references().iter().any(|owner| owner.kind == "Deployment");
        if !owned {
            add(Workload::new(&*found.object, spec.template.as_ref()).times(spec.replicas), &found.origin);
        }
    }
    for found in &objects.stateful_sets {
        let Some(spec) = &found.object.spec else { continue };
        let templates = spec.volume_claim_templates.iter().flatten();
        let volumes = templates.map(ResourceExt::name_any).collect();
        let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
        let first = start.and_then(|start| usize::try_from(start).ok()).unwrap_or(0);
        let workload = Workload { claims: volumes, first, ..Workload::new(&*found.object, Some(&spec.template)) };
        let workload = workload.times(spec.replicas);
        claims.extend(
            workload.volume_claims(spec).map(|claim| Found { object: Box::new(claim), origin: found.origin.clone() }),
        );
        add(workload, &found.origin);
    }
    for found in &objects.replication_controllers {
        let Some(spec) = &found.object.spec else { continue };
        add(Workload::new(&*found.object, spec.template.as_ref()).times(spec.replicas), &found.origin);
    }
    for found in &objects.jobs {
        let owned = found.object.owner_references().iter().any(|owner| owner.kind == "CronJob");
        if let (false, Some(spec)) = (owned, &found.object.spec) {
            add(
                Workload::new(&*found.object, Some(&spec.template)).times(at_once(spec, found.object.status.as_ref())),
                &found.origin,
            );
        }
    }
    for found in &objects.cron_jobs {
        let Some(spec) = found.object.spec.as_ref().filter(|spec| spec.suspend != Some(true)) else { continue };
        let Some(job) = &spec.job_template.spec else { continue };
        add(Workload::new(&*found.object, Some(&job.template)).times(at_once(job, None)), &found.origin);
    }
    let there: BTreeSet<_> = objects.volume_claims.iter().map(|claim| place(&claim.object.metadata)).collect();
    claims.retain(|claim| !there.contains(&place(&claim.object.metadata)));
    objects.volume_claims.append(&mut claims);
    let ranges = limit_ranges(objects);
    for pod in made.iter_mut().filter(|_| !ranges.is_empty()) {
        let namespace = pod.object.namespace().unwrap_or_else(|| "default".to_owned());
        pod.object.spec = pod.object.spec.as_ref().map(|spec| admitted(spec, &namespace, &ranges));
    }
    objects.pods.append(&mut made);
}

fn place(meta: &ObjectMeta) -> (String, String) {
    let namespace = meta.namespace.clone().unwrap_or_else(|| "default".to_owned());
    (namespace, meta.name.clone().unwrap_or_default())
}

/// Says whether a pod has run to its end, well or not.
pub fn has_ended(pod: &core::Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// How many pods of a job run at once: none of one that has ended, and no more than are left to succeed.
fn at_once(job: &JobSpec, status: Option<&JobStatus>) -> Option<i32> {
    let ended = |status: &JobStatus| {
        let mut all = status.conditions.iter().flatten();
        all.any(|condition| matches!(&*condition.type_, "Complete" | "Failed") && condition.status == "True")
    };
    if job.suspend == Some(true) || status.is_some_and(ended) {
        return Some(0);
    }
    let parallel = job.parallelism.unwrap_or(1);
    let succeeded = status.and_then(|status| status.succeeded).unwrap_or(0);
    Some(job.completions.map_or(parallel, |completions| parallel.min(completions - succeeded).max(0)))
}

/// What pods are made of.
struct Workload<'a> {
    kind: &'static str,
    version: &'static str,
    meta: &'a ObjectMeta,
    template: Option<&'a core::PodTemplateSpec>,
    replicas: usize,
    /// The number of the first pod, where they are numbered.
    first: usize,
    /// Names of the volume claim templates.
    claims: Vec<String>,
}

impl<'a> Workload<'a> {
    fn new<K: Resource + k8s_openapi::Resource>(object: &'a K, template: Option<&'a core::PodTemplateSpec>) -> Self {
        let (kind, version) = (K::KIND, K::API_VERSION);
        Workload { kind, version, meta: object.meta(), template, replicas: 1, first: 0, claims: Vec::new() }
    }

    /// As often as the spec says; once if it says nothing.
    fn times(mut self, replicas: Option<i32>) -> Self {
        self.replicas = usize::try_from(replicas.unwrap_or(1)).unwrap_or(0).min(MAX_REPLICAS);
        self
    }

    fn namespace(&self) -> String {
        self.meta.namespace.clone().unwrap_or_else(|| "default".to_owned())
    }

    fn name(&self) -> String {
        self.meta.name.clone().unwrap_or_default()
    }

    /// The claims of a StatefulSet's pods.
    fn volume_claims(&self, spec: &StatefulSetSpec) -> impl Iterator<Item = core::PersistentVolumeClaim> {
        let templates = spec.volume_claim_templates.iter().flatten();
        let claim = |template: &core::PersistentVolumeClaim, at: usize| {
            let mut claim = template.clone();
            claim.metadata.name = Some(format!("{}-{}-{at}", template.name_any(), self.name()));
            claim.metadata.namespace = Some(self.namespace());
            claim
        };
        let all =
            templates.flat_map(|template| (self.first..self.first + self.replicas).map(move |at| claim(template, at)));
        all.collect::<Vec<_>>().into_iter()
    }

    /// The pods that are missing when `there` of them exist, whose names are taken.
    fn pods(&self, there: usize, taken: &BTreeSet<(String, String)>) -> Vec<core::Pod> {
        let Some(template) = self.template.filter(|template| template.spec.is_some()) else { return Vec::new() };
        let (namespace, name) = (self.namespace(), self.name());
        // The pods of a StatefulSet are numbered; the names of others say nothing.
        let first = if self.kind == "StatefulSet" { self.first } else { there };
        let free = (first..).filter(|at| !taken.contains(&(namespace.clone(), format!("{name}-{at}"))));
        free.take(self.replicas.saturating_sub(there)).map(|at| self.pod(at, template)).collect()
    }

    fn pod(&self, at: usize, template: &core::PodTemplateSpec) -> core::Pod {
        let (name, meta) = (self.name(), template.metadata.clone().unwrap_or_default());
        let pod_name = format!("{name}-{at}");
        let mut labels = meta.labels.unwrap_or_default();
        let mut spec = template.spec.clone().unwrap_or_default();
        if self.kind == "StatefulSet" {
            labels.insert("apps.kubernetes.io/pod-index".to_owned(), at.to_string());
            labels.insert("statefulset.kubernetes.io/pod-name".to_owned(), pod_name.clone());
        }
        let volumes = self.claims.iter().map(|claim| core::Volume {
            name: claim.clone(),
            persistent_volume_claim: Some(core::PersistentVolumeClaimVolumeSource {
                claim_name: format!("{claim}-{pod_name}"),
                read_only: None,
            }),
            ..core::Volume::default()
        });
        let volumes: Vec<_> = volumes.chain(spec.volumes.take().unwrap_or_default()).collect();
        spec.volumes = Some(volumes).filter(|volumes| !volumes.is_empty());
        let owner = OwnerReference {
            api_version: self.version.to_owned(),
            kind: self.kind.to_owned(),
            name,
            uid: self.meta.uid.clone().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        core::Pod {
            metadata: ObjectMeta {
                name: Some(pod_name),
                namespace: Some(self.namespace()),
                labels: Some(labels),
                annotations: meta.annotations,
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
            status: None,
        }
    }
}

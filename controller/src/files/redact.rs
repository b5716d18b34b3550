//! Objects with only what decisions depend on: what is kept is listed, so that what a new API version adds is left out until someone
//! asks for it. No environment, commands, images, secrets or foreign annotations leave a cluster this way.

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::scheduling::v1 as scheduling;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karp_domain::api::conditions::Condition;
use karp_domain::api::{CapacityBuffer, Ec2NodeClass, NodeClaim, NodeOverlay, NodePool};
use karp_domain::cluster::is_resized;

use super::expand::DEFAULT_CLASS;
use crate::cloud::KEPT;

/// Groups whose annotations are ours, or of the API that we speak.
const ANNOTATION_GROUPS: [&str; 3] = ["karpenter.sh", "karpenter.k8s.aws", "karp.sh"];
/// Numbers that decide: in which order nodes are emptied, and which pods are of a DaemonSet's present template.
const NUMBERS: [&str; 2] = ["controller.kubernetes.io/pod-deletion-cost", "deprecated.daemonset.template.generation"];

/// Keeps of an object what decisions depend on.
pub trait Redact {
    /// Takes everything else out.
    #[must_use]
    fn redacted(self) -> Self;
}

/// Says whether an annotation is kept.
fn is_kept(key: &str, value: &str) -> bool {
    let group = key.split_once('/').map_or("", |(group, _)| group);
    let of = |known: &str| group == known || group.strip_suffix(known).is_some_and(|sub| sub.ends_with('.'));
    ANNOTATION_GROUPS.into_iter().any(of)
        || key == DEFAULT_CLASS
        || (NUMBERS.contains(&key) && value.parse::<i64>().is_ok())
}

fn meta(meta: ObjectMeta) -> ObjectMeta {
    let annotations = meta.annotations.map(|mut all| {
        all.retain(|key, value| is_kept(key, value));
        all
    });
    ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        labels: meta.labels,
        annotations: annotations.filter(|all| !all.is_empty()),
        owner_references: meta.owner_references,
        finalizers: meta.finalizers,
        generation: meta.generation,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
        ..ObjectMeta::default()
    }
}

fn container(container: core::Container) -> core::Container {
    let ports = container.ports.map(|all| all.into_iter().filter(|port| port.host_port.is_some()).collect::<Vec<_>>());
    core::Container {
        name: container.name,
        ports: ports.filter(|all| !all.is_empty()),
        resources: container.resources,
        restart_policy: container.restart_policy,
        ..core::Container::default()
    }
}

/// Volumes that bind a pod to a place, or count against what a node can attach.
fn volume(volume: core::Volume) -> Option<core::Volume> {
    let ephemeral = volume.ephemeral.map(|ephemeral| core::EphemeralVolumeSource {
        volume_claim_template: ephemeral
            .volume_claim_template
            .map(|template| core::PersistentVolumeClaimTemplate { metadata: None, spec: volume_claim(template.spec) }),
    });
    let ebs = volume.aws_elastic_block_store;
    let kept = volume.persistent_volume_claim.is_some() || ephemeral.is_some() || ebs.is_some();
    kept.then_some(core::Volume {
        name: volume.name,
        persistent_volume_claim: volume.persistent_volume_claim,
        ephemeral,
        aws_elastic_block_store: ebs,
        ..core::Volume::default()
    })
}

fn volume_claim(spec: core::PersistentVolumeClaimSpec) -> core::PersistentVolumeClaimSpec {
    core::PersistentVolumeClaimSpec {
        access_modes: spec.access_modes,
        resources: spec.resources,
        storage_class_name: spec.storage_class_name,
        volume_mode: spec.volume_mode,
        volume_name: spec.volume_name,
        ..core::PersistentVolumeClaimSpec::default()
    }
}

fn pod_spec(spec: core::PodSpec) -> core::PodSpec {
    let volumes: Vec<_> = spec.volumes.into_iter().flatten().filter_map(volume).collect();
    core::PodSpec {
        affinity: spec.affinity,
        containers: spec.containers.into_iter().map(container).collect(),
        host_network: spec.host_network,
        init_containers: spec.init_containers.map(|all| all.into_iter().map(container).collect()),
        node_name: spec.node_name,
        node_selector: spec.node_selector,
        os: spec.os,
        overhead: spec.overhead,
        preemption_policy: spec.preemption_policy,
        priority: spec.priority,
        priority_class_name: spec.priority_class_name,
        resource_claims: spec.resource_claims,
        resources: spec.resources,
        runtime_class_name: spec.runtime_class_name,
        scheduler_name: spec.scheduler_name,
        scheduling_gates: spec.scheduling_gates,
        termination_grace_period_seconds: spec.termination_grace_period_seconds,
        tolerations: spec.tolerations,
        topology_spread_constraints: spec.topology_spread_constraints,
        volumes: Some(volumes).filter(|all| !all.is_empty()),
        ..core::PodSpec::default()
    }
}

/// What containers have since a resize in place.
fn in_use(statuses: Vec<core::ContainerStatus>) -> Vec<core::ContainerStatus> {
    let of = |status: core::ContainerStatus| core::ContainerStatus {
        name: status.name,
        allocated_resources: status.allocated_resources,
        resources: status.resources,
        ..core::ContainerStatus::default()
    };
    statuses.into_iter().map(of).collect()
}

impl Redact for core::Pod {
    fn redacted(self) -> Self {
        let condition = |condition: core::PodCondition| core::PodCondition { message: None, ..condition };
        let resized =
            self.spec.as_ref().zip(self.status.as_ref()).is_some_and(|(spec, status)| is_resized(spec, status));
        core::Pod {
            metadata: meta(self.metadata),
            spec: self.spec.map(pod_spec),
            status: self.status.map(|status| core::PodStatus {
                phase: status.phase,
                start_time: status.start_time,
                nominated_node_name: status.nominated_node_name,
                conditions: status.conditions.map(|all| all.into_iter().map(condition).collect()),
                container_statuses: status.container_statuses.filter(|_| resized).map(in_use),
                init_container_statuses: status.init_container_statuses.filter(|_| resized).map(in_use),
                ..core::PodStatus::default()
            }),
        }
    }
}

impl Redact for core::Node {
    fn redacted(self) -> Self {
        let condition = |condition: core::NodeCondition| core::NodeCondition { message: None, ..condition };
        core::Node {
            metadata: meta(self.metadata),
            spec: self.spec.map(|spec| core::NodeSpec {
                provider_id: spec.provider_id,
                taints: spec.taints,
                unschedulable: spec.unschedulable,
                ..core::NodeSpec::default()
            }),
            status: self.status.map(|status| core::NodeStatus {
                allocatable: status.allocatable,
                capacity: status.capacity,
                conditions: status.conditions.map(|all| all.into_iter().map(condition).collect()),
                ..core::NodeStatus::default()
            }),
        }
    }
}

impl Redact for core::Namespace {
    fn redacted(self) -> Self {
        core::Namespace { metadata: meta(self.metadata), ..core::Namespace::default() }
    }
}

impl Redact for core::PersistentVolume {
    fn redacted(self) -> Self {
        let csi = |csi: core::CSIPersistentVolumeSource| core::CSIPersistentVolumeSource {
            driver: csi.driver,
            volume_handle: csi.volume_handle,
            ..core::CSIPersistentVolumeSource::default()
        };
        let spec = self.spec.map(|spec| core::PersistentVolumeSpec {
            access_modes: spec.access_modes,
            aws_elastic_block_store: spec.aws_elastic_block_store,
            capacity: spec.capacity,
            claim_ref: spec.claim_ref,
            csi: spec.csi.map(csi),
            // Only that there is one matters: a node's own disk is gone with the node.
            host_path: spec.host_path.map(|_| core::HostPathVolumeSource::default()),
            local: spec.local,
            node_affinity: spec.node_affinity,
            storage_class_name: spec.storage_class_name,
            volume_mode: spec.volume_mode,
            ..core::PersistentVolumeSpec::default()
        });
        core::PersistentVolume { metadata: meta(self.metadata), spec, status: None }
    }
}

impl Redact for core::PersistentVolumeClaim {
    fn redacted(self) -> Self {
        core::PersistentVolumeClaim {
            metadata: meta(self.metadata),
            spec: self.spec.map(volume_claim),
            status: self.status.map(|status| core::PersistentVolumeClaimStatus {
                phase: status.phase,
                ..core::PersistentVolumeClaimStatus::default()
            }),
        }
    }
}

impl Redact for storage::StorageClass {
    fn redacted(self) -> Self {
        storage::StorageClass {
            metadata: meta(self.metadata),
            allowed_topologies: self.allowed_topologies,
            provisioner: self.provisioner,
            volume_binding_mode: self.volume_binding_mode,
            ..storage::StorageClass::default()
        }
    }
}

impl Redact for storage::CSINode {
    fn redacted(self) -> Self {
        storage::CSINode { metadata: meta(self.metadata), spec: self.spec }
    }
}

impl Redact for storage::VolumeAttachment {
    fn redacted(self) -> Self {
        storage::VolumeAttachment {
            metadata: meta(self.metadata),
            spec: storage::VolumeAttachmentSpec {
                attacher: self.spec.attacher,
                node_name: self.spec.node_name,
                source: storage::VolumeAttachmentSource {
                    persistent_volume_name: self.spec.source.persistent_volume_name,
                    ..storage::VolumeAttachmentSource::default()
                },
            },
            status: None,
        }
    }
}

fn pod_template(template: core::PodTemplateSpec) -> core::PodTemplateSpec {
    core::PodTemplateSpec { metadata: template.metadata.map(meta), spec: template.spec.map(pod_spec) }
}

impl Redact for core::PodTemplate {
    fn redacted(self) -> Self {
        core::PodTemplate { metadata: meta(self.metadata), template: self.template.map(pod_template) }
    }
}

impl Redact for apps::DaemonSet {
    fn redacted(self) -> Self {
        let spec = self.spec.map(|spec| apps::DaemonSetSpec {
            selector: spec.selector,
            template: pod_template(spec.template),
            ..apps::DaemonSetSpec::default()
        });
        apps::DaemonSet { metadata: meta(self.metadata), spec, status: None }
    }
}

impl Redact for apps::Deployment {
    fn redacted(self) -> Self {
        let spec = self.spec.map(|spec| apps::DeploymentSpec {
            replicas: spec.replicas,
            selector: spec.selector,
            template: pod_template(spec.template),
            ..apps::DeploymentSpec::default()
        });
        apps::Deployment { metadata: meta(self.metadata), spec, status: None }
    }
}

impl Redact for apps::ReplicaSet {
    fn redacted(self) -> Self {
        let spec = self.spec.map(|spec| apps::ReplicaSetSpec {
            replicas: spec.replicas,
            selector: spec.selector,
            template: spec.template.map(pod_template),
            ..apps::ReplicaSetSpec::default()
        });
        apps::ReplicaSet { metadata: meta(self.metadata), spec, status: None }
    }
}

impl Redact for apps::StatefulSet {
    fn redacted(self) -> Self {
        let claim =
            |claim: core::PersistentVolumeClaim| core::PersistentVolumeClaim { status: None, ..claim.redacted() };
        let spec = self.spec.map(|spec| apps::StatefulSetSpec {
            replicas: spec.replicas,
            selector: spec.selector,
            template: pod_template(spec.template),
            // those of its pods that are made by --expand
            volume_claim_templates: spec.volume_claim_templates.map(|all| all.into_iter().map(claim).collect()),
            ..apps::StatefulSetSpec::default()
        });
        apps::StatefulSet { metadata: meta(self.metadata), spec, status: None }
    }
}

impl Redact for core::LimitRange {
    fn redacted(self) -> Self {
        core::LimitRange { metadata: meta(self.metadata), ..self }
    }
}

impl Redact for policy::PodDisruptionBudget {
    fn redacted(self) -> Self {
        // its counts are decided on; conditions say why they are what they are
        let status = self.status.map(|status| policy::PodDisruptionBudgetStatus { conditions: None, ..status });
        policy::PodDisruptionBudget { metadata: meta(self.metadata), status, ..self }
    }
}

impl Redact for scheduling::PriorityClass {
    fn redacted(self) -> Self {
        scheduling::PriorityClass { metadata: meta(self.metadata), description: None, ..self }
    }
}

impl Redact for core::ConfigMap {
    /// Only what the controller keeps for itself.
    fn redacted(self) -> Self {
        let name = self.metadata.name.clone().unwrap_or_default();
        let kept = self.binary_data.map(|mut data| {
            data.retain(|key, _| KEPT.contains(&(&*name, &**key)));
            data
        });
        core::ConfigMap {
            metadata: meta(self.metadata),
            binary_data: kept.filter(|data| !data.is_empty()),
            ..core::ConfigMap::default()
        }
    }
}

/// Messages of conditions may quote anything; their types, reasons and times are what is decided on.
fn silent(conditions: &mut [Condition]) {
    conditions.iter_mut().for_each(|condition| condition.message = String::new());
}

impl Redact for NodeOverlay {
    fn redacted(mut self) -> Self {
        self.metadata = meta(self.metadata);
        self.status.iter_mut().for_each(|status| silent(&mut status.conditions));
        self
    }
}

impl Redact for CapacityBuffer {
    fn redacted(mut self) -> Self {
        self.metadata = meta(self.metadata);
        self.status.iter_mut().for_each(|status| silent(&mut status.conditions));
        self
    }
}

impl Redact for NodePool {
    fn redacted(mut self) -> Self {
        self.metadata = meta(self.metadata);
        let template = &mut self.spec.template.metadata;
        if !template.annotations.is_absent() {
            let mut kept = template.annotations.to_map();
            kept.retain(|key, value| is_kept(key, value));
            template.annotations = kept.into();
        }
        self.status.iter_mut().for_each(|status| silent(&mut status.conditions));
        self
    }
}

impl Redact for NodeClaim {
    fn redacted(mut self) -> Self {
        self.metadata = meta(self.metadata);
        self.status.iter_mut().for_each(|status| silent(&mut status.conditions));
        self
    }
}

impl Redact for Ec2NodeClass {
    /// User data may hold anything; what its drift depends on is the hash beside it.
    fn redacted(mut self) -> Self {
        self.metadata = meta(self.metadata);
        self.spec.user_data = None;
        self.status.iter_mut().for_each(|status| silent(&mut status.conditions));
        self
    }
}

#[cfg(test)]
mod tests;

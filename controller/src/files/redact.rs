//! Objects with only what decisions depend on: what is kept is listed, so that what a new API version adds is left out until someone
//! asks for it. No environment, commands, images, secrets or foreign annotations leave a cluster this way.

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::scheduling::v1 as scheduling;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karp_domain::api::conditions::Condition;
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodeOverlay, NodePool};

use super::expand::DEFAULT_CLASS;
use crate::cloud::aws::KEPT;

/// Groups whose annotations are ours, or of the API that we speak.
const ANNOTATION_GROUPS: [&str; 3] = ["karpenter.sh", "karpenter.k8s.aws", "karp.sh"];
/// A number that decides in which order nodes are emptied.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

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
        || (key == DELETION_COST && value.parse::<i32>().is_ok())
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

impl Redact for core::Pod {
    fn redacted(self) -> Self {
        let condition = |condition: core::PodCondition| core::PodCondition { message: None, ..condition };
        core::Pod {
            metadata: meta(self.metadata),
            spec: self.spec.map(pod_spec),
            status: self.status.map(|status| core::PodStatus {
                phase: status.phase,
                start_time: status.start_time,
                nominated_node_name: status.nominated_node_name,
                conditions: status.conditions.map(|all| all.into_iter().map(condition).collect()),
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

impl Redact for apps::DaemonSet {
    fn redacted(self) -> Self {
        let template = |template: core::PodTemplateSpec| core::PodTemplateSpec {
            metadata: template.metadata.map(meta),
            spec: template.spec.map(pod_spec),
        };
        let spec = self.spec.map(|spec| apps::DaemonSetSpec {
            selector: spec.selector,
            template: template(spec.template),
            ..apps::DaemonSetSpec::default()
        });
        apps::DaemonSet { metadata: meta(self.metadata), spec, status: None }
    }
}

impl Redact for core::LimitRange {
    fn redacted(self) -> Self {
        core::LimitRange { metadata: meta(self.metadata), ..self }
    }
}

impl Redact for policy::PodDisruptionBudget {
    fn redacted(self) -> Self {
        policy::PodDisruptionBudget { metadata: meta(self.metadata), ..self }
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
mod tests {
    use karp_domain::cluster;
    use serde::Serialize;
    use serde_json::{Value, json};

    use super::*;

    const SECRET: &str = "hunter2";

    fn spec() -> Value {
        let container = |name: &str| {
            json!({"name": name, "image": SECRET, "command": [SECRET], "args": [SECRET],
                "env": [{"name": SECRET, "value": SECRET}], "envFrom": [{"secretRef": {"name": SECRET}}],
                "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}],
                "livenessProbe": {"exec": {"command": [SECRET]}},
                "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "1Gi"}}})
        };
        let mut sidecar = container("sidecar");
        sidecar["restartPolicy"] = json!("Always");
        json!({
            "containers": [container("main")], "initContainers": [sidecar],
            "serviceAccountName": SECRET, "imagePullSecrets": [{"name": SECRET}], "hostAliases": [{"ip": SECRET}],
            "nodeSelector": {"kubernetes.io/arch": "arm64"}, "priority": 7, "overhead": {"cpu": "10m"},
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}}],
            "volumes": [{"name": "a", "secret": {"secretName": SECRET}}, {"name": "b", "configMap": {"name": SECRET}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "d", "ephemeral": {"volumeClaimTemplate": {"metadata": {"annotations": {"a": SECRET}},
                    "spec": {"storageClassName": "gp3"}}}}],
        })
    }

    fn meta() -> Value {
        json!({"name": "x", "namespace": "n", "uid": "u", "labels": {"app": "x"}, "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": SECRET, "example.com/token": SECRET,
            "notkarpenter.sh/token": SECRET, "controller.kubernetes.io/pod-deletion-cost": "5", "karpenter.sh/do-not-disrupt": "true"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "r"}]})
    }

    fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("an object")
    }

    fn keeps_no_secret(object: &impl Serialize) {
        let text = serde_json::to_string(object).expect("JSON");
        assert!(!text.contains(SECRET), "{text}");
    }

    #[test]
    fn a_pod_is_decided_on_as_before_and_tells_nothing_else() {
        let pod: core::Pod = typed(
            json!({"metadata": meta(), "spec": spec(), "status": {"phase": "Pending", "message": SECRET,
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SECRET}]}}),
        );
        let redacted = pod.clone().redacted();
        keeps_no_secret(&redacted);
        assert_eq!(cluster::Pod::from_kube(&redacted), cluster::Pod::from_kube(&pod));
        assert_eq!(redacted.clone().redacted(), redacted);
    }

    #[test]
    fn other_kinds_are_decided_on_as_before_and_tell_nothing_else() {
        let daemons: apps::DaemonSet =
            typed(json!({"metadata": meta(), "spec": {"selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": meta(), "spec": spec()}}}));
        keeps_no_secret(&daemons.clone().redacted());
        assert_eq!(cluster::DaemonSet::from_kube(&daemons.clone().redacted()), cluster::DaemonSet::from_kube(&daemons));

        let node: core::Node = typed(
            json!({"metadata": meta(), "spec": {"providerID": "aws:///z/i-1", "podCIDR": SECRET,
            "taints": [{"key": "k", "effect": "NoSchedule"}]}, "status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "1"},
            "images": [{"names": [SECRET]}], "conditions": [{"type": "Ready", "status": "True", "message": SECRET}]}}),
        );
        let redacted = node.clone().redacted();
        keeps_no_secret(&redacted);
        let read = |node: &core::Node| {
            cluster::Node::from_kube(node).map(|read| cluster::Node { annotations: [].into(), ..read })
        };
        assert_eq!(read(&redacted), read(&node));

        let volume: core::PersistentVolume = typed(json!({"metadata": meta(), "spec": {"storageClassName": "gp3",
            "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "volumeAttributes": {"a": SECRET},
                "nodePublishSecretRef": {"name": SECRET}},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a"]}]}]}}}}));
        keeps_no_secret(&volume.clone().redacted());
        assert_eq!(cluster::Volume::from_kube(&volume.clone().redacted()), cluster::Volume::from_kube(&volume));

        let class: storage::StorageClass = typed(json!({"metadata": meta(), "provisioner": "ebs.csi.aws.com",
            "parameters": {"key": SECRET}, "volumeBindingMode": "WaitForFirstConsumer"}));
        keeps_no_secret(&class.clone().redacted());
        assert_eq!(
            cluster::StorageClass::from_kube(&class.clone().redacted()),
            cluster::StorageClass::from_kube(&class)
        );

        let class: Ec2NodeClass =
            typed(json!({"metadata": meta(), "spec": {"subnetSelectorTerms": [], "securityGroupSelectorTerms": [],
            "amiSelectorTerms": [], "userData": SECRET}, "status": status()}));
        keeps_no_secret(&class.redacted());
    }

    fn status() -> Value {
        json!({"conditions": [{"type": "Ready", "status": "False", "reason": "NotReady", "message": SECRET,
            "lastTransitionTime": "2026-11-21T12:00:00Z"}]})
    }

    #[test]
    fn karpenters_kinds_are_decided_on_as_before_and_tell_nothing_else() {
        let reference = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let pool: NodePool = typed(json!({"metadata": meta(), "status": status(), "spec": {"template": {
            "metadata": {"annotations": {"example.com/token": SECRET, "karp.sh/kept": "yes"}},
            "spec": {"requirements": [], "nodeClassRef": reference}}}}));
        let redacted = pool.clone().redacted();
        keeps_no_secret(&redacted);
        let mut before = cluster::Pool::from_kube(&pool).expect("a pool");
        before.annotations.retain(|key, _| key.starts_with("karp"));
        assert_eq!(cluster::Pool::from_kube(&redacted), Ok(before));
        let mut status = status();
        status["providerID"] = json!("aws:///z/i-1");
        let claim: NodeClaim = typed(json!({"metadata": meta(), "status": status,
            "spec": {"requirements": [], "nodeClassRef": reference}}));
        keeps_no_secret(&claim.clone().redacted());
        let read = |claim: &NodeClaim| {
            let mut read = cluster::Claim::from_kube(claim).expect("a claim");
            silent(&mut read.conditions);
            cluster::Claim { annotations: [].into(), ..read }
        };
        assert_eq!(read(&claim.clone().redacted()), read(&claim));
        let map: core::ConfigMap =
            typed(json!({"metadata": meta(), "data": {"a": SECRET}, "binaryData": {"a": "aHVudGVyMg=="}}));
        let redacted = map.redacted();
        assert_eq!((redacted.data, redacted.binary_data), (None, None));
        let own: core::ConfigMap = typed(json!({"metadata": {"name": "karp-prices"},
            "binaryData": {"prices.v2.json.gz": "AAAA", "other": "aHVudGVyMg=="}}));
        let kept = own.redacted().binary_data.expect("prices");
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["prices.v2.json.gz"]);
    }
}

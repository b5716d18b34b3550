//! One object: from a piece of text to the type that its kind names.

use std::borrow::Cow;
use std::collections::HashMap;

use karp_domain::api::validate::{self, Violation, ViolationKind};
use kube::{Resource, ResourceExt};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::text::{Fault, Piece};
use super::{Found, Objects, Origin, Problem};
use crate::cloud::KEPT;

/// Names the kinds whose objects decide something, with the version that is read and where such objects are kept.
macro_rules! kinds {
    ($($version:literal $kind:literal $name:ident $list:ident;)*) => {
        /// An object of a kind that decides something, or the name of another kind.
        pub enum Object {
            $($name(Box<Kind!($name)>),)*
            Passed(String),
            /// A kind that Karpenter had once, and that is not read.
            NotRead { kind: String, advice: &'static str },
        }

        fn typed(piece: &Piece<'_>, version: &str, kind: &str) -> Result<(Object, Vec<Fault>), Fault> {
            match (version, kind) {
                $(($version, $kind) => parse(piece, $kind).map(|(object, doubts)| (Object::$name(object), doubts)),)*
                $((other, $kind) if group(other) == group($version) => {
                    let message = format!("{} has apiVersion {other:?}; {} is read{}", $kind, $version, successor(other));
                    Err(Fault { line: piece.line, message })
                })*
                _ => Ok((Object::Passed(kind.to_owned()), Vec::new())),
            }
        }

        impl Objects {
            /// Takes an object in.
            pub(super) fn add(&mut self, object: Object, origin: &Origin) -> Result<(), Problem> {
                match object {
                    $(Object::$name(mut object) => {
                        if object.name_any().is_empty() {
                            return Err(origin.problem(format!("{}: metadata.name is missing", $kind)));
                        }
                        // who wrote which field decides nothing, and is the largest part of many objects
                        object.meta_mut().managed_fields = None;
                        self.$list.push(Found { object, origin: origin.clone() });
                    })*
                    Object::Passed(kind) => *self.passed.entry(kind).or_default() += 1,
                    Object::NotRead { kind, advice } => {
                        self.warnings.push(origin.problem(format!("{kind} is not read: {advice}")));
                    }
                }
                Ok(())
            }

            /// Finds objects that are there twice.
            pub(super) fn doubles(&self) -> Vec<Problem> {
                let mut problems = Vec::new();
                $(doubles($kind, &self.$list, &mut problems);)*
                problems
            }
        }
    };
}

/// The type of a kind.
macro_rules! Kind {
    (Pool) => {
        karp_domain::api::NodePool
    };
    (Claim) => {
        karp_domain::api::NodeClaim
    };
    (Class) => {
        karp_domain::api::Ec2NodeClass
    };
    (Overlay) => {
        karp_domain::api::NodeOverlay
    };
    (Buffer) => {
        karp_domain::api::CapacityBuffer
    };
    (DaemonSet) => {
        k8s_openapi::api::apps::v1::DaemonSet
    };
    (Deployment) => {
        k8s_openapi::api::apps::v1::Deployment
    };
    (ReplicaSet) => {
        k8s_openapi::api::apps::v1::ReplicaSet
    };
    (StatefulSet) => {
        k8s_openapi::api::apps::v1::StatefulSet
    };
    (Job) => {
        k8s_openapi::api::batch::v1::Job
    };
    (CronJob) => {
        k8s_openapi::api::batch::v1::CronJob
    };
    (Budget) => {
        k8s_openapi::api::policy::v1::PodDisruptionBudget
    };
    (PriorityClass) => {
        k8s_openapi::api::scheduling::v1::PriorityClass
    };
    (StorageClass) => {
        k8s_openapi::api::storage::v1::StorageClass
    };
    (CsiNode) => {
        k8s_openapi::api::storage::v1::CSINode
    };
    (Attachment) => {
        k8s_openapi::api::storage::v1::VolumeAttachment
    };
    (Volume) => {
        k8s_openapi::api::core::v1::PersistentVolume
    };
    (VolumeClaim) => {
        k8s_openapi::api::core::v1::PersistentVolumeClaim
    };
    ($core:ident) => {
        k8s_openapi::api::core::v1::$core
    };
}

kinds! {
    "v1" "Pod" Pod pods;
    "v1" "Node" Node nodes;
    "v1" "Namespace" Namespace namespaces;
    "v1" "LimitRange" LimitRange limit_ranges;
    "v1" "PersistentVolume" Volume volumes;
    "v1" "PersistentVolumeClaim" VolumeClaim volume_claims;
    "v1" "ConfigMap" ConfigMap config_maps;
    "v1" "PodTemplate" PodTemplate pod_templates;
    "v1" "ReplicationController" ReplicationController replication_controllers;
    "apps/v1" "DaemonSet" DaemonSet daemons;
    "apps/v1" "Deployment" Deployment deployments;
    "apps/v1" "ReplicaSet" ReplicaSet replica_sets;
    "apps/v1" "StatefulSet" StatefulSet stateful_sets;
    "batch/v1" "Job" Job jobs;
    "batch/v1" "CronJob" CronJob cron_jobs;
    "policy/v1" "PodDisruptionBudget" Budget budgets;
    "scheduling.k8s.io/v1" "PriorityClass" PriorityClass priority_classes;
    "storage.k8s.io/v1" "StorageClass" StorageClass storage_classes;
    "storage.k8s.io/v1" "CSINode" CsiNode csi_nodes;
    "storage.k8s.io/v1" "VolumeAttachment" Attachment attachments;
    "karpenter.sh/v1" "NodePool" Pool pools;
    "karpenter.sh/v1" "NodeClaim" Claim claims;
    "karpenter.k8s.aws/v1" "EC2NodeClass" Class classes;
    "karpenter.sh/v1alpha1" "NodeOverlay" Overlay overlays;
    "autoscaling.x-k8s.io/v1beta1" "CapacityBuffer" Buffer buffers;
}

/// Reads the object of a piece; with what deserves a look in it.
pub fn read(piece: &Piece<'_>) -> Result<(Object, Vec<Fault>), Fault> {
    let (version, kind) = match &piece.kind {
        Some((version, kind)) => (version.clone(), kind.clone()),
        None if looks_like_pod(piece) => (Cow::Borrowed("v1"), Cow::Borrowed("Pod")),
        None => return Err(Fault { line: piece.line, message: "kind is missing".to_owned() }),
    };
    let version = if version.is_empty() { usual_version(&kind) } else { version };
    let advice = match (group(&version), &*kind) {
        ("", "ConfigMap")
            if !piece
                .parse::<Named>()?
                .metadata
                .name
                .is_some_and(|name| KEPT.iter().any(|(kept, _)| *kept == name)) =>
        {
            return Ok((Object::Passed(kind.into_owned()), Vec::new()));
        }
        ("karpenter.sh", "Provisioner") => {
            "a NodePool (karpenter.sh/v1) takes its place; `karp migrate -f` writes it as Terraform"
        }
        ("karpenter.k8s.aws", "AWSNodeTemplate") => {
            "an EC2NodeClass (karpenter.k8s.aws/v1) takes its place; `karp migrate -f` writes it as Terraform"
        }
        _ => return typed(piece, &version, &kind),
    };
    Ok((Object::NotRead { kind: kind.into_owned(), advice }, Vec::new()))
}

/// What to do with an object of an older API.
fn successor(version: &str) -> &'static str {
    match version {
        "karpenter.sh/v1alpha5"
        | "karpenter.sh/v1beta1"
        | "karpenter.k8s.aws/v1alpha1"
        | "karpenter.k8s.aws/v1beta1" => ": `karp migrate -f` converts it, into Terraform",
        _ => "",
    }
}

fn group(version: &str) -> &str {
    version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// Items of a typed list, and objects out of a client, may not say their version.
fn usual_version(kind: &str) -> Cow<'static, str> {
    Cow::Borrowed(match kind {
        "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet" => "apps/v1",
        "Job" | "CronJob" => "batch/v1",
        "PodDisruptionBudget" => "policy/v1",
        "PriorityClass" => "scheduling.k8s.io/v1",
        "StorageClass" | "CSINode" | "VolumeAttachment" => "storage.k8s.io/v1",
        "NodePool" | "NodeClaim" => "karpenter.sh/v1",
        "EC2NodeClass" => "karpenter.k8s.aws/v1",
        "NodeOverlay" => "karpenter.sh/v1alpha1",
        "CapacityBuffer" => "autoscaling.x-k8s.io/v1beta1",
        _ => "v1",
    })
}

/// A bare array of pods may leave out what they are; nothing else has containers right under its spec.
fn looks_like_pod(piece: &Piece<'_>) -> bool {
    #[derive(Deserialize)]
    struct Guess {
        #[serde(rename = "spec")]
        _spec: Spec,
    }
    #[derive(Deserialize)]
    struct Spec {
        #[serde(rename = "containers")]
        _containers: Vec<IgnoredAny>,
    }
    piece.parse::<Guess>().is_ok()
}

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
struct Metadata {
    namespace: Option<String>,
    name: Option<String>,
}

/// What the API server prunes is no fault here either, but hardly what was meant.
fn parse<T: DeserializeOwned>(piece: &Piece<'_>, kind: &str) -> Result<(Box<T>, Vec<Fault>), Fault> {
    let named = |fault: Fault| {
        let name = piece.parse::<Named>().ok().and_then(|named| {
            let name = named.metadata.name?;
            Some(named.metadata.namespace.map_or_else(|| name.clone(), |namespace| format!("{namespace}/{name}")))
        });
        let whose = name.map_or_else(|| kind.to_owned(), |name| format!("{kind} {name}"));
        Fault { line: fault.line, message: format!("{whose}: {}", fault.message) }
    };
    let object = piece.parse().map_err(named)?;
    let rules: Option<fn(&Value) -> Vec<Violation>> = match kind {
        "NodePool" => Some(validate::node_pool),
        "NodeClaim" => Some(validate::node_claim),
        "EC2NodeClass" => Some(validate::node_class),
        "NodeOverlay" => Some(validate::node_overlay),
        "CapacityBuffer" => Some(validate::capacity_buffer),
        _ => None,
    };
    let Some(rules) = rules else { return Ok((Box::new(object), Vec::new())) };
    // status is its controller's affair
    let violations = rules(&piece.parse()?).into_iter().filter(|violation| !violation.path.starts_with("status"));
    let (unknown, refused): (Vec<_>, Vec<_>) = violations.partition(|one| one.kind == ViolationKind::Unknown);
    if let Some(first) = refused.first() {
        let all: Vec<String> = refused.iter().map(ToString::to_string).collect();
        return Err(named(Fault { line: piece.line_at(&first.path), message: all.join("; ") }));
    }
    let doubt = |one: &Violation| {
        let message = format!("{one}; it is passed over");
        named(Fault { line: piece.line_at(&one.path), message })
    };
    Ok((Box::new(object), unknown.iter().map(doubt).collect()))
}

fn doubles<K: Resource>(kind: &str, all: &[Found<K>], problems: &mut Vec<Problem>) {
    let mut seen: HashMap<(String, String), &Origin> = HashMap::with_capacity(all.len());
    for found in all {
        // an object without a namespace is in "default", or of a kind that has none
        let key = (found.object.namespace().unwrap_or_else(|| "default".to_owned()), found.object.name_any());
        let name = found.object.namespace().map_or_else(|| key.1.clone(), |namespace| format!("{namespace}/{}", key.1));
        if let Some(first) = seen.insert(key, &found.origin) {
            problems.push(found.origin.problem(format!("{kind} {name} is at {first} already")));
        }
    }
}

//! CapacityBuffers as the engine sees them: how many pods of which shape room is kept for.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use super::limit_range::{LimitRange, admitted};
use super::{DoNotDisrupt, Owner, Phase, Pod, PodKey, Unreadable};
use crate::api::{ACTIVE_CAPACITY, CapacityBuffer, CapacityBufferSpec};
use crate::resources::Resources;

/// Pods that one buffer keeps room for at most; what lies beyond is a mistake in a percentage or a limit, and would only cost memory.
pub const MOST_VIRTUAL_PODS: u32 = 10_000;

/// Describes a buffer that is ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Namespace and name.
    pub key: PodKey,
    /// How many pods it keeps room for, as its status shows.
    pub replicas: u32,
    /// What every one of its pods is like, but for the name.
    model: Pod,
}

/// Names the object, of the buffer's namespace, that says what the pods of a buffer are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reference<'b> {
    /// A PodTemplate by name.
    Template(&'b str),
    /// A workload by kind and name.
    Workload(Workload, &'b str),
}

/// Lists the kinds of workloads that a buffer may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // the kinds name themselves
pub enum Workload {
    Deployment,
    StatefulSet,
    ReplicaSet,
}

impl Workload {
    /// Answers the name of the kind.
    pub const fn kind(self) -> &'static str {
        match self {
            Workload::Deployment => "Deployment",
            Workload::StatefulSet => "StatefulSet",
            Workload::ReplicaSet => "ReplicaSet",
        }
    }
}

impl<'b> Reference<'b> {
    /// Answers what a buffer refers to; nothing where it names a kind that it may not, or no object at all.
    pub fn of(buffer: &'b CapacityBuffer) -> Option<Self> {
        let spec = &buffer.spec;
        if let Some(template) = &spec.pod_template_ref {
            return Some(Reference::Template(&template.name));
        }
        let scalable = spec.scalable_ref.as_ref()?;
        let known = [Workload::Deployment, Workload::StatefulSet, Workload::ReplicaSet];
        let workload = known.into_iter().find(|workload| workload.kind() == scalable.kind)?;
        Some(Reference::Workload(workload, &scalable.name))
    }
}

/// What a buffer refers to, as far as it was found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Referred<'r> {
    /// The pod template: of the PodTemplate, or of the workload.
    pub template: Option<&'r core::PodTemplateSpec>,
    /// The workload's replicas.
    pub scale: Option<i32>,
}

impl<'r> Referred<'r> {
    /// Answers what a workload says; its replicas are 1 where it leaves them open, as by the API server's default.
    pub fn workload(template: Option<&'r core::PodTemplateSpec>, replicas: Option<i32>) -> Self {
        Referred { template, scale: Some(replicas.unwrap_or(1)) }
    }
}

/// Says why a buffer is not ready, in the reasons of its condition ReadyForProvisioning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Neither reference is set.
    #[error("neither podTemplateRef nor scalableRef is set: name what the pods are like")]
    NoReference,
    /// The PodTemplate does not exist.
    #[error("PodTemplate {0} does not exist in the buffer's namespace")]
    NoTemplate(String),
    /// The workload does not exist.
    #[error("{0} does not exist in the buffer's namespace")]
    NoScalable(String),
    /// Another strategy than nodes that run.
    #[error("provisioningStrategy {0:?} is not known: use {known}", known = ACTIVE_CAPACITY)]
    Strategy(String),
    /// The template cannot be read.
    #[error(transparent)]
    Template(#[from] Unreadable),
}

impl NotReady {
    /// Answers Karpenter's reason.
    pub const fn reason(&self) -> &'static str {
        match self {
            NotReady::NoTemplate(_) => "PodTemplateNotFound",
            NotReady::NoScalable(_) => "ScalableRefNotFound",
            NotReady::NoReference | NotReady::Strategy(_) | NotReady::Template(_) => "ResolutionFailed",
        }
    }
}

impl Buffer {
    /// Reads a buffer with what it refers to. Its pods ask for what pods of the template would: `ranges` give what those leave open.
    ///
    /// # Errors
    /// [`NotReady`], with what to change.
    pub fn from_kube(
        buffer: &CapacityBuffer,
        referred: Referred<'_>,
        ranges: &[Arc<LimitRange>],
    ) -> Result<Self, NotReady> {
        let meta = &buffer.metadata;
        let spec = &buffer.spec;
        let namespace = meta.namespace.as_deref().unwrap_or("default");
        let name = meta.name.as_deref().unwrap_or_default();
        if spec.provisioning_strategy != ACTIVE_CAPACITY {
            return Err(NotReady::Strategy(spec.provisioning_strategy.clone()));
        }
        let template = referred.template.ok_or_else(|| match (&spec.pod_template_ref, &spec.scalable_ref) {
            (Some(template), _) => NotReady::NoTemplate(template.name.clone()),
            (None, Some(scalable)) => NotReady::NoScalable(format!("{} {}", scalable.kind, scalable.name)),
            (None, None) => NotReady::NoReference,
        })?;
        let mut metadata = template.metadata.clone().unwrap_or_default();
        metadata.namespace = Some(namespace.to_owned());
        metadata.name = Some(format!("capacity-buffer-{name}"));
        metadata.uid = meta.uid.clone();
        metadata.creation_timestamp = meta.creation_timestamp.clone();
        let spec_of_pods = template.spec.as_ref().map(|spec| admitted(spec, namespace, ranges));
        let pod = core::Pod { metadata, spec: spec_of_pods, status: None };
        let read = Pod::from_kube(&pod)?;
        let model = Pod {
            // its volumes do not exist, nobody nominated it, and nothing may keep its room from moving
            claims: Vec::new(),
            phase: Phase::Pending,
            node: None,
            nominated: None,
            unschedulable: true,
            gated: false,
            deletes_at: None,
            owner: Owner::Controller,
            daemon_set: None,
            do_not_disrupt: DoNotDisrupt::No,
            priority: i32::MIN,
            deletion_cost: i32::MIN,
            ..read
        };
        let replicas = replicas(spec, referred.scale, &model.shape.requests);
        Ok(Buffer { key: PodKey::new(namespace, name), replicas, model })
    }

    /// Makes its virtual pods, which exist nowhere but in plans, at most [`MOST_VIRTUAL_PODS`].
    pub fn pods(&self) -> impl Iterator<Item = Arc<Pod>> {
        (0..self.replicas.min(MOST_VIRTUAL_PODS)).map(|at| {
            let mut pod = self.model.clone();
            pod.key.name = format!("{}-{at}", self.model.key.name).into();
            pod.uid = format!("{}-{at}", self.model.uid).into();
            Arc::new(pod)
        })
    }

    /// Says whether a virtual pod is one of its own.
    pub fn owns(&self, pod: &PodKey) -> bool {
        let number = pod.name.strip_prefix(&*self.model.key.name).and_then(|rest| rest.strip_prefix('-'));
        pod.namespace == self.key.namespace
            && number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

/// The larger of `replicas` and the percentage, which is at least one of a workload that runs, as far as `limits` allow; what limits allow
/// when neither is set.
fn replicas(spec: &CapacityBufferSpec, scale: Option<i32>, requests: &Resources) -> u32 {
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let scale = scale.map(count).filter(|scale| *scale > 0 && spec.scalable_ref.is_some());
    let percentage = spec.percentage.map(count).zip(scale).map(|(percent, scale)| {
        let share = (u64::from(percent) * u64::from(scale)).div_ceil(100);
        u32::try_from(share).unwrap_or(u32::MAX)
    });
    let wanted = spec.replicas.map(count).max(percentage);
    let limits = spec.limits.as_ref().and_then(|limits| {
        let asked = limits.iter().filter(|(name, _)| requests.get(name).is_positive());
        let times = asked.map(|(name, limit)| limit.nanos().max(0) / requests.get(name).nanos());
        times.min().map(|times| u32::try_from(times).unwrap_or(u32::MAX))
    });
    match (wanted, limits) {
        (Some(wanted), Some(limits)) => wanted.min(limits),
        (one, other) => one.or(other).unwrap_or(0),
    }
}

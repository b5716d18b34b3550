//! The life of one pod, from binding to its last deletion.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    Shared,
    container::Container,
    environment::Variables,
    fargate_node::{self, Place},
    identity::Identity,
};

/// How often a pod is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How often its Node's lease is renewed; a kubelet's 10 s.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Between tries when the API server refuses.
const RETRY: Duration = Duration::from_secs(1);
/// A process gets so long when its pod vanished or the sandbox stops.
const ABRUPT: Duration = Duration::from_secs(1);

type Updates = watch::Receiver<Option<Arc<Pod>>>;

struct Worker {
    shared: Arc<Shared>,
    pods: Api<Pod>,
    place: Place,
    identity: Identity,
    containers: Vec<Container>,
    told: Value,
    started: Timestamp,
    transitions: BTreeMap<&'static str, (bool, Timestamp)>,
}

/// Runs a pod until it is gone.
pub async fn live(shared: Arc<Shared>, pod: Arc<Pod>, mut updates: Updates) {
    let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    let mut worker = loop {
        if gone(&updates) {
            return;
        }
        let pod = current(&updates).unwrap_or_else(|| Arc::clone(&pod));
        match Worker::begin(&shared, &pod).await {
            Ok(worker) => break worker,
            Err(error) => {
                tracing::warn!(pod = name, "process kubelet: {error:#}");
                if pod.metadata.deletion_timestamp.is_some() {
                    delete(&shared, &pod).await;
                }
            }
        }
        tokio::time::timeout(RETRY, updates.changed()).await.ok();
    };
    worker.run(&name, &mut updates).await;
}

fn current(updates: &Updates) -> Option<Arc<Pod>> {
    updates.borrow().clone()
}

fn gone(updates: &Updates) -> bool {
    updates.has_changed().is_err() || updates.borrow().is_none()
}

impl Worker {
    async fn begin(shared: &Arc<Shared>, pod: &Arc<Pod>) -> Result<Self> {
        let spec = pod.spec.as_ref().context("the pod has a spec")?;
        let place = fargate_node::place(shared, pod).await?;
        fargate_node::heartbeat(shared, &place).await?;
        let folder = shared.ctx.run_dir.join("pods").join(pod.metadata.uid.as_deref().unwrap_or_default());
        let identity = Identity::establish(&shared.ctx, pod, folder).await?;
        Ok(Self {
            shared: Arc::clone(shared),
            pods: Api::namespaced(shared.ctx.client.clone(), &pod.namespace().unwrap_or_default()),
            place,
            identity,
            containers: spec.containers.iter().map(|spec| Container::new(pod, spec)).collect(),
            told: Value::Null,
            started: Timestamp::now(),
            transitions: BTreeMap::new(),
        })
    }

    async fn run(&mut self, name: &str, updates: &mut Updates) {
        let mut beat = Instant::now() + HEARTBEAT;
        let given = self.given();
        loop {
            let Some(pod) = (if gone(updates) { None } else { current(updates) }) else {
                return self.end(ABRUPT).await;
            };
            if pod.metadata.deletion_timestamp.is_some() {
                let grace = pod.metadata.deletion_grace_period_seconds.and_then(|grace| u64::try_from(grace).ok());
                self.end(Duration::from_secs(grace.unwrap_or(30))).await;
                return delete(&self.shared, &pod).await;
            }
            for container in &mut self.containers {
                container.step(&self.shared, &pod, &given).await;
            }
            let told = self.tell(&pod).await;
            let kept = self.identity.renew(&self.shared.ctx, &pod).await;
            let beaten = if Instant::now() >= beat {
                beat = Instant::now() + HEARTBEAT;
                fargate_node::heartbeat(&self.shared, &self.place).await
            } else {
                Ok(())
            };
            for error in [told, kept, beaten].into_iter().filter_map(Result::err) {
                tracing::warn!(pod = name, "process kubelet: {error:#}");
                tokio::time::sleep(RETRY).await;
            }
            tokio::time::timeout(TICK, updates.changed()).await.ok();
        }
    }

    /// Variables that every container is given.
    fn given(&self) -> Variables {
        let (host, port) = &self.shared.ctx.api_server_address;
        let mut given = self.identity.variables(&self.shared.ctx);
        for (name, value) in [
            ("KUBERNETES_SERVICE_HOST", host.clone()),
            ("KUBERNETES_SERVICE_PORT", port.to_string()),
            ("KUBERNETES_SERVICE_PORT_HTTPS", port.to_string()),
        ] {
            given.insert(name.to_owned(), value);
        }
        given
    }

    /// Ends the processes side by side and takes the Node away.
    async fn end(&mut self, grace: Duration) {
        futures::future::join_all(self.containers.iter_mut().map(|container| container.stop(grace))).await;
        for container in &self.containers {
            self.shared.logs.forget(container.key());
        }
        if let Err(error) = fargate_node::remove(&self.shared, &self.place).await {
            tracing::debug!("process kubelet: {error:#}");
        }
    }

    /// Writes the pod's status when it has changed.
    async fn tell(&mut self, pod: &Pod) -> Result<()> {
        let status = self.status(pod);
        if status == self.told {
            return Ok(());
        }
        let name = pod.name_any();
        let annotations: BTreeMap<_, _> = self.containers.iter().flat_map(Container::annotations).collect();
        if annotations.iter().any(|(key, value)| pod.annotations().get(*key) != Some(value)) {
            let patch = json!({ "metadata": { "annotations": annotations, "uid": pod.metadata.uid } });
            self.pods
                .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .context("annotating the pod")?;
        }
        let patch = json!({ "metadata": { "uid": pod.metadata.uid }, "status": status });
        match self.pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&patch)).await {
            Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => Ok(()),
            other => {
                other.context("writing the pod's status")?;
                self.told = status;
                Ok(())
            }
        }
    }

    fn status(&mut self, pod: &Pod) -> Value {
        let ready = self.containers.iter().all(Container::is_ready);
        let codes: Option<Vec<i64>> = self.containers.iter().map(Container::exit_code).collect();
        let phase = match codes {
            Some(codes) if codes.iter().all(|code| *code == 0) => "Succeeded",
            Some(_) => "Failed",
            None if self.told["phase"] == "Running" || self.containers.iter().any(Container::is_running) => "Running",
            None => "Pending",
        };
        let states =
            [("PodReadyToStartContainers", true), ("Initialized", true), ("ContainersReady", ready), ("Ready", ready)];
        let conditions: Vec<Value> = states
            .into_iter()
            .map(|(kind, holds)| {
                let since = self.transitions.entry(kind).or_insert_with(|| (holds, Timestamp::now()));
                if since.0 != holds {
                    *since = (holds, Timestamp::now());
                }
                // An explicit null takes an earlier reason away.
                let (state, reason) =
                    if holds { ("True", Value::Null) } else { ("False", json!("ContainersNotReady")) };
                json!({ "type": kind, "status": state, "lastTransitionTime": since.1, "reason": reason })
            })
            .collect();
        json!({
            "phase": phase, "conditions": conditions, "startTime": self.started, "hostIP": "127.0.0.1",
            "podIP": self.place.ip, "podIPs": [{ "ip": self.place.ip }],
            "containerStatuses": self.containers.iter().map(|container| container.status(pod)).collect::<Vec<_>>(),
        })
    }
}

/// The last deletion of a pod whose processes have ended.
async fn delete(shared: &Shared, pod: &Pod) {
    let pods: Api<Pod> = Api::namespaced(shared.ctx.client.clone(), &pod.namespace().unwrap_or_default());
    let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
    let params =
        DeleteParams { grace_period_seconds: Some(0), preconditions: Some(preconditions), ..DeleteParams::default() };
    match pods.delete(&pod.name_any(), &params).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
        Err(error) => tracing::warn!(pod = pod.name_any(), "process kubelet: deleting the pod: {error}"),
    }
}

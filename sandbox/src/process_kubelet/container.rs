//! One container: a child process that is started, probed, started again when it ends, and stopped.

use std::{
    collections::BTreeMap,
    os::unix::process::ExitStatusExt as _,
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Pod};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    environment::{self, Variables, expand},
    logs::Key,
    probe::{Prober, Verdict},
};
use crate::process::Handle;

/// The repository of the one image there is.
const IMAGE: &str = "ghcr.io/karp/karp";
/// Pauses between restarts: doubled each time, and forgotten after a run of that length. A kubelet begins at 10 s and ends at 300 s.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Between tries of something that is missing: an image, a config map.
const RETRY: Duration = Duration::from_secs(2);
/// The ports that a controller listens on unless told otherwise: variable, default, annotation of the pod.
const PORTS: [(&str, u16, &str); 2] = [
    ("METRICS_PORT", 8080, "sandbox.karp.dev/metrics-port"),
    ("HEALTH_PROBE_PORT", 8081, "sandbox.karp.dev/health-probe-port"),
];

/// Where a container is in its life.
enum Phase {
    Waiting {
        reason: &'static str,
        message: String,
        until: Instant,
    },
    Running(Box<Run>),
    /// It has ended and is not started again.
    Terminated(Value),
}

struct Run {
    handle: Handle,
    started: (Instant, Timestamp),
    ended: CancellationToken,
    startup: Option<Prober>,
    readiness: Option<Prober>,
    liveness: Option<Prober>,
    ready: bool,
}

/// A container of a pod.
pub struct Container {
    name: String,
    key: Key,
    phase: Phase,
    restarts: u32,
    pause: Duration,
    last: Option<Value>,
    ports: BTreeMap<&'static str, u16>,
}

impl Container {
    /// A container that has not been started.
    pub fn new(pod: &Pod, spec: &Spec) -> Self {
        let key = (pod.namespace().unwrap_or_default(), pod.name_any(), spec.name.clone());
        let phase = Phase::Waiting { reason: "ContainerCreating", message: String::new(), until: Instant::now() };
        Self {
            name: spec.name.clone(),
            key,
            phase,
            restarts: 0,
            pause: FIRST_PAUSE,
            last: None,
            ports: BTreeMap::new(),
        }
    }

    /// Does what is due: starts, probes, notices an end.
    pub async fn step(&mut self, shared: &Shared, pod: &Pod, given: &Variables) {
        let Some(spec) = pod.spec.iter().flat_map(|spec| &spec.containers).find(|spec| spec.name == self.name) else {
            return;
        };
        match &mut self.phase {
            Phase::Waiting { until, .. } if Instant::now() >= *until => self.start(shared, pod, spec, given).await,
            Phase::Waiting { .. } | Phase::Terminated(_) => {}
            Phase::Running(run) => match run.handle.exited() {
                Some(status) => self.ended(pod, status).await,
                None if run.probe().await => {}
                None => {
                    tracing::info!(
                        pod = self.key.1,
                        container = self.name,
                        "its liveness probe failed: it is started again"
                    );
                    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
                    run.handle.stop(Duration::from_secs(u64::try_from(grace).unwrap_or(0))).await;
                    self.ended(pod, None).await;
                }
            },
        }
    }

    async fn start(&mut self, shared: &Shared, pod: &Pod, spec: &Spec, given: &Variables) {
        let image = spec.image.as_deref().unwrap_or_default();
        if repository(image) != IMAGE {
            let message = format!("Back-off pulling image \"{image}\": the sandbox's registry has {IMAGE} only");
            return self.wait("ImagePullBackOff", message, RETRY);
        }
        let variables = match self.variables(shared, pod, spec, given).await {
            Ok(variables) => variables,
            Err(error) => return self.wait("CreateContainerConfigError", format!("{error:#}"), RETRY),
        };
        match self.spawn(shared, pod, spec, &variables) {
            Ok(run) => self.phase = Phase::Running(Box::new(run)),
            Err(error) => self.wait("RunContainerError", format!("{error:#}"), RETRY),
        }
    }

    /// The container's variables, with ports that no other process of this host has.
    async fn variables(&mut self, shared: &Shared, pod: &Pod, spec: &Spec, given: &Variables) -> Result<Variables> {
        let mut variables = environment::variables(&shared.ctx.client, pod, spec, given).await?;
        for (name, _, _) in PORTS {
            if !self.ports.contains_key(name) {
                self.ports.insert(name, shared.ctx.ports.pick()?);
            }
            variables.insert(name.to_owned(), self.ports[name].to_string());
        }
        // A pod has an address of its own; its process here has the loopback's.
        variables.insert("KARP_LISTEN_ADDRESS".to_owned(), "127.0.0.1".to_owned());
        Ok(variables)
    }

    fn spawn(&self, shared: &Shared, pod: &Pod, spec: &Spec, variables: &Variables) -> Result<Run> {
        let words: Vec<String> = spec
            .command
            .iter()
            .flatten()
            .chain(spec.args.iter().flatten())
            .map(|word| expand(word, variables))
            .collect();
        let arguments = match spec.command.as_deref().unwrap_or_default().first() {
            None => &words[..],
            // The image holds one program.
            Some(program) if program.rsplit('/').next() == Some("karp") => &words[1..],
            Some(program) => anyhow::bail!("exec: \"{program}\": executable file not found in $PATH"),
        };
        let folder = shared.ctx.run_dir.join("pods").join(pod.metadata.uid.as_deref().unwrap_or_default());
        let mut command = Command::new(&shared.ctx.karp_binary);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &folder)
            .envs(variables)
            .current_dir(&folder);
        let file = format!("pod_{}_{}_{}_{}", self.key.0, self.key.1, self.name, self.restarts);
        let handle = shared.ctx.processes.start(&file, &mut command).context("starting the container's process")?;
        let ended = shared.logs.begin(self.key.clone(), handle.log.clone());
        let ports = self.port_map(spec);
        let prober = |probe: Option<&_>, eager| probe.map(|probe| Prober::new(probe, spec, &ports, eager));
        Ok(Run {
            started: (Instant::now(), Timestamp::now()),
            startup: prober(spec.startup_probe.as_ref(), false),
            liveness: prober(spec.liveness_probe.as_ref(), false),
            readiness: prober(spec.readiness_probe.as_ref(), true),
            ready: false,
            handle,
            ended,
        })
    }

    /// Which port the process was given for the one that its pod speaks of.
    fn port_map(&self, spec: &Spec) -> BTreeMap<u16, u16> {
        PORTS
            .iter()
            .map(|(name, default, _)| {
                let variable = spec.env.iter().flatten().find(|variable| variable.name == *name);
                let told = variable.and_then(|variable| variable.value.as_deref()).and_then(|value| value.parse().ok());
                (told.unwrap_or(*default), self.ports[name])
            })
            .collect()
    }

    async fn ended(&mut self, pod: &Pod, status: Option<ExitStatus>) {
        let waiting = Phase::Waiting { reason: "ContainerCreating", message: String::new(), until: Instant::now() };
        let Phase::Running(run) = std::mem::replace(&mut self.phase, waiting) else { return };
        run.handle.stop(Duration::ZERO).await;
        run.ended.cancel();
        let code = status.map_or(137, |status| status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        let state = json!({
            "exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" },
            "startedAt": run.started.1, "finishedAt": Timestamp::now(),
        });
        let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always");
        if policy == "Never" || (policy == "OnFailure" && code == 0) {
            self.phase = Phase::Terminated(state);
            return;
        }
        tracing::info!(pod = self.key.1, container = self.name, code, "the container ended: it is started again");
        if run.started.0.elapsed() > LONGEST_PAUSE {
            self.pause = FIRST_PAUSE;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        (self.restarts, self.last) = (self.restarts + 1, Some(state));
        let message =
            format!("back-off {} s restarting failed container={} pod={}", pause.as_secs(), self.name, self.key.1);
        self.wait("CrashLoopBackOff", message, pause);
    }

    fn wait(&mut self, reason: &'static str, message: String, pause: Duration) {
        self.phase = Phase::Waiting { reason, message, until: Instant::now() + pause };
    }

    /// Ends the process: asks it to, and kills it after the grace.
    pub async fn stop(&mut self, grace: Duration) {
        if let Phase::Running(run) = &self.phase {
            run.handle.stop(grace).await;
            run.ended.cancel();
            let state = json!({ "exitCode": 0, "reason": "Completed", "startedAt": run.started.1, "finishedAt": Timestamp::now() });
            self.phase = Phase::Terminated(state);
        }
    }

    /// The container's key among the logs.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Annotations that tell where its process is.
    pub fn annotations(&self) -> BTreeMap<&'static str, String> {
        let Phase::Running(run) = &self.phase else { return BTreeMap::new() };
        let ports = PORTS.iter().filter_map(|(name, _, key)| Some((*key, self.ports.get(name)?.to_string())));
        ports.chain([("sandbox.karp.dev/pid", run.handle.pid.to_string())]).collect()
    }

    /// Tells whether it is ready.
    pub fn is_ready(&self) -> bool {
        matches!(&self.phase, Phase::Running(run) if run.ready)
    }

    /// The exit code when it has ended for good.
    pub fn exit_code(&self) -> Option<i64> {
        match &self.phase {
            Phase::Terminated(state) => state["exitCode"].as_i64(),
            _ => None,
        }
    }

    /// Tells whether its process runs.
    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }

    /// Its part of the pod's status.
    pub fn status(&self, pod: &Pod) -> Value {
        let spec = pod.spec.iter().flat_map(|spec| &spec.containers).find(|spec| spec.name == self.name);
        let state = match &self.phase {
            Phase::Waiting { reason, message, .. } if message.is_empty() => json!({ "waiting": { "reason": reason } }),
            Phase::Waiting { reason, message, .. } => json!({ "waiting": { "reason": reason, "message": message } }),
            Phase::Running(run) => json!({ "running": { "startedAt": run.started.1 } }),
            Phase::Terminated(state) => json!({ "terminated": state }),
        };
        let mut status = json!({
            "name": self.name, "image": spec.and_then(|spec| spec.image.clone()), "imageID": "", "state": state,
            "ready": self.is_ready(), "started": self.is_running(), "restartCount": self.restarts,
        });
        if let Phase::Running(run) = &self.phase {
            status["containerID"] = json!(format!("process://{}", run.handle.pid));
        }
        if let Some(last) = &self.last {
            status["lastState"] = json!({ "terminated": last });
        }
        status
    }
}

impl Run {
    /// Looks at the probes that are due; false when the process must be ended.
    async fn probe(&mut self) -> bool {
        if let Some(startup) = &mut self.startup {
            match startup.look().await {
                Verdict::Passed => self.startup = None,
                Verdict::Open => return true,
                Verdict::Failed => return false,
            }
        }
        if let Some(liveness) = &mut self.liveness
            && liveness.look().await == Verdict::Failed
        {
            return false;
        }
        self.ready = match &mut self.readiness {
            None => true,
            Some(readiness) => match readiness.look().await {
                Verdict::Passed => true,
                Verdict::Failed => false,
                Verdict::Open => self.ready,
            },
        };
        true
    }
}

/// Returns the repository of an image reference: without tag and digest.
fn repository(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    match image.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => image,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_in_any_version() {
        for image in [
            "ghcr.io/karp/karp",
            "ghcr.io/karp/karp:0.1.0",
            "ghcr.io/karp/karp:0.1.0@sha256:00",
            "ghcr.io/karp/karp@sha256:00",
        ] {
            assert_eq!(repository(image), IMAGE, "{image}");
        }
        assert_eq!(repository("localhost:5000/karp"), "localhost:5000/karp");
        assert_ne!(repository("ghcr.io/karp/karpenter:1"), IMAGE);
    }
}

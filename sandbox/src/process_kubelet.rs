//! Fargate without containers: pods that match a Fargate profile run as local processes.
//!
//! A webhook gives matching pods to `fargate-scheduler`, as EKS does; each then gets a Node of its own and its container becomes a
//! child process with the container's arguments and environment. A process is no container, so some things differ, all on purpose:
//!
//! - It has no file system of its own: the ServiceAccount's token comes as a kubeconfig (`KUBECONFIG`), not as a mount, and volumes are
//!   not mounted. Init containers are not played.
//! - All pods share the host's ports: `METRICS_PORT` and `HEALTH_PROBE_PORT` are given free ports, probes follow, and the pod's
//!   annotations `sandbox.karp.dev/metrics-port`, `health-probe-port` and `pid` tell where the process is.
//! - The one image of the sandbox's registry is `ghcr.io/karp/karp`, in any version: the built controller.
//! - Credentials of AWS come by the ServiceAccount's role annotation and a web identity token only; `AWS_ENDPOINT_URL` says where AWS is.

mod admission;
mod container;
mod environment;
mod fargate_node;
mod identity;
mod logs;
mod probe;
mod server;
mod worker;

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::Context;

/// Who binds the pods of a Fargate profile.
pub const SCHEDULER: &str = "fargate-scheduler";
/// How long the pods' processes get to end when the sandbox stops.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// What all parts of the kubelet share.
struct Shared {
    ctx: Context,
    port: u16,
    logs: logs::Logs,
}

/// Serves until it is told to stop.
///
/// # Errors
/// When the webhook cannot be served or registered.
pub async fn run(ctx: Context, stop: CancellationToken) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listening as a kubelet")?;
    let port = listener.local_addr()?.port();
    let shared = Arc::new(Shared { port, logs: logs::Logs::default(), ctx: ctx.clone() });
    let profiles = Arc::new(admission::Profiles::new(&ctx.aws_endpoint));
    let serving = tokio::spawn(server::serve(
        listener,
        server::tls(&ctx)?,
        server::router(Arc::clone(&shared), profiles),
        stop.clone(),
    ));
    admission::register(&ctx, port).await?;
    let watched = watch_pods(Arc::clone(&shared), stop.clone()).await;
    stop.cancel();
    serving.await.context("serving as a kubelet")?;
    watched
}

/// Keeps one worker for each pod of the scheduler.
async fn watch_pods(shared: Arc<Shared>, stop: CancellationToken) -> Result<()> {
    let pods: Api<Pod> = Api::all(shared.ctx.client.clone());
    let config = watcher::Config::default().fields(&format!("spec.schedulerName={SCHEDULER}"));
    let mut events = watcher(pods, config).default_backoff().boxed();
    let mut known: BTreeMap<String, watch::Sender<Option<Arc<Pod>>>> = BTreeMap::new();
    let (mut workers, mut listed) = (JoinSet::new(), Vec::new());
    while let Some(event) = stop.run_until_cancelled(events.try_next()).await {
        match event {
            Ok(Some(watcher::Event::Apply(pod))) => notice(&shared, &mut known, &mut workers, pod),
            Ok(Some(watcher::Event::InitApply(pod))) => {
                listed.extend(pod.metadata.uid.clone());
                notice(&shared, &mut known, &mut workers, pod);
            }
            Ok(Some(watcher::Event::Init)) => listed.clear(),
            Ok(Some(watcher::Event::InitDone)) => {
                for (uid, sender) in &known {
                    if !listed.contains(uid) {
                        sender.send(None).ok();
                    }
                }
                known.retain(|uid, _| listed.contains(uid));
            }
            Ok(Some(watcher::Event::Delete(pod))) => {
                if let Some(sender) = pod.metadata.uid.and_then(|uid| known.remove(&uid)) {
                    sender.send(None).ok();
                }
            }
            Ok(None) => break,
            Err(error) => tracing::debug!("process kubelet: watching pods: {error}"),
        }
        known.retain(|_, sender| !sender.is_closed());
    }
    drop(known); // a worker that hears no more ends its processes
    if tokio::time::timeout(STOP_GRACE, async { while workers.join_next().await.is_some() {} }).await.is_err() {
        workers.shutdown().await;
    }
    Ok(())
}

fn notice(
    shared: &Arc<Shared>,
    known: &mut BTreeMap<String, watch::Sender<Option<Arc<Pod>>>>,
    workers: &mut JoinSet<()>,
    pod: Pod,
) {
    let Some(uid) = pod.metadata.uid.clone() else { return };
    let finished = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
    let pod = Arc::new(pod);
    match known.get(&uid) {
        Some(sender) => _ = sender.send(Some(pod)),
        None if finished && pod.metadata.deletion_timestamp.is_none() => {}
        None => {
            let (sender, receiver) = watch::channel(Some(Arc::clone(&pod)));
            known.insert(uid, sender);
            workers.spawn(worker::live(Arc::clone(shared), pod, receiver));
        }
    }
}

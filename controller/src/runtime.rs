//! Puts the controller together: client, caches, servers, leadership, controllers, and a shutdown that ends them in order.

use std::process::ExitCode;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use karp_domain::lease::RENEW_DEADLINE;
use kube::Client;
use kube::config::Kubeconfig;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cloud::{CloudProvider, Store, Unavailable, aws::Aws, simulated::Simulated};
use crate::observe::Stores;
use crate::ops::calls;
use crate::ops::events::Events;
use crate::ops::health::{self, Health};
use crate::ops::leader::{Election, Fence};
use crate::ops::metrics::{LeaseLabels, Metrics};
use crate::ops::state::Observed;
use crate::ops::telemetry;
use crate::options::{CloudKind, Options};
use crate::reconcile::disruption::Running;
use crate::reconcile::overlays::Overlays;
use crate::reconcile::{self, Context, Plans};

/// What has begun may take this long to end; the kubelet's default patience is 30 s.
const SHUTDOWN: Duration = Duration::from_secs(20);
/// The same after a controller has failed: the next process is not to wait longer for the lease than until it expires.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Where a pod finds the name of its namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Threads for the controllers: they wait more than they work, and each costs memory.
const WORKERS: usize = 2;

/// Runs the controller until it is told to stop or loses its lease.
pub fn run(options: Options) -> anyhow::Result<ExitCode> {
    options.check().map_err(anyhow::Error::msg)?;
    telemetry::start(&options.log_level).map_err(anyhow::Error::msg)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let code = runtime.block_on(control(options));
    // Whatever still runs has had its time.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(code.unwrap_or_else(|error| {
        tracing::error!(error = format!("{error:#}"), "controller ended");
        ExitCode::FAILURE
    }))
}

/// Lets the metrics tell what the cluster is like: those of the leader only, or sums over replicas would count everything twice. Nobody else
/// counts anything by pool.
fn tell_state(context: &Context) {
    let pools = context.stores.clone();
    context.metrics.heed_pools(move |pool| pools.has_pool(pool));
    let (stores, market, cloud) = (context.stores.clone(), context.market.clone(), context.cloud.clone());
    let (decisions, kept) = (context.metrics.decisions.clone(), context.metrics.kept.clone());
    let only_sums = context.options.disable_cluster_state_observability;
    context.metrics.state.observe(move || {
        let market = market.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let observed = stores.observed(market, only_sums, Timestamp::now());
        Observed {
            decisions: decisions.clone(),
            kept: kept.clone(),
            prices_read: cloud.prices_read(),
            user_data: cloud.user_data_bytes(),
            ..observed
        }
    });
}

async fn control(options: Options) -> anyhow::Result<ExitCode> {
    let stop = CancellationToken::new();
    stop_on_signal(stop.clone())?;
    for gate in options.feature_gates.unknown() {
        tracing::warn!(gate, "unknown feature gate");
    }
    if !options.ignore_dra_requests {
        tracing::warn!(
            "ignore-dra-requests=false has no effect: pods with resource claims are refused by name all the same"
        );
    }
    let reach = "no way to reach the API server (KUBECONFIG or in-cluster)";
    let mut config = calls::way(None).await.context(reach)?;
    // the lease is written by a client of its own: all other writes are for the leader. The election tries again by itself, and sooner.
    let mut of_lease = calls::patient(config.clone(), RENEW_DEADLINE);
    of_lease.default_retry = false;
    let keeper = Client::try_from(of_lease).context(reach)?;
    let fence = Fence::shut();
    let client = calls::client(config.clone(), &fence).context(reach)?;
    // A budget's refusal is an answer, which retries would sit on.
    config.default_retry = false;
    let evictor = calls::client(config, &fence).context(reach)?;
    let metrics = Arc::new(Metrics::new());
    let lease = LeaseLabels::new(&options.leader_election_name);
    metrics.leader.get_or_create(&lease).set(0);
    let health = Arc::new(Health::default());
    let ports = (options.metrics_port, options.health_probe_port);
    let listening = health::serve(options.listen_address, ports, metrics.clone(), health.clone(), stop.clone())
        .await
        .context("cannot listen for metrics and probes")?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        cloud = ?options.cloud,
        metrics = %listening.metrics,
        probes = %listening.probes,
        "starting controller"
    );
    let stores = Stores::start(&client, &stop);
    let synced = tokio::select! {
        () = stop.cancelled() => return Ok(ExitCode::SUCCESS),
        synced = stores.synced() => synced,
    };
    anyhow::ensure!(synced, "the watches ended before the caches were filled");
    metrics.cluster_synced.set(1);
    metrics.ongoing.synced();
    health.mark_synced();

    let Some(mut election) = lead(&keeper, &options, &fence, &stop).await else { return Ok(ExitCode::SUCCESS) };
    metrics.leader.get_or_create(&lease).set(1);
    tracing::info!("leading");

    let set_up = async {
        let namespace = lease_namespace(&client, &options);
        let cloud = cloud(&client, &options, &namespace, &fence).await?;
        let unavailable = Unavailable::new(Some(Store::new(client.clone(), &namespace)));
        let instance = pod_name();
        let context = Arc::new(Context {
            events: Events::new(client.clone(), instance),
            client,
            evictor,
            stores,
            cloud,
            unavailable,
            metrics: metrics.clone(),
            ca_bundle: ca_bundle(&options.cluster_ca_bundle),
            overlays: Overlays::new(options.feature_gates.enabled("NodeOverlay")),
            options,
            provision: Notify::new(),
            replan: Notify::new(),
            rests: Default::default(),
            settled: Default::default(),
            batches: Default::default(),
            disrupt: Notify::new(),
            plans: Plans::default(),
            planning: tokio::sync::Mutex::default(),
            running: Running::default(),
            health: reconcile::health::Health::default(),
            buffers: std::sync::Mutex::default(),
            unreadable: std::sync::Mutex::default(),
            evictions: std::sync::Mutex::default(),
            drained: std::sync::Mutex::default(),
            written: Default::default(),
            assumed: std::sync::Mutex::default(),
            market: Arc::default(),
        });
        tell_state(&context);
        context.take_over().await.context("cannot list nodeclaims")?;
        context.unavailable.recall().await;
        anyhow::Ok(context)
    };
    // the lease is kept meanwhile: another would take it else, and no replica would ever come to its work
    let context = tokio::select! {
        context = set_up => match context {
            Ok(context) => context,
            Err(error) => {
                release(election).await;
                return Err(error);
            }
        },
        lost = hold(&mut election, &stop) => {
            if lost {
                end_at_once();
            }
            release(election).await;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let work = stop.child_token();
    let mut tasks = JoinSet::new();
    reconcile::spawn(&context, &work, &mut tasks);
    let ended = tokio::select! {
        lost = hold(&mut election, &stop) => if lost { Ended::LostLease } else { Ended::Told },
        Some(done) = tasks.join_next() => Ended::Task(done),
    };
    // The signal that ends the lease's keeper ends the watches too, and may reach a controller through them first.
    let ended = if stop.is_cancelled() && matches!(ended, Ended::Task(Ok(_))) { Ended::Told } else { ended };
    metrics.leader.get_or_create(&lease).set(0);
    work.cancel();
    match ended {
        Ended::LostLease => end_at_once(),
        Ended::Task(done) => {
            stop.cancel();
            wind_down(tasks, election, AFTER_FAILURE).await;
            done.context("a controller failed")?;
            anyhow::bail!("a controller ended by itself");
        }
        Ended::Told => {
            tracing::info!("stopping");
            wind_down(tasks, election, SHUTDOWN).await;
            tracing::info!("stopped");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Lets what has begun come to its end within `limit`, and gives the lease up. It is kept until then: what has begun may still have to be written.
async fn wind_down(mut tasks: JoinSet<()>, mut election: Option<Election>, limit: Duration) {
    let forever = CancellationToken::new();
    let drained = tokio::time::timeout(limit, async {
        tokio::select! {
            () = async { while tasks.join_next().await.is_some() {} } => {}
            _ = hold(&mut election, &forever) => {}
        }
    });
    let drained = drained.await;
    if drained.is_err() {
        tracing::warn!("some work did not end in time");
        tasks.abort_all();
    }
    release(election).await;
}

/// Lets another lead.
async fn release(election: Option<Election>) {
    if let Some(election) = election {
        election.release().await;
    }
}

/// Ends the process: another may lead by now, and nothing that has begun here may go on.
fn end_at_once() -> ! {
    tracing::error!("leader election lost");
    std::process::exit(1);
}

enum Ended {
    LostLease,
    Told,
    Task(Result<(), tokio::task::JoinError>),
}

/// Waits for leadership; the outer `None` means that the process was told to stop first, the inner that nobody is asked.
async fn lead(client: &Client, options: &Options, fence: &Fence, stop: &CancellationToken) -> Option<Option<Election>> {
    if options.disable_leader_election {
        tracing::warn!("leader election is off: run no second controller");
        fence.open();
        return Some(None);
    }
    let host = pod_name().unwrap_or_else(|| "karp".to_owned());
    let identity = format!("{host}_{}", telemetry::reconcile_id());
    let namespace = lease_namespace(client, options);
    let mut election =
        Election::new(client.clone(), namespace, options.leader_election_name.clone(), identity, fence.clone());
    election.acquire(stop).await.then_some(Some(election))
}

/// Returns the name of the controller's pod. Its own variable goes first: in the network of a node, the host is the node.
fn pod_name() -> Option<String> {
    ["POD_NAME", "HOSTNAME"].into_iter().find_map(|variable| std::env::var(variable).ok())
}

/// Returns the namespace of the lease: as told, or the pod's own, or the client's.
fn lease_namespace(client: &Client, options: &Options) -> String {
    if !options.leader_election_namespace.is_empty() {
        return options.leader_election_namespace.clone();
    }
    for variable in ["SYSTEM_NAMESPACE", "POD_NAMESPACE"] {
        if let Ok(namespace) = std::env::var(variable)
            && !namespace.is_empty()
        {
            return namespace;
        }
    }
    match std::fs::read_to_string(NAMESPACE_FILE) {
        Ok(namespace) if !namespace.trim().is_empty() => namespace.trim().to_owned(),
        _ => client.default_namespace().to_owned(),
    }
}

async fn hold(election: &mut Option<Election>, stop: &CancellationToken) -> bool {
    match election {
        Some(election) => election.hold(stop).await,
        None => {
            stop.cancelled().await;
            false
        }
    }
}

async fn cloud(
    client: &Client,
    options: &Options,
    namespace: &str,
    fence: &Fence,
) -> anyhow::Result<Arc<dyn CloudProvider>> {
    Ok(match options.cloud {
        CloudKind::Simulated => Arc::new(Simulated::new(client.clone())),
        CloudKind::Aws => Arc::new(Aws::new(options, client.clone(), namespace, fence.permit()).await?),
    })
}

fn stop_on_signal(stop: CancellationToken) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}

/// Where a pod finds the CA bundle of its cluster.
const SERVICE_ACCOUNT_CA: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// Returns the cluster's CA bundle in base64 as Karpenter finds it: as told, else the service account's, else the kubeconfig's; empty
/// without any.
fn ca_bundle(told: &str) -> String {
    if !told.is_empty() {
        return told.to_owned();
    }
    if let Ok(certificates) = std::fs::read(SERVICE_ACCOUNT_CA) {
        return BASE64.encode(certificates);
    }
    let cluster = Kubeconfig::read().ok().and_then(|config| {
        let current = config.current_context?;
        let name = config.contexts.into_iter().find(|context| context.name == current)?.context?.cluster;
        config.clusters.into_iter().find(|cluster| cluster.name == name)?.cluster
    });
    let Some(cluster) = cluster else { return String::new() };
    let read = cluster.certificate_authority.and_then(|path| std::fs::read(path).ok());
    cluster.certificate_authority_data.or_else(|| read.map(|pem| BASE64.encode(pem))).unwrap_or_default()
}

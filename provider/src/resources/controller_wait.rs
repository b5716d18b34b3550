//! Waiting until the controller is at work: its Deployment is rolled out, and one of its replicas leads. What is not in time is a warning: it
//! is applied, and an error would make Terraform destroy it and create it again, which is refused while nodes live that only it can end.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::{Lease as Object, LeaseSpec};
use karp_domain::lease::{LEASE_DURATION, Onlooker, Sight};
use karp_kube::wait::{self, Look, Until};
use karp_kube::{Error, pods};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tfplugin::{Context, Diagnostic};
use tokio::time::Instant;

use super::custom_object::{looked, within};
use crate::manifests::controller::{GRACE_SECONDS, NAME, Settings};
use crate::manifests::election::{self, Lease};
use crate::report::{Failure, Kind};
use crate::session::Session;

/// What is kept of the time limit to report and to store state.
const RESERVE: Duration = Duration::from_secs(5);
/// The pods' own words come within this time, which is part of the reserve, or are left out.
const WORDS_PATIENCE: Duration = Duration::from_secs(3);
/// Who leads for longer than this is no replica on its way out: one keeps the lease while it ends, and one that was killed for the
/// lease's length.
const TAKEN_FOR: Duration = Duration::from_secs(GRACE_SECONDS.unsigned_abs() + LEASE_DURATION.as_secs());

/// Waits until the controller is rolled out and one of its replicas leads, within the operation's limit.
pub async fn at_work(ctx: &Context, session: &Session, settings: &Settings) {
    let (limit, namespace) = (within(ctx, RESERVE), settings.namespace());
    let connect = || session.kube_of(ctx);
    let look = |client: Client| async move { wait::is_available(&client, namespace, NAME).await };
    match looked(ctx, &limit, "wait for the controller", connect, look).await {
        Ok(()) => {}
        Err(end) if is_late(&end) => {
            ctx.warn(not_ready(async { connect().await.ok() }, namespace, &end.message).await);
            return;
        }
        Err(failure) => return ctx.warn(unlooked(namespace, &failure)),
    }
    let Some(lease) = election::lease(settings).filter(|_| settings.replicas != Some(0)) else { return };
    match leads(ctx, connect, namespace, &lease, &limit).await {
        Ok(Lead::Own) => {}
        Ok(Lead::Taken(seen)) => ctx.warn(taken(&lease, &seen)),
        Err(end) if is_late(&end) => ctx.warn(not_leading(&lease, &end.message)),
        Err(failure) if failure.kind == Kind::Denied => ctx.warn(unseen(&lease, &failure.message)),
        Err(failure) => ctx.warn(unlooked(namespace, &failure)),
    }
}

/// Says whether a wait ended since its time was over or somebody stopped it: its message is what was seen last.
fn is_late(failure: &Failure) -> bool {
    matches!(failure.kind, Kind::TimedOut | Kind::Interrupted)
}

/// Warns at a refresh of a controller that does not serve.
pub async fn look(ctx: &Context, client: &Client, namespace: &str) {
    if let Ok(Look::NotYet(seen)) = wait::is_available(client, namespace, NAME).await {
        ctx.warn(not_ready(std::future::ready(Some(client.clone())), namespace, &seen).await);
    }
}

/// Who leads.
#[derive(Debug, PartialEq, Eq)]
enum Lead {
    /// A replica of the controller.
    Own,
    /// Somebody else; where and who.
    Taken(String),
}

/// Looks on at the leases until a replica of the Deployment leads, or somebody else does for long.
async fn leads<C>(
    ctx: &Context,
    connect: impl Fn() -> C,
    namespace: &str,
    lease: &Lease,
    limit: &Until,
) -> Result<Lead, Failure>
where
    C: Future<Output = Result<Client, Failure>>,
{
    let begin = Instant::now();
    let watch = &Mutex::new(Watch::default());
    let look = |client: Client| async move {
        let leases = leases(&client, lease).await?;
        let replicas = pods::hosts(&client, namespace, NAME).await?;
        let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(watch.look(lease, &leases, &replicas, begin.elapsed()))
    };
    looked(ctx, limit, "wait until the controller leads", connect, look).await
}

/// Reads the leases of the name by their namespaces: a controller waits for those of all. Who may not list them sees the one alone.
async fn leases(client: &Client, lease: &Lease) -> Result<BTreeMap<String, LeaseSpec>, Error> {
    let of = |object: Object| Some((object.namespace()?, object.spec.unwrap_or_default()));
    let params = ListParams::default().fields(&format!("metadata.name={}", lease.name));
    match Api::<Object>::all(client.clone()).list(&params).await.map_err(Error::from) {
        Ok(all) => Ok(all.items.into_iter().filter_map(of).collect()),
        Err(Error::Forbidden { .. }) => {
            let own = Api::<Object>::namespaced(client.clone(), &lease.namespace).get_opt(&lease.name).await?;
            Ok(own.into_iter().filter_map(of).collect())
        }
        Err(error) => Err(error),
    }
}

/// What was seen of the leases so far.
#[derive(Default)]
struct Watch {
    onlookers: BTreeMap<String, Onlooker>,
    /// Since when somebody else leads.
    taken: Option<Duration>,
}

impl Watch {
    /// Notes one look, `now` after the first.
    fn look(
        &mut self,
        lease: &Lease,
        leases: &BTreeMap<String, LeaseSpec>,
        replicas: &BTreeSet<String>,
        now: Duration,
    ) -> Look<Lead> {
        self.onlookers.retain(|namespace, _| leases.contains_key(namespace));
        let (mut own, mut other) = (None, None);
        for (namespace, spec) in leases {
            let sight = self.onlookers.entry(namespace.clone()).or_default().look(Some(spec), now);
            let is_own = *namespace == lease.namespace;
            match sight {
                Sight::Renewed(holder) if is_own && is_of(holder, replicas) => return Look::Done(Lead::Own),
                Sight::Renewed(holder) => {
                    other.get_or_insert_with(|| format!("Lease {namespace}/{} is held by {holder}", lease.name));
                }
                Sight::Free => {}
                Sight::Held(holder) if is_own => {
                    own = Some(format!("held by {holder}, who was not seen to renew it yet"));
                }
                Sight::Expired(holder) if is_own => own = Some(format!("held by {holder}, who does not renew it")),
                Sight::Held(_) | Sight::Expired(_) => {}
            }
        }
        let Some(other) = other else {
            self.taken = None;
            let own = own.unwrap_or_else(|| "held by nobody".to_owned());
            return Look::NotYet(format!("Lease {}/{} is {own}", lease.namespace, lease.name));
        };
        let since = *self.taken.get_or_insert(now);
        if now.saturating_sub(since) >= TAKEN_FOR { Look::Done(Lead::Taken(other)) } else { Look::NotYet(other) }
    }
}

/// Says whether a holder is one of the replicas: its host's name, `_`, and what tells its lives apart.
fn is_of(holder: &str, replicas: &BTreeSet<String>) -> bool {
    holder.rsplit_once('_').is_some_and(|(host, _)| replicas.contains(host))
}

fn taken(lease: &Lease, seen: &str) -> Diagnostic {
    Diagnostic::warning(
        "Another controller leads",
        format!(
            "The controller is applied and runs, and makes and ends no node as long as another is at work: {seen}, which is none of its \
             replicas and goes on renewing it. That is a Karpenter or another karp. Scale it to zero or remove it (the Lease's namespace is \
             that of its Deployment, or of its Helm release); this one takes over within {} seconds by itself. See: `kubectl get leases -A \
             --field-selector metadata.name={}`.",
            LEASE_DURATION.as_secs(),
            lease.name
        ),
    )
}

fn not_leading(lease: &Lease, seen: &str) -> Diagnostic {
    let Lease { namespace, name } = lease;
    Diagnostic::warning(
        "The controller does not lead yet",
        format!(
            "It is applied and runs, and makes and ends no node until one of its replicas holds Lease {namespace}/{name}. Seen last: {seen}. \
             Where that is somebody else, it is a Karpenter or another karp: scale it to zero or remove it. Otherwise the logs say what the \
             replicas wait for: `kubectl -n {namespace} logs -l app.kubernetes.io/name={NAME}`. With `wait = false` nothing waits for it.",
        ),
    )
}

fn unseen(lease: &Lease, error: &str) -> Diagnostic {
    let Lease { namespace, name } = lease;
    Diagnostic::warning(
        "Whether the controller leads is not known",
        format!(
            "It is applied and runs. Who holds Lease {namespace}/{name} could not be seen: {error}. Allow the identity that runs Terraform to \
             `get` leases of coordination.k8s.io there and to `list` pods (to see a Karpenter in another namespace, to `list` leases in all); \
             or set `wait = false`.",
        ),
    )
}

/// Tells that the controller could not be looked at.
fn unlooked(namespace: &str, failure: &Failure) -> Diagnostic {
    Diagnostic::warning(
        "Whether the controller is at work is not known",
        format!(
            "It is applied, and Kubernetes goes on with it. It could not be looked at: {failure}\n\nSee `kubectl -n {namespace} get deployment \
             {NAME}`, or plan again. With `wait = false` nothing waits for it.",
        ),
    )
}

/// Tells that the controller does not serve, and what its pods say; they are asked by this client, where there is one.
async fn not_ready(client: impl Future<Output = Option<Client>>, namespace: &str, seen: &str) -> Diagnostic {
    let ask = async {
        let client = client.await?;
        let deployment = Api::<Deployment>::namespaced(client.clone(), namespace).get_opt(NAME).await.ok()??;
        pods::troubles(&client, namespace, &deployment).await.ok()
    };
    let said = tokio::time::timeout(WORDS_PATIENCE, ask).await.ok().flatten().unwrap_or_default();
    // What the pods say themselves is more than the wait saw of them.
    let seen = if said.is_empty() { seen } else { seen.split("; pod ").next().unwrap_or(seen) };
    let said: String = said.iter().map(|line| format!("\n- {line}")).collect();
    Diagnostic::warning(
        "The controller is not ready yet",
        format!(
            "It is applied, and Kubernetes goes on with it; until it runs, no node is made or ended. Seen last: {seen}{said}\n\nLook at its \
             pods with `kubectl -n {namespace} describe pods -l app.kubernetes.io/name={NAME}` and its logs with `kubectl -n {namespace} \
             logs -l app.kubernetes.io/name={NAME}`; without a node or a Fargate profile for the namespace it cannot run. With `wait = \
             false` nothing waits for it.",
        ),
    )
}

#[cfg(test)]
mod tests;

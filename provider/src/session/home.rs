//! In which cluster an object lives. A provider block may come to lead to another one: a cluster made anew under the same name, another context of
//! the kubeconfig. An object of the same name there is another's, and that there is none says nothing of this one.

use std::future::Future;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use tfplugin::{Context, Interrupted, Value};
use tokio::sync::Mutex;

use super::Session;
use crate::report::{Failure, Kind};
use crate::resources::custom_object::failure;

/// Each cluster has it from its first minute to its last, so its UID is the cluster's.
const OF_THE_CLUSTER: &str = "kube-system";
/// An API server that does not answer is borne so long.
const PATIENCE: Duration = Duration::from_secs(30);
/// Whether EKS has another cluster of the name is looked at for no longer than this.
const GLANCE: Duration = Duration::from_secs(10);
/// How long to rest until it is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// The UID of the cluster that a client leads to; nothing where that may not be read.
type Uid = Option<String>;

/// What is kept beside the state of an object of a cluster, where no user sees it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster_uid: Uid,
    /// The ARN that EKS told of the cluster: once there is none of its name, it tells whether the same place is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster_arn: Option<String>,
}

impl Kept {
    fn of(ctx: &Context) -> Self {
        // what another version kept there says nothing
        serde_json::from_slice(&ctx.private()).unwrap_or_default()
    }

    fn keep(&self, ctx: &Context) {
        ctx.set_private(serde_json::to_vec(self).unwrap_or_default());
    }
}

/// Asks once which cluster a client leads to, and again after a failure.
#[derive(Default)]
pub(super) struct Home(Mutex<Option<(Instant, Result<Uid, Failure>)>>);

impl Home {
    async fn uid(&self, client: &Client) -> Result<Uid, Failure> {
        let begin = Instant::now();
        let mut known = self.0.lock().await;
        match &*known {
            Some((_, Ok(uid))) => return Ok(uid.clone()),
            // all that waited for an answer have had it
            Some((at, Err(failure))) if *at >= begin => return Err(failure.clone()),
            _ => {}
        }
        let answer = Box::pin(ask(client)).await;
        *known = Some((Instant::now(), answer.clone()));
        answer
    }
}

impl Session {
    /// Returns a client of the cluster in which the object of this operation lives, or is to live from now on.
    ///
    /// # Errors
    /// Those of [`Session::kube`], and [`Kind::OtherCluster`] when it is another cluster than the one that the object was last seen in. Whoever may
    /// not read that cluster's namespace `kube-system` goes without this check. A stop ends the wait for an API server that does not answer.
    pub async fn kube_of(&self, ctx: &Context) -> Result<Client, Failure> {
        let (client, uid) = tokio::select! {
            biased;
            // a client that is there already is given after a stop, too: to tell of what is left
            found = self.at_home(ctx).boxed() => found?,
            () = ctx.stop().cancelled() => {
                return Err(Failure::new(Kind::Interrupted, "reach the API server", "Terraform asked to stop"));
            }
        };
        let kept = Kept::of(ctx);
        if uid.is_some() && kept.cluster_uid.is_none() {
            Kept { cluster_uid: uid, ..kept }.keep(ctx);
        }
        Ok(client)
    }

    /// Notes the region and account in which EKS has the cluster; nothing where `kubernetes` leads to it, since the region may be wrong unseen.
    pub async fn keep_place(&self, ctx: &Context, name: &str) {
        if self.model.kubernetes.is_some() {
            return;
        }
        if let Ok(cluster) = self.cluster(name).await {
            Kept { cluster_arn: Some(cluster.arn.clone()), ..Kept::of(ctx) }.keep(ctx);
        }
    }

    /// Refuses another region or account than that in which EKS had the cluster, where that was noted. That there is no such cluster says
    /// nothing then.
    ///
    /// # Errors
    /// [`Kind::Elsewhere`], and what keeps AWS from being asked.
    pub async fn check_place(&self, ctx: &Context, doing: &str) -> Result<(), Failure> {
        let Some(arn) = Kept::of(ctx).cluster_arn else { return Ok(()) };
        let cluster = Value::object([("arn", arn)]);
        let same = async {
            self.check_region(&cluster).await?;
            self.check_account(&cluster).await
        };
        same.await.map_err(|failure| match failure.kind {
            Kind::Elsewhere => Failure { doing: doing.to_owned(), ..failure }.with_fix(
                "Check `region`, `profile` and `assume_role` of the provider block: nothing was ended, and state was left as it was.",
            ),
            _ => failure,
        })
    }

    /// Refuses a `kubernetes` block that leads to another cluster than the one that EKS has under this name. Where EKS or that one's API server
    /// cannot be asked, nothing is refused.
    ///
    /// # Errors
    /// [`Kind::Elsewhere`], and those of [`Session::kube`].
    pub async fn check_eks(&self, name: &str, doing: &str) -> Result<(), Failure> {
        if self.model.kubernetes.is_none() {
            return Ok(());
        }
        let (client, home) = self.connected().await?;
        let Some(ours) = home.uid(&client).await? else { return Ok(()) };
        let theirs = async { ask(&self.connect_eks(name).await?).await };
        match tokio::time::timeout(GLANCE, Box::pin(theirs)).await {
            Ok(Ok(Some(theirs))) if ours != theirs => {
                let what = format!(
                    "`kubernetes` leads to another cluster than EKS has under this name (the UID of namespace {OF_THE_CLUSTER} is {ours}, and \
                     {theirs} there), and instances live that have its tags"
                );
                Err(Failure::new(Kind::Elsewhere, doing, what).with_fix(
                    "Check `kubernetes` (or KUBE_HOST, KUBE_CONFIG_PATH and KUBE_CTX in the environment) and `cluster_name` of the provider \
                     block: nothing was ended.",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns a client to look at a plan what an apply would meet, as [`Session::kube_of`] does; nothing is noted by it, since an apply may find
    /// another cluster rightly.
    ///
    /// # Errors
    /// Those of [`Session::kube_of`].
    pub async fn kube_ahead(&self, ctx: &Context) -> Result<Client, Failure> {
        Ok(self.at_home(ctx).await?.0)
    }

    async fn at_home(&self, ctx: &Context) -> Result<(Client, Uid), Failure> {
        let (client, home) = self.connected().await?;
        let uid = home.uid(&client).await?;
        match (Kept::of(ctx).cluster_uid, &uid) {
            (Some(known), Some(uid)) if known != *uid => Err(elsewhere(&known, uid)),
            _ => Ok((client, uid)),
        }
    }
}

/// Asks until there is an answer. Failures that pass are borne for a while, as silence is.
///
/// # Errors
/// What ended the operation meanwhile; within, the failure that did not pass.
pub async fn borne<T, A>(ctx: &Context, doing: &str, ask: impl Fn() -> A) -> Result<Result<T, Failure>, Interrupted>
where
    A: Future<Output = Result<T, Failure>>,
{
    let begin = Instant::now();
    loop {
        let answer = ctx.run(tokio::time::timeout(PATIENCE, Box::pin(ask()))).await?;
        let silent = |_| Err(Failure::new(Kind::Unreachable, doing, "the API server takes calls and does not answer"));
        match answer.unwrap_or_else(silent) {
            Err(failure) if failure.passes() && begin.elapsed() <= PATIENCE => ctx.sleep(PAUSE).await?,
            answer => return Ok(answer),
        }
    }
}

async fn ask(client: &Client) -> Result<Uid, Failure> {
    let found = Api::<Namespace>::all(client.clone()).get_metadata_opt(OF_THE_CLUSTER).await;
    match found.map_err(karp_kube::Error::from) {
        Ok(found) => Ok(found.and_then(|namespace| namespace.metadata.uid)),
        Err(karp_kube::Error::Forbidden { .. }) => Ok(None),
        Err(error) => Err(failure("find out which cluster this is", error)),
    }
}

fn elsewhere(known: &str, uid: &str) -> Failure {
    let what = format!(
        "the API server is that of another cluster than the one in which this lives (the UID of namespace {OF_THE_CLUSTER} is {uid}, and was \
         {known})"
    );
    Failure::new(Kind::OtherCluster, "go on with what lives in the cluster", what).with_fix(
        "Check `cluster_name`, `region` or `kubernetes` of the provider block: state was left as it was. If the cluster was deleted and made \
         anew, set `missing_cluster = \"forget\"` in the provider block for one run that refreshes (without `offline_plan` and `-refresh=false`): \
         what lived in the old one then leaves the state.",
    )
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::provider::Model;

    #[tokio::test]
    async fn a_stop_ends_the_wait_for_an_api_server_that_is_silent() {
        let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let host = format!("http://{}", silent.local_addr().expect("an address"));
        let block = Value::object([("kubernetes", Value::object([("host", host)]))]);
        let session = Session::new(Model::read(&block).expect("a block"));
        let ctx = Context::new(CancellationToken::new(), Duration::from_secs(600));
        let stop = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            ctx.stop().cancel();
        };
        let (begin, (reached, ())) = (Instant::now(), tokio::join!(session.kube_of(&ctx), stop));
        assert_eq!(reached.map(drop).expect_err("nobody answers").kind, Kind::Interrupted);
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn what_passes_is_asked_again_and_what_does_not_is_told() {
        let ctx = Context::new(CancellationToken::new(), Duration::from_secs(600));
        for (kind, times) in [(Kind::Unreachable, 2), (Kind::Throttled, 2), (Kind::Denied, 1)] {
            let asked = std::cell::Cell::new(0);
            let answer = borne(&ctx, "look", || async {
                asked.set(asked.get() + 1);
                if asked.get() < 2 { Err(Failure::new(kind, "look", "no answer")) } else { Ok(()) }
            });
            let answer = answer.await.expect("nothing stopped it");
            assert_eq!((answer.is_ok(), asked.get()), (times > 1, times), "{kind:?}");
        }
        let short = Context::new(CancellationToken::new(), Duration::from_millis(50));
        let never = || async { Err(Failure::new(Kind::Unreachable, "look", "no answer")) };
        assert!(matches!(borne::<(), _>(&short, "look", never).await, Err(Interrupted::TimedOut { .. })));
    }
}

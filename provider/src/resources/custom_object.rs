//! The life of a cluster-scoped custom object: what `karp_node_class`, `karp_node_pool` and `karp_node_overlay` have in common.

mod attributes;
mod foresight;
mod kind;
mod metadata;
mod reads;

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use karp_kube::wait::{self, Look, Until, WaitError};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tfplugin::{AttributePath, Context, Diagnostic, Diagnostics, Interrupted, Schema, Value};
use tokio::time::Instant;

pub use self::attributes::{adopt, bare, force_conflicts, named, teardown, wait_for_ready};
pub use self::foresight::{name_of, seen};
pub use self::kind::CustomKind;
use self::kind::Met;
pub use self::metadata::metadata;
use super::departure::{Departure, End};
use super::node_claims;
use crate::aws::Origin;
use crate::manifests::spec::{self, Attributes, Scope};
use crate::marks::Mark;
use crate::provider::{Handle, Part};
use crate::report::{Failure, Kind};
use crate::session::{Session, borne};

/// What to do about an object that stays although nothing of karp's holds it.
pub const STAYS: &str = "A finalizer keeps it that karp did not set: look who put it there, then run this again.";
/// A wait goes on so long with one client: longer than failures are borne, and much less than a token lives.
const ROUND: Duration = Duration::from_secs(60);
/// What a call tells that is cut off.
const UNANSWERED: &str = "the API server has not answered";
/// What a wait tells that saw nothing.
pub const NOTHING_SEEN: &str = "nothing seen yet";

/// Names the parts of the provider block that it takes to call the API server.
pub fn needs(session: &Session) -> &'static [Part] {
    match session.model().kubernetes {
        Some(_) => &[Part::Kubernetes],
        None => &[Part::Kubernetes, Part::ClusterName, Part::Aws],
    }
}

/// A kind of custom object in a session: what its resource calls.
pub struct CustomObject {
    kind: CustomKind,
    handle: Arc<Handle>,
    spec: Attributes,
    reads: reads::Reads,
}

impl CustomObject {
    /// Binds a kind to a handle; the resource's schema tells the attributes of the spec.
    pub fn new(kind: CustomKind, handle: &Arc<Handle>, schema: &Schema) -> Self {
        Self {
            kind,
            handle: Arc::clone(handle),
            spec: attributes::spec_attributes(schema),
            reads: reads::Reads::default(),
        }
    }

    /// Gives the attributes of the spec.
    #[cfg(test)]
    pub fn spec(&self) -> &Attributes {
        &self.spec
    }

    /// Gives the provider's session.
    pub fn session(&self) -> Arc<Session> {
        self.handle.session()
    }

    /// Checks a configuration offline. Where an unknown value may still put things right, nothing is said.
    pub fn check(&self, config: &Value) -> Diagnostics {
        let mut unknown = Vec::new();
        let object = self.kind.object(&self.spec, config, &mut unknown);
        let settled = |path: &AttributePath| {
            !unknown.iter().any(|unknown| spec::within(unknown, path) || spec::within(path, unknown))
        };
        let place = |path: &str| Some(spec::path_of(&(self.kind.locate)(path))).filter(settled);
        let refused = (self.kind.validate)(&object);
        let refused = refused.iter().filter_map(|one| Some(kind::diagnostic(self.kind.kind, one, place(&one.path)?)));
        let doubted = (self.kind.lint)(&object);
        let doubted = doubted.iter().filter_map(|one| Some(kind::doubt(self.kind.kind, one, place(&one.path)?)));
        refused.chain(doubted).chain(metadata::check(config)).collect()
    }

    /// Reads attributes as the API's type; nothing while a part of them is not known.
    pub fn typed<T: DeserializeOwned>(&self, value: &Value) -> Option<T> {
        self.kind.typed(&self.spec, value)
    }

    /// Writes the object that a state describes.
    pub fn object(&self, state: &Value) -> Json {
        self.kind.object(&self.spec, state, &mut Vec::new())
    }

    /// Creates the object, or takes it over where that is wanted, and waits for the controller's word if asked to.
    pub async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        self.reads.forget();
        let client = self.session().kube_of(ctx).await?;
        let mark = Mark::new();
        let origin = ctx.run(self.kind.origin(&self.session(), &client, &planned, &mark)).await??;
        let met = if origin == Origin::Made { Met::Nothing(&mark) } else { Met::Theirs };
        let live = self.kind.apply(ctx, &client, &self.spec, &planned, met).await?;
        let name = planned.get("name").clone();
        let state = planned.with("id", name);
        if origin == Origin::Made {
            ctx.save(state.clone());
        } else if let Some(warning) = self.kind.beyond(&self.spec, &state, &live) {
            ctx.warn(warning);
        }
        self.kind.settle(ctx, &client, &state).await;
        if origin == Origin::Made {
            let (kind, name) = (self.kind, state.get("name").as_str().unwrap_or_default().to_owned());
            self.session().finishing().after_answer(move || {
                let (client, name) = (client.clone(), name.clone());
                async move { kind.unmark(&client, &name).await }
            });
        }
        Ok(state)
    }

    /// Reads the object into state. State in which the required attribute `always` is null comes from an import: then all fields are read.
    pub async fn read(&self, ctx: &Context, state: Value, always: &str) -> Result<Option<Value>, Diagnostics> {
        let session = self.session();
        let look = async {
            session.kube_of(ctx).await?;
            let live = self.reads.find(&session, self.kind, state.get("name").as_str().unwrap_or_default()).await?;
            let scope = if state.get(always).is_null() { Scope::All } else { Scope::Known };
            if let Some(live) = live.as_ref().filter(|live| live.metadata.deletion_timestamp.is_some()) {
                ctx.warn(self.kind.leaving(live));
            }
            Ok(live.map(|live| self.kind.state(&self.spec, &state, &live, scope)))
        };
        session.refresh(ctx, needs(&session), &state, look).await
    }

    /// Applies a change, and waits for the controller's word if asked to. What is of the resource alone, as `teardown`, changes nothing in the
    /// cluster: no conflict with who wrote the object is met for its sake.
    pub async fn update(&self, ctx: &Context, prior: &Value, planned: Value) -> Result<Value, Diagnostics> {
        self.reads.forget();
        let client = self.session().kube_of(ctx).await?;
        let forced = planned.get("force_conflicts").as_bool() == Some(true);
        if forced || metadata::with_note(self.object(prior), prior) != self.object(&planned) {
            self.kind.apply(ctx, &client, &self.spec, &planned, Met::Known(prior)).await?;
        }
        self.kind.settle(ctx, &client, &planned).await;
        Ok(planned)
    }

    /// Deletes the object of a state, and waits until it is gone; `fix` says what to do about one that stays.
    pub async fn delete(&self, ctx: &Context, prior: &Value, fix: &str) -> Result<(), Failure> {
        self.reads.forget();
        let client = self.session().kube_of(ctx).await?;
        let name = prior.get("name").as_str().unwrap_or_default();
        match self.kind.delete(ctx, &client, name).await? {
            Some(uid) => self.wait_gone(ctx, prior, &uid, fix).await,
            None => Ok(()),
        }
    }

    /// Waits until the object of a state is gone, which only a controller does to one with its finalizer.
    pub async fn wait_gone(&self, ctx: &Context, prior: &Value, uid: &str, fix: &str) -> Result<(), Failure> {
        let name = prior.get("name").as_str().unwrap_or_default();
        let doing = format!("delete {} {name:?}", self.kind.kind);
        let look = |client: Client| async move { wait::is_gone(&self.kind.api(&client, name), name, Some(uid)).await };
        self.depart(ctx, prior, &doing, fix, look).await.map(drop)
    }

    /// Says how long a controller may take to appear: not long where one was waited for in vain.
    pub fn grace(&self) -> Duration {
        if self.session().misses_controller() { Duration::ZERO } else { node_claims::LEASE_PATIENCE }
    }

    /// Waits until nothing is left to see. Where no controller is at work, what is left is an error, or left to the cluster's teardown.
    pub async fn depart<L>(
        &self,
        ctx: &Context,
        prior: &Value,
        doing: &str,
        fix: &str,
        look: impl Fn(Client) -> L,
    ) -> Result<End, Failure>
    where
        L: Future<Output = Result<Look<()>, karp_kube::Error>>,
    {
        let session = self.session();
        let connect = || async { session.kube_of(ctx).await.map(Some) };
        let departure = Departure { doing, patience: Duration::MAX, grace: self.grace() };
        let end = departure.watch(ctx, connect, look).await?;
        if let End::Abandoned(_) = end {
            session.miss_controller();
        }
        match end {
            End::Gone => Ok(End::Gone),
            End::Late(seen) => Err(Failure::new(Kind::TimedOut, doing, seen).with_fix(fix)),
            End::Abandoned(seen) if !prior.get("teardown").is_null() => {
                ctx.warn(Diagnostic::warning(
                    format!("No controller is at work to {doing}"),
                    format!("karp_teardown ends what is left, without a drain; seen last: {seen}"),
                ));
                Ok(End::Abandoned(seen))
            }
            End::Abandoned(seen) => {
                let what = format!("no controller has renewed its lease for 90 seconds; left: {seen}");
                Err(Failure::new(Kind::InUse, doing, what).with_fix(
                    "Only a controller can end this, and none is at work: start it again (see the Deployment `karpenter`), then run this \
                     again. Where the whole cluster goes, set `teardown` to the id of a karp_teardown before the destroy.",
                ))
            }
        }
    }
}

/// Translates an answer of the API server met while `doing` something.
pub fn failure(doing: impl Into<String>, error: karp_kube::Error) -> Failure {
    let unknown = matches!(error, karp_kube::Error::UnknownKind { .. });
    let failure = Failure::kube(doing, error);
    if unknown {
        return failure.with_fix("Install the CRDs first: add a karp_crds resource and depend on it.");
    }
    failure
}

/// Says until when an operation may wait: `reserve` of its time is kept to report and to store state, and never more than half of it, so
/// that a short limit is waited for, too.
pub fn within(ctx: &Context, reserve: Duration) -> Until {
    let left = ctx.remaining();
    Until::after(left - reserve.min(left / 2), ctx.stop())
}

/// Carries a change out to its answer, as [`Context::carry_out`] does; one that is cut off says what it was.
///
/// # Errors
/// Those of the change, and what ended the operation before it was answered.
pub async fn changed<T>(
    ctx: &Context,
    doing: &str,
    change: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match ctx.carry_out(change).await {
        Ok(answer) => answer,
        Err(cut) => Err(ended(doing, cut, UNANSWERED.to_owned())),
    }
}

/// Looks once. A stop ends it at once, as the end of the operation's time does: nothing is made that no state would know of.
///
/// # Errors
/// Those of the look, and what ended the operation before it was answered.
pub async fn asked<T>(
    ctx: &Context,
    doing: &str,
    look: impl Future<Output = Result<T, karp_kube::Error>>,
) -> Result<T, Failure> {
    match ctx.run(look).await {
        Ok(answer) => answer.map_err(|error| failure(doing, error)),
        Err(cut) => Err(ended(doing, cut, UNANSWERED.to_owned())),
    }
}

/// Looks until the aim is reached, as [`wait::until`] does, with a client for each minute: a token lives 15 minutes, and a wait may be longer.
///
/// # Errors
/// What ended the wait: [`Kind::TimedOut`] and [`Kind::Interrupted`] have what was seen last for their message.
pub async fn looked<T, C, L>(
    ctx: &Context,
    limit: &Until,
    doing: &str,
    connect: impl Fn() -> C,
    look: impl Fn(Client) -> L,
) -> Result<T, Failure>
where
    C: Future<Output = Result<Client, Failure>>,
    L: Future<Output = Result<Look<T>, karp_kube::Error>>,
{
    let mut last = NOTHING_SEEN.to_owned();
    loop {
        let client = match borne(ctx, doing, &connect).await {
            Ok(client) => client?,
            Err(cut) => return Err(ended(doing, cut, last)),
        };
        let deadline = limit.deadline.min(Instant::now() + ROUND);
        let round = Until { deadline, ..limit.clone() };
        match wait::until(&round, || Box::pin(look(client.clone()))).await {
            Err(WaitError::TimedOut { seen }) if deadline < limit.deadline => last = latest(last, seen),
            answer => return answer.map_err(|error| waited(doing, seeing(last, error))),
        }
    }
}

/// Gives what was seen last: where a client's round saw nothing, what those before it saw, and why nothing was seen since.
pub fn latest(before: String, seen: String) -> String {
    match seen.strip_prefix(NOTHING_SEEN) {
        Some(why) if before.ends_with(why) => before,
        Some(why) => before + why,
        None => seen,
    }
}

/// Lets the end of a wait tell what was seen before its last round, where that saw nothing.
pub fn seeing(before: String, error: WaitError) -> WaitError {
    match error {
        WaitError::Cancelled { seen } => WaitError::Cancelled { seen: latest(before, seen) },
        WaitError::TimedOut { seen } => WaitError::TimedOut { seen: latest(before, seen) },
        error @ WaitError::Api(_) => error,
    }
}

/// Waits, as [`looked`] does, until an object is gone; one of the same name with another UID does not count.
///
/// # Errors
/// As of [`looked`].
pub async fn gone<K>(
    ctx: &Context,
    session: &Session,
    limit: &Until,
    doing: &str,
    (name, uid): (&str, Option<&str>),
    api: impl Fn(Client) -> Api<K>,
) -> Result<(), Failure>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug,
{
    let api = &api;
    let look = |client: Client| async move { wait::is_gone(&api(client), name, uid).await };
    looked(ctx, limit, doing, || session.kube_of(ctx), look).await
}

fn ended(doing: &str, cut: Interrupted, seen: String) -> Failure {
    waited(
        doing,
        match cut {
            Interrupted::Stopped => WaitError::Cancelled { seen },
            Interrupted::TimedOut { .. } => WaitError::TimedOut { seen },
        },
    )
}

/// Translates the end of a wait.
pub fn waited(doing: &str, error: WaitError) -> Failure {
    match error {
        WaitError::Cancelled { seen } => Failure::new(Kind::Interrupted, doing, seen),
        WaitError::TimedOut { seen } => Failure::new(Kind::TimedOut, doing, seen),
        WaitError::Api(error) => failure(doing, error),
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn a_short_limit_is_waited_for_and_a_long_one_leaves_time_to_report() {
        let seconds = Duration::from_secs;
        for (limit, waited) in [(2, 1), (6, 3), (600, 595), (0, 0)] {
            let ctx = Context::new(CancellationToken::new(), seconds(limit));
            let left = within(&ctx, seconds(5)).deadline.saturating_duration_since(Instant::now());
            assert!(left <= seconds(waited) && left + seconds(1) >= seconds(waited), "{limit} s: {left:?}");
        }
    }

    #[tokio::test]
    async fn a_stop_ends_a_look_at_an_api_server_that_is_silent() {
        let ctx = Context::new(CancellationToken::new(), Duration::from_secs(600));
        let silent = asked(&ctx, "list NodeClaims", std::future::pending::<Result<(), karp_kube::Error>>());
        let (looked, ()) = tokio::join!(silent, async { ctx.stop().cancel() });
        let cut = looked.unwrap_err();
        assert_eq!((cut.kind, cut.doing.as_str()), (Kind::Interrupted, "list NodeClaims"));
    }

    #[tokio::test]
    async fn a_change_that_is_cut_off_says_what_it_was() {
        let over = Context::new(CancellationToken::new(), Duration::ZERO);
        let late = changed(&over, "delete NodePool \"a\"", async { Ok(()) }).await.unwrap_err();
        assert_eq!((late.kind, late.doing.as_str()), (Kind::TimedOut, "delete NodePool \"a\""));
        let stopped = Context::new(CancellationToken::new(), Duration::from_secs(600));
        stopped.stop().cancel();
        let never = || async { panic!("it was stopped before") };
        let limit = within(&stopped, Duration::ZERO);
        let cut = looked::<(), _, _>(&stopped, &limit, "wait", never, |_| async { Ok(Look::Done(())) }).await;
        assert_eq!(cut.unwrap_err().kind, Kind::Interrupted);
    }

    #[tokio::test]
    async fn what_was_seen_is_told_though_the_last_round_saw_nothing() {
        let stopped = Until::after(Duration::from_secs(600), &CancellationToken::new());
        stopped.cancelled.cancel();
        let unseen = wait::until::<(), _>(&stopped, || async { panic!("it was stopped before") }).await.unwrap_err();
        assert!(matches!(&unseen, WaitError::Cancelled { seen } if seen == NOTHING_SEEN), "{unseen}");
        let told = |before: &str, error: WaitError| waited("wait", seeing(before.to_owned(), error)).message;
        assert_eq!(told("1 of 2", unseen), "1 of 2");
        let late = |seen: &str| WaitError::TimedOut { seen: seen.to_owned() };
        assert_eq!(told("1 of 2", late("nothing seen yet; asked again, busy")), "1 of 2; asked again, busy");
        let known = "1 of 2; asked again, busy";
        assert_eq!(told(known, late("nothing seen yet; asked again, busy")), known);
        assert_eq!(told("1 of 2", late("2 of 2")), "2 of 2");
        assert_eq!(told(NOTHING_SEEN, late(NOTHING_SEEN)), NOTHING_SEEN);
    }
}

//! How the nodes of a pool leave at destroy: at the pace of the pool's own budgets, for at most half of the time; then the rest at once.
//!
//! While nodes leave at a pace, the pool lives and may not grow: its limits say `nodes = 0`, beside an annotation. A run that is broken
//! off here leaves it so; the next destroy goes on, and the next apply shows the annotation and takes both away.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use karp_domain::api::{self, labels};
use karp_domain::cluster::{Budget, Pool, Reason, allowed};
use karp_kube::Error;
use karp_kube::apply::{self, Force, Manager};
use karp_kube::events::{self, Weight};
use karp_kube::wait::Look;
use kube::Client;
use kube::api::Api;
use serde_json::json;
use tfplugin::{Context, Diagnostic, Value};

use super::custom_object::{CustomObject, asked, changed, failure};
use super::departure::{Departure, End};
use super::node_claims::{self, Ask, Left};
use crate::manifests::FIELD_MANAGER;
use crate::preview;
use crate::report::{Failure, Kind};

/// The events' source.
const SOURCE: &str = FIELD_MANAGER;
/// Progress is told by an event this often; the log has it more often.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The drain of one pool.
pub struct Drain<'a> {
    object: &'a CustomObject,
    ctx: &'a Context,
    prior: &'a Value,
    name: &'a str,
    selector: String,
    begin: Instant,
    /// The live pool, for events about it; none where it is gone.
    about: Option<ObjectReference>,
    seen: Mutex<Seen>,
}

/// What was seen of the nodes on their way.
#[derive(Debug, Default)]
struct Seen {
    /// All NodeClaims that were there at some time.
    claims: BTreeSet<String>,
    /// Those whose grace period ended before their pods had left.
    overdue: BTreeSet<String>,
    /// How many were asked to leave at a time; none where all were asked at once.
    pace: Option<usize>,
    /// So many were asked to leave at once when half of the time was over.
    hurried: usize,
    told: Option<Instant>,
}

impl<'a> Drain<'a> {
    /// Looks at the pool and its nodes.
    pub async fn begin(
        object: &'a CustomObject,
        ctx: &'a Context,
        prior: &'a Value,
        name: &'a str,
    ) -> Result<Self, Failure> {
        let client = object.session().kube_of(ctx).await?;
        let selector = format!("{}={name}", labels::NODE_POOL);
        let doing = format!("look at NodePool {name:?} and its nodes");
        let look = async {
            let about = about(&client, name).await?;
            Ok::<_, Error>((about, node_claims::left(&client, &selector, Ask::Nobody).await?))
        };
        let look = async { look.await.map_err(|error| failure(&doing, error)) };
        let (about, left) = changed(ctx, &doing, look).await?;
        let seen = Mutex::default();
        let drain = Self { object, ctx, prior, name, selector, begin: Instant::now(), about, seen };
        drain.note(&left);
        if !left.is_empty() {
            drain
                .tell(&client, Weight::Normal, "Draining", &format!("terraform destroys the pool: {left} to leave"))
                .await;
        }
        Ok(drain)
    }

    /// Lets nodes leave as many at a time as the pool's budgets allow, until the last was asked to or half of the time is over.
    pub async fn pace(&self) -> Result<(), Failure> {
        let total = self.seen().claims.len();
        let budgets = self.object.typed::<api::NodePool>(self.prior).and_then(|pool| Pool::from_kube(&pool).ok());
        let Some(budgets) = budgets.map(|pool| pool.budgets) else { return Ok(()) };
        if total <= at_once(&budgets, total, Timestamp::now()) || self.about.is_none() {
            return Ok(());
        }
        self.stop_growth().await?;
        let (selector, session) = (&self.selector, self.object.session());
        let look = |client: Client| {
            let at_once = at_once(&budgets, total, Timestamp::now());
            self.seen().pace = Some(at_once);
            async move {
                let left = node_claims::left(&client, selector, Ask::AtOnce(at_once)).await?;
                self.progress(&client, &left).await;
                Ok(if left.staying() == 0 { Look::Done(()) } else { Look::NotYet(left.to_string()) })
            }
        };
        let doing = format!("drain the nodes of NodePool {:?} at the pace of its budgets", self.name);
        let departure = Departure { doing: &doing, patience: self.ctx.remaining() / 2, grace: self.object.grace() };
        let end = departure.watch(self.ctx, || async { session.kube_of(self.ctx).await.map(Some) }, look).await?;
        if let End::Abandoned(_) = end {
            session.miss_controller();
        }
        if let End::Late(_) = end {
            let client = session.kube_of(self.ctx).await?;
            let left = asked(self.ctx, &doing, node_claims::left(&client, selector, Ask::Nobody)).await?;
            self.seen().hurried = left.staying();
            let note = format!(
                "half of the time is over: all {} nodes that are left are asked to leave at once",
                left.staying()
            );
            self.tell(&client, Weight::Warning, "DrainHurried", &note).await;
        }
        Ok(())
    }

    /// Keeps the pool from making nodes in the place of those that leave, in a way that the next apply would take back.
    async fn stop_growth(&self) -> Result<(), Failure> {
        let client = self.object.session().kube_of(self.ctx).await?;
        let mut object = self.object.object(self.prior);
        object["spec"]["limits"]["nodes"] = json!("0");
        object["metadata"]["annotations"][labels::DRAINING] = json!(Timestamp::now().strftime("%FT%TZ").to_string());
        // The pool is about to go: whoever else set its limits has no more use for them.
        let manager = Manager { name: FIELD_MANAGER, force: Force::Yes };
        let doing = format!("keep NodePool {:?} from growing", self.name);
        let apply = async {
            let applied = apply::json(&client, manager, "nodepools", &object).await;
            applied.map(drop).map_err(|error| failure(&doing, error))
        };
        changed(self.ctx, &doing, apply).await
    }

    /// Waits until no NodeClaim and no Node of the pool is left; all are asked to leave.
    pub async fn finish(&self) -> Result<End, Failure> {
        let selector = &self.selector;
        let look = |client: Client| async move {
            let left = node_claims::left(&client, selector, Ask::All).await?;
            self.progress(&client, &left).await;
            Ok(if left.is_empty() { Look::Done(()) } else { Look::NotYet(left.to_string()) })
        };
        let doing = format!("drain the nodes of NodePool {:?}", self.name);
        let fix = "Pods that may not be evicted (PodDisruptionBudgets, karpenter.sh/do-not-disrupt) keep their node: move them, or set \
                   `timeouts = { delete = \"2h\" }`, and run this again; the drain goes on meanwhile.";
        let mut late = match self.object.depart(self.ctx, self.prior, &doing, fix, look).await {
            Ok(end) => return Ok(end),
            Err(late) => late,
        };
        if late.kind == Kind::TimedOut {
            // Looked for at the end only: it takes a list of all pods.
            let holders = async {
                let client = self.object.session().kube_of(self.ctx).await.ok()?;
                preview::held(&client, selector).await.ok()
            };
            let held = tokio::time::timeout(preview::PATIENCE, holders).await.ok().flatten().unwrap_or_default();
            if !held.is_empty() {
                late.message = format!("{}; held by {held}", late.message);
            }
        }
        Err(late)
    }

    /// Says in one warning what became of the nodes; nothing where there were none.
    pub async fn summarise(&self) {
        let said = {
            let seen = self.seen();
            (!seen.claims.is_empty()).then(|| seen.summary(self.begin.elapsed()))
        };
        let Some(said) = said else { return };
        if let Ok(client) = self.object.session().kube_of(self.ctx).await {
            self.tell(&client, Weight::Normal, "Drained", &said).await;
        }
        self.ctx.warn(Diagnostic::warning(format!("The nodes of NodePool {:?} are drained", self.name), said));
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        // Nothing panics while holding it; what it has is as good as before.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, left: &Left) {
        let mut seen = self.seen();
        seen.claims.extend(left.claims().iter().cloned());
        seen.overdue.extend(left.overdue().iter().cloned());
    }

    async fn progress(&self, client: &Client, left: &Left) {
        self.note(left);
        let is_due = self.seen().is_due(self.begin, Instant::now());
        if is_due && !left.is_empty() {
            self.tell(client, Weight::Normal, "Draining", &format!("still to leave: {left}")).await;
        }
    }

    /// Tells of the pool by an event, which whoever watches the cluster sees. One that cannot be written is no reason to stop.
    async fn tell(&self, client: &Client, weight: Weight, reason: &str, note: &str) {
        let Some(about) = &self.about else { return };
        let told = self.ctx.carry_out(events::tell(client, SOURCE, about, weight, reason, note)).await;
        if let Ok(Err(error)) = told {
            tracing::warn!(%error, reason, "no event could be written");
        }
    }
}

/// Names the live pool; nothing where it or its CRD is gone.
async fn about(client: &Client, name: &str) -> Result<Option<ObjectReference>, Error> {
    let live = Api::<api::NodePool>::all(client.clone()).get_metadata_opt(name).await.map_err(Error::from);
    let live = match live {
        Err(Error::NotFound { .. } | Error::UnknownKind { .. }) => None,
        live => live?,
    };
    Ok(live.map(|live| ObjectReference {
        api_version: Some("karpenter.sh/v1".to_owned()),
        kind: Some("NodePool".to_owned()),
        name: Some(name.to_owned()),
        uid: live.metadata.uid,
        ..ObjectReference::default()
    }))
}

/// Says how many of so many nodes may be on their way at once: what the budgets allow for drift, which a change of the configuration is, too.
/// One at least, since a pool that is destroyed must come to its end.
fn at_once(budgets: &[Budget], total: usize, now: Timestamp) -> usize {
    let_go(budgets, total, now).max(1)
}

/// Says how many of so many nodes the budgets let go at once.
pub fn let_go(budgets: &[Budget], total: usize, now: Timestamp) -> usize {
    let total = u32::try_from(total).unwrap_or(u32::MAX);
    usize::try_from(allowed(budgets, Reason::Drifted, total, now)).unwrap_or(usize::MAX)
}

impl Seen {
    /// Says whether progress is to be told again, and takes it for told then.
    fn is_due(&mut self, begin: Instant, now: Instant) -> bool {
        let is_due = now.saturating_duration_since(self.told.unwrap_or(begin)) >= TELL_EVERY;
        if is_due {
            self.told = Some(now);
        }
        is_due
    }

    fn summary(&self, took: Duration) -> String {
        struct Nodes(usize);
        impl fmt::Display for Nodes {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} node{}", self.0, if self.0 == 1 { "" } else { "s" })
            }
        }
        let pace = match self.pace {
            Some(pace) => format!("at most {pace} at a time by the pool's budgets"),
            None => "all at once, as its budgets allow".to_owned(),
        };
        let hurried = (self.hurried > 0).then(|| {
            format!("{} were asked to leave at once when half of `timeouts.delete` was over", Nodes(self.hurried))
        });
        let overdue = (!self.overdue.is_empty()).then(|| {
            format!("{} ended with pods on them, at the end of `termination_grace_period`", Nodes(self.overdue.len()))
        });
        let forced: Vec<String> = hurried.into_iter().chain(overdue).collect();
        let forced = if forced.is_empty() { "none was forced".to_owned() } else { forced.join("; ") };
        format!("{} left within {} s, {pace}; {forced}.", Nodes(self.claims.len()), took.as_secs().max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budgets(of: &str) -> Vec<Budget> {
        let pool: api::NodePool = serde_json::from_value(json!({
            "metadata": { "name": "a" },
            "spec": { "disruption": { "consolidateAfter": "0s", "budgets": serde_json::from_str::<serde_json::Value>(of).unwrap() },
                "template": { "spec": { "requirements": [],
                    "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "a" } } } },
        }))
        .unwrap();
        Pool::from_kube(&pool).unwrap().budgets
    }

    #[test]
    fn the_pace_is_what_budgets_allow_and_never_a_standstill() {
        let now = "2026-06-01T12:00:00Z".parse().unwrap();
        let pace = |of: &str, total: usize| at_once(&budgets(of), total, now);
        assert_eq!(pace(r#"[{ "nodes": "10%" }]"#, 20), 2);
        assert_eq!(pace(r#"[{ "nodes": "10%" }]"#, 3), 1);
        assert_eq!(pace(r#"[{ "nodes": "10%" }, { "nodes": "1", "reasons": ["Drifted"] }]"#, 20), 1);
        assert_eq!(pace(r#"[{ "nodes": "3", "reasons": ["Empty"] }]"#, 20), usize::try_from(u32::MAX).unwrap());
        assert_eq!(pace(r#"[{ "nodes": "0" }]"#, 20), 1);
        let nights = r#"[{ "nodes": "0", "schedule": "0 20 * * *", "duration": "8h" }, { "nodes": "50%" }]"#;
        assert_eq!(pace(nights, 20), 10);
    }

    #[test]
    fn progress_is_told_each_minute_since_the_begin() {
        let (begin, mut seen) = (Instant::now(), Seen::default());
        let due = |seconds: u64| seen.is_due(begin, begin + Duration::from_secs(seconds));
        let at = [0, 59, 60, 61, 119, 150, 209, 210];
        assert_eq!(at.map(due), [false, false, true, false, false, true, false, true]);
    }

    #[test]
    fn a_summary_says_how_many_how_long_and_what_was_forced() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let took = Duration::from_secs(75);
        let mut seen = Seen { claims: names(&["a", "b", "c"]), pace: Some(1), ..Seen::default() };
        let said = "3 nodes left within 75 s, at most 1 at a time by the pool's budgets; none was forced.";
        assert_eq!(seen.summary(took), said);
        (seen.hurried, seen.overdue) = (2, names(&["b"]));
        let said = seen.summary(took);
        assert!(said.contains("2 nodes were asked to leave at once when half"), "{said}");
        assert!(said.contains("1 node ended with pods on them"), "{said}");
        let all = Seen { claims: names(&["a"]), ..Seen::default() };
        assert!(all.summary(took).starts_with("1 node left within 75 s, all at once"), "{}", all.summary(took));
    }
}

//! Interruption: messages of the queue become events, remembered offerings and replaced nodes. A message is deleted only after
//! its effect is recorded at the API server, so that a crash repeats it. Which account an event names is not asked: whoever may send to the queue
//! could write any, so that the queue's policy is the lock. An id stands for one instance of all accounts, and others' have no claim here.

mod pump;
mod queue;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karp_domain::api::{NodeClaim, conditions, labels};
use karp_domain::catalogue::CapacityType;
use karp_domain::disruption::Progress;
use karp_domain::fleet::UnavailableOffering;
use karp_domain::interruption::{
    Action as Wanted, Cause, InstanceState, Message, Next, Notice, Recall, Returning, Unrecorded, Vacating, parse,
    replaces_on_rebalance,
};
use kube::ResourceExt;
use kube::runtime::controller::Action;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Context, Error, node_claim, registration};
use crate::cloud::QueueMessage;
use crate::effect::{self, Effect, Outcome};
use crate::ops::events::Reason;
use crate::ops::metrics::{ControllerLabels, MessageLabels};
use crate::ops::telemetry::pass_span;
use pump::{Ways, pump};
use queue::Queue;

/// Pause between looks at a replacement.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Handles messages until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let (context, returning, queue) = (&*context, &Mutex::default(), &Queue::default());
    let ways = Ways {
        receive: || queue.receive(context),
        handle: |message| async move { handle(context, returning, message).instrument(pass_span!("interruption")).await },
        delete: |receipts| delete(context, receipts),
    };
    tokio::join!(pump(ways, &stop), queue.tell(context, &stop));
}

async fn delete(context: &Context, receipts: Vec<String>) {
    match context.cloud.delete_messages(&receipts).await {
        Ok(()) => {
            context.metrics.messages_deleted.inc_by(receipts.len() as u64);
        }
        // They come back, and what they ask for is done already.
        Err(error) => tracing::warn!(%error, "deleting interruption messages"),
    }
}

/// Handles one message; returns its receipt once its effect is recorded, or when it has none. One that may be about an instance which was just
/// launched comes again.
async fn handle(context: &Context, returning: &Mutex<Returning>, queued: QueueMessage) -> Option<String> {
    let message = parse(&queued.body);
    context.metrics.messages_received.get_or_create(&MessageLabels::new(message.kind())).inc();
    if let Message::Unreadable { problem } = &message {
        tracing::error!(error = problem, "interruption message cannot be read, deleting it");
    }
    let mut unrecorded = Unrecorded::of(&message);
    for notice in message.notices() {
        if let Some(at) = notice.at {
            let age = Timestamp::now().duration_since(at).as_secs_f64().max(0.0);
            let labels = ControllerLabels::new("interruption");
            context.metrics.message_age.get_or_create(&labels).observe(age);
        }
        let Some(claim) = claim_of(context, &notice.instance_id) else {
            let launching = is_launching(context);
            let mut returning = returning.lock().unwrap_or_else(PoisonError::into_inner);
            if !returning.keeps(&queued.id, &message, notice, launching, Timestamp::now()) {
                unrecorded.recorded();
            }
            continue;
        };
        match act(context, &message, notice, &claim).await {
            Ok(()) => unrecorded.recorded(),
            // the others that it is about have no time to wait for this one
            Err(error) => {
                tracing::warn!(NodeClaim.name = claim.name_any(), %error, "handling an interruption, it will come again");
            }
        }
    }
    unrecorded.is_nothing().then_some(queued.receipt)
}

/// Says whether some claim of ours does not say yet which instance it has.
fn is_launching(context: &Context) -> bool {
    let waits = |claim: &NodeClaim| {
        claim.spec.node_class_ref.is_ours()
            && claim.metadata.deletion_timestamp.is_none()
            && node_claim::provider_id(claim).is_none()
    };
    context.stores.claims.find(waits).is_some()
}

/// Returns our claim of an instance, by the instance's id alone.
pub fn claim_of(context: &Context, instance_id: &str) -> Option<Arc<NodeClaim>> {
    let ends = |id: &str| id.rsplit('/').next() == Some(instance_id);
    context
        .stores
        .claims
        .find(|claim| claim.spec.node_class_ref.is_ours() && node_claim::provider_id(claim).is_some_and(ends))
}

async fn act(context: &Context, message: &Message, notice: &Notice, claim: &NodeClaim) -> Result<(), Error> {
    let wanted = message.action();
    if wanted == Wanted::Ignore || claim.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let (reason, note) = telling(message);
    tell(context, claim, reason, note);
    let cause = match wanted {
        Wanted::Ignore => return Ok(()),
        // An instance that ends already has no time for a replacement first.
        Wanted::Delete => {
            if node_claim::delete(claim, context, message.kind()).await? == Outcome::Done {
                say_ending(context, claim, message.kind());
            }
            return Ok(());
        }
        Wanted::Advise if !follows_advice(context, claim) => return Ok(()),
        Wanted::Advise => Cause::RebalanceRecommendation,
        Wanted::Recall(cause) => cause,
    };
    recall(context, claim, Recall::announced(cause, notice.at, Timestamp::now())).await.map(drop)
}

/// Returns the event that tells of a message, in Karpenter's words.
fn telling(message: &Message) -> (Reason, &'static str) {
    match message {
        Message::SpotInterruption(_) => (Reason::SpotInterrupted, "Spot interruption warning was triggered"),
        Message::RebalanceRecommendation(_) => {
            (Reason::SpotRebalanceRecommendation, "Spot rebalance recommendation was triggered")
        }
        Message::StateChange { state: InstanceState::Stopping | InstanceState::Stopped, .. } => {
            (Reason::InstanceStopping, "Instance is stopping")
        }
        Message::StateChange { .. } => (Reason::InstanceTerminating, "Instance is terminating"),
        Message::CapacityReservationInterruption(_) => {
            (Reason::CapacityReservationInstanceInterrupted, "Capacity reservation instance interruption was triggered")
        }
        Message::ScheduledChange { .. } | Message::Foreign { .. } | Message::Unreadable { .. } => UNWELL,
    }
}

/// What is told of an instance that is not well, or for which AWS plans something.
pub const UNWELL: (Reason, &str) = (Reason::InstanceUnhealthy, "An unhealthy warning was triggered for the instance");

/// Publishes an event on a claim and its node.
pub fn tell(context: &Context, claim: &NodeClaim, reason: Reason, note: &str) {
    context.events.publish(&effect::reference(claim), reason, note);
    if let Some(node) = registration::node(claim, context) {
        context.events.publish(&effect::reference(&*node), reason, note);
    }
}

/// Tells that a claim ends because of what AWS announced.
pub fn say_ending(context: &Context, claim: &NodeClaim, kind: &str) {
    tracing::info!(
        NodeClaim.name = claim.name_any(),
        "message-kind" = kind,
        "provider-id" = node_claim::provider_id(claim).unwrap_or_default(),
        "initiating delete from interruption message"
    );
    let note = "Interruption triggered termination for the NodeClaim";
    context.events.publish(&effect::reference(claim), Reason::TerminatingOnInterruption, note);
}

/// Says whether a node is replaced on mere advice: its pool wants it, and there is a node to replace.
fn follows_advice(context: &Context, claim: &NodeClaim) -> bool {
    let pool = context.stores.pool(&node_claim::pool_of(claim));
    node_claim::is_true(claim, conditions::INITIALIZED) && pool.is_some_and(|pool| replaces_on_rebalance(&pool))
}

/// Records on a claim that its instance is called back, and says whether that was new: it is not when the claim says so already, or goes
/// sooner anyway. What replaces the node comes after that.
pub async fn recall(context: &Context, claim: &NodeClaim, recall: Recall) -> Result<Outcome, Error> {
    if recall.cause.speaks_against_offering() {
        avoid(context, claim, recall.cause);
    }
    let stamp = |known: &kube::core::ObjectMeta| {
        let leaves = known.deletion_timestamp.is_some() || known.uid != claim.metadata.uid;
        let new = !leaves && recall.hastens(known.annotations.as_ref());
        new.then(|| json!({ "annotations": std::collections::BTreeMap::from(recall.annotations()) }))
    };
    let outcome = effect::edit_metadata(&context.client, claim, stamp).await?;
    if outcome == Outcome::Done {
        say_ending(context, claim, recall.cause.as_str());
    }
    Ok(outcome)
}

/// Remembers that EC2 takes this offering back, so that the replacement is another.
fn avoid(context: &Context, claim: &NodeClaim, cause: Cause) {
    let label = |key: &str| claim.labels().get(key).cloned().unwrap_or_default();
    let (instance_type, zone) = (label(labels::INSTANCE_TYPE), label(labels::ZONE));
    if !instance_type.is_empty() && !zone.is_empty() {
        let code = match cause {
            Cause::RebalanceRecommendation => "RebalanceRecommendation",
            _ => "SpotInterruption",
        };
        context.unavailable.mark(&UnavailableOffering {
            instance_type,
            zone,
            capacity_type: CapacityType::Spot,
            reservation: None,
            code: code.to_owned(),
        });
    }
}

/// Returns since when and why a claim's instance is called back, if it is.
pub fn recalled(claim: &NodeClaim) -> Option<Recall> {
    Recall::of(claim.metadata.annotations.as_ref())
}

/// Takes a claim whose instance is called back one step further: taint, plan, wait for the new home of its pods, delete.
pub async fn replace(claim: &NodeClaim, recall: Recall, context: &Context) -> Result<Action, Error> {
    let node = registration::node(claim, context);
    let name = node.as_ref().map(|node| node.name_any()).unwrap_or_default();
    // Looked at every second: what the watch shows already is not asked for again.
    let vacating = |node: &Node| Vacating { tainted: is_tainted(node), rehoused: rehoused(context, &name) };
    let mut seen = node.as_deref().map(vacating);
    loop {
        match recall.next(seen, Timestamp::now()) {
            Next::Wait => return Ok(Action::requeue(LOOK_AGAIN)),
            Next::Stay => return stay(claim, context).await,
            Next::Delete => {
                node_claim::delete(claim, context, recall.cause.as_str()).await?;
                return Ok(Action::await_change());
            }
            Next::Taint => {
                keep_off(claim, &name, recall.cause, context).await?;
                seen = seen.map(|node| Vacating { tainted: true, ..node });
            }
        }
    }
}

/// Taints the node of a claim: the next plan is made without it, whether or not the watch has shown the taint. Load balancers leave a node that
/// EC2 takes back, and not one that may stay.
async fn keep_off(claim: &NodeClaim, node: &str, cause: Cause, context: &Context) -> Result<(), Error> {
    let which = context.which(&node.into());
    let keep = if cause.is_advice() { Effect::Taint(which) } else { Effect::Retire(which) };
    if effect::apply(&context.client, &keep).await? == Outcome::Done {
        tracing::info!(
            Node.name = node,
            "taint.Key" = labels::DISRUPTED,
            "taint.Effect" = "NoSchedule",
            "tainted node"
        );
        context.assumed().tainted(&claim.name_any());
        context.provision.notify_one();
    }
    Ok(())
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| taint.key == labels::DISRUPTED)
}

/// Takes a recall back: nothing could replace the node, and it may run on. Disruption takes the taint, which nothing stands behind then.
async fn stay(claim: &NodeClaim, context: &Context) -> Result<Action, Error> {
    tracing::info!(NodeClaim.name = claim.name_any(), "nothing replaces the node in time, it stays until EC2 takes it");
    let none = json!({ "annotations": { (labels::INTERRUPTED_AT): null, (labels::INTERRUPTED_BY): null } });
    node_claim::stamp(context, claim, none).await?;
    context.assumed().untainted(&claim.name_any());
    context.disrupt.notify_one();
    Ok(Action::await_change())
}

/// Says whether a plan was made without a node that has a place for each of its pods, and every node that it makes for them is ready.
fn rehoused(context: &Context, node: &str) -> bool {
    let pods = context.stores.pods.on_node(node);
    let is_ready = |claim: &str| Progress::of(context.stores.claim(claim).as_deref(), false) == Progress::Initialized;
    context.plans.last().home(node, pods.iter().map(|pod| &pod.key), is_ready).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Server, status};
    use super::*;

    #[tokio::test]
    async fn a_claim_that_cannot_be_written_keeps_no_other_of_its_message() {
        let ids = ["i-0a", "i-0b"];
        let server = Server::of(ids.map(|id| {
            let mut claim = testing::claim(id);
            claim["status"] = json!({ "providerID": format!("aws:///us-east-1a/{id}") });
            claim
        }));
        let context = server.context().await;
        server.answer("PATCH nodeclaims/i-0a", Some(422), status(422, "Invalid"));
        let detail = json!({
            "service": "EC2", "eventTypeCategory": "scheduledChange",
            "affectedEntities": ids.map(|id| json!({ "entityValue": id })),
        });
        let body = json!({ "source": "aws.health", "detail-type": "AWS Health Event", "detail": detail }).to_string();
        let message = || QueueMessage { id: "m".to_owned(), receipt: "r".to_owned(), body: body.clone() };
        let returning = Mutex::default();
        assert_eq!(handle(&context, &returning, message()).await, None, "it comes again");
        let recalled = |id: &str| {
            let claim = server.get(&format!("nodeclaims/{id}"));
            !claim["metadata"]["annotations"][labels::INTERRUPTED_AT].is_null()
        };
        assert_eq!(ids.map(recalled), [false, true]);
        assert_eq!(handle(&context, &returning, message()).await.as_deref(), Some("r"));
        assert_eq!(ids.map(recalled), [true, true]);
    }

    /// A message is as long as SQS takes it, and may be anything.
    #[tokio::test]
    async fn a_long_message_is_read_or_deleted() {
        const LONGEST: usize = 1 << 20;
        let mut claim = testing::claim("ours");
        claim["status"] = json!({ "providerID": "aws:///us-east-1a/i-0a" });
        let server = Server::of([claim]);
        let context = server.context().await;
        let warning = |id: &str, more: &str| {
            let (kind, account) = ("EC2 Spot Instance Interruption Warning", "999999999999");
            let detail = json!({ "instance-id": id, "more": more });
            json!({ "source": "aws.ec2", "detail-type": kind, "account": account, "detail": detail }).to_string()
        };
        let deep = "[".repeat(LONGEST);
        let nested = warning("i-0a", "here").replace("\"here\"", &deep);
        let foreign = warning("i-0b", &"x".repeat(LONGEST));
        let ours = warning("i-0a", &"x".repeat(LONGEST));
        let returning = Mutex::default();
        for (body, recalled) in [(deep, false), (nested, false), (foreign, false), (ours, true)] {
            let message = QueueMessage { id: "m".to_owned(), receipt: "r".to_owned(), body };
            assert_eq!(handle(&context, &returning, message).await.as_deref(), Some("r"));
            let claim = server.get("nodeclaims/ours");
            assert_eq!(!claim["metadata"]["annotations"][labels::INTERRUPTED_AT].is_null(), recalled);
        }
    }
}

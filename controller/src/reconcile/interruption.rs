//! Interruption: messages of the queue become events, remembered offerings and replaced nodes. A message is deleted only after
//! its effect is recorded at the API server, so that a crash repeats it.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use karp_domain::api::conditions;
use karp_domain::api::{NodeClaim, labels};
use karp_domain::catalogue::CapacityType;
use karp_domain::fleet::UnavailableOffering;
use karp_domain::interruption::{Action as Wanted, InstanceState, Message, Notice, parse};
use kube::ResourceExt;
use kube::runtime::controller::Action;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Context, Error, node_claim, registration};
use crate::cloud::QueueMessage;
use crate::effect::{self, Effect};
use crate::ops::events::Reason;
use crate::ops::metrics::{ControllerLabels, MessageLabels};
use crate::ops::telemetry::pass_span;

/// When a claim's instance was called back; its node is replaced, then drained.
pub const INTERRUPTED_AT: &str = "karp.sh/interrupted-at";
/// Of the two minutes that EC2 gives, one is for the replacement and one for the drain.
const REPLACE_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// Pause between looks at a replacement.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Pause after a queue that could not be read.
const QUEUE_PAUSE: Duration = Duration::from_secs(10);

/// Handles messages until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    loop {
        let received = tokio::select! {
            () = stop.cancelled() => return,
            received = context.cloud.receive() => received,
        };
        let pause = match received {
            Ok(None) => {
                tracing::debug!("there is no interruption queue");
                stop.cancelled().await;
                return;
            }
            Ok(Some(messages)) => {
                let span = pass_span!("interruption");
                handle_all(&context, messages).instrument(span).await;
                Duration::ZERO
            }
            Err(error) => {
                tracing::error!(%error, "receiving interruption messages");
                QUEUE_PAUSE
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn handle_all(context: &Context, messages: Vec<QueueMessage>) {
    let handled = join_all(messages.iter().map(|message| handle(context, message))).await;
    let receipts: Vec<String> = handled.into_iter().flatten().collect();
    if receipts.is_empty() {
        return;
    }
    match context.cloud.delete_messages(&receipts).await {
        Ok(()) => {
            context.metrics.messages_deleted.inc_by(receipts.len() as u64);
        }
        // They come back, and what they ask for is done already.
        Err(error) => tracing::warn!(%error, "deleting interruption messages"),
    }
}

/// Handles one message; returns its receipt once its effect is recorded.
async fn handle(context: &Context, queued: &QueueMessage) -> Option<String> {
    let message = parse(&queued.body);
    context.metrics.messages_received.get_or_create(&MessageLabels::new(message.kind())).inc();
    if let Message::Unreadable { problem } = &message {
        tracing::error!(error = problem, "interruption message cannot be read, deleting it");
    }
    for notice in message.notices() {
        if let Some(at) = notice.at {
            let age = Timestamp::now().duration_since(at).as_secs_f64().max(0.0);
            let labels = ControllerLabels::new("interruption");
            context.metrics.message_age.get_or_create(&labels).observe(age);
        }
        let Some(claim) = claim_of(context, &notice.instance_id) else { continue };
        if let Err(error) = act(context, &message, notice, &claim).await {
            tracing::warn!(NodeClaim.name = claim.name_any(), %error, "handling an interruption, it will come again");
            return None;
        }
    }
    Some(queued.receipt.clone())
}

/// Returns the claim of an instance by its id alone.
fn claim_of(context: &Context, instance_id: &str) -> Option<Arc<NodeClaim>> {
    let ends = |id: &str| id.rsplit('/').next() == Some(instance_id);
    context.stores.claims.find(|claim| node_claim::provider_id(claim).is_some_and(ends))
}

async fn act(context: &Context, message: &Message, notice: &Notice, claim: &Arc<NodeClaim>) -> Result<(), Error> {
    let (reason, note) = match message {
        Message::SpotInterruption(_) => (Reason::SpotInterrupted, "Spot interruption warning was triggered"),
        Message::RebalanceRecommendation(_) => {
            (Reason::SpotRebalanceRecommendation, "Spot rebalance recommendation was triggered")
        }
        Message::StateChange { state: InstanceState::Stopping, .. } => {
            (Reason::InstanceStopping, "Instance is stopping")
        }
        Message::StateChange { .. } => (Reason::InstanceTerminating, "Instance is terminating"),
        Message::CapacityReservationInterruption(_) => {
            (Reason::CapacityReservationInstanceInterrupted, "Capacity reservation instance interruption was triggered")
        }
        _ => (Reason::InstanceUnhealthy, "An unhealthy warning was triggered for the instance"),
    };
    if message.action() == Wanted::Ignore || claim.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    context.events.publish(&effect::reference(&**claim), reason, note);
    if let Some(node) = registration::node(claim, context) {
        context.events.publish(&effect::reference(&*node), reason, note);
    }
    if matches!(message, Message::SpotInterruption(_)) {
        avoid(context, claim);
    }
    if message.action() != Wanted::Drain {
        return Ok(());
    }
    tracing::info!(
        NodeClaim.name = claim.name_any(),
        "message-kind" = message.kind(),
        "provider-id" = node_claim::provider_id(claim).unwrap_or_default(),
        "initiating delete from interruption message"
    );
    let note = "Interruption triggered termination for the NodeClaim";
    context.events.publish(&effect::reference(&**claim), Reason::TerminatingOnInterruption, note);
    // An instance that ends already has no time for a replacement first.
    if matches!(message, Message::StateChange { .. }) {
        return node_claim::delete(claim, context, message.kind()).await.map(drop);
    }
    if !is_interrupted(claim) {
        let at = notice.at.unwrap_or_else(Timestamp::now);
        let stamp = json!({ "annotations": { (INTERRUPTED_AT): format!("{at:.0}") } });
        effect::write_metadata(&context.client, &**claim, stamp).await?;
    }
    Ok(())
}

/// Remembers that EC2 takes this offering back, so that the replacement is another.
fn avoid(context: &Context, claim: &NodeClaim) {
    let label = |key: &str| claim.labels().get(key).cloned().unwrap_or_default();
    let (instance_type, zone) = (label(labels::INSTANCE_TYPE), label(labels::ZONE));
    if !instance_type.is_empty() && !zone.is_empty() {
        let code = "SpotInterruption".to_owned();
        context.unavailable.mark(&UnavailableOffering {
            instance_type,
            zone,
            capacity_type: CapacityType::Spot,
            reservation: None,
            code,
        });
    }
}

/// Returns whether a claim's instance was called back.
pub fn is_interrupted(claim: &NodeClaim) -> bool {
    claim.annotations().contains_key(INTERRUPTED_AT)
}

/// Takes a claim whose instance was called back one step further: taint, plan, wait for the new home of its pods, delete.
pub async fn replace(claim: &NodeClaim, context: &Context) -> Result<Action, Error> {
    let Some(node) = registration::node(claim, context) else {
        node_claim::delete(claim, context, "spot_interrupted").await?;
        return Ok(Action::await_change());
    };
    let name = node.name_any();
    let taint = Effect::Taint { node: name.as_str().into() };
    if effect::apply(&context.client, &taint).await? == effect::Outcome::Done {
        tracing::info!(
            Node.name = name,
            "taint.Key" = labels::DISRUPTED,
            "taint.Effect" = "NoSchedule",
            "tainted node"
        );
        context.provision.notify_one();
    }
    let at: Option<Timestamp> = claim.annotations().get(INTERRUPTED_AT).and_then(|text| text.parse().ok());
    let late = at.is_none_or(|at| Timestamp::now().duration_since(at) >= REPLACE_WITHIN);
    if !late && !rehoused(context, &name) {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    node_claim::delete(claim, context, "spot_interrupted").await?;
    Ok(Action::await_change())
}

/// Says whether a plan was made without a node and every node that it makes for that node's pods is ready.
fn rehoused(context: &Context, node: &str) -> bool {
    let pods = context.stores.pods.on_node(node);
    context.plans.considered(node)
        && context.plans.claims_for(&pods).iter().all(|claim| {
            context.stores.claim(claim).is_none_or(|claim| node_claim::is_true(&claim, conditions::INITIALIZED))
        })
}

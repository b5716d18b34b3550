//! Taking commands back: taints that go, and what becomes of replacements that were made for nothing.

use std::sync::Arc;

use jiff::Timestamp;
use karp_domain::api::{NodeClaim, conditions, labels};
use karp_domain::disruption::{Command, Failure};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::super::{Context, Error, interruption, node_claim, registration};
use super::kind;
use crate::effect::{self, Effect};
use crate::ops::metrics::DecisionLabels;

/// What becomes of the replacements of a command that is taken back.
pub(super) enum Replacements<'a> {
    /// They are of no use yet.
    Delete(&'a [Arc<str>]),
    /// They live on as nodes of their pool, and replace nothing any more.
    Keep(&'a [Arc<str>]),
}

impl Replacements<'_> {
    /// Answers Karpenter's word for the command; one that a process before this one began does not say any more what it plans to launch.
    fn decision(&self, command: &Command) -> &'static str {
        let (Self::Delete(names) | Self::Keep(names)) = self;
        if names.is_empty() { command.decision() } else { "replace" }
    }
}

/// Takes a command back: new pods may come again, and what was made for nothing goes.
pub(super) async fn roll_back(context: &Context, command: &Command, replacements: Replacements<'_>, why: &Failure) {
    free(context, command, replacements.decision(command), why).await;
    take_back(context, replacements).await;
}

/// Lets pods come to a command's nodes again, and counts that it failed.
async fn free(context: &Context, command: &Command, decision: &'static str, why: &Failure) {
    let labels = DecisionLabels::new(decision, command.cause.word(), kind(command));
    context.metrics.queue_failures.get_or_create(&labels).inc();
    context.running.memory().failed(command, Timestamp::now());
    tracing::warn!(reason = command.cause.word(), %why, "failed to disrupt node(s), rolling back");
    for candidate in &command.candidates {
        if let Err(error) = unmark(context, candidate.node.as_ref(), &candidate.claim).await {
            // The next pass finds the taint and tries again.
            tracing::warn!(NodeClaim.name = %candidate.claim, %error, "could not take a taint back");
        }
    }
}

/// Takes a command back whose replacements live on, but for those of them that are stuck. Its nodes are free before these go: their pods would be
/// launched for otherwise. What goes keeps what it was made for: a later process finds it by that.
pub(super) async fn give_up(
    context: &Context,
    command: &Command,
    (replacements, stuck): (&[Arc<str>], &[Arc<str>]),
    why: &Failure,
) {
    free(context, command, Replacements::Keep(replacements).decision(command), why).await;
    take_back(context, Replacements::Delete(stuck)).await;
    let rest: Vec<Arc<str>> = replacements.iter().filter(|name| !stuck.contains(name)).cloned().collect();
    take_back(context, Replacements::Keep(&rest)).await;
}

pub(super) async fn take_back(context: &Context, replacements: Replacements<'_>) {
    let (names, deletes) = match replacements {
        Replacements::Delete(names) => (names, true),
        Replacements::Keep(names) => (names, false),
    };
    for name in names {
        // one that the watch has not shown yet is there all the same, or may be
        let claim = match context.stores.claim(name) {
            Some(claim) => Some(claim),
            None => match Api::<NodeClaim>::all(context.client.clone()).get_opt(name).await {
                Ok(found) => found.map(Arc::new),
                Err(error) => {
                    tracing::warn!(NodeClaim.name = %name, %error, "could not look for a replacement to take back");
                    continue;
                }
            },
        };
        let Some(claim) = claim else { continue };
        let done = if deletes {
            node_claim::delete(&claim, context, "rolled_back").await.map(drop)
        } else {
            forget_purpose(context, &claim).await
        };
        if let Err(error) = done {
            tracing::warn!(NodeClaim.name = %claim.name_any(), %error, "could not take a replacement back");
        }
    }
}

/// Says whether a claim's node has pods that would have to move: one that waits for a device may have taken others long ago.
pub(super) fn has_pods(context: &Context, claim: &str) -> bool {
    let node = context.stores.claim(claim).and_then(|claim| registration::node(&claim, context));
    let pods = node.map(|node| context.stores.pods.on_node(&node.name_any())).unwrap_or_default();
    pods.iter().any(|pod| pod.is_reschedulable())
}

/// Takes from a replacement what it was made for, so that no later process goes on with it.
async fn forget_purpose(context: &Context, claim: &NodeClaim) -> Result<(), Error> {
    if claim.annotations().contains_key(labels::REPLACES) {
        node_claim::stamp(context, claim, json!({ "annotations": { (labels::REPLACES): null } })).await?;
    }
    Ok(())
}

async fn unmark(context: &Context, node: Option<&Arc<str>>, claim: &str) -> Result<(), Error> {
    context.assumed().untainted(claim);
    if let Some(node) = node {
        effect::apply(&context.client, &Effect::Untaint(context.which(node))).await?;
    }
    if let Some(claim) = context.stores.claim(claim).filter(|claim| claim.metadata.deletion_timestamp.is_none()) {
        node_claim::write(context, &claim, |status, _| {
            conditions::clear(&mut status.conditions, conditions::DISRUPTION_REASON);
        })
        .await?;
    }
    Ok(())
}

/// Takes back taints that no command stands behind: a process that was killed left them, on nodes of pools and of claims that no pool made.
pub(super) async fn remove_stale_taints(context: &Context) {
    let tainted = context.stores.nodes.state_filter(|node| {
        node.metadata.deletion_timestamp.is_none()
            && node
                .spec
                .iter()
                .flat_map(|spec| spec.taints.iter().flatten())
                .any(|taint| taint.key == labels::DISRUPTED)
    });
    for node in tainted {
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
        let Some(claim) = context.stores.claim_of(&id) else { continue };
        if is_stood_behind(context, &claim) {
            continue;
        }
        let name: Arc<str> = node.name_any().into();
        tracing::info!(Node.name = %name, "taking back a disruption taint that nothing stands behind");
        if let Err(error) = unmark(context, Some(&name), &claim.name_any()).await {
            tracing::warn!(Node.name = %name, %error, "could not take a taint back");
        }
    }
}

/// Takes from claims what they say of commands that are over: another may have written a claim in the very moment in which its command was taken back,
/// or its mark was not seen yet.
pub(super) async fn remove_stale_reasons(context: &Context) {
    let told = context.stores.claims.state_filter(|claim| {
        claim.spec.node_class_ref.is_ours() && node_claim::is_true(claim, conditions::DISRUPTION_REASON)
    });
    for claim in told {
        // what was written a moment ago is not seen yet
        if is_stood_behind(context, &claim) || context.written.is_behind(&*claim) {
            continue;
        }
        if let Err(error) = unmark(context, None, &claim.name_any()).await
            && !error.is_race()
        {
            tracing::warn!(NodeClaim.name = %claim.name_any(), %error, "could not take back why a node was disrupted");
        }
    }
}

/// Says whether a claim leaves, or is about to: for a command, or because EC2 wants it so.
fn is_stood_behind(context: &Context, claim: &NodeClaim) -> bool {
    let leaving = claim.metadata.deletion_timestamp.is_some() || interruption::recalled(claim).is_some();
    leaving || context.running.contains(&claim.name_any()) || context.assumed().leaves(&claim.name_any())
}

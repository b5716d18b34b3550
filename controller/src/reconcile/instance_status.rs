//! Instances that are not well: EC2 is asked which fail its status checks and for which it plans something. An impaired one is ended soon,
//! since nobody knows whether its pods still run; one that will be restarted, stopped or retired is replaced first.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karp_domain::api::NodeClaim;
use karp_domain::interruption::{Cause, Health, Impairment, Onsets, Recall, Verdict};
use karp_domain::lifecycle::{self, Ward};
use kube::ResourceExt;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::interruption::{UNWELL, claim_of, recall, say_ending, tell};
use super::{Context, Error, node_claim};
use crate::effect::Outcome;
use crate::ops::events::Reason;
use crate::ops::metrics::CategoryLabels;
use crate::ops::telemetry::pass_span;

/// The category of planned events in metrics.
const SCHEDULED_EVENT: &str = "scheduled_event";

/// Looks until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut onsets = Onsets::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(context.options.instance_status_poll) => {}
        }
        let span = pass_span!("interruption.instancestatus");
        pass(&context, &mut onsets).instrument(span).await;
    }
}

async fn pass(context: &Context, onsets: &mut Onsets) {
    let ours = context
        .stores
        .claims
        .state_filter(|claim| claim.spec.node_class_ref.is_ours() && node_claim::provider_id(claim).is_some());
    if ours.is_empty() {
        return onsets.miss();
    }
    let unwell = match context.cloud.unwell().await {
        Ok(unwell) => unwell,
        Err(error) => {
            tracing::warn!(%error, "cannot ask which instances are not well, asking later");
            return onsets.miss();
        }
    };
    let patients = unwell.into_iter().filter_map(|health| Some((claim_of(context, &health.instance_id)?, health)));
    let mut patients: Vec<(Arc<NodeClaim>, Health)> = patients.collect();
    onsets.note(patients.iter_mut().map(|(_, health)| health), Timestamp::now());
    let wards = wards(&ours, &patients);
    for (claim, health) in &patients {
        let ward = wards.get(&node_claim::pool_of(claim)).copied().unwrap_or_default();
        if let Err(error) = treat(context, claim, health, ward).await
            && !error.is_race()
        {
            tracing::error!(NodeClaim.name = claim.name_any(), %error, "acting on an instance that is not well");
        }
    }
}

/// Counts the nodes of each pool, and those of them that are impaired. Claims made by hand have no pool, and are one ward.
fn wards(ours: &[Arc<NodeClaim>], patients: &[(Arc<NodeClaim>, Health)]) -> BTreeMap<String, Ward> {
    let mut wards: BTreeMap<String, Ward> = BTreeMap::new();
    for claim in ours {
        wards.entry(node_claim::pool_of(claim)).or_default().nodes += 1;
    }
    for (claim, _) in patients.iter().filter(|(_, health)| health.impairment().is_some()) {
        wards.entry(node_claim::pool_of(claim)).or_default().ill += 1;
    }
    wards
}

async fn treat(context: &Context, claim: &NodeClaim, health: &Health, ward: Ward) -> Result<(), Error> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let now = Timestamp::now();
    match health.verdict(ward, now) {
        Verdict::Stays => Ok(()),
        Verdict::Spared(impairment) => {
            let note = format!(
                "{} of {} nodes of the pool fail EC2's status checks: not ending one whose {} fails",
                ward.ill,
                ward.nodes,
                impairment.check.as_str()
            );
            tell(context, claim, Reason::NodeRepairBlocked, &note);
            Ok(())
        }
        Verdict::Ends(impairment) => end(context, claim, impairment, now).await,
        Verdict::Leaves(event) => {
            let planned = Recall { cause: Cause::ScheduledChange, at: now };
            if recall(context, claim, planned).await? == Outcome::Done {
                count(context, SCHEDULED_EVENT);
                tell(context, claim, UNWELL.0, UNWELL.1);
                tracing::info!(
                    NodeClaim.name = claim.name_any(),
                    code = event.code,
                    "not-before" = event.not_before.map(|at| at.to_string()).unwrap_or_default(),
                    "EC2 plans something with the instance: its node is replaced"
                );
            }
            Ok(())
        }
    }
}

/// Ends the claim of an impaired instance, with hardly any time to drain.
async fn end(context: &Context, claim: &NodeClaim, impairment: Impairment, now: Timestamp) -> Result<(), Error> {
    let check = impairment.check.as_str();
    tell(context, claim, UNWELL.0, UNWELL.1);
    if let Some(end) = lifecycle::cut_short(claim, now) {
        let stamp = json!({ "annotations": BTreeMap::from([lifecycle::drain_by(end)]) });
        node_claim::stamp(context, claim, stamp).await?;
    }
    if node_claim::delete(claim, context, check).await? == Outcome::Done {
        count(context, check);
        say_ending(context, claim, check);
        tracing::info!(NodeClaim.name = claim.name_any(), check, since = %impairment.since, "the instance is impaired");
    }
    Ok(())
}

fn count(context: &Context, category: &str) {
    context.metrics.instances_unhealthy.get_or_create(&CategoryLabels::new(category)).inc();
}

#[cfg(test)]
mod tests {
    use karp_domain::api::{NodeClaimSpec, labels};
    use karp_domain::interruption::Check;

    use super::super::testing::{self, Server};
    use super::*;

    #[test]
    fn the_impaired_are_counted_by_pool() {
        let claim = |name: &str, pool: Option<&str>| {
            let mut claim = NodeClaim::new(name, NodeClaimSpec::default());
            let label = |pool: &str| [(labels::NODE_POOL.to_owned(), pool.to_owned())].into();
            claim.metadata.labels = pool.map(label);
            Arc::new(claim)
        };
        let health = |failed: Vec<(Check, Timestamp)>| Health { instance_id: "i-1".into(), failed, events: Vec::new() };
        let (a, b, c, d) = (claim("a", Some("p")), claim("b", Some("p")), claim("c", Some("q")), claim("d", None));
        let failed = || health(vec![(Check::System, Timestamp::UNIX_EPOCH)]);
        let patients = [(a.clone(), failed()), (c.clone(), health(Vec::new())), (d.clone(), failed())];
        let wards = wards(&[a, b, c, d], &patients);
        let expected = [("", 1, 1), ("p", 2, 1), ("q", 1, 0)];
        let expected = expected.map(|(pool, nodes, ill)| (pool.to_owned(), Ward { nodes, ill }));
        assert_eq!(wards, BTreeMap::from(expected));
    }

    #[tokio::test]
    async fn where_too_many_are_impaired_none_is_ended_and_that_is_told() {
        let server = Server::of([testing::claim("c")]);
        let context = server.context().await;
        let claim = context.stores.claim("c").expect("a claim");
        let failed = vec![(Check::System, Timestamp::UNIX_EPOCH)];
        let health = Health { instance_id: "i-1".into(), failed, events: Vec::new() };
        treat(&context, &claim, &health, Ward { nodes: 3, ill: 2 }).await.expect("answers");
        let note = "2 of 3 nodes of the pool fail EC2's status checks: not ending one whose system_status fails";
        assert_eq!(server.told("NodeRepairBlocked", "c").await, note);
        assert_eq!(server.asked("DELETE nodeclaims/c"), 0);
    }
}

//! Collection: instances that no claim stands for, and claims whose instance is gone. Never much at once, never in the dark.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use karp_domain::api::{NodeClaim, labels};
use kube::ResourceExt;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Context;
use crate::cloud::Instance;
use crate::effect::{self, Effect};
use crate::ops::events::Reason;
use crate::ops::telemetry::reconcile_id;

/// First passes come quickly, to clean up after a crash (Karpenter: 20 passes, 10 s apart).
const FIRST_PASSES: u32 = 20;
const FIRST_INTERVAL: Duration = Duration::from_secs(10);
/// Later passes (Karpenter: 2 min).
const INTERVAL: Duration = Duration::from_secs(120);
/// An instance is left alone for this long after it was first seen here, by our own clock: its claim may be on the way.
const INSTANCE_AGE: Duration = Duration::from_secs(30);
/// Whatever the size of the fleet, this many may be collected in one pass.
const ALWAYS: usize = 5;
/// Beyond that, one in this many.
const SHARE: usize = 10;

/// What was seen in earlier passes.
#[derive(Default)]
struct Memory {
    /// This cluster's claims were seen at least once: an empty list before that says nothing.
    claims_seen: bool,
    /// Unclaimed instances, since when, and in how many listings.
    unclaimed: BTreeMap<String, Sighting>,
    /// Claims whose instance was missing in the last listing.
    missing: BTreeSet<String>,
}

#[derive(Clone, Copy)]
struct Sighting {
    since: Instant,
    listings: u32,
}

/// Collects until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut memory = Memory::default();
    let mut passes = 0_u32;
    loop {
        let pause = if passes < FIRST_PASSES { FIRST_INTERVAL } else { INTERVAL };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        passes = passes.saturating_add(1);
        let span = tracing::info_span!(
            "reconcile",
            controller = "instance.garbagecollection",
            namespace = "",
            name = "",
            reconcileID = reconcile_id()
        );
        pass(&context, &mut memory).instrument(span).await;
    }
}

async fn pass(context: &Context, memory: &mut Memory) {
    // Instances first: the claim of one that is launched between the two looks is then seen.
    let listed = match context.cloud.list().await {
        Ok(listed) => listed,
        Err(error) => {
            // No list, no facts: what is missing in it is not missing.
            tracing::warn!(%error, "cannot list instances, collecting nothing");
            return;
        }
    };
    let claims = context.stores.claims.state();
    memory.claims_seen |= !claims.is_empty();
    let fleet = listed.iter().filter(|instance| !instance.ending).count();
    let orphans = memory.orphans(&listed, &claims, Instant::now());
    let ghosts = memory.ghosts(&listed, &claims, |provider_id| {
        // A second witness: the node must be gone or not ready, too (reliability.md F26).
        context.stores.node_of(provider_id).is_none_or(|node| !is_ready(&node))
    });
    let bound = bound(fleet);
    if orphans.len() > bound || ghosts.len() > bound {
        tracing::error!(
            instances = orphans.len(),
            nodeclaims = ghosts.len(),
            bound,
            "refusing to collect so much at once: check that this is the right cluster"
        );
        if let Some(claim) = ghosts.first() {
            let note = format!("{} instances are missing at once, more than {bound}: not collecting", ghosts.len());
            context.events.publish(&effect::reference(&**claim), Reason::GarbageCollectionBlocked, note);
        }
        return;
    }
    for instance in orphans {
        match context.cloud.terminate(&instance.provider_id).await {
            Ok(_) => tracing::info!("provider-id" = instance.provider_id, "garbage collected cloudprovider instance"),
            Err(error) => tracing::error!("provider-id" = instance.provider_id, %error, "ending an unclaimed instance"),
        }
    }
    for claim in ghosts {
        let effect = Effect::DeleteNodeClaim {
            name: claim.name_any().into(),
            uid: claim.metadata.uid.clone().unwrap_or_default().into(),
        };
        match effect::apply(&context.client, &effect).await {
            Ok(_) => tracing::info!(
                NodeClaim.name = claim.name_any(),
                "garbage collecting nodeclaim with no cloudprovider representation"
            ),
            Err(error) => tracing::error!(NodeClaim.name = claim.name_any(), %error, "deleting nodeclaim"),
        }
    }
}

/// Returns how many may be collected in one pass.
fn bound(fleet: usize) -> usize {
    ALWAYS.max(fleet / SHARE)
}

fn is_ready(node: &k8s_openapi::api::core::v1::Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

impl Memory {
    /// Returns the instances that no claim stands for, in two listings and for long enough.
    fn orphans(&mut self, listed: &[Instance], claims: &[Arc<NodeClaim>], now: Instant) -> Vec<Instance> {
        let ids: BTreeSet<&str> = claims.iter().filter_map(|claim| provider_id(claim)).collect();
        let names: BTreeSet<String> = claims.iter().map(|claim| claim.name_any()).collect();
        let unclaimed: Vec<&Instance> = listed
            .iter()
            .filter(|instance| !instance.ending && !ids.contains(instance.provider_id.as_str()))
            // Launched for a claim that still lives: its lifecycle adopts or ends it.
            .filter(|instance| instance.claim.as_ref().is_none_or(|claim| !names.contains(claim)))
            .collect();
        let mut sightings = BTreeMap::new();
        for instance in &unclaimed {
            let before = self.unclaimed.get(&instance.provider_id);
            let sighting = before.map_or(Sighting { since: now, listings: 1 }, |before| Sighting {
                since: before.since,
                listings: before.listings + 1,
            });
            sightings.insert(instance.provider_id.clone(), sighting);
        }
        self.unclaimed = sightings;
        if !self.claims_seen {
            return Vec::new();
        }
        let ripe = |instance: &&&Instance| {
            let sighting = &self.unclaimed[&instance.provider_id];
            sighting.listings >= 2 && now.duration_since(sighting.since) >= INSTANCE_AGE
        };
        unclaimed.iter().filter(ripe).map(|instance| (*instance).clone()).collect()
    }

    /// Returns the registered claims whose instance was missing in two listings, with a second witness.
    fn ghosts(
        &mut self,
        listed: &[Instance],
        claims: &[Arc<NodeClaim>],
        witness: impl Fn(&str) -> bool,
    ) -> Vec<Arc<NodeClaim>> {
        let present: BTreeSet<&str> = listed.iter().map(|instance| instance.provider_id.as_str()).collect();
        let missing: Vec<&Arc<NodeClaim>> = claims
            .iter()
            .filter(|claim| claim.metadata.deletion_timestamp.is_none())
            .filter(|claim| {
                claim.labels().get(labels::NODE_POOL).is_some() || claim.metadata.owner_references.is_none()
            })
            .filter(|claim| provider_id(claim).is_some_and(|id| !present.contains(id) && witness(id)))
            .collect();
        let names: BTreeSet<String> = missing.iter().filter_map(|claim| claim.metadata.uid.clone()).collect();
        let before = std::mem::replace(&mut self.missing, names);
        let again = |claim: &&&Arc<NodeClaim>| claim.metadata.uid.as_ref().is_some_and(|uid| before.contains(uid));
        missing.iter().filter(again).map(|claim| (*claim).clone()).collect()
    }
}

fn provider_id(claim: &NodeClaim) -> Option<&str> {
    claim.status.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use karp_domain::api::{NodeClaimSpec, NodeClaimStatus};
    use karp_domain::catalogue::CapacityType;

    use super::*;

    fn instance(id: &str, claim: Option<&str>) -> Instance {
        Instance {
            provider_id: id.to_owned(),
            instance_type: "m7i.large".to_owned(),
            zone: "a".to_owned(),
            capacity_type: CapacityType::Spot,
            image_id: String::new(),
            ending: false,
            launched_at: None,
            claim: claim.map(str::to_owned),
        }
    }

    fn claim(name: &str, id: Option<&str>) -> Arc<NodeClaim> {
        let mut claim = NodeClaim::new(name, NodeClaimSpec::default());
        claim.metadata.uid = Some(format!("uid-{name}"));
        claim.status = Some(NodeClaimStatus { provider_id: id.map(str::to_owned), ..NodeClaimStatus::default() });
        Arc::new(claim)
    }

    #[test]
    fn an_unclaimed_instance_is_collected_after_two_listings_and_its_age() {
        let start = Instant::now();
        let mut memory = Memory { claims_seen: true, ..Memory::default() };
        let listed = [instance("i-1", None), instance("i-2", Some("young")), instance("i-3", None)];
        let claims = [claim("young", None), claim("old", Some("i-3"))];
        assert!(memory.orphans(&listed, &claims, start).is_empty());
        assert!(memory.orphans(&listed, &claims, start + Duration::from_secs(10)).is_empty(), "too young");
        let orphans = memory.orphans(&listed, &claims, start + INSTANCE_AGE);
        assert_eq!(orphans.iter().map(|i| i.provider_id.as_str()).collect::<Vec<_>>(), ["i-1"]);
        assert!(memory.orphans(&[], &claims, start + INSTANCE_AGE).is_empty());
        assert!(memory.orphans(&listed, &claims, start + 2 * INSTANCE_AGE).is_empty(), "seen anew");
    }

    #[test]
    fn nothing_is_collected_before_this_clusters_claims_were_seen() {
        let start = Instant::now();
        let mut memory = Memory::default();
        for pass in 0..5 {
            assert!(memory.orphans(&[instance("i-1", None)], &[], start + pass * INSTANCE_AGE).is_empty());
        }
    }

    #[test]
    fn a_claim_is_collected_when_its_instance_is_missing_twice_and_its_node_agrees() {
        let mut memory = Memory::default();
        let claims = [claim("a", Some("i-1")), claim("b", Some("i-2")), claim("c", None)];
        let listed = [instance("i-2", None)];
        assert!(memory.ghosts(&listed, &claims, |_| true).is_empty());
        assert!(memory.ghosts(&listed, &claims, |_| false).is_empty(), "the node is ready");
        assert!(memory.ghosts(&listed, &claims, |_| true).is_empty(), "counted anew");
        let ghosts = memory.ghosts(&listed, &claims, |_| true);
        assert_eq!(ghosts.iter().map(|claim| claim.name_any()).collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn the_bound_is_five_or_a_tenth() {
        assert_eq!([0, 10, 50, 51, 1000].map(bound), [5, 5, 5, 5, 100]);
    }
}

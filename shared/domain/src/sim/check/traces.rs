//! S-11 and S-7: what karp writes on nodes and claims is taken back, or completed.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use serde_json::Value;

use super::{SEEN_LIMIT, Watch};
use crate::api::{NodeClaim, conditions, labels};
use crate::interruption::Recall;
use crate::lifecycle::{is_true, provider_id};
use crate::sim::World;
use crate::sim::world::{is_ready, is_tainted};

/// A taint that nothing stands behind any more is gone within this time, while somebody acts.
const TAKEN_BACK_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// A node that has been there for so long has all that its claim says of it.
const COMPLETE_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// The node of a claim that is not to go.
fn node_of<'w>(world: &'w World, claim: &NodeClaim) -> Option<(&'w String, &'w core::Node)> {
    let id = provider_id(claim).filter(|_| claim.metadata.deletion_timestamp.is_none())?;
    let is_its = |node: &core::Node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == Some(id);
    let stays = |node: &core::Node| node.metadata.deletion_timestamp.is_none();
    world.nodes.iter().find(|(_, node)| is_its(node) && stays(node))
}

/// Says whether a claim that stays says that it was made to take the place of this one.
fn is_being_replaced(world: &World, name: &str) -> bool {
    let replaces = |claim: &NodeClaim| {
        let purpose = claim.metadata.annotations.as_ref().and_then(|all| all.get(labels::REPLACES));
        let purpose: Option<Value> = purpose.and_then(|purpose| serde_json::from_str(purpose).ok());
        purpose.is_some_and(|purpose| purpose["candidates"].get(name).is_some())
    };
    world.claims.values().any(|claim| claim.metadata.deletion_timestamp.is_none() && replaces(claim))
}

impl Watch {
    /// S-11: a node that stays bears karp's taint only while something is to take its place: what a process leaves behind is gone on with or taken
    /// back. One whose claim is gone or called back goes.
    pub(super) fn taints_have_a_reason(&mut self, world: &World) {
        let limit = if self.late { TAKEN_BACK_WITHIN + SEEN_LIMIT } else { TAKEN_BACK_WITHIN };
        let known = std::mem::take(&mut self.tainted);
        let mut tainted: BTreeMap<String, Timestamp> = BTreeMap::new();
        for (name, claim) in &world.claims {
            let Some((node, _)) = node_of(world, claim).filter(|(_, node)| is_tainted(node)) else { continue };
            if Recall::of(claim.metadata.annotations.as_ref()).is_some() || is_being_replaced(world, name) {
                continue;
            }
            let mut since = known.get(node).copied().unwrap_or(world.now);
            if world.now.duration_since(since.max(world.back).max(world.unserved)) > limit {
                since = world.now;
                self.fail(world, "S-11", format!("node {node} is tainted, and nothing takes its place"));
            }
            tainted.insert(node.clone(), since);
        }
        self.tainted = tainted;
    }

    /// S-7: at the end each claim says all of its node, unless that has only just come: no condition was lost.
    pub(super) fn conditions_at_the_end(&mut self, world: &World) {
        for (name, claim) in &world.claims {
            let Some((_, node)) = node_of(world, claim).filter(|(_, node)| is_ready(node)) else { continue };
            let joined = node.metadata.creation_timestamp.as_ref().map_or(world.now, |time| time.0);
            let young = world.now.duration_since(joined) < COMPLETE_AFTER;
            if young || Recall::of(claim.metadata.annotations.as_ref()).is_some() {
                continue;
            }
            let all = [conditions::LAUNCHED, conditions::REGISTERED, conditions::INITIALIZED];
            if let Some(lost) = all.into_iter().find(|kind| !is_true(claim, kind)) {
                self.fail(world, "S-7", format!("{name} lacks {lost}, and its node is ready"));
            }
        }
    }
}

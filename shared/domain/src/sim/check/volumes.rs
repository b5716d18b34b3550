//! S-19, which the list of the reliability goals lacks (F36): an instance ends when its volumes have left it, so that pods elsewhere get them without
//! delay. And S-7: an attachment that is left behind holds a node for its time, and no longer.

use jiff::{SignedDuration, Timestamp};

use super::{SEEN_LIMIT, Watch, clocks_differ};
use crate::api::conditions;
use crate::eviction::DETACH_LIMIT;
use crate::lifecycle::is_true;
use crate::sim::World;

/// An instance ends so long after the time of its volumes at most: the pass that finds it drained, the one that sees the time over, and EC2's answers.
const ENDS_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// S-19: judges the end of the instance of a node that was drained since then. What is attached for a pod that went later, whose end nobody waited
/// for, is attached to the last.
pub(in crate::sim) fn ended_detached(world: &mut World, node: &str, drained: Timestamp, deadline: Option<Timestamp>) {
    let by = deadline.unwrap_or(Timestamp::MAX).min(drained + DETACH_LIMIT);
    // where clocks step, nobody can tell how long that was waited for
    if world.now >= by || world.faults.clock.is_some() {
        return;
    }
    let held = world.volumes.attached_to(node).find(|(_, attachment)| attachment.is_leaving(drained));
    if let Some(what) = held.map(|(volume, _)| format!("{node} ended before the volume of {volume} had left it")) {
        world.violate("S-19", what);
    }
}

/// Says whether a node that is to go has no pods any more, and its instance runs.
fn is_emptied(world: &World, node: &str) -> bool {
    let leaves = world.nodes.get(node).filter(|node| node.metadata.deletion_timestamp.is_some());
    let id = leaves.and_then(|node| node.spec.as_ref()?.provider_id.as_deref());
    id.is_some_and(|id| world.is_alive(id)) && !world.pods.values().any(|pod| pod.node.as_deref() == Some(node))
}

/// Says whether the claim of a node says that it is drained.
fn says_drained(world: &World, node: &str) -> bool {
    let drained = world.claims.values().filter(|claim| is_true(claim, conditions::DRAINED));
    drained.filter_map(|claim| claim.status.as_ref()).any(|status| status.node_name.as_deref() == Some(node))
}

impl Watch {
    /// S-7: volumes that never leave hold a node for so long, and no longer, whatever becomes of those that wait for it: since when, is on its claim.
    pub(super) fn volumes_hold_no_node_for_long(&mut self, world: &World) {
        let seen = if self.late { SEEN_LIMIT } else { SignedDuration::ZERO };
        let late = ENDS_WITHIN + seen + clocks_differ(world);
        let known = std::mem::take(&mut self.detaching);
        for node in world.volumes.nodes().into_iter().filter(|node| is_emptied(world, node)) {
            let mut since = known.get(node).copied().unwrap_or(world.now);
            if !says_drained(world, node) {
                // whoever comes next finds it drained anew
                since = since.max(world.back).max(world.unserved);
            }
            self.held = self.held.max(world.now.duration_since(since));
            let due = (since + DETACH_LIMIT).max(world.back).max(world.unserved);
            let due = world.account.last_throttled.map_or(due, |last| due.max(last));
            if world.now.duration_since(due) > late {
                since = world.now;
                self.fail(world, "S-7", format!("node {node} is held by volumes for longer than {DETACH_LIMIT:#}"));
            }
            self.detaching.insert(node.to_owned(), since);
        }
    }
}

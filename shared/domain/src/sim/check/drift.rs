//! Drift as the world knows it: by which template each node was planned, whatever its claim says of that.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::Watch;
use crate::api::{NodeClaim, conditions, labels};
use crate::interruption::Recall;
use crate::lifecycle::{is_ready, is_true};
use crate::sim::World;

/// A claim says within this time that its node drifted, as long as there is somebody to write it: watches are late, and writes refused.
const TOLD_WITHIN: SignedDuration = SignedDuration::from_mins(3);

impl Watch {
    /// S-9: a node that is what its pool asks for is not said to have drifted, else it would be replaced for ever. S-7: one that is not is said to.
    pub(super) fn drift_is_told(&mut self, world: &World) {
        let known = std::mem::take(&mut self.untold);
        let mut untold: BTreeMap<String, Timestamp> = BTreeMap::new();
        for (name, claim) in &world.claims {
            let Some(template) = world.templates.get(name) else { continue };
            let pool = claim.metadata.labels.as_ref().and_then(|all| world.pool(all.get(labels::NODE_POOL)?));
            let Some(drifted) = pool.map(|pool| **template != *pool.hash) else { continue };
            match (drifted, is_true(claim, conditions::DRIFTED)) {
                (false, true) => {
                    self.fail(world, "S-9", format!("{name} is what its pool asks for, and said to have drifted"));
                }
                (true, false) if is_looked_at(world, claim) => {
                    let since = known.get(name).copied().unwrap_or(world.now);
                    untold.insert(name.clone(), since);
                    if world.now.duration_since(since.max(world.back).max(world.unserved)) > TOLD_WITHIN {
                        untold.insert(name.clone(), world.now);
                        self.fail(world, "S-7", format!("{name} is of an earlier template, and does not say so"));
                    }
                }
                _ => {}
            }
        }
        self.untold = untold;
    }
}

/// Says whether a claim's node runs and stays as far as anybody knows: of another nobody asks whether it drifted.
fn is_looked_at(world: &World, claim: &NodeClaim) -> bool {
    let node = claim.status.as_ref().and_then(|status| status.node_name.as_ref());
    is_ready(claim)
        && node.is_some_and(|node| world.nodes.contains_key(node))
        && Recall::of(claim.metadata.annotations.as_ref()).is_none()
}

//! S-9: no flapping. While nothing changes from outside, what was there before does not come back, and nodes do not take each other's place on
//! and on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::{MOST_VIOLATIONS, Watch, promises};
use crate::api::{NodeClaim, conditions, labels};
use crate::cluster::Pod;
use crate::disruption::{Begun, Candidate, Cause, Command, begun};
use crate::lifecycle::{is_true, provider_id};
use crate::sim::World;
use crate::sim::world::is_tainted;

/// kube-scheduler may place displaced pods otherwise than was planned, so that a move is made up for by a launch: so often at most.
const MOST_RETURNS: u32 = 4;
/// So many nodes take each other's place, one for one, each for being cheaper.
const MOST_IN_A_ROW: usize = 4;

/// Claims that took the place of one other, which was to be cheaper: of which, and when that began.
pub(in crate::sim) type Successors = BTreeMap<String, (Arc<str>, Timestamp)>;

/// A cluster at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    /// Namespace of each pod, and hashes of its shape and its labels.
    pods: Vec<(Arc<str>, u64, u64)>,
    /// Type and pool of each node.
    nodes: Vec<(Arc<str>, String)>,
}

impl State {
    fn of(world: &World) -> Self {
        let pod = |pod: &Pod| (pod.key.namespace.clone(), pod.digest.shape, pod.digest.labels);
        let node = |claim: &NodeClaim| {
            let instance = world.instances.get(provider_id(claim)?)?;
            let pool = claim.metadata.labels.as_ref()?.get(labels::NODE_POOL)?;
            Some((instance.offering.instance_type.clone(), pool.clone()))
        };
        let mut pods: Vec<_> = world.pods.values().map(pod).collect();
        let mut nodes: Vec<_> = world.claims.values().filter_map(node).collect();
        pods.sort();
        nodes.sort();
        State { pods, nodes }
    }
}

/// What is known since something last changed from outside.
#[derive(Default)]
pub(super) struct Flapping {
    /// When that was.
    changed: Timestamp,
    /// What was there at rest.
    states: Vec<State>,
    /// How often one of them came back.
    returns: u32,
    /// It was told that too many nodes took each other's place.
    told: bool,
}

/// Notes which claim takes the place of one other that could be cheaper.
pub(in crate::sim) fn takes_the_place(world: &mut World, command: &Command, replacements: &[String]) {
    if let (Cause::Underutilized, [old], [new]) = (command.cause, command.candidates.as_slice(), replacements) {
        world.successors.insert(new.clone(), (old.claim.clone(), world.now));
    }
}

/// S-9: a node whose replacements an earlier process had made is not replaced once more by one that could see them when it began.
pub(in crate::sim) fn is_replaced_once(world: &mut World, command: &Command, found: Option<&BTreeSet<Arc<str>>>) {
    let Some(found) = found.filter(|found| !found.is_empty() && !command.replacements.is_empty()) else { return };
    let stands = |begun: &Begun| {
        begun.replacements.iter().all(|claim| found.contains(claim) && !world.given_up.contains(&**claim))
    };
    let begun: Vec<Begun> = begun(&world.snapshot()).into_iter().filter(stands).collect();
    for Begun { command: other, replacements, .. } in begun {
        let both = other.candidates.iter().find(|one| command.candidates.iter().any(|new| new.claim == one.claim));
        if let Some(Candidate { claim, .. }) = both {
            world.violate("S-9", format!("{claim} is replaced once more, beside {replacements:?}"));
        }
    }
}

impl Watch {
    /// S-9: while nothing changes from outside, what was there before, at rest, does not come back again and again, and no node is the last of many
    /// that took each other's place.
    pub(super) fn settled(&mut self, world: &World) {
        // nodes that come of age are changed from outside: time does it
        if world.faults != Default::default() || world.claims.values().any(|claim| promises::is_due(world, claim)) {
            self.flapping = Flapping { changed: world.now, ..Flapping::default() };
            return;
        }
        self.rows_end(world);
        let replacing = world
            .claims
            .values()
            .any(|claim| !is_true(claim, conditions::INITIALIZED) || claim.metadata.deletion_timestamp.is_some());
        let leaving = world.nodes.values().any(is_tainted);
        let claimed = |id: &str| world.claims.values().any(|claim| provider_id(claim) == Some(id));
        let ending = world.instances.values().any(|one| one.ends.is_some() || !claimed(&one.id));
        let waiting = ending || world.pods.is_empty() || world.pods.values().any(|pod| !pod.ready);
        if replacing || leaving || waiting || world.violations.len() + self.violations.len() >= MOST_VIOLATIONS {
            return;
        }
        let state = State::of(world);
        if self.flapping.states.last() == Some(&state) {
            return;
        }
        if self.flapping.states.contains(&state) {
            self.flapping.returns += 1;
            if self.flapping.returns == MOST_RETURNS + 1 {
                self.fail(world, "S-9", format!("{:?} and others were there before", state.nodes));
            }
        }
        self.flapping.states.push(state);
    }

    fn rows_end(&mut self, world: &World) {
        let changed = self.flapping.changed;
        let before = |claim: &str| {
            let (old, began) = world.successors.get(claim)?;
            (*began > changed && !world.given_up.contains(claim)).then_some(&**old)
        };
        let row = |claim: &String| std::iter::successors(Some(claim.as_str()), |&claim| before(claim)).skip(1).count();
        let longest = world.successors.keys().map(|claim| (row(claim), claim)).max();
        let Some((row, claim)) = longest.filter(|(row, _)| *row > MOST_IN_A_ROW && !self.flapping.told) else { return };
        self.flapping.told = true;
        self.fail(world, "S-9", format!("{claim} is the last of {row} nodes that took each other's place"));
    }
}

//! The world until nothing changes: commands are carried out at once, pods are bound where the plan sees them, and the next plan is made.

use rustc_hash::FxHashMap;

use super::enact::World;
use super::plan::{Method, plan_by};
use super::{Candidate, Command, DisruptionPlan, KeepReason, Memory, Verdict};
use crate::catalogue::Price;
use crate::cluster::Snapshot;
use crate::scheduling::InFlightNode;

/// Plans on one path at most. Each move saves something, so that paths end by themselves, but nodes that expire come again for ever.
const MOST_PASSES: usize = 10_000;

/// Holds the way of a cluster to the state in which karp leaves it alone.
#[derive(Clone, Debug)]
pub struct Path {
    /// What was done, in order.
    pub steps: Vec<Step>,
    /// How many plans were made, those that found nothing included.
    pub passes: usize,
    /// What karp's nodes cost per hour at the start.
    pub before: Price,
    /// What they cost at the end.
    pub after: Price,
    /// The cluster at the end.
    pub end: Snapshot,
    /// The last plan: why each node stays.
    pub last: DisruptionPlan,
    /// Nothing is left to do; not so when the bound on plans was met.
    pub is_stable: bool,
}

/// Holds one change on the path.
#[derive(Clone, Debug)]
pub struct Step {
    /// Which plan it came from, counted from 1.
    pub pass: usize,
    /// What was done.
    pub change: Change,
    /// Pods that had to run elsewhere for it.
    pub evictions: usize,
    /// What karp's nodes cost per hour afterwards.
    pub price: Price,
}

/// Says what was done.
#[derive(Clone, Debug)]
pub enum Change {
    /// Pods that waited got their places, on these nodes where those that were there had no room.
    Provisioned {
        /// Nodes that were launched.
        nodes: Vec<InFlightNode>,
        /// How many pods got a place.
        pods: usize,
        /// How many nodes went that were on their way out, with nothing left to move.
        removed: usize,
    },
    /// A command was carried out.
    Disrupted(Command),
}

impl Path {
    fn step(&mut self, change: Change, evictions: usize, world: &World) {
        self.steps.push(Step { pass: self.passes, change, evictions, price: world.price });
    }

    /// Answers how many pods had to run elsewhere.
    pub fn evictions(&self) -> usize {
        self.steps.iter().map(|step| step.evictions).sum()
    }

    /// Answers the commands in order, each with the pods that had to run elsewhere for it.
    pub fn commands(&self) -> impl Iterator<Item = (&Command, usize)> {
        self.steps.iter().filter_map(|step| match &step.change {
            Change::Disrupted(command) => Some((command, step.evictions)),
            Change::Provisioned { .. } => None,
        })
    }
}

/// Plays a cluster until nothing is left to do: waiting pods get nodes, commands are carried out at once and succeed, evicted pods run
/// where the plan saw them. Time passes only while `consolidateAfter` is waited for. PodDisruptionBudgets allow after each command what
/// they allowed before, and claims whose nodes have not joined stay as they are.
pub fn until_stable(snapshot: &Snapshot, method: Method) -> Path {
    let mut world = World::new(snapshot);
    let mut path = Path {
        steps: Vec::new(),
        passes: 0,
        before: world.price,
        after: world.price,
        end: snapshot.clone(),
        last: DisruptionPlan::default(),
        is_stable: false,
    };
    let mut memory = Memory::default();
    // candidates that were looked at since the last change: a search that is cut short goes on where it ended
    let mut kept: FxHashMap<Candidate, KeepReason> = FxHashMap::default();
    while path.passes < MOST_PASSES && !path.is_stable {
        path.passes += 1;
        if let Some((change, evictions)) = world.provision() {
            path.step(change, evictions, &world);
        }
        path.last = plan_by(&world.snapshot, &memory, method);
        // a plan that went on with the rest has not seen those before it
        let whole = !memory.resume.is_amid_outdated();
        memory.examined(path.last.resume.clone());
        let known = kept.len();
        kept.extend(looked_at(&path.last));
        let settles = path.last.settles;
        match settles {
            _ if !path.last.commands.is_empty() => {
                // the places of pods were planned beside nodes that go by force, which are not there afterwards
                let by_force = |command: &Command| command.cause.budget().is_none();
                let mut first = path.last.commands.clone();
                if first.iter().any(by_force) {
                    first.retain(by_force);
                }
                for command in first {
                    let evictions = world.carry_out(&command);
                    path.step(Change::Disrupted(command), evictions, &world);
                }
                kept.clear();
            }
            Some(until) => {
                world.snapshot.now = until.max(world.snapshot.now);
                kept.clear();
            }
            None => path.is_stable = whole && kept.len() == known,
        }
    }
    for (candidate, verdict) in &mut path.last.verdicts {
        if let (Verdict::Keep(reason @ KeepReason::AfterAnother), Some(known)) = (&mut *verdict, kept.get(candidate)) {
            *reason = known.clone();
        }
    }
    path.after = world.price;
    path.end = world.snapshot;
    path
}

/// The candidates that stay and were looked at, with the reasons.
fn looked_at(plan: &DisruptionPlan) -> impl Iterator<Item = (Candidate, KeepReason)> {
    plan.verdicts.iter().filter_map(|(candidate, verdict)| match verdict {
        Verdict::Keep(KeepReason::AfterAnother) | Verdict::Delete(_) | Verdict::Replace(..) => None,
        Verdict::Keep(reason) => Some((candidate.clone(), reason.clone())),
    })
}

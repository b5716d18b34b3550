//! A seeded world in virtual time: API objects, kube-scheduler, kubelets, workloads and EC2 and its queue, which drive the production decisions
//! and state machines. What must hold is checked after every second; the same seed gives the same run.

mod account;
mod api_server;
mod batch;
mod check;
mod cloud;
mod controller;
mod decisions;
mod drift;
mod ends;
mod interruption;
mod launch;
mod prices;
mod queue;
mod random;
mod refusal;
mod replica;
mod rules;
mod scheduler;
mod turns;
mod volumes;
mod warnings;
mod watch;
mod world;
mod writes;

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

use check::Watch;
pub use decisions::{Decisions, Production};
use replica::Replica;
pub use world::{Workload, World};

/// Faults are over after this part of a run, in percent: the rest shows whether the world heals.
const FAULTS_PERCENT: u32 = 60;
/// At the end of a run nothing may have been written for this long, unless the world says for how long.
const QUIET: SignedDuration = SignedDuration::from_mins(5);
/// A node that came of age has its turn within its grace, and is drained: one that something holds for longer excuses no other writes,
/// until it has gone.
const LEAVES_FOR_AGE: SignedDuration = SignedDuration::from_mins(15);
/// So long after a node that came of age has gone, its pods may still be on their way to where they stay: what was planned for them comes up, and what
/// is too much then is given up.
const RENEWAL: SignedDuration = SignedDuration::from_mins(3);
/// A run goes on for this many seconds more until it is quiet: moves that came back are tried again after a rest, 15 minutes at first.
const PATIENCE: u32 = 20 * 60;

/// Says what goes wrong in a run, each in thousandths a second or an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The controller is killed at an effect.
    pub crash_permille: u32,
    /// EC2 has no capacity for a launch.
    pub no_capacity_permille: u32,
    /// EC2 runs out of capacity of every kind, in a second: for up to 30 min.
    pub runs_out_permille: u32,
    /// EC2 begins to refuse what a pool launches for a reason that no wait and no other offering cures (a right, a parameter, a quota), in a
    /// second: for up to 4 min.
    pub refuses_permille: u32,
    /// EC2 refuses whatever this pool launches, to the end of the run.
    pub refused_pool: Option<&'static str>,
    /// Claims that ask for the same are launched by one call, each time that there are several.
    pub batches_permille: u32,
    /// EC2 launches, and the reply is lost.
    pub lost_reply_permille: u32,
    /// A node never joins.
    pub never_joins_permille: u32,
    /// An instance ends by itself, in a second.
    pub ends_permille: u32,
    /// EC2 warns that it takes an instance back, which it does 2 min later, in a second; as often the queue has a message that is not for us.
    pub warns_permille: u32,
    /// A kubelet stops answering, in a second: for up to 40 min, or for good where all others answer or will again.
    pub ills_permille: u32,
    /// A workload is scaled, in a second.
    pub scales_permille: u32,
    /// A node is no longer what its pool asks for, in a second.
    pub drifts_permille: u32,
    /// A user changes a pool's template when a node was planned by it and its claim is about to be made, each time.
    pub edits_permille: u32,
    /// A user changes how many nodes of a pool may go at a time, in a second.
    pub budgets_permille: u32,
    /// A user deletes a claim, in a second.
    pub deletes_permille: u32,
    /// Somebody takes a claim's finalizers away, so that it goes at once, in a second.
    pub forgets_permille: u32,
    /// An instance is missing from a listing, each by itself.
    pub unlisted_permille: u32,
    /// New instances are listed only after so many seconds, by all that looks for them.
    pub list_lag_seconds: u32,
    /// kube-scheduler takes any node that fits instead of the emptiest, each pod by itself.
    pub fickle_permille: u32,
    /// Each watch shows what happened up to so many seconds ago, each kind by itself and each second anew.
    pub watch_lag_seconds: u32,
    /// The same for budgets of pods and for pools, which are cut off as the others are then; without this they are seen at once. Not with both edits
    /// and pauses: one of two replicas may then see a pool as it was before a claim was made from it.
    pub rules_lag_seconds: u32,
    /// A controller asks for prices again only after so many seconds: nobody tells it of a change.
    pub prices_age_seconds: u32,
    /// A watch is cut off for up to 40 s, and then lists anew, in a second, each kind by itself.
    pub cut_permille: u32,
    /// One of two replicas is paused for 30 s to 60 s, in a second; without this there is one, which needs no lease.
    pub pause_permille: u32,
    /// Somebody else in the account uses up all calls that EC2 takes, for up to a minute, in a second.
    pub others_permille: u32,
    /// EC2 changes the prices of a type, in a second: of all its spot offerings, or those on demand.
    pub prices_permille: u32,
    /// A write is refused since the object is said to have changed.
    pub conflicts_permille: u32,
    /// A pod that is to end does not, in a second: something holds it.
    pub clings_permille: u32,
    /// The attachment of a volume whose pod has gone is left behind until its node has gone, each time.
    pub leaks_permille: u32,
    /// The API server goes away, in a second: for up to 4 min.
    pub away_permille: u32,
    /// The API server does not answer a request, which it has carried out half of the time.
    pub unanswered_permille: u32,
    /// How wrong the controller's clock is, to the end of the run.
    pub clock: Option<Skew>,
}

/// Bounds how far a controller's clock is ahead, in seconds; behind if negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skew {
    /// At least.
    pub from: i32,
    /// At most.
    pub to: i32,
    /// How often it steps to another error between these, in thousandths a second.
    pub permille: u32,
}

/// Describes a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed of everything that is left to chance.
    pub seed: u64,
    /// Virtual seconds.
    pub seconds: u32,
    /// What goes wrong.
    pub faults: Faults,
}

/// Names an invariant that did not hold, by its number in the list of the project's reliability goals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Such as `S-1`.
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
    /// When, in virtual time.
    pub at: Timestamp,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.invariant, self.at, self.what)
    }
}

/// Holds what happened in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Everything that did not hold; the first few of them.
    pub violations: Vec<Violation>,
    /// Launches asked of EC2 that gave an instance.
    pub launches: u32,
    /// Launches for several claims at once that gave any.
    pub batches: u32,
    /// Decisions that were asked again with every list in another order.
    pub reordered: u32,
    /// Evictions that were accepted.
    pub evictions: u32,
    /// Disruption commands that were begun.
    pub commands: u32,
    /// Those of them for nodes that were ill.
    pub repairs: u32,
    /// Commands that another process had begun.
    pub resumed: u32,
    /// Times the controller was killed.
    pub crashes: u32,
    /// Writes that were refused since the object had changed.
    pub conflicts: u32,
    /// Requests that the API server did not answer.
    pub unanswered: u32,
    /// Times that a replica began to lead.
    pub takeovers: u32,
    /// Launches that EC2 refused for a reason that stays.
    pub refused: u32,
    /// Calls that EC2 throttled.
    pub throttled: u32,
    /// Instances that EC2 warned of.
    pub warnings: u32,
    /// Times that prices changed.
    pub repriced: u32,
    /// Claims that were told of it.
    pub recalls: u32,
    /// Recalls that were taken back, since nothing replaced the node in time.
    pub stays: u32,
    /// Times that a pool's template was changed.
    pub edits: u32,
    /// Times that a pool's budgets were changed.
    pub rebudgeted: u32,
    /// Messages that were deleted from the queue.
    pub messages: u32,
    /// Attachments of volumes that were left behind.
    pub leaked: u32,
    /// For how many seconds pods waited for their volumes to leave other nodes, all together.
    pub awaited: u32,
    /// The longest time for which a node that was to go, and had no pods any more, had volumes.
    pub held: SignedDuration,
    /// How long it took until all pods ran, since faults were over and the API server was there again; none if they never did.
    pub healed: Option<SignedDuration>,
    /// Nodes at the end.
    pub nodes: usize,
}

/// Tells what is written since nodes come of age, which may never end, from what is written for nothing.
struct Renewal {
    /// When a node had last become due to go because of its age, or had gone that was.
    due: Timestamp,
    /// When something was last written that this cannot have caused.
    other: Timestamp,
    /// Claims of nodes that were due in the last second.
    coming: BTreeSet<String>,
}

impl Renewal {
    fn note(&mut self, world: &World) {
        let due = world.claims.iter().filter_map(|(name, claim)| Some((name, check::promises::due_for(world, claim)?)));
        let due: Vec<(&String, SignedDuration)> = due.collect();
        let lately = due.iter().any(|(_, due)| *due <= LEAVES_FOR_AGE);
        let coming = due.into_iter().map(|(name, _)| name.clone()).collect();
        let left = std::mem::replace(&mut self.coming, coming).iter().any(|name| !world.claims.contains_key(name));
        if lately || left {
            self.due = world.now;
        }
        if world.written == world.now && world.now.duration_since(self.due) > RENEWAL {
            self.other = world.now;
        }
    }
}

/// Plays a scenario in a world to its end, with karp's decisions.
pub fn run(scenario: &Scenario, world: World) -> Report {
    run_with(&Production, scenario, world)
}

/// Plays a scenario in a world to its end, with these decisions.
pub fn run_with(decisions: &dyn Decisions, scenario: &Scenario, mut world: World) -> Report {
    let mut watch = Watch::default();
    let mut report = Report::default();
    let calm = scenario.seconds * FAULTS_PERCENT / 100;
    world.begin(scenario.seed);
    let elected = scenario.faults.pause_permille > 0;
    let names = if elected { ["a", "b"].as_slice() } else { &["a"] };
    let mut replicas: Vec<Replica<'_>> =
        names.iter().map(|name| Replica::start(decisions, name, elected, &world)).collect();
    let rest = world.rest.unwrap_or(QUIET);
    let quiet = |world: &World| world.now.duration_since(world.written) >= rest;
    let mut renewal = Renewal { due: world.now, other: world.now, coming: BTreeSet::new() };
    // moves that came back rest for ever longer: for twice as long each time
    let patience = PATIENCE + 4 * u32::try_from((rest - QUIET).as_secs()).unwrap_or(0);
    for second in 0..scenario.seconds + patience {
        // where pods wait, a pause may be on that is longer than quiet is: pools that failed are tried again after minutes
        if second >= scenario.seconds && quiet(&world) && world.pods.values().all(|pod| pod.node.is_some()) {
            break;
        }
        // a wrong clock does not stop, nor does what somebody has to put right: what must converge does so all the same
        let Faults { clock, refused_pool, .. } = scenario.faults;
        let faults = || Faults { clock, refused_pool, ..Faults::default() };
        world.faults = if second < calm { scenario.faults } else { faults() };
        if second == calm {
            world.calm_down();
        }
        let crashes = report.crashes;
        world.served = false;
        world.tick();
        for replica in &mut replicas {
            report.crashes += u32::from(replica.tick(&mut world));
        }
        world.killed = report.crashes;
        if !world.served || report.crashes != crashes {
            world.unserved = world.now;
        }
        world.heal();
        check::budgets::hold_at_every_instant(&mut world);
        watch.every_second(&world);
        renewal.note(&world);
        let mut broken = watch.violations.iter().chain(&world.violations);
        if world.until.as_deref().is_some_and(|until| broken.any(|found| found.invariant == until)) {
            break;
        }
    }
    watch.at_the_end(&world, quiet(&world) || world.now.duration_since(renewal.other) >= rest);
    report.violations = watch.violations;
    report.violations.append(&mut world.violations);
    (report.launches, report.evictions, report.commands) = (world.launches, world.evictions, world.commands);
    (report.repairs, report.resumed) = (world.repairs, world.resumed);
    (report.nodes, report.reordered) = (world.nodes.len(), world.reordered);
    (report.conflicts, report.takeovers, report.unanswered) = (world.conflicts, world.takeovers, world.unanswered);
    (report.warnings, report.recalls, report.messages) = (world.warnings, world.recalls, world.queue.deleted);
    (report.repriced, report.stays, report.healed) = (world.repriced, world.stays, world.healed);
    (report.batches, report.edits, report.rebudgeted) = (world.batches, world.edits, world.rebudgeted);
    (report.throttled, report.refused) = (world.account.throttled, world.refused.count);
    (report.leaked, report.awaited, report.held) = (world.volumes.leaked, world.volumes.awaited, watch.held);
    report
}

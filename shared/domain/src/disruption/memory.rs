//! What is remembered between plans: pools whose commands failed, moves that did not last, and how far searches came.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::candidate::{Entry, Field};
use super::{Cause, Command, KeepReason};
use crate::api::labels;
use crate::catalogue::Price;
use crate::cluster::Pod;

/// Pause of a pool after its first failed command; each further one doubles it.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_mins(1);
/// However often commands of a pool failed, it is tried again after this long.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(30);

/// Nodes like those of a move that did not last are left alone for so long the first time; each further one doubles it.
const FIRST_REST: SignedDuration = SignedDuration::from_mins(15);
/// However often such moves did not last, one is tried again after this long.
const LONGEST_REST: SignedDuration = SignedDuration::from_hours(6);

/// Holds what a command began from, to see afterwards whether it lasted: kube-scheduler decides where evicted pods run, and may spread them
/// so that as much is needed as before. Names of nodes and pods do not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The pods that run or wait, whichever their order.
    pods: u64,
    /// What the nodes cost that were not going.
    price: Price,
    /// The candidates, by what they were: pool, type and pods.
    candidates: Vec<u64>,
}

impl Origin {
    /// Reads the state of a cluster; `members` are the candidates.
    pub(super) fn of<'e>(field: &Field<'_>, members: impl IntoIterator<Item = &'e Entry>) -> Self {
        let snapshot = field.problem.snapshot;
        let counted = |pod: &&Arc<Pod>| pod.is_reschedulable() || pod.is_provisionable();
        let stays = |entry: &&Entry| !field.problem.hosts[entry.host].host.is_leaving();
        let mut candidates: Vec<u64> = members.into_iter().map(content).collect();
        candidates.sort_unstable();
        Origin {
            pods: gist(snapshot.pods.iter().filter(counted)),
            price: field.entries.iter().filter(stays).filter_map(|entry| entry.candidate.price).sum(),
            candidates,
        }
    }
}

/// A hash of some pods that is the same in any order.
fn gist<'p>(pods: impl Iterator<Item = &'p Arc<Pod>>) -> u64 {
    let one = |pod: &Arc<Pod>| FxBuildHasher.hash_one((&pod.key.namespace, pod.digest.shape, pod.digest.labels));
    pods.map(one).fold(0, u64::wrapping_add)
}

/// A hash of what a node is and holds.
fn content(entry: &Entry) -> u64 {
    let label = |node: &Arc<crate::cluster::Node>| node.labels.get(labels::INSTANCE_TYPE).cloned();
    FxBuildHasher.hash_one((&entry.candidate.pool, entry.node.as_ref().and_then(label), gist(entry.pods.iter())))
}

/// Remembers failures by pool and cause, so that a pool whose replacements never come up does not keep the others waiting. Takes the time,
/// gives the deadline; an empty memory is always a sound one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    failures: BTreeMap<(Arc<str>, Cause), Failed>,
    /// Moves that were carried out: of the same pods and like candidates, the last one.
    moves: BTreeMap<(u64, Vec<u64>), Moved>,
    /// Where the last plan ended.
    pub(super) resume: Resume,
}

/// Says where a plan ended its searches, so that the next goes on there: each looks at so many nodes only, and every node has its turn however
/// many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// The node that is not as its pool wants it and was looked at last; none when all had their turn.
    pub(super) outdated: Option<Turn>,
    /// The node behind which the next search for what could be cheaper begins; none when from the first.
    pub(super) cheaper: Option<Rank>,
}

impl Resume {
    /// Says whether the last plan left nodes to the next that are not as their pools want them.
    pub(super) fn is_amid_outdated(&self) -> bool {
        self.outdated.is_some()
    }
}

/// Orders nodes that are not as their pools want them: empty ones first, then those of which that has been so for longest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    /// It holds pods.
    pub(super) is_used: bool,
    /// Since when it is outdated.
    pub(super) since: Option<Timestamp>,
    /// Its claim.
    pub(super) claim: Arc<str>,
}

/// Orders nodes that could be cheaper: what saves most per eviction first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    ratio: Reverse<u64>,
    claim: Arc<str>,
}

impl Rank {
    pub(super) fn of(entry: &Entry) -> Self {
        Rank { ratio: Reverse(entry.saving_ratio()), claim: entry.candidate.claim.clone() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failed {
    times: u32,
    at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moved {
    /// What the nodes cost before.
    price: Price,
    /// How often it was carried out without making them cheaper for good.
    times: u32,
    at: Timestamp,
}

/// Nodes that are left alone for a while, by what they are.
pub(super) struct Resting(FxHashMap<u64, Timestamp>);

impl Resting {
    /// Answers why a node is left alone.
    pub(super) fn reason(&self, entry: &Entry) -> Option<KeepReason> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&content(entry)).map(|until| KeepReason::CameBack { until: *until })
    }
}

/// Answers until when something is left alone after it went wrong so many times, the last time at `at`: each time doubles the first wait. Not after
/// `now` where that is over.
fn backed_off(first: SignedDuration, longest: SignedDuration, times: u32, at: Timestamp, now: Timestamp) -> Timestamp {
    let wait = first.saturating_mul(1 << times.saturating_sub(1).min(16)).min(longest);
    // a clock that went back must not lengthen the wait
    match now.duration_since(at).abs() >= wait {
        true => now,
        false => at.saturating_add(wait).unwrap_or(Timestamp::MAX),
    }
}

impl Memory {
    /// Notes that a command was taken back after it had begun.
    pub fn failed(&mut self, command: &Command, now: Timestamp) {
        for candidate in &command.candidates {
            // what fails while its pool is left alone had begun before, as the other nodes of one command: that counts once
            if self.pause(&candidate.pool, command.cause, now).is_some() {
                continue;
            }
            let key = (candidate.pool.clone(), command.cause);
            let failed = self.failures.entry(key).or_insert(Failed { times: 0, at: now });
            *failed = Failed { times: failed.times.saturating_add(1), at: now };
        }
    }

    /// Notes that a command was carried out.
    pub fn succeeded(&mut self, command: &Command, now: Timestamp) {
        for candidate in &command.candidates {
            self.failures.remove(&(candidate.pool.clone(), command.cause));
        }
        let Some(Origin { pods, price, candidates }) = command.origin.clone() else { return };
        // what has rested twice as long as anything may is forgotten
        let fresh = |moved: &Moved| now.duration_since(moved.at) < LONGEST_REST.saturating_mul(2);
        self.moves.retain(|_, moved| fresh(moved));
        let before = self.moves.get(&(pods, candidates.clone())).filter(|moved| price >= moved.price);
        let times = before.map_or(0, |moved| moved.times).saturating_add(1);
        self.moves.insert((pods, candidates), Moved { price, times, at: now });
    }

    /// Answers which nodes are left alone because they are like candidates of a move, and the cluster is where that move began: the same
    /// pods, on nodes that cost as much.
    pub(super) fn resting(&self, field: &Field<'_>) -> Resting {
        let mut resting = Resting(FxHashMap::default());
        if self.moves.is_empty() {
            return resting;
        }
        let now = field.problem.snapshot.now;
        let standing = Origin::of(field, []);
        for ((pods, candidates), moved) in &self.moves {
            let until = backed_off(FIRST_REST, LONGEST_REST, moved.times, moved.at, now);
            if *pods == standing.pods && standing.price >= moved.price && now < until {
                for candidate in candidates {
                    let known = resting.0.entry(*candidate).or_insert(until);
                    *known = until.max(*known);
                }
            }
        }
        resting
    }

    /// Notes where a plan ended its searches.
    pub fn examined(&mut self, resume: Resume) {
        self.resume = resume;
    }

    /// Answers until when a pool is left alone for a cause.
    pub fn pause(&self, pool: &Arc<str>, cause: Cause, now: Timestamp) -> Option<Timestamp> {
        let failed = self.failures.get(&(pool.clone(), cause))?;
        let until = backed_off(FIRST_PAUSE, LONGEST_PAUSE, failed.times, failed.at, now);
        (now < until).then_some(until)
    }
}

//! Eviction: empties a node in waves, by the Eviction API, until it is empty or its grace period is over.

mod hold;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

pub use self::hold::{Held, Hold, holds};
use crate::api::labels;
use crate::cluster::{Owner, Phase, Pod, PodKey};

/// A pod that is still there so long after its grace ended is stuck: kubelet is gone, and the drain goes on without it (Karpenter: 1 min).
const STUCK: SignedDuration = SignedDuration::from_mins(1);
/// Pauses between attempts for one pod: doubled at each refusal.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_millis(500);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
/// While pods terminate, a look at least this often.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(5);
/// A drain takes at least this long: what kube-scheduler is binding to the node is not seen yet (Karpenter: 5 s). A clock that is further from the
/// API server's than this waits for nothing.
const LEAST_DRAIN: SignedDuration = SignedDuration::from_secs(5);
/// Volumes that do not detach are waited for no longer than this: kubelet's own unmount limit is 6 min.
pub const DETACH_LIMIT: SignedDuration = SignedDuration::from_mins(6);
/// Evictions asked for in one step: a wave of hundreds of pods must not use up the API server's patience.
const MOST_AT_ONCE: usize = 100;

/// Holds what is known about a node that is being emptied.
#[derive(Clone, Copy, Debug)]
pub struct Drain<'a> {
    /// Pods that are bound to the node.
    pub pods: &'a [Arc<Pod>],
    /// When the node was asked to go.
    pub since: Timestamp,
    /// When the node must be gone: deletion time and `terminationGracePeriod`; never if there is none.
    pub deadline: Option<Timestamp>,
    /// Answers of the API server so far.
    pub answers: &'a Answers,
}

/// Remembers how the API server answered evictions, by pod UID, so that refused ones are not repeated at once.
#[derive(Clone, Debug, Default)]
pub struct Answers(BTreeMap<Arc<str>, Refused>);

#[derive(Clone, Debug)]
struct Refused {
    times: u32,
    again: Timestamp,
    why: Block,
}

/// Says how the API server answered an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Accepted, or the pod is gone (404), or it is another pod of that name (409).
    Done,
    /// A budget forbids it now (429).
    Budget,
    /// Anything else, such as the 500 for a pod with two budgets, in the API server's words.
    Failed(Arc<str>),
}

impl Refused {
    /// Says whether it is too early to ask again. A clock that went back must not lengthen the pause.
    fn rests(&self, now: Timestamp) -> bool {
        now < self.again && self.again.duration_since(now) <= LONGEST_PAUSE
    }
}

impl Answers {
    /// Notes an answer.
    pub fn note(&mut self, uid: &Arc<str>, answer: Answer, now: Timestamp) {
        let why = match answer {
            Answer::Done => {
                self.0.remove(uid);
                return;
            }
            Answer::Budget => Block::Budget,
            Answer::Failed(why) => Block::Failed(why),
        };
        let times = self.0.get(uid).map_or(0, |refused| refused.times);
        let pause = (0..times.min(10)).fold(FIRST_PAUSE, |pause, _| (pause * 2).min(LONGEST_PAUSE));
        let again = now.saturating_add(pause).unwrap_or(Timestamp::MAX);
        self.0.insert(uid.clone(), Refused { times: times + 1, again, why });
    }

    /// Forgets pods that are no longer on the node.
    pub fn keep_only(&mut self, pods: &[Arc<Pod>]) {
        self.0.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
    }
}

/// Says what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is left that has to go: the instance may end.
    Drained,
    /// Evict and delete these, and look again.
    Wait(Wait),
}

/// Holds what is to be asked of the API server now and what is waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// Pods to evict, preconditioned on their UID.
    pub evict: Vec<Target>,
    /// Pods to delete past every budget, since the deadline that the user set is near.
    pub delete: Vec<Deletion>,
    /// Pods that hold the drain up and why.
    pub blocked: Vec<(PodKey, Block)>,
    /// Pods that are on their way out.
    pub terminating: usize,
    /// When to look again at the latest.
    pub next_look: Option<Timestamp>,
}

/// Names a pod to evict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The pod.
    pub pod: PodKey,
    /// Its UID.
    pub uid: Arc<str>,
}

/// Names a pod to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// The pod.
    pub pod: PodKey,
    /// Its UID.
    pub uid: Arc<str>,
    /// Grace, so that it ends by the deadline; at least one second.
    pub grace_seconds: i64,
}

/// Says what holds a pod on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// `karpenter.sh/do-not-disrupt`: it is waited for, never evicted.
    Protected,
    /// A PodDisruptionBudget.
    Budget,
    /// The API server could not evict it, for what it says.
    Failed(Arc<str>),
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Protected => "Protected",
            Self::Budget => "Budget",
            Self::Failed(why) => why,
        })
    }
}

/// Answers what the Eviction API is asked for a pod: bound to its UID, since another pod of the same name is not meant. Written out, because
/// kube 5.0's `Api::evict` spells the options so that the API server overlooks them, UID included.
pub fn request(pod: &PodKey, uid: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": &*pod.name, "namespace": &*pod.namespace },
        "deleteOptions": { "preconditions": { "uid": uid } },
    })
}

/// Says whether the API server is asked for the pods of a node before a step to its end, although the watch shows none that has to go: it may be
/// late, and a pod may have been bound since. Not once the instance `ends`, nor at the deadline: no pod is waited for any more.
pub fn asks_for_pods(ends: bool, deadline: Option<Timestamp>, now: Timestamp) -> bool {
    !ends && deadline.is_none_or(|at| at > now)
}

/// Reads by when a node is drained, whatever holds it: what the deletion of its claim wrote on the claim, else on the node; of each the
/// annotations are given.
pub fn deadline(claim: Option<&BTreeMap<String, String>>, node: &BTreeMap<String, String>) -> Option<Timestamp> {
    let of = |annotations: &BTreeMap<String, String>| annotations.get(labels::TERMINATION_TIMESTAMP).cloned();
    claim.and_then(of).or_else(|| of(node))?.parse().ok()
}

/// Answers until when the volumes of a node are waited for whose pods were gone at `drained`: kubelet detaches them only then, however long the
/// drain took.
pub fn detached_by(drained: Timestamp, deadline: Option<Timestamp>) -> Timestamp {
    deadline.unwrap_or(Timestamp::MAX).min(later(drained, DETACH_LIMIT))
}

/// Answers the claims of the pods that a drain leaves on the node: their volumes stay attached to it until its end, and waiting for them is in
/// vain.
pub fn kept_claims(pods: &[Arc<Pod>], now: Timestamp) -> impl Iterator<Item = PodKey> {
    let stay = pods.iter().filter(move |pod| hold::exempt(pod, now).is_some());
    stay.flat_map(|pod| pod.claims.iter().map(|claim| claim.key(&pod.key)))
}

/// Answers the next step of a drain.
///
/// Waves: plain pods, then daemons, then critical pods, then critical daemons; a wave starts when the one before is gone. Pods that bear the
/// taint of a disrupted node and static pods stay. With a deadline, each pod is deleted when its grace would just end in time.
pub fn next(drain: &Drain<'_>, now: Timestamp) -> Step {
    let mut here: Vec<&Arc<Pod>> = drain.pods.iter().filter(|pod| must_go(pod, now)).collect();
    if drain.deadline.is_some_and(|deadline| now >= deadline) {
        return Step::Drained;
    }
    if here.is_empty() {
        let settled = later(drain.since, LEAST_DRAIN);
        let near = later(now, LEAST_DRAIN) >= drain.since;
        let look = drain.deadline.map_or(settled, |deadline| settled.min(deadline));
        return if now < settled && near {
            Step::Wait(Wait { next_look: Some(look), ..Wait::default() })
        } else {
            Step::Drained
        };
    }
    here.sort_by(|a, b| (wave(a), &a.key).cmp(&(wave(b), &b.key)));
    let current = wave(here[0]);
    let mut wait = Wait::default();
    let mut look = |at: Timestamp| wait.next_look = Some(wait.next_look.map_or(at, |old: Timestamp| old.min(at)));
    look(later(now, LOOK_AGAIN));
    drain.deadline.into_iter().for_each(&mut look);
    let (mut evict, mut delete, mut blocked, mut terminating) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for pod in here {
        if let Some(deadline) = drain.deadline {
            let last = last_moment(pod, deadline);
            let ends_late = pod.deletes_at.is_none_or(|at| at > deadline);
            if now >= last && ends_late {
                let left = deadline.duration_since(now).as_secs().max(1);
                let grace_seconds = left.min(pod.grace_seconds.max(1));
                delete.push(Deletion { pod: pod.key.clone(), uid: pod.uid.clone(), grace_seconds });
                continue;
            }
            if ends_late {
                look(last);
            }
        }
        if let Some(end) = pod.deletes_at {
            terminating += 1;
            look(later(end, STUCK));
        } else if wave(pod) != current {
        } else if pod.is_protected(now) {
            blocked.push((pod.key.clone(), Block::Protected));
        } else if let Some(refused) = drain.answers.0.get(&pod.uid).filter(|refused| refused.rests(now)) {
            blocked.push((pod.key.clone(), refused.why.clone()));
            look(refused.again);
        } else if evict.len() < MOST_AT_ONCE {
            evict.push(Target { pod: pod.key.clone(), uid: pod.uid.clone() });
        } else {
            look(later(now, FIRST_PAUSE));
        }
    }
    wait.evict = evict;
    wait.delete = delete;
    wait.blocked = blocked;
    wait.terminating = terminating;
    Step::Wait(wait)
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// When a pod's grace must begin to end by the deadline.
fn last_moment(pod: &Pod, deadline: Timestamp) -> Timestamp {
    later(deadline, -SignedDuration::from_secs(pod.grace_seconds.max(1)))
}

/// Whether the node must not end before the pod is gone.
fn must_go(pod: &Pod, now: Timestamp) -> bool {
    pod.phase != Phase::Terminal && hold::exempt(pod, now).is_none()
}

fn wave(pod: &Pod) -> u8 {
    u8::from(pod.is_critical()) * 2 + u8::from(pod.owner == Owner::DaemonSet)
}

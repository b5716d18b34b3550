//! How a node is emptied: four waves, budgets' refusals, deadlines, and pods that never go.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karp_domain::cluster::{Owner, Pod, PodBudget};
use karp_domain::eviction::{
    Answer, Answers, Block, Drain, Hold, Step, Wait, asks_for_pods, deadline, detached_by, holds, kept_claims, next,
    request,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{NOW, at, running, with};

fn pod(name: &str, more: &[(&str, Value)]) -> Arc<Pod> {
    Arc::new(Pod::from_kube(&serde_json::from_value(with(running(name, "n1", "1", "1Gi"), more)).unwrap()).unwrap())
}

fn owned_by(kind: &str) -> (&'static str, Value) {
    ("metadata.ownerReferences", json!([{"apiVersion": "v1", "kind": kind, "name": "o", "uid": "o"}]))
}

fn critical() -> (&'static str, Value) {
    ("spec.priority", json!(2_000_000_000))
}

fn going(ends: &str) -> (&'static str, Value) {
    ("metadata.deletionTimestamp", json!(ends))
}

/// When the nodes here were asked to go: long ago.
const SINCE: &str = "2026-11-21T11:00:00Z";

fn step(pods: &[Arc<Pod>], deadline: Option<&str>, now: Timestamp) -> Step {
    next(&Drain { pods, since: at(SINCE), deadline: deadline.map(at), answers: &Answers::default() }, now)
}

fn wait(pods: &[Arc<Pod>], deadline: Option<&str>, now: &str) -> Wait {
    match step(pods, deadline, at(now)) {
        Step::Wait(wait) => wait,
        Step::Drained => panic!("drained"),
    }
}

fn evicted(wait: &Wait) -> Vec<&str> {
    wait.evict.iter().map(|target| &*target.uid).collect()
}

#[test]
fn pods_are_asked_for_as_long_as_one_would_be_waited_for() {
    let asks = |ends, deadline: Option<&str>| asks_for_pods(ends, deadline.map(at), at(NOW));
    assert!(asks(false, None) && asks(false, Some("2026-11-21T12:00:01Z")));
    assert!(!asks(true, None), "its instance ends");
    assert!(!asks(false, Some(NOW)), "no pod is waited for any more");
}

#[test]
fn an_eviction_is_bound_to_the_pod_that_is_meant() {
    let pod = pod("web", &[]);
    let asked = request(&pod.key, &pod.uid);
    assert_eq!(asked["metadata"], json!({"name": "web", "namespace": "default"}));
    assert_eq!(asked["deleteOptions"]["preconditions"]["uid"], "web");
}

#[test]
fn a_wave_starts_when_the_one_before_is_gone() {
    let all = [
        pod("plain", &[]),
        pod("daemon", &[owned_by("DaemonSet")]),
        pod("critical", &[critical()]),
        pod("critical-daemon", &[critical(), owned_by("DaemonSet")]),
    ];
    for left in 0..4 {
        assert_eq!(evicted(&wait(&all[left..], None, NOW)), [&*all[left].uid]);
    }
    // one that is still on its way out holds the next wave back
    let going = pod("plain", &[going("2026-11-21T12:00:30Z")]);
    let found = wait(&[going, all[1].clone()], None, NOW);
    assert_eq!((evicted(&found).len(), found.terminating), (0, 1));
    assert_eq!(step(&[], None, at(NOW)), Step::Drained);
}

#[test]
fn some_pods_do_not_hold_a_node() {
    let tolerant = ("spec.tolerations", json!([{"key": "karpenter.sh/disrupted", "operator": "Exists"}]));
    let mirror = ("metadata.annotations", json!({"kubernetes.io/config.mirror": "x"}));
    let done = ("status.phase", json!("Succeeded"));
    let stuck = going("2026-11-21T11:58:59Z");
    for (name, more) in
        [("tolerant", tolerant), ("mirror", mirror), ("node", owned_by("Node")), ("done", done), ("stuck", stuck)]
    {
        assert_eq!(step(&[pod(name, &[more])], None, at(NOW)), Step::Drained, "{name}");
    }
    let late = going("2026-11-21T11:59:01Z");
    assert!(matches!(step(&[pod("late", &[late])], None, at(NOW)), Step::Wait(_)), "not stuck yet");
}

/// Volumes of pods that stay are attached to the end; those of all others have to be free for their pods elsewhere.
#[test]
fn volumes_of_pods_that_stay_are_not_waited_for() {
    let tolerant = ("spec.tolerations", json!([{"key": "karpenter.sh/disrupted", "operator": "Exists"}]));
    let uses = |claim: &str| {
        let scratch = json!({"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}});
        ("spec.volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}, scratch]))
    };
    let stuck = going("2026-11-21T11:58:59Z");
    let (stays, leaves) = (pod("stays", &[tolerant, uses("a")]), pod("leaves", &[uses("b")]));
    let pods = [stays, leaves, pod("stuck", &[stuck, uses("c")])];
    let kept: Vec<String> = kept_claims(&pods, at(NOW)).map(|key| key.to_string()).collect();
    assert_eq!(kept, ["default/a", "default/stays-tmp", "default/c", "default/stuck-tmp"]);
}

/// A pod whose requests, affinity or containers say what nobody can read is drained like others of its owner's wishes.
#[test]
fn what_an_eviction_needs_is_read_of_pods_that_cannot_be_read() {
    let odd = [
        ("spec.containers", json!([{"name": "c", "resources": {"requests": {"memory": "1e60"}}}])),
        ("spec.nodeSelector", json!({"a": "b"})),
        ("spec.terminationGracePeriodSeconds", json!(7)),
        ("metadata.annotations", json!({"karpenter.sh/do-not-disrupt": "true"})),
        critical(),
        owned_by("DaemonSet"),
    ];
    let object = serde_json::from_value(with(running("odd", "n1", "1", "1Gi"), &odd)).unwrap();
    assert!(Pod::from_kube(&object).is_err());
    let read = Pod::to_evict(&object).unwrap();
    assert!(read.is_protected(at(NOW)) && read.is_critical() && read.node.as_deref() == Some("n1"));
    assert_eq!((&*read.uid, read.grace_seconds, read.owner), ("odd", 7, Owner::DaemonSet));
    let obscure = |phase: &str| {
        let toleration = json!([{"key": "karpenter.sh/disrupted", "operator": "Exists", "effect": "Perhaps"}]);
        let more = [("spec.tolerations", toleration), ("status.phase", json!(phase))];
        Pod::to_evict(&serde_json::from_value(with(running("obscure", "n1", "1", "1Gi"), &more)).unwrap())
    };
    assert!(obscure("Running").is_err(), "nobody knows whether it bears the taint");
    assert!(obscure("Failed").is_ok(), "it holds nothing");
}

#[test]
fn a_pod_that_asked_to_be_left_alone_is_waited_for_and_named() {
    let shy = pod("shy", &[("metadata.annotations", json!({"karpenter.sh/do-not-disrupt": "true"}))]);
    let found = wait(std::slice::from_ref(&shy), None, NOW);
    assert_eq!((evicted(&found).len(), &found.blocked[..]), (0, &[(shy.key.clone(), Block::Protected)][..]));
}

/// A pod that is being bound shows on no list: a node without pods is drained when it has been kept from new ones for a while.
#[test]
fn an_empty_node_is_not_drained_at_once() {
    let look = |now: &str, deadline: Option<&str>| {
        let drain = Drain { pods: &[], since: at(NOW), deadline: deadline.map(at), answers: &Answers::default() };
        match next(&drain, at(now)) {
            Step::Wait(wait) => {
                assert_eq!((wait.evict.len(), wait.delete.len(), wait.blocked.len()), (0, 0, 0));
                wait.next_look
            }
            Step::Drained => None,
        }
    };
    let settled = Some(at("2026-11-21T12:00:05Z"));
    assert_eq!(look(NOW, None), settled);
    assert_eq!(look("2026-11-21T12:00:04.9Z", None), settled);
    assert_eq!(look("2026-11-21T12:00:05Z", None), None);
    // a clock that is a little slow waits for longer, one that is far off waits for nothing
    assert_eq!(look("2026-11-21T11:59:56Z", None), settled);
    assert_eq!(look("2026-11-21T11:59:54Z", None), None);
    // a deadline comes first
    assert_eq!(look(NOW, Some("2026-11-21T12:00:02Z")), Some(at("2026-11-21T12:00:02Z")));
    assert_eq!(look("2026-11-21T12:00:02Z", Some("2026-11-21T12:00:02Z")), None);
}

#[test]
fn a_refused_eviction_is_not_repeated_at_once() {
    let pods = [pod("p", &[])];
    let mut answers = Answers::default();
    let mut now = at(NOW);
    let mut pauses = Vec::new();
    for _ in 0..7 {
        answers.note(&pods[0].uid, Answer::Budget, now);
        let Step::Wait(found) = next(&Drain { pods: &pods, since: at(SINCE), deadline: None, answers: &answers }, now)
        else {
            panic!()
        };
        assert_eq!(found.blocked, [(pods[0].key.clone(), Block::Budget)]);
        let again = found.next_look.unwrap();
        pauses.push(again.duration_since(now).as_millis());
        now = again;
        let due = matches!(next(&Drain { pods: &pods, since: at(SINCE), deadline: None, answers: &answers }, now), Step::Wait(w) if w.evict.len() == 1);
        assert!(due || pauses.last() == Some(&5000), "looked at every 5 s at least");
        now += SignedDuration::from_secs(10);
    }
    assert_eq!(pauses[..4], [500, 1000, 2000, 4000]);
}

/// A pod that is not tried again yet is told of with what the API server said of it.
#[test]
fn a_refusal_is_remembered_with_its_words() {
    let pods = [pod("p", &[])];
    let mut answers = Answers::default();
    answers.note(&pods[0].uid, Answer::Failed("it has two budgets".into()), at(NOW));
    let Step::Wait(found) = next(&Drain { pods: &pods, since: at(SINCE), deadline: None, answers: &answers }, at(NOW))
    else {
        panic!()
    };
    let told: Vec<String> = found.blocked.iter().map(|(_, block)| block.to_string()).collect();
    assert_eq!((told, found.evict.len()), (vec!["it has two budgets".to_owned()], 0));
}

#[test]
fn a_deadline_is_kept_whatever_budgets_and_pods_say() {
    let shy = pod("shy", &[("metadata.annotations", json!({"karpenter.sh/do-not-disrupt": "true"}))]);
    let daemon = pod("daemon", &[owned_by("DaemonSet"), ("spec.terminationGracePeriodSeconds", json!(120))]);
    let pods = [shy, daemon];
    let deadline = Some("2026-11-21T12:05:00Z");
    let early = wait(&pods, deadline, NOW);
    assert!(early.delete.is_empty());
    // the daemon's two minutes begin while the wave before it still waits
    let found = wait(&pods, deadline, "2026-11-21T12:03:00Z");
    assert_eq!(found.delete.iter().map(|d| (&*d.pod.name, d.grace_seconds)).collect::<Vec<_>>(), [("daemon", 120)]);
    let found = wait(&pods, deadline, "2026-11-21T12:04:45Z");
    assert_eq!(found.delete.iter().map(|d| d.grace_seconds).collect::<Vec<_>>(), [15, 15]);
    assert_eq!(step(&pods, deadline, at("2026-11-21T12:05:00Z")), Step::Drained);
}

fn budget(name: &str, allowed: i32) -> Arc<PodBudget> {
    let status = json!({"currentHealthy": 2, "desiredHealthy": 2, "disruptionsAllowed": allowed, "expectedPods": 3});
    let selector = json!({"matchLabels": {"app": name}});
    let object = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "status": status,
        "metadata": {"name": name, "namespace": "default"}, "spec": {"selector": selector}});
    Arc::new(PodBudget::from_kube(&serde_json::from_value(object).unwrap()).unwrap())
}

/// What each pod is held by, as name, words and the time at which it is forced.
fn told(
    pods: &[Arc<Pod>],
    budgets: &[Arc<PodBudget>],
    deadline: Option<&str>,
    now: &str,
) -> Vec<(String, String, Option<Timestamp>)> {
    let drain = Drain { pods, since: at(SINCE), deadline: deadline.map(at), answers: &Answers::default() };
    let held = holds(&drain, budgets, at(now));
    held.into_iter().map(|held| (held.pod.name.to_string(), held.why.to_string(), held.forced_at)).collect()
}

#[test]
fn each_pod_of_a_drain_says_what_holds_it() {
    let app = |name: &str| ("metadata.labels", json!({"app": name}));
    let quiet = |value: &str| ("metadata.annotations", json!({"karpenter.sh/do-not-disrupt": value}));
    let started = ("status.startTime", json!("2026-11-21T11:45:00Z"));
    let tolerant = ("spec.tolerations", json!([{"operator": "Exists"}]));
    let pods = [
        pod("agent", &[owned_by("DaemonSet")]),
        pod("bound", &[app("tight")]),
        pod("for-a-while", &[quiet("30m"), started]),
        pod("free", &[app("wide")]),
        pod("going", &[going("2026-11-21T12:00:20Z")]),
        pod("never", &[quiet("true")]),
        pod("own", &[owned_by("Node")]),
        pod("proxy", &[owned_by("DaemonSet"), tolerant]),
        pod("stuck", &[going("2026-11-21T11:58:00Z")]),
    ];
    let budgets = [budget("tight", 0), budget("wide", 1)];
    let last = Some(at("2026-11-21T12:29:30Z"));
    let wanted = [
        (
            "bound",
            "PodDisruptionBudget default/tight allows no eviction: 2 of its pods are healthy, 2 have to be",
            last,
        ),
        ("for-a-while", "it has karpenter.sh/do-not-disrupt until 2026-11-21T12:15:00Z", last),
        ("free", "nothing holds it: it is evicted next", last),
        ("going", "it is ending: its grace period is over at 2026-11-21T12:00:20Z", None),
        ("never", "it has karpenter.sh/do-not-disrupt", last),
        ("agent", "it goes when the pods before it are gone", last),
        ("own", "it belongs to the node: it is not waited for", None),
        (
            "stuck",
            "its grace period was over at 2026-11-21T11:58:00Z, and kubelet has not ended it: it is not waited for",
            None,
        ),
        ("proxy", "it tolerates the taint karpenter.sh/disrupted: it is not waited for", None),
    ];
    let wanted = wanted.map(|(name, why, forced)| (name.to_owned(), why.to_owned(), forced));
    assert_eq!(told(&pods, &budgets, Some("2026-11-21T12:30:00Z"), NOW), wanted);

    let twice = [budget("tight", 1), Arc::new(PodBudget { key: budgets[1].key.clone(), ..(*budgets[0]).clone() })];
    let refused =
        "PodDisruptionBudgets default/tight, default/wide select it together: the Eviction API refuses such pods";
    assert_eq!(told(&pods[1..2], &twice, None, NOW), [("bound".to_owned(), refused.to_owned(), None)]);
    let near = told(&pods[1..2], &budgets, Some("2026-11-21T12:00:20Z"), NOW);
    assert_eq!(near[0].1, "the deadline is near: it is deleted, whatever holds it");
    let past = told(&pods[1..2], &budgets, Some(NOW), NOW);
    assert_eq!((past[0].1.as_str(), past[0].2), ("the deadline is past: it is not waited for", None));
}

#[test]
fn a_deadline_is_read_from_the_claim_first_and_bounds_the_wait_for_volumes() {
    let noted = |text: &str| {
        [("karpenter.sh/nodeclaim-termination-timestamp".to_owned(), text.to_owned())].into_iter().collect()
    };
    let (early, late) = ("2026-11-21T12:03:00Z", "2026-11-21T13:00:00Z");
    assert_eq!(deadline(Some(&noted(early)), &noted(late)), Some(at(early)));
    assert_eq!(deadline(Some(&Default::default()), &noted(late)), Some(at(late)));
    assert_eq!(deadline(None, &noted("soon")), None);
    assert_eq!(detached_by(at(NOW), Some(at(early))), at(early));
    assert_eq!(detached_by(at(NOW), None), at("2026-11-21T12:06:00Z"));
}

proptest! {
    #[test]
    fn drains_keep_their_promises(kinds in prop::collection::vec(0_usize..7, 0..30), left in prop::option::of(0_i64..400)) {
        let make = |at: usize, kind: usize| {
            let name = format!("p{at}");
            match kind {
                0 => pod(&name, &[]),
                1 => pod(&name, &[owned_by("DaemonSet")]),
                2 => pod(&name, &[critical()]),
                3 => pod(&name, &[("metadata.annotations", json!({"karpenter.sh/do-not-disrupt": "true"}))]),
                4 => pod(&name, &[going("2026-11-21T12:00:20Z")]),
                // a minute after its grace, to the second
                5 => pod(&name, &[going("2026-11-21T11:59:00Z")]),
                _ => pod(&name, &[owned_by("Node")]),
            }
        };
        let pods: Vec<_> = kinds.iter().enumerate().map(|(at, kind)| make(at, *kind)).collect();
        let now = at(NOW);
        let deadline = left.map(|seconds| now + SignedDuration::from_secs(seconds));
        let drain = Drain { pods: &pods, since: at(SINCE), deadline, answers: &Answers::default() };
        let found = next(&drain, now);
        let held = holds(&drain, &[], now);
        prop_assert_eq!(held.len(), pods.len(), "each pod is told of");
        let waited: Vec<_> = held.iter().filter(|held| held.why.is_waited_for()).collect();
        prop_assert_eq!(waited.is_empty(), found == Step::Drained);
        if let Step::Wait(wait) = found {
            let of = |hold: fn(&Hold) -> bool| waited.iter().filter(|held| hold(&held.why)).count();
            prop_assert_eq!(of(|hold| *hold == Hold::Forced), wait.delete.len());
            prop_assert_eq!(of(|hold| *hold == Hold::Next), wait.evict.len());
            prop_assert_eq!(of(|hold| matches!(hold, Hold::Protected { .. })), wait.blocked.len());
            prop_assert_eq!(of(|hold| matches!(hold, Hold::Terminating { .. })), wait.terminating);
            prop_assert!(wait.next_look.is_some_and(|look| look > now));
            prop_assert!(deadline.is_none_or(|deadline| wait.next_look.unwrap() <= deadline));
            for target in &wait.evict {
                let pod = pods.iter().find(|pod| pod.uid == target.uid).unwrap();
                prop_assert!(!pod.is_protected(now) && pod.deletes_at.is_none());
            }
            prop_assert!(wait.delete.is_empty() || deadline.is_some(), "nothing is forced without a deadline");
            for forced in &wait.delete {
                prop_assert!(forced.grace_seconds >= 1 && forced.grace_seconds <= left.unwrap().max(1));
            }
        } else {
            let must_stay = kinds.iter().any(|kind| *kind < 5);
            prop_assert!(!must_stay || left == Some(0));
        }
    }
}

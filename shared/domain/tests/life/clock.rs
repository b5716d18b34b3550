//! A clock that goes back lengthens no wait.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karp_domain::cluster::{Pod, Snapshot};
use karp_domain::disruption::{Act, Budgets, Cause, Execution, Failure, Memory, Progress, plan_with};
use karp_domain::eviction::{Answer, Answers, Drain, Step, next};

use crate::disrupt::{plan, two};
use crate::world::{NOW, at, running};

/// Further back than any wait is long that is tried here.
const BACK: SignedDuration = SignedDuration::from_mins(40);

#[test]
fn a_command_does_not_wait_for_the_time_to_come_again() {
    use Progress::{Initialized, Starting};
    let start = at(NOW);
    let run = Execution::new(Cause::Drifted, start);
    let act = |progress: Progress, back: SignedDuration| run.next(&[progress], &[], &Budgets::new(), start - back);
    assert_eq!(act(Initialized, BACK), Act::Delete);
    assert_eq!(act(Starting, BACK), Act::RollBack(Failure::TooLate));
    assert!(run.is_late(start - BACK));
    let little = SignedDuration::from_secs(10);
    let soon = start - little + SignedDuration::from_secs(1);
    assert_eq!(act(Starting, little), Act::Wait { until: soon });
    assert!(!run.is_late(start - little));
}

#[test]
fn what_went_wrong_is_tried_again_all_the_same() {
    let (mut snapshot, plan) = plan(&two("m7i.2xlarge", &[("p", "1")]));
    let (command, start) = (&plan.commands[0], snapshot.now);
    let mut failed = Memory::default();
    failed.failed(command, start);
    let pause = |now: Timestamp| failed.pause(&"default".into(), command.cause, now);
    let until = start + SignedDuration::from_mins(1);
    assert_eq!(pause(start + SignedDuration::from_secs(30)), Some(until));
    assert_eq!(pause(start - SignedDuration::from_secs(30)), Some(until));
    assert_eq!(pause(start - BACK), None);
    // so is a move that did not last
    let mut moved = Memory::default();
    moved.succeeded(command, start);
    let again = |snapshot: &Snapshot| {
        let plan = plan_with(snapshot, &moved);
        plan.commands.iter().flat_map(|command| &command.candidates).any(|one| one.claim == command.candidates[0].claim)
    };
    assert!(!again(&snapshot));
    snapshot.now = start - BACK;
    assert!(again(&snapshot));
}

#[test]
fn a_refused_eviction_is_asked_for_again() {
    let pod = Pod::from_kube(&serde_json::from_value(running("p", "n1", "1", "1Gi")).unwrap()).unwrap();
    let pods = [Arc::new(pod)];
    let mut answers = Answers::default();
    answers.note(&pods[0].uid, Answer::Budget, at(NOW));
    let asked = |back: SignedDuration| {
        let drain = Drain { pods: &pods, since: at(NOW) - BACK, deadline: None, answers: &answers };
        match next(&drain, at(NOW) - back) {
            Step::Wait(wait) => wait.evict.len(),
            Step::Drained => panic!("drained"),
        }
    };
    assert_eq!((asked(SignedDuration::ZERO), asked(BACK)), (0, 1));
}

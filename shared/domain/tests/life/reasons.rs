//! What may not be done with a node for one reason may be done for another: budgets by reason, and pods whose wishes only drift passes over.

use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::Reason;
use karp_domain::disruption::{
    Cause, Command, DisruptionPlan, Invalid, KeepReason, Memory, Method, Verdict, allowed_disruptions, plan_with,
    until_stable, validate,
};
use serde_json::{Value, json};

use crate::disrupt::{on_demand, plan, two};
use crate::world::{TYPES, catalogue, class, node, pool, running, snapshot, with};

const CLAIM: &str = "default-n1";

/// The pool's budgets become these.
fn budgets(mut objects: Vec<Value>, of_pool: &Value) -> Vec<Value> {
    objects[1]["spec"]["disruption"]["budgets"] = of_pool.clone();
    objects
}

/// A budget that lets no node go for one reason, beside one that lets all go.
fn none_for(reason: &str) -> Value {
    json!([{"nodes": "0", "reasons": [reason]}, {"nodes": "100%"}])
}

/// The node n1 has drifted; its claim has a grace period, or not.
fn drifted(mut objects: Vec<Value>, grace: Option<&str>) -> Vec<Value> {
    let claim = objects.iter_mut().find(|o| o["kind"] == "NodeClaim" && o["metadata"]["name"] == CLAIM).unwrap();
    let drift = json!({"type": "Drifted", "status": "True", "reason": "AMIDrift", "lastTransitionTime": "2026-11-21T11:30:00Z"});
    claim["status"]["conditions"].as_array_mut().unwrap().push(drift);
    if let Some(grace) = grace {
        claim["spec"]["terminationGracePeriod"] = json!(grace);
    }
    objects
}

/// A pod asks to be left alone.
fn protected(mut objects: Vec<Value>, pod: &str) -> Vec<Value> {
    let found = objects.iter_mut().find(|o| o["kind"] == "Pod" && o["metadata"]["name"] == pod).unwrap();
    *found = with(found.clone(), &[("metadata.annotations", json!({"karpenter.sh/do-not-disrupt": "true"}))]);
    objects
}

/// A node with nothing but a daemon.
fn idle() -> Vec<Value> {
    let mut objects = vec![class(), pool("default", on_demand())];
    objects.extend(node("n1", "default", "m7i.large", "us-east-1a", CapacityType::OnDemand));
    let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]);
    objects.push(with(running("d", "n1", "10m", "10Mi"), &[("metadata.ownerReferences", owner)]));
    objects
}

/// For what n1 goes.
fn goes(plan: &DisruptionPlan) -> Option<Cause> {
    let takes_it = |command: &&Command| command.candidates.iter().any(|candidate| &*candidate.claim == CLAIM);
    plan.commands.iter().find(takes_it).map(|command| command.cause)
}

/// Why n1 stays.
fn kept(plan: &DisruptionPlan) -> String {
    match plan.verdicts.iter().find(|(candidate, _)| &*candidate.claim == CLAIM) {
        Some((_, Verdict::Keep(reason))) => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

const HELD: &str = "the budget of pool default for Drifted is used up";

#[test]
fn an_empty_node_that_has_drifted_goes_for_what_its_budgets_let_it() {
    let of = |of_pool: &Value| plan(&budgets(drifted(idle(), None), of_pool)).1;
    assert_eq!(goes(&of(&none_for("Drifted"))), Some(Cause::Empty));
    assert_eq!(goes(&of(&none_for("Empty"))), Some(Cause::Drifted), "it need not be empty for that");
    let both = of(&json!([{"nodes": "0", "reasons": ["Empty", "Drifted"]}, {"nodes": "100%"}]));
    assert_eq!((goes(&both), kept(&both).as_str()), (None, HELD), "nor is it consolidated instead");
}

/// Users freeze drift, to hold an image back, say, and all nodes drift sooner or later: that must not end consolidation.
#[test]
fn a_freeze_of_drift_is_none_of_consolidation() {
    let large = || drifted(two("m7i.8xlarge", &[("p", "3")]), None);
    let (_, frozen) = plan(&budgets(large(), &none_for("Drifted")));
    assert_eq!(goes(&frozen), Some(Cause::Underutilized));
    let (_, open) = plan(&large());
    assert_eq!(goes(&open), Some(Cause::Drifted), "drift comes first where it may");
    let (_, closed) = plan(&budgets(large(), &json!([{"nodes": "0"}])));
    assert_eq!((goes(&closed), kept(&closed).as_str()), (None, HELD));
    // one for which nothing is cheaper stays for what keeps it from being renewed
    let (_, full) = plan(&budgets(drifted(two("m7i.xlarge", &[("p", "3500m")]), None), &none_for("Drifted")));
    assert_eq!((goes(&full), kept(&full).as_str()), (None, HELD));
}

/// Pods come and go on many nodes all the time: a freeze of drift is told all the same, and that the node settles is waited for.
#[test]
fn a_freeze_of_drift_is_told_while_the_node_settles() {
    let mut objects = budgets(drifted(two("m7i.8xlarge", &[("p", "3")]), None), &none_for("Drifted"));
    objects[1]["spec"]["disruption"]["consolidateAfter"] = json!("2h");
    let (world, frozen) = plan(&objects);
    assert_eq!((goes(&frozen), kept(&frozen).as_str()), (None, HELD));
    assert_eq!(frozen.settles, Some("2026-11-21T13:00:00Z".parse().unwrap()));
    let path = until_stable(&world, Method::Sets);
    let takes_it = |command: &Command| command.candidates.iter().any(|candidate| &*candidate.claim == CLAIM);
    let causes: Vec<Cause> =
        path.commands().filter(|(command, _)| takes_it(command)).map(|(one, _)| one.cause).collect();
    assert_eq!(causes, [Cause::Underutilized]);
}

/// Nor does it matter that another pool's node had its turn after it, whose command comes to nothing.
#[test]
fn a_freeze_of_drift_is_none_of_consolidation_wherever_the_last_plan_ended() {
    let mut objects = budgets(drifted(two("m7i.8xlarge", &[("p", "3")]), None), &none_for("Drifted"));
    let [host, mut claim] = node("other", "open", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand);
    let drift = json!({"type": "Drifted", "status": "True", "reason": "AMIDrift", "lastTransitionTime": "2026-11-21T11:40:00Z"});
    claim["status"]["conditions"].as_array_mut().unwrap().push(drift);
    objects.extend([pool("open", on_demand()), host, claim, running("q", "other", "3500m", "1Gi")]);
    let world = snapshot(&objects, catalogue(TYPES));
    let mut memory = Memory::default();
    let first = plan_with(&world, &memory);
    assert_eq!((first.commands[0].cause, &*first.commands[0].candidates[0].claim), (Cause::Drifted, "open-other"));
    memory.examined(first.resume);
    assert_eq!(goes(&plan_with(&world, &memory)), Some(Cause::Underutilized));
}

/// With a grace period, a drifted node goes whatever its pods say. It does not for being empty, or cheaper elsewhere.
#[test]
fn pods_are_passed_over_for_drift_alone() {
    let guarded = |of_pool: &Value| plan(&budgets(protected(drifted(idle(), Some("1h")), "d"), of_pool)).1;
    assert_eq!(goes(&guarded(&none_for("Drifted"))), None, "it would go as an empty one");
    assert_eq!(goes(&guarded(&json!([{"nodes": "100%"}]))), Some(Cause::Drifted));
    let busy = || two("m7i.8xlarge", &[("p", "3")]);
    let (_, held) = plan(&budgets(protected(drifted(busy(), Some("1h")), "p"), &none_for("Drifted")));
    assert_eq!((goes(&held), kept(&held).as_str()), (None, HELD));
    // while a command rests, its node drifts, and a pod on it asks to be left alone
    let (_, before) = plan(&busy());
    let command = before.commands.iter().find(|command| command.cause == Cause::Underutilized).unwrap();
    assert!(command.candidates.iter().any(|candidate| &*candidate.claim == CLAIM));
    let later = protected(drifted(busy(), Some("1h")), "p");
    let now = validate(command, &snapshot(&later, catalogue(TYPES)));
    assert!(matches!(now, Err(Invalid::Kept { reason: KeepReason::PodProtected { .. }, .. })), "{now:?}");
}

/// As in Karpenter: a node whose claim is lost is nobody's to disrupt. It makes no budget larger and, as long as it stays, none smaller.
#[test]
fn nodes_without_a_claim_are_no_part_of_a_budget() {
    let host = |name: &str| node(name, "default", "m7i.large", "us-east-1a", CapacityType::OnDemand);
    let [ready, _] = host("n3");
    let [ill, _] = host("n4");
    let ill = with(ill, &[("status.conditions", json!([{"type": "Ready", "status": "False"}]))]);
    let [gone, _] = host("n5");
    let gone = with(gone, &[("metadata.deletionTimestamp", json!(crate::world::NOW))]);
    let mut objects = budgets(vec![class(), pool("default", on_demand())], &json!([{"nodes": "50%"}]));
    objects.extend(["n1", "n2"].iter().flat_map(|name| host(name)));
    let left = |objects: &[Value]| {
        let all = allowed_disruptions(&snapshot(objects, catalogue(TYPES)));
        let empty = all.into_iter().find(|of| of.reason == Reason::Empty).unwrap();
        (empty.left, empty.consuming)
    };
    assert_eq!(left(&objects), (1, 0));
    objects.extend([ready, ill]);
    assert_eq!(left(&objects), (1, 0));
    objects.push(gone);
    assert_eq!(left(&objects), (0, 1), "it may have been one of them a moment ago");
}

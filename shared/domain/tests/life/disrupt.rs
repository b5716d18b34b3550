//! What `plan_disruption` promises, case by case and for random clusters.

use std::sync::Arc;

use karp_domain::api::NodePool;
use karp_domain::catalogue::{CapacityType, Price};
use karp_domain::cluster::{ExpirationGrace, Snapshot, budgets as budgets_of};
use karp_domain::disruption::{
    Act, Budgets, Cause, Command, DisruptionPlan, Execution, Failure, Invalid, KeepReason, Memory, Progress, Verdict,
    plan_disruption, plan_with, validate,
};
use karp_domain::scheduling::InFlightNode;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{self, TYPES, catalogue, class, node, pending, pool, running, snapshot, with};

pub(crate) fn on_demand() -> Value {
    json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}])
}

pub(crate) fn plan(objects: &[Value]) -> (Snapshot, DisruptionPlan) {
    let snapshot = snapshot(objects, catalogue(TYPES));
    let plan = plan_disruption(&snapshot);
    for command in &plan.commands {
        assert_eq!(validate(command, &snapshot), Ok(()), "a command must hold on the snapshot that it was made from");
        if command.cause == Cause::Underutilized {
            let before: Price = command.candidates.iter().filter_map(|c| c.price).sum();
            let worst = |node: &InFlightNode| node.offerings.iter().map(|o| o.price).max().unwrap_or_default();
            let after: Price = command.replacements.iter().map(worst).sum();
            assert!(
                after < before.scaled(950, 1000).max(Price::from_micro_dollars(1)),
                "whatever is launched, 5 % are saved"
            );
            let (many, few) = (command.candidates.len(), command.replacements.len());
            assert!(few < many || (few, many) == (1, 1), "{many} to {few}");
        }
    }
    (snapshot, plan)
}

fn keep(plan: &DisruptionPlan, claim: &str) -> KeepReason {
    let found = plan.verdicts.iter().find(|(candidate, _)| &*candidate.claim == claim);
    match found.map(|(_, verdict)| verdict.clone()) {
        Some(Verdict::Keep(reason)) => reason,
        other => panic!("{claim}: {other:?}"),
    }
}

/// A node on demand whose pod fits on a spot instance that costs less.
pub(crate) fn dear() -> Vec<Value> {
    let mut objects = vec![class(), pool("default", json!([]))];
    objects.extend(node("n1", "default", "c6g.large", "us-east-1a", CapacityType::OnDemand));
    objects.push(running("p", "n1", "1500m", "1Gi"));
    objects
}

/// Two nodes of a pool; `pods` run on n1.
pub(crate) fn two(kind: &str, pods: &[(&str, &str)]) -> Vec<Value> {
    let mut objects = vec![class(), pool("default", on_demand())];
    objects.extend(node("n1", "default", kind, "us-east-1a", CapacityType::OnDemand));
    objects.extend(node("n2", "default", "m7i.xlarge", "us-east-1b", CapacityType::OnDemand));
    objects.push(running("base", "n2", "2500m", "6Gi"));
    objects.extend(pods.iter().map(|(name, cpu)| running(name, "n1", cpu, "1Gi")));
    objects
}

#[test]
fn empty_nodes_go_together() {
    let mut objects = vec![class(), pool("default", on_demand())];
    for name in ["n1", "n2", "n3"] {
        objects.extend(node(name, "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    }
    objects.push(running("p", "n3", "3500m", "10Gi"));
    let (_, plan) = plan(&objects);
    assert_eq!(plan.commands.len(), 1);
    assert_eq!(plan.commands[0].cause, Cause::Empty);
    let nodes: Vec<_> = plan.commands[0].candidates.iter().filter_map(|c| c.node.as_deref()).collect();
    assert_eq!(nodes, ["n1", "n2"]);
}

#[test]
fn a_node_whose_pods_fit_elsewhere_is_deleted() {
    // what is left is as cheap as can be: no other type with this architecture holds both pods for less
    let mut objects = two("m7i.2xlarge", &[("p", "1")]);
    let amd = json!({"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]});
    objects[1]["spec"]["template"]["spec"]["requirements"].as_array_mut().unwrap().push(amd);
    let base = objects.iter_mut().find(|o| o["metadata"]["name"] == "base").unwrap();
    *base = running("base", "n2", "2500m", "9Gi");
    let (_, plan) = plan(&objects);
    assert_eq!(plan.commands[0].cause, Cause::Underutilized);
    assert!(plan.commands[0].replacements.is_empty());
    assert_eq!(plan.commands[0].candidates[0].node.as_deref(), Some("n1"));
    assert!(plan.commands[0].saving() > karp_domain::catalogue::Price::ZERO);
}

#[test]
fn a_node_that_is_too_big_is_replaced_by_a_cheaper_one() {
    let (_, plan) = plan(&two("m7i.8xlarge", &[("p", "3")]));
    let command = &plan.commands[0];
    assert_eq!(command.decision(), "replace");
    assert_eq!(command.replacements.len(), 1);
    assert!(!command.replacements[0].instance_types().iter().any(|t| &**t == "m7i.8xlarge"));
}

#[test]
fn a_node_that_is_as_cheap_as_can_be_stays() {
    let mut objects = vec![class(), pool("default", on_demand())];
    objects.extend(node("n1", "default", "t3.medium", "us-east-1a", CapacityType::OnDemand));
    objects.push(running("p", "n1", "1500m", "1Gi"));
    let (_, plan) = plan(&objects);
    assert!(plan.commands.is_empty());
    assert!(matches!(keep(&plan, "default-n1"), KeepReason::NoCheaperOffering { .. }));
}

#[test]
fn a_node_stays_to_which_a_pod_is_about_to_be_bound() {
    let objects = |conditions: Value| {
        let mut objects = vec![class(), pool("default", on_demand())];
        objects.extend(node("n1", "default", "m7i.large", "us-east-1a", CapacityType::OnDemand));
        let nominated = [("status.nominatedNodeName", json!("n1")), ("status.conditions", conditions)];
        objects.push(with(pending("p", "1", "1Gi"), &nominated));
        objects
    };
    let (_, stays) = plan(&objects(json!([])));
    assert!(matches!(keep(&stays, "default-n1"), KeepReason::Nominated { .. }));
    let gone = with(objects(json!([])).pop().unwrap(), &[("status.nominatedNodeName", json!("n2"))]);
    let (_, plan) = plan(&[&objects(json!([]))[..4], &[gone]].concat());
    assert_eq!(plan.commands.len(), 1);
}

#[test]
fn each_obstacle_has_its_reason() {
    type Check = fn(&KeepReason) -> bool;
    let annotation = ("metadata.annotations", json!({"karpenter.sh/do-not-disrupt": "true"}));
    let budget = json!({"kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "test"}}}, "status": {"disruptionsAllowed": 0}});
    let base = || two("m7i.2xlarge", &[("p", "1")]);
    let edit = |kind: &str, name: &str, more: &[(&str, Value)]| -> Vec<Value> {
        let matches = |o: &Value| o["kind"] == kind && o["metadata"]["name"] == name;
        base().into_iter().map(|o| if matches(&o) { with(o, more) } else { o }).collect()
    };
    let disruption = |value: Value| edit("NodePool", "default", &[("spec.disruption", value)]);
    let cases: Vec<(Vec<Value>, Check)> = vec![
        (edit("Pod", "p", std::slice::from_ref(&annotation)), |r| matches!(r, KeepReason::PodProtected { .. })),
        (edit("Node", "n1", std::slice::from_ref(&annotation)), |r| *r == KeepReason::NodeProtected),
        ([base(), vec![budget]].concat(), |r| matches!(r, KeepReason::PodBudget { .. })),
        (disruption(json!({"consolidateAfter": "Never", "budgets": []})), |r| *r == KeepReason::ConsolidationOff),
        (disruption(json!({"consolidateAfter": "2h", "budgets": []})), |r| matches!(r, KeepReason::Settling { .. })),
        (disruption(json!({"consolidateAfter": "0s", "consolidationPolicy": "WhenEmpty", "budgets": []})), |r| {
            *r == KeepReason::NotEmpty
        }),
        (disruption(json!({"consolidateAfter": "0s", "budgets": [{"nodes": "0"}]})), |r| {
            matches!(r, KeepReason::BudgetExhausted { .. })
        }),
        (
            disruption(
                json!({"consolidateAfter": "0s", "budgets": [{"nodes": "0", "schedule": "@daily", "duration": "13h"}]}),
            ),
            |r| matches!(r, KeepReason::BudgetExhausted { .. }),
        ),
        (edit("Node", "n1", &[("metadata.deletionTimestamp", json!(world::NOW))]), |r| *r == KeepReason::Leaving),
    ];
    for (at, (objects, check)) in cases.iter().enumerate() {
        let (_, plan) = plan(objects);
        let reason = keep(&plan, "default-n1");
        assert!(check(&reason), "case {at}: {reason}");
    }
}

#[test]
fn a_closed_window_lets_consolidation_through() {
    let budgets =
        json!({"consolidateAfter": "0s", "budgets": [{"nodes": "0", "schedule": "@daily", "duration": "11h"}]});
    let mut objects = two("m7i.2xlarge", &[("p", "1")]);
    objects[1] = with(objects[1].clone(), &[("spec.disruption", budgets)]);
    assert_eq!(plan(&objects).1.commands.len(), 1);
}

#[test]
fn expired_nodes_go_whatever_budgets_say() {
    let mut objects = two("m7i.2xlarge", &[("p", "1")]);
    objects[1] = with(objects[1].clone(), &[("spec.disruption.budgets", json!([{"nodes": "0"}]))]);
    let claim = objects.iter_mut().find(|o| o["kind"] == "NodeClaim").unwrap();
    *claim = with(claim.clone(), &[("spec.expireAfter", json!("30m"))]);
    let (_, expired) = plan(&objects);
    assert_eq!(expired.commands[0].cause, Cause::Expired);
    // nor does one wait for what was to replace it, gently: that may never be ready
    let node = objects.iter_mut().find(|o| o["kind"] == "Node").unwrap();
    *node = with(node.clone(), &[("spec.taints", json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]))]);
    let (_, tainted) = plan(&objects);
    assert_eq!(tainted.commands[0].cause, Cause::Expired);
    let claim = objects.iter_mut().find(|o| o["kind"] == "NodeClaim").unwrap();
    *claim = with(claim.clone(), &[("metadata.deletionTimestamp", json!(world::NOW))]);
    assert_eq!(keep(&plan(&objects).1, "default-n1"), KeepReason::Leaving, "it goes already");
}

const GRACE: &str = "metadata.annotations";

/// Nodes n1 to nCOUNT of a pool, all expired at 11:30 by their age, each with a pod that fills it.
fn aged(count: usize, grace: Option<&str>, budget: &str) -> Vec<Value> {
    let budgets = json!([{"nodes": budget, "reasons": ["Drifted"]}, {"nodes": "100%"}]);
    let mut default = with(pool("default", on_demand()), &[("spec.disruption.budgets", budgets)]);
    if let Some(grace) = grace {
        default = with(default, &[(GRACE, json!({"karp.sh/expiration-grace": grace}))]);
    }
    let mut objects = vec![class(), default];
    for name in (1..=count).map(|at| format!("n{at}")) {
        let [node, claim] = node(&name, "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand);
        let old = with(claim, &[("spec.expireAfter", json!("30m"))]);
        objects.extend([node, old, running(&format!("p-{name}"), &name, "3500m", "10Gi")]);
    }
    objects
}

#[test]
fn nodes_with_grace_are_replaced_gently_one_after_the_other() {
    let (_, forced) = plan(&aged(3, None, "1"));
    assert_eq!(forced.commands.iter().filter(|command| command.cause == Cause::Expired).count(), 3);
    let (_, gentle) = plan(&aged(3, Some("1h"), "1"));
    let [command] = &gentle.commands[..] else { panic!("{:?}", gentle.commands) };
    assert_eq!((command.cause, command.candidates.len(), command.replacements.len()), (Cause::Expiring, 1, 1));
    let (_, held) = plan(&aged(3, Some("1h"), "0"));
    assert!(held.commands.iter().all(|command| command.cause != Cause::Expiring));
    assert!(matches!(keep(&held, "default-n1"), KeepReason::BudgetExhausted { .. }));
    // when the grace is over they go by force, whatever budgets say
    let (_, over) = plan(&aged(3, Some("30m"), "0"));
    assert_eq!(over.commands.iter().filter(|command| command.cause == Cause::Expired).count(), 3);
}

#[test]
fn a_node_with_grace_waits_for_pods_that_ask_for_it() {
    let mut objects = aged(1, Some("1h"), "100%");
    let mine = json!({"karpenter.sh/do-not-disrupt": "true"});
    let pod = objects.pop().unwrap();
    objects.push(with(pod, &[("metadata.annotations", mine)]));
    let (_, waits) = plan(&objects);
    assert!(waits.commands.is_empty() && matches!(keep(&waits, "default-n1"), KeepReason::PodProtected { .. }));
}

#[test]
fn nodes_that_came_together_begin_to_leave_at_different_times() {
    let grace: ExpirationGrace = "10h".parse().unwrap();
    let mut begins: Vec<_> = (0..20).map(|at| grace.begin(&format!("uid-{at}"))).collect();
    begins.sort();
    begins.dedup();
    assert!(begins.len() > 15, "{begins:?}");
    assert!(
        begins[0] < jiff::SignedDuration::from_hours(2)
            && begins[begins.len() - 1] > jiff::SignedDuration::from_hours(3)
    );
    assert!(begins.iter().all(|begin| *begin < jiff::SignedDuration::from_hours(5)), "in the first half");
    let early = snapshot(&aged(3, Some("10h"), "100%"), catalogue(TYPES));
    let next = plan_disruption(&early).next_look.unwrap();
    assert!(next > early.now);
    assert!("-1h".parse::<ExpirationGrace>().is_err());
    assert!("soon".parse::<ExpirationGrace>().unwrap_err().to_string().contains("such as 24h"));
}

/// Some nodes of a pool with a pod each; of them the first few are ill since the given minute of the hour before.
fn ward(count: usize, ill: usize, condition: (&str, &str), minute: u32) -> Snapshot {
    let mut objects =
        vec![class(), with(pool("default", on_demand()), &[("spec.disruption.budgets", json!([{"nodes": "0"}]))])];
    for at in 1..=count {
        let name = format!("n{at}");
        let [mut node, claim] = node(&name, "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand);
        if at <= ill {
            let told = json!({"type": condition.0, "status": condition.1, "lastTransitionTime": format!("2026-11-21T11:{minute:02}:00Z")});
            let all = node["status"]["conditions"].as_array_mut().unwrap();
            all.retain(|known| known["type"] != condition.0);
            all.push(told);
        }
        objects.extend([node, claim, running(&format!("p-{name}"), &name, "3500m", "10Gi")]);
    }
    let mut snapshot = snapshot(&objects, catalogue(TYPES));
    snapshot.settings.repair = true;
    snapshot
}

#[test]
fn a_node_that_is_ill_for_too_long_goes_whatever_budgets_say() {
    let goes = |snapshot: &Snapshot| {
        let plan = plan_disruption(snapshot);
        plan.commands.iter().for_each(|command| assert_eq!(validate(command, snapshot), Ok(())));
        plan.commands.iter().filter(|command| command.cause == Cause::Unhealthy).count()
    };
    assert_eq!(goes(&ward(10, 2, ("Ready", "Unknown"), 30)), 2);
    assert_eq!(goes(&ward(10, 2, ("Ready", "False"), 31)), 0, "it is borne for 30 minutes");
    assert_eq!(goes(&ward(10, 2, ("AcceleratedHardwareReady", "False"), 50)), 2);
    assert_eq!(goes(&ward(10, 2, ("MemoryPressure", "True"), 0)), 0);
    assert_eq!(goes(&ward(1, 1, ("KernelReady", "False"), 0)), 1, "one of a few may be ill");
    let mut off = ward(10, 2, ("Ready", "Unknown"), 30);
    off.settings.repair = false;
    assert_eq!(goes(&off), 0);
    let soon = ward(10, 2, ("Ready", "False"), 31);
    assert!(plan_disruption(&soon).next_look.unwrap() <= soon.now + jiff::SignedDuration::from_mins(1));
}

#[test]
fn a_drain_is_cut_short_where_its_node_falls_ill() {
    let hurried = |ill: usize, left: bool, minute: u32| {
        let mut snapshot = ward(10, ill, ("Ready", "Unknown"), minute);
        let first = snapshot.claims.iter_mut().find(|claim| &*claim.name == "default-n1").unwrap();
        Arc::make_mut(first).deleting = left.then_some(snapshot.now);
        let plan = plan_disruption(&snapshot);
        assert!(!left || keep(&plan, "default-n1") == KeepReason::Leaving);
        plan.hurried.iter().map(|one| one.claim.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(hurried(1, true, 30), ["default-n1"]);
    assert!(hurried(1, true, 31).is_empty(), "it is borne for 30 minutes");
    assert!(hurried(1, false, 30).is_empty(), "it is repaired, which cuts its drain short anyway");
    assert!(hurried(3, true, 30).is_empty(), "the fault may be elsewhere");
}

#[test]
fn none_is_repaired_while_too_many_are_ill() {
    let snapshot = ward(10, 3, ("NetworkingReady", "False"), 0);
    let plan = plan_disruption(&snapshot);
    assert!(plan.commands.iter().all(|command| command.cause != Cause::Unhealthy));
    let reason = keep(&plan, "default-n1");
    assert_eq!(reason.to_string(), "more than 20% nodes are unhealthy in the nodepool (3 of 10)");
    // a command that was made before the third one fell ill no longer holds
    let two = ward(10, 2, ("NetworkingReady", "False"), 0);
    let command = plan_disruption(&two).commands.into_iter().find(|command| command.cause == Cause::Unhealthy).unwrap();
    assert!(validate(&command, &snapshot).is_err());
}

#[test]
fn a_drifted_node_is_replaced_even_by_a_dearer_one() {
    let mut objects =
        vec![class(), pool("default", json!([{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]))];
    objects.extend(node("n1", "default", "c6g.large", "us-east-1a", CapacityType::Spot));
    objects.push(running("p", "n1", "1500m", "1Gi"));
    let claim = objects.iter_mut().find(|o| o["kind"] == "NodeClaim").unwrap();
    claim["status"]["conditions"].as_array_mut().unwrap().push(
        json!({"type": "Drifted", "status": "True", "reason": "RequirementsDrifted", "lastTransitionTime": "2026-11-21T11:30:00Z"}),
    );
    let (_, plan) = plan(&objects);
    assert_eq!(plan.commands[0].cause, Cause::Drifted);
    assert_eq!(plan.commands[0].replacements.len(), 1);
}

#[test]
fn spot_is_not_replaced_by_spot_without_the_gate_or_with_few_types() {
    let mut objects = vec![class(), pool("default", json!([]))];
    objects.extend(node("n1", "default", "m7i.8xlarge", "us-east-1a", CapacityType::Spot));
    objects.push(running("p", "n1", "1", "1Gi"));
    let mut snapshot = snapshot(&objects, catalogue(TYPES));
    assert_eq!(keep(&plan_disruption(&snapshot), "default-n1"), KeepReason::SpotToSpotOff);
    snapshot.settings.spot_to_spot = true;
    assert!(matches!(keep(&plan_disruption(&snapshot), "default-n1"), KeepReason::TooFewSpotTypes { .. }));
}

/// With the gate, spot is replaced by spot where EC2 can choose among fifteen types that are cheaper; by no more of them, so that the next look
/// finds none that is cheaper still.
#[test]
fn spot_is_replaced_by_spot_where_enough_types_are_cheaper() {
    // the pool takes types however much dearer they are than the cheapest
    let any_price = ("metadata.annotations", json!({"karp.sh/price-tolerance": "10000%"}));
    let families = ["c5", "m5", "r5", "c6i", "m6i", "r6i", "c7i", "m7i", "r7i"];
    let names: Vec<String> =
        families.iter().flat_map(|f| ["large", "2xlarge"].map(|size| format!("{f}.{size}"))).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).chain(["m7i.8xlarge"]).collect();
    let mut objects = vec![class(), with(pool("default", json!([])), &[any_price])];
    objects.extend(node("n1", "default", "m7i.8xlarge", "us-east-1a", CapacityType::Spot));
    objects.push(running("p", "n1", "1", "1Gi"));
    let mut snapshot = snapshot(&objects, catalogue(&all));
    snapshot.settings.spot_to_spot = true;
    let plan = plan_disruption(&snapshot);
    let command = plan.commands.first().unwrap_or_else(|| panic!("{}", keep(&plan, "default-n1")));
    assert_eq!(validate(command, &snapshot), Ok(()));
    let [new] = &*command.replacements else { panic!("{command:?}") };
    assert_eq!((new.capacity_type(), new.instance_types().len()), (Some(CapacityType::Spot), 15));
    let before = command.candidates[0].price.unwrap();
    assert!(new.offerings.iter().all(|offering| offering.price < before), "whichever is launched");
}

/// While many pods wait for the places that were planned for them, nothing is given up that they may need; drift goes on.
#[test]
fn nothing_is_consolidated_while_many_pods_arrive() {
    let with_arriving = |count: usize, created: &str| {
        let mut objects = two("m7i.2xlarge", &[("p", "1")]);
        let made = ("metadata.creationTimestamp", json!(created));
        // new nodes are made for them, in another zone than those that are there
        let zone = ("spec.nodeSelector", json!({"topology.kubernetes.io/zone": "us-east-1c"}));
        let more = [made, zone];
        objects.extend((0..count).map(|at| with(pending(&format!("new{at}"), "100m", "64Mi"), &more)));
        objects
    };
    let told = |objects: &[Value]| {
        let plan = plan_disruption(&snapshot(objects, catalogue(TYPES)));
        plan.verdicts.into_iter().find(|(one, _)| &*one.claim == "default-n1").map(|(_, verdict)| verdict).unwrap()
    };
    let arriving = |verdict: &Verdict| matches!(verdict, Verdict::Keep(KeepReason::PodsArriving { .. }));
    assert_eq!(told(&with_arriving(201, world::NOW)), Verdict::Keep(KeepReason::PodsArriving { pods: 201 }));
    assert!(!arriving(&told(&with_arriving(200, world::NOW))), "so many are no burst");
    assert!(!arriving(&told(&with_arriving(201, "2026-11-21T11:55:00Z"))), "they have waited for five minutes");
    // a command that was found before they came does not hold any more
    let before = two("m7i.2xlarge", &[("p", "1")]);
    let command = plan(&before).1.commands.remove(0);
    let now = validate(&command, &snapshot(&with_arriving(201, world::NOW), catalogue(TYPES)));
    assert!(matches!(now, Err(Invalid::Kept { reason: KeepReason::PodsArriving { .. }, .. })), "{now:?}");
    let mut outdated = with_arriving(201, world::NOW);
    outdated.extend(drifted("default", "n3", "2026-11-21T11:30:00Z"));
    let plan = plan_disruption(&snapshot(&outdated, catalogue(TYPES)));
    assert!(plan.commands.iter().any(|command| command.cause == Cause::Drifted), "{:?}", plan.commands);
}

#[test]
fn on_demand_may_become_spot() {
    let (_, plan) = plan(&dear());
    assert_eq!(plan.commands[0].replacements[0].capacity_type(), Some(CapacityType::Spot));
}

#[test]
fn foreign_nodes_are_no_candidates() {
    let mut objects = two("m7i.2xlarge", &[]);
    for claim in objects.iter_mut().filter(|o| o["kind"] == "NodeClaim") {
        *claim = with(claim.clone(), &[("spec.nodeClassRef.group", json!("eks.amazonaws.com"))]);
    }
    let (_, plan) = plan(&objects);
    assert!(plan.commands.is_empty() && plan.verdicts.is_empty());
}

/// Nodes of one type, each with one pod that fills a part of it.
fn many(count: usize, kind: &str, cpu: &str) -> Vec<Value> {
    let mut objects = vec![class(), pool("default", on_demand())];
    for n in 0..count {
        let name = format!("n{n}");
        objects.extend(node(&name, "default", kind, "us-east-1a", CapacityType::OnDemand));
        objects.push(running(&format!("p{n}"), &name, cpu, "512Mi"));
    }
    objects
}

#[test]
fn many_half_used_nodes_become_few_in_one_command() {
    let (_, plan) = plan(&many(12, "m7i.2xlarge", "2"));
    let command = &plan.commands[0];
    assert!(command.candidates.len() >= 8, "{} of 12 go", command.candidates.len());
    assert!(command.saving() > Price::ZERO);
}

#[test]
fn two_nodes_become_one_when_neither_could_go_alone() {
    // each holds more than half of a c6g.2xlarge, and nothing smaller would do for either
    let mut objects = vec![class(), pool("default", on_demand())];
    for n in ["n1", "n2"] {
        objects.extend(node(n, "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand));
        objects.push(running(&format!("p-{n}"), n, "4500m", "1Gi"));
    }
    let types = catalogue(&["m7i.2xlarge", "c7i.4xlarge"]);
    // the floor per eviction is more than that saves
    assert!(plan_disruption(&snapshot(&objects, types.clone())).commands.is_empty());
    objects[1]["metadata"]["annotations"]["karp.sh/consolidation-floor"] = json!("0%");
    let snapshot = snapshot(&objects, types);
    let plan = plan_disruption(&snapshot);
    let command = &plan.commands[0];
    assert_eq!((command.candidates.len(), command.replacements.len()), (2, 1));
    assert_eq!(command.replacements[0].instance_types().iter().map(|t| &**t).collect::<Vec<_>>(), ["c7i.4xlarge"]);
    assert_eq!(validate(command, &snapshot), Ok(()));
}

/// A type that is a ninth cheaper would do for nodes of fifteen small pods each as for one with a single large pod.
#[test]
fn the_more_pods_a_node_holds_the_more_must_be_saved() {
    let planned = |objects: &[Value]| plan_disruption(&snapshot(objects, catalogue(&["m7i.4xlarge", "c7i.4xlarge"])));
    let mut full = vec![class(), pool("default", on_demand())];
    for name in ["full1", "full2"] {
        full.extend(node(name, "default", "m7i.4xlarge", "us-east-1a", CapacityType::OnDemand));
        full.extend((0..15).map(|n| running(&format!("{name}-{n}"), name, "800m", "1Gi")));
    }
    let plan = planned(&full);
    assert!(plan.commands.is_empty() && plan.verdicts.len() == 2);
    for (candidate, verdict) in &plan.verdicts {
        let Verdict::Keep(KeepReason::TooLittleSaved { saving, least }) = verdict else { panic!("{verdict:?}") };
        assert_eq!((*least, saving < least), (candidate.price.unwrap().scaled(45, 100), true));
    }
    let mut lone = full.clone();
    lone.extend(node("lone", "default", "m7i.4xlarge", "us-east-1a", CapacityType::OnDemand));
    lone.push(running("one", "lone", "12", "8Gi"));
    let plan = planned(&lone);
    let going: Vec<&str> = plan.commands.iter().flat_map(|c| &c.candidates).filter_map(|c| c.node.as_deref()).collect();
    assert_eq!(going, ["lone"]);
    full[1]["metadata"]["annotations"]["karp.sh/consolidation-floor"] = json!("5%");
    assert!(!planned(&full).commands.is_empty());
}

/// A node of half the size saves just what a move of many pods must save more than.
#[test]
fn what_saves_no_more_than_the_floor_says_so() {
    let mut objects = vec![class(), pool("default", on_demand())];
    objects[1]["metadata"]["annotations"]["karp.sh/consolidation-floor"] = json!("100%");
    objects.extend(node("n1", "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand));
    objects.push(running("p", "n1", "3", "1Gi"));
    let plan = plan_disruption(&snapshot(&objects, catalogue(&["m7i.2xlarge", "m7i.xlarge"])));
    let KeepReason::TooLittleSaved { saving, least } = keep(&plan, "default-n1") else { panic!("{:?}", plan.verdicts) };
    assert_eq!(saving, least);
}

#[test]
fn a_set_never_takes_more_than_the_budget() {
    for (budget, most) in [("3", 3), ("10%", 2), ("0", 0)] {
        let mut objects = many(12, "m7i.2xlarge", "2");
        objects[1] = with(objects[1].clone(), &[("spec.disruption.budgets", json!([{"nodes": budget}]))]);
        let (_, plan) = plan(&objects);
        let taken: usize = plan.commands.iter().map(|command| command.candidates.len()).sum();
        assert!(taken <= most, "{budget}: {taken}");
        assert_eq!(taken > 0, most > 0, "{budget}");
    }
}

/// It may have been initialized a moment ago, which the watch has not shown yet.
#[test]
fn a_node_that_goes_uses_the_budget_up_also_before_it_is_seen_to_be_initialized() {
    let budgets = json!({"consolidateAfter": "0s", "budgets": [{"nodes": "1"}]});
    for (going, least) in [(true, 0), (false, 1)] {
        let mut objects = vec![class(), with(pool("default", on_demand()), &[("spec.disruption", budgets.clone())])];
        let [mut fresh, claim] = node("fresh", "default", "m7i.large", "us-east-1a", CapacityType::OnDemand);
        fresh["metadata"]["labels"].as_object_mut().unwrap().remove("karpenter.sh/initialized");
        if going {
            fresh["spec"]["taints"] = json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]);
        }
        objects.extend([fresh, claim]);
        objects.extend(node("idle", "default", "m7i.large", "us-east-1a", CapacityType::OnDemand));
        let (_, plan) = plan(&objects);
        assert_eq!(plan.commands.len(), least, "{going}: {:?}", plan.verdicts);
    }
}

#[test]
fn a_pod_of_any_kind_may_ask_to_be_left_alone() {
    let mut objects = two("m7i.2xlarge", &[("p", "1")]);
    let daemon = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]);
    let wish = json!({"karpenter.sh/do-not-disrupt": "true"});
    let owned = [("metadata.ownerReferences", daemon), ("metadata.annotations", wish)];
    objects.push(with(running("d", "n1", "10m", "10Mi"), &owned));
    assert!(matches!(keep(&plan(&objects).1, "default-n1"), KeepReason::PodProtected { .. }));
}

pub(crate) fn drifted(pool_name: &str, name: &str, since: &str) -> Vec<Value> {
    let [node, mut claim] = node(name, pool_name, "m7i.xlarge", "us-east-1a", CapacityType::OnDemand);
    claim["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "Drifted", "status": "True", "reason": "AMIDrift", "lastTransitionTime": since}));
    vec![node, claim, running(&format!("p-{name}"), name, "3", "10Gi")]
}

#[test]
fn one_pool_that_fails_does_not_starve_the_others() {
    let mut objects = vec![class(), pool("a", on_demand()), pool("b", on_demand())];
    objects.extend(drifted("a", "n1", "2026-11-21T11:10:00Z"));
    objects.extend(drifted("b", "n2", "2026-11-21T11:20:00Z"));
    let mut snapshot = snapshot(&objects, catalogue(TYPES));
    let mut memory = Memory::default();
    let first = |snapshot: &Snapshot, memory: &Memory| -> Option<Command> {
        plan_with(snapshot, memory).commands.into_iter().find(|command| command.cause == Cause::Drifted)
    };
    let one = first(&snapshot, &memory).unwrap();
    assert_eq!(&*one.candidates[0].pool, "a", "the longest drifted first");
    memory.failed(&one, snapshot.now);
    // of several nodes each may fail at a time of its own
    memory.failed(&one, snapshot.now + jiff::SignedDuration::from_millis(1));
    let other = first(&snapshot, &memory).unwrap();
    assert_eq!(&*other.candidates[0].pool, "b");
    let plan = plan_with(&snapshot, &memory);
    let until = snapshot.now + jiff::SignedDuration::from_mins(1);
    assert_eq!(keep(&plan, "a-n1"), KeepReason::PoolPaused { pool: "a".into(), until });
    snapshot.now = until;
    assert_eq!(&*first(&snapshot, &memory).unwrap().candidates[0].pool, "a", "tried again after its pause");
    memory.failed(&one, until);
    assert_eq!(memory.pause(&"a".into(), Cause::Drifted, until), Some(until + jiff::SignedDuration::from_mins(2)));
    memory.succeeded(&one, until);
    assert_eq!(memory.pause(&"a".into(), Cause::Drifted, until), None);
}

#[test]
fn a_move_that_did_not_last_is_not_made_again_at_once() {
    let mut objects = two("m7i.2xlarge", &[("p", "1")]);
    let mut snapshot = snapshot(&objects, catalogue(TYPES));
    let mut memory = Memory::default();
    let moves = |snapshot: &Snapshot, memory: &Memory| plan_with(snapshot, memory).commands;
    let minutes = jiff::SignedDuration::from_mins;
    let command = moves(&snapshot, &memory).remove(0);
    assert_eq!(&*command.candidates[0].claim, "default-n1");
    // kube-scheduler put the pods so that the same nodes are needed
    memory.succeeded(&command, snapshot.now);
    let until = snapshot.now + minutes(15);
    assert_eq!(keep(&plan_with(&snapshot, &memory), "default-n1"), KeepReason::CameBack { until });
    // another pod is another matter
    objects.push(running("new", "n2", "100m", "1Gi"));
    let grown = world::snapshot(&objects, catalogue(TYPES));
    assert_eq!(moves(&grown, &memory).len(), 1);
    snapshot.now = until;
    let again = moves(&snapshot, &memory).remove(0);
    assert_eq!(again.candidates, command.candidates, "tried again after its rest");
    memory.succeeded(&again, snapshot.now);
    let until = snapshot.now + minutes(30);
    assert_eq!(keep(&plan_with(&snapshot, &memory), "default-n1"), KeepReason::CameBack { until });
}

#[test]
fn nodes_go_only_when_what_replaces_them_is_initialized() {
    let start = world::at(world::NOW);
    let after = |seconds: i64| start + jiff::SignedDuration::from_secs(seconds);
    let run = Execution::new(Cause::Underutilized, start);
    use Progress::{Gone, Initialized, Starting};
    let open = Budgets::new();
    assert!(matches!(run.next(&[Initialized], &[], &open, start), Act::Wait { .. }), "pods may still be on their way");
    assert!(matches!(run.next(&[Starting, Initialized], &[], &open, after(60)), Act::Wait { .. }));
    assert_eq!(run.next(&[Initialized, Initialized], &[], &open, after(60)), Act::Delete);
    assert_eq!(run.next(&[Initialized, Gone], &[], &open, after(60)), Act::RollBack(Failure::ReplacementGone));
    assert_eq!(run.next(&[Starting], &[], &open, after(1200)), Act::RollBack(Failure::TooLate));
    let ends = [Starting, Initialized, Gone].map(|progress| Failure::TooLate.ends(progress));
    assert_eq!(ends, [true, false, false], "what never starts is never empty either, and would stay");
    assert!(!Failure::ReplacementGone.ends(Starting), "it may start yet");
    assert_eq!(run.next(&[], &[], &open, after(1)), Act::Delete);
}

/// A freeze that begins while a replacement starts, or a budget that somebody closes to stop what goes on, holds for the nodes that are on their way.
#[test]
fn a_budget_that_closes_takes_a_command_back() {
    let start = world::at(world::NOW);
    let act = |cause, budgets: Value, seconds: i64| {
        let spec = with(pool("default", json!([])), &[("spec.disruption.budgets", budgets)]);
        let pool: NodePool = serde_json::from_value(spec).unwrap();
        let pools = Budgets::from([("default".into(), budgets_of(&pool))]);
        let now = start + jiff::SignedDuration::from_secs(seconds);
        Execution::new(cause, start).next(&[Progress::Initialized], &[], &pools, now)
    };
    let closed = Act::RollBack(Failure::BudgetClosed { pool: "default".into() });
    // at noon; it opens two minutes later
    let freeze = json!([{"nodes": "10%"}, {"nodes": "0", "schedule": "2 12 * * *", "duration": "1h"}]);
    assert_eq!(act(Cause::Drifted, freeze.clone(), 60), Act::Delete);
    assert_eq!(act(Cause::Drifted, freeze.clone(), 120), closed);
    assert_eq!(act(Cause::Underutilized, freeze.clone(), 120), closed);
    assert_eq!(act(Cause::Expired, freeze, 120), Act::Delete, "what goes by force asks no budget");
    let of_one = |reason: &str| json!([{"nodes": "0", "reasons": [reason]}]);
    assert_eq!(act(Cause::Drifted, of_one("Drifted"), 60), closed);
    assert_eq!(act(Cause::Drifted, of_one("Empty"), 60), Act::Delete);
    assert_eq!(act(Cause::Drifted, json!([{"nodes": "1"}]), 60), Act::Delete, "it is the one that goes");
}

#[test]
fn pods_that_came_between_the_choice_and_the_taint_take_a_command_back() {
    let start = world::at(world::NOW);
    let wish = ("metadata.annotations", json!({"karpenter.sh/do-not-disrupt": "true"}));
    let objects = [running("p", "n1", "1", "1Gi"), with(running("q", "n1", "1", "1Gi"), &[wish])];
    let pods = snapshot(&objects, catalogue(&["m7i.large"])).pods;
    let act = |cause, pods: &[_]| {
        Execution::new(cause, start).next(&[], pods, &Budgets::new(), start + jiff::SignedDuration::from_secs(2))
    };
    assert!(matches!(act(Cause::Empty, &pods[..1]), Act::RollBack(Failure::PodArrived { .. })));
    assert_eq!(act(Cause::Underutilized, &pods[..1]), Act::Delete);
    assert!(matches!(act(Cause::Underutilized, &pods), Act::RollBack(Failure::PodProtected { .. })));
}

fn a_cluster() -> impl Strategy<Value = Vec<Value>> {
    let kinds = prop::sample::select(vec!["m7i.large", "m7i.2xlarge", "c6g.2xlarge", "m7i.8xlarge", "c6g.large"]);
    let zone = prop::sample::select(vec!["us-east-1a", "us-east-1b"]);
    let cpus = prop::collection::vec(prop::sample::select(vec!["100m", "500m", "1"]), 0..4);
    let budget = prop::sample::select(vec!["100%", "10%", "1", "0"]);
    (prop::collection::vec((kinds, zone, any::<bool>(), cpus), 0..5), budget).prop_map(|(nodes, budget)| {
        let disruption = json!({"consolidateAfter": "0s", "budgets": [{"nodes": budget}]});
        let mut objects = vec![class(), with(pool("default", json!([])), &[("spec.disruption", disruption)])];
        for (at, (kind, zone, spot, cpus)) in nodes.iter().enumerate() {
            let name = format!("n{at}");
            let bought = if *spot { CapacityType::Spot } else { CapacityType::OnDemand };
            objects.extend(node(&name, "default", kind, zone, bought));
            objects.extend(cpus.iter().enumerate().map(|(n, cpu)| running(&format!("p{at}-{n}"), &name, cpu, "256Mi")));
        }
        objects
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_hold_budgets_and_every_candidate_has_a_verdict(objects in a_cluster()) {
        let (snapshot, plan) = plan(&objects);
        prop_assert_eq!(plan.verdicts.len(), snapshot.claims.len());
        let disrupted: usize = plan.commands.iter().map(|c| c.candidates.len()).sum();
        let total = u32::try_from(snapshot.nodes.len()).unwrap();
        let allowed = snapshot.pools[0].budgets[0].nodes.of(total);
        prop_assert!(disrupted <= allowed as usize);
        prop_assert!(plan.next_look.is_some() || snapshot.claims.is_empty());
    }

    #[test]
    fn the_order_of_the_input_does_not_matter(objects in a_cluster()) {
        let mut turned = objects.clone();
        turned.reverse();
        let one = plan_disruption(&snapshot(&objects, catalogue(TYPES)));
        prop_assert_eq!(one, plan_disruption(&snapshot(&turned, catalogue(TYPES))));
    }
}

#[test]
fn a_large_cluster_is_planned_within_the_bound() {
    let mut objects = vec![class(), pool("default", on_demand())];
    for n in 0..400 {
        let name = format!("n{n}");
        objects.extend(node(&name, "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand));
        let pods = if n % 2 == 0 { 3 } else { 7 };
        objects.extend((0..pods).map(|p| running(&format!("p{n}-{p}"), &name, "1", "1Gi")));
    }
    let plan = plan_disruption(&snapshot(&objects, catalogue(TYPES)));
    let taken: usize = plan.commands.iter().map(|command| command.candidates.len()).sum();
    assert!((50..=100).contains(&taken), "{taken}");
}

//! Commands that rest: what is planned meanwhile sees them as begun.

use jiff::SignedDuration;
use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::Snapshot;
use karp_domain::disruption::{Cause, Command, Decided, DisruptionPlan, KeepReason, Verdict, plan_disruption};
use serde_json::{Value, json};

use crate::world::{TYPES, catalogue, class, node, pool, running, snapshot, with};

const REST: SignedDuration = SignedDuration::from_secs(15);

/// Four alike nodes: one empty, three with one small pod each.
fn objects() -> Vec<Value> {
    let on_demand = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let mut all = vec![class(), pool("default", on_demand)];
    for name in ["n1", "n2", "n3", "n4"] {
        all.extend(node(name, "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    }
    for (pod, node) in [("p2", "n2"), ("p3", "n3"), ("p4", "n4")] {
        all.push(running(pod, node, "1", "1Gi"));
    }
    all
}

fn nodes(command: &Command) -> Vec<&str> {
    command.candidates.iter().filter_map(|candidate| candidate.node.as_deref()).collect()
}

fn verdict<'p>(plan: &'p DisruptionPlan, node: &str) -> &'p Verdict {
    let found = plan.verdicts.iter().find(|(candidate, _)| candidate.node.as_deref() == Some(node));
    &found.expect("a verdict").1
}

/// Plans as a controller does until nothing is found, everything at one moment; answers the commands that rest then.
fn all_at_once(snapshot: &Snapshot) -> (Decided, Vec<Command>) {
    let (mut decided, mut found) = (Decided::default(), Vec::new());
    loop {
        let mut seen = snapshot.clone();
        decided.apply(&mut seen);
        let plan = plan_disruption(&seen);
        if plan.commands.is_empty() {
            return (decided, found);
        }
        found.extend(plan.commands.clone());
        assert!(decided.take(plan.commands, seen.now).is_empty(), "all of these rest");
        assert!(found.len() < 10, "{found:?}");
    }
}

#[test]
fn further_commands_are_found_while_one_rests() {
    let snapshot = snapshot(&objects(), catalogue(TYPES));
    let (mut decided, found) = all_at_once(&snapshot);
    assert_eq!((found[0].cause, nodes(&found[0])), (Cause::Empty, vec!["n1"]));
    assert!(found[1..].iter().all(|command| command.cause == Cause::Underutilized), "{found:?}");
    // each node is taken once, and one is left for the three pods
    let mut taken: Vec<&str> = found.iter().flat_map(nodes).collect();
    taken.sort_unstable();
    assert_eq!(taken.len(), 3, "{found:?}");
    taken.dedup();
    assert_eq!(taken.len(), 3, "{found:?}");
    // a plan sees what rests as on its way out
    let mut seen = snapshot.clone();
    decided.apply(&mut seen);
    let plan = plan_disruption(&seen);
    assert_eq!(*verdict(&plan, "n1"), Verdict::Keep(KeepReason::Leaving));
    assert_eq!(decided.next(REST), Some(snapshot.now + REST));
    assert!(decided.rested(REST, snapshot.now + SignedDuration::from_secs(14)).is_empty());
    assert_eq!(decided.rested(REST, snapshot.now + REST), found, "in the order in which they were decided");
    assert_eq!(decided.next(REST), None);
    let mut seen = snapshot.clone();
    decided.apply(&mut seen);
    assert_eq!(seen.nodes, snapshot.nodes, "nothing is left of them");
}

#[test]
fn a_clock_that_goes_back_does_not_lengthen_a_rest() {
    let snapshot = snapshot(&objects(), catalogue(TYPES));
    let (mut decided, found) = all_at_once(&snapshot);
    assert_eq!(decided.rested(REST, snapshot.now - SignedDuration::from_hours(1)), found);
}

#[test]
fn what_rests_counts_for_budgets() {
    let mut objects = objects();
    objects[1] = with(objects[1].clone(), &[("spec.disruption.budgets", json!([{ "nodes": "2" }]))]);
    let (_, found) = all_at_once(&snapshot(&objects, catalogue(TYPES)));
    assert_eq!(found.iter().flat_map(nodes).count(), 2, "{found:?}");
}

#[test]
fn nothing_that_needs_places_is_decided_beside_a_replacement() {
    let mut objects = objects();
    // a large node with a small pod, and room nowhere else: it is replaced
    objects.extend(node("n5", "default", "m7i.8xlarge", "us-east-1a", CapacityType::OnDemand));
    objects.push(running("p5", "n5", "6", "8Gi"));
    let snapshot = snapshot(&objects, catalogue(TYPES));
    let mut plan = plan_disruption(&snapshot);
    assert_eq!(plan.commands[0].cause, Cause::Empty);
    let mut decided = Decided::default();
    let mut replacing = None;
    for _ in 0..5 {
        let mut seen = snapshot.clone();
        decided.apply(&mut seen);
        plan = plan_disruption(&seen);
        let Some(command) = plan.commands.pop() else { break };
        if !command.replacements.is_empty() {
            replacing.get_or_insert_with(|| command.clone());
        }
        if decided.admits(&command) {
            decided.take(vec![command], seen.now);
        }
    }
    let replacing = replacing.expect("the large node is replaced");
    let rest = decided.rested(REST, snapshot.now + REST);
    let at = rest.iter().position(|command| *command == replacing).expect("it was taken");
    assert!(rest[at + 1..].iter().all(|command| command.cause == Cause::Empty), "{rest:?}");
}

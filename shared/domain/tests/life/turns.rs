//! A search looks at so much in one pass and goes on in the next: every node has its turn within as many passes as its number says.

use jiff::SignedDuration;
use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::Snapshot;
use karp_domain::disruption::{Cause, Decided, Memory, plan_with};
use serde_json::json;

use crate::world::{self, TYPES, catalogue, class, node, pool, running, with};

/// What a pass looks at, in hosts and pods (`WORK` of the search for sets).
const WORK: usize = 600_000;
/// Nodes that are tried together.
const TOGETHER: usize = 100;

/// Nodes that are full enough for nothing to be cheaper, and one whose many small pods fit on the others: it saves least per eviction, so that it is
/// looked at last.
fn all_but_the_last_stay(count: usize) -> Snapshot {
    let only = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.xlarge"]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let mut objects =
        vec![class(), with(pool("default", only), &[("spec.disruption.budgets", json!([{"nodes": "100%"}]))])];
    for at in 0..count {
        let name = format!("n{at:04}");
        objects.extend(node(&name, "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
        objects.push(running(&format!("p-{name}"), &name, "3", "1Gi"));
    }
    objects.extend(node("last", "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    objects.extend((0..12).map(|at| running(&format!("small-{at}"), "last", "100m", "64Mi")));
    world::snapshot(&objects, catalogue(TYPES))
}

#[test]
fn a_node_that_could_be_cheaper_has_its_turn_however_many_stay() {
    for count in [100, 1000, 2000] {
        let snapshot = all_but_the_last_stay(count);
        let hosts = snapshot.nodes.len();
        // each half, quarter and so on of a hundred is tried, down to each alone
        let in_one = WORK / (2 * (hosts + TOGETHER));
        let most = hosts.div_ceil(in_one) + 1;
        let (mut memory, mut passes) = (Memory::default(), 0);
        let command = loop {
            passes += 1;
            let plan = plan_with(&snapshot, &memory);
            memory.examined(plan.resume);
            if let Some(command) = plan.commands.into_iter().next() {
                break command;
            }
            assert!(passes < most, "{count} nodes: not looked at within {most} passes of {in_one} nodes");
        };
        println!("{count} nodes: found in pass {passes} of {most}");
        let claims: Vec<&str> = command.candidates.iter().map(|candidate| &*candidate.claim).collect();
        assert_eq!(
            (command.cause, claims, command.replacements.len()),
            (Cause::Underutilized, vec!["default-last"], 0)
        );
        assert!(count < 1000 || passes > 1, "one pass looked at all {count}");
    }
}

/// A node that saves most per eviction, one that could go as well, and a full one that keeps both; one may go at a time.
fn two_could_go() -> Snapshot {
    let only = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.xlarge"]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let budgets = json!([{"nodes": "1"}]);
    let mut objects = vec![class(), with(pool("default", only), &[("spec.disruption.budgets", budgets)])];
    for (name, pods) in [("first", 1), ("second", 4), ("third", 10)] {
        objects.extend(node(name, "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
        objects.extend((0..pods).map(|at| running(&format!("{name}-{at}"), name, "200m", "64Mi")));
    }
    world::snapshot(&objects, catalogue(TYPES))
}

#[test]
fn a_command_that_never_holds_keeps_no_other_waiting() {
    const REST: SignedDuration = SignedDuration::from_secs(15);
    let (mut memory, mut decided) = (Memory::default(), Decided::default());
    let mut snapshot = two_could_go();
    let start = snapshot.now;
    let mut void = 0;
    let begun = loop {
        let rested = decided.rested(REST, snapshot.now);
        let (front, other): (Vec<_>, Vec<_>) =
            rested.into_iter().partition(|command| &*command.candidates[0].claim == "default-first");
        void += front.len();
        if let Some(command) = other.into_iter().next() {
            break command;
        }
        assert!(snapshot.now < start + SignedDuration::from_mins(5), "only the first is ever tried: {void} times");
        let mut seen = snapshot.clone();
        decided.apply(&mut seen);
        let plan = plan_with(&seen, &memory);
        memory.examined(plan.resume);
        let admitted = plan.commands.into_iter().filter(|command| decided.admits(command)).collect();
        assert_eq!(decided.take(admitted, snapshot.now), []);
        snapshot.now += SignedDuration::from_secs(1);
    };
    assert_eq!((void, begun.cause, &*begun.candidates[0].claim), (1, Cause::Underutilized, "default-second"));
}

/// Each pool lets one node go at a time: one command takes one of each.
#[test]
fn a_budget_that_is_used_up_keeps_no_other_pool_waiting() {
    let on_demand = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let budgets = json!([{"nodes": "1"}]);
    let mut objects = vec![class()];
    for (name, kind) in [("dear", "m7i.8xlarge"), ("cheap", "m7i.2xlarge")] {
        objects.push(with(pool(name, on_demand.clone()), &[("spec.disruption.budgets", budgets.clone())]));
        for host in [format!("{name}-1"), format!("{name}-2")] {
            objects.extend(node(&host, name, kind, "us-east-1a", CapacityType::OnDemand));
            objects.push(running(&format!("p-{host}"), &host, "200m", "64Mi"));
        }
    }
    let plan = plan_with(&world::snapshot(&objects, catalogue(TYPES)), &Memory::default());
    let [command] = &plan.commands[..] else { panic!("{:?}", plan.commands) };
    let pools: Vec<&str> = command.candidates.iter().map(|candidate| &*candidate.pool).collect();
    assert_eq!((command.cause, pools, command.replacements.len()), (Cause::Underutilized, vec!["dear", "cheap"], 0));
}

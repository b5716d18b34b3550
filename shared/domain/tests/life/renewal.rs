//! Nodes that are not as their pools want them: each has its turn, and those of static pools are renewed one for one.

use std::collections::BTreeSet;
use std::sync::Arc;

use karp_domain::api::{NodeClaim, labels};
use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::{Claim, PodKey, Settings, Snapshot};
use karp_domain::disruption::{
    Cause, Command, KeepReason, Memory, Method, Verdict, plan_disruption, plan_with, replaced, until_stable, validate,
};
use karp_domain::scheduling::{Misfit, replicas};
use serde_json::{Value, json};

use crate::world::{self, TYPES, catalogue, class, node, pool, running, with};

const SINCE: &str = "2026-11-21T11:10:00Z";

/// A node and its claim, which has drifted.
fn drifted(pool: &str, name: &str, kind: &str, since: &str) -> [Value; 2] {
    let [node, mut claim] = node(name, pool, kind, "us-east-1a", CapacityType::OnDemand);
    let drift = json!({"type": "Drifted", "status": "True", "reason": "NodePoolDrifted", "message": "", "lastTransitionTime": since});
    claim["status"]["conditions"].as_array_mut().unwrap().push(drift);
    [node, claim]
}

fn snapshot(objects: &[Value]) -> Snapshot {
    let settings = Settings { static_capacity: true, ..Settings::default() };
    Snapshot { settings, ..world::snapshot(objects, catalogue(TYPES)) }
}

fn keep(snapshot: &Snapshot, claim: &str) -> KeepReason {
    let found = plan_disruption(snapshot).verdicts.into_iter().find(|(candidate, _)| &*candidate.claim == claim);
    match found {
        Some((_, Verdict::Keep(reason))) => reason,
        other => panic!("{claim}: {other:?}"),
    }
}

/// A static pool of some nodes, the first of which has drifted and holds a pod.
fn fixed(nodes: usize, replicas: usize, more: &[(&str, Value)]) -> Vec<Value> {
    let requirements = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}]);
    let own = with(pool("fixed", requirements), &[("spec.replicas", json!(replicas))]);
    let mut objects = vec![class(), with(own, more)];
    objects.extend(drifted("fixed", "n0", "m7i.large", SINCE));
    objects.push(running("p", "n0", "500m", "256Mi"));
    for at in 1..nodes {
        objects.extend(node(&format!("n{at}"), "fixed", "m7i.large", "us-east-1a", CapacityType::OnDemand));
    }
    objects
}

#[test]
fn a_drifted_node_of_a_static_pool_is_renewed_one_for_one() {
    let snapshot = snapshot(&fixed(3, 3, &[]));
    let plan = plan_disruption(&snapshot);
    let [command] = &*plan.commands else { panic!("{plan:?}") };
    let nodes: Vec<&str> = command.candidates.iter().filter_map(|candidate| candidate.node.as_deref()).collect();
    assert_eq!((command.cause, nodes), (Cause::Drifted, vec!["n0"]));
    let [successor] = &*command.replacements else { panic!("{command:?}") };
    let launched = &replicas(&self::snapshot(&fixed(3, 4, &[])), &BTreeSet::new()).create[0];
    assert_eq!((&successor.pool, &successor.offerings), (&launched.pool, &launched.offerings), "as the pool launches");
    assert_eq!(validate(command, &snapshot), Ok(()));
    for other in ["fixed-n1", "fixed-n2"] {
        assert_eq!(keep(&snapshot, other), KeepReason::Static, "empty, and still there");
    }
}

#[test]
fn nodes_of_static_pools_stay_where_they_cannot_be_renewed() {
    let limit = |nodes: u32| fixed(3, 3, &[("spec.limits", json!({"nodes": nodes}))]);
    let reason = keep(&snapshot(&limit(3)), "fixed-n0");
    assert!(
        matches!(&reason, KeepReason::NoSuccessor { misfit, .. } if matches!(**misfit, Misfit::Limit { .. })),
        "both have to be there for a while: {reason}"
    );
    assert_eq!(plan_disruption(&snapshot(&limit(4))).commands.len(), 1);
    let unready = json!({"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": SINCE, "reason": "r", "message": ""}]});
    let reason = keep(&snapshot(&fixed(3, 3, &[("status", unready)])), "fixed-n0");
    let closed = |misfit: &Misfit| *misfit == Misfit::PoolNotReady;
    assert!(matches!(&reason, KeepReason::NoSuccessor { misfit, .. } if closed(misfit)), "{reason}");
    let none = ("spec.disruption.budgets", json!([{"nodes": "0", "reasons": ["Drifted"]}]));
    assert!(matches!(keep(&snapshot(&fixed(3, 3, &[none])), "fixed-n0"), KeepReason::BudgetExhausted { .. }));
    let surplus = snapshot(&fixed(4, 3, &[]));
    assert_eq!(keep(&surplus, "fixed-n0"), KeepReason::AfterAnother, "one too many goes first");
    let off = world::snapshot(&fixed(3, 3, &[]), catalogue(TYPES));
    assert_eq!(keep(&off, "fixed-n0"), KeepReason::Static, "without the gate");
}

/// Adds the claims of a command's replacements.
fn begin(snapshot: &mut Snapshot, command: &Command) {
    for (at, node) in command.replacements.iter().enumerate() {
        let mut made = NodeClaim::new(&format!("new-{at}"), node.claim_spec());
        made.metadata.uid = Some(format!("uid-new-{at}"));
        made.metadata.labels = Some(node.claim_labels());
        made.metadata.annotations = Some(node.annotations.clone());
        snapshot.claims.push(Arc::new(Claim::from_kube(&made).unwrap()));
    }
}

#[test]
fn a_node_and_the_one_that_takes_its_place_count_once() {
    let mut snapshot = snapshot(&fixed(3, 3, &[]));
    let before = snapshot.clone();
    begin(&mut snapshot, &plan_disruption(&before).commands[0]);
    let counted = |snapshot: &Snapshot| {
        let plan = replicas(snapshot, &replaced(snapshot));
        (plan.create.len(), plan.delete)
    };
    assert_eq!(replaced(&snapshot), BTreeSet::from(["fixed-n0".into()]));
    assert_eq!(counted(&snapshot), (0, vec![]), "its taint is not there yet");
    assert_eq!(keep(&snapshot, "fixed-n0"), KeepReason::AfterAnother, "nothing is launched for it once more");
    let mut tainted = snapshot.clone();
    for node in tainted.nodes.iter_mut().filter(|node| &*node.name == "n0") {
        Arc::make_mut(node).taints.push(labels::disrupted_taint());
    }
    assert_eq!(counted(&tainted), (0, vec![]));
    // the command was taken back: what came to nothing goes, and not what runs
    let claim = Arc::make_mut(snapshot.claims.last_mut().unwrap());
    claim.annotations.clear();
    claim.provider_id = Some("aws:///us-east-1a/i-new".into());
    assert_eq!(counted(&snapshot), (0, vec!["new-0".into()]));
    // of nodes that do not differ otherwise, the drifted one goes
    let mut empty = self::snapshot(&fixed(4, 3, &[]));
    empty.pods.clear();
    assert_eq!(counted(&empty), (0, vec!["fixed-n0".into()]));
}

#[test]
fn all_drifted_nodes_of_a_static_pool_are_renewed_in_the_end() {
    let mut objects = fixed(2, 4, &[]);
    objects.extend(drifted("fixed", "n2", "m7i.large", "2026-11-21T11:20:00Z"));
    objects.extend(drifted("fixed", "n3", "m7i.large", "2026-11-21T11:30:00Z"));
    let path = until_stable(&snapshot(&objects), Method::Sets);
    assert!(path.is_stable);
    let gone: Vec<_> = path.commands().flat_map(|(command, _)| &command.candidates).map(|one| &*one.claim).collect();
    assert_eq!(BTreeSet::from_iter(gone), BTreeSet::from(["fixed-n0", "fixed-n2", "fixed-n3"]));
    assert_eq!(path.end.claims.iter().filter(|claim| claim.pool.as_deref() == Some("fixed")).count(), 4);
    assert!(path.end.pods.iter().all(|pod| pod.node.is_some()));
}

/// Drifted nodes, of which none can be moved away but the last: what runs on the others fits nowhere else.
fn stuck(count: usize) -> Snapshot {
    let nowhere = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}]);
    let mut objects =
        vec![class(), with(pool("default", nowhere), &[("spec.disruption.budgets", json!([{"nodes": "100%"}]))])];
    for at in 0..=count {
        let name = format!("n{at:03}");
        let minute = |at: usize| format!("2026-11-21T11:{:02}:{:02}Z", at / 60, at % 60);
        objects.extend(drifted("default", &name, "m7i.xlarge", &minute(at)));
        let cpu = if at == count { "1" } else { "3" };
        objects.push(running(&format!("p-{name}"), &name, cpu, "1Gi"));
    }
    snapshot(&objects)
}

/// Plans so often, remembering where each plan ended; answers the drift commands.
fn passes(snapshot: &Snapshot, count: usize) -> Vec<Vec<Arc<str>>> {
    let mut memory = Memory::default();
    let pass = |_| {
        let plan = plan_with(snapshot, &memory);
        memory.examined(plan.resume);
        let drift = plan.commands.into_iter().filter(|command| command.cause == Cause::Drifted);
        drift.flat_map(|command| command.candidates).map(|candidate| candidate.claim).collect()
    };
    (0..count).map(pass).collect()
}

#[test]
fn nodes_that_cannot_be_replaced_do_not_starve_those_behind_them() {
    let found = passes(&stuck(120), 3);
    assert_eq!(found.concat(), ["default-n120".into()], "within three passes of 50 nodes: {found:?}");
}

#[test]
fn a_node_with_a_pod_that_cannot_be_read_stays_and_holds_nobody_up() {
    let mut objects = vec![class(), pool("default", json!([]))];
    for name in ["n0", "n1"] {
        objects.extend(node(name, "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    }
    let mut snapshot = snapshot(&objects);
    let pod = PodKey::new("default", "odd");
    snapshot.unread.insert("n0".into(), pod.clone());
    assert_eq!(keep(&snapshot, "default-n0"), KeepReason::PodUnreadable { pod });
    let plan = plan_disruption(&snapshot);
    let gone: Vec<&str> = plan.commands[0].candidates.iter().map(|candidate| &*candidate.claim).collect();
    assert_eq!((plan.commands[0].cause, gone), (Cause::Empty, vec!["default-n1"]));
}

/// Nothing is carried out of what is planned, as when a command turns out not to hold each time.
#[test]
fn a_command_that_never_begins_does_not_starve_those_behind_it() {
    let mut objects = vec![class(), pool("default", json!([]))];
    for name in ["n0", "n1", "n2"] {
        objects.extend(drifted("default", name, "m7i.xlarge", SINCE));
        objects.push(running(&format!("p-{name}"), name, "3", "1Gi"));
    }
    let found = passes(&snapshot(&objects), 5);
    let names = |pass: &[Arc<str>]| pass.iter().map(ToString::to_string).collect::<Vec<_>>();
    let found: Vec<Vec<String>> = found.iter().map(|pass| names(pass)).collect();
    assert_eq!(found[..3].concat(), ["default-n0", "default-n1", "default-n2"]);
    assert_eq!(found[3..].concat(), ["default-n0"], "a pass for consolidation, and all over again: {found:?}");
}

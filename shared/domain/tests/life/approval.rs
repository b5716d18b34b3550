//! What pools with policy Balanced say of moves: which they approve of, and with what score.

use karp_domain::catalogue::CapacityType;
use karp_domain::disruption::{KeepReason, Verdict, approve, plan_disruption, validate};
use serde_json::{Value, json};

use crate::world::{TYPES, catalogue, class, node, pool, running, snapshot, with};

/// A node of the pool that is far too large for its pod.
fn large(policy: &str) -> Vec<Value> {
    let on_demand = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let policy = ("spec.disruption.consolidationPolicy", json!(policy));
    let mut objects = vec![class(), with(pool("default", on_demand), &[policy])];
    objects.extend(node("n1", "default", "m7i.8xlarge", "us-east-1a", CapacityType::OnDemand));
    objects.push(running("p", "n1", "3", "1Gi"));
    objects
}

#[test]
fn a_balanced_pool_says_how_much_a_move_is_worth() {
    let snapshot = snapshot(&large("Balanced"), catalogue(TYPES));
    let plan = plan_disruption(&snapshot);
    let [command] = &plan.commands[..] else { panic!("{plan:?}") };
    let approvals = approve(command, &snapshot).expect("it holds");
    let [approval] = &approvals[..] else { panic!("{approvals:?}") };
    // most of what the pool costs is saved by disturbing all of it
    assert_eq!(&*approval.pool, "default");
    assert!((500..=1000).contains(&approval.score_permille), "{approval:?}");
    let told = approval.to_string();
    assert_eq!(told, format!("the saving is worth the disruption (score {} of 500)", approval.score_permille));
}

#[test]
fn other_pools_are_not_asked() {
    let snapshot = snapshot(&large("WhenEmptyOrUnderutilized"), catalogue(TYPES));
    let plan = plan_disruption(&snapshot);
    assert_eq!(plan.commands.len(), 1);
    assert_eq!(approve(&plan.commands[0], &snapshot), Ok(Vec::new()));
}

#[test]
fn a_move_that_is_not_worth_it_is_refused_with_its_score() {
    let mut objects = large("Balanced");
    // a second node of the pool carries nearly all of its cost and little of its disruption
    objects.extend(node("n2", "default", "m7i.48xlarge", "us-east-1a", CapacityType::OnDemand));
    objects.push(running("wide", "n2", "180", "700Gi"));
    let dear = ("metadata.annotations", json!({"controller.kubernetes.io/pod-deletion-cost": "1000000000"}));
    let at = objects.iter().position(|object| object["metadata"]["name"] == "p").unwrap();
    objects[at] = with(objects[at].clone(), &[dear]);
    let snapshot = snapshot(&objects, catalogue(&[TYPES, &["m7i.48xlarge"]].concat()));
    let plan = plan_disruption(&snapshot);
    assert!(plan.commands.is_empty(), "{:?}", plan.commands);
    let kept = plan.verdicts.iter().any(|(candidate, verdict)| {
        candidate.node.as_deref() == Some("n1")
            && matches!(verdict, Verdict::Keep(KeepReason::NotWorthIt { score_permille }) if *score_permille < 500)
    });
    assert!(kept, "{:?}", plan.verdicts);
    // what would hold for any other pool is no command of this one
    let other = crate::world::snapshot(&large("WhenEmptyOrUnderutilized"), catalogue(TYPES));
    let command = &plan_disruption(&other).commands[0];
    assert!(validate(command, &snapshot).is_err());
}

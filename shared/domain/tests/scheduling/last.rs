//! What is remembered of a solution: which claims pods are for, and whether the pods of a node that leaves have a place.

use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::{PodKey, Snapshot};
use karp_domain::scheduling::{LastPlan, Solution, Told, solve};
use serde_json::{Value, json};

use crate::world::{TYPES, catalogue, class, node, pending, pool, running, snapshot, with};

/// A node with one pod, that another node with the same pods takes the place of.
fn leaving(pods: &[Value]) -> (Snapshot, Solution) {
    let mut objects = vec![class(), pool("default", json!([]))];
    let [node, claim] = node("n1", "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand);
    let taints = json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]);
    objects.extend([claim, with(node, &[("spec.taints", taints)])]);
    objects.extend_from_slice(pods);
    let snapshot = snapshot(&objects, catalogue(TYPES));
    let solution = solve(&snapshot);
    (snapshot, solution)
}

fn key(name: &str) -> PodKey {
    PodKey::new("default", name)
}

fn home(plan: &LastPlan, node: &str, pods: &[&str], ready: &[&str]) -> Option<Vec<String>> {
    let pods: Vec<PodKey> = pods.iter().copied().map(key).collect();
    let home = plan.home(node, &pods, |claim| ready.contains(&claim))?;
    Some(home.iter().map(ToString::to_string).collect())
}

#[test]
fn pods_of_a_node_that_leaves_have_a_home_once_its_claim_is_ready() {
    let (snapshot, solution) = leaving(&[running("p", "n1", "1", "1Gi")]);
    let mut plan = LastPlan::begin(&snapshot, &solution);
    plan.made("c1".into(), &solution.nodes[0]);
    assert!(!plan.end(&solution), "its only node has a claim");
    assert_eq!(plan.of_claim("c1").collect::<Vec<_>>(), [&key("p")]);
    assert_eq!(home(&plan, "n1", &["p"], &[]), None, "its node is not ready");
    assert_eq!(home(&plan, "n1", &["p"], &["c1"]), Some(vec!["c1".to_owned()]));
    assert_eq!(home(&plan, "n1", &[], &[]), Some(Vec::new()), "no pod is left to wait for");
    assert_eq!(home(&plan, "n2", &["p"], &["c1"]), None, "the plan was made with that node");
    assert_eq!(home(&LastPlan::default(), "n1", &["p"], &["c1"]), None, "there was no plan");
}

#[test]
fn pods_without_a_claim_have_no_home() {
    let (snapshot, solution) = leaving(&[running("p", "n1", "1", "1Gi")]);
    let mut plan = LastPlan::begin(&snapshot, &solution);
    assert!(plan.end(&solution), "no claim could be made");
    assert_eq!(home(&plan, "n1", &["p"], &["c1"]), None);
    let (snapshot, solution) = leaving(&[running("p", "n1", "1", "1Gi"), running("big", "n1", "500", "1Gi")]);
    let mut plan = LastPlan::begin(&snapshot, &solution);
    plan.made("c1".into(), &solution.nodes[0]);
    assert!(!plan.end(&solution), "what was refused was refused before");
    assert_eq!(home(&plan, "n1", &["p", "big"], &["c1"]), None, "nothing holds one of them");
}

#[test]
fn nothing_is_told_of_a_pod_whose_claim_could_not_be_made() {
    let (snapshot, solution) = leaving(&[running("p", "n1", "1", "1Gi"), pending("big", "500", "1Gi")]);
    let told = |plan: &LastPlan| -> Vec<String> {
        let one = |(pod, told): (&PodKey, Told<'_>)| match told {
            Told::Claim(name) | Told::Node(name) => format!("{} goes to {name}", pod.name),
            Told::Nowhere(refused) => format!("{} goes nowhere", refused.pod.name),
        };
        plan.told(&solution).into_iter().map(one).collect()
    };
    let mut plan = LastPlan::begin(&snapshot, &solution);
    assert_eq!(told(&plan), ["big goes nowhere"]);
    plan.made("c1".into(), &solution.nodes[0]);
    assert_eq!(told(&plan), ["p goes to c1", "big goes nowhere"]);
}

#[test]
fn pods_are_for_claims_whose_node_is_not_open_yet() {
    let mut objects = vec![class(), pool("default", json!([]))];
    objects.extend(node("open", "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    objects.push(pending("p", "1", "1Gi"));
    let plan_of = |objects: &[Value]| {
        let snapshot = snapshot(objects, catalogue(TYPES));
        let solution = solve(&snapshot);
        assert_eq!(solution.placements.len(), 1, "{solution:?}");
        LastPlan::begin(&snapshot, &solution)
    };
    assert_eq!(plan_of(&objects).claims().count(), 0, "the node is open: kube-scheduler needs no word");
    objects[3]["status"]["conditions"]
        .as_array_mut()
        .expect("conditions")
        .retain(|condition| condition["type"] != "Initialized");
    let plan = plan_of(&objects);
    assert_eq!(plan.planned().collect::<Vec<_>>(), [&key("p")]);
}

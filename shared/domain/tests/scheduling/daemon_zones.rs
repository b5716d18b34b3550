//! Daemons that are in some zones, or on nodes bought in some way: what they take there, and that nodes go elsewhere where that is cheaper.

use std::collections::BTreeSet;
use std::sync::Arc;

use karp_domain::catalogue::{CapacityType, Offering};
use karp_domain::scheduling::{InFlightNode, Solution, explain, replicas, solve};
use serde_json::{Value, json};

use crate::world::{TYPES, catalogue, class, created, pending, pool, snapshot, with};

const ZONE: &str = "topology.kubernetes.io/zone";
const MARKET: &str = "karpenter.sh/capacity-type";

/// A daemon set on nodes with these labels. It takes more than a pod of [`tight`] leaves of the smallest node that holds it.
fn selective(name: &str, selector: &Value) -> Value {
    json!({"kind": "DaemonSet", "metadata": {"name": name, "namespace": "kube-system"}, "spec": {"selector": {}, "template": {
        "spec": {"nodeSelector": selector, "containers": [{"name": "c", "resources": {"requests": {"cpu": "150m"}}}]}}}})
}

/// Three pods that fill a node of 2 CPU to what a daemon would need, in a pool that may have three such nodes, and not three larger ones.
fn tight(more: &[Value]) -> Vec<Value> {
    let pods = ["a", "b", "c"].map(|name| pending(name, "1900m", "14Gi"));
    let bounded = with(pool("default", json!([])), &[("spec.limits", json!({"cpu": "12"}))]);
    [vec![class(), bounded], pods.to_vec(), more.to_vec()].concat()
}

fn smallest_of_each(solution: &Solution) -> Vec<Arc<str>> {
    solution.nodes.iter().map(|node| node.instance_types()[0].clone()).collect()
}

fn zones_of(node: &InFlightNode) -> BTreeSet<&str> {
    node.offerings.iter().map(|offering| &*offering.zone.name).collect()
}

#[test]
fn nodes_go_beside_the_zones_of_a_daemon_where_that_is_cheaper() {
    let free = solve(&snapshot(&tight(&[]), catalogue(TYPES)));
    assert_eq!(smallest_of_each(&free), ["r7i.large"; 3].map(Arc::from));
    let known = snapshot(&tight(&[selective("agent", &json!({ZONE: "us-east-1b"}))]), catalogue(TYPES));
    let solution = solve(&known);
    assert!(solution.unschedulable.is_empty(), "{:?}", solution.unschedulable);
    assert_eq!((smallest_of_each(&solution), solution.price()), (smallest_of_each(&free), free.price()));
    for node in &solution.nodes {
        assert_eq!(zones_of(node), BTreeSet::from(["us-east-1a", "us-east-1c"]));
        // the claim is what EC2 is asked by
        assert!(!node.requirements.admits(ZONE, "us-east-1b"), "{}", node.requirements);
    }
    // while EC2 is asked, the claims are as large as they were planned
    let mut next = known;
    next.claims.extend(solution.nodes.iter().enumerate().map(|(at, node)| created(node, &format!("n{at}"))));
    let later = solve(&next);
    assert_eq!((later.placements.len(), later.nodes.len(), later.unschedulable.len()), (3, 0, 0));
}

#[test]
fn nodes_that_are_large_enough_anywhere_stay_open_to_all_zones() {
    let daemon = selective("agent", &json!({ZONE: "us-east-1b"}));
    let objects = [class(), pool("default", json!([])), pending("p", "1", "1Gi"), daemon];
    let node = solve(&snapshot(&objects, catalogue(TYPES))).nodes.remove(0);
    assert_eq!(zones_of(&node).len(), 3);
    assert!(node.requirements.get(ZONE).is_none(), "{}", node.requirements);
}

#[test]
fn a_daemon_takes_nothing_where_no_node_has_it() {
    let free = solve(&snapshot(&tight(&[]), catalogue(TYPES)));
    let nowhere = snapshot(&tight(&[selective("agent", &json!({ZONE: "us-east-1x"}))]), catalogue(TYPES));
    assert_eq!(solve(&nowhere), free);
    // the zone is there, and none of the types that would do is sold in it
    let gone = |name: &str, offering: &Offering| name != "t3.nano" && &*offering.zone.name == "us-east-1b";
    let not_sold = |more: &[Value]| snapshot(&tight(more), catalogue(TYPES).without(gone));
    let daemon = selective("agent", &json!({ZONE: "us-east-1b"}));
    assert_eq!(solve(&not_sold(&[daemon])), solve(&not_sold(&[])));
}

#[test]
fn daemons_that_never_meet_are_not_added_up() {
    let each = |first: &str, second: &str| {
        let daemons = [("one", first), ("other", second)].map(|(name, zone)| selective(name, &json!({ZONE: zone})));
        let pods = ["a", "b", "c"].map(|name| pending(name, "1750m", "14Gi"));
        let bounded = with(pool("default", json!([])), &[("spec.limits", json!({"cpu": "12"}))]);
        let objects = [vec![class(), bounded], pods.to_vec(), daemons.to_vec()].concat();
        solve(&snapshot(&objects, catalogue(TYPES)))
    };
    let apart = each("us-east-1a", "us-east-1b");
    assert!(apart.unschedulable.is_empty());
    assert!(apart.nodes.iter().all(|node| zones_of(node).len() == 3), "one of them fits beside a pod, in any zone");
    let together = each("us-east-1a", "us-east-1a");
    assert!(together.nodes.iter().all(|node| !zones_of(node).contains("us-east-1a")));
}

#[test]
fn nodes_are_bought_otherwise_than_a_daemon_selects() {
    let daemon = selective("agent", &json!({MARKET: "spot"}));
    let objects = [class(), pool("default", json!([])), pending("p", "1900m", "14Gi"), daemon];
    let solution = solve(&snapshot(&objects, catalogue(TYPES)));
    let node = &solution.nodes[0];
    assert_eq!(&*node.instance_types()[0], "r7i.large");
    assert!(node.offerings.iter().all(|offering| offering.capacity_type == CapacityType::OnDemand));
    assert!(!node.requirements.admits(MARKET, "spot"), "{}", node.requirements);
}

#[test]
fn a_pod_goes_where_no_daemon_has_its_port() {
    let port = json!([{"name": "c", "ports": [{"containerPort": 80, "hostPort": 9100}], "resources": {"requests": {"cpu": "1"}}}]);
    let daemon =
        with(selective("agent", &json!({ZONE: "us-east-1b"})), &[("spec.template.spec.containers", port.clone())]);
    let pod = with(pending("web", "1", "1Gi"), &[("spec.containers", port)]);
    let known = snapshot(&[class(), pool("default", json!([])), daemon, pod], catalogue(TYPES));
    let solution = solve(&known);
    assert!(solution.unschedulable.is_empty(), "{:?}", solution.unschedulable);
    assert!(!solution.nodes[0].requirements.admits(ZONE, "us-east-1b"), "{}", solution.nodes[0].requirements);
    assert!(explain(&known, &known.pods[0], &solution)[0].left > 0);
    let mut next = known;
    next.claims.push(created(&solution.nodes[0], "n"));
    assert_eq!((solve(&next).placements.len(), solve(&next).nodes.len()), (1, 0));
}

#[test]
fn replicas_are_made_where_their_daemons_fit() {
    let large = with(
        selective("agent", &json!({ZONE: "us-east-1b"})),
        &[("spec.template.spec.containers", json!([{"name": "c", "resources": {"requests": {"cpu": "3"}}}]))],
    );
    let only = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}]);
    let fixed = with(pool("default", only), &[("spec.replicas", json!(2))]);
    let plan = replicas(&snapshot(&[class(), fixed, large], catalogue(TYPES)), &BTreeSet::new());
    assert_eq!(plan.create.len(), 2, "{plan:?}");
    assert!(plan.create.iter().all(|node| !node.requirements.admits(ZONE, "us-east-1b")));
}

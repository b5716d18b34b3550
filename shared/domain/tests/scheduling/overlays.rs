//! NodeOverlays in decisions: each pool buys at its own prices and with its own capacities.

use karp_domain::api::{NodeOverlay, labels, requirement_specs};
use karp_domain::catalogue::{CapacityType, Overlay, PriceSource};
use karp_domain::cluster::{Snapshot, Unreadable};
use karp_domain::disruption::plan_disruption;
use karp_domain::scheduling::{InFlightNode, Target, solve};
use serde_json::{Value, json};

use crate::world::{self, TYPES, catalogue, class, node, pending, pool, running, snapshot, with};

const FUSE: &str = "example.com/fuse";

#[allow(clippy::needless_pass_by_value, reason = "callers write the value in place")]
fn read(name: &str, spec: Value) -> Result<Overlay, Unreadable> {
    let object =
        json!({"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": name}, "spec": spec});
    Overlay::from_kube(&serde_json::from_value::<NodeOverlay>(object).unwrap())
}

/// An overlay on what has one of some values of a label.
fn on(name: &str, (key, values): (&str, &[&str]), more: &[(&str, Value)]) -> Overlay {
    let spec = json!({"requirements": [{"key": key, "operator": "In", "values": values}]});
    read(name, with(spec, more)).unwrap()
}

fn on_demand(more: &[Value]) -> Value {
    let mut all = vec![json!({"key": labels::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]})];
    all.extend(more.iter().cloned());
    Value::Array(all)
}

/// A world with overlays, and those of them that were left out.
fn overlaid(objects: &[Value], overlays: &[Overlay]) -> (Snapshot, Vec<String>) {
    let mut snapshot = snapshot(objects, catalogue(TYPES));
    let conflicts = snapshot.overlay(overlays);
    (snapshot, conflicts.into_iter().map(|conflict| conflict.overlay.to_string()).collect())
}

fn only_node(snapshot: &Snapshot) -> InFlightNode {
    let solution = solve(snapshot);
    assert!(solution.unschedulable.is_empty(), "{:?}", solution.unschedulable);
    let [node] = solution.nodes.try_into().expect("one node");
    node
}

#[test]
fn a_pool_buys_what_is_cheapest_at_its_own_prices() {
    let objects = [class(), pool("red", on_demand(&[])), pending("p", "1500m", "3Gi")];
    let plain = only_node(&snapshot(&objects, catalogue(TYPES)));
    assert_ne!(&*plain.offerings[0].instance_type, "m7i.8xlarge");
    assert!(!plain.annotations.contains_key(labels::PRICE_OVERLAY_APPLIED));
    // a fleet of large nodes that is paid already
    let paid = on("paid", (labels::INSTANCE_TYPE, &["m7i.8xlarge"]), &[("priceAdjustment", json!("-99%"))]);
    let (snapshot, conflicts) = overlaid(&objects, std::slice::from_ref(&paid));
    assert_eq!(conflicts, [""; 0]);
    let node = only_node(&snapshot);
    assert_eq!(&*node.offerings[0].instance_type, "m7i.8xlarge");
    assert_eq!((node.price, node.offerings[0].source), (node.offerings[0].price, PriceSource::Overlaid));
    assert_eq!(node.annotations[labels::PRICE_OVERLAY_APPLIED], "true");
    // it is another pool's
    let of_blue = with(serde_json::to_value(&objects[1]).unwrap(), &[("metadata.name", json!("blue"))]);
    let blue = Overlay { requirements: [labels::NODE_POOL].map(|key| one(key, "blue")).into_iter().collect(), ..paid };
    let (snapshot, _) = overlaid(&objects, std::slice::from_ref(&blue));
    assert_eq!(only_node(&snapshot).offerings, plain.offerings);
    // and draws pods there
    let (snapshot, _) = overlaid(&[&objects[..], &[of_blue]].concat(), &[blue]);
    assert_eq!(&*only_node(&snapshot).pool, "blue");
}

fn one(key: &str, value: &str) -> karp_domain::requirement::Requirement {
    karp_domain::requirement::Requirement::only(key, [value])
}

#[test]
fn what_a_pool_asks_of_its_types_does_not_stretch_an_overlay() {
    let families = json!({"key": labels::INSTANCE_FAMILY, "operator": "In", "values": ["m7i", "r7i"]});
    let objects = [class(), pool("red", on_demand(&[families]))];
    let (snapshot, _) =
        overlaid(&objects, &[on("r", (labels::INSTANCE_FAMILY, &["r7i"]), &[("price", json!("0.001"))])]);
    let catalogue = snapshot.catalogues.of("default", Some("red")).unwrap();
    let source = |name: &str| catalogue.get(name).unwrap().offerings[0].source;
    assert_eq!(source("r7i.large"), PriceSource::Overlaid);
    assert_eq!(source("m7i.large"), PriceSource::Estimated);
}

#[test]
fn capacity_that_only_overlays_know_holds_pods() {
    let pod = with(
        pending("p", "1", "1Gi"),
        &[(
            "spec.containers",
            json!([{"name": "c", "resources": {
        "requests": {"cpu": "1", "memory": "1Gi"}, "limits": {FUSE: "2"}}}]),
        )],
    );
    let objects = [class(), pool("red", on_demand(&[])), pod];
    assert_eq!(solve(&snapshot(&objects, catalogue(TYPES))).unschedulable.len(), 1);
    let fuse = on("fuse", (labels::INSTANCE_FAMILY, &["c7i"]), &[("capacity", json!({FUSE: "2"}))]);
    let (snapshot, _) = overlaid(&objects, std::slice::from_ref(&fuse));
    let node = only_node(&snapshot);
    assert!(node.instance_types().iter().all(|name| name.starts_with("c7i.")), "{:?}", node.instance_types());
    // the node is on its way: its claim holds the pod, and no other node is made
    let claim = json!({
        "kind": "NodeClaim", "apiVersion": "karpenter.sh/v1",
        "metadata": {"name": "red-1", "uid": "x", "labels": {labels::NODE_POOL: "red"}, "creationTimestamp": world::NOW},
        "spec": {"requirements": requirement_specs(&node.requirements), "resources": {"requests": node.requests},
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}},
    });
    let (snapshot, _) = overlaid(&[&objects[..], &[claim]].concat(), &[fuse]);
    let solution = solve(&snapshot);
    assert_eq!((solution.nodes.len(), solution.unschedulable.len()), (0, 0));
    assert_eq!(solution.placements[0].target, Target::Claim("red-1".into()));
}

#[test]
fn a_node_is_worth_what_its_pool_pays() {
    let mut objects = vec![class(), pool("red", on_demand(&[])), running("p", "n1", "900m", "2Gi")];
    objects.extend(node("n1", "red", "m7i.8xlarge", "us-east-1a", CapacityType::OnDemand));
    assert_eq!(plan_disruption(&snapshot(&objects, catalogue(TYPES))).commands.len(), 1);
    let paid = on("paid", (labels::INSTANCE_TYPE, &["m7i.8xlarge"]), &[("price", json!("0.0001"))]);
    let (snapshot, _) = overlaid(&objects, &[paid]);
    let plan = plan_disruption(&snapshot);
    assert!(plan.commands.is_empty(), "{:?}", plan.commands);
}

#[test]
fn overlays_at_odds_for_one_pool_are_left_out_for_all() {
    let team =
        |name: &str| with(pool(name, on_demand(&[])), &[("spec.template.metadata.labels", json!({"team": name}))]);
    let objects = [class(), team("red"), team("blue")];
    let all = [
        on("a-everywhere", (labels::INSTANCE_FAMILY, &["m7i"]), &[("price", json!("1"))]),
        on("b-red", ("team", &["red"]), &[("price", json!("2"))]),
        on("c-large", (labels::INSTANCE_FAMILY, &["c7i"]), &[("price", json!("3"))]),
    ];
    // the later name comes first: c-large, then b-red, which is at odds with it; a-everywhere no longer is with b-red
    let (snapshot, conflicts) = overlaid(&objects, &all);
    assert_eq!(conflicts, ["b-red"]);
    let price = |pool: &str, name: &str| {
        let catalogue = snapshot.catalogues.of("default", Some(pool)).unwrap();
        catalogue.get(name).unwrap().offerings[0].price.micro_dollars()
    };
    for pool in ["red", "blue"] {
        assert_eq!((price(pool, "m7i.large"), price(pool, "c7i.large")), (1_000_000, 3_000_000), "{pool}");
    }
    // pools that look alike to all overlays share one catalogue, and all go back to the class's without overlays
    let shared = |snapshot: &Snapshot| {
        let of = |pool| snapshot.catalogues.of("default", Some(pool)).unwrap().clone();
        (
            std::sync::Arc::ptr_eq(&of("red"), &of("blue")),
            std::sync::Arc::ptr_eq(&of("red"), &snapshot.catalogues["default"]),
        )
    };
    assert_eq!(shared(&snapshot), (true, false));
    let mut without = snapshot.clone();
    assert!(without.overlay(&[]).is_empty());
    assert_eq!(shared(&without), (true, true));
}

#[test]
fn what_is_wrong_with_an_overlay_is_told_by_its_field() {
    let wrong = |spec: Value| read("o", spec).unwrap_err().to_string();
    let none = json!([]);
    let told = wrong(json!({"requirements": none, "price": "1", "priceAdjustment": "+1"}));
    assert_eq!(told, "NodeOverlay o: spec.price: stands beside priceAdjustment: set one of them");
    let told = wrong(json!({"requirements": none, "priceAdjustment": "5"}));
    assert_eq!(told, "NodeOverlay o: spec.priceAdjustment: has no sign: write +0.1, -0.1, +10% or -10%");
    let told = wrong(json!({"requirements": none, "price": "-5"}));
    assert_eq!(told, "NodeOverlay o: spec.price: is an adjustment: write it as priceAdjustment");
    let told = wrong(json!({"requirements": none, "price": "cheap"}));
    assert!(told.starts_with("NodeOverlay o: spec.price: price change \"cheap\": "), "{told}");
    let told =
        wrong(json!({"requirements": [{"key": "karpenter.k8s.aws/instance-cpu", "operator": "Gt", "values": ["x"]}]}));
    assert!(told.starts_with("NodeOverlay o: spec.requirements: "), "{told}");
}

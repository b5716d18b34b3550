//! What may replace a node for less: offerings that are free or paid already, and what `minValues` asks of them.

use karp_domain::api::{NodeOverlay, labels};
use karp_domain::catalogue::{
    CapacityReservation, CapacityType, Catalogue, InstanceType, NodeSettings, Overlay, Price, Reservation,
    ReservationKind, Tenancy, builtin_type, estimate_on_demand, offerings, reserved_offerings,
};
use karp_domain::cluster::{MinValuesPolicy, Snapshot};
use karp_domain::disruption::{Cause, Command, plan_disruption, validate};
use karp_domain::requirement::{Requirement, ValueSet};
use serde_json::{Value, json};

use crate::world::{TYPES, catalogue, class, node, pool, running, snapshot, with, zones};

/// Nodes are bought so.
fn bought(how: &[&str]) -> Value {
    json!({"key": labels::CAPACITY_TYPE, "operator": "In", "values": how})
}

/// A node on demand of a pool with these requirements, with a pod.
fn one(requirements: &[Value], kind: &str, cpu: &str, memory: &str) -> Vec<Value> {
    let mut objects = vec![class(), pool("default", Value::Array(requirements.to_vec()))];
    objects.extend(node("n1", "default", kind, "us-east-1a", CapacityType::OnDemand));
    objects.push(running("p", "n1", cpu, memory));
    objects
}

/// The command that replaces the node by one other.
fn replaced(snapshot: &Snapshot) -> Command {
    let plan = plan_disruption(snapshot);
    let [command] = &*plan.commands else { panic!("{:?}", plan.verdicts) };
    assert_eq!((command.cause, command.candidates.len(), command.replacements.len()), (Cause::Underutilized, 1, 1));
    assert_eq!(validate(command, snapshot), Ok(()));
    command.clone()
}

/// A fleet that is paid otherwise is told by an overlay that makes it free.
#[test]
fn a_node_moves_to_what_is_free_and_stays_there() {
    let spec = json!({"priceAdjustment": "-100%",
        "requirements": [{"key": labels::INSTANCE_TYPE, "operator": "In", "values": ["c7i.large"]}]});
    let object = json!({"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": "paid"}, "spec": spec});
    let paid = Overlay::from_kube(&serde_json::from_value::<NodeOverlay>(object).unwrap()).unwrap();
    let world = |kind: &str| {
        let mut world = snapshot(&one(&[bought(&["on-demand"])], kind, "1", "1Gi"), catalogue(TYPES));
        assert!(world.overlay(std::slice::from_ref(&paid)).is_empty());
        world
    };
    let command = replaced(&world("m7i.8xlarge"));
    let [free] = &*command.replacements else { panic!("{command:?}") };
    assert_eq!((free.price, free.instance_types()), (Price::ZERO, vec!["c7i.large".into()]));
    let stays = plan_disruption(&world("c7i.large"));
    assert!(stays.commands.is_empty(), "{:?}", stays.commands);
}

/// What a reservation holds is one type; its claim lists more, as the API server asks.
#[test]
fn a_node_moves_to_a_reservation_whatever_min_values_ask() {
    let reservation = Reservation {
        id: "cr-1".into(),
        kind: ReservationKind::Default,
        interruptible: false,
        tenancy: Tenancy::Default,
        remaining: 1,
    };
    let held = [CapacityReservation {
        instance_type: "m7i.2xlarge".into(),
        zone: "us-east-1b".into(),
        reservation,
        expiring: false,
    }];
    let types = TYPES.iter().map(|name| {
        let facts = builtin_type(name).unwrap();
        let mut all = offerings(facts, &zones(), |_, _| None);
        all.extend(reserved_offerings(name, &zones(), &held, estimate_on_demand(facts)));
        InstanceType::from_facts(facts, &NodeSettings::default(), all)
    });
    let families = json!({"key": labels::INSTANCE_FAMILY, "operator": "Exists", "minValues": 2});
    let objects = one(&[bought(&["on-demand", "reserved"]), families], "m7i.2xlarge", "6", "20Gi");
    let command = replaced(&snapshot(&objects, Catalogue::new(types.collect())));
    let [node] = &*command.replacements else { panic!("{command:?}") };
    assert_eq!(node.requirements.single(labels::CAPACITY_RESERVATION_ID).map(|id| &**id), Some("cr-1"));
    let listed = node.requirements.get(labels::INSTANCE_TYPE).expect("types");
    assert!(matches!(listed.values(), ValueSet::Only(names) if names.len() >= 2), "{listed}");
}

/// Zones are no labels of types.
#[test]
fn min_values_of_zones_do_not_keep_a_node() {
    let all = ["us-east-1a", "us-east-1b", "us-east-1c"];
    for least in [2, 3] {
        let spread = json!({"key": labels::ZONE, "operator": "In", "values": all, "minValues": least});
        let objects = one(&[bought(&["on-demand"]), spread], "m7i.8xlarge", "3", "1Gi");
        let node = replaced(&snapshot(&objects, catalogue(TYPES))).replacements.remove(0);
        assert_eq!(node.requirements.get(labels::ZONE).and_then(Requirement::min_values), Some(least));
    }
}

/// Where fewer values than asked for are borne, a node that has as many as there are is replaced by one that has, too.
#[test]
fn min_values_that_were_lowered_do_not_keep_a_node() {
    let families = json!({"key": labels::INSTANCE_FAMILY, "operator": "Exists", "minValues": 50});
    let objects = one(&[bought(&["on-demand"]), families], "m7i.8xlarge", "3", "1Gi");
    let mut world = snapshot(&objects, catalogue(&["c7i.xlarge", "m7i.xlarge", "m7i.8xlarge"]));
    world.settings.min_values = MinValuesPolicy::BestEffort;
    let command = replaced(&world);
    let types = command.replacements[0].instance_types();
    assert_eq!(types.iter().map(|name| &**name).collect::<Vec<_>>(), ["c7i.xlarge", "m7i.xlarge"]);
}

/// Of the cheaper spot types a claim lists fifteen, or as many as its pool's `minValues` asks for.
#[test]
fn spot_is_replaced_by_as_many_types_as_min_values_ask_for() {
    let families = ["c5", "m5", "r5", "c6i", "m6i", "r6i", "c7i", "m7i", "r7i"];
    let names: Vec<String> =
        families.iter().flat_map(|f| ["large", "2xlarge"].map(|size| format!("{f}.{size}"))).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).chain(["m7i.8xlarge"]).collect();
    let types = json!([{"key": labels::INSTANCE_TYPE, "operator": "Exists", "minValues": 17}]);
    // the pool takes types however much dearer they are than the cheapest
    let any_price = ("metadata.annotations", json!({"karp.sh/price-tolerance": "10000%"}));
    let mut objects = vec![class(), with(pool("default", types), &[any_price])];
    objects.extend(node("n1", "default", "m7i.8xlarge", "us-east-1a", CapacityType::Spot));
    objects.push(running("p", "n1", "1", "1Gi"));
    let mut world = snapshot(&objects, catalogue(&all));
    world.settings.spot_to_spot = true;
    let command = replaced(&world);
    assert_eq!(command.replacements[0].instance_types().len(), 17);
}

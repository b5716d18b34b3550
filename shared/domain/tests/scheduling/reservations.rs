//! Capacity reservations: what is paid already comes first, and no reservation gives more instances than it has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karp_domain::catalogue::{
    CapacityReservation, CapacityType, Catalogue, InstanceType, NodeSettings, Reservation, ReservationKind, Tenancy,
    builtin_type, estimate_on_demand, offerings, reserved_offerings,
};
use karp_domain::cluster::Snapshot;
use karp_domain::disruption::{Method, until_stable};
use karp_domain::requirement::ValueSet;
use karp_domain::scheduling::{InFlightNode, Solution, Target, replicas, solve};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::deep;
use crate::world::universe::a_cluster;
use crate::world::{self, TYPES, class, judge, node, pending, pool, running, snapshot, with, zones};

const ID: &str = "karpenter.k8s.aws/capacity-reservation-id";

fn held(id: &str, instance_type: &str, zone: &str, remaining: u32) -> CapacityReservation {
    let kind = ReservationKind::Default;
    let reservation = Reservation { id: id.into(), kind, interruptible: false, tenancy: Tenancy::Default, remaining };
    CapacityReservation { instance_type: instance_type.into(), zone: zone.into(), reservation, expiring: false }
}

fn catalogue(held: &[CapacityReservation]) -> Catalogue {
    let types = TYPES.iter().map(|name| {
        let facts = builtin_type(name).unwrap();
        let mut all = offerings(facts, &zones(), |_, _| None);
        all.extend(reserved_offerings(name, &zones(), held, estimate_on_demand(facts)));
        InstanceType::from_facts(facts, &NodeSettings::default(), all)
    });
    Catalogue::new(types.collect())
}

fn on_demand() -> Value {
    pool(
        "default",
        json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand", "reserved"]}]),
    )
}

/// So many pods that take an m7i.2xlarge each.
fn large(count: usize) -> Vec<Value> {
    (0..count).map(|n| pending(&format!("p{n:02}"), "6", "20Gi")).collect()
}

fn answer(objects: &[Value], held: &[CapacityReservation]) -> (Snapshot, Solution) {
    let snapshot = snapshot(objects, catalogue(held));
    let solution = solve(&snapshot);
    judge::judge(&snapshot, &solution);
    (snapshot, solution)
}

/// The instances that nodes take of each reservation: by what their claims ask for, and never beside anything else.
fn taken<'n>(nodes: impl IntoIterator<Item = &'n InFlightNode>) -> BTreeMap<String, u32> {
    let mut taken = BTreeMap::new();
    for node in nodes {
        let reserved = node.offerings.iter().filter(|o| o.capacity_type == CapacityType::Reserved).count();
        assert!(reserved == 0 || reserved == node.offerings.len(), "paid for and not: {:?}", node.offerings);
        if reserved > 0 {
            assert_eq!(node.requirements.single("karpenter.sh/capacity-type").map(|v| &**v), Some("reserved"));
            let id = node.requirements.single(ID).expect("a reservation by its id");
            *taken.entry(id.to_string()).or_default() += 1;
        }
    }
    taken
}

fn counts(expected: &[(&str, u32)]) -> BTreeMap<String, u32> {
    expected.iter().map(|(id, count)| ((*id).to_owned(), *count)).collect()
}

#[test]
fn what_is_paid_is_used_up_and_the_rest_is_bought_as_though_there_were_none() {
    let objects = [vec![class(), on_demand()], large(10)].concat();
    let (_, solution) = answer(&objects, &[held("cr-1", "m7i.2xlarge", "us-east-1b", 3)]);
    assert_eq!(taken(&solution.nodes), counts(&[("cr-1", 3)]));
    assert!(solution.unschedulable.is_empty());
    let settled = |node: &&InFlightNode| node.requirements.contains(ID);
    for node in solution.nodes.iter().filter(settled) {
        let asked = |key: &str| node.requirements.single(key).unwrap().to_string();
        assert_eq!(asked("node.kubernetes.io/instance-type"), "m7i.2xlarge");
        assert_eq!(asked("topology.kubernetes.io/zone"), "us-east-1b");
    }
    let (_, alone) = answer(&[vec![class(), on_demand()], large(7)].concat(), &[]);
    let of = |node: &InFlightNode| (node.pods.len(), node.price, node.instance_types());
    let bought: Vec<_> = solution.nodes.iter().filter(|node| !settled(node)).map(of).collect();
    assert_eq!(bought, alone.nodes.iter().map(of).collect::<Vec<_>>());
}

#[test]
fn a_reservation_is_taken_by_nodes_of_its_own_tenancy_alone() {
    const TENANCY: &str = "karpenter.k8s.aws/instance-tenancy";
    let own = |held: CapacityReservation| CapacityReservation {
        reservation: Reservation { tenancy: Tenancy::Dedicated, ..held.reservation },
        ..held
    };
    let held = [held("cr-all", "m7i.2xlarge", "us-east-1a", 2), own(held("cr-own", "m7i.2xlarge", "us-east-1b", 2))];
    let mut dedicated = on_demand();
    let asked = json!({"key": TENANCY, "operator": "In", "values": ["dedicated"]});
    dedicated["spec"]["template"]["spec"]["requirements"].as_array_mut().unwrap().push(asked);
    let asking: Vec<Value> = large(4)
        .into_iter()
        .map(|mut pod| {
            pod["spec"]["nodeSelector"] = json!({TENANCY: "dedicated"});
            pod
        })
        .collect();
    let fared = |pool: &Value, pods: &[Value]| {
        let (_, solution) = answer(&[vec![class(), pool.clone()], pods.to_vec()].concat(), &held);
        assert!(solution.unschedulable.is_empty(), "{:?}", solution.unschedulable);
        assert!(solution.nodes.iter().all(|node| !node.offerings.is_empty()));
        let of = |node: &InFlightNode| Tenancy::of(&node.requirements);
        (taken(&solution.nodes), solution.nodes.iter().map(of).collect::<BTreeSet<_>>())
    };
    use Tenancy::{Dedicated, Default};
    assert_eq!(fared(&on_demand(), &large(4)), (counts(&[("cr-all", 2)]), BTreeSet::from([Default])));
    assert_eq!(fared(&dedicated, &large(4)), (counts(&[("cr-own", 2)]), BTreeSet::from([Dedicated])));
    assert_eq!(fared(&dedicated, &asking), (counts(&[("cr-own", 2)]), BTreeSet::from([Dedicated])));
    // a pool of both gives its nodes what is reserved for those that ask for nothing
    assert_eq!(fared(&on_demand(), &asking), (counts(&[]), BTreeSet::from([Dedicated])));
    let mixed = [large(2), asking[2..].to_vec()].concat();
    assert_eq!(fared(&on_demand(), &mixed), (counts(&[("cr-all", 2)]), BTreeSet::from([Default, Dedicated])));
}

#[test]
fn reservations_alike_are_told_apart() {
    let both = [held("cr-1", "m7i.2xlarge", "us-east-1a", 1), held("cr-2", "m7i.2xlarge", "us-east-1a", 2)];
    let (_, solution) = answer(&[vec![class(), on_demand()], large(5)].concat(), &both);
    assert_eq!(taken(&solution.nodes), counts(&[("cr-1", 1), ("cr-2", 2)]));
}

#[test]
fn the_pods_that_are_dearest_elsewhere_come_first() {
    let gpu = with(pending("trains", "2", "4Gi"), &[]);
    let gpu = {
        let mut pod = gpu;
        pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = json!("1");
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "1"});
        pod
    };
    let crowd = (0..12).map(|n| pending(&format!("a{n:02}"), "1500m", "4Gi"));
    let objects: Vec<Value> = [class(), on_demand(), gpu].into_iter().chain(crowd).collect();
    let (_, solution) = answer(&objects, &[held("cr-1", "g5.xlarge", "us-east-1a", 1)]);
    assert_eq!(taken(&solution.nodes), counts(&[("cr-1", 1)]));
    let node = solution.nodes.iter().find(|node| node.requirements.contains(ID)).unwrap();
    assert!(node.pods.iter().any(|pod| &*pod.name == "trains"), "{:?}", node.pods);
    assert!(
        solution.nodes.iter().filter(|node| node.instance_types().iter().any(|t| &**t == "g5.xlarge")).count() == 1
    );
}

/// A claim that was planned on a reservation, and is not launched.
fn promised(id: &str) -> Value {
    let only = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    json!({"kind": "NodeClaim", "apiVersion": "karpenter.sh/v1",
        "metadata": {"name": "default-1", "uid": "default-1", "labels": {"karpenter.sh/nodepool": "default"},
            "creationTimestamp": world::NOW},
        "spec": {"requirements": [only("node.kubernetes.io/instance-type", "m7i.2xlarge"), only(ID, id),
            only("karpenter.sh/capacity-type", "reserved"), only("topology.kubernetes.io/zone", "us-east-1a")],
            "resources": {"requests": {"cpu": "6", "memory": "20Gi"}}, "expireAfter": "Never",
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}}})
}

#[test]
fn claims_that_are_not_launched_have_their_instances() {
    // EC2 counts the instance when it is launched, and karp hears of that before or after it has noted the launch
    for remaining in [1, 0] {
        let objects = [vec![class(), on_demand(), promised("cr-1")], large(2)].concat();
        let (_, solution) = answer(&objects, &[held("cr-1", "m7i.2xlarge", "us-east-1a", remaining)]);
        assert_eq!(taken(&solution.nodes), counts(&[]), "{remaining}");
        assert_eq!((solution.nodes.len(), solution.placements.len()), (1, 1), "{remaining}");
        assert_eq!(solution.placements[0].target, Target::Claim("default-1".into()));
    }
    let objects = [vec![class(), on_demand(), promised("cr-1")], large(3)].concat();
    let (_, solution) = answer(&objects, &[held("cr-1", "m7i.2xlarge", "us-east-1a", 2)]);
    assert_eq!(taken(&solution.nodes), counts(&[("cr-1", 1)]));
}

#[test]
fn min_values_are_still_listed() {
    let many = json!([{"key": "node.kubernetes.io/instance-type", "operator": "Exists", "minValues": 3},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand", "reserved"]}]);
    let objects = [vec![class(), pool("default", many)], large(2)].concat();
    let (_, solution) = answer(&objects, &[held("cr-1", "m7i.2xlarge", "us-east-1a", 1)]);
    assert_eq!(taken(&solution.nodes), counts(&[("cr-1", 1)]));
    for node in &solution.nodes {
        let types = node.requirements.get("node.kubernetes.io/instance-type").unwrap();
        let ValueSet::Only(values) = types.values() else { panic!("{types}") };
        assert!(types.min_values() == Some(3) && values.len() >= 3, "{types}");
    }
}

#[test]
fn static_pools_take_what_there_is() {
    let mut pool = on_demand();
    pool["spec"]["replicas"] = json!(4);
    let cluster = snapshot(&[class(), pool], catalogue(&[held("cr-1", "r7i.2xlarge", "us-east-1c", 1)]));
    let plan = replicas(&cluster, &BTreeSet::new());
    assert_eq!((plan.create.len(), &plan.short), (4, &Vec::new()));
    assert_eq!(taken(&plan.create), counts(&[("cr-1", 1)]));
}

/// As in the types of a file, which name no reservation.
#[test]
fn a_reservation_that_nobody_knows_has_no_end() {
    let facts = builtin_type("m7i.2xlarge").unwrap();
    let mut all = offerings(facts, &zones(), |_, _| None);
    all.extend(reserved_offerings(
        "m7i.2xlarge",
        &zones(),
        &[held("cr-1", "m7i.2xlarge", "us-east-1a", 1)],
        estimate_on_demand(facts),
    ));
    all.iter_mut().for_each(|offering| offering.reservation = None);
    let types = Catalogue::new(vec![InstanceType::from_facts(facts, &NodeSettings::default(), all)]);
    let mut objects = [vec![class(), on_demand()], large(3)].concat();
    let solution = solve(&snapshot(&objects, types.clone()));
    let first: Vec<CapacityType> = solution.nodes.iter().map(|node| node.offerings[0].capacity_type).collect();
    assert_eq!(first, [CapacityType::Reserved; 3]);
    objects[1]["spec"]["replicas"] = json!(2);
    assert_eq!(replicas(&snapshot(&objects[..2], types), &BTreeSet::new()).create.len(), 2);
}

#[test]
fn nodes_move_to_reservations_while_there_is_room() {
    let mut objects = vec![class(), on_demand()];
    for at in 0..3 {
        let name = format!("n{at}");
        objects.extend(node(&name, "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand));
        objects.push(running(&format!("p{at}"), &name, "6", "20Gi"));
    }
    let cluster = snapshot(
        &objects,
        catalogue(&[held("cr-1", "m7i.8xlarge", "us-east-1b", 1), held("cr-2", "m7i.2xlarge", "us-east-1b", 1)]),
    );
    let path = until_stable(&cluster, Method::Sets);
    assert!(path.is_stable);
    let mut used: BTreeMap<String, u32> = BTreeMap::new();
    for node in &path.end.nodes {
        if let Some(id) = node.labels.get(ID) {
            *used.entry(id.clone()).or_default() += 1;
        }
    }
    assert!(used.values().all(|count| *count == 1) && !used.is_empty(), "{used:?}");
    assert!(path.after < path.before.scaled(1, 1000), "{} of {}", path.after, path.before);
    // the last instance of a type is not given to two nodes at once
    let one = snapshot(&objects, catalogue(&[held("cr-2", "m7i.2xlarge", "us-east-1b", 1)]));
    let path = until_stable(&one, Method::Sets);
    let paid = path.end.nodes.iter().filter(|node| node.labels.contains_key(ID)).count();
    assert_eq!((path.end.nodes.len(), paid), (3, 1));
}

proptest! {
    #![proptest_config(deep::cases(100))]

    /// No reservation gives more than it has, and nothing becomes impossible for it.
    #[test]
    fn no_reservation_gives_more_than_it_has(
        objects in a_cluster(),
        counts in prop::collection::vec((prop::sample::select(TYPES.to_vec()), 0_usize..3, 0_u32..4), 0..4),
    ) {
        let zones = zones();
        let held: Vec<CapacityReservation> = counts
            .iter()
            .enumerate()
            .map(|(at, (name, zone, count))| held(&format!("cr-{at}"), name, &zones[*zone].name, *count))
            .collect();
        let (cluster, solution) = answer(&objects, &held);
        for (id, count) in taken(&solution.nodes) {
            let has = held.iter().find(|h| *h.reservation.id == *id).unwrap().reservation.remaining;
            prop_assert!(count <= has, "{} of {} of {}", count, has, id);
        }
        prop_assert_eq!(&solve(&cluster), &solution);
        let mut grown = cluster;
        for pool in &mut grown.pools {
            Arc::make_mut(pool).replicas = Some(3);
        }
        for (id, count) in taken(&replicas(&grown, &BTreeSet::new()).create) {
            let has = held.iter().find(|h| *h.reservation.id == *id).unwrap().reservation.remaining;
            prop_assert!(count <= has, "{} of {} of {}", count, has, id);
        }
    }
}

/// Two reservations of one type in one zone: who asks for one by its id never takes the other.
#[test]
fn a_reservation_that_is_asked_for_by_id_is_not_changed_for_another() {
    let held = [held("cr-1", "m7i.2xlarge", "us-east-1a", 5), held("cr-2", "m7i.2xlarge", "us-east-1a", 1)];
    let asking = large(3).into_iter().map(|pod| with(pod, &[("spec.nodeSelector", json!({(ID): "cr-2"}))]));
    let objects: Vec<Value> = [class(), on_demand()].into_iter().chain(asking).collect();
    let (_, solution) = answer(&objects, &held);
    assert_eq!(taken(&solution.nodes), BTreeMap::from([("cr-2".to_owned(), 1)]));
    assert_eq!(solution.unschedulable.len(), 2, "{:?}", solution.unschedulable);
    let free: Vec<Value> = [class(), on_demand()].into_iter().chain(large(3)).collect();
    assert_eq!(answer(&free, &held).1.nodes.len(), 3);
}

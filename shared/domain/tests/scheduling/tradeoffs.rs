//! What an operator trades price for: nodes that hold no more than a share of a pool's pods, types to turn to within a tolerance of the
//! price, and `minValues`, which hold within limits too.

use std::collections::{BTreeMap, BTreeSet};

use karp_domain::api::NodePool;
use karp_domain::catalogue::{CapacityType, Catalogue, NodeSettings, Price};
use karp_domain::cluster::{ConsolidationFloor, PodKey, PodShare, Pool, PriceTolerance, Snapshot};
use karp_domain::scheduling::{InFlightNode, Misfit, Refusal, Solution, solve};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::deep;
use crate::world::universe::{a_cluster, named};
use crate::world::{self, TYPES, catalogue, class, judge, node, pending, pool, running, snapshot, with, zones};

const SHARE: &str = "karp.sh/max-pod-share";
const TOLERANCE: &str = "karp.sh/price-tolerance";

fn set(object: Value, key: &str, value: &str) -> Value {
    let mut object = object;
    object["metadata"]["annotations"][key] = json!(value);
    object
}

fn answer(objects: &[Value]) -> (Snapshot, Solution) {
    let snapshot = snapshot(objects, catalogue(TYPES));
    let solution = solve(&snapshot);
    judge::judge(&snapshot, &solution);
    (snapshot, solution)
}

fn small_pods(count: usize) -> Vec<Value> {
    (0..count).map(|n| pending(&format!("p{n:03}"), "100m", "100Mi")).collect()
}

fn largest(solution: &Solution) -> usize {
    solution.nodes.iter().map(|node| node.pods.len()).max().unwrap_or(0)
}

#[test]
fn percentages_are_read_or_named() {
    for (text, pods, most) in [("25%", 10, 3), ("25%", 0, 1), ("1%", 50, 1), ("100%", 7, 7), ("50%", u32::MAX, 1 << 31)]
    {
        assert_eq!(text.parse::<PodShare>().unwrap().of(pods), most, "{text} of {pods}");
    }
    for text in ["0%", "101%", "25", "-5%", "2.5%", "%", "", "+5%"] {
        assert!(text.parse::<PodShare>().unwrap_err().to_string().contains("from 1% to 100%, such as 25%"), "{text}");
    }
    assert!("0%".parse::<PriceTolerance>().is_ok() && "10001%".parse::<PriceTolerance>().is_err());
    assert!(
        "0%".parse::<ConsolidationFloor>() == Ok(ConsolidationFloor::NONE)
            && "101%".parse::<ConsolidationFloor>().is_err()
    );
    let wrong: NodePool = serde_json::from_value(set(pool("p", json!([])), SHARE, "a quarter")).unwrap();
    let message = Pool::from_kube(&wrong).unwrap_err().to_string();
    assert_eq!(
        message,
        "NodePool p: metadata.annotations[karp.sh/max-pod-share]: \"a quarter\" is no percentage from 1% to 100%, such as 25%"
    );
}

#[test]
fn a_share_makes_more_and_smaller_nodes() {
    let whole = |pool| answer(&[vec![class(), pool], small_pods(40)].concat()).1;
    let free = whole(pool("default", json!([])));
    let quarter = whole(set(pool("default", json!([])), SHARE, "25%"));
    assert!(free.nodes.len() < 4 && largest(&free) > 10, "{}", free.nodes.len());
    assert!(quarter.unschedulable.is_empty() && quarter.nodes.len() >= 4 && largest(&quarter) <= 10);
    // one pod alone is more than any share of itself
    let (_, one) = answer(&[class(), set(pool("default", json!([])), SHARE, "1%"), pending("a", "1", "1Gi")]);
    assert_eq!(one.nodes.len(), 1);
}

#[test]
fn the_setting_counts_where_the_pool_says_nothing() {
    let objects = [vec![class(), pool("default", json!([]))], small_pods(40)].concat();
    let mut snapshot = snapshot(&objects, catalogue(TYPES));
    snapshot.settings.max_pod_share = "10%".parse().unwrap();
    let tenth = solve(&snapshot);
    assert!(largest(&tenth) <= 4 && tenth.nodes.len() >= 10, "{}", largest(&tenth));
    snapshot.pools[0] = std::sync::Arc::new(Pool { max_pod_share: "50%".parse().ok(), ..(*snapshot.pools[0]).clone() });
    let half = largest(&solve(&snapshot));
    assert!(half > 4 && half <= 20, "{half}");
}

#[test]
fn pods_that_run_already_are_pods_of_the_pool() {
    let mut objects = vec![class(), set(pool("default", json!([])), SHARE, "25%")];
    objects.extend(node("n1", "default", "m7i.large", "us-east-1a", CapacityType::OnDemand));
    objects.extend((0..20).map(|n| running(&format!("r{n}"), "n1", "95m", "64Mi")));
    objects.extend((0..20).map(|n| pending(&format!("p{n}"), "300m", "100Mi")));
    let with_them = largest(&answer(&objects).1);
    objects.retain(|object| object["status"]["phase"] != "Running");
    let without = largest(&answer(&objects).1);
    assert!(with_them <= 10 && without <= 5 && with_them > without, "{with_them} {without}");
}

/// The pool gets only the pods that must go there: its share is of those, not of all that wait.
#[test]
fn the_share_is_of_what_the_pool_gets() {
    let arm = json!([{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]);
    let amd = json!([{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]);
    let mut objects =
        vec![class(), set(pool("amd", amd), SHARE, "50%"), with(pool("arm", arm), &[("spec.weight", json!(10))])];
    objects.extend(small_pods(60));
    let only = |n| {
        with(
            pending(&format!("only{n}"), "100m", "100Mi"),
            &[("spec.nodeSelector", json!({"kubernetes.io/arch": "amd64"}))],
        )
    };
    objects.extend((0..8).map(only));
    let (_, solution) = answer(&objects);
    let amd: Vec<usize> = solution.nodes.iter().filter(|n| &*n.pool == "amd").map(|n| n.pods.len()).collect();
    assert_eq!(amd, [4, 4]);
}

#[test]
fn pods_that_must_share_a_node_do() {
    let near = json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "test"}}}]});
    let pods = small_pods(12).into_iter().map(|pod| with(pod, &[("spec.affinity.podAffinity", near.clone())]));
    let mut objects = vec![class(), set(pool("default", json!([])), SHARE, "10%")];
    objects.extend(pods);
    let (_, solution) = answer(&objects);
    assert_eq!((solution.nodes.len(), largest(&solution)), (1, 12));
}

/// Which pods are counted: all but those that must be on the node of others.
fn counted(snapshot: &Snapshot, node: &InFlightNode) -> usize {
    let shape = |key: &PodKey| &snapshot.pods.iter().find(|pod| pod.key == *key).unwrap().shape;
    let free = |key: &&PodKey| shape(key).affinity.iter().all(|term| &*term.key != "kubernetes.io/hostname");
    node.pods.iter().filter(free).count()
}

fn percent() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![1, 10, 25, 34, 50, 75])
}

/// Pods of a few sizes, in numbers.
fn crowds() -> impl Strategy<Value = Vec<(Value, usize)>> {
    let size = prop::sample::select(vec![("50m", "64Mi"), ("250m", "1Gi"), ("1", "512Mi"), ("3", "9Gi"), ("0", "0")]);
    prop::collection::vec(
        (size, 1_usize..20).prop_map(|((cpu, memory), count)| (pending("p", cpu, memory), count)),
        1..4,
    )
}

fn families(least: u32) -> Value {
    json!([{"key": "karpenter.k8s.aws/instance-family", "operator": "Exists", "minValues": least}])
}

proptest! {
    #![proptest_config(deep::cases(100))]

    #[test]
    fn no_new_node_holds_more_than_the_share(pods in crowds(), percent in percent(), busy in 0_usize..9) {
        let mut objects = named(pods, vec![set(pool("p", json!([])), SHARE, &format!("{percent}%"))]);
        objects.extend(node("n1", "pool0", "m7i.large", "us-east-1a", CapacityType::OnDemand));
        objects.extend((0..busy).map(|n| running(&format!("r{n}"), "n1", "100m", "64Mi")));
        let (_, solution) = answer(&objects);
        prop_assert!(solution.unschedulable.is_empty());
        let pods = busy + solution.placements.len() + solution.nodes.iter().map(|node| node.pods.len()).sum::<usize>();
        let most = format!("{percent}%").parse::<PodShare>().unwrap().of(pods as u32);
        prop_assert!(largest(&solution) <= most as usize, "{} of {} pods, not {}", largest(&solution), pods, most);
    }

    #[test]
    fn any_cluster_may_bound_the_share(objects in a_cluster(), percent in percent()) {
        let mut snapshot = snapshot(&objects, catalogue(TYPES));
        snapshot.settings.max_pod_share = format!("{percent}%").parse().unwrap();
        let solution = solve(&snapshot);
        judge::judge(&snapshot, &solution);
        world::topology::judge(&objects, &snapshot, &solution);
        let waiting = snapshot.pods.iter().filter(|pod| pod.is_provisionable() || pod.holds_resources()).count();
        let most = snapshot.settings.max_pod_share.of(waiting as u32) as usize;
        for node in &solution.nodes {
            prop_assert!(counted(&snapshot, node) <= most);
        }
    }

    #[test]
    fn listed_types_cost_no_more_than_the_tolerance(pods in crowds(), tolerance in prop::sample::select(vec![0_u64, 20, 100, 10_000])) {
        let (_, all) = answer(&named(pods.clone(), vec![pool("p", json!([]))]));
        let (_, some) = answer(&named(pods, vec![set(pool("p", json!([])), TOLERANCE, &format!("{tolerance}%"))]));
        prop_assert_eq!(all.price(), some.price());
        for node in &some.nodes {
            let mut least: BTreeMap<&str, Price> = BTreeMap::new();
            for offering in node.offerings.iter() {
                least.entry(&offering.instance_type).or_insert(offering.price);
            }
            for price in least.values() {
                prop_assert!(*price <= node.price.scaled(100 + tolerance, 100), "{price} for {}", node.price);
            }
        }
        let types = |solution: &Solution| solution.nodes.iter().map(|node| node.instance_types().len()).sum::<usize>();
        prop_assert!(tolerance < 100 || types(&some) >= types(&all));
        prop_assert!(tolerance > 100 || types(&some) <= types(&all));
    }

    /// The judge looks at what each node lists, and at the limits.
    #[test]
    fn min_values_hold_within_limits(pods in crowds(), least in 1_u32..7, limits in prop::sample::select(vec![json!({"cpu": "9"}), json!({"cpu": "24"}), json!({"cpu": "70", "memory": "90Gi"}), json!({"nodes": 3})]), weight in 0..2) {
        let mut bounded = with(pool("p", families(least)), &[("spec.limits", limits)]);
        if weight > 0 {
            bounded = with(bounded, &[("spec.weight", json!(weight))]);
        }
        let (_, alone) = answer(&named(pods.clone(), vec![bounded.clone()]));
        for refused in &alone.unschedulable {
            let named = |r: &Refusal| matches!(r, Refusal::Pool { misfit: Misfit::MinValues { .. } | Misfit::Limit { .. } | Misfit::NoTypeHasAll, .. });
            prop_assert!(refused.reasons.iter().all(named), "{refused}");
        }
        let (_, both) = answer(&named(pods, vec![bounded, pool("p", json!([]))]));
        prop_assert!(both.unschedulable.is_empty());
    }
}

/// Two pods of 6 CPU want nodes of 8, and twelve CPU are left beside them: enough for one list with a larger type, not for two.
#[test]
fn limits_leave_room_for_the_values_of_some_nodes() {
    let sizes = json!([{"key": "karpenter.k8s.aws/instance-cpu", "operator": "Exists", "minValues": 2},
        {"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["m", "c"]}]);
    let bounded = with(pool("default", sizes), &[("spec.limits", json!({"cpu": "28"}))]);
    let pods = [pending("a", "6", "1Gi"), pending("b", "6", "1Gi")];
    let (_, solution) = answer(&[vec![class(), bounded], pods.to_vec()].concat());
    assert!(solution.nodes.len() + solution.unschedulable.len() > 0);
    for node in &solution.nodes {
        let cpus: BTreeSet<String> = node
            .instance_types()
            .iter()
            .map(|t| catalogue(TYPES).get(t).unwrap().capacity.get("cpu").to_string())
            .collect();
        assert!(cpus.len() >= 2, "{cpus:?}");
    }
}

/// Limits leave the first nodes of a pool too few families, and then, when those are given up, the others too: all pods go elsewhere.
#[test]
fn pods_of_every_short_list_go_to_other_pools() {
    let pods = [("250m", "1Gi", 19), ("50m", "64Mi", 1), ("1", "512Mi", 9)];
    let crowd = pods.map(|(cpu, memory, count)| (pending("p", cpu, memory), count));
    let bounded = with(pool("p", families(4)), &[("spec.limits", json!({"cpu": "70", "memory": "90Gi"}))]);
    let (_, solution) = answer(&named(crowd.to_vec(), vec![bounded, pool("p", json!([]))]));
    assert!(solution.unschedulable.is_empty());
}

/// What the settings cost: `docs/packing.md` tells the figures that `--nocapture` shows.
#[test]
fn what_the_settings_cost() {
    let sizes = [("100m", "256Mi"), ("250m", "1Gi"), ("500m", "512Mi"), ("1", "4Gi"), ("2", "3Gi")];
    let crowd = sizes.iter().map(|(cpu, memory)| (pending("p", cpu, memory), 100));
    let objects = named(crowd.collect(), vec![pool("p", json!([]))]);
    let facts = karp_domain::catalogue::builtin().iter();
    let mut world = snapshot(&objects, Catalogue::estimated(facts, &zones(), &NodeSettings::default()));
    let free = solve(&world).price();
    for share in ["50%", "25%", "10%", "5%", "2%"] {
        world.settings.max_pod_share = share.parse().unwrap();
        let solution = solve(&world);
        let permille = solution.price().nano_dollars() * 1000 / free.nano_dollars();
        println!("share {share}: {} nodes, price {permille}/1000", solution.nodes.len());
        assert!(solution.unschedulable.is_empty() && (990..1300).contains(&permille), "{share}: {permille}");
    }
    world.settings.max_pod_share = PodShare::default();
    for tolerance in ["0%", "5%", "20%", "50%", "100%", "10000%"] {
        world.settings.price_tolerance = tolerance.parse().unwrap();
        let solution = solve(&world);
        let types: usize = solution.nodes.iter().map(|node| node.instance_types().len()).sum();
        let dearest = |node: &InFlightNode| {
            let mut least: BTreeMap<&str, Price> = BTreeMap::new();
            for offering in node.offerings.iter() {
                least.entry(&offering.instance_type).or_insert(offering.price);
            }
            least.into_values().max().unwrap_or_default()
        };
        let worst: Price = solution.nodes.iter().map(dearest).sum();
        let permille = worst.nano_dollars() * 1000 / free.nano_dollars();
        println!("tolerance {tolerance}: {} types a node, worst price {permille}/1000", types / solution.nodes.len());
        assert_eq!(solution.price(), free);
    }
}

/// However cheap small nodes are: where limits let a pool have few nodes, they are large enough for all.
#[test]
fn few_nodes_are_as_large_as_they_must_be() {
    for (limits, crowd) in [
        (json!({"nodes": 2}), [("250m", "1Gi", 29), ("50m", "64Mi", 19)]),
        (json!({"nodes": 1}), [("250m", "1Gi", 9), ("50m", "64Mi", 30)]),
        (json!({"cpu": "8"}), [("100m", "3Gi", 14), ("100m", "64Mi", 5)]),
        (json!({"nodes": 60}), [("100m", "100Mi", 1000), ("200m", "300Mi", 1000)]),
    ] {
        let pods = crowd.map(|(cpu, memory, count)| (pending("p", cpu, memory), count));
        let (_, solution) =
            answer(&named(pods.to_vec(), vec![with(pool("p", json!([])), &[("spec.limits", limits.clone())])]));
        assert!(solution.unschedulable.is_empty(), "{limits}: {:?}", solution.unschedulable);
    }
}

/// A node that grew would need more of what limits leave for the types that `minValues` asks for: it stays as it is, and is made.
#[test]
fn nodes_do_not_outgrow_their_lists() {
    let sizes = json!([{"key": "karpenter.k8s.aws/instance-cpu", "operator": "Exists", "minValues": 2},
        {"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["m", "c"]}]);
    let bounded = with(pool("p", sizes), &[("spec.limits", json!({"nodes": 1, "cpu": "8"}))]);
    let (_, solution) = answer(&named(vec![(pending("p", "250m", "256Mi"), 40)], vec![bounded]));
    let placed: usize = solution.nodes.iter().map(|node| node.pods.len()).sum();
    assert!(placed >= 14, "{placed} placed, {} refused", solution.unschedulable.len());
}

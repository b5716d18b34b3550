//! Which domains pods take from each other, and which of them a spread reckons with.

use std::collections::BTreeMap;

use karp_domain::catalogue::CapacityType;
use karp_domain::scheduling::{InFlightNode, Solution, Target};
use serde_json::{Value, json};

use crate::world::topology::judged;
use crate::world::{class, node, pending, pool, running, with};

const ZONE: &str = "topology.kubernetes.io/zone";
const MARKET: &str = "karpenter.sh/capacity-type";

pub fn labelled(name: &str, app: &str, more: &[(&str, Value)]) -> Value {
    with(with(pending(name, "500m", "512Mi"), &[("metadata.labels", json!({ "app": app }))]), more)
}

fn apart_from(app: &str, key: &str) -> (&'static str, Value) {
    let term = json!([{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}]);
    ("spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution", term)
}

fn spread_over(app: &str, key: &str) -> (&'static str, Value) {
    let selector = json!({"matchLabels": {"app": app}});
    let spread =
        json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector});
    ("spec.topologySpreadConstraints", json!([spread]))
}

/// A constraint is about pods of the namespace, also where another namespace has pods of the same template.
#[test]
fn pods_of_one_template_spread_in_each_namespace() {
    for key in [ZONE, "kubernetes.io/hostname"] {
        let pod = |namespace: &str, n: usize| {
            let constraint = spread_over("x", key);
            with(labelled(&format!("{namespace}{n}"), "x", &[constraint]), &[("metadata.namespace", json!(namespace))])
        };
        let mut objects = vec![class(), pool("default", json!([]))];
        objects.extend(["a", "b"].iter().flat_map(|space| (0..6).map(|n| pod(space, n))));
        let solution = judged(&objects);
        assert!(solution.unschedulable.is_empty());
        for space in ["a", "b"] {
            let of = |node: &InFlightNode| node.pods.iter().filter(|pod| &*pod.namespace == space).count();
            let zones: BTreeMap<_, usize> = solution.nodes.iter().fold(BTreeMap::new(), |mut zones, node| {
                *zones.entry(node.requirements.single(ZONE).cloned()).or_default() += of(node);
                zones
            });
            let spread = match key {
                ZONE => zones.values().all(|count| *count == 2) && !zones.contains_key(&None),
                _ => solution.nodes.iter().all(|node| of(node) <= 1),
            };
            assert!(spread, "{key} {space}: {zones:?}");
        }
    }
}

/// Also where the pods of neither namespace are counted, so that nothing but the namespace tells them apart.
#[test]
fn pods_of_one_template_keep_to_the_pods_of_their_namespace() {
    let node = |name: &str| node(name, "default", "m7i.large", "us-east-1a", CapacityType::OnDemand);
    let mut objects = vec![class(), pool("default", json!([]))];
    objects.extend(["n0", "n1"].iter().flat_map(|name| node(name)));
    let of = |namespace: &str| [("metadata.namespace", json!(namespace)), ("metadata.labels", json!({"app": "x"}))];
    for (namespace, on) in [("a", "n0"), ("b", "n1")] {
        let there = |n: usize| with(running(&format!("{namespace}{n}"), on, "100m", "64Mi"), &of(namespace));
        objects.extend((0..2).map(there));
        let more = [spread_over("x", "kubernetes.io/hostname"), ("metadata.namespace", json!(namespace))];
        objects.push(labelled(&format!("new-{namespace}"), "y", &more));
    }
    let places: BTreeMap<String, Target> =
        judged(&objects).placements.into_iter().map(|placed| (placed.pod.to_string(), placed.target)).collect();
    let expected = [("a/new-a", "n1"), ("b/new-b", "n0")];
    assert_eq!(places, expected.map(|(pod, node)| (pod.to_owned(), Target::Node(node.into()))).into());
}

fn nodes_of<'s>(solution: &'s Solution, prefix: &str) -> Vec<&'s InFlightNode> {
    let of = |node: &&InFlightNode| node.pods.iter().any(|pod| pod.name.starts_with(prefix));
    solution.nodes.iter().filter(of).collect()
}

/// Pods that others must not meet leave domains for those, whichever way round, and where the others can be in one place only.
#[test]
fn pods_that_others_keep_away_from_leave_them_a_domain() {
    for key in [ZONE, MARKET] {
        for (some, others) in [(3, 3), (6, 1), (1, 3)] {
            let mut objects = vec![class(), pool("default", json!([]))];
            objects.extend((0..some).map(|n| labelled(&format!("a{n}"), "a", &[])));
            objects.extend((0..others).map(|n| labelled(&format!("b{n}"), "b", &[apart_from("a", key)])));
            let solution = judged(&objects);
            assert!(solution.unschedulable.is_empty(), "{key} {some} {others}: {:?}", solution.unschedulable);
        }
    }
    for zone in ["us-east-1a", "us-east-1b", "us-east-1c"] {
        let bound = [apart_from("a", ZONE), ("spec.nodeSelector", json!({ ZONE: zone }))];
        let objects = [class(), pool("default", json!([])), labelled("a", "a", &[]), labelled("b", "b", &bound)];
        assert!(judged(&objects).unschedulable.is_empty(), "{zone}");
    }
}

/// What pods cost that do not spread does not depend on whether others count them, least of all on pods that can be nowhere.
#[test]
fn pods_that_are_only_counted_cost_what_they_cost_alone() {
    let alone: Vec<Value> = [class(), pool("default", json!([]))]
        .into_iter()
        .chain((0..4).map(|n| labelled(&format!("a{n}"), "a", &[])))
        .collect();
    let price = judged(&alone).price();
    for key in [ZONE, MARKET] {
        for rule in [apart_from("a", key), spread_over("a", key)] {
            let never = labelled("never", "b", &[rule.clone(), ("spec.nodeSelector", json!({"nope": "x"}))]);
            let solution = judged(&[alone.clone(), vec![never]].concat());
            assert_eq!(solution.unschedulable.len(), 1);
            assert_eq!(solution.price(), price, "{key}: {rule:?}");
        }
    }
}

/// As kube-scheduler, which counts the nodes that a pod's selector admits: a zone of another pool is none of its domains.
#[test]
fn a_spread_reckons_with_domains_that_the_selector_leaves() {
    let within = |name: &str, zones: &[&str], more: Value| {
        let mut wanted = vec![json!({"key": ZONE, "operator": "In", "values": zones})];
        wanted.extend(more.as_array().cloned().unwrap_or_default());
        pool(name, json!(wanted))
    };
    let all = ["us-east-1a", "us-east-1b", "us-east-1c"];
    let arm = json!([{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]);
    let amd = json!([{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]);
    let cases = [
        (within("x", &all, json!(null)), within("y", &all[..2], json!(null)), json!({"karpenter.sh/nodepool": "y"})),
        (within("x", &all, amd), within("y", &all[..2], arm), json!({"kubernetes.io/arch": "arm64"})),
    ];
    for (x, y, selector) in cases {
        let pod = |n: usize| {
            let pod =
                labelled(&format!("p{n}"), "p", &[spread_over("p", ZONE), ("spec.nodeSelector", selector.clone())]);
            with(pod, &[("spec.containers", json!([{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]))])
        };
        let objects: Vec<Value> = [class(), x, y].into_iter().chain((0..4).map(pod)).collect();
        let solution = judged(&objects);
        assert!(solution.unschedulable.is_empty(), "{selector}: {:?}", solution.unschedulable);
        let mut zones: BTreeMap<String, usize> = BTreeMap::new();
        for node in nodes_of(&solution, "p") {
            let zone = node.requirements.single(ZONE).expect("a zone").to_string();
            *zones.entry(zone).or_default() += node.pods.len();
        }
        assert_eq!(zones.into_values().collect::<Vec<_>>(), [2, 2], "{selector}");
    }
}

/// Where and how a type is sold is no label of the type, and counts for `minValues` all the same.
#[test]
fn min_values_count_zones_and_capacity_types() {
    for (key, most) in [(ZONE, 3), (MARKET, 2), ("topology.k8s.aws/zone-id", 3)] {
        for wanted in 1..=most + 1 {
            let wants = json!([{"key": key, "operator": "Exists", "minValues": wanted}]);
            let solution = judged(&[class(), pool("default", wants), labelled("p", "p", &[])]);
            assert_eq!(solution.unschedulable.is_empty(), wanted <= most, "{key} {wanted}: {solution:?}");
        }
    }
}

//! Which domains pods take from each other, and which of them a spread reckons with.

use std::collections::BTreeMap;

use karp_domain::catalogue::CapacityType;
use karp_domain::scheduling::{InFlightNode, Solution, Target};
use serde_json::{Value, json};

use crate::world::topology::judged;
use crate::world::{class, node, pending, pool, running, with};

const ZONE: &str = "topology.kubernetes.io/zone";
const MARKET: &str = "karpenter.sh/capacity-type";
const HOST: &str = "kubernetes.io/hostname";
/// A label that nodes have only where it is said.
const RACK: &str = "rack";

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
        assert_eq!(crowds(&solution, "p"), [2, 2], "{selector}");
    }
}

/// How many pods are planned on new nodes in each zone, the fewest first, where nodes hold none but those with a prefix.
fn crowds(solution: &Solution, prefix: &str) -> Vec<usize> {
    let mut zones: BTreeMap<String, usize> = BTreeMap::new();
    for node in nodes_of(solution, prefix) {
        let zone = node.requirements.single(ZONE).expect("a zone").to_string();
        *zones.entry(zone).or_default() += node.pods.len();
    }
    let mut crowds: Vec<usize> = zones.into_values().collect();
    crowds.sort_unstable();
    crowds
}

fn spreading(name: &str, over: &[(&str, i64, &str)]) -> Value {
    let one = |(key, skew, when): &(&str, i64, &str)| {
        let selector = json!({"matchLabels": {"app": "p"}});
        json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": selector})
    };
    labelled(name, "p", &[("spec.topologySpreadConstraints", over.iter().map(one).collect())])
}

fn racked(name: &str, pool: &str) -> [Value; 2] {
    let [mut host, claim] = node(name, pool, "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand);
    host["metadata"]["labels"][RACK] = json!("r1");
    [host, claim]
}

/// As kube-scheduler, which leaves out nodes that lack the label of any constraint that must hold.
#[test]
fn nodes_that_lack_the_label_of_one_constraint_count_for_none() {
    for (when, expected) in [("DoNotSchedule", vec![1, 1, 1]), ("ScheduleAnyway", vec![1, 2])] {
        let racks = json!([{"key": RACK, "operator": "In", "values": ["r1"]}]);
        let mut objects = vec![class(), pool("racked", racks)];
        objects.extend(node("n1", "racked", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand));
        let of_p = [("metadata.labels", json!({"app": "p"}))];
        objects.extend((0..3).map(|n| with(running(&format!("old{n}"), "n1", "100m", "64Mi"), &of_p)));
        let over = [(ZONE, 1, "DoNotSchedule"), (RACK, 5, when)];
        objects.extend((0..3).map(|n| spreading(&format!("p{n}"), &over)));
        let solution = judged(&objects);
        assert!(solution.unschedulable.is_empty(), "{when}: {:?}", solution.unschedulable);
        assert_eq!(crowds(&solution, "p"), expected, "{when}");
    }
}

/// The same over hosts, where none can be made: the one without the label is not the emptiest.
#[test]
fn hosts_that_lack_the_label_of_one_constraint_hold_nobody_back() {
    let full = with(pool("full", json!([])), &[("spec.limits", json!({"nodes": 0}))]);
    let mut objects = vec![class(), full];
    objects.extend(["n1", "n2"].iter().flat_map(|name| racked(name, "full")));
    objects.extend(node("n3", "full", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand));
    let over = [(HOST, 1, "DoNotSchedule"), (RACK, 9, "DoNotSchedule")];
    objects.extend((0..5).map(|n| spreading(&format!("p{n}"), &over)));
    let solution = judged(&objects);
    assert!(solution.unschedulable.is_empty(), "{:?}", solution.unschedulable);
    let on = |name: &str| solution.placements.iter().filter(|p| p.target == Target::Node(name.into())).count();
    assert_eq!([on("n1"), on("n2"), on("n3")], [3, 2, 0]);
}

/// To kube-scheduler a node without the label is in no domain: nobody is met there, and nobody is near.
#[test]
fn nobody_is_met_where_nodes_lack_the_label() {
    let term = json!({"topologyKey": RACK, "labelSelector": {"matchLabels": {"app": "p"}}});
    let rather = (
        "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution",
        json!([{"weight": 1, "podAffinityTerm": term}]),
    );
    let near = ("spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution", json!([term]));
    let plain = node("n1", "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand);
    for (host, without) in [(plain, true), (racked("n1", "default"), false)] {
        let aside = [("metadata.labels", json!({"app": "guard"})), apart_from("p", RACK)];
        let guard = with(running("guard", "n1", "100m", "64Mi"), &aside);
        let there: Vec<Value> = [class(), pool("default", json!([])), guard].into_iter().chain(host).collect();
        for rule in [Vec::new(), vec![apart_from("p", RACK)], vec![rather.clone()]] {
            let pods = (0..2).map(|n| labelled(&format!("p{n}"), "p", &rule));
            let lonely = labelled("lonely", "q", std::slice::from_ref(&near));
            let solution = judged(&there.iter().cloned().chain(pods).chain([lonely]).collect::<Vec<_>>());
            let refused: Vec<&str> = solution.unschedulable.iter().map(|one| &*one.pod.name).collect();
            assert_eq!(refused, ["lonely"], "{rule:?}: {:?}", solution.unschedulable);
            assert_eq!(solution.nodes.is_empty(), without, "{rule:?}");
        }
        // who spreads needs the label
        let spread = labelled("p", "p", &[spread_over("p", RACK)]);
        assert_eq!(judged(&[there, vec![spread]].concat()).unschedulable.len(), 1);
    }
}

/// Nor is a daemon, which runs on each node, met on nodes without the label.
#[test]
fn no_daemon_is_met_where_nodes_lack_the_label() {
    let racks = json!([{"key": RACK, "operator": "In", "values": ["r1"]}]);
    let template = json!({"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "c"}]}});
    let daemon = json!({"kind": "DaemonSet", "metadata": {"name": "agent", "namespace": "default"},
        "spec": {"selector": {}, "template": template}});
    for (requirements, refused) in [(json!([]), 0), (racks, 1)] {
        let pod = labelled("p", "p", &[apart_from("agent", RACK)]);
        let solution = judged(&[class(), pool("default", requirements), daemon.clone(), pod]);
        assert_eq!(solution.unschedulable.len(), refused, "{:?}", solution.unschedulable);
    }
}

/// Where one pool has the label and another does not, one pod is in the domain and all others are in none.
#[test]
fn pods_keep_apart_on_nodes_of_pools_without_the_label() {
    let racks = json!([{"key": RACK, "operator": "In", "values": ["r1"]}]);
    let mut objects = vec![class(), pool("default", json!([])), pool("racked", racks)];
    objects.extend((0..3).map(|n| labelled(&format!("p{n}"), "p", &[apart_from("p", RACK)])));
    let solution = judged(&objects);
    assert!(solution.unschedulable.is_empty(), "{:?}", solution.unschedulable);
    let racked = nodes_of(&solution, "p").into_iter().filter(|node| &*node.pool == "racked");
    let in_rack: usize = racked.map(|node| node.pods.len()).sum();
    assert!(in_rack <= 1, "{in_rack}");
}

/// Who asks for the label is in a domain: nodes that may be without it are none for such a pod.
#[test]
fn who_asks_for_a_label_is_told_of_its_domains_alone() {
    let racks = json!([{"key": RACK, "operator": "In", "values": ["r1"]}]);
    let of_p = [("metadata.labels", json!({"app": "p"}))];
    let mut objects = vec![class(), pool("default", json!([])), pool("racked", racks)];
    objects.extend(racked("n1", "racked"));
    objects.push(with(running("old", "n1", "100m", "64Mi"), &of_p));
    objects.push(labelled("p", "p", &[apart_from("p", RACK), ("spec.nodeSelector", json!({ (RACK): "r1" }))]));
    let solution = judged(&objects);
    let told = format!("{:?}", solution.unschedulable);
    assert!(told.contains("Everywhere") && !told.contains("no label"), "{told}");
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

//! Where pods can be, by what is there already: disks of nodes, cordons, daemons to come, and others that must be near them.

use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::Pod;
use karp_domain::scheduling::Target;
use serde_json::{Value, json};

use crate::domains::labelled;
use crate::volumes::on_claim;
use crate::world::topology::judged;
use crate::world::{class, node, pending, pool, running, with};

const ZONE: &str = "topology.kubernetes.io/zone";

fn base(more: impl IntoIterator<Item = Value>) -> Vec<Value> {
    [class(), pool("default", json!([]))].into_iter().chain(more).collect()
}

fn named(name: &str, key: &str, value: &str) -> Value {
    json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions":
        [{"key": key, "operator": "In", "values": [value]}]}]}}, "claimRef": {"name": name, "namespace": "default"}})
}

fn claim(name: &str) -> Value {
    json!({"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
        "spec": {"volumeName": format!("pv-{name}")}, "status": {"phase": "Bound"}})
}

/// A claim and the disk of a node that it is bound to.
fn disk(name: &str, node: &str) -> [Value; 2] {
    let mut spec = named(name, "kubernetes.io/hostname", node);
    spec["local"] = json!({"path": "/mnt/disks/ssd0"});
    [claim(name), json!({"kind": "PersistentVolume", "metadata": {"name": format!("pv-{name}")}, "spec": spec})]
}

/// A claim and a volume of one zone.
fn volume(name: &str, zone: &str) -> [Value; 2] {
    let mut spec = named(name, ZONE, zone);
    spec["csi"] = json!({"driver": "ebs.csi.aws.com", "volumeHandle": format!("vol-{name}")});
    [claim(name), json!({"kind": "PersistentVolume", "metadata": {"name": format!("pv-{name}")}, "spec": spec})]
}

fn host(name: &str, zone: &str) -> [Value; 2] {
    node(name, "default", "m7i.large", zone, CapacityType::OnDemand)
}

#[test]
fn a_disk_of_a_node_is_reached_there_as_long_as_the_node_stays() {
    let data = || on_claim(pending("db", "500m", "512Mi"), "data");
    let mut objects = base(disk("data", "n2"));
    objects.extend(host("n1", "us-east-1a").into_iter().chain(host("n2", "us-east-1b")));
    objects.push(data());
    let placed = judged(&objects).placements;
    assert_eq!(placed[0].target, Target::Node("n2".into()));
    // full: no other node would do, and none is bought in vain
    objects.push(running("big", "n2", "1800m", "512Mi"));
    let solution = judged(&objects);
    assert_eq!((solution.nodes.len(), solution.unschedulable.len()), (0, 1), "{solution:?}");
    // gone: whoever looks after disks makes another
    let objects = base(disk("data", "n3").into_iter().chain([data()]));
    assert_eq!(judged(&objects).nodes.len(), 1);
}

#[test]
fn who_bears_a_cordon_may_use_a_cordoned_node() {
    let mut objects = base([]);
    let [node, claim] = host("n1", "us-east-1a");
    objects.extend([claim, with(node, &[("spec.unschedulable", json!(true))])]);
    let bears = json!([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]);
    objects.extend([
        with(pending("bears", "500m", "512Mi"), &[("spec.tolerations", bears)]),
        pending("minds", "500m", "512Mi"),
    ]);
    let solution = judged(&objects);
    assert_eq!(solution.placements.len(), 1);
    assert_eq!(&*solution.placements[0].pod.name, "bears");
    assert_eq!(solution.nodes.len(), 1);
}

/// Nodes of a node group have no claim, and daemons all the same.
#[test]
fn daemons_to_come_keep_their_room_on_nodes_of_others() {
    let [node, _] = host("n1", "us-east-1a");
    let daemon = json!({"kind": "DaemonSet", "metadata": {"name": "agent", "namespace": "kube-system"}, "spec": {
        "selector": {"matchLabels": {"app": "agent"}}, "template": {"metadata": {"labels": {"app": "agent"}}, "spec":
            {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}}});
    let mut objects = base([node, pending("p", "1500m", "512Mi")]);
    assert_eq!(judged(&objects).placements.len(), 1);
    objects.push(daemon);
    assert_eq!(judged(&objects).nodes.len(), 1);
}

/// `Gte` is of NodePools: the API server takes no such pod.
#[test]
fn pods_ask_with_the_operators_of_pods() {
    let term = |operator: &str| {
        let one = json!({"key": "karpenter.k8s.aws/instance-cpu", "operator": operator, "values": ["4"]});
        let terms = json!([{"matchExpressions": [one]}]);
        let path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        let pod = with(pending("p", "1", "1Gi"), &[(path, terms)]);
        Pod::from_kube(&serde_json::from_value(pod).unwrap())
    };
    assert!(term("Gt").is_ok());
    for operator in ["Gte", "Lte"] {
        let problem = term(operator).unwrap_err().to_string();
        assert!(problem.contains(&format!("operator {operator} is for NodePools only")), "{problem}");
    }
}

/// A pool may ask for what only types have; if none has it there is nothing to buy.
#[test]
fn a_pool_that_asks_for_what_no_type_has_grows_not() {
    for key in ["placement-group-id", "instance-accelerator-name"] {
        let wanted = json!([{"key": format!("karpenter.k8s.aws/{key}"), "operator": "In", "values": ["pg-1"]}]);
        let objects = [class(), pool("default", wanted), pending("p", "500m", "512Mi")];
        let solution = judged(&objects);
        let said = solution.unschedulable[0].reasons[0].to_string();
        assert!(said.contains(&format!("no instance type has karpenter.k8s.aws/{key}")), "{said}");
    }
}

fn near(app: &str) -> (&'static str, Value) {
    let term = json!([{"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": app}}}]);
    ("spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution", term)
}

/// Who can go anywhere goes where those can be that must be near it.
#[test]
fn pods_go_where_others_can_follow() {
    for zone in ["us-east-1a", "us-east-1b", "us-east-1c"] {
        let bound = ("spec.nodeSelector", json!({ ZONE: zone }));
        let apart = base([labelled("a", "x", &[]), labelled("b", "y", &[near("x"), bound.clone()])]);
        let alike = base([labelled("a", "x", &[near("x")]), labelled("b", "x", &[near("x"), bound])]);
        for objects in [apart, alike] {
            let solution = judged(&objects);
            assert!(solution.unschedulable.is_empty(), "{zone}: {:?}", solution.unschedulable);
        }
    }
}

/// kube-scheduler counts the zones where nodes are; volumes keep pods, not nodes, out of the others.
#[test]
fn zones_without_nodes_do_not_hold_up_pods_that_volumes_keep_in_one() {
    let spread = json!([{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "db"}}}]);
    let pod = |name: &str| on_claim(labelled(name, "db", &[("spec.topologySpreadConstraints", spread.clone())]), name);
    let mut objects = base((0..3).flat_map(|n| volume(&format!("db-{n}"), "us-east-1b")));
    objects.extend((0..3).map(|n| pod(&format!("db-{n}"))));
    assert!(judged(&objects).unschedulable.is_empty());
    // a node elsewhere counts, present or planned
    let mut beside = objects.clone();
    beside.extend(host("n1", "us-east-1a"));
    assert_eq!(judged(&beside).unschedulable.len(), 2);
    objects.push(with(pending("web", "500m", "512Mi"), &[("spec.nodeSelector", json!({ ZONE: "us-east-1a" }))]));
    assert_eq!(judged(&objects).unschedulable.len(), 2);
}

/// The claim of a volume that comes with its pod is the pod's own, or nobody starts the pod.
#[test]
fn a_claim_that_was_made_for_another_pod_is_told() {
    let template = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "gp3"}}}}]);
    let class = json!({"kind": "StorageClass", "metadata": {"name": "gp3"}, "provisioner": "ebs.csi.aws.com",
        "volumeBindingMode": "WaitForFirstConsumer"});
    let claim = |pod: &str| {
        json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "p-v", "namespace": "default",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod, "controller": true}]},
            "spec": {"storageClassName": "gp3"}, "status": {"phase": "Pending"}})
    };
    let pod = with(pending("p", "500m", "512Mi"), &[("spec.volumes", template)]);
    let own = judged(&base([class.clone(), pod.clone(), claim("p")]));
    assert_eq!(own.nodes.len(), 1);
    let foreign = judged(&base([class, pod, claim("an-earlier-p")]));
    let said = foreign.unschedulable[0].reasons[0].to_string();
    assert!(said.contains("p-v: the claim was not made for this pod"), "{said}");
    assert!(foreign.unschedulable[0].reasons[0].remedy().contains("delete claim p-v"));
}

//! Volumes that nodes attach: how many a type takes, and that no node is planned for more.

use std::collections::{BTreeMap, BTreeSet};

use karp_domain::api::AmiFamily;
use karp_domain::catalogue::{CapacityType, InstanceType, NodeSettings, builtin_type};
use karp_domain::cluster::Snapshot;
use karp_domain::scheduling::{Asked, Misfit, Refusal, Solution, Target, explain, solve};
use serde_json::{Value, json};

use crate::world::{self, catalogue, class, csi_node, judge, node, pending, pool, running, snapshot, with};

const DRIVER: &str = "ebs.csi.aws.com";

fn attachable(name: &str, family: AmiFamily) -> Option<u32> {
    InstanceType::from_facts(builtin_type(name).unwrap(), &NodeSettings::of(family), Vec::new()).attachable
}

/// What the EBS CSI driver reports on each: 28 slots that interfaces share, slots of EBS alone, and Xen.
#[test]
fn a_type_attaches_what_ec2_says_less_what_the_node_needs_itself() {
    let known = [
        ("m5.large", 25),
        ("t3.medium", 25),
        ("m5d.24xlarge", 21),
        ("m7i.large", 31),
        ("c7a.48xlarge", 127),
        ("c4.large", 38),
        ("i3.large", 38),
        ("g5.48xlarge", 7),
        ("d3.8xlarge", 1),
    ];
    for (name, most) in known {
        assert_eq!(attachable(name, AmiFamily::Al2023), Some(most), "{name}");
    }
    assert_eq!(attachable("m7i.large", AmiFamily::Bottlerocket), Some(30), "its images have two volumes");
    let class =
        serde_json::from_value(json!({"amiSelectorTerms": [{"alias": "al2023@latest"}], "subnetSelectorTerms": [],
        "securityGroupSelectorTerms": [], "blockDeviceMappings": [
            {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "20Gi"}},
            {"deviceName": "/dev/xvdb", "ebs": {"volumeSize": "50Gi"}},
            {"deviceName": "/dev/xvdc", "ebs": {"volumeSize": "50Gi"}}]}));
    let settings = NodeSettings::from_class(&class.unwrap());
    let kind = InstanceType::from_facts(builtin_type("m7i.large").unwrap(), &settings, Vec::new());
    assert_eq!(kind.attachable, Some(29), "the root, and two that the class maps beside it");
}

fn storage(driver: &str) -> Value {
    json!({"kind": "StorageClass", "metadata": {"name": "gp3"}, "provisioner": driver, "volumeBindingMode": "WaitForFirstConsumer"})
}

/// A small pod with volumes of its own.
fn with_volumes(pod: Value, count: usize) -> Value {
    let volume = |at| json!({"name": format!("v{at}"), "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "gp3"}}}});
    with(pod, &[("spec.volumes", (0..count).map(volume).collect())])
}

fn small(name: &str, volumes: usize) -> Value {
    with_volumes(pending(name, "10m", "16Mi"), volumes)
}

fn base(driver: &str) -> Vec<Value> {
    let on_demand = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    vec![class(), pool("default", on_demand), storage(driver)]
}

fn answer(objects: &[Value], types: &[&str]) -> (Snapshot, Solution) {
    let snapshot = snapshot(objects, catalogue(types));
    let solution = solve(&snapshot);
    judge::judge(&snapshot, &solution);
    (snapshot, solution)
}

fn sizes(solution: &Solution) -> Vec<usize> {
    let mut sizes: Vec<usize> = solution.nodes.iter().map(|node| node.pods.len()).collect();
    sizes.sort_unstable();
    sizes
}

/// As kube-scheduler, which reads the zone labels of volumes too: those that were made by hand may have no node affinity.
#[test]
fn a_volume_is_where_its_labels_say() {
    let zones = |labels: Value| -> BTreeSet<String> {
        let claim = json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "default"},
            "spec": {"volumeName": "v", "storageClassName": "gp3"}, "status": {"phase": "Bound"}});
        let volume = json!({"kind": "PersistentVolume", "metadata": {"name": "v", "labels": labels},
            "spec": {"csi": {"driver": DRIVER, "volumeHandle": "v"}}});
        let using = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        let mut objects = base(DRIVER);
        objects.extend([claim, volume, with(pending("p", "10m", "16Mi"), &[("spec.volumes", using)])]);
        let (_, solution) = answer(&objects, &["m5.large"]);
        assert!(solution.unschedulable.is_empty());
        let offerings = solution.nodes.iter().flat_map(|node| node.offerings.iter());
        offerings.map(|offering| offering.zone.name.to_string()).collect()
    };
    let all = ["us-east-1a", "us-east-1b", "us-east-1c"];
    let cases: [(Value, &[&str]); 4] = [
        (json!({}), &all),
        (json!({"topology.kubernetes.io/zone": "us-east-1b"}), &all[1..2]),
        (json!({"failure-domain.beta.kubernetes.io/zone": "us-east-1b__us-east-1c"}), &all[1..]),
        (json!({"topology.kubernetes.io/zone": "us-east-1b__"}), &all),
    ];
    for (labels, expected) in cases {
        assert!(zones(labels.clone()).iter().eq(expected), "{labels}");
    }
}

#[test]
fn new_nodes_hold_no_more_pods_than_their_volumes_let_them() {
    let mut objects = base(DRIVER);
    objects.extend((0..10).map(|at| small(&format!("p{at}"), 4)));
    // 25 volumes on a node: six pods
    let (_, solution) = answer(&objects, &["m5.large"]);
    assert!(solution.unschedulable.is_empty());
    assert_eq!(sizes(&solution).iter().sum::<usize>(), 10);
    assert!(sizes(&solution).iter().all(|pods| *pods <= 6), "{:?}", sizes(&solution));
    assert_eq!(solution.nodes.len(), 2);
    // 31: one fewer node than two would need
    let few = &objects[..objects.len() - 3];
    assert_eq!(sizes(&answer(few, &["m5.large", "m7i.large"]).1), [7]);
}

#[test]
fn listed_types_attach_what_their_pods_have() {
    let mut objects = base(DRIVER);
    objects.push(small("many", 28));
    let (_, solution) = answer(&objects, &["c7i.large", "m5.large", "m7i.large", "m5.xlarge"]);
    let types: Vec<_> = solution.nodes[0].instance_types();
    assert!(!types.is_empty() && types.iter().all(|name| name.contains("7i")), "{types:?}");
}

#[test]
fn a_pod_with_more_volumes_than_any_type_attaches_is_refused() {
    let mut objects = base(DRIVER);
    objects.extend([small("hoarder", 32), small("modest", 1)]);
    let (snapshot, solution) = answer(&objects, &["m5.large", "m7i.large"]);
    assert_eq!(solution.nodes.len(), 1, "of the other pod");
    let reason = &solution.unschedulable[0].reasons[0];
    let misfit = Misfit::TooManyVolumes { driver: DRIVER.into(), wanted: 32, most: 31 };
    assert_eq!(*reason, Refusal::Pool { pool: "default".into(), misfit });
    assert_eq!(reason.to_string(), "pool default: 32 volumes of ebs.csi.aws.com, a new node attaches 31 at most");
    assert!(reason.remedy().contains("at most 31 volumes"), "{}", reason.remedy());
    let data = json!({"kind": "pool", "pool": "default", "misfit":
        {"kind": "tooManyVolumes", "driver": DRIVER, "wanted": 32, "most": 31}});
    assert_eq!(serde_json::to_value(reason).unwrap(), data);
    let pod = snapshot.pods.iter().find(|pod| &*pod.key.name == "hoarder").unwrap();
    let told = explain(&snapshot, pod, &solution);
    let step = told[0].steps.last().unwrap();
    assert_eq!(step.asked, Asked::Volumes { driver: DRIVER.into(), wanted: 32, most: 31 });
    assert_eq!(step.removed, ["m5.large".into(), "m7i.large".into()]);
}

/// What the driver says on nodes holds for new nodes of their type, whatever EC2 says: it can be told to keep some.
#[test]
fn nodes_teach_what_their_type_attaches() {
    let mut objects = base(DRIVER);
    objects.extend(node("n1", "default", "m7i.large", "us-east-1a", CapacityType::OnDemand));
    objects.extend([csi_node("n1", DRIVER, 10), running("full", "n1", "1800m", "1Gi")]);
    objects.extend((0..4).map(|at| with_volumes(pending(&format!("p{at}"), "300m", "16Mi"), 5)));
    let (_, solution) = answer(&objects, &["m7i.large"]);
    assert_eq!(sizes(&solution), [2, 2]);
}

/// Of other drivers only nodes tell: the most that any took.
#[test]
fn drivers_that_ec2_knows_nothing_of_are_bounded_as_on_other_nodes() {
    let other = "csi.example.com";
    let mut objects = base(other);
    objects.extend((0..4).map(|at| small(&format!("p{at}"), 3)));
    assert_eq!(sizes(&answer(&objects, &["m7i.large"]).1), [4], "nothing is known");
    objects.extend(node("n1", "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    objects.extend([csi_node("n1", other, 6), running("full", "n1", "3915m", "1Gi")]);
    assert_eq!(sizes(&answer(&objects, &["m7i.large", "m7i.xlarge"]).1), [2, 2]);
}

#[test]
fn nodes_that_are_there_take_what_is_left_of_theirs() {
    let mut objects = base(DRIVER);
    objects.extend(node("n1", "default", "m7i.large", "us-east-1a", CapacityType::OnDemand));
    objects.extend([with_volumes(running("old", "n1", "10m", "16Mi"), 28), small("a", 2), small("b", 2)]);
    // before its driver has told: 31 as the type attaches
    let (_, solution) = answer(&objects, &["m7i.large"]);
    let on: Vec<&Target> = solution.placements.iter().map(|placement| &placement.target).collect();
    assert_eq!((on, sizes(&solution)), (vec![&Target::Node("n1".into())], vec![1]));
    objects.push(csi_node("n1", DRIVER, 32));
    assert_eq!(answer(&objects, &["m7i.large"]).1.placements.len(), 2);
    objects.push(csi_node("n1", DRIVER, 29));
    assert_eq!(answer(&objects, &["m7i.large"]).1.placements.len(), 0);
}

/// kube-scheduler may place each on a node of its own, where the volume is attached, too; one that is not counted there would be planned for
/// a node that is full for ever.
#[test]
fn a_claim_that_several_pods_name_counts_for_each() {
    let claim = json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"},
        "spec": {"storageClassName": "gp3"}, "status": {"phase": "Pending"}});
    let mut objects = base(DRIVER);
    objects.push(claim.clone());
    let volume = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let pod = |at| with(pending(&format!("p{at:02}"), "10m", "16Mi"), &[("spec.volumes", volume.clone())]);
    objects.extend((0..28).map(pod));
    let (_, solution) = answer(&objects, &["m5.large"]);
    assert_eq!(sizes(&solution).iter().sum::<usize>(), 28);
    assert!(sizes(&solution).iter().all(|pods| *pods <= 25), "{:?}", sizes(&solution));
    // one runs on a node of its own, the other node is full
    let mut objects = base(DRIVER);
    objects.push(claim);
    objects.extend(node("n1", "default", "m5.large", "us-east-1a", CapacityType::OnDemand));
    objects.extend(node("n2", "default", "m5.large", "us-east-1a", CapacityType::OnDemand));
    objects.extend([csi_node("n1", DRIVER, 1), csi_node("n2", DRIVER, 0)]);
    objects.push(with(running("p00", "n1", "1900m", "16Mi"), &[("spec.volumes", volume.clone())]));
    objects.push(with(pending("p01", "100m", "16Mi"), &[("spec.volumes", volume)]));
    let (_, solution) = answer(&objects, &["m5.large", "m7i.large"]);
    assert_eq!((solution.placements.len(), sizes(&solution)), (0, vec![1]));
}

fn exclusive(name: &str) -> Value {
    json!({"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
        "spec": {"storageClassName": "gp3", "accessModes": ["ReadWriteOncePod"]}})
}

pub fn on_claim(pod: Value, claim: &str) -> Value {
    with(pod, &[("spec.volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]))])
}

fn kept_for(solution: &Solution) -> Vec<(String, String)> {
    let kept = |u: &karp_domain::scheduling::Unschedulable| (u.pod.name.to_string(), u.reasons[0].to_string());
    solution.unschedulable.iter().map(kept).collect()
}

/// kube-scheduler binds one pod with such a claim and refuses all others, on whatever node: a node for them would stay empty.
#[test]
fn a_claim_for_one_pod_is_kept_for_the_first() {
    let text = |by: &str| {
        format!("persistent volume claim data: one pod at a time may use the claim, and it is kept for default/{by}")
    };
    let mut objects = base(DRIVER);
    objects.push(exclusive("data"));
    objects.extend(["b", "c"].map(|name| on_claim(pending(name, "100m", "16Mi"), "data")));
    // the first by name fits nowhere, and keeps nobody waiting
    objects.push(on_claim(pending("a", "900", "16Mi"), "data"));
    let (_, solution) = answer(&objects, &["m5.large"]);
    assert_eq!(sizes(&solution), [1]);
    assert_eq!(kept_for(&solution), [("a".to_owned(), text("b")), ("c".to_owned(), text("b"))]);
    let remedy = solution.unschedulable[1].reasons[0].remedy();
    assert_eq!(remedy, "delete pod default/b, or use a claim that several pods may use (not ReadWriteOncePod)");
    // a higher priority comes first
    let urgent = with(on_claim(pending("urgent", "100m", "16Mi"), "data"), &[("spec.priority", json!(10))]);
    objects.push(urgent);
    let (_, solution) = answer(&objects, &["m5.large"]);
    assert_eq!(kept_for(&solution).len(), 3);
    assert_eq!(solution.nodes[0].pods[0].to_string(), "default/urgent");
    // one that runs with it keeps it, unless it goes
    objects.extend(node("n1", "default", "m5.large", "us-east-1a", CapacityType::OnDemand));
    let old = on_claim(running("old", "n1", "1m", "1Mi"), "data");
    objects.push(old.clone());
    let (_, solution) = answer(&objects, &["m5.large"]);
    assert_eq!(kept_for(&solution).len(), 4);
    assert!(kept_for(&solution).iter().all(|(_, why)| *why == text("old")), "{:?}", kept_for(&solution));
    *objects.last_mut().unwrap() = with(old, &[("metadata.deletionTimestamp", json!(world::NOW))]);
    let (_, solution) = answer(&objects, &["m5.large"]);
    assert_eq!(solution.placements.len(), 1);
    // a claim for several takes all
    let many = with(exclusive("data"), &[("spec.accessModes", json!(["ReadWriteMany"]))]);
    let at = objects.iter().position(|object| object["kind"] == "PersistentVolumeClaim").unwrap();
    objects[at] = many;
    assert_eq!(answer(&objects, &["m5.large"]).1.placements.len(), 3);
}

/// A pod that lacks one of its claims keeps no other pod from the rest of them.
#[test]
fn who_lacks_a_claim_keeps_none() {
    let mut objects = base(DRIVER);
    objects.extend([exclusive("one"), exclusive("two")]);
    objects.extend(node("n1", "default", "m5.large", "us-east-1a", CapacityType::OnDemand));
    objects.push(on_claim(running("old", "n1", "1900m", "1Mi"), "two"));
    let both = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "one"}},
        {"name": "w", "persistentVolumeClaim": {"claimName": "two"}}]);
    objects.push(with(pending("a", "100m", "16Mi"), &[("spec.volumes", both)]));
    objects.push(on_claim(pending("b", "100m", "16Mi"), "one"));
    let (_, solution) = answer(&objects, &["m5.large"]);
    assert_eq!(sizes(&solution), [1]);
    assert_eq!(kept_for(&solution).len(), 1);
    assert!(kept_for(&solution)[0].1.ends_with("kept for default/old"), "{:?}", kept_for(&solution));
}

/// A pod that moves takes its claim with it.
#[test]
fn a_pod_that_is_to_move_keeps_its_claim() {
    let mut objects = base(DRIVER);
    objects.push(exclusive("data"));
    let [going, claim] = node("n1", "default", "m5.large", "us-east-1a", CapacityType::OnDemand);
    let gone = ("metadata.deletionTimestamp", json!(world::NOW));
    objects.extend([going, with(claim, &[gone])]);
    objects.push(on_claim(running("old", "n1", "100m", "1Mi"), "data"));
    objects.push(on_claim(pending("a", "100m", "16Mi"), "data"));
    let (_, solution) = answer(&objects, &["m5.large"]);
    assert_eq!(solution.nodes[0].pods[0].to_string(), "default/old");
    assert_eq!(kept_for(&solution).len(), 1);
}

/// Volumes that pods name without a claim are attached like others.
#[test]
fn volumes_without_a_claim_are_counted() {
    let mut objects = base(DRIVER);
    let volume =
        |id: usize| json!({"name": format!("v{id}"), "awsElasticBlockStore": {"volumeID": format!("vol-{id}")}});
    let pod = |at: usize| {
        let volumes: Vec<Value> = (0..10).map(|one| volume(at * 10 + one)).collect();
        with(pending(&format!("p{at}"), "10m", "16Mi"), &[("spec.volumes", json!(volumes))])
    };
    objects.extend((0..4).map(pod));
    let (_, solution) = answer(&objects, &["m5.large"]);
    assert_eq!(sizes(&solution), [2, 2], "25 on a node");
}

/// A pod that goes counts nothing for its successor, which brings the volume to another node; one that stays does, on its own node.
#[test]
fn a_claim_is_counted_where_its_pod_will_be() {
    let claim = |at: usize| {
        json!({"kind": "PersistentVolumeClaim", "metadata": {"name": format!("data-{at}"), "namespace": "default"},
            "spec": {"storageClassName": "gp3"}, "status": {"phase": "Pending"}})
    };
    let volume = |at: usize| json!([{"name": "v", "persistentVolumeClaim": {"claimName": format!("data-{at}")}}]);
    let mut objects = base(DRIVER);
    objects.extend(node("n1", "default", "m5.large", "us-east-1a", CapacityType::OnDemand));
    objects.extend((0..28).map(claim));
    let going = ("metadata.deletionTimestamp", json!(world::NOW));
    for at in 0..28 {
        let old =
            with(running(&format!("old-{at}"), "n1", "1m", "1Mi"), &[("spec.volumes", volume(at)), going.clone()]);
        let new = with(pending(&format!("new-{at}"), "10m", "16Mi"), &[("spec.volumes", volume(at))]);
        objects.extend([old, new]);
    }
    let (_, solution) = answer(&objects, &["m5.large"]);
    assert!(solution.placements.is_empty(), "all that n1 attaches is taken");
    assert_eq!(sizes(&solution).iter().sum::<usize>(), 28);
    assert!(sizes(&solution).iter().all(|pods| *pods <= 25), "{:?}", sizes(&solution));
}

/// A volume that two nodes attach takes a place on each.
#[test]
fn a_volume_on_two_nodes_is_counted_on_both() {
    let claim = json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"},
        "spec": {"storageClassName": "gp3"}, "status": {"phase": "Pending"}});
    let volume = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "again", "persistentVolumeClaim": {"claimName": "data"}}]);
    let mut objects = base(DRIVER);
    objects.push(claim);
    for name in ["n1", "n2"] {
        objects.extend(node(name, "default", "m5.large", "us-east-1a", CapacityType::OnDemand));
        let pod = running(&format!("on-{name}"), name, "10m", "16Mi");
        objects.extend([csi_node(name, DRIVER, 3), with(pod, &[("spec.volumes", volume.clone())])]);
    }
    objects.extend(["a", "b"].map(|name| small(name, 2)));
    assert_eq!(answer(&objects, &["m5.large"]).1.placements.len(), 2, "one of three is taken on each");
    objects.push(small("c", 1));
    let (_, solution) = answer(&objects, &["m5.large"]);
    assert_eq!((solution.placements.len(), sizes(&solution)), (2, vec![1]));
}

/// A driver that was told to attach few says so on every node; types of which there is no node are taken to be told the same.
#[test]
fn types_without_nodes_attach_less_where_all_nodes_do() {
    let mut objects = base(DRIVER);
    objects.extend(node("n1", "default", "m5.large", "us-east-1a", CapacityType::OnDemand));
    objects.extend([csi_node("n1", DRIVER, 5), running("full", "n1", "1900m", "1Gi"), small("p", 12)]);
    let snapshot = snapshot(&objects, catalogue(&["m5.large", "m7i.large"]));
    // 20 fewer than EC2 says
    let misfit = Misfit::TooManyVolumes { driver: DRIVER.into(), wanted: 12, most: 11 };
    let reason = Refusal::Pool { pool: "default".into(), misfit };
    assert_eq!(solve(&snapshot).unschedulable[0].reasons, [reason]);
}

/// Claims in flight are filled as their types attach, so that a second look launches nothing more.
#[test]
fn claims_in_flight_keep_their_pods() {
    let mut objects = base(DRIVER);
    objects.extend((0..10).map(|at| small(&format!("p{at}"), 4)));
    let (_, first) = answer(&objects, &["m5.large", "m5.xlarge"]);
    for (at, planned) in first.nodes.iter().enumerate() {
        objects.push(json!({
            "kind": "NodeClaim", "apiVersion": "karpenter.sh/v1",
            "metadata": {"name": format!("default-{at}"), "uid": "x", "labels": {"karpenter.sh/nodepool": "default"},
                "creationTimestamp": world::NOW},
            "spec": {"requirements": karp_domain::api::requirement_specs(&planned.requirements),
                "resources": {"requests": planned.requests},
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}},
        }));
    }
    let (_, second) = answer(&objects, &["m5.large", "m5.xlarge"]);
    assert!(second.nodes.is_empty() && second.unschedulable.is_empty());
    let mut on: BTreeMap<String, usize> = BTreeMap::new();
    second.placements.iter().for_each(|placed| *on.entry(format!("{:?}", placed.target)).or_default() += 1);
    assert_eq!(on.values().sum::<usize>(), 10);
    assert!(on.values().all(|pods| *pods <= 6), "{on:?}");
}

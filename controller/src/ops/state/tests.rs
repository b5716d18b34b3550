//! What the gauges say of a small cluster.

use karp_domain::api::conditions::Condition;
use karp_domain::catalogue::{Catalogue, InstanceType, NodeSettings, Zone, builtin, offerings};
use karp_domain::cluster::Pool;
use karp_domain::disruption::{Candidate, KeepReason, Verdict};
use serde_json::{Value, json};

use super::*;
use crate::ops::decisions::Decision;
use crate::ops::metrics::Kind;

/// A node with a pod of a DaemonSet and another one, a pod that waits, and a type that can be bought.
pub(in crate::ops) fn sample() -> Observed {
    let pod = |name: &str, node: Value, owner: &str, cpu: &str| {
        let object = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "creationTimestamp": "2026-11-21T11:59:00Z",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": owner, "name": owner, "uid": owner, "controller": true}]},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]},
            "status": {"phase": if node.is_null() { "Pending" } else { "Running" }},
        });
        Arc::new(Pod::from_kube(&serde_json::from_value(object).expect("a pod")).expect("a readable pod"))
    };
    let node = json!({
        "metadata": {"name": "n1", "creationTimestamp": "2026-11-21T11:00:00Z", "labels": {"karpenter.sh/nodepool": "default",
            "topology.kubernetes.io/zone": "us-east-1a", "kubernetes.io/arch": "amd64", "node.kubernetes.io/instance-type": "m7i.large",
            "karpenter.sh/capacity-type": "spot"}},
        "spec": {"providerID": "aws:///us-east-1a/i-1"},
        "status": {"capacity": {"cpu": "2", "memory": "8Gi", "pods": "29"}, "allocatable": {"cpu": "1930m", "memory": "7Gi", "pods": "29"}},
    });
    let node: k8s_openapi::api::core::v1::Node = serde_json::from_value(node).expect("a node");
    let now: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
    let mut snapshot = Snapshot::empty(now);
    snapshot.nodes.push(Arc::new(Node::from_kube(&node).expect("a readable node")));
    snapshot.pods = vec![
        pod("agent", json!("n1"), "DaemonSet", "100m"),
        pod("web", json!("n1"), "ReplicaSet", "500m"),
        pod("waits", Value::Null, "ReplicaSet", "1"),
        pod("fresh", Value::Null, "ReplicaSet", "1"),
    ];
    let facts = builtin().iter().find(|facts| &*facts.name == "m7i.large").expect("a type");
    let zones = [Zone::new("us-east-1a", "use1-az1")];
    let one = InstanceType::from_facts(facts, &NodeSettings::default(), offerings(facts, &zones, |_, _| None));
    snapshot.catalogues.insert("default".into(), Arc::new(Catalogue::new(vec![one])));
    let all = vec![Condition::met("Launched", "2026-11-21T11:30:00Z".parse().expect("a time"))];
    let going = "2026-11-21T11:59:30Z".parse().expect("a time");
    let objects = vec![
        Object {
            kind: Kind::NodeClaim,
            name: "default-1".to_owned(),
            uid: "u1".to_owned(),
            deleting: Some(going),
            conditions: all.clone(),
        },
        Object {
            kind: Kind::Ec2NodeClass,
            name: "default".to_owned(),
            uid: "u3".to_owned(),
            deleting: None,
            conditions: Vec::new(),
        },
        Object { kind: Kind::Node, name: "n1".to_owned(), uid: "u2".to_owned(), deleting: None, conditions: all },
    ];
    let pool = json!({
        "metadata": {"name": "default"},
        "spec": {"limits": {"cpu": "100"}, "template": {"spec": {"nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass",
            "name": "default"}, "requirements": []}}},
    });
    let pool: karp_domain::api::NodePool = serde_json::from_value(pool).expect("a pool");
    snapshot.pools.push(Arc::new(Pool::from_kube(&pool).expect("a readable pool")));
    let usage = BTreeMap::from([("default".to_owned(), snapshot.nodes[0].capacity.clone())]);
    let prices_read = [(CapacityType::Spot, "2026-11-21T11:00:00Z".parse().expect("a time"))].into();
    let (decisions, kept) = (Decisions::default(), Kept::default());
    let before = |seconds: i64| now - jiff::SignedDuration::from_secs(seconds);
    let (waits, fresh) = (snapshot.pods[2].key.clone(), snapshot.pods[3].key.clone());
    decisions.see(&waits, before(50));
    decisions.decide(&waits, Decision::Placed, before(40));
    decisions.see(&fresh, before(5));
    let candidate = Candidate {
        claim: "default-1".into(),
        uid: "u".into(),
        node: Some("n1".into()),
        pool: "default".into(),
        price: None,
    };
    kept.tell(&[(candidate, Verdict::Keep(KeepReason::NodeProtected))]);
    let user_data = BTreeMap::from([("default".to_owned(), 1500), ("gone".to_owned(), 9)]);
    Observed { snapshot, usage, objects, decisions, kept, prices_read, user_data, only_sums: false }
}

fn value(all: &[Gauges], name: &str, wanted: &[(&str, &str)]) -> Option<f64> {
    let series = &all.iter().find(|gauges| gauges.name == name)?.series;
    let has = |series: &&Series| {
        let own = || series.of.iter().chain(&series.more);
        wanted.iter().all(|(key, text)| own().any(|(known, found)| known == key && found == text))
    };
    series.iter().find(has).map(|series| series.value)
}

#[test]
fn what_pods_ask_for_is_told_by_node() {
    let all = gauges(&sample());
    let cpu = [("node_name", "n1"), ("resource_type", "cpu"), ("capacity_type", "spot"), ("nodepool", "default")];
    assert_eq!(value(&all, "karpenter_nodes_allocatable", &cpu), Some(1.93));
    assert_eq!(value(&all, "karpenter_nodes_total_pod_requests", &cpu), Some(0.6));
    assert_eq!(value(&all, "karpenter_nodes_total_daemon_requests", &cpu), Some(0.1));
    assert_eq!(value(&all, "karpenter_nodes_current_lifetime_seconds", &[("node_name", "n1")]), Some(3600.0));
    assert_eq!(value(&all, "karpenter_pods_unbound_time_seconds", &[("name", "waits")]), Some(60.0));
    assert_eq!(
        value(&all, "karpenter_pods_state", &[("name", "web"), ("node", "n1"), ("zone", "us-east-1a")]),
        Some(1.0)
    );
    assert_eq!(value(&all, "karpenter_pods_unbound_time_seconds", &[("name", "web")]), None);
}

#[test]
fn prices_tell_their_age_and_how_many_are_guessed() {
    let mut observed = sample();
    let told = |observed: &Observed, name: &str, kind: &str| {
        value(&gauges(observed), &format!("karp_cloudprovider_{name}"), &[("capacity_type", kind)])
    };
    assert_eq!(told(&observed, "prices_age_seconds", "spot"), Some(3600.0));
    assert_eq!(told(&observed, "prices_age_seconds", "on-demand"), None, "nobody read any");
    assert_eq!(told(&observed, "offerings_estimated", "on-demand"), Some(1.0));
    let known = observed.snapshot.catalogues["default"].clone();
    observed.snapshot.catalogues.insert("other".into(), known);
    assert_eq!(told(&observed, "offerings_estimated", "on-demand"), Some(1.0), "the same of two classes");
}

#[test]
fn nothing_is_told_of_what_is_gone_or_not_wanted() {
    let mut observed = sample();
    observed.snapshot.nodes.clear();
    observed.snapshot.pods.clear();
    observed.snapshot.pools.clear();
    observed.objects.clear();
    let all = gauges(&observed);
    // what was remembered of them is no reason to tell of them
    let of_gone = |gauges: &Gauges| {
        let of = ["karpenter_node", "karpenter_pods", "karpenter_ec2", "karp_nodes", "operator_"];
        of.iter().any(|prefix| gauges.name.starts_with(prefix))
    };
    assert!(!all.iter().any(of_gone), "{all:?}");
    let mut observed = sample();
    observed.only_sums = true;
    let all = gauges(&observed);
    assert!(all.iter().all(|gauges| !gauges.name.starts_with("karpenter_pods_")));
    let share = value(&all, "karpenter_cluster_utilization_percent", &[("resource_type", "cpu")]).expect("a share");
    assert!((share - 100.0 * 0.6 / 1.93).abs() < 1e-9, "{share}");
}

#[test]
fn pods_tell_what_was_decided_of_them_and_since_when() {
    let observed = sample();
    let told = |observed: &Observed, what: &str, pod: &str| {
        value(&gauges(observed), &format!("karpenter_pods_provisioning_{what}_time_seconds"), &[("name", pod)])
    };
    assert_eq!(told(&observed, "unbound", "waits"), Some(40.0));
    assert_eq!(told(&observed, "unstarted", "waits"), Some(40.0));
    assert_eq!(told(&observed, "scheduling_undecided", "waits"), None, "it has a place");
    assert_eq!(told(&observed, "scheduling_undecided", "fresh"), Some(5.0));
    assert_eq!(told(&observed, "unbound", "fresh"), None);
    // bound, it still has to start
    let mut bound = sample();
    let pod = Pod { node: Some("n1".into()), ..(*bound.snapshot.pods[2]).clone() };
    bound.snapshot.pods[2] = Arc::new(pod);
    assert_eq!(told(&bound, "unbound", "waits"), None);
    assert_eq!(told(&bound, "unstarted", "waits"), Some(40.0));
}

#[test]
fn nodes_that_leave_or_are_not_ready_use_up_budgets() {
    let budget = |observed: &Observed, what: &str| {
        let of = [("nodepool", "default"), ("reason", "Drifted")];
        value(&gauges(observed), &format!("karpenter_nodepools_{what}"), &of)
    };
    let mut observed = sample();
    let claim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": "default-1", "uid": "u1", "labels": {"karpenter.sh/nodepool": "default"}},
        "spec": {"requirements": [], "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}},
        "status": {"providerID": "aws:///us-east-1a/i-1"},
    });
    let claim: karp_domain::api::NodeClaim = serde_json::from_value(claim).expect("a claim");
    observed.snapshot.claims.push(Arc::new(karp_domain::cluster::Claim::from_kube(&claim).expect("a readable claim")));
    assert_eq!(budget(&observed, "nodes_consuming_budgets"), Some(0.0), "it never was ready for pods");
    let mut node = (*observed.snapshot.nodes[0]).clone();
    node.labels.insert(labels::INITIALIZED.to_owned(), "true".to_owned());
    node.ready = karp_domain::cluster::Readiness::Ready;
    observed.snapshot.nodes[0] = Arc::new(node.clone());
    assert_eq!(budget(&observed, "nodes_consuming_budgets"), Some(0.0));
    assert_eq!(budget(&observed, "allowed_disruptions"), Some(1.0));
    node.ready = karp_domain::cluster::Readiness::NotReady(None);
    observed.snapshot.nodes[0] = Arc::new(node);
    assert_eq!(budget(&observed, "nodes_consuming_budgets"), Some(1.0));
    assert_eq!(budget(&observed, "allowed_disruptions"), Some(0.0));
}

#[test]
fn nodes_that_are_kept_tell_why_as_long_as_they_and_their_pool_are_there() {
    let why = |observed: &Observed| {
        value(&gauges(observed), "karp_nodes_kept", &[("nodepool", "default"), ("reason", "node_protected")])
    };
    assert_eq!(why(&sample()), Some(1.0));
    let mut observed = sample();
    observed.snapshot.nodes.clear();
    assert_eq!(why(&observed), None, "the node is gone");
    let mut observed = sample();
    observed.snapshot.pools.clear();
    assert_eq!(why(&observed), None, "the pool is gone");
}

#[test]
fn objects_tell_their_conditions_and_how_long_they_have_been_going() {
    let all = gauges(&sample());
    let launched = [("name", "default-1"), ("type", "Launched"), ("status", "True"), ("reason", "Launched")];
    assert_eq!(value(&all, "operator_nodeclaim_status_condition_count", &launched), Some(1.0));
    assert_eq!(value(&all, "operator_nodeclaim_status_condition_current_status_seconds", &launched), Some(1800.0));
    let going = "termination_current_time_seconds";
    assert_eq!(value(&all, &format!("operator_nodeclaim_{going}"), &[("name", "default-1")]), Some(30.0));
    assert_eq!(value(&all, &format!("operator_node_{going}"), &[]), None, "it stays");
    let bytes = |class| value(&all, "karpenter_ec2nodeclasses_userdata_bytes", &[("nodeclass", class)]);
    assert_eq!((bytes("default"), bytes("gone")), (Some(1500.0), None));
}

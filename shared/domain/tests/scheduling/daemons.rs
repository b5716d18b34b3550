//! What daemon pods take of a node: LimitRange defaults, limits that stand for requests, and what the newest pod really asks for.

use std::sync::Arc;

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::{Claim, DaemonSet, LimitRange, Pod, Shape, Whose, admitted};
use karp_domain::resources::Resources;
use karp_domain::scheduling::{Asked, explain, solve};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::deep;
use crate::world::{TYPES, catalogue, class, created, judge, node, pending, pool, running, snapshot, topology, with};

fn daemon_set(containers: &Value) -> apps::DaemonSet {
    serde_json::from_value(json!({
        "metadata": {"name": "agent", "namespace": "monitoring", "uid": "ds",
            "annotations": {"deprecated.daemonset.template.generation": "2"}},
        "spec": {"selector": {}, "template": {"spec": {"containers": containers}}},
    }))
    .unwrap()
}

fn range(namespace: &str, item: &Value) -> Arc<LimitRange> {
    let object = json!({"metadata": {"name": "defaults", "namespace": namespace}, "spec": {"limits": [item]}});
    Arc::new(LimitRange::from_kube(&serde_json::from_value(object).unwrap()).unwrap())
}

fn cpu_of(set: &apps::DaemonSet, ranges: &[Arc<LimitRange>], pods: &[Arc<Pod>]) -> String {
    DaemonSet::admitted(set, ranges, pods).unwrap().shape.requests.get("cpu").to_string()
}

#[test]
fn ranges_give_what_no_container_names() {
    let container = |resources: Value| json!([{"name": "c", "resources": resources}]);
    let plain = json!({"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "200m"}});
    let cases = [
        ("nothing named", container(json!({})), plain.clone(), "200m"),
        ("its own request", container(json!({"requests": {"cpu": "50m"}})), plain.clone(), "50m"),
        ("its own limit is its request", container(json!({"limits": {"cpu": "300m"}})), plain.clone(), "300m"),
        ("a limit alone", container(json!({})), json!({"type": "Container", "default": {"cpu": "500m"}}), "500m"),
        ("a maximum alone", container(json!({})), json!({"type": "Container", "max": {"cpu": "2"}}), "2"),
        ("a minimum alone", container(json!({})), json!({"type": "Container", "min": {"cpu": "10m"}}), "10m"),
        ("of pods, not containers", container(json!({})), json!({"type": "Pod", "max": {"cpu": "2"}}), "0"),
        ("each container", json!([{"name": "a"}, {"name": "b"}]), plain, "400m"),
    ];
    for (case, containers, item, expected) in cases {
        let set = daemon_set(&containers);
        assert_eq!(cpu_of(&set, &[range("monitoring", &item)], &[]), expected, "{case}");
        assert_eq!(cpu_of(&set, &[range("elsewhere", &item)], &[]), cpu_of(&set, &[], &[]), "{case}, elsewhere");
    }
}

#[test]
fn a_range_that_cannot_be_read_is_named() {
    let object = json!({"metadata": {"name": "bad", "namespace": "n"},
        "spec": {"limits": [{"type": "Container", "default": {"cpu": "much"}}]}});
    let error = LimitRange::from_kube(&serde_json::from_value(object).unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("LimitRange n/bad: spec.limits[0].default: "), "{error}");
}

#[test]
fn the_newest_pod_of_the_template_says_what_it_takes() {
    let set = daemon_set(&json!([{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]));
    let pod = |name: &str, generation: &str, created: &str, owner: &str, cpu: &str| -> Arc<Pod> {
        let pod: core::Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "monitoring", "creationTimestamp": created,
                "labels": {"pod-template-generation": generation},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": owner}]},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        }))
        .unwrap();
        Arc::new(Pod::from_kube(&pod).unwrap())
    };
    let old = pod("old", "1", "2026-11-21T11:59:00Z", "agent", "7");
    let first = pod("first", "2", "2026-11-21T10:00:00Z", "agent", "150m");
    let second = pod("second", "2", "2026-11-21T11:00:00Z", "agent", "250m");
    let foreign = pod("foreign", "2", "2026-11-21T11:30:00Z", "another", "9");
    assert_eq!(cpu_of(&set, &[], &[old.clone(), foreign.clone()]), "100m");
    assert_eq!(cpu_of(&set, &[], &[second, first, old, foreign]), "250m");
}

/// The loop of aws/karpenter-provider-aws#3199: a pod of 15 CPU, a daemon whose whole CPU comes of a LimitRange, types of 16.
#[test]
fn a_node_is_large_enough_for_daemons_that_ask_by_default() {
    let requirements = json!([{"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "m"]}]);
    let on_metal = [("spec.nodeSelector", json!({"karpenter.k8s.aws/instance-cpu": "16"}))];
    let pod = with(pending("p", "15", "1Gi"), &on_metal);
    let mut small = snapshot(&[class(), pool("default", requirements), pod], catalogue(TYPES));
    let set = daemon_set(&json!([{"name": "c"}]));
    small.daemons = vec![Arc::new(DaemonSet::admitted(&set, &[], &[]).unwrap())];
    assert!(solve(&small).unschedulable.is_empty());
    let item = json!({"type": "Container", "default": {"cpu": "1"}});
    small.daemons = vec![Arc::new(DaemonSet::admitted(&set, &[range("monitoring", &item)], &[]).unwrap())];
    assert_eq!(solve(&small).unschedulable.len(), 1);
}

/// kubernetes-sigs/karpenter#2161: a daemon that waits for the labels of a node that has joined runs there, too.
#[test]
fn daemons_that_wait_for_karps_own_labels_have_their_room() {
    let small = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}]);
    let daemon = |selector: Value| with(late("agent", "500m"), &[("spec.template.spec.nodeSelector", selector)]);
    let refused = |selector: Value| {
        let objects = [class(), pool("default", small.clone()), pending("p", "1500m", "1Gi"), daemon(selector)];
        solve(&snapshot(&objects, catalogue(TYPES))).unschedulable.len()
    };
    for key in ["karpenter.sh/registered", "karpenter.sh/initialized"] {
        assert_eq!(refused(json!({key: "true"})), 1, "{key}");
        assert_eq!(refused(json!({key: "false"})), 0, "{key}: no such node");
    }
    assert_eq!(refused(json!({"karpenter.sh/initialized": "true", "team": "red"})), 0, "for other nodes");
}

fn late(name: &str, cpu: &str) -> Value {
    json!({"kind": "DaemonSet", "metadata": {"name": name, "namespace": "monitoring", "uid": name}, "spec": {"selector": {}, "template": {"spec":
        {"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 9100}], "resources": {"requests": {"cpu": cpu}}}]}}}})
}

fn daemon_pod(set: &str, node: &str, cpu: &str) -> Value {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": set, "uid": set}]);
    with(
        running(&format!("{set}-x"), node, cpu, "0"),
        &[("metadata.ownerReferences", owner), ("metadata.namespace", json!("monitoring"))],
    )
}

/// A daemon set that comes after its nodes: what it will take is kept for it on nodes that are there, that come, and that are to be made.
#[test]
fn daemons_that_come_late_find_their_room() {
    let pods = || vec![pending("p", "1500m", "1Gi")];
    let only_large = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}]);
    let world = |more: Vec<Value>| {
        let mut objects = vec![class(), pool("default", only_large.clone())];
        objects.extend(more);
        objects
    };
    let there = || node("n1", "default", "m7i.large", "us-east-1a", CapacityType::OnDemand).to_vec();
    let coming = || {
        let [_, claim] = node("n1", "default", "m7i.large", "us-east-1a", CapacityType::OnDemand);
        let asked = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}]);
        vec![with(claim, &[("status", json!(null)), ("spec.requirements", asked)])]
    };
    let elsewhere =
        with(late("agent", "500m"), &[("spec.template.spec.nodeSelector", json!({"kubernetes.io/arch": "arm64"}))]);
    let placed = |objects: Vec<Value>| {
        let solution = solve(&snapshot(&objects, catalogue(TYPES)));
        (solution.placements.len(), solution.nodes.len(), solution.unschedulable.len())
    };
    let cases = [
        ("no daemon", vec![], (1, 0, 0)),
        ("one that is small", vec![late("agent", "100m")], (1, 0, 0)),
        ("one that needs the room, and new nodes need it too", vec![late("agent", "500m")], (0, 0, 1)),
        ("one that belongs elsewhere", vec![elsewhere], (1, 0, 0)),
    ];
    for (case, daemons, expected) in cases {
        for hosts in [there(), coming()] {
            assert_eq!(placed(world([daemons.clone(), hosts, pods()].concat())), expected, "{case}");
        }
        let with_new = (0, expected.0, expected.2);
        assert_eq!(placed(world([daemons.clone(), pods()].concat())), with_new, "{case}, new node");
    }
    // its pod runs: what it takes is taken once
    let runs = [there(), vec![late("agent", "400m"), daemon_pod("agent", "n1", "400m")], pods()].concat();
    assert_eq!(placed(world(runs)), (1, 0, 0));
    // another one that takes more than it asks for does not hide it
    let daemons = vec![late("old", "100m"), daemon_pod("old", "n1", "900m"), late("agent", "400m")];
    let hidden = [there(), daemons, vec![pending("p", "700m", "1Gi")]].concat();
    assert_eq!(placed(world(hidden)), (0, 1, 0));
    // its port is taken, whether it runs or not
    let port = json!([{"name": "c", "ports": [{"containerPort": 9, "hostPort": 9100}], "resources": {"requests": {"cpu": "10m"}}}]);
    let with_port = with(pending("p", "10m", "1Mi"), &[("spec.containers", port)]);
    assert_eq!(placed(world([there(), vec![late("agent", "10m"), with_port]].concat())), (0, 0, 1));
}

fn read(spec: &core::PodSpec) -> Shape {
    let labels = std::collections::BTreeMap::new();
    Shape::from_pod_spec(spec, Whose { namespace: "n", labels: &labels }).unwrap()
}

fn amounts() -> impl Strategy<Value = Value> {
    let amount = prop::sample::select(vec!["0", "1m", "100m", "1", "3", "1500m"]);
    let name = prop::sample::select(vec!["cpu", "memory", "hugepages-2Mi", "example.com/device"]);
    prop::collection::btree_map(name, amount, 0..4).prop_map(|all| json!(all))
}

fn a_container() -> impl Strategy<Value = Value> {
    (amounts(), amounts(), any::<bool>()).prop_map(|(requests, limits, always)| {
        let mut container = json!({"name": "c", "resources": {"requests": requests, "limits": limits}});
        if always {
            container["restartPolicy"] = json!("Always");
        }
        container
    })
}

fn a_spec() -> impl Strategy<Value = core::PodSpec> {
    let containers = prop::collection::vec(a_container(), 1..4);
    let init = prop::collection::vec(a_container(), 0..4);
    let pod = prop::option::of((amounts(), amounts()));
    (containers, init, pod, prop::option::of(amounts())).prop_map(|(mut containers, init, pod, overhead)| {
        containers.iter_mut().for_each(|c| drop(c.as_object_mut().unwrap().remove("restartPolicy")));
        let mut spec = json!({"containers": containers, "initContainers": init});
        if let Some((requests, limits)) = pod {
            spec["resources"] = json!({"requests": requests, "limits": limits});
        }
        if let Some(overhead) = overhead {
            spec["overhead"] = overhead;
        }
        serde_json::from_value(spec).unwrap()
    })
}

fn a_range() -> impl Strategy<Value = Arc<LimitRange>> {
    (amounts(), amounts(), amounts(), amounts()).prop_map(|(default, request, max, min)| {
        let item = json!({"type": "Container", "default": default, "defaultRequest": request, "max": max, "min": min});
        range("n", &item)
    })
}

/// What kube-scheduler counts, in thousandths, moment by moment: each init container beside the sidecars that started before it, then
/// everything that keeps running.
fn by_moments(spec: &core::PodSpec, resource: &str) -> i64 {
    type List = std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;
    let read = |list: Option<&List>| {
        let amount = list.and_then(|list| list.get(resource))?;
        Some(amount.0.strip_suffix('m').map_or_else(|| amount.0.parse::<i64>().unwrap() * 1000, |m| m.parse().unwrap()))
    };
    let ask = |container: &core::Container| {
        let resources = container.resources.as_ref();
        let of = |list: Option<&List>| read(list);
        of(resources.and_then(|r| r.requests.as_ref())).or_else(|| of(resources.and_then(|r| r.limits.as_ref())))
    };
    let mut moments = Vec::new();
    let mut sidecars = 0;
    for container in spec.init_containers.iter().flatten() {
        let own = ask(container).unwrap_or(0);
        moments.push(sidecars + own);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars += own;
        }
    }
    moments.push(sidecars + spec.containers.iter().filter_map(ask).sum::<i64>());
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let named = all.filter_map(ask).next().is_some();
    let containers = moments.into_iter().max().unwrap_or(0);
    let pod = spec.resources.as_ref();
    let own = read(pod.and_then(|r| r.requests.as_ref()));
    let own = own.or_else(|| read(pod.and_then(|r| r.limits.as_ref())).filter(|_| !named));
    own.unwrap_or(containers) + read(spec.overhead.as_ref()).unwrap_or(0)
}

proptest! {
    #![proptest_config(deep::cases(300))]

    #[test]
    fn a_pod_takes_what_its_fullest_moment_takes(spec in a_spec()) {
        let shape = read(&spec);
        for resource in ["cpu", "memory", "hugepages-2Mi", "example.com/device"] {
            prop_assert_eq!(shape.requests.get(resource).millis(), by_moments(&spec, resource), "{}", resource);
        }
        prop_assert_eq!(shape.requests.get("pods").units(), 1);
    }

    #[test]
    fn admission_is_done_once_and_more_ranges_never_take_less(spec in a_spec(), range in a_range(), more in a_range()) {
        let mut spec = spec;
        spec.resources = None;
        let requests = |spec: &core::PodSpec| read(spec).requests;
        let covers = |large: &Resources, small: &Resources| small.iter().all(|(name, amount)| amount <= large.get(name));
        let once = admitted(&spec, "n", std::slice::from_ref(&range));
        let both = admitted(&spec, "n", &[range.clone(), more.clone()]);
        prop_assert_eq!(&admitted(&once, "n", std::slice::from_ref(&range)), &once);
        prop_assert_eq!(&admitted(&spec, "n", &[more, range.clone()]), &both);
        prop_assert_eq!(&admitted(&spec, "other", &[range]), &spec);
        prop_assert!(covers(&requests(&once), &requests(&spec)));
        prop_assert!(covers(&requests(&both), &requests(&once)));
    }
}

const APART: &str = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution";
const NEAR: &str = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution";

/// A daemon set with labels of its own, on nodes with these labels.
fn agent(selector: &Value) -> Value {
    json!({"kind": "DaemonSet", "metadata": {"name": "agent", "namespace": "kube-system"}, "spec": {"selector": {}, "template": {
        "metadata": {"labels": {"daemon": "agent"}},
        "spec": {"nodeSelector": selector, "containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]}}}})
}

/// A pod that keeps away from all pods that are not like it, wherever they are.
fn loner(name: &str, key: &str) -> Value {
    let others = json!([{"topologyKey": key, "namespaceSelector": {},
        "labelSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}}]);
    with(pending(name, "500m", "512Mi"), &[("metadata.labels", json!({"app": "web"})), (APART, others)])
}

#[test]
fn no_node_is_made_for_a_pod_that_a_daemon_keeps_away() {
    for key in ["kubernetes.io/hostname", "topology.kubernetes.io/zone"] {
        let objects = |selector| vec![class(), pool("default", json!([])), agent(&selector), loner("shy", key)];
        let solution = solve(&snapshot(&objects(json!({})), catalogue(TYPES)));
        assert!(solution.nodes.is_empty());
        let why = solution.unschedulable[0].to_string();
        assert!(why.contains("daemon set kube-system/agent runs on all nodes that would do"), "{why}");
        let known = snapshot(&objects(json!({})), catalogue(TYPES));
        let told = explain(&known, &known.pods[0], &solution);
        let last = told[0].steps.last().expect("a step");
        assert!(matches!(&last.asked, Asked::NoDaemon { daemon, .. } if &*daemon.name == "agent"), "{last:?}");
        assert_eq!((told[0].left, last.left), (0, 0));
        // it runs on some types only
        let solution = solve(&snapshot(&objects(json!({"kubernetes.io/arch": "arm64"})), catalogue(TYPES)));
        let catalogue = catalogue(TYPES);
        let arch = |name: &str| catalogue.get(name).unwrap().labels["kubernetes.io/arch"][0].clone();
        assert!(!solution.nodes[0].offerings.is_empty());
        assert!(solution.nodes[0].offerings.iter().all(|offering| &*arch(&offering.instance_type) == "amd64"));
    }
}

#[test]
fn the_steps_name_the_daemon_that_has_the_port() {
    let port = json!([{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}], "resources": {"requests": {"cpu": "1"}}}]);
    let mut daemon = agent(&json!({"kubernetes.io/arch": "arm64"}));
    daemon["spec"]["template"]["spec"]["containers"] = port.clone();
    let pod = with(pending("web", "1", "1Gi"), &[("spec.containers", port)]);
    let known = snapshot(&[class(), pool("default", json!([])), daemon, pod], catalogue(TYPES));
    let solution = solve(&known);
    let told = explain(&known, &known.pods[0], &solution);
    let step = told[0].steps.iter().find(|step| matches!(step.asked, Asked::HostPort { .. })).expect("a step");
    assert!(!step.removed.is_empty() && step.removed.iter().all(|name| name.contains("g.")), "{:?}", step.removed);
    assert!(told[0].left > 0 && solution.nodes.len() == 1);
}

#[test]
fn a_daemon_in_some_zones_keeps_pods_out_of_those() {
    let (zone, bought) = ("topology.kubernetes.io/zone", "karpenter.sh/capacity-type");
    let planned = |daemon: &Value| {
        let objects = [class(), pool("default", json!([])), agent(daemon), loner("shy", "kubernetes.io/hostname")];
        solve(&snapshot(&objects, catalogue(TYPES))).nodes.remove(0)
    };
    let node = planned(&json!({zone: "us-east-1a"}));
    assert!(node.offerings.iter().any(|offering| &*offering.zone.name == "us-east-1b"));
    assert!(node.offerings.iter().all(|offering| &*offering.zone.name != "us-east-1a"));
    assert!(!node.requirements.admits(zone, "us-east-1a"), "EC2 is asked for what the claim says");
    let node = planned(&json!({bought: "spot"}));
    assert!(node.offerings.iter().all(|offering| offering.capacity_type == CapacityType::OnDemand));
    assert!(!node.requirements.admits(bought, "spot"));
    let of_teams = |daemon: &str, pod: &str| {
        let teams = pool("default", json!([{"key": "team", "operator": "In", "values": ["a", "b"]}]));
        let shy = with(loner("shy", "kubernetes.io/hostname"), &[("spec.nodeSelector", json!({"team": pod}))]);
        let objects = [class(), teams, agent(&json!({"team": daemon})), shy];
        solve(&snapshot(&objects, catalogue(TYPES))).nodes.len()
    };
    assert_eq!((of_teams("a", "a"), of_teams("a", "b")), (0, 1));
}

#[test]
fn the_anti_affinity_of_a_daemon_keeps_pods_away() {
    let mut daemon = agent(&json!({}));
    daemon["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([{"topologyKey": "kubernetes.io/hostname", "namespaceSelector": {}, "labelSelector": {"matchLabels": {"app": "web"}}}]);
    let pod = |name, app: &str| with(pending(name, "500m", "512Mi"), &[("metadata.labels", json!({"app": app}))]);
    let objects = vec![class(), pool("default", json!([])), daemon, pod("web", "web"), pod("other", "other")];
    let solution = solve(&snapshot(&objects, catalogue(TYPES)));
    let refused: Vec<&str> = solution.unschedulable.iter().map(|refused| &*refused.pod.name).collect();
    assert_eq!(refused, ["web"]);
    assert_eq!(solution.nodes.len(), 1);
}

/// The agent in one zone, which keeps all that is `app=web` out of its domain; a pod that is bound to the zone, and one of `app=web`.
fn zonal(key: &str) -> Vec<Value> {
    let mut daemon = agent(&json!({"topology.kubernetes.io/zone": "us-east-1b"}));
    let shuns =
        json!([{"topologyKey": key, "namespaceSelector": {}, "labelSelector": {"matchLabels": {"app": "web"}}}]);
    daemon["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        shuns;
    let there = json!({"topology.kubernetes.io/zone": "us-east-1b"});
    let bound = with(pending("bound", "500m", "512Mi"), &[("spec.nodeSelector", there)]);
    let web = with(pending("web", "500m", "512Mi"), &[("metadata.labels", json!({"app": "web"}))]);
    vec![class(), pool("default", json!([])), daemon, bound, web]
}

#[test]
fn a_daemon_keeps_pods_out_of_the_domain_that_a_planned_node_brings_it_into() {
    let solution = solve(&snapshot(&zonal("karpenter.sh/capacity-type"), catalogue(TYPES)));
    assert!(solution.unschedulable.is_empty(), "{:?}", solution.unschedulable);
    let of = |name: &str| solution.nodes.iter().find(|node| node.pods.iter().any(|pod| &*pod.name == name)).unwrap();
    assert_eq!(of("bound").capacity_type(), Some(CapacityType::Spot));
    assert!(of("web").offerings.iter().all(|offering| offering.capacity_type == CapacityType::OnDemand));
    // without another node there is no daemon in the way
    let mut alone = zonal("karpenter.sh/capacity-type");
    alone.retain(|object| object["metadata"]["name"] != "bound");
    assert_eq!(solve(&snapshot(&alone, catalogue(TYPES))).nodes[0].capacity_type(), Some(CapacityType::Spot));
    // a pool where all is one domain has room for one of them only
    let mut one = zonal("karpenter.sh/nodepool");
    one[1] = pool("default", json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]));
    let solution = solve(&snapshot(&one, catalogue(TYPES)));
    let [refused] = &*solution.unschedulable else { panic!("{solution:?}") };
    assert_eq!((&*refused.pod.name, solution.nodes.len()), ("web", 1));
    assert!(
        refused.to_string().contains("such pods are in every domain where it could be: default (1 pod)"),
        "{refused}"
    );
}

/// Two pods, one to a zone, that must be bought otherwise than a third; nodes of the third's kind have a daemon that keeps its zone free of them.
#[test]
fn a_zone_that_another_pods_daemon_closes_is_no_place_that_was_left() {
    let (zone, market) = ("topology.kubernetes.io/zone", "karpenter.sh/capacity-type");
    let app = |name: &str| json!({"matchLabels": {"app": name}});
    let spread = |name: &str| json!([{"topologyKey": zone, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": app(name)}]);
    let labelled = |name: &str, of: &str| with(pending(name, "0", "64Mi"), &[("metadata.labels", json!({"app": of}))]);
    let apart = json!([{"topologyKey": zone, "labelSelector": app("red")}, {"topologyKey": market, "labelSelector": app("blue")}]);
    let green = |name: &str| {
        let rules = [(APART, apart.clone()), ("spec.topologySpreadConstraints", spread("green"))];
        with(labelled(name, "green"), &rules)
    };
    let blue = [("spec.nodeSelector", json!({"team": "a"})), ("spec.topologySpreadConstraints", spread("red"))];
    let away = json!([{"topologyKey": zone, "labelSelector": app("green"), "namespaces": ["default"]}]);
    let daemon = with(agent(&json!({market: "on-demand"})), &[(&format!("spec.template.{APART}"), away)]);
    let red = with(running("red", "n0", "1", "1Gi"), &[("metadata.labels", json!({"app": "red"}))]);
    let team = pool("default", json!([{"key": "team", "operator": "In", "values": ["a"]}]));
    let mut objects =
        vec![class(), team, with(labelled("blue", "blue"), &blue), green("green-0"), green("green-1"), red, daemon];
    objects.extend(node("n0", "default", "m7i.large", "us-east-1b", CapacityType::OnDemand));
    let known = snapshot(&objects, catalogue(TYPES));
    let solution = solve(&known);
    topology::judge(&objects, &known, &solution);
    assert_eq!(solution.nodes.len() + solution.unschedulable.len(), 3, "{solution:?}");
    assert_eq!(judge::refused_for_others(&objects, &known, &solution), [].into(), "{solution:?}");
}

#[test]
fn a_node_that_is_being_made_for_a_daemon_takes_no_pod_that_the_daemon_shuns() {
    let without = |name: &str, claim: Option<Arc<Claim>>, app: &str| {
        let mut objects = zonal("kubernetes.io/hostname");
        objects.retain(|object| object["metadata"]["name"] != name);
        let web = objects.iter_mut().find(|object| object["metadata"]["name"] == "web");
        web.into_iter().for_each(|web| web["metadata"]["labels"]["app"] = json!(app));
        let mut known = snapshot(&objects, catalogue(TYPES));
        known.claims.extend(claim);
        solve(&known)
    };
    let first = without("web", None, "");
    assert_eq!(first.nodes.len(), 1);
    let claim = || Some(created(&first.nodes[0], "n"));
    let other = without("bound", claim(), "other");
    assert_eq!((other.placements.len(), other.nodes.len()), (1, 0));
    let web = without("bound", claim(), "web");
    assert_eq!((web.placements.len(), web.nodes.len()), (0, 1), "{web:?}");
    assert!(!web.nodes[0].requirements.admits("topology.kubernetes.io/zone", "us-east-1b"));
}

#[test]
fn who_wants_to_be_near_its_like_goes_where_those_go_that_do_not_care() {
    let red = json!({"app": "red"});
    let near = json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": red}}]);
    let careless = |name| with(pending(name, "100m", "128Mi"), &[("metadata.labels", red.clone())]);
    let clingy = with(pending("clingy", "4", "1Gi"), &[("metadata.labels", red.clone()), (NEAR, near)]);
    let room = node("n0", "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand);
    let objects = [class(), pool("default", json!([])), clingy, careless("a"), careless("b")];
    let solution = solve(&snapshot(&objects.into_iter().chain(room).collect::<Vec<_>>(), catalogue(TYPES)));
    assert_eq!((solution.placements.len(), solution.nodes.len()), (3, 0), "all on the node that is there");
    // no room for it beside them: kube-scheduler, which may bind them first, would leave it waiting on a node of its own
    let full = node("n0", "default", "m7i.large", "us-east-1a", CapacityType::OnDemand);
    let clingy = with(
        pending("clingy", "4", "1Gi"),
        &[
            ("metadata.labels", red.clone()),
            (NEAR, json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": red}}])),
        ],
    );
    let objects = [class(), pool("default", json!([])), clingy, careless("a"), careless("b")];
    let solution = solve(&snapshot(&objects.into_iter().chain(full).collect::<Vec<_>>(), catalogue(TYPES)));
    let refused: Vec<&str> = solution.unschedulable.iter().map(|refused| &*refused.pod.name).collect();
    let placed: Vec<&str> = solution.placements.iter().map(|placement| &*placement.pod.name).collect();
    assert_eq!((refused, placed, solution.nodes.len()), (vec!["clingy"], vec!["a", "b"], 0));
}

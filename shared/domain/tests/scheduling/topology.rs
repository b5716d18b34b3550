//! What pods ask of each other and of the topology: each case names pods, and says where they may end up.

use std::collections::{BTreeMap, BTreeSet};

use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::{PreferencePolicy, Snapshot};
use karp_domain::scheduling::{InFlightNode, Solution, Target, solve};
use serde_json::{Value, json};

use crate::world::{TYPES, catalogue, class, created, node, pending, pool, running, snapshot, with};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

/// Where pods went: the place (a host's name, or the number of a new node) and the zone if it is settled, by pod.
fn places(snapshot: &Snapshot, solution: &Solution) -> BTreeMap<String, (String, Option<String>)> {
    let mut places = BTreeMap::new();
    for (at, node) in solution.nodes.iter().enumerate() {
        let zones: BTreeSet<_> = node.offerings.iter().map(|o| o.zone.name.to_string()).collect();
        let zone = (zones.len() == 1).then(|| zones.first().cloned()).flatten();
        for pod in &node.pods {
            places.insert(pod.name.to_string(), (format!("new {at}"), zone.clone()));
        }
    }
    for placement in &solution.placements {
        let Target::Node(name) = &placement.target else { panic!("a claim is in flight") };
        let host = snapshot.nodes.iter().find(|node| node.name == *name).unwrap();
        places.insert(placement.pod.name.to_string(), (name.to_string(), host.labels.get(ZONE).cloned()));
    }
    places
}

struct Answer {
    places: BTreeMap<String, (String, Option<String>)>,
    solution: Solution,
}

impl Answer {
    fn of(objects: &[Value]) -> Self {
        Self::with(objects, |_| {})
    }

    fn with(objects: &[Value], change: impl FnOnce(&mut Snapshot)) -> Self {
        let mut all = vec![class(), pool("default", json!([]))];
        all.extend_from_slice(objects);
        let mut snapshot = snapshot(&all, catalogue(TYPES));
        change(&mut snapshot);
        let solution = solve(&snapshot);
        assert_eq!(solution, solve(&snapshot), "the answer is the same twice");
        Answer { places: places(&snapshot, &solution), solution }
    }

    fn zone(&self, pod: &str) -> &str {
        self.places[pod].1.as_deref().unwrap_or_else(|| panic!("{pod}: its zone is open"))
    }

    fn place(&self, pod: &str) -> &str {
        &self.places.get(pod).unwrap_or_else(|| panic!("{pod} is refused: {:?}", self.solution.unschedulable)).0
    }

    /// How many pods with a prefix are in each zone.
    fn zones(&self, prefix: &str) -> BTreeMap<&str, usize> {
        let mut zones = BTreeMap::new();
        for pod in self.places.keys().filter(|pod| pod.starts_with(prefix)) {
            *zones.entry(self.zone(pod)).or_default() += 1;
        }
        zones
    }

    /// How many pods with a prefix are in each place, most first.
    fn crowds(&self, prefix: &str) -> Vec<usize> {
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in self.places.keys().filter(|pod| pod.starts_with(prefix)) {
            *places.entry(self.place(pod)).or_default() += 1;
        }
        let mut crowds: Vec<usize> = places.into_values().collect();
        crowds.sort_unstable_by(|a, b| b.cmp(a));
        crowds
    }

    fn refused(&self) -> Vec<String> {
        self.solution.unschedulable.iter().map(|u| format!("{}: {u}", u.pod.name)).collect()
    }
}

fn spread(key: &str, skew: u32, when: &str) -> Value {
    json!([{"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": {"matchLabels": {"app": "web"}}}])
}

fn term(key: &str, app: &str) -> Value {
    json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}})
}

fn app(pod: Value, app: &str, more: &[(&str, Value)]) -> Value {
    with(with(pod, &[("metadata.labels", json!({"app": app}))]), more)
}

fn web(count: usize, more: &[(&str, Value)]) -> Vec<Value> {
    (0..count).map(|n| app(pending(&format!("web-{n:02}"), "500m", "512Mi"), "web", more)).collect()
}

const SPREAD: &str = "spec.topologySpreadConstraints";
const REQUIRED_NEAR: &str = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution";
const REQUIRED_APART: &str = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED_APART: &str = "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution";
const PREFERRED_NODE: &str = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution";

#[test]
fn pods_spread_over_zones() {
    let answer = Answer::of(&web(9, &[(SPREAD, spread(ZONE, 1, "DoNotSchedule"))]));
    assert_eq!(answer.zones("web").into_values().collect::<Vec<_>>(), [3, 3, 3]);
}

#[test]
fn pods_that_run_already_count() {
    let host = node("n1", "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand);
    let mut objects = host.to_vec();
    objects.extend((0..3).map(|n| app(running(&format!("old-{n}"), "n1", "100m", "100Mi"), "web", &[])));
    objects.extend(web(3, &[(SPREAD, spread(ZONE, 1, "DoNotSchedule"))]));
    let answer = Answer::of(&objects);
    // three run in a: the new ones bring b and c to within one of it
    let zones = answer.zones("web");
    assert_eq!(zones.get("us-east-1a"), None, "{zones:?}");
    assert_eq!(zones.into_values().sum::<usize>(), 3);
}

#[test]
fn a_host_with_room_is_used_as_far_as_the_skew_allows() {
    let host = node("n1", "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand);
    let mut objects = host.to_vec();
    objects.extend(web(6, &[(SPREAD, spread(ZONE, 1, "DoNotSchedule"))]));
    let answer = Answer::of(&objects);
    assert_eq!(answer.zones("web").into_values().collect::<Vec<_>>(), [2, 2, 2]);
    assert_eq!(answer.places.values().filter(|(place, _)| place == "n1").count(), 2);
}

#[test]
fn fewer_zones_than_min_domains_take_no_more_than_the_skew() {
    let two = json!([{"key": ZONE, "operator": "In", "values": ["us-east-1a", "us-east-1b"]}]);
    let mut constraint = spread(ZONE, 1, "DoNotSchedule");
    constraint[0]["minDomains"] = json!(3);
    let mut all = vec![class(), pool("two", two)];
    all.extend(web(4, &[(SPREAD, constraint)]));
    let solution = solve(&snapshot(&all, catalogue(TYPES)));
    assert_eq!(solution.unschedulable.len(), 2);
    assert!(
        solution.unschedulable[0].to_string().contains("topology spread, key=topology.kubernetes.io/zone, maxSkew=1")
    );
}

#[test]
fn a_limit_that_keeps_one_zone_empty_holds_back_the_others() {
    let mut all = vec![class(), with(pool("small", json!([])), &[("spec.limits", json!({"nodes": "2"}))])];
    all.extend(web(6, &[(SPREAD, spread(ZONE, 1, "DoNotSchedule"))]));
    let snapshot = snapshot(&all, catalogue(TYPES));
    let solution = solve(&snapshot);
    let answer = Answer { places: places(&snapshot, &solution), solution };
    let zones = answer.zones("web");
    assert!(zones.values().all(|count| *count <= 1), "one zone has none, so none may have two: {zones:?}");
    assert_eq!(zones.len(), 2);
}

#[test]
fn pods_spread_over_hosts() {
    let answer = Answer::of(&web(7, &[(SPREAD, spread(HOST, 2, "DoNotSchedule"))]));
    assert_eq!(answer.crowds("web"), [2, 2, 2, 1]);
}

#[test]
fn match_label_keys_tell_revisions_apart() {
    let mut constraint = spread(HOST, 1, "DoNotSchedule");
    constraint[0]["matchLabelKeys"] = json!(["revision"]);
    let pod = |n: usize, revision: &str| {
        let labels = json!({"app": "web", "revision": revision});
        with(
            pending(&format!("web-{n}"), "500m", "512Mi"),
            &[("metadata.labels", labels), (SPREAD, constraint.clone())],
        )
    };
    let answer = Answer::of(&[pod(0, "old"), pod(1, "old"), pod(2, "new"), pod(3, "new")]);
    assert_eq!(answer.crowds("web"), [2, 2], "one of each revision on a node");
}

#[test]
fn pods_that_keep_apart_get_a_node_or_zone_each() {
    let answer = Answer::of(&web(4, &[(REQUIRED_APART, json!([term(HOST, "web")]))]));
    assert_eq!(answer.crowds("web"), [1, 1, 1, 1]);
    let answer = Answer::of(&web(4, &[(REQUIRED_APART, json!([term(ZONE, "web")]))]));
    assert_eq!(answer.zones("web").len(), 3);
    let refused = answer.refused();
    assert_eq!(refused.len(), 1);
    assert!(
        refused[0].contains("unsatisfiable topology constraint: pod anti-affinity, key=topology.kubernetes.io/zone")
    );
}

#[test]
fn pods_keep_away_from_those_that_do_not_want_them() {
    let [host, claim] = node("n1", "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand);
    let guard =
        |key| app(running("guard", "n1", "100m", "100Mi"), "guard", &[(REQUIRED_APART, json!([term(key, "web")]))]);
    let mut objects = vec![host, claim, guard(HOST)];
    objects.extend(web(2, &[]));
    let answer = Answer::of(&objects);
    assert!(answer.places.values().all(|(place, _)| place != "n1"), "{:?}", answer.places);
    objects[2] = guard(ZONE);
    let answer = Answer::of(&objects);
    assert!(["web-00", "web-01"].iter().all(|pod| answer.zone(pod) != "us-east-1a"));
    // the same among pods that are all new
    let mut fresh =
        vec![app(pending("guard", "100m", "100Mi"), "guard", &[(REQUIRED_APART, json!([term(ZONE, "web")]))])];
    fresh.extend(web(2, &[]));
    let answer = Answer::of(&fresh);
    assert!(["web-00", "web-01"].iter().all(|pod| answer.zone(pod) != answer.zone("guard")));
}

#[test]
fn pods_go_where_their_friends_are() {
    let [host, claim] = node("n1", "default", "m7i.large", "us-east-1b", CapacityType::OnDemand);
    let mut objects = vec![host, claim, app(running("db", "n1", "1900m", "100Mi"), "db", &[])];
    objects.extend(web(5, &[(REQUIRED_NEAR, json!([term(ZONE, "db")]))]));
    let answer = Answer::of(&objects);
    assert_eq!(answer.zones("web"), [("us-east-1b", 5)].into());
    // no friend anywhere
    let answer = Answer::of(&objects[3..]);
    assert_eq!(answer.refused().len(), 5);
    // friends that come at the same time, larger and smaller ones
    for cpu in ["100m", "3"] {
        let mut fresh = web(3, &[(REQUIRED_NEAR, json!([term(ZONE, "db")]))]);
        fresh.push(app(pending("db", cpu, "100Mi"), "db", &[]));
        let answer = Answer::of(&fresh);
        assert_eq!(answer.zones("web"), [(answer.zone("db"), 3)].into());
    }
}

#[test]
fn pods_of_one_zone_affinity_stay_together() {
    let answer = Answer::of(&web(20, &[(REQUIRED_NEAR, json!([term(ZONE, "web")]))]));
    assert_eq!(answer.zones("web").len(), 1);
    assert_eq!(answer.places.len(), 20);
}

#[test]
fn pods_share_a_node_with_those_they_must_be_near() {
    let answer = Answer::of(&web(6, &[(REQUIRED_NEAR, json!([term(HOST, "web")]))]));
    assert_eq!(answer.crowds("web"), [6]);
    let mut objects = web(3, &[(REQUIRED_NEAR, json!([term(HOST, "cache")]))]);
    objects.push(app(pending("cache", "250m", "256Mi"), "cache", &[]));
    let answer = Answer::of(&objects);
    assert_eq!(answer.crowds("web"), [3]);
    assert_eq!(answer.place("web-00"), answer.place("cache"));
}

#[test]
fn a_port_of_the_node_is_taken_once() {
    let ports = |port: i64| {
        (
            "spec.containers",
            json!([{"name": "c", "resources": {"requests": {"cpu": "100m"}}, "ports": [{"hostPort": port, "containerPort": port}]}]),
        )
    };
    let answer = Answer::of(&web(3, &[ports(8080)]));
    assert_eq!(answer.crowds("web"), [1, 1, 1]);
    let mut different = web(1, &[ports(8080)]);
    different.push(with(pending("web-01", "100m", "1Mi"), &[ports(8081)]));
    assert_eq!(Answer::of(&different).crowds("web"), [2]);
}

fn claim(name: &str, volume: Option<&str>) -> Value {
    json!({"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
        "spec": {"volumeName": volume, "storageClassName": "gp3"}, "status": {"phase": "Bound"}})
}

fn volume(name: &str, zone: &str) -> Value {
    json!({"kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
        "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": name},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "topology.ebs.csi.aws.com/zone", "operator": "In", "values": [zone]}]}]}}}})
}

fn using(pod: Value, claims: &[&str]) -> Value {
    let volumes = claims.iter().map(|c| json!({"name": c, "persistentVolumeClaim": {"claimName": c}}));
    with(pod, &[("spec.volumes", volumes.collect())])
}

#[test]
fn pods_follow_their_volumes() {
    let class = json!({"kind": "StorageClass", "metadata": {"name": "gp3"}, "provisioner": "ebs.csi.aws.com",
        "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": [{"matchLabelExpressions": [
            {"key": "topology.kubernetes.io/zone", "values": ["us-east-1a", "us-east-1b"]}]}]});
    let objects = [
        class,
        claim("bound", Some("vol")),
        volume("vol", "us-east-1c"),
        claim("unbound", None),
        claim("lost", Some("gone")),
        using(pending("with-bound", "1", "1Gi"), &["bound"]),
        using(pending("with-unbound", "1", "1Gi"), &["unbound"]),
        using(pending("with-both", "1", "1Gi"), &["bound", "unbound"]),
        using(pending("with-lost", "1", "1Gi"), &["lost"]),
        using(pending("with-none", "1", "1Gi"), &["missing"]),
    ];
    let answer = Answer::of(&objects);
    assert_eq!(answer.zone("with-bound"), "us-east-1c");
    assert!(answer.places.contains_key("with-unbound"));
    assert_eq!(
        answer.refused(),
        [
            "with-both: persistent volume claim unbound: no node can reach all volumes of the pod",
            "with-lost: persistent volume claim lost: volume gone does not exist",
            "with-none: persistent volume claim missing: the claim does not exist",
        ]
    );
}

#[test]
fn a_node_attaches_no_more_volumes_than_it_can() {
    let [host, node_claim] = node("n1", "default", "m7i.8xlarge", "us-east-1a", CapacityType::OnDemand);
    let limits = json!({"kind": "CSINode", "metadata": {"name": "n1"}, "spec": {"drivers": [
        {"name": "ebs.csi.aws.com", "nodeID": "n1", "allocatable": {"count": 2}}]}});
    let mut objects = vec![host, node_claim, limits];
    for n in 0..4 {
        let (own, vol) = (format!("c{n}"), format!("v{n}"));
        objects.push(claim(&own, Some(&vol)));
        objects.push(volume(&vol, "us-east-1a"));
        objects.push(using(pending(&format!("p{n}"), "100m", "100Mi"), &[&own]));
    }
    let answer = Answer::of(&objects);
    assert_eq!(answer.places.values().filter(|(place, _)| place == "n1").count(), 2);
    assert_eq!(answer.places.len(), 4);
}

#[test]
fn preferences_hold_as_long_as_they_can() {
    let zone = |zone: &str| json!([{"weight": 1, "preference": {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}}]);
    let answer = Answer::of(&web(3, &[(PREFERRED_NODE, zone("us-east-1c"))]));
    assert_eq!(answer.zones("web"), [("us-east-1c", 3)].into());
    // a zone that does not exist is no obstacle
    assert_eq!(Answer::of(&web(3, &[(PREFERRED_NODE, zone("us-east-1x"))])).places.len(), 3);
    let apart = json!([{"weight": 10, "podAffinityTerm": term(ZONE, "web")}, {"weight": 1, "podAffinityTerm": term(HOST, "web")}]);
    let wishes = [(PREFERRED_NODE, zone("us-east-1c")), (PREFERRED_APART, apart)];
    let answer = Answer::of(&web(4, &wishes));
    // the zone is shared, since the wish for zones apart is given up first; hosts are not
    assert_eq!(answer.zones("web"), [("us-east-1c", 4)].into());
    assert_eq!(answer.crowds("web"), [1, 1, 1, 1]);
    let ignored = |s: &mut Snapshot| s.settings.preferences = PreferencePolicy::Ignore;
    assert!(Answer::with(&web(4, &wishes), ignored).crowds("web").len() < 4, "hosts are shared");
}

#[test]
fn schedule_anyway_spreads_while_it_can() {
    let answer = Answer::of(&web(6, &[(SPREAD, spread(ZONE, 1, "ScheduleAnyway"))]));
    assert_eq!(answer.zones("web").into_values().collect::<Vec<_>>(), [2, 2, 2]);
    let mut objects = web(6, &[(SPREAD, spread(ZONE, 1, "ScheduleAnyway"))]);
    objects.iter_mut().for_each(|pod| pod["spec"]["nodeSelector"] = json!({ZONE: "us-east-1a"}));
    assert_eq!(Answer::of(&objects).places.len(), 6);
}

#[test]
fn discouraged_pools_come_last() {
    let taint = json!([{"key": "spare", "effect": "PreferNoSchedule"}]);
    let spare = with(pool("spare", json!([])), &[("spec.template.spec.taints", taint), ("spec.weight", json!(50))]);
    let answer = |pools: &[Value]| {
        let mut all = vec![class()];
        all.extend_from_slice(pools);
        all.extend(web(1, &[]));
        solve(&snapshot(&all, catalogue(TYPES)))
    };
    assert_eq!(&*answer(&[spare.clone(), pool("plain", json!([]))]).nodes[0].pool, "plain");
    assert_eq!(&*answer(&[spare]).nodes[0].pool, "spare");
}

#[test]
fn namespaces_are_told_apart() {
    let other = |pod: Value| with(pod, &[("metadata.namespace", json!("other"))]);
    let namespace = json!({"kind": "Namespace", "metadata": {"name": "other", "labels": {"team": "b"}}});
    let mut near = term(ZONE, "db");
    let [host, host_claim] = node("n1", "default", "m7i.large", "us-east-1b", CapacityType::OnDemand);
    let db = other(app(running("db", "n1", "1900m", "100Mi"), "db", &[]));
    let objects = |near: &Value| {
        let mut all = vec![host.clone(), host_claim.clone(), namespace.clone(), db.clone()];
        all.extend(web(1, &[(REQUIRED_NEAR, json!([near]))]));
        all
    };
    assert_eq!(Answer::of(&objects(&near)).refused().len(), 1, "the friend is in another namespace");
    near["namespaceSelector"] = json!({"matchLabels": {"team": "b"}});
    assert_eq!(Answer::of(&objects(&near)).zone("web-00"), "us-east-1b");
    near["namespaceSelector"] = json!({"matchLabels": {"team": "c"}});
    assert_eq!(Answer::of(&objects(&near)).refused().len(), 1);
}

#[test]
fn a_spread_that_honors_taints_does_not_count_pods_behind_them() {
    let behind = with(
        pool("behind", json!([])),
        &[
            ("spec.weight", json!(50)),
            ("spec.template.spec.taints", json!([{"key": "only", "value": "big", "effect": "NoSchedule"}])),
        ],
    );
    let big = (0..5).map(|n| {
        let more = [
            ("spec.nodeSelector", json!({ZONE: "us-east-1a"})),
            ("spec.tolerations", json!([{"key": "only", "operator": "Exists"}])),
            (SPREAD, spread(ZONE, 1, "DoNotSchedule")),
        ];
        app(pending(&format!("big-{n}"), "2", "1Gi"), "web", &more)
    });
    let mut honoring = spread(ZONE, 1, "DoNotSchedule");
    honoring[0]["nodeTaintsPolicy"] = json!("Honor");
    let mut objects: Vec<Value> = big.collect();
    objects.extend(web(6, &[(SPREAD, honoring)]));
    objects.push(behind);
    let answer = Answer::of(&objects);
    assert!(answer.refused().is_empty(), "{:?}", answer.refused());
    let big = |node: &&InFlightNode| node.pods.iter().any(|pod| pod.name.starts_with("big"));
    let pools: BTreeSet<&str> = answer.solution.nodes.iter().filter(big).map(|node| &*node.pool).collect();
    assert_eq!(pools, ["behind"].into(), "the heavier pool comes first");
    let zones = answer.zones("web");
    assert!(zones.values().all(|count| *count == 2) && zones.len() == 3, "{zones:?}");
}

#[test]
fn hosts_are_filled_evenly_where_none_can_be_made() {
    let full = with(pool("full", json!([])), &[("spec.limits", json!({"nodes": 0}))]);
    let mut objects = vec![class(), full];
    for name in ["n1", "n2"] {
        objects.extend(node(name, "full", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand));
    }
    let answer = |more: Value| {
        let mut spread = spread(HOST, 1, "DoNotSchedule");
        more.as_object().unwrap().iter().for_each(|(key, value)| spread[0][key] = value.clone());
        let mut all = objects.clone();
        all.extend(web(5, &[(SPREAD, spread)]));
        let snapshot = snapshot(&all, catalogue(TYPES));
        let solution = solve(&snapshot);
        Answer { places: places(&snapshot, &solution), solution }
    };
    let even = answer(json!({}));
    assert!(even.refused().is_empty(), "{:?}", even.refused());
    assert_eq!(even.crowds("web"), [3, 2]);
    // with fewer hosts than `minDomains` the least is zero
    assert_eq!(answer(json!({"minDomains": 3})).crowds("web"), [1, 1]);
}

#[test]
fn hosts_that_a_spread_does_not_look_at_change_nothing() {
    let full = with(pool("full", json!([])), &[("spec.limits", json!({"nodes": 0}))]);
    let mut objects = vec![full];
    for name in ["n1", "n2"] {
        objects.extend(node(name, "full", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand));
    }
    let only = ("spec.nodeSelector", json!({"karpenter.sh/nodepool": "full"}));
    objects.extend(web(5, &[(SPREAD, spread(HOST, 1, "DoNotSchedule")), only]));
    assert_eq!(Answer::of(&objects).crowds("web"), [3, 2]);
    // a node is made for it, where the others may not go
    let elsewhere = ("spec.nodeSelector", json!({"karpenter.sh/nodepool": "default"}));
    objects.push(with(pending("large", "7", "8Gi"), &[elsewhere]));
    let answer = Answer::of(&objects);
    assert_eq!((answer.place("large"), answer.crowds("web")), ("new 0", vec![3, 2]));
    // and where they may, it is a host that stays empty of them
    let wide = web(5, &[(SPREAD, spread(HOST, 1, "DoNotSchedule"))]);
    let answer = Answer::of(&[&objects[..5], &wide, &objects[objects.len() - 1..]].concat());
    assert!(answer.refused().is_empty(), "{:?}", answer.refused());
}

/// kube-scheduler looks for pods that all required terms mean, not for one a term.
#[test]
fn pods_near_which_a_pod_must_be_match_all_terms() {
    let term = |label: &str, key: &str| json!({"labelSelector": {"matchLabels": {(label): "1"}}, "topologyKey": key});
    let labelled =
        |name: &str, labels: Value| with(running(name, "n1", "100m", "100Mi"), &[("metadata.labels", labels)]);
    let mut objects = Vec::from(node("n1", "default", "m7i.2xlarge", "us-east-1a", CapacityType::OnDemand));
    objects.push(labelled("a", json!({"a": "1"})));
    objects.push(labelled("b", json!({"b": "1"})));
    for key in [HOST, ZONE] {
        let near = (REQUIRED_NEAR, json!([term("a", key), term("b", key)]));
        let stranger = with(pending("q", "500m", "512Mi"), &[("metadata.labels", json!({"app": "q"})), near.clone()]);
        let answer = Answer::of(&[objects.as_slice(), std::slice::from_ref(&stranger)].concat());
        assert_eq!((answer.refused().len(), answer.solution.nodes.len()), (1, 0), "{key}: {:?}", answer.places);
        let both = labelled("both", json!({"a": "1", "b": "1"}));
        let answer = Answer::of(&[objects.as_slice(), &[both, stranger]].concat());
        assert_eq!(answer.place("q"), "n1", "{key}");
        // the first of those that are near themselves needs no other
        let first = with(pending("q", "500m", "512Mi"), &[("metadata.labels", json!({"a": "1", "b": "1"})), near]);
        assert!(Answer::of(&[objects.as_slice(), &[first]].concat()).refused().is_empty(), "{key}");
    }
}

#[test]
fn an_empty_selector_counts_no_pod() {
    let selector = |selector: Value| {
        let mut constraints = spread(HOST, 1, "DoNotSchedule");
        constraints[0]["labelSelector"] = selector;
        Answer::of(&web(4, &[(SPREAD, constraints)])).crowds("web")
    };
    assert!(selector(json!({}))[0] > 1, "to kube-scheduler it counts none");
    assert_eq!(selector(json!({"matchLabels": {"app": "web"}})), [1, 1, 1, 1]);
}

/// kube-scheduler may bind pods first that a spread counts and that do not spread themselves: the plan holds then, too.
#[test]
fn who_spreads_reckons_with_those_who_do_not() {
    let mut constraints = spread(HOST, 1, "DoNotSchedule");
    constraints[0]["minDomains"] = json!(3);
    let on_host = (SPREAD, constraints);
    let mut objects = Vec::new();
    for (name, zone) in [("n1", "us-east-1a"), ("n2", "us-east-1b")] {
        objects.extend(node(name, "default", "m7i.2xlarge", zone, CapacityType::OnDemand));
    }
    objects
        .extend(["large1", "large2"].map(|name| app(pending(name, "2", "2Gi"), "web", std::slice::from_ref(&on_host))));
    objects.push(app(pending("small", "100m", "100Mi"), "web", &[]));
    let answer = Answer::of(&objects);
    let places: BTreeSet<&str> = ["large1", "large2", "small"].map(|pod| answer.place(pod)).into();
    assert_eq!(places.len(), 3, "{:?}", answer.places);
}

/// Whoever binds first, the zones of pods that a spread counts are those that it reckoned with.
#[test]
fn pods_that_a_spread_counts_have_a_zone() {
    let mut objects = web(3, &[(SPREAD, spread(ZONE, 1, "DoNotSchedule"))]);
    objects.push(app(pending("plain", "100m", "100Mi"), "web", &[]));
    objects.push(app(pending("other", "100m", "100Mi"), "other", &[]));
    let answer = Answer::of(&objects);
    let mut zones = answer.zones("web-");
    *zones.entry(answer.zone("plain")).or_default() += 1;
    assert!(zones.len() == 3 && zones.values().all(|count| *count <= 2), "{zones:?}");
}

/// A node without the label is as good as any for pods that are only counted by it.
#[test]
fn pods_that_a_spread_counts_may_be_where_it_does_not_look() {
    let bare = json!({
        "kind": "Node", "metadata": {"name": "bare", "labels": {HOST: "bare"}},
        "status": {
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "20"}, "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    let mut objects = web(1, &[(SPREAD, spread(ZONE, 1, "DoNotSchedule"))]);
    objects.extend([bare, app(pending("plain", "1", "1Gi"), "web", &[])]);
    assert_eq!(Answer::of(&objects).place("plain"), "bare");
}

/// A node behind a taint opens a zone for kube-scheduler, in which a spread's own pods cannot be, whichever it comes to be.
#[test]
fn a_spread_reckons_with_a_zone_that_is_still_open() {
    let zones = |zones: Value| json!([{"key": ZONE, "operator": "In", "values": zones}]);
    let taint = json!([{"key": "team", "value": "red", "effect": "NoSchedule"}]);
    let tolerates = [("spec.tolerations", json!([{"key": "team", "operator": "Exists"}]))];
    let refused = |more: &[Value]| {
        let behind = pool("behind", zones(json!(["us-east-1b", "us-east-1c"])));
        let behind = with(behind, &[("spec.template.spec.taints", taint.clone())]);
        let mut all = vec![class(), pool("near", zones(json!(["us-east-1a"]))), behind];
        all.extend(web(2, &[(SPREAD, spread(ZONE, 1, "DoNotSchedule"))]));
        all.extend_from_slice(more);
        solve(&snapshot(&all, catalogue(TYPES))).unschedulable.len()
    };
    assert_eq!(refused(&[]), 0, "one zone is all there is");
    let selector = ("spec.nodeSelector", json!({"karpenter.sh/nodepool": "behind"}));
    let more = [tolerates[0].clone(), selector];
    assert_eq!(refused(&[app(pending("red", "1", "1Gi"), "red", &more)]), 1, "the second one would be two above none");
}

#[test]
fn pools_that_cannot_grow_change_nothing_for_others() {
    let red = |name: &str, cpu: &str, more: &[(&str, Value)]| app(pending(name, cpu, "64Mi"), "red", more);
    let near = [(REQUIRED_NEAR, json!([term(HOST, "red")]))];
    let arm = json!([{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]);
    let answer = |more: &[Value]| {
        let mut all = vec![class(), pool("arm", arm.clone()), red("p0", "7", &near), red("p1", "7", &near)];
        all.extend_from_slice(more);
        let solution = solve(&snapshot(&all, catalogue(TYPES)));
        solution.unschedulable.iter().map(|u| u.pod.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(answer(&[]), ["p1"], "the largest type for arm64 holds one");
    let full = with(pool("full", json!([])), &[("spec.weight", json!(100)), ("spec.limits", json!({"nodes": 0}))]);
    assert_eq!(answer(&[full]), ["p1"], "larger types of a pool that is full");
    let nowhere = json!([{"key": ZONE, "operator": "In", "values": ["nowhere"]}]);
    assert_eq!(answer(&[pool("nowhere", nowhere)]), ["p1"]);
}

/// Pods on a node of which it is not known yet whether a spread will look at it count against the skew, but do not raise the least.
#[test]
fn a_spread_is_sure_of_what_it_counts() {
    let arm = ("spec.nodeSelector", json!({"kubernetes.io/arch": "arm64"}));
    let either =
        |name: &str| app(pending(name, "1", "64Mi"), "web", &[("spec.nodeSelector", json!({ZONE: "us-east-1a"}))]);
    let mut objects = vec![app(running("there", "n0", "1", "1Gi"), "other", &[])];
    objects.extend(node("n0", "default", "c6g.2xlarge", "us-east-1a", CapacityType::OnDemand));
    // the room of the node is taken
    objects.push(running("full", "n0", "6", "1Gi"));
    objects.extend([either("e0"), either("e1")]);
    // they must be near e0 and e1, so that the zones of those are settled
    let near = [(REQUIRED_NEAR, json!([term(ZONE, "web")]))];
    objects.push(app(pending("near", "1", "1Gi"), "other", &near));
    objects.extend((0..4).map(|n| {
        let spread = (SPREAD, spread(ZONE, 1, "DoNotSchedule"));
        app(pending(&format!("s{n}"), "1", "1Gi"), "web", &[arm.clone(), spread])
    }));
    let answer = Answer::of(&objects);
    let types: BTreeSet<String> = answer
        .solution
        .nodes
        .iter()
        .filter(|node| node.pods.iter().any(|pod| pod.name.starts_with('e')))
        .flat_map(|node| node.instance_types())
        .map(|name| name.to_string())
        .collect();
    assert!(types.iter().any(|name| !name.contains("g.")), "e0 and e1 may be on amd64: {types:?}");
    let zones = answer.zones("s");
    assert!(zones.len() == 2 && zones.values().all(|count| *count == 1), "two are one above none: {zones:?}");
}

/// Nodes on Fargate have a label that no instance type has: what keeps pods off them keeps no count from being sure.
#[test]
fn pods_that_keep_off_fargate_spread_and_stay_on_the_nodes_planned_for_them() {
    let off = json!([{"matchExpressions": [{"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["fargate"]}]}]);
    let affinity = ("spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms", off);
    let mut objects = vec![class(), pool("default", json!([]))];
    objects.extend(web(9, &[affinity, (SPREAD, spread(ZONE, 1, "DoNotSchedule"))]));
    let mut known = snapshot(&objects, catalogue(TYPES));
    let solution = solve(&known);
    assert!(solution.unschedulable.is_empty(), "{:?}", solution.unschedulable);
    // nothing is launched yet, and the next pass makes no more
    let claims = solution.nodes.iter().enumerate();
    known.claims.extend(claims.map(|(at, node)| created(node, &format!("c{at}"))));
    let again = solve(&known);
    assert_eq!((again.nodes.len(), again.unschedulable.len(), again.placements.len()), (0, 0, 9));
}

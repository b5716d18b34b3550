//! What pods may ask for, form by form: tolerations, label keys of pod affinity, wishes about other pods, nominations,
//! room on nodes that start, gates, priority, and what containers come to.

use std::collections::{BTreeMap, BTreeSet};

use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::{PreferencePolicy, compete, foresee, nominated};
use karp_domain::quantity::Quantity;
use karp_domain::scheduling::{Misfit, Refusal, Solution, Target, solve};
use karp_domain::taint::{Taint, TaintEffect};
use serde_json::{Value, json};

use crate::world::{TYPES, catalogue, class, judge, node, pending, pool, running, snapshot, with};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
const NOMINATED: &str = "status.nominatedNodeName";
const ZONES: [&str; 3] = ["us-east-1a", "us-east-1b", "us-east-1c"];
const NEAR: &str = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution";
const APART: &str = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution";
const RATHER_NEAR: &str = "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution";
const RATHER_APART: &str = "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution";

fn solved(objects: &[Value]) -> Solution {
    solved_under(PreferencePolicy::Respect, objects)
}

fn solved_under(policy: PreferencePolicy, objects: &[Value]) -> Solution {
    let mut snapshot = snapshot(objects, catalogue(TYPES));
    snapshot.settings.preferences = policy;
    let solution = solve(&snapshot);
    judge::judge(&snapshot, &solution);
    solution
}

/// Where pods went: the name of a node or claim, or the number of a new node.
fn places(solution: &Solution) -> BTreeMap<&str, String> {
    let mut places = BTreeMap::new();
    for (at, node) in solution.nodes.iter().enumerate() {
        places.extend(node.pods.iter().map(|pod| (&*pod.name, format!("new {at}"))));
    }
    for placement in &solution.placements {
        let (Target::Node(name) | Target::Claim(name)) = &placement.target;
        places.insert(&placement.pod.name, name.to_string());
    }
    places
}

fn place(solution: &Solution, pod: &str) -> String {
    places(solution).remove(pod).unwrap_or_else(|| panic!("{pod} is refused: {:?}", solution.unschedulable))
}

fn refused(solution: &Solution) -> Vec<&str> {
    solution.unschedulable.iter().map(|refused| &*refused.pod.name).collect()
}

fn crowds(solution: &Solution) -> Vec<usize> {
    solution.nodes.iter().map(|node| node.pods.len()).collect()
}

fn misfits(solution: &Solution) -> impl Iterator<Item = &Misfit> {
    let reasons = solution.unschedulable.iter().flat_map(|refused| &refused.reasons);
    reasons.map(|why| if let Refusal::Pool { misfit, .. } = why { misfit } else { panic!("{why}") })
}

/// The zones in which the new node of a pod may come to be.
fn zones<'s>(solution: &'s Solution, pod: &str) -> BTreeSet<&'s str> {
    let node = solution.nodes.iter().find(|node| node.pods.iter().any(|key| &*key.name == pod));
    let node = node.unwrap_or_else(|| panic!("{pod} is on no new node: {:?}", places(solution)));
    node.offerings.iter().map(|offering| &*offering.zone.name).collect()
}

fn base(more: impl IntoIterator<Item = Value>) -> Vec<Value> {
    [class(), pool("default", json!([]))].into_iter().chain(more).collect()
}

fn large(name: &str, zone: &str) -> [Value; 2] {
    node(name, "default", "m7i.2xlarge", zone, CapacityType::OnDemand)
}

/// A node with no room beside the one pod that it has.
fn full(name: &str, zone: &str, pod: &str, labels: Value) -> [Value; 3] {
    let [host, claim] = node(name, "default", "m7i.large", zone, CapacityType::OnDemand);
    [host, claim, with(running(pod, name, "1900m", "100Mi"), &[("metadata.labels", labels)])]
}

fn small(name: &str, labels: Value, more: &[(&str, Value)]) -> Value {
    with(with(pending(name, "500m", "512Mi"), &[("metadata.labels", labels)]), more)
}

fn web(name: &str, path: &str, terms: Value) -> Value {
    small(name, json!({"app": "web"}), &[(path, terms)])
}

fn term(key: &str, app: &str, more: &[(&str, Value)]) -> Value {
    with(json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}), more)
}

fn wish(key: &str, app: &str) -> Value {
    json!([{"weight": 1, "podAffinityTerm": term(key, app, &[])}])
}

fn tolerating(name: &str, tolerations: &Value) -> Value {
    with(pending(name, "100m", "64Mi"), &[("spec.tolerations", tolerations.clone())])
}

fn tainted(name: &str, taints: &Value) -> Value {
    with(pool(name, json!([])), &[("spec.template.spec.taints", taints.clone())])
}

/// Tolerations, and whether they bear `k=v:NoSchedule`, `k=v:NoExecute`, and both without value.
fn forms() -> Vec<(Value, [bool; 3])> {
    vec![
        (json!([]), [false, false, false]),
        (json!([{"operator": "Exists"}]), [true, true, true]),
        (json!([{"operator": "Exists", "effect": "NoExecute"}]), [false, true, false]),
        (json!([{"operator": "Exists", "key": "k"}]), [true, true, true]),
        (json!([{"operator": "Exists", "key": "k", "effect": ""}]), [true, true, true]),
        (json!([{"operator": "Exists", "key": "k", "effect": "NoSchedule"}]), [true, false, false]),
        (json!([{"operator": "Exists", "key": "k", "effect": "PreferNoSchedule"}]), [false, false, false]),
        (json!([{"operator": "Equal", "key": "k", "value": "v"}]), [true, true, false]),
        (json!([{"operator": "Equal", "key": "k", "value": "w"}]), [false, false, false]),
        (json!([{"operator": "Equal", "key": "k", "value": ""}]), [false, false, true]),
        (json!([{"operator": "Equal", "key": "l", "value": "v"}]), [false, false, false]),
        (json!([{"operator": "", "key": "k", "value": "v"}]), [true, true, false]),
        (json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]), [true, false, false]),
        (json!([{"key": "k", "value": "v", "effect": "NoExecute", "tolerationSeconds": 0}]), [false, true, false]),
        (json!([{"key": "k", "effect": "NoSchedule"}, {"key": "k", "effect": "NoExecute"}]), [false, false, true]),
    ]
}

#[test]
fn pools_and_nodes_with_taints_take_the_pods_that_bear_them() {
    let (schedule, execute) = (TaintEffect::NoSchedule, TaintEffect::NoExecute);
    let taints = [vec![("v", schedule)], vec![("v", execute)], vec![("", schedule), ("", execute)]];
    for (column, taints) in taints.into_iter().enumerate() {
        let taints: Vec<Taint> = taints.into_iter().map(|(value, effect)| Taint::new("k", value, effect)).collect();
        let pods = forms().into_iter().enumerate().map(|(at, form)| tolerating(&format!("form-{at}"), &form.0));
        let (tainted, pods) = (tainted("tainted", &json!(taints)), pods.collect::<Vec<_>>());
        let by_pool = solved(&[vec![class(), tainted], pods.clone()].concat());
        let [host, claim] = large("n1", ZONES[0]);
        let host = with(host, &[("spec.taints", json!(taints))]);
        let by_node = solved(&[base([host, claim]), pods].concat());
        for (at, (form, bears)) in forms().iter().enumerate() {
            let name = format!("form-{at}");
            assert_eq!(!refused(&by_pool).contains(&&*name), bears[column], "a pool with {taints:?}, {form}");
            assert_eq!(place(&by_node, &name) == "n1", bears[column], "a node with {taints:?}, {form}");
        }
        let named = |why: &Misfit| matches!(why, Misfit::Taint { taint } if taints.contains(taint));
        assert!(misfits(&by_pool).all(named), "{:?}", by_pool.unschedulable);
    }
}

/// Kubernetes has them since 1.35; before that they match nothing, and five is neither above nor below five.
#[test]
fn operators_of_comparison_are_not_equality() {
    let five = tainted("tainted", &json!([{"key": "k", "value": "5", "effect": "NoSchedule"}]));
    let [gt, lt] = ["Gt", "Lt"].map(|name| tolerating(name, &json!([{"key": "k", "operator": name, "value": "5"}])));
    assert_eq!(refused(&solved(&[class(), five, gt, lt])), ["Gt", "Lt"]);
}

/// The pool that a pod goes to, of one that discourages and, perhaps, a lighter and dearer one.
fn chosen(policy: PreferencePolicy, tolerations: &Value, both: bool) -> String {
    let spare = tainted("spare", &json!([{"key": "k", "value": "v", "effect": "PreferNoSchedule"}]));
    let dear = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let mut objects = vec![class(), with(spare, &[("spec.weight", json!(50))]), tolerating("p", tolerations)];
    objects.extend(both.then(|| pool("dear", dear)));
    solved_under(policy, &objects).nodes[0].pool.to_string()
}

#[test]
fn a_pool_that_discourages_comes_after_a_dearer_and_lighter_one() {
    let cases = [
        (json!([]), "dear"),
        (json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]), "dear"),
        (json!([{"key": "k", "operator": "Exists", "effect": "PreferNoSchedule"}]), "spare"),
        (json!([{"key": "k", "value": "v"}]), "spare"),
    ];
    for (tolerations, expected) in cases {
        assert_eq!(chosen(PreferencePolicy::Respect, &tolerations, true), expected, "{tolerations}");
        assert_eq!(chosen(PreferencePolicy::Respect, &tolerations, false), "spare", "{tolerations}");
    }
}

/// Karpenter's policy is about affinity and `ScheduleAnyway`: under either, `PreferNoSchedule` is given up last.
#[test]
fn a_pool_that_discourages_comes_last_even_where_preferences_are_ignored() {
    assert_eq!(chosen(PreferencePolicy::Ignore, &json!([]), false), "spare");
    assert_eq!(chosen(PreferencePolicy::Ignore, &json!([]), true), "dear");
}

#[test]
fn match_label_keys_of_anti_affinity_keep_one_revision_apart() {
    let pods = |keys: Value| {
        let apart = json!([term(HOST, "web", &[("matchLabelKeys", keys)])]);
        let revision = |at| json!({"app": "web", "pod-template-hash": if at < 2 { "old" } else { "new" }});
        (0..4).map(move |at| small(&format!("web-{at}"), revision(at), &[(APART, apart.clone())]))
    };
    assert_eq!(crowds(&solved(&base(pods(json!([]))))), [1, 1, 1, 1]);
    assert_eq!(crowds(&solved(&base(pods(json!(["pod-template-hash"]))))), [2, 2]);
    let solution = solved(&base(large("n1", ZONES[0]).into_iter().chain(pods(json!(["pod-template-hash"])))));
    assert_eq!((solution.placements.len(), crowds(&solution)), (2, vec![2]));
}

/// A pod whose tenant has its zone for itself, as Kubernetes' documentation shows it.
fn exclusive(name: &str, tenant: &str) -> Value {
    let selector = json!({"matchExpressions": [{"key": "tenant", "operator": "Exists"}]});
    let terms = |keys: &str| json!([{"topologyKey": ZONE, "labelSelector": selector, keys: ["tenant"]}]);
    small(name, json!({"tenant": tenant}), &[(APART, terms("mismatchLabelKeys")), (NEAR, terms("matchLabelKeys"))])
}

#[test]
fn mismatch_label_keys_give_each_tenant_a_zone_for_itself() {
    let pods = |tenant: &'static str| (0..3).map(move |at| exclusive(&format!("{tenant}-{at}"), tenant));
    let mut objects = base(["a", "b", "c"].into_iter().flat_map(pods));
    let solution = solved(&objects);
    let of = |tenant: &str| (0..3).flat_map(|at| zones(&solution, &format!("{tenant}-{at}"))).collect::<BTreeSet<_>>();
    let each = ["a", "b", "c"].map(of);
    assert!(each.iter().all(|zones| zones.len() == 1), "{each:?}");
    assert_eq!(each.into_iter().flatten().collect::<BTreeSet<_>>(), ZONES.into());
    objects.push(exclusive("d", "d"));
    assert_eq!(refused(&solved(&objects)).len(), 1, "a fourth finds no zone");
}

#[test]
fn label_keys_of_affinity_tell_friends_of_the_same_tenant_from_others() {
    let solve = |labels: Value, keys: &str| {
        let mut objects = base(full("n1", ZONES[1], "db-a", json!({"app": "db", "tenant": "a"})));
        objects.extend(full("n2", ZONES[2], "db-b", json!({"app": "db", "tenant": "b"})));
        objects.push(small("p", labels, &[(NEAR, json!([term(ZONE, "db", &[(keys, json!(["tenant"]))])]))]));
        solved(&objects)
    };
    for (tenant, same, other) in [("a", ZONES[1], ZONES[2]), ("b", ZONES[2], ZONES[1])] {
        assert_eq!(zones(&solve(json!({"tenant": tenant}), "matchLabelKeys"), "p"), [same].into());
        assert_eq!(zones(&solve(json!({"tenant": tenant}), "mismatchLabelKeys"), "p"), [other].into());
    }
    assert_eq!(refused(&solve(json!({"tenant": "c"}), "matchLabelKeys")), ["p"]);
    // a key that the pod does not have is ignored
    for keys in ["matchLabelKeys", "mismatchLabelKeys"] {
        assert!(!zones(&solve(json!({}), keys), "p").contains(ZONES[0]), "{keys}");
        let apart = json!([term(HOST, "web", &[(keys, json!(["tenant"]))])]);
        let alike = (0..3).map(|at| web(&format!("web-{at}"), APART, apart.clone()));
        assert_eq!(crowds(&solved(&base(alike))), [1, 1, 1], "{keys}");
    }
}

/// A cluster with one database, on a node without room, and a pod with a wish about it that may be bound to a zone.
fn wishing(zone: &str, path: &str, bound: Option<&str>) -> Vec<Value> {
    let selector = bound.map_or_else(|| json!({}), |zone| json!({ZONE: zone}));
    let pod = with(web("web", path, wish(ZONE, "db")), &[("spec.nodeSelector", selector)]);
    base(full("n1", zone, "db", json!({"app": "db"})).into_iter().chain([pod]))
}

#[test]
fn a_wish_decides_the_zone_of_a_new_node_where_it_can() {
    for zone in ZONES {
        let others: BTreeSet<&str> = ZONES.into_iter().filter(|other| *other != zone).collect();
        assert_eq!(zones(&solved(&wishing(zone, RATHER_NEAR, None)), "web"), [zone].into());
        assert!(zones(&solved(&wishing(zone, RATHER_APART, None)), "web").is_subset(&others), "{zone}");
        let other = *others.first().unwrap();
        assert_eq!(zones(&solved(&wishing(zone, RATHER_NEAR, Some(other))), "web"), [other].into());
        assert_eq!(zones(&solved(&wishing(zone, RATHER_APART, Some(zone))), "web"), [zone].into());
        for path in [RATHER_NEAR, RATHER_APART] {
            let ignored = solved_under(PreferencePolicy::Ignore, &wishing(zone, path, None));
            assert_eq!(zones(&ignored, "web"), ZONES.into(), "{path}");
        }
    }
}

#[test]
fn a_wish_chooses_among_nodes_that_are_there() {
    for friend in ["n0", "n1", "n2"] {
        let mut objects = base(["n0", "n1", "n2"].iter().flat_map(|name| large(name, ZONES[0])));
        objects.push(with(running("db", friend, "100m", "100Mi"), &[("metadata.labels", json!({"app": "db"}))]));
        let beside = |path| [objects.clone(), vec![web("web", path, wish(HOST, "db"))]].concat();
        assert_eq!(place(&solved(&beside(RATHER_NEAR)), "web"), friend);
        let first_other = if friend == "n0" { "n1" } else { "n0" };
        assert_eq!(place(&solved(&beside(RATHER_APART)), "web"), first_other, "{friend}");
        assert_eq!(place(&solved_under(PreferencePolicy::Ignore, &beside(RATHER_APART)), "web"), "n0", "{friend}");
    }
}

#[test]
fn pods_that_would_be_apart_spread_as_far_as_they_can() {
    let webs = |count: usize, key| base((0..count).map(move |at| web(&at.to_string(), RATHER_APART, wish(key, "web"))));
    assert_eq!(crowds(&solved(&webs(3, HOST))), [1, 1, 1]);
    assert_eq!(crowds(&solved_under(PreferencePolicy::Ignore, &webs(3, HOST))), [3]);
    let solution = solved(&webs(5, ZONE));
    let settled = (0..5).map(|at| zones(&solution, &at.to_string())).filter(|zones| zones.len() == 1);
    assert_eq!(settled.flatten().collect::<BTreeSet<_>>(), ZONES.into());
}

#[test]
fn a_nominated_pod_has_its_room_and_is_counted_there() {
    let host = || node("n1", "default", "m7i.large", ZONES[0], CapacityType::OnDemand).into_iter();
    let places = |late: Value, name: &str| {
        let solution = solved(&base(host().chain([pending("big", "1500m", "1Gi"), late])));
        ["big", name].map(|pod| place(&solution, pod))
    };
    assert_eq!(places(pending("late", "1", "1Gi"), "late"), ["n1", "new 0"]);
    assert_eq!(places(with(pending("late", "1", "1Gi"), &[(NOMINATED, json!("n1"))]), "late"), ["new 0", "n1"]);
    let guards = [(NOMINATED, json!("n1")), (APART, json!([term(HOST, "test", &[])]))];
    assert_eq!(places(with(pending("guard", "100m", "1Gi"), &guards), "guard"), ["new 0", "n1"]);
}

/// kube-scheduler, while it waits for the pod's volumes, names the node and no longer calls the pod unschedulable.
#[test]
fn a_pod_that_is_about_to_be_bound_keeps_its_room() {
    let coming = [(NOMINATED, json!("n1")), ("status.conditions", json!([]))];
    let places = |more: &[(&str, Value)]| {
        let coming = with(with(pending("coming", "6", "1Gi"), &coming), more);
        let solution = solved(&base(large("n1", ZONES[0]).into_iter().chain([coming, pending("p", "2", "1Gi")])));
        assert!(refused(&solution).is_empty() && !self::places(&solution).contains_key("coming"));
        place(&solution, "p")
    };
    assert_eq!(places(&[]), "new 0");
    for (path, value) in [
        (NOMINATED, json!("unknown")),
        ("status.phase", json!("Failed")),
        ("metadata.deletionTimestamp", json!("2026-11-21T11:59:00Z")),
        ("spec.schedulingGates", json!([{"name": "wait"}])),
    ] {
        assert_eq!(places(&[(path, value)]), "n1", "{path}");
    }
}

/// Until the others have left, nobody else gets their room; not judged, since for now the node is too full.
#[test]
fn a_pod_that_displaces_others_buys_no_node() {
    let mut objects = base(full("n1", ZONES[0], "victim", json!({})));
    objects[4]["metadata"]["deletionTimestamp"] = json!("2026-11-21T12:00:30Z");
    let important = with(pending("important", "1500m", "1Gi"), &[(NOMINATED, json!("n1"))]);
    objects.extend([important, pending("other", "100m", "100Mi")]);
    let solution = solve(&snapshot(&objects, catalogue(TYPES)));
    assert_eq!(["important", "other"].map(|pod| place(&solution, pod)), ["n1", "new 0"]);
}

/// kube-scheduler counts nominated pods, and never bound ones, by a spread with an empty selector.
/// Pods at which kube-scheduler has not looked: it has said nothing of them.
fn unseen(name: &str, cpu: &str, more: &[(&str, Value)]) -> Value {
    with(with(pending(name, cpu, "1Gi"), &[("status", json!({"phase": "Pending"}))]), more)
}

#[test]
fn of_pods_alike_what_is_said_of_one_holds_for_all() {
    let web = ("metadata.labels", json!({"app": "web"}));
    let objects = [
        with(pending("web-0", "1", "1Gi"), std::slice::from_ref(&web)),
        unseen("web-1", "1", std::slice::from_ref(&web)),
        unseen("larger", "2", std::slice::from_ref(&web)),
        unseen("labelled", "1", &[]),
        unseen("urgent", "1", &[web.clone(), ("spec.priority", json!(7))]),
        unseen("elsewhere", "1", &[web.clone(), ("metadata.namespace", json!("other"))]),
        unseen("gated", "1", &[web.clone(), ("spec.schedulingGates", json!([{"name": "g"}]))]),
        unseen("nominated", "1", &[web.clone(), (NOMINATED, json!("n0"))]),
        unseen("leaving", "1", &[web, ("metadata.deletionTimestamp", json!("2026-11-21T12:00:00Z"))]),
    ];
    let mut pods = snapshot(&objects, catalogue(TYPES)).pods;
    let before = pods.clone();
    foresee(&mut pods[1..]);
    assert_eq!(pods, before, "kube-scheduler has refused none");
    foresee(&mut pods);
    let waiting: Vec<&str> = pods.iter().filter(|pod| pod.is_provisionable()).map(|pod| &*pod.key.name).collect();
    assert_eq!(waiting, ["web-0", "web-1"]);
}

#[test]
fn pods_compete_unless_all_are_alike() {
    let of = |objects: &[Value]| {
        let known = snapshot(objects, catalogue(TYPES));
        compete(known.pods.iter().map(|pod| &**pod))
    };
    let [a, b] = ["a", "b"].map(|name| pending(name, "1", "1Gi"));
    assert!(!of(&[]) && !of(std::slice::from_ref(&a)) && !of(&[a.clone(), b.clone()]));
    assert!(of(&[a, b, pending("c", "2", "1Gi")]));
}

#[test]
fn of_pods_that_spread_over_nobody_few_are_nominated() {
    let spread = |key: &str, selector: Value| json!([{"maxSkew": 2, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]);
    let pods = |name: &str, selector: Value| -> Vec<Value> {
        let one = |n: usize| {
            let own = spread("topology.kubernetes.io/zone", selector.clone());
            with(pending(&format!("{name}{n}"), "1", "1Gi"), &[("spec.topologySpreadConstraints", own)])
        };
        (0..4).map(one).collect()
    };
    let objects = [pods("all", json!({})), pods("some", json!({"matchLabels": {"app": "test"}}))].concat();
    let snapshot = snapshot(&objects, catalogue(TYPES));
    let names: Vec<&str> =
        nominated(snapshot.pods.iter().map(|pod| &**pod)).into_iter().map(|key| &*key.name).collect();
    assert_eq!(names, ["all0", "all1", "some0", "some1", "some2", "some3"]);
}

#[test]
fn a_pod_nominated_to_a_node_that_takes_none_is_placed_like_any_other() {
    let gone = json!("2026-11-21T11:59:00Z");
    let cases = [
        ("unknown", 0, "metadata.labels.team", json!("a"), "n1"),
        ("n1", 0, "metadata.deletionTimestamp", gone.clone(), "new 0"),
        ("n1", 1, "metadata.deletionTimestamp", gone, "new 0"),
        ("n1", 0, "spec.taints", json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]), "new 0"),
        ("n1", 0, "spec.unschedulable", json!(true), "new 0"),
    ];
    for (to, which, path, value, expected) in cases {
        let mut pair = large("n1", ZONES[0]);
        pair[which] = with(pair[which].clone(), &[(path, value)]);
        let pod = with(pending("p", "1", "1Gi"), &[(NOMINATED, json!(to))]);
        let solution = solved(&base(pair.into_iter().chain([pod])));
        assert_eq!(place(&solution, "p"), expected, "{to} {path}");
    }
}

/// Where a pod goes beside a node with taints; not judged, since to the judge every taint lasts.
fn beside(initialized: bool, taints: &Value, claim_says: (&str, &Value), tolerations: &Value) -> String {
    let [host, claim] = large("n1", ZONES[0]);
    let mut host = with(host, &[("spec.taints", taints.clone())]);
    host["metadata"]["labels"]["karpenter.sh/initialized"] = json!(initialized.to_string());
    let claim = with(claim, &[(claim_says.0, claim_says.1.clone())]);
    place(&solve(&snapshot(&base([host, claim, tolerating("p", tolerations)]), catalogue(TYPES))), "p")
}

#[test]
fn taints_that_go_by_themselves_keep_nobody_from_a_node_that_starts() {
    let startup = json!([{"key": "cni/wait", "value": "x", "effect": "NoExecute"}]);
    let passing = "cni/wait:NoExecute node.kubernetes.io/not-ready:NoSchedule node.kubernetes.io/not-ready:NoExecute \
        node.kubernetes.io/unreachable:NoSchedule node.cloudprovider.kubernetes.io/uninitialized:NoSchedule \
        karpenter.sh/unregistered:NoExecute readiness.k8s.io/storage:NoSchedule";
    let lasting = "cni/wait:NoSchedule cni/other:NoExecute node.kubernetes.io/unreachable:NoExecute \
        node.kubernetes.io/memory-pressure:NoSchedule";
    for (taints, expected) in [(passing, "n1"), (lasting, "new 0")] {
        for (key, effect) in taints.split(' ').filter_map(|taint| taint.split_once(':')) {
            let taints = json!([{"key": key, "effect": effect}]);
            let place = |initialized| beside(initialized, &taints, ("spec.startupTaints", &startup), &json!([]));
            assert_eq!(place(false), expected, "{key}:{effect} while it starts");
            assert_eq!(place(true), "new 0", "{key}:{effect} once it is initialized");
        }
    }
}

#[test]
fn a_taint_of_the_pool_counts_whether_or_not_the_node_has_it_yet() {
    let lasting = json!([{"key": "team", "value": "a", "effect": "NoSchedule"}]);
    for taints in [json!([]), lasting.clone()] {
        let place = |tolerations| beside(false, &taints, ("spec.taints", &lasting), &tolerations);
        assert_eq!(place(json!([])), "new 0", "{taints}");
        assert_eq!(place(json!([{"key": "team", "value": "a"}])), "n1", "{taints}");
    }
}

#[test]
fn startup_taints_of_claims_and_pools_keep_nobody_out() {
    let taints = json!([{"key": "cni/wait", "value": "x", "effect": "NoExecute"}]);
    let kind = json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.2xlarge"]}]);
    for (path, expected) in [("spec.startupTaints", "default-n1"), ("spec.taints", "new 0")] {
        let [_, claim] = large("n1", ZONES[0]);
        let claim = with(claim, &[(path, taints.clone()), ("status", json!({})), ("spec.requirements", kind.clone())]);
        assert_eq!(place(&solved(&base([claim, pending("p", "1", "1Gi")])), "p"), expected, "{path}");
    }
    let starting = with(pool("default", json!([])), &[("spec.template.spec.startupTaints", taints)]);
    let node = &solved(&[class(), starting, pending("p", "1", "1Gi")]).nodes[0];
    assert_eq!(node.startup_taints, [Taint::new("cni/wait", "x", TaintEffect::NoExecute)], "handed on");
}

#[test]
fn a_gated_pod_is_left_out_and_in_nobodys_way() {
    let pod = |name: &str| web(name, APART, json!([term(HOST, "web", &[])]));
    let mut objects = base([pod("web-0"), pod("web-1"), pending("huge", "500", "1Gi")]);
    objects[1]["spec"]["limits"] = json!({"nodes": 1});
    assert_eq!(refused(&solved(&objects)).len(), 2);
    objects[3..].iter_mut().for_each(|pod| pod["spec"]["schedulingGates"] = json!([{"name": "quota"}]));
    let solution = solved(&objects);
    assert_eq!(places(&solution).into_keys().collect::<Vec<_>>(), ["web-0"]);
    assert_eq!(refused(&solution), [""; 0]);
}

#[test]
fn the_last_room_goes_to_the_pod_of_the_highest_priority() {
    let two_cpus = json!([{"key": "karpenter.k8s.aws/instance-cpu", "operator": "In", "values": ["2"]}]);
    let limited = with(pool("default", two_cpus), &[("spec.limits", json!({"nodes": 1}))]);
    let pod = |(name, cpu, priority)| with(pending(name, cpu, "1Gi"), &[("spec.priority", json!(priority))]);
    for (a, b, c, winner) in [(0, 0, 1, "c"), (5, -5, 0, "a"), (-2, -1, -3, "b")] {
        let [a, b, c] = [("a", "1800m", a), ("b", "1500m", b), ("c", "1200m", c)].map(pod);
        let solution = solved(&[class(), limited.clone(), a, b, c]);
        assert_eq!(places(&solution).into_keys().collect::<Vec<_>>(), [winner]);
        let is_limit = |why: &Misfit| matches!(why, Misfit::Limit { resource, .. } if resource == "nodes");
        assert!(misfits(&solution).all(is_limit), "{:?}", solution.unschedulable);
    }
}

/// Specs with the CPU and memory that they come to by the rule of kube-scheduler.
fn sums() -> Vec<(Value, &'static str, &'static str)> {
    let asks = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "100Mi"}}});
    let stays = |cpu: &str| with(asks(cpu), &[("restartPolicy", json!("Always"))]);
    let init = |init: Value| json!({"containers": [asks("200m"), asks("300m")], "initContainers": init});
    let whole = |resources: Value| with(init(json!([])), &[("resources", resources)]);
    let over = |spec: Value| with(spec, &[("overhead", json!({"cpu": "250m", "memory": "20Mi"}))]);
    let limits = json!({"limits": {"cpu": "4", "memory": "4Gi"}});
    vec![
        (init(json!([asks("400m"), asks("300m")])), "500m", "200Mi"),
        (init(json!([asks("2"), asks("1")])), "2", "200Mi"),
        (init(json!([stays("100m"), asks("1")])), "1100m", "300Mi"),
        (init(json!([asks("1"), stays("100m")])), "1", "300Mi"),
        (init(json!([stays("100m"), asks("1"), stays("2")])), "2600m", "400Mi"),
        (over(init(json!([asks("2")]))), "2250m", "220Mi"),
        (over(whole(json!({"requests": {"cpu": "2"}}))), "2250m", "220Mi"),
        (whole(limits.clone()), "500m", "200Mi"),
        (json!({"containers": [{"name": "c"}], "resources": limits}), "4", "4Gi"),
        (json!({"containers": [{"name": "c", "resources": limits}]}), "4", "4Gi"),
    ]
}

#[test]
fn a_pod_asks_for_what_kube_scheduler_counts() {
    let own = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "150m", "memory": "50Mi"}}}]});
    let agent = with(json!({"kind": "DaemonSet", "spec": {"selector": {}}}), &[("spec.template.spec", own)]);
    let quantity = |text: &str| text.parse::<Quantity>().unwrap();
    for (spec, cpu, memory) in sums() {
        let pod = with(pending("p", "1", "1Gi"), &[("spec", spec.clone())]);
        let planned = &solved(&base([agent.clone(), pod])).nodes[0].requests;
        let beside = (planned.get("cpu") - quantity("150m"), planned.get("memory") - quantity("50Mi"));
        assert_eq!(beside, (quantity(cpu), quantity(memory)), "{spec}");
    }
}

/// As kube-scheduler: room is given up when the kubelet has made the container smaller, and taken as soon as it is asked for.
#[test]
fn a_pod_that_is_resized_in_place_counts_for_the_most_of_what_it_asks_and_has() {
    let cpu = |has: &str, allocated: &str, asks: &str, more: &[(&str, Value)]| {
        let own = json!([{"name": "c", "ready": true, "restartCount": 0, "image": "", "imageID": "",
            "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": has}}}]);
        let pod = with(running("p", "n", asks, "1Gi"), &[("status.containerStatuses", own)]);
        let known = snapshot(&[with(pod, more)], catalogue(TYPES));
        known.pods[0].shape.requests.get("cpu").to_string()
    };
    assert_eq!(cpu("1", "1", "1", &[]), "1");
    assert_eq!(cpu("2", "2", "1", &[]), "2", "not made smaller yet");
    assert_eq!(cpu("2", "1", "1", &[]), "2", "the kubelet is about to");
    assert_eq!(cpu("1", "1", "3", &[]), "3", "it will grow");
    let never = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
    assert_eq!(cpu("1", "1", "300", &[("status.conditions", never)]), "1", "it will not");
    // sidecars are resized as well; their states are among those of the init containers, and what starts after them counts with them
    let sidecar = |has: &str, asks: &str, first: &str| {
        let own = |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        let beside = with(own("beside", asks), &[("restartPolicy", json!("Always"))]);
        let state = |name: &str, cpu: &str| {
            json!({"name": name, "ready": true, "restartCount": 0, "image": "", "imageID": "",
            "allocatedResources": {"cpu": cpu}, "resources": {"requests": {"cpu": cpu}}})
        };
        let more = [
            ("spec.initContainers", json!([beside, own("first", first)])),
            ("status.initContainerStatuses", json!([state("beside", has), state("first", first)])),
            ("status.containerStatuses", json!([state("beside", "9"), state("c", "1")])),
        ];
        let known = snapshot(&[with(running("p", "n", "1", "1Gi"), &more)], catalogue(TYPES));
        known.pods[0].shape.requests.get("cpu").to_string()
    };
    assert_eq!(sidecar("2", "500m", "100m"), "3", "not made smaller yet");
    assert_eq!(sidecar("500m", "2", "100m"), "3", "it will grow");
    assert_eq!(sidecar("2", "500m", "1500m"), "3500m", "what started beside it");
    // before it is bound nothing is in use
    let unbound = with(
        pending("p", "1", "1Gi"),
        &[(
            "status.containerStatuses",
            json!([{"name": "c", "ready": true,
        "restartCount": 0, "image": "", "imageID": "", "resources": {"requests": {"cpu": "2"}}}]),
        )],
    );
    assert_eq!(snapshot(&[unbound], catalogue(TYPES)).pods[0].shape.requests.get("cpu").to_string(), "1");
}

/// Limits leave some waiting: those of lower priority, and never one that another would have made way for.
#[test]
fn limits_keep_nobody_out_for_whom_others_have_an_alternative() {
    let apart = json!([term(HOST, "web", &[])]);
    let web = |name: &str, cpu: &str, more: &[(&str, Value)]| {
        let labels = [("metadata.labels", json!({"app": "web"})), (APART, apart.clone())];
        with(with(pending(name, cpu, "1Gi"), &labels), more)
    };
    let limited = |limits: Value| with(pool("any", json!([])), &[("spec.weight", json!(50)), ("spec.limits", limits)]);
    let arm = pool("arm", json!([{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]));
    let amd = ("spec.nodeSelector", json!({"kubernetes.io/arch": "amd64"}));
    // one of two nodes must go to the pod that fits nowhere else
    let mut objects = vec![class(), limited(json!({"nodes": 2})), arm, web("bound", "900m", &[amd])];
    objects.extend((0..4).map(|n| web(&format!("free-{n}"), "1", &[])));
    assert_eq!(refused(&solved(&objects)), [""; 0]);
    // room for two small ones or a large one: priority decides
    let mut objects = vec![class(), limited(json!({"cpu": "8"})), web("large", "7", &[("spec.priority", json!(10))])];
    objects.extend((0..2).map(|n| web(&format!("small-{n}"), "3", &[])));
    assert_eq!(refused(&solved(&objects)), ["small-0", "small-1"]);
    objects[2] = web("large", "7", &[]);
    assert_eq!(refused(&solved(&objects)), ["large"], "of one priority, as many as can be");
}

/// kube-scheduler looks at the ports of containers and sidecars; those of other init containers are free again when the pod runs.
#[test]
fn ports_of_init_containers_are_free_when_the_pod_runs() {
    let port = |restart: Option<&str>| {
        let mut first = json!({"name": "first", "ports": [{"containerPort": 80, "hostPort": 80}]});
        if let Some(policy) = restart {
            first["restartPolicy"] = json!(policy);
        }
        json!([first])
    };
    let pods = |restart: Option<&str>| -> Vec<Value> {
        let pod = |name: &&str| with(pending(name, "500m", "1Gi"), &[("spec.initContainers", port(restart))]);
        [class(), pool("default", json!([]))].into_iter().chain(["a", "b"].iter().map(pod)).collect()
    };
    assert_eq!(crowds(&solved(&pods(None))), [2]);
    assert_eq!(crowds(&solved(&pods(Some("Always")))), [1, 1]);
}

/// A pool that its taints only make unwelcome shows its zones to spreads all the same.
#[test]
fn zones_of_a_pool_that_discourages_count_for_spreads() {
    let in_zones = |zones: &[&str]| json!([{"key": ZONE, "operator": "In", "values": zones}]);
    let discourages = json!([{"key": "slow", "effect": "PreferNoSchedule"}]);
    let spread = json!([{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "test"}}}]);
    let mut objects = vec![
        class(),
        pool("near", in_zones(&ZONES[..1])),
        with(pool("far", in_zones(&ZONES[1..2])), &[("spec.template.spec.taints", discourages)]),
    ];
    let pod = |at: usize| {
        with(pending(&format!("p{at}"), "100m", "64Mi"), &[("spec.topologySpreadConstraints", spread.clone())])
    };
    objects.extend((0..4).map(pod));
    let solution = solved(&objects);
    let in_far: usize = solution.nodes.iter().filter(|node| &*node.pool == "far").map(|node| node.pods.len()).sum();
    assert_eq!((in_far, refused(&solution).len()), (2, 0));
}

/// A node that is planned for others makes a domain, which a spread that ignores taints looks at though its pods cannot go there.
#[test]
fn nodes_planned_for_others_make_domains() {
    let in_zones = |zones: &[&str]| json!([{"key": ZONE, "operator": "In", "values": zones}]);
    let tainted = json!([{"key": "gpu", "effect": "NoSchedule"}]);
    let spread = |policy: &str| {
        json!([{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": policy, "labelSelector": {"matchLabels": {"app": "test"}}}])
    };
    let objects = |policy: &str, with_other: bool| {
        let mut objects = vec![
            class(),
            pool("own", in_zones(&ZONES[..1])),
            with(pool("gpu", in_zones(&ZONES[1..2])), &[("spec.template.spec.taints", tainted.clone())]),
        ];
        let spreads = |at: usize| {
            with(pending(&format!("p{at}"), "100m", "64Mi"), &[("spec.topologySpreadConstraints", spread(policy))])
        };
        objects.extend((0..3).map(spreads));
        let other = [
            ("metadata.labels", json!({"app": "other"})),
            ("spec.tolerations", json!([{"operator": "Exists"}])),
            ("spec.nodeSelector", json!({ZONE: ZONES[1]})),
        ];
        objects.extend(with_other.then(|| with(pending("other", "1", "1Gi"), &other)));
        objects
    };
    assert_eq!(refused(&solved(&objects("Ignore", false))).len(), 0, "one zone is all there is");
    assert_eq!(refused(&solved(&objects("Honor", true))).len(), 0);
    let solution = solved(&objects("Ignore", true));
    assert_eq!(refused(&solution), ["p1", "p2"], "kube-scheduler takes one, and waits for pods in the other zone");
}

/// Pods that join others take no type that the pool's `minValues` needs.
#[test]
fn who_joins_leaves_enough_types_for_min_values() {
    let families = json!([{"key": "karpenter.k8s.aws/instance-family", "operator": "Exists", "minValues": 2}]);
    let gpu = json!([{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": 1},
        "limits": {"nvidia.com/gpu": 1}}}]);
    let near = json!([{"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "host"}}}]);
    let host = |name: &str| {
        let port = json!([{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]);
        with(pending(name, "1", "1Gi"), &[("metadata.labels", json!({"app": "host"})), ("spec.containers", port)])
    };
    let guest = with(pending("guest", "1", "1Gi"), &[("spec.containers", gpu), (NEAR, near)]);
    let solution = solved(&[class(), pool("default", families), host("a"), host("b"), guest]);
    assert_eq!((crowds(&solution), refused(&solution)), (vec![1, 1], vec!["guest"]));
}

//! Refusals as people read them: what is at odds, who asked for it, and what to change. Decisions are other tests' affair.

use karp_domain::api::labels;
use karp_domain::cluster::Snapshot;
use karp_domain::scheduling::{Misfit, Refusal, solve};
use serde_json::{Value, json};

use crate::world::{TYPES, catalogue, class, judge, node, pending, pool, running, snapshot, with};

const ZONE: &str = labels::ZONE;

fn one(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": operator, "values": values})
}

fn zones(names: &[&str]) -> Value {
    one(ZONE, "In", names)
}

fn capacity(names: &[&str]) -> Value {
    one(labels::CAPACITY_TYPE, "In", names)
}

fn affinity(pod: Value, expressions: &Value) -> Value {
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": expressions}]});
    with(pod, &[("spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", terms)])
}

fn small(name: &str) -> Value {
    pending(name, "100m", "64Mi")
}

fn refusals(snapshot: &Snapshot) -> Vec<Refusal> {
    let solution = solve(snapshot);
    judge::judge(snapshot, &solution);
    let [refused] = &solution.unschedulable[..] else { panic!("{solution:?}") };
    refused.reasons.clone()
}

/// The only reason for which the only refused pod is refused, and what to change.
fn told(objects: &[Value]) -> (String, String) {
    let reasons = refusals(&snapshot(objects, catalogue(TYPES)));
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    (reason.to_string(), reason.remedy())
}

#[track_caller]
fn check(objects: &[Value], reason: &str, remedy: &str) {
    let (told, changed) = told(objects);
    assert_eq!(told, reason);
    assert!(changed.contains(remedy), "{changed}");
}

fn in_pool(requirements: Value, pod: Value) -> Vec<Value> {
    vec![class(), pool("general", requirements), pod]
}

/// A claim bound to a volume in a zone, and a pod that uses it.
fn bound(zone: &str, pod: Value) -> [Value; 3] {
    let terms = json!([{"matchExpressions": [zones(&[zone])]}]);
    [
        json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"},
            "spec": {"volumeName": "pv-1"}}),
        json!({"kind": "PersistentVolume", "metadata": {"name": "pv-1"}, "spec": {
            "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}),
        with(pod, &[("spec.volumes", json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]))]),
    ]
}

#[test]
fn a_volume_is_told_of_not_the_pod_that_uses_it() {
    let data = "persistent volume claim data: volume pv-1 is in topology.kubernetes.io/zone In [us-east-1a], \
                but the pod asks for topology.kubernetes.io/zone In [us-east-1b]";
    let by_selector = with(small("p"), &[("spec.nodeSelector", json!({ZONE: "us-east-1b"}))]);
    let by_affinity = affinity(small("p"), &json!([zones(&["us-east-1b"])]));
    for pod in [by_selector, by_affinity] {
        let mut objects = in_pool(json!([]), Value::Null);
        objects.truncate(2);
        objects.extend(bound("us-east-1a", pod));
        check(&objects, data, "node affinity allow where the volume is");
    }
    let at_odds = |zone: &str, requirements: Value, says: &str| {
        let mut objects = vec![class(), pool("general", requirements)];
        objects.extend(bound(zone, small("p")));
        let volume = "pool general: volume pv-1 of persistent volume claim data is in topology.kubernetes.io/zone In";
        check(&objects, &format!("{volume} [{zone}], {says}"), "another claim than data");
    };
    at_odds(
        "us-east-1a",
        json!([zones(&["us-east-1b"])]),
        "the pool allows only topology.kubernetes.io/zone In [us-east-1b]",
    );
    let sold = "and what would do is sold only as spot or on-demand in us-east-1a or us-east-1b or us-east-1c";
    at_odds("us-east-1f", json!([]), sold);
}

/// Pods of one kind are told of their own claims.
#[test]
fn each_pod_is_told_of_its_own_volume() {
    let mut objects = vec![class(), pool("general", json!([zones(&["us-east-1b"])]))];
    for at in ["0", "1"] {
        for mut object in bound("us-east-1a", small(&format!("web-{at}"))) {
            let name = format!("data-{at}");
            match object["kind"].as_str().unwrap() {
                "PersistentVolume" => object["metadata"]["name"] = json!(format!("pv-{at}")),
                "Pod" => object["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = json!(name),
                _ => {
                    object["metadata"]["name"] = json!(name);
                    object["spec"]["volumeName"] = json!(format!("pv-{at}"));
                }
            }
            objects.push(object);
        }
    }
    let solution = solve(&snapshot(&objects, catalogue(TYPES)));
    let told: Vec<String> = solution.unschedulable.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 2);
    for (at, told) in told.iter().enumerate() {
        assert!(told.contains(&format!("volume pv-{at} of persistent volume claim data-{at} is in")), "{told}");
    }
}

/// A pod that would not fit without its volume either is not told of it.
#[test]
fn a_volume_is_not_to_blame_for_the_pods_own_selector() {
    let mut objects = vec![class(), pool("general", json!([zones(&["us-east-1b"])]))];
    objects.extend(bound("us-east-1a", with(small("p"), &[("spec.nodeSelector", json!({"team": "x"}))])));
    let (reason, _) = told(&objects);
    assert!(reason.contains("label \"team\" is wanted but nothing defines it"), "{reason}");
}

#[test]
fn an_offering_that_is_missing_now_is_not_one_that_nobody_sells() {
    let never = "pool general: 1 instance type would do, but none is sold as spot in us-east-1z, \
                 only as spot or on-demand in us-east-1a or us-east-1b or us-east-1c";
    let of_type = one(labels::INSTANCE_TYPE, "In", &["m7i.large"]);
    let objects = in_pool(json!([of_type, zones(&["us-east-1z"]), capacity(&["spot"])]), small("p"));
    check(&objects, never, "to wait does not help");

    let on_b = json!([of_type, zones(&["us-east-1b"]), capacity(&["on-demand"])]);
    let mut world = snapshot(&in_pool(on_b, small("p")), catalogue(TYPES));
    let gone = catalogue(TYPES).without(|_, offering| &*offering.zone.name == "us-east-1b");
    world.catalogues.insert("default".into(), gone.into());
    let reasons = refusals(&world);
    let now = "pool general: 1 instance type would do, but none can be had now as on-demand in us-east-1b";
    assert_eq!(reasons[0].to_string(), now);
    assert!(reasons[0].remedy().ends_with("or wait"));
    assert!(solve(&world).next_look.is_some());
}

#[test]
fn a_pool_of_reservations_without_any_says_so() {
    let objects = in_pool(json!([capacity(&["reserved"])]), small("p"));
    let (reason, remedy) = told(&objects);
    assert!(reason.contains("none is sold as reserved, only as spot or on-demand"), "{reason}");
    assert!(remedy.contains("capacityReservationSelectorTerms of its EC2NodeClass"), "{remedy}");
}

#[test]
fn both_sides_of_a_conflict_are_told() {
    let arm = with(small("p"), &[("spec.nodeSelector", json!({labels::ARCH: "arm64"}))]);
    check(
        &in_pool(json!([one(labels::ARCH, "In", &["amd64"])]), arm),
        "pool general: the pod's kubernetes.io/arch In [arm64] conflicts with the pool's kubernetes.io/arch In [amd64]",
        "node selector or node affinity",
    );
    // no single label is at odds: the family has no such size
    let nano = with(small("p"), &[("spec.nodeSelector", json!({"karpenter.k8s.aws/instance-size": "nano"}))]);
    check(
        &in_pool(json!([one("karpenter.k8s.aws/instance-family", "In", &["m7i"])]), nano),
        "pool general: no instance type has karpenter.k8s.aws/instance-size In [nano], which the pod wants, \
         and karpenter.k8s.aws/instance-family In [m7i], which the pool wants",
        "requirements of pool general",
    );
    // what the pool asks for leaves nothing to any pod
    let torn = json!([
        one("karpenter.k8s.aws/instance-family", "In", &["m7i"]),
        one("karpenter.k8s.aws/instance-category", "In", &["t"]),
    ]);
    check(
        &in_pool(torn, small("p")),
        "pool general: no instance type has karpenter.k8s.aws/instance-category In [t], \
         karpenter.k8s.aws/instance-family In [m7i], which the pool asks for",
        "they leave nothing to launch",
    );
}

#[test]
fn what_contradicts_itself_keeps_its_values() {
    let selects = with(small("p"), &[("spec.nodeSelector", json!({ZONE: "us-east-1a"}))]);
    check(
        &in_pool(json!([]), affinity(selects, &json!([zones(&["us-east-1b"])]))),
        "pool general: what is wanted of label \"topology.kubernetes.io/zone\" contradicts itself: \
         topology.kubernetes.io/zone In [us-east-1a] and topology.kubernetes.io/zone In [us-east-1b]",
        "leave one value of topology.kubernetes.io/zone",
    );
    check(
        &in_pool(json!([zones(&["us-east-1a"]), zones(&["us-east-1b"])]), small("p")),
        "pool general: no instance type has topology.kubernetes.io/zone In [us-east-1a] and \
         topology.kubernetes.io/zone In [us-east-1b], which the pool asks for",
        "change the requirements of pool general",
    );
    let no_term = with(
        small("p"),
        &[(
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
            json!({"nodeSelectorTerms": [{}]}),
        )],
    );
    let (reason, _) = told(&in_pool(json!([]), no_term));
    assert!(reason.ends_with("the pod's required node affinity has no term that a node could match"), "{reason}");
}

#[test]
fn pools_that_grow_for_nobody_say_why() {
    let gone = with(
        pool("general", json!([])),
        &[("metadata.deletionTimestamp", json!(crate::world::NOW)), ("metadata.finalizers", json!(["x"]))],
    );
    check(&[class(), gone, small("p")], "pool general: the pool is being deleted", "another pool");
    let auto = with(pool("auto", json!([])), &[("spec.template.spec.nodeClassRef.group", json!("eks.amazonaws.com"))]);
    check(
        &[class(), auto.clone(), small("p")],
        "there is no NodePool with a node class of karpenter.k8s.aws: auto has one of eks.amazonaws.com",
        "the kind EC2NodeClass",
    );
    let event = solve(&snapshot(&[class(), auto, small("p")], catalogue(TYPES))).unschedulable[0].event();
    assert!(event.starts_with("no nodepools found"), "{event}");
}

fn spread(pod: Value, more: &Value) -> Value {
    let mut one = json!({"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "test"}}});
    more.as_object().unwrap().iter().for_each(|(key, value)| one[key] = value.clone());
    with(pod, &[("spec.topologySpreadConstraints", json!([one]))])
}

fn near(pod: Value, kind: &str, app: &str) -> Value {
    let term = json!([{"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": app}}}]);
    with(pod, &[(&format!("spec.affinity.{kind}.requiredDuringSchedulingIgnoredDuringExecution"), term)])
}

/// A node in a zone with a pod of this app, in a pool of that zone alone.
fn there(name: &str, zone: &str, app: &str) -> Vec<Value> {
    let mut all = node(name, "general", "m7i.large", zone, karp_domain::catalogue::CapacityType::OnDemand).to_vec();
    all.push(with(running(&format!("on-{name}"), name, "100m", "64Mi"), &[("metadata.labels", json!({"app": app}))]));
    all
}

#[test]
fn an_affinity_says_whom_it_misses() {
    let lonely = near(small("p"), "podAffinity", "db");
    let rule =
        "pool general: unsatisfiable topology constraint: pod affinity, key=topology.kubernetes.io/zone, pods app=db";
    check(
        &in_pool(json!([]), lonely.clone()),
        &format!("{rule}: no pod matches app=db in namespace default"),
        "correct labelSelector and namespaces",
    );
    let mut objects = in_pool(json!([zones(&["us-east-1b"])]), lonely);
    objects.extend(there("n1", "us-east-1a", "db"));
    // the node is cordoned, so that its zone is no place for the pod
    objects
        .iter_mut()
        .filter(|object| object["kind"] == "Node")
        .for_each(|node| node["spec"]["unschedulable"] = json!(true));
    let (reason, remedy) = told(&objects);
    assert!(reason.starts_with(rule) && reason.contains("us-east-1a"), "{reason}");
    assert!(remedy.contains("us-east-1a"), "{remedy}");
}

#[test]
fn an_affinity_to_pods_without_a_node_says_so() {
    let db = with(pending("db", "900", "1Gi"), &[("metadata.labels", json!({"app": "db"}))]);
    let objects = [class(), pool("general", json!([])), near(small("p"), "podAffinity", "db"), db];
    let solution = solve(&snapshot(&objects, catalogue(TYPES)));
    let refused = solution.unschedulable.iter().find(|refused| &*refused.pod.name == "p").unwrap();
    assert!(refused.to_string().ends_with("no pod that matches app=db in namespace default has a node"), "{refused}");
    assert!(refused.reasons[0].remedy().contains("karp explain pod"));
}

#[test]
fn an_anti_affinity_says_where_the_others_are() {
    let mut objects = in_pool(json!([zones(&["us-east-1a"])]), near(small("p"), "podAntiAffinity", "db"));
    objects.extend(there("n1", "us-east-1a", "db"));
    check(
        &objects,
        "pool general: unsatisfiable topology constraint: pod anti-affinity, key=topology.kubernetes.io/zone, pods app=db: \
         such pods are in every domain where it could be: us-east-1a (1 pod)",
        "have more domains",
    );
}

#[test]
fn an_event_stays_the_same_while_counts_change() {
    let event = |nodes: usize| {
        let mut objects = in_pool(json!([zones(&["us-east-1a"])]), near(small("p"), "podAntiAffinity", "db"));
        (0..nodes).for_each(|at| objects.extend(there(&format!("n{at}"), "us-east-1a", "db")));
        solve(&snapshot(&objects, catalogue(TYPES))).unschedulable[0].event()
    };
    assert!(event(1).ends_with("pods app=db: such pods are in every domain where it could be"), "{}", event(1));
    assert_eq!(event(1), event(2));
}

#[test]
fn a_spread_says_its_counts() {
    let rule = "pool general: unsatisfiable topology constraint: topology spread, key=topology.kubernetes.io/zone, maxSkew=1, pods app=test";
    let mut objects = in_pool(json!([zones(&["us-east-1a"])]), spread(small("p"), &json!({"minDomains": 2})));
    objects.extend(there("n1", "us-east-1a", "test"));
    check(
        &objects,
        &format!(
            "{rule}: a domain may have 1 pod, as minDomains asks for 2 domains and there is one: us-east-1a (1 pod)"
        ),
        "lower minDomains to 1",
    );
    // the zone that has fewest is behind a cordon
    let mut objects = in_pool(json!([zones(&["us-east-1a"])]), spread(small("p"), &json!({})));
    objects.extend(there("n1", "us-east-1a", "test"));
    objects.extend(there("n2", "us-east-1b", "other"));
    objects
        .iter_mut()
        .filter(|object| object["kind"] == "Node" && object["metadata"]["name"] == "n2")
        .for_each(|node| node["spec"]["unschedulable"] = json!(true));
    check(
        &objects,
        &format!("{rule}: us-east-1b would do, where no node for it is or can be made"),
        "types with room for the pod in us-east-1b",
    );
    // the zone that has fewest counts, though the pod's own selector keeps it out
    let ignoring = spread(small("p"), &json!({"nodeAffinityPolicy": "Ignore"}));
    let in_a = with(ignoring, &[("spec.nodeSelector", json!({ZONE: "us-east-1a"}))]);
    let mut objects = in_pool(json!([zones(&["us-east-1a", "us-east-1b"])]), in_a);
    objects.extend(there("n1", "us-east-1a", "test"));
    check(
        &objects,
        &format!(
            "{rule}: a domain may have 1 pod, as the emptiest has 0: us-east-1a (1 pod), us-east-1b (0 pods, out of reach)"
        ),
        "raise maxSkew",
    );
}

#[test]
fn rules_that_leave_nothing_together_say_what_each_leaves() {
    let spread = spread(small("p"), &json!({}));
    let pod = near(spread, "podAntiAffinity", "db");
    let mut objects = in_pool(json!([zones(&["us-east-1a", "us-east-1b"])]), pod);
    objects.extend(there("n1", "us-east-1a", "test"));
    objects.extend(there("n2", "us-east-1b", "db"));
    let (reason, remedy) = told(&objects);
    let says = [
        "topology spread, key=topology.kubernetes.io/zone, maxSkew=1, pods app=test (leaves us-east-1b)",
        " and pod anti-affinity, key=topology.kubernetes.io/zone, pods app=db (leaves us-east-1a): together they leave no domain",
    ];
    assert!(reason.ends_with(&says.concat()), "{reason}");
    assert!(remedy.starts_with("relax one of the constraints"), "{remedy}");
}

#[test]
fn what_is_too_big_names_the_setting_that_bounds_it() {
    let disk = json!([{"name": "c", "resources": {"requests": {"ephemeral-storage": "500Gi"}}}]);
    let (reason, remedy) = told(&in_pool(json!([]), with(small("p"), &[("spec.containers", disk)])));
    assert!(reason.contains("ephemeral-storage: 500Gi asked"), "{reason}");
    assert!(
        remedy.contains("ebs.volumeSize in spec.blockDeviceMappings of the EC2NodeClass of pool general"),
        "{remedy}"
    );

    let mut objects = in_pool(json!([one(labels::INSTANCE_TYPE, "In", &["t3.nano"])]), small("p"));
    for at in 0..8 {
        objects.push(
            json!({"kind": "DaemonSet", "metadata": {"name": format!("d{at}"), "namespace": "kube-system", "uid": "d"},
            "spec": {"selector": {"matchLabels": {"d": "d"}}, "template": {"metadata": {"labels": {"d": "d"}},
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}}]}}}}),
        );
    }
    let (reason, remedy) = told(&objects);
    assert!(reason.contains("pods: 1 asked, daemons leave 0 of what kubelet runs on one node (maxPods)"), "{reason}");
    assert!(remedy.contains("spec.kubelet.maxPods"), "{remedy}");
}

#[test]
fn min_values_says_whether_limits_are_in_its_way() {
    let of_types = |limits: Value| {
        let wanted = json!([{"key": labels::INSTANCE_TYPE, "operator": "Exists", "minValues": 5}]);
        let few = json!([wanted[0], one("karpenter.k8s.aws/instance-family", "In", &["m7i"])]);
        match limits {
            // m7i has four sizes here
            Value::Null => in_pool(few, small("p")),
            limits => vec![class(), with(pool("general", wanted), &[("spec.limits", limits)]), small("p")],
        }
    };
    let (reason, remedy) = told(&of_types(Value::Null));
    assert!(reason.contains("only 4 remain on types that hold the pod and can be had"), "{reason}");
    assert!(remedy.contains("lower minValues") && !remedy.contains("spec.limits"), "{remedy}");
    let (reason, remedy) = told(&of_types(json!({"cpu": "2", "memory": "4Gi"})));
    assert!(reason.contains("within the pool's limits"), "{reason}");
    assert!(remedy.starts_with("raise spec.limits of pool general, or lower minValues"), "{remedy}");
}

#[test]
fn counts_of_one_are_told_in_the_singular() {
    let misfit = Misfit::TooManyVolumes { driver: "ebs.csi.aws.com".into(), wanted: 1, most: 1 };
    let refusal = Refusal::Pool { pool: "general".into(), misfit };
    assert!(refusal.to_string().contains("1 volume of ebs.csi.aws.com"), "{refusal}");
    assert!(refusal.remedy().contains("at most 1 volume,"), "{}", refusal.remedy());
}

//! No input panics: arbitrary text through every reader, and valid objects with random damage through reading, `solve` and
//! `plan_disruption`. `KARP_DEEP=1` runs fifty times the cases.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1 as core;
use karp_domain::api::{self, Ec2NodeClass, NodeClaim, NodePool, labels};
use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::{
    Claim, DaemonSet, LimitRange, Node, Pod, PodBudget, Pool, Share, Snapshot, StorageClass, Volume, VolumeClaim,
    Window,
};
use karp_domain::disruption::plan_disruption;
use karp_domain::interruption;
use karp_domain::quantity::Quantity;
use karp_domain::requirement::{Operator, Requirement, Requirements, Undefined, hint};
use karp_domain::resources::Resources;
use karp_domain::scheduling::solve;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::deep;
use crate::world::{self, TYPES, at, catalogue, class, node, pending, pool, running, snapshot, with};

/// Text as users, mistakes and enemies write it.
fn text(near: &'static str) -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), near, prop::sample::select(NASTY).prop_map(str::to_owned)]
}

const NASTY: &[&str] = &[
    "",
    " ",
    "-",
    "+",
    ".",
    "%",
    "/",
    "\0",
    "\u{202e}",
    "🦀",
    "é",
    "NaN",
    "inf",
    "-0",
    "1e400",
    "1e-400",
    "9e18E",
    "170141183460469231731687303715884105728",
    "-170141183460469231731687303715884105729",
    "0.00000000000000000000001",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616Ei",
    "Ki",
    "1Kii",
    "e",
    "1e",
    "@",
    "@every",
    "topology.kubernetes.io/",
    "/zone",
    "karpenter.sh/nodepool/x",
];

const CRON: &str = "[0-9*/,@A-Za-z?#-]{1,6}( [0-9*/,A-Z?#L-]{1,6}){3,5}";

proptest! {
    #![proptest_config(deep::cases(400))]

    #[test]
    fn quantities(a in text("[+-]?[0-9]{0,25}(\\.[0-9]{0,25})?([eE][+-]?[0-9]{1,4}|[KMGTPEnumk]i?)?"), b in text("[0-9]{1,20}[KMGTPE]i?"), factor in any::<i64>()) {
        let (a, b) = (a.parse::<Quantity>(), b.parse::<Quantity>());
        if let Ok(a) = &a {
            let shown = a.to_string();
            prop_assert_eq!(&shown.parse::<Quantity>().map_err(|e| e.to_string()), &Ok(*a), "{}", shown);
            let _ = (a.millis(), a.units(), a.times(factor), -*a, a.is_zero());
        }
        if let (Ok(a), Ok(b)) = (a, b) {
            let _ = ((a + b).to_string(), (a - b).to_string(), a.cmp(&b));
            let list = Resources::new().with("x", a);
            let other = Resources::new().with("x", b);
            let _ = (list.plus(&other), list.minus(&other), list.fits(&other), list.shortage(&other), list.to_api());
        }
    }

    #[test]
    fn requirements(parts in prop::collection::vec((text("[a-z.]{1,9}/[a-z]{1,5}"), text("[A-Z][a-zA-Z]{1,9}"), prop::collection::vec(text("[0-9]{1,20}"), 0..4)), 0..6)) {
        const OPERATORS: [Operator; 8] = [Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist, Operator::Gt, Operator::Lt, Operator::Gte, Operator::Lte];
        let mut all = Requirements::new();
        for (number, (key, operator, values)) in parts.iter().enumerate() {
            let operator = operator.parse().unwrap_or(OPERATORS[(key.len() + values.len() + number) % OPERATORS.len()]);
            if let Ok(requirement) = Requirement::new(key, operator, values) {
                let other: Requirements = [requirement.clone()].into_iter().collect();
                let _ = (all.compatible(&other, Undefined::WellKnownAllowed).map_err(|e| e.to_string()), other.intersects(&all).map_err(|e| e.to_string()));
                let _ = (hint::value(&requirement, &requirement), hint::key(key, all.iter().map(Requirement::key)));
                all.add(requirement);
            }
        }
        prop_assert_eq!(api::requirements(&api::requirement_specs(&all)), Ok(all.clone()));
        let _ = (all.to_string(), all.settled_labels());
    }

    #[test]
    fn schedules_shares_and_durations(schedule in text(CRON), nodes in text("[0-9]{1,12}%?"), length in text("([0-9]{1,19}[hms]){1,3}"), seconds in 0_i64..200_000) {
        let duration = api::duration(&length).unwrap_or(SignedDuration::from_secs(seconds));
        let window = Window { schedule: schedule.as_str().into(), duration };
        let _ = window.is_open(at(world::NOW)).map_err(|e| e.to_string());
        let share = Share::parse(&nodes);
        for total in [0, 1, 7, u32::MAX] {
            prop_assert!(!matches!(share, Share::Percent(_)) || share.of(total) <= total);
        }
    }

    #[test]
    fn messages(body in text("\\{\"(source|detail-type|detail)\":[a-z0-9\"{}:,]{0,40}\\}")) {
        let _ = interruption::parse(&body);
    }
}

/// Kinds that the engine reads, each with much of what it can say.
fn cluster() -> Vec<Value> {
    let selector = json!({"matchLabels": {"app": "test"}, "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]});
    let term = json!({"labelSelector": selector, "topologyKey": "kubernetes.io/hostname", "namespaces": ["default"], "namespaceSelector": {}});
    let expression = json!({"key": "karpenter.k8s.aws/instance-cpu", "operator": "Gt", "values": ["1"]});
    let node_terms = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
    let weighted = json!([{"weight": 5, "preference": {"matchExpressions": [expression]}}]);
    let rich = with(
        pending("rich", "500m", "256Mi"),
        &[
            ("spec.nodeSelector", json!({"kubernetes.io/os": "linux"})),
            (
                "spec.affinity",
                json!({
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": node_terms, "preferredDuringSchedulingIgnoredDuringExecution": weighted},
                "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]},
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}),
            ),
            (
                "spec.topologySpreadConstraints",
                json!([{"maxSkew": 1, "minDomains": 2, "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector, "matchLabelKeys": ["app"], "nodeTaintsPolicy": "Honor"}]),
            ),
            (
                "spec.tolerations",
                json!([{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 3}]),
            ),
            (
                "spec.initContainers",
                json!([{"name": "i", "restartPolicy": "Always", "resources": {"limits": {"cpu": "10m", "hugepages-2Mi": "4Mi"}}}]),
            ),
            ("spec.overhead", json!({"cpu": "5m"})),
            ("spec.resources", json!({"requests": {"memory": "512Mi"}})),
            ("spec.volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "waits-in-c"}}])),
            ("spec.priority", json!(7)),
        ],
    );
    let plain = with(pending("plain", "1", "1Gi"), &[("spec.tolerations", json!([{"operator": "Exists"}]))]);
    let rules = json!([{"key": "karpenter.k8s.aws/instance-family", "operator": "Exists", "minValues": 2}, {"key": "karpenter.k8s.aws/instance-cpu", "operator": "Lt", "values": ["40"]}]);
    let rich_pool = with(
        pool("rich", rules),
        &[
            ("spec.limits", json!({"cpu": "100", "nodes": 5})),
            ("spec.weight", json!(10)),
            (
                "spec.disruption.budgets",
                json!([{"nodes": "10%", "schedule": "0 9 * * 1-5", "duration": "8h", "reasons": ["Empty"]}]),
            ),
            ("spec.template.spec.taints", json!([{"key": "a", "value": "b", "effect": "NoExecute"}])),
            ("spec.template.spec.startupTaints", json!([{"key": "s", "effect": "NoSchedule"}])),
            ("spec.template.spec.terminationGracePeriod", json!("1h")),
            ("spec.template.metadata.labels", json!({"team": "a"})),
        ],
    );
    let mut all = vec![class(), pool("default", json!([])), rich_pool, rich, plain, running("busy", "n1", "1", "1Gi")];
    all.extend(node("n1", "default", "m7i.xlarge", "us-east-1a", CapacityType::OnDemand));
    all.push(json!({"kind": "DaemonSet", "metadata": {"name": "agent", "namespace": "kube-system"}, "spec": {"selector": {}, "template": {"spec":
        {"containers": [{"name": "c", "resources": {"requests": {"cpu": "50m"}}}]}}}}));
    all.extend(world::universe::storage());
    all.push(json!({"kind": "LimitRange", "metadata": {"name": "l", "namespace": "kube-system"}, "spec": {"limits": [{"type": "Container", "default": {"memory": "64Mi"}}]}}));
    all.push(json!({"kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": selector}, "status": {"disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}}));
    all
}

/// Values that belong nowhere.
fn misfits() -> Vec<Value> {
    let long = "x".repeat(3_000);
    let mut all: Vec<Value> = NASTY.iter().map(|text| json!(text)).collect();
    all.extend([
        json!(null),
        json!(true),
        json!([]),
        json!({}),
        json!([[]]),
        json!({"": null}),
        json!(long),
        json!([null]),
    ]);
    all.extend([
        json!(0),
        json!(-1),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1e308),
        json!(0.5),
        json!(i32::MAX),
    ]);
    all.extend(
        [
            "In",
            "Exists",
            "Honor",
            "DoNotSchedule",
            "Never",
            "100%",
            "1e60",
            "-1",
            "100E",
            "1n",
            "2026-02-30T00:00:00Z",
            "9999-12-31T23:59:59Z",
            "-009999-01-01T00:00:00Z",
            "9000000h",
        ]
        .map(|text| json!(text)),
    );
    all.extend([
        json!({"cpu": "1e60"}),
        json!({"cpu": "-5"}),
        json!({"cpu": "100E", "memory": "100E"}),
        json!({"example.com/x": "1n"}),
    ]);
    all
}

/// All places within an object, but not the object itself nor its kind.
fn places(value: &Value, path: &str, found: &mut Vec<String>) {
    let mut visit = |name: &str, child: &Value| {
        let path = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
        if path != "/kind" {
            found.push(path.clone());
            places(child, &path, found);
        }
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, child)| visit(name, child)),
        Value::Array(items) => items.iter().enumerate().for_each(|(at, child)| visit(&at.to_string(), child)),
        _ => {}
    }
}

/// One piece of damage: where (by share of all places), how, and with which value.
type Damage = (prop::sample::Index, u8, prop::sample::Index, prop::sample::Index);

fn damage(object: &mut Value, (place, how, value, other): &Damage) {
    let mut all = Vec::new();
    places(object, "", &mut all);
    if all.is_empty() {
        return;
    }
    let path = place.get(&all).clone();
    let (parent, name) = path.rsplit_once('/').unwrap();
    let name = name.replace("~1", "/").replace("~0", "~");
    let values = misfits();
    match how % 5 {
        0 => match object.pointer_mut(parent) {
            Some(Value::Object(fields)) => drop(fields.remove(&name)),
            Some(Value::Array(items)) => drop(items.remove(name.parse().unwrap())),
            _ => {}
        },
        1 => *object.pointer_mut(&path).unwrap() = value.get(&values).clone(),
        2 => {
            let copy = object.pointer(&all[other.index(all.len())]).unwrap().clone();
            *object.pointer_mut(&path).unwrap() = copy;
        }
        3 => match object.pointer_mut(parent) {
            Some(Value::Object(fields)) => {
                let key = NASTY[value.index(NASTY.len())].to_owned();
                let old = fields.remove(&name).unwrap();
                fields.insert(key, old);
            }
            Some(Value::Array(items)) => {
                let copy = items[name.parse::<usize>().unwrap()].clone();
                items.extend(std::iter::repeat_n(copy, 5));
            }
            _ => {}
        },
        _ => {
            if let Some(Value::String(text)) = object.pointer_mut(&path) {
                text.push_str(NASTY[value.index(NASTY.len())]);
            }
        }
    }
}

fn parse<T: DeserializeOwned>(object: &Value) -> Option<T> {
    serde_json::from_value(object.clone()).ok()
}

/// Reads a volume, a claim, a class or a namespace into a snapshot, if it can be read.
fn add_storage(snapshot: &mut Snapshot, object: &Value) {
    let volumes = &mut snapshot.volumes;
    let _ = match object["kind"].as_str() {
        Some("PersistentVolume") => {
            let read = parse(object).and_then(|volume| Volume::from_kube(&volume).ok());
            read.map(|(name, volume)| drop(volumes.volumes.insert(name, volume)))
        }
        Some("PersistentVolumeClaim") => {
            let read = parse(object).map(|claim| VolumeClaim::from_kube(&claim));
            read.map(|(key, claim)| drop(volumes.claims.insert(key, claim)))
        }
        Some("StorageClass") => {
            let read = parse(object).and_then(|class| StorageClass::from_kube(&class).ok());
            read.map(|(name, class)| drop(volumes.classes.insert(name, class)))
        }
        _ => parse::<core::Namespace>(object).and_then(|namespace| {
            let name = namespace.metadata.name?.as_str().into();
            snapshot.namespaces.insert(name, namespace.metadata.labels.unwrap_or_default());
            Some(())
        }),
    };
}

/// Reads what can be read, as the controller does.
fn read(objects: &[Value]) -> Snapshot {
    let mut all = snapshot(&[class()], catalogue(TYPES));
    let ranges: Vec<Arc<LimitRange>> = objects
        .iter()
        .filter(|object| object["kind"] == "LimitRange")
        .filter_map(|object| Some(Arc::new(LimitRange::from_kube(&parse(object)?).ok()?)))
        .collect();
    for object in objects {
        match object["kind"].as_str().unwrap_or_default() {
            "Pod" => all.pods.extend(parse(object).and_then(|o| Pod::from_kube(&o).ok()).map(Arc::new)),
            "Node" => all.nodes.extend(parse(object).and_then(|o| Node::from_kube(&o).ok()).map(Arc::new)),
            "DaemonSet" => {
                all.daemons
                    .extend(parse(object).and_then(|o| DaemonSet::admitted(&o, &ranges, &[]).ok()).map(Arc::new));
            }
            "PodDisruptionBudget" => {
                all.budgets.extend(parse(object).and_then(|o| PodBudget::from_kube(&o).ok()).map(Arc::new));
            }
            "NodeClaim" => {
                all.claims.extend(parse::<NodeClaim>(object).and_then(|o| Claim::from_kube(&o).ok()).map(Arc::new));
            }
            "NodePool" => {
                all.pools.extend(parse::<NodePool>(object).and_then(|o| Pool::from_kube(&o).ok()).map(Arc::new));
            }
            "EC2NodeClass" => {
                if let Some(class) = parse::<Ec2NodeClass>(object) {
                    let _ = api::hash::node_class(&class.spec, api::hash::NodeClassVersion::V6, "");
                }
            }
            "PersistentVolume" | "PersistentVolumeClaim" | "StorageClass" | "Namespace" => {
                add_storage(&mut all, object);
            }
            _ => {}
        }
    }
    all
}

/// Every pod that waits is answered; nothing panics.
fn answered(snapshot: &Snapshot) -> Result<(), TestCaseError> {
    let solution = solve(snapshot);
    let planned = solution.nodes.iter().flat_map(|node| &node.pods).chain(solution.placements.iter().map(|p| &p.pod));
    let seen: BTreeSet<_> = planned.chain(solution.unschedulable.iter().map(|u| &u.pod)).collect();
    for pod in snapshot.pods.iter().filter(|pod| pod.is_provisionable()) {
        prop_assert!(seen.contains(&pod.key), "{} is not answered", pod.key);
    }
    for refused in &solution.unschedulable {
        prop_assert!(!refused.to_string().is_empty());
    }
    let _ = plan_disruption(snapshot);
    Ok(())
}

proptest! {
    #![proptest_config(deep::cases(500))]

    #[test]
    fn damaged_objects(damages in prop::collection::vec((any::<prop::sample::Index>(), any::<Damage>()), 1..6)) {
        let mut objects = cluster();
        for (which, how) in &damages {
            let at = which.index(objects.len());
            damage(&mut objects[at], how);
        }
        answered(&read(&objects))?;
    }

    #[test]
    fn every_field_of_a_pod_and_a_pool(which in prop::sample::select(vec!["rich", "plain", "default", "busy"]), damages in prop::collection::vec(any::<Damage>(), 1..3)) {
        let mut objects = cluster();
        for object in objects.iter_mut().filter(|object| object["metadata"]["name"] == which) {
            damages.iter().for_each(|how| damage(object, how));
        }
        answered(&read(&objects))?;
    }
}

proptest! {
    #![proptest_config(deep::cases(30))]

    #[test]
    fn damaged_specs_are_judged_offline(damages in prop::collection::vec(any::<Damage>(), 1..4)) {
        for object in &mut cluster() {
            damages.iter().for_each(|how| damage(object, how));
            match object["kind"].as_str() {
                Some("NodePool") => drop(api::validate::node_pool(&*object)),
                Some("NodeClaim") => drop(api::validate::node_claim(&*object)),
                Some("EC2NodeClass") => drop(api::validate::node_class(&*object)),
                _ => {}
            }
        }
    }
}

#[test]
fn keys_of_other_tools_name_their_successor() {
    for (old, new) in labels::SUCCESSORS {
        assert_eq!(hint::key(old, []), Some(*new));
    }
}

//! Pods of one template share a shape, and no pod has one that is not its own.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use karp_domain::cluster::{Pod, Shapes};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::deep;
use crate::examples::rich_pod;
use crate::world::universe::a_pod;
use crate::world::with;

/// A pod that has something in every field that decides where it may run.
fn full_pod() -> Value {
    let selector = json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]});
    let near = json!({"labelSelector": selector, "topologyKey": "topology.kubernetes.io/zone", "namespaces": ["other"],
        "matchLabelKeys": ["app"], "mismatchLabelKeys": ["tenant"]});
    let rack = json!({"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a", "b"]}]});
    let named = json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}]});
    let spread = json!({"maxSkew": 1, "minDomains": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector, "matchLabelKeys": ["hash"], "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"});
    let container = json!({"name": "c", "ports": [{"containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.1", "protocol": "UDP"}],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi", "nvidia.com/gpu": "1"}}});
    with(
        rich_pod(),
        &[
            ("metadata.labels", json!({"app": "web", "tier": "x", "tenant": "t", "hash": "1", "index": "7"})),
            ("spec.nodeSelector", json!({"kubernetes.io/arch": "arm64"})),
            (
                "spec.affinity",
                json!({
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [rack, named]},
                        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "preference": rack}],
                    },
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [near],
                        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": near}],
                    },
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}],
                        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 9, "podAffinityTerm": near}],
                    },
                }),
            ),
            ("spec.topologySpreadConstraints", json!([spread])),
            ("spec.containers", json!([container, {"name": "d", "resources": {"requests": {"cpu": "2"}}}])),
            ("spec.overhead", json!({"cpu": "250m"})),
            ("spec.resources", json!({"requests": {"cpu": "5"}, "limits": {"cpu": "6"}})),
            ("spec.hostNetwork", json!(false)),
        ],
    )
}

/// Every object that one leaf, or one entry, less or otherwise makes of this one.
fn variants(value: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    match value {
        Value::Object(entries) => {
            for (key, entry) in entries {
                let put = |entry: Option<Value>| {
                    let mut entries = entries.clone();
                    match entry {
                        Some(entry) => entries.insert(key.clone(), entry),
                        None => entries.remove(key),
                    };
                    Value::Object(entries)
                };
                all.push(put(None));
                all.extend(variants(entry).into_iter().map(|entry| put(Some(entry))));
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                let put = |item: Option<Value>| {
                    let mut items = items.clone();
                    match item {
                        Some(item) => items[at] = item,
                        None => drop(items.remove(at)),
                    }
                    Value::Array(items)
                };
                all.push(put(None));
                all.push(Value::Array([items.as_slice(), &items[at..=at]].concat()));
                all.extend(variants(item).into_iter().map(|item| put(Some(item))));
            }
        }
        Value::String(text) => {
            let others = ["9", "Gt", "Ignore", "Honor", "Equal", "Exists", "TCP", "Always", "ScheduleAnyway"];
            all.extend(others.into_iter().map(Value::from));
            all.push(format!("{text}x").into());
        }
        Value::Number(number) => all.push(number.as_i64().map_or(Value::Null, |number| (number + 1).into())),
        Value::Bool(yes) => all.push((!yes).into()),
        Value::Null => {}
    }
    all
}

fn parse(pod: Value) -> Option<core::Pod> {
    serde_json::from_value(pod).ok()
}

#[test]
fn whatever_differs_pods_get_their_own_shape() {
    let full = parse(full_pod()).expect("a pod");
    let base = Pod::from_kube(&full).expect("readable");
    let (mut read, mut others) = (0, 0);
    for variant in variants(&full_pod()).into_iter().filter_map(parse) {
        // either may be read first
        for [first, second] in [[&full, &variant], [&variant, &full]] {
            let shapes = Shapes::default();
            for pod in [first, second, first] {
                assert_eq!(Pod::sharing(&shapes, pod), Pod::from_kube(pod), "{pod:?}");
            }
        }
        if let Ok(alone) = Pod::from_kube(&variant) {
            read += 1;
            others += usize::from(alone.shape != base.shape);
        }
    }
    assert!(read > 300 && others > 200, "{others} of {read} variants have another shape: too few to tell");
}

#[test]
fn pods_of_one_template_share_what_was_read() {
    let shapes = Shapes::default();
    let read = |more: &[(&str, Value)]| {
        let pod = parse(with(full_pod(), more)).expect("a pod");
        Pod::sharing(&shapes, &pod).expect("readable").shape
    };
    let first = read(&[]);
    let alike = [
        ("metadata.name", json!("b")),
        ("metadata.uid", json!("b")),
        ("metadata.labels", json!({"app": "web", "tenant": "t", "hash": "1", "index": "8"})),
        ("spec.priority", json!(3)),
        ("spec.nodeName", json!("n")),
        ("spec.serviceAccountName", json!("s")),
    ];
    for more in alike {
        assert!(Arc::ptr_eq(&first, &read(std::slice::from_ref(&more))), "{more:?}");
    }
    for more in
        [("metadata.labels", json!({"app": "web", "tenant": "u", "hash": "1"})), ("metadata.namespace", json!("b"))]
    {
        assert!(!Arc::ptr_eq(&first, &read(std::slice::from_ref(&more))), "{more:?}");
    }
}

#[test]
fn equal_labels_are_kept_once_and_while_pods_have_them() {
    let shapes = Shapes::default();
    let read = |labels: Value, cpu: usize| {
        let more = [("metadata.labels", labels), ("spec.overhead", json!({"cpu": format!("{cpu}m")}))];
        let pod = parse(with(full_pod(), &more)).expect("a pod");
        Pod::sharing(&shapes, &pod).expect("readable").labels
    };
    let kept = read(json!({"app": "web"}), 1);
    assert!(Arc::ptr_eq(&kept, &read(json!({"app": "web"}), 2)), "the labels of another template are equal");
    assert!(!Arc::ptr_eq(&kept, &read(json!({"app": "api"}), 1)));
    let weak = Arc::downgrade(&read(json!({"app": "gone"}), 1));
    (0..3_000).for_each(|index| drop(read(json!({"index": index.to_string()}), 1)));
    assert!(weak.upgrade().is_none(), "labels pile up");
    assert!(Arc::ptr_eq(&kept, &read(json!({"app": "web"}), 1)), "those that pods have are forgotten");
}

#[test]
fn templates_without_pods_are_forgotten() {
    let shapes = Shapes::default();
    let read = |cpu: usize| {
        let pod = parse(with(full_pod(), &[("spec.overhead", json!({"cpu": format!("{cpu}m")}))])).expect("a pod");
        Pod::sharing(&shapes, &pod).expect("readable").shape
    };
    let kept = read(1);
    let weak = Arc::downgrade(&read(2));
    assert!(weak.upgrade().is_some(), "a template is remembered for its next pod");
    (3..3_000).for_each(|cpu| drop(read(cpu)));
    assert!(weak.upgrade().is_none(), "templates pile up");
    assert!(Arc::ptr_eq(&kept, &read(1)), "one that pods have is forgotten");
    // also where a hash does not tell templates apart
    let heavy = |weight: i32| {
        let term = json!({"weight": weight, "preference": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}});
        let wish = json!({"preferredDuringSchedulingIgnoredDuringExecution": [term]});
        let pod = parse(with(full_pod(), &[("spec.affinity.nodeAffinity", wish)])).expect("a pod");
        Pod::sharing(&shapes, &pod).expect("readable").shape
    };
    (1..50).for_each(|weight| drop(heavy(weight)));
    let last = heavy(100);
    assert!(Arc::ptr_eq(&last, &heavy(100)), "the templates of pods that are gone keep others from sharing");
}

proptest! {
    #![proptest_config(deep::cases(100))]

    #[test]
    fn random_pods_read_together_are_as_if_read_alone(pods in prop::collection::vec(a_pod(), 1..20)) {
        let shapes = Shapes::default();
        for pod in pods.into_iter().filter_map(parse) {
            prop_assert_eq!(Pod::sharing(&shapes, &pod), Pod::from_kube(&pod));
        }
    }
}

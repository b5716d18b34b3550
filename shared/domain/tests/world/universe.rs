//! Random small clusters: every kind of pod that the API admits and the engine has to answer for, on a few nodes and pools.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{class, csi_node, node, pending, pool, running, with};
use karp_domain::catalogue::CapacityType;
use karp_domain::cluster::EBS_DRIVER;

const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";
const MARKET: &str = "karpenter.sh/capacity-type";
/// A label that only some nodes have.
const RACK: &str = "rack";
const APPS: &[&str] = &["red", "blue", "green"];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// A claim of each namespace that one pod at a time may use.
pub const SOLE: &str = "waits-for-one";
/// A class of runtimes with overhead.
pub const RUNTIME: &str = "heavy";
/// A class of priority.
pub const URGENT: &str = "urgent";

fn one_of(choices: Vec<Value>) -> impl Strategy<Value = Value> {
    prop::sample::select(choices)
}

fn keys() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![ZONE, ZONE, HOSTNAME, HOSTNAME, MARKET, RACK])
}

fn rack() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["r1", "r2"])
}

fn app() -> impl Strategy<Value = &'static str> {
    prop::sample::select(APPS)
}

fn selector() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => app().prop_map(|app| json!({"matchLabels": {"app": app}})),
        1 => app().prop_map(|app| json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [app]}]})),
        1 => Just(json!({})),
    ]
}

fn node_selector() -> impl Strategy<Value = Value> {
    let none = || Just(json!({}));
    let some = one_of(vec![
        json!({ZONE: "us-east-1b"}),
        json!({"kubernetes.io/arch": "arm64"}),
        json!({MARKET: "on-demand"}),
        json!({"team": "a"}),
        json!({"karpenter.k8s.aws/instance-family": "m7i"}),
        json!({"nowhere": "x"}),
    ]);
    prop_oneof![3 => none(), 2 => some]
}

fn node_expression() -> impl Strategy<Value = Value> {
    one_of(vec![
        json!({"key": "karpenter.k8s.aws/instance-cpu", "operator": "Gt", "values": ["3"]}),
        json!({"key": "karpenter.k8s.aws/instance-cpu", "operator": "Lt", "values": ["9"]}),
        json!({"key": ZONE, "operator": "In", "values": ["us-east-1a", "us-east-1c"]}),
        json!({"key": ZONE, "operator": "In", "values": ["us-east-1x"]}),
        json!({"key": "team", "operator": "NotIn", "values": ["a"]}),
        json!({"key": "team", "operator": "Exists"}),
        json!({"key": "team", "operator": "DoesNotExist"}),
        json!({"key": "karpenter.k8s.aws/instance-category", "operator": "NotIn", "values": ["c", "t"]}),
    ])
}

fn node_affinity() -> impl Strategy<Value = Value> {
    let term = || prop::collection::vec(node_expression(), 0..3).prop_map(|all| json!({"matchExpressions": all}));
    let required = prop::collection::vec(term(), 1..3);
    let preferred = prop::collection::vec((prop::sample::select(vec![1, 50, 100]), term()), 1..3);
    (prop::option::weighted(0.7, required), prop::option::weighted(0.5, preferred)).prop_map(|(required, preferred)| {
        let mut affinity = json!({});
        if let Some(terms) = required {
            affinity[REQUIRED] = json!({"nodeSelectorTerms": terms});
        }
        if let Some(wishes) = preferred {
            let wish = |(weight, term): (i32, Value)| json!({"weight": weight, "preference": term});
            affinity[PREFERRED] = wishes.into_iter().map(wish).collect();
        }
        affinity
    })
}

fn spread() -> impl Strategy<Value = Value> {
    let when = prop::sample::select(vec!["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]);
    let policy = || prop::option::of(prop::sample::select(vec!["Honor", "Ignore"]));
    let matching = prop::sample::select(vec![json!(null), json!(null), json!(["version"])]);
    (1_i64..3, keys(), when, selector(), prop::option::of(1_i64..5), (policy(), policy()), matching).prop_map(
        |(skew, key, when, selector, domains, (affinity, taints), matching)| {
            let mut constraint =
                json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": selector});
            if let Some(domains) = domains.filter(|_| when == "DoNotSchedule") {
                constraint["minDomains"] = json!(domains);
            }
            for (field, value) in [("nodeAffinityPolicy", affinity), ("nodeTaintsPolicy", taints)] {
                if let Some(value) = value {
                    constraint[field] = json!(value);
                }
            }
            if !matching.is_null() {
                constraint["matchLabelKeys"] = matching;
            }
            constraint
        },
    )
}

fn pod_terms() -> impl Strategy<Value = Value> {
    let namespaces = || {
        one_of(vec![
            json!({}),
            json!({}),
            json!({"namespaces": ["default", "other"]}),
            json!({"namespaceSelector": {}}),
            json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}),
        ])
    };
    let by_own = || {
        one_of(vec![
            json!({}),
            json!({}),
            json!({}),
            json!({"matchLabelKeys": ["version"]}),
            json!({"mismatchLabelKeys": ["version"]}),
        ])
    };
    let term = || {
        (keys(), selector(), namespaces(), by_own()).prop_map(|(key, selector, namespaces, by_own)| {
            let mut term = json!({"topologyKey": key, "labelSelector": selector});
            for more in [namespaces, by_own] {
                more.as_object().unwrap().iter().for_each(|(field, value)| term[field] = value.clone());
            }
            term
        })
    };
    // several required terms count the pods that all of them mean
    let terms = prop_oneof![
        3 => prop::collection::vec(term(), 1..2),
        1 => prop::collection::vec(term(), 2..3),
    ];
    let preferred = any::<bool>();
    (terms, preferred).prop_map(|(terms, preferred)| {
        if preferred {
            let wish = |(at, term): (usize, Value)| json!({"weight": 10 + at, "podAffinityTerm": term});
            json!({PREFERRED: terms.into_iter().enumerate().map(wish).collect::<Vec<_>>()})
        } else {
            json!({REQUIRED: terms})
        }
    })
}

fn port() -> impl Strategy<Value = Value> {
    let address = prop::sample::select(vec![None, None, Some("0.0.0.0"), Some("10.0.0.1"), Some("10.0.0.2")]);
    let protocol = prop::sample::select(vec![None, Some("TCP"), Some("UDP")]);
    (prop::sample::select(vec![80, 443]), address, protocol).prop_map(|(port, address, protocol)| {
        let mut this = json!({"containerPort": port, "hostPort": port});
        if let Some(address) = address {
            this["hostIP"] = json!(address);
        }
        if let Some(protocol) = protocol {
            this["protocol"] = json!(protocol);
        }
        this
    })
}

fn volume() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["bound-a", "bound-b", "waits", "waits", "waits-in-c", SOLE, "unbound", "missing", "lost"])
}

/// What a pod asks for beside its container: what runs before it or with it, what its runtime takes, what all have together, devices.
fn sums() -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    let asks = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}});
    // its port is free again when the pod runs
    let first =
        || json!({"name": "first", "resources": asks("2", "1Gi"), "ports": [{"containerPort": 443, "hostPort": 443}]});
    let sidecar = || json!({"name": "beside", "restartPolicy": "Always", "resources": asks("300m", "200Mi")});
    let device = |name: &str, count: i64| json!({name: count});
    prop::sample::select(vec![
        vec![("spec.initContainers", json!([first()]))],
        vec![("spec.initContainers", json!([sidecar()]))],
        vec![("spec.initContainers", json!([sidecar(), first()]))],
        vec![("spec.runtimeClassName", json!(RUNTIME)), ("spec.overhead", json!({"cpu": "250m", "memory": "120Mi"}))],
        vec![("spec.resources", asks("8", "20Gi"))],
        vec![("device", device("nvidia.com/gpu", 1))],
        vec![("device", device("example.com/widget", 1))],
    ])
}

/// What a pod asks for beyond resources.
fn extras() -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    let sometimes = |weight: u32, some: BoxedStrategy<(&'static str, Value)>| prop_oneof![4 => Just(None), weight => some.prop_map(Some)];
    let tolerations = one_of(vec![
        json!([{"key": "dedicated", "operator": "Exists"}]),
        json!([{"key": "dedicated", "operator": "Equal", "value": "x", "effect": "NoSchedule"}]),
        json!([{"operator": "Exists"}]),
    ]);
    let spreads = prop::collection::vec(spread(), 1..3);
    let all = (
        sometimes(2, node_selector().prop_map(|v| ("spec.nodeSelector", v)).boxed()),
        sometimes(1, node_affinity().prop_map(|v| ("spec.affinity.nodeAffinity", v)).boxed()),
        sometimes(2, spreads.prop_map(|v| ("spec.topologySpreadConstraints", json!(v))).boxed()),
        sometimes(1, pod_terms().prop_map(|v| ("spec.affinity.podAffinity", v)).boxed()),
        sometimes(2, pod_terms().prop_map(|v| ("spec.affinity.podAntiAffinity", v)).boxed()),
        sometimes(1, port().prop_map(|v| ("port", json!([v]))).boxed()),
        sometimes(
            1,
            volume()
                .prop_map(|v| ("spec.volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": v}}])))
                .boxed(),
        ),
        sometimes(2, tolerations.prop_map(|v| ("spec.tolerations", v)).boxed()),
        prop_oneof![3 => Just(Vec::new()), 1 => sums()],
        prop::bool::weighted(0.15),
    );
    all.prop_map(|(a, b, c, d, e, f, g, h, sums, urgent)| {
        let urgent = [
            ("spec.priorityClassName", json!(URGENT)),
            ("spec.priority", json!(1000)),
            ("spec.preemptionPolicy", json!("Never")),
        ]
        .into_iter()
        .filter(|_| urgent);
        [a, b, c, d, e, f, g, h].into_iter().flatten().chain(sums).chain(urgent).collect()
    })
}

/// A pod without a name of its own, not yet placed.
pub fn a_pod() -> impl Strategy<Value = Value> {
    let cpu = prop::sample::select(vec!["0", "50m", "250m", "900m", "1", "1900m", "3500m", "7", "200"]);
    let memory = prop::sample::select(vec!["64Mi", "700Mi", "2Gi", "3500Mi", "14Gi"]);
    let labels = (app(), prop::sample::select(vec!["1", "2"]));
    let namespace = prop::sample::select(vec!["default", "default", "default", "other"]);
    (cpu, memory, labels, namespace, extras()).prop_map(|(cpu, memory, (app, version), namespace, extras)| {
        let mut pod = with(
            pending("p", cpu, memory),
            &[("metadata.labels", json!({"app": app, "version": version})), ("metadata.namespace", json!(namespace))],
        );
        for (path, value) in extras {
            let container = &mut pod["spec"]["containers"][0];
            match path {
                "port" => container["ports"] = value,
                "device" => {
                    container["resources"]["limits"] = value.clone();
                    for (name, count) in value.as_object().unwrap() {
                        container["resources"]["requests"][name] = count.clone();
                    }
                }
                // less than its containers is no pod
                "spec.resources" if cpu == "200" => {}
                _ => pod = with(pod, &[(path, value)]),
            }
        }
        pod
    })
}

/// A pool without a name of its own.
pub fn a_pool() -> impl Strategy<Value = Value> {
    let requirements = one_of(vec![
        json!([]),
        json!([{"key": MARKET, "operator": "In", "values": ["on-demand"]}]),
        json!([{"key": "team", "operator": "In", "values": ["a", "b"]}]),
        json!([{"key": ZONE, "operator": "NotIn", "values": ["us-east-1b"]}, {"key": "team", "operator": "Exists"}]),
        json!([{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]),
        json!([{"key": "karpenter.k8s.aws/instance-cpu", "operator": "Lt", "values": ["9"]}]),
        json!([{"key": "karpenter.k8s.aws/instance-family", "operator": "Exists", "minValues": 2}]),
    ]);
    let limits =
        one_of(vec![json!({}), json!({}), json!({"cpu": "12"}), json!({"nodes": 2}), json!({"memory": "40Gi"})]);
    let rack = prop::option::weighted(0.3, rack());
    (requirements, limits, 0_i32..3, 0_u8..8, rack).prop_map(|(requirements, limits, weight, taint, rack)| {
        let mut more = vec![("spec.limits", limits)];
        more.extend(rack.map(|rack| ("spec.template.metadata.labels", json!({RACK: rack}))));
        let mark = |effect: &str| json!([{"key": "dedicated", "value": "x", "effect": effect}]);
        if weight > 0 {
            more.push(("spec.weight", json!(weight)));
        }
        match taint {
            0 => more.push(("spec.template.spec.taints", mark("NoSchedule"))),
            1 => more.push(("spec.template.spec.taints", mark("NoExecute"))),
            2 => more.push(("spec.template.spec.taints", mark("PreferNoSchedule"))),
            3 => more.push(("spec.template.spec.startupTaints", mark("NoSchedule"))),
            _ => {}
        }
        with(pool("pool", requirements), &more)
    })
}

fn a_daemon() -> impl Strategy<Value = Value> {
    let labels = prop_oneof![
        2 => Just(json!({"daemon": "agent"})),
        1 => app().prop_map(|app| json!({"daemon": "agent", "app": app})),
    ];
    let on = one_of(vec![
        json!({}),
        json!({}),
        json!({ZONE: "us-east-1b"}),
        json!({MARKET: "on-demand"}),
        json!({"kubernetes.io/arch": "arm64"}),
        json!({"karpenter.k8s.aws/instance-family": "m7i"}),
    ]);
    let apart = prop_oneof![
        3 => Just(None),
        1 => pod_terms().prop_map(Some),
    ];
    (prop::option::of(port()), labels, on, apart).prop_map(|(port, labels, on, apart)| {
        let ports = port.into_iter().collect::<Vec<_>>();
        let mut spec = json!({"nodeSelector": on, "containers": [{"name": "c", "ports": ports, "resources": {"requests": {"cpu": "150m", "memory": "100Mi"}}}]});
        if let Some(apart) = apart {
            spec["affinity"]["podAntiAffinity"] = apart;
        }
        json!({"kind": "DaemonSet", "metadata": {"name": "agent", "namespace": "kube-system"},
            "spec": {"selector": {}, "template": {"metadata": {"labels": labels}, "spec": spec}}})
    })
}

/// What the claims of [`volume`] are bound to, in both namespaces; `missing` is in none.
pub fn storage() -> Vec<Value> {
    let zonal = |zone: &str| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]}});
    let topologies = json!([{"matchLabelExpressions": [{"key": ZONE, "values": ["us-east-1c"]}]}]);
    let class = |name: &str, mode: &str| json!({"kind": "StorageClass", "metadata": {"name": name}, "provisioner": "ebs.csi.aws.com", "volumeBindingMode": mode});
    let mut all = vec![
        class("waits", "WaitForFirstConsumer"),
        with(class("waits-in-c", "WaitForFirstConsumer"), &[("allowedTopologies", topologies)]),
        class("unbound", "Immediate"),
    ];
    for namespace in ["default", "other"] {
        let claim = |name: &str, spec: Value, phase: &str| json!({"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace}, "spec": spec, "status": {"phase": phase}});
        for (name, zone) in [("bound-a", "us-east-1a"), ("bound-b", "us-east-1b")] {
            let volume = format!("{namespace}-{name}");
            let disk = json!({"driver": "ebs.csi.aws.com", "volumeHandle": volume});
            all.push(json!({"kind": "PersistentVolume", "metadata": {"name": volume}, "spec": {"csi": disk, "nodeAffinity": zonal(zone)}}));
            all.push(claim(name, json!({"volumeName": volume, "accessModes": ["ReadWriteMany"]}), "Bound"));
        }
        for name in ["waits", "waits-in-c", "unbound"] {
            all.push(claim(name, json!({"storageClassName": name, "accessModes": ["ReadWriteOnce"]}), "Pending"));
        }
        let sole = json!({"storageClassName": "waits", "accessModes": ["ReadWriteOncePod"]});
        all.push(claim(SOLE, sole, "Pending"));
        all.push(claim("lost", json!({"volumeName": "gone"}), "Lost"));
        let labels = json!({"kubernetes.io/metadata.name": namespace});
        all.push(json!({"kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}));
    }
    all
}

/// A class, pods with as many copies as is said, and pools; each with a name of its own.
pub fn named(pods: Vec<(Value, usize)>, pools: Vec<Value>) -> Vec<Value> {
    let mut objects = vec![class()];
    for (at, (pod, count)) in pods.into_iter().enumerate() {
        for copy in 0..count {
            let name = format!("p{at}-{copy}");
            objects.push(with(pod.clone(), &[("metadata.name", json!(name)), ("metadata.uid", json!(name))]));
        }
    }
    for (at, pool) in pools.into_iter().enumerate() {
        objects.push(with(pool, &[("metadata.name", json!(format!("pool{at}")))]));
    }
    objects
}

/// A cluster: a class, up to three pools, up to three nodes with what runs there, and pods that wait, some of them copies.
pub fn a_cluster() -> impl Strategy<Value = Vec<Value>> {
    a_cluster_of(prop::collection::vec((a_pod(), 1_usize..5, prop::bool::weighted(0.15)), 0..7).prop_map(with_twins))
}

/// Some pods with others of the same template in another namespace.
fn with_twins(pods: Vec<(Value, usize, bool)>) -> Vec<(Value, usize)> {
    let twins = |(pod, count, twin): (Value, usize, bool)| {
        let there = if pod["metadata"]["namespace"] == "other" { "default" } else { "other" };
        let other = twin.then(|| (with(pod.clone(), &[("metadata.namespace", json!(there))]), count));
        [Some((pod, count)), other].into_iter().flatten()
    };
    pods.into_iter().flat_map(twins).collect()
}

/// A cluster in which many copies of a few pods wait.
pub fn a_crowded_cluster() -> impl Strategy<Value = Vec<Value>> {
    a_cluster_of(prop::collection::vec((a_pod(), 10_usize..25), 3..6))
}

fn a_cluster_of(pods: impl Strategy<Value = Vec<(Value, usize)>>) -> impl Strategy<Value = Vec<Value>> {
    let types = prop::sample::select(vec!["m7i.large", "m7i.2xlarge", "c6g.2xlarge"]);
    let zone = prop::sample::select(vec!["us-east-1a", "us-east-1b", "us-east-1c"]);
    let attaches = prop::option::of(0_i32..4);
    let racks = prop::option::weighted(0.4, rack());
    let nodes = prop::collection::vec((types, zone, prop::option::of(a_pod()), attaches, racks), 0..4);
    let daemon = prop::option::of(a_daemon());
    (pods, prop::collection::vec(a_pool(), 0..4), nodes, daemon).prop_map(|(pods, pools, nodes, daemon)| {
        let mut objects = named(pods, pools);
        objects.extend(storage());
        for (at, (kind, zone, busy, attaches, rack)) in nodes.into_iter().enumerate() {
            let name = format!("n{at}");
            let labelled = |mut object: Value| {
                let labels = object["metadata"]["labels"].as_object_mut().unwrap();
                labels.extend(rack.map(|rack| (RACK.to_owned(), json!(rack))));
                object
            };
            objects.extend(node(&name, "pool0", kind, zone, CapacityType::OnDemand).map(labelled));
            objects.extend(attaches.map(|count| csi_node(&name, EBS_DRIVER, count)));
            if let Some(pod) = busy {
                let runs = running(&format!("busy{at}"), &name, "1", "1Gi");
                let keep = [
                    ("metadata.labels", pod["metadata"]["labels"].clone()),
                    ("metadata.namespace", pod["metadata"]["namespace"].clone()),
                    ("spec.affinity", pod["spec"]["affinity"].clone()),
                ];
                let mut runs = with(runs, &keep);
                runs["spec"]["containers"][0]["ports"] = pod["spec"]["containers"][0]["ports"].clone();
                objects.push(runs);
            }
        }
        objects.extend(daemon);
        objects
    })
}

/// The same objects in another order.
pub fn shuffled(mut objects: Vec<Value>, seed: u64) -> Vec<Value> {
    let mut state = seed | 1;
    for at in (1..objects.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        objects.swap(at, (state >> 33) as usize % (at + 1));
    }
    objects
}

//! Makes pods and types of the same kinds as the measured inputs. Only the kinds and the sizes of things are theirs: every draw is our own.

use karp_domain::catalogue::InstanceType;
use serde_json::{Value, json};

use super::{Kind, ZONES, listed};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
const MADE_UP_TYPES: u32 = 400;
/// Requests of Karpenter's benchmark: thousandths of a core, MiB.
const SMALL_CPU: [u32; 5] = [100, 250, 500, 1000, 1500];
const SMALL_MEMORY: [u32; 6] = [100, 256, 512, 1024, 2048, 4096];
/// Requests of the mixes on EC2's types.
const CPU: [u32; 10] = [50, 100, 250, 300, 500, 750, 1000, 1500, 2000, 3700];
const MEMORY: [u32; 10] = [64, 100, 256, 300, 512, 1024, 2048, 4096, 6000, 12000];
const APPS: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

/// Draws from a seed (SplitMix64, by its published constants).
pub(super) struct Draw(pub u64);

impl Draw {
    pub(super) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        choices[((z ^ (z >> 31)) % choices.len() as u64) as usize]
    }
}

/// Makes the pods of an input.
pub(super) fn pods(kind: Kind) -> Vec<Value> {
    let mut draw = Draw(7);
    match kind {
        Kind::Diverse(count) => (0..count).map(|at| diverse(&mut draw, at, count)).collect(),
        Kind::Preference(count) => (0..count).map(preference).collect(),
        Kind::Ec2Plain(count) => (0..count).map(|at| mixed(&mut draw, at, "plain")).collect(),
        Kind::Ec2Diverse(count) => {
            let kinds = ["plain", "plain", "zs", "hs", "za", "ha", "zone", "or", "pref"];
            (0..count).map(|at| mixed(&mut draw, at, kinds[at % kinds.len()])).collect()
        }
        Kind::Ec2SpreadHeavy(count) => {
            let kinds = ["zs", "hs", "zs2"];
            (0..count).map(|at| mixed(&mut draw, at, kinds[at % kinds.len()])).collect()
        }
    }
}

/// The types of Karpenter's benchmark: the n-th has n cores, 2n GiB and room for 10n pods, and costs in proportion.
pub(super) fn made_up_types() -> Vec<InstanceType> {
    (1..=MADE_UP_TYPES)
        .map(|n| {
            let price = 0.1 * f64::from(n) + 0.1 * f64::from(n) * 2.0_f64.powi(31) / 1e9;
            let sold = [("spot", 1), ("spot", 2), ("on-demand", 1), ("on-demand", 2), ("on-demand", 3)];
            let offering = |(capacity_type, zone)| {
                json!({"zone": format!("test-zone-{zone}"), "capacityType": capacity_type, "price": price})
            };
            let size = if n > 4 { "large" } else { "small" };
            let value = |key: &str, values: &[&str]| json!({"key": key, "operator": "In", "values": values});
            listed(json!({
                "name": format!("fake-it-{}", n - 1),
                "requirements": [
                    value("integer", &[&n.to_string()]),
                    value("kubernetes.io/arch", &["amd64"]),
                    value("kubernetes.io/os", &["darwin", "linux", "windows"]),
                    value("size", &[size]),
                ],
                "capacity": {"cpu": n.to_string(), "memory": format!("{}Gi", 2 * n), "pods": (10 * n).to_string()},
                "allocatable": {
                    "cpu": format!("{}m", 1000 * n - 100),
                    "memory": format!("{}Mi", 2048 * n - 10),
                    "pods": (10 * n).to_string(),
                },
                "offerings": sold.map(offering),
            }))
        })
        .collect()
}

/// A pod of Karpenter's benchmark; a fifth of all pods, in a row, is of each kind.
fn diverse(draw: &mut Draw, at: usize, count: usize) -> Value {
    let labels = [draw.of(&APPS[..7]), draw.of(&APPS[..7])];
    let spread = |key: &str, label: &str| {
        json!({"topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"my-label": label}},
        }]})
    };
    let (labels, constraint) = match at * 5 / count {
        0 => (json!({"my-label": labels[0]}), json!({})),
        1 => (json!({"my-label": labels[0]}), spread(ZONE, labels[1])),
        2 => (json!({"my-label": labels[0]}), spread(HOST, labels[1])),
        3 => {
            let own = json!({"my-affinity": labels[0]});
            (own.clone(), json!({"affinity": {"podAffinity": near(ZONE, &own)}}))
        }
        _ => {
            let own = json!({"app": "nginx"});
            (own.clone(), json!({"affinity": {"podAntiAffinity": near(HOST, &own)}}))
        }
    };
    pod(at, &labels, (draw.of(&SMALL_CPU), draw.of(&SMALL_MEMORY)), constraint)
}

fn preference(at: usize) -> Value {
    let own = json!({"app": "nginx"});
    let apart = |weight: u32, key: &str| json!({"weight": weight, "podAffinityTerm": {"topologyKey": key, "labelSelector": {"matchLabels": own}}});
    let constraint = json!({"affinity": {
        "nodeAffinity": prefers_zone(1, "test-zone-1"),
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart(10, ZONE), apart(1, HOST)]},
    }});
    pod(at, &own, (250, 100), constraint)
}

/// A pod of the mixes on EC2's types.
fn mixed(draw: &mut Draw, at: usize, kind: &str) -> Value {
    let own = json!({"app": draw.of(&APPS), "kind": kind});
    let spread = |key: &str, skew: u32| {
        json!({
            "maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": own},
        })
    };
    let zone = |operator: &str, zone: &str| json!({"matchExpressions": [{"key": ZONE, "operator": operator, "values": [zone]}]});
    let constraint = match kind {
        "zs" => json!({"topologySpreadConstraints": [spread(ZONE, 1)]}),
        "hs" => json!({"topologySpreadConstraints": [spread(HOST, 2)]}),
        "zs2" => json!({"topologySpreadConstraints": [spread(ZONE, 3), spread(HOST, 2)]}),
        "za" => json!({"affinity": {"podAffinity": near(ZONE, &own)}}),
        "ha" => json!({"affinity": {"podAntiAffinity": near(HOST, &own)}}),
        "zone" => json!({"nodeSelector": {ZONE: draw.of(&ZONES)}}),
        "or" => json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [zone("In", "nowhere"), zone("NotIn", ZONES[0])],
        }}}}),
        "pref" => json!({"affinity": {"nodeAffinity": prefers_zone(5, ZONES[1])}}),
        _ => json!({}),
    };
    pod(at, &own, (draw.of(&CPU), draw.of(&MEMORY)), constraint)
}

fn near(key: &str, labels: &Value) -> Value {
    json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": key, "labelSelector": {"matchLabels": labels}}]})
}

fn prefers_zone(weight: u32, zone: &str) -> Value {
    json!({"preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": weight, "preference": {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]},
    }]})
}

fn pod(at: usize, labels: &Value, (millicores, mebibytes): (u32, u32), constraint: Value) -> Value {
    let mut spec = constraint;
    let requests = json!({"cpu": format!("{millicores}m"), "memory": format!("{mebibytes}Mi")});
    spec["containers"] = json!([{"name": "c", "image": "pause", "resources": {"requests": requests}}]);
    let name = format!("p-{at:06}");
    json!({"metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels}, "spec": spec})
}

//! What the benchmarks solve: Karpenter's own scheduling benchmark and pod mixes on EC2's instance types. The measured inputs and their
//! independent judge (`check_solution.py`) are used where they are ([`folder`]); else inputs of the same kinds are made, always the same.

pub mod cluster;
mod generate;
pub mod judge;

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use karp_domain::api::{NodeClassReference, NodePool, NodePoolSpec, RequirementSpec};
use karp_domain::catalogue::{Catalogue, InstanceType, Listing, NodeSettings, Zone, builtin, offerings};
use karp_domain::cluster::{Phase, Pod, Pool, Shapes, Snapshot};
use karp_domain::requirement::Operator;
use serde_json::Value;

/// The zones that pods of the EC2 inputs name.
pub const ZONES: [&str; 3] = ["us-east-1a", "us-east-1b", "us-east-1c"];

/// Names a kind of input and how many pods it has; `Display` is the name of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Karpenter's benchmark: a fifth each plain, zone spread, host spread, zone affinity, host anti-affinity.
    Diverse(usize),
    /// Karpenter's benchmark of preferences: each pod would be in one zone and alone on its host.
    Preference(usize),
    /// Pods without constraints on EC2's types.
    Ec2Plain(usize),
    /// Eight kinds of pods on EC2's types.
    Ec2Diverse(usize),
    /// Zone spread, host spread and both at once on EC2's types.
    Ec2SpreadHeavy(usize),
}

/// The inputs that have figures.
pub const KINDS: [Kind; 6] = [
    Kind::Ec2Plain(3000),
    Kind::Ec2Diverse(2000),
    Kind::Ec2SpreadHeavy(1500),
    Kind::Diverse(2000),
    Kind::Diverse(5000),
    Kind::Preference(4000),
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Diverse(pods) => write!(f, "diverse-{pods}"),
            Kind::Preference(pods) => write!(f, "preference-{pods}"),
            Kind::Ec2Plain(pods) => write!(f, "ec2-plain-{pods}"),
            Kind::Ec2Diverse(pods) => write!(f, "ec2-diverse-{pods}"),
            Kind::Ec2SpreadHeavy(pods) => write!(f, "ec2-spreadheavy-{pods}"),
        }
    }
}

impl Kind {
    /// Says whether its pods run on EC2's types; the others run on the 400 made-up types of Karpenter's benchmark.
    pub const fn is_ec2(self) -> bool {
        matches!(self, Kind::Ec2Plain(_) | Kind::Ec2Diverse(_) | Kind::Ec2SpreadHeavy(_))
    }

    /// What the pool asks of its nodes.
    const fn requirements(self) -> &'static [(&'static str, &'static [&'static str])] {
        if !self.is_ec2() {
            return &[];
        }
        &[
            ("karpenter.k8s.aws/instance-category", &["c", "m", "r"]),
            ("kubernetes.io/arch", &["amd64"]),
            ("karpenter.sh/capacity-type", &["on-demand"]),
        ]
    }

    /// Reads the input from the folder with inputs, or makes it when there is none.
    pub fn snapshot(self) -> Snapshot {
        match folder() {
            Some(folder) => self.snapshot_of(&list(&folder.join(format!("{self}.json.gz"))), types(self.is_ec2())),
            None => self.generated(),
        }
    }

    /// Reads the pods of the input as the API has them.
    pub fn pods(self) -> Vec<core::Pod> {
        match folder() {
            Some(folder) => objects(&list(&folder.join(format!("{self}.json.gz")))),
            None => objects(&generate::pods(self)),
        }
    }

    /// Makes the input from a seed, without looking for files.
    pub fn generated(self) -> Snapshot {
        self.snapshot_of(&generate::pods(self), if self.is_ec2() { ec2_types() } else { generate::made_up_types() })
    }

    fn snapshot_of(self, pods: &[Value], types: Vec<InstanceType>) -> Snapshot {
        let mut snapshot = Snapshot::empty(Timestamp::UNIX_EPOCH);
        snapshot.pods = read(&objects(pods));
        snapshot.pools = vec![Arc::new(pool(self.requirements()))];
        snapshot.catalogues.insert("default".into(), Arc::new(Catalogue::new(types)));
        snapshot
    }
}

/// The folder that `KARP_BENCH` names (none when it is empty), else `shared/bench` beside the repository where that is there.
pub fn folder() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("KARP_BENCH") {
        return (!named.is_empty()).then(|| named.into());
    }
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/bench");
    beside.is_dir().then_some(beside)
}

/// The instance types, from the folder or made.
pub fn types(ec2: bool) -> Vec<InstanceType> {
    let name = if ec2 { "ec2-types.json.gz" } else { "instance-types.json.gz" };
    match folder() {
        Some(folder) => list(&folder.join(name)).into_iter().map(listed).collect(),
        None if ec2 => ec2_types(),
        None => generate::made_up_types(),
    }
}

/// EC2's types as the built-in table knows them, at estimated prices.
fn ec2_types() -> Vec<InstanceType> {
    let zones = ZONES.map(|zone| Zone::new(zone, ""));
    let of = |facts| InstanceType::from_facts(facts, &NodeSettings::default(), offerings(facts, &zones, |_, _| None));
    builtin().iter().map(of).collect()
}

/// A pool called default.
pub fn pool(requirements: &[(&str, &[&str])]) -> Pool {
    let mut spec = NodePoolSpec::default();
    spec.template.spec.node_class_ref =
        NodeClassReference { group: "karpenter.k8s.aws".into(), kind: "EC2NodeClass".into(), name: "default".into() };
    spec.template.spec.requirements = requirements
        .iter()
        .map(|(key, values)| RequirementSpec {
            key: (*key).to_owned(),
            operator: Operator::In,
            values: values.iter().map(ToString::to_string).collect(),
            min_values: None,
        })
        .collect();
    Pool::from_kube(&NodePool::new("default", spec)).expect("a pool")
}

/// Answers the least time of some calls in seconds: what a busy machine disturbs least.
pub fn least_seconds<T>(calls: usize, mut call: impl FnMut() -> T) -> f64 {
    let times = (0..calls).map(|_| seconds(&mut call).0);
    times.fold(f64::INFINITY, f64::min)
}

/// Answers how long a call takes, and its answer.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub fn seconds<T>(call: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let answer = std::hint::black_box(call());
    (start.elapsed().as_secs_f64(), answer)
}

fn listed(value: Value) -> InstanceType {
    let listing: Listing = serde_json::from_value(value).expect("an instance type");
    InstanceType::try_from(&listing).expect("an instance type")
}

fn objects(pods: &[Value]) -> Vec<core::Pod> {
    pods.iter().map(|pod| serde_json::from_value(pod.clone()).expect("a pod")).collect()
}

/// Reads pods that wait: some inputs have no status.
pub fn read(pods: &[core::Pod]) -> Vec<Arc<Pod>> {
    let shapes = Shapes::default();
    pods.iter().map(|pod| waiting(Pod::sharing(&shapes, pod).expect("a pod"))).collect()
}

/// Reads each pod as if there were no other.
pub fn read_alone(pods: &[core::Pod]) -> Vec<Arc<Pod>> {
    pods.iter().map(|pod| waiting(Pod::from_kube(pod).expect("a pod"))).collect()
}

fn waiting(mut pod: Pod) -> Arc<Pod> {
    (pod.unschedulable, pod.phase, pod.node) = (true, Phase::Pending, None);
    Arc::new(pod)
}

/// Reads a bare array or a `List` of objects.
fn list(path: &Path) -> Vec<Value> {
    let file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("gzip");
    match serde_json::from_str(&text).expect("JSON") {
        Value::Array(items) => items,
        mut list => list["items"].as_array_mut().map(std::mem::take).expect("a list"),
    }
}

//! Gauges of what the cluster is like, under Karpenter's names and labels. They are made of a snapshot at each scrape, so that no series
//! outlives what it tells of.

mod objects;
mod pools;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use karp_domain::api::labels;
use karp_domain::catalogue::{CapacityType, PriceSource};
use karp_domain::cluster::{Node, Owner, Phase, Pod, Snapshot};
use karp_domain::resources::{CPU, MEMORY, Resources};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

pub use self::objects::{Object, word};
use super::decisions::Decisions;
use super::kept::Kept;

/// What is told of.
pub struct Observed {
    /// Nodes, pods, claims and what can be bought.
    pub snapshot: Snapshot,
    /// What the statuses of pools say that their nodes have, by the pool's name.
    pub usage: BTreeMap<String, Resources>,
    /// Objects with conditions.
    pub objects: Vec<Object>,
    /// What was decided of pods that wait.
    pub decisions: Decisions,
    /// Why nodes were left alone.
    pub kept: Kept,
    /// When the prices of each kind were read; nothing of a kind that never was.
    pub prices_read: BTreeMap<CapacityType, Timestamp>,
    /// Bytes of user data, by the class's name.
    pub user_data: BTreeMap<String, usize>,
    /// Nodes and pods are not told of (`--disable-cluster-state-observability`).
    pub only_sums: bool,
}

type Labels = Vec<(String, String)>;

/// A gauge with its series.
#[derive(Debug)]
pub struct Gauges {
    name: String,
    help: &'static str,
    series: Vec<Series>,
}

#[derive(Debug)]
struct Series {
    /// Labels that many series share.
    of: Arc<Labels>,
    more: Labels,
    value: f64,
}

type Source = Box<dyn Fn() -> Observed + Send + Sync>;

/// Makes the gauges anew at each scrape, as soon as there is something to tell of.
#[derive(Clone, Default)]
pub struct State(Arc<OnceLock<Source>>);

impl State {
    /// Tells what to look at from now on; the first to tell counts.
    pub fn observe(&self, source: impl Fn() -> Observed + Send + Sync + 'static) {
        drop(self.0.set(Box::new(source)));
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("State").field(&self.0.get().is_some()).finish()
    }
}

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(source) = self.0.get() else { return Ok(()) };
        for gauges in gauges(&source()) {
            // with the dot that the registry gives all others
            let help = format!("{}.", gauges.help);
            let mut family = encoder.encode_descriptor(&gauges.name, &help, None, MetricType::Gauge)?;
            for series in &gauges.series {
                let labels = (series.of.as_slice(), series.more.as_slice());
                ConstGauge::new(series.value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Says what an observed cluster is like; a gauge without series is left out.
pub fn gauges(observed: &Observed) -> Vec<Gauges> {
    let snapshot = &observed.snapshot;
    let mut all = Vec::new();
    if !observed.only_sums {
        all.extend(of_nodes(snapshot));
        all.extend(of_pods(snapshot, &observed.decisions));
    }
    all.push(utilization(snapshot));
    all.extend(pools::of_pools(observed));
    all.extend(of_types(snapshot));
    all.extend(of_prices(snapshot, &observed.prices_read));
    all.extend(objects::of_objects(snapshot.now, &observed.objects));
    all.push(objects::of_user_data(observed));
    all.retain(|gauges| !gauges.series.is_empty());
    all
}

fn gauge(name: &str, help: &'static str) -> Gauges {
    Gauges { name: name.to_owned(), help, series: Vec::new() }
}

fn label(key: &str, value: impl Into<String>) -> (String, String) {
    (key.to_owned(), value.into())
}

/// `karpenter.sh/capacity-type` and `nvidia.com/gpu` as they are in metrics: what follows the slash, or all of it, small and with underscores.
fn underscored(name: &str) -> String {
    name.to_ascii_lowercase().replace('-', "_")
}

impl Gauges {
    fn push(&mut self, of: &Arc<Labels>, more: Labels, value: f64) {
        self.series.push(Series { of: of.clone(), more, value });
    }

    /// A series for each resource.
    fn amounts(&mut self, of: &Arc<Labels>, amounts: &Resources) {
        for (name, amount) in amounts.iter() {
            self.push(of, vec![label("resource_type", underscored(name))], amount.as_f64());
        }
    }
}

fn pods_by_node(snapshot: &Snapshot) -> BTreeMap<&str, Vec<&Pod>> {
    let mut by_node: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in snapshot.pods.iter().filter(|pod| pod.holds_resources()) {
        by_node.entry(pod.node.as_deref().unwrap_or_default()).or_default().push(pod);
    }
    by_node
}

fn requests<'p>(pods: impl Iterator<Item = &'p &'p Pod>) -> Resources {
    let mut total = Resources::new();
    pods.for_each(|pod| total.add(&pod.shape.requests));
    total
}

fn of_nodes(snapshot: &Snapshot) -> Vec<Gauges> {
    let mut allocatable = gauge("karpenter_nodes_allocatable", "Resources that pods may use, by node");
    let mut asked = gauge(
        "karpenter_nodes_total_pod_requests",
        "Resources that pods on a node ask for, those of DaemonSets included",
    );
    let mut daemons =
        gauge("karpenter_nodes_total_daemon_requests", "Resources that pods of DaemonSets on a node ask for");
    let mut overhead = gauge("karpenter_nodes_system_overhead", "Capacity of a node that pods may not use");
    let mut lifetime = gauge("karpenter_nodes_current_lifetime_seconds", "Age of a node");
    let managed: BTreeSet<&str> = snapshot.claims.iter().filter_map(|claim| claim.provider_id.as_deref()).collect();
    let by_node = pods_by_node(snapshot);
    for node in &snapshot.nodes {
        let of = Arc::new(node_labels(node, &managed));
        let pods = by_node.get(&*node.name).map(Vec::as_slice).unwrap_or_default();
        allocatable.amounts(&of, &node.allocatable);
        asked.amounts(&of, &requests(pods.iter()));
        daemons.amounts(&of, &requests(pods.iter().filter(|pod| pod.owner == Owner::DaemonSet)));
        overhead.amounts(&of, &node.capacity.minus(&node.allocatable));
        if let Some(created) = node.created {
            lifetime.push(&of, Vec::new(), seconds(created, snapshot.now));
        }
    }
    vec![allocatable, asked, daemons, overhead, lifetime]
}

/// The labels of a node that Karpenter's metrics have: all that are well known, empty where the node lacks them.
fn node_labels(node: &Node, managed: &BTreeSet<&str>) -> Labels {
    let known = labels::WELL_KNOWN.iter().filter(|key| **key != labels::EC2_NODE_CLASS);
    let mut all: Labels = known
        .map(|key| {
            let name = key.rsplit('/').next().unwrap_or(key);
            label(&underscored(name), node.labels.get(*key).cloned().unwrap_or_default())
        })
        .collect();
    let managed = node.provider_id.as_deref().is_some_and(|id| managed.contains(id));
    // the phase of a node is not set by anybody any more
    all.extend([label("node_name", &*node.name), label("phase", ""), label("managed", managed.to_string())]);
    all
}

fn of_pods(snapshot: &Snapshot, decisions: &Decisions) -> Vec<Gauges> {
    let mut state = gauge("karpenter_pods_state", "1 for each pod that has not ended, by where it is");
    let mut unbound = gauge("karpenter_pods_unbound_time_seconds", "Time for which a pod has had no node");
    let mut unstarted = gauge("karpenter_pods_unstarted_time_seconds", "Time for which a pod has not run");
    let mut undecided = gauge(
        "karpenter_pods_provisioning_scheduling_undecided_time_seconds",
        "Time since a pod was seen to wait of which nothing is decided",
    );
    let mut unbound_placed = gauge(
        "karpenter_pods_provisioning_unbound_time_seconds",
        "Time for which a pod without a node has had a place planned",
    );
    let mut unstarted_placed = gauge(
        "karpenter_pods_provisioning_unstarted_time_seconds",
        "Time for which a pod that has not run has had a place planned",
    );
    let nodes: BTreeMap<&str, &Node> = snapshot.nodes.iter().map(|node| (&*node.name, &**node)).collect();
    for pod in snapshot.pods.iter().filter(|pod| pod.phase != Phase::Terminal && !snapshot.is_virtual(&pod.key)) {
        let key = Arc::new(vec![label("name", &*pod.key.name), label("namespace", &*pod.key.namespace)]);
        let waits = pod.created.map(|created| seconds(created, snapshot.now)).unwrap_or_default();
        let times = decisions.of(&pod.key);
        let placed = times.and_then(|times| times.placed_for(snapshot.now));
        if pod.node.is_none() {
            unbound.push(&key, Vec::new(), waits);
            placed.iter().for_each(|time| unbound_placed.push(&key, Vec::new(), *time));
            let open = times.filter(|times| times.decided.is_none());
            open.iter().for_each(|times| undecided.push(&key, Vec::new(), seconds(times.seen, snapshot.now)));
        }
        if pod.phase == Phase::Pending {
            unstarted.push(&key, Vec::new(), waits);
            placed.iter().for_each(|time| unstarted_placed.push(&key, Vec::new(), *time));
        }
        let node = pod.node.as_ref().and_then(|name| nodes.get(&**name));
        let of_node = |name: &str, key: &str| {
            label(name, node.and_then(|node| node.labels.get(key).cloned()).unwrap_or_default())
        };
        let where_it_is = vec![
            label("node", pod.node.as_deref().unwrap_or_default()),
            of_node("nodepool", labels::NODE_POOL),
            of_node("zone", labels::ZONE),
            of_node("arch", labels::ARCH),
            of_node("capacity_type", labels::CAPACITY_TYPE),
            of_node("instance_type", labels::INSTANCE_TYPE),
            label("phase", if pod.phase == Phase::Pending { "Pending" } else { "Running" }),
        ];
        state.push(&key, where_it_is, 1.0);
    }
    vec![state, unbound, unstarted, undecided, unbound_placed, unstarted_placed]
}

fn utilization(snapshot: &Snapshot) -> Gauges {
    let mut percent =
        gauge("karpenter_cluster_utilization_percent", "Share of what nodes offer that pods on them ask for");
    let mut offered = Resources::new();
    snapshot.nodes.iter().for_each(|node| offered.add(&node.allocatable));
    let by_node = pods_by_node(snapshot);
    let asked = requests(snapshot.nodes.iter().filter_map(|node| by_node.get(&*node.name)).flatten());
    for (name, amount) in offered.iter().filter(|(_, amount)| amount.is_positive()) {
        let share = 100.0 * asked.get(name).as_f64() / amount.as_f64();
        percent.push(&Arc::default(), vec![label("resource_type", underscored(name))], share);
    }
    percent
}

/// What can be bought, of all node classes together: an offering is available that any of them can have.
fn of_types(snapshot: &Snapshot) -> Vec<Gauges> {
    let mut available =
        gauge("karpenter_cloudprovider_instance_type_offering_available", "1 when an offering can be had");
    let mut price =
        gauge("karpenter_cloudprovider_instance_type_offering_price_estimate", "Price of an offering per hour");
    let mut cores = gauge("karpenter_cloudprovider_instance_type_cpu_cores", "Cores of an instance type");
    let mut memory = gauge("karpenter_cloudprovider_instance_type_memory_bytes", "Memory of an instance type in bytes");
    let mut types: BTreeMap<&str, &Resources> = BTreeMap::new();
    let mut offerings: BTreeMap<[&str; 3], (bool, f64)> = BTreeMap::new();
    for t in snapshot.catalogues.values().flat_map(|catalogue| catalogue.types()) {
        types.insert(&t.name, &t.capacity);
        for offering in &t.offerings {
            let known = offerings.entry([&t.name, offering.capacity_type.as_str(), &offering.zone.name]);
            let (any, least) = known.or_insert((false, f64::INFINITY));
            *any |= offering.available;
            *least = least.min(offering.price.dollars());
        }
    }
    for (name, capacity) in types {
        let of = Arc::new(vec![label("instance_type", name)]);
        cores.push(&of, Vec::new(), capacity.get(CPU).as_f64());
        memory.push(&of, Vec::new(), capacity.get(MEMORY).as_f64());
    }
    for ([name, capacity_type, zone], (any, least)) in offerings {
        let of = [label("instance_type", name), label("capacity_type", capacity_type), label("zone", zone)];
        let of = Arc::new(of.to_vec());
        available.push(&of, Vec::new(), f64::from(u8::from(any)));
        price.push(&of, Vec::new(), least);
    }
    vec![available, price, cores, memory]
}

/// How much prices can be relied on. Offerings of several classes count once.
fn of_prices(snapshot: &Snapshot, read: &BTreeMap<CapacityType, Timestamp>) -> Vec<Gauges> {
    let mut ages =
        gauge("karp_cloudprovider_prices_age_seconds", "Time since prices of a capacity type were last read");
    let mut guesses = gauge("karp_cloudprovider_offerings_estimated", "Offerings whose price is an estimate");
    let of = |kind: CapacityType| Arc::new(vec![label("capacity_type", kind.as_str())]);
    for (kind, read) in read {
        ages.push(&of(*kind), Vec::new(), seconds(*read, snapshot.now));
    }
    let mut estimated: BTreeMap<CapacityType, BTreeSet<[&str; 2]>> = BTreeMap::new();
    for t in snapshot.catalogues.values().flat_map(|catalogue| catalogue.types()) {
        for offering in &t.offerings {
            let all = estimated.entry(offering.capacity_type).or_default();
            if offering.source == PriceSource::Estimated {
                all.insert([&t.name, &offering.zone.name]);
            }
        }
    }
    for (kind, all) in estimated {
        guesses.push(&of(kind), Vec::new(), f64::from(u32::try_from(all.len()).unwrap_or(u32::MAX)));
    }
    vec![ages, guesses]
}

fn seconds(since: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}

#[cfg(test)]
pub(super) use self::tests::sample;

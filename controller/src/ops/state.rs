//! Gauges of what the cluster is like, under Karpenter's names and labels. They are made of a snapshot at each scrape, so that no series
//! outlives what it tells of.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use karp_domain::api::conditions::{Condition, ConditionStatus};
use karp_domain::api::labels;
use karp_domain::catalogue::{CapacityType, PriceSource};
use karp_domain::cluster::{Node, Owner, Phase, Pod, Snapshot};
use karp_domain::disruption::allowed_disruptions;
use karp_domain::resources::{CPU, MEMORY, Resources};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// What is told of.
pub struct Observed {
    /// Nodes, pods, claims and what can be bought.
    pub snapshot: Snapshot,
    /// What the statuses of pools say that their nodes have, by the pool's name.
    pub usage: BTreeMap<String, Resources>,
    /// Objects with conditions.
    pub conditions: Vec<Conditions>,
    /// When the prices of each kind were read; nothing of a kind that never was.
    pub prices_read: BTreeMap<CapacityType, Timestamp>,
    /// Nodes and pods are not told of (`--disable-cluster-state-observability`).
    pub only_sums: bool,
}

/// The conditions of an object.
pub struct Conditions {
    /// Its kind as Karpenter's metrics have it: `nodeclaim`, `nodepool`, `ec2nodeclass`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Its conditions.
    pub all: Vec<Condition>,
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
        all.extend(of_pods(snapshot));
    }
    all.push(utilization(snapshot));
    all.extend(of_pools(snapshot, &observed.usage));
    all.extend(of_types(snapshot));
    all.extend(of_prices(snapshot, &observed.prices_read));
    all.extend(of_conditions(snapshot.now, &observed.conditions));
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

fn of_pods(snapshot: &Snapshot) -> Vec<Gauges> {
    let mut state = gauge("karpenter_pods_state", "1 for each pod that has not ended, by where it is");
    let mut unbound = gauge("karpenter_pods_unbound_time_seconds", "Time for which a pod has had no node");
    let mut unstarted = gauge("karpenter_pods_unstarted_time_seconds", "Time for which a pod has not run");
    let nodes: BTreeMap<&str, &Node> = snapshot.nodes.iter().map(|node| (&*node.name, &**node)).collect();
    for pod in snapshot.pods.iter().filter(|pod| pod.phase != Phase::Terminal && !snapshot.is_virtual(&pod.key)) {
        let key = Arc::new(vec![label("name", &*pod.key.name), label("namespace", &*pod.key.namespace)]);
        let waits = pod.created.map(|created| seconds(created, snapshot.now)).unwrap_or_default();
        if pod.node.is_none() {
            unbound.push(&key, Vec::new(), waits);
        }
        if pod.phase == Phase::Pending {
            unstarted.push(&key, Vec::new(), waits);
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
    vec![state, unbound, unstarted]
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

/// What pools have, may have, and may lose now.
fn of_pools(snapshot: &Snapshot, usage: &BTreeMap<String, Resources>) -> Vec<Gauges> {
    let mut used = gauge("karpenter_nodepools_usage", "Capacity that a pool's nodes have");
    let mut limits = gauge("karpenter_nodepools_limit", "Limits of a pool");
    let mut may_go = gauge("karpenter_nodepools_allowed_disruptions", "Nodes of a pool that budgets let go now");
    for pool in snapshot.pools.iter().filter(|pool| pool.is_ours()) {
        let of = Arc::new(vec![label("nodepool", &*pool.name)]);
        if let Some(usage) = usage.get(&*pool.name) {
            used.amounts(&of, usage);
        }
        limits.amounts(&of, &pool.limits);
    }
    for (pool, reason, left) in allowed_disruptions(snapshot) {
        let of = Arc::new(vec![label("nodepool", &*pool), label("reason", format!("{reason:?}"))]);
        may_go.push(&of, Vec::new(), left.into());
    }
    vec![used, limits, may_go]
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

fn of_conditions(now: Timestamp, objects: &[Conditions]) -> Vec<Gauges> {
    let mut by_kind: BTreeMap<&str, [Gauges; 2]> = BTreeMap::new();
    for object in objects {
        let [count, current] = by_kind.entry(object.kind).or_insert_with(|| {
            let prefix = format!("operator_{}_status_condition", object.kind);
            let count = gauge(&format!("{prefix}_count"), "1 for each condition of an object");
            [count, gauge(&format!("{prefix}_current_status_seconds"), "Time for which a condition has had its status")]
        });
        for condition in &object.all {
            let status = match condition.status {
                ConditionStatus::True => "True",
                ConditionStatus::False => "False",
                ConditionStatus::Unknown => "Unknown",
            };
            let of = Arc::new(vec![
                label("namespace", ""),
                label("name", &object.name),
                label("type", &condition.kind),
                label("status", status),
                label("reason", &condition.reason),
            ]);
            count.push(&of, Vec::new(), 1.0);
            current.push(&of, Vec::new(), seconds(condition.last_transition_time, now));
        }
    }
    by_kind.into_values().flatten().collect()
}

fn seconds(since: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}

/// A node with a pod of a DaemonSet and another one, a pod that waits, and a type that can be bought.
#[cfg(test)]
pub(super) fn sample() -> Observed {
    use karp_domain::catalogue::{Catalogue, InstanceType, NodeSettings, Zone, builtin, offerings};
    use karp_domain::cluster::Pool;
    use serde_json::{Value, json};

    let pod = |name: &str, node: Value, owner: &str, cpu: &str| {
        let object = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "creationTimestamp": "2026-11-21T11:59:00Z",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": owner, "name": owner, "uid": owner, "controller": true}]},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]},
            "status": {"phase": if node.is_null() { "Pending" } else { "Running" }},
        });
        Arc::new(Pod::from_kube(&serde_json::from_value(object).expect("a pod")).expect("a readable pod"))
    };
    let node = json!({
        "metadata": {"name": "n1", "creationTimestamp": "2026-11-21T11:00:00Z", "labels": {"karpenter.sh/nodepool": "default",
            "topology.kubernetes.io/zone": "us-east-1a", "kubernetes.io/arch": "amd64", "node.kubernetes.io/instance-type": "m7i.large",
            "karpenter.sh/capacity-type": "spot"}},
        "spec": {"providerID": "aws:///us-east-1a/i-1"},
        "status": {"capacity": {"cpu": "2", "memory": "8Gi", "pods": "29"}, "allocatable": {"cpu": "1930m", "memory": "7Gi", "pods": "29"}},
    });
    let node: k8s_openapi::api::core::v1::Node = serde_json::from_value(node).expect("a node");
    let now: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
    let mut snapshot = Snapshot::empty(now);
    snapshot.nodes.push(Arc::new(Node::from_kube(&node).expect("a readable node")));
    snapshot.pods = vec![
        pod("agent", json!("n1"), "DaemonSet", "100m"),
        pod("web", json!("n1"), "ReplicaSet", "500m"),
        pod("waits", Value::Null, "ReplicaSet", "1"),
    ];
    let facts = builtin().iter().find(|facts| &*facts.name == "m7i.large").expect("a type");
    let zones = [Zone::new("us-east-1a", "use1-az1")];
    let one = InstanceType::from_facts(facts, &NodeSettings::default(), offerings(facts, &zones, |_, _| None));
    snapshot.catalogues.insert("default".into(), Arc::new(Catalogue::new(vec![one])));
    let all = vec![Condition::met("Launched", "2026-11-21T11:30:00Z".parse().expect("a time"))];
    let conditions = vec![Conditions { kind: "nodeclaim", name: "default-1".to_owned(), all }];
    let pool = json!({
        "metadata": {"name": "default"},
        "spec": {"limits": {"cpu": "100"}, "template": {"spec": {"nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass",
            "name": "default"}, "requirements": []}}},
    });
    let pool: karp_domain::api::NodePool = serde_json::from_value(pool).expect("a pool");
    snapshot.pools.push(Arc::new(Pool::from_kube(&pool).expect("a readable pool")));
    let usage = BTreeMap::from([("default".to_owned(), snapshot.nodes[0].capacity.clone())]);
    let prices_read = [(CapacityType::Spot, "2026-11-21T11:00:00Z".parse().expect("a time"))].into();
    Observed { snapshot, usage, conditions, prices_read, only_sums: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(all: &[Gauges], name: &str, wanted: &[(&str, &str)]) -> Option<f64> {
        let series = &all.iter().find(|gauges| gauges.name == name)?.series;
        let has = |series: &&Series| {
            let own = || series.of.iter().chain(&series.more);
            wanted.iter().all(|(key, text)| own().any(|(known, found)| known == key && found == text))
        };
        series.iter().find(has).map(|series| series.value)
    }

    #[test]
    fn what_pods_ask_for_is_told_by_node() {
        let all = gauges(&sample());
        let cpu = [("node_name", "n1"), ("resource_type", "cpu"), ("capacity_type", "spot"), ("nodepool", "default")];
        assert_eq!(value(&all, "karpenter_nodes_allocatable", &cpu), Some(1.93));
        assert_eq!(value(&all, "karpenter_nodes_total_pod_requests", &cpu), Some(0.6));
        assert_eq!(value(&all, "karpenter_nodes_total_daemon_requests", &cpu), Some(0.1));
        assert_eq!(value(&all, "karpenter_nodes_current_lifetime_seconds", &[("node_name", "n1")]), Some(3600.0));
        assert_eq!(value(&all, "karpenter_pods_unbound_time_seconds", &[("name", "waits")]), Some(60.0));
        assert_eq!(
            value(&all, "karpenter_pods_state", &[("name", "web"), ("node", "n1"), ("zone", "us-east-1a")]),
            Some(1.0)
        );
        assert_eq!(value(&all, "karpenter_pods_unbound_time_seconds", &[("name", "web")]), None);
    }

    #[test]
    fn prices_tell_their_age_and_how_many_are_guessed() {
        let mut observed = sample();
        let told = |observed: &Observed, name: &str, kind: &str| {
            value(&gauges(observed), &format!("karp_cloudprovider_{name}"), &[("capacity_type", kind)])
        };
        assert_eq!(told(&observed, "prices_age_seconds", "spot"), Some(3600.0));
        assert_eq!(told(&observed, "prices_age_seconds", "on-demand"), None, "nobody read any");
        assert_eq!(told(&observed, "offerings_estimated", "on-demand"), Some(1.0));
        let known = observed.snapshot.catalogues["default"].clone();
        observed.snapshot.catalogues.insert("other".into(), known);
        assert_eq!(told(&observed, "offerings_estimated", "on-demand"), Some(1.0), "the same of two classes");
    }

    #[test]
    fn nothing_is_told_of_what_is_gone_or_not_wanted() {
        let mut observed = sample();
        observed.snapshot.nodes.clear();
        observed.snapshot.pods.clear();
        observed.snapshot.pools.clear();
        let all = gauges(&observed);
        let of_gone =
            |gauges: &Gauges| gauges.name.starts_with("karpenter_node") || gauges.name.starts_with("karpenter_pods");
        assert!(!all.iter().any(of_gone), "{all:?}");
        let mut observed = sample();
        observed.only_sums = true;
        let all = gauges(&observed);
        assert!(all.iter().all(|gauges| !gauges.name.starts_with("karpenter_pods_")));
        let share = value(&all, "karpenter_cluster_utilization_percent", &[("resource_type", "cpu")]).expect("a share");
        assert!((share - 100.0 * 0.6 / 1.93).abs() < 1e-9, "{share}");
    }
}

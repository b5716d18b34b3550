//! An independent judge of solutions: recomputes from the objects what the solver answered.

use std::collections::{BTreeMap, BTreeSet};

use karp_domain::api::labels;
use karp_domain::catalogue::{CapacityType, InstanceType, RankedOffering};
use karp_domain::cluster::{
    ClaimRef, DaemonSet, EBS_DRIVER, HostPort, MinValuesPolicy, Pod, PodKey, PodTerm, Pool, Snapshot,
};
use karp_domain::quantity::Quantity;
use karp_domain::requirement::Requirements;
use karp_domain::resources::Resources;
use karp_domain::scheduling::{InFlightNode, Misfit, Refusal, Solution, Target};
use karp_domain::taint::{Taint, TaintEffect};

use super::topology::takes_one_more;

/// The labels of a node that comes of an offering.
pub fn labels_of(
    pool: &Pool,
    t: &InstanceType,
    zone: &str,
    zone_id: &str,
    capacity_type: CapacityType,
) -> BTreeMap<String, String> {
    let single = |(key, values): (&std::sync::Arc<str>, &Vec<std::sync::Arc<str>>)| match values.as_slice() {
        [value] => Some((key.to_string(), value.to_string())),
        _ => None,
    };
    let mut labels: BTreeMap<String, String> = t.labels.iter().filter_map(single).collect();
    labels.extend(pool.labels.clone());
    labels.insert("topology.kubernetes.io/zone".into(), zone.into());
    labels.insert("topology.k8s.aws/zone-id".into(), zone_id.into());
    labels.insert("karpenter.sh/capacity-type".into(), capacity_type.as_str().into());
    labels.insert("karpenter.sh/nodepool".into(), pool.name.to_string());
    labels.insert("karpenter.k8s.aws/ec2nodeclass".into(), pool.class.name.to_string());
    labels
}

fn accepts(pod: &Pod, labels: &BTreeMap<String, String>) -> bool {
    pod.shape.alternatives.iter().any(|wanted| {
        wanted.iter().all(|r| labels.get(r.key()).map_or_else(|| r.admits_absence(), |value| r.admits(value)))
    })
}

fn pool_accepts(pool: &Pool, labels: &BTreeMap<String, String>) -> bool {
    pool.requirements.iter().all(|r| labels.get(r.key()).map_or_else(|| r.admits_absence(), |value| r.admits(value)))
}

fn bears(pod: &Pod, pool: &Pool) -> bool {
    pool.taints.iter().all(|taint| taint.admits(&pod.shape.tolerations))
}

/// The daemon sets that have a pod on a node with these labels.
fn running_on<'s>(
    snapshot: &'s Snapshot,
    pool: &'s Pool,
    labels: &'s BTreeMap<String, String>,
) -> impl Iterator<Item = &'s DaemonSet> {
    let runs = |d: &&DaemonSet| d.shape.alternatives.iter().any(|wanted| wanted.match_labels(labels));
    snapshot.daemons.iter().map(|daemon| &**daemon).filter(|d| d.bears(&pool.taints)).filter(runs)
}

fn daemons_on(snapshot: &Snapshot, pool: &Pool, labels: &BTreeMap<String, String>) -> Resources {
    let mut total = Resources::new();
    running_on(snapshot, pool, labels).for_each(|daemon| total.add(&daemon.shape.requests));
    total
}

/// Whether a pod keeps away from the pods of a daemon set, or those from it, by a label that counts.
fn apart(snapshot: &Snapshot, pod: &Pod, daemon: &DaemonSet, counts: impl Fn(&str) -> bool) -> bool {
    let means = |term: &PodTerm, labels: &BTreeMap<String, String>, namespace: &str| {
        counts(&term.key)
            && term.selector.as_ref().is_some_and(|selector| selector.matches(labels))
            && term.namespaces.contain(namespace, &snapshot.namespaces)
    };
    pod.shape.anti_affinity.iter().any(|term| means(term, &daemon.labels, &daemon.key.namespace))
        || daemon.shape.anti_affinity.iter().any(|term| means(term, &pod.labels, &pod.key.namespace))
}

/// Whether a daemon that keeps a pod away will run on a node with these labels.
fn is_repelled(snapshot: &Snapshot, pod: &Pod, pool: &Pool, node: &BTreeMap<String, String>) -> bool {
    // a node without the label is in no domain; each will have its name
    let has = |key: &str| key == labels::HOSTNAME || node.contains_key(key);
    running_on(snapshot, pool, node).any(|daemon| apart(snapshot, pod, daemon, has))
}

fn enough(wanted: &Resources, there: &Resources) -> bool {
    wanted.iter().all(|(name, amount)| amount <= there.get(name))
}

/// Panics with the fault, if there is one.
pub fn judge(snapshot: &Snapshot, solution: &Solution) {
    let pods: BTreeMap<&PodKey, &Pod> = snapshot.pods.iter().map(|pod| (&pod.key, &**pod)).collect();
    each_once(snapshot, solution);
    for node in &solution.nodes {
        judge_node(snapshot, &pods, node);
    }
    judge_hosts(snapshot, &pods, solution);
    judge_limits(snapshot, solution);
    for refused in &solution.unschedulable {
        judge_refusal(snapshot, solution, pods[&refused.pod], &refused.reasons);
    }
}

fn each_once(snapshot: &Snapshot, solution: &Solution) {
    let mut seen: BTreeSet<&PodKey> = BTreeSet::new();
    let placed = solution.placements.iter().map(|p| &p.pod);
    let planned = solution.nodes.iter().flat_map(|node| &node.pods);
    for key in placed.chain(planned).chain(solution.unschedulable.iter().map(|u| &u.pod)) {
        assert!(seen.insert(key), "{key} is answered twice");
    }
    for pod in snapshot.pods.iter().filter(|pod| pod.is_provisionable()) {
        assert!(seen.contains(&pod.key), "{} is not answered", pod.key);
    }
}

/// EBS volumes that pods have together, each once.
fn volumes<'p>(snapshot: &Snapshot, pods: impl Iterator<Item = &'p Pod>) -> u32 {
    let of_ebs = |pod: &Pod, claim: &ClaimRef| {
        let key = claim.key(&pod.key);
        snapshot.volumes.driver(&key, claim).is_some_and(|driver| **driver == *EBS_DRIVER)
    };
    let mut all = BTreeSet::new();
    for pod in pods {
        for claim in pod.claims.iter().filter(|claim| of_ebs(pod, claim)) {
            all.insert(match claim {
                ClaimRef::Named(name) => (Some(&pod.key.namespace), None, name),
                ClaimRef::Ephemeral { volume, .. } => (Some(&pod.key.namespace), Some(&pod.key.name), volume),
                ClaimRef::Inline { volume } => (None, None, volume),
            });
        }
    }
    u32::try_from(all.len()).unwrap()
}

/// The most EBS volumes that nodes of a type say they attach.
pub fn told(snapshot: &Snapshot, instance_type: &str) -> Option<u32> {
    let of_type = |n: &&std::sync::Arc<karp_domain::cluster::Node>| {
        n.labels.get("node.kubernetes.io/instance-type").is_some_and(|own| own == instance_type)
    };
    let nodes = snapshot.nodes.iter().filter(of_type);
    nodes.filter_map(|node| snapshot.volumes.attachable.get(&node.name)?.get(EBS_DRIVER)).max().copied()
}

/// Whatever offering EC2 chooses, every pod must fit the node that comes of it.
fn judge_node(snapshot: &Snapshot, pods: &BTreeMap<&PodKey, &Pod>, node: &InFlightNode) {
    assert!(!node.pods.is_empty(), "a node without pods");
    assert!(!node.offerings.is_empty(), "a node without offerings");
    assert!(node.offerings.windows(2).all(|pair| pair[0].price <= pair[1].price), "offerings are not ranked");
    let pool = snapshot.pool(&node.pool).expect("a pool that exists");
    assert!(pool.ready && pool.deleting.is_none() && pool.is_ours() && !pool.is_static(), "a pool that may not grow");
    let catalogue = &snapshot.catalogues[&pool.class.name];
    // a reservation gives one type: `minValues` is kept for the sake of what may be sold out
    let reserved = node.offerings.iter().all(|offering| offering.capacity_type == CapacityType::Reserved);
    if snapshot.settings.min_values == MinValuesPolicy::Strict && !reserved {
        for (key, wanted) in &pool.min_values {
            let types = node.offerings.iter().filter_map(|offering| catalogue.get(&offering.instance_type));
            let values = types.flat_map(|t| match &**key {
                labels::ZONE => t.offerings.iter().map(|o| o.zone.name.to_string()).collect(),
                labels::ZONE_ID => t.offerings.iter().map(|o| o.zone.id.to_string()).collect(),
                labels::CAPACITY_TYPE => t.offerings.iter().map(|o| o.capacity_type.as_str().to_owned()).collect(),
                _ => t.labels.get(key).into_iter().flatten().map(ToString::to_string).collect::<Vec<_>>(),
            });
            let values: BTreeSet<_> = values.filter(|value| pool.requirements.admits(key, value)).collect();
            assert!(values.len() >= *wanted as usize, "{key} has {} values, not {wanted}", values.len());
        }
    }
    // EC2 is asked for what the claim says: nothing else may come of it; how much reservations have left is counted when it is asked
    let (types, market) = catalogue.select(&node.requirements);
    let mut asked = catalogue.ranked(&types, market);
    let plain = |offering: &RankedOffering| !reserved && offering.reservation.is_none();
    asked.retain(|offering| plain(offering) && catalogue.admits(offering, &node.requirements));
    for offering in &asked {
        assert!(node.offerings.contains(offering), "the claim asks for {offering:?} too: {}", node.requirements);
    }
    let mut total = Resources::new();
    node.pods.iter().for_each(|key| total.add(&pods[key].shape.requests));
    let attached = volumes(snapshot, node.pods.iter().map(|key| pods[key]));
    for offering in node.offerings.iter() {
        let t = catalogue.get(&offering.instance_type).expect("a known type");
        let real = t.offerings.iter().any(|o| {
            o.available
                && o.zone == offering.zone
                && o.capacity_type == offering.capacity_type
                && o.price == offering.price
        });
        assert!(real, "{offering:?} cannot be had");
        let mut labels = labels_of(pool, t, &offering.zone.name, &offering.zone.id, offering.capacity_type);
        labels.extend(node.requirements.settled_labels());
        assert!(
            pool_accepts(pool, &labels),
            "{} is outside pool {}: {labels:?} {}",
            t.name,
            pool.name,
            pool.requirements
        );
        let daemons = daemons_on(snapshot, pool, &labels);
        assert!(enough(&total.plus(&daemons), &t.allocatable()), "{} does not hold its pods", t.name);
        let attaches = told(snapshot, &t.name).or(t.attachable).is_none_or(|most| attached <= most);
        assert!(attaches, "{} does not attach {attached} volumes", t.name);
        for key in &node.pods {
            assert!(accepts(pods[key], &labels), "{key} does not accept {offering:?}");
            assert!(bears(pods[key], pool), "{key} does not bear the taints of {}", pool.name);
        }
        let claim = &node.requirements;
        assert!(claim.admits("node.kubernetes.io/instance-type", &t.name), "the claim does not ask for {}", t.name);
    }
}

fn judge_hosts(snapshot: &Snapshot, pods: &BTreeMap<&PodKey, &Pod>, solution: &Solution) {
    let mut used: BTreeMap<&str, Resources> = BTreeMap::new();
    for pod in snapshot.pods.iter().filter(|pod| pod.holds_resources()) {
        used.entry(pod.node.as_deref().unwrap()).or_default().add(&pod.shape.requests);
    }
    for placement in &solution.placements {
        let Target::Node(name) = &placement.target else { continue };
        let node = snapshot.nodes.iter().find(|n| n.name == *name).expect("a node that exists");
        let pod = pods[&placement.pod];
        assert!(accepts(pod, &node.labels), "{} does not accept node {name}", pod.key);
        assert!(node.taints.iter().all(|t| t.admits(&pod.shape.tolerations)), "{} does not bear node {name}", pod.key);
        let cordon = Taint::new("node.kubernetes.io/unschedulable", "", TaintEffect::NoSchedule);
        assert!(!node.unschedulable || cordon.admits(&pod.shape.tolerations), "{name} is cordoned");
        assert!(node.deleting.is_none() && !node.is_disrupted(), "{name} takes no pods");
        let total = used.entry(name).or_default();
        total.add(&pod.shape.requests);
        assert!(enough(total, &node.allocatable), "node {name} is too full");
        let new = solution.placements.iter().filter(|p| p.target == placement.target).map(|p| pods[&p.pod]);
        let there = snapshot.pods.iter().filter(|pod| pod.holds_resources() && pod.node.as_ref() == Some(name));
        let attached = volumes(snapshot, there.map(|pod| &**pod).chain(new));
        let most = snapshot.volumes.attachable.get(name).and_then(|most| most.get(EBS_DRIVER)).copied();
        let own = volumes(snapshot, std::iter::once(pod));
        assert!(own == 0 || most.is_none_or(|most| attached <= most), "node {name} does not attach {attached} volumes");
    }
}

/// What the nodes of a pool that are there have, and its claims in flight may have at most.
fn in_use(snapshot: &Snapshot, pool: &Pool) -> Resources {
    let one = Resources::new().with("nodes", Quantity::from_units(1));
    let mut used = Resources::new();
    for node in snapshot.nodes.iter().filter(|n| n.pool() == Some(&pool.name)) {
        used.add(&node.capacity);
        used.add(&one);
    }
    for claim in snapshot.claims.iter().filter(|c| c.pool.as_ref() == Some(&pool.name) && c.node_name.is_none()) {
        let types = snapshot.catalogues.get(&pool.class.name).into_iter().flat_map(|catalogue| catalogue.types());
        let mut most = one.clone();
        for t in types.filter(|t| claim.requirements.admits("node.kubernetes.io/instance-type", &t.name)) {
            most.raise(&t.capacity);
        }
        used.add(&most);
    }
    used
}

/// What the planned nodes of a pool may have at most.
fn planned_use(snapshot: &Snapshot, solution: &Solution, pool: &Pool) -> Resources {
    let mut used = Resources::new();
    for node in solution.nodes.iter().filter(|n| n.pool == pool.name) {
        let catalogue = &snapshot.catalogues[&pool.class.name];
        let mut most = Resources::new().with("nodes", Quantity::from_units(1));
        node.offerings.iter().for_each(|o| most.raise(&catalogue.get(&o.instance_type).unwrap().capacity));
        used.add(&most);
    }
    used
}

/// Panics if nodes that are there, claims in flight and planned nodes together pass a limit of their pool.
pub fn judge_limits(snapshot: &Snapshot, solution: &Solution) {
    for pool in &snapshot.pools {
        let before = in_use(snapshot, pool);
        let used = before.plus(&planned_use(snapshot, solution, pool));
        for (name, limit) in pool.limits.iter() {
            let grown = used.get(name) > before.get(name);
            assert!(
                !grown || used.get(name) <= limit,
                "limit {name} {limit} of {} is passed: {}",
                pool.name,
                used.get(name)
            );
        }
    }
}

/// A value for the label that the tests' pools leave open, if the pool defines it and one pleases the pod.
fn team(pool: &Pool, wanted: &Requirements) -> Option<String> {
    let offered = pool.requirements.get("team")?;
    let pleases = |value: &&str| offered.admits(value) && wanted.admits("team", value);
    ["a", "b", "true"].into_iter().find(pleases).map(str::to_owned)
}

/// A node of its own that a pool could make for a pod: its labels, and the capacity of its type.
fn own_nodes<'s>(
    snapshot: &'s Snapshot,
    pool: &'s Pool,
    pod: &'s Pod,
) -> impl Iterator<Item = (BTreeMap<String, String>, &'s Resources)> {
    let types = snapshot.catalogues.get(&pool.class.name).into_iter().flat_map(|catalogue| catalogue.types());
    let offered = types.flat_map(|t| t.offerings.iter().filter(|o| o.available).map(move |o| (t, o)));
    let asked = offered.flat_map(|(t, o)| pod.shape.alternatives.iter().map(move |wanted| (t, o, wanted)));
    asked.filter_map(move |(t, o, wanted)| {
        let mut labels = labels_of(pool, t, &o.zone.name, &o.zone.id, o.capacity_type);
        if let Some(team) = team(pool, wanted) {
            labels.insert("team".into(), team);
        }
        let attaches = told(snapshot, &t.name).is_none_or(|most| volumes(snapshot, std::iter::once(pod)) <= most);
        let fits = pool_accepts(pool, &labels)
            && attaches
            && wanted.match_labels(&labels)
            && bears(pod, pool)
            && !is_repelled(snapshot, pod, pool, &labels)
            && !meets_port(snapshot, pod, pool, &labels)
            && enough(&pod.shape.requests.plus(&daemons_on(snapshot, pool, &labels)), &t.allocatable());
        fits.then_some((labels, &t.capacity))
    })
}

/// Whether limits leave room for one more node of a pool.
fn leaves_room(snapshot: &Snapshot, solution: &Solution, pool: &Pool, capacity: &Resources) -> bool {
    let one = Resources::new().with("nodes", Quantity::from_units(1));
    let used = in_use(snapshot, pool).plus(&planned_use(snapshot, solution, pool)).plus(capacity).plus(&one);
    pool.limits.iter().all(|(name, limit)| used.get(name) <= limit)
}

/// The pods that are refused for the sake of others though each could have a node of its own beside them; with that node.
pub fn refused_for_others(
    objects: &[serde_json::Value],
    snapshot: &Snapshot,
    solution: &Solution,
) -> BTreeMap<PodKey, String> {
    let mut found = BTreeMap::new();
    for refused in &solution.unschedulable {
        let pod = snapshot.pods.iter().find(|pod| pod.key == refused.pod).expect("a pod that exists");
        // what nodes are is settled as they are packed: until then it is open which of them a spread counts
        let counted = ["topology.kubernetes.io/zone", "karpenter.sh/capacity-type"];
        if pod.shape.alternatives.iter().flat_map(|wanted| wanted.iter()).any(|r| !counted.contains(&r.key())) {
            continue;
        }
        let pools = refused.reasons.iter().filter_map(|reason| match reason {
            Refusal::Pool { pool, misfit: Misfit::Topology { .. } } => snapshot.pool(pool),
            _ => None,
        });
        // under a limit it matters which of several domains the last nodes are made in, and no plan tries them all
        for pool in pools.filter(|pool| pool.min_values.is_empty() && pool.limits.is_empty()) {
            let mut seen = BTreeSet::new();
            let fresh = |(labels, _): &(BTreeMap<String, String>, &Resources)| {
                let key = ["topology.kubernetes.io/zone", "karpenter.sh/capacity-type", "kubernetes.io/arch", "team"];
                seen.insert(key.map(|key| labels.get(key).cloned()))
            };
            for (labels, _) in own_nodes(snapshot, pool, pod).filter(fresh) {
                if takes_one_more(objects, (snapshot, solution), &pod.key, (&pool.name, &labels)) {
                    found.insert(pod.key.clone(), format!("pool {} could give it a node: {labels:?}", pool.name));
                }
            }
        }
    }
    found
}

/// Whether a daemon that takes a port of a pod will run on a node with these labels.
fn meets_port(snapshot: &Snapshot, pod: &Pod, pool: &Pool, labels: &BTreeMap<String, String>) -> bool {
    let clashes = |port: &HostPort| pod.shape.ports.iter().any(|own| own.conflicts(port));
    running_on(snapshot, pool, labels).any(|daemon| daemon.shape.ports.iter().any(clashes))
}

/// A refusal is justified when the pod alone fits no offering of any pool, or limits or `minValues` keep it out.
fn judge_refusal(snapshot: &Snapshot, solution: &Solution, pod: &Pod, reasons: &[Refusal]) {
    assert!(!reasons.is_empty(), "{} is refused without a reason", pod.key);
    if reasons.iter().any(|r| matches!(r, Refusal::NeverPlaced { .. })) {
        assert!(!pod.shape.unsupported.is_empty());
        return;
    }
    if reasons.iter().any(|r| matches!(r, Refusal::Volume { .. })) {
        assert!(!pod.claims.is_empty());
        return;
    }
    for pool in snapshot.pools.iter().filter(|p| p.is_ours()) {
        let misfit = reasons.iter().find_map(|r| match r {
            Refusal::Pool { pool: name, misfit } if *name == pool.name => Some(misfit),
            _ => None,
        });
        let misfit = misfit.unwrap_or_else(|| panic!("{}: no reason for pool {}", pod.key, pool.name));
        let Some(catalogue) = snapshot.catalogues.get(&pool.class.name) else { continue };
        if !pool.ready || pool.is_static() || pool.deleting.is_some() {
            continue;
        }
        let smallest: Vec<&Resources> = own_nodes(snapshot, pool, pod).map(|(_, capacity)| capacity).collect();
        match misfit {
            // pods that are counted by others may be kept away by those
            Misfit::Topology { .. } => {
                let repelled = snapshot.pods.iter().any(|other| !other.shape.anti_affinity.is_empty());
                assert!(pod.shape.is_social() || repelled);
            }
            Misfit::MinValues { .. } => assert!(!pool.min_values.is_empty()),
            Misfit::Limit { .. } => {
                assert!(!smallest.is_empty(), "{}: pool {} could not hold it anyway", pod.key, pool.name);
                let room = smallest.iter().any(|capacity| leaves_room(snapshot, solution, pool, capacity));
                // where pods wait for room beside others, what one gives up is free for others in the next pass only
                let settled = snapshot.pods.iter().all(|pod| !pod.shape.is_social());
                assert!(!room || !settled, "{}: the limits of {} leave room", pod.key, pool.name);
            }
            Misfit::Daemon { daemon, .. } => {
                let known = snapshot.daemons.iter().find(|known| known.key == *daemon).expect("a daemon set");
                assert!(apart(snapshot, pod, known, |_| true), "{} may be near {daemon}", pod.key);
                // volumes narrow where a pod may be
                let nowhere = smallest.is_empty() || !pod.claims.is_empty();
                assert!(nowhere, "{}: {daemon} is not on all nodes of {}", pod.key, pool.name);
            }
            Misfit::HostPort { port } => {
                let daemons = snapshot.daemons.iter().any(|daemon| daemon.shape.ports.contains(port));
                assert!(daemons && pod.shape.ports.iter().any(|wanted| wanted.conflicts(port)));
            }
            Misfit::TooManyVolumes { wanted, most, .. } => {
                assert_eq!(volumes(snapshot, std::iter::once(pod)), *wanted);
                let takes = |name: &str, by_facts: Option<u32>| told(snapshot, name).or(by_facts);
                let too_few = |most: Option<u32>| most.is_some_and(|most| most < *wanted);
                assert!(wanted > most && catalogue.types().iter().all(|t| too_few(takes(&t.name, t.attachable))));
            }
            // volumes narrow where a pod may be; the judge of topology looks at them
            Misfit::Requirement { .. }
            | Misfit::NoInstanceType { .. }
            | Misfit::NamedNode { .. }
            | Misfit::Volume { .. }
                if !pod.claims.is_empty() => {}
            other => assert!(smallest.is_empty(), "{}: pool {} could hold it, but: {other}", pod.key, pool.name),
        }
    }
}

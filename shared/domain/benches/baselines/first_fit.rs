//! Karpenter's rule for packing pods on new nodes (`pkg/controllers/provisioning/scheduling` of sigs.k8s.io/karpenter: `queue.go`,
//! `scheduler.go`, `nodeclaim.go`, `topologygroup.go`), in as few words as a baseline for prices needs:
//!
//! - pods are taken in the order of most CPU, then most memory, then UID; one that fits nowhere goes to the end of the queue, until a whole
//!   round places none;
//! - a pod joins the first node, of those with the fewest pods first, on which after it some type still has room, is allowed and can be
//!   bought; else it opens a node that may be any type of the pool; a node keeps every type that still fits all its pods;
//! - zone spread takes the zone with the fewest pods among those that keep the skew and pins the node to it; zone affinity takes a zone that
//!   has such a pod; host spread counts the node alone, since a new host with none can always be made;
//! - the first required node selector term and the heaviest node preference hold until they fail; then the next are tried;
//! - at the end each node costs what its cheapest remaining type does.
//!
//! It leaves out what the inputs do not use: existing nodes, limits, daemons, ports, volumes, reservations, several pools, namespaces. Preferences
//! among pods count as given up already. A pod that asks for what it does not know (affinity by host, anti-affinity by zone) stays unplaced.

use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::sync::Arc;

use karp_domain::catalogue::{Catalogue, Market, TypeSet};
use karp_domain::cluster::{Pod, Shape, Snapshot};
use karp_domain::requirement::{Requirements, Selector};
use karp_domain::resources::{CPU, MEMORY, PODS, Resources};
use rustc_hash::FxHashMap;

const HOST: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// CPU, memory and pods, in thousandths.
type Amounts = [i64; 3];

fn amounts(of: &Resources) -> Amounts {
    [CPU, MEMORY, PODS].map(|name| of.get(name).millis())
}

fn sum(a: Amounts, b: Amounts) -> Amounts {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2]]
}

fn fits(wanted: Amounts, room: Amounts) -> bool {
    wanted.iter().zip(room).all(|(wanted, room)| *wanted <= room)
}

/// A node that the rule opened.
pub struct OpenNode {
    /// The types that it may be.
    pub types: TypeSet,
    /// The zones and capacity types in which it may be bought.
    pub market: Market,
    /// Its pods, by their place in the snapshot.
    pub pods: Vec<usize>,
    requests: Amounts,
    /// The most that any of its types has of each resource.
    largest: Amounts,
    /// How many of its pods each constraint counts.
    counts: FxHashMap<usize, u32>,
    /// Constraints that keep some of its pods apart from those that they count.
    apart: BTreeSet<usize>,
}

/// What the rule made of the pods.
pub struct FirstFit {
    /// The nodes.
    pub nodes: Vec<OpenNode>,
    /// Pods without a place, by their place in the snapshot.
    pub unplaced: Vec<usize>,
    /// Dollars per hour.
    pub price: f64,
}

/// Where pods are counted: on each host, or in each zone.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Domain {
    Zone,
    Host,
}

/// What a pod asks of others; the number names the constraint whose pods are counted.
#[derive(Clone, Copy)]
enum Rule {
    ZoneSpread { counted: usize, skew: u32, own: u32 },
    ZoneAffinity { counted: usize, own: bool },
    HostSpread { counted: usize, skew: u32, own: u32 },
    HostApart { counted: usize },
    Unknown,
}

struct Waiting {
    at: usize,
    requests: Amounts,
    shape: usize,
    /// Constraints that count it.
    counted_by: Vec<usize>,
    rules: Vec<Rule>,
}

struct Rules<'a> {
    catalogue: &'a Catalogue,
    room: Vec<Amounts>,
    constraints: Vec<(Domain, Selector)>,
    /// Pods of each constraint in each zone.
    in_zone: Vec<Vec<u32>>,
    /// What each shape may be on: by required term, then by the number of preferences given up.
    wanted: Vec<Vec<(TypeSet, Market)>>,
    nodes: Vec<OpenNode>,
}

/// Packs the pods that wait on new nodes of the only pool.
pub fn first_fit(snapshot: &Snapshot) -> FirstFit {
    let catalogue = snapshot.catalogues.values().next().expect("a catalogue");
    let room = catalogue.types().iter().map(|t| amounts(&t.allocatable())).collect();
    let mut rules =
        Rules { catalogue, room, constraints: Vec::new(), in_zone: Vec::new(), wanted: Vec::new(), nodes: Vec::new() };
    let mut queue = rules.queue(snapshot);
    // places of nodes with the number of their pods, fewest first
    let mut order: BTreeSet<(usize, usize)> = BTreeSet::new();
    let mut failures = 0;
    while failures < queue.len() {
        let Some(pod) = queue.pop_front() else { break };
        match rules.place(&pod, &order) {
            Some(node) => {
                let pods = rules.nodes[node].pods.len();
                order.remove(&(pods - 1, node));
                order.insert((pods, node));
                failures = 0;
            }
            None => {
                queue.push_back(pod);
                failures += 1;
            }
        }
    }
    let price = rules.nodes.iter().map(|node| {
        let prices = node.types.ones().filter_map(|at| catalogue.cheapest(at, node.market));
        prices.min().map_or(0.0, karp_domain::catalogue::Price::dollars)
    });
    FirstFit { price: price.sum(), unplaced: queue.iter().map(|pod| pod.at).collect(), nodes: rules.nodes }
}

impl Rules<'_> {
    fn queue(&mut self, snapshot: &Snapshot) -> VecDeque<Waiting> {
        let pool = &snapshot.pools[0].requirements;
        let mut shapes: FxHashMap<Arc<Shape>, usize> = FxHashMap::default();
        let mut waiting = Vec::new();
        for (at, pod) in snapshot.pods.iter().enumerate().filter(|(_, pod)| pod.is_provisionable()) {
            let shape = *shapes.entry(pod.shape.clone()).or_insert_with(|| {
                self.wanted.push(wishes(&pod.shape).map(|wish| self.catalogue.select(&pool.and(&wish))).collect());
                self.wanted.len() - 1
            });
            let (requests, rules) = (amounts(&pod.shape.requests), self.rules_of(pod));
            waiting.push(Waiting { at, requests, shape, counted_by: Vec::new(), rules });
        }
        for pod in &mut waiting {
            let labels = &snapshot.pods[pod.at].labels;
            let counting = self.constraints.iter().enumerate().filter(|(_, (_, selector))| selector.matches(labels));
            pod.counted_by = counting.map(|(at, _)| at).collect();
        }
        let uid = |pod: &Waiting| snapshot.pods[pod.at].uid.clone();
        waiting.sort_by(|a, b| {
            (b.requests[0], b.requests[1]).cmp(&(a.requests[0], a.requests[1])).then_with(|| uid(a).cmp(&uid(b)))
        });
        waiting.into()
    }

    fn constraint(&mut self, domain: Domain, selector: &Selector) -> usize {
        let known = self.constraints.iter().position(|(d, s)| *d == domain && s == selector);
        known.unwrap_or_else(|| {
            self.constraints.push((domain, selector.clone()));
            self.in_zone.push(vec![0; self.catalogue.zones().len()]);
            self.constraints.len() - 1
        })
    }

    fn rules_of(&mut self, pod: &Pod) -> Vec<Rule> {
        let mut rules = Vec::new();
        for spread in pod.shape.spread.iter().filter(|spread| spread.required) {
            let Some(selector) = &spread.selector else { continue };
            let (skew, own) = (spread.max_skew, u32::from(selector.matches(&pod.labels)));
            rules.push(match &*spread.key {
                ZONE => Rule::ZoneSpread { counted: self.constraint(Domain::Zone, selector), skew, own },
                HOST => Rule::HostSpread { counted: self.constraint(Domain::Host, selector), skew, own },
                _ => Rule::Unknown,
            });
        }
        for (term, apart) in
            pod.shape.affinity.iter().map(|t| (t, false)).chain(pod.shape.anti_affinity.iter().map(|t| (t, true)))
        {
            let Some(selector) = &term.selector else { continue };
            let own = selector.matches(&pod.labels);
            rules.push(match (&*term.key, apart) {
                (ZONE, false) => Rule::ZoneAffinity { counted: self.constraint(Domain::Zone, selector), own },
                (HOST, true) => Rule::HostApart { counted: self.constraint(Domain::Host, selector) },
                _ => Rule::Unknown,
            });
        }
        rules
    }

    /// Places a pod, giving up its wishes one after another, and answers its node.
    fn place(&mut self, pod: &Waiting, order: &BTreeSet<(usize, usize)>) -> Option<usize> {
        for wish in 0..self.wanted[pod.shape].len() {
            for (_, node) in order {
                if let Some((types, market)) = self.join(pod, wish, Some(*node)) {
                    self.commit(pod, *node, types, market);
                    return Some(*node);
                }
            }
            if let Some((types, market)) = self.join(pod, wish, None) {
                self.nodes.push(OpenNode {
                    types: TypeSet::new(),
                    market,
                    pods: Vec::new(),
                    requests: [0; 3],
                    largest: [0; 3],
                    counts: FxHashMap::default(),
                    apart: BTreeSet::new(),
                });
                self.commit(pod, self.nodes.len() - 1, types, market);
                return Some(self.nodes.len() - 1);
            }
        }
        None
    }

    /// Answers what a node may be once the pod has joined it, or a new node if none is named.
    fn join(&self, pod: &Waiting, wish: usize, node: Option<usize>) -> Option<(TypeSet, Market)> {
        let node = node.map(|at| &self.nodes[at]);
        let requests = node.map_or(pod.requests, |node| sum(node.requests, pod.requests));
        if node.is_some_and(|node| !fits(requests, node.largest)) || !self.keeps_apart(pod, node) {
            return None;
        }
        let (wanted, allowed) = &self.wanted[pod.shape][wish];
        let market = self.pin(pod, node.map_or(*allowed, |node| node.market.and(*allowed)))?;
        let mut types = wanted.clone();
        if let Some(node) = node {
            types.intersect_with(&node.types);
        }
        types.intersect_with(&self.catalogue.offered(market));
        let small: Vec<usize> = types.ones().filter(|at| !fits(requests, self.room[*at])).collect();
        small.into_iter().for_each(|at| types.set(at, false));
        (!types.is_clear()).then_some((types, market))
    }

    /// Says whether the rules by host hold on a node once the pod has joined it.
    fn keeps_apart(&self, pod: &Waiting, node: Option<&OpenNode>) -> bool {
        let count = |counted: &usize| node.and_then(|node| node.counts.get(counted).copied()).unwrap_or(0);
        let refused = pod.counted_by.iter().any(|counted| node.is_some_and(|node| node.apart.contains(counted)));
        !refused
            && pod.rules.iter().all(|rule| match rule {
                Rule::HostSpread { counted, skew, own } => count(counted) + own <= *skew,
                Rule::HostApart { counted } => count(counted) == 0,
                Rule::Unknown => false,
                Rule::ZoneSpread { .. } | Rule::ZoneAffinity { .. } => true,
            })
    }

    /// Narrows a market to the one zone that each rule by zone takes.
    fn pin(&self, pod: &Waiting, mut market: Market) -> Option<Market> {
        for rule in &pod.rules {
            let open = |zone: &usize| market.zones >> *zone & 1 == 1;
            let zones = 0..self.catalogue.zones().len();
            let zone = match rule {
                Rule::ZoneSpread { counted, skew, own } => {
                    let counts = &self.in_zone[*counted];
                    // a pod may be in any zone of the pool that it names: nodes narrow where it goes, not what is counted
                    let any = self.wanted[pod.shape].iter().fold(0, |zones, (_, market)| zones | market.zones);
                    let least = zones.clone().filter(|zone| any >> zone & 1 == 1).map(|zone| counts[zone]).min()?;
                    zones
                        .filter(open)
                        .filter(|zone| counts[*zone] + own <= least + skew)
                        .min_by_key(|zone| counts[*zone])?
                }
                Rule::ZoneAffinity { counted, own } => {
                    let counts = &self.in_zone[*counted];
                    let first = *own && counts.iter().all(|count| *count == 0);
                    zones.filter(open).find(|zone| first || counts[*zone] > 0)?
                }
                _ => continue,
            };
            market.zones &= 1 << zone;
        }
        Some(market)
    }

    fn commit(&mut self, pod: &Waiting, at: usize, types: TypeSet, market: Market) {
        let node = &mut self.nodes[at];
        node.requests = sum(node.requests, pod.requests);
        node.largest = types.ones().fold([0; 3], |most, at| std::array::from_fn(|i| most[i].max(self.room[at][i])));
        (node.types, node.market) = (types, market);
        node.pods.push(pod.at);
        let known = self.catalogue.zones().len();
        let pinned = (0..known).filter(|zone| market.zones >> zone & 1 == 1).collect::<Vec<_>>();
        for counted in &pod.counted_by {
            match (self.constraints[*counted].0, pinned.as_slice()) {
                (Domain::Host, _) => *node.counts.entry(*counted).or_default() += 1,
                // as in Karpenter, a pod counts in a zone once its node can be in no other
                (Domain::Zone, [zone]) => self.in_zone[*counted][*zone] += 1,
                (Domain::Zone, _) => {}
            }
        }
        let apart = pod.rules.iter().filter_map(|rule| match rule {
            Rule::HostApart { counted } => Some(*counted),
            _ => None,
        });
        node.apart.extend(apart);
    }
}

/// What a shape asks of labels, the strictest first: each required term with the heaviest preference, then the preferences less one by one.
fn wishes(shape: &Shape) -> impl Iterator<Item = Requirements> + '_ {
    (0..=shape.preferred.len()).flat_map(move |given_up| {
        let preferred = shape.preferred.get(given_up);
        shape.alternatives.iter().map(move |term| preferred.map_or_else(|| term.clone(), |wish| term.and(&wish.term)))
    })
}

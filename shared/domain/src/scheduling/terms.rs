//! What pods ask of each other, interned: each distinct question "how many such pods are in this domain" is one counter.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::hashed::Hashed;
use super::problem::HostState;
use super::wants::{Asks, Rule};
use crate::api::labels;
use crate::cluster::{DaemonSet, HostPort, Namespaces, Pod, PodKey, PodTerm, Shape, Snapshot, Spread};
use crate::requirement::{Requirement, Requirements, Selector};
use crate::taint::{Taint, Toleration};

/// Place of a counter in [`Terms`].
pub(crate) type CounterId = usize;

/// Place of a class in [`Terms`].
pub(crate) type ClassId = usize;

/// Counts pods of some kind, by the values of a node's label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Counter {
    /// The label.
    pub(crate) key: Arc<str>,
    /// Which pods.
    pub(crate) of: Counted,
}

/// Which pods a counter counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Counted {
    /// Those that a selector means, on nodes that pass a filter; those must be meant by all of the others, too.
    Selected { selector: Option<Selector>, namespaces: Namespaces, filter: Option<Filter>, others: Vec<Meant> },
    /// Those that must not be near the pods that a selector means.
    Owners { selector: Option<Selector>, namespaces: Namespaces },
    /// Those that take a port of the node.
    Port(HostPort),
}

/// Pods that a term means.
pub(crate) type Meant = (Option<Selector>, Namespaces);

/// Which nodes count for a spread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Filter {
    /// Any of these must hold; none when labels do not matter.
    pub(crate) alternatives: Option<Vec<Requirements>>,
    /// Taints must be tolerated by these; none when taints do not matter.
    pub(crate) tolerations: Option<Vec<Toleration>>,
}

impl Filter {
    /// Says whether nodes with these taints count, as far as taints matter.
    pub(crate) fn admits_taints(&self, taints: &[Taint]) -> bool {
        self.tolerations.as_ref().is_none_or(|tolerations| taints.iter().all(|taint| taint.admits(tolerations)))
    }
}

/// A pod's labels.
type HashedLabels<'a> = Hashed<'a, BTreeMap<String, String>>;

/// Counters and classes of a cluster's pods. Pods of one class are counted alike.
#[derive(Debug, Default)]
pub(crate) struct Terms<'a> {
    pub(crate) counters: Vec<Counter>,
    ids: FxHashMap<Counter, CounterId>,
    /// What is asked for most, found without making a counter to look for.
    asked: Asked<'a>,
    /// By counter of pods that are meant, the one of those that must not be near them.
    owners_of: Vec<Option<CounterId>>,
    /// Counters by one label that their pods must have.
    by_label: FxHashMap<(String, String), Vec<CounterId>>,
    /// Counters whose selectors name no such label.
    others: Vec<CounterId>,
    classes: Vec<SmallVec<[CounterId; 4]>>,
    class_ids: FxHashMap<SmallVec<[CounterId; 4]>, ClassId>,
    /// Labels that nodes may be without, of those over which pods must spread that must spread over several.
    partial: FxHashSet<Arc<str>>,
    by_labels: FxHashMap<(&'a str, HashedLabels<'a>), ClassId>,
}

/// Counters by what asks for them.
#[derive(Debug, Default)]
struct Asked<'a> {
    /// Spreads that look at all nodes, by the namespace of their pods.
    spreads: FxHashMap<(&'a str, &'a Spread), CounterId>,
    meant: FxHashMap<&'a PodTerm, CounterId>,
    owners: FxHashMap<&'a PodTerm, CounterId>,
}

impl<'a> Terms<'a> {
    /// Collects the terms of all pods that are or will be on nodes, and says which pods they count.
    pub(crate) fn of(snapshot: &'a Snapshot, hosts: &[HostState]) -> Self {
        let mut terms = Terms::default();
        terms.class(SmallVec::new());
        // counters are numbered by the first pod of each shape in the order of keys, so that the order of the input does not matter
        let mut first: FxHashMap<(&str, Hashed<'_, Shape>), &PodKey> = FxHashMap::default();
        for pod in snapshot.pods.iter().filter(|pod| pod.shape.is_social() || !pod.shape.ports.is_empty()) {
            let shape = Hashed::new(pod.digest.shape, &*pod.shape);
            let known = first.entry((&pod.key.namespace, shape)).or_insert(&pod.key);
            *known = (*known).min(&pod.key);
        }
        let apart = snapshot.daemons.iter().filter(|daemon| !daemon.shape.anti_affinity.is_empty());
        let mut shapes: Vec<(bool, &PodKey, &Shape)> =
            first.into_iter().map(|((_, shape), key)| (false, key, shape.value)).collect();
        shapes.extend(apart.map(|daemon| (true, &daemon.key, &*daemon.shape)));
        shapes.sort_unstable_by_key(|(of_daemon, key, _)| (*of_daemon, *key));
        terms.partial = partial_labels(shapes.iter().map(|(.., shape)| *shape), hosts);
        for (_, key, shape) in shapes {
            terms.intern(shape, &key.namespace);
        }
        if terms.counters.is_empty() {
            return terms;
        }
        terms.owners_of = terms.counters.iter().map(|counter| terms.owners_of(counter)).collect();
        for (id, counter) in terms.counters.iter().enumerate() {
            if let Counted::Selected { selector: Some(selector), .. } = &counter.of {
                match selector.one_equal() {
                    Some((key, value)) => {
                        terms.by_label.entry((key.to_owned(), value.to_owned())).or_default().push(id);
                    }
                    None => terms.others.push(id),
                }
            }
        }
        for pod in &snapshot.pods {
            let key = (&*pod.key.namespace, Hashed::new(pod.digest.labels, &*pod.labels));
            if !terms.by_labels.contains_key(&key) {
                let counted = terms.counted(snapshot, &pod.key.namespace, &pod.labels);
                let class = terms.class(counted);
                terms.by_labels.insert(key, class);
            }
        }
        terms
    }

    fn intern(&mut self, shape: &'a Shape, namespace: &'a str) {
        for spread in &shape.spread {
            if self.spread(shape, spread, namespace).is_none() {
                let filter = self.nodes_looked_at(shape, spread);
                let looks_at_all = filter.is_none();
                let id = self.id(spread_counter(spread, namespace, filter));
                if looks_at_all {
                    self.asked.spreads.insert((namespace, spread), id);
                }
            }
        }
        for term in &shape.affinity {
            if self.meant_by_all(shape, term).is_none() {
                self.id(selected_by_all(shape, term));
            }
        }
        let preferred = shape.preferred_affinity.iter().chain(&shape.preferred_anti_affinity).map(|p| &p.term);
        let alone = shape.affinity.iter().filter(|_| shape.affinity.len() == 1);
        for term in shape.anti_affinity.iter().chain(preferred).chain(alone) {
            if !self.asked.meant.contains_key(term) {
                let id = self.id(selected(term));
                self.asked.meant.insert(term, id);
            }
        }
        for term in &shape.anti_affinity {
            if !self.asked.owners.contains_key(term) {
                let id = self.id(owners(term));
                self.asked.owners.insert(term, id);
            }
        }
        for port in &shape.ports {
            self.id(port_counter(port));
        }
    }

    fn id(&mut self, counter: Counter) -> CounterId {
        if let Some(id) = self.ids.get(&counter) {
            return *id;
        }
        self.counters.push(counter.clone());
        self.ids.insert(counter, self.counters.len() - 1);
        self.counters.len() - 1
    }

    fn class(&mut self, counted: SmallVec<[CounterId; 4]>) -> ClassId {
        if let Some(class) = self.class_ids.get(&counted) {
            return *class;
        }
        self.classes.push(counted.clone());
        self.class_ids.insert(counted, self.classes.len() - 1);
        self.classes.len() - 1
    }

    /// The selecting counters that count a pod with these labels, in order.
    fn counted(
        &self,
        snapshot: &Snapshot,
        namespace: &str,
        pod_labels: &BTreeMap<String, String>,
    ) -> SmallVec<[CounterId; 4]> {
        let means = |id: &CounterId| match &self.counters[*id].of {
            Counted::Selected { selector: Some(selector), namespaces, others, .. } => {
                let matches = |selector: &Selector, namespaces: &Namespaces| {
                    selector.matches(pod_labels) && namespaces.contain(namespace, &snapshot.namespaces)
                };
                let other = |(selector, namespaces): &Meant| {
                    selector.as_ref().is_some_and(|selector| matches(selector, namespaces))
                };
                matches(selector, namespaces) && others.iter().all(other)
            }
            _ => false,
        };
        let pairs = pod_labels.iter().map(|(key, value)| (key.clone(), value.clone()));
        let likely = pairs.filter_map(|pair| self.by_label.get(&pair)).flatten().chain(&self.others);
        let mut counted: SmallVec<[CounterId; 4]> = likely.copied().filter(means).collect();
        counted.sort_unstable();
        counted
    }

    /// Answers which nodes a counter looks at, where it does not look at all.
    pub(crate) fn filter(&self, counter: CounterId) -> Option<&Filter> {
        match &self.counters[counter].of {
            Counted::Selected { filter, .. } => filter.as_ref(),
            _ => None,
        }
    }

    /// Answers the class of a pod: pods of one class are counted by the same selectors.
    pub(crate) fn class_of(&self, pod: &Pod) -> ClassId {
        self.by_labels
            .get(&(&*pod.key.namespace, Hashed::new(pod.digest.labels, &*pod.labels)))
            .copied()
            .unwrap_or_default()
    }

    /// Answers the counters that count pods of a class because a selector means them.
    pub(crate) fn selecting(&self, class: ClassId) -> &[CounterId] {
        &self.classes[class]
    }

    /// Answers the counters that count a pod because of what it asks for itself.
    pub(crate) fn owned<'s>(&'s self, shape: &'s Shape) -> impl Iterator<Item = CounterId> + 's {
        let owners = shape.anti_affinity.iter().filter_map(|term| self.owning(term));
        owners.chain(shape.ports.iter().filter_map(|port| self.find(&port_counter(port))))
    }

    /// Answers every counter that counts a pod.
    pub(crate) fn counting(&self, pod: &Pod) -> SmallVec<[CounterId; 6]> {
        let mut all: SmallVec<[CounterId; 6]> = self.selecting(self.class_of(pod)).iter().copied().collect();
        all.extend(self.owned(&pod.shape));
        all
    }

    /// Answers every counter that counts the pods of a daemon set.
    pub(crate) fn counting_daemon(&self, snapshot: &Snapshot, daemon: &DaemonSet) -> SmallVec<[CounterId; 4]> {
        let mut all = self.counted(snapshot, &daemon.key.namespace, &daemon.labels);
        all.extend(self.owned(&daemon.shape));
        all
    }

    pub(crate) fn find(&self, counter: &Counter) -> Option<CounterId> {
        self.ids.get(counter).copied()
    }

    /// Answers the counter that a spread constraint looks at.
    pub(crate) fn spread(&self, shape: &Shape, spread: &Spread, namespace: &str) -> Option<CounterId> {
        match self.nodes_looked_at(shape, spread) {
            Some(filter) => self.find(&spread_counter(spread, namespace, Some(filter))),
            None => self.asked.spreads.get(&(namespace, spread)).copied(),
        }
    }

    /// The nodes that a spread constraint looks at, where those are not all. Which they are does not matter where each is a domain.
    fn nodes_looked_at(&self, shape: &Shape, spread: &Spread) -> Option<Filter> {
        if &*spread.key == labels::HOSTNAME {
            return None;
        }
        let alternatives = labels_looked_at(shape, spread.honors_affinity, &self.labels_beside(shape, spread));
        let tolerations = spread.honors_taints.then(|| shape.tolerations.clone());
        (alternatives.is_some() || tolerations.is_some()).then_some(Filter { alternatives, tolerations })
    }

    /// The labels that a node must have beside its own to count for a spread that must hold: kube-scheduler leaves out nodes that lack the label
    /// of any such constraint of the pod (`nodeLabelsMatchSpreadConstraints`). Labels that all nodes have are not named.
    pub(crate) fn labels_beside(&self, shape: &Shape, spread: &Spread) -> Requirements {
        let firm = |other: &&Spread| spread.required && other.required && other.key != spread.key;
        let others = shape.spread.iter().filter(|_| !self.partial.is_empty()).filter(firm);
        others.filter(|other| self.partial.contains(&other.key)).map(|other| Requirement::exists(&other.key)).collect()
    }

    /// Answers the counter of the pods that a term means.
    pub(crate) fn meant(&self, term: &PodTerm) -> Option<CounterId> {
        self.asked.meant.get(term).copied()
    }

    /// Answers the counter of the pods that a required affinity term looks for.
    pub(crate) fn meant_by_all(&self, shape: &Shape, term: &PodTerm) -> Option<CounterId> {
        match shape.affinity.as_slice() {
            [_] => self.meant(term),
            _ => self.find(&selected_by_all(shape, term)),
        }
    }

    /// Answers the counter of the pods that own an anti-affinity term.
    pub(crate) fn owning(&self, term: &PodTerm) -> Option<CounterId> {
        self.asked.owners.get(term).copied()
    }

    /// Answers the counter of the pods that must not be near those of another.
    pub(crate) fn shunning(&self, counter: CounterId) -> Option<CounterId> {
        self.owners_of[counter]
    }

    fn owners_of(&self, counter: &Counter) -> Option<CounterId> {
        let Counted::Selected { selector, namespaces, filter: None, others } = &counter.of else { return None };
        let of = Counted::Owners { selector: selector.clone(), namespaces: namespaces.clone() };
        others.is_empty().then(|| self.find(&Counter { key: counter.key.clone(), of })).flatten()
    }

    /// Describes a rule in words that name the constraint, in Karpenter's terms.
    pub(crate) fn describe(&self, rule: &Rule) -> String {
        let counter = &self.counters[rule.counter];
        let kind = match (rule.asks, &counter.of) {
            (Asks::Spread { .. }, _) => "topology spread",
            (Asks::Near, _) => "pod affinity",
            (Asks::Apart, Counted::Port(_)) => "host port",
            (Asks::Apart, Counted::Owners { .. }) => "anti-affinity of other pods",
            (Asks::Apart, Counted::Selected { .. }) => "pod anti-affinity",
        };
        let of = match &counter.of {
            Counted::Selected { selector: Some(selector), .. } | Counted::Owners { selector: Some(selector), .. } => {
                format!(", pods {selector}")
            }
            Counted::Port(port) => format!(", port {port}"),
            _ => String::new(),
        };
        let skew = match rule.asks {
            Asks::Spread { skew, .. } => format!(", maxSkew={skew}"),
            _ => String::new(),
        };
        format!("{kind}, key={}{skew}{of}", counter.key)
    }

    /// Says which pods a rule is about: `app=x in namespace default`.
    pub(crate) fn pods_of(&self, rule: &Rule) -> String {
        let counter = &self.counters[rule.counter];
        let (Counted::Selected { selector, namespaces, .. } | Counted::Owners { selector, namespaces }) = &counter.of
        else {
            return "any selector".to_owned();
        };
        let selector = match selector {
            None => "an affinity without labelSelector".to_owned(),
            Some(selector) if selector.is_empty() => "any label".to_owned(),
            Some(selector) => selector.to_string(),
        };
        format!("{selector} in {namespaces}")
    }

    /// Says whether a counter counts by node: its label is the host name.
    pub(crate) fn is_by_host(&self, counter: CounterId) -> bool {
        &*self.counters[counter].key == labels::HOSTNAME
    }
}

/// Labels that every node has which is made.
const ALWAYS_MADE: [&str; 7] = [
    labels::ZONE,
    labels::ZONE_ID,
    labels::CAPACITY_TYPE,
    labels::INSTANCE_TYPE,
    labels::NODE_POOL,
    labels::ARCH,
    labels::OS,
];

/// The labels over which pods must spread that must spread over several, and which nodes may be without. Every node has its name.
fn partial_labels<'s>(shapes: impl Iterator<Item = &'s Shape>, hosts: &[HostState]) -> FxHashSet<Arc<str>> {
    let several = shapes.filter(|shape| shape.spread.len() > 1).flat_map(|shape| &shape.spread);
    let keys: FxHashSet<&Arc<str>> = several.filter(|spread| spread.required).map(|spread| &spread.key).collect();
    let partial = |key: &&Arc<str>| {
        let key: &str = key;
        let made = ALWAYS_MADE.contains(&key);
        key != labels::HOSTNAME && (!made || hosts.iter().any(|host| host.lacks(key)))
    };
    keys.into_iter().filter(partial).cloned().collect()
}

/// What a spread asks of the labels of nodes at which it looks; none where it looks at all. `beside` are labels that they must have as well.
pub(crate) fn labels_looked_at(
    shape: &Shape,
    honors_affinity: bool,
    beside: &Requirements,
) -> Option<Vec<Requirements>> {
    let plain = || shape.alternatives.iter().any(Requirements::is_empty);
    match (honors_affinity && !plain(), beside.is_empty()) {
        (true, true) => Some(shape.alternatives.clone()),
        (true, false) => Some(shape.alternatives.iter().map(|own| own.and(beside)).collect()),
        (false, true) => None,
        (false, false) => Some(vec![beside.clone()]),
    }
}

fn spread_counter(spread: &Spread, namespace: &str, filter: Option<Filter>) -> Counter {
    let namespaces = Namespaces::only(namespace);
    let selector = spread.selector.clone();
    Counter { key: spread.key.clone(), of: Counted::Selected { selector, namespaces, filter, others: Vec::new() } }
}

fn selected(term: &PodTerm) -> Counter {
    let (selector, namespaces) = (term.selector.clone(), term.namespaces.clone());
    let of = Counted::Selected { selector, namespaces, filter: None, others: Vec::new() };
    Counter { key: term.key.clone(), of }
}

/// To kube-scheduler a required affinity term looks for the pods that all such terms of the pod mean (`podMatchesAllAffinityTerms`), each in
/// the domain of its own label.
fn selected_by_all(shape: &Shape, term: &PodTerm) -> Counter {
    let mut counter = selected(term);
    if let Counted::Selected { others, .. } = &mut counter.of {
        let meant = |term: &PodTerm| (term.selector.clone(), term.namespaces.clone());
        let own = meant(term);
        others.extend(shape.affinity.iter().map(meant).filter(|other| *other != own));
        others.sort();
        others.dedup();
    }
    counter
}

fn owners(term: &PodTerm) -> Counter {
    let (selector, namespaces) = (term.selector.clone(), term.namespaces.clone());
    Counter { key: term.key.clone(), of: Counted::Owners { selector, namespaces } }
}

/// Answers the counter of the pods that take a port.
pub(crate) fn port_counter(port: &HostPort) -> Counter {
    Counter { key: labels::HOSTNAME.into(), of: Counted::Port(port.clone()) }
}

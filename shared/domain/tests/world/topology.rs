//! A judge of what pods ask of each other and of their node's place: topology spread, pod affinity and anti-affinity in both directions,
//! host ports, volumes. Written from Kubernetes' rules over the API's objects; it reads neither the engine's shapes nor its code.
//!
//! kube-scheduler places one pod after the other and the answer names no order, so each check is one that every order has to meet.

use std::collections::{BTreeMap, BTreeSet};

use karp_domain::cluster::{PodKey, Snapshot};
use karp_domain::scheduling::{InFlightNode, Solution, Target, solve};
use serde_json::Value;

use super::judge::{judge as judge_room, labels_of};
use super::{TYPES, catalogue, snapshot};

type Labels = BTreeMap<String, String>;
/// What is wrong, if anything is.
type Verdict = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($fault:tt)+) => {
        if !$holds {
            return Err(format!($($fault)+));
        }
    };
}

/// How many combinations of offerings are judged: nodes may still become any of theirs.
const MOST_OUTCOMES: usize = 64;

/// A node as it may turn out.
struct Place {
    labels: Labels,
    taints: Vec<Value>,
    is_new: bool,
    /// Labels of which it is open what the node will have.
    open: BTreeSet<String>,
}

/// A pod on its node.
struct Seated<'o> {
    pod: &'o Value,
    node: usize,
    is_new: bool,
}

/// One outcome: every node settled, every pod seated.
struct Outcome<'o> {
    places: Vec<Place>,
    pods: Vec<Seated<'o>>,
    objects: &'o [Value],
}

/// Answers what is decided of these objects with the types at hand, judged for room and for topology.
pub fn judged(objects: &[Value]) -> Solution {
    let snapshot = snapshot(objects, catalogue(TYPES));
    let solution = solve(&snapshot);
    judge_room(&snapshot, &solution);
    judge(objects, &snapshot, &solution);
    solution
}

/// Panics with the fault, if there is one, in any of the ways in which the planned nodes may turn out.
pub fn judge(objects: &[Value], snapshot: &Snapshot, solution: &Solution) {
    for outcome in outcomes(objects, snapshot, solution) {
        if let Err(fault) = outcome.judge() {
            panic!("{fault}");
        }
    }
}

/// Whether a pod that is not placed could go to a node of its own with these labels, whatever the planned nodes turn out to be: kube-scheduler
/// would take it there after all others, and all of them stay right.
pub fn takes_one_more(
    objects: &[Value],
    (snapshot, solution): (&Snapshot, &Solution),
    pod: &PodKey,
    (pool, labels): (&str, &Labels),
) -> bool {
    let mut pods = objects.iter().filter(|object| object["kind"] == "Pod");
    let pod = pods.find(|one| (namespace(one), name(one)) == (&*pod.namespace, &*pod.name)).expect("a pod that exists");
    let possible = possible(objects, snapshot);
    outcomes(objects, snapshot, solution).all(|mut outcome| {
        let mut labels = labels.clone();
        labels.insert("kubernetes.io/hostname".to_owned(), "one-more".to_owned());
        outcome.places.push(Place { labels, taints: taints_of(objects, pool), is_new: true, open: BTreeSet::new() });
        let node = outcome.places.len() - 1;
        let accepted = outcome.accepts(pod, node, &possible);
        let free = !outcome.meets_a_daemon(pod, node);
        outcome.pods.push(Seated { pod, node, is_new: true });
        accepted && free && outcome.judge().is_ok()
    })
}

/// Nodes that pools could make, of which none is made.
fn possible(objects: &[Value], snapshot: &Snapshot) -> Vec<Place> {
    let mut places = Vec::new();
    for pool in &snapshot.pools {
        let taints = taints_of(objects, &pool.name);
        let types = snapshot.catalogues.get(&pool.class.name).into_iter().flat_map(|catalogue| catalogue.types());
        for (t, o) in types.flat_map(|t| t.offerings.iter().map(move |o| (t, o))) {
            let mut labels = labels_of(pool, t, &o.zone.name, &o.zone.id, o.capacity_type);
            labels.insert("kubernetes.io/hostname".to_owned(), "possible".to_owned());
            if pool.requirements.iter().all(|r| labels.get(r.key()).is_none_or(|value| r.admits(value))) {
                places.push(Place { labels, taints: taints.clone(), is_new: true, open: BTreeSet::new() });
            }
        }
    }
    places
}

/// The ways in which planned nodes may turn out, or a sample of them.
fn outcomes<'o>(
    objects: &'o [Value],
    snapshot: &'o Snapshot,
    solution: &'o Solution,
) -> impl Iterator<Item = Outcome<'o>> {
    let choices: Vec<Vec<Labels>> = solution.nodes.iter().map(|node| choices(snapshot, node)).collect();
    let total: usize = choices.iter().map(Vec::len).fold(1, usize::saturating_mul);
    (0..total.min(MOST_OUTCOMES)).map(move |at| {
        // spread the sample over all combinations
        let mut rest = if total > MOST_OUTCOMES { at * (total / MOST_OUTCOMES) } else { at };
        let mut picked = Vec::with_capacity(choices.len());
        for (node, choices) in choices.iter().enumerate() {
            let mut labels = choices[rest % choices.len()].clone();
            rest /= choices.len();
            labels.insert("kubernetes.io/hostname".to_owned(), format!("new-{node}"));
            picked.push(labels);
        }
        Outcome::new(objects, snapshot, solution, picked)
    })
}

/// The taints of the nodes of a pool.
fn taints_of(objects: &[Value], pool: &str) -> Vec<Value> {
    let mut pools = objects.iter().filter(|object| object["kind"] == "NodePool");
    let pool = pools.find(|object| name(object) == pool).expect("a pool that exists");
    list(&pool["spec"]["template"]["spec"]["taints"]).to_vec()
}

/// The labels that a planned node may get, one for each zone and capacity type.
fn choices(snapshot: &Snapshot, node: &InFlightNode) -> Vec<Labels> {
    let pool = snapshot.pool(&node.pool).expect("a pool that exists");
    let catalogue = &snapshot.catalogues[&pool.class.name];
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for offering in node.offerings.iter() {
        if seen.insert((&offering.zone.name, offering.capacity_type)) {
            let t = catalogue.get(&offering.instance_type).expect("a known type");
            let mut labels = labels_of(pool, t, &offering.zone.name, &offering.zone.id, offering.capacity_type);
            labels.extend(node.requirements.settled_labels());
            all.push(labels);
        }
    }
    all
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn strings(value: &Value) -> Labels {
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    value.as_object().into_iter().flatten().filter_map(text).collect()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or("default")
}

/// The rule of one expression of a selector or of node affinity.
fn expression_holds(expression: &Value, labels: &Labels) -> bool {
    let label = labels.get(expression["key"].as_str().unwrap_or_default()).map(String::as_str);
    let values: Vec<&str> = list(&expression["values"]).iter().filter_map(Value::as_str).collect();
    let number = |text: &str| text.parse::<i64>().ok();
    let bound = values.first().copied().and_then(number);
    match expression["operator"].as_str().unwrap_or_default() {
        "In" => label.is_some_and(|label| values.contains(&label)),
        "NotIn" => label.is_none_or(|label| !values.contains(&label)),
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        "Gt" => label.and_then(number).zip(bound).is_some_and(|(label, bound)| label > bound),
        "Lt" => label.and_then(number).zip(bound).is_some_and(|(label, bound)| label < bound),
        other => panic!("no such operator: {other}"),
    }
}

/// A selector that is missing selects nothing, an empty one everything.
fn selects(selector: &Value, labels: &Labels) -> bool {
    !selector.is_null()
        && strings(&selector["matchLabels"]).iter().all(|(key, value)| labels.get(key) == Some(value))
        && list(&selector["matchExpressions"]).iter().all(|expression| expression_holds(expression, labels))
}

/// Node selector terms: any of them, each with at least one expression.
fn terms_hold(terms: &Value, labels: &Labels) -> bool {
    list(terms).iter().any(|term| {
        let expressions = list(&term["matchExpressions"]);
        !expressions.is_empty() && expressions.iter().all(|expression| expression_holds(expression, labels))
    })
}

/// Whether a pod's node selector and required node affinity take a node.
fn takes_node(pod: &Value, labels: &Labels) -> bool {
    let required =
        &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    strings(&pod["spec"]["nodeSelector"]).iter().all(|(key, value)| labels.get(key) == Some(value))
        && (required.is_null() || terms_hold(required, labels))
}

fn tolerates(pod: &Value, taints: &[Value]) -> bool {
    let tolerated = |taint: &Value| {
        list(&pod["spec"]["tolerations"]).iter().any(|toleration| {
            let key = toleration["key"].as_str().unwrap_or_default();
            let by_value = toleration["operator"].as_str() != Some("Exists");
            (key.is_empty() && !by_value || Some(key) == taint["key"].as_str())
                && toleration["effect"].as_str().is_none_or(|effect| Some(effect) == taint["effect"].as_str())
                && (!by_value
                    || toleration["value"].as_str().unwrap_or_default() == taint["value"].as_str().unwrap_or_default())
        })
    };
    taints.iter().filter(|taint| taint["effect"] != "PreferNoSchedule").all(tolerated)
}

/// The pods that a spread counts, by their labels.
fn counted_by(constraint: &Value, own: &Labels) -> Value {
    let mut selector = constraint["labelSelector"].clone();
    for label in list(&constraint["matchLabelKeys"]).iter().filter_map(Value::as_str) {
        if let Some(value) = own.get(label) {
            selector["matchLabels"][label] = Value::from(value.as_str());
        }
    }
    selector
}

/// Whether a selector of a spread is empty: kube-scheduler counts no pod by that.
fn selects_all(selector: &Value) -> bool {
    list(&selector["matchExpressions"]).is_empty()
        && selector["matchLabels"].as_object().is_none_or(|all| all.is_empty())
}

/// Whether a spread looks at a node: one that has the labels of all constraints of the pod that must hold.
fn counts_place(constraint: &Value, pod: &Value, place: &Place) -> bool {
    let constraints = list(&pod["spec"]["topologySpreadConstraints"]).iter();
    let mut firm = constraints.filter(|one| one["whenUnsatisfiable"] == "DoNotSchedule");
    if !firm.all(|one| place.labels.contains_key(one["topologyKey"].as_str().unwrap_or_default())) {
        return false;
    }
    let affinity = constraint["nodeAffinityPolicy"] == "Ignore" || takes_node(pod, &place.labels);
    affinity && (constraint["nodeTaintsPolicy"] != "Honor" || tolerates(pod, &place.taints))
}

/// The label by whose values a term tells domains.
fn key_of(term: &Value) -> &str {
    term["topologyKey"].as_str().unwrap_or_default()
}

fn required_terms<'p>(pod: &'p Value, kind: &str) -> &'p [Value] {
    list(&pod["spec"]["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"])
}

impl<'o> Outcome<'o> {
    fn new(objects: &'o [Value], snapshot: &Snapshot, solution: &Solution, picked: Vec<Labels>) -> Self {
        let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        let mut places = Vec::new();
        let mut at: BTreeMap<String, usize> = BTreeMap::new();
        for node in of_kind("Node") {
            at.insert(name(node).to_owned(), places.len());
            let labels = strings(&node["metadata"]["labels"]);
            places.push(Place {
                labels,
                taints: list(&node["spec"]["taints"]).to_vec(),
                is_new: false,
                open: BTreeSet::new(),
            });
        }
        let first = places.len();
        for (node, labels) in solution.nodes.iter().zip(picked) {
            let all = choices(snapshot, node);
            let varies = |key: &&String| all.iter().any(|other| other.get(*key) != labels.get(*key));
            let open = labels.keys().filter(varies).cloned().collect();
            places.push(Place { labels, taints: taints_of(objects, &node.pool), is_new: true, open });
        }
        let mut seats: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for placement in &solution.placements {
            if let Target::Node(node) = &placement.target {
                seats.insert((&placement.pod.namespace, &placement.pod.name), at[&**node]);
            }
        }
        for (number, node) in solution.nodes.iter().enumerate() {
            seats.extend(node.pods.iter().map(|pod| ((&*pod.namespace, &*pod.name), first + number)));
        }
        let bound: BTreeSet<(&str, &str)> = snapshot
            .pods
            .iter()
            .filter(|pod| pod.holds_resources())
            .map(|pod| (&*pod.key.namespace, &*pod.key.name))
            .collect();
        let pods = of_kind("Pod").filter_map(|pod| {
            let key = (namespace(pod), name(pod));
            if bound.contains(&key) {
                let node = at.get(pod["spec"]["nodeName"].as_str()?)?;
                return Some(Seated { pod, node: *node, is_new: false });
            }
            seats.get(&key).map(|node| Seated { pod, node: *node, is_new: true })
        });
        Outcome { pods: pods.collect(), places, objects }
    }

    fn judge(&self) -> Verdict {
        for seated in self.pods.iter().filter(|seated| seated.is_new) {
            let pod = seated.pod;
            for constraint in list(&pod["spec"]["topologySpreadConstraints"]) {
                if constraint["whenUnsatisfiable"] == "DoNotSchedule" {
                    self.judge_spread(seated, constraint)?;
                }
            }
            self.judge_affinity(seated)?;
            self.judge_volumes(seated)?;
        }
        self.judge_anti_affinity()?;
        self.judge_ports()?;
        self.judge_sole_claims()?;
        Ok(())
    }

    /// Whether kube-scheduler takes a pod on a node, after all that are seated; spreads reckon with the domains of nodes that could be made, too.
    fn accepts(&self, pod: &Value, node: usize, possible: &[Place]) -> bool {
        let place = &self.places[node];
        let own = strings(&pod["metadata"]["labels"]);
        let there = |key: &Value| place.labels.get(key.as_str().unwrap_or_default());
        let in_domain = |other: &Seated<'_>, key: &Value| {
            there(key).is_some() && self.places[other.node].labels.get(key.as_str().unwrap_or_default()) == there(key)
        };
        let spreads = list(&pod["spec"]["topologySpreadConstraints"]).iter();
        let spread_holds = |constraint: &Value| {
            let key = &constraint["topologyKey"];
            let selector = counted_by(constraint, &own);
            let Some(mine) = there(key) else { return false };
            if selects_all(&selector) {
                return true;
            }
            let mut domains: BTreeMap<&String, i64> = BTreeMap::new();
            let counted = self.places.iter().chain(possible).filter(|place| counts_place(constraint, pod, place));
            for place in counted {
                domains.extend(place.labels.get(key.as_str().unwrap_or_default()).map(|domain| (domain, 0)));
            }
            for other in &self.pods {
                let place = &self.places[other.node];
                let matches = namespace(other.pod) == namespace(pod)
                    && selects(&selector, &strings(&other.pod["metadata"]["labels"]));
                if matches
                    && counts_place(constraint, pod, place)
                    && let Some(count) =
                        place.labels.get(key.as_str().unwrap_or_default()).and_then(|domain| domains.get_mut(domain))
                {
                    *count += 1;
                }
            }
            let few = (domains.len() as i64) < constraint["minDomains"].as_i64().unwrap_or(1);
            let least = if few { 0 } else { domains.values().copied().min().unwrap_or_default() };
            let with_it = domains.get(mine).copied().unwrap_or_default() + i64::from(selects(&selector, &own));
            with_it - least <= constraint["maxSkew"].as_i64().unwrap()
        };
        let near = required_terms(pod, "podAffinity");
        let all_select = |other: &Value| near.iter().all(|term| self.term_selects(pod, term, other));
        // pods on nodes that have none of the labels are not counted
        let counted = |other: &&Seated<'_>| near.iter().any(|term| self.domain(other, key_of(term)).is_some());
        let like: Vec<&Seated<'_>> = self.pods.iter().filter(|other| all_select(other.pod)).filter(counted).collect();
        let starts =
            like.is_empty() && all_select(pod) && near.iter().all(|term| there(&term["topologyKey"]).is_some());
        let meets = |term: &Value| like.iter().any(|other| in_domain(other, &term["topologyKey"]));
        let keeps = |owner: &Value, other: &Seated<'_>, met: &Value| {
            let mut terms = required_terms(owner, "podAntiAffinity").iter();
            terms.any(|term| in_domain(other, &term["topologyKey"]) && self.term_selects(owner, term, met))
        };
        takes_node(pod, &place.labels)
            && tolerates(pod, &place.taints)
            && spreads.filter(|one| one["whenUnsatisfiable"] == "DoNotSchedule").all(spread_holds)
            && (starts || near.iter().all(meets))
            && !self.pods.iter().any(|other| keeps(pod, other, other.pod) || keeps(other.pod, other, pod))
    }

    fn domain(&self, seated: &Seated<'_>, key: &str) -> Option<&str> {
        self.places[seated.node].labels.get(key).map(String::as_str)
    }

    fn judge_spread(&self, seated: &Seated<'_>, constraint: &Value) -> Verdict {
        let pod = seated.pod;
        let key = constraint["topologyKey"].as_str().unwrap();
        let mine = self.domain(seated, key);
        let mine = mine.ok_or_else(|| format!("{} is on a node without {key}", name(pod)))?;
        let own = strings(&pod["metadata"]["labels"]);
        let selector = counted_by(constraint, &own);
        if selects_all(&selector) {
            return Ok(());
        }
        let counts = |place: &Place| counts_place(constraint, pod, place);
        let matching = |other: &Seated<'_>| {
            namespace(other.pod) == namespace(pod) && selects(&selector, &strings(&other.pod["metadata"]["labels"]))
        };
        // every node that there is at the end was there before its pods were bound; where it is open in which domain a node will be on
        // which the pod cannot be, it is not foreseen
        let mut domains: BTreeMap<&str, i64> = BTreeMap::new();
        let foreseen = |place: &&Place| !place.is_new || tolerates(pod, &place.taints) || !place.open.contains(key);
        for place in self.places.iter().filter(|place| counts(place)).filter(foreseen) {
            if let Some(domain) = place.labels.get(key) {
                domains.entry(domain).or_default();
            }
        }
        let mut late = 0;
        for other in self.pods.iter().filter(|other| counts(&self.places[other.node]) && matching(other)) {
            let Some(domain) = self.domain(other, key) else { continue };
            let Some(count) = domains.get_mut(domain) else { continue };
            *count += 1;
            // a new pod without this very constraint may have come after
            let bound_too = list(&other.pod["spec"]["topologySpreadConstraints"]).contains(constraint)
                && takes_same_nodes(pod, other.pod);
            late += i64::from(domain == mine && other.is_new && !bound_too);
        }
        let there = domains.get(mine).copied().unwrap_or_default() - late;
        let wanted = constraint["minDomains"].as_i64().unwrap_or(1);
        let fewest = domains.values().copied().min().unwrap_or_default();
        let fewest = if (domains.len() as i64) < wanted { 0 } else { fewest };
        let skew = there - fewest;
        let most = constraint["maxSkew"].as_i64().unwrap();
        ensure!(skew <= most, "{}: skew {skew} over {key}={mine} passes {most}: {domains:?}", name(pod));
        Ok(())
    }

    /// Whether another pod is of a term's namespaces and selected by it.
    fn term_selects(&self, owner: &Value, term: &Value, other: &Value) -> bool {
        let named = list(&term["namespaces"]).iter().any(|value| value.as_str() == Some(namespace(other)));
        let by_selector = !term["namespaceSelector"].is_null() && {
            let space = self.objects.iter().find(|o| o["kind"] == "Namespace" && name(o) == namespace(other));
            selects(&term["namespaceSelector"], &space.map(|o| strings(&o["metadata"]["labels"])).unwrap_or_default())
        };
        let silent = list(&term["namespaces"]).is_empty() && term["namespaceSelector"].is_null();
        let (own, labels) = (strings(&owner["metadata"]["labels"]), strings(&other["metadata"]["labels"]));
        let alike = |field: &str, same: bool| {
            let keys = list(&term[field]).iter().filter_map(Value::as_str).filter(|key| own.contains_key(*key));
            keys.into_iter().all(|key| (own.get(key) == labels.get(key)) == same)
        };
        (named || by_selector || silent && namespace(owner) == namespace(other))
            && selects(&term["labelSelector"], &labels)
            && alike("matchLabelKeys", true)
            && alike("mismatchLabelKeys", false)
    }

    fn judge_affinity(&self, seated: &Seated<'_>) -> Verdict {
        let terms = required_terms(seated.pod, "podAffinity");
        if terms.is_empty() {
            return Ok(());
        }
        let selected = |other: &Value| terms.iter().all(|term| self.term_selects(seated.pod, term, other));
        let others = || self.pods.iter().filter(|other| !std::ptr::eq(other.pod, seated.pod) && selected(other.pod));
        for term in terms {
            let key = term["topologyKey"].as_str().unwrap();
            let mine = self.domain(seated, key);
            ensure!(mine.is_some(), "{} is on a node without {key}", name(seated.pod));
            if others().any(|other| self.domain(other, key) == mine) {
                continue;
            }
            // the first of a series that asks for itself may start anywhere, if nothing of it ran before
            let first =
                selected(seated.pod) && !others().any(|other| !other.is_new && self.domain(other, key).is_some());
            ensure!(first, "{} is away from what it wants to be with by {key}", name(seated.pod));
            let alike = |other: &&Seated<'_>| {
                required_terms(other.pod, "podAffinity") == terms && namespace(other.pod) == namespace(seated.pod)
            };
            let alone = |other: &&Seated<'_>| {
                let mut met =
                    self.pods.iter().filter(|third| !std::ptr::eq(third.pod, other.pod) && selected(third.pod));
                !met.any(|third| self.domain(third, key) == self.domain(other, key))
            };
            // one that runs on a node without the label started nothing
            let elsewhere = |other: &&Seated<'_>| self.domain(other, key).is_some_and(|domain| Some(domain) != mine);
            let apart = others().filter(alike).filter(alone).find(elsewhere);
            ensure!(apart.is_none(), "{} and {} start twice by {key}", name(seated.pod), name(apart.unwrap().pod));
        }
        Ok(())
    }

    fn judge_anti_affinity(&self) -> Verdict {
        for one in &self.pods {
            for term in required_terms(one.pod, "podAntiAffinity") {
                let key = term["topologyKey"].as_str().unwrap();
                let Some(mine) = self.domain(one, key) else { continue };
                let met = self.pods.iter().find(|other| {
                    !std::ptr::eq(other.pod, one.pod)
                        && (one.is_new || other.is_new)
                        && self.domain(other, key) == Some(mine)
                        && self.term_selects(one.pod, term, other.pod)
                });
                ensure!(met.is_none(), "{} must not meet {} in {key}={mine}", name(one.pod), name(met.unwrap().pod));
            }
        }
        for one in self.pods.iter().filter(|one| one.is_new && self.places[one.node].is_new) {
            for daemon in self.daemons_on(&self.places[one.node]) {
                let keeps = |owner: &Value, other: &Value| {
                    let mut terms = required_terms(owner, "podAntiAffinity").iter();
                    terms.any(|term| self.domain(one, key_of(term)).is_some() && self.term_selects(owner, term, other))
                };
                let free = !keeps(one.pod, &daemon) && !keeps(&daemon, one.pod);
                ensure!(free, "{} must not meet the pods of daemon {}", name(one.pod), name(&daemon));
            }
        }
        Ok(())
    }

    /// Whether a pod and a daemon of another new node keep each other out of the domain that both bring their node into: the daemon runs there
    /// before the pod's own node is up.
    fn meets_a_daemon(&self, pod: &Value, node: usize) -> bool {
        let mine = &self.places[node].labels;
        let others = self.places.iter().enumerate().filter(|(at, place)| *at != node && place.is_new);
        others.flat_map(|(_, place)| self.daemons_on(place).map(move |daemon| (place, daemon))).any(
            |(place, daemon)| {
                let keeps = |owner: &Value, met: &Value| {
                    let shares = |term: &&Value| {
                        let key = term["topologyKey"].as_str().unwrap();
                        mine.get(key).is_some_and(|value| place.labels.get(key) == Some(value))
                    };
                    let terms = required_terms(owner, "podAntiAffinity").iter();
                    terms.filter(shares).any(|term| self.term_selects(owner, term, met))
                };
                keeps(&daemon, pod) || keeps(pod, &daemon)
            },
        )
    }

    /// The pods that daemon sets will have on a node.
    fn daemons_on(&self, place: &Place) -> impl Iterator<Item = Value> {
        let pod = |set: &Value| {
            let mut pod = set["spec"]["template"].clone();
            pod["metadata"]["name"] = set["metadata"]["name"].clone();
            pod["metadata"]["namespace"] = set["metadata"]["namespace"].clone();
            pod
        };
        let pods = self.objects.iter().filter(|object| object["kind"] == "DaemonSet").map(pod);
        pods.filter(|pod| takes_node(pod, &place.labels) && tolerates(pod, &place.taints))
    }

    /// Two pods of one node, or a pod and a daemon that will run there, cannot have the same port of the same address.
    fn judge_ports(&self) -> Verdict {
        let of = |spec: &Value| -> Vec<(i64, String, String)> {
            let ports = list(&spec["containers"]).iter().flat_map(|container| list(&container["ports"]));
            let port = |port: &Value| {
                let number = port["hostPort"].as_i64().filter(|number| *number > 0)?;
                let address = port["hostIP"].as_str().filter(|address| !address.is_empty()).unwrap_or("0.0.0.0");
                Some((number, port["protocol"].as_str().unwrap_or("TCP").to_owned(), address.to_owned()))
            };
            ports.filter_map(port).collect()
        };
        let clash = |a: &[(i64, String, String)], b: &[(i64, String, String)]| {
            let any = |address: &String| address == "0.0.0.0";
            a.iter().any(|x| b.iter().any(|y| x.0 == y.0 && x.1 == y.1 && (x.2 == y.2 || any(&x.2) || any(&y.2))))
        };
        for (at, one) in self.pods.iter().enumerate().filter(|(_, one)| one.is_new) {
            let mine = of(&one.pod["spec"]);
            for (_, other) in self.pods.iter().enumerate().filter(|(other, seat)| *other != at && seat.node == one.node)
            {
                ensure!(
                    !clash(&mine, &of(&other.pod["spec"])),
                    "{} and {} want one port",
                    name(one.pod),
                    name(other.pod)
                );
            }
            let place = &self.places[one.node];
            for daemon in self.daemons_on(place).filter(|_| place.is_new) {
                let free = !clash(&mine, &of(&daemon["spec"]));
                ensure!(free, "{} and daemon {} want one port", name(one.pod), name(&daemon));
            }
        }
        Ok(())
    }

    /// A claim that one pod at a time may use has no second.
    fn judge_sole_claims(&self) -> Verdict {
        let mut users: BTreeMap<(&str, &str), &str> = BTreeMap::new();
        for seated in &self.pods {
            for volume in list(&seated.pod["spec"]["volumes"]) {
                let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() else { continue };
                let key = (namespace(seated.pod), claim);
                let found = self.objects.iter().find(|object| {
                    object["kind"] == "PersistentVolumeClaim" && (namespace(object), name(object)) == key
                });
                let sole = found.is_some_and(|claim| {
                    list(&claim["spec"]["accessModes"]).contains(&Value::from("ReadWriteOncePod"))
                });
                if let Some(other) = sole.then(|| users.insert(key, name(seated.pod))).flatten() {
                    return Err(format!("{} and {other} use {claim}, which takes one pod at a time", name(seated.pod)));
                }
            }
        }
        Ok(())
    }

    fn judge_volumes(&self, seated: &Seated<'_>) -> Verdict {
        let labels = &self.places[seated.node].labels;
        let find = |kind: &str, wanted: &str, space: Option<&str>| {
            self.objects.iter().find(|object| {
                object["kind"] == kind && name(object) == wanted && space.is_none_or(|space| namespace(object) == space)
            })
        };
        for volume in list(&seated.pod["spec"]["volumes"]) {
            let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() else { continue };
            let found = find("PersistentVolumeClaim", claim, Some(namespace(seated.pod)));
            let found = found.ok_or_else(|| format!("{} is placed without its claim {claim}", name(seated.pod)))?;
            if let Some(volume) = found["spec"]["volumeName"].as_str() {
                let volume = find("PersistentVolume", volume, None);
                let volume = volume.ok_or_else(|| format!("{} is placed without its volume", name(seated.pod)))?;
                let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
                // whoever looks after the disks of nodes makes another for one that is gone
                let name_of =
                    |term: &Value| list(&term["matchExpressions"])[0]["values"][0].as_str().map(str::to_owned);
                let disk = volume["spec"]["local"].is_object().then(|| name_of(&terms[0])).flatten();
                if disk.is_some_and(|node| find("Node", &node, None).is_none()) {
                    continue;
                }
                ensure!(terms.is_null() || terms_hold(terms, labels), "{} cannot reach {claim}", name(seated.pod));
                continue;
            }
            let class = found["spec"]["storageClassName"].as_str().and_then(|class| find("StorageClass", class, None));
            let class = class.ok_or_else(|| format!("{claim} has no class"))?;
            ensure!(
                class["volumeBindingMode"] == "WaitForFirstConsumer",
                "{claim} must be bound before {}",
                name(seated.pod)
            );
            let allowed = list(&class["allowedTopologies"]);
            let holds = |topology: &Value| {
                list(&topology["matchLabelExpressions"]).iter().all(|expression| {
                    let label = labels.get(expression["key"].as_str().unwrap());
                    list(&expression["values"]).iter().any(|value| value.as_str() == label.map(String::as_str))
                })
            };
            ensure!(allowed.is_empty() || allowed.iter().any(holds), "{claim} cannot be made for {}", name(seated.pod));
        }
        Ok(())
    }
}

/// Whether two pods count the same nodes for a spread.
fn takes_same_nodes(a: &Value, b: &Value) -> bool {
    let asks = |pod: &Value| {
        let node = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        (pod["spec"]["nodeSelector"].clone(), node.clone(), pod["spec"]["tolerations"].clone())
    };
    asks(a) == asks(b)
}

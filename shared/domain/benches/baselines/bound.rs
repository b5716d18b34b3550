//! Two lower bounds on the price of any packing, by linear programming. Both buy nodes in fractions, so that neither can be reached.
//!
//! [`fluid_bound`] covers the sum of all CPU and memory by the cheapest mix of the pool's types, whatever a pod needs besides. It is the
//! bound of `check_solution.py`.
//!
//! [`shape_bound`] minimises `sum(price[o] * bought[o])` over types and existing nodes `o`, where `laid[s, o]` pods of shape `s` are laid on
//! `o`, under
//!
//! 1. `sum over o of laid[s, o] = pods[s]`, over those `o` whose labels, zones and capacity types the pod allows and that hold one such pod;
//! 2. `sum over s of laid[s, o] * request[s, r] <= allocatable[o, r] * bought[o]` for r in CPU, memory and pods;
//! 3. `sum over s in G of laid[s, o] <= bought[o]` for each group G of pods that required anti-affinity keeps apart by host;
//! 4. `bought[o] <= how many there are` where `o` is an existing node; those cost nothing.
//!
//! It is a bound because every valid packing is a point of it: count the nodes bought of each type, each at the lowest price that the pool
//! allows, and the pods of each shape on them; each inequality holds for each node and so for their sum. What it leaves out (whole nodes and
//! pods, spread, zones that pods on one node must share, affinity, ports, other resources) could only raise the price. Pods that nothing holds
//! are left out of it. The solver's answer is not proved: a caller checks it against the prices of packings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karp_domain::catalogue::{Catalogue, Market, TypeSet};
use karp_domain::cluster::{Pod, PodTerm, Snapshot};
use karp_domain::resources::{CPU, MEMORY, PODS, Resources};
use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem};

const HOST: &str = "kubernetes.io/hostname";

/// Cores, GiB and pods.
type Amounts = [f64; 3];

fn amounts(of: &Resources) -> Amounts {
    let gib = 2.0_f64.powi(30);
    [of.get(CPU).as_f64(), of.get(MEMORY).as_f64() / gib, of.get(PODS).as_f64()]
}

fn fits(request: Amounts, room: Amounts) -> bool {
    request.iter().zip(room).all(|(wanted, have)| *wanted <= have)
}

/// What can hold pods: a type at its lowest price, or nodes that exist and are equal.
struct Holder {
    room: Amounts,
    price: f64,
    /// How many there are; as many as wanted where it is a type.
    most: f64,
    /// The shapes that it may hold.
    holds: BTreeSet<usize>,
}

/// Pods that are equal to the bound.
struct Shape {
    request: Amounts,
    pods: f64,
    /// The groups that required anti-affinity by host makes it a member of.
    apart: BTreeSet<usize>,
    /// One of the pods.
    example: Arc<Pod>,
}

/// Answers dollars per hour of the cheapest fractional mix of types that covers the CPU and memory of all pods that wait.
pub fn fluid_bound(snapshot: &Snapshot) -> f64 {
    let mut total = [0.0; 3];
    for pod in snapshot.pods.iter().filter(|pod| pod.is_provisionable()) {
        for (sum, amount) in total.iter_mut().zip(amounts(&pod.shape.requests)) {
            *sum += amount;
        }
    }
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let mut covered = [LinearExpr::empty(), LinearExpr::empty()];
    for (room, price) in types(snapshot).into_iter().flatten() {
        let bought = problem.add_var(price, (0.0, f64::INFINITY));
        covered[0].add(bought, room[0]);
        covered[1].add(bought, room[1]);
    }
    for (expression, sum) in covered.into_iter().zip(total) {
        problem.add_constraint(expression, ComparisonOp::Ge, sum);
    }
    minimum(&problem)
}

/// Answers dollars per hour of the cheapest fractional packing by shapes, as told above.
pub fn shape_bound(snapshot: &Snapshot) -> f64 {
    let shapes = shapes(snapshot);
    let holders = holders(snapshot, &shapes);
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let mut laid: Vec<LinearExpr> = shapes.iter().map(|_| LinearExpr::empty()).collect();
    let mut held = vec![false; shapes.len()];
    for holder in &holders {
        let bought = problem.add_var(holder.price, (0.0, holder.most));
        let mut used = [LinearExpr::empty(), LinearExpr::empty(), LinearExpr::empty()];
        let mut apart: BTreeMap<usize, LinearExpr> = BTreeMap::new();
        for at in holder.holds.iter().copied() {
            let pods = problem.add_var(0.0, (0.0, f64::INFINITY));
            laid[at].add(pods, 1.0);
            held[at] = true;
            for (expression, amount) in used.iter_mut().zip(shapes[at].request) {
                expression.add(pods, amount);
            }
            for group in &shapes[at].apart {
                apart.entry(*group).or_insert_with(LinearExpr::empty).add(pods, 1.0);
            }
        }
        for (mut expression, room) in used.into_iter().zip(holder.room) {
            expression.add(bought, -room);
            problem.add_constraint(expression, ComparisonOp::Le, 0.0);
        }
        for (_, mut expression) in apart {
            expression.add(bought, -1.0);
            problem.add_constraint(expression, ComparisonOp::Le, 0.0);
        }
    }
    for ((expression, shape), held) in laid.into_iter().zip(&shapes).zip(held) {
        if held {
            problem.add_constraint(expression, ComparisonOp::Eq, shape.pods);
        }
    }
    minimum(&problem)
}

fn minimum(problem: &Problem) -> f64 {
    let solved = problem.solve().expect("the linear program has a solution");
    solved.into_solution().unwrap_or_else(|_| panic!("nothing interrupts the linear program")).objective()
}

fn catalogue(snapshot: &Snapshot) -> &Catalogue {
    snapshot.catalogues.values().next().expect("a catalogue")
}

/// The types that the pool may buy with what each holds and costs at least, by their place in the catalogue.
fn types(snapshot: &Snapshot) -> Vec<Option<(Amounts, f64)>> {
    let catalogue = catalogue(snapshot);
    let (allowed, market) = catalogue.select(&snapshot.pools[0].requirements);
    let of = |at: usize| {
        let price = catalogue.cheapest(at, market).filter(|_| allowed.contains(at))?;
        Some((amounts(&catalogue.types()[at].allocatable()), price.dollars()))
    };
    (0..catalogue.types().len()).map(of).collect()
}

fn shapes(snapshot: &Snapshot) -> Vec<Shape> {
    let mut groups: BTreeMap<PodTerm, usize> = BTreeMap::new();
    let mut found: BTreeMap<String, Shape> = BTreeMap::new();
    for pod in snapshot.pods.iter().filter(|pod| pod.is_provisionable()) {
        let mut apart = BTreeSet::new();
        for term in pod.shape.anti_affinity.iter().filter(|term| &*term.key == HOST) {
            if term.selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels)) {
                let next = groups.len();
                apart.insert(*groups.entry(term.clone()).or_insert(next));
            }
        }
        let request = amounts(&pod.shape.requests);
        let key = format!("{request:?} {apart:?} {:?}", pod.shape.alternatives);
        let shape = found.entry(key).or_insert_with(|| Shape { request, pods: 0.0, apart, example: pod.clone() });
        shape.pods += 1.0;
    }
    found.into_values().collect()
}

fn holders(snapshot: &Snapshot, shapes: &[Shape]) -> Vec<Holder> {
    let catalogue = catalogue(snapshot);
    let pool = &snapshot.pools[0].requirements;
    // where each shape may go, one entry for each of its node selector terms
    let choices: Vec<Vec<(TypeSet, Market)>> = shapes
        .iter()
        .map(|shape| shape.example.shape.alternatives.iter().map(|term| catalogue.select(&pool.and(term))).collect())
        .collect();
    let mut all = Vec::new();
    for (at, of_type) in types(snapshot).into_iter().enumerate() {
        let Some((room, price)) = of_type else { continue };
        let may = |(types, market): &(TypeSet, Market)| types.contains(at) && catalogue.cheapest(at, *market).is_some();
        let holds = |shape: &usize| fits(shapes[*shape].request, room) && choices[*shape].iter().any(may);
        all.push(Holder { room, price, most: f64::INFINITY, holds: (0..shapes.len()).filter(holds).collect() });
    }
    let apart = shapes.iter().any(|shape| !shape.apart.is_empty());
    let mut all = undominated(all, apart);
    all.extend(existing(snapshot, shapes));
    all
}

/// Leaves out types in whose place another does as well for less: per dollar it has as much of everything (nodes too, where pods are to be
/// kept apart), and it may hold every shape that they may. Laying their pods on it instead keeps every inequality.
fn undominated(all: Vec<Holder>, apart: bool) -> Vec<Holder> {
    let as_good = |a: &Holder, b: &Holder| {
        let rooms = a.room.iter().zip(b.room).all(|(a_room, b_room)| a_room * b.price >= b_room * a.price);
        rooms && (!apart || a.price <= b.price) && a.holds.is_superset(&b.holds)
    };
    let mut kept: Vec<Holder> = Vec::new();
    for holder in all {
        if !kept.iter().any(|other| as_good(other, &holder)) {
            kept.retain(|other| !as_good(&holder, other));
            kept.push(holder);
        }
    }
    kept.retain(|holder| !holder.holds.is_empty());
    kept
}

/// The room that is left on nodes that exist, equal ones together.
fn existing(snapshot: &Snapshot, shapes: &[Shape]) -> Vec<Holder> {
    let bound = snapshot.pods_by_node();
    let mut all: BTreeMap<String, Holder> = BTreeMap::new();
    for node in &snapshot.nodes {
        let mut free = node.allocatable.clone();
        for pod in bound.get(&node.name).into_iter().flatten() {
            free.subtract(&pod.shape.requests);
        }
        let room = amounts(&free);
        let admits =
            |shape: &Shape| shape.example.shape.alternatives.iter().any(|term| term.match_labels(&node.labels));
        let may = |at: &usize| fits(shapes[*at].request, room) && admits(&shapes[*at]);
        let holds: BTreeSet<usize> = (0..shapes.len()).filter(may).collect();
        let key = format!("{room:?} {holds:?}");
        all.entry(key).or_insert(Holder { room, price: 0.0, most: 0.0, holds }).most += 1.0;
    }
    all.into_values().collect()
}

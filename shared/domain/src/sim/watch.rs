//! What a controller's watches show: each kind by itself late, cut off now and then and listed anew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;

use super::random::Random;
use super::{Decisions, World};
use crate::api::NodeClaim;
use crate::catalogue::Catalogue;
use crate::cluster::{Claim, Node, Pod, PodBudget, PodKey, Pool, Snapshot, Watched, foresee};

/// How long a watch that is cut shows nothing, at most.
const CUT: usize = 40;
/// So much of the past is kept, which is more than any watch lags.
const KEPT: SignedDuration = SignedDuration::from_secs(120);

/// The past of one kind, second by second.
#[derive(Clone, Debug)]
pub(super) struct Past<K, V>(VecDeque<(Timestamp, Arc<BTreeMap<K, V>>)>);

impl<K, V> Default for Past<K, V> {
    fn default() -> Self {
        Past(VecDeque::new())
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> Past<K, V> {
    /// Notes how things are now.
    pub(super) fn note(&mut self, now: Timestamp, objects: &BTreeMap<K, V>) {
        let same = self.0.back().filter(|(_, last)| **last == *objects).map(|(_, last)| last.clone());
        self.0.push_back((now, same.unwrap_or_else(|| Arc::new(objects.clone()))));
        while self.0.front().is_some_and(|(at, _)| now.duration_since(*at) > KEPT) {
            self.0.pop_front();
        }
    }

    /// Goes through the states after one moment, up to another.
    fn between(&self, after: Timestamp, until: Timestamp) -> impl Iterator<Item = &Arc<BTreeMap<K, V>>> {
        self.0.iter().filter(move |(at, _)| *at > after && *at <= until).map(|(_, state)| state)
    }

    fn at(&self, when: Timestamp) -> Option<&Arc<BTreeMap<K, V>>> {
        self.0.iter().rev().find(|(at, _)| *at <= when).map(|(_, state)| state)
    }
}

/// The watch of one kind.
struct Stream<K, V> {
    seen: Watched<K, V>,
    /// The state of this moment is shown.
    shown: Timestamp,
    last: Arc<BTreeMap<K, V>>,
    /// It is cut off until then.
    cut: Option<Timestamp>,
    /// What it shows has been compared with what there was.
    compared: bool,
    /// What it shows of these is another than it was when they were last read.
    unread: BTreeSet<K>,
}

impl<K: Ord + Clone, V: Clone + PartialEq> Stream<K, V> {
    /// Begins with a listing.
    fn begin(past: &Past<K, V>, now: Timestamp, decisions: &dyn Decisions) -> Self {
        let (seen, last, unread) = (Watched::default(), Arc::default(), BTreeSet::new());
        let mut stream = Stream { seen, shown: now, last, cut: None, compared: false, unread };
        stream.relist(past, now, decisions);
        stream
    }

    fn relist(&mut self, past: &Past<K, V>, now: Timestamp, decisions: &dyn Decisions) {
        let Some(state) = past.at(now) else { return };
        let before = if decisions.forgets_on_listing() { Vec::new() } else { self.ghosts(state) };
        self.unread.extend(self.seen.known().keys().chain(state.keys()).cloned());
        self.seen.list();
        for (key, value) in state.iter() {
            self.seen.listed(key.clone(), value.clone());
        }
        self.seen.done();
        for (key, value) in before {
            self.seen.put(key, value);
        }
        (self.last, self.shown, self.compared) = (state.clone(), now, false);
    }

    /// What a flawed cache keeps of objects that went unseen.
    fn ghosts(&self, state: &BTreeMap<K, V>) -> Vec<(K, V)> {
        let known = self.seen.known().iter().filter(|(key, _)| !state.contains_key(*key));
        known.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Shows all that happened until so many seconds ago.
    fn advance(&mut self, past: &Past<K, V>, now: Timestamp, lag: i64, decisions: &dyn Decisions) {
        match self.cut {
            Some(until) if now < until => return,
            Some(_) => {
                self.cut = None;
                return self.relist(past, now, decisions);
            }
            None => {}
        }
        let until = now - SignedDuration::from_secs(lag);
        for state in past.between(self.shown, until) {
            if Arc::ptr_eq(state, &self.last) {
                continue;
            }
            for key in self.last.keys().filter(|key| !state.contains_key(*key)) {
                self.seen.remove(key);
                self.unread.insert(key.clone());
            }
            for (key, value) in state.iter().filter(|(key, value)| self.last.get(*key) != Some(*value)) {
                self.seen.put(key.clone(), value.clone());
                self.unread.insert(key.clone());
            }
            (self.last, self.compared) = (state.clone(), false);
        }
        self.shown = self.shown.max(until);
    }

    /// Whether what was kept event by event is what a listing would have said when the last event was shown. Not by the time of that: another
    /// process may have begun, and written, in the same second.
    fn is_true(&mut self) -> bool {
        std::mem::replace(&mut self.compared, true) || *self.last == *self.seen.known()
    }
}

/// What was read of objects that a watch shows; of those that can be read.
struct Readings<K, T>(BTreeMap<K, Arc<T>>);

impl<K: Ord, T> Readings<K, T> {
    /// Reads those anew that the watch shows otherwise than before.
    fn renew<V>(&mut self, stream: &mut Stream<K, V>, read: impl Fn(&V) -> Option<T>) {
        for key in std::mem::take(&mut stream.unread) {
            match stream.seen.known().get(&key).and_then(&read) {
                Some(object) => drop(self.0.insert(key, Arc::new(object))),
                None => drop(self.0.remove(&key)),
            }
        }
    }

    fn all(&self) -> Vec<Arc<T>> {
        self.0.values().cloned().collect()
    }
}

/// What the watches of one controller show.
pub(super) struct View {
    claims: Stream<String, NodeClaim>,
    nodes: Stream<String, core::Node>,
    pods: Stream<PodKey, Pod>,
    budgets: Stream<PodKey, Arc<PodBudget>>,
    pools: Stream<Arc<str>, Arc<Pool>>,
    /// Budgets of pods and pools are seen by their watches; else as they are.
    rules_are_late: bool,
    read_claims: Readings<String, Claim>,
    read_nodes: Readings<String, Node>,
    read_pods: Readings<PodKey, Pod>,
}

impl View {
    /// Lists everything, as a controller that starts.
    pub(super) fn begin(world: &World, decisions: &dyn Decisions) -> Self {
        let (past, now) = (&world.past, world.now);
        let mut view = View {
            claims: Stream::begin(&past.claims, now, decisions),
            nodes: Stream::begin(&past.nodes, now, decisions),
            pods: Stream::begin(&past.pods, now, decisions),
            budgets: Stream::begin(&past.budgets, now, decisions),
            pools: Stream::begin(&past.pools, now, decisions),
            rules_are_late: world.faults.rules_lag_seconds > 0,
            read_claims: Readings(BTreeMap::new()),
            read_nodes: Readings(BTreeMap::new()),
            read_pods: Readings(BTreeMap::new()),
        };
        view.read();
        view
    }

    fn read(&mut self) {
        self.read_claims.renew(&mut self.claims, |claim| Claim::from_kube(claim).ok());
        self.read_nodes.renew(&mut self.nodes, |node| Node::from_kube(node).ok());
        self.read_pods.renew(&mut self.pods, |pod| Some(pod.clone()));
        // these are kept as they are read
        self.budgets.unread.clear();
        self.pools.unread.clear();
    }

    /// Lets the watches go on; each may be late, or be cut off for a while.
    pub(super) fn advance(&mut self, world: &mut World, decisions: &dyn Decisions) {
        let lags = lags::<3>(&mut world.random, world.faults.watch_lag_seconds);
        let cuts = cuts::<3>(world);
        // who waits for the API server finds it within seconds
        let back = world.returns();
        self.claims.cut = back.or(self.claims.cut).or(cuts[0]);
        self.nodes.cut = back.or(self.nodes.cut).or(cuts[1]);
        self.pods.cut = back.or(self.pods.cut).or(cuts[2]);
        let (past, now) = (&world.past, world.now);
        self.claims.advance(&past.claims, now, lags[0], decisions);
        self.nodes.advance(&past.nodes, now, lags[1], decisions);
        self.pods.advance(&past.pods, now, lags[2], decisions);
        self.advance_rules(world, decisions);
        self.read();
        let faithful = self.claims.is_true()
            && self.nodes.is_true()
            && self.pods.is_true()
            && self.budgets.is_true()
            && self.pools.is_true();
        if !faithful {
            world.violate("S-15", "what a watch kept is not what a listing of that moment says".to_owned());
        }
    }

    /// The same for the watches of budgets of pods and of pools, where they are late at all.
    fn advance_rules(&mut self, world: &mut World, decisions: &dyn Decisions) {
        let most = world.faults.rules_lag_seconds;
        self.rules_are_late = most > 0;
        if !self.rules_are_late {
            return;
        }
        let lags = lags::<2>(&mut world.random, most);
        let cuts = cuts::<2>(world);
        let back = world.returns();
        self.budgets.cut = back.or(self.budgets.cut).or(cuts[0]);
        self.pools.cut = back.or(self.pools.cut).or(cuts[1]);
        let (past, now) = (&world.past, world.now);
        self.budgets.advance(&past.budgets, now, lags[0], decisions);
        self.pools.advance(&past.pools, now, lags[1], decisions);
    }

    pub(super) const fn claims(&self) -> &BTreeMap<String, NodeClaim> {
        self.claims.seen.known()
    }

    pub(super) const fn nodes(&self) -> &BTreeMap<String, core::Node> {
        self.nodes.seen.known()
    }

    /// What was read of a node, if it can be.
    pub(super) fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.read_nodes.0.get(name).cloned()
    }

    pub(super) const fn pods(&self) -> &BTreeMap<PodKey, Pod> {
        self.pods.seen.known()
    }

    /// The pool of a name, as it is seen.
    pub(super) fn pool(&self, world: &World, name: &str) -> Option<Arc<Pool>> {
        if self.rules_are_late { self.pools.seen.known().get(name).cloned() } else { world.pool(name).cloned() }
    }

    /// The snapshot of what is seen, with what can be bought.
    pub(super) fn snapshot(&self, world: &World, catalogue: Arc<Catalogue>) -> Snapshot {
        let mut pods = self.read_pods.all();
        foresee(&mut pods);
        let mut snapshot = Snapshot {
            pods,
            nodes: self.read_nodes.all(),
            claims: self.read_claims.all(),
            ..world.bare_snapshot(catalogue)
        };
        if self.rules_are_late {
            snapshot.budgets = self.budgets.seen.known().values().cloned().collect();
            snapshot.pools = self.pools.seen.known().values().cloned().collect();
        }
        snapshot
    }
}

/// How many seconds each of some watches is late.
fn lags<const KINDS: usize>(random: &mut Random, most: u32) -> [i64; KINDS] {
    std::array::from_fn(|_| if most == 0 { 0 } else { random.below(most as usize + 1) as i64 })
}

/// Until when each of some watches is cut off from now on, if it is.
fn cuts<const KINDS: usize>(world: &mut World) -> [Option<Timestamp>; KINDS] {
    let (now, permille) = (world.now, world.faults.cut_permille);
    let random = &mut world.random;
    std::array::from_fn(|_| {
        let cut = random.happens(permille);
        cut.then(|| now + SignedDuration::from_secs(1 + random.below(CUT) as i64))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sim::{Faults, Production};

    /// Says of each second since a user changed the only pool whether the change is seen.
    fn seen(seed: u64, late: u32) -> Vec<bool> {
        let pool = json!({"kind": "NodePool", "apiVersion": "karpenter.sh/v1", "metadata": {"name": "default", "uid": "p"},
            "spec": {"disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "1"}]},
                "template": {"spec": {"requirements": [], "expireAfter": "Never",
                    "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}}}}});
        let pool = Pool::from_kube(&serde_json::from_value(pool).unwrap()).unwrap();
        let mut world = World::new(Timestamp::UNIX_EPOCH, Catalogue::default(), vec![pool], Vec::new());
        world.begin(seed);
        world.faults = Faults { rules_lag_seconds: late, ..Faults::default() };
        let mut view = View::begin(&world, &Production);
        Arc::make_mut(&mut world.pools[0]).hash = "new".into();
        let mut seen = Vec::new();
        for _ in 0..=late {
            world.now += SignedDuration::from_secs(1);
            world.note();
            view.advance(&mut world, &Production);
            let hash = view.pool(&world, "default").map(|pool| pool.hash.clone());
            let planned = view.snapshot(&world, Arc::default()).pools.first().map(|pool| pool.hash.clone());
            assert_eq!(hash, planned, "plans go by the same");
            seen.push(hash.as_deref() == Some("new"));
        }
        seen
    }

    #[test]
    fn pools_are_seen_late_if_they_are_to_be_and_in_the_end_as_they_are() {
        assert_eq!(seen(1, 0), [true]);
        let runs: Vec<Vec<bool>> = (0..8).map(|seed| seen(seed, 10)).collect();
        assert!(runs.iter().all(|run| run.is_sorted() && run.last() == Some(&true)), "{runs:?}");
        assert!(runs.iter().any(|run| run.first() == Some(&false)), "{runs:?}");
    }
}

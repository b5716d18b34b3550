//! The controllers: each observes, decides (in the domain) and acts; the time of the next look comes from the decision.

pub mod batch;
mod buffers;
mod capacity;
pub mod disruption;
mod disruption_events;
pub mod doubt;
mod driver;
mod garbage;
pub mod health;
mod instance_status;
mod interruption;
mod launch;
mod node_claim;
mod node_class;
mod node_pool;
pub mod overlays;
mod pod_events;
mod protection;
mod provisioning;
mod registration;
mod replicas;
mod reservations;
pub mod rest;
mod termination;
#[cfg(test)]
mod testing;
mod transitions;
mod unreadable;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use karp_domain::api::{NodeClaim, conditions};
use karp_domain::cluster::{Assumed, Buffer, Catalogues, Settings, Snapshot, Unreadable};
use karp_domain::eviction::Answers;
use karp_domain::scheduling::LastPlan;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cloud::{CloudError, CloudProvider, LaunchError, Unavailable};
use crate::effect::{self, Effect, Outcome, Which};
use crate::observe::unread::Guarded;
use crate::observe::{LeftOut, Stores, Written};
use crate::ops::events::{Events, Reason};
use crate::ops::metrics::{KindLabels, Metrics};
use crate::options::Options;

/// Holds what every controller needs.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The API server without retries, for evictions: too many requests is what a budget answers.
    pub evictor: Client,
    /// What is known.
    pub stores: Stores,
    /// Where instances come from.
    pub cloud: Arc<dyn CloudProvider>,
    /// What could not be had a short while ago.
    pub unavailable: Unavailable,
    /// Counters and gauges.
    pub metrics: Arc<Metrics>,
    /// The publisher of events.
    pub events: Events,
    /// Options.
    pub options: Options,
    /// The cluster's CA bundle in base64, part of the hash of node classes; empty when it cannot be told.
    pub ca_bundle: String,
    /// Wakes provisioning: something changed that may make or need room.
    pub provision: Notify,
    /// Wakes provisioning for pods that waited already: what was to be bought for them cannot be had.
    pub replan: Notify,
    /// Claims whose launch rests.
    pub rests: rest::Rests,
    /// Claims of whose launch nothing can come.
    pub settled: doubt::Settled,
    /// Launches for several claims at once.
    pub batches: batch::Batches,
    /// Wakes disruption: look again at once.
    pub disrupt: Notify,
    /// The last plan.
    pub plans: Plans,
    /// The versions of claims that were written last.
    pub written: Written,
    /// What was written and may not be seen yet.
    pub assumed: Mutex<Assumed>,
    /// What could be bought when the last snapshot was made, before overlays.
    pub market: Arc<Mutex<Catalogues>>,
    /// Held while a plan is made and carried out, so that no two launch for the same pods.
    pub planning: tokio::sync::Mutex<()>,
    /// Whether the nodes of each pool join.
    pub health: health::Health,
    /// Claims that are being disrupted.
    pub running: disruption::Running,
    /// NodeOverlays that hold.
    pub overlays: overlays::Overlays,
    /// CapacityBuffers that are ready, as read last.
    pub buffers: Mutex<Vec<Arc<Buffer>>>,
    /// Objects that could not be read, as told last.
    pub unreadable: Mutex<BTreeSet<String>>,
    /// How the API server answered evictions, by UID of the node.
    pub evictions: Mutex<BTreeMap<String, Answers>>,
    /// Since when nodes on their way out have no pod left that is waited for, by UID: a node without a claim has nowhere to say it.
    pub drained: Mutex<BTreeMap<String, Timestamp>>,
}

impl Context {
    /// Returns what each class can buy now, whatever overlays say. A class whose catalogue cannot be had is left out: its pools wait.
    async fn catalogues(&self) -> Catalogues {
        let ready = self.stores.classes.state_filter(|class| {
            class.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
        });
        let mut catalogues = Catalogues::default();
        for class in ready {
            match self.cloud.catalogue(&class).await {
                Ok(catalogue) => {
                    catalogues.insert(class.name_any().into(), self.unavailable.apply(&catalogue));
                }
                Err(error) => tracing::warn!(EC2NodeClass.name = class.name_any(), %error, "no instance types for now"),
            }
        }
        catalogues
    }

    /// Makes a snapshot with what can be bought now; nothing can as long as it is not known which overlays there are.
    pub async fn snapshot(&self) -> Snapshot {
        let overlays = self.overlays.known();
        let catalogues = match &overlays {
            Some(_) => self.catalogues().await,
            None => Catalogues::default(),
        };
        let settings = Settings {
            spot_to_spot: self.options.feature_gates.enabled("SpotToSpotConsolidation"),
            repair: self.options.feature_gates.enabled("NodeRepair"),
            static_capacity: self.options.feature_gates.enabled("StaticCapacity"),
            preferences: self.options.preference_policy.into(),
            min_values: self.options.min_values_policy.into(),
            max_pod_share: self.options.max_pod_share,
            price_tolerance: self.options.price_tolerance,
            consolidation_floor: self.options.consolidation_floor,
            ..Settings::default()
        };
        self.market.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&catalogues);
        self.confirm_assumed().await;
        let (mut snapshot, unreadable) = self.stores.snapshot(catalogues, settings, Timestamp::now());
        self.assumed().apply(&mut snapshot);
        snapshot.overlay(&overlays.unwrap_or_default());
        snapshot.buffers.clone_from(&self.buffers.lock().unwrap_or_else(PoisonError::into_inner));
        self.health.hold(&mut snapshot);
        self.tell_unreadable(&unreadable);
        self.metrics.cluster_nodes.set(snapshot.nodes.len() as i64);
        snapshot
    }
}

impl Context {
    /// Returns the id of a zone; empty when nothing could be bought in it when it was looked last.
    fn zone_id(&self, zone: &str) -> String {
        let market = self.market.lock().unwrap_or_else(PoisonError::into_inner);
        let mut zones = market.values().flat_map(|catalogue| catalogue.zones());
        zones.find(|known| &*known.name == zone).map(|known| known.id.to_string()).unwrap_or_default()
    }

    /// What was written and may not be seen yet.
    pub fn assumed(&self) -> MutexGuard<'_, Assumed> {
        // The lock is held over plain map operations only; what a panic there left is still a map.
        self.assumed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to act after another: its last writes may not be seen yet.
    pub async fn take_over(&self) -> kube::Result<()> {
        let claims = Api::<Guarded<NodeClaim>>::all(self.client.clone()).list(&ListParams::default()).await?;
        let claims: Vec<NodeClaim> = claims.items.into_iter().filter_map(Guarded::or_stand_in).collect();
        self.assumed().inherit(&claims, Timestamp::now());
        Ok(())
    }

    /// Names a node that is to be written, as the watch shows it.
    fn which(&self, node: &Arc<str>) -> Which {
        Which { name: node.clone(), seen: self.stores.node(node) }
    }

    /// Asks that a claim ends, and reckons with it before the watch shows it; says whether it did not end already.
    async fn delete_claim(&self, name: &str, uid: &str) -> kube::Result<Outcome> {
        // the API server says the same of one that was asked to end before
        let leaves = self.assumed().leaves(name);
        let outcome =
            effect::apply(&self.client, &Effect::DeleteNodeClaim { name: name.into(), uid: uid.into() }).await?;
        if outcome == Outcome::Nothing {
            return Ok(Outcome::Nothing);
        }
        let mut assumed = self.assumed();
        // or of one that another asks to end in the same moment
        let twice = leaves || assumed.leaves(name);
        assumed.deleted(name);
        Ok(if twice { Outcome::Nothing } else { Outcome::Done })
    }

    /// Asks for claims that the watch should have shown: one that went before it was seen would be reckoned with for ever.
    async fn confirm_assumed(&self) {
        let doubtful = self.assumed().doubtful(Timestamp::now());
        for name in doubtful.into_iter().filter(|name| self.stores.claim(name).is_none()) {
            match Api::<NodeClaim>::all(self.client.clone()).get_metadata_opt(&name).await {
                Ok(Some(_)) => tracing::warn!(NodeClaim.name = %name, "the watch has not shown the new nodeclaim yet"),
                Ok(None) => {
                    self.assumed().forget(&name);
                    // pods may have been planned for it
                    self.provision.notify_one();
                }
                Err(error) => tracing::warn!(NodeClaim.name = %name, %error, "cannot ask for a nodeclaim"),
            }
        }
    }

    /// Tells of objects that are left out because they cannot be read: by log, each once while it stays so, by event, and by count.
    fn tell_unreadable(&self, unreadable: &[LeftOut]) {
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for left_out in unreadable {
            let note = format!("{}: {}", left_out.why.field, left_out.why.problem);
            self.events.publish(&left_out.about, Reason::ValidationFailed, note);
            *counts.entry(&left_out.why.kind).or_default() += 1;
        }
        self.metrics.unreadable_objects.clear();
        for (kind, count) in counts {
            self.metrics.unreadable_objects.get_or_create(&KindLabels::new(kind)).set(count);
        }
        let now: BTreeSet<String> = unreadable.iter().map(|left_out| left_out.why.to_string()).collect();
        let mut told = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        for why in now.difference(&told) {
            tracing::warn!(error = why, "leaving out an object that cannot be read");
        }
        *told = now;
    }
}

/// Starts every controller; they end when `stop` is cancelled and what had begun is done.
pub fn spawn(context: &Arc<Context>, stop: &CancellationToken, tasks: &mut JoinSet<()>) {
    tasks.spawn(provisioning::run(context.clone(), stop.clone()));
    tasks.spawn(node_claim::run(context.clone(), stop.clone()));
    tasks.spawn(node_pool::run(context.clone(), stop.clone()));
    tasks.spawn(node_class::run(context.clone(), stop.clone()));
    tasks.spawn(termination::run(context.clone(), stop.clone()));
    tasks.spawn(pod_events::run(context.clone(), stop.clone()));
    tasks.spawn(pod_events::measure(context.clone(), stop.clone()));
    tasks.spawn(transitions::measure(context.clone(), stop.clone()));
    tasks.spawn(garbage::run(context.clone(), stop.clone()));
    tasks.spawn(batch::run(context.clone(), stop.clone()));
    tasks.spawn(disruption::run(context.clone(), stop.clone()));
    tasks.spawn(interruption::run(context.clone(), stop.clone()));
    tasks.spawn(instance_status::run(context.clone(), stop.clone()));
    tasks.spawn(unreadable::run(context.clone(), stop.clone()));
    tasks.spawn(capacity::run(context.clone(), stop.clone()));
    if context.options.feature_gates.enabled("CapacityBuffer") {
        tasks.spawn(buffers::run(context.clone(), stop.clone()));
    }
    if context.options.feature_gates.enabled("NodeOverlay") {
        tasks.spawn(overlays::run(context.clone(), stop.clone()));
    }
    if context.options.feature_gates.enabled("ReservedCapacity") {
        tasks.spawn(reservations::run(context.clone(), stop.clone()));
    }
    if context.options.feature_gates.enabled("StaticCapacity") {
        tasks.spawn(replicas::run(context.clone(), stop.clone()));
    }
}

/// Remembers the last plan.
#[derive(Default)]
pub struct Plans(Mutex<LastPlan>);

impl Plans {
    /// Answers the last plan, which nobody replaces meanwhile.
    pub fn last(&self) -> MutexGuard<'_, LastPlan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces what is planned: a later solution knows better.
    pub fn replace(&self, plan: LastPlan) {
        *self.last() = plan;
    }
}

/// Reports a reconcile that has to be tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not take it.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// The cloud did not do it.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// A launch failed in a way that time may cure.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// An object cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

impl Error {
    /// Says whether the API server refused because something else changed first: look again soon, without a word.
    fn is_race(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Calls that plan for the whole cluster.
    const PLANS: [&str; 6] = ["solve(&", "plan_with(", "uphold(", "with_room_taken(", "replicas(&", "validate_each("];

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }

    /// Two threads serve all that waits: a plan that takes seconds would keep the lease, the watches and the probes from them.
    #[test]
    fn nothing_is_planned_on_a_thread_that_others_wait_for() {
        let mut plans = 0;
        for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/reconcile")) {
            let text = fs::read_to_string(&path).expect("text");
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            for line in code.lines().filter(|line| is_plan(line)).filter(|_| !path.ends_with("tests.rs")) {
                assert!(line.contains("block_in_place("), "{}: {line}", path.display());
                plans += 1;
            }
        }
        assert!(plans >= PLANS.len(), "{plans} calls were found");
    }

    /// Says whether a line calls one of them; a name may end as another does.
    fn is_plan(line: &str) -> bool {
        let is_name = |letter: char| letter.is_alphanumeric() || "._".contains(letter);
        let whole = |(at, _): (usize, &str)| !line[..at].ends_with(is_name);
        PLANS.iter().any(|plan| line.match_indices(plan).any(whole))
    }
}

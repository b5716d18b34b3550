//! The controllers: each observes, decides (in the domain) and acts; the time of the next look comes from the decision.

mod drain;
mod driver;
mod garbage;
mod launch;
mod node_claim;
mod node_class;
mod node_pool;
mod pod_events;
mod provisioning;
mod registration;
mod termination;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use karp_domain::api::conditions;
use karp_domain::cluster::{PodKey, Settings, Snapshot};
use kube::{Client, ResourceExt};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cloud::{CloudError, CloudProvider, LaunchError, Unavailable};
use crate::observe::Stores;
use crate::ops::events::Events;
use crate::ops::metrics::Metrics;
use crate::options::Options;

/// Holds what every controller needs.
pub struct Context {
    /// The API server.
    pub client: Client,
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
    /// Wakes provisioning: something changed that may make or need room.
    pub provision: Notify,
    /// Wakes disruption: look again at once.
    pub disrupt: Notify,
    /// Which pods each new node was planned for.
    pub plans: Plans,
}

impl Context {
    /// Makes a snapshot with what can be bought now. A class whose catalogue cannot be had is left out: its pools wait.
    pub async fn snapshot(&self) -> Snapshot {
        let ready = self.stores.classes.state_filter(|class| {
            class.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
        });
        let mut catalogues = BTreeMap::new();
        for class in ready {
            match self.cloud.catalogue(&class).await {
                Ok(catalogue) => {
                    catalogues.insert(class.name_any().into(), self.unavailable.apply(&catalogue));
                }
                Err(error) => tracing::warn!(EC2NodeClass.name = class.name_any(), %error, "no instance types for now"),
            }
        }
        let settings = Settings {
            spot_to_spot: self.options.feature_gates.enabled("SpotToSpotConsolidation"),
            ..Settings::default()
        };
        let (snapshot, unreadable) = self.stores.snapshot(catalogues, settings, Timestamp::now());
        for why in unreadable {
            tracing::warn!(error = %why, "leaving out an object that cannot be read");
        }
        self.metrics.cluster_nodes.set(snapshot.nodes.len() as i64);
        snapshot
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
    tasks.spawn(garbage::run(context.clone(), stop.clone()));
}

/// Remembers which pods each claim was planned for, until its node has opened to them.
#[derive(Default)]
pub struct Plans(Mutex<BTreeMap<Arc<str>, BTreeSet<PodKey>>>);

impl Plans {
    /// Replaces what is planned: a later solution knows better.
    pub fn replace(&self, plans: BTreeMap<Arc<str>, BTreeSet<PodKey>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = plans;
    }

    /// Adds the pods of one claim.
    pub fn insert(&self, claim: Arc<str>, pods: BTreeSet<PodKey>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(claim, pods);
    }

    /// Returns the pods that a claim was planned for.
    pub fn pods(&self, claim: &str) -> BTreeSet<PodKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(claim).cloned().unwrap_or_default()
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
    Unreadable(#[from] karp_domain::cluster::Unreadable),
}

impl Error {
    /// Says whether the API server refused because something else changed first: look again soon, without a word.
    fn is_race(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found())
    }
}

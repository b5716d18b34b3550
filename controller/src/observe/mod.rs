//! What is known of the cluster: caches kept by watches, the changes they announce, and the snapshot made of them.

mod objects;
mod pods;
mod readings;
mod snapshot;
pub mod unread;
mod watch;
mod written;

use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool, labels};
use karp_domain::cluster::{self, Pod, PodKey};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, ResourceExt};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use readings::Readings;
use unread::Aside;

pub use pods::PodCache;
pub use snapshot::LeftOut;
pub use written::Written;

/// Changes remembered for a consumer that is busy; one that falls behind looks at everything again.
const CHANGE_BUFFER: usize = 4096;

/// Announces that an object came, changed or went.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the kinds name themselves
pub enum Change {
    Pod {
        key: PodKey,
        node: Option<Arc<str>>,
        pending: bool,
        /// Its node is busier or quieter for it; never for a daemon's pod.
        moved: bool,
        /// The pod as it is; none when it is gone or cannot be read.
        pod: Option<Arc<Pod>>,
    },
    Node(Arc<str>),
    Claim(Arc<str>),
    Pool(Arc<str>),
    Class(Arc<str>),
    Daemon,
    Budget,
    Namespace,
    Volume,
    /// What cannot be read is not what it was.
    Unread,
}

/// Holds the caches; cheap to clone.
#[derive(Clone)]
#[allow(missing_docs)] // the kinds name themselves
pub struct Stores {
    pub pods: PodCache,
    pub nodes: Store<Node>,
    pub claims: Store<NodeClaim>,
    pub pools: Store<NodePool>,
    pub classes: Store<Ec2NodeClass>,
    pub daemons: Store<DaemonSet>,
    pub limit_ranges: Store<LimitRange>,
    pub budgets: Store<PodDisruptionBudget>,
    pub namespaces: Store<Namespace>,
    pub volumes: Volumes,
    pub aside: Aside,
    read_nodes: Readings<Node, cluster::Node>,
    read_claims: Readings<NodeClaim, cluster::Claim>,
    changes: broadcast::Sender<Change>,
}

/// Holds the caches of what belongs to persistent volumes.
#[derive(Clone)]
#[allow(missing_docs)] // the kinds name themselves
pub struct Volumes {
    pub claims: Store<PersistentVolumeClaim>,
    pub volumes: Store<PersistentVolume>,
    pub classes: Store<StorageClass>,
    pub nodes: Store<CSINode>,
}

/// Says whether a volume can be attached to several nodes: pods elsewhere need not wait until it has left one.
pub fn is_shared(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
    // one that may also be written by one node alone may be attached so
    let many = |mode: &String| mode == "ReadWriteMany" || mode == "ReadOnlyMany";
    modes.is_some_and(|modes| !modes.is_empty() && modes.iter().all(many))
}

impl Volumes {
    fn start(feed: &watch::Feed) -> Self {
        Self {
            claims: feed.store("PersistentVolumeClaim", |_| Change::Volume),
            volumes: feed.store("PersistentVolume", |_| Change::Volume),
            classes: feed.store("StorageClass", |_| Change::Volume),
            nodes: feed.store("CSINode", |_| Change::Volume),
        }
    }

    async fn synced(&self) -> bool {
        self.claims.wait_until_ready().await.is_ok()
            && self.volumes.wait_until_ready().await.is_ok()
            && self.classes.wait_until_ready().await.is_ok()
            && self.nodes.wait_until_ready().await.is_ok()
    }
}

impl Stores {
    /// Starts the watches; they end when `stop` is cancelled.
    pub fn start(client: &Client, stop: &CancellationToken) -> Self {
        let (changes, _) = broadcast::channel(CHANGE_BUFFER);
        let aside = Aside::default();
        let (client, stop) = (client.clone(), stop.clone());
        let feed = watch::Feed { client, stop, changes: changes.clone(), aside: aside.clone() };
        Self {
            pods: pods::start(&feed),
            nodes: feed.store("Node", Change::Node),
            claims: feed.store("NodeClaim", Change::Claim),
            pools: feed.store("NodePool", Change::Pool),
            classes: feed.store("EC2NodeClass", Change::Class),
            daemons: feed.store("DaemonSet", |_| Change::Daemon),
            limit_ranges: feed.store("LimitRange", |_| Change::Daemon),
            budgets: feed.store("PodDisruptionBudget", |_| Change::Budget),
            namespaces: feed.store("Namespace", |_| Change::Namespace),
            volumes: Volumes::start(&feed),
            aside,
            read_nodes: Readings::default(),
            read_claims: Readings::default(),
            changes,
        }
    }

    /// Waits until every cache was filled once; false when the watches ended before. LimitRanges are not waited for: a role that Karpenter's
    /// chart made does not let them be read, and without them daemons are reckoned with by their templates and newest pods.
    pub async fn synced(&self) -> bool {
        self.pods.wait_until_ready().await
            && self.nodes.wait_until_ready().await.is_ok()
            && self.claims.wait_until_ready().await.is_ok()
            && self.pools.wait_until_ready().await.is_ok()
            && self.classes.wait_until_ready().await.is_ok()
            && self.daemons.wait_until_ready().await.is_ok()
            && self.budgets.wait_until_ready().await.is_ok()
            && self.namespaces.wait_until_ready().await.is_ok()
            && self.volumes.synced().await
    }

    /// Subscribes to changes from now on.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Announces a change that no watch has seen.
    #[cfg(test)]
    pub fn announce(&self, change: Change) {
        self.changes.send(change).expect("somebody listens");
    }

    /// Returns a node by name.
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectRef::new(name))
    }

    /// Returns the node of an instance; an empty provider id matches none.
    pub fn node_of(&self, provider_id: &str) -> Option<Arc<Node>> {
        if provider_id.is_empty() {
            return None;
        }
        self.nodes.find(|node| node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == Some(provider_id))
    }

    /// Returns a claim by name.
    pub fn claim(&self, name: &str) -> Option<Arc<NodeClaim>> {
        self.claims.get(&ObjectRef::new(name))
    }

    /// Returns the claim of an instance, if it is one of karp's node classes.
    pub fn claim_of(&self, provider_id: &str) -> Option<Arc<NodeClaim>> {
        self.any_claim_of(provider_id).filter(|claim| claim.spec.node_class_ref.is_ours())
    }

    fn any_claim_of(&self, provider_id: &str) -> Option<Arc<NodeClaim>> {
        if provider_id.is_empty() {
            return None;
        }
        self.claims
            .find(|claim| claim.status.as_ref().and_then(|status| status.provider_id.as_deref()) == Some(provider_id))
    }

    /// Says whether a node is another provider's, such as EKS Auto Mode's: it has the same finalizer and taints, and is none of ours. Its claim
    /// says so, or its pool where no claim is left.
    pub fn is_foreign(&self, node: &Node) -> bool {
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
        let class = match self.any_claim_of(id) {
            Some(claim) => Some(claim.spec.node_class_ref.clone()),
            None => {
                let pool = node.labels().get(labels::NODE_POOL).and_then(|pool| self.pool(pool));
                pool.map(|pool| pool.spec.template.spec.node_class_ref.clone())
            }
        };
        class.is_some_and(|class| !class.is_ours())
    }

    /// Returns a pool by name.
    pub fn pool(&self, name: &str) -> Option<Arc<NodePool>> {
        self.pools.get(&ObjectRef::new(name))
    }

    /// Says whether there is a pool, though it may be beyond reading, or something left of it.
    pub fn has_pool(&self, name: &str) -> bool {
        let of_pool = |claim: &NodeClaim| claim.labels().get(labels::NODE_POOL).is_some_and(|pool| pool == name);
        self.pool(name).is_some() || self.aside.has("NodePool", name) || self.claims.find(of_pool).is_some()
    }

    /// Returns a node class by name.
    pub fn class(&self, name: &str) -> Option<Arc<Ec2NodeClass>> {
        self.classes.get(&ObjectRef::new(name))
    }
}

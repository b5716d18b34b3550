//! The snapshot: the caches as the engine reads them, at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use karp_domain::api::NodePool;
use karp_domain::cluster::{
    Catalogues, Claim, DaemonSet, LimitRange, Node, Pod, PodBudget, Pool, Settings, Snapshot, StorageClass, Unreadable,
    Volume, VolumeClaim, Volumes, foresee,
};
use kube::{Resource, ResourceExt};

use super::Stores;
use crate::effect;
use crate::ops::metrics::Kind;
use crate::ops::state::Observed;

/// Names an object that is left out of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOut {
    /// The object.
    pub about: ObjectReference,
    /// Why.
    pub why: Unreadable,
}

impl Stores {
    /// Makes a snapshot. What cannot be read is left out and returned beside it, so that it never stops the others.
    pub fn snapshot(&self, catalogues: Catalogues, settings: Settings, now: Timestamp) -> (Snapshot, Vec<LeftOut>) {
        // Pods are told of by provisioning, and other providers' pools by them.
        let aside = self.aside.all().into_iter().filter(|unread| unread.why.kind != "Pod" && !unread.foreign);
        let mut unreadable: Vec<LeftOut> =
            aside.map(|unread| LeftOut { about: unread.reference(), why: unread.why.clone() }).collect();
        let ranges = read(self.limit_ranges.state(), LimitRange::from_kube, &mut unreadable);
        let mut pods = self.pods.all();
        foresee(&mut pods);
        let daemons: Vec<Arc<Pod>> = pods.iter().filter(|pod| pod.daemon_set.is_some()).cloned().collect();
        let snapshot = Snapshot {
            now,
            pods,
            unread: self.pods.unreadable().into_iter().filter_map(|(key, unread)| Some((unread.node?, key))).collect(),
            nodes: sift(self.read_nodes.read(self.nodes.state(), Node::from_kube), &mut unreadable),
            claims: sift(self.read_claims.read(self.claims.state(), Claim::from_kube), &mut unreadable),
            pools: read(self.pools.state(), Pool::from_kube, &mut unreadable),
            daemons: read(self.daemons.state(), |set| DaemonSet::admitted(set, &ranges, &daemons), &mut unreadable),
            budgets: read(self.budgets.state(), PodBudget::from_kube, &mut unreadable),
            namespaces: self.namespace_labels(),
            volumes: self.volumes.read(&mut unreadable),
            catalogues,
            buffers: Vec::new(),
            settings,
        };
        (snapshot, unreadable)
    }

    /// Answers the disruption budgets that can be read.
    pub fn pod_budgets(&self) -> Vec<Arc<PodBudget>> {
        read(self.budgets.state(), PodBudget::from_kube, &mut Vec::new())
    }

    /// Answers the limit ranges that can be read.
    pub fn limit_ranges(&self) -> Vec<Arc<LimitRange>> {
        read(self.limit_ranges.state(), LimitRange::from_kube, &mut Vec::new())
    }
}

impl Stores {
    /// Gathers what the metrics tell of the cluster, as far as caches know it.
    pub fn observed(&self, catalogues: Catalogues, only_sums: bool, now: Timestamp) -> Observed {
        let (snapshot, _) = self.snapshot(catalogues, Settings::default(), now);
        let mut objects = self.objects();
        objects.retain(|object| object.kind != Kind::Node || !only_sums);
        let usage = |pool: Arc<NodePool>| Some((pool.name_any(), pool.status.as_ref()?.resources.clone()?));
        let usage = self.pools.state().into_iter().filter_map(usage).collect();
        let (decisions, kept, prices_read, user_data) = Default::default();
        Observed { snapshot, usage, objects, decisions, kept, prices_read, user_data, only_sums }
    }

    fn namespace_labels(&self) -> BTreeMap<Arc<str>, BTreeMap<String, String>> {
        let labels = |namespace: &Arc<Namespace>| {
            (namespace.name_any().into(), namespace.metadata.labels.clone().unwrap_or_default())
        };
        self.namespaces.state().iter().map(labels).collect()
    }
}

impl super::Volumes {
    fn read(&self, unreadable: &mut Vec<LeftOut>) -> Volumes {
        let mut volumes = Volumes {
            claims: self.claims.state().iter().map(|claim| VolumeClaim::from_kube(claim)).collect(),
            volumes: named(self.volumes.state(), Volume::from_kube, unreadable),
            classes: named(self.classes.state(), StorageClass::from_kube, unreadable),
            ..Volumes::default()
        };
        self.nodes.state().iter().for_each(|node| volumes.add_csi_node(node));
        volumes
    }
}

fn named<K: Resource<DynamicType = ()>, T>(
    objects: Vec<Arc<K>>,
    one: impl Fn(&K) -> Result<(Arc<str>, T), Unreadable>,
    unreadable: &mut Vec<LeftOut>,
) -> BTreeMap<Arc<str>, T> {
    let mut all = BTreeMap::new();
    for object in objects {
        match one(&object) {
            Ok((name, read)) => drop(all.insert(name, read)),
            Err(why) => unreadable.push(LeftOut { about: effect::reference(&*object), why }),
        }
    }
    all
}

fn read<K: Resource<DynamicType = ()>, T>(
    objects: Vec<Arc<K>>,
    one: impl Fn(&K) -> Result<T, Unreadable>,
    unreadable: &mut Vec<LeftOut>,
) -> Vec<Arc<T>> {
    let read = objects.into_iter().map(|object| {
        let read = one(&object).map(Arc::new);
        (object, read)
    });
    sift(read, unreadable)
}

/// Parts what could be read from what could not.
fn sift<K: Resource<DynamicType = ()>, T>(
    objects: impl IntoIterator<Item = (Arc<K>, Result<Arc<T>, Unreadable>)>,
    unreadable: &mut Vec<LeftOut>,
) -> Vec<Arc<T>> {
    let mut all = Vec::new();
    for (object, read) in objects {
        match read {
            Ok(read) => all.push(read),
            Err(why) => unreadable.push(LeftOut { about: effect::reference(&*object), why }),
        }
    }
    all
}

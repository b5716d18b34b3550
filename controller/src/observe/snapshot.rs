//! The snapshot: the caches as the engine reads them, at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use karp_domain::catalogue::Catalogue;
use karp_domain::cluster::{Claim, DaemonSet, Node, PodBudget, Pool, Settings, Snapshot, Unreadable};

use kube::Resource;

use super::Stores;
use crate::effect;

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
    pub fn snapshot(
        &self,
        catalogues: BTreeMap<Arc<str>, Arc<Catalogue>>,
        settings: Settings,
        now: Timestamp,
    ) -> (Snapshot, Vec<LeftOut>) {
        // Pods are told of by provisioning, and other providers' pools by them.
        let aside = self.aside.all().into_iter().filter(|unread| unread.why.kind != "Pod" && !unread.foreign);
        let mut unreadable: Vec<LeftOut> =
            aside.map(|unread| LeftOut { about: unread.reference(), why: unread.why.clone() }).collect();
        let snapshot = Snapshot {
            now,
            pods: self.pods.all(),
            nodes: read(self.nodes.state(), Node::from_kube, &mut unreadable),
            claims: read(self.claims.state(), Claim::from_kube, &mut unreadable),
            pools: read(self.pools.state(), Pool::from_kube, &mut unreadable),
            daemons: read(self.daemons.state(), DaemonSet::from_kube, &mut unreadable),
            budgets: read(self.budgets.state(), PodBudget::from_kube, &mut unreadable),
            namespaces: BTreeMap::new(),
            volumes: karp_domain::cluster::Volumes::default(),
            catalogues,
            settings,
        };
        (snapshot, unreadable)
    }
}

fn read<K: Resource<DynamicType = ()>, T>(
    objects: Vec<Arc<K>>,
    one: impl Fn(&K) -> Result<T, Unreadable>,
    unreadable: &mut Vec<LeftOut>,
) -> Vec<Arc<T>> {
    let mut all = Vec::with_capacity(objects.len());
    for object in objects {
        match one(&object) {
            Ok(read) => all.push(Arc::new(read)),
            Err(why) => unreadable.push(LeftOut { about: effect::reference(&*object), why }),
        }
    }
    all
}

//! The snapshot: the caches as the engine reads them, at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karp_domain::catalogue::Catalogue;
use karp_domain::cluster::{Claim, DaemonSet, Node, PodBudget, Pool, Settings, Snapshot, Unreadable};

use super::Stores;

impl Stores {
    /// Makes a snapshot. What cannot be read is left out and returned beside it, so that it never stops the others.
    pub fn snapshot(
        &self,
        catalogues: BTreeMap<Arc<str>, Arc<Catalogue>>,
        settings: Settings,
        now: Timestamp,
    ) -> (Snapshot, Vec<Unreadable>) {
        let mut unreadable = Vec::new();
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

fn read<K, T>(
    objects: Vec<Arc<K>>,
    one: impl Fn(&K) -> Result<T, Unreadable>,
    unreadable: &mut Vec<Unreadable>,
) -> Vec<Arc<T>> {
    let mut all = Vec::with_capacity(objects.len());
    for object in objects {
        match one(&object) {
            Ok(read) => all.push(Arc::new(read)),
            Err(why) => unreadable.push(why),
        }
    }
    all
}

//! Volumes that nodes attach: a resource like any other, one for each CSI driver that bounds how many a node takes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::amounts::{Amounts, Dims};
use super::problem::HostLabels;
use crate::api::labels;
use crate::catalogue::InstanceType;
use crate::cluster::{ClaimRef, EBS_DRIVER, Host, Pod, PodKey, Snapshot};

/// What nodes can attach and what pods want attached.
pub(crate) struct Attach<'a> {
    snapshot: &'a Snapshot,
    /// Drivers that bound how many volumes a node takes, and whose volumes some pod may have.
    drivers: Vec<Arc<str>>,
    /// The most that nodes of a type took, by type and driver.
    seen: FxHashMap<(&'a str, &'a str), u32>,
    /// The most that any node took, by driver.
    most: BTreeMap<&'a str, u32>,
    /// How much less than EC2 says every type at hand took of EBS volumes: drivers can be told to keep some for others.
    less: u32,
}

impl<'a> Attach<'a> {
    /// Reads what CSINodes say; nothing when no pod has a claim.
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let mut attach =
            Attach { snapshot, drivers: Vec::new(), seen: FxHashMap::default(), most: BTreeMap::new(), less: 0 };
        if snapshot.pods.iter().all(|pod| pod.claims.is_empty()) {
            return attach;
        }
        attach.look();
        let volumes = &snapshot.volumes;
        let of_volumes = volumes.volumes.values().filter_map(|volume| volume.driver.as_ref());
        let mut used: BTreeSet<&Arc<str>> =
            of_volumes.chain(volumes.classes.values().map(|c| &c.provisioner)).collect();
        let claims = snapshot.pods.iter().flat_map(|pod| pod.claims.iter().map(move |claim| (pod, claim)));
        let inline = claims.filter(|(_, claim)| matches!(claim, ClaimRef::Inline { .. })).take(1);
        used.extend(inline.filter_map(|(pod, claim)| volumes.driver(&claim.key(&pod.key), claim)));
        let bounded = |driver: &&Arc<str>| &***driver == EBS_DRIVER || attach.most.contains_key(&***driver);
        attach.drivers = used.into_iter().filter(bounded).cloned().collect();
        attach
    }

    /// Notes what nodes say.
    fn look(&mut self) {
        for node in &self.snapshot.nodes {
            let kind = node.labels.get(labels::INSTANCE_TYPE);
            for (driver, count) in self.snapshot.volumes.attachable.get(&node.name).into_iter().flatten() {
                let raise = |most: &mut u32| *most = (*most).max(*count);
                raise(self.most.entry(driver).or_default());
                if let Some(kind) = kind {
                    raise(self.seen.entry((kind, driver)).or_default());
                }
            }
        }
        let known = |kind: &str| self.snapshot.catalogues.values().find_map(|all| all.get(kind)?.attachable);
        let of_ebs = self.seen.iter().filter(|((_, driver), _)| *driver == EBS_DRIVER);
        let less = of_ebs.filter_map(|((kind, _), seen)| Some(known(kind)?.saturating_sub(*seen)));
        self.less = less.min().unwrap_or(0);
    }

    /// The drivers whose volumes are counted.
    pub(crate) fn drivers(&self) -> &[Arc<str>] {
        &self.drivers
    }

    /// How many volumes of each driver a pod brings to the node where it is placed. A claim that several pods name counts for each of them,
    /// since each may be on a node of its own.
    pub(crate) fn wanted(&self, pod: &Pod) -> BTreeMap<Arc<str>, u32> {
        self.count(pod.claims.iter().map(|claim| (pod, claim)))
    }

    /// Sets what a new node of a type can attach.
    pub(crate) fn set_type(&self, dims: &Dims, room: &mut Amounts, kind: &InstanceType) {
        dims.set_volumes(room, |driver| self.of_type(kind, driver));
    }

    /// Sets what a host can attach beside what its pods have: as its CSINode says, before there is one as its type does. A node of which
    /// neither tells is not bounded, as in kube-scheduler.
    pub(crate) fn set_host(&self, dims: &Dims, room: &mut Amounts, host: (&Host, &HostLabels), pods: &[Arc<Pod>]) {
        if self.drivers.is_empty() {
            return;
        }
        let told = host.0.node.as_ref().and_then(|node| self.snapshot.volumes.attachable.get(&node.name));
        let there = self.count(pods.iter().flat_map(|pod| pod.claims.iter().map(move |claim| (&**pod, claim))));
        dims.set_volumes(room, |driver| {
            let most = told.and_then(|told| told.get(driver).copied()).or_else(|| self.planned(host, driver))?;
            Some(most.saturating_sub(there.get(driver).copied().unwrap_or(0)))
        });
    }

    /// How many volumes claims of pods are, by driver.
    fn count<'p>(&self, claims: impl Iterator<Item = (&'p Pod, &'p ClaimRef)>) -> BTreeMap<Arc<str>, u32> {
        let volumes = &self.snapshot.volumes;
        let mut seen: FxHashSet<PodKey> = FxHashSet::default();
        let mut counted: BTreeMap<Arc<str>, u32> = BTreeMap::new();
        for (pod, claim) in claims {
            let key = claim.key(&pod.key);
            if let Some(driver) = volumes.driver(&key, claim)
                && seen.insert(key)
            {
                *counted.entry(driver.clone()).or_default() += 1;
            }
        }
        counted
    }

    /// What a host can attach by the types that its claim may become, or has.
    fn planned(&self, (host, labels): (&Host, &HostLabels), driver: &str) -> Option<u32> {
        match labels {
            HostLabels::Asked { catalogue, types, .. } => {
                types.ones().filter_map(|at| self.of_type(&catalogue.types()[at], driver)).min()
            }
            HostLabels::Known(labels) => {
                let claim = host.claim.as_ref()?;
                let catalogue = self.snapshot.catalogues.of(&claim.class.name, claim.pool.as_deref())?;
                self.of_type(catalogue.get(labels.get(labels::INSTANCE_TYPE)?)?, driver)
            }
        }
    }

    fn of_type(&self, kind: &InstanceType, driver: &str) -> Option<u32> {
        let seen = self.seen.get(&(&*kind.name, driver)).copied();
        let by_facts =
            || kind.attachable.filter(|_| driver == EBS_DRIVER).map(|most| most.saturating_sub(self.less).max(1));
        seen.or_else(by_facts).or_else(|| self.most.get(driver).copied())
    }
}

//! Volumes that nodes attach: a resource like any other, one for each CSI driver that bounds how many a node takes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::amounts::{Amounts, Dims};
use super::problem::HostLabels;
use crate::api::labels;
use crate::catalogue::{Catalogue, InstanceType};
use crate::cluster::{ClaimRef, EBS_DRIVER, Host, Phase, Pod, PodKey, Snapshot, VolumeNeeds, VolumeProblem};

/// What nodes can attach and what pods want attached.
#[derive(Default)]
pub(crate) struct Attach<'a> {
    /// Drivers that bound how many volumes a node takes, and whose volumes some pod may have.
    drivers: Vec<Arc<str>>,
    /// The pod that counts a claim which several name: it is attached once.
    shared: FxHashMap<(&'a str, &'a str), &'a PodKey>,
    /// What nodes of a type took, by type and driver: drivers can be told to keep some for others.
    seen: FxHashMap<(&'a str, &'a str), u32>,
    /// The most that any node took, by driver.
    most: BTreeMap<&'a str, u32>,
}

impl<'a> Attach<'a> {
    /// Reads what CSINodes say; nothing when no pod has a claim.
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let mut attach = Attach::default();
        if snapshot.pods.iter().all(|pod| pod.claims.is_empty()) {
            return attach;
        }
        let volumes = &snapshot.volumes;
        for node in &snapshot.nodes {
            let kind = node.labels.get(labels::INSTANCE_TYPE);
            for (driver, count) in volumes.attachable.get(&node.name).into_iter().flatten() {
                let raise = |most: &mut u32| *most = (*most).max(*count);
                raise(attach.most.entry(driver).or_default());
                if let Some(kind) = kind {
                    raise(attach.seen.entry((kind, driver)).or_default());
                }
            }
        }
        let of_volumes = volumes.volumes.values().filter_map(|volume| volume.driver.as_ref());
        let used: BTreeSet<&Arc<str>> = of_volumes.chain(volumes.classes.values().map(|c| &c.provisioner)).collect();
        let bounded = |driver: &&Arc<str>| &***driver == EBS_DRIVER || attach.most.contains_key(&***driver);
        attach.drivers = used.into_iter().filter(bounded).cloned().collect();
        attach.share(snapshot);
        attach
    }

    /// Of pods that name one claim, the first that is bound counts it, else the first.
    fn share(&mut self, snapshot: &'a Snapshot) {
        let mut first: FxHashMap<(&str, &str), &Pod> = FxHashMap::default();
        for pod in snapshot.pods.iter().filter(|pod| pod.phase != Phase::Terminal) {
            for claim in &pod.claims {
                let ClaimRef::Named(name) = claim else { continue };
                let key = (&*pod.key.namespace, &**name);
                let Some(other) = first.get_mut(&key) else {
                    first.insert(key, pod);
                    continue;
                };
                let rank = |pod: &Pod| (pod.node.is_none(), pod.key.clone());
                if rank(pod) < rank(other) {
                    *other = pod;
                }
                self.shared.insert(key, &other.key);
            }
        }
    }

    /// The drivers whose volumes are counted.
    pub(crate) fn drivers(&self) -> &[Arc<str>] {
        &self.drivers
    }

    /// Answers what the claims of a pod ask for, or the first claim that is wrong. A claim that another pod counts attaches nothing.
    pub(crate) fn needs(&self, snapshot: &Snapshot, pod: &Pod) -> Result<VolumeNeeds, (String, VolumeProblem)> {
        if self.shared.is_empty() {
            return snapshot.volumes.needs(&pod.key, &pod.claims);
        }
        let counted = |claim: &ClaimRef| match claim {
            ClaimRef::Named(name) => {
                self.shared.get(&(&*pod.key.namespace, &**name)).is_none_or(|counts| **counts == pod.key)
            }
            ClaimRef::Ephemeral { .. } => true,
        };
        let own: Vec<ClaimRef> = pod.claims.iter().filter(|claim| counted(claim)).cloned().collect();
        let mut needs = snapshot.volumes.needs(&pod.key, &pod.claims)?;
        if own.len() < pod.claims.len() {
            needs.attach = snapshot.volumes.needs(&pod.key, &own)?.attach;
        }
        Ok(needs)
    }

    /// Sets what a new node of a type can attach.
    pub(crate) fn set_type(&self, dims: &Dims, room: &mut Amounts, kind: &InstanceType) {
        dims.set_volumes(room, |driver| self.of_type(kind, driver));
    }

    /// Sets what a host can attach, volumes that are attached included: as its CSINode says, before there is one as its type does. A node
    /// of which neither tells is not bounded, as in kube-scheduler.
    pub(crate) fn set_host(
        &self,
        (dims, snapshot): (&Dims, &Snapshot),
        room: &mut Amounts,
        host: &Host,
        labels: &HostLabels,
    ) {
        if self.drivers.is_empty() {
            return;
        }
        let told = host.node.as_ref().and_then(|node| snapshot.volumes.attachable.get(&node.name));
        let launched = match labels {
            HostLabels::Asked { catalogue, types, .. } => Some((&**catalogue, types.ones().collect())),
            HostLabels::Known(labels) => self.launched_as(snapshot, host, labels),
        };
        let planned = |driver: &str| {
            let (catalogue, types): &(&Catalogue, Vec<usize>) = launched.as_ref()?;
            types.iter().filter_map(|at| self.of_type(&catalogue.types()[*at], driver)).min()
        };
        dims.set_volumes(room, |driver| told.and_then(|told| told.get(driver).copied()).or_else(|| planned(driver)));
    }

    /// The type of a host that a claim stands for.
    fn launched_as<'s>(
        &self,
        snapshot: &'s Snapshot,
        host: &Host,
        labels: &BTreeMap<String, String>,
    ) -> Option<(&'s Catalogue, Vec<usize>)> {
        let claim = host.claim.as_ref()?;
        let catalogue = snapshot.catalogues.of(&claim.class.name, claim.pool.as_deref())?;
        let at = catalogue.position(labels.get(labels::INSTANCE_TYPE)?)?;
        Some((catalogue, vec![at]))
    }

    fn of_type(&self, kind: &InstanceType, driver: &str) -> Option<u32> {
        let by_facts = kind.attachable.filter(|_| driver == EBS_DRIVER);
        self.seen.get(&(&*kind.name, driver)).copied().or(by_facts).or_else(|| self.most.get(driver).copied())
    }
}

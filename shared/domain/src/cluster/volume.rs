//! Persistent volumes: what they ask of the node that a pod runs on.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use serde::Serialize;

use super::shape::node_selector_terms;
use super::{Pod, PodKey, Unreadable};
use crate::api::labels;
use crate::requirement::{Operator, Requirement, Requirements};

/// More combinations of zones than the volumes of one pod can sensibly leave open; what lies beyond is left out.
const MAX_ALTERNATIVES: usize = 64;

/// Holds volumes, claims, storage classes and what nodes can attach.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volumes {
    /// PersistentVolumeClaims.
    pub claims: BTreeMap<PodKey, VolumeClaim>,
    /// PersistentVolumes by name.
    pub volumes: BTreeMap<Arc<str>, Volume>,
    /// StorageClasses by name.
    pub classes: BTreeMap<Arc<str>, StorageClass>,
    /// How many volumes of each driver a node can attach, by node and driver (CSINode).
    pub attachable: BTreeMap<Arc<str>, BTreeMap<Arc<str>, u32>>,
}

/// Describes a PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeClaim {
    /// Volume that it is bound to.
    pub volume: Option<Arc<str>>,
    /// `storageClassName`.
    pub class: Option<Arc<str>>,
    /// Its volume is lost.
    pub lost: bool,
    /// Deletion was asked for.
    pub deleting: bool,
    /// One pod at a time may use it (`ReadWriteOncePod`).
    pub exclusive: bool,
    /// UID of the pod that it was made for.
    pub pod: Option<Arc<str>>,
}

/// Describes a PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// What a node's labels must be: any one of these.
    pub alternatives: Vec<Requirements>,
    /// It is a disk of a node (`local`, `hostPath`), and goes with it.
    pub local: bool,
    /// CSI driver; in-tree EBS counts as its driver.
    pub driver: Option<Arc<str>>,
}

/// Describes a StorageClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageClass {
    /// Provisioner; the driver of its volumes.
    pub provisioner: Arc<str>,
    /// Volumes are made once it is known where the pod runs (`WaitForFirstConsumer`).
    pub waits: bool,
    /// `allowedTopologies`: any one of these; one that is empty when all will do.
    pub alternatives: Vec<Requirements>,
}

/// Names a claim of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimRef {
    /// A PersistentVolumeClaim by name.
    Named(Arc<str>),
    /// A generic ephemeral volume: its claim is called after pod and volume, and made with the pod.
    Ephemeral {
        /// Name of the volume.
        volume: Arc<str>,
        /// Storage class of the template.
        class: Option<Arc<str>>,
    },
    /// A volume of EBS that the pod names itself (`awsElasticBlockStore`): it has no claim, and is attached like any other.
    Inline {
        /// Id of the volume.
        volume: Arc<str>,
    },
}

/// Says what is wrong with a claim of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum VolumeProblem {
    /// The claim does not exist.
    NoClaim,
    /// The claim's volume is lost.
    Lost,
    /// The claim is being deleted.
    Deleting,
    /// The claim is bound to a volume that does not exist.
    NoVolume {
        /// The volume.
        volume: Arc<str>,
    },
    /// The claim is not bound and names no storage class.
    NoClassName,
    /// The claim's storage class does not exist.
    NoClass {
        /// The class.
        class: Arc<str>,
    },
    /// The class binds at once, so a volume must come before a node can be chosen.
    UnboundImmediate {
        /// The class.
        class: Arc<str>,
    },
    /// The volumes of the pod can be reached from no common node.
    NoCommonPlace,
    /// The claim has the name of the one that is made with the pod, and was not made for it.
    NotItsOwn,
    /// The pod's own selectors keep it from where the volume is.
    PodElsewhere {
        /// The volume, or what makes it: `volume pv-1`, `storage class fast`.
        source: String,
        /// Where it is.
        place: String,
        /// What the pod asks for.
        wanted: String,
    },
    /// One pod at a time may use the claim, and another does or comes first.
    InUse {
        /// The other pod.
        by: PodKey,
    },
}

impl fmt::Display for VolumeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeProblem::NoClaim => f.write_str("the claim does not exist"),
            VolumeProblem::Lost => f.write_str("the claim has lost its volume"),
            VolumeProblem::Deleting => f.write_str("the claim is being deleted"),
            VolumeProblem::NoVolume { volume } => write!(f, "volume {volume} does not exist"),
            VolumeProblem::NoClassName => f.write_str("an unbound claim must name a storage class"),
            VolumeProblem::NoClass { class } => write!(f, "storage class {class} does not exist"),
            VolumeProblem::UnboundImmediate { class } => {
                write!(f, "storage class {class} binds at once, and no volume is bound yet")
            }
            VolumeProblem::NoCommonPlace => f.write_str("no node can reach all volumes of the pod"),
            VolumeProblem::NotItsOwn => {
                f.write_str("the claim was not made for this pod, and has the name of the one that would be")
            }
            VolumeProblem::PodElsewhere { source, place, wanted } => {
                write!(f, "{source} is in {place}, but the pod asks for {wanted}")
            }
            VolumeProblem::InUse { by } => write!(f, "one pod at a time may use the claim, and it is kept for {by}"),
        }
    }
}

/// Reads the claims that a pod's volumes name.
pub(super) fn claims(spec: &core::PodSpec) -> Vec<ClaimRef> {
    let read = |volume: &core::Volume| {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(ClaimRef::Named(claim.claim_name.as_str().into()));
        }
        if let Some(disk) = &volume.aws_elastic_block_store {
            return Some(ClaimRef::Inline { volume: disk.volume_id.as_str().into() });
        }
        let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
        let class = template.spec.storage_class_name.as_deref().map(Arc::from);
        Some(ClaimRef::Ephemeral { volume: volume.name.as_str().into(), class })
    };
    spec.volumes.iter().flatten().filter_map(read).collect()
}

impl ClaimRef {
    /// Answers the claim's namespace and name for the pod that names it; of an inline volume, which has no claim, its id in no namespace.
    pub fn key(&self, pod: &PodKey) -> PodKey {
        let name = match self {
            ClaimRef::Named(name) => name.clone(),
            ClaimRef::Ephemeral { volume, .. } => format!("{}-{volume}", pod.name).into(),
            ClaimRef::Inline { volume } => return PodKey { namespace: "".into(), name: volume.clone() },
        };
        PodKey { namespace: pod.namespace.clone(), name }
    }
}

impl VolumeClaim {
    /// Reads a PersistentVolumeClaim.
    pub fn from_kube(claim: &core::PersistentVolumeClaim) -> (PodKey, Self) {
        let meta = &claim.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or("default");
        let spec = claim.spec.as_ref();
        let text = |text: Option<&String>| text.filter(|text| !text.is_empty()).map(|text| Arc::from(text.as_str()));
        let key = PodKey::new(namespace, meta.name.as_deref().unwrap_or_default());
        let read = VolumeClaim {
            volume: text(spec.and_then(|s| s.volume_name.as_ref())),
            class: text(spec.and_then(|s| s.storage_class_name.as_ref())),
            lost: claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost"),
            deleting: meta.deletion_timestamp.is_some(),
            exclusive: spec.and_then(|s| s.access_modes.as_ref()).is_some_and(|all| all.iter().any(|m| m == EXCLUSIVE)),
            pod: meta.owner_references.iter().flatten().find(|of| of.kind == "Pod").map(|of| of.uid.as_str().into()),
        };
        (key, read)
    }
}

impl Volume {
    /// Reads a PersistentVolume.
    pub fn from_kube(volume: &core::PersistentVolume) -> Result<(Arc<str>, Self), Unreadable> {
        let name: Arc<str> = volume.metadata.name.as_deref().unwrap_or_default().into();
        let spec = volume.spec.as_ref();
        let local = spec.is_some_and(|s| s.local.is_some() || s.host_path.is_some());
        let selector = spec.and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
        let alternatives = match selector {
            Some(selector) => node_selector_terms(&selector.node_selector_terms, "spec.nodeAffinity.required")
                .map_err(|e| e.of("PersistentVolume", &name))?,
            None => vec![Requirements::new()],
        };
        let zones = labelled_zones(volume);
        let alternatives = alternatives.iter().map(|own| own.and(&zones)).collect();
        let driver = spec.and_then(|s| match (&s.csi, &s.aws_elastic_block_store) {
            (Some(csi), _) => Some(Arc::from(csi.driver.as_str())),
            (None, Some(_)) => Some(Arc::from(EBS_DRIVER)),
            (None, None) => None,
        });
        Ok((name, Volume { alternatives, local, driver }))
    }
}

/// Labels of a volume that say in which zones it is.
const ZONE_LABELS: [&str; 2] = ["failure-domain.beta.kubernetes.io/zone", labels::ZONE];

/// The zones that the labels of a volume leave. kube-scheduler minds them beside its node affinity (`VolumeZone`), which volumes made by hand may
/// lack; of several zones two underscores stand between the names. A label in which a name is empty says nothing.
fn labelled_zones(volume: &core::PersistentVolume) -> Requirements {
    let said = ZONE_LABELS.into_iter().filter_map(|key| volume.metadata.labels.as_ref()?.get(key));
    let zones = said.map(|value| value.split("__").map(str::trim).collect::<Vec<&str>>());
    let sound = zones.filter(|zones| zones.iter().all(|zone| !zone.is_empty()));
    sound.map(|zones| Requirement::only(labels::ZONE, zones)).collect()
}

/// The CSI driver of EBS.
pub const EBS_DRIVER: &str = "ebs.csi.aws.com";

/// The access mode of claims that one pod at a time may use.
const EXCLUSIVE: &str = "ReadWriteOncePod";

static EBS: LazyLock<Arc<str>> = LazyLock::new(|| EBS_DRIVER.into());

impl StorageClass {
    /// Reads a StorageClass.
    pub fn from_kube(class: &storage::StorageClass) -> Result<(Arc<str>, Self), Unreadable> {
        let name: Arc<str> = class.metadata.name.as_deref().unwrap_or_default().into();
        let mut alternatives = Vec::new();
        for topology in class.allowed_topologies.iter().flatten() {
            let mut wanted = Requirements::new();
            for e in topology.match_label_expressions.iter().flatten() {
                let one = Requirement::new(&e.key, Operator::In, &e.values);
                wanted
                    .add(one.map_err(|e| Unreadable::new("StorageClass", &name, "allowedTopologies", &e.to_string()))?);
            }
            alternatives.push(wanted);
        }
        if alternatives.is_empty() {
            alternatives.push(Requirements::new());
        }
        let provisioner = match class.provisioner.as_str() {
            "kubernetes.io/aws-ebs" => EBS_DRIVER,
            other => other,
        };
        let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
        Ok((name, StorageClass { provisioner: provisioner.into(), waits, alternatives }))
    }
}

impl Volumes {
    /// Notes what a node can attach.
    pub fn add_csi_node(&mut self, node: &storage::CSINode) {
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        let limits = node.spec.drivers.iter().filter_map(|driver| {
            let count = driver.allocatable.as_ref()?.count?;
            Some((Arc::from(driver.name.as_str()), u32::try_from(count).unwrap_or(0)))
        });
        self.attachable.insert(name, limits.collect());
    }

    /// Answers where the volumes of a pod can be reached: a node's labels must be any one of these; it does not matter when there are none.
    /// `stays` says whether a node that meets some of them is there and stays: a local volume is bound to its node's name only as long as that holds.
    ///
    /// # Errors
    /// The first claim that is wrong.
    pub fn places(
        &self,
        pod: &Pod,
        stays: impl Fn(&Requirement) -> bool,
    ) -> Result<Vec<Requirements>, (String, VolumeProblem)> {
        let mut places = Vec::new();
        for claim in pod.claims.iter().filter(|claim| !matches!(claim, ClaimRef::Inline { .. })) {
            let key = claim.key(&pod.key);
            let of_claim = self.of_claim(&key, pod, claim).map_err(|problem| (key.name.to_string(), problem))?;
            let of_claim = match self.local(&key) {
                Some(_) => of_claim.iter().map(|place| unbound_from(place, &stays)).collect(),
                None => Cow::Borrowed(of_claim),
            };
            if of_claim.iter().any(Requirements::is_empty) {
                continue;
            }
            places = match places.is_empty() {
                true => of_claim.to_vec(),
                false => product(&places, &of_claim),
            };
            if places.is_empty() {
                return Err((key.name.to_string(), VolumeProblem::NoCommonPlace));
            }
        }
        places.truncate(MAX_ALTERNATIVES);
        Ok(places)
    }

    /// Names what says where the volume of a claim is: the volume, or the class that will make it.
    pub fn source(&self, pod: &PodKey, claim: &ClaimRef) -> String {
        let of_class = |class: Option<&Arc<str>>| match class {
            Some(class) => format!("storage class {class}"),
            None => "the volume".to_owned(),
        };
        match (self.claims.get(&claim.key(pod)), claim) {
            (Some(VolumeClaim { volume: Some(volume), .. }), _) => format!("volume {volume}"),
            (Some(found), _) => of_class(found.class.as_ref()),
            (None, ClaimRef::Ephemeral { class, .. }) => of_class(class.as_ref()),
            (None, _) => of_class(None),
        }
    }

    /// Answers the claims that a pod names and one pod at a time may use.
    pub fn exclusive<'p>(&'p self, pod: &'p PodKey, claims: &'p [ClaimRef]) -> impl Iterator<Item = PodKey> + 'p {
        let named = claims.iter().filter(|claim| matches!(claim, ClaimRef::Named(_)));
        let keys = named.map(|claim| claim.key(pod));
        keys.filter(|key| self.claims.get(key).is_some_and(|claim| claim.exclusive))
    }

    /// Answers the driver that attaches the volume of a claim, if that is known; `key` is that of the claim.
    pub fn driver(&self, key: &PodKey, claim: &ClaimRef) -> Option<&Arc<str>> {
        let class = match (self.claims.get(key), claim) {
            (Some(VolumeClaim { volume: Some(volume), .. }), _) => return self.volumes.get(volume)?.driver.as_ref(),
            (Some(found), _) => found.class.as_ref(),
            (None, ClaimRef::Ephemeral { class, .. }) => class.as_ref(),
            (None, ClaimRef::Inline { .. }) => return Some(&EBS),
            (None, ClaimRef::Named(_)) => None,
        };
        Some(&self.classes.get(class?)?.provisioner)
    }

    /// Answers the volume of a claim that is a disk of some node.
    fn local(&self, claim: &PodKey) -> Option<&Volume> {
        let volume = self.claims.get(claim)?.volume.as_ref()?;
        self.volumes.get(volume).filter(|volume| volume.local)
    }

    /// Answers the first claim of a pod whose volume is a disk of the node that has these labels.
    pub(crate) fn on_disk_of(&self, pod: &Pod, node: &BTreeMap<String, String>) -> Option<PodKey> {
        let name = node.get(labels::HOSTNAME)?;
        let keeps = |place: &Requirements| place.get(labels::HOSTNAME).is_some_and(|asked| asked.admits(name));
        let mut keys = pod.claims.iter().map(|claim| claim.key(&pod.key));
        let bound = |volume: &Volume| !volume.alternatives.is_empty() && volume.alternatives.iter().all(keeps);
        keys.find(|key| self.local(key).is_some_and(bound))
    }

    fn of_claim(&self, key: &PodKey, pod: &Pod, claim: &ClaimRef) -> Result<&[Requirements], VolumeProblem> {
        match (self.claims.get(key), claim) {
            (Some(found), ClaimRef::Ephemeral { .. })
                if !pod.uid.is_empty() && found.pod.as_ref() != Some(&pod.uid) =>
            {
                Err(VolumeProblem::NotItsOwn)
            }
            (Some(found), _) => self.bound(found),
            (None, ClaimRef::Ephemeral { class, .. }) => self.unbound(class.as_ref()),
            (None, ClaimRef::Named(_) | ClaimRef::Inline { .. }) => Err(VolumeProblem::NoClaim),
        }
    }

    fn bound(&self, claim: &VolumeClaim) -> Result<&[Requirements], VolumeProblem> {
        if claim.lost {
            return Err(VolumeProblem::Lost);
        }
        if claim.deleting {
            return Err(VolumeProblem::Deleting);
        }
        match &claim.volume {
            Some(name) => {
                let volume = self.volumes.get(name).ok_or_else(|| VolumeProblem::NoVolume { volume: name.clone() })?;
                Ok(&volume.alternatives)
            }
            None => self.unbound(claim.class.as_ref()),
        }
    }

    fn unbound(&self, class: Option<&Arc<str>>) -> Result<&[Requirements], VolumeProblem> {
        let name = class.ok_or(VolumeProblem::NoClassName)?;
        let class = self.classes.get(name).ok_or_else(|| VolumeProblem::NoClass { class: name.clone() })?;
        if !class.waits {
            return Err(VolumeProblem::UnboundImmediate { class: name.clone() });
        }
        Ok(&class.alternatives)
    }
}

/// What a volume asks of a node, without the name of one that does not stay.
fn unbound_from(place: &Requirements, stays: impl Fn(&Requirement) -> bool) -> Requirements {
    let mut place = place.clone();
    if place.get(labels::HOSTNAME).is_some_and(|name| !stays(name)) {
        place.remove(labels::HOSTNAME);
    }
    place
}

/// Every combination that can hold.
fn product(some: &[Requirements], others: &[Requirements]) -> Vec<Requirements> {
    let pairs = some.iter().flat_map(|a| others.iter().map(move |b| (a, b)));
    pairs.filter(|(a, b)| a.overlaps(b)).map(|(a, b)| a.and(b)).take(MAX_ALTERNATIVES).collect()
}

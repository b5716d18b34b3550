//! What a node of a type can hold: capacity, and what kubelet and system keep of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::InstanceFacts;
use crate::api::{AmiFamily, BlockDeviceMapping, Ec2NodeClassSpec, InterfaceType, NetworkInterface, hash};
use crate::quantity::Quantity;
use crate::resources::{self, Resources};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Karpenter's default of `--vm-memory-overhead-percent`, in thousandths: what the hypervisor keeps of the published memory.
const VM_MEMORY_OVERHEAD_PERMILLE: u64 = 75;
/// Pods on a node whose CNI sets no limit (kubelet's default; Windows).
const DEFAULT_PODS: u64 = 110;
/// EKS's advice for pods on a node with delegated prefixes: 110 up to this many vCPUs, [`MANY_PODS`] beyond.
const SMALL_NODE_VCPUS: u32 = 30;
/// EKS's advice for pods on a large node with delegated prefixes.
const MANY_PODS: u64 = 250;
/// Addresses in the /28 prefix that the CNI gives an interface instead of one address.
const PREFIX_ADDRESSES: u64 = 16;

/// Counts the network interfaces that a node class lists itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedInterfaces {
    /// EFA-only interfaces on all network cards: what a node offers as `vpc.amazonaws.com/efa`.
    pub efa_only: u32,
    /// Those on network card 0, where each takes the place of an interface that would carry pods.
    pub efa_only_on_first_card: u32,
}

/// Holds the settings of a node class that decide how much of an instance pods can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSettings {
    /// AMI family.
    pub family: AmiFamily,
    /// `kubelet.maxPods`.
    pub max_pods: Option<u32>,
    /// `kubelet.podsPerCore`; Bottlerocket ignores it.
    pub pods_per_core: Option<u32>,
    /// `kubelet.kubeReserved`, each key replacing the computed one.
    pub kube_reserved: Resources,
    /// `kubelet.systemReserved`.
    pub system_reserved: Resources,
    /// `kubelet.evictionHard["memory.available"]`.
    pub eviction_memory: Option<Threshold>,
    /// `kubelet.evictionHard["nodefs.available"]`.
    pub eviction_nodefs: Option<Threshold>,
    /// `--reserved-enis`.
    pub reserved_enis: u32,
    /// `ipPrefixCount`; above 0 the CNI delegates prefixes.
    pub ip_prefix_count: u32,
    /// `networkInterfaces`, when the class lists them.
    pub interfaces: Option<ListedInterfaces>,
    /// `--vm-memory-overhead-percent`, in thousandths.
    pub vm_memory_overhead_permille: u64,
    /// Bytes of the volume that holds pods' ephemeral storage.
    pub root_volume_bytes: u64,
    /// `instanceStorePolicy: RAID0`: local NVMe disks hold it instead.
    pub raid0: bool,
    /// EBS volumes of the node itself: those of its image, and those that the class maps beside them.
    pub own_volumes: u32,
}

impl NodeSettings {
    /// Makes the settings of a family's nodes when the class sets nothing else.
    pub fn of(family: AmiFamily) -> Self {
        NodeSettings {
            family,
            root_volume_bytes: default_volume(family),
            own_volumes: image_devices(family).len() as u32,
            ..NodeSettings::default()
        }
    }

    /// Reads the settings of a node class. Reservations and thresholds that cannot be read count as not set; admission refuses them.
    pub fn from_class(class: &Ec2NodeClassSpec) -> Self {
        let kubelet = class.kubelet.clone().unwrap_or_default();
        let reserved = |list: &BTreeMap<String, Quantity>| {
            list.iter().fold(Resources::new(), |all, (name, amount)| all.with(name.clone(), *amount))
        };
        let eviction = kubelet.eviction_hard();
        let count = |number: Option<i32>| number.and_then(|n| u32::try_from(n).ok());
        let threshold = |name: &str| eviction.get(name).and_then(|text| Threshold::parse(text));
        let family = family_of(class);
        NodeSettings {
            family,
            max_pods: count(kubelet.max_pods()),
            pods_per_core: count(kubelet.pods_per_core()),
            kube_reserved: reserved(&kubelet.kube_reserved()),
            system_reserved: reserved(&kubelet.system_reserved()),
            eviction_memory: threshold("memory.available"),
            eviction_nodefs: threshold("nodefs.available"),
            ip_prefix_count: count(class.ip_prefix_count).unwrap_or_default(),
            interfaces: listed(&class.network_interfaces),
            root_volume_bytes: root_volume(class, family).unwrap_or_else(|| default_volume(family)),
            raid0: class.instance_store_policy.is_some(),
            own_volumes: own_volumes(class, family),
            ..NodeSettings::default()
        }
    }

    /// Says whether kubelets must be told how many pods they may take: images reckon with every interface and without prefixes. Those of
    /// Bottlerocket reckon by a list, in which types are missing that are newer than the image, and take 110 for these.
    pub fn tells_pods(&self) -> bool {
        let unusual = self.reserved_enis > 0 || self.ip_prefix_count > 0 || self.interfaces.is_some();
        self.max_pods.is_none()
            && (unusual || self.family == AmiFamily::Bottlerocket)
            && !self.is_windows()
            && self.family != AmiFamily::Custom
    }

    /// Says whether nodes run Windows.
    pub const fn is_windows(&self) -> bool {
        self.windows_build().is_some()
    }

    /// Answers the value of `node.kubernetes.io/windows-build` on nodes that run Windows.
    pub const fn windows_build(&self) -> Option<&'static str> {
        match self.family {
            AmiFamily::Windows2019 => Some("10.0.17763"),
            AmiFamily::Windows2022 => Some("10.0.20348"),
            AmiFamily::Windows2025 => Some("10.0.26100"),
            AmiFamily::Al2 | AmiFamily::Al2023 | AmiFamily::Bottlerocket | AmiFamily::Custom => None,
        }
    }

    /// Says whether the family's bootstrap reserves memory by the pods that interfaces can address, whatever `maxPods` says.
    const fn reserves_by_interfaces(&self) -> bool {
        matches!(self.family, AmiFamily::Al2 | AmiFamily::Al2023 | AmiFamily::Custom)
    }
}

fn family_of(class: &Ec2NodeClassSpec) -> AmiFamily {
    match hash::family(class) {
        "AL2" => AmiFamily::Al2,
        "AL2023" => AmiFamily::Al2023,
        "Bottlerocket" => AmiFamily::Bottlerocket,
        "Windows2019" => AmiFamily::Windows2019,
        "Windows2022" => AmiFamily::Windows2022,
        "Windows2025" => AmiFamily::Windows2025,
        _ => AmiFamily::Custom,
    }
}

fn listed(interfaces: &[NetworkInterface]) -> Option<ListedInterfaces> {
    let efa_only = |card: Option<i32>| {
        let of_card = |i: &&NetworkInterface| card.is_none_or(|card| i.network_card_index == card);
        let count = interfaces.iter().filter(of_card).filter(|i| i.interface_type == InterfaceType::EfaOnly).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    };
    (!interfaces.is_empty())
        .then(|| ListedInterfaces { efa_only: efa_only(None), efa_only_on_first_card: efa_only(Some(0)) })
}

/// EBS volumes that Xen can attach beside the root device without trouble (EBS CSI driver).
const XEN_ATTACHMENTS: u32 = 39;
/// Network interfaces that the VPC CNI gives a node at its start: the first, and one to spare.
const INTERFACES_AT_START: u32 = 2;

/// How many EBS volumes of pods an instance can attach, as the EBS CSI driver (1.5x) tells it when it starts: what EC2 says, less the volumes
/// of the node itself, less network interfaces beside the first where they share. The driver never says less than one: none would be no bound.
pub(super) fn attachable(facts: &InstanceFacts, settings: &NodeSettings) -> Option<u32> {
    let (most, shared) = match (facts.ebs_attachments, &*facts.hypervisor) {
        (0, _) => return None,
        (most, "xen") => (most.min(XEN_ATTACHMENTS), false),
        (most, _) => (most, facts.attachments_shared),
    };
    let interfaces = if shared { facts.enis.min(INTERFACES_AT_START).saturating_sub(1) } else { 0 };
    Some(most.saturating_sub(settings.own_volumes + interfaces).max(1))
}

/// The volume that a family's image keeps pods' storage on: its device, and its size when the class says nothing.
const fn family_volume(family: AmiFamily) -> (&'static str, u64) {
    match family {
        AmiFamily::Al2 | AmiFamily::Al2023 | AmiFamily::Custom => ("/dev/xvda", 20 * GIB),
        AmiFamily::Bottlerocket => ("/dev/xvdb", 20 * GIB),
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => ("/dev/sda1", 50 * GIB),
    }
}

/// The volumes of a family's images, by device.
const fn image_devices(family: AmiFamily) -> &'static [&'static str] {
    match family {
        AmiFamily::Al2 | AmiFamily::Al2023 | AmiFamily::Custom => &["/dev/xvda"],
        AmiFamily::Bottlerocket => &["/dev/xvda", "/dev/xvdb"],
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => &["/dev/sda1"],
    }
}

/// Volumes of the image and those that the class maps beside them. Only a class of its own image knows its devices: one of those it maps is
/// the root.
fn own_volumes(class: &Ec2NodeClassSpec, family: AmiFamily) -> u32 {
    let image = image_devices(family);
    let mapped = class.block_device_mappings.iter().filter(|mapping| mapping.ebs.is_some());
    let count = match family {
        AmiFamily::Custom => mapped.count().max(image.len()),
        _ => {
            let beside = |mapping: &&BlockDeviceMapping| {
                mapping.device_name.as_deref().is_none_or(|device| !image.contains(&device))
            };
            image.len() + mapped.filter(beside).count()
        }
    };
    u32::try_from(count).unwrap_or(u32::MAX)
}

const fn default_volume(family: AmiFamily) -> u64 {
    family_volume(family).1
}

/// The size of the volume that holds pods' storage: the one marked as root; else the last of a class of its own image, which alone
/// knows its devices; else the family's. A volume without a size (made from a snapshot) says nothing.
fn root_volume(class: &Ec2NodeClassSpec, family: AmiFamily) -> Option<u64> {
    let mappings = &class.block_device_mappings;
    let size = |mapping: &BlockDeviceMapping| {
        let size = mapping.ebs.as_ref()?.volume_size.as_ref()?;
        u64::try_from(size.parse::<Quantity>().ok()?.units()).ok()
    };
    let marked = mappings.iter().find(|m| m.root_volume == Some(true)).and_then(size);
    let device = family_volume(family).0;
    marked.or_else(|| match family {
        AmiFamily::Custom => mappings.last().and_then(size),
        _ => mappings.iter().find(|m| m.device_name.as_deref() == Some(device)).and_then(size),
    })
}

impl Default for NodeSettings {
    fn default() -> Self {
        NodeSettings {
            family: AmiFamily::Al2023,
            max_pods: None,
            pods_per_core: None,
            kube_reserved: Resources::default(),
            system_reserved: Resources::default(),
            eviction_memory: None,
            eviction_nodefs: None,
            reserved_enis: 0,
            ip_prefix_count: 0,
            interfaces: None,
            vm_memory_overhead_permille: VM_MEMORY_OVERHEAD_PERMILLE,
            root_volume_bytes: default_volume(AmiFamily::Al2023),
            raid0: false,
            own_volumes: image_devices(AmiFamily::Al2023).len() as u32,
        }
    }
}

/// Holds an eviction threshold: an amount or a share of the capacity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Threshold {
    /// Bytes.
    Bytes(u64),
    /// Millionths of the capacity.
    Share(u64),
}

impl Threshold {
    /// Parses `100Mi` or `10%`. `100%` turns the threshold off, as in the kubelet.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('%') {
            Some("100") => Some(Threshold::Bytes(0)),
            Some(percent) => {
                let percent: f64 = percent.parse().ok()?;
                (0.0..=100.0).contains(&percent).then(|| Threshold::Share((percent * 10_000.0).round() as u64))
            }
            None => u64::try_from(text.parse::<Quantity>().ok()?.units()).ok().map(Threshold::Bytes),
        }
    }

    fn of(&self, capacity: u64) -> u64 {
        match self {
            Threshold::Bytes(bytes) => *bytes,
            Threshold::Share(share) => (u128::from(capacity) * u128::from(*share)).div_ceil(1_000_000) as u64,
        }
    }
}

/// Counts the interfaces of the default network card that carry pods' addresses.
fn pod_enis(facts: &InstanceFacts, settings: &NodeSettings) -> u64 {
    let efa_only = settings.interfaces.map_or(0, |listed| listed.efa_only_on_first_card);
    u64::from(facts.enis.saturating_sub(settings.reserved_enis).saturating_sub(efa_only))
}

/// Computes how many pods the VPC CNI can address on `enis` interfaces: an interface's own address is not for pods, each other
/// serves `per_address`, and two host-network pods need none. No interface, no pods.
fn addressed_pods(enis: u64, facts: &InstanceFacts, per_address: u64) -> u64 {
    match enis {
        0 => 0,
        enis => enis * u64::from(facts.ipv4_per_eni.saturating_sub(1)) * per_address + 2,
    }
}

/// Computes how many pods the VPC CNI can address with secondary addresses when `reserved_enis` interfaces are kept from it.
pub fn eni_pods(facts: &InstanceFacts, reserved_enis: u32) -> u64 {
    addressed_pods(u64::from(facts.enis.saturating_sub(reserved_enis)), facts, 1)
}

/// Computes the pods of a node without `maxPods`: 110 on Windows; with delegated prefixes what they address, at most EKS's advice of
/// 110, or 250 on more than 30 vCPUs; else what secondary addresses allow. Xen instances have no prefixes.
fn default_pods(facts: &InstanceFacts, settings: &NodeSettings) -> u64 {
    if settings.is_windows() {
        return DEFAULT_PODS;
    }
    let enis = pod_enis(facts, settings);
    if settings.ip_prefix_count == 0 || facts.hypervisor == "xen" {
        return addressed_pods(enis, facts, 1);
    }
    let advice = if facts.vcpus <= SMALL_NODE_VCPUS { DEFAULT_PODS } else { MANY_PODS };
    addressed_pods(enis, facts, PREFIX_ADDRESSES).min(advice)
}

/// Computes the pods that kubelet of this type will take.
pub fn max_pods(facts: &InstanceFacts, settings: &NodeSettings) -> u64 {
    let pods = settings.max_pods.map_or_else(|| default_pods(facts, settings), u64::from);
    match settings.pods_per_core {
        Some(per_core) if per_core > 0 && settings.family != AmiFamily::Bottlerocket => {
            pods.min(u64::from(per_core) * u64::from(facts.vcpus))
        }
        _ => pods,
    }
}

/// Computes `status.capacity` of a node of this type that has so many bytes of memory.
pub fn capacity(facts: &InstanceFacts, settings: &NodeSettings, memory: u64) -> Resources {
    let mut capacity = Resources::default();
    capacity.set(resources::CPU, Quantity::from_units(i64::from(facts.vcpus)));
    capacity.set(resources::MEMORY, bytes(memory));
    capacity.set(resources::PODS, Quantity::from_units(max_pods(facts, settings) as i64));
    capacity.set(resources::EPHEMERAL_STORAGE, bytes(storage_bytes(facts, settings)));
    let mut device = |name: &'static str, count: u32| {
        if count > 0 {
            capacity.set(name, Quantity::from_units(i64::from(count)));
        }
    };
    if let Some(gpu) = &facts.gpu {
        match gpu.maker.as_str() {
            "nvidia" => device(resources::NVIDIA_GPU, gpu.count),
            "amd" => device(resources::AMD_GPU, gpu.count),
            "habana" => device(resources::HABANA_GAUDI, gpu.count),
            _ => {}
        }
    }
    if let Some(accelerator) = facts.accelerator.as_ref().filter(|a| a.neuron_cores > 0) {
        device(resources::AWS_NEURON, accelerator.count);
        device(resources::AWS_NEURON_CORE, accelerator.neuron_cores);
    }
    device(resources::AWS_EFA, settings.interfaces.map_or(facts.efa, |listed| listed.efa_only));
    device(resources::AWS_POD_ENI, facts.branch_enis);
    if settings.is_windows() {
        device(resources::AWS_PRIVATE_IPV4, facts.ipv4_per_eni.saturating_sub(1));
    }
    capacity
}

/// Computes what kubelet, system and eviction thresholds keep of `capacity`.
pub fn overhead(facts: &InstanceFacts, settings: &NodeSettings, memory: u64) -> Resources {
    let reserved = kube_reserved(facts, settings).plus(&settings.system_reserved);
    let storage = storage_bytes(facts, settings);
    let mut eviction = Resources::default();
    let hard = settings.eviction_memory.as_ref().map_or(100 * MIB, |t| t.of(memory));
    eviction.set(resources::MEMORY, bytes(hard));
    let nodefs = settings.eviction_nodefs.clone().unwrap_or(Threshold::Share(100_000)).of(storage);
    eviction.set(resources::EPHEMERAL_STORAGE, bytes(nodefs));
    reserved.plus(&eviction)
}

fn bytes(amount: u64) -> Quantity {
    Quantity::from_bytes(i64::try_from(amount).unwrap_or(i64::MAX))
}

/// Guesses the bytes of memory that a node of this type has: what is published less 64 MiB on arm64 (firmware) less the hypervisor's share,
/// rounded up to a MiB.
pub fn guessed_memory(facts: &InstanceFacts, settings: &NodeSettings) -> u64 {
    let memory = if facts.arch == super::Arch::Arm64 { facts.memory_mib.saturating_sub(64) } else { facts.memory_mib };
    (memory - (memory * settings.vm_memory_overhead_permille.min(1000)).div_ceil(1000)) * MIB
}

fn storage_bytes(facts: &InstanceFacts, settings: &NodeSettings) -> u64 {
    // nothing tells Windows to mount its disks
    match settings.raid0 && !settings.is_windows() && facts.nvme_gb > 0 {
        true => facts.nvme_gb * 1_000_000_000,
        false => settings.root_volume_bytes,
    }
}

/// The reservation that EKS's bootstrap makes: 11 MiB a pod + 255 MiB; 6 % of the first core, 1 % of the second, 0.5 % of
/// the third and fourth, 0.25 % of the rest; 1 GiB of storage.
fn kube_reserved(facts: &InstanceFacts, settings: &NodeSettings) -> Resources {
    let pods = if settings.reserves_by_interfaces() { eni_pods(facts, 0) } else { max_pods(facts, settings) };
    let cores = i64::from(facts.vcpus);
    // in units of 0.0025 core: 24 for the first, 4, 2, 2, then 1 each
    let steps = 24 * cores.min(1) + 4 * (cores - 1).clamp(0, 1) + 2 * (cores - 2).clamp(0, 2) + (cores - 4).max(0);
    let millicores = steps * 5 / 2;
    let mut reserved = Resources::default();
    reserved.set(resources::CPU, Quantity::from_millis(millicores));
    reserved.set(resources::MEMORY, bytes((11 * pods + 255) * MIB));
    reserved.set(resources::EPHEMERAL_STORAGE, bytes(GIB));
    for (name, amount) in settings.kube_reserved.iter() {
        reserved.set(name.to_owned(), amount);
    }
    reserved
}

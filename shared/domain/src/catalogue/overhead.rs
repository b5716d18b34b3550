//! What a node of a type can hold: capacity, and what kubelet and system keep of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::InstanceFacts;
use crate::api::{Ec2NodeClassSpec, hash};
use crate::quantity::Quantity;
use crate::resources::{self, Resources};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Karpenter's default of `--vm-memory-overhead-percent`, in thousandths: what the hypervisor keeps of the published memory.
const VM_MEMORY_OVERHEAD_PERMILLE: u64 = 75;
/// Pods on a node whose CNI sets no limit (kubelet's default).
const DEFAULT_PODS: u64 = 110;

/// Says which AMI family's bootstrap computes the reserved memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// AL2, AL2023 and Custom: the kube-reserved memory follows the ENI-limited pod count whatever `maxPods` says.
    #[default]
    AmazonLinux,
    /// Bottlerocket: it follows the real pod count; `podsPerCore` is ignored.
    Bottlerocket,
}

/// Holds the settings of a node class that decide how much of an instance pods can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSettings {
    /// AMI family.
    pub family: Family,
    /// `kubelet.maxPods`.
    pub max_pods: Option<u32>,
    /// `kubelet.podsPerCore`.
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
    /// `--vm-memory-overhead-percent`, in thousandths.
    pub vm_memory_overhead_permille: u64,
    /// Bytes of the volume that holds pods' ephemeral storage.
    pub root_volume_bytes: u64,
    /// `instanceStorePolicy: RAID0`: local NVMe disks hold it instead.
    pub raid0: bool,
}

impl NodeSettings {
    /// Reads the settings of a node class. Reservations and thresholds that cannot be read count as not set; admission refuses them.
    pub fn from_class(class: &Ec2NodeClassSpec) -> Self {
        let kubelet = class.kubelet.clone().unwrap_or_default();
        let reserved = |list: &BTreeMap<String, Quantity>| {
            list.iter().fold(Resources::new(), |all, (name, amount)| all.with(name.clone(), *amount))
        };
        let eviction = kubelet.eviction_hard();
        let count = |number: Option<i32>| number.and_then(|n| u32::try_from(n).ok());
        let threshold = |name: &str| eviction.get(name).and_then(|text| Threshold::parse(text));
        let bottlerocket = hash::family(class) == "Bottlerocket";
        NodeSettings {
            family: if bottlerocket { Family::Bottlerocket } else { Family::AmazonLinux },
            max_pods: count(kubelet.max_pods()),
            pods_per_core: count(kubelet.pods_per_core()),
            kube_reserved: reserved(&kubelet.kube_reserved()),
            system_reserved: reserved(&kubelet.system_reserved()),
            eviction_memory: threshold("memory.available"),
            eviction_nodefs: threshold("nodefs.available"),
            root_volume_bytes: root_volume(class, bottlerocket).unwrap_or(20 * GIB),
            raid0: class.instance_store_policy.is_some(),
            ..NodeSettings::default()
        }
    }
}

/// The volume that holds pods' storage: the one marked as root, else the family's, else the last of a class of its own image.
fn root_volume(class: &Ec2NodeClassSpec, bottlerocket: bool) -> Option<u64> {
    let mappings = &class.block_device_mappings;
    let device = if bottlerocket { "/dev/xvdb" } else { "/dev/xvda" };
    let marked = mappings.iter().find(|m| m.root_volume == Some(true));
    let named = || mappings.iter().find(|m| m.device_name.as_deref() == Some(device));
    let last = || mappings.last().filter(|_| hash::family(class) == "Custom");
    let size = marked.or_else(named).or_else(last)?.ebs.as_ref()?.volume_size.as_ref()?;
    u64::try_from(size.parse::<Quantity>().ok()?.units()).ok()
}

impl Default for NodeSettings {
    fn default() -> Self {
        NodeSettings {
            family: Family::AmazonLinux,
            max_pods: None,
            pods_per_core: None,
            kube_reserved: Resources::default(),
            system_reserved: Resources::default(),
            eviction_memory: None,
            eviction_nodefs: None,
            reserved_enis: 0,
            vm_memory_overhead_permille: VM_MEMORY_OVERHEAD_PERMILLE,
            root_volume_bytes: 20 * GIB,
            raid0: false,
        }
    }
}

/// Holds an eviction threshold: an amount or a share of the capacity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Threshold {
    /// Bytes.
    Bytes(u64),
    /// Thousandths of the capacity.
    Permille(u64),
}

impl Threshold {
    /// Parses `100Mi` or `10%`.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('%') {
            Some(percent) => {
                let percent: f64 = percent.parse().ok()?;
                (0.0..=100.0).contains(&percent).then(|| Threshold::Permille((percent * 10.0).round() as u64))
            }
            None => u64::try_from(text.parse::<Quantity>().ok()?.units()).ok().map(Threshold::Bytes),
        }
    }

    fn of(&self, capacity: u64) -> u64 {
        match self {
            Threshold::Bytes(bytes) => *bytes,
            Threshold::Permille(share) => (u128::from(capacity) * u128::from(*share)).div_ceil(1000) as u64,
        }
    }
}

/// Computes how many pods the VPC CNI can address: one address a pod on each interface but the interface's own, and two
/// host-network pods.
pub fn eni_pods(facts: &InstanceFacts, reserved_enis: u32) -> u64 {
    let enis = u64::from(facts.enis.saturating_sub(reserved_enis));
    match enis * u64::from(facts.ipv4_per_eni.saturating_sub(1)) {
        0 => DEFAULT_PODS,
        pods => pods + 2,
    }
}

/// Computes the pods that kubelet of this type will take.
pub fn max_pods(facts: &InstanceFacts, settings: &NodeSettings) -> u64 {
    let pods = settings.max_pods.map_or_else(|| eni_pods(facts, settings.reserved_enis), u64::from);
    match settings.pods_per_core {
        Some(per_core) if per_core > 0 && settings.family != Family::Bottlerocket => {
            pods.min(u64::from(per_core) * u64::from(facts.vcpus))
        }
        _ => pods,
    }
}

/// Computes `status.capacity` of a node of this type.
pub fn capacity(facts: &InstanceFacts, settings: &NodeSettings) -> Resources {
    let mut capacity = Resources::default();
    capacity.set(resources::CPU, Quantity::from_units(i64::from(facts.vcpus)));
    capacity.set(resources::MEMORY, bytes(memory_mib(facts, settings) * MIB));
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
    device(resources::AWS_EFA, facts.efa);
    capacity
}

/// Computes what kubelet, system and eviction thresholds keep of `capacity`.
pub fn overhead(facts: &InstanceFacts, settings: &NodeSettings) -> Resources {
    let reserved = kube_reserved(facts, settings).plus(&settings.system_reserved);
    let memory = memory_mib(facts, settings) * MIB;
    let storage = storage_bytes(facts, settings);
    let mut eviction = Resources::default();
    let hard = settings.eviction_memory.as_ref().map_or(100 * MIB, |t| t.of(memory));
    eviction.set(resources::MEMORY, bytes(hard));
    let nodefs = settings.eviction_nodefs.clone().unwrap_or(Threshold::Permille(100)).of(storage);
    eviction.set(resources::EPHEMERAL_STORAGE, bytes(nodefs));
    reserved.plus(&eviction)
}

fn bytes(amount: u64) -> Quantity {
    Quantity::from_bytes(i64::try_from(amount).unwrap_or(i64::MAX))
}

/// The published memory less 64 MiB on arm64 (firmware) less the hypervisor's share, rounded up to a MiB.
fn memory_mib(facts: &InstanceFacts, settings: &NodeSettings) -> u64 {
    let memory = if facts.arch == super::Arch::Arm64 { facts.memory_mib.saturating_sub(64) } else { facts.memory_mib };
    memory - (memory * settings.vm_memory_overhead_permille.min(1000)).div_ceil(1000)
}

fn storage_bytes(facts: &InstanceFacts, settings: &NodeSettings) -> u64 {
    match settings.raid0 && facts.nvme_gb > 0 {
        true => facts.nvme_gb * 1_000_000_000,
        false => settings.root_volume_bytes,
    }
}

/// The reservation that EKS's bootstrap makes: 11 MiB a pod + 255 MiB; 6 % of the first core, 1 % of the second, 0.5 % of
/// the third and fourth, 0.25 % of the rest; 1 GiB of storage.
fn kube_reserved(facts: &InstanceFacts, settings: &NodeSettings) -> Resources {
    let pods = match settings.family {
        Family::AmazonLinux => eni_pods(facts, 0),
        Family::Bottlerocket => max_pods(facts, settings),
    };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{InstanceType, builtin_type};

    /// Figures of AL2023 nodes with a 20 GiB volume, as Karpenter documents them.
    #[test]
    fn allocatable_is_as_documented() {
        let cases = [
            ("c5.12xlarge", "47810m", "88002Mi", "234"),
            ("c5.18xlarge", "71750m", "127934Mi", "737"),
            ("g5.xlarge", "3920m", "14162Mi", "58"),
            ("m5.metal", "95690m", "355262Mi", "737"),
            ("t3.micro", "1930m", "548Mi", "4"),
        ];
        for (name, cpu, memory, pods) in cases {
            let facts = builtin_type(name).unwrap();
            let there = InstanceType::from_facts(facts, &NodeSettings::default(), Vec::new()).allocatable();
            let expected = [("cpu", cpu), ("memory", memory), ("pods", pods), ("ephemeral-storage", "17Gi")];
            for (resource, amount) in expected {
                assert_eq!(there.get(resource), amount.parse().unwrap(), "{name} {resource}");
            }
        }
    }
}

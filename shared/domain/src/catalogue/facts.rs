//! What EC2 says about an instance type's hardware, and the node labels that follow from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::labels;

/// Names the processor architecture as Kubernetes does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// x86_64
    Amd64,
    /// aarch64
    Arm64,
}

impl Arch {
    /// Answers the value of `kubernetes.io/arch`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Arch::Amd64 => "amd64",
            Arch::Arm64 => "arm64",
        }
    }
}

/// Describes the GPUs of a type; all of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Name in kebab case, such as `a10g`.
    pub name: String,
    /// Maker in lower case: `nvidia` or `amd`.
    pub maker: String,
    /// How many.
    pub count: u32,
    /// Memory of one, in MiB.
    pub memory_mib: u64,
}

/// Describes the accelerators (Inferentia, Trainium, media cards) of a type; all of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accelerator {
    /// Name in kebab case, such as `inferentia2`.
    pub name: String,
    /// Maker in lower case, such as `aws`.
    pub maker: String,
    /// How many devices.
    pub count: u32,
    /// Neuron cores over all devices; 0 for a device that is not Neuron.
    pub neuron_cores: u32,
}

/// Holds the facts of one type from EC2's DescribeInstanceTypes, from the API or from the built-in table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceFacts {
    /// Type name, such as `m7i.large`.
    pub name: String,
    /// Architecture.
    pub arch: Arch,
    /// Default vCPUs.
    pub vcpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Network interfaces on the default network card.
    pub enis: u32,
    /// IPv4 addresses per interface, the primary one included.
    pub ipv4_per_eni: u32,
    /// Network cards.
    pub network_cards: u32,
    /// EFA interfaces, at most.
    pub efa: u32,
    /// Branch interfaces for pods with security groups of their own; 0 where the VPC resource controller knows of none. EC2's API
    /// does not tell.
    pub branch_enis: u32,
    /// Network interfaces on each card but the default one, at least; 0 where there is one card.
    #[serde(default)]
    pub further_enis: u32,
    /// Network cards that take EFA interfaces, by index and in order; any does when there are none here.
    #[serde(default)]
    pub efa_cards: Vec<u32>,
    /// Can run Nitro Enclaves.
    #[serde(default)]
    pub enclaves: bool,
    /// Can run virtual machines of its own.
    #[serde(default)]
    pub nested_vms: bool,
    /// EBS volumes that can be attached, at most, the root included; 0 when EC2 does not tell.
    #[serde(default)]
    pub ebs_attachments: u32,
    /// Network interfaces beside the first take from them.
    #[serde(default)]
    pub attachments_shared: bool,
    /// Can be in a placement group of strategy `cluster`.
    #[serde(default)]
    pub cluster_groups: bool,
    /// GPUs.
    pub gpu: Option<Gpu>,
    /// Accelerators that are not GPUs.
    pub accelerator: Option<Accelerator>,
    /// Local NVMe storage in GB (10^9); 0 when there is none.
    pub nvme_gb: u64,
    /// `nitro`, `xen`, or empty on bare metal.
    pub hypervisor: String,
    /// Bare metal.
    pub bare_metal: bool,
    /// Sustained clock speed; 0 when not published.
    pub clock_mhz: u32,
    /// Processor maker in lower case: `intel`, `amd`, `aws`.
    pub maker: String,
    /// EBS bandwidth at most, in Mbit/s; 0 unless the type is EBS-optimised by default.
    pub ebs_mbps: u32,
    /// Baseline network bandwidth over all cards, in Mbit/s; 0 when EC2 publishes only a word such as `Moderate`.
    pub network_mbps: u32,
    /// Traffic between instances is encrypted by the hardware.
    pub encryption_in_transit: bool,
    /// Can be bought on demand.
    pub on_demand: bool,
    /// Can be bought as spot.
    pub spot: bool,
}

impl InstanceFacts {
    /// Splits the name into category (`m`), generation (`7`), family (`m7i`) and size (`large`). High-memory names such as
    /// `u-6tb1.metal` have the size in terabytes between category and generation.
    pub fn name_parts(&self) -> NameParts<'_> {
        let (family, size) = self.name.split_once('.').unwrap_or((&self.name, ""));
        let letters = family.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(family.len());
        let (category, mut rest) = family.split_at(letters);
        if let Some(tb) = rest
            .strip_prefix('-')
            .and_then(|r| r.split_once("tb"))
            .filter(|(n, _)| n.bytes().all(|b| b.is_ascii_digit()))
        {
            rest = tb.1;
        }
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        NameParts { category, generation: &rest[..digits], family, size }
    }

    /// Says whether EFA interfaces go on the network card of that index.
    pub fn takes_efa(&self, card: u32) -> bool {
        let told = self.efa_cards.is_empty() || self.efa_cards.contains(&card);
        self.efa > 0 && card < self.network_cards && told
    }

    /// Answers where as many EFA interfaces go as it can have, by card and place on it: one a card, as the first interface of card 0 and the
    /// second of any other. A card that has room for one interface alone takes it at 0.
    pub fn efa_places(&self) -> Vec<(u32, u32)> {
        let cards = (0..self.network_cards).filter(|card| self.takes_efa(*card)).take(self.efa as usize);
        cards.map(|card| (card, u32::from(card > 0 && self.further_enis != 1))).collect()
    }

    /// Computes the labels that a node of this type carries, apart from zone, capacity type, region and pool.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.each_label().into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    pub(super) fn each_label(&self) -> Vec<(&'static str, String)> {
        let parts = self.name_parts();
        let mut all = vec![
            (labels::ARCH, self.arch.as_str().to_owned()),
            (labels::OS, "linux".to_owned()),
            (labels::INSTANCE_TYPE, self.name.clone()),
            (labels::INSTANCE_CATEGORY, parts.category.to_owned()),
            (labels::INSTANCE_GENERATION, parts.generation.to_owned()),
            (labels::INSTANCE_FAMILY, parts.family.to_owned()),
            (labels::INSTANCE_SIZE, parts.size.to_owned()),
            (labels::INSTANCE_CAPABILITY_FLEX, parts.family.ends_with("-flex").to_string()),
            (labels::INSTANCE_CPU, self.vcpus.to_string()),
            (labels::INSTANCE_MEMORY, self.memory_mib.to_string()),
            (labels::INSTANCE_HYPERVISOR, self.hypervisor.clone()),
            (labels::INSTANCE_ENCRYPTION_IN_TRANSIT, self.encryption_in_transit.to_string()),
        ];
        let known = [
            (labels::INSTANCE_CPU_CLOCK_SPEED, u64::from(self.clock_mhz)),
            (labels::INSTANCE_EBS_BANDWIDTH, u64::from(self.ebs_mbps)),
            (labels::INSTANCE_NETWORK_BANDWIDTH, u64::from(self.network_mbps)),
            (labels::INSTANCE_LOCAL_NVME, self.nvme_gb),
        ];
        all.extend(known.into_iter().filter(|(_, value)| *value > 0).map(|(key, value)| (key, value.to_string())));
        if !self.maker.is_empty() {
            all.push((labels::INSTANCE_CPU_MANUFACTURER, self.maker.clone()));
        }
        if let Some(gpu) = &self.gpu {
            all.extend([
                (labels::INSTANCE_GPU_NAME, gpu.name.clone()),
                (labels::INSTANCE_GPU_MANUFACTURER, gpu.maker.clone()),
                (labels::INSTANCE_GPU_COUNT, gpu.count.to_string()),
                (labels::INSTANCE_GPU_MEMORY, gpu.memory_mib.to_string()),
            ]);
        }
        if let Some(device) = &self.accelerator {
            all.extend([
                (labels::INSTANCE_ACCELERATOR_NAME, device.name.clone()),
                (labels::INSTANCE_ACCELERATOR_MANUFACTURER, device.maker.clone()),
                (labels::INSTANCE_ACCELERATOR_COUNT, device.count.to_string()),
            ]);
        }
        all
    }
}

/// Holds the parts of an instance type's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameParts<'a> {
    /// Leading letters.
    pub category: &'a str,
    /// The number after them.
    pub generation: &'a str,
    /// All before the dot.
    pub family: &'a str,
    /// All after the dot.
    pub size: &'a str,
}

#[cfg(test)]
mod tests {
    use crate::catalogue::builtin_type;

    #[test]
    fn efa_interfaces_go_on_cards_that_take_them() {
        let places = |name: &str| builtin_type(name).unwrap().efa_places();
        assert!(places("m5.large").is_empty());
        assert_eq!(places("c7gn.16xlarge"), [(0, 0)]);
        assert_eq!(places("p4d.24xlarge"), [(0, 0), (1, 1), (2, 1), (3, 1)]);
        assert_eq!(places("i7ie.48xlarge"), [(0, 0)], "either of two cards takes one, and one is all");
        assert_eq!(places("hpc6id.32xlarge"), [(0, 0), (1, 0)], "each card has room for one interface");
        let b300 = places("p6-b300.48xlarge");
        assert_eq!((b300.len(), b300[0], b300[15]), (16, (1, 1), (16, 1)), "the first card is for IP alone");
        let mut untold = builtin_type("p4d.24xlarge").unwrap().clone();
        untold.efa_cards.clear();
        assert_eq!(untold.efa_places(), places("p4d.24xlarge"), "EC2 may leave out which cards they are");
    }
}

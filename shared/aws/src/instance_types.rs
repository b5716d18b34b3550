//! Instance types: EC2's facts about them, and in which zones they are offered.

use crate::config::Clients;
use crate::error::Error;
use crate::selector::filter;
use aws_sdk_ec2::types as ec2;
use karp_domain::catalogue::{Accelerator, Arch, Gpu, InstanceFacts, builtin_type};
use std::collections::{BTreeMap, BTreeSet};

const DESCRIBE: &str = "ec2:DescribeInstanceTypes";
const OFFERINGS: &str = "ec2:DescribeInstanceTypeOfferings";
/// Names in one call: EC2 takes 100, and an answer stays below half a megabyte.
const NAMES_PER_CALL: usize = 100;
/// Rows on a page of offerings, EC2's maximum.
const OFFERINGS_PER_PAGE: i32 = 1000;

/// Describes the named types, ordered by name. Types that karp cannot run (no hardware virtualisation, other architectures) and types
/// that the region does not know are absent from the answer.
///
/// # Errors
/// Any failure of a call.
pub async fn describe(clients: &Clients, names: &[String]) -> Result<Vec<InstanceFacts>, Error> {
    let mut facts = Vec::with_capacity(names.len());
    for chunk in names.chunks(NAMES_PER_CALL) {
        clients.pace().describe.take().await;
        // By filter: an unknown name among InstanceTypes makes the whole call fail.
        let call = clients
            .ec2()
            .describe_instance_types()
            .filters(filter("instance-type", chunk.to_vec()))
            .filters(filter("supported-virtualization-type", ["hvm".to_owned()]));
        let mut pages = call.into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| Error::from_sdk(DESCRIBE, error))?;
            facts.extend(page.instance_types.unwrap_or_default().iter().filter_map(read));
        }
    }
    facts.sort_by(|one, other| one.name.cmp(&other.name));
    facts.dedup_by(|one, other| one.name == other.name);
    Ok(facts)
}

/// Lists every type that the region offers, with the names of its zones.
///
/// # Errors
/// Any failure of a call, and [`Error::Malformed`] when the answer is empty: a region without instance types is an outage, and an empty
/// catalogue would look like a reason to give everything up.
pub async fn offered_zones(clients: &Clients) -> Result<BTreeMap<String, BTreeSet<String>>, Error> {
    clients.pace().describe.take().await;
    let call = clients
        .ec2()
        .describe_instance_type_offerings()
        .location_type(ec2::LocationType::AvailabilityZone)
        .max_results(OFFERINGS_PER_PAGE);
    let mut rows = Vec::new();
    let mut pages = call.into_paginator().send();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| Error::from_sdk(OFFERINGS, error))?;
        rows.extend(page.instance_type_offerings.unwrap_or_default());
    }
    by_type(rows)
}

fn by_type(rows: Vec<ec2::InstanceTypeOffering>) -> Result<BTreeMap<String, BTreeSet<String>>, Error> {
    let mut offered: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in rows {
        if let (Some(kind), Some(zone)) = (row.instance_type, row.location) {
            offered.entry(kind.as_str().to_owned()).or_default().insert(zone);
        }
    }
    if offered.is_empty() {
        return Err(Error::malformed(OFFERINGS, "the region offers no instance type at all"));
    }
    Ok(offered)
}

fn read(info: &ec2::InstanceTypeInfo) -> Option<InstanceFacts> {
    let processor = info.processor_info.as_ref()?;
    let network = info.network_info.as_ref()?;
    let cards = network.network_cards();
    let default_index = network.default_network_card_index.unwrap_or(0);
    let card = cards.iter().find(|card| card.network_card_index == Some(default_index));
    let enis = card.and_then(|card| card.maximum_network_interfaces).or(network.maximum_network_interfaces);
    let further = cards.iter().filter(|card| card.network_card_index != Some(default_index));
    let further = further.filter_map(|card| card.maximum_network_interfaces);
    let name = info.instance_type.as_ref()?.as_str();
    let usage = info.supported_usage_classes();
    let known = builtin_type(name);
    let attachments =
        attachments(info).or_else(|| known.map(|known| (known.ebs_attachments, known.attachments_shared)));
    Some(InstanceFacts {
        name: name.to_owned(),
        arch: arch(processor.supported_architectures())?,
        vcpus: unsigned(info.v_cpu_info.as_ref()?.default_v_cpus),
        memory_mib: info.memory_info.as_ref()?.size_in_mib.and_then(|size| u64::try_from(size).ok())?,
        enis: unsigned(enis),
        ipv4_per_eni: unsigned(network.ipv4_addresses_per_interface),
        network_cards: u32::try_from(cards.len()).unwrap_or(u32::MAX),
        efa: unsigned(network.efa_info.as_ref().and_then(|efa| efa.maximum_efa_interfaces)),
        further_enis: unsigned(further.min()),
        efa_cards: efa_cards(network),
        enclaves: info.nitro_enclaves_support == Some(ec2::NitroEnclavesSupport::Supported),
        nested_vms: processor
            .supported_features()
            .contains(&ec2::SupportedAdditionalProcessorFeature::NestedVirtualization),
        ebs_attachments: attachments.map_or(0, |(most, _)| most),
        attachments_shared: attachments.is_some_and(|(_, shared)| shared),
        cluster_groups: info
            .placement_group_info
            .as_ref()
            .is_some_and(|groups| groups.supported_strategies().contains(&ec2::PlacementGroupStrategy::Cluster)),
        branch_enis: known.map_or(0, |known| known.branch_enis),
        gpu: gpu(info),
        accelerator: accelerator(info),
        nvme_gb: nvme_gb(info),
        hypervisor: info.hypervisor.as_ref().map_or_else(String::new, |kind| kind.as_str().to_owned()),
        bare_metal: info.bare_metal.unwrap_or(false),
        clock_mhz: thousandths(processor.sustained_clock_speed_in_ghz.unwrap_or(0.0)),
        maker: kebab(processor.manufacturer.as_deref()),
        ebs_mbps: ebs_mbps(info),
        network_mbps: network_mbps(network),
        encryption_in_transit: network.encryption_in_transit_supported.unwrap_or(false),
        on_demand: usage.contains(&ec2::UsageClassType::OnDemand),
        spot: usage.contains(&ec2::UsageClassType::Spot),
    })
}

fn arch(supported: &[ec2::ArchitectureType]) -> Option<Arch> {
    if supported.contains(&ec2::ArchitectureType::X8664) {
        Some(Arch::Amd64)
    } else if supported.contains(&ec2::ArchitectureType::Arm64) {
        Some(Arch::Arm64)
    } else {
        None
    }
}

/// The network cards that take EFA interfaces, where EC2 tells.
fn efa_cards(network: &ec2::NetworkInfo) -> Vec<u32> {
    let takes = |card: &&ec2::NetworkCardInfo| card.interface_types().contains(&ec2::NetworkCardInterfaceType::Efa);
    let indices = network.network_cards().iter().filter(takes).filter_map(|card| card.network_card_index);
    let mut indices: Vec<u32> = indices.filter_map(|index| u32::try_from(index).ok()).collect();
    indices.sort_unstable();
    indices
}

fn gpu(info: &ec2::InstanceTypeInfo) -> Option<Gpu> {
    let gpus = info.gpu_info.as_ref()?.gpus();
    let first = gpus.first()?;
    let memory = first.memory_info.as_ref().and_then(|memory| memory.size_in_mib);
    let count = gpus.iter().map(|gpu| unsigned(gpu.count)).sum();
    // A share of a GPU (g6f) counts as none: no pod can ask for it by number.
    (count > 0).then(|| Gpu {
        name: kebab(first.name.as_deref()),
        maker: kebab(first.manufacturer.as_deref()),
        count,
        memory_mib: u64::from(unsigned(memory)),
    })
}

/// Neuron devices, else inference accelerators, else media accelerators: older types list the same device under two headings.
fn accelerator(info: &ec2::InstanceTypeInfo) -> Option<Accelerator> {
    let neuron = info.neuron_info.as_ref().map_or(&[][..], |info| info.neuron_devices());
    if let Some(first) = neuron.first() {
        let cores = |device: &ec2::NeuronDeviceInfo| {
            unsigned(device.count) * unsigned(device.core_info.as_ref().and_then(|core| core.count))
        };
        return Some(Accelerator {
            name: kebab(first.name.as_deref()),
            maker: "aws".to_owned(),
            count: neuron.iter().map(|device| unsigned(device.count)).sum(),
            neuron_cores: neuron.iter().map(cores).sum(),
        });
    }
    let plain = |name: Option<&str>, maker: Option<&str>, count: u32| Accelerator {
        name: kebab(name),
        maker: kebab(maker),
        count,
        neuron_cores: 0,
    };
    let inference = info.inference_accelerator_info.as_ref().map_or(&[][..], |info| info.accelerators());
    if let Some(first) = inference.first() {
        let count = inference.iter().map(|device| unsigned(device.count)).sum();
        return Some(plain(first.name.as_deref(), first.manufacturer.as_deref(), count));
    }
    let media = info.media_accelerator_info.as_ref().map_or(&[][..], |info| info.accelerators());
    let first = media.first()?;
    let count = media.iter().map(|device| unsigned(device.count)).sum();
    Some(plain(first.name.as_deref(), first.manufacturer.as_deref(), count))
}

/// How many EBS volumes can be attached, and whether network interfaces take from them.
fn attachments(info: &ec2::InstanceTypeInfo) -> Option<(u32, bool)> {
    let ebs = info.ebs_info.as_ref()?;
    let most = unsigned(Some(ebs.maximum_ebs_attachments?));
    Some((most, ebs.attachment_limit_type != Some(ec2::AttachmentLimitType::Dedicated)))
}

/// The bandwidth of types that are EBS-optimised by default; the others have it only when asked.
fn ebs_mbps(info: &ec2::InstanceTypeInfo) -> u32 {
    let by_default = |ebs: &&ec2::EbsInfo| ebs.ebs_optimized_support == Some(ec2::EbsOptimizedSupport::Default);
    let ebs = info.ebs_info.as_ref().filter(by_default);
    unsigned(ebs.and_then(|ebs| ebs.ebs_optimized_info.as_ref()?.maximum_bandwidth_in_mbps))
}

/// The baseline of all cards, unless EC2 publishes no figure for the type but a word ("Moderate").
fn network_mbps(network: &ec2::NetworkInfo) -> u32 {
    if !network.network_performance().unwrap_or_default().contains("Gigabit") {
        return 0;
    }
    thousandths(network.network_cards().iter().filter_map(|card| card.baseline_bandwidth_in_gbps).sum())
}

fn nvme_gb(info: &ec2::InstanceTypeInfo) -> u64 {
    let Some(storage) = &info.instance_storage_info else { return 0 };
    match storage.nvme_support {
        Some(ec2::EphemeralNvmeSupport::Required | ec2::EphemeralNvmeSupport::Supported) => {
            storage.total_size_in_gb.and_then(|size| u64::try_from(size).ok()).unwrap_or(0)
        }
        _ => 0,
    }
}

fn unsigned(value: Option<i32>) -> u32 {
    value.and_then(|value| u32::try_from(value).ok()).unwrap_or(0)
}

fn thousandths(value: f64) -> u32 {
    (value * 1000.0).round().clamp(0.0, f64::from(u32::MAX)) as u32
}

fn kebab(text: Option<&str>) -> String {
    text.unwrap_or_default().to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Retry;

    #[test]
    fn a_region_that_offers_nothing_is_an_outage_and_no_empty_catalogue() {
        let row = |kind: &str, zone: &str| {
            ec2::InstanceTypeOffering::builder().instance_type(ec2::InstanceType::from(kind)).location(zone).build()
        };
        let offered = by_type(vec![row("m7i.large", "a"), row("m9x.large", "b"), row("m7i.large", "b")]);
        let zones = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let expected = [("m7i.large".to_owned(), zones(&["a", "b"])), ("m9x.large".to_owned(), zones(&["b"]))];
        assert_eq!(offered.expect("offerings"), BTreeMap::from(expected), "known to the table or not");
        for nothing in [Vec::new(), vec![ec2::InstanceTypeOffering::builder().build()]] {
            let error = by_type(nothing).expect_err("an outage");
            assert!(matches!(error.retry(), Retry::After(_)), "asked again: {error}");
        }
    }

    #[test]
    fn what_ec2_says_of_a_type_is_read() {
        let card = |index, most, gigabits| {
            ec2::NetworkCardInfo::builder()
                .network_card_index(index)
                .maximum_network_interfaces(most)
                .baseline_bandwidth_in_gbps(gigabits)
                .interface_types(ec2::NetworkCardInterfaceType::Interface)
        };
        let network = ec2::NetworkInfo::builder()
            .network_performance("Up to 25 Gigabit")
            .maximum_network_interfaces(12)
            .ipv4_addresses_per_interface(30)
            .default_network_card_index(1)
            .network_cards(card(0, 4, 5.0).build())
            .network_cards(card(1, 8, 7.5).interface_types(ec2::NetworkCardInterfaceType::Efa).build())
            .efa_info(ec2::EfaInfo::builder().maximum_efa_interfaces(2).build())
            .encryption_in_transit_supported(true);
        let ebs = ec2::EbsInfo::builder()
            .ebs_optimized_support(ec2::EbsOptimizedSupport::Default)
            .ebs_optimized_info(ec2::EbsOptimizedInfo::builder().maximum_bandwidth_in_mbps(10_000).build())
            .maximum_ebs_attachments(32)
            .attachment_limit_type(ec2::AttachmentLimitType::Dedicated);
        let processor = ec2::ProcessorInfo::builder()
            .supported_architectures(ec2::ArchitectureType::Arm64)
            .sustained_clock_speed_in_ghz(2.8)
            .manufacturer("AWS");
        let device = |count| ec2::GpuDeviceInfo::builder().name("L9 X").manufacturer("NVIDIA").set_count(count);
        let gpus = device(Some(2)).memory_info(ec2::GpuDeviceMemoryInfo::builder().size_in_mib(24_576).build());
        let info = |name: &str| {
            ec2::InstanceTypeInfo::builder()
                .instance_type(ec2::InstanceType::from(name))
                .processor_info(processor.clone().build())
                .v_cpu_info(ec2::VCpuInfo::builder().default_v_cpus(16).build())
                .memory_info(ec2::MemoryInfo::builder().size_in_mib(65_536).build())
                .network_info(network.clone().build())
                .ebs_info(ebs.clone().build())
                .gpu_info(ec2::GpuInfo::builder().gpus(gpus.clone().build()).build())
                .hypervisor(ec2::InstanceTypeHypervisor::Nitro)
                .nitro_enclaves_support(ec2::NitroEnclavesSupport::Supported)
                .supported_usage_classes(ec2::UsageClassType::OnDemand)
                .instance_storage_info(
                    ec2::InstanceStorageInfo::builder()
                        .total_size_in_gb(950)
                        .nvme_support(ec2::EphemeralNvmeSupport::Required)
                        .build(),
                )
        };
        let expected = InstanceFacts {
            name: "m99x.4xlarge".to_owned(),
            arch: Arch::Arm64,
            vcpus: 16,
            memory_mib: 65_536,
            enis: 8,
            ipv4_per_eni: 30,
            network_cards: 2,
            efa: 2,
            further_enis: 4,
            efa_cards: vec![1],
            enclaves: true,
            nested_vms: false,
            ebs_attachments: 32,
            attachments_shared: false,
            cluster_groups: false,
            branch_enis: 0,
            gpu: Some(Gpu { name: "l9-x".to_owned(), maker: "nvidia".to_owned(), count: 2, memory_mib: 24_576 }),
            accelerator: None,
            nvme_gb: 950,
            hypervisor: "nitro".to_owned(),
            bare_metal: false,
            clock_mhz: 2_800,
            maker: "aws".to_owned(),
            ebs_mbps: 10_000,
            network_mbps: 12_500,
            encryption_in_transit: true,
            on_demand: true,
            spot: false,
        };
        assert_eq!(read(&info("m99x.4xlarge").build()), Some(expected), "a type that the table does not know");
        let of_another_world = ec2::ProcessorInfo::builder().supported_architectures(ec2::ArchitectureType::I386);
        assert_eq!(read(&info("m99x.4xlarge").processor_info(of_another_world.build()).build()), None);
        assert_eq!(read(&ec2::InstanceTypeInfo::builder().build()), None, "nothing is made up");
    }
}

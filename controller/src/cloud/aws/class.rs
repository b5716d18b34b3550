//! An EC2NodeClass in the words of the EC2 edge. Pure: nothing is asked of anyone.

use std::collections::BTreeMap;

use karp_aws::instances::Attached;
use karp_aws::launch_template::{
    BlockDevice, ConnectionTracking, Interface, InterfaceKind, MetadataOptions, MoreInterface, Placement, Spec,
};
use karp_aws::{Error, images, node_class};
use karp_domain::api::{
    Ami, AmiFamily, BlockDeviceMapping, Ec2NodeClass, Ec2NodeClassSpec, HttpTokens, InterfaceType, Toggle, VolumeType,
    labels,
};
use karp_domain::catalogue::{Arch, Demands, InstanceFacts, InstanceType};
use karp_domain::quantity::Quantity;
use karp_domain::requirement::Requirement;
use karp_domain::user_data::ClusterFacts;
use kube::ResourceExt;

const GIB: u64 = 1 << 30;
/// The root volume of a class that names none, in GiB (Karpenter's default).
const ROOT_VOLUME_GIB: i32 = 20;
/// Bottlerocket's volume for the operating system, in GiB (Karpenter's default).
const BOTTLEROCKET_OS_GIB: i32 = 4;
/// The root volume of Windows, in GiB (Karpenter's default).
const WINDOWS_ROOT_GIB: i32 = 50;

/// Returns the family that boots the class's images.
///
/// # Errors
/// [`Error::InvalidRequest`] when nothing tells the family.
pub fn family(spec: &Ec2NodeClassSpec) -> Result<AmiFamily, Error> {
    if let Some(family) = spec.ami_family {
        return Ok(family);
    }
    node_class::alias(spec)?.map(|alias| alias.family).ok_or_else(|| Error::InvalidRequest {
        action: "ec2:DescribeImages",
        code: "UnsupportedFamily".to_owned(),
        message: "amiFamily is needed when no alias tells the family".to_owned(),
    })
}

/// Returns the tags by which what was made for a class is found again: the cluster's, and the class's name.
pub fn ownership(cluster: &str, class: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (format!("kubernetes.io/cluster/{cluster}"), "owned".to_owned()),
        (labels::EC2_NODE_CLASS.to_owned(), class.to_owned()),
    ])
}

/// Returns the tags of all that is made for nodes of a class and pool. The controller's policy is scoped by them.
pub fn tags(cluster: &str, class: &Ec2NodeClass, pool: &str) -> BTreeMap<String, String> {
    let mut tags = class.spec.tags.to_map();
    tags.extend(ownership(cluster, &class.name_any()));
    tags.insert("eks:eks-cluster-name".to_owned(), cluster.to_owned());
    tags.insert(labels::NODE_POOL.to_owned(), pool.to_owned());
    tags
}

/// Regions where EC2 refuses a launch that says whether the metadata service answers over IPv6, even that it does not (Karpenter's list).
const SILENT_ON_IPV6: [&str; 6] =
    ["us-iso-east-1", "us-iso-west-1", "us-isob-east-1", "us-isob-west-1", "us-isof-east-1", "us-isof-south-1"];

/// Returns the instance metadata settings.
pub fn metadata(spec: &Ec2NodeClassSpec, region: &str) -> MetadataOptions {
    let options = &spec.metadata_options;
    let ipv6 = options.http_protocol_ipv6 == Toggle::Enabled;
    MetadataOptions {
        endpoint: options.http_endpoint == Toggle::Enabled,
        ipv6: (!SILENT_ON_IPV6.contains(&region)).then_some(ipv6),
        hop_limit: i32::try_from(options.http_put_response_hop_limit).unwrap_or(1),
        tokens_required: options.http_tokens == HttpTokens::Required,
    }
}

/// Says whether nodes of a type get prefixes at launch. Instances on Xen take none, and with the IPv6 address of its node an interface takes
/// none either: there the CNI asks for the prefix.
pub fn takes_prefixes(spec: &Ec2NodeClassSpec, cluster: &ClusterFacts, kind: &InstanceType) -> bool {
    let hypervisor = kind.labels.get(labels::INSTANCE_HYPERVISOR).and_then(|names| names.first());
    let wanted = spec.ip_prefix_count.is_some_and(|count| count > 0);
    wanted && !cluster.is_ipv6() && hypervisor.is_none_or(|name| &**name != "xen")
}

/// The network card of a node's first interface, and its place on the card.
const FIRST: (u32, u32) = (0, 0);

/// Returns what the network interfaces of a node have. `efa` is where EFA interfaces go, if its pods ask for any; interfaces that the
/// class lists itself are all that a node gets.
pub fn interface(spec: &Ec2NodeClassSpec, cluster: &ClusterFacts, prefixes: bool, efa: &[(u32, u32)]) -> Interface {
    let tracking = spec.connection_tracking.as_ref().map(|tracking| ConnectionTracking {
        tcp_established: tracking.tcp_established_timeout,
        udp_stream: tracking.udp_stream_timeout,
        udp: tracking.udp_timeout,
    });
    let listed = spec.network_interfaces.iter().filter(|one| (one.network_card_index, one.device_index) != (0, 0));
    let listed = listed.map(|one| MoreInterface {
        card: one.network_card_index,
        device: one.device_index,
        kind: match one.interface_type {
            InterfaceType::Interface => InterfaceKind::Plain,
            InterfaceType::EfaOnly => InterfaceKind::EfaOnly,
        },
    });
    let efa = if spec.network_interfaces.is_empty() { efa } else { &[] };
    let further = efa.iter().filter(|place| **place != FIRST).map(|(card, device)| MoreInterface {
        card: *card as i32,
        device: *device as i32,
        kind: InterfaceKind::Efa,
    });
    Interface {
        ipv6: cluster.is_ipv6(),
        prefixes: spec.ip_prefix_count.filter(|_| prefixes),
        connection_tracking: tracking,
        kind: if efa.contains(&FIRST) { InterfaceKind::Efa } else { InterfaceKind::Plain },
        more: listed.chain(further).collect(),
    }
}

/// Returns what every launch template of a class says in a region, whatever image, type and pool it is for.
pub fn template(spec: &Ec2NodeClassSpec, family: AmiFamily, placement: Option<Placement>, region: &str) -> Spec {
    let Demands { nested_vms, enclaves, .. } = Demands::from_class(spec);
    Spec {
        block_devices: block_devices(spec, family),
        metadata: metadata(spec, region),
        detailed_monitoring: spec.detailed_monitoring.unwrap_or(false),
        associate_public_ip: spec.associate_public_ip_address,
        placement,
        nested_vms,
        enclaves,
        ..Spec::default()
    }
}

/// Returns the volumes: the class's own, or its family's.
pub fn block_devices(spec: &Ec2NodeClassSpec, family: AmiFamily) -> Vec<BlockDevice> {
    if !spec.block_device_mappings.is_empty() {
        return spec.block_device_mappings.iter().filter_map(block_device).collect();
    }
    match family {
        AmiFamily::Al2 | AmiFamily::Al2023 => vec![BlockDevice::gp3("/dev/xvda", ROOT_VOLUME_GIB)],
        AmiFamily::Bottlerocket => {
            vec![BlockDevice::gp3("/dev/xvda", BOTTLEROCKET_OS_GIB), BlockDevice::gp3("/dev/xvdb", ROOT_VOLUME_GIB)]
        }
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => {
            vec![BlockDevice::gp3("/dev/sda1", WINDOWS_ROOT_GIB)]
        }
        AmiFamily::Custom => Vec::new(),
    }
}

/// Names an instance and the volumes that it was launched with. Those of pods are left out: they are somebody's own, and stay.
pub fn launched_with(spec: &Ec2NodeClassSpec, instance: &str, volumes: &[Attached]) -> Vec<String> {
    let listed = |device: &str| spec.block_device_mappings.iter().any(|one| one.device_name.as_deref() == Some(device));
    let own = volumes.iter().filter(|one| one.ends_with_instance || listed(&one.device));
    std::iter::once(instance.to_owned()).chain(own.map(|one| one.id.clone())).collect()
}

fn block_device(mapping: &BlockDeviceMapping) -> Option<BlockDevice> {
    let ebs = mapping.ebs.as_ref()?;
    let small = |value: Option<i64>| value.and_then(|value| i32::try_from(value).ok());
    let bytes = ebs.volume_size.as_deref().and_then(bytes);
    Some(BlockDevice {
        device_name: mapping.device_name.clone().unwrap_or_else(|| "/dev/xvda".to_owned()),
        size_gib: bytes.and_then(|bytes| i32::try_from(bytes.div_ceil(GIB)).ok()),
        volume_type: ebs.volume_type.map(|kind| volume_type(kind).to_owned()),
        iops: small(ebs.iops),
        throughput: small(ebs.throughput),
        encrypted: ebs.encrypted,
        kms_key_id: ebs.kms_key_id.clone(),
        snapshot_id: ebs.snapshot_id.clone(),
        initialization_rate: ebs.volume_initialization_rate,
        delete_on_termination: ebs.delete_on_termination.unwrap_or(true),
    })
}

const fn volume_type(kind: VolumeType) -> &'static str {
    match kind {
        VolumeType::Standard => "standard",
        VolumeType::Io1 => "io1",
        VolumeType::Io2 => "io2",
        VolumeType::Gp2 => "gp2",
        VolumeType::Sc1 => "sc1",
        VolumeType::St1 => "st1",
        VolumeType::Gp3 => "gp3",
    }
}

fn bytes(size: &str) -> Option<u64> {
    u64::try_from(size.parse::<Quantity>().ok()?.units()).ok()
}

/// Returns the first of the class's images that nodes with these labels can run.
pub fn image_for(images: &[Ami], has: impl Fn(&str) -> Option<String>) -> Option<&Ami> {
    images.iter().find(|image| {
        image.requirements.iter().all(|wanted| {
            let requirement = Requirement::new(&wanted.key, wanted.operator, &wanted.values);
            requirement.is_ok_and(|requirement| match has(&wanted.key) {
                Some(value) => requirement.admits(&value),
                None => requirement.admits_absence(),
            })
        })
    })
}

/// Returns the labels of a node of this type under a family.
pub fn node_labels(family: AmiFamily, facts: &InstanceFacts) -> BTreeMap<String, String> {
    let mut all = facts.labels();
    if let Some(build) = images::windows_build(family) {
        all.insert(labels::OS.to_owned(), "windows".to_owned());
        all.insert(labels::WINDOWS_BUILD.to_owned(), build.to_owned());
    }
    all
}

/// Returns the first of the class's images that nodes of a type can run, by what the catalogue knows of it: the type may be newer than this
/// program.
pub fn image_of<'a>(images: &'a [Ami], kind: &InstanceType) -> Option<&'a Ami> {
    image_for(images, |key| match kind.labels.get(key)?.as_slice() {
        [value] => Some(value.to_string()),
        _ => None,
    })
}

/// Says whether a family's current images boot a type at all: AL2023 wants a CPU newer than the first Graviton, Windows is built for amd64.
pub fn boots(family: AmiFamily, facts: &InstanceFacts) -> bool {
    match family {
        AmiFamily::Al2023 => facts.name_parts().family != "a1",
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => facts.arch == Arch::Amd64,
        AmiFamily::Al2 | AmiFamily::Bottlerocket | AmiFamily::Custom => true,
    }
}

#[cfg(test)]
mod tests {
    use karp_aws::images::Variant;
    use karp_domain::api::{AmiRequirement, AmiSelectorTerm};
    use karp_domain::catalogue::{NodeSettings, builtin_type};
    use karp_domain::requirement::Operator;

    use super::*;

    fn spec(alias: &str) -> Ec2NodeClassSpec {
        let term = AmiSelectorTerm { alias: Some(alias.to_owned()), ..AmiSelectorTerm::default() };
        Ec2NodeClassSpec { ami_selector_terms: vec![term], ..Ec2NodeClassSpec::default() }
    }

    #[test]
    fn the_family_comes_from_the_field_or_the_alias() {
        assert_eq!(family(&spec("al2023@latest")).ok(), Some(AmiFamily::Al2023));
        let custom = Ec2NodeClassSpec { ami_family: Some(AmiFamily::Custom), ..spec("al2023@latest") };
        assert_eq!(family(&custom).ok(), Some(AmiFamily::Custom));
        assert_eq!(family(&spec("windows2022@latest")).ok(), Some(AmiFamily::Windows2022));
        for refused in [spec("ubuntu@latest"), Ec2NodeClassSpec::default()] {
            assert!(family(&refused).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn what_was_launched_with_an_instance_is_told_from_what_pods_brought() {
        let volume = |id: &str, device: &str, ends_with_instance| Attached {
            id: id.to_owned(),
            device: device.to_owned(),
            ends_with_instance,
        };
        let volumes = vec![
            volume("vol-root", "/dev/xvda", true),
            volume("vol-kept", "/dev/xvdb", false),
            volume("vol-pod", "/dev/xvdaa", false),
        ];
        let mut spec = spec("al2023@latest");
        assert_eq!(launched_with(&spec, "i-1", &volumes), ["i-1", "vol-root"]);
        let named = BlockDeviceMapping { device_name: Some("/dev/xvdb".to_owned()), ..BlockDeviceMapping::default() };
        spec.block_device_mappings = vec![named].into();
        assert_eq!(launched_with(&spec, "i-1", &volumes), ["i-1", "vol-root", "vol-kept"]);
    }

    #[test]
    fn the_classs_own_volumes_are_taken_as_they_are() {
        let mapping: BlockDeviceMapping = serde_json::from_value(serde_json::json!({
            "deviceName": "/dev/xvda", "ebs": { "volumeSize": "100G", "volumeType": "io2", "iops": 3000 }
        }))
        .expect("a mapping");
        let own = Ec2NodeClassSpec { block_device_mappings: vec![mapping].into(), ..spec("al2023@latest") };
        let device = &block_devices(&own, AmiFamily::Al2023)[0];
        assert_eq!((device.size_gib, device.volume_type.as_deref(), device.iops), (Some(94), Some("io2"), Some(3000)));
        assert!(device.delete_on_termination);
        assert_eq!(block_devices(&spec("bottlerocket@latest"), AmiFamily::Bottlerocket).len(), 2);
    }

    #[test]
    fn the_first_image_that_fits_is_taken() {
        let image = |id: &str, requirements: &[(&str, Operator, &[&str])]| Ami {
            id: id.to_owned(),
            requirements: requirements
                .iter()
                .map(|(key, operator, values)| AmiRequirement {
                    key: (*key).to_owned(),
                    operator: *operator,
                    values: values.iter().map(|value| (*value).to_owned()).collect(),
                })
                .collect(),
            ..Ami::default()
        };
        let images = [
            image("arm", &[(labels::ARCH, Operator::In, &["arm64"])]),
            image(
                "gpu",
                &[(labels::ARCH, Operator::In, &["amd64"]), (labels::INSTANCE_GPU_COUNT, Operator::Exists, &[])],
            ),
            image(
                "plain",
                &[(labels::ARCH, Operator::In, &["amd64"]), (labels::INSTANCE_GPU_COUNT, Operator::DoesNotExist, &[])],
            ),
        ];
        for (has, expected) in [
            (&[(labels::ARCH, "amd64")][..], Some("plain")),
            (&[(labels::ARCH, "amd64"), (labels::INSTANCE_GPU_COUNT, "4")], Some("gpu")),
            (&[(labels::ARCH, "arm64")], Some("arm")),
            (&[(labels::ARCH, "riscv")], None),
        ] {
            let label = |key: &str| has.iter().find(|(known, _)| *known == key).map(|(_, value)| (*value).to_owned());
            assert_eq!(image_for(&images, label).map(|image| image.id.as_str()), expected, "{has:?}");
        }
    }

    #[test]
    fn images_with_neurons_drivers_are_for_neuron_devices_alone() {
        let published = |id: &str, variant| images::Image {
            id: id.to_owned(),
            name: String::new(),
            arch: Arch::Amd64,
            variant,
            created_at: None,
            deprecated: false,
        };
        let variants = [("plain", Variant::Standard), ("gpu", Variant::Nvidia), ("neuron", Variant::Neuron)];
        let images = variants.map(|(id, variant)| node_class::ami(published(id, variant)));
        let types = [
            ("m7i.large", "plain"),
            ("g5.xlarge", "gpu"),
            ("inf2.xlarge", "neuron"),
            ("inf1.xlarge", "neuron"),
            ("trn1.2xlarge", "neuron"),
            ("vt1.3xlarge", "plain"),
            ("dl2q.24xlarge", "plain"),
        ];
        for (name, expected) in types {
            let facts = builtin_type(name).expect("a type");
            let kind = InstanceType::measured(facts, &NodeSettings::default(), None, Vec::new());
            assert_eq!(image_of(&images, &kind).map(|image| image.id.as_str()), Some(expected), "{name}");
            let labels = facts.labels();
            let booted = image_for(&images, |label| labels.get(label).cloned());
            assert_eq!(booted.map(|image| image.id.as_str()), Some(expected), "{name}");
        }
    }

    #[test]
    fn a_windows_image_is_for_windows_nodes() {
        let of = |key: &str, value: &str| AmiRequirement {
            key: key.to_owned(),
            operator: Operator::In,
            values: vec![value.to_owned()],
        };
        let requirements = vec![of(labels::OS, "windows"), of(labels::WINDOWS_BUILD, "10.0.20348")];
        let images = [Ami { id: "ami-1".to_owned(), requirements, ..Ami::default() }];
        let facts = builtin_type("m7i.large").expect("a type");
        let kind = |family| InstanceType::measured(facts, &NodeSettings::of(family), None, Vec::new());
        assert!(image_of(&images, &kind(AmiFamily::Windows2022)).is_some());
        assert!(image_of(&images, &kind(AmiFamily::Windows2019)).is_none());
        assert!(image_of(&images, &kind(AmiFamily::Al2023)).is_none());
    }

    #[test]
    fn a_type_that_is_newer_than_this_program_gets_the_image_of_its_architecture() {
        let image = |id: &str, arch: &str| Ami {
            id: id.to_owned(),
            requirements: vec![AmiRequirement {
                key: labels::ARCH.to_owned(),
                operator: Operator::In,
                values: vec![arch.to_owned()],
            }],
            ..Ami::default()
        };
        let images = [image("amd", "amd64"), image("arm", "arm64")];
        for (like, expected) in [("m7i.large", "amd"), ("m7g.large", "arm")] {
            let facts = InstanceFacts { name: "m99x.large".to_owned(), ..builtin_type(like).expect("a type").clone() };
            let kind = InstanceType::measured(&facts, &NodeSettings::of(AmiFamily::Al2023), None, Vec::new());
            assert_eq!(image_of(&images, &kind).map(|image| image.id.as_str()), Some(expected), "as {like}");
        }
    }

    fn with(more: &serde_json::Value) -> Ec2NodeClassSpec {
        let mut value = serde_json::to_value(spec("al2023@latest")).expect("JSON");
        value.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        serde_json::from_value(value).expect("a spec")
    }

    #[test]
    fn some_regions_do_not_let_the_protocol_of_the_metadata_service_be_said() {
        let on = with(&serde_json::json!({ "metadataOptions": { "httpProtocolIPv6": "enabled" } }));
        let said = |spec: &Ec2NodeClassSpec, region: &str| metadata(spec, region).ipv6;
        assert_eq!((said(&on, "eu-west-1"), said(&spec("al2023@latest"), "eu-west-1")), (Some(true), Some(false)));
        assert_eq!((said(&on, "us-iso-east-1"), said(&spec("al2023@latest"), "us-isob-east-1")), (None, None));
    }

    #[test]
    fn prefixes_are_for_nitro_and_for_interfaces_with_ipv4_addresses_alone() {
        let kind = |name: &str| {
            let facts = builtin_type(name).expect("a type");
            InstanceType::measured(facts, &NodeSettings::of(AmiFamily::Al2023), None, Vec::new())
        };
        let cluster = |cidr: &str| ClusterFacts { service_cidr: Some(cidr.to_owned()), ..ClusterFacts::default() };
        let (ipv4, ipv6) = (cluster("10.100.0.0/16"), cluster("fd30:1c53:5f8a::/108"));
        let two = with(&serde_json::json!({ "ipPrefixCount": 2 }));
        let takes = |spec: &Ec2NodeClassSpec, cluster, name: &str| takes_prefixes(spec, cluster, &kind(name));
        assert!(takes(&two, &ipv4, "m7i.large"));
        assert!(!takes(&two, &ipv4, "m4.large"), "on Xen");
        assert!(!takes(&two, &ipv6, "m7i.large"), "EC2 gives an interface an IPv6 address or prefixes");
        assert!(!takes(&with(&serde_json::json!({ "ipPrefixCount": 0 })), &ipv4, "m7i.large"));
    }

    #[test]
    fn efa_is_where_the_type_takes_it_unless_the_class_lists_interfaces() {
        let places = |spec: &Ec2NodeClassSpec, efa: &[(u32, u32)]| {
            let interface = interface(spec, &ClusterFacts::default(), false, efa);
            let more = interface.more.iter().map(|one| (one.card, one.device, one.kind)).collect::<Vec<_>>();
            (interface.kind, more)
        };
        use InterfaceKind::{Efa, EfaOnly, Plain};
        let plain = spec("al2023@latest");
        assert_eq!(places(&plain, &[]), (Plain, vec![]));
        assert_eq!(places(&plain, &[(0, 0)]), (Efa, vec![]));
        assert_eq!(places(&plain, &[(0, 0), (1, 1), (2, 0)]), (Efa, vec![(1, 1, Efa), (2, 0, Efa)]));
        assert_eq!(places(&plain, &[(1, 1), (2, 1)]), (Plain, vec![(1, 1, Efa), (2, 1, Efa)]));
        let listed = with(&serde_json::json!({"networkInterfaces": [
            {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"},
            {"networkCardIndex": 1, "deviceIndex": 1, "interfaceType": "efa-only"}]}));
        assert_eq!(places(&listed, &[(0, 0), (1, 1)]), (Plain, vec![(1, 1, EfaOnly)]));
    }
}

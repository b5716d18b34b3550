//! Static drift hashes of NodePool and EC2NodeClass, by the algorithm of Go's hashstructure v2 with slices as sets, zero values ignored and
//! nil as zero: so that nodes made under Karpenter do not drift when karp takes over.
//!
//! The shape of the hash follows Go's structs: type names, field names and the order of the fields all count, and what is absent is told
//! from what is written as empty.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::KubeletConfiguration;
use super::node_class::{AmiFamily, BlockDeviceMapping, Ec2NodeClassSpec, MetadataOptions, NetworkInterface};
use super::node_pool::NodePoolSpec;
use super::shared::{OptionalList, OptionalMap, TaintSpec, duration, go_duration};
use crate::quantity::Quantity;

/// The version of the NodePool hash, as Karpenter counts.
pub const NODE_POOL_VERSION: &str = "v3";
/// The version of the EC2NodeClass hash that karp stamps.
pub const NODE_CLASS_VERSION: &str = NodeClassVersion::V6.as_str();

/// The versions of the EC2NodeClass hash that karp computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeClassVersion {
    /// Karpenter 1.14.
    V5,
    /// Karpenter 1.15: the settings of the kubelet are hashed as text.
    V6,
}

impl NodeClassVersion {
    /// Returns the version as Karpenter stamps it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V5 => "v5",
            Self::V6 => "v6",
        }
    }

    /// Reads a stamp; nothing for a version that karp does not compute.
    #[must_use]
    pub fn parse(stamp: &str) -> Option<Self> {
        [Self::V5, Self::V6].into_iter().find(|version| version.as_str() == stamp)
    }
}

/// Returns the hash of what makes nodes of a pool drift when it changes: labels, annotations, taints, class, grace and lifetime.
#[must_use]
pub fn node_pool(spec: &NodePoolSpec) -> String {
    let template = &spec.template;
    let metadata = Go::structure("ObjectMeta")
        .field("Labels", Go::map(&template.metadata.labels))
        .field("Annotations", Go::map(&template.metadata.annotations));
    let class = Go::structure("NodeClassReference")
        .field("Kind", Go::string(&template.spec.node_class_ref.kind))
        .field("Name", Go::string(&template.spec.node_class_ref.name))
        .field("Group", Go::string(&template.spec.node_class_ref.group));
    let grace = template.spec.termination_grace_period.as_deref().and_then(duration);
    // Never is Go's zero value, so it is left out; zero seconds are not.
    let lifetime = template.spec.lifetime().map(|lifetime| {
        Go::structure("NillableDuration").field("Duration", Some(Go::Int64(nanoseconds(lifetime)))).build()
    });
    let inner = Go::structure("NodeClaimTemplateSpec")
        .field("Taints", Go::set(&template.spec.taints, taint))
        .field("StartupTaints", Go::set(&template.spec.startup_taints, taint))
        .field("NodeClassRef", Some(class.build()))
        .field("TerminationGracePeriod", grace.map(Go::duration))
        .field("ExpireAfter", lifetime);
    Go::structure("NodeClaimTemplate")
        .field("ObjectMeta", (!template.metadata.is_absent()).then(|| metadata.build()))
        .field("Spec", Some(inner.build()))
        .build()
        .hash()
        .to_string()
}

/// Returns the hash of what makes nodes of a class drift when it changes; what selectors resolve to is compared elsewhere.
///
/// `ca_bundle` is the cluster's CA bundle in base64, which nodes are booted with; empty when there is none.
#[must_use]
pub fn node_class(spec: &Ec2NodeClassSpec, version: NodeClassVersion, ca_bundle: &str) -> String {
    let placement = spec.placement_group_selector.as_ref().map(|group| {
        Go::structure("PlacementGroupSelector").field("Name", text(&group.name)).field("ID", text(&group.id)).build()
    });
    let mut structure = Go::structure("EC2NodeClassSpec")
        .field("PlacementGroupSelector", placement)
        .field("AssociatePublicIPAddress", spec.associate_public_ip_address.map(Go::Bool))
        .field("UserData", text(&spec.user_data))
        .field("Role", Go::string(spec.role.as_deref().unwrap_or_default()))
        .field("InstanceProfile", text(&spec.instance_profile))
        .field("Tags", Go::map(&spec.tags));
    if version == NodeClassVersion::V5 {
        structure = structure.field("Kubelet", spec.kubelet.as_ref().map(kubelet));
    }
    structure = structure
        .field("BlockDeviceMappings", Go::set(&spec.block_device_mappings, block_device_mapping))
        .field("InstanceStorePolicy", spec.instance_store_policy.as_ref().and_then(word))
        .field("NetworkInterfaces", Go::set(&spec.network_interfaces, network_interface))
        .field("DetailedMonitoring", spec.detailed_monitoring.map(Go::Bool))
        .field("MetadataOptions", Some(metadata_options(&spec.metadata_options)));
    if version == NodeClassVersion::V6 {
        let enclave = spec.enclave_options.as_ref();
        structure = structure.field(
            "EnclaveOptions",
            enclave.map(|enclave| {
                Go::structure("EnclaveOptions").field("Enabled", enclave.enabled.then_some(Go::Bool(true))).build()
            }),
        );
    }
    let tracking = spec.connection_tracking.as_ref().map(|tracking| {
        Go::structure("ConnectionTracking")
            .field("TCPEstablishedTimeout", tracking.tcp_established_timeout.map(Go::Int32))
            .field("UDPStreamTimeout", tracking.udp_stream_timeout.map(Go::Int32))
            .field("UDPTimeout", tracking.udp_timeout.map(Go::Int32))
            .build()
    });
    let cpu = spec.cpu_options.as_ref().map(|cpu| {
        let nested = cpu.nested_virtualization.as_ref().and_then(word);
        Go::structure("CPUOptions").field("NestedVirtualization", nested).build()
    });
    let structure =
        structure.field("ConnectionTracking", tracking).field("Context", text(&spec.context)).field("CPUOptions", cpu);
    let mut parts = vec![structure.build(), Go::String(family(spec).to_owned()), Go::String(ca_bundle.to_owned())];
    if version == NodeClassVersion::V6 {
        parts.push(Go::String(kubelet_text(spec.kubelet.as_ref())));
    }
    Go::Set(parts).hash().to_string()
}

/// Returns the family of images, told by the spec or by the alias.
#[must_use]
pub fn family(spec: &Ec2NodeClassSpec) -> &'static str {
    let named = |family: AmiFamily| match family {
        AmiFamily::Al2 => "AL2",
        AmiFamily::Al2023 => "AL2023",
        AmiFamily::Bottlerocket => "Bottlerocket",
        AmiFamily::Custom => "Custom",
        AmiFamily::Windows2019 => "Windows2019",
        AmiFamily::Windows2022 => "Windows2022",
        AmiFamily::Windows2025 => "Windows2025",
    };
    if let Some(family) = spec.ami_family {
        return named(family);
    }
    let alias = spec.ami_selector_terms.iter().find_map(|term| term.alias.as_deref()).unwrap_or_default();
    match alias.split('@').next().unwrap_or_default() {
        "al2" => "AL2",
        "al2023" => "AL2023",
        "bottlerocket" => "Bottlerocket",
        "windows2019" => "Windows2019",
        "windows2022" => "Windows2022",
        "windows2025" => "Windows2025",
        _ => "Custom",
    }
}

fn taint(taint: &TaintSpec) -> Go {
    Go::structure("Taint")
        .field("Key", Go::string(&taint.key))
        .field("Value", Go::string(taint.value.as_deref().unwrap_or_default()))
        .field("Effect", Go::string(taint.effect.as_str()))
        .field("TimeAdded", taint.time_added.map(|at| Go::structure("Time").field("Time", Some(Go::Time(at))).build()))
        .build()
}

fn kubelet(kubelet: &KubeletConfiguration) -> Go {
    let texts = |field: &str| {
        let map = kubelet.texts(field)?;
        Some(Go::Map(map.into_iter().map(|(key, value)| (key, Go::String(value))).collect()))
    };
    let number = |field: &str| kubelet.number(field).map(Go::Int32);
    let graces = kubelet.texts("evictionSoftGracePeriod").map(|map| {
        let grace = |text: String| Go::duration(go_duration(&text).unwrap_or_default());
        Go::Map(map.into_iter().map(|(key, text)| (key, grace(text))).collect())
    });
    let quota = kubelet.fields().get("cpuCFSQuota").and_then(Value::as_bool);
    Go::structure("KubeletConfiguration")
        .field("ClusterDNS", kubelet.list("clusterDNS").map(|list| Go::Set(list.into_iter().map(Go::String).collect())))
        .field("MaxPods", number("maxPods"))
        .field("PodsPerCore", number("podsPerCore"))
        .field("SystemReserved", texts("systemReserved"))
        .field("KubeReserved", texts("kubeReserved"))
        .field("EvictionHard", texts("evictionHard"))
        .field("EvictionSoft", texts("evictionSoft"))
        .field("EvictionSoftGracePeriod", graces)
        .field("EvictionMaxPodGracePeriod", number("evictionMaxPodGracePeriod"))
        .field("ImageGCHighThresholdPercent", number("imageGCHighThresholdPercent"))
        .field("ImageGCLowThresholdPercent", number("imageGCLowThresholdPercent"))
        .field("CPUCFSQuota", quota.map(Go::Bool))
        .build()
}

/// Returns the settings as Go marshals them: keys in order, no spaces, `<`, `>` and `&` escaped; `null` without any.
fn kubelet_text(kubelet: Option<&KubeletConfiguration>) -> String {
    let Some(fields) = kubelet.map(KubeletConfiguration::fields).filter(|fields| !fields.is_empty()) else {
        return "null".to_owned();
    };
    let mut text = String::new();
    go_object(fields.iter().map(|(key, value)| (key.as_str(), value)), &mut text);
    text
}

fn go_object<'a>(entries: impl Iterator<Item = (&'a str, &'a Value)>, text: &mut String) {
    let mut entries: Vec<_> = entries.collect();
    entries.sort_by_key(|(key, _)| *key);
    text.push('{');
    for (index, (key, value)) in entries.into_iter().enumerate() {
        text.push_str(if index == 0 { "" } else { "," });
        go_string(key, text);
        text.push(':');
        go_json(value, text);
    }
    text.push('}');
}

fn go_json(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => go_object(map.iter().map(|(key, value)| (key.as_str(), value)), text),
        Value::Array(list) => {
            text.push('[');
            for (index, value) in list.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "," });
                go_json(value, text);
            }
            text.push(']');
        }
        Value::String(string) => go_string(string, text),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => go_float(float, text),
            None => text.push_str(&number.to_string()),
        },
        Value::Bool(_) | Value::Null => text.push_str(&value.to_string()),
    }
}

fn go_string(string: &str, text: &mut String) {
    for character in Value::from(string).to_string().chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(text, "\\u{:04x}", u32::from(character));
            }
            other => text.push(other),
        }
    }
}

/// Go writes an exponent below 1e-6 and from 1e21 on, with a sign when it is positive.
fn go_float(float: f64, text: &mut String) {
    let size = float.abs();
    let _ = if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let shortest = format!("{float:e}");
        write!(text, "{}", if size >= 1.0 { shortest.replace('e', "e+") } else { shortest })
    } else {
        write!(text, "{float}")
    };
}

fn block_device_mapping(mapping: &BlockDeviceMapping) -> Go {
    let ebs = mapping.ebs.as_ref().map(|ebs| {
        // Go hashes the size by its canonical text.
        let size =
            ebs.volume_size.as_deref().and_then(|size| size.parse::<Quantity>().ok()).map(|size| size.to_string());
        Go::structure("BlockDevice")
            .field("DeleteOnTermination", ebs.delete_on_termination.map(Go::Bool))
            .field("Encrypted", ebs.encrypted.map(Go::Bool))
            .field("IOPS", ebs.iops.map(Go::Int64))
            .field("KMSKeyID", text(&ebs.kms_key_id))
            .field("SnapshotID", text(&ebs.snapshot_id))
            .field("Throughput", ebs.throughput.map(Go::Int64))
            .field("VolumeInitializationRate", ebs.volume_initialization_rate.map(Go::Int32))
            .field("VolumeSize", size.map(Go::String))
            .field("VolumeType", ebs.volume_type.as_ref().and_then(word))
            .build()
    });
    Go::structure("BlockDeviceMapping")
        .field("DeviceName", text(&mapping.device_name))
        .field("EBS", ebs)
        .field("RootVolume", mapping.root_volume.filter(|root| *root).map(Go::Bool))
        .build()
}

fn network_interface(interface: &NetworkInterface) -> Go {
    let index = |index: i32| (index != 0).then_some(Go::Int32(index));
    Go::structure("NetworkInterface")
        .field("NetworkCardIndex", index(interface.network_card_index))
        .field("DeviceIndex", index(interface.device_index))
        .field("InterfaceType", word(&interface.interface_type))
        .build()
}

fn metadata_options(options: &MetadataOptions) -> Go {
    Go::structure("MetadataOptions")
        .field("HTTPEndpoint", word(&options.http_endpoint))
        .field("HTTPProtocolIPv6", word(&options.http_protocol_ipv6))
        .field("HTTPPutResponseHopLimit", Some(Go::Int64(options.http_put_response_hop_limit)))
        .field("HTTPTokens", word(&options.http_tokens))
        .build()
}

fn text(value: &Option<String>) -> Option<Go> {
    value.as_deref().map(|value| Go::String(value.to_owned()))
}

/// Returns the word that an enum is written as.
fn word(value: &impl serde::Serialize) -> Option<Go> {
    serde_json::to_value(value).ok()?.as_str().map(|word| Go::String(word.to_owned()))
}

fn nanoseconds(duration: SignedDuration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// A value in the shape that Go's reflection sees.
enum Go {
    Bool(bool),
    Int32(i32),
    Int64(i64),
    String(String),
    Time(Timestamp),
    Map(Vec<(String, Go)>),
    Set(Vec<Go>),
    Struct(&'static str, Vec<(&'static str, Go)>),
}

/// A struct in the making; fields that are zero in Go are left out.
struct Structure(&'static str, Vec<(&'static str, Go)>);

impl Structure {
    fn field(mut self, name: &'static str, value: Option<Go>) -> Self {
        self.1.extend(value.map(|value| (name, value)));
        self
    }

    fn build(self) -> Go {
        Go::Struct(self.0, self.1)
    }
}

impl Go {
    const fn structure(name: &'static str) -> Structure {
        Structure(name, Vec::new())
    }

    fn string(value: &str) -> Option<Self> {
        (!value.is_empty()).then(|| Self::String(value.to_owned()))
    }

    fn duration(duration: SignedDuration) -> Self {
        let length = nanoseconds(duration);
        Self::structure("Duration").field("Duration", (length != 0).then_some(Self::Int64(length))).build()
    }

    fn map(map: &OptionalMap) -> Option<Self> {
        let entries = || map.iter().map(|(key, value)| (key.clone(), Self::String(value.clone()))).collect();
        (!map.is_absent()).then(|| Self::Map(entries()))
    }

    fn set<T>(items: &OptionalList<T>, each: impl Fn(&T) -> Self) -> Option<Self> {
        (!items.is_absent()).then(|| Self::Set(items.iter().map(each).collect()))
    }

    fn hash(&self) -> u64 {
        match self {
            Self::Bool(value) => fnv1(&[u8::from(*value)]),
            Self::Int32(value) => fnv1(&value.to_le_bytes()),
            Self::Int64(value) => fnv1(&value.to_le_bytes()),
            Self::String(value) => fnv1(value.as_bytes()),
            Self::Time(at) => fnv1(&go_time(*at)),
            Self::Map(entries) => finish(
                entries.iter().fold(0, |mixed, (key, value)| mixed ^ ordered(fnv1(key.as_bytes()), value.hash())),
            ),
            Self::Set(items) => items.iter().fold(0, |mixed, item| mixed ^ item.hash()),
            // The mixture is finished after each field, so order counts: a quirk of the original.
            Self::Struct(name, fields) => fields.iter().fold(fnv1(name.as_bytes()), |mixed, (field, value)| {
                finish(mixed ^ ordered(fnv1(field.as_bytes()), value.hash()))
            }),
        }
    }
}

/// Go's binary form of a time: version, seconds since the year 1, nanoseconds, and minutes that the zone is off UTC: none in a container.
fn go_time(at: Timestamp) -> [u8; 15] {
    const YEAR_1: i64 = -62_135_596_800;
    let mut bytes = [0; 15];
    bytes[0] = 1;
    bytes[1..9].copy_from_slice(&(at.as_second() - YEAR_1).to_be_bytes());
    bytes[9..13].copy_from_slice(&at.subsec_nanosecond().to_be_bytes());
    bytes
}

/// FNV-1 with 64 bits: multiply, then xor.
pub(crate) fn fnv1(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte))
}

fn ordered(first: u64, second: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    fnv1(&bytes)
}

fn finish(mixed: u64) -> u64 {
    fnv1(&mixed.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv1_gives_the_published_values() {
        assert_eq!(fnv1(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1(b"a"), 0xaf63_bd4c_8601_b7be);
        assert_eq!(fnv1(b"foobar"), 0x340d_8765_a4dd_a9c2);
    }
}

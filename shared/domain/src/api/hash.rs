//! Static drift hashes of NodePool and EC2NodeClass, by the algorithm of Go's hashstructure v2 with slices as sets, zero values ignored and
//! nil as zero: so that nodes made under Karpenter do not drift when karp takes over.
//!
//! The shape of the hash follows Go's structs: type names, field names and the order of the fields all count.

use super::node_class::{AmiFamily, BlockDeviceMapping, Ec2NodeClassSpec, MetadataOptions};
use super::node_pool::NodePoolSpec;
use super::shared::{NEVER, StringMap, TaintSpec, duration};
use crate::quantity::Quantity;

/// The version of the NodePool hash, as Karpenter counts.
pub const NODE_POOL_VERSION: &str = "v3";
/// The version of the EC2NodeClass hash, as Karpenter counts.
pub const NODE_CLASS_VERSION: &str = "v6";

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
    let lifetime = template.spec.lifetime().map(|lifetime| Go::Int64(nanoseconds(lifetime)));
    let lifetime = (lifetime.is_some() || template.spec.expire_after == NEVER)
        .then(|| Go::structure("NillableDuration").field("Duration", lifetime).build());
    let inner = Go::structure("NodeClaimTemplateSpec")
        .field("Taints", Go::set(&template.spec.taints, taint))
        .field("StartupTaints", Go::set(&template.spec.startup_taints, taint))
        .field("NodeClassRef", Some(class.build()))
        .field(
            "TerminationGracePeriod",
            grace.map(|grace| Go::structure("Duration").field("Duration", Go::int64(nanoseconds(grace))).build()),
        )
        .field("ExpireAfter", lifetime);
    Go::structure("NodeClaimTemplate")
        .field("ObjectMeta", (!template.metadata.is_empty()).then(|| metadata.build()))
        .field("Spec", Some(inner.build()))
        .build()
        .hash()
        .to_string()
}

/// Returns the hash of what makes nodes of a class drift when it changes; what selectors resolve to is compared elsewhere.
#[must_use]
pub fn node_class(spec: &Ec2NodeClassSpec) -> String {
    let text = |value: &Option<String>| value.as_deref().map(|value| Go::String(value.to_owned()));
    let kubelet = spec.kubelet.as_ref().and_then(|kubelet| serde_json::to_string(kubelet).ok());
    let structure = Go::structure("EC2NodeClassSpec")
        .field("AssociatePublicIPAddress", spec.associate_public_ip_address.map(Go::Bool))
        .field("UserData", text(&spec.user_data))
        .field("Role", Go::string(spec.role.as_deref().unwrap_or_default()))
        .field("InstanceProfile", text(&spec.instance_profile))
        .field("Tags", Go::map(&spec.tags))
        .field("Kubelet", kubelet.map(Go::String))
        .field("BlockDeviceMappings", Go::set(&spec.block_device_mappings, block_device_mapping))
        .field("InstanceStorePolicy", spec.instance_store_policy.as_ref().and_then(word))
        .field("DetailedMonitoring", spec.detailed_monitoring.map(Go::Bool))
        .field("MetadataOptions", Some(metadata_options(&spec.metadata_options)))
        .field("Context", text(&spec.context));
    let family = Go::String(family(spec).to_owned());
    Go::Set(vec![structure.build(), family]).hash().to_string()
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
        .build()
}

fn block_device_mapping(mapping: &BlockDeviceMapping) -> Go {
    let text = |value: &Option<String>| value.as_deref().map(|value| Go::String(value.to_owned()));
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

fn metadata_options(options: &MetadataOptions) -> Go {
    Go::structure("MetadataOptions")
        .field("HTTPEndpoint", word(&options.http_endpoint))
        .field("HTTPProtocolIPv6", word(&options.http_protocol_ipv6))
        .field("HTTPPutResponseHopLimit", Some(Go::Int64(options.http_put_response_hop_limit)))
        .field("HTTPTokens", word(&options.http_tokens))
        .build()
}

/// Returns the word that an enum is written as.
fn word(value: &impl serde::Serialize) -> Option<Go> {
    serde_json::to_value(value).ok()?.as_str().map(|word| Go::String(word.to_owned()))
}

fn nanoseconds(duration: jiff::SignedDuration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// A value in the shape that Go's reflection sees.
enum Go {
    Bool(bool),
    Int32(i32),
    Int64(i64),
    String(String),
    Map(Vec<(String, String)>),
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

    fn int64(value: i64) -> Option<Self> {
        (value != 0).then_some(Self::Int64(value))
    }

    fn map(map: &StringMap) -> Option<Self> {
        (!map.is_empty()).then(|| Self::Map(map.iter().map(|(k, v)| (k.clone(), v.clone())).collect()))
    }

    fn set<T>(items: &[T], each: impl Fn(&T) -> Self) -> Option<Self> {
        (!items.is_empty()).then(|| Self::Set(items.iter().map(each).collect()))
    }

    fn hash(&self) -> u64 {
        match self {
            Self::Bool(value) => fnv1(&[u8::from(*value)]),
            Self::Int32(value) => fnv1(&value.to_le_bytes()),
            Self::Int64(value) => fnv1(&value.to_le_bytes()),
            Self::String(value) => fnv1(value.as_bytes()),
            Self::Map(entries) => {
                let mixed = entries
                    .iter()
                    .fold(0, |mixed, (key, value)| mixed ^ ordered(fnv1(key.as_bytes()), fnv1(value.as_bytes())));
                finish(mixed)
            }
            Self::Set(items) => items.iter().fold(0, |mixed, item| mixed ^ item.hash()),
            // The mixture is finished after each field, so order counts: a quirk of the original.
            Self::Struct(name, fields) => fields.iter().fold(fnv1(name.as_bytes()), |mixed, (field, value)| {
                finish(mixed ^ ordered(fnv1(field.as_bytes()), value.hash()))
            }),
        }
    }
}

/// FNV-1 with 64 bits: multiply, then xor.
fn fnv1(bytes: &[u8]) -> u64 {
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

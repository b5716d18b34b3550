//! The Node that an instance registers as.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Node, NodeAddress, NodeSpec, NodeStatus, NodeSystemInfo},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use serde::Deserialize;

use super::user_data::Kubelet;

/// Marks the Node for kwok.
pub const FAKE: &str = "kwok.x-k8s.io/node";
/// The instance behind a Node.
pub const INSTANCE: &str = "sandbox.karp.dev/instance";
/// Marks a Node whose instance has ended, so that kwok does not revive it.
pub const ENDED: &str = "sandbox.karp.dev/instance-ended";

/// Hidden from the guest by firmware and kernel, in thousandths of the advertised memory: 5 to 7.5 % on real instances.
const MEMORY_HIDDEN_PERMILLE: u64 = 70;
/// nodeadm's and Bottlerocket's default threshold for `memory.available`.
const EVICTION_MEMORY_MIB: u64 = 100;
/// Kept of the disk by kubelet's default threshold for `nodefs.available`.
const EVICTION_DISK_PERCENT: u64 = 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// An EC2 instance, as the emulator's `/_karp/instance` tells it.
#[derive(Debug, Clone, Deserialize)]
pub struct Instance {
    /// Instance id.
    pub id: String,
    /// Availability zone.
    pub zone: String,
    /// Region.
    pub region: String,
    /// Instance type.
    pub instance_type: String,
    /// Image id.
    pub image_id: String,
    /// Name of the image, when it exists.
    pub image_name: Option<String>,
    /// Private address.
    pub private_ip: String,
    /// Private DNS name: the Node's name.
    pub private_dns_name: String,
    /// EC2's name of the architecture.
    pub architecture: String,
    /// User data in base64.
    pub user_data: String,
    /// Virtual CPUs of the type.
    pub vcpus: u64,
    /// Advertised memory of the type.
    pub memory_mib: u64,
    /// Pods by the interfaces and addresses of the type.
    pub max_pods: u32,
    /// NVIDIA GPUs of the type.
    pub gpus: u64,
    /// Size of the largest volume.
    pub root_volume_gib: u64,
    /// Role of the instance profile.
    pub role_arn: Option<String>,
    /// Whether that role has an access entry of a node type.
    pub may_join: bool,
}

impl Instance {
    /// Tells whether it was started from a Bottlerocket image.
    pub fn is_bottlerocket(&self) -> bool {
        self.image_name.as_deref().is_some_and(|name| name.starts_with("bottlerocket"))
    }
}

/// Builds the Node as its kubelet and the cloud controller would register it.
pub fn node(instance: &Instance, kubelet: &Kubelet) -> Node {
    let max_pods = kubelet.max_pods.unwrap_or(instance.max_pods);
    let capacity = capacity(instance, max_pods);
    Node {
        metadata: ObjectMeta {
            name: Some(instance.private_dns_name.clone()),
            labels: Some(labels(instance, kubelet)),
            annotations: Some(BTreeMap::from([
                (FAKE.to_owned(), "fake".to_owned()),
                (INSTANCE.to_owned(), instance.id.clone()),
            ])),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(format!("aws:///{}/{}", instance.zone, instance.id)),
            taints: Some(kubelet.taints.clone()),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            allocatable: Some(quantities(&allocatable(&capacity, instance, kubelet))),
            capacity: Some(quantities(&capacity)),
            addresses: Some(addresses(instance)),
            node_info: Some(system_info(instance)),
            ..NodeStatus::default()
        }),
    }
}

fn labels(instance: &Instance, kubelet: &Kubelet) -> BTreeMap<String, String> {
    let architecture = kubernetes_architecture(&instance.architecture);
    let mut labels = kubelet.labels.clone();
    for (key, value) in [
        ("kubernetes.io/arch", architecture),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/hostname", &instance.private_dns_name),
        ("node.kubernetes.io/instance-type", &instance.instance_type),
        ("topology.kubernetes.io/region", &instance.region),
        ("topology.kubernetes.io/zone", &instance.zone),
        ("beta.kubernetes.io/arch", architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/instance-type", &instance.instance_type),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    labels
}

fn kubernetes_architecture(ec2: &str) -> &str {
    if ec2 == "x86_64" { "amd64" } else { ec2 }
}

fn addresses(instance: &Instance) -> Vec<NodeAddress> {
    [
        ("InternalIP", &instance.private_ip),
        ("InternalDNS", &instance.private_dns_name),
        ("Hostname", &instance.private_dns_name),
    ]
    .map(|(kind, address)| NodeAddress { type_: kind.to_owned(), address: address.clone() })
    .into()
}

fn system_info(instance: &Instance) -> NodeSystemInfo {
    let image = instance.image_name.clone().unwrap_or_else(|| instance.image_id.clone());
    NodeSystemInfo {
        architecture: kubernetes_architecture(&instance.architecture).to_owned(),
        operating_system: "linux".to_owned(),
        os_image: image,
        kubelet_version: "v1.36.3-eks-sandbox".to_owned(),
        kube_proxy_version: "v1.36.3-eks-sandbox".to_owned(),
        container_runtime_version: "containerd://2.1.0".to_owned(),
        kernel_version: "6.12.0".to_owned(),
        machine_id: instance.id.clone(),
        system_uuid: instance.id.clone(),
        boot_id: instance.id.clone(),
        swap: None,
    }
}

/// Amounts by resource name: `cpu` in thousandths, the rest in units.
type Amounts = BTreeMap<String, u64>;

fn capacity(instance: &Instance, max_pods: u32) -> Amounts {
    let memory = instance.memory_mib * MIB / 1000 * (1000 - MEMORY_HIDDEN_PERMILLE);
    let mut amounts = Amounts::from([
        ("cpu".to_owned(), instance.vcpus * 1000),
        ("memory".to_owned(), memory),
        ("pods".to_owned(), u64::from(max_pods)),
        ("ephemeral-storage".to_owned(), instance.root_volume_gib * GIB),
    ]);
    if instance.gpus > 0 {
        amounts.insert("nvidia.com/gpu".to_owned(), instance.gpus);
    }
    amounts
}

fn allocatable(capacity: &Amounts, instance: &Instance, kubelet: &Kubelet) -> Amounts {
    let mut amounts = capacity.clone();
    let mut take = |name: &str, amount: u64| {
        if let Some(left) = amounts.get_mut(name) {
            *left = left.saturating_sub(amount);
        }
    };
    for (name, amount) in kube_reserved_default(instance) {
        let own = kubelet.kube_reserved.as_ref().and_then(|reserved| reserved.get(name));
        take(name, own.and_then(|text| amount_of(name, text)).unwrap_or(amount));
    }
    for (name, text) in &kubelet.system_reserved {
        take(name, amount_of(name, text).unwrap_or(0));
    }
    let threshold = |signal: &str| kubelet.eviction_hard.as_ref().and_then(|signals| signals.get(signal));
    let memory = threshold("memory.available").and_then(|text| share_of(text, capacity["memory"]));
    take("memory", memory.unwrap_or(EVICTION_MEMORY_MIB * MIB));
    let disk = threshold("nodefs.available").and_then(|text| share_of(text, capacity["ephemeral-storage"]));
    take("ephemeral-storage", disk.unwrap_or(capacity["ephemeral-storage"] / 100 * EVICTION_DISK_PERCENT));
    amounts
}

/// What nodeadm keeps by default: 11 MiB a pod + 255 MiB; 6 % of the first core, 1 % of the second, 0.5 % of two more, 0.25 % of the rest.
fn kube_reserved_default(instance: &Instance) -> [(&'static str, u64); 3] {
    let tenths = |cores: u64, permyriad: u64| cores * permyriad; // of a thousandth of a core, in tens
    let (first, second) = (instance.vcpus.min(1), instance.vcpus.saturating_sub(1).min(1));
    let (next, rest) = (instance.vcpus.saturating_sub(2).min(2), instance.vcpus.saturating_sub(4));
    let cpu = (tenths(first, 600) + tenths(second, 100) + tenths(next, 50) + tenths(rest, 25)) / 10;
    [("cpu", cpu), ("memory", (11 * u64::from(instance.max_pods) + 255) * MIB), ("ephemeral-storage", GIB)]
}

/// Reads a threshold: an amount, or a share of the whole.
fn share_of(text: &str, whole: u64) -> Option<u64> {
    match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().ok().map(|percent| (whole as f64 * percent / 100.0) as u64),
        None => amount_of("memory", text),
    }
}

/// Reads a quantity as thousandths of a core, or as bytes.
pub fn amount_of(name: &str, text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: f64 = digits.parse().ok()?;
    let factor = match &text[digits.len()..] {
        "" => 1.0,
        "m" => 0.001,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "Ki" => 1024.0,
        "Mi" => MIB as f64,
        "Gi" => GIB as f64,
        _ => return None,
    };
    let unit = if name == "cpu" { 1000.0 } else { 1.0 };
    Some((number * factor * unit).round() as u64)
}

fn quantities(amounts: &Amounts) -> BTreeMap<String, Quantity> {
    let written = |name: &str, amount: u64| match name {
        "cpu" if amount.is_multiple_of(1000) => (amount / 1000).to_string(),
        "cpu" => format!("{amount}m"),
        "memory" | "ephemeral-storage" => format!("{}Ki", amount / 1024),
        _ => amount.to_string(),
    };
    amounts.iter().map(|(name, amount)| (name.clone(), Quantity(written(name, *amount)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance() -> Instance {
        serde_json::from_value(serde_json::json!({
            "id": "i-1", "state": "running", "zone": "us-east-1a", "region": "us-east-1", "instance_type": "m5.large",
            "image_id": "ami-1", "image_name": "amazon-eks-node-al2023-x86_64-standard-1.36-v20261110", "private_ip": "10.64.0.4",
            "private_dns_name": "ip-10-64-0-4.ec2.internal", "architecture": "x86_64", "user_data": "", "vcpus": 2, "memory_mib": 8192,
            "max_pods": 29, "gpus": 0, "root_volume_gib": 20, "role_arn": null, "may_join": true
        }))
        .unwrap()
    }

    fn amounts(node: &Node) -> [(String, String); 3] {
        let status = node.status.as_ref().unwrap();
        ["cpu", "memory", "pods"].map(|name| {
            let of = |map: &Option<BTreeMap<String, Quantity>>| map.as_ref().unwrap()[name].0.clone();
            (of(&status.capacity), of(&status.allocatable))
        })
    }

    #[test]
    fn a_node_has_the_resources_of_its_type_less_what_is_reserved() {
        let made = node(&instance(), &Kubelet::default());
        let memory = 8192 * MIB / 1000 * 930;
        let kept = (11 * 29 + 255 + 100) * MIB;
        let pair = |whole: &str, left: &str| (whole.to_owned(), left.to_owned());
        assert_eq!(
            amounts(&made),
            [
                pair("2", "1930m"),
                pair(&format!("{}Ki", memory / 1024), &format!("{}Ki", (memory - kept) / 1024)),
                pair("29", "29")
            ]
        );
        assert_eq!(made.spec.unwrap().provider_id.unwrap(), "aws:///us-east-1a/i-1");
        let labels = made.metadata.labels.unwrap();
        assert_eq!(labels["kubernetes.io/arch"], "amd64");
        assert_eq!(labels["kubernetes.io/hostname"], "ip-10-64-0-4.ec2.internal");
    }

    #[test]
    fn the_user_data_decides_over_the_defaults() {
        let text = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>()
        };
        let kubelet = Kubelet {
            max_pods: Some(110),
            kube_reserved: Some(text(&[("cpu", "100m"), ("memory", "1Gi")])),
            system_reserved: text(&[("cpu", "0.1")]),
            eviction_hard: Some(text(&[("memory.available", "10%")])),
            ..Kubelet::default()
        };
        let [(_, cpu), (_, memory), (_, pods)] = amounts(&node(&instance(), &kubelet));
        let whole = 8192 * MIB / 1000 * 930;
        assert_eq!((cpu.as_str(), pods.as_str()), ("1800m", "110"));
        let left: u64 = memory.trim_end_matches("Ki").parse().unwrap();
        assert_eq!(left, (whole - GIB - whole / 10) / 1024);
    }
}

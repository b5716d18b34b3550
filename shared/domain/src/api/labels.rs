//! Labels, annotations, taints and finalizers, with Karpenter's names.

use std::borrow::Cow;

use crate::taint::{Taint, TaintEffect};

/// The API group of NodePool and NodeClaim.
pub const GROUP: &str = "karpenter.sh";
/// The API group of EC2NodeClass.
pub const AWS_GROUP: &str = "karpenter.k8s.aws";

pub const NODE_POOL: &str = "karpenter.sh/nodepool";
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
pub const INITIALIZED: &str = "karpenter.sh/initialized";
pub const REGISTERED: &str = "karpenter.sh/registered";
pub const DO_NOT_SYNC_TAINTS: &str = "karpenter.sh/do-not-sync-taints";
pub const EC2_NODE_CLASS: &str = "karpenter.k8s.aws/ec2nodeclass";

pub const ARCH: &str = "kubernetes.io/arch";
pub const OS: &str = "kubernetes.io/os";
pub const HOSTNAME: &str = "kubernetes.io/hostname";
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
pub const ZONE: &str = "topology.kubernetes.io/zone";
pub const REGION: &str = "topology.kubernetes.io/region";
pub const ZONE_ID: &str = "topology.k8s.aws/zone-id";

pub const INSTANCE_CATEGORY: &str = "karpenter.k8s.aws/instance-category";
pub const INSTANCE_FAMILY: &str = "karpenter.k8s.aws/instance-family";
pub const INSTANCE_GENERATION: &str = "karpenter.k8s.aws/instance-generation";
pub const INSTANCE_SIZE: &str = "karpenter.k8s.aws/instance-size";
pub const INSTANCE_HYPERVISOR: &str = "karpenter.k8s.aws/instance-hypervisor";
pub const INSTANCE_ENCRYPTION_IN_TRANSIT: &str = "karpenter.k8s.aws/instance-encryption-in-transit-supported";
pub const INSTANCE_LOCAL_NVME: &str = "karpenter.k8s.aws/instance-local-nvme";
pub const INSTANCE_CPU: &str = "karpenter.k8s.aws/instance-cpu";
pub const INSTANCE_CPU_MANUFACTURER: &str = "karpenter.k8s.aws/instance-cpu-manufacturer";
pub const INSTANCE_CPU_CLOCK_SPEED: &str = "karpenter.k8s.aws/instance-cpu-sustained-clock-speed-mhz";
pub const INSTANCE_MEMORY: &str = "karpenter.k8s.aws/instance-memory";
pub const INSTANCE_EBS_BANDWIDTH: &str = "karpenter.k8s.aws/instance-ebs-bandwidth";
pub const INSTANCE_NETWORK_BANDWIDTH: &str = "karpenter.k8s.aws/instance-network-bandwidth";
pub const INSTANCE_GPU_NAME: &str = "karpenter.k8s.aws/instance-gpu-name";
pub const INSTANCE_GPU_MANUFACTURER: &str = "karpenter.k8s.aws/instance-gpu-manufacturer";
pub const INSTANCE_GPU_COUNT: &str = "karpenter.k8s.aws/instance-gpu-count";
pub const INSTANCE_GPU_MEMORY: &str = "karpenter.k8s.aws/instance-gpu-memory";
pub const INSTANCE_ACCELERATOR_NAME: &str = "karpenter.k8s.aws/instance-accelerator-name";
pub const INSTANCE_ACCELERATOR_MANUFACTURER: &str = "karpenter.k8s.aws/instance-accelerator-manufacturer";
pub const INSTANCE_ACCELERATOR_COUNT: &str = "karpenter.k8s.aws/instance-accelerator-count";
pub const INSTANCE_CAPABILITY_FLEX: &str = "karpenter.k8s.aws/instance-capability-flex";
pub const INSTANCE_TENANCY: &str = "karpenter.k8s.aws/instance-tenancy";
pub const CAPACITY_RESERVATION_ID: &str = "karpenter.k8s.aws/capacity-reservation-id";
pub const CAPACITY_RESERVATION_TYPE: &str = "karpenter.k8s.aws/capacity-reservation-type";
pub const CAPACITY_RESERVATION_INTERRUPTIBLE: &str = "karpenter.k8s.aws/capacity-reservation-interruptible";
pub const PLACEMENT_GROUP_ID: &str = "karpenter.k8s.aws/placement-group-id";
pub const PLACEMENT_GROUP_PARTITION: &str = "karpenter.k8s.aws/placement-group-partition";
pub const NITRO_SANDBOX: &str = "karpenter.k8s.aws/nitro-sandbox";

/// On a pod: `true`, or a duration from its start. On a node: `true`.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
pub const NODE_POOL_HASH: &str = "karpenter.sh/nodepool-hash";
pub const NODE_POOL_HASH_VERSION: &str = "karpenter.sh/nodepool-hash-version";
pub const TERMINATION_TIMESTAMP: &str = "karpenter.sh/nodeclaim-termination-timestamp";
pub const MIN_VALUES_RELAXED: &str = "karpenter.sh/nodeclaim-min-values-relaxed";
pub const PRICE_OVERLAY_APPLIED: &str = "karpenter.sh/price-overlay-applied";
/// The largest share of a NodePool's pods that one new node may hold, such as `25%`; on the NodePool.
pub const MAX_POD_SHARE: &str = "karp.sh/max-pod-share";
/// How much dearer than the cheapest the types may be that a new node may become, such as `20%`; on the NodePool.
pub const PRICE_TOLERANCE: &str = "karp.sh/price-tolerance";
/// What share of its price a node full of pods must save to be given up by consolidation, such as `25%`; on the NodePool.
pub const CONSOLIDATION_FLOOR: &str = "karp.sh/consolidation-floor";
/// How long after `expireAfter` a node may still be replaced gently, such as `24h`, before it goes by force; on the NodePool.
pub const EXPIRATION_GRACE: &str = "karp.sh/expiration-grace";
/// `true`: nodes are replaced as soon as EC2 recommends it, before it takes them back; on the NodePool.
pub const REPLACE_ON_REBALANCE: &str = "karp.sh/replace-on-rebalance";
/// When an instance was called back: its node is replaced, then drained; on its NodeClaim.
pub const INTERRUPTED_AT: &str = "karp.sh/interrupted-at";
/// Why an instance was called back; on its NodeClaim.
pub const INTERRUPTED_BY: &str = "karp.sh/interrupted-by";
/// Which nodes a new one is launched to replace; on its NodeClaim.
pub const REPLACES: &str = "karp.sh/replaces";
/// The call that launched for several NodeClaims at once; on each of them, and a tag of their instances.
pub const LAUNCH_BATCH: &str = "karp.sh/launch-batch";
/// When the capacity block ends that the instance runs in, in RFC 3339; on its NodeClaim.
pub const CAPACITY_BLOCK_ENDS_AT: &str = "karp.sh/capacity-block-ends-at";
/// The instance profile that was made for the role of a class which names one itself by now; on its EC2NodeClass, until it is gone.
pub const FORMER_INSTANCE_PROFILE: &str = "karp.sh/former-instance-profile";
/// Since when the provider drains a pool that lives; on the NodePool, until it is drained.
pub const DRAINING: &str = "karp.sh/draining";
/// What an apply has begun and no state may know of yet; an annotation or a tag, until it is done.
pub const UNFINISHED: &str = "karp.sh/unfinished";
pub const EC2_NODE_CLASS_HASH: &str = "karpenter.k8s.aws/ec2nodeclass-hash";
pub const EC2_NODE_CLASS_HASH_VERSION: &str = "karpenter.k8s.aws/ec2nodeclass-hash-version";
pub const TAGGED: &str = "karpenter.k8s.aws/tagged";
pub const INSTANCE_PROFILE_NAME: &str = "karpenter.k8s.aws/instance-profile-name";
pub const CLUSTER_NAME_TAGGED: &str = "karpenter.k8s.aws/cluster-name-tagged";

/// Keeps a Node or NodeClaim until it is drained and its instance is gone.
pub const TERMINATION_FINALIZER: &str = "karpenter.sh/termination";
/// Keeps an EC2NodeClass until what was made for it is gone.
pub const AWS_TERMINATION_FINALIZER: &str = "karpenter.k8s.aws/termination";

pub const DISRUPTED: &str = "karpenter.sh/disrupted";
pub const UNREGISTERED: &str = "karpenter.sh/unregistered";
/// Takes a node out of load balancers while it drains.
pub const EXCLUDE_FROM_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The Node controller's own taints.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The tag by which subnets and security groups are discovered.
pub const DISCOVERY_TAG: &str = "karpenter.sh/discovery";

/// Returns the taint of a node that is being drained.
#[must_use]
pub fn disrupted_taint() -> Taint {
    Taint::new(DISRUPTED, "", TaintEffect::NoSchedule)
}

/// Key of the taint of a node that was cordoned.
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Returns the taint of a node that was cordoned.
#[must_use]
pub fn cordoned_taint() -> Taint {
    Taint::new(UNSCHEDULABLE, "", TaintEffect::NoSchedule)
}

/// Returns the taint of a node that karp has not taken in yet.
#[must_use]
pub fn unregistered_taint() -> Taint {
    Taint::new(UNREGISTERED, "", TaintEffect::NoExecute)
}

/// The labels that the cloud provider settles, so that a pool need not define them.
pub const WELL_KNOWN: &[&str] = &[
    NODE_POOL,
    CAPACITY_TYPE,
    ARCH,
    OS,
    INSTANCE_TYPE,
    WINDOWS_BUILD,
    ZONE,
    REGION,
    ZONE_ID,
    EC2_NODE_CLASS,
    INSTANCE_CATEGORY,
    INSTANCE_FAMILY,
    INSTANCE_GENERATION,
    INSTANCE_SIZE,
    INSTANCE_HYPERVISOR,
    INSTANCE_ENCRYPTION_IN_TRANSIT,
    INSTANCE_LOCAL_NVME,
    INSTANCE_CPU,
    INSTANCE_CPU_MANUFACTURER,
    INSTANCE_CPU_CLOCK_SPEED,
    INSTANCE_MEMORY,
    INSTANCE_EBS_BANDWIDTH,
    INSTANCE_NETWORK_BANDWIDTH,
    INSTANCE_GPU_NAME,
    INSTANCE_GPU_MANUFACTURER,
    INSTANCE_GPU_COUNT,
    INSTANCE_GPU_MEMORY,
    INSTANCE_ACCELERATOR_NAME,
    INSTANCE_ACCELERATOR_MANUFACTURER,
    INSTANCE_ACCELERATOR_COUNT,
    INSTANCE_CAPABILITY_FLEX,
    INSTANCE_TENANCY,
    CAPACITY_RESERVATION_ID,
    CAPACITY_RESERVATION_TYPE,
    CAPACITY_RESERVATION_INTERRUPTIBLE,
    PLACEMENT_GROUP_ID,
    PLACEMENT_GROUP_PARTITION,
    NITRO_SANDBOX,
];

/// Says whether a label is one that only instance types give to nodes: whoever asks for one that none has gets no node, whatever a pool says of it.
#[must_use]
pub fn is_of_types(key: &str) -> bool {
    key.starts_with("karpenter.k8s.aws/") && key != EC2_NODE_CLASS && WELL_KNOWN.contains(&key)
}

/// Older or foreign spellings of well-known labels.
const ALIASES: &[(&str, &str)] = &[
    ("beta.kubernetes.io/arch", ARCH),
    ("beta.kubernetes.io/os", OS),
    ("beta.kubernetes.io/instance-type", INSTANCE_TYPE),
    ("failure-domain.beta.kubernetes.io/zone", ZONE),
    ("failure-domain.beta.kubernetes.io/region", REGION),
    ("topology.ebs.csi.aws.com/zone", ZONE),
];

/// Labels of older Karpenter, of EKS and of other autoscalers, with the label that says the same now.
pub const SUCCESSORS: &[(&str, &str)] = &[
    ("karpenter.sh/provisioner-name", NODE_POOL),
    ("eks.amazonaws.com/capacityType", CAPACITY_TYPE),
    ("node.kubernetes.io/lifecycle", CAPACITY_TYPE),
    ("k8s.amazonaws.com/accelerator", INSTANCE_GPU_NAME),
];

/// Returns the stable spelling of a label key.
#[must_use]
pub fn normalise(key: &str) -> Cow<'_, str> {
    ALIASES.iter().find(|(alias, _)| *alias == key).map_or(Cow::Borrowed(key), |(_, stable)| Cow::Borrowed(*stable))
}

/// Says whether node classes of an API group are those that karp acts on; what has a class of another group is another provider's.
#[must_use]
pub fn is_ours(group: &str) -> bool {
    group == AWS_GROUP
}

/// Returns whether the cloud provider settles the label.
#[must_use]
pub fn is_well_known(key: &str) -> bool {
    WELL_KNOWN.contains(&key)
}

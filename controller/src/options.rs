//! The controller's options: Karpenter's flag and environment names, flag over environment over default.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::SignedDuration;
use karp_domain::cluster::{self, ConsolidationFloor, PodShare, PriceTolerance};
use karp_domain::flag;
use karp_domain::gates::GATES;

/// Says where instances come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CloudKind {
    /// Amazon EC2.
    Aws,
    /// Instances that are Node objects only, for kwok to play; no cloud is contacted.
    Simulated,
}

/// Says what the solver does with preferences (preferred affinity, ScheduleAnyway).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PreferencePolicy {
    /// Honour preferences while they can be met.
    Respect,
    /// Plan as though they were not there.
    Ignore,
}

impl From<PreferencePolicy> for cluster::PreferencePolicy {
    fn from(policy: PreferencePolicy) -> Self {
        match policy {
            PreferencePolicy::Respect => Self::Respect,
            PreferencePolicy::Ignore => Self::Ignore,
        }
    }
}

/// Says what a `minValues` that cannot be met does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum MinValuesPolicy {
    /// The pool cannot be used.
    Strict,
    /// The number is lowered.
    BestEffort,
}

impl From<MinValuesPolicy> for cluster::MinValuesPolicy {
    fn from(policy: MinValuesPolicy) -> Self {
        match policy {
            MinValuesPolicy::Strict => Self::Strict,
            MinValuesPolicy::BestEffort => Self::BestEffort,
        }
    }
}

/// Holds everything `karp controller` can be told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where instances come from.
    #[arg(long, env = "KARP_CLOUD", value_enum, default_value = "aws")]
    pub cloud: CloudKind,

    /// Name of the cluster; instances are tagged with it.
    #[arg(long, env = "CLUSTER_NAME", default_value = "")]
    pub cluster_name: String,
    /// Endpoint that nodes join; discovered with eks:DescribeCluster when empty.
    #[arg(long, env = "CLUSTER_ENDPOINT", default_value = "")]
    pub cluster_endpoint: String,
    /// Base64 CA bundle that nodes trust; discovered when empty.
    #[arg(long, env = "CLUSTER_CA_BUNDLE", default_value = "")]
    pub cluster_ca_bundle: String,
    /// Name of the SQS queue with interruption messages; none is read when empty.
    #[arg(long, env = "INTERRUPTION_QUEUE", default_value = "")]
    pub interruption_queue: String,
    /// The VPC has no way out: no pricing call is made.
    #[arg(long, env = "ISOLATED_VPC", default_value = "false", value_parser = go_bool, num_args = 0..=1, default_missing_value = "true")]
    pub isolated_vpc: bool,
    /// The control plane is EKS: its version is asked of DescribeCluster.
    #[arg(long, env = "EKS_CONTROL_PLANE", default_value = "false", value_parser = go_bool, num_args = 0..=1, default_missing_value = "true")]
    pub eks_control_plane: bool,
    /// Share of an instance's memory that the hypervisor and kernel are assumed to take.
    #[arg(long, env = "VM_MEMORY_OVERHEAD_PERCENT", default_value_t = 0.075)]
    pub vm_memory_overhead_percent: f64,
    /// ENIs that are not used for pods.
    #[arg(long, env = "RESERVED_ENIS", default_value_t = 0)]
    pub reserved_enis: u32,
    /// Do not validate node classes by dry-run calls.
    #[arg(long, env = "DISABLE_DRY_RUN", default_value = "false", value_parser = go_bool, num_args = 0..=1, default_missing_value = "true")]
    pub disable_dry_run: bool,
    /// How often images are looked up again.
    #[arg(long, env = "AMI_REFRESH_INTERVAL", default_value = "1m", value_parser = go_duration)]
    pub ami_refresh_interval: Duration,
    /// How often subnets are looked up again.
    #[arg(long, env = "SUBNET_REFRESH_INTERVAL", default_value = "1m", value_parser = go_duration)]
    pub subnet_refresh_interval: Duration,

    /// File (YAML or JSON) that says what the account really pays: discounts, Savings Plans, another currency.
    #[arg(long, env = "KARP_PRICE_FILE")]
    pub price_file: Option<PathBuf>,

    /// Longest time that pending pods are gathered before they are solved.
    #[arg(long, env = "BATCH_MAX_DURATION", default_value = "10s", value_parser = go_duration)]
    pub batch_max_duration: Duration,
    /// Pending pods are solved when none came for this long.
    #[arg(long, env = "BATCH_IDLE_DURATION", default_value = "1s", value_parser = go_duration)]
    pub batch_idle_duration: Duration,
    /// What the solver does with preferences.
    #[arg(long, env = "PREFERENCE_POLICY", value_enum, default_value = "Respect")]
    pub preference_policy: PreferencePolicy,
    /// What a minValues that cannot be met does.
    #[arg(long, env = "MIN_VALUES_POLICY", value_enum, default_value = "Strict")]
    pub min_values_policy: MinValuesPolicy,
    /// Largest share of a pool's pods that one new node may hold, where the pool has no annotation `karp.sh/max-pod-share`.
    #[arg(long, env = "KARP_MAX_POD_SHARE", default_value_t)]
    pub max_pod_share: PodShare,
    /// How much dearer than the cheapest the types may be that a new node may become, where the pool has no annotation
    /// `karp.sh/price-tolerance`.
    #[arg(long, env = "KARP_PRICE_TOLERANCE", default_value_t)]
    pub price_tolerance: PriceTolerance,
    /// What share of its price a node full of pods must save to be given up by consolidation, one with fewer pods less, where the pool has no
    /// annotation `karp.sh/consolidation-floor`; 0% moves pods for any saving of a twentieth.
    #[arg(long, env = "KARP_CONSOLIDATION_FLOOR", default_value_t)]
    pub consolidation_floor: ConsolidationFloor,
    /// Leave pods with resource claims alone.
    #[arg(long, env = "IGNORE_DRA_REQUESTS", default_value = "true", value_parser = go_bool, num_args = 0..=1, default_missing_value = "true")]
    pub ignore_dra_requests: bool,
    /// Tell of no single node and pod in the metrics: a large cluster has many.
    #[arg(long, env = "DISABLE_CLUSTER_STATE_OBSERVABILITY", default_value = "false", value_parser = go_bool, num_args = 0..=1, default_missing_value = "true")]
    pub disable_cluster_state_observability: bool,
    /// Feature gates: `Name=true,Other=false`.
    #[arg(long, env = "FEATURE_GATES", default_value = "")]
    pub feature_gates: FeatureGates,

    /// Name of the controller's Service (accepted for compatibility).
    #[arg(long, env = "KARPENTER_SERVICE", default_value = "")]
    pub karpenter_service: String,
    /// Port of /metrics; 0 takes a free one.
    #[arg(long, env = "METRICS_PORT", default_value_t = 8080)]
    pub metrics_port: u16,
    /// Port of /healthz and /readyz; 0 takes a free one.
    #[arg(long, env = "HEALTH_PROBE_PORT", default_value_t = 8081)]
    pub health_probe_port: u16,
    /// Address that both ports listen on; `::` is each of this machine, of both families.
    #[arg(long, env = "KARP_LISTEN_ADDRESS", default_value = "::", hide = true)]
    pub listen_address: IpAddr,
    /// API requests a second (accepted for compatibility; requests are bounded by concurrency).
    #[arg(long, env = "KUBE_CLIENT_QPS", default_value_t = 200)]
    pub kube_client_qps: u32,
    /// API request burst (accepted for compatibility).
    #[arg(long, env = "KUBE_CLIENT_BURST", default_value_t = 300)]
    pub kube_client_burst: u32,
    /// Act without holding the lease: only for a single hand-run controller.
    #[arg(long, env = "DISABLE_LEADER_ELECTION", default_value = "false", value_parser = go_bool, num_args = 0..=1, default_missing_value = "true")]
    pub disable_leader_election: bool,
    /// Name of the lease.
    #[arg(long, env = "LEADER_ELECTION_NAME", default_value = karp_kube::rbac::LEASE)]
    pub leader_election_name: String,
    /// Namespace of the lease; the controller's own when empty.
    #[arg(long, env = "LEADER_ELECTION_NAMESPACE", default_value = "")]
    pub leader_election_namespace: String,
    /// Memory limit in bytes (accepted for compatibility).
    #[arg(long, env = "MEMORY_LIMIT", default_value_t = -1, allow_hyphen_values = true)]
    pub memory_limit: i64,
    /// CPU request in thousandths of a core (accepted for compatibility).
    #[arg(long, env = "CPU_REQUESTS", default_value_t = 1000)]
    pub cpu_requests: u32,
    /// Level of the log: debug, info, warn or error.
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    pub log_level: String,

    /// How long a disruption decision rests before it is checked again and carried out.
    #[arg(long, env = "KARP_CONSOLIDATION_VALIDATION", default_value = "15s", value_parser = go_duration, hide = true)]
    pub consolidation_validation: Duration,
    /// How often capacity reservations, and nodes that run on them, are looked at.
    #[arg(long, env = "KARP_RESERVATION_POLL", default_value = "1m", value_parser = go_duration, hide = true)]
    pub reservation_poll: Duration,
    /// How often EC2 is asked which instances are not well.
    #[arg(long, env = "KARP_INSTANCE_STATUS_POLL", default_value = "1m", value_parser = go_duration, hide = true)]
    pub instance_status_poll: Duration,
    /// How long an instance that was launched may be missing from EC2's lists.
    #[arg(long, env = "KARP_LAUNCH_LISTING", default_value = "2m", value_parser = go_duration, hide = true)]
    pub launch_listing: Duration,
    /// How often disruption is looked at.
    #[arg(long, env = "KARP_DISRUPTION_POLL", default_value = "10s", value_parser = go_duration, hide = true)]
    pub disruption_poll: Duration,
}

/// Holds the feature gates that were named, with their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<String, bool>);

impl FeatureGates {
    /// Returns whether the gate is on; an unknown gate is off.
    pub fn enabled(&self, gate: &str) -> bool {
        self.0.get(gate).copied().unwrap_or_else(|| GATES.iter().any(|(name, on)| *name == gate && *on))
    }

    /// Lists the names that no gate has: they are reported, not refused, as Karpenter's charts may set newer ones.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str).filter(|name| GATES.iter().all(|(gate, _)| gate != name))
    }
}

impl FromStr for FeatureGates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(|part| {
                let (name, value) =
                    part.split_once('=').ok_or_else(|| format!("{part:?} is not Name=true or Name=false"))?;
                Ok((name.trim().to_owned(), go_bool(value.trim())?))
            })
            .collect::<Result<_, String>>()
            .map(Self)
    }
}

impl fmt::Display for FeatureGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, on)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={on}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Parses a boolean as Go's flag package does.
fn go_bool(text: &str) -> Result<bool, String> {
    flag::parse(text).ok_or_else(|| format!("{text:?} is neither true nor false"))
}

/// Parses a Go duration such as `1m30s` or `500ms`; negative ones are refused.
pub fn go_duration(text: &str) -> Result<Duration, String> {
    let parsed: SignedDuration = text.parse().map_err(|error| format!("{text:?} is not a duration: {error}"))?;
    Duration::try_from(parsed).map_err(|_| format!("{text:?} is negative"))
}

impl Options {
    /// Says what is wrong with the options taken together.
    pub fn check(&self) -> Result<(), String> {
        if self.cloud == CloudKind::Aws && self.cluster_name.is_empty() {
            return Err("--cluster-name (CLUSTER_NAME) is needed with --cloud=aws".to_owned());
        }
        if !(0.0..1.0).contains(&self.vm_memory_overhead_percent) {
            return Err(format!(
                "--vm-memory-overhead-percent is a share from 0 to 1, not {}",
                self.vm_memory_overhead_percent
            ));
        }
        if self.batch_idle_duration > self.batch_max_duration {
            return Err("--batch-idle-duration is longer than --batch-max-duration".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use karp_domain::lifecycle::APPEARS_WITHIN;

    use super::*;

    #[derive(Parser)]
    struct Shell {
        #[command(flatten)]
        options: Options,
    }

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        Shell::try_parse_from(std::iter::once(&"karp").chain(arguments)).map(|shell| shell.options)
    }

    #[test]
    fn defaults_are_karpenters() {
        let options = parse(&["--cluster-name", "c"]).expect("defaults parse");
        assert_eq!(options.batch_idle_duration, Duration::from_secs(1));
        assert_eq!(options.batch_max_duration, Duration::from_secs(10));
        let collector = Duration::try_from(APPEARS_WITHIN).expect("a duration");
        assert_eq!(options.launch_listing, collector, "the collector waits as long");
        assert_eq!((options.metrics_port, options.health_probe_port), (8080, 8081));
        assert_eq!(options.leader_election_name, "karpenter-leader-election");
        assert!(options.ignore_dra_requests && !options.disable_leader_election);
        assert!(options.feature_gates.enabled("ReservedCapacity"));
        assert!(!options.feature_gates.enabled("SpotToSpotConsolidation"));
        assert_eq!(options.check(), Ok(()));
    }

    #[test]
    fn booleans_and_durations_are_read_as_go_writes_them() {
        let options = parse(&[
            "--disable-leader-election",
            "--isolated-vpc=false",
            "--batch-idle-duration=1500ms",
            "--feature-gates=NodeRepair=true,ReservedCapacity=false,Later=true",
        ])
        .expect("flags parse");
        assert!(options.disable_leader_election && !options.isolated_vpc);
        assert_eq!(options.batch_idle_duration, Duration::from_millis(1500));
        assert!(options.feature_gates.enabled("NodeRepair") && !options.feature_gates.enabled("ReservedCapacity"));
        assert_eq!(options.feature_gates.unknown().collect::<Vec<_>>(), ["Later"]);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse(&["--feature-gates=NodeRepair"]).is_err());
        assert!(parse(&["--batch-max-duration=soon"]).is_err());
        assert!(parse(&["--batch-max-duration=-1s"]).is_err());
        assert!(parse(&["--preference-policy=Sometimes"]).is_err());
        assert!(parse(&["--max-pod-share=0%"]).is_err() && parse(&["--max-pod-share=25%"]).is_ok());
        assert!(parse(&["--consolidation-floor=101%"]).is_err() && parse(&["--consolidation-floor=0%"]).is_ok());
        assert!(parse(&["--price-tolerance=20"]).is_err() && parse(&["--price-tolerance=20%"]).is_ok());
        assert!(parse(&[]).expect("parses").check().is_err(), "aws needs a cluster name");
        assert!(parse(&["--cloud=simulated"]).expect("parses").check().is_ok());
    }
}

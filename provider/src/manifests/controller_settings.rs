//! The controller's settings under the names of Karpenter's chart, with the variable of its environment that tells each.

use std::str::FromStr;

use karp_domain::cluster::{ConsolidationFloor, PodShare, PriceTolerance};
use serde_json::Value;

/// What may be written for a setting.
#[derive(Clone, Copy)]
pub enum Form {
    /// Whether something is so.
    Flag,
    /// A share of one that is less than it.
    Share,
    /// A whole number up to this.
    Count(u32),
    /// A length of time.
    Length,
    /// One of two words.
    Choice([&'static str; 2]),
    /// A text that must be as it says.
    Text(&'static str, fn(&str) -> bool),
}

/// One setting.
pub struct Setting {
    /// Its attribute.
    pub name: &'static str,
    /// The variable.
    pub variable: &'static str,
    pub form: Form,
    /// What it is for, and what holds without it.
    pub meaning: &'static str,
}

/// All settings that have no attribute of their own.
pub const SETTINGS: [Setting; 17] = [
    Setting {
        name: "batch_max_duration",
        variable: "BATCH_MAX_DURATION",
        form: Form::Length,
        meaning: "How long pods are gathered at most before nodes are planned for them; `10s` when left out.",
    },
    Setting {
        name: "batch_idle_duration",
        variable: "BATCH_IDLE_DURATION",
        form: Form::Length,
        meaning: "How long no further pod must come before nodes are planned; `1s` when left out.",
    },
    Setting {
        name: "preference_policy",
        variable: "PREFERENCE_POLICY",
        form: Form::Choice(["Respect", "Ignore"]),
        meaning: "What to do with preferred affinity and the like; `Respect` when left out.",
    },
    Setting {
        name: "min_values_policy",
        variable: "MIN_VALUES_POLICY",
        form: Form::Choice(["Strict", "BestEffort"]),
        meaning: "What to do with `minValues` that cannot be met; `Strict` when left out.",
    },
    Setting {
        name: "max_pod_share",
        variable: "KARP_MAX_POD_SHARE",
        form: Form::Text("must be a percentage from 1% to 100%", is::<PodShare>),
        meaning: "The largest share of a pool's pods on one new node, where the pool has no annotation `karp.sh/max-pod-share`; `100%` \
                  when left out.",
    },
    Setting {
        name: "price_tolerance",
        variable: "KARP_PRICE_TOLERANCE",
        form: Form::Text("must be a percentage from 0% to 10000%", is::<PriceTolerance>),
        meaning: "How much dearer than the cheapest the types may be that a new node may become, where the pool has no annotation \
                  `karp.sh/price-tolerance`; `100%` when left out.",
    },
    Setting {
        name: "consolidation_floor",
        variable: "KARP_CONSOLIDATION_FLOOR",
        form: Form::Text("must be a percentage from 0% to 100%", is::<ConsolidationFloor>),
        meaning: "What share of its price a node full of pods must save to be given up, where the pool has no annotation \
                  `karp.sh/consolidation-floor`; `45%` when left out.",
    },
    Setting {
        name: "cluster_ca_bundle",
        variable: "CLUSTER_CA_BUNDLE",
        form: Form::Text("must not be empty", is_written),
        meaning: "The certificate authority that nodes trust the API server by, in base64; the controller's own when left out.",
    },
    Setting {
        name: "isolated_vpc",
        variable: "ISOLATED_VPC",
        form: Form::Flag,
        meaning: "The VPC has no way to the Pricing API: on-demand prices are those that are built in.",
    },
    Setting {
        name: "eks_control_plane",
        variable: "EKS_CONTROL_PLANE",
        form: Form::Flag,
        meaning: "Ask EKS for the cluster's version instead of the API server.",
    },
    Setting {
        name: "vm_memory_overhead_percent",
        variable: "VM_MEMORY_OVERHEAD_PERCENT",
        form: Form::Share,
        meaning: "The share of a type's memory that a virtual machine keeps from the node until one was seen; `0.075` when left out.",
    },
    Setting {
        name: "reserved_enis",
        variable: "RESERVED_ENIS",
        form: Form::Count(15),
        meaning: "Network interfaces of a node that pods do not get, as with custom networking; none when left out.",
    },
    Setting {
        name: "ignore_dra_requests",
        variable: "IGNORE_DRA_REQUESTS",
        form: Form::Flag,
        meaning: "Leave pods with resource claims alone; `true` when left out.",
    },
    Setting {
        name: "disable_cluster_state_observability",
        variable: "DISABLE_CLUSTER_STATE_OBSERVABILITY",
        form: Form::Flag,
        meaning: "Tell of no single node and pod in the metrics: a large cluster has many.",
    },
    Setting {
        name: "disable_dry_run",
        variable: "DISABLE_DRY_RUN",
        form: Form::Flag,
        meaning: "Check node classes without dry runs of EC2's calls.",
    },
    Setting {
        name: "ami_refresh_interval",
        variable: "AMI_REFRESH_INTERVAL",
        form: Form::Length,
        meaning: "How often the images of node classes are looked up; `1m` when left out.",
    },
    Setting {
        name: "subnet_refresh_interval",
        variable: "SUBNET_REFRESH_INTERVAL",
        form: Form::Length,
        meaning: "How often the subnets of node classes are looked up; `1m` when left out.",
    },
];

fn is_written(text: &str) -> bool {
    !text.trim().is_empty()
}

fn is<T: FromStr>(text: &str) -> bool {
    text.parse::<T>().is_ok()
}

impl Setting {
    /// Writes a value of the setting as the environment has it; nothing for null.
    pub fn told(&self, value: &Value) -> Option<(&'static str, String)> {
        let text = match value {
            Value::Null => return None,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Some((self.variable, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the controller reads.
    const OPTIONS: &str = include_str!("../../../controller/src/options.rs");

    #[test]
    fn the_controller_reads_every_variable() {
        for setting in &SETTINGS {
            assert!(OPTIONS.contains(&format!("env = \"{}\"", setting.variable)), "{}", setting.name);
        }
    }
}

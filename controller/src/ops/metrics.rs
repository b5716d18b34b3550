//! Metrics under Karpenter's names, in the OpenMetrics text format.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

/// A gauge of fractions or sums of money.
pub type FloatGauge = Gauge<f64, AtomicU64>;

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub struct $name { $(#[allow(missing_docs)] pub $field: String),* }
        impl $name {
            /// Makes the label set from its values in order.
            #[allow(clippy::too_many_arguments)]
            pub fn new($($field: impl Into<String>),*) -> Self { Self { $($field: $field.into()),* } }
        }
    };
}

labels!(/** Labels of a metric per pool. */ PoolLabels { nodepool });
labels!(/** Labels of a metric per pool and zone. */ PoolZoneLabels { nodepool, zone });
labels!(/** Labels of created claims. */ CreatedLabels { reason, nodepool, min_values_relaxed });
labels!(/** Labels of terminated claims. */ TerminatedLabels { nodepool, capacity_type, zone });
labels!(/** Labels of disrupted claims. */ DisruptedLabels { reason, nodepool, capacity_type });
labels!(/** Labels of claims whose nodes were ill. */ UnhealthyLabels { condition, nodepool, capacity_type, image_id });
labels!(/** Labels of a pool's resource. */ PoolResourceLabels { resource_type, nodepool });
labels!(/** Labels of a disruption decision. */ DecisionLabels { decision, reason, consolidation_type });
labels!(/** Labels of a method that may time out or fail. */ ConsolidationLabels { consolidation_type });
labels!(/** Labels of what a pool may lose. */ AllowedLabels { nodepool, reason });
labels!(/** Labels of a disruption reason. */ ReasonLabels { reason });
labels!(/** Labels of a controller. */ ControllerLabels { controller });
labels!(/** Labels of an eviction answer. */ CodeLabels { code });
labels!(/** Labels of a queue message. */ MessageLabels { message_type });
labels!(/** Labels of a launch failure. */ LaunchFailureLabels { zone, capacity_type, reason });
labels!(/** Labels of a call to the cloud. */ CloudLabels { controller, method, provider });
labels!(/** Labels of a failed call to the cloud. */ CloudErrorLabels { controller, method, provider, error });
labels!(/** Labels of a count per kind. */ KindLabels { kind });
labels!(/** Labels of a lease. */ LeaseLabels { name });

/// Buckets from 5 ms to about 20 min.
#[derive(Clone)]
pub struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(0.005, 2.0, 18))
    }
}

/// A histogram of seconds per label set.
pub type SecondsFamily<L> = Family<L, Histogram, Seconds>;

/// Holds every metric of the controller and the registry that encodes them.
#[allow(missing_docs)] // each field is described where it is registered
pub struct Metrics {
    registry: Registry,
    pub nodeclaims_created: Family<CreatedLabels, Counter>,
    pub nodeclaims_terminated: Family<TerminatedLabels, Counter>,
    pub nodeclaims_disrupted: Family<DisruptedLabels, Counter>,
    pub nodeclaims_unhealthy_disrupted: Family<UnhealthyLabels, Counter>,
    pub nodes_created: Family<PoolZoneLabels, Counter>,
    pub nodes_terminated: Family<PoolZoneLabels, Counter>,
    pub nodes_drained: Family<PoolLabels, Counter>,
    pub nodes_termination_duration: SecondsFamily<PoolLabels>,
    pub nodepools_limit: Family<PoolResourceLabels, FloatGauge>,
    pub nodepools_usage: Family<PoolResourceLabels, FloatGauge>,
    pub nodepools_allowed_disruptions: Family<AllowedLabels, Gauge>,
    pub nodepools_cost: Family<PoolLabels, FloatGauge>,
    pub decision_evaluation: SecondsFamily<ReasonLabels>,
    pub decisions: Family<DecisionLabels, Counter>,
    pub eligible_nodes: Family<ReasonLabels, Gauge>,
    pub failed_validations: Family<ConsolidationLabels, Counter>,
    pub queue_failures: Family<DecisionLabels, Counter>,
    pub scheduling_duration: SecondsFamily<ControllerLabels>,
    pub queue_depth: Family<ControllerLabels, Gauge>,
    pub unschedulable_pods: Family<ControllerLabels, Gauge>,
    pub ignored_pods: Gauge,
    pub unreadable_objects: Family<KindLabels, Gauge>,
    pub eviction_requests: Family<CodeLabels, Counter>,
    pub cluster_nodes: Gauge,
    pub cluster_synced: Gauge,
    pub cloud_duration: SecondsFamily<CloudLabels>,
    pub cloud_errors: Family<CloudErrorLabels, Counter>,
    pub launch_failures: Family<LaunchFailureLabels, Counter>,
    pub messages_received: Family<MessageLabels, Counter>,
    pub messages_deleted: Counter,
    pub message_age: SecondsFamily<ControllerLabels>,
    pub leader: Family<LeaseLabels, Gauge>,
}

struct Shelf(Registry);

impl Shelf {
    fn put<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    fn seconds<L>(&mut self, name: &str, help: &str) -> SecondsFamily<L>
    where
        L: EncodeLabelSet + Clone + std::hash::Hash + Eq + std::fmt::Debug + Send + Sync + 'static,
    {
        self.put(name, help, Family::new_with_constructor(Seconds))
    }
}

impl Metrics {
    /// Registers every metric.
    #[rustfmt::skip] // one metric a line is a table
    pub fn new() -> Self {
        let mut s = Shelf(Registry::default());
        s.0.register("karpenter_build", "Version and commit of the controller",
            Info::new(vec![("version", env!("CARGO_PKG_VERSION")), ("commit", super::telemetry::COMMIT)]));
        Self {
            nodeclaims_created: s.put("karpenter_nodeclaims_created", "NodeClaims created", Family::default()),
            nodeclaims_terminated: s.put("karpenter_nodeclaims_terminated", "NodeClaims that ended", Family::default()),
            nodeclaims_disrupted: s.put("karpenter_nodeclaims_disrupted", "NodeClaims disrupted", Family::default()),
            nodeclaims_unhealthy_disrupted: s.put("karpenter_nodeclaims_unhealthy_disrupted", "NodeClaims disrupted because their nodes were ill", Family::default()),
            nodes_created: s.put("karpenter_nodes_created", "Nodes that registered", Family::default()),
            nodes_terminated: s.put("karpenter_nodes_terminated", "Nodes that ended", Family::default()),
            nodes_drained: s.put("karpenter_nodes_drained", "Nodes drained", Family::default()),
            nodes_termination_duration: s.seconds("karpenter_nodes_termination_duration_seconds", "From a Node's deletion to its end"),
            nodepools_limit: s.put("karpenter_nodepools_limit", "Limits of the pools", Family::default()),
            nodepools_usage: s.put("karpenter_nodepools_usage", "Capacity that the pools use", Family::default()),
            nodepools_allowed_disruptions: s.put("karpenter_nodepools_allowed_disruptions", "Nodes that budgets let go now", Family::default()),
            nodepools_cost: s.put("karpenter_nodepools_cost_total", "Price per hour of the pool's nodes", Family::default()),
            decision_evaluation: s.seconds("karpenter_voluntary_disruption_decision_evaluation_duration_seconds", "Time to plan a disruption"),
            decisions: s.put("karpenter_voluntary_disruption_decisions", "Disruption decisions", Family::default()),
            eligible_nodes: s.put("karpenter_voluntary_disruption_eligible_nodes", "Nodes that a method may take", Family::default()),
            failed_validations: s.put("karpenter_voluntary_disruption_failed_validations", "Decisions that no longer held when checked", Family::default()),
            queue_failures: s.put("karpenter_voluntary_disruption_queue_failures", "Disruptions rolled back", Family::default()),
            scheduling_duration: s.seconds("karpenter_scheduler_scheduling_duration_seconds", "Time to solve"),
            queue_depth: s.put("karpenter_scheduler_queue_depth", "Pods in the batch being solved", Family::default()),
            unschedulable_pods: s.put("karpenter_scheduler_unschedulable_pods_count", "Pods that no node could be planned for", Family::default()),
            ignored_pods: s.put("karpenter_scheduler_ignored_pods_count", "Pods that could not be read or are not provisionable", Gauge::default()),
            unreadable_objects: s.put("karp_unreadable_objects", "Objects other than pods that are left out because they cannot be read", Family::default()),
            eviction_requests: s.put("karpenter_pods_eviction_requests", "Answers to evictions", Family::default()),
            cluster_nodes: s.put("karpenter_cluster_state_node_count", "Nodes known", Gauge::default()),
            cluster_synced: s.put("karpenter_cluster_state_synced", "1 when the caches are filled", Gauge::default()),
            cloud_duration: s.seconds("karpenter_cloudprovider_duration_seconds", "Time of calls to the cloud"),
            cloud_errors: s.put("karpenter_cloudprovider_errors", "Failed calls to the cloud", Family::default()),
            launch_failures: s.put("karpenter_cloudprovider_instance_launch_failures", "Offerings that could not be launched", Family::default()),
            messages_received: s.put("karpenter_interruption_received_messages", "Queue messages received", Family::default()),
            messages_deleted: s.put("karpenter_interruption_deleted_messages", "Queue messages deleted", Counter::default()),
            message_age: s.seconds("karpenter_interruption_message_queue_duration_seconds", "Age of a message when it was handled"),
            leader: s.put("leader_election_master_status", "1 while this process holds the lease", Family::default()),
            registry: s.0,
        }
    }

    /// Encodes every metric.
    pub fn encode(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_karpenters() {
        let metrics = Metrics::new();
        metrics.nodeclaims_created.get_or_create(&CreatedLabels::new("provisioned", "default", "false")).inc();
        metrics.cluster_synced.set(1);
        metrics.nodepools_usage.get_or_create(&PoolResourceLabels::new("cpu", "default")).set(1.5);
        let text = metrics.encode();
        for line in [
            r#"karpenter_nodeclaims_created_total{reason="provisioned",nodepool="default",min_values_relaxed="false"} 1"#,
            "karpenter_cluster_state_synced 1",
            r#"karpenter_nodepools_usage{resource_type="cpu",nodepool="default"} 1.5"#,
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }
}

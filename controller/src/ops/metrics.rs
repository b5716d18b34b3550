//! Metrics under Karpenter's names, in the OpenMetrics text format.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use super::state::State;

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

            /// A label set in which each label has its own name for its value.
            #[cfg(test)]
            fn sample() -> Self { Self { $($field: stringify!($field).to_owned()),* } }
        }
    };
}

labels!(/** Labels of a metric per pool. */ PoolLabels { nodepool });
labels!(/** Labels of a metric per pool and zone. */ PoolZoneLabels { nodepool, zone });
labels!(/** Labels of created claims. */ CreatedLabels { reason, nodepool, min_values_relaxed });
labels!(/** Labels of terminated claims. */ TerminatedLabels { nodepool, capacity_type, zone });
labels!(/** Labels of disrupted claims. */ DisruptedLabels { reason, nodepool, capacity_type });
labels!(/** Labels of claims whose nodes were ill. */ UnhealthyLabels { condition, nodepool, capacity_type, image_id });
labels!(/** Labels of a disruption decision. */ DecisionLabels { decision, reason, consolidation_type });
labels!(/** Labels of a method that may time out or fail. */ ConsolidationLabels { consolidation_type });
labels!(/** Labels of a disruption reason. */ ReasonLabels { reason });
labels!(/** Labels of a controller. */ ControllerLabels { controller });
labels!(/** Labels of an eviction answer. */ CodeLabels { code });
labels!(/** Labels of a queue message. */ MessageLabels { message_type });
labels!(/** Labels of instances that are not well. */ CategoryLabels { category });
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
    /// What the cluster is like.
    pub state: State,
    pub nodeclaims_created: Family<CreatedLabels, Counter>,
    pub nodeclaims_terminated: Family<TerminatedLabels, Counter>,
    pub nodeclaims_disrupted: Family<DisruptedLabels, Counter>,
    pub nodeclaims_unhealthy_disrupted: Family<UnhealthyLabels, Counter>,
    pub nodes_created: Family<PoolZoneLabels, Counter>,
    pub nodes_terminated: Family<PoolZoneLabels, Counter>,
    pub nodes_drained: Family<PoolLabels, Counter>,
    pub nodes_termination_duration: SecondsFamily<PoolLabels>,
    pub nodes_lifetime: SecondsFamily<PoolLabels>,
    pub nodeclaims_termination_duration: SecondsFamily<PoolLabels>,
    pub instance_termination_duration: SecondsFamily<PoolLabels>,
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
    pub pods_bound: Histogram,
    pub pods_startup: Histogram,
    pub cluster_nodes: Gauge,
    pub cluster_synced: Gauge,
    pub cloud_duration: SecondsFamily<CloudLabels>,
    pub cloud_errors: Family<CloudErrorLabels, Counter>,
    pub launch_failures: Family<LaunchFailureLabels, Counter>,
    pub messages_received: Family<MessageLabels, Counter>,
    pub messages_deleted: Counter,
    pub instances_unhealthy: Family<CategoryLabels, Counter>,
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
        let state = State::default();
        s.0.register_collector(Box::new(state.clone()));
        Self {
            state,
            nodeclaims_created: s.put("karpenter_nodeclaims_created", "NodeClaims created", Family::default()),
            nodeclaims_terminated: s.put("karpenter_nodeclaims_terminated", "NodeClaims that ended", Family::default()),
            nodeclaims_disrupted: s.put("karpenter_nodeclaims_disrupted", "NodeClaims disrupted", Family::default()),
            nodeclaims_unhealthy_disrupted: s.put("karpenter_nodeclaims_unhealthy_disrupted", "NodeClaims disrupted because their nodes were ill", Family::default()),
            nodes_created: s.put("karpenter_nodes_created", "Nodes that registered", Family::default()),
            nodes_terminated: s.put("karpenter_nodes_terminated", "Nodes that ended", Family::default()),
            nodes_drained: s.put("karpenter_nodes_drained", "Nodes drained", Family::default()),
            nodes_lifetime: s.seconds("karpenter_nodes_lifetime_duration_seconds", "From a Node's creation to its end"),
            nodeclaims_termination_duration: s.seconds("karpenter_nodeclaims_termination_duration_seconds", "From a NodeClaim's deletion to its end"),
            instance_termination_duration: s.seconds("karpenter_nodeclaims_instance_termination_duration_seconds", "From the call that ends an instance to its end"),
            nodes_termination_duration: s.seconds("karpenter_nodes_termination_duration_seconds", "From a Node's deletion to its end"),
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
            pods_bound: s.put("karpenter_pods_bound_duration_seconds", "From a pod's creation until it has a node", Seconds.new_metric()),
            pods_startup: s.put("karpenter_pods_startup_duration_seconds", "From a pod's creation until it runs and is ready", Seconds.new_metric()),
            eviction_requests: s.put("karpenter_pods_eviction_requests", "Answers to evictions", Family::default()),
            cluster_nodes: s.put("karpenter_cluster_state_node_count", "Nodes known", Gauge::default()),
            cluster_synced: s.put("karpenter_cluster_state_synced", "1 when the caches are filled", Gauge::default()),
            cloud_duration: s.seconds("karpenter_cloudprovider_duration_seconds", "Time of calls to the cloud"),
            cloud_errors: s.put("karpenter_cloudprovider_errors", "Failed calls to the cloud", Family::default()),
            launch_failures: s.put("karpenter_cloudprovider_instance_launch_failures", "Offerings that could not be launched", Family::default()),
            messages_received: s.put("karpenter_interruption_received_messages", "Queue messages received", Family::default()),
            messages_deleted: s.put("karpenter_interruption_deleted_messages", "Queue messages deleted", Counter::default()),
            instances_unhealthy: s.put("karpenter_interruption_instance_status_unhealthy", "Instances that failed a status check for too long, or for which EC2 plans something", Family::default()),
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

    /// Every metric that there is, with a series each: what dashboards and alerts are written against.
    #[test]
    fn the_exposition_is_as_it_was() {
        let m = Metrics::new();
        m.nodeclaims_created.get_or_create(&CreatedLabels::sample()).inc();
        m.nodeclaims_terminated.get_or_create(&TerminatedLabels::sample()).inc();
        m.nodeclaims_disrupted.get_or_create(&DisruptedLabels::sample()).inc();
        m.nodeclaims_unhealthy_disrupted.get_or_create(&UnhealthyLabels::sample()).inc();
        m.nodes_created.get_or_create(&PoolZoneLabels::sample()).inc();
        m.nodes_terminated.get_or_create(&PoolZoneLabels::sample()).inc();
        m.nodes_drained.get_or_create(&PoolLabels::sample()).inc();
        m.nodes_lifetime.get_or_create(&PoolLabels::sample()).observe(0.004);
        m.nodeclaims_termination_duration.get_or_create(&PoolLabels::sample()).observe(0.004);
        m.instance_termination_duration.get_or_create(&PoolLabels::sample()).observe(0.004);
        m.nodes_termination_duration.get_or_create(&PoolLabels::sample()).observe(0.004);
        m.nodepools_cost.get_or_create(&PoolLabels::sample()).set(1.0);
        m.decision_evaluation.get_or_create(&ReasonLabels::sample()).observe(0.004);
        m.decisions.get_or_create(&DecisionLabels::sample()).inc();
        m.eligible_nodes.get_or_create(&ReasonLabels::sample()).set(1);
        m.failed_validations.get_or_create(&ConsolidationLabels::sample()).inc();
        m.queue_failures.get_or_create(&DecisionLabels::sample()).inc();
        m.scheduling_duration.get_or_create(&ControllerLabels::sample()).observe(0.004);
        m.queue_depth.get_or_create(&ControllerLabels::sample()).set(1);
        m.unschedulable_pods.get_or_create(&ControllerLabels::sample()).set(1);
        m.ignored_pods.set(1);
        m.unreadable_objects.get_or_create(&KindLabels::sample()).set(1);
        m.eviction_requests.get_or_create(&CodeLabels::sample()).inc();
        m.pods_bound.observe(0.004);
        m.pods_startup.observe(0.004);
        m.cluster_nodes.set(1);
        m.cluster_synced.set(1);
        m.cloud_duration.get_or_create(&CloudLabels::sample()).observe(0.004);
        m.cloud_errors.get_or_create(&CloudErrorLabels::sample()).inc();
        m.launch_failures.get_or_create(&LaunchFailureLabels::sample()).inc();
        m.messages_received.get_or_create(&MessageLabels::sample()).inc();
        m.messages_deleted.inc();
        m.instances_unhealthy.get_or_create(&CategoryLabels::sample()).inc();
        m.message_age.get_or_create(&ControllerLabels::sample()).observe(0.004);
        m.leader.get_or_create(&LeaseLabels::sample()).set(1);
        m.state.observe(super::super::state::sample);
        let text = m.encode();
        let mut lines: Vec<&str> =
            text.lines().filter(|line| !line.contains("_bucket{") && !line.contains("karpenter_build")).collect();
        lines.sort_unstable();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn names_are_karpenters() {
        let metrics = Metrics::new();
        metrics.nodeclaims_created.get_or_create(&CreatedLabels::new("provisioned", "default", "false")).inc();
        metrics.cluster_synced.set(1);
        metrics.nodepools_cost.get_or_create(&PoolLabels::new("default")).set(1.5);
        let text = metrics.encode();
        for line in [
            r#"karpenter_nodeclaims_created_total{reason="provisioned",nodepool="default",min_values_relaxed="false"} 1"#,
            "karpenter_cluster_state_synced 1",
            r#"karpenter_nodepools_cost_total{nodepool="default"} 1.5"#,
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }
}

//! Metrics under Karpenter's names, in the OpenMetrics text format.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use super::by_pool::{ByPool, OfPool, Pools};
use super::decisions::Decisions;
use super::kept::Kept;
use super::ongoing::Ongoing;
use super::state::State;

/// A gauge of fractions or sums of money.
pub type FloatGauge = Gauge<f64, AtomicU64>;

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
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
labels!(/** Labels of disrupted claims and of their pods. */ DisruptedLabels {
    reason, nodepool, capacity_type, consolidation_policy, termination_mode
});
labels!(/** Labels of claims whose nodes were ill. */ UnhealthyLabels { condition, nodepool, capacity_type, image_id });
labels!(/** Labels of a disruption decision. */ DecisionLabels { decision, reason, consolidation_type });
labels!(/** Labels of a disruption decision about a pool. */ PoolDecisionLabels { nodepool, decision, reason, consolidation_type });
labels!(/** Labels of the search for what to disrupt. */ EvaluationLabels { reason, consolidation_type });
labels!(/** Labels of a move that a pool's policy judged. */ MoveLabels { decision, nodepool, policy });
labels!(/** Labels of a method that may fail. */ ConsolidationLabels { consolidation_type });
labels!(/** Labels of a disruption reason. */ ReasonLabels { reason });
labels!(/** Labels of a controller. */ ControllerLabels { controller });
labels!(/** Labels of an eviction answer. */ CodeLabels { code });
labels!(/** Labels of a queue message. */ MessageLabels { message_type });
labels!(/** Labels of instances that are not well. */ CategoryLabels { category });
labels!(/** Labels of a launch failure. */ LaunchFailureLabels { zone, zone_id, capacity_type, reason });
labels!(/** Labels of a place. */ ZoneLabels { zone, zone_id });
labels!(/** Labels of calls that are made for many. */ BatcherLabels { batcher });
labels!(/** Labels of a condition's new status. */ TransitionLabels { r#type, status, reason });
labels!(/** Labels of a condition's old status. */ DwellLabels { r#type, status, to_status });
labels!(/** Labels of a call to the cloud. */ CloudLabels { controller, method, provider });
labels!(/** Labels of a failed call to the cloud. */ CloudErrorLabels { controller, method, provider, error });
labels!(/** Labels of a count per kind. */ KindLabels { kind });
labels!(/** Labels of a lease. */ LeaseLabels { name });

macro_rules! of_pool {
    ($($name:ident),*) => { $(
        impl OfPool for $name {
            fn pool(&self) -> &str { &self.nodepool }
        }
    )* };
}

of_pool!(PoolLabels, PoolZoneLabels, CreatedLabels, TerminatedLabels, DisruptedLabels, UnhealthyLabels);
of_pool!(PoolDecisionLabels, MoveLabels);

/// Buckets from 5 ms to about 20 min.
#[derive(Clone)]
pub struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(0.005, 2.0, 18))
    }
}

/// Buckets of how many take part in a call, as Karpenter's.
#[derive(Clone)]
pub struct Sizes;

impl MetricConstructor<Histogram> for Sizes {
    fn new_metric(&self) -> Histogram {
        Histogram::new([
            1.0, 2.0, 4.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 125.0, 150.0,
            175.0, 200.0, 225.0, 250.0, 275.0, 300.0, 350.0, 400.0, 450.0, 500.0, 550.0, 600.0, 700.0, 800.0, 900.0,
            1000.0,
        ])
    }
}

/// Buckets of the score of a move, as Karpenter's: a half is enough.
#[derive(Clone)]
pub struct Scores;

impl MetricConstructor<Histogram> for Scores {
    fn new_metric(&self) -> Histogram {
        Histogram::new([0.1, 0.25, 0.33, 0.5, 1.0, 2.0, 5.0, 10.0])
    }
}

/// A kind of objects with conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the kinds name themselves
pub enum Kind {
    Ec2NodeClass,
    Node,
    NodeClaim,
    NodePool,
}

impl Kind {
    /// Answers its word in the names of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Ec2NodeClass => "ec2nodeclass",
            Kind::Node => "node",
            Kind::NodeClaim => "nodeclaim",
            Kind::NodePool => "nodepool",
        }
    }
}

/// What objects of a kind went through.
pub struct OfKind {
    /// Conditions that got another status, by the new one.
    pub transitions: Family<TransitionLabels, Counter>,
    /// How long conditions had their old status.
    pub dwelt: SecondsFamily<DwellLabels>,
    /// From an object's deletion until it was gone.
    pub termination: Histogram,
}

/// What objects went through, by their kind.
pub struct Objects {
    class: OfKind,
    node: OfKind,
    claim: OfKind,
    pool: OfKind,
}

impl Objects {
    /// Returns what objects of a kind went through.
    pub const fn of(&self, kind: Kind) -> &OfKind {
        match kind {
            Kind::Ec2NodeClass => &self.class,
            Kind::Node => &self.node,
            Kind::NodeClaim => &self.claim,
            Kind::NodePool => &self.pool,
        }
    }
}

/// A histogram of seconds per label set.
pub type SecondsFamily<L> = Family<L, Histogram, Seconds>;

/// Holds every metric of the controller and the registry that encodes them.
#[allow(missing_docs)] // each field is described where it is registered
pub struct Metrics {
    registry: Registry,
    pools: Pools,
    /// What the cluster is like.
    pub state: State,
    /// What goes on.
    pub ongoing: Ongoing,
    /// What provisioning decided of pods that wait.
    pub decisions: Decisions,
    /// Why nodes were left alone when it was last looked.
    pub kept: Kept,
    /// What objects with conditions went through.
    pub objects: Objects,
    pub nodeclaims_created: ByPool<CreatedLabels, Counter>,
    pub nodeclaims_terminated: ByPool<TerminatedLabels, Counter>,
    pub nodeclaims_disrupted: ByPool<DisruptedLabels, Counter>,
    pub nodeclaims_unhealthy_disrupted: ByPool<UnhealthyLabels, Counter>,
    pub nodes_created: ByPool<PoolZoneLabels, Counter>,
    pub nodes_terminated: ByPool<PoolZoneLabels, Counter>,
    pub nodes_drained: ByPool<PoolLabels, Counter>,
    pub nodes_termination_duration: ByPool<PoolLabels, Histogram>,
    pub nodes_lifetime: ByPool<PoolLabels, Histogram>,
    pub nodeclaims_termination_duration: ByPool<PoolLabels, Histogram>,
    pub instance_termination_duration: ByPool<PoolLabels, Histogram>,
    pub nodepools_cost: ByPool<PoolLabels, FloatGauge>,
    pub decision_evaluation: SecondsFamily<EvaluationLabels>,
    pub disruptions: Family<DecisionLabels, Counter>,
    pub pool_disruptions: ByPool<PoolDecisionLabels, Counter>,
    pub move_scores: ByPool<MoveLabels, Histogram>,
    pub moves: ByPool<MoveLabels, Counter>,
    pub eligible_nodes: Family<ReasonLabels, Gauge>,
    pub failed_validations: Family<ConsolidationLabels, Counter>,
    pub queue_failures: Family<DecisionLabels, Counter>,
    pub scheduling_duration: SecondsFamily<ControllerLabels>,
    pub queue_depth: Family<ControllerLabels, Gauge>,
    pub unschedulable_pods: Family<ControllerLabels, Gauge>,
    pub ignored_pods: Gauge,
    pub unreadable_objects: Family<KindLabels, Gauge>,
    pub collection_blocked: Family<KindLabels, Gauge>,
    pub eviction_requests: Family<CodeLabels, Counter>,
    pub pods_drained: Family<ReasonLabels, Counter>,
    pub pods_disrupted: ByPool<DisruptedLabels, Counter>,
    pub pods_bound: Histogram,
    pub pods_startup: Histogram,
    pub pods_decided: Histogram,
    pub pods_placed_bound: Histogram,
    pub pods_placed_startup: Histogram,
    pub cluster_nodes: Gauge,
    pub cluster_synced: Gauge,
    pub cloud_duration: SecondsFamily<CloudLabels>,
    pub cloud_errors: Family<CloudErrorLabels, Counter>,
    pub launch_failures: Family<LaunchFailureLabels, Counter>,
    pub termination_failures: Family<ZoneLabels, Counter>,
    pub batch_time: SecondsFamily<BatcherLabels>,
    pub batch_size: Family<BatcherLabels, Histogram, Sizes>,
    pub messages_received: Family<MessageLabels, Counter>,
    pub messages_deleted: Counter,
    pub instances_unhealthy: Family<CategoryLabels, Counter>,
    pub message_age: SecondsFamily<ControllerLabels>,
    pub leader: Family<LeaseLabels, Gauge>,
}

#[derive(Default)]
struct Shelf {
    registry: Registry,
    pools: Pools,
}

impl Shelf {
    fn put<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.registry.register(name, help, metric.clone());
        metric
    }

    fn by_pool<L, M>(&mut self, name: &str, help: &str, make: fn() -> M) -> ByPool<L, M>
    where
        L: OfPool + EncodeLabelSet + Clone + Ord + std::fmt::Debug + Send + Sync + 'static,
        M: Metric + TypedMetric + Clone,
    {
        let metric = ByPool::new(make);
        self.pools.add(metric.clone());
        self.put(name, help, metric)
    }

    fn seconds<L>(&mut self, name: &str, help: &str) -> SecondsFamily<L>
    where
        L: EncodeLabelSet + Clone + std::hash::Hash + Eq + std::fmt::Debug + Send + Sync + 'static,
    {
        self.put(name, help, Family::new_with_constructor(Seconds))
    }

    fn of_kind(&mut self, kind: Kind) -> OfKind {
        let name = |what: &str| format!("operator_{}_{what}", kind.as_str());
        let (transitions, dwelt) = (name("status_condition_transitions"), name("status_condition_transition_seconds"));
        OfKind {
            transitions: self.put(&transitions, "Conditions that got another status", Family::default()),
            dwelt: self.seconds(&dwelt, "Time for which a condition had a status that it has no longer"),
            termination: self.put(
                &name("termination_duration_seconds"),
                "From an object's deletion until it was gone",
                Seconds.new_metric(),
            ),
        }
    }
}

/// Returns the architecture as Go calls it.
fn goarch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Metrics {
    /// Registers every metric.
    #[rustfmt::skip] // one metric a line is a table
    pub fn new() -> Self {
        let mut s = Shelf::default();
        s.registry.register("karpenter_build", "Version and commit of the controller",
            Info::new(vec![("version", env!("CARGO_PKG_VERSION")), ("goarch", goarch()), ("commit", super::telemetry::COMMIT)]));
        let (state, ongoing) = (State::default(), Ongoing::default());
        s.registry.register_collector(Box::new(state.clone()));
        s.registry.register_collector(Box::new(ongoing.clone()));
        Self {
            state,
            ongoing,
            decisions: Decisions::default(),
            kept: Kept::default(),
            objects: Objects {
                class: s.of_kind(Kind::Ec2NodeClass),
                node: s.of_kind(Kind::Node),
                claim: s.of_kind(Kind::NodeClaim),
                pool: s.of_kind(Kind::NodePool),
            },
            nodeclaims_created: s.by_pool("karpenter_nodeclaims_created", "NodeClaims created", Default::default),
            nodeclaims_terminated: s.by_pool("karpenter_nodeclaims_terminated", "NodeClaims that ended", Default::default),
            nodeclaims_disrupted: s.by_pool("karpenter_nodeclaims_disrupted", "NodeClaims disrupted", Default::default),
            nodeclaims_unhealthy_disrupted: s.by_pool("karpenter_nodeclaims_unhealthy_disrupted", "NodeClaims disrupted because their nodes were ill", Default::default),
            nodes_created: s.by_pool("karpenter_nodes_created", "Nodes that registered", Default::default),
            nodes_terminated: s.by_pool("karpenter_nodes_terminated", "Nodes that ended", Default::default),
            nodes_drained: s.by_pool("karpenter_nodes_drained", "Nodes drained", Default::default),
            nodes_lifetime: s.by_pool("karpenter_nodes_lifetime_duration_seconds", "From a Node's creation to its end", || Seconds.new_metric()),
            nodeclaims_termination_duration: s.by_pool("karpenter_nodeclaims_termination_duration_seconds", "From a NodeClaim's deletion to its end", || Seconds.new_metric()),
            instance_termination_duration: s.by_pool("karpenter_nodeclaims_instance_termination_duration_seconds", "From the call that ends an instance to its end", || Seconds.new_metric()),
            nodes_termination_duration: s.by_pool("karpenter_nodes_termination_duration_seconds", "From a Node's deletion to its end", || Seconds.new_metric()),
            nodepools_cost: s.by_pool("karpenter_nodepools_cost_total", "Price per hour of the pool's nodes", Default::default),
            decision_evaluation: s.seconds("karpenter_voluntary_disruption_decision_evaluation_duration_seconds", "Time to plan a disruption"),
            disruptions: s.put("karpenter_voluntary_disruption_decisions", "Disruption decisions", Family::default()),
            pool_disruptions: s.by_pool("karpenter_voluntary_disruption_decisions_by_nodepool", "Disruption decisions, once for each pool that has nodes in it", Default::default),
            move_scores: s.by_pool("karpenter_consolidation_score", "Share of a pool's cost that a move saves over its share of the pool's disruption", || Scores.new_metric()),
            moves: s.by_pool("karpenter_consolidation_moves", "Moves that would save something, by what a pool's policy said", Default::default),
            eligible_nodes: s.put("karpenter_voluntary_disruption_eligible_nodes", "Nodes that a method may take", Family::default()),
            failed_validations: s.put("karpenter_voluntary_disruption_failed_validations", "Decisions that no longer held when checked", Family::default()),
            queue_failures: s.put("karpenter_voluntary_disruption_queue_failures", "Disruptions rolled back", Family::default()),
            scheduling_duration: s.seconds("karpenter_scheduler_scheduling_duration_seconds", "Time to solve"),
            queue_depth: s.put("karpenter_scheduler_queue_depth", "Pods in the batch being solved", Family::default()),
            unschedulable_pods: s.put("karpenter_scheduler_unschedulable_pods_count", "Pods that no node could be planned for", Family::default()),
            ignored_pods: s.put("karpenter_scheduler_ignored_pods_count", "Pods that could not be read or are not provisionable", Gauge::default()),
            collection_blocked: s.put("karp_garbage_collection_blocked", "Instances and NodeClaims that would have been collected at once, and are too many for that", Family::default()),
            unreadable_objects: s.put("karp_unreadable_objects", "Objects other than pods that are left out because they cannot be read", Family::default()),
            pods_bound: s.put("karpenter_pods_bound_duration_seconds", "From a pod's creation until it has a node", Seconds.new_metric()),
            pods_startup: s.put("karpenter_pods_startup_duration_seconds", "From a pod's creation until it runs and is ready", Seconds.new_metric()),
            pods_decided: s.put("karpenter_pods_scheduling_decision_duration_seconds", "From when a pod was seen to wait until something was decided", Seconds.new_metric()),
            pods_placed_bound: s.put("karpenter_pods_provisioning_bound_duration_seconds", "From when a place was planned for a pod until it has a node", Seconds.new_metric()),
            pods_placed_startup: s.put("karpenter_pods_provisioning_startup_duration_seconds", "From when a place was planned for a pod until it runs and is ready", Seconds.new_metric()),
            eviction_requests: s.put("karpenter_pods_eviction_requests", "Answers to evictions", Family::default()),
            pods_drained: s.put("karpenter_pods_drained", "Pods evicted from nodes that leave", Family::default()),
            pods_disrupted: s.by_pool("karpenter_pods_disruption_initiated", "Pods that have to run elsewhere because the NodeClaim under them was disrupted", Default::default),
            cluster_nodes: s.put("karpenter_cluster_state_node_count", "Nodes known", Gauge::default()),
            cluster_synced: s.put("karpenter_cluster_state_synced", "1 when the caches are filled", Gauge::default()),
            cloud_duration: s.seconds("karpenter_cloudprovider_duration_seconds", "Time of calls to the cloud"),
            cloud_errors: s.put("karpenter_cloudprovider_errors", "Failed calls to the cloud", Family::default()),
            launch_failures: s.put("karpenter_cloudprovider_instance_launch_failures", "Offerings that could not be launched", Family::default()),
            termination_failures: s.put("karpenter_cloudprovider_instance_termination_failures", "Instances that could not be ended when asked", Family::default()),
            batch_time: s.seconds("karpenter_cloudprovider_batcher_batch_time_seconds", "Time for which those waited who made one call"),
            batch_size: s.put("karpenter_cloudprovider_batcher_batch_size", "How many one call was made for", Family::new_with_constructor(Sizes)),
            messages_received: s.put("karpenter_interruption_received_messages", "Queue messages received", Family::default()),
            messages_deleted: s.put("karpenter_interruption_deleted_messages", "Queue messages deleted", Counter::default()),
            instances_unhealthy: s.put("karpenter_interruption_instance_status_unhealthy", "Instances that failed a status check for too long, or for which EC2 plans something", Family::default()),
            message_age: s.seconds("karpenter_interruption_message_queue_duration_seconds", "Age of a message when it was handled"),
            leader: s.put("leader_election_master_status", "1 while this process holds the lease", Family::default()),
            registry: s.registry,
            pools: s.pools,
        }
    }

    /// Tells how to know which pools are there: series of others are not told any more, and what was counted of them is forgotten.
    pub fn heed_pools(&self, is_there: impl Fn(&str) -> bool + Send + Sync + 'static) {
        self.pools.heed(is_there);
    }

    /// Encodes every metric.
    pub fn encode(&self) -> String {
        self.pools.sweep();
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    /// Every counter, histogram and gauge that there is, with a series each.
    fn counted() -> Metrics {
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
        m.decision_evaluation.get_or_create(&EvaluationLabels::sample()).observe(0.004);
        m.disruptions.get_or_create(&DecisionLabels::sample()).inc();
        m.pool_disruptions.get_or_create(&PoolDecisionLabels::sample()).inc_by(2);
        m.move_scores.get_or_create(&MoveLabels::sample()).observe(0.75);
        m.moves.get_or_create(&MoveLabels::sample()).inc_by(3);
        m.eligible_nodes.get_or_create(&ReasonLabels::sample()).set(1);
        m.failed_validations.get_or_create(&ConsolidationLabels::sample()).inc();
        m.queue_failures.get_or_create(&DecisionLabels::sample()).inc();
        m.scheduling_duration.get_or_create(&ControllerLabels::sample()).observe(0.004);
        m.queue_depth.get_or_create(&ControllerLabels::sample()).set(1);
        m.unschedulable_pods.get_or_create(&ControllerLabels::sample()).set(1);
        m.ignored_pods.set(1);
        m.unreadable_objects.get_or_create(&KindLabels::sample()).set(1);
        m.collection_blocked.get_or_create(&KindLabels::sample()).set(7);
        m.eviction_requests.get_or_create(&CodeLabels::sample()).inc();
        m.pods_drained.get_or_create(&ReasonLabels::sample()).inc_by(4);
        m.pods_disrupted.get_or_create(&DisruptedLabels::sample()).inc_by(5);
        m.pods_decided.observe(0.004);
        m.pods_placed_bound.observe(0.008);
        m.pods_placed_startup.observe(0.016);
        m.pods_bound.observe(0.004);
        m.pods_startup.observe(0.004);
        m.cluster_nodes.set(1);
        m.cluster_synced.set(1);
        m.cloud_duration.get_or_create(&CloudLabels::sample()).observe(0.004);
        m.cloud_errors.get_or_create(&CloudErrorLabels::sample()).inc();
        m.launch_failures.get_or_create(&LaunchFailureLabels::sample()).inc();
        m.termination_failures.get_or_create(&ZoneLabels::sample()).inc_by(6);
        m.batch_time.get_or_create(&BatcherLabels::sample()).observe(0.032);
        m.batch_size.get_or_create(&BatcherLabels::sample()).observe(7.0);
        for kind in [Kind::Ec2NodeClass, Kind::Node, Kind::NodeClaim, Kind::NodePool] {
            let of = m.objects.of(kind);
            of.transitions.get_or_create(&TransitionLabels::sample()).inc();
            of.dwelt.get_or_create(&DwellLabels::sample()).observe(0.004);
            of.termination.observe(0.004);
        }
        m.messages_received.get_or_create(&MessageLabels::sample()).inc();
        m.messages_deleted.inc();
        m.instances_unhealthy.get_or_create(&CategoryLabels::sample()).inc();
        m.message_age.get_or_create(&ControllerLabels::sample()).observe(0.004);
        m.leader.get_or_create(&LeaseLabels::sample()).set(1);
        m
    }

    /// All that there is, encoded.
    fn exposition() -> String {
        let m = counted();
        m.ongoing.synced();
        // one that has not begun yet has taken no time, whenever it is looked at
        let later = Instant::now() + Duration::from_secs(3600);
        let _solving = m.ongoing.solving_since("provisioner", "an-id".to_owned(), later);
        m.state.observe(super::super::state::sample);
        m.encode()
    }

    /// Karpenter's names, and of those that are left out the words of the documentation for them.
    #[test]
    fn each_of_karpenters_metrics_is_there_or_said_to_be_left_out() {
        let text = exposition();
        let series = text.lines().filter(|line| !line.starts_with('#'));
        let names: BTreeSet<&str> = series.filter_map(|line| line.split(['{', ' ']).next()).collect();
        let (_, left_out) = include_str!("../../../docs/metrics.md").split_once("\nNot exported").expect("a table");
        for line in include_str!("karpenters.tsv").lines() {
            let (name, said) = line.split_once('\t').map_or((line, None), |(name, said)| (name, Some(said)));
            let is_there = names.contains(name) || names.contains(&*format!("{name}_sum"));
            assert_eq!(is_there, said.is_none(), "{name}");
            assert!(said.is_none_or(|said| left_out.contains(&format!("`{said}`"))), "{name}");
        }
    }

    /// What dashboards and alerts are written against.
    #[test]
    fn the_exposition_is_as_it_was() {
        let text = exposition();
        let mut lines: Vec<&str> =
            text.lines().filter(|line| !line.contains("_bucket{") && !line.contains("karpenter_build")).collect();
        lines.sort_unstable();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn what_was_counted_of_a_pool_goes_with_it_and_what_is_counted_later_is_not_seen() {
        let m = counted();
        m.ongoing.synced();
        m.nodes_created.get_or_create(&PoolZoneLabels::new("other", "a")).inc();
        m.nodes_created.get_or_create(&PoolZoneLabels::new("", "a")).inc();
        let there = Arc::new(AtomicBool::new(true));
        let seen = there.clone();
        m.heed_pools(move |pool| pool == "other" || pool == "nodepool" && seen.load(Ordering::SeqCst));
        // the labels of a sample have their own names for values
        let split = || {
            let text = m.encode();
            let series = text.lines().filter(|line| !line.starts_with('#'));
            let (of_pool, others): (Vec<&str>, Vec<&str>) =
                series.partition(|line| line.contains(r#"nodepool="nodepool""#));
            (of_pool.join("\n"), others.join("\n"))
        };
        let (of_pool, others) = split();
        let families =
            ["nodes_created_total", "nodeclaims_termination_duration_seconds_sum", "consolidation_score_sum"];
        assert!(families.iter().all(|family| of_pool.contains(family)), "{of_pool}");
        assert_eq!(split(), (of_pool, others.clone()), "as long as it is there");
        there.store(false, Ordering::SeqCst);
        assert_eq!(split(), (String::new(), others.clone()), "all of it, and nothing else");
        for _ in 0..2 {
            m.nodeclaims_terminated.get_or_create(&TerminatedLabels::sample()).inc();
            m.nodes_lifetime.get_or_create(&PoolLabels::sample()).observe(0.004);
            assert_eq!(split(), (String::new(), others.clone()), "its last claim was late");
        }
        there.store(true, Ordering::SeqCst);
        m.nodes_created.get_or_create(&PoolZoneLabels::sample()).inc();
        let anew = r#"karpenter_nodes_created_total{nodepool="nodepool",zone="zone"} 1"#;
        assert_eq!(split(), (anew.to_owned(), others), "another of its name begins anew");
    }

    #[test]
    fn names_are_karpenters() {
        let metrics = Metrics::new();
        metrics.nodeclaims_created.get_or_create(&CreatedLabels::new("provisioned", "default", "false")).inc();
        metrics.cluster_synced.set(1);
        metrics.nodepools_cost.get_or_create(&PoolLabels::new("default")).set(1.5);
        let moved = MoveLabels::new("rejected", "default", "Balanced");
        metrics.move_scores.get_or_create(&moved).observe(0.4);
        metrics.batch_size.get_or_create(&BatcherLabels::new("create_fleet")).observe(120.0);
        let text = metrics.encode();
        for line in [
            r#"karpenter_nodeclaims_created_total{reason="provisioned",nodepool="default",min_values_relaxed="false"} 1"#,
            "karpenter_cluster_state_synced 1",
            r#"karpenter_nodepools_cost_total{nodepool="default"} 1.5"#,
            r#"karpenter_consolidation_score_bucket{le="0.33",decision="rejected",nodepool="default",policy="Balanced"} 0"#,
            r#"karpenter_consolidation_score_bucket{le="0.5",decision="rejected",nodepool="default",policy="Balanced"} 1"#,
            r#"karpenter_cloudprovider_batcher_batch_size_bucket{le="100.0",batcher="create_fleet"} 0"#,
            r#"karpenter_cloudprovider_batcher_batch_size_bucket{le="125.0",batcher="create_fleet"} 1"#,
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }
}

//! NodePools as the engine sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{Budget, ClassRef};
use crate::requirement::Requirements;
use crate::resources::Resources;
use crate::taint::Taint;

/// API group of the node classes that karp acts on; pools of any other group are foreign and never touched.
pub const NODE_CLASS_GROUP: &str = "karpenter.k8s.aws";

/// Describes a NodePool.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// Higher is tried first; 0 when it is not set.
    pub weight: u32,
    /// `template.metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `template.metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `template.spec.requirements` with the template's labels and the pool's own label.
    pub requirements: Requirements,
    /// `minValues` by requirement key.
    pub min_values: BTreeMap<Arc<str>, u32>,
    /// `template.spec.taints`.
    pub taints: Vec<Taint>,
    /// `template.spec.startupTaints`.
    pub startup_taints: Vec<Taint>,
    /// `template.spec.nodeClassRef`.
    pub class: ClassRef,
    /// `template.spec.expireAfter`; none for Never.
    pub expire_after: Option<SignedDuration>,
    /// `template.spec.terminationGracePeriod`.
    pub termination_grace: Option<SignedDuration>,
    /// `limits`, with the pseudo-resource `nodes`.
    pub limits: Resources,
    /// `disruption.consolidateAfter`; none for Never.
    pub consolidate_after: Option<SignedDuration>,
    /// `disruption.consolidationPolicy`.
    pub policy: ConsolidationPolicy,
    /// `disruption.budgets`.
    pub budgets: Vec<Budget>,
    /// `replicas` is set: a static pool, which pending pods do not grow.
    pub is_static: bool,
    /// Condition Ready is not false.
    pub ready: bool,
    /// Deletion was asked for at this time.
    pub deleting: Option<Timestamp>,
    /// Hash of the template for drift, as karp writes it into `karpenter.sh/nodepool-hash`.
    pub hash: Arc<str>,
}

/// Says which nodes consolidation looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsolidationPolicy {
    /// Only nodes without pods.
    WhenEmpty,
    /// Also nodes that could be cheaper.
    WhenEmptyOrUnderutilized,
    /// Those whose saving is worth the disruption.
    Balanced,
}

impl Pool {
    /// Says whether karp may act on the pool.
    pub fn is_ours(&self) -> bool {
        &*self.class.group == NODE_CLASS_GROUP
    }
}

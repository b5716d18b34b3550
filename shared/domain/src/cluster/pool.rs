//! NodePools as the engine sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    Budget, ClassRef, ConsolidationFloor, ExpirationGrace, PodShare, PriceTolerance, Share, Unreadable,
    UnreadableField, Window,
};
use crate::api::conditions::{self, READY};
use crate::api::{self, ConsolidationPolicy, NodeClaimTemplate, NodePool, hash, label_syntax, labels};
use crate::requirement::{Operator, Requirement, Requirements, Torn};
use crate::resources::Resources;
use crate::taint::Taint;

/// Describes a NodePool.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Name.
    pub name: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// Higher is tried first; 0 when it is not set.
    pub weight: u32,
    /// Hash of its template, of version [`hash::NODE_POOL_VERSION`]: what is planned of the pool carries it, so that drift is judged by the
    /// template that a node was planned by, however the pool was changed until its claim was made.
    pub hash: Arc<str>,
    /// `template.metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `template.metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `template.spec.requirements` with the template's labels and the pool's own label.
    pub requirements: Requirements,
    /// Where the requirements on a label contradict each other: what against what.
    pub torn: Torn,
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
    /// `replicas`: a static pool, which pending pods do not grow.
    pub replicas: Option<u64>,
    /// Annotation `karp.sh/max-pod-share`: the largest share of the pool's pods on one new node.
    pub max_pod_share: Option<PodShare>,
    /// Annotation `karp.sh/price-tolerance`: how much dearer the types may be that a new node may become.
    pub price_tolerance: Option<PriceTolerance>,
    /// Annotation `karp.sh/consolidation-floor`: what giving up a node must save for the pods that it evicts.
    pub consolidation_floor: Option<ConsolidationFloor>,
    /// Annotation `karp.sh/expiration-grace`: how long after `expireAfter` a node may still be replaced gently.
    pub expiration_grace: Option<ExpirationGrace>,
    /// Condition Ready is not false.
    pub ready: bool,
    /// Deletion was asked for at this time.
    pub deleting: Option<Timestamp>,
}

impl Pool {
    /// Reads a NodePool.
    pub fn from_kube(pool: &NodePool) -> Result<Self, Unreadable> {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let template = &pool.spec.template;
        sound(template).map_err(|field| field.of("NodePool", &name))?;
        let (mut requirements, mut torn) = (Requirements::new(), Torn::new());
        for spec in &template.spec.requirements {
            let one = Requirement::try_from(spec).map_err(|e| {
                UnreadableField::new("spec.template.spec.requirements".to_owned(), e.to_string()).of("NodePool", &name)
            })?;
            requirements.add_noting(one, &mut torn);
        }
        let min_values = requirements.iter().filter_map(|r| Some((r.shared_key(), r.min_values()?))).collect();
        let class = ClassRef::from(&template.spec.node_class_ref);
        for (key, value) in &*template.metadata.labels {
            requirements.add_noting(Requirement::only(key, [value.as_str()]), &mut torn);
        }
        requirements.add(Requirement::only(labels::NODE_POOL, [name]));
        if class.is_ours() {
            requirements.add(Requirement::only(labels::EC2_NODE_CLASS, [&*class.name]));
        }
        let status = pool.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        let disruption = &pool.spec.disruption;
        Ok(Pool {
            name: name.into(),
            uid: pool.metadata.uid.as_deref().unwrap_or_default().into(),
            weight: pool.spec.weight.and_then(|w| u32::try_from(w).ok()).unwrap_or(0),
            hash: hash::node_pool(&pool.spec).into(),
            labels: template.metadata.labels.to_map(),
            annotations: template.metadata.annotations.to_map(),
            requirements,
            torn,
            min_values,
            taints: template.spec.taints.iter().map(Taint::from).collect(),
            startup_taints: template.spec.startup_taints.iter().map(Taint::from).collect(),
            class,
            expire_after: template.spec.lifetime(),
            termination_grace: template.spec.grace(),
            limits: pool.spec.limits.clone().unwrap_or_default(),
            consolidate_after: disruption.quiet_period(),
            policy: disruption.consolidation_policy,
            budgets: budgets(pool),
            replicas: pool.spec.replicas.map(|replicas| u64::try_from(replicas).unwrap_or(0)),
            max_pod_share: annotation(pool, labels::MAX_POD_SHARE)?,
            price_tolerance: annotation(pool, labels::PRICE_TOLERANCE)?,
            consolidation_floor: annotation(pool, labels::CONSOLIDATION_FLOOR)?,
            expiration_grace: annotation(pool, labels::EXPIRATION_GRACE)?,
            ready: !conditions::is_false(status, READY),
            deleting: pool.metadata.deletion_timestamp.as_ref().map(|t| t.0),
        })
    }

    /// Says whether it has a fixed number of nodes.
    pub const fn is_static(&self) -> bool {
        self.replicas.is_some()
    }

    /// Says whether karp may act on the pool: one whose class is another provider's is never touched.
    pub fn is_ours(&self) -> bool {
        self.class.is_ours()
    }
}

/// Refuses what the API server takes in a pool and in no claim or node that is made from it: nothing but launches in vain could come of it.
fn sound(template: &NodeClaimTemplate) -> Result<(), UnreadableField> {
    for key in template.metadata.labels.to_map().keys() {
        if let Some(problem) = label_syntax::key_problem(key) {
            return Err(UnreadableField::new(format!("spec.template.metadata.labels[{key}]"), problem));
        }
    }
    for (at, requirement) in template.spec.requirements.iter().enumerate() {
        if !matches!(requirement.operator, Operator::In | Operator::NotIn) {
            continue;
        }
        if let Some(problem) = requirement.values.iter().find_map(|value| label_syntax::value_problem(value)) {
            return Err(UnreadableField::new(format!("spec.template.spec.requirements[{at}].values"), problem));
        }
    }
    let mut seen = BTreeSet::new();
    let lists = [("taints", &template.spec.taints), ("startupTaints", &template.spec.startup_taints)];
    for (list, taints) in lists {
        for (at, taint) in taints.iter().enumerate() {
            if !seen.insert((&taint.key, taint.effect)) {
                let problem = format!(
                    "the taint {:?} with the effect {} is given twice, among taints and startup taints together: a node can have it once",
                    taint.key,
                    taint.effect.as_str()
                );
                return Err(UnreadableField::new(format!("spec.template.spec.{list}[{at}]"), problem));
            }
        }
    }
    Ok(())
}

/// Reads one of karp's own settings of a pool.
fn annotation<T: FromStr<Err: fmt::Display>>(pool: &NodePool, key: &str) -> Result<Option<T>, Unreadable> {
    let text = pool.metadata.annotations.as_ref().and_then(|all| all.get(key));
    let read = text.map(|text| text.parse()).transpose();
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    read.map_err(|e: T::Err| {
        UnreadableField::new(format!("metadata.annotations[{key}]"), e.to_string()).of("NodePool", &name)
    })
}

/// Reads `spec.disruption.budgets`.
pub fn budgets(pool: &NodePool) -> Vec<Budget> {
    pool.spec.disruption.budgets.iter().map(budget).collect()
}

fn budget(budget: &api::Budget) -> Budget {
    let window = budget.schedule.as_ref().map(|schedule| Window {
        schedule: schedule.as_str().into(),
        duration: budget.duration.as_deref().and_then(api::duration).unwrap_or_default(),
    });
    Budget { nodes: Share::parse(&budget.nodes), reasons: budget.reasons.clone(), window }
}

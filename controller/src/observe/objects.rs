//! Objects as their conditions and their deletion tell of them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use karp_domain::api::conditions::{Condition, ConditionStatus};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool};
use kube::{Resource, ResourceExt};

use super::Stores;
use crate::ops::metrics::Kind;
use crate::ops::state::Object;

impl Stores {
    /// Returns all objects with conditions.
    pub fn objects(&self) -> Vec<Object> {
        let classes = self.classes.state();
        let (nodes, claims, pools) = (self.nodes.state(), self.claims.state(), self.pools.state());
        let all = classes.iter().map(|class| of_class(class));
        let all = all.chain(nodes.iter().map(|node| of_node(node)));
        let all = all.chain(claims.iter().map(|claim| of_claim(claim)));
        all.chain(pools.iter().map(|pool| of_pool(pool))).collect()
    }

    /// Returns an object with conditions, unless it is gone.
    pub fn object(&self, kind: Kind, name: &str) -> Option<Object> {
        match kind {
            Kind::Ec2NodeClass => self.class(name).map(|class| of_class(&class)),
            Kind::Node => self.node(name).map(|node| of_node(&node)),
            Kind::NodeClaim => self.claim(name).map(|claim| of_claim(&claim)),
            Kind::NodePool => self.pool(name).map(|pool| of_pool(&pool)),
        }
    }
}

fn object<K: Resource<DynamicType = ()>>(kind: Kind, object: &K, conditions: Option<Vec<Condition>>) -> Object {
    Object {
        kind,
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        deleting: object.meta().deletion_timestamp.as_ref().map(|time| time.0),
        conditions: conditions.unwrap_or_default(),
    }
}

fn of_class(class: &Ec2NodeClass) -> Object {
    object(Kind::Ec2NodeClass, class, class.status.as_ref().map(|status| status.conditions.clone()))
}

fn of_claim(claim: &NodeClaim) -> Object {
    object(Kind::NodeClaim, claim, claim.status.as_ref().map(|status| status.conditions.clone()))
}

fn of_pool(pool: &NodePool) -> Object {
    object(Kind::NodePool, pool, pool.status.as_ref().map(|status| status.conditions.clone()))
}

fn of_node(node: &Node) -> Object {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    object(Kind::Node, node, conditions.map(|all| all.iter().map(condition).collect()))
}

/// Reads a condition of a node; a status that nobody knows is as good as none.
fn condition(condition: &NodeCondition) -> Condition {
    let status = match condition.status.as_str() {
        "True" => ConditionStatus::True,
        "False" => ConditionStatus::False,
        _ => ConditionStatus::Unknown,
    };
    Condition {
        kind: condition.type_.clone(),
        status,
        last_transition_time: condition.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        reason: condition.reason.clone().unwrap_or_default(),
        message: String::new(),
        observed_generation: None,
    }
}

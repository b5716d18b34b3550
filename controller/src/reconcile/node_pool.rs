//! NodePool: conditions, hash and counters in its metadata and status; it stays until its claims are gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karp_domain::api::conditions::{self, ConditionStatus};
use karp_domain::api::{NodeClaim, NodePool, NodePoolStatus, hash, labels};
use karp_domain::cluster::Pool;
use karp_domain::quantity::Quantity;
use karp_domain::resources::Resources;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::driver::{AT_ONCE, Driver};
use super::{Context, Error, unreadable};
use crate::effect;
use crate::observe::Change;

/// Counters are looked at this often although nothing changed (Karpenter: 5 s).
const RECOUNT: Duration = Duration::from_secs(60);
/// A pool that waits for its claims is looked at again after this long.
const WAITING: Duration = Duration::from_secs(5);
/// Reason of a pool that cannot be read.
pub const INVALID: &str = "NodePoolValidationFailed";
/// The pseudo-resource that counts nodes.
const NODES: &str = "nodes";

/// Runs the controller until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let pick = |context: &Context, change: &Change| match change {
        Change::Pool(name) => vec![ObjectRef::new(name)],
        Change::Class(name) => {
            let users = context.stores.pools.state_filter(|pool| pool.spec.template.spec.node_class_ref.name == **name);
            users.iter().map(|pool| ObjectRef::new(&pool.name_any())).collect()
        }
        Change::Claim(name) => match context.stores.claim(name) {
            Some(claim) => claim.labels().get(labels::NODE_POOL).map(|pool| ObjectRef::new(pool)).into_iter().collect(),
            // It is gone and with it the name of its pool.
            None => context.stores.pools.state().iter().map(|pool| ObjectRef::new(&pool.name_any())).collect(),
        },
        _ => Vec::new(),
    };
    let driver = Driver { name: "nodepool", store: context.stores.pools.clone(), pick, at_once: AT_ONCE };
    driver.run(context, stop, reconcile).await;
}

async fn reconcile(pool: Arc<NodePool>, context: Arc<Context>) -> Result<Action, Error> {
    if !pool.spec.template.spec.node_class_ref.is_ours() {
        return Ok(Action::await_change());
    }
    if pool.metadata.deletion_timestamp.is_some() {
        return finalize(&pool, &context).await;
    }
    let mut pool = effect::add_finalizer(&context.client, &*pool, labels::TERMINATION_FINALIZER).await?;
    let hashes = hash_annotations(&pool);
    if hashes.iter().any(|(key, value)| pool.annotations().get(key) != Some(value)) {
        pool = effect::write_metadata(&context.client, &pool, json!({ "annotations": hashes })).await?;
    }
    let status = status(&pool, &context, Timestamp::now());
    if pool.status.as_ref() != Some(&status) {
        let ready = |status: Option<&NodePoolStatus>| {
            status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
        };
        let became_ready = ready(Some(&status)) && !ready(pool.status.as_ref());
        let patch = effect::replacing(pool.status.as_ref(), &status);
        effect::write_status(&context.client, &pool, &patch).await?;
        if became_ready {
            context.provision.notify_one();
        }
    }
    Ok(Action::requeue(RECOUNT))
}

/// Makes the status: is the pool sound, is its class ready, what does it run.
fn status(pool: &NodePool, context: &Context, now: Timestamp) -> NodePoolStatus {
    let mut status = pool.status.clone().unwrap_or_default();
    let all = &mut status.conditions;
    match Pool::from_kube(pool) {
        Ok(_) => {
            conditions::set(all, conditions::VALIDATION_SUCCEEDED, ConditionStatus::True, "", "", now);
        }
        Err(why) => unreadable::set(all, INVALID, &why, now),
    }
    let class = context.stores.class(&pool.spec.template.spec.node_class_ref.name);
    let ready = class
        .as_ref()
        .and_then(|class| class.status.as_ref())
        .and_then(|status| conditions::get(&status.conditions, conditions::READY));
    let (verdict, reason, message) = match (&class, ready) {
        (None, _) => (ConditionStatus::False, "NodeClassNotFound", "NodeClass not found on cluster".to_owned()),
        (Some(class), _) if class.metadata.deletion_timestamp.is_some() => {
            (ConditionStatus::False, "NodeClassTerminating", "NodeClass is Terminating".to_owned())
        }
        (Some(_), None) => {
            (ConditionStatus::Unknown, "NodeClassReadinessUnknown", "Node Class Readiness Unknown".to_owned())
        }
        (Some(_), Some(ready)) if ready.status == ConditionStatus::True => (ConditionStatus::True, "", String::new()),
        (Some(_), Some(ready)) => (ready.status, &*ready.reason, ready.message.clone()),
    };
    conditions::set(all, conditions::NODE_CLASS_READY, verdict, reason, &message, now);
    let generation = class.as_ref().and_then(|class| class.metadata.generation).unwrap_or_default();
    context.health.tell(pool, generation, all, now);
    conditions::set_ready(all, conditions::NODE_POOL_READY, now);
    conditions::observe(all, pool.metadata.generation);
    let (resources, nodes) = usage(pool, context);
    status.nodes = nodes;
    status.resources = Some(resources);
    status.node_class_observed_generation = class.and_then(|class| class.metadata.generation);
    status
}

/// Sums what the pool's nodes have, launched ones by what they are and others not at all.
fn usage(pool: &NodePool, context: &Context) -> (Resources, i64) {
    let claims = claims_of(pool, context);
    let mut total = Resources::new();
    for claim in &claims {
        if let Some(capacity) = claim.status.as_ref().and_then(|status| status.capacity.as_ref()) {
            total.add(capacity);
        }
    }
    let nodes = claims.len() as i64;
    total.set(NODES, Quantity::from_units(nodes));
    (total, nodes)
}

fn claims_of(pool: &NodePool, context: &Context) -> Vec<Arc<NodeClaim>> {
    let name = pool.name_any();
    context.stores.claims.state_filter(|claim| claim.labels().get(labels::NODE_POOL) == Some(&name))
}

/// Asks that the pool's claims end and lets the pool go after them.
async fn finalize(pool: &NodePool, context: &Context) -> Result<Action, Error> {
    let claims = claims_of(pool, context);
    let mut asked = Ok(());
    for claim in claims.iter().filter(|claim| claim.metadata.deletion_timestamp.is_none()) {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        // one that the API server does not let go must not keep the others
        let deleted = context.delete_claim(&claim.name_any(), uid).await.map(drop);
        asked = asked.and(deleted);
    }
    asked?;
    if !claims.is_empty() {
        return Ok(Action::requeue(WAITING));
    }
    let name = pool.name_any();
    context.health.forget(&name);
    effect::remove_finalizer(&context.client, pool, labels::TERMINATION_FINALIZER).await?;
    Ok(Action::await_change())
}

/// Returns the annotations by which a claim knows the template that it was made from.
pub fn hash_annotations(pool: &NodePool) -> BTreeMap<String, String> {
    BTreeMap::from([
        (labels::NODE_POOL_HASH.to_owned(), hash::node_pool(&pool.spec)),
        (labels::NODE_POOL_HASH_VERSION.to_owned(), hash::NODE_POOL_VERSION.to_owned()),
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::testing::{Server, status as answer};
    use super::*;

    /// A pool with nothing but a status; `more` is merged into its metadata.
    fn pool(more: &Value) -> Value {
        let mut metadata = json!({ "name": "p", "uid": "p", "finalizers": [labels::TERMINATION_FINALIZER] });
        let all = metadata.as_object_mut().expect("an object");
        all.extend(more.as_object().expect("an object").clone());
        let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": metadata,
            "spec": { "template": { "spec": { "requirements": [], "nodeClassRef": class } } },
            "status": { "nodes": 1, "resources": { "cpu": "8", "nvidia.com/gpu": "1", "nodes": "1" } },
        })
    }

    fn claim(name: &str) -> Value {
        let metadata = json!({ "name": name, "uid": name, "labels": { (labels::NODE_POOL): "p" } });
        let class = json!({ "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": "default" });
        let spec = json!({ "requirements": [], "nodeClassRef": class });
        json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": metadata, "spec": spec })
    }

    #[tokio::test]
    async fn a_pool_tells_nothing_of_nodes_that_are_gone() {
        let server = Server::of([pool(&json!({}))]);
        let context = server.context().await;
        let known = context.stores.pool("p").expect("a pool");
        reconcile(known, context.clone()).await.expect("answers");
        let told = server.get("nodepools/p");
        assert_eq!(told["status"]["resources"], json!({ "nodes": "0" }));
        assert_eq!(told["status"]["nodes"], json!(0));
    }

    #[tokio::test]
    async fn a_claim_that_cannot_be_deleted_keeps_no_other_of_its_pool() {
        let names = ["a", "b", "c"];
        let going = pool(&json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }));
        let server = Server::of(names.map(claim).into_iter().chain([going]));
        let context = server.context().await;
        for name in names {
            server.answer(&format!("DELETE nodeclaims/{name}"), Some(422), answer(422, "Invalid"));
        }
        let known = context.stores.pool("p").expect("a pool");
        assert!(reconcile(known, context.clone()).await.is_err(), "it is tried again");
        assert_eq!(names.map(|name| server.asked(&format!("DELETE nodeclaims/{name}"))), [1, 1, 1]);
    }
}

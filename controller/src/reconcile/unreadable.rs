//! Objects that cannot be read: their own conditions say so and name the field. Whoever reads them again heals them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karp_domain::api::conditions::{self, Condition, ConditionStatus};
use karp_domain::api::{Ec2NodeClass, NodeClaim, NodePool};
use karp_domain::cluster::Unreadable;
use kube::Resource;
use kube::core::PartialObjectMeta;
use serde_json::json;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio_util::sync::CancellationToken;

use super::{Context, Error, node_claim, node_class, node_pool};
use crate::effect;
use crate::observe::Change;
use crate::observe::unread::{Unread, partial};

/// A condition that could not be written is tried again after this long.
const AGAIN: Duration = Duration::from_secs(30);

/// Keeps the conditions until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut changes = context.stores.changes();
    loop {
        for unread in context.stores.aside.all().iter().filter(|unread| !unread.foreign) {
            match tell(unread, &context).await {
                Err(error) if !error.is_race() => {
                    tracing::warn!(object = %unread.why, %error, "its condition could not be written");
                }
                // After a lost race, the winner's version comes by watch.
                _ => {}
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(AGAIN) => {}
            () = changed(&mut changes) => {}
        }
    }
}

async fn changed(changes: &mut Receiver<Change>) {
    loop {
        match changes.recv().await {
            Ok(Change::Unread) | Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Sets the condition by which an object that cannot be read says so.
pub fn set(all: &mut Vec<Condition>, reason: &str, why: &Unreadable, now: Timestamp) {
    let message = format!("{}: {}", why.field, why.problem);
    conditions::set(all, conditions::VALIDATION_SUCCEEDED, ConditionStatus::False, reason, &message, now);
}

async fn tell(unread: &Unread, context: &Context) -> Result<(), Error> {
    let now = Timestamp::now();
    let mut all = unread.conditions.clone();
    match &*unread.why.kind {
        "NodePool" => {
            set(&mut all, node_pool::INVALID, &unread.why, now);
            conditions::set_ready(&mut all, conditions::NODE_POOL_READY, now);
            conditions::observe(&mut all, unread.metadata.generation);
            write::<NodePool>(unread, all, context).await
        }
        "EC2NodeClass" => {
            set(&mut all, node_class::INVALID, &unread.why, now);
            conditions::set_ready(&mut all, conditions::NODE_CLASS_READY_PARTS, now);
            conditions::observe(&mut all, unread.metadata.generation);
            write::<Ec2NodeClass>(unread, all, context).await
        }
        "NodeClaim" => {
            set(&mut all, node_claim::INVALID, &unread.why, now);
            node_claim::set_ready(&mut all, now);
            write::<NodeClaim>(unread, all, context).await
        }
        // Others' objects have no place for it: event, metric and log tell of them.
        _ => Ok(()),
    }
}

async fn write<K>(unread: &Unread, all: Vec<Condition>, context: &Context) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug,
{
    if all != unread.conditions {
        let object: PartialObjectMeta<K> = partial(&unread.metadata);
        effect::write_status(&context.client, &object, &json!({ "conditions": all })).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_names_the_field_and_makes_the_object_not_ready() {
        let why = Unreadable::new("NodeClaim", &"odd", "spec.resources.requests.cpu", "1e60 is too big");
        let mut all = Vec::new();
        for part in conditions::NODE_CLAIM_READY {
            conditions::set(&mut all, part, ConditionStatus::True, "", "", Timestamp::UNIX_EPOCH);
        }
        set(&mut all, node_claim::INVALID, &why, Timestamp::UNIX_EPOCH);
        node_claim::set_ready(&mut all, Timestamp::UNIX_EPOCH);
        let said = conditions::get(&all, conditions::VALIDATION_SUCCEEDED).expect("the condition");
        assert_eq!(
            (&*said.reason, &*said.message),
            (node_claim::INVALID, "spec.resources.requests.cpu: 1e60 is too big")
        );
        assert!(conditions::is_false(&all, conditions::READY));
        conditions::clear(&mut all, conditions::VALIDATION_SUCCEEDED);
        node_claim::set_ready(&mut all, Timestamp::UNIX_EPOCH);
        assert!(conditions::is_true(&all, conditions::READY));
    }
}

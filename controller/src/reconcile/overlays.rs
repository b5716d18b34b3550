//! NodeOverlays: read, held against each other, handed to all decisions, and told of in their status.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karp_domain::api::conditions::{self, Condition, ConditionStatus};
use karp_domain::api::{NodeClaim, NodeOverlay, labels};
use karp_domain::catalogue::{Catalogue, Overlay, OverlayConflict};
use karp_domain::cluster::{Pool, Unreadable};
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Context;
use crate::cloud::CloudError;
use crate::effect;
use crate::observe::unread::{Guarded, partial};
use crate::ops::telemetry::pass_span;

/// How often overlays are looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// A launch waits this long for the first look.
const SOON: Duration = Duration::from_secs(1);
/// Reason of an overlay that cannot be read.
const INVALID: &str = "RuntimeValidation";
/// Reason of an overlay that is left out for the sake of another one.
const CONFLICT: &str = "Conflict";

/// The overlays that hold; nothing as long as the first look is to come.
pub struct Overlays(Mutex<Option<Arc<[Overlay]>>>);

impl Overlays {
    /// Begins: where overlays are not heeded there are none.
    pub fn new(heeded: bool) -> Self {
        Self(Mutex::new((!heeded).then(Arc::default)))
    }

    /// Returns the overlays that hold. Before they are known nothing may be decided by prices.
    pub fn known(&self) -> Option<Arc<[Overlay]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes others in; says whether anything changed.
    fn replace(&self, overlays: Vec<Overlay>) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = known.as_ref().is_none_or(|known| **known != *overlays);
        *known = Some(overlays.into());
        changed
    }
}

/// An overlay as it was listed.
struct Listed {
    metadata: ObjectMeta,
    conditions: Vec<Condition>,
    read: Result<Overlay, Unreadable>,
}

/// Heeds overlays until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut told = String::new();
    loop {
        let span = pass_span!("nodeoverlay");
        let failed = pass(&context).instrument(span).await.err().map(|error| error.to_string()).unwrap_or_default();
        // the overlays that were known stay as they were
        if !failed.is_empty() && failed != told {
            let waits = context.overlays.known().is_none();
            tracing::warn!(
                error = failed,
                waits,
                "node overlays could not be read or written; nothing is planned before they were read once"
            );
        }
        told = failed;
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}

async fn pass(context: &Context) -> kube::Result<()> {
    let listed = match Api::<Guarded<NodeOverlay>>::all(context.client.clone()).list(&ListParams::default()).await {
        Ok(listed) => listed.items,
        // the kind is not installed: there are none
        Err(kube::Error::Api(refusal)) if refusal.code == 404 => Vec::new(),
        Err(error) => return Err(error),
    };
    let listed: Vec<Listed> =
        listed.into_iter().map(read).filter(|one| one.metadata.deletion_timestamp.is_none()).collect();
    let mut overlays: Vec<Overlay> = listed.iter().filter_map(|one| one.read.clone().ok()).collect();
    let pools: Vec<Arc<Pool>> =
        context.stores.pools.state().iter().filter_map(|pool| Pool::from_kube(pool).ok()).map(Arc::new).collect();
    let conflicts = context.catalogues().await.overlay(&pools, &overlays);
    overlays.retain(|overlay| conflicts.iter().all(|conflict| conflict.overlay != overlay.name));
    let names: Vec<Arc<str>> = overlays.iter().map(|overlay| overlay.name.clone()).collect();
    if context.overlays.replace(overlays) {
        tracing::info!(overlays = ?names, "node overlays changed");
        context.provision.notify_one();
        context.disrupt.notify_one();
    }
    let mut told = Ok(());
    for one in &listed {
        // one that cannot be written keeps none of the others waiting
        told = tell(one, &conflicts, context).await.and(told);
    }
    told
}

fn read(Guarded(object): Guarded<NodeOverlay>) -> Listed {
    match object {
        Ok(object) => Listed {
            read: Overlay::from_kube(&object),
            conditions: object.status.map(|status| status.conditions).unwrap_or_default(),
            metadata: object.metadata,
        },
        Err(broken) => Listed {
            metadata: broken.unread.metadata.clone(),
            conditions: broken.unread.conditions.clone(),
            read: Err(broken.unread.why.clone()),
        },
    }
}

/// Writes into an overlay's status what was made of it, if that has changed.
async fn tell(one: &Listed, conflicts: &[OverlayConflict], context: &Context) -> kube::Result<()> {
    let all = told(one, conflicts, Timestamp::now());
    if all == one.conditions {
        return Ok(());
    }
    let object: PartialObjectMeta<NodeOverlay> = partial(&one.metadata);
    match effect::write_status(&context.client, &object, &json!({ "conditions": all })).await {
        // another version is looked at the next time
        Err(kube::Error::Api(refusal)) if matches!(refusal.code, 404 | 409) => Ok(()),
        written => written.map(drop),
    }
}

/// Makes the conditions of an overlay.
fn told(one: &Listed, conflicts: &[OverlayConflict], now: Timestamp) -> Vec<Condition> {
    let mut all = one.conditions.clone();
    let name = one.metadata.name.as_deref().unwrap_or_default();
    let conflict = conflicts.iter().find(|conflict| *conflict.overlay == *name);
    let (verdict, reason, message) = match (&one.read, conflict) {
        (Err(why), _) => (ConditionStatus::False, INVALID, format!("{}: {}", why.field, why.problem)),
        (Ok(_), Some(OverlayConflict { with, instance_type, .. })) => {
            let message = format!(
                "conflict with another overlay: {with} has the same weight and speaks of {instance_type}, too; set spec.weight of one \
                 of them"
            );
            (ConditionStatus::False, CONFLICT, message)
        }
        (Ok(_), None) => (ConditionStatus::True, "", String::new()),
    };
    conditions::set(&mut all, conditions::VALIDATION_SUCCEEDED, verdict, reason, &message, now);
    conditions::set_ready(&mut all, &[conditions::VALIDATION_SUCCEEDED], now);
    conditions::observe(&mut all, one.metadata.generation);
    all
}

/// Returns what a claim's pool can buy, at the pool's own prices and with its own capacities.
pub fn overlaid(claim: &NodeClaim, catalogue: Arc<Catalogue>, context: &Context) -> Result<Arc<Catalogue>, CloudError> {
    let Some(overlays) = context.overlays.known() else {
        let message = "NodeOverlays have not been read yet".to_owned();
        return Err(CloudError::Retry { after: Some(SOON), message });
    };
    let pool = claim.labels().get(labels::NODE_POOL).and_then(|name| context.stores.pool(name));
    Ok(match pool.and_then(|pool| Pool::from_kube(&pool).ok()) {
        Some(pool) if !overlays.is_empty() => Arc::new(catalogue.overlaid(&pool.requirements, &overlays).catalogue),
        _ => catalogue,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn listed(spec: &Value) -> Listed {
        let object = json!({
            "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": "paid", "generation": 4 },
            "spec": spec,
        });
        read(serde_json::from_value(object).expect("an overlay, readable or not"))
    }

    fn said(one: &Listed, conflicts: &[OverlayConflict]) -> (bool, String, String) {
        let all = told(one, conflicts, Timestamp::UNIX_EPOCH);
        let said = conditions::get(&all, conditions::VALIDATION_SUCCEEDED).expect("the condition");
        let ready = conditions::is_true(&all, conditions::READY);
        assert_eq!(ready, said.status == ConditionStatus::True, "{all:?}");
        assert!(all.iter().all(|condition| condition.observed_generation == Some(4)), "{all:?}");
        // once it is told, nothing is left to write
        let again = Listed { metadata: one.metadata.clone(), conditions: all.clone(), read: one.read.clone() };
        assert_eq!(told(&again, conflicts, Timestamp::now()), all);
        (ready, said.reason.clone(), said.message.clone())
    }

    #[test]
    fn an_overlay_says_whether_it_holds_and_why_not() {
        let sound = listed(&json!({ "requirements": [], "price": "0.1" }));
        let (ready, reason, message) = said(&sound, &[]);
        assert_eq!((ready, &*reason, &*message), (true, conditions::VALIDATION_SUCCEEDED, ""));
        let conflict =
            OverlayConflict { overlay: "paid".into(), with: "other".into(), instance_type: "m7i.large".into() };
        let (ready, reason, message) = said(&sound, std::slice::from_ref(&conflict));
        assert_eq!((ready, &*reason), (false, CONFLICT));
        assert!(
            message.starts_with("conflict with another overlay: other ") && message.contains("m7i.large"),
            "{message}"
        );
        let other = OverlayConflict { overlay: "else".into(), ..conflict };
        assert!(said(&sound, &[other]).0);
        let twice = listed(&json!({ "requirements": [], "price": "0.1", "priceAdjustment": "+1" }));
        let (ready, reason, message) = said(&twice, &[]);
        assert_eq!((ready, &*reason), (false, INVALID));
        assert_eq!(message, "spec.price: stands beside priceAdjustment: set one of them");
        // what an old definition let in is an overlay of no effect, not the end of all others
        let broken = listed(&json!({ "requirements": [], "capacity": { "example.com/fuse": "many" } }));
        let (ready, reason, message) = said(&broken, &[]);
        assert_eq!((ready, &*reason), (false, INVALID));
        assert!(message.starts_with("spec.capacity"), "{message}");
    }

    #[test]
    fn nothing_is_known_before_the_first_look() {
        let overlays = Overlays::new(true);
        assert!(overlays.known().is_none());
        assert!(overlays.replace(Vec::new()), "that there are none is news");
        assert!(!overlays.replace(Vec::new()));
        assert!(Overlays::new(false).known().is_some_and(|known| known.is_empty()));
    }
}

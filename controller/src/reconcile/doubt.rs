//! Launches in doubt whose claim is to go. EC2 may have launched what its lists do not show yet: a claim that went before would leave it to the
//! collector, which takes little at once. So the claim stays for as long as something may still turn up.

use std::time::Duration;

use jiff::Timestamp;
use karp_domain::api::NodeClaim;
use karp_domain::lifecycle::launch::{Doubt, SOUGHT_SINCE, doubt};
use kube::ResourceExt;
use moka::sync::Cache;
use serde_json::json;

use super::launch::LISTING_PAUSE;
use super::{Context, Error, node_claim};
use crate::cloud::LaunchError;

/// Claims that may be known at a time; beyond it the oldest wait when they go.
const MOST: u64 = 100_000;
/// No claim is tried for longer.
const MEMORY: Duration = Duration::from_secs(3600);

/// Knows the claims of which the record says that a launch was begun, and for which EC2 refused all that was asked, by UID: they need not wait. A
/// fresh process knows of none.
pub struct Settled(Cache<String, ()>);

impl Default for Settled {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(MOST).time_to_live(MEMORY).build())
    }
}

impl Settled {
    /// Notes that EC2 is asked for a claim now.
    pub fn reopen(&self, claim: &NodeClaim) {
        self.0.invalidate(&claim.uid().unwrap_or_default());
    }

    /// Notes the failure of a launch before which nothing was in doubt: nothing can come of one that was refused.
    pub fn note(&self, claim: &NodeClaim, error: &LaunchError) {
        if !matches!(error, LaunchError::InDoubt(_) | LaunchError::TokenReused(_)) {
            self.0.insert(claim.uid().unwrap_or_default(), ());
        }
    }

    /// Says whether nothing can come of what EC2 was asked for a claim.
    pub fn knows(&self, claim: &NodeClaim) -> bool {
        claim.uid().is_some_and(|uid| self.0.contains_key(&uid))
    }
}

/// Returns after what time to look again for what was launched for a claim that goes, and of which nothing is listed; nothing once none of it can
/// turn up.
pub async fn look_again(claim: &NodeClaim, context: &Context) -> Result<Option<Duration>, Error> {
    let now = Timestamp::now();
    match doubt(claim, context.settled.knows(claim), context.options.launch_listing, now) {
        Doubt::Settled => Ok(None),
        Doubt::Listing(left) => Ok(Some(left.min(LISTING_PAUSE))),
        Doubt::New => {
            let stamp = json!({ "annotations": { (SOUGHT_SINCE): now.to_string() } });
            node_claim::stamp(context, claim, stamp).await?;
            let name = claim.name_any();
            tracing::info!(NodeClaim.name = name, "waiting for what may have been launched for the nodeclaim");
            Ok(Some(LISTING_PAUSE))
        }
    }
}

#[cfg(test)]
mod tests {
    use karp_domain::api::labels;
    use karp_domain::lifecycle::launch::{ATTEMPT, DIGEST, sought_since};
    use kube::runtime::controller::Action;
    use serde_json::Value;

    use super::super::termination::finalize_claim;
    use super::super::testing::{self, Server};
    use super::*;
    use crate::cloud::CloudError;

    /// A claim that is to go, with these annotations.
    fn leaving(annotations: &Value) -> Value {
        let mut claim = testing::claim("c");
        claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        claim["metadata"]["finalizers"] = json!([labels::TERMINATION_FINALIZER]);
        claim["metadata"]["annotations"] = annotations.clone();
        claim
    }

    /// Looks once after the claim as the API server has it; returns when to look again.
    async fn look(server: &Server, context: &Context) -> Action {
        let claim: NodeClaim = serde_json::from_value(server.get("nodeclaims/c")).expect("a claim");
        finalize_claim(&claim, context).await.expect("answers")
    }

    fn is_held(server: &Server) -> bool {
        server.get("nodeclaims/c")["metadata"]["finalizers"] == json!([labels::TERMINATION_FINALIZER])
    }

    fn failed() -> CloudError {
        CloudError::Retry { after: None, message: "no answer".to_owned() }
    }

    #[tokio::test]
    async fn a_claim_whose_launch_is_in_doubt_goes_when_nothing_of_it_can_turn_up() {
        let server = Server::of([leaving(&json!({ (ATTEMPT): "1", (DIGEST): "d" }))]);
        let context = server.context().await;
        for time in 1..=2 {
            assert_eq!(look(&server, &context).await, Action::requeue(LISTING_PAUSE), "look {time}");
            assert!(is_held(&server));
        }
        let long_ago = Timestamp::now() - context.options.launch_listing;
        server.put(leaving(&json!({ (ATTEMPT): "1", (DIGEST): "d", (SOUGHT_SINCE): long_ago.to_string() })));
        assert_eq!(look(&server, &context).await, Action::await_change());
        assert!(!is_held(&server));
    }

    #[tokio::test]
    async fn a_clock_that_was_ahead_holds_no_claim() {
        let ahead = "2999-01-01T00:00:00Z";
        let server = Server::of([leaving(&json!({ (ATTEMPT): "1", (DIGEST): "d", (SOUGHT_SINCE): ahead }))]);
        let context = server.context().await;
        assert_eq!(look(&server, &context).await, Action::requeue(LISTING_PAUSE));
        let claim: NodeClaim = serde_json::from_value(server.get("nodeclaims/c")).expect("a claim");
        assert!(sought_since(&claim).flatten().is_some_and(|since| since <= Timestamp::now()), "it waits from now on");
    }

    #[tokio::test]
    async fn a_claim_that_nothing_can_come_of_goes_at_once() {
        for annotations in [json!({}), json!({ (ATTEMPT): "2" })] {
            let server = Server::of([leaving(&annotations)]);
            let context = server.context().await;
            assert_eq!(look(&server, &context).await, Action::await_change(), "{annotations}");
            assert!(!is_held(&server));
        }
        let server = Server::of([leaving(&json!({ (ATTEMPT): "1", (DIGEST): "d" }))]);
        let context = server.context().await;
        context.settled.note(&context.stores.claim("c").expect("a claim"), &LaunchError::Cloud(failed()));
        assert_eq!(look(&server, &context).await, Action::await_change(), "EC2 refused all that was asked");
    }

    #[test]
    fn a_refusal_settles_what_was_not_in_doubt_before() {
        let claim =
            |annotations: Value| -> NodeClaim { serde_json::from_value(leaving(&annotations)).expect("a claim") };
        let begun = claim(json!({ (ATTEMPT): "1", (DIGEST): "d" }));
        let settled = Settled::default();
        assert!(!settled.knows(&begun), "its answer may have been lost, perhaps of another process");
        settled.note(&begun, &LaunchError::InDoubt(failed()));
        assert!(!settled.knows(&begun));
        settled.note(&begun, &LaunchError::Cloud(failed()));
        assert!(settled.knows(&begun), "all that was asked was refused");
        settled.reopen(&begun);
        assert!(!settled.knows(&begun), "it is asked for again");
    }
}

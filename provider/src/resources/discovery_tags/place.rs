//! Where discovery tags are. They have no ARN that tells region and account: both are kept beside the state, where no user sees them. Under another
//! region or account nothing of the tags is found, which says nothing of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tfplugin::{Context, Value};
use tokio::sync::Mutex;

use crate::report::Failure;
use crate::session::{Aws, Session, same_account, same_region};

/// STS answers soon or not at all, as in a network that has no way to it: whose tags they are need not be known to make them.
const PATIENCE: Duration = Duration::from_secs(5);

/// Region and account of tags. A state of an earlier version tells neither, until they are found by the next read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    account_id: Option<String>,
}

impl Place {
    /// Reads what is kept beside the state of an operation.
    pub fn of(ctx: &Context) -> Self {
        // what another version kept there says nothing
        serde_json::from_slice(&ctx.private()).unwrap_or_default()
    }

    /// Gives a state in which `region` says where to look: its own, else the one in which the tags are.
    pub fn shown_in(&self, state: &Value) -> Value {
        match &self.region {
            Some(region) if state.get("region").is_null() => state.clone().with("region", region),
            _ => state.clone(),
        }
    }

    /// Refuses to look in another region than that of tags which name none of their own.
    pub fn check_region(&self, state: &Value, actual: &str, doing: &str) -> Result<(), Failure> {
        match &self.region {
            Some(region) if state.get("region").is_null() => same_region(region, actual, doing),
            _ => Ok(()),
        }
    }

    /// Refuses to believe that tags are gone, or to take them away, where they are those of another account.
    pub async fn check_account(&self, session: &Session, doing: &str) -> Result<(), Failure> {
        match &self.account_id {
            Some(account) => same_account(account, &session.identity().await?.account_id, doing),
            None => Ok(()),
        }
    }
}

/// Finds out where tags are. Where STS does not answer the first that asks, all others of the process do without.
#[derive(Default)]
pub struct Finder {
    in_vain: Mutex<bool>,
}

impl Finder {
    /// Keeps where tags are, as far as it was not known.
    pub async fn note(&self, ctx: &Context, session: &Session, aws: &Aws, known: Place) {
        if known.region.is_some() && known.account_id.is_some() {
            return;
        }
        let account_id = match known.account_id {
            Some(known) => Some(known),
            None => self.account(ctx, session).await,
        };
        let found = Place { region: Some(aws.region().to_owned()), account_id };
        ctx.set_private(serde_json::to_vec(&found).unwrap_or_default());
    }

    /// Says whose the credentials are; a session asks that once.
    async fn account(&self, ctx: &Context, session: &Session) -> Option<String> {
        let mut in_vain = self.in_vain.lock().await;
        if *in_vain {
            return None;
        }
        let asked = tokio::time::timeout(PATIENCE, ctx.run(session.identity())).await;
        let found = match asked {
            Ok(Ok(Ok(identity))) => Some(identity.account_id.clone()).filter(|account| !account.is_empty()),
            _ => None,
        };
        *in_vain = found.is_none();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Kind;

    const DOING: &str = "read the tags";

    fn place() -> Place {
        Place { region: Some("eu-west-1".to_owned()), account_id: Some("111122223333".to_owned()) }
    }

    #[test]
    fn tags_are_looked_for_where_they_are() {
        let bare = Value::object([("key", "k")]);
        let own = bare.clone().with("region", "us-west-2");
        assert_eq!(place().shown_in(&bare).get("region").as_str(), Some("eu-west-1"));
        assert_eq!(place().shown_in(&own), own);
        assert_eq!(Place::default().shown_in(&bare), bare);
    }

    #[test]
    fn another_region_or_account_is_named_with_what_to_do() {
        let bare = Value::object([("key", "k")]);
        let region = place().check_region(&bare, "us-west-2", DOING).unwrap_err();
        assert_eq!(
            (region.kind, region.summary().as_str()),
            (Kind::Elsewhere, "Wrong region or account: could not read the tags")
        );
        let told = region.detail();
        assert!(
            told.contains("\"eu-west-1\"") && told.contains("\"us-west-2\"") && told.contains("`region`"),
            "{told}"
        );
        assert!(place().check_region(&bare, "eu-west-1", DOING).is_ok());
        let own = bare.clone().with("region", "us-west-2");
        assert!(place().check_region(&own, "us-west-2", DOING).is_ok(), "its own region says where it is");
        assert!(Place::default().check_region(&bare, "us-west-2", DOING).is_ok(), "nothing is known of an older state");

        let account = same_account("111122223333", "444455556666", DOING).unwrap_err();
        let told = account.detail();
        assert_eq!(account.kind, Kind::Elsewhere);
        assert!(told.contains("111122223333") && told.contains("444455556666") && told.contains("`profile`"), "{told}");
        assert!(same_account("111122223333", "111122223333", DOING).is_ok());
    }
}

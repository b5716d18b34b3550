//! Launches that rest after a failure. What a failure writes on its claim wakes the claim, and so does what others write: without this, a launch
//! that EC2 refuses would be asked for again at once, as often as the account's rate allows, and take that rate from all others.

use std::time::{Duration, Instant};

use karp_domain::api::conditions::INTERRUPTION_QUEUE_READY;
use karp_domain::api::{Ec2NodeClass, NodeClaim};
use kube::ResourceExt;
use moka::sync::Cache;
use serde_json::json;

/// Claims that may rest at a time; beyond it the oldest are tried earlier.
const MOST: u64 = 100_000;
/// No rest is longer.
const LONGEST: Duration = Duration::from_secs(600);

/// Knows which claims rest, by UID. A fresh process knows of none, and tries each once.
pub struct Rests(Cache<String, Rest>);

#[derive(Clone, Debug)]
struct Rest {
    until: Instant,
    /// What the launch that failed went by of its class: anything else is worth a try at once.
    class: String,
}

impl Default for Rests {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(MOST).time_to_live(LONGEST).build())
    }
}

impl Rests {
    /// Lets a claim rest for a while, or until its class is another than this.
    pub fn begin(&self, claim: &NodeClaim, class: &Ec2NodeClass, pause: Duration) {
        let rest = Rest { until: Instant::now() + pause.min(LONGEST), class: read(class) };
        self.0.insert(claim.uid().unwrap_or_default(), rest);
    }

    /// Returns how long a claim still rests; nothing when it may be launched.
    pub fn left(&self, claim: &NodeClaim, class: &Ec2NodeClass) -> Option<Duration> {
        let rest = self.0.get(&claim.uid()?).filter(|rest| rest.class == read(class))?;
        rest.until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }
}

/// Returns what a launch goes by of a class; not how its queue is, which says nothing of launches and may change for all classes at once.
fn read(class: &Ec2NodeClass) -> String {
    let mut status = class.status.clone().unwrap_or_default();
    status.conditions.retain(|condition| condition.kind != INTERRUPTION_QUEUE_READY);
    json!([class.uid(), class.spec, status]).to_string()
}

#[cfg(test)]
mod tests {
    use karp_domain::api::conditions::{self, ConditionStatus};
    use karp_domain::api::{Ec2NodeClassSpec, NodeClaimSpec};

    use super::*;

    #[test]
    fn a_claim_rests_until_its_time_or_its_class_has_changed() {
        let claim = |uid: &str| {
            let mut claim = NodeClaim::new("a", NodeClaimSpec::default());
            claim.metadata.uid = Some(uid.to_owned());
            claim
        };
        let class = |role: &str| {
            let spec = Ec2NodeClassSpec { role: Some(role.to_owned()), ..Ec2NodeClassSpec::default() };
            Ec2NodeClass::new("a", spec)
        };
        let told = |kind: &str| {
            let mut class = class("1");
            class.metadata.resource_version = Some("2".to_owned());
            let conditions = &mut class.status.get_or_insert_default().conditions;
            conditions::set(conditions, kind, ConditionStatus::False, "Odd", "odd", jiff::Timestamp::UNIX_EPOCH);
            class
        };
        let rests = Rests::default();
        assert_eq!(rests.left(&claim("one"), &class("1")), None);
        rests.begin(&claim("one"), &class("1"), Duration::from_secs(60));
        assert!(rests.left(&claim("one"), &class("1")).is_some_and(|left| left > Duration::from_secs(50)));
        assert_eq!(rests.left(&claim("one"), &class("2")), None, "what failed may be put right");
        assert_eq!(rests.left(&claim("one"), &told(conditions::AMIS_READY)), None, "and be seen to be");
        assert!(
            rests.left(&claim("one"), &told(INTERRUPTION_QUEUE_READY)).is_some(),
            "it has nothing to do with launches"
        );
        assert_eq!(rests.left(&claim("other"), &class("1")), None);
        rests.begin(&claim("one"), &class("2"), Duration::ZERO);
        assert_eq!(rests.left(&claim("one"), &class("2")), None, "its time is over");
    }
}

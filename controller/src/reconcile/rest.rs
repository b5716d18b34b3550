//! Launches that rest after a failure. What a failure writes on its claim wakes the claim, and so does what others write: without this, a launch
//! that EC2 refuses would be asked for again at once, as often as the account's rate allows, and take that rate from all others.

use std::time::{Duration, Instant};

use karp_domain::api::{Ec2NodeClass, NodeClaim};
use kube::ResourceExt;
use moka::sync::Cache;

/// Claims that may rest at a time; beyond it the oldest are tried earlier.
const MOST: u64 = 100_000;
/// No rest is longer.
const LONGEST: Duration = Duration::from_secs(600);

/// Knows which claims rest, by UID. A fresh process knows of none, and tries each once.
pub struct Rests(Cache<String, Rest>);

#[derive(Clone, Debug)]
struct Rest {
    until: Instant,
    /// The class with which the launch failed: another one is worth a try at once.
    class: Option<String>,
}

impl Default for Rests {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(MOST).time_to_live(LONGEST).build())
    }
}

impl Rests {
    /// Lets a claim rest for a while, or until its class is another than this.
    pub fn begin(&self, claim: &NodeClaim, class: &Ec2NodeClass, pause: Duration) {
        let rest = Rest { until: Instant::now() + pause.min(LONGEST), class: class.resource_version() };
        self.0.insert(claim.uid().unwrap_or_default(), rest);
    }

    /// Returns how long a claim still rests; nothing when it may be launched.
    pub fn left(&self, claim: &NodeClaim, class: &Ec2NodeClass) -> Option<Duration> {
        let rest = self.0.get(&claim.uid()?).filter(|rest| rest.class == class.resource_version())?;
        rest.until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use karp_domain::api::{Ec2NodeClassSpec, NodeClaimSpec};

    use super::*;

    #[test]
    fn a_claim_rests_until_its_time_or_its_class_has_changed() {
        let claim = |uid: &str| {
            let mut claim = NodeClaim::new("a", NodeClaimSpec::default());
            claim.metadata.uid = Some(uid.to_owned());
            claim
        };
        let class = |version: &str| {
            let mut class = Ec2NodeClass::new("a", Ec2NodeClassSpec::default());
            class.metadata.resource_version = Some(version.to_owned());
            class
        };
        let rests = Rests::default();
        assert_eq!(rests.left(&claim("one"), &class("1")), None);
        rests.begin(&claim("one"), &class("1"), Duration::from_secs(60));
        assert!(rests.left(&claim("one"), &class("1")).is_some_and(|left| left > Duration::from_secs(50)));
        assert_eq!(rests.left(&claim("one"), &class("2")), None, "what failed may be put right");
        assert_eq!(rests.left(&claim("other"), &class("1")), None);
        rests.begin(&claim("one"), &class("2"), Duration::ZERO);
        assert_eq!(rests.left(&claim("one"), &class("2")), None, "its time is over");
    }
}

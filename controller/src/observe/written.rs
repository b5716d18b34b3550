//! Which versions this process has written: what the watch shows may be older.

use std::time::Duration;

use kube::Resource;
use moka::sync::Cache;

/// A write that the watch has not shown for so long is no longer waited for.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Most objects remembered.
const MOST: u64 = 100_000;

/// Knows the last version that was written of each object, by UID.
pub struct Written(Cache<String, u64>);

impl Default for Written {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(MOST).time_to_live(REMEMBERED).build())
    }
}

impl Written {
    /// Notes an object as the API server answered it to a write.
    pub fn note<K: Resource>(&self, object: &K) {
        if let Some((uid, version)) = version(object) {
            let last = self.0.get(uid).unwrap_or_default();
            self.0.insert(uid.to_owned(), version.max(last));
        }
    }

    /// Says whether an object is older than what was written of it: what follows from it may have been done.
    pub fn is_behind<K: Resource>(&self, object: &K) -> bool {
        let Some((uid, version)) = version(object) else { return false };
        let behind = self.0.get(uid).is_some_and(|written| version < written);
        if !behind {
            self.0.invalidate(uid);
        }
        behind
    }
}

/// Versions of one kind are numbers that grow (KEP-5504); an API server whose versions are none has its objects taken as they are seen.
fn version<K: Resource>(object: &K) -> Option<(&str, u64)> {
    let meta = object.meta();
    Some((meta.uid.as_deref()?, meta.resource_version.as_deref()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use karp_domain::api::NodeClaim;
    use kube::api::ObjectMeta;

    use super::*;

    fn at(uid: &str, version: &str) -> NodeClaim {
        let mut claim = NodeClaim::new("a", serde_json::from_value(serde_json::json!({
            "requirements": [], "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "a" },
        })).expect("a spec"));
        claim.metadata =
            ObjectMeta { uid: Some(uid.into()), resource_version: Some(version.into()), ..ObjectMeta::default() };
        claim
    }

    #[test]
    fn what_is_older_than_the_last_write_is_behind_until_the_watch_has_caught_up() {
        let written = Written::default();
        assert!(!written.is_behind(&at("one", "7")), "nothing was written");
        written.note(&at("one", "9"));
        assert!(written.is_behind(&at("one", "7")));
        assert!(!written.is_behind(&at("other", "7")), "another of that name");
        assert!(written.is_behind(&at("one", "8")));
        // others write, too
        assert!(!written.is_behind(&at("one", "10")));
        assert!(!written.is_behind(&at("one", "8")), "a listing may go back");
        written.note(&at("one", "99"));
        assert!(!written.is_behind(&at("one", "opaque")) && !written.is_behind(&at("one", "100")));
    }
}

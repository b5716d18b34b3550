//! Tags as karp owns them: only the keys that it set. A key that something else put on the object is never touched.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::report::Failure;
use crate::session::Aws;

/// Tag key and value, ordered by key.
pub type Tags = BTreeMap<String, String>;

/// Names the cluster that an object serves; also the proof of ownership that adoption looks at.
pub const CLUSTER_KEY: &str = "karp.sh/cluster";

/// Tags that belong to others although karp keeps the object: never read, planned, or removed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Ignored {
    keys: Option<BTreeSet<String>>,
    key_prefixes: Option<BTreeSet<String>>,
}

impl Ignored {
    /// Says whether a key is ignored.
    pub fn covers(&self, key: &str) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.contains(key))
            || self.key_prefixes.iter().flatten().any(|prefix| key.starts_with(prefix.as_str()))
    }
}

/// What has to change so that the tags of an object become the wanted ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub put: Tags,
    pub remove: BTreeSet<String>,
}

impl Change {
    /// Compares what is `wanted` with what is `actual`; keys in `owned` that are wanted no more are removed.
    pub fn between(wanted: &Tags, actual: &Tags, owned: &Tags) -> Self {
        let put = wanted.iter().filter(|(key, value)| actual.get(*key) != Some(value));
        let remove = owned.keys().filter(|key| !wanted.contains_key(*key) && actual.contains_key(*key));
        Self { put: put.map(|(k, v)| (k.clone(), v.clone())).collect(), remove: remove.cloned().collect() }
    }
}

/// Gives the part of `actual` that karp owns: the keys in `owned`. An import owns everything but AWS's own keys; what is ignored, nobody.
pub fn owned_part(actual: &Tags, owned: Option<&Tags>, ignored: &Ignored) -> Tags {
    let keep = |key: &String| match owned {
        _ if ignored.covers(key) => false,
        Some(owned) => owned.contains_key(key),
        None => !key.starts_with("aws:"),
    };
    actual.iter().filter(|(key, _)| keep(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Changes the tags of any EKS object.
pub async fn retag_eks(aws: &Aws, arn: &str, change: &Change) -> Result<(), Failure> {
    if !change.put.is_empty() {
        let tags = change.put.clone().into_iter().collect();
        let call = aws.eks().tag_resource().resource_arn(arn).set_tags(Some(tags));
        call.send().await.map_err(|e| Failure::aws(format!("tag {arn}"), e).at("tags"))?;
    }
    if !change.remove.is_empty() {
        let keys = change.remove.iter().cloned().collect();
        let call = aws.eks().untag_resource().resource_arn(arn).set_tag_keys(Some(keys));
        call.send().await.map_err(|e| Failure::aws(format!("untag {arn}"), e).at("tags"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn only_owned_keys_are_removed() {
        let change = Change::between(
            &tags(&[("a", "2"), ("b", "1")]),
            &tags(&[("a", "1"), ("b", "1"), ("old", "x"), ("foreign", "y")]),
            &tags(&[("a", "1"), ("old", "x"), ("gone", "z")]),
        );
        assert_eq!(change.put, tags(&[("a", "2")]));
        assert_eq!(change.remove, BTreeSet::from(["old".to_owned()]));
    }

    #[test]
    fn reading_shows_owned_keys_only() {
        let actual = tags(&[("a", "1"), ("foreign", "y"), ("aws:x", "z")]);
        let none = Ignored::default();
        assert_eq!(owned_part(&actual, Some(&tags(&[("a", "0"), ("b", "0")])), &none), tags(&[("a", "1")]));
        assert_eq!(owned_part(&actual, None, &none), tags(&[("a", "1"), ("foreign", "y")]));
    }

    #[test]
    fn what_is_ignored_is_nobodys() {
        let set = |text: &str| Some(BTreeSet::from([text.to_owned()]));
        let ignored = Ignored { keys: set("cost"), key_prefixes: set("kubernetes.io/") };
        for (key, covered) in [("cost", true), ("cost-centre", false), ("kubernetes.io/role/elb", true), ("io", false)]
        {
            assert_eq!(ignored.covers(key), covered, "{key}");
        }
        let actual = tags(&[("a", "1"), ("cost", "2"), ("kubernetes.io/x", "3")]);
        assert_eq!(owned_part(&actual, None, &ignored), tags(&[("a", "1")]));
        assert_eq!(owned_part(&actual, Some(&actual), &ignored), tags(&[("a", "1")]));
    }
}

//! Tags as karp owns them: only the keys that it set. A key that something else put on the object is never touched.

use std::collections::{BTreeMap, BTreeSet};

/// Tag key and value, ordered by key.
pub type Tags = BTreeMap<String, String>;

/// Names the cluster that an object serves; also the proof of ownership that adoption looks at.
pub const CLUSTER_KEY: &str = "karp.sh/cluster";

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

/// Gives the part of `actual` that karp owns: the keys in `owned`. An import owns everything but AWS's own keys.
pub fn owned_part(actual: &Tags, owned: Option<&Tags>) -> Tags {
    let keep = |key: &String| match owned {
        Some(owned) => owned.contains_key(key),
        None => !key.starts_with("aws:"),
    };
    actual.iter().filter(|(key, _)| keep(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
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
        assert_eq!(owned_part(&actual, Some(&tags(&[("a", "0"), ("b", "0")]))), tags(&[("a", "1")]));
        assert_eq!(owned_part(&actual, None), tags(&[("a", "1"), ("foreign", "y")]));
    }
}

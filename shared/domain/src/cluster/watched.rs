//! What a watch has shown of a kind: kept event by event, and made anew by each listing.

use std::collections::BTreeMap;

/// Keeps the objects of one kind as a watch shows them. A listing takes the place of all that was known once it is whole, so that nothing
/// stays which went while nobody watched; until then what was known stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched<K, V> {
    known: BTreeMap<K, V>,
    listing: Option<BTreeMap<K, V>>,
}

impl<K, V> Default for Watched<K, V> {
    fn default() -> Self {
        Watched { known: BTreeMap::new(), listing: None }
    }
}

impl<K: Ord, V> Watched<K, V> {
    /// Answers what is known.
    pub const fn known(&self) -> &BTreeMap<K, V> {
        &self.known
    }

    /// Says whether a listing has begun and is not whole.
    pub const fn is_listing(&self) -> bool {
        self.listing.is_some()
    }

    /// A listing begins.
    pub fn list(&mut self) {
        self.listing = Some(BTreeMap::new());
    }

    /// A listing has an object; answers what is known of it from before.
    pub fn listed(&mut self, key: K, value: V) -> Option<&V> {
        let before = self.known.get(&key);
        self.listing.get_or_insert_default().insert(key, value);
        before
    }

    /// The listing is whole; answers what was known and is not in it.
    pub fn done(&mut self) -> BTreeMap<K, V> {
        let mut before = std::mem::replace(&mut self.known, self.listing.take().unwrap_or_default());
        before.retain(|key, _| !self.known.contains_key(key));
        before
    }

    /// An object came or changed; answers what it was before.
    pub fn put(&mut self, key: K, value: V) -> Option<V> {
        self.known.insert(key, value)
    }

    /// An object went.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.known.remove(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_replaces_what_is_known_once_it_is_whole() {
        let mut watched = Watched::default();
        watched.put("a", 1);
        watched.put("b", 1);
        watched.list();
        assert_eq!(watched.listed("b", 2), Some(&1));
        assert_eq!(watched.known().get("a"), Some(&1), "what was known stands until then");
        assert!(watched.is_listing());
        assert_eq!(watched.done().into_iter().collect::<Vec<_>>(), [("a", 1)]);
        assert!(!watched.is_listing());
        assert_eq!(watched.known().iter().collect::<Vec<_>>(), [(&"b", &2)]);
        // a listing that is begun again has nothing of the one before
        watched.list();
        watched.listed("c", 1);
        watched.list();
        watched.done();
        assert!(watched.known().is_empty());
        assert_eq!((watched.put("d", 1), watched.put("d", 2), watched.remove(&"d")), (None, Some(1), Some(2)));
    }
}

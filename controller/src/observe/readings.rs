//! What was read of objects, as long as the watch shows those very objects: thousands of nodes and claims are not read anew for each snapshot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use karp_domain::cluster::Unreadable;

/// Remembers what was read of the objects of a kind in the last snapshot; cheap to clone.
pub struct Readings<K, T>(Arc<Mutex<Known<K, T>>>);

/// By address: an object that changes is another one, and one that is held here keeps its address to itself.
type Known<K, T> = HashMap<usize, (Arc<K>, Read<T>)>;
type Read<T> = Result<Arc<T>, Unreadable>;

impl<K, T> Readings<K, T> {
    /// Reads those of the objects that were not among the last ones.
    pub fn read(&self, objects: Vec<Arc<K>>, one: impl Fn(&K) -> Result<T, Unreadable>) -> Vec<(Arc<K>, Read<T>)> {
        // What a panic while reading left are fewer readings, each of them true.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *known);
        known.reserve(objects.len());
        let mut all = Vec::with_capacity(objects.len());
        for object in objects {
            let at = Arc::as_ptr(&object).addr();
            let read = before.remove(&at).map_or_else(|| one(&object).map(Arc::new), |(_, read)| read);
            known.insert(at, (object.clone(), read.clone()));
            all.push((object, read));
        }
        all
    }
}

impl<K, T> Default for Readings<K, T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, T> Clone for Readings<K, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_what_changed_is_read_again() {
        let readings = Readings::default();
        let count = Cell::new(0);
        let one = |text: &String| {
            count.set(count.get() + 1);
            let why = |_| Unreadable::new("N", text, "f", "no");
            text.parse::<u32>().map_err(why)
        };
        let read = |objects: &[&Arc<String>]| {
            let all = readings.read(objects.iter().map(|&object| object.clone()).collect(), one);
            all.into_iter().map(|(_, read)| read.ok().map(|number| *number)).collect::<Vec<_>>()
        };
        let [one, two, bad] = ["1", "2", "x"].map(|text| Arc::new(text.to_owned()));
        assert_eq!((read(&[&one, &two, &bad]), count.get()), (vec![Some(1), Some(2), None], 3));
        assert_eq!((read(&[&bad, &one, &two]), count.get()), (vec![None, Some(1), Some(2)], 3));
        // equal, and still another object: the watch has shown it anew
        let again = Arc::new("2".to_owned());
        assert_eq!((read(&[&one, &again]), count.get()), (vec![Some(1), Some(2)], 4));
        // nothing is kept of what is gone
        assert_eq!((Arc::strong_count(&two), Arc::strong_count(&bad), Arc::strong_count(&one)), (1, 1, 2));
    }
}

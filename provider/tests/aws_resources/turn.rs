//! Whose turn it is at which of the sandbox's AWS emulators: tests inject faults and count calls, so each has one of its own for a while.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// The emulators by their place in the list, free ones only.
struct Free {
    places: Mutex<Vec<usize>>,
    changed: Condvar,
}

/// The emulator of the test that holds this; free again when it is dropped.
pub struct Turn {
    /// Its place in the list.
    pub place: usize,
    /// All places that are kept free for the test, its own among them.
    taken: Vec<usize>,
    free: &'static Free,
}

/// What a test needs of its emulator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Any will do.
    Any,
    /// The first, whose EKS stands for the sandbox's API server: what tests do there, they do one after the other.
    Cluster,
    /// The first, while nobody is at any other: what measures seconds must not wait for others' work.
    Alone,
}

impl Turn {
    /// Waits until one of `count` emulators is free that will do.
    pub fn take(count: usize, need: Need) -> Self {
        static FREE: OnceLock<Free> = OnceLock::new();
        let free = FREE.get_or_init(|| Free { places: Mutex::new((0..count).collect()), changed: Condvar::new() });
        let mut places = free.locked();
        loop {
            // the first is kept for whoever needs it as long as there are others
            let best = match need {
                Need::Any => places.iter().copied().max(),
                Need::Cluster => places.iter().copied().find(|place| *place == 0),
                Need::Alone => (places.len() == count).then_some(0),
            };
            if let Some(place) = best {
                let (taken, left) = places.iter().partition(|other| **other == place || need == Need::Alone);
                *places = left;
                return Self { place, taken, free };
            }
            places = free.changed.wait(places).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Free {
    fn locked(&self) -> MutexGuard<'_, Vec<usize>> {
        // A test that fails panics while it has its turn, never while the list is changed.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.free.locked().append(&mut self.taken);
        self.free.changed.notify_all();
    }
}

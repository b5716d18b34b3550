//! The memory of offerings that could not be had, shared by all reconcilers of this process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use karp_domain::catalogue::{self, Catalogue};
use karp_domain::fleet::UnavailableOffering;

/// Lends the memory its clock and a lock.
pub struct Unavailable {
    start: Instant,
    known: Mutex<catalogue::Unavailable>,
}

impl Default for Unavailable {
    fn default() -> Self {
        Self { start: Instant::now(), known: Mutex::default() }
    }
}

impl Unavailable {
    /// Remembers that an offering could not be had.
    pub fn mark(&self, offering: &UnavailableOffering) {
        self.locked().mark(offering, self.start.elapsed());
    }

    /// Returns the catalogue without what is to be avoided.
    pub fn apply(&self, catalogue: &Arc<Catalogue>) -> Arc<Catalogue> {
        self.locked().apply(catalogue, self.start.elapsed())
    }

    fn locked(&self) -> MutexGuard<'_, catalogue::Unavailable> {
        // Nothing can panic while the lock is held, so a poisoned memory is still a sound one.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

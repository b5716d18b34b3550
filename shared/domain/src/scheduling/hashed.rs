//! Values with a hash that was made before.

use std::hash::{Hash, Hasher};

/// A value that hashes as it says; equal hashes are not taken for equal values.
#[derive(Debug)]
pub(crate) struct Hashed<'a, T> {
    hash: u64,
    pub(crate) value: &'a T,
}

impl<'a, T> Hashed<'a, T> {
    pub(crate) fn new(hash: u64, value: &'a T) -> Self {
        Self { hash, value }
    }
}

impl<T> Clone for Hashed<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Hashed<'_, T> {}

impl<T: Eq> PartialEq for Hashed<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        // most are the same value, which need not be looked at
        self.hash == other.hash && (std::ptr::eq(self.value, other.value) || self.value == other.value)
    }
}

impl<T: Eq> Eq for Hashed<'_, T> {}

impl<T> Hash for Hashed<'_, T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.hash);
    }
}

//! Free ports on loopback that no other sandbox takes at the same time.

use std::{
    fs::{File, TryLockError},
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result, bail};
use rand::Rng as _;

/// Below the range that Linux gives to outgoing connections (32768 and up), so that no client takes a port between pick and use.
const RANGE: std::ops::Range<u16> = 20_000..32_000;
/// Picks before giving up: with this many misses the range is as good as full.
const TRIES: usize = 200;

/// Picks ports and keeps them locked while it lives; clones share the locks.
#[derive(Clone)]
pub struct Ports {
    locks: PathBuf,
    held: Arc<Mutex<Vec<File>>>,
}

impl Ports {
    /// Keeps its lock files in a folder that all sandboxes of the machine's user share.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn new(locks: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&locks).with_context(|| format!("making {}", locks.display()))?;
        Ok(Self { locks, held: Arc::default() })
    }

    /// Picks a port on which nothing listens and which no other `Ports` holds.
    ///
    /// # Errors
    /// When no free port was found.
    pub fn pick(&self) -> Result<u16> {
        for _ in 0..TRIES {
            let port = rand::rng().random_range(RANGE);
            let path = self.locks.join(port.to_string());
            let lock = File::create(&path).with_context(|| format!("making {}", path.display()))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("locking {}", path.display()));
                }
            }
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                self.held.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
                return Ok(port);
            }
        }
        bail!("found no free port in {}..{} after {TRIES} tries", RANGE.start, RANGE.end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn two_sandboxes_never_get_the_same_port() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) =
            (Ports::new(folder.path().to_path_buf()).unwrap(), Ports::new(folder.path().to_path_buf()).unwrap());
        let picked: Vec<u16> = (0..150).flat_map(|_| [one.pick().unwrap(), other.pick().unwrap()]).collect();
        assert_eq!(picked.iter().collect::<BTreeSet<_>>().len(), picked.len());
        assert!(picked.iter().all(|port| RANGE.contains(port)));
    }

    #[test]
    fn a_port_that_someone_listens_on_is_not_picked() {
        let folder = tempfile::tempdir().unwrap();
        let ports = Ports::new(folder.path().to_path_buf()).unwrap();
        let port = ports.pick().unwrap();
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err());
        assert!((0..300).all(|_| ports.pick().unwrap() != port));
    }
}

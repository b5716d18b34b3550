//! What a sandbox writes down about itself: `state.json` in its run directory.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

/// A process, told apart from a later one with the same number by the time it began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Process id; of a child also its process group.
    pub pid: i32,
    /// Start time in clock ticks since boot; unknown where there is no `/proc`.
    pub began: Option<u64>,
}

impl Identity {
    /// Identifies a running process.
    pub fn of(pid: u32) -> Self {
        let pid = i32::try_from(pid).unwrap_or(i32::MAX);
        Self { pid, began: began(pid) }
    }

    /// Tells whether it still runs; a zombie does not.
    pub fn alive(&self) -> bool {
        if cfg!(target_os = "linux") {
            return began(self.pid).is_some_and(|now| self.began.is_none_or(|then| then == now));
        }
        nix::sys::signal::kill(Pid::from_raw(self.pid), None).is_ok()
    }

    /// Sends a signal to the process alone, if it still is the same one.
    pub fn signal(&self, signal: Signal) {
        if self.alive() {
            // It may end between the look and the signal: then there is nothing left to do.
            nix::sys::signal::kill(Pid::from_raw(self.pid), signal).ok();
        }
    }

    /// Sends a signal to the process group that it leads, if it still is the same one.
    pub fn signal_group(&self, signal: Signal) {
        if self.alive() {
            killpg(Pid::from_raw(self.pid), signal).ok();
        }
    }
}

/// Reads the start time from `/proc/PID/stat`: field 22, counted after the command's closing parenthesis.
fn began(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if fields.first() == Some(&"Z") {
        return None;
    }
    fields.get(19)?.parse().ok()
}

/// How far a sandbox has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Its processes are being started.
    Starting,
    /// It can be used.
    Ready,
    /// It could not be started, and why.
    Failed(String),
}

/// A child process, written down so that `down` can end it when its owner is gone.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Recorded {
    /// What it is called in `status` and in the name of its log.
    pub name: String,
    /// Which process it is.
    pub identity: Identity,
    /// Where its output goes.
    pub log: PathBuf,
}

/// All that is written down about one sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// Name of the sandbox.
    pub name: String,
    /// How far it has come.
    pub phase: Phase,
    /// The process that owns it.
    pub owner: Identity,
    /// The variables that clients of this sandbox need, once known.
    pub env: BTreeMap<String, String>,
    /// Its child processes.
    pub processes: Vec<Recorded>,
}

impl State {
    /// Reads the state of the sandbox in a run directory; nothing when there is none.
    ///
    /// # Errors
    /// When the file is there and cannot be understood.
    pub fn read(run_dir: &Path) -> Result<Option<Self>> {
        let path = file(run_dir);
        match std::fs::read(&path) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?)),
            // A stray file among the run directories is nobody's sandbox.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }
}

fn file(run_dir: &Path) -> PathBuf {
    run_dir.join("state.json")
}

/// Keeps a sandbox's state in memory and on disk alike; clones share it.
#[derive(Clone)]
pub struct Journal {
    run_dir: PathBuf,
    state: Arc<Mutex<State>>,
}

impl Journal {
    /// Begins the journal of a sandbox that this process owns.
    ///
    /// # Errors
    /// When the run directory cannot be written.
    pub fn begin(run_dir: &Path, name: &str) -> Result<Self> {
        std::fs::create_dir_all(run_dir).with_context(|| format!("making {}", run_dir.display()))?;
        let state = State {
            name: name.to_owned(),
            phase: Phase::Starting,
            owner: Identity::of(std::process::id()),
            env: BTreeMap::new(),
            processes: Vec::new(),
        };
        let journal = Self { run_dir: run_dir.to_path_buf(), state: Arc::new(Mutex::new(state)) };
        journal.edit(|_| ())?;
        Ok(journal)
    }

    /// Changes the state and writes it to disk before anyone else changes it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn edit(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        let (fresh, path) = (self.run_dir.join("state.json.new"), file(&self.run_dir));
        std::fs::write(&fresh, serde_json::to_vec_pretty(&*state)?)
            .and_then(|()| std::fs::rename(&fresh, &path))
            .with_context(|| format!("writing {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_its_beginning() {
        let own = Identity::of(std::process::id());
        assert!(own.alive());
        if cfg!(target_os = "linux") {
            assert!(
                !Identity { began: own.began.map(|began| began + 1), ..own }.alive(),
                "a later process with this number"
            );
        }
    }

    #[test]
    fn a_journal_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        assert!(State::read(folder.path()).unwrap().is_none());
        let journal = Journal::begin(folder.path(), "one").unwrap();
        journal.edit(|state| state.phase = Phase::Failed("no etcd".to_owned())).unwrap();
        let state = State::read(folder.path()).unwrap().unwrap();
        assert_eq!((state.name.as_str(), state.phase), ("one", Phase::Failed("no etcd".to_owned())));
        assert!(state.owner.alive());
    }
}

//! Child processes: each in a process group of its own, with a log, written down, and ended by its id.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use std::os::unix::process::CommandExt as _;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use crate::state::{Identity, Journal, Recorded};

/// How long a child may take to end by itself: nothing in a sandbox is worth saving.
const GRACE: Duration = Duration::from_secs(2);
/// How often a child is asked whether it has ended.
const POLL: Duration = Duration::from_millis(20);
/// How much of a log is told when its process failed.
const TAIL_LINES: usize = 15;

struct Running {
    number: u64,
    identity: Identity,
    child: Child,
}

impl Running {
    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

#[derive(Default)]
struct Table {
    next: u64,
    running: Vec<Running>,
}

/// Starts child processes and ends them; clones share the children, and the last one that goes kills what still runs.
#[derive(Clone)]
pub struct Processes {
    shared: Arc<Shared>,
}

struct Shared {
    journal: Journal,
    log_dir: PathBuf,
    table: Mutex<Table>,
}

/// A child process that was started; dropping the handle leaves it running.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    number: u64,
    /// What it is called.
    pub name: String,
    /// Process id, also of its group.
    pub pid: u32,
    /// Where its output goes.
    pub log: PathBuf,
}

impl Processes {
    /// Keeps logs in a folder and the list of children in a journal.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn new(journal: Journal, log_dir: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&log_dir).with_context(|| format!("making {}", log_dir.display()))?;
        Ok(Self { shared: Arc::new(Shared { journal, log_dir, table: Mutex::default() }) })
    }

    /// Starts a program with its output going to `NAME.log`, appended when the name was used before.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(&self, name: &str, command: &mut Command) -> Result<Handle> {
        let log = self.shared.log_dir.join(format!("{name}.log"));
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("opening {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {name} ({})", command.get_program().display()))?;
        let (pid, identity) = (child.id(), Identity::of(child.id()));
        let number = {
            let mut table = self.shared.table();
            table.next += 1;
            let number = table.next;
            table.running.push(Running { number, identity: identity.clone(), child });
            number
        };
        let recorded = Recorded { name: name.to_owned(), identity, log: log.clone() };
        self.shared.journal.edit(|state| state.processes.push(recorded))?;
        Ok(Handle { shared: Arc::clone(&self.shared), number, name: name.to_owned(), pid, log })
    }

    /// Ends all children: asks them all, waits a little, kills what is left.
    pub async fn stop_all(&self) {
        let running = std::mem::take(&mut self.shared.table().running);
        end(running, GRACE, &self.shared.journal).await;
    }

    /// Kills all children at once, for when there is no time to wait.
    pub fn kill_all(&self) {
        kill(&mut self.shared.table().running);
    }
}

impl Handle {
    /// Returns how the process ended, or nothing while it runs. One that was stopped counts as ended.
    pub fn exited(&self) -> Option<Option<ExitStatus>> {
        let mut table = self.shared.table();
        match table.running.iter_mut().find(|running| running.number == self.number) {
            Some(running) => running.ended().map(Some),
            None => Some(None),
        }
    }

    /// Asks the process group to end, and kills it after the grace.
    pub async fn stop(&self, grace: Duration) {
        let taken = {
            let mut table = self.shared.table();
            let position = table.running.iter().position(|running| running.number == self.number);
            position.map(|position| table.running.remove(position))
        };
        end(taken.into_iter().collect(), grace, &self.shared.journal).await;
    }

    /// Fails when the process has ended, with the end of its log.
    ///
    /// # Errors
    /// When it has ended.
    pub fn check(&self) -> Result<()> {
        match self.exited() {
            None => Ok(()),
            Some(status) => {
                let status = status.map_or_else(|| "it was stopped".to_owned(), |status| status.to_string());
                anyhow::bail!("{} ended ({status}); the end of {}:\n{}", self.name, self.log.display(), tail(&self.log))
            }
        }
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        kill(&mut self.table.get_mut().unwrap_or_else(PoisonError::into_inner).running);
    }
}

fn kill(running: &mut Vec<Running>) {
    for mut one in running.drain(..) {
        if one.ended().is_none() {
            one.identity.signal_group(Signal::SIGKILL);
            one.child.wait().ok();
        }
    }
}

async fn end(mut running: Vec<Running>, grace: Duration, journal: &Journal) {
    running.retain_mut(|one| {
        if one.ended().is_none() {
            one.identity.signal_group(Signal::SIGTERM);
        }
        forget(journal, &one.identity);
        one.ended().is_none()
    });
    let begin = Instant::now();
    while !running.is_empty() && begin.elapsed() < grace {
        tokio::time::sleep(POLL).await;
        running.retain_mut(|one| one.ended().is_none());
    }
    for mut one in running {
        one.identity.signal_group(Signal::SIGKILL);
        one.child.wait().ok();
    }
}

fn forget(journal: &Journal, identity: &Identity) {
    if let Err(error) = journal.edit(|state| state.processes.retain(|recorded| recorded.identity != *identity)) {
        tracing::warn!(%error, "the journal could not be written");
    }
}

/// Ends processes that a sandbox left behind whose owner is gone.
pub fn end_recorded(recorded: &[Recorded]) {
    for one in recorded {
        one.identity.signal_group(Signal::SIGTERM);
    }
    let begin = Instant::now();
    while recorded.iter().any(|one| one.identity.alive()) && begin.elapsed() < GRACE {
        std::thread::sleep(POLL);
    }
    for one in recorded {
        one.identity.signal_group(Signal::SIGKILL);
    }
}

/// Returns the last lines of a log.
pub fn tail(log: &Path) -> String {
    last_lines(log, TAIL_LINES)
}

/// Returns at most `count` last lines of a log.
pub fn last_lines(log: &Path, count: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::State;

    fn stand(folder: &Path) -> Processes {
        Processes::new(Journal::begin(folder, "test").unwrap(), folder.join("log")).unwrap()
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_child_that_ignores_sigterm_is_killed_with_its_own_children() {
        let folder = tempfile::tempdir().unwrap();
        let processes = stand(folder.path());
        let handle =
            processes.start("stubborn", &mut shell("trap '' TERM; sleep 1000 & echo $!; wait; sleep 1000")).unwrap();
        while !std::fs::read_to_string(&handle.log).unwrap().ends_with('\n') {
            tokio::time::sleep(POLL).await;
        }
        let inner: u32 = std::fs::read_to_string(&handle.log).unwrap().trim().parse().unwrap();
        let inner = Identity::of(inner);
        assert!(inner.alive() && handle.check().is_ok());
        assert_eq!(State::read(folder.path()).unwrap().unwrap().processes.len(), 1);
        handle.stop(Duration::from_millis(100)).await;
        for _ in 0..100 {
            if !inner.alive() {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        assert!(!inner.alive(), "the child's child outlived it");
        assert!(handle.check().is_err());
        assert_eq!(State::read(folder.path()).unwrap().unwrap().processes.len(), 0);
    }

    #[tokio::test]
    async fn dropping_everything_ends_the_children_and_failures_show_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let processes = stand(folder.path());
        let sleeper = processes.start("sleeper", &mut shell("sleep 1000")).unwrap();
        let failed = processes.start("failed", &mut shell("echo no such flag; exit 3")).unwrap();
        while failed.exited().is_none() {
            tokio::time::sleep(POLL).await;
        }
        let message = failed.check().unwrap_err().to_string();
        assert!(message.contains("no such flag") && message.contains('3'), "{message}");
        let identity = Identity::of(sleeper.pid);
        drop((processes, sleeper, failed));
        assert!(!identity.alive());
    }
}

//! Watches how much memory the controller of one sandbox keeps resident.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How often the processes are looked at.
const PERIOD: Duration = Duration::from_millis(500);

/// A watch that runs until it is stopped.
pub struct Watch {
    stop: CancellationToken,
    task: JoinHandle<Option<f64>>,
}

impl Watch {
    /// Starts to watch the processes that run `program` and were started for the sandbox with these logs.
    ///
    /// Two demos may run side by side: a process counts when its environment names a path in this sandbox's run directory.
    pub fn start(program: &Path, logs: &Path) -> Self {
        let stop = CancellationToken::new();
        let (program, run_dir) = (program.to_path_buf(), logs.parent().unwrap_or(logs).to_path_buf());
        let token = stop.clone();
        let task = tokio::spawn(async move {
            let mut peak = None;
            while !token.is_cancelled() {
                for resident in resident(&program, &run_dir) {
                    peak = Some(resident.max(peak.unwrap_or_default()));
                }
                tokio::select! {
                    () = token.cancelled() => {}
                    () = tokio::time::sleep(PERIOD) => {}
                }
            }
            peak
        });
        Self { stop, task }
    }

    /// Stops and returns the most that was seen, in MiB; nothing when no such process was seen.
    pub async fn stop(self) -> Option<f64> {
        self.stop.cancel();
        self.task.await.unwrap_or(None)
    }
}

/// Reads the resident set of each such process from `/proc`, in MiB.
fn resident(program: &Path, run_dir: &Path) -> Vec<f64> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .map(|entry| entry.path())
        .filter(|process| runs(process, program, run_dir))
        .filter_map(|process| vm_rss(&std::fs::read_to_string(process.join("status")).ok()?))
        .collect()
}

fn runs(process: &Path, program: &Path, run_dir: &Path) -> bool {
    let same = |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target == program);
    let mentions = |file: PathBuf| {
        let needle = run_dir.as_os_str().as_encoded_bytes();
        std::fs::read(file).is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle))
    };
    same(process.join("exe")) && mentions(process.join("environ"))
}

fn vm_rss(status: &str) -> Option<f64> {
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?;
    kibibytes.trim().parse::<f64>().ok().map(|kib| kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_mebibytes() {
        assert_eq!(vm_rss("Name:\tkarp\nVmRSS:\t   61440 kB\nThreads:\t2\n"), Some(60.0));
        assert_eq!(vm_rss("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn this_process_is_found_by_program_and_environment() {
        let program = std::env::current_exe().unwrap();
        let home = std::env::var_os("PATH").unwrap();
        assert!(!resident(&program, Path::new(&home)).is_empty());
        assert!(resident(&program, Path::new("/no/such/run/directory")).is_empty());
    }
}

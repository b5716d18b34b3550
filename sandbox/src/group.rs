//! A command that is run to its end, or ended with everything under it when it is given up.

use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::process::Child;

/// A child in a process group of its own; dropping it asks the whole group to end.
pub struct Group {
    child: Child,
    leader: Option<Pid>,
}

impl Group {
    /// Starts a command, without standard input.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null());
        let program = command.get_program().to_owned();
        let child = tokio::process::Command::from(command)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let leader = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
        Ok(Self { child, leader })
    }

    /// Waits for its end; may be called again after it was dropped halfway.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub async fn wait(&mut self) -> Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.leader = None;
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            // The leader is not reaped yet, so the number is still its own.
            killpg(leader, Signal::SIGTERM).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::state::Identity;

    #[tokio::test]
    async fn a_command_that_is_given_up_ends_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("pid");
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("sleep 1000 & echo $! > {}; wait", log.display()));
        let mut group = Group::start(command).unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(500), group.wait()).await.is_err());
        let inner = Identity::of(std::fs::read_to_string(&log).unwrap().trim().parse().unwrap());
        assert!(inner.alive());
        drop(group);
        for _ in 0..100 {
            if !inner.alive() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("what the command started outlived it");
    }
}

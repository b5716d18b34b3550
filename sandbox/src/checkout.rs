//! What git tells of the checkout.

use std::{path::Path, process::Command};

/// Runs git in a checkout; gives what it printed, and nothing where it failed or is not there.
pub(crate) fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let answer = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    answer.status.success().then(|| String::from_utf8_lossy(&answer.stdout).trim().to_owned())
}

/// Names the commit, with `-dirty` where files differ from it; nothing outside a repository.
pub(crate) fn commit(root: &Path) -> Option<String> {
    let commit = git(root, &["rev-parse", "HEAD"])?;
    let clean = git(root, &["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if clean { commit } else { format!("{commit}-dirty") })
}

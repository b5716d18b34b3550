//! What is told of an `exec` command that gives no credentials: never what it was given and what it printed, which may be secret.

use std::error::Error as StdError;
use std::process::ExitStatus;

use kube::client::AuthError;

/// What is wrong with the `exec` command of a kubeconfig or of a provider block; its subject is the command.
#[derive(Debug, thiserror::Error)]
pub enum NoCredentials {
    #[error("cannot be started ({0}): install it, or give its whole path")]
    Start(std::io::ErrorKind),
    #[error("gave no credentials ({0}): run it by hand to see why")]
    Failed(ExitStatus),
    #[error("printed no ExecCredential that can be read: run it by hand to see what it prints")]
    Unreadable,
}

impl NoCredentials {
    /// Returns what an error tells of such a command, however deep in it; kube's own words have the command's variables and all that it printed.
    #[must_use]
    pub fn behind(error: &(dyn StdError + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            match error.downcast_ref::<AuthError>() {
                Some(AuthError::AuthExecStart(error)) => return Some(Self::Start(error.kind())),
                Some(AuthError::AuthExecRun { out, .. }) => return Some(Self::Failed(out.status)),
                Some(AuthError::AuthExecParse(_)) => return Some(Self::Unreadable),
                _ => next = error.source(),
            }
        }
        None
    }
}

//! Pods of the Fargate profile, run as local processes.

use tokio_util::sync::CancellationToken;

use crate::context::Context;

/// Serves until it is stopped.
///
/// # Errors
/// When it cannot serve.
pub async fn run(_context: Context, stop: CancellationToken) -> anyhow::Result<()> {
    stop.cancelled().await;
    Ok(())
}

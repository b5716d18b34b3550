//! Keeps what is known of missing capacity: for the next start, and for `karp explain` and `karp snapshot`.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Context;

/// What is refused together is written together.
const PAUSE: Duration = Duration::from_secs(2);
/// What reservations have left changes without a refusal, too.
const LOOK: Duration = Duration::from_secs(60);

/// Writes until `stop` is cancelled.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    loop {
        let news = async {
            tokio::select! {
                () = context.unavailable.changed() => tokio::time::sleep(PAUSE).await,
                () = tokio::time::sleep(LOOK) => {}
            }
        };
        tokio::select! {
            () = stop.cancelled() => {
                // the next process starts now, and asks
                context.unavailable.keep(context.cloud.reservations()).await;
                return;
            }
            () = news => {}
        }
        context.unavailable.keep(context.cloud.reservations()).await;
    }
}

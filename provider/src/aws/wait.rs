//! Waiting for AWS: repeating a call until the world agrees, never longer than asked, never after Terraform's stop.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::report::{Failure, Kind};

/// IAM says that changes reach all places "within seconds"; 60 s is also SQS's rule for the reuse of a queue's name.
pub const SETTLE_LIMIT: Duration = Duration::from_secs(65);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Repeats `call` while it answers [`Kind::Unsettled`], with growing pauses, for at most [`SETTLE_LIMIT`].
pub async fn settle<T, F, Fut>(stop: &CancellationToken, call: F) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    settle_within(stop, SETTLE_LIMIT, call).await
}

/// Repeats `call` while it answers "not settled yet", for at most `limit`.
pub async fn settle_within<T, F, Fut>(stop: &CancellationToken, limit: Duration, mut call: F) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    loop {
        match call().await {
            Err(failure) if failure.kind == Kind::Unsettled && Instant::now() + pause < deadline => {
                tracing::debug!(doing = failure.doing, answer = failure.message, "not settled yet");
                rest(stop, pause, &failure.doing).await?;
                pause = (pause * 3 / 2).min(LONGEST_PAUSE);
            }
            answer => return answer,
        }
    }
}

/// Repeats `probe` until it answers a value. `doing` names the wait in the diagnostic of a timeout.
pub async fn until<T, F, Fut>(
    stop: &CancellationToken,
    limit: Duration,
    doing: &str,
    mut probe: F,
) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>, Failure>>,
{
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(value) = probe().await? {
            return Ok(value);
        }
        if Instant::now() + pause > deadline {
            return Err(Failure::new(Kind::TimedOut, doing, format!("it did not happen within {} s", limit.as_secs())));
        }
        rest(stop, pause, doing).await?;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}

async fn rest(stop: &CancellationToken, pause: Duration, doing: &str) -> Result<(), Failure> {
    tokio::select! {
        () = tokio::time::sleep(pause) => Ok(()),
        () = stop.cancelled() => Err(Failure::new(Kind::Interrupted, doing, "Terraform asked to stop")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn settling_ends_with_the_answer_or_the_limit() {
        let stop = CancellationToken::new();
        let mut calls = 0;
        let answer = settle(&stop, || {
            calls += 1;
            let done = calls == 2;
            async move { if done { Ok(7) } else { Err(Failure::new(Kind::Unsettled, "x", "soon")) } }
        });
        assert_eq!(answer.await.unwrap(), 7);

        let started = Instant::now();
        let limit = Duration::from_millis(400);
        let never = || async { Err::<(), _>(Failure::new(Kind::Unsettled, "x", "soon")) };
        assert_eq!(settle_within(&stop, limit, never).await.unwrap_err().kind, Kind::Unsettled);
        assert!(started.elapsed() <= limit);
    }

    #[tokio::test]
    async fn a_stop_ends_the_wait_at_once() {
        let stop = CancellationToken::new();
        stop.cancel();
        let answer = until(&stop, Duration::from_secs(600), "wait for x", || async { Ok(None::<()>) }).await;
        assert_eq!(answer.unwrap_err().kind, Kind::Interrupted);
    }
}

//! Waiting for AWS: repeating a call until the world agrees, never longer than asked, never after Terraform's stop.

use std::future::Future;
use std::time::Duration;

use tfplugin::Context;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::report::{Failure, Kind};

/// IAM says that changes reach all places "within seconds"; 60 s is also SQS's rule for the reuse of a queue's name.
pub const SETTLE_LIMIT: Duration = Duration::from_secs(65);
/// What was taken off something a moment ago may count as on it for some seconds.
const DETACHED_LIMIT: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Repeats `call` while it answers [`Kind::Unsettled`], with growing pauses, for at most [`SETTLE_LIMIT`] and never past the operation's
/// own limit. A call that is under way is never cut off: it may make something that no state would know of.
pub async fn settle<T, F, Fut>(ctx: &Context, doing: &str, call: F) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    settle_within(ctx, SETTLE_LIMIT, doing, call).await
}

/// Repeats `call` while it answers "not settled yet", for at most `limit`; where the operation's own limit comes first, that is what the error
/// tells, with the last answer.
pub async fn settle_within<T, F, Fut>(ctx: &Context, limit: Duration, doing: &str, mut call: F) -> Result<T, Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    in_time(ctx, doing)?;
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    loop {
        match call().await {
            Err(failure) if failure.kind == Kind::Unsettled => {
                tracing::debug!(doing, answer = failure.message, "not settled yet");
                if ctx.remaining() <= pause {
                    return Err(late(ctx, doing, &format!("; the last answer was: {}", failure.message)));
                }
                if Instant::now() + pause >= deadline {
                    return Err(failure);
                }
                rest(ctx.stop(), pause, doing).await?;
                pause = (pause * 3 / 2).min(LONGEST_PAUSE);
            }
            answer => return answer,
        }
    }
}

/// Deletes, as [`settle`] repeats a call; an object that is gone already is fine.
pub async fn gone<F, Fut>(ctx: &Context, doing: &str, call: F) -> Result<(), Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    match settle(ctx, doing, call).await {
        Err(failure) if failure.is_missing() => Ok(()),
        answer => answer,
    }
}

/// Deletes what something else was taken off a moment ago: repeats `call` while it answers that the object is still in use, which it says at last
/// where that does not pass. An object that is gone already is fine.
pub async fn detached<F, Fut>(ctx: &Context, doing: &str, call: F) -> Result<(), Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    detached_within(ctx, DETACHED_LIMIT, doing, call).await
}

/// The same for at most `limit`.
pub async fn detached_within<F, Fut>(ctx: &Context, limit: Duration, doing: &str, mut call: F) -> Result<(), Failure>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    let answer = settle_within(ctx, limit, doing, || {
        let answer = call();
        async move { answer.await.map_err(|failure| failure.unsettled_if(|failure| failure.kind == Kind::InUse)) }
    });
    match answer.await {
        Err(failure) if failure.is_missing() => Ok(()),
        Err(failure) if failure.kind == Kind::Unsettled => Err(failure.of_kind(Kind::InUse)),
        answer => answer,
    }
}

/// Refuses to begin one more step of an operation whose time is over. What the steps before it made is in state by then.
pub fn in_time(ctx: &Context, doing: &str) -> Result<(), Failure> {
    if ctx.remaining().is_zero() { Err(late(ctx, doing, "")) } else { Ok(()) }
}

fn late(ctx: &Context, doing: &str, more: &str) -> Failure {
    let limit = ctx.limit().as_secs_f64();
    Failure::new(Kind::TimedOut, doing, format!("the operation's limit of {limit} s is over{more}"))
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
        let ctx = Context::new(CancellationToken::new(), Duration::from_secs(600));
        let mut calls = 0;
        let answer = settle(&ctx, "x", || {
            calls += 1;
            let done = calls == 2;
            async move { if done { Ok(7) } else { Err(Failure::new(Kind::Unsettled, "x", "soon")) } }
        });
        assert_eq!(answer.await.unwrap(), 7);

        let started = Instant::now();
        let limit = Duration::from_millis(400);
        let never = || async { Err::<(), _>(Failure::new(Kind::Unsettled, "x", "soon")) };
        assert_eq!(settle_within(&ctx, limit, "x", never).await.unwrap_err().kind, Kind::Unsettled);
        assert!(started.elapsed() <= limit);
    }

    #[tokio::test]
    async fn the_operations_limit_ends_it_with_the_last_answer() {
        let limit = Duration::from_millis(400);
        let ctx = Context::new(CancellationToken::new(), limit);
        let started = Instant::now();
        let never = || async { Err::<(), _>(Failure::new(Kind::Unsettled, "x", "no such role")) };
        let late = settle(&ctx, "create x", never).await.unwrap_err();
        assert_eq!((late.kind, late.doing.as_str()), (Kind::TimedOut, "create x"));
        assert!(late.message.contains("0.4 s") && late.message.contains("no such role"), "{}", late.message);
        assert!(started.elapsed() <= limit);

        let over = Context::new(CancellationToken::new(), Duration::ZERO);
        let unasked = || async { panic!("there is no time to ask") };
        assert_eq!(settle::<(), _, _>(&over, "x", unasked).await.unwrap_err().kind, Kind::TimedOut);
    }

    #[tokio::test]
    async fn what_is_in_use_is_waited_for_and_told_in_the_end() {
        let ctx = Context::new(CancellationToken::new(), Duration::from_secs(600));
        let answers = |kinds: [Kind; 2]| {
            let mut kinds = kinds.into_iter();
            move || {
                let kind = kinds.next().unwrap_or(Kind::Missing);
                async move { Err::<(), _>(Failure::new(kind, "x", "no")) }
            }
        };
        assert!(detached(&ctx, "x", answers([Kind::InUse, Kind::Unsettled])).await.is_ok(), "it is gone by then");
        let refused = detached(&ctx, "x", answers([Kind::InUse, Kind::Denied])).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Denied);
        let always = || async { Err::<(), _>(Failure::new(Kind::InUse, "x", "no")) };
        let refused = detached_within(&ctx, Duration::from_millis(300), "x", always).await.unwrap_err();
        assert_eq!(refused.kind, Kind::InUse);
    }

    #[tokio::test]
    async fn a_stop_ends_the_wait_at_once() {
        let stop = CancellationToken::new();
        stop.cancel();
        let answer = until(&stop, Duration::from_secs(600), "wait for x", || async { Ok(None::<()>) }).await;
        assert_eq!(answer.unwrap_err().kind, Kind::Interrupted);
    }
}

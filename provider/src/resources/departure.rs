//! Waiting for what only a controller takes away: in rounds, with progress in the log, and no longer than a controller is at work.

use std::future::Future;
use std::time::Duration;

use karp_kube::Error;
use karp_kube::wait::{self, Look, Until, WaitError};
use kube::Client;
use tfplugin::{Context, Interrupted};
use tokio::time::Instant;

use super::custom_object::{NOTHING_SEEN, latest, seeing, waited, within};
use super::node_claims::Leaders;
use crate::report::Failure;
use crate::session::borne;

/// Progress is logged this often.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// What is kept of the time limit to report and to store state.
const RESERVE: Duration = Duration::from_secs(5);

/// How a wait ended; what was seen last where something is left.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing is left.
    Gone,
    /// A controller is at work, and was not done in time.
    Late(String),
    /// No controller is at work.
    Abandoned(String),
}

/// What is waited for, and how long.
pub struct Departure<'a> {
    /// What goes on, for the log and for errors.
    pub doing: &'a str,
    /// The longest wait; the operation's own limit holds besides.
    pub patience: Duration,
    /// A controller may take this long to appear.
    pub grace: Duration,
}

impl Departure<'_> {
    /// Looks until nothing is left, once at least. `connect` gives a client for each round, since a token lives 15 minutes and a drain may take an hour;
    /// none where the cluster is gone.
    pub async fn watch<C, L>(
        &self,
        ctx: &Context,
        connect: impl Fn() -> C,
        look: impl Fn(Client) -> L,
    ) -> Result<End, Failure>
    where
        C: Future<Output = Result<Option<Client>, Failure>>,
        L: Future<Output = Result<Look<()>, Error>>,
    {
        let begin = Instant::now();
        let limit = within(ctx, RESERVE).at_most(self.patience);
        let mut leaders = Leaders::default();
        let mut last = NOTHING_SEEN.to_owned();
        loop {
            let client = match borne(ctx, self.doing, &connect).await {
                Ok(Ok(Some(client))) => client,
                Ok(Ok(None)) => return Ok(End::Gone),
                Ok(Err(failure)) if failure.passes() && Instant::now() >= limit.deadline => return Ok(End::Late(last)),
                Ok(Err(failure)) => return Err(failure),
                Err(Interrupted::TimedOut { .. }) => return Ok(End::Late(last)),
                Err(Interrupted::Stopped) => return Err(waited(self.doing, WaitError::Cancelled { seen: last })),
            };
            // Who renews its lease meanwhile is seen after the round; a stop, in the round or before the next one.
            let _ = ctx.run(leaders.at_work(&client, begin.elapsed())).await;
            let deadline = limit.deadline.min(Instant::now() + REPORT_EVERY);
            let round = Until { deadline, ..limit.clone() };
            let seen = match wait::until(&round, || look(client.clone())).await {
                Ok(()) => return Ok(End::Gone),
                Err(WaitError::TimedOut { seen }) => latest(last, seen),
                Err(error) => return Err(waited(self.doing, seeing(last, error))),
            };
            tracing::info!(left = %seen, "waiting to {}", self.doing);
            let at_work = ctx.run(leaders.at_work(&client, begin.elapsed())).await.unwrap_or(true);
            if begin.elapsed() >= self.grace && !at_work {
                return Ok(End::Abandoned(seen));
            }
            if Instant::now() >= limit.deadline {
                return Ok(End::Late(seen));
            }
            last = seen;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::report::Kind;

    /// Waits with an API server that answers the second time that it is asked which cluster it is; that is gone by then.
    async fn ended(kind: Kind, stop: CancellationToken) -> (Result<End, Failure>, u32) {
        let ctx = Context::new(stop, Duration::from_secs(600));
        let departure = Departure { doing: "end it", patience: Duration::MAX, grace: Duration::ZERO };
        let asked = Cell::new(0);
        let connect = || async {
            asked.set(asked.get() + 1);
            if asked.get() < 2 { Err(Failure::new(kind, "look", "no answer")) } else { Ok(None) }
        };
        let look = |_| async { Ok(Look::Done(())) };
        (departure.watch(&ctx, connect, look).await, asked.get())
    }

    #[tokio::test]
    async fn an_api_server_that_is_away_for_a_moment_ends_no_wait() {
        for kind in [Kind::Unreachable, Kind::Throttled] {
            let (end, asked) = ended(kind, CancellationToken::new()).await;
            assert_eq!((end.unwrap(), asked), (End::Gone, 2));
        }
        let (end, asked) = ended(Kind::Denied, CancellationToken::new()).await;
        assert_eq!((end.unwrap_err().kind, asked), (Kind::Denied, 1), "what does not pass is not tried again");
        let stopped = CancellationToken::new();
        stopped.cancel();
        let (end, asked) = ended(Kind::Unreachable, stopped).await;
        assert_eq!((end.unwrap_err().kind, asked), (Kind::Interrupted, 0));
    }
}

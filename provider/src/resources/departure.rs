//! Waiting for what only a controller takes away: in rounds, with progress in the log, and no longer than a controller is at work.

use std::future::Future;
use std::time::Duration;

use karp_kube::Error;
use karp_kube::wait::{self, Look, Until, WaitError};
use kube::Client;
use tfplugin::Context;
use tokio::time::Instant;

use super::custom_object::{waited, within};
use super::node_claims::Leaders;
use crate::report::Failure;

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
        loop {
            let Some(client) = connect().await? else { return Ok(End::Gone) };
            // Who renews its lease meanwhile is seen after the round; a stop, in the round.
            let _ = ctx.run(leaders.at_work(&client, begin.elapsed())).await;
            let deadline = limit.deadline.min(Instant::now() + REPORT_EVERY);
            let round = Until { deadline, ..limit.clone() };
            let seen = match wait::until(&round, || look(client.clone())).await {
                Ok(()) => return Ok(End::Gone),
                Err(WaitError::TimedOut { seen }) => seen,
                Err(error) => return Err(waited(self.doing, error)),
            };
            tracing::info!(left = %seen, "waiting to {}", self.doing);
            let at_work = leaders.at_work(&client, begin.elapsed()).await;
            if begin.elapsed() >= self.grace && !at_work {
                return Ok(End::Abandoned(seen));
            }
            if Instant::now() >= limit.deadline {
                return Ok(End::Late(seen));
            }
        }
    }
}

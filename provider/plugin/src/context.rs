//! What an operation of a resource may ask of the plugin: stop token, time limit, private state, progress.

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Diagnostic, Diagnostics, Value};

/// How long a call that makes something may take to be answered once its operation ought to end: an answer that is on its way comes within
/// this, and who pressed Ctrl-C waits no longer for a server that does not answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// Why a wait ended before its aim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Interrupted {
    /// The user stopped Terraform: return quickly, with what exists.
    #[error("the operation was stopped")]
    Stopped,
    /// The operation's time limit passed.
    #[error("the operation took longer than its limit of {}", humane(*limit))]
    TimedOut {
        /// The limit that passed.
        limit: Duration,
    },
}

impl From<Interrupted> for Diagnostics {
    fn from(interrupted: Interrupted) -> Self {
        let (summary, detail) = match interrupted {
            Interrupted::Stopped => (
                "Stopped",
                "Terraform was interrupted. What exists so far is kept in state; apply again to go on.".to_string(),
            ),
            Interrupted::TimedOut { limit } => (
                "Timed out",
                format!(
                    "It took longer than {}. Look at what holds it up; where it only needs longer, raise the limit in `timeouts`. What \
                     exists by now is kept in the state, and the next apply goes on from there.",
                    humane(limit)
                ),
            ),
        };
        Diagnostic::error(summary, detail).into()
    }
}

/// Writes a limit as people do: `20m`, `90s`.
pub(crate) fn humane(limit: Duration) -> String {
    let seconds = limit.as_secs();
    match seconds {
        0 => format!("{}ms", limit.as_millis()),
        _ if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}

#[derive(Debug, Default)]
struct Record {
    saved: Option<Value>,
    private: Vec<u8>,
    warnings: Diagnostics,
}

/// The surroundings of one operation.
#[derive(Debug)]
pub struct Context {
    stop: CancellationToken,
    deadline: Instant,
    limit: Duration,
    config: Value,
    record: Mutex<Record>,
}

impl Context {
    /// Makes the surroundings of an operation that ends by `stop` or after `limit`.
    #[must_use]
    pub fn new(stop: CancellationToken, limit: Duration) -> Self {
        Self { stop, deadline: Instant::now() + limit, limit, config: Value::Null, record: Mutex::default() }
    }

    /// Adds what the user wrote, for operations that have it.
    #[must_use]
    pub fn with_config(mut self, config: Value) -> Self {
        self.config = config;
        self
    }

    /// What the user wrote, write-only attributes included; null where there is no configuration (read, delete, import).
    #[must_use]
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The token that is cancelled when the user stops Terraform.
    #[must_use]
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// The time limit of the whole operation: the user's `timeouts`, or the schema's default.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// What is left of the time limit.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Runs a future until it is done, the user stops, or the time limit passes.
    ///
    /// # Errors
    /// Which of the two ended it.
    pub async fn run<T>(&self, future: impl Future<Output = T>) -> Result<T, Interrupted> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Interrupted::Stopped),
            done = future => Ok(done),
            () = tokio::time::sleep_until(self.deadline) => Err(Interrupted::TimedOut { limit: self.limit }),
        }
    }

    /// Runs a call that makes something until it is answered: one that is cut off may have made what no state knows of. Where the user
    /// stops or the time limit passes meanwhile, its answer may take ten more seconds; where that was before, the call is not begun.
    ///
    /// # Errors
    /// Which of the two ended it.
    pub async fn carry_out<T>(&self, call: impl Future<Output = T>) -> Result<T, Interrupted> {
        if self.stop.is_cancelled() {
            return Err(Interrupted::Stopped);
        }
        if self.remaining().is_zero() {
            return Err(Interrupted::TimedOut { limit: self.limit });
        }
        self.answered(ANSWER_PATIENCE, call).await
    }

    /// Runs a call to its answer, and for `patience` beyond the end of the operation.
    async fn answered<T>(&self, patience: Duration, call: impl Future<Output = T>) -> Result<T, Interrupted> {
        let mut call = pin!(call);
        match self.run(&mut call).await {
            Ok(answer) => Ok(answer),
            Err(interrupted) => tokio::time::timeout(patience, call).await.map_err(|_| interrupted),
        }
    }

    /// Sleeps between two looks at something; every wait loop uses this.
    ///
    /// # Errors
    /// When the user stops or the time limit passes.
    pub async fn sleep(&self, pause: Duration) -> Result<(), Interrupted> {
        self.run(tokio::time::sleep(pause)).await
    }

    /// Records what exists so far. When the operation then fails (or panics), this is what state keeps; call it after the
    /// first call that makes something, and again after each further one.
    pub fn save(&self, state: Value) {
        self.record().saved = Some(state);
    }

    /// Shows a warning, whether the operation fails or not.
    pub fn warn(&self, warning: Diagnostic) {
        self.record().warnings.push(warning);
    }

    /// The bytes that this resource's last operation kept privately; empty at first.
    #[must_use]
    pub fn private(&self) -> Vec<u8> {
        self.record().private.clone()
    }

    /// Keeps bytes beside the state that no user sees.
    pub fn set_private(&self, private: Vec<u8>) {
        self.record().private = private;
    }

    pub(crate) fn take_saved(&self) -> Option<Value> {
        self.record().saved.take()
    }

    pub(crate) fn take_warnings(&self) -> Diagnostics {
        std::mem::take(&mut self.record().warnings)
    }

    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ctx(milliseconds: u64) -> Context {
        Context::new(CancellationToken::new(), Duration::from_millis(milliseconds))
    }

    /// Takes so many milliseconds.
    async fn call(milliseconds: u64) -> &'static str {
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        "made"
    }

    #[tokio::test]
    async fn what_is_under_way_is_answered_although_the_user_stops() {
        let ctx = ctx(600_000);
        let stops = async {
            call(20).await;
            ctx.stop().cancel();
        };
        let (answer, ()) = tokio::join!(ctx.carry_out(call(100)), stops);
        assert_eq!(answer, Ok("made"));
        let begun = async { panic!("it was stopped before") };
        assert_eq!(ctx.carry_out::<()>(begun).await, Err(Interrupted::Stopped));
    }

    #[tokio::test]
    async fn the_limit_leaves_an_answer_its_time_and_no_more() {
        let late = |milliseconds| Err(Interrupted::TimedOut { limit: Duration::from_millis(milliseconds) });
        assert_eq!(ctx(20).carry_out(call(100)).await, Ok("made"));
        assert_eq!(ctx(20).answered(Duration::from_millis(50), call(60_000)).await, late(20));
        assert_eq!(ctx(0).carry_out(call(0)).await, late(0));
    }
}

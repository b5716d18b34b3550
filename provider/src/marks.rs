//! Marks on what is being created. A provider that is killed has answered nothing, so no state knows of what it had begun: the next apply meets an
//! object of the wanted name, and must tell its own from somebody else's. The mark tells: it is put on with the creation itself, and taken off
//! once the answer has reached Terraform, which is a moment after it was given.
//!
//! Why at that time, and what a mark that stays means: `docs/decisions/0019-unfinished-creations.md`.

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::report::Failure;

/// The key of the tag, or annotation, that marks what no state may know of yet.
pub const UNFINISHED: &str = "karp.sh/unfinished";
/// An answer has reached Terraform by then.
const HEARD: Duration = Duration::from_secs(2);
/// go-plugin kills a plugin two seconds after it asked it to end.
const LAST_MOMENT: Duration = Duration::from_millis(1200);

/// Tells the runs of the provider apart.
static RUN: LazyLock<String> = LazyLock::new(|| format!("{:016x}", RandomState::new().build_hasher().finish()));
static CREATIONS: AtomicU64 = AtomicU64::new(0);

/// The mark of one creation: when it began, in which run, and the how manieth it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    /// Makes the mark of a creation that begins now.
    pub fn new() -> Self {
        let number = CREATIONS.fetch_add(1, Ordering::Relaxed);
        Self(format!("{:.0}/{}/{number}", Timestamp::now(), *RUN))
    }

    /// Returns the value of the tag or annotation.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Says whether an object with this mark is this creation's to go on with: its own, whose answer was lost, or one of an earlier run.
    /// Another's of this run is not: two resources want the same name.
    pub fn continues(&self, found: Option<&str>) -> bool {
        found.is_some_and(|found| found == self.0 || run_of(found) != run_of(&self.0))
    }
}

fn run_of(mark: &str) -> Option<&str> {
    mark.split('/').nth(1)
}

/// Takes marks off after their creations were answered.
pub struct Finishing {
    heard: Duration,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl Default for Finishing {
    fn default() -> Self {
        Self::after(HEARD)
    }
}

impl Finishing {
    /// Takes an answer for heard after so long.
    fn after(heard: Duration) -> Self {
        Self { heard, tasks: TaskTracker::new(), closing: CancellationToken::new() }
    }

    /// Does the work once Terraform has heard the answer that is given now, or the process ends. Where it fails the mark stays, and the log says so.
    pub fn after_answer(&self, work: impl Future<Output = Result<(), Failure>> + Send + 'static) {
        let (heard, closing) = (self.heard, self.closing.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(heard) => (),
                () = closing.cancelled() => (),
            }
            match work.await {
                Err(failure) if !failure.is_missing() => {
                    tracing::warn!("a mark {UNFINISHED} stays on what is finished: {}", failure.message);
                }
                _ => (),
            }
        });
    }

    /// Does what is left at once: Terraform has all answers.
    pub async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        // What is not done by then stays marked, and does no harm.
        let _ = tokio::time::timeout(LAST_MOMENT, self.tasks.wait()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_creation_goes_on_with_its_own_and_with_earlier_runs() {
        let (one, other) = (Mark::new(), Mark::new());
        assert_ne!(one, other);
        assert!(one.continues(Some(one.text())), "its own, whose answer was lost");
        assert!(!one.continues(Some(other.text())), "another resource of this run has the name");
        assert!(one.continues(Some("2026-11-28T07:45:00Z/0123456789abcdef/0")), "an earlier run's");
        assert!(one.continues(Some("")), "whatever it says, this run did not put it there");
        assert!(!one.continues(None), "somebody else's");
    }

    /// The values of tags are letters, digits, spaces and `_ . : / = + - @`, at most 256 of them.
    #[test]
    fn a_mark_may_be_a_tag_everywhere() {
        let mark = Mark::new();
        let text = mark.text();
        assert!(
            text.len() < 100 && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.:/=+-@ ".contains(c)),
            "{text}"
        );
        assert!(text.split('/').next().is_some_and(|time| time.parse::<Timestamp>().is_ok()), "{text}");
    }

    #[tokio::test]
    async fn marks_go_when_the_answer_was_heard_or_the_process_ends() {
        let work = |done: &Arc<AtomicBool>| {
            let done = done.clone();
            async move {
                done.store(true, Ordering::SeqCst);
                Ok(())
            }
        };
        let soon = Finishing::after(Duration::from_millis(50));
        let done = Arc::new(AtomicBool::new(false));
        soon.after_answer(work(&done));
        tokio::task::yield_now().await;
        assert!(!done.load(Ordering::SeqCst), "the answer may not have been heard");
        tokio::time::timeout(Duration::from_secs(10), async {
            while !done.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("it is done by itself");
        let late = Finishing::after(Duration::from_secs(3600));
        let done = Arc::new(AtomicBool::new(false));
        late.after_answer(work(&done));
        late.close().await;
        assert!(done.load(Ordering::SeqCst), "all answers were heard");
    }
}

//! Marks on what is being created. A provider that is killed has answered nothing, so no state knows of what it had begun: the next apply meets an
//! object of the wanted name, and must tell its own from somebody else's. The mark tells: it is put on with the creation itself, and taken off
//! when Terraform ends the provider, which has all answers then, or long after its own answer.
//!
//! Why at that time, and what a mark that stays means: `docs/decisions/0019-unfinished-creations.md`.

use std::collections::hash_map::DefaultHasher;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karp_domain::api::labels::UNFINISHED;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::report::Failure;

/// Terraform has stored an answer by then, also where it writes its state far away and seldom.
const STORED: Duration = Duration::from_secs(300);
/// go-plugin kills a plugin two seconds after it asked it to end.
const LAST_MOMENT: Duration = Duration::from_millis(1200);
/// Who comes back to a run that died does so within this; a mark that stayed for longer tells nothing any more.
const TOLD_FOR: SignedDuration = SignedDuration::from_hours(7 * 24);
/// What was made a moment ago may be unknown where it is unmarked, and others may change it at the same time.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(250);

/// The process that started this one, which is Terraform.
static PARENT: LazyLock<u32> = LazyLock::new(std::os::unix::process::parent_id);
/// Tells the runs of Terraform apart; each starts one provider for each provider block.
static RUN: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    (*PARENT, started(&read(&format!("/proc/{}/stat", *PARENT)))).hash(&mut hasher);
    (read("/proc/sys/kernel/random/boot_id"), read("/proc/sys/kernel/hostname")).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
});
static CREATIONS: AtomicU64 = AtomicU64::new(0);

/// Reads when a process started, in ticks since the machine did, of `/proc/PID/stat`: the 22nd field. The second is a name in parentheses.
fn started(stat: &str) -> Option<String> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19).map(str::to_owned)
}

/// The mark of one creation: when it began, in which run and process, and the how manieth it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    /// Makes the mark of a creation that begins now.
    pub fn new() -> Self {
        let number = CREATIONS.fetch_add(1, Ordering::Relaxed);
        Self(format!("{:.0}/{}/{}-{number}", Timestamp::now(), *RUN, std::process::id()))
    }

    /// Returns the value of the tag or annotation.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Says whether an object with this mark is this creation's to go on with: its own, whose answer was lost, or one of an earlier run that is
    /// not long over. Another's of this run is not: two resources want the same name.
    pub fn continues(&self, found: Option<&str>) -> bool {
        let Some(found) = found else { return false };
        found == self.0
            || read(found).is_some_and(|(begun, run)| run != *RUN && Timestamp::now().duration_since(begun) < TOLD_FOR)
    }
}

/// Reads when and in which run a mark was made.
fn read(mark: &str) -> Option<(Timestamp, &str)> {
    let mut parts = mark.split('/');
    Some((parts.next()?.parse().ok()?, parts.next()?))
}

/// Takes marks off after their creations were answered.
pub struct Finishing {
    stored: Duration,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl Default for Finishing {
    fn default() -> Self {
        LazyLock::force(&RUN);
        Self::after(STORED)
    }
}

impl Finishing {
    /// Takes an answer for stored after so long.
    fn after(stored: Duration) -> Self {
        Self { stored, tasks: TaskTracker::new(), closing: CancellationToken::new() }
    }

    /// Does the work when the process ends, or once Terraform must have stored the answer that is given now; never where Terraform died, as nobody
    /// has the answer then, or had asked the process to end before. Where it fails the mark stays, and the log says so.
    pub fn after_answer<W, F>(&self, work: W)
    where
        W: Fn() -> F + Send + 'static,
        F: Future<Output = Result<(), Failure>> + Send,
    {
        let (stored, closing) = (self.stored, self.closing.clone());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if closing.is_cancelled() {
            return;
        }
        self.tasks.spawn_on(
            async move {
                tokio::select! {
                    () = tokio::time::sleep(stored) => (),
                    () = closing.cancelled() => (),
                }
                if std::os::unix::process::parent_id() == *PARENT {
                    until_done(work).await;
                }
            },
            &runtime,
        );
    }

    /// Does what is left at once: Terraform has all answers.
    pub async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        // What is not done by then stays marked.
        if tokio::time::timeout(LAST_MOMENT, self.tasks.wait()).await.is_err() {
            tracing::warn!("a mark {UNFINISHED} stays on {} finished objects: there was no time", self.tasks.len());
        }
    }
}

async fn until_done<F>(work: impl Fn() -> F)
where
    F: Future<Output = Result<(), Failure>> + Send,
{
    for tried in 1..=TRIES {
        match work().await {
            Ok(()) => return,
            Err(_) if tried < TRIES => tokio::time::sleep(PAUSE).await,
            Err(failure) if failure.is_missing() => return,
            Err(failure) => tracing::warn!("a mark {UNFINISHED} stays on what is finished: {failure}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::report::Kind;

    fn ago(hours: i64) -> Timestamp {
        Timestamp::now().checked_sub(SignedDuration::from_hours(hours)).expect("a time")
    }

    #[test]
    fn a_creation_goes_on_with_its_own_and_with_earlier_runs() {
        let (one, other) = (Mark::new(), Mark::new());
        assert_ne!(one, other);
        assert!(one.continues(Some(one.text())), "its own, whose answer was lost");
        assert!(!one.continues(Some(other.text())), "another resource of this run has the name");
        let sibling = one.text().replace(&format!("/{}-", std::process::id()), "/1-");
        assert!(!one.continues(Some(&sibling)), "so has one of another provider block");
        let earlier = |time: Timestamp| format!("{time:.0}/0123456789abcdef/7-0");
        assert!(one.continues(Some(&earlier(ago(1)))), "an earlier run's");
        assert!(!one.continues(Some(&earlier(ago(8 * 24)))), "whoever left that has another way by now");
        for foreign in [None, Some(""), Some("true"), Some("soon/0123456789abcdef/7-0")] {
            assert!(!one.continues(foreign), "somebody else's: {foreign:?}");
        }
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
        assert_eq!(read(text).map(|(_, run)| run), Some(RUN.as_str()));
    }

    #[test]
    fn a_run_is_that_of_the_process_that_began_it() {
        let stat = "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 2";
        assert_eq!(started(stat).as_deref(), Some("987654"));
        assert_eq!(started(""), None);
        let own = std::fs::read_to_string("/proc/self/stat").expect("Linux");
        assert!(started(&own).is_some_and(|ticks| ticks.parse::<u64>().is_ok()), "{own}");
    }

    /// Counts how often it is done; the first times fail.
    fn work(failing: u32) -> (Arc<AtomicU32>, impl Fn() -> std::future::Ready<Result<(), Failure>>) {
        let done = Arc::new(AtomicU32::new(0));
        let counted = done.clone();
        let act = move || {
            let before = counted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(if before < failing {
                Err(Failure::new(Kind::Missing, "untag it", "no such thing"))
            } else {
                Ok(())
            })
        };
        (done, act)
    }

    #[tokio::test]
    async fn marks_go_when_the_answer_is_stored_or_the_process_ends() {
        let soon = Finishing::after(Duration::from_millis(50));
        let (done, act) = work(1);
        soon.after_answer(act);
        tokio::task::yield_now().await;
        assert_eq!(done.load(Ordering::SeqCst), 0, "the answer may not be stored");
        tokio::time::timeout(Duration::from_secs(10), async {
            while done.load(Ordering::SeqCst) < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("it is done by itself, and again where it was not there yet");

        let late = Finishing::after(Duration::from_secs(3600));
        let ((first, act), (second, act_late)) = (work(0), work(0));
        late.after_answer(act);
        late.close().await;
        assert_eq!(first.load(Ordering::SeqCst), 1, "all answers were stored");
        late.after_answer(act_late);
        late.close().await;
        assert_eq!(second.load(Ordering::SeqCst), 0, "nobody waits for that answer any more");
    }
}

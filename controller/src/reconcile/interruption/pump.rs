//! The way of messages from the queue through the handlers to their deletion: one long poll, a bounded number of handlers, and one sweeper
//! that deletes what was handled, several at a time.

use std::pin::pin;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::{Mutex, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::cloud::{CloudError, QueueMessage};

/// Messages that are handled at a time (Karpenter: 10).
pub const HANDLERS: usize = 10;
/// Receipts that one deletion takes: SQS's own bound.
const BATCH: usize = 10;
/// How long a receipt waits for others.
const LINGER: Duration = Duration::from_millis(50);
/// Pause after a queue that could not be read.
const QUEUE_PAUSE: Duration = Duration::from_secs(10);

/// What is done with the queue and its messages.
pub struct Ways<R, H, D> {
    /// Waits a while for messages; none when there is no queue.
    pub receive: R,
    /// Handles a message; gives its receipt once its effect is recorded.
    pub handle: H,
    /// Deletes messages by their receipts.
    pub delete: D,
}

/// Pumps until `stop` is cancelled; what was received by then is handled to its end. Messages that are not, or that fail, come again.
pub async fn pump<R, RF, H, HF, D, DF>(ways: Ways<R, H, D>, stop: &CancellationToken)
where
    R: Fn() -> RF,
    RF: Future<Output = Result<Option<Vec<QueueMessage>>, CloudError>>,
    H: Fn(QueueMessage) -> HF,
    HF: Future<Output = Option<String>>,
    D: Fn(Vec<String>) -> DF,
    DF: Future<Output = ()>,
{
    // No more wait here than are handled: what was received must be handled before SQS gives it to somebody else.
    let (work, waiting) = mpsc::channel(HANDLERS);
    let (done, receipts) = mpsc::channel(BATCH);
    let waiting = Mutex::new(waiting);
    let handlers = join_all((0..HANDLERS).map(|_| handler(&waiting, &ways.handle, done.clone())));
    drop(done);
    tokio::join!(poll(&ways.receive, work, stop), handlers, sweep(&ways.delete, receipts));
}

async fn poll<RF>(receive: &impl Fn() -> RF, work: mpsc::Sender<QueueMessage>, stop: &CancellationToken)
where
    RF: Future<Output = Result<Option<Vec<QueueMessage>>, CloudError>>,
{
    loop {
        let received = tokio::select! {
            () = stop.cancelled() => return,
            received = receive() => received,
        };
        let pause = match received {
            Ok(None) => {
                tracing::debug!("there is no interruption queue");
                return stop.cancelled().await;
            }
            Ok(Some(messages)) => {
                for message in messages {
                    if work.send(message).await.is_err() {
                        return;
                    }
                }
                Duration::ZERO
            }
            Err(error) => {
                tracing::error!(%error, "receiving interruption messages");
                QUEUE_PAUSE
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(pause) => {}
        }
    }
}

async fn handler<HF>(
    waiting: &Mutex<mpsc::Receiver<QueueMessage>>,
    handle: &impl Fn(QueueMessage) -> HF,
    done: mpsc::Sender<String>,
) where
    HF: Future<Output = Option<String>>,
{
    loop {
        // The lock is held while this handler is the next in turn, not while it handles.
        let Some(message) = waiting.lock().await.recv().await else { return };
        if let Some(receipt) = handle(message).await
            && done.send(receipt).await.is_err()
        {
            return;
        }
    }
}

async fn sweep<DF>(delete: &impl Fn(Vec<String>) -> DF, mut receipts: mpsc::Receiver<String>)
where
    DF: Future<Output = ()>,
{
    while let Some(first) = receipts.recv().await {
        let mut batch = vec![first];
        let mut end = pin!(sleep(LINGER));
        while batch.len() < BATCH {
            tokio::select! {
                () = &mut end => break,
                next = receipts.recv() => match next {
                    Some(receipt) => batch.push(receipt),
                    None => break,
                },
            }
        }
        delete(batch).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as Sync;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// Gives batches of ten until all are given, then waits as a long poll does.
    struct Queue {
        left: AtomicUsize,
        total: usize,
        calls: AtomicUsize,
    }

    impl Queue {
        fn of(total: usize) -> Self {
            Self { left: AtomicUsize::new(total), total, calls: AtomicUsize::new(0) }
        }

        async fn receive(&self) -> Result<Option<Vec<QueueMessage>>, CloudError> {
            self.calls.fetch_add(1, Ordering::SeqCst);
            let left = self.left.load(Ordering::SeqCst);
            if left == 0 {
                std::future::pending::<()>().await;
            }
            let taken = left.min(10);
            self.left.store(left - taken, Ordering::SeqCst);
            let first = self.total - left;
            let message = |n: usize| QueueMessage { id: n.to_string(), receipt: n.to_string(), body: n.to_string() };
            Ok(Some((first..first + taken).map(message).collect()))
        }
    }

    async fn until(holds: impl Fn() -> bool) {
        let waited = async {
            while !holds() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waited).await.expect("in time");
    }

    #[tokio::test]
    async fn ten_are_handled_at_a_time_and_deleted_only_then() {
        let (queue, gate, begun) = (&Queue::of(45), &Semaphore::new(0), &AtomicUsize::new(0));
        let handled = &Sync::new(Vec::<String>::new());
        let deleted = &Sync::new(Vec::<Vec<String>>::new());
        let stop = CancellationToken::new();
        let ways = Ways {
            receive: || queue.receive(),
            handle: |message: QueueMessage| async move {
                begun.fetch_add(1, Ordering::SeqCst);
                gate.acquire().await.expect("open").forget();
                handled.lock().unwrap().push(message.receipt.clone());
                (!fails(&message.receipt)).then_some(message.receipt)
            },
            delete: |receipts: Vec<String>| async move {
                assert!(receipts.iter().all(|receipt| handled.lock().unwrap().contains(receipt)));
                deleted.lock().unwrap().push(receipts);
            },
        };
        let watch = async {
            until(|| begun.load(Ordering::SeqCst) == HANDLERS).await;
            sleep(Duration::from_millis(100)).await;
            assert_eq!(begun.load(Ordering::SeqCst), HANDLERS, "the others wait");
            assert!(deleted.lock().unwrap().is_empty(), "nothing is done yet");
            assert!(queue.calls.load(Ordering::SeqCst) <= 3, "no more is received than can be handled soon");
            gate.add_permits(45);
            until(|| deleted.lock().unwrap().iter().map(Vec::len).sum::<usize>() == 40).await;
            stop.cancel();
        };
        tokio::join!(pump(ways, &stop), watch);
        assert_eq!(handled.lock().unwrap().len(), 45);
        let deleted = deleted.lock().unwrap().clone();
        assert!(deleted.iter().all(|batch| batch.len() <= BATCH), "{deleted:?}");
        assert!(deleted.len() <= 10, "they are deleted together: {deleted:?}");
        assert!(!deleted.iter().flatten().any(|receipt| fails(receipt)), "what failed comes again");
    }

    /// Every ninth message cannot be handled.
    fn fails(receipt: &str) -> bool {
        receipt.parse::<usize>().expect("a number").is_multiple_of(9)
    }

    #[tokio::test]
    async fn what_is_in_hand_is_finished_when_it_stops() {
        let (queue, begun, deleted) = (&Queue::of(7), &AtomicUsize::new(0), &AtomicUsize::new(0));
        let stop = &CancellationToken::new();
        let ways = Ways {
            receive: || queue.receive(),
            handle: |message: QueueMessage| async move {
                begun.fetch_add(1, Ordering::SeqCst);
                stop.cancelled().await;
                Some(message.receipt)
            },
            delete: |receipts: Vec<String>| async move {
                deleted.fetch_add(receipts.len(), Ordering::SeqCst);
            },
        };
        let watch = async {
            until(|| begun.load(Ordering::SeqCst) == 7).await;
            stop.cancel();
        };
        tokio::join!(pump(ways, stop), watch);
        assert_eq!(deleted.load(Ordering::SeqCst), 7);
    }

    #[tokio::test]
    async fn without_a_queue_nothing_is_asked_again() {
        let (calls, stop) = (&AtomicUsize::new(0), CancellationToken::new());
        let ways = Ways {
            receive: || async move {
                calls.fetch_add(1, Ordering::SeqCst);
                Ok(None)
            },
            handle: |message: QueueMessage| async move { Some(message.receipt) },
            delete: |_: Vec<String>| async {},
        };
        let watch = async {
            sleep(Duration::from_millis(100)).await;
            stop.cancel();
        };
        tokio::join!(pump(ways, &stop), watch);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }
}

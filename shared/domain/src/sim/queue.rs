//! The interruption queue, as SQS keeps it: what is put there comes at least once, some of it late, twice or out of order; what was received is
//! hidden for a while and comes back unless it is deleted.

use jiff::{SignedDuration, Timestamp};

use super::World;
use super::check::warnings;

/// SQS gives so many messages at once.
const BATCH: usize = 10;
/// For so long a received message is hidden, as `shared/aws/src/queue.rs` asks for.
pub(super) const VISIBILITY: SignedDuration = SignedDuration::from_secs(20);
/// So many of a thousand messages are late, by so many seconds at most; the others take a second.
const LATE_PERMILLE: u32 = 200;
const LATE: usize = 40;
/// So many of a thousand messages are sent twice, and as many received ones are given once more at once.
const TWICE_PERMILLE: u32 = 100;

/// What a message is about: the world knows, whatever it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// No instance of the cluster, or nothing that asks for anything: it is to change nothing.
    Nobody,
    /// EC2 takes this instance back.
    Warning(String),
    /// EC2 recommends to leave this instance.
    Advice(String),
    /// EC2 has ended this instance.
    End(String),
}

/// A message in the queue.
#[derive(Clone, Debug)]
struct Queued {
    about: About,
    body: String,
    /// It can be received from then on.
    visible: Timestamp,
    /// Deletes it as it was received last.
    receipt: u64,
}

/// A message as it is received.
pub(super) struct Received {
    pub(super) receipt: u64,
    pub(super) body: String,
}

/// The queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    messages: Vec<Queued>,
    receipts: u64,
    /// What is handled now is about this.
    pub(super) in_hand: Option<About>,
    pub(super) deleted: u32,
}

impl Queue {
    /// Says what the messages that are there are about, received ones too.
    pub(super) fn left(&self) -> impl Iterator<Item = &About> {
        self.messages.iter().map(|message| &message.about)
    }
}

impl World {
    /// Puts a message into the queue; says when it can be received first.
    pub(super) fn send(&mut self, about: &About, body: &str) -> Timestamp {
        let copies = 1 + usize::from(self.random.happens(TWICE_PERMILLE));
        let mut first = Timestamp::MAX;
        for _ in 0..copies {
            let late = if self.random.happens(LATE_PERMILLE) { self.random.below(LATE) } else { 0 };
            let visible = self.now + SignedDuration::from_secs(1 + late as i64);
            first = first.min(visible);
            self.queue.messages.push(Queued { about: about.clone(), body: body.to_owned(), visible, receipt: 0 });
        }
        first
    }

    /// Gives some of the messages that are not hidden, in any order.
    pub(super) fn receive(&mut self) -> Vec<Received> {
        let now = self.now;
        let shown = self.queue.messages.iter().enumerate().filter(|(_, message)| message.visible <= now);
        let mut shown: Vec<usize> = shown.map(|(at, _)| at).collect();
        self.random.shuffle(&mut shown);
        shown.truncate(BATCH);
        let mut received = Vec::new();
        for at in shown {
            let again = self.random.happens(TWICE_PERMILLE);
            self.queue.receipts += 1;
            let message = &mut self.queue.messages[at];
            message.receipt = self.queue.receipts;
            message.visible = now + if again { SignedDuration::from_secs(1) } else { VISIBILITY };
            received.push(Received { receipt: message.receipt, body: message.body.clone() });
        }
        received
    }

    /// A message is handled from here on.
    pub(super) fn take_in_hand(&mut self, receipt: u64) {
        let taken = self.queue.messages.iter().find(|message| message.receipt == receipt);
        self.queue.in_hand = taken.map(|message| message.about.clone());
    }

    /// Deletes a message, unless it was received again since.
    pub(super) fn delete_message(&mut self, receipt: u64) {
        let Some(at) = self.queue.messages.iter().position(|message| message.receipt == receipt) else { return };
        let message = self.queue.messages.swap_remove(at);
        self.queue.deleted += 1;
        warnings::is_recorded(self, &message.about);
    }
}

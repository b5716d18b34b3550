//! Interruption: what AWS announces of instances, as values, and what is done about it. Messages come over the queue, where EventBridge
//! puts them; one that cannot be used is a value too. What EC2 says of an instance's health is asked for.

mod clock;
mod event;
mod health;
mod recall;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use crate::api::{NodePool, labels};

pub use clock::{Onsets, Returning};
pub use event::parse;
pub use health::{Check, EVENT_CODES, Health, IMPAIRED_FOR, Impairment, ScheduledEvent, Verdict};
pub use recall::{Cause, Next, Recall, Vacating};

/// After so long a warning of EC2 is of no use any more: the instance is gone.
const WARNING: SignedDuration = SignedDuration::from_secs(120);

/// Holds what a message says.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// EC2 takes a spot instance back in two minutes.
    SpotInterruption(Notice),
    /// EC2 expects to take a spot instance back; nothing must be done yet.
    RebalanceRecommendation(Notice),
    /// An instance changed its state.
    StateChange {
        /// The instance and the time.
        notice: Notice,
        /// Its new state.
        state: InstanceState,
    },
    /// AWS will do maintenance on instances, or retire them.
    ScheduledChange {
        /// One for each instance that is affected.
        notices: Vec<Notice>,
    },
    /// An instance in a capacity reservation is taken back in two minutes.
    CapacityReservationInterruption(Notice),
    /// A message that concerns no instance: another source or kind of event, or a change that is over.
    Foreign {
        /// `source` and `detail-type`, and what else tells why.
        kind: String,
    },
    /// A message that could not be read.
    Unreadable {
        /// Why not.
        problem: String,
    },
}

/// Names an instance and the time at which the event happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// `i-…`
    pub instance_id: Arc<str>,
    /// When it happened; none if the message does not say.
    pub at: Option<Timestamp>,
}

/// Holds the state of an instance, in EC2's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // the states name themselves
pub enum InstanceState {
    Pending,
    Running,
    Stopping,
    Stopped,
    ShuttingDown,
    Terminated,
}

/// Says what a message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Replace the node, and drain it when that is done or the time is up.
    Recall(Cause),
    /// Drain the node at once: its instance ends already.
    Delete,
    /// Tell about it; replace the node only where its pool wants that.
    Advise,
    /// Nothing.
    Ignore,
}

impl Message {
    /// Answers the instances that it is about.
    pub fn notices(&self) -> &[Notice] {
        match self {
            Message::SpotInterruption(notice)
            | Message::RebalanceRecommendation(notice)
            | Message::StateChange { notice, .. }
            | Message::CapacityReservationInterruption(notice) => std::slice::from_ref(notice),
            Message::ScheduledChange { notices } => notices,
            Message::Foreign { .. } | Message::Unreadable { .. } => &[],
        }
    }

    /// Answers what it asks for.
    pub const fn action(&self) -> Action {
        use InstanceState::{Pending, Running, ShuttingDown, Stopped, Stopping, Terminated};
        match self {
            Message::SpotInterruption(_) => Action::Recall(Cause::SpotInterrupted),
            Message::ScheduledChange { .. } => Action::Recall(Cause::ScheduledChange),
            Message::CapacityReservationInterruption(_) => Action::Recall(Cause::CapacityReservationInterrupted),
            Message::StateChange { state: Stopping | Stopped | ShuttingDown | Terminated, .. } => Action::Delete,
            Message::RebalanceRecommendation(_) => Action::Advise,
            Message::StateChange { state: Pending | Running, .. }
            | Message::Foreign { .. }
            | Message::Unreadable { .. } => Action::Ignore,
        }
    }

    /// Answers whether the message stays in the queue, to come again, although no claim says that a notice's instance is its own. `launching`:
    /// some claim does not say yet which instance it has, so that it may be this one. What ends already is collected without a message. The notice's
    /// time is by the clock of `now`: [`Returning`] sees to that.
    pub fn is_kept(&self, notice: &Notice, launching: bool, now: Timestamp) -> bool {
        let young = notice.at.is_some_and(|at| now.duration_since(at) < WARNING);
        launching && young && matches!(self.action(), Action::Recall(_))
    }

    /// Answers the value of the metric label `message_type`, as Karpenter names it.
    pub const fn kind(&self) -> &'static str {
        use InstanceState::{Pending, Running, ShuttingDown, Stopped, Stopping, Terminated};
        match self {
            Message::SpotInterruption(_) => Cause::SpotInterrupted.as_str(),
            Message::RebalanceRecommendation(_) => Cause::RebalanceRecommendation.as_str(),
            Message::StateChange { state: Stopping | Stopped, .. } => "instance_stopped",
            Message::StateChange { state: ShuttingDown | Terminated, .. } => "instance_terminated",
            Message::ScheduledChange { .. } => Cause::ScheduledChange.as_str(),
            Message::CapacityReservationInterruption(_) => Cause::CapacityReservationInterrupted.as_str(),
            Message::StateChange { state: Pending | Running, .. } | Message::Foreign { .. } => "no_op",
            Message::Unreadable { .. } => "unreadable",
        }
    }
}

/// Counts what a message is about of which the effect is not recorded yet. As long as there is any, the message stays in the queue, so that a crash
/// repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unrecorded(usize);

impl Unrecorded {
    /// Begins with all that a message is about.
    pub fn of(message: &Message) -> Self {
        Self(message.notices().len())
    }

    /// The effect of one notice is recorded at the API server, or it has none.
    pub const fn recorded(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }

    /// Says whether the message may be deleted.
    pub const fn is_nothing(self) -> bool {
        self.0 == 0
    }
}

/// Answers whether the nodes of a pool are replaced when EC2 recommends it, before it says that it takes them back. Other words than
/// `true` are no.
pub fn replaces_on_rebalance(pool: &NodePool) -> bool {
    let annotations = pool.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(labels::REPLACE_ON_REBALANCE)).is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests;

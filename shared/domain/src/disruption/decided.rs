//! Commands that were decided and rest, to see whether they still hold then. What is planned meanwhile sees them as begun.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{Cause, Command};
use crate::api::labels;
use crate::cluster::Snapshot;

/// Holds commands while they rest, in the order in which they were decided. Takes the time, gives the deadline; an empty one is always sound.
#[derive(Clone, Debug, Default)]
pub struct Decided {
    commands: Vec<(Command, Timestamp)>,
}

impl Decided {
    /// Answers whether a command may be taken up beside those that rest.
    ///
    /// The places of pods that move to a replacement are not known before its claim is there: until then, nothing is decided that needs places.
    pub fn admits(&self, command: &Command) -> bool {
        !(needs_places(command.cause) && self.replaces())
    }

    /// Takes up commands that it admits; answers those that do not rest, to be begun at once.
    pub fn take(&mut self, commands: Vec<Command>, now: Timestamp) -> Vec<Command> {
        let (resting, at_once): (Vec<_>, Vec<_>) = commands.into_iter().partition(|command| command.cause.rests());
        self.commands.extend(resting.into_iter().map(|command| (command, now)));
        at_once
    }

    fn replaces(&self) -> bool {
        self.commands.iter().any(|(command, _)| !command.replacements.is_empty())
    }

    /// Answers the commands that have rested long enough, and does not hold them any more.
    pub fn rested(&mut self, rest: SignedDuration, now: Timestamp) -> Vec<Command> {
        // a clock that went back must not lengthen the rest
        let is_over = |since: Timestamp| now.duration_since(since).abs() >= rest;
        let (over, left) = std::mem::take(&mut self.commands).into_iter().partition(|(_, since)| is_over(*since));
        self.commands = left;
        Vec::into_iter(over).map(|(command, _)| command).collect()
    }

    /// Answers when the next command has rested.
    pub fn next(&self, rest: SignedDuration) -> Option<Timestamp> {
        let since = self.commands.iter().map(|(_, since)| *since).min()?;
        Some(since.saturating_add(rest).unwrap_or(Timestamp::MAX))
    }

    /// Shows the nodes of these commands as tainted, as they are when the commands begin: their pods take the room that is free, they count for
    /// budgets, and no other command takes them.
    pub fn apply(&self, snapshot: &mut Snapshot) {
        let candidates = self.commands.iter().flat_map(|(command, _)| &command.candidates);
        let nodes: BTreeSet<&Arc<str>> = candidates.filter_map(|candidate| candidate.node.as_ref()).collect();
        for node in snapshot.nodes.iter_mut().filter(|node| nodes.contains(&node.name) && !node.is_disrupted()) {
            Arc::make_mut(node).taints.push(labels::disrupted_taint());
        }
    }
}

/// Says whether commands of a cause give pods other places; pods of what goes by force, or is empty, count as waiting or are none.
const fn needs_places(cause: Cause) -> bool {
    matches!(cause, Cause::Drifted | Cause::Expiring | Cause::Underutilized)
}

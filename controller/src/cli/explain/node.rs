//! The explanation of a node, for programs and for people.

use std::fmt::{self, Write};
use std::sync::Arc;

use anstyle::{AnsiColor, Style};
use karp_domain::cluster::Snapshot;
use karp_domain::disruption::{Candidate, Command, DisruptionPlan, KeepReason, Verdict};
use serde::Serialize;

use super::drain::Draining;
use crate::cli::estimates::Estimates;
use crate::cli::simulate::disruption::{Done, NOT_OURS};
use crate::cli::text::{BOLD, DIM, counted, written};
use crate::cli::world::Attached;
use crate::ops::kept::word;

pub(super) const GOES: Style = AnsiColor::Yellow.on_default().bold();

/// Holds what becomes of a node, and why.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    node: Arc<str>,
    node_claim: Option<Arc<str>>,
    node_pool: Option<Arc<str>>,
    /// Dollars per hour, when that is known.
    price_per_hour: Option<f64>,
    /// Pods that would have to run elsewhere if it went.
    pods: usize,
    outcome: Outcome,
    /// The price is an estimate; left out when it is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    estimated: bool,
}

/// What becomes of a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
enum Outcome {
    /// It stays.
    Kept {
        reason: String,
        /// The word for it in the metric `karp_nodes_kept`; none for nodes that are not karp's.
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<&'static str>,
        /// What is done first, when that is why.
        #[serde(skip_serializing_if = "Option::is_none")]
        after: Option<Done>,
    },
    /// It goes.
    Disrupted { command: Done },
    /// It is on its way out.
    Draining(Draining),
}

impl NodeReport {
    /// Says the verdict on a node in words and figures; nothing when neither a node nor a claim has the name. `attached` answers the
    /// volumes that are attached to a node.
    pub fn new(
        snapshot: &Snapshot,
        plan: &DisruptionPlan,
        name: &str,
        attached: impl Fn(&str) -> Vec<Attached>,
    ) -> Option<Self> {
        let named = |candidate: &Candidate| candidate.node.as_deref() == Some(name) || &*candidate.claim == name;
        let guessed = Estimates::of(snapshot);
        let Some((candidate, verdict)) = plan.verdicts.iter().find(|(candidate, _)| named(candidate)) else {
            let node = snapshot.nodes.iter().find(|node| &*node.name == name)?;
            return Some(NodeReport {
                node: node.name.clone(),
                node_claim: None,
                node_pool: node.pool().map(Arc::from),
                price_per_hour: None,
                pods: pods_on(snapshot, &node.name),
                outcome: Outcome::Kept { reason: NOT_OURS.to_owned(), code: None, after: None },
                estimated: false,
            });
        };
        let done = |command: &Command| Done::new(snapshot, command, command.evictions(snapshot), &guessed);
        let own = plan.commands.iter().find(|command| command.candidates.contains(candidate));
        let outcome = match (Draining::of(snapshot, candidate, attached), verdict, own) {
            (Some(draining), ..) => Outcome::Draining(draining),
            (None, Verdict::Keep(reason), _) => Outcome::Kept {
                reason: reason.to_string(),
                code: Some(word(reason)),
                after: plan.commands.last().filter(|_| *reason == KeepReason::AfterAnother).map(done),
            },
            (None, Verdict::Delete(_) | Verdict::Replace(..), Some(command)) => {
                Outcome::Disrupted { command: done(command) }
            }
            (None, Verdict::Delete(_) | Verdict::Replace(..), None) => return None,
        };
        Some(NodeReport {
            node: candidate.node.clone().unwrap_or_else(|| candidate.claim.clone()),
            node_claim: Some(candidate.claim.clone()),
            node_pool: Some(candidate.pool.clone()),
            price_per_hour: candidate.price.map(|price| price.dollars()),
            pods: candidate.node.as_ref().map_or(0, |node| pods_on(snapshot, node)),
            outcome,
            estimated: guessed.has(&candidate.claim),
        })
    }

    /// Writes the report with colours, which the stream takes out where they are not wanted.
    pub fn render(&self) -> String {
        written(|out| self.write(out))
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        write!(out, "{BOLD}{}{BOLD:#}: ", self.node)?;
        match &self.outcome {
            Outcome::Kept { reason, after, .. } => {
                writeln!(out, "stays: {reason}")?;
                after.iter().try_for_each(|command| write_command(out, "first", command))?;
            }
            Outcome::Disrupted { command } => {
                let how = if command.replacements.is_empty() { "is taken away" } else { "is replaced" };
                writeln!(out, "{GOES}{how}{GOES:#}: {}", command.reason)?;
                write_command(out, "by", command)?;
            }
            Outcome::Draining(draining) => draining.write(out)?,
        }
        let mark = if self.estimated { "~" } else { "" };
        let price =
            self.price_per_hour.map_or_else(|| "unknown".to_owned(), |price| format!("{mark}${price:.4} an hour"));
        let pool = self.node_pool.as_deref().unwrap_or("none");
        writeln!(out, "  {DIM}pool {pool}, price {price}, {} to move{DIM:#}", counted(self.pods, "pod"))
    }
}

fn write_command(out: &mut String, word: &str, command: &Done) -> fmt::Result {
    writeln!(out, "  {word} {}: {}", command.method, command.candidates.join(", "))?;
    for node in &command.replacements {
        let kinds = node.instance_types.iter().take(3).map(|kind| &**kind).collect::<Vec<_>>().join(", ");
        let more = match node.instance_types.len().saturating_sub(3) {
            0 => String::new(),
            1 => " or one more type".to_owned(),
            more => format!(" or {more} more types"),
        };
        let bought = node.capacity_type.as_ref().map(|kind| format!("{kind} ")).unwrap_or_default();
        let mark = if node.estimated { "~" } else { "" };
        writeln!(out, "    replaced by {bought}{kinds}{more} at {mark}${:.4} an hour", node.price)?;
    }
    let (saved, mark) = (command.savings_per_hour, if command.estimated { "~" } else { "" });
    let moved = counted(command.evictions, "pod");
    // what is shown with four digits
    if saved <= -0.000_05 {
        writeln!(out, "    costs {mark}${:.4} more an hour, {moved} to move", -saved)
    } else {
        writeln!(out, "    saves {mark}${:.4} an hour, {moved} to move", saved.max(0.0))
    }
}

fn pods_on(snapshot: &Snapshot, node: &str) -> usize {
    let on_it = snapshot.pods.iter().filter(|pod| pod.node.as_deref() == Some(node));
    on_it.filter(|pod| pod.is_reschedulable() && !snapshot.is_virtual(&pod.key)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::simulate::disruption::Replacement;

    fn told(savings_per_hour: f64, estimated: bool) -> String {
        let replacement = Replacement {
            instance_types: vec!["m7i.large".into(), "m7a.large".into()],
            capacity_type: Some("on-demand".to_owned()),
            zone: None,
            price: 0.1008,
            estimated,
        };
        let command = Done {
            method: "drift",
            reason: "Drifted",
            candidates: vec!["n1".into()],
            replacements: vec![replacement],
            savings_per_hour,
            evictions: 1,
            estimated,
        };
        written(|out| write_command(out, "by", &command))
    }

    #[test]
    fn a_dearer_replacement_costs_and_guesses_are_marked() {
        let lines = |told: String| told.lines().skip(1).map(|line| line.trim().to_owned()).collect::<Vec<_>>();
        assert_eq!(
            lines(told(-0.05, true)),
            [
                "replaced by on-demand m7i.large, m7a.large at ~$0.1008 an hour",
                "costs ~$0.0500 more an hour, 1 pod to move"
            ]
        );
        assert_eq!(lines(told(0.05, false))[1], "saves $0.0500 an hour, 1 pod to move");
        assert_eq!(lines(told(-1e-17, false))[1], "saves $0.0000 an hour, 1 pod to move");
    }
}

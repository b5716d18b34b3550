//! The answer to what karp would take away or replace, as programs read it.

mod table;

use std::sync::Arc;

use karp_domain::catalogue::Price;
use karp_domain::cluster::Snapshot;
use karp_domain::disruption::{
    Cause, Change, Command, DisruptionPlan, Method, Path, Step, Verdict, plan_disruption, until_stable,
};
use karp_domain::scheduling::InFlightNode;
use serde::Serialize;

pub use self::table::render;
use super::answer::{NewNode, is_estimated};
use crate::cli::estimates::Estimates;

/// Says why a node stays that has no NodeClaim.
pub const NOT_OURS: &str = "it has no NodeClaim of karp's node classes: karp did not make it";

/// Holds what would be done with nodes, and why the others stay. Prices are dollars per hour, of karp's nodes whose price is known.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    pub commands: Vec<Done>,
    pub kept: Vec<Kept>,
    pub price_per_hour_before: f64,
    pub price_per_hour_after: f64,
    /// How the cluster came to its end, when it was played to it.
    #[serde(flatten)]
    pub way: Option<Way>,
    /// Some prices are estimates; left out when none is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

/// A command.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Done {
    pub method: &'static str,
    pub reason: &'static str,
    pub candidates: Vec<Arc<str>>,
    pub replacements: Vec<Replacement>,
    /// Below zero when the replacements are dearer.
    pub savings_per_hour: f64,
    pub evictions: usize,
    /// An estimate is in what it saves; left out when none is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

/// A node to launch in place of others.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replacement {
    /// Cheapest first.
    pub instance_types: Vec<Arc<str>>,
    pub capacity_type: Option<String>,
    /// None while it may be any that the pool allows.
    pub zone: Option<Arc<str>>,
    pub price: f64,
    /// The price is an estimate; left out when it is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

/// A node that stays.
#[derive(Debug, Serialize)]
pub struct Kept {
    pub node: Arc<str>,
    pub reason: String,
}

/// The way to a cluster in which nothing is left to do.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Way {
    pub path: Vec<PathStep>,
    pub passes: usize,
    pub evictions: usize,
    /// False when the bound on passes was met.
    pub stable: bool,
}

/// A change on the way.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PathStep {
    pub pass: usize,
    /// `provision` or the method of a command.
    pub change: &'static str,
    /// Nodes launched.
    pub launched: usize,
    /// Nodes taken away.
    pub removed: usize,
    pub evictions: usize,
    pub price_per_hour: f64,
}

impl Disruption {
    /// Answers what would be done now.
    pub fn now(snapshot: &Snapshot) -> Self {
        let plan = plan_disruption(snapshot);
        let before = plan.price();
        let less: Price = plan.commands.iter().map(Command::price).sum();
        let more: Price = plan.commands.iter().map(Command::cost).sum();
        let guessed = Estimates::of(snapshot);
        let done = |command: &Command| Done::new(snapshot, command, command.evictions(snapshot), &guessed);
        let commands: Vec<Done> = plan.commands.iter().map(done).collect();
        Disruption {
            estimated: guessed.any() || commands.iter().any(|command| command.estimated),
            commands,
            kept: kept(snapshot, &plan),
            price_per_hour_before: before.dollars(),
            price_per_hour_after: before.saturating_sub(less).dollars() + more.dollars(),
            way: None,
        }
    }

    /// Answers what would be done until nothing is left to do.
    pub fn until_stable(snapshot: &Snapshot) -> Self {
        let path = until_stable(snapshot, Method::Sets);
        let guessed = Estimates::of(snapshot);
        // nodes that were launched on the way may be candidates later
        let more_guesses = path.steps.iter().flat_map(launched).any(is_estimated);
        let done = |(command, evictions): (&Command, usize)| {
            let done = Done::new(snapshot, command, evictions, &guessed);
            Done { estimated: done.estimated || more_guesses, ..done }
        };
        Disruption {
            commands: path.commands().map(done).collect(),
            kept: kept(&path.end, &path.last),
            price_per_hour_before: path.before.dollars(),
            price_per_hour_after: path.after.dollars(),
            estimated: guessed.any() || more_guesses,
            way: Some(Way::new(&path)),
        }
    }

    /// Answers how many pods would have to run elsewhere.
    pub fn evictions(&self) -> usize {
        let of_commands = self.commands.iter().map(|command| command.evictions).sum();
        self.way.as_ref().map_or(of_commands, |way| way.evictions)
    }
}

impl Way {
    fn new(path: &Path) -> Self {
        let step = |step: &Step| {
            let (change, removed) = match &step.change {
                Change::Provisioned { removed, .. } => ("provision", *removed),
                Change::Disrupted(command) => (method(command), command.candidates.len()),
            };
            let (launched, evictions) = (launched(step).len(), step.evictions);
            PathStep { pass: step.pass, change, launched, removed, evictions, price_per_hour: step.price.dollars() }
        };
        Way {
            path: path.steps.iter().map(step).collect(),
            passes: path.passes,
            evictions: path.evictions(),
            stable: path.is_stable,
        }
    }
}

impl Done {
    /// Says a command in words and figures.
    pub fn new(snapshot: &Snapshot, command: &Command, evictions: usize, guessed: &Estimates) -> Self {
        Done {
            method: method(command),
            reason: command.cause.as_str(),
            candidates: command.candidates.iter().map(|c| c.node.clone().unwrap_or_else(|| c.claim.clone())).collect(),
            replacements: command.replacements.iter().map(|node| Replacement::new(snapshot, node)).collect(),
            savings_per_hour: command.price().dollars() - command.cost().dollars(),
            evictions,
            estimated: guessed.decide(command),
        }
    }
}

impl Replacement {
    /// Says a node to launch in words and figures.
    pub fn new(snapshot: &Snapshot, node: &InFlightNode) -> Self {
        let NewNode { instance_types, capacity_type, zone, price, estimated, .. } = NewNode::new(snapshot, node);
        Replacement { instance_types, capacity_type, zone, price, estimated }
    }
}

/// The method that a command comes from.
fn method(command: &Command) -> &'static str {
    match (command.cause, command.candidates.len()) {
        (Cause::Expired | Cause::Expiring, _) => "expiration",
        (Cause::Unhealthy, _) => "repair",
        (Cause::Empty, _) => "emptiness",
        (Cause::Drifted, _) => "drift",
        (Cause::Underutilized, 0 | 1) => "single-node-consolidation",
        (Cause::Underutilized, _) => "multi-node-consolidation",
    }
}

/// The nodes that stay: those of karp by their verdicts, all others since they are not karp's.
fn kept(snapshot: &Snapshot, plan: &DisruptionPlan) -> Vec<Kept> {
    let mut kept = Vec::new();
    for (candidate, verdict) in &plan.verdicts {
        let node = candidate.node.clone().unwrap_or_else(|| candidate.claim.clone());
        if let Verdict::Keep(reason) = verdict {
            kept.push(Kept { node, reason: reason.to_string() });
        }
    }
    let ours: std::collections::BTreeSet<&Arc<str>> =
        plan.verdicts.iter().filter_map(|(candidate, _)| candidate.node.as_ref()).collect();
    let others = snapshot.nodes.iter().filter(|node| !ours.contains(&node.name));
    kept.extend(others.map(|node| Kept { node: node.name.clone(), reason: NOT_OURS.to_owned() }));
    kept.sort_by(|a, b| a.node.cmp(&b.node));
    kept
}

/// Nodes that are launched in a step.
fn launched(step: &Step) -> &[InFlightNode] {
    match &step.change {
        Change::Provisioned { nodes, .. } => nodes,
        Change::Disrupted(command) => &command.replacements,
    }
}

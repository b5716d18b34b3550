//! The explanation of a pod, for programs and for people.

use std::fmt::{self, Write};
use std::sync::Arc;

use karp_domain::cluster::{Owner, Phase, Pod, Snapshot};
use karp_domain::scheduling::{Asked, Misfit, PoolExplanation, Refusal, Solution, Step, Target, lacking};
use serde::Serialize;

use crate::cli::simulate::is_estimated;
use crate::cli::text::{BAD, BOLD, DIM, counted, written};

/// Holds what becomes of a pod, and how far it gets in each pool.
#[derive(Debug, Serialize)]
pub struct Report {
    pod: String,
    outcome: Outcome,
    pools: Vec<PoolReport>,
}

/// What becomes of a pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
enum Outcome {
    /// It runs, or is about to.
    Bound { node: Arc<str> },
    /// It has ended, or is being deleted.
    Leaving,
    /// Its scheduling gates keep it back.
    Gated,
    /// It belongs to a node: a daemon or a static pod.
    OfNode,
    /// It fits on a node or claim that exists.
    Placed { node: Arc<str> },
    /// It fits on a node that a static pool lacks.
    #[serde(rename_all = "camelCase")]
    Replica { node_pool: Arc<str> },
    /// A node is launched for it, and others.
    #[serde(rename_all = "camelCase")]
    Launched { node_pool: Arc<str>, instance_type: Option<Arc<str>>, price: f64, estimated: bool, pods: usize },
    /// Nothing can hold it.
    Refused { reasons: Vec<Reason> },
}

/// Why not, in words and as data, and what would have to change.
#[derive(Debug, Serialize)]
struct Reason {
    reason: String,
    remedy: String,
    why: Refusal,
}

/// How a pool's types dwindle.
#[derive(Debug, Serialize)]
struct PoolReport {
    pool: Arc<str>,
    barred: Option<String>,
    /// The same as data.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<Misfit>,
    types: usize,
    steps: Vec<StepReport>,
    left: usize,
}

/// What one step takes away.
#[derive(Debug, Serialize)]
struct StepReport {
    asked: String,
    /// The same as data.
    why: Asked,
    removed: usize,
    /// What it removes.
    types: Vec<Arc<str>>,
    left: usize,
}

impl Report {
    /// Says a decision and the way to it in words and figures.
    pub fn new(pod: &Pod, decided: (&Snapshot, &Solution), pools: Vec<PoolExplanation>) -> Self {
        let of_pool = |pool: PoolExplanation| PoolReport {
            pool: pool.pool,
            barred: pool.barred.as_ref().map(ToString::to_string),
            why: pool.barred,
            types: pool.types,
            steps: pool.steps.into_iter().map(step).collect(),
            left: pool.left,
        };
        Report {
            pod: pod.key.to_string(),
            outcome: outcome(pod, decided),
            pools: pools.into_iter().map(of_pool).collect(),
        }
    }

    /// Says whether nothing can hold the pod.
    pub fn is_refused(&self) -> bool {
        matches!(self.outcome, Outcome::Refused { .. } | Outcome::Gated)
    }

    /// Writes the report with colours, which the stream takes out where they are not wanted.
    pub fn render(&self) -> String {
        written(|out| self.write(out))
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let style = if self.is_refused() { BAD } else { BOLD };
        write!(out, "{BOLD}{}{BOLD:#}: ", self.pod)?;
        match &self.outcome {
            Outcome::Bound { node } => writeln!(out, "is on node {node}")?,
            Outcome::Leaving => writeln!(out, "has ended or is being deleted")?,
            Outcome::Gated => writeln!(out, "{style}has scheduling gates{style:#}: remove spec.schedulingGates")?,
            Outcome::OfNode => writeln!(out, "belongs to a node (daemon or static pod): no node is launched for it")?,
            Outcome::Placed { node } => writeln!(out, "fits on {node}, which is there")?,
            Outcome::Replica { node_pool } => writeln!(out, "fits on a node that static pool {node_pool} lacks")?,
            Outcome::Launched { node_pool, instance_type, price, estimated, pods } => {
                let (kind, mark) = (instance_type.as_deref().unwrap_or("node"), if *estimated { "~" } else { "" });
                let others = match pods.saturating_sub(1) {
                    0 => "alone".to_owned(),
                    1 => "with another pod".to_owned(),
                    more => format!("with {more} other pods"),
                };
                writeln!(out, "goes on a new {kind} of pool {node_pool} at {mark}${price:.4}/h, {others}")?;
            }
            Outcome::Refused { reasons } => {
                writeln!(out, "{style}refused{style:#}")?;
                for reason in reasons {
                    writeln!(out, "  {}\n    {DIM}to change it: {}{DIM:#}", reason.reason, reason.remedy)?;
                }
            }
        }
        self.pools.iter().try_for_each(|pool| pool.write(out))
    }
}

impl PoolReport {
    fn write(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "\n{BOLD}pool {}{BOLD:#}: {} of {} would do",
            self.pool,
            self.usable(),
            counted(self.types, "instance type")
        )?;
        let width = self.steps.iter().map(|step| step.asked.chars().count()).max().unwrap_or(0);
        for step in &self.steps {
            let (asked, removed, left) = (&step.asked, step.removed, step.left);
            writeln!(
                out,
                "  {asked:width$}  {removed:>5} fall out, {left:>5} left  {DIM}{}{DIM:#}",
                some(&step.types)
            )?;
        }
        self.barred.iter().try_for_each(|barred| writeln!(out, "  {barred}"))
    }

    fn usable(&self) -> usize {
        if self.barred.is_some() { 0 } else { self.left }
    }
}

fn outcome(pod: &Pod, (ahead, solution): (&Snapshot, &Solution)) -> Outcome {
    if pod.phase == Phase::Terminal || pod.deletes_at.is_some() {
        return Outcome::Leaving;
    }
    if let Some(node) = &pod.node {
        return Outcome::Bound { node: node.clone() };
    }
    if let Some(placed) = solution.placements.iter().find(|placement| placement.pod == pod.key) {
        if let Some(pool) = lacking(ahead, &placed.target) {
            return Outcome::Replica { node_pool: pool.clone() };
        }
        let (Target::Node(node) | Target::Claim(node)) = &placed.target;
        return Outcome::Placed { node: node.clone() };
    }
    if let Some(node) = solution.nodes.iter().find(|node| node.pods.contains(&pod.key)) {
        return Outcome::Launched {
            node_pool: node.pool.clone(),
            instance_type: node.instance_types().into_iter().next(),
            price: node.price.dollars(),
            estimated: is_estimated(node),
            pods: node.pods.len(),
        };
    }
    if let Some(refused) = solution.unschedulable.iter().find(|refused| refused.pod == pod.key) {
        let reason =
            |refusal: &Refusal| Reason { reason: refusal.to_string(), remedy: refusal.remedy(), why: refusal.clone() };
        return Outcome::Refused { reasons: refused.reasons.iter().map(reason).collect() };
    }
    match pod.owner {
        Owner::DaemonSet | Owner::Node => Outcome::OfNode,
        Owner::None | Owner::Controller => Outcome::Gated,
    }
}

/// Types named on a line; JSON has them all.
const NAMED: usize = 3;

/// Names the first of some types.
fn some(types: &[Arc<str>]) -> String {
    let more = types.len().saturating_sub(NAMED);
    let first = types.iter().take(NAMED).map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

fn step(step: Step) -> StepReport {
    let asked = match &step.asked {
        Asked::ByPool { requirement } => format!("pool: {requirement}"),
        Asked::ByPod { requirement } => format!("pod: {requirement}"),
        Asked::OfferingInPool => "pool: offered in its zones and capacity types".to_owned(),
        Asked::OfferingForPod => "pod: offered in its zones and capacity types".to_owned(),
        Asked::OfferingForVolumes => "pod: offered where its volumes are".to_owned(),
        Asked::Room { resource, wanted, largest } => format!("pod: {resource} {wanted} (at most {largest})"),
        Asked::HostPort { port } => format!("pod: no daemon with host port {port}"),
        Asked::NoDaemon { daemon, rule } => format!("no pod of daemon set {daemon} ({rule})"),
        Asked::Volumes { driver, wanted, most } => {
            format!("pod: {} of {driver} (at most {most})", counted(*wanted as usize, "volume"))
        }
        Asked::Limit { resource, limit, used } => format!("pool: limit {resource} {limit} ({used} in use)"),
    };
    StepReport { asked, why: step.asked, removed: step.removed.len(), types: step.removed, left: step.left }
}

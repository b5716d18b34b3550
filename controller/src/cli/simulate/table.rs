//! The answer of a simulation, as people read it.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::answer::{Answer, NewNode, Refused};
use super::kept::{KeptBuffer, KeptPool};
use crate::cli::text::{BAD, BOLD, DIM, align, counted, table, written};

/// Rows of one table at most; more are for programs.
pub(super) const ROWS: usize = 40;

/// What is said of new nodes; the last two where some are for more than pods.
const COLUMNS: [&str; 10] =
    ["nodes", "pool", "type", "or", "capacity", "zone", "$/h each", "pods each", "virtual each", "for"];

/// Writes the answer with colours, which the stream takes out where they are not wanted.
pub fn render(answer: &Answer) -> String {
    written(|out| write(out, answer))
}

fn write(out: &mut String, answer: &Answer) -> fmt::Result {
    new_nodes(out, answer)?;
    there(out, answer)?;
    buffers(out, answer)?;
    static_pools(out, answer)?;
    refused(out, answer)?;
    totals(out, answer)
}

fn new_nodes(out: &mut String, answer: &Answer) -> fmt::Result {
    if answer.node_claims.is_empty() {
        return Ok(());
    }
    let mut groups: BTreeMap<_, Vec<&NewNode>> = BTreeMap::new();
    for node in &answer.node_claims {
        let cheapest = node.instance_types.first();
        // dearest first in each pool
        let price = std::cmp::Reverse((node.price * 1e6) as u64);
        let key = (&node.node_pool, price, cheapest, &node.capacity_type, (&node.zone, &node.zones), node.purpose);
        groups.entry(key).or_default().push(node);
    }
    // most clusters have pods only, and nothing else to tell apart
    let only_pods = answer.node_claims.iter().all(|node| node.purpose.is_none() && node.room() == 0);
    let columns = if only_pods { COLUMNS.len() - 2 } else { COLUMNS.len() };
    let mut table = table(&COLUMNS[..columns]);
    for nodes in groups.values().take(ROWS) {
        table.add_row(row(nodes).into_iter().take(columns));
    }
    align(&mut table, &[0, 3, 6, 7, 8]);
    let count = counted(answer.node_claims.len(), "node");
    writeln!(out, "{BOLD}New: {count} for {}{BOLD:#}", price(&answer.node_claims))?;
    indented(out, &table.to_string())?;
    rest(out, groups.len(), "rows")?;
    writeln!(out)
}

/// Says nodes that are alike.
fn row(nodes: &[&NewNode]) -> [String; COLUMNS.len()] {
    let first = nodes[0];
    let mark = if first.estimated { "~" } else { "" };
    [
        nodes.len().to_string(),
        first.node_pool.to_string(),
        first.instance_types.first().map(ToString::to_string).unwrap_or_default(),
        more(nodes),
        first.capacity_type.clone().unwrap_or_default(),
        zone(first),
        format!("{mark}{:.4}", first.price),
        range(nodes.iter().map(|node| node.pods.len())),
        range(nodes.iter().map(|node| node.room())),
        first.purpose.unwrap_or("pods").to_owned(),
    ]
}

/// The zone of a node, or those that it may be in.
fn zone(node: &NewNode) -> String {
    match &node.zone {
        Some(zone) => zone.to_string(),
        None if node.zones.is_empty() => "any".to_owned(),
        None => format!("any of {}", node.zones.join(", ")),
    }
}

/// How many more types a launch may choose from.
fn more(nodes: &[&NewNode]) -> String {
    match range(nodes.iter().map(|node| node.instance_types.len().saturating_sub(1))) {
        none if none == "0" => String::new(),
        some => format!("{some} more"),
    }
}

fn there(out: &mut String, answer: &Answer) -> fmt::Result {
    if answer.placements.is_empty() {
        return Ok(());
    }
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    for placed in &answer.placements {
        *nodes.entry(&placed.node).or_default() += 1;
    }
    let (pods, count) = (counted(answer.placements.len(), "pod"), counted(nodes.len(), "node"));
    writeln!(out, "{BOLD}On nodes that are there: {pods} on {count}{BOLD:#}")?;
    let mut table = table(&["node", "pods"]);
    for (node, pods) in nodes.iter().take(ROWS) {
        table.add_row([(*node).to_owned(), pods.to_string()]);
    }
    align(&mut table, &[1]);
    indented(out, &table.to_string())?;
    rest(out, nodes.len(), "nodes")?;
    writeln!(out)
}

fn buffers(out: &mut String, answer: &Answer) -> fmt::Result {
    if answer.buffers.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}Room for {}{BOLD:#}", counted(answer.buffers.len(), "buffer"))?;
    for KeptBuffer { buffer, ready, message, reasons, .. } in answer.buffers.iter().take(ROWS) {
        let not = if *ready { "" } else { "not ready: " };
        writeln!(out, "  {buffer}: {not}{message}")?;
        reasons.iter().try_for_each(|reason| writeln!(out, "    {reason}"))?;
    }
    rest(out, answer.buffers.len(), "buffers")?;
    writeln!(out)
}

fn static_pools(out: &mut String, answer: &Answer) -> fmt::Result {
    if answer.static_pools.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}{}{BOLD:#}", counted(answer.static_pools.len(), "static pool"))?;
    for KeptPool { node_pool, replicas, launched, removed, short } in answer.static_pools.iter().take(ROWS) {
        write!(out, "  {node_pool}: {} wanted", counted(*replicas as usize, "node"))?;
        match (launched, removed.len()) {
            (0, 0) if short.is_none() => write!(out, ", all there")?,
            (0, 0) => write!(out, ", none launched")?,
            (0, many) => write!(out, ", {many} too many go")?,
            (launched, _) => write!(out, ", {launched} launched")?,
        }
        short.iter().try_for_each(|why| write!(out, "\n    {why}"))?;
        writeln!(out)?;
    }
    rest(out, answer.static_pools.len(), "static pools")?;
    writeln!(out)
}

fn refused(out: &mut String, answer: &Answer) -> fmt::Result {
    if answer.unschedulable.is_empty() {
        return Ok(());
    }
    let mut groups: BTreeMap<&[String], Vec<&Refused>> = BTreeMap::new();
    for refused in &answer.unschedulable {
        groups.entry(&refused.reasons).or_default().push(refused);
    }
    writeln!(out, "{BAD}Not placed: {}{BAD:#}", counted(answer.unschedulable.len(), "pod"))?;
    for (reasons, pods) in groups.iter().take(ROWS) {
        match pods.len() {
            1 => writeln!(out, "  {}", pods[0].pod)?,
            many => writeln!(out, "  {} and {} more like it", pods[0].pod, many - 1)?,
        }
        for reason in *reasons {
            writeln!(out, "    {reason}")?;
        }
    }
    rest(out, groups.len(), "kinds of refusal")?;
    writeln!(out)
}

fn totals(out: &mut String, answer: &Answer) -> fmt::Result {
    let on_new: usize = answer.node_claims.iter().map(|node| node.pods.len()).sum();
    let there = answer.placements.len();
    let all = on_new + there + answer.unschedulable.len();
    if all == 0 {
        writeln!(out, "No pod waits for a node.")?;
    } else {
        let mut parts = Vec::new();
        if there > 0 {
            parts.push(format!("{there} on nodes that are there"));
        }
        if on_new > 0 {
            let nodes: Vec<&NewNode> = answer.node_claims.iter().filter(|node| !node.pods.is_empty()).collect();
            let count = counted(nodes.len(), "new node");
            parts.push(format!("{on_new} on {count} for {}", price(nodes)));
        }
        let of = format!("{} of {} placed", on_new + there, counted(all, "pod"));
        let detail = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
        writeln!(out, "{BOLD}{of}{detail}.{BOLD:#}")?;
    }
    for (why, count) in &answer.aside {
        writeln!(out, "{DIM}{} left aside: {why}.{DIM:#}", counted(*count, "pod"))?;
    }
    if answer.node_claims.iter().any(|node| node.estimated) {
        writeln!(out, "{DIM}~ marks estimated prices; --instance-types takes a list with real ones.{DIM:#}")?;
    }
    let seconds = answer.solve_seconds;
    let (median, least) = (milliseconds(seconds.median), milliseconds(seconds.min));
    let fastest = if (seconds.median - seconds.min).abs() > 0.0 { format!(", at best {least}") } else { String::new() };
    writeln!(out, "{DIM}Solved in {median}{fastest}.{DIM:#}")
}

fn price<'n>(nodes: impl IntoIterator<Item = &'n NewNode>) -> String {
    let (mut sum, mut mark) = (0.0, "");
    for node in nodes {
        sum += node.price;
        mark = if node.estimated { "~" } else { mark };
    }
    format!("{mark}${sum:.4} an hour")
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1000.0)
}

fn range(numbers: impl Iterator<Item = usize> + Clone) -> String {
    let (least, most) = (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0));
    if least == most { least.to_string() } else { format!("{least}-{most}") }
}

pub(super) fn indented(out: &mut String, text: &str) -> fmt::Result {
    text.lines().try_for_each(|line| writeln!(out, " {}", line.trim_end()))
}

pub(super) fn rest(out: &mut String, all: usize, what: &str) -> fmt::Result {
    match all.saturating_sub(ROWS) {
        0 => Ok(()),
        more => writeln!(out, "  {DIM}and {more} more {what}: -o json has all{DIM:#}"),
    }
}

//! The answer to what karp would take away or replace, as people read it.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;

use super::{Disruption, Done, Replacement};
use crate::cli::simulate::table::{ROWS, indented, rest};
use crate::cli::text::{BOLD, DIM, align, counted, table, written};

/// Names of nodes in one row.
const NAMES: usize = 3;

/// Writes the answer with colours, which the stream takes out where they are not wanted.
pub fn render(answer: &Disruption) -> String {
    written(|out| write(out, answer))
}

fn write(out: &mut String, answer: &Disruption) -> fmt::Result {
    commands(out, answer)?;
    kept(out, answer)?;
    totals(out, answer)
}

fn commands(out: &mut String, answer: &Disruption) -> fmt::Result {
    if answer.commands.is_empty() {
        return Ok(());
    }
    let mut table = table(&["method", "reason", "nodes", "replaced by", "saves $/h", "evictions"]);
    for command in answer.commands.iter().take(ROWS) {
        table.add_row([
            command.method.to_owned(),
            command.reason.to_owned(),
            names(&command.candidates),
            replacements(command),
            format!("{}{:.4}", if command.estimated { "~" } else { "" }, command.savings_per_hour),
            command.evictions.to_string(),
        ]);
    }
    align(&mut table, &[4, 5]);
    writeln!(out, "{BOLD}{}{BOLD:#}", counted(answer.commands.len(), "command"))?;
    indented(out, &table.to_string())?;
    rest(out, answer.commands.len(), "commands")?;
    writeln!(out)
}

fn names(nodes: &[Arc<str>]) -> String {
    let listed = nodes.iter().take(NAMES).map(|node| &**node).collect::<Vec<_>>().join(", ");
    match nodes.len().saturating_sub(NAMES) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

fn replacements(command: &Done) -> String {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for Replacement { instance_types, capacity_type, .. } in &command.replacements {
        let words = [instance_types.first().map(|kind| &**kind), capacity_type.as_deref()];
        *kinds.entry(words.into_iter().flatten().collect::<Vec<_>>().join(" ")).or_default() += 1;
    }
    let listed = kinds.iter().map(|(kind, count)| if *count == 1 { kind.clone() } else { format!("{count} {kind}") });
    if kinds.is_empty() { "nothing".to_owned() } else { listed.collect::<Vec<_>>().join(", ") }
}

fn kept(out: &mut String, answer: &Disruption) -> fmt::Result {
    if answer.kept.is_empty() {
        return Ok(());
    }
    let mut groups: BTreeMap<&str, Vec<Arc<str>>> = BTreeMap::new();
    for kept in &answer.kept {
        groups.entry(&kept.reason).or_default().push(kept.node.clone());
    }
    writeln!(out, "{BOLD}Kept: {}{BOLD:#}", counted(answer.kept.len(), "node"))?;
    for (reason, nodes) in groups.iter().take(ROWS) {
        writeln!(out, "  {}\n    {reason}", names(nodes))?;
    }
    rest(out, groups.len(), "reasons")?;
    writeln!(out)
}

fn totals(out: &mut String, answer: &Disruption) -> fmt::Result {
    let mark = if answer.estimated { "~" } else { "" };
    let (before, after) = (answer.price_per_hour_before, answer.price_per_hour_after);
    let evictions = counted(answer.evictions(), "eviction");
    let then = if answer.way.is_some() { "at the end" } else { "afterwards" };
    let idle = answer.commands.is_empty() && answer.way.as_ref().is_none_or(|way| way.path.is_empty());
    match idle {
        true => writeln!(out, "{BOLD}Nothing to do: {mark}${before:.4} an hour.{BOLD:#}")?,
        false => {
            writeln!(out, "{BOLD}{mark}${before:.4} an hour now, {mark}${after:.4} {then}, for {evictions}.{BOLD:#}")?;
        }
    }
    if let Some(way) = &answer.way {
        let end = if way.stable { "Nothing is left to do" } else { "Stopped" };
        let launched: usize = way.path.iter().map(|step| step.launched).sum();
        let removed: usize = way.path.iter().map(|step| step.removed).sum();
        let (plans, nodes) = (counted(way.passes, "plan"), counted(removed, "node"));
        writeln!(out, "{DIM}{end} after {plans}: {nodes} taken away, {launched} launched.{DIM:#}")?;
    }
    if answer.estimated {
        writeln!(out, "{DIM}~ marks estimated prices; --instance-types takes a list with real ones.{DIM:#}")?;
    }
    Ok(())
}
